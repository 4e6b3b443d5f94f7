"""Choice of tau for saved predictions, and its worth on examples that did not choose it.

One pass finds each example's interval of tau (`passes`). All else is masks over these: the part
that chooses, the part that judges, folds that do both in turn.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail import _checks, posthoc
from longtail._checks import FloatArray, InputError, IntArray
from longtail.predictions.estimates import Change, Tally
from longtail.predictions.files import Predictions
from longtail.predictions.passes import (
    Progress,
    collect_target,
    default_workers,
    in_order,
    learnt_prior,
    tau_intervals,
    write_adjusted,
)
from longtail.priors import GROUPS, ClassPrior
from longtail.tuning import TauCurve, TauIntervals, TauResult, tune_from_intervals

BoolArray = NDArray[np.bool_]
Split = tuple[BoolArray, BoolArray]
"""The examples that choose tau, and those that judge it."""

DEFAULT_FOLDS = 5


class Written(NamedTuple):
    """What `AdjustResult.write` did: the files, rows whose predicted label changed, all rows."""

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
        tau: what `write` applies.
        protocol: "split": tau was chosen on one part and judged on the other. "cross-fit": each
            fold was judged with the tau of all others, and `tau` is of all together. "given":
            nothing was chosen. "unlabelled": nothing could be judged.
        effective: True if `prior` is the one that the model has learnt.
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
        """Number of examples that the errors were counted on."""
        return 0 if self.tally is None else int(self.tally.counts.sum())

    @cached_property
    def judged_curve(self) -> TauCurve:
        """Error of the judged examples as a function of tau; its minimum is an oracle's.

        By position its classes are those that were not left out.
        """
        self._judged()
        assert self.intervals is not None  # is there whenever examples were judged
        bounds = (0.0, 4.0) if self.tuning is None else self.tuning.bounds
        return TauCurve(self.intervals, bounds=bounds)

    @property
    def balanced(self) -> Change:
        """Balanced error: the mean of the classes' errors."""
        return self._change(np.ones(self.prior.num_classes))

    @property
    def expected(self) -> Change | None:
        """Error under the target prior, Σ_y q_y error_y; None if that is the balanced one."""
        return None if self.target_prior is None else self._change(self.target_prior.probs)

    @property
    def overall(self) -> Change:
        """Plain error: the share of wrong examples, classes as they come."""
        return self._change(self._judged().counts.astype(np.float64))

    @property
    def groups(self) -> dict[str, Change]:
        """Mean error of the classes with many, a medium number of, and few training examples.

        Only groups with judged classes; empty if the training counts are not known.
        """
        if self.prior.counts is None:
            return {}
        judged, found = self._judged().counts > 0, {}
        for name, members in self.prior.groups(many=self.many, few=self.few).items():
            weight = np.zeros(self.prior.num_classes)
            weight[members] = 1.0
            if np.any(judged[members]):
                found[name] = self._change(weight)
        return {name: found[name] for name in GROUPS if name in found}

    def of_class(self, index: int) -> Change:
        """Return the error of one class."""
        return self._change(np.eye(1, self.prior.num_classes, index)[0])

    def most_changed(self, number: int = 5) -> tuple[list[int], list[int]]:
        """Return the classes whose error fell most, and those whose error rose most.

        Args:
            number: at most this many of each.

        Returns:
            Class indices, the greatest change first; among equals the class with more judged
            examples.
        """
        tally = self._judged()
        change = (tally.broken - tally.fixed) / np.maximum(tally.counts, 1)
        falling = np.lexsort((-tally.counts, change))
        rising = np.lexsort((-tally.counts, -change))
        better = [int(k) for k in falling if change[k] < 0][:number]
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
            force: replace a file of that name.
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
        """Return plain numbers, lists and dicts for JSON."""
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
        if self.tally is None:
            return out
        tally, expected = self.tally, self.expected
        return out | {
            "balanced_error": self.balanced.to_dict(),
            "expected_error": None if expected is None else expected.to_dict(),
            "error": self.overall.to_dict(),
            "groups": {name: change.to_dict() for name, change in self.groups.items()},
            "per_class": {
                "judged": tally.counts.tolist(),
                "wrong_before": tally.wrong.tolist(),
                "wrong_after": (tally.wrong - tally.fixed + tally.broken).tolist(),
                "fixed": tally.fixed.tolist(),
                "broken": tally.broken.tolist(),
            },
        }

    def _judged(self) -> Tally:
        if self.tally is None:
            raise InputError(f"{self.predictions.name} has no labels, so its error is not known.")
        return self.tally

    def _change(self, weight: FloatArray) -> Change:
        return self._judged().change(weight, level=self.level)


def check_output(predictions: Predictions, path: Path, *, force: bool) -> None:
    """Refuse to replace a file unless told to, and the source in any case."""
    source = Path(predictions.name)
    for out in predictions.outputs(path):
        if out.exists() and source.exists() and out.samefile(source):
            raise InputError(
                f"{out} is the file that is being adjusted; choose another name, or a second run "
                f"would adjust it twice."
            )
        if out.exists() and not force:
            raise InputError(f"{out} exists; pass --force (force=True) to replace it.")
    if source.is_file() and path.suffix != source.suffix:
        raise InputError(
            f"{path} must end in {source.suffix}: adjusted predictions keep the format of {source}."
        )


def adjust_predictions(
    predictions: Predictions,
    prior: ClassPrior | None,
    *,
    tau: float | None = None,
    tune_on: float | None = None,
    folds: int | None = None,
    target_prior: ClassPrior | None = None,
    effective: bool = False,
    missing: Literal["error", "skip"] = "error",
    bounds: tuple[float, float] = (0.0, 4.0),
    confidence: float = 0.95,
    n_bootstrap: int = 1000,
    many: float = 100,
    few: float = 20,
    random_state: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> AdjustResult:
    """Choose tau for saved predictions, and measure what it is worth on other examples.

    Without labels there is nothing to choose by or to measure: tau is the given one, or 1.

    Args:
        predictions: from `open_predictions` or `from_arrays`.
        prior: π, of the data that the model was trained on. None only with `effective`; then
            there are no groups.
        tau: take this one; all labelled examples judge it.
        tune_on: choose tau on this fraction of each class's examples and judge it on the others.
        folds: cross-fit instead: judge each fold with the tau of all others, and choose the final
            tau on all examples. The default, with 5 folds, where neither `tau` nor `tune_on` is
            given.
        target_prior: q, if the model will meet other class frequencies than uniform ones.
        effective: adjust by the prior that the model has learnt, its mean predicted probability,
            instead of by `prior`. Rows are weighted so that labelled classes occur as often as in
            `prior`; without labels or `prior` they count as they come. It is found on the
            examples that choose tau, which takes one more pass over the file per fold.
        missing: what to do with a class whose labelled examples are too few: one is needed to be
            judged, two to be judged and tuned. "error" refuses and names them; "skip" leaves them
            out of every mean, and lists them in `left_out`.
        bounds: where to search for tau.
        confidence: level of all intervals.
        n_bootstrap: as in `tune_tau`, for the interval of tau.
        many: classes with more training examples are "many".
        few: classes with fewer are "few".
        random_state: seed of the split, or the folds, and of resampling.
        workers: threads; None for as many as there are processors, up to four. The result does
            not depend on it.
        progress: told (rows done, rows in all or 0, "").

    Returns:
        An AdjustResult: `.tau`, `.balanced`, `.groups`, `.write(path)` and more.

    Examples:
        >>> from longtail.predictions import from_arrays
        >>> prior = ClassPrior.from_counts([900, 90, 10])
        >>> target = np.repeat([0, 1, 2], 200)
        >>> noise = np.random.default_rng(0).normal(size=(600, 3))
        >>> saved = from_arrays(noise + 2.0 * np.eye(3)[target] + prior.log_probs, target,
        ...                     kind="logits")
        >>> result = adjust_predictions(saved, prior)
        >>> round(result.tau, 1), result.protocol
        (0.9, 'cross-fit')
        >>> change = result.balanced
        >>> round(change.before.value, 2), round(change.after.value, 2), change.beyond_noise
        (0.49, 0.15, True)
    """
    width = predictions.num_classes
    if prior is not None or not effective:
        _checks.prior(prior, num_classes=width)
    if target_prior is not None:
        _checks.prior(target_prior, num_classes=width, name="target_prior")
    _checks.choice(missing, ("error", "skip"), name="missing")
    tau = None if tau is None else _checks.tau(tau)
    protocol, amount = _protocol(tau, tune_on, folds, effective)
    level = _checks.fraction(confidence, name="confidence", below_one=True)
    seed = _checks.whole(random_state, name="random_state", at_least=0)
    workers = _checks.whole(workers or default_workers(), name="workers")
    found: dict[str, Any] = {"effective": effective, "level": level, "many": many, "few": few}
    if not predictions.labelled:
        if tune_on is not None or folds is not None:
            raise InputError(
                f"{predictions.name} has no labels, so tau can't be chosen on it; name them with "
                f"--labels, or give --tau (default 1)."
            )
        if effective or prior is None:
            prior = learnt_prior(predictions, prior, None)
        tau = 1.0 if tau is None else tau
        return AdjustResult(predictions, prior, target_prior, tau, "unlabelled", **found)

    if tau is None and prior is not None and not effective:
        refuse_nothing_to_tune(prior, target_prior)
    source = _Source(predictions, prior, target_prior, effective, workers, progress)
    needed = 1 if protocol == "given" else 2
    kept = _judgeable(predictions, source.target, needed, missing)
    splits = _splits(source.target, kept, protocol, amount, seed)
    chosen_on = _union(choose for choose, _ in splits)
    tuning, fold_taus = None, np.empty(0)
    if tau is None:
        tuning = tune_from_intervals(
            source.intervals(chosen_on, kept),
            bounds=bounds,
            confidence=level,
            n_bootstrap=n_bootstrap,
            random_state=seed,
        )
        tau = tuning.tau
        if protocol == "cross-fit":

            def choose(split: Split) -> float:
                return TauCurve(source.intervals(split[0], kept), bounds=bounds).minimizer()[0]

            # With a prior for each fold every choice is a pass over the file, itself threaded.
            found_taus = in_order(choose, splits, workers=1 if effective else workers)
            fold_taus = np.array(list(found_taus))
    taus = fold_taus if len(fold_taus) else np.full(len(splits), tau)
    left_out = np.setdiff1d(np.arange(width), kept)
    return AdjustResult(
        predictions,
        source.prior(chosen_on),
        target_prior,
        tau,
        protocol,
        tuning=tuning,
        fold_taus=fold_taus,
        num_tuned=0 if tuning is None else int(chosen_on.sum()),
        tally=_judge(splits, taus, source),
        intervals=source.intervals(_union(judge for _, judge in splits), kept),
        left_out=left_out,
        num_left_out=int(np.isin(source.target, left_out).sum()),
        **found,
    )


@dataclass(eq=False)
class _Source:
    """Intervals of tau under the prior that is known to the examples which choose it."""

    predictions: Predictions
    given: ClassPrior | None
    target_prior: ClassPrior | None
    effective: bool
    workers: int
    progress: Progress | None

    def __post_init__(self) -> None:
        self._found: dict[bytes, tuple[ClassPrior, TauIntervals]] = {}
        if self.effective:
            self.target = collect_target(self.predictions)
        else:
            self.target = self.under(np.ones(0, dtype=bool))[1].target

    def under(self, rows: BoolArray) -> tuple[ClassPrior, TauIntervals]:
        """Return the prior as known to these rows, and the intervals of all examples under it."""
        key = np.packbits(rows).tobytes() if self.effective else b""
        if key not in self._found:
            prior = self._learnt(rows) if self.effective else self.given
            assert prior is not None  # None is refused unless it is to be learnt
            parts = tau_intervals(
                self.predictions,
                prior,
                target_prior=self.target_prior,
                workers=self.workers,
                progress=self.progress,
            )
            self._found[key] = prior, parts
        return self._found[key]

    def prior(self, rows: BoolArray) -> ClassPrior:
        """Return the prior as known to these rows."""
        return self.under(rows)[0]

    def intervals(self, rows: BoolArray, kept: IntArray) -> TauIntervals:
        """Return the intervals of these rows alone, with no other classes than the kept ones."""
        parts = self.under(rows)[1]
        place = np.full(parts.num_classes, -1)
        place[kept] = np.arange(len(kept))
        importance = parts.importance[kept]
        return dataclasses.replace(
            parts,
            lower=parts.lower[rows],
            upper=parts.upper[rows],
            target=place[parts.target[rows]],
            num_classes=len(kept),
            importance=importance / importance.sum(),
        )

    def _learnt(self, rows: BoolArray) -> ClassPrior:
        """Return the model's mean prediction over these rows, mixed like the training data."""
        weight = rows.astype(np.float64)
        if self.given is not None:
            counts = np.bincount(self.target[rows], minlength=self.predictions.num_classes)
            weight *= (self.given.probs / np.maximum(counts, 1))[self.target]
        return learnt_prior(self.predictions, self.given, weight)


def refuse_nothing_to_tune(prior: ClassPrior, target_prior: ClassPrior | None = None) -> None:
    """Refuse to choose a tau where none changes any prediction."""
    if np.ptp(posthoc.adjustment(prior, target_prior=target_prior)) == 0:
        raise InputError(
            "the prior is uniform, or the very target prior, so no tau changes any prediction; if "
            "these are counts of held-out data, give those of the training data (--counts or "
            "--train-labels)."
        )


def _protocol(
    tau: float | None, tune_on: float | None, folds: int | None, effective: bool
) -> tuple[str, float]:
    """Return how tau is judged on examples that did not choose it: its name and the amount."""
    if tune_on is not None and folds is not None:
        raise InputError("give `tune_on` or `folds`, not both.")
    if tau is not None and not effective:  # a prior that is learnt is still judged on others
        if tune_on is not None or folds is not None:
            raise InputError(
                "with a given `tau` there is nothing to choose; leave `tune_on` and `folds` out."
            )
        return "given", 0.0
    if tune_on is None:
        folds = DEFAULT_FOLDS if folds is None else folds
        return "cross-fit", _checks.whole(folds, name="folds", at_least=2)
    fraction = _checks.fraction(tune_on, name="tune_on", below_one=True)
    return "split", _checks.positive(fraction, name="tune_on")


def _judgeable(predictions: Predictions, target: IntArray, needed: int, missing: str) -> IntArray:
    """Return the classes with enough labelled examples; refuse the others, or skip them."""
    counts = np.bincount(target, minlength=predictions.num_classes)
    short, kept = np.flatnonzero(counts < needed), np.flatnonzero(counts >= needed)
    if len(short) and missing == "error":
        listed = _checks.listing(
            (f"{predictions.label(int(k))} ({counts[k]})" for k in short), most=6
        )
        raise InputError(
            f"{predictions.name}: each class needs at least {needed} labelled example"
            f"{'' if needed == 1 else 's (one to choose tau and one to judge it)'}, but "
            f"{len(short)} of {len(counts)} classes have fewer: {listed}; label more, or leave "
            f"these classes out with --missing skip (missing='skip')."
        )
    if len(kept) < 2:
        raise InputError(
            f"{predictions.name}: fewer than two classes have enough labelled examples."
        )
    return kept


def _splits(
    target: IntArray, kept: IntArray, protocol: str, amount: float, seed: int
) -> list[Split]:
    """Return pairs of examples that choose tau and examples that judge it, each class in both."""
    rows = np.isin(target, kept)
    if protocol == "given":
        return [(rows, rows)]
    order, rank = shuffled_by_class(target, seed)
    if protocol == "cross-fit":
        # Consecutive places go to different folds, so each class of two or more is in several.
        fold = np.empty(len(target), np.int64)
        fold[order] = np.arange(len(target)) % int(amount)
        return [(rows & (fold != k), rows & (fold == k)) for k in np.unique(fold[rows])]
    counts = np.bincount(target)
    take = np.clip(np.rint(amount * counts), 1, np.maximum(counts - 1, 1))
    tune = np.empty(len(target), dtype=bool)
    tune[order] = rank < take[target[order]]
    return [(rows & tune, rows & ~tune)]


def shuffled_by_class(target: IntArray, seed: int) -> tuple[IntArray, IntArray]:
    """Return examples class by class, shuffled within each, and the rank of each in its class.

    Examples:
        >>> order, rank = shuffled_by_class(np.array([1, 0, 1, 0, 1]), 0)
        >>> sorted(order[:2].tolist()), sorted(order[2:].tolist()), rank.tolist()
        ([1, 3], [0, 2, 4], [0, 1, 0, 1, 2])
    """
    shuffle = np.random.default_rng(seed).permutation(len(target))
    small = target.astype(np.uint16) if target.max() < 1 << 16 else target  # radix sort
    order = shuffle[np.argsort(small[shuffle], kind="stable")]
    counts = np.bincount(target)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    return order, np.arange(len(target)) - first


def _union(masks: Any) -> BoolArray:
    return np.asarray(np.logical_or.reduce(list(masks)))


def _judge(splits: list[Split], taus: FloatArray, source: _Source) -> Tally:
    """Count who was right before and after, each example in the split that judges it."""
    judged = _union(judge for _, judge in splits)
    before, after = np.zeros((2, len(judged)), dtype=bool)
    for (tune, judge), tau in zip(splits, taus, strict=True):
        parts = source.under(tune)[1]
        lower, upper = parts.lower[judge], parts.upper[judge]
        before[judge] = (lower <= 0.0) & (upper > 0.0)
        after[judge] = (lower <= tau) & (tau < upper)
    return Tally.of(
        source.target[judged], before[judged], after[judged], source.predictions.num_classes
    )
