"""The two estimators: scikit-learn's own checks, oracles in loops, and everything they refuse."""

import numpy as np
import pytest
from scipy import sparse
from scipy.special import softmax
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import f1_score, log_loss
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from longtail import ClassPrior, InputError, adjust_logits
from longtail.sklearn import LogitAdjustedClassifier, LogitAdjustedClassifierCV

BOTH = [LogitAdjustedClassifier, LogitAdjustedClassifierCV]
pytestmark = pytest.mark.filterwarnings("ignore::longtail.sklearn.FewExamplesWarning")


@parametrize_with_checks(
    [
        LogitAdjustedClassifier(LogisticRegression()),
        LogitAdjustedClassifierCV(LogisticRegression(), cv=3),
        # Margins only; on sparse data its solver is iterative, and weights equal repetition only
        # as far as it converges.
        LogitAdjustedClassifier(RidgeClassifier(tol=1e-12)),
        LogitAdjustedClassifierCV(RidgeClassifier(tol=1e-12), cv=3),
    ]
)
@pytest.mark.filterwarnings("ignore::longtail.sklearn.FixedTauOnMarginsWarning")
def test_scikit_learn_finds_nothing_wrong(estimator, check):
    check(estimator)


def long_tailed(seed=0, sizes=(120, 40, 12), spread=1.5):
    """Overlapping Gaussian classes of these sizes, shuffled; their centres are always the same."""
    rng = np.random.default_rng(seed)
    centres = 1.5 * np.random.default_rng(0).normal(size=(len(sizes), 4))
    y = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return centres[y] + spread * rng.normal(size=(len(y), 4)), y


def by_hand(logits, prior, tau, target=None):
    """softmax_y(f_y − tau (log π_y − log q_y)), one number at a time."""
    out = np.zeros_like(logits, dtype=np.float64)
    for i, row in enumerate(logits):
        g = [
            row[k] - tau * (np.log(prior[k]) - (0 if target is None else np.log(target[k])))
            for k in range(len(row))
        ]
        weights = [np.exp(value - max(g)) for value in g]
        out[i] = [w / sum(weights) for w in weights]
    return out


def recall_mean(y, predicted, weights=(1 / 3, 1 / 3, 1 / 3)):
    """Σ_y w_y recall_y in loops, of classes 0, 1 and 2."""
    total = 0.0
    for label, share in enumerate(weights):
        right = sum(a == label == b for a, b in zip(y, predicted, strict=True))
        total += share * right / sum(y == label)
    return total


# ------------------------------------------------------------------ the rule


@pytest.mark.parametrize("tau", [0.0, 0.7, 1.0, 2.5, -1.0])
def test_probabilities_are_the_softmax_and_predictions_its_argmax(tau):
    X, y = long_tailed()
    names = np.array(["cat", "dog", "yak"])[y]
    model = LogitAdjustedClassifier(LogisticRegression(), tau=tau).fit(X, names)
    plain = LogisticRegression().fit(X, names)
    prior = np.array([120, 40, 12]) / 172
    expected = by_hand(np.log(plain.predict_proba(X)), prior, tau)
    np.testing.assert_allclose(model.predict_proba(X), expected, atol=1e-12)
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(expected), atol=1e-9)
    assert model.predict(X).tolist() == model.classes_[expected.argmax(axis=1)].tolist()
    assert model.prior_ == ClassPrior.from_counts([120, 40, 12])
    np.testing.assert_allclose(model.adjustment_, -tau * np.log(prior))


def test_two_classes_follow_the_binary_conventions():
    X, y = long_tailed(sizes=(90, 10))
    by_probability = LogitAdjustedClassifier(LogisticRegression()).fit(X, y)
    by_margin = LogitAdjustedClassifier(
        LogisticRegression(), response_method="decision_function"
    ).fit(X, y)
    margin = LogisticRegression().fit(X, y).decision_function(X) + np.log(9)
    np.testing.assert_allclose(by_margin.decision_function(X), margin, atol=1e-10)
    np.testing.assert_allclose(by_probability.decision_function(X), margin, atol=1e-6)
    assert by_probability.decision_function(X).shape == (100,)
    np.testing.assert_allclose(by_margin.predict_proba(X)[:, 1], 1 / (1 + np.exp(-margin)))
    assert (by_margin.predict(X) == (margin > 0)).all()


def test_margins_of_many_classes_are_taken_as_logits():
    X, y = long_tailed()
    model = LogitAdjustedClassifier(LinearSVC(random_state=0), tau=0.5).fit(X, y)
    margins = LinearSVC(random_state=0).fit(X, y).decision_function(X)
    expected = margins - 0.5 * np.log(np.array([120, 40, 12]) / 172)
    np.testing.assert_allclose(model.decision_function(X), expected)


@pytest.mark.parametrize(
    "target",
    [ClassPrior.from_probs([0.2, 0.3, 0.5]), {"c": 0.5, "a": 0.2, "b": 0.3}, "train"],
    ids=["ClassPrior", "dict", "train"],
)
def test_target_priors_replace_the_training_prior(target):
    X, y = long_tailed()
    names = np.array(["a", "b", "c"])[y]
    model = LogitAdjustedClassifier(GaussianNB(), target=target).fit(X, names)
    # Naive Bayes can be told its prior: the adjustment must equal having trained with it.
    told = GaussianNB(priors=None if target == "train" else [0.2, 0.3, 0.5]).fit(X, names)
    np.testing.assert_allclose(model.predict_proba(X), told.predict_proba(X), atol=1e-9)


@pytest.mark.parametrize(
    "prior",
    [ClassPrior.from_counts([5, 3, 2]), [0.5, 0.3, 0.2], [50, 30, 20], {"b": 3, "a": 5, "c": 2}],
    ids=str,
)
def test_a_given_prior_is_used_instead_of_the_labels(prior):
    X, y = long_tailed()
    model = LogitAdjustedClassifier(LogisticRegression(), prior=prior)
    model.fit(X, np.array(["a", "b", "c"])[y])
    np.testing.assert_allclose(model.prior_.probs, [0.5, 0.3, 0.2])
    np.testing.assert_allclose(model.adjustment_, -np.log([0.5, 0.3, 0.2]))


def test_the_effective_prior_is_the_mean_prediction():
    X, y = long_tailed()
    estimator = LogisticRegression(class_weight="balanced")
    model = LogitAdjustedClassifier(estimator, prior="effective").fit(X, y)
    mean = clone(estimator).fit(X, y).predict_proba(X).mean(axis=0)
    np.testing.assert_allclose(model.prior_.probs, mean)


# ------------------------------------------------------------------ reweighting


@pytest.mark.parametrize("reweight", [0.5, 1.0])
def test_a_weighted_fit_is_taken_back_to_the_frequencies_of_the_labels(reweight):
    X, y = long_tailed()
    n = np.bincount(y)
    weight = n[y] ** -reweight * len(y) / (n[y] ** -reweight).sum()
    inner = LogisticRegression().fit(X, y, sample_weight=weight)
    logits = np.log(inner.predict_proba(X)) + reweight * np.log(n)
    for tau in (0.0, 1.0, 1.6):
        model = LogitAdjustedClassifier(LogisticRegression(), tau=tau, reweight=reweight)
        expected = by_hand(logits, n / n.sum(), tau)
        np.testing.assert_allclose(model.fit(X, y).predict_proba(X), expected, atol=1e-9)
        total = np.log(inner.predict_proba(X)) + model.adjustment_
        np.testing.assert_allclose(softmax(total, axis=1), expected, atol=1e-9)


@pytest.mark.parametrize("settings", [{}, {"scoring": "f1_macro"}, {"prior": "effective"}])
def test_weights_of_classes_change_nothing_where_only_the_prior_is_learnt_from_them(settings):
    X, y = long_tailed()  # naive Bayes estimates each class from its own rows
    plain, half = (
        LogitAdjustedClassifierCV(GaussianNB(), reweight=w, **settings).fit(X, y)
        for w in (0.0, 0.5)
    )
    assert half.best_tau_ == pytest.approx(plain.best_tau_)
    np.testing.assert_allclose(half.predict_proba(X), plain.predict_proba(X), atol=1e-9)
    frozen = FrozenEstimator(GaussianNB(priors=[1 / 3] * 3).fit(X, y))  # as weights n^-1 make it
    alone = LogitAdjustedClassifier(GaussianNB()).fit(X, y).predict_proba(X)
    for told, rows in ({}, slice(None)), ({"prior": ClassPrior.from_labels(y)}, slice(100)):
        model = LogitAdjustedClassifier(frozen, reweight=1.0, **told).fit(X[rows], y[rows])
        np.testing.assert_allclose(model.predict_proba(X), alone, atol=1e-9)


def test_weights_of_classes_reach_the_classifier_inside():
    X, y = long_tailed()
    balanced = LogisticRegression(class_weight="balanced")
    for wrap in (
        lambda model: make_pipeline(StandardScaler(), model),
        lambda model: GridSearchCV(make_pipeline(model), {"memory": [None]}, cv=2),
    ):
        model = LogitAdjustedClassifier(wrap(LogisticRegression()), tau=0.0, reweight=1.0)
        found = model.fit(X, y).estimator_.predict_proba(X)
        expected = wrap(balanced).fit(X, y).predict_proba(X)
        np.testing.assert_allclose(found, expected, atol=1e-6)


# ------------------------------------------------------------------ other class frequencies


def test_every_example_may_have_a_target_prior_of_its_own():
    X, y = long_tailed()
    q = np.random.default_rng(0).dirichlet(np.ones(3), size=len(y))
    model = LogitAdjustedClassifier(LogisticRegression(), tau=0.8, reweight=0.5).fit(X, y)
    found = model.predict_proba(X, target_prior=q)
    for i in (0, 5, 9):
        one = model.retarget(target=q[i]).predict_proba(X[i : i + 1])[0]
        np.testing.assert_allclose(found[i], one, atol=1e-12)
    expected = model.classes_[found.argmax(axis=1)]
    np.testing.assert_array_equal(model.predict(X, target_prior=q), expected)
    np.testing.assert_allclose(
        model.predict_proba(X, target_prior=q[5]), model.retarget(target=q[5]).predict_proba(X)
    )
    with pytest.raises(InputError, match=r"each row of `target_prior` must sum to 1"):
        model.predict(X, target_prior=2 * q / 3)


@pytest.mark.parametrize("kind", BOTH)
def test_adapting_finds_the_frequencies_of_unlabelled_rows(kind):
    X, y = long_tailed(sizes=(3000, 1000, 400), spread=1.0)
    rare_first, truth = long_tailed(sizes=(300, 1200, 1500), spread=1.0)
    model = kind(LogisticRegression(), reweight=0.5).fit(X, y)
    adapted = model.adapt(rare_first)
    np.testing.assert_allclose(adapted.target.probs, [0.1, 0.4, 0.5], atol=0.05)
    assert (adapted.predict(rare_first) == truth).mean() > (
        model.predict(rare_first) == truth
    ).mean()
    again = model.retarget(tau=1.0, target=adapted.target)
    np.testing.assert_array_equal(adapted.predict_proba(X), again.predict_proba(X))
    assert model.adapt(X[:2000]).target == model.prior_  # no shift
    with pytest.raises(InputError, match="`adapt` needs probabilities"):
        kind(LinearSVC()).fit(X, y).adapt(X)


# ------------------------------------------------------------------ costs


def test_costs_per_class_join_the_adjustment():
    X, y = long_tailed()
    costs = [1.0, 2.0, 5.0]
    plain = LogisticRegression().fit(X, y)
    prior = ClassPrior.from_labels(y)
    for tau in (1.0, 1.7):
        model = LogitAdjustedClassifier(LogisticRegression(), tau=tau, costs=costs).fit(X, y)
        expected = adjust_logits(np.log(plain.predict_proba(X)), prior, tau=tau, costs=costs)
        assert (model.predict(X) == expected.argmax(axis=1)).all()
        without = LogitAdjustedClassifier(LogisticRegression(), tau=tau).fit(X, y)
        np.testing.assert_array_equal(model.predict_proba(X), without.predict_proba(X))
        assert (model.predict(X) != without.predict(X)).any()


def test_a_cost_matrix_decides_by_the_least_expected_cost():
    X, y = long_tailed()
    costs = np.array([[0.0, 1.0, 4.0], [2.0, 0.0, 1.0], [9.0, 3.0, -1.0]])
    model = LogitAdjustedClassifier(LogisticRegression(), tau=0.8, costs=costs).fit(X, y)
    for probs, predicted, score in zip(
        model.predict_proba(X), model.predict(X), model.decision_function(X), strict=True
    ):
        expected = [sum(probs[true] * costs[true, j] for true in range(3)) for j in range(3)]
        assert predicted == int(np.argmin(expected))
        np.testing.assert_allclose(score, np.negative(expected))


# ------------------------------------------------------------------ choosing tau


def cross_fitted(estimator, X, y, splits, taus):
    """Adjusted predictions of held-out rows at each tau, each fold by its own prior; in loops."""
    kept, labels = [], []
    for train, held_out in splits:
        fold = clone(estimator).fit(X[train], y[train])
        prior = np.array([np.mean(y[train] == label) for label in fold.classes_])
        logs = np.log(fold.predict_proba(X[held_out]))
        for i, row in zip(held_out, logs, strict=True):
            kept.append([fold.classes_[np.argmax(row - tau * np.log(prior))] for tau in taus])
            labels.append(y[i])
    return np.array(kept).T, np.array(labels)


def random_splits(y):
    group = np.random.default_rng(0).permutation(np.arange(len(y)) % 3)
    return [(np.flatnonzero(group != k), np.flatnonzero(group == k)) for k in range(3)]


def test_tau_is_the_exact_maximiser_of_the_pooled_balanced_accuracy():
    X, y = long_tailed(sizes=(60, 20, 6))
    model = LogitAdjustedClassifierCV(LogisticRegression(), cv=4, select="minimum").fit(X, y)
    splits = list(StratifiedKFold(4).split(X, y))
    taus = [model.best_tau_, *np.linspace(0, 4, 401)]
    predicted, labels = cross_fitted(LogisticRegression(), X, y, splits, taus)
    scores = [recall_mean(labels, row) for row in predicted]
    assert model.best_score_ == pytest.approx(scores[0], abs=1e-12)
    assert scores[0] >= max(scores) - 1e-12
    curve = model.tau_curve_
    np.testing.assert_allclose(1 - curve.exact(np.array(taus)), scores, atol=1e-12)
    np.testing.assert_allclose(curve.scores, 1 - curve.exact(curve.taus), atol=1e-12)
    # What predicts in the end was fitted on everything, with the prior of everything.
    fixed = LogitAdjustedClassifier(LogisticRegression(), tau=model.best_tau_).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X), fixed.predict_proba(X), atol=1e-12)


def test_a_grid_restricts_the_exact_choice():
    X, y = long_tailed(sizes=(60, 20, 6))
    exact = LogitAdjustedClassifierCV(LogisticRegression(), cv=4).fit(X, y).tau_curve_.exact
    grid = [2.0, 0.25, 0.5]
    model = LogitAdjustedClassifierCV(LogisticRegression(), tau_grid=grid, cv=4).fit(X, y)
    np.testing.assert_array_equal(model.tau_curve_.taus, sorted(grid))
    np.testing.assert_allclose(model.tau_curve_.scores, 1 - exact(np.sort(grid)), atol=1e-12)
    assert model.best_tau_ in grid
    assert model.best_score_ == pytest.approx(model.tau_curve_.scores.max())


def held_out(X, y, splits, **rule):
    """Held-out labels and the predictions of a fixed rule that is fitted on each split."""
    pairs = []
    for train, rest in splits:
        model = LogitAdjustedClassifier(LogisticRegression(), **rule).fit(X[train], y[train])
        pairs.extend(zip(y[rest], model.predict(X[rest]), strict=True))
    return np.array(pairs).T


@pytest.mark.parametrize("given", [[0.5, 0.2, 0.3], "train"])
def test_the_target_score_weighs_recalls_by_the_target_and_the_costs(given):
    X, y = long_tailed(sizes=(60, 20, 10))
    splits, costs = random_splits(y), [1.0, 4.0, 2.0]
    settings = {"scoring": "target", "target": given, "costs": costs, "select": "minimum"}
    model = LogitAdjustedClassifierCV(LogisticRegression(), cv=splits, **settings).fit(X, y)
    target = np.array([6, 2, 1]) / 9 if given == "train" else given
    weights = np.multiply(target, costs) / np.dot(target, costs)
    scores = [
        recall_mean(*held_out(X, y, splits, tau=tau, target=target, costs=costs), weights)
        for tau in (model.best_tau_, *np.linspace(0, 4, 81))
    ]
    assert model.best_score_ == pytest.approx(scores[0], abs=1e-12)
    assert scores[0] >= max(scores) - 1e-12


@pytest.mark.parametrize("given", [[0.6, 0.3, 0.1], "train"])
def test_the_target_score_of_a_cost_matrix_is_minus_the_mean_cost(given):
    X, y = long_tailed(sizes=(60, 20, 10))
    costs = np.array([[0.0, 1.0, 1.0], [2.0, 0.0, 1.0], [8.0, 3.0, 0.0]])
    splits, target = random_splits(y), np.array([6, 2, 1]) / 9 if given == "train" else given
    settings = {"scoring": "target", "target": given, "costs": costs, "tau_grid": [0, 0.5, 1, 2]}
    model = LogitAdjustedClassifierCV(LogisticRegression(), cv=splits, **settings).fit(X, y)
    for tau, score in zip(model.tau_curve_.taus, model.tau_curve_.scores, strict=True):
        true, predicted = held_out(X, y, splits, tau=tau, target=target, costs=costs)
        paid = costs[true, predicted]
        expected = sum(q * np.mean(paid[true == k]) for k, q in enumerate(target))
        assert score == pytest.approx(-expected, abs=1e-12)
    assert model.best_score_ == model.tau_curve_.scores.max()


def macro_f1_of_the_first_half(estimator, X, y):
    half = len(y) // 2
    return f1_score(y[:half], estimator.predict(X[:half]), average="macro")


@pytest.mark.parametrize(
    ("scoring", "score"),
    [
        ("f1_macro", lambda y, model, X: f1_score(y, model.predict(X), average="macro")),
        ("neg_log_loss", lambda y, model, X: -log_loss(y, model.predict_proba(X))),
        (macro_f1_of_the_first_half, lambda y, m, X: macro_f1_of_the_first_half(m, X, y)),
    ],
    ids=["f1_macro", "neg_log_loss", "callable on some rows"],
)
def test_other_scores_are_averaged_over_the_splits_on_a_grid(scoring, score):
    X, y = long_tailed(sizes=(60, 20, 10))
    grid = [0.0, 0.5, 1.0, 1.5]
    model = LogitAdjustedClassifierCV(
        LogisticRegression(), scoring=scoring, tau_grid=grid, cv=3
    ).fit(X, y)
    expected = np.zeros((3, len(grid)))
    for k, (train, held_out) in enumerate(StratifiedKFold(3).split(X, y)):
        for j, tau in enumerate(grid):
            fold = LogitAdjustedClassifier(LogisticRegression(), tau=tau).fit(X[train], y[train])
            expected[k, j] = score(y[held_out], fold, X[held_out])
    curve = model.tau_curve_
    np.testing.assert_allclose(curve.split_scores, expected, atol=1e-9)
    np.testing.assert_allclose(curve.scores, expected.mean(axis=0), atol=1e-9)
    assert curve.taus.tolist() == grid
    assert model.best_tau_ == grid[int(expected.mean(axis=0).argmax())]


def test_among_equals_the_run_nearest_to_one_is_taken():
    X, y = long_tailed(sizes=(40, 20))
    plateaus = {0.0: 5, 0.2: 5, 0.4: 0, 0.8: 4, 1.4: 5, 1.6: 5, 1.8: 5, 3.0: 1}

    prior = ClassPrior.from_probs([2 / 3, 1 / 3])

    def at(estimator, X, y):
        tau = -estimator.adjustment_[1] / prior.log_probs[1]
        return plateaus[min(plateaus, key=lambda t: abs(t - tau))]

    model = LogitAdjustedClassifierCV(
        GaussianNB(), scoring=at, tau_grid=list(plateaus), prior=prior
    ).fit(X, y)
    assert model.best_tau_ == 1.6
    assert model.best_score_ == 5


@pytest.mark.parametrize("resampled", [False, True])
def test_refit_false_keeps_the_classifier_and_the_prior_of_the_split(resampled):
    X, y = long_tailed(sizes=(60, 20, 10))
    train, held_out = np.arange(60), np.arange(60, 90)
    if resampled:  # as many rows as there are, some of them twice
        train = np.random.default_rng(0).integers(0, 60, 90)
    model = LogitAdjustedClassifierCV(LogisticRegression(), cv=[(train, held_out)], refit=False)
    model.fit(X, y)
    fixed = LogitAdjustedClassifier(LogisticRegression(), tau=model.best_tau_)
    fixed.fit(X[train], y[train])
    np.testing.assert_allclose(model.predict_proba(X), fixed.predict_proba(X), atol=1e-12)
    assert model.prior_ == fixed.prior_


def test_the_effective_prior_of_folds_is_the_mean_held_out_prediction():
    X, y = long_tailed(sizes=(60, 20, 10))
    estimator = RandomForestClassifier(20, class_weight="balanced", random_state=0)
    weight = np.random.default_rng(0).uniform(0.5, 2.0, len(y))
    model = LogitAdjustedClassifierCV(estimator, prior="effective", cv=3)
    model.fit(X, y, sample_weight=weight)
    total = np.zeros(3)
    for train, held_out in StratifiedKFold(3).split(X, y):
        fold = clone(estimator).fit(X[train], y[train], sample_weight=weight[train])
        total += weight[held_out] @ fold.predict_proba(X[held_out])
    np.testing.assert_allclose(model.prior_.probs, total / weight.sum())


@pytest.mark.slow
def test_many_jobs_find_what_one_finds():
    X, y = long_tailed()
    one, two = (
        LogitAdjustedClassifierCV(GaussianNB(), n_jobs=jobs).fit(X, y) for jobs in (None, 2)
    )
    assert one.best_tau_ == two.best_tau_


# ------------------------------------------------------------------ sample weights


@pytest.mark.parametrize("estimator", [GaussianNB(), LogisticRegression(tol=1e-10, max_iter=1000)])
@pytest.mark.parametrize("settings", [{}, {"scoring": "f1_macro"}, {"scoring": "target"}])
def test_a_weight_equals_repetition(estimator, settings):
    X, y = long_tailed(sizes=(40, 20, 10))
    rng = np.random.default_rng(0)
    weight = rng.integers(0, 4, size=len(y))
    group = rng.integers(0, 3, size=len(y))
    again = np.repeat(np.arange(len(y)), weight)

    def splits(groups):
        return [(np.flatnonzero(groups != k), np.flatnonzero(groups == k)) for k in range(3)]

    weighted = LogitAdjustedClassifierCV(estimator, cv=splits(group), **settings)
    weighted.fit(X, y, sample_weight=weight)
    repeated = LogitAdjustedClassifierCV(estimator, cv=splits(group[again]), **settings)
    repeated.fit(X[again], y[again])
    assert weighted.best_tau_ == pytest.approx(repeated.best_tau_, abs=1e-6)
    assert weighted.best_score_ == pytest.approx(repeated.best_score_, abs=1e-9)
    np.testing.assert_allclose(weighted.prior_.probs, repeated.prior_.probs)
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-5)
    one = LogitAdjustedClassifier(estimator).fit(X, y, sample_weight=weight)
    two = LogitAdjustedClassifier(estimator).fit(X[again], y[again])
    np.testing.assert_allclose(one.predict_proba(X), two.predict_proba(X), atol=1e-5)


def test_a_class_without_weight_is_absent():
    X, y = long_tailed()
    model = LogitAdjustedClassifier(GaussianNB()).fit(X, y, sample_weight=(y != 2).astype(float))
    assert model.classes_.tolist() == [0, 1]
    assert model.predict_proba(X).shape == (len(y), 2)


# ------------------------------------------------------------------ in scikit-learn's company


def test_pipelines_work_inside_and_outside():
    X, y = load_wine(return_X_y=True)
    inside = LogitAdjustedClassifier(make_pipeline(StandardScaler(), GaussianNB())).fit(X, y)
    outside = make_pipeline(StandardScaler(), LogitAdjustedClassifier(GaussianNB())).fit(X, y)
    np.testing.assert_allclose(inside.predict_proba(X), outside.predict_proba(X), atol=1e-12)
    weight = np.where(y == 0, 2.0, 1.0)
    outside.fit(X, y, logitadjustedclassifier__sample_weight=weight)
    assert outside[-1].prior_.counts.tolist() == [118, 71, 48]


@pytest.mark.parametrize("kind", BOTH)
def test_frames_and_sparse_matrices_pass_through(kind):
    pandas = pytest.importorskip("pandas")
    X, y = long_tailed()
    frame = pandas.DataFrame(X, columns=list("abcd"))
    labels = pandas.Series(np.array(["x", "y", "z"])[y], index=np.arange(len(y)) + 7)
    model = kind(LogisticRegression()).fit(frame, labels)
    assert model.feature_names_in_.tolist() == list("abcd")
    assert model.n_features_in_ == 4
    dense = kind(LogisticRegression()).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(frame), dense.predict_proba(X), atol=1e-9)
    for container in (sparse.csr_matrix, sparse.csr_array):
        thin = kind(LogisticRegression()).fit(container(X), y)
        np.testing.assert_allclose(
            thin.predict_proba(container(X)), dense.predict_proba(X), atol=1e-3
        )


@pytest.mark.filterwarnings("ignore::longtail.sklearn.FixedTauOnMarginsWarning")
@pytest.mark.parametrize("kind", BOTH)
def test_a_precomputed_kernel_is_cut_on_both_sides(kind):
    X, y = long_tailed()
    direct = kind(SVC(kernel="linear")).fit(X, y)
    kernel = kind(SVC(kernel="precomputed")).fit(X @ X.T, y)
    np.testing.assert_allclose(
        kernel.decision_function(X @ X.T), direct.decision_function(X), atol=1e-6
    )


# ------------------------------------------------------------------ prefit


@pytest.mark.parametrize("freeze", [False, True])
def test_a_fitted_estimator_is_tuned_as_it_is(freeze):
    X, y = long_tailed(sizes=(60, 20, 10))
    fitted = LogisticRegression().fit(*long_tailed(1, (60, 20, 10)))
    before = fitted.coef_.copy()
    if freeze:
        model = LogitAdjustedClassifierCV(FrozenEstimator(fitted), select="minimum").fit(X, y)
    else:
        model = LogitAdjustedClassifierCV(fitted, cv="prefit", refit=False, select="minimum")
        model.fit(X, y)
        assert model.estimator_ is fitted
    np.testing.assert_array_equal(fitted.coef_, before)
    prior = np.array([60, 20, 10]) / 90
    scores = []
    for tau in (model.best_tau_, *np.linspace(0, 4, 201)):
        predicted = (np.log(fitted.predict_proba(X)) - tau * np.log(prior)).argmax(axis=1)
        scores.append(recall_mean(y, predicted))
    assert model.best_score_ == pytest.approx(scores[0], abs=1e-12)
    assert scores[0] >= max(scores) - 1e-12


def test_a_frozen_estimator_is_adjusted_as_it_is():
    X, y = long_tailed()
    fitted = LogisticRegression().fit(X, y)
    prior = ClassPrior.from_labels(y)
    balanced = np.concatenate([np.flatnonzero(y == k)[:10] for k in range(3)])
    model = LogitAdjustedClassifier(FrozenEstimator(fitted), prior=prior)
    model.fit(X[balanced], y[balanced])
    expected = by_hand(np.log(fitted.predict_proba(X)), prior.probs, 1.0)
    np.testing.assert_allclose(model.predict_proba(X), expected, atol=1e-12)


# ------------------------------------------------------------------ bad input


class Unfit(GaussianNB):
    """Must not be fitted."""

    def fit(self, X, y, sample_weight=None):
        raise AssertionError("fitted before the settings were checked")


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"response_method": "predict"}, "`response_method` must be one of"),
        ({"reweight": "half"}, "`reweight` must be a number"),
        ({"prior": "uniform"}, "`prior` must be one of 'train', 'effective'"),
        ({"prior": [0.5, 0.5]}, "`prior` must have one value per class, 3; it has 2"),
        ({"target": [0.9, 0.2, 0.1]}, "`target` must sum to 1"),
        ({"target": {0: 0.5, 1: 0.5}}, "lacking: 2"),
        ({"costs": np.ones((3, 2))}, r"shape \(3, 3\)"),
    ],
    ids=str,
)
def test_settings_are_checked_before_anything_is_fitted(kind, settings, message):
    settings = settings if kind is LogitAdjustedClassifier else settings | {"scoring": "target"}
    with pytest.raises(InputError, match=message):
        kind(Unfit(), **settings).fit(*long_tailed())


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("estimator", "settings", "message"),
    [
        (StandardScaler(), {}, "must have predict_proba or decision_function"),
        (LinearSVC(), {"response_method": "predict_proba"}, "LinearSVC does not"),
        (SVC(decision_function_shape="ovo"), {}, "compares pairs of classes"),
        (LinearSVC(), {"prior": "effective"}, "scores come from decision_function"),
    ],
    ids=str,
)
def test_estimators_without_the_scores_are_refused(kind, estimator, settings, message):
    with pytest.raises(InputError, match=message):
        kind(estimator, **settings).fit(*long_tailed())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scoring": f1_score}, "make_scorer"),
        ({"target": [0.6, 0.3, 0.1]}, "pass scoring='target'"),
        ({"tau_grid": [0.0, np.nan]}, "`tau_grid` must be finite"),
        ({"cv": 3, "refit": False}, "`cv` makes 3; pass refit=True"),
        ({"scoring": lambda estimator, X, y: np.nan}, "the scorer gave NaN"),
    ],
)
def test_bad_settings_of_the_choice_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        LogitAdjustedClassifierCV(LogisticRegression(), **settings).fit(*long_tailed())


def test_held_out_classes_that_cannot_be_judged_are_refused():
    X, y = long_tailed()
    fitted, order = LogisticRegression().fit(X, y), np.argsort(y)
    tuned = LogitAdjustedClassifierCV(fitted, cv="prefit")
    with pytest.raises(InputError, match="classes that the estimator was not trained on: 3"):
        tuned.fit(X, np.where(y == 2, 3, y))
    with pytest.raises(InputError, match=r"class\(es\) 2 of the estimator have no example there"):
        tuned.fit(X[y < 2], y[y < 2])
    one_split = LogitAdjustedClassifierCV(LogisticRegression(), cv=[(order[:150], order[150:])])
    with pytest.raises(InputError, match=r"class\(es\) 0 have none"):
        one_split.fit(X, y)


@pytest.mark.parametrize("kind", BOTH)
def test_one_class_is_refused(kind):
    X, y = long_tailed()
    with pytest.raises(InputError, match="only one class has examples with positive weight"):
        kind(GaussianNB()).fit(X, y, sample_weight=(y == 1))


# ------------------------------------------------------------------ reading scores


@pytest.mark.parametrize("tau", [1.0, 4.0])
def test_a_class_without_a_vote_never_wins(tau):
    (X, y), (X_rest, _) = long_tailed(), long_tailed(1)
    forest = RandomForestClassifier(20, random_state=0)
    model = LogitAdjustedClassifier(forest, tau=tau).fit(X, y)
    plain, chosen = model.estimator_.predict_proba(X_rest), model.predict(X_rest)
    assert (plain == 0).any()
    assert (plain[np.arange(len(plain)), chosen] > 0).all()
    # By hand: the largest p / π^τ, where 0 stays 0. Where two are equal but for rounding, either.
    ratio = plain / model.prior_.probs**tau
    np.testing.assert_allclose(ratio[np.arange(len(ratio)), chosen], ratio.max(axis=1), rtol=1e-12)
    np.testing.assert_allclose(
        model.predict_proba(X_rest), ratio / ratio.sum(axis=1, keepdims=True), atol=1e-12
    )
    assert np.isfinite(model.predict_log_proba(X_rest)).all()


class HalfPrecision(LogisticRegression):
    """Probabilities as networks on a GPU give them."""

    share = 1.0

    def predict_proba(self, X):
        return (self.share * super().predict_proba(X)).astype(np.float16)


@pytest.mark.parametrize("kind", BOTH)
def test_half_precision_is_taken_if_it_adds_up(kind, monkeypatch):
    X, y = long_tailed()
    rough, exact = (kind(one).fit(X, y) for one in (HalfPrecision(), LogisticRegression()))
    assert rough.predict_proba(X).dtype == np.float64
    assert np.mean(rough.predict(X) == exact.predict(X)) > 0.9
    monkeypatch.setattr(HalfPrecision, "share", 0.9)
    with pytest.raises(InputError, match=r"`estimator.predict_proba\(X\)` must sum to 1"):
        rough.predict(X)


class InItsOwnOrder(LogisticRegression):
    def fit(self, X, y):
        super().fit(X, y)
        self.classes_ = self.classes_[::-1]
        return self


@pytest.mark.parametrize("kind", BOTH)
def test_classes_in_another_order_are_refused(kind):
    with pytest.raises(InputError, match="classes_ must be sorted"):
        kind(InItsOwnOrder()).fit(*long_tailed())
