"""The images of a batch: what is drawn for them beforehand, and how they are made of that.

    crop and flip, TrivialAugment, normalise, Cutout, then CutMix or mixup with a partner

each where the recipe has it. A partner is an image of the training set that goes through the same
steps with draws of its own, and comes in at the end. What is drawn is an `ImagePlan`, on the CPU;
`BatchMaker` makes many images of several runs at once, in as few kernels as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any, NamedTuple

from longtail import _checks

_checks.require("torch", extra="torch", caller=__name__)

import torch
from torch import Tensor

from longtail._checks import InputError, IntArray
from longtail.data.images import ImageSet
from longtail.train.augment import gather_crop_flip, gather_normalized, normalize, plan_crop_flip
from longtail.train.mixing import (
    MixPlan,
    check_cutout,
    cutout,
    draw_partners,
    mix,
    plan_cutout,
    plan_mixing,
)
from longtail.train.recipe import Recipe
from longtail.train.trivial import plan_trivial_augment, trivial_augment

_CHUNK_BYTES = 2**27  # of pixels that are made at once, before they become float32


class Resident:
    """A training set on a device, shared by all runs of a cohort.

    Args:
        images: the training set.
        device: where it lives from now on.

    Attributes:
        pixels: uint8, shape (examples, channels, height, width).
        labels: shape (examples,).
    """

    def __init__(self, images: ImageSet, device: torch.device) -> None:
        self.pixels = torch.from_numpy(images.images).to(device)
        self.labels = torch.from_numpy(images.labels).to(device)
        self.pixel_range = images.pixel_range
        self.image_shape, self.num_classes = images.image_shape, images.num_classes


@dataclass(frozen=True, kw_only=True)
class ImagePlan:
    """What is drawn for a row of images, as tensors on the CPU.

    Attributes:
        rows: which example of the training set stands at each position, shape (positions,).
        dy: how far down its crop begins, shape (positions,).
        dx: how far right, shape (positions,).
        flip: whether it is mirrored, shape (positions,).
        operation: of TrivialAugment, shape (positions,), or None without.
        strength: of the operation, likewise.
        hole: the centre of Cutout's square, shape (positions, 2), or None without.
        mixed: the positions of the images that have a partner, ascending; None without mixing.
        mixing: how each of those is mixed, or None.
        partners: what is mixed in, one for each of those, or None.
    """

    rows: Tensor
    dy: Tensor
    dx: Tensor
    flip: Tensor
    operation: Tensor | None = None
    strength: Tensor | None = None
    hole: Tensor | None = None
    mixed: Tensor | None = None
    mixing: MixPlan | None = None
    partners: ImagePlan | None = None

    def take(self, first: int, end: int) -> ImagePlan:
        """The plan of the positions from `first` to `end`, without copying."""
        here, found = slice(first, end), dict[str, Any]()
        for name in _OF_IMAGES:
            value = getattr(self, name)
            found[name] = None if value is None else value[here]
        if self.mixed is None or self.mixing is None or self.partners is None:
            return ImagePlan(**found)
        low, high = torch.searchsorted(self.mixed, torch.tensor([first, end])).tolist()
        return ImagePlan(
            **found,
            mixed=self.mixed[low:high] - first,
            mixing=self.mixing.take(slice(low, high)),
            partners=self.partners.take(low, high),
        )

    @staticmethod
    def join(plans: Sequence[ImagePlan]) -> ImagePlan:
        """Plans of one recipe, one after the other."""
        if len(plans) == 1:
            return plans[0]
        joined: dict[str, Any] = {}
        for name in (field.name for field in fields(ImagePlan)):
            parts = [getattr(plan, name) for plan in plans]
            if name == "mixed" and parts[0] is not None:
                starts = accumulate((len(plan.rows) for plan in plans[:-1]), initial=0)
                parts = [part + start for part, start in zip(parts, starts, strict=True)]
            if isinstance(parts[0], Tensor):
                joined[name] = torch.cat(parts)
            elif isinstance(parts[0], MixPlan):
                joined[name] = MixPlan(*(torch.cat(part) for part in zip(*parts, strict=True)))
            elif isinstance(parts[0], ImagePlan):
                joined[name] = ImagePlan.join(parts)
        return ImagePlan(**joined)


_OF_IMAGES = ("rows", "dy", "dx", "flip", "operation", "strength", "hole")


def plan_images(
    recipe: Recipe,
    rows: Tensor,
    *,
    kept: Tensor,
    labels: IntArray,
    draw: Callable[[str], torch.Generator],
) -> ImagePlan:
    """Draw everything about the images of an epoch, each purpose from random numbers of its own.

    So an ingredient that is added or left out changes nothing about the others.

    Args:
        recipe: which ingredients there are.
        rows: the examples in their order, shape (positions,).
        kept: the examples that partners are drawn from, shape (kept,).
        labels: of those.
        draw: gives the random numbers of a purpose.
    """
    own = _plan_views(recipe, rows, draw, "")
    if recipe.cutmix + recipe.mixup == 0:
        return own
    others = draw_partners(labels, len(rows), rule=recipe.mix_partner, generator=draw("partners"))
    mixing = plan_mixing(
        len(rows),
        cutmix=recipe.cutmix,
        mixup=recipe.mixup,
        mixup_alpha=recipe.mixup_alpha,
        generator=draw("mixing"),
    )
    mixed = (mixing.share < 1).nonzero().squeeze(1)
    partners = _plan_views(recipe, kept[others], draw, "partners' ")
    some: dict[str, Any] = {
        name: None if value is None else value[mixed]
        for name, value in vars(partners).items()
        if name in _OF_IMAGES
    }
    whole = {name: getattr(own, name) for name in _OF_IMAGES}
    return ImagePlan(**whole, mixed=mixed, mixing=mixing.take(mixed), partners=ImagePlan(**some))


def _plan_views(
    recipe: Recipe, rows: Tensor, draw: Callable[[str], torch.Generator], whose: str
) -> ImagePlan:
    """Everything that happens to an image by itself."""
    count = len(rows)
    dy, dx, flip = plan_crop_flip(
        count, padding=recipe.crop_padding, flip=recipe.flip, generator=draw(whose + "crop")
    )
    operation, strength, hole = None, None, None
    if recipe.trivial_augment:
        generator = draw(whose + "trivial-augment")
        operation, strength = plan_trivial_augment(count, generator=generator)
    if recipe.cutout:
        hole = plan_cutout(count, generator=draw(whose + "cutout"))
    return ImagePlan(
        rows=rows, dy=dy, dx=dx, flip=flip, operation=operation, strength=strength, hole=hole
    )


def refuse_images(recipe: Recipe, data: ImageSet | Resident) -> None:
    """Refuse images that an ingredient of the recipe can't take.

    Args:
        recipe: with its ingredients.
        data: the training set.
    """
    caller, (channels, height, width) = f"recipe {recipe.name!r}", data.image_shape
    if recipe.cutout:
        check_cutout(recipe.cutout, height, width, caller=caller)
    if recipe.trivial_augment and (data.pixel_range != 255 or channels not in (1, 3)):
        raise InputError(
            f"{caller}: `trivial_augment` is for pixels of 0 .. 255 in 1 or 3 channels, but these "
            f"images have 0 .. {data.pixel_range} in {channels}; set trivial_augment=false."
        )


class Made(NamedTuple):
    """Some of the images of a plan.

    Attributes:
        first: the position of the first of them.
        pixels: normalised, float32, shape (images, channels, height, width), channels-last.
        labels: shape (images,).
        seconds: the partners' labels, where there are any; an image's own where it has no
            partner.
        shares: of the first label, float32, shape (images,), where there are partners.
    """

    first: int
    pixels: Tensor
    labels: Tensor
    seconds: Tensor | None
    shares: Tensor | None


class BatchMaker:
    """Makes images by plans.

    Args:
        data: the training set on its device.
        recipe: what happens to an image.
    """

    def __init__(self, data: Resident, recipe: Recipe) -> None:
        refuse_images(recipe, data)
        self.data, self.recipe, self.device = data, recipe, data.pixels.device
        colours = {"mean": recipe.mean, "std": recipe.std}
        self.colours = {k: torch.tensor(v, device=self.device) for k, v in colours.items()}
        self.border = torch.tensor(recipe.border, device=self.device)
        # Of 8-bit pixels: a mean colour to the nearest grey level.
        share = recipe.mean if recipe.crop_fill == "mean" else (0.0,) * len(recipe.mean)
        self.grey_border = torch.tensor(
            [round(data.pixel_range * min(max(v, 0.0), 1.0)) for v in share], device=self.device
        )
        self.chunk = max(1, _CHUNK_BYTES // max(1, data.pixels[0].numel()))

    def make(self, plan: ImagePlan) -> Iterator[Made]:
        """The images of a plan, some at a time, so that memory holds little more than they need."""
        for first in range(0, len(plan.rows), self.chunk):
            part = plan.take(first, min(first + self.chunk, len(plan.rows)))
            pixels = self._views(part)
            labels = self.data.labels[part.rows.to(self.device, non_blocking=True)]
            seconds, shares = None, None
            if part.mixed is not None and part.mixing is not None and part.partners is not None:
                index = part.mixed.to(self.device, non_blocking=True)
                others = self._views(part.partners)
                mixed, share = mix(pixels.index_select(0, index), others, part.mixing)
                pixels.index_copy_(0, index, mixed)
                shares = torch.ones(len(pixels), device=self.device).index_copy_(0, index, share)
                theirs = part.partners.rows.to(self.device, non_blocking=True)
                seconds = labels.clone().index_copy_(0, index, self.data.labels[theirs])
            yield Made(first, pixels, labels, seconds, shares)

    def _views(self, plan: ImagePlan) -> Tensor:
        """Images by themselves, as the network takes them."""
        rows, dy, dx, flip = (
            part.to(self.device, non_blocking=True)
            for part in (plan.rows, plan.dy, plan.dx, plan.flip)
        )
        where, padding = (self.data.pixels, rows, dy, dx, flip), self.recipe.crop_padding
        how = {"pixel_range": self.data.pixel_range, **self.colours}
        if plan.operation is None or plan.strength is None:
            pixels = gather_normalized(*where, padding=padding, fill=self.border, **how)  # type: ignore[arg-type]
        else:
            pixels = gather_crop_flip(*where, padding=padding, fill=self.grey_border)
            pixels = trivial_augment(pixels, plan.operation, plan.strength)
            pixels = normalize(pixels, **how)  # type: ignore[arg-type]
        if plan.hole is not None:
            pixels = cutout(pixels, plan.hole, size=self.recipe.cutout)
        return pixels
