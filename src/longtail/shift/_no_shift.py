"""BBSE's test of "no shift": do the mean predictions on the target differ from A π by chance?

Predictions are either probabilities, shape (examples, num_classes), or predicted labels, shape
(examples,), which stand for one-hot rows; the test looks at those that the estimate is made of.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail._checks import FloatArray, IntArray
from longtail.metrics._sums import row_slices
from longtail.priors import ClassPrior

# The χ² approximation needs cells that rest on the equivalent of some twenty examples, and a
# covariance that rests on several times as many as there are cells.
_EXAMPLES_PER_CELL = 20.0
_FREEDOM_PER_CELL = 10.0
# Examples that a held-out class borrows from all for its covariance, as one with few must not look
# free of noise. Their spread is mostly between classes: more would drown that within a class.
_STAND_INS = 4.0


def no_shift_statistic(
    matrix: FloatArray,
    mean: FloatArray,
    *,
    source: NDArray[Any],
    source_target: IntArray,
    given: NDArray[Any],
    prior: ClassPrior,
) -> tuple[float, int]:
    """Wald statistic of mean = A π, and its degrees of freedom, 0 if nothing can be compared.

    The noise is that of the target's mean, of each held-out class's mean, and of the prior's own
    counts. Without a shift, source and target are draws from one distribution, so its covariance
    is taken from both: then a class that only one of them predicts has noise too.

    Args:
        matrix: A, column k the mean prediction on held-out examples of class k.
        mean: m, the mean prediction on the target.
        source: held-out predictions.
        source_target: their labels; every class occurs.
        given: target predictions.
        prior: π.
    """
    pi, size = prior.probs, len(given)
    counts = np.bincount(source_target, minlength=len(pi))
    expected = matrix @ pi
    gap, apart = mean - expected, matrix - expected[:, None]
    share = pi**2 / counts  # of each held-out class's covariance in that of A π
    held = 1.0 / float(share.sum())  # as many examples mixed like π would be as precise
    total = held * _scatter(source, expected, (pi / counts)[source_target])
    total += _scatter(given, expected) - size * np.outer(gap, gap)
    overall = total / max(held + size - 2.0, 1.0)
    each = share / (counts + _STAND_INS - 1.0)  # of a class's scatter, its stand-ins included
    noise = _scatter(source, expected, each[source_target])
    noise -= (apart * (each * counts**2 / (counts + _STAND_INS))) @ apart.T
    noise += _STAND_INS * each.sum() * overall + overall / size
    if prior.sample is not None:
        noise += (apart * pi) @ apart.T / float(prior.sample.sum())

    freedom = _freedom(np.trace(overall) / size, np.trace(noise), held + size, share, counts)
    level = (held * expected + size * mean) / (held + size)
    return _compare(pi, gap, level, noise, overall, 1.0 / size + 1.0 / held, freedom)


def _compare(
    pi: FloatArray,
    gap: FloatArray,
    level: FloatArray,
    noise: FloatArray,
    overall: FloatArray,
    example: float,
    freedom: float,
) -> tuple[float, int]:
    """The statistic over cells; `example` is what one example counts in the gap."""
    cells, rare = _cells(pi, level, noise, freedom)
    gap, noise, level = cells @ gap, cells @ noise @ cells.T, cells @ level
    # Below this it is rounding: a class whose probability never varies.
    varies = np.diag(noise) > (1e-12 * level) ** 2
    height = float(level[-1])
    if rare and height > 0.0:
        # What is left of rare classes may rest on less than an example, whose distribution is
        # far from normal. It counts as uncertain by one example more on either side.
        jump = float(cells[-1] @ overall @ cells[-1]) / height + height
        noise[-1, -1] += (jump * example) ** 2
    return _wald(gap[varies], noise[np.ix_(varies, varies)], freedom)


def _scatter(
    predictions: NDArray[Any], center: FloatArray, weight: FloatArray | None = None
) -> FloatArray:
    """Σ_i w_i (p_i − c)(p_i − c)ᵀ, with w = 1 if absent."""
    if predictions.ndim == 1:
        sums = np.bincount(predictions, weights=weight, minlength=len(center)).astype(np.float64)
        cross = np.outer(sums, center)
        return np.asarray(np.diag(sums) - cross - cross.T + sums.sum() * np.outer(center, center))
    total = np.zeros((len(center), len(center)))
    for rows in row_slices(predictions):
        apart = predictions[rows] - center
        total += apart.T @ (apart if weight is None else apart * weight[rows, None])
    return total


def _freedom(
    target: float, noise: float, pooled: float, share: FloatArray, counts: IntArray
) -> float:
    """Degrees of freedom of the estimated covariance (Satterthwaite's formula).

    The target's part of it rests on all examples, the rest on each held-out class's own. These
    count by half: predictions are skewed, so that few tell less of their spread than normal ones.
    """
    if noise <= 0.0:
        return pooled
    own = 0.5 * float(share.sum()) ** 2 / float((share**2 / counts).sum())
    part = target / noise
    return 1.0 / (part**2 / pooled + (1.0 - part) ** 2 / own)


def _cells(
    pi: FloatArray, level: FloatArray, noise: FloatArray, freedom: float
) -> tuple[FloatArray, bool]:
    """Rows that add up classes to be compared, and whether the last one rests on too little.

    Cells are runs of classes in the order of π, for a shift between common and rare classes to
    stay visible, and no more than the covariance can carry. The first one follows from the
    others, as the mean predictions sum to 1, and is left out.
    """
    order = np.argsort(-pi, kind="stable")
    level, noise = level[order], noise[np.ix_(order, order)]
    starts, rare = _runs(level, noise)
    most = max(2, int(freedom / _FREEDOM_PER_CELL))
    if len(starts) > most:
        starts = [starts[i * len(starts) // most] for i in range(most)]
    if len(starts) - rare < 2:
        starts, rare = [0, _split(level, noise)], True
    return np.add.reduceat(np.eye(len(pi))[order], starts, axis=0)[1:], rare


def _runs(level: FloatArray, noise: FloatArray) -> tuple[list[int], bool]:
    """First classes of the cells, and whether the last cell is a rest.

    A cell C is complete once (Σ_{k∈C} level_k)² / Σ_{j,k∈C} noise_jk, the examples that it rests
    on if predictions are labels, is large enough.
    """
    starts, height, variance = [0], 0.0, 0.0
    for k in range(len(level)):
        height += level[k]
        variance += noise[k, k] + 2.0 * noise[k, starts[-1] : k].sum()
        if height > 0.0 and height**2 > _EXAMPLES_PER_CELL * variance:
            starts.append(k + 1)
            height, variance = 0.0, 0.0
    rare = starts[-1] < len(level)
    return (starts if rare else starts[:-1]), rare


def _split(level: FloatArray, noise: FloatArray) -> int:
    """Where to cut the classes in two so that the less certain part is as certain as can be."""
    height = np.cumsum(level)[:-1]
    variance = np.diag(noise.cumsum(axis=0).cumsum(axis=1))[:-1]
    # The parts sum to 1, so their noise is the same; less than the bound is rounding.
    worth = np.minimum(height, 1.0 - height) ** 2 / np.maximum(variance, 1e-24)
    return int(np.argmax(worth)) + 1


def _wald(gap: FloatArray, noise: FloatArray, freedom: float) -> tuple[float, int]:
    """gapᵀ noise⁻¹ gap over the directions that have noise, and how many these are.

    The factor (as in Hotelling's T²) makes up for a covariance that is itself an estimate.
    """
    if len(gap) == 0:
        return 0.0, 0
    # As correlations: the variances of common and rare classes differ by orders of magnitude.
    scale = np.sqrt(np.diag(noise))
    values, vectors = np.linalg.eigh(noise / np.outer(scale, scale))
    kept = values > 1e-10 * values[-1]
    along = (vectors.T @ (gap / scale))[kept]
    df = int(kept.sum())
    factor = max(freedom - df + 1.0, 1.0) / max(freedom, 1.0)
    return float(np.sum(along**2 / values[kept]) * min(factor, 1.0)), df
