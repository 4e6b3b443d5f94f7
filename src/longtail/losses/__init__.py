"""Margin or ClassPrior in, torch loss out: a function and a module for each named loss.

    _family      the arithmetic, once for the whole family; checks; reduction
    functional   logits, target, prior -> loss
    modules      the same as nn.Modules that hold the margins as buffers
    sampled      features, weights, target -> any of them from a few classes drawn
    stacked      the losses of several runs at once, for the training engine

All of them take what `torch.nn.CrossEntropyLoss` takes and mean the same by it. To add a loss:
write its margin in `longtail.margins`, then a three-line function and a three-line module here.
"""

from __future__ import annotations

from longtail import _checks

# First, so that a missing torch is one line and not a traceback from the depths.
_checks.require("torch", extra="torch", caller=__name__)

from longtail.losses._family import LossOptions
from longtail.losses._loading import LoadedMarginsWarning
from longtail.losses.functional import (
    adaptive_loss,
    balanced_loss,
    class_balanced_loss,
    consistent_loss,
    equalized_loss,
    equalized_threshold_loss,
    ldam_loss,
    logit_adjusted_adaptive_loss,
    logit_adjusted_loss,
    pairwise_margin_loss,
    softmax_loss,
    two_parameter_loss,
    weighted_logit_adjusted_loss,
)
from longtail.losses.modules import (
    AdaptiveLoss,
    BalancedLoss,
    ClassBalancedLoss,
    ConsistentLoss,
    EqualizedLoss,
    EqualizedThresholdLoss,
    LDAMLoss,
    LogitAdjustedAdaptiveLoss,
    LogitAdjustedLoss,
    PairwiseMarginLoss,
    SoftmaxLoss,
    TwoParameterLoss,
    WeightedLogitAdjustedLoss,
)
from longtail.losses.sampled import SampledSoftmaxLoss, sampled_softmax_loss

# In the order of the paper's table, each function beside its module.
__all__ = [  # noqa: RUF022
    "LossOptions",
    "pairwise_margin_loss",
    "PairwiseMarginLoss",
    "softmax_loss",
    "SoftmaxLoss",
    "balanced_loss",
    "BalancedLoss",
    "class_balanced_loss",
    "ClassBalancedLoss",
    "adaptive_loss",
    "AdaptiveLoss",
    "ldam_loss",
    "LDAMLoss",
    "equalized_loss",
    "EqualizedLoss",
    "equalized_threshold_loss",
    "EqualizedThresholdLoss",
    "logit_adjusted_loss",
    "LogitAdjustedLoss",
    "logit_adjusted_adaptive_loss",
    "LogitAdjustedAdaptiveLoss",
    "two_parameter_loss",
    "TwoParameterLoss",
    "consistent_loss",
    "ConsistentLoss",
    "weighted_logit_adjusted_loss",
    "WeightedLogitAdjustedLoss",
    "sampled_softmax_loss",
    "SampledSoftmaxLoss",
    "LoadedMarginsWarning",
]
