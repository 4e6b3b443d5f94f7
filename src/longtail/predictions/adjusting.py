"""Saved predictions and a prior in; out: tau, and what it is worth on examples that did not
choose it.

One pass finds each example's interval of tau (`passes`). All else is masks over these: the part
that chooses, the part that judges, folds that do both in turn. Counting and confidence intervals
are in `estimates`, the result in `result`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from longtail import _checks, posthoc
from longtail._checks import FloatArray, InputError, IntArray
from longtail.predictions.base import Predictions, hinting
from longtail.predictions.estimates import Tally
from longtail.predictions.passes import (
    Progress,
    collect_target,
    default_workers,
    in_order,
    learnt_prior,
    tau_intervals,
)
from longtail.predictions.result import AdjustResult
from longtail.priors import ClassPrior
from longtail.tuning import TauIntervals, tune_from_intervals
from longtail.tuning._intervals import refuse_nothing_to_tune

Missing = Literal["error", "skip"]
BoolArray = NDArray[np.bool_]

DEFAULT_FOLDS = 5


def adjust_predictions(
    predictions: Predictions,
    prior: ClassPrior | None,
    *,
    tau: float | None = None,
    tune_on: float | None = None,
    folds: int | None = None,
    target_prior: ClassPrior | None = None,
    effective: bool = False,
    missing: Missing = "error",
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
    caller = "adjust_predictions"
    _check_priors(predictions, prior, target_prior, effective, caller)
    _checks.choice(missing, ("error", "skip"), caller, name="missing")
    tau = None if tau is None else _checks.tau(tau, caller)
    protocol, amount = _protocol(tau, tune_on, folds, effective, caller)
    settings: dict[str, Any] = {
        "bounds": bounds,
        "confidence": _checks.fraction(confidence, caller, name="confidence", below_one=True),
        "n_bootstrap": n_bootstrap,
        "random_state": _checks.whole(random_state, caller, name="random_state", at_least=0),
    }
    found: dict[str, Any] = {
        "target_prior": target_prior,
        "effective": effective,
        "level": settings["confidence"],
        "many": many,
        "few": few,
    }
    if not predictions.labelled:
        _refuse_tuning(predictions, tune_on, folds)
        if effective or prior is None:
            prior = learnt_prior(predictions, prior, None)
        found |= {"protocol": "unlabelled", "tau": 1.0 if tau is None else tau}
        return AdjustResult(predictions, prior, **found)
    if tau is None and prior is not None and not effective:
        refuse_nothing_to_tune(posthoc.log_ratio(prior, target_prior, None, caller=caller), caller)
    workers = _checks.whole(workers or default_workers(), caller, name="workers")
    source = _Source(predictions, prior, target_prior, effective, workers, progress)
    needed = 1 if protocol == "given" else 2
    kept = _judgeable(predictions, source.target, needed, missing, effective=effective)
    splits = _splits(source.target, kept, protocol, amount, settings["random_state"])
    chosen_on = _union(tune for tune, _ in splits)
    tuning, fold_taus = None, np.empty(0)
    if tau is None:
        tuning = tune_from_intervals(source.intervals(chosen_on, kept), **settings)
        tau = tuning.tau
        if protocol == "cross-fit":
            fold_taus = _fold_taus(splits, source, kept, bounds, workers)
    left_out = np.setdiff1d(np.arange(predictions.num_classes), kept)
    taus = fold_taus if len(fold_taus) else np.full(len(splits), tau)
    return AdjustResult(
        predictions,
        source.prior(chosen_on),
        tau=tau,
        protocol=protocol,
        tuning=tuning,
        fold_taus=fold_taus,
        num_tuned=0 if tuning is None else int(tuning.counts.sum()),
        tally=_judge(splits, taus, source),
        intervals=source.intervals(_union(judge for _, judge in splits), kept),
        left_out=left_out,
        num_left_out=int(np.isin(source.target, left_out).sum()),
        **found,
    )


class _Source:
    """Intervals of tau under the prior that fits the examples which may choose it."""

    def __init__(
        self,
        predictions: Predictions,
        prior: ClassPrior | None,
        target_prior: ClassPrior | None,
        effective: bool,
        workers: int,
        progress: Progress | None,
    ) -> None:
        self.predictions, self._prior, self.effective = predictions, prior, effective
        self._found: dict[bytes, tuple[ClassPrior, TauIntervals]] = {}
        self._settings: dict[str, Any] = {
            "target_prior": target_prior,
            "workers": workers,
            "progress": progress,
        }
        if effective or prior is None:
            self.target = collect_target(predictions)
        else:
            parts = tau_intervals(predictions, prior, **self._settings)
            self._found[b""] = prior, parts
            self.target = parts.target

    def prior(self, rows: BoolArray) -> ClassPrior:
        """The prior as known to these rows."""
        return self._under(rows)[0]

    def all_intervals(self, rows: BoolArray) -> TauIntervals:
        """The intervals of all examples, under the prior as known to these rows."""
        return self._under(rows)[1]

    def intervals(self, rows: BoolArray, kept: IntArray) -> TauIntervals:
        """The intervals of these examples alone, with no other classes than the kept ones."""
        parts = self.all_intervals(rows)
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

    def _under(self, rows: BoolArray) -> tuple[ClassPrior, TauIntervals]:
        key = np.packbits(rows).tobytes() if self.effective else b""
        if key not in self._found:
            prior = self._learnt(rows)
            self._found[key] = prior, tau_intervals(self.predictions, prior, **self._settings)
        return self._found[key]

    def _learnt(self, rows: BoolArray) -> ClassPrior:
        """The model's mean prediction over these rows, mixed like the training data."""
        weight = rows.astype(np.float64)
        if self._prior is not None:
            counts = np.bincount(self.target[rows], minlength=self.predictions.num_classes)
            weight *= (self._prior.probs / np.maximum(counts, 1))[self.target]
        return learnt_prior(self.predictions, self._prior, weight)


def _check_priors(
    predictions: Predictions,
    prior: ClassPrior | None,
    target_prior: ClassPrior | None,
    effective: bool,
    caller: str,
) -> None:
    width = predictions.num_classes
    if prior is not None:
        with hinting(predictions.hint):
            _checks.prior(prior, caller, num_classes=width)
    elif not effective:
        raise InputError(
            f"{caller}: `prior` must be the ClassPrior of the training data, unless "
            f"effective=True; got None."
        )
    if target_prior is not None:
        _checks.prior(target_prior, caller, num_classes=width, name="target_prior")


def _protocol(
    tau: float | None, tune_on: float | None, folds: int | None, effective: bool, caller: str
) -> tuple[str, float]:
    """How the result is kept honest, with the fraction or the number of folds."""
    if tune_on is not None and folds is not None:
        raise InputError(f"{caller}: give `tune_on` or `folds`, not both.")
    if tau is not None and not effective:
        if tune_on is not None or folds is not None:
            raise InputError(
                f"{caller}: with a given `tau` there is nothing to choose; leave `tune_on` and "
                f"`folds` out."
            )
        return "given", 0.0
    if tune_on is None:
        folds = DEFAULT_FOLDS if folds is None else folds
        return "cross-fit", _checks.whole(folds, caller, name="folds", at_least=2)
    fraction = _checks.fraction(tune_on, caller, name="tune_on", below_one=True)
    if fraction == 0:
        raise InputError(f"{caller}: `tune_on` must be above zero; got 0.")
    return "split", fraction


def _refuse_tuning(predictions: Predictions, tune_on: float | None, folds: int | None) -> None:
    if tune_on is not None or folds is not None:
        raise InputError(
            f"{predictions.name} has no labels, so tau can't be chosen on it; name them with "
            f"--labels, or give --tau (default 1)."
        )


def _judgeable(
    predictions: Predictions, target: IntArray, needed: int, missing: Missing, *, effective: bool
) -> IntArray:
    """The classes with labelled examples enough, in the open about the others."""
    counts = np.bincount(target, minlength=predictions.num_classes)
    short = np.flatnonzero(counts < needed)
    kept = np.flatnonzero(counts >= needed)
    if len(short) and missing == "error":
        listed = _checks.listing(
            (f"{predictions.label(int(k))} ({counts[k]})" for k in short), most=6
        )
        why = (
            "a class without examples has no error"
            if needed == 1
            else "one must choose tau and another judge it"
        )
        # It needs one example of each class, and two where the prior is still found on some.
        given = needed > 1 and counts.min() > 0 and not effective
        instead = "give --tau 1, which needs no choice, " if given else ""
        examples = "example" if needed == 1 else "examples"
        raise InputError(
            f"{predictions.name}: each class needs at least {needed} labelled {examples} ({why}), "
            f"but {len(short)} of {len(counts)} classes have fewer: {listed}; label more, "
            f"{instead}or leave these classes out with --missing skip (missing='skip')."
        )
    if len(kept) < 2:
        raise InputError(
            f"{predictions.name}: only {len(kept)} of {len(counts)} classes has labelled "
            f"examples enough; the balanced error compares at least two."
        )
    return kept


def _splits(
    target: IntArray, kept: IntArray, protocol: str, amount: float, seed: int
) -> list[tuple[BoolArray, BoolArray]]:
    """Pairs of examples that choose tau and examples that judge it, each class in both."""
    rows = np.ones(len(target), dtype=bool)
    if len(kept) <= target.max():
        rows = np.isin(target, kept)
    if protocol == "given":
        return [(rows, rows)]
    order, rank = shuffled_by_class(target, seed)
    if protocol == "cross-fit":
        # Consecutive places go to different folds, so each class of two or more is in several.
        fold = np.empty(len(target), np.int64)
        fold[order] = np.arange(len(target)) % int(amount)
        used = np.unique(fold[rows])
        return [(rows & (fold != k), rows & (fold == k)) for k in used]
    counts = np.bincount(target)
    take = np.clip(np.rint(amount * counts), 1, np.maximum(counts - 1, 1))
    tune = np.empty(len(target), dtype=bool)
    tune[order] = rank < take[target[order]]
    return [(rows & tune, rows & ~tune)]


def shuffled_by_class(target: IntArray, seed: int) -> tuple[IntArray, IntArray]:
    """Examples class by class, shuffled within each, and the rank of each in its class.

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


def _fold_taus(
    splits: list[tuple[BoolArray, BoolArray]],
    source: _Source,
    kept: IntArray,
    bounds: tuple[float, float],
    workers: int,
) -> FloatArray:
    """The tau that each fold is judged with: that of all others."""

    def choose(split: tuple[BoolArray, BoolArray]) -> float:
        parts = source.intervals(split[0], kept)
        return tune_from_intervals(parts, bounds=bounds, n_bootstrap=0).tau

    # With a prior for each fold every choice is a pass over the file, threaded by itself.
    return np.array(list(in_order(choose, splits, workers=1 if source.effective else workers)))


def _judge(splits: list[tuple[BoolArray, BoolArray]], taus: FloatArray, source: _Source) -> Tally:
    """Count who was right before and after, each example in the split that judges it."""
    judged = _union(judge for _, judge in splits)
    before, after = np.zeros((2, len(judged)), dtype=bool)
    for (tune, judge), tau in zip(splits, taus, strict=True):
        parts = source.all_intervals(tune)
        lower, upper = parts.lower[judge], parts.upper[judge]
        before[judge] = (lower <= 0.0) & (upper > 0.0)
        after[judge] = (lower <= tau) & (tau < upper)
    return Tally.of(
        source.target[judged], before[judged], after[judged], source.predictions.num_classes
    )
