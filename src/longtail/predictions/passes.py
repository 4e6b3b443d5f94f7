"""Single passes over saved predictions: intervals of tau, the learnt prior, adjusted rows.

Blocks are worked on by a few threads (NumPy releases Python's lock) and joined in order, so that
the result does not depend on the number of threads.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from longtail import _checks, posthoc
from longtail._checks import FloatArray, InputError, IntArray
from longtail.metrics._sums import row_slices
from longtail.predictions.files import Block, Predictions
from longtail.priors import ClassPrior
from longtail.tuning import TauIntervals

Progress = Callable[[int, int, str], None]
_In = TypeVar("_In")
_Out = TypeVar("_Out")

# Scores per block. Of a memory map only pages are touched, so large blocks pay; what is parsed,
# unpacked or turned into logarithms takes memory.
_MAPPED = 1 << 26
_COPIED = 1 << 22
_MOST_ROWS = 1 << 16


def default_workers() -> int:
    """Return the number of this process's processors, at most four: more wait for memory."""
    affinity = getattr(os, "sched_getaffinity", None)
    return min(len(affinity(0)) if affinity else os.cpu_count() or 1, 4)


def in_order(
    function: Callable[[_In], _Out], items: Iterable[_In], *, workers: int
) -> Iterator[_Out]:
    """Yield function(item) of each item in order, computed a few at a time.

    Examples:
        >>> list(in_order(abs, [-1, 2, -3], workers=2))
        [1, 2, 3]
    """
    waiting = iter(items)
    with ThreadPoolExecutor(workers) as pool:
        running: deque[Future[_Out]] = deque(
            pool.submit(function, item) for item in islice(waiting, workers)
        )
        while running:
            result = running.popleft().result()
            running.extend(pool.submit(function, item) for item in islice(waiting, 1))
            yield result


def blocks(predictions: Predictions, *, rest: bool = False) -> Iterator[Block]:
    """Yield blocks of a size that suits the source, the first checked to be what it is called."""
    mapped = predictions.mapped is not None and predictions.kind == "logits"
    elements = _MAPPED if mapped and not rest else _COPIED
    return predictions.blocks(min(elements, _MOST_ROWS * predictions.num_classes), rest=rest)


def read_logits(predictions: Predictions, block: Block, prior: ClassPrior) -> NDArray[Any]:
    """Return the logits of a block; of probabilities, their logarithms."""
    if predictions.kind == "probs":
        _checks.probability_rows(block.scores, first_row=block.first_row)
        return posthoc.log_probs(block.scores)
    if block.first_row == 0:
        _checks.not_probabilities(block.scores[:10_000], hint="declare them with --probs")
    return block.scores


def tau_intervals(
    predictions: Predictions,
    prior: ClassPrior,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> TauIntervals:
    """Find the intervals of tau of all examples, in one pass over the file.

    Args:
        predictions: labelled.
        prior: π, of the data that the model was trained on.
        workers: threads; None for as many as there are processors, up to four.
        progress: told (rows done, rows in all or 0, "").
        **settings: as in `TauIntervals.from_logits`.

    Returns:
        The TauIntervals, in the order of the examples.

    Examples:
        >>> from longtail.predictions import from_arrays
        >>> saved = from_arrays([[2.0, 0.0], [2.0, 0.5]], [0, 1], kind="logits")
        >>> tau_intervals(saved, ClassPrior.from_probs([0.9, 0.1])).lower.round(3)
        array([ -inf, 0.683])
    """
    if not predictions.labelled:
        raise InputError(f"{predictions.name} has no labels, so nothing can be measured on it.")

    def find(block: Block) -> TauIntervals:
        logits = read_logits(predictions, block, prior)
        try:
            return TauIntervals.from_logits(logits, block.target, prior, **settings)
        except InputError:  # NaN is named by its row in the file
            _checks.all_finite(logits, name=predictions.kind, first_row=block.first_row)
            raise

    found = []
    done = 0
    for part in in_order(find, blocks(predictions), workers=workers or default_workers()):
        found.append(part)
        done += part.num_examples
        if progress is not None:
            progress(done, predictions.num_rows or 0, "")
    return TauIntervals.merge(found)


def whole_logits(predictions: Predictions, prior: ClassPrior) -> tuple[NDArray[Any], IntArray]:
    """Return all logits and labels: the memory map itself where there is one, else in memory."""
    if predictions.mapped is not None and predictions.kind == "logits":
        return predictions.mapped, collect_target(predictions)
    found = [
        (read_logits(predictions, block, prior), block.target) for block in blocks(predictions)
    ]
    return np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])


def collect_target(predictions: Predictions) -> IntArray:
    """Return all labels as class indices."""
    return np.concatenate([block.target for block in blocks(predictions)])


def learnt_prior(
    predictions: Predictions, prior: ClassPrior | None, weight: FloatArray | None
) -> ClassPrior:
    """Return the prior that the model has learnt: its mean predicted probability over the rows.

    Args:
        predictions: of data mixed like the training data, or made so by the weights.
        prior: of the training data, whose counts are kept for the groups; or None.
        weight: of each row, shape (examples,); None for all alike.

    Examples:
        >>> from longtail.predictions import from_arrays
        >>> saved = from_arrays([[0.9, 0.1], [0.5, 0.5]], kind="probs")
        >>> learnt_prior(saved, None, None).probs
        array([0.7, 0.3])
    """
    total = np.zeros(predictions.num_classes)
    for block in blocks(predictions):
        if predictions.kind == "probs":
            _checks.probability_rows(block.scores, first_row=block.first_row)
        else:
            _checks.all_finite(block.scores, name="logits", first_row=block.first_row)
        for rows in row_slices(block.scores):
            probs = block.scores[rows].astype(np.float64)
            if predictions.kind == "logits":
                probs = softmax(probs, axis=1)
            first = block.first_row + rows.start
            mass = np.ones(len(probs)) if weight is None else weight[first : first + len(probs)]
            total += mass @ probs
    empty = np.flatnonzero(total == 0)
    if len(empty):
        named = _checks.listing(predictions.label(int(k)) for k in empty)
        raise InputError(
            f"{predictions.name}: class(es) {named} have probability 0 in every row, so the "
            f"learnt prior has no logarithm; use the training counts instead."
        )
    return ClassPrior(probs=total / total.sum(), counts=None if prior is None else prior.counts)


def write_adjusted(
    predictions: Predictions,
    path: Path,
    prior: ClassPrior,
    *,
    tau: float,
    target_prior: ClassPrior | None,
    progress: Progress | None = None,
) -> tuple[int, int]:
    """Write the adjusted predictions in the format that they came in; decide in float64.

    Args:
        predictions: the source.
        path: the new file.
        prior: as in `adjust_logits`.
        tau: as in `adjust_logits`.
        target_prior: as in `adjust_logits`.
        progress: told (rows done, rows in all or 0, "").

    Returns:
        How many predicted labels changed, and how many rows there are.
    """
    shift = posthoc.adjustment(prior, tau=tau, target_prior=target_prior)
    changed = done = 0
    with predictions.writer(path, tau=tau) as write:
        for block in blocks(predictions, rest=True):
            logits = read_logits(predictions, block, prior)
            _checks.all_finite(logits, name=predictions.kind, first_row=block.first_row)
            adjusted = logits.astype(np.float64) + shift
            predicted = adjusted.argmax(axis=1)
            changed += int(np.sum(predicted != block.scores.argmax(axis=1)))
            write(
                block,
                softmax(adjusted, axis=1) if predictions.kind == "probs" else adjusted,
                predicted,
            )
            done += len(predicted)
            if progress is not None:
                progress(done, predictions.num_rows or 0, "")
    return changed, done
