"""What both estimators share: their settings checked, rows in step, adjusted predictions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing, get_tags, indexable
from sklearn.utils.metadata_routing import (
    MetadataRouter,
    get_routing_for_object,
    process_routing,
)
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import (
    _check_method_params,
    check_is_fitted,
    column_or_1d,
    has_fit_parameter,
)

from longtail import _checks, posthoc
from longtail._checks import FloatArray, InputError
from longtail.posthoc import LEAST_AGAIN, AdjustedTwiceWarning, adjusted_twice
from longtail.priors import ClassPrior
from longtail.sklearn._baked import baked_tau
from longtail.sklearn._scores import METHODS, choose_method, final_estimator, read_logits

if TYPE_CHECKING:
    from longtail.sklearn import LogitAdjustedClassifier

# Whatever those inside are fitted with: bagging draws its examples by its own weights, and by
# theirs a calibrator and the last estimator of a stack learn the frequencies anew.
_BY_ITSELF = ("BaggingClassifier", "CalibratedClassifierCV", "StackingClassifier")


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
        """Return some of the rows.

        Args:
            index: which.
            kernel_of: the estimator to be fitted on them or asked about them, if its precomputed
                kernel is to lose columns as well: those not in `columns` (default `index`).
            columns: see there.
        """
        if kernel_of is not None:
            X, _ = _safe_split(kernel_of, self.X, None, index, columns)
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

    def with_weight(self, index: NDArray[np.intp] | None = None) -> NDArray[np.intp]:
        """Those of `index` whose weight is not zero: a weight of zero means no such row."""
        index = np.arange(len(self.y)) if index is None else index
        for weight in (self.weight, self.fit_weight):
            index = index if weight is None else index[weight[index] > 0]
        return index


# ------------------------------------------------------------------ settings


def check_labels(y: Any) -> NDArray[Any]:
    """Return one label per example, as an array."""
    if y is None:
        raise InputError("the estimator requires y to be passed, but the target y is None.")
    names = np.asarray(y, dtype=object) if isinstance(y, list | tuple) else np.asarray(y)
    if names.dtype == object and names.shape[:1] == (names.size,):  # a vector, or a column
        # None, NaN or what pandas has for them: it alone is unequal to itself, or can't be told.
        rows = [k for k, name in enumerate(names.ravel()) if name is None or _unlike_itself(name)]
        if rows:
            raise InputError(
                f"`y` has no label at row {rows[0]} ({len(rows)} such row(s)); drop these rows "
                f"from `X` and `y`."
            )
    check_classification_targets(y)
    if type_of_target(y, input_name="y") not in ("binary", "multiclass"):
        raise InputError(
            f"`y` must hold one label per example; its type is {type_of_target(y)!r}, which is "
            f"not supported."
        )
    return np.asarray(column_or_1d(y, warn=True))


def _unlike_itself(name: Any) -> bool:
    try:
        return bool(name != name)
    except TypeError:  # pandas.NA
        return True
    except ValueError:  # an array in place of a label, which scikit-learn refuses
        return False


def by_class(values: Any, classes: NDArray[Any], *, name: str) -> NDArray[Any]:
    """Return one number per class, from an array in the order of `classes`, or by label."""
    found = _checks.by_label(values, name=name)
    if found is not None:
        _same_labels(found, classes, name=name, pandas=hasattr(values, "to_numpy"))
        values = [found[label] for label in classes.tolist()]
    array = _checks.vector(values, name=name)
    if len(array) != len(classes):
        raise InputError(
            f"`{name}` must have one value per class; it has {len(array)} values but there are "
            f"{len(classes)} classes: {_checks.listing(map(repr, classes.tolist()))}."
        )
    return array


def _same_labels(given: Any, classes: NDArray[Any], *, name: str, pandas: bool) -> None:
    """Refuse labels that are not those of `classes`, each of them."""
    labels = classes.tolist()
    lacking = [label for label in labels if label not in given]
    extra = [label for label in given if label not in set(labels)]
    if lacking or extra:
        instead = (
            f" It is read by its labels and not by position; pass {name}.to_numpy() if it is "
            f"in the order of the sorted classes."
        )
        raise InputError(
            f"`{name}` must give a value to each class and to nothing else; "
            f"lacking: {_checks.listing(map(repr, lacking)) or 'none'}; "
            f"unknown: {_checks.listing(map(repr, extra)) or 'none'}.{instead * pandas}"
        )


def given_prior(value: Any, classes: NDArray[Any], *, name: str) -> ClassPrior:
    """Return a ClassPrior that was passed, or made of probabilities or counts that were."""
    if isinstance(value, ClassPrior):
        by_class(value.probs, classes, name=name)
        return value
    array = by_class(value, classes, name=name)
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
    if isinstance(value, Mapping) or np.ndim(value) != 2:
        vector = by_class(value, classes, name="costs")
        return _checks.positive_per_class(vector, len(classes), name="costs")
    matrix = _checks.matrix(value, name="costs").astype(np.float64)
    if hasattr(value, "index") and hasattr(value, "columns"):
        places = []
        for where, labels in (("index", value.index), ("columns", value.columns)):
            given = _checks.each_once(labels, where, name="costs")
            _same_labels(given, classes, name="costs", pandas=True)
            places.append([given.index(label) for label in classes.tolist()])
        matrix = matrix[np.ix_(*places)]
    if matrix.shape != (len(classes), len(classes)):
        raise InputError(
            f"a cost matrix must have one row per true class and one column per predicted class, "
            f"shape ({len(classes)}, {len(classes)}); its shape is {matrix.shape}."
        )
    return matrix


def encode(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """Return the index of each label in `classes`; one that the estimator never saw is refused."""
    known = np.isin(labels, classes)
    if not np.all(known):
        raise InputError(
            f"`y` holds classes that the estimator was not trained on: "
            f"{_checks.listing(map(repr, np.unique(labels[~known]).tolist()))}; drop these rows, "
            f"or fit the estimator on data that has them."
        )
    return np.searchsorted(classes, labels).astype(np.int64)


def learnt_prior(
    spec: Any, labels: NDArray[Any], weight: FloatArray | None, classes: NDArray[Any]
) -> ClassPrior:
    """Return the prior of the labels that a classifier was fitted on, or the one passed."""
    if not isinstance(spec, str):
        return given_prior(spec, classes, name="prior")
    totals = np.bincount(encode(labels, classes), weights=weight, minlength=len(classes))
    if np.any(totals == 0):
        raise InputError(
            f"prior='train' counts `y`, but class(es) "
            f"{_checks.listing(map(repr, classes[totals == 0].tolist()))} of the estimator have "
            f"no example there; pass prior=ClassPrior.from_counts(...) of its training data."
        )
    return ClassPrior.from_counts(totals) if weight is None else ClassPrior.from_weights(totals)


def effective_prior(
    logits: FloatArray, weight: FloatArray | None, classes: NDArray[Any], method: str
) -> ClassPrior:
    """Return the prior that a model has learnt: its mean prediction, (1/n) Σ_i p_y(x_i)."""
    if method == "decision_function":
        raise InputError(
            "prior='effective' is a mean of probabilities, but the scores come from "
            "decision_function; use prior='train', or wrap the estimator in "
            "CalibratedClassifierCV."
        )
    mean = np.average(np.exp(logits), axis=0, weights=weight)
    never = mean <= 2 * posthoc.SMALLEST_PROB
    if np.any(never):
        raise InputError(
            f"prior='effective' needs every class to be predicted with some probability, but "
            f"class(es) {_checks.listing(map(repr, classes[never].tolist()))} never are; use "
            f"prior='train'."
        )
    return ClassPrior.from_weights(mean)


# ------------------------------------------------------------------ predictions


class AdjustedBase(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Predictions of a fitted classifier under a target prior and costs."""

    estimator_: Any
    classes_: NDArray[Any]
    prior_: ClassPrior
    adjustment_: FloatArray

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class of largest adjusted score, or of least expected cost.

        Args:
            X: what the estimator's own `predict` takes, shape (examples, features).

        Returns:
            Labels, shape (examples,).
        """
        check_is_fitted(self)
        return np.asarray(self.classes_[self._decisions(X).argmax(axis=1)])

    def predict_proba(self, X: Any) -> FloatArray:
        """Return probabilities under the target prior: softmax_y(f_y − tau (log π_y − log q_y)).

        Costs play no part in them. They are calibrated as far as the estimator's own are; margins
        (an SVM's) are not logits, and their softmax only ranks.

        Args:
            X: what the estimator's own `predict` takes, shape (examples, features).

        Returns:
            Shape (examples, classes).
        """
        check_is_fitted(self)
        return np.asarray(softmax(self._logits(X) + self.adjustment_, axis=1))

    def predict_log_proba(self, X: Any) -> FloatArray:
        """Return logarithms of `predict_proba`, without its underflow.

        Args:
            X: what the estimator's own `predict` takes, shape (examples, features).

        Returns:
            Shape (examples, classes).
        """
        check_is_fitted(self)
        return np.asarray(log_softmax(self._logits(X) + self.adjustment_, axis=1))

    def decision_function(self, X: Any) -> FloatArray:
        """Return the scores whose largest `predict` takes: adjusted logits, or minus costs.

        Args:
            X: what the estimator's own `predict` takes, shape (examples, features).

        Returns:
            Shape (examples, classes); for two classes shape (examples,), the second class's score
            less the first's.
        """
        check_is_fitted(self)
        scores = self._decisions(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def retarget(
        self, *, tau: Any = "same", target: Any = "same", costs: Any = "same"
    ) -> LogitAdjustedClassifier:
        """Return the same fitted classifier under another rule, without fitting anything.

        Args:
            tau: as in LogitAdjustedClassifier, or "same" for the one in use.
            target: likewise.
            costs: likewise; None for no costs.

        Returns:
            A fitted LogitAdjustedClassifier around the frozen estimator.

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
        frozen = self.estimator_
        if not isinstance(frozen, FrozenEstimator):
            frozen = FrozenEstimator(frozen)
        made = LogitAdjustedClassifier(
            frozen,
            tau=self._tau if isinstance(tau, str) and tau == "same" else tau,
            prior=self.prior_,
            target=self.target if isinstance(target, str) and target == "same" else target,
            costs=self.costs if isinstance(costs, str) and costs == "same" else costs,
            response_method=self.response_method,
        )
        aim = target_prior(made.target, self.prior_, self.classes_)
        made._set_rule(
            frozen, self.classes_, self.prior_, tau=_checks.tau(made.tau), aim=aim,
            costs=check_costs(made.costs, self.classes_), method=self._method,
        )  # fmt: skip
        return made

    def _logits(self, X: Any) -> FloatArray:
        return read_logits(self.estimator_, X, self._method)

    def _decisions(self, X: Any) -> FloatArray:
        adjusted = self._logits(X) + self.adjustment_
        if self._costs is None:
            return adjusted
        if self._costs.ndim == 2:
            return np.asarray(-(softmax(adjusted, axis=1) @ self._costs))
        # As in `adjust_logits`; not in `adjustment_`, since probabilities have no part in costs.
        return np.asarray(adjusted + self._tau * np.log(self._costs))

    def _set_rule(
        self,
        estimator: Any,
        classes: NDArray[Any],
        prior: ClassPrior,
        *,
        tau: float,
        aim: ClassPrior,
        costs: FloatArray | None,
        method: str,
    ) -> None:
        """Set everything that prediction needs."""
        self.estimator_, self.classes_, self.prior_ = estimator, classes, prior
        self._tau, self._costs, self._method = tau, costs, method
        # A uniform target would shift all classes alike; `adjust_logits` leaves it out, too.
        self.adjustment_ = posthoc.adjustment(
            prior, tau=tau, target_prior=aim if np.ptp(aim.probs) else None
        )
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(estimator, name):
                setattr(self, name, getattr(estimator, name))
            elif hasattr(self, name):
                delattr(self, name)  # left by an earlier fit

    # -------------------------------------------------------------- fitting

    def _rows(self, X: Any, y: Any, sample_weight: Any, params: dict[str, Any]) -> Rows:
        """Checked settings and rows, with metadata sent where it was asked for."""
        estimator = self.estimator
        if isinstance(estimator, type) or not hasattr(estimator, "fit"):
            raise InputError(
                f"`estimator` must be a classifier instance with `fit`; got {estimator!r}."
            )
        choose_method(
            estimator, _checks.choice(self.response_method, METHODS, name="response_method")
        )
        if isinstance(self.prior, str):
            _checks.choice(self.prior, ("train", "effective"), name="prior")
        y = check_labels(y)
        X, y = indexable(X, y)
        weight = None
        if sample_weight is not None:
            weight = _checks.sample_weight(sample_weight, len(y))
        if get_config()["enable_metadata_routing"]:
            routed = process_routing(self, "fit", sample_weight=weight, **params)
            fit_params = dict(routed.estimator.fit)
            score_params = dict(routed.get("scorer", {}).get("score", {}))
            split_params = dict(routed.get("splitter", {}).get("split", {}))
            fit_weight = None if self._is_prefit() else self._routed_weight(fit_params)
        else:
            fit_params, split_params = {k: v for k, v in params.items() if v is not None}, {}
            score_params = {} if weight is None else {"sample_weight": weight}
            if weight is not None and not self._is_prefit():
                if not has_fit_parameter(estimator, "sample_weight"):
                    raise InputError(
                        f"`sample_weight` was given, but {type(estimator).__name__}.fit takes "
                        f"none, so it would learn another prior than the weights say; for a "
                        f"pipeline make {type(self).__name__} its last step, or turn metadata "
                        f"routing on: sklearn.set_config(enable_metadata_routing=True)."
                    )
                fit_params["sample_weight"] = weight
            fit_weight = fit_params.get(_weight_of_last_step(estimator))
            if fit_weight is not None:
                fit_weight = _checks.sample_weight(fit_weight, len(y))
        rows = Rows(X, y, weight, fit_weight, fit_params, score_params, split_params)
        kept = y[rows.with_weight()]
        if len(kept) == 0:
            raise InputError("`X` and `y` are empty; at least two examples are needed.")
        if len(np.unique(kept)) < 2:
            raise InputError(
                f"`y` must hold at least two classes, but only one class has examples with "
                f"positive weight: {kept.tolist()[0]!r} (n_samples = {len(kept)}); add examples "
                f"of another."
            )
        return rows

    def _routed_weight(self, fit_params: dict[str, Any]) -> FloatArray | None:
        """The `sample_weight` that the classifier itself is fitted with, under any name."""
        found = _weights(get_routing_for_object(self.estimator), fit_params)
        first = found[0]
        if all((one is None) == (first is None) and np.array_equal(first, one) for one in found):
            return None if first is None else np.asarray(first, dtype=np.float64)
        if isinstance(self.prior, str) and self.prior == "train":
            raise InputError(
                f"the classifiers inside {type(self.estimator).__name__} are fitted with unlike "
                f"weights, so no one prior='train' is theirs; pass prior='effective' or a "
                f"ClassPrior, or request the same weights for all of them with set_fit_request."
            )
        return None

    def _is_prefit(self) -> bool:
        return isinstance(self.estimator, FrozenEstimator)

    def _refuse_uniform(self, prior: ClassPrior) -> None:
        """For a fitted estimator and the balanced target: adjusting by this prior does nothing."""
        balanced = isinstance(self.target, str) and self.target == "balanced"
        if balanced and self.costs is None and np.ptp(prior.probs) == 0:
            raise InputError(
                "the prior is uniform, so no tau changes any prediction; if the rows given to "
                "`fit` were balanced and the estimator's training data were not, pass "
                "prior=ClassPrior.from_counts(...) of the latter."
            )

    def _warn_if_twice(self) -> None:
        """Warn if the fitted estimator favours rare classes itself."""
        by_labels = isinstance(self.prior, str) and self.prior == "train"
        if not by_labels or np.ptp(self.adjustment_) == 0:
            return
        model, baked = self.estimator_, baked_tau(final_estimator(self.estimator_))
        if baked is not None and baked >= LEAST_AGAIN:
            model = f"the estimator has an adjustment baked in already (tau = {baked:.4g})"
        text = adjusted_twice(model, self.prior_, tau=self._tau)
        if text is not None:
            text = f"{text.removesuffix('.')} (prior='effective')."
            warnings.warn(text, AdjustedTwiceWarning, stacklevel=3)

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


def _weight_of_last_step(estimator: Any) -> str:
    """The name under which a pipeline's `fit` takes the weights of its classifier."""
    name = ""
    while isinstance(estimator, Pipeline):
        step, estimator = estimator.steps[-1]
        name += f"{step}__"
    return f"{name}sample_weight"


def _weights(router: Any, params: Mapping[str, Any]) -> list[Any]:
    """The routed weights of each classifier that is fitted, None for one without."""
    own = params.get("sample_weight")
    if not isinstance(router, MetadataRouter):
        return [own]
    owner = router.owner  # before scikit-learn 1.8 it is a name alone
    if (owner if isinstance(owner, str) else type(owner).__name__) in _BY_ITSELF:
        return [own]
    routed = router.route_params(caller="fit", params=params)
    called = {
        name: (part.router, {callee for caller, callee in part.mapping if caller == "fit"})
        for name, part in router
        if name in routed  # which leaves out the router's own request
    }
    fitted = [name for name, (_, methods) in called.items() if "fit" in methods]
    if any(methods & {"transform", "fit_transform"} for _, methods in called.values()):
        fitted = fitted[-1:]  # a pipeline: the steps before the last only make its features
    found = [w for name in fitted for w in _weights(called[name][0], routed[name]["fit"])]
    takes = hasattr(owner, "fit") and has_fit_parameter(owner, "sample_weight")
    return [*found, own] if takes or not found else found
