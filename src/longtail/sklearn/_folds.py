"""Tau from cross-fitted scores, judged exactly or by a scikit-learn scorer.

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
from longtail._checks import FloatArray, InputError
from longtail.priors import ClassPrior
from longtail.sklearn._base import (
    AdjustedBase,
    Rows,
    effective_prior,
    encode,
    given_prior,
    learnt_prior,
)
from longtail.sklearn._scores import NEVER, classes_of, fit_classifier, read_logits
from longtail.tuning import TauCurve, TauIntervals, tune_from_intervals

BOUNDS = (0.0, 4.0)
DEFAULT_GRID = np.linspace(*BOUNDS, 81)
# Scores that are computed here, over all held-out examples together.
OWN = ("balanced_accuracy", "target")
# Resampled curves behind the choice and its interval.
REPLICATES = 200


@dataclass(frozen=True, repr=False)
class TauScores:
    """The score of the adjusted predictions as a function of tau, and the choice.

    Attributes:
        taus: shape (points,), rising: the grid, or the middle of each cell of an exact curve.
        scores: shape (points,), greater is better.
        tau: the chosen one.
        score: its score.
        interval: 95% bootstrap interval of tau, or None for a grid.
        exact: the `TauCurve` behind an exact score (the error at every tau, per class, with its
            standard error), or None for a grid.
    """

    taus: FloatArray
    scores: FloatArray
    tau: float
    score: float
    interval: tuple[float, float] | None = None
    exact: TauCurve | None = None

    @classmethod
    def of_grid(cls, taus: FloatArray, scores: FloatArray) -> TauScores:
        """Choose the middle of the best run of points that is nearest to tau = 1."""
        top = np.flatnonzero(scores >= scores.max() - 1e-12)
        runs = np.split(top, np.flatnonzero(np.diff(top) > 1) + 1)
        run = min(runs, key=lambda run: float(np.abs(taus[run] - 1.0).min()))
        middle = int(run[(len(run) - 1) // 2])
        return cls(taus, scores, float(taus[middle]), float(scores[middle]))

    @classmethod
    def of_intervals(cls, parts: TauIntervals, select: Any) -> TauScores:
        """Choose from the exact curve, given as scores at the middle of its cells."""
        found = tune_from_intervals(parts, select=select, bounds=BOUNDS, n_bootstrap=REPLICATES)
        edges = found.curve.breakpoints
        middles = (edges[:-1] + edges[1:]) / 2
        scores = 1.0 - found.curve.values
        return cls(middles, scores, found.tau, 1.0 - found.error, found.confidence, found.curve)

    def __repr__(self) -> str:
        kind = "points" if self.exact is None else "cells"
        low_to_high = ""
        if self.interval is not None:
            low_to_high = f", interval=({self.interval[0]:.3g}, {self.interval[1]:.3g})"
        return (
            f"TauScores(tau={self.tau:.3g}{low_to_high}, score={self.score:.4g}, "
            f"{kind}={len(self.taus)})"
        )


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
    """

    classes: NDArray[Any]
    method: str
    prior: Any
    aim: ClassPrior | None
    costs: FloatArray | None
    scorer: Any
    grid: FloatArray | None

    @property
    def taus(self) -> FloatArray:
        """The taus that a scorer or a cost matrix is asked about."""
        return DEFAULT_GRID if self.grid is None else self.grid

    @property
    def exact(self) -> bool:
        """Whether the score depends only on which examples are right, so that no grid is needed."""
        return self.scorer is None and (self.costs is None or self.costs.ndim == 1)


@dataclass(frozen=True)
class Fold:
    """A fitted classifier's answer on the rows that it was not fitted on.

    Attributes:
        estimator: the classifier, or None once it is not needed any more.
        rows: the held-out rows, or None likewise.
        logits: shape (examples, its own classes), or None likewise.
        known: its own classes, as positions in all classes.
        prior: over its own classes; None while it is still to be found.
        constant: whether it gave every held-out row the same scores; None for a single row.
        held: total weight of each class among the held-out rows.
        outcome: intervals (exact), a score per tau (scorer), or summed costs per tau and class.
    """

    estimator: Any
    rows: Rows | None
    logits: FloatArray | None
    known: NDArray[np.intp]
    prior: ClassPrior | None
    constant: bool | None
    held: FloatArray
    outcome: Any = None


class _AtTau(AdjustedBase):
    """A fold's classifier at one tau, for a scorer to ask; held-out rows are not asked again."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: Any, y: Any) -> _AtTau:
        """Scorers only ask; scikit-learn takes nothing without `fit` for an estimator."""
        raise NotImplementedError("a scorer's classifier is fitted already")

    def _hold(self, fold: Fold, logits: FloatArray) -> None:
        self._fold, self._held_out = fold, logits

    def _logits(self, X: Any) -> FloatArray:
        fold = self._fold
        if fold.rows is not None and X is fold.rows.X:
            return self._held_out
        own = read_logits(fold.estimator, X, self._method)
        return _over_all_classes(own, fold.known, len(self.classes_))


def run_fold(
    estimator: Any,
    rows: Rows,
    train: NDArray[np.intp] | None,
    held_out: NDArray[np.intp],
    task: Task,
    *,
    keep: bool,
) -> Fold:
    """Fit on `train` (None: fitted already), ask about `held_out`, and judge."""
    if train is None:
        held, seen, weight = rows.take(held_out), rows.take(held_out), rows.weight
        weight = None if weight is None else weight[held_out]
    else:
        held = rows.take(held_out, kernel_of=estimator, columns=train)
        seen = rows.take(train, kernel_of=estimator)
        weight = seen.fit_weight
        if len(np.unique(seen.y)) < 2:
            raise InputError(
                f"a split leaves only one class to train on, {seen.y.tolist()[0]!r}; use fewer "
                f"splits, or stratified ones."
            )
        estimator = fit_classifier(estimator, seen.X, seen.y, seen.fit_params)
    own = classes_of(estimator)
    known = np.searchsorted(task.classes, own)
    logits = read_logits(estimator, held.X, task.method)
    prior = None
    if not isinstance(task.prior, str):
        prior = given_prior(task.prior, task.classes, name="prior")
        prior = ClassPrior.from_weights(prior.probs[known])
    elif task.prior == "train":
        prior = learnt_prior("train", seen.y, weight, own)
    codes = encode(held.y, task.classes)
    fold = Fold(
        estimator,
        held,
        logits,
        known,
        prior,
        constant=None if len(logits) < 2 else not np.ptp(logits, axis=0).any(),
        held=np.bincount(codes, weights=held.weight, minlength=len(task.classes)).astype(float),
    )
    if prior is None:
        return fold
    fold = replace(fold, outcome=_judge(fold, task, prior))
    return replace(fold, estimator=estimator if keep else None, rows=None, logits=None)


def find_prior(folds: Sequence[Fold], task: Task) -> tuple[ClassPrior, Task, list[Fold]]:
    """Take the mean of all folds' predictions as the prior, and judge the folds with it."""
    found = [(fold, fold.rows, fold.logits) for fold in folds]
    logits = [
        _over_all_classes(own, fold.known, len(task.classes))
        for fold, _, own in found
        if own is not None
    ]
    weights = [rows.weight for _, rows, _ in found if rows is not None and rows.weight is not None]
    weight = np.concatenate(weights) if weights else None
    prior = effective_prior(np.concatenate(logits), weight, task.classes, task.method)
    task = task if task.aim is not None else replace(task, aim=prior)
    judged = [
        replace(
            fold,
            outcome=_judge(fold, task, ClassPrior.from_weights(prior.probs[fold.known])),
        )
        for fold in folds
    ]
    return prior, task, judged


def _judge(fold: Fold, task: Task, prior: ClassPrior) -> Any:
    """Intervals, scores or costs of this fold's held-out rows; `prior` is over its classes."""
    held = fold.rows
    assert held is not None
    assert fold.logits is not None
    num_classes = len(task.classes)
    logits = _over_all_classes(fold.logits, fold.known, num_classes)
    # Whatever the prior of a class that can't be predicted is, it shifts the others alike.
    probs = np.full(num_classes, prior.probs.min())
    probs[fold.known] = prior.probs
    whole = ClassPrior.from_weights(probs)
    codes = None if task.scorer is not None else encode(held.y, task.classes)
    if task.exact:
        return TauIntervals.from_logits(
            logits,
            codes,
            whole,
            target_prior=task.aim,
            costs=task.costs,
            sample_weight=held.weight,
        )
    assert task.aim is not None
    outcome = []
    for tau in task.taus:
        view = _AtTau(fold.estimator)
        view._hold(fold, logits)
        view._set_rule(
            fold.estimator,
            task.classes,
            whole,
            tau=float(tau),
            aim=task.aim,
            costs=task.costs,
            method=task.method,
        )
        if codes is None:
            outcome.append(task.scorer(view, held.X, held.y, **held.score_params))
        else:
            assert task.costs is not None
            paid = task.costs[codes, view._decisions(held.X).argmax(axis=1)]
            paid = paid if held.weight is None else paid * held.weight
            outcome.append(np.bincount(codes, weights=paid, minlength=num_classes))
    return np.asarray(outcome, dtype=np.float64)


def _over_all_classes(own: FloatArray, known: NDArray[np.intp], num_classes: int) -> FloatArray:
    """Logits with a column for every class; those that the fold never saw are out of reach."""
    logits = np.full((len(own), num_classes), NEVER)
    logits[:, known] = own
    return logits


def combine(folds: Sequence[Fold], task: Task, select: str) -> tuple[TauScores, FloatArray | None]:
    """The curve over all folds with the choice, and each fold's scores where a scorer gave them."""
    if {fold.constant for fold in folds} - {None} == {True}:
        raise InputError(
            "the estimator makes constant predictions, the same scores for every held-out "
            "example, so no tau can be chosen; fit it on features that tell the classes apart, "
            "or use LogitAdjustedClassifier with a fixed tau."
        )
    outcomes = [fold.outcome for fold in folds]
    if task.scorer is not None:
        table = np.stack(outcomes)
        bad = np.argwhere(~np.isfinite(table))
        if len(bad):
            raise InputError(
                f"the scorer gave {table[tuple(bad[0])]} on split {bad[0][0]} at "
                f"tau = {task.taus[bad[0][1]]:g}; it may need every class in every split: use "
                f"fewer splits, or another scoring."
            )
        return TauScores.of_grid(task.taus, table.mean(axis=0)), table
    held = np.sum([fold.held for fold in folds], axis=0)
    if np.any(held == 0):
        raise InputError(
            f"every class needs held-out examples to be judged by, but class(es) "
            f"{_checks.listing(map(repr, task.classes[held == 0].tolist()))} have none; use "
            f"other splits, or pass rows of these classes."
        )
    if task.exact:
        parts = TauIntervals.merge(outcomes)
        if task.grid is None:
            return TauScores.of_intervals(parts, select), None
        curve = TauCurve(parts, bounds=BOUNDS)
        return TauScores.of_grid(task.grid, 1.0 - curve(task.grid)), None
    assert task.aim is not None
    per_class = np.sum(outcomes, axis=0) / held
    return TauScores.of_grid(task.taus, -(per_class @ task.aim.probs)), None


def unjudged(folds: Sequence[Fold], task: Task) -> NDArray[Any]:
    """Classes that were held out, but only ever by folds that did not know them."""
    held, judged = np.zeros((2, len(task.classes)))
    for fold in folds:
        held += fold.held
        judged[fold.known] += fold.held[fold.known]
    return np.asarray(task.classes[(held > 0) & (judged == 0)])


def scorer_of(scoring: Any) -> Any:
    """Return the scorer to ask, or None for the target's own criterion."""
    if isinstance(scoring, str) and scoring in OWN:
        return None
    if isinstance(scoring, str) and scoring in get_scorer_names():
        return get_scorer(scoring)
    if not callable(scoring):
        raise InputError(
            f"`scoring` must be 'target', the name of a scikit-learn scorer or a callable "
            f"scorer(estimator, X, y); got {scoring!r}."
        )
    try:
        inspect.signature(scoring).bind_partial(None, None, None)  # metadata may follow by name
    except ValueError:  # of some compiled functions nothing is known
        pass
    except TypeError as error:
        name = getattr(scoring, "__name__", "metric")
        raise InputError(
            f"`scoring` is called as scoring(estimator, X, y), but {name} does not take these; if "
            f"it is a metric of labels and predictions, pass make_scorer({name}) of "
            f"sklearn.metrics, or the name of a scorer, such as scoring='balanced_accuracy'."
        ) from error
    return scoring


def refuse_weights(scorer: Any) -> None:
    """Refuse a scorer that takes no sample weights, where there are some."""
    function = getattr(scorer, "_score_func", scorer)  # the metric inside scikit-learn's scorers
    parameters = inspect.signature(function).parameters.values()
    if not any(p.name == "sample_weight" or p.kind is p.VAR_KEYWORD for p in parameters):
        raise InputError(
            "`sample_weight` was given, but the scorer takes none; use a scoring that does, or "
            "leave the weights out."
        )
