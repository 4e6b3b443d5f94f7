"""One label, one row of logits or probabilities, or one weight per example."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail._checks._arrays import FloatArray, IntArray, as_numpy, row, slack_of_sums, vector
from longtail._checks._errors import InputError, _by

# Not numpy.unique, which numbers each array by the names that happen to be in it.
BY_ONE_LIST = (
    "all arrays by one list `classes` in the order of the logits' columns (scikit-learn: "
    "model.classes_): number = {name: k for k, name in enumerate(classes)}, then "
    "[number[name] for name in names]"
)


def labels(
    values: Any,
    *,
    caller: str = "",
    name: str = "target",
    num_classes: int | None = None,
) -> IntArray:
    """Integer class labels, one per example, in 0 .. num_classes - 1."""
    array = row(values, "label", "example", caller=caller, name=name)
    if array.dtype.kind not in "iu":
        hint = {
            "f": "cast them with .astype(int) if they are whole numbers",
            "b": "cast them with .astype(int) if False and True mean classes 0 and 1",
        }.get(array.dtype.kind, f"number names first, {BY_ONE_LIST}")
        raise InputError(
            f"{_by(caller)}`{name}` must be integer class labels; their dtype is {array.dtype}; "
            f"{hint}."
        )
    low, high = int(array.min()), int(array.max())
    if low < 0:
        raise InputError(
            f"{_by(caller)}`{name}` must lie in 0 .. num_classes - 1, but {low} occurs "
            f"(first at position {int(np.flatnonzero(array < 0)[0])}); "
            f"drop ignored or unlabelled examples first."
        )
    if num_classes is not None and high >= num_classes:
        raise InputError(
            f"{_by(caller)}`{name}` must lie in 0 .. {num_classes - 1}, but {high} occurs "
            f"(first at position {int(np.flatnonzero(array >= num_classes)[0])})."
        )
    return array.astype(np.int64, copy=False)


def matrix(
    values: Any, *, caller: str = "", name: str = "logits", finite: bool = True
) -> NDArray[Any]:
    """A non-empty (examples, classes) array of floats, as NumPy; memory maps stay maps."""
    array = as_numpy(values)
    if array.ndim != 2:
        raise InputError(
            f"{_by(caller)}`{name}` must have shape (examples, classes); its shape is {array.shape}."
        )
    if 0 in array.shape:
        raise InputError(f"{_by(caller)}`{name}` is empty, shape {array.shape}.")
    if array.dtype.kind not in "fiu":
        raise InputError(f"{_by(caller)}`{name}` must hold numbers; its dtype is {array.dtype}.")
    if finite:
        all_finite(array, caller=caller, name=name)
    return array


# Small beside the share of every class; with a class's own share a frequent one might win by it.
_INSTEAD_OF_LOG_0 = (
    "; if it is the logarithm of a probability of 0, take that of a small one instead: "
    "numpy.log(numpy.maximum(probs, prior.probs.min() / 10)), with the prior of the training data"
)


def all_finite(array: NDArray[Any], *, caller: str = "", name: str, first_row: int = 0) -> None:
    """Refuse NaN and infinity, naming the first place (`first_row` offsets a chunk)."""
    # A sum is one pass without a mask; only a suspicious one pays for the exact look. Its own
    # dtype is the fast one, except in half precision, where honest sums overflow.
    wide = np.float64 if array.dtype.itemsize < 4 else None
    with np.errstate(over="ignore", invalid="ignore"):
        if array.dtype.kind != "f" or math.isfinite(float(array.sum(dtype=wide))):
            return
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        place = tuple(int(i) for i in bad[0])
        raise InputError(
            f"{_by(caller)}`{name}` must be finite, but row {place[0] + first_row}, "
            f"column {place[1] if len(place) > 1 else 0} is {array[place]}"
            f"{_INSTEAD_OF_LOG_0 if name == 'logits' and array[place] < 0 else ''}."
        )


def probability_rows(
    array: NDArray[Any],
    *,
    caller: str = "",
    name: str = "probs",
    first_row: int = 0,
    hint: str = "pass them as logits instead",
) -> None:
    """Refuse rows that are not probabilities: outside [0, 1], or not summing to 1."""
    all_finite(array, caller=caller, name=name, first_row=first_row)
    low, high = float(array.min()), float(array.max())
    if low < 0 or high > 1 + 1e-6:
        worst = low if low < 0 else high
        advice = f"these look like logits: {hint}"
        if low >= -1e-6 and high <= 1 + 1e-6:
            advice = "if that is a rounding error of 0, clip them there"
        elif low >= 0 and np.all(np.abs(array.sum(axis=1, dtype=np.float64) - 100) < 1):
            advice = "these look like percentages: divide them by 100"
        raise InputError(
            f"{_by(caller)}`{name}` must lie in [0, 1], but {worst:g} occurs; {advice}."
        )
    sums = array.sum(axis=1, dtype=np.float64)
    off = np.flatnonzero(np.abs(sums - 1) > slack_of_sums(array))
    if len(off):
        raise InputError(
            f"{_by(caller)}each row of `{name}` must sum to 1, but row {int(off[0]) + first_row} "
            f"sums to {sums[off[0]]:g} ({len(off)} such rows); if they were only rounded, divide "
            f"each row by its sum."
        )


def like_probabilities(array: NDArray[Any]) -> bool:
    """Whether every row lies in [0, 1] and sums to 1."""
    if array.min() < 0 or array.max() > 1:
        return False
    sums = array.sum(axis=1, dtype=np.float64)
    return bool(np.all(np.abs(sums - 1) <= slack_of_sums(array)))


def not_probabilities(array: NDArray[Any], *, caller: str = "", hint: str) -> None:
    """Refuse "logits" whose every row is a probability vector; `hint` says how to pass those."""
    if like_probabilities(array):
        raise InputError(
            f"{_by(caller)}every row of `logits` lies in [0, 1] and sums to 1, so these look like "
            f"probabilities; {hint}. If they are logits all the same, subtract 1 from them, "
            f"which changes nothing else."
        )


def sample_weight(values: Any, num_examples: int, *, caller: str = "") -> FloatArray:
    """One finite, non-negative weight per example, not all zero."""
    array = vector(values, caller=caller, name="sample_weight").astype(np.float64)
    if len(array) != num_examples:
        raise InputError(
            f"{_by(caller)}`sample_weight` must have one value per example, {num_examples}; "
            f"it has {len(array)}."
        )
    bad = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if len(bad):
        raise InputError(
            f"{_by(caller)}`sample_weight` must be finite and not negative, but example "
            f"{int(bad[0])} has {array[bad[0]]:g}."
        )
    if not array.any():
        raise InputError(f"{_by(caller)}`sample_weight` is zero for every example.")
    return array


def same_length(array: Any, target: Any, *, caller: str = "", name: str = "logits") -> None:
    """Refuse different numbers of examples."""
    if len(array) != len(target):
        raise InputError(
            f"{_by(caller)}`{name}` has {len(array)} rows but there are {len(target)} labels."
        )
