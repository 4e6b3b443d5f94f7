"""Held-out data that lack classes: the nearest in size stands in, against loops over classes."""

import numpy as np
import pytest

from longtail import ClassPrior, InputError, tune_tau
from longtail.tuning import TauIntervals, class_shares, tune_from_intervals
from longtail.tuning import _curve as bootstrap
from oracles import shares_by_hand

COUNTS = np.array([500, 300, 60, 8])
PRIOR = ClassPrior.from_counts(COUNTS)
LOG_PRIOR = np.log(COUNTS / COUNTS.sum())


def lacking(*missing, each=40, seed=0):
    """Logits that lean to the frequent classes, of all classes but some."""
    random = np.random.default_rng(seed)
    target = np.repeat([k for k in range(4) if k not in missing], each)
    logits = 2.0 * np.eye(4)[target] + random.normal(size=(len(target), 4)) + 0.7 * LOG_PRIOR
    return logits, target


def error_by_hand(logits, target, tau, weights):
    """Σ_y weight_y · error_y over the classes that are there."""
    total = 0.0
    for k in np.unique(target):
        rows = logits[target == k]
        total += weights[k] * np.mean([(row - tau * LOG_PRIOR).argmax() != k for row in rows])
    return total


@pytest.mark.parametrize("missing", [(), (0,), (0, 1), (2,), (0, 2)], ids=str)
def test_the_curve_is_that_of_the_classes_that_stand_in(missing):
    logits, target = lacking(*missing)
    result = tune_tau(logits, target, PRIOR, missing="nearest", n_bootstrap=50, select="minimum")
    weights = shares_by_hand(COUNTS, np.bincount(target, minlength=4))
    for tau in (0.0, 0.33, 1.0, 1.7):
        expected = error_by_hand(logits, target, tau, weights)
        assert result.error_at(tau) == pytest.approx(expected, abs=1e-12)
    grid = [error_by_hand(logits, target, tau, weights) for tau in np.linspace(0, 4, 401)]
    assert result.error <= min(grid) + 1e-12
    assert np.isfinite([result.standard_error, *result.confidence]).all()
    own = result.curve.per_class(0.5)
    assert np.flatnonzero(np.isnan(own)).tolist() == list(missing)
    assert ("none: the nearest class in size counts for" in str(result)) == bool(missing)


def test_left_out_instead_the_largest_class_would_have_no_say():
    """Which is why a class stands in: tau comes out smaller, and nearer to that of all classes."""
    taus = {}
    for name, there in (("all", ()), ("nearest", (0,))):
        logits, target = lacking(*there, each=3000)
        taus[name] = tune_tau(
            logits, target, PRIOR, missing="nearest", n_bootstrap=0, select="minimum"
        ).tau
    rare = TauIntervals.from_logits(*lacking(0, each=3000), PRIOR)
    without = np.array([0.0, 1.0, 1.0, 1.0]) / 3
    left_out = tune_from_intervals(
        TauIntervals(**{**vars(rare), "importance": without}), n_bootstrap=0
    ).tau
    assert abs(taus["nearest"] - taus["all"]) < abs(left_out - taus["all"])
    assert left_out > taus["nearest"]


STEP = np.array([5000] * 3 + [50] * 4)


@pytest.mark.parametrize("order", [(3, 4, 5, 6), (4, 3, 5, 6), (6, 5, 4, 3)], ids=str)
def test_classes_of_one_size_may_be_numbered_in_any_order(order):
    """None of the three large classes is held out, and of the small ones one is hard."""
    random, prior = np.random.default_rng(0), ClassPrior.from_counts(STEP)
    target = np.repeat([3, 4, 5, 6], 50)
    signal = np.array([0, 0, 0, 1.0, 6.0, 6.0, 6.0])[target, None] * np.eye(7)[target]
    logits = signal + random.normal(size=(200, 7)) + prior.log_probs
    columns = np.array([0, 1, 2, *order])
    settings = {"missing": "nearest", "n_bootstrap": 0, "select": "minimum"}
    one = tune_tau(logits, target, prior, **settings)
    other = tune_tau(logits[:, columns], columns.argsort()[target], prior, **settings)
    np.testing.assert_allclose(other.interval, one.interval)
    for tau in (0.0, 0.6, 1.0, one.tau):
        assert other.error_at(tau) == pytest.approx(one.error_at(tau), abs=1e-12)
    assert one.error_at(0.0) == pytest.approx(np.mean(one.curve.per_class(0.0)[3:]))


def test_with_every_class_it_changes_nothing():
    logits, target = lacking()
    one, other = (tune_tau(logits, target, PRIOR, missing=m) for m in ("error", "nearest"))
    assert one.to_dict() == other.to_dict()


def test_costs_of_a_missing_class_go_to_its_stand_in():
    logits, target = lacking(0)
    costs = np.array([5.0, 1.0, 1.0, 3.0])
    parts = TauIntervals.from_logits(logits, target, PRIOR, costs=costs).with_stand_ins(PRIOR)
    np.testing.assert_allclose(parts.importance, np.array([0.0, 6.0, 1.0, 3.0]) / 10)


def test_many_examples_have_an_interval_too(monkeypatch):
    """By the normal approximation of the same resampling."""
    logits, target = lacking(0, each=400)
    drawn = tune_tau(logits, target, PRIOR, missing="nearest", n_bootstrap=400)
    monkeypatch.setattr(bootstrap, "_EXACT_DRAWS", 0)
    smooth = tune_tau(logits, target, PRIOR, missing="nearest", n_bootstrap=400)
    np.testing.assert_allclose(smooth.confidence, drawn.confidence, atol=0.15)


@pytest.mark.parametrize("examples", [[5, 5, 5, 5], [0, 5, 5, 5], [0, 0, 5, 5], [0, 5, 0, 5]])
def test_every_class_counts_once(examples):
    found = class_shares(COUNTS, np.array(examples))
    np.testing.assert_allclose(found, shares_by_hand(COUNTS, examples))
    assert found.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("sizes", "examples", "expected"),
    [
        ([5000, 5000, 50, 50, 50], [0, 0, 9, 1, 4], [0, 0, 5 / 3, 5 / 3, 5 / 3]),
        ([100, 10, 1], [5, 0, 5], [1.5, 0, 1.5]),
        ([300, 30, 3, 3], [5, 0, 5, 5], [1 + 1 / 3, 0, 1 + 1 / 3, 1 + 1 / 3]),
        ([100, 10, 10, 1], [0, 0, 7, 5], [0, 0, 3, 1]),
        ([100, 11, 10, 1], [0, 5, 7, 5], [0, 2, 1, 1]),
    ],
)
def test_equally_near_classes_share(sizes, examples, expected):
    sizes, examples = np.array(sizes), np.array(examples)
    for given in (sizes, sizes / sizes.sum(), sizes / 3.0):
        np.testing.assert_allclose(class_shares(given, examples), np.array(expected) / len(sizes))
    np.testing.assert_allclose(shares_by_hand(sizes, examples), np.array(expected) / len(sizes))


def test_bad_input():
    logits, target = lacking(0)
    with pytest.raises(InputError, match=r"1 of 4 have none in `target`: 0; .*missing='nearest'"):
        tune_tau(logits, target, PRIOR)
    parts = TauIntervals.from_logits(logits, target, PRIOR)
    with pytest.raises(InputError, match=r"1 of 4 have none in `target`: 0") as refused:
        tune_from_intervals(parts)
    assert ".with_stand_ins(prior)" in str(refused.value)
    tune_from_intervals(parts.with_stand_ins(PRIOR), n_bootstrap=0)
    with pytest.raises(InputError, match="`missing` must be one of 'error', 'nearest'"):
        tune_tau(logits, target, PRIOR, missing="skip")
    with pytest.raises(InputError, match="`missing` has no part in criterion='log_loss'"):
        tune_tau(logits, target, PRIOR, missing="nearest", criterion="log_loss")
    with pytest.raises(InputError, match="none of any class"):
        class_shares(COUNTS, np.zeros(4, int))
