"""Classification when most classes are rare: logit adjustment, with proofs.

The reading order is the order in which data walks through the package:

    priors       labels or counts -> ClassPrior
    metrics      predictions -> balanced error, per class, per group, calibration
    posthoc      logits -> adjusted logits
    tuning       held-out logits -> tau, with the exact curve
    multilabel   the same for sigmoids: several labels per example
    shift        unlabelled target data -> target prior
    conformal    held-out logits -> prediction sets that cover every class
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
    from longtail import conformal as conformal
    from longtail import consistency as consistency
    from longtail import data as data
    from longtail import losses as losses
    from longtail import margins as margins
    from longtail import metrics as metrics
    from longtail import multilabel as multilabel
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
    from longtail.conformal import PredictionSetClassifier as PredictionSetClassifier
    from longtail.conformal import PredictionSets as PredictionSets
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

# Module -> public names that it defines.
_NAMES = {
    "_checks": "InputError MissingExtraError",
    "priors": "ClassPrior",
    "metrics": "balanced_error per_class_error group_error confusion_matrix evaluate",
    "posthoc": "adjust_logits normalize_weights scale_temperature AdjustedTwiceWarning",
    "tuning": "tune_tau TauResult fit_temperature",
    "multilabel": "",
    "shift": "estimate_prior effective_prior",
    "conformal": "PredictionSets PredictionSetClassifier",
    "sklearn": "LogitAdjustedClassifier LogitAdjustedClassifierCV TauCurveDisplay",
    "margins": "Margin",
    "consistency": ("check_consistency Verdict PosthocLogitAdjustment PosthocWeightNormalization"),
    "losses": "pairwise_margin_loss logit_adjusted_loss PairwiseMarginLoss LogitAdjustedLoss",
    "runs": "Run RunSpec",
    "bake": "bake_logit_adjustment bake_weight_normalization unbake bake_record BakeRecord",
    "predictions": "open_predictions adjust_predictions",
    "data": "",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
_SUBMODULES = tuple(module for module in _NAMES if not module.startswith("_"))

# `from longtail import *` loads every name here, so without torch it goes without the losses; and
# without submodules, since `sklearn` would hide scikit-learn.
_HAS_TORCH = "torch" in sys.modules or importlib.util.find_spec("torch") is not None
__all__ = ["__version__"]
__all__ += [name for name, home in _HOMES.items() if _HAS_TORCH or home != "losses"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = getattr(importlib.import_module(f"longtail.{_HOMES[name]}"), name)
        globals()[name] = found  # looked up once
        return found
    if name in _SUBMODULES:
        return importlib.import_module(f"longtail.{name}")
    raise AttributeError(f"module 'longtail' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOMES, *_SUBMODULES})
