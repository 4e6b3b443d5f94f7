"""How the figure of weight norms looks: classes by frequency, SGD beside Adam.

The numbers come from `longtail.experiments.weight_norms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from longtail.experiments.table_exp import Part
from longtail.experiments.weight_norms import Norms, weight_norms
from longtail.report import figures

TITLE = "Norms of the last layer's weights by class, under SGD and Adam"
_LOOKS = {
    "sgd": (figures.BLUE, "o"),
    "adam": (figures.VERMILION, "s"),
    "adam-no-decay": (figures.GREEN, "^"),
}


def draw(parts: Sequence[Part]) -> Any | None:
    """Mean norms over the runs and one standard deviation, a panel for each data set.

    Args:
        parts: one for each data set.

    Returns:
        A matplotlib Figure, or None without runs.
    """
    shown = [(part, norms) for part in parts if "sgd" in (norms := weight_norms(part))]
    if not shown:
        return None
    with figures.style():
        figure, grid = figures.panels(columns=len(shown), width=1.0 + 3.1 * len(shown))
        for axes, (part, norms) in zip(grid[0], shown, strict=True):
            for name, one in norms.items():
                _draw_norms(axes, one, *_LOOKS[name])
            axes.set_title(part.dataset)
            axes.set_xlabel("class, most frequent first")
            axes.set_ylim(bottom=0)
            # Each panel has its own correlations, and their lines are as wide as the panel.
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24), ncols=1)
        grid[0, 0].set_ylabel("norm of the class's weights")
    return figure


def _draw_norms(axes: Any, norms: Norms, color: str, marker: str) -> None:
    mean, places = norms.values.mean(axis=0), np.arange(norms.values.shape[1])
    spread = norms.values.std(axis=0, ddof=1) if len(norms.seeds) > 1 else np.zeros(len(mean))
    label = f"{norms.optimizer}: r = {norms.correlation.mean:+.2f}, error {100 * norms.error:.1f}%"
    few = len(mean) <= 20
    look = {"marker": marker, "ms": 4} if few else {"lw": 1.2}
    axes.plot(places, mean, color=color, label=label.replace("-", "−"), **look)
    axes.fill_between(places, mean - spread, mean + spread, color=color, alpha=0.2, lw=0)
