"""The images of a batch: what is drawn for them beforehand, and how they are made of that.

    crop and flip, TrivialAugment, normalise, Cutout, then CutMix or mixup with a partner

each where the recipe has it. A partner is an image of the training set that goes through the same
steps with draws of its own, and comes in at the end. What is drawn is an `ImagePlan`, on the CPU;
`BatchMaker` makes many images of several runs at once, in as few kernels as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

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
        mixing: how it is mixed with its partner, or None without.
        partners: the partners, one for each position, or None without.
    """

    rows: Tensor
    dy: Tensor
    dx: Tensor
    flip: Tensor
    operation: Tensor | None = None
    strength: Tensor | None = None
    hole: Tensor | None = None
    mixing: MixPlan | None = None
    partners: ImagePlan | None = None

    def take(self, index: Tensor | slice) -> ImagePlan:
        """The plan of some of the positions."""
        return ImagePlan(
            rows=self.rows[index],
            dy=self.dy[index],
            dx=self.dx[index],
            flip=self.flip[index],
            operation=None if self.operation is None else self.operation[index],
            strength=None if self.strength is None else self.strength[index],
            hole=None if self.hole is None else self.hole[index],
            mixing=None if self.mixing is None else self.mixing.take(index),
            partners=None if self.partners is None else self.partners.take(index),
        )

    @staticmethod
    def join(plans: Sequence[ImagePlan]) -> ImagePlan:
        """Plans of one recipe, one after the other."""
        if len(plans) == 1:
            return plans[0]
        joined: dict[str, Any] = {}
        for name in (field.name for field in fields(ImagePlan)):
            parts = [getattr(plan, name) for plan in plans]
            if isinstance(parts[0], Tensor):
                joined[name] = torch.cat(parts)
            elif isinstance(parts[0], MixPlan):
                joined[name] = MixPlan(*(torch.cat(part) for part in zip(*parts, strict=True)))
            elif isinstance(parts[0], ImagePlan):
                joined[name] = ImagePlan.join(parts)
        return ImagePlan(**joined)


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
    partners = _plan_views(recipe, kept[others], draw, "partners' ")
    return ImagePlan(**{**vars(own), "mixing": mixing, "partners": partners})


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
            part = plan.take(slice(first, first + self.chunk))
            pixels = self._views(part)
            labels = self.data.labels[part.rows.to(self.device, non_blocking=True)]
            seconds, shares = None, None
            if part.mixing is not None and part.partners is not None:
                seconds, shares = self._mix(pixels, labels, part.mixing, part.partners)
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

    def _mix(
        self, pixels: Tensor, labels: Tensor, mixing: MixPlan, partners: ImagePlan
    ) -> tuple[Tensor, Tensor]:
        """Mix, in place, the images that have partners; the second labels and the shares."""
        shares, seconds = torch.ones(len(pixels)), labels.clone()
        at = (mixing.share < 1).nonzero().squeeze(1)
        if len(at):
            index = at.to(self.device, non_blocking=True)
            some = partners.take(at)
            mixed, share = mix(pixels.index_select(0, index), self._views(some), mixing.take(at))
            pixels.index_copy_(0, index, mixed)
            seconds[index] = self.data.labels[some.rows.to(self.device, non_blocking=True)]
            shares[at] = share
        return seconds, shares.to(self.device, non_blocking=True)
