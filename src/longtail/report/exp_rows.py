"""How rows of the EXP table and intervals are written, in every table about them."""

from __future__ import annotations

import math

from longtail.experiments.exp_runs import PLAIN
from longtail.experiments.table_exp import SCALE, Row
from longtail.report import figures
from longtail.report.compare import Interval
from longtail.report.tables import signed

_SOURCES = {"fixed": "τ = 1", "held-out": "τ held-out", "oracle": "oracle τ*"}


def row_name(row: Row) -> str:
    """A row as people read it.

    Examples:
        >>> from longtail.experiments.table_exp import ROWS
        >>> row_name(ROWS[0]), row_name(ROWS[1])
        ('softmax (ERM)', 'weight norm., bias scaled, τ = 1')
    """
    if row.variant is None:
        plain = row.kind.overrides or row.kind.held_out
        return row.kind.name if plain else figures.label(row.method)
    if row.variant.startswith("posthoc-weight"):
        mode = "scaled" if row.variant == SCALE else "dropped"
        name = f"weight norm., bias {mode}"
    else:
        name = figures.label(row.variant)
    if row.kind is not PLAIN:
        name = f"{figures.label(row.kind.method)}, {name}"
    return f"{name}, {_SOURCES[row.source or 'fixed']}"


def interval_text(interval: Interval | None, *, unit: str = "points") -> str:
    """``+5.0 [+3.7, +6.3]`` in points of error, or a correlation with two digits.

    Examples:
        >>> interval_text(Interval(0.05, 0.04, 0.06, 5))
        '+5.00 [+4.00, +6.00]'
        >>> interval_text(Interval(-0.5, -0.75, -0.25, 5), unit="r")
        '−0.50 [−0.75, −0.25]'
    """
    if interval is None:
        return "–"
    scale = 0.01 if unit == "r" else 1.0
    mean, low, high = (
        signed(scale * value, digits=2) for value in (interval.mean, interval.low, interval.high)
    )
    return mean if math.isnan(interval.low) else f"{mean} [{low}, {high}]"
