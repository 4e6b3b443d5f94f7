"""tuning by calibration: each criterion against `metrics`, the training data's mix, temperature."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize

from longtail import ClassPrior, InputError, _checks, fit_temperature, metrics, tune_tau
from longtail.posthoc import log_probs
from longtail.tuning import _calibration as calibration
from longtail.tuning._calibration import in_training_mix

NAMES = {name: name for name in ("log_loss", "ece", "sharpness")} | {"squared_error": "brier_score"}


def value(criterion, target, logits, weight):
    result = metrics.evaluate(target, logits, missing="skip", sample_weight=weight)
    return getattr(result, NAMES[criterion])


def slow_mix(target, prior, weight=None, *, least=10, apart=1.5, times=3.0):
    """w_i = u_i π(g) / Σ_g u: classes from rare to frequent, joined until each group is whole."""
    counts = prior.sample
    u = [1.0] * len(target) if weight is None else [float(w) for w in weight]
    held = [0] * prior.num_classes
    for y, w in zip(target, u, strict=True):
        held[y] += w > 0
    groups = [[]]
    for k in sorted(range(prior.num_classes), key=lambda k: (prior.probs[k], k)):
        last = groups[-1]
        there = sum(held[j] for j in last)
        whole = there >= least or (there > 0 and prior.probs[k] >= times * prior.probs[last[0]])
        if whole and counts is not None:
            whole = math.sqrt(counts[k]) - math.sqrt(counts[last[0]]) >= apart
        if whole:
            groups.append([])
        groups[-1].append(k)
    if len(groups) > 1:
        there = sum(held[j] for j in groups[-1])
        close = prior.probs[groups[-1][0]] < times * prior.probs[groups[-2][0]]
        if there == 0 or (there < least and close):
            rest = groups.pop()
            groups[-1] += rest
    out = []
    for y, w in zip(target, u, strict=True):
        group = next(group for group in groups if y in group)
        total = sum(v for z, v in zip(target, u, strict=True) if z in group)
        out.append(w * sum(prior.probs[j] for j in group) / total)
    return out


def drawn_by_softmax(examples=3000, temperature=2.0, seed=0):
    """Long-tailed examples; softmax(logits / temperature) is their true law, `PRIOR` their mix."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.normal(size=(examples, 4)) + np.log([0.7, 0.2, 0.07, 0.03])
    target = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return temperature * logits, target, PRIOR


def mix_of_the_law(draws=100_000):
    odds = np.exp(1.5 * np.random.default_rng(7).normal(size=(draws, 4)))
    odds *= [0.7, 0.2, 0.07, 0.03]
    return ClassPrior.from_probs((odds / odds.sum(axis=1, keepdims=True)).mean(axis=0))


PRIOR = mix_of_the_law()


# --- criteria -----------------------------------------------------------------------------


@pytest.mark.parametrize("criterion", NAMES)
def test_values_are_those_of_metrics(criterion):
    logits, target, prior = drawn_by_softmax(500)
    weight = np.random.default_rng(2).uniform(0, 2, 500)
    weight[::7] = 0.0
    result = tune_tau(logits, target, prior, criterion=criterion, sample_weight=weight)
    mixed = slow_mix(target, prior, weight)
    curve = result.curve
    for tau, found in [*list(zip(curve.taus, curve.values, strict=True))[::6], (1.0, curve(1.0))]:
        assert found == pytest.approx(value(criterion, target, logits / tau, mixed), rel=1e-9)
    best = value(criterion, target, logits / result.tau, mixed)
    assert result.error == curve(result.tau) == pytest.approx(best)
    np.testing.assert_array_equal(result.counts, np.bincount(target[weight > 0], minlength=4))


@pytest.mark.parametrize("criterion", ["log_loss", "squared_error"])
def test_smooth_criteria_are_minimised(criterion):
    logits, target, prior = drawn_by_softmax(1000)
    result = tune_tau(logits, target, prior, criterion=criterion)
    mixed = slow_mix(target, prior)
    best = optimize.minimize_scalar(
        lambda t: value(criterion, target, logits / t, mixed), bounds=(0.5, 4.0), method="bounded"
    )
    assert result.tau == pytest.approx(best.x, rel=1e-4)
    assert result.interval == (result.tau, result.tau)
    assert result.error == pytest.approx(best.fun, rel=1e-9)


def test_sharpness_takes_the_sharpest_among_the_calibrated():
    logits, target, prior = drawn_by_softmax(3000)
    sharp = tune_tau(logits, target, prior, criterion="sharpness")
    calibrated = tune_tau(logits, target, prior, criterion="ece")
    assert calibrated.error == calibrated.curve.min_value
    assert calibrated.tau == pytest.approx(2.0, rel=0.2)
    mixed, _ = in_training_mix(target, prior, None)
    ece = np.array([value("ece", target, logits / t, mixed) for t in sharp.curve.taus])
    # It may trade in one standard error of the ECE, which the other criterion reports.
    slack = calibrated.standard_error
    place = int(np.flatnonzero(sharp.curve.taus == sharp.tau)[0])
    assert ece[place] <= ece.min() + 1.3 * slack
    sharper = sharp.curve.values > sharp.error
    assert np.all(ece[sharper] > ece.min() + 0.7 * slack)
    assert 1.0 < sharp.tau < calibrated.tau  # alone it would run to the lower bound


@pytest.mark.parametrize("criterion", NAMES)
@pytest.mark.parametrize("examples", [1000, 20_000])
def test_the_interval_of_tau_is_that_of_fresh_samples(criterion, examples):
    samples = [drawn_by_softmax(examples, seed=s) for s in range(8)]
    options = {"criterion": criterion, "n_bootstrap": 0}
    spread = np.std([tune_tau(*fresh, **options).tau for fresh in samples])
    result = tune_tau(*drawn_by_softmax(examples, seed=99), criterion=criterion, n_bootstrap=300)
    low, high = result.confidence
    assert low <= result.tau <= high
    # 3.9 for a normal law, known from 8 draws; the taus that are tried are 1.5% apart.
    assert 1.2 * spread < high - low < 9 * max(spread, 0.015 * result.tau)


@pytest.mark.parametrize("criterion", ["log_loss", "ece"])
def test_covariance_of_the_mean_is_its_formula(criterion, monkeypatch):
    monkeypatch.setattr(_checks, "_CHUNK_ELEMENTS", 4 * 20)
    logits, target, _ = drawn_by_softmax(50)
    weight, group = np.random.default_rng(0).uniform(0.5, 2.0, 50), np.array([0, 1, 1, 0])
    weight, taus = weight / weight.sum(), np.array([0.5, 1.0])
    mean, found = calibration._moments((logits, target, weight), group, criterion, taus)
    below = logits - logits.max(axis=1, keepdims=True)
    values = calibration._numbers(criterion, below, target, taus)
    values = values if criterion == "log_loss" else values.toarray()
    expected = np.zeros_like(found)
    for g in range(2):
        rows = group[target] == g
        centre = weight[rows] @ values[rows] / weight[rows].sum()
        for w, v in zip(weight[rows], values[rows], strict=True):
            expected += w**2 * np.outer(v - centre, v - centre)
    np.testing.assert_allclose(mean, weight @ values, atol=1e-15)
    np.testing.assert_allclose(found, expected, atol=1e-15)


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


def test_not_every_class_need_occur_and_only_evaluated_taus_are_told():
    logits, target, prior = drawn_by_softmax(500)
    rows = target < 3
    result = tune_tau(logits[rows], target[rows], prior, criterion="log_loss", bounds=(1.5, 3.0))
    assert result.counts[3] == 0
    assert result.to_dict()["error_at"] == {}
    assert result.curve.bounds == pytest.approx((1.5, 3.0))
    with pytest.raises(InputError, match=r"evaluated for tau in \[1.5, 3\] only"):
        result.error_at(1.0)
    assert tune_tau(logits, target, prior, criterion="log_loss", bounds=(0.0, 0.5)).at_bound


# --- the training data's mix --------------------------------------------------------------

THREE = ClassPrior.from_counts([900, 90, 10])


def exact_model(target, prior, seed=0):
    """Logits of the true posterior under the prior: tau = 1 is right."""
    eye = np.eye(prior.num_classes)[target]
    noise = np.random.default_rng(seed).normal(size=eye.shape)
    return 1.5 * (1.5 * eye + noise) + prior.log_probs


@pytest.mark.parametrize(
    ("criterion", "near"),
    [("log_loss", 0.05), ("squared_error", 0.05), ("ece", 0.15), ("sharpness", 0.15)],
)
def test_balanced_and_long_tailed_data_give_the_right_tau(criterion, near):
    """As it comes, the balanced file's best temperature is 3.4."""
    target = np.repeat([0, 1, 2], 4000)
    result = tune_tau(exact_model(target, THREE), target, THREE, criterion=criterion)
    assert result.tau == pytest.approx(1.0, abs=near)
    low, high = result.confidence
    assert low <= 1.03
    assert high >= 0.97
    target = np.random.default_rng(0).choice(3, size=6000, p=THREE.probs)
    result = tune_tau(exact_model(target, THREE), target, THREE, criterion=criterion)
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
    options = {"criterion": "log_loss", "n_bootstrap": 0}
    taus = [tune_tau(exact_model(target, prior, s), target, prior, **options).tau for s in range(6)]
    assert np.mean(taus) == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize("classes", [2, 5, 40])
@pytest.mark.parametrize("counted", [True, False])
def test_the_weights_are_those_of_slow_loops(classes, counted):
    rng = np.random.default_rng(classes)
    counts = rng.integers(1, 200, classes)
    make = ClassPrior.from_counts if counted else ClassPrior.from_weights
    prior = make(counts if counted else counts / 7)
    target = rng.integers(0, classes, 120)
    weight = rng.uniform(0, 2, 120) * (rng.random(120) < 0.8)
    for given in (None, weight):
        found, _ = in_training_mix(target, prior, given)
        np.testing.assert_allclose(found, slow_mix(target, prior, given), rtol=1e-12)
        assert found.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("criterion", NAMES)
def test_what_hardly_varies_is_no_error(criterion):
    target = np.arange(30) % 3
    for logits in (np.zeros((30, 3)), 300.0 * np.eye(3)[target]):
        result = tune_tau(logits, target, THREE, criterion=criterion)
        assert np.isfinite(result.standard_error)
    result = tune_tau(0.005 * exact_model(target, THREE), target, THREE, criterion=criterion)
    assert result.tau == pytest.approx(0.04)
    assert result.at_bound


def test_zeros_are_lifted_to_choose_a_tau_on():
    logits = log_probs([[0.8, 0.2, 0.0], [1.0, 0.0, 0.0]])
    lifted = np.exp(calibration.lift_zeros(logits, THREE))
    np.testing.assert_allclose(lifted, [[0.8, 0.2, 0.001], [1.0, 0.009, 0.001]])


# --- temperature --------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.01, 1.0, 50.0])
def test_fit_temperature_minimises_the_log_loss(scale):
    logits, target, _ = drawn_by_softmax(200)
    weight = np.random.default_rng(1).integers(0, 3, 200)

    def slow_log_loss(log_temperature):
        total = 0.0
        for row, y, w in zip(scale * logits, target, weight, strict=True):
            f = row / np.exp(log_temperature)
            total += w * (np.log(np.sum(np.exp(f - f.max()))) + f.max() - f[y])
        return total

    fitted = fit_temperature(scale * logits, target, sample_weight=weight)
    bracket = (np.log(scale), np.log(4 * scale))
    best = optimize.minimize_scalar(slow_log_loss, bracket=bracket, tol=1e-10)
    assert fitted == pytest.approx(np.exp(best.x), rel=1e-5)
    rows = np.repeat(np.arange(200), weight)
    assert fitted == pytest.approx(fit_temperature(scale * logits[rows], target[rows]), rel=1e-8)


def test_the_temperature_of_the_law_is_found_and_is_a_tau():
    logits, target, prior = drawn_by_softmax(20_000)
    temperature = fit_temperature(logits, target)
    assert temperature == pytest.approx(2.0, rel=0.05)
    result = tune_tau(logits, target, prior, criterion="log_loss")
    assert result.tau == pytest.approx(temperature, rel=0.01)
    weight, _ = in_training_mix(target, prior, None)
    same = fit_temperature(logits, target, sample_weight=weight)
    assert result.tau == pytest.approx(same, rel=1e-5)


@pytest.mark.parametrize(
    ("logits", "target", "message"),
    [
        (np.eye(3) * 5 - 1, [0, 1, 2], "every example is predicted right, so the log-loss falls"),
        (-np.eye(3) * 5 - 1, [0, 1, 2], "the logits predict the labels no better than chance"),
        # As often wrong as right by as much; and all alike, so that no example is wrong.
        (np.array([[1.0, -1.0]] * 2), [0, 1], "the logits predict the labels no better than"),
        (np.zeros((4, 2)), [0, 1, 0, 0], "the logits predict the labels no better than chance"),
    ],
)
def test_bad_input_to_fit_temperature(logits, target, message):
    with pytest.raises(InputError, match=message):
        fit_temperature(logits, target)
