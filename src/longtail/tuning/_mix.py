"""Held-out examples weighed so that their classes are mixed as in the training data.

softmax(f/τ) can fit only labels that are drawn with the prior which the model has learnt. On
others, balanced ones above all, its best temperature makes up for the difference and is no tau. So
the criteria of `_calibration` are averages under the training data's mix, whatever that of the
held-out data is: of classes alike in size, the examples stand for their share of the prior.
"""

from __future__ import annotations

import numpy as np

from longtail._checks import FloatArray, IntArray
from longtail.priors import ClassPrior

# Examples whose share of the held-out data is worth a correction. Of fewer it is mostly chance,
# and among many small classes those that happen to occur would have to stand for themselves alone.
_LEAST = 10
# But classes that differ so much in frequency are told apart by any examples at all: what their
# mix is then wrong by matters more than chance.
_TIMES = 3.0
# How far apart the square roots of training counts are in different groups. By chance alone, one
# has a standard deviation of a half: classes told apart by less are not known to differ in size.
_APART = 1.5


def in_training_mix(
    target: IntArray, prior: ClassPrior, weight: FloatArray | None
) -> tuple[FloatArray, IntArray]:
    """Weights under which groups of classes have the prior's share of the held-out data.

        w_i = u_i · π(g) / Σ_{j in g} u_j,   i in g

    Classes are grouped with their neighbours in frequency until each group has enough examples, or
    any where the next class is several times as frequent. A class without examples is thereby
    represented by those nearest to it in size.

    Args:
        target: labels, shape (examples,).
        prior: π, of the data that the model was trained on.
        weight: u, of each example; None for all alike.

    Returns:
        w, shape (examples,), of sum 1; and the group of each class, shape (num_classes,).

    Examples:
        >>> target, prior = np.repeat([0, 1], 20), ClassPrior.from_counts([900, 100])
        >>> w, group = in_training_mix(target, prior, None)
        >>> np.bincount(target, weights=w).round(6), group
        (array([0.9, 0.1]), array([1, 0]))
    """
    u = np.ones(len(target)) if weight is None else weight
    held = np.bincount(target[u > 0], minlength=prior.num_classes)
    group = _groups(prior.probs, held, prior.sample)
    wanted = np.bincount(group, weights=prior.probs)
    found = np.bincount(group[target], weights=u, minlength=len(wanted))
    return np.asarray(u * (wanted / found)[group[target]]), group


def _groups(probs: FloatArray, held: IntArray, counts: IntArray | None) -> IntArray:
    """The group of each class: neighbours in frequency that have enough examples together.

    Examples:
        >>> _groups(np.array([0.6, 0.01, 0.3, 0.02, 0.07]), np.array([2, 4, 30, 6, 10]), None)
        array([2, 0, 2, 0, 1])
        >>> _groups(np.array([0.2, 0.3, 0.5]), np.array([20, 30, 50]), np.array([2, 3, 5]))
        array([0, 0, 0])
    """
    order = np.argsort(probs, kind="stable")
    sizes, until = probs[order], np.append(0, np.cumsum(held[order]))
    roots = None if counts is None else np.sqrt(counts)[order]

    def is_whole(start: int, stop: int) -> bool:
        """Whether classes from `stop` on need not join those from `start`."""
        there = until[stop] - until[start]
        if roots is not None and roots[stop] - roots[start] < _APART:
            return False
        return bool(there >= _LEAST or (there and sizes[stop] >= _TIMES * sizes[start]))

    starts = [0]
    for place in range(1, len(probs)):
        if is_whole(starts[-1], place):
            starts.append(place)
    # What is left over at the end joins the last whole group, unless it is much more frequent.
    if len(starts) > 1:
        left = until[-1] - until[starts[-1]]
        if not left or (left < _LEAST and sizes[starts[-1]] < _TIMES * sizes[starts[-2]]):
            starts.pop()
    group: IntArray = np.empty(len(probs), dtype=np.int64)
    group[order] = np.searchsorted(starts, np.arange(len(probs)), side="right") - 1
    return group
