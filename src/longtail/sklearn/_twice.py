"""A fitted classifier in, what in it favours rare classes already out.

Adjusting by the prior of the labels would then favour them twice. Only what is certain counts: a
CalibratedClassifierCV around weighted classes, say, learns the frequencies of the labels again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.discriminant_analysis import (
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
)
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.naive_bayes import BernoulliNB, CategoricalNB, GaussianNB, MultinomialNB

from longtail.posthoc import adjusts_again
from longtail.priors import ClassPrior
from longtail.sklearn._baked import baked_tau
from longtail.sklearn._base import AdjustedBase
from longtail.sklearn._scores import final_estimator

_WITH_PRIORS = (LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis, GaussianNB)
_WITH_CLASS_PRIOR = (MultinomialNB, BernoulliNB, CategoricalNB)

# As a share of the whole adjustment: what priors may differ by rounding or smoothing.
_LITTLE = 0.25


@dataclass(frozen=True)
class Correction:
    """What a classifier does for rare classes itself.

    Attributes:
        what: as a clause after "the estimator".
        instead: what to use so that it doesn't.
    """

    what: str
    instead: str


def own_correction(estimator: Any, prior: ClassPrior) -> Correction | None:
    """What this fitted classifier does for rare classes itself; None if nothing is certain.

    Args:
        estimator: fitted, alone or in pipelines, searches and ensembles.
        prior: of the labels that it was fitted on.
    """
    if np.ptp(prior.log_probs) == 0:
        return None
    classifier = final_estimator(estimator)
    for member in _members(classifier):
        found = own_correction(member, prior)
        if found is not None:
            return found
    if isinstance(classifier, AdjustedBase):
        if np.ptp(classifier.adjustment_) == 0:
            return None
        return Correction(f"is adjusted already ({type(classifier).__name__})", "adjust it once")
    baked = baked_tau(classifier)
    if baked is not None and adjusts_again(baked):
        return Correction(
            f"has an adjustment baked in already (tau = {baked:.4g})",
            "use what it was baked from (unbake)",
        )
    return (
        _by_weights(classifier)
        or _by_weight_of_positives(classifier, prior)
        or _by_prior(classifier, prior)
    )


def _members(classifier: Any) -> list[Any]:
    """The fitted classifiers whose mean an ensemble is, or the one that decides in it."""
    if isinstance(classifier, BaggingClassifier):
        return list(classifier.estimators_[:1])  # all are alike
    if isinstance(classifier, VotingClassifier):
        return list(classifier.estimators_)
    if isinstance(classifier, StackingClassifier):
        return [classifier.final_estimator_]
    return []


def _by_weights(classifier: Any) -> Correction | None:
    weights = getattr(classifier, "class_weight", None)
    if weights is None or (isinstance(weights, Mapping) and _all_equal(weights, classifier)):
        return None
    return Correction(f"weighs classes itself (class_weight={weights!r})", "use class_weight=None")


def _by_weight_of_positives(classifier: Any, prior: ClassPrior) -> Correction | None:
    """XGBoost's and LightGBM's own ways to weigh two classes; other classifiers have none."""
    if prior.num_classes != 2:
        return None
    if getattr(classifier, "is_unbalance", None) is True:
        return Correction("weighs classes itself (is_unbalance=True)", "use is_unbalance=False")
    weight = getattr(classifier, "scale_pos_weight", None)
    if not isinstance(weight, Real) or weight <= 0:
        return None
    # Above 1 it favours the second class, below 1 the first.
    if np.log(float(weight)) * (prior.log_probs[0] - prior.log_probs[1]) <= 0:
        return None
    return Correction(
        f"weighs classes itself (scale_pos_weight={weight:g})", "use scale_pos_weight=1"
    )


def _all_equal(weights: Mapping[Any, Any], classifier: Any) -> bool:
    classes = getattr(classifier, "classes_", list(weights))
    return len({weights.get(label, 1) for label in np.asarray(classes).tolist()}) == 1


def _by_prior(classifier: Any, prior: ClassPrior) -> Correction | None:
    given, name = _given_prior(classifier)
    if given is None:
        return None
    probs = np.asarray(given, dtype=np.float64)
    if probs.shape != prior.probs.shape or np.any(probs <= 0):
        return None  # a member of an ensemble that lacks a class, or one that is switched off
    # How much of the imbalance it was told, by the projection of log π: 1 for the labels' own.
    whole = prior.log_probs - prior.log_probs.mean()
    if np.log(probs) @ whole >= (1.0 - _LITTLE) * (whole @ whole):
        return None
    return Correction(
        f"is told more even class frequencies than it is adjusted by "
        f"({type(classifier).__name__}, {name})",
        f"leave {name.partition('=')[0]} out, or say prior= with the same",
    )


def _given_prior(classifier: Any) -> tuple[NDArray[Any] | None, str]:
    """What a classifier was told its prior is, up to a factor, and by which of its settings."""
    if isinstance(classifier, _WITH_PRIORS):
        return classifier.priors, "priors=..."
    if isinstance(classifier, _WITH_CLASS_PRIOR):
        if classifier.class_prior is not None:
            return classifier.class_prior, "class_prior=..."
        if not classifier.fit_prior:
            return np.ones(len(classifier.classes_)), "fit_prior=False"
    return None, ""
