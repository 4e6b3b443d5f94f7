"""Labelled images from parquet files as the Hugging Face hub lays them out.

A column `img` (or `image`) of structs with the encoded image as `bytes`, a column of whole
numbers for the label, and the class names in the schema's own metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from longtail import _checks
from longtail._checks import InputError
from longtail.data.decoding import Progress, decode_images
from longtail.data.images import ImageSet

# CIFAR-100 has `fine_label` and `coarse_label`; the first name that occurs is taken.
IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("fine_label", "label")


def read_hub_parquet(
    paths: Path | str | Sequence[Path | str],
    *,
    size: tuple[int, int] | None = None,
    progress: Progress | None = None,
) -> ImageSet:
    """The images and labels of one split.

    Args:
        paths: its file, or its files in order.
        size: (height, width) that every image must have; that of the first image if None.
        progress: called with (images done, images in all, text).

    Returns:
        The set, in the files' order. Classes are named by their numbers if the files give no
        names.
    """
    caller = "read_hub_parquet"
    files = [Path(paths)] if isinstance(paths, Path | str) else [Path(path) for path in paths]
    if not files:
        raise InputError(f"{caller}: `paths` is empty; at least one file is needed.")
    blobs: list[bytes] = []
    origins: list[tuple[Path, int]] = []  # (file, position of its first row)
    labels: list[Any] = []
    names: tuple[str, ...] | None = None
    for file in files:
        table, image, label = _read_table(file, caller)
        found = _class_names(table.schema.metadata, label)
        if labels and found != names:
            raise InputError(
                f"{caller}: {file} and {files[0]} name their classes differently; they are not "
                f"parts of one data set."
            )
        names = found
        origins.append((file, len(blobs)))
        blobs += _blobs(table.column(image), file, image, caller)
        labels.append(_labels(table.column(label), file, label, caller))
    target = np.concatenate(labels)
    if not len(target):
        raise InputError(f"{caller}: {_checks.listing(files, most=3)} hold no images.")
    count = len(names) if names is not None else None
    target = _checks.labels(target, caller=caller, name=str(label), num_classes=count)
    if names is None:
        names = tuple(str(number) for number in range(int(target.max()) + 1))

    def name_of(index: int) -> str:
        file, start = [origin for origin in origins if origin[1] <= index][-1]
        return f"row {index - start} of {file}"

    images = decode_images(blobs, name_of=name_of, caller=caller, size=size, progress=progress)
    return ImageSet(images, target, names)


def _read_table(file: Path, caller: str) -> tuple[Any, str, str]:
    """The table, with only the columns that are needed, and their names."""
    parquet = _checks.require("pyarrow.parquet", extra="torch", caller=caller)
    pyarrow = _checks.require("pyarrow", extra="torch", caller=caller)
    if not file.is_file():
        raise InputError(f"{caller}: there is no file {file}.")
    try:
        columns = parquet.read_schema(file).names
        image = next((name for name in IMAGE_COLUMNS if name in columns), None)
        label = next((name for name in LABEL_COLUMNS if name in columns), None)
        if image is None or label is None:
            lacks = "an image" if image is None else "a label"
            options = IMAGE_COLUMNS if image is None else LABEL_COLUMNS
            raise InputError(
                f"{caller}: {file} must have {lacks} column, {' or '.join(options)}; its columns "
                f"are {_checks.listing(columns)}."
            )
        return parquet.read_table(file, columns=[image, label]), image, label
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's fault; damaged content comes without a number
        raise InputError(
            f"{caller}: {file} is truncated, or no parquet file: {' '.join(str(error).split())}"
        ) from error


def _blobs(column: Any, file: Path, name: str, caller: str) -> list[bytes]:
    from pyarrow import types

    kind = column.type
    binary = types.is_struct(kind) and kind.get_field_index("bytes") >= 0
    if not binary or not (
        types.is_binary(kind.field("bytes").type) or types.is_large_binary(kind.field("bytes").type)
    ):
        raise InputError(
            f"{caller}: the column `{name}` of {file} must hold structs with the encoded image as "
            f"`bytes`; it holds {kind}."
        )
    found = [blob for chunk in column.chunks for blob in chunk.field("bytes").to_pylist()]
    if None in found:
        raise InputError(
            f"{caller}: row {found.index(None)} of {file} has no bytes in `{name}`; images that "
            f"are only named by a path are not read."
        )
    return found


def _labels(column: Any, file: Path, name: str, caller: str) -> Any:
    if column.null_count:
        raise InputError(f"{caller}: the column `{name}` of {file} has rows without a label.")
    return column.to_numpy()


def _class_names(metadata: Mapping[bytes, bytes] | None, label: str) -> tuple[str, ...] | None:
    """The names in the hub's metadata, or None if there are none."""
    text = (metadata or {}).get(b"huggingface")
    if text is None:
        return None
    try:
        names = json.loads(text)["info"]["features"][label]["names"]
        return tuple(str(name) for name in names)
    except (ValueError, KeyError, TypeError):
        return None
