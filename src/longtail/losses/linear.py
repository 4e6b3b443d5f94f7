"""Features, classifier weights and target in, loss out, without all the logits at once."""

from __future__ import annotations

from torch import Tensor

from longtail._checks import InputError
from longtail.losses.named import EqualizedThresholdLoss
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
        weight: of the classifier, shape (C, D).
        target: class indices, shape (N,).
        criterion: a loss of this package on the features' device, without label smoothing, with an
            additive margin; its class weights, `ignore_index` and reduction apply.
        bias: of the classifier, shape (C,).

    Returns:
        As from the criterion.

    Examples:
        >>> import torch
        >>> from longtail import ClassPrior
        >>> from longtail.losses import LogitAdjustedLoss
        >>> criterion = LogitAdjustedLoss(ClassPrior.from_probs([0.75, 0.25]))
        >>> args = torch.ones(1, 4), torch.zeros(2, 4), torch.tensor([1])
        >>> linear_cross_entropy(*args, criterion)  # log 4
        tensor(1.3863)
    """
    from longtail.kernels.linear_cross_entropy import linear_cross_entropy as chunked

    if not isinstance(criterion, PairwiseMarginLoss):
        raise InputError(
            f"`criterion` must be a loss of longtail.losses, such as LogitAdjustedLoss(prior); got "
            f"{type(criterion).__name__}."
        )
    margin, class_weight, ignore_index, smoothing, reduction, _ = criterion._parts()
    drops = isinstance(criterion, EqualizedThresholdLoss)
    if smoothing > 0 or margin.dense is not None or drops:
        raise InputError(
            "label smoothing, dense margins and EqualizedThresholdLoss need all logits at once: "
            "take criterion(linear(features), target)."
        )
    if weight.shape[0] != margin.num_classes or target.shape != features.shape[:1]:
        raise InputError(
            f"`weight` must have a row for each of the loss's {margin.num_classes} classes, and "
            f"`target` a label for each row of the features; the shapes are "
            f"{tuple(features.shape)}, {tuple(weight.shape)} and {tuple(target.shape)}."
        )
    target = target.long()
    w = class_weight
    if margin.alpha is not None:
        w = margin.alpha if w is None else margin.alpha * w
    loss = chunked(
        features,
        weight,
        target,
        linear_bias=bias,
        bias=margin.bias,
        lower=margin.lower,
        scale=margin.scale,
        class_weight=w,
        ignore_index=ignore_index,
        reduction="none" if reduction == "none" else "sum",
    )
    if reduction == "mean":
        loss = loss / counted(target, class_weight, ignore_index).sum()
    return loss
