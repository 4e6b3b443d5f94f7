"""The recipe's optimiser, and which parameters it treats alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from longtail.train.recipe import Recipe


def parameter_groups(model: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """The parameters by what the recipe does to them, in the order in which checkpoints count them.

    With ``decay="not-norm"`` batch norm's parameters don't decay.
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
    return [group for group in groups if group["params"]]


def make_optimizer(
    model: nn.Module, recipe: Recipe, device: torch.device, *, apart: Iterable[nn.Parameter] = ()
) -> torch.optim.Optimizer:
    """The recipe's optimiser, see `parameter_groups`.

    On a GPU the learning rate is a tensor, so that a captured step can look it up.

    Args:
        model: whose parameters it steps.
        recipe: how.
        device: where they are.
        apart: those of the parameters that can't be stepped in one sweep with others, as the
            slices of a sharded classifier; their learning rate is a number.
    """
    on_gpu, singled = device.type == "cuda", {id(parameter) for parameter in apart}
    groups = []
    for group in parameter_groups(model, recipe):
        together = [p for p in group["params"] if id(p) not in singled]
        alone = [p for p in group["params"] if id(p) in singled]
        if together:
            groups.append({**group, "params": together})
        if alone:
            one_by_one = {"lr": recipe.lr, "foreach": False, "fused": False}
            groups.append({**group, **one_by_one, "params": alone})
            if recipe.optimizer == "adam":
                groups[-1]["capturable"] = False
    settings: dict[str, Any] = {
        "params": groups,
        "lr": torch.tensor(recipe.lr, device=device) if on_gpu else recipe.lr,
        "weight_decay": recipe.weight_decay,
        "fused": True if on_gpu else None,
    }
    if recipe.optimizer == "adam":
        return torch.optim.Adam(capturable=on_gpu, **settings)
    return torch.optim.SGD(
        momentum=recipe.momentum, nesterov=recipe.optimizer == "nesterov", **settings
    )
