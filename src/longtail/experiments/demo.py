"""The first run: five losses on long-tailed digits, five seeds, and what adjusting does.

The recipe was settled by hand, in a few trials that also looked at test errors, and is the same
for every method: compare the methods, but don't take the level for a benchmark. Taus come from
a second softmax run per seed with a fifth of each class held out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from longtail import _checks

_checks.require("torch", extra="torch", caller=__name__)

import torch

from longtail.data.digits import load_digits_lt
from longtail.report.compare import BASELINE, Comparison, compare
from longtail.runs import Run, RunSpec
from longtail.train.engine import Progress, evaluate, train_cohort
from longtail.train.recipe import make_spec

METHODS = ("softmax", "balanced", "adaptive", "equalized", "logit-adjusted")
HELD_OUT = 0.2


def specs(*, seeds: int = 5, epochs: int | None = None) -> list[RunSpec]:
    """What the demo trains: every method on every seed, and softmax with a held-out part."""
    data = load_digits_lt().spec
    overrides = {} if epochs is None else {"epochs": epochs}
    whole = [
        make_spec(data, method=method, recipe="digits", seed=seed, overrides=overrides)
        for method in METHODS
        for seed in range(seeds)
    ]
    held = replace(data, held_out=HELD_OUT)
    return whole + [
        make_spec(held, method=BASELINE, recipe="digits", seed=seed, overrides=overrides)
        for seed in range(seeds)
    ]


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one core: for so small a network, waiting for the others costs more than it saves.

    It also makes the result independent of how many cores there are.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run(
    root: Path | str,
    *,
    seeds: int = 5,
    epochs: int | None = None,
    force: bool = False,
    command: str | None = None,
    progress: Progress | None = None,
) -> tuple[Comparison, list[Run]]:
    """Train, open the test set once for each finished run, and compare.

    Args:
        root: where the run folders go; finished runs there are used as they are.
        seeds: how many.
        epochs: other than the recipe's.
        force: train finished runs again.
        command: what to type to do this again, for the record.
        progress: called as ``progress(epochs done, epochs in all, what)``.

    Returns:
        The comparison, and the runs behind it.
    """
    data = load_digits_lt()
    with one_thread():
        trained = train_cohort(
            specs(seeds=seeds, epochs=epochs),
            data.train,
            root=root,
            command=command,
            force=force,
            progress=progress,
        )
        runs = [evaluate(one, data.test) for one in trained]
    return compare(runs), runs
