"""Sampled softmax: features, classifier weights and target in, loss out, from a few classes drawn.

The negatives are drawn from q, with replacement, and shared by the batch; a class that is drawn
repeatedly counts repeatedly. Their correction makes the sum over them an unbiased estimate of the
sum over all other classes, whatever the margin. No other class's logit is computed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from longtail import _checks, margins
from longtail._checks import InputError
from longtail.kernels._inputs import check_labels, loss_dtype, work_dtype
from longtail.losses.pairwise import (
    Numbers,
    PriorBuffers,
    check_margin,
    check_options,
    class_weights,
    counted,
    of_each,
    shown,
)
from longtail.margins import Margin
from longtail.priors import ClassPrior


def sampled_softmax_loss(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    q: ClassPrior,
    *,
    num_sampled: int | None = None,
    sampled: Tensor | None = None,
    bias: Tensor | None = None,
    margin: Margin | None = None,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    sparse: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """A margin loss of features @ weight.T + bias from m negatives j_1 .. j_m drawn from q.

        ℓ(y, f) = α_y · log[1 + Σ_{k: j_k≠y} exp(s·(Δ_{y j_k} + f_{j_k} − f_y) − log(m·q_{j_k}))]

    Draws that hit the target are left out, and the target itself is not corrected. Then the sum
    has the full loss's sum as its expectation, so e^{ℓ/α} − 1 is unbiased; ℓ itself is too small
    on average (its log is concave), by an error that falls as 1/m.

    With q = π and the logit-adjusted margin (τ = 1) correction and margin cancel: negatives drawn
    from the data's own frequencies count as they are, and only −log π_y is left, for the target.
    Not to be confused with τ = −1, which corrects every logit by −log π, the target's as well,
    each class counting once: `logit_adjusted_loss(..., tau=-1)`.

    Args:
        features: shape (N, D).
        weight: of the classifier, shape (C, D).
        target: class indices, shape (N,).
        q: the distribution of the negatives, such as the prior of the training data, or
            `ClassPrior.uniform(C)`.
        num_sampled: m, the same negatives for the whole batch.
        sampled: instead of `num_sampled`: the negatives themselves, shape (m,), drawn from q
            elsewhere; the targets of a batch are such draws, with q = π.
        bias: shape (C,).
        margin: from `longtail.margins`, with C classes, not dense; plain softmax if None.
        class_weight: w, shape (C,), torch's `weight`.
        ignore_index: targets with this value don't count.
        reduction: "mean", "sum" or "none".
        sparse: make the gradient of `weight` a sparse tensor of the rows in use, as
            torch.optim.SGD and SparseAdam take it; otherwise it is as large as `weight`.
        generator: of the draws, on the features' device; torch's own if None.

    Returns:
        A scalar, or shape (N,), in the features' type; in float32 under autocast.

    Examples:
        >>> features, weight = torch.ones(2, 4), torch.zeros(1000, 4)
        >>> q, target = ClassPrior.uniform(1000), torch.tensor([0, 999])
        >>> negatives = torch.tensor([3, 3, 5])  # each stands for a third of 1000 classes
        >>> sampled_softmax_loss(features, weight, target, q, sampled=negatives)  # log 1001
        tensor(6.9088)
    """
    chosen = _checked(q, margin, class_weight, reduction)
    if (num_sampled is None) == (sampled is None):
        raise InputError(
            "pass one of `num_sampled`, the number of negatives to draw, and `sampled`, the "
            "negatives themselves."
        )
    if sampled is None:
        count = _checks.whole(num_sampled, name="num_sampled")
        sampled = _draw(_cumulative(q).to(features.device), count, generator)
    own = Numbers.of(chosen, features, class_weight, ignore_index, 0.0, reduction)
    log_q = torch.tensor(q.log_probs).to(features.device, non_blocking=True)
    return _loss(features, weight, target, bias, sampled, log_q, own, sparse)


class SampledSoftmaxLoss(PriorBuffers):
    """`sampled_softmax_loss` with the proposal q and the margin as buffers, for training loops.

    It draws in `eval()` mode too. For evaluation take the loss of all logits instead.

    Args:
        q: the distribution of the negatives.
        num_sampled: m.
        margin, class_weight, ignore_index, reduction, sparse, generator: as in the function.

    Attributes:
        log_q: log q, a buffer of shape (num_classes,).
        cumulative: Σ_{j≤y} q_j, a buffer of shape (num_classes,), in float64.

    Examples:
        >>> prior = ClassPrior.from_counts(range(1, 1001))
        >>> loss = SampledSoftmaxLoss(prior, num_sampled=64, margin=margins.logit_adjusted(prior))
        >>> loss
        SampledSoftmaxLoss('logit-adjusted', num_classes=1000, num_sampled=64, reduction='mean')
        >>> head, features = torch.nn.Linear(8, 1000), torch.randn(32, 8)
        >>> loss(features, head.weight, torch.arange(32), bias=head.bias).backward()
    """

    log_q: Tensor
    cumulative: Tensor
    class_weight: Tensor | None

    def __init__(
        self,
        q: ClassPrior,
        *,
        num_sampled: int,
        margin: Margin | None = None,
        class_weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        sparse: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        chosen = _checked(q, margin, class_weight, reduction)
        self.num_sampled = _checks.whole(num_sampled, name="num_sampled")
        self.keep(alpha=chosen.alpha, positive=chosen.positive, negative=chosen.negative)
        self.keep(log_q=q.log_probs, _factor=None if chosen.scale == 1 else chosen.scale)
        self.keep(class_weight=class_weight, persistent=True)
        self.register_buffer("cumulative", _cumulative(q), persistent=False)
        self.name, self.scale, self.num_classes = chosen.name, float(chosen.scale), q.num_classes
        self.ignore_index, self.reduction = ignore_index, reduction
        self.sparse, self.generator = sparse, generator

    def draw(self) -> Tensor:
        """Draw negatives, shape (num_sampled,), on the buffers' device."""
        return _draw(self.cumulative, self.num_sampled, self.generator)

    def forward(
        self,
        features: Tensor,
        weight: Tensor,
        target: Tensor,
        *,
        bias: Tensor | None = None,
        sampled: Tensor | None = None,
    ) -> Tensor:
        """Return the loss with a fresh draw, or with one of `draw`; shapes as in the function."""
        buffers = self._buffers
        own = Numbers(
            self.num_classes,
            buffers["alpha"],
            buffers["negative"],
            buffers["positive"] + buffers["negative"],  # type: ignore[operator]
            None,
            buffers["_factor"],
            self.scale,
            buffers["class_weight"],
            self.ignore_index,
            reduction=self.reduction,
        )
        sampled = self.draw() if sampled is None else sampled
        return _loss(features, weight, target, bias, sampled, self.log_q, own, self.sparse)

    def extra_repr(self) -> str:
        """Return the margin's name, the classes, and the options that differ from the defaults."""
        first = {"num_classes": self.num_classes, "num_sampled": self.num_sampled}
        return shown(self.name, self, first, ignore_index=-100, sparse=False)


def _loss(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    sampled: Tensor,
    log_q: Tensor,
    own: Numbers,
    sparse: bool,
) -> Tensor:
    classes = own.num_classes
    if weight.shape[0] != classes or (bias is not None and bias.shape != (classes,)):
        came = "no bias" if bias is None else f"`bias` {tuple(bias.shape)}"
        raise InputError(
            f"`q` and `margin` have {classes} classes, so `weight` must have {classes} rows, and "
            f"`bias` one value per class; `weight` has shape {tuple(weight.shape)}, {came}."
        )
    if sampled.ndim != 1 or len(sampled) == 0:
        raise InputError(
            f"`sampled` must hold at least one class index, shape (m,); its shape is "
            f"{tuple(sampled.shape)}."
        )
    check_labels(target, len(features), of="features")
    target, sampled = target.long(), sampled.to(features.device).long()
    ignored = target == own.ignore_index
    index = target.masked_fill(ignored, 0)
    work = work_dtype(features)

    # One look-up for negatives and targets, so that a sparse gradient is one tensor.
    rows = F.embedding(torch.cat([sampled, index]), weight, sparse=sparse)
    negatives, targets = rows[: len(sampled)], rows[len(sampled) :]
    scores = (features @ negatives.t()).to(work)
    itself = (features.to(work) * targets.to(work)).sum(1)
    for values in (bias, own.bias):
        if values is not None:
            scores, itself = scores + values[sampled], itself + values[index]
    if own.lower is not None:
        itself = itself - own.lower[index]
    if own.factor is not None:
        scores, itself = own.factor * scores, own.factor * itself
    scores = scores - (log_q[sampled] + math.log(len(sampled))).to(work)
    hits = sampled.unsqueeze(0) == index.unsqueeze(1)
    rest = scores.masked_fill(hits, torch.finfo(work).min).logsumexp(1)
    losses = F.softplus(rest - itself, threshold=40.0)
    w = class_weights(own)
    if w is not None:
        losses = losses * of_each(w, index)
    losses = losses.to(work).masked_fill(ignored, 0.0)
    if own.reduction != "none":
        losses = losses.sum()
    if own.reduction == "mean":
        losses = losses / counted(target, own).sum()
    return losses.to(loss_dtype(features))


def _cumulative(q: ClassPrior) -> Tensor:
    sums = np.cumsum(q.probs)
    return torch.from_numpy(sums / sums[-1])


def _draw(cumulative: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """Draw `count` classes independently, each with its probability; O(count · log C)."""
    chance = torch.rand(count, generator=generator, device=cumulative.device, dtype=torch.float64)
    return torch.searchsorted(cumulative, chance, right=True)


def _checked(q: Any, margin: Any, class_weight: Any, reduction: str) -> Margin:
    """Check what is known before the features are; return the margin."""
    q = _checks.prior(q, name="q")
    chosen = margins.softmax(q) if margin is None else margin
    check_margin(chosen)
    if chosen.num_classes != q.num_classes:
        raise InputError(f"`margin` has {chosen.num_classes} classes but `q` has {q.num_classes}.")
    if chosen.dense is not None:
        raise InputError(
            "`margin` is dense, a number for each pair of classes; with so many classes that "
            "negatives are sampled it must be of the form a_y + b_y'."
        )
    check_options(q.num_classes, class_weight, 0.0, reduction)
    return chosen
