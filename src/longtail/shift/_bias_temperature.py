"""Held-out logits in, calibrated logits out: a temperature and one bias per class.

The calibration that estimating a target prior asks for (Alexandari et al. 2020). It is used
through `shift`, which exports these names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import FloatArray, InputError, IntArray
from longtail.metrics._sums import row_slices, score_columns
from longtail.priors import ClassPrior

# A mean log-loss below this means that every example is right and none is in doubt.
_SEPARATED = 1e-5


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
        iterations: of L-BFGS.
        converged: whether L-BFGS met its tolerance.
    """

    temperature: float
    bias: FloatArray
    prior: ClassPrior
    log_loss_before: float
    log_loss: float
    iterations: int
    converged: bool

    def adjust(self, logits: Any) -> NDArray[Any]:
        """The calibrated logits, logits / T + b.

        Args:
            logits: shape (examples, num_classes).

        Returns:
            A NumPy array of the same shape and floating dtype.
        """
        given = self._checked(logits, "BiasCorrectedTemperature.adjust")
        _checks.all_finite(given, caller="BiasCorrectedTemperature.adjust", name="logits")
        dtype = given.dtype if given.dtype.kind == "f" else np.float64
        return (given * (1.0 / self.temperature) + self.bias).astype(dtype, copy=False)

    def probs(self, logits: Any, *, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """The calibrated probabilities, softmax(logits / T + b).

        Args:
            logits: shape (examples, num_classes); a memory map is read in chunks.
            out: array or memory map of that shape to write into, if the result is large.

        Returns:
            `out`, or a new NumPy array of the logits' floating dtype.
        """
        caller = "BiasCorrectedTemperature.probs"
        given = self._checked(logits, caller)
        if out is None:
            out = np.empty(given.shape, given.dtype if given.dtype.kind == "f" else np.float64)
        elif out.shape != given.shape:
            raise InputError(
                f"{caller}: `out` must have the shape of the logits, {given.shape}; "
                f"its shape is {out.shape}."
            )
        for rows in row_slices(given):
            chunk = given[rows]
            _checks.all_finite(chunk, caller=caller, name="logits", first_row=rows.start)
            out[rows] = _softmax(chunk * (1.0 / self.temperature) + self.bias)[0]
        return out

    def _checked(self, logits: Any, caller: str) -> NDArray[Any]:
        given = score_columns(logits, caller, "logits")
        _checks.prior(self.prior, caller, num_classes=given.shape[1], shape=given.shape)
        return given

    def __repr__(self) -> str:
        return (
            f"BiasCorrectedTemperature(temperature={self.temperature:.4g}, "
            f"log_loss={self.log_loss_before:.4g} -> {self.log_loss:.4g})"
        )


def fit_bias_corrected_temperature(logits: Any, target: Any) -> BiasCorrectedTemperature:
    """Fit T and b of softmax(logits / T + b) by log-loss on held-out examples.

    In 1/T and b the log-loss is convex, so the optimum is unique (up to a constant in b, whose
    mean is set to zero). At the optimum the mean predicted probability of each class equals its
    frequency among these examples, which is what estimating a shifted prior rests on.

    Args:
        logits: of held-out examples, shape (examples, num_classes); of a model that gives
            probabilities only, their logarithm. May be a memory map.
        target: their labels; every class needs at least one, and rare ones more for a bias
            that is not mostly noise.

    Returns:
        The calibrator, with `.temperature`, `.bias`, `.prior`, `.adjust(logits)` and
        `.probs(logits)`.

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

    caller = "fit_bias_corrected_temperature"
    given = score_columns(logits, caller, "logits")
    target = _checks.labels(target, caller=caller, num_classes=given.shape[1])
    _checks.same_length(given, target, caller=caller)
    absent = np.flatnonzero(np.bincount(target, minlength=given.shape[1]) == 0)
    if len(absent):
        raise InputError(
            f"{caller}: every class needs held-out examples, but class(es) "
            f"{_checks.listing(absent)} have none, so their bias has no finite optimum; fit a "
            f"plain temperature, or hold out examples of every class."
        )
    problem = _Problem(given, target, caller)
    start = problem.pack(1.0, np.zeros(given.shape[1]))
    before = problem(start)[0]
    result = minimize(
        problem,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[(1e-6, None)] + [(None, None)] * given.shape[1],
        options={"maxiter": 1000, "maxfun": 2000, "ftol": 1e-15, "gtol": 1e-8, "maxcor": 20},
    )
    slope, bias = problem.unpack(result.x)
    _refuse_degenerate(result, caller)
    return BiasCorrectedTemperature(
        temperature=1.0 / slope,
        bias=bias - bias.mean(),
        prior=ClassPrior.from_labels(target, num_classes=given.shape[1]),
        log_loss_before=before,
        log_loss=float(result.fun),
        iterations=int(result.nit),
        converged=bool(result.success),
    )


def _refuse_degenerate(result: Any, caller: str) -> None:
    if result.fun < _SEPARATED:
        raise InputError(
            f"{caller}: the logits separate the classes of `target` perfectly, so no temperature "
            f"is the best; these may be the examples that the model was trained on: hold out "
            f"others, or more."
        )
    if result.x[0] <= 1e-6:
        raise InputError(
            f"{caller}: the logits say nothing about `target` (the best temperature is "
            f"infinite); check that rows and labels are in the same order."
        )


class _Problem:
    """Mean log-loss and its gradient in scaled variables, over chunks.

    Variables of like curvature make L-BFGS quick: 1/T in units of the logits' spread, and each
    bias in units of one over the root of its class's frequency.
    """

    def __init__(self, logits: NDArray[Any], target: IntArray, caller: str) -> None:
        self.logits, self.target = logits, target
        self.counts = np.bincount(target, minlength=logits.shape[1]).astype(np.float64)
        self.root = np.sqrt(self.counts / len(target))
        square = 0.0
        for rows in row_slices(logits):
            chunk = logits[rows]
            _checks.all_finite(chunk, caller=caller, name="logits", first_row=rows.start)
            if rows.start == 0:
                _checks.not_probabilities(chunk, caller=caller, hint="pass their logarithm")
            square += float(chunk.var(axis=1, dtype=np.float64).sum())
        self.spread = float(np.sqrt(square / len(target)))
        if self.spread == 0.0:
            raise InputError(
                f"{caller}: every row of `logits` is constant, so they say nothing about the "
                f"classes; check the model's inputs."
            )

    def pack(self, slope: float, bias: FloatArray) -> FloatArray:
        return np.concatenate([[slope * self.spread], bias * self.root])

    def unpack(self, x: FloatArray) -> tuple[float, FloatArray]:
        return float(x[0] / self.spread), np.asarray(x[1:] / self.root)

    def __call__(self, x: FloatArray) -> tuple[float, FloatArray]:
        slope, bias = self.unpack(x)
        loss, slope_gradient, bias_gradient = 0.0, 0.0, -self.counts
        for rows in row_slices(self.logits):
            chunk = self.logits[rows].astype(np.float64, copy=False)
            labels, order = self.target[rows], np.arange(rows.stop - rows.start)
            scores = chunk * slope + bias
            at_label = scores[order, labels]
            probs, logsum = _softmax(scores)
            loss += float((logsum - at_label).sum())
            slope_gradient += float(np.einsum("ij,ij->", probs, chunk))
            slope_gradient -= float(chunk[order, labels].sum())
            bias_gradient = bias_gradient + probs.sum(axis=0)
        gradient = np.concatenate([[slope_gradient / self.spread], bias_gradient / self.root])
        return loss / len(self.target), np.asarray(gradient / len(self.target))


def _softmax(scores: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Probabilities (in the memory of `scores`) and log-sum-exp of each row."""
    top = scores.max(axis=1, keepdims=True)
    scores -= top
    probs = np.exp(scores, out=scores)
    total = probs.sum(axis=1, keepdims=True)
    probs /= total
    return probs, np.asarray((np.log(total) + top)[:, 0])
