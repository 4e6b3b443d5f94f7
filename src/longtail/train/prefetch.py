"""Batches of images in memory, made for many steps at once on the training device.

    crop and flip, TrivialAugment, normalise, Cutout, then CutMix or mixup with a partner

each where the recipe has it. A partner is an image of the training set that goes through the same
steps with draws of its own and comes in at the end. A `Block` holds the batches of some steps, and
the teachers' answers to them; a `Prefetcher` fills it by the plans of the runs. Runs that see the
same images share them: they are made once, and their teachers are asked once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from longtail import _checks

_checks.require("torch", extra="torch")

import torch
from torch import Tensor

from longtail.data.images import ImageSet
from longtail.train.augment import gather_crop_flip, gather_normalized, normalize
from longtail.train.mixing import cutout, mix
from longtail.train.plan import EpochPlan, ImagePlan, Planner
from longtail.train.recipe import Recipe
from longtail.train.trivial import trivial_augment

_CHUNK_BYTES = 2**27  # of pixels that are made at once, before they become float32
_TEACHER_BATCH = 4096  # images that teachers see at once

# Normalised images (n, channels, h, w) -> logits (n, L); or logits of all examples.
Teachers = Callable[[Tensor], Tensor] | Tensor


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
        self.pixels = torch.from_numpy(images.images).to(device)
        self.labels = torch.from_numpy(images.labels).to(device)
        self.pixel_range = images.pixel_range
        self.image_shape, self.num_classes = images.image_shape, images.num_classes


class Made(NamedTuple):
    """Images made by a plan.

    Attributes:
        pixels: normalised, float32, shape (images, channels, height, width), channels-last.
        labels: shape (images,).
        seconds: the partners' labels, or an image's own where it has none; None without mixing.
        shares: of the first label, float32, likewise.
    """

    pixels: Tensor
    labels: Tensor
    seconds: Tensor | None
    shares: Tensor | None


class ImageMaker:
    """Makes images by plans.

    Args:
        data: the training set on its device.
        recipe: what happens to an image.
    """

    def __init__(self, data: Resident, recipe: Recipe) -> None:
        self.data, self.recipe, self.device = data, recipe, data.pixels.device
        self.mean = torch.tensor(recipe.mean, device=self.device)
        self.std = torch.tensor(recipe.std, device=self.device)
        self.border = torch.tensor(recipe.border, device=self.device)
        # Of 8-bit pixels: a mean colour to the nearest grey level.
        share = recipe.mean if recipe.crop_fill == "mean" else (0.0,) * len(recipe.mean)
        self.grey_border = torch.tensor(
            [round(data.pixel_range * min(max(v, 0.0), 1.0)) for v in share], device=self.device
        )

    def make(self, plan: ImagePlan) -> Made:
        """The images of a plan."""
        pixels = self._each(plan)
        labels = self.data.labels[self._here(plan.rows)]
        if plan.mixed is None or plan.mixing is None or plan.partners is None:
            return Made(pixels, labels, None, None)
        index = self._here(plan.mixed)
        others = self._each(plan.partners)
        mixed, share = mix(pixels.index_select(0, index), others, plan.mixing)
        pixels.index_copy_(0, index, mixed)
        shares = torch.ones(len(pixels), device=self.device).index_copy_(0, index, share)
        theirs = self.data.labels[self._here(plan.partners.rows)]
        return Made(pixels, labels, labels.clone().index_copy_(0, index, theirs), shares)

    def _each(self, plan: ImagePlan) -> Tensor:
        """Images by themselves, before mixing."""
        where = [self._here(part) for part in (plan.rows, plan.dy, plan.dx, plan.flip)]
        padding = self.recipe.crop_padding
        colors: dict[str, Any] = {"mean": self.mean, "std": self.std}
        colors["pixel_range"] = self.data.pixel_range
        if plan.operation is None or plan.strength is None:
            pixels = gather_normalized(
                self.data.pixels, *where, padding=padding, fill=self.border, **colors
            )
        else:
            pixels = gather_crop_flip(
                self.data.pixels, *where, padding=padding, fill=self.grey_border
            )
            pixels = trivial_augment(pixels, plan.operation, plan.strength)
            pixels = normalize(pixels, **colors)
        if plan.hole is not None:
            pixels = cutout(pixels, plan.hole, size=self.recipe.cutout)
        return pixels

    def _here(self, part: Tensor) -> Tensor:
        return part.to(self.device, non_blocking=True)


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


class BlockPart(NamedTuple):
    """Images that are made at once: of some streams, for the positions `at` of the block."""

    maker: ImageMaker
    streams: list[int]
    at: slice
    plan: ImagePlan


class Prefetcher:
    """Makes the blocks of runs that step as one.

    Args:
        planners: one per run.
        data: the training set on the device.
        teachers: see `loop.Training`.

    Attributes:
        stream_of: the number of each run's image stream; runs with the same one see the same
            images.
        leaders: the first run of each stream.
    """

    def __init__(
        self, planners: Sequence[Planner], data: Resident, teachers: Teachers | None
    ) -> None:
        self.data, self.teachers, self.device = data, teachers, data.pixels.device
        streams = {
            stream: n for n, stream in enumerate(dict.fromkeys(p.image_stream for p in planners))
        }
        self.stream_of = [streams[planner.image_stream] for planner in planners]
        self.leaders = [self.stream_of.index(stream) for stream in range(len(streams))]
        # Streams whose images are made in one way are made at once.
        alike: dict[tuple[object, ...], list[int]] = {}
        for stream, leader in enumerate(self.leaders):
            alike.setdefault(planners[leader].recipe.image_values, []).append(stream)
        self.kinds = [
            (ImageMaker(data, planners[self.leaders[some[0]]].recipe), some)
            for some in alike.values()
        ]
        self._mixes = any(p.recipe.cutmix + p.recipe.mixup > 0 for p in planners)

    def allocate(self, positions: int, dtype: torch.dtype) -> Block:
        """A block for so many examples of each run, with images of this type."""
        runs, (channels, height, width) = len(self.stream_of), self.data.image_shape
        here: dict[str, Any] = {"device": self.device}
        targets = torch.zeros(runs, positions, dtype=torch.int64, **here)
        answers = (len(self.leaders), positions, self.data.num_classes)
        return Block(
            torch.zeros(positions, height, width, runs, channels, dtype=dtype, **here),
            targets,
            seconds=torch.zeros_like(targets) if self._mixes else None,
            shares=torch.ones(targets.shape, **here) if self._mixes else None,
            teacher_logits=None if self.teachers is None else torch.zeros(answers, **here),
        )

    def parts_of(self, plans: Sequence[EpochPlan], first: int, end: int) -> list[BlockPart]:
        """What to make for the positions from `first` to `end` of an epoch; the host's share."""
        parts = []
        for maker, streams in self.kinds:
            size = max(1, self.data.pixels[0].numel() * len(streams))
            chunk = max(1, _CHUNK_BYTES // size)
            for low in range(first, end, chunk):
                high = min(low + chunk, end)
                joined = ImagePlan.join([plans[self.leaders[n]].part(low, high) for n in streams])
                parts.append(BlockPart(maker, streams, slice(low - first, high - first), joined))
        return parts

    def fill(self, block: Block, parts: Sequence[BlockPart]) -> None:
        """Make everything that a block holds, from `parts_of`."""
        for maker, streams, at, plan in parts:
            made, count = maker.make(plan), at.stop - at.start
            for n, stream in enumerate(streams):
                own, run = slice(n * count, (n + 1) * count), self.leaders[stream]
                block.inputs[at, :, :, run].copy_(made.pixels[own].permute(0, 2, 3, 1))
                block.targets[run, at].copy_(made.labels[own])
                if block.seconds is not None and block.shares is not None:
                    # A run that mixes nothing, beside one that does, has its own label twice.
                    seconds = made.labels if made.seconds is None else made.seconds
                    block.seconds[run, at].copy_(seconds[own])
                    if made.shares is not None:
                        block.shares[run, at].copy_(made.shares[own])
                if isinstance(self.teachers, Tensor) and block.teacher_logits is not None:
                    rows = plan.rows[own].to(self.device)
                    block.teacher_logits[stream, at].copy_(self.teachers[rows])
        self._share_images(block)
        if callable(self.teachers):
            self._ask_teachers(block, self.teachers, max(part.at.stop for part in parts))

    def _share_images(self, block: Block) -> None:
        """Give runs of one stream what was made for the first of them."""
        images = block.inputs.permute(3, 0, 1, 2, 4)
        for run, stream in enumerate(self.stream_of):
            leader = self.leaders[stream]
            if run != leader:
                for place in (images, block.targets, block.seconds, block.shares):
                    if place is not None:
                        place[run].copy_(place[leader])

    def _ask_teachers(self, block: Block, teachers: Callable[[Tensor], Tensor], count: int) -> None:
        """Fill in the teachers' logits on the first `count` images of each stream."""
        if block.teacher_logits is None:
            return
        for stream, leader in enumerate(self.leaders):
            for first in range(0, count, _TEACHER_BATCH):
                part = slice(first, min(first + _TEACHER_BATCH, count))
                images = block.inputs[part, :, :, leader].float().permute(0, 3, 1, 2)
                with torch.no_grad():
                    logits = teachers(images)
                block.teacher_logits[stream, part].copy_(logits)
