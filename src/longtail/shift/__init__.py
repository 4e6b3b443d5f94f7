"""Unlabelled target data in, target prior out: has the class mix changed, and to what?

Label shift means that classes look as they did in training but occur at other rates. Then the
model's own predictions on unlabelled target data reveal the new rates: by maximum likelihood
(EM, Saerens et al. 2002) or by inverting the confusion matrix (BBSE, Lipton et al. 2018). Both
want calibrated or at least honest predictions, so a bias-corrected temperature (Alexandari et
al. 2020) comes first. Using the result is `posthoc.adjust_logits(..., target_prior=...)`:

    calibrator = fit_bias_corrected_temperature(held_out_logits, held_out_target)
    estimate = estimate_prior(calibrator.probs(logits), calibrator.prior)
    adjust_logits(calibrator.adjust(logits), calibrator.prior, target_prior=estimate.prior)

Nothing is adjusted here, and nothing of this is for a balanced target: that prior is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from longtail import _checks
from longtail._checks import FloatArray, InputError
from longtail.metrics._sums import score_columns
from longtail.priors import ClassPrior
from longtail.shift._bias_temperature import BiasCorrectedTemperature as BiasCorrectedTemperature
from longtail.shift._bias_temperature import (
    fit_bias_corrected_temperature as fit_bias_corrected_temperature,
)
from longtail.shift._methods import Found, by_bbse, by_em, mean_prediction

METHODS = ("em", "bbse")


@dataclass(frozen=True, eq=False, repr=False)
class ShiftEstimate:
    """An estimated target prior, and how far to trust it.

    Attributes:
        prior: what to use: q = π + strength · (probs − π), or π itself if not `shifted`.
        probs: the estimate as the method gives it, shape (num_classes,); may hold zeros.
        source: π, the training prior that was given.
        shifted: whether the target differs from π by more than chance (`p_value` below
            `significance`); True also with `significance=None`, which asks for no test.
        strength: share of the estimated change that is kept, 1 − df / statistic, in [0, 1].
        statistic: likelihood-ratio (EM) or Wald (BBSE) statistic of "no shift".
        df: its degrees of freedom.
        p_value: probability of such a statistic without a shift.
        method: "em" or "bbse".
        num_examples: target examples.
        iterations: passes over the target data (EM).
        converged: whether the estimate meets its tolerance.
        condition: condition number of the confusion matrix (BBSE), else None.

    Examples:
        >>> probs = [[0.98, 0.02], [0.2, 0.8]] * 500  # of a model trained on 90 : 10
        >>> estimate_prior(probs, ClassPrior.from_probs([0.9, 0.1]))
        ShiftEstimate(method='em', shifted=True, p_value=..., strength=..., total_variation=...)
    """

    prior: ClassPrior
    probs: FloatArray
    source: ClassPrior
    shifted: bool
    strength: float
    statistic: float
    df: int
    p_value: float
    method: str
    num_examples: int
    iterations: int
    converged: bool
    condition: float | None = None

    @property
    def weights(self) -> FloatArray:
        """How much more frequent each class is in the target, probs / π."""
        return np.asarray(self.probs / self.source.probs)

    @property
    def total_variation(self) -> float:
        """½ Σ |probs − π|: the share of examples whose class mix has changed, in [0, 1]."""
        return float(0.5 * np.abs(self.probs - self.source.probs).sum())

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists for JSON."""
        plain = ("shifted", "strength", "statistic", "df", "p_value", "method", "num_examples")
        return {
            "prior": self.prior.probs.tolist(),
            "probs": self.probs.tolist(),
            "source": self.source.probs.tolist(),
            **{name: getattr(self, name) for name in plain},
            "iterations": self.iterations,
            "converged": self.converged,
            "condition": self.condition,
            "total_variation": self.total_variation,
        }

    def __repr__(self) -> str:
        return (
            f"ShiftEstimate(method={self.method!r}, shifted={self.shifted}, "
            f"p_value={self.p_value:.3g}, strength={self.strength:.3g}, "
            f"total_variation={self.total_variation:.3g})"
        )


def estimate_prior(
    probs: Any,
    prior: ClassPrior,
    *,
    method: Literal["em", "bbse"] = "em",
    source_probs: Any = None,
    source_target: Any = None,
    soft: bool | None = None,
    significance: float | None = 0.05,
    shrink: bool = True,
    tolerance: float | None = None,
    max_iter: int | None = None,
) -> ShiftEstimate:
    """Estimate how often each class occurs in unlabelled target data.

    "em" maximises the likelihood Σ_i log Σ_k (q_k / π_k) p_ik, which is concave, by the fixed
    point q_k ← mean_i [(q_k / π_k) p_ik / Σ_j (q_j / π_j) p_ij] with squared extrapolation. It
    needs probabilities that are calibrated under π: see `fit_bias_corrected_temperature`.

    "bbse" solves A q = m over the simplex by least squares, with m the mean target prediction
    and A_jk the mean prediction of j on held-out examples of class k. It needs labelled
    held-out predictions, but no calibration.

    **Leaving things alone.** "No shift" is tested: for EM by the likelihood ratio against q = π,
    scaled by N / (N + n) if `prior` counts N examples, since it and the calibration are then a
    sample too; for BBSE by a χ² test of m against A π, with the noise of both, in which classes
    that rest on too few examples are taken together. Unless that rejects at `significance`,
    `.prior` is the training prior itself. Otherwise, as the estimate of many rare classes is
    mostly noise, only the share 1 − df / statistic of the change is kept (positive-part
    James-Stein); `.probs` is the estimate without that.

    Args:
        probs: predicted probabilities on the target, shape (examples, num_classes); may be a
            memory map, which is read in chunks, once per iteration.
        prior: π, which the probabilities refer to: of the data that the model, or its
            calibrator, was fitted on.
        method: "em" or "bbse".
        source_probs: for "bbse": predictions on held-out examples of every class, in any mix,
            shape (held-out examples, num_classes).
        source_target: for "bbse": their labels.
        soft: for "bbse": True (default) uses the probabilities, False the predicted labels, in
            the estimate and in the test; the labels of a rare class that is hardly ever
            predicted say nothing about it, while its probabilities do.
        significance: level of the test, in (0, 1]; None uses the estimate without a test, so that
            `.shifted` is True whatever the data say; shrinking still applies, see `shrink`.
        shrink: whether to keep only the part of the change that is beyond noise.
        tolerance: for "em", default 1e-6: stops when the mean log-likelihood is provably
            within it of the maximum.
        max_iter: for "em", default 1000: passes over the data; running out is logged and
            leaves `.converged` False.

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
    caller = "estimate_prior"
    _checks.choice(method, METHODS, caller, name="method")
    given = score_columns(probs, caller, "probs")
    _checks.prior(prior, caller, num_classes=given.shape[1], shape=given.shape, of="probs")
    if significance is not None:
        significance = _checks.fraction(significance, caller, name="significance")
    if method == "em":
        _unused(caller, method, source_probs=source_probs, source_target=source_target, soft=soft)
        tolerance = _checks.positive(
            1e-6 if tolerance is None else tolerance, caller, name="tolerance"
        )
        max_iter = _checks.whole(1000 if max_iter is None else max_iter, caller, name="max_iter")
        mean_prediction(given, caller, "probs")
        found = by_em(given, prior, tolerance=tolerance, max_iter=max_iter)
    else:
        _unused(caller, method, tolerance=tolerance, max_iter=max_iter)
        found = by_bbse(given, prior, source_probs, source_target, soft is not False)
    return _conclude(found, prior, method, len(given), significance=significance, shrink=shrink)


def effective_prior(probs: Any, *, smoothing: float = 0.0) -> ClassPrior:
    """The prior that a model has actually learned: its mean predicted probability.

    It differs from the counts where training was regularised, resampled, reweighted or stopped
    early; adjusting by it instead of by the counts removes what the model really leans to.

    Args:
        probs: predictions on data distributed as the training data, shape (examples,
            num_classes), best held out; may be a memory map.
        smoothing: added to every class's total, as in `ClassPrior.from_counts`.

    Returns:
        A ClassPrior without counts.

    Examples:
        >>> effective_prior([[0.9, 0.1], [0.5, 0.5]])
        ClassPrior(num_classes=2, imbalance_ratio=2.33333, probs=[0.7, 0.3])
    """
    caller = "effective_prior"
    given = score_columns(probs, caller, "probs")
    smoothing = _checks.tau(smoothing, caller, name="smoothing")
    if smoothing < 0:
        raise InputError(f"{caller}: `smoothing` must not be negative; got {smoothing:g}.")
    totals = mean_prediction(given, caller, "probs", constant=True) * len(given) + smoothing
    empty = np.flatnonzero(totals == 0)
    if len(empty):
        raise InputError(
            f"{caller}: class(es) {_checks.listing(empty)} have probability 0 in every row, so "
            f"log π is infinite; pass smoothing=1.0 to count one more example of every class."
        )
    return ClassPrior.from_probs(totals / totals.sum())


def _conclude(
    found: Found,
    prior: ClassPrior,
    method: str,
    num_examples: int,
    *,
    significance: float | None,
    shrink: bool,
) -> ShiftEstimate:
    from scipy.stats import chi2

    # With no degree of freedom there is nothing to test: no prediction varies.
    p_value = float(chi2.sf(found.statistic, found.df)) if found.df else 1.0
    shifted = significance is None or p_value < significance
    strength = float(shifted)
    if shifted and shrink:
        strength = 1.0 - found.df / found.statistic if found.statistic > found.df else 0.0
    kept = prior
    if strength > 0.0:
        mixed = prior.probs + strength * (found.probs - prior.probs)
        if np.any(mixed <= 0):
            raise InputError(
                f"estimate_prior: class(es) {_checks.listing(np.flatnonzero(mixed <= 0))} have an "
                f"estimated probability of 0, whose log is infinite; leave shrink=True."
            )
        kept = ClassPrior.from_probs(mixed / mixed.sum())
    return ShiftEstimate(
        prior=kept,
        probs=found.probs,
        source=prior,
        shifted=shifted,
        strength=strength,
        statistic=found.statistic,
        df=found.df,
        p_value=p_value,
        method=method,
        num_examples=num_examples,
        iterations=found.iterations,
        converged=found.converged,
        condition=found.condition,
    )


def _unused(caller: str, method: str, **settings: Any) -> None:
    """Refuse a setting that this method would silently ignore."""
    for name, value in settings.items():
        if value is not None:
            raise InputError(
                f"{caller}: `{name}` plays no part in method={method!r}; leave it out."
            )
