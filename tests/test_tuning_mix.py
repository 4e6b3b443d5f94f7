"""tuning by calibration on other class mixes than the training data's: refused if clearly so."""

from __future__ import annotations

import re

import numpy as np
import pytest

from longtail import ClassPrior, InputError, tune_tau
from longtail.tuning._mix import other_mix

CRITERIA = ["log_loss", "squared_error", "ece", "sharpness"]
PRIOR = ClassPrior.from_counts([900, 90, 10])


def exact_model(target, seed=0):
    """Logits of the true posterior under PRIOR: tau = 1 is right."""
    noise = np.random.default_rng(seed).normal(size=(len(target), 3))
    return 1.5 * (1.5 * np.eye(3)[target] + noise) + PRIOR.log_probs


def drawn(prior, examples, seed=0):
    return np.random.default_rng(seed).choice(prior.num_classes, size=examples, p=prior.probs)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_balanced_data_are_refused(criterion):
    target = np.repeat([0, 1, 2], 2000)
    message = (
        f"tune_tau: criterion={criterion!r} needs held-out data mixed like the training data, "
        "but class 0 is 0.333 of `target` and 0.9 of `prior`; use criterion='balanced_error'"
    )
    with pytest.raises(InputError, match=re.escape(message)):
        tune_tau(exact_model(target), target, PRIOR, criterion=criterion)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_data_mixed_like_the_training_data_give_the_right_tau(criterion):
    target = drawn(PRIOR, 6000)
    result = tune_tau(exact_model(target), target, PRIOR, criterion=criterion)
    assert result.tau == pytest.approx(1.0, abs=0.15)


def test_weights_can_restore_the_mix_and_spoil_it():
    target = np.repeat([0, 1, 2], 2000)
    logits = exact_model(target)
    restored = PRIOR.probs[target] / 2000
    result = tune_tau(logits, target, PRIOR, criterion="log_loss", sample_weight=restored)
    assert result.tau == pytest.approx(1.0, abs=0.1)
    target = drawn(PRIOR, 6000)
    spoilt = 1.0 / PRIOR.probs[target]
    with pytest.raises(InputError, match="mixed like the training data"):
        tune_tau(exact_model(target), target, PRIOR, criterion="log_loss", sample_weight=spoilt)


def test_the_scale_of_weights_says_nothing():
    target = np.repeat([0, 1, 2], [20, 10, 1])
    assert other_mix(target, PRIOR, weight=np.full(31, 1e6)) is None
    target = np.repeat([0, 1, 2], 2000)
    assert other_mix(target, PRIOR, weight=np.full(6000, 1e-6)) is not None
    # One heavy example is no more than one example.
    heavy = np.where(np.arange(6000) == 5999, 1e9, 1.0)
    assert other_mix(target, PRIOR, weight=heavy) is None


def test_a_small_drift_and_few_examples_pass():
    drifted = np.repeat([0, 1, 2], [82_000, 14_000, 4_000])  # total variation 0.08, beyond chance
    assert other_mix(drifted, PRIOR) is None
    assert other_mix(np.repeat([0, 1, 2], [5, 2, 1]), PRIOR) is None  # may well be chance
    far = np.repeat([0, 1, 2], [78_000, 17_000, 5_000])
    assert other_mix(far, PRIOR) == (0, 0.78, 0.9)


def test_the_other_order_of_the_counts_is_another_mix():
    assert other_mix(drawn(PRIOR, 300), ClassPrior.from_counts([10, 90, 900])) is not None


@pytest.mark.parametrize(("classes", "examples"), [(2, 50), (10, 200), (1000, 500), (20_000, 3000)])
def test_honest_draws_pass_whatever_the_number_of_classes(classes, examples):
    # Empirical shares of many classes are far from the prior by chance alone.
    prior = ClassPrior.from_weights(1.0 / np.arange(1, classes + 1) ** 1.2)
    for seed in range(200):
        assert other_mix(drawn(prior, examples, seed), prior) is None
    if examples > 50:
        balanced = np.random.default_rng(0).integers(0, classes, examples)
        assert other_mix(balanced, prior) is not None


def test_the_counts_behind_a_smoothed_or_learnt_prior_are_as_good():
    counts = [60, 6, 0, 0, 0, 0, 0]
    smoothed = ClassPrior.from_counts(counts, smoothing=5.0)
    target = np.repeat([0, 1], [600, 60])
    assert np.abs(np.bincount(target, minlength=7) / 660 - smoothed.probs).sum() / 2 > 0.1
    assert other_mix(target, smoothed) is None
    assert other_mix(drawn(smoothed, 660), smoothed) is None
    assert other_mix(np.arange(700) % 7, smoothed) is not None
