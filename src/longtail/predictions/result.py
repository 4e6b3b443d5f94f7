"""What adjusting saved predictions gives: tau, errors before and after, and the adjusted file.

How it comes about is in `adjusting`, counting and confidence intervals in `estimates`, and how
it reads in `report.adjusting`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from longtail._checks import FloatArray, InputError, IntArray
from longtail.predictions.base import Predictions
from longtail.predictions.estimates import Change, Tally
from longtail.predictions.passes import Progress, write_adjusted
from longtail.priors import GROUPS, ClassPrior
from longtail.tuning import TauCurve, TauIntervals, TauResult


class Written(NamedTuple):
    """What `AdjustResult.write` did.

    Attributes:
        paths: the files it made.
        changed: rows whose predicted label is another one now.
        rows: all rows.
    """

    paths: tuple[Path, ...]
    changed: int
    rows: int


@dataclass(frozen=True, eq=False)
class AdjustResult:
    """A tau for saved predictions, and the error before and after it.

    Attributes:
        predictions: what was read.
        prior: π that is divided out: of the training data, or as the model has learnt it.
        target_prior: q that is aimed at; None for all classes alike.
        effective: whether `prior` is the one that the model has learnt.
        tau: what `write` applies.
        protocol: how the result is honest. "split": tau was chosen on one part and judged on the
            other. "cross-fit": each fold was judged with the tau of all others, and `tau` is of
            all together. "given": nothing was chosen. "unlabelled": nothing could be judged.
        tuning: how `tau` was chosen, or None if it was given.
        fold_taus: of the folds, shape (folds,), or empty.
        num_tuned: examples that chose `tau`.
        tally: judged examples by class, or None without labels.
        left_out: classes with too few examples to be judged; they have no part in any mean.
        num_left_out: labelled examples of these classes.
        intervals: of the judged examples, without the classes left out; None without labels.
        level: of the confidence intervals.
        many: bound of the group "many".
        few: bound of the group "few".
    """

    predictions: Predictions
    prior: ClassPrior
    target_prior: ClassPrior | None
    tau: float
    protocol: str
    effective: bool = False
    tuning: TauResult | None = None
    fold_taus: FloatArray = dataclasses.field(default_factory=lambda: np.empty(0))
    num_tuned: int = 0
    tally: Tally | None = None
    left_out: IntArray = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))
    num_left_out: int = 0
    intervals: TauIntervals | None = None
    level: float = 0.95
    many: float = 100
    few: float = 20

    @property
    def num_judged(self) -> int:
        """How many examples the errors were counted on."""
        return 0 if self.tally is None else int(self.tally.counts.sum())

    @cached_property
    def judged_curve(self) -> TauCurve:
        """The error of the judged examples as a function of tau; its minimum is an oracle's.

        By position its classes are those that were not left out.
        """
        self._judged()
        assert self.intervals is not None  # is there whenever examples were judged
        bounds = (0.0, 4.0) if self.tuning is None else self.tuning.bounds
        return TauCurve(self.intervals, bounds=bounds)

    @property
    def balanced(self) -> Change:
        """The balanced error: the mean of the classes' errors."""
        return self._change(np.ones(self.prior.num_classes))

    @property
    def expected(self) -> Change | None:
        """The error under the target prior, Σ_y q_y error_y; None if that is the balanced one."""
        return None if self.target_prior is None else self._change(self.target_prior.probs)

    @property
    def overall(self) -> Change:
        """The plain error: the share of wrong examples, classes as they come."""
        return self._change(self._judged().counts.astype(np.float64))

    @property
    def groups(self) -> dict[str, Change]:
        """The mean error of the classes with many, a medium number of, and few training examples.

        Only groups with judged classes; empty if the training counts are not known.
        """
        if self.prior.counts is None:
            return {}
        judged = self._judged().counts > 0
        found = {}
        for name, members in self.prior.groups(many=self.many, few=self.few).items():
            weight = np.zeros(self.prior.num_classes)
            weight[members] = 1.0
            if np.any(judged[members]):
                found[name] = self._change(weight)
        return {name: found[name] for name in GROUPS if name in found}

    def of_class(self, index: int) -> Change:
        """The error of one class."""
        return self._change(np.eye(1, self.prior.num_classes, index)[0])

    def most_changed(self, number: int = 5) -> tuple[list[int], list[int]]:
        """The classes whose error fell most, and those whose error rose most.

        Args:
            number: at most this many of each.

        Returns:
            Class indices, the greatest change first; among equals the class with more judged
            examples.
        """
        tally = self._judged()
        counts = np.maximum(tally.counts, 1)
        change = (tally.broken - tally.fixed) / counts
        order = np.lexsort((-tally.counts, change))
        rising = np.lexsort((-tally.counts, -change))
        better = [int(k) for k in order if change[k] < 0][:number]
        worse = [int(k) for k in rising if change[k] > 0][:number]
        return better, worse

    def write(
        self, path: str | Path, *, force: bool = False, progress: Progress | None = None
    ) -> Written:
        """Write the adjusted predictions, in the format that they came in.

        Args:
            path: the new file. Beside the scores it has `predicted` and a mark with tau, by which
                it is not adjusted again; what else the source had is copied, but for other
                scores of the same classes (`predictions.left_out`). For .npy the predicted labels
                are a second file, NAME.predicted.npy, which is the mark as well.
            force: whether to replace a file of that name.
            progress: told (rows done, rows in all or 0, "").

        Returns:
            The paths and how many predictions changed.
        """
        path = Path(path)
        check_output(self.predictions, path, force=force)
        changed, rows = write_adjusted(
            self.predictions,
            path,
            self.prior,
            tau=self.tau,
            target_prior=self.target_prior,
            progress=progress,
        )
        return Written(self.predictions.outputs(path), changed, rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and dicts for JSON."""
        out: dict[str, Any] = {
            "file": self.predictions.name,
            "kind": self.predictions.kind,
            "num_classes": self.prior.num_classes,
            "class_names": self.predictions.class_names,
            "tau": self.tau,
            "protocol": self.protocol,
            "effective_prior": self.effective,
            "tuning": None if self.tuning is None else self.tuning.to_dict(),
            "fold_taus": self.fold_taus.tolist(),
            "num_tuned": self.num_tuned,
            "num_judged": self.num_judged,
            "prior": self.prior.probs.tolist(),
            "target_prior": None if self.target_prior is None else self.target_prior.probs.tolist(),
            "left_out": self.left_out.tolist(),
            "confidence_level": self.level,
        }
        if self.tally is not None:
            expected = self.expected
            out["balanced_error"] = self.balanced.to_dict()
            out["expected_error"] = None if expected is None else expected.to_dict()
            out["error"] = self.overall.to_dict()
            out["groups"] = {name: change.to_dict() for name, change in self.groups.items()}
            out["per_class"] = self._per_class()
        return out

    def _per_class(self) -> dict[str, Any]:
        tally = self._judged()
        return {
            "judged": tally.counts.tolist(),
            "wrong_before": tally.wrong.tolist(),
            "wrong_after": (tally.wrong - tally.fixed + tally.broken).tolist(),
            "fixed": tally.fixed.tolist(),
            "broken": tally.broken.tolist(),
        }

    def _judged(self) -> Tally:
        if self.tally is None:
            raise InputError(
                f"{self.predictions.name} has no labels, so there is no error to ask for."
            )
        return self.tally

    def _change(self, weight: FloatArray) -> Change:
        return self._judged().change(weight, level=self.level)


def check_output(predictions: Predictions, path: Path, *, force: bool) -> None:
    """Refuse to replace a file unless told to, and the source in any case."""
    for out in predictions.outputs(path):
        if out.exists() and Path(predictions.name).exists() and out.samefile(predictions.name):
            raise InputError(
                f"{out} is the file that is being adjusted; choose another name, or a second run "
                f"would adjust it twice."
            )
        if out.exists() and not force:
            raise InputError(f"{out} exists; pass --force (force=True) to replace it.")
    if path.suffix != Path(predictions.name).suffix and Path(predictions.name).is_file():
        raise InputError(
            f"{path} must end in {Path(predictions.name).suffix}: adjusted predictions keep the "
            f"format of {predictions.name}."
        )
