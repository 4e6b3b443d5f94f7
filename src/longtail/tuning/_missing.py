"""Held-out data that lack some classes: who stands in for whom. Import from `tuning`.

A development set made of what a long-tailed subset leaves out has none of the classes that were
kept whole, the largest ones. Left out of the error, they would have no say in how far logits may
be adjusted against them, and tau would come out too large; so the nearest in size stands in.
"""

from __future__ import annotations

import numpy as np

from longtail._checks import FloatArray, InputError, IntArray


def stand_ins(sizes: IntArray | FloatArray, examples: IntArray) -> IntArray:
    """For each class the class that speaks for it: itself, or the nearest in size.

    Args:
        sizes: training examples of each class or their shares, positive, shape (num_classes,).
        examples: held-out examples of each class, shape (num_classes,).

    Returns:
        Shape (num_classes,); on a logarithmic scale, and of two that are as near the first.

    Examples:
        >>> stand_ins(np.array([500, 400, 90, 10]), np.array([0, 20, 50, 50]))
        array([1, 1, 2, 3])
    """
    logs, present = np.log(sizes), np.flatnonzero(examples > 0)
    if not len(present):
        raise InputError("class_shares: `examples` has none of any class.")
    found = np.arange(len(logs))
    for label in np.flatnonzero(examples == 0):
        found[label] = present[np.argmin(np.abs(logs[present] - logs[label]))]
    return found


def class_shares(sizes: IntArray | FloatArray, examples: IntArray) -> FloatArray:
    """How much each class's error counts, shape (num_classes,); they add up to 1.

    Args:
        sizes: as in `stand_ins`.
        examples: likewise.

    Examples:
        >>> class_shares(np.array([500, 400, 90, 10]), np.array([0, 20, 50, 50]))
        array([0.  , 0.5 , 0.25, 0.25])
    """
    found = stand_ins(sizes, examples)
    return np.bincount(found, minlength=len(found)) / len(found)
