"""Random crops, flips and normalisation of whole batches, on any device.

The draws (`plan_crop_flip`) and their application (`crop_flip`, `gather_crop_flip`) are kept
apart: the draw happens on the CPU, so that a run sees the same crops on every device, and the
rest is one gather that needs no random numbers, waits for nothing and can be captured in a CUDA
graph.
"""

from __future__ import annotations

from collections.abc import Sequence

from longtail import _checks
from longtail._checks import InputError

_checks.require("torch", extra="torch")

import torch
from torch import Tensor


def plan_crop_flip(
    count: int, *, padding: int, flip: bool, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw where each image is cropped and whether it is mirrored.

        dy, dx ~ uniform on 0 .. 2 padding,   flip ~ uniform on {0, 1}

    Flips don't depend on the padding: two plans from equal generators mirror the same images.

    Args:
        count: of images.
        padding: pixels added on each side before the crop; 0 leaves images in place.
        flip: whether half of the images are mirrored.
        generator: on the CPU.

    Returns:
        dy, dx and flip, int64 on the CPU, each of shape (count,).

    Examples:
        >>> dy, dx, flip = plan_crop_flip(
        ...     1000, padding=4, flip=True, generator=torch.Generator().manual_seed(0)
        ... )
        >>> int(dy.min()), int(dx.max()), int(flip.max())
        (0, 8, 1)
    """
    padding = _checks.whole(padding, name="padding", at_least=0)
    shape = (count,)
    mirrored = torch.randint(0, 2, shape, generator=generator)
    dy = torch.randint(0, 2 * padding + 1, shape, generator=generator)
    dx = torch.randint(0, 2 * padding + 1, shape, generator=generator)
    return dy, dx, mirrored if flip else torch.zeros_like(mirrored)


def crop_flip(
    pixels: Tensor,
    dy: Tensor,
    dx: Tensor,
    flip: Tensor,
    *,
    padding: int,
    fill: float | Tensor = 0.0,
) -> Tensor:
    """Pad each image, crop it at (dy, dx) to its own size again, and mirror it where told.

    Args:
        pixels: shape (batch, channels, height, width), any dtype and memory format.
        dy: first row of the crop in the padded image, shape (batch,), 0 .. 2 padding.
        dx: first column, likewise.
        flip: other than 0: mirror left and right, after the crop; shape (batch,).
        padding: pixels added on each side.
        fill: value of the padding: one number that the pixels' dtype can hold, or a tensor of
            shape (channels,) on the device of `pixels`. 0 on raw pixels is black; see
            `Recipe.border` for normalised ones.

    Returns:
        New pixels, of the same shape and dtype, in channels-last memory format.

    Examples:
        >>> image = torch.tensor([[1, 2], [3, 4]]).view(1, 1, 2, 2)
        >>> at = torch.tensor([1])
        >>> crop_flip(image, at, 2 * at, 0 * at, padding=1).view(2, 2)
        tensor([[2, 0],
                [4, 0]])
        >>> crop_flip(image, at, 2 * at, at, padding=1).view(2, 2)
        tensor([[0, 2],
                [0, 4]])
    """
    check_images(pixels)
    index = torch.arange(len(pixels), device=pixels.device)
    return gather_crop_flip(pixels, index, dy, dx, flip, padding=padding, fill=fill)


def gather_crop_flip(
    images: Tensor,
    index: Tensor,
    dy: Tensor,
    dx: Tensor,
    flip: Tensor,
    *,
    padding: int,
    fill: float | Tensor = 0.0,
) -> Tensor:
    """Take a batch from a resident set of images and crop and flip it, in the same gather.

        out[n, c, i, j] = padded[index[n], c, dy[n] + i, dx[n] + (width - 1 - j if flip[n] else j)]

    Nothing here depends on the data's values, so no host waits for a device.

    Args:
        images: the whole set, shape (examples, channels, height, width).
        index: which examples, shape (batch,), on the device of `images` like the three below.
        dy: and what follows: as in `crop_flip`.
        dx: likewise.
        flip: likewise.
        padding: likewise.
        fill: likewise.

    Returns:
        Shape (batch, channels, height, width), dtype of `images`, channels-last.

    Examples:
        >>> images = torch.arange(8).view(2, 1, 2, 2)
        >>> zero = torch.zeros(1, dtype=torch.int64)
        >>> gather_crop_flip(images, zero + 1, zero, zero + 1, zero, padding=1).view(2, 2)
        tensor([[0, 0],
                [4, 5]])
    """
    out, outside = _gather(images, index, dy, dx, flip, padding)
    return out if outside is None else _filled(out, outside, fill)


def gather_normalized(
    images: Tensor,
    index: Tensor,
    dy: Tensor,
    dx: Tensor,
    flip: Tensor,
    *,
    padding: int,
    fill: float | Tensor,
    mean: Sequence[float] | Tensor,
    std: Sequence[float] | Tensor,
    pixel_range: float,
) -> Tensor:
    """`gather_crop_flip`, then `normalize`, then padding: a batch as a network takes it.

    Padding comes last so that it may have any colour, such as the mean, which integer pixels
    can't hold.

    Args:
        images: and what follows: as in `gather_crop_flip`.
        index: likewise.
        dy: likewise.
        dx: likewise.
        flip: likewise.
        padding: likewise.
        fill: the padding's value after normalisation, see `Recipe.border`.
        mean: and what follows: as in `normalize`.
        std: likewise.
        pixel_range: likewise.

    Returns:
        float32, shape (batch, channels, height, width), channels-last.

    Examples:
        >>> grey = torch.full((1, 1, 1, 2), 51, dtype=torch.uint8)
        >>> zero = torch.zeros(1, dtype=torch.int64)
        >>> gather_normalized(
        ...     grey, zero, zero + 1, zero + 2, zero,
        ...     padding=1, fill=0.0, mean=[0.5], std=[1.0], pixel_range=255,
        ... ).flatten()
        tensor([-0.3000,  0.0000])
    """
    out, outside = _gather(images, index, dy, dx, flip, padding)
    out = normalize(out, mean=mean, std=std, pixel_range=pixel_range)
    return out if outside is None else _filled(out, outside, fill)


def _gather(
    images: Tensor, index: Tensor, dy: Tensor, dx: Tensor, flip: Tensor, padding: int
) -> tuple[Tensor, Tensor | None]:
    """The crops, with the image's edge repeated beyond it; and where that is, (batch, 1, h, w)."""
    check_images(images)
    if not index.shape == dy.shape == dx.shape == flip.shape:
        raise InputError(
            f"`dy`, `dx` and `flip` must have one value per image of the batch; the shapes are "
            f"{tuple(dy.shape)}, {tuple(dx.shape)} and {tuple(flip.shape)} for "
            f"{tuple(index.shape)}."
        )
    height, width = images.shape[2:]
    column = torch.arange(width, device=images.device)
    y = (dy - padding)[:, None] + torch.arange(height, device=images.device)
    x = (dx - padding)[:, None] + torch.where(flip[:, None] != 0, width - 1 - column, column)
    out = images[
        index[:, None, None],
        :,
        y.clamp(0, height - 1)[:, :, None],
        x.clamp(0, width - 1)[:, None, :],
    ]
    # Indexing puts the channels last, which is the memory format that convolutions like best.
    out = out.movedim(3, 1)
    if padding == 0:
        return out, None
    beyond_y, beyond_x = (y < 0) | (y >= height), (x < 0) | (x >= width)
    return out, (beyond_y[:, :, None] | beyond_x[:, None, :])[:, None]


def _filled(out: Tensor, outside: Tensor, fill: float | Tensor) -> Tensor:
    if isinstance(fill, Tensor):
        return torch.where(outside, fill.to(out.dtype)[:, None, None], out)
    if not (out.dtype.is_floating_point or float(fill).is_integer()):
        raise InputError(
            f"`fill` must be a whole number, since the pixels are {out.dtype}; got {fill:g}. "
            f"Normalise the images first to fill with any colour."
        )
    return out.masked_fill_(outside, float(fill))


def normalize(
    pixels: Tensor,
    *,
    mean: Sequence[float] | Tensor,
    std: Sequence[float] | Tensor,
    pixel_range: float,
) -> Tensor:
    """Pixels as float32: (pixels / pixel_range − mean) / std, channel by channel.

    Args:
        pixels: shape (batch, channels, height, width), as they came.
        mean: one number per channel, or one for all. A tensor on the device of `pixels` needs
            no copy from the host, which the capture of a CUDA graph would refuse.
        std: likewise, above 0.
        pixel_range: the largest value that a pixel can have, such as 255.

    Returns:
        Shape and memory format of `pixels`.

    Examples:
        >>> white = torch.full((1, 1, 1, 1), 255, dtype=torch.uint8)
        >>> normalize(white, mean=[0.5], std=[0.25], pixel_range=255).item()
        2.0
    """
    check_images(pixels)
    channels, parts = pixels.shape[1], []
    for name, values in (("mean", mean), ("std", std)):
        part = torch.as_tensor(values, dtype=torch.float32, device=pixels.device)
        if part.shape not in ((1,), (channels,)):
            raise InputError(
                f"`{name}` must have one value, or one per channel; the pixels have {channels} "
                f"channel(s), and its shape is {tuple(part.shape)}."
            )
        parts.append(part.view(1, -1, 1, 1))
    return (pixels.float() / float(pixel_range) - parts[0]) / parts[1]


def check_images(pixels: Tensor) -> None:
    """Refuse images that are not of shape (images, channels, height, width)."""
    if pixels.ndim != 4:
        raise InputError(
            f"images must have shape (images, channels, height, width); got {tuple(pixels.shape)}."
        )
