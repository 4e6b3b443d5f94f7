"""Reading logits off classifiers: exact zeros stay finite and keep their rank."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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

from longtail import ClassPrior, InputError
from longtail.sklearn import LogitAdjustedClassifier, LogitAdjustedClassifierCV
from longtail.sklearn._scores import ScoreReader, probe_rows

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


@pytest.mark.parametrize("kind", [LogitAdjustedClassifier, LogitAdjustedClassifierCV])
@pytest.mark.parametrize("estimator", VOTERS, ids=lambda e: type(e).__name__)
def test_zeros_are_finite_and_keep_their_rank(digits, kind, estimator):
    X, y, X_rest, _ = digits
    model = kind(estimator).fit(X, y)
    plain = model.estimator_.predict_proba(X_rest)
    assert (plain == 0).any()
    assert np.isfinite(model.predict_log_proba(X_rest)).all()
    logits = model._logits(X_rest)
    assert np.isfinite(logits).all()
    for k in range(10):
        # Equal probabilities get equal logits, and larger ones larger: per class, over all rows.
        values, places = np.unique(plain[:, k], return_inverse=True)
        assert max(np.ptp(logits[places == v, k]) for v in range(len(values))) == 0
        steps = np.diff([logits[places == v, k][0] for v in range(len(values))])
        assert (steps >= 0).all()
        assert (steps > 0)[np.diff(values) > 1e-12].all()


@pytest.mark.parametrize("estimator", VOTERS, ids=lambda e: type(e).__name__)
def test_at_tau_one_decisions_are_those_of_the_ratio_itself(digits, estimator):
    X, y, X_rest, _ = digits
    model = LogitAdjustedClassifier(estimator).fit(X, y)
    ratio = model.estimator_.predict_proba(X_rest) / model.prior_.probs
    # Where two ratios are equal but for rounding, either is right.
    chosen = ratio[np.arange(len(ratio)), model.predict(X_rest)]
    np.testing.assert_allclose(chosen, ratio.max(axis=1), rtol=1e-12)


def test_positive_probabilities_are_left_alone(digits):
    X, y, X_rest, _ = digits
    model = LogitAdjustedClassifier(LogisticRegression(max_iter=50)).fit(X, y)
    expected = np.log(model.estimator_.predict_proba(X_rest))
    np.testing.assert_array_equal(model._logits(X_rest), expected)
    forest = LogitAdjustedClassifier(VOTERS[0]).fit(X, y)
    plain = forest.estimator_.predict_proba(X_rest)
    kept = plain >= forest._reader.smallest
    np.testing.assert_array_equal(forest._logits(X_rest)[kept], np.log(plain[kept]))


def test_an_underflow_is_read_from_the_logarithms(digits):
    X, y, X_rest, _ = digits
    bayes = GaussianNB(var_smoothing=1e-3)
    model = LogitAdjustedClassifier(bayes).fit(X, y)
    assert (model.estimator_.predict_proba(X_rest) == 0).any()
    np.testing.assert_allclose(model._logits(X_rest), model.estimator_.predict_log_proba(X_rest))
    tuned = LogitAdjustedClassifierCV(bayes, cv=3).fit(X, y)
    np.testing.assert_allclose(tuned._logits(X_rest), tuned.estimator_.predict_log_proba(X_rest))


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


def test_zeros_that_fit_never_saw_rank_below_everything():
    reader = ScoreReader("predict_proba")
    answer = np.array([[0.0, 1.0], [5e-324, 1.0], [1e-300, 1.0]])
    logits = reader.logits(answer, ClassPrior.uniform(2))
    assert np.isfinite(logits).all()
    assert (np.diff(logits[:, 0]) > 0).all()


@settings(max_examples=100, deadline=None)
@given(
    probs=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=20),
    smallest=st.floats(1e-6, 1.0),
    share=st.floats(1e-4, 0.999),
)
def test_the_reading_is_monotone_and_finite(probs, smallest, share):
    prior = ClassPrior.from_probs([share, 1.0 - share])
    p = np.sort(probs)
    answer = np.stack([p, 1 - p], axis=1)
    logits = ScoreReader("predict_proba", smallest).logits(answer, prior)
    assert np.isfinite(logits).all()
    assert (np.diff(logits[:, 0]) >= 0).all()
    # Nothing without votes comes near the class's own prior.
    assert logits[p == 0, 0].max(initial=-np.inf) <= np.log(share / 10) + 1e-12
    apart = np.diff(p) > 1e-9
    assert (np.diff(logits[:, 0])[apart] > 0).all()


def test_below_a_fifth_of_the_prior_a_line_goes_on_from_the_logarithm():
    prior = ClassPrior.from_probs([0.2, 0.8])
    p = np.array([0.0, 0.02, 0.04, 0.1])  # the knee is 0.2 / 5
    answer = np.stack([p, 1 - p], axis=1)
    logits = ScoreReader("predict_proba", smallest=0.5).logits(answer, prior)
    expected = [np.log(0.02), (np.log(0.02) + np.log(0.04)) / 2, np.log(0.04), np.log(0.1)]
    np.testing.assert_allclose(logits[:, 0], expected)
    # A smaller vote that was seen in fit is the knee itself.
    low = ScoreReader("predict_proba", smallest=0.01).logits(answer, prior)
    np.testing.assert_allclose(low[:, 0], [np.log(0.005), *np.log(p[1:])])


def test_readers_of_folds_merge():
    few, many = ScoreReader("predict_proba", 0.1), ScoreReader("predict_proba", 0.02)
    none = ScoreReader("predict_proba")
    assert ScoreReader.merge([few, none, many]) == many
    assert ScoreReader.merge([none, none]) == none
    assert ScoreReader.merge([few, ScoreReader("predict_log_proba")]).method == "predict_log_proba"


@pytest.mark.parametrize("total", [900, 1000, 5000])
def test_rows_are_probed_by_weight(total):
    rng = np.random.default_rng(0)
    weight = rng.integers(1, 4, size=total // 2).astype(float)
    again = np.repeat(np.arange(len(weight)), weight.astype(int))
    by_weight = probe_rows(len(weight), weight)
    by_repetition = np.unique(again[probe_rows(len(again), None)])
    np.testing.assert_array_equal(by_weight, by_repetition)
    assert len(by_weight) <= 1000


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
    message = f"{wrapper.__name__}: `estimator`.classes_ must be sorted.*InItsOwnOrder has 'c', 'b'"
    with pytest.raises(InputError, match=message):
        wrapper(estimator, prior=prior).fit(X, y)
