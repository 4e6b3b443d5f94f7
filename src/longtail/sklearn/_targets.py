"""What a user said about labels, weights, priors, targets and costs in, checked arrays out.

Vectors are in the order of the fitted `classes_`, or dictionaries or Series by label.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import column_or_1d

from longtail import _checks
from longtail._checks import FloatArray, InputError, IntArray
from longtail.priors import ClassPrior


def check_labels(y: Any, *, caller: str) -> NDArray[Any]:
    """One label per example, as an array; at least two classes."""
    if y is None:
        raise InputError(f"{caller} requires y to be passed, but the target y is None.")
    _refuse_missing(y, caller=caller)
    check_classification_targets(y)
    if type_of_target(y, input_name="y") not in ("binary", "multiclass"):
        raise InputError(
            f"{caller}: `y` must hold one label per example; "
            f"its type is {type_of_target(y)!r}, which is not supported."
        )
    return np.asarray(column_or_1d(y, warn=True))


def _refuse_missing(y: Any, *, caller: str) -> None:
    """Refuse names some of which are missing; of numbers scikit-learn says so itself."""
    try:
        names = np.asarray(y)
    except ValueError:  # rows of different lengths, which scikit-learn refuses
        return
    if isinstance(y, list | tuple) and names.dtype.kind == "U":
        names = np.asarray(y, dtype=object)  # else a NaN is the text "nan" by now
    if names.dtype != object or names.shape[:1] != (names.size,):  # a vector, or a column
        return
    rows = [row for row, name in enumerate(names.ravel()) if _is_missing(name)]
    if rows:
        raise InputError(
            f"{caller}: `y` has no label at row {rows[0]} ({len(rows)} such row(s)); drop these "
            f"rows from `X` and `y`."
        )


def _is_missing(name: Any) -> bool:
    """Whether it is None, NaN or what pandas has for them."""
    if name is None:
        return True
    try:
        return not isinstance(name, str) and bool(name != name)
    except TypeError:  # pandas.NA is neither equal nor unequal to itself
        return True
    except ValueError:  # an array in place of a label, which scikit-learn refuses
        return False


def at_least_two(labels: NDArray[Any], *, caller: str) -> None:
    """Refuse a single class: there is nothing to adjust."""
    if len(labels) == 0:
        raise InputError(f"{caller}: `X` and `y` are empty; at least two examples are needed.")
    present = np.unique(labels)
    if len(present) < 2:
        raise InputError(
            f"{caller}: `y` must hold at least two classes, but only one class has examples with "
            f"positive weight: {present.tolist()[0]!r} (n_samples = {len(labels)}); "
            f"add examples of another."
        )


def encode(labels: NDArray[Any], classes: NDArray[Any], *, caller: str) -> IntArray:
    """Index of each label in `classes`; a label that the estimator never saw is refused."""
    known = np.isin(labels, classes)
    if not np.all(known):
        raise InputError(
            f"{caller}: `y` holds classes that the estimator was not trained on: "
            f"{_checks.listing(repr(c) for c in np.unique(labels[~known]).tolist())}; "
            f"drop these rows, or fit the estimator on data that has them."
        )
    return np.searchsorted(classes, labels).astype(np.int64)


def totals(codes: IntArray, weight: FloatArray | None, num_classes: int) -> NDArray[Any]:
    """Examples, or summed weights, per class."""
    return np.bincount(codes, weights=weight, minlength=num_classes)


def prior_of(codes: IntArray, weight: FloatArray | None, num_classes: int) -> ClassPrior:
    """The prior of encoded labels, counted or weighted; every class must occur."""
    counted = totals(codes, weight, num_classes)
    return ClassPrior.from_counts(counted) if weight is None else ClassPrior.from_weights(counted)


def by_class(values: Any, classes: NDArray[Any], *, caller: str, name: str) -> NDArray[Any]:
    """One number per class, from an array in the order of `classes`, or a dict or Series by label.

    A Series is the dict that it stands for.
    """
    found = _checks.by_label(values, caller=caller, name=name)
    if found is not None:
        _same_labels(found, classes, caller=caller, name=name, pandas=hasattr(values, "to_numpy"))
        values = [found[label] for label in classes.tolist()]
    array = _checks.vector(values, caller=caller, name=name)
    if len(array) != len(classes):
        raise InputError(
            f"{caller}: `{name}` must have one value per class; it has {len(array)} values but "
            f"there are {len(classes)} classes: {_checks.listing(map(repr, classes.tolist()))}."
        )
    return array


def _same_labels(
    given: Collection[Any], classes: NDArray[Any], *, caller: str, name: str, pandas: bool
) -> None:
    """Refuse labels that are not those of `classes`, each of them."""
    labels = classes.tolist()
    known = set(labels)
    lacking = [label for label in labels if label not in given]
    extra = [label for label in given if label not in known]
    if lacking or extra:
        way_out = ""
        if pandas:
            way_out = (
                f" It is read by its labels and not by position; pass {name}.to_numpy() if it is "
                f"in the order of the sorted classes."
            )
        raise InputError(
            f"{caller}: `{name}` must give a value to each class and to nothing else; "
            f"lacking: {_checks.listing(map(repr, lacking)) or 'none'}; "
            f"unknown: {_checks.listing(map(repr, extra)) or 'none'}.{way_out}"
        )


def given_prior(value: Any, classes: NDArray[Any], *, caller: str, name: str) -> ClassPrior:
    """A ClassPrior that was passed, or made from probabilities that were."""
    if isinstance(value, ClassPrior):
        by_class(value.probs, classes, caller=caller, name=name)
        return value
    probs = by_class(value, classes, caller=caller, name=name)
    return ClassPrior.from_probs(_checks.distribution(probs, caller=caller, name=name))


def target_prior(
    value: Any, prior: ClassPrior, classes: NDArray[Any], *, caller: str
) -> ClassPrior:
    """The class frequencies to predict for: uniform, those of training, or as given."""
    if isinstance(value, str):
        _checks.choice(value, ("balanced", "train"), caller, name="target")
        return ClassPrior.uniform(len(classes)) if value == "balanced" else prior
    return given_prior(value, classes, caller=caller, name="target")


def check_costs(value: Any, classes: NDArray[Any], *, caller: str) -> FloatArray | None:
    """Costs per true class, shape (L,), or per true and predicted class, shape (L, L)."""
    if value is None:
        return None
    if not isinstance(value, Mapping) and np.ndim(value) == 2:
        matrix = _checks.matrix(value, caller=caller, name="costs").astype(np.float64)
        if hasattr(value, "index") and hasattr(value, "columns"):
            matrix = _table(matrix, value.index, value.columns, classes, caller=caller)
        if matrix.shape != (len(classes), len(classes)):
            raise InputError(
                f"{caller}: a cost matrix must have one row per true class and one column per "
                f"predicted class, shape ({len(classes)}, {len(classes)}); "
                f"its shape is {matrix.shape}."
            )
        return matrix
    vector = by_class(value, classes, caller=caller, name="costs").astype(np.float64)
    if not np.all(np.isfinite(vector) & (vector > 0)):
        where = int(np.flatnonzero(~(np.isfinite(vector) & (vector > 0)))[0])
        raise InputError(
            f"{caller}: `costs` per class must be finite and above zero, but class "
            f"{classes.tolist()[where]!r} has {vector[where]:g}."
        )
    return vector


def _table(
    matrix: FloatArray,
    index: Iterable[Any],
    columns: Iterable[Any],
    classes: NDArray[Any],
    *,
    caller: str,
) -> FloatArray:
    """A DataFrame's costs, rows (true) and columns (predicted) in the order of `classes`."""
    places = []
    for where, labels in (("index", index), ("columns", columns)):
        given = _checks.each_once(labels, where, caller=caller, name="costs")
        place = {label: k for k, label in enumerate(given)}
        _same_labels(place, classes, caller=caller, name="costs", pandas=True)
        places.append([place[label] for label in classes.tolist()])
    return matrix[np.ix_(*places)]
