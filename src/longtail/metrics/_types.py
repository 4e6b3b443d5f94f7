"""What `metrics` returns: results that carry their counts and add up over shards.

Each result holds sums over examples, never means, so that the results of the parts of a data
set add (`+`, `sum`) to the result of the whole; the means are properties. How the sums come
about is in `metrics`, which is where to import these names from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn, Self

import numpy as np

from longtail import _checks
from longtail._checks import FloatArray, InputError, IntArray
from longtail.priors import GROUPS, ClassPrior


class _Mergeable:
    """Results that are sums over examples: the parts of a data set add up to the whole."""

    def __add__(self, other: Self) -> Self:
        if type(other) is not type(self):
            return NotImplemented
        merged: dict[str, Any] = {}
        for item in fields(self):  # type: ignore[arg-type]
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            fixed = item.metadata.get("fixed", False)
            if np.shape(mine) != np.shape(theirs) or (fixed and not np.all(mine == theirs)):
                self._refuse(item.name)
            # Equal priors may be of other numbers of examples, which make the groups.
            if isinstance(mine, ClassPrior) and not np.all(mine.counts == theirs.counts):
                self._refuse(f"{item.name}.counts")
            merged[item.name] = mine if fixed or mine is None else mine + theirs
        return type(self)(**merged)

    def _refuse(self, name: str) -> NoReturn:
        raise InputError(
            f"{type(self).__name__}: only results of the same classes and settings can be added, "
            f"but their `{name}` differ."
        )

    def __radd__(self, other: object) -> Self:
        # sum() starts from the number 0.
        return self if other == 0 else NotImplemented


@dataclass(frozen=True, eq=False, repr=False)
class PerClassError(_Mergeable):
    """The error of each class, P(prediction ≠ y | y), and what it was counted on.

    Attributes:
        wrong: total weight of the misclassified examples of each class, shape (num_classes,).
        weight: total weight of the examples of each class; equal to `counts` without weights.
        counts: number of examples of each class (of positive weight).

    Examples:
        >>> from longtail.metrics import per_class_error
        >>> result = per_class_error([0, 0, 1], [0, 1, 1], num_classes=3, missing="skip")
        >>> result.values, result.counts, result.missing_classes
        (array([0.5, 0. , nan]), array([2, 1, 0]), array([2]))
        >>> (result + per_class_error([2], [0], num_classes=3, missing="skip")).values
        array([0.5, 0. , 1. ])
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
        """The classes without examples: they have no error, and no part in any mean."""
        return np.flatnonzero(self.counts == 0).astype(np.int64)

    @property
    def balanced_error(self) -> float:
        """Mean over the classes that have examples of each class's error."""
        return float(np.mean(self.values[self.counts > 0]))

    @property
    def error(self) -> float:
        """Share of misclassified examples, whatever their class."""
        return float(self.wrong.sum() / self.weight.sum())

    def by_group(self, prior: ClassPrior, *, many: float = 100, few: float = 20) -> GroupError:
        """The same errors averaged over groups of classes, see `group_error`."""
        groups = _checks.prior(prior, "group_error", num_classes=self.num_classes).groups(
            many=many, few=few
        )
        present = {name: k[self.counts[k] > 0] for name, k in groups.items()}
        return GroupError(
            values={
                n: float(self.values[k].mean()) if len(k) else math.nan for n, k in present.items()
            },
            counts={name: int(self.counts[k].sum()) for name, k in groups.items()},
            num_classes={name: len(k) for name, k in groups.items()},
            num_present={name: len(k) for name, k in present.items()},
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain lists for JSON; NaN becomes None."""
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
        return self.values[_checks.choice(name, GROUPS, "GroupError", name="name")]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON, by group; NaN becomes None."""
        return {
            name: {
                "error": _plain(self.values[name]),
                "counts": self.counts[name],
                "num_classes": self.num_classes[name],
                "num_present": self.num_present[name],
            }
            for name in GROUPS
        }


@dataclass(frozen=True, eq=False, repr=False)
class Reliability(_Mergeable):
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

    edges: FloatArray = field(metadata={"fixed": True})
    counts: IntArray
    weight: FloatArray
    confidence_sum: FloatArray
    hit_sum: FloatArray

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
        """Expected calibration error, Σ_b (n_b / n) |accuracy_b − confidence_b|.

        Class-wise it is the mean of that over the classes.
        """
        return float(np.mean(self.ece_per_class))

    @property
    def ece_per_class(self) -> FloatArray:
        """The ECE of each class, shape (num_classes,); of shape () for the top label."""
        gaps = np.abs(self.hit_sum - self.confidence_sum).sum(axis=-1)
        return np.asarray(gaps / self.weight.sum(axis=-1))

    def to_dict(self) -> dict[str, Any]:
        """Plain lists for JSON; NaN becomes None."""
        arrays = {"edges": self.edges, "counts": self.counts}
        means = {"mean_confidence": self.mean_confidence, "accuracy": self.accuracy}
        return {"ece": self.ece, **{k: _plain(v) for k, v in {**arrays, **means}.items()}}

    def __repr__(self) -> str:
        return (
            f"Reliability(ece={self.ece:.6g}, bins={len(self.edges) - 1}, "
            f"shape={self.counts.shape})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(_Mergeable):
    """Every metric of one set of predictions; evaluations of shards add up.

    Attributes:
        per_class: the errors and counts of the classes.
        reliability: bins of the top label's confidence.
        classwise: bins of every class's probability, shape (num_classes, bins).
        loss_sum: weighted sum of −log p_y.
        brier_sum: weighted sum of Σ_k (p_k − [k = y])².
        sharpness_sum: weighted sum of Σ_k p_k².
        zero_probability: examples whose true class got probability 0 (infinite log-loss).
        confusion: matrix of `confusion_matrix`, if asked for.
        prior: of the training data, if given; makes the groups.
        many: bound of the group "many".
        few: bound of the group "few".

    Examples:
        >>> from longtail.metrics import evaluate
        >>> result = evaluate([0, 0, 1], [[2.0, 0.0], [1.0, 0.0], [0.5, 0.0]])
        >>> result.balanced_error, result.per_class.counts
        (0.5, array([2, 1]))
        >>> round(result.log_loss, 3), round(result.ece, 3)
        (0.471, 0.337)
    """

    per_class: PerClassError
    reliability: Reliability
    classwise: Reliability
    loss_sum: float
    brier_sum: float
    sharpness_sum: float
    zero_probability: int
    confusion: IntArray | FloatArray | None = None
    prior: ClassPrior | None = field(default=None, metadata={"fixed": True})
    many: float = field(default=100, metadata={"fixed": True})
    few: float = field(default=20, metadata={"fixed": True})

    @property
    def num_examples(self) -> int:
        """Number of evaluated examples (of positive weight)."""
        return int(self.per_class.counts.sum())

    @property
    def missing_classes(self) -> IntArray:
        """Classes without evaluated examples; `balanced_error` leaves them out."""
        return self.per_class.missing_classes

    @property
    def balanced_error(self) -> float:
        """See the function `balanced_error`."""
        return self.per_class.balanced_error

    @property
    def error(self) -> float:
        """Share of misclassified examples, whatever their class."""
        return self.per_class.error

    @property
    def groups(self) -> GroupError | None:
        """See `group_error`; None if no prior was given."""
        if self.prior is None:
            return None
        return self.per_class.by_group(self.prior, many=self.many, few=self.few)

    @property
    def ece(self) -> float:
        """See `top_label_ece`."""
        return self.reliability.ece

    @property
    def classwise_ece(self) -> float:
        """See the function `classwise_ece`."""
        return self.classwise.ece

    @property
    def log_loss(self) -> float:
        """See the function `log_loss`."""
        return self.loss_sum / float(self.per_class.weight.sum())

    @property
    def brier_score(self) -> float:
        """See the function `brier_score`."""
        return self.brier_sum / float(self.per_class.weight.sum())

    @property
    def sharpness(self) -> float:
        """See the function `sharpness`."""
        return self.sharpness_sum / float(self.per_class.weight.sum())

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and dicts for JSON; NaN and infinity become None."""
        scalars = ("balanced_error", "error", "ece", "classwise_ece")
        scores = ("log_loss", "brier_score", "sharpness")
        return {
            "num_examples": self.num_examples,
            "num_classes": self.per_class.num_classes,
            "missing_classes": self.missing_classes.tolist(),
            **{name: _plain(getattr(self, name)) for name in (*scalars, *scores)},
            "zero_probability": self.zero_probability,
            "groups": None if self.groups is None else self.groups.to_dict(),
            "per_class": self.per_class.to_dict(),
            "reliability": self.reliability.to_dict(),
            "classwise_ece_per_class": _plain(self.classwise.ece_per_class),
            "confusion": None if self.confusion is None else self.confusion.tolist(),
        }

    def __repr__(self) -> str:
        return (
            f"Evaluation(balanced_error={self.balanced_error:.6g}, error={self.error:.6g}, "
            f"ece={self.ece:.6g}, log_loss={self.log_loss:.6g}, examples={self.num_examples}, "
            f"classes={self.per_class.num_classes}, missing={len(self.missing_classes)})"
        )


def _ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    """part / whole, NaN where there is nothing to divide by."""
    nothing = np.full(np.shape(whole), np.nan)
    return np.asarray(np.divide(part, whole, out=nothing, where=whole > 0), dtype=np.float64)


def _plain(value: Any) -> Any:
    """Floats and nested lists as JSON has them: no NaN, no infinity."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
