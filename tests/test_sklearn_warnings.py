"""Warnings and refusals of the estimators where they would silently do harm or nothing."""

import warnings

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GridSearchCV, LeaveOneOut
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from longtail import AdjustedTwiceWarning, ClassPrior, InputError
from longtail.sklearn import (
    FewExamplesWarning,
    FixedTauOnMarginsWarning,
    LogitAdjustedClassifier,
    LogitAdjustedClassifierCV,
    UnjudgedClassWarning,
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
        RidgeClassifier(),
        LinearSVC(),
        make_pipeline(StandardScaler(), LinearSVC()),
        GridSearchCV(RidgeClassifier(), {"alpha": [0.1, 1.0]}, cv=2),
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


def test_the_warning_names_the_classifier_and_is_right():
    X, y = long_tailed(sizes=(1500, 400, 100, 20, 5))
    X_test, y_test = long_tailed(1, sizes=(100,) * 5)

    def accuracy(model):
        return balanced_accuracy_score(y_test, model.fit(X, y).predict(X_test))

    with pytest.warns(FixedTauOnMarginsWarning, match="RidgeClassifier"):
        fixed = accuracy(LogitAdjustedClassifier(make_pipeline(RidgeClassifier())))
    assert fixed == pytest.approx(0.2, abs=0.02)  # all of them the rarest class
    plain = accuracy(RidgeClassifier())
    assert accuracy(LogitAdjustedClassifierCV(RidgeClassifier())) > plain + 0.05
    calibrated = CalibratedClassifierCV(RidgeClassifier(), cv=3)
    assert accuracy(LogitAdjustedClassifier(calibrated)) > plain + 0.05


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    "model",
    [
        LogitAdjustedClassifierCV(RidgeClassifier()),
        LogitAdjustedClassifier(CalibratedClassifierCV(LinearSVC(), cv=2)),
        # Log-odds, since it has probabilities; and margins whose tau somebody has chosen.
        LogitAdjustedClassifier(LogisticRegression(), response_method="decision_function"),
        LogitAdjustedClassifier(RidgeClassifier(), tau=0.2),
        LogitAdjustedClassifier(RidgeClassifier(), tau=0),
        LogitAdjustedClassifier(RidgeClassifier(), target="train"),
    ],
    ids=["CV", "calibrated", "log-odds", "tau chosen", "tau 0", "nothing to adjust"],
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


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    "settings",
    [
        {"prior": ClassPrior.from_counts([120, 40, 12])},
        {"prior": "effective"},
        {"prior": ClassPrior.uniform(3)},  # said, not counted
        {"tau": 0.0},
        {"target": [0.2, 0.3, 0.5]},
        {"costs": [1.0, 2.0, 3.0]},
    ],
    ids=["its prior", "effective", "uniform", "tau 0", "target", "costs"],
)
def test_balanced_labels_serve_where_something_is_meant(settings):
    fitted = LogisticRegression().fit(*long_tailed())
    X, y = balanced_rows(*long_tailed(1))
    LogitAdjustedClassifier(FrozenEstimator(fitted), **settings).fit(X, y)


# ------------------------------------------------------------------ classes too small to judge


@pytest.mark.parametrize("settings", [{}, {"prior": "effective"}, {"scoring": "accuracy"}])
@pytest.mark.parametrize("cv", [5, 2, LeaveOneOut()], ids=str)
@pytest.mark.filterwarnings("ignore:The least populated class")
def test_a_class_of_one_example_cannot_be_judged(cv, settings):
    X, y = long_tailed(sizes=(30, 12, 1, 3))
    names = np.array(["ant", "bee", "cat", "dog"])[y]
    model = LogitAdjustedClassifierCV(LogisticRegression(), cv=cv, **settings)
    with pytest.warns(UnjudgedClassWarning, match=r"class\(es\) 'cat' .*tau.*without") as caught:
        model.fit(X, names)
    ours = [one for one in caught if one.category is UnjudgedClassWarning]
    assert [one.filename for one in ours] == [__file__]


@pytest.mark.usefixtures("silent")
def test_two_examples_are_judged_whatever_the_number_of_folds():
    X, y = long_tailed(sizes=(80, 30, 2))
    for cv in (2, 5, 10):
        model = LogitAdjustedClassifierCV(LogisticRegression(), cv=cv).fit(X, y)
        # Each of the two is held out once, and asked about by a classifier that saw the other.
        assert model.tau_curve_.exact.per_class(4.0)[2] == 0.0


def test_folds_without_a_class_are_told_where_scores_are_averaged_over_them():
    X, y = long_tailed(sizes=(80, 30, 3))
    with pytest.warns(UserWarning, match="The least populated class in y has only 3 members"):
        LogitAdjustedClassifierCV(LogisticRegression(), scoring="f1_macro").fit(X, y)


# ------------------------------------------------------------------ rare classes favoured twice

EVEN = [1 / 3] * 3
WEIGHTED = LogisticRegression(class_weight="balanced")


@pytest.mark.parametrize(
    ("estimator", "told"),
    [
        (WEIGHTED, "class_weight='balanced'"),
        (LinearDiscriminantAnalysis(priors=EVEN), "even class frequencies"),
        (GridSearchCV(LogisticRegression(), {"class_weight": ["balanced"]}, cv=2), "class_weight"),
        (
            make_pipeline(StandardScaler(), LogitAdjustedClassifier(LogisticRegression())),
            "LogitAdjustedClassifier",
        ),
        (
            FrozenEstimator(LogitAdjustedClassifier(LogisticRegression()).fit(*long_tailed(1))),
            "LogitAdjustedClassifier",
        ),
    ],
    ids=["weights", "priors", "search", "adjusted", "frozen"],
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
        # Calibration learns the frequencies of the labels again.
        LogitAdjustedClassifier(CalibratedClassifierCV(WEIGHTED, cv=2)),
        LogitAdjustedClassifier(GaussianNB(priors=EVEN), prior=[0.3, 0.3, 0.4]),
        LogitAdjustedClassifier(GaussianNB(priors=EVEN), prior="effective"),
        LogitAdjustedClassifier(WEIGHTED, tau=0),
        # Little may be left to correct, and tau = -1 is the way back to the labels' frequencies.
        LogitAdjustedClassifier(WEIGHTED, tau=0.2),
        LogitAdjustedClassifier(GaussianNB(priors=EVEN), tau=-1),
        LogitAdjustedClassifier(LogitAdjustedClassifier(LogisticRegression(), tau=0)),
        LogitAdjustedClassifierCV(LogisticRegression(), cv=2),
    ],
    ids=lambda model: str(model.estimator).split("(")[0],
)
def test_what_is_adjusted_once_is_silent(model):
    model.fit(*long_tailed())
