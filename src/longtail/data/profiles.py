"""Class sizes of long-tailed data sets: exponential, step and natural profiles.

EXP and STEP are made from a formula, natural profiles are read from a file of counts.
`imbalance_ratio` is always the largest class over the smallest, at least 1 (the literature
writes the same setting as 100, 0.01 or 1/100). Which examples are taken is in `subsets`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from longtail import _checks
from longtail._checks import InputError, IntArray

PROFILES = ("exp", "step")


def profile_counts(
    profile: str, largest: int, *, num_classes: int, imbalance_ratio: float
) -> IntArray:
    """Return class sizes of a named profile, from the most frequent class to the rarest.

        exp     n_i = n_max · ρ^{−i/(L−1)},  i = 0 .. L−1
        step    n_max for the first L // 2 classes, n_max / ρ for the others

    truncated to whole numbers; `largest` is n_max and `imbalance_ratio` ρ ≥ 1.

    Examples:
        >>> profile_counts("exp", 5000, num_classes=10, imbalance_ratio=100)
        array([5000, 2997, 1796, 1077,  645,  387,  232,  139,   83,   50])
        >>> profile_counts("step", 500, num_classes=4, imbalance_ratio=100)
        array([500, 500,   5,   5])
    """
    _checks.choice(profile, PROFILES, name="profile")
    if profile == "step":
        whole = num_classes // 2
        sizes = [largest] * whole + [largest / imbalance_ratio] * (num_classes - whole)
    else:
        # Python's float power, not NumPy's: truncation turns a last-digit difference into a count.
        steps = max(num_classes - 1, 1)
        sizes = [largest * imbalance_ratio ** (-i / steps) for i in range(num_classes)]
    # 49 · 49^−1 comes out as 0.999…; the guard is far below what tells real sizes apart.
    counts = [int(size * (1 + 1e-12)) for size in sizes]
    if min(counts) < 1:
        raise InputError(
            f"the profile leaves class {counts.index(min(counts))} without examples; "
            f"lower the imbalance ratio to {max(counts)} or less."
        )
    return np.array(counts, dtype=np.int64)


def check_ratio(value: Any) -> float:
    """Return an imbalance ratio: a finite number, at least 1."""
    ratio = _checks.positive(value, name="imbalance_ratio")
    if ratio < 1:
        raise InputError(
            f"`imbalance_ratio` is the largest class over the smallest, at least 1; "
            f"got {ratio:g}; did you mean {1 / ratio:g}?"
        )
    return ratio


def read_counts(path: Path | str) -> IntArray:
    """Return class sizes from a text file: whole numbers in label order, one a line.

    Spaces and commas separate numbers as well as line ends do; what follows a # is a comment.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        words = [word for line in lines for word in line.split("#")[0].replace(",", " ").split()]
        numbers = [float(word) for word in words]
    except ValueError as error:  # also bytes that are not text
        raise InputError(f"{path} must hold one number of examples a line: {error}.") from error
    return natural_counts(numbers, name=str(path))


def natural_counts(counts: Any, *, name: str = "counts") -> IntArray:
    """Return class sizes as they are given, checked: whole numbers, none of them zero."""
    found = _checks.counts(counts, name=name)
    empty = np.flatnonzero(found == 0)
    if len(empty):
        raise InputError(
            f"`{name}` leaves class(es) {_checks.listing(empty)} without examples; "
            f"every class needs one at least."
        )
    return found


def fit_counts(counts: Any, *, num_classes: int, largest: int) -> IntArray:
    """Return the shape of a natural profile at another number of classes and another size.

    Sorted from the most frequent class to the rarest, log n as a function of i/(L−1) is
    interpolated linearly and moved so that class 0 gets `largest`; sizes are rounded, to one at
    least. So the imbalance ratio stays, as far as whole numbers let it.

    Examples:
        >>> fit_counts([1000, 10, 100], num_classes=5, largest=500)
        array([500, 158,  50,  16,   5])
    """
    given = np.sort(natural_counts(counts))[::-1]
    places = np.linspace(0.0, len(given) - 1.0, num_classes)
    logs = np.interp(places, np.arange(len(given)), np.log(given / given[0]))
    sizes = np.rint(largest * np.exp(logs)).astype(np.int64)
    return np.asarray(np.maximum(sizes, 1))
