"""Prior shift: EM and BBSE against loops, scipy and `abstention`; when to leave things alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from longtail import ClassPrior, InputError, _checks, shift
from longtail.posthoc import adjust_logits

ABSTENTION = pytest.mark.filterwarnings("ignore:scipy.misc is deprecated")


def softmax(logits):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


class Mixture:
    """Gaussian classes with known densities, so that the posterior under any prior is exact."""

    def __init__(self, classes, spread=1.0, imbalance=20.0, seed=0):
        rng = np.random.default_rng(seed)
        self.means = rng.normal(0, spread, (classes, min(classes, 8)))
        weights = imbalance ** (-np.arange(classes) / (classes - 1))
        self.prior = ClassPrior.from_probs(weights / weights.sum())

    def sample(self, examples, q, rng):
        """Labels, and the logits that are calibrated under `self.prior`."""
        y = rng.choice(len(self.means), examples, p=q)
        x = self.means[y] + rng.normal(size=(examples, self.means.shape[1]))
        logits = x @ self.means.T - 0.5 * (self.means**2).sum(axis=1) + self.prior.log_probs
        return y, logits


def slow_em_step(probs, prior, q):
    """The fixed point of Saerens et al., one example and one class at a time."""
    total = np.zeros(len(q))
    for row in probs:
        joint = [q[k] / prior[k] * row[k] for k in range(len(q))]
        total += np.array(joint) / sum(joint)
    return total / len(probs)


def total_variation(a, b):
    return 0.5 * np.abs(np.asarray(a) - np.asarray(b)).sum()


def one_hot(target, classes):
    return np.eye(classes)[target]


@pytest.fixture(scope="module")
def shifted():
    """A mixture of 6 classes, held-out source data and target data with the prior reversed."""
    mixture, rng = Mixture(6, spread=1.5), np.random.default_rng(1)
    source_y, source_logits = mixture.sample(4000, mixture.prior.probs, rng)
    y, logits = mixture.sample(3000, mixture.prior.probs[::-1], rng)
    return mixture, source_y, softmax(source_logits), y, softmax(logits)


# --- EM -----------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.integers(2, 5))
@settings(max_examples=10, deadline=None)
def test_em_is_the_maximum_and_a_fixed_point(seed, classes):
    rng = np.random.default_rng(seed)
    prior = ClassPrior.from_probs(rng.dirichlet(np.full(classes, 3.0)))
    probs = softmax(rng.normal(0, 2, (80, classes)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shift, "_TOLERANCE", 1e-10)
        estimate = shift.estimate_prior(probs, prior)
    np.testing.assert_allclose(
        slow_em_step(probs, prior.probs, estimate.probs), estimate.probs, atol=1e-7
    )

    def loss(free):  # an independent parametrisation and an independent optimiser
        q = softmax(np.append(free, 0.0)[None])[0]
        return -np.mean(np.log(probs @ (q / prior.probs)))

    starts = [np.zeros(classes - 1), prior.log_probs[:-1] - prior.log_probs[-1]]
    least = min(minimize(loss, start).fun for start in starts)
    assert -np.mean(np.log(probs @ (estimate.probs / prior.probs))) <= least + 1e-8


def test_chunks_of_a_memory_map_change_nothing(shifted, tmp_path, monkeypatch):
    mixture, source_y, source, _, probs = shifted
    np.save(tmp_path / "probs.npy", probs)
    mapped = np.load(tmp_path / "probs.npy", mmap_mode="r")
    options = {"method": "bbse", "source_probs": source, "source_target": source_y}
    whole = [
        shift.estimate_prior(probs, mixture.prior),
        shift.estimate_prior(probs, mixture.prior, **options),
    ]
    monkeypatch.setattr(_checks, "_CHUNK_ELEMENTS", 6 * 700)
    chunked = [
        shift.estimate_prior(mapped, mixture.prior),
        shift.estimate_prior(torch.as_tensor(probs), mixture.prior, **options),
    ]
    for a, b in zip(whole, chunked, strict=True):
        np.testing.assert_allclose(a.probs, b.probs, atol=1e-8)
        assert a.statistic == pytest.approx(b.statistic)
    np.testing.assert_allclose(shift.effective_prior(mapped).probs, probs.mean(axis=0), atol=1e-12)


# --- leaving things alone -----------------------------------------------------------------


def test_no_shift_leaves_the_prior_alone():
    mixture, rng = Mixture(6), np.random.default_rng(4)
    probs = softmax(mixture.sample(2000, mixture.prior.probs, rng)[1])
    estimate = shift.estimate_prior(probs, mixture.prior)
    assert not estimate.shifted
    assert estimate.strength == 0.0
    assert estimate.prior is mixture.prior
    assert not np.array_equal(estimate.probs, mixture.prior.probs)  # noise, shown but not used
    assert shift.estimate_prior(probs, mixture.prior, significance=None).shifted


@pytest.mark.parametrize(
    ("classes", "imbalance", "method"),
    [(3, 20, "em"), (12, 20, "em"), (2, 200, "bbse"), (4, 20, "bbse"), (10, 200, "bbse")],
)
def test_false_alarms_are_as_rare_as_the_significance_says(classes, imbalance, method):
    mixture = Mixture(classes, spread=0.8 if method == "em" else 3.0, imbalance=imbalance)

    def alarm(seed):
        rng, pi = np.random.default_rng(seed), mixture.prior.probs
        probs = softmax(mixture.sample(600, pi, rng)[1])
        if method == "em":
            return shift.estimate_prior(probs, mixture.prior).shifted
        drawn = [mixture.sample(400, pi, rng)]  # and one of each class, as rare ones may be missing
        drawn += [mixture.sample(1, row, rng) for row in np.eye(classes)]
        y, source = (np.concatenate(part) for part in zip(*drawn, strict=True))
        options = {"source_probs": softmax(source), "source_target": y}
        return shift.estimate_prior(probs, mixture.prior, method="bbse", **options).shifted

    assert np.mean([alarm(seed) for seed in range(60)]) <= 0.12  # 0.05 + two and a half errors


@pytest.mark.parametrize("method", ["em", "bbse"])
def test_a_shifted_prior_is_found_and_used(method):
    mixture, rng = Mixture(6, spread=1.5), np.random.default_rng(5)
    q = mixture.prior.probs[::-1]
    # "No shift" is about the prior that was given, not about the held-out mix.
    source_y, source_logits = mixture.sample(20_000, q, rng)
    y, logits = mixture.sample(20_000, q, rng)
    options = {}
    if method != "em":  # BBSE needs no calibration: distort both alike
        source, probs = (softmax(2 * f + np.arange(6) / 3) for f in (source_logits, logits))
        options = {"method": "bbse", "source_probs": source, "source_target": source_y}
    estimate = shift.estimate_prior(
        softmax(logits) if method == "em" else probs, mixture.prior, **options
    )
    assert estimate.shifted
    assert estimate.p_value < 1e-6
    assert total_variation(estimate.prior.probs, q) < 0.03
    adjusted = adjust_logits(logits, mixture.prior, target_prior=estimate.prior)
    best = adjust_logits(logits, mixture.prior, target_prior=ClassPrior.from_probs(q))
    before, after, possible = (np.mean(f.argmax(1) == y) for f in (logits, adjusted, best))
    assert after > max(before + 0.02, possible - 0.005)


def test_strength_and_p_value_are_what_they_say(shifted):
    from scipy.stats import chi2

    mixture, *_, probs = shifted
    estimate = shift.estimate_prior(probs, mixture.prior)
    likelihood = np.log(probs @ (estimate.probs / mixture.prior.probs)).sum()
    assert estimate.statistic == pytest.approx(2 * likelihood)
    assert estimate.df == 5
    assert estimate.p_value == chi2.sf(estimate.statistic, 5)
    assert estimate.strength == pytest.approx(1 - 5 / estimate.statistic)
    expected = mixture.prior.probs + estimate.strength * (estimate.probs - mixture.prior.probs)
    np.testing.assert_allclose(estimate.prior.probs, expected)
    counted = ClassPrior.from_counts(np.round(mixture.prior.probs * 1000).astype(int))
    scaled = shift.estimate_prior(probs, counted)
    exact = shift.estimate_prior(probs, ClassPrior.from_probs(counted.probs))
    n, size = len(probs), counted.counts.sum()
    assert scaled.statistic == pytest.approx(exact.statistic * size / (size + n))


# --- BBSE ---------------------------------------------------------------------------------


@ABSTENTION
def test_bbse_agrees_with_abstention(shifted):
    from abstention.label_shift import BBSEImbalanceAdapter

    _, source_y, source, _, probs = shifted
    theirs = BBSEImbalanceAdapter(soft=True)(
        valid_labels=one_hot(source_y, 6),
        tofit_initial_posterior_probs=probs,
        valid_posterior_probs=source,
    ).multipliers
    assert theirs.min() > 0  # nothing was clipped, so both solve the same system
    prior = ClassPrior.from_labels(source_y)
    ours = shift.estimate_prior(
        probs, prior, method="bbse", source_probs=source, source_target=source_y
    )
    np.testing.assert_allclose(ours.probs / prior.probs, theirs, rtol=1e-9)


@given(st.integers(0, 10_000), st.integers(2, 6))
@settings(max_examples=20, deadline=None)
def test_the_simplex_solution_is_the_least_squares_one(seed, classes):
    rng = np.random.default_rng(seed)
    matrix = rng.dirichlet(np.full(classes, 0.7), classes).T + 0.5 * np.eye(classes)
    matrix /= matrix.sum(axis=0)
    mean = rng.dirichlet(np.full(classes, 0.5))
    q = shift._simplex_solve(matrix, mean)
    assert q.min() >= 0
    assert q.sum() == pytest.approx(1.0)
    # First-order condition on the simplex: no vertex lies downhill.
    gradient = matrix.T @ (matrix @ q - mean)
    assert np.all(gradient >= gradient @ q - 1e-9)


def slow_statistic(source, y, given, prior):
    """The statistic and its df as `_no_shift` has them, example by example, class by class."""
    pi, width, size = prior.probs, len(prior.probs), len(given)
    groups = [source[y == k] for k in range(width)]
    rates = [group.mean(axis=0) for group in groups]
    expected = sum(pi[k] * rates[k] for k in range(width))
    mean = given.mean(axis=0)
    held = 1 / sum(pi[k] ** 2 / len(groups[k]) for k in range(width))
    total = np.zeros((width, width))
    for k, group in enumerate(groups):
        for row in group:
            total += held * pi[k] / len(group) * np.outer(row - expected, row - expected)
    for row in given:
        total += np.outer(row - mean, row - mean)
    overall = total / (held + size - 2)
    noise = overall / size
    for k, group in enumerate(groups):
        within = sum(np.outer(row - rates[k], row - rates[k]) for row in group)
        apart, n = np.outer(rates[k] - expected, rates[k] - expected), len(group)
        # n examples and 4 others that are spread like all, about their common mean
        within = (within + 4 * overall + 4 * n / (n + 4) * apart) / (n + 3)
        noise += pi[k] ** 2 / n * within
        noise += pi[k] * apart / prior.counts.sum()
    # Moments of Σ (m_j − e_j)² / e_j, and the χ² that has them
    pearson = first = second = 0.0
    for j in range(width):
        pearson += (mean[j] - expected[j]) ** 2 / expected[j]
        first += noise[j, j] / expected[j]
        second += sum(noise[j, k] ** 2 / expected[j] / expected[k] for k in range(width))
    return pearson * first / second, first**2 / second


def test_bbse_statistic_of_probabilities_is_the_slow_one():
    mixture, rng = Mixture(4, spread=0.8, imbalance=5), np.random.default_rng(14)
    y, source = mixture.sample(1500, np.full(4, 0.25), rng)
    given = softmax(mixture.sample(900, [0.1, 0.2, 0.3, 0.4], rng)[1])
    prior = ClassPrior.from_counts([500, 300, 200, 100])
    found = shift.estimate_prior(
        given, prior, method="bbse", source_probs=softmax(source), source_target=y
    )
    slow = slow_statistic(softmax(source), y, given, prior)
    assert (found.statistic, found.df) == pytest.approx(slow)


# --- bias-corrected temperature -----------------------------------------------------------


def test_calibration_first_makes_em_work_on_a_distorted_model():
    mixture, rng = Mixture(6, spread=1.2), np.random.default_rng(8)
    q = mixture.prior.probs[::-1]
    held_y, held = mixture.sample(10_000, mixture.prior.probs, rng)
    y, logits = mixture.sample(10_000, q, rng)
    bias = np.linspace(-1, 1, 6)
    held, logits = 3 * held + bias, 3 * logits + bias
    calibrator = shift.fit_bias_corrected_temperature(held, held_y)
    assert calibrator.converged
    assert calibrator.temperature == pytest.approx(3, rel=0.05)
    np.testing.assert_allclose(calibrator.bias, -bias / 3, atol=0.15)
    assert abs(calibrator.bias.mean()) < 1e-12
    assert calibrator.log_loss < calibrator.log_loss_before
    # The log-loss is convex in 1/T and the bias, and has no slope in either at its optimum.
    excess = calibrator.probs(held) - one_hot(held_y, 6)
    assert abs(np.mean(np.sum(excess * held, axis=1))) < 1e-6
    frequencies = np.bincount(held_y) / len(held_y)  # what label shift rests on
    np.testing.assert_allclose(calibrator.probs(held).mean(axis=0), frequencies, atol=1e-6)
    np.testing.assert_array_equal(calibrator.prior.probs, frequencies)
    calibrated = calibrator.adjust(logits)
    np.testing.assert_allclose(calibrated, logits / calibrator.temperature + calibrator.bias)
    np.testing.assert_allclose(calibrator.probs(logits), softmax(calibrated))
    estimate = shift.estimate_prior(calibrator.probs(logits), calibrator.prior)
    plain = shift.estimate_prior(softmax(logits), calibrator.prior)
    assert total_variation(estimate.prior.probs, q) < 0.03
    assert total_variation(plain.probs, q) > 2 * total_variation(estimate.probs, q)
    adjusted = adjust_logits(calibrated, calibrator.prior, target_prior=estimate.prior)
    assert np.mean(adjusted.argmax(axis=1) == y) > np.mean(logits.argmax(axis=1) == y) + 0.05


# --- effective prior ----------------------------------------------------------------------


def test_effective_prior_is_the_mean_prediction():
    probs = softmax(np.random.default_rng(10).normal(0, 1, (50, 3)))
    prior = shift.effective_prior(probs)
    np.testing.assert_allclose(prior.probs, probs.mean(axis=0))
    assert prior.counts is None
    smoothed = shift.effective_prior([[1.0, 0.0], [0.5, 0.5]], smoothing=1.0)
    np.testing.assert_allclose(smoothed.probs, [2.5 / 4, 1.5 / 4])


# --- bad input ----------------------------------------------------------------------------

GOOD = np.array([[0.9, 0.1], [0.3, 0.7], [0.5, 0.5]])
PRIOR = ClassPrior.from_probs([0.8, 0.2])


def resampled(probs, prior, source, y, method, seed):
    """The estimate from a plain bootstrap sample: of the target, and of each held-out class."""
    rng = np.random.default_rng(seed)
    given = probs[rng.integers(len(probs), size=len(probs))]
    if method == "em":
        return shift.estimate_prior(given, prior).probs
    rows = [rng.choice(np.flatnonzero(y == k), size=(y == k).sum()) for k in range(source.shape[1])]
    rows = np.concatenate(rows)
    more = {"method": "bbse", "source_probs": source[rows], "source_target": y[rows]}
    return shift.estimate_prior(given, prior, **more).probs


@pytest.mark.parametrize("method", ["em", "bbse"])
def test_intervals_are_those_of_a_plain_bootstrap(shifted, method):
    mixture, y, source, _, probs = shifted
    more = {} if method == "em" else {"source_probs": source, "source_target": y}
    found = shift.estimate_prior(probs, mixture.prior, method=method, confidence=0.8, **more)
    slow = [resampled(probs, mixture.prior, source, y, method, seed) for seed in range(60)]
    low, high = np.quantile(slow, (0.1, 0.9), axis=0)
    width = high - low
    np.testing.assert_allclose(found.interval[:, 1] - found.interval[:, 0], width, rtol=0.4)
    np.testing.assert_allclose(
        found.interval.mean(axis=1), (low + high) / 2, atol=0.3 * width.max()
    )
    again = shift.estimate_prior(probs, mixture.prior, method=method, confidence=0.8, **more)
    np.testing.assert_array_equal(again.interval, found.interval)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior": ClassPrior.uniform(3)}, "`prior` has 3 classes but `probs` has 2 columns"),
        ({"probs": [[2.0, -1.0], [0.5, 0.5]]}, "these look like logits: apply a softmax"),
        ({"method": "bbse"}, "needs `source_probs` and `source_target`"),
        (
            {"method": "bbse", "source_probs": GOOD, "source_target": [0, 0, 0]},
            "`source_target` has none of 1; use method='em'",
        ),
        (
            {"method": "bbse", "source_probs": GOOD[[0, 0, 1, 1]], "source_target": [0, 1, 0, 1]},
            "singular .*some classes are predicted alike",
        ),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        shift.estimate_prior(**{"probs": GOOD, "prior": PRIOR, **options})


LOGITS, TARGET = np.random.default_rng(11).normal(0, 1, (60, 3)), np.arange(60) % 3


@pytest.mark.parametrize(
    ("logits", "target", "message"),
    [
        (LOGITS, np.arange(60) % 2, r"class\(es\) 2 have none, so their bias"),
        (LOGITS + 50 * one_hot(TARGET, 3), TARGET, "separate the classes of `target` perfectly"),
        (LOGITS - 3 * one_hot(TARGET, 3), TARGET, "say nothing about `target`"),
    ],
)
def test_calibration_refuses_what_has_no_optimum(logits, target, message):
    with pytest.raises(InputError, match=message):
        shift.fit_bias_corrected_temperature(logits, target)
