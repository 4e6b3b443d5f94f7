"""Sampled softmax: the loss of features, classifier weights and target from a few drawn classes.

The negatives are drawn from q, with replacement, and shared by the batch; a class that is drawn
repeatedly counts repeatedly. Their correction makes the sum over them an unbiased estimate of the
sum over all other classes, whatever the margin. No other class's logit is computed.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from longtail import _checks, margins
from longtail._checks import InputError
from longtail.kernels._inputs import check_labels, loss_dtype, work_dtype
from longtail.losses.pairwise import MarginModule, counted, of_each
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
    if (num_sampled is None) == (sampled is None):
        raise InputError(
            "pass one of `num_sampled`, the number of negatives to draw, and `sampled`, the "
            "negatives themselves."
        )
    loss = SampledSoftmaxLoss(
        q,
        num_sampled=1 if num_sampled is None else num_sampled,
        margin=margin,
        class_weight=class_weight,
        ignore_index=ignore_index,
        reduction=reduction,
        sparse=sparse,
        generator=generator,
        dtype=features.dtype,
    ).to(features.device, non_blocking=True)
    return loss.forward(features, weight, target, bias=bias, sampled=sampled)


class SampledSoftmaxLoss(MarginModule):
    """`sampled_softmax_loss` with the proposal q and the margin as buffers, for training loops.

    It draws in `eval()` mode too. For evaluation take the loss of all logits instead.

    Args:
        q: the distribution of the negatives.
        num_sampled: m.
        margin: as in the function, like class_weight, ignore_index, reduction, sparse, generator.
        dtype: as in `LossOptions`.

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
    shown = ("num_sampled",)

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
        dtype: torch.dtype | None = None,
    ) -> None:
        q = _checks.prior(q, name="q")
        super().__init__(margin or margins.softmax(q), reduction=reduction, dtype=dtype)
        if self.num_classes != q.num_classes:
            raise InputError(
                f"`margin` has {self.num_classes} classes but `q` has {q.num_classes}."
            )
        if self.dense is not None:
            raise InputError(
                "`margin` is dense, a number for each pair of classes; with so many classes that "
                "negatives are sampled it must be of the form a_y + b_y'."
            )
        self.num_sampled = _checks.whole(num_sampled, name="num_sampled")
        self._keep("log_q", q.log_probs)
        self._keep_weight("class_weight", class_weight)
        sums = torch.from_numpy(np.cumsum(q.probs))
        self.register_buffer("cumulative", sums / sums[-1], persistent=False)
        self.ignore_index, self.sparse, self.generator = ignore_index, sparse, generator

    def draw(self) -> Tensor:
        """Draw negatives, shape (num_sampled,), on the buffers' device; O(num_sampled · log C)."""
        like, device = torch.float64, self.cumulative.device
        chance = torch.rand(self.num_sampled, generator=self.generator, device=device, dtype=like)
        return torch.searchsorted(self.cumulative, chance, right=True)

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
        if weight.shape[0] != self.num_classes:
            raise InputError(
                f"`weight` must have a row for each of the {self.num_classes} classes of `q`; its "
                f"shape is {tuple(weight.shape)}."
            )
        sampled = self.draw() if sampled is None else sampled.to(features.device).long()
        check_labels(target, len(features))
        target, work = target.long(), work_dtype(features)
        index = target.masked_fill(target == self.ignore_index, 0)
        (alpha, margin, lower), factor = self.parts(), self._buffers["_factor"]

        # One look-up for negatives and targets, so that the sparse gradient is one tensor.
        rows = F.embedding(torch.cat([sampled, index]), weight, sparse=self.sparse)
        negatives, targets = rows[: len(sampled)], rows[len(sampled) :]
        scores = (features @ negatives.t()).to(work)
        itself = (features.to(work) * targets.to(work)).sum(1)
        for values in (bias, margin):
            if values is not None:
                scores, itself = scores + values[sampled], itself + values[index]
        if lower is not None:
            itself = itself - lower[index]
        if factor is not None:
            scores, itself = factor * scores, factor * itself
        scores = scores - (self.log_q[sampled] + math.log(len(sampled))).to(work)
        hits = sampled.unsqueeze(0) == index.unsqueeze(1)
        rest = scores.masked_fill(hits, torch.finfo(work).min).logsumexp(1)
        losses = F.softplus(rest - itself, threshold=40.0)
        for w in (alpha, self.class_weight):
            losses = losses if w is None else losses * of_each(w, index)
        losses = losses.to(work).masked_fill(target == self.ignore_index, 0.0)
        if self.reduction != "none":
            losses = losses.sum()
        if self.reduction == "mean":
            losses = losses / counted(target, self.class_weight, self.ignore_index).sum()
        return losses.to(loss_dtype(features))
