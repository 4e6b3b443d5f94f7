"""Classifiers that adjust any other one for rare classes, with tau fixed or tuned.

`LogitAdjustedClassifier` and `LogitAdjustedClassifierCV` are to every number of classes what
scikit-learn's `FixedThresholdClassifier` and `TunedThresholdClassifierCV` are to two.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import check_scoring
from sklearn.model_selection import StratifiedShuffleSplit, check_cv
from sklearn.utils.metadata_routing import MethodMapping
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted

from longtail import _checks
from longtail._checks import FloatArray, InputError
from longtail.priors import ClassPrior
from longtail.sklearn._base import (
    AdjustedBase,
    Rows,
    effective_prior,
    encode,
    listing,
    target_prior,
)
from longtail.sklearn._scores import final_estimator
from longtail.tuning import (
    ENOUGH_TO_DECIDE,
    SELECT,
    TauCurve,
    TauIntervals,
    tune_from_intervals,
)

__all__ = [
    "FewExamplesWarning",
    "FixedTauOnMarginsWarning",
    "LogitAdjustedClassifier",
    "LogitAdjustedClassifierCV",
    "TauCurveDisplay",
    "TauScores",
    "UnjudgedClassWarning",
]

BOUNDS = (0.0, 4.0)
DEFAULT_GRID = np.linspace(*BOUNDS, 81)
# Resampled curves behind the choice and its interval.
REPLICATES = 200
# Scores that are computed here, over all held-out examples together.
OWN = ("balanced_accuracy", "target")


class FixedTauOnMarginsWarning(UserWarning):
    """tau = 1 is applied to margins, which are not on the scale of log-probabilities."""


class UnjudgedClassWarning(UserWarning):
    """A class was never both trained on and held out, so tau is chosen without it."""


class FewExamplesWarning(UserWarning):
    """Few held-out examples decide about tau, those of rare classes."""


class LogitAdjustedClassifier(AdjustedBase):
    """A classifier whose scores are adjusted from the training prior to a target prior.

    With f the estimator's logits (log-probabilities, or margins), π the prior it was trained
    with and q the target prior, the adjusted logits are (equation 9)

        g_y = f_y − tau (log π_y − log q_y),

    `predict_proba` is softmax(g) and `predict` its argmax. With q uniform, tau = 1 and calibrated
    probabilities this minimises the balanced error, at the expense of accuracy and, as a rule, of
    macro-F1; the probabilities are those of data in which all classes are as frequent. Where
    something else counts, say so by `target` or `costs`, or choose tau by it with
    LogitAdjustedClassifierCV(scoring=...).

    Args:
        estimator: any classifier with `predict_proba` or `decision_function`, of any number of
            classes; it is cloned and fitted. Wrap a fitted one in scikit-learn's FrozenEstimator
            to keep it as it is.
        tau: strength of the adjustment; 0 changes nothing, 1 is the theory's value for
            log-probabilities. Margins of an estimator without `predict_proba` (LinearSVC,
            RidgeClassifier) have another scale: at tau = 1 a FixedTauOnMarginsWarning says so.
        prior: π. "train" counts the labels (or sums the weights) that the estimator is fitted
            on; for a frozen one those given to `fit`, so pass the prior of its real training data
            where the two differ. "effective" is its mean predicted probability on the rows given
            to `fit`, what it has actually learnt (a model that memorises its rows repeats their
            frequencies; freeze it and fit on held-out rows for more). Or a ClassPrior,
            probabilities or counts in the order of `classes_`, or by label in a dict or Series,
            such as `y.value_counts()`.
        target: q. "balanced" (all classes alike), "train" (those of `prior`, so that only costs
            act), or frequencies as in `prior`.
        costs: None; or what an error on each true class costs, shape (classes,) or a dict or
            Series by label, which joins the adjustment as in `adjust_logits`, argmax g_y + tau
            log c_y; or a matrix C[true, predicted] (or a DataFrame by labels), for which `predict`
            takes the least expected cost, argmin_j Σ_y P(y | x) C[y, j] with P from
            `predict_proba`. The two agree at tau = 1 where C[y, j] = c_y off a zero diagonal.
            Probabilities have no part in costs.
        reweight: w, does a part of the adjustment in training: the estimator is fitted with
            `sample_weight` n^−w, n the examples of the label's class, and f is its logits taken
            back to the frequencies of the labels, + w log n_y, so that tau = 1 is right whatever w
            is. 0 leaves the training alone, 1 weighs as class_weight="balanced" does. Of a frozen
            estimator it says how it was trained.
        response_method: "predict_proba", "decision_function", or "auto" for the first of the two
            that the estimator has. A class of probability exactly zero, as forests give, is never
            predicted instead of another.

    Attributes:
        estimator_: the fitted classifier.
        classes_: labels, sorted, shape (classes,).
        prior_: π, a ClassPrior.
        adjustment_: what is added to the logits of `estimator_`, reweight log π − tau (log π −
            log q), shape (classes,).
        n_features_in_, feature_names_in_: as the estimator has them.

    Examples:
        >>> from sklearn.datasets import make_classification
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.metrics import balanced_accuracy_score
        >>> X, y = make_classification(
        ...     3000, n_informative=6, n_classes=3, weights=[0.9, 0.07], random_state=1
        ... )
        >>> plain = LogisticRegression().fit(X[::2], y[::2])
        >>> adjusted = LogitAdjustedClassifier(LogisticRegression()).fit(X[::2], y[::2])
        >>> for model in (plain, adjusted):
        ...     print(round(balanced_accuracy_score(y[1::2], model.predict(X[1::2])), 2))
        0.49
        0.67
    """

    def __init__(
        self,
        estimator: Any,
        *,
        tau: float = 1.0,
        prior: Any = "train",
        target: Any = "balanced",
        costs: Any = None,
        reweight: float = 0.0,
        response_method: str = "auto",
    ) -> None:
        self.estimator = estimator
        self.tau = tau
        self.prior = prior
        self.target = target
        self.costs = costs
        self.reweight = reweight
        self.response_method = response_method

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, **params: Any
    ) -> LogitAdjustedClassifier:
        """Fit the estimator and learn the prior.

        Args:
            X: what the estimator's own `fit` takes, shape (examples, features).
            y: labels, shape (examples,); at least two classes.
            sample_weight: shape (examples,), for the classifier (of a pipeline the last step) and
                the prior; an integer weight equals repetition, and a weight of zero absence.
            **params: for the estimator's own `fit`, such as `eval_set`; with scikit-learn's
                metadata routing on, what it asks for.
        """
        tau = _checks.tau(self.tau)
        rows = self._read_rows(X, y, sample_weight, params)
        classes, prior = self._check_settings(rows)
        rows = self._learn(rows, rows.with_weight(), classes, prior)
        if prior is None:
            prior = effective_prior(self._logits(rows.X), rows.weight, classes, self._method)
        self._set_rule(prior, tau)
        self._warn_if_twice()
        margins_only = not hasattr(self.estimator_, "predict_proba")
        acts = self.costs is not None or np.ptp(self.adjustment_) > 0
        if margins_only and acts and tau == 1:  # another tau is somebody's choice for these margins
            warnings.warn(
                f"tau=1 is the value for log-probabilities, but "
                f"{type(final_estimator(self.estimator_)).__name__} has no predict_proba, and the "
                f"margins of its decision_function have another scale, so that rare classes may "
                f"take nearly every prediction; let LogitAdjustedClassifierCV choose tau, or wrap "
                f"the estimator in CalibratedClassifierCV.",
                FixedTauOnMarginsWarning,
                stacklevel=2,
            )
        return self


class LogitAdjustedClassifierCV(AdjustedBase):
    """A logit-adjusted classifier whose tau is chosen on held-out predictions.

    The estimator is fitted on each split, its held-out scores are adjusted by the prior of what
    it was fitted on, and a tau is chosen by the held-out score. Then the estimator is fitted on
    everything. See LogitAdjustedClassifier for the rule itself.

    The default aim, balanced accuracy, counts every class alike. It costs accuracy and, as a rule,
    macro-F1, since more examples of frequent classes are taken for rare ones, and the probabilities
    are not those of the data as they come. Ask for another aim by scoring="f1_macro" or any other
    scorer, or by `target` and `costs` with scoring="target".

    Args:
        estimator: as in LogitAdjustedClassifier. A FrozenEstimator is tuned as it is.
        scoring: "balanced_accuracy", exact, over the held-out examples of all splits together;
            "target", which judges by `target` and `costs`: Σ_y w_y recall_y with w_y ∝ q_y c_y,
            exact, or minus the mean cost under a cost matrix; or any other scikit-learn scorer's
            name or callable `scorer(estimator, X, y)`, averaged over the splits.
        select: how tau is chosen from all of [0, 4] for the exact scores: "bootstrap", the mean of
            the best taus of resampled held-out examples, which is steadier where few rare examples
            decide; or "minimum", the midpoint of the best cell nearest to 1. From a grid the best
            is taken, the one nearest to 1 among equals.
        cv: None (5 stratified folds), a number of folds (a class may have fewer examples than
            that, but two: UnjudgedClassWarning tells of one), a fraction in (0, 1) for one shuffled
            split, a splitter, or (train, test) index pairs; or "prefit", which tunes a fitted
            estimator on the rows given to `fit`. These must not be rows that it was trained on,
            whose scores are better than on new data.
        refit: whether to fit on all rows in the end; False keeps the classifier of the only
            split. A fitted estimator is never fitted again.
        tau_grid: taus to choose from. None means all of [0, 4] for the exact scores and 81
            evenly spaced ones, 0, 0.05, ..., 4, for the others.
        prior: as in LogitAdjustedClassifier, with "effective" the mean of the held-out
            predictions. For "prefit", "train" counts the labels given to `fit`.
        target: as in LogitAdjustedClassifier.
        costs: as in LogitAdjustedClassifier.
        reweight: as in LogitAdjustedClassifier.
        response_method: as in LogitAdjustedClassifier.
        n_jobs: splits fitted at a time, as in joblib.
        random_state: of the shuffled split, if `cv` is a fraction.

    Attributes:
        estimator_, classes_, prior_, adjustment_: as in LogitAdjustedClassifier, at `best_tau_`.
        best_tau_: the chosen tau.
        best_tau_interval_: its 95% bootstrap interval, or None for a grid. A FewExamplesWarning
            says where it is likely too narrow.
        best_score_: its held-out score; optimistic, as any chosen maximum is.
        tau_curve_: a TauScores, the held-out score as a function of tau (in place of scikit-learn's
            `cv_results_`): `taus`, `scores` and, of a scorer, `split_scores`.
        n_features_in_, feature_names_in_: as the estimator has them.

    Examples:
        >>> from sklearn.datasets import make_classification
        >>> from sklearn.ensemble import RandomForestClassifier
        >>> X, y = make_classification(
        ...     2000, n_informative=5, n_classes=3, weights=[0.7, 0.2], random_state=0
        ... )
        >>> forest = RandomForestClassifier(20, random_state=0)
        >>> tuned = LogitAdjustedClassifierCV(forest, cv=3).fit(X, y)
        >>> tuned.best_score_ > 1 - tuned.tau_curve_.exact(0.0)  # better than no adjustment
        True
    """

    def __init__(
        self,
        estimator: Any,
        *,
        scoring: Any = "balanced_accuracy",
        select: str = "bootstrap",
        cv: Any = None,
        refit: bool = True,
        tau_grid: Any = None,
        prior: Any = "train",
        target: Any = "balanced",
        costs: Any = None,
        reweight: float = 0.0,
        response_method: str = "auto",
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.scoring = scoring
        self.select = select
        self.cv = cv
        self.refit = refit
        self.tau_grid = tau_grid
        self.prior = prior
        self.target = target
        self.costs = costs
        self.reweight = reweight
        self.response_method = response_method
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, **params: Any
    ) -> LogitAdjustedClassifierCV:
        """Choose tau on held-out predictions, and fit the estimator.

        Args:
            X: what the estimator's own `fit` takes, shape (examples, features).
            y: labels, shape (examples,); at least two classes.
            sample_weight: shape (examples,), for the classifier, the prior and the score; an
                integer weight equals repetition within a split, and a weight of zero absence.
            **params: for the estimator's own `fit`, in every split: what has a value for each row,
                such as `init_score`, is cut as the rows are, anything else, such as `eval_set`, is
                passed as it is. With scikit-learn's metadata routing on, what the estimator, the
                splitter and the scorer ask for.
        """
        _checks.choice(self.select, SELECT, name="select")
        grid = self.tau_grid
        if grid is not None:
            grid = np.unique(_checks.vector(grid, name="tau_grid").astype(np.float64))
            _checks.all_finite(grid, name="tau_grid")
        rows = self._read_rows(X, y, sample_weight, params)
        classes, prior = self._check_settings(rows)
        scorer = self._scorer()
        shared = ("prior", "target", "costs", "reweight", "response_method")
        settings = {name: getattr(self, name) for name in shared}
        prefit = self._is_prefit()
        settings["estimator"] = FrozenEstimator(self.estimator) if prefit else self.estimator
        folds: list[_Fold] = Parallel(n_jobs=self.n_jobs)(
            delayed(_Fold(**settings).fit_split)(rows, *split, classes, prior)
            for split in self._splits(rows, pooled=scorer is None)
        )
        if prior is None:
            weights = [fold.held.weight for fold in folds if fold.held.weight is not None]
            weight = np.concatenate(weights) if weights else None
            logits = np.concatenate([fold.logits for fold in folds])
            prior = effective_prior(logits, weight, classes, folds[0]._method)
        for fold in folds:
            fold.target = target_prior(self.target, prior, classes)
            fold._set_rule(fold._labels_prior if str(self.prior) == "train" else prior, 1.0)
        self.tau_curve_ = curve = self._choose(folds, scorer, grid)
        self.best_tau_, self.best_score_ = curve.tau, curve.score
        self.best_tau_interval_ = curve.interval
        if self.refit or prefit:
            self._learn(rows, rows.with_weight(), classes, prior)
        else:
            (fold,) = folds
            self.estimator_, self.classes_ = fold.estimator_, classes
            self._method, self._offset, prior = fold._method, fold._offset, fold.prior_
        self._set_rule(prior, self.best_tau_)
        self._warn_if_twice()
        self._warn_of_few(folds)
        return self

    def _scorer(self) -> Any:
        """Return the scorer to ask, or None for the target's own criterion."""
        if self.scoring not in OWN:
            return check_scoring(self.estimator, scoring=self.scoring)
        balanced = str(self.target) == "balanced" and self.costs is None
        if self.scoring == "balanced_accuracy" and not balanced:
            raise InputError(
                "scoring='balanced_accuracy' judges all classes alike, but `target` or `costs` say "
                "otherwise; pass scoring='target', which judges by them."
            )
        return None

    def _splits(
        self, rows: Rows, *, pooled: bool
    ) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Return (train, held-out) rows of each split, less those of no weight."""
        place = np.arange(len(rows.y))  # so that masks become indices, too
        if self._is_prefit():
            return [(place[:0], rows.with_weight())]
        cv = self.cv
        if isinstance(cv, Real) and not isinstance(cv, Integral):
            fraction = _checks.fraction(cv, name="cv", below_one=True)
            cv = StratifiedShuffleSplit(1, test_size=fraction, random_state=self.random_state)
        cv = check_cv(cv, y=rows.y, classifier=True)
        with warnings.catch_warnings():
            # A class with fewer examples than folds is what pooling folds is for; a scorer's
            # mean over folds that lack a class is another matter.
            if pooled:
                warnings.filterwarnings("ignore", message="The least populated class in y")
            splits = [
                (rows.with_weight(place[train]), rows.with_weight(place[held_out]))
                for train, held_out in cv.split(rows.X, rows.y, **rows.split_params)
            ]
        if not self.refit and len(splits) > 1:
            raise InputError(
                f"refit=False keeps the classifier of the only split, but `cv` makes "
                f"{len(splits)}; pass refit=True, or cv=0.2 for one split."
            )
        return splits

    def _choose(self, folds: Sequence[_Fold], scorer: Any, grid: FloatArray | None) -> TauScores:
        """Return the score over tau with the choice."""
        aim, costs = folds[0].target, folds[0]._costs  # as of all folds
        held = sum(np.bincount(f.codes, f.held.weight, len(aim.probs)) for f in folds)
        if scorer is None and np.any(held == 0):
            raise InputError(
                f"every class needs held-out examples to be judged by, but class(es) "
                f"{listing(folds[0].classes_[held == 0])} have none; use other splits, or pass "
                f"rows of these classes."
            )
        if scorer is None and (costs is None or costs.ndim == 1):
            parts = TauIntervals.merge(
                TauIntervals.from_logits(
                    fold.logits,
                    fold.codes,
                    fold.prior_,
                    target_prior=aim,
                    costs=costs,
                    sample_weight=fold.held.weight,
                )
                for fold in folds
            )
            if grid is None:
                return TauScores.of_intervals(parts, self.select)
            return TauScores.of_grid(grid, 1.0 - TauCurve(parts, bounds=BOUNDS)(grid))

        def ask(fold: _Fold) -> Any:
            return scorer(fold, fold.held.X, fold.held.y, **fold.held.score_params)

        def cost(fold: _Fold) -> Any:
            chosen = fold._decisions(fold.held.X).argmax(axis=1)
            paid = np.asarray(costs)[fold.codes, chosen] * (aim.probs / held)[fold.codes]
            return -np.sum(paid if fold.held.weight is None else paid * fold.held.weight)

        taus, score = DEFAULT_GRID if grid is None else grid, cost if scorer is None else ask
        table = np.array([[fold.score_at(float(tau), score) for tau in taus] for fold in folds])
        if not np.all(np.isfinite(table)):
            raise InputError(
                "the scorer gave NaN or infinity on some split; it may need every class in every "
                "split: use fewer splits, or another scoring."
            )
        if scorer is None:
            return TauScores.of_grid(taus, table.sum(axis=0))
        return replace(TauScores.of_grid(taus, table.mean(axis=0)), split_scores=table)

    def _warn_of_few(self, folds: Sequence[_Fold]) -> None:
        known = [np.intersect1d(fold.held.y, fold.estimator_.classes_) for fold in folds]
        held = np.concatenate([fold.held.y for fold in folds])
        unjudged = np.setdiff1d(held, np.concatenate(known))
        if len(unjudged):
            warnings.warn(
                f"class(es) {listing(unjudged)} can't be judged: "
                f"whichever split holds their examples out leaves none to train on, so that they "
                f"are wrong at any tau; tau is chosen without them, and `best_score_` counts them "
                f"as errors. A class needs two examples at least, and splits that part them.",
                UnjudgedClassWarning,
                stacklevel=3,
            )
        exact = self.tau_curve_.exact
        if exact is not None and exact.intervals.deciding_examples < ENOUGH_TO_DECIDE:
            warnings.warn(
                f"in effect {exact.intervals.deciding_examples:.0f} of the held-out examples "
                f"decide about tau, those of rare classes, so `best_tau_interval_` is likely too "
                f"narrow.",
                FewExamplesWarning,
                stacklevel=3,
            )

    def get_metadata_routing(self) -> Any:
        """Return where metadata goes: here, and to the estimator, the splitter and the scorer."""
        router, to = super().get_metadata_routing(), MethodMapping
        router.add(splitter=self.cv, method_mapping=to().add(caller="fit", callee="split"))
        if self.scoring not in OWN:
            scorer = check_scoring(self.estimator, scoring=self.scoring)
            router.add(scorer=scorer, method_mapping=to().add(caller="fit", callee="score"))
        return router


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
        split_scores: of a scorer the score of each split, shape (splits, points), else None.
    """

    taus: FloatArray
    scores: FloatArray
    tau: float
    score: float
    interval: tuple[float, float] | None = None
    exact: TauCurve | None = None
    split_scores: FloatArray | None = None

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
        edges, scores = found.curve.breakpoints, 1.0 - found.curve.values
        middles = (edges[:-1] + edges[1:]) / 2
        return cls(middles, scores, found.tau, 1.0 - found.error, found.confidence, found.curve)

    def __repr__(self) -> str:
        kind = "points" if self.exact is None else "cells"
        interval = ""
        if self.interval is not None:
            interval = f", interval=({self.interval[0]:.3g}, {self.interval[1]:.3g})"
        return (
            f"TauScores(tau={self.tau:.3g}{interval}, score={self.score:.4g}, "
            f"{kind}={len(self.taus)})"
        )


@dataclass(eq=False, repr=False)
class TauCurveDisplay:
    """The plot of the held-out score against tau; make one with `from_estimator`.

    Attributes:
        curve: the TauScores to draw.
        score_name: name of the score.
        ax_: matplotlib axes, once drawn; likewise `figure_` and `line_`, the curve.
    """

    curve: TauScores
    score_name: str = "score"

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, ax: Any = None, name: str | None = None, **kwargs: Any
    ) -> TauCurveDisplay:
        """Draw the curve of a fitted LogitAdjustedClassifierCV, and its choice.

        Args:
            estimator: fitted.
            ax: matplotlib axes to draw on; new ones if None.
            name: label of the curve, for a legend that compares several.
            **kwargs: for matplotlib's `plot`.

        Examples:
            >>> import matplotlib; matplotlib.use("agg")
            >>> from sklearn.datasets import load_iris
            >>> from sklearn.naive_bayes import GaussianNB
            >>> X, y = load_iris(return_X_y=True)
            >>> tuned = LogitAdjustedClassifierCV(GaussianNB()).fit(X[:130], y[:130])
            >>> TauCurveDisplay.from_estimator(tuned).ax_.get_xlabel()
            'tau'
        """
        check_is_fitted(estimator, "tau_curve_")
        scoring = estimator.scoring if isinstance(estimator.scoring, str) else "score"
        score_name = scoring.replace("target", "score under the target").replace("_", " ")
        return cls(estimator.tau_curve_, score_name).plot(ax=ax, name=name, **kwargs)

    def plot(self, ax: Any = None, *, name: str | None = None, **kwargs: Any) -> TauCurveDisplay:
        """Draw the curve, the chosen tau with its interval, and tau = 1 for comparison.

        Args:
            ax: as in `from_estimator`.
            name: as in `from_estimator`.
            **kwargs: for matplotlib's `plot`.
        """
        if ax is None:
            _, ax = _checks.require("matplotlib.pyplot", extra="report").subplots()
        curve = self.curve
        if curve.exact is None:
            (line,) = ax.plot(curve.taus, curve.scores, label=name, **kwargs)
        else:
            # Constant within each cell: hold a score until the cell's end.
            held = np.append(curve.scores, curve.scores[-1:])
            style = {"drawstyle": "steps-post", **kwargs}
            (line,) = ax.plot(curve.exact.breakpoints, held, label=name, **style)
        color = line.get_color()
        if curve.interval is not None:
            ax.axvspan(*curve.interval, color=color, alpha=0.1, linewidth=0, zorder=0)
        ax.axvline(1.0, color="0.7", linewidth=1, linestyle=":", zorder=0)
        label = f"chosen: tau = {curve.tau:.2f}"
        ax.plot([curve.tau], [curve.score], "o", color=color, label=label)
        ax.set(xlabel="tau", ylabel=f"held-out {self.score_name}")
        ax.legend()
        self.ax_, self.figure_, self.line_ = ax, ax.figure, line
        return self


class _Fold(LogitAdjustedClassifier):
    """A split's classifier with its logits of the rows held out, for scorers to ask."""

    def fit_split(
        self,
        rows: Rows,
        train: NDArray[np.intp],
        held_out: NDArray[np.intp],
        classes: NDArray[Any],
        prior: ClassPrior | None,
    ) -> _Fold:
        """Fit on the rows `train`, and read the logits of the rows `held_out`."""
        self.held = rows.take(held_out, train)
        self._learn(rows, held_out if self._is_prefit() else train, classes, prior)
        self.codes, self.logits = encode(self.held.y, classes), super()._logits(self.held.X)
        return self

    def _logits(self, X: Any) -> FloatArray:
        return self.logits if X is self.held.X else super()._logits(X)

    def score_at(self, tau: float, score: Callable[[_Fold], Any]) -> float:
        """Return the score of this fold's predictions at another tau."""
        self._set_rule(self.prior_, tau)
        return float(score(self))
