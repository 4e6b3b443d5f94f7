"""Random crops, flips and normalisation of whole batches, on any device.

The draws (`plan_crop_flip`, on the CPU) and their application (`crop_flip`) are kept apart: a run
sees the same crops on every device, and the rest is one gather that needs no random numbers, waits
for nothing and can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longtail import _checks


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

    Examples:
        >>> dy, dx, flip = plan_crop_flip(
        ...     1000, padding=4, flip=True, generator=torch.Generator().manual_seed(0)
        ... )
        >>> int(dy.min()), int(dx.max()), int(flip.max())
        (0, 8, 1)
    """
    padding = _checks.whole(padding, name="padding", at_least=0)
    mirrored = torch.randint(0, 2, (count,), generator=generator)
    dy = torch.randint(0, 2 * padding + 1, (count,), generator=generator)
    dx = torch.randint(0, 2 * padding + 1, (count,), generator=generator)
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

        out[n, c, i, j] = padded[n, c, dy[n] + i, dx[n] + (width - 1 - j if flip[n] else j)]

    Args:
        pixels: shape (batch, channels, height, width), any dtype and memory format.
        dy: first row of the crop in the padded image, shape (batch,), 0 .. 2 padding; on the
            device of `pixels`, like what follows.
        dx: first column, likewise.
        flip: other than 0: mirror left and right, after the crop; shape (batch,).
        padding: pixels added on each side.
        fill: value of the padding: one number that the pixels' dtype can hold, or a tensor of
            shape (channels,). 0 is black on raw pixels, −mean/std on normalised ones.

    Returns:
        Of the shape and dtype of `pixels`, in channels-last memory format.

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
    index = torch.arange(len(pixels), device=pixels.device)
    out, outside = gather_crops(pixels, index, dy, dx, flip, padding=padding)
    return out if outside is None else fill_outside(out, outside, fill)


def gather_crops(
    images: Tensor, index: Tensor, dy: Tensor, dx: Tensor, flip: Tensor, *, padding: int
) -> tuple[Tensor, Tensor | None]:
    """Return crops of the images at `index` with the edge repeated, and a mask of what is outside.

    So `fill_outside` may come after normalisation, with colours that integers can't hold. The mask
    has the shape (batch, 1, height, width), and is None without padding.
    """
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


def fill_outside(out: Tensor, outside: Tensor, fill: float | Tensor) -> Tensor:
    """Give the pixels outside of the images their colour; see `gather_crops`."""
    if isinstance(fill, Tensor):
        return torch.where(outside, fill.to(out.dtype)[:, None, None], out)
    return out.masked_fill_(outside, fill)


def normalize(
    pixels: Tensor,
    *,
    mean: Sequence[float] | Tensor,
    std: Sequence[float] | Tensor,
    pixel_range: float,
) -> Tensor:
    """Return pixels as float32: (pixels / pixel_range − mean) / std, channel by channel.

    Args:
        pixels: shape (batch, channels, height, width), as they came.
        mean: one number per channel, or one for all. A tensor on the device of `pixels` needs
            no copy from the host, which the capture of a CUDA graph would refuse.
        std: likewise, above 0.
        pixel_range: the largest value that a pixel can have, such as 255.

    Examples:
        >>> white = torch.full((1, 1, 1, 1), 255, dtype=torch.uint8)
        >>> normalize(white, mean=[0.5], std=[0.25], pixel_range=255).item()
        2.0
    """
    shift, scale = (
        torch.as_tensor(values, dtype=torch.float32, device=pixels.device).view(1, -1, 1, 1)
        for values in (mean, std)
    )
    return (pixels.float() / float(pixel_range) - shift) / scale
