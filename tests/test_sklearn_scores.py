"""Reading logits off classifiers: zeros, half precision, orders of classes."""

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier, StackingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from longtail import InputError
from longtail.sklearn import LogitAdjustedClassifier, LogitAdjustedClassifierCV

VOTERS = [
    RandomForestClassifier(20, random_state=0),
    RandomForestClassifier(20, min_samples_leaf=3, random_state=0),
    ExtraTreesClassifier(20, random_state=0),
    DecisionTreeClassifier(random_state=0),
    KNeighborsClassifier(5),
    make_pipeline(StandardScaler(), KNeighborsClassifier(3)),
]


@pytest.fixture(scope="module")
def digits():
    """Long-tailed rows to train on, and others."""
    X, y = load_digits(return_X_y=True)
    sizes = [60, 40, 30, 20, 15, 12, 10, 8, 6, 5]
    train = np.concatenate([np.flatnonzero(y == k)[:n] for k, n in enumerate(sizes)])
    rest = np.setdiff1d(np.arange(len(y)), train)[::4]
    return X[train], y[train], X[rest], y[rest]


@pytest.mark.parametrize("tau", [1.0, 4.0])
@pytest.mark.parametrize("estimator", VOTERS, ids=lambda e: type(e).__name__)
def test_a_class_without_a_vote_never_wins(digits, estimator, tau):
    X, y, X_rest, _ = digits
    model = LogitAdjustedClassifier(estimator, tau=tau).fit(X, y)
    plain = model.estimator_.predict_proba(X_rest)
    assert (plain == 0).any()
    chosen = model.predict(X_rest)
    assert (plain[np.arange(len(plain)), chosen] > 0).all()
    # By hand: the largest p / π^τ, where 0 stays 0. Where two are equal but for rounding, either.
    ratio = plain / model.prior_.probs**tau
    np.testing.assert_allclose(ratio[np.arange(len(ratio)), chosen], ratio.max(axis=1), rtol=1e-12)
    np.testing.assert_allclose(
        model.predict_proba(X_rest), ratio / ratio.sum(axis=1, keepdims=True), atol=1e-12
    )
    assert np.isfinite(model.predict_log_proba(X_rest)).all()


@pytest.mark.parametrize("kind", [LogitAdjustedClassifier, LogitAdjustedClassifierCV])
@pytest.mark.parametrize("estimator", VOTERS[:1], ids=lambda e: type(e).__name__)
def test_positive_probabilities_are_left_alone(digits, kind, estimator):
    X, y, X_rest, _ = digits
    model = kind(estimator).fit(X, y)
    plain = model.estimator_.predict_proba(X_rest)
    logits = model._logits(X_rest)
    np.testing.assert_array_equal(logits[plain > 0], np.log(plain[plain > 0]))
    np.testing.assert_allclose(logits[plain == 0], -126 * np.log(2))


STACK = StackingClassifier([("bayes", GaussianNB())], cv=2)  # its final estimator is the default


@pytest.mark.parametrize("method", ["auto", "predict_proba", "decision_function"])
@pytest.mark.parametrize("kind", [LogitAdjustedClassifier, LogitAdjustedClassifierCV])
@pytest.mark.parametrize(
    "estimator", [STACK, make_pipeline(StandardScaler(), STACK)], ids=["", "|"]
)
def test_stacking_is_read_as_with_its_default_said(digits, kind, estimator, method):
    X, y, X_rest, _ = digits
    X, y = X[y < 3], y[y < 3]
    said = clone(estimator)
    (said if estimator is STACK else said[-1]).final_estimator = LogisticRegression()
    found, wanted = (
        kind(one, response_method=method).fit(X, y).predict_proba(X_rest)
        for one in (estimator, said)
    )
    np.testing.assert_array_equal(found, wanted)


class Rough(ClassifierMixin, BaseEstimator):
    """Probabilities and margins in half precision, as networks on a GPU give them."""

    def __init__(self, kind="float16"):
        self.kind = kind

    def fit(self, X, y):
        self.model_ = LogisticRegression().fit(X, y)
        self.classes_ = self.model_.classes_
        return self

    def _in_its_kind(self, scores):
        scores = torch.tensor(scores)
        return scores.bfloat16() if self.kind == "bfloat16" else scores.half().numpy()

    def predict_proba(self, X):
        return self._in_its_kind(self.model_.predict_proba(X))

    def decision_function(self, X):
        return self._in_its_kind(self.model_.decision_function(X))


@pytest.mark.parametrize("method", ["predict_proba", "decision_function"])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("wrapper", [LogitAdjustedClassifier, LogitAdjustedClassifierCV])
@pytest.mark.parametrize("classes", [2, 10])
def test_half_precision_is_taken(digits, wrapper, kind, method, classes):
    X, y, X_rest, _ = digits
    X, y = X[y < classes], y[y < classes]
    rough, exact = (
        wrapper(one, response_method=method).fit(X, y)
        for one in (Rough(kind), LogisticRegression())
    )
    assert rough._logits(X_rest).dtype == np.float64
    assert np.mean(rough.predict(X_rest) == exact.predict(X_rest)) > 0.9


def test_half_precision_has_to_add_up_as_well(digits):
    X, y, _, _ = digits

    class TooMuch(Rough):
        def predict_proba(self, X):
            return super().predict_proba(X) * np.float16(0.9)

    with pytest.raises(InputError, match=r"`estimator.predict_proba\(X\)` must sum to 1"):
        LogitAdjustedClassifier(TooMuch()).fit(X, y)


class InItsOwnOrder(ClassifierMixin, BaseEstimator):
    """A classifier whose columns are in another order than the sorted one, as it says itself."""

    def fit(self, X, y):
        self.model_ = LogisticRegression().fit(X, y)
        self.classes_ = self.model_.classes_[::-1]
        return self

    def predict_proba(self, X):
        return self.model_.predict_proba(X)[:, ::-1]


@pytest.mark.parametrize("prior", ["train", "effective", {"a": 0.6, "b": 0.3, "c": 0.1}], ids=str)
@pytest.mark.parametrize("wrapper", [LogitAdjustedClassifier, LogitAdjustedClassifierCV])
@pytest.mark.parametrize("frozen", [False, True])
def test_classes_in_another_order_are_refused(wrapper, prior, frozen):
    rng = np.random.default_rng(0)
    y = np.repeat(list("abc"), [60, 30, 10])
    X = rng.normal(size=(100, 2)) + np.repeat([0, 1, 2], [60, 30, 10])[:, None]
    estimator = FrozenEstimator(InItsOwnOrder().fit(X, y)) if frozen else InItsOwnOrder()
    message = "`estimator`.classes_ must be sorted.*InItsOwnOrder has 'c', 'b'"
    with pytest.raises(InputError, match=message):
        wrapper(estimator, prior=prior).fit(X, y)
