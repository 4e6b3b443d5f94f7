"""Long-tailed subsets as the literature draws them, development sets and held-out splits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from longtail import _checks
from longtail._checks import InputError, IntArray
from longtail.data.images import ImageSet, LongTailedData
from longtail.data.profiles import natural_counts, profile_counts
from longtail.runs import DataSpec

# Images of a development set, shared out evenly among the classes: enough to tell settings
# apart, and few enough to travel in a frozen file.
DEVELOPMENT_IMAGES = 5000


def long_tailed_indices(
    labels: IntArray, counts: IntArray, *, seed: int = 0, development: int = 0
) -> IntArray:
    """Return the subset with the given class sizes, as the literature draws it.

    ``numpy.random.RandomState(seed)``; for each class in label order, shuffle that class's
    indices (in the data's own order) and take the first n_i. Subsets of different imbalance
    ratios are nested, because the shuffles don't depend on the counts.

    Args:
        labels: of the full data set, in its official order, shape (examples,).
        counts: n_i, shape (num_classes,).
        seed: 0 for the subset that published results use.
        development: if above 0, return examples that the subset leaves out instead, at most so
            many of every class: the last of its shuffle, so that subsets of different imbalance
            ratios have the same ones as far as they leave them out.

    Returns:
        Positions in `labels`, grouped by class.

    Examples:
        >>> labels = np.array([0, 1, 0, 1, 0, 1])
        >>> long_tailed_indices(labels, np.array([3, 1])).tolist()
        [4, 2, 0, 5]
        >>> long_tailed_indices(labels, np.array([3, 1]), development=1).tolist()
        [3]
    """
    random, chosen = np.random.RandomState(seed), []
    for label, count in enumerate(counts):
        indices = np.flatnonzero(labels == label)
        random.shuffle(indices)
        if len(indices) < count:
            raise InputError(
                f"class {label} has {len(indices)} examples but the profile asks for {count}."
            )
        chosen.append(indices[count:][-development:] if development else indices[:count])
    return np.concatenate(chosen)


def make_long_tailed(
    pool: ImageSet, test: ImageSet, spec: DataSpec, *, development: int | None = None
) -> LongTailedData:
    """Make the long-tailed training set that a spec describes, out of a larger one.

    Args:
        pool: all training examples, in their official order.
        test: goes along untouched.
        spec: its `profile` is ``exp`` or ``step``, whose n_max is the size of the pool's
            smallest class; or ``natural``, with the class sizes as ``settings["counts"]``; or
            None for the whole pool as it is, which leaves nothing out.
        development: largest number of each class in the development set, of those that the
            subset leaves out; if None, 5,000 images shared out among the classes; 0 for no such
            set.

    Returns:
        The data, with this spec.

    Examples:
        >>> pool = ImageSet(np.zeros((8, 1, 2, 2), np.uint8), np.arange(8) % 2, ("a", "b"))
        >>> spec = DataSpec("toy", profile="step", imbalance_ratio=4)
        >>> make_long_tailed(pool, pool, spec).train.counts
        array([4, 1])
    """
    if spec.profile is None:
        return LongTailedData(pool, test, spec)
    if spec.profile == "natural":
        counts = natural_counts(spec.settings["counts"])
        if len(counts) != pool.num_classes:
            raise InputError(
                f"the profile has {len(counts)} classes but {spec.name} has "
                f"{pool.num_classes}; `fit=True` gives a profile of the same shape."
            )
    else:
        counts = profile_counts(
            spec.profile,
            int(pool.counts.min()),
            num_classes=pool.num_classes,
            imbalance_ratio=spec.imbalance_ratio or 1,
        )
    train = pool.take(long_tailed_indices(pool.labels, counts, seed=spec.seed))
    if development is not None:
        _checks.whole(development, name="development", at_least=0)
    else:
        development = max(1, DEVELOPMENT_IMAGES // pool.num_classes)
    if not development or len(train) == len(pool):
        return LongTailedData(train, test, spec)
    left = long_tailed_indices(pool.labels, counts, seed=spec.seed, development=development)
    return LongTailedData(train, test, spec, pool.take(left))


def held_out_split(
    labels: IntArray,
    *,
    fraction: float,
    seed: int,
    class_names: Sequence[str] | None = None,
    remedy: str = "add examples of it",
) -> tuple[IntArray, IntArray]:
    """Split positions class by class into a part to train on and a part held out.

    Args:
        labels: shape (examples,).
        fraction: of each class that is held out, rounded, at least one example; a class keeps
            at least one example to train on.
        seed: of the choice.
        class_names: in label order, for messages; None for the labels themselves.
        remedy: advice about a class of one example, for the message.

    Returns:
        (training positions, held-out positions), each in ascending order.

    Examples:
        >>> kept, held = held_out_split(np.array([0, 0, 0, 0, 0, 1, 1]), fraction=0.2, seed=0)
        >>> len(kept), len(held)
        (5, 2)
    """
    fraction = _checks.fraction(fraction, name="fraction", below_one=True)
    kept, held = [], []
    for label in np.unique(labels):
        # A generator of its own per class: one class's size doesn't move another's split.
        indices = np.flatnonzero(labels == label)
        if len(indices) < 2:
            name = label if class_names is None else class_names[label]
            raise InputError(
                f"class {name} has only 1 example, which can't be both held out and "
                f"trained on; {remedy}, or hold nothing out."
            )
        order = np.random.default_rng([seed, int(label)]).permutation(indices)
        size = min(max(round(fraction * len(indices)), 1), len(indices) - 1)
        held.append(order[:size])
        kept.append(order[size:])
    return np.sort(np.concatenate(kept)), np.sort(np.concatenate(held))
