"""Metrics against slow loops, scikit-learn and torchmetrics; bad input; shards and weights."""

import json
import logging
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from longtail import ClassPrior, InputError, _checks, metrics


def problem(seed, examples=300, classes=5, spread=2.0):
    rng = np.random.default_rng(seed)
    target = rng.integers(0, classes, examples)
    target[:classes] = np.arange(classes)
    logits = rng.normal(0, spread, (examples, classes))
    logits[np.arange(examples), target] += 1.0
    return target, logits


def score(name):
    """One of the scores of `evaluate`, as a function."""

    def of(*args, **kwargs):
        return getattr(metrics.evaluate(*args, missing="skip", **kwargs), name)

    return of


def softmax(logits):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def slow_ece(confidence, hit, bins, weight=None):
    """Straight from the definition, one example at a time; the first bin also takes 0."""
    weight = np.ones(len(hit)) if weight is None else weight
    total = 0.0
    for b in range(bins):
        low, high = b / bins, (b + 1) / bins
        inside = [
            i
            for i, c in enumerate(confidence)
            if (low < c or (b == 0 and c == 0)) and (c <= high or b == bins - 1)
        ]
        w = sum(weight[i] for i in inside)
        if w > 0:
            accuracy = sum(weight[i] * hit[i] for i in inside) / w
            mean = sum(weight[i] * confidence[i] for i in inside) / w
            total += w / sum(weight) * abs(accuracy - mean)
    return total


# --- errors -------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_errors_agree_with_scikit_learn(weighted):
    target, logits = problem(4)
    weight = np.random.default_rng(0).uniform(0.1, 3, len(target)) if weighted else None
    predicted = logits.argmax(axis=1)
    expected = 1 - reference.balanced_accuracy_score(target, predicted, sample_weight=weight)
    matrix = reference.confusion_matrix(target, predicted, sample_weight=weight)
    for given_predictions in (logits, predicted):
        ours = metrics.balanced_error(target, given_predictions, sample_weight=weight)
        assert ours == pytest.approx(expected, abs=1e-12)
    ours = metrics.confusion_matrix(target, logits, sample_weight=weight)
    np.testing.assert_allclose(ours, matrix, rtol=1e-12)
    assert weighted or ours.dtype == np.int64
    result = metrics.per_class_error(target, logits, sample_weight=weight)
    np.testing.assert_allclose(result.values, 1 - np.diag(matrix) / matrix.sum(axis=1), atol=1e-12)
    np.testing.assert_array_equal(result.counts, np.bincount(target))
    accuracy = reference.accuracy_score(target, predicted, sample_weight=weight)
    assert result.error == pytest.approx(1 - accuracy)


def test_ties_go_to_the_lowest_index_and_are_ties_of_the_logits():
    tied = np.ones((2, 2))
    np.testing.assert_array_equal(metrics.per_class_error([0, 1], tied).values, [0.0, 1.0])
    assert metrics.evaluate([0, 1], tied).balanced_error == 0.5
    # In float64 both probabilities round to the same number; the second logit is larger.
    logits = np.array([[0.0, 1e-17], [0.0, -1.0]])
    assert softmax(logits)[0, 0] == softmax(logits)[0, 1]
    assert metrics.evaluate([1, 0], logits).balanced_error == 0.0


@pytest.mark.parametrize(
    "convert", [list, np.asarray, torch.as_tensor, lambda a: torch.as_tensor(a).bfloat16()]
)
def test_lists_arrays_and_tensors_give_the_same(convert):
    target, logits = problem(5, examples=60)
    logits = np.round(logits * 4) / 4 + np.arange(5) / 64  # exact in bfloat16, no ties
    exact = torch.as_tensor(logits).bfloat16().double().numpy()
    result = metrics.evaluate(list(target), convert(exact))
    expected = metrics.evaluate(target, exact)
    assert result.to_dict() == expected.to_dict()


def test_groups_average_classes_and_an_empty_group_is_not_zero():
    prior = ClassPrior.from_counts([500, 200, 50, 30])
    target = [0, 0, 1, 1, 1, 1, 2, 3]
    predicted = [0, 1, 1, 1, 1, 1, 0, 3]
    result = metrics.group_error(target, predicted, prior)
    assert result["many"] == 0.25  # mean of 1/2 and 0, although 1 of 6 examples is wrong
    assert result["medium"] == 0.5
    assert math.isnan(result["few"])
    assert sum(result.values[g] for g in ("many", "medium")) / 2 == pytest.approx(
        metrics.balanced_error(target, predicted)  # two classes in each
    )
    assert result.counts == {"many": 6, "medium": 2, "few": 0}
    assert result.num_classes == {"many": 2, "medium": 2, "few": 0}
    rare = ClassPrior.from_counts([500, 50, 5, 4])
    result = metrics.group_error([0, 1, 1], [0, 1, 0], rare, missing="skip")
    assert math.isnan(result["few"])
    assert (result.num_classes["few"], result.num_present["few"], result.counts["few"]) == (2, 0, 0)


# --- calibration --------------------------------------------------------------------------


@pytest.mark.parametrize("bins", [1, 2, 15, 40])
@pytest.mark.parametrize("weighted", [False, True])
def test_ece_equals_the_loop(bins, weighted):
    target, logits = problem(6, examples=120, classes=4)
    probs = softmax(logits)
    weight = np.random.default_rng(1).integers(0, 4, len(target)) if weighted else None
    hit, top = probs.argmax(axis=1) == target, probs.max(axis=1)
    settings_ = {"bins": bins, "sample_weight": weight}
    ours = score("ece")(target, logits, **settings_)
    assert ours == pytest.approx(slow_ece(top, hit, bins, weight), abs=1e-12)
    per_class = [slow_ece(probs[:, k], target == k, bins, weight) for k in range(4)]
    result = metrics.evaluate(target, logits, **settings_).classwise
    np.testing.assert_allclose(result.ece_per_class, per_class, atol=1e-12)
    assert score("classwise_ece")(target, logits, **settings_) == pytest.approx(np.mean(per_class))


def test_bins_are_closed_on_the_right():
    probs = np.array([[0.6, 0.4], [0.8, 0.2], [1.0, 0.0]])
    result = score("reliability")([0, 0, 0], probs, bins=5, inputs="probs")
    np.testing.assert_array_equal(result.counts, [0, 0, 1, 1, 1])
    np.testing.assert_allclose(result.mean_confidence, [np.nan, np.nan, 0.6, 0.8, 1.0])
    classwise = score("classwise")([0, 0, 0], probs, bins=5, inputs="probs")
    np.testing.assert_array_equal(classwise.counts, [[0, 0, 1, 1, 1], [2, 1, 0, 0, 0]])


@pytest.mark.parametrize("weighted", [False, True])
def test_scores_agree_with_scikit_learn(weighted):
    target, logits = problem(9)
    probs = softmax(logits)
    weight = np.random.default_rng(2).uniform(0, 2, len(target)) if weighted else None
    expected_loss = reference.log_loss(target, probs, sample_weight=weight)
    hit = np.eye(probs.shape[1])[target]  # scikit-learn has it for several classes since 1.7
    expected_brier = np.average(((probs - hit) ** 2).sum(axis=1), weights=weight)
    for given_inputs, inputs in ((logits, "logits"), (probs, "probs")):
        both = {"inputs": inputs, "sample_weight": weight}
        assert score("log_loss")(target, given_inputs, **both) == pytest.approx(expected_loss)
        assert score("brier_score")(target, given_inputs, **both) == pytest.approx(expected_brier)
        sharp = np.average((probs**2).sum(axis=1), weights=weight)
        assert score("sharpness")(target, given_inputs, **both) == pytest.approx(sharp)


def test_log_loss_neither_overflows_nor_loses_a_tiny_loss():
    logits = np.array([[1000.0, 0.0], [80.0, 0.0]])
    assert score("log_loss")([1, 1], logits) == pytest.approx(540.0)
    assert score("log_loss")([0, 0], logits[1:].repeat(2, 0)) == pytest.approx(
        math.exp(-80.0), rel=1e-12, abs=0.0
    )
    tiny = score("log_loss")([0, 1], [[40.0, 0.0], [0.0, 40.0]])  # −log(1 / (1 + e^−40))
    assert tiny == pytest.approx(4.248354255291589e-18, rel=1e-12, abs=0.0)
    result = metrics.evaluate([0, 1, 1], [[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]], inputs="probs")
    assert (result.log_loss, result.zero_probability) == (math.inf, 1)
    assert result.to_dict()["log_loss"] is None


# --- everything at once -------------------------------------------------------------------


def test_to_dict_is_strict_json():
    prior = ClassPrior.from_counts([500, 300, 5])
    result = metrics.evaluate([0, 1, 1], np.eye(3) * 3, prior=prior, missing="skip", confusion=True)
    loaded = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert loaded["missing_classes"] == [2]
    assert loaded["per_class"] == {"values": [0.0, 0.5, None], "counts": [1, 2, 0]}
    assert loaded["groups"]["few"]["error"] is None
    assert loaded["confusion"] == [[1, 0, 0], [0, 1, 1], [0, 0, 0]]


@given(st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_integer_weights_equal_repetition(seed):
    target, logits = problem(seed, examples=40, classes=4)
    weight = np.random.default_rng(seed).integers(0, 4, len(target))
    weight[:4] = 1  # every class stays
    weight[4] = 0
    repeated = np.repeat(np.arange(len(target)), weight)
    ours = metrics.evaluate(target, logits, sample_weight=weight)
    theirs = metrics.evaluate(target[repeated], logits[repeated])
    for name in ("balanced_error", "error", "ece", "classwise_ece", "log_loss", "brier_score"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), abs=1e-12), name
    assert ours.sharpness == pytest.approx(theirs.sharpness)
    np.testing.assert_array_equal(ours.per_class.weight, theirs.per_class.counts)
    with pytest.raises(InputError, match="1 of 2 have none in `target`: 1"):
        metrics.balanced_error([0, 1], [0, 1], sample_weight=[1.0, 0.0])


def test_bins_of_several_sets_add_up():
    target, logits = problem(3)
    whole = score("reliability")(target, logits)
    parts = [score("reliability")(target[k::3], logits[k::3]) for k in range(3)]
    added = sum(parts[1:], parts[0])
    np.testing.assert_array_equal(added.counts, whole.counts)
    assert added.ece == pytest.approx(whole.ece)


def test_chunks_of_a_memory_map_change_nothing(tmp_path, monkeypatch):
    target, logits = problem(11, examples=101, classes=7)
    np.save(tmp_path / "logits.npy", logits.astype(np.float32))
    mapped = np.load(tmp_path / "logits.npy", mmap_mode="r")
    whole = metrics.evaluate(target, logits.astype(np.float32), confusion=True)
    monkeypatch.setattr(_checks, "_CHUNK_ELEMENTS", 7 * 10)
    chunked = metrics.evaluate(target, mapped, confusion=True)
    assert chunked.balanced_error == whole.balanced_error
    assert metrics.balanced_error(target, mapped) == whole.balanced_error
    np.testing.assert_array_equal(chunked.confusion, whole.confusion)
    np.testing.assert_allclose(chunked.classwise.hit_sum, whole.classwise.hit_sum, atol=1e-12)
    assert chunked.log_loss == pytest.approx(whole.log_loss)
    bad = logits.copy()
    bad[55, 3] = np.nan
    with pytest.raises(InputError, match="row 55, column 3 is nan"):
        metrics.evaluate(target, bad)


def test_variance_of_a_mean_against_the_sum_over_outcomes():
    """Two classes, without padding's help: from the definition, class by class."""
    plus, minus, n = np.array([3.0, 40.0]), np.array([1.0, 20.0]), np.array([9.0, 400.0])
    share = np.array([0.5, 0.5])

    def variance(k, pooled, spread):
        size = n[k] + pooled + spread
        rates = [
            (events[k] + pooled * events.sum() / n.sum() + spread / 4) / size
            for events in (plus, minus)
        ]
        within = sum(rates) - (rates[0] - rates[1]) ** 2
        return share[k] ** 2 * within / n[k] / (1 - n[k] / size**2)

    together = [variance(k, 1.0, 1.0) for k in range(2)]
    expected = max(together[0], variance(0, 0.0, 2.0)) + together[1]
    assert metrics.mean_variance(plus, minus, n, share) == pytest.approx(expected, rel=1e-12)


# --- bad input ----------------------------------------------------------------------------


def test_a_class_without_examples_is_named_or_skipped_with_a_word(caplog):
    for function in (metrics.balanced_error, metrics.per_class_error):
        with pytest.raises(InputError, match=r"2 of 4 have none in `target`: 1, 3; pass missing="):
            function([0, 2], [0, 3], num_classes=4)
    given = {"num_classes": 4, "missing": "skip"}
    with caplog.at_level(logging.WARNING, logger="longtail"):
        assert metrics.balanced_error([0, 2, 2], [0, 2, 0], **given) == 0.25
    assert "2 of 4 classes have no examples and were left out: 1, 3" in caplog.text
    caplog.clear()
    metrics.balanced_error([0, 1], [0, 1], missing="skip")
    assert not caplog.records
    result = metrics.per_class_error([0, 2, 2], [0, 2, 0], **given)
    np.testing.assert_array_equal(result.values, [0.0, np.nan, 0.5, np.nan])
    np.testing.assert_array_equal(result.missing_classes, [1, 3])


def test_names_are_numbered_as_scikit_learn_numbers_them():
    """A class that is never predicted must not move the others' numbers."""
    target, predictions = ["cat"] * 50 + ["dog"] * 30 + ["emu"] * 20, ["cat"] * 80 + ["emu"] * 20
    for kind in (list, np.array, lambda names: np.array(names, dtype=object)):
        given = kind(target), kind(predictions)
        assert metrics.balanced_error(*given) == pytest.approx(1 / 3)
        np.testing.assert_array_equal(
            metrics.confusion_matrix(*given), reference.confusion_matrix(*given)
        )
    logits = 2 * np.eye(3)[np.unique(predictions, return_inverse=True)[1] * 2]
    assert metrics.evaluate(target, logits).balanced_error == pytest.approx(1 / 3)
    with pytest.raises(InputError, match="names and others numbers; number all arrays by one"):
        metrics.balanced_error(target, logits.argmax(axis=1))


TWO = 3 * np.eye(2)
PROBS = {"inputs": "probs"}


@pytest.mark.parametrize("function", [metrics.evaluate, metrics.balanced_error])
@pytest.mark.parametrize(
    ("target", "logits", "options", "message"),
    [
        ([0, 1], [[0.5, 0.2], [-np.inf, 0.0]], {}, "must be finite, but row 1, column 0 is -inf"),
        ([0, 2], TWO, {}, r"`target` must lie in 0 \.\. 1, but 2 occurs"),
        ([0.0, 1.0], TWO, {}, "must be integer class labels; their dtype is float64"),
        ([[0], [1]], TWO, {}, "`target` must be one-dimensional"),
        ([0, 1, 1], TWO, {}, "has 2 rows but there are 3 labels"),
        ([0, 0], [[0], [1]], {}, "one column per class, at least two"),
        ([0, 1], TWO, {"missing": "drop"}, "`missing` must be one of 'error', 'skip'"),
        ([0, 1], TWO, {"sample_weight": [1.0]}, "must have one value per example, 2; it has 1"),
        ([0, 1], TWO, {"sample_weight": [1, -1]}, "not negative, but example 1 has -1"),
    ],
)
def test_bad_input_of_errors(function, target, logits, options, message):
    with pytest.raises(InputError, match=message):
        function(target, np.array(logits), **options)


@pytest.mark.parametrize(
    ("target", "predictions", "options", "message"),
    [
        ([0, 1], [0, 2], {"num_classes": 2}, r"`predictions` must lie in 0 \.\. 1, but 2 occurs"),
        ([0, 10**9], [0, 1], {}, "but 1000000000 occurs .* look like ids"),
        ([0, 1], TWO, {"num_classes": 3}, "`num_classes` is 3 but `predictions` has 2 columns"),
    ],
)
def test_bad_predicted_labels(target, predictions, options, message):
    for function in (metrics.balanced_error, metrics.confusion_matrix):
        with pytest.raises(InputError, match=message):
            function(target, predictions, **options)


@pytest.mark.parametrize(
    ("logits", "options", "message"),
    [
        ([[70.0, 30.0], [45.0, 55.0]], PROBS, "these look like percentages"),
        ([[1.0, -1e-9], [0.4, 0.6]], PROBS, "but -1e-09 occurs; if that is a rounding error of 0"),
        (TWO, PROBS, r"must lie in \[0, 1\].*these look like logits"),
        ([[0.9, 0.1], [0.2, 0.8]], {}, "look like probabilities; pass inputs='probs'"),
        (TWO, {"prior": ClassPrior.from_counts([5, 5, 5])}, "prior` has 3 classes but the logits"),
    ],
)
def test_bad_input_of_evaluate(logits, options, message):
    with pytest.raises(InputError, match=message):
        metrics.evaluate([0, 1], logits, **options)
