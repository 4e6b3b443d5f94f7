"""Classification when most classes are rare: logit adjustment, with proofs.

The reading order is the order in which data walks through the package:

    priors       labels or counts -> ClassPrior
    metrics      predictions -> balanced error, per class, per group, calibration
    posthoc      logits -> adjusted logits
    tuning       held-out logits -> tau, with the exact curve
    shift        unlabelled target data -> target prior
    sklearn      estimators that adjust any classifier
    margins      ClassPrior -> Margin, one function per named loss
    consistency  Margin or rule -> does it minimise the balanced error?
    losses       Margin -> torch losses
    runs         what was trained, on what, with which result: run folders
    bake         an adjustment folded into a trained model: torch, ONNX, scikit-learn
    predictions  saved predictions of any framework -> tau, honest result, adjusted file
    data         names, files and folders -> long-tailed images with their test set

Names load on first use: importing this package imports neither torch nor scikit-learn.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from longtail import bake as bake
    from longtail import consistency as consistency
    from longtail import data as data
    from longtail import losses as losses
    from longtail import margins as margins
    from longtail import metrics as metrics
    from longtail import posthoc as posthoc
    from longtail import predictions as predictions
    from longtail import priors as priors
    from longtail import runs as runs
    from longtail import shift as shift
    from longtail import sklearn as sklearn
    from longtail import tuning as tuning
    from longtail._checks import InputError as InputError
    from longtail._checks import MissingExtraError as MissingExtraError
    from longtail.bake import BakeRecord as BakeRecord
    from longtail.bake import bake_logit_adjustment as bake_logit_adjustment
    from longtail.bake import bake_record as bake_record
    from longtail.bake import bake_weight_normalization as bake_weight_normalization
    from longtail.bake import unbake as unbake
    from longtail.consistency import PosthocLogitAdjustment as PosthocLogitAdjustment
    from longtail.consistency import PosthocWeightNormalization as PosthocWeightNormalization
    from longtail.consistency import Verdict as Verdict
    from longtail.consistency import check_consistency as check_consistency
    from longtail.losses import LogitAdjustedLoss as LogitAdjustedLoss
    from longtail.losses import PairwiseMarginLoss as PairwiseMarginLoss
    from longtail.losses import logit_adjusted_loss as logit_adjusted_loss
    from longtail.losses import pairwise_margin_loss as pairwise_margin_loss
    from longtail.margins import Margin as Margin
    from longtail.metrics import balanced_error as balanced_error
    from longtail.metrics import confusion_matrix as confusion_matrix
    from longtail.metrics import evaluate as evaluate
    from longtail.metrics import group_error as group_error
    from longtail.metrics import per_class_error as per_class_error
    from longtail.posthoc import AdjustedTwiceWarning as AdjustedTwiceWarning
    from longtail.posthoc import adjust_logits as adjust_logits
    from longtail.posthoc import normalize_weights as normalize_weights
    from longtail.posthoc import scale_temperature as scale_temperature
    from longtail.predictions import adjust_predictions as adjust_predictions
    from longtail.predictions import open_predictions as open_predictions
    from longtail.priors import ClassPrior as ClassPrior
    from longtail.runs import Run as Run
    from longtail.runs import RunSpec as RunSpec
    from longtail.shift import effective_prior as effective_prior
    from longtail.shift import estimate_prior as estimate_prior
    from longtail.sklearn import LogitAdjustedClassifier as LogitAdjustedClassifier
    from longtail.sklearn import LogitAdjustedClassifierCV as LogitAdjustedClassifierCV
    from longtail.sklearn import TauCurveDisplay as TauCurveDisplay
    from longtail.tuning import TauResult as TauResult
    from longtail.tuning import fit_temperature as fit_temperature
    from longtail.tuning import tune_tau as tune_tau

# Public name -> module that defines it.
_HOMES = {
    "InputError": "_checks",
    "MissingExtraError": "_checks",
    "ClassPrior": "priors",
    "balanced_error": "metrics",
    "per_class_error": "metrics",
    "group_error": "metrics",
    "confusion_matrix": "metrics",
    "evaluate": "metrics",
    "adjust_logits": "posthoc",
    "normalize_weights": "posthoc",
    "scale_temperature": "posthoc",
    "AdjustedTwiceWarning": "posthoc",
    "tune_tau": "tuning",
    "TauResult": "tuning",
    "fit_temperature": "tuning",
    "estimate_prior": "shift",
    "effective_prior": "shift",
    "LogitAdjustedClassifier": "sklearn",
    "LogitAdjustedClassifierCV": "sklearn",
    "TauCurveDisplay": "sklearn",
    "Margin": "margins",
    "check_consistency": "consistency",
    "Verdict": "consistency",
    "PosthocLogitAdjustment": "consistency",
    "PosthocWeightNormalization": "consistency",
    "pairwise_margin_loss": "losses",
    "logit_adjusted_loss": "losses",
    "PairwiseMarginLoss": "losses",
    "LogitAdjustedLoss": "losses",
    "Run": "runs",
    "RunSpec": "runs",
    "bake_logit_adjustment": "bake",
    "bake_weight_normalization": "bake",
    "unbake": "bake",
    "bake_record": "bake",
    "BakeRecord": "bake",
    "open_predictions": "predictions",
    "adjust_predictions": "predictions",
}
_SUBMODULES = (
    "priors",
    "metrics",
    "posthoc",
    "tuning",
    "shift",
    "sklearn",
    "margins",
    "consistency",
    "losses",
    "runs",
    "bake",
    "predictions",
    "data",
)

_NAMES = ("__version__", *_HOMES, *_SUBMODULES)
# `from longtail import *` loads every name here, so without torch it goes without the losses.
_WITHOUT_TORCH = {"losses", *(name for name, home in _HOMES.items() if home == "losses")}
_HAS_TORCH = "torch" in sys.modules or importlib.util.find_spec("torch") is not None
_ABSENT = set() if _HAS_TORCH else _WITHOUT_TORCH

__all__ = [name for name in _NAMES if name not in _ABSENT]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"longtail.{_HOMES[name]}"), name)
    if name in _SUBMODULES:
        return importlib.import_module(f"longtail.{name}")
    raise AttributeError(f"module 'longtail' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_NAMES)
