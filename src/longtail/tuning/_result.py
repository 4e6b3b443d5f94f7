"""What tuning returns, and the checks that all of it shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from longtail import _checks
from longtail._checks import FloatArray, InputError, IntArray
from longtail.tuning._exact import TauCurve

# In effect; fewer are few. What the interval holds on either side of it is simulated by
# benchmarks/bench_coverage.py.
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

    @property
    def confidence(self) -> tuple[float, float] | None:
        """Ends of the bootstrap interval of tau, or None without replicates.

        Quantiles of the resampled taus, widened to hold `tau` and `interval`: of many taus that
        are as good resampling finds the same middle every time.
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
    def indifferent(self) -> bool:
        """Whether every tau within the bounds is equally good, as for logits of a huge scale."""
        return bool(self.interval == self.curve.bounds)

    @property
    def at_bound(self) -> bool:
        """Whether the best tau touches an end of the bounds: a better one may lie outside.

        A lower end of 0 doesn't count for the balanced error: below it the adjustment would
        favour the frequent classes.
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
        if not (self.interval[0] <= self.bounds[0] == 0 and self.bounds[1] > 0.5):
            return False
        # Two standard errors of one error: of the difference of two it is rather more.
        return self.error_at(0.5) - self.error_at(0.0) > 2.0 * self.standard_error

    @property
    def deciding_examples(self) -> float | None:
        """Effective number of held-out examples that decide, of the balanced error.

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
        return number is not None and number < ENOUGH_TO_DECIDE

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

        Examples:
            >>> from longtail import ClassPrior, tune_tau
            >>> noise = np.random.default_rng(0).normal(size=(30, 2))
            >>> target = np.repeat([0, 1], [20, 10])
            >>> prior = ClassPrior.from_counts([90, 10])
            >>> result = tune_tau(noise + np.eye(2)[target], target, prior)
            >>> result.describe(class_names=["cat", "dog"]).splitlines()[4]
            '  30 held-out examples of 2 classes, fewest 10 (class dog)'
        """
        counts = self.counts
        names = list(range(len(counts))) if class_names is None else class_names
        if len(names) != len(counts):
            raise InputError(
                f"`class_names` must have one name for each of the {len(counts)} classes; "
                f"got {len(names)}."
            )
        method = self.method.replace("_", " ")
        if self.bias_mode is not None:
            method += f", bias_mode={self.bias_mode!r}"
        lines = [f"tau = {self.tau:.4g} ({method})"]
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
        fewest = int(np.argmin(counts))
        lines.append(
            f"{int(counts.sum())} held-out examples of {len(counts)} classes, "
            f"fewest {int(counts[fewest])} (class {names[fewest]})"
        )
        missing = np.flatnonzero(counts == 0)
        if len(missing) and self.criterion == "balanced_error":
            one = len(missing) == 1
            which = f"class {names[missing[0]]} has" if one else f"{len(missing)} classes have"
            who = "it" if one else "each of them"
            lines.append(f"{which} none: the nearest class in size counts for {who} too")
        if self.confidence is not None and self.few_decide:
            number = f"{self.deciding_examples:.0f}"
            lines.append(f"in effect {number} of them decide: the interval is likely too narrow")
        if self.indifferent:
            lines.append(f"every tau within the bounds {self.bounds} is equally good")
        elif self.at_zero:
            lines.append("any adjustment makes it worse: are the counts in the order of the score")
            lines.append("columns, and were the logits not adjusted already?")
        elif self.at_bound:
            lines.append(f"the best tau touches the bounds {self.bounds}: consider wider ones")
        return "\n  ".join(lines)

    def _landmarks(self) -> list[float]:
        """The taus that everybody asks about, as far as they were searched."""
        low, high = self.curve.bounds
        return [tau for tau in (0.0, 1.0) if low <= tau <= high]

    def __str__(self) -> str:
        return self.describe()


def checked_search(
    bounds: Any, confidence: Any, n_bootstrap: Any, random_state: Any
) -> tuple[tuple[float, float], np.random.Generator]:
    """Checked bounds and the generator of the draws; the other arguments are refused or fine."""
    try:
        low, high = (_checks.tau(end, name="bounds") for end in bounds)
    except TypeError as error:
        raise InputError(
            f"`bounds` must be two numbers, lower and upper; got {bounds!r}."
        ) from error
    if low >= high:
        raise InputError(f"`bounds` must be a lower and a higher tau; got ({low:g}, {high:g}).")
    if not 0 < _checks.tau(confidence, name="confidence") < 1:
        raise InputError(
            f"`confidence` must lie in (0, 1); got {confidence:g}; pass n_bootstrap=0 for no "
            f"interval."
        )
    _checks.whole(n_bootstrap, name="n_bootstrap", at_least=0)
    if not isinstance(random_state, np.random.Generator):
        random_state = _checks.whole(random_state, name="random_state", at_least=0)
    return (low, high), np.random.default_rng(random_state)
