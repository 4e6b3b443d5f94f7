"""Features, classifier weights and target in, loss out, without all the logits at once."""

from __future__ import annotations

import torch
from torch import Tensor

from longtail._checks import InputError
from longtail.kernels import linear_cross_entropy as chunked
from longtail.kernels._inputs import check_labels, loss_dtype
from longtail.losses.named import EqualizedThresholdLoss
from longtail.losses.pairwise import PairwiseMarginLoss, class_weights, counted


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
    own, drops = criterion.numbers(), isinstance(criterion, EqualizedThresholdLoss)
    if own.label_smoothing > 0 or own.dense is not None or drops:
        raise InputError(
            "label smoothing, dense margins and EqualizedThresholdLoss need all logits at once: "
            "take criterion(linear(features), target)."
        )
    if weight.shape[0] != own.num_classes:
        raise InputError(
            f"`weight` must have a row for each of the loss's {own.num_classes} classes; its shape "
            f"is {tuple(weight.shape)}."
        )
    check_labels(target, len(features), of="features")
    target, divisor = target.long(), None
    if own.reduction == "sum":
        divisor = features.new_ones((), dtype=torch.float32)
    elif own.reduction == "mean":
        divisor = counted(target, own).sum()
    loss = chunked.linear_cross_entropy(
        features,
        weight,
        bias,
        target,
        divisor,
        bias=own.bias,
        lower=own.lower,
        class_weight=class_weights(own),
        scale=own.scale,
        ignore_index=own.ignore_index,
    )
    return loss.to(loss_dtype(features))
