"""How the EXP table looks: the paper's cells beside ours, the verdicts, and the figures.

The numbers come from `longtail.experiments.table_exp`; nothing is computed here but means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from longtail.experiments.exp_runs import ADAM_RATES, PLAIN
from longtail.experiments.table_exp import EXTRA_ROWS, Part, Row, Study
from longtail.report import figures, per_class, tau_curves, weight_norms
from longtail.report.claims import claims_table, marks_table
from longtail.report.exp_rows import row_name
from longtail.report.tables import Table, percent, signed, write_numbers

# All of them need a softmax run, and nothing else.
FIGURES: dict[str, tuple[Callable[[Sequence[Part]], Any | None], str]] = {
    "weight-norms": (weight_norms.draw, weight_norms.TITLE),
    "tau-curves": (tau_curves.draw, tau_curves.TITLE),
    "per-class": (per_class.draw_classes, per_class.CLASSES_TITLE),
    "groups": (per_class.draw_groups, per_class.GROUPS_TITLE),
}
FILES = (
    "table-exp.json",
    "table-exp.md",
    *(f"table-exp-{name}.{ending}" for name in FIGURES for ending in ("svg", "png")),
)


def tables(study: Study) -> list[Table]:
    """For each data set and recipe the cells, the marks and the verdicts."""
    found: list[Table | None] = []
    for part in study.parts:
        found += [cells_table(part), marks_table(part), claims_table(part)]
    return [table for table in found if table is not None]


def cells_table(part: Part, *, note: str | None = None) -> Table:
    """Every cell of the paper's table beside ours.

    Args:
        part: a data set and recipe.
        note: below it; the EXP table's `caption` if absent.
    """
    rows = []
    for row in part.rows:
        cell, paper = part.cell(row), row.paper_value(part.column)
        if cell is None and row in EXTRA_ROWS:
            continue
        rows.append(
            (
                row_name(row),
                "" if paper is None else f"{paper:.2f}",
                mean_deviation(part, row),
                "" if paper is None or cell is None else signed(cell.mean - paper / 100, digits=2),
                "" if cell is None or cell.taus is None else f"{cell.taus.mean():.2f}",
            )
        )
    return Table(
        f"Balanced error in percent on {part.column}, recipe {part.recipe}",
        ("method", "paper", "ours", "difference", "τ"),
        rows,
        note=caption(part) if note is None else note,
    )


def mean_deviation(part: Part, row: Row) -> str:
    """``27.03 ± 0.41``: mean and standard deviation over the seeds, and how many if not all."""
    cell = part.cell(row)
    if cell is None:
        return "–"
    text = percent(cell.mean, digits=2)
    if not math.isnan(cell.deviation):
        text += f" ± {percent(cell.deviation, digits=2)}"
    if len(cell.seeds) < part.plan.seeds:
        text += f" ({len(cell.seeds)} of {part.plan.seeds})"
    return text


def spread_words(seeds: int) -> str:
    """Over what a mean is taken."""
    if seeds == 1:
        return "one training seed, so no deviation"
    return f"mean and standard deviation over {seeds} training seeds"


_QUOTED = "Its row `adaptive` is quoted there from Cao et al. (LDAM)."


def caption(part: Part, *, unit: str = "minutes", remark: str = _QUOTED) -> str:
    """What a reader must know: seeds, device, time, what is missing and how to make it.

    Args:
        part: whose table it is under.
        unit: of the time, ``minutes`` or ``hours``.
        remark: where the paper's numbers and settings come from.
    """
    used = part.records
    devices = sorted({str(one.document["device"]) for one in used})
    precisions = sorted({one.precision for one in used})
    time = part.minutes / (60 if unit == "hours" else 1)
    parts = [
        f"ours: {spread_words(part.plan.seeds)}, last epoch, whole test set; {len(used)} runs "
        f"in {time:.1f} {unit} of {' and '.join(devices)}, {' and '.join(precisions)}.",
        "τ held-out: chosen on data held out of a second run of the same seed; oracle τ*: the "
        "best on the test set itself, as in the paper, which nobody has in use.",
        "The paper does not say what weight normalisation does to the bias; its value stands "
        "beside both ways.",
        remark,
    ]
    lacking = part.missing()
    if lacking:
        parts.append(
            f"Fewer runs than asked: missing are {'; '.join(lacking)}. "
            f"To train them: {part.plan.command('table')}"
        )
    return " ".join(parts)


def figure_captions(parts: Sequence[Part]) -> dict[str, str]:
    """What each figure shows, by its name.

    Args:
        parts: the data sets in it.
    """
    counts = {part.dataset: len(part.records_of(PLAIN)) for part in parts}
    runs = " and ".join(f"{count} ({name})" for name, count in counts.items())
    if len(set(counts.values())) == 1:
        runs = str(next(iter(counts.values())))
    over = f"Mean and standard deviation over {runs} run{'' if runs == '1' else 's'} of each kind"
    rates = ", ".join(f"{rate:g}" for rate in ADAM_RATES)
    adam = (
        f" Adam's learning rate is the best of {rates} on the held-out fifth of one more run of "
        f"each (the paper gives neither its rate nor its weight decay); weight decay is a term of "
        f"the loss, as for SGD, unless said otherwise."
    )
    if not any(part.adam(decay=way) for part in parts for way in part.plan.adam_ways):
        adam = ""
    return {
        "weight-norms": (
            f"{over} of the norm of each class's weights in the last layer. r: correlation with "
            f"log class frequency.{adam}"
        ),
        "tau-curves": (
            f"{over} of the balanced test error, exact at every τ. At τ = 0 it is ERM's, but for "
            f"the bias where that is dropped. Diamonds and stars: means over the runs of τ and of "
            f"the error at each run's own τ, so they need not lie on the curve."
        ),
        "per-class": (
            f"{over} of the test error by class, from the most frequent to the rarest; the "
            f"classes of CIFAR-100-LT in ten groups."
        ),
        "groups": (
            f"{over} of the test error of the classes with many, medium and few training examples."
        ),
    }


def draw(parts: Sequence[Part], stem: Path | str) -> list[Path]:
    """Write every figure of some data sets with one recipe as SVG and PNG.

    Args:
        parts: one for each data set.
        stem: the figures' names are added to it.

    Returns:
        The paths written; a figure without runs is left out.
    """
    written: list[Path] = []
    for name, (make, title) in FIGURES.items():
        figure = make(parts)
        if figure is not None:
            written += figures.save(figure, Path(f"{stem}-{name}"), title=title)
    return written


def write(study: Study, folder: str | Path) -> list[Path]:
    """Write all numbers as JSON, the tables as Markdown and the figures as SVG and PNG.

    Args:
        study: of one recipe.
        folder: made if need be; files of the same names are replaced.

    Returns:
        The paths written, in the order of `FILES`.
    """
    blocks = (table.markdown() for table in tables(study))
    written = write_numbers(folder, FILES, study.to_dict(), blocks)
    return [*written, *draw(study.parts, Path(folder) / "table-exp")]
