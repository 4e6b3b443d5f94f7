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
# Those with transparency, which crops drop, as every ImageNet loader does.
_BYTES = (*GREY, *_COLOUR, "LA", "PA", "RGBA", "RGBX", "La", "RGBa")


class PhotoError(Exception):
    """Unusable image file: `kind` is one of `large.KINDS`, `reason` completes "FILE …"."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind, self.reason = kind, reason


@contextmanager
def opened(file: str | Path | io.BytesIO) -> Iterator[Image.Image]:
    """Open an image and read its header; every error until it is closed becomes a PhotoError."""
    from PIL import Image, UnidentifiedImageError

    try:
        found = None if isinstance(file, io.BytesIO) else os.stat(file)
        if found and not stat.S_ISREG(found.st_mode):  # a pipe would be waited for
            raise PhotoError("unreadable", "is not a regular file")
        if found and found.st_size == 0:
            raise PhotoError("truncated", "is empty")
        with Image.open(file, formats=FORMATS) as image:
            if image.mode not in _BYTES:
                reason = f"has more than a byte a channel (mode {image.mode!r})"
                raise PhotoError("unreadable", reason)
            yield image
    except (PhotoError, MemoryError):
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise PhotoError("missing", "is not there") from error
    except UnidentifiedImageError as error:
        raise PhotoError("format", f"is not an image ({', '.join(FORMATS)})") from error
    except Exception as error:  # a decoder meets damage with whatever its code happens to raise
        cut = isinstance(error, EOFError) or "truncated" in str(error).lower()
        kind = "truncated" if cut else "unreadable"
        raise PhotoError(kind, f"can't be decoded: {error or type(error).__name__}") from error


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
    """Decode images of one size, from encoded bytes (of `where`, in messages) or files.

    Returns shape (images, channels, height, width): one channel if all are grey, else three.
    Every image must have the `size` (height, width), or that of the first one.

    Examples:
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (3, 2), (1, 2, 3)).save(file, "PNG")
        >>> decode_images([file.getvalue()]).shape
        (1, 3, 2, 3)
    """
    _checks.require("PIL", extra="train")

    def decode(index: int) -> Pixels:
        source = sources[index]
        name = f"image {index} of {where}" if isinstance(source, bytes) else str(source)
        try:
            with opened(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
                if not is_plain(image):
                    raise PhotoError("unreadable", f"has transparency (mode {image.mode!r})")
                pixels = np.asarray(image.convert("L" if image.mode in GREY else "RGB"))
        except PhotoError as error:
            raise InputError(
                f"{name} {error.reason}; images must be grey or RGB, a byte a channel."
            ) from error
        if size is not None and pixels.shape[:2] != size:
            raise InputError(
                f"{name} is {pixels.shape[0]} x {pixels.shape[1]} pixels (height x width), but "
                f"every image must be {size[0]} x {size[1]}; make all images one size."
            )
        return pixels

    size = size or decode(0).shape[:2]
    found = np.empty((len(sources), 3, *size), np.uint8)

    def decode_some(start: int) -> bool:
        """Decode images from `start` on, and return whether all of them are grey."""
        several = [decode(i) for i in range(start, min(start + _CHUNK, len(sources)))]
        for index, pixels in enumerate(several, start):
            found[index] = pixels if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        return all(pixels.ndim == 2 for pixels in several)

    grey, done = True, 0
    for all_grey in in_threads(decode_some, range(0, len(sources), _CHUNK)):
        grey, done = grey and all_grey, min(done + _CHUNK, len(sources))
        if progress is not None:
            progress(done, len(sources), "images")
    return np.ascontiguousarray(found[:, :1]) if grey else found


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
