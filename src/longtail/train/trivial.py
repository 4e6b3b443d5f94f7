"""TrivialAugment for whole batches, on any device (Müller and Hutter 2021, the wide space).

Each image gets one operation of `OPERATIONS`, drawn uniformly, at a strength drawn uniformly:
nothing to tune. As in `augment`, the draws (`plan_trivial_augment`, on the CPU) and their
application (`trivial_augment`) are kept apart. Images that get the same kind of operation go
through it together, and the plan tells which they are, so no host waits for a device.

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
from functools import cache
from itertools import accumulate

import torch
from torch import Tensor

from longtail._checks import InputError

# Neighbours in this list go through the same kernels: blends together, geometry together.
BLENDS = ("color", "contrast", "brightness", "sharpness")
GEOMETRY = ("rotate", "shear-x", "shear-y", "translate-x", "translate-y")
OPERATIONS = ("identity", "autocontrast", "equalize", "solarize", "posterize", *BLENDS, *GEOMETRY)
STRENGTHS = 30  # the largest; 0 is the least
_LEVELS = 2 * STRENGTHS + 1  # with their signs


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
    # How many images get which operation is all that the host has to know.
    counts = torch.bincount(operation, minlength=len(OPERATIONS)).tolist()
    device = pixels.device
    on_device = operation.to(device, non_blocking=True)
    where = on_device.argsort(stable=True)
    level = strength.to(device, non_blocking=True) + STRENGTHS
    row = (on_device * _LEVELS + level).index_select(0, where)
    amounts, matrices = _tables(pixels.shape[2], pixels.shape[3], device)
    amount = amounts.index_select(0, row)
    starts = dict(zip((*OPERATIONS, "end"), accumulate(counts, initial=0), strict=True))
    blends = counts[OPERATIONS.index("color") : OPERATIONS.index("rotate")]
    parts: list[tuple[str, str, Callable[[Tensor, Tensor], Tensor]]] = [
        ("autocontrast", "equalize", lambda x, _: _autocontrast(x)),
        ("equalize", "solarize", lambda x, _: _equalize(x)),
        ("solarize", "posterize", _solarize),
        ("posterize", "color", _posterize),
        ("color", "rotate", lambda x, a: _blend(x, a, blends)),
        ("rotate", "end", lambda x, _: _affine(x, matrices.index_select(0, row[-len(x) :]))),
    ]
    for first, after, apply in parts:
        start, end = starts[first], starts[after]
        if end > start:
            index = where[start:end]
            x = out.index_select(0, index).permute(0, 3, 1, 2)
            y = apply(x, amount[start:end].view(-1, 1, 1, 1))
            out.index_copy_(0, index, y.permute(0, 2, 3, 1))
    return out.permute(0, 3, 1, 2)


@cache
def _tables(height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """`_amounts` and `_matrices` of every operation at every strength, on a device.

    Made on the CPU, so that they are the same to the bit on every device; by the row
    61 · operation + 30 + strength.
    """
    operation = torch.arange(len(OPERATIONS)).repeat_interleave(_LEVELS)
    strength = torch.arange(-STRENGTHS, STRENGTHS + 1).repeat(len(OPERATIONS))
    matrices = _matrices(operation, strength, (height, width))
    return _amounts(operation, strength).to(device), matrices.to(device)


def _amounts(operation: Tensor, strength: Tensor) -> Tensor:
    """Parameters of operations without geometry: a threshold, a step of levels or a factor."""
    level = strength.abs()
    factor = 0.01 + 1.99 * level.double() / STRENGTHS
    threshold = 256 - 256 * level // STRENGTHS
    step = 2 ** (6 * level // STRENGTHS)  # 2^(8 − bits)
    amount = torch.where(operation == OPERATIONS.index("solarize"), threshold.double(), factor)
    return torch.where(operation == OPERATIONS.index("posterize"), step.double(), amount).float()


def _matrices(operation: Tensor, strength: Tensor, size: tuple[int, int]) -> Tensor:
    """The source of pixel (x, y) in 16.16 fixed point: (a, b, c, d, e, f), int32, shape (n, 6).

    x' = (a x + b y + c) >> 16 and y' = (d x + e y + f) >> 16, with the half pixel in c and f.
    """
    height, width = size
    level = strength.double() / STRENGTHS
    kind = {name: operation == OPERATIONS.index(name) for name in GEOMETRY}
    none = torch.zeros_like(level)
    angle = torch.where(kind["rotate"], -torch.deg2rad(135 * level), none)
    cos, sin = angle.cos(), angle.sin()
    cos, sin = cos.round(decimals=15), sin.round(decimals=15)
    b = torch.where(kind["shear-x"], 0.99 * level, sin)
    d = torch.where(kind["shear-y"], 0.99 * level, -sin)
    # About the centre; for the others cos is 1 and sin 0, so nothing moves.
    c = -cos * (width / 2) - sin * (height / 2) + width / 2
    f = sin * (width / 2) - cos * (height / 2) + height / 2
    c = torch.where(kind["translate-x"], 32 * level, c)
    f = torch.where(kind["translate-y"], 32 * level, f)
    c, f = c + 0.5 * cos + 0.5 * b, f + 0.5 * d + 0.5 * cos
    return torch.stack([cos, b, c, d, cos, f], 1).mul(65536).add(0.5).floor().int()


def _affine(x: Tensor, matrices: Tensor) -> Tensor:
    height, width = x.shape[2:]
    column = torch.arange(width, device=x.device, dtype=torch.int32)
    row = torch.arange(height, device=x.device, dtype=torch.int32)[:, None]
    a, b, c, d, e, f = matrices[:, :, None, None].unbind(1)
    from_x = (a * column + b * row + c) >> 16
    from_y = (d * column + e * row + f) >> 16
    outside = (from_x < 0) | (from_x >= width) | (from_y < 0) | (from_y >= height)
    image = torch.arange(len(x), device=x.device)[:, None, None]
    out = x[image, :, from_y.clamp(0, height - 1).long(), from_x.clamp(0, width - 1).long()]
    return out.masked_fill_(outside[..., None], 0).permute(0, 3, 1, 2)


def _autocontrast(x: Tensor) -> Tensor:
    """Each channel stretched to 0 .. 255."""
    low, high = x.amin((2, 3), keepdim=True).double(), x.amax((2, 3), keepdim=True).double()
    # A true division: `255.0 / tensor` multiplies by the reciprocal, which rounds differently.
    # Infinite for a channel of one colour, which stays as it is.
    scale = torch.full_like(low, 255.0) / (high - low)
    stretched = (x * scale - low * scale).clamp_(0, 255)
    return torch.where(high > low, stretched, x.double()).to(torch.uint8)


def _equalize(x: Tensor) -> Tensor:
    """Each channel's grey levels spread evenly, by Pillow's whole numbers."""
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


def _solarize(x: Tensor, threshold: Tensor) -> Tensor:
    return torch.where(x < threshold, x, 255 - x)


def _posterize(x: Tensor, step: Tensor) -> Tensor:
    step = step.to(torch.uint8)
    return x // step * step


def _blend(x: Tensor, factor: Tensor, counts: list[int]) -> Tensor:
    """d + factor · (x − d) in float32, truncated; d as for color, contrast, brightness, sharpness.

    The images are sorted by operation, of which there are so many as `counts` says.
    """
    parts = torch.split(x.to(torch.int32), counts)
    base = torch.cat(
        [
            _grey(parts[0]).expand_as(parts[0]),
            _mean_grey(parts[1]).expand_as(parts[1]),
            torch.zeros_like(parts[2]),
            _smooth(parts[3]),
        ]
    )
    blended = base + factor * (x.to(torch.int32) - base).float()
    return blended.clamp_(0, 255).to(torch.uint8)


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
