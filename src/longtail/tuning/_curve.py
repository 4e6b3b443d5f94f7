"""Intervals in, the error as a function of tau out: exact, piecewise constant, with minimisers.

The pass over the logits is in `_scan`, resampling in `_bootstrap`. Import
`TauCurve` from `tuning`.
"""

from __future__ import annotations

import math
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


class TauCurve:
    """The error of the adjusted predictions at every tau, Σ_y w_y P(wrong | y).

    With w_y = 1/L that is the balanced error; a target prior and costs weigh by q_y c_y. It is
    constant between neighbouring breakpoints, where some example becomes right or wrong.

    Attributes:
        breakpoints: shape (cells + 1,), rising from the lower to the upper bound.
        values: shape (cells,), the error between breakpoints k and k + 1.
        min_value: least error within the bounds, of a cell or at tau = 0 alone.
        bounds: first and last breakpoint.

    Examples:
        >>> from longtail import ClassPrior
        >>> prior = ClassPrior.from_probs([0.9, 0.1])
        >>> logits = np.array([[2.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
        >>> curve = TauCurve(TauIntervals.from_logits(logits, [0, 1, 1], prior), bounds=(0.0, 4.0))
        >>> curve.breakpoints.round(3), curve.values
        (array([0. , 0.91, 4. ]), array([0.25, 0.5 ]))
        >>> curve([0.0, 1.0]), curve.per_class(1.0)
        (array([0.25, 0.5 ]), array([1., 0.]))
    """

    def __init__(
        self, intervals: TauIntervals, *, bounds: tuple[float, float], caller: str = "TauCurve"
    ) -> None:
        refuse_missing_classes(
            np.where(intervals.importance > 0, intervals.counts, 1),
            caller,
            instead="or let the nearest class in size stand in: pass "
            "intervals.with_stand_ins(prior)",
        )
        self.intervals = intervals
        self.bounds = bounds
        share = intervals.shares[intervals.target] * intervals.weights
        self._units = np.rint(share * _UNIT).astype(np.int64)
        self._all = self._units.sum()
        self._positions, changes = self._events()
        first = self._right_at(bounds[0])
        self._right = np.concatenate([[first], first + np.cumsum(changes)])
        self.breakpoints, at = cells(self._positions, bounds)
        self.values = self._error(self._right[at])
        at_zero = self(0.0) if bounds[0] <= 0.0 <= bounds[1] else math.inf
        # Where the largest logits are equal, zero alone has the lowest index win, as argmax does.
        self._zero_alone = at_zero < float(self.values.min()) - TIE
        self.min_value = at_zero if self._zero_alone else float(self.values.min())

    def __call__(self, tau: Any) -> Any:
        """The error at each tau, also outside the bounds; a float for a float.

        On a breakpoint the value is that to its right, except at tau = 0, where equal logits go
        to the lowest index as argmax has it.
        """
        taus = np.asarray(tau, dtype=np.float64)
        right = self._right[np.searchsorted(self._positions, taus, side="right")]
        outside = (taus < self.bounds[0]) | (taus > self.bounds[1])
        if outside.any():  # no events were sorted there
            right = np.where(outside, np.vectorize(self._right_at, otypes="q")(taus), right)
        errors = self._error(right)
        return float(errors) if taus.ndim == 0 else errors

    def per_class(self, tau: float) -> FloatArray:
        """The error of each class at this tau, shape (num_classes,); NaN without examples."""
        parts = self.intervals
        wrong = ~((parts.lower <= tau) & (tau < parts.upper))
        missed = np.bincount(
            parts.target[wrong],
            weights=None if parts.weight is None else parts.weight[wrong],
            minlength=parts.num_classes,
        )
        totals = parts.totals
        return np.where(totals > 0, divided(missed, totals), np.nan)

    def standard_error(self, tau: float) -> float:
        """Of the error at this tau, the classes' own sizes fixed.

        Not the examples' own spread, which is nil in a class of one: `mean_variance` says how
        few of them widen it.
        """
        parts = self.intervals
        some = np.flatnonzero((parts.importance > 0) & (parts.counts > 0))
        alike = parts.effective_counts[some]
        return math.sqrt(
            mean_variance(self.per_class(tau)[some] * alike, None, alike, parts.importance[some])
        )

    def minimizer(self) -> tuple[float, tuple[float, float]]:
        """The minimising cell nearest to tau = 1, as (midpoint, (lower end, upper end)).

        Zero alone, with both ends 0, if it is better than every cell.
        """
        if self._zero_alone:
            return 0.0, (0.0, 0.0)
        best = np.flatnonzero(self.values <= self.min_value + TIE)
        low, high = self.breakpoints[best], self.breakpoints[best + 1]
        k = int(np.argmin(distance_to_one(low, high)))
        return float((low[k] + high[k]) / 2), (float(low[k]), float(high[k]))

    def sample(self, points: int = 101) -> tuple[FloatArray, FloatArray]:
        """(taus, errors) at evenly spaced taus, for a table or a plot."""
        taus = np.linspace(*self.bounds, points)
        return taus, self(taus)

    def _right_at(self, tau: float) -> int:
        """Units that are right at this tau, counted one by one."""
        parts = self.intervals
        return int(self._units[(parts.lower <= tau) & (tau < parts.upper)].sum())

    def _events(self) -> tuple[FloatArray, IntArray]:
        """Where in the bounds examples become right or wrong, sorted, and by how many units."""
        parts, (low, high) = self.intervals, self.bounds
        ever = parts.lower < parts.upper
        begins = np.flatnonzero(ever & (parts.lower > low) & (parts.lower <= high))
        ends = np.flatnonzero(ever & (parts.upper > low) & (parts.upper <= high))
        positions = np.concatenate([parts.lower[begins], parts.upper[ends]])
        changes = np.concatenate([self._units[begins], -self._units[ends]])
        order = np.argsort(positions)
        return positions[order], changes[order]

    def _error(self, right: Any) -> Any:
        # Shares that were rounded to units may add up to a hair more or less than one.
        return np.where(right == self._all, 0.0, np.maximum(1.0 - right / _UNIT, 0.0))

    def __repr__(self) -> str:
        return (
            f"TauCurve(cells={len(self.values)}, bounds={self.bounds}, "
            f"min_value={self.min_value:.6g})"
        )


def cells(positions: FloatArray, bounds: tuple[float, float]) -> tuple[FloatArray, IntArray]:
    """Breakpoints within the bounds, and for each cell how many sorted positions lie below it.

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
    """How far each interval is from tau = 1, zero if it holds it."""
    return np.maximum(np.maximum(low - 1.0, 1.0 - high), 0.0)
