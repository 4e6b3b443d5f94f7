"""How many training examples each class of a long-tailed data set gets.

`imbalance_ratio` is always the largest class over the smallest, at least 1 (the literature
writes the same setting as 100, 0.01 or 1/100). Which examples are taken is in `subsets`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from longtail import _checks
from longtail._checks import InputError, IntArray


def exponential_counts(largest: int, *, num_classes: int, imbalance_ratio: float) -> IntArray:
    """EXP profile: n_i = int(n_max · ρ^{−i/(L−1)}), i = 0 .. L−1, truncated.

    Args:
        largest: n_max, examples of class 0.
        num_classes: L.
        imbalance_ratio: ρ ≥ 1.

    Returns:
        Shape (num_classes,), from the most frequent class to the rarest.

    Example:
        >>> exponential_counts(5000, num_classes=10, imbalance_ratio=100)
        array([5000, 2997, 1796, 1077,  645,  387,  232,  139,   83,   50])
    """
    _check(largest, num_classes, imbalance_ratio, "exponential_counts")
    # Python's float power, not NumPy's: truncation turns a last-digit difference into a count.
    steps = max(num_classes - 1, 1)
    counts = [int(largest * imbalance_ratio ** (-i / steps)) for i in range(num_classes)]
    return _none_empty(counts, "exponential_counts")


def step_counts(largest: int, *, num_classes: int, imbalance_ratio: float) -> IntArray:
    """STEP profile: the first half of the classes whole, the others int(n_max / ρ).

    Args:
        largest: n_max.
        num_classes: L; the first L // 2 classes stay whole.
        imbalance_ratio: ρ ≥ 1.

    Returns:
        Shape (num_classes,).

    Example:
        >>> step_counts(500, num_classes=4, imbalance_ratio=100)
        array([500, 500,   5,   5])
    """
    _check(largest, num_classes, imbalance_ratio, "step_counts")
    whole = num_classes // 2
    counts = [largest] * whole + [int(largest / imbalance_ratio)] * (num_classes - whole)
    return _none_empty(counts, "step_counts")


PROFILES: dict[str, Callable[..., IntArray]] = {"exp": exponential_counts, "step": step_counts}


def profile_counts(
    profile: str, largest: int, *, num_classes: int, imbalance_ratio: float
) -> IntArray:
    """Class sizes of a named profile, `exp` or `step`.

    Example:
        >>> profile_counts("exp", 100, num_classes=3, imbalance_ratio=4)
        array([100,  50,  25])
    """
    _checks.choice(profile, list(PROFILES), "profile_counts", name="profile")
    return PROFILES[profile](largest, num_classes=num_classes, imbalance_ratio=imbalance_ratio)


def _check(largest: int, num_classes: int, imbalance_ratio: float, caller: str) -> None:
    ratio = _checks.tau(imbalance_ratio, caller, name="imbalance_ratio")
    if ratio < 1:
        raise InputError(
            f"{caller}: `imbalance_ratio` is the largest class over the smallest, at least 1; "
            f"got {ratio:g}" + (f"; did you mean {1 / ratio:g}?" if ratio > 0 else ".")
        )
    if num_classes < 1 or largest < 1:
        raise InputError(
            f"{caller}: `largest` and `num_classes` must be at least 1; "
            f"got {largest} and {num_classes}."
        )


def _none_empty(counts: list[int], caller: str) -> IntArray:
    if min(counts) < 1:
        raise InputError(
            f"{caller}: the profile leaves class {counts.index(min(counts))} without examples; "
            f"lower the imbalance ratio to {max(counts)} or less."
        )
    return np.array(counts, dtype=np.int64)
