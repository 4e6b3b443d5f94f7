"""Many encoded images into one array, on all cores. Where they come from is the readers' affair.

Pillow lets go of the interpreter while it decodes, so threads are enough.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import InputError

if TYPE_CHECKING:
    from PIL import Image

Progress = Callable[[int, int, str], None]
Pixels = NDArray[np.uint8]
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_CHUNK = 256
# Modes whose pixels are a byte a channel, or a palette of such: no information is lost.
GREY, _COLOUR = ("1", "L"), ("RGB", "P", "CMYK", "YCbCr")


def is_plain(image: Image.Image) -> bool:
    """Whether an image, opened but not loaded yet, is grey or colour and nothing more.

    Examples:
        >>> from PIL import Image
        >>> is_plain(Image.new("L", (3, 2))), is_plain(Image.new("RGBA", (3, 2)))
        (True, False)
    """
    return image.mode in (*GREY, *_COLOUR) and "transparency" not in image.info


def decode_images(
    sources: Sequence[bytes | Path],
    *,
    name_of: Callable[[int], str],
    caller: str,
    size: tuple[int, int] | None = None,
    progress: Progress | None = None,
) -> Pixels:
    """Decode images of one size.

    Args:
        sources: encoded bytes, or files.
        name_of: what to call the image at a position in a message.
        caller: for messages.
        size: (height, width) that every image must have; that of the first one if None.
        progress: called with (images done, images in all, text).

    Returns:
        Shape (images, channels, height, width): one channel if all images are grey, else three.

    Examples:
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (3, 2), (1, 2, 3)).save(file, "PNG")
        >>> decode_images([file.getvalue()], name_of=str, caller="here").shape
        (1, 3, 2, 3)
    """
    _checks.require("PIL", extra="torch", caller=caller)
    expected = _format(sources[0])
    if size is None:
        first = _decode(sources[0], name_of(0), caller, expected)
        size = (first.shape[0], first.shape[1])

    def chunk(start: int) -> Pixels:
        stop = min(start + _CHUNK, len(sources))
        pieces = []
        for index in range(start, stop):
            pixels = _decode(sources[index], name_of(index), caller, expected)
            if pixels.shape[:2] != size:
                raise InputError(
                    f"{caller}: {name_of(index)} is {_extent(pixels.shape)} pixels (height x "
                    f"width), but every image must be {_extent(size)}; make all images one size."
                )
            pieces.append(pixels)
        return _stacked(pieces)

    starts = range(0, len(sources), _CHUNK)
    found = []
    for done, piece in enumerate(in_threads(chunk, starts), start=1):
        found.append(piece)
        if progress is not None:
            progress(min(done * _CHUNK, len(sources)), len(sources), "images")
    return _stacked(found, axis=1)


def in_threads(work: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """Results in the items' order, computed on all cores; the first error stops the rest.

    Examples:
        >>> list(in_threads(abs, [-1, 2, -3]))
        [1, 2, 3]
    """
    pool = ThreadPoolExecutor(_cores())
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(cancel_futures=True)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _open(source: bytes | Path, formats: tuple[str, ...] | None = None) -> Image.Image:
    from PIL import Image

    return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=formats)


def _format(source: bytes | Path) -> tuple[str, ...]:
    """The format of an image, as Pillow names it; empty if it has none."""
    try:
        with _open(source) as image:
            return (image.format,) if image.format else ()
    except (OSError, ValueError, SyntaxError):
        return ()  # the message comes when it is decoded


def _decode(source: bytes | Path, name: str, caller: str, expected: tuple[str, ...]) -> Pixels:
    """Shape (height, width) for grey, (height, width, 3) for colour."""
    from PIL import Image, UnidentifiedImageError

    try:
        try:
            # Trying every format there is would take half of the time for small images.
            image = _open(source, expected)
        except UnidentifiedImageError:
            image = _open(source)
        with image:
            mode, lossless = image.mode, is_plain(image)
            kept = mode in ("L", "RGB")
            pixels = np.asarray(image if kept else image.convert("L" if mode == "1" else "RGB"))
    except UnidentifiedImageError as error:  # whose words name an object in memory
        raise InputError(f"{caller}: {name} can't be read as an image.") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(
            f"{caller}: {name} can't be read as an image: {error}; it is damaged, or no image."
        ) from error
    if not lossless:
        raise InputError(
            f"{caller}: {name} has pixels of the kind {mode!r}, with transparency or more than a "
            f"byte a channel; convert it to grey or RGB first."
        )
    return pixels


def _stacked(pieces: list[Pixels], *, axis: int = -1) -> Pixels:
    """One array (images, channels, height, width); grey becomes colour where both occur."""
    if axis == -1:
        pieces = [p[None, None] if p.ndim == 2 else p.transpose(2, 0, 1)[None] for p in pieces]
    channels = max(piece.shape[1] for piece in pieces)
    return np.concatenate([np.broadcast_to(p, (len(p), channels, *p.shape[2:])) for p in pieces])


def _extent(shape: Sequence[Any]) -> str:
    return f"{shape[0]} x {shape[1]}"
