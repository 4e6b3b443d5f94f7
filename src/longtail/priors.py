"""Class frequencies of the training data, from labels, counts, weights or probabilities.

Everything else in this package takes them from here, as one immutable object, so that counts,
probabilities and logs can't be mixed up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from longtail import _checks
from longtail._checks import FloatArray, InputError, IntArray

GROUPS = ("many", "medium", "few")


@dataclass(frozen=True, eq=False, repr=False)
class ClassPrior:
    """Class frequencies π of the data that a model was trained on (or is to be judged by).

    Make one with `from_labels`, `from_counts`, `from_weights`, `from_probs` or `uniform`.

    Attributes:
        probs: π, shape (num_classes,), float64, positive, sums to 1.
        counts: examples per class before smoothing (fractional after
            `from_weights`), or None if only probabilities were given.
        log_probs: log π.
        num_classes: L, the number of classes.

    Examples:
        >>> prior = ClassPrior.from_counts([900, 90, 10])
        >>> prior
        ClassPrior(num_classes=3, imbalance_ratio=90, counts=[900, 90, 10])
        >>> prior.probs
        array([0.9 , 0.09, 0.01])
        >>> {name: classes.tolist() for name, classes in prior.groups().items()}
        {'many': [0], 'medium': [1], 'few': [2]}
    """

    probs: FloatArray
    counts: FloatArray | IntArray | None = None
    log_probs: FloatArray = field(init=False)
    num_classes: int = field(init=False)

    def __post_init__(self) -> None:
        # Copied, so that the caller's array stays writable; not normalised again, so that a prior
        # read back from a record is the same to the bit.
        probs, counts = _checks.distribution(self.probs), None
        if self.counts is not None:
            counts = np.array(_checks.totals(self.counts, name="counts", num_classes=len(probs)))
        self._keep(probs, counts)

    def _keep(self, probs: FloatArray, counts: FloatArray | IntArray | None) -> ClassPrior:
        for name, array in (("probs", probs), ("counts", counts), ("log_probs", np.log(probs))):
            if array is not None:
                array.setflags(write=False)
            object.__setattr__(self, name, array)
        object.__setattr__(self, "num_classes", len(probs))
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.probs, self.counts)  # so that copies are read-only, too

    @classmethod
    def from_labels(
        cls, labels: Any, *, num_classes: int | None = None, smoothing: float = 0.0
    ) -> ClassPrior:
        """Return the prior of the given labels.

        Args:
            labels: shape (examples,), integers in 0 .. num_classes - 1, of any array library; or
                strings, numbered in sorted order as in scikit-learn's `classes_`.
            num_classes: how many classes the model has, if more than the largest label + 1.
            smoothing: added to every count (1.0 is Laplace's rule), see `from_counts`.

        Examples:
            >>> ClassPrior.from_labels([0, 0, 0, 1]).probs
            array([0.75, 0.25])
            >>> ClassPrior.from_labels(["dog", "cat", "dog", "dog"]).probs
            array([0.25, 0.75])
        """
        labels = _checks.labels(labels, name="labels", num_classes=num_classes, names=True)
        counts = np.bincount(labels, minlength=num_classes or 0)
        from_one = not counts[0] and counts[1:].all()
        otherwise = "; if the labels count from 1, subtract 1 from them" if from_one else ""
        return cls._from_totals(counts, smoothing, otherwise)

    @classmethod
    def from_counts(cls, counts: Any, *, smoothing: float = 0.0) -> ClassPrior:
        """Return the prior of the given numbers of examples: π_y = (n_y + s) / Σ (n + s).

        Args:
            counts: shape (num_classes,), whole numbers, in the order of the logits' columns; or a
                dict, Counter or Series (`value_counts()`) by class number 0 .. K − 1.
            smoothing: s ≥ 0, needed if a class has no examples; `counts` stay unsmoothed.

        Examples:
            >>> ClassPrior.from_counts([9, 0], smoothing=1.0).probs
            array([0.90909091, 0.09090909])
            >>> from collections import Counter
            >>> ClassPrior.from_counts(Counter([1, 1, 1, 0])).probs
            array([0.25, 0.75])
        """
        return cls._from_totals(_checks.counts(counts), smoothing)

    @classmethod
    def from_weights(cls, weights: Any, *, smoothing: float = 0.0) -> ClassPrior:
        """Return the prior of fractional class totals, such as summed sample weights.

        Args:
            weights: shape (num_classes,), non-negative, or by class number as in `from_counts`.
            smoothing: as in `from_counts`.

        Examples:
            >>> ClassPrior.from_weights([1.5, 0.5]).probs
            array([0.75, 0.25])
        """
        return cls._from_totals(
            _checks.totals(weights, name="weights").astype(np.float64), smoothing
        )

    @classmethod
    def from_probs(cls, probs: Any) -> ClassPrior:
        """Return the prior of probabilities, one per class, all positive, summing to 1.

        Args:
            probs: shape (num_classes,), or by class number as in `from_counts`.

        Examples:
            >>> ClassPrior.from_probs([0.8, 0.2]).imbalance_ratio
            4.0
        """
        probs = _checks.distribution(probs)
        return cls.__new__(cls)._keep(probs / probs.sum(), None)

    @classmethod
    def uniform(cls, num_classes: int) -> ClassPrior:
        """Return equal probabilities, the target that the balanced error means.

        Examples:
            >>> ClassPrior.uniform(4).probs
            array([0.25, 0.25, 0.25, 0.25])
        """
        num_classes = _checks.whole(num_classes, name="num_classes")
        return cls.from_probs(np.full(num_classes, 1.0 / num_classes))

    @classmethod
    def _from_totals(
        cls, totals: FloatArray | IntArray, smoothing: float, otherwise: str = ""
    ) -> ClassPrior:
        smoothed = totals + _checks.not_negative(smoothing, name="smoothing")
        probs = smoothed / smoothed.sum()
        empty = np.flatnonzero(probs == 0)
        if len(empty):
            raise InputError(
                f"class(es) {_checks.listing(empty)} have no examples, so log π is infinite; pass "
                f"`smoothing=1.0` to count one more example of every class{otherwise}."
            )
        return cls.__new__(cls)._keep(probs, totals)

    @property
    def sample(self) -> IntArray | None:
        """The counts if they are numbers of examples, which vary by chance, else None."""
        if self.counts is None or self.counts.dtype.kind != "i":
            return None
        return np.asarray(self.counts, dtype=np.int64)

    @property
    def imbalance_ratio(self) -> float:
        """Most frequent over least frequent class, at least 1."""
        return float(self.probs.max() / self.probs.min())

    def groups(self, *, many: float = 100, few: float = 20) -> dict[str, IntArray]:
        """Return the classes by their number of training examples.

        Args:
            many: classes with more examples than this are "many".
            few: classes with fewer examples than this are "few"; both bounds are "medium".

        Returns:
            Class indices by group name, in the order many, medium, few; a group may be empty.

        Examples:
            >>> groups = ClassPrior.from_counts([101, 100, 20, 19]).groups()
            >>> {name: classes.tolist() for name, classes in groups.items()}
            {'many': [0], 'medium': [1, 2], 'few': [3]}
        """
        counts = self._require_counts()
        if not few <= many:  # or NaN
            raise InputError(f"`few` must not exceed `many`; got few={few}, many={many}.")
        is_many, is_few = counts > many, counts < few
        members = (is_many, ~is_many & ~is_few, is_few)
        return {name: np.flatnonzero(m) for name, m in zip(GROUPS, members, strict=True)}

    def effective_numbers(self, *, beta: float) -> FloatArray:
        """Return the effective numbers of examples, (1 − β^n) / (1 − β) (Cui et al. 2019).

        Args:
            beta: β in [0, 1); 0 gives 1 for every class, and β → 1 gives the counts.

        Examples:
            >>> ClassPrior.from_counts([1, 1000]).effective_numbers(beta=0.99).round(3)
            array([ 1.   , 99.996])
        """
        beta = _checks.fraction(beta, name="beta", below_one=True)
        counts = self._require_counts()
        if np.any(counts == 0):
            raise InputError(
                f"class(es) {_checks.listing(np.flatnonzero(counts == 0))} have no examples, so "
                f"their effective number is 0; merge or drop them."
            )
        if beta == 0.0:
            return np.ones(self.num_classes)
        # 1 − β^n cancels for β near 1; expm1 keeps every digit.
        return np.asarray(np.expm1(counts * np.log(beta)) / (beta - 1.0))

    def _require_counts(self) -> FloatArray | IntArray:
        if self.counts is None:
            raise InputError(
                "this needs numbers of examples, but the ClassPrior was made from probabilities; "
                "make it with ClassPrior.from_counts or .from_labels."
            )
        return self.counts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClassPrior) and np.array_equal(self.probs, other.probs)

    def __hash__(self) -> int:
        return hash(self.probs.tobytes())

    def __repr__(self) -> str:
        values, name = (self.probs, "probs") if self.counts is None else (self.counts, "counts")
        shown = [f"{v:.6g}" for v in (values if len(values) <= 8 else values[:4])]
        if len(values) > 8:
            shown += ["…", *(f"{v:.6g}" for v in values[-2:])]
        return (
            f"ClassPrior(num_classes={self.num_classes}, "
            f"imbalance_ratio={self.imbalance_ratio:.6g}, {name}=[{', '.join(shown)}])"
        )
