"""Choose tau on held-out logits, by the exact curve of the error and its bootstrap.

_exact        logits -> for each example the interval of tau in which it is right; intervals ->
              the error at every tau, its minimum, taus of resampled examples
_calibration  criteria that see tau as a temperature; `fit_temperature`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from longtail import _checks, posthoc
from longtail._checks import InputError
from longtail.priors import ClassPrior
from longtail.tuning._exact import TauCurve as TauCurve
from longtail.tuning._exact import TauIntervals as TauIntervals
from longtail.tuning._exact import bootstrap_taus
from longtail.tuning._exact import class_shares as class_shares
from longtail.tuning._result import ENOUGH_TO_DECIDE as ENOUGH_TO_DECIDE
from longtail.tuning._result import TauResult as TauResult
from longtail.tuning._result import checked_search

if TYPE_CHECKING:
    from longtail.tuning._calibration import SampledCurve as SampledCurve
    from longtail.tuning._calibration import fit_temperature as fit_temperature

Criterion = Literal["balanced_error", "log_loss", "squared_error", "ece", "sharpness"]
CRITERIA = ("balanced_error", "log_loss", "squared_error", "ece", "sharpness")
Select = Literal["bootstrap", "minimum"]
SELECT = ("bootstrap", "minimum")
Missing = Literal["error", "nearest"]

# Replicates whose mean is tau, even if no interval is asked for.
_LEAST_REPLICATES = 40


def __getattr__(name: str) -> Any:
    if name in ("SampledCurve", "fit_temperature"):  # scipy.optimize takes a while to import
        from longtail.tuning import _calibration

        return getattr(_calibration, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def tune_tau(
    logits: Any,
    target: Any,
    prior: ClassPrior,
    *,
    criterion: Criterion = "balanced_error",
    select: Select = "bootstrap",
    bounds: tuple[float, float] = (0.0, 4.0),
    target_prior: ClassPrior | None = None,
    costs: Any = None,
    sample_weight: Any = None,
    missing: Missing = "error",
    confidence: float = 0.95,
    n_bootstrap: int = 1000,
    random_state: int | np.random.Generator = 0,
) -> TauResult:
    """Choose tau on held-out data, by the exact curve of the balanced error rather than a grid.

    Example i of class y is right iff f_y − τ l_y ≥ f_j − τ l_j for all j, with l = log π: an
    interval of τ. One pass over the logits finds all intervals, and sorting their ends gives
    the error at every τ. The arithmetic is float64 whatever the logits' dtype.

    The other criteria see tau as a temperature (argmax f − τ log π = argmax f/τ − log π) and
    evaluate softmax(f/τ) for data mixed like the training data: examples are weighed so that
    classes alike in size have the prior's share, whatever the held-out data's own. Not every
    class need occur; its neighbours in size stand for it.

    Args:
        logits: f, shape (examples, num_classes), of examples the model was not trained on;
            NumPy (memory maps are read in chunks), torch or JAX. Logarithms of probabilities
            will do as well.
        target: true labels, shape (examples,), integers.
        prior: π, of the data that the model was trained on.
        criterion: "balanced_error", or by calibration "log_loss", "squared_error", "ece" (15
            bins of the top label) or "sharpness" (the highest E Σ p² among the taus whose ECE
            is within one bootstrap standard error of the least).
        select: for the balanced error, "bootstrap" takes the mean of the taus that are best on
            resampled examples, which moves less than the minimum where few rare examples decide;
            "minimum" takes the midpoint of the minimising cell nearest to 1. Both take τ = 0 alone
            if it is better than all cells, as it may be where many logits are equal.
        bounds: where to search.
        target_prior: q, if the model will meet other class frequencies than uniform ones: the
            adjustment is then f − τ (log π − log q − log c), the error weighted by q · c.
        costs: c, shape (num_classes,), positive: what an error on each class costs.
        sample_weight: shape (examples,); for the balanced error an integer weight gives the curve
            of repetition.
        missing: what to do for the balanced error about classes without held-out examples:
            "error", or let the "nearest" class in size count for them too (classes that are as
            near share evenly), as suits data that lack the largest classes; left out, those would
            have no say against a large tau.
        confidence: level of the bootstrap interval of tau.
        n_bootstrap: how many times the held-out examples are drawn again, each class by itself
            and those with fewer than 10 examples together (or, for calibration, each group of
            classes alike in size); 0 for no interval, with tau then chosen by 40. Beyond
            3 million draws in all the normal approximation of the same resampling is used. The
            interval shows how far the minimiser moves; since errors are counted, not smooth, it
            moves more slowly than 1/√n. Where few examples decide, it is likely too narrow, and
            the result says so.
        random_state: seed, or a NumPy Generator.

    Returns:
        A TauResult: `.tau`, `.interval`, `.error`, `.curve`, `.confidence`, `.counts` and more;
        print it.

    Examples:
        >>> prior = ClassPrior.from_counts([900, 90, 10])
        >>> target = np.repeat([0, 1, 2], 50)
        >>> noise = np.random.default_rng(0).normal(size=(150, 3))
        >>> logits = noise + 2.0 * np.eye(3)[target] + prior.log_probs
        >>> result = tune_tau(logits, target, prior, select="minimum")
        >>> print(result)
        tau = 0.9374 (logit adjustment)
          95% bootstrap interval 0.8356 to 1.008
          balanced error 0.1267 ± 0.028 (standard error)
          0.54 at tau = 0, 0.1533 at tau = 1
          150 held-out examples of 3 classes, fewest 50 (class 0)
        >>> [round(end, 4) for end in result.interval]
        [0.9357, 0.9391]
        >>> round(tune_tau(logits, target, prior).tau, 2)
        0.92
    """
    if np.ptp(posthoc.adjustment(prior, target_prior=target_prior, costs=costs)) == 0:
        raise InputError(
            "the prior is uniform, or the very one to adjust to, so no tau changes any "
            "prediction; if the held-out data are balanced and the training data were not, pass "
            "ClassPrior.from_counts(...) of the latter."
        )
    settings: Any = {"bounds": bounds, "confidence": confidence}
    settings |= {"n_bootstrap": n_bootstrap, "random_state": random_state}
    if _checks.choice(criterion, CRITERIA, name="criterion") != "balanced_error":
        absent = {"target_prior": target_prior, "costs": costs}
        absent["missing"] = None if missing == "error" else missing
        for name, value in absent.items():
            if value is not None:
                raise InputError(
                    f"`{name}` has no part in criterion={criterion!r}, which evaluates "
                    f"softmax(f / tau) on held-out data; leave it out, or use "
                    f"criterion='balanced_error'."
                )
        from longtail.tuning._calibration import tune_by_calibration

        return tune_by_calibration(logits, target, prior, sample_weight, criterion, **settings)
    _checks.choice(missing, ("error", "nearest"), name="missing")
    aim: Any = {"target_prior": target_prior, "costs": costs}
    parts = TauIntervals.from_logits(logits, target, prior, sample_weight=sample_weight, **aim)
    if missing == "nearest":
        parts = parts.with_stand_ins(prior)
    return tune_from_intervals(parts, select=select, **settings)


def tune_normalization(
    logits: Any,
    target: Any,
    *,
    norms: Any,
    bias: Any = None,
    bias_mode: Literal["scale", "drop"] = "scale",
    sample_weight: Any = None,
    **settings: Any,
) -> TauResult:
    """Choose tau of weight normalization, f / ν^τ, by the exact curve of the balanced error.

    Args:
        logits: f, shape (examples, num_classes), as in `tune_tau`.
        target: true labels, shape (examples,), integers.
        norms: ν, shape (num_classes,), or a ClassPrior for ν = π, as in `normalize_weights`.
        bias: the last layer's bias, which bias_mode="drop" takes out first.
        bias_mode: "scale" or "drop" as in `normalize_weights`; "keep" has no exact curve.
        sample_weight: as in `tune_tau`.
        **settings: select, bounds, confidence, n_bootstrap and random_state of
            `tune_from_intervals`.

    Returns:
        What `tune_tau` returns.

    Examples:
        >>> logits = np.array([[4.0, 3.0], [4.0, 2.5], [2.0, 3.0]])
        >>> result = tune_normalization(logits, [0, 1, 1], norms=[2.0, 1.0], select="minimum")
        >>> print(result.describe().splitlines()[0])
        tau = 0.2075 (weight normalization, bias_mode='scale')
    """
    parts = TauIntervals.from_logits(
        logits,
        target,
        ClassPrior.uniform(np.shape(logits)[-1]),
        method="weight_normalization",
        norms=norms,
        bias=bias,
        bias_mode=bias_mode,
        sample_weight=sample_weight,
    )
    return tune_from_intervals(parts, **settings)


def tune_from_intervals(
    intervals: TauIntervals,
    *,
    select: Select = "bootstrap",
    bounds: tuple[float, float] = (0.0, 4.0),
    confidence: float = 0.95,
    n_bootstrap: int = 1000,
    random_state: int | np.random.Generator = 0,
) -> TauResult:
    """Choose tau from intervals that were found elsewhere: shards, or folds with their own priors.

    The other arguments and the result are those of `tune_tau`.

    Args:
        intervals: of all held-out examples, merged; every class needs some, or another that
            stands in (`TauIntervals.with_stand_ins`).

    Examples:
        >>> logits = np.array([[2.0, 0.0], [2.0, 0.5], [1.0, 0.0], [0.0, 2.0]])
        >>> folds = [
        ...     TauIntervals.from_logits(logits[:2], [0, 1], ClassPrior.from_probs([0.9, 0.1])),
        ...     TauIntervals.from_logits(logits[2:], [0, 1], ClassPrior.from_probs([0.8, 0.2])),
        ... ]
        >>> result = tune_from_intervals(sum(folds), n_bootstrap=0)
        >>> result.interval
        (0.68..., 0.72...)
    """
    _checks.choice(select, SELECT, name="select")
    bounds, rng = checked_search(bounds, confidence, n_bootstrap, random_state)
    curve = TauCurve(intervals, bounds=bounds)
    tau, interval = curve.minimizer()
    replicates = max(n_bootstrap, _LEAST_REPLICATES) if select == "bootstrap" else n_bootstrap
    taus = bootstrap_taus(curve, replicates=replicates, rng=rng) if replicates else np.empty(0)
    if select == "bootstrap" and interval != (0.0, 0.0):  # zero alone is better than all near it
        tau = float(taus.mean())
    return TauResult(
        tau=tau,
        interval=interval,
        error=curve(tau),
        standard_error=curve.standard_error(tau),
        curve=curve,
        counts=intervals.counts,
        bounds=bounds,
        resampled=taus if n_bootstrap else np.empty(0),
        confidence_level=float(confidence),
        method=intervals.method,
        bias_mode=intervals.bias_mode,
    )
