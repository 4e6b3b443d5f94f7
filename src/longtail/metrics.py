"""Labels and predictions to errors and calibration, each with the counts behind it.

Everything is NumPy in float64 and goes over memory-mapped logits in chunks. Two-dimensional
predictions are decided by argmax, ties going to the lowest class index. Labels may be strings,
numbered in sorted order as in scikit-learn; beside logits or probabilities every class must then
occur.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from longtail import _checks
from longtail._checks import FloatArray, InputError, IntArray
from longtail.priors import ClassPrior

Missing = Literal["error", "skip"]

_logger = logging.getLogger("longtail")


# --- results ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class PerClassError:
    """The error of each class, P(prediction ≠ y | y), and what it was counted on.

    Attributes:
        wrong: total weight of the misclassified examples of each class, shape (num_classes,).
        weight: total weight of the examples of each class; equal to `counts` without weights.
        counts: number of examples of each class (of positive weight).

    Examples:
        >>> result = per_class_error([0, 0, 1], [0, 1, 1], num_classes=3, missing="skip")
        >>> result.values, result.counts, result.missing_classes
        (array([0.5, 0. , nan]), array([2, 1, 0]), array([2]))
    """

    wrong: FloatArray
    weight: FloatArray
    counts: IntArray

    @property
    def values(self) -> FloatArray:
        """Error of each class, shape (num_classes,); NaN for a class without examples."""
        return _ratio(self.wrong, self.weight)

    @property
    def num_classes(self) -> int:
        """L, the number of classes."""
        return len(self.counts)

    @property
    def missing_classes(self) -> IntArray:
        """The classes without examples, which have no error and no part in any mean."""
        return np.flatnonzero(self.counts == 0)

    @property
    def balanced_error(self) -> float:
        """Mean error of the classes that have examples (equation 2)."""
        some = self.counts > 0
        return float(np.mean(self.wrong[some] / self.weight[some]))

    @property
    def error(self) -> float:
        """Share of misclassified examples, whatever their class."""
        return float(self.wrong.sum() / self.weight.sum())

    def by_group(self, prior: ClassPrior, *, many: float = 100, few: float = 20) -> GroupError:
        """Return the errors averaged over groups of classes, see `group_error`."""
        _checks.prior(prior, num_classes=self.num_classes)
        found, values = GroupError({}, {}, {}, {}), self.values
        for name, classes in prior.groups(many=many, few=few).items():
            present = classes[self.counts[classes] > 0]
            found.values[name] = float(values[present].mean()) if len(present) else math.nan
            found.counts[name] = int(self.counts[classes].sum())
            found.num_classes[name] = len(classes)
            found.num_present[name] = len(present)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists for JSON."""
        return {"values": _plain(self.values), "counts": self.counts.tolist()}

    def __repr__(self) -> str:
        return (
            f"PerClassError(balanced_error={self.balanced_error:.6g}, "
            f"num_classes={self.num_classes}, missing={len(self.missing_classes)}, "
            f"examples={int(self.counts.sum())})"
        )


@dataclass(frozen=True)
class GroupError:
    """The balanced error within each group of classes: "many", "medium" and "few".

    Attributes:
        values: mean of the errors of the group's classes; NaN where there are none to average.
        counts: number of evaluated examples of the group.
        num_classes: number of classes in the group.
        num_present: how many of them have evaluated examples, and so enter the mean.
    """

    values: dict[str, float]
    counts: dict[str, int]
    num_classes: dict[str, int]
    num_present: dict[str, int]

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers for JSON, by group."""
        parts: Any = {**vars(self), "error": self.values}
        names = ("error", "counts", "num_classes", "num_present")
        return {group: {n: _plain(parts[n][group]) for n in names} for group in self.values}


@dataclass(frozen=True, eq=False, repr=False)
class Reliability:
    """Examples by how confident the prediction was: what a reliability diagram shows.

    Bin b holds confidences in (edges[b], edges[b + 1]]; a confidence of exactly 0 is in the
    first. The arrays have shape (bins,) for the top label and (num_classes, bins) class-wise.

    Attributes:
        edges: shape (bins + 1,), from 0 to 1.
        counts: examples in each bin (of positive weight).
        weight: their total weight.
        confidence_sum: weighted sum of their confidences.
        hit_sum: total weight of those for which the label in question was the true one.
    """

    edges: FloatArray
    counts: IntArray
    weight: FloatArray
    confidence_sum: FloatArray
    hit_sum: FloatArray

    def __add__(self, other: Reliability) -> Reliability:
        """Return the bins of both sets of predictions together, such as those of several seeds."""
        names = ("counts", "weight", "confidence_sum", "hit_sum")
        return Reliability(self.edges, *(getattr(self, n) + getattr(other, n) for n in names))

    @property
    def mean_confidence(self) -> FloatArray:
        """Mean confidence per bin; NaN for an empty bin."""
        return _ratio(self.confidence_sum, self.weight)

    @property
    def accuracy(self) -> FloatArray:
        """Share of true labels per bin; NaN for an empty bin."""
        return _ratio(self.hit_sum, self.weight)

    @property
    def ece(self) -> float:
        """Calibration error, Σ_b (n_b / n) |accuracy_b − confidence_b|; class-wise the mean."""
        return float(np.mean(self.ece_per_class))

    @property
    def ece_per_class(self) -> FloatArray:
        """The ECE of each class, shape (num_classes,), or of the top label, shape ()."""
        gaps = np.abs(self.hit_sum - self.confidence_sum).sum(axis=-1)
        return np.asarray(gaps / self.weight.sum(axis=-1))

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists for JSON."""
        names = ("ece", "edges", "counts", "mean_confidence", "accuracy")
        return {name: _plain(getattr(self, name)) for name in names}

    def __repr__(self) -> str:
        shape = self.counts.shape
        return f"Reliability(ece={self.ece:.6g}, bins={len(self.edges) - 1}, shape={shape})"


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Every metric of one set of predictions.

    Attributes:
        per_class: the errors and counts of the classes.
        groups: see `group_error`; None if no prior was given.
        reliability: bins of the top label's confidence.
        classwise: bins of every class's probability, shape (num_classes, bins).
        log_loss: mean of −log p_y, in nats; infinite if a true class has probability 0.
        brier_score: mean of Σ_k (p_k − [k = y])², in [0, 2]; for two classes twice the one-column
            form.
        sharpness: mean of Σ_k p_k²: 1 for certain predictions, 1/L for uniform ones.
        zero_probability: examples whose true class got probability 0 (infinite log-loss).
        confusion: matrix of `confusion_matrix`, if asked for.

    Examples:
        >>> result = evaluate([0, 0, 1], [[2.0, 0.0], [1.0, 0.0], [0.5, 0.0]])
        >>> result.balanced_error, result.per_class.counts
        (0.5, array([2, 1]))
        >>> round(result.log_loss, 3), round(result.ece, 3)
        (0.471, 0.337)
    """

    per_class: PerClassError
    groups: GroupError | None
    reliability: Reliability
    classwise: Reliability
    log_loss: float
    brier_score: float
    sharpness: float
    zero_probability: int
    confusion: IntArray | FloatArray | None

    @property
    def num_examples(self) -> int:
        """Number of evaluated examples (of positive weight)."""
        return int(self.per_class.counts.sum())

    @property
    def num_classes(self) -> int:
        """L, the number of classes."""
        return self.per_class.num_classes

    @property
    def missing_classes(self) -> IntArray:
        """Classes without evaluated examples."""
        return self.per_class.missing_classes

    @property
    def balanced_error(self) -> float:
        """Mean error of the classes that have examples (equation 2)."""
        return self.per_class.balanced_error

    @property
    def error(self) -> float:
        """Share of misclassified examples, whatever their class."""
        return self.per_class.error

    @property
    def ece(self) -> float:
        """Calibration error of the predicted label, Σ_b (n_b / n) |accuracy_b − confidence_b|."""
        return self.reliability.ece

    @property
    def classwise_ece(self) -> float:
        """Mean over classes of the calibration error of their probability (Kull et al. 2019)."""
        return self.classwise.ece

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, lists and dicts for JSON; NaN and infinity become None."""
        names = "num_examples num_classes missing_classes balanced_error error ece classwise_ece"
        names += " log_loss brier_score sharpness zero_probability groups per_class reliability"
        plain = {name: _plain(getattr(self, name)) for name in names.split()}
        plain["classwise_ece_per_class"] = _plain(self.classwise.ece_per_class)
        return {**plain, "confusion": _plain(self.confusion)}

    def __repr__(self) -> str:
        return (
            f"Evaluation(balanced_error={self.balanced_error:.6g}, error={self.error:.6g}, "
            f"ece={self.ece:.6g}, log_loss={self.log_loss:.6g}, examples={self.num_examples}, "
            f"classes={self.num_classes}, missing={len(self.missing_classes)})"
        )


def _ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    """Return part / whole, NaN where there is nothing to divide by."""
    nothing = np.full(np.shape(whole), np.nan)
    return np.asarray(np.divide(part, whole, out=nothing, where=whole > 0))


def _plain(value: Any) -> Any:
    """Return the value as JSON has it: results as dicts, arrays as lists, no NaN, no infinity."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- errors -----------------------------------------------------------------------------------


def balanced_error(
    target: Any,
    predictions: Any,
    *,
    num_classes: int | None = None,
    missing: Missing = "error",
    sample_weight: Any = None,
) -> float:
    """Return the mean over classes of each class's error (equation 2).

        (1/L) Σ_y P(prediction ≠ y | y)

    Args:
        target: true labels, shape (examples,), integers or strings.
        predictions: predicted labels, shape (examples,), or logits or probabilities, shape
            (examples, num_classes).
        num_classes: L; by default the width of 2-D predictions, or the largest label + 1.
        missing: what to do about classes without examples: "error" refuses and names them; "skip"
            leaves them out of the mean and logs how many they were.
        sample_weight: shape (examples,); an integer weight equals repetition.

    Examples:
        >>> balanced_error([0, 0, 0, 1], [0, 0, 0, 0])
        0.5
    """
    result = _errors(*_decide(target, predictions, num_classes, sample_weight), missing)
    if missing == "skip" and not result.counts.all():
        _logger.warning(
            "balanced_error: %d of %d classes have no examples and were left out: %s",
            len(result.missing_classes),
            result.num_classes,
            _checks.listing(result.missing_classes),
        )
    return result.balanced_error


def per_class_error(
    target: Any,
    predictions: Any,
    *,
    num_classes: int | None = None,
    missing: Missing = "error",
    sample_weight: Any = None,
) -> PerClassError:
    """Return the error of each class, with counts.

    The arguments are those of `balanced_error`; with "skip", a class without examples is NaN.

    Examples:
        >>> per_class_error([0, 0, 1, 1], [0, 1, 1, 1]).values
        array([0.5, 0. ])
    """
    return _errors(*_decide(target, predictions, num_classes, sample_weight), missing)


def group_error(
    target: Any,
    predictions: Any,
    prior: ClassPrior,
    *,
    many: float = 100,
    few: float = 20,
    missing: Missing = "error",
    sample_weight: Any = None,
) -> GroupError:
    """Return the mean error over the classes with many, a medium number of, or few examples.

    The other arguments are those of `balanced_error`.

    Args:
        prior: of the training data, made from labels or counts.
        many: classes with more training examples than this are "many".
        few: classes with fewer are "few"; all others are "medium".

    Returns:
        `.values`, `.counts`, `.num_classes` and `.num_present` by group; NaN where a group has no
        examples.

    Examples:
        >>> prior = ClassPrior.from_counts([500, 50, 5])
        >>> group_error([0, 1, 1, 2], [0, 1, 0, 1], prior).values
        {'many': 0.0, 'medium': 0.5, 'few': 1.0}
    """
    width = None if np.ndim(predictions) == 2 else _checks.prior(prior).num_classes
    decided = _decide(target, predictions, width, sample_weight)
    return _errors(*decided, missing).by_group(prior, many=many, few=few)


def confusion_matrix(
    target: Any, predictions: Any, *, num_classes: int | None = None, sample_weight: Any = None
) -> IntArray | FloatArray:
    """Return how often each true class (row) was predicted as each class (column).

    The arguments are those of `balanced_error`; the counts are floats if weighted.

    Examples:
        >>> confusion_matrix([0, 0, 1], [0, 1, 1])
        array([[1, 1],
               [0, 1]])
    """
    return _confusion(*_decide(target, predictions, num_classes, sample_weight))


def _decide(
    target: Any, predictions: Any, num_classes: int | None, weight: Any
) -> tuple[IntArray, IntArray, int, FloatArray | None]:
    """Return checked labels, predicted labels, the number of classes and weights."""
    predictions = _checks.as_numpy(predictions)
    if predictions.ndim == 2:
        name, width = "predictions", predictions.shape[1]
        if num_classes not in (None, width):
            raise InputError(
                f"`num_classes` is {num_classes} but `predictions` has {width} columns, shape "
                f"{predictions.shape}; leave num_classes out, the columns say it."
            )
        scores, labels, weight = _checks.examples(
            predictions, target, name=name, weight=weight, names=True
        )
        parts = [chunk.argmax(axis=1) for _, chunk in _checks.chunks(scores, kind=name)]
        return labels, np.concatenate(parts), width, weight
    if num_classes is not None:
        num_classes = _checks.whole(num_classes, name="num_classes")
    target, predictions = _checks.numbered(target, predictions)
    target = _checks.labels(target, num_classes=num_classes, names=True)
    predicted = _checks.labels(predictions, name="predictions", num_classes=num_classes, names=True)
    _checks.same_length(predicted, target, name="predictions")
    if weight is not None:
        weight = _checks.sample_weight(weight, len(target))
    return target, predicted, num_classes or int(max(target.max(), predicted.max())) + 1, weight


def _errors(
    target: IntArray, predicted: IntArray, width: int, weight: FloatArray | None, missing: str
) -> PerClassError:
    """Return errors by class; refuse a class without examples unless missing="skip"."""
    _checks.choice(missing, ("error", "skip"), name="missing")
    weight = np.ones(len(target)) if weight is None else weight
    counts = np.bincount(target[weight > 0], minlength=width)
    absent = np.flatnonzero(counts == 0)
    if len(absent) and missing == "error":
        raise InputError(
            f"every class needs examples, but {len(absent)} of {width} have none in `target`: "
            f"{_checks.listing(absent)}; pass missing='skip' to leave them out."
        )
    wrong, totals = (
        np.bincount(target, weights=part, minlength=width).astype(np.float64)
        for part in (weight * (predicted != target), weight)
    )
    return PerClassError(wrong, totals, counts)


def _confusion(
    target: IntArray, predicted: IntArray, width: int, weight: FloatArray | None
) -> IntArray | FloatArray:
    flat = np.bincount(target * width + predicted, weights=weight, minlength=width * width)
    return flat.reshape(width, width)


# --- errors and calibration at once --------------------------------------------------------------


def evaluate(
    target: Any,
    logits: Any,
    *,
    prior: ClassPrior | None = None,
    many: float = 100,
    few: float = 20,
    inputs: Literal["logits", "probs"] = "logits",
    bins: int = 15,
    missing: Missing = "error",
    confusion: bool = False,
    sample_weight: Any = None,
) -> Evaluation:
    """Return every metric of this module, from one pass over the logits.

    Args:
        target: true labels, shape (examples,).
        logits: shape (examples, num_classes); probabilities with `inputs="probs"`.
        prior: of the training data, made from labels or counts; gives the groups.
        many: as in `group_error`.
        few: as in `group_error`.
        inputs: "logits" or "probs".
        bins: number of equal-width bins of confidence on (0, 1], closed on the right.
        missing: as in `balanced_error`.
        confusion: also keep the matrix of `confusion_matrix`, num_classes² numbers.
        sample_weight: shape (examples,).

    Examples:
        >>> logits = [[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
        >>> result = evaluate([0, 1, 2], logits, prior=ClassPrior.from_counts([300, 60, 6]))
        >>> result.groups.values
        {'many': 0.0, 'medium': 0.0, 'few': 1.0}
        >>> round(result.log_loss, 3)
        0.781
        >>> result.to_dict()["per_class"]
        {'values': [0.0, 0.0, 1.0], 'counts': [1, 1, 1]}
    """
    _checks.choice(inputs, ("logits", "probs"), name="inputs")
    edges = np.linspace(0.0, 1.0, _checks.whole(bins, name="bins") + 1)
    scores, target, weight = _checks.examples(
        logits, target, name=inputs, pi=prior, weight=sample_weight, names=True
    )
    width = scores.shape[1]
    if prior is not None:
        prior.groups(many=many, few=few)  # refuses a prior without counts
    _errors(target, target, width, weight, missing)  # refuses a class without examples

    top, classwise = np.zeros((4, 1, bins)), np.zeros((4, width, bins))
    predicted = np.empty(len(target), dtype=np.int64)
    sums, infinite = np.zeros(3), 0
    hint = "pass inputs='probs'" if inputs == "logits" else "pass them as logits instead"
    for rows, chunk in _checks.chunks(scores, kind=inputs, hint=hint):
        labels, order = target[rows], np.arange(len(chunk))
        w = np.ones(len(chunk)) if weight is None else weight[rows]
        probs = chunk.astype(np.float64)
        if inputs == "probs":
            choice = chunk.argmax(axis=1)
            with np.errstate(divide="ignore"):
                loss = -np.log(probs[order, labels])
        else:
            lead = probs.max(axis=1) - probs[order, labels]
            probs, log_sum, choice = softmax_rows(probs)
            loss = log_sum + lead
        predicted[rows] = choice
        loss[w == 0] = 0.0  # which may be infinite
        hit = np.where(choice == labels, 0, -1)
        top += _binned(probs[order, choice][:, None], hit, w, edges)
        classwise += _binned(probs, labels, w, edges)
        squares = w @ np.einsum("ij,ij->i", probs, probs)
        probs[order, labels] -= 1.0
        sums += [w @ loss, w @ np.einsum("ij,ij->i", probs, probs), squares]
        infinite += int(np.isinf(loss).sum())

    def reliability(sums: FloatArray) -> Reliability:
        # `_binned` may leave rounding in an empty first bin.
        counts, *others = np.where(sums[0] > 0.5, sums, 0.0)
        return Reliability(edges, counts.astype(np.int64), *others)

    per_class = _errors(target, predicted, width, weight, missing)
    log_loss, brier_score, sharpness = (sums / per_class.weight.sum()).tolist()
    return Evaluation(
        per_class=per_class,
        groups=None if prior is None else per_class.by_group(prior, many=many, few=few),
        reliability=reliability(top[:, 0]),
        classwise=reliability(classwise),
        log_loss=log_loss,
        brier_score=brier_score,
        sharpness=sharpness,
        zero_probability=infinite,
        confusion=_confusion(target, predicted, width, weight) if confusion else None,
    )


def softmax_rows(scores: FloatArray) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return softmax(f), log Σ exp(f − max f), exact next to 0, and argmax f; f is overwritten."""
    order, choice = np.arange(len(scores)), scores.argmax(axis=1)
    scores -= scores[order, choice][:, None]
    probs = np.exp(scores, out=scores)
    probs[order, choice] = 0.0
    others = probs.sum(axis=1)
    probs[order, choice] = 1.0
    probs /= (1.0 + others)[:, None]
    return probs, np.log1p(others), choice


def bin_of(confidence: FloatArray, edges: FloatArray) -> IntArray:
    """Return the bin (edges[b], edges[b + 1]] of each confidence; 0 is in the first."""
    # Rounding may leave a probability just above 1.
    return (np.searchsorted(edges, confidence, side="left") - 1).clip(0, len(edges) - 2)


def _binned(
    probs: FloatArray, labels: IntArray, weight: FloatArray, edges: FloatArray
) -> FloatArray:
    """Return counts, weights, confidences and hits of one chunk, shape (4, num_classes, bins).

    Label −1 stands for none of these classes.
    """
    width, bins = probs.shape[1], len(edges) - 1
    # With many classes nearly all probabilities are in the first bin, so its sums are taken as the
    # totals less the other bins.
    row, column = np.nonzero(probs > edges[1])
    confidence, w = probs[row, column], weight[row]
    place = column * bins + bin_of(confidence, edges)
    parts = (w > 0, w, w * confidence, w * (labels[row] == column))
    binned = [np.bincount(place, part, minlength=width * bins) for part in parts]
    sums = np.array(binned, np.float64).reshape(4, width, bins)
    whole = np.empty((4, width))
    whole[0], whole[1], whole[2] = np.count_nonzero(weight), weight.sum(), weight @ probs
    whole[3] = np.bincount(labels + 1, weight, minlength=width + 1)[1:]
    sums[:, :, 0] += whole - sums.sum(axis=2)
    return sums


# --- chance -----------------------------------------------------------------------------------


def mean_variance(plus: Any, minus: Any, counts: Any, share: FloatArray) -> float:
    """Return the variance of Σ_y share_y (plus_y − minus_y) / n_y, however small n.

    A class's term varies by p₊ + p₋ − (p₊ − p₋)² over n_y. As a class of one or two examples shows
    no spread of its own, one example's worth of the pooled rates is added to each class, and two
    examples, spread evenly over the outcomes, to all together (Agresti and Min 2005, for one
    class); the class that may vary most counts at least as it would alone, with these two to
    itself. benchmarks/bench_coverage.py simulates how often intervals hold the truth: without that
    last step far too seldom for two classes of 5,000 and 4 examples; with every class alone, a
    hundred classes of two examples would have far too wide ones.

    Args:
        plus: events that add, per class, shape (classes,).
        minus: events that subtract; None if there is no such thing, as for a plain error.
        counts: n, examples per class, at least 1; of weighted examples, as many as tell as much.
        share: weights that sum to 1.
    """
    found, part = [], 0.5 if minus is None else 0.25
    for pooled, spread in ((float(len(counts) > 1), 2.0 / len(counts)), (0.0, 2.0)):
        padded = counts + pooled + spread
        up, down = (
            0.0
            if events is None
            else (events + pooled * (events.sum() / counts.sum()) + spread * part) / padded
            for events in (plus, minus)
        )
        # The estimated rates vary themselves, which takes n / padded² of the variance away.
        within = (up + down - (up - down) ** 2) / counts / (1.0 - counts / padded**2)
        found.append(share**2 * within)
    together, alone = found
    most = int(np.argmax(alone))
    return float(together.sum() + max(0.0, alone[most] - together[most]))
