"""What the estimators say, or refuse, where they would do harm or nothing in silence."""

import warnings

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from longtail import AdjustedTwiceWarning, InputError
from longtail.sklearn import (
    FewExamplesWarning,
    FixedTauOnMarginsWarning,
    LogitAdjustedClassifier,
    LogitAdjustedClassifierCV,
)


def long_tailed(seed=0, sizes=(120, 40, 12)):
    """Overlapping Gaussian classes of these sizes, shuffled."""
    rng = np.random.default_rng(seed)
    centers = 1.5 * np.random.default_rng(0).normal(size=(len(sizes), 4))
    y = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return centers[y] + 1.5 * rng.normal(size=(len(y), 4)), y


@pytest.fixture
def silent():
    """Any warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", FewExamplesWarning)
        yield


# ------------------------------------------------------------------ tau = 1 on margins


@pytest.mark.parametrize(
    "estimator",
    [
        make_pipeline(StandardScaler(), LinearSVC()),
        FrozenEstimator(RidgeClassifier().fit(*long_tailed(1))),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_tau_one_on_margins_says_so(estimator):
    X, y = long_tailed()
    message = r"margins.*LogitAdjustedClassifierCV.*CalibratedClassifier"
    with pytest.warns(FixedTauOnMarginsWarning, match=message) as caught:
        LogitAdjustedClassifier(estimator).fit(X, y)
    assert [one.filename for one in caught] == [__file__]
    with pytest.warns(FixedTauOnMarginsWarning):
        LogitAdjustedClassifier(estimator, response_method="decision_function").fit(X, y)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    "model",
    [
        LogitAdjustedClassifierCV(RidgeClassifier()),
        LogitAdjustedClassifier(CalibratedClassifierCV(LinearSVC(), cv=2)),
        # Log-odds, since it has probabilities.
        LogitAdjustedClassifier(LogisticRegression(), response_method="decision_function"),
        LogitAdjustedClassifier(RidgeClassifier(), target="train"),
    ],
    ids=["CV", "calibrated", "log-odds", "nothing to adjust"],
)
def test_margins_in_good_hands_are_silent(model):
    model.fit(*long_tailed())


# ------------------------------------------------------------------ frozen and balanced


def balanced_rows(X, y, each=10):
    index = np.concatenate([np.flatnonzero(y == k)[:each] for k in np.unique(y)])
    return X[index], y[index]


def test_a_frozen_estimator_and_balanced_labels_are_refused():
    fitted = LogisticRegression().fit(*long_tailed())
    X, y = balanced_rows(*long_tailed(1))
    message = r"the prior is uniform.*prior=ClassPrior\.from_counts"
    with pytest.raises(InputError, match=message):
        LogitAdjustedClassifier(FrozenEstimator(fitted)).fit(X, y)
    weight = np.full(len(y), 0.5)
    with pytest.raises(InputError, match=message):
        LogitAdjustedClassifier(FrozenEstimator(fitted)).fit(X, y, sample_weight=weight)


# ------------------------------------------------------------------ rare classes favoured twice

EVEN = [1 / 3] * 3
WEIGHTED = LogisticRegression(class_weight="balanced")


@pytest.mark.parametrize(
    ("estimator", "told"),
    [
        (WEIGHTED, "class_weight='balanced'"),
        (
            make_pipeline(StandardScaler(), LogitAdjustedClassifier(LogisticRegression())),
            "LogitAdjustedClassifier",
        ),
        (
            FrozenEstimator(LogitAdjustedClassifier(LogisticRegression()).fit(*long_tailed(1))),
            "LogitAdjustedClassifier",
        ),
    ],
    ids=["weights", "adjusted", "frozen"],
)
@pytest.mark.parametrize("kind", [LogitAdjustedClassifier, LogitAdjustedClassifierCV])
def test_a_classifier_that_favours_rare_classes_itself_is_told_of(kind, estimator, told):
    X, y = long_tailed()
    settings = {"tau_grid": [1.0]} if kind is LogitAdjustedClassifierCV else {}
    with pytest.warns(AdjustedTwiceWarning, match=f"{told}.*prior='effective'") as caught:
        kind(estimator, **settings).fit(X, y)
    assert __file__ in [one.filename for one in caught]


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    "model",
    [
        LogitAdjustedClassifier(CalibratedClassifierCV(WEIGHTED, cv=2)),
        LogitAdjustedClassifier(GaussianNB(priors=EVEN), prior="effective"),
        LogitAdjustedClassifier(WEIGHTED, tau=0),
    ],
    ids=lambda model: str(model.estimator).split("(")[0],
)
def test_what_is_adjusted_once_is_silent(model):
    model.fit(*long_tailed())
