"""Whether a fitted classifier favours rare classes already.

Adjusting by the prior of the labels would then favour them twice. Only what is certain counts: a
CalibratedClassifierCV around weighted classes, say, learns the frequencies of the labels again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier

from longtail.posthoc import adjusts_again, tau_left
from longtail.priors import ClassPrior
from longtail.sklearn._baked import baked_tau
from longtail.sklearn._scores import final_estimator

# Parameters by which classifiers weigh classes, or are told how frequent they are.
_WEIGHTS = ("class_weight", "class_weights", "auto_class_weights", "is_unbalance")
_PRIORS = ("priors", "class_prior")


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
    """Return what this fitted classifier does for rare classes itself; None if nothing is certain.

    Args:
        estimator: fitted, alone or in pipelines, searches and ensembles.
        prior: of the labels that it was fitted on.
    """
    if np.ptp(prior.log_probs) == 0:
        return None
    return next((Correction(*found) for found in _corrections(estimator, prior)), None)


def _corrections(estimator: Any, prior: ClassPrior) -> Iterator[tuple[str, str]]:
    outer = estimator
    while outer is not final_estimator(outer):  # pipelines in pipelines
        for _, step in getattr(outer, "steps", ())[:-1]:
            if hasattr(step, "fit_resample"):
                yield f"resamples the classes ({type(step).__name__})", "leave that step out"
        steps = getattr(outer, "steps", None)
        inner = getattr(outer, "best_estimator_", getattr(outer, "estimator", None))
        outer = steps[-1][1] if steps else inner
    classifier = outer
    name = type(classifier).__name__
    if isinstance(classifier, BaggingClassifier):
        yield from _corrections(classifier.estimators_[0], prior)  # all are alike
    elif isinstance(classifier, VotingClassifier):
        for member in classifier.estimators_:
            yield from _corrections(member, prior)
    elif isinstance(classifier, StackingClassifier):
        yield from _corrections(classifier.final_estimator_, prior)
    if np.ptp(getattr(classifier, "adjustment_", 0.0)) > 0:
        yield f"is adjusted already ({name})", "adjust it once"
    baked = baked_tau(classifier)
    if baked is not None and adjusts_again(baked):
        yield (
            f"has an adjustment baked in already (tau = {baked:.4g})",
            "use what it was baked from (unbake)",
        )
    if type(classifier).__module__.startswith("imblearn.ensemble"):
        yield f"resamples the classes ({name})", "use scikit-learn's plain ensemble"

    settings = classifier.get_params(deep=False)
    for setting in _WEIGHTS:
        value = settings.get(setting)
        if isinstance(value, Mapping):
            classes = getattr(classifier, "classes_", list(value))
            even = len({value.get(label, 1) for label in np.asarray(classes).tolist()}) == 1
        elif np.ndim(value):
            even = np.ptp(value) == 0
        else:
            even = value in (None, False, "None")
        if not even and (setting != "is_unbalance" or prior.num_classes == 2):
            off = False if setting == "is_unbalance" else None
            yield f"weighs classes itself ({setting}={value!r})", f"use {setting}={off}"
    weight = settings.get("scale_pos_weight") or 1.0
    # Above 1 it favours the second class, below 1 the first.
    if prior.num_classes == 2 and math.log(weight) * -np.diff(prior.log_probs)[0] > 0:
        yield f"weighs classes itself (scale_pos_weight={weight:g})", "use scale_pos_weight=1"

    told = {f"{key}=...": settings.get(key) for key in _PRIORS if settings.get(key) is not None}
    if settings.get("fit_prior") is False and not told:
        told = {"fit_prior=False": np.ones(prior.num_classes)}
    for text, given in told.items():
        # Priors may differ a little by rounding or smoothing. Another shape is that of a member of
        # an ensemble that lacks a class.
        if np.shape(given) != prior.probs.shape or np.min(given) <= 0:
            continue
        if tau_left(-np.log(given), prior) < 0.75:
            yield (
                f"is told more even class frequencies than it is adjusted by ({name}, {text})",
                f"leave {text.partition('=')[0]} out, or say prior= with the same",
            )
