"""Cutout, CutMix and mixup for whole batches, on any device: a hole, a patch, a blend.

As in `augment`, the draws (`plan_cutout`, `plan_mixing`, `draw_partners`, on the CPU) and their
application (`cutout`, `mix`) are kept apart. Plans are made in the unit square, so they don't
depend on the images' size. Partners are drawn freely from the training set, not from the same
batch: with rare classes a batch has few of them to offer.

A mixed example has two labels: `mix` returns the share of the first, and the loss is

    λ · ℓ(y, f) + (1 − λ) · ℓ(y', f),

the loss with class probabilities λ and 1 − λ, since it is linear in them; see
`losses.PairwiseMarginLoss.mixed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from longtail import _checks
from longtail._checks import InputError


def plan_cutout(count: int, *, generator: torch.Generator) -> Tensor:
    """Draw the centre of each image's hole, as shares of height and width, shape (count, 2)."""
    return torch.rand(count, 2, generator=generator)


def cutout(pixels: Tensor, centre: Tensor, *, size: int, fill: float = 0.0) -> Tensor:
    """Hide a square of each image (DeVries and Taylor 2017).

    The square has its centre at any pixel, each equally likely, and is cut off at the edge.

    Args:
        pixels: shape (batch, channels, height, width), on any device.
        centre: as from `plan_cutout`.
        size: side of the square in pixels.
        fill: its value; after normalisation 0 is the mean colour.

    Examples:
        >>> cutout(torch.ones(1, 1, 2, 4), torch.tensor([[0.0, 0.5]]), size=1).view(2, 4)
        tensor([[1., 1., 0., 1.],
                [1., 1., 1., 1.]])
    """
    centre = centre.to(pixels.device, non_blocking=True)
    sides = pixels.shape[2:]
    first = [_pixel(centre[:, n], side) - size // 2 for n, side in enumerate(sides)]
    hole = _rectangle(first, [edge + size for edge in first], pixels)
    return pixels.clone().masked_fill_(hole[:, None], fill)


class MixPlan(NamedTuple):
    """Mixing of each image of a batch with its partner, drawn on the CPU."""

    share: Tensor  # of the image itself that should remain, 1 where nothing is mixed in, (count,)
    patch: Tensor  # true for a patch (CutMix), false for a blend (mixup), shape (count,)
    centre: Tensor  # of the patch, as shares of the height and the width, shape (count, 2)


def plan_mixing(
    count: int,
    *,
    cutmix: float = 0.0,
    mixup: float = 0.0,
    mixup_alpha: float = 1.0,
    generator: torch.Generator,
) -> MixPlan:
    """Draw which images are mixed, in which of the two ways, and how much.

        λ ~ uniform on [0, 1] in a patch,   λ ~ Beta(α, α) in a blend

    An image is mixed in one way at most: as a patch with probability `cutmix`, as a blend with
    probability `mixup`, else not at all.

    Args:
        count: of images.
        cutmix: in [0, 1].
        mixup: in [0, 1]; the two add up to at most 1.
        mixup_alpha: α, above 0.
        generator: on the CPU.

    Examples:
        >>> plan = plan_mixing(1000, cutmix=0.5, generator=torch.Generator().manual_seed(0))
        >>> bool(plan.patch.any()), 450 < int((plan.share < 1).sum()) < 550
        (True, True)
    """
    cutmix = _checks.fraction(cutmix, name="cutmix")
    mixup = _checks.fraction(mixup, name="mixup")
    alpha = _checks.positive(mixup_alpha, name="mixup_alpha")
    if cutmix + mixup > 1:
        raise InputError(f"`cutmix` and `mixup` must add up to at most 1; got {cutmix + mixup:g}.")
    chance, share = torch.rand(2, count, generator=generator)
    centre = torch.rand(count, 2, generator=generator)
    patch = chance < cutmix
    if mixup > 0:  # torch's own Beta takes no generator
        seed = int(torch.randint(0, 2**62, (), generator=generator))
        blend = torch.from_numpy(np.random.default_rng(seed).beta(alpha, alpha, count)).float()
        share = torch.where(patch, share, blend)
    share = torch.where(chance < cutmix + mixup, share, torch.ones(()))
    return MixPlan(share, patch, centre)


def draw_partners(
    labels: Any, count: int, *, rule: str = "uniform", generator: torch.Generator
) -> Tensor:
    """Draw the images that come into others.

        uniform    every image of the training set with the same probability
        minority   with probability ∝ 1/n_y, n_y the size of its class: so every class with the
                   same probability, and the images of rare ones far more often (Park et al. 2022)

    Args:
        labels: of the training set, shape (examples,).
        count: how many rows to draw, with replacement.
        rule: see above.
        generator: on the CPU.

    Examples:
        >>> generator = torch.Generator().manual_seed(0)
        >>> rows = draw_partners([0] * 90 + [1] * 10, 1000, rule="minority", generator=generator)
        >>> 400 < int((rows >= 90).sum()) < 600
        True
    """
    _checks.choice(rule, ("uniform", "minority"), name="rule")
    targets = torch.from_numpy(np.array(_checks.labels(labels, name="labels")))
    chance = torch.rand(2, count, generator=generator, dtype=torch.float64)
    if rule == "uniform":
        return _scaled(chance[0], torch.tensor(len(targets)))
    sizes = torch.bincount(targets)
    members = targets.argsort(stable=True)  # class by class
    starts = sizes.cumsum(0) - sizes
    present = sizes.nonzero().squeeze(1)
    chosen = present[_scaled(chance[0], torch.tensor(len(present)))]
    return members[starts[chosen] + _scaled(chance[1], sizes[chosen])]


def _scaled(chance: Tensor, count: Tensor) -> Tensor:
    """Return whole numbers below `count`, from uniform ones on [0, 1)."""
    return torch.minimum((chance * count).floor().long(), count - 1)


def mix(pixels: Tensor, partners: Tensor, plan: MixPlan) -> tuple[Tensor, Tensor]:
    """Mix each image with its partner (CutMix: Yun et al. 2019; mixup: Zhang et al. 2018).

        patch   the partner's pixels in a rectangle of (1 − λ) of the area and the image's
                proportions, around the centre and cut off at the edge
        blend   λ · image + (1 − λ) · partner

    Args:
        pixels: floating point, shape (batch, channels, height, width), on any device.
        partners: the other images, likewise.
        plan: as from `plan_mixing`.

    Returns:
        The mixed images, and λ, the share of the first of the two labels: float32, shape
        (batch,), on their device. For a patch it is the area that remains.

    Examples:
        >>> plan = MixPlan(torch.tensor([0.75]), torch.tensor([True]), torch.tensor([[0.5, 1.0]]))
        >>> mixed, share = mix(torch.zeros(1, 1, 4, 4), torch.ones(1, 1, 4, 4), plan)
        >>> mixed.view(4, 4)
        tensor([[0., 0., 0., 0.],
                [0., 0., 0., 1.],
                [0., 0., 0., 1.],
                [0., 0., 0., 0.]])
        >>> share
        tensor([0.8750])
    """
    share, patch, centre = (part.to(pixels.device, non_blocking=True) for part in plan)
    sides = pixels.shape[2:]
    extents = [((1 - share).sqrt() * side).floor().long() for side in sides]
    first = [_pixel(centre[:, n], sides[n]) - extents[n] // 2 for n in (0, 1)]
    end = [first[n] + extents[n] for n in (0, 1)]
    height, width = (end[n].clamp(max=sides[n]) - first[n].clamp(min=0) for n in (0, 1))
    own = torch.where(patch, 1 - height * width / (sides[0] * sides[1]), share)
    inside = _rectangle(first, end, pixels) | ~patch[:, None, None]
    weight = torch.where(patch, torch.ones_like(share), 1 - share)[:, None, None] * inside
    mixed = torch.lerp(pixels, partners.to(pixels.dtype), weight[:, None].to(pixels.dtype))
    return mixed, own


def _pixel(at: Tensor, side: int) -> Tensor:
    """Return the pixel at a share of a side."""
    return (at * side).floor().long()


def _rectangle(first: Sequence[Tensor], end: Sequence[Tensor], pixels: Tensor) -> Tensor:
    """Return a mask of the rows and columns in between, bool, shape (batch, height, width)."""
    across = []
    for low, high, side in zip(first, end, pixels.shape[2:], strict=True):
        pixel = torch.arange(side, device=pixels.device)
        across.append((pixel >= low[:, None]) & (pixel < high[:, None]))
    return across[0][:, :, None] & across[1][:, None]
