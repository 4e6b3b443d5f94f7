"""Batches of many steps, made at once: images, labels, and the teachers' answers to them.

A `Block` is where the steps of a team look; a `BlockMaker` fills it by the plans of the team's
runs. Runs of one image stream see the same images, which are made once, and their teachers are
asked once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from longtail import _checks

_checks.require("torch", extra="torch", caller=__name__)

import torch
from torch import Tensor

from longtail.train.batches import BatchMaker, ImagePlan, Made, Resident
from longtail.train.plan import EpochPlan, Planner

_TEACHER_BATCH = 4096  # images that teachers see at once

# Normalised images (n, channels, h, w) -> logits (n, L); or logits of all examples.
Teachers = Callable[[Tensor], Tensor] | Tensor


@dataclass
class Block:
    """The batches of some steps, one after the other.

    Attributes:
        inputs: images, shape (positions, height, width, members, channels).
        targets: labels, shape (members, positions).
        seconds: the labels of what was mixed in, likewise; None where nothing is.
        shares: of the first label, likewise.
        teacher_logits: shape (streams, positions, num_classes), where the runs have teachers.
    """

    inputs: Tensor
    targets: Tensor
    seconds: Tensor | None = None
    shares: Tensor | None = None
    teacher_logits: Tensor | None = None

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Those that there are, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if value is not None}

    def clone(self) -> Block:
        """Another one that holds the same."""
        return Block(**{name: value.clone() for name, value in self.tensors.items()})

    def copy_(self, other: Block) -> None:
        """Take over what another one holds."""
        theirs = other.tensors
        for name, value in self.tensors.items():
            value.copy_(theirs[name])


class BlockMaker:
    """Makes the blocks of a team's runs.

    Args:
        planners: one per run.
        data: the training set on the device.
        teachers: as in `Team`.

    Attributes:
        stream_of: for each run the number of its image stream; runs with the same one see the
            same images.
        leaders: for each stream the first run that has it.
        kinds: streams whose images are made in one way, at once.
        makers: one for each kind.
    """

    def __init__(
        self, planners: Sequence[Planner], data: Resident, teachers: Teachers | None
    ) -> None:
        self.data, self.teachers, self.device = data, teachers, data.pixels.device
        streams = {stream: n for n, stream in enumerate(dict.fromkeys(p.stream for p in planners))}
        self.stream_of = [streams[planner.stream] for planner in planners]
        self.leaders = [self.stream_of.index(stream) for stream in range(len(streams))]
        kinds: dict[tuple[object, ...], list[int]] = {}
        for stream, leader in enumerate(self.leaders):
            kinds.setdefault(planners[leader].recipe.image_values, []).append(stream)
        self.kinds = list(kinds.values())
        first_of = [planners[self.leaders[streams[0]]] for streams in self.kinds]
        self.makers = [BatchMaker(data, planner.recipe) for planner in first_of]
        self._mixes = any(p.recipe.cutmix + p.recipe.mixup > 0 for p in planners)

    @property
    def asks_networks(self) -> bool:
        """Whether teachers answer, which takes long, rather than a table of their logits."""
        return callable(self.teachers)

    def allocate(self, positions: int, dtype: torch.dtype) -> Block:
        """A block to fill.

        Args:
            positions: how many examples of each run it holds.
            dtype: of the images.
        """
        members, (channels, height, width) = len(self.stream_of), self.data.image_shape
        here: dict[str, Any] = {"device": self.device}
        targets = torch.zeros(members, positions, dtype=torch.int64, **here)
        answers = (len(self.leaders), positions, self.data.num_classes)
        return Block(
            torch.zeros(positions, height, width, members, channels, dtype=dtype, **here),
            targets,
            seconds=torch.zeros_like(targets) if self._mixes else None,
            shares=torch.ones(targets.shape, **here) if self._mixes else None,
            teacher_logits=None if self.teachers is None else torch.zeros(answers, **here),
        )

    def plans_of(self, plans: Sequence[EpochPlan], first: int, end: int) -> list[ImagePlan]:
        """For each kind what is drawn for the positions from `first` to `end` of an epoch."""
        return [
            ImagePlan.join([plans[self.leaders[n]].take(first, end) for n in streams])
            for streams in self.kinds
        ]

    def fill(self, block: Block, plans: Sequence[ImagePlan]) -> None:
        """Make everything that a block holds.

        Args:
            block: from `allocate`.
            plans: from `plans_of`.
        """
        for streams, maker, plan in zip(self.kinds, self.makers, plans, strict=True):
            self._make(block, streams, maker, plan)
        self._share_images(block)
        for streams, plan in zip(self.kinds, plans, strict=True):
            self._ask_teachers(block, streams, plan)

    def _make(
        self, block: Block, streams: Sequence[int], maker: BatchMaker, plan: ImagePlan
    ) -> None:
        """Make the images of some streams, which follow one another in the plan."""
        count = len(plan.rows) // len(streams)
        for made in maker.make(plan):
            for n, stream in enumerate(streams):
                first, end = (at - made.first for at in (n * count, (n + 1) * count))
                part = slice(max(first, 0), min(end, len(made.pixels)))
                if part.start < part.stop:  # else none of this run's images is among them
                    at = slice(part.start - first, part.stop - first)
                    _store(block, made, part, self.leaders[stream], at)

    def _share_images(self, block: Block) -> None:
        """Give runs that see the same images as another what was made for that one."""
        images = block.inputs.permute(3, 0, 1, 2, 4)
        for member, stream in enumerate(self.stream_of):
            leader = self.leaders[stream]
            if member != leader:
                for place in (images, block.targets, block.seconds, block.shares):
                    if place is not None:
                        place[member].copy_(place[leader])

    def _ask_teachers(self, block: Block, streams: Sequence[int], plan: ImagePlan) -> None:
        """Fill in the teachers' logits on the images, once for each stream."""
        if self.teachers is None or block.teacher_logits is None:
            return
        count = len(plan.rows) // len(streams)
        for n, stream in enumerate(streams):
            leader = self.leaders[stream]
            if isinstance(self.teachers, Tensor):
                rows = plan.rows[n * count : (n + 1) * count].to(self.device)
                block.teacher_logits[stream, :count].copy_(self.teachers[rows])
                continue
            for first in range(0, count, _TEACHER_BATCH):
                part = slice(first, min(first + _TEACHER_BATCH, count))
                images = block.inputs[part, :, :, leader].float().permute(0, 3, 1, 2)
                with torch.no_grad():
                    logits = self.teachers(images)
                block.teacher_logits[stream, part].copy_(logits)


def _store(block: Block, made: Made, part: slice, member: int, at: slice) -> None:
    """Put a part of what was made where a run's step will look for it."""
    block.inputs[at, :, :, member].copy_(made.pixels[part].permute(0, 2, 3, 1))
    block.targets[member, at].copy_(made.labels[part])
    if block.seconds is not None and block.shares is not None:
        # A run that mixes nothing, beside one that does, has its own label twice.
        seconds = made.labels if made.seconds is None else made.seconds
        block.seconds[member, at].copy_(seconds[part])
        if made.shares is not None:
            block.shares[member, at].copy_(made.shares[part])
