"""The large data sets by name, or any folder in their formats: which files, and what they hold.

How a list is read is in `lists` and `inaturalist`; how the images get from disk to the network,
in `streaming`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from longtail import _checks, runs
from longtail._checks import InputError
from longtail.data.folder import stray_images
from longtail.data.inaturalist import scan_inaturalist
from longtail.data.lists import (
    ListedImages,
    Listing,
    label_problems,
    list_folder,
    listed,
    overlap_problems,
    record_name,
    refuse,
    scan_list,
)
from longtail.data.registry import VARIABLE

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Known:
    """What a published data set consists of.

    Attributes:
        title: as its authors write it.
        num_classes: L.
        files: by split, the names its list goes by, the most usual first.
        sizes: images by split.
    """

    title: str
    num_classes: int
    files: dict[str, tuple[str, ...]]
    sizes: dict[str, int]


def _lists(stem: str) -> dict[str, tuple[str, ...]]:
    return {split: (f"{stem}_{split}.txt",) for split in SPLITS}


LARGE: dict[str, Known] = {
    "imagenet-lt": Known(
        "ImageNet-LT",
        1000,
        _lists("ImageNet_LT"),
        {"train": 115_846, "val": 20_000, "test": 50_000},
    ),
    "places-lt": Known(
        "Places-LT", 365, _lists("Places_LT"), {"train": 62_500, "val": 7_300, "test": 36_500}
    ),
    # The labels of the competition's own test set were never published.
    "inaturalist": Known(
        "iNaturalist 2018",
        8142,
        {
            "train": ("iNaturalist18_train.txt", "train2018.json"),
            "test": ("iNaturalist18_val.txt", "val2018.json"),
        },
        {"train": 437_513, "test": 24_426},
    ),
}
# What a folder's own lists may be called.
_PLAIN: dict[str, tuple[str, ...]] = {split: (f"{split}.txt",) for split in SPLITS}
_NAMES = (_PLAIN, *(known.files for known in LARGE.values()))


@dataclass(frozen=True, eq=False)
class ListedData:
    """A training set on disk, the test set that belongs to it, and perhaps a validation set.

    Attributes:
        train: what training sees.
        test: what `evaluate` sees.
        val: for choosing anything, or None.
        spec: how a run's record names it.
        stray: images beside the class folders of a split, which are in none of the sets.
    """

    train: ListedImages
    test: ListedImages
    val: ListedImages | None
    spec: runs.DataSpec
    stray: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Sources:
    """Where the splits of a data set are.

    Attributes:
        name: what records call it.
        files: by split, a list, a competition file, or a folder ``<class>/<image>``.
        root: the image root of lists.
        known: what it must hold, for a published data set.
    """

    name: str
    files: dict[str, Path]
    root: Path
    known: Known | None = None

    @property
    def are_trees(self) -> bool:
        """Whether each split is a folder of its own, so that none needs a list."""
        return all(path.is_dir() for path in self.files.values())

    def lacking(self) -> dict[str, str]:
        """The splits that training needs and are not there, each with where it would be."""
        there, path = next(iter(self.files.items()))
        names = next((files for files in _NAMES if path.name in files.get(there, ())), None)
        return {
            split: f"{split}/<class>/<image>" if names is None else " or ".join(names[split])
            for split in ("train", "test")
            if split not in self.files
        }

    def stray(self) -> list[Path]:
        """The images that lie beside the class folders of trees."""
        trees = [self.files[split] for split in SPLITS if split in self.files]
        return [image for tree in trees if tree.is_dir() for image in stray_images(tree)]


def find_sources(
    name: str | Path, *, data_dir: Path | str | None = None, root: Path | str | None = None
) -> Sources:
    """Find the files of a data set.

    Args:
        name: ``imagenet-lt``, ``places-lt`` or ``inaturalist``; or a list, a competition file,
            or a folder that holds lists (also ``train.txt``, ``val.txt``, ``test.txt``) or the
            trees ``train/<class>/<image>`` and ``test/<class>/<image>``.
        data_dir: for a data set by name, the folder of its lists, or one with a sub-folder of
            that name; the environment variable LONGTAIL_DATA if None.
        root: the folder that the lists' paths start from; by default that of the lists.

    Returns:
        The files; nothing in them is read yet.
    """
    caller = "find_sources"
    if name in LARGE:
        return _by_name(str(name), data_dir, root, caller)
    path = Path(name)
    if path.is_file():
        image_root = path.parent if root is None else Path(root)
        return Sources(record_name(path.stem), {"train": path}, image_root)
    if not path.is_dir():
        raise InputError(
            f"{caller}: there is no data set, list or folder {str(name)!r}; the data sets on disk "
            f"are {', '.join(LARGE)}."
        )
    sources = _in_folder(path, path if root is None else Path(root))
    if sources is None:
        raise InputError(
            f"{caller}: {path} has neither lists (train.txt and test.txt, or those of "
            f"{', '.join(known.title for known in LARGE.values())}) nor the folders "
            f"train/<class>/<image> and test/<class>/<image>."
        )
    return sources


def _by_name(
    name: str, data_dir: Path | str | None, root: Path | str | None, caller: str
) -> Sources:
    given = data_dir if data_dir is not None else os.environ.get(VARIABLE)
    known = LARGE[name]
    wanted = " and ".join(" or ".join(known.files[s]) for s in ("train", "test"))
    if not given:
        raise InputError(
            f"{caller}: say where the lists of {name} are ({wanted}), by data_dir (--data-dir) or "
            f"{VARIABLE}; the images may be elsewhere (--root)."
        )
    folder = Path(given).expanduser()
    for place in (folder / name, folder):
        files = _present(place, known.files)
        if "train" in files or "test" in files:
            return Sources(name, files, place if root is None else Path(root), known)
    raise InputError(
        f"{caller}: there is no list of {known.title} in {folder} or {folder / name}; looked for "
        f"{wanted}."
    )


def _present(folder: Path, files: dict[str, tuple[str, ...]]) -> dict[str, Path]:
    found = {}
    for split, names in files.items():
        there = [folder / name for name in names if (folder / name).is_file()]
        if there:
            found[split] = there[0]
    return found


def _in_folder(folder: Path, root: Path) -> Sources | None:
    for files in _NAMES:
        found = _present(folder, files)
        if "train" in found:
            return Sources(record_name(folder.resolve().name), found, root)
    trees = {split: folder / split for split in SPLITS if (folder / split).is_dir()}
    if "train" in trees:
        return Sources(record_name(folder.resolve().name), trees, folder)
    return None


def load_listed(
    name: str | Path,
    *,
    data_dir: Path | str | None = None,
    root: Path | str | None = None,
    verify: bool = True,
    check_files: bool = True,
) -> ListedData:
    """A large data set, as lists of files that are read when they are needed.

    Args:
        name: see `find_sources`.
        data_dir: likewise.
        root: likewise.
        verify: refuse a data set by name that hasn't the published number of images.
        check_files: refuse lists that name files which are not there.

    Returns:
        The splits, all with the training set's classes.
    """
    caller = "load_listed"
    sources = find_sources(name, data_dir=data_dir, root=root)
    for split in ("train", "test"):
        if split not in sources.files:
            raise InputError(
                f"{caller}: {sources.name} needs a {split} set; found only "
                f"{_checks.listing(sources.files.values())}."
            )
    parts: dict[str, ListedImages] = {}
    for split in ("train", "test", "val"):
        if split in sources.files:
            classes = parts["train"].class_names if parts else None
            parts[split] = _load_split(sources, split, classes, check_files=check_files)
    known = sources.known
    for split, part in parts.items():
        expected = len(part) if known is None else known.sizes[split]
        if verify and known is not None and len(part) != expected:
            raise InputError(
                f"{caller}: {sources.files[split]} has {len(part):,} images, but the {split} set "
                f"of {known.title} has {expected:,}; get the list anew, or pass verify=False."
            )
    train = parts["train"]
    if not sources.are_trees:
        packed = {split: (sources.files[split], part._packed) for split, part in parts.items()}
        # What judges may be one set by two names; what is trained on judges nothing.
        for split in packed.keys() - {"train"}:
            pair = {name: packed[name] for name in ("train", split)}
            refuse(overlap_problems(pair), caller=caller)
    return ListedData(train, parts["test"], parts.get("val"), train.spec, tuple(sources.stray()))


def _load_split(
    sources: Sources, split: str, classes: Sequence[str] | None, *, check_files: bool
) -> ListedImages:
    path = sources.files[split]
    if path.is_dir():
        images = list_folder(path, class_names=classes, name=sources.name)
        listing = Listing(path, images._packed, images.labels, [])
        found = label_problems(listing, images.class_names, every_class=split == "train")
        refuse(found, caller="load_listed")
        return images
    return listed(
        scan(path),
        root=sources.root,
        name=sources.name,
        class_names=classes,
        every_class=split == "train",
        check_files=check_files,
        caller="load_listed",
    )


def scan(path: Path) -> Listing:
    """A list or a competition file, told apart by its ending; see `scan_list`."""
    return scan_inaturalist(path) if path.suffix.lower() == ".json" else scan_list(path)
