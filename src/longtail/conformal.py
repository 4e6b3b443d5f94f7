"""Prediction sets that cover rare classes too: held-out logits -> sets with the coverage asked for.

A class y is in the set of x if its score is at most the class's threshold,

    s(x, y) = −log softmax(f(x) − τ log π)_y  <=  q_y,

with thresholds from held-out examples (split conformal prediction). With the method "macro" the
mean of the classes' own coverages is what was asked for, however rare a class is.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin
from sklearn.utils import column_or_1d
from sklearn.utils.validation import check_is_fitted

from longtail import _checks, posthoc
from longtail._checks import FloatArray, InputError, IntArray
from longtail.priors import ClassPrior

__all__ = ["PredictionSetClassifier", "PredictionSets", "SetEvaluation"]

METHODS = ("macro", "marginal", "classwise", "clustered", "interpolated")
# Held-out examples that a cluster has at least, and n_y at which "interpolated" takes the mean.
CLUSTER_EXAMPLES = 100
SHRINKAGE = 50.0
# Of the intervals of an evaluation.
LEVEL = 0.95
BoolArray = NDArray[np.bool_]


class PredictionSets:
    """Sets of classes that hold the true one as often as asked for.

    Held-out example i of class y scores s_i = s(x_i, y) and weighs w_i = 1 / (L n_y), so that
    all classes together weigh as much as in the balanced error. The threshold is the weighted
    quantile of the scores, with the test example's own weight at infinity:

        macro          q_y = least q with  Σ_i w_i [s_i <= q]  >=  (1 − α) (1 + 1 / (L n_y))
        marginal       the same with w_i = 1 / n: the usual split-conformal threshold
        classwise      the usual threshold of each class's own examples; infinite with fewer than
                       (1 − α) / α of them
        clustered      "macro" within clusters: neighbours in training frequency, joined until
                       they have 100 held-out examples
        interpolated   λ_y q_y(classwise) + (1 − λ_y) q_y(macro),  λ_y = n_y / (n_y + 50), and
                       the macro one where the classwise one is infinite

    Args:
        coverage: 1 − α, what is asked for.
        method: where the thresholds come from.
        tau: τ of the score; 0 for the plain softmax score, or for logits adjusted already.

    Attributes:
        thresholds_: q, shape (num_classes,).
        counts_: held-out examples of each class, shape (num_classes,).
        prior_: π of the score.

    Examples:
        >>> prior = ClassPrior.from_counts([900, 90, 10])
        >>> target = np.repeat([0, 1, 2], [200, 50, 20])
        >>> noise = np.random.default_rng(0).normal(size=(270, 3))
        >>> logits = noise + 2.0 * np.eye(3)[target] + prior.log_probs
        >>> sets = PredictionSets(coverage=0.9).fit(logits, target, prior)
        >>> sets.thresholds_.round(2)
        array([0.77, 0.8 , 0.81])
        >>> sets.predict(logits[:2])
        array([[ True, False, False],
               [ True, False, False]])
    """

    thresholds_: FloatArray
    counts_: IntArray
    prior_: ClassPrior

    def __init__(self, *, coverage: float = 0.9, method: str = "macro", tau: float = 1.0) -> None:
        self.coverage = _checks.fraction(coverage, name="coverage", below_one=True)
        self.method = _checks.choice(method, METHODS, name="method")
        self.tau = _checks.tau(tau)

    def fit(self, logits: Any, target: Any, prior: ClassPrior) -> PredictionSets:
        """Choose the thresholds on held-out examples.

        Args:
            logits: f, shape (examples, num_classes), of examples that the model was not trained
                on, with any class frequencies; NumPy, torch or JAX. Logarithms of probabilities
                work, too.
            target: true labels, shape (examples,). A class without examples does not count in the
                thresholds, and gets that of a class with one example.
            prior: π, of the data that the model was trained on.

        Returns:
            Itself.
        """
        scores = self._scores(logits, prior)
        labels = _checks.labels(target, num_classes=scores.shape[1])
        _checks.same_length(scores, labels)
        self.prior_ = prior
        self.counts_ = np.bincount(labels, minlength=scores.shape[1])
        own = scores[np.arange(len(labels)), labels]
        order = np.argsort(own)
        self.thresholds_ = self._thresholds(self.method, own[order], labels[order])
        return self

    def predict(self, logits: Any) -> BoolArray:
        """Return the sets, shape (examples, num_classes): True for the classes in them."""
        return np.asarray(self._scores(logits, self.prior_) <= self.thresholds_)

    def evaluate(self, logits: Any, target: Any) -> SetEvaluation:
        """Return coverage and size of the sets of labelled examples, see `evaluate_sets`.

        These must not be the examples given to `fit`.
        """
        return evaluate_sets(self.predict(logits), target)

    def cross_evaluate(
        self, logits: Any, target: Any, prior: ClassPrior, *, folds: int = 5, random_state: int = 0
    ) -> SetEvaluation:
        """Return coverage and size on the held-out examples themselves, by cross-fitting.

        Each fold is judged with the thresholds of the others; `fit` is not needed. The thresholds
        that `fit` chooses on all of them are a little better. The first arguments are those of
        `fit`; `random_state` deals each class out evenly to the `folds`.
        """
        array, labels = _checks.matrix(logits), _checks.labels(target)
        order = np.random.default_rng(random_state).permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]
        fold = np.empty_like(labels)
        fold[order] = np.arange(len(labels)) % _checks.whole(folds, name="folds", at_least=2)
        sets = np.empty(array.shape, dtype=bool)
        for k in range(folds):
            one = copy.copy(self).fit(array[fold != k], labels[fold != k], prior)
            sets[fold == k] = one.predict(array[fold == k])
        return evaluate_sets(sets, labels)

    def _scores(self, logits: Any, prior: ClassPrior) -> FloatArray:
        array = _checks.matrix(logits).astype(np.float64)
        prior = _checks.prior(prior, num_classes=array.shape[1])
        if self.tau:
            array = np.asarray(posthoc.adjust_logits(array, prior, tau=self.tau))
        return np.asarray(-log_softmax(array, axis=1))

    def _thresholds(self, method: str, own: FloatArray, labels: IntArray) -> FloatArray:
        """Return the thresholds from the true classes' scores, which are sorted."""
        counts, classes = self.counts_, np.arange(len(self.counts_))
        if method == "interpolated":
            alone, macro = (self._thresholds(m, own, labels) for m in ("classwise", "macro"))
            some = np.isfinite(alone)
            share = (counts / (counts + SHRINKAGE))[some]
            macro[some] = share * alone[some] + (1 - share) * macro[some]
            return macro
        if method == "marginal":
            weights, alone = np.full(len(own), 1 / len(own)), np.full(len(counts), 1 / len(own))
            return _quantile(own, weights, self.coverage * (1 + alone))
        groups = {"macro": [classes], "classwise": list(classes[:, None])}
        thresholds = np.empty(len(counts))
        for group in groups.get(method) or self._clusters():
            among = np.isin(labels, group)
            share = 1 / (max(1, np.count_nonzero(counts[group])) * np.maximum(counts, 1))
            levels = self.coverage * (1 + share[group])
            thresholds[group] = _quantile(own[among], share[labels[among]], levels)
        return thresholds

    def _clusters(self) -> list[IntArray]:
        """Return classes by training frequency, cut where enough held-out examples are."""
        clusters: list[list[int]] = [[]]
        for y in np.argsort(-self.prior_.probs, kind="stable"):
            if self.counts_[clusters[-1]].sum() >= CLUSTER_EXAMPLES:
                clusters.append([])
            clusters[-1].append(int(y))
        if len(clusters) > 1 and self.counts_[clusters[-1]].sum() < CLUSTER_EXAMPLES:
            clusters[-2:] = [clusters[-2] + clusters[-1]]
        return [np.array(cluster) for cluster in clusters]


def _quantile(values: FloatArray, weights: FloatArray, levels: FloatArray) -> FloatArray:
    """Return the least sorted value with as much weight up to it as each level; else infinity."""
    places = np.searchsorted(np.cumsum(weights), levels - 1e-12)
    return np.asarray(np.append(values, np.inf)[places])


@dataclass(frozen=True, eq=False)
class SetEvaluation:
    """Coverage and size of prediction sets on labelled examples; print it.

    Attributes:
        per_class: coverage of each class, shape (num_classes,); NaN without examples.
        low: lower ends of their exact (Clopper-Pearson) 95% intervals.
        high: upper ends.
        counts: examples of each class, shape (num_classes,).
        macro: mean of the classes' coverages, over the classes that have examples.
        macro_interval: its 95% interval, from the classes' binomial variances.
        marginal: share of all examples whose set holds their class.
        sizes: number of classes in each set, shape (examples,).
        macro_size: mean over the classes of the mean size of their examples' sets.
    """

    per_class: FloatArray
    low: FloatArray
    high: FloatArray
    counts: IntArray
    macro: float
    macro_interval: tuple[float, float]
    marginal: float
    sizes: IntArray
    macro_size: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and lists for JSON."""
        return {
            "macro_coverage": self.macro,
            "macro_interval": list(self.macro_interval),
            "marginal_coverage": self.marginal,
            "per_class": self.per_class.tolist(),
            "counts": self.counts.tolist(),
            "mean_size": float(self.sizes.mean()),
            "macro_size": self.macro_size,
            "empty": float((self.sizes == 0).mean()),
        }

    def __str__(self) -> str:
        low, high = self.macro_interval
        worst = int(np.nanargmin(self.per_class))
        return (
            f"macro coverage {self.macro:.1%} ({LEVEL:.0%} interval {low:.1%} to "
            f"{high:.1%}), marginal {self.marginal:.1%}\n"
            f"  worst class {worst}: {self.per_class[worst]:.1%} of {self.counts[worst]} "
            f"examples ({self.low[worst]:.1%} to {self.high[worst]:.1%})\n"
            f"  sets of {self.sizes.mean():.2f} classes in the mean, "
            f"{np.quantile(self.sizes, 0.9):.0f} at the 90% quantile; "
            f"{(self.sizes == 0).mean():.1%} empty"
        )


def evaluate_sets(sets: Any, target: Any) -> SetEvaluation:
    """Return coverage and size of any prediction sets, by class.

    Args:
        sets: boolean, shape (examples, num_classes).
        target: true labels, shape (examples,).

    Examples:
        >>> sets = [[True, False], [True, True], [True, False], [False, True]]
        >>> found = evaluate_sets(sets, [0, 0, 1, 1])
        >>> found.per_class, found.macro, found.sizes
        (array([1. , 0.5]), 0.75, array([1, 2, 1, 1]))
    """
    members = _checks.as_numpy(sets)
    if members.dtype.kind == "f":
        raise InputError("`sets` must be boolean; PredictionSets makes sets of scores.")
    members = members.astype(bool)
    labels = _checks.labels(target, num_classes=members.shape[1])
    _checks.same_length(members, labels, name="sets")
    counts = np.bincount(labels, minlength=members.shape[1])
    held = members[np.arange(len(labels)), labels]
    hits = np.bincount(labels, weights=held, minlength=members.shape[1])
    sizes = members.sum(axis=1)
    there = counts > 0
    tail = (1 - LEVEL) / 2
    with np.errstate(invalid="ignore"):
        per_class = hits / counts
        by_size = np.bincount(labels, weights=sizes, minlength=len(counts)) / counts
    low = np.where(hits > 0, stats.beta.ppf(tail, hits, counts - hits + 1), 0.0)
    high = np.where(hits < counts, stats.beta.ppf(1 - tail, hits + 1, counts - hits), 1.0)
    # Half an example more on either side: a class that is all covered varies, too.
    smooth = (hits[there] + 0.5) / (counts[there] + 1)
    deviation = np.sqrt((smooth * (1 - smooth) / counts[there]).sum()) / there.sum()
    macro = float(per_class[there].mean())
    half = float(stats.norm.ppf(1 - tail) * deviation)
    return SetEvaluation(
        per_class=per_class,
        low=np.where(there, low, np.nan),
        high=np.where(there, high, np.nan),
        counts=counts,
        macro=macro,
        macro_interval=(max(0.0, macro - half), min(1.0, macro + half)),
        marginal=float(held.mean()),
        sizes=sizes,
        macro_size=float(by_size[there].mean()),
    )


class PredictionSetClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Prediction sets of a classifier that is fitted already.

    `fit` takes held-out examples, and leaves the classifier as it is.

    Args:
        estimator: a fitted classifier with `predict_proba`, or with a `decision_function` that
            has one column for each class.
        prior: of the data that it was trained on; only with tau=0 none is needed.
        coverage: as in `PredictionSets`.
        method: as in `PredictionSets`.
        tau: as in `PredictionSets`; 0 for an estimator whose probabilities are adjusted already.

    Attributes:
        sets_: the fitted PredictionSets.
        classes_: labels of the columns.

    Examples:
        >>> from sklearn.datasets import make_classification
        >>> from sklearn.linear_model import LogisticRegression
        >>> X, y = make_classification(2000, weights=[0.9], random_state=0)
        >>> model = LogisticRegression().fit(X[:1000], y[:1000])
        >>> prior = ClassPrior.from_labels(y[:1000])
        >>> sets = PredictionSetClassifier(model, prior=prior).fit(X[1000:1800], y[1000:1800])
        >>> sets.predict_set(X[1800:]).shape
        (200, 2)
        >>> print(sets.evaluate_sets(X[1800:], y[1800:]))
        macro coverage ...
    """

    def __init__(
        self,
        estimator: Any,
        *,
        prior: ClassPrior | None = None,
        coverage: float = 0.9,
        method: str = "macro",
        tau: float = 1.0,
    ) -> None:
        self.estimator = estimator
        self.prior = prior
        self.coverage = coverage
        self.method = method
        self.tau = tau

    def fit(self, X: Any, y: Any) -> PredictionSetClassifier:
        """Choose the thresholds on held-out examples."""
        check_is_fitted(self.estimator)
        self.classes_ = self.estimator.classes_
        if self.prior is None and self.tau:
            raise InputError(
                "PredictionSetClassifier: the score needs `prior`, the class frequencies that the "
                "estimator was trained on; pass ClassPrior.from_labels(y_train), or tau=0."
            )
        prior = ClassPrior.uniform(len(self.classes_)) if self.prior is None else self.prior
        sets = PredictionSets(coverage=self.coverage, method=self.method, tau=self.tau)
        self.sets_ = sets.fit(self._logits(X), self._places(y), prior)
        return self

    def predict_set(self, X: Any) -> BoolArray:
        """Return the sets, shape (examples, num_classes), with columns as in `classes_`."""
        check_is_fitted(self)
        return self.sets_.predict(self._logits(X))

    def evaluate_sets(self, X: Any, y: Any) -> SetEvaluation:
        """Return coverage and size of the sets of labelled examples."""
        return evaluate_sets(self.predict_set(X), self._places(y))

    def predict(self, X: Any) -> Any:
        """Return what the classifier itself predicts."""
        return self.estimator.predict(X)

    def predict_proba(self, X: Any) -> Any:
        """Return the classifier's own probabilities."""
        return self.estimator.predict_proba(X)

    def _logits(self, X: Any) -> Any:
        if hasattr(self.estimator, "predict_proba"):
            return posthoc.log_probs(self.estimator.predict_proba(X))
        return self.estimator.decision_function(X)

    def _places(self, y: Any) -> IntArray:
        place = {label: k for k, label in enumerate(self.classes_.tolist())}
        labels = column_or_1d(y).tolist()
        if unknown := set(labels) - place.keys():
            raise InputError(
                f"`y` has labels unknown to the estimator: {_checks.listing(map(repr, unknown))}."
            )
        return np.array([place[label] for label in labels])
