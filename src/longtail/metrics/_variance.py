"""How far chance moves a mean of the classes' error rates, however few examples a class has.

`tuning` and `predictions` give standard errors by it, so that both say the same of one file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from longtail._checks import FloatArray


def mean_variance(plus: Any, minus: Any, counts: Any, share: FloatArray) -> float:
    """The variance of Σ_y share_y (plus_y − minus_y) / n_y.

    That of a class's term, p₊ + p₋ − (p₊ − p₋)² over n_y, uses rates that are drawn a little
    towards the common ones, since a class of one or two examples shows no spread of its own: one
    example's worth of the pooled rates is added to each class, and two examples, spread evenly
    over the possible outcomes, to all classes together (Agresti and Min 2005 do that for one
    class). The class that may vary most is an exception: it counts at least as it would alone,
    with both of these examples to itself. For where a few examples of one class decide, the
    pooled rates are those of others.

    Args:
        plus: events that add, per class, shape (classes,).
        minus: events that subtract; None if there is no such thing, as for a plain error.
        counts: n, examples per class, at least 1; of weighted examples, as many as tell as much.
        share: weights that sum to 1.

    Examples:
        >>> one = np.ones(1)
        >>> round(mean_variance(20 * one, None, 100 * one, one) ** 0.5, 2)
        0.04
        >>> round(mean_variance(0 * one, None, one, one) ** 0.5, 2)
        0.5
    """
    classes = len(counts)
    together = share**2 * _per_class(
        plus, minus, counts, pooled=float(classes > 1), spread=2.0 / classes
    )
    alone = share**2 * _per_class(plus, minus, counts, pooled=0.0, spread=2.0)
    # How often intervals hold the truth is simulated by benchmarks/bench_coverage.py. Without this
    # step that is far too seldom for two classes of 5,000 and 4 examples; with every class alone,
    # a hundred classes of two examples would have far too wide ones.
    most = int(np.argmax(alone))
    return float(together.sum() + max(0.0, alone[most] - together[most]))


def _per_class(plus: Any, minus: Any, counts: Any, *, pooled: float, spread: float) -> FloatArray:
    """Of each class's (plus − minus) / n, from padded rates.

    `pooled` examples with the rates of all classes together and `spread` examples, as many of
    every possible outcome, are added to each class.
    """
    padded = counts + pooled + spread

    def rate(events: Any, share_of_spread: float) -> FloatArray:
        common = events.sum() / counts.sum()
        return np.asarray((events + pooled * common + spread * share_of_spread) / padded)

    up = rate(plus, 0.5 if minus is None else 0.25)
    down = np.zeros(len(counts)) if minus is None else rate(minus, 0.25)
    # The estimated rates vary themselves, which takes n / padded² of the variance away.
    return np.asarray((up + down - (up - down) ** 2) / counts / (1.0 - counts / padded**2))
