"""Any scikit-learn classifier in, one that respects rare classes out, with tau fixed or tuned.

`LogitAdjustedClassifier` and `LogitAdjustedClassifierCV` are to every number of classes what
scikit-learn's `FixedThresholdClassifier` and `TunedThresholdClassifierCV` are to two. What they
share is in `_base`, reading scores in `_scores`, choosing tau in
`_tuning`, what they warn of in `_warnings`, the plot in `_display`.
"""

from __future__ import annotations

import warnings
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import StratifiedShuffleSplit, check_cv
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted

from longtail import _checks
from longtail._checks import InputError
from longtail.priors import ClassPrior
from longtail.sklearn import _targets as targets
from longtail.sklearn import _tuning as tuning
from longtail.sklearn._base import (
    AdjustedBase,
    Rows,
    learnt_prior,
    mean_ready,
    prior_of_predictions,
    refuse_uniform,
)
from longtail.sklearn._display import TauCurveDisplay as TauCurveDisplay
from longtail.sklearn._leakage import evidence
from longtail.sklearn._scores import ScoreReader, choose_method, classes_of, probe_rows
from longtail.sklearn._tuning import TauScores as TauScores
from longtail.sklearn._warnings import FixedTauOnMarginsWarning as FixedTauOnMarginsWarning
from longtail.sklearn._warnings import TunedOnTrainingDataWarning as TunedOnTrainingDataWarning
from longtail.sklearn._warnings import UnjudgedClassWarning as UnjudgedClassWarning
from longtail.sklearn._warnings import (
    warn_if_twice,
    warn_of_leakage,
    warn_of_margins,
    warn_of_unjudged,
)

__all__ = [
    "FixedTauOnMarginsWarning",
    "LogitAdjustedClassifier",
    "LogitAdjustedClassifierCV",
    "TauCurveDisplay",
    "TauScores",
    "TunedOnTrainingDataWarning",
    "UnjudgedClassWarning",
]


class LogitAdjustedClassifier(AdjustedBase):
    """A classifier whose scores are adjusted from the training prior to a target prior.

    With f the estimator's logits (log-probabilities, or margins), π the prior it was trained
    with and q the target prior, the adjusted logits are (equation 9)

        g_y = f_y − tau (log π_y − log q_y),

    `predict_proba` is softmax(g) and `predict` its argmax. With q uniform, tau = 1 and calibrated
    probabilities this minimises the balanced error.

    Args:
        estimator: any classifier with `predict_proba` or `decision_function`, of any number of
            classes; it is cloned and fitted. Wrap a fitted one in scikit-learn's FrozenEstimator
            to keep it as it is.
        tau: strength of the adjustment; 0 changes nothing, 1 is the theory's value for
            log-probabilities. Margins of an estimator without `predict_proba` (LinearSVC,
            RidgeClassifier) have another scale: at tau = 1 a FixedTauOnMarginsWarning says so.
        prior: π. "train" counts the labels (or sums the weights) that the estimator is fitted
            on; "effective" is its mean predicted probability on the rows given to `fit`, what it
            has actually learnt (in-sample: a model that memorises its rows repeats their
            frequencies; freeze it and fit on held-out rows for more); or a ClassPrior,
            probabilities in the order of `classes_`, or a dict or Series by label. For a frozen
            estimator "train" counts the labels given to `fit`: pass the ClassPrior of its real
            training data where the two differ (balanced labels, which would change nothing, are
            refused).
        target: q. "balanced" (all classes alike), "train" (those of `prior`, so that only costs
            act), a ClassPrior, probabilities in the order of `classes_`, or a dict or Series by
            label.
        costs: None; or what an error on each true class costs, shape (classes,) or a dict or
            Series by label, which joins the adjustment as in `adjust_logits`, argmax g_y + tau
            log c_y; or a matrix C[true, predicted] (or a DataFrame by labels), for which `predict`
            takes the least expected cost, argmin_j Σ_y P(y | x) C[y, j] with P from
            `predict_proba`. The two agree at tau = 1 where C[y, j] = c_y off a zero diagonal.
            Probabilities have no part in costs.
        response_method: "predict_proba", "decision_function", or "auto" for the first of the two
            that the estimator has. Probabilities of exactly zero, as forests give, are read as
            `longtail.sklearn._scores.ScoreReader` says: finite, and below every positive one.

    Attributes:
        estimator_: the fitted classifier.
        classes_: labels, sorted, shape (classes,).
        prior_: π, a ClassPrior.
        adjustment_: what is added to the logits, −tau (log π − log q), shape (classes,).
        n_features_in_: as the estimator has it.
        feature_names_in_: as the estimator has it.

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
        response_method: str = "auto",
    ) -> None:
        self.estimator = estimator
        self.tau = tau
        self.prior = prior
        self.target = target
        self.costs = costs
        self.response_method = response_method

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, **params: Any
    ) -> LogitAdjustedClassifier:
        """Fit the estimator and learn the prior.

        Args:
            X: what the estimator's own `fit` takes, shape (examples, features).
            y: labels, shape (examples,); at least two classes.
            sample_weight: shape (examples,), for the estimator and the prior; an integer weight
                equals repetition, and a weight of zero absence.
            **params: further metadata for the estimator, where scikit-learn's metadata routing
                is on.

        Returns:
            The estimator itself.
        """
        caller = type(self).__name__
        tau = _checks.tau(self.tau, caller)
        rows = self._rows(X, y, sample_weight, params)
        estimator, rows = _fit_on(clone(self.estimator), rows)
        classes = classes_of(estimator, caller=caller)
        method = choose_method(estimator, self.response_method, caller=caller)
        weight = rows.weight if self._is_prefit() else rows.fit_weight
        if isinstance(self.prior, str) and self.prior == "effective":
            targets.encode(rows.y, classes, caller=caller)
            reader, answer = ScoreReader.learn(
                estimator, rows.X, method, num_classes=len(classes), caller=caller
            )
            probs = mean_ready(reader, answer, caller=caller)
            prior = prior_of_predictions(probs, weight, classes, caller=caller)
        else:
            prior = learnt_prior(self.prior, rows.y, weight, classes, caller=caller)
            if self._is_prefit() and isinstance(self.prior, str) and tau and self._balanced():
                refuse_uniform(prior, caller=caller)
            probe = rows.take(probe_rows(len(rows.y), weight))
            reader, _ = ScoreReader.learn(
                estimator, probe.X, method, num_classes=len(classes), caller=caller
            )
        costs = targets.check_costs(self.costs, classes, caller=caller)
        self._set_rule(estimator, classes, prior, reader, tau=tau, target=self.target, costs=costs)
        warn_if_twice(self, tau=tau)
        margins_only = method == "decision_function" and not hasattr(estimator, "predict_proba")
        acts = costs is not None or np.ptp(self.adjustment_) > 0
        if margins_only and acts and tau == 1:  # another tau is somebody's choice for these margins
            warn_of_margins(estimator, caller=caller)
        return self

    def get_metadata_routing(self) -> Any:
        """Where metadata goes: `sample_weight` here and, as it asks, to the estimator's `fit`."""
        return (
            MetadataRouter(owner=self)
            .add_self_request(self)
            .add(
                estimator=self.estimator,
                method_mapping=MethodMapping().add(caller="fit", callee="fit"),
            )
        )


class LogitAdjustedClassifierCV(AdjustedBase):
    """A logit-adjusted classifier whose tau is chosen on held-out predictions.

    The estimator is fitted on each split, its held-out scores are adjusted by the prior of what
    it was fitted on, and the tau of the best held-out score is kept: the exact maximiser over
    [0, 4] where the score is a (weighted) mean of the classes' recalls, the best of a grid
    otherwise. Among equals the one nearest to 1 is taken, in the middle of its cell or run. Then
    the estimator is fitted on everything. See LogitAdjustedClassifier for the rule itself.

    Args:
        estimator: as in LogitAdjustedClassifier. A FrozenEstimator is tuned as it is.
        scoring: "balanced_accuracy", exact, over the held-out examples of all splits together;
            "target", which judges by `target` and `costs`: Σ_y w_y recall_y with w_y ∝ q_y c_y,
            exact, or minus the mean cost under a cost matrix; or any other scikit-learn scorer's
            name or callable `scorer(estimator, X, y)`, averaged over the splits.
        cv: None (5 stratified folds), a number of folds (a class may have fewer examples than
            that, but two: UnjudgedClassWarning tells of one), a fraction in (0, 1) for one shuffled
            split, a splitter, or (train, test) index pairs; or "prefit", which tunes a fitted
            estimator on the rows given to `fit`. These must not be rows that it was trained
            on; where the estimator shows that they are, TunedOnTrainingDataWarning is given.
        refit: whether to fit on all rows in the end; False keeps the classifier of the only
            split, and is needed for "prefit".
        tau_grid: taus to choose from. None means all of [0, 4] for the exact scores and 81
            evenly spaced ones, 0, 0.05, ..., 4, for the others.
        prior: as in LogitAdjustedClassifier, with "effective" the mean of the held-out
            predictions. For "prefit", "train" counts the labels given to `fit`.
        target: as in LogitAdjustedClassifier.
        costs: as in LogitAdjustedClassifier.
        response_method: as in LogitAdjustedClassifier.
        n_jobs: splits fitted at a time, as in joblib.
        random_state: of the shuffled split, if `cv` is a fraction.
        store_cv_results: whether to keep `cv_results_`.

    Attributes:
        estimator_: the classifier that predicts.
        classes_: labels, sorted, shape (classes,).
        prior_: π of `estimator_`, a ClassPrior.
        adjustment_: what is added to the logits, −best_tau_ (log π − log q), shape (classes,).
        best_tau_: the chosen tau.
        best_score_: its held-out score; optimistic, as any chosen maximum is.
        tau_curve_: a TauScores, the held-out score as a function of tau.
        cv_results_: if kept, "taus" and "scores" of the curve and, for a scorer,
            "split_scores", shape (splits, taus).
        n_features_in_: as the estimator has it.
        feature_names_in_: as the estimator has it.

    Examples:
        >>> from sklearn.datasets import make_classification
        >>> from sklearn.ensemble import RandomForestClassifier
        >>> X, y = make_classification(
        ...     600, n_informative=5, n_classes=3, weights=[0.8, 0.15], random_state=0
        ... )
        >>> forest = RandomForestClassifier(20, random_state=0)
        >>> tuned = LogitAdjustedClassifierCV(forest, cv=3).fit(X, y)
        >>> 0 < tuned.best_tau_ < 4
        True
        >>> tuned.best_score_ > 1 - tuned.tau_curve_.exact(0.0)  # better than no adjustment
        True
    """

    def __init__(
        self,
        estimator: Any,
        *,
        scoring: Any = "balanced_accuracy",
        cv: Any = None,
        refit: bool = True,
        tau_grid: Any = None,
        prior: Any = "train",
        target: Any = "balanced",
        costs: Any = None,
        response_method: str = "auto",
        n_jobs: int | None = None,
        random_state: Any = None,
        store_cv_results: bool = False,
    ) -> None:
        self.estimator = estimator
        self.scoring = scoring
        self.cv = cv
        self.refit = refit
        self.tau_grid = tau_grid
        self.prior = prior
        self.target = target
        self.costs = costs
        self.response_method = response_method
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.store_cv_results = store_cv_results

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, **params: Any
    ) -> LogitAdjustedClassifierCV:
        """Choose tau on held-out predictions, and fit the estimator.

        Args:
            X: what the estimator's own `fit` takes, shape (examples, features).
            y: labels, shape (examples,); at least two classes.
            sample_weight: shape (examples,), for the estimator, the prior and the score; an
                integer weight equals repetition within a split, and a weight of zero absence.
            **params: further metadata for the estimator, the splitter and the scorer, where
                scikit-learn's metadata routing is on.

        Returns:
            The estimator itself.
        """
        rows = self._rows(X, y, sample_weight, params)
        every = rows.weighty(np.arange(len(rows.y)))
        prefit = self._is_prefit()
        classes = self._check_prefit(rows, every) if prefit else np.unique(rows.y[every])
        task, prior = self._task(rows, every, classes)
        splits = self._splits(rows, every, pooled=task.scorer is None)
        verdicts = Parallel(n_jobs=self.n_jobs)(
            delayed(tuning.run_fold)(
                self.estimator if prefit else clone(self.estimator),
                rows,
                train,
                held_out,
                task,
                keep=not prefit and not self.refit,
            )
            for train, held_out in splits
        )
        if prior is None:
            prior, task, verdicts = tuning.find_prior(verdicts, task)
        self.tau_curve_, split_scores = tuning.combine(verdicts, task)
        self.best_tau_, self.best_score_ = self.tau_curve_.best()
        self._store(split_scores)
        estimator, train = verdicts[0].estimator, splits[0][0]
        if train is None:
            estimator = self.estimator
        elif self.refit:
            estimator, _ = _fit_on(clone(self.estimator), rows)
        else:
            prior = self._prior_of_split(estimator, rows, train, task, prior)
        reader = ScoreReader.merge(verdict.reader for verdict in verdicts)
        self._set_rule(
            estimator,
            classes,
            prior,
            reader,
            tau=self.best_tau_,
            target=task.aim,
            costs=task.costs,
        )
        warn_if_twice(self, tau=self.best_tau_)
        warn_of_unjudged(tuning.unjudged(verdicts, task), caller=task.caller)
        return self

    def _task(
        self, rows: Rows, every: NDArray[np.intp], classes: NDArray[Any]
    ) -> tuple[tuning.Task, ClassPrior | None]:
        """What the folds are asked, and the final prior, unless they are to find it."""
        caller = type(self).__name__
        costs = targets.check_costs(self.costs, classes, caller=caller)
        by_labels = not (isinstance(self.prior, str) and self.prior == "effective")
        balanced = self._balanced()
        prior, aim = None, None
        if by_labels:
            weight = rows.weight if self._is_prefit() else rows.fit_weight
            weight = None if weight is None else weight[every]
            prior = learnt_prior(self.prior, rows.y[every], weight, classes, caller=caller)
        if prior is not None or not (isinstance(self.target, str) and self.target == "train"):
            basis = prior or ClassPrior.uniform(len(classes))
            aim = targets.target_prior(self.target, basis, classes, caller=caller)
        if self._is_prefit() and balanced and prior is not None:
            refuse_uniform(prior, caller=caller)
        scorer = tuning.scorer_of(self.scoring, caller=caller)
        weighted = "sample_weight" in rows.score_params
        tuning.check_scoring(
            self.scoring, scorer, balanced=balanced, weighted=weighted, caller=caller
        )
        task = tuning.Task(
            classes=classes,
            method=choose_method(self.estimator, self.response_method, caller=caller),
            prior=self.prior,
            aim=aim,
            costs=costs,
            scorer=scorer,
            grid=tuning.check_grid(self.tau_grid, caller=caller),
            caller=caller,
        )
        return task, prior

    def _splits(
        self, rows: Rows, every: NDArray[np.intp], *, pooled: bool
    ) -> list[tuple[NDArray[np.intp] | None, NDArray[np.intp]]]:
        """(train, held-out) rows of each split, less those of no weight; None: fitted already."""
        if self._is_prefit():
            return [(None, every)]
        caller = type(self).__name__
        cv = self.cv
        if isinstance(cv, Real) and not isinstance(cv, Integral):
            fraction = _checks.fraction(cv, caller, name="cv", below_one=True)
            cv = StratifiedShuffleSplit(1, test_size=fraction, random_state=self.random_state)
        cv = check_cv(cv, y=rows.y, classifier=True)
        place = np.arange(len(rows.y))  # so that masks become indices, too
        with warnings.catch_warnings():
            # A class with fewer examples than folds is what pooling folds is for; a scorer's
            # mean over folds that lack a class is another matter.
            if pooled:
                warnings.filterwarnings("ignore", message="The least populated class in y")
            splits: list[Any] = [
                (rows.weighty(place[train]), rows.weighty(place[held_out]))
                for train, held_out in cv.split(rows.X, rows.y, **rows.split_params)
            ]
        if not self.refit and len(splits) > 1:
            raise InputError(
                f"{caller}: refit=False keeps the classifier of the only split, but `cv` makes "
                f"{len(splits)}; pass refit=True, or cv=0.2 for one split."
            )
        if any(len(part) == 0 for split in splits for part in split):
            raise InputError(
                f"{caller}: `cv` makes a split without rows of positive weight; use other splits."
            )
        return splits

    def _is_prefit(self) -> bool:
        return super()._is_prefit() or (isinstance(self.cv, str) and self.cv == "prefit")

    def _check_prefit(self, rows: Rows, every: NDArray[np.intp]) -> NDArray[Any]:
        """The fitted estimator's classes, once it is known to be fitted, and not on these rows."""
        caller = type(self).__name__
        if isinstance(self.cv, str) and self.refit:
            raise InputError(
                f"{caller}: cv='prefit' tunes the estimator as it is, so refit=True has no place; "
                f"pass refit=False."
            )
        try:
            check_is_fitted(self.estimator)
        except NotFittedError as error:
            raise NotFittedError(
                f"{caller}: cv='prefit' needs a fitted estimator; fit it first, on other rows."
            ) from error
        classes = classes_of(self.estimator, caller=caller)
        tuned_on = rows.take(every)
        codes = targets.encode(tuned_on.y, classes, caller=caller)
        found = evidence(self.estimator, tuned_on.X, codes)
        if found is not None:
            warn_of_leakage(found, caller=caller)
        return classes

    def _prior_of_split(
        self,
        estimator: Any,
        rows: Rows,
        train: NDArray[np.intp],
        task: tuning.Task,
        prior: ClassPrior,
    ) -> ClassPrior:
        """With refit=False, the prior of the rows that the kept classifier was fitted on."""
        lacking = np.setdiff1d(task.classes, estimator.classes_)
        if len(lacking):
            raise InputError(
                f"{task.caller}: with refit=False the classifier never saw class(es) "
                f"{_checks.listing(map(repr, lacking.tolist()))}, which the split held out; "
                f"pass refit=True."
            )
        if not (isinstance(self.prior, str) and self.prior == "train"):
            return prior
        weight = None if rows.fit_weight is None else rows.fit_weight[train]
        return learnt_prior("train", rows.y[train], weight, task.classes, caller=task.caller)

    def _store(self, split_scores: Any) -> None:
        self.__dict__.pop("cv_results_", None)  # of an earlier fit
        if self.store_cv_results:
            curve = self.tau_curve_
            self.cv_results_: dict[str, Any] = {"taus": curve.taus, "scores": curve.scores}
            if split_scores is not None:
                self.cv_results_["split_scores"] = split_scores

    def get_metadata_routing(self) -> Any:
        """Where metadata goes: here, and to the estimator, the splitter and the scorer."""
        router = (
            MetadataRouter(owner=self)
            .add_self_request(self)
            .add(
                estimator=self.estimator,
                method_mapping=MethodMapping().add(caller="fit", callee="fit"),
            )
            .add(
                splitter=self.cv,
                method_mapping=MethodMapping().add(caller="fit", callee="split"),
            )
        )
        scorer = tuning.scorer_of(self.scoring, caller=type(self).__name__)
        if scorer is not None:
            router.add(
                scorer=scorer,
                method_mapping=MethodMapping().add(caller="fit", callee="score"),
            )
        return router


def _fit_on(estimator: Any, rows: Rows) -> tuple[Any, Rows]:
    """Fit on the rows that have weight, and give these back."""
    index = rows.weighty(np.arange(len(rows.y)))
    if len(index) < len(rows.y):
        frozen = isinstance(estimator, FrozenEstimator)
        rows = rows.take(index, kernel_of=None if frozen else estimator)
    return estimator.fit(rows.X, rows.y, **rows.fit_params), rows
