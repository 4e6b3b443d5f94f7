"""Which examples a Lightning process has evaluated, and those of all processes together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler

from longtail._checks import InputError, IntArray


class Batch(NamedTuple):
    """What is kept of a batch that was handed over: what its logits decide, which is small.

    Attributes:
        decided: the class with the largest logit, shape (examples,).
        target: labels, shape (examples,).
        indices: position in the data set, shape (examples,), where the caller told it.
        marks: see `marks`, shape (examples,).
        num_classes: columns of the logits.
        finite: whether all logits are.
        logits: shape (examples, num_classes), where they are to be written to a run folder.
    """

    decided: IntArray
    target: IntArray
    indices: IntArray | None
    marks: NDArray[Any]
    num_classes: int
    finite: bool
    logits: NDArray[Any] | None

    @classmethod
    def of(
        cls, logits: NDArray[Any], target: IntArray, indices: IntArray | None, *, whole: bool
    ) -> Batch:
        """A batch, with its logits if it is kept `whole`."""
        return cls(
            logits.argmax(axis=1),
            target,
            indices,
            marks(logits),
            logits.shape[1],
            bool(np.isfinite(logits).all()),
            logits if whole else None,
        )


class Examples(NamedTuple):
    """A process's part of a split, or all of it.

    Attributes:
        scores: logits, shape (examples, num_classes); or what they decide, shape (examples,).
        target: labels, shape (examples,).
        indices: position in the data set, shape (examples,), where that is known.
        marks: see `marks`, shape (examples,); where a process counted the positions in a loader
            of its own, whose data may be others than those of the other processes.
    """

    scores: NDArray[Any]
    target: IntArray
    indices: IntArray | None
    marks: NDArray[Any] | None = None


def marks(logits: NDArray[Any]) -> NDArray[Any]:
    """One number for each example that tells its logits from another's, shape (examples,).

    It goes to the other processes in place of the logits, which may be large.
    """
    direction = _direction(logits.shape[1])
    with np.errstate(invalid="ignore", over="ignore"):  # diverged logits are refused elsewhere
        return np.asarray(logits.astype(np.float32, copy=False) @ direction)


@cache  # every batch has the same
def _direction(width: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal(width, np.float32)


def positions(loader: Any, rows: int) -> IntArray | None:
    """Where a loader's first examples are in its data set; None if its sampler does not say."""
    sampler = _sampler(loader)
    if not isinstance(sampler, DistributedSampler | SequentialSampler):
        return None
    with torch.random.fork_rng(devices=[]):  # what is drawn afterwards must not change
        found, again = (np.fromiter(iter(sampler), np.int64) for _ in range(2))
    # One that draws anew on each pass, such as Lightning's wrapper of a random choice, no longer
    # knows what it dealt out.
    known = len(found) >= rows and np.array_equal(found, again)
    return found[:rows] if known else None


def shares_out(loader: Any, processes: int) -> bool:
    """Whether a loader's sampler deals one data set out to all processes."""
    sampler = _sampler(loader)
    return isinstance(sampler, DistributedSampler) and sampler.num_replicas == processes


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
        twins = first[place]
        if not np.array_equal(target[twins], target):
            raise _apart("labels")
        marked = [part.marks for part in there if part.marks is not None]
        if len(marked) == len(there) and _differ(np.concatenate(marked), target, twins):
            raise _apart("logits")
        return Examples(scores[first], target[first], order)
    if len(there) > 1:
        raise InputError(
            "LongTailMixin: in several processes the examples have to be told apart, and their "
            "loader's sampler does not say which they are; pass collect(..., indices=...), the "
            "position of each in its data set."
        )
    return Examples(scores, target, None)


def _differ(found: NDArray[Any], target: IntArray, twins: IntArray) -> bool:
    """Whether marks at the same position are those of different examples.

    Those of the same examples lie close together, and within a class they rise and fall together,
    whatever the rounding and the statistics of batch norm that a process may keep for itself;
    those of different examples do not.

    Args:
        found: marks of all processes, shape (examples,).
        target: their labels, shape (examples,).
        twins: where the first of them at the same position is, shape (examples,).
    """
    met = np.flatnonzero(twins != np.arange(len(twins)))
    if not len(met):
        return False
    wide = found.astype(np.float64)
    here, there = wide[twins[met]], wide[met]
    rounding = 0.01**2 * np.mean(wide**2)  # of a dead network there may be nothing else
    if np.mean((here - there) ** 2) > wide.var() + rounding:
        return True
    here, there = (_without_class_means(part, target[met]) for part in (here, there))
    alike = here @ there >= 0.8 * np.linalg.norm(here) * np.linalg.norm(there)
    return bool(np.mean((here - there) ** 2) > rounding and not alike)


def _without_class_means(values: NDArray[Any], target: IntArray) -> NDArray[Any]:
    sums, counts = np.bincount(target, values), np.bincount(target)
    return np.asarray(values - (sums / np.maximum(counts, 1))[target])


def _apart(what: str) -> InputError:
    return InputError(
        f"LongTailMixin: examples at the same position have different {what}, as if each process "
        f"had a data set of its own; pass collect(..., indices=...), the position of each in the "
        f"data of all."
    )
