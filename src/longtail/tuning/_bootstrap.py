"""How far the chosen tau moves when the held-out examples are drawn again.

The classes keep their sizes, since the balanced error looks at each class by itself. But a class of
one example would be the same in every draw, as if its error were known: those of few examples are
drawn together, from all their examples, each with the share that its own class has in the error.

Few examples are resampled one by one; for many, the normal approximation of the same resampling
costs one more look at the intervals instead of a thousand. It shows where the minimisers lie, and
where few of the many examples change anything there, these few are resampled one by one: of so few
the normal law is a poor approximation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from longtail._checks import FloatArray, IntArray
from longtail.tuning._curve import RESOLUTION, TIE, TauCurve, cells, distance_to_one
from longtail.tuning._intervals import TauIntervals, divided

# Examples times replicates up to which each replicate is drawn: well under a second.
_EXACT_DRAWS = 3_000_000
# Classes with fewer examples are drawn together.
_FEW = 10
# Taus at which the normal approximation is evaluated, in its first and second round.
_POINTS = (128, 256)
# Classes whose curves are held at once.
_CLASS_BLOCK = 2048


def bootstrap_taus(curve: TauCurve, *, replicates: int, rng: np.random.Generator) -> FloatArray:
    """The minimiser of each of `replicates` resampled curves, shape (replicates,)."""
    if curve.intervals.num_examples * replicates <= _EXACT_DRAWS:
        return resampled_taus(curve, replicates, rng)
    for found in normal_rounds(curve, replicates, rng):
        taus, within = found
        events = _Events(curve.intervals, within)
        if len(events.moving) * replicates <= _EXACT_DRAWS:
            return resampled_taus(curve, replicates, rng, events)
    return taus


def few_together(parts: TauIntervals) -> TauIntervals:
    """The same examples and the same error, with all classes of few examples as one.

    Classes differ, so that it varies more from draw to draw than with many examples of each. One
    such class alone stays as it is.
    """
    few = np.flatnonzero((parts.counts > 0) & (parts.counts < _FEW))
    if len(few) < 2:
        return parts
    group = np.arange(parts.num_classes)
    group[few] = few[0]
    importance = _sums(group, parts.importance, parts.num_classes)
    shares = parts.shares[parts.target] * parts.weights
    return replace(parts, target=group[parts.target], weight=shares, importance=importance)


class _Events:
    """Where examples become right or wrong within bounds, and which do.

    Attributes:
        moving: the examples that are not right, or wrong, all the way.
        breakpoints: of the cells within the bounds.
        below: for each cell, how many of the events lie below it.
        who: the example of each event, in rising order.
        sign: 1 where it becomes right, −1 where it becomes wrong.
    """

    def __init__(self, parts: TauIntervals, bounds: tuple[float, float]) -> None:
        low, high = bounds
        near = RESOLUTION * max(1.0, abs(low), abs(high))
        begin, end = np.maximum(parts.lower, low), np.minimum(parts.upper, high)
        ever = begin < end
        begins = np.flatnonzero(ever & (begin > low + near))
        ends = np.flatnonzero(ever & (end < high))
        positions = np.concatenate([begin[begins], end[ends]])
        order = np.argsort(positions)
        self.moving = np.union1d(begins, ends)
        self.who = np.concatenate([begins, ends])[order]
        self.sign = np.repeat([1.0, -1.0], [len(begins), len(ends)])[order]
        self.breakpoints, self.below = cells(positions[order], bounds)


def resampled_taus(
    curve: TauCurve, replicates: int, rng: np.random.Generator, events: _Events | None = None
) -> FloatArray:
    """Each class's examples drawn with replacement, the tau chosen as on the data themselves.

    Classes of few examples are one for that. With `events` only the examples that move there are
    drawn one by one. Others change the error by the same at every tau: how many they are is drawn,
    and of weighted ones their total, by the normal law.
    """
    parts = few_together(curve.intervals)
    some = np.arange(parts.num_examples) if events is None else events.moving
    zero = _Zero(parts, curve) if events is None else None
    events = events or _Events(parts, curve.bounds)
    labels, target = np.unique(parts.target[some], return_inverse=True)
    weights, importance = parts.weights[some], parts.importance[labels]
    sizes, counts = np.bincount(target, minlength=len(labels)), parts.counts[labels]
    complete = np.array_equal(sizes, counts)
    mean, deviation = _weights_of_others(parts, some, labels)

    by_class = np.argsort(target, kind="stable")
    first = np.cumsum(sizes) - sizes
    who = np.searchsorted(some, events.who)
    taus = np.empty(replicates)
    for k in range(replicates):
        times = counts if complete else rng.binomial(counts, sizes / counts)
        places = rng.random(times.sum()) * np.repeat(sizes, times)
        drawn = by_class[np.repeat(first, times) + places.astype(np.int64)]
        mass = np.bincount(drawn, minlength=len(some)) * weights
        totals = np.bincount(target, weights=mass, minlength=len(labels))
        if not complete:
            others = counts - times
            noise = np.sqrt(others) * deviation * rng.standard_normal(len(labels))
            totals += np.maximum(others * mean + noise, 0.0)
        share = divided(importance, totals)[target] * mass
        right = np.concatenate([[0.0], np.cumsum(events.sign * share[who])])[events.below]
        taus[k] = _middle_of_best(events.breakpoints, right)
        if zero is not None and zero.is_best(events, right, share):
            taus[k] = 0.0
    return taus


class _Zero:
    """What tau = 0 alone has right, or wrong, unlike every tau right behind it."""

    def __init__(self, parts: TauIntervals, curve: TauCurve) -> None:
        low, high = curve.bounds
        self.behind = RESOLUTION * max(1.0, abs(low), abs(high))
        here, next_to_it = (
            (parts.lower <= tau) & (tau < parts.upper) for tau in (0.0, 2.0 * self.behind)
        )
        within = low <= 0.0 < high
        self.who = np.flatnonzero(here != next_to_it) if within else np.empty(0, dtype=np.int64)
        self.sign = np.where(here[self.who], 1.0, -1.0)

    def is_best(self, events: _Events, right: FloatArray, share: FloatArray) -> bool:
        """Whether more is right at zero than in any cell, by the examples' shares of one draw."""
        if not len(self.who):
            return False
        cell = int(np.searchsorted(events.breakpoints, self.behind, side="right")) - 1
        more = float(np.sum(self.sign * share[self.who]))
        return bool(right[cell] + more > right.max() + TIE)


def _weights_of_others(
    parts: TauIntervals, some: IntArray, labels: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation, in these classes, of the weights of all but some examples."""
    other = np.ones(parts.num_examples, dtype=bool)
    other[some] = False
    number, total, squares = (
        _sums(parts.target[other], parts.weights[other] ** power, parts.num_classes)[labels]
        for power in (0, 1, 2)
    )
    mean = divided(total, number)
    return mean, np.sqrt(np.maximum(divided(squares, number) - mean**2, 0.0))


def _middle_of_best(breakpoints: FloatArray, right: FloatArray) -> float:
    """Midpoint of the plateau of most right examples that is nearest to tau = 1.

    Breakpoints of examples that were not drawn change nothing, so neighbouring cells of the
    same value are one.
    """
    best = np.flatnonzero(right >= right.max() - TIE)
    runs = np.split(best, np.flatnonzero(np.diff(best) > 1) + 1)
    low = np.array([breakpoints[run[0]] for run in runs])
    high = np.array([breakpoints[run[-1] + 1] for run in runs])
    k = int(np.argmin(distance_to_one(low, high)))
    return float((low[k] + high[k]) / 2)


def normal_rounds(
    curve: TauCurve, replicates: int, rng: np.random.Generator
) -> Iterator[tuple[FloatArray, tuple[float, float]]]:
    """Minimisers of curves drawn from the normal law with the resampling's mean and covariance.

    Every round gives them, shape (replicates,), and the range where they lie, at which the next
    looks closer. A minimiser is the middle of its cell, as on the data themselves; points of one
    cell are one, since nothing but rounding could tell which of them is best.
    """
    low, high = curve.bounds
    parts = few_together(curve.intervals)
    for points in _POINTS:
        step = (high - low) / points
        taus = low + step * np.arange(0.5, points)
        cell = np.searchsorted(curve.breakpoints[1:-1], taus, side="right")
        cell, one = np.unique(cell, return_index=True)
        covariance = resampling_covariance(parts, taus)[np.ix_(one, one)]
        noise = normal_noise(covariance, replicates, rng)
        found = cell[np.argmin(curve(taus[one]) + noise, axis=1)]
        begin, end = curve.breakpoints[found], curve.breakpoints[found + 1]
        low = max(low, float(begin.min()) - step)
        high = min(high, float(end.max()) + step)
        yield (begin + end) / 2, (low, high)


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


def resampling_covariance(parts: TauIntervals, taus: FloatArray) -> FloatArray:
    """Covariance of the resampled error at evenly spaced, rising taus, shape (taus, taus).

    With x_i(τ) = 1 where example i is right, s_i its weight and S_y = Σ s_i, the error's
    covariance is Σ_y (w_y / S_y)² Σ_{i ∈ y} s_i² (x_i(τ) − p_y(τ)) (x_i(τ') − p_y(τ')).
    """
    points = len(taus)
    # Example i is right at the taus begin_i .. end_i − 1; arithmetic is much faster than a search.
    scale = (points - 1) / (taus[-1] - taus[0])
    begin, end = (
        np.ceil((x - taus[0]) * scale).clip(0, points).astype(np.int64)
        for x in (parts.lower, parts.upper)
    )
    ever = begin < end
    begin, end, target = begin[ever], end[ever], parts.target[ever]
    factor = parts.shares
    share = (factor[parts.target] * parts.weights)[ever]

    # Σ share² over the examples right at both a and b ≥ a: those that begin by a, end after b.
    both = _sums(begin * (points + 1) + end, share**2, (points + 1) ** 2)
    both = both.reshape(points + 1, points + 1)[:points, 1:].cumsum(axis=0)
    both = both[:, ::-1].cumsum(axis=1)[:, ::-1]
    covariance = np.triu(both) + np.triu(both, 1).T

    # The means: w_y p_y and Σ share² per class, and Σ share² over all of a class.
    squares = factor**2 * _sums(parts.target, parts.weights**2, parts.num_classes)
    for first in range(0, parts.num_classes, _CLASS_BLOCK):
        width = min(_CLASS_BLOCK, parts.num_classes - first)
        mine = (target >= first) & (target < first + width)
        row = (target[mine] - first) * (points + 1)
        rows = slice(first, first + width)
        weight = parts.importance[rows, None]
        mean, square = (
            _right_at(row + begin[mine], row + end[mine], share[mine] ** power, width, points)
            for power in (1, 2)
        )
        mean = divided(mean, weight)
        crossed = mean.T @ square
        covariance -= crossed + crossed.T - mean.T @ (squares[rows, None] * mean)
    return covariance


def _right_at(
    begin: IntArray, end: IntArray, amount: FloatArray, width: int, points: int
) -> FloatArray:
    """Amount that is right per class and tau, shape (width, points), from flat places."""
    size = width * (points + 1)
    change = _sums(begin, amount, size) - _sums(end, amount, size)
    return np.asarray(change.reshape(width, points + 1).cumsum(axis=1)[:, :points])


def _sums(places: IntArray, amount: FloatArray, size: int) -> FloatArray:
    return np.asarray(np.bincount(places, weights=amount, minlength=size), dtype=np.float64)
