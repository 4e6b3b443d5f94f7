"""Batches of images in memory, made for many steps at once on the training device.

    crop and flip, TrivialAugment, normalise, Cutout, then CutMix or mixup with a partner

each where the recipe has it. A partner is an image of the training set that goes through the same
steps with draws of its own and comes in at the end.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from longtail.data.embeddings import read_ahead
from longtail.data.images import ImageSet
from longtail.train.augment import fill_outside, gather_crops, normalize
from longtail.train.mixing import MixPlan, cutout, mix
from longtail.train.plan import ImageDraws
from longtail.train.recipe import Recipe
from longtail.train.trivial import trivial_augment


def as_tensor(images: ImageSet) -> Tensor:
    """Return the images on the CPU without a copy; those mapped from a file stay there."""
    with warnings.catch_warnings():  # nothing writes into them
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(images.images)


class Resident:
    """A training set on a device, shared by all runs of a cohort.

    Attributes:
        pixels: as in `images`, shape (examples, channels, height, width).
        labels: shape (examples,).
        announce: for features in a mapped file: called with the rows that come next.
    """

    def __init__(self, images: ImageSet, device: torch.device) -> None:
        self.pixels = as_tensor(images).to(device)
        mapped = device.type == "cpu" and isinstance(images.images, np.memmap)
        self.announce = read_ahead(images.images) if mapped else None
        self.labels = torch.from_numpy(images.labels).to(device)
        self.pixel_range = images.pixel_range
        self.image_shape, self.num_classes = images.image_shape, images.num_classes


class ImageMaker:
    """Makes images of a training set by plans, as a recipe says."""

    def __init__(self, data: Resident, recipe: Recipe) -> None:
        self.data, self.recipe, self.device = data, recipe, data.pixels.device
        width = max(len(recipe.mean), len(recipe.std))
        mean, std = (v * width if len(v) == 1 else v for v in (recipe.mean, recipe.std))
        # What pads a crop: a colour of 8-bit pixels, and one after normalisation.
        if recipe.crop_fill == "mean":
            grey = [round(data.pixel_range * min(max(value, 0.0), 1.0)) for value in mean]
            border = [0.0] * width
        else:
            grey, border = [0] * width, [-m / s for m, s in zip(mean, std, strict=True)]
        self.mean, self.std, self.border, self.grey = (
            torch.tensor(values, device=self.device) for values in (mean, std, border, grey)
        )

    def mixed(
        self, draws: ImageDraws, partners: ImageDraws, mixing: MixPlan, part: slice
    ) -> tuple[Tensor, ...]:
        """Make some images, with their partners mixed in.

        Returns:
            What `make` returns, then the partners' labels, or an image's own where it has none, and
            the shares of the first label.
        """
        pixels, labels = self.make(draws, part)
        where = (mixing.share[part] < 1).nonzero().squeeze(1)
        index = where.to(self.device, non_blocking=True)
        others, theirs = self.make(partners, part.start + where)
        how = MixPlan._make(values[part.start + where] for values in mixing)
        mixed, share = mix(pixels.index_select(0, index), others, how)
        pixels.index_copy_(0, index, mixed)
        shares = torch.ones(len(pixels), device=self.device).index_copy_(0, index, share)
        return pixels, labels, labels.clone().index_copy_(0, index, theirs), shares

    def make(self, draws: ImageDraws, part: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Make some images by themselves, at these places of an epoch.

        Returns:
            Normalised pixels, float32, shape (images, channels, height, width), and labels.
        """
        draws = ImageDraws._make(None if values is None else values[part] for values in draws)
        rows, *places = (
            values.to(self.device, non_blocking=True) for values in draws[:4] if values is not None
        )
        labels, outside = self.data.labels[rows], None
        if places:
            padding = self.recipe.crop_padding
            crops, outside = gather_crops(self.data.pixels, rows, *places, padding=padding)
        else:
            crops = self.data.pixels.index_select(0, rows)
        if crops.is_floating_point():  # embeddings come as they are
            return crops, labels
        if draws.operation is not None and draws.strength is not None:
            if outside is not None:
                crops, outside = fill_outside(crops, outside, self.grey), None
            crops = trivial_augment(crops, draws.operation, draws.strength)
        pixels = normalize(crops, mean=self.mean, std=self.std, pixel_range=self.data.pixel_range)
        if outside is not None:  # after normalisation, so that the padding may have any colour
            pixels = fill_outside(pixels, outside, self.border)
        if draws.hole is not None:
            pixels = cutout(pixels, draws.hole, size=self.recipe.cutout)
        return pixels, labels
