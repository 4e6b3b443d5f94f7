"""Sampled softmax: features, classifier weights and target in, loss out, from a few classes drawn.

The negatives are drawn from q, with replacement, and shared by the batch; a drawn class counts as
often as it was drawn. Their correction makes the sum over them an unbiased estimate of the sum
over all other classes, whatever the margin. No other class's logit is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from longtail import _checks, margins
from longtail._checks import InputError
from longtail.kernels._inputs import check_factors, check_labels, loss_dtype, what_came
from longtail.losses import _family, _tensors
from longtail.losses._loading import LoadsMargins
from longtail.losses._tensors import MarginTensors
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

    Additive margins need no other correction. With q = π and the logit-adjusted margin (τ = 1)
    the two cancel: negatives drawn from the data's own frequencies count as they are, and only
    −log π_y is left, for the target. Not to be confused with τ = −1, which corrects every logit
    by −log π, the target's as well, each class counting once: that is what is left of the
    correction without the sampling, `logit_adjusted_loss(..., tau=-1)`.

    Args:
        features: shape (N, D).
        weight: of the classifier, shape (C, D), in the type of the features; under autocast in any.
        target: class indices, shape (N,).
        q: what the negatives are drawn from, such as the prior of the training data, or
            `ClassPrior.uniform(C)`.
        num_sampled: m, the same negatives for the whole batch.
        sampled: instead of `num_sampled`: the negatives themselves, shape (m,), drawn from q
            elsewhere; the targets of a batch are such draws, with q = π.
        bias: shape (C,).
        margin: from `longtail.margins`, with C classes, not dense; plain softmax if None.
        class_weight: w, shape (C,), torch's `weight`.
        ignore_index: targets with this value count for nothing.
        reduction: "mean", "sum" or "none".
        sparse: whether the gradient of `weight` is a sparse tensor, of the rows at hand alone, as
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
    caller = "sampled_softmax_loss"
    _check_inputs(features, weight, target, bias, caller=caller)
    classes = weight.shape[0]
    _check_q(q, caller=caller, classes=classes)
    _check_margin(margin, classes, caller=caller)
    if (num_sampled is None) == (sampled is None):
        raise InputError(
            f"{caller}: pass one of `num_sampled`, how many negatives to draw, and `sampled`, "
            f"the negatives themselves."
        )
    if sampled is None:
        count = _checks.whole(num_sampled, caller, name="num_sampled")
        sampled = _draw(_cumulative(q).to(features.device), count, generator)
    chosen = margins.softmax(q) if margin is None else margin
    return _loss(
        features,
        weight,
        target,
        _check_sampled(sampled, classes, features, caller=caller),
        torch.tensor(q.log_probs).to(features.device),
        _tensors.of_margin(chosen, features.device),
        bias=bias,
        class_weight=class_weight,
        ignore_index=ignore_index,
        reduction=reduction,
        sparse=sparse,
        caller=caller,
    )


class SampledSoftmaxLoss(LoadsMargins):
    """`sampled_softmax_loss` with the proposal q and the margin as buffers, for training loops.

    It draws in `eval()` mode too. For evaluation take the loss of all logits instead.

    Args:
        q: what the negatives are drawn from.
        num_sampled: m.
        margin: as in the function, as the following.
        class_weight: see there.
        ignore_index: see there.
        reduction: see there.
        sparse: see there.
        generator: see there.

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
    alpha: Tensor
    positive: Tensor
    negative: Tensor
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
        caller = type(self).__name__
        _check_q(q, caller=caller)
        _check_margin(margin, q.num_classes, caller=caller)
        _family.check_weight(class_weight, q.num_classes, caller=caller)
        chosen = margins.softmax(q) if margin is None else margin
        dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
        for name, values in (
            ("log_q", q.log_probs),
            ("alpha", chosen.alpha),
            ("positive", chosen.positive),
            ("negative", chosen.negative),
        ):
            self.register_buffer(name, torch.tensor(values, dtype=dtype))
        self.register_buffer("cumulative", _cumulative(q))
        kept = None if class_weight is None else class_weight.detach().to(dtype, copy=True)
        self.register_buffer("class_weight", kept)
        self.name = chosen.name
        self.settings = {}  # what made the margin is not known
        self.scale = chosen.scale
        self.num_sampled = _checks.whole(num_sampled, caller, name="num_sampled")
        self.ignore_index = ignore_index
        self.reduction = _checks.choice(reduction, _family.REDUCTIONS, caller, name="reduction")
        self.sparse = sparse
        self.generator = generator

    def draw(self) -> Tensor:
        """Fresh negatives, shape (num_sampled,), on the buffers' device."""
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
        """The loss with a fresh draw, or with one of `draw`; shapes as in the function."""
        caller = type(self).__name__
        _check_inputs(features, weight, target, bias, caller=caller)
        if weight.shape[0] != len(self.log_q):
            raise InputError(
                f"{caller}: the loss has {len(self.log_q)} classes but `weight` has "
                f"{weight.shape[0]} rows."
            )
        return _loss(
            features,
            weight,
            target,
            self.draw()
            if sampled is None
            else _check_sampled(sampled, len(self.log_q), features, caller=caller),
            self.log_q,
            MarginTensors(self.alpha, self.positive, self.negative, scale=self.scale),
            bias=bias,
            class_weight=self.class_weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            sparse=self.sparse,
            caller=caller,
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """`.to`, `.half` and the like move the buffers but leave their types as they are."""
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, old in before.items():
            new = self._buffers[name]
            if old is not None and new is not None:
                self._buffers[name] = old.to(new.device)
        return self

    def extra_repr(self) -> str:
        """The margin's name, the classes, and the options that differ from the defaults."""
        shown: dict[str, Any] = {
            "num_classes": len(self.log_q),
            "num_sampled": self.num_sampled,
            **self.settings,
            "reduction": self.reduction,
        }
        for name, default in (("ignore_index", -100), ("sparse", False)):
            if getattr(self, name) != default:
                shown[name] = getattr(self, name)
        return ", ".join([repr(self.name), *(f"{key}={value!r}" for key, value in shown.items())])


def _loss(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    sampled: Tensor,
    log_q: Tensor,
    margin: MarginTensors,
    *,
    bias: Tensor | None,
    class_weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    sparse: bool,
    caller: str,
) -> Tensor:
    """The loss from the negatives at hand; inputs are checked but for what is looked at here."""
    _checks.choice(reduction, _family.REDUCTIONS, caller, name="reduction")
    _family.check_weight(class_weight, weight.shape[0], caller=caller)
    target = target.long()  # in uint8 a comparison with -100 would find 156
    ignored = target == ignore_index
    index = target.masked_fill(ignored, 0)
    _check_range(index, weight.shape[0], "target", caller=caller)
    work = torch.promote_types(features.dtype, torch.float32)
    margin, log_q = margin.cast(work), log_q.to(work)

    # One look-up for negatives and targets, so that a sparse gradient is one tensor.
    rows = F.embedding(torch.cat([sampled, index]), weight, sparse=sparse)
    negatives, own = rows[: len(sampled)], rows[len(sampled) :]
    scores = (features @ negatives.t()).to(work) + margin.negative[sampled]
    itself = (features.to(work) * own.to(work)).sum(1) - margin.positive[index]
    if bias is not None:
        scores, itself = scores + bias[sampled], itself + bias[index]
    correction = log_q[sampled] + np.log(len(sampled))
    scores = margin.scale * scores - correction
    hits = sampled.unsqueeze(0) == index.unsqueeze(1)
    rest = scores.masked_fill(hits, torch.finfo(work).min).logsumexp(1)

    losses = margin.alpha[index] * F.softplus(rest - margin.scale * itself, threshold=40.0)
    counted = (~ignored).to(work)
    if class_weight is not None:
        counted = counted * class_weight.to(work)[index]
        losses = losses * class_weight.to(work)[index]
    losses = losses.masked_fill(ignored, 0.0)
    out = loss_dtype(features)
    if reduction == "none":
        return losses.to(out)
    return (losses.sum() / (counted.sum() if reduction == "mean" else 1)).to(out)


def _cumulative(q: ClassPrior) -> Tensor:
    sums = np.cumsum(q.probs)
    return torch.from_numpy(sums / sums[-1])


def _draw(cumulative: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """`count` classes, independently, each with its probability; O(count · log C)."""
    chance = torch.rand(count, generator=generator, device=cumulative.device, dtype=torch.float64)
    return torch.searchsorted(cumulative, chance, right=True)


def _check_inputs(features: Any, weight: Any, target: Any, bias: Any, *, caller: str) -> None:
    check_factors(features, weight, caller=caller)
    if bias is not None and (not isinstance(bias, Tensor) or bias.shape != weight.shape[:1]):
        raise InputError(
            f"{caller}: `bias` must have one value per class, shape ({weight.shape[0]},); "
            f"got {what_came(bias)}."
        )
    check_labels(target, len(features), of="features", caller=caller)


def _check_q(q: Any, *, caller: str, classes: int | None = None) -> None:
    _checks.prior(q, caller, name="q")
    if classes is not None and q.num_classes != classes:
        raise InputError(
            f"{caller}: `q` has {q.num_classes} classes but `weight` has {classes} rows."
        )


def _check_margin(margin: Any, classes: int, *, caller: str) -> None:
    if margin is None:
        return
    if not isinstance(margin, Margin):
        raise InputError(
            f"{caller}: `margin` must be a Margin; got {type(margin).__name__}. "
            f"Make one with longtail.margins, such as margins.logit_adjusted(prior)."
        )
    if margin.num_classes != classes:
        raise InputError(
            f"{caller}: `margin` has {margin.num_classes} classes but there are {classes}."
        )
    if margin.dense is not None:
        raise InputError(
            f"{caller}: `margin` is dense, a number for each pair of classes; with so many classes "
            f"that negatives are sampled it must be of the form a_y + b_y'."
        )


def _check_sampled(sampled: Any, classes: int, features: Tensor, *, caller: str) -> Tensor:
    if not isinstance(sampled, Tensor) or sampled.ndim != 1 or len(sampled) == 0:
        came = tuple(sampled.shape) if isinstance(sampled, Tensor) else type(sampled).__name__
        raise InputError(
            f"{caller}: `sampled` must be a tensor of at least one class index, shape (m,); "
            f"got {came}."
        )
    drawn: Tensor = sampled.long()
    _check_range(drawn, classes, "sampled", caller=caller)
    return drawn.to(features.device)


def _check_range(index: Tensor, classes: int, name: str, *, caller: str) -> None:
    """Classes in range, where looking is free; on a GPU the look-up itself fails."""
    if index.device.type != "cpu" or torch.compiler.is_compiling() or len(index) == 0:
        return
    for value in (int(index.min()), int(index.max())):
        if not 0 <= value < classes:
            raise InputError(
                f"{caller}: `{name}` must lie in 0 .. {classes - 1}, but {value} occurs."
            )
