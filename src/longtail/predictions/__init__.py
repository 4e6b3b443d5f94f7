"""Predictions saved by any framework: read, measured, adjusted, and written in the same format.

    predictions = open_predictions("predictions.npz")
    result = adjust_predictions(predictions, ClassPrior.from_counts(counts))
    result.write("adjusted.npz")

Files larger than memory are read in blocks.

    files      the formats, read and written; the names of labels and numbers in `labels`
    adjusting  the choice of tau and the honest result, with its intervals in `estimates`
    passes     single passes over the blocks
"""

from __future__ import annotations

from longtail.predictions.adjusting import AdjustResult as AdjustResult
from longtail.predictions.adjusting import adjust_predictions as adjust_predictions
from longtail.predictions.adjusting import tune_predictions as tune_predictions
from longtail.predictions.estimates import Change as Change
from longtail.predictions.estimates import Estimate as Estimate
from longtail.predictions.files import Block as Block
from longtail.predictions.files import Kind as Kind
from longtail.predictions.files import Predictions as Predictions
from longtail.predictions.files import from_arrays as from_arrays
from longtail.predictions.files import open_predictions as open_predictions
from longtail.predictions.passes import tau_intervals as tau_intervals

__all__ = [
    "AdjustResult",
    "Block",
    "Change",
    "Estimate",
    "Predictions",
    "adjust_predictions",
    "from_arrays",
    "open_predictions",
    "tau_intervals",
    "tune_predictions",
]
