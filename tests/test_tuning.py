"""tuning: the exact curve against brute force, merging, weights, resampling, bad input."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import tracemalloc
import warnings
from functools import partial
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from longtail import ClassPrior, InputError, balanced_error, tune_tau
from longtail.posthoc import adjust_logits, adjustment, normalize_weights
from longtail.predictions.estimates import estimate
from longtail.tuning import TauCurve, TauIntervals, tune_from_intervals, tune_normalization
from longtail.tuning import _exact as exact
from oracles import shares_by_hand

BOUNDS = (-0.5, 4.0)
minimum = partial(tune_tau, n_bootstrap=0, select="minimum")
intervals = TauIntervals.from_logits
FIND = {
    "logit_adjustment": intervals,
    "weight_normalization": lambda logits, target, prior, **settings: TauIntervals.from_normalized(
        logits, target, norms=prior, **settings
    ),
}


def long_tailed(examples=400, classes=5, seed=0, shift=1.3):
    rng = np.random.default_rng(seed)
    prior = ClassPrior.from_counts(np.geomspace(2000, 20, classes).astype(int))
    target = rng.integers(0, classes, examples)
    target[:classes] = np.arange(classes)
    logits = rng.normal(size=(examples, classes)) + shift * prior.log_probs
    logits[np.arange(examples), target] += 2.0
    return logits, target, prior


# --- the curve and its minimum ------------------------------------------------------------


def brute_error(target, scores, importance, weight):
    """Σ_y w_y Σ_{i ∈ y} s_i [argmax ≠ y] / Σ s_i, one class at a time."""
    wrong = scores.argmax(axis=1) != target
    total = 0.0
    for y, w in enumerate(importance):
        mine = target == y
        total += w * np.sum(weight[mine] * wrong[mine]) / np.sum(weight[mine])
    return total


@st.composite
def problems(draw):
    """Small problems, full of equal priors and equal logits as often as not."""
    classes = draw(st.integers(2, 6))
    examples = draw(st.integers(classes, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    counts = rng.integers(1, draw(st.sampled_from([3, 12, 5000])), classes)
    if draw(st.booleans()):
        counts = np.sort(counts)[:: draw(st.sampled_from([1, -1]))]
    target = np.concatenate([np.arange(classes), rng.integers(0, classes, examples - classes)])
    if draw(st.booleans()):
        logits = rng.integers(-6, 7, (examples, classes)) / 4.0
    else:
        logits = rng.normal(0, 3, (examples, classes))
    logits[:, 0] -= draw(st.sampled_from([0.0, 3.0]))
    logits = np.concatenate([logits, [[-9.0] * (classes - 1) + [9.0]]])  # never probabilities
    target = np.append(target, classes - 1)
    weight = rng.integers(0, 4, len(target)).astype(float) if draw(st.booleans()) else None
    if weight is not None:
        weight[np.unique(target, return_index=True)[1]] += 1.0
    return ClassPrior.from_counts(counts), logits, target, weight, rng


@contextlib.contextmanager
def layout(rng):
    """Either way to store a block, and blocks and windows of a few rows."""
    with (
        mock.patch.object(exact, "_TABLE", int(rng.choice([0, 2048]))),
        mock.patch.object(exact, "_BLOCK_ELEMENTS", int(rng.choice([15, 1 << 17]))),
    ):
        yield


def check_curve(curve, scores_at, target, importance, weight):
    weight = np.ones(len(target)) if weight is None else weight
    middles = (curve.breakpoints[:-1] + curve.breakpoints[1:]) / 2
    assert np.all(np.diff(curve.breakpoints) > 0)
    assert (curve.breakpoints[0], curve.breakpoints[-1]) == BOUNDS
    for middle, value in zip(middles, curve.values, strict=True):
        expected = brute_error(target, scores_at(middle), importance, weight)
        assert value == pytest.approx(expected, abs=1e-12)
        assert curve(middle) == value
    zero = brute_error(target, scores_at(0.0), importance, weight)
    assert curve(0.0) == pytest.approx(zero, abs=1e-12)
    # Where the largest logits are equal, zero alone may be better than every cell.
    assert curve.min_value == pytest.approx(min(float(curve.values.min()), zero), abs=1e-12)


@settings(max_examples=150, deadline=None)
@given(problems(), st.booleans(), st.booleans())
def test_logit_adjustment_curve_is_brute_force_in_every_cell(problem, with_target, with_costs):
    prior, logits, target, weight, rng = problem
    classes = prior.num_classes
    q = ClassPrior.from_counts(rng.integers(1, 9, classes)) if with_target else None
    costs = rng.integers(1, 5, classes) if with_costs else None
    aim = {"target_prior": q, "costs": costs}
    # Where every class is shifted alike there is nothing to choose, which is refused.
    assume(np.ptp(adjustment(prior, **aim)) > 0)
    with layout(rng):
        result = minimum(logits, target, prior, sample_weight=weight, bounds=BOUNDS, **aim)
    importance = (q.probs if with_target else 1.0) * (costs if with_costs else np.ones(classes))

    def scores_at(tau):
        return adjust_logits(logits, prior, tau=tau, **aim)

    check_curve(result.curve, scores_at, target, importance / importance.sum(), weight)


@settings(max_examples=150, deadline=None)
@given(problems(), st.sampled_from(["scale", "drop"]), st.booleans())
def test_weight_normalization_curve_is_brute_force_in_every_cell(problem, bias_mode, by_prior):
    prior, logits, target, weight, rng = problem
    classes = prior.num_classes
    head = {
        "norms": prior if by_prior else rng.integers(1, 9, classes) / 4.0,
        "bias": rng.integers(-4, 5, classes) / 4.0,
        "bias_mode": bias_mode,
    }
    with layout(rng):
        result = tune_normalization(
            logits, target, sample_weight=weight, bounds=BOUNDS, select="minimum", **head
        )

    def scores_at(tau):
        return normalize_weights(logits, tau=tau, **head)

    check_curve(result.curve, scores_at, target, np.full(classes, 1 / classes), weight)
    assert (result.method, result.bias_mode) == ("weight_normalization", bias_mode)


def test_weight_normalization_by_sign_and_ties_of_zeros():
    """Zero stays zero at every tau, so that which class is first decides; its norm does not."""
    norms = [2.0, 3.0, 1.0, 5.0]  # by size: class 2, 0, 1, 3, which is no exchange of pairs
    rows = list(itertools.product([-1.0, -0.5, 0.0, 1.0], repeat=4))
    logits, target = np.repeat(rows, 4, axis=0), np.tile(np.arange(4), len(rows))
    parts = TauIntervals.from_normalized(logits, target, norms=norms)
    for tau in (-1.3, 0.0, 0.3, 1.1, 2.7):
        expected = (logits / np.array(norms) ** tau).argmax(axis=1) == target
        np.testing.assert_array_equal(parts.right_at(tau), expected)


def test_tau_is_the_middle_of_the_best_cell_nearest_to_one():
    first = []  # among several best cells, whether the nearest comes first; few examples have some
    for seed, (examples, classes, shift) in itertools.product(
        range(20), [(60, 5, 1.3), (12, 3, 0.3)]
    ):
        logits, target, prior = long_tailed(examples, classes, seed, shift)
        result = minimum(logits, target, prior)
        edges, values = result.curve.breakpoints, result.curve.values
        nearest = None
        for low, high, value in zip(edges[:-1], edges[1:], values, strict=True):
            if value <= values.min() + 1e-12:
                distance = max(low - 1, 1 - high, 0.0)
                if nearest is None or distance < nearest[0]:
                    nearest = (distance, low, high)
        first.append(nearest[1] == edges[np.argmax(values <= values.min() + 1e-12)])
        assert result.interval == nearest[1:]
        assert result.tau == (nearest[1] + nearest[2]) / 2
        assert result.error == result.curve.min_value
        for tau in (0.0, 1.0, result.tau):
            adjusted = adjust_logits(logits, prior, tau=tau)
            assert result.error_at(tau) == pytest.approx(balanced_error(target, adjusted))
    assert not all(first)


# The prior's log-odds are 1, so an example is right up to, or from, its own margin on.
ODDS = ClassPrior.from_weights([np.e, 1.0])


def two_classes(until, since):
    """Examples of class 0 that are right until these taus, and of class 1 that are right since."""
    margins = np.concatenate([until, since])
    target = np.repeat([0, 1], [len(until), len(since)])
    return np.stack([margins, np.zeros(len(margins))], axis=1), target


def test_zero_alone_is_chosen_where_it_is_better_than_every_cell():
    # Equal logits go to the lowest index at tau = 0, and to the rarest class right behind it.
    logits, target = two_classes([0.0, 0.0, 9.0], [-9.0, -9.0, -9.0])
    result = tune_tau(logits, target, ODDS, n_bootstrap=3000)
    assert (result.tau, result.interval, result.error) == (0.0, (0.0, 0.0), 0.0)
    assert result.curve.min_value == 0.0 < result.curve.values.min() == pytest.approx(1 / 3)
    # It is so in each draw that has one of the two: they are all drawn together.
    assert np.mean(result.resampled == 0.0) == pytest.approx(1 - (4 / 6) ** 6, abs=0.03)
    assert result.confidence[0] == 0.0

    assert tune_tau(logits, target, ODDS, bounds=(0.5, 2.0)).resampled.min() > 0.5
    # Also within the bounds, where class 1 wins below zero and class 2 above.
    logits = np.concatenate([np.zeros((2, 3)), 9.0 * np.eye(3)])
    prior = ClassPrior.from_counts([20, 30, 10])
    result = tune_tau(logits, [0, 0, 0, 1, 2], prior, bounds=(-1.0, 1.0))
    assert (result.tau, result.interval, result.error) == (0.0, (0.0, 0.0), 0.0)


def test_errors_by_class_and_outside_the_bounds():
    logits, target, prior = long_tailed()
    curve = minimum(logits, target, prior, bounds=(0.5, 1.5)).curve
    for tau in (-3.0, 0.0, 0.5, 0.8, 1.5, 7.0):
        wrong = adjust_logits(logits, prior, tau=tau).argmax(axis=1) != target
        by_class = [wrong[target == y].mean() for y in range(5)]
        np.testing.assert_allclose(curve.per_class(tau), by_class)
        assert curve(tau) == pytest.approx(np.mean(by_class))
    np.testing.assert_array_equal(curve([-3.0, 1.0, 7.0]), [curve(-3.0), curve(1.0), curve(7.0)])


@pytest.mark.parametrize(
    "options", [{}, {"criterion": "log_loss"}, {"target_prior": long_tailed()[2]}]
)
def test_where_no_tau_changes_anything_there_is_nothing_to_tune(options):
    logits, target, prior = long_tailed()
    learnt = prior if "target_prior" in options else ClassPrior.uniform(5)
    with pytest.raises(InputError, match=r"so no tau changes any prediction; .*from_counts"):
        tune_tau(logits, target, learnt, **options)
    # A curve may be asked for all the same.
    parts = intervals(logits, target, ClassPrior.uniform(5))
    assert tune_from_intervals(parts, n_bootstrap=0, select="minimum").interval == (0.0, 4.0)


@pytest.mark.parametrize("examples", [3, 57, 3003])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_perfect_tau_has_no_error_at_all(examples, weighted):
    """Thirds and sevenths don't add up to one in binary, but nothing is wrong."""
    target = np.arange(examples) % 3
    logits = 40 * np.eye(3)[target] + np.random.default_rng(0).normal(size=(examples, 3))
    weight = np.random.default_rng(1).uniform(size=examples) if weighted else None
    prior = ClassPrior.from_counts([900, 90, 10])
    result = minimum(logits, target, prior, sample_weight=weight, costs=[1, 2, 4])
    assert (result.error, result.error_at(0.0), result.curve.min_value) == (0.0, 0.0, 0.0)
    assert minimum(-logits, target, prior).error_at(0.0) == 1.0


# --- shards, weights, dtypes --------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    problems(),
    st.lists(st.integers(0, 30), max_size=3),
    st.sampled_from(["logit_adjustment", "weight_normalization"]),
)
def test_any_split_merges_to_the_same_curve(problem, cuts, method):
    prior, logits, target, weight, rng = problem
    find = FIND[method]
    whole = find(logits, target, prior, sample_weight=weight)
    edges = sorted({0, len(target), *(c for c in cuts if c < len(target))})
    weight = np.ones(len(target)) if weight is None else weight
    with layout(rng):
        parts = [
            find(
                np.concatenate([[logits[-1]], logits[a:b]]),
                np.concatenate([[0], target[a:b]]),
                prior,
                # The first row only shows that these are no probabilities; it has no weight.
                sample_weight=np.concatenate([[0.0], weight[a:b]]),
            )
            for a, b in itertools.pairwise(edges)
            if weight[a:b].any()
        ]
    merged = TauIntervals.merge(parts[::-1])
    one, two = (TauCurve(found, bounds=BOUNDS) for found in (whole, merged))
    np.testing.assert_array_equal(one.breakpoints, two.breakpoints)
    np.testing.assert_array_equal(one.values, two.values)
    np.testing.assert_array_equal(whole.counts, merged.counts)


def test_folds_with_priors_of_their_own_merge():
    logits, target, _ = long_tailed()
    priors = [ClassPrior.from_counts([50, 20, 9, 4, 1]), ClassPrior.from_counts([40, 30, 9, 9, 3])]
    folds = list(zip([slice(0, 150), slice(150, 400)], priors, strict=True))
    merged = TauIntervals.merge(intervals(logits[rows], target[rows], p) for rows, p in folds)
    result = tune_from_intervals(merged, n_bootstrap=0, select="minimum")
    for tau in (0.0, 0.4, 1.0, result.tau, 3.1):
        scores = np.concatenate([adjust_logits(logits[rows], p, tau=tau) for rows, p in folds])
        assert result.error_at(tau) == pytest.approx(balanced_error(target, scores))


def test_merging_refuses_what_does_not_belong_together():
    logits, target, prior = long_tailed()
    one = intervals(logits, target, prior)
    for other in (
        intervals(logits, target, prior, costs=[1, 2, 3, 4, 5]),
        FIND["weight_normalization"](logits, target, prior),
        intervals(logits[:, :4], target % 4, ClassPrior.uniform(4)),
    ):
        with pytest.raises(InputError, match="same classes, method, bias_mode, target prior"):
            TauIntervals.merge([one, other])


@settings(max_examples=40, deadline=None)
@given(problems())
def test_a_weight_is_repetition(problem):
    prior, logits, target, weight, _ = problem
    assume(np.ptp(prior.probs) > 0)
    weight = np.arange(len(target)) % 3 + 1.0 if weight is None else weight
    rows = np.repeat(np.arange(len(target)), weight.astype(int))
    weighted = minimum(logits, target, prior, sample_weight=weight, bounds=BOUNDS)
    repeated = minimum(logits[rows], target[rows], prior, bounds=BOUNDS)
    np.testing.assert_array_equal(weighted.curve.breakpoints, repeated.curve.breakpoints)
    np.testing.assert_allclose(weighted.curve.values, repeated.curve.values, atol=1e-13)
    assert weighted.tau == repeated.tau
    np.testing.assert_array_equal(
        weighted.counts, np.bincount(target[weight > 0], minlength=prior.num_classes)
    )


@pytest.mark.parametrize("method", ["logit_adjustment", "weight_normalization"])
def test_every_dtype_and_library_in_float64_arithmetic(method):
    jax = pytest.importorskip("jax")
    logits, target, prior = long_tailed()
    rounded = np.round(logits * 8) / 8  # exact in every float type
    find = FIND[method]
    expected = find(rounded, target, prior)
    tensor = torch.tensor(rounded)
    for other in (
        rounded.astype(np.float16),
        np.asfortranarray(rounded),
        rounded.astype(">f4"),
        tensor.bfloat16(),
        tensor.requires_grad_(),
        jax.numpy.asarray(rounded),
    ):
        got = find(other, torch.tensor(target), prior)
        np.testing.assert_array_equal(got.lower, expected.lower)
        np.testing.assert_array_equal(got.upper, expected.upper)


def test_enormous_and_tiny_logits_raise_no_warning():
    prior = ClassPrior.from_counts([3, 2, 1])
    logits = np.array([[1e308, -1e308, 0.0], [5e-324, 0.0, -5e-324], [1e-300, 1e300, -1e300]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for result in (
            tune_tau(logits, [0, 1, 2], prior),
            tune_normalization(logits, [0, 1, 2], norms=prior),
        ):
            assert 0.0 <= result.error <= 1.0


def test_a_memory_map_is_read_in_chunks(tmp_path, monkeypatch):
    logits, target, prior = long_tailed(40_000, classes=100)
    np.save(tmp_path / "logits.npy", logits.astype(np.float32))  # 16 MB
    mapped = np.load(tmp_path / "logits.npy", mmap_mode="r")
    tune_tau(mapped[:200], target[:200], prior, n_bootstrap=10)  # imports
    tracemalloc.start()
    result = tune_tau(mapped, target, prior)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12e6
    whole = tune_tau(logits.astype(np.float32), target, prior)
    np.testing.assert_array_equal(result.curve.values, whole.curve.values)
    assert result.confidence == whole.confidence


# --- resampling ---------------------------------------------------------------------------


def test_tau_is_the_mean_of_resampled_ones_and_the_interval_their_quantiles():
    logits, target, prior = long_tailed(120, classes=3)
    least = minimum(logits, target, prior)
    assert least.confidence is None
    for n_bootstrap in (0, 40, 500):
        result = tune_tau(logits, target, prior, n_bootstrap=n_bootstrap, random_state=3)
        rng = np.random.default_rng(3)
        taus = exact.bootstrap_taus(result.curve, replicates=max(n_bootstrap, 40), rng=rng)
        assert result.tau == pytest.approx(taus.mean())
        assert least.error <= result.error == result.error_at(result.tau)
        assert result.interval == least.interval
        if n_bootstrap:
            ends = [np.quantile(taus, q) for q in (0.025, 0.975)]
            wide = min(ends[0], result.interval[0]), max(ends[1], result.interval[1])
            assert result.confidence == pytest.approx(wide)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_each_replicate_is_brute_force_on_the_examples_drawn(weighted, seed):
    """The first three classes have just enough examples to be drawn alone, the others not."""
    rng, counts = np.random.default_rng(seed), np.array([10, 10, 10, 5, 2])
    prior, target = ClassPrior.from_counts([90, 60, 30, 9, 2]), np.repeat(np.arange(5), counts)
    logits = rng.normal(size=(37, 5)) + np.eye(5)[target] + 0.7 * prior.log_probs
    weight = rng.uniform(0.2, 3.0, 37) if weighted else None
    curve = TauCurve(intervals(logits, target, prior, sample_weight=weight), bounds=(0.0, 4.0))
    parts, edges = curve.intervals, curve.breakpoints
    found = exact.bootstrap_taus(curve, replicates=100, rng=np.random.default_rng(9))
    middles = (edges[:-1] + edges[1:]) / 2
    right = np.array(
        [adjust_logits(logits, prior, tau=t).argmax(axis=1) == target for t in middles]
    )
    share = parts.weight / 5 / np.bincount(target, weights=parts.weight)[target]
    pools = [np.flatnonzero(mine) for mine in (target == 0, target == 1, target == 2, target > 2)]
    pools = [pool[np.lexsort((parts.upper[pool], parts.lower[pool]))] for pool in pools]
    draws, several = np.random.default_rng(9), 0
    for tau in found:
        uniform, total = draws.random(37), np.zeros(len(middles))
        for pool, u in zip(pools, np.split(uniform, [10, 20, 30]), strict=True):
            rows = pool[(u * len(pool)).astype(int)]
            total += share[pool].sum() * right[:, rows] @ share[rows] / share[rows].sum()
        best = np.flatnonzero(total >= total.max() - 1e-9)
        plateaus = np.split(best, np.flatnonzero(np.diff(best) > 1) + 1)
        ends = [(edges[some[0]], edges[some[-1] + 1]) for some in plateaus]
        low, high = min(ends, key=lambda pair: max(pair[0] - 1, 1 - pair[1]))
        assert tau == pytest.approx((low + high) / 2, abs=1e-9)
        several += len(plateaus) > 1 and (low, high) != ends[0]
    assert several or weighted


def test_whole_weights_are_repetition_in_resampling_too():
    logits, target, prior = long_tailed(90)
    weight = np.random.default_rng(0).integers(1, 4, 90)
    rows = np.random.default_rng(1).permutation(np.repeat(np.arange(90), weight))
    one = tune_tau(logits, target, prior, sample_weight=weight)
    two = tune_tau(logits[rows], target[rows], prior)
    np.testing.assert_allclose(one.resampled, two.resampled)


@pytest.mark.parametrize("each", [1, 6])
def test_intervals_hold_the_best_tau_though_no_class_has_many_examples(each):
    """Exact logits of Gaussian classes, of which tau = 1 is the best: 95% of them should.

    A class of one example is the same however often that is drawn: drawn class by class, the
    interval of such data would be a point.
    """
    counts = np.geomspace(1000, 10, 200).astype(int)
    prior, target = ClassPrior.from_counts(counts), np.repeat(np.arange(200), each)
    held = 0
    for seed in range(40):
        noise = np.random.default_rng(seed).normal(size=(len(target), 200))
        logits = 3.0 * (noise + 3.0 * np.eye(200)[target]) + prior.log_probs
        low, high = tune_tau(logits, target, prior, n_bootstrap=200).confidence
        held += low <= 1.0 <= high
        assert high - low < 1.5
    assert held >= 34  # 95% of 40 are 38, and their standard deviation is 1.4


@pytest.mark.parametrize("kind", ["many", "weighted", "few of each class", "missing"])
def test_the_normal_approximation_agrees_with_resampling(kind, monkeypatch):
    """In what an interval is made of, where so many move that it takes the place of resampling."""
    weight, options, rel = None, {}, 0.15
    if kind == "few of each class":
        prior = ClassPrior.from_counts(np.geomspace(1000, 10, 200).astype(int))
        target, rel = np.arange(200), 0.3
        logits = 3.0 * np.random.default_rng(0).normal(size=(200, 200)) + prior.log_probs
        logits[target, target] += 9.0
    else:
        logits, target, prior = long_tailed(60_000)
    if kind == "weighted":
        weight = np.random.default_rng(0).uniform(0.5, 2.0, 60_000)
    if kind == "missing":
        logits, target, options = logits[target > 0], target[target > 0], {"missing": "nearest"}
    curve = minimum(logits, target, prior, sample_weight=weight, **options).curve
    monkeypatch.setattr(exact, "_EXACT_DRAWS", 1e9)
    one = exact.bootstrap_taus(curve, replicates=300, rng=np.random.default_rng(1))
    monkeypatch.setattr(exact, "_EXACT_DRAWS", 0)
    two = exact.bootstrap_taus(curve, replicates=1000, rng=np.random.default_rng(2))
    assert two.std() == pytest.approx(one.std(), rel=rel)
    ends = [0.025, 0.25, 0.75, 0.975]
    np.testing.assert_allclose(np.quantile(two, ends), np.quantile(one, ends), atol=one.std())


def test_a_plateau_has_one_middle_in_the_normal_law_too():
    """Scores on a coarse grid: thousands of examples change at the very same taus."""
    random, prior = np.random.default_rng(0), ClassPrior.from_probs([0.9, 0.1])
    target = np.arange(20000) % 2
    step = np.diff(prior.log_probs)[0] / 3  # examples change at multiples of a third
    margin = -step * np.rint(5 - 4 * target + 2 * random.normal(size=20000))
    logits = np.stack([margin, np.zeros(20000)], 1)
    for n_bootstrap in (100, 1000):
        taus = tune_tau(logits, target, prior, n_bootstrap=n_bootstrap).resampled
        places = np.rint(6 * taus)  # both plateaus may be as high: then their middle
        np.testing.assert_allclose(6 * taus, places)
        assert set(places) <= {5, 6, 7}
        assert np.mean(places == 6) < 0.05


def test_covariance_of_resampled_errors_is_its_formula(monkeypatch):
    monkeypatch.setattr(exact, "_CLASS_BLOCK", 2)
    logits, target, prior = long_tailed(200)
    weight = np.random.default_rng(0).uniform(0.5, 2.0, 200)
    taus = np.linspace(0.1, 3.9, 9)
    expected = np.zeros((9, 9))
    for y in range(5):
        mine = target == y
        right = [adjust_logits(logits[mine], prior, tau=t).argmax(axis=1) == y for t in taus]
        s = weight[mine] / weight[mine].sum()
        centred = (np.array(right) - (right @ s)[:, None]) * s / 5
        expected += centred @ centred.T
    parts = intervals(logits, target, prior, sample_weight=weight)
    found = exact.resampled_covariance(parts, exact.Groups.from_intervals(parts), taus)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-16)


def test_the_standard_error_of_many_examples_is_the_usual_one_and_of_few_that_of_adjust():
    logits, target, prior = long_tailed(60_000)
    curve = minimum(logits, target, prior).curve
    rates = curve.per_class(1.0)
    usual = np.sqrt(np.sum(rates * (1 - rates) / curve.intervals.counts)) / 5
    assert curve.standard_error(1.0) == pytest.approx(usual, rel=0.01)
    # Examples of one weight are as many as they are, whatever the weight.
    weighted = minimum(logits, target, prior, sample_weight=np.full(60_000, 7.0)).curve
    assert weighted.standard_error(1.0) == pytest.approx(curve.standard_error(1.0))

    some = slice(0, 40)
    result = minimum(logits[some], target[some], prior)
    right = adjust_logits(logits[some], prior, tau=result.tau).argmax(axis=1) == target[some]
    wrong, counts = np.bincount(target[some][~right], minlength=5), np.bincount(target[some])
    found = estimate(wrong, None, counts, np.full(5, 0.2), level=0.95)
    assert (result.error, result.standard_error) == pytest.approx(
        (found.value, found.standard_error)
    )


def test_intervals_narrow_with_more_examples_and_repeat_with_the_seed():
    widths = []
    for examples in (100, 20_000):
        problem = long_tailed(examples)
        low, high = tune_tau(*problem).confidence
        assert (low, high) == tune_tau(*problem).confidence
        assert (low, high) != tune_tau(*problem, random_state=1).confidence
        narrow = tune_tau(*problem, confidence=0.5).confidence
        assert low <= narrow[0] < narrow[1] <= high
        widths.append(high - low)
    assert widths[1] < widths[0] / 2


@pytest.mark.parametrize(
    ("held_out", "few"),
    [
        ([900, 90, 10], True),
        ([900, 5, 5], True),  # neither of the two decides alone
        ([20, 20, 20], True),
        ([200, 200, 200], False),
        ([5000, 500, 150], False),
    ],
    ids=str,
)
def test_few_examples_that_decide_are_told_to_narrow_the_interval(held_out, few):
    prior = ClassPrior.from_counts([900, 90, 10])
    target = np.repeat([0, 1, 2], held_out)
    noise = np.random.default_rng(0).normal(size=(len(target), 3))
    logits = noise + 2.0 * np.eye(3)[target] + prior.log_probs
    result = tune_tau(logits, target, prior, n_bootstrap=20)
    # By hand: a class's part of the error's variance, and what the sum of such parts is known from.
    parts = [1 / n for n in held_out]
    number = sum(parts) ** 2 / sum(v**2 / n for v, n in zip(parts, held_out, strict=True))
    assert result.deciding_examples == pytest.approx(number)
    assert result.few_decide == few
    # A hundred copies of no weight to speak of tell no more than those that have one.
    rows = np.concatenate([np.arange(len(target)), np.repeat(np.flatnonzero(target == 2), 100)])
    weight = np.where(np.arange(len(rows)) < len(target), 1.0, 1e-9)
    weighted = minimum(logits[rows], target[rows], prior, sample_weight=weight)
    assert weighted.deciding_examples == pytest.approx(number)


# --- held-out data that lack classes ------------------------------------------------------

COUNTS = np.array([500, 300, 60, 8])
FOUR = ClassPrior.from_counts(COUNTS)


def lacking(*missing, each=40):
    """Logits that lean to the frequent classes, of all classes but some."""
    target = np.repeat([k for k in range(4) if k not in missing], each)
    noise = np.random.default_rng(0).normal(size=(len(target), 4))
    return 2.0 * np.eye(4)[target] + noise + 0.7 * FOUR.log_probs, target


@pytest.mark.parametrize("missing", [(), (0,), (0, 1), (2,), (0, 2)], ids=str)
def test_the_nearest_class_in_size_stands_in(missing):
    logits, target = lacking(*missing)
    result = tune_tau(logits, target, FOUR, missing="nearest", n_bootstrap=50, select="minimum")
    weights = shares_by_hand(COUNTS, np.bincount(target, minlength=4))
    for tau in (0.0, 0.33, 1.0, 1.7, *np.linspace(0, 4, 41)):
        wrong = (logits - tau * FOUR.log_probs).argmax(axis=1) != target
        expected = sum(weights[k] * wrong[target == k].mean() for k in np.unique(target))
        assert result.error_at(tau) == pytest.approx(expected, abs=1e-12)
        assert result.error <= expected + 1e-12
    assert np.isfinite([result.standard_error, *result.confidence]).all()
    assert np.flatnonzero(np.isnan(result.curve.per_class(0.5))).tolist() == list(missing)
    if not missing:
        assert result.tau == tune_tau(logits, target, FOUR, select="minimum").tau


def test_costs_of_a_missing_class_go_to_its_stand_in():
    costs = np.array([5.0, 1.0, 1.0, 3.0])
    parts = intervals(*lacking(0), FOUR, costs=costs).with_stand_ins(FOUR)
    np.testing.assert_allclose(parts.importance, np.array([0.0, 6.0, 1.0, 3.0]) / 10)


@pytest.mark.parametrize(
    ("sizes", "examples", "expected"),
    [
        ([5000, 5000, 50, 50, 50], [0, 0, 9, 1, 4], [0, 0, 5 / 3, 5 / 3, 5 / 3]),
        ([100, 10, 1], [5, 0, 5], [1.5, 0, 1.5]),
        ([300, 30, 3, 3], [5, 0, 5, 5], [1 + 1 / 3, 0, 1 + 1 / 3, 1 + 1 / 3]),
        ([100, 11, 10, 1], [0, 5, 7, 5], [0, 2, 1, 1]),
    ],
)
def test_equally_near_classes_share(sizes, examples, expected):
    sizes, examples = np.array(sizes), np.array(examples)
    target = np.repeat(np.arange(len(sizes)), examples)
    for prior in (ClassPrior.from_counts(sizes), ClassPrior.from_weights(sizes / 3.0)):
        parts = intervals(9 * np.eye(len(sizes))[target], target, prior).with_stand_ins(prior)
        np.testing.assert_allclose(parts.importance, np.array(expected) / len(sizes))
    np.testing.assert_allclose(shares_by_hand(sizes, examples), np.array(expected) / len(sizes))


# --- reports ------------------------------------------------------------------------------


def test_results_are_plain_json():
    result = tune_tau(*long_tailed(60, classes=10))
    assert f"tau = {result.tau:.4g}" in str(result)
    plain = json.loads(json.dumps(result.to_dict(curve_points=5)))
    assert plain["tau"] == result.tau
    assert result.confidence is not None
    assert plain["confidence"] == list(result.confidence)
    assert plain["counts"] == result.counts.tolist()
    assert plain["error_at"] == {"0": result.error_at(0.0), "1": result.error_at(1.0)}
    assert plain["curve"]["tau"] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert plain["curve"]["error"] == [result.error_at(t) for t in plain["curve"]["tau"]]
    assert "curve" not in result.to_dict()


def test_every_tau_may_be_as_good_for_these_examples():
    prior = ClassPrior.from_counts([9, 1])
    result = tune_tau(np.array([[90.0, 0.0], [0.0, 90.0]]), [0, 1], prior)
    assert result.interval == (0.0, 4.0)
    assert result.confidence == (0.0, 4.0)  # though resampling finds the middle every time


def test_a_best_tau_at_the_bounds_says_so_unless_it_is_zero():
    logits, target = two_classes([1.0], [-1.0])  # right together from −1 to 1
    for bounds, touched in (((0.0, 4.0), False), ((0.2, 4.0), True), ((0.0, 0.5), True)):
        result = minimum(logits, target, ODDS, bounds=bounds)
        assert result.interval == pytest.approx((bounds[0], min(bounds[1], 1.0)))
        assert result.at_bound == touched


def doubted(result):
    """Whether a best tau of zero is laid to counts in another order or adjusted logits."""
    return any("any adjustment makes it worse" in doubt for doubt in result.doubts)


def test_a_best_tau_of_zero_names_the_likely_causes():
    logits, target, prior = long_tailed(300)
    assert doubted(tune_tau(logits, target, ClassPrior.from_counts(prior.counts[::-1])))
    assert doubted(tune_tau(adjust_logits(logits, prior, tau=1.6), target, prior))
    # Norms have no order of their own to mistake, and the upper bound has no such causes.
    by_norms = tune_normalization(np.exp(logits), target, norms=1.0 / prior.probs)
    assert by_norms.interval[0] == 0.0
    assert not doubted(by_norms)
    assert not doubted(tune_tau(logits, target, prior, bounds=(0.0, 0.5)))


@pytest.mark.parametrize(("lost", "clearly"), [(2, False), (3, True)])
def test_zero_is_best_only_by_two_standard_errors(lost, clearly):
    """Of ten examples in each of two classes, all right at 0, some of one are wrong from 0.25."""
    logits, target = two_classes([0.25] * lost + [9.0] * (10 - lost), [-9.0] * 10)
    result = minimum(logits, target, ODDS)
    assert result.interval == pytest.approx((0.0, 0.25))
    assert result.error_at(0.5) - result.error_at(0.0) == pytest.approx(lost / 20)
    # One class has a rate of 0.5/12 and one, with both added examples to itself, of 1/12.
    variance = (0.5 * 11.5 + 1 * 11) / 12**2 / 10 / (1 - 10 / 12**2) / 4
    assert result.standard_error == pytest.approx(np.sqrt(variance))  # 0.056
    assert doubted(result) == clearly


# --- bad input ----------------------------------------------------------------------------

F, Y, P = long_tailed(50)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tune_tau(F, np.where(Y == 3, 0, Y), P), "1 of 5 have none in `target`: 3"),
        (lambda: tune_tau(F, Y, P, sample_weight=Y != 2), "1 of 5 have none in `target`: 2"),
        (lambda: tune_tau(F, Y, P, criterion="f1"), "`criterion` must be one of"),
        (lambda: tune_tau(F, Y, P, bounds=(1.0, 1.0)), "`bounds` must be a lower and a higher"),
        (lambda: tune_normalization(F, Y, norms=None), "weight normalization needs `norms`"),
        (lambda: tune_normalization(F, Y, norms=P, bias_mode="keep"), "'keep' has no exact curve"),
        (lambda: tune_normalization(F, Y, norms=P, bias_mode="drop"), "'drop' needs `bias`"),
        (lambda: tune_tau(F, Y, P, criterion="log_loss", costs=np.ones(5)), "have no part in"),
        (lambda: tune_tau(F, Y, P, criterion="log_loss", missing="nearest"), "have no part in"),
        (lambda: tune_tau(F, Y, P, criterion="ece", bounds=(-1.0, 2.0)), "must not be negative"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=re.escape(message)):
        call()
