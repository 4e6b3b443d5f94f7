"""The estimators with boosting libraries, imbalanced-learn and pandas."""

import warnings

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import BaggingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, make_scorer
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from longtail import AdjustedTwiceWarning, ClassPrior, InputError
from longtail.sklearn import (
    FewExamplesWarning,
    LogitAdjustedClassifier,
    LogitAdjustedClassifierCV,
    UnjudgedClassWarning,
)

try:  # at once, since it adds methods to requests for metadata
    import imblearn
except ImportError:
    imblearn = None

BOTH = (LogitAdjustedClassifier, LogitAdjustedClassifierCV)
pytestmark = pytest.mark.filterwarnings("ignore::longtail.sklearn.FewExamplesWarning")


def rows(sizes=(120, 40, 12), seed=0):
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return 1.5 * np.eye(len(sizes))[y] + rng.normal(size=(len(y), len(sizes))), y


class Boosting(ClassifierMixin, BaseEstimator):
    """Takes labels 0 .. K − 1 alone, as XGBoost does, and remembers what it was given."""

    __module__ = "xgboost.sklearn"

    def fit(self, X, y, eval_set=None, init_score=None):
        present = np.unique(y)
        if not np.array_equal(present, np.arange(len(present))):
            raise ValueError(f"Invalid classes inferred from unique values of `y`: {present}")
        for _, labels in eval_set or []:
            assert set(np.unique(labels)) <= set(present.tolist())
        assert init_score is None or len(init_score) == len(y)
        self.given_ = (eval_set, init_score)
        self.model_ = LogisticRegression().fit(X, y)
        self.classes_ = self.model_.classes_
        return self

    def predict_proba(self, X):
        return self.model_.predict_proba(X)

    def predict(self, X):
        return self.model_.predict(X)


# ------------------------------------------------------------------ labels 0 .. K − 1


@pytest.mark.parametrize("estimator", [Boosting(), make_pipeline(StandardScaler(), Boosting())])
@pytest.mark.parametrize("names", [None, np.array(["ant", "bee", "cat", "dog"])])
def test_labels_are_encoded_in_every_split(estimator, names):
    X, y = rows(sizes=(60, 20, 1, 12))
    labels = y if names is None else names[y]
    with pytest.warns(UnjudgedClassWarning):
        model = LogitAdjustedClassifierCV(estimator).fit(X, labels)
    plain = LogisticRegression()
    if isinstance(estimator, Pipeline):
        plain = make_pipeline(StandardScaler(), plain)
    with pytest.warns(UnjudgedClassWarning):
        other = LogitAdjustedClassifierCV(plain).fit(X, labels)
    assert model.best_tau_ == pytest.approx(other.best_tau_)
    np.testing.assert_array_equal(model.classes_, np.unique(labels))
    np.testing.assert_array_equal(model.predict(X), other.predict(X))
    fixed = LogitAdjustedClassifier(estimator).fit(X, labels)
    assert fixed.predict(X).dtype == np.asarray(labels).dtype


def test_xgboost_itself():
    xgboost = pytest.importorskip("xgboost")
    X, y = rows(sizes=(60, 20, 1, 12))
    names = np.array(["ant", "bee", "cat", "dog"])[y]
    booster = xgboost.XGBClassifier(n_estimators=5, max_depth=2, n_jobs=1)
    with pytest.warns(UnjudgedClassWarning):
        model = LogitAdjustedClassifierCV(booster, cv=3).fit(X, names)
    assert set(model.predict(X)) <= set(names)


# ------------------------------------------------------------------ parameters of fit


@pytest.mark.parametrize("kind", BOTH)
def test_parameters_of_fit_reach_the_estimator_without_metadata_routing(kind):
    X, y = rows()
    names = np.array(["ant", "bee", "cat"])[y]
    aside = [(X[:30], names[:30])]
    model = kind(Boosting()).fit(X, names, eval_set=aside, init_score=np.zeros(len(y)))
    eval_set, init_score = model.estimator_.estimator.given_
    np.testing.assert_array_equal(eval_set[0][1], y[:30])
    assert len(init_score) == len(y)
    with pytest.raises(TypeError, match="no_such"):
        kind(LogisticRegression()).fit(X, y, no_such=1)


@pytest.mark.parametrize("kind", BOTH)
def test_weights_of_a_pipelines_last_step_reach_the_prior(kind):
    X, y = rows()
    weight = np.array([0.5, 1.0, 20.0])[y]
    inner = make_pipeline(StandardScaler(), LogisticRegression())
    model = kind(inner).fit(X, y, logisticregression__sample_weight=weight)
    np.testing.assert_allclose(model.prior_.probs, np.bincount(y, weights=weight) / weight.sum())
    alike = kind(inner).fit(X, y, sample_weight=weight)
    assert alike.prior_ == model.prior_
    own = inner.fit(X, y, logisticregression__sample_weight=weight)
    np.testing.assert_array_equal(alike.estimator_.predict_proba(X), own.predict_proba(X))


def test_raw_counts_are_understood_as_a_prior():
    pandas = pytest.importorskip("pandas")
    X, y = rows()
    names = pandas.Series(np.array(["cat", "ant", "bee"])[y])
    for prior in (names.value_counts(), names.value_counts(normalize=True), [40, 12, 120]):
        model = LogitAdjustedClassifier(LogisticRegression(), prior=prior).fit(X, names)
        np.testing.assert_allclose(model.prior_.probs, np.array([40, 12, 120]) / 172)


# ------------------------------------------------------------------ another rule, not fitted again


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    "rule",
    [
        {"tau": 0.0},
        {"tau": 2.0},
        {"target": [0.2, 0.3, 0.5]},
        {"target": "train", "costs": [1.0, 2.0, 5.0]},
        {"costs": 1.0 - np.eye(3)},
    ],
    ids=str,
)
def test_a_fitted_model_takes_another_rule(kind, rule):
    X, y = rows()
    model = kind(LogisticRegression(), reweight=0.5).fit(X, y)
    before = model.predict_proba(X)
    other = model.retarget(**rule)
    tau = model.best_tau_ if kind is LogitAdjustedClassifierCV else 1.0
    settings = {"tau": tau, "reweight": 0.5, **rule}
    again = LogitAdjustedClassifier(LogisticRegression(), **settings).fit(X, y)
    np.testing.assert_allclose(other.predict_proba(X), again.predict_proba(X), atol=1e-12)
    np.testing.assert_array_equal(other.predict(X), again.predict(X))
    np.testing.assert_array_equal(model.predict_proba(X), before)
    assert isinstance(other.estimator, FrozenEstimator)
    # It is what fitting around the frozen estimator gives, too.
    refitted = LogitAdjustedClassifier(**other.get_params(deep=False)).fit(X, y)
    np.testing.assert_allclose(refitted.predict_proba(X), other.predict_proba(X), atol=1e-12)
    np.testing.assert_allclose(other.retarget(**rule).predict_proba(X), other.predict_proba(X))


def test_a_rule_keeps_what_is_not_said():
    X, y = rows()
    model = LogitAdjustedClassifier(GaussianNB(), tau=0.7, costs=[1.0, 2.0, 3.0]).fit(X, y)
    np.testing.assert_array_equal(model.retarget().predict(X), model.predict(X))
    without = LogitAdjustedClassifier(GaussianNB(), tau=0.7).fit(X, y)
    np.testing.assert_array_equal(model.retarget(costs=None).predict(X), without.predict(X))
    with pytest.raises(InputError, match="`target` must be one of"):
        model.retarget(target="uniform")


# ------------------------------------------------------------------ what is known of the choice


def test_the_choice_comes_with_its_interval():
    X, y = rows(sizes=(600, 200, 150))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = LogitAdjustedClassifierCV(LogisticRegression()).fit(X, y)
    low, high = model.best_tau_interval_
    assert low < model.best_tau_ < high
    text = repr(model.tau_curve_)
    assert "\n" not in text
    assert len(text) < 100
    assert f"tau={model.best_tau_:.3g}, interval=({low:.3g}, {high:.3g})" in text
    grid = LogitAdjustedClassifierCV(LogisticRegression(), scoring="f1_macro").fit(X, y)
    assert grid.best_tau_interval_ is None
    assert repr(grid.tau_curve_).endswith("points=81)")
    exact = LogitAdjustedClassifierCV(LogisticRegression(), select="minimum").fit(X, y)
    assert exact.best_tau_ == model.tau_curve_.exact.minimizer()[0]
    assert exact.best_score_ >= model.best_score_


@pytest.mark.filterwarnings("default::longtail.sklearn.FewExamplesWarning")
def test_few_examples_that_decide_are_told():
    with pytest.warns(FewExamplesWarning, match="in effect 23 of the held-out examples") as caught:
        LogitAdjustedClassifierCV(GaussianNB()).fit(*rows())
    assert [one.filename for one in caught] == [__file__]


# ------------------------------------------------------------------ rare classes favoured twice


@pytest.mark.skipif(imblearn is None, reason="imbalanced-learn is not installed")
def test_imbalanced_learn_itself():
    over = imblearn.over_sampling.RandomOverSampler(random_state=0)
    X, y = rows()
    for estimator in (
        imblearn.ensemble.BalancedRandomForestClassifier(
            5, sampling_strategy="all", replacement=True, bootstrap=False, random_state=0
        ),
        imblearn.pipeline.make_pipeline(over, LogisticRegression()),
    ):
        with pytest.warns(AdjustedTwiceWarning):
            LogitAdjustedClassifier(estimator).fit(X, y)


def test_catboost_itself():
    catboost = pytest.importorskip("catboost")
    X, y = rows()
    settings = {"iterations": 5, "verbose": 0, "allow_writing_files": False}
    weighted = catboost.CatBoostClassifier(auto_class_weights="Balanced", **settings)
    with pytest.warns(AdjustedTwiceWarning, match="auto_class_weights"):
        LogitAdjustedClassifier(weighted).fit(X, y)
    booster = catboost.CatBoostClassifier(**settings).fit(X, y)
    fresh, labels = rows(seed=1)
    model = LogitAdjustedClassifierCV(FrozenEstimator(booster), prior=ClassPrior.from_labels(y))
    assert model.fit(fresh, labels).predict(fresh).shape == labels.shape


# ------------------------------------------------------------------ metadata routing


@pytest.fixture
def routing():
    with config_context(enable_metadata_routing=True):
        yield


def asking(estimator, asks):
    with config_context(enable_metadata_routing=True):  # for lists of cases, made before any test
        return estimator.set_fit_request(sample_weight=asks)


def scaler(asks=False):
    return asking(StandardScaler(), asks)


def logistic(asks):
    return asking(LogisticRegression(), asks)


@pytest.mark.usefixtures("routing")
@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("estimator", "given", "counts"),
    [
        (logistic("w"), "w", True),
        (make_pipeline(scaler(), logistic("w")), "w", True),
        (make_pipeline(scaler(), make_pipeline(scaler(), logistic("w"))), "w", True),
        (
            GridSearchCV(make_pipeline(scaler(), logistic("w")), {"memory": [None]}, cv=2),
            "w",
            True,
        ),
        (make_pipeline(scaler(asks=True), logistic(True)), "sample_weight", True),
        (BaggingClassifier(LogisticRegression(), 3, random_state=0), "sample_weight", True),
        (make_pipeline(scaler(asks=True), logistic(False)), "sample_weight", False),
        (logistic(False), "sample_weight", False),
    ],
    ids=["alone", "pipeline", "nested", "search", "both", "bagging", "scaler alone", "deaf"],
)
def test_the_prior_is_that_of_the_weights_that_the_classifier_sees(kind, estimator, given, counts):
    X, y = rows()
    weight = np.array([0.5, 1.0, 20.0])[y]
    model = kind(estimator).fit(X, y, **{given: weight})
    expected = np.bincount(y, weights=weight if counts else None)
    np.testing.assert_allclose(model.prior_.probs, expected / expected.sum())


@pytest.mark.usefixtures("routing")
def test_weights_and_groups_reach_splitter_and_scorer():
    X, y = rows()
    weight, groups = np.arange(len(y)) % 3 + 1.0, np.arange(len(y)) % 4
    inner = asking(GaussianNB(), True)
    scorer = make_scorer(balanced_accuracy_score).set_score_request(sample_weight=True)
    routed = LogitAdjustedClassifierCV(inner, cv=GroupKFold(4), scoring=scorer)
    routed.fit(X, y, sample_weight=weight, groups=groups)
    splits = list(GroupKFold(4).split(X, y, groups))
    with config_context(enable_metadata_routing=False):
        direct = LogitAdjustedClassifierCV(GaussianNB(), cv=splits, scoring=scorer)
        direct.fit(X, y, sample_weight=weight)
    np.testing.assert_allclose(routed.tau_curve_.scores, direct.tau_curve_.scores)
    with pytest.raises(Exception, match="sample_weight"):
        LogitAdjustedClassifier(GaussianNB()).fit(X, y, sample_weight=weight)
    model = LogitAdjustedClassifier(make_pipeline(scaler(), logistic("w")))
    assert model.fit(X, y, w=(y != 1) * 1.0).classes_.tolist() == [0, 2]  # zero is absence
