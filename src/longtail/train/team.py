"""Runs that step as one: their networks side by side, one optimiser, and the step itself.

A team of one is a single run. In a larger one, which only GPUs have, the networks are stacked
(see `models.stacked`); members share a recipe and differ in method, seed and batches, and
nothing of one reaches another.

The step looks up everything that changes in tensors that stay where they are: which examples,
which learning rate. So the same function runs eagerly on a CPU and is captured once as a CUDA
graph, see `lane`; and it reads top to bottom.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from longtail import models
from longtail.data.images import ImageSet
from longtail.data.lists import ListedImages
from longtail.models.stacked import part_of, stack
from longtail.train.augment import gather_normalized
from longtail.train.plan import EpochPlan, Planner, stream_seed
from longtail.train.recipe import Recipe

# Batches are made a block of steps at a time: a whole epoch of CIFAR at once, a part of it where
# images are many or large.
_BLOCK_BYTES = 2**28


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


def make_optimizer(model: nn.Module, recipe: Recipe, device: torch.device) -> torch.optim.Optimizer:
    """The recipe's optimiser; with ``decay="not-norm"`` batch norm's parameters don't decay.

    On a GPU the learning rate is a tensor, so that a captured step can look it up.
    """
    norm = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.BatchNorm2d)
        for parameter in module.parameters()
    }
    free = norm if recipe.decay == "not-norm" else set()
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if id(p) not in free]},
        {"params": [p for p in model.parameters() if id(p) in free], "weight_decay": 0.0},
    ]
    on_gpu = device.type == "cuda"
    settings: dict[str, Any] = {
        "params": [group for group in groups if group["params"]],
        "lr": torch.tensor(recipe.lr, device=device) if on_gpu else recipe.lr,
        "weight_decay": recipe.weight_decay,
        "fused": True if on_gpu else None,
    }
    if recipe.optimizer == "adam":
        return torch.optim.Adam(capturable=on_gpu, **settings)
    return torch.optim.SGD(
        momentum=recipe.momentum, nesterov=recipe.optimizer == "nesterov", **settings
    )


class Team:
    """Runs of one recipe that step as one.

    Args:
        planners: one per run, with equal recipes and batch sizes.
        data: the training set on the device.
        precision: ``float32`` or ``bfloat16``, of the networks' features.
        device: where they train.

    Attributes:
        model: the networks, stacked where there are several.
        batch_sizes: how many examples of each run a step of an epoch takes.
        block: how many steps `prepare` makes the batches of.
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
    ) -> None:
        self.planners, self.data = list(planners), data
        self.recipe, self.batch_sizes = planners[0].recipe, planners[0].batch_sizes
        self.device, self.precision = torch.device(device), precision
        networks = [new_network(self.recipe, data, seed=p.seed) for p in planners]
        self.model: nn.Module = stack(networks).to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.criteria = [p.method.criterion(p.prior).to(self.device) for p in planners]
        self.generators = [torch.Generator(self.device) for _ in planners]
        for criterion, generator in zip(self.criteria, self.generators, strict=True):
            if hasattr(criterion, "generator"):  # a loss that draws: from its run's own numbers
                criterion.generator = generator  # type: ignore[assignment]
        self.optimizer = make_optimizer(self.model, self.recipe, self.device)
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self._ahead: tuple[int, list[EpochPlan]] = (-1, [])
        self._make_state()
        self._allocate()

    def __len__(self) -> int:
        return len(self.planners)

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
        sizes, recipe = self.batch_sizes, self.recipe
        channels, height, width = self.data.image_shape
        image = (height, width, len(self), channels)
        dtype = torch.bfloat16 if self.precision == "bfloat16" else torch.float32
        of_a_step = sizes[0] * channels * height * width * dtype.itemsize
        self.block = min(len(sizes), max(1, _BLOCK_BYTES // of_a_step))
        ahead = sum(sizes[: self.block])
        self.inputs = torch.zeros(ahead, *image, dtype=dtype, device=self.device)
        self.targets = torch.zeros(len(self), ahead, dtype=torch.int64, device=self.device)
        self.rates = torch.zeros(len(sizes), device=self.device)
        self.offsets = torch.arange(sizes[0], device=self.device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.number = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.totals = torch.zeros(len(self), dtype=torch.float64, device=self.device)
        colours = {"mean": recipe.mean, "std": recipe.std, "fill": recipe.border}
        self.colours = {k: torch.tensor(v, device=self.device) for k, v in colours.items()}

    def load(self, epoch: int) -> None:
        """Get ready for an epoch, counted from 0."""
        self.look_ahead(epoch)
        self.plans = self._ahead[1]
        self.rates.copy_(self.plans[0].rates)
        for planner, plan, criterion, generator in zip(
            self.planners, self.plans, self.criteria, self.generators, strict=True
        ):
            if criterion.weight is not None:
                criterion.weight.copy_(plan.weights)
            generator.manual_seed(stream_seed(planner.seed, "loss", epoch))
        self.number.zero_()
        self.totals.zero_()
        self.model.train()

    def look_ahead(self, epoch: int) -> None:
        """Make an epoch's plans, if they are not made yet; the host's part of getting ready."""
        if self._ahead[0] != epoch:
            self._ahead = (epoch, [planner.plan(epoch) for planner in self.planners])

    def prepare(self, number: int) -> None:
        """Before step `number`, where a block of steps begins: make all its batches at once."""
        first = sum(self.batch_sizes[:number])
        here = slice(first, first + sum(self.batch_sizes[number : number + self.block]))
        for member, plan in enumerate(self.plans):
            rows, dy, dx, flip = (
                part[here].to(self.device) for part in (plan.rows, plan.dy, plan.dx, plan.flip)
            )
            pixels = gather_normalized(
                self.data.pixels,
                rows,
                dy,
                dx,
                flip,
                padding=self.recipe.crop_padding,
                pixel_range=self.data.pixel_range,
                **self.colours,
            )
            self.inputs[: len(rows), :, :, member].copy_(pixels.permute(0, 2, 3, 1))
            self.targets[member, : len(rows)].copy_(self.data.labels[rows])
        self.cursor.zero_()

    def step(self, size: int) -> None:
        """One step of every run on its next `size` examples of the block."""
        at = self.cursor + self.offsets[:size]
        images = self.inputs.index_select(0, at).flatten(3).permute(0, 3, 1, 2)  # channels_last
        targets = self.targets.index_select(1, at)
        self.optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            features = self.model.features(images)  # type: ignore[operator]
        logits = self.model.fc(features.float()).view(len(self), size, -1)  # type: ignore[operator]
        losses = torch.stack(
            [loss(f, y) for loss, f, y in zip(self.criteria, logits, targets, strict=True)]
        )
        losses.sum().backward()  # type: ignore[no-untyped-call]
        self._set_rate(self.rates.index_select(0, self.number))
        self.optimizer.step()
        self.totals += losses.detach().double() * size
        self.cursor += size
        self.number += 1

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
        """Everything of a run that training changes, by name: what a checkpoint holds."""
        found = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        for index, parameter in enumerate(self.parameters):
            for key, value in self.optimizer.state[parameter].items():
                if isinstance(value, Tensor):
                    found[f"optimizer/{index}/{key}"] = value
        return {
            name: part_of(value.detach(), index=member, count=len(self))
            for name, value in found.items()
        }

    def load_state(self, member: int, tensors: Mapping[str, Tensor]) -> None:
        """Put a checkpoint's tensors in the places of the run's own."""
        for name, value in self.state(member).items():
            value.copy_(tensors[name])

    def network(self, member: int) -> nn.Module:
        """A run's network by itself, with its weights as they are now."""
        if len(self) == 1:
            return self.model
        seed = self.planners[member].seed
        alone: nn.Module = new_network(self.recipe, self.data, seed=seed).to(self.device)
        alone.load_state_dict(
            {
                name: part_of(value, index=member, count=len(self))
                for name, value in self.model.state_dict().items()
            }
        )
        return alone
