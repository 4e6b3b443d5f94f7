"""Classifiers that adjust any other one for rare classes, with tau fixed or tuned.

`LogitAdjustedClassifier` and `LogitAdjustedClassifierCV` are to every number of classes what
scikit-learn's `FixedThresholdClassifier` and `TunedThresholdClassifierCV` are to two.
"""

from __future__ import annotations

import warnings
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import StratifiedShuffleSplit, check_cv
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted

from longtail import _checks
from longtail._checks import InputError
from longtail.priors import ClassPrior
from longtail.sklearn import _folds as folds
from longtail.sklearn._base import (
    AdjustedBase,
    Rows,
    check_costs,
    effective_prior,
    encode,
    learnt_prior,
    target_prior,
)
from longtail.sklearn._display import TauCurveDisplay as TauCurveDisplay
from longtail.sklearn._folds import TauScores as TauScores
from longtail.sklearn._scores import (
    choose_method,
    classes_of,
    final_estimator,
    fit_classifier,
    read_logits,
)
from longtail.tuning import ENOUGH_TO_DECIDE, SELECT

__all__ = [
    "FewExamplesWarning",
    "FixedTauOnMarginsWarning",
    "LogitAdjustedClassifier",
    "LogitAdjustedClassifierCV",
    "TauCurveDisplay",
    "TauScores",
    "UnjudgedClassWarning",
]


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
            on; "effective" is its mean predicted probability on the rows given to `fit`, what it
            has actually learnt (in-sample: a model that memorises its rows repeats their
            frequencies; freeze it and fit on held-out rows for more); or a ClassPrior,
            probabilities or counts in the order of `classes_`, or by label in a dict or Series,
            such as `y.value_counts()`. For a frozen estimator "train" counts the labels given to
            `fit`: pass the prior of its real training data where the two differ (balanced labels,
            which would change nothing, are refused).
        target: q. "balanced" (all classes alike), "train" (those of `prior`, so that only costs
            act), or frequencies as in `prior`.
        costs: None; or what an error on each true class costs, shape (classes,) or a dict or
            Series by label, which joins the adjustment as in `adjust_logits`, argmax g_y + tau
            log c_y; or a matrix C[true, predicted] (or a DataFrame by labels), for which `predict`
            takes the least expected cost, argmin_j Σ_y P(y | x) C[y, j] with P from
            `predict_proba`. The two agree at tau = 1 where C[y, j] = c_y off a zero diagonal.
            Probabilities have no part in costs.
        response_method: "predict_proba", "decision_function", or "auto" for the first of the two
            that the estimator has. A class of probability exactly zero, as forests give, is never
            predicted instead of another.

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
            **params: for the estimator's own `fit`, such as `eval_set`; with scikit-learn's
                metadata routing on, what it asks for.

        Returns:
            The estimator itself.
        """
        tau = _checks.tau(self.tau)
        rows = self._rows(X, y, sample_weight, params)
        kept = rows.with_weight()
        if len(kept) < len(rows.y):
            rows = rows.take(kept, kernel_of=None if self._is_prefit() else self.estimator)
        classes = classes_of(self.estimator) if self._is_prefit() else np.unique(rows.y)
        costs = check_costs(self.costs, classes)
        weight = rows.weight if self._is_prefit() else rows.fit_weight
        prior = None
        if not (isinstance(self.prior, str) and self.prior == "effective"):
            prior = learnt_prior(self.prior, rows.y, weight, classes)
            if self._is_prefit() and isinstance(self.prior, str) and tau:
                self._refuse_uniform(prior)
        aim = target_prior(self.target, prior or ClassPrior.uniform(len(classes)), classes)
        estimator = fit_classifier(clone(self.estimator), rows.X, rows.y, rows.fit_params)
        method = choose_method(estimator, self.response_method)
        classes = classes_of(estimator)
        if prior is None:
            encode(rows.y, classes)
            logits = read_logits(estimator, rows.X, method)
            prior = effective_prior(logits, weight, classes, method)
            aim = target_prior(self.target, prior, classes)
        self._set_rule(estimator, classes, prior, tau=tau, aim=aim, costs=costs, method=method)
        read_logits(estimator, rows.take(np.arange(1)).X, method)  # what it says now, not later
        self._warn_if_twice()
        margins_only = method == "decision_function" and not hasattr(estimator, "predict_proba")
        acts = costs is not None or np.ptp(self.adjustment_) > 0
        if margins_only and acts and tau == 1:  # another tau is somebody's choice for these margins
            warnings.warn(
                f"tau=1 is the value for log-probabilities, but "
                f"{type(final_estimator(estimator)).__name__} has no predict_proba, and the "
                f"margins of its decision_function have another scale, so that rare classes may "
                f"take nearly every prediction; let LogitAdjustedClassifierCV choose tau, or wrap "
                f"the estimator in CalibratedClassifierCV.",
                FixedTauOnMarginsWarning,
                stacklevel=2,
            )
        return self

    def get_metadata_routing(self) -> Any:
        """Return where metadata goes: here and, as it asks, to the estimator's `fit`."""
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
        best_tau_interval_: its 95% bootstrap interval, or None for a grid. A FewExamplesWarning
            says where it is likely too narrow.
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
        response_method: str = "auto",
        n_jobs: int | None = None,
        random_state: Any = None,
        store_cv_results: bool = False,
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
            **params: for the estimator's own `fit`, in every split: what has a value for each row,
                such as `init_score`, is cut as the rows are, anything else, such as `eval_set`, is
                passed as it is. With scikit-learn's metadata routing on, what the estimator, the
                splitter and the scorer ask for.

        Returns:
            The estimator itself.
        """
        _checks.choice(self.select, SELECT, name="select")
        rows = self._rows(X, y, sample_weight, params)
        every = rows.with_weight()
        prefit = self._is_prefit()
        classes = self._prefit_classes() if prefit else np.unique(rows.y[every])
        task, prior = self._task(rows, every, classes)
        splits = self._splits(rows, every, pooled=task.scorer is None)
        found = Parallel(n_jobs=self.n_jobs)(
            delayed(folds.run_fold)(
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
            prior, task, found = folds.find_prior(found, task)
        self.tau_curve_, split_scores = folds.combine(found, task, self.select)
        self.best_tau_, self.best_score_ = self.tau_curve_.tau, self.tau_curve_.score
        self.best_tau_interval_ = self.tau_curve_.interval
        self.__dict__.pop("cv_results_", None)  # of an earlier fit
        if self.store_cv_results:
            curve = self.tau_curve_
            self.cv_results_: dict[str, Any] = {"taus": curve.taus, "scores": curve.scores}
            if split_scores is not None:
                self.cv_results_["split_scores"] = split_scores
        estimator, train = found[0].estimator, splits[0][0]
        if train is None:
            estimator = self.estimator
        elif self.refit:
            if len(every) < len(rows.y):
                rows = rows.take(every, kernel_of=self.estimator)
            estimator = fit_classifier(clone(self.estimator), rows.X, rows.y, rows.fit_params)
        else:
            prior = self._prior_of_split(estimator, rows, train, classes, prior)
        assert task.aim is not None  # found with the prior, if not before
        self._set_rule(
            estimator,
            classes,
            prior,
            tau=self.best_tau_,
            aim=task.aim,
            costs=task.costs,
            method=task.method,
        )
        self._warn_if_twice()
        self._warn_of_few(folds.unjudged(found, task))
        return self

    def _warn_of_few(self, unjudged: NDArray[Any]) -> None:
        if len(unjudged):
            warnings.warn(
                f"class(es) {_checks.listing(map(repr, unjudged.tolist()))} can't be judged: "
                f"whichever split holds their examples out leaves none to train on, so that they "
                f"are wrong at any tau; tau is chosen without them, and `best_score_` counts them "
                f"as errors. A class needs two examples at least, and splits that part them.",
                UnjudgedClassWarning,
                stacklevel=3,
            )
        exact = self.tau_curve_.exact
        if self.best_tau_interval_ is not None and exact is not None:
            number = exact.intervals.deciding_examples
            if number < ENOUGH_TO_DECIDE:
                warnings.warn(
                    f"in effect {number:.0f} of the held-out examples decide about tau, those of "
                    f"rare classes, so `best_tau_interval_` is likely too narrow.",
                    FewExamplesWarning,
                    stacklevel=3,
                )

    def _task(
        self, rows: Rows, every: NDArray[np.intp], classes: NDArray[Any]
    ) -> tuple[folds.Task, ClassPrior | None]:
        """What the folds are asked, and the final prior, unless they are to find it."""
        costs = check_costs(self.costs, classes)
        balanced = isinstance(self.target, str) and self.target == "balanced" and costs is None
        prior, aim = None, None
        if not (isinstance(self.prior, str) and self.prior == "effective"):
            weight = rows.weight if self._is_prefit() else rows.fit_weight
            weight = None if weight is None else weight[every]
            prior = learnt_prior(self.prior, rows.y[every], weight, classes)
            if self._is_prefit():
                self._refuse_uniform(prior)
        if prior is not None or not (isinstance(self.target, str) and self.target == "train"):
            aim = target_prior(self.target, prior or ClassPrior.uniform(len(classes)), classes)
        scorer = folds.scorer_of(self.scoring)
        if scorer is None and self.scoring == "balanced_accuracy" and not balanced:
            raise InputError(
                "scoring='balanced_accuracy' judges all classes alike, but `target` or `costs` "
                "say otherwise; pass scoring='target', which judges by them."
            )
        if scorer is not None and "sample_weight" in rows.score_params:
            folds.refuse_weights(scorer)
        grid = None
        if self.tau_grid is not None:
            grid = np.unique(_checks.vector(self.tau_grid, name="tau_grid").astype(np.float64))
            _checks.all_finite(grid, name="tau_grid")
        method = choose_method(self.estimator, self.response_method)
        return folds.Task(classes, method, self.prior, aim, costs, scorer, grid), prior

    def _splits(
        self, rows: Rows, every: NDArray[np.intp], *, pooled: bool
    ) -> list[tuple[NDArray[np.intp] | None, NDArray[np.intp]]]:
        """(train, held-out) rows of each split, less those of no weight; None: fitted already."""
        if self._is_prefit():
            return [(None, every)]
        cv = self.cv
        if isinstance(cv, Real) and not isinstance(cv, Integral):
            fraction = _checks.fraction(cv, name="cv", below_one=True)
            cv = StratifiedShuffleSplit(1, test_size=fraction, random_state=self.random_state)
        cv = check_cv(cv, y=rows.y, classifier=True)
        place = np.arange(len(rows.y))  # so that masks become indices, too
        with warnings.catch_warnings():
            # A class with fewer examples than folds is what pooling folds is for; a scorer's
            # mean over folds that lack a class is another matter.
            if pooled:
                warnings.filterwarnings("ignore", message="The least populated class in y")
            splits: list[Any] = [
                (rows.with_weight(place[train]), rows.with_weight(place[held_out]))
                for train, held_out in cv.split(rows.X, rows.y, **rows.split_params)
            ]
        if not self.refit and len(splits) > 1:
            raise InputError(
                f"refit=False keeps the classifier of the only split, but `cv` makes "
                f"{len(splits)}; pass refit=True, or cv=0.2 for one split."
            )
        if any(len(part) == 0 for split in splits for part in split):
            raise InputError(
                "`cv` makes a split without rows of positive weight; use other splits."
            )
        return splits

    def _is_prefit(self) -> bool:
        return super()._is_prefit() or (isinstance(self.cv, str) and self.cv == "prefit")

    def _prefit_classes(self) -> NDArray[Any]:
        """The classes of an estimator that is fitted already."""
        if isinstance(self.cv, str) and self.refit:
            raise InputError(
                "cv='prefit' tunes the estimator as it is, so refit=True has no place; pass "
                "refit=False."
            )
        try:
            check_is_fitted(self.estimator)
        except NotFittedError as error:
            raise NotFittedError(
                "cv='prefit' needs a fitted estimator; fit it first, on other rows."
            ) from error
        return classes_of(self.estimator)

    def _prior_of_split(
        self,
        estimator: Any,
        rows: Rows,
        train: NDArray[np.intp],
        classes: NDArray[Any],
        prior: ClassPrior,
    ) -> ClassPrior:
        """With refit=False, the prior of the rows that the kept classifier was fitted on."""
        lacking = np.setdiff1d(classes, estimator.classes_)
        if len(lacking):
            raise InputError(
                f"with refit=False the classifier never saw class(es) "
                f"{_checks.listing(map(repr, lacking.tolist()))}, which the split held out; "
                f"pass refit=True."
            )
        if not (isinstance(self.prior, str) and self.prior == "train"):
            return prior
        weight = None if rows.fit_weight is None else rows.fit_weight[train]
        return learnt_prior("train", rows.y[train], weight, classes)

    def get_metadata_routing(self) -> Any:
        """Return where metadata goes: here, and to the estimator, the splitter and the scorer."""
        router = MetadataRouter(owner=self).add_self_request(self)
        parts = {"estimator": (self.estimator, "fit"), "splitter": (self.cv, "split")}
        scorer = folds.scorer_of(self.scoring)
        if scorer is not None:
            parts["scorer"] = (scorer, "score")
        for name, (part, callee) in parts.items():
            mapping = MethodMapping().add(caller="fit", callee=callee)
            router.add(method_mapping=mapping, **{name: part})
        return router
