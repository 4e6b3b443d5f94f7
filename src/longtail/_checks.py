"""Every check of user input, once; nothing here computes.

A message says, in this order: the function, the argument, the rule, what came,
and what to do next. Checks return the cleaned value, so that a caller reads
``tau = _checks.tau(tau, "adjust_logits")``.
"""

from __future__ import annotations

import importlib
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from itertools import islice
from numbers import Integral
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from longtail.priors import ClassPrior

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class InputError(ValueError):
    """A value that the caller passed breaks a rule; the message says which and what to do."""


class MissingExtraError(ImportError):
    """An optional dependency is absent; the message is the command that installs it."""


def require(module: str, *, extra: str, caller: str) -> ModuleType:
    """Import `module`, or say in one line how to install the extra that brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A broken import inside an installed package is not a missing extra.
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtraError(
            f"{caller} needs {module.split('.')[0]}, which is not installed; "
            f"run: pip install 'longtail[{extra}]'"
        ) from error


def listing(items: Iterable[object], *, most: int = 10) -> str:
    """A short, readable enumeration for messages: ``3, 7, 9 and 4 more``."""
    items = items if isinstance(items, Sized) else list(items)
    shown = ", ".join(str(item) for item in islice(items, most))
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown


def class_words(classes: Iterable[int], names: Sequence[str] | None) -> str:
    """Some classes in words, by name where they have names; nothing if there are none.

    Examples:
        >>> class_words([0, 2], None), class_words([1], ["cat", "dog"]), class_words([], None)
        ('class(es) 0, 2', 'class(es) dog', '')
    """
    found = [str(k) if names is None else names[k] for k in classes]
    return f"class(es) {listing(found)}" if found else ""


def as_numpy(values: Any) -> NDArray[Any]:
    """NumPy view or copy of a list, array, torch tensor (any device), JAX array or Series."""
    # torch, without importing it; under torch.compile a NumPy array would pass for one.
    if hasattr(values, "detach") and not isinstance(values, np.ndarray):
        values = values.detach().cpu()
        if "bfloat16" in str(values.dtype):
            values = values.float()  # NumPy has no bfloat16; float32 holds it exactly
        return np.asarray(values.numpy())
    array = np.asarray(values)
    if array.dtype.name == "bfloat16":  # JAX's own NumPy extension type
        return array.astype(np.float32)
    return array


def _row(values: Any, what: str, per: str, *, caller: str, name: str) -> NDArray[Any]:
    """A non-empty one-dimensional array, of one `what` per `per`."""
    try:
        array = as_numpy(values)
    except (ValueError, TypeError) as error:
        raise InputError(f"{caller}: `{name}` is not an array of {what}s: {error}") from error
    if array.ndim != 1:
        raise InputError(
            f"{caller}: `{name}` must be one-dimensional, one {what} per {per}; "
            f"its shape is {array.shape}."
        )
    if array.size == 0:
        raise InputError(f"{caller}: `{name}` is empty; at least one {what} is needed.")
    return array


def vector(values: Any, *, caller: str, name: str) -> NDArray[Any]:
    """A non-empty one-dimensional array of real numbers, of whatever numeric dtype came."""
    array = _row(values, "number", "class or example", caller=caller, name=name)
    if array.dtype.kind not in "iufb":
        raise InputError(
            f"{caller}: `{name}` must hold numbers; its dtype is {array.dtype}"
            f" (first value {array.flat[0]!r})."
        )
    return array


def by_label(values: Any, *, caller: str, name: str) -> dict[Any, Any] | None:
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


def each_once(labels: Iterable[Any], where: str, *, caller: str, name: str) -> list[Any]:
    """The labels of an `index` or of `columns`, none of which may stand there twice."""
    seen: set[Any] = set()
    for label in (labels := list(labels)):
        if label in seen:
            raise InputError(
                f"{caller}: `{name}` must have one value per class, but its {where} "
                f"{'holds' if where == 'index' else 'hold'} {label!r} twice."
            )
        seen.add(label)
    return labels


def per_class(values: Any, *, caller: str, name: str, absent: str = "...") -> NDArray[Any]:
    """One number per class 0 .. K − 1: an array in that order, or a mapping or Series by number.

    `absent` is what a class that does not occur is worth, for the message.
    """
    found = by_label(values, caller=caller, name=name)
    if found is None:
        return vector(values, caller=caller, name=name)
    numbered = all(isinstance(key, Integral) and not isinstance(key, bool) for key in found)
    if not numbered or any(k not in found for k in range(len(found))):
        raise InputError(f"{caller}: {_misplaced(values, found, numbered, name, absent)}")
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


def counts(values: Any, *, caller: str, name: str = "counts") -> IntArray:
    """Whole, non-negative class counts, not all zero (float storage of whole numbers is fine)."""
    array = per_class(values, caller=caller, name=name, absent="0")
    if array.dtype.kind == "b":
        raise InputError(f"{caller}: `{name}` must be numbers of examples, not booleans.")
    _finite_nonnegative(array, caller=caller, name=name)
    if array.dtype.kind == "f" and np.any(array != np.floor(array)):
        where = int(np.flatnonzero(array != np.floor(array))[0])
        raise InputError(
            f"{caller}: `{name}` must be whole numbers of examples, but class {where} has "
            f"{array[where]:g}; use ClassPrior.from_weights for fractional totals, "
            f"or ClassPrior.from_probs for probabilities."
        )
    if array.dtype.kind == "f":  # half precision can't hold the bound
        array = array.astype(np.promote_types(array.dtype, np.float64))
    if np.any(array >= 2**63):
        where = int(np.flatnonzero(array >= 2**63)[0])
        raise InputError(
            f"{caller}: `{name}` must be below 2**63, about 9.2e18, but class {where} has "
            f"{array[where]:g}; use ClassPrior.from_weights for totals that large."
        )
    return array.astype(np.int64)


def weights(values: Any, *, caller: str, name: str = "weights") -> FloatArray:
    """Non-negative class totals, not all zero, fractional allowed."""
    array = per_class(values, caller=caller, name=name, absent="0")
    _finite_nonnegative(array, caller=caller, name=name)
    return array.astype(np.float64)


def _finite_nonnegative(array: NDArray[Any], *, caller: str, name: str) -> None:
    if not np.all(np.isfinite(array)):
        where = int(np.flatnonzero(~np.isfinite(array))[0])
        raise InputError(
            f"{caller}: `{name}` must be finite, but class {where} has {array[where]}."
        )
    if np.any(array < 0):
        where = int(np.flatnonzero(array < 0)[0])
        raise InputError(
            f"{caller}: `{name}` must not be negative, but class {where} has {array[where]:g}."
        )
    if not np.any(array > 0):
        raise InputError(f"{caller}: `{name}` are all zero; at least one class needs examples.")


def distribution(values: Any, *, caller: str, name: str = "probs") -> FloatArray:
    """One probability per class, all positive, summing to 1 within 1e-6; a copy, as they are."""
    array = per_class(values, caller=caller, name=name).astype(np.float64)
    _finite_nonnegative(array, caller=caller, name=name)
    total = float(array.sum())
    if abs(total - 1.0) > 1e-6:
        raise InputError(
            f"{caller}: `{name}` must sum to 1, but sum to {total:g}; use "
            f"ClassPrior.from_counts for counts, ClassPrior.from_labels for labels or "
            f"ClassPrior.from_weights for totals."
        )
    if np.any(array == 0):
        raise InputError(
            f"{caller}: `{name}` must be positive, but class(es) "
            f"{listing(np.flatnonzero(array == 0))} have probability 0, whose log is infinite; "
            f"give them a small probability, or leave them out of the problem."
        )
    return array


def totals(values: Any, num_classes: int, *, caller: str, name: str = "counts") -> NDArray[Any]:
    """A copy of the classes' non-negative totals, of whatever numeric dtype came."""
    array = np.array(per_class(values, caller=caller, name=name, absent="0"))
    _finite_nonnegative(array, caller=caller, name=name)
    if len(array) != num_classes:
        raise InputError(
            f"{caller}: `{name}` must have one value per class, {num_classes}; it has {len(array)}."
        )
    return array


# Not numpy.unique, which numbers each array by the names that happen to be in it.
BY_ONE_LIST = (
    "all arrays by one list `classes` in the order of the logits' columns (scikit-learn: "
    "model.classes_): number = {name: k for k, name in enumerate(classes)}, then "
    "[number[name] for name in names]"
)


def labels(
    values: Any,
    *,
    caller: str,
    name: str = "target",
    num_classes: int | None = None,
) -> IntArray:
    """Integer class labels, one per example, in 0 .. num_classes - 1."""
    array = _row(values, "label", "example", caller=caller, name=name)
    if array.dtype.kind not in "iu":
        hint = {
            "f": "cast them with .astype(int) if they are whole numbers",
            "b": "cast them with .astype(int) if False and True mean classes 0 and 1",
        }.get(array.dtype.kind, f"number names first, {BY_ONE_LIST}")
        raise InputError(
            f"{caller}: `{name}` must be integer class labels; their dtype is {array.dtype}; "
            f"{hint}."
        )
    low, high = int(array.min()), int(array.max())
    if low < 0:
        raise InputError(
            f"{caller}: `{name}` must lie in 0 .. num_classes - 1, but {low} occurs "
            f"(first at position {int(np.flatnonzero(array < 0)[0])}); "
            f"drop ignored or unlabelled examples first."
        )
    if num_classes is not None and high >= num_classes:
        raise InputError(
            f"{caller}: `{name}` must lie in 0 .. {num_classes - 1}, but {high} occurs "
            f"(first at position {int(np.flatnonzero(array >= num_classes)[0])})."
        )
    return array.astype(np.int64, copy=False)


def matrix(values: Any, *, caller: str, name: str = "logits", finite: bool = True) -> NDArray[Any]:
    """A non-empty (examples, classes) array of floats, as NumPy; memory maps stay maps."""
    array = as_numpy(values)
    if array.ndim != 2:
        raise InputError(
            f"{caller}: `{name}` must have shape (examples, classes); its shape is {array.shape}."
        )
    if 0 in array.shape:
        raise InputError(f"{caller}: `{name}` is empty, shape {array.shape}.")
    if array.dtype.kind not in "fiu":
        raise InputError(f"{caller}: `{name}` must hold numbers; its dtype is {array.dtype}.")
    if finite:
        all_finite(array, caller=caller, name=name)
    return array


# Small beside the share of every class; with a class's own share a frequent one might win by it.
_INSTEAD_OF_LOG_0 = (
    "; if it is the logarithm of a probability of 0, take that of a small one instead: "
    "numpy.log(numpy.maximum(probs, prior.probs.min() / 10)), with the prior of the training data"
)


def all_finite(array: NDArray[Any], *, caller: str, name: str, first_row: int = 0) -> None:
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
            f"{caller}: `{name}` must be finite, but row {place[0] + first_row}, "
            f"column {place[1] if len(place) > 1 else 0} is {array[place]}"
            f"{_INSTEAD_OF_LOG_0 if name == 'logits' and array[place] < 0 else ''}."
        )


def probability_rows(
    array: NDArray[Any],
    *,
    caller: str,
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
        raise InputError(f"{caller}: `{name}` must lie in [0, 1], but {worst:g} occurs; {advice}.")
    sums = array.sum(axis=1, dtype=np.float64)
    off = np.flatnonzero(np.abs(sums - 1) > _slack_of_sums(array))
    if len(off):
        raise InputError(
            f"{caller}: each row of `{name}` must sum to 1, but row {int(off[0]) + first_row} "
            f"sums to {sums[off[0]]:g} ({len(off)} such rows); if they were only rounded, divide "
            f"each row by its sum."
        )


def _slack_of_sums(array: NDArray[Any]) -> float:
    """How far rows of probabilities may be from 1: half-precision ones add up their rounding."""
    own = float(np.finfo(array.dtype).eps) if array.dtype.kind == "f" else 0.0
    return max(1e-4, 4 * (2.0**-7 if _was_bfloat16(array) else own))


def _was_bfloat16(array: NDArray[Any]) -> bool:
    """Whether every value is one of bfloat16, which NumPy lacks and `as_numpy` makes float32."""
    if array.dtype != np.float32:
        return False
    bits = array.view(np.uint32)  # the upper half is bfloat16
    return not np.any(bits[0] & 0xFFFF) and not np.any(bits & 0xFFFF)


def like_probabilities(array: NDArray[Any]) -> bool:
    """Whether every row lies in [0, 1] and sums to 1."""
    if array.min() < 0 or array.max() > 1:
        return False
    sums = array.sum(axis=1, dtype=np.float64)
    return bool(np.all(np.abs(sums - 1) <= _slack_of_sums(array)))


def not_probabilities(array: NDArray[Any], *, caller: str, hint: str) -> None:
    """Refuse "logits" whose every row is a probability vector; `hint` says how to pass those."""
    if like_probabilities(array):
        raise InputError(
            f"{caller}: every row of `logits` lies in [0, 1] and sums to 1, so these look like "
            f"probabilities; {hint}. If they are logits all the same, subtract 1 from them, "
            f"which changes nothing else."
        )


def sample_weight(values: Any, num_examples: int, *, caller: str) -> FloatArray:
    """One finite, non-negative weight per example, not all zero."""
    array = vector(values, caller=caller, name="sample_weight").astype(np.float64)
    if len(array) != num_examples:
        raise InputError(
            f"{caller}: `sample_weight` must have one value per example, {num_examples}; "
            f"it has {len(array)}."
        )
    bad = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if len(bad):
        raise InputError(
            f"{caller}: `sample_weight` must be finite and not negative, but example "
            f"{int(bad[0])} has {array[bad[0]]:g}."
        )
    if not array.any():
        raise InputError(f"{caller}: `sample_weight` is zero for every example.")
    return array


def same_length(array: Any, target: Any, *, caller: str, name: str = "logits") -> None:
    """Refuse different numbers of examples."""
    if len(array) != len(target):
        raise InputError(
            f"{caller}: `{name}` has {len(array)} rows but there are {len(target)} labels."
        )


def tau(value: Any, caller: str, *, name: str = "tau") -> float:
    """A finite real number; true and false are none."""
    if isinstance(value, bool):
        raise InputError(f"{caller}: `{name}` must be a number; got {value!r}.")
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{caller}: `{name}` must be a number; got {value!r}.") from error
    if not -math.inf < number < math.inf:  # as a comparison, torch.compile can trace it
        raise InputError(f"{caller}: `{name}` must be finite; got {number}.")
    return number


def positive(value: Any, caller: str, *, name: str) -> float:
    """A finite number above zero."""
    number = tau(value, caller, name=name)
    if number <= 0:
        raise InputError(f"{caller}: `{name}` must be above zero; got {number:g}.")
    return number


def whole(value: Any, caller: str, *, name: str, at_least: int = 1) -> int:
    """A whole number, at least `at_least` (1: a count that can't be zero)."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < at_least:
        raise InputError(
            f"{caller}: `{name}` must be a whole number, at least {at_least}; got {value!r}."
        )
    return number


def fraction(value: Any, caller: str, *, name: str, below_one: bool = False) -> float:
    """A number in [0, 1], or in [0, 1) with `below_one`."""
    number = tau(value, caller, name=name)
    if number < 0 or number > 1 or (below_one and number == 1):
        raise InputError(
            f"{caller}: `{name}` must lie in [0, 1{')' if below_one else ']'}; got {number:g}."
        )
    return number


def choice(value: Any, options: Sequence[str], caller: str, *, name: str) -> str:
    """One of the listed names."""
    if value not in options:
        raise InputError(
            f"{caller}: `{name}` must be one of {', '.join(repr(o) for o in options)}; "
            f"got {value!r}."
        )
    return str(value)


def settings(
    given: Mapping[str, Any], function: Callable[..., Any], caller: str, *, of: str
) -> None:
    """Names of keyword-only arguments that `function` takes, all those without default among them.

    `of` is what the function makes, for the message.
    """
    parameters = inspect.signature(function).parameters.values()
    takes = {p.name: p.default is p.empty for p in parameters if p.kind is p.KEYWORD_ONLY}
    listed = " and ".join(f"`{name}`" for name in takes) or "no settings"
    for name in given:
        if name not in takes:
            raise InputError(f"{caller}: {of} has no setting `{name}`; it takes {listed}.")
    for name, required in takes.items():
        if required and name not in given:
            raise InputError(f"{caller}: {of} needs `{name}`, which is missing; it takes {listed}.")


def prior(
    value: Any,
    caller: str,
    *,
    num_classes: int | None = None,
    shape: tuple[int, ...] | None = None,
    name: str = "prior",
    of: str | None = None,
) -> ClassPrior:
    """A ClassPrior, as wide as the logits, or as the argument `of`, where a width is given."""
    from longtail.priors import ClassPrior

    if not isinstance(value, ClassPrior):
        raise InputError(
            f"{caller}: `{name}` must be a ClassPrior; got {type(value).__name__}. "
            f"Counts and probabilities are easily mistaken for each other, so say which: "
            f"ClassPrior.from_counts(...), .from_probs(...) or .from_labels(...)."
        )
    if num_classes is not None and value.num_classes != num_classes:
        shaped = f", shape {tuple(shape)}" if shape is not None else ""
        raise InputError(
            f"{caller}: `{name}` has {value.num_classes} classes but "
            f"{'the logits have' if of is None else f'`{of}` has'} {num_classes} columns{shaped}; "
            f"{ClassPrior._advice_on_width(value.num_classes, num_classes, shape)}."
        )
    return value
