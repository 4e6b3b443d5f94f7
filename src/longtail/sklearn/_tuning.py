"""Splits in, tau out: cross-fitted scores, judged exactly or by a scikit-learn scorer.

Each fold's classifier is adjusted by the prior of the rows that it was fitted on. The exact curve
pools the held-out examples of all folds (intervals merge), so a class needs to be held out only
somewhere; a scorer is averaged over the folds, as everywhere in scikit-learn. Both run where the
fold was fitted, so that no fold's logits have to travel.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import get_scorer, get_scorer_names

from longtail import _checks
from longtail._checks import FloatArray, InputError, IntArray
from longtail.priors import ClassPrior
from longtail.sklearn import _targets as targets
from longtail.sklearn._base import (
    AdjustedBase,
    Rows,
    learnt_prior,
    mean_ready,
    prior_of_predictions,
)
from longtail.sklearn._scores import NEVER, ScoreReader, classes_of
from longtail.tuning import TauCurve, TauIntervals

BOUNDS = (0.0, 4.0)
DEFAULT_GRID = np.linspace(*BOUNDS, 81)
# Scores that are computed here, over all held-out examples together.
OWN = ("balanced_accuracy", "target")


@dataclass(frozen=True)
class TauScores:
    """The score of the adjusted predictions as a function of tau.

    Attributes:
        taus: shape (points,), rising: the grid, or the middle of each cell of an exact curve.
        scores: shape (points,), greater is better.
        exact: the `TauCurve` behind an exact score (the error at every tau, per class, with
            its standard error), or None for a grid; `tuning.tune_from_intervals` of its
            `intervals` adds a bootstrap interval for tau.
    """

    taus: FloatArray
    scores: FloatArray
    exact: TauCurve | None = None

    @classmethod
    def from_curve(cls, curve: TauCurve) -> TauScores:
        """The exact curve, as scores at the middle of its cells."""
        middles = (curve.breakpoints[:-1] + curve.breakpoints[1:]) / 2
        return cls(middles, 1.0 - curve.values, curve)

    def best(self) -> tuple[float, float]:
        """(tau, score): the middle of the best run of points that is nearest to tau = 1."""
        if self.exact is not None:
            return self.exact.minimizer()[0], float(1.0 - self.exact.min_value)
        top = np.flatnonzero(self.scores >= self.scores.max() - 1e-12)
        runs = np.split(top, np.flatnonzero(np.diff(top) > 1) + 1)
        run = min(runs, key=lambda run: float(np.abs(self.taus[run] - 1.0).min()))
        middle = int(run[(len(run) - 1) // 2])
        return float(self.taus[middle]), float(self.scores[middle])


@dataclass(frozen=True)
class Task:
    """What every fold is asked to do.

    Attributes:
        classes: all labels, sorted.
        method: `predict_proba` or `decision_function`.
        prior: as given to the estimator.
        aim: the target prior, or None where it is the prior that is still to be found.
        costs: per class or as a matrix, or None.
        scorer: a scikit-learn scorer, or None for the target's own criterion.
        grid: the taus to choose from, or None for any in BOUNDS (which only an exact
            criterion can offer).
        caller: for messages.
    """

    classes: NDArray[Any]
    method: str
    prior: Any
    aim: ClassPrior | None
    costs: FloatArray | None
    scorer: Any
    grid: FloatArray | None
    caller: str

    @property
    def taus(self) -> FloatArray:
        """The taus that a scorer or a cost matrix is asked about."""
        return DEFAULT_GRID if self.grid is None else self.grid

    @property
    def effective(self) -> bool:
        """Whether the prior is the folds' mean prediction, known only after all have answered."""
        return isinstance(self.prior, str) and self.prior == "effective"

    @property
    def exact(self) -> bool:
        """Whether the score depends only on which examples are right, so that no grid is needed."""
        return self.scorer is None and (self.costs is None or self.costs.ndim == 1)


@dataclass(frozen=True)
class Fold:
    """A fitted classifier's answer on the rows that it was not fitted on."""

    estimator: Any
    reader: ScoreReader
    held_out: Rows
    answer: FloatArray
    known: NDArray[np.intp]  # its own classes, as positions in all classes
    prior: ClassPrior | None  # over its own classes; None while it is still to be found


@dataclass(frozen=True)
class Verdict:
    """What comes back from a fold: small, unless a pooled prior needs the fold itself.

    Attributes:
        reader: how the fold's classifier is read.
        constant: whether it gave every held-out row the same scores; None for a single row.
        held: total weight of each class among the held-out rows.
        judged: the same where the classifier knows the class, so that it can be right; else zero.
        outcome: intervals (exact), a score per tau (scorer), or summed costs per tau and class.
        fold: the fold, where it is still to be judged.
        estimator: the fitted classifier, where it is to be kept.
    """

    reader: ScoreReader
    constant: bool | None
    held: FloatArray
    judged: FloatArray
    outcome: TauIntervals | FloatArray | None
    fold: Fold | None
    estimator: Any


class _AtTau(AdjustedBase):
    """A fold's classifier at one tau, for a scorer to ask; held-out rows are not asked again."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: Any, y: Any) -> _AtTau:
        """Scorers only ask; scikit-learn takes nothing without `fit` for an estimator."""
        raise NotImplementedError("a scorer's classifier is fitted already")

    def _hold(self, fold: Fold, own_prior: ClassPrior, logits: FloatArray) -> None:
        self._fold, self._own_prior, self._held_out = fold, own_prior, logits

    def _logits(self, X: Any) -> FloatArray:
        fold = self._fold
        if X is fold.held_out.X:
            return self._held_out
        answer = fold.reader.ask(
            fold.estimator, X, num_classes=len(fold.known), caller=type(self).__name__
        )
        return _over_all_classes(fold, answer, self._own_prior, len(self.classes_))


def run_fold(
    estimator: Any,
    rows: Rows,
    train: NDArray[np.intp] | None,
    val: NDArray[np.intp],
    task: Task,
    *,
    keep: bool,
) -> Verdict:
    """Fit on `train` (None: fitted already), ask about `val`, and judge."""
    fold = _answer(estimator, rows, train, val, task)
    codes = targets.encode(fold.held_out.y, task.classes, caller=task.caller)
    held = targets.totals(codes, fold.held_out.weight, len(task.classes))
    return Verdict(
        reader=fold.reader,
        constant=None if len(fold.answer) < 2 else not np.ptp(fold.answer, axis=0).any(),
        held=held,
        judged=np.where(np.isin(np.arange(len(held)), fold.known), held, 0.0),
        outcome=None if fold.prior is None else judge(fold, task, fold.prior),
        fold=fold if fold.prior is None else None,
        estimator=estimator if keep else None,
    )


def _answer(
    estimator: Any, rows: Rows, train: NDArray[np.intp] | None, val: NDArray[np.intp], task: Task
) -> Fold:
    if train is None:
        held_out, seen = rows.take(val), None
    else:
        held_out = rows.take(val, kernel_of=estimator, columns=train)
        seen = rows.take(train, kernel_of=estimator)
        if len(np.unique(seen.y)) < 2:
            raise InputError(
                f"{task.caller}: a split leaves only one class to train on, "
                f"{seen.y.tolist()[0]!r}; use fewer splits, or stratified ones."
            )
        estimator.fit(seen.X, seen.y, **seen.fit_params)
    own = classes_of(estimator, caller=task.caller)
    known = np.searchsorted(task.classes, own)
    reader, answer = ScoreReader.learn(
        estimator, held_out.X, task.method, num_classes=len(own), caller=task.caller
    )
    prior = None
    if not isinstance(task.prior, str):
        given = targets.given_prior(task.prior, task.classes, caller=task.caller, name="prior")
        prior = ClassPrior.from_weights(given.probs[known])
    elif not task.effective:
        labels = held_out if seen is None else seen
        weight = held_out.weight if seen is None else seen.fit_weight
        prior = learnt_prior("train", labels.y, weight, own, caller=task.caller)
    return Fold(estimator, reader, held_out, answer, known, prior)


def judge(fold: Fold, task: Task, prior: ClassPrior) -> TauIntervals | FloatArray:
    """Intervals, scores or costs of this fold's held-out rows; `prior` is over its classes."""
    logits = _over_all_classes(fold, fold.answer, prior, len(task.classes))
    # Whatever the prior of a class that can't be predicted is, it shifts the others alike.
    probs = np.full(len(task.classes), prior.probs.min())
    probs[fold.known] = prior.probs
    whole = ClassPrior.from_weights(probs)
    held_out, codes = fold.held_out, None
    if task.scorer is None:
        codes = targets.encode(held_out.y, task.classes, caller=task.caller)
    if task.exact:
        return TauIntervals.from_logits(
            logits,
            codes,
            whole,
            target_prior=task.aim,
            costs=task.costs,
            sample_weight=held_out.weight,
        )
    outcome = []
    for tau in task.taus:
        view = _AtTau(fold.estimator)
        view._hold(fold, prior, logits)
        view._set_rule(
            fold.estimator,
            task.classes,
            whole,
            fold.reader,
            tau=float(tau),
            target=task.aim,
            costs=task.costs,
        )
        if codes is None:
            outcome.append(task.scorer(view, held_out.X, held_out.y, **held_out.score_params))
        else:
            outcome.append(_costs_by_class(view, fold, codes, task))
    return np.asarray(outcome, dtype=np.float64)


def _over_all_classes(
    fold: Fold, answer: FloatArray, prior: ClassPrior, num_classes: int
) -> FloatArray:
    """Logits with a column for every class; those that the fold never saw are out of reach."""
    # A class that a fold never saw: finite, as the exact curve asks.
    logits = np.full((len(answer), num_classes), NEVER)
    logits[:, fold.known] = fold.reader.logits(answer, prior)
    return logits


def _costs_by_class(view: _AtTau, fold: Fold, codes: IntArray, task: Task) -> FloatArray:
    """What the decisions at this tau cost, summed per true class."""
    assert task.costs is not None
    decided = view._decisions(fold.held_out.X).argmax(axis=1)
    paid = task.costs[codes, decided]
    if fold.held_out.weight is not None:
        paid = paid * fold.held_out.weight
    return np.bincount(codes, weights=paid, minlength=len(task.classes)).astype(np.float64)


def find_prior(verdicts: Sequence[Verdict], task: Task) -> tuple[ClassPrior, Task, list[Verdict]]:
    """The mean of all folds' predictions as the prior, and the folds judged with it."""
    folds = [verdict.fold for verdict in verdicts if verdict.fold is not None]
    parts = []
    for fold in folds:
        part = np.zeros((len(fold.answer), len(task.classes)))
        part[:, fold.known] = mean_ready(fold.reader, fold.answer, caller=task.caller)
        parts.append(part)
    weights = [fold.held_out.weight for fold in folds if fold.held_out.weight is not None]
    prior = prior_of_predictions(
        np.concatenate(parts),
        np.concatenate(weights) if weights else None,
        task.classes,
        caller=task.caller,
    )
    task = task if task.aim is not None else replace(task, aim=prior)
    judged = [
        replace(
            verdict, outcome=judge(fold, task, ClassPrior.from_weights(prior.probs[fold.known]))
        )
        for verdict, fold in zip(verdicts, folds, strict=True)
    ]
    return prior, task, judged


def combine(verdicts: Sequence[Verdict], task: Task) -> tuple[TauScores, FloatArray | None]:
    """The curve over all folds, and each fold's own scores where a scorer gave them."""
    told = {verdict.constant for verdict in verdicts} - {None}
    if told == {True}:
        raise InputError(
            f"{task.caller}: the estimator makes constant predictions, the same scores for every "
            f"held-out example, so no tau can be chosen; fit it on features that tell the classes "
            f"apart, or use LogitAdjustedClassifier with a fixed tau."
        )
    outcomes = [verdict.outcome for verdict in verdicts]
    held = np.sum([verdict.held for verdict in verdicts], axis=0)
    if task.scorer is not None:
        table = np.stack([np.asarray(outcome) for outcome in outcomes])
        _refuse_undefined(table, task)
        return TauScores(task.taus, table.mean(axis=0)), table
    if np.any(held == 0):
        raise InputError(
            f"{task.caller}: every class needs held-out examples to be judged by, but class(es) "
            f"{_checks.listing(repr(c) for c in task.classes[held == 0].tolist())} have none; "
            f"use other splits, or pass rows of these classes."
        )
    if task.exact:
        parts = [outcome for outcome in outcomes if isinstance(outcome, TauIntervals)]
        curve = TauCurve(TauIntervals.merge(parts), bounds=BOUNDS)
        if task.grid is not None:
            return TauScores(task.grid, 1.0 - curve(task.grid)), None
        return TauScores.from_curve(curve), None
    assert task.aim is not None
    per_class = np.sum([np.asarray(outcome) for outcome in outcomes], axis=0) / held
    return TauScores(task.taus, -(per_class @ task.aim.probs)), None


def unjudged(verdicts: Sequence[Verdict], task: Task) -> NDArray[Any]:
    """Classes that were held out, but only ever by folds that did not know them."""
    held = np.sum([verdict.held for verdict in verdicts], axis=0)
    judged = np.sum([verdict.judged for verdict in verdicts], axis=0)
    return np.asarray(task.classes[(held > 0) & (judged == 0)])


def _refuse_undefined(table: FloatArray, task: Task) -> None:
    bad = np.argwhere(~np.isfinite(table))
    if len(bad):
        raise InputError(
            f"{task.caller}: the scorer gave {table[tuple(bad[0])]} on split {bad[0][0]} at "
            f"tau = {task.taus[bad[0][1]]:g}; it may need every class in every split: use fewer "
            f"splits, or another scoring."
        )


def scorer_of(scoring: Any, *, caller: str) -> Any:
    """The scorer to ask, or None for the target's own criterion (exact but for cost matrices)."""
    if isinstance(scoring, str) and scoring in OWN:
        return None
    if isinstance(scoring, str) and scoring in get_scorer_names():
        return get_scorer(scoring)
    if callable(scoring):
        _refuse_metric(scoring, caller=caller)
        return scoring
    raise InputError(
        f"{caller}: `scoring` must be 'target', the name of a scikit-learn scorer or a callable "
        f"scorer(estimator, X, y); got {scoring!r}."
    )


def _refuse_metric(scoring: Any, *, caller: str) -> None:
    """Refuse a callable that can't be called with an estimator and its rows, as metrics can't."""
    try:
        signature = inspect.signature(scoring)
    except ValueError:  # of some compiled functions nothing is known
        return
    try:
        signature.bind_partial(None, None, None)  # metadata may follow by name
    except TypeError as error:
        name = getattr(scoring, "__name__", "metric")
        raise InputError(
            f"{caller}: `scoring` is called as scoring(estimator, X, y), but {name} does not take "
            f"these; if it is a metric of labels and predictions, pass make_scorer({name}) of "
            f"sklearn.metrics, or the name of a scorer, such as scoring='balanced_accuracy'."
        ) from error


def check_scoring(
    scoring: Any, scorer: Any, *, balanced: bool, weighted: bool, caller: str
) -> None:
    """Refuse a score that contradicts the target, or that can't use the weights.

    Args:
        scoring: as given to the estimator.
        scorer: what `scorer_of` made of it.
        balanced: whether the target is the balanced one, without costs.
        weighted: whether the scorer will be given sample weights.
        caller: for messages.
    """
    if scorer is None and scoring == "balanced_accuracy" and not balanced:
        raise InputError(
            f"{caller}: scoring='balanced_accuracy' judges all classes alike, but `target` or "
            f"`costs` say otherwise; pass scoring='target', which judges by them."
        )
    if scorer is not None and weighted and not _takes_weights(scorer):
        raise InputError(
            f"{caller}: `sample_weight` was given, but the scorer takes none; "
            f"use a scoring that does, or leave the weights out."
        )


def _takes_weights(scorer: Any) -> bool:
    function = getattr(scorer, "_score_func", scorer)  # the metric inside scikit-learn's scorers
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == "sample_weight" or p.kind is p.VAR_KEYWORD for p in parameters)


def check_grid(grid: Any, *, caller: str) -> FloatArray | None:
    """The taus to choose from, sorted, or None where none were given."""
    if grid is None:
        return None
    taus = _checks.vector(grid, caller=caller, name="tau_grid").astype(np.float64)
    _checks.all_finite(taus, caller=caller, name="tau_grid")
    return np.unique(taus)
