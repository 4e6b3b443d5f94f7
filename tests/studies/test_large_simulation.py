"""The simulation at full class count, in small, against closed forms and plain NumPy."""

import functools
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from longtail import ClassPrior
from studies import __main__
from studies import large_simulation as simulation
from studies.large_simulation import LIMIT, POSTHOC, Settings

ROOT = Path(__file__).parents[2]
CLASSES = 50
COUNTS = np.maximum(3, 600 / np.arange(1, CLASSES + 1)).astype(np.int64)
SETTINGS = Settings(
    dimension=6,
    scales={"imagenet-lt": 1.6},
    multiples={"imagenet-lt": (1, 30)},
    trials=2,
    test_points=20_000,
    tolerance=0.03,
)


@functools.cache
def small_study():
    return simulation.run(SETTINGS, {"imagenet-lt": COUNTS})


# Gaussian classes.


@pytest.mark.parametrize("distance", [0.8, 2.0, 3.5])
def test_the_bayes_error_of_two_classes_has_a_closed_form(distance):
    centers = np.zeros((2, 5))
    centers[1] = distance / np.sqrt(5)
    points, answers = simulation.sample(centers, np.full(2, 40_000), np.random.default_rng(0))
    weights = simulation.true_weights(centers)
    exact = 100 * norm.cdf(-distance / 2)
    found = simulation.bayes_error(points, weights, per_class=40_000)
    assert abs(found.mean - exact) < 4 * found.se < 1.0
    # The share of wrong decisions estimates the same, with more noise.
    wrong = simulation.decide(points, weights) != answers
    sampled = simulation.estimate(wrong, per_class=40_000)
    assert abs(sampled.mean - exact) < 4 * sampled.se
    assert sampled.se > found.se


# Softmax regression.


def problem():
    random = np.random.default_rng(0)
    counts = np.array([60, 40, 25, 12, 6, 3, 2])
    centers = 2.0 * random.standard_normal((7, 3))
    target = np.repeat(np.arange(7), counts)
    features = centers[target] + random.standard_normal((len(target), 3))
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


def fitted(features, target, **options):
    options = {"ridge": 0.3, "tolerance": 1e-3, "start": np.zeros((7, 4)), **options}
    return simulation.fit(features, target, **options)


@pytest.mark.parametrize("adjusted", [False, True])
def test_the_gradient_vanishes_at_the_minimum(adjusted):
    features, target, prior = problem()
    offset = prior.log_probs if adjusted else np.zeros(7)
    found = fitted(features, target, offset=offset)
    least, gradient = summed_loss(found.weights, features, target, offset, 0.3)
    assert np.abs(gradient).max() < 0.02
    random = np.random.default_rng(1)
    for _ in range(5):  # and it is a minimum, not a saddle
        moved = found.weights + 0.3 * random.standard_normal(found.weights.shape)
        assert summed_loss(moved, features, target, offset, 0.3)[0] > least
    assert found.gradient <= 1e-3


def test_the_adjusted_loss_is_the_softmax_one_with_its_biases_moved():
    features, target, prior = problem()
    expected = simulation.shifted(fitted(features, target).weights, -prior.log_probs)
    difference = fitted(features, target, offset=prior.log_probs).weights - expected
    difference[:, -1] -= difference[:, -1].mean()  # all biases may move together
    assert np.abs(difference).max() < 0.03  # of weights up to 4


# Trials.


def test_more_examples_lead_to_bayes_with_adjustment_only():
    study = small_study()
    for few, many in zip(*(study.of("imagenet-lt", m) for m in (1, 30)), strict=True):
        for adjusted in (POSTHOC, "logit-adjusted"):
            assert many.excess[adjusted].mean < 0.3 * few.excess[adjusted].mean
            assert abs(many.excess[adjusted].mean) < 0.5
            assert few.errors[adjusted].mean < few.errors["softmax"].mean
        # ERM tends to the posterior with its prior, not to the Bayes rule for balanced classes.
        assert many.excess["softmax"].mean > 5 * many.excess["logit-adjusted"].mean
        assert many.excess["softmax"].mean == pytest.approx(many.excess[LIMIT].mean, abs=0.5)
        assert few.bayes == many.bayes  # the same centres and test points
        assert max(few.disagreement, many.disagreement) < 0.2


# The page.


def test_the_page_is_what_the_record_says(tmp_path, capsys):
    assert __main__.main(["large-simulation", "--out", str(tmp_path)]) == 0, capsys.readouterr()
    made, there = (root / "docs/large-scale.md" for root in (tmp_path, ROOT))
    assert made.read_text() == there.read_text()
    assert (tmp_path / "docs/large-scale/simulation.svg").exists()


def test_it_runs_from_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(simulation, "class_counts", lambda name, _: COUNTS)
    small = Settings(dimension=4, trials=1, test_points=2000, multiples={"imagenet-lt": (1,)})
    monkeypatch.setattr(simulation, "Settings", lambda **_: small)
    record = tmp_path / "kept/numbers.json"
    words = ["large-simulation", "--record", str(record), "--device", "cpu"]
    assert __main__.main(words) == 1
    assert f"no record {record}" in capsys.readouterr().err
    assert __main__.main([*words, "--run", "--dataset", "imagenet-lt"]) == 0
    found = capsys.readouterr()
    assert "ImageNet-LT: 50 classes" in found.out
    assert "needs both data sets" in found.err
    assert __main__.main([*words, "--multiples", "0,1"]) == 2
