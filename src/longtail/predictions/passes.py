"""Single passes over saved predictions: intervals of tau, the learnt prior, adjusted rows.

Blocks are worked on by a few threads (NumPy releases Python's lock) and joined in order, so that
the result does not depend on the number of threads.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from longtail import _checks, posthoc
from longtail._checks import FloatArray, InputError, IntArray
from longtail.predictions.files import Block, Predictions
from longtail.priors import ClassPrior
from longtail.tuning import TauIntervals

Progress = Callable[[int, int, str], None]
_Found = TypeVar("_Found")

# Scores per block: of a memory map, which takes no memory; of what is parsed or computed.
_MAPPED = 1 << 26
_COPIED = 1 << 22
_MOST_ROWS = 1 << 16
_affinity = getattr(os, "sched_getaffinity", None)
# More than four threads wait for memory.
WORKERS = min(len(_affinity(0)) if _affinity else os.cpu_count() or 1, 4)


def each_block(
    function: Callable[[Block, NDArray[Any]], _Found],
    predictions: Predictions,
    *,
    elements: int | None = None,
    workers: int = 1,
    progress: Progress | None = None,
    rest: bool = False,
) -> Iterator[_Found]:
    """Yield function(block, logits) of each block in order, computed a few at a time.

    Of probabilities the logits are their logarithms. `rest` keeps whole rows in the blocks.
    """

    def work(block: Block) -> _Found:
        if predictions.kind == "probs":
            _checks.probability_rows(block.scores, first_row=block.first_row)
            return function(block, posthoc.log_probs(block.scores))
        if block.first_row == 0:
            _checks.not_probabilities(block.scores[:10_000], hint="say so with `kind='probs'`")
        return function(block, block.scores)

    most = min(elements or _COPIED, _MOST_ROWS * predictions.num_classes)
    done = 0
    with ThreadPoolExecutor(workers) as pool:
        blocks = predictions.blocks(most, rest=rest)
        submitted = ((len(block.scores), pool.submit(work, block)) for block in blocks)
        running = deque(islice(submitted, workers))
        while running:
            rows, future = running.popleft()
            result = future.result()
            running.extend(islice(submitted, 1))
            done += rows
            if progress is not None:
                progress(done, predictions.num_rows or 0, "")
            yield result


def tau_intervals(
    predictions: Predictions,
    prior: ClassPrior,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> TauIntervals:
    """Find the intervals of tau of all examples, in one pass over the file.

    `settings` are those of `TauIntervals.from_logits`, or with `norms` of its `from_normalized`.

    Examples:
        >>> from longtail.predictions import from_arrays
        >>> saved = from_arrays([[2.0, 0.0], [2.0, 0.5]], [0, 1], kind="logits")
        >>> tau_intervals(saved, ClassPrior.from_probs([0.9, 0.1])).lower.round(3)
        array([ -inf, 0.683])
    """
    if not predictions.labelled:
        raise InputError(f"{predictions.name} has no labels; name them with `labels=`.")

    def find(block: Block, logits: NDArray[Any]) -> TauIntervals:
        try:
            if "norms" in settings:
                return TauIntervals.from_normalized(logits, block.target, **settings)
            return TauIntervals.from_logits(logits, block.target, prior, **settings)
        except InputError:  # NaN is named by its row in the file
            _checks.all_finite(logits, name=predictions.kind, first_row=block.first_row)
            raise

    mapped = predictions.mapped is not None and predictions.kind == "logits"
    found = each_block(
        find,
        predictions,
        elements=_MAPPED if mapped else None,
        workers=workers or WORKERS,
        progress=progress,
    )
    return TauIntervals.merge(found)


def whole_logits(predictions: Predictions) -> tuple[NDArray[Any], IntArray]:
    """Return all logits and labels: the memory map itself where there is one, else in memory."""
    if predictions.mapped is not None and predictions.kind == "logits":
        return predictions.mapped, all_labels(predictions)
    found = list(each_block(lambda block, logits: (logits, block.target), predictions))
    logits, target = zip(*found, strict=True)
    return np.concatenate(logits), np.concatenate(target)


def all_labels(predictions: Predictions) -> IntArray:
    """Return all labels as class indices."""
    if predictions.target is not None:
        return predictions.target
    return np.concatenate([block.target for block in predictions.blocks(_COPIED)])


def learnt_priors(
    predictions: Predictions,
    prior: ClassPrior | None,
    sets: Sequence[NDArray[np.bool_]] | None = None,
    target: IntArray | None = None,
    *,
    workers: int = 1,
) -> list[ClassPrior]:
    """Return the priors that the model shows on sets of examples: its mean probabilities there.

    Args:
        predictions: of data mixed like the training data, unless labels tell how they are mixed.
        prior: of the training data, whose counts are kept for the groups; or None.
        sets: the examples of each set; None for one set of all.
        target: labels, if each class is to weigh what it has in `prior`.
        workers: threads.
    """
    from scipy.special import softmax

    weights = [rows.astype(np.float64) for rows in sets or ()]
    if prior is not None and target is not None:
        for weight in weights:
            counts = np.bincount(target, weight, minlength=predictions.num_classes)
            weight *= (prior.probs / np.maximum(counts, 1))[target]

    def masses(block: Block, logits: NDArray[Any]) -> list[FloatArray]:
        _checks.all_finite(logits, name=predictions.kind, first_row=block.first_row)
        probs = block.scores.astype(np.float64)
        if predictions.kind == "logits":
            probs = softmax(probs, axis=1)
        rows = slice(block.first_row, block.first_row + len(probs))
        return [weight[rows] @ probs for weight in weights] or [np.ones(len(probs)) @ probs]

    totals = np.sum(list(each_block(masses, predictions, workers=workers)), axis=0)
    empty = np.flatnonzero(~totals.all(axis=0))
    if len(empty):
        named = _checks.listing(predictions.label(int(k)) for k in empty)
        raise InputError(
            f"{predictions.name}: class(es) {named} have probability 0 in every row, so the "
            f"learnt prior has no logarithm; use the training counts instead."
        )
    known = None if prior is None else prior.counts
    return [ClassPrior(probs=total / total.sum(), counts=known) for total in totals]
