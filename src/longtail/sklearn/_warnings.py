"""What the estimators warn of: the categories, and the words.

Whether there is reason to is found out elsewhere: in `sklearn`, `_tuning` and `_leakage`.
"""

from __future__ import annotations

import warnings
from typing import Any

from numpy.typing import NDArray

from longtail import _checks
from longtail.sklearn._scores import final_estimator


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
