"""Tuning a fitted estimator on its own training rows is noticed where the estimator shows it."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.ensemble import (
    BaggingClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from longtail.sklearn import LogitAdjustedClassifierCV, TunedOnTrainingDataWarning
from longtail.sklearn._leakage import evidence

TELLING = {
    "neighbours": KNeighborsClassifier(),
    "svc": SVC(),
    "gaussian process": GaussianProcessClassifier(max_iter_predict=5, optimizer=None),
    "tree": DecisionTreeClassifier(max_depth=3),
    "forest": RandomForestClassifier(5, random_state=0),
    "shallow forest": RandomForestClassifier(5, max_depth=2, random_state=0),
    "extra trees": ExtraTreesClassifier(5, random_state=0),
    "bagged trees": BaggingClassifier(n_estimators=5, random_state=0),
    "boosting": GradientBoostingClassifier(n_estimators=3),
    "naive bayes": GaussianNB(),
    "lda": LinearDiscriminantAnalysis(),
    "qda": QuadraticDiscriminantAnalysis(),
    "logistic regression": LogisticRegression(),
    "weak logistic regression": LogisticRegression(C=0.01),
    "scaled": make_pipeline(StandardScaler(), HistGradientBoostingClassifier(max_iter=5)),
    "scaled neighbours": make_pipeline("passthrough", StandardScaler(), KNeighborsClassifier()),
    "search": GridSearchCV(LogisticRegression(), {"C": [1.0]}, cv=2),
}


def rows(seed, separation=1.0, sizes=(150, 60, 30)):
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return separation * np.eye(len(sizes), 5)[y] + rng.normal(size=(len(y), 5)), y


@pytest.mark.parametrize("name", TELLING)
@pytest.mark.parametrize("freeze", [False, True])
def test_training_rows_are_noticed_and_others_are_not(name, freeze):
    X, y = rows(0)
    fitted = TELLING[name].fit(X, y)
    model = (
        LogitAdjustedClassifierCV(FrozenEstimator(fitted))
        if freeze
        else LogitAdjustedClassifierCV(fitted, cv="prefit", refit=False)
    )
    with pytest.warns(TunedOnTrainingDataWarning, match="fitted on the rows that tau is being"):
        model.fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TunedOnTrainingDataWarning)
        model.fit(*rows(1))


@pytest.mark.parametrize("separation", [0.0, 0.5, 2.0, 4.0, 8.0])
@pytest.mark.parametrize("num_rows", [40, 400, 4000])
def test_no_false_alarm_on_easy_or_hard_data(separation, num_rows):
    sizes = (num_rows // 2, num_rows // 4, num_rows // 4)
    X, y = rows(0, separation, sizes)
    estimators = [LogisticRegression(), LogisticRegression(C=100), DecisionTreeClassifier()]
    for estimator in (*estimators, RandomForestClassifier(3, max_depth=3), SVC(), GaussianNB()):
        estimator.fit(X, y)
        for seed in range(1, 6):
            found = evidence(estimator, *rows(seed, separation, sizes))
            assert found is None, (estimator, found)


def test_a_part_of_the_training_rows_is_noticed_by_those_that_keep_them():
    X, y = rows(0)
    for estimator in (KNeighborsClassifier(), SVC(C=0.1)):
        estimator.fit(X, y)
        assert "of these rows are among those" in evidence(estimator, X[:100], y[:100])


def test_what_cannot_be_compared_is_silent():
    X, y = rows(0)
    telling = KNeighborsClassifier().fit(sparse.csr_array(X), y)
    assert evidence(telling, sparse.csr_array(X), y) is not None
    words = np.array([["a"], ["b"]] * 120)
    assert evidence(telling, words, y) is None
    holes = X.copy()
    holes[0, 0] = np.nan
    assert evidence(HistGradientBoostingClassifier(max_iter=2).fit(holes, y), holes, y) is None


def as_they_are(words):
    """An analyzer for rows that are lists of words already."""
    return words


def test_rows_of_different_lengths_cannot_be_compared_and_are_tuned_on():
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat([0, 1], [60, 20]))
    words = [["some", "word", "more"][: 1 + k + rng.integers(2)] for k in y]
    text = make_pipeline(TfidfVectorizer(analyzer=as_they_are), LogisticRegression())
    model = LogitAdjustedClassifierCV(FrozenEstimator(text.fit(words[:40], y[:40])))
    assert model.fit(words[40:], y[40:]).predict(words).shape == (80,)


@pytest.mark.parametrize(
    "estimator",
    [
        LogisticRegression(),
        GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2),
        make_pipeline(StandardScaler(), LogisticRegression()).set_output(transform="pandas"),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_frames_are_looked_at_without_a_word_on_their_names(estimator):
    pandas = pytest.importorskip("pandas")
    X, y = rows(0)
    frame = pandas.DataFrame(X, columns=list("abcde"))
    fitted = clone(estimator).fit(frame[:120], y[:120])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LogitAdjustedClassifierCV(FrozenEstimator(fitted)).fit(frame[120:], y[120:])
    assert evidence(fitted, frame[:120], y[:120]) is not None
