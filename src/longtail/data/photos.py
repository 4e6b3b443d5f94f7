"""Crops of single photographs, by the sampling rules that torchvision documents; without torch."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from longtail import _checks
from longtail.data.decoding import GREY, PhotoError, Pixels, is_plain, opened

if TYPE_CHECKING:
    from PIL import Image

_ATTEMPTS = 10
_ORIENTATION = 0x0112  # in EXIF data: 1 is as stored, 2 to 8 are turned, mirrored or both


class Box(NamedTuple):
    """Part of an image, in its pixels."""

    left: float
    top: float
    width: float
    height: float


def random_box(
    size: tuple[int, int],
    random: np.random.Generator,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Box:
    """Return a random part of an image of `size` (W, H): area and shape at random, then the place.

        area = u·W·H,  u ~ U(scale);   r = e^v,  v ~ U(log ratio)
        w = round √(area·r),   h = round √(area/r),   until the box fits, ten times at most

    After ten boxes that don't fit, the largest centred one whose shape lies within `ratio`.

    Examples:
        >>> random_box((40, 20), np.random.default_rng(0), scale=(1.0, 1.0), ratio=(2.0, 2.0))
        Box(left=0, top=0, width=40, height=20)
    """
    width, height = size
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(_ATTEMPTS):
        area = width * height * random.uniform(*scale)
        shape = math.exp(random.uniform(low, high))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.integers(width - w + 1), random.integers(height - h + 1)
            return Box(int(left), int(top), w, h)
    w, h = width, height
    if width / height < ratio[0]:
        h = round(width / ratio[0])
    elif width / height > ratio[1]:
        w = round(height * ratio[1])
    return Box((width - w) // 2, (height - h) // 2, w, h)


@dataclass(frozen=True)
class RandomCrop:
    """View for training: a random part of the image, mirrored half of the time.

    Attributes:
        size: pixels of a side of the result.
        scale: the least and the largest share of the area, see `random_box`.
        ratio: the least and the largest width over height.
        flip: probability that the image is mirrored left to right.
    """

    size: int = 224
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5

    def __call__(self, file: str, random: np.random.Generator) -> Pixels:
        """Return the view of one file, shape (size, size, 3)."""
        with opened(file) as image:
            box = random_box(image.size, random, scale=self.scale, ratio=self.ratio)
            pixels = _resampled(image, box, self.size)
        return pixels[:, ::-1] if random.random() < self.flip else pixels


@dataclass(frozen=True)
class CenterCrop:
    """View for evaluation: the shorter side scaled to `resize`, then the centre.

    Attributes:
        size: pixels of a side of the result.
        resize: pixels of the shorter side before that, at least `size`.
    """

    size: int = 224
    resize: int = 256

    def __post_init__(self) -> None:
        _checks.whole(self.resize, name="resize", at_least=self.size)

    def __call__(self, file: str, random: np.random.Generator | None = None) -> Pixels:
        """Return the view of one file, shape (size, size, 3); nothing in it is random."""
        with opened(file) as image:
            # The square in pixels of the unscaled image, not whole numbers in general.
            width, height = (self.resize * side // min(image.size) for side in image.size)
            across, down = image.width / width, image.height / height
            left, top = round((width - self.size) / 2), round((height - self.size) / 2)
            box = Box(left * across, top * down, self.size * across, self.size * down)
            return _resampled(image, box, self.size)


def _resampled(image: Image.Image, box: Box, size: int) -> Pixels:
    """Scale a box of an image to (size, size, 3), bilinear with anti-aliasing."""
    from PIL import Image

    width, height = image.size
    if image.format == "JPEG":
        # The decoder can leave out high frequencies, up to where the box still has `size` pixels.
        enough = (math.ceil(width * size / box.width), math.ceil(height * size / box.height))
        image.draft(image.mode, enough)
    across, down = image.width / width, image.height / height
    left, top = box.left * across, box.top * down
    # Rounding may lead a hair beyond the edge, which Pillow refuses.
    right = min(left + box.width * across, image.width)
    bottom = min(top + box.height * down, image.height)
    colour = image if image.mode == "RGB" else image.convert("RGB")
    scaled = colour.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, right, bottom))
    return np.asarray(scaled)


class Header(NamedTuple):
    """Size and kind of a good image; `turned` if EXIF data ask to show it turned or mirrored."""

    height: int
    width: int
    grey: bool
    transparent: bool
    turned: bool


def check_photo(file: str, *, quick: bool = False) -> PhotoError | Header:
    """Return what is wrong with a file, or else its size and kind.

    `quick` reads its header only, which finds neither damage nor most truncation.
    """
    try:
        with opened(file) as image:
            # More than a byte a channel is refused already, so only transparency is left.
            transparent = not is_plain(image)
            if not quick:
                image.load()
            grey, turned = image.mode in (*GREY, "LA", "La"), False
            if "exif" in image.info:  # asking further would decode a PNG
                with suppress(Exception):  # damaged EXIF data, which nothing else here reads
                    turned = image.getexif().get(_ORIENTATION, 1) in range(2, 9)
            return Header(image.height, image.width, grey, transparent, turned)
    except PhotoError as error:
        return error
