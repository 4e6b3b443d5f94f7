"""Margin or ClassPrior in, torch loss out: a function and a module for each named loss.

    pairwise  the family on torch's own cross-entropy: arithmetic, function and module
    named     one module and one function for each named loss
    sampled   features, weights, target -> any of them from a few classes drawn
    linear    features, weights, target -> any of them without holding the logits
    stacked   the losses of several runs at once, for training

All of them take what `torch.nn.CrossEntropyLoss` takes, with the same meaning.
"""

from __future__ import annotations

from longtail import _checks

# First, so that a missing torch is one line and not a long traceback.
_checks.require("torch", extra="torch")

from longtail.losses.linear import linear_cross_entropy
from longtail.losses.named import (
    AdaptiveLoss,
    BalancedLoss,
    ClassBalancedLoss,
    ConsistentLoss,
    EqualizedLoss,
    EqualizedThresholdLoss,
    LDAMLoss,
    LogitAdjustedAdaptiveLoss,
    LogitAdjustedLoss,
    SoftmaxLoss,
    TwoParameterLoss,
    WeightedLogitAdjustedLoss,
    adaptive_loss,
    balanced_loss,
    class_balanced_loss,
    consistent_loss,
    equalized_loss,
    equalized_threshold_loss,
    ldam_loss,
    logit_adjusted_adaptive_loss,
    logit_adjusted_loss,
    softmax_loss,
    two_parameter_loss,
    weighted_logit_adjusted_loss,
)
from longtail.losses.pairwise import LossOptions, PairwiseMarginLoss, pairwise_margin_loss
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
    "linear_cross_entropy",
]
