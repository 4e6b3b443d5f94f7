"""A long-tailed training set with its test set in one small file, for a machine without either.

The development set comes along if it is asked for.

The container is safetensors: labels, pixels as losslessly coded sheets of many images each
(one picture of 128 small images takes less room than 128 pictures), and a record, a JSON
document with its own checksum: format, spec, class names, fingerprints. The same data give the
same bytes. A file that was cut off or edited is refused: what it holds, as it is stored and as
it is decoded, must have the fingerprints in its record.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import InputError
from longtail.data.decoding import Pixels, Progress, in_threads
from longtail.data.images import ImageSet, LongTailedData
from longtail.runs import DataSpec, files
from longtail.runs.folder import seal

FORMAT = 1
KIND = "longtail-frozen-data"
_SPLITS = ("train", "test", "dev")  # the last one may be absent
_SHEET_PIXELS = 1 << 17
_COLUMNS = 8
_WEBP_MOST = 16383  # pixels of a side


def freeze(
    data: LongTailedData,
    path: Path | str,
    *,
    dev: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write a long-tailed training set and its test set into one file, without loss.

    Args:
        data: what to write.
        path: the file; ``.frozen`` is its usual ending.
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
        ...     file = freeze(data, Path(folder) / "digits.frozen")
        ...     copy = read_frozen(file)
        >>> copy.train.fingerprint == data.train.fingerprint, copy.spec == data.spec
        (True, True)
    """
    path = Path(path)
    check_destination(path, force=force)
    parts = {"train": data.train, "test": data.test}
    if dev:
        if data.dev is None:
            raise InputError(
                f"freeze: {data.spec.name} has no development set to write: its training set "
                f"leaves nothing out, or it was frozen without one."
            )
        parts["dev"] = data.dev
    api = _checks.require("safetensors.numpy", extra="torch", caller="freeze")
    record: dict[str, Any] = {
        "kind": KIND,
        "format": FORMAT,
        "spec": data.spec.to_json(),
        "class_names": list(data.train.class_names),
        "codec": _codec(data),
        "splits": {},
    }
    tensors: dict[str, NDArray[Any]] = {}
    total, before = sum(map(len, parts.values())), 0
    for split, part in parts.items():
        report = None
        if progress is not None:
            report = partial(_report, progress, before=before, total=total, split=split)
        sheets = _encode_all(part, record["codec"], report)
        before += len(part)
        tensors[f"{split}_labels"] = part.labels.astype(np.min_scalar_type(part.num_classes))
        tensors[f"{split}_sheets"] = np.frombuffer(b"".join(sheets), np.uint8)
        tensors[f"{split}_sizes"] = np.array([len(sheet) for sheet in sheets], np.int64)
        record["splits"][split] = {
            "examples": len(part),
            "image_shape": list(part.image_shape),
            "pixel_range": part.pixel_range,
            "fingerprint": part.fingerprint,
        }
    record["tensors"] = {name: files.fingerprint(array) for name, array in tensors.items()}
    text = files.canonical_json(seal(record)).encode()
    tensors["record"] = np.frombuffer(text, np.uint8)
    files.write_bytes(path, bytes(api.save({name: tensors[name] for name in sorted(tensors)})))
    return path


def check_destination(path: Path | str, *, force: bool = False) -> None:
    """Refuse what `freeze` could not write, before anything is read for it.

    Args:
        path: of the file to be.
        force: whether a file may be replaced.

    Examples:
        >>> check_destination("x/a.frozen")
        Traceback (most recent call last):
        longtail.InputError: freeze: there is no folder x to put the file in; make it first.
    """
    caller = "freeze"
    path = Path(path)
    for module in ("safetensors.numpy", "PIL"):
        _checks.require(module, extra="torch", caller=caller)
    if path.is_dir():
        raise InputError(
            f"{caller}: {path} is a folder; name a file, such as {path / 'NAME.frozen'}."
        )
    if path.exists() and not force:
        raise InputError(f"{caller}: {path} exists; pass --force (force=True) to replace it.")
    if not path.parent.is_dir():
        raise InputError(
            f"{caller}: there is no folder {path.parent} to put the file in; make it first."
        )


def _report(progress: Progress, done: int, *, before: int, total: int, split: str) -> None:
    progress(before + done, total, f"{split} images")


def read_frozen(path: Path | str) -> LongTailedData:
    """The data of a file that `freeze` wrote; see there for an example.

    Args:
        path: the file.

    Returns:
        The same data, with the same spec and the same fingerprints.
    """
    caller = "read_frozen"
    _checks.require("PIL", extra="torch", caller=caller)
    path = Path(path)
    tensors = _tensors(path, caller)
    record = _record(tensors, path, caller)
    stored = {name: files.fingerprint(a) for name, a in tensors.items() if name != "record"}
    if stored != record["tensors"]:
        raise _damaged(path, "it was edited")
    from PIL import features

    if record["codec"] == "webp" and not features.check("webp"):
        raise InputError(
            f"{caller}: {path} holds WebP images, which this machine's Pillow can't read; "
            f"run: pip install --force-reinstall pillow"
        )
    names = tuple(record["class_names"])
    parts = {}
    for split in (name for name in _SPLITS if name in record["splits"] or name != "dev"):
        entry = record["splits"][split]
        try:
            images = _decode_split(tensors, split, entry)
            labels = np.array(tensors[f"{split}_labels"], np.int64)
            part = ImageSet(images, labels, names, entry["pixel_range"])
        except (KeyError, ValueError, OSError, SyntaxError) as error:
            raise _damaged(path, f"its {split} images can't be decoded", error) from error
        if part.fingerprint != entry["fingerprint"]:
            # The bytes are right, so it is the decoder of this machine that differs.
            raise _damaged(path, f"its {split} images are decoded to others than were frozen")
        parts[split] = part
    spec = DataSpec(**record["spec"])
    return LongTailedData(parts["train"], parts["test"], spec, parts.get("dev"))


def read_record(path: Path | str) -> dict[str, Any]:
    """What a frozen file says about itself, without decoding its images.

    Returns:
        The record: `spec`, `class_names`, and for each of the `splits` its number of
        `examples`, `image_shape`, `pixel_range` and `fingerprint`.
    """
    caller = "read_record"
    return _record(_tensors(Path(path), caller), Path(path), caller)


def _tensors(path: Path, caller: str) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise InputError(f"{caller}: there is no file {path}.")
    try:
        tensors = files.read_tensors(path, caller=caller)
    except InputError as error:
        raise _damaged(path, "it is truncated, or was never one", error) from error
    with open(path, "rb") as file:
        header = int.from_bytes(file.read(8), "little")
    if 8 + header + sum(array.nbytes for array in tensors.values()) != path.stat().st_size:
        raise _damaged(path, "something was added to it")
    return tensors


def _record(tensors: dict[str, NDArray[Any]], path: Path, caller: str) -> dict[str, Any]:
    """The record, after its checks: its kind, its format, its checksum."""
    try:
        record: dict[str, Any] = json.loads(tensors["record"].tobytes())
        ours = record["kind"] == KIND
        version, checksum = int(record["format"]), record["checksum"]
    except (KeyError, ValueError, TypeError):
        ours = False
    if not ours:
        raise InputError(
            f"{caller}: {path} is no frozen data set; make one with: longtail data freeze NAME "
            f"--out FILE"
        )
    if version > FORMAT:
        raise InputError(
            f"{caller}: {path} has format {version}, newer than this longtail knows ({FORMAT}); "
            f"run: pip install --upgrade longtail"
        )
    if seal(record)["checksum"] != checksum:
        raise _damaged(path, "its record was edited")
    return record


def _damaged(path: Path, how: str, error: Exception | None = None) -> InputError:
    reason = f" ({str(error).rpartition(': ')[2].rstrip('.')})" if error is not None else ""
    return InputError(
        f"read_frozen: {path} is not a whole frozen data set: {how}{reason}; copy or freeze it "
        f"again."
    )


# Sheets: many images as one picture.


@dataclass(frozen=True)
class _Grid:
    """How the images of a sheet lie: in rows, from left to right.

    Three channels are the colours of one picture; otherwise each channel is a grey picture of
    its own, since no other number of colours has a codec.
    """

    count: int
    channels: int
    height: int
    width: int

    @property
    def colours(self) -> int:
        return 3 if self.channels == 3 else 1

    @property
    def pictures(self) -> int:
        return self.count * self.channels // self.colours

    @property
    def columns(self) -> int:
        return max(1, min(self.pictures, _COLUMNS, _WEBP_MOST // self.width))

    @property
    def rows(self) -> int:
        return -(-self.pictures // self.columns)

    def sheet(self, images: Pixels) -> Pixels:
        """Shape (rows of pixels, columns of pixels, colours)."""
        padded = np.zeros((self.rows * self.columns, self.colours, self.height, self.width), "u1")
        padded[: self.pictures] = images.reshape(self.pictures, *padded.shape[1:])
        grid = padded.reshape(self.rows, self.columns, *padded.shape[1:])
        flat = grid.transpose(0, 3, 1, 4, 2).reshape(self.rows * self.height, -1, self.colours)
        return flat

    def images(self, sheet: Pixels) -> Pixels:
        """Shape (count, channels, height, width)."""
        grid = sheet.reshape(self.rows, self.height, self.columns, self.width, self.colours)
        flat = grid.transpose(0, 2, 4, 1, 3).reshape(-1, self.colours, self.height, self.width)
        return flat[: self.pictures].reshape(self.count, self.channels, self.height, self.width)


def _grids(examples: int, shape: Sequence[int]) -> list[tuple[int, _Grid]]:
    """(position of its first image, grid) of each sheet of a split."""
    channels, height, width = shape
    step = max(1, _SHEET_PIXELS // (height * width))
    return [
        (start, _Grid(min(step, examples - start), channels, height, width))
        for start in range(0, examples, step)
    ]


def _codec(data: LongTailedData) -> str:
    from PIL import features

    largest = max(*data.train.image_shape[1:], *data.test.image_shape[1:])
    # WebP takes a third less room than PNG; both are lossless here.
    return "webp" if largest <= _WEBP_MOST and features.check("webp") else "png"


def _encode_all(part: ImageSet, codec: str, report: Callable[[int], None] | None) -> list[bytes]:
    """The sheets of a split; each is decoded again, since without loss is what was promised."""

    def encode(place: tuple[int, _Grid]) -> bytes:
        start, grid = place
        images = part.images[start : start + grid.count]
        blob = _encode(grid.sheet(images), codec)
        if not np.array_equal(_decode(blob, grid), images):
            raise InputError(f"freeze: this machine's Pillow loses information in {codec} images.")
        return blob

    grids, sheets = _grids(len(part), part.image_shape), []
    for (start, grid), sheet in zip(grids, in_threads(encode, grids), strict=True):
        sheets.append(sheet)
        if report is not None:
            report(start + grid.count)
    return sheets


def _encode(sheet: Pixels, codec: str) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    image = Image.fromarray(sheet if sheet.shape[2] == 3 else sheet[:, :, 0])
    if codec == "webp":
        # Effort, not loss: more of either gains under 1% and takes several times as long.
        image.save(file, "WEBP", lossless=True, method=4, quality=50)
    else:
        image.save(file, "PNG", optimize=True)
    return file.getvalue()


def _decode(blob: bytes, grid: _Grid) -> Pixels:
    from PIL import Image

    expected = (grid.columns * grid.width, grid.rows * grid.height)
    with Image.open(io.BytesIO(blob), formats=["WEBP", "PNG"]) as image:
        if image.size != expected:  # before a forged size takes memory
            raise ValueError(f"a sheet has {image.size} pixels instead of {expected}")
        pixels = np.asarray(image.convert("RGB"))
    # WebP has no grey; a grey picture's three colours are one and the same.
    return grid.images(pixels[:, :, : grid.colours])


def _decode_split(
    tensors: dict[str, NDArray[Any]], split: str, entry: dict[str, Any]
) -> NDArray[np.uint8]:
    sheets, sizes = tensors[f"{split}_sheets"], tensors[f"{split}_sizes"]
    grids = _grids(entry["examples"], entry["image_shape"])
    if len(grids) != len(sizes) or int(sizes.sum()) != len(sheets) or (sizes < 0).any():
        raise ValueError("the sheets are not those of the record")
    images = np.empty((entry["examples"], *entry["image_shape"]), np.uint8)
    ends = np.cumsum(sizes)

    def decode(number: int) -> None:
        start, grid = grids[number]
        blob = sheets[ends[number] - sizes[number] : ends[number]].tobytes()
        images[start : start + grid.count] = _decode(blob, grid)

    for _ in in_threads(decode, range(len(grids))):
        pass
    return images
