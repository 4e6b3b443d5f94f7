"""Batches of images in memory, made for many steps at once on the training device.

    crop and flip, TrivialAugment, normalise, Cutout, then CutMix or mixup with a partner

each where the recipe has it. A partner is an image of the training set that goes through the same
steps with draws of its own and comes in at the end. A `Block` holds the batches of some steps, and
the teachers' answers to them; a `Prefetcher` fills it by the plans of the runs. Runs that see the
same images share them: they are made once, and their teachers are asked once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longtail.data.images import ImageSet
from longtail.train.augment import crop_flip, fill_outside, gather_crops, normalize
from longtail.train.mixing import MixPlan, cutout, mix
from longtail.train.plan import EpochPlan, ImageDraws, Planner, pick
from longtail.train.recipe import Recipe
from longtail.train.trivial import trivial_augment

_CHUNK_BYTES = 2**27  # of pixels that are made at once, before they become float32
_TEACHER_BATCH = 4096  # images that teachers see at once

# Normalised images (n, channels, h, w) -> logits (n, L); or logits of all examples.
Teachers = Callable[[Tensor], Tensor] | Tensor


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


class Made(NamedTuple):
    """Images made by a plan.

    Attributes:
        pixels: normalised, float32, shape (images, channels, height, width), channels-last.
        labels: shape (images,).
        seconds: the partners' labels, or an image's own where it has none.
        shares: of the first label, float32; None without mixing.
    """

    pixels: Tensor
    labels: Tensor
    seconds: Tensor
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

    def make(self, images: ImageDraws, partners: ImageDraws | None, mixing: MixPlan | None) -> Made:
        """The images of a plan, or of a part of it."""
        pixels = self._each(images)
        labels = self.data.labels[self._here(images.rows)]
        if partners is None or mixing is None:
            return Made(pixels, labels, labels, None)
        where = (mixing.share < 1).nonzero().squeeze(1)
        index, partners = self._here(where), pick(partners, where)
        others = self._each(partners)
        mixed, share = mix(pixels.index_select(0, index), others, pick(mixing, where))
        pixels.index_copy_(0, index, mixed)
        shares = torch.ones(len(pixels), device=self.device).index_copy_(0, index, share)
        theirs = self.data.labels[self._here(partners.rows)]
        return Made(pixels, labels, labels.clone().index_copy_(0, index, theirs), shares)

    def _each(self, draws: ImageDraws) -> Tensor:
        """Images by themselves, before mixing."""
        padding, data = self.recipe.crop_padding, self.data
        if data.pixels.is_floating_point():  # embeddings come as they are
            return data.pixels.index_select(0, self._here(draws.rows))
        rows, dy, dx, flip = (self._here(part) for part in draws[:4])
        colors: dict[str, Any] = {"mean": self.mean, "std": self.std}
        colors["pixel_range"] = data.pixel_range
        if draws.operation is None or draws.strength is None:
            # Padding comes after normalisation, so that it may have any colour.
            crops, outside = gather_crops(data.pixels, rows, dy, dx, flip, padding=padding)
            pixels = fill_outside(normalize(crops, **colors), outside, self.border)
        else:
            crops = crop_flip(
                data.pixels, dy, dx, flip, padding=padding, fill=self.grey_border, index=rows
            )
            pixels = normalize(trivial_augment(crops, draws.operation, draws.strength), **colors)
        if draws.hole is not None:
            pixels = cutout(pixels, draws.hole, size=self.recipe.cutout)
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


class Prefetcher:
    """Makes the blocks of runs that step as one.

    Args:
        planners: one per run.
        data: the training set on the device.
        teachers: see `loop.Training`.

    Attributes:
        streams: the runs of each image stream: they see the same images.
    """

    def __init__(
        self, planners: Sequence[Planner], data: Resident, teachers: Teachers | None
    ) -> None:
        self.data, self.teachers, self.runs = data, teachers, len(planners)
        streams: dict[tuple[object, ...], list[int]] = {}
        for run, planner in enumerate(planners):
            streams.setdefault(planner.image_stream, []).append(run)
        self.streams = list(streams.values())
        self.makers = [ImageMaker(data, planners[runs[0]].recipe) for runs in self.streams]
        self._mixes = any(p.recipe.cutmix + p.recipe.mixup > 0 for p in planners)

    def allocate(self, positions: int, dtype: torch.dtype) -> Block:
        """A block for so many examples of each run, with images of this type."""
        here: dict[str, Any] = {"device": self.data.pixels.device}
        channels, height, width = self.data.image_shape
        targets = torch.zeros(self.runs, positions, dtype=torch.int64, **here)
        answers = (len(self.streams), positions, self.data.num_classes)
        return Block(
            torch.zeros(positions, height, width, self.runs, channels, dtype=dtype, **here),
            targets,
            seconds=torch.zeros_like(targets) if self._mixes else None,
            shares=torch.ones(targets.shape, **here) if self._mixes else None,
            teacher_logits=None if self.teachers is None else torch.zeros(answers, **here),
        )

    def fill(self, block: Block, plans: Sequence[EpochPlan], first: int, end: int) -> None:
        """Make everything that a block holds of the positions from `first` to `end` of an epoch."""
        chunk = max(1, _CHUNK_BYTES // self.data.pixels[0].nbytes)
        for runs, maker in zip(self.streams, self.makers, strict=True):
            images, partners, mixing, *_ = plans[runs[0]]
            for low in range(first, end, chunk):
                part = slice(low, min(low + chunk, end))
                at = slice(part.start - first, part.stop - first)
                made = maker.make(
                    pick(images, part),
                    None if partners is None else pick(partners, part),
                    None if mixing is None else pick(mixing, part),
                )
                for run in runs:
                    block.inputs[at, :, :, run].copy_(made.pixels.permute(0, 2, 3, 1))
                    block.targets[run, at].copy_(made.labels)
                    # A run that mixes nothing, beside one that does, has its own label twice.
                    if block.seconds is not None and block.shares is not None:
                        block.seconds[run, at].copy_(made.seconds)
                        if made.shares is not None:
                            block.shares[run, at].copy_(made.shares)
        if self.teachers is None or block.teacher_logits is None:
            return
        for runs, answers in zip(self.streams, block.teacher_logits, strict=True):
            rows = plans[runs[0]].images.rows[first:end]
            self._ask(self.teachers, rows, block.inputs[:, :, :, runs[0]], answers)

    def _ask(self, teachers: Teachers, rows: Tensor, images: Tensor, answers: Tensor) -> None:
        """Fill in the teachers' logits on the images of a stream."""
        if isinstance(teachers, Tensor):
            answers[: len(rows)].copy_(teachers[rows.to(answers.device)])
            return
        for first in range(0, len(rows), _TEACHER_BATCH):
            part = slice(first, min(first + _TEACHER_BATCH, len(rows)))
            with torch.no_grad():
                answers[part].copy_(teachers(images[part].float().permute(0, 3, 1, 2)))
