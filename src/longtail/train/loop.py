"""The training loop: batches, forward, loss, backward, step.

`Training` is one run on images in memory, or several that step as one: their networks stand side
by side (`models.stacked`), and nothing of one reaches another. A single run is the plain case, on
a CPU always. `run_epoch` takes one or more of them through an epoch; `engine` logs, saves and
finishes around it.

The step looks up everything that changes in tensors that stay where they are: which examples,
which learning rate. So the same function runs eagerly on a CPU and is captured once as a CUDA
graph, see `cuda_graphs`. `streamed` is the same for photographs on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from longtail import models
from longtail.data.images import ImageSet
from longtail.data.lists import ListedImages
from longtail.losses import EqualizedThresholdLoss, PairwiseMarginLoss
from longtail.losses.stacked import StackedLoss
from longtail.models.stacked import part_of, stack
from longtail.runs.ensemble import logit_scale
from longtail.train.averaging import WeightAverage
from longtail.train.distillation import distillation_loss
from longtail.train.optimizers import OwnDecay, make_optimizer, set_rate
from longtail.train.plan import EpochPlan, Planner, stream_seed
from longtail.train.prefetch import Block, Prefetcher, Resident, Teachers
from longtail.train.recipe import Recipe
from longtail.train.sam import Perturbation, frozen_statistics

if TYPE_CHECKING:
    from longtail.train.cuda_graphs import Stepper

# Batches are made a block of steps at a time: a whole epoch of CIFAR at once, a part of it where
# images are many or large.
_BLOCK_BYTES = 2**28


class Training:
    """One run on images in memory, or several that step as one.

    Args:
        planners: one per run, with equal batch sizes and recipes with equal `stack_values`.
        data: the training set on the device.
        precision: ``float32`` or ``bfloat16``, of the networks' features.
        device: where they train.
        teachers: for distillation: a function that gives the logits of normalised images, asked
            when a block of batches is made, not in the step; or a table of saved logits, one row
            for each example of the training set.

    Attributes:
        recipe: the first run's, for what all have in common.
        model: the networks, stacked where there are several.
        batch_sizes: how many examples of each run a step of an epoch takes.
        block: how many steps have their batches made at once.
        now: the batches that steps look in.
        ahead: those of the coming epoch's first block, where they are made beside the steps.
    """

    on_disk = False
    skipped = 0  # images that could not be read: none in memory

    def __init__(
        self,
        planners: Sequence[Planner],
        data: Resident,
        *,
        precision: str = "float32",
        device: torch.device | str = "cpu",
        teachers: Teachers | None = None,
    ) -> None:
        self.planners, self.data, self.teachers = list(planners), data, teachers
        recipe = self.recipe = planners[0].recipe
        recipes = [planner.recipe for planner in planners]
        self.batch_sizes = planners[0].batch_sizes
        self.device, self.precision = torch.device(device), precision
        self.model: nn.Module = stack([new_network(recipe, data, seed=p.seed) for p in planners])
        self.model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.criteria, self.generators = make_criteria(planners, self.device)
        self.loss = StackedLoss(self.criteria)
        self.optimizer = make_optimizer(self.model, recipe, self.device)
        self.decay, self.sam, self.average, self.distilled = None, None, None, None
        if len({one.weight_decay for one in recipes}) > 1:
            self.decay = OwnDecay(self.optimizer, [one.weight_decay for one in recipes])
        if recipe.sam_rho > 0:
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            rho = [one.sam_rho for one in recipes]
            self.sam = Perturbation(parameters, rho=rho, parts=len(planners))
        if recipe.ema_decay > 0:
            self.average = WeightAverage(self.model, decay=recipe.ema_decay)
        if teachers is not None:
            self.distilled = _distilled(planners, self.loss, self.device)

        sizes = self.batch_sizes
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        of_a_step = sizes[0] * data.pixels[0].numel() * dtype.itemsize
        self.block = min(len(sizes), max(1, _BLOCK_BYTES // of_a_step))
        self.prefetcher = Prefetcher(planners, data, teachers)
        self.now = self.prefetcher.allocate(sum(sizes[: self.block]), dtype)
        self.ahead: Block | None = None
        self._ahead_of = -1  # the epoch whose first block that is
        self._epoch, self._planned = -1, -1  # which epoch is trained, and which `plans` are of
        self.plans: list[EpochPlan] = []
        self.rates = torch.zeros(len(sizes), device=self.device)
        self.offsets = torch.arange(sizes[0], device=self.device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.number = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.totals = torch.zeros(len(planners), dtype=torch.float64, device=self.device)

    def __len__(self) -> int:
        return len(self.planners)

    def load(self, epoch: int) -> None:
        """Get ready for an epoch, counted from 0."""
        self.look_ahead(epoch)
        self._epoch = epoch
        self.rates.copy_(self.plans[0].rates)
        begin_epoch(self.planners, self.plans, self.criteria, self.generators, epoch)
        self.number.zero_()
        self.totals.zero_()
        self.model.train(not self.recipe.freeze_backbone)

    def look_ahead(self, epoch: int) -> None:
        """Make an epoch's plans, if they are not made yet; the host's part of getting ready."""
        if self._planned != epoch:
            self.plans = [planner.plan(epoch) for planner in self.planners]
            self._planned = epoch

    def prepare(self, number: int) -> None:
        """Before step `number`, where a block of steps begins: have all its batches at hand."""
        if number == 0 and self.ahead is not None and self._ahead_of == self._epoch:
            self.now.copy_(self.ahead)
        else:
            self._fill(self.now, number)
        self.cursor.zero_()

    def _fill(self, block: Block, number: int) -> None:
        positions = [0, *accumulate(self.batch_sizes)]
        end = positions[min(number + self.block, len(self.batch_sizes))]
        self.prefetcher.fill(block, self.plans, positions[number], end)

    def make_room_ahead(self) -> Block:
        """Have a second block, for `make_ahead`."""
        self.ahead = self.now.clone()
        return self.ahead

    def make_ahead(self, epoch: int) -> None:
        """Make the first block of an epoch to come, where `prepare` will find it."""
        assert self.ahead is not None
        self.look_ahead(epoch)
        self._ahead_of = -1  # as long as it is half made
        self._fill(self.ahead, 0)
        self._ahead_of = epoch

    def step(self, size: int) -> None:
        """One step of every run on its next `size` examples of the block."""
        images, labels = self._batch(size)
        self.optimizer.zero_grad(set_to_none=True)
        losses = self._losses(images, labels)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        if self.sam is not None:  # the gradients at w + e instead, on the same batch
            self.sam.go()
            self.optimizer.zero_grad(set_to_none=True)
            with frozen_statistics(self.model):
                self._losses(images, labels).sum().backward()  # type: ignore[no-untyped-call]
            self.sam.back()
        if self.decay is not None:
            self.decay.add()
        set_rate(self.optimizer, self.rates.index_select(0, self.number))
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        self.totals += losses.detach().double() * size
        self.cursor += size
        self.number += 1

    def _batch(self, size: int) -> tuple[Tensor, dict[str, Any]]:
        """The next examples of every run.

        Returns:
            Images, shape (size, runs · channels, height, width), channels-last; and the arguments
            of the loss, each of shape (runs, size) or (runs or 1, size, num_classes).
        """
        at, now = self.cursor + self.offsets[:size], self.now
        labels: dict[str, Any] = {"target": now.targets.index_select(1, at)}
        if now.seconds is not None and now.shares is not None:
            labels["second"] = now.seconds.index_select(1, at)
            labels["share"] = now.shares.index_select(1, at)
        if any(isinstance(loss, EqualizedThresholdLoss) for loss in self.criteria):
            like = torch.empty(size, self.data.num_classes, device=self.device)
            labels["dropped"] = [
                loss.draw(like) if isinstance(loss, EqualizedThresholdLoss) else None
                for loss in self.criteria
            ]
        if now.teacher_logits is not None:
            answers = now.teacher_logits.index_select(1, at)
            streams = self.prefetcher.streams
            if 1 < len(streams) < len(self):  # with one, or one for each, they broadcast as is
                of_run = {run: answers[n] for n, runs in enumerate(streams) for run in runs}
                answers = torch.stack([of_run[run] for run in range(len(self))])
            labels["teacher_logits"] = answers
        images = now.inputs.index_select(0, at).flatten(3).permute(0, 3, 1, 2)  # channels_last
        return images, labels

    def _losses(self, images: Tensor, labels: Mapping[str, Any]) -> Tensor:
        """The mean loss of each run, shape (runs,)."""
        with autocast(self.precision, self.device):
            features = self.model.features(images)  # type: ignore[operator]
        logits = self.model.fc(features.float())  # type: ignore[operator]
        loss = self.loss if self.distilled is None else self.distilled
        return loss(logits.view(len(self), len(images), -1), **labels)

    def mean_losses(self) -> list[float]:
        """The mean loss of each run's examples since `load`."""
        return [total / sum(self.batch_sizes) for total in self.totals.tolist()]

    def state(self, member: int) -> dict[str, Tensor]:
        """Everything of a run that training changes, by name, where it is."""
        found = training_state(self.model, self.optimizer, self.average)
        return {
            name: part_of(value.detach(), index=member, count=len(self))
            for name, value in found.items()
        }

    def saved_state(self, member: int) -> dict[str, Tensor]:
        """`state` as a checkpoint has it."""
        return self.state(member)

    def saved_weights(self, network: nn.Module) -> dict[str, Tensor]:
        """The weights of a network as a run folder has them."""
        return network.state_dict()

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
        parts = {
            name: part_of(value, index=member, count=len(self))
            for name, value in whole.state_dict().items()
        }
        alone.load_state_dict(parts)
        return alone


def _distilled(
    planners: Sequence[Planner], loss: StackedLoss, device: torch.device
) -> Callable[..., Tensor]:
    """The loss of each run with the divergence from its teachers.

    (1 − w) · loss + w · T² · KL(teachers ‖ run)
    """
    recipes = [planner.recipe for planner in planners]

    def each(values: Sequence[float], *shape: int) -> Any:
        """One number where all runs have the same; a tensor else."""
        if len(set(values)) == 1:
            return values[0]
        return torch.tensor(values, device=device).view(-1, *shape)

    weight = each([one.distill_weight for one in recipes])
    own = each([1.0 - one.distill_weight for one in recipes])
    temperature = each([one.distill_temperature for one in recipes], 1, 1)
    # The teachers' come multiplied by the scales of their losses, so the runs' must be, too.
    scale = each([logit_scale(p.method.part) for p in planners], 1, 1)
    log_priors = None
    if any(one.distill_adjusted for one in recipes):
        added = [p.prior.log_probs * p.recipe.distill_adjusted for p in planners]
        log_priors = torch.from_numpy(np.stack(added)).float().to(device)[:, None]

    def losses(logits: Tensor, target: Tensor, *, teacher_logits: Tensor, **mix: Any) -> Tensor:
        divergence = distillation_loss(
            scale * logits,
            teacher_logits,
            temperature=temperature,
            log_prior=log_priors,
            reduction="none",
        )
        found: Tensor = own * loss(logits, target, **mix) + weight * divergence.mean(1)
        return found

    return losses


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
        network = models.build(
            recipe.model,
            num_classes=data.num_classes,
            image_shape=image_shape_of(recipe, data),
            head=recipe.head,
            head_scale=recipe.head_scale,
        )
    if recipe.freeze_backbone:
        network.requires_grad_(False)
        network.fc.requires_grad_(True)  # type: ignore[operator, union-attr]
    return network


def make_criteria(
    planners: Sequence[Planner], device: torch.device
) -> tuple[list[PairwiseMarginLoss], list[torch.Generator]]:
    """Each run's loss on the device, and the random numbers that losses which draw take."""
    criteria = [p.method.criterion(p.prior).to(device) for p in planners]
    generators = [torch.Generator(device) for _ in planners]
    for criterion, generator in zip(criteria, generators, strict=True):
        if isinstance(criterion, EqualizedThresholdLoss):
            criterion.generator = generator
    return criteria, generators


def begin_epoch(
    planners: Sequence[Planner],
    plans: Sequence[EpochPlan],
    criteria: Sequence[PairwiseMarginLoss],
    generators: Sequence[torch.Generator],
    epoch: int,
) -> None:
    """Give the losses the class weights and the random numbers of an epoch."""
    for planner, plan, criterion, generator in zip(
        planners, plans, criteria, generators, strict=True
    ):
        if criterion.weight is not None:
            criterion.weight.copy_(plan.weights)
        generator.manual_seed(stream_seed(planner.seed, "loss", epoch))


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context in which features are computed."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def training_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, average: WeightAverage | None = None
) -> dict[str, Tensor]:
    """Everything that training changes, by name, where it is."""
    found = {f"model/{name}": value for name, value in model.state_dict().items()}
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    for index, parameter in enumerate(parameters):
        for key, value in optimizer.state[parameter].items():
            if isinstance(value, Tensor):
                found[f"optimizer/{index}/{key}"] = value
    if average is not None:
        found |= {f"average/{name}": value for name, value in average.sums.items()}
        found["average/steps"] = average.steps
    return found


def run_epoch(
    steppers: Sequence[Stepper],
    epochs: Sequence[int],
    *,
    after_step: Callable[[float], None] | None = None,
) -> list[list[float]]:
    """Take every training through an epoch of its own; on a GPU their steps take turns.

    Args:
        steppers: the trainings, see `cuda_graphs.Stepper`.
        epochs: which epoch each is at, counted from 0.
        after_step: called with the share of the epoch that is done; not for captured steps,
            which are only queued.

    Returns:
        For each training the mean loss of each run.
    """
    for stepper, epoch in zip(steppers, epochs, strict=True):
        stepper.load(epoch)
    steps = max(len(stepper.training.batch_sizes) for stepper in steppers)
    for number in range(steps):
        for stepper in steppers:
            if number < len(stepper.training.batch_sizes):
                stepper.step(number)
        if after_step is not None and not steppers[0].graphs:
            after_step((number + 1) / steps)
    for stepper, epoch in zip(steppers, epochs, strict=True):
        if stepper.graphs:  # while the GPU works through what is queued
            stepper.look_ahead(epoch + 1)
    losses = []
    for stepper in steppers:
        with stepper.active():
            losses.append(stepper.training.mean_losses())
    return losses
