"""Held-out logits in, tau out, with the whole curve behind the choice and its uncertainty.

`tune_tau` is the front door. The pass over the logits is in `_scan`, what it leaves in
`_intervals`, the curve in `_curve`, resampling in `_bootstrap`, and the criteria that see tau as a
temperature in `_calibration`; for these, `_mix` weighs examples as the training data are mixed.
`fit_temperature` is in `_temperature`. What becomes of classes without held-out examples is in
`_missing`, and how a result reads in `_text`.
Applying a tau is in `posthoc`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from longtail import _checks, posthoc
from longtail._checks import FloatArray, InputError, IntArray
from longtail.priors import ClassPrior
from longtail.tuning._bootstrap import bootstrap_taus
from longtail.tuning._calibration import CALIBRATION_CRITERIA, tune_by_calibration
from longtail.tuning._calibration import SampledCurve as SampledCurve
from longtail.tuning._curve import TauCurve as TauCurve
from longtail.tuning._intervals import METHODS as METHODS
from longtail.tuning._intervals import (
    MISSING,
    checked_examples,
    intervals,
    refuse_nothing_to_tune,
)
from longtail.tuning._intervals import Method as Method
from longtail.tuning._intervals import Missing as Missing
from longtail.tuning._intervals import TauIntervals as TauIntervals
from longtail.tuning._missing import class_shares as class_shares
from longtail.tuning._mix import in_training_mix
from longtail.tuning._temperature import fit_temperature as fit_temperature
from longtail.tuning._temperature import held_out
from longtail.tuning._text import describe, landmarks

Criterion = Literal["balanced_error", "log_loss", "squared_error", "ece", "sharpness"]
CRITERIA = ("balanced_error", *CALIBRATION_CRITERIA)

# In effect; fewer are few. What the interval holds on either side of it is simulated by
# benchmarks/bench_coverage.py.
_ENOUGH_TO_DECIDE = 100

_SOME = 0.5  # a tau that is worth its name


@dataclass(frozen=True, eq=False)
class TauResult:
    """A tau, and how it was chosen.

    Attributes:
        tau: the choice: the middle of `interval`.
        interval: the cell of minimisers that holds it: no tau in it is better or worse.
        error: the criterion at `tau`. It was chosen for being low on these very examples, so
            expect a little more on others.
        standard_error: of `error` at this tau on other examples; a class that has few, or was
            all right, still adds to it.
        confidence: ends of the bootstrap interval of tau, or None without replicates: quantiles
            of the resampled taus, and all of `interval`, which the data can't tell apart.
        confidence_level: its nominal level; see `few_decide`.
        curve: the criterion as a function of tau; call it.
        counts: held-out examples of each class, shape (num_classes,).
        criterion: what was minimised.
        method: the post-hoc method that tau is for.
        bias_mode: of weight normalization, else None.
        bounds: where tau was searched.
    """

    tau: float
    interval: tuple[float, float]
    error: float
    standard_error: float
    confidence: tuple[float, float] | None
    confidence_level: float
    curve: TauCurve | SampledCurve
    counts: IntArray
    criterion: str
    method: str
    bias_mode: str | None
    bounds: tuple[float, float]

    def error_at(self, tau: float) -> float:
        """The criterion at another tau, such as 0 (no adjustment) or 1 (the theory's)."""
        return float(self.curve(_checks.tau(tau, "TauResult.error_at")))

    @property
    def indifferent(self) -> bool:
        """Whether every tau within the bounds is equally good, as for logits of a huge scale."""
        return self.interval == self.curve.bounds

    @property
    def at_bound(self) -> bool:
        """Whether the best tau touches an end of the bounds: a better one may lie outside.

        For the balanced error a lower end of 0 is none: below it the adjustment would favour the
        frequent classes. A temperature is positive, and searched for from a little above 0 on.
        """
        (low, high), (least, most) = self.interval, self.curve.bounds
        below = self.criterion != "balanced_error" or self.bounds[0] != 0
        return (low <= least and below) or high >= most

    @property
    def at_zero(self) -> bool:
        """Whether logits are best not adjusted at all: the best tau is 0, and 0.5 clearly worse.

        That is seldom so. Counts in another order than the logits' columns may look like it, and
        logits that were adjusted already.
        """
        if self.criterion != "balanced_error" or self.method != "logit_adjustment":
            return False
        if not (self.interval[0] <= self.bounds[0] == 0 and self.bounds[1] > _SOME):
            return False
        # Two standard errors of one error: of the difference of two it is rather more.
        return self.error_at(_SOME) - self.error_at(0.0) > 2.0 * self.standard_error

    @property
    def deciding_examples(self) -> float | None:
        """How many of the held-out examples decide, in effect; None but for the balanced error.

        In balanced data it is all of them. Where rare classes have few, each of those moves the
        error by a large step, and it is little more than these.
        """
        return self.curve.intervals.deciding_examples if isinstance(self.curve, TauCurve) else None

    @property
    def few_decide(self) -> bool:
        """Whether they are so few that `confidence` is likely too narrow.

        Drawing the same few again shows too little of what others would do.
        """
        number = self.deciding_examples
        return number is not None and number < _ENOUGH_TO_DECIDE

    def to_dict(self, *, curve_points: int = 0) -> dict[str, Any]:
        """Plain numbers, lists and dicts for JSON, with the curve at `curve_points` taus."""
        out: dict[str, Any] = {
            "tau": self.tau,
            "interval": list(self.interval),
            "confidence": None if self.confidence is None else list(self.confidence),
            "confidence_level": self.confidence_level,
            "deciding_examples": self.deciding_examples,
            "error": self.error,
            "standard_error": self.standard_error,
            "error_at": {f"{tau:g}": self.error_at(tau) for tau in landmarks(self)},
            "criterion": self.criterion,
            "method": self.method,
            "bias_mode": self.bias_mode,
            "bounds": list(self.bounds),
            "at_bound": self.at_bound,
            "counts": self.counts.tolist(),
        }
        if curve_points:
            taus, errors = self.curve.sample(curve_points)
            out["curve"] = {"tau": taus.tolist(), "error": errors.tolist()}
        return out

    def describe(self, *, class_names: Sequence[str] | None = None) -> str:
        """The choice in a few lines of text, as `print` shows it; with names for the classes.

        Args:
            class_names: one for each class, in the order of the logits' columns; their numbers if
                absent.

        Examples:
            >>> noise = np.random.default_rng(0).normal(size=(30, 2))
            >>> target = np.repeat([0, 1], [20, 10])
            >>> prior = ClassPrior.from_counts([90, 10])
            >>> result = tune_tau(noise + np.eye(2)[target], target, prior)
            >>> result.describe(class_names=["cat", "dog"]).splitlines()[4]
            '  30 held-out examples of 2 classes, fewest 10 (class dog)'
        """
        if class_names is not None and len(class_names) != len(self.counts):
            raise InputError(
                f"TauResult.describe: `class_names` must have one name for each of the "
                f"{len(self.counts)} classes; got {len(class_names)}."
            )
        return describe(self, class_names)

    def __str__(self) -> str:
        return self.describe()


def tune_tau(
    logits: Any,
    target: Any,
    prior: ClassPrior,
    *,
    method: Method = "logit_adjustment",
    norms: Any = None,
    bias: Any = None,
    bias_mode: posthoc.BiasMode = "scale",
    criterion: Criterion = "balanced_error",
    bounds: tuple[float, float] = (0.0, 4.0),
    target_prior: ClassPrior | None = None,
    costs: Any = None,
    sample_weight: Any = None,
    missing: Missing = "error",
    confidence: float = 0.95,
    n_bootstrap: int = 1000,
    random_state: int | np.random.Generator = 0,
    chunk_rows: int | None = None,
) -> TauResult:
    """Choose tau on held-out data, by the exact curve of the balanced error rather than a grid.

    Example i of class y is right iff f_y − τ l_y ≥ f_j − τ l_j for all j, with l = log π: an
    interval of τ. One pass over the logits finds all intervals, and sorting their ends gives
    the error at every τ. Among the minimising cells the one nearest to 1 is taken, and its
    midpoint; or τ = 0 alone if it is better than all of them, as it may be where many logits are
    equal. The arithmetic is float64 whatever the logits' dtype.

    The other criteria see tau as a temperature (argmax f − τ log π = argmax f/τ − log π) and
    evaluate softmax(f/τ) for data mixed like the training data: examples are weighed so that
    classes alike in size have the prior's share, whatever the held-out data's own. Not every
    class need occur; its neighbours in size stand for it. (As it comes, balanced data would
    give a far too large tau.)

    Args:
        logits: f, shape (examples, num_classes), of examples the model was not trained on;
            NumPy (memory maps are read in chunks), torch or JAX. Logarithms of probabilities
            serve as well.
        target: true labels, shape (examples,), integers.
        prior: π, of the data that the model was trained on.
        method: "logit_adjustment", f − τ log π, or "weight_normalization", f / ν^τ.
        norms: ν for weight normalization, as in `normalize_weights`.
        bias: the last layer's bias, which bias_mode="drop" takes out first.
        bias_mode: "scale" or "drop" as in `normalize_weights`; "keep" has no exact curve.
        criterion: "balanced_error", or by calibration "log_loss", "squared_error", "ece" (15
            bins of the top label) or "sharpness" (the highest E Σ p² among the taus whose ECE
            is within one bootstrap standard error of the least).
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
            classes alike in size); 0 for no interval. Beyond
            3 million draws in all only examples that change near the minimum are drawn, or, if
            these are as many, the normal approximation of the same resampling is used. The
            interval shows how far the minimiser moves; since errors are counted, not smooth, it
            moves more slowly than 1/√n. Where few examples decide, it is likely too narrow, and the
            result says so.
        random_state: seed, or a NumPy Generator.
        chunk_rows: rows that are looked at together; the default suits all sizes.

    Returns:
        A TauResult: `.tau`, `.interval`, `.error`, `.curve`, `.confidence`, `.counts` and more;
        print it.

    Examples:
        >>> prior = ClassPrior.from_counts([900, 90, 10])
        >>> target = np.repeat([0, 1, 2], 50)
        >>> noise = np.random.default_rng(0).normal(size=(150, 3))
        >>> logits = noise + 2.0 * np.eye(3)[target] + prior.log_probs
        >>> result = tune_tau(logits, target, prior)
        >>> print(result)
        tau = 0.9374 (logit adjustment)
          95% bootstrap interval 0.8356 to 1.008
          balanced error 0.1267 ± 0.028 (standard error)
          0.54 at tau = 0, 0.1533 at tau = 1
          150 held-out examples of 3 classes, fewest 50 (class 0)
        >>> [round(end, 4) for end in result.interval]
        [0.9357, 0.9391]
    """
    caller = "tune_tau"
    _checks.choice(criterion, CRITERIA, caller, name="criterion")
    _checks.choice(method, METHODS, caller, name="method")
    low, high = _bounds(bounds, caller)
    settings = _Settings.checked(confidence, n_bootstrap, random_state, caller)
    _checks.choice(missing, MISSING, caller, name="missing")
    if criterion == "balanced_error":
        parts = intervals(
            logits,
            target,
            prior,
            caller=caller,
            complete=missing == "error",
            choosing=True,
            method=method,
            norms=norms,
            bias=bias,
            bias_mode=bias_mode,
            target_prior=target_prior,
            costs=costs,
            sample_weight=sample_weight,
            chunk_rows=chunk_rows,
        )
        if missing == "nearest":
            parts = parts.with_stand_ins(prior)
        return _from_intervals(parts, (low, high), settings, caller)
    unused = {
        "norms": norms,
        "bias": bias,
        "target_prior": target_prior,
        "costs": costs,
        "method": None if method == "logit_adjustment" else method,
        "missing": None if missing == "error" else missing,
    }
    _refuse_unused(unused, criterion, caller)
    return _from_calibration(
        logits, target, prior, criterion, (low, high), sample_weight, chunk_rows, settings
    )


def tune_from_intervals(
    intervals: TauIntervals,
    *,
    bounds: tuple[float, float] = (0.0, 4.0),
    confidence: float = 0.95,
    n_bootstrap: int = 1000,
    random_state: int | np.random.Generator = 0,
) -> TauResult:
    """Choose tau from intervals that were found elsewhere: shards, or folds with their own priors.

    Args:
        intervals: of all held-out examples, merged; every class needs some, or another that
            stands in (`TauIntervals.with_stand_ins`).
        bounds: as in `tune_tau`.
        confidence: as in `tune_tau`.
        n_bootstrap: as in `tune_tau`.
        random_state: as in `tune_tau`.

    Returns:
        What `tune_tau` returns.

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
    caller = "tune_from_intervals"
    if not isinstance(intervals, TauIntervals):
        raise InputError(
            f"{caller}: `intervals` must be TauIntervals, merged if there are several; "
            f"got {type(intervals).__name__}."
        )
    settings = _Settings.checked(confidence, n_bootstrap, random_state, caller)
    return _from_intervals(intervals, _bounds(bounds, caller), settings, caller)


@dataclass(frozen=True)
class _Settings:
    """How uncertainty is to be shown."""

    confidence: float
    n_bootstrap: int
    rng: np.random.Generator

    @classmethod
    def checked(
        cls, confidence: Any, n_bootstrap: Any, random_state: Any, caller: str
    ) -> _Settings:
        level = _checks.fraction(confidence, caller, name="confidence", below_one=True)
        if level == 0:
            raise InputError(
                f"{caller}: `confidence` must be above zero; got 0; pass n_bootstrap=0 for no "
                f"interval."
            )
        count = _checks.whole(n_bootstrap, caller, name="n_bootstrap", at_least=0)
        if not isinstance(random_state, np.random.Generator):
            random_state = _checks.whole(random_state, caller, name="random_state", at_least=0)
        return cls(level, count, np.random.default_rng(random_state))

    def interval(self, taus: FloatArray, best: tuple[float, float]) -> tuple[float, float] | None:
        """The quantiles of resampled taus, and the best ones where they lie outside.

        That can happen where the criterion jumps: resampling may move its minimum one way only.
        And of many that are as good it finds the same middle every time.
        """
        if self.n_bootstrap == 0:
            return None
        tail = (1.0 - self.confidence) / 2.0
        low, high = np.quantile(taus, [tail, 1.0 - tail])
        return min(float(low), best[0]), max(float(high), best[1])


def _bounds(bounds: Any, caller: str) -> tuple[float, float]:
    try:
        low, high = bounds
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{caller}: `bounds` must be two numbers, lower and upper; got {bounds!r}."
        ) from error
    low, high = (_checks.tau(end, caller, name="bounds") for end in (low, high))
    if low >= high:
        raise InputError(
            f"{caller}: `bounds` must be a lower and a higher tau; got ({low:g}, {high:g})."
        )
    return low, high


def _refuse_unused(given: dict[str, Any], criterion: str, caller: str) -> None:
    for name, value in given.items():
        if value is not None:
            raise InputError(
                f"{caller}: `{name}` has no part in criterion={criterion!r}, which evaluates "
                f"softmax(f / tau) on held-out data; leave it out, or use "
                f"criterion='balanced_error'."
            )


def _from_intervals(
    parts: TauIntervals, bounds: tuple[float, float], settings: _Settings, caller: str
) -> TauResult:
    curve = TauCurve(parts, bounds=bounds, caller=caller)
    tau, interval = curve.minimizer()
    taus = np.empty(0)
    if settings.n_bootstrap:
        taus = bootstrap_taus(curve, replicates=settings.n_bootstrap, rng=settings.rng)
    return TauResult(
        tau=tau,
        interval=interval,
        error=curve(tau),
        standard_error=curve.standard_error(tau),
        confidence=settings.interval(taus, interval),
        confidence_level=settings.confidence,
        curve=curve,
        counts=parts.counts,
        criterion="balanced_error",
        method=parts.method,
        bias_mode=parts.bias_mode,
        bounds=bounds,
    )


def _from_calibration(
    logits: Any,
    target: Any,
    prior: ClassPrior,
    criterion: str,
    bounds: tuple[float, float],
    sample_weight: Any,
    chunk_rows: int | None,
    settings: _Settings,
) -> TauResult:
    caller = "tune_tau"
    logits, target, weight = checked_examples(logits, target, prior, sample_weight, caller)
    if bounds[0] < 0 or bounds[1] <= 0:
        raise InputError(
            f"{caller}: `bounds` must not be negative for criterion={criterion!r}, where tau is "
            f"a temperature; got ({bounds[0]:g}, {bounds[1]:g})."
        )
    refuse_nothing_to_tune(prior.log_probs, caller)
    mixed, group = in_training_mix(target, prior, weight)
    data = held_out(logits, target, mixed, chunk_rows, caller, group=group)
    found = tune_by_calibration(data, criterion, bounds, settings.n_bootstrap, settings.rng)
    counted = target if weight is None else target[weight > 0]
    return TauResult(
        tau=found.tau,
        interval=(found.tau, found.tau),
        error=found.value,
        standard_error=found.standard_error,
        confidence=settings.interval(found.replicates, (found.tau, found.tau)),
        confidence_level=settings.confidence,
        curve=found.curve,
        counts=np.bincount(counted, minlength=logits.shape[1]),
        criterion=criterion,
        method="logit_adjustment",
        bias_mode=None,
        bounds=bounds,
    )
