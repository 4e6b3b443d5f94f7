"""What both scikit-learn estimators share: checked rows in, adjusted predictions out.

The estimators themselves, with their documentation, are in `sklearn`; choosing tau over folds is
in `_tuning`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin
from sklearn.frozen import FrozenEstimator
from sklearn.utils import _safe_indexing, get_tags, indexable
from sklearn.utils.metadata_routing import process_routing
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import (
    _check_method_params,
    _num_samples,
    check_is_fitted,
    has_fit_parameter,
)

from longtail import _checks, posthoc
from longtail._checks import FloatArray, InputError
from longtail.priors import ClassPrior
from longtail.sklearn import _targets as targets
from longtail.sklearn._routing import UnlikeWeightsError, classifier_weight
from longtail.sklearn._scores import METHODS, ScoreReader, choose_method


@dataclass(frozen=True)
class Rows:
    """Training rows with their weights and whatever else `fit` was given, kept in step.

    Attributes:
        X: as it came (array, frame, sparse matrix or list).
        y: labels, one per row.
        weight: example weights for judging, or None.
        fit_weight: the weights that the classifier itself is fitted with, and so what its prior
            is counted with, or None.
        fit_params: what the estimator's own `fit` is given.
        score_params: what the scorer is given.
        split_params: what the splitter is given; of all rows, never of some.
    """

    X: Any
    y: NDArray[Any]
    weight: FloatArray | None
    fit_weight: FloatArray | None
    fit_params: dict[str, Any]
    score_params: dict[str, Any]
    split_params: dict[str, Any]

    def take(
        self,
        index: NDArray[np.intp],
        *,
        kernel_of: Any = None,
        columns: NDArray[np.intp] | None = None,
    ) -> Rows:
        """Some of the rows.

        Args:
            index: which.
            kernel_of: the estimator to be fitted on them or asked about them, if its precomputed
                kernel is to lose columns as well: those not in `columns` (default `index`).
            columns: see there.
        """
        if kernel_of is not None:
            X, _ = _safe_split(kernel_of, self.X, None, index, columns)
        elif len(index) == len(self.y) and np.all(np.diff(index) == 1):
            return self
        else:
            X = _safe_indexing(self.X, index)
        return replace(
            self,
            X=X,
            y=self.y[index],
            weight=None if self.weight is None else self.weight[index],
            fit_weight=None if self.fit_weight is None else self.fit_weight[index],
            fit_params=_check_method_params(self.X, self.fit_params, index),
            score_params=_check_method_params(self.X, self.score_params, index),
        )

    def weighty(self, index: NDArray[np.intp]) -> NDArray[np.intp]:
        """Those of `index` whose weight is not zero: a weight of zero means no such row."""
        weights = [w for w in (self.weight, self.fit_weight) if w is not None]
        for weight in weights:
            index = index[weight[index] > 0]
        return index


class AdjustedBase(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Predictions of a fitted classifier under a target prior and costs."""

    estimator_: Any
    classes_: NDArray[Any]
    prior_: ClassPrior
    adjustment_: FloatArray
    _cost_shift: FloatArray | None
    _cost_matrix: FloatArray | None
    _reader: ScoreReader

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of largest adjusted score, or of least expected cost where costs were given.

        Args:
            X: what the estimator's own `predict` takes, shape (examples, features).

        Returns:
            Labels, shape (examples,).
        """
        check_is_fitted(self)
        return np.asarray(self.classes_[self._decisions(X).argmax(axis=1)])

    def predict_proba(self, X: Any) -> FloatArray:
        """Probabilities under the target prior: softmax_y(f_y − tau (log π_y − log q_y)).

        Costs play no part in them. They are calibrated as far as the estimator's own are; margins
        (an SVM's) are not logits, and their softmax only ranks.

        Args:
            X: what the estimator's own `predict` takes, shape (examples, features).

        Returns:
            Shape (examples, classes).
        """
        check_is_fitted(self)
        return np.asarray(softmax(self._adjusted(X), axis=1))

    def predict_log_proba(self, X: Any) -> FloatArray:
        """Logarithms of `predict_proba`, without its underflow.

        Args:
            X: what the estimator's own `predict` takes, shape (examples, features).

        Returns:
            Shape (examples, classes).
        """
        check_is_fitted(self)
        return np.asarray(log_softmax(self._adjusted(X), axis=1))

    def decision_function(self, X: Any) -> FloatArray:
        """The scores whose largest `predict` takes: adjusted logits, or minus expected costs.

        Args:
            X: what the estimator's own `predict` takes, shape (examples, features).

        Returns:
            Shape (examples, classes); for two classes shape (examples,), the second class's score
            less the first's.
        """
        check_is_fitted(self)
        scores = self._decisions(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def _logits(self, X: Any) -> FloatArray:
        answer = self._reader.ask(
            self.estimator_, X, num_classes=len(self.classes_), caller=type(self).__name__
        )
        return self._reader.logits(answer, self.prior_)

    def _adjusted(self, X: Any) -> FloatArray:
        return self._logits(X) + self.adjustment_

    def _decisions(self, X: Any) -> FloatArray:
        adjusted = self._adjusted(X)
        if self._cost_matrix is not None:
            return np.asarray(-(softmax(adjusted, axis=1) @ self._cost_matrix))
        return adjusted if self._cost_shift is None else adjusted + self._cost_shift

    def _set_rule(
        self,
        estimator: Any,
        classes: NDArray[Any],
        prior: ClassPrior,
        reader: ScoreReader,
        *,
        tau: float,
        target: Any,
        costs: FloatArray | None,
    ) -> None:
        """Everything that prediction needs, learnt."""
        self.estimator_ = estimator
        self.classes_ = classes
        self.prior_ = prior
        self._reader = reader
        aim = targets.target_prior(target, prior, classes, caller=type(self).__name__)
        # A uniform target would shift all classes alike; `adjust_logits` leaves it out, too.
        self.adjustment_ = posthoc.adjustment(
            prior, tau=tau, target_prior=aim if np.ptp(aim.probs) else None
        )
        self._cost_matrix = costs if costs is not None and costs.ndim == 2 else None
        self._cost_shift = None
        if costs is not None and costs.ndim == 1:
            # As in `adjust_logits`; kept apart since probabilities have no part in costs.
            self._cost_shift = tau * np.log(costs)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(estimator, name):
                setattr(self, name, getattr(estimator, name))
            elif hasattr(self, name):
                delattr(self, name)  # left by an earlier fit

    def _rows(self, X: Any, y: Any, sample_weight: Any, params: dict[str, Any]) -> Rows:
        """Checked rows, with metadata sent where it was asked for; `self` is unchanged."""
        caller = type(self).__name__
        self._check_estimator(caller)
        y = targets.check_labels(y, caller=caller)
        X, y = indexable(X, y)
        weight = None
        if sample_weight is not None:
            weight = _checks.sample_weight(sample_weight, _num_samples(X), caller=caller)
        if get_config()["enable_metadata_routing"]:
            routed = process_routing(self, "fit", sample_weight=weight, **params)
            fit_params = dict(routed.estimator.fit)
            score_params = dict(routed.get("scorer", {}).get("score", {}))
            split_params = dict(routed.get("splitter", {}).get("split", {}))
            fit_weight = self._routed_weight(fit_params, caller)
        else:
            if params:
                raise InputError(
                    f"{caller}: `fit` takes only `sample_weight` unless metadata routing is on; "
                    f"got {_checks.listing(map(repr, params))}; "
                    f"call sklearn.set_config(enable_metadata_routing=True)."
                )
            fit_params, score_params, split_params = self._unrouted(weight, caller), {}, {}
            fit_weight = fit_params.get("sample_weight")
            if weight is not None:
                score_params = {"sample_weight": weight}
        rows = Rows(X, y, weight, fit_weight, fit_params, score_params, split_params)
        targets.at_least_two(y[rows.weighty(np.arange(len(y)))], caller=caller)
        return rows

    def _routed_weight(self, fit_params: dict[str, Any], caller: str) -> FloatArray | None:
        if self._is_prefit():
            return None
        try:
            return classifier_weight(self.estimator, fit_params)
        except UnlikeWeightsError as error:
            if isinstance(self.prior, str) and self.prior == "train":
                raise InputError(
                    f"{caller}: the classifiers inside {type(self.estimator).__name__} are fitted "
                    f"with unlike weights, so no one prior='train' is theirs; pass prior="
                    f"'effective' or a ClassPrior, or request the same weights for all of them "
                    f"with set_fit_request."
                ) from error
            return None

    def _unrouted(self, weight: FloatArray | None, caller: str) -> dict[str, Any]:
        estimator = self.estimator
        if weight is None or isinstance(estimator, FrozenEstimator) or self._is_prefit():
            return {}
        if not has_fit_parameter(estimator, "sample_weight"):
            raise InputError(
                f"{caller}: `sample_weight` was given, but {type(estimator).__name__}.fit takes "
                f"none, so it would learn another prior than the weights say; for a pipeline make "
                f"{caller} its last step, or turn metadata routing on: "
                f"sklearn.set_config(enable_metadata_routing=True)."
            )
        return {"sample_weight": weight}

    def _is_prefit(self) -> bool:
        return isinstance(self.estimator, FrozenEstimator)

    def _balanced(self) -> bool:
        """Whether all classes are to count alike, which a uniform prior has achieved already."""
        return isinstance(self.target, str) and self.target == "balanced" and self.costs is None

    def _check_estimator(self, caller: str) -> None:
        estimator = self.estimator
        if isinstance(estimator, type) or not hasattr(estimator, "fit"):
            raise InputError(
                f"{caller}: `estimator` must be a classifier instance with `fit`; "
                f"got {estimator!r}."
            )
        _checks.choice(self.response_method, METHODS, caller, name="response_method")
        choose_method(estimator, self.response_method, caller=caller)
        if isinstance(self.prior, str):
            _checks.choice(self.prior, ("train", "effective"), caller, name="prior")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.input_tags = inner.input_tags
        tags.no_validation = inner.no_validation
        tags.non_deterministic = inner.non_deterministic
        if inner.classifier_tags is not None:
            tags.classifier_tags.multi_class = inner.classifier_tags.multi_class
            tags.classifier_tags.poor_score = inner.classifier_tags.poor_score
        return tags


def learnt_prior(
    spec: Any,
    labels: NDArray[Any],
    weight: FloatArray | None,
    classes: NDArray[Any],
    *,
    caller: str,
) -> ClassPrior:
    """The prior of the labels that a classifier was fitted on, or the one that was passed."""
    if not isinstance(spec, str):
        return targets.given_prior(spec, classes, caller=caller, name="prior")
    codes = targets.encode(labels, classes, caller=caller)
    empty = np.flatnonzero(targets.totals(codes, weight, len(classes)) == 0)
    if len(empty):
        raise InputError(
            f"{caller}: prior='train' counts `y`, but class(es) "
            f"{_checks.listing(repr(c) for c in classes[empty].tolist())} of the estimator have "
            f"no example there; pass prior=ClassPrior.from_counts(...) of its training data."
        )
    return targets.prior_of(codes, weight, len(classes))


def refuse_uniform(prior: ClassPrior, *, caller: str) -> None:
    """For a fitted estimator and the balanced target: adjusting by this prior does nothing."""
    if np.ptp(prior.probs) == 0:
        raise InputError(
            f"{caller}: the prior is uniform, so no tau changes any prediction; if the rows "
            f"given to `fit` were balanced and the estimator's training data were not, pass "
            f"prior=ClassPrior.from_counts(...) of the latter."
        )


def mean_ready(reader: ScoreReader, answer: FloatArray, *, caller: str) -> FloatArray:
    """The classifier's own probabilities, for prior='effective'; margins are refused."""
    if reader.method == "decision_function":
        raise InputError(
            f"{caller}: prior='effective' is a mean of probabilities, but the scores come from "
            f"decision_function; use prior='train', or wrap the estimator in "
            f"CalibratedClassifierCV."
        )
    return reader.probabilities(answer)


def prior_of_predictions(
    probs: FloatArray, weight: FloatArray | None, classes: NDArray[Any], *, caller: str
) -> ClassPrior:
    """The prior that a model has learnt: its mean predicted probability, (1/n) Σ_i p_y(x_i)."""
    mean = np.average(probs, axis=0, weights=weight)
    if np.any(mean == 0):
        raise InputError(
            f"{caller}: prior='effective' needs every class to be predicted with some "
            f"probability, but class(es) "
            f"{_checks.listing(repr(c) for c in classes[mean == 0].tolist())} never are; "
            f"use prior='train'."
        )
    return ClassPrior.from_probs(mean / mean.sum())
