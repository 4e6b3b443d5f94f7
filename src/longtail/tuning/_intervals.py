"""For each held-out example, the interval of tau in which it is right; checked, and mergeable.

The pass over the logits that finds the intervals is in `_scan`; what is done with them is
in `_curve` (the error as a function of tau) and `tuning` (the choice). Import `TauIntervals`
from `tuning`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from longtail import _checks, posthoc
from longtail._checks import FloatArray, InputError, IntArray
from longtail.priors import ClassPrior
from longtail.tuning._missing import given_to_nearest
from longtail.tuning._scan import TauScan

Method = Literal["logit_adjustment", "weight_normalization"]
METHODS = ("logit_adjustment", "weight_normalization")
Missing = Literal["error", "nearest"]
MISSING = ("error", "nearest")


@dataclass(frozen=True, eq=False, repr=False)
class TauIntervals:
    """For each held-out example the tau at which the adjusted prediction is right: one interval.

    An example of class y is right where f_y − τ l_y ≥ f_j − τ l_j for every class j, so every j
    with l_j > l_y bounds τ from below by (f_j − f_y) / (l_j − l_y), every j with l_j < l_y from
    above, and those with l_j = l_y decide alone. For logit adjustment l = log π − log q − log c;
    for weight normalization l = log ν and f is log f of the positive scores (or the reverse on
    log |f|, where all are negative).

    Intervals of shards, or of cross-validation folds with priors of their own, merge: `+`, `sum`
    or `TauIntervals.merge`.

    Attributes:
        lower: shape (examples,); right from here on (−inf: from the start).
        upper: shape (examples,); right up to, but not including, this; never right where
            lower ≥ upper.
        target: true class of each example.
        num_classes: L.
        importance: weight of each class in the error, sums to 1: q_y c_y, normalised; 1/L by
            default.
        weight: sample weights, or None.
        method: which of the two post-hoc methods.
        bias_mode: of weight normalization, else None.

    Examples:
        >>> prior = ClassPrior.from_probs([0.9, 0.1])
        >>> logits = np.array([[2.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
        >>> parts = TauIntervals.from_logits(logits, [0, 1, 1], prior)
        >>> parts.lower.round(3), parts.upper.round(3)
        (array([ -inf, 0.91 , -0.455]), array([0.91,  inf,  inf]))
        >>> (parts + parts).num_examples
        6
    """

    lower: FloatArray
    upper: FloatArray
    target: IntArray
    num_classes: int
    importance: FloatArray
    weight: FloatArray | None
    method: str
    bias_mode: str | None

    @classmethod
    def from_logits(
        cls,
        logits: Any,
        target: Any,
        prior: ClassPrior,
        *,
        method: Method = "logit_adjustment",
        norms: Any = None,
        bias: Any = None,
        bias_mode: posthoc.BiasMode = "scale",
        target_prior: ClassPrior | None = None,
        costs: Any = None,
        sample_weight: Any = None,
        chunk_rows: int | None = None,
    ) -> TauIntervals:
        """The intervals of these examples, in float64 whatever the logits' dtype.

        Args:
            logits: as in `tune_tau`, and so all the others; a class without examples is no
                error here, since another shard may have them.
            target: as in `tune_tau`.
            prior: as in `tune_tau`.
            method: as in `tune_tau`.
            norms: as in `tune_tau`.
            bias: as in `tune_tau`.
            bias_mode: as in `tune_tau`.
            target_prior: as in `tune_tau`.
            costs: as in `tune_tau`.
            sample_weight: as in `tune_tau`; examples of weight 0 are left out.
            chunk_rows: as in `tune_tau`.

        Returns:
            The intervals, in the order of the examples.
        """
        return intervals(
            logits,
            target,
            prior,
            caller="TauIntervals.from_logits",
            complete=False,
            method=method,
            norms=norms,
            bias=bias,
            bias_mode=bias_mode,
            target_prior=target_prior,
            costs=costs,
            sample_weight=sample_weight,
            chunk_rows=chunk_rows,
        )

    @classmethod
    def merge(cls, parts: Iterable[TauIntervals]) -> TauIntervals:
        """All examples of the parts, which must agree in everything but the prior."""
        parts = list(parts)
        if not parts:
            raise InputError("TauIntervals.merge: `parts` is empty; at least one is needed.")
        first = parts[0]
        for part in parts[1:]:
            if not (
                part.num_classes == first.num_classes
                and part.method == first.method
                and part.bias_mode == first.bias_mode
                and np.array_equal(part.importance, first.importance)
            ):
                raise InputError(
                    "TauIntervals.merge: only parts with the same classes, method, bias_mode, "
                    "target prior and costs can be merged."
                )
        weighted = any(part.weight is not None for part in parts)
        return cls(
            lower=np.concatenate([part.lower for part in parts]),
            upper=np.concatenate([part.upper for part in parts]),
            target=np.concatenate([part.target for part in parts]),
            num_classes=first.num_classes,
            importance=first.importance,
            weight=np.concatenate([part.weights for part in parts]) if weighted else None,
            method=first.method,
            bias_mode=first.bias_mode,
        )

    @property
    def num_examples(self) -> int:
        """Number of examples (of positive weight)."""
        return len(self.target)

    @property
    def counts(self) -> IntArray:
        """Held-out examples of each class, shape (num_classes,)."""
        return np.bincount(self.target, minlength=self.num_classes)

    @property
    def weights(self) -> FloatArray:
        """Sample weights, ones if none were given."""
        return np.ones(self.num_examples) if self.weight is None else self.weight

    @property
    def totals(self) -> FloatArray:
        """Total weight of each class, shape (num_classes,)."""
        return np.bincount(self.target, weights=self.weight, minlength=self.num_classes).astype(
            np.float64
        )

    @property
    def shares(self) -> FloatArray:
        """Part of the error that a unit of weight of each class is, 0 where there is none."""
        return divided(self.importance, self.totals)

    @property
    def effective_counts(self) -> FloatArray:
        """Examples of each class; of weighted ones as many alike ones as tell as much (Kish)."""
        squares = np.bincount(self.target, weights=self.weights**2, minlength=self.num_classes)
        return divided(self.totals**2, squares)

    @property
    def deciding_examples(self) -> float:
        """How many examples decide about the error, in effect.

        Their variances v_y = importance_y² / n_y add up to that of the error. As with the degrees
        of freedom of such a sum (Satterthwaite), it is known as well as from (Σ v)² / Σ (v² / n)
        examples: all of them in balanced data, those of the rarest class where it alone is small.
        """
        alike = self.effective_counts
        variances = divided(self.importance**2, alike)
        return float(variances.sum() ** 2 / divided(variances**2, alike).sum())

    def with_stand_ins(self, prior: ClassPrior) -> TauIntervals:
        """The same, with what classes without examples weigh given to the nearest in size.

        Classes that are as near, such as those of one size, share it evenly.

        Args:
            prior: π, whose probabilities say which class is near.

        Examples:
            >>> prior = ClassPrior.from_counts([500, 400, 90, 10])
            >>> parts = TauIntervals.from_logits(2 * np.eye(4)[1:], [1, 2, 3], prior)
            >>> parts.with_stand_ins(prior).importance
            array([0.  , 0.5 , 0.25, 0.25])
        """
        _checks.prior(prior, "TauIntervals.with_stand_ins", num_classes=self.num_classes)
        moved = given_to_nearest(self.importance, prior.probs, self.counts)
        return replace(self, importance=moved)

    def __add__(self, other: TauIntervals) -> TauIntervals:
        if not isinstance(other, TauIntervals):
            return NotImplemented
        return TauIntervals.merge([self, other])

    def __radd__(self, other: object) -> TauIntervals:
        # sum() starts from the number 0.
        return self if other == 0 else NotImplemented

    def __repr__(self) -> str:
        return (
            f"TauIntervals(examples={self.num_examples}, num_classes={self.num_classes}, "
            f"method={self.method!r})"
        )


def intervals(
    logits: Any,
    target: Any,
    prior: ClassPrior,
    *,
    caller: str,
    complete: bool,
    choosing: bool = False,
    method: str,
    norms: Any,
    bias: Any,
    bias_mode: str,
    target_prior: ClassPrior | None,
    costs: Any,
    sample_weight: Any,
    chunk_rows: int | None,
) -> TauIntervals:
    """Check everything, then make the pass.

    `complete` refuses classes without examples; `choosing` refuses a prior by which every tau is
    as good, where tau is to be chosen on these examples.
    """
    logits, target, weight = checked_examples(logits, target, prior, sample_weight, caller)
    width = logits.shape[1]
    _checks.choice(method, METHODS, caller, name="method")
    if chunk_rows is not None:
        chunk_rows = _checks.whole(chunk_rows, caller, name="chunk_rows")
    if method == "logit_adjustment":
        _refuse_unused(caller, norms, bias, bias_mode)
        direction = posthoc.log_ratio(prior, target_prior, costs, caller=caller)
        if choosing:
            refuse_nothing_to_tune(direction, caller)
        offset = None
    else:
        posthoc.log_ratio(prior, target_prior, costs, caller=caller)  # for its checks
        direction = posthoc.log_norms(norms, num_classes=width, caller=caller)
        offset = posthoc.checked_bias(bias, bias_mode, num_classes=width, caller=caller)
        _refuse_kept_bias(bias_mode, caller)
    importance = posthoc.class_costs(costs, num_classes=width, caller=caller)
    if target_prior is not None:
        importance = importance * target_prior.probs
    if complete:
        refuse_missing_classes(
            np.bincount(target[weight_mask(weight)], minlength=width),
            caller,
            instead="let the nearest class in size stand in (missing='nearest'), or pass "
            "criterion='log_loss', which can do without some",
        )
    scan = TauScan(direction, signed=method == "weight_normalization", caller=caller)
    lower, upper = scan.run(logits, target, offset if bias_mode == "drop" else None, chunk_rows)
    keep = weight_mask(weight)
    return TauIntervals(
        lower=lower[keep],
        upper=upper[keep],
        target=target[keep],
        num_classes=width,
        importance=importance / importance.sum(),
        weight=None if weight is None else weight[keep],
        method=method,
        bias_mode=bias_mode if method == "weight_normalization" else None,
    )


def checked_examples(
    logits: Any, target: Any, prior: ClassPrior, sample_weight: Any, caller: str
) -> tuple[NDArray[Any], IntArray, FloatArray | None]:
    """Logits (values still to be checked, chunk by chunk), labels and weights that fit."""
    logits = _checks.matrix(logits, caller=caller, finite=False)
    _checks.prior(prior, caller, num_classes=logits.shape[1], shape=logits.shape)
    target = _checks.labels(target, caller=caller, num_classes=logits.shape[1])
    _checks.same_length(logits, target, caller=caller)
    if sample_weight is None:
        return logits, target, None
    return logits, target, _checks.sample_weight(sample_weight, len(target), caller=caller)


def weight_mask(weight: FloatArray | None) -> Any:
    """Selects the examples that count; without weights all of them, without a copy."""
    return slice(None) if weight is None or weight.all() else weight > 0


def divided(amount: NDArray[Any], by: NDArray[Any]) -> FloatArray:
    """The quotient, 0 where there is nothing to divide by."""
    quotient: FloatArray = np.zeros(np.broadcast(amount, by).shape)
    np.divide(amount, by, out=quotient, where=by > 0)
    return quotient


def refuse_missing_classes(counts: IntArray, caller: str, *, instead: str) -> None:
    """The balanced error has one term per class, so every class needs held-out examples.

    `instead` is what can be done without some, in the words of the caller.
    """
    missing = np.flatnonzero(counts == 0)
    if len(missing):
        raise InputError(
            f"{caller}: every class needs held-out examples, but {len(missing)} of {len(counts)} "
            f"have none in `target`: {_checks.listing(missing)}; hold out at least one of each, "
            f"{instead}."
        )


def refuse_nothing_to_tune(direction: FloatArray, caller: str) -> None:
    """Refuse an adjustment that shifts all classes alike: every tau predicts the same."""
    if np.ptp(direction) == 0:
        raise InputError(
            f"{caller}: the prior is uniform, or the very one to adjust to, so no tau changes any "
            f"prediction; if the held-out data are balanced and the training data were not, pass "
            f"ClassPrior.from_counts(...) of the latter."
        )


def _refuse_unused(caller: str, norms: Any, bias: Any, bias_mode: str) -> None:
    given = {
        "norms": norms is not None,
        "bias": bias is not None,
        "bias_mode": bias_mode != "scale",
    }
    for name, is_given in given.items():
        if is_given:
            raise InputError(
                f"{caller}: `{name}` has no part in method='logit_adjustment'; leave it out, or "
                f"pass method='weight_normalization'."
            )


def _refuse_kept_bias(bias_mode: str, caller: str) -> None:
    if bias_mode == "keep":
        raise InputError(
            f"{caller}: bias_mode='keep' has no exact curve, since an example may be right in "
            f"several intervals of tau; tune with bias_mode='scale' or 'drop', or compare "
            f"balanced_error(target, normalize_weights(..., bias_mode='keep', tau=t)) over a "
            f"grid of t."
        )
