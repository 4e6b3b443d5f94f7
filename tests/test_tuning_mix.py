"""tuning by calibration: the classes count as the training data are mixed, whatever is held out."""

from __future__ import annotations

import numpy as np
import pytest

from longtail import ClassPrior, tune_tau
from longtail.tuning._calibration import in_training_mix
from mix_oracle import slow_mix

CRITERIA = {"log_loss": 0.05, "squared_error": 0.05, "ece": 0.15, "sharpness": 0.15}
PRIOR = ClassPrior.from_counts([900, 90, 10])


def exact_model(target, prior, seed=0):
    """Logits of the true posterior under the prior: tau = 1 is right."""
    eye = np.eye(prior.num_classes)[target]
    noise = np.random.default_rng(seed).normal(size=eye.shape)
    return 1.5 * (1.5 * eye + noise) + prior.log_probs


def drawn(probs, examples, seed=0):
    return np.random.default_rng(seed).choice(len(probs), size=examples, p=probs)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_balanced_data_give_the_right_tau(criterion):
    """As it comes, this file's best temperature is 3.4."""
    target = np.repeat([0, 1, 2], 4000)
    result = tune_tau(exact_model(target, PRIOR), target, PRIOR, criterion=criterion)
    assert result.tau == pytest.approx(1.0, abs=CRITERIA[criterion])
    low, high = result.confidence
    assert low <= 1.03
    assert high >= 0.97


@pytest.mark.parametrize("criterion", CRITERIA)
def test_data_mixed_like_the_training_data_give_it_too(criterion):
    target = drawn(PRIOR.probs, 6000)
    result = tune_tau(exact_model(target, PRIOR), target, PRIOR, criterion=criterion)
    assert result.tau == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize(
    ("counts", "held"),
    [
        ([99_900, 100], [1000, 1000]),  # all but the largest class far below one in a hundred
        ([100_000, 1000], [2000, 40]),
        ([5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50], [0] + [500] * 9),  # CIFAR's dev set
    ],
)
def test_the_mix_may_be_far_off_and_a_class_missing(counts, held):
    prior, target = ClassPrior.from_counts(counts), np.repeat(np.arange(len(held)), held)
    taus = [
        tune_tau(
            exact_model(target, prior, seed), target, prior, criterion="log_loss", n_bootstrap=0
        ).tau
        for seed in range(6)
    ]
    assert np.mean(taus) == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize(("classes", "examples"), [(10, 1000), (100, 1000), (1000, 5000)])
def test_random_splits_of_many_classes_are_left_nearly_as_they_are(classes, examples):
    """Classes that seem rare by chance are less rare among the others, which is no other mix."""
    probs = 100.0 ** (-np.arange(classes) / (classes - 1))
    probs /= probs.sum()
    taus = []
    for seed in range(6):
        labels = drawn(probs, examples, seed)
        held, trained = labels[: examples // 5], labels[examples // 5 :]
        prior = ClassPrior.from_labels(trained, num_classes=classes, smoothing=1.0)
        logits = exact_model(held, ClassPrior.from_probs(probs), seed)
        taus.append(tune_tau(logits, held, prior, criterion="log_loss", n_bootstrap=0).tau)
    assert np.mean(taus) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("classes", [2, 5, 40])
@pytest.mark.parametrize("counted", [True, False])
def test_the_weights_are_those_of_slow_loops(classes, counted):
    rng = np.random.default_rng(classes)
    counts = rng.integers(1, 200, classes)
    prior = ClassPrior.from_counts(counts)
    prior = prior if counted else ClassPrior.from_probs(prior.probs)
    target = rng.integers(0, classes, 120)
    weight = rng.uniform(0, 2, 120) * (rng.random(120) < 0.8)
    for given in (None, weight):
        found, _ = in_training_mix(target, prior, given)
        np.testing.assert_allclose(found, slow_mix(target, prior, given), rtol=1e-12)
        assert found.sum() == pytest.approx(1.0)


def test_few_examples_of_classes_alike_are_taken_as_they_come():
    prior, target = ClassPrior.from_counts([100, 90, 80]), np.array([0, 1, 2, 2])
    np.testing.assert_allclose(in_training_mix(target, prior, None)[0], 0.25)
    weight = np.array([1.0, 2.0, 0.0, 1.0])
    np.testing.assert_allclose(in_training_mix(target, prior, weight)[0], weight / 4)


@pytest.mark.parametrize("held", [(100, 9), (9, 9), (9, 100), (40, 1)])
def test_few_examples_of_classes_far_apart_are_weighed(held):
    prior, target = ClassPrior.from_probs([0.99, 0.01]), np.repeat([0, 1], held)
    found, _ = in_training_mix(target, prior, None)
    np.testing.assert_allclose(np.bincount(target, weights=found), prior.probs)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_the_scale_of_class_weights_says_nothing(scale):
    rng = np.random.default_rng(0)
    weights = rng.uniform(0.01, 1.0, 20)
    target = rng.integers(0, 20, 500)
    found, _ = in_training_mix(target, ClassPrior.from_weights(scale * weights), None)
    wanted, _ = in_training_mix(target, ClassPrior.from_probs(weights / weights.sum()), None)
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_what_hardly_varies_is_no_error(criterion):
    for logits, target in (
        (np.array([[0.0, 2.0, 0.0]]), [1]),
        (np.zeros((30, 3)), np.arange(30) % 3),
        (300.0 * np.eye(3)[np.arange(30) % 3], np.arange(30) % 3),
    ):
        result = tune_tau(logits, target, PRIOR, criterion=criterion)
        assert np.isfinite(result.standard_error)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_a_temperature_at_its_least_is_at_the_bound(criterion):
    target = np.repeat([0, 1, 2], 50)
    result = tune_tau(0.005 * exact_model(target, PRIOR), target, PRIOR, criterion=criterion)
    assert result.tau == pytest.approx(0.04)
    assert result.at_bound


def test_a_whole_weight_is_repetition_where_groups_are_whole_and_its_scale_says_nothing():
    target = drawn([0.5, 0.3, 0.2], 400)
    logits = exact_model(target, PRIOR)
    times = np.random.default_rng(1).integers(1, 4, 400)
    rows = np.repeat(np.arange(400), times)
    wanted = tune_tau(logits[rows], target[rows], PRIOR, criterion="log_loss", n_bootstrap=0).tau
    for scale in (1.0, 1e-6, 1e6):
        weighed = tune_tau(
            logits, target, PRIOR, criterion="log_loss", sample_weight=scale * times, n_bootstrap=0
        )
        assert weighed.tau == pytest.approx(wanted, rel=1e-6)
