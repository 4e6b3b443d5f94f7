"""TrivialAugment for whole batches, on any device (Müller and Hutter 2021, the wide space).

Each image gets one operation of `OPERATIONS`, drawn uniformly, at a strength drawn uniformly:
nothing to tune. As in `augment`, the draws (`plan_trivial_augment`, on the CPU) and their
application (`trivial_augment`) are kept apart. Images that get the same operation go through it
together, and the plan tells which they are, so no host waits for a device.

Pixels are 8-bit and every operation is Pillow's to the last grey level: truncated where it
truncates, geometric operations by its nearest neighbour in 16.16 fixed point, black beyond the
edge. With m the strength, 0 .. 30, and a random sign ±:

    identity, autocontrast, equalize     no strength
    solarize      invert pixels from 256 − ⌊256 m/30⌋ on
    posterize     keep the upper 8 − ⌊6 m/30⌋ bits
    color, contrast, brightness, sharpness   blend by the factor 0.01 + 1.99 m/30: below 1
                  towards grey, its mean, black, the smoothed image; above 1 away from it
    rotate        by ± 135° m/30
    shear-x, shear-y           by ± 0.99 m/30, about the upper left corner
    translate-x, translate-y   by ± 32 m/30 pixels
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from longtail._checks import InputError

STRENGTHS = 30  # the largest; 0 is the least


def plan_trivial_augment(count: int, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw each image's operation and how strong it is.

    Returns:
        The operation as a number in `OPERATIONS`, and ± the strength, −30 .. 30; int64 on the
        CPU, each of shape (count,). The sign is for operations that have one.

    Examples:
        >>> operation, strength = plan_trivial_augment(
        ...     1000, generator=torch.Generator().manual_seed(0)
        ... )
        >>> int(operation.max()), int(strength.min()), int(strength.max())
        (13, -30, 30)
    """
    operation = torch.randint(0, len(OPERATIONS), (count,), generator=generator)
    strength = torch.randint(0, STRENGTHS + 1, (count,), generator=generator)
    sign = 1 - 2 * torch.randint(0, 2, (count,), generator=generator)
    return operation, strength * sign


def trivial_augment(pixels: Tensor, operation: Tensor, strength: Tensor) -> Tensor:
    """Apply to each image its operation.

    Args:
        pixels: uint8 of 0 .. 255, shape (batch, channels, height, width), with 1 or 3 channels,
            on any device and in any memory format.
        operation: as from `plan_trivial_augment`, shape (batch,), on the CPU.
        strength: likewise.

    Returns:
        New pixels of the same shape, uint8, in channels-last memory format.

    Examples:
        >>> pixels = torch.tensor([[10, 200]], dtype=torch.uint8).expand(2, 1, 1, 2)
        >>> which = torch.tensor([OPERATIONS.index("solarize"), OPERATIONS.index("translate-x")])
        >>> trivial_augment(pixels, which, torch.tensor([15, 1])).view(2, 2)
        tensor([[ 10,  55],
                [200,   0]], dtype=torch.uint8)
    """
    if pixels.ndim != 4 or pixels.shape[1] not in (1, 3) or pixels.dtype != torch.uint8:
        raise InputError(
            f"trivial_augment: `pixels` must be uint8 of shape (images, 1 or 3 channels, height, "
            f"width); got {pixels.dtype} of shape {tuple(pixels.shape)}. Augment before "
            f"normalising."
        )
    out = pixels.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format)
    order = operation.argsort(stable=True)
    counts = torch.bincount(operation, minlength=len(OPERATIONS)).tolist()
    indices = torch.split(order.to(pixels.device, non_blocking=True), counts)
    strengths = torch.split(strength[order].double(), counts)
    for apply, index, strength in zip(_APPLY.values(), indices, strengths, strict=True):
        if apply is not None and len(index):
            x = out.index_select(0, index).permute(0, 3, 1, 2)
            out.index_copy_(0, index, apply(x, strength).permute(0, 2, 3, 1))
    return out.permute(0, 3, 1, 2)


# Each operation takes uint8 pixels and signed strengths, float64 on the CPU. What follows from a
# strength is computed there, so that it is the same to the bit on every device.


def _autocontrast(x: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel to 0 .. 255."""
    low, high = x.amin((2, 3), keepdim=True).double(), x.amax((2, 3), keepdim=True).double()
    # A true division: `255.0 / tensor` multiplies by the reciprocal, which rounds differently.
    # Infinite for a channel of one colour, which stays as it is.
    scale = torch.full_like(low, 255.0) / (high - low)
    stretched = (x * scale - low * scale).clamp_(0, 255)
    return torch.where(high > low, stretched, x.double()).to(torch.uint8)


def _equalize(x: Tensor, _: Tensor) -> Tensor:
    """Spread each channel's grey levels evenly, by Pillow's whole numbers."""
    batch, channels, height, width = x.shape
    flat = x.reshape(batch * channels, height * width).long()
    counts = torch.zeros(len(flat), 256, dtype=torch.int64, device=x.device)
    counts.scatter_add_(1, flat, torch.ones_like(flat))
    of_last = counts.gather(1, flat.amax(1, keepdim=True))
    step = (height * width - of_last) // 255
    below = counts.cumsum(1) - counts
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=x.device))
    return table.gather(1, flat).to(torch.uint8).view(x.shape)


def _solarize(x: Tensor, strength: Tensor) -> Tensor:
    threshold = _for_each((256 - 256 * strength.abs() // STRENGTHS).float(), x)
    return torch.where(x < threshold, x, 255 - x)


def _posterize(x: Tensor, strength: Tensor) -> Tensor:
    bits_lost = 6 * strength.abs() // STRENGTHS
    step = _for_each((2**bits_lost).to(torch.uint8), x)
    return x // step * step


def _blend(towards: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the operation d + factor · (x − d) in float32, truncated; d = towards(x)."""

    def apply(x: Tensor, strength: Tensor) -> Tensor:
        factor = _for_each((0.01 + 1.99 * strength.abs() / STRENGTHS).float(), x)
        x = x.to(torch.int32)
        base = towards(x)
        return (base + factor * (x - base).float()).clamp_(0, 255).to(torch.uint8)

    return apply


def _grey(x: Tensor) -> Tensor:
    """Luma by ITU-R 601, shape (batch, 1, height, width); a single channel is its own."""
    if x.shape[1] == 1:
        return x
    red, green, blue = x[:, :1], x[:, 1:2], x[:, 2:]
    return (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16


def _mean_grey(x: Tensor) -> Tensor:
    pixels = x.shape[2] * x.shape[3]
    total = _grey(x).sum((1, 2, 3), keepdim=True)
    return ((2 * total + pixels) // (2 * pixels)).to(torch.int32)


def _smooth(x: Tensor) -> Tensor:
    """Each pixel five times and its eight neighbours once, by thirteen; the edge stays."""
    out = x.clone()
    if x.shape[2] < 3 or x.shape[3] < 3:
        return out
    across = x[:, :, :, :-2] + x[:, :, :, 1:-1] + x[:, :, :, 2:]
    around = across[:, :, :-2] + across[:, :, 1:-1] + across[:, :, 2:]
    total = around + 4 * x[:, :, 1:-1, 1:-1]
    out[:, :, 1:-1, 1:-1] = (2 * total + 13) // 26
    return out


def _rotate(x: Tensor, strength: Tensor) -> Tensor:
    height, width = x.shape[2:]
    angle = -torch.deg2rad(135 * strength / STRENGTHS)
    cos, sin = angle.cos().round(decimals=15), angle.sin().round(decimals=15)
    c = -cos * (width / 2) - sin * (height / 2) + width / 2  # about the centre
    f = sin * (width / 2) - cos * (height / 2) + height / 2
    return _affine(x, a=cos, b=sin, c=c, d=-sin, e=cos, f=f)


def _affine(
    x: Tensor, *, a: Any = 1, b: Any = 0, c: Any = 0, d: Any = 0, e: Any = 1, f: Any = 0
) -> Tensor:
    """Fetch the pixel at (x, y) from (a x + b y + c, d x + e y + f), in 16.16 fixed point."""
    height, width = x.shape[2:]
    c, f = c + 0.5 * a + 0.5 * b, f + 0.5 * d + 0.5 * e  # the half pixel
    each = [torch.as_tensor(value).double().expand(len(x)) for value in (a, b, c, d, e, f)]
    matrix = torch.stack(each).mul(65536).add(0.5).floor().int()
    a, b, c, d, e, f = matrix.to(x.device, non_blocking=True)[:, :, None, None]
    column = torch.arange(width, device=x.device, dtype=torch.int32)
    row = torch.arange(height, device=x.device, dtype=torch.int32)[:, None]
    from_x = (a * column + b * row + c) >> 16
    from_y = (d * column + e * row + f) >> 16
    outside = (from_x < 0) | (from_x >= width) | (from_y < 0) | (from_y >= height)
    image = torch.arange(len(x), device=x.device)[:, None, None]
    out = x[image, :, from_y.clamp(0, height - 1).long(), from_x.clamp(0, width - 1).long()]
    return out.masked_fill_(outside[..., None], 0).permute(0, 3, 1, 2)


def _for_each(values: Tensor, x: Tensor) -> Tensor:
    """Return one value per image, on the device of the images."""
    return values.to(x.device, non_blocking=True).view(-1, 1, 1, 1)


_APPLY: dict[str, Callable[[Tensor, Tensor], Tensor] | None] = {
    "identity": None,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "solarize": _solarize,
    "posterize": _posterize,
    "color": _blend(_grey),
    "contrast": _blend(_mean_grey),
    "brightness": _blend(torch.zeros_like),
    "sharpness": _blend(_smooth),
    "rotate": _rotate,
    "shear-x": lambda x, m: _affine(x, b=0.99 * m / STRENGTHS),
    "shear-y": lambda x, m: _affine(x, d=0.99 * m / STRENGTHS),
    "translate-x": lambda x, m: _affine(x, c=32 * m / STRENGTHS),
    "translate-y": lambda x, m: _affine(x, f=32 * m / STRENGTHS),
}
OPERATIONS = tuple(_APPLY)
