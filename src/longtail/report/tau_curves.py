"""How the figure of post-hoc methods looks: balanced error against tau, exact at every point.

The numbers come from `longtail.experiments.tau_curves`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from longtail.experiments.records import LOGIT_ADJUSTMENT
from longtail.experiments.table_exp import DROP, ERM, LOSS, SCALE, Cell, Part
from longtail.experiments.tau_curves import Curve, tau_curves
from longtail.report import figures

TITLE = "Balanced error of the post-hoc methods against tau"
_LOOKS: dict[str, tuple[str, str, Any]] = {
    LOGIT_ADJUSTMENT: ("post-hoc logit adjustment", figures.SKY, "-"),
    SCALE: ("weight normalisation, bias scaled", figures.VERMILION, "-"),
    DROP: ("weight normalisation, bias dropped", figures.VERMILION, (0, (4, 1.5))),
}


def draw(parts: Sequence[Part]) -> Any | None:
    """Mean error over the runs and one standard deviation, a panel for each data set.

    Args:
        parts: one for each data set.

    Returns:
        A matplotlib Figure, or None without runs.
    """
    shown = [(part, curves) for part in parts if (curves := tau_curves(part))]
    if not shown:
        return None
    with figures.style():
        figure, grid = figures.panels(columns=len(shown), width=1.0 + 3.1 * len(shown), height=3.4)
        for axes, (part, curves) in zip(grid[0], shown, strict=True):
            for curve in curves:
                _draw_curve(axes, curve)
            levels = []
            for row, text in ((ERM, "softmax (ERM)"), (LOSS, "logit-adjusted loss")):
                cell = part.cell(row)
                if cell is not None:
                    levels.append(100 * cell.mean)
                    axes.axhline(
                        levels[-1], color=figures.color(row.method), lw=1, ls=":", label=text
                    )
            _frame(axes, curves, levels)
            axes.set_title(part.column)
        grid[0, 0].set_ylabel("balanced error (%)")
        _marks(grid[0, 0])
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _draw_curve(axes: Any, curve: Curve) -> None:
    label, color, dashes = _LOOKS[curve.variant]
    mean = 100 * curve.errors.mean(axis=0)
    spread = 100 * curve.errors.std(axis=0, ddof=1) if len(curve.errors) > 1 else 0.0 * mean
    axes.plot(curve.taus, mean, color=color, ls=dashes, label=label)
    axes.fill_between(curve.taus, mean - spread, mean + spread, color=color, alpha=0.18, lw=0)
    for cell, marker, size in ((curve.held_out, "D", 5), (curve.oracle, "*", 9)):
        if cell is not None:
            _mark(axes, cell, marker, size, color)


def _mark(axes: Any, cell: Cell, marker: str, size: float, color: str) -> None:
    """The mean of the seeds' own taus and of the errors they give."""
    tau = float(np.mean(cell.taus)) if cell.taus is not None else 1.0
    look = {
        "color": figures.BLACK,
        "mfc": color,
        "mew": 0.8,
        "ls": "",
        "zorder": 3,
        "clip_on": False,
    }
    axes.plot([tau], [100 * cell.mean], marker, ms=size, **look)


def _marks(axes: Any) -> None:
    """Entries of the legend that stand for every line's marks."""
    for marker, size, text in (("D", 5, "τ from held-out data"), ("*", 9, "oracle τ (test set)")):
        look = {"color": figures.BLACK, "mfc": "white", "mew": 0.8, "ls": ""}
        axes.plot([], [], marker, ms=size, label=text, **look)


def _frame(axes: Any, curves: Sequence[Curve], levels: Sequence[float]) -> None:
    """The part of the plane where methods can be told apart: not far above ERM."""
    means = np.array([100 * curve.errors.mean(axis=0) for curve in curves])
    start, low = float(means[:, 0].max()), min([float(means.min()), *levels])
    room = max(start - low, 1.0)
    axes.set_ylim(low - 0.15 * room, start + 0.5 * room)
    axes.set_xlim(curves[0].taus[0], curves[0].taus[-1])
    axes.set_xlabel("τ")
