"""What the estimators warn of: the categories, and the words.

Whether there is reason to is found out elsewhere: in `sklearn`, `_tuning`, `_leakage` and `_twice`.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail.posthoc import AdjustedTwiceWarning, adjusts_again
from longtail.sklearn._base import AdjustedBase
from longtail.sklearn._scores import final_estimator
from longtail.sklearn._twice import own_correction


class TunedOnTrainingDataWarning(UserWarning):
    """A prefit estimator is being tuned on rows that it was fitted on, which flatters it."""


class FixedTauOnMarginsWarning(UserWarning):
    """tau = 1 is applied to margins, which are not on the scale of log-probabilities."""


class UnjudgedClassWarning(UserWarning):
    """A class was never both trained on and held out, so tau is chosen without it."""


# The levels of the stack are counted so that a warning names the line that called `fit`.


def warn_of_leakage(found: str, *, caller: str) -> None:
    """A fitted estimator has seen the rows that tau is being tuned on; `found` says what shows."""
    warnings.warn(
        f"{caller}: the estimator was fitted on the rows that tau is being tuned on "
        f"({found}); its scores there are better than on new data, and so the tau is "
        f"wrong: pass held-out rows, or an unfitted estimator.",
        TunedOnTrainingDataWarning,
        stacklevel=4,
    )


def warn_if_twice(model: AdjustedBase, *, tau: float) -> None:
    """The fitted estimator favours rare classes itself, and is adjusted by the labels' prior."""
    by_labels = isinstance(model.prior, str) and model.prior == "train"
    if not by_labels or not adjusts_again(tau) or np.ptp(model.adjustment_) == 0:
        return
    found = own_correction(model.estimator_, model.prior_)
    if found is not None:
        warnings.warn(
            f"{type(model).__name__}: the estimator {found.what}, so the prior that it learns is "
            f"not that of the labels and adjusting by it favours rare classes twice; "
            f"{found.instead}, or prior='effective'.",
            AdjustedTwiceWarning,
            stacklevel=3,
        )


def warn_of_margins(estimator: Any, *, caller: str) -> None:
    """tau = 1 is right for log-probabilities alone."""
    warnings.warn(
        f"{caller}: tau=1 is the value for log-probabilities, but "
        f"{type(final_estimator(estimator)).__name__} has no predict_proba, and the margins of its "
        f"decision_function have another scale, so that rare classes may take nearly every "
        f"prediction; let LogitAdjustedClassifierCV choose tau, or wrap the estimator in "
        f"CalibratedClassifierCV.",
        FixedTauOnMarginsWarning,
        stacklevel=3,
    )


def warn_of_unjudged(classes: NDArray[Any], *, caller: str) -> None:
    """No held-out example of these classes was asked about by a classifier that knew them."""
    if len(classes):
        warnings.warn(
            f"{caller}: class(es) {_checks.listing(map(repr, classes.tolist()))} can't be judged: "
            f"whichever split holds their examples out leaves none to train on, so that they are "
            f"wrong at any tau; tau is chosen without them, and `best_score_` counts them as "
            f"errors. A class needs two examples at least, and splits that part them.",
            UnjudgedClassWarning,
            stacklevel=3,
        )
