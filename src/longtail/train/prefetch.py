"""Batches of images in memory, made for many steps at once on the training device.

    crop and flip, TrivialAugment, normalise, Cutout, then CutMix or mixup with a partner

each where the recipe has it. A partner is an image of the training set that goes through the same
steps with draws of its own and comes in at the end. A `Block` holds the batches of some steps, and
the teachers' answers to them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longtail.data.images import ImageSet
from longtail.train.augment import fill_outside, gather_crops, normalize
from longtail.train.mixing import MixPlan, cutout, mix
from longtail.train.plan import ImageDraws, pick
from longtail.train.recipe import Recipe
from longtail.train.trivial import trivial_augment


def as_tensor(images: ImageSet) -> Tensor:
    """The images on the CPU without a copy; those mapped from a file stay there."""
    with warnings.catch_warnings():  # nothing writes into them
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(images.images)


class Resident:
    """A training set on a device, shared by all runs of a cohort.

    Args:
        images: the training set.
        device: where it lives from now on.

    Attributes:
        pixels: as in `images`, shape (examples, channels, height, width).
        labels: shape (examples,).
    """

    def __init__(self, images: ImageSet, device: torch.device) -> None:
        self.pixels = as_tensor(images).to(device)
        self.labels = torch.from_numpy(images.labels).to(device)
        self.pixel_range = images.pixel_range
        self.image_shape, self.num_classes = images.image_shape, images.num_classes


class ImageMaker:
    """Makes images by plans.

    Args:
        data: the training set on its device.
        recipe: what happens to an image.
    """

    def __init__(self, data: Resident, recipe: Recipe) -> None:
        self.data, self.recipe, self.device = data, recipe, data.pixels.device
        self.colors: dict[str, Any] = {"pixel_range": data.pixel_range}
        for name in ("mean", "std"):
            self.colors[name] = torch.tensor(getattr(recipe, name), device=self.device)
        if recipe.crop_padding:
            self.border = torch.tensor(recipe.border, device=self.device)
            # Of 8-bit pixels: a mean colour to the nearest grey level.
            share = recipe.mean if recipe.crop_fill == "mean" else (0.0,) * len(recipe.mean)
            grey = [round(data.pixel_range * min(max(value, 0.0), 1.0)) for value in share]
            self.grey_border = torch.tensor(grey, device=self.device)

    def make(
        self, images: ImageDraws, partners: ImageDraws | None, mixing: MixPlan | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Make the images of a plan, or of a part of it.

        Returns:
            Normalised pixels, float32, shape (images, channels, height, width); labels; the
            partners' labels, or an image's own where it has none; and the shares of the first
            label, None without mixing.
        """
        pixels, labels = self._each(images)
        if partners is None or mixing is None:
            return pixels, labels, labels, None
        where = (mixing.share < 1).nonzero().squeeze(1)
        index = where.to(self.device, non_blocking=True)
        others, theirs = self._each(pick(partners, where))
        mixed, share = mix(pixels.index_select(0, index), others, pick(mixing, where))
        pixels.index_copy_(0, index, mixed)
        shares = torch.ones(len(pixels), device=self.device).index_copy_(0, index, share)
        return pixels, labels, labels.clone().index_copy_(0, index, theirs), shares

    def _each(self, draws: ImageDraws) -> tuple[Tensor, Tensor]:
        """Images by themselves, before mixing, and their labels."""
        drawn = [part.to(self.device, non_blocking=True) for part in draws[:4] if part is not None]
        rows, outside = drawn[0], None
        labels = self.data.labels[rows]
        if len(drawn) == 1:
            crops = self.data.pixels.index_select(0, rows)
        else:
            padding = self.recipe.crop_padding
            crops, outside = gather_crops(self.data.pixels, *drawn, padding=padding)
        if crops.is_floating_point():  # embeddings come as they are
            return crops, labels
        if draws.operation is not None and draws.strength is not None:
            if outside is not None:
                crops, outside = fill_outside(crops, outside, self.grey_border), None
            crops = trivial_augment(crops, draws.operation, draws.strength)
        pixels = normalize(crops, **self.colors)
        if outside is not None:  # after normalisation, so that the padding may have any colour
            pixels = fill_outside(pixels, outside, self.border)
        if draws.hole is not None:
            pixels = cutout(pixels, draws.hole, size=self.recipe.cutout)
        return pixels, labels


@dataclass
class Block:
    """The batches of some steps, one after the other.

    Attributes:
        inputs: images, shape (positions, height, width, runs, channels).
        targets: labels, shape (runs, positions).
        seconds: the labels of what was mixed in, likewise; None where nothing is.
        shares: of the first label, likewise.
        teacher_logits: shape (image streams, positions, num_classes), where runs have teachers.
    """

    inputs: Tensor
    targets: Tensor
    seconds: Tensor | None = None
    shares: Tensor | None = None
    teacher_logits: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Those that there are, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def clone(self) -> Block:
        """Another one that holds the same."""
        return Block(**{name: value.clone() for name, value in self.tensors().items()})

    def copy_(self, other: Block) -> None:
        """Take over what another one holds."""
        theirs = other.tensors()
        for name, value in self.tensors().items():
            value.copy_(theirs[name])
