"""One run while it trains: network, loss, optimiser and plan on one device, and its step.

The step looks up everything that changes in tensors that stay where they are: which examples,
which crops, which learning rate. So the same function runs eagerly on a CPU and is captured
once as a CUDA graph, see `graphs`; and it reads top to bottom.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from longtail import models
from longtail._checks import IntArray
from longtail.data.images import ImageSet
from longtail.priors import ClassPrior
from longtail.train.augment import gather_normalized
from longtail.train.methods import Method
from longtail.train.plan import Planner, stream_seed
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


class Trainee:
    """One run of a cohort.

    Args:
        recipe: how it trains.
        method: what it trains with.
        data: the training set on the device.
        labels: the same labels on the host.
        kept: which examples it trains on, shape (kept,).
        prior: of those.
        seed: of this run.
        precision: ``float32`` or ``bfloat16``, of the network's forward and backward pass.
        device: where it trains.
    """

    def __init__(
        self,
        recipe: Recipe,
        method: Method,
        data: Resident,
        *,
        labels: IntArray,
        kept: IntArray,
        prior: ClassPrior,
        seed: int,
        precision: str = "float32",
        device: torch.device | str = "cpu",
    ) -> None:
        self.recipe, self.data, self.seed = recipe, data, seed
        self.device, self.precision = torch.device(device), precision
        self.planner = Planner(recipe, method, labels, kept, prior, seed=seed)
        self.model = self._new_model()
        self.criterion = method.criterion(prior).to(self.device)
        self.generator = torch.Generator(self.device)
        if hasattr(self.criterion, "generator"):
            # A loss that draws draws from the run's own numbers.
            self.criterion.generator = self.generator  # type: ignore[assignment]
        self.optimizer = make_optimizer(self.model, recipe, self.device)
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self._make_state()
        self._allocate()

    def _new_model(self) -> nn.Module:
        """Initialised on the CPU, so that every device starts from the same weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(self.seed, "weights"))
            model = models.build(
                self.recipe.model,
                num_classes=self.data.num_classes,
                image_shape=self.data.image_shape,
                head=self.recipe.head,
                head_scale=self.recipe.head_scale,
            )
        if self.device.type == "cuda":
            return model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]
        return model

    def _make_state(self) -> None:
        """Have the optimiser make its state now, at zero, where checkpoints and graphs find it."""
        before = [parameter.detach().clone() for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        with torch.no_grad():
            for parameter, value in zip(self.parameters, before, strict=True):
                parameter.copy_(value)
                parameter.grad = None
            for state in self.optimizer.state.values():
                for value in state.values():
                    if isinstance(value, Tensor):
                        value.zero_()

    def _allocate(self) -> None:
        """Make the tensors a step looks things up in; `load` and `prepare` fill them."""
        sizes, recipe = self.planner.batch_sizes, self.recipe
        channels, height, width = self.data.image_shape
        dtype = torch.bfloat16 if self.precision == "bfloat16" else torch.float32
        largest = sizes[0] * channels * height * width * dtype.itemsize
        self.block = min(len(sizes), max(1, _BLOCK_BYTES // largest))
        ahead = sum(sizes[: self.block])
        self.inputs = torch.zeros(ahead, height, width, channels, dtype=dtype, device=self.device)
        self.targets = torch.zeros(ahead, dtype=torch.int64, device=self.device)
        self.rates = torch.zeros(len(sizes), device=self.device)
        self.offsets = torch.arange(sizes[0], device=self.device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.number = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.total = torch.zeros((), dtype=torch.float64, device=self.device)
        self.colours = {
            name: torch.tensor(values, device=self.device)
            for name, values in (
                ("mean", recipe.mean),
                ("std", recipe.std),
                ("fill", recipe.border),
            )
        }

    @property
    def batch_sizes(self) -> list[int]:
        """How many examples each step of an epoch takes."""
        return self.planner.batch_sizes

    def load(self, epoch: int) -> None:
        """Get ready for an epoch, counted from 0."""
        self.plan = self.planner.plan(epoch)
        self.rates.copy_(self.plan.rates)
        if getattr(self.criterion, "weight", None) is not None:
            self.criterion.weight.copy_(self.plan.weights)  # type: ignore[union-attr,operator]
        self.number.zero_()
        self.total.zero_()
        self.generator.manual_seed(stream_seed(self.seed, "loss", epoch))
        self.model.train()

    def prepare(self, number: int) -> None:
        """Before step `number`, where a block of steps begins: make all its batches at once."""
        sizes = self.planner.batch_sizes
        first = sum(sizes[:number])
        here = slice(first, first + sum(sizes[number : number + self.block]))
        plan, data = self.plan, self.data
        rows, dy, dx, flip = (
            part[here].to(self.device) for part in (plan.rows, plan.dy, plan.dx, plan.flip)
        )
        pixels = gather_normalized(
            data.pixels,
            rows,
            dy,
            dx,
            flip,
            padding=self.recipe.crop_padding,
            pixel_range=data.pixel_range,
            **self.colours,
        )
        self.inputs[: len(rows)].copy_(pixels.permute(0, 2, 3, 1))
        self.targets[: len(rows)].copy_(data.labels[rows])
        self.cursor.zero_()

    def step(self, size: int) -> None:
        """One step on the next `size` examples of the block."""
        at = self.cursor + self.offsets[:size]
        images = self.inputs.index_select(0, at).permute(0, 3, 1, 2)  # in channels_last
        target = self.targets.index_select(0, at)
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            logits = self.model(images)
        loss = self.criterion(logits.float(), target)
        loss.backward()
        self._set_rate(self.rates.index_select(0, self.number))
        self.optimizer.step()
        self.total += loss.detach().double() * size
        self.cursor += size
        self.number += 1

    def _set_rate(self, rate: Tensor) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].copy_(rate[0])
            else:
                group["lr"] = float(rate)

    def autocast(self) -> AbstractContextManager[object]:
        """Where the network computes in the run's precision."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def mean_loss(self) -> float:
        """The mean loss of the examples since `load`."""
        return float(self.total) / sum(self.batch_sizes)

    def state(self) -> dict[str, Tensor]:
        """Everything that training changes, by name: what a checkpoint holds."""
        found = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        for index, parameter in enumerate(self.parameters):
            for key, value in self.optimizer.state[parameter].items():
                if isinstance(value, Tensor):
                    found[f"optimizer/{index}/{key}"] = value
        return {name: value.detach() for name, value in found.items()}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Put a checkpoint's tensors in the places of this run's own."""
        mine = self.state()
        with torch.no_grad():
            for name, value in mine.items():
                value.copy_(tensors[name])
