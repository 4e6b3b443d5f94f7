"""Tau as a temperature: argmax f − τ log π = argmax f/τ − log π, so calibration finds a tau.

The criteria are averages over held-out examples, weighed as the training data are mixed (`_mix`).
The balanced error as a function of tau is in `_curve`; import the public names from `tuning`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from longtail._checks import FloatArray, InputError, IntArray
from longtail.metrics import bin_of
from longtail.tuning._bootstrap import normal_noise
from longtail.tuning._temperature import HeldOut

# Taus of the first look, evenly spaced in log tau, and of the closer one.
_GRID, _CLOSER = 41, 17
# Draws behind a standard error, even if no interval is asked for.
_LEAST_DRAWS = 200


@dataclass(frozen=True, eq=False)
class SampledCurve:
    """A calibration criterion of softmax(f/τ), evaluated at some taus, straight in between.

    Attributes:
        taus: where it was evaluated, rising; among them the chosen tau, and 1 if in bounds.
        values: the criterion there.
    """

    taus: FloatArray
    values: FloatArray

    @property
    def bounds(self) -> tuple[float, float]:
        """First and last tau."""
        return float(self.taus[0]), float(self.taus[-1])

    @property
    def min_value(self) -> float:
        """Least value at the evaluated taus."""
        return float(self.values.min())

    def __call__(self, tau: Any) -> Any:
        """The criterion at each tau within the bounds; a float for a float."""
        taus = np.asarray(tau, dtype=np.float64)
        low, high = self.bounds
        if np.any(~((taus >= low) & (taus <= high))):
            raise InputError(
                f"SampledCurve: this criterion was evaluated for tau in [{low:g}, {high:g}] only; "
                f"got {tau!r}; pass wider bounds to tune_tau."
            )
        values = np.interp(taus, self.taus, self.values)
        return float(values) if taus.ndim == 0 else values

    def sample(self, points: int = 101) -> tuple[FloatArray, FloatArray]:
        """(taus, values) at evenly spaced taus, for a table or a plot."""
        taus = np.linspace(*self.bounds, points)
        return taus, self(taus)


class _Criterion:
    """Averages of `width` numbers per tau over the examples, and how to read them.

    Numbers come as (..., taus · width); what is read from them is (..., taus).
    """

    width = 1
    smooth = True

    def of_examples(self, below: FloatArray, labels: IntArray, taus: FloatArray) -> Any:
        """The numbers of each example, shape (examples, taus · width), dense or sparse."""
        raise NotImplementedError

    def value(self, numbers: FloatArray) -> FloatArray:
        """The criterion."""
        return numbers

    def miscalibration(self, numbers: FloatArray) -> FloatArray:
        """What `choose` may give up to `slack` of."""
        return self.value(numbers)

    def choose(self, numbers: FloatArray, slack: float) -> int:
        """Place of the best tau."""
        return int(np.argmin(self.value(numbers)))


class _LogLoss(_Criterion):
    def of_examples(self, below: FloatArray, labels: IntArray, taus: FloatArray) -> Any:
        own = below[np.arange(len(labels)), labels]
        return np.stack([np.log(np.exp(below / t).sum(axis=1)) - own / t for t in taus], axis=1)


class _SquaredError(_Criterion):
    def of_examples(self, below: FloatArray, labels: IntArray, taus: FloatArray) -> Any:
        order, columns = np.arange(len(labels)), []
        for t in taus:
            probs, squares = _softmax(below, t)
            columns.append(squares - 2.0 * probs[order, labels] + 1.0)
        return np.stack(columns, axis=1)


class _Ece(_Criterion):
    """Top-label calibration error: per tau, confidence − hit summed in each of 15 bins."""

    edges = np.linspace(0.0, 1.0, 16)
    bins = width = 15
    smooth = False

    def of_examples(self, below: FloatArray, labels: IntArray, taus: FloatArray) -> Any:
        hit = below.argmax(axis=1) == labels
        # Each example fills one bin per tau, and the last place where the width leaves one.
        filled = 1 + self.width - self.bins
        values = np.empty((len(labels), len(taus), filled))
        places = np.empty(values.shape, dtype=np.int64)
        for k, t in enumerate(taus):
            probs, squares = _softmax(below, t)
            confidence = probs.max(axis=1)
            values[:, k] = np.stack([confidence - hit, squares], axis=1)[:, :filled]
            places[:, k, 0] = k * self.width + bin_of(confidence, self.edges)
            places[:, k, 1:] = k * self.width + self.bins
        starts = np.arange(0, values.size + 1, len(taus) * filled)
        shape = (len(labels), len(taus) * self.width)
        return sparse.csr_array((values.ravel(), places.ravel(), starts), shape=shape)

    def value(self, numbers: FloatArray) -> FloatArray:
        by_tau = numbers.reshape(*numbers.shape[:-1], -1, self.width)
        return np.asarray(np.abs(by_tau[..., : self.bins]).sum(axis=-1))


class _Sharpness(_Ece):
    """E Σ p²: the sharpest tau whose calibration error is within `slack` of the least."""

    width = 16

    def value(self, numbers: FloatArray) -> FloatArray:
        return numbers[..., self.bins :: self.width]

    def miscalibration(self, numbers: FloatArray) -> FloatArray:
        return super().value(numbers)

    def choose(self, numbers: FloatArray, slack: float) -> int:
        error = self.miscalibration(numbers)
        return int(np.argmax(np.where(error <= error.min() + slack, self.value(numbers), -1.0)))


def _softmax(below: FloatArray, tau: float) -> tuple[FloatArray, FloatArray]:
    """Probabilities softmax(f/τ) and their Σ p²."""
    probs = np.exp(below / tau)
    probs /= probs.sum(axis=1, keepdims=True)
    return probs, np.einsum("ij,ij->i", probs, probs)


_CRITERIA: dict[str, _Criterion] = {
    "log_loss": _LogLoss(),
    "squared_error": _SquaredError(),
    "ece": _Ece(),
    "sharpness": _Sharpness(),
}
CALIBRATION_CRITERIA = tuple(_CRITERIA)


@dataclass(frozen=True)
class CalibratedTau:
    """What `tune_by_calibration` found; `replicates` are the taus of resampled data."""

    tau: float
    value: float
    standard_error: float
    curve: SampledCurve
    replicates: FloatArray


def tune_by_calibration(
    data: HeldOut,
    criterion: str,
    bounds: tuple[float, float],
    replicates: int,
    rng: np.random.Generator,
) -> CalibratedTau:
    """The tau at which softmax(f/τ) is best by the criterion.

    Log-loss and squared error are smooth and minimised to six digits. The ECE jumps where an
    example changes bins, so its minimum is the least of two rounds of evaluations; sharpness is
    highest towards τ = 0 whatever the data, so it takes the sharpest tau among those whose ECE
    is within one bootstrap standard error of the least.
    """
    judge = _CRITERIA[criterion]
    grid = _grid(bounds)
    moments = _moments(data, judge, grid, second=True)
    # Resampled data by the normal law of their averages: one pass instead of a thousand.
    draws = moments.mean + normal_noise(moments.covariance(), max(replicates, _LEAST_DRAWS), rng)
    error = judge.miscalibration(moments.mean)
    slack = float(judge.miscalibration(draws)[:, int(np.argmin(error))].std())

    best = judge.choose(moments.mean, slack)
    near = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    more = (
        _smooth_minimum(data, judge, near) if judge.smooth else np.geomspace(*near, _CLOSER)[1:-1]
    )
    taus = np.append(grid, more)
    numbers = np.append(moments.mean, _moments(data, judge, more).mean)
    values, k = judge.value(numbers), judge.choose(numbers, slack)

    order = np.argsort(taus)
    spread = judge.value(draws).std(axis=0)
    return CalibratedTau(
        tau=float(taus[k]),
        value=float(values[k]),
        standard_error=float(np.interp(np.log(taus[k]), np.log(grid), spread)),
        curve=SampledCurve(taus=taus[order], values=values[order]),
        replicates=_replicates(data, judge, grid, draws[:replicates], slack, rng),
    )


def _grid(bounds: tuple[float, float]) -> FloatArray:
    """Taus evenly spaced in log tau, and 1; a temperature is positive, so 0 means the open end."""
    low, high = bounds
    low = low if low > 0 else high / 100
    grid = np.geomspace(low, high, _GRID)
    if low < 1.0 < high:
        grid = np.sort(np.append(grid[np.abs(np.log(grid)) > 1e-6], 1.0))
    return grid


def _moments(
    data: HeldOut, judge: _Criterion, taus: FloatArray, *, second: bool = False
) -> _Moments:
    moments = _Moments(int(data.group.max()) + 1, second=second)
    for below, labels, weight in data.chunks():
        moments.add(judge.of_examples(below, labels, taus), weight, data.group[labels])
    return moments


def _smooth_minimum(data: HeldOut, judge: _Criterion, near: tuple[float, float]) -> FloatArray:
    from scipy import optimize  # heavy, and most uses of this package never come here

    found = optimize.minimize_scalar(
        lambda t: float(judge.value(_moments(data, judge, np.array([np.exp(t)])).mean)[0]),
        bounds=(float(np.log(near[0])), float(np.log(near[1]))),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return np.array([np.exp(found.x)])


def _replicates(
    data: HeldOut,
    judge: _Criterion,
    grid: FloatArray,
    draws: FloatArray,
    slack: float,
    rng: np.random.Generator,
) -> FloatArray:
    """The tau of each draw, between the grid's points.

    Where the criterion is smooth a parabola finds it. Where it jumps, a second round draws at
    taus that are closer together, in the range where those of the first lie.
    """
    if not len(draws):
        return np.empty(0)
    picks = np.array([judge.choose(draw, slack) for draw in draws], dtype=np.int64)
    if judge.smooth:
        return _vertices(np.log(grid), judge.value(draws), picks)
    closer = np.geomspace(
        grid[max(picks.min() - 1, 0)], grid[min(picks.max() + 1, len(grid) - 1)], len(grid)
    )
    moments = _moments(data, judge, closer, second=True)
    draws = moments.mean + normal_noise(moments.covariance(), len(draws), rng)
    return closer[[judge.choose(draw, slack) for draw in draws]]


def _vertices(log_taus: FloatArray, values: FloatArray, picks: IntArray) -> FloatArray:
    """The lowest point of the parabola through each row's least value and its neighbours."""
    middle = picks.clip(1, len(log_taus) - 2)
    rows = np.arange(len(values))
    x = [log_taus[middle + k] for k in (-1, 0, 1)]
    y = [values[rows, middle + k] for k in (-1, 0, 1)]
    left, right = (y[1] - y[0]) / (x[1] - x[0]), (y[2] - y[1]) / (x[2] - x[1])
    bend = (right - left) / (x[2] - x[0])
    safe = bend > 0
    vertex = (x[0] + x[1]) / 2 - left / (2 * np.where(safe, bend, 1.0))
    return np.asarray(np.exp(np.where(safe, vertex, log_taus[picks]).clip(x[0], x[2])))


class _Moments:
    """Weighted mean over examples of some statistics, and the covariance of that mean.

    Groups of examples keep their total weight when they are drawn again, so that what varies is
    only each group's own mean.
    """

    def __init__(self, groups: int, *, second: bool = True) -> None:
        self.second = second
        self.weight, self.weight2 = np.zeros(groups), np.zeros(groups)
        self.sum: Any = 0.0  # of each group, shape (groups, numbers)
        self.sum2: Any = 0.0
        self.products: Any = 0.0

    def add(self, statistics: Any, weight: FloatArray, group: IntArray) -> None:
        """Add examples: statistics of shape (examples, numbers), dense or sparse."""
        self.weight += np.bincount(group, weights=weight, minlength=len(self.weight))
        self.sum = self.sum + self._by_group(statistics, weight, group)
        if not self.second:
            return
        self.weight2 += np.bincount(group, weights=weight**2, minlength=len(self.weight))
        self.sum2 = self.sum2 + self._by_group(statistics, weight**2, group)
        # Both kinds of matrix scale their rows by a diagonal one.
        scaled: Any = sparse.diags_array(weight) @ statistics
        self.products = self.products + _dense(scaled.T @ scaled)

    def _by_group(self, statistics: Any, weight: FloatArray, group: IntArray) -> FloatArray:
        places = (group, np.arange(len(group)))
        shape = (len(self.weight), len(group))
        return _dense(sparse.csr_array((weight, places), shape=shape) @ statistics)

    @property
    def mean(self) -> FloatArray:
        return np.asarray(self.sum.sum(axis=0) / self.weight.sum())

    def covariance(self) -> FloatArray:
        """Of the mean, Σ w² (v − mean of its group)(v − mean of its group)ᵀ / (Σ w)²."""
        means = self.sum / self.weight[:, None]
        cross = means.T @ self.sum2
        centred = self.products - cross - cross.T
        centred += (means.T * self.weight2) @ means
        return np.asarray(centred / self.weight.sum() ** 2)


def _dense(matrix: Any) -> FloatArray:
    return np.asarray(matrix.toarray() if sparse.issparse(matrix) else matrix)
