"""Independent labels: the equations one label at a time, the exact curve by brute force, errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special
from sklearn.metrics import balanced_accuracy_score

from longtail import ClassPrior, InputError, tune_tau
from longtail.multilabel import (
    adjust_multilabel,
    label_rates,
    log_odds,
    macro_balanced_error,
    tune_multilabel,
)

RATES = np.array([0.6, 0.5, 0.1, 0.02])
SHARES = np.array([0.6, 0.3, 0.2, 0.1])
MINIMUM = {"select": "minimum", "n_bootstrap": 0}


def long_tailed(examples=300, seed=0, rates=RATES, scale=1.5):
    """Logits of an overconfident model, a few of them 0 exactly, and labels with both answers."""
    rng = np.random.default_rng(seed)
    target = rng.random((examples, len(rates))) < rates
    target[0], target[1] = True, False
    evidence = 2.0 * target - 1.0 + rng.normal(size=target.shape)
    logits = scale * (2.0 * evidence + special.logit(rates))
    logits[rng.random(target.shape) < 0.02] = 0.0
    return logits, target


def adjusted(logit, rate, share, tau):
    return logit - tau * (math.log(rate / (1 - rate)) - math.log(share / (1 - share)))


def brute_error(target, logits, rates, shares, tau):
    """Σ_k ((1 − q_k) P(predicted | absent) + q_k P(not predicted | present)) / L, by counting."""
    total = 0.0
    for k, (rate, share) in enumerate(zip(rates, shares, strict=True)):
        wrong, number = [0, 0], [0, 0]
        for i in range(len(target)):
            answer = int(target[i, k])
            number[answer] += 1
            wrong[answer] += (adjusted(logits[i, k], rate, share, tau) > 0) != answer
        total += (1 - share) * wrong[0] / number[0] + share * wrong[1] / number[1]
    return total / len(rates)


@pytest.mark.parametrize("tau", [-1.0, 0.0, 1.0, 2.5])
@pytest.mark.parametrize("shares", [None, SHARES], ids=["even", "shares"])
def test_the_log_odds_of_the_prior_come_off(tau, shares):
    logits, _ = long_tailed(5)
    got = adjust_multilabel(logits, RATES, tau=tau, target_prior=shares)
    for i, k in np.ndindex(logits.shape):
        share = 0.5 if shares is None else shares[k]
        expected = adjusted(logits[i, k], RATES[k], share, tau)
        assert got[i, k] == pytest.approx(expected, rel=1e-13, abs=1e-13)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_three_array_libraries_agree(dtype):
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    logits, target = long_tailed()
    logits = logits.astype(dtype)
    wanted = adjust_multilabel(logits, RATES, tau=1.5, target_prior=SHARES)
    assert wanted.dtype == dtype
    result = tune_multilabel(logits, target, RATES, **MINIMUM)
    arrays = [torch.from_numpy(logits)]
    if dtype != "float64":
        arrays.append(jax.numpy.asarray(logits))
    for array in arrays:
        got = adjust_multilabel(array, RATES, tau=1.5, target_prior=SHARES)
        assert type(got) is type(array)
        assert got.dtype == array.dtype
        np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-6)
        again = tune_multilabel(array, torch.from_numpy(target).float(), RATES, **MINIMUM)
        assert again.tau == result.tau


@pytest.mark.parametrize("shares", [None, SHARES], ids=["even", "shares"])
@pytest.mark.parametrize("seed", range(3))
def test_the_curve_is_brute_force_everywhere(seed, shares):
    logits, target = long_tailed(60, seed=seed)
    result = tune_multilabel(logits, target, RATES, target_prior=shares, **MINIMUM)
    curve, rng = result.curve, np.random.default_rng(seed)
    q = np.full(4, 0.5) if shares is None else shares
    middles = (curve.breakpoints[1:] + curve.breakpoints[:-1]) / 2
    for tau in [0.0, *rng.uniform(-1, 5, size=40), *rng.choice(middles, size=20)]:
        assert curve(tau) == pytest.approx(brute_error(target, logits, RATES, q, tau), abs=1e-12)
        if shares is None:
            scores = adjust_multilabel(logits, RATES, tau=tau)
            assert curve(tau) == pytest.approx(macro_balanced_error(target, scores), abs=1e-12)
    on_a_grid = min(brute_error(target, logits, RATES, q, tau) for tau in np.linspace(0, 4, 101))
    assert result.error <= on_a_grid + 1e-12


def test_one_label_is_a_problem_of_two_classes():
    logits, target = long_tailed(rates=np.array([0.05]))
    two = np.hstack([np.zeros_like(logits), logits])
    for options in ({}, {"select": "minimum"}, {"bounds": (-1.0, 2.0)}):
        ours = tune_multilabel(logits, target, [0.05], **options)
        prior = ClassPrior.from_probs([0.95, 0.05])
        theirs = tune_tau(two, target[:, 0].astype(int), prior, **options)
        assert ours.tau == pytest.approx(theirs.tau, abs=1e-9)
        assert ours.error == pytest.approx(theirs.error, abs=1e-12)
        assert ours.confidence == pytest.approx(theirs.confidence, abs=1e-9)


def test_the_error_is_the_mean_of_scikit_learns():
    logits, target = long_tailed()
    wanted = np.mean(
        [1 - balanced_accuracy_score(target[:, k], logits[:, k] > 0) for k in range(4)]
    )
    for predictions in (logits, logits > 0, (logits > 0).astype(int)):
        assert macro_balanced_error(target, predictions) == pytest.approx(wanted, abs=1e-12)


def test_a_result_has_both_errors_of_each_label():
    logits, target = long_tailed()
    result = tune_multilabel(logits, target, RATES)
    assert "(label d: yes)" in result.describe(class_names="abcd")
    false_alarms, misses = result.curve.per_class(0.0).reshape(-1, 2).T
    np.testing.assert_allclose(misses, ((logits <= 0) & target).sum(0) / target.sum(0))
    np.testing.assert_allclose(false_alarms, ((logits > 0) & ~target).sum(0) / (~target).sum(0))
    assert result.counts.reshape(-1, 2)[:, 1].tolist() == target.sum(0).tolist()


def test_rates_are_shares_of_examples():
    target = np.array([[1, 0, 1], [1, 0, 0], [0, 0, 1], [1, 0, 1]])
    with pytest.raises(InputError, match=r"label\(s\) 1 occur in all examples or in none"):
        label_rates(target)
    np.testing.assert_allclose(label_rates(target, smoothing=1.0), [4 / 6, 1 / 6, 4 / 6])


def test_log_odds_are_finite():
    probs = np.array([0.0, 1e-30, 0.3, 1.0])
    np.testing.assert_allclose(log_odds(probs)[1:3], special.logit(probs[1:3]))
    assert np.isfinite(log_odds(probs)).all()
    assert (np.diff(log_odds(probs)) > 0).all()


LOGITS, TARGET = long_tailed(20)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: adjust_multilabel(special.expit(LOGITS), RATES), "log_odds"),
        (lambda: macro_balanced_error(TARGET, special.expit(LOGITS)), "log_odds"),
        (lambda: tune_multilabel(np.full((20, 4), -np.inf), TARGET, RATES), "log_odds"),
        (lambda: adjust_multilabel(LOGITS, ClassPrior.uniform(4)), "one label of several classes"),
        (lambda: adjust_multilabel(LOGITS, [60, 50, 10, 2]), "number of examples"),
        (lambda: tune_multilabel(LOGITS, TARGET, [0.5] * 4), "no tau changes any prediction"),
        (lambda: tune_multilabel(LOGITS, TARGET[:, :3], RATES), r"\(20, 4\); its shape is \(20, 3"),
        (lambda: macro_balanced_error(TARGET | (RATES > 0.4), LOGITS), r"label\(s\) 0, 1 occur"),
        (lambda: tune_multilabel(LOGITS, TARGET & (RATES > 0.4), RATES), r"label\(s\) 2, 3 occur"),
        (lambda: macro_balanced_error(TARGET - 1.0, LOGITS), "0 or 1 .* values are -1"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()
