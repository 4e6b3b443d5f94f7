"""Runs on photographs whose classifier is cut over processes, each with a slice of the classes.

The features are data-parallel as in `streamed`; their gradients are averaged. The classifier is
a `ShardedHead`: it gathers the features of all processes, and no process ever holds all logits.
What is saved has the names and shapes of the whole network, so a checkpoint goes on with any
number of processes. Evaluation predicts without gathering logits; those of a split, where they
are to be saved, come to the first process a batch at a time.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from longtail.data.lists import ListedImages
from longtail.train.distributed import ALONE, World
from longtail.train.recipe import Recipe
from longtail.train.sharded_head import ShardedHead, gather_slices, local
from longtail.train.streamed import EVALUATED, Streaming, judging, stream_outputs


def shard(model: nn.Module, world: World, device: torch.device) -> nn.Module:
    """Put a network on a process's device, its last layer `fc` cut over the processes, in place.

    Before, it is on the CPU, whole and the same in every process; no device gets the whole layer.
    """
    fc: Any = model.fc
    model.fc = nn.Identity()
    model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    mesh = _mesh(world, device)
    with torch.random.fork_rng(devices=[]):  # it draws a start of its own first
        model.fc = ShardedHead.from_linear(fc, mesh=mesh, batch="split", device=device)
    return model


def _mesh(world: World, device: torch.device) -> Any:
    """Return the mesh of the processes; None for one alone, which has ordinary tensors."""
    return init_device_mesh(device.type, (world.count,)) if world.count > 1 else None


def without_head(model: nn.Module) -> nn.Module:
    """Return a network that shares the layers and returns features in place of logits."""
    trunk = copy.copy(model)
    trunk._modules = {**model._modules, "fc": nn.Identity()}
    return trunk


def sharded_predictions(
    model: nn.Module,
    data: ListedImages,
    recipe: Recipe,
    *,
    world: World = ALONE,
    how: Streaming | None = None,
) -> NDArray[Any] | None:
    """Return the predicted classes, in the data's order, on the first process; else None.

    They are found among each process's best candidates.
    """
    head: Any = model.fc
    with judging(model):
        outputs = stream_outputs(without_head(model), data, recipe, head.in_features, world, how)
        found = [head.predict(features) for features in outputs]
    return world.gather(torch.cat(found), len(data))


def sharded_logits(
    model: nn.Module,
    data: ListedImages,
    recipe: Recipe,
    *,
    world: World = ALONE,
    how: Streaming | None = None,
) -> NDArray[Any] | None:
    """Return all float32 logits on the CPU of the first process; None on the others."""
    head: Any = model.fc
    examples = len(data)
    whole = np.empty((examples, data.num_classes), np.float32) if world.rank == 0 else None
    with judging(model):
        outputs = stream_outputs(without_head(model), data, recipe, head.in_features, world, how)
        for number, features in enumerate(outputs):
            columns = gather_slices(head.sliced(local(head(features)).t().contiguous()))
            if whole is not None and columns is not None:
                # The examples of all processes, process after process.
                batch = slice(number * EVALUATED, (number + 1) * EVALUATED)
                ranks = [range(rank, examples, world.count)[batch] for rank in range(world.count)]
                whole[[row for rows in ranks for row in rows]] = columns.t().numpy()
    return whole
