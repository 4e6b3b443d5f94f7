"""Long-tailed data by name: `load`, and where it looks.

The CIFARs come from a folder that the caller or LONGTAIL_DATA names, in any of their forms, and
are held to the fingerprints of the official files.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from longtail import _checks
from longtail._checks import InputError
from longtail.data.cifar import ARCHIVES, read_cifar, verify_official
from longtail.data.decoding import Progress, decode_images
from longtail.data.digits import read_digits
from longtail.data.embeddings import is_embeddings, read_embeddings
from longtail.data.hub_parquet import read_frozen, read_hub_parquet, read_record
from longtail.data.images import ImageSet, LongTailedData
from longtail.data.large import VARIABLE, find_sources
from longtail.data.profiles import PROFILES, check_ratio, fit_counts, natural_counts, read_counts
from longtail.data.subsets import make_long_tailed
from longtail.runs import DataSpec
from longtail.runs.spec import POOL

NATURAL = "natural"

# Name -> the literature's imbalance ratio, which `load` takes if none is given.
DATASETS = {"cifar10-lt": 100.0, "cifar100-lt": 100.0, "digits-lt": 50.0}


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
    """Load a long-tailed training set and the balanced test set that belongs to it.

    Args:
        name: ``cifar10-lt``, ``cifar100-lt`` or ``digits-lt``; or a file that `freeze` wrote; or
            a folder of images, with ``train/<class>/<image>`` and ``test/<class>/<image>``,
            where the test set may lack classes; or a file of embeddings, see `embeddings`.
        data_dir: where the CIFARs are, in any of their forms: the official archive, packed or
            unpacked, the hub's parquet files, or a frozen file. The environment variable
            LONGTAIL_DATA if None.
        profile: ``exp``, ``step`` or ``natural``. If None, ``natural`` where counts are given,
            else ``exp``; a folder of images and embeddings then keep their own class sizes.
        imbalance_ratio: largest class over smallest, for ``exp`` and ``step``; the literature's
            if None (100; 50 for the digits).
        counts: class sizes of a natural profile in label order, or a text file of them.
        fit: give the profile of `counts` the data set's own number of classes and size, see
            `fit_counts`.
        seed: of the subset; 0 is the one that published results use.
        development: largest number of images of each class in the development set, of those
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
    if profile is not None:
        _checks.choice(profile, [*PROFILES, NATURAL], name="profile")
    if counts is None and (profile == NATURAL or fit):
        raise InputError(
            "a natural profile and `fit=` need `counts=`, the class sizes or a file of them."
        )
    settings = {}
    if counts is not None:
        if profile not in (None, NATURAL) or imbalance_ratio is not None:
            raise InputError(
                "`counts=` decides the profile; leave out `profile=` and `imbalance_ratio=`."
            )
        sizes = read_counts(counts) if isinstance(counts, str | Path) else natural_counts(counts)
        profile, settings = NATURAL, {"counts": sizes.tolist()}
    ratio = None if imbalance_ratio is None else check_ratio(imbalance_ratio)
    label, path = str(name) if name in DATASETS else "any", Path(name)
    asked = DataSpec(label, profile, ratio, seed, settings=settings)
    if name == "digits-lt":
        pool, test = read_digits()
    elif name in DATASETS:
        base = label.removesuffix("-lt")
        found = _read_cifar(base, asked, data_dir, progress, fit)
        if isinstance(found, Path):
            return _as_frozen(found, asked, development)
        pool, test = found
        if verify:
            verify_official(base, pool, test, where=str(data_dir))
    elif path.is_file() and not is_embeddings(path):
        return _as_frozen(path, asked, development)
    elif path.is_dir() or path.is_file():
        folder, where = path.is_dir(), path.resolve()
        pool, test = _read_folder(path, progress) if folder else read_embeddings(path)
        label = where.name if folder else where.stem
        label = re.sub(r"[^A-Za-z0-9._+-]+", "-", label).lstrip("._+-") or "images"
        # Those of one name may differ, so the record tells them apart by what is in them.
        asked = replace(asked, name=label, settings={**settings, POOL: pool.fingerprint[:16]})
        if profile is None and ratio is None:
            return LongTailedData(pool, test, replace(asked, seed=0))
    else:
        raise InputError(
            f"there is no data set, file or folder {str(name)!r}; the data sets are "
            f"{', '.join(DATASETS)}. A path may name a frozen file or a folder of images."
        )
    if counts is None:
        ratio = ratio or DATASETS.get(asked.name)
        if ratio is None:
            raise InputError(
                f"a profile over {asked.name} needs `imbalance_ratio=`, largest class over the "
                f"smallest."
            )
        asked = replace(asked, profile=profile or "exp", imbalance_ratio=ratio)
    else:
        if fit:
            largest = int(pool.counts.min())
            sizes = fit_counts(sizes, num_classes=pool.num_classes, largest=largest)
        settings = {**asked.settings, "counts": sizes.tolist()}
        ratio = float(sizes.max() / sizes.min())
        asked = replace(asked, imbalance_ratio=ratio, settings=settings)
    return make_long_tailed(pool, test, asked, development=development)


def _as_frozen(path: Path, asked: DataSpec, development: int | None) -> LongTailedData:
    """Return the data of a frozen file, unless another subset is asked for."""
    data = read_frozen(path)
    spec, each = data.spec, 0 if data.dev is None else int(data.dev.counts.max())
    if (
        asked.profile not in (None, spec.profile)
        or asked.imbalance_ratio not in (None, spec.imbalance_ratio)
        or asked.seed not in (0, spec.seed)
        or asked.settings.get("counts") not in (None, tuple(data.train.counts.tolist()))
        or development not in (None, each)
    ):
        what = f"the profile {_words(spec)}, seed {spec.seed}"
        raise InputError(
            f"{path} is {spec.name} with {what} and a development set of {each} images a class; a "
            f"frozen subset can't be changed: freeze another one from the originals."
        )
    return data


def _words(spec: DataSpec) -> str:
    ratio = "" if spec.imbalance_ratio is None else f", ratio {spec.imbalance_ratio:g}"
    return f"{spec.profile}{ratio}"


def _read_folder(path: Path, progress: Progress | None) -> tuple[ImageSet, ImageSet]:
    sources = find_sources(path)
    if not sources.are_trees:
        raise InputError(f"{path} holds lists; `large.load_listed` reads images that stay on disk.")
    for image in sources.stray():
        raise InputError(f"{image} is in no class folder.")
    for problem in sources.problems():
        raise InputError(f"{problem.where}: {problem.detail}.")
    parts: list[ImageSet] = []
    for split in ("train", "test"):
        listing = sources.listings[split]
        files = [listing.root / name for name in listing.paths]
        size = parts[0].image_shape[1:] if parts else None
        pixels = decode_images(files, size=size, progress=progress)
        parts.append(ImageSet(pixels, listing.labels, sources.class_names))
    train, test = parts
    if train.image_shape != test.image_shape:
        raise InputError(
            f"the images of {path}/train and {path}/test must be all grey or all colour; they have "
            f"{train.image_shape[0]} and {test.image_shape[0]} channels."
        )
    return train, test


def _read_cifar(
    base: str,
    asked: DataSpec,
    data_dir: Path | str | None,
    progress: Progress | None,
    fit: bool,
) -> tuple[ImageSet, ImageSet] | Path:
    """Return a CIFAR from the first of its forms that is there, or the frozen file of a subset."""
    archive = ARCHIVES[base]
    how = (
        f"To get it, put {archive.url} into that folder, or the parquet files of "
        f"huggingface.co/datasets/uoft-cs/{base} into its sub-folder {base}, or a file made by: "
        f"longtail data freeze {asked.name} --dev {5000 // archive.num_classes} --out FILE.parquet"
    )
    given = data_dir if data_dir is not None else os.environ.get(VARIABLE)
    if not given or not (folder := Path(given).expanduser()).is_dir():
        raise InputError(
            f"{asked.name} needs its original files; `data_dir=` or {VARIABLE} must name their "
            f"folder, but names {str(given)!r}. {how}"
        )
    for place in (folder, folder / base):
        for path in (place / archive.file, place / archive.folder):
            if path.exists():
                return read_cifar(path, name=base)
    config = "plain_text" if base == "cifar10" else "cifar100"  # a folder of the hub's
    for place in (folder / base, folder / base / config, folder / config):
        parts = [
            sorted([*place.glob(f"{split}.parquet"), *place.glob(f"{split}-*-of-*.parquet")])
            for split in ("train", "test")
        ]
        if all(parts):
            train, test = (read_hub_parquet(p, size=(32, 32), progress=progress) for p in parts)
            return train, test
    others, ratio = [], asked.imbalance_ratio or DATASETS[asked.name]
    for path in sorted(folder.glob("*.parquet")):
        try:
            spec = DataSpec.from_json(read_record(path)["spec"])
        except InputError:
            continue
        if asked.profile == NATURAL:
            ratio = spec.imbalance_ratio or ratio
        wanted = replace(asked, profile=asked.profile or "exp", imbalance_ratio=ratio)
        if spec == wanted and not fit:
            return path
        if spec.name == asked.name:
            others.append(f"{path.name} is {_words(spec)}")
    raise InputError(
        f"there is no {archive.title} in {folder}: neither {archive.file} nor {archive.folder}, "
        f"nor {base}/train*.parquet and test*.parquet, nor a frozen subset as asked for "
        f"({'; '.join(others) or 'no other one either'}). {how}"
    )
