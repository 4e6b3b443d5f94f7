"""The loss of examples with two labels, as CutMix and mixup make them; no matrix of probabilities.

    ℓ = λ · ℓ(y, f) + (1 − λ) · ℓ(y', f)

The family is linear in the class probabilities, so this is its loss with λ on y and 1 − λ on y',
at the cost of two losses with class indices: O(C), by the kernel where it serves.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from torch import Tensor

from longtail import _checks
from longtail._checks import InputError
from longtail.kernels._inputs import loss_dtype
from longtail.losses._family import family_loss, seen_range
from longtail.losses._tensors import MarginTensors


def mixed_loss(
    logits: Tensor,
    first: Tensor,
    second: Tensor,
    share: Tensor | float,
    margin: MarginTensors,
    *,
    caller: str,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    **options: Any,
) -> Tensor:
    """λ · ℓ(y, f) + (1 − λ) · ℓ(y', f) per example, then the reduction.

    Args:
        logits: f, as in `family_loss`.
        first: y, class indices.
        second: y', likewise.
        share: λ in [0, 1], floating point: one for all examples, or of the shape of `first`.
        margin: as in `family_loss`, and so are the following.
        caller: whose name the errors carry.
        weight: w; the mean divides by Σ λ w_y + (1 − λ) w_{y'}, as it does for one label.
        ignore_index: a label of this value counts for nothing.
        reduction: "mean", "sum" or "none".
        **options: of `family_loss`.

    Returns:
        A scalar, or the shape of `first`.
    """
    share = _shares(share, first, second, caller=caller)
    out = loss_dtype(logits)
    if logits.dtype.itemsize < 4:  # so that the two parts are not rounded before they are added
        logits = logits.float()
    losses = [
        family_loss(
            logits,
            target,
            margin,
            caller=caller,
            weight=weight,
            ignore_index=ignore_index,
            reduction="none",
            **options,
        )
        for target in (first, second)
    ]
    share = share.to(losses[0].dtype)
    both = torch.lerp(losses[1], losses[0], share)
    if reduction == "none":
        return both.to(out)
    if reduction == "sum":
        return both.sum().to(out)
    counts = []
    for target in (first.long(), second.long()):  # uint8 would be a mask, and wrap around
        there = target != ignore_index
        if weight is not None:
            there = weight[target.masked_fill(~there, 0)] * there
        counts.append(there.to(share.dtype))
    return (both.sum() / torch.lerp(counts[1], counts[0], share).sum()).to(out)


def _shares(share: Any, first: Tensor, second: Tensor, *, caller: str) -> Tensor:
    """λ of each example, looked at where that is free."""
    if isinstance(share, Real):
        share = torch.full(
            first.shape,
            _checks.fraction(share, caller, name="share"),
            dtype=torch.float64 if first.device.type == "cpu" else torch.float32,
            device=first.device,
        )
    if not isinstance(share, Tensor) or not share.is_floating_point():
        came = share.dtype if isinstance(share, Tensor) else type(share).__name__
        raise InputError(
            f"{caller}: `share` must be a number in [0, 1] or a floating-point tensor; got {came}."
        )
    shares: Tensor = share.expand(first.shape) if share.ndim == 0 else share
    if shares.shape != first.shape or second.shape != first.shape:
        raise InputError(
            f"{caller}: the two labels and `share` must have one shape; they have "
            f"{tuple(first.shape)}, {tuple(second.shape)} and {tuple(shares.shape)}."
        )
    seen = seen_range(shares)
    if seen is not None and not (seen[0] >= 0 and seen[1] <= 1):
        low, high = seen
        raise InputError(f"{caller}: `share` must lie in [0, 1]; it goes from {low:g} to {high:g}.")
    return shares
