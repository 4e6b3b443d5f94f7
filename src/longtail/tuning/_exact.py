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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail import _checks, posthoc
from longtail._checks import FloatArray, InputError, IntArray
from longtail.metrics import mean_variance
from longtail.priors import ClassPrior

# Elements of each of two work buffers, which share an L2 cache: 512 KB in float64.
_BLOCK_ELEMENTS = 1 << 16
# Up to this many classes the inverse gaps between all of them are kept: 32 MB.
_TABLE = 2048

# Ends of intervals closer than this are one breakpoint: float64 can't tell what lies between.
RESOLUTION = 1e-12
# Errors closer than this are equal; the rounding of a million shares of a class is below it.
TIE = 1e-12
# Shares are added as multiples of 2^−62: integers cancel exactly when an example that came
# goes again, where floats leave rounding that would break ties between cells.
_UNIT = 2.0**62

# Divisor in place of a sum over no examples.
_TINY = np.finfo(np.float64).tiny

# Examples times replicates up to which each replicate is drawn: a fraction of a second.
_EXACT_DRAWS = 3_000_000
# Classes with fewer examples are drawn together.
_FEW = 10
# Taus at which the normal approximation is evaluated, in its first and second round.
_POINTS = (128, 256)
# Classes whose curves are held at once.
_CLASS_BLOCK = 2048


# --- intervals --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class TauIntervals:
    """For each held-out example, the interval of tau in which its adjusted prediction is right.

    Intervals of shards, or of cross-validation folds with priors of their own, merge.

    Attributes:
        lower: shape (examples,); right from here on (−inf: from the start).
        upper: shape (examples,); right up to, but not including, this; never right where
            lower ≥ upper.
        target: true class of each example.
        num_classes: L.
        importance: weight of each class in the error, sums to 1: q_y c_y, normalised; 1/L by
            default.
        weight: of each example in its class.
        method: "logit_adjustment" or "weight_normalization".
        bias_mode: of weight normalization, else None.

    Examples:
        >>> prior = ClassPrior.from_probs([0.9, 0.1])
        >>> logits = np.array([[2.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
        >>> parts = TauIntervals.from_logits(logits, [0, 1, 1], prior)
        >>> parts.lower.round(3), parts.upper.round(3)
        (array([ -inf, 0.91 , -0.455]), array([0.91,  inf,  inf]))
        >>> TauIntervals.merge([parts, parts]).counts
        array([2, 4])
    """

    lower: FloatArray
    upper: FloatArray
    target: IntArray
    num_classes: int
    importance: FloatArray
    weight: FloatArray
    method: str = "logit_adjustment"
    bias_mode: str | None = None

    @classmethod
    def from_logits(
        cls,
        logits: Any,
        target: Any,
        prior: ClassPrior,
        *,
        target_prior: ClassPrior | None = None,
        costs: Any = None,
        sample_weight: Any = None,
    ) -> TauIntervals:
        """Find the intervals of these examples; the arguments are those of `tune_tau`.

        A class without examples is no error here, since another shard may have them; examples of
        weight 0 are left out.
        """
        examples = _checks.examples(logits, target, pi=prior, weight=sample_weight)
        direction = -posthoc.adjustment(prior, target_prior=target_prior, costs=costs)
        importance = np.ones(len(direction)) if target_prior is None else target_prior.probs
        if costs is not None:
            importance = importance * _checks.per_class(costs, name="costs")
        _checks.not_probabilities(examples[0][: max(1, (1 << 20) // len(direction))])
        return cls._of(*examples, direction, importance / importance.sum())

    @classmethod
    def from_normalized(
        cls,
        logits: Any,
        target: Any,
        *,
        norms: Any,
        bias: Any = None,
        bias_mode: posthoc.BiasMode = "scale",
        sample_weight: Any = None,
    ) -> TauIntervals:
        """Find the intervals of weight normalization; the arguments of `tune_normalization`."""
        if bias_mode == "keep":
            raise InputError(
                "bias_mode='keep' has no exact curve, since an example may be right in several "
                "intervals of tau; tune with bias_mode='scale' or 'drop', or compare "
                "balanced_error(target, normalize_weights(..., bias_mode='keep', tau=t)) over "
                "a grid of t."
            )
        examples = _checks.examples(logits, target, weight=sample_weight)
        width = examples[0].shape[1]
        direction = posthoc.log_norms(norms, num_classes=width)
        bias = posthoc.checked_bias(bias, bias_mode, num_classes=width)
        kind: Any = {"method": "weight_normalization", "bias_mode": bias_mode}
        return cls._of(*examples, direction, np.full(width, 1.0 / width), bias=bias, **kind)

    @classmethod
    def _of(
        cls,
        logits: NDArray[Any],
        target: IntArray,
        weight: FloatArray | None,
        direction: FloatArray,
        importance: FloatArray,
        *,
        bias: FloatArray | None = None,
        **kind: Any,
    ) -> TauIntervals:
        lower, upper = _find_ends(logits, target, direction, divide=bool(kind), bias=bias)
        if weight is None:
            weight = np.ones(len(target))
        elif not weight.all():
            keep = weight > 0
            lower, upper, target, weight = lower[keep], upper[keep], target[keep], weight[keep]
        return cls(lower, upper, target, len(direction), importance, weight, **kind)

    @classmethod
    def merge(cls, parts: Iterable[TauIntervals]) -> TauIntervals:
        """Join all examples of the parts, which must agree in everything but the prior."""
        parts = list(parts)
        if len({(p.method, p.bias_mode, p.importance.tobytes()) for p in parts}) != 1:
            raise InputError(
                "TauIntervals.merge: only parts with the same classes, method, bias_mode, "
                "target prior and costs can be merged, and at least one is needed."
            )
        names = "lower", "upper", "target", "weight"
        joined: Any = {n: np.concatenate([getattr(part, n) for part in parts]) for n in names}
        return replace(parts[0], **joined)

    def right_at(self, tau: float) -> NDArray[np.bool_]:
        """Return which examples are predicted right at this tau."""
        return (self.lower <= tau) & (tau < self.upper)

    def by_class(self, amount: NDArray[Any]) -> FloatArray:
        """Return the sum over the examples of each class, shape (num_classes,)."""
        sums = np.bincount(self.target, weights=amount, minlength=self.num_classes)
        return sums.astype(np.float64, copy=False)

    @property
    def counts(self) -> IntArray:
        """Held-out examples of each class, shape (num_classes,)."""
        return np.bincount(self.target, minlength=self.num_classes)

    @property
    def shares(self) -> FloatArray:
        """Part of the error that each example is if it is wrong, shape (examples,)."""
        totals = np.maximum(self.by_class(self.weight), _TINY)
        return np.asarray((self.importance / totals)[self.target] * self.weight)

    @property
    def effective_counts(self) -> FloatArray:
        """Examples of each class; of weighted ones as many alike ones as tell as much (Kish)."""
        squares = np.maximum(self.by_class(self.weight**2), _TINY)
        return np.asarray(self.by_class(self.weight) ** 2 / squares)

    @property
    def deciding_examples(self) -> float:
        """Effective number of examples that decide about the error.

        The classes' variances v_y = importance_y² / n_y add up to that of the error. As with the
        degrees of freedom of such a sum (Satterthwaite), it is known as well as from
        (Σ v)² / Σ (v² / n) examples: all of them in balanced data, those of the rarest class where
        it alone is small.
        """
        alike = np.maximum(self.effective_counts, _TINY)
        variances = self.importance**2 / alike
        return float(variances.sum() ** 2 / (variances**2 / alike).sum())

    def with_stand_ins(self, prior: ClassPrior) -> TauIntervals:
        """Return the same with the importance of absent classes given to the nearest in size.

        Left out of the error, the largest classes would have no say in how far logits may be
        adjusted against them. Near is meant on a logarithmic scale of the probabilities of
        `prior`, and classes that are as near share evenly.

        Examples:
            >>> prior = ClassPrior.from_counts([500, 400, 90, 10])
            >>> parts = TauIntervals.from_logits(2 * np.eye(4)[1:], [1, 2, 3], prior)
            >>> parts.with_stand_ins(prior).importance
            array([0.  , 0.5 , 0.25, 0.25])
        """
        _checks.prior(prior, num_classes=self.num_classes)
        there, sizes = self.counts > 0, prior.log_probs
        given = np.where(there, self.importance, 0.0)
        for size in np.unique(sizes[~there]):  # there may be very many classes, but few sizes
            away = np.where(there, np.abs(sizes - size), np.inf)
            near = away <= away.min() + 1e-9  # closer ones differ by rounding alone
            given[near] += self.importance[~there & (sizes == size)].sum() / near.sum()
        return replace(self, importance=given)

    def __repr__(self) -> str:
        return (
            f"TauIntervals(examples={len(self.target)}, num_classes={self.num_classes}, "
            f"method={self.method!r})"
        )


@np.errstate(all="ignore")  # infinity is no bound
def _find_ends(
    logits: NDArray[Any],
    target: IntArray,
    direction: FloatArray,
    *,
    divide: bool = False,
    bias: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Return the lower and upper end of every example's interval, in one pass.

    This is the hot loop, written for memory bandwidth. With the classes sorted by falling l, those
    before y bound τ from below by (f_j − f_y) / |l_j − l_y|, those behind it from above by minus
    that: two maxima of consecutive numbers. Where l_j = l_y, the quotient is ∞ if class j wins,
    −∞ if class y does, and NaN if their logits are equal.

    Args:
        logits: f, shape (examples, classes).
        target: shape (examples,).
        direction: l, shape (classes,).
        divide: take f / exp(τ l), which keeps the sign of f, in place of f − τ l.
        bias: taken off the logits first, or None.
    """
    logits, width = np.asarray(logits), len(direction)  # slices of a memory map cost more
    steps = np.diff(direction)
    # Classes that come by frequency need no sorting.
    order: Any = np.argsort(-direction, kind="stable")
    if np.all(steps <= 0) or np.all(steps >= 0):
        order = slice(None, None, 1 if np.all(steps <= 0) else -1)
    classes = np.arange(width)[order]
    along, place = direction[classes], np.argsort(classes)
    table = _inverse_gaps(along, direction) if width <= _TABLE else None
    block = max(1, _BLOCK_ELEMENTS // width)
    work, inverse = np.empty((2, min(block, len(logits)), width))
    lower, upper = np.empty((2, len(logits)))
    for first in range(0, len(logits), block):
        rows = slice(first, first + block)
        raw, labels = logits[rows], target[rows]
        _checks.all_finite(raw, name="logits", first_row=first)
        scores, gaps = work[: len(raw)], inverse[: len(raw)]
        by_slice = isinstance(order, slice)
        scores[...] = raw[:, order] if by_slice else np.take(raw, order, axis=1, mode="clip")
        if bias is not None:
            scores -= bias[order]
        flat, start = scores.reshape(-1), np.arange(len(raw)) * width
        at = start + place[labels]
        own = flat[at]
        if table is None:
            _inverse_gaps(along, direction[labels], out=gaps)
        else:
            np.take(table, labels, axis=0, out=gaps, mode="clip")
        if divide:
            top, sign = scores.max(axis=1), np.where(own < 0, -1.0, 1.0)
            zeros = (scores == 0) & (classes < labels[:, None])
            # log 0 = −∞ takes the scores of the other sign out of the comparison. Among negative
            # ones the smaller |f| wins.
            np.log(np.maximum(scores * sign[:, None], 0.0), out=scores)
            scores -= np.log(np.where(own == 0, 1.0, np.abs(own)))[:, None]
            scores *= sign[:, None]
        else:
            scores -= own[:, None]
        scores *= gaps
        flat[at] = -np.inf
        cuts = np.stack([start, at], axis=1).reshape(-1)
        most = np.maximum.reduceat(flat, cuts)
        if np.isnan(most).any():  # such ties go to the lowest index, as argmax has it
            ties = np.isnan(scores)
            scores[ties] = np.where(classes < labels[:, None], np.inf, -np.inf)[ties]
            most = np.maximum.reduceat(flat, cuts)
        before, behind = most.reshape(-1, 2).T
        if divide:
            before, behind = np.where(sign > 0, (before, behind), (behind, before))
            # What is above zero stays above what is not; a score of zero stays zero.
            some = (own == 0) | (own < 0) & (top >= 0)
            lost = (top > 0) | (own < 0) | zeros.any(axis=1)
            before[some], behind[some] = np.where(lost[some], np.inf, -np.inf), -np.inf
        lower[rows], upper[rows] = np.where(behind == np.inf, np.inf, before), -behind
    # At tau = 0 argmax takes the lowest index where the largest logits are equal. It is the one
    # place where two scores tie exactly: elsewhere a tie would need a logarithm of a rational
    # number to be rational. An end that must include or exclude zero moves by the smallest number
    # there is.
    edge = np.flatnonzero((lower == 0) | (upper == 0))
    for some in np.array_split(edge, len(edge) // block + 1):
        scores = logits[some] if bias is None else logits[some] - bias
        right = scores.argmax(axis=1) == target[some]
        upper[some[right & (upper[some] == 0)]] = np.nextafter(0.0, 1.0)
        lower[some[~right & (lower[some] == 0)]] = np.nextafter(0.0, 1.0)
    return lower, upper


def _inverse_gaps(along: FloatArray, own: FloatArray, out: Any = None) -> FloatArray:
    """Return 1 / |l_j − l_y|, shape (own, along)."""
    gaps = np.subtract(along, own[:, None], out=out)
    np.abs(gaps, out=gaps)
    return np.asarray(np.divide(1.0, gaps, out=gaps))


# --- curve ------------------------------------------------------------------------------------


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
                f"each, or let the nearest class in size count for them too: `missing='nearest'`."
            )
        self.intervals = intervals
        self.bounds = (low, high) = bounds
        lower, upper = intervals.lower, intervals.upper
        units = np.rint(intervals.shares * _UNIT).astype(np.int64)
        ever = lower < upper
        begins, ends = (np.flatnonzero(ever & (x > low) & (x <= high)) for x in (lower, upper))
        positions = np.concatenate([lower[begins], upper[ends]])
        order = np.argsort(positions)
        self.positions = positions = positions[order]
        # The example that becomes right (+1) or wrong (−1) at each position.
        self.changed = np.concatenate([begins, ends])[order]
        self.signs = np.where(order < len(begins), 1, -1)
        first = (units * intervals.right_at(low)).sum()
        right = np.append(first, first + (self.signs * units[self.changed]).cumsum())
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
        # How far each cell is from tau = 1, negative if it is inside.
        self.away = np.maximum(self.breakpoints[:-1] - 1.0, 1.0 - self.breakpoints[1:])
        # At zero alone equal logits go to the lowest index, as argmax has it.
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
        for place in map(tuple, np.argwhere((taus < self.bounds[0]) | (taus > self.bounds[1]))):
            errors[place] = self.intervals.shares @ ~self.intervals.right_at(taus[place])
        return float(errors) if taus.ndim == 0 else errors

    def per_class(self, tau: float) -> FloatArray:
        """Return the error of each class at this tau, NaN without examples."""
        parts = self.intervals
        totals = parts.by_class(parts.weight)
        missed = parts.by_class(parts.weight * ~parts.right_at(tau))
        return np.where(totals > 0, missed / np.maximum(totals, _TINY), np.nan)

    def standard_error(self, tau: float) -> float:
        """Return the standard error of the error at this tau, the classes' own sizes fixed.

        Few examples widen it, also where all of them are right (`mean_variance`).
        """
        parts, alike = self.intervals, self.intervals.effective_counts
        some = np.flatnonzero((parts.importance > 0) & (alike > 0))
        wrong = self.per_class(tau) * alike
        return math.sqrt(mean_variance(wrong[some], None, alike[some], parts.importance[some]))

    def minimizer(self) -> tuple[float, tuple[float, float]]:
        """Return the minimising cell nearest to tau = 1, as (midpoint, (lower end, upper end)).

        Zero alone, with both ends 0, if it is better than every cell.
        """
        if self.zero_alone:
            return 0.0, (0.0, 0.0)
        best = self.values <= self.min_value + TIE
        k = int(np.argmin(np.where(best, self.away, np.inf)))
        low, high = self.breakpoints[k : k + 2].tolist()
        return (low + high) / 2, (low, high)

    def sample(self, points: int = 101) -> tuple[FloatArray, FloatArray]:
        """Return (taus, errors) at evenly spaced taus, for a table or a plot."""
        taus = np.linspace(*self.bounds, points)
        return taus, self(taus)

    def __repr__(self) -> str:
        return (
            f"TauCurve(cells={len(self.values)}, bounds={self.bounds}, "
            f"min_value={self.min_value:.6g})"
        )


# --- bootstrap --------------------------------------------------------------------------------


class Groups(NamedTuple):
    """Groups of examples that are drawn again with replacement, each by itself.

    A group is a class, since the balanced error looks at each class by itself. But a class of one
    example would be the same in every draw, as if its error were known: the classes of few
    examples are one group, in which each example has the share of its own class in the error.
    Whole weights are copies; others are drawn along with their examples.
    """

    of: IntArray  # group of each example
    importance: FloatArray  # of each group in the error
    copies: IntArray  # of each example
    share: FloatArray  # of each example in the error

    @classmethod
    def from_intervals(cls, parts: TauIntervals) -> Groups:
        """Group the examples of these intervals."""
        whole = bool(np.all(parts.weight == np.floor(parts.weight)))
        copies = (parts.weight if whole else np.ones(len(parts.target))).astype(np.int64)
        number = parts.by_class(copies)
        place = np.arange(parts.num_classes)
        few = np.flatnonzero((number > 0) & (number < _FEW))
        place[few] = few[:1]
        found = np.flatnonzero(np.bincount(place, weights=number))
        of = np.searchsorted(found, place)[parts.target]
        importance = np.bincount(place, weights=parts.importance, minlength=parts.num_classes)
        return cls(of, importance[found].astype(np.float64), copies, parts.shares)


def bootstrap_taus(curve: TauCurve, *, replicates: int, rng: np.random.Generator) -> FloatArray:
    """Return the minimiser of each of `replicates` resampled curves, shape (replicates,).

    Each group's examples are drawn with replacement, and tau is chosen as on the data themselves:
    the middle of the best cells nearest to 1, and zero where it alone is better. Breakpoints of
    examples that were not drawn change nothing, so neighbouring cells of the same value are one.
    Of many examples the normal approximation of the same resampling costs one more look at the
    intervals instead of a thousand.
    """
    parts, groups = curve.intervals, Groups.from_intervals(curve.intervals)
    if groups.copies.sum() * replicates > _EXACT_DRAWS:
        return _normal_taus(curve, groups, replicates, rng)
    # Sorted by their intervals, so that copies and weights are drawn alike.
    order = np.lexsort((parts.upper, parts.lower, groups.of))
    examples = np.repeat(order, groups.copies[order])
    number = np.bincount(groups.of, weights=groups.copies).astype(np.int64)
    size, start = np.repeat(number, number), np.repeat(np.cumsum(number) - number, number)
    unit, importance = groups.share / groups.copies, groups.importance[groups.of]
    # Where logits are equal, tau = 0 may get other examples right than any tau just above it.
    zero = parts.right_at(0.0) * 1.0 - parts.right_at(2.0 * curve.near)
    zero *= curve.bounds[0] <= 0.0 < curve.bounds[1]
    behind = np.searchsorted(curve.breakpoints, curve.near, side="right") - 1

    taus = np.empty(replicates)
    for k in range(replicates):
        drawn = examples[start + (rng.random(len(examples)) * size).astype(np.int64)]
        mass = np.bincount(drawn, minlength=len(unit)) * unit
        share = importance * mass / np.bincount(groups.of, weights=mass)[groups.of]
        right = np.append(0.0, np.cumsum(share[curve.changed] * curve.signs))[curve.below]
        best = right >= right.max() - TIE
        # The plateau of the best cell nearest to 1 lies between two worse cells.
        worse = np.concatenate([[-1], np.flatnonzero(~best), [len(best)]])
        after = np.searchsorted(worse, np.argmin(np.where(best, curve.away, np.inf)))
        taus[k] = (curve.breakpoints[worse[after - 1] + 1] + curve.breakpoints[worse[after]]) / 2
        if zero.any() and right[behind] + share @ zero > right.max() + TIE:
            taus[k] = 0.0
    return taus


def _normal_taus(
    curve: TauCurve, groups: Groups, replicates: int, rng: np.random.Generator
) -> FloatArray:
    """Return minimisers of curves drawn from the normal law with the resampling's covariance.

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
    """Return normal noise of this covariance, shape (draws, numbers)."""
    size = len(covariance)
    # Rounding may leave a singular matrix just short of positive definite.
    ridge = np.diag(np.full(size, 1e-9 * covariance.max() + np.finfo(np.float64).tiny))
    try:
        root = np.linalg.cholesky(covariance + ridge)
    except np.linalg.LinAlgError:  # numbers that vary by rounding alone
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(values.clip(min=0.0))
    return np.asarray(rng.standard_normal((draws, size)) @ root.T)


def resampled_covariance(parts: TauIntervals, groups: Groups, taus: FloatArray) -> FloatArray:
    """Return the covariance of the resampled error at evenly spaced, rising taus.

    With x_i(τ) = 1 where example i is right, s_i its share of the error and k_i its copies, it is
    Σ_g Σ_{i ∈ g} s_i² / k_i (x_i(τ) − p_g(τ)) (x_i(τ') − p_g(τ')).
    """
    points = len(taus)
    # Example i is right at the taus begin_i .. end_i − 1; arithmetic is much faster than a search.
    scale = (points - 1) / (taus[-1] - taus[0])
    begin, end = (
        np.ceil((x - taus[0]) * scale).clip(0, points).astype(np.int32)
        for x in (parts.lower, parts.upper)
    )
    group, square = groups.of, groups.share**2 / groups.copies
    squares = np.bincount(group, weights=square)
    # Nothing of those that are right at none of the taus: cheaper than to leave them out.
    share, square = (amount * (begin < end) for amount in (groups.share, square))

    # Σ s² / k over the examples right at both a and b ≥ a: those that begin by a, end after b.
    size = (points + 1) ** 2
    both = np.bincount(begin * (points + 1) + end, weights=square, minlength=size)
    both = both.reshape(points + 1, points + 1)[:points, 1:].cumsum(axis=0)
    both = both[:, ::-1].cumsum(axis=1)[:, ::-1]
    covariance: Any = np.triu(both) + np.triu(both, 1).T

    # The means: importance_g p_g, and Σ s² / k of the right ones, per group.
    for first in range(0, len(squares), _CLASS_BLOCK):
        rows = slice(first, min(first + _CLASS_BLOCK, len(squares)))
        mine: Any = slice(None)
        if len(squares) > _CLASS_BLOCK:
            mine = (group >= rows.start) & (group < rows.stop)
        row, size = (group[mine] - first) * (points + 1), (rows.stop - first) * (points + 1)
        sums = []
        for amount in (share[mine], square[mine]):
            change = np.bincount(row + begin[mine], weights=amount, minlength=size)
            change = change - np.bincount(row + end[mine], weights=amount, minlength=size)
            sums.append(change.reshape(-1, points + 1).cumsum(axis=1)[:, :points])
        mean = sums[0] / np.maximum(groups.importance[rows, None], _TINY)
        crossed = mean.T @ sums[1]
        covariance -= crossed + crossed.T - mean.T @ (squares[rows, None] * mean)
    return np.asarray(covariance)
