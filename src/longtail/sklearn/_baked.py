"""Where baking leaves its mark in a linear classifier, and whether the mark still holds.

What is written there, and all that changes a classifier, is in `bake`, which comes later.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

# The attribute with the record of what was baked in, a JSON text.
ATTRIBUTE = "longtail_baked_"
# What baking changes, by the record's names.
PARTS = {"weight": "coef_", "bias": "intercept_"}


def is_intact(classifier: Any, digests: Mapping[str, str]) -> bool:
    """Whether coefficients are those that were baked; training has changed them if not.

    Args:
        classifier: linear and fitted.
        digests: SHA-256 of what was baked, by the record's names.
    """
    return all(
        hashlib.sha256(np.asarray(getattr(classifier, PARTS[part])).tobytes()).hexdigest() == digest
        for part, digest in digests.items()
    )


def baked_tau(classifier: Any) -> float | None:
    """The tau of the logit adjustment that is baked into a classifier; None if there is none."""
    text = getattr(classifier, ATTRIBUTE, None)
    record = {} if text is None else json.loads(text)
    if record.get("method") != "logit_adjustment":
        return None
    settings = record["settings"]
    adjusts = settings.get("target_prior") != settings["prior"] or "costs" in settings
    return (
        float(record["tau"]) if adjusts and is_intact(classifier, record["undo"]["baked"]) else None
    )
