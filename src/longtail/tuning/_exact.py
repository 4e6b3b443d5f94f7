"""The error at every tau, exactly: intervals of examples, their curve, and its bootstrap.

An example of class y is right where f_y − τ l_y ≥ f_j − τ l_j for every class j. So every j with
l_j > l_y bounds τ from below by (f_j − f_y) / (l_j − l_y), every j with l_j < l_y bounds it from
above, and those with l_j = l_y decide alone. The ends of these intervals, sorted, are where the
error changes; drawing the examples again moves its minimum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from longtail import _checks, posthoc
from longtail._checks import FloatArray, InputError, IntArray
from longtail.metrics import mean_variance
from longtail.priors import ClassPrior

Groups = tuple[IntArray, FloatArray, IntArray, FloatArray]
Method = Literal["logit_adjustment", "weight_normalization"]
METHODS = ("logit_adjustment", "weight_normalization")

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

# Ends of intervals closer than this are one breakpoint: float64 can't tell what lies between.
RESOLUTION = 1e-12
# Errors closer than this are equal; the rounding of a million shares of a class is below it.
TIE = 1e-12
# Shares are added as multiples of 2^−62: integers cancel exactly when an example that came
# goes again, where floats leave rounding that would break ties between cells.
_UNIT = 2.0**62

# Examples times replicates up to which each replicate is drawn: a fraction of a second.
_EXACT_DRAWS = 3_000_000
# Classes with fewer examples are drawn together.
_FEW = 10
# Numbers of one block of replicates.
_BLOCK = 1 << 18
# Taus at which the normal approximation is evaluated, in its first and second round.
_POINTS = (128, 256)
# Classes whose curves are held at once.
_CLASS_BLOCK = 2048


# ------------------------------------------------------------------ intervals


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
    ) -> TauIntervals:
        """Find the intervals of these examples, in float64 whatever the logits' dtype.

        The arguments are those of `tune_tau`, and `norms`, `bias` and `bias_mode` those of
        `tune_normalization`, with method="weight_normalization". A class without examples is no
        error here, since another shard may have them; examples of weight 0 are left out.
        """
        logits, target, weight = checked_examples(logits, target, sample_weight, prior)
        width = logits.shape[1]
        importance = np.ones(width) if target_prior is None else target_prior.probs
        if costs is not None:
            importance = importance * _checks.positive_per_class(costs, width, name="costs")
        normalizes = _checks.choice(method, METHODS, name="method") == "weight_normalization"
        if normalizes:
            if bias_mode == "keep":
                raise InputError(
                    "bias_mode='keep' has no exact curve, since an example may be right in several "
                    "intervals of tau; tune with bias_mode='scale' or 'drop', or compare "
                    "balanced_error(target, normalize_weights(..., bias_mode='keep', tau=t)) over "
                    "a grid of t."
                )
            direction = posthoc.log_norms(norms, num_classes=width)
            bias = posthoc.checked_bias(bias, bias_mode, num_classes=width)
        elif norms is not None or bias is not None or bias_mode != "scale":
            raise InputError(
                "`norms`, `bias` and `bias_mode` belong to method='weight_normalization'; "
                "leave them out."
            )
        else:
            direction = -posthoc.adjustment(prior, target_prior=target_prior, costs=costs)
        lower, upper = _find_ends(
            logits,
            target,
            direction,
            signed=normalizes,
            bias=bias if bias_mode == "drop" else None,
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
        if len({(p.method, p.bias_mode, p.importance.tobytes()) for p in parts}) > 1:
            raise InputError(
                "TauIntervals.merge: only parts with the same classes, method, bias_mode, "
                "target prior and costs can be merged."
            )
        weighted = any(part.weight is not None for part in parts)
        return replace(
            parts[0],
            lower=np.concatenate([part.lower for part in parts]),
            upper=np.concatenate([part.upper for part in parts]),
            target=np.concatenate([part.target for part in parts]),
            weight=np.concatenate([part.weights for part in parts]) if weighted else None,
        )

    def right_at(self, tau: float) -> NDArray[np.bool_]:
        """Whether each example is predicted right at this tau."""
        return (self.lower <= tau) & (tau < self.upper)

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
        moved = class_shares(prior.probs, self.counts, weights=self.importance)
        return replace(self, importance=moved)

    def __add__(self, other: TauIntervals) -> TauIntervals:
        if not isinstance(other, TauIntervals):
            return NotImplemented
        return TauIntervals.merge([self, other])

    def __radd__(self, other: object) -> TauIntervals:
        return self if other == 0 else NotImplemented  # sum() starts from 0

    def __repr__(self) -> str:
        return (
            f"TauIntervals(examples={self.num_examples}, num_classes={self.num_classes}, "
            f"method={self.method!r})"
        )


def checked_examples(
    logits: Any, target: Any, sample_weight: Any, prior: ClassPrior | None = None
) -> tuple[NDArray[Any], IntArray, FloatArray | None]:
    """Return logits (values still to be checked, chunk by chunk), labels and weights that fit."""
    logits = _checks.matrix(logits, finite=False)
    if prior is not None:
        _checks.prior(prior, num_classes=logits.shape[1], shape=logits.shape)
    target = _checks.labels(target, num_classes=logits.shape[1])
    _checks.same_length(logits, target)
    if sample_weight is not None:
        sample_weight = _checks.sample_weight(sample_weight, len(target))
    return logits, target, sample_weight


def divided(amount: NDArray[Any], by: NDArray[Any]) -> FloatArray:
    """The quotient, 0 where there is nothing to divide by."""
    quotient: FloatArray = np.zeros(np.broadcast(amount, by).shape)
    np.divide(amount, by, out=quotient, where=by > 0)
    return quotient


def class_shares(
    sizes: IntArray | FloatArray, examples: IntArray, *, weights: FloatArray | None = None
) -> FloatArray:
    """Weights of classes in the error, with those without examples given to the nearest in size.

    Near is meant on a logarithmic scale. Classes that are as near share evenly, so that the
    numbers by which classes of one size go mean nothing.

    Args:
        sizes: training examples of each class or their shares, positive, shape (num_classes,).
        examples: held-out examples of each class, shape (num_classes,).
        weights: of the classes in the error, of sum 1; 1/L each by default.

    Returns:
        Shape (num_classes,), of sum 1; 0 for classes without examples.

    Examples:
        >>> class_shares(np.array([500, 400, 90, 10]), np.array([0, 20, 50, 50]))
        array([0.  , 0.5 , 0.25, 0.25])
        >>> class_shares(np.array([500, 10, 10, 10]), np.array([0, 9, 9, 0]))
        array([0. , 0.5, 0.5, 0. ])
    """
    weights = np.full(len(sizes), 1.0 / len(sizes)) if weights is None else weights
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


def _find_ends(
    logits: NDArray[Any],
    target: IntArray,
    direction: FloatArray,
    *,
    signed: bool,
    bias: FloatArray | None,
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
    """
    width = len(direction)
    steps = np.diff(direction)
    monotone = bool(np.all(steps >= 0) or np.all(steps <= 0))
    # A stable sort keeps classes of equal l in index order, which breaks their ties.
    order = np.arange(width) if monotone else np.argsort(direction, kind="stable")
    along, place = direction[order], np.argsort(order)
    falling = bool(along[0] > along[-1])
    keys = -along if falling else along
    # The class at place p ties with those at starts[p] .. stops[p] − 1.
    starts, stops = np.searchsorted(keys, keys), np.searchsorted(keys, keys, side="right")

    block = max(1, _BLOCK_ELEMENTS // width)
    swapped = np.empty((block, width), logits.dtype)
    raw, work = np.empty_like(swapped), np.empty((block, width))
    lower, upper = np.empty((2, len(logits)))
    for first in range(0, len(logits), _WINDOW_ROWS):
        rows_ = slice(first, first + _WINDOW_ROWS)
        window, labels = logits[rows_], target[rows_]
        # Values in natural order: a disk reads ahead, and a message can name the row.
        for at in range(0, len(window), step := max(1, (1 << 20) // width)):
            chunk = window[at : at + step]
            _checks.all_finite(chunk, name="logits", first_row=first + at)
            if first + at == 0 and not signed:
                hint = "take their logarithm, longtail.posthoc.log_probs(probs)"
                _checks.not_probabilities(chunk, hint=hint)
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
        lows, highs = lower[rows_], upper[rows_]
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


# ------------------------------------------------------------------ curve


class TauCurve:
    """The error of the adjusted predictions at every tau, Σ_y w_y P(wrong | y).

    With w_y = 1/L that is the balanced error; a target prior and costs weigh by q_y c_y. It is
    constant between neighbouring breakpoints, where some example becomes right or wrong.

    Args:
        intervals: of all held-out examples.
        bounds: lower and upper end of tau.

    Attributes:
        breakpoints: shape (cells + 1,), rising from the lower to the upper bound.
        values: shape (cells,), the error between breakpoints k and k + 1.
        min_value: least error within the bounds, of a cell or at tau = 0 alone.
        bounds: first and last breakpoint.
        intervals: as given.

    Examples:
        >>> from longtail import ClassPrior
        >>> prior = ClassPrior.from_probs([0.9, 0.1])
        >>> logits = np.array([[2.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
        >>> curve = TauCurve(TauIntervals.from_logits(logits, [0, 1, 1], prior), bounds=(0.0, 4.0))
        >>> curve
        TauCurve(cells=2, bounds=(0.0, 4.0), min_value=0.25)
        >>> curve.breakpoints.round(3), curve.values
        (array([0. , 0.91, 4. ]), array([0.25, 0.5 ]))
        >>> curve([0.0, 1.0]), curve.per_class(1.0)
        (array([0.25, 0.5 ]), array([1., 0.]))
    """

    def __init__(self, intervals: TauIntervals, *, bounds: tuple[float, float]) -> None:
        counts = intervals.counts
        missing = np.flatnonzero((intervals.importance > 0) & (counts == 0))
        if len(missing):
            raise InputError(
                f"every class needs held-out examples, but {len(missing)} of {len(counts)} "
                f"have none in `target`: {_checks.listing(missing)}; hold out at least one of "
                f"each, or let the nearest class in size stand in: missing='nearest' "
                f"(of TauIntervals: .with_stand_ins(prior))."
            )
        self.intervals = intervals
        self.bounds = (low, high) = bounds
        lower, upper = intervals.lower, intervals.upper
        units = np.rint(intervals.shares * _UNIT).astype(np.int64)
        ever = lower < upper
        begins = np.flatnonzero(ever & (lower > low) & (lower <= high))
        ends = np.flatnonzero(ever & (upper > low) & (upper <= high))
        positions = np.concatenate([lower[begins], upper[ends]])
        order = np.argsort(positions)
        # What changes at each position: an example becomes right, or wrong.
        self.changes = begins, ends, order
        self.positions = positions = positions[order]
        first = units[intervals.right_at(low)].sum()
        gained = np.concatenate([units[begins], -units[ends]])[order]
        right = np.concatenate([[first], first + gained.cumsum()])
        # Shares that were rounded to units may add up to a hair more or less than one.
        self._errors = np.where(right == units.sum(), 0.0, np.maximum(1.0 - right / _UNIT, 0.0))

        self.near = near = RESOLUTION * max(1.0, abs(low), abs(high))
        begin = np.searchsorted(positions, low + near, side="right")
        inside = positions[begin : np.searchsorted(positions, high - near)]
        starts = np.flatnonzero(np.diff(inside, prepend=-np.inf) > near)
        self.breakpoints = np.concatenate([[low], inside[starts], [high]])
        self.below = begin + np.append(starts, len(inside))  # positions below each cell
        self.values = self._errors[self.below]
        self.min_value = float(self.values.min())
        # Where the largest logits are equal, zero alone has the lowest index win, as argmax does.
        at_zero = self(0.0) if low <= 0.0 <= high else math.inf
        self.zero_alone = at_zero < self.min_value - TIE
        if self.zero_alone:
            self.min_value = at_zero

    def __call__(self, tau: Any) -> Any:
        """Return the error at each tau, also outside the bounds; a float for a float.

        On a breakpoint the value is that to its right, except at tau = 0, where equal logits go
        to the lowest index as argmax has it.
        """
        taus = np.asarray(tau, dtype=np.float64)
        errors = np.array(self._errors[np.searchsorted(self.positions, taus, side="right")])
        # No changes were sorted outside the bounds.
        for place in np.argwhere((taus < self.bounds[0]) | (taus > self.bounds[1])):
            there = tuple(place)
            errors[there] = np.nansum(self.intervals.importance * self.per_class(taus[there]))
        return float(errors) if taus.ndim == 0 else errors

    def per_class(self, tau: float) -> FloatArray:
        """Return the error of each class at this tau, NaN without examples."""
        parts = self.intervals
        wrong = ~parts.right_at(tau)
        weight = None if parts.weight is None else parts.weight[wrong]
        missed = np.bincount(parts.target[wrong], weights=weight, minlength=parts.num_classes)
        totals = parts.totals
        return np.where(totals > 0, divided(missed, totals), np.nan)

    def standard_error(self, tau: float) -> float:
        """Return the standard error of the error at this tau, the classes' own sizes fixed.

        It isn't the examples' own spread, which is nil in a class of one: `mean_variance` says how
        few of them widen it.
        """
        parts = self.intervals
        alike = parts.effective_counts
        some = np.flatnonzero((parts.importance > 0) & (alike > 0))
        wrong = self.per_class(tau) * alike
        return math.sqrt(mean_variance(wrong[some], None, alike[some], parts.importance[some]))

    def minimizer(self) -> tuple[float, tuple[float, float]]:
        """Return the minimising cell nearest to tau = 1, as (midpoint, (lower end, upper end)).

        Zero alone, with both ends 0, if it is better than every cell.
        """
        if self.zero_alone:
            return 0.0, (0.0, 0.0)
        best = np.flatnonzero(self.values <= self.min_value + TIE)
        low, high = self.breakpoints[best], self.breakpoints[best + 1]
        k = int(np.argmin(np.maximum(low - 1.0, 1.0 - high).clip(min=0.0)))
        return float((low[k] + high[k]) / 2), (float(low[k]), float(high[k]))

    def sample(self, points: int = 101) -> tuple[FloatArray, FloatArray]:
        """Return (taus, errors) at evenly spaced taus, for a table or a plot."""
        taus = np.linspace(*self.bounds, points)
        return taus, self(taus)

    def __repr__(self) -> str:
        return (
            f"TauCurve(cells={len(self.values)}, bounds={self.bounds}, "
            f"min_value={self.min_value:.6g})"
        )


# ------------------------------------------------------------------ bootstrap


def bootstrap_taus(curve: TauCurve, *, replicates: int, rng: np.random.Generator) -> FloatArray:
    """Return the minimiser of each of `replicates` resampled curves, shape (replicates,).

    Each group's examples are drawn with replacement, and tau is chosen as on the data themselves:
    the middle of the best cells nearest to 1, and zero where it alone is better. Breakpoints of
    examples that were not drawn change nothing, so neighbouring cells of the same value are one.
    Of many examples the normal approximation of the same resampling costs one more look at the
    intervals instead of a thousand.
    """
    parts, count = curve.intervals, len(curve.intervals.target)
    group, importance, times, shares = groups = _groups(parts)
    if times.sum() * replicates > _EXACT_DRAWS:
        return normal_taus(curve, groups, replicates, rng)
    # Sorted by their intervals, so that copies and weights are drawn alike.
    order = np.lexsort((parts.upper, parts.lower, group))
    group, times = group[order], times[order]
    begins, ends, by_position = curve.changes
    who = np.argsort(order)[np.concatenate([begins, ends])[by_position]]
    sign = np.repeat([1, -1], [len(begins), len(ends)])[by_position]
    unit, of_example = shares[order] / times, importance[group]
    number = np.bincount(group, weights=times).astype(np.int64)
    size, start = np.repeat(number, number), np.repeat(np.cumsum(number) - number, number)
    copies = np.repeat(np.arange(count), times)
    members = np.bincount(group)
    starts = (
        np.cumsum(members) - members
    )  # Where logits are equal, zero alone may have others right than every tau right behind it.
    zero = parts.right_at(0.0)[order] * 1.0 - parts.right_at(2.0 * curve.near)[order]
    zero *= curve.bounds[0] <= 0.0 < curve.bounds[1]
    behind = np.searchsorted(curve.breakpoints, curve.near, side="right") - 1

    lows, highs = curve.breakpoints[:-1], curve.breakpoints[1:]
    away, place = np.maximum(lows - 1.0, 1.0 - highs).clip(min=0.0), np.arange(len(lows))
    taus = np.empty(replicates)
    step = max(1, _BLOCK // max(len(copies), len(who)))
    for first in range(0, replicates, step):
        rows = min(step, replicates - first)
        drawn = copies[start + (rng.random((rows, len(copies))) * size).astype(np.int64)]
        drawn += count * np.arange(rows)[:, None]
        mass = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count) * unit
        totals = np.repeat(np.add.reduceat(mass, starts, axis=1), members, axis=1)
        share = divided(of_example * mass, totals)
        right = np.zeros((rows, len(who) + 1))
        np.cumsum(share[:, who] * sign, axis=1, out=right[:, 1:])
        right = right[:, curve.below]
        best = right >= right.max(axis=1, keepdims=True) - TIE
        chosen = np.where(best, away, np.inf).argmin(axis=1)[:, None]
        before = np.where(best | (place > chosen), -1, place).max(axis=1)
        after = np.where(best | (place < chosen), len(place), place).min(axis=1)
        found = (lows[before + 1] + highs[after - 1]) / 2
        if zero.any():
            found[right[:, behind] + share @ zero > right.max(axis=1) + TIE] = 0.0
        taus[first : first + rows] = found
    return taus


def _groups(parts: TauIntervals) -> Groups:
    """Return each example's group, each group's importance, each example's copies and share.

    Groups keep their sizes when their examples are drawn again. They are the classes, since the
    balanced error looks at each class by itself. But a class of one example would be the same in
    every draw, as if its error were known: those of few examples are one group, each example with
    the share that its own class has in the error. Whole weights are copies; others are drawn along
    with their examples.
    """
    times = np.ones(len(parts.target), dtype=np.int64)
    if parts.weight is not None and np.all(parts.weight == np.floor(parts.weight)):
        times = parts.weight.astype(np.int64)
    number = np.bincount(parts.target, weights=times, minlength=parts.num_classes)
    place = np.arange(parts.num_classes)
    few = np.flatnonzero((number > 0) & (number < _FEW))
    place[few] = few[:1]
    importance = np.bincount(place, weights=parts.importance, minlength=parts.num_classes)
    first = (number > 0) & (place == np.arange(parts.num_classes))
    group = (np.cumsum(first) - 1)[place][parts.target]
    return group, importance[first], times, parts.shares


def normal_taus(
    curve: TauCurve, groups: Groups, replicates: int, rng: np.random.Generator
) -> FloatArray:
    """Minimisers of curves drawn from the normal law with the resampling's mean and covariance.

    The first round finds where they lie, the second looks closer. A minimiser is the middle of its
    cell, as on the data themselves; points of one cell are one, since nothing but rounding could
    tell which of them is best.
    """
    low, high = curve.bounds
    for points in _POINTS:
        step = (high - low) / points
        taus = low + step * np.arange(0.5, points)
        cell = np.searchsorted(curve.breakpoints[1:-1], taus, side="right")
        cell, one = np.unique(cell, return_index=True)
        covariance = resampled_covariance(curve.intervals, groups, taus)[np.ix_(one, one)]
        noise = normal_noise(covariance, replicates, rng)
        found = cell[np.argmin(curve(taus[one]) + noise, axis=1)]
        begin, end = curve.breakpoints[found], curve.breakpoints[found + 1]
        low = max(low, float(begin.min()) - step)
        high = min(high, float(end.max()) + step)
    return np.asarray((begin + end) / 2)


def normal_noise(covariance: FloatArray, draws: int, rng: np.random.Generator) -> FloatArray:
    """Normal noise of this covariance, shape (draws, numbers)."""
    size = len(covariance)
    # Rounding may leave a singular matrix just short of positive definite,
    ridge = np.diag(np.full(size, 1e-9 * covariance.max() + np.finfo(np.float64).tiny))
    try:
        root = np.linalg.cholesky(covariance + ridge)
    except np.linalg.LinAlgError:  # or, of numbers that hardly vary, be all that is there
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(values.clip(min=0.0))
    return np.asarray(rng.standard_normal((draws, size)) @ root.T)


def resampled_covariance(parts: TauIntervals, groups: Groups, taus: FloatArray) -> FloatArray:
    """Covariance of the resampled error at evenly spaced, rising taus, shape (taus, taus).

    With x_i(τ) = 1 where example i is right, s_i its share of the error and k_i its copies, it is
    Σ_g Σ_{i ∈ g} s_i² / k_i (x_i(τ) − p_g(τ)) (x_i(τ') − p_g(τ')).
    """
    group, importance, times, share = groups
    points = len(taus)
    # Example i is right at the taus begin_i .. end_i − 1; arithmetic is much faster than a search.
    scale = (points - 1) / (taus[-1] - taus[0])
    begin, end = (
        np.ceil((x - taus[0]) * scale).clip(0, points).astype(np.int64)
        for x in (parts.lower, parts.upper)
    )
    square = share**2 / times
    squares = np.bincount(group, weights=square)
    ever = begin < end
    begin, end, group, share, square = (a[ever] for a in (begin, end, group, share, square))

    # Σ s² / k over the examples right at both a and b ≥ a: those that begin by a, end after b.
    size = (points + 1) ** 2
    both = np.bincount(begin * (points + 1) + end, weights=square, minlength=size)
    both = both.reshape(points + 1, points + 1)[:points, 1:].cumsum(axis=0)
    both = both[:, ::-1].cumsum(axis=1)[:, ::-1]
    covariance = np.triu(both) + np.triu(both, 1).T

    # The means: importance_g p_g, and Σ s² / k of the right ones, per group.
    for first in range(0, len(importance), _CLASS_BLOCK):
        rows = slice(first, min(first + _CLASS_BLOCK, len(importance)))
        mine = (group >= rows.start) & (group < rows.stop)
        row, size = (group[mine] - first) * (points + 1), (rows.stop - first) * (points + 1)
        sums = []
        for amount in (share[mine], square[mine]):
            change = np.bincount(row + begin[mine], weights=amount, minlength=size)
            change = change - np.bincount(row + end[mine], weights=amount, minlength=size)
            sums.append(change.reshape(-1, points + 1).cumsum(axis=1)[:, :points])
        mean = divided(sums[0], importance[rows, None])
        crossed = mean.T @ sums[1]
        covariance -= crossed + crossed.T - mean.T @ (squares[rows, None] * mean)
    return np.asarray(covariance, dtype=np.float64)
