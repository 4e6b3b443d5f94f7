"""With metadata routing on, the prior is that of the weights which the classifier itself sees."""

import numpy as np
import pytest
from sklearn import config_context
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from longtail import ClassPrior, InputError
from longtail.sklearn import LogitAdjustedClassifier, LogitAdjustedClassifierCV

BOTH = (LogitAdjustedClassifier, LogitAdjustedClassifierCV)


@pytest.fixture(autouse=True)
def routing():
    with config_context(enable_metadata_routing=True):
        yield


def rows():
    """Overlapping classes of 120, 40 and 12 rows, with weights that turn their order round."""
    y = np.random.default_rng(1).permutation(np.repeat(np.arange(3), (120, 40, 12)))
    X = np.eye(3)[y] + np.random.default_rng(0).normal(size=(len(y), 3))
    return X, y, np.array([0.5, 1.0, 20.0])[y]


def asking(estimator, asks):
    with config_context(enable_metadata_routing=True):  # for lists of cases, made before any test
        return estimator.set_fit_request(sample_weight=asks)


def scaler(asks=False):
    return asking(StandardScaler(), asks)


def logistic(asks):
    return asking(LogisticRegression(), asks)


ALIASED = {
    "alone": logistic("w"),
    "pipeline": make_pipeline(scaler(), logistic("w")),
    "pipeline in a pipeline": make_pipeline(scaler(), make_pipeline(scaler(), logistic("w"))),
    "search": GridSearchCV(make_pipeline(scaler(), logistic("w")), {"memory": [None]}, cv=2),
    "voting": VotingClassifier(
        [("a", logistic("w")), ("b", make_pipeline(scaler(), logistic("w")))], voting="soft"
    ),
}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("estimator", ALIASED.values(), ids=ALIASED.keys())
def test_weights_under_another_name_reach_the_prior(kind, estimator):
    X, y, w = rows()
    model = kind(estimator).fit(X, y, w=w)
    np.testing.assert_allclose(model.prior_.probs, np.bincount(y, weights=w) / w.sum())


@pytest.mark.parametrize(
    "estimator",
    [
        make_pipeline(scaler(), logistic(True)),
        make_pipeline(scaler(asks=True), logistic(True)),
        BaggingClassifier(make_pipeline(scaler(), logistic(True)), 3, random_state=0),
        BaggingClassifier(LogisticRegression(), 3, random_state=0),  # draws rows by them
        asking(CalibratedClassifierCV(logistic(True), cv=2), True),
        # What decides is the calibrator, or the last of a stack, whatever is inside.
        asking(CalibratedClassifierCV(KNeighborsClassifier(), cv=2), True),
        StackingClassifier(
            [("a", KNeighborsClassifier()), ("b", logistic(True))], LogisticRegression(), cv=2
        ),
    ],
    ids=["classifier", "all steps", "bagging", "drawn", "calibrated", "calibrator", "stack"],
)
def test_weights_by_their_own_name_reach_the_prior(estimator):
    X, y, w = rows()
    model = LogitAdjustedClassifier(estimator).fit(X, y, sample_weight=w)
    np.testing.assert_allclose(model.prior_.probs, np.bincount(y, weights=w) / w.sum())


@pytest.mark.parametrize("kind", BOTH)
def test_weights_of_the_scaler_alone_leave_the_prior_as_it_is(kind):
    X, y, w = rows()
    estimator = make_pipeline(scaler(asks=True), logistic(False))
    assert kind(estimator).fit(X, y, sample_weight=w).prior_ == ClassPrior.from_labels(y)
    two = make_pipeline(scaler(asks="v"), logistic("w"))
    model = kind(two).fit(X, y, v=np.ones(len(y)), w=w)
    np.testing.assert_allclose(model.prior_.probs, np.bincount(y, weights=w) / w.sum())


def test_a_weight_of_zero_is_absence_under_any_name():
    X, y, w = rows()
    w[y == 1] = 0.0
    model = LogitAdjustedClassifier(make_pipeline(scaler(), logistic("w"))).fit(X, y, w=w)
    assert model.classes_.tolist() == [0, 2]


@pytest.mark.parametrize("kind", BOTH)
def test_classifiers_of_unlike_weights_need_a_prior_that_is_said(kind):
    X, y, w = rows()
    some = VotingClassifier([("a", logistic(True)), ("b", logistic(False))], voting="soft")
    message = r"VotingClassifier.*unlike.*pass prior=.*set_fit_request"
    with pytest.raises(InputError, match=message):
        kind(some).fit(X, y, sample_weight=w)
    kind(some, prior="effective").fit(X, y, sample_weight=w)
    kind(some, prior=[0.3, 0.3, 0.4]).fit(X, y, sample_weight=w)


def test_groups_alone_are_never_refused():
    X, y, _ = rows()
    groups = np.arange(len(y)) % 4
    voting = VotingClassifier([("a", logistic(True)), ("b", logistic(False))], voting="soft")
    for estimator in (voting, Pipeline([("scale", scaler()), ("vote", voting)])):
        model = LogitAdjustedClassifierCV(estimator, cv=GroupKFold(4)).fit(X, y, groups=groups)
        assert model.prior_ == ClassPrior.from_labels(y)
    calibrated = CalibratedClassifierCV(logistic(False), cv=GroupKFold(4))
    model = LogitAdjustedClassifier(calibrated).fit(X, y, groups=groups)
    assert model.prior_ == ClassPrior.from_labels(y)


def test_a_fitted_estimator_is_asked_for_no_weights():
    X, y, w = rows()
    some = VotingClassifier([("a", logistic(True)), ("b", logistic(False))], voting="soft")
    some.fit(X, y, sample_weight=w)
    model = LogitAdjustedClassifierCV(some, cv="prefit", refit=False)
    fresh = X + np.random.default_rng(2).normal(size=X.shape)
    assert model.fit(fresh, y, sample_weight=w).prior_ == ClassPrior.from_weights(
        np.bincount(y, weights=w)
    )
