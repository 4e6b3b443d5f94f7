"""tuning by calibration: tau as a temperature, each criterion against `metrics` and slow loops."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy import optimize

from longtail import ClassPrior, InputError, fit_temperature, metrics, tune_tau
from longtail.posthoc import adjust_logits, scale_temperature
from longtail.tuning import _calibration as calibration
from longtail.tuning._calibration import in_training_mix
from mix_oracle import slow_mix

METRICS = {
    name: lambda target, logits, of=of, **weight: getattr(
        metrics.evaluate(target, logits, missing="skip", **weight), of
    )
    for name, of in [("squared_error", "brier_score")]
    + [(name, name) for name in ("log_loss", "ece", "sharpness")]
}


def drawn_by_softmax(examples=3000, temperature=2.0, seed=0):
    """Long-tailed examples; softmax(logits / temperature) is their true law, `PRIOR` their mix."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.normal(size=(examples, 4)) + np.log([0.7, 0.2, 0.07, 0.03])
    target = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return PRIOR, temperature * logits, target


def mix_of_the_law(draws=100_000):
    odds = np.exp(1.5 * np.random.default_rng(7).normal(size=(draws, 4)))
    odds *= [0.7, 0.2, 0.07, 0.03]
    return ClassPrior.from_probs((odds / odds.sum(axis=1, keepdims=True)).mean(axis=0))


PRIOR = mix_of_the_law()


def slow_log_loss(logits, target, temperature, weight):
    total = 0.0
    for row, y, w in zip(logits, target, weight, strict=True):
        scaled = row / temperature
        total += w * (np.log(np.sum(np.exp(scaled - scaled.max()))) + scaled.max() - scaled[y])
    return total / np.sum(weight)


@pytest.mark.parametrize("scale", [0.01, 1.0, 50.0])
def test_fit_temperature_minimises_the_log_loss(scale):
    _, logits, target = drawn_by_softmax(200)
    weight = np.random.default_rng(1).integers(0, 3, 200)
    fitted = fit_temperature(scale * logits, target, sample_weight=weight, chunk_rows=33)
    best = optimize.minimize_scalar(
        lambda t: slow_log_loss(scale * logits, target, np.exp(t), weight),
        bracket=(np.log(scale), np.log(4 * scale)),
        tol=1e-10,
    )
    assert fitted == pytest.approx(np.exp(best.x), rel=1e-5)
    repeated = np.repeat(np.arange(200), weight)
    again = fit_temperature(scale * logits[repeated].astype(np.float64), target[repeated])
    assert fitted == pytest.approx(again, rel=1e-8)


def test_the_temperature_of_the_law_is_found_and_is_a_tau():
    prior, logits, target = drawn_by_softmax(20_000)
    temperature = fit_temperature(logits, target)
    assert temperature == pytest.approx(2.0, rel=0.05)
    result = tune_tau(logits, target, prior, criterion="log_loss")
    assert result.tau == pytest.approx(temperature, rel=0.01)
    weight, _ = in_training_mix(target, prior, None)
    same = fit_temperature(logits, target, sample_weight=weight)
    assert result.tau == pytest.approx(same, rel=1e-5)
    # The same decisions, with tau in front of the prior or as temperature under the logits.
    np.testing.assert_array_equal(
        adjust_logits(logits, prior, tau=temperature).argmax(axis=1),
        adjust_logits(scale_temperature(logits, temperature=temperature), prior).argmax(axis=1),
    )


@pytest.mark.parametrize("criterion", METRICS)
def test_values_are_those_of_metrics(criterion):
    prior, logits, target = drawn_by_softmax(500)
    weight = np.random.default_rng(2).uniform(0, 2, 500)
    weight[::7] = 0.0
    result = tune_tau(
        logits, target, prior, criterion=criterion, sample_weight=weight, chunk_rows=77
    )
    mixed = slow_mix(target, prior, weight)
    curve = result.curve
    for tau, value in list(zip(curve.taus, curve.values, strict=True))[::6]:
        expected = METRICS[criterion](target, logits / tau, sample_weight=mixed)
        assert value == pytest.approx(expected, rel=1e-9)
    best = METRICS[criterion](target, logits / result.tau, sample_weight=mixed)
    assert result.error == curve(result.tau) == pytest.approx(best)
    assert result.error_at(1.0) == pytest.approx(
        METRICS[criterion](target, logits, sample_weight=mixed)
    )
    np.testing.assert_array_equal(result.counts, np.bincount(target[weight > 0], minlength=4))


@pytest.mark.parametrize("criterion", ["log_loss", "squared_error"])
def test_smooth_criteria_are_minimised(criterion):
    prior, logits, target = drawn_by_softmax(1000)
    result = tune_tau(logits, target, prior, criterion=criterion)
    mixed = slow_mix(target, prior)
    best = optimize.minimize_scalar(
        lambda t: METRICS[criterion](target, logits / t, sample_weight=mixed),
        bounds=(0.5, 4.0),
        method="bounded",
    )
    assert result.tau == pytest.approx(best.x, rel=1e-4)
    assert result.interval == (result.tau, result.tau)
    assert result.error == pytest.approx(best.fun, rel=1e-9)


def test_ece_finds_a_tau_no_evaluated_one_beats():
    prior, logits, target = drawn_by_softmax(3000)
    result = tune_tau(logits, target, prior, criterion="ece")
    assert result.error == result.curve.min_value
    assert result.tau == pytest.approx(2.0, rel=0.2)
    assert result.error < METRICS["ece"](target, logits) / 2


def test_sharpness_takes_the_sharpest_among_the_calibrated():
    prior, logits, target = drawn_by_softmax(3000)
    sharp = tune_tau(logits, target, prior, criterion="sharpness")
    calibrated = tune_tau(logits, target, prior, criterion="ece")
    mixed, _ = in_training_mix(target, prior, None)
    ece = np.array(
        [METRICS["ece"](target, logits / t, sample_weight=mixed) for t in sharp.curve.taus]
    )
    # It may trade in one standard error of the ECE, which the other criterion reports.
    slack = calibrated.standard_error
    place = int(np.flatnonzero(sharp.curve.taus == sharp.tau)[0])
    assert ece[place] <= ece.min() + 1.3 * slack
    sharper = sharp.curve.values > sharp.error
    assert np.all(ece[sharper] > ece.min() + 0.7 * slack)
    assert sharp.tau < calibrated.tau
    assert sharp.tau > 1.0  # alone it would run to the lower bound


@pytest.mark.parametrize("criterion", METRICS)
def test_the_interval_of_tau_is_that_of_fresh_samples(criterion):
    taus = [
        tune_tau(*fresh, criterion=criterion, n_bootstrap=0).tau
        for fresh in (
            (logits, target, prior)
            for prior, logits, target in (drawn_by_softmax(1000, seed=s) for s in range(12))
        )
    ]
    prior, logits, target = drawn_by_softmax(1000, seed=99)
    low, high = tune_tau(logits, target, prior, criterion=criterion).confidence
    spread = np.std(taus)
    assert low < high
    assert 1.5 * spread < high - low < 9 * spread  # 3.9 for a normal law, known from 12 draws


@pytest.mark.parametrize("groups", [1, 3])
def test_covariance_of_the_mean_is_its_formula(groups):
    rng = np.random.default_rng(0)
    values, weight = rng.normal(size=(50, 3)), rng.uniform(0.5, 2.0, 50)
    group = rng.integers(0, groups, 50)
    values += group[:, None]
    moments = calibration._Moments(groups)
    for part in (slice(0, 20), slice(20, 50)):
        moments.add(values[part], weight[part], group[part])
    expected = np.zeros((3, 3))
    for g in range(groups):
        rows = group == g
        mean = weight[rows] @ values[rows] / weight[rows].sum()
        for w, v in zip(weight[rows], values[rows], strict=True):
            expected += w**2 * np.outer(v - mean, v - mean) / weight.sum() ** 2
    np.testing.assert_allclose(moments.mean, weight @ values / weight.sum())
    np.testing.assert_allclose(moments.covariance(), expected, atol=1e-15)


def test_resampled_taus_are_the_lowest_points_of_parabolas():
    """Exact for parabolas in log tau, between the grid's points; else the point that was picked."""
    grid = np.log([0.1, 0.15, 0.4, 1.0, 1.3, 3.0])
    lowest = np.log([0.17, 0.7, 1.2, 2.9])
    rows = [bend * (grid - at) ** 2 + bend for bend, at in enumerate(lowest, start=1)]
    # The vertex of the last two lies beyond the grid; a cap has none.
    rows += [(grid - np.log(0.01)) ** 2, (grid - np.log(9.0)) ** 2, -((grid - grid[3]) ** 2)]
    values = np.array(rows)
    found = calibration._vertices(grid, values, values.argmin(axis=1))
    expected = np.append(np.exp(lowest), [0.1, 3.0, np.exp(grid[values[-1].argmin()])])
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_not_every_class_need_occur():
    prior, logits, target = drawn_by_softmax(500)
    rows = target < 3
    result = tune_tau(logits[rows], target[rows], prior, criterion="log_loss")
    assert result.counts[3] == 0
    assert "fewest 0 (class 3)" in str(result)
    assert "log loss" in str(result)
    assert set(result.to_dict()["error_at"]) == {"1"}


def test_a_tau_outside_what_was_evaluated_is_refused():
    prior, logits, target = drawn_by_softmax(200)
    result = tune_tau(logits, target, prior, criterion="log_loss", bounds=(1.5, 3.0))
    assert 1.5 <= result.tau <= 3.0
    assert result.curve.bounds == pytest.approx((1.5, 3.0))
    with pytest.raises(InputError, match=re.escape("evaluated for tau in [1.5, 3] only")):
        result.error_at(1.0)
    taus, values = result.curve.sample(5)
    assert taus[0] == pytest.approx(1.5)
    assert values[0] == result.curve.values[0]
    edge = tune_tau(logits, target, prior, criterion="log_loss", bounds=(0.0, 0.5))
    assert edge.at_bound


@pytest.mark.parametrize(
    ("logits", "target", "message"),
    [
        (
            np.eye(3) * 5 - 1,
            [0, 1, 2],
            "every example is predicted right, so the log-loss falls all the "
            "way to temperature 0; use held-out examples",
        ),
        (
            -np.eye(3) * 5 - 1,
            [0, 1, 2],
            "the logits predict the labels no better than chance",
        ),
        # As often wrong as right by as much; and all alike, so that no example is wrong.
        (np.array([[1.0, -1.0]] * 2), [0, 1], "the logits predict the labels no better than"),
        (np.zeros((4, 2)), [0, 1, 0, 0], "the logits predict the labels no better than chance"),
        (np.full((2, 2), np.nan), [0, 1], "`logits` must be finite, but row 0"),
        (np.eye(2), [0, 2], "`target` must lie in 0 .. 1, but 2 occurs"),
        (np.eye(2), [0], "`logits` has 2 rows but there are 1 labels"),
        (np.eye(2), [0, 1], "these look like probabilities; pass their logarithm"),
        (np.zeros((0, 2)), [], "`logits` is empty"),
    ],
)
def test_bad_input_to_fit_temperature(logits, target, message):
    with pytest.raises(InputError, match=re.escape(message)):
        fit_temperature(logits, target)


@pytest.mark.parametrize("criterion", ["ece", "sharpness"])
def test_the_interval_is_finer_than_the_first_grid_and_holds_tau(criterion):
    # Neighbouring taus of the first look differ by 12%; the interval of this many examples not.
    prior, logits, target = drawn_by_softmax(40_000)
    result = tune_tau(logits, target, prior, criterion=criterion, n_bootstrap=300)
    low, high = result.confidence
    assert low <= result.tau <= high
    assert not np.isin(np.round([low, high], 9), np.round(calibration._grid((0.0, 4.0)), 9)).any()
    spread = np.std(
        [
            tune_tau(logits, target, prior, criterion=criterion, n_bootstrap=0).tau
            for prior, logits, target in (drawn_by_softmax(40_000, seed=s) for s in range(1, 9))
        ]
    )
    resolved = 0.015 * result.tau  # the taus that are tried are no closer
    assert high - low < 9 * max(spread, resolved)
    assert spread < 0.1
