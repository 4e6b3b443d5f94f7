"""The choice of tau on some examples and its honest result on others, against slow loops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail import ClassPrior, InputError, adjust_logits, balanced_error, tune_tau
from longtail.predictions import adjust_predictions, from_arrays, tune_predictions
from longtail.predictions.adjusting import _splits
from longtail.predictions.estimates import estimate
from longtail.tuning import tune_normalization

PRIOR = ClassPrior.from_counts([900, 150, 60, 12])


def problem(examples=400, seed=0, sharpness=1.5):
    """Predictions of an overconfident model that has learnt the prior, classes evenly mixed."""
    rng = np.random.default_rng(seed)
    target = rng.integers(4, size=examples)
    evidence = 1.2 * np.eye(4)[target] + rng.normal(size=(examples, 4))
    return sharpness * (1.2 * evidence + PRIOR.log_probs), target


def saved(examples=400, seed=0, **settings):
    logits, target = problem(examples, seed)
    return from_arrays(logits, target, kind="logits", **settings), logits, target


def slow_result(logits, target, splits, prior=PRIOR, tau=None, target_prior=None, **choice):
    """Error counts by class before and after, split by split, example by example."""
    before, after, judged = (np.zeros(4, int) for _ in range(3))
    taus = []
    for tune, judge in splits:
        chosen = tau
        if chosen is None:
            settings = {"n_bootstrap": 0, "target_prior": target_prior, **choice}
            chosen = tune_tau(logits[tune], target[tune], prior, **settings).tau
        taus.append(chosen)
        q = np.full(4, 0.25) if target_prior is None else target_prior.probs
        for i in np.flatnonzero(judge):
            scores = [logits[i, y] - chosen * (np.log(prior.probs[y] / q[y])) for y in range(4)]
            judged[target[i]] += 1
            before[target[i]] += int(np.argmax(logits[i]) != target[i])
            after[target[i]] += int(np.argmax(scores) != target[i])
    return before, after, judged, taus


def masks(target, protocol, amount, seed=0, kept=None):
    return _splits(target, np.arange(4) if kept is None else kept, protocol, amount, seed)


def check(result, before, after, judged):
    tally = result.tally
    np.testing.assert_array_equal(tally.counts, judged)
    np.testing.assert_array_equal(tally.wrong, before)
    np.testing.assert_array_equal(tally.wrong - tally.fixed + tally.broken, after)
    assert result.balanced.before.value == pytest.approx(np.mean(before / judged))
    assert result.balanced.after.value == pytest.approx(np.mean(after / judged))
    assert result.overall.after.value == pytest.approx(after.sum() / judged.sum())
    groups = {"many": [0, 1], "medium": [2], "few": [3]}
    assert list(result.groups) == list(groups)
    for name, members in groups.items():
        change = result.groups[name]
        assert change.after.value == pytest.approx(np.mean((after / judged)[members]))
        assert change.difference.value == pytest.approx(
            np.mean(((after - before) / judged)[members])
        )
        assert change.num_classes == len(members)
        assert change.num_examples == judged[members].sum()
    for k in range(4):
        assert tally.change(np.eye(4)[k]).before.value == pytest.approx(before[k] / judged[k])


@pytest.mark.parametrize("folds", [None, 2, 7])
def test_cross_fitting_judges_each_fold_with_the_tau_of_the_others(folds):
    source, logits, target = saved()
    result = adjust_predictions(source, PRIOR, folds=folds, n_bootstrap=50, random_state=3)
    splits = masks(target, "cross-fit", folds or 5, 3)
    before, after, judged, taus = slow_result(logits, target, splits)
    check(result, before, after, judged)
    assert result.protocol == "cross-fit"
    np.testing.assert_array_equal(result.fold_taus, taus)
    whole = tune_tau(logits, target, PRIOR, n_bootstrap=50, random_state=3)
    assert (result.tau, result.tuning.confidence) == (whole.tau, whole.confidence)
    assert (result.num_tuned, result.num_judged) == (400, 400)


def test_a_split_judges_on_what_did_not_choose():
    source, logits, target = saved()
    result = adjust_predictions(source, PRIOR, tune_on=0.3, n_bootstrap=50, random_state=3)
    ((tune, judge),) = splits = masks(target, "split", 0.3, 3)
    choice = {"n_bootstrap": 50, "random_state": 3}
    before, after, judged, taus = slow_result(logits, target, splits, **choice)
    check(result, before, after, judged)
    assert result.protocol == "split"
    assert [result.tau] == taus
    assert (result.num_tuned, result.num_judged) == (tune.sum(), judge.sum())
    assert result.judged_curve(result.tau) == pytest.approx(result.balanced.after.value)


def test_a_given_tau_is_judged_on_everything():
    source, logits, target = saved()
    result = adjust_predictions(source, PRIOR, tau=1.0)
    everything = np.ones(400, bool)
    check(result, *slow_result(logits, target, [(everything, everything)], tau=1.0)[:3])
    assert (result.protocol, result.tau, result.tuning) == ("given", 1.0, None)
    expected = balanced_error(target, adjust_logits(logits, PRIOR))
    assert result.balanced.after.value == pytest.approx(expected)


def test_before_any_adjustment_equal_scores_go_to_the_first_class():
    # That is the rare one here: right at tau = 0 and from there on, as argmax has it.
    source = from_arrays(np.array([[1.0, 1.0], [0.0, 9.0]]), np.array([0, 1]), kind="logits")
    result = adjust_predictions(source, ClassPrior.from_counts([12, 900]), tau=1.0)
    assert result.balanced.before.value == result.balanced.after.value == 0


def test_a_target_prior_is_aimed_at_and_judged_by():
    source, logits, target = saved()
    aim = ClassPrior.from_probs([0.4, 0.3, 0.2, 0.1])
    result = adjust_predictions(source, PRIOR, target_prior=aim, n_bootstrap=0)
    splits = masks(target, "cross-fit", 5)
    before, after, judged, taus = slow_result(logits, target, splits, target_prior=aim)
    check(result, before, after, judged)
    np.testing.assert_array_equal(result.fold_taus, taus)
    assert result.expected.after.value == pytest.approx(aim.probs @ (after / judged))
    assert adjust_predictions(source, PRIOR, n_bootstrap=0).expected is None


def mean_prediction(probs, target, rows):
    """The mean probabilities of those rows, each class weighing as much as in training."""
    return sum(PRIOR.probs[y] * probs[rows & (target == y)].mean(axis=0) for y in range(4))


@pytest.mark.parametrize("how", [{"tune_on": 0.5}, {"folds": 3}, {"tau": 0.8}])
def test_the_learnt_prior_is_learnt_where_tau_is_chosen(how):
    source, logits, target = saved()
    result = adjust_predictions(source, PRIOR, effective=True, n_bootstrap=0, **how)
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    protocol = "split" if "tune_on" in how else "cross-fit"
    splits = masks(target, protocol, how.get("tune_on") or how.get("folds") or 5)
    totals = np.zeros((3, 4), int)
    for tune, judge in splits:
        prior = ClassPrior.from_probs(mean_prediction(probs, target, tune))
        totals += np.stack(slow_result(logits, target, [(tune, judge)], prior, how.get("tau"))[:3])
    check(result, *totals)
    assert result.protocol == protocol
    every = splits[0][0] if protocol == "split" else np.ones(400, bool)
    np.testing.assert_allclose(result.prior.probs, mean_prediction(probs, target, every))
    np.testing.assert_array_equal(result.prior.counts, PRIOR.counts)


def few_of_the_last(number):
    """Predictions with that many examples of the rarest class."""
    logits, target = problem()
    kept = np.flatnonzero((target < 3) | (np.cumsum(target == 3) <= number))
    return logits[kept], target[kept]


@pytest.mark.parametrize("how", [{}, {"tune_on": 0.5}, {"tau": 1.0}])
def test_classes_can_be_left_out(how):
    logits, target = few_of_the_last(0 if how == {"tau": 1.0} else 1)
    source = from_arrays(logits, target, kind="logits")
    result = adjust_predictions(source, PRIOR, missing="skip", n_bootstrap=0, **how)
    assert result.left_out.tolist() == [3]
    assert result.tally.counts[3] == 0
    assert list(result.groups) == ["many", "medium"]
    assert result.balanced.num_classes == 3
    protocol = {"tune_on": "split", "tau": "given"}.get(next(iter(how), ""), "cross-fit")
    # The competition is still among all four classes; only the mean is over three.
    errors = []
    splits = masks(target, protocol, how.get("tune_on", 5), kept=np.arange(3))
    for tune, judge in splits:
        assert not np.any(target[tune | judge] == 3)
        tau = how.get("tau")
        if tau is None:
            tau = result.tau if protocol == "split" else result.fold_taus[len(errors)]
        right = (logits[judge] - tau * PRIOR.log_probs).argmax(axis=1) == target[judge]
        errors.append(np.bincount(target[judge], ~right, minlength=4))
    expected = np.mean(np.sum(errors, axis=0)[:3] / result.tally.counts[:3])
    assert result.balanced.after.value == pytest.approx(expected)
    chose, judged = (np.any(rows, axis=0) for rows in zip(*splits, strict=True))
    on_judged = slow_three(logits[judged], target[judged], result.tau)
    assert result.judged_curve(result.tau) == pytest.approx(on_judged)
    if result.tuning is not None:
        on_chosen = slow_three(logits[chose], target[chose], result.tau)
        assert result.tuning.error == pytest.approx(on_chosen)


def slow_three(logits, target, tau):
    wrong = (logits - tau * PRIOR.log_probs).argmax(axis=1) != target
    return np.mean([wrong[target == y].mean() for y in range(3)])


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(2, 30), min_size=2, max_size=6),
    seed=st.integers(0, 1000),
    folds=st.integers(2, 9),
    fraction=st.floats(0.01, 0.99),
)
def test_every_class_chooses_and_judges(counts, seed, folds, fraction):
    target = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    kept = np.arange(len(counts))
    pieces = _splits(target, kept, "cross-fit", folds, seed)
    assert np.array_equal(np.sum([judge for _, judge in pieces], axis=0), np.ones(len(target)))
    for tune, judge in pieces:
        assert np.array_equal(tune, ~judge)
        assert np.bincount(target[tune], minlength=len(counts)).min() >= 1
        by_class = np.bincount(target[judge], minlength=len(counts))
        assert np.all(by_class <= np.ceil(np.array(counts) / folds))
    ((tune, judge),) = _splits(target, kept, "split", fraction, seed)
    assert np.array_equal(tune, ~judge)
    took = np.bincount(target[tune], minlength=len(counts))
    assert np.all((took >= 1) & (took < counts))
    assert np.all(np.abs(took - fraction * np.array(counts)) <= 1)


def test_without_labels_nothing_is_measured():
    logits, _ = problem()
    source = from_arrays(logits, kind="logits")
    result = adjust_predictions(source, PRIOR)
    assert (result.tau, result.protocol, result.balanced) == (1.0, "unlabelled", None)
    assert "balanced_error" not in result.to_dict()
    learnt = adjust_predictions(source, None, effective=True).prior
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(learnt.probs, probs.mean(axis=0))


@pytest.mark.parametrize(
    ("number", "how", "message"),
    [
        (9, {"prior": ClassPrior.uniform(4)}, "the prior is uniform"),
        (9, {"target_prior": PRIOR}, "the very target prior"),
        (9, {"tune_on": 0.5, "folds": 3}, "give `tune_on=` or `folds=`, not both"),
        (1, {"tune_on": 0.5}, r"1 of 4 classes have fewer: 3 \(1\); label more"),
        (0, {"tau": 1.0}, "at least 1 labelled example"),
    ],
)
def test_bad_input(number, how, message):
    source = from_arrays(*few_of_the_last(number), kind="logits")
    with pytest.raises(InputError, match=message):
        adjust_predictions(source, **{"prior": PRIOR, **how})


def test_tune_predictions_is_tune_tau():
    source, logits, target = saved(class_names=list("abcd"), norms=np.arange(1.0, 5))
    for how in ({}, {"criterion": "log_loss"}, {"bounds": (0.5, 2.0), "random_state": 3}):
        expected = tune_tau(logits, target, PRIOR, n_bootstrap=20, **how)
        found = tune_predictions(source, PRIOR, n_bootstrap=20, **how)
        assert found.to_dict() == expected.to_dict()
    found = tune_predictions(source, PRIOR, method="weight_normalization", n_bootstrap=0)
    expected = tune_normalization(logits, target, norms=np.arange(1.0, 5), n_bootstrap=0)
    assert found.tau == expected.tau
    lacking = from_arrays(logits[target > 0], target[target > 0], kind="logits")
    expected = tune_tau(logits[target > 0], target[target > 0], PRIOR, missing="nearest")
    assert tune_predictions(lacking, PRIOR, missing="nearest").tau == expected.tau


# --- intervals ---------------------------------------------------------------------------------


def test_an_estimate_is_as_counted():
    plus, minus = np.array([3, 0, 2]), np.array([1, 0, 4])
    counts, share = np.array([5, 1, 9]), np.array([0.5, 0.3, 0.2])
    found = estimate(plus, minus, counts, share, level=0.9)
    assert found.value == pytest.approx(0.5 * 2 / 5 + 0.2 * -2 / 9)
    assert found.low < found.value < found.high
    assert found.high - found.low == pytest.approx(2 * 1.6449 * found.standard_error, rel=1e-4)


def test_few_examples_widen_the_interval_instead_of_closing_it():
    nothing = np.zeros(1, int)
    for count in (1, 3, 10):
        found = estimate(nothing, nothing, np.array([count]), np.ones(1), level=0.95)
        assert found.value == 0
        assert found.high > 1 / (count + 2)
    one = estimate(np.ones(1, int), None, np.ones(1, int), np.ones(1), level=0.95)
    assert (one.value, one.high) == (1.0, 1.0)
    assert one.low < 0.2


def coverage(counts, plus, minus, *, level, random, draws=1000):
    """Share of the draws whose interval holds the true mean of `plus - minus` over classes."""
    share = np.full(len(counts), 1 / len(counts))
    lowered = np.zeros(len(counts)) if minus is None else np.asarray(minus)
    truth = np.sum(share * (plus - lowered))
    outcomes = np.stack([plus, lowered, 1 - plus - lowered], axis=1)
    hits = 0
    for _ in range(draws):
        drawn = random.multinomial(counts, outcomes)
        down = None if minus is None else drawn[:, 1]
        found = estimate(drawn[:, 0], down, counts, share, level=level)
        hits += found.low <= truth <= found.high
    return hits / draws


@pytest.mark.parametrize(("classes", "most"), [(3, 100), (10, 6), (100, 1)])
def test_intervals_cover_as_often_as_they_say(classes, most):
    random = np.random.default_rng(classes)
    broken, fixed = random.beta(1, 12, classes), random.beta(2, 10, classes)
    counts = random.integers(max(1, most // 3), most + 1, classes)
    assert 0.86 <= coverage(counts, broken, fixed, level=0.9, random=random, draws=600) <= 0.96


@pytest.mark.parametrize(
    ("counts", "plus", "minus"),
    [
        ([5000, 4], [0.03, 0.3], None),
        ([2000, 400, 80, 16, 3], [0.02, 0.1, 0.2, 0.35, 0.5], None),
        ([5000, 5], [0.03, 0.0], [0.0, 0.3]),
    ],
    ids=str,
)
def test_intervals_cover_where_a_few_examples_of_a_rare_class_decide(counts, plus, minus):
    # The frequent classes have nearly all examples, and their rates say little of the rare one's.
    random = np.random.default_rng(0)
    assert coverage(np.array(counts), np.array(plus), minus, level=0.95, random=random) >= 0.91
