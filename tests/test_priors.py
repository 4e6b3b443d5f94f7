import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail import ClassPrior, InputError


def test_counts_probabilities_and_logs_agree():
    prior = ClassPrior.from_counts([5000, 500, 50])
    np.testing.assert_allclose(prior.probs, np.array([5000, 500, 50]) / 5550, rtol=1e-15)
    np.testing.assert_allclose(
        prior.log_probs, np.log(np.array([5000, 500, 50]) / 5550), rtol=1e-14
    )
    assert prior.imbalance_ratio == pytest.approx(100.0, rel=1e-15)
    assert prior.num_classes == 3


def test_names_are_counted_in_sorted_order():
    prior = ClassPrior.from_labels(["dog", "cat", "dog"])
    assert prior.counts.tolist() == [1, 2]
    pd = pytest.importorskip("pandas")
    for names in (pd.Series(["dog", "cat", "dog"]), pd.Categorical(["dog", "cat", "dog"])):
        assert ClassPrior.from_labels(names) == prior


@pytest.mark.parametrize("kind", ["list", "numpy", "torch", "pandas", "uint8"])
def test_labels_of_every_kind_give_the_same_prior(kind):
    labels = [2, 0, 0, 1, 0, 2]
    if kind == "numpy":
        labels = np.array(labels)
    elif kind == "uint8":
        labels = np.array(labels, dtype=np.uint8)
    elif kind == "torch":
        labels = pytest.importorskip("torch").tensor(labels)
    elif kind == "pandas":
        labels = pytest.importorskip("pandas").Series(labels, index=[9, 8, 7, 6, 5, 4])
    prior = ClassPrior.from_labels(labels)
    np.testing.assert_array_equal(prior.counts, [3, 1, 2])
    assert prior == ClassPrior.from_counts([3, 1, 2])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20).filter(any), st.floats(0.01, 10))
def test_smoothing_is_the_additive_rule(counts, smoothing):
    prior = ClassPrior.from_counts(counts, smoothing=smoothing)
    total = sum(counts) + smoothing * len(counts)
    expected = [(n + smoothing) / total for n in counts]
    np.testing.assert_allclose(prior.probs, expected, rtol=1e-12)
    np.testing.assert_array_equal(prior.counts, counts)  # the counts stay what was counted


def test_a_prior_made_directly_is_that_of_the_probabilities_and_leaves_them_writable():
    probs, counts = np.array([0.75, 0.25]), np.array([3, 1])
    prior = ClassPrior(probs, counts)
    assert prior == ClassPrior.from_counts([3, 1])
    assert prior.sample.tolist() == [3, 1]
    probs[0], counts[0] = 0.5, 1
    assert prior.probs.tolist() == [0.75, 0.25]
    assert prior.counts.tolist() == [3, 1]
    with pytest.raises(ValueError, match="read-only"):
        prior.probs[0] = 0.5
    assert ClassPrior([0.75, 0.25]) == prior


def test_groups_at_the_boundaries_and_with_settings():
    prior = ClassPrior.from_counts([500, 101, 100, 20, 19, 1])
    groups = prior.groups()
    assert {k: v.tolist() for k, v in groups.items()} == {
        "many": [0, 1],
        "medium": [2, 3],
        "few": [4, 5],
    }
    assert prior.groups(many=1000, few=10)["many"].tolist() == []
    assert prior.groups(many=1000, few=10)["few"].tolist() == [5]


@pytest.mark.parametrize("beta", [0.0, 0.9, 0.999, 0.9999, 1 - 1e-9, 1 - 1e-13])
def test_effective_numbers_match_the_geometric_series(beta):
    counts = np.array([1, 2, 17, 300])
    # Σ_{k<n} β^k is the effective number by definition, summed without cancellation.
    series = [sum(beta**k for k in range(n)) for n in counts]
    got = ClassPrior.from_counts(counts).effective_numbers(beta=beta)
    np.testing.assert_allclose(got, series, rtol=1e-12)


def test_a_prior_cannot_be_changed_and_can_be_a_key():
    prior = ClassPrior.from_counts([2, 1])
    with pytest.raises(ValueError, match="read-only"):
        prior.probs[0] = 0.5
    with pytest.raises(ValueError, match="read-only"):
        prior.counts[0] = 5
    for name in ("probs", "counts", "log_probs"):
        with pytest.raises(AttributeError):
            setattr(prior, name, np.ones(2))
    assert {prior: "x"}[ClassPrior.from_probs([2 / 3, 1 / 3])] == "x"
    assert prior != ClassPrior.uniform(2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClassPrior.from_counts([3, -1]), "finite and not negative, but class 1 has -1"),
        (lambda: ClassPrior.from_counts([0.5, 2]), "class 0 has 0.5; use ClassPrior.from_weights"),
        (lambda: ClassPrior.from_counts([0, 0]), "are all zero"),
        (lambda: ClassPrior.from_counts([[1, 2]]), r"shape is \(1, 2\)"),
        (lambda: ClassPrior.from_counts(["a", "b"]), "must hold numbers"),
        (lambda: ClassPrior.from_counts([5, 0, 3, 0]), r"class\(es\) 1, 3 have no.*smoothing=1.0"),
        (lambda: ClassPrior.from_labels([0], num_classes=200_000), "and 199989 more have no exam"),
        (lambda: ClassPrior.from_labels([3, 1, 2, 1]), "if the labels count from 1, subtract 1"),
        (lambda: ClassPrior.from_labels([0, 4], num_classes=3), r"in 0 \.\. 2, but 4 occurs"),
        (lambda: ClassPrior.from_labels([0, -100]), "but -100 occurs.*position 1"),
        (lambda: ClassPrior.from_labels([0.0, 1.0]), r"dtype is float64; cast them"),
        (lambda: ClassPrior.from_labels(["cat"], num_classes=3), "but there are 3 classes; number"),
        (lambda: ClassPrior.from_counts(np.ma.masked_equal([5, 0], 0)), "masked"),
        (lambda: ClassPrior.from_probs([0.5, 0.4]), "must sum to 1, but sum to 0.9"),
        (lambda: ClassPrior.from_probs([90, 10]), "sum to 100; use ClassPrior.from_counts"),
        (lambda: ClassPrior.from_probs([1.0, 0.0]), r"class\(es\) 1 have 0, whose log is infinite"),
        (lambda: ClassPrior.from_counts([1, 2], smoothing=-1), "`smoothing` must not be negative"),
        (lambda: ClassPrior.uniform(2).groups(), "made from probabilities"),
        (lambda: ClassPrior.from_counts([1, 2]).groups(many=5, few=9), "`few` must not exceed"),
    ],
)
def test_bad_input_gets_one_clear_error(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.uint8])
def test_counts_may_be_stored_in_any_type(kind):
    assert ClassPrior.from_counts(np.array([200, 9], kind)).counts.tolist() == [200, 9]
