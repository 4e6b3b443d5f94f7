"""Long-tailed data by name: `load`, and where it looks.

The CIFARs come from a folder that the caller or LONGTAIL_DATA names, in any of their forms, and
are held to the fingerprints of the official files. What a file of either kind holds, and how a
subset is drawn, is in the modules above.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from longtail import _checks
from longtail._checks import InputError
from longtail.data.cifar import ARCHIVES, read_cifar
from longtail.data.decoding import Progress
from longtail.data.digits import read_digits
from longtail.data.folder import first_colored, read_image_folder
from longtail.data.frozen import read_frozen, read_record
from longtail.data.hub_parquet import read_hub_parquet
from longtail.data.images import ImageSet, LongTailedData
from longtail.data.official import verify_official, verify_subset
from longtail.data.profiles import PROFILES, check_ratio, fit_counts, natural_counts, read_counts
from longtail.data.subsets import DEVELOPMENT_IMAGES, make_long_tailed
from longtail.runs import DataSpec
from longtail.runs.spec import POOL

VARIABLE = "LONGTAIL_DATA"
FROZEN = ".frozen"
NATURAL = "natural"

# Name -> the literature's imbalance ratio, which `load` takes if none is given.
DATASETS = {"cifar10-lt": 100.0, "cifar100-lt": 100.0, "digits-lt": 50.0}

_Pair = tuple[ImageSet, ImageSet]


def load(
    name: str | Path,
    *,
    data_dir: Path | str | None = None,
    profile: str | None = None,
    imbalance_ratio: float | None = None,
    counts: Any = None,
    fit: bool = False,
    seed: int = 0,
    development: int | None = None,
    verify: bool = True,
    progress: Progress | None = None,
) -> LongTailedData:
    """A long-tailed training set and the balanced test set that belongs to it.

    Args:
        name: ``cifar10-lt``, ``cifar100-lt`` or ``digits-lt``; or a file that `freeze` wrote; or
            a folder of images, with ``train/<class>/<image>`` and ``test/<class>/<image>``,
            where the test set may lack classes.
        data_dir: where the CIFARs are, in any of their forms: the official archive, packed or
            unpacked, the hub's parquet files, or a frozen file. The environment variable
            LONGTAIL_DATA if None.
        profile: ``exp``, ``step`` or ``natural``. If None, ``natural`` where counts are given,
            else ``exp``; a folder of images then keeps its own class sizes.
        imbalance_ratio: largest class over smallest, for ``exp`` and ``step``; the literature's
            if None (100; 50 for the digits).
        counts: class sizes of a natural profile in label order, or a text file of them.
        fit: give the profile of `counts` the data set's own number of classes and size, see
            `fit_counts`.
        seed: which subset; 0 is the one that published results use.
        development: how many images of each class the development set has at most, of those
            that the subset leaves out; 5,000 shared out among the classes if None. A frozen
            file has the one that was frozen, or none.
        verify: refuse CIFAR files whose content is not the official one.
        progress: called with (images read, images in all, text).

    Returns:
        The data; a frozen file's have the spec of what was frozen.

    Examples:
        >>> load("digits-lt", imbalance_ratio=10).train.counts
        array([114,  88,  68,  52,  40,  31,  24,  19,  14,  11])
    """
    caller = "load"
    wanted = _Wanted(profile, imbalance_ratio, counts, fit, seed, development)
    if name in DATASETS:
        name = str(name)
        if name == "digits-lt":
            pool, test = read_digits()
            return wanted.subset(pool, test, wanted.spec(name, pool))
        return _load_cifar(name, wanted, data_dir=data_dir, verify=verify, progress=progress)
    path = Path(name)
    if path.is_file():
        return wanted.agreed(read_frozen(path), path)
    if path.is_dir():
        return _load_folder(path, wanted, progress)
    raise InputError(
        f"{caller}: there is no data set, file or folder {str(name)!r}; the data sets are "
        f"{', '.join(DATASETS)}. A path may name a frozen file or a folder of images."
    )


class _Wanted:
    """What the caller asks of a subset, checked as far as it can be without the data."""

    def __init__(
        self,
        profile: str | None,
        ratio: Any,
        counts: Any,
        fit: bool,
        seed: int,
        development: int | None,
    ) -> None:
        caller = "load"
        if development is not None:
            _checks.whole(development, caller, name="development", at_least=0)
        self.development = development
        if profile is not None:
            _checks.choice(profile, [*PROFILES, NATURAL], caller, name="profile")
        if counts is not None and profile not in (None, NATURAL):
            raise InputError(
                f"{caller}: `counts` are the class sizes of a natural profile, but `profile` is "
                f"{profile!r}; give one or the other."
            )
        if counts is None and (profile == NATURAL or fit):
            what = "a natural profile" if profile == NATURAL else "`fit`"
            raise InputError(f"{caller}: {what} needs `counts`, the class sizes or a file of them.")
        if counts is not None and ratio is not None:
            raise InputError(
                f"{caller}: `imbalance_ratio` has no meaning beside `counts`, which decide it."
            )
        self.profile = NATURAL if counts is not None else profile
        self.ratio = None if ratio is None else check_ratio(ratio, caller)
        self.fit, self.seed = fit, _checks.whole(seed, caller, name="seed", at_least=0)
        self.counts = None
        if counts is not None:
            is_path = isinstance(counts, str | Path)
            self.counts = read_counts(counts) if is_path else natural_counts(counts, caller=caller)

    def freezing(self, name: str) -> str:
        """The command that writes the subset into a file, with a development set."""
        words = ["longtail", "data", "freeze", name]
        if self.counts is not None:
            words += ["--counts", "FILE", *(["--fit"] if self.fit else [])]
        elif self.profile not in (None, "exp"):
            words += ["--profile", str(self.profile)]
        if self.ratio not in (None, DATASETS[name]):
            words += ["--ratio", f"{self.ratio:g}"]
        words += ["--subset-seed", str(self.seed)] if self.seed else []
        each = DEVELOPMENT_IMAGES // ARCHIVES[name.removesuffix("-lt")].num_classes
        return " ".join([*words, "--dev", str(self.development or each), "--out", f"FILE{FROZEN}"])

    def spec(self, name: str, pool: ImageSet) -> DataSpec:
        """How a run's record names the subset of this pool."""
        if self.counts is None:
            ratio = DATASETS[name] if self.ratio is None else self.ratio
            return DataSpec(
                name, profile=self.profile or "exp", imbalance_ratio=ratio, seed=self.seed
            )
        sizes = self.counts
        if self.fit:
            sizes = fit_counts(sizes, num_classes=pool.num_classes, largest=int(pool.counts.min()))
        return DataSpec(
            name,
            profile=NATURAL,
            imbalance_ratio=float(sizes.max() / sizes.min()),
            seed=self.seed,
            settings={"counts": sizes.tolist()},
        )

    def subset(self, pool: ImageSet, test: ImageSet, spec: DataSpec) -> LongTailedData:
        """The subset of a pool, with the development set that is asked for."""
        return make_long_tailed(pool, test, spec, development=self.development)

    def is_spec(self, spec: DataSpec) -> bool:
        """Whether a subset is the one that is asked for, of all that a name can mean."""
        if self.counts is not None:
            return not self.fit and spec.settings.get("counts") == tuple(self.counts.tolist())
        ratio = DATASETS[spec.name] if self.ratio is None else self.ratio
        asked = (self.profile or "exp", ratio, self.seed)
        return asked == (spec.profile, spec.imbalance_ratio, spec.seed)

    def agreed(self, data: LongTailedData, path: Path) -> LongTailedData:
        """The data of a frozen file that the caller named, unless they ask for another subset."""
        spec = data.spec
        differing = {
            "profile": (self.profile, spec.profile),
            "imbalance_ratio": (self.ratio, spec.imbalance_ratio),
            "seed": (self.seed or None, spec.seed),
        }
        wrong = [
            f"{key} {have}, not {want}"
            for key, (want, have) in differing.items()
            if want not in (None, have)
        ]
        if self.counts is not None and self.counts.tolist() != data.train.counts.tolist():
            wrong.append("other class sizes")
        each = 0 if data.dev is None else int(data.dev.counts.max())
        if self.development not in (None, each):
            wrong.append(
                f"a development set of {each} images a class, not {self.development}"
                if each
                else "no development set"
            )
        if wrong:
            raise InputError(
                f"load: {path} is {spec.name} frozen with {', '.join(wrong)}; a frozen subset "
                f"can't be changed: freeze another one from the originals."
            )
        return data


def _load_folder(path: Path, wanted: _Wanted, progress: Progress | None) -> LongTailedData:
    lacking = [part for part in ("train", "test") if not (path / part).is_dir()]
    if lacking:
        raise InputError(
            f"load: a folder of images has {path}/train/<class>/<image> and "
            f"{path}/test/<class>/<image>; there is no {' and no '.join(lacking)} folder."
        )
    train = read_image_folder(path / "train", progress=progress)
    test = read_image_folder(
        path / "test",
        class_names=train.class_names,
        size=train.image_shape[1:],
        progress=progress,
    )
    if train.image_shape != test.image_shape:
        colored, grey = ("train", "test") if train.image_shape[0] == 3 else ("test", "train")
        raise InputError(
            f"load: the images of {path}/train and {path}/test must be all grey or all colour; "
            f"they have {train.image_shape[0]} and {test.image_shape[0]} channels: the first in "
            f"colour is {first_colored(path / colored)}, and all of {path / grey} are grey; "
            f"convert one or the others."
        )
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", path.resolve().name).lstrip("._+-") or "images"
    # Folders of one name may differ, so the record tells them apart by what is in them.
    content = {POOL: train.fingerprint[:16]}
    if wanted.profile is None and wanted.ratio is None:
        return LongTailedData(train, test, DataSpec(name, settings=content))
    if wanted.counts is None and wanted.ratio is None:
        raise InputError(
            f"load: a profile over {path} needs `imbalance_ratio`, largest class over smallest."
        )
    spec = wanted.spec(name, train).to_json()
    spec["settings"] |= content
    return wanted.subset(train, test, DataSpec(**spec))


# CIFAR: where it is looked for, and whether it is the official one.


def _data_folder(data_dir: Path | str | None, name: str, wanted: _Wanted) -> Path:
    """The folder of the originals: as given, or from LONGTAIL_DATA."""
    given = data_dir if data_dir is not None else os.environ.get(VARIABLE)
    how = _how_to_get(name, wanted)
    if not given:
        raise InputError(
            f"load: {name} needs its original files; say where they are by data_dir "
            f"(--data-dir) or {VARIABLE}. {how}"
        )
    folder = Path(given).expanduser()
    if not folder.is_dir():
        source = "data_dir" if data_dir is not None else VARIABLE
        raise InputError(f"load: {source} names {folder}, which is no folder. {how}")
    return folder


def _how_to_get(name: str, wanted: _Wanted) -> str:
    archive = ARCHIVES[name.removesuffix("-lt")]
    return (
        f"To get them, put {archive.url} into that folder, or the parquet files of "
        f"huggingface.co/datasets/{archive.hub} into its sub-folder {name.removesuffix('-lt')}, "
        f"or a file made by: {wanted.freezing(name)}"
    )


def _load_cifar(
    name: str,
    wanted: _Wanted,
    *,
    data_dir: Path | str | None,
    verify: bool,
    progress: Progress | None,
) -> LongTailedData:
    base = name.removesuffix("-lt")
    folder = _data_folder(data_dir, name, wanted)
    read, looked = _find_cifar(folder, base, progress)
    if read is None:
        return _load_frozen(name, wanted, folder, looked)
    pool, test = read()
    if verify:
        verify_official(base, pool, test, where=folder)
    data = wanted.subset(pool, test, wanted.spec(name, pool))
    if verify:
        verify_subset(base, data)
    return data


def _find_cifar(
    folder: Path, base: str, progress: Progress | None
) -> tuple[Callable[[], _Pair] | None, list[str]]:
    """How to read the first form of the data set that is there, and all that was looked for."""
    archive, looked = ARCHIVES[base], []
    for place in (folder, folder / base):
        for path in (place / archive.file, place / archive.folder):
            looked.append(path.relative_to(folder).as_posix())
            if path.exists():
                return partial(read_cifar, path, name=base), looked
    config = "plain_text" if base == "cifar10" else "cifar100"  # a folder of the hub's
    for place in dict.fromkeys((folder / base, folder / base / config, folder / config)):
        looked.append((place / "train*.parquet").relative_to(folder).as_posix())
        splits = [_parquet_files(place, split) for split in ("train", "test")]
        if all(splits):
            return partial(_read_splits, splits, progress), looked
        if any(splits):
            there, lacking = ("train", "test") if splits[0] else ("test", "train")
            raise InputError(
                f"load: {place} has {there}*.parquet but no {lacking}*.parquet; both are needed."
            )
    return None, looked


def _load_frozen(name: str, wanted: _Wanted, folder: Path, looked: list[str]) -> LongTailedData:
    """The frozen file in a folder that is the subset asked for."""
    others = []
    for path in sorted(folder.glob(f"*{FROZEN}")):
        try:
            spec = DataSpec(**read_record(path)["spec"])
        except InputError:
            others.append(f"{path.name} is damaged")  # it may be another data set's
            continue
        if spec.name != name:
            continue
        if wanted.is_spec(spec):
            return wanted.agreed(read_frozen(path), path)
        others.append(f"{path.name} is {spec.profile}, ratio {spec.imbalance_ratio:g}")
    frozen = f"*{FROZEN} ({'; '.join(others)})" if others else f"*{FROZEN}"
    raise InputError(
        f"load: there is no {ARCHIVES[name.removesuffix('-lt')].title} in {folder}; looked for "
        f"{', '.join(looked)} and {frozen}. {_how_to_get(name, wanted)}"
    )


def _parquet_files(place: Path, split: str) -> list[Path]:
    """One file, or the hub's parts of it, in order."""
    whole = place / f"{split}.parquet"
    if whole.is_file():
        return [whole]
    return sorted(place.glob(f"{split}-[0-9]*-of-[0-9]*.parquet"))


def _read_splits(splits: list[list[Path]], progress: Progress | None) -> _Pair:
    train, test = (read_hub_parquet(s, size=(32, 32), progress=progress) for s in splits)
    return train, test
