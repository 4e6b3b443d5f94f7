"""The named losses as the contract battery sees them: function, module, settings, oracle.

The formulas are the rows of `test_margins`, written there per pair of classes. A new loss enters
the battery with its row there and its class here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from longtail import losses
from test_margins import PI, PRIOR, ROWS

MODULES = {
    "softmax": losses.SoftmaxLoss,
    "balanced": losses.BalancedLoss,
    "class-balanced": losses.ClassBalancedLoss,
    "adaptive": losses.AdaptiveLoss,
    "ldam": losses.LDAMLoss,
    "equalized": losses.EqualizedLoss,
    "logit-adjusted": losses.LogitAdjustedLoss,
    "logit-adjusted-adaptive": losses.LogitAdjustedAdaptiveLoss,
    "two-parameter": losses.TwoParameterLoss,
    "consistent": losses.ConsistentLoss,
    "weighted-logit-adjusted": losses.WeightedLogitAdjustedLoss,
}
NUM_CLASSES = PRIOR.num_classes


@dataclass(frozen=True)
class Contract:
    """One named loss: how to call it, and what the equation says it is."""

    name: str
    settings: dict[str, Any]
    alpha: np.ndarray
    delta: np.ndarray
    scale: float

    def function(self, logits, target, **options):
        call = getattr(losses, f"{self.name.replace('-', '_')}_loss")
        return call(logits, target, PRIOR, **self.settings, **options)

    def module(self, prior=PRIOR, **options):
        return MODULES[self.name](prior, **self.settings, **options)

    def __str__(self):
        return self.name


def _contract(name):
    settings, alpha, delta = ROWS[name]
    matrix = [
        [0.0 if y == k else delta(y, k) for k in range(NUM_CLASSES)] for y in range(NUM_CLASSES)
    ]
    return Contract(
        name, settings, alpha / (PI @ alpha), np.array(matrix), settings.get("scale", 1.0)
    )


CONTRACTS = [_contract(name) for name in ROWS]
