"""Error rates before and after an adjustment, averaged over classes, with confidence intervals."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

from longtail._checks import FloatArray, IntArray
from longtail.metrics import mean_variance


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error and the ends of its confidence interval."""

    value: float
    standard_error: float
    low: float
    high: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers for JSON."""
        ends = [self.low, self.high]
        return {"value": self.value, "standard_error": self.standard_error, "interval": ends}


@dataclass(frozen=True)
class Change:
    """An error before and after, and the difference, which is paired by example.

    Attributes:
        before: the error without adjustment.
        after: with it.
        difference: after − before; negative is better.
        num_classes: how many classes it is averaged over.
        num_examples: how many examples it was counted on.
    """

    before: Estimate
    after: Estimate
    difference: Estimate
    num_classes: int
    num_examples: int

    @property
    def beyond_noise(self) -> bool:
        """True if the difference's interval excludes zero."""
        return self.difference.low > 0 or self.difference.high < 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers for JSON."""
        numbers = {
            name: getattr(self, name).to_dict() for name in ("before", "after", "difference")
        }
        return asdict(self) | numbers


@dataclass(frozen=True, eq=False)
class Tally:
    """Judged examples by class; every array has shape (num_classes,).

    Attributes:
        counts: judged examples.
        wrong: of these, wrong before.
        fixed: wrong before and right after.
        broken: right before and wrong after.
        level: of the confidence intervals.
    """

    counts: IntArray
    wrong: IntArray
    fixed: IntArray
    broken: IntArray
    level: float = field(kw_only=True)

    def change(self, weight: Any) -> Change:
        """Return Σ_y w_y wrong_y / n_y before and after, with w scaled to sum to 1.

        Args:
            weight: w, shape (num_classes,); zero leaves a class out.
        """
        weight = np.asarray(weight, dtype=np.float64)
        some = np.flatnonzero((weight > 0) & (self.counts > 0))
        counts, wrong = self.counts[some], self.wrong[some]
        fixed, broken = self.fixed[some], self.broken[some]
        share = weight[some] / weight[some].sum()
        return Change(
            before=estimate(wrong, None, counts, share, level=self.level),
            after=estimate(wrong - fixed + broken, None, counts, share, level=self.level),
            difference=estimate(broken, fixed, counts, share, level=self.level),
            num_classes=len(some),
            num_examples=int(counts.sum()),
        )


def estimate(
    plus: IntArray, minus: IntArray | None, counts: IntArray, share: FloatArray, *, level: float
) -> Estimate:
    """Return Σ_y share_y (plus_y − minus_y) / n_y, with a normal interval cut to what is possible.

    Few examples widen the interval instead of closing it (`mean_variance`).

    Args:
        plus: events that add, per class, shape (classes,).
        minus: events that subtract; None for a plain error.
        counts: n, examples per class, at least 1.
        share: weights that sum to 1.
        level: of the interval.
    """
    net = plus if minus is None else plus - minus
    value = float(np.sum(share * net / counts))
    error = float(np.sqrt(mean_variance(plus, minus, counts, share)))
    reach = NormalDist().inv_cdf(0.5 + level / 2) * error
    least = 0.0 if minus is None else -1.0
    return Estimate(value, error, max(least, value - reach), min(1.0, value + reach))
