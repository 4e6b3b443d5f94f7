"""Random crops, flips and normalisation of whole batches, on any device.

What is drawn (`plan_crop_flip`) and how it is applied (`crop_flip`, `gather_crop_flip`) are kept
apart: the draw happens on the CPU, so that a run sees the same crops on every device, and the
rest is one gather that needs no random numbers, waits for nothing and can be captured in a CUDA
graph. An epoch may be made at once or batch by batch. When to augment is the recipe's affair.
"""

from __future__ import annotations

from collections.abc import Sequence

from longtail import _checks
from longtail._checks import InputError

_checks.require("torch", extra="torch", caller=__name__)

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
    caller = "plan_crop_flip"
    count = _checks.whole(count, caller, name="count", at_least=0)
    padding = _checks.whole(padding, caller, name="padding", at_least=0)
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
        fill: what the padding holds: one number, or a tensor of shape (channels,) on the
            device of `pixels`. 0 on raw pixels is black; see `Recipe.border` for normalised ones.

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
    _check_images(pixels, caller="crop_flip", name="pixels")
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
        dy: as in `crop_flip`, shape (batch,).
        dx: as in `crop_flip`, shape (batch,).
        flip: as in `crop_flip`, shape (batch,).
        padding: as in `crop_flip`.
        fill: as in `crop_flip`.

    Returns:
        Shape (batch, channels, height, width), dtype of `images`, channels-last.

    Examples:
        >>> images = torch.arange(8).view(2, 1, 2, 2)
        >>> zero = torch.zeros(1, dtype=torch.int64)
        >>> gather_crop_flip(images, zero + 1, zero, zero + 1, zero, padding=1).view(2, 2)
        tensor([[0, 0],
                [4, 5]])
    """
    caller = "gather_crop_flip"
    out, outside = _gather(images, index, dy, dx, flip, padding, caller=caller)
    return out if outside is None else _filled(out, outside, fill, caller=caller)


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
        images: as in `gather_crop_flip`, and so are the next five.
        index: which examples.
        dy: first rows.
        dx: first columns.
        flip: which are mirrored.
        padding: pixels added on each side.
        fill: the padding's value after normalisation, see `Recipe.border`.
        mean: as in `normalize`, and so are the next two.
        std: per channel.
        pixel_range: the largest value of a pixel.

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
    caller = "gather_normalized"
    out, outside = _gather(images, index, dy, dx, flip, padding, caller=caller)
    out = normalize(out, mean=mean, std=std, pixel_range=pixel_range)
    return out if outside is None else _filled(out, outside, fill, caller=caller)


def _gather(
    images: Tensor,
    index: Tensor,
    dy: Tensor,
    dx: Tensor,
    flip: Tensor,
    padding: int,
    *,
    caller: str,
) -> tuple[Tensor, Tensor | None]:
    """The crops, with the image's edge repeated beyond it; and where that is, (batch, 1, h, w)."""
    _check_images(images, caller=caller, name="images")
    padding = _checks.whole(padding, caller, name="padding", at_least=0)
    for name, part in (("dy", dy), ("dx", dx), ("flip", flip)):
        if part.shape != index.shape or index.ndim != 1:
            raise InputError(
                f"{caller}: `{name}` must have one value per image of the batch; its shape is "
                f"{tuple(part.shape)} and that of `index` is {tuple(index.shape)}."
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


def _filled(out: Tensor, outside: Tensor, fill: float | Tensor, *, caller: str) -> Tensor:
    check_fill(fill, out.dtype, caller=caller)
    if not isinstance(fill, Tensor):
        return out.masked_fill_(outside, float(fill))
    if fill.shape not in ((1,), (out.shape[1],)):
        raise InputError(
            f"{caller}: `fill` must be a number or one per channel, {out.shape[1]}; "
            f"its shape is {tuple(fill.shape)}."
        )
    return torch.where(outside, fill.to(out.dtype)[:, None, None], out)


def check_fill(fill: float | Tensor, dtype: torch.dtype, *, caller: str) -> None:
    """Refuse a colour that pixels of a dtype can't hold; one on a device is not looked at."""
    for value in _visible(fill if isinstance(fill, Tensor) else [fill]):
        number = _checks.tau(value, caller, name="fill")
        instead = "Normalise the images first to fill with any colour."
        if not dtype.is_floating_point and not number.is_integer():
            raise InputError(
                f"{caller}: `fill` must be a whole number, since the pixels are {dtype}; "
                f"got {number:g}. {instead}"
            )
        least, most = _bounds(dtype)
        if not least <= number <= most:
            raise InputError(
                f"{caller}: `fill` must lie in [{least:g}, {most:g}], since the pixels are "
                f"{dtype}; got {number:g}. {instead}"
            )


def _bounds(dtype: torch.dtype) -> tuple[float, float]:
    if dtype == torch.bool:
        return 0, 1
    held = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return held.min, held.max


def _visible(values: Sequence[float] | Tensor) -> list[float]:
    """Numbers that can be looked at: not those on a device, or of a graph that is compiled."""
    if not isinstance(values, Tensor):
        return list(values)
    if values.device.type != "cpu" or torch.compiler.is_compiling():
        return []
    return values.double().flatten().tolist()  # type: ignore[no-any-return]


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
    caller = "normalize"
    _check_images(pixels, caller=caller, name="pixels")
    scaled = pixels.float() / _checks.positive(pixel_range, caller, name="pixel_range")
    channels = pixels.shape[1]
    parts = []
    for name, values, check in (("mean", mean, _checks.tau), ("std", std, _checks.positive)):
        part = torch.as_tensor(values, dtype=torch.float32, device=pixels.device)
        if part.shape not in ((1,), (channels,)):
            raise InputError(
                f"{caller}: `{name}` must have one value, or one per channel; the pixels have "
                f"{channels} channel(s), and its shape is {tuple(part.shape)}."
            )
        for value in _visible(values):
            check(value, caller, name=name)
        parts.append(part.view(1, -1, 1, 1))
    return (scaled - parts[0]) / parts[1]


def _check_images(pixels: Tensor, *, caller: str, name: str) -> None:
    if pixels.ndim != 4:
        raise InputError(
            f"{caller}: `{name}` must have shape (images, channels, height, width); "
            f"its shape is {tuple(pixels.shape)}."
        )
