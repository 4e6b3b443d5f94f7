"""Labels or counts in, ClassPrior out: how often each class occurs.

Everything else in this package takes its class frequencies from here, as one
immutable object, so that counts, probabilities and logs can't be mixed up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from longtail import _checks
from longtail._checks import FloatArray, InputError, IntArray

GROUPS = ("many", "medium", "few")

# Every prior there is by its id. Some versions of torch.compile, 2.11 among them, hand no object of
# ours to a function whose result they take for constant, but hand it a number.
LIVING: WeakValueDictionary[int, ClassPrior] = WeakValueDictionary()


@dataclass(frozen=True, eq=False, repr=False)
class ClassPrior:
    """Class frequencies π of the data that a model was trained on (or is to be judged by).

    Make one with `from_labels`, `from_counts`, `from_weights`, `from_probs` or `uniform`.

    Attributes:
        probs: π, shape (num_classes,), float64, positive, sums to 1.
        counts: examples per class before smoothing (fractional after
            `from_weights`), or None if only probabilities were given.

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

    def __post_init__(self) -> None:
        # Counts passed as `probs` would make wrong losses without a word. What is kept is a copy,
        # so that the caller's own array stays writable, and not normalised again: `probs` read
        # back from a record are the same to the bit.
        caller = "ClassPrior"
        arrays = {"probs": _checks.distribution(self.probs, caller=caller)}
        if self.counts is not None:
            arrays["counts"] = _checks.totals(self.counts, len(arrays["probs"]), caller=caller)
        for name, array in arrays.items():
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        LIVING[id(self)] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.probs, self.counts)  # a copy is made as any other, and so listed

    @classmethod
    def from_labels(
        cls, labels: Any, *, num_classes: int | None = None, smoothing: float = 0.0
    ) -> ClassPrior:
        """Prior of the given integer labels.

        Args:
            labels: shape (examples,), integers in 0 .. num_classes - 1; a list, NumPy
                array, torch tensor or pandas Series.
            num_classes: how many classes the model has, if more than the largest label + 1. Without
                it, a largest label far above the number of examples is refused as an id.
            smoothing: added to every count (1.0 is Laplace's rule), see `from_counts`.

        Returns:
            The ClassPrior.

        Examples:
            >>> ClassPrior.from_labels([0, 0, 0, 1]).probs
            array([0.75, 0.25])
        """
        caller = "ClassPrior.from_labels"
        labels = _checks.labels(labels, caller=caller, name="labels", num_classes=num_classes)
        if num_classes is None:
            _refuse_ids(labels, smoothing=smoothing, caller=caller)
        counts = np.bincount(labels, minlength=num_classes or 0)
        from_one = not counts[0] and counts[1:].all()
        return cls._from_totals(
            counts,
            smoothing=smoothing,
            caller=caller,
            otherwise="; if the labels count from 1, subtract 1 from them" if from_one else "",
        )

    @classmethod
    def from_counts(cls, counts: Any, *, smoothing: float = 0.0) -> ClassPrior:
        """Prior of the given numbers of examples: π_y = (n_y + s) / Σ (n + s).

        Args:
            counts: shape (num_classes,), whole numbers, in the order of the logits' columns; or a
                dict, Counter or pandas Series (`value_counts()`) by class number 0 .. K − 1, in
                any order. One by name is refused: `counts.reindex(classes).to_numpy()` orders it.
            smoothing: s ≥ 0, added to every count; needed if a class has no examples.

        Returns:
            The ClassPrior; its `counts` are those given, unsmoothed.

        Examples:
            >>> ClassPrior.from_counts([9, 0], smoothing=1.0).probs
            array([0.90909091, 0.09090909])
            >>> from collections import Counter
            >>> ClassPrior.from_counts(Counter([1, 1, 1, 0])).probs
            array([0.25, 0.75])
        """
        caller = "ClassPrior.from_counts"
        return cls._from_totals(
            _checks.counts(counts, caller=caller), smoothing=smoothing, caller=caller
        )

    @classmethod
    def from_weights(cls, weights: Any, *, smoothing: float = 0.0) -> ClassPrior:
        """Prior of fractional class totals, such as summed sample weights.

        Args:
            weights: shape (num_classes,), non-negative, or by class number as in `from_counts`.
            smoothing: as in `from_counts`.

        Returns:
            The ClassPrior; its `counts` are the weights.

        Examples:
            >>> ClassPrior.from_weights([1.5, 0.5]).probs
            array([0.75, 0.25])
        """
        caller = "ClassPrior.from_weights"
        return cls._from_totals(
            _checks.weights(weights, caller=caller), smoothing=smoothing, caller=caller
        )

    @classmethod
    def from_probs(cls, probs: Any) -> ClassPrior:
        """Prior given as probabilities, one per class, all positive, summing to 1.

        Args:
            probs: shape (num_classes,), or by class number as in `from_counts`.

        Returns:
            The ClassPrior; its `counts` are None.

        Examples:
            >>> ClassPrior.from_probs([0.8, 0.2]).imbalance_ratio
            4.0
        """
        probs = _checks.distribution(probs, caller="ClassPrior.from_probs")
        return cls(probs=probs / probs.sum())

    @classmethod
    def uniform(cls, num_classes: int) -> ClassPrior:
        """Every class equally likely: the target that the balanced error means.

        Examples:
            >>> ClassPrior.uniform(4).probs
            array([0.25, 0.25, 0.25, 0.25])
        """
        if isinstance(num_classes, bool) or int(num_classes) != num_classes or num_classes < 1:
            raise InputError(
                f"ClassPrior.uniform: `num_classes` must be a whole number above zero; "
                f"got {num_classes!r}."
            )
        return cls.from_probs(np.full(int(num_classes), 1.0 / int(num_classes)))

    @classmethod
    def _from_totals(
        cls, totals: FloatArray | IntArray, *, smoothing: float, caller: str, otherwise: str = ""
    ) -> ClassPrior:
        smoothing = _checks.tau(smoothing, caller, name="smoothing")
        if smoothing < 0:
            raise InputError(f"{caller}: `smoothing` must not be negative; got {smoothing:g}.")
        smoothed = totals + smoothing
        empty = np.flatnonzero(smoothed == 0)
        if len(empty):
            raise InputError(
                f"{caller}: class(es) {_checks.listing(empty)} have no examples, so log π is "
                f"infinite; pass smoothing=1.0 to count one more example of every class"
                f"{otherwise}."
            )
        with np.errstate(over="ignore"):
            total = smoothed.sum()
        probs = smoothed / total
        lost = np.flatnonzero(probs == 0)
        if len(lost):
            raise InputError(
                f"{caller}: class(es) {_checks.listing(lost)} are so small a part of the total, "
                f"{total:g}, that π is 0 in float64 and log π infinite; bring the totals to one "
                f"unit, no larger than 1e300, or leave such classes out of the problem."
            )
        return cls(probs=probs, counts=totals)

    @cached_property
    def log_probs(self) -> FloatArray:
        """log π, shape (num_classes,)."""
        log_probs = np.log(self.probs)
        log_probs.setflags(write=False)
        return log_probs

    @property
    def num_classes(self) -> int:
        """L, the number of classes."""
        return len(self.probs)

    @property
    def sample(self) -> IntArray | None:
        """The counts where they are numbers of examples, so that chance has made them.

        None for a prior without counts, and for sums of weights, whose scale says nothing.

        Examples:
            >>> ClassPrior.from_counts([9, 1]).sample
            array([9, 1])
            >>> ClassPrior.from_weights([9.0, 1.0]).sample is None
            True
        """
        if self.counts is None or self.counts.dtype.kind != "i":
            return None
        return np.asarray(self.counts, dtype=np.int64)

    @property
    def imbalance_ratio(self) -> float:
        """Most frequent over least frequent class, at least 1."""
        return float(self.probs.max() / self.probs.min())

    def groups(self, *, many: float = 100, few: float = 20) -> dict[str, IntArray]:
        """Classes by their number of training examples: above `many`, between, below `few`.

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
        counts = self._require_counts("ClassPrior.groups")
        if few > many:
            raise InputError(
                f"ClassPrior.groups: `few` must not exceed `many`; got few={few}, many={many}."
            )
        is_many, is_few = counts > many, counts < few
        members = (is_many, ~is_many & ~is_few, is_few)
        return {
            name: np.flatnonzero(m).astype(np.int64)
            for name, m in zip(GROUPS, members, strict=True)
        }

    def effective_numbers(self, *, beta: float) -> FloatArray:
        """Effective number of examples per class, (1 − β^n) / (1 − β) (Cui et al. 2019).

        Args:
            beta: β in [0, 1); 0 gives 1 for every class, and β → 1 gives the counts.

        Returns:
            Shape (num_classes,).

        Examples:
            >>> ClassPrior.from_counts([1, 1000]).effective_numbers(beta=0.99).round(3)
            array([ 1.   , 99.996])
        """
        caller = "ClassPrior.effective_numbers"
        beta = _checks.fraction(beta, caller, name="beta", below_one=True)
        counts = self._require_counts(caller)
        if np.any(counts == 0):
            raise InputError(
                f"{caller}: class(es) {_checks.listing(np.flatnonzero(counts == 0))} have no "
                f"examples, so their effective number is 0; merge or drop them."
            )
        if beta == 0.0:
            return np.ones(self.num_classes)
        # 1 − β^n cancels for β near 1; expm1 keeps every digit.
        return np.asarray(np.expm1(counts * np.log(beta)) / (beta - 1.0))

    def _require_counts(self, caller: str) -> FloatArray | IntArray:
        if self.counts is None:
            raise InputError(
                f"{caller} needs numbers of examples, but this ClassPrior was made from "
                f"probabilities; make it with ClassPrior.from_counts or .from_labels."
            )
        return self.counts

    @staticmethod
    def _advice_on_width(num_classes: int, num_columns: int, shape: tuple[int, ...] | None) -> str:
        """What to do about logits that have not one column for each class of a prior."""
        one_score = num_columns == 1 or (shape is not None and len(shape) == 1)
        if num_classes == 2 and one_score:
            return (
                "of one score d for two classes pass two columns, -d / 2 and d / 2, as "
                "numpy.c_[-d / 2, d / 2] makes them"
            )
        if shape is not None and len(shape) > 2:
            if shape[-1] == num_columns and shape[1] == num_classes:
                return "the classes must be the last axis: moveaxis(logits, 1, -1)"
            if shape[1] == num_columns and shape[-1] == num_classes:
                return "the classes must be the second axis: moveaxis(logits, -1, 1)"
        if num_classes < num_columns:
            return (
                f"pass num_classes={num_columns} to ClassPrior.from_labels if a class has no "
                f"examples"
            )
        return "there must be one class for each column, in the same order"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClassPrior) and np.array_equal(self.probs, other.probs)

    def __hash__(self) -> int:
        return hash(self.probs.tobytes())

    def __repr__(self) -> str:
        shown, what = (self.probs, "probs") if self.counts is None else (self.counts, "counts")
        first, last = (shown, shown[:0]) if len(shown) <= 8 else (shown[:4], shown[-2:])
        texts = [f"{v:.6g}" for v in first]
        if len(last):
            texts += ["…", *(f"{v:.6g}" for v in last)]
        return (
            f"ClassPrior(num_classes={self.num_classes}, "
            f"imbalance_ratio={self.imbalance_ratio:.6g}, {what}=[{', '.join(texts)}])"
        )


def _refuse_ids(labels: IntArray, *, smoothing: float, caller: str) -> None:
    """Refuse what can't be class numbers before memory for every number up to it is asked for.

    Without smoothing, more classes than examples are refused in any case; with it they may be
    meant, so that only a number of classes that nobody has is taken for ids.
    """
    highest = int(labels.max())
    if highest < max(10 * len(labels), 100_000_000 if smoothing else 100_000):
        return
    raise InputError(
        f"{caller}: `labels` must be class numbers 0 .. num_classes - 1, but {highest} occurs "
        f"among {len(labels)} examples, so they look like ids; number them as one numbers names, "
        f"{_checks.BY_ONE_LIST}. If there are that many classes, pass num_classes={highest + 1} "
        f"and smoothing=1.0."
    )
