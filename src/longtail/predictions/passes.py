"""What one pass over saved predictions finds: intervals of tau, the learnt prior, adjusted rows.

Blocks are worked on by a few threads at a time (NumPy lets go of Python's lock) and their
results joined in order, so that the result does not depend on the number of threads.
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

from longtail import _checks, posthoc
from longtail._checks import FloatArray, InputError, IntArray
from longtail.metrics._sums import row_slices
from longtail.predictions.base import Block, Predictions, hinting
from longtail.priors import ClassPrior
from longtail.tuning._intervals import TauIntervals, intervals

Progress = Callable[[int, int, str], None]
_In = TypeVar("_In")
_Out = TypeVar("_Out")

# Scores per block: of a memory map only pages are touched, so that grouping by class pays; what
# is parsed, unpacked or turned into logarithms takes memory.
_MAPPED = 1 << 26
_COPIED = 1 << 23
_WRITTEN = 1 << 22
_MOST_ROWS = 1 << 16
# Rows that tell how small a probability the model gives before it gives none.
_PROBE = 10_000
# More threads than this wait for memory.
_MOST_WORKERS = 4


def default_workers() -> int:
    """As many threads as this process has processors, up to four."""
    affinity = getattr(os, "sched_getaffinity", None)
    available = len(affinity(0)) if affinity else os.cpu_count() or 1
    return min(available, _MOST_WORKERS)


def in_order(
    function: Callable[[_In], _Out], items: Iterable[_In], *, workers: int
) -> Iterator[_Out]:
    """function(item) of each item, in order, a few at a time; items are taken as needed.

    Examples:
        >>> list(in_order(abs, [-1, 2, -3], workers=2))
        [1, 2, 3]
    """
    if workers == 1:
        yield from map(function, items)
        return
    waiting = iter(items)
    with ThreadPoolExecutor(workers) as pool:
        under_way: deque[Future[_Out]] = deque(
            pool.submit(function, item) for item in islice(waiting, workers)
        )
        try:
            while under_way:
                result = under_way.popleft().result()
                under_way.extend(pool.submit(function, item) for item in islice(waiting, 1))
                yield result
        finally:
            for future in under_way:
                future.cancel()


class ScoreLogits:
    """Turns blocks of scores into finite logits, checking what they were declared to be.

    Logits are taken as they are. Of probabilities the logarithm is taken; a probability of
    exactly zero becomes what `LogitAdjustedClassifier` makes of it (see
    `longtail.sklearn._scores.ScoreReader`): finite, and below every positive one.

    Args:
        predictions: where the blocks come from.
        prior: says what a class without any probability is worth.
    """

    def __init__(self, predictions: Predictions, prior: ClassPrior) -> None:
        self.name, self.kind, self.prior = predictions.name, predictions.kind, prior
        self.how_to_say = predictions.how_to_say
        self.smallest = _smallest(predictions) if self.kind == "probs" else None

    def __call__(self, block: Block) -> NDArray[Any]:
        """Logits of a block; for probabilities a new float64 array."""
        scores = block.scores
        if self.kind == "logits":
            if block.first_row == 0:
                _checks.not_probabilities(
                    scores[: max(1, (1 << 20) // scores.shape[1])],
                    caller=self.name,
                    hint=self.how_to_say("probs"),
                )
            return scores
        _checks.probability_rows(
            scores,
            caller=self.name,
            first_row=block.first_row,
            hint=self.how_to_say("logits"),
        )
        probs = np.array(scores, dtype=np.float64)
        return np.log(np.maximum(probs, 2.0**-126, out=probs), out=probs)


def _smallest(predictions: Predictions) -> float | None:
    """The smallest positive probability in the first rows, if there are zeros among them."""
    rows, zeros, least = 0, False, np.inf
    for block in predictions.blocks(_COPIED):
        scores = block.scores[: _PROBE - rows]
        positive = scores[scores > 0]
        zeros = zeros or positive.size < scores.size
        least = min(least, float(positive.min()) if positive.size else np.inf)
        rows += len(scores)
        if rows >= _PROBE:
            break
    return least if zeros and least < np.inf else None


class _Variety:
    """Whether predictions say anything: rows that differ, and classes that differ in a row."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.first: NDArray[Any] | None = None
        self.across = self.within = False

    def watch(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Pass the blocks on, looking only as long as nothing has varied."""
        rows = 0
        for block in blocks:
            if self.first is None:
                self.first = np.array(block.scores[0])
            if not (self.across and self.within):
                for part in row_slices(block.scores):
                    scores = block.scores[part]
                    self.across = self.across or bool(np.any(scores != self.first))
                    self.within = self.within or bool(np.any(scores != scores[:, :1]))
                    if self.across and self.within:
                        break
            rows += len(block.scores)
            yield block
        if rows and not self.within:
            raise InputError(
                f"{self.name}: in every row all classes have the same score, so the predictions "
                f"say nothing; check what was saved."
            )
        if rows > 1 and not self.across:
            raise InputError(
                f"{self.name}: every row holds the same scores, so no adjustment can tell the "
                f"examples apart; check the model's inputs and what was saved."
            )


def _blocks(predictions: Predictions, *, rest: bool = False) -> Iterator[Block]:
    """Checked blocks of a size that suits the source."""
    wide = predictions.mapped is not None and predictions.kind == "logits"
    elements = _MAPPED if wide else _WRITTEN if rest else _COPIED
    elements = min(elements, _MOST_ROWS * predictions.num_classes)
    return _Variety(predictions.name).watch(predictions.blocks(elements, rest=rest))


def tau_intervals(
    predictions: Predictions,
    prior: ClassPrior,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> TauIntervals:
    """The intervals of tau of all examples, in one pass over the file.

    Args:
        predictions: labelled.
        prior: π, of the data that the model was trained on.
        workers: threads; None for as many as there are processors, up to four.
        progress: told (rows done, rows in all or 0, "").
        **settings: method, norms, bias, bias_mode, target_prior, costs as in `tune_tau`.

    Returns:
        The TauIntervals, in the order of the examples; a class without examples is no error yet.

    Examples:
        >>> from longtail.predictions import from_arrays
        >>> saved = from_arrays([[2.0, 0.0], [2.0, 0.5]], [0, 1], kind="logits")
        >>> tau_intervals(saved, ClassPrior.from_probs([0.9, 0.1])).lower.round(3)
        array([ -inf, 0.683])
    """
    name = predictions.name
    if not predictions.labelled:
        raise InputError(f"{name} has no labels, so nothing can be measured on it.")
    with hinting(predictions.hint):
        _checks.prior(prior, name, num_classes=predictions.num_classes)
    read = ScoreLogits(predictions, prior)
    defaults = {"method": "logit_adjustment", "norms": None, "bias": None, "bias_mode": "scale",
                "target_prior": None, "costs": None}  # fmt: skip

    def find(block: Block) -> TauIntervals:
        logits = read(block)
        try:
            return intervals(
                logits,
                block.target,
                prior,
                caller=name,
                complete=False,
                sample_weight=None,
                chunk_rows=None,
                **{**defaults, **settings},
            )
        except InputError:
            # The same complaint, if it is one about values, with the row as the file has it.
            _checks.all_finite(logits, caller=name, name=read.kind, first_row=block.first_row)
            raise

    found = []
    done, total = 0, predictions.num_rows or 0
    for part in in_order(find, _blocks(predictions), workers=workers or default_workers()):
        found.append(part)
        done += part.num_examples
        if progress is not None:
            progress(done, total, "")
    return TauIntervals.merge(found)


def whole_logits(predictions: Predictions, prior: ClassPrior) -> tuple[NDArray[Any], IntArray]:
    """All logits and labels: the memory map itself where there is one, else in memory."""
    read = ScoreLogits(predictions, prior)
    if predictions.mapped is not None and predictions.kind == "logits":
        return predictions.mapped, collect_target(predictions)
    blocks = list(_blocks(predictions))
    return np.concatenate([read(block) for block in blocks]), collect_target(predictions)


def collect_target(predictions: Predictions) -> IntArray:
    """All labels as class indices."""
    found = [block.target for block in predictions.blocks(_COPIED) if block.target is not None]
    return np.concatenate(found)


def learnt_prior(
    predictions: Predictions, prior: ClassPrior | None, weight: FloatArray | None
) -> ClassPrior:
    """The prior that the model has learnt: its mean predicted probability over the rows.

    Args:
        predictions: of data mixed like the training data, or made so by the weights.
        prior: of the training data, whose counts are kept for the groups; or None.
        weight: of each row; rows of weight 0 have no part. None for all alike.

    Returns:
        A ClassPrior.

    Examples:
        >>> from longtail.predictions import from_arrays
        >>> saved = from_arrays([[0.9, 0.1], [0.5, 0.5]], kind="probs")
        >>> learnt_prior(saved, None, None).probs
        array([0.7, 0.3])
    """
    total = np.zeros(predictions.num_classes)
    read = ScoreLogits(predictions, prior or ClassPrior.uniform(predictions.num_classes))
    for block in _blocks(predictions):
        logits = read(block)
        if read.kind == "logits":
            _checks.all_finite(logits, caller=read.name, name="logits", first_row=block.first_row)
        for rows in row_slices(logits):
            mass = np.ones(rows.stop - rows.start)
            if weight is not None:
                mass = weight[block.first_row + rows.start : block.first_row + rows.stop]
            if read.kind == "probs":
                total += mass @ block.scores[rows].astype(np.float64)
            else:
                total += mass @ softmax(logits[rows].astype(np.float64))
    empty = np.flatnonzero(total == 0)
    if len(empty):
        named = _checks.listing(predictions.label(int(k)) for k in empty)
        raise InputError(
            f"{predictions.name}: class(es) {named} have probability 0 in every row, so the "
            f"learnt prior has no logarithm; use the training counts instead."
        )
    return ClassPrior(probs=total / total.sum(), counts=None if prior is None else prior.counts)


def softmax(logits: FloatArray) -> FloatArray:
    """Probabilities of each row; overwrites its argument."""
    logits -= logits.max(axis=1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=1, keepdims=True)
    return logits


def write_adjusted(
    predictions: Predictions,
    path: Path,
    prior: ClassPrior,
    *,
    tau: float,
    target_prior: ClassPrior | None,
    progress: Progress | None = None,
) -> tuple[int, int]:
    """Write the adjusted predictions in the format that they came in.

    Decisions are made in float64, as in `tau_intervals`, whatever the scores' precision.

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
    read = ScoreLogits(predictions, prior)
    changed = done = 0
    with predictions.writer(path, tau=tau) as out:
        for large in _blocks(predictions, rest=True):
            for block in _cut(large):
                logits = read(block)
                _checks.all_finite(
                    logits, caller=read.name, name=read.kind, first_row=block.first_row
                )
                adjusted = logits.astype(np.float64) + shift
                predicted = adjusted.argmax(axis=1)
                changed += int(np.sum(predicted != block.scores.argmax(axis=1)))
                if read.kind == "probs":
                    adjusted = softmax(adjusted)
                out.write(block, adjusted, predicted)
                done += len(predicted)
                if progress is not None:
                    progress(done, predictions.num_rows or 0, "")
    return changed, done


def _cut(block: Block) -> Iterator[Block]:
    """Smaller blocks, for what is not needed in one piece."""
    if block.rest is not None:
        yield block
        return
    for rows in row_slices(block.scores):
        target = None if block.target is None else block.target[rows]
        yield Block(block.first_row + rows.start, block.scores[rows], target)
