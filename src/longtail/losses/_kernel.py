"""The seam to `longtail.kernels`: when the Triton kernel serves a call, and the call itself."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from longtail.kernels import cross_entropy
from longtail.losses._tensors import MarginTensors


def obstacle(logits: Tensor, margin: MarginTensors, *, soft: bool, dropped: bool) -> str | None:
    """Why the kernel can't serve, or None if it can."""
    if soft:
        return "the target holds class probabilities, not class indices;"
    if margin.dense is not None:
        return "the margin is dense, not of the form a_y + b_y';"
    if dropped:
        return "this loss drops competitors at random;"
    if type(logits) not in (Tensor, nn.Parameter):
        return f"the logits are a {type(logits).__name__};"
    return cross_entropy.unavailable(logits)


def worthwhile(logits: Tensor) -> bool:
    """Whether the kernel is the faster way: on a GPU, for logits that need no copy to be rows."""
    return logits.is_cuda and logits.ndim == 2


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
    dim = min(logits.ndim - 1, 1)
    rows = logits.movedim(dim, -1).reshape(-1, logits.shape[dim])
    loss = cross_entropy.margin_cross_entropy(
        rows,
        target.reshape(-1),
        offset=margin.negative,
        positive=margin.positive,
        alpha=margin.alpha,
        weight=None if weight is None else weight.to(torch.float32),
        scale=margin.scale,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )
    return loss.reshape(target.shape) if reduction == "none" else loss
