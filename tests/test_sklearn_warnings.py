"""What the estimators say, or refuse, where they would do harm or nothing in silence."""

import warnings
from functools import partial

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, RidgeClassifier, SGDClassifier
from sklearn.metrics import balanced_accuracy_score, make_scorer
from sklearn.model_selection import GridSearchCV, GroupKFold, LeaveOneOut
from sklearn.naive_bayes import BernoulliNB, GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

from longtail import AdjustedTwiceWarning, ClassPrior, InputError
from longtail.sklearn import (
    FewExamplesWarning,
    FixedTauOnMarginsWarning,
    LogitAdjustedClassifier,
    LogitAdjustedClassifierCV,
    UnjudgedClassWarning,
)


def long_tailed(seed=0, sizes=(120, 40, 12)):
    """Overlapping Gaussian classes of these sizes, shuffled."""
    rng = np.random.default_rng(seed)
    centers = 1.5 * np.random.default_rng(0).normal(size=(len(sizes), 4))
    y = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return centers[y] + 1.5 * rng.normal(size=(len(y), 4)), y


@pytest.fixture
def silent():
    """Any warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", FewExamplesWarning)
        yield


# ------------------------------------------------------------------ tau = 1 on margins


@pytest.mark.parametrize(
    "estimator",
    [
        RidgeClassifier(),
        LinearSVC(),
        SVC(),
        SGDClassifier(random_state=0),
        make_pipeline(StandardScaler(), LinearSVC()),
        GridSearchCV(RidgeClassifier(), {"alpha": [0.1, 1.0]}, cv=2),
        FrozenEstimator(RidgeClassifier().fit(*long_tailed(1))),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_tau_one_on_margins_says_so(estimator):
    X, y = long_tailed()
    message = r"margins.*LogitAdjustedClassifierCV.*CalibratedClassifier"
    with pytest.warns(FixedTauOnMarginsWarning, match=message) as caught:
        LogitAdjustedClassifier(estimator).fit(X, y)
    assert [one.filename for one in caught] == [__file__]
    with pytest.warns(FixedTauOnMarginsWarning):
        LogitAdjustedClassifier(estimator, response_method="decision_function").fit(X, y)


def test_the_warning_names_the_classifier_and_is_right():
    X, y = long_tailed(sizes=(1500, 400, 100, 20, 5))
    X_test, y_test = long_tailed(1, sizes=(100,) * 5)

    def accuracy(model):
        return balanced_accuracy_score(y_test, model.fit(X, y).predict(X_test))

    with pytest.warns(FixedTauOnMarginsWarning, match="RidgeClassifier"):
        fixed = accuracy(LogitAdjustedClassifier(make_pipeline(RidgeClassifier())))
    assert fixed == pytest.approx(0.2, abs=0.02)  # all of them the rarest class
    plain = accuracy(RidgeClassifier())
    assert accuracy(LogitAdjustedClassifierCV(RidgeClassifier())) > plain + 0.05
    calibrated = CalibratedClassifierCV(RidgeClassifier(), cv=3)
    assert accuracy(LogitAdjustedClassifier(calibrated)) > plain + 0.05


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    "model",
    [
        LogitAdjustedClassifierCV(RidgeClassifier()),
        LogitAdjustedClassifier(CalibratedClassifierCV(LinearSVC(), cv=2)),
        # Log-odds, since it has probabilities; and margins whose tau somebody has chosen.
        LogitAdjustedClassifier(LogisticRegression(), response_method="decision_function"),
        LogitAdjustedClassifier(RidgeClassifier(), tau=0.2),
        LogitAdjustedClassifier(RidgeClassifier(), tau=0),
        LogitAdjustedClassifier(RidgeClassifier(), target="train"),
    ],
    ids=["CV", "calibrated", "log-odds", "tau chosen", "tau 0", "nothing to adjust"],
)
def test_margins_in_good_hands_are_silent(model):
    model.fit(*long_tailed())


def test_costs_on_margins_say_so_too():
    X, y = long_tailed()
    for costs in ([1.0, 2.0, 3.0], 1.0 - np.eye(3)):
        with pytest.warns(FixedTauOnMarginsWarning):
            LogitAdjustedClassifier(RidgeClassifier(), target="train", costs=costs).fit(X, y)


# ------------------------------------------------------------------ frozen and balanced


def balanced_rows(X, y, each=10):
    index = np.concatenate([np.flatnonzero(y == k)[:each] for k in np.unique(y)])
    return X[index], y[index]


def test_a_frozen_estimator_and_balanced_labels_are_refused():
    fitted = LogisticRegression().fit(*long_tailed())
    X, y = balanced_rows(*long_tailed(1))
    message = r"the prior is uniform.*prior=ClassPrior\.from_counts"
    with pytest.raises(InputError, match=message):
        LogitAdjustedClassifier(FrozenEstimator(fitted)).fit(X, y)
    weight = np.full(len(y), 0.5)
    with pytest.raises(InputError, match=message):
        LogitAdjustedClassifier(FrozenEstimator(fitted)).fit(X, y, sample_weight=weight)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    "settings",
    [
        {"prior": ClassPrior.from_counts([120, 40, 12])},
        {"prior": "effective"},
        {"prior": ClassPrior.uniform(3)},  # said, not counted
        {"tau": 0.0},
        {"target": [0.2, 0.3, 0.5]},
        {"costs": [1.0, 2.0, 3.0]},
    ],
    ids=["its prior", "effective", "uniform", "tau 0", "target", "costs"],
)
def test_balanced_labels_serve_where_something_is_meant(settings):
    fitted = LogisticRegression().fit(*long_tailed())
    X, y = balanced_rows(*long_tailed(1))
    LogitAdjustedClassifier(FrozenEstimator(fitted), **settings).fit(X, y)


@pytest.mark.usefixtures("silent")
def test_an_estimator_trained_on_balanced_labels_is_left_as_it_is():
    X, y = balanced_rows(*long_tailed(1))
    model = LogitAdjustedClassifier(LogisticRegression()).fit(X, y)
    assert (model.predict(X) == LogisticRegression().fit(X, y).predict(X)).all()


# ------------------------------------------------------------------ classes too small to judge


@pytest.mark.parametrize("settings", [{}, {"prior": "effective"}, {"scoring": "accuracy"}])
@pytest.mark.parametrize("cv", [5, 2, LeaveOneOut()], ids=str)
@pytest.mark.filterwarnings("ignore:The least populated class")
def test_a_class_of_one_example_cannot_be_judged(cv, settings):
    X, y = long_tailed(sizes=(30, 12, 1, 3))
    names = np.array(["ant", "bee", "cat", "dog"])[y]
    model = LogitAdjustedClassifierCV(LogisticRegression(), cv=cv, **settings)
    with pytest.warns(UnjudgedClassWarning, match=r"class\(es\) 'cat' .*tau.*without") as caught:
        model.fit(X, names)
    ours = [one for one in caught if one.category is UnjudgedClassWarning]
    assert [one.filename for one in ours] == [__file__]


def test_a_class_in_one_group_alone_cannot_be_judged():
    X, y = long_tailed(sizes=(60, 20, 10))
    groups = np.where(y == 2, 0, np.arange(len(y)) % 3)
    splits = list(GroupKFold(3).split(X, y, groups))
    with pytest.warns(UnjudgedClassWarning, match=r"class\(es\) 2 "):
        LogitAdjustedClassifierCV(GaussianNB(), cv=splits).fit(X, y)


@pytest.mark.usefixtures("silent")
def test_two_examples_are_judged_whatever_the_number_of_folds():
    X, y = long_tailed(sizes=(80, 30, 2))
    for cv in (2, 5, 10):
        model = LogitAdjustedClassifierCV(LogisticRegression(), cv=cv).fit(X, y)
        # Each of the two is held out once, and asked about by a classifier that saw the other.
        assert model.tau_curve_.exact.per_class(4.0)[2] == 0.0


@pytest.mark.usefixtures("silent")
def test_a_fitted_estimator_knows_every_class():
    fitted = LogisticRegression().fit(*long_tailed())
    LogitAdjustedClassifierCV(FrozenEstimator(fitted)).fit(*long_tailed(1, sizes=(30, 10, 1)))


def test_folds_without_a_class_are_told_where_scores_are_averaged_over_them():
    X, y = long_tailed(sizes=(80, 30, 3))
    with pytest.warns(UserWarning, match="The least populated class in y has only 3 members"):
        LogitAdjustedClassifierCV(LogisticRegression(), scoring="f1_macro").fit(X, y)


# ------------------------------------------------------------------ rare classes favoured twice

EVEN, UNEVEN = [1 / 3] * 3, [0.7, 0.23, 0.07]  # the second is 120, 40 and 12 rows, rounded
WEIGHTED = LogisticRegression(class_weight="balanced")


def share_of_imbalance(share):
    """Class frequencies with that much of the labels' imbalance, on the scale of logarithms."""
    parts = np.array([120.0, 40.0, 12.0]) ** share
    return parts / parts.sum()


TWICE = {
    "weights": (WEIGHTED, "class_weight='balanced'"),
    "weights by label": (LogisticRegression(class_weight={2: 10}), "class_weight={2: 10}"),
    "LDA": (
        LinearDiscriminantAnalysis(priors=EVEN),
        "LinearDiscriminantAnalysis is told more even class frequencies (priors)",
    ),
    "QDA": (
        QuadraticDiscriminantAnalysis(priors=EVEN),
        "QuadraticDiscriminantAnalysis is told more even class frequencies (priors)",
    ),
    "naive Bayes": (
        GaussianNB(priors=EVEN),
        "GaussianNB is told more even class frequencies (priors)",
    ),
    "seven tenths": (
        GaussianNB(priors=share_of_imbalance(0.7)),
        "GaussianNB is told more even class frequencies (priors)",
    ),
    "Bernoulli": (
        BernoulliNB(class_prior=EVEN),
        "BernoulliNB is told more even class frequencies (class_prior)",
    ),
    "no counting": (
        BernoulliNB(fit_prior=False),
        "BernoulliNB is told more even class frequencies (fit_prior)",
    ),
    "found by a search": (
        GridSearchCV(LogisticRegression(), {"class_weight": ["balanced"]}, cv=2),
        "class_weight='balanced'",
    ),
    "bagging": (BaggingClassifier(WEIGHTED, 3, random_state=0), "class_weight='balanced'"),
    "voting": (VotingClassifier([("a", WEIGHTED)], voting="soft"), "class_weight='balanced'"),
    "stacking": (
        StackingClassifier([("a", LogisticRegression())], final_estimator=WEIGHTED, cv=2),
        "class_weight='balanced'",
    ),
    "adjusted": (
        make_pipeline(StandardScaler(), LogitAdjustedClassifier(LogisticRegression())),
        "LogitAdjustedClassifier",
    ),
    "frozen": (
        FrozenEstimator(LogitAdjustedClassifier(LogisticRegression()).fit(*long_tailed(1))),
        "LogitAdjustedClassifier",
    ),
}


class Boosting(LogisticRegression):
    """Weighs two classes by the parameters of XGBoost and LightGBM, in their sense."""

    def __init__(self, scale_pos_weight=None, is_unbalance=False):
        super().__init__()
        self.scale_pos_weight = scale_pos_weight
        self.is_unbalance = is_unbalance

    def fit(self, X, y):
        counts = np.bincount(y)
        weight = counts.max() / counts if self.is_unbalance else np.ones(len(counts))
        if len(counts) == 2:
            weight[1] *= self.scale_pos_weight or 1
        return super().fit(X, y, sample_weight=weight[y])


@pytest.mark.parametrize(
    ("settings", "sizes", "told"),
    [
        ({"scale_pos_weight": 32}, (640, 20), "scale_pos_weight=32"),
        ({"scale_pos_weight": np.float32(4)}, (640, 20), "scale_pos_weight=4"),
        ({"scale_pos_weight": 1 / 32}, (20, 640), "scale_pos_weight=0.03125"),
        ({"is_unbalance": True}, (640, 20), "is_unbalance=True"),
        ({"is_unbalance": True}, (20, 640), "is_unbalance=True"),
    ],
    ids=str,
)
def test_the_weights_of_boosting_libraries_are_told_of(settings, sizes, told):
    X, y = long_tailed(sizes=sizes)
    for estimator in (Boosting(**settings), make_pipeline(StandardScaler(), Boosting(**settings))):
        with pytest.warns(AdjustedTwiceWarning) as caught:
            LogitAdjustedClassifier(estimator).fit(X, y)
        assert [one.filename for one in caught] == [__file__]
        message = str(caught[0].message)
        assert f"weighs classes itself ({told}), so" in message
        assert ("leave is_unbalance out" if "True" in told else "use scale_pos_weight=1") in message


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({}, (640, 20)),
        ({"scale_pos_weight": 1.0}, (640, 20)),
        ({"scale_pos_weight": 4}, (20, 640)),  # favours the common class
        ({"scale_pos_weight": 0.1}, (640, 20)),
        ({"scale_pos_weight": 32}, (640, 80, 20)),  # without effect but for two classes
        ({"is_unbalance": True}, (100, 100)),
    ],
    ids=str,
)
def test_weights_that_favour_no_rare_class_are_silent(settings, sizes):
    LogitAdjustedClassifier(Boosting(**settings)).fit(*long_tailed(sizes=sizes))


@pytest.mark.parametrize(("estimator", "told"), TWICE.values(), ids=TWICE.keys())
def test_a_classifier_that_favours_rare_classes_itself_is_told_of(estimator, told):
    X, y = long_tailed()
    with pytest.warns(AdjustedTwiceWarning) as caught:
        LogitAdjustedClassifier(estimator).fit(X, y)
    assert [one.filename for one in caught] == [__file__]
    assert told in str(caught[0].message)
    assert "prior='effective'" in str(caught[0].message)


def test_adjusting_a_classifier_of_even_priors_does_harm():
    X, y = long_tailed()
    X_test, y_test = long_tailed(1, sizes=(200,) * 3)
    even = LinearDiscriminantAnalysis(priors=EVEN)
    alone = balanced_accuracy_score(y_test, even.fit(X, y).predict(X_test))
    with pytest.warns(AdjustedTwiceWarning):
        twice = LogitAdjustedClassifier(even).fit(X, y)
    assert balanced_accuracy_score(y_test, twice.predict(X_test)) < alone - 0.03


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    "model",
    [
        LogitAdjustedClassifier(LogisticRegression(class_weight={0: 2, 1: 2, 2: 2})),
        LogitAdjustedClassifier(LogisticRegression(class_weight={0: 1})),  # others 1 too
        LogitAdjustedClassifier(LinearDiscriminantAnalysis(priors=UNEVEN)),
        LogitAdjustedClassifier(BernoulliNB(class_prior=UNEVEN)),
        LogitAdjustedClassifier(GaussianNB(priors=share_of_imbalance(0.8))),
        # Calibration learns the frequencies of the labels again, and so does stacking.
        LogitAdjustedClassifier(CalibratedClassifierCV(WEIGHTED, cv=2)),
        LogitAdjustedClassifier(StackingClassifier([("a", WEIGHTED)], LogisticRegression(), cv=2)),
        LogitAdjustedClassifier(GaussianNB(priors=EVEN), prior=[0.3, 0.3, 0.4]),
        LogitAdjustedClassifier(GaussianNB(priors=EVEN), prior="effective"),
        LogitAdjustedClassifier(WEIGHTED, tau=0),
        # Little may be left to correct, and tau = -1 is the way back to the labels' frequencies.
        LogitAdjustedClassifier(WEIGHTED, tau=0.2),
        LogitAdjustedClassifier(GaussianNB(priors=EVEN), tau=-1),
        # More uneven than the labels: what is favoured is not the rare.
        LogitAdjustedClassifier(LinearDiscriminantAnalysis(priors=[0.98, 0.015, 0.005])),
        LogitAdjustedClassifier(LogitAdjustedClassifier(LogisticRegression(), tau=0)),
        LogitAdjustedClassifierCV(BaggingClassifier(LogisticRegression(), 3), cv=2),
    ],
    ids=lambda model: str(model.estimator).split("(")[0],
)
def test_what_is_adjusted_once_is_silent(model):
    model.fit(*long_tailed())


# ------------------------------------------------------------------ metrics that are no scorers


def share_right(y_true, y_pred):
    return np.mean(y_true == y_pred)


@pytest.mark.parametrize("metric", [balanced_accuracy_score, share_right])
def test_a_metric_for_a_scorer_gets_there_by_the_message(metric):
    X, y = long_tailed()
    message = (
        rf"`scoring` is called as scoring\(estimator, X, y\).*make_scorer\({metric.__name__}\)"
    )
    with pytest.raises(InputError, match=message):
        LogitAdjustedClassifierCV(LogisticRegression(), scoring=metric).fit(X, y)
    model = LogitAdjustedClassifierCV(LogisticRegression(), cv=2, scoring=make_scorer(metric))
    assert model.fit(X, y).best_score_ > 0.3


def test_any_callable_that_takes_an_estimator_is_a_scorer():
    X, y = long_tailed()
    scorers = [
        lambda estimator, X, y: estimator.score(X, y),
        lambda *given: given[0].score(*given[1:]),
        partial(lambda extra, estimator, X, y: estimator.score(X, y), None),
    ]
    for scorer in scorers:
        LogitAdjustedClassifierCV(LogisticRegression(), cv=2, scoring=scorer).fit(X, y)


# ------------------------------------------------------------------ rows without a label


def without(names, rows, missing, kind):
    """The names as an array, list or Series of pandas, some of them missing."""
    names = np.array(names, dtype=object)
    names[list(rows)] = missing
    if kind == "list":
        return names.tolist()
    return names if kind == "array" else pytest.importorskip("pandas").Series(names, dtype=kind)


@pytest.mark.parametrize("wrapper", [LogitAdjustedClassifier, LogitAdjustedClassifierCV])
@pytest.mark.parametrize("rows", [(3, 7), (0,)], ids=str)
@pytest.mark.parametrize("missing", [None, np.nan], ids=str)
@pytest.mark.parametrize("kind", ["array", "list", "object", "str", "string", "category"])
def test_rows_without_a_name_are_named(wrapper, rows, missing, kind):
    X, y = long_tailed()
    names = np.array(["ant", "bee", "cat"])[y]
    message = rf"`y` has no label at row {rows[0]} \({len(rows)} such row"
    with pytest.raises(InputError, match=f"{message}.*drop"):
        wrapper(LogisticRegression()).fit(X, without(names, rows, missing, kind))
    whole = wrapper(LogisticRegression()).fit(X, without(names, (), missing, kind))
    assert whole.classes_.tolist() == ["ant", "bee", "cat"]
