"""Features, classifier weights and target in, loss out, without all the logits at once."""

from __future__ import annotations

import torch
from torch import Tensor

from longtail._checks import InputError
from longtail.kernels import linear_cross_entropy as chunked
from longtail.kernels._inputs import check_labels, loss_dtype
from longtail.losses.pairwise import PairwiseMarginLoss, counted


def linear_cross_entropy(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    criterion: PairwiseMarginLoss,
    *,
    bias: Tensor | None = None,
) -> Tensor:
    """Return `criterion` of the logits features @ weight.T + bias, holding a few rows of them.

    Values and gradients are those of the layer followed by the loss. What it saves is memory: of
    N × C logits with their gradient, only a chunk of rows exists at a time. It has no second
    derivative.

    Args:
        features: shape (N, D).
        weight: of the classifier, shape (C, D), in the features' type.
        target: class indices, shape (N,).
        criterion: a loss of this package on the features' device, without label smoothing, with an
            additive margin; its class weights, `ignore_index` and reduction apply.
        bias: of the classifier, shape (C,).

    Returns:
        As from the criterion.

    Examples:
        >>> from longtail import ClassPrior
        >>> from longtail.losses import LogitAdjustedLoss
        >>> features, weight = torch.ones(2, 4), torch.zeros(3, 4)
        >>> criterion = LogitAdjustedLoss(ClassPrior.uniform(3))
        >>> linear_cross_entropy(features, weight, torch.tensor([0, 2]), criterion)  # log 3
        tensor(1.0986)
    """
    if not isinstance(criterion, PairwiseMarginLoss):
        raise InputError(
            f"`criterion` must be a loss of longtail.losses, such as LogitAdjustedLoss(prior); got "
            f"{type(criterion).__name__}."
        )
    if criterion.whole_rows:
        raise InputError(
            "label smoothing, dense margins and EqualizedThresholdLoss need all logits at once: "
            "take criterion(linear(features), target)."
        )
    if weight.shape[0] != criterion.num_classes:
        raise InputError(
            f"`weight` must have a row for each of the loss's {criterion.num_classes} classes; its "
            f"shape is {tuple(weight.shape)}."
        )
    check_labels(target, len(features), of="features")
    target, divisor, ignored = target.long(), None, criterion.ignore_index
    (alpha, margin, lower), w = criterion.parts(), criterion.weight
    if criterion.reduction == "sum":
        divisor = features.new_ones((), dtype=torch.float32)
    elif criterion.reduction == "mean":
        divisor = counted(target, w, ignored).sum()
    loss = chunked.linear_cross_entropy(
        features,
        weight,
        bias,
        target,
        divisor,
        bias=margin,
        lower=lower,
        class_weight=w if alpha is None else alpha if w is None else alpha * w,
        scale=criterion.scale,
        ignore_index=ignored,
    )
    return loss.to(loss_dtype(features))
