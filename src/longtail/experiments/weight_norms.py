"""The paper's first figure: do the last layer's weight norms follow class frequency?

Under SGD with momentum, and under Adam at the rate that held-out data chose, with the recipe's
weight decay and without any. How it looks is in `longtail.report.weight_norms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from longtail._checks import FloatArray, IntArray
from longtail.experiments.exp_runs import PLAIN
from longtail.experiments.records import Record
from longtail.experiments.table_exp import Part
from longtail.report.compare import Interval, mean_interval

_ALMOST = 1 - 1e-12  # z is infinite at 1


@dataclass(frozen=True, eq=False)
class Norms:
    """Weight norms of one optimiser's runs, classes from most to least frequent.

    Attributes:
        optimizer: its name, and Adam's rate.
        seeds: of the runs.
        values: shape (seeds, num_classes).
        correlations: of each run's norms with log class frequency, shape (seeds,).
        error: mean balanced test error.
    """

    optimizer: str
    seeds: tuple[int, ...]
    values: FloatArray
    correlations: FloatArray
    error: float

    @property
    def correlation(self) -> Interval:
        """Its mean over the runs, with the 95% interval; taken in Fisher's z, so within ±1."""
        z = mean_interval(np.arctanh(np.clip(self.correlations, -_ALMOST, _ALMOST)))
        low, high = np.tanh([z.low, z.high])
        return Interval(float(np.tanh(z.mean)), float(low), float(high), z.seeds)


def by_frequency(counts: IntArray) -> IntArray:
    """The classes from most to least frequent; equally frequent ones in label order."""
    return np.argsort(-counts, kind="stable")


def weight_norms(part: Part) -> dict[str, Norms]:
    """Norms by optimiser, ``sgd``, ``adam`` and ``adam-no-decay``, as far as there are runs.

    Args:
        part: a data set and recipe.
    """
    kinds = {"sgd": PLAIN, "adam": part.adam(), "adam-no-decay": part.adam(decay=False)}
    found = {}
    for name, kind in kinds.items():
        runs = [] if kind is None else part.records_of(kind)
        if kind is not None and runs:
            title = "SGD with momentum" if name == "sgd" else kind.name
            found[name] = _norms(title, runs)
    return found


def _norms(optimizer: str, runs: Sequence[Record]) -> Norms:
    counts = np.asarray(runs[0].prior.counts)
    order = by_frequency(counts)
    values = np.array([one.norms[order] for one in runs])
    frequency = np.log(counts[order])
    return Norms(
        optimizer,
        tuple(one.spec.seed for one in runs),
        values,
        np.array([_correlation(frequency, row) for row in values]),
        float(np.mean([one.per_class().mean() for one in runs])),
    )


def _correlation(one: FloatArray, other: FloatArray) -> float:
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0  # what does not vary does not follow
    return float(np.corrcoef(one, other)[0, 1])
