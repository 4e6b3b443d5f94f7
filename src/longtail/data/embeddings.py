"""Embeddings of any model and their labels, as an ImageSet of 1 x 1 pixels with D channels.

- ``.npz``: `features`, shape (examples, D), and `labels`; perhaps `test_features`, `test_labels`.
- ``.npy``: the features; `labels.npy` beside it, perhaps `test_features.npy`, `test_labels.npy`.
- ``.parquet``: a column of lists `features` and a column `label`; perhaps `split`, train or test.

Features in float32 are mapped from .npy and .npz files, so they may be larger than memory (a
compressed .npz is unpacked to a disk first); parquet is read whole. Labels are whole numbers or
names; the classes are those of the training part, sorted.
"""

from __future__ import annotations

import logging
import mmap
import os
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import InputError
from longtail.data.images import ImageSet
from longtail.data.subsets import held_out_split
from longtail.predictions.files import mapped_member

TEST_FRACTION = 0.2  # of each class, where the file has no test part
_BLOCK = 2**26  # bytes of features that are looked at at once
_PARTS = ("features", "labels", "test_features", "test_labels")

_logger = logging.getLogger("longtail")


def is_embeddings(path: Path | str) -> bool:
    """Return whether a file holds embeddings, by its name or the columns of a parquet file."""
    path = Path(path)
    if not path.is_file() or path.suffix != ".parquet":
        return path.is_file() and path.suffix in (".npz", ".npy")
    pa = _checks.require("pyarrow", extra="train")
    try:
        names = _checks.require("pyarrow.parquet", extra="train").read_schema(path).names
    except pa.ArrowException:
        return False  # what is wrong with it, the reader of images will say
    return "features" in names


def read_embeddings(path: Path | str) -> tuple[ImageSet, ImageSet]:
    """Return the training and the test part of a file of embeddings.

    Without a test part, a fifth of each class, of the same rows every time, is set aside; a class
    of one example keeps it to train on.

    Args:
        path: of one of the layouts above.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "features.npz"
        ...     features, labels = np.eye(8, dtype=np.float32), np.arange(8) % 2
        ...     np.savez(file, features=features, labels=labels, test_features=features[:2],
        ...              test_labels=labels[:2])
        ...     train, test = read_embeddings(file)
        >>> train.image_shape, train.counts, len(test)
        ((8, 1, 1), array([4, 4]), 2)
    """
    path = Path(path)
    reader = {".npz": _read_npz, ".npy": _read_npy, ".parquet": _read_parquet}[path.suffix]
    try:
        parts = reader(path)
    except InputError:
        raise
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        hint = "; save names as text, labels.astype(str)" if "bject" in str(error) else ""
        raise InputError(f"{path} can't be read as embeddings: {error}{hint}.") from error
    if ("test_features" in parts) != ("test_labels" in parts):
        raise InputError(f"{path} has only one of test_features and test_labels; give both.")
    features, labels = _checked(path, parts, "")
    classes, codes = np.unique(labels, return_inverse=True)
    train = ImageSet(features, codes.astype(np.int64), tuple(map(str, classes.tolist())), 1)
    if "test_features" not in parts:
        return _split(path, train)
    features, labels = _checked(path, parts, "test_")
    if features.shape[1] != train.image_shape[0]:
        raise InputError(
            f"{path}: features have {train.image_shape[0]} columns but test_features have "
            f"{features.shape[1]}."
        )
    same_kind = labels.dtype.kind == classes.dtype.kind
    unknown = ~np.isin(labels, classes) if same_kind else np.ones(len(labels), bool)
    if unknown.any():
        row = int(unknown.argmax())
        raise InputError(
            f"{path}: row {row} of test_labels has the label {labels[row].item()!r}, which no "
            f"training example has; training can't learn it."
        )
    return train, ImageSet(features, np.searchsorted(classes, labels), train.class_names, 1)


def _split(path: Path, train: ImageSet) -> tuple[ImageSet, ImageSet]:
    """Set the test part aside."""
    if _outgrows_memory(train.images):
        raise InputError(
            f"{path} has no test part, and setting one aside would take more than half of the "
            f"memory; store test_features and test_labels, too."
        )
    rows = np.flatnonzero(train.counts[train.labels] > 1)
    if not len(rows):
        raise InputError(f"{path}: every class has one example; there is nothing to learn from.")
    held = rows[held_out_split(train.labels[rows], fraction=TEST_FRACTION, seed=0)[1]]
    _logger.warning(
        "%s has no test part: %s of its %s examples, a fifth of each class, are set aside for it",
        *(path.name, f"{len(held):,}", f"{len(train):,}"),
    )
    return train.take(np.setdiff1d(np.arange(len(train)), held)), train.take(held)


def _checked(
    path: Path, parts: dict[str, NDArray[Any]], prefix: str
) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return features as images and labels; refuse what could not be trained on."""
    features, labels = parts[f"{prefix}features"], parts[f"{prefix}labels"]
    where = f"{path}: {prefix}features"
    if features.ndim != 2 or not features.size or features.dtype.kind not in "fiu":
        raise InputError(
            f"{where} must be numbers of shape (examples, D); they are {features.dtype} of shape "
            f"{features.shape}."
        )
    if labels.shape != (len(features),) or labels.dtype.kind not in "iuUS":
        raise InputError(
            f"{path}: {prefix}labels must be whole numbers or names, one for each of the "
            f"{len(features):,} rows of features; they are {labels.dtype} of shape {labels.shape}."
        )
    if features.dtype != np.float32:
        features = features.astype(np.float32)
    rows = max(1, _BLOCK // (4 * features.shape[1]))
    for start in range(0, len(features), rows):
        bad = ~np.isfinite(features[start : start + rows]).all(1)
        if bad.any():
            raise InputError(f"{where}: row {start + int(bad.argmax())} has a NaN or an infinity.")
    labels = labels.astype(str) if labels.dtype.kind in "US" else labels.astype(np.int64)
    return features[:, :, None, None], labels


def _read_npy(path: Path) -> dict[str, NDArray[Any]]:
    files = {name: path.with_name(f"{name}.npy") for name in _PARTS} | {"features": path}
    if not files["labels"].is_file():
        raise InputError(f"the labels of {path} must lie beside it as {files['labels']}.")
    there = {name: file for name, file in files.items() if file.is_file()}
    return {name: npy.open_memmap(file, mode="r") for name, file in there.items()}


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path, allow_pickle=False) as arrays, zipfile.ZipFile(path) as archive:
        if not {"features", "labels"} <= {*arrays.files}:
            raise InputError(
                f"{path} must have the arrays features and labels; it has "
                f"{_checks.listing(arrays.files)}."
            )
        return {
            name: arrays[name] if name.endswith("labels") else mapped_member(path, archive, name)
            for name in _PARTS
            if name in arrays.files
        }


def _read_parquet(path: Path) -> dict[str, NDArray[Any]]:
    from pyarrow import compute, parquet

    names = parquet.read_schema(path).names
    if "label" not in names:
        raise InputError(
            f"{path} must have the columns features and label; it has {_checks.listing(names)}."
        )
    columns = ["features", "label", *(["split"] if "split" in names else [])]
    table = parquet.read_table(path, columns=columns)
    rows, labels = table["features"], table["label"].to_numpy()
    if not hasattr(rows.type, "value_type"):
        raise InputError(f"{path}: features must hold lists of numbers, not {rows.type}.")
    lengths = compute.unique(compute.list_value_length(rows)).to_pylist()
    if len(lengths) != 1 or lengths[0] is None:
        raise InputError(f"{path}: all rows of features must have the same number of numbers.")
    features = compute.list_flatten(rows).to_numpy().astype(np.float32, copy=False)
    features = features.reshape(-1, lengths[0])
    labels = labels.astype(str) if labels.dtype == object else labels
    split = np.full(len(labels), "train")
    if "split" in names:
        split = table["split"].to_numpy().astype(str)
    if odd := sorted({*split.tolist()} - {"train", "test"}):
        raise InputError(f"{path}: split must be train or test; it is also {odd[0]!r}.")
    test = split == "test"
    if not test.any():
        return {"features": features, "labels": labels}
    found = (features[~test], labels[~test], features[test], labels[test])
    return dict(zip(_PARTS, found, strict=True))


# --- files larger than memory ---------------------------------------------------------------------


def _outgrows_memory(features: NDArray[Any]) -> bool:
    """Return whether features are mapped from a file that takes more than half of the memory."""
    if not isinstance(features, np.memmap) or os.name == "nt":  # which has no advice
        return False
    return features.nbytes > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2


def read_ahead(features: NDArray[Any]) -> Callable[[Iterable[int]], None]:
    """Return a function that has the system read the given rows before they are needed.

    A shuffled epoch over a file larger than memory waits for the disk at every row, and the
    system reads up to some megabytes of neighbours each time. Told of many rows in advance, it
    reads these alone, many at once. The function does nothing to features that fit in memory.

    Call it for training only: reading the file from its start to its end is slower afterwards.
    """
    mapped: Any = features
    if not _outgrows_memory(features) or not features.flags.c_contiguous:
        return lambda rows: None
    content = mapped._mmap
    content.madvise(mmap.MADV_RANDOM)
    # NumPy maps a file from the granule in which the array begins.
    begin, size = mapped.offset % mmap.ALLOCATIONGRANULARITY, features[0].nbytes

    def announce(rows: Iterable[int]) -> None:
        for row in map(int, rows):
            start = begin + row * size
            page = start - start % mmap.PAGESIZE
            content.madvise(mmap.MADV_WILLNEED, page, start + size - page)

    return announce
