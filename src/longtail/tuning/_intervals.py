"""The interval of tau in which each held-out example is predicted right.

An example of class y is right where f_y − τ l_y ≥ f_j − τ l_j for every class j. So every j with
l_j > l_y bounds τ from below by (f_j − f_y) / (l_j − l_y), every j with l_j < l_y bounds it from
above, and those with l_j = l_y decide alone.
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

Method = Literal["logit_adjustment", "weight_normalization"]
METHODS = ("logit_adjustment", "weight_normalization")
Missing = Literal["error", "nearest"]
MISSING = ("error", "nearest")

# Rows whose examples are grouped by class; long enough that even with 1000 classes a group is
# worth a NumPy call, and of a memory map only the pages are touched.
_WINDOW_ROWS = 1 << 16
# Elements of the work buffer: 1 MB in float64, about an L2 cache.
_BLOCK_ELEMENTS = 1 << 17
# Up to this many classes the buffer is stored class by class: reductions over so few numbers
# would cost more to start than to do.
_NARROW = 128
# Logarithms of class sizes that differ by less differ by rounding alone.
_AS_NEAR = 1e-9


@dataclass(frozen=True, eq=False, repr=False)
class TauIntervals:
    """For each held-out example, the interval of tau in which its adjusted prediction is right.

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
        method: "logit_adjustment" or "weight_normalization".
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
        """Find the intervals of these examples, in float64 whatever the logits' dtype.

        Args:
            logits: as in `tune_tau`, and so all the others; a class without examples is no
                error here, since another shard may have them.
            target: as in `tune_tau`.
            prior: as in `tune_tau`.
            method: "logit_adjustment", f − τ log π, or "weight_normalization", f / ν^τ.
            norms: ν, as in `tune_normalization`.
            bias: as in `tune_normalization`.
            bias_mode: as in `tune_normalization`.
            target_prior: as in `tune_tau`.
            costs: as in `tune_tau`.
            sample_weight: as in `tune_tau`; examples of weight 0 are left out.
            chunk_rows: as in `tune_tau`.

        Returns:
            The intervals, in the order of the examples.
        """
        logits, target, weight = checked_examples(logits, target, prior, sample_weight)
        width = logits.shape[1]
        if chunk_rows is not None:
            chunk_rows = _checks.whole(chunk_rows, name="chunk_rows")
        direction = -posthoc.adjustment(prior, target_prior=target_prior, costs=costs)
        importance = np.ones(width) if target_prior is None else target_prior.probs
        if costs is not None:
            importance = importance * _checks.positive_per_class(costs, width, name="costs")
        normalizes = _checks.choice(method, METHODS, name="method") == "weight_normalization"
        offset = None
        if normalizes:
            direction, offset = _normalization(norms, bias, bias_mode, width)
        elif norms is not None or bias is not None or bias_mode != "scale":
            raise InputError(
                "`norms`, `bias` and `bias_mode` belong to method='weight_normalization'; "
                "leave them out."
            )
        lower, upper = _find_ends(
            logits, target, direction, signed=normalizes, bias=offset, window_rows=chunk_rows
        )
        keep = slice(None) if weight is None or weight.all() else weight > 0
        return cls(
            lower=lower[keep],
            upper=upper[keep],
            target=target[keep],
            num_classes=width,
            importance=importance / importance.sum(),
            weight=None if weight is None else weight[keep],
            method=method,
            bias_mode=bias_mode if normalizes else None,
        )

    @classmethod
    def merge(cls, parts: Iterable[TauIntervals]) -> TauIntervals:
        """All examples of the parts, which must agree in everything but the prior."""
        parts = list(parts)
        if not parts:
            raise InputError("TauIntervals.merge: `parts` is empty; at least one is needed.")
        first = parts[0]
        for part in parts[1:]:
            if (part.num_classes, part.method, part.bias_mode) != (
                first.num_classes,
                first.method,
                first.bias_mode,
            ) or not np.array_equal(part.importance, first.importance):
                raise InputError(
                    "TauIntervals.merge: only parts with the same classes, method, bias_mode, "
                    "target prior and costs can be merged."
                )
        weighted = any(part.weight is not None for part in parts)
        return replace(
            first,
            lower=np.concatenate([part.lower for part in parts]),
            upper=np.concatenate([part.upper for part in parts]),
            target=np.concatenate([part.target for part in parts]),
            weight=np.concatenate([part.weights for part in parts]) if weighted else None,
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
        totals = np.bincount(self.target, weights=self.weight, minlength=self.num_classes)
        return totals.astype(np.float64)

    @property
    def shares(self) -> FloatArray:
        """Part of the error that each example is if it is wrong, shape (examples,)."""
        per_unit = divided(self.importance, self.totals)[self.target]
        return per_unit if self.weight is None else per_unit * self.weight

    @property
    def effective_counts(self) -> FloatArray:
        """Examples of each class; of weighted ones as many alike ones as tell as much (Kish)."""
        if self.weight is None:
            return self.totals
        squares = np.bincount(self.target, weights=self.weight**2, minlength=self.num_classes)
        return divided(self.totals**2, squares)

    @property
    def deciding_examples(self) -> float:
        """Effective number of examples that decide about the error.

        The classes' variances v_y = importance_y² / n_y add up to that of the error. As with the
        degrees of freedom of such a sum (Satterthwaite), it is known as well as from
        (Σ v)² / Σ (v² / n) examples: all of them in balanced data, those of the rarest class where
        it alone is small.
        """
        alike = self.effective_counts
        variances = divided(self.importance**2, alike)
        return float(variances.sum() ** 2 / divided(variances**2, alike).sum())

    def with_stand_ins(self, prior: ClassPrior) -> TauIntervals:
        """The same, with the importance of classes without examples given to the nearest in size.

        Left out of the error, the largest classes would have no say in how far logits may be
        adjusted against them.

        Args:
            prior: π, whose probabilities say which class is near.

        Examples:
            >>> prior = ClassPrior.from_counts([500, 400, 90, 10])
            >>> parts = TauIntervals.from_logits(2 * np.eye(4)[1:], [1, 2, 3], prior)
            >>> parts.with_stand_ins(prior).importance
            array([0.  , 0.5 , 0.25, 0.25])
        """
        _checks.prior(prior, num_classes=self.num_classes)
        moved = _given_to_nearest(self.importance, prior.probs, self.counts)
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


def checked_examples(
    logits: Any, target: Any, prior: ClassPrior, sample_weight: Any
) -> tuple[NDArray[Any], IntArray, FloatArray | None]:
    """Return logits (values still to be checked, chunk by chunk), labels and weights that fit."""
    logits = _checks.matrix(logits, finite=False)
    _checks.prior(prior, num_classes=logits.shape[1], shape=logits.shape)
    target = _checks.labels(target, num_classes=logits.shape[1])
    _checks.same_length(logits, target)
    if sample_weight is not None:
        sample_weight = _checks.sample_weight(sample_weight, len(target))
    return logits, target, sample_weight


def check_chunk(chunk: NDArray[Any], first_row: int, *, may_be_probs: bool = False) -> None:
    """Refuse values that aren't finite, and first rows that look like probabilities."""
    _checks.all_finite(chunk, name="logits", first_row=first_row)
    if first_row == 0 and not may_be_probs:
        _checks.not_probabilities(chunk, hint="pass their logarithm, numpy.log(probs)")


def refuse_missing_classes(counts: IntArray) -> None:
    """Refuse classes without examples: the balanced error has a term for each class."""
    missing = np.flatnonzero(counts == 0)
    if len(missing):
        raise InputError(
            f"every class needs held-out examples, but {len(missing)} of {len(counts)} "
            f"have none in `target`: {_checks.listing(missing)}; hold out at least one of each, "
            f"or let the nearest class in size stand in: missing='nearest' "
            f"(of TauIntervals: .with_stand_ins(prior))."
        )


def refuse_nothing_to_tune(direction: FloatArray) -> None:
    """Refuse an adjustment that shifts all classes alike: every tau predicts the same."""
    if np.ptp(direction) == 0:
        raise InputError(
            "the prior is uniform, or the very one to adjust to, so no tau changes any "
            "prediction; if the held-out data are balanced and the training data were not, pass "
            "ClassPrior.from_counts(...) of the latter."
        )


def divided(amount: NDArray[Any], by: NDArray[Any]) -> FloatArray:
    """The quotient, 0 where there is nothing to divide by."""
    quotient: FloatArray = np.zeros(np.broadcast(amount, by).shape)
    np.divide(amount, by, out=quotient, where=by > 0)
    return quotient


def class_shares(sizes: IntArray | FloatArray, examples: IntArray) -> FloatArray:
    """Weights of classes in the error, with those without examples given to the nearest in size.

    Near is meant on a logarithmic scale. Classes that are as near share evenly, so that the
    numbers by which classes of one size go mean nothing.

    Args:
        sizes: training examples of each class or their shares, positive, shape (num_classes,).
        examples: held-out examples of each class, shape (num_classes,).

    Returns:
        Shape (num_classes,), of sum 1; 0 for classes without examples.

    Examples:
        >>> class_shares(np.array([500, 400, 90, 10]), np.array([0, 20, 50, 50]))
        array([0.  , 0.5 , 0.25, 0.25])
        >>> class_shares(np.array([500, 10, 10, 10]), np.array([0, 9, 9, 0]))
        array([0. , 0.5, 0.5, 0. ])
    """
    return _given_to_nearest(np.full(len(sizes), 1.0 / len(sizes)), sizes, examples)


def _given_to_nearest(
    weights: FloatArray, sizes: IntArray | FloatArray, examples: IntArray
) -> FloatArray:
    """The same weights, with those of classes without examples given to the nearest in size."""
    logs, there = np.log(sizes), examples > 0
    if not there.any():
        raise InputError("class_shares: `examples` has none of any class.")
    present, place = np.unique(logs[there], return_inverse=True)
    members = np.bincount(place)
    given = np.where(there, weights, 0.0)
    added = np.zeros(len(present))
    # By size, since there may be very many classes and few sizes.
    absent, of_class = np.unique(logs[~there], return_inverse=True)
    amounts = np.bincount(of_class, weights=weights[~there], minlength=len(absent))
    for size, amount in zip(absent, amounts, strict=True):
        away = np.abs(present - size)
        near = away <= away.min() + _AS_NEAR
        added[near] += amount / members[near].sum()
    given[there] += added[place]
    return given


def _normalization(
    norms: Any, bias: Any, bias_mode: str, width: int
) -> tuple[FloatArray, FloatArray | None]:
    """log ν, and the bias to take off first."""
    if isinstance(norms, ClassPrior):
        log_norms = _checks.prior(norms, num_classes=width, name="norms").log_probs
    elif norms is None:
        raise InputError(
            "weight normalization needs `norms`: the norms of the last layer's weight vectors, "
            "or the ClassPrior for ν = π."
        )
    else:
        log_norms = np.log(_checks.positive_per_class(norms, width, name="norms"))
    if _checks.choice(bias_mode, posthoc.BIAS_MODES, name="bias_mode") == "keep":
        raise InputError(
            "bias_mode='keep' has no exact curve, since an example may be right in several "
            "intervals of tau; tune with bias_mode='scale' or 'drop', or compare "
            "balanced_error(target, normalize_weights(..., bias_mode='keep', tau=t)) over a grid "
            "of t."
        )
    if bias_mode == "scale":
        return log_norms, None
    if bias is None:
        raise InputError("bias_mode='drop' needs `bias`, the last layer's bias.")
    offset = _checks.per_class(bias, name="bias").astype(np.float64)
    _checks.width(offset, width, name="bias")
    _checks.all_finite(offset, name="bias")
    return log_norms, offset


def _find_ends(
    logits: NDArray[Any],
    target: IntArray,
    direction: FloatArray,
    *,
    signed: bool,
    bias: FloatArray | None,
    window_rows: int | None,
) -> tuple[FloatArray, FloatArray]:
    """Return the lower and upper end of every example's interval, in one pass.

    This is the hot loop, written for memory bandwidth. For examples of one class y the classes
    with l_j > l_y, l_j = l_y and l_j < l_y are the same, and contiguous once the classes are
    sorted by l; so a block of such examples costs one subtraction, one multiplication by
    1 / (l_j − l_y), a maximum and a minimum.

    Args:
        logits: f, shape (examples, classes).
        target: shape (examples,).
        direction: l, shape (classes,).
        signed: whether the scores are f / ν^τ, which keep their sign, rather than f − τ l.
        bias: taken off the logits first, or None.
        window_rows: rows that are grouped by class at once.
    """
    width = len(direction)
    steps = np.diff(direction)
    monotone = bool(np.all(steps >= 0) or np.all(steps <= 0))
    # A stable sort keeps classes of equal l in index order, which breaks their ties.
    order = np.arange(width) if monotone else np.argsort(direction, kind="stable")
    along = direction[order]
    place = np.empty(width, dtype=np.int64)
    place[order] = np.arange(width)
    falling = bool(along[0] > along[-1])
    keys = -along if falling else along
    # The class at place p ties with those at starts[p] .. stops[p] − 1.
    starts, stops = np.searchsorted(keys, keys), np.searchsorted(keys, keys, side="right")

    block = max(1, _BLOCK_ELEMENTS // width)
    swapped = np.empty((block, width), logits.dtype)
    raw, work = np.empty_like(swapped), np.empty((block, width))
    lower, upper = np.empty((2, len(logits)))
    window_rows = window_rows or _WINDOW_ROWS
    for first in range(0, len(logits), window_rows):
        window, labels = logits[first : first + window_rows], target[first : first + window_rows]
        # Values in natural order: a disk reads ahead, and a message can name the row.
        for at in range(0, len(window), step := max(1, (1 << 20) // width)):
            check_chunk(window[at : at + step], first + at, may_be_probs=signed)
        # NumPy sorts 16-bit integers several times faster.
        by_class = np.argsort(labels.astype(np.int16) if width < 1 << 15 else labels, kind="stable")
        cuts = np.flatnonzero(np.diff(labels[by_class])) + 1
        ends = np.empty((2, len(labels)))
        with np.errstate(all="ignore"):  # infinities are meant: no bound
            for begin, end in zip([0, *cuts], [*cuts, len(labels)], strict=True):
                y = int(labels[by_class[begin]])
                own_place, start, stop = place[y], starts[place[y]], stops[place[y]]
                sides = slice(0, start), slice(stop, width)
                above, below = sides if falling else sides[::-1]
                gaps = along - along[own_place]
                gaps[start:stop] = np.inf
                inverse = (1.0 / gaps)[:, None]
                for at in range(begin, end, block):
                    part = slice(at, min(at + block, end))
                    size = part.stop - at
                    # mode="clip" lets `take` write into `out` directly; the indices are in range.
                    np.take(window, by_class[part], axis=0, out=raw[:size], mode="clip")
                    # Scores in float64, shape (classes, examples), classes sorted by l.
                    if width <= _NARROW:
                        scores = work[:size].reshape(-1, size)
                        scores[place] = raw[:size].T
                    else:
                        scores, rows = work[:size].T, raw[:size]
                        if not monotone:
                            rows = np.take(rows, order, axis=1, out=swapped[:size], mode="clip")
                        scores[...] = rows.T
                    if bias is not None:
                        scores -= bias[order][:, None]
                    own = scores[own_place].copy()
                    low, high = ends[:, part]
                    lost = None
                    if stop - start > 1:  # ties go to the lowest index, as argmax has it
                        lost = (scores[start:own_place] >= own).any(axis=0)
                        lost |= (scores[own_place + 1 : stop] > own).any(axis=0)
                    if signed:
                        _signed_ends(scores, own, order < y, inverse, (above, below), low, high)
                    else:
                        scores -= own
                        scores *= inverse
                        scores[above].max(axis=0, initial=-np.inf, out=low)
                        scores[below].min(axis=0, initial=np.inf, out=high)
                    if lost is not None:
                        low[lost] = np.inf
        lows, highs = lower[first : first + window_rows], upper[first : first + window_rows]
        lows[by_class], highs[by_class] = ends
        # At tau = 0 argmax takes the lowest index where the largest logits are equal. It is the
        # one place where two scores tie exactly: elsewhere a tie would need a logarithm of a
        # rational number to be rational. An end that must include or exclude zero moves by the
        # smallest number there is.
        edge = np.flatnonzero((lows == 0) | (highs == 0))
        for some in np.array_split(edge, len(edge) // block + 1):
            scores = window[some] if bias is None else window[some] - bias
            right = scores.argmax(axis=1) == labels[some]
            highs[some[right & (highs[some] == 0)]] = np.nextafter(0.0, 1.0)
            lows[some[~right & (lows[some] == 0)]] = np.nextafter(0.0, 1.0)
    return lower, upper


def _signed_ends(
    scores: FloatArray,
    own: FloatArray,
    earlier: NDArray[np.bool_],
    inverse: FloatArray,
    sides: tuple[slice, slice],
    low: FloatArray,
    high: FloatArray,
) -> None:
    """Fill in the ends for weight normalization, f / ν^τ, which keeps every score's sign."""
    top = scores.max(axis=0)
    high[:] = np.inf
    # What is above zero stays above what is not; a score of zero stays zero.
    low[:] = np.where((top > 0) & (own <= 0) | (top == 0) & (own < 0), np.inf, -np.inf)
    zero = np.flatnonzero((own == 0) & (top == 0))
    low[zero[(scores[earlier][:, zero] == 0).any(axis=0)]] = np.inf
    for some, sign in ((own > 0, 1.0), ((own < 0) & (top < 0), -1.0)):
        if some.any():
            # log 0 = −inf takes the scores of the other sign out of the comparison.
            logs = np.log(np.maximum(sign * scores[:, some], 0.0)) - np.log(sign * own[some])
            logs *= inverse
            # Among negative scores the smaller |f| wins, so the two sides change roles.
            above, below = sides if sign > 0 else sides[::-1]
            low[some] = logs[above].max(axis=0, initial=-np.inf)
            high[some] = logs[below].min(axis=0, initial=np.inf)
