"""The seam to `longtail.kernels`: when the Triton kernel serves a call, and the call itself."""

from __future__ import annotations

import torch
from torch import Tensor

from longtail.kernels import cross_entropy
from longtail.kernels._inputs import loss_dtype
from longtail.losses._tensors import MarginTensors


def obstacle(logits: Tensor, margin: MarginTensors, *, soft: bool, dropped: bool) -> str | None:
    """Why the kernel can't serve, or None if it can."""
    if soft:
        return "the target holds class probabilities, not class indices;"
    if margin.dense is not None:
        return "the margin is dense, not of the form a_y + b_y';"
    if dropped:
        return "this loss drops competitors at random;"
    if not worthwhile(logits):
        return "the logits are not on a GPU, or too few, or not in rows that the kernel takes;"
    return None


def worthwhile(logits: Tensor) -> bool:
    """Return whether the kernel is the faster way."""
    return cross_entropy.worthwhile(logits)


def kernel_loss(
    logits: Tensor,
    target: Tensor,
    margin: MarginTensors,
    *,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> Tensor:
    """The loss from the kernel, for logits of any shape that `torch.nn.CrossEntropyLoss` takes."""
    factor = margin.alpha if weight is None else margin.alpha * weight.to(torch.float32)
    loss = cross_entropy.cross_entropy(
        logits,
        target,
        bias=margin.negative,
        lower=margin.positive + margin.negative,
        scale=margin.scale,
        weight=factor,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
        mean_weight=weight,
    )
    return loss.to(loss_dtype(logits))
