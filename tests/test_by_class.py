"""One number per class from a Series or a dict: each goes to its class, wherever it stands."""

from collections import Counter

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from longtail import ClassPrior, InputError, adjust_logits, margins, normalize_weights, tune_tau
from longtail.posthoc import adjustment
from longtail.sklearn import LogitAdjustedClassifier, LogitAdjustedClassifierCV

pd = pytest.importorskip("pandas")

LABELS = np.repeat([0, 1, 2], [10, 60, 30])  # by frequency, the order is 1, 2, 0


# ------------------------------------------------------------------ classes that are numbers


@pytest.mark.parametrize(
    "counts",
    [
        pd.Series(LABELS).value_counts(),
        pd.Series(LABELS, dtype="Int64").value_counts(),
        Counter(np.roll(LABELS, 50)),
        {2: 30, 0: 10, 1: 60.0},
    ],
    ids=["Series", "Int64", "Counter", "dict"],
)
def test_counts_by_class_number_find_their_class(counts):
    prior = ClassPrior.from_counts(counts)
    assert prior == ClassPrior.from_labels(LABELS)
    assert prior.counts.tolist() == [10, 60, 30]


def test_weights_and_probabilities_by_class_number_find_their_class():
    shares = pd.Series(LABELS).value_counts(normalize=True)
    assert list(shares.index) == [1, 2, 0]
    np.testing.assert_allclose(ClassPrior.from_probs(shares).probs, [0.1, 0.6, 0.3])
    np.testing.assert_allclose(ClassPrior.from_probs(shares.to_dict()).probs, [0.1, 0.6, 0.3])
    weights = ClassPrior.from_weights(pd.Series([1.5, 0.5], [1, 0]))
    assert weights.counts.tolist() == [0.5, 1.5]


@pytest.mark.parametrize("kind", [dict, pd.Series])
def test_everything_given_per_class_goes_by_class(kind):
    rng = np.random.default_rng(0)
    prior = ClassPrior.from_labels(LABELS)
    logits, target = rng.normal(size=(100, 3)), LABELS
    given, plain = kind({2: 3.0, 0: 1.0, 1: 2.0}), [1.0, 2.0, 3.0]

    def same(one, other):
        np.testing.assert_array_equal(one, other)

    same(adjust_logits(logits, prior, costs=given), adjust_logits(logits, prior, costs=plain))
    same(adjustment(prior, costs=given), adjustment(prior, costs=plain))
    for mode in ("scale", "keep"):
        same(
            normalize_weights(logits, norms=given, bias=given, bias_mode=mode),
            normalize_weights(logits, norms=plain, bias=plain, bias_mode=mode),
        )
    same(
        tune_tau(logits, target, prior, costs=given).tau,
        tune_tau(logits, target, prior, costs=plain).tau,
    )
    same(margins.consistent(prior, delta=given).alpha, margins.consistent(prior, delta=plain).alpha)
    same(margins.Margin(given, given, given).matrix(), margins.Margin(plain, plain, plain).matrix())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (pd.Series(["a", "b", "b"]).value_counts(), r"numbers 0 \.\. 1, .*unknown: 'b', 'a'"),
        (pd.Series([5, 3, 2], [0, 3, 1]), r"lacking: 2; unknown: 3\."),
        (pd.Series([5, 3], [0, 0]), "each once; lacking: 1; unknown: none"),
    ],
)
def test_numbers_that_cannot_be_placed_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        ClassPrior.from_counts(given)


# ------------------------------------------------------------------ classes that have names


def named(sizes=(20, 120, 40)):
    rng = np.random.default_rng(0)
    centers = 1.5 * rng.normal(size=(3, 4))
    y = rng.permutation(np.repeat(np.arange(3), sizes))
    return centers[y] + 1.5 * rng.normal(size=(len(y), 4)), np.array(["ant", "bee", "cat"])[y]


BY_NAME = {
    "prior": {"bee": 0.6, "cat": 0.3, "ant": 0.1},
    "target": {"bee": 0.2, "cat": 0.3, "ant": 0.5},
    "costs": {"bee": 2.0, "cat": 1.0, "ant": 7.0},
}


@pytest.mark.parametrize("kind", [LogitAdjustedClassifier, LogitAdjustedClassifierCV])
@pytest.mark.parametrize("name", BY_NAME)
def test_a_series_is_the_dict_that_it_stands_for(kind, name):
    X, y = named()
    given = BY_NAME[name]
    settings = {"scoring": "target", "cv": 3} if kind is LogitAdjustedClassifierCV else {}
    by_dict = kind(LogisticRegression(), **{name: given}, **settings).fit(X, y)
    by_series = kind(LogisticRegression(), **{name: pd.Series(given)}, **settings).fit(X, y)
    in_order = [given[label] for label in by_dict.classes_]
    by_place = kind(LogisticRegression(), **{name: in_order}, **settings).fit(X, y)
    for model in (by_dict, by_place):
        np.testing.assert_array_equal(by_series.decision_function(X), model.decision_function(X))


def test_a_cost_table_goes_by_its_labels():
    X, y = named()
    costs = np.array([[0.0, 1.0, 4.0], [2.0, 0.0, 1.0], [9.0, 3.0, 0.0]])
    table = pd.DataFrame(costs, index=["ant", "bee", "cat"], columns=["ant", "bee", "cat"])
    shuffled = table.loc[["cat", "ant", "bee"], ["bee", "cat", "ant"]]
    plain = LogitAdjustedClassifier(LogisticRegression(), costs=costs).fit(X, y)
    model = LogitAdjustedClassifier(LogisticRegression(), costs=shuffled).fit(X, y)
    np.testing.assert_array_equal(model.decision_function(X), plain.decision_function(X))
