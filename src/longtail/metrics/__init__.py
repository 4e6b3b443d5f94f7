"""Labels and predictions in, errors and calibration out, each with the counts behind it.

Everything is NumPy in float64 and goes over memory-mapped logits in chunks; results of the
parts of a data set add up to that of the whole, so that evaluation can be sharded. Choosing
tau is in `tuning`; changing the logits is in `posthoc`.

Two-dimensional predictions are logits or probabilities and are decided by argmax, ties going
to the lowest class index. What needs probabilities is told which it got: `inputs="logits"`
(the default, through a softmax) or `inputs="probs"`.
"""

from __future__ import annotations

import logging
from typing import Any, Literal

from longtail import _checks
from longtail._checks import FloatArray, IntArray
from longtail.metrics._sums import (
    confusion_counts,
    decide,
    evaluate_in_chunks,
    optional_weights,
    per_class,
)
from longtail.metrics._types import Evaluation as Evaluation
from longtail.metrics._types import GroupError as GroupError
from longtail.metrics._types import PerClassError as PerClassError
from longtail.metrics._types import Reliability as Reliability
from longtail.priors import ClassPrior

Missing = Literal["error", "skip"]
Inputs = Literal["logits", "probs"]

_logger = logging.getLogger("longtail")


def balanced_error(
    target: Any,
    predictions: Any,
    *,
    num_classes: int | None = None,
    missing: Missing = "error",
    sample_weight: Any = None,
) -> float:
    """The mean over classes of each class's error (equation 2): (1/L) Σ_y P(prediction ≠ y | y).

    Args:
        target: true labels, shape (examples,), integers.
        predictions: predicted labels, shape (examples,), or logits or probabilities, shape
            (examples, num_classes), decided by argmax (the lowest index among equals).
        num_classes: L; for 2-D predictions their width. For labels, if absent, the largest
            label that occurs + 1.
        missing: a class without examples has no error. "error" refuses and names it; "skip"
            leaves it out of the mean and logs how many were (see `per_class_error` for which).
        sample_weight: shape (examples,); an integer weight equals repetition.

    Returns:
        The balanced error, in [0, 1].

    Examples:
        >>> balanced_error([0, 0, 0, 1], [0, 0, 0, 0])
        0.5
    """
    result = per_class(target, predictions, num_classes, missing, sample_weight, "balanced_error")
    left_out = result.missing_classes
    if len(left_out):
        _logger.warning(
            "balanced_error: %d of %d classes have no examples and were left out: %s",
            len(left_out),
            result.num_classes,
            _checks.listing(left_out),
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
    """The error of each class, with counts; parts of a data set add up.

    Args:
        target: as in `balanced_error`.
        predictions: as in `balanced_error`.
        num_classes: as in `balanced_error`.
        missing: "skip" makes the error of a class without examples NaN; "error" refuses.
        sample_weight: as in `balanced_error`.

    Returns:
        `.values`, `.counts`, `.missing_classes`, `.balanced_error`, `.error`, `.by_group(prior)`.

    Examples:
        >>> per_class_error([0, 0, 1, 1], [0, 1, 1, 1]).values
        array([0.5, 0. ])
    """
    return per_class(target, predictions, num_classes, missing, sample_weight, "per_class_error")


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
    """The mean error over the classes with many, a medium number of, or few training examples.

    Args:
        target: as in `balanced_error`.
        predictions: as in `balanced_error`.
        prior: of the training data, made from labels or counts.
        many: classes with more training examples than this are "many".
        few: classes with fewer are "few"; all others are "medium".
        missing: as in `per_class_error`.
        sample_weight: as in `balanced_error`.

    Returns:
        `.values`, `.counts` (evaluated examples), `.num_classes` and `.num_present` by group; a
        group without classes or without examples is NaN with count 0.

    Examples:
        >>> prior = ClassPrior.from_counts([500, 50, 5])
        >>> group_error([0, 1, 1, 2], [0, 1, 0, 1], prior).values
        {'many': 0.0, 'medium': 0.5, 'few': 1.0}
    """
    caller = "group_error"
    prior = _checks.prior(prior, caller)
    predictions = _checks.as_numpy(predictions)
    if predictions.ndim == 2:
        _checks.prior(
            prior, caller, num_classes=predictions.shape[1], shape=tuple(predictions.shape)
        )
    result = per_class(target, predictions, prior.num_classes, missing, sample_weight, caller)
    return result.by_group(prior, many=many, few=few)


def confusion_matrix(
    target: Any, predictions: Any, *, num_classes: int | None = None, sample_weight: Any = None
) -> IntArray | FloatArray:
    """How often each true class (row) was predicted as each class (column).

    Args:
        target: as in `balanced_error`.
        predictions: as in `balanced_error`.
        num_classes: as in `balanced_error`.
        sample_weight: shape (examples,).

    Returns:
        Shape (num_classes, num_classes), integers, or floats if weighted; parts add up.

    Examples:
        >>> confusion_matrix([0, 0, 1], [0, 1, 1])
        array([[1, 1],
               [0, 1]])
    """
    caller = "confusion_matrix"
    target, predicted, width = decide(target, predictions, num_classes, caller)
    weight = optional_weights(sample_weight, target, caller)
    return confusion_counts(target, predicted, width, weight)


def reliability(
    target: Any,
    logits: Any,
    *,
    bins: int = 15,
    inputs: Inputs = "logits",
    classwise: bool = False,
    sample_weight: Any = None,
) -> Reliability:
    """Equal-width bins of confidence with counts, mean confidence and accuracy.

    Args:
        target: true labels, shape (examples,), integers.
        logits: shape (examples, num_classes); probabilities with `inputs="probs"`.
        bins: number of bins on (0, 1], closed on the right.
        inputs: "logits" or "probs".
        classwise: bin every class's probability against [y = class] instead of the top label's
            probability against [prediction = y].
        sample_weight: shape (examples,).

    Returns:
        The bins; `.ece` is the expected calibration error.

    Examples:
        >>> result = reliability([0, 1], [[0.9, 0.1], [0.6, 0.4]], bins=2, inputs="probs")
        >>> result.counts, result.mean_confidence, result.accuracy
        (array([0, 2]), array([ nan, 0.75]), array([nan, 0.5]))
    """
    result = evaluate_in_chunks(
        target, logits, "reliability", inputs=inputs, bins=bins, sample_weight=sample_weight
    )
    return result.classwise if classwise else result.reliability


def top_label_ece(
    target: Any,
    logits: Any,
    *,
    bins: int = 15,
    inputs: Inputs = "logits",
    sample_weight: Any = None,
) -> float:
    """Expected calibration error of the predicted label: Σ_b (n_b / n) |accuracy_b − confidence_b|.

    Args:
        target: as in `reliability`, which also has the counts behind this number.
        logits: as in `reliability`.
        bins: equal-width bins on (0, 1], closed on the right (Guo et al. 2017). torchmetrics
            closes them on the left, which differs only for confidences on an edge.
        inputs: "logits" or "probs".
        sample_weight: shape (examples,).

    Returns:
        The ECE, in [0, 1].

    Examples:
        >>> round(top_label_ece([0, 1], [[0.9, 0.1], [0.6, 0.4]], inputs="probs"), 3)
        0.35
    """
    return evaluate_in_chunks(
        target, logits, "top_label_ece", inputs=inputs, bins=bins, sample_weight=sample_weight
    ).ece


def classwise_ece(
    target: Any,
    logits: Any,
    *,
    bins: int = 15,
    inputs: Inputs = "logits",
    sample_weight: Any = None,
) -> float:
    """Mean over classes of the calibration error of that class's probability (Kull et al. 2019).

    Args:
        target: as in `reliability`.
        logits: as in `reliability`.
        bins: equal-width bins on [0, 1], closed on the right.
        inputs: "logits" or "probs".
        sample_weight: shape (examples,).

    Returns:
        (1/L) Σ_k Σ_b (n_kb / n) |share of class k_b − mean p_kb|; per class it is
        `reliability(..., classwise=True).ece_per_class`.

    Examples:
        >>> round(classwise_ece([0, 1], [[0.9, 0.1], [0.6, 0.4]], inputs="probs"), 3)
        0.35
    """
    return evaluate_in_chunks(
        target, logits, "classwise_ece", inputs=inputs, bins=bins, sample_weight=sample_weight
    ).classwise_ece


def log_loss(
    target: Any, logits: Any, *, inputs: Inputs = "logits", sample_weight: Any = None
) -> float:
    """Mean of −log p_y, in nats; from logits through a log-sum-exp that cannot overflow.

    Args:
        target: as in `reliability`.
        logits: as in `reliability`.
        inputs: "logits" or "probs"; nothing is clipped, so a true class of probability 0 gives
            infinity (`evaluate(...).zero_probability` counts them).
        sample_weight: shape (examples,).

    Returns:
        The log-loss, at least 0.

    Examples:
        >>> round(log_loss([0, 1], [[0.5, 0.5], [0.75, 0.25]], inputs="probs"), 3)
        1.04
    """
    return evaluate_in_chunks(
        target, logits, "log_loss", inputs=inputs, bins=1, sample_weight=sample_weight
    ).log_loss


def brier_score(
    target: Any, logits: Any, *, inputs: Inputs = "logits", sample_weight: Any = None
) -> float:
    """Mean of Σ_k (p_k − [k = y])², the sum over all classes; also for two classes.

    Args:
        target: as in `reliability`.
        logits: as in `reliability`.
        inputs: "logits" or "probs".
        sample_weight: shape (examples,).

    Returns:
        The score, in [0, 2]; for two classes twice the one-column form.

    Examples:
        >>> round(brier_score([0], [[0.9, 0.1]], inputs="probs"), 3)
        0.02
    """
    return evaluate_in_chunks(
        target, logits, "brier_score", inputs=inputs, bins=1, sample_weight=sample_weight
    ).brier_score


def sharpness(
    target: Any, logits: Any, *, inputs: Inputs = "logits", sample_weight: Any = None
) -> float:
    """Mean of Σ_k p_k²: 1 for certain predictions, 1/L for uniform ones, right or wrong.

    Args:
        target: as in `reliability`; only checked, since sharpness asks nothing of the truth.
        logits: as in `reliability`.
        inputs: "logits" or "probs".
        sample_weight: shape (examples,).

    Returns:
        The sharpness, in [1/L, 1].

    Examples:
        >>> sharpness([0, 1], [[0.5, 0.5], [0.0, 1.0]], inputs="probs")
        0.75
    """
    return evaluate_in_chunks(
        target, logits, "sharpness", inputs=inputs, bins=1, sample_weight=sample_weight
    ).sharpness


def evaluate(
    target: Any,
    logits: Any,
    *,
    prior: ClassPrior | None = None,
    many: float = 100,
    few: float = 20,
    inputs: Inputs = "logits",
    bins: int = 15,
    missing: Missing = "error",
    confusion: bool = False,
    sample_weight: Any = None,
) -> Evaluation:
    """Every metric of this module in one pass over the logits.

    Args:
        target: true labels, shape (examples,), integers.
        logits: shape (examples, num_classes); probabilities with `inputs="probs"`.
        prior: of the training data, made from labels or counts; gives the groups.
        many: as in `group_error`.
        few: as in `group_error`.
        inputs: "logits" or "probs".
        bins: as in `top_label_ece`.
        missing: "error" refuses if a class has no examples; "skip" leaves it out of the
            balanced error and lists it in `.missing_classes` (use it for shards).
        confusion: also keep the matrix of `confusion_matrix`, num_classes² numbers.
        sample_weight: shape (examples,).

    Returns:
        An Evaluation; `.to_dict()` is ready for JSON, and shards add up with `+`.

    Examples:
        >>> logits = [[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
        >>> result = evaluate([0, 1, 2], logits, prior=ClassPrior.from_counts([300, 60, 6]))
        >>> result.groups.values
        {'many': 0.0, 'medium': 0.0, 'few': 1.0}
        >>> result.to_dict()["per_class"]
        {'values': [0.0, 0.0, 1.0], 'counts': [1, 1, 1]}
    """
    return evaluate_in_chunks(
        target,
        logits,
        "evaluate",
        inputs=inputs,
        bins=bins,
        sample_weight=sample_weight,
        missing=missing,
        confusion=confusion,
        prior=prior,
        many=many,
        few=few,
    )
