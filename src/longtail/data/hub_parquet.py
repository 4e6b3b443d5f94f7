"""Labelled images in parquet files as the Hugging Face hub lays them out, read and written.

A column `img` (or `image`) of structs with the encoded image as `bytes`, a column of whole
numbers for the label, and the class names in the schema's own metadata. A frozen data set is one
such file with a column `split`; what else there is to know of it is in the metadata, too.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from longtail import _checks
from longtail._checks import InputError
from longtail.data.decoding import Pixels, Progress, decode_images, in_threads
from longtail.data.images import ImageSet, LongTailedData
from longtail.runs import DataSpec, files

FORMAT = 2
_ROWS = 4096
_KEY = b"longtail"
# CIFAR-100 has `fine_label` and `coarse_label`; the first name that occurs is taken.
_COLUMNS = (("img", "image"), ("fine_label", "label"))


def read_hub_parquet(
    paths: Path | str | Sequence[Path | str],
    *,
    size: tuple[int, int] | None = None,
    progress: Progress | None = None,
) -> ImageSet:
    """Read the images and labels of one split, from its file or its files in order.

    Every image must have the `size` (height, width), or that of the first one. Classes are named
    by their numbers if the first file gives no names.
    """
    several = [paths] if isinstance(paths, Path | str) else paths
    tables, names = zip(*[_read_table(Path(path)) for path in several], strict=True)
    table = _checks.require("pyarrow", extra="train").concat_tables(tables)
    return _image_set(table, names[0], str(paths), size, progress)


def _image_set(
    table: Any,
    names: tuple[str, ...] | None,
    where: str,
    size: tuple[int, int] | None,
    progress: Progress | None,
) -> ImageSet:
    target = table["label"].to_numpy().copy()
    target = _checks.labels(target, name="label", num_classes=len(names) if names else None)
    names = names or tuple(map(str, range(int(target.max()) + 1)))
    blobs = table["bytes"].to_pylist()
    return ImageSet(decode_images(blobs, where=where, size=size, progress=progress), target, names)


def _read_table(path: Path) -> tuple[Any, tuple[str, ...] | None]:
    """Return a table of `bytes`, `label` and, of a frozen file, `split`; and the class names."""
    pa = _checks.require("pyarrow", extra="train")
    parquet = _checks.require("pyarrow.parquet", extra="train")
    try:
        schema = parquet.read_schema(path)
        image, label = (next((n for n in some if n in schema.names), None) for some in _COLUMNS)
        if image is None or label is None:
            raise InputError(
                f"{path} must have a column of images, img or image, and one of labels, fine_label "
                f"or label; its columns are {_checks.listing(schema.names)}."
            )
        split = ["split"] if "split" in schema.names else []
        table = parquet.read_table(path, columns=[image, label, *split])
        table = table.set_column(0, "bytes", pa.compute.struct_field(table[image], "bytes"))
        table = table.rename_columns(["bytes", "label", *split])
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's fault; damaged content comes without a number
        reason = " ".join(str(error).split())
        raise InputError(f"{path} is not a parquet file of images: {reason}") from error
    if not len(table) or table["bytes"].null_count or table["label"].null_count:
        raise InputError(f"{path} has no rows, or rows without image bytes or without a label.")
    with suppress(ValueError, KeyError, TypeError):  # the hub's note may be absent
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return table, tuple(str(name) for name in features[label]["names"])
    return table, None


# --- frozen data sets -----------------------------------------------------------------------------


def freeze(
    data: LongTailedData,
    path: Path | str,
    *,
    dev: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write a long-tailed training set and its test set into one parquet file, without loss.

    Args:
        data: training set, test set and perhaps a development set.
        path: the file; ``.parquet`` is its usual ending.
        dev: write the development set too.
        force: replace a file that exists.
        progress: called with (images done, images in all, text).

    Returns:
        The path.

    Examples:
        >>> import tempfile
        >>> from longtail.data.digits import load_digits_lt
        >>> data = load_digits_lt()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = freeze(data, Path(folder) / "digits.parquet")
        ...     copy = read_frozen(file)
        >>> copy.train.fingerprint == data.train.fingerprint, copy.spec == data.spec
        (True, True)
    """
    path = Path(path)
    if path.exists() and not force:
        raise InputError(f"{path} exists; pass `force=True` to replace it.")
    if data.train.is_embeddings:
        raise InputError(f"{data.spec.name} holds embeddings; their own file is what to keep.")
    parts = {"train": data.train, "test": data.test}
    if dev:
        if data.dev is None:
            raise InputError(
                f"{data.spec.name} has no development set to write: its training set leaves "
                f"nothing out, or it was frozen without one."
            )
        parts["dev"] = data.dev
    pa = _checks.require("pyarrow", extra="train")
    parquet = _checks.require("pyarrow.parquet", extra="train")
    names = list(data.train.class_names)
    splits = {
        split: {
            "examples": len(part),
            "image_shape": list(part.image_shape),
            "pixel_range": part.pixel_range,
            "fingerprint": part.fingerprint,
        }
        for split, part in parts.items()
    }
    record = {"format": FORMAT, "spec": data.spec.to_json(), "class_names": names, "splits": splits}
    features = {
        "image": {"_type": "Image"},
        "label": {"_type": "ClassLabel", "names": names},
        "split": {"_type": "Value", "dtype": "string"},
    }
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema(
        [("image", image), ("label", pa.int64()), ("split", pa.string())],
        {
            b"huggingface": json.dumps({"info": {"features": features}}),
            _KEY: files.canonical_json(record),
        },
    )
    total, done = sum(map(len, parts.values())), 0
    with (
        files.atomic_path(path) as temporary,
        parquet.ParquetWriter(temporary, schema, compression="none") as file,
    ):
        for split, part in parts.items():
            for start in range(0, len(part), _ROWS):
                rows = slice(start, start + _ROWS)
                images = [{"bytes": b, "path": None} for b in in_threads(_webp, part.images[rows])]
                columns = [images, part.labels[rows].tolist(), [split] * len(images)]
                file.write_batch(pa.record_batch(columns, schema=schema))
                done += len(images)
                if progress is not None:
                    progress(done, total, f"{split} images")
    return path


def _webp(image: Pixels) -> bytes:
    """Return an image of shape (1 or 3, height, width) as lossless WebP, which has no grey."""
    from PIL import Image

    pixels = np.broadcast_to(image, (3, *image.shape[1:])).transpose(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "WEBP", lossless=True, exact=True)
    return file.getvalue()


def read_frozen(path: Path | str) -> LongTailedData:
    """Read the data of a file that `freeze` wrote, with the same spec and fingerprints."""
    record = read_record(path)
    table, names = _read_table(Path(path))
    parts = {}
    for split, entry in record["splits"].items():
        rows = table.filter(table["split"].to_numpy() == split)
        part = _image_set(rows, names, f"the {split} part of {path}", None, None)
        grey = entry["image_shape"][0] == 1  # WebP made colour of it
        images = part.images[:, :1].copy() if grey else part.images
        part = replace(part, images=images, pixel_range=entry["pixel_range"])
        if part.fingerprint != entry["fingerprint"]:
            raise InputError(
                f"{path}: its {split} images are not those that were frozen; copy or freeze it "
                f"again."
            )
        parts[split] = part
    spec = DataSpec.from_json(record["spec"])
    return LongTailedData(parts["train"], parts["test"], spec, parts.get("dev"))


def read_record(path: Path | str) -> dict[str, Any]:
    """Return what `freeze` wrote into a file about it, without decoding its images."""
    pa = _checks.require("pyarrow", extra="train")
    from pyarrow import parquet

    record: dict[str, Any] = {}
    with suppress(pa.ArrowException, KeyError, TypeError):
        record = json.loads(parquet.read_schema(path).metadata[_KEY])
    if record.get("format") != FORMAT:
        raise InputError(
            f"{path} is not a frozen data set of this version of longtail, or was cut off; make "
            f"one with: longtail data freeze NAME --out FILE"
        )
    return record
