"""Estimate the class mix of unlabelled target data, and test whether it has changed.

Under label shift classes look as they did in training but occur at other rates, which the model's
predictions on unlabelled target data reveal: by maximum likelihood (EM, Saerens et al. 2002) or by
inverting the confusion matrix (BBSE, Lipton et al. 2018). EM wants calibrated predictions, so a
bias-corrected temperature (Alexandari et al. 2020) comes first:

    calibrator = fit_bias_corrected_temperature(held_out_logits, held_out_target)
    estimate = estimate_prior(calibrator.probs(logits), calibrator.prior)
    adjust_logits(calibrator.adjust(logits), calibrator.prior, target_prior=estimate.prior)
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc

from longtail import _checks
from longtail._checks import FloatArray, InputError, IntArray
from longtail.metrics import softmax_rows
from longtail.priors import ClassPrior

# EM stops when the mean log-likelihood is provably this near to its maximum, or after so many
# passes over the data.
_TOLERANCE, _MAX_PASSES = 1e-6, 1000
_REPLICATES = 200

_logger = logging.getLogger("longtail")


@dataclass(frozen=True, eq=False, repr=False)
class ShiftEstimate:
    """An estimated target prior, and how far to trust it.

    Attributes:
        prior: what to use: q = π + strength · (probs − π), or π itself if not `shifted`.
        probs: the estimate as the method gives it, shape (num_classes,); may hold zeros.
        source: π, the training prior that was given.
        shifted: whether the target differs from π by more than chance (`p_value` below
            `significance`); True without a test.
        strength: share of the estimated change that is kept, 1 − df / statistic, in [0, 1].
        statistic: likelihood-ratio (EM) or Pearson (BBSE) statistic of "no shift".
        df: its degrees of freedom, which need not be whole (BBSE).
        p_value: probability of such a statistic without a shift.
        interval: bootstrap interval of each class's frequency, each by itself, shape (num_classes,
            2), where a `confidence` was asked for, else None.

    Examples:
        >>> probs = [[0.98, 0.02], [0.2, 0.8]] * 500  # of a model trained on 90 : 10
        >>> estimate_prior(probs, ClassPrior.from_probs([0.9, 0.1]))
        ShiftEstimate(shifted=True, p_value=..., strength=0.99...)
    """

    prior: ClassPrior
    probs: FloatArray
    source: ClassPrior
    shifted: bool
    strength: float
    statistic: float
    df: float
    p_value: float
    interval: FloatArray | None = None

    def __repr__(self) -> str:
        return (
            f"ShiftEstimate(shifted={self.shifted}, p_value={self.p_value:.3g}, "
            f"strength={self.strength:.3g})"
        )


def estimate_prior(
    probs: Any,
    prior: ClassPrior,
    *,
    method: Literal["em", "bbse"] = "em",
    source_probs: Any = None,
    source_target: Any = None,
    significance: float | None = 0.05,
    confidence: float | None = None,
    random_state: int | None = 0,
) -> ShiftEstimate:
    """Estimate how often each class occurs in unlabelled target data.

    "em" maximises the likelihood Σ_i log Σ_k (q_k / π_k) p_ik, which is concave, by the fixed
    point q_k ← mean_i [(q_k / π_k) p_ik / Σ_j (q_j / π_j) p_ij] with squared extrapolation. It
    needs probabilities that are calibrated under π: see `fit_bias_corrected_temperature`.

    "bbse" solves A q = m over the simplex by least squares, with m the mean target prediction
    and A_jk the mean prediction of j on held-out examples of class k. It needs no calibration.

    "No shift" is tested: for EM by the likelihood ratio against q = π, for BBSE by Pearson's χ² of
    m against A π, corrected for its covariance (Rao and Scott 1981). Unless that rejects, `.prior`
    is the training prior itself; if it does, only the share 1 − df / statistic of the change is
    kept (positive-part James-Stein), since the estimate of many rare classes is mostly noise.
    `.probs` is the estimate without that.

    Args:
        probs: predicted probabilities on the target, shape (examples, num_classes); may be a
            memory map, which is read in chunks, once per iteration.
        prior: π, of the data that the model, or its calibrator, was fitted on.
        method: "em" or "bbse".
        source_probs: for "bbse": predictions on held-out examples of every class, in any mix,
            shape (held-out examples, num_classes).
        source_target: for "bbse": their labels.
        significance: level of the test, in (0, 1]; None uses the estimate without a test.
        confidence: of bootstrap intervals around `.probs`, such as 0.95; None makes none. They
            count the chance in the target, and in the held-out examples or the prior's counts.
        random_state: seed of the bootstrap.

    Returns:
        A ShiftEstimate; pass its `.prior` as `target_prior` to `adjust_logits`.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> prior = ClassPrior.from_probs([0.9, 0.1])
        >>> def predictions(share):  # of a model that knows the classes' densities
        ...     x = rng.normal(2.0 * (rng.random(5000) < share))
        ...     odds = np.exp(2.0 * x - 2.0) * 0.1 / 0.9
        ...     return np.stack([1 / (1 + odds), odds / (1 + odds)], axis=1)
        >>> estimate_prior(predictions(0.4), prior).prior.probs.round(2)
        array([0.59, 0.41])
        >>> estimate_prior(predictions(0.1), prior).prior == prior
        True
    """
    _checks.choice(method, ("em", "bbse"), name="method")
    given = _checks.columns(probs, name="probs", pi=prior)
    if significance is not None:
        significance = _checks.fraction(significance, name="significance")
    if confidence is not None:
        confidence = _checks.fraction(confidence, name="confidence", below_one=True)
    random, replicates = np.random.default_rng(random_state), None
    mean = _mean_prediction(given, "probs")
    if method == "em":
        if source_probs is not None or source_target is not None:
            raise InputError("method='em' takes no held-out data; leave them out, or use 'bbse'.")
        q, statistic, df = _by_em(given, prior)
        if confidence is not None:
            replicates = _em_replicates(given, prior, q, random)
    else:
        if source_probs is None or source_target is None:
            raise InputError(
                "method='bbse' needs `source_probs` and `source_target`, predictions and labels of "
                "held-out examples; without them use method='em'."
            )
        source, target, _ = _checks.examples(
            source_probs, source_target, name="source_probs", pi=prior
        )
        q, statistic, df = _by_bbse(given, mean, prior, source, target)
        if confidence is not None:
            replicates = _bbse_replicates(given, source, target, random)

    p_value = float(chdtrc(df, statistic))
    shifted = significance is None or p_value < significance
    strength, kept, interval = 0.0, prior, None
    if shifted and statistic > df:
        strength = 1.0 - df / statistic
        mixed = prior.probs + strength * (q - prior.probs)
        kept = ClassPrior.from_probs(mixed / mixed.sum())
    if replicates is not None and confidence is not None:
        ends = (0.5 - 0.5 * confidence, 0.5 + 0.5 * confidence)
        interval = np.quantile(replicates, ends, axis=0).T
    return ShiftEstimate(kept, q, prior, shifted, strength, statistic, df, p_value, interval)


def effective_prior(probs: Any, *, smoothing: float = 0.0) -> ClassPrior:
    """Return the prior that a model has actually learned: its mean predicted probability.

    It differs from the counts where training was regularised, resampled, reweighted or stopped
    early; adjust by it in their stead.

    Args:
        probs: predictions on data distributed as the training data, best held out, shape
            (examples, num_classes); may be a memory map.
        smoothing: added to every class's total, as in `ClassPrior.from_counts`.

    Examples:
        >>> effective_prior([[0.9, 0.1], [0.5, 0.5]])
        ClassPrior(num_classes=2, imbalance_ratio=2.33333, probs=[0.7, 0.3])
    """
    given = _checks.columns(probs, name="probs")
    totals = _mean_prediction(given, "probs") * len(given)
    return ClassPrior.from_probs(ClassPrior.from_weights(totals, smoothing=smoothing).probs)


def _mean_prediction(probs: NDArray[Any], name: str) -> FloatArray:
    """Return the mean of the rows, which must be probabilities."""
    total = np.zeros(probs.shape[1])
    hint = "apply a softmax first"
    for _, chunk in _checks.chunks(probs, kind="probs", name=name, hint=hint):
        total += chunk.sum(axis=0, dtype=np.float64)
    return total / len(probs)


def _chunks(array: NDArray[Any]) -> Iterator[tuple[slice, FloatArray]]:
    """Yield consecutive rows of a checked array in float64, and where they are."""
    for rows, chunk in _checks.chunks(array, kind=None):
        yield rows, chunk.astype(np.float64, copy=False)


# --- EM ---------------------------------------------------------------------------------------


def _by_em(probs: NDArray[Any], prior: ClassPrior) -> tuple[FloatArray, float, float]:
    """Maximise the likelihood by EM, extrapolated (Varadhan and Roland 2008) but never downhill.

    Returns q, the likelihood-ratio statistic of "no shift" and its degrees of freedom.
    """

    def look(q: FloatArray) -> tuple[FloatArray, float, FloatArray]:
        """Return q, Σ_i log s_i, s_i = Σ_k (q_k / π_k) p_ik, and the factors of a step of EM."""
        height, pull = 0.0, np.zeros(len(q))
        for _, chunk in _chunks(probs):
            mixed = chunk @ (q / prior.probs)
            height += float(np.log(mixed).sum())
            pull += (1.0 / mixed) @ chunk
        return q, height, pull / prior.probs / len(probs)

    def above(factors: FloatArray) -> float:
        """Return a bound on the distance from the maximum of the mean log-likelihood."""
        return float(factors.max()) - 1.0

    best = start = look(prior.probs)
    longest, passes = 4.0, 1
    while above(best[2]) > _TOLERANCE and passes < _MAX_PASSES:
        q, _, factors = best
        first = look(_scaled(q * factors))
        if above(first[2]) <= _TOLERANCE:
            best = first
            break
        second = _scaled(first[0] * first[2])
        change = first[0] - q
        bend = (second - first[0]) - change
        length = float(np.linalg.norm(change) / max(float(np.linalg.norm(bend)), 1e-300))
        length = min(max(length, 1.0), longest)
        # Inside the simplex: no class falls below a hundredth of what EM gives it.
        far = look(_scaled(np.maximum(q + 2.0 * length * change + length**2 * bend, 0.01 * second)))
        if far[1] < first[1]:
            best, longest = first, max(4.0, 0.5 * length)
        else:
            best, longest = far, 4.0 * longest if length == longest else longest
        passes += 2
    q, height, factors = best
    if above(factors) > _TOLERANCE:
        text = "estimate_prior: EM stopped after %d passes, %.3g below the maximum"
        _logger.warning(text, passes, above(factors))
    statistic = max(0.0, 2.0 * (height - start[1]))
    if prior.sample is not None:
        # The calibration was fitted on as many examples as the prior counts, whose noise moves the
        # estimate as a sample of that size would: the variance is 1/n + 1/size and not 1/n.
        statistic /= 1.0 + len(probs) / float(prior.sample.sum())
    return q, statistic, prior.num_classes - 1


def _scaled(q: FloatArray) -> FloatArray:
    return np.asarray(q / q.sum())


def _em_replicates(
    probs: NDArray[Any], prior: ClassPrior, q: FloatArray, random: np.random.Generator
) -> FloatArray:
    """Return bootstrap replicates of the estimate, from the likelihood's quadratic at q.

    Σ_i w_i log Σ_k q_k p_ik/π_k − q_k Σ_i w_i, with weights w of resampled examples, is largest
    over all q ≥ 0 where Σ q = 1. Its gradient is taken with the weights, its Hessian without.
    """
    from scipy.optimize import nnls

    size = len(q)
    slopes, curvature = np.zeros((_REPLICATES, size)), 1e-9 * len(probs) * np.eye(size)
    for _, chunk in _chunks(probs):
        ratio = chunk / prior.probs
        ratio /= (ratio @ q)[:, None]
        slopes += random.poisson(1.0, (_REPLICATES, len(ratio))) @ (ratio - 1.0)
        curvature += ratio.T @ ratio
    root = np.linalg.cholesky(curvature).T
    centers = root @ q + np.linalg.solve(root.T, slopes.T).T
    found = np.array([nnls(root, center)[0] for center in centers])
    found /= found.sum(axis=1, keepdims=True)
    if prior.sample is not None:
        # The calibration's own noise: its examples of a class count for q_k of the estimate.
        spread = 1.0 + len(probs) * float((q**2 / np.maximum(prior.sample, 1)).sum())
        found = np.clip(q + math.sqrt(spread) * (found - q), 0.0, 1.0)
    return np.asarray(found)


# --- BBSE -------------------------------------------------------------------------------------


def _by_bbse(
    probs: NDArray[Any],
    mean: FloatArray,
    prior: ClassPrior,
    source: NDArray[Any],
    target: IntArray,
) -> tuple[FloatArray, float, float]:
    """Solve A q = m, and compare m with A π: q, the statistic of "no shift" and its df."""
    empty = np.flatnonzero(np.bincount(target, minlength=prior.num_classes) == 0)
    if len(empty):
        raise InputError(
            f"method='bbse' needs held-out examples of every class, but `source_target` has none "
            f"of {_checks.listing(empty)}; use method='em'."
        )
    _mean_prediction(source, "source_probs")
    matrix = _class_means(source, target, np.ones(len(target)))
    condition = float(np.linalg.cond(matrix))
    if not condition < 1.0 / math.sqrt(np.finfo(np.float64).eps):  # beyond it q is rounding noise
        raise InputError(
            f"the confusion matrix of `source_probs` is singular (condition number "
            f"{condition:.1e}): some classes are predicted alike, so BBSE can't tell them apart; "
            f"use method='em'."
        )
    return _simplex_solve(matrix, mean), *_no_shift(matrix, mean, source, target, probs, prior)


def _bbse_replicates(
    probs: NDArray[Any], source: NDArray[Any], target: IntArray, random: np.random.Generator
) -> FloatArray:
    """Return bootstrap replicates of the estimate: target examples, and held-out ones by class."""
    means = np.zeros((_REPLICATES, probs.shape[1]))
    for _, chunk in _chunks(probs):
        means += random.poisson(1.0, (_REPLICATES, len(chunk))) @ chunk
    means /= means.sum(axis=1, keepdims=True)
    # Exponential weights, unlike Poisson counts, leave no class without weight.
    weights = (random.exponential(size=len(target)) for _ in means)
    pairs = zip(weights, means, strict=True)
    return np.array([_simplex_solve(_class_means(source, target, w), mean) for w, mean in pairs])


def _class_means(probs: NDArray[Any], target: IntArray, weight: FloatArray) -> FloatArray:
    """Return A, shape (num_classes, num_classes): column k is the mean prediction on class k."""
    from scipy.sparse import csr_array

    width = probs.shape[1]
    totals = np.zeros((width, width))
    for rows, chunk in _chunks(probs):
        places, shape = (target[rows], np.arange(len(chunk))), (width, len(chunk))
        totals += csr_array((weight[rows], places), shape=shape) @ chunk
    return np.asarray(totals.T / np.bincount(target, weights=weight, minlength=width))


def _simplex_solve(matrix: FloatArray, mean: FloatArray) -> FloatArray:
    """Return the q ≥ 0 with Σ q = 1 that minimises ‖A q − m‖."""
    from scipy.optimize import nnls

    q = np.linalg.solve(matrix, mean)
    if q.min() >= 0:
        return np.asarray(q / q.sum())
    # With Σ q = 1, A q − m = B q for B = A − m 1ᵀ, and the x ≥ 0 that minimises
    # ‖B x‖² + (Σ x − 1)² is a multiple of the q that minimises ‖B q‖.
    rows = np.vstack([matrix - mean[:, None], np.ones(len(mean))])
    x, _ = nnls(rows, np.append(np.zeros(len(mean)), 1.0))
    return np.asarray(x / x.sum())


# Pseudo-examples, spread like all examples together, in the covariance of each held-out class, so
# that a class with few examples does not look free of noise. Most of that spread is between
# classes: with more of them it would hide the spread within a class.
_STAND_INS = 4.0


def _no_shift(
    matrix: FloatArray,
    mean: FloatArray,
    source: NDArray[Any],
    source_target: IntArray,
    given: NDArray[Any],
    prior: ClassPrior,
) -> tuple[float, float]:
    """Return Pearson's Σ_j (m_j − e_j)² / e_j with e = A π, scaled to a χ², and its df.

    With V the covariance of m − e and D = diag(1 / e) its mean is tr(D V) and its variance
    2 tr((D V)²), those of a χ² with df = tr(D V)² / tr((D V)²) times a factor (Satterthwaite). V
    has the noise of the target's mean, of each held-out class's mean, and of the prior's own
    counts, with a covariance taken from source and target together.
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

    relative = noise / expected
    first, second = float(np.trace(relative)), float((relative * relative.T).sum())
    return float((gap**2 / expected).sum()) * first / second, first**2 / second


def _scatter(
    predictions: NDArray[Any], center: FloatArray, weight: FloatArray | None = None
) -> FloatArray:
    """Return Σ_i w_i (p_i − c)(p_i − c)ᵀ, with w = 1 if absent."""
    total = np.zeros((len(center), len(center)))
    for rows, chunk in _chunks(predictions):
        apart = chunk - center
        total += apart.T @ (apart if weight is None else apart * weight[rows, None])
    return total


# --- calibration ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class BiasCorrectedTemperature:
    """Calibrates logits: softmax(logits / temperature + bias).

    Attributes:
        temperature: T, above zero.
        bias: b, shape (num_classes,), with mean zero.
        prior: class frequencies of the held-out examples, which the calibrated probabilities
            refer to: their mean over those examples is exactly this.
        log_loss_before: mean log-loss on the held-out examples as they came.
        log_loss: the same after calibration.
        converged: whether L-BFGS met its tolerance.
    """

    temperature: float
    bias: FloatArray
    prior: ClassPrior
    log_loss_before: float
    log_loss: float
    converged: bool

    def adjust(self, logits: Any) -> NDArray[Any]:
        """Return the calibrated logits, logits / T + b, as NumPy in their floating dtype."""
        return self._by_chunk(logits, lambda scores: scores)

    def probs(self, logits: Any) -> NDArray[Any]:
        """Return the calibrated probabilities, softmax(logits / T + b), shape as the logits'."""
        return self._by_chunk(logits, lambda scores: softmax_rows(scores)[0])

    def _by_chunk(self, logits: Any, finish: Callable[[Any], Any]) -> NDArray[Any]:
        given = _checks.columns(logits, pi=self.prior)
        out = np.empty(given.shape, given.dtype if given.dtype.kind == "f" else np.float64)
        for rows, chunk in _checks.chunks(given, kind="scores", name="logits"):
            out[rows] = finish(chunk * (1.0 / self.temperature) + self.bias)
        return out

    def __repr__(self) -> str:
        return (
            f"BiasCorrectedTemperature(temperature={self.temperature:.4g}, "
            f"log_loss={self.log_loss_before:.4g} -> {self.log_loss:.4g})"
        )


def fit_bias_corrected_temperature(logits: Any, target: Any) -> BiasCorrectedTemperature:
    """Fit T and b of softmax(logits / T + b) by log-loss on held-out examples.

    In 1/T and b the log-loss is convex, so the optimum is unique (with b of mean zero). There the
    mean predicted probability of each class is its frequency among these examples, which is what
    estimating a shifted prior rests on.

    Args:
        logits: of held-out examples, shape (examples, num_classes); of a model that gives
            probabilities only, `posthoc.log_probs` of them. May be a memory map.
        target: their labels; every class needs at least one.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> target = np.tile([0, 0, 0, 1], 1000)
        >>> logit = rng.normal(target) - 0.5 - np.log(3)  # of the density ratio, plus log-odds
        >>> logits = np.stack([0 * logit, 3 * logit + 1], axis=1)  # overconfident and biased
        >>> calibrator = fit_bias_corrected_temperature(logits, target)
        >>> round(calibrator.temperature), calibrator.bias.round(1)
        (3, array([ 0.1, -0.1]))
        >>> calibrator.probs(logits).mean(axis=0).round(4)
        array([0.75, 0.25])
    """
    from scipy.optimize import minimize

    given, target, _ = _checks.examples(logits, target, names=True)
    width = given.shape[1]
    counts = np.bincount(target, minlength=width).astype(np.float64)
    if not counts.all():
        raise InputError(
            f"every class needs held-out examples, but class(es) "
            f"{_checks.listing(np.flatnonzero(counts == 0))} have none, so their bias has no "
            f"finite optimum; fit a plain temperature, or hold out examples of every class."
        )
    chunks = _checks.chunks(given)
    square = sum(float(chunk.var(axis=1, dtype=np.float64).sum()) for _, chunk in chunks)
    # Variables of like curvature make L-BFGS quick: 1/T in units of the logits' spread, and each
    # bias in units of one over the root of its class's frequency.
    units = np.append(np.sqrt(square / len(target)) or 1.0, np.sqrt(counts / len(target)))

    def log_loss(x: FloatArray) -> tuple[float, FloatArray]:
        slope, bias = float(x[0] / units[0]), x[1:] / units[1:]
        loss, by_slope, by_bias = 0.0, 0.0, -counts
        for rows, chunk in _chunks(given):
            labels, order = target[rows], np.arange(len(chunk))
            scores = chunk * slope + bias
            lead = scores.max(axis=1) - scores[order, labels]
            probs, log_sum, _ = softmax_rows(scores)
            loss += float((log_sum + lead).sum())
            by_slope += float(np.einsum("ij,ij->", probs, chunk)) - chunk[order, labels].sum()
            by_bias = by_bias + probs.sum(axis=0)
        gradient = np.append(by_slope, by_bias) / units
        return loss / len(target), gradient / len(target)

    start = np.append(units[0], np.zeros(width))
    bounds = [(1e-6, None)] + [(None, None)] * width
    options = {"maxiter": 1000, "maxfun": 2000, "ftol": 1e-15, "gtol": 1e-8, "maxcor": 20}
    result = minimize(log_loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    if result.fun < 1e-5:  # every example is right and none is in doubt
        raise InputError(
            "the logits separate the classes of `target` perfectly, so no temperature is the "
            "best; these may be the examples that the model was trained on: hold out others, or "
            "more."
        )
    if result.x[0] <= 1e-6:
        raise InputError(
            "the logits say nothing about `target` (the best temperature is infinite); check "
            "that rows and labels are in the same order."
        )
    bias = result.x[1:] / units[1:]
    return BiasCorrectedTemperature(
        temperature=float(units[0] / result.x[0]),
        bias=bias - bias.mean(),
        prior=ClassPrior.from_labels(target, num_classes=width),
        log_loss_before=log_loss(start)[0],
        log_loss=float(result.fun),
        converged=bool(result.success),
    )
