"""The computation behind `metrics`: checked inputs in, sums over examples out.

One pass over the logits in chunks gives everything that needs probabilities. The public
functions with their documentation are in `metrics`, the results in `_types`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import FloatArray, InputError, IntArray
from longtail.metrics._types import Evaluation, PerClassError, Reliability
from longtail.priors import ClassPrior

# 2 MB in float64: large enough to be vectorised, small enough to stay in the cache.
_CHUNK_ELEMENTS = 1 << 18


def row_slices(array: NDArray[Any]) -> Iterator[slice]:
    """Consecutive row ranges of an (examples, classes) array, each a megabyte or two.

    Examples:
        >>> [(rows.start, rows.stop) for rows in row_slices(np.empty((5, 1 << 17)))]
        [(0, 2), (2, 4), (4, 5)]
    """
    step = max(1, _CHUNK_ELEMENTS // array.shape[1])
    for start in range(0, len(array), step):
        yield slice(start, min(start + step, len(array)))


def per_class(
    target: Any,
    predictions: Any,
    num_classes: int | None,
    missing: str,
    sample_weight: Any,
    caller: str,
) -> PerClassError:
    _checks.choice(missing, ("error", "skip"), caller, name="missing")
    target, predicted, width = decide(target, predictions, num_classes, caller)
    result = _errors(target, predicted, width, optional_weights(sample_weight, target, caller))
    _complete(result.counts, missing, caller)
    return result


def decide(
    target: Any, predictions: Any, num_classes: int | None, caller: str
) -> tuple[IntArray, IntArray, int]:
    """Checked labels, predicted labels and the number of classes."""
    if num_classes is not None:
        num_classes = _checks.whole(num_classes, caller, name="num_classes")
    predictions = _checks.as_numpy(predictions)
    if predictions.ndim != 2:
        target = _checks.labels(target, caller=caller, num_classes=num_classes)
        predicted = _checks.labels(
            predictions, caller=caller, name="predictions", num_classes=num_classes
        )
        _checks.same_length(predicted, target, caller=caller, name="predictions")
        width = num_classes or int(max(target.max(), predicted.max())) + 1
        return target, predicted, width
    scores = score_columns(predictions, caller, "predictions", num_classes)
    target = _checks.labels(target, caller=caller, num_classes=scores.shape[1])
    _checks.same_length(scores, target, caller=caller, name="predictions")
    return target, decide_in_chunks(scores, caller, "predictions"), scores.shape[1]


def decide_in_chunks(scores: NDArray[Any], caller: str, name: str) -> IntArray:
    """The argmax of each row, the lowest index among equals; refuses NaN and infinity."""
    predicted = np.empty(len(scores), dtype=np.int64)
    for rows in row_slices(scores):
        chunk = scores[rows]
        _checks.all_finite(chunk, caller=caller, name=name, first_row=rows.start)
        predicted[rows] = chunk.argmax(axis=1)
    return predicted


def score_columns(
    values: Any, caller: str, name: str, num_classes: int | None = None
) -> NDArray[Any]:
    """An (examples, classes) array whose values are still to be checked, chunk by chunk."""
    scores = _checks.matrix(values, caller=caller, name=name, finite=False)
    if scores.shape[1] == 1:
        raise InputError(
            f"{caller}: `{name}` must have one column per class, at least two; its shape is "
            f"{scores.shape}; flatten predicted labels, and give both columns of a binary score."
        )
    if num_classes is not None and num_classes != scores.shape[1]:
        raise InputError(
            f"{caller}: `num_classes` is {num_classes} but `{name}` has {scores.shape[1]} "
            f"columns, shape {scores.shape}; leave num_classes out, the columns say it."
        )
    return scores


def optional_weights(sample_weight: Any, target: IntArray, caller: str) -> FloatArray | None:
    if sample_weight is None:
        return None
    return _checks.sample_weight(sample_weight, len(target), caller=caller)


def _errors(
    target: IntArray, predicted: IntArray, width: int, weight: FloatArray | None
) -> PerClassError:
    wrong = predicted != target
    if weight is None:
        counts = np.bincount(target, minlength=width)
        misses = np.bincount(target[wrong], minlength=width)
        return PerClassError(misses.astype(np.float64), counts.astype(np.float64), counts)
    misses = np.bincount(target[wrong], weights=weight[wrong], minlength=width)
    totals = np.bincount(target, weights=weight, minlength=width)
    counts = np.bincount(target[weight > 0], minlength=width)
    return PerClassError(misses.astype(np.float64), totals.astype(np.float64), counts)


def _complete(counts: IntArray, missing: str, caller: str) -> None:
    absent = np.flatnonzero(counts == 0)
    if len(absent) and missing == "error":
        raise InputError(
            f"{caller}: every class needs examples, but {len(absent)} of {len(counts)} have none "
            f"in `target`: {_checks.listing(absent)}; pass missing='skip' to leave them out."
        )


def confusion_counts(
    target: IntArray, predicted: IntArray, width: int, weight: FloatArray | None
) -> IntArray | FloatArray:
    flat = np.bincount(target * width + predicted, weights=weight, minlength=width * width)
    return flat.reshape(width, width)


def evaluate_in_chunks(
    target: Any,
    logits: Any,
    caller: str,
    *,
    inputs: str,
    bins: int,
    sample_weight: Any,
    missing: str = "skip",
    confusion: bool = False,
    prior: ClassPrior | None = None,
    many: float = 100,
    few: float = 20,
) -> Evaluation:
    """The one computation behind every function that needs probabilities."""
    _checks.choice(inputs, ("logits", "probs"), caller, name="inputs")
    _checks.choice(missing, ("error", "skip"), caller, name="missing")
    bins = _checks.whole(bins, caller, name="bins")
    scores = score_columns(logits, caller, inputs)
    width = scores.shape[1]
    target = _checks.labels(target, caller=caller, num_classes=width)
    _checks.same_length(scores, target, caller=caller, name=inputs)
    weight = optional_weights(sample_weight, target, caller)
    if prior is not None:
        of = None if inputs == "logits" else inputs
        _checks.prior(prior, caller, num_classes=width, shape=scores.shape, of=of)
        prior.groups(many=many, few=few)  # refuses a prior without counts before the work
    _complete(_errors(target, target, width, weight).counts, missing, caller)

    top, classwise = _Bins(1, bins), _Bins(width, bins)
    predicted = np.empty(len(target), dtype=np.int64)
    sums, infinite = np.zeros(3), 0
    for rows in row_slices(scores):
        labels = target[rows]
        w = np.ones(len(labels)) if weight is None else weight[rows]
        probs, loss, predicted[rows] = _probabilities(scores[rows], labels, inputs, caller, rows)
        kept = w > 0
        if not kept.all():
            probs, loss, labels, w = probs[kept], loss[kept], labels[kept], w[kept]
        choice = predicted[rows][kept]
        order = np.arange(len(labels))
        top.add(probs[order, choice][:, None], np.where(choice == labels, 0, -1), w)
        classwise.add(probs, labels, w)
        squares = w @ np.einsum("ij,ij->i", probs, probs)
        probs[order, labels] -= 1.0
        brier = w @ np.einsum("ij,ij->i", probs, probs)
        sums += [w @ loss, brier, squares]
        infinite += int(np.isinf(loss).sum())
    return Evaluation(
        per_class=_errors(target, predicted, width, weight),
        reliability=top.result(squeeze=True),
        classwise=classwise.result(),
        loss_sum=float(sums[0]),
        brier_sum=float(sums[1]),
        sharpness_sum=float(sums[2]),
        zero_probability=infinite,
        confusion=confusion_counts(target, predicted, width, weight) if confusion else None,
        prior=prior,
        many=many,
        few=few,
    )


def _probabilities(
    chunk: NDArray[Any], labels: IntArray, inputs: str, caller: str, rows: slice
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Probabilities (a fresh array), −log p_y and the decision of each row of one chunk."""
    order = np.arange(len(labels))
    choice = chunk.argmax(axis=1)
    if inputs == "probs":
        _checks.probability_rows(chunk, caller=caller, first_row=rows.start)
        probs = np.array(chunk, dtype=np.float64)
        with np.errstate(divide="ignore"):
            return probs, -np.log(probs[order, labels]), choice
    _checks.all_finite(chunk, caller=caller, name="logits", first_row=rows.start)
    if rows.start == 0:
        _checks.not_probabilities(chunk, caller=caller, hint="pass inputs='probs'")
    below = chunk.astype(np.float64)
    below -= below[order, choice][:, None]
    lead = -below[order, labels]
    # Without the leader in the sum, log1p keeps every digit of a tiny loss.
    probs = np.exp(below, out=below)
    probs[order, choice] = 0.0
    others = probs.sum(axis=1)
    probs[order, choice] = 1.0
    probs /= (1.0 + others)[:, None]
    return probs, np.log1p(others) + lead, choice


def bin_of(confidence: FloatArray, edges: FloatArray) -> IntArray:
    """The bin (edges[b], edges[b + 1]] of each confidence; 0 is in the first.

    Examples:
        >>> bin_of(np.array([0.0, 0.5, 0.6, 1.0]), np.array([0.0, 0.5, 1.0]))
        array([0, 0, 1, 1])
    """
    # Rounding may leave a probability just above 1.
    return (np.searchsorted(edges, confidence, side="left") - 1).clip(0, len(edges) - 2)


class _Bins:
    """Sums per class and confidence bin, filled chunk by chunk."""

    def __init__(self, num_classes: int, bins: int) -> None:
        self.edges = np.linspace(0.0, 1.0, bins + 1)
        self.sums = np.zeros((4, num_classes, bins))  # counts, weight, confidence, hits

    def add(self, probs: FloatArray, labels: IntArray, weight: FloatArray) -> None:
        """Add rows of class probabilities; a label of −1 means none of these classes."""
        bins = len(self.edges) - 1
        hit = np.flatnonzero(labels >= 0)
        # Everything goes into the first bin; then what is above its edge moves to its own. No
        # row has more than `bins` of those, however many the classes.
        first = self.sums[:, :, 0]
        first[0] += len(probs)
        first[1] += weight.sum()
        first[2] += weight @ probs
        np.add.at(first[3], labels[hit], weight[hit])
        if bins == 1:
            return
        row, column = np.nonzero(probs > self.edges[1])
        confidence, w = probs[row, column], weight[row]
        place = bin_of(confidence, self.edges)
        moved = (np.ones_like(w), w, w * confidence, w * (labels[row] == column))
        for total, amount in zip(self.sums, moved, strict=True):
            np.add.at(total, (column, place), amount)
            np.add.at(total, (column, np.zeros_like(place)), -amount)

    def result(self, *, squeeze: bool = False) -> Reliability:
        """The bins; `squeeze` drops the class axis of a single class."""
        counts, weight, confidence, hits = self.sums[:, 0] if squeeze else self.sums
        # Moving leaves rounding behind in a first bin that is in truth empty.
        empty = counts == 0
        weight, confidence, hits = (np.where(empty, 0.0, s) for s in (weight, confidence, hits))
        return Reliability(self.edges, counts.astype(np.int64), weight, confidence, hits)
