"""A run on photographs whose classifier is cut over the processes: each holds a slice of classes.

The features are data-parallel as in `streamed`; their gradients are averaged. The classifier is
a `ShardedHead`: it gathers the features of all processes, and no process ever holds all logits.
What is saved has the names and shapes of the whole network, so a checkpoint goes on with any
number of processes. Evaluation predicts without gathering logits; those of a split, where they
are to be saved, come to the first process a batch at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks

_checks.require("torch", extra="torch")

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from longtail.data.lists import ListedImages
from longtail.train.class_slices import gather_slices, local, scatter_slices
from longtail.train.distributed import ALONE, World, lost_neighbors
from longtail.train.recipe import Recipe
from longtail.train.sharded_head import ShardedHead
from longtail.train.streamed import (
    EVALUATED,
    Part,
    PixelsToLogits,
    Streaming,
    WholeClassifier,
    centres,
    judging,
)


def shard(model: nn.Module, world: World, device: torch.device) -> nn.Module:
    """Put a network on a process's device, its last layer `fc` cut over the processes, in place.

    Args:
        model: on the CPU, whole and the same in every process; no device gets the whole layer.
        world: the processes.
        device: of this one.
    """
    fc = model.fc
    model.fc = nn.Identity()
    model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    mesh = _mesh(world, device)
    with torch.random.fork_rng(devices=[]), lost_neighbors():  # it draws a start of its own first
        model.fc = ShardedHead.from_linear(fc, mesh=mesh, batch="split", device=device)  # type: ignore[arg-type]
    return model


def _mesh(world: World, device: torch.device) -> DeviceMesh | None:
    """The processes as DTensor wants them; None for one alone, which has ordinary tensors."""
    return init_device_mesh(device.type, (world.count,)) if world.count > 1 else None


def _without_head(model: nn.Module) -> nn.Module:
    """The same network, sharing its layers, but with the features for logits."""
    trunk = copy.copy(model)
    trunk._modules = {**model._modules, "fc": nn.Identity()}
    return trunk


class ShardedClassifier(WholeClassifier):
    """The last layer of a `streamed.StreamedTraining`, cut over its processes."""

    def place(self, model: nn.Module) -> nn.Module:
        """The network on the device, with this process's slice."""
        self._rows: dict[int, list[list[int]]] = {}  # of a batch's size: by part and process
        return shard(model, self.training.world, self.training.device)

    def module(self) -> nn.Module:
        """What a step calls whose parameters are whole in every process: the features."""
        one = self.training
        trunk = _without_head(one.model)
        return PixelsToLogits(trunk, one.recipe, precision=one.precision, device=one.device)

    def draw(self, size: int) -> None:
        """Nothing: no loss that draws goes with slices."""

    def sum(self, part: Part, drawn: Tensor | None, place: int) -> Tensor:
        """An equal part of the sum over all processes, which each of them knows."""
        one = self.training
        features, labels = one.call(part.images), part.labels
        if not part.counts:
            labels = torch.full_like(labels, one.criterion.ignore_index)
        rows = self._rows_of(part.number)
        whole: Tensor = one.model.fc.loss(features, labels, one.criterion, rows=rows)  # type: ignore[union-attr, operator]
        return whole / one.world.count

    def _rows_of(self, number: int) -> list[int] | None:
        """How many examples each process has in a part of the step, if that is known already."""
        one = self.training
        if one.how.on_error == "skip":
            return None
        size = one.batch_sizes[one.at]
        if size not in self._rows:
            everyone = [replace(one.world, rank=rank) for rank in range(one.world.count)]
            parts = [one.parts_of(0, size, other) for other in everyone]
            self._rows[size] = [
                [len(part) for part in parts_of] for parts_of in zip(*parts, strict=True)
            ]
        return self._rows[size][number]


def gathered(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors without slices, on the first process; the others keep only what is whole."""
    with lost_neighbors():
        found = {
            name: gather_slices(value) if hasattr(value, "to_local") else value
            for name, value in tensors.items()
        }
    return {name: value for name, value in found.items() if value is not None}


def scatter(sliced: Mapping[str, Tensor], whole: Mapping[str, Tensor] | None) -> None:
    """Fill tensors in slices from whole ones, which the first process has."""
    with lost_neighbors():
        for name, value in sliced.items():
            scatter_slices(value, None if whole is None else whole[name])


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
    with judging(model), lost_neighbors():
        found = [
            model.fc.predict(features)  # type: ignore[union-attr, operator]
            for features in _features(model, data, recipe, world, how)
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
        model: and what follows: see `sharded_predictions`.
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
    with judging(model), lost_neighbors():
        for number, features in enumerate(_features(model, data, recipe, world, how)):
            own = local(head(features)).t().contiguous()  # type: ignore[operator]
            columns = gather_slices(head.sliced(own))  # type: ignore[union-attr, operator]
            if whole is not None and columns is not None:
                # The examples of all processes, process after process.
                batch = slice(number * EVALUATED, (number + 1) * EVALUATED)
                ranks = [range(rank, examples, world.count)[batch] for rank in range(world.count)]
                whole[[row for rows in ranks for row in rows]] = columns.t().numpy()
    return whole


def _features(
    model: nn.Module, data: ListedImages, recipe: Recipe, world: World, how: Streaming | None
) -> Iterator[Tensor]:
    """The features of this process's images, in as many batches as every other process has."""
    device = next(model.parameters()).device
    trunk = PixelsToLogits(_without_head(model), recipe, precision="float32", device=device)
    batches = iter(centres(data, recipe, device=device, world=world, how=how))
    for _ in range(-(-len(data) // (world.count * EVALUATED))):
        batch = next(batches, None)  # none for those with one image less than the first process
        if batch is None:
            yield torch.zeros(0, model.fc.in_features, device=device)  # type: ignore[union-attr, arg-type]
        else:
            yield trunk(batch.images.to(device, non_blocking=True))
