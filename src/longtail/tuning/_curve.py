"""The error as a function of tau, exact and piecewise constant, and tau on resampled examples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from longtail._checks import FloatArray, IntArray
from longtail.metrics import mean_variance
from longtail.tuning._intervals import TauIntervals, divided, refuse_missing_classes

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
        refuse_missing_classes(np.where(intervals.importance > 0, intervals.counts, 1))
        self.intervals = intervals
        self.bounds = (low, high) = bounds
        lower, upper = intervals.lower, intervals.upper
        self._units = np.rint(intervals.shares * _UNIT).astype(np.int64)
        self._all = self._units.sum()
        ever = lower < upper
        begins = np.flatnonzero(ever & (lower > low) & (lower <= high))
        ends = np.flatnonzero(ever & (upper > low) & (upper <= high))
        positions = np.concatenate([lower[begins], upper[ends]])
        changes = np.concatenate([self._units[begins], -self._units[ends]])
        order = np.argsort(positions)
        self._positions = positions[order]
        first = self._units[(lower <= low) & (low < upper)].sum()
        self._right = np.concatenate([[first], first + np.cumsum(changes[order])])
        self.breakpoints, at = cells(self._positions, bounds)
        self.values = self._error(self._right[at])
        at_zero = self(0.0) if low <= 0.0 <= high else math.inf
        # Where the largest logits are equal, zero alone has the lowest index win, as argmax does.
        self._zero_alone = at_zero < float(self.values.min()) - TIE
        self.min_value = at_zero if self._zero_alone else float(self.values.min())

    def __call__(self, tau: Any) -> Any:
        """Return the error at each tau, also outside the bounds; a float for a float.

        On a breakpoint the value is that to its right, except at tau = 0, where equal logits go
        to the lowest index as argmax has it.
        """
        taus = np.asarray(tau, dtype=np.float64)
        right = self._right[np.searchsorted(self._positions, taus, side="right")]
        # No events were sorted outside the bounds.
        for place in np.argwhere((taus < self.bounds[0]) | (taus > self.bounds[1])):
            there = taus[tuple(place)]
            parts = self.intervals
            now = (parts.lower <= there) & (there < parts.upper)
            right = np.array(right)
            right[tuple(place)] = self._units[now].sum()
        errors = self._error(right)
        return float(errors) if taus.ndim == 0 else errors

    def per_class(self, tau: float) -> FloatArray:
        """Return the error of each class at this tau, NaN without examples."""
        parts = self.intervals
        wrong = ~((parts.lower <= tau) & (tau < parts.upper))
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
        some = np.flatnonzero((parts.importance > 0) & (parts.counts > 0))
        alike = parts.effective_counts[some]
        return math.sqrt(
            mean_variance(self.per_class(tau)[some] * alike, None, alike, parts.importance[some])
        )

    def minimizer(self) -> tuple[float, tuple[float, float]]:
        """Return the minimising cell nearest to tau = 1, as (midpoint, (lower end, upper end)).

        Zero alone, with both ends 0, if it is better than every cell.
        """
        if self._zero_alone:
            return 0.0, (0.0, 0.0)
        best = np.flatnonzero(self.values <= self.min_value + TIE)
        low, high = self.breakpoints[best], self.breakpoints[best + 1]
        k = int(np.argmin(distance_to_one(low, high)))
        return float((low[k] + high[k]) / 2), (float(low[k]), float(high[k]))

    def sample(self, points: int = 101) -> tuple[FloatArray, FloatArray]:
        """Return (taus, errors) at evenly spaced taus, for a table or a plot."""
        taus = np.linspace(*self.bounds, points)
        return taus, self(taus)

    def _error(self, right: Any) -> Any:
        # Shares that were rounded to units may add up to a hair more or less than one.
        return np.where(right == self._all, 0.0, np.maximum(1.0 - right / _UNIT, 0.0))

    def __repr__(self) -> str:
        return (
            f"TauCurve(cells={len(self.values)}, bounds={self.bounds}, "
            f"min_value={self.min_value:.6g})"
        )


def cells(positions: FloatArray, bounds: tuple[float, float]) -> tuple[FloatArray, IntArray]:
    """Return breakpoints within the bounds, and how many sorted positions lie below each cell.

    Examples:
        >>> cells(np.array([-1.0, 0.5, 0.5, 2.0, 9.0]), (0.0, 4.0))
        (array([0. , 0.5, 2. , 4. ]), array([1, 3, 4]))
    """
    low, high = bounds
    near = RESOLUTION * max(1.0, abs(low), abs(high))
    first = np.searchsorted(positions, low + near, side="right")
    last = np.searchsorted(positions, high - near, side="left")
    inside = positions[first:last]
    starts = np.flatnonzero(np.diff(inside, prepend=-np.inf) > near)
    breakpoints = np.concatenate([[low], inside[starts], [high]])
    below = first + np.append(starts, len(inside))
    return breakpoints, below


def distance_to_one(low: FloatArray, high: FloatArray) -> FloatArray:
    """Distance of each interval from tau = 1, zero if it holds it."""
    return np.maximum(np.maximum(low - 1.0, 1.0 - high), 0.0)


# ------------------------------------------------------------------ resampling


@dataclass(frozen=True)
class _Sample:
    """Held-out examples as they are drawn again, by groups.

    The groups are the classes, which keep their sizes, since the balanced error looks at each
    class by itself. But a class of one example would be the same in every draw, as if its error
    were known: those of few examples are one group, each example with the share that its own class
    has in the error. Whole weights are repetition, others are drawn along with their examples.
    """

    lower: FloatArray
    upper: FloatArray
    group: IntArray  # 0 .. groups − 1
    importance: FloatArray  # of each group
    times: IntArray  # copies of each example
    share: FloatArray  # part of the error that all copies of an example are

    @classmethod
    def of(cls, parts: TauIntervals, *, one_by_one: bool) -> _Sample:
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
        order: Any = slice(None)
        if one_by_one:  # sorted by their intervals, so that copies and weights are drawn alike
            order = np.lexsort((parts.upper, parts.lower, group))
        return cls(
            parts.lower[order],
            parts.upper[order],
            group[order],
            np.asarray(importance[first], dtype=np.float64),
            times[order],
            parts.shares[order],
        )


def bootstrap_taus(curve: TauCurve, *, replicates: int, rng: np.random.Generator) -> FloatArray:
    """Return the minimiser of each of `replicates` resampled curves, shape (replicates,).

    Few examples are resampled one by one; for many, the normal approximation of the same
    resampling costs one more look at the intervals instead of a thousand.
    """
    parts = curve.intervals
    total = len(parts.target)
    if parts.weight is not None:
        total = max(total, parts.weight.sum())
    if total * replicates > _EXACT_DRAWS:
        return normal_taus(curve, replicates, rng)
    return drawn_taus(curve, replicates, rng)


def drawn_taus(curve: TauCurve, replicates: int, rng: np.random.Generator) -> FloatArray:
    """Draw each group's examples with replacement, and choose tau as on the data themselves."""
    data = _Sample.of(curve.intervals, one_by_one=True)
    number = np.bincount(data.group, weights=data.times).astype(np.int64)
    size, start = np.repeat(number, number), np.repeat(np.cumsum(number) - number, number)
    copies = np.repeat(np.arange(len(data.group)), data.times)
    starts = np.flatnonzero(np.diff(data.group, prepend=-1))
    members = np.diff(np.append(starts, len(data.group)))
    importance, unit = data.importance[data.group], data.share / data.times

    (low, high), count = curve.bounds, len(data.group)
    near = RESOLUTION * max(1.0, abs(low), abs(high))
    ever = np.maximum(data.lower, low) < np.minimum(data.upper, high)
    begins = np.flatnonzero(ever & (data.lower > low + near))
    ends = np.flatnonzero(ever & (data.upper < high))
    positions = np.concatenate([data.lower[begins], data.upper[ends]])
    order = np.argsort(positions)
    who = np.concatenate([begins, ends])[order]
    sign = np.repeat([1.0, -1.0], [len(begins), len(ends)])[order]
    breakpoints, below = cells(positions[order], curve.bounds)
    # Where logits are equal, zero alone may have others right than every tau right behind it.
    zero = (data.lower <= 0.0) & (data.upper > 0.0)
    behind = (data.lower <= 2.0 * near) & (data.upper > 2.0 * near)
    alone = zero.astype(float) - behind if low <= 0.0 < high else np.zeros(count)
    behind_zero = int(np.searchsorted(breakpoints, near, side="right")) - 1

    taus = np.empty(replicates)
    step = max(1, _BLOCK // max(len(copies), len(who)))
    for first in range(0, replicates, step):
        rows = min(step, replicates - first)
        drawn = copies[start + (rng.random((rows, len(copies))) * size).astype(np.int64)]
        drawn += count * np.arange(rows)[:, None]
        mass = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count) * unit
        totals = np.repeat(np.add.reduceat(mass, starts, axis=1), members, axis=1)
        share = divided(importance * mass, totals)
        right = np.zeros((rows, len(who) + 1))
        np.cumsum(share[:, who] * sign, axis=1, out=right[:, 1:])
        right = right[:, below]
        found = _middles(breakpoints, right)
        if alone.any():
            found[right[:, behind_zero] + share @ alone > right.max(axis=1) + TIE] = 0.0
        taus[first : first + rows] = found
    return taus


def _middles(breakpoints: FloatArray, right: FloatArray) -> FloatArray:
    """For each row the midpoint of the plateau of most right examples that is nearest to tau = 1.

    Breakpoints of examples that were not drawn change nothing, so neighbouring cells of the
    same value are one.
    """
    best = right >= right.max(axis=1, keepdims=True) - TIE
    away = distance_to_one(breakpoints[:-1], breakpoints[1:])
    chosen = np.where(best, away, np.inf).argmin(axis=1)[:, None]
    place = np.arange(right.shape[1])
    before = np.where(best | (place > chosen), -1, place).max(axis=1)
    after = np.where(best | (place < chosen), len(place), place).min(axis=1)
    return np.asarray((breakpoints[before + 1] + breakpoints[after]) / 2)


def normal_taus(curve: TauCurve, replicates: int, rng: np.random.Generator) -> FloatArray:
    """Minimisers of curves drawn from the normal law with the resampling's mean and covariance.

    The first round finds where they lie, the second looks closer. A minimiser is the middle of its
    cell, as on the data themselves; points of one cell are one, since nothing but rounding could
    tell which of them is best.
    """
    data = _Sample.of(curve.intervals, one_by_one=False)
    low, high = curve.bounds
    for points in _POINTS:
        step = (high - low) / points
        taus = low + step * np.arange(0.5, points)
        cell = np.searchsorted(curve.breakpoints[1:-1], taus, side="right")
        cell, one = np.unique(cell, return_index=True)
        covariance = _covariance(data, taus)[np.ix_(one, one)]
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


def _covariance(data: _Sample, taus: FloatArray) -> FloatArray:
    """Covariance of the resampled error at evenly spaced, rising taus, shape (taus, taus).

    With x_i(τ) = 1 where example i is right, s_i its share of the error and k_i its copies, it is
    Σ_g Σ_{i ∈ g} s_i² / k_i (x_i(τ) − p_g(τ)) (x_i(τ') − p_g(τ')).
    """
    points, groups = len(taus), len(data.importance)
    # Example i is right at the taus begin_i .. end_i − 1; arithmetic is much faster than a search.
    scale = (points - 1) / (taus[-1] - taus[0])
    begin, end = (
        np.ceil((x - taus[0]) * scale).clip(0, points).astype(np.int64)
        for x in (data.lower, data.upper)
    )
    square = data.share**2 / data.times
    squares = np.bincount(data.group, weights=square)
    ever = begin < end
    begin, end, group, share, square = (
        a[ever] for a in (begin, end, data.group, data.share, square)
    )

    # Σ s² / k over the examples right at both a and b ≥ a: those that begin by a, end after b.
    size = (points + 1) ** 2
    both = np.bincount(begin * (points + 1) + end, weights=square, minlength=size)
    both = both.reshape(points + 1, points + 1)[:points, 1:].cumsum(axis=0)
    both = both[:, ::-1].cumsum(axis=1)[:, ::-1]
    covariance = np.triu(both) + np.triu(both, 1).T

    # The means: importance_g p_g, and Σ s² / k of the right ones, per group.
    for first in range(0, groups, _CLASS_BLOCK):
        width = min(_CLASS_BLOCK, groups - first)
        mine = (group >= first) & (group < first + width)
        row, size = (group[mine] - first) * (points + 1), width * (points + 1)
        sums = []
        for amount in (share[mine], square[mine]):
            change = np.bincount(row + begin[mine], weights=amount, minlength=size)
            change = change - np.bincount(row + end[mine], weights=amount, minlength=size)
            sums.append(change.reshape(width, points + 1).cumsum(axis=1)[:, :points])
        rows = slice(first, first + width)
        mean = divided(sums[0], data.importance[rows, None])
        crossed = mean.T @ sums[1]
        covariance -= crossed + crossed.T - mean.T @ (squares[rows, None] * mean)
    return np.asarray(covariance, dtype=np.float64)
