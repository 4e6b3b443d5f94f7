"""The recipe's optimiser: which parameters it treats alike, its rate and its state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from longtail.train.recipe import Recipe


def make_optimizer(model: nn.Module, recipe: Recipe, device: torch.device) -> torch.optim.Optimizer:
    """Return the recipe's optimiser; with ``decay="not-norm"`` batch norm's parameters don't decay.

    The last layer has a group of its own where its rate differs (`head_lr`). Parameters without
    gradients, of a frozen backbone, are left out.

    On a GPU the learning rate is a tensor, so that a captured step can look it up. The slices of
    a sharded classifier can't be stepped in one sweep with whole parameters: they have a group of
    their own, with a number for the learning rate.
    """
    on_gpu, adam = device.type == "cuda", recipe.optimizer == "adam"
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    free = {id(p) for m in norms for p in m.parameters()} if recipe.decay == "not-norm" else set()
    head = {id(p) for p in model.fc.parameters()} if recipe.head_lr != 1 else set()  # type: ignore[union-attr]

    rate: Any = torch.tensor(recipe.lr, device=device) if on_gpu else recipe.lr
    groups: dict[tuple[bool, bool, bool], dict[str, Any]] = {}
    for p in model.parameters():
        if not p.requires_grad:
            continue
        # DTensors have this method; to import their class takes longer than all the rest.
        key = undecayed, sliced, of_head = id(p) in free, hasattr(p, "to_local"), id(p) in head
        if key not in groups:
            options: dict[str, Any] = {"weight_decay": 0.0} if undecayed else {}
            if of_head:
                options |= {"lr": rate.clone() if on_gpu else rate, "factor": recipe.head_lr}
            if sliced:
                options |= {"lr": recipe.lr, "foreach": False, "fused": False}
                options |= {"capturable": False} if adam else {}
            groups[key] = {"params": [], **options}
        groups[key]["params"].append(p)
    settings: dict[str, Any] = {
        "params": [groups[key] for key in sorted(groups)],
        "lr": rate,
        "weight_decay": recipe.weight_decay,
        # On a CPU an Adam that is not fused takes a fifth of a step of a head on embeddings.
        "fused": True if on_gpu or adam else None,
    }
    made: torch.optim.Optimizer
    if adam:
        made = torch.optim.Adam(capturable=on_gpu, **settings)
    else:
        nesterov = recipe.optimizer == "nesterov"
        made = torch.optim.SGD(momentum=recipe.momentum, nesterov=nesterov, **settings)
    # It makes its state now, at zero, where checkpoints and graphs find it: by a step that is
    # taken back.
    parameters = [p for group in made.param_groups for p in group["params"]]
    before = [parameter.detach().clone() for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    made.step()
    with torch.no_grad():
        for parameter, start in zip(parameters, before, strict=True):
            parameter.copy_(start)
            parameter.grad = None
        for state in made.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()
    return made


def set_rate(optimizer: torch.optim.Optimizer, rate: Tensor | float) -> None:
    """Set the rate of the coming step: a number, or a tensor of shape (1,) where the rates are."""
    for group in optimizer.param_groups:
        factor = group.get("factor", 1.0)
        if not isinstance(group["lr"], Tensor):
            group["lr"] = factor * float(rate)
        elif isinstance(rate, Tensor):
            group["lr"].copy_(rate[0] if factor == 1 else factor * rate[0])
        else:  # unlike a copy from the host's memory, this waits for nothing
            group["lr"].fill_(factor * rate)
