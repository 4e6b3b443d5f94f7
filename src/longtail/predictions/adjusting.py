"""Choice of tau for saved predictions, and the error before and after on other examples.

One pass finds each example's interval of tau (`passes`). The rest selects among these intervals:
a part that chooses and a part that judges, or folds that do both in turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail import _checks, posthoc
from longtail._checks import FloatArray, InputError, IntArray
from longtail.predictions.estimates import Change, Tally
from longtail.predictions.files import Adjusted, Block, Predictions
from longtail.predictions.passes import (
    WORKERS,
    Progress,
    all_labels,
    each_block,
    learnt_priors,
    tau_intervals,
    whole_logits,
)
from longtail.priors import ClassPrior
from longtail.tuning import (
    Criterion,
    Missing,
    TauCurve,
    TauIntervals,
    TauResult,
    tune_from_intervals,
    tune_tau,
)

BoolArray = NDArray[np.bool_]
Split = tuple[BoolArray, BoolArray]
"""The examples that choose tau, and those that judge it."""

DEFAULT_FOLDS = 5
NOTHING_TO_TUNE = (
    "the prior is uniform, or the very target prior, so no tau changes any prediction; if these "
    "are counts of held-out data, give those of the training data."
)


class Written(NamedTuple):
    """Result of `AdjustResult.write`: the file, rows whose predicted label changed, all rows."""

    paths: tuple[Path]
    changed: int
    rows: int


@dataclass(frozen=True, eq=False, kw_only=True)
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
        level: of the confidence intervals.
        tuning: how `tau` was chosen, or None if it was given.
        fold_taus: of the folds, shape (folds,), or empty.
        left_out: classes with too few examples to be judged; they have no part in any mean.
        num_labelled: examples with labels.
        num_tuned: examples that chose `tau`.
        num_judged: examples that the errors were counted on.
        tally: judged examples by class, or None without labels, as all that follow.
        balanced: balanced error, the mean of the classes' errors.
        expected: error under the target prior, Σ_y q_y error_y; None if that is the balanced one.
        overall: plain error, the share of wrong examples, classes as they come.
        groups: mean errors of the classes with many, a medium number of, and few training
            examples (`ClassPrior.groups`), as far as these are known and judged.
        intervals: of the judged examples, without the classes left out.
    """

    predictions: Predictions
    prior: ClassPrior
    target_prior: ClassPrior | None
    tau: float
    protocol: str
    effective: bool
    level: float
    tuning: TauResult | None = None
    fold_taus: FloatArray = field(default_factory=lambda: np.empty(0))
    left_out: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    num_labelled: int = 0
    num_tuned: int = 0
    num_judged: int = 0
    tally: Tally | None = None
    balanced: Change | None = None
    expected: Change | None = None
    overall: Change | None = None
    groups: dict[str, Change] = field(default_factory=dict)
    intervals: TauIntervals | None = None

    @cached_property
    def judged_curve(self) -> TauCurve:
        """Error of the judged examples as a function of tau; its minimum is an oracle's.

        By position its classes are those that were not left out.
        """
        assert self.intervals is not None  # of labelled examples
        bounds = (0.0, 4.0) if self.tuning is None else self.tuning.bounds
        return TauCurve(self.intervals, bounds=bounds)

    def write(
        self, path: str | Path, *, force: bool = False, progress: Progress | None = None
    ) -> Written:
        """Write the adjusted predictions, in the format that they came in, arrays as an .npz.

        Args:
            path: the new file. Beside the scores it has `predicted` and a mark with tau, by which
                it is not adjusted again; what else the source had is copied, but for other
                scores of the same classes (`predictions.left_out`).
            force: replace a file of that name.
            progress: told (rows done, rows in all or 0, "").

        Returns:
            The path and how many predictions changed.
        """
        path, source = Path(path), self.predictions
        check_output(source, path, force=force)
        shift = posthoc.adjustment(self.prior, tau=self.tau, target_prior=self.target_prior)
        names = source.class_names and np.array(source.class_names)
        changed = rows = 0

        def adjust(block: Block, logits: NDArray[Any]) -> Adjusted:
            from scipy.special import softmax

            nonlocal changed, rows
            _checks.all_finite(logits, name=source.kind, first_row=block.first_row)
            adjusted = logits.astype(np.float64) + shift
            predicted = adjusted.argmax(axis=1)
            changed += int(np.sum(predicted != block.scores.argmax(axis=1)))
            rows += len(predicted)
            scores = softmax(adjusted, axis=1) if source.kind == "probs" else adjusted
            return block, scores, predicted if names is None else names[predicted]

        source.save(path, self.tau, each_block(adjust, source, progress=progress, rest=True))
        return Written((path,), changed, rows)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, lists and dicts for JSON."""
        source, aim, tally = self.predictions, self.target_prior, self.tally
        out: dict[str, Any] = {
            "file": source.name,
            "kind": source.kind,
            "num_classes": source.num_classes,
            "class_names": source.class_names,
            "tau": self.tau,
            "protocol": self.protocol,
            "effective_prior": self.effective,
            "tuning": None if self.tuning is None else self.tuning.to_dict(),
            "fold_taus": self.fold_taus.tolist(),
            "num_tuned": self.num_tuned,
            "num_judged": self.num_judged,
            "prior": self.prior.probs.tolist(),
            "target_prior": None if aim is None else aim.probs.tolist(),
            "left_out": self.left_out.tolist(),
            "confidence_level": self.level,
        }
        if tally is None:
            return out
        errors = {"balanced_error": self.balanced, "expected_error": self.expected}
        errors["error"] = self.overall
        out |= {name: change and change.to_dict() for name, change in errors.items()}
        out["groups"] = {name: change.to_dict() for name, change in self.groups.items()}
        out["per_class"] = {
            "judged": tally.counts.tolist(),
            "wrong_before": tally.wrong.tolist(),
            "wrong_after": (tally.wrong - tally.fixed + tally.broken).tolist(),
            "fixed": tally.fixed.tolist(),
            "broken": tally.broken.tolist(),
        }
        return out


def check_output(predictions: Predictions, path: Path, *, force: bool) -> None:
    """Refuse to replace a file unless told to, and the source in any case."""
    source = Path(predictions.name)
    suffix = ".npz" if predictions.table is None else source.suffix
    if path.suffix != suffix:
        raise InputError(f"{path} must end in {suffix}, as adjusted predictions of {source} do.")
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}.")
    if path.exists() and source.exists() and path.samefile(source):
        raise InputError(
            f"{path} is the file that is being adjusted; choose another name, or a second run "
            f"would adjust it twice."
        )
    if path.exists() and not force:
        raise InputError(f"{path} exists; pass `force=True` to replace it.")


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
            examples that choose tau, fold by fold.
        missing: what to do with a class whose labelled examples are too few: one is needed to be
            judged, two to be judged and tuned. "error" refuses and names them; "skip" leaves them
            out of every mean, and lists them in `left_out`.
        bounds: where to search for tau.
        confidence: level of all intervals.
        n_bootstrap: as in `tune_tau`, for the interval of tau.
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
    width, workers = predictions.num_classes, workers or WORKERS
    if prior is not None or not effective:
        _checks.prior(prior, num_classes=width)
    if target_prior is not None:
        _checks.prior(target_prior, num_classes=width, name="target_prior")
    _checks.choice(missing, ("error", "skip"), name="missing")
    tau = None if tau is None else _checks.tau(tau)
    if tune_on is not None and folds is not None:
        raise InputError("give `tune_on=` or `folds=`, not both.")
    if tune_on is not None and not 0 < tune_on < 1:
        raise InputError(f"`tune_on` must lie between 0 and 1; got {tune_on:g}.")
    if folds is not None:
        _checks.whole(folds, name="folds", at_least=2)
    parted = tune_on is not None or folds is not None
    if tau is not None and not effective and parted:
        raise InputError(
            "with a given `tau=` there is nothing to choose; leave `tune_on=` and `folds=` out."
        )
    aims: Any = {"target_prior": target_prior, "effective": effective, "level": confidence}
    if not predictions.labelled:
        if parted:
            raise InputError(
                f"{predictions.name} has no labels, so tau can't be chosen on it; name them with "
                f"`labels=`, or give `tau=` (default 1)."
            )
        if effective or prior is None:
            (prior,) = learnt_priors(predictions, prior, workers=workers)
        found: Any = {"prior": prior, "tau": 1.0 if tau is None else tau}
        return AdjustResult(predictions=predictions, protocol="unlabelled", **found, **aims)

    # A prior that is learnt is judged on other examples even where tau is given.
    protocol, amount = "given", 0.0
    if tune_on is not None:
        protocol, amount = "split", tune_on
    elif tau is None or effective:
        protocol, amount = "cross-fit", DEFAULT_FOLDS if folds is None else folds
    measured = partial(
        tau_intervals, predictions, target_prior=target_prior, workers=workers, progress=progress
    )
    whole: Any = None
    if effective or prior is None:
        target = all_labels(predictions)
    else:
        if tau is None and np.ptp(posthoc.adjustment(prior, target_prior=target_prior)) == 0:
            raise InputError(NOTHING_TO_TUNE)
        whole = measured(prior)
        target = whole.target

    needed, counts = 1 if protocol == "given" else 2, np.bincount(target, minlength=width)
    kept, left_out = np.flatnonzero(counts >= needed), np.flatnonzero(counts < needed)
    if len(left_out) and missing == "error":
        short = [f"{predictions.label(int(k))} ({counts[k]})" for k in left_out]
        raise InputError(
            f"{predictions.name}: each class needs at least {needed} labelled example"
            f"{'' if needed == 1 else 's (one to choose tau and one to judge it)'}, but "
            f"{len(short)} of {width} classes have fewer: {_checks.listing(short, most=6)}; "
            f"label more, or leave these classes out with `missing='skip'`."
        )
    if len(kept) < 2:
        raise InputError(f"{predictions.name}: fewer than two classes have enough labels.")
    splits = _splits(target, kept, protocol, amount, random_state)
    chosen_on, judged = (np.logical_or.reduce(rows) for rows in zip(*splits, strict=True))
    if effective or prior is None:
        # Learnt from the examples that choose tau, weighted to the mix of the training data.
        sets = [choose for choose, _ in splits] + [chosen_on] * (len(splits) > 1)
        priors = learnt_priors(predictions, prior, sets, target, workers=workers)
        parts = [measured(learnt) for learnt in priors]
        prior, whole = priors[-1], parts[-1]
    else:
        parts = [whole] * len(splits)

    tuning, fold_taus = None, np.empty(0)
    if tau is None:
        if protocol == "cross-fit":
            # Before the choice on all examples, so that only one curve is in memory at a time.
            chosen = [
                tune_from_intervals(_restricted(part, rows, kept), bounds=bounds, n_bootstrap=0).tau
                for part, (rows, _) in zip(parts, splits, strict=False)
            ]
            fold_taus = np.array(chosen)
        tuning = tune_from_intervals(
            _restricted(whole, chosen_on, kept),
            bounds=bounds,
            confidence=confidence,
            n_bootstrap=n_bootstrap,
            random_state=random_state,
        )
        tau = tuning.tau
    taus = fold_taus if len(fold_taus) else [tau] * len(splits)
    before, after = np.zeros((2, len(target)), dtype=bool)
    for part, (_, rows), fold_tau in zip(parts, splits, taus, strict=False):
        before |= rows & part.right_at(0.0)
        after |= rows & part.right_at(fold_tau)
    masks = judged, judged & ~before, ~before & after, before & ~after
    by_class = (np.bincount(target, weights=rows, minlength=width) for rows in masks)
    tally = Tally(*(amounts.astype(np.int64) for amounts in by_class), level=confidence)
    groups = {} if prior.counts is None else prior.groups()
    return AdjustResult(
        predictions=predictions,
        prior=prior,
        tau=tau,
        protocol=protocol,
        tuning=tuning,
        fold_taus=fold_taus,
        left_out=left_out,
        num_labelled=len(target),
        num_tuned=0 if tuning is None else int(chosen_on.sum()),
        num_judged=int(judged.sum()),
        tally=tally,
        balanced=tally.change(np.ones(width)),
        expected=None if target_prior is None else tally.change(target_prior.probs),
        overall=tally.change(tally.counts),
        groups={
            name: tally.change(np.bincount(classes, minlength=width))
            for name, classes in groups.items()
            if np.any(tally.counts[classes])
        },
        intervals=_restricted(whole, judged, kept),
        **aims,
    )


def tune_predictions(
    predictions: Predictions,
    prior: ClassPrior,
    *,
    method: Literal["logit_adjustment", "weight_normalization"] = "logit_adjustment",
    bias_mode: Literal["scale", "drop"] = "scale",
    criterion: Criterion = "balanced_error",
    missing: Missing = "error",
    progress: Progress | None = None,
    **settings: Any,
) -> TauResult:
    """Choose tau on saved predictions, as `tune_tau` does on logits.

    Args:
        predictions: labelled, of examples that the model was not trained on.
        prior: π, of the data that the model was trained on.
        method: "logit_adjustment", or "weight_normalization" by the `norms` of the predictions.
        bias_mode: of weight normalization, as in `tune_normalization`.
        criterion: as in `tune_tau`.
        missing: as in `tune_tau`.
        progress: told (rows done, rows in all or 0, "").
        **settings: bounds, n_bootstrap and others of `tune_from_intervals`.

    Returns:
        The TauResult.
    """
    _checks.prior(prior, num_classes=predictions.num_classes)
    _checks.choice(missing, ("error", "nearest"), name="missing")
    options: dict[str, Any] = {}
    if method == "weight_normalization":
        if criterion != "balanced_error":
            raise InputError("weight normalization has `criterion='balanced-error'` alone.")
        if predictions.kind == "probs" or predictions.norms is None:
            raise InputError(
                f"weight normalization divides logits by the norms of the last layer's weights, "
                f"one per class, which {predictions.name} lacks; save them with numpy.savez(file, "
                f"..., norms=...)."
            )
        bias = predictions.bias if bias_mode == "drop" else None
        options = {"norms": predictions.norms, "bias": bias, "bias_mode": bias_mode}
    elif criterion != "balanced_error":
        logits, target = whole_logits(predictions)
        return tune_tau(logits, target, prior, criterion=criterion, missing=missing, **settings)
    elif np.ptp(prior.log_probs) == 0:
        raise InputError(NOTHING_TO_TUNE)
    parts = tau_intervals(predictions, prior, progress=progress, **options)
    if missing == "nearest":
        parts = parts.with_stand_ins(prior)
    return tune_from_intervals(parts, **settings)


def _splits(
    target: IntArray, kept: IntArray, protocol: str, amount: float, seed: int
) -> list[Split]:
    """Return the splits of the examples, each of them with every class on both sides."""
    rows = np.isin(target, kept)
    if protocol == "given":
        return [(rows, rows)]
    # Class by class, shuffled within each.
    shuffle = np.random.default_rng(seed).permutation(len(target))
    small = target.astype(np.uint16) if target.max() < 1 << 16 else target  # radix sort
    order = shuffle[np.argsort(small[shuffle], kind="stable")]
    if protocol == "cross-fit":
        # Consecutive places go to different folds, so each class of two or more is in several.
        fold = np.empty(len(target), np.int64)
        fold[order] = np.arange(len(target)) % int(amount)
        return [(rows & (fold != k), rows & (fold == k)) for k in np.unique(fold[rows])]
    counts = np.bincount(target)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    take = np.clip(np.rint(amount * counts), 1, np.maximum(counts - 1, 1))
    tune = np.empty(len(target), dtype=bool)
    tune[order] = np.arange(len(target)) - first < take[target[order]]
    return [(rows & tune, rows & ~tune)]


def _restricted(parts: TauIntervals, rows: BoolArray, kept: IntArray) -> TauIntervals:
    """Return the intervals of the given rows, with the kept classes alone."""
    importance, place = parts.importance[kept], np.full(parts.num_classes, -1)
    place[kept] = np.arange(len(kept))
    parts = replace(parts, num_classes=len(kept), importance=importance / importance.sum())
    if rows.all() and len(kept) == len(place):  # nothing is left out, and no copy needed
        return parts
    some = np.flatnonzero(rows)
    return replace(
        parts,
        lower=parts.lower[some],
        upper=parts.upper[some],
        target=place[parts.target[some]],
        weight=parts.weight[some],
    )
