"""The two estimators behind `shift`: EM and BBSE, over chunks of predicted probabilities.

Each returns the target prior as it finds it with a test statistic of "no shift"; what to
conclude from that is decided in `shift`.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import FloatArray, InputError, IntArray
from longtail.metrics._sums import confusion_counts, decide_in_chunks, row_slices, score_columns
from longtail.priors import ClassPrior
from longtail.shift._no_shift import no_shift_statistic

_logger = logging.getLogger("longtail")

# Beyond this the solution of the linear system is rounding noise.
_SINGULAR = 1.0 / math.sqrt(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Found:
    """What a method hands to the conclusion."""

    probs: FloatArray
    statistic: float
    df: int
    iterations: int = 0
    converged: bool = True
    condition: float | None = None


def mean_prediction(
    probs: NDArray[Any], caller: str, name: str, *, constant: bool = False
) -> FloatArray:
    """Mean row; refuses what is not probabilities and, unless allowed, rows that are all equal."""
    total = np.zeros(probs.shape[1])
    varies = constant or len(probs) == 1
    for rows in row_slices(probs):
        chunk = probs[rows]
        _checks.probability_rows(
            chunk, caller=caller, name=name, first_row=rows.start, hint="apply a softmax first"
        )
        total += chunk.sum(axis=0, dtype=np.float64)
        varies = varies or bool(np.any(chunk != probs[0]))
    if not varies:
        raise InputError(
            f"{caller}: every row of `{name}` is the same, so the predictions say nothing about "
            f"the target; check the model's inputs."
        )
    return total / len(probs)


# --- EM -----------------------------------------------------------------------------------


def by_em(probs: NDArray[Any], prior: ClassPrior, *, tolerance: float, max_iter: int) -> Found:
    """Maximum likelihood, and twice the gain in log-likelihood over "no shift"."""
    start = _look(probs, prior, prior.probs)
    best, passes = _climb(probs, prior, start, tolerance=tolerance, max_iter=max_iter)
    if best.gap > tolerance:
        _logger.warning(
            "estimate_prior: EM stopped at max_iter=%d with a gap of %.3g above tolerance=%.3g",
            max_iter,
            best.gap,
            tolerance,
        )
    statistic = max(0.0, 2.0 * (best.height - start.height))
    if prior.sample is not None:
        # The biases that the probabilities carry were fitted on as many examples as the prior
        # counts. Their noise moves the estimate just as a sample of that size would, so the
        # variance is 1/n + 1/size and not 1/n.
        size = float(prior.sample.sum())
        statistic *= size / (size + len(probs))
    return Found(
        probs=best.q,
        statistic=statistic,
        df=prior.num_classes - 1,
        iterations=passes,
        converged=best.gap <= tolerance,
    )


@dataclass(frozen=True)
class _Point:
    """A prior q, its log-likelihood, and the factors by which EM would multiply q."""

    q: FloatArray
    height: float
    factors: FloatArray

    @property
    def gap(self) -> float:
        """Bound on the mean log-likelihood still to be gained, as the likelihood is concave."""
        return float(self.factors.max() - 1.0)

    def step(self) -> FloatArray:
        """One step of plain EM."""
        q = self.q * self.factors
        return np.asarray(q / q.sum())


def _look(probs: NDArray[Any], prior: ClassPrior, q: FloatArray) -> _Point:
    """One pass: Σ_i log s_i and mean_i p_ik / (π_k s_i), where s_i = Σ_k (q_k / π_k) p_ik."""
    ratio = q / prior.probs
    height, pull = 0.0, np.zeros(len(q))
    for rows in row_slices(probs):
        chunk = probs[rows].astype(np.float64, copy=False)
        mixed = chunk @ ratio
        height += float(np.log(mixed).sum())
        pull += (1.0 / mixed) @ chunk
    return _Point(q, height, pull / prior.probs / len(probs))


def _climb(
    probs: NDArray[Any], prior: ClassPrior, here: _Point, *, tolerance: float, max_iter: int
) -> tuple[_Point, int]:
    """EM with squared extrapolation (Varadhan and Roland 2008), never downhill."""
    passes, longest = 1, 4.0
    while here.gap > tolerance and passes < max_iter:
        first = _look(probs, prior, here.step())
        passes += 1
        if first.gap <= tolerance or passes >= max_iter:
            return first, passes
        second = first.step()
        change = first.q - here.q
        bend = (second - first.q) - change
        length = float(np.linalg.norm(change) / max(float(np.linalg.norm(bend)), 1e-300))
        length = min(max(length, 1.0), longest)
        leap = here.q + 2.0 * length * change + length**2 * bend
        # Inside the simplex: no class falls below a hundredth of what EM gives it.
        leap = np.maximum(leap, 0.01 * second)
        there = _look(probs, prior, leap / leap.sum())
        passes += 1
        if there.height >= first.height:
            longest = 4.0 * longest if length == longest else longest
        elif passes >= max_iter:
            there = first
        else:
            longest = max(4.0, 0.5 * length)
            there = _look(probs, prior, second)
            passes += 1
        here = there
    return here, passes


# --- BBSE ---------------------------------------------------------------------------------


def by_bbse(
    probs: NDArray[Any], prior: ClassPrior, source_probs: Any, source_target: Any, soft: bool
) -> Found:
    """Solve A q = m, and compare m with A π."""
    caller = "estimate_prior"
    if source_probs is None or source_target is None:
        raise InputError(
            f"{caller}: method='bbse' needs `source_probs` and `source_target`, predictions and "
            f"labels of held-out examples; without them use method='em'."
        )
    width = prior.num_classes
    source = score_columns(source_probs, caller, "source_probs")
    if source.shape[1] != width:
        raise InputError(
            f"{caller}: `source_probs` must have as many columns as `probs`, {width}; "
            f"its shape is {source.shape}."
        )
    mean_prediction(source, caller, "source_probs", constant=True)
    target = _checks.labels(source_target, caller=caller, name="source_target", num_classes=width)
    _checks.same_length(source, target, caller=caller, name="source_probs")
    source_labels = decide_in_chunks(source, caller, "source_probs")
    counts = np.bincount(target, minlength=width)
    absent = np.flatnonzero(counts == 0)
    if len(absent):
        raise InputError(
            f"{caller}: method='bbse' needs held-out examples of every class, but `source_target` "
            f"has none of {_checks.listing(absent)}; use method='em'."
        )
    mean = mean_prediction(probs, caller, "probs")
    labels = decide_in_chunks(probs, caller, "probs")
    if soft:
        totals = _class_totals(source, target)
    else:
        mean = np.bincount(labels, minlength=width) / len(labels)
        totals = confusion_counts(target, source_labels, width, None).astype(np.float64)
    matrix = np.asarray((totals / counts[:, None]).T)
    condition = float(np.linalg.cond(matrix))
    if not condition < _SINGULAR:
        raise InputError(_singular(source_labels, width, soft, condition))
    statistic, df = no_shift_statistic(
        matrix,
        mean,
        source=source if soft else source_labels,
        source_target=target,
        given=probs if soft else labels,
        prior=prior,
    )
    return Found(_simplex_solve(matrix, mean), statistic, df, condition=condition)


def _class_totals(probs: NDArray[Any], target: IntArray) -> FloatArray:
    """Row k: the sum of the predictions for the examples of class k."""
    from scipy.sparse import csr_array

    width = probs.shape[1]
    totals = np.zeros((width, width))
    for rows in row_slices(probs):
        size = rows.stop - rows.start
        members = csr_array((np.ones(size), (target[rows], np.arange(size))), shape=(width, size))
        totals += members @ probs[rows].astype(np.float64, copy=False)
    return totals


def _singular(predicted: IntArray, width: int, soft: bool, condition: float) -> str:
    never = np.flatnonzero(np.bincount(predicted, minlength=width) == 0)
    why = (
        f"class(es) {_checks.listing(never)} are never predicted on the held-out examples"
        if len(never)
        else "some classes are predicted alike"
    )
    return (
        f"estimate_prior: the confusion matrix of `source_probs` is singular (condition number "
        f"{condition:.1e}): {why}, so BBSE can't tell them apart; "
        f"{'use' if soft else 'pass soft=True, or use'} method='em'."
    )


def _simplex_solve(matrix: FloatArray, mean: FloatArray) -> FloatArray:
    """The q ≥ 0 with Σ q = 1 that minimises ‖A q − m‖."""
    from scipy.optimize import nnls

    q = np.linalg.solve(matrix, mean)
    if q.min() >= 0:
        return np.asarray(q / q.sum())
    # With Σ q = 1, A q − m = B q for B = A − m 1ᵀ. Minimising ‖B x‖² + (Σ x − 1)² over x ≥ 0
    # gives a multiple of the q that minimises ‖B q‖, so the sum needs no constraint.
    rows = np.vstack([matrix - mean[:, None], np.ones(len(mean))])
    x, _ = nnls(rows, np.append(np.zeros(len(mean)), 1.0))
    return np.asarray(x / x.sum())
