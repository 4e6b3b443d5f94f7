"""A run on photographs whose classifier is cut over the processes: each holds a slice of classes.

The features are data-parallel as in `streamed`; their gradients are averaged. The classifier is
a `ShardedHead`: it gathers the features of all processes, and no process ever holds all logits.
What is saved has the names and shapes of the whole network, so a checkpoint goes on with any
number of processes.

Evaluation predicts without gathering logits; the logits of a split, where they are to be saved,
come to the first process a batch at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks

_checks.require("torch", extra="torch", caller=__name__)

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from longtail.data.lists import ListedImages
from longtail.train.class_slices import gather_slices, local, scatter_slices
from longtail.train.distributed import ALONE, World, said_plainly
from longtail.train.recipe import Recipe
from longtail.train.sharded_head import ShardedHead
from longtail.train.streamed import (
    EVALUATED,
    Part,
    PixelsToLogits,
    StreamedTeam,
    Streaming,
    centres,
    judging,
)


def shard(model: nn.Module, world: World, device: torch.device) -> nn.Module:
    """The network on a process's device, its last layer `fc` cut over the processes, in place.

    Args:
        model: on the CPU, whole and the same in every process; no device gets the whole layer.
        world: the processes.
        device: of this one.
    """
    fc = model.fc
    model.fc = nn.Identity()
    model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    mesh = _mesh(world, device)
    with torch.random.fork_rng(devices=[]), said_plainly():  # it draws a start of its own first
        model.fc = ShardedHead.from_linear(fc, mesh=mesh, batch="split", device=device)  # type: ignore[arg-type]
    return model


def _mesh(world: World, device: torch.device) -> DeviceMesh | None:
    """The processes as DTensor wants them; None for one alone, which has ordinary tensors."""
    return init_device_mesh(device.type, (world.count,)) if world.count > 1 else None


def without_head(model: nn.Module) -> nn.Module:
    """The same network, sharing its layers, but with the features for logits."""
    trunk = copy.copy(model)
    trunk._modules = {**model._modules, "fc": nn.Identity()}
    return trunk


class ShardedTeam(StreamedTeam):
    """A `StreamedTeam` of which every process holds a slice of the classifier."""

    def _allocate(self) -> None:
        super()._allocate()
        self._rows: dict[int, list[list[int]]] = {}  # of a batch's size: by part and process

    def _on_device(self, model: nn.Module) -> nn.Module:
        return shard(model, self.world, self.device)

    def _network(self) -> nn.Module:
        return PixelsToLogits(
            without_head(self.model), self.recipe, precision=self.precision, device=self.device
        )

    def _set_rate(self, rate: Tensor) -> None:
        known = float(self.plans[0].rates[self._at])  # so that nobody waits for the device
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].copy_(rate[0])
            else:
                group["lr"] = known

    def _sum(self, part: Part, drawn: Tensor | None, place: int) -> Tensor:
        """An equal part of the sum over all processes, which each of them knows."""
        features, labels = self.logits(part.images), part.labels
        if not part.counts:
            labels = torch.full_like(labels, self.criterion.ignore_index)
        rows = self._rows_of(part.number)
        whole: Tensor = self.model.fc.loss(features, labels, self.criterion, rows=rows)  # type: ignore[union-attr, operator]
        return whole / self.world.count

    def _rows_of(self, number: int) -> list[int] | None:
        """How many examples each process has in a part of the step, if that is known already."""
        if self.how.on_error == "skip":
            return None
        size = self.batch_sizes[self._at]
        if size not in self._rows:
            everyone = [replace(self.world, rank=rank) for rank in range(self.world.count)]
            parts = [self._parts_of(0, size, one) for one in everyone]
            self._rows[size] = [
                [len(part) for part in parts_of] for parts_of in zip(*parts, strict=True)
            ]
        return self._rows[size][number]

    def whole(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Without slices, on the first process; the others have only what is not in slices."""
        with said_plainly():
            found = {
                name: gather_slices(value) if isinstance(value, DTensor) else value
                for name, value in tensors.items()
            }
        return {name: value for name, value in found.items() if value is not None}

    def load_state(self, member: int, tensors: Mapping[str, Tensor]) -> None:
        """Put a checkpoint's tensors in place; the first process has them, for everyone."""
        for name, value in self.state(member).items():
            if isinstance(value, DTensor):
                with said_plainly():
                    scatter_slices(value, tensors[name] if self.world.first else None)
            else:
                if self.world.first:
                    value.copy_(tensors[name])
                self.world.send_([value])


def sharded_predictions(
    model: nn.Module,
    data: ListedImages,
    recipe: Recipe,
    *,
    world: World = ALONE,
    how: Streaming | None = None,
) -> NDArray[Any] | None:
    """The classes that a sharded network predicts, from each process's best candidates.

    Args:
        model: of `shard`.
        data: the examples.
        recipe: for the crop and the normalisation.
        world: the processes that share the examples, and the classes.
        how: see `Streaming`.

    Returns:
        int64, shape (examples,), in the order of the data, on the first process; None on the
        others.
    """
    with judging(model), said_plainly():
        found = [
            model.fc.predict(features)  # type: ignore[union-attr, operator]
            for features in _features(model, data, recipe, world=world, how=how)
        ]
    return world.gather(torch.cat(found), len(data))


def sharded_logits(
    model: nn.Module,
    data: ListedImages,
    recipe: Recipe,
    *,
    world: World = ALONE,
    how: Streaming | None = None,
) -> NDArray[Any] | None:
    """All logits of a sharded network, gathered on the CPU of the first process.

    Args:
        model: of `shard`; and what follows: see `sharded_predictions`.
        data: likewise.
        recipe: likewise.
        world: likewise.
        how: likewise.

    Returns:
        float32, shape (examples, num_classes), in the order of the data, on the first process;
        None on the others.
    """
    head, examples = model.fc, len(data)
    whole = np.empty((examples, data.num_classes), np.float32) if world.first else None
    with judging(model), said_plainly():
        parts = _features(model, data, recipe, world=world, how=how)
        for number, features in enumerate(parts):
            own = local(head(features)).t().contiguous()  # type: ignore[operator]
            columns = gather_slices(head.sliced(own))  # type: ignore[union-attr, operator]
            if whole is not None and columns is not None:
                whole[_rows_of(number, examples, world)] = columns.t().numpy()
    return whole


def _rows_of(number: int, examples: int, world: World) -> list[int]:
    """Whose logits the `number`-th batches of all processes have, process after process."""
    batch = slice(number * EVALUATED, (number + 1) * EVALUATED)
    return [row for rank in range(world.count) for row in range(rank, examples, world.count)[batch]]


def _features(
    model: nn.Module,
    data: ListedImages,
    recipe: Recipe,
    *,
    world: World,
    how: Streaming | None,
) -> Iterator[Tensor]:
    """The features of this process's images, in as many batches as every other process has."""
    device = next(model.parameters()).device
    trunk = PixelsToLogits(without_head(model), recipe, precision="float32", device=device)
    batches = iter(centres(data, recipe, device=device, world=world, how=how))
    for _ in range(-(-len(data) // (world.count * EVALUATED))):
        batch = next(batches, None)  # none for those with one image less than the first process
        if batch is None:
            yield torch.zeros(0, model.fc.in_features, device=device)  # type: ignore[union-attr, arg-type]
        else:
            yield trunk(batch.images.to(device, non_blocking=True))
