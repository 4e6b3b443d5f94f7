"""How the ImageNet-LT and iNaturalist tables look: cells, verdicts, figures, and hours before.

The numbers come from `longtail.experiments.table_large`; nothing is computed here but means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from longtail.data.large import LARGE
from longtail.experiments.exp_runs import PARTNER, Kind
from longtail.experiments.large_hours import Hours
from longtail.experiments.large_runs import LARGES, Column
from longtail.experiments.table_exp import Part, Row, Study
from longtail.experiments.table_large import ROWS
from longtail.report import figures, per_class, tau_curves
from longtail.report.claims import claims_table
from longtail.report.exp_rows import row_name
from longtail.report.table_exp import caption, cells_table
from longtail.report.tables import Table, write_numbers

FIGURES: dict[str, tuple[Callable[[Sequence[Part]], Any | None], str]] = {
    "tau-curves": (tau_curves.draw, tau_curves.TITLE),
    "per-class": (per_class.draw_classes, per_class.CLASSES_TITLE),
    "groups": (per_class.draw_groups, per_class.GROUPS_TITLE),
}
FILES = (
    "table-large.json",
    "table-large.md",
    *(
        f"table-large-{dataset}-{name}.{ending}"
        for dataset in LARGES
        for name in FIGURES
        for ending in ("svg", "png")
    ),
)


_REMARK = (
    "On iNaturalist with ResNet-50 it quotes weight normalisation at τ* from Kang et al. and the "
    "adaptive loss from Cao et al. The equalised loss drops classes rarer than half of the mean "
    "frequency."
)


def tables(study: Study) -> list[Table]:
    """For each column the cells and the verdicts."""
    found: list[Table] = []
    for part in study.parts:
        found += [
            cells_table(part, note=caption(part, unit="hours", remark=_REMARK)),
            claims_table(part),
        ]
    return found


def hours_tables(hours: Hours) -> list[Table]:
    """What was measured, and the hours of every cell.

    Args:
        hours: of the trial.
    """
    return [_rates_table(hours), *(_cells(hours, name) for name in LARGES if _of(hours, name))]


def _of(hours: Hours, dataset: str) -> list[Column]:
    return [column for column in hours.columns if column.dataset == dataset]


def _rates_table(hours: Hours) -> Table:
    rows = [
        (
            column.title,
            f"{hours.rate(column).images_per_second:,.0f}",
            f"{hours.of_run(column):,.2f}",
            f"{hours.of_column(column):,.1f}",
        )
        for column in hours.columns
    ]
    devices = sorted({rate.device for rate in hours.rates.values()})
    steps = min(rate.steps for rate in hours.rates.values())
    return Table(
        "Estimate for the large tables",
        ("column", "images/s", "a run", "all runs"),
        rows,
        note=(
            f"GPU hours on {' and '.join(devices)}, from trials of {steps} steps or more after "
            f"the first few, images read from disk as in training. all runs: {hours.seeds} "
            f"seed{'' if hours.seeds == 1 else 's'} of each. Everything: {hours.total:,.1f} GPU "
            f"hours; evaluation is not counted."
        ),
    )


def _cells(hours: Hours, dataset: str) -> Table:
    columns = _of(hours, dataset)
    return Table(
        f"GPU hours for every cell of {LARGE[dataset].title}, one seed",
        ("method", *(_short(column, hours) for column in columns)),
        [(row_name(row), *(_hours(hours, column, row) for column in columns)) for row in ROWS],
        note=(
            "0: made from the logits of the softmax run. τ held-out needs one more run, on four "
            "fifths of the examples, which serves every post-hoc method."
        ),
    )


def _short(column: Column, hours: Hours) -> str:
    network = column.model.removeprefix("resnet")
    return f"{network}, {hours.epochs[hours.columns.index(column)]} ep."


def _hours(hours: Hours, column: Column, row: Row) -> str:
    kind: Kind | None = row.kind if row.variant is None else None
    if row.source == "held-out":
        kind = PARTNER
    return "0" if kind is None else f"{hours.of_run(column, kind):,.2f}"


def draw(study: Study, folder: Path) -> list[Path]:
    """Write every figure of each data set as SVG and PNG.

    Args:
        study: the tables.
        folder: where.

    Returns:
        The paths written; a figure without runs is left out.
    """
    written: list[Path] = []
    for dataset in LARGES:
        parts = [part for part in study.parts if part.dataset == dataset]
        for name, (make, title) in FIGURES.items():
            figure = make(parts) if parts else None
            if figure is not None:
                stem = folder / f"table-large-{dataset}-{name}"
                written += figures.save(figure, stem, title=f"{title}, {LARGE[dataset].title}")
    return written


def write(study: Study, folder: str | Path) -> list[Path]:
    """Write all numbers as JSON, the tables as Markdown and the figures as SVG and PNG.

    Args:
        study: what `experiments.table_large.run` returned.
        folder: made if need be; files of the same names are replaced.

    Returns:
        The paths written, in the order of `FILES`.
    """
    blocks = (table.markdown() for table in tables(study))
    return [*write_numbers(folder, FILES, study.to_dict(), blocks), *draw(study, Path(folder))]
