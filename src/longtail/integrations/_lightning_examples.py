"""Which examples a Lightning process has evaluated, and those of all processes together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler

from longtail._checks import InputError, IntArray


class Examples(NamedTuple):
    """A batch, a process's part of a split, or all of it.

    Attributes:
        scores: logits, shape (examples, num_classes); or what they decide, shape (examples,).
        target: labels, shape (examples,).
        indices: position in the data set, shape (examples,), where that is known.
    """

    scores: NDArray[Any]
    target: IntArray
    indices: IntArray | None


def positions(loader: Any, rows: int) -> IntArray | None:
    """Where a loader's first examples are in its data set; None if its sampler does not say."""
    sampler = _sampler(loader)
    if not isinstance(sampler, DistributedSampler | SequentialSampler):
        return None
    found = np.fromiter(iter(sampler), np.int64)
    return found[:rows] if len(found) >= rows else None


def _sampler(loader: Any) -> Any:
    """What says in which order a loader's examples come; None if that is not known.

    Beside a batch sampler a DataLoader always has a SequentialSampler, which nobody asks: the order
    is the batch sampler's own, and only torch's leaves it as its sampler says.
    """
    batches = getattr(loader, "batch_sampler", None)
    if batches is None:  # not cut into batches
        return getattr(loader, "sampler", None)
    return batches.sampler if type(batches) is BatchSampler else None


def together(parts: Sequence[Examples | None]) -> Examples:
    """The parts of all processes, each example once and in the order of its data set.

    Args:
        parts: one for each process, None where it has no examples.
    """
    there = [part for part in parts if part is not None]
    scores, target = (np.concatenate([part[i] for part in there]) for i in (0, 1))
    known = [part.indices for part in there if part.indices is not None]
    if len(known) == len(there):
        indices = np.concatenate(known)
        order, first, place = np.unique(indices, return_index=True, return_inverse=True)
        if not np.array_equal(target[first][place], target):
            raise InputError(
                "LongTailMixin: examples at the same position have different labels, as if each "
                "process had a data set of its own; pass collect(..., indices=...), the position "
                "of each in the data of all."
            )
        return Examples(scores[first], target[first], order)
    if len(there) > 1:
        raise InputError(
            "LongTailMixin: in several processes the examples have to be told apart, and their "
            "loader's sampler does not say which they are; pass collect(..., indices=...), the "
            "position of each in its data set."
        )
    return Examples(scores, target, None)
