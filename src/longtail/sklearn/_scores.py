"""A fitted classifier and its rows in, finite logits out: log-probabilities or margins.

Exact zeros are the difficulty. A forest, a tree or a nearest-neighbour vote says p = 0 where no
vote was cast, and log 0 would be infinite. `ScoreReader` states what is done instead, and why.
Adjusting the logits is in `sklearn`; nothing here knows tau.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import StackingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing

from longtail import _checks
from longtail._checks import FloatArray, InputError
from longtail.priors import ClassPrior

METHODS = ("auto", "predict_proba", "decision_function")

# Below every positive float64, so that a probability that underflowed still ranks last.
_UNDERFLOW = float(np.log(np.nextafter(0.0, 1.0))) - 1.0
# A finite stand-in for log 0, out of reach of any tau.
NEVER = -1e30
# How many rows of its training data a classifier is asked about to learn its resolution.
_PROBE = 1000


def final_estimator(estimator: Any) -> Any:
    """The classifier itself, inside pipelines, searches and frozen wrappers."""
    while True:
        if isinstance(estimator, FrozenEstimator):
            estimator = estimator.estimator
        elif isinstance(estimator, Pipeline):
            estimator = estimator.steps[-1][1]
        elif isinstance(estimator, BaseSearchCV):
            estimator = getattr(estimator, "best_estimator_", estimator.estimator)
        else:
            return estimator


def choose_method(estimator: Any, response_method: str, *, caller: str) -> str:
    """`predict_proba` or `decision_function`: the one asked for, or the first there is."""
    wanted = (
        ("predict_proba", "decision_function") if response_method == "auto" else (response_method,)
    )
    for method in wanted:
        if hasattr(estimator, method):
            return method
    final = final_estimator(estimator)
    if isinstance(final, StackingClassifier) and final.final_estimator is None:
        return wanted[0]  # logistic regression decides, which has all, but shows none before `fit`
    raise InputError(
        f"{caller}: `estimator` must have {' or '.join(wanted)}; {type(final).__name__} does not"
        f"{' (response_method=' + repr(response_method) + ')' if len(wanted) == 1 else ''}."
    )


def classes_of(estimator: Any, *, caller: str) -> NDArray[Any]:
    """The labels behind the columns of a fitted classifier's answers, which must be sorted.

    All of scikit-learn has them so. A prior, a target or costs in the order of the classes would
    otherwise have two meanings.
    """
    classes = np.asarray(estimator.classes_)
    if not np.all(classes[:-1] < classes[1:]):
        raise InputError(
            f"{caller}: `estimator`.classes_ must be sorted, each label once, as scikit-learn's "
            f"own are; {type(final_estimator(estimator)).__name__} has "
            f"{_checks.listing(map(repr, classes.tolist()))}; set classes_ = numpy.unique(y) in "
            f"its `fit`, and give its scores a column for each class in that order."
        )
    return classes


@dataclass(frozen=True)
class ScoreReader:
    """How one fitted classifier's answers become logits, shape (examples, num_classes).

    Margins are taken as they are; the one margin d of a binary classifier becomes (−d/2, d/2).
    Probabilities become their logarithms, with three cases for p = 0:

    1. A classifier that works in logarithms (naive Bayes, discriminant analysis) merely
       underflowed: `predict_log_proba` has the value, so it is asked instead.
    2. A classifier that counts votes gave this class none. With m the smallest positive
       probability that it gave to the rows of `fit` and k_y = min(m, π_y / 5), log p is followed
       down to p = k_y, and from there a straight line down to log(k_y / 2) at p = 0. So all is
       finite, the ranking strict, and every probability from m up is left as it is. Since
       max_y p_y / π_y ≥ 1 always, nothing below π_y can decide at tau = 1.
    3. Zeros that were not seen in `fit` are read as smaller than any positive number.

    On forests, trees and nearest neighbours the balanced error hardly depends on what is put in
    place of zero, as long as it is small beside π_y; the log-loss does, and π_y / 10 is near its
    best (measured by benchmarks/bench_sklearn.py, recorded in results/bench_sklearn.json).

    Attributes:
        method: `predict_proba`, `predict_log_proba` or `decision_function`.
        smallest: m, or None where `fit` saw no zeros.
    """

    method: str
    smallest: float | None = None

    def ask(self, estimator: Any, X: Any, *, num_classes: int, caller: str) -> FloatArray:
        """The classifier's answer as (examples, num_classes) float64, before logarithms."""
        with np.errstate(divide="ignore"):  # log 0 inside predict_log_proba is case 2
            found = _checks.as_numpy(getattr(estimator, self.method)(X))
        answer = np.asarray(found, np.float64)
        if answer.ndim == 1 and num_classes == 2:
            answer = np.stack([-answer / 2, answer / 2], axis=1)
        if answer.ndim != 2 or answer.shape[1] != num_classes:
            raise InputError(
                f"{caller}: `estimator`.{self.method} must give one score per class, shape "
                f"(examples, {num_classes}); it gave {answer.shape}. An SVC needs "
                f"decision_function_shape='ovr'."
            )
        name = f"estimator.{self.method}(X)"
        if self.method == "predict_proba":
            # In their own type, which says how far rounding may take their sums from 1.
            own = found if found.shape == answer.shape and found.dtype.kind == "f" else answer
            _checks.probability_rows(own, caller=caller, name=name)
        else:
            finite = (
                np.maximum(answer, _UNDERFLOW) if self.method == "predict_log_proba" else answer
            )
            _checks.all_finite(finite, caller=caller, name=name)
        return answer

    def logits(self, answer: FloatArray, prior: ClassPrior) -> FloatArray:
        """Finite logits of `ask`'s answer; `prior` says what a class without votes is worth."""
        if self.method == "decision_function":
            return answer
        if self.method == "predict_log_proba":
            return np.maximum(answer, NEVER)
        with np.errstate(divide="ignore"):
            logits = np.log(answer)
        if self.smallest is None:
            return np.maximum(logits, _UNDERFLOW)
        knee = np.minimum(self.smallest, prior.probs / 5)
        line = np.log(knee / 2) + np.exp(logits) / knee * np.log(2.0)
        return np.where(logits < np.log(knee), line, logits)

    def probabilities(self, answer: FloatArray) -> FloatArray:
        """The probabilities that the classifier itself gave."""
        return np.exp(answer) if self.method == "predict_log_proba" else answer

    @classmethod
    def learn(
        cls, estimator: Any, X: Any, method: str, *, num_classes: int, caller: str
    ) -> tuple[ScoreReader, FloatArray]:
        """The reader for this classifier, and its answer on `X`, from which it was learnt."""
        if method == "decision_function":
            final = final_estimator(estimator)
            if getattr(final, "decision_function_shape", "ovr") == "ovo" and num_classes > 2:
                raise InputError(
                    f"{caller}: {type(final).__name__} compares pairs of classes "
                    f"(decision_function_shape='ovo'); use 'ovr', which scores classes."
                )
        reader = cls(method)
        answer = reader.ask(estimator, X, num_classes=num_classes, caller=caller)
        if method != "predict_proba" or np.all(answer > 0):
            return reader, answer
        if hasattr(estimator, "predict_log_proba"):
            in_logs = cls("predict_log_proba")
            # One row tells an underflow from a missing vote; only an underflow pays for all rows.
            one = _safe_indexing(X, [int(np.flatnonzero((answer == 0).any(axis=1))[0])])
            logs = in_logs.ask(estimator, one, num_classes=num_classes, caller=caller)
            if np.all(np.isfinite(logs)):
                return in_logs, in_logs.ask(estimator, X, num_classes=num_classes, caller=caller)
        return cls(method, smallest=float(answer[answer > 0].min())), answer

    @classmethod
    def merge(cls, readers: Iterable[ScoreReader]) -> ScoreReader:
        """One reader for the classifier that stands for those of several folds."""
        readers = list(readers)
        methods = {reader.method for reader in readers}
        if "predict_log_proba" in methods:
            return cls("predict_log_proba")
        smallest = [reader.smallest for reader in readers if reader.smallest is not None]
        return cls(methods.pop(), smallest=min(smallest, default=None))


def probe_rows(num_rows: int, weight: FloatArray | None) -> NDArray[np.intp]:
    """Up to 1000 rows, evenly spread by weight, so that a weight of 2 equals two rows."""
    ends = np.cumsum(np.ones(num_rows) if weight is None else weight)
    if ends[-1] <= _PROBE:
        return np.arange(num_rows)
    places = (np.arange(_PROBE) + 0.5) * (ends[-1] / _PROBE)
    return np.unique(np.searchsorted(ends, places, side="right"))
