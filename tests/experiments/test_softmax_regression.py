"""Softmax regression over many classes against NumPy's own gradient, and its known minima."""

import numpy as np
import pytest

from longtail import ClassPrior, margins
from longtail._checks import InputError
from longtail.experiments import affine, softmax_regression

pytest.importorskip("torch")


def problem(*, classes=7, dimension=3, seed=0):
    random = np.random.default_rng(seed)
    counts = np.array([60, 40, 25, 12, 6, 3, 2])[:classes]
    centers = 2.0 * random.standard_normal((classes, dimension))
    target = np.repeat(np.arange(classes), counts)
    features = centers[target] + random.standard_normal((len(target), dimension))
    return features.astype(np.float32), target, ClassPrior.from_counts(counts)


def summed_loss(weights, features, target, offset, ridge):
    """The loss and its gradient, example by example, in float64."""
    value, gradient = 0.5 * ridge * (weights[:, :-1] ** 2).sum(), np.zeros_like(weights)
    gradient[:, :-1] = ridge * weights[:, :-1]
    for x, y in zip(features.astype(np.float64), target, strict=True):
        extended = np.append(x, 1.0)
        logits = weights @ extended + offset
        probs = np.exp(logits - logits.max())
        probs /= probs.sum()
        value -= np.log(probs[y])
        probs[y] -= 1.0
        gradient += np.outer(probs, extended)
    return value, gradient


def fitted(features, target, prior, **options):
    start = np.zeros((prior.num_classes, features.shape[1] + 1))
    return softmax_regression.fit(
        features, target, start=start, **{"ridge": 0.3, "tolerance": 1e-3, **options}
    )


@pytest.mark.parametrize("adjusted", [False, True])
def test_the_gradient_vanishes_at_the_minimum(adjusted):
    features, target, prior = problem()
    offset = prior.log_probs if adjusted else np.zeros(prior.num_classes)
    found = fitted(features, target, prior, offset=offset)
    least, gradient = summed_loss(found.weights, features, target, offset, 0.3)
    assert np.abs(gradient).max() < 0.02
    random = np.random.default_rng(1)
    for _ in range(5):  # and it is a minimum, not a saddle
        moved = found.weights + 0.3 * random.standard_normal(found.weights.shape)
        assert summed_loss(moved, features, target, offset, 0.3)[0] > least
    assert found.gradient <= 1e-3


def test_the_adjusted_loss_is_the_softmax_one_with_its_biases_moved():
    features, target, prior = problem()
    softmax = fitted(features, target, prior).weights
    adjusted = fitted(features, target, prior, offset=prior.log_probs).weights
    expected = softmax.copy()
    expected[:, -1] -= prior.log_probs
    difference = adjusted - expected
    difference[:, -1] -= difference[:, -1].mean()  # all biases may move together
    assert np.abs(difference).max() < 0.03  # of weights up to 4


def test_two_classes_are_the_affine_separator():
    random = np.random.default_rng(2)
    target = (random.random(400) < 0.2).astype(np.int64)
    features = (random.standard_normal((400, 2)) + 1.2 * target[:, None]).astype(np.float32)
    prior = ClassPrior.from_labels(target)
    found = fitted(features, target, prior, ridge=1e-6).weights
    exact = affine.fit(features[None].astype(np.float64), target[None], [margins.softmax(prior)])
    np.testing.assert_allclose(found[1] - found[0], exact[0], atol=2e-3)


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_the_loss_in_pieces_is_the_loss(monkeypatch, rows):
    features, target, prior = problem()
    monkeypatch.setitem(softmax_regression._PIECE, "cpu", rows * prior.num_classes)
    weights = np.random.default_rng(3).standard_normal((prior.num_classes, 4))
    made = softmax_regression._Problem.of(features, target, weights, 0.3, prior.log_probs, "cpu")
    value, gradient = made.value_and_gradient(weights)
    expected = summed_loss(weights, features, target, prior.log_probs, 0.3)
    assert value == pytest.approx(expected[0], rel=1e-6)
    np.testing.assert_allclose(gradient, expected[1], atol=1e-3)


def test_what_is_refused():
    features, target, prior = problem()
    with pytest.raises(InputError, match="`ridge` must be"):
        fitted(features, target, prior, ridge=0.0)
    with pytest.raises(InputError, match=r"`features` must have shape \(148, 2\)"):
        softmax_regression.fit(features, target, start=np.zeros((7, 3)), ridge=1.0)
    with pytest.raises(InputError, match=r"class\(es\) 7 have no examples"):
        softmax_regression.fit(features, target, start=np.zeros((8, 4)), ridge=1.0)
    with pytest.raises(RuntimeError, match="no minimum after"):
        fitted(features, target, prior, most=1)
