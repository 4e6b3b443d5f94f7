"""Tau as a temperature: argmax f − τ log π = argmax f/τ − log π, so calibration finds a tau.

softmax(f/τ) can fit only labels that are drawn with the prior which the model has learnt. On
others, balanced ones above all, its best temperature makes up for the difference and is no tau. So
the criteria are averages under the training data's mix, whatever that of the held-out data is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import FloatArray, InputError, IntArray
from longtail.metrics import bin_of
from longtail.posthoc import LOG_ZERO
from longtail.priors import ClassPrior
from longtail.tuning._exact import normal_noise

# Checked logits, labels and weights.
HeldOut = tuple[NDArray[Any], IntArray, FloatArray]

# Taus of the first look, evenly spaced in log tau, and of the closer one.
_GRID, _CLOSER = 41, 17
# Draws behind a standard error, even if no interval is asked for.
_LEAST_DRAWS = 200
_BINS = 15

# A group of classes has this many examples, since the share of fewer is mostly chance,
_LEAST = 10
# or is followed by a class so many times as frequent, where a wrong mix matters more than chance.
_TIMES = 3.0
# Square roots of training counts have a standard deviation of a half by chance; classes whose roots
# are closer than this are not known to differ in size.
_APART = 1.5


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
        """Return the criterion at each tau within the bounds; a float for a float."""
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
        """Return (taus, values) at evenly spaced taus, for a table or a plot."""
        taus = np.linspace(*self.bounds, points)
        return taus, self(taus)


def tune_by_calibration(
    logits: Any,
    target: Any,
    prior: ClassPrior,
    sample_weight: Any,
    criterion: str,
    bounds: tuple[float, float],
    n_bootstrap: int,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Find the tau at which softmax(f/τ) is best by the criterion, as parts of a TauResult.

    Log-loss and squared error are smooth and minimised to six digits. The ECE jumps where an
    example changes bins, so its minimum is the least of two rounds of evaluations; sharpness is
    highest towards τ = 0 whatever the data, so it takes the sharpest tau among those whose ECE
    is within one bootstrap standard error of the least.
    """
    from scipy import optimize

    low, high = bounds
    if low < 0 or high <= 0:
        raise InputError(
            f"`bounds` must not be negative for criterion={criterion!r}, where tau is a "
            f"temperature; got ({low:g}, {high:g})."
        )
    logits, target, weight = _checks.examples(logits, target, pi=prior, weight=sample_weight)
    mixed, group = in_training_mix(target, prior, weight)
    data = lift_zeros(logits, prior), target, mixed

    low = low or high / 100  # a bound of 0 is an open end
    grid = np.geomspace(low, high, _GRID)
    if low < 1.0 < high:
        grid = np.sort(np.append(grid[np.abs(np.log(grid)) > 1e-6], 1.0))
    # Resampled data by the normal law of their averages: one pass instead of a thousand.
    mean, covariance = _moments(data, group, criterion, grid)
    draws = mean + normal_noise(covariance, max(n_bootstrap, _LEAST_DRAWS), rng)
    values, error = _read(criterion, draws)
    slack = float(error[:, int(np.argmin(_read(criterion, mean)[1]))].std())
    spread = values.std(axis=0)

    def average(taus: FloatArray) -> FloatArray:
        chunks = _chunks(*data)
        return np.asarray(sum(w @ _numbers(criterion, f, y, taus) for f, y, w in chunks))

    smooth = criterion in ("log_loss", "squared_error")
    best = _choose(criterion, mean, slack)
    near = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    more = np.geomspace(*near, _CLOSER)[1:-1]
    if smooth:
        found = optimize.minimize_scalar(
            lambda t: float(average(np.array([np.exp(t)]))[0]),
            bounds=np.log(near),
            method="bounded",
            options={"xatol": 1e-6},
        )
        more = np.array([np.exp(found.x)])
    taus = np.append(grid, more)
    numbers = np.append(mean, average(more))
    values, k = _read(criterion, numbers)[0], _choose(criterion, numbers, slack)

    resampled = np.empty(0)
    if n_bootstrap:
        draws = draws[:n_bootstrap]
        picks = _choose(criterion, draws, slack)
        if smooth:
            resampled = _vertices(np.log(grid), draws, picks)
        else:  # draw again at taus that are closer together, in the range where those lie
            ends = grid[max(picks.min() - 1, 0)], grid[min(picks.max() + 1, len(grid) - 1)]
            closer = np.geomspace(*ends, len(grid))
            mean, covariance = _moments(data, group, criterion, closer)
            draws = mean + normal_noise(covariance, n_bootstrap, rng)
            resampled = closer[_choose(criterion, draws, slack)]
    order = np.argsort(taus)
    tau = float(taus[k])
    return {
        "tau": tau,
        "interval": (tau, tau),
        "error": float(values[k]),
        "standard_error": float(np.interp(np.log(tau), np.log(grid), spread)),
        "curve": SampledCurve(taus=taus[order], values=values[order]),
        "counts": np.bincount(target[mixed > 0], minlength=len(group)),
        "resampled": resampled,
    }


# --- the training data's mix ------------------------------------------------------------------


def in_training_mix(
    target: IntArray, prior: ClassPrior, weight: FloatArray | None
) -> tuple[FloatArray, IntArray]:
    """Return weights under which groups of classes have the prior's share of the held-out data.

        w_i = u_i · π(g) / Σ_{j in g} u_j,   i in g

    Classes are grouped with their neighbours in frequency until each group has enough examples, or
    any where the next class is several times as frequent. A class without examples is thereby
    represented by those nearest to it in size.

    Args:
        target: labels, shape (examples,).
        prior: π, of the data that the model was trained on.
        weight: u, of each example; None for all alike.

    Returns:
        w, shape (examples,), of sum 1; and the group of each class, shape (num_classes,).
    """
    u = np.ones(len(target)) if weight is None else weight
    held = np.bincount(target[u > 0], minlength=prior.num_classes)
    order = np.argsort(prior.probs, kind="stable")
    sizes, held = prior.probs[order], held[order]
    roots = None if prior.sample is None else np.sqrt(prior.sample)[order]
    starts = [0]
    for place in range(1, len(sizes)):
        start, there = starts[-1], held[starts[-1] : place].sum()
        differ = roots is None or roots[place] - roots[start] >= _APART
        if differ and (there >= _LEAST or (there and sizes[place] >= _TIMES * sizes[start])):
            starts.append(place)
    # What is left over at the end joins the last whole group, unless it is much more frequent.
    if len(starts) > 1:
        left, like = held[starts[-1] :].sum(), sizes[starts[-1]] < _TIMES * sizes[starts[-2]]
        if not left or (left < _LEAST and like):
            starts.pop()
    group: IntArray = np.empty(len(sizes), dtype=np.int64)
    group[order] = np.searchsorted(starts, np.arange(len(sizes)), side="right") - 1
    wanted = np.bincount(group, weights=prior.probs)
    found = np.bincount(group[target], weights=u, minlength=len(wanted))
    return np.asarray(u * (wanted / found)[group[target]]), group


def lift_zeros(logits: NDArray[Any], prior: ClassPrior) -> NDArray[Any]:
    """Return logits of `log_probs` with zeros read as min(m / 2, π_y / 10).

    Here m is the smallest positive probability. One true class of probability 0 would otherwise
    outweigh every other example in a log-loss.
    """
    zero = logits == np.asarray(LOG_ZERO, logits.dtype)
    if not zero.any():
        return logits
    least = np.minimum(logits[~zero].min() - np.log(2), prior.log_probs - np.log(10))
    return np.where(zero, least.astype(logits.dtype), logits)


# --- criteria ---------------------------------------------------------------------------------


def _chunks(
    logits: NDArray[Any], target: IntArray, weight: FloatArray
) -> Iterator[tuple[FloatArray, IntArray, FloatArray]]:
    """Yield (f − max f in float64, labels, weights) of consecutive rows."""
    for rows, chunk in _checks.chunks(logits):
        kept = weight[rows] > 0
        below = chunk.astype(np.float64)[kept]
        below -= below.max(axis=1, keepdims=True)
        yield below, target[rows][kept], weight[rows][kept]


def _numbers(criterion: str, below: FloatArray, labels: IntArray, taus: FloatArray) -> Any:
    """Return the numbers that a criterion averages over examples, shape (examples, taus).

    For "ece" and "sharpness" shape (examples, taus · 16), sparse: confidence − hit in the place of
    the bin, and Σ p² in the last place.
    """
    from scipy import sparse

    rows = np.arange(len(labels))
    if criterion == "log_loss":
        own = below[rows, labels]
        return np.stack([np.log(np.exp(below / t).sum(axis=1)) - own / t for t in taus], axis=1)
    columns, places = [], []
    hit, edges = below.argmax(axis=1) == labels, np.linspace(0.0, 1.0, _BINS + 1)
    for k, t in enumerate(taus):
        probs = np.exp(below / t)
        probs /= probs.sum(axis=1, keepdims=True)
        squares = np.einsum("ij,ij->i", probs, probs)
        if criterion == "squared_error":
            columns.append(squares - 2.0 * probs[rows, labels] + 1.0)
            continue
        confidence = probs.max(axis=1)
        first = k * (_BINS + 1)
        columns += [confidence - hit, squares]
        places += [first + bin_of(confidence, edges), np.full(len(labels), first + _BINS)]
    values = np.stack(columns, axis=1)
    if not places:
        return values
    starts = np.arange(0, values.size + 1, values.shape[1])
    shape = (len(labels), len(taus) * (_BINS + 1))
    return sparse.csr_array((values.ravel(), np.stack(places, axis=1).ravel(), starts), shape=shape)


def _moments(
    data: HeldOut, group: IntArray, criterion: str, taus: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the weighted mean of a criterion's numbers, and the covariance of that mean.

    Groups of classes keep their total weight when examples are drawn again, so that what varies is
    only each group's own mean: Σ w² (v − mean of its group)(v − mean of its group)ᵀ, with Σ w = 1.
    """
    from scipy import sparse

    groups = int(group.max()) + 1
    totals = totals2 = sums = sums2 = products = 0  # type: Any
    for below, labels, weight in _chunks(*data):
        numbers = _numbers(criterion, below, labels, taus)
        places, shape = (group[labels], np.arange(len(labels))), (groups, len(labels))
        by_group, squared = (
            sparse.csr_array((w, places), shape=shape) for w in (weight, weight**2)
        )
        totals, totals2 = totals + by_group.sum(axis=1), totals2 + squared.sum(axis=1)
        scaled: Any = sparse.diags_array(weight) @ numbers
        sums, sums2 = sums + by_group @ numbers, sums2 + squared @ numbers
        products = products + scaled.T @ scaled
    if sparse.issparse(sums):
        sums, sums2, products = sums.toarray(), sums2.toarray(), products.toarray()
    means = sums / totals[:, None]
    cross = means.T @ sums2
    centred = products - cross - cross.T + (means.T * totals2) @ means
    return sums.sum(axis=0) / totals.sum(), centred / totals.sum() ** 2


def _read(criterion: str, numbers: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the criterion and a calibration error at each tau, from averaged `_numbers`."""
    if criterion in ("log_loss", "squared_error"):
        return numbers, numbers
    by_tau = numbers.reshape(*numbers.shape[:-1], -1, _BINS + 1)
    error = np.abs(by_tau[..., :_BINS]).sum(axis=-1)
    return (error if criterion == "ece" else by_tau[..., _BINS]), error


def _choose(criterion: str, numbers: FloatArray, slack: float) -> Any:
    """Return the place of the best tau; for sharpness, among taus whose ECE is within `slack`."""
    value, error = _read(criterion, numbers)
    if criterion == "sharpness":
        calibrated = error <= error.min(axis=-1, keepdims=True) + slack
        return np.argmax(np.where(calibrated, value, -1.0), axis=-1)
    return np.argmin(value, axis=-1)


def _vertices(log_taus: FloatArray, values: FloatArray, picks: IntArray) -> FloatArray:
    """Return the lowest point of the parabola through each row's least value and neighbours."""
    middle = picks.clip(1, len(log_taus) - 2)
    rows = np.arange(len(values))
    x = [log_taus[middle + k] for k in (-1, 0, 1)]
    y = [values[rows, middle + k] for k in (-1, 0, 1)]
    left, right = (y[1] - y[0]) / (x[1] - x[0]), (y[2] - y[1]) / (x[2] - x[1])
    bend = (right - left) / (x[2] - x[0])
    safe = bend > 0
    vertex = (x[0] + x[1]) / 2 - left / (2 * np.where(safe, bend, 1.0))
    return np.asarray(np.exp(np.where(safe, vertex, log_taus[picks]).clip(x[0], x[2])))


# --- temperature ------------------------------------------------------------------------------


def fit_temperature(logits: Any, target: Any, *, sample_weight: Any = None) -> float:
    """Fit the temperature T that minimises the log-loss of softmax(f / T) on held-out data.

    Where the held-out data are mixed like the training data, long tail and all, T is also a tau
    for `adjust_logits`; on others it isn't, and `tune_tau`, which knows the prior, finds one.

    Args:
        logits: f, shape (examples, num_classes), of examples the model was not trained on.
        target: true labels, shape (examples,), integers.
        sample_weight: shape (examples,).

    Returns:
        T, above zero.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> logits = 2 * rng.normal(size=(20000, 3))
        >>> target = (logits + rng.gumbel(size=(20000, 3))).argmax(axis=1)  # drawn by softmax
        >>> round(fit_temperature(3 * logits, target), 1)
        3.0
    """
    from scipy import optimize

    logits, target, given = _checks.examples(logits, target, weight=sample_weight)
    data = logits, target, np.ones(len(target)) if given is None else given

    def slope(inverse: float) -> float:
        """Return the slope of the summed log-loss in 1/T, Σ E_p f − f_y, which rises."""
        total = 0.0
        for below, labels, w in _chunks(*data):
            probs = np.exp(inverse * below)
            probs /= probs.sum(axis=1, keepdims=True)
            mean = np.einsum("ij,ij->i", probs, below)
            total += float(w @ (mean - below[np.arange(len(labels)), labels]))
        return total

    if slope(0.0) >= 0:  # logits that are all alike too, of which none is wrong
        raise InputError(
            "the logits predict the labels no better than chance, so the log-loss falls all the "
            "way to an infinite temperature; check that `target` belongs to these logits."
        )
    if all(np.all(f[np.arange(len(y)), y] == 0) for f, y, _ in _chunks(*data)):
        raise InputError(
            "every example is predicted right, so the log-loss falls all the way to temperature "
            "0; use held-out examples, which the model was not trained on."
        )
    low = high = 1.0
    while slope(high) < 0:
        low, high = high, 4 * high
    while slope(low) >= 0:
        low, high = low / 4, low
    return 1.0 / float(optimize.brentq(slope, low, high, xtol=1e-300, rtol=1e-11))
