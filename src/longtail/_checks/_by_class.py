"""One number per class: counts, weights, probabilities, in an array, a mapping or a Series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail._checks._arrays import FloatArray, IntArray, slack_of_sums, vector
from longtail._checks._errors import InputError, _by, listing


def by_label(values: Any, *, caller: str = "", name: str) -> dict[Any, Any] | None:
    """The numbers by label, if they came so: in a mapping or a Series. None: their order says all.

    A Series is known by its looks, so that pandas need not be there. Its index goes with its
    values wherever they move: `value_counts()` sorts by frequency, so that their order says nothing
    about the classes.
    """
    if isinstance(values, Mapping):
        return dict(values)
    if not (hasattr(values, "to_numpy") and hasattr(values, "index")) or callable(values.index):
        return None  # arrow's arrays have a method of that name
    if values.ndim != 1:
        return None
    labels = each_once(values.index, "index", caller=caller, name=name)
    return dict(zip(labels, values.to_numpy().tolist(), strict=True))


def each_once(labels: Iterable[Any], where: str, *, caller: str = "", name: str) -> list[Any]:
    """The labels of an `index` or of `columns`, none of which may stand there twice."""
    seen: set[Any] = set()
    for label in (labels := list(labels)):
        if label in seen:
            raise InputError(
                f"{_by(caller)}`{name}` must have one value per class, but its {where} "
                f"{'holds' if where == 'index' else 'hold'} {label!r} twice."
            )
        seen.add(label)
    return labels


def per_class(values: Any, *, caller: str = "", name: str, absent: str = "...") -> NDArray[Any]:
    """One number per class 0 .. K − 1: an array in that order, or a mapping or Series by number.

    `absent` is what a class that does not occur is worth, for the message.
    """
    found = by_label(values, caller=caller, name=name)
    if found is None:
        return vector(values, caller=caller, name=name)
    numbered = all(isinstance(key, Integral) and not isinstance(key, bool) for key in found)
    if not numbered or any(k not in found for k in range(len(found))):
        raise InputError(f"{_by(caller)}{_misplaced(values, found, numbered, name, absent)}")
    return vector([found[k] for k in range(len(found))], caller=caller, name=name)


def _misplaced(values: Any, found: dict[Any, Any], numbered: bool, name: str, absent: str) -> str:
    """Why numbers by label can't be put in the order of the classes, and what to pass instead."""
    held = listing(repr(key.item() if isinstance(key, np.generic) else key) for key in found)
    if isinstance(values, Mapping):
        rule, came = "keys", f"they hold {held}"
        ordered = f"[{name}[label] for label in classes]"
        filled = f"[{name}.get(k, {absent}) for k in range({{}})]"
    else:
        rule, came = "index", f"it holds {held}"
        ordered = f"{name}.reindex(classes).to_numpy()"
        filled = f"{name}.reindex(range({{}}), fill_value={absent})"
    advice = f"pass {ordered}, with `classes` in the order of the logits' columns"
    if numbered:
        came += f" and not {next(k for k in range(len(found)) if k not in found)}"
        filled = filled.format(max(max(found) + 1, len(found)))
        advice = f"if classes are missing, pass {filled}; if the labels are other numbers, {advice}"
    return (
        f"`{name}` is a {type(values).__name__}, so its {rule} must be the class numbers "
        f"0 .. {len(found) - 1}, in any order, but {came}; {advice}."
    )


def width(array: NDArray[Any], num_classes: int, *, caller: str = "", name: str) -> None:
    """Refuse another number of values than there are classes."""
    if len(array) != num_classes:
        raise InputError(
            f"{_by(caller)}`{name}` must have one value per class, {num_classes}; it has {len(array)}."
        )


def positive_per_class(values: Any, num_classes: int, *, caller: str = "", name: str) -> FloatArray:
    """One finite number above zero per class."""
    array = per_class(values, caller=caller, name=name).astype(np.float64)
    width(array, num_classes, caller=caller, name=name)
    bad = np.flatnonzero(~(np.isfinite(array) & (array > 0)))
    if len(bad):
        raise InputError(
            f"{_by(caller)}`{name}` must be finite and above zero, but class {int(bad[0])} has "
            f"{array[bad[0]]:g}."
        )
    return array


def counts(values: Any, *, caller: str = "", name: str = "counts") -> IntArray:
    """Whole, non-negative class counts, not all zero (float storage of whole numbers is fine)."""
    array = per_class(values, caller=caller, name=name, absent="0")
    if array.dtype.kind == "b":
        raise InputError(f"{_by(caller)}`{name}` must be numbers of examples, not booleans.")
    _finite_nonnegative(array, caller=caller, name=name)
    if array.dtype.kind == "f" and np.any(array != np.floor(array)):
        where = int(np.flatnonzero(array != np.floor(array))[0])
        raise InputError(
            f"{_by(caller)}`{name}` must be whole numbers of examples, but class {where} has "
            f"{array[where]:g}; use ClassPrior.from_weights for fractional totals, "
            f"or ClassPrior.from_probs for probabilities."
        )
    if array.dtype.kind == "f":  # half precision can't hold the bound
        array = array.astype(np.promote_types(array.dtype, np.float64))
    if np.any(array >= 2**63):
        where = int(np.flatnonzero(array >= 2**63)[0])
        raise InputError(
            f"{_by(caller)}`{name}` must be below 2**63, about 9.2e18, but class {where} has "
            f"{array[where]:g}; use ClassPrior.from_weights for totals that large."
        )
    return array.astype(np.int64)


def weights(values: Any, *, caller: str = "", name: str = "weights") -> FloatArray:
    """Non-negative class totals, not all zero, fractional allowed."""
    array = per_class(values, caller=caller, name=name, absent="0")
    _finite_nonnegative(array, caller=caller, name=name)
    return array.astype(np.float64)


def _finite_nonnegative(array: NDArray[Any], *, caller: str = "", name: str) -> None:
    if not np.all(np.isfinite(array)):
        where = int(np.flatnonzero(~np.isfinite(array))[0])
        raise InputError(
            f"{_by(caller)}`{name}` must be finite, but class {where} has {array[where]}."
        )
    if np.any(array < 0):
        where = int(np.flatnonzero(array < 0)[0])
        raise InputError(
            f"{_by(caller)}`{name}` must not be negative, but class {where} has {array[where]:g}."
        )
    if not np.any(array > 0):
        raise InputError(f"{_by(caller)}`{name}` are all zero; at least one class needs examples.")


def distribution(values: Any, *, caller: str = "", name: str = "probs") -> FloatArray:
    """One probability per class, all positive, summing to 1 within 1e-6; a copy, as they are.

    Half-precision ones, whose rounding adds up to more than that, are divided by their sum.
    """
    given = per_class(values, caller=caller, name=name)
    array = given.astype(np.float64)
    _finite_nonnegative(array, caller=caller, name=name)
    total = float(array.sum())
    if abs(total - 1.0) > slack_of_sums(given, least=1e-6):
        raise InputError(
            f"{_by(caller)}`{name}` must sum to 1, but sum to {total:g}; use "
            f"ClassPrior.from_counts for counts, ClassPrior.from_labels for labels or "
            f"ClassPrior.from_weights for totals."
        )
    if np.any(array == 0):
        raise InputError(
            f"{_by(caller)}`{name}` must be positive, but class(es) "
            f"{listing(np.flatnonzero(array == 0))} have probability 0, whose log is infinite; "
            f"give them a small probability, or leave them out of the problem."
        )
    return array if abs(total - 1.0) <= 1e-6 else array / total


def totals(
    values: Any, num_classes: int, *, caller: str = "", name: str = "counts"
) -> NDArray[Any]:
    """A copy of the classes' non-negative totals, of whatever numeric dtype came."""
    array = np.array(per_class(values, caller=caller, name=name, absent="0"))
    _finite_nonnegative(array, caller=caller, name=name)
    width(array, num_classes, caller=caller, name=name)
    return array
