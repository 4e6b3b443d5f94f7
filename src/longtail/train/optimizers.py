"""The recipe's optimiser, and which parameters it treats alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from longtail import _checks

_checks.require("torch", extra="torch", caller=__name__)

import torch
from torch import nn

from longtail.train.recipe import Recipe


def make_optimizer(model: nn.Module, recipe: Recipe, device: torch.device) -> torch.optim.Optimizer:
    """The recipe's optimiser; with ``decay="not-norm"`` batch norm's parameters don't decay.

    On a GPU the learning rate is a tensor, so that a captured step can look it up. The slices of
    a sharded classifier can't be stepped in one sweep with others: they have a group of their
    own, behind those that they would be among, and a number for the learning rate.
    """
    norm = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.BatchNorm2d)
        for parameter in module.parameters()
    }
    free = norm if recipe.decay == "not-norm" else set()
    on_gpu = device.type == "cuda"
    settings: dict[str, Any] = {
        "params": [
            *_groups([p for p in model.parameters() if id(p) not in free], recipe),
            *_groups([p for p in model.parameters() if id(p) in free], recipe, weight_decay=0.0),
        ],
        "lr": torch.tensor(recipe.lr, device=device) if on_gpu else recipe.lr,
        "weight_decay": recipe.weight_decay,
        "fused": True if on_gpu else None,
    }
    if recipe.optimizer == "adam":
        return torch.optim.Adam(capturable=on_gpu, **settings)
    return torch.optim.SGD(
        momentum=recipe.momentum, nesterov=recipe.optimizer == "nesterov", **settings
    )


def _groups(
    parameters: list[nn.Parameter], recipe: Recipe, **settings: Any
) -> Iterator[dict[str, Any]]:
    """Parameters that are treated alike: those that are whole, then those in slices."""
    # DTensors have this method; to import their class takes longer than all the rest.
    sliced = [p for p in parameters if hasattr(p, "to_local")]
    whole = [p for p in parameters if not hasattr(p, "to_local")]
    if whole:
        yield {"params": whole, **settings}
    if sliced:
        one_by_one: dict[str, Any] = {"lr": recipe.lr, "foreach": False, "fused": False}
        if recipe.optimizer == "adam":
            one_by_one["capturable"] = False
        yield {"params": sliced, **one_by_one, **settings}
