"""The paper's ImageNet-LT and iNaturalist tables: every cell beside the same one trained here.

`run` trains what is missing and returns a `table_exp.Study`, whose parts are the columns of
`large_runs`. The paper's values are the only thing that is copied. `estimate` says beforehand how
long it will take. How the tables look is in `longtail.report.table_large`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longtail.experiments import Progress, large_hours, records
from longtail.experiments.exp_runs import Shelf, Trainer
from longtail.experiments.large_runs import COLUMNS, KINDS, Column, LargePlan, data_of
from longtail.experiments.records import LOGIT_ADJUSTMENT, Record
from longtail.experiments.table_exp import DROP, SCALE, SOURCES, Part, Row, Study, posthoc

if TYPE_CHECKING:
    import torch

    from longtail.data.large import ListedData
    from longtail.runs import DataSpec
    from longtail.train.distributed import World
    from longtail.train.streamed import Streaming


def _paper(*values: float) -> tuple[tuple[str, float], ...]:
    """The paper's errors in percent, in the order of `COLUMNS`."""
    return tuple((one.title, value) for one, value in zip(COLUMNS, values, strict=True))


# What the paper quotes from others: the adaptive loss on iNaturalist with ResNet-50 is Cao et
# al.'s, weight normalisation at its best tau there Kang et al.'s.
_TRAINED = {
    "softmax": _paper(53.11, 53.30, 38.66, 35.88, 34.38),
    "adaptive": _paper(52.15, 53.34, 35.42, 31.18, 29.46),
    "equalized-threshold": _paper(54.02, 51.38, 38.37, 35.86, 34.53),
    "logit-adjusted": _paper(48.89, 47.86, 33.64, 31.15, 30.12),
    "logit-adjusted-adaptive": _paper(51.25, 50.46, 31.56, 29.22, 28.02),
}
_NORMALIZED = {
    "fixed": _paper(52.00, 51.49, 48.05, 45.17, 45.33),
    "oracle": _paper(49.37, 48.97, 34.10, 31.85, 30.34),
}
_ADJUSTED = {
    "fixed": _paper(49.66, 49.25, 33.98, 31.46, 30.15),
    "oracle": _paper(49.56, 49.15, 33.80, 31.08, 29.74),
}


def _trained(*names: str) -> tuple[Row, ...]:
    kinds = {kind.name: kind for kind in KINDS}
    return tuple(Row(kinds[name], paper=_TRAINED[name]) for name in names)


ROWS = (
    *_trained("softmax"),
    *(posthoc(v, s, _NORMALIZED.get(s, ())) for v in (SCALE, DROP) for s in SOURCES),
    *_trained("adaptive", "equalized-threshold"),
    *(posthoc(LOGIT_ADJUSTMENT, s, _ADJUSTED.get(s, ())) for s in SOURCES),
    *_trained("logit-adjusted", "logit-adjusted-adaptive"),
)


def study_of(
    found: Sequence[Record],
    *,
    columns: Sequence[Column] = COLUMNS,
    data: Mapping[str, DataSpec] | None = None,
    seeds: int = 5,
    overrides: Mapping[str, Any] | None = None,
) -> Study:
    """The tables of some records.

    Args:
        found: the records.
        columns: which to show, where there are records of them.
        data: how each data set's examples are named; as in the records if absent.
        seeds: how many there should be of each run.
        overrides: recipe values that were changed, for a trial in small.

    Returns:
        The Study.
    """
    shelf = Shelf(found)
    named = data_of(found) if data is None else data
    parts, absent = [], []
    for column in columns:
        plan = LargePlan.of(column, named.get(column.dataset), seeds=seeds, overrides=overrides)
        part = Part(plan, shelf, ROWS)
        if plan.data is not None and part.records:
            parts.append(part)
        else:
            absent.append(plan)
    return Study(tuple(parts), absent=tuple(absent))


def run(
    *,
    load: Callable[[str], ListedData] | None = None,
    runs: Path | str = "runs",
    folder: Path | str = "results/table-large",
    columns: Sequence[Column] = COLUMNS,
    seeds: int = 5,
    overrides: Mapping[str, Any] | None = None,
    minutes: float | None = None,
    device: torch.device | str = "cpu",
    precision: str = "float32",
    command: str | None = None,
    world: World | None = None,
    streaming: Streaming | None = None,
    progress: Progress | None = None,
) -> Study:
    """Train what has no record yet, and make the tables.

    Args:
        load: gives a data set by name; None trains nothing. All are loaded before any training.
        runs: the folder of run folders.
        folder: of records, read and written.
        columns: of `large_runs.columns`.
        seeds: of each kind of run.
        overrides: recipe values to change, for a trial in small.
        minutes: stop at an epoch's end after so long; the same call goes on.
        device: where to train.
        precision: of the networks, ``float32`` or ``bfloat16``.
        command: what to type to do this again, for the runs' own records.
        world: the processes that train together, each with the same arguments.
        streaming: how the images are read.
        progress: called as ``progress(epochs done, epochs in all, what)``.

    Returns:
        The Study; its `complete` is False if time ran out or runs are missing.
    """
    ended, named = True, None
    if load is not None:
        data = _load_all(load, columns)
        named = {name: one.spec for name, one in data.items()}
        trainer = Trainer(
            load=data.__getitem__,
            runs=Path(runs),
            folder=Path(folder),
            device=device,
            precision=precision,
            command=command,
            deadline=None if minutes is None else time.monotonic() + 60.0 * minutes,
            progress=progress,
            world=world,
            streaming=streaming,
        )
        plans = [
            LargePlan.of(one, named[one.dataset], seeds=seeds, overrides=overrides)
            for one in columns
        ]
        ended = trainer.run(plans, rows="table")
    found = records.read_all(folder)
    study = study_of(found, columns=columns, data=named, seeds=seeds, overrides=overrides)
    if ended:
        study.require_parts()
    return replace(study, stopped=not ended)


def _load_all(
    load: Callable[[str], ListedData], columns: Sequence[Column]
) -> dict[str, ListedData]:
    return {name: load(name) for name in dict.fromkeys(one.dataset for one in columns)}


def estimate(
    *,
    load: Callable[[str], ListedData],
    columns: Sequence[Column] = COLUMNS,
    seeds: int = 5,
    overrides: Mapping[str, Any] | None = None,
    device: torch.device | str = "cpu",
    precision: str = "float32",
    world: World | None = None,
    streaming: Streaming | None = None,
    seconds: float = 60.0,
    progress: Progress | None = None,
) -> large_hours.Hours:
    """How long `run` would take, from about a minute of training.

    Args:
        load: gives a data set by name.
        columns: likewise `run`'s.
        seeds: likewise.
        overrides: likewise.
        device: likewise.
        precision: likewise.
        world: likewise.
        streaming: likewise.
        seconds: of measured training in all, shared by the networks and data sets.
        progress: called as ``progress(networks done, networks in all, what)``.

    Returns:
        The Hours.
    """
    data = _load_all(load, columns)
    pairs = list(dict.fromkeys((one.dataset, one.model) for one in columns))
    rates = {}
    for done, (dataset, model) in enumerate(pairs):
        column = next(one for one in columns if (one.dataset, one.model) == (dataset, model))
        if progress is not None:
            progress(done, len(pairs), column.title)
        plan = LargePlan.of(column, data[dataset].spec, overrides=overrides)
        rates[dataset, model] = large_hours.measure(
            plan,
            data[dataset].train,
            device=device,
            precision=precision,
            world=world,
            streaming=streaming,
            seconds=seconds / len(pairs),
        )
    sizes = {name: len(one.train) for name, one in data.items()}
    return large_hours.Hours.of(columns, rates, sizes, seeds=seeds, overrides=overrides)
