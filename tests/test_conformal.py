"""Prediction sets: thresholds and sets by brute force, the coverage that theory asks for."""

import json
import math
import pickle

import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

from longtail import ClassPrior, InputError
from longtail.conformal import METHODS, PredictionSetClassifier, PredictionSets, evaluate_sets

PRIOR = ClassPrior.from_counts([500, 120, 60, 8])
COUNTS = [90, 40, 12, 5]


def world(counts=COUNTS, prior=PRIOR, seed=0, separation=1.5):
    """Logits of four classes, log π_y + log p(x | y) up to a constant, and labels."""
    random = np.random.default_rng(seed)
    target = random.permutation(np.repeat(np.arange(len(counts)), counts))
    means = separation * np.eye(len(counts))
    x = means[target] + random.normal(size=(len(target), len(counts)))
    return x @ means.T - 0.5 * (means**2).sum(1) + prior.log_probs, target


def scores_of(logits, tau, prior=PRIOR):
    """−log softmax(f − τ log π), one number at a time."""
    found = []
    for row in logits.tolist():
        shifted = [f - tau * math.log(p) for f, p in zip(row, prior.probs.tolist(), strict=True)]
        total = math.fsum(math.exp(f - max(shifted)) for f in shifted)
        found.append([math.log(total) + max(shifted) - f for f in shifted])
    return np.array(found)


def least(values, weights, level):
    """The least value with enough weight up to it, by trying each."""
    for value in sorted(values):
        if (
            math.fsum(w for v, w in zip(values, weights, strict=True) if v <= value)
            >= level - 1e-12
        ):
            return value
    return math.inf


def macro(own, target, counts, y, among, coverage):
    kept = [i for i, label in enumerate(target) if label in among]
    classes = sum(counts[k] > 0 for k in among)
    weights = [1 / (classes * counts[target[i]]) for i in kept]
    alone = 1 / (classes * max(counts[y], 1))
    return least([own[i] for i in kept], weights, coverage * (1 + alone))


def classwise(own, target, y, coverage):
    mine = sorted(s for s, label in zip(own, target, strict=True) if label == y)
    place = math.ceil(coverage * (len(mine) + 1) - 1e-9)
    return mine[place - 1] if place <= len(mine) else math.inf


def by_hand(method, own, target, counts, coverage):
    classes, own, target = range(len(counts)), own.tolist(), target.tolist()
    whole = [macro(own, target, counts, y, classes, coverage) for y in classes]
    alone = [classwise(own, target, y, coverage) for y in classes]
    if method == "macro":
        return whole
    if method == "classwise":
        return alone
    if method == "marginal":
        n = len(own)
        return [least(own, [1 / n] * n, coverage * (n + 1) / n)] * len(counts)
    if method == "clustered":  # 220 and 130 stand alone, the two rare ones together
        parts = [[0], [1], [2, 3]]
        of = {y: part for part in parts for y in part}
        return [macro(own, target, counts, y, of[y], coverage) for y in classes]
    return [
        w if math.isinf(a) else (n * a + 50 * w) / (n + 50)
        for n, a, w in zip(counts, alone, whole, strict=True)
    ]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("coverage", "tau"), [(0.9, 1.0), (0.75, 0.0), (0.8, 1.7)])
def test_thresholds_and_sets_by_brute_force(method, coverage, tau):
    counts = [220, 130, 60, 45]
    logits, target = world(counts)
    sets = PredictionSets(coverage=coverage, method=method, tau=tau).fit(logits, target, PRIOR)
    scores = scores_of(logits, tau)
    own = scores[np.arange(len(target)), target]
    expected = by_hand(method, own, target, counts, coverage)
    np.testing.assert_allclose(sets.thresholds_, expected, rtol=1e-12)
    new, _ = world(seed=1)
    expected = scores_of(new, tau) <= np.array(sets.thresholds_)
    np.testing.assert_array_equal(sets.predict(new), expected)


@pytest.mark.parametrize(("method", "tau"), [("macro", 1.0), ("macro", 0.0), ("marginal", 1.0)])
def test_the_coverage_is_what_was_asked_for(method, tau):
    """Over 100 held-out sets; macro by classes, marginal over data like the held-out."""
    found, counts = [], [900, 400, 120, 60]
    for seed in range(100):
        sets = PredictionSets(coverage=0.8, method=method, tau=tau)
        judged = sets.fit(*world(counts, seed=seed), PRIOR).evaluate(
            *world(counts, seed=900 + seed)
        )
        found.append(judged.macro if method == "macro" else judged.marginal)
    assert np.mean(found) == pytest.approx(0.8, abs=3 * np.std(found) / 10)


def test_cross_fitting_judges_each_fold_by_the_others():
    logits, target = world([300, 100, 40, 20])
    found = PredictionSets().cross_evaluate(logits, target, PRIOR)
    assert found.counts.tolist() == [300, 100, 40, 20]
    assert found.macro == pytest.approx(0.9, abs=0.06)


def test_tune_prints_thresholds_and_what_they_cover(cli):
    logits, target = world([300, 100, 40, 20])
    np.savez("held.npz", logits=logits, target=target)
    words = ["tune", "held.npz", "--counts", "500,120,60,8", "--sets", "0.9"]
    assert "judged by cross-fitting: macro coverage" in cli(*words).out
    document = json.loads(cli(*words, "--json").out)
    sets = PredictionSets(tau=document["tau"]).fit(logits, target, PRIOR)
    np.testing.assert_allclose(document["sets"]["thresholds"], sets.thresholds_)


def test_classes_without_or_with_few_examples():
    logits, target = world([90, 40, 3, 0])
    few = {m: PredictionSets(method=m).fit(logits, target, PRIOR) for m in METHODS}
    assert np.isinf(few["classwise"].thresholds_[2:]).all()
    assert np.isfinite(few["interpolated"].thresholds_[:3]).all()
    assert few["macro"].thresholds_[3] >= few["macro"].thresholds_[0]
    assert few["classwise"].predict(logits)[:, 2:].all()


def test_the_evaluation_by_hand():
    sets = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 0], [1, 1, 1]], dtype=bool)
    found = evaluate_sets(sets, [0, 0, 0, 1, 1])
    np.testing.assert_allclose(found.per_class, [2 / 3, 1 / 2, np.nan])
    assert found.macro == pytest.approx(7 / 12)
    assert found.marginal == pytest.approx(3 / 5)
    assert found.sizes.tolist() == [1, 2, 1, 0, 3]
    assert found.macro_size == pytest.approx((4 / 3 + 3 / 2) / 2)
    exact = stats.binomtest(2, 3).proportion_ci(0.95, method="exact")
    assert (found.low[0], found.high[0]) == pytest.approx((exact.low, exact.high))
    assert np.isnan([found.low[2], found.high[2]]).all()
    assert found.macro_interval[0] < found.macro < found.macro_interval[1]
    assert found.to_dict()["empty"] == 0.2


def test_the_macro_interval_holds_the_truth_as_often_as_it_says():
    random, truth, counts = np.random.default_rng(0), np.array([0.95, 0.9, 0.7]), [200, 40, 15]
    target = np.repeat(np.arange(3), counts)
    held = 0
    for _ in range(400):
        sets = np.zeros((255, 3), dtype=bool)
        sets[np.arange(255), target] = random.random(255) < truth[target]
        low, high = evaluate_sets(sets, target).macro_interval
        held += low <= truth.mean() <= high
    assert held / 400 > 0.92


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    names = np.array([f"digit {k}" for k in range(10)])[y]
    random = np.random.default_rng(0)
    order = random.permutation(len(y))
    train = order[:900]
    train = train[random.random(900) < np.geomspace(1, 0.1, 10)[y[train]]]
    return X, names, train, order[900:1400], order[1400:]


@pytest.mark.parametrize("model", [LogisticRegression(max_iter=200), SVC()], ids=["proba", "svc"])
def test_the_scikit_learn_form(digits, model):
    X, y, train, held, test = digits
    model.fit(X[train], y[train])
    prior = ClassPrior.from_labels(np.unique(y[train], return_inverse=True)[1])
    form = PredictionSetClassifier(model, prior=prior, coverage=0.95)
    fitted = form.fit(X[held], y[held])
    assert fitted.predict_set(X[test]).shape == (len(test), 10)
    assert fitted.evaluate_sets(X[test], y[test]).macro == pytest.approx(0.95, abs=0.05)
    np.testing.assert_array_equal(fitted.predict(X[test]), model.predict(X[test]))
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_set(X[test]), fitted.predict_set(X[test]))
    assert clone(form).get_params()["coverage"] == 0.95
    if hasattr(model, "predict_proba"):
        np.testing.assert_array_equal(fitted.predict_proba(X[test]), model.predict_proba(X[test]))
    with pytest.raises(InputError, match="unknown to the estimator: 'digit 11'"):
        fitted.evaluate_sets(X[test][:1], ["digit 11"])


def test_bad_input_is_refused():
    logits, target = world()
    with pytest.raises(InputError, match="`coverage`"):
        PredictionSets(coverage=1.5)
    with pytest.raises(InputError, match="must be boolean"):
        evaluate_sets(np.full((2, 2), 0.5), [0, 1])
    with pytest.raises(InputError, match="`prior` has 2 classes"):
        PredictionSets().fit(logits, target, ClassPrior.from_counts([2, 1]))
    with pytest.raises(InputError, match="the score needs `prior`"):
        PredictionSetClassifier(SVC().fit(logits, target)).fit(logits, target)
