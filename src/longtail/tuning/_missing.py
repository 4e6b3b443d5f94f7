"""Held-out data that lack some classes: who stands in for whom. Import from `tuning`.

A development set made of what a long-tailed subset leaves out has none of the classes that were
kept whole, the largest ones. Left out of the error, they would have no say in how far logits may
be adjusted against them, and tau would come out too large; so the nearest in size stands in.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from longtail._checks import FloatArray, InputError, IntArray

# Logarithms of sizes that differ by less differ by rounding: the classes are as near.
_AS_NEAR = 1e-9


def given_to_nearest(
    weights: FloatArray, sizes: IntArray | FloatArray, examples: IntArray
) -> FloatArray:
    """Weights of classes, with those of classes without examples given to the nearest in size.

    Near is meant on a logarithmic scale. Classes that are as near share evenly, so that the
    numbers by which classes of one size go mean nothing.

    Args:
        weights: what each class counts, shape (num_classes,).
        sizes: training examples of each class or their shares, positive, shape (num_classes,).
        examples: held-out examples of each class, shape (num_classes,).

    Returns:
        Shape (num_classes,), with the same sum; 0 for classes without examples.

    Examples:
        >>> given_to_nearest(np.ones(4), np.array([500, 400, 90, 10]), np.array([0, 20, 50, 50]))
        array([0., 2., 1., 1.])
        >>> given_to_nearest(np.ones(4), np.array([500, 10, 10, 10]), np.array([0, 9, 9, 0]))
        array([0., 2., 2., 0.])
    """
    logs, there = np.log(sizes), examples > 0
    if not there.any():
        raise InputError("class_shares: `examples` has none of any class.")
    # By size, since there may be very many classes and few sizes.
    present, place, classes = np.unique(logs[there], return_inverse=True, return_counts=True)
    absent, which = np.unique(logs[~there], return_inverse=True)
    wanted = np.bincount(which, weights=weights[~there], minlength=len(absent))
    up_to = np.concatenate([[0], np.cumsum(classes)])
    added = np.zeros(len(present))
    for weight, *ranges in zip(wanted, *_nearest(present, absent), strict=True):
        ranges = list(dict.fromkeys(ranges))  # one and the same where a size is there
        number = sum(up_to[end] - up_to[begin] for begin, end in ranges)
        for begin, end in ranges:
            added[begin:end] += weight / number
    given = np.where(there, weights, 0.0)
    given[there] += added[place]
    return given


def _nearest(present: FloatArray, absent: FloatArray) -> Iterator[list[tuple[int, int]]]:
    """For each of `absent`, the ranges of `present` that are as near as the nearest: two lists.

    Both rise. The first range is below or at it, the second above or at it.
    """
    after = np.searchsorted(present, absent)
    below, above = present[np.maximum(after - 1, 0)], present[np.minimum(after, len(present) - 1)]
    away = np.minimum(np.abs(absent - below), np.abs(above - absent))
    away[away <= _AS_NEAR] = 0.0
    for near in (absent - away, absent + away):
        begin = np.searchsorted(present, near - _AS_NEAR, side="left")
        end = np.searchsorted(present, near + _AS_NEAR, side="right")
        yield list(zip(begin.tolist(), end.tolist(), strict=True))


def class_shares(sizes: IntArray | FloatArray, examples: IntArray) -> FloatArray:
    """How much each class's error counts, shape (num_classes,); they add up to 1.

    Args:
        sizes: as in `given_to_nearest`.
        examples: likewise.

    Examples:
        >>> class_shares(np.array([500, 400, 90, 10]), np.array([0, 20, 50, 50]))
        array([0.  , 0.5 , 0.25, 0.25])
    """
    return given_to_nearest(np.ones(len(sizes)), sizes, examples) / len(sizes)
