"""Logits of a fitted classifier, and classifiers that need labels 0 .. K − 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import StackingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import Pipeline

from longtail import _checks
from longtail._checks import FloatArray, InputError
from longtail.posthoc import log_probs

METHODS = ("auto", "predict_proba", "decision_function")

# The logit of a class that a fold's classifier never saw: finite, as the exact curve asks.
NEVER = -1e30


def final_estimator(estimator: Any) -> Any:
    """Return the classifier itself, inside pipelines, searches and frozen wrappers."""
    while True:
        if isinstance(estimator, FrozenEstimator | Encoded):
            estimator = estimator.estimator
        elif isinstance(estimator, Pipeline):
            estimator = estimator.steps[-1][1]
        elif isinstance(estimator, BaseSearchCV):
            estimator = getattr(estimator, "best_estimator_", estimator.estimator)
        else:
            return estimator


def choose_method(estimator: Any, response_method: str) -> str:
    """Return the response method asked for, or the first that the estimator has."""
    wanted = METHODS[1:] if response_method == "auto" else (response_method,)
    for method in wanted:
        if hasattr(estimator, method):
            return method
    final = final_estimator(estimator)
    if isinstance(final, StackingClassifier) and final.final_estimator is None:
        return wanted[0]  # logistic regression decides, which has all, but shows none before `fit`
    raise InputError(
        f"`estimator` must have {' or '.join(wanted)}; {type(final).__name__} does not"
        f"{f' (response_method={response_method!r})' if len(wanted) == 1 else ''}."
    )


def classes_of(estimator: Any) -> NDArray[Any]:
    """Return the labels behind the columns of a fitted classifier's answers, which must be sorted.

    All of scikit-learn has them so. A prior, a target or costs in the order of the classes would
    otherwise have two meanings.
    """
    classes = np.asarray(estimator.classes_)
    if not np.all(classes[:-1] < classes[1:]):
        raise InputError(
            f"`estimator`.classes_ must be sorted, each label once, as scikit-learn's own are; "
            f"{type(final_estimator(estimator)).__name__} has "
            f"{_checks.listing(map(repr, classes.tolist()))}; set classes_ = numpy.unique(y) in "
            f"its `fit`, and give its scores a column for each class in that order."
        )
    return classes


def read_logits(estimator: Any, X: Any, method: str) -> FloatArray:
    """Return a fitted classifier's logits, finite, shape (examples, classes).

    Margins are taken as they are; the one margin d of a binary classifier becomes (−d/2, d/2).
    Probabilities become their logarithms, with 0 read as `posthoc.SMALLEST_PROB`.
    """
    num_classes = len(estimator.classes_)
    shape = getattr(final_estimator(estimator), "decision_function_shape", "ovr")
    if method == "decision_function" and shape == "ovo" and num_classes > 2:
        raise InputError(
            f"{type(final_estimator(estimator)).__name__} compares pairs of classes "
            f"(decision_function_shape='ovo'); use 'ovr', which scores classes."
        )
    found = _checks.as_numpy(getattr(estimator, method)(X))
    scores = found.astype(np.float64)
    if scores.ndim == 1 and num_classes == 2:
        scores = np.stack([-scores / 2, scores / 2], axis=1)
    if scores.ndim != 2 or scores.shape[1] != num_classes:
        raise InputError(
            f"`estimator`.{method} must give one score per class, shape (examples, "
            f"{num_classes}); it gave {scores.shape}."
        )
    if method == "decision_function":
        _checks.all_finite(scores, name="estimator.decision_function(X)")
        return scores
    # In their own type, which says how far rounding may take their sums from 1.
    own = found if found.dtype.kind == "f" else scores
    _checks.probability_rows(own, name="estimator.predict_proba(X)")
    return log_probs(scores)


class Encoded(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier fitted on the codes 0 .. K − 1 of the labels that occur."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: Any, y: Any, eval_set: Any = None, **params: Any) -> Encoded:
        """Fit the estimator on codes; those of `eval_set` are made as well."""
        self.classes_, codes = np.unique(y, return_inverse=True)
        if eval_set is not None:
            params["eval_set"] = [
                (rows, np.searchsorted(self.classes_, labels)) for rows, labels in eval_set
            ]
        self.estimator.fit(X, codes, **params)
        return self

    def __getattr__(self, name: str) -> Any:
        if name in ("predict_proba", "decision_function", "n_features_in_", "feature_names_in_"):
            return getattr(self.estimator, name)
        raise AttributeError(name)

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels, shape (examples,)."""
        return np.asarray(self.classes_[np.asarray(self.estimator.predict(X)).astype(int)])


def fit_classifier(estimator: Any, X: Any, y: NDArray[Any], params: Mapping[str, Any]) -> Any:
    """Fit a classifier; one of XGBoost, which takes labels 0 .. K − 1 alone, on codes if needed."""
    names = {cls.__module__.partition(".")[0] for cls in type(final_estimator(estimator)).__mro__}
    if "xgboost" in names and not isinstance(estimator, FrozenEstimator):
        present = np.unique(y)
        if not np.array_equal(present, np.arange(len(present))):
            estimator = Encoded(estimator)
    return estimator.fit(X, y, **params)
