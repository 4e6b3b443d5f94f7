"""Which examples: the literature's long-tailed subset, and the stratified held-out split."""

from __future__ import annotations

import numpy as np

from longtail import _checks
from longtail._checks import InputError, IntArray


def long_tailed_indices(labels: IntArray, counts: IntArray, *, seed: int = 0) -> IntArray:
    """The subset with the given class sizes, as the literature draws it.

    ``numpy.random.RandomState(seed)``; for each class in label order, shuffle that class's
    indices (in the data's own order) and take the first n_i. Subsets of different imbalance
    ratios are nested, because the shuffles don't depend on the counts.

    Args:
        labels: of the full data set, in its official order, shape (examples,).
        counts: n_i, shape (num_classes,).
        seed: 0 is the one subset that published results use.

    Returns:
        Positions in `labels`, grouped by class.

    Example:
        >>> labels = np.array([0, 1, 0, 1, 0, 1])
        >>> long_tailed_indices(labels, np.array([3, 1])).tolist()
        [4, 2, 0, 5]
    """
    random = np.random.RandomState(seed)
    chosen = []
    for label, count in enumerate(counts):
        indices = np.flatnonzero(labels == label)
        if len(indices) < count:
            raise InputError(
                f"long_tailed_indices: class {label} has {len(indices)} examples but the "
                f"profile asks for {count}."
            )
        random.shuffle(indices)
        chosen.append(indices[:count])
    return np.concatenate(chosen)


def held_out_split(labels: IntArray, *, fraction: float, seed: int) -> tuple[IntArray, IntArray]:
    """Split positions class by class into a part to train on and a part held out.

    Args:
        labels: shape (examples,).
        fraction: of each class that is held out, rounded, at least one example; a class keeps
            at least one example to train on.
        seed: which examples.

    Returns:
        (training positions, held-out positions), each in ascending order.

    Example:
        >>> kept, held = held_out_split(np.array([0, 0, 0, 0, 0, 1, 1]), fraction=0.2, seed=0)
        >>> len(kept), len(held)
        (5, 2)
    """
    caller = "held_out_split"
    fraction = _checks.fraction(fraction, caller, name="fraction", below_one=True)
    kept, held = [], []
    for label in np.unique(labels):
        # A generator of its own per class: one class's size doesn't move another's split.
        indices = np.flatnonzero(labels == label)
        if len(indices) < 2:
            raise InputError(
                f"{caller}: class {label} has only {len(indices)} example, so none can be held "
                f"out and still be trained on."
            )
        order = np.random.default_rng([seed, int(label)]).permutation(indices)
        size = min(max(round(fraction * len(indices)), 1), len(indices) - 1)
        held.append(order[:size])
        kept.append(order[size:])
    return np.sort(np.concatenate(kept)), np.sort(np.concatenate(held))
