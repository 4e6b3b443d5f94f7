"""Classifiers and losses in other people's files: skl2onnx, skops, optax, Keras."""

import os
import re
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

from longtail import (
    ClassPrior,
    InputError,
    LogitAdjustedClassifier,
    LogitAdjustedClassifierCV,
    LogitAdjustedLoss,
    adjust_logits,
)

DOCS = Path(__file__).parents[2] / "docs"
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(600, 6)).astype(np.float32)
Y = np.argmax(X @ RANDOM.normal(size=(6, 3)) + [2, 0, -1] + RANDOM.normal(size=(600, 3)), axis=1)
LABELS = {
    "three": Y,
    "two": (Y > 0).astype(int),
    "names": np.array(["a", "b", "c"])[Y],
    "odd": 10 * Y - 5,
}


def example(page, word):
    """The block of a page, not run by the page's own test, that has a word."""
    blocks = re.findall(r"^```py\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if word in block]
    return found


# ---- skl2onnx ----------------------------------------------------------------------------------


def check_onnx(model, **settings):
    """Labels and probabilities of the converted model are those of the classifier."""
    pytest.importorskip("skl2onnx")
    from skl2onnx import to_onnx

    import longtail.integrations.skl2onnx  # noqa: F401

    exported = to_onnx(model, X[:1], **settings).SerializeToString()
    session = onnxruntime.InferenceSession(exported, providers=["CPUExecutionProvider"])
    labels, probs = session.run(None, {"X": X})
    if isinstance(probs, list):
        probs = np.array([[row[name] for name in model.classes_.tolist()] for row in probs])
    np.testing.assert_allclose(probs, model.predict_proba(X), atol=2e-5)
    scores = np.atleast_2d(model.decision_function(X).T).T
    top = np.sort(np.abs(scores) if scores.shape[1] == 1 else scores, axis=1)
    clear = (top[:, -1] - top[:, -2] if scores.shape[1] > 1 else top[:, 0]) > 1e-4
    np.testing.assert_array_equal(labels[clear], model.predict(X)[clear])


INNER = {
    "logistic": LogisticRegression(),
    "forest": RandomForestClassifier(10, max_depth=4, random_state=0),
    "naive Bayes": GaussianNB(),
    "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
    "search": GridSearchCV(LogisticRegression(), {"C": [0.1, 1]}, cv=2),
    "calibrated": CalibratedClassifierCV(LinearSVC(), cv=2),
    "linear SVC": LinearSVC(),
    "ridge": RidgeClassifier(),
    "pipeline of an SVC": make_pipeline(StandardScaler(), LinearSVC()),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("labels", list(LABELS))
@pytest.mark.parametrize("inner", list(INNER))
def test_to_onnx(inner, labels):
    y = LABELS[labels]
    check_onnx(LogitAdjustedClassifier(INNER[inner]).fit(X, y))
    model = LogitAdjustedClassifierCV(INNER[inner], cv=2).fit(X, y)
    check_onnx(model, options={id(model): {"zipmap": False}})


@pytest.mark.parametrize("labels", ["three", "two"])
def test_to_onnx_with_costs_and_target(labels):
    y = LABELS[labels]
    width, inner = len(np.unique(y)), FrozenEstimator(LogisticRegression().fit(X, y))
    for settings in (
        {"costs": list(range(1, width + 1))},
        {"costs": RANDOM.random((width, width)), "tau": 0.5},
        {"target": "train"},
        {"target": np.arange(1, width + 1) / np.arange(1, width + 1).sum()},
    ):
        check_onnx(LogitAdjustedClassifier(inner, **settings).fit(X, y))
    check_onnx(make_pipeline(StandardScaler(), LogitAdjustedClassifier(GaussianNB())).fit(X, y))


@pytest.mark.filterwarnings("ignore")
def test_decision_functions_that_converters_do_not_give_are_refused():
    for inner in (SVC(), LogisticRegression()):
        model = LogitAdjustedClassifier(inner, response_method="decision_function", tau=0.5)
        with pytest.raises(InputError, match=f"decision function of {type(inner).__name__} has no"):
            check_onnx(model.fit(X, Y))


# ---- skops -------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", list(LABELS))
@pytest.mark.parametrize(
    "model",
    [
        LogitAdjustedClassifier(LogisticRegression()),
        LogitAdjustedClassifierCV(make_pipeline(StandardScaler(), GaussianNB()), cv=2),
    ],
    ids=["fixed", "tuned"],
)
def test_skops(model, labels, tmp_path, monkeypatch):
    io = pytest.importorskip("skops.io", reason="skops is not installed")
    from longtail.integrations.skops import TRUSTED_TYPES

    model = clone(model).fit(X, LABELS[labels])
    untrusted = io.get_untrusted_types(data=io.dumps(model))
    assert set(untrusted) <= set(TRUSTED_TYPES)
    monkeypatch.chdir(tmp_path)
    names = {"model": model}
    exec(example("deploy-onnx.md", "TRUSTED_TYPES"), names)
    assert names["model"] is not model
    np.testing.assert_array_equal(names["model"].predict(X), model.predict(X))
    np.testing.assert_array_equal(names["model"].predict_proba(X), model.predict_proba(X))


# ---- JAX and Keras -----------------------------------------------------------------------------

COUNTS = [900, 90, 10]
LOGITS = RANDOM.normal(size=(50, 3)).astype(np.float32)
TARGET = np.arange(50) % 3


def test_optax_has_the_same_loss_and_gradient():
    optax = pytest.importorskip("optax", reason="optax is not installed")
    import jax

    prior = ClassPrior.from_counts(COUNTS)

    @jax.jit
    @jax.value_and_grad
    def ours(z):
        adjusted = adjust_logits(z, prior, tau=-1.0)
        return optax.softmax_cross_entropy_with_integer_labels(adjusted, TARGET).mean()

    z = torch.tensor(LOGITS, requires_grad=True)
    loss = LogitAdjustedLoss(prior)(z, torch.tensor(TARGET))
    loss.backward()
    value, slope = ours(LOGITS)
    np.testing.assert_allclose(value, loss.item(), rtol=1e-6)
    np.testing.assert_allclose(slope, z.grad, atol=1e-7)
    names = {}
    exec(example("jax-keras.md", "optax"), names)
    wanted = LogitAdjustedLoss(prior)(torch.tensor(names["z"]), torch.tensor(names["y"]).long())
    np.testing.assert_allclose(names["loss"], wanted, rtol=1e-6)


def test_keras_has_the_same_loss(monkeypatch):
    if "KERAS_BACKEND" not in os.environ:
        monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="keras is not installed")
    names = {}
    exec(example("jax-keras.md", "keras"), names)
    names["prior"] = prior = ClassPrior.from_counts(COUNTS)
    z = keras.ops.convert_to_tensor(LOGITS)
    got = keras.ops.convert_to_numpy(names["logit_adjusted"](TARGET, z))
    wanted = LogitAdjustedLoss(prior, reduction="none")(torch.tensor(LOGITS), torch.tensor(TARGET))
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
