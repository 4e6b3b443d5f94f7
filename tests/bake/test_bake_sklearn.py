"""Baked linear models of scikit-learn: decisions, probabilities, pipelines, and the way back."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, RidgeClassifier, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from longtail import (
    AdjustedTwiceWarning,
    ClassPrior,
    InputError,
    LogitAdjustedClassifier,
    LogitAdjustedClassifierCV,
    bake_logit_adjustment,
    bake_record,
    bake_weight_normalization,
    unbake,
)

RANDOM = np.random.default_rng(0)
CENTRES = RANDOM.normal(size=(3, 6))
X = RANDOM.normal(size=(400, 6))
Y = np.argmax(X @ CENTRES.T + [2, 0, -1] + RANDOM.normal(size=(400, 3)), axis=1)
PRIOR = ClassPrior.from_labels(Y)
LOG_PI = np.log(np.bincount(Y) / len(Y))
NEW = RANDOM.normal(size=(10_000, 6))


def softmax(logits):
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def state(model):
    return model.coef_.tobytes(), np.asarray(model.intercept_).tobytes(), type(model.intercept_)


@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(),
        LinearSVC(fit_intercept=False),
        SGDClassifier(random_state=0),
        LinearDiscriminantAnalysis(),
    ],
    ids=repr,
)
def test_decisions_are_the_adjusted_ones(model):
    names = np.array(["cat", "dog", "emu"])
    model.fit(X, names[Y])
    before = state(model)
    baked = bake_logit_adjustment(model, PRIOR, tau=1.2)
    wanted = model.decision_function(NEW) - 1.2 * LOG_PI
    np.testing.assert_allclose(baked.decision_function(NEW), wanted, atol=1e-10)
    np.testing.assert_array_equal(baked.predict(NEW), names[wanted.argmax(axis=1)])
    if hasattr(model, "predict_proba"):
        np.testing.assert_allclose(baked.predict_proba(NEW), softmax(wanted), atol=1e-10)
    assert state(model) == before
    loaded = pickle.loads(pickle.dumps(baked))
    assert bake_record(loaded).tau == 1.2
    restored = unbake(loaded)
    assert state(restored) == before
    assert bake_record(restored) is None
    assert vars(restored).keys() == vars(model).keys()


@pytest.mark.parametrize("features", [2, 6])  # a bare vector of two has no class for each
@pytest.mark.parametrize(
    "model", [RidgeClassifier(fit_intercept=False), LogisticRegression()], ids=repr
)
def test_every_binary_classifier_has_one_margin(model, features):
    model.fit(X[:, :features], Y > 0)
    before, rows = state(model), NEW[:, :features]
    baked = bake_logit_adjustment(model, ClassPrior.from_counts([900, 100]), tau=0.5)
    wanted = model.decision_function(rows) + 0.5 * np.log(900 / 100)
    np.testing.assert_allclose(baked.decision_function(rows), wanted, atol=1e-10)
    np.testing.assert_array_equal(baked.predict(rows), wanted > 0)
    assert state(unbake(baked)) == before
    with pytest.raises(InputError, match=r"has 1 outputs, but .* is for two or more"):
        bake_weight_normalization(model)


def test_pipelines_and_searches():
    pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)
    search = GridSearchCV(LogisticRegression(), {"C": [0.1, 1]}, cv=2).fit(X, Y)
    for model in (search, pipeline):
        baked = bake_logit_adjustment(model, PRIOR)
        wanted = softmax(model.decision_function(NEW) - LOG_PI)
        np.testing.assert_allclose(baked.predict_proba(NEW), wanted, atol=1e-10)
    assert bake_record(baked).how == "added to the intercepts of LogisticRegression"


@pytest.mark.parametrize("bias_mode", ["scale", "keep", "drop"])
def test_weight_normalization(bias_mode):
    model = LogisticRegression().fit(X, Y)
    baked = bake_weight_normalization(model, tau=0.9, bias_mode=bias_mode)
    nu, f, b = np.linalg.norm(model.coef_, axis=1), model.decision_function(NEW), model.intercept_
    scale = nu**-0.9
    wanted = {"scale": f * scale, "keep": (f - b) * scale + b, "drop": (f - b) * scale}[bias_mode]
    np.testing.assert_allclose(baked.decision_function(NEW), wanted, atol=1e-10)
    assert state(unbake(baked)) == state(model)


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (RandomForestClassifier(2), {}, "ForestClassifier is not a linear classifier .* wrap"),
        (SGDClassifier(loss="log_loss"), {}, "not the softmax of its decision function"),
        (LogisticRegression(), {"prior": ClassPrior.from_counts([1, 2])}, "is for 2 classes"),
    ],
)
def test_bad_input(model, settings, message):
    with pytest.raises(InputError, match=message):
        bake_logit_adjustment(model.fit(X, Y), **{"prior": PRIOR, **settings})


def test_what_adjusts_a_classifier_is_not_baked_but_that_is():
    y = (Y > 0).astype(int)
    prior = ClassPrior.from_labels(y)
    model = LogitAdjustedClassifierCV(LogisticRegression()).fit(X, y)
    with pytest.raises(InputError, match=r"is not a linear classifier .* bake the `estimator_`"):
        bake_logit_adjustment(model, prior)
    baked = bake_logit_adjustment(model.estimator_, prior, tau=model.best_tau_)
    np.testing.assert_array_equal(baked.predict(NEW), model.predict(NEW))


def test_not_fitted_twice_and_changed():
    with pytest.raises(NotFittedError):
        bake_logit_adjustment(LogisticRegression(), PRIOR)
    baked = bake_logit_adjustment(LogisticRegression().fit(X, Y), PRIOR)
    with pytest.raises(InputError, match="LogisticRegression is baked already"):
        bake_logit_adjustment(baked, PRIOR)
    refitted = pickle.loads(pickle.dumps(baked)).fit(X[:300], Y[:300])
    assert bake_record(refitted) is None
    again = bake_logit_adjustment(refitted, PRIOR)
    np.testing.assert_allclose(again.intercept_, refitted.intercept_ - LOG_PI)
    baked.intercept_ += 1
    with pytest.raises(InputError, match="LogisticRegression is not baked"):
        unbake(baked)


def test_adjusting_what_is_baked_is_told_of():
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)
    baked = bake_logit_adjustment(model, PRIOR)
    with pytest.warns(AdjustedTwiceWarning, match=r"baked in already \(tau = 1\)") as caught:
        LogitAdjustedClassifier(FrozenEstimator(baked)).fit(X, Y)
    assert [one.filename for one in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for plain in (unbake(baked), bake_logit_adjustment(model, PRIOR, tau=0.3)):
            LogitAdjustedClassifier(FrozenEstimator(plain)).fit(X, Y)


def test_baking_a_classifier_that_favours_rare_classes_itself_is_told_of():
    weighted = LogisticRegression(class_weight="balanced").fit(X, Y)
    with pytest.warns(AdjustedTwiceWarning, match="class_weight='balanced'") as caught:
        bake_logit_adjustment(weighted, PRIOR)
    assert [one.filename for one in caught] == [__file__]
