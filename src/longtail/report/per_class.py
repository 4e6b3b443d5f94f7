"""How the figures by class look: errors from frequent to rare, and of many, medium and few.

The numbers come from `longtail.experiments.per_class`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from longtail.experiments.per_class import ErrorsByClass, by_frequency_group, by_size
from longtail.experiments.table_exp import Part, Row
from longtail.report import figures
from longtail.report.tables import GROUP_BOUNDS

CLASSES_TITLE = "Error by class, from the most frequent to the rarest"
GROUPS_TITLE = "Error of the classes with many, medium and few training examples"
_MARKERS = ("o", "s", "^", "v", "D", "P")


def draw_classes(parts: Sequence[Part]) -> Any | None:
    """Errors by class, or ten groups of classes, a panel for each data set.

    Args:
        parts: one for each data set.

    Returns:
        A matplotlib Figure, or None without runs.
    """
    return _panels(parts, by_frequency_group, _draw_lines, height=3.3)


def draw_groups(parts: Sequence[Part]) -> Any | None:
    """Errors of the groups by number of training examples, a panel for each data set.

    Args:
        parts: one for each data set.

    Returns:
        A matplotlib Figure, or None without runs.
    """
    return _panels(parts, by_size, _draw_bars, height=3.0)


def _panels(
    parts: Sequence[Part],
    arrange: Callable[[Part], ErrorsByClass | None],
    draw: Callable[[Any, ErrorsByClass], None],
    *,
    height: float,
) -> Any | None:
    shown = [(part, found) for part in parts if (found := arrange(part)) is not None]
    if not shown:
        return None
    with figures.style():
        width = 1.0 + 3.3 * len(shown)
        figure, grid = figures.panels(columns=len(shown), width=width, height=height)
        for axes, (part, found) in zip(grid[0], shown, strict=True):
            draw(axes, found)
            axes.set_title(part.column)
            axes.set_ylim(0, 102)
            axes.grid(axis="x", visible=False)
        grid[0, 0].set_ylabel("error (%)")
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _label(row: Row) -> str:
    text = figures.label(row.method)
    return text if row.variant is None else f"{text} (τ = 1)"


def _moments(errors: Any) -> tuple[Any, Any]:
    spread = errors.std(axis=0, ddof=1) if len(errors) > 1 else np.zeros(errors.shape[1])
    return 100 * errors.mean(axis=0), 100 * spread


def _draw_lines(axes: Any, found: ErrorsByClass) -> None:
    places = np.arange(len(found.names))
    for i, (row, errors) in enumerate(zip(found.rows, found.errors, strict=True)):
        mean, spread = _moments(errors)
        color, marker = figures.color(row.method), _MARKERS[i % len(_MARKERS)]
        axes.plot(places, mean, color=color, marker=marker, ms=4, mew=0, label=_label(row))
        axes.fill_between(places, mean - spread, mean + spread, color=color, alpha=0.12, lw=0)
    several = any(len(classes) > 1 for classes in found.members)
    slant = 0 if max(map(len, found.names)) < 3 else 45
    axes.set_xticks(places, found.names, rotation=slant, ha="right" if slant else "center")
    what = f"group of {len(found.members[0])} classes" if several else "class"
    axes.set_xlabel(f"{what}, most frequent first")


def _draw_bars(axes: Any, found: ErrorsByClass) -> None:
    places, count = np.arange(len(found.names)), len(found.rows)
    width = 0.8 / count
    for i, (row, errors) in enumerate(zip(found.rows, found.errors, strict=True)):
        mean, spread = _moments(errors)
        axes.bar(
            places + (i - (count - 1) / 2) * width,
            mean,
            0.9 * width,
            yerr=spread if spread.any() else None,
            color=figures.color(row.method),
            error_kw={"elinewidth": 0.8},
            label=_label(row),
        )
    names = [
        f"{name} ({GROUP_BOUNDS[name]})\n{len(classes)} class{'' if len(classes) == 1 else 'es'}"
        for name, classes in zip(found.names, found.members, strict=True)
    ]
    axes.set_xticks(places, names, fontsize=6.8)
    axes.tick_params(axis="x", length=0)
