"""Choose tau on held-out logits, by the exact curve of the error and its bootstrap.

_exact        logits -> for each example the interval of tau in which it is right; intervals ->
              the error at every tau, its minimum, taus of resampled examples
_calibration  criteria that see tau as a temperature; `fit_temperature`
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from longtail import _checks, posthoc
from longtail._checks import FloatArray, InputError, IntArray
from longtail.priors import ClassPrior
from longtail.tuning._calibration import SampledCurve as SampledCurve
from longtail.tuning._calibration import fit_temperature as fit_temperature
from longtail.tuning._calibration import tune_by_calibration
from longtail.tuning._exact import TauCurve as TauCurve
from longtail.tuning._exact import TauIntervals as TauIntervals
from longtail.tuning._exact import bootstrap_taus

Criterion = Literal["balanced_error", "log_loss", "squared_error", "ece", "sharpness"]
Select = Literal["bootstrap", "minimum"]
SELECT = get_args(Select)
Missing = Literal["error", "nearest"]

# Replicates whose mean is tau, even if no interval is asked for.
_LEAST_REPLICATES = 40
# Deciding examples below which they are few; benchmarks/bench_coverage.py simulates how often the
# interval holds the truth on either side of it.
ENOUGH_TO_DECIDE = 100


@dataclass(frozen=True, eq=False)
class TauResult:
    """A tau, and how it was chosen.

    Attributes:
        tau: the choice.
        interval: the minimising cell of the curve nearest to 1: no tau in it is better or worse.
        error: the criterion at `tau`. It was chosen for being low on these very examples, so
            expect a little more on others.
        standard_error: of `error` at this tau on other examples; a class that has few, or was
            all right, still adds to it.
        curve: the criterion as a function of tau; call it.
        counts: held-out examples of each class, shape (num_classes,).
        bounds: where tau was searched.
        resampled: best taus of resampled examples, shape (n_bootstrap,); see `confidence`.
        confidence_level: nominal level of `confidence`; see `few_decide`.
        criterion: what was minimised.
        method: the post-hoc method that tau is for.
        bias_mode: of weight normalization, else None.
        deciding_examples: effective number of held-out examples that decide about the balanced
            error: all of them in balanced data; little more than those of the rare classes where
            these have few, each of which moves the error by a large step. None for calibration.
    """

    tau: float
    interval: tuple[float, float]
    error: float
    standard_error: float
    curve: Any
    counts: IntArray
    bounds: tuple[float, float]
    resampled: FloatArray
    confidence_level: float
    criterion: str = "balanced_error"
    method: str = "logit_adjustment"
    bias_mode: str | None = None
    deciding_examples: float | None = None

    @property
    def confidence(self) -> tuple[float, float] | None:
        """Ends of the bootstrap interval of tau, or None without replicates.

        Quantiles of the resampled taus, widened to hold `tau` and `interval`, whose middle
        resampling may find every time.
        """
        if not len(self.resampled):
            return None
        level = self.confidence_level
        low, high = np.quantile(self.resampled, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
        ends = (self.tau, *self.interval)
        return min(float(low), *ends), max(float(high), *ends)

    def error_at(self, tau: float) -> float:
        """Return the criterion at another tau, such as 0 (no adjustment) or 1 (the theory's)."""
        return float(self.curve(_checks.tau(tau)))

    @property
    def at_bound(self) -> bool:
        """True if the best tau touches an end of the bounds, so that a better one may lie outside.

        A lower end of 0 doesn't count for the balanced error: below it the adjustment would
        favour the frequent classes.
        """
        (low, high), (least, most) = self.interval, self.curve.bounds
        below = self.criterion != "balanced_error" or self.bounds[0] != 0
        return (low <= least and below) or high >= most

    @property
    def few_decide(self) -> bool:
        """True if so few examples decide that `confidence` is likely too narrow."""
        number = self.deciding_examples
        return number is not None and number < ENOUGH_TO_DECIDE

    @property
    def doubts(self) -> list[str]:
        """Reasons to doubt the choice: few examples, a flat curve, a best tau at the bounds.

        A best tau of 0 with 0.5 clearly worse mostly means that the counts are in another order
        than the logits' columns, or that the logits were adjusted already.
        """
        found = []
        if len(self.resampled) and self.few_decide:
            number = f"{self.deciding_examples:.0f}"
            found.append(f"in effect {number} examples decide: the interval is likely too narrow")
        at_zero = self.interval[0] <= self.bounds[0] == 0 and self.bounds[1] > 0.5
        exact = self.criterion == "balanced_error" and self.method == "logit_adjustment"
        # Two standard errors of one error: of the difference of two it is rather more.
        clearly = 2.0 * self.standard_error
        if self.interval == self.curve.bounds:
            found.append(f"every tau within the bounds {self.bounds} is equally good")
        elif exact and at_zero and self.error_at(0.5) - self.error_at(0.0) > clearly:
            found.append(
                "any adjustment makes it worse; check that the counts are in the order of the "
                "score columns, and that the logits were not adjusted already"
            )
        elif self.at_bound:
            found.append(f"the best tau touches the bounds {self.bounds}: consider wider ones")
        return found

    def to_dict(self, *, curve_points: int = 0) -> dict[str, Any]:
        """Return plain numbers, lists and dicts for JSON, with the curve at `curve_points` taus."""
        out: dict[str, Any] = {
            "tau": self.tau,
            "interval": list(self.interval),
            "confidence": None if self.confidence is None else list(self.confidence),
            "confidence_level": self.confidence_level,
            "deciding_examples": self.deciding_examples,
            "error": self.error,
            "standard_error": self.standard_error,
            "error_at": {f"{tau:g}": self.error_at(tau) for tau in self._landmarks()},
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
        """Return the choice in a few lines of text, as `print` shows it.

        Args:
            class_names: one for each class, in the order of the logits' columns; their numbers if
                absent.
        """
        counts, fewest = self.counts, int(np.argmin(self.counts))
        names: Sequence[Any] = range(len(counts)) if class_names is None else class_names
        mode = "" if self.bias_mode is None else f", bias_mode={self.bias_mode!r}"
        lines = [f"tau = {self.tau:.4g} ({self.method.replace('_', ' ')}{mode})"]
        if self.confidence is not None:
            low, high = self.confidence
            lines.append(f"{self.confidence_level:.0%} bootstrap interval {low:.4g} to {high:.4g}")
        lines.append(
            f"{self.criterion.replace('_', ' ')} {self.error:.4g} ± {self.standard_error:.2g} "
            f"(standard error)"
        )
        others = [f"{self.error_at(tau):.4g} at tau = {tau:g}" for tau in self._landmarks()]
        if others:
            lines.append(", ".join(others))
        lines.append(
            f"{int(counts.sum())} held-out examples of {len(counts)} classes, "
            f"fewest {int(counts[fewest])} (class {names[fewest]})"
        )
        if not counts[fewest] and self.criterion == "balanced_error":
            missing = _checks.listing(names[k] for k in np.flatnonzero(counts == 0).tolist())
            lines.append(f"class(es) {missing} have none: the nearest in size counts for them too")
        for doubt in self.doubts:
            lines += textwrap.wrap(doubt, 78)
        return "\n  ".join(lines)

    def _landmarks(self) -> list[float]:
        """Return 0 and 1, as far as they were searched."""
        low, high = self.curve.bounds
        return [tau for tau in (0.0, 1.0) if low <= tau <= high]

    def __str__(self) -> str:
        return self.describe()


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
            "error", or let the "nearest" class in size count for them too, as suits data that
            lack the largest classes; left out, those would have no say against a large tau.
        confidence: level of the bootstrap interval of tau.
        n_bootstrap: how many times the held-out examples are drawn again, each class by itself
            and those with fewer than 10 examples together (or, for calibration, each group of
            classes alike in size); 0 for no interval, with tau then chosen by 40. Beyond
            3 million draws in all the normal approximation of the same resampling is used. Where
            few examples decide, the interval is likely too narrow, and the result says so.
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
    aim: Any = {"target_prior": target_prior, "costs": costs}
    if _checks.choice(criterion, get_args(Criterion), name="criterion") == "balanced_error":
        _checks.choice(missing, get_args(Missing), name="missing")
        parts = TauIntervals.from_logits(logits, target, prior, sample_weight=sample_weight, **aim)
        return tune_from_intervals(
            parts.with_stand_ins(prior) if missing == "nearest" else parts,
            select=select,
            bounds=bounds,
            confidence=confidence,
            n_bootstrap=n_bootstrap,
            random_state=random_state,
        )
    if missing != "error" or any(value is not None for value in aim.values()):
        raise InputError(
            f"`target_prior`, `costs` and `missing` have no part in criterion={criterion!r}, which "
            f"evaluates softmax(f / tau) on held-out data; leave them out, or use "
            f"criterion='balanced_error'."
        )
    bounds, rng = _checked_search(bounds, confidence, n_bootstrap, random_state)
    data = logits, target, prior, sample_weight
    found = tune_by_calibration(*data, criterion, bounds, n_bootstrap, rng)
    return TauResult(bounds=bounds, confidence_level=confidence, criterion=criterion, **found)


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
    head: Any = {"norms": norms, "bias": bias, "bias_mode": bias_mode}
    parts = TauIntervals.from_normalized(logits, target, sample_weight=sample_weight, **head)
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
        >>> result = tune_from_intervals(TauIntervals.merge(folds), n_bootstrap=0)
        >>> result.interval
        (0.68..., 0.72...)
    """
    _checks.choice(select, SELECT, name="select")
    bounds, rng = _checked_search(bounds, confidence, n_bootstrap, random_state)
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
        deciding_examples=intervals.deciding_examples,
    )


def _checked_search(
    bounds: Any, confidence: Any, n_bootstrap: Any, random_state: Any
) -> tuple[tuple[float, float], np.random.Generator]:
    """Return checked bounds and the generator of the draws."""
    low, high = (_checks.tau(end, name="bounds") for end in bounds)
    if low >= high:
        raise InputError(f"`bounds` must be a lower and a higher tau; got ({low:g}, {high:g}).")
    if not 0 < _checks.tau(confidence, name="confidence") < 1:
        raise InputError(
            f"`confidence` must lie in (0, 1); got {confidence:g}; pass n_bootstrap=0 for no "
            f"interval."
        )
    _checks.whole(n_bootstrap, name="n_bootstrap", at_least=0)
    return (low, high), np.random.default_rng(random_state)
