"""Logits of a fitted classifier, and classifiers that need labels 0 .. K − 1."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import Pipeline

from longtail import _checks
from longtail._checks import FloatArray, InputError
from longtail.posthoc import log_probs

METHODS = ("predict_proba", "decision_function")
# The logit of a class that a classifier never saw: finite, as the exact curve asks.
NEVER = -1e30

# The attribute of a linear classifier that holds the record of what `bake` changed, a JSON text;
# and what baking changes, by the record's names.
BAKED = "longtail_baked_"
PARTS = {"weight": "coef_", "bias": "intercept_"}


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


def response_of(estimator: Any, response_method: str) -> str:
    """Return the method by which a fitted classifier gives a score for each of its classes."""
    final = final_estimator(estimator)
    name = type(final).__name__
    wanted = METHODS if response_method == "auto" else (response_method,)
    found = next((method for method in wanted if hasattr(estimator, method)), None)
    if found is None:
        raise InputError(f"`estimator` must have {' or '.join(wanted)}; {name} does not.")
    classes = np.asarray(estimator.classes_)
    if not np.all(classes[:-1] < classes[1:]):
        raise InputError(
            f"`estimator`.classes_ must be sorted, as scikit-learn's own are, since priors and "
            f"costs go by their order; {name} has {_checks.listing(map(repr, classes.tolist()))}."
        )
    pairs = getattr(final, "decision_function_shape", "ovr") == "ovo" and len(classes) > 2
    if pairs and found == "decision_function":
        raise InputError(
            f"{name} compares pairs of classes (decision_function_shape='ovo'); use 'ovr', which "
            f"scores classes."
        )
    return found


def read_logits(estimator: Any, X: Any, method: str, classes: NDArray[Any]) -> FloatArray:
    """Return a fitted classifier's logits, finite, shape (examples, classes).

    Margins are taken as they are; the one margin d of a binary classifier becomes (−d/2, d/2).
    Probabilities become their logarithms, with 0 read as `posthoc.SMALLEST_PROB`. Classes that
    the classifier never saw get NEVER.
    """
    scores = _checks.as_numpy(getattr(estimator, method)(X))
    if method == "predict_proba":
        # In their own dtype, which says how far rounding may take their sums from 1.
        _checks.probability_rows(scores, name="estimator.predict_proba(X)")
        logits = log_probs(scores)
    else:
        _checks.all_finite(scores, name="estimator.decision_function(X)")
        logits = scores.astype(np.float64)
        if logits.ndim == 1:
            logits = np.stack([-logits / 2, logits / 2], axis=1)
    if len(estimator.classes_) == len(classes):
        return logits
    padded = np.full((len(logits), len(classes)), NEVER)
    padded[:, np.searchsorted(classes, estimator.classes_)] = logits
    return padded


def fit_classifier(estimator: Any, X: Any, y: NDArray[Any], params: Mapping[str, Any]) -> Any:
    """Fit a classifier; one of XGBoost, which takes labels 0 .. K − 1 alone, on codes if needed."""
    homes = {cls.__module__.split(".")[0] for cls in type(final_estimator(estimator)).__mro__}
    present = np.unique(y)
    if "xgboost" in homes and not np.array_equal(present, np.arange(len(present))):
        estimator = Encoded(estimator)
    return estimator.fit(X, y, **params)


class Encoded(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier fitted on the codes 0 .. K − 1 of the labels that occur."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: Any, y: Any, eval_set: Any = None, **params: Any) -> Encoded:
        """Fit the estimator on codes, with those of `eval_set`."""
        self.classes_, codes = np.unique(y, return_inverse=True)
        if eval_set is not None:
            params["eval_set"] = [
                (rows, np.searchsorted(self.classes_, labels)) for rows, labels in eval_set
            ]
        self.estimator.fit(X, codes, **params)
        return self

    def __getattr__(self, name: str) -> Any:
        if name in (*METHODS, "n_features_in_", "feature_names_in_"):
            return getattr(self.estimator, name)
        raise AttributeError(name)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return labels, shape (examples,)."""
        return np.asarray(self.classes_[np.asarray(self.estimator.predict(X)).astype(int)])


def is_intact(classifier: Any, digests: Mapping[str, str]) -> bool:
    """Return whether coefficients are still those that were baked, given their SHA-256."""
    return all(
        hashlib.sha256(np.asarray(getattr(classifier, PARTS[part])).tobytes()).hexdigest() == digest
        for part, digest in digests.items()
    )


def baked_tau(classifier: Any) -> float | None:
    """Return the tau of the logit adjustment that is baked into a classifier, if any."""
    record = json.loads(getattr(classifier, BAKED, "{}"))
    if record.get("method") != "logit_adjustment":
        return None
    settings = record["settings"]
    adjusts = settings.get("target_prior") != settings["prior"] or "costs" in settings
    intact = adjusts and is_intact(classifier, record["undo"]["baked"])
    return float(record["tau"]) if intact else None
