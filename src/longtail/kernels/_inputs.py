"""Checks and types that losses of logits and of features share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longtail._checks import InputError


def check_labels(target: Any, rows: int) -> None:
    """Refuse a target that is not one integer label for each row of the features."""
    if not isinstance(target, Tensor) or target.shape != (rows,):
        came = tuple(target.shape) if isinstance(target, Tensor) else type(target).__name__
        raise InputError(
            f"`target` must be a tensor of shape ({rows},), one label per row of the features; "
            f"got {came}."
        )
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise InputError(f"`target` must be integer class labels; their dtype is {target.dtype}.")


def under_autocast(device: torch.device) -> bool:
    """Return whether autocast is on; never on the meta device, which has none."""
    # `torch.amp.is_autocast_available` would be the general question; torch 2.11 can't compile it.
    kind = device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)


def loss_dtype(logits: Tensor) -> torch.dtype:
    """Return float32 under autocast, as for torch's losses; elsewhere the type of the logits."""
    return work_dtype(logits) if under_autocast(logits.device) else logits.dtype


def work_dtype(tensor: Tensor) -> torch.dtype:
    """Return the type to compute in: float32, but float64 where the tensor is."""
    return torch.promote_types(tensor.dtype, torch.float32)


def refuse_second_derivative(what: str, instead: str) -> None:
    """Raise in a backward pass written by hand if autograd is to differentiate it.

    Args:
        what: the loss, as the user knows it.
        instead: what has a second derivative, as a command.
    """
    if torch.is_grad_enabled():  # create_graph=True
        raise RuntimeError(
            f"{what} has no second derivative; {instead} where the gradient is to be "
            f"differentiated (create_graph=True)."
        )
