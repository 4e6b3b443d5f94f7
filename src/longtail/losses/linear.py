"""Features, classifier weights and target in, loss out, without all the logits at once."""

from __future__ import annotations

from torch import Tensor

from longtail._checks import InputError
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
        weight: of the classifier, shape (C, D).
        target: class indices, shape (N,).
        criterion: a loss of this package on the features' device, without label smoothing, with an
            additive margin; its class weights, `ignore_index` and reduction apply.
        bias: of the classifier, shape (C,).

    Returns:
        As from the criterion.
    """
    from longtail.kernels.linear_cross_entropy import linear_cross_entropy as chunked

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
    if weight.shape[0] != own.num_classes or target.shape != features.shape[:1]:
        raise InputError(
            f"`weight` must have a row for each of the loss's {own.num_classes} classes, and "
            f"`target` a label for each row of the features; the shapes are "
            f"{tuple(features.shape)}, {tuple(weight.shape)} and {tuple(target.shape)}."
        )
    target = target.long()
    loss = chunked(
        features,
        weight,
        target,
        linear_bias=bias,
        bias=own.bias,
        lower=own.lower,
        scale=own.scale,
        class_weight=class_weights(own),
        ignore_index=own.ignore_index,
        reduction="none" if own.reduction == "none" else "sum",
    )
    return loss / counted(target, own).sum() if own.reduction == "mean" else loss
