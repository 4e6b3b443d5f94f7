"""Checks of user input: each returns the cleaned value or raises an InputError.

A message names the argument, the rule, what came and what to do next.
"""

from __future__ import annotations

import importlib
import inspect
import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from longtail.priors import ClassPrior

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# How far sums of probabilities may be from 1: half precision rounds each by up to 0.4%.
SLACK = 0.005
# 2 MB in float64: large enough to be vectorised, small enough to stay in the cache.
_CHUNK_ELEMENTS = 1 << 18

# numpy.unique would number each array by the names that it happens to hold.
BY_ONE_LIST = (
    "all arrays by one list `classes` in the order of the logits' columns (scikit-learn: "
    "model.classes_): number = {name: k for k, name in enumerate(classes)}, then "
    "[number[name] for name in names]"
)
# What to do with probabilities where logits are wanted.
TAKE_LOG = "take their logarithm, longtail.posthoc.log_probs(probs)"


class InputError(ValueError):
    """An argument breaks a rule; the message says which and what to do."""

    __module__ = "longtail"  # the public path, shown in tracebacks


class MissingExtraError(ImportError):
    """An optional dependency is absent; the message is the command that installs it."""

    __module__ = "longtail"


def listing(items: Iterable[object], *, most: int = 10) -> str:
    """Return a short enumeration for messages: ``3, 7, 9 and 4 more``."""
    items = list(items)
    shown = ", ".join(map(str, items[:most]))
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown


def class_words(classes: Iterable[int], names: Sequence[str] | None) -> str:
    """Return some classes for messages, by name where they have names; empty without any."""
    found = [str(k) if names is None else names[k] for k in classes]
    return f"class(es) {listing(found)}" if found else ""


def require(module: str, *, extra: str) -> ModuleType:
    """Import `module`, or raise with the command that installs the extra that brings it."""
    package = module.split(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A broken import inside an installed package is not a missing extra.
        if error.name is None or error.name.split(".")[0] != package:
            raise
        raise MissingExtraError(
            f"this needs {package}, which is not installed; run: pip install 'longtail[{extra}]'"
        ) from error


# --- single values ----------------------------------------------------------------------------


def tau(value: Any, *, name: str = "tau") -> float:
    """A finite real number, not a boolean."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"`{name}` must be a number; got {value!r}.") from error
    if not -math.inf < number < math.inf:  # as a comparison, torch.compile can trace it
        raise InputError(f"`{name}` must be finite; got {value}.")
    return number


def positive(value: Any, *, name: str) -> float:
    """A finite number above zero."""
    if (number := tau(value, name=name)) <= 0:
        raise InputError(f"`{name}` must be above zero; got {number:g}.")
    return number


def not_negative(value: Any, *, name: str) -> float:
    """A finite number, at least zero."""
    if (number := tau(value, name=name)) < 0:
        raise InputError(f"`{name}` must not be negative; got {number:g}.")
    return number


def fraction(value: Any, *, name: str, below_one: bool = False) -> float:
    """A number in [0, 1], or in [0, 1) with `below_one`."""
    number = tau(value, name=name)
    if number < 0 or number > 1 or (below_one and number == 1):
        raise InputError(f"`{name}` must lie in [0, 1{')' if below_one else ']'}; got {number:g}.")
    return number


def whole(value: Any, *, name: str, at_least: int = 1) -> int:
    """A whole number, at least `at_least`."""
    number = operator.index(value) if hasattr(value, "__index__") else None
    if number is None or isinstance(value, bool) or number < at_least:
        raise InputError(f"`{name}` must be a whole number, at least {at_least}; got {value!r}.")
    return number


def choice(value: Any, options: Sequence[str], *, name: str) -> str:
    """One of the listed names."""
    if value not in options:
        raise InputError(f"`{name}` must be one of {', '.join(map(repr, options))}; got {value!r}.")
    return str(value)


def settings(given: Mapping[str, Any], function: Callable[..., Any], *, of: str) -> None:
    """Keyword-only arguments that `function` takes, the required ones among them."""
    parameters = inspect.signature(function).parameters.values()
    takes = {p.name: p.default is p.empty for p in parameters if p.kind is p.KEYWORD_ONLY}
    wrong = [f"has no setting `{k}`" for k in given if k not in takes]
    wrong += [f"needs `{k}`, which is missing" for k in takes if takes[k] and k not in given]
    if wrong:
        listed = " and ".join(f"`{name}`" for name in takes) or "no settings"
        raise InputError(f"{of} {wrong[0]}; it takes {listed}.")


def prior(
    value: Any,
    *,
    num_classes: int | None = None,
    shape: tuple[int, ...] = (),
    name: str = "prior",
    of: str = "the logits have",
) -> ClassPrior:
    """A ClassPrior, as wide as the logits where a width is given."""
    from longtail.priors import ClassPrior

    if not isinstance(value, ClassPrior):
        raise InputError(
            f"`{name}` must be a ClassPrior; got {type(value).__name__}. Counts and "
            f"probabilities are easily mistaken for each other, so say which: "
            f"ClassPrior.from_counts(...), .from_probs(...) or .from_labels(...)."
        )
    if num_classes is not None and len(value.probs) != num_classes:
        shaped = f", shape {tuple(shape)}" if shape else ""
        raise InputError(
            f"`{name}` has {value.num_classes} classes but {of} {num_classes} columns{shaped}; "
            f"{advice_on_width(value.num_classes, num_classes, shape)}."
        )
    return value


def advice_on_width(num_classes: int, num_columns: int, shape: tuple[int, ...]) -> str:
    """Advice about logits whose columns are not the classes of a prior."""
    if num_classes == 2 and (num_columns == 1 or len(shape) == 1):
        return (
            "of one score d for two classes pass two columns, -d / 2 and d / 2, as "
            "numpy.c_[-d / 2, d / 2] makes them"
        )
    if len(shape) > 2 and num_classes in (shape[1], shape[-1]):
        last = shape[-1] == num_columns
        axis, move = ("last", "1, -1") if last else ("second", "-1, 1")
        return f"the classes must be the {axis} axis: moveaxis(logits, {move})"
    if num_classes < num_columns:
        return (
            f"pass num_classes={num_columns} to ClassPrior.from_labels if a class has no examples"
        )
    return "there must be one class for each column, in the same order"


# --- arrays -----------------------------------------------------------------------------------


def as_numpy(values: Any) -> NDArray[Any]:
    """NumPy view or copy of a list, array, torch tensor (any device), JAX array or Series."""
    # torch, without importing it; under torch.compile a NumPy array would pass for one.
    if hasattr(values, "detach") and not isinstance(values, np.ndarray):
        values = values.detach().cpu()
        if "bfloat16" in str(values.dtype):
            values = values.float()  # NumPy has no bfloat16; float32 holds it exactly
        return np.asarray(values.numpy())
    if np.ma.is_masked(values):
        raise InputError(
            "an array is masked, and its mask would be lost; drop the masked entries first, or "
            "give them a value with .filled(...)."
        )
    array = np.asarray(values)
    # bfloat16 is JAX's own NumPy extension type.
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def vector(values: Any, *, name: str, numbers: bool = True) -> NDArray[Any]:
    """A non-empty one-dimensional array, of real numbers unless told otherwise."""
    array = as_numpy(values)
    if array.ndim != 1:
        raise InputError(f"`{name}` must be one-dimensional; its shape is {array.shape}.")
    if array.size == 0:
        raise InputError(f"`{name}` is empty.")
    if numbers and array.dtype.kind not in "iufb":
        raise InputError(
            f"`{name}` must hold numbers; its dtype is {array.dtype} "
            f"(first value {array.flat[0]!r})."
        )
    return array


def matrix(values: Any, *, name: str = "logits", finite: bool = True) -> NDArray[Any]:
    """A non-empty (examples, classes) array of numbers, as NumPy; memory maps stay maps."""
    array = as_numpy(values)
    if array.ndim != 2:
        raise InputError(
            f"`{name}` must have shape (examples, classes); its shape is {array.shape}."
        )
    if 0 in array.shape:
        raise InputError(f"`{name}` is empty, shape {array.shape}.")
    if array.dtype.kind not in "fiu":
        raise InputError(f"`{name}` must hold numbers; its dtype is {array.dtype}.")
    if finite:
        all_finite(array, name=name)
    return array


def all_finite(array: NDArray[Any], *, name: str, first_row: int = 0) -> None:
    """Refuse NaN and infinity, naming the first place (`first_row` offsets a chunk)."""
    # One pass without a mask; only a suspicious sum pays for the exact look. Sums in half
    # precision would overflow.
    wide = np.float64 if array.dtype.itemsize < 4 else None
    with np.errstate(over="ignore", invalid="ignore"):
        if array.dtype.kind != "f" or math.isfinite(float(array.sum(dtype=wide))):
            return
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        row, column = (*bad[0].tolist(), 0)[:2]
        value = array[tuple(bad[0])]
        text = f"`{name}` must be finite, but row {row + first_row}, column {column} is {value}"
        if name == "logits" and value < 0:
            text += "; of a probability of 0 take longtail.posthoc.log_probs(probs)"
        raise InputError(f"{text}.")


def same_length(array: Any, target: Any, *, name: str = "logits") -> None:
    """Refuse different numbers of examples."""
    if len(array) != len(target):
        raise InputError(f"`{name}` has {len(array)} rows but there are {len(target)} labels.")


def _every(ok: NDArray[Any], array: NDArray[Any], rule: str, advice: str = "") -> None:
    """Refuse the first value that is not `ok`; `rule` ends in what it belongs to."""
    bad = np.flatnonzero(~ok)
    if len(bad):
        raise InputError(f"{rule} {int(bad[0])} has {array[bad[0]]:g}{advice}.")


# --- one per example --------------------------------------------------------------------------


def labels(
    values: Any, *, name: str = "target", num_classes: int | None = None, names: bool = False
) -> IntArray:
    """Integer class labels in 0 .. num_classes - 1.

    With `names` strings too, see `numbered`; and numbers that look like ids are refused, before
    memory is taken for each up to the largest.
    """
    array = vector(values, name=name, numbers=False)
    if names:
        (array,) = numbered(array, num_classes=num_classes)
    if array.dtype.kind not in "iu":
        hint = "number names first, " + BY_ONE_LIST
        if array.dtype.kind in "fb":
            hint = "cast them with .astype(int) if they are class numbers"
        raise InputError(
            f"`{name}` must be integer class labels; their dtype is {array.dtype}; {hint}."
        )
    low, high = int(array.min()), int(array.max())
    if low < 0 or (num_classes is not None and high >= num_classes):
        wrong = low if low < 0 else high
        last = "num_classes - 1" if num_classes is None else num_classes - 1
        advice = "; drop ignored or unlabelled examples first" * (low < 0)
        if low == 1 and high == num_classes:
            advice = "; if they count from 1, subtract 1 from them"
        raise InputError(
            f"`{name}` must lie in 0 .. {last}, but {wrong} occurs (first at position "
            f"{int(np.argmax(array == wrong))}){advice}."
        )
    if names and num_classes is None and high >= max(10 * len(array), 100_000):
        raise InputError(
            f"`{name}` must be class numbers, but {high} occurs among {len(array)} examples, so "
            f"they look like ids; number {BY_ONE_LIST}. If there are that many classes, pass "
            f"num_classes={high + 1}."
        )
    return array.astype(np.int64, copy=False)


def numbered(*columns: Any, num_classes: int | None = None) -> list[NDArray[Any]]:
    """Labels as NumPy; names as their places among all that occur, sorted as in scikit-learn."""
    arrays = [as_numpy(column) for column in columns]
    named = [a.dtype.kind in "UT" or (a.size > 0 and isinstance(a.flat[0], str)) for a in arrays]
    if not any(named):
        return arrays
    if not all(named):
        raise InputError(f"some labels are names and others numbers; number {BY_ONE_LIST}.")
    classes, places = np.unique(np.concatenate(arrays), return_inverse=True)
    if num_classes is not None and len(classes) != num_classes:
        raise InputError(
            f"{len(classes)} names occur among the labels, "
            f"{listing(map(repr, classes.tolist()), most=5)}, but there are {num_classes} classes; "
            f"number {BY_ONE_LIST}."
        )
    return np.split(places, np.cumsum([len(array) for array in arrays])[:-1])


def sample_weight(values: Any, num_examples: int) -> FloatArray:
    """One finite, non-negative weight per example, not all zero."""
    array = vector(values, name="sample_weight").astype(np.float64)
    if len(array) != num_examples:
        raise InputError(
            f"`sample_weight` must have one value per example, {num_examples}; it has {len(array)}."
        )
    rule = "`sample_weight` must be finite and not negative, but example"
    _every(np.isfinite(array) & (array >= 0), array, rule)
    if not array.any():
        raise InputError("`sample_weight` is zero for every example.")
    return array


# --- scores: one row per example --------------------------------------------------------------


def columns(values: Any, *, name: str = "logits", pi: Any = None) -> NDArray[Any]:
    """Scores with a column for each class (of the ClassPrior `pi`); `chunks` checks the values."""
    scores = matrix(values, name=name, finite=False)
    if pi is not None:
        of = "the logits have" if name == "logits" else f"`{name}` has"
        prior(pi, num_classes=scores.shape[1], shape=scores.shape, of=of)
    if scores.shape[1] == 1:
        raise InputError(
            f"`{name}` must have one column per class, at least two; its shape is "
            f"{scores.shape}; flatten predicted labels, and give both columns of a binary score."
        )
    return scores


def examples(
    values: Any,
    target: Any,
    *,
    name: str = "logits",
    pi: Any = None,
    weight: Any = None,
    names: bool = False,
) -> tuple[NDArray[Any], IntArray, FloatArray | None]:
    """Scores as from `columns`, labels and weights that fit together."""
    scores = columns(values, name=name, pi=pi)
    target = labels(target, num_classes=scores.shape[1], names=names)
    same_length(scores, target, name=name)
    return scores, target, None if weight is None else sample_weight(weight, len(target))


def chunks(
    scores: NDArray[Any], *, kind: str | None = "logits", name: str | None = None, hint: str = ""
) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield consecutive rows of an (examples, classes) array, a megabyte or two each, and where.

    They are found to be "logits" or "probs" as `kind` says, or just finite; None checks nothing.
    """
    step = max(1, _CHUNK_ELEMENTS // scores.shape[1])
    for start in range(0, len(scores), step):
        rows = slice(start, min(start + step, len(scores)))
        chunk = scores[rows]
        if kind == "probs":
            probability_rows(chunk, name=name or kind, first_row=start, hint=hint)
        elif kind is not None:
            all_finite(chunk, name=name or kind, first_row=start)
            if kind == "logits" and start == 0:
                not_probabilities(chunk, hint=hint or TAKE_LOG)
        yield rows, chunk


def not_probabilities(array: NDArray[Any], *, hint: str = TAKE_LOG) -> None:
    """Refuse "logits" whose rows are all probabilities; `hint` says how to pass those."""
    if array.min() < 0 or array.max() > 1:
        return
    if np.all(np.abs(array.sum(axis=1, dtype=np.float64) - 1) <= SLACK):
        raise InputError(
            f"every row of `logits` lies in [0, 1] and sums to 1, so these look like "
            f"probabilities; {hint}. If they are logits all the same, subtract 1 from them, "
            f"which changes nothing else."
        )


def probability_rows(
    array: NDArray[Any],
    *,
    name: str = "probs",
    first_row: int = 0,
    hint: str = "pass them as logits instead",
) -> None:
    """Refuse rows that are not probabilities: outside [0, 1], or not summing to 1."""
    all_finite(array, name=name, first_row=first_row)
    low, high = float(array.min()), float(array.max())
    sums = array.sum(axis=1, dtype=np.float64)
    if low < 0 or high > 1 + 1e-6:
        advice = f"these look like logits: {hint}"
        if -1e-6 <= low < 0 and high <= 1 + 1e-6:
            advice = "if that is a rounding error of 0, clip them there"
        elif low >= 0 and np.all(np.abs(sums - 100) < 1):
            advice = "these look like percentages: divide them by 100"
        raise InputError(
            f"`{name}` must lie in [0, 1], but {low if low < 0 else high:g} occurs; {advice}."
        )
    off = np.flatnonzero(np.abs(sums - 1) > SLACK)
    if len(off):
        raise InputError(
            f"each row of `{name}` must sum to 1, but row {int(off[0]) + first_row} sums to "
            f"{sums[off[0]]:g} ({len(off)} such rows); if they were only rounded, divide each "
            f"row by its sum."
        )


# --- one number per class ---------------------------------------------------------------------


def same_labels(labels: Collection[Any], classes: Collection[Any], *, name: str) -> None:
    """Refuse the labels of an index, of columns or of a mapping that are not the classes."""
    given, wanted = set(labels), set(classes)
    if len(labels) == len(given) and given == wanted:
        return
    lacking = listing(repr(k) for k in classes if k not in given) or "none"
    unknown = listing(repr(k) for k in labels if k not in wanted) or "none"
    rule = f"numbers 0 .. {len(classes) - 1}" if isinstance(classes, range) else "labels"
    raise InputError(
        f"`{name}` is read by its labels, which must be the class {rule}, each once; lacking: "
        f"{lacking}; unknown: {unknown}. Or pass an array in the order of the classes, such as "
        f"[{name}.get(k, 0) for k in classes]."
    )


def per_class(
    values: Any,
    *,
    name: str,
    num_classes: int | None = None,
    classes: Collection[Any] | None = None,
) -> NDArray[Any]:
    """One number per class: an array in the order of `classes`, or a mapping or Series by label.

    Without `classes` the labels are the class numbers 0 .. K − 1.
    """
    if classes is not None:
        num_classes = len(classes)
    if callable(getattr(values, "items", None)) and np.ndim(values) < 2:
        classes = range(num_classes or len(values)) if classes is None else classes
        same_labels(list(values.keys()), classes, name=name)
        by_label = dict(values.items())
        values = [by_label[k] for k in classes]
    array = vector(values, name=name)
    if num_classes is not None and len(array) != num_classes:
        raise InputError(
            f"`{name}` must have one value per class, {num_classes}; it has {len(array)}."
        )
    return array


def positive_per_class(values: Any, num_classes: int, *, name: str) -> FloatArray:
    """One finite number above zero per class."""
    array = per_class(values, name=name, num_classes=num_classes).astype(np.float64)
    rule = f"`{name}` must be finite and above zero, but class"
    _every(np.isfinite(array) & (array > 0), array, rule)
    return array


def totals(values: Any, *, name: str, num_classes: int | None = None) -> NDArray[Any]:
    """Finite, non-negative class totals, not all zero, of whatever numeric dtype came."""
    array = per_class(values, name=name, num_classes=num_classes)
    rule = f"`{name}` must be finite and not negative, but class"
    _every(np.isfinite(array) & (array >= 0), array, rule)
    if not array.any():
        raise InputError(f"`{name}` are all zero; at least one class needs examples.")
    return array


def counts(values: Any, *, name: str = "counts") -> IntArray:
    """Whole, non-negative class counts, not all zero (float storage of whole numbers is fine)."""
    array = totals(values, name=name)
    with np.errstate(invalid="ignore"):
        whole_ones = array.astype(np.int64)
    rule = f"`{name}` must be whole numbers of examples, but class"
    advice = "; use ClassPrior.from_weights for totals, ClassPrior.from_probs for probabilities"
    _every(whole_ones == array, array, rule, advice)
    return whole_ones


def distribution(values: Any, *, name: str = "probs") -> FloatArray:
    """One probability per class, all positive, summing to 1; divided by a sum that is not quite."""
    array = totals(values, name=name).astype(np.float64)
    total = float(array.sum())
    if abs(total - 1.0) > SLACK:
        raise InputError(
            f"`{name}` must sum to 1, but sum to {total:g}; use ClassPrior.from_counts for counts "
            f"or ClassPrior.from_weights for totals."
        )
    empty = np.flatnonzero(array == 0)
    if len(empty):
        raise InputError(
            f"`{name}` must be positive, but class(es) {listing(empty)} have 0, whose log is "
            f"infinite; give them a small value, or leave them out of the problem."
        )
    return array if abs(total - 1.0) <= 1e-6 else array / total
