"""The other methods that the paper names, on EXP, and what needs no training of its own.

ResNet-32 on CIFAR-10-LT and CIFAR-100-LT, EXP profile, imbalance ratio 100, five seeds. Besides the
table: adjusting again after the logit-adjusted loss, τ chosen by calibration, calibration error by
group of classes, and the loss at other τ. About 50 minutes on one H200.

  python -m studies methods --minutes 9 --device cuda   train what has no record, for nine minutes
  python -m studies methods --no-train                  the tables and the page from the records
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from longtail.report.tables import Table, percent
from longtail.runs import DataSpec
from studies import _pages as pages
from studies._pages import mean_deviation, points, published
from studies._records import (
    ADJUSTED,
    BY_PRIOR,
    TITLES,
    Column,
    Row,
    Runs,
    Source,
    add_training_arguments,
    cifar,
    resized,
)
from studies.exp import CIFARS, ERM, LOSS, TAU_BEST, TAU_ONE

# Name, method, and what else a run of it needs.
METHODS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("balanced", "balanced", {}),
    ("class-balanced", "class-balanced", {}),
    ("LDAM", "ldam", {"recipe": "ldam"}),
    ("LDAM + DRW", "ldam+drw", {"recipe": "ldam"}),
    ("equalized, power form", "equalized", {}),
    ("weighted logit adjusted, τ = 0.5", "weighted-logit-adjusted:tau=0.5", {}),
    ("logit adjusted + adaptive", "logit-adjusted-adaptive", {}),
    ("logit adjusted + DRW", "logit-adjusted+drw", {}),
    ("two-parameter, τ₁ = 1, τ₂ = 0.5", "two-parameter:tau1=1,tau2=0.5", {}),
    ("over-sampling", "softmax+over-sampling", {}),
    ("under-sampling", "softmax+under-sampling", {}),
    ("square-root sampling", "softmax+sqrt-sampling", {}),
    ("label smoothing", "softmax+label-smoothing", {}),
    ("unit-norm head", "softmax", {"overrides": {"head": "unit-norm"}}),
)
LOSS_TAUS = (0.5, 1.0, 1.5, 2.0)
PAPER = {"LDAM + DRW": dict(zip(CIFARS, (22.97, 57.96), strict=True))}  # as the paper quotes it

ROWS = [
    ERM,
    TAU_ONE,
    Row("weight norm. by ν = π, τ = 1", "softmax", BY_PRIOR),
    Row("weight norm. by ν = π, τ held-out", "softmax", BY_PRIOR, "held-out"),
    *(Row(name, name, paper=PAPER.get(name, {})) for name, _, _ in METHODS),
    Row("label smoothing, post-hoc logit adj., τ = 1", "label smoothing", ADJUSTED),
    LOSS,
]
CHOSEN: dict[Source, str] = {
    "fixed": "none, τ = 1",
    "held-out": "held-out balanced error",
    "log_loss": "held-out log-loss",
    "squared_error": "held-out squared error",
    "ece": "held-out calibration error",
    "oracle": "test set (oracle)",
}
AGAIN: dict[Source, str] = {
    "fixed": "again with τ = 1",
    "held-out": "again with τ held-out",
    "oracle": "again with oracle τ*",
}


def runs_of(data: DataSpec) -> list[Runs]:
    """Return the runs of a data set; softmax and the loss have a held-out part to choose τ."""
    held = Runs("softmax, 20% held out", data, held_out=0.2)
    again = Runs("logit-adjusted, 20% held out", data, LOSS.runs, held_out=0.2)
    return [
        Runs("softmax", data, tau_from=held),
        Runs(LOSS.runs, data, LOSS.runs, tau_from=again),
        *(Runs(name, data, method, **more) for name, method, more in METHODS),
        *(
            Runs(_loss_at(tau).runs, data, f"{LOSS.runs}:tau={tau:g}")
            for tau in LOSS_TAUS[::-1]
            if tau != 1
        ),
        held,
        again,
    ]


def _loss_at(tau: float) -> Row:
    return LOSS if tau == 1 else Row(f"τ = {tau:g}", f"logit-adjusted, τ = {tau:g}")


def methods_table(columns: Sequence[Column]) -> Table:
    """Return every method's error, and how much more it errs than the logit-adjusted loss."""
    header, rows = ["method"], []
    for column in columns:
        header += [column.title, "quoted", "more than the loss"]
    for row in ROWS:
        cells = [row.name]
        for column in columns:
            more = "" if row is LOSS else points(column.difference(row, LOSS))
            cells += [mean_deviation(column, row), published(row, column), more]
        rows.append(cells)
    return Table(
        "Balanced test error in percent, imbalance ratio 100",
        header,
        rows,
        note=(
            "Mean and standard deviation over the seeds, last epoch; recipe `tuned`, for LDAM its "
            "authors' `ldam`. Differences in points, paired by seed, with a 95% interval. quoted: "
            "as the paper quotes it."
        ),
    )


def by_source(
    columns: Sequence[Column],
    title: str,
    runs: str,
    sources: Mapping[Source, str],
    base: Row,
    note: str,
) -> Table:
    """Return runs adjusted after training, with τ chosen in several ways, against a row."""
    rows = []
    for source, words in sources.items():
        row, cells = Row(words, runs, ADJUSTED, source), [words]
        for column in columns:
            cell = column.cell(row)
            cells += ["–" if cell is None else f"{cell.taus.mean():.2f}"]
            cells += [mean_deviation(column, row), points(column.difference(row, base))]
        rows.append(cells)
    header = [part for c in columns for part in (f"{c.title}: mean τ", "error", "change")]
    return Table(title, ("τ chosen by", *header), rows, note=f"Change: against {note}, in points.")


def tables_of(columns: Sequence[Column]) -> list[Table]:
    """Return every table."""
    again, after = "The logit-adjusted loss, adjusted again", "Post-hoc adjustment: what chooses τ"
    return [
        methods_table(columns),
        by_source(columns, again, LOSS.runs, AGAIN, LOSS, "the loss as it is"),
        by_source(columns, after, ERM.runs, CHOSEN, TAU_BEST, "the oracle τ*"),
        loss_taus_table(columns),
        calibration_table(columns),
    ]


def loss_taus_table(columns: Sequence[Column]) -> Table:
    """Return the loss trained with several τ."""
    rows = [
        (f"{tau:g}", *(mean_deviation(column, _loss_at(tau)) for column in columns))
        for tau in LOSS_TAUS
    ]
    titles = [column.title for column in columns]
    return Table("The logit-adjusted loss, trained with τ", ("τ", *titles), rows)


def calibration_table(columns: Sequence[Column]) -> Table:
    """Return the calibration error of every trained method, by group of classes."""
    header, rows = ["method"], []
    for column in columns:
        header += [f"{column.title}: all", "many", "medium", "few"]
    for name in dict.fromkeys(row.runs for row in ROWS if row.variant is None):
        cells = [next(row.name for row in ROWS if row.runs == name)]
        for column in columns:
            found = [one.document.get("ece", {}) for one in column.records_of(name)]
            for group in ("all", "many", "medium", "few"):
                values = [one[group] for one in found if group in one]
                cells.append(percent(sum(values) / len(values)) if values else "–")
        rows.append(cells)
    note = "Expected calibration error of the top label on the balanced test set, in percent."
    return Table("Calibration by group", header, rows, note=note)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this study."""
    add_training_arguments(parser, records="results/methods", datasets=CIFARS)


def main(options: argparse.Namespace) -> None:
    """Train what is missing, print the tables and write the page."""
    wanted = {name: resized(options, runs_of(cifar(name))) for name in options.dataset or CIFARS}
    shelf, finished = pages.trained(options, [one for runs in wanted.values() for one in runs])
    if not finished:
        return
    columns = [Column.of(name, TITLES[name], runs, shelf) for name, runs in wanted.items()]
    columns = [column for column in columns if column.records]
    pages.refuse_nothing(columns, options)
    tables = tables_of(columns)
    pages.show(tables)
    with pages.page(options, "docs/methods-compared.md") as write:
        write(
            pages.render(
                "methods",
                tables=tables,
                **pages.facts([one for column in columns for one in column.records]),
                missing=[f"{c.title}: {m}" for c in columns for m in c.missing()],
            )
        )
