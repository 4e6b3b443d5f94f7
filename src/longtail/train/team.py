"""Runs that step as one: their networks side by side, one optimiser, and the step itself.

A team of one is a single run. In a larger one, which only GPUs have, the networks are stacked
(see `models.stacked`); members differ in method, seed, images and batches, and share the rest of
their recipes (`Recipe.team_values`). Nothing of one reaches another.

The step looks up everything that changes in tensors that stay where they are: which examples,
which learning rate. So the same function runs eagerly on a CPU and is captured once as a CUDA
graph, see `lane`; and it reads top to bottom.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from longtail import _checks

_checks.require("torch", extra="torch", caller=__name__)

import torch
from torch import Tensor, nn

from longtail import models
from longtail._checks import InputError
from longtail.data.images import ImageSet
from longtail.data.lists import ListedImages
from longtail.losses import EqualizedThresholdLoss
from longtail.losses.stacked import StackedLoss
from longtail.models.stacked import part_of, stack
from longtail.runs.ensemble import logit_scale
from longtail.train.averaging import WeightAverage
from longtail.train.batches import ImagePlan
from longtail.train.batches import Resident as Resident  # what a team trains on
from longtail.train.blocks import Block, BlockMaker, Teachers
from longtail.train.decay import OwnDecay
from longtail.train.distillation import distillation_loss
from longtail.train.optimizers import make_optimizer
from longtail.train.plan import EpochPlan, Planner, stream_seed
from longtail.train.recipe import Recipe
from longtail.train.sam import Perturbation, frozen_statistics

# Batches are made a block of steps at a time: a whole epoch of CIFAR at once, a part of it where
# images are many or large.
_BLOCK_BYTES = 2**28


def image_shape_of(
    recipe: Recipe, data: ImageSet | Resident | ListedImages
) -> tuple[int, int, int]:
    """(channels, height, width) as a network sees images; the recipe decides for files on disk."""
    if isinstance(data, ListedImages):
        return 3, recipe.image_size, recipe.image_size
    return data.image_shape


def new_network(
    recipe: Recipe, data: ImageSet | Resident | ListedImages, *, seed: int
) -> nn.Module:
    """A run's network as it starts; made on the CPU, so that it starts alike everywhere."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "weights"))
        return models.build(
            recipe.model,
            num_classes=data.num_classes,
            image_shape=image_shape_of(recipe, data),
            head=recipe.head,
            head_scale=recipe.head_scale,
        )


class Batch(NamedTuple):
    """What a step learns from: the next examples of every run.

    Attributes:
        images: shape (size, members · channels, height, width), channels-last.
        targets: shape (members, size).
        seconds: the labels of what was mixed in, likewise; None where nothing is.
        shares: of the first label, likewise.
        dropped: for each member what its loss has drawn, None for most losses.
        teacher_logits: shape (members or 1, size, num_classes), where the runs have teachers.
    """

    images: Tensor
    targets: Tensor
    seconds: Tensor | None
    shares: Tensor | None
    dropped: list[Tensor | None]
    teacher_logits: Tensor | None


class Team:
    """Runs that step as one.

    Args:
        planners: one per run, with equal batch sizes and recipes with equal `team_values`.
        data: the training set on the device.
        precision: ``float32`` or ``bfloat16``, of the networks' features.
        device: where they train.
        teachers: for distillation: gives the logits, float32 on the device, of the images that
            the runs see, which come augmented, mixed and normalised as the recipe says, float32
            of shape (n, channels, height, width). Called when a block is made, not in the step.
            Or a table of saved logits there, one row for each example of the training set.

    Attributes:
        recipe: the first run's, for what all have in common.
        model: the networks, stacked where there are several.
        batch_sizes: how many examples of each run a step of an epoch takes.
        block: how many steps `prepare` makes the batches of.
        blocks: makes them.
        now: the batches of the block that steps look in.
        ahead: another block, which is made while steps look in the first one; None for none.
        skipped: images of the last epoch that were left out since they can't be read.
    """

    skipped = 0

    def __init__(
        self,
        planners: Sequence[Planner],
        data: Any,
        *,
        precision: str = "float32",
        device: torch.device | str = "cpu",
        teachers: Teachers | None = None,
    ) -> None:
        self.planners, self.data, self.teachers = list(planners), data, teachers
        self.recipe, self.batch_sizes = planners[0].recipe, planners[0].batch_sizes
        self.device, self.precision = torch.device(device), precision
        self._check_teachers()
        networks = [new_network(self.recipe, data, seed=p.seed) for p in planners]
        self.model = self._on_device(stack(networks))
        self.criteria = [p.method.criterion(p.prior).to(self.device) for p in planners]
        self.generators = [torch.Generator(self.device) for _ in planners]
        for criterion, generator in zip(self.criteria, self.generators, strict=True):
            if hasattr(criterion, "generator"):  # a loss that draws: from its run's own numbers
                criterion.generator = generator  # type: ignore[assignment]
        self.optimizer = make_optimizer(self.model, self.recipe, self.device)
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        decays = [planner.recipe.weight_decay for planner in planners]
        self.own_decay = OwnDecay(self.optimizer, decays) if len(set(decays)) > 1 else None
        self._planned: tuple[int, list[EpochPlan], list[list[ImagePlan]]] = (-1, [], [])
        self.ahead: Block | None = None
        self._ahead_of = -1  # the epoch whose first block that is
        self._make_state()
        self._allocate()
        recipe, self.sam, self.average = self.recipe, None, None
        if recipe.sam_rho > 0:
            rho = [planner.recipe.sam_rho for planner in planners]
            self.sam = Perturbation(self.parameters, rho=rho, parts=len(self))
        if recipe.ema_decay > 0:
            self.average = WeightAverage(self.model, decay=recipe.ema_decay)

    def __len__(self) -> int:
        return len(self.planners)

    def _on_device(self, model: nn.Module) -> nn.Module:
        return model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def _check_teachers(self) -> None:
        """Refuse a recipe that distils without teachers, and teachers that nobody listens to."""
        recipe = self.recipe
        if (recipe.distill_weight > 0) != (self.teachers is not None):
            raise InputError(
                f"recipe {recipe.name!r}: `distill_weight` is {recipe.distill_weight:g}, but there "
                f"are {'no ' * (self.teachers is None)}teachers; give both or neither."
            )

    def _make_state(self) -> None:
        """Have the optimiser make its state now, at zero, where checkpoints and graphs find it."""
        before = [parameter.detach().clone() for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        with torch.no_grad():
            for parameter, start in zip(self.parameters, before, strict=True):
                parameter.copy_(start)
                parameter.grad = None
            for state in self.optimizer.state.values():
                for value in state.values():
                    if isinstance(value, Tensor):
                        value.zero_()

    def _allocate(self) -> None:
        """Make the tensors a step looks things up in; `load` and `prepare` fill them."""
        sizes = self.batch_sizes
        channels, height, width = self.data.image_shape
        dtype = torch.bfloat16 if self.precision == "bfloat16" else torch.float32
        of_a_step = sizes[0] * channels * height * width * dtype.itemsize
        self.block = min(len(sizes), max(1, _BLOCK_BYTES // of_a_step))
        self.blocks = BlockMaker(self.planners, self.data, self.teachers)
        self.now = self.blocks.allocate(sum(sizes[: self.block]), dtype)
        self.of_labels = StackedLoss(self.criteria)
        if self.teachers is not None:
            self._allocate_listening()
        self.rates = torch.zeros(len(sizes), device=self.device)
        self.offsets = torch.arange(sizes[0], device=self.device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.number = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.totals = torch.zeros(len(self), dtype=torch.float64, device=self.device)

    def _allocate_listening(self) -> None:
        """How each run learns from the teachers; one number where all do alike."""
        recipes = [planner.recipe for planner in self.planners]
        self.distill_weight = self._of_members([one.distill_weight for one in recipes])
        self.distill_temperature = self._of_logits([one.distill_temperature for one in recipes])
        # The teachers' come multiplied by the scales of their losses, so the runs' must be, too.
        self.logit_scale = self._of_logits([logit_scale(p.method.part) for p in self.planners])
        self.log_priors: Tensor | None = None
        if any(one.distill_adjusted for one in recipes):
            added = [
                p.prior.log_probs if p.recipe.distill_adjusted else np.zeros(p.prior.num_classes)
                for p in self.planners
            ]
            self.log_priors = torch.from_numpy(np.stack(added)).float().to(self.device)[:, None]

    def _of_members(self, values: Sequence[float]) -> float | Tensor:
        """What all members have, or a tensor of shape (members,) where they differ."""
        return values[0] if len(set(values)) == 1 else torch.tensor(values, device=self.device)

    def _of_logits(self, values: Sequence[float]) -> float | Tensor:
        """The same for logits of shape (members, size, num_classes)."""
        found = self._of_members(values)
        return found[:, None, None] if isinstance(found, Tensor) else found

    def load(self, epoch: int) -> None:
        """Get ready for an epoch, counted from 0."""
        self.look_ahead(epoch)
        self._epoch, self.plans, self.image_plans = self._planned
        self.rates.copy_(self.plans[0].rates)
        parts = zip(self.planners, self.plans, self.criteria, self.generators, strict=True)
        for planner, plan, criterion, generator in parts:
            if criterion.weight is not None:
                criterion.weight.copy_(plan.weights)
            generator.manual_seed(stream_seed(planner.seed, "loss", epoch))
        self.number.zero_()
        self.totals.zero_()
        self.model.train()

    def look_ahead(self, epoch: int) -> None:
        """Make an epoch's plans, if they are not made yet; the host's part of getting ready."""
        if self._planned[0] == epoch:
            return
        plans = [planner.plan(epoch) for planner in self.planners]
        positions = [0, *accumulate(self.batch_sizes)]
        ends = [positions[n] for n in range(0, len(self.batch_sizes), self.block)]
        blocks = [
            self.blocks.plans_of(plans, first, end)
            for first, end in pairwise([*ends, positions[-1]])
        ]
        self._planned = epoch, plans, blocks

    def prepare(self, number: int) -> None:
        """Before step `number`, where a block of steps begins: have all its batches at hand."""
        if number == 0 and self.ahead is not None and self._ahead_of == self._epoch:
            self.now.copy_(self.ahead)
        else:
            self.blocks.fill(self.now, self.image_plans[number // self.block])
        self.cursor.zero_()

    def make_room_ahead(self) -> Block:
        """Have a second block, for `make_ahead`."""
        self.ahead = self.now.clone()
        return self.ahead

    def make_ahead(self, epoch: int) -> None:
        """Make the first block of an epoch to come, where `prepare` will find it."""
        if self.ahead is None:
            raise RuntimeError("make_ahead: there is no room; call make_room_ahead first.")
        self.look_ahead(epoch)
        self._ahead_of = -1  # as long as it is half made
        self.blocks.fill(self.ahead, self._planned[2][0])
        self._ahead_of = epoch

    def step(self, size: int) -> None:
        """One step of every run on its next `size` examples of the block."""
        batch = self._batch(size)
        self.optimizer.zero_grad(set_to_none=True)
        losses = self._losses(batch)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        if self.sam is not None:
            self._look_around(self.sam, batch)
        if self.own_decay is not None:
            self.own_decay.add()
        self._set_rate(self.rates.index_select(0, self.number))
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        self.totals += losses.detach().double() * size
        self.cursor += size
        self.number += 1

    def _look_around(self, sam: Perturbation, batch: Batch) -> None:
        """Replace the gradients by those at each run's own w + e, on the same batch."""
        sam.go()
        self.optimizer.zero_grad(set_to_none=True)
        with frozen_statistics(self.model):
            self._losses(batch).sum().backward()  # type: ignore[no-untyped-call]
        sam.back()

    def _batch(self, size: int) -> Batch:
        at, now = self.cursor + self.offsets[:size], self.now
        teacher_logits = now.teacher_logits
        if teacher_logits is not None:
            teacher_logits = teacher_logits.index_select(1, at)
            if len(self.blocks.leaders) not in (1, len(self)):
                teacher_logits = torch.stack([teacher_logits[n] for n in self.blocks.stream_of])
        like = torch.empty(size, self.data.num_classes, device=self.device)
        return Batch(
            images=now.inputs.index_select(0, at).flatten(3).permute(0, 3, 1, 2),  # channels_last
            targets=now.targets.index_select(1, at),
            seconds=None if now.seconds is None else now.seconds.index_select(1, at),
            shares=None if now.shares is None else now.shares.index_select(1, at),
            dropped=[
                loss.draw(like) if isinstance(loss, EqualizedThresholdLoss) else None
                for loss in self.criteria
            ],
            teacher_logits=teacher_logits,
        )

    def _losses(self, batch: Batch) -> Tensor:
        """The loss of each run, shape (members,)."""
        with self._autocast():
            features = self.model.features(batch.images)  # type: ignore[operator]
        logits = self.model.fc(features.float())  # type: ignore[operator]
        logits = logits.view(len(self), len(batch.images), -1)
        if batch.teacher_logits is None:
            return self._of_labels(logits, batch)
        divergence = distillation_loss(
            self.logit_scale * logits,
            batch.teacher_logits,
            temperature=self.distill_temperature,
            log_prior=self.log_priors,
            reduction="none",
        ).mean(1)
        weight = self.distill_weight
        if isinstance(weight, float) and weight == 1:
            return divergence
        return (1.0 - weight) * self._of_labels(logits, batch) + weight * divergence

    def _of_labels(self, logits: Tensor, batch: Batch) -> Tensor:
        """What the runs' own losses say of the labels, shape (members,)."""
        return self.of_labels(
            logits,
            batch.targets,
            second=batch.seconds,
            share=batch.shares,
            dropped=batch.dropped,
        )

    def _set_rate(self, rate: Tensor) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].copy_(rate[0])
            else:
                group["lr"] = float(rate)

    def _autocast(self) -> AbstractContextManager[object]:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def mean_losses(self) -> list[float]:
        """The mean loss of each run's examples since `load`."""
        return [total / sum(self.batch_sizes) for total in self.totals.tolist()]

    def state(self, member: int) -> dict[str, Tensor]:
        """Everything of a run that training changes, by name, where it is."""
        found = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        for index, parameter in enumerate(self.parameters):
            for key, value in self.optimizer.state[parameter].items():
                if isinstance(value, Tensor):
                    found[f"optimizer/{index}/{key}"] = value
        if self.average is not None:
            found |= {f"average/{name}": value for name, value in self.average.sums.items()}
            found["average/steps"] = self.average.steps
        return {
            name: part_of(value.detach(), index=member, count=len(self))
            for name, value in found.items()
        }

    def whole(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of the runs as they are saved, by the first process; every process must ask."""
        return tensors

    def load_state(self, member: int, tensors: Mapping[str, Tensor]) -> None:
        """Put a checkpoint's tensors in the places of the run's own."""
        for name, value in self.state(member).items():
            value.copy_(tensors[name])

    def network(self, member: int) -> nn.Module:
        """A run's network by itself, with its weights, or their average, as they are now."""
        if len(self) == 1 and self.average is None:
            return self.model
        seed = self.planners[member].seed
        alone: nn.Module = new_network(self.recipe, self.data, seed=seed).to(self.device)
        whole = self.model if self.average is None else self.average
        alone.load_state_dict(
            {
                name: part_of(value, index=member, count=len(self))
                for name, value in whole.state_dict().items()
            }
        )
        return alone
