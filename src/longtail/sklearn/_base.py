"""Parts that both estimators share: rows, settings by class, fitting, adjusted predictions."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing, get_tags, indexable
from sklearn.utils.metadata_routing import (
    MetadataRouter,
    MethodMapping,
    get_routing_for_object,
    process_routing,
)
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_method_params, _check_y, check_is_fitted

from longtail import _checks, posthoc
from longtail._checks import FloatArray, InputError
from longtail.posthoc import LEAST_AGAIN, AdjustedTwiceWarning, adjusted_twice
from longtail.priors import ClassPrior
from longtail.sklearn._scores import (
    METHODS,
    baked_tau,
    final_estimator,
    fit_classifier,
    read_logits,
    response_of,
)

if TYPE_CHECKING:
    from longtail.sklearn import LogitAdjustedClassifier


@dataclass(frozen=True)
class Rows:
    """Training rows with their weights and whatever else `fit` was given, kept in step."""

    X: Any  # as it came: array, frame, sparse matrix or list
    y: NDArray[Any]
    weight: FloatArray | None  # for judging
    fit_weight: FloatArray | None  # for fitting, and so for the prior
    fit_params: dict[str, Any]
    score_params: dict[str, Any]
    split_params: dict[str, Any]  # of all rows, never of some
    pairwise: bool  # whether X is a kernel, with a column for each row as well

    def take(self, index: NDArray[np.intp], columns: NDArray[np.intp] | None = None) -> Rows:
        """Return some of the rows, against themselves or other `columns` of a kernel."""
        weights = {"weight": self.weight, "fit_weight": self.fit_weight}
        weights, fit_params, score_params = (
            _check_method_params(self.X, values, index)  # what has a value for each row is cut
            for values in (weights, self.fit_params, self.score_params)
        )
        X, y = _safe_indexing(self.X, index), self.y[index]
        if self.pairwise:
            X = _safe_indexing(X, index if columns is None else columns, axis=1)
        return replace(self, X=X, y=y, fit_params=fit_params, score_params=score_params, **weights)

    def with_weight(self, index: NDArray[np.intp] | None = None) -> NDArray[np.intp]:
        """Return those of `index` whose weight is not zero: zero means no such row."""
        index = np.arange(len(self.y)) if index is None else index
        for weight in (self.weight, self.fit_weight):
            index = index if weight is None else index[weight[index] > 0]
        return index

    def totals(self, classes: NDArray[Any], index: Any = slice(None)) -> NDArray[Any]:
        """Return the number of examples of each class, or the sum of their weights."""
        weight = None if self.fit_weight is None else self.fit_weight[index]
        return np.bincount(encode(self.y[index], classes), weight, minlength=len(classes))

    def reweighted(self, estimator: Any, reweight: float) -> Rows:
        """Return rows whose fit weights are times n^−reweight, n the total of the row's class."""
        if reweight == 0:
            return self
        codes = np.unique(self.y, return_inverse=True)[1]
        weight = np.ones(len(codes)) if self.fit_weight is None else self.fit_weight
        new = weight * (np.bincount(codes, weights=weight) ** -reweight)[codes]
        new *= weight.sum() / new.sum()  # so that regularization keeps its strength
        return replace(self, fit_params=self.fit_params | {weight_name(estimator): new})


def weight_name(estimator: Any) -> str:
    """Return the name under which `fit` takes the weights of a pipeline's classifier."""
    inner, prefix = estimator, ""
    while isinstance(inner, Pipeline | BaseSearchCV):
        if isinstance(inner, Pipeline):
            prefix += f"{inner.steps[-1][0]}__"
            inner = inner.steps[-1][1]
        else:
            inner = inner.estimator
    if not get_config()["enable_metadata_routing"]:
        return f"{prefix}sample_weight"
    request = get_routing_for_object(inner)
    if inner is estimator or not hasattr(request, "fit"):
        return "sample_weight"
    asked = request.fit.requests.get("sample_weight")  # perhaps under another name
    return asked if isinstance(asked, str) else "sample_weight" if asked else ""


# ------------------------------------------------------------------ settings


def listing(labels: NDArray[Any]) -> str:
    """Return labels for a message."""
    return _checks.listing(map(repr, labels.tolist()))


def given_prior(value: Any, classes: NDArray[Any], *, name: str) -> ClassPrior:
    """Return a ClassPrior that was passed, or made of probabilities or counts that were."""
    if isinstance(value, ClassPrior):
        _checks.per_class(value.probs, name=name, classes=classes)
        return value
    array = _checks.per_class(value, name=name, classes=classes.tolist())
    if np.all(array == np.floor(array)) and array.min() > 0:  # counts of examples
        return ClassPrior.from_counts(array)
    return ClassPrior.from_probs(_checks.distribution(array, name=name))


def target_prior(value: Any, prior: ClassPrior, classes: NDArray[Any]) -> ClassPrior:
    """Return the class frequencies to predict for: uniform, those of training, or as given."""
    if isinstance(value, str):
        _checks.choice(value, ("balanced", "train"), name="target")
        return ClassPrior.uniform(len(classes)) if value == "balanced" else prior
    return given_prior(value, classes, name="target")


def check_costs(value: Any, classes: NDArray[Any]) -> FloatArray | None:
    """Return costs per true class, shape (L,), or per true and predicted class, shape (L, L)."""
    if value is None:
        return None
    if np.ndim(value) != 2:
        vector = _checks.per_class(value, name="costs", classes=classes.tolist())
        return _checks.positive_per_class(vector, len(classes), name="costs")
    if hasattr(value, "loc"):  # a DataFrame
        for labels in (value.index, value.columns):
            _checks.same_labels(labels.tolist(), classes.tolist(), name="costs")
        value = value.loc[classes, classes]
    matrix = _checks.matrix(value, name="costs").astype(np.float64)
    if matrix.shape != (len(classes), len(classes)):
        raise InputError(
            f"a cost matrix must have one row per true class and one column per predicted class, "
            f"shape ({len(classes)}, {len(classes)}); its shape is {matrix.shape}."
        )
    return matrix


def encode(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.intp]:
    """Return the index of each label in `classes`; one that the estimator never saw is refused."""
    unknown = np.setdiff1d(labels, classes)
    if len(unknown):
        raise InputError(
            f"`y` holds classes that the estimator was not trained on: {listing(unknown)}; drop "
            f"these rows, or fit the estimator on data that has them."
        )
    return np.searchsorted(classes, labels)


def probabilities(logits: FloatArray, method: str, *, of: str) -> FloatArray:
    """Return softmax(f); refuse margins, which are not log-probabilities."""
    if method == "decision_function":
        raise InputError(
            f"{of} needs probabilities, but the scores come from decision_function; wrap the "
            f"estimator in CalibratedClassifierCV."
        )
    return np.asarray(softmax(logits, axis=1))


def effective_prior(
    logits: FloatArray, weight: FloatArray | None, classes: NDArray[Any], method: str
) -> ClassPrior:
    """Return the prior that a model has learnt: its mean prediction, (1/n) Σ_i p_y(x_i)."""
    probs = probabilities(logits, method, of="prior='effective'")
    mean = np.average(probs, axis=0, weights=weight)
    never = mean <= 2 * posthoc.SMALLEST_PROB
    if np.any(never):
        raise InputError(
            f"prior='effective' needs every class to be predicted with some probability, but "
            f"class(es) {listing(classes[never])} never are; use prior='train'."
        )
    return ClassPrior.from_weights(mean)


# ------------------------------------------------------------------ the estimators


class AdjustedBase(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Predictions of a fitted classifier under a target prior and costs."""

    estimator_: Any
    classes_: NDArray[Any]
    prior_: ClassPrior
    adjustment_: FloatArray

    def predict(self, X: Any, *, target_prior: Any = None) -> NDArray[Any]:
        """Return the class of largest adjusted score, or of least expected cost.

        Args:
            X: what the estimator's own `predict` takes, shape (examples, features).
            target_prior: q for each example, shape (examples, classes), such as the class
                frequencies of its place or season, or one row for all; None for `target`.
        """
        best = self._decisions(X, target_prior).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any, *, target_prior: Any = None) -> FloatArray:
        """Return probabilities under the target prior: softmax_y(f_y − tau (log π_y − log q_y)).

        Costs play no part in them. They are calibrated as far as the estimator's own are; margins
        (an SVM's) are not logits, and their softmax only ranks.

        Args:
            X: as in `predict`.
            target_prior: as in `predict`.
        """
        return np.asarray(softmax(self._adjusted(X, target_prior), axis=1))

    def predict_log_proba(self, X: Any) -> FloatArray:
        """Return logarithms of `predict_proba`, without its underflow."""
        return np.asarray(log_softmax(self._adjusted(X), axis=1))

    def decision_function(self, X: Any) -> FloatArray:
        """Return the scores whose largest `predict` takes: adjusted logits, or minus costs.

        For two classes it is the second class's score less the first's, shape (examples,).
        """
        scores = self._decisions(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def retarget(
        self, *, tau: Any = "same", target: Any = "same", costs: Any = "same"
    ) -> LogitAdjustedClassifier:
        """Return the fitted classifier, frozen, under another rule, without fitting anything.

        Args:
            tau: as in LogitAdjustedClassifier, or "same" for the one in use.
            target: likewise.
            costs: likewise; None for no costs.

        Examples:
            >>> from sklearn.datasets import load_iris
            >>> from sklearn.naive_bayes import GaussianNB
            >>> from longtail.sklearn import LogitAdjustedClassifier
            >>> X, y = load_iris(return_X_y=True)
            >>> model = LogitAdjustedClassifier(GaussianNB()).fit(X[:110], y[:110])
            >>> model.retarget(target=[0.1, 0.1, 0.8]).predict_proba(X[:110]).mean(axis=0).round(2)
            array([0.45, 0.4 , 0.14])
        """
        from longtail.sklearn import LogitAdjustedClassifier

        check_is_fitted(self)
        inner = self.estimator_
        frozen = inner if isinstance(inner, FrozenEstimator) else FrozenEstimator(inner)
        rule = {"tau": self._tau, "target": self.target, "costs": self.costs}
        given = {"tau": tau, "target": target, "costs": costs}
        rule |= {k: v for k, v in given.items() if not (isinstance(v, str) and v == "same")}
        made = LogitAdjustedClassifier(
            frozen,
            prior=self.prior_,
            reweight=self.reweight,
            response_method=self.response_method,
            **rule,
        )
        made.estimator_, made.classes_ = frozen, self.classes_
        made._method, made._offset = self._method, self._offset
        made._set_rule(self.prior_, made.tau)
        return made

    def adapt(self, X: Any, *, significance: float | None = 0.05) -> LogitAdjustedClassifier:
        """Return the same fitted classifier for the class frequencies of unlabelled data.

        They are estimated by `estimate_prior` (EM) from the estimator's probabilities, under label
        shift: classes look as they did in training, but occur at other rates.

        Args:
            X: unlabelled examples of the data to predict for, shape (examples, features).
            significance: of the test of no shift, as in `estimate_prior`: unless it rejects, the
                frequencies are those of training.

        Returns:
            A fitted LogitAdjustedClassifier around the frozen estimator at tau = 1, whose
            `target` is the estimate.

        Examples:
            >>> from sklearn.naive_bayes import GaussianNB
            >>> from longtail.sklearn import LogitAdjustedClassifier
            >>> rng = np.random.default_rng(0)
            >>> y, later = (rng.random(4000) < share for share in (0.1, 0.6))
            >>> model = LogitAdjustedClassifier(GaussianNB()).fit(rng.normal(2.0 * y)[:, None], y)
            >>> adapted = model.adapt(rng.normal(2.0 * later)[:, None])
            >>> adapted.target.probs.round(1)
            array([0.4, 0.6])
        """
        from longtail.shift import estimate_prior

        check_is_fitted(self)
        probs = probabilities(self._logits(X), self._method, of="`adapt`")
        found = estimate_prior(probs, self.prior_, significance=significance)
        return self.retarget(tau=1.0, target=found.prior)

    def _logits(self, X: Any) -> FloatArray:
        """Return logits as if the estimator had been trained without reweighting."""
        check_is_fitted(self)
        logits = read_logits(self.estimator_, X, self._method, self.classes_)
        return np.asarray(logits + self._offset)

    def _adjusted(self, X: Any, each: Any = None) -> FloatArray:
        logits = self._logits(X)
        if each is None:
            return np.asarray(logits + self._shift)
        q = np.atleast_2d(np.asarray(each, np.float64))
        _checks.probability_rows(q, name="target_prior")
        return np.asarray(logits - self._tau * (self.prior_.log_probs - posthoc.log_probs(q)))

    def _decisions(self, X: Any, each: Any = None) -> FloatArray:
        adjusted = self._adjusted(X, each)
        if self._costs is None:
            return adjusted
        if self._costs.ndim == 2:
            return np.asarray(-(softmax(adjusted, axis=1) @ self._costs))
        # As in `adjust_logits`; not in `adjustment_`, since probabilities have no part in costs.
        return np.asarray(adjusted + self._tau * np.log(self._costs))

    # -------------------------------------------------------------- fitting

    def _read_rows(self, X: Any, y: Any, sample_weight: Any, params: dict[str, Any]) -> Rows:
        """Return the rows, with their weights and what else `fit` was given for each of them."""
        prefit = self._is_prefit()
        check_classification_targets(y)
        X, y = indexable(X, _check_y(y))
        weight = None if sample_weight is None else _checks.sample_weight(sample_weight, len(y))
        if get_config()["enable_metadata_routing"]:
            routed = process_routing(self, "fit", sample_weight=weight, **params)
            fit_params = dict(routed.estimator.fit)
            score_params = dict(routed.get("scorer", {}).get("score", {}))
            split_params = dict(routed.get("splitter", {}).get("split", {}))
        else:
            fit_params, split_params = {k: v for k, v in params.items() if v is not None}, {}
            score_params = {} if weight is None else {"sample_weight": weight}
            if weight is not None and not prefit:
                fit_params[weight_name(self.estimator)] = weight
        fit_weight = weight if prefit else fit_params.get(weight_name(self.estimator))
        if fit_weight is not None:
            fit_weight = _checks.sample_weight(fit_weight, len(y))
        pairwise = not prefit and get_tags(self.estimator).input_tags.pairwise
        return Rows(X, y, weight, fit_weight, fit_params, score_params, split_params, pairwise)

    def _check_settings(self, rows: Rows) -> tuple[NDArray[Any], ClassPrior | None]:
        """Return classes and prior (None: the mean prediction), before anything is fitted."""
        _checks.choice(self.response_method, ("auto", *METHODS), name="response_method")
        _checks.tau(self.reweight, name="reweight")
        prefit, every = self._is_prefit(), rows.with_weight()
        found = np.unique(rows.y[every])
        if len(found) < 2:
            raise InputError(
                f"`y` must hold at least two classes, but only one class has examples with "
                f"positive weight: {found.tolist()} (n_samples = {len(every)})."
            )
        if prefit:
            check_is_fitted(self.estimator)
            response_of(self.estimator, self.response_method)
        classes = np.asarray(self.estimator.classes_) if prefit else found
        prior = None
        if not isinstance(self.prior, str):
            prior = given_prior(self.prior, classes, name="prior")
        elif _checks.choice(self.prior, ("train", "effective"), name="prior") == "train":
            totals = rows.totals(classes, every)
            if np.any(totals == 0):
                raise InputError(
                    f"prior='train' counts `y`, but class(es) {listing(classes[totals == 0])} of "
                    f"the estimator have no example there; pass prior=ClassPrior.from_counts(...) "
                    f"of its training data."
                )
            whole = totals.dtype.kind == "i"
            prior = (ClassPrior.from_counts if whole else ClassPrior.from_weights)(totals)
        aim = target_prior(self.target, prior or ClassPrior.uniform(len(classes)), classes)
        check_costs(self.costs, classes)
        flat = prior is not None and np.ptp(prior.probs) == 0 == np.ptp(aim.probs)
        if prefit and flat and str(self.prior) == "train" and self.costs is None:
            raise InputError(
                "the prior is uniform, so no tau changes any prediction; if the rows given to "
                "`fit` were balanced and the estimator's training data were not, pass "
                "prior=ClassPrior.from_counts(...) of the latter."
            )
        return classes, prior

    def _learn(
        self, rows: Rows, index: NDArray[np.intp], classes: NDArray[Any], prior: ClassPrior | None
    ) -> Rows:
        """Fit the estimator on some rows, which are returned, unless it is fitted already."""
        prefit = self._is_prefit()
        if not np.array_equal(index, np.arange(len(rows.y))):
            rows = rows.take(index)
        self.estimator_, self.classes_ = self.estimator, classes
        if not prefit:
            params = rows.reweighted(self.estimator, self.reweight).fit_params
            self.estimator_ = fit_classifier(clone(self.estimator), rows.X, rows.y, params)
        self._method = response_of(self.estimator_, self.response_method)
        # A class that can't be predicted takes any number: it shifts the others alike.
        totals = rows.totals(classes)
        counted = ClassPrior.from_weights(np.maximum(totals, totals[totals > 0].min()))
        self._labels_prior = prior if prefit and prior is not None else counted
        self._offset = self.reweight * self._labels_prior.log_probs
        return rows

    def _set_rule(self, prior: ClassPrior, tau: float) -> None:
        """Set how the logits of a fitted estimator are adjusted."""
        self.prior_, self._tau = prior, tau
        self._costs = check_costs(self.costs, self.classes_)
        aim = target_prior(self.target, prior, self.classes_)
        # A uniform target would shift all classes alike; `adjust_logits` leaves it out, too.
        target = aim if np.ptp(aim.probs) else None
        self._shift = posthoc.adjustment(prior, tau=tau, target_prior=target)
        self.adjustment_ = self._offset + self._shift

    def get_metadata_routing(self) -> Any:
        """Return where metadata goes: here and, as it asks, to the estimator's `fit`."""
        mapping = MethodMapping().add(caller="fit", callee="fit")
        router = MetadataRouter(owner=self).add_self_request(self)
        return router.add(estimator=self.estimator, method_mapping=mapping)

    def _is_prefit(self) -> bool:
        cv = vars(self).get("cv")
        named = isinstance(cv, str) and cv == "prefit"
        return named or isinstance(self.estimator, FrozenEstimator)

    def _warn_if_twice(self) -> None:
        """Warn if the fitted estimator favours rare classes itself."""
        if str(self.prior) != "train" or np.ptp(self.adjustment_) == 0:
            return
        model, baked = self.estimator_, baked_tau(final_estimator(self.estimator_))
        if baked is not None and baked >= LEAST_AGAIN:
            model = f"the estimator has an adjustment baked in already (tau = {baked:.4g})"
        text = adjusted_twice(model, self.prior_, tau=self._tau)
        if text is not None:
            text = f"{text.removesuffix('.')} (prior='effective')."
            warnings.warn(text, AdjustedTwiceWarning, stacklevel=3)

    @property
    def n_features_in_(self) -> int:
        """Number of features, if the estimator has it."""
        return int(self.estimator_.n_features_in_)

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """Names of the features, if the estimator has them."""
        return np.asarray(self.estimator_.feature_names_in_)

    def __sklearn_tags__(self) -> Any:
        tags, inner = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.input_tags = inner.input_tags
        if inner.classifier_tags is not None:
            tags.classifier_tags.multi_class = inner.classifier_tags.multi_class
        return tags
