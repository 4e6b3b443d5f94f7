"""Many encoded images into one array.

Pillow releases Python's lock while it decodes, so threads are enough.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

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
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""Only these are decoded, whatever a file is called: others may run programs."""

# Modes whose pixels are a byte a channel, or a palette of such: no information is lost.
GREY, _COLOUR = ("1", "L"), ("RGB", "P", "CMYK", "YCbCr")
# Modes of a byte a channel; transparency is dropped, as every ImageNet loader does.
_BYTES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "La", "RGBa")


class PhotoError(Exception):
    """A file that can't be used: `kind` is one of `large.KINDS`, `reason` a sentence's end."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind, self.reason = kind, reason


@contextmanager
def opened(file: str | Path | io.BytesIO) -> Iterator[Image.Image]:
    """Open an image and read its header; every error until it is closed becomes a PhotoError."""
    from PIL import Image, UnidentifiedImageError

    size = -1  # unknown
    try:
        if not isinstance(file, io.BytesIO):
            found = os.stat(file)
            size = found.st_size
            if not stat.S_ISREG(found.st_mode):  # a pipe would be waited for
                raise PhotoError("unreadable", "is not a regular file")
        with Image.open(file, formats=FORMATS) as image:
            if image.mode not in _BYTES:
                raise PhotoError(
                    "unreadable", f"has more than a byte a channel (mode {image.mode!r})"
                )
            yield image
    except (PhotoError, MemoryError):
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise PhotoError("missing", "is not there") from error
    except UnidentifiedImageError as error:
        if size == 0:
            raise PhotoError("truncated", "is empty") from error
        raise PhotoError("format", f"is not an image ({', '.join(FORMATS)})") from error
    except Exception as error:  # a decoder meets damage with whatever its code happens to raise
        text = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.errno is not None:
            raise PhotoError("unreadable", f"can't be read: {error.strerror}") from error
        cut = isinstance(error, EOFError) or "truncated" in text.lower()
        kind = "truncated" if cut else "unreadable"
        raise PhotoError(kind, f"can't be decoded: {text}") from error


def is_plain(image: Image.Image) -> bool:
    """Return whether an image, opened but not loaded yet, is grey or colour and nothing more."""
    return image.mode in (*GREY, *_COLOUR) and "transparency" not in image.info


def decode_images(
    sources: Sequence[bytes | Path],
    *,
    where: str = "",
    size: tuple[int, int] | None = None,
    progress: Progress | None = None,
) -> Pixels:
    """Decode images of one size.

    Args:
        sources: encoded bytes, or files.
        where: what the bytes are from, for messages.
        size: (height, width) that every image must have; that of the first one if None.
        progress: called with (images done, images in all, text).

    Returns:
        Shape (images, channels, height, width): one channel if all images are grey, else three.

    Examples:
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (3, 2), (1, 2, 3)).save(file, "PNG")
        >>> decode_images([file.getvalue()]).shape
        (1, 3, 2, 3)
    """
    _checks.require("PIL", extra="train")

    def decoded(index: int) -> tuple[str, Pixels]:
        source = sources[index]
        name = f"image {index} of {where}" if isinstance(source, bytes) else str(source)
        return name, _decode(source, name)

    height, width = size or decoded(0)[1].shape[1:]

    def chunk(start: int) -> Pixels:
        pieces = []
        for index in range(start, min(start + _CHUNK, len(sources))):
            name, pixels = decoded(index)
            if pixels.shape[1:] != (height, width):
                raise InputError(
                    f"{name} is {pixels.shape[1]} x {pixels.shape[2]} pixels (height x width), but "
                    f"every image must be {height} x {width}; make all images one size."
                )
            pieces.append(pixels[None])
        return _joined(pieces)

    found = []
    for piece in in_threads(chunk, range(0, len(sources), _CHUNK)):
        found.append(piece)
        if progress is not None:
            progress(min(len(found) * _CHUNK, len(sources)), len(sources), "images")
    return _joined(found)


def in_threads(
    work: Callable[[_Item], _Result], items: Iterable[_Item], *, threads: int | None = None
) -> Iterator[_Result]:
    """Yield results in the items' order, computed on all cores; the first error stops the rest."""
    pool = ThreadPoolExecutor(threads or cores())
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(cancel_futures=True)


def cores() -> int:
    """Return how many cores this process may use."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return count or 1


def _decode(source: bytes | Path, name: str) -> Pixels:
    """Return the pixels of an image, shape (1 or 3, height, width)."""
    try:
        with opened(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            if not is_plain(image):
                raise PhotoError("unreadable", f"has transparency (mode {image.mode!r})")
            kept, grey = image.mode in ("L", "RGB"), image.mode == "1"
            pixels = np.asarray(image if kept else image.convert("L" if grey else "RGB"))
    except PhotoError as error:
        raise InputError(
            f"{name} {error.reason}; images must be grey or RGB, a byte a channel."
        ) from error
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _joined(pieces: list[Pixels]) -> Pixels:
    """Return one array (images, channels, height, width); grey becomes colour where both occur."""
    channels = max(piece.shape[1] for piece in pieces)
    return np.concatenate([np.broadcast_to(p, (len(p), channels, *p.shape[2:])) for p in pieces])
