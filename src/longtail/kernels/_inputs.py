"""Checks and types that operations on logits and features share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longtail._checks import InputError


def check_factors(features: Any, weight: Any) -> None:
    """Refuse features and weights whose product is no matrix of logits."""
    for name, tensor in (("features", features), ("weight", weight)):
        if not isinstance(tensor, Tensor) or tensor.ndim != 2 or not tensor.is_floating_point():
            raise InputError(
                f"`{name}` must be a floating-point tensor of two dimensions; got "
                f"{what_came(tensor)}."
            )
    if features.shape[1] != weight.shape[1]:
        raise InputError(
            f"`features` and `weight` must agree in their last dimension; their shapes "
            f"are {tuple(features.shape)} and {tuple(weight.shape)}."
        )
    if _factor_dtype(features) != _factor_dtype(weight):
        raise InputError(
            f"`features` and `weight` must have one type, but are in {features.dtype} "
            f"and {weight.dtype}; pass features.to(weight.dtype), or use torch.autocast, which "
            f"brings both into its own."
        )


def check_labels(target: Any, rows: int, *, of: str) -> None:
    """Refuse a target that is not one integer label per row.

    Args:
        target: as it came.
        rows: how many there are.
        of: what has them, ``logits`` or ``features``.
    """
    if not isinstance(target, Tensor) or target.shape != (rows,):
        raise InputError(
            f"`target` must be a tensor of shape ({rows},), one label per "
            f"row of the {of}; got {what_came(target)}."
        )
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise InputError(f"`target` must be integer class labels; their dtype is {target.dtype}.")


def what_came(value: Any) -> object:
    """Return the shape of a tensor, the type of anything else."""
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


def under_autocast(device: torch.device) -> bool:
    """Return whether autocast is on; never on the meta device, which has none."""
    # `torch.amp.is_autocast_available` would be the general question; torch 2.11 can't compile it.
    kind = device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)


def in_autocast_type(tensor: Tensor) -> Tensor:
    """Cast a factor of a matrix product as autocast does, which leaves float64 alone."""
    return tensor.to(_factor_dtype(tensor))


def _factor_dtype(tensor: Tensor) -> torch.dtype:
    if not under_autocast(tensor.device) or tensor.dtype == torch.float64:
        return tensor.dtype
    return torch.get_autocast_dtype(tensor.device.type)


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
