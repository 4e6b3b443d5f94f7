"""The paper's CIFAR EXP table (its section 6.2): every cell of it beside the same one trained here.

`run` trains what is missing (see `exp_runs`) and returns a `Study`; a Study is made of records
alone. The paper's column is the only thing that is copied. How the table looks is in
`longtail.report.table_exp`; what follows from it is in `claims`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from longtail._checks import FloatArray, InputError
from longtail.experiments import Progress, records
from longtail.experiments.comparison import Interval, TauSource, mean_interval
from longtail.experiments.exp_runs import (
    CIFARS,
    EXTRA,
    PLAIN,
    TABLE,
    Kind,
    Plan,
    Rows,
    Shelf,
    Trainer,
    adam,
    is_judged,
    is_whole,
)
from longtail.experiments.records import LOGIT_ADJUSTMENT, Record

if TYPE_CHECKING:
    import torch

    from longtail.data import LongTailedData

SCALE, DROP = "posthoc-weight-normalized/scale", "posthoc-weight-normalized/drop"


@dataclass(frozen=True)
class Row:
    """A row of the table: runs of one kind, perhaps adjusted after training.

    Attributes:
        kind: what is trained.
        variant: a key of `records.VARIANTS`, or None for the runs as they are.
        source: where tau comes from, for a post-hoc method.
        paper: the paper's error in percent, by data set; empty where it has no such row.
    """

    kind: Kind
    variant: str | None = None
    source: TauSource | None = None
    paper: tuple[tuple[str, float], ...] = ()

    @property
    def method(self) -> str:
        """The method's name, as on the command line; of a post-hoc one its own."""
        return self.kind.method if self.variant is None else self.variant

    def paper_value(self, column: str) -> float | None:
        """The paper's error in percent, in a column such as a data set."""
        return dict(self.paper).get(column)


def _paper(ten: float, hundred: float) -> tuple[tuple[str, float], ...]:
    return (("cifar10-lt", ten), ("cifar100-lt", hundred))


_KINDS = {kind.name: kind for kind in (*TABLE, *EXTRA)}
ERM = Row(PLAIN, paper=_paper(27.16, 61.64))
LOSS = Row(_KINDS["logit-adjusted"], paper=_paper(22.33, 56.11))


def posthoc(variant: str, source: TauSource, paper: Any = (), *, kind: Kind = PLAIN) -> Row:
    """A post-hoc row."""
    return Row(kind, variant, source, paper)


# The paper doesn't say what it does to the bias: its value stands beside both modes.
_NORMALIZED: dict[TauSource, Any] = {
    "fixed": _paper(24.02, 58.89),
    "oracle": _paper(21.50, 58.76),
}
_ADJUSTED: dict[TauSource, Any] = {"fixed": _paper(22.60, 58.24), "oracle": _paper(19.08, 57.90)}
SOURCES: tuple[TauSource, ...] = ("fixed", "held-out", "oracle")

ROWS = (
    ERM,
    *(posthoc(v, s, _NORMALIZED.get(s, ())) for v in (SCALE, DROP) for s in SOURCES),
    Row(_KINDS["adaptive"], paper=_paper(26.65, 60.40)),
    Row(_KINDS["equalized-threshold"], paper=_paper(26.02, 57.26)),
    *(posthoc(LOGIT_ADJUSTMENT, s, _ADJUSTED.get(s, ())) for s in SOURCES),
    LOSS,
)
_SMOOTHED = _KINDS["softmax+label-smoothing"]
EXTRA_ROWS = (
    *(Row(kind) for kind in EXTRA),
    posthoc(LOGIT_ADJUSTMENT, "fixed", kind=_SMOOTHED),
    posthoc(LOGIT_ADJUSTMENT, "oracle", kind=_SMOOTHED),
)
# Judged on one recipe, fixed before anything was trained: at most ALLOWANCE points above.
JUDGED_RECIPE = "tuned"
JUDGED = (
    ERM,
    *(row for row in ROWS if row.variant == LOGIT_ADJUSTMENT and row.paper),
    LOSS,
)
ALLOWANCE = 0.5


@dataclass(frozen=True, eq=False)
class Cell:
    """A row on one data set with one recipe.

    Attributes:
        seeds: ascending.
        per_class: error of each class, shape (seeds, num_classes).
        taus: of each seed, for a post-hoc row.
    """

    seeds: tuple[int, ...]
    per_class: FloatArray
    taus: FloatArray | None

    @property
    def errors(self) -> FloatArray:
        """Balanced error of each seed, shape (seeds,)."""
        return np.asarray(self.per_class.mean(axis=1))

    @property
    def mean(self) -> float:
        """Mean balanced error."""
        return float(self.errors.mean())

    @property
    def deviation(self) -> float:
        """Standard deviation of the balanced error over seeds, NaN for a single one."""
        return float(self.errors.std(ddof=1)) if len(self.seeds) > 1 else float("nan")


@dataclass(frozen=True, eq=False)
class Part:
    """One data set with one recipe: its plan, and the records there are of it.

    Attributes:
        plan: which runs there should be.
        shelf: the records.
        rows: of the table, in order.
    """

    plan: Plan
    shelf: Shelf
    rows: tuple[Row, ...] = (*ROWS, *EXTRA_ROWS)

    @property
    def dataset(self) -> str:
        """Name of the data set."""
        return self.plan.dataset

    @property
    def recipe(self) -> str:
        """Name of the recipe."""
        return self.plan.recipe

    def records_of(self, kind: Kind) -> list[Record]:
        """The records of a kind, in order of seed."""
        found = (self.shelf.get(self.plan.spec(kind, seed)) for seed in range(self.plan.seeds))
        return [one for one in found if one is not None and is_judged(one)]

    def adam(self, *, decay: bool = True) -> Kind | None:
        """Softmax under Adam at the rate that held-out data chose; None before it is chosen."""
        if decay not in self.plan.adam_ways:
            return None
        rate = self.shelf.adam_rate(self.plan, decay=decay)
        return None if rate is None else adam(rate, decay=decay)

    def cell(self, row: Row) -> Cell | None:
        """A row's errors, or None where there is no run of it."""
        seeds, errors, taus = [], [], []
        for one in self.records_of(row.kind):
            if row.variant is None:
                seeds.append(one.spec.seed)
                errors.append(one.per_class())
            elif (point := one.point(row.variant, row.source or "fixed")) is not None:
                seeds.append(one.spec.seed)
                errors.append(point.per_class)
                taus.append(point.tau)
        if not seeds:
            return None
        return Cell(tuple(seeds), np.array(errors), np.array(taus) if row.variant else None)

    def difference(self, row: Row, other: Row) -> Interval | None:
        """Balanced error of one row minus another's, paired by seed; None without a common one."""
        return self.paired(row, other, lambda errors: errors.mean(axis=1))

    def paired(
        self, row: Row, other: Row, measure: Callable[[FloatArray], FloatArray]
    ) -> Interval | None:
        """Difference of a measure of the classes' errors, (seeds, classes) -> (seeds,)."""
        return paired(self.cell(row), self.cell(other), measure)

    @property
    def column(self) -> str:
        """Name of the column."""
        return self.plan.column

    def missing(self, kinds: Iterable[Kind] | None = None) -> list[str]:
        """The runs that a table should have and doesn't: ``adaptive, seed 3``."""
        lacking = []
        for kind in self.plan.kinds if kinds is None else kinds:
            there = {one.spec.seed for one in self.records_of(kind) if is_whole(one)}
            lacking += [
                f"{kind.name}, seed {seed}" for seed in range(self.plan.seeds) if seed not in there
            ]
        return lacking

    @cached_property
    def records(self) -> list[Record]:
        """Every record of this data set and recipe that a table or figure uses."""
        found = [one for kind in (*TABLE, *EXTRA) for one in self.records_of(kind)]
        trials = []
        for decay in self.plan.adam_ways:
            kind = self.adam(decay=decay)
            found += [] if kind is None else self.records_of(kind)
            trials += [self.shelf.get(spec) for spec in self.plan.trials(decay=decay)]
        return [*found, *(one for one in trials if one is not None)]

    @property
    def minutes(self) -> float:
        """Training time of all its runs; shares of runs that trained together add up."""
        return sum(one.seconds for one in self.records) / 60.0


def paired(
    one: Cell | None, other: Cell | None, measure: Callable[[FloatArray], FloatArray]
) -> Interval | None:
    """The mean difference of a measure over the seeds that two cells share, with its interval."""
    if one is None or other is None:
        return None
    mine, theirs = (
        dict(zip(cell.seeds, measure(cell.per_class), strict=True)) for cell in (one, other)
    )
    both = [seed for seed in mine if seed in theirs]
    return mean_interval([mine[seed] - theirs[seed] for seed in both]) if both else None


@dataclass(frozen=True, eq=False)
class Study:
    """The table: one part for each data set and recipe.

    Attributes:
        parts: data sets of the first recipe, then of the next; those with records.
        absent: the plans of which there is no record at all.
        stopped: whether training ended before everything was trained.
    """

    parts: tuple[Part, ...]
    absent: tuple[Plan, ...] = ()
    stopped: bool = False

    @property
    def complete(self) -> bool:
        """Whether nothing that the table needs is missing."""
        return not (self.stopped or self.absent or any(part.missing() for part in self.parts))

    @classmethod
    def of(
        cls,
        found: Iterable[Record],
        *,
        recipes: Sequence[str] = ("tuned", "paper"),
        datasets: Sequence[str] = CIFARS,
        seeds: int = 5,
        overrides: Mapping[str, Any] | None = None,
    ) -> Study:
        """The table of some records.

        Args:
            found: records of one kind of data per data set; others than the table's play no part.
            recipes: which to show, where there are any records of them.
            datasets: which to show, likewise.
            seeds: how many there should be of each run.
            overrides: recipe values that were changed, for a trial in small.

        Returns:
            The Study.
        """
        shelf = Shelf(found)
        plans = [
            Plan(dataset, recipe, seeds=seeds, overrides=overrides or {})
            for recipe in recipes
            for dataset in datasets
        ]
        parts = [part for plan in plans if (part := Part(plan, shelf)).records]
        there = [part.plan for part in parts]
        return cls(tuple(parts), absent=tuple(plan for plan in plans if plan not in there))

    def require_parts(self) -> None:
        """Refuse a table without any run, naming the commands that make them."""
        if not self.parts:
            raise InputError(
                f"{self.absent[0].experiment}: there is no record of any of its runs; train them "
                "with: " + " ; ".join(plan.command("figures") for plan in self.absent)
            )

    def part(self, dataset: str, recipe: str) -> Part | None:
        """One part, or None where there are no records of it."""
        for part in self.parts:
            if (part.dataset, part.recipe) == (dataset, recipe):
                return part
        return None

    @property
    def datasets(self) -> tuple[str, ...]:
        """Names of the data sets, each once."""
        return tuple(dict.fromkeys(part.dataset for part in self.parts))

    @property
    def recipes(self) -> tuple[str, ...]:
        """Names of the recipes, each once."""
        return tuple(dict.fromkeys(part.recipe for part in self.parts))

    def rows(self) -> list[Row]:
        """The rows that any part has runs of, those of the paper first."""
        rows = dict.fromkeys(row for part in self.parts for row in part.rows)
        return [row for row in rows if any(part.cell(row) for part in self.parts)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; errors in percent."""
        return {
            "complete": self.complete,
            "absent": [plan.command("figures") for plan in self.absent],
            "parts": [
                {
                    **part.plan.labels(),
                    "minutes": round(part.minutes, 2),
                    "missing": part.missing(),
                    "rows": [
                        _row_dict(row, cell, part.column)
                        for row in part.rows
                        if (cell := part.cell(row)) is not None
                    ],
                }
                for part in self.parts
            ],
        }


def _row_dict(row: Row, cell: Cell, column: str) -> dict[str, Any]:
    paper, mean = row.paper_value(column), 100 * cell.mean
    return {
        "method": row.method,
        "kind": row.kind.name,
        "tau_source": row.source,
        "seeds": list(cell.seeds),
        "errors": [round(100 * float(error), 4) for error in cell.errors],
        "mean": round(mean, 4),
        "deviation": None if len(cell.seeds) < 2 else round(100 * cell.deviation, 4),
        "taus": None if cell.taus is None else [round(float(tau), 4) for tau in cell.taus],
        "paper": paper,
        "difference": None if paper is None else round(mean - paper, 4),
    }


def run(
    *,
    load: Callable[[str], LongTailedData] | None = None,
    runs: Path | str = "runs",
    folder: Path | str = "results/table-exp",
    recipe: str = "tuned",
    datasets: Sequence[str] = CIFARS,
    seeds: int = 5,
    rows: Rows = "figures",
    overrides: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
    minutes: float | None = None,
    device: torch.device | str = "cpu",
    precision: str = "float32",
    command: str | None = None,
    progress: Progress | None = None,
) -> Study:
    """Train what has no record yet, and make the table.

    Args:
        load: gives a data set by name; None trains nothing.
        runs: the folder of run folders.
        folder: of records, read and written.
        recipe: a name of `train.recipe.RECIPES`.
        datasets: of `exp_runs.CIFARS`.
        seeds: of each kind of run.
        rows: ``table``; ``figures``, which adds Adam's runs; ``extra``, which adds other methods.
        overrides: recipe values to change, for a trial in small.
        only: kinds of the table's runs to train, by name; none for all.
        minutes: stop at an epoch's end after so long; the same call goes on.
        device: where to train.
        precision: of the networks, ``float32`` or ``bfloat16``.
        command: what to type to do this again, for the runs' own records.
        progress: called as ``progress(epochs done, epochs in all, what)``.

    Returns:
        The Study; its `complete` is False if time ran out or runs are missing.
    """
    plans = [Plan(name, recipe, seeds=seeds, overrides=overrides or {}) for name in datasets]
    ended = True
    if load is not None:
        trainer = Trainer(
            load=load,
            runs=Path(runs),
            folder=Path(folder),
            device=device,
            precision=precision,
            command=command,
            only=only,
            deadline=None if minutes is None else time.monotonic() + 60.0 * minutes,
            progress=progress,
        )
        ended = trainer.run(plans, rows=rows)
    found = records.read_all(folder)
    study = Study.of(found, recipes=[recipe], datasets=datasets, seeds=seeds, overrides=overrides)
    if ended:
        study.require_parts()
    return replace(study, stopped=not ended)
