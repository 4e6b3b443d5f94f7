"""Was a fitted estimator trained on these very rows? Evidence where the estimator keeps any.

Tuning on training data flatters a classifier that has memorised them. Most estimators keep no
trace of their rows; those that do are asked, and silence means "cannot be told", never "no".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import Pipeline

from longtail._checks import FloatArray, IntArray

# Attributes under which scikit-learn's estimators keep rows of their training data.
_STORES = ("_fit_X", "X_train_", "support_vectors_", "X_")
# The most numbers that looking for evidence may touch: a look, not a second training.
_MOST_DRAWS = 10_000_000
_MOST_VALUES = 50_000_000


def evidence(estimator: Any, X: Any, labels: IntArray) -> str | None:
    """What shows that `estimator` was fitted on (rows of) `X`, in words, or None.

    Args:
        estimator: a fitted classifier, possibly in a pipeline, a search or a frozen wrapper.
        X: what its `predict` takes.
        labels: class index of each row.
    """
    if isinstance(estimator, FrozenEstimator):
        return evidence(estimator.estimator, X, labels)
    if isinstance(estimator, BaseSearchCV):
        return evidence(estimator.best_estimator_, X, labels)
    if isinstance(estimator, Pipeline):
        for _, step in estimator.steps[:-1]:
            if step in (None, "passthrough"):
                continue
            if (found := _running_means(step, X)) is not None:
                return found
            X = step.transform(X)
        return evidence(estimator.steps[-1][1], X, labels)
    rows = _dense(X)
    if rows is None or not np.all(np.isfinite(rows)):
        return None
    for witness in (_stored_rows, _leaf_counts, _class_means):
        if (found := witness(estimator, rows, labels)) is not None:
            return found
    return _stationary(estimator, X, rows, labels)


def _dense(X: Any) -> FloatArray | None:
    try:
        if np.prod(np.shape(X), dtype=float) > _MOST_VALUES:
            return None
        full: Any = X.toarray() if hasattr(X, "toarray") else X
        return np.asarray(full, dtype=np.float64)
    except (TypeError, ValueError):  # text, mixed frames, lists of words: nothing to compare
        return None


def _running_means(step: Any, X: Any) -> str | None:
    """A scaler's means and number of rows are those of `X`."""
    means: Any = getattr(step, "mean_", None)
    seen: Any = getattr(step, "n_samples_seen_", None)
    rows = _dense(X)
    if rows is None or means is None or seen is None or np.shape(means) != rows.shape[1:]:
        return None
    if np.all(np.asarray(seen) == len(rows)) and np.allclose(means, rows.mean(axis=0), rtol=1e-9):
        return f"{type(step).__name__} has counted as many rows, with the same means"
    return None


def _stored_rows(estimator: Any, rows: FloatArray, labels: IntArray) -> str | None:
    """At least half of the rows that the estimator keeps are here, or half of these are kept."""
    inner = getattr(estimator, "base_estimator_", estimator)  # Gaussian processes wrap theirs
    inner = getattr(inner, "estimators_", [inner])[0] if inner is not estimator else inner
    for name in _STORES:
        stored = _dense(getattr(inner, name, None))
        if stored is None or stored.ndim != 2 or stored.shape[1] != rows.shape[1]:
            continue
        kept, here = _as_set(stored), _as_set(rows)
        common = len(kept & here)
        if 2 * common >= min(len(kept), len(here)):
            return f"{common} of these rows are among those that it keeps in `{name}`"
    return None


def _as_set(rows: FloatArray) -> set[bytes]:
    return {row.tobytes() for row in np.ascontiguousarray(rows) + 0.0}  # + 0.0: no minus zero


def _leaf_counts(estimator: Any, rows: FloatArray, labels: IntArray) -> str | None:
    """Every leaf of its first tree holds exactly as many of these rows as in training.

    On classes that a single leaf each can hold, other rows may do so too; those tell nothing.
    """
    trees = getattr(estimator, "estimators_", None)
    first = estimator if trees is None else np.ravel(np.asarray(trees, dtype=object))[0]
    tree = getattr(first, "tree_", None)
    if tree is None or tree.n_features != rows.shape[1]:
        return None
    is_leaf = tree.children_left == -1
    drawn: NDArray[np.intp] = np.arange(len(rows))
    if trees is not None and getattr(estimator, "bootstrap", False):
        if len(trees) * len(rows) > _MOST_DRAWS:
            return None
        drawn = np.unique(estimator.estimators_samples_[0])
    if is_leaf.sum() <= len(np.unique(labels)) or drawn[-1] >= len(rows):
        return None
    seen = rows[drawn].astype(np.float32)
    counts = np.bincount(tree.apply(seen), minlength=tree.node_count)
    if np.array_equal(counts[is_leaf], tree.n_node_samples[is_leaf]) and _cut_between(first, seen):
        return f"they fill the {int(is_leaf.sum())} leaves of its tree exactly as in training"
    return None


def _cut_between(first: Any, rows: NDArray[np.float32]) -> bool:
    """The root's cut lies midway between two neighbouring values, as the best cut is made."""
    if first.splitter != "best":
        return True
    tree = first.tree_
    column, cut = rows[:, tree.feature[0]].astype(np.float64), tree.threshold[0]
    below, above = column[column <= cut].max(), column[column > cut].min()
    return bool(abs((below + above) / 2 - cut) <= 1e-3 * (above - below))


def _class_means(estimator: Any, rows: FloatArray, labels: IntArray) -> str | None:
    """Its class means (naive Bayes, discriminant analysis) are the means of these rows."""
    for name in ("theta_", "means_"):
        means = getattr(estimator, name, None)
        if means is None or np.shape(means)[1:] != rows.shape[1:]:
            continue
        present = np.unique(labels)
        own = np.stack([rows[labels == label].mean(axis=0) for label in present])
        if len(means) == len(own) and np.allclose(means, own, rtol=1e-6, atol=1e-12):
            return f"its class means `{name}` are those of these rows"
    return None


def _stationary(estimator: Any, X: Any, rows: FloatArray, labels: IntArray) -> str | None:
    """The gradient of an L2-penalised logistic regression vanishes on these rows.

    `rows` are the numbers of `X`, which is asked about itself, since it may have names of columns.

    Its minimiser satisfies coef / C = Σ_i (1[y_i = k] − p_ik) x_i. On other rows of the same kind
    the right side differs by far more than the 5% allowed here; with very many rows the solver's
    own tolerance exceeds that too, and nothing is told.
    """
    if not isinstance(estimator, LogisticRegression) or estimator.class_weight is not None:
        return None
    if estimator.penalty in ("l1", "elasticnet", None) or (estimator.l1_ratio or 0) > 0:
        return None
    residual = np.eye(len(estimator.classes_))[labels] - estimator.predict_proba(X)
    pull = residual.T @ rows
    if len(estimator.coef_) == 1:
        pull = pull[1:]
    push = estimator.coef_ / estimator.C
    if np.linalg.norm(pull - push) <= 0.05 * np.linalg.norm(push):
        return "the gradient of its training loss vanishes on them"
    return None
