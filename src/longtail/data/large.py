"""Large data sets by name, or any folder in their formats: their files and faults.

`lists` reads a list; `streaming` brings the images from disk to the network.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from longtail._checks import InputError
from longtail.data.lists import (
    ListedImages,
    Listing,
    Problem,
    label_problems,
    record_name,
    scan,
    stray_images,
)
from longtail.runs import DataSpec

VARIABLE = "LONGTAIL_DATA"
SPLITS = ("train", "val", "test")
KINDS = {
    "split": "no training set, or no test set, which training needs too",
    "size": "not the published number of images",
    "line": "lines that are not `path label`, or none at all",
    "path": "paths that leave the image root",
    "label": "labels that are not numbers, out of range, or with holes",
    "stray": "images beside the class folders",
    "duplicate": "files listed twice",
    "overlap": "files listed in two splits",
    "missing": "files that are not there",
    "truncated": "files that end too early",
    "unreadable": "files that can't be read or decoded",
    "format": "files that are not images",
}
"""Every kind of problem that a data set on disk can have, in the order of a report."""


@dataclass(frozen=True)
class Known:
    """Published data set."""

    title: str
    num_classes: int
    files: Mapping[str, tuple[str, ...]]  # by split, the names its list goes by
    sizes: Mapping[str, int]  # images by split


def _lists(stem: str) -> dict[str, tuple[str, ...]]:
    return {split: (f"{stem}{split}.txt",) for split in SPLITS}


LARGE: dict[str, Known] = {
    "imagenet-lt": Known(
        "ImageNet-LT",
        1000,
        _lists("ImageNet_LT_"),
        {"train": 115_846, "val": 20_000, "test": 50_000},
    ),
    "places-lt": Known(
        "Places-LT", 365, _lists("Places_LT_"), {"train": 62_500, "val": 7_300, "test": 36_500}
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


@dataclass(frozen=True, eq=False)
class ListedData:
    """Training set on disk, its test set, and perhaps a validation set."""

    train: ListedImages
    test: ListedImages
    val: ListedImages | None
    stray: tuple[Path, ...] = ()  # images beside the class folders, which are in none of the sets

    @property
    def spec(self) -> DataSpec:
        """Name and fingerprint of the data in a run's record."""
        return self.train.spec


@dataclass(frozen=True)
class Sources:
    """Files of a data set's splits: lists, competition files, or folders of class folders."""

    name: str  # what records call it
    files: Mapping[str, Path]  # by split
    root: Path  # the image root of lists
    names: Mapping[str, tuple[str, ...]]  # by split, what may be there
    known: Known | None = None  # what it must hold, for a published data set

    @property
    def are_trees(self) -> bool:
        """True if each split is a folder of its own, so that none needs a list."""
        return all(path.is_dir() for path in self.files.values())

    def stray(self) -> list[Path]:
        """Return the images that lie beside the class folders of trees."""
        trees = [path for path in self.files.values() if path.is_dir()]
        return [image for tree in trees for image in stray_images(tree)]

    @cached_property
    def listings(self) -> dict[str, Listing]:
        """Every split as it was read, faulty or not; a folder's classes are the training set's."""
        found: dict[str, Listing] = {}
        for split, path in self.files.items():
            names = found["train"].class_names if "train" in found else None
            found[split] = scan(path, self.root, names)
        return found

    @property
    def _named(self) -> tuple[str, ...] | None:
        """Class names of the training set; None where classes have numbers."""
        named = self.known is None and "train" in self.listings
        return self.listings["train"].class_names if named else None

    @property
    def num_classes(self) -> int:
        """Number of classes: published, named by the training set, or counted."""
        if self.known is not None:
            return self.known.num_classes
        if self._named is not None:
            return len(self._named)
        return max(int(part.labels.max(initial=-1)) + 1 for part in self.listings.values())

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes of sound listings, or their numbers."""
        return self._named or tuple(map(str, range(self.num_classes)))

    def problems(self, *, splits: bool = True, judges_differ: bool = True) -> list[Problem]:
        """Return what the lists alone show to be wrong.

        With `splits` it must have a training set and a test set; with `judges_differ` the
        validation set may share no image with the test set.
        """
        if not self.root.is_dir():
            raise InputError(
                f"there is no folder {self.root}, the image root of {self.name}; pass `root=`, the "
                f"folder that the lists' paths start from."
            )
        found: list[Problem] = []
        for split in {"train", "test"} - self.files.keys() if splits else ():
            rule = f"has no {split} set ({' or '.join(self.names[split])}), which training needs"
            found.append(Problem("split", str(next(iter(self.files.values())).parent), rule))
        first_in = dict[str, str]()
        for split, listing in self.listings.items():
            source, count = str(listing.source), len(listing.paths)
            found += listing.problems
            if self.known is not None and count != (size := self.known.sizes[split]):
                rule = f"has {count:,} images; the {split} set of {self.known.title} has {size:,}"
                found.append(Problem("size", source, rule))
            own = len(listing.class_names or ()) if listing.source.is_dir() else self.num_classes
            every = split == "train" or self.known is not None
            found += label_problems(listing, own, every_class=every)
            for name in () if self.are_trees else listing.paths:  # a folder for each split
                other = first_in.setdefault(name, split)
                if other != split and (judges_differ or other == "train"):
                    rule = f"{name!r} is in the {other} set as well"
                    found.append(Problem("overlap", source, rule))
        return found


def find_sources(
    name: str | Path, *, data_dir: Path | str | None = None, root: Path | str | None = None
) -> Sources:
    """Find the files of a data set; nothing in them is read yet.

    Args:
        name: ``imagenet-lt``, ``places-lt`` or ``inaturalist``; or a list, a competition file,
            or a folder that holds lists (also ``train.txt``, ``val.txt``, ``test.txt``) or the
            trees ``train/<class>/<image>`` and ``test/<class>/<image>``.
        data_dir: for a data set by name, the folder of its lists, or one with a sub-folder of
            that name; the environment variable LONGTAIL_DATA if None.
        root: the folder that the lists' paths start from; by default that of the lists.
    """
    path, known, own = Path(name), LARGE.get(str(name)), _lists("")
    if known is not None:
        given = data_dir if data_dir is not None else os.environ.get(VARIABLE)
        wanted = " and ".join(" or ".join(known.files[s]) for s in ("train", "test"))
        if not given:
            raise InputError(
                f"say where the lists of {name} are ({wanted}), by `data_dir=` or {VARIABLE}; "
                f"the images may be elsewhere: `root=`."
            )
        folder = Path(given).expanduser()
        title, places, layouts = str(name), [folder / name, folder], [known.files]
    elif path.is_file():
        return Sources(record_name(path.stem), {"train": path}, Path(root or path.parent), own)
    elif path.is_dir():
        title, places = record_name(path.resolve().name), [path]
        layouts = [own, *(one.files for one in LARGE.values())]
    else:
        raise InputError(
            f"there is no data set, list or folder {str(name)!r}; the data sets on disk are "
            f"{', '.join(LARGE)}."
        )
    for place, names in itertools.product(places, layouts):
        files = {
            split: next(filter(Path.is_file, [place / file for file in some]), None)
            for split, some in names.items()
        }
        if files["train"] is not None:
            there = {split: file for split, file in files.items() if file is not None}
            return Sources(title, there, Path(root or place), names, known)
    if known is not None:
        raise InputError(
            f"there is no list of {known.title} in {folder} or {folder / name}; looked for "
            f"{wanted}."
        )
    trees = {split: path / split for split in SPLITS if (path / split).is_dir()}
    if "train" in trees:
        names = {split: (f"{split}/<class>/<image>",) for split in SPLITS}
        return Sources(title, trees, path, names)
    raise InputError(
        f"{path} has neither lists (train.txt and test.txt, or those of "
        f"{', '.join(known.title for known in LARGE.values())}) nor the folders "
        f"train/<class>/<image> and test/<class>/<image>."
    )


def load_listed(
    name: str | Path,
    *,
    data_dir: Path | str | None = None,
    root: Path | str | None = None,
    verify: bool = True,
    check_files: bool = True,
) -> ListedData:
    """Load a large data set, as lists of files that are read when they are needed.

    Args:
        name: of the data set; this, `data_dir` and `root` as in `find_sources`.
        data_dir: where the lists are.
        root: where the images are.
        verify: refuse a data set by name that hasn't the published number of images.
        check_files: refuse lists that name files which are not there.
    """
    sources = find_sources(name, data_dir=data_dir, root=root)
    if not verify:
        sources = replace(sources, known=None)
    problems = sources.problems(judges_differ=False)
    if problems:
        first, others = problems[0], len(problems) - 1
        more = f" (and {others:,} more; `longtail data check` lists them)" if others else ""
        raise InputError(f"{first.where}: {first.detail}{more}.")
    parts = {
        split: ListedImages(part.root, part.paths, part.labels, sources.class_names, sources.name)
        for split, part in sources.listings.items()
    }
    for split, part in parts.items() if check_files else ():
        missing = part.missing_files()
        if len(missing):
            raise InputError(
                f"{len(missing):,} of the {len(part):,} files that {sources.files[split]} names "
                f"are not in {part.root}; the first is "
                f"{os.fsdecode(part.paths[int(missing[0])])!r}. If the images are elsewhere, pass "
                f"`root=`; `longtail data check` lists all that are missing."
            )
    return ListedData(parts["train"], parts["test"], parts.get("val"), tuple(sources.stray()))
