"""Types of this package in skops files of its classifiers, for `skops.io.load(trusted=...)`.

    TRUSTED_TYPES   names of the types, as `skops.io.get_untrusted_types` gives them

MLflow's `sklearn.save_model` takes the same list as `skops_trusted_types`.
"""

from __future__ import annotations

from longtail.priors import ClassPrior
from longtail.sklearn import LogitAdjustedClassifier, LogitAdjustedClassifierCV, TauScores
from longtail.sklearn._scores import Encoded
from longtail.tuning import TauCurve, TauIntervals

__all__ = ["TRUSTED_TYPES"]

_TYPES: tuple[type, ...] = (
    ClassPrior,
    Encoded,
    LogitAdjustedClassifier,
    LogitAdjustedClassifierCV,
    TauCurve,
    TauIntervals,
    TauScores,
)
TRUSTED_TYPES = [f"{kind.__module__}.{kind.__qualname__}" for kind in _TYPES]
"""Names of the types of this package that a saved classifier may hold."""
