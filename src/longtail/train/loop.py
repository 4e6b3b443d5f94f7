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
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longtail import models
from longtail.data.images import ImageSet
from longtail.data.lists import ListedImages
from longtail.losses.stacked import SeparateLosses, StackedLoss
from longtail.models.stacked import part_of, stack
from longtail.runs.ensemble import logit_scale
from longtail.train.averaging import WeightAverage
from longtail.train.distillation import distillation_loss
from longtail.train.optimizers import make_optimizer, set_rate
from longtail.train.plan import EpochPlan, Planner, stream_seed
from longtail.train.prefetch import ImageMaker, Resident
from longtail.train.recipe import Recipe
from longtail.train.sam import Perturbation, frozen_statistics

# Normalised images (n, channels, h, w) -> logits (n, L); or logits of all examples.
Teachers = Callable[[Tensor], Tensor] | Tensor

_CHUNK_BYTES = 2**27  # of pixels that are made at once, before they become float32
_TEACHER_BATCH = 4096  # images that teachers see at once
# Batches are made a block of steps at a time: a whole epoch of CIFAR at once, a part of it where
# images are many or large.
_BLOCK_BYTES = 2**28


def run_epoch(
    trainings: Sequence[Any],
    epochs: Sequence[int],
    *,
    after_step: Callable[[float], None] | None = None,
) -> list[list[float]]:
    """Take every training through an epoch of its own; on a GPU their steps take turns.

    Args:
        trainings: each a `Training` or `streamed.StreamedTraining`, on a GPU as
            `cuda_graphs.place` returns it.
        epochs: which epoch each is at, counted from 0.
        after_step: called with the share of the epoch that is done; not for captured steps,
            which are only queued.

    Returns:
        For each training the mean loss of each run.
    """
    for training, epoch in zip(trainings, epochs, strict=True):
        with training.active():
            training.load(epoch)
    steps = max(len(training.batch_sizes) for training in trainings)
    for number in range(steps):
        for training in trainings:
            if number < len(training.batch_sizes):
                take_step(training, number)
        if after_step is not None and not trainings[0].graphs:
            after_step((number + 1) / steps)
    for training, epoch in zip(trainings, epochs, strict=True):
        if training.graphs:  # while the GPU works through what is queued
            training.look_ahead(epoch + 1)
    losses = []
    for training in trainings:
        with training.active():
            losses.append(training.mean_losses())
    return losses


def take_step(training: Any, number: int) -> None:
    """Take step `number` of the epoch that was loaded; on a GPU it is only queued."""
    size = training.batch_sizes[number]
    with training.active():
        if number % training.block == 0:
            training.prepare(number)
        if training.graphs:
            training.graphs[size].replay()
        else:
            training.step(size)


class Training:
    """One run on images in memory, or several that step as one.

    Args:
        planners: one per run, with equal batch sizes and the same recipe, but for `image_seed`.
        data: the training set on the device.
        precision: ``float32`` or ``bfloat16``, of the networks' features.
        device: where they train.
        teachers: for distillation: a function that gives the logits of normalised images, asked
            when a block of batches is made, not in the step; or a table of saved logits, one row
            for each example of the training set.

    Attributes:
        model: the networks, stacked where there are several.
        batch_sizes: how many examples of each run a step of an epoch takes.
        streams: the runs that see the same images: these are made once, and their teachers asked
            once.
        block: how many steps have their batches made at once.
        now: the batches of these steps, one after the other: `inputs`, the images, of shape
            (positions, height, width, runs, channels); their `targets`, (runs, positions), and
            where images are mixed `seconds` and `shares`, the labels of what was mixed in and the
            shares of the first, likewise; `teacher_logits`, (streams, positions, num_classes).
    """

    skipped = 0  # images that could not be read: none in memory
    # On a GPU, see `cuda_graphs`: the context in which everything has to happen, and the captured
    # step of each batch size.
    active: Any = nullcontext
    graphs: Mapping[int, Any] = MappingProxyType({})

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
        self.runs, self.batch_sizes = len(planners), planners[0].batch_sizes
        recipe = self.recipe = planners[0].recipe
        here = self.device = torch.device(device)
        self.dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        networks = [new_network(recipe, data, seed=p.seed) for p in planners]
        self.model = networks[0] if self.runs == 1 else stack(networks)
        self.model.to(here, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = make_optimizer(self.model, recipe, here)
        self.sam, self.average = None, None
        if recipe.sam_rho > 0:
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            self.sam = Perturbation(parameters, rho=recipe.sam_rho, parts=self.runs)
        if recipe.ema_decay > 0:
            self.average = WeightAverage(self.model, decay=recipe.ema_decay)

        margins = [m for p in planners if (m := p.method.margin(p.prior)) is not None]
        self.drawing: dict[int, Any] = {}  # losses with random numbers of their own
        if len(margins) == self.runs:
            weighted = [p.method.drw for p in planners]
            self.loss: Any = StackedLoss(margins, weighted=weighted, device=here)
        else:
            self.loss = SeparateLosses([p.method.criterion(p.prior).to(here) for p in planners])
            self.drawing = self.loss.drawing
        for loss in self.drawing.values():
            loss.generator = torch.Generator(here)
        if teachers is not None:
            # The teachers' logits come multiplied by the scales of their losses; so must the runs'.
            scales = [logit_scale(p.method.part) for p in planners]
            self.scale = torch.tensor(scales, device=here).view(-1, 1, 1)
            log_priors = np.stack([p.prior.log_probs for p in planners])
            self.log_prior = torch.from_numpy(log_priors).float().to(here)[:, None]

        streams: dict[tuple[object, ...], list[int]] = {}
        for run, p in enumerate(planners):
            key = p.image_seed, p.method.sampling, p.kept.numpy().tobytes()
            streams.setdefault(key, []).append(run)
        self.streams, self.maker = list(streams.values()), ImageMaker(data, recipe)
        sizes, (channels, height, width) = self.batch_sizes, data.image_shape
        of_a_step = sizes[0] * data.pixels[0].numel() * self.dtype.itemsize
        self.block = min(len(sizes), max(1, _BLOCK_BYTES // of_a_step))
        positions = sum(sizes[: self.block])
        shape = (positions, height, width, self.runs, channels)
        targets = torch.zeros(self.runs, positions, dtype=torch.int64, device=here)
        self.now = {
            "inputs": torch.zeros(shape, dtype=self.dtype, device=here),
            "targets": targets,
        }
        if recipe.cutmix + recipe.mixup > 0:
            self.now["seconds"] = torch.zeros_like(targets)
            self.now["shares"] = torch.ones(targets.shape, device=here)
        if teachers is not None:
            answers = (len(self.streams), positions, data.num_classes)
            self.now["teacher_logits"] = torch.zeros(answers, device=here)
        self.plans: list[EpochPlan] = []
        self._ahead: tuple[int, list[EpochPlan]] = -1, []  # an epoch, and its plans
        self.rates = torch.zeros(len(sizes), device=here)
        self.offsets = torch.arange(sizes[0], device=here)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=here)
        self.number = torch.zeros(1, dtype=torch.int64, device=here)
        self.totals = torch.zeros(self.runs, dtype=torch.float64, device=here)

    def load(self, epoch: int) -> None:
        """Get ready for an epoch, counted from 0."""
        planned, self.plans = self._ahead
        if planned != epoch:
            self.plans = [planner.plan(epoch) for planner in self.planners]
        self.rates.copy_(self.plans[0].rates)
        for weights, plan in zip(self.loss.weights, self.plans, strict=True):
            if weights is not None:
                weights.copy_(plan.weights)
        for run, loss in self.drawing.items():
            loss.generator.manual_seed(stream_seed(self.planners[run].seed, "loss", epoch))
        self.number.zero_()
        self.totals.zero_()
        self.model.train(not self.recipe.freeze_backbone)

    def look_ahead(self, epoch: int) -> None:
        """Plan an epoch, the host's part of `load`, while the GPU works through the one before."""
        self._ahead = epoch, [planner.plan(epoch) for planner in self.planners]

    def prepare(self, number: int) -> None:
        """Make the batches of the block of steps that begins with step `number`; ask teachers."""
        first = sum(self.batch_sizes[:number])
        end = first + sum(self.batch_sizes[number : number + self.block])
        now = self.now
        chunk = max(1, _CHUNK_BYTES // self.data.pixels[0].nbytes)
        for stream, runs in enumerate(self.streams):
            plan = self.plans[runs[0]]
            if self.data.announce is not None:  # of this block and the next
                self.data.announce(plan.images.rows[first : 2 * end - first].tolist())
            for low in range(first, end, chunk):
                part = slice(low, min(low + chunk, end))
                at = slice(part.start - first, part.stop - first)
                if plan.partners is None or plan.mixing is None:
                    pixels, *labels = self.maker.make(plan.images, part)
                else:
                    draws = plan.images, plan.partners, plan.mixing
                    pixels, *labels = self.maker.mixed(*draws, part)
                for run in runs:
                    now["inputs"][at, :, :, run].copy_(pixels.permute(0, 2, 3, 1))
                    for name, values in zip(("targets", "seconds", "shares"), labels, strict=False):
                        now[name][run, at].copy_(values)
            if isinstance(self.teachers, Tensor):
                rows = plan.images.rows[first:end].to(self.device)
                now["teacher_logits"][stream, : end - first].copy_(self.teachers[rows])
            elif self.teachers is not None:
                for low in range(0, end - first, _TEACHER_BATCH):
                    at = slice(low, min(low + _TEACHER_BATCH, end - first))
                    seen = now["inputs"][at, :, :, runs[0]].float().permute(0, 3, 1, 2)
                    with torch.no_grad():
                        now["teacher_logits"][stream, at].copy_(self.teachers(seen))
        self.cursor.zero_()

    def step(self, size: int) -> None:
        """Step every run on its next `size` examples of the block."""
        at, now = self.cursor + self.offsets[:size], self.now
        # Shape (size, runs · channels, height, width), channels-last.
        images = now["inputs"].index_select(0, at).flatten(3).permute(0, 3, 1, 2)
        # The loss's arguments, of shape (runs, size), and the teachers', (streams, size, classes).
        labels: dict[str, Any] = {"target": now["targets"].index_select(1, at)}
        if "seconds" in now:
            labels["second"] = now["seconds"].index_select(1, at)
            labels["share"] = now["shares"].index_select(1, at)
        if self.drawing:
            like = torch.empty(size, self.data.num_classes, device=self.device)
            labels["dropped"] = {run: loss.draw(like) for run, loss in self.drawing.items()}
        answers = now["teacher_logits"].index_select(1, at) if "teacher_logits" in now else None

        self.optimizer.zero_grad(set_to_none=True)
        losses = self._losses(images, labels, answers)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        if self.sam is not None:  # the gradients at w + e instead, on the same batch
            self.sam.go()
            self.optimizer.zero_grad(set_to_none=True)
            with frozen_statistics(self.model):
                self._losses(images, labels, answers).sum().backward()  # type: ignore[no-untyped-call]
            self.sam.back()
        set_rate(self.optimizer, self.rates.index_select(0, self.number))
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        self.totals += losses.detach().double() * size
        self.cursor += size
        self.number += 1

    def _losses(self, images: Tensor, labels: Mapping[str, Any], answers: Tensor | None) -> Tensor:
        """Return the mean loss of each run, shape (runs,), mixed with its teachers' answers.

        (1 − w) · loss + w · T² · KL(teachers ‖ run),  w `distill_weight`, T `distill_temperature`
        """
        low = self.dtype == torch.bfloat16
        with torch.autocast(self.device.type, torch.bfloat16, enabled=low):
            features = self.model.features(images)  # type: ignore[operator]
        logits = self.model.fc(features.float()).view(self.runs, len(images), -1)  # type: ignore[operator]
        losses: Tensor = self.loss(logits, **labels)
        if answers is None:
            return losses
        if 1 < len(self.streams) < self.runs:  # with one, or one for each, they broadcast as is
            of_run = {run: answers[n] for n, runs in enumerate(self.streams) for run in runs}
            answers = torch.stack([of_run[run] for run in range(self.runs)])
        recipe = self.recipe
        divergence = distillation_loss(
            self.scale * logits,
            answers,
            temperature=recipe.distill_temperature,
            log_prior=self.log_prior if recipe.distill_adjusted else None,
            reduction="none",
        )
        return (1.0 - recipe.distill_weight) * losses + recipe.distill_weight * divergence.mean(1)

    def mean_losses(self) -> list[float]:
        """Return the mean loss of each run's examples since `load`."""
        return [total / sum(self.batch_sizes) for total in self.totals.tolist()]

    def state(self, member: int) -> dict[str, Tensor]:
        """Return everything of a run that training changes, by name, where it is."""
        found = training_state(self.model, self.optimizer, self.average)
        return {
            name: part_of(value.detach(), index=member, count=self.runs)
            for name, value in found.items()
        }

    saved_state = state  # as a checkpoint has it
    saved_weights = staticmethod(nn.Module.state_dict)  # of a network, as a run folder has them

    def load_state(self, member: int, tensors: Mapping[str, Tensor]) -> None:
        """Put a checkpoint's tensors in the places of the run's own."""
        for name, value in self.state(member).items():
            value.copy_(tensors[name])

    def network(self, member: int) -> nn.Module:
        """Return a run's network by itself, with its weights, or their average, as they are now."""
        if self.runs == 1 and self.average is None:
            return self.model
        seed = self.planners[member].seed
        alone: nn.Module = new_network(self.recipe, self.data, seed=seed).to(self.device)
        whole = self.model if self.average is None else self.average
        parts = {
            name: part_of(value, index=member, count=self.runs)
            for name, value in whole.state_dict().items()
        }
        alone.load_state_dict(parts)
        return alone


def new_network(
    recipe: Recipe, data: ImageSet | Resident | ListedImages, *, seed: int
) -> nn.Module:
    """Return a run's network as it starts; made on the CPU, so that it starts alike everywhere."""
    side = recipe.image_size  # to which photographs from disk are cropped
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "weights"))
        network = models.build(
            recipe.model,
            num_classes=data.num_classes,
            image_shape=(3, side, side) if isinstance(data, ListedImages) else data.image_shape,
            head=recipe.head,
            head_scale=recipe.head_scale,
        )
    if recipe.freeze_backbone:
        network.requires_grad_(False)
        network.fc.requires_grad_(True)  # type: ignore[operator, union-attr]
    return network


def training_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, average: WeightAverage | None = None
) -> dict[str, Tensor]:
    """Return everything that training changes, by name, where it is."""
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
