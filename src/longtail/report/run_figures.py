"""The page's charts as SVG and PNG for papers: the same data, drawn by matplotlib.

A figure on paper can't be asked, so every method is drawn, also those that wait in the page's
legends. The slider's bars are the only charts without a counterpart here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from longtail.report import arrange, charts, figures, tau_charts
from longtail.report.compare import Comparison
from longtail.report.sections import (
    Calibration,
    ClassAxis,
    ClassErrors,
    GroupErrors,
    MethodErrors,
    Series,
    TauCurves,
    WeightNorms,
)

STEMS = ("errors", "tau", "per-class", "groups", "reliability", "weight-norms")
FILES = tuple(f"{stem}.{ending}" for stem in STEMS for ending in ("svg", "png"))

_MARKERS = ("o", "D", "s", "^", "v", "X", "P", "*")
_MOST_NAMES = 20


def _styles(series: tuple[Series, ...]) -> list[dict[str, Any]]:
    return [
        {
            "color": one.color,
            "marker": _MARKERS[i % len(_MARKERS)],
            "ls": (0, dashes) if (dashes := _of(figures.DASHES, one)) else "-",
            "ms": 4,
            "mew": 0,
            "label": one.label,
        }
        for i, one in enumerate(series)
    ]


def _of(looks: Sequence[Any], one: Series) -> Any:
    return looks[one.variant % len(looks)]


def _legend_beside(axes: Any) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), handlelength=3.4)


def _height(least: float, series: Sequence[Series]) -> float:
    """Inches that a figure needs for what it shows and for the legend beside it."""
    return max(least, 0.3 + 0.17 * len(series))


def _class_ticks(axes: Any, axis: ClassAxis) -> None:
    if len(axis) <= _MOST_NAMES and not axis.binned:
        names = [f"{n}\n{c}" for n, c in zip(axis.names, axis.counts, strict=True)]
        longest = max(map(len, axis.names))
        axes.set_xticks(range(len(axis)), names, rotation=45 if longest > 6 else 0)
        axes.set_xlabel("class, and its training examples")
    else:
        places = np.linspace(0, len(axis) - 1, 6).round().astype(int).tolist()
        axes.set_xticks(places, [axis.counts[place] for place in places])
        axes.set_xlabel("training examples of the class")
    axes.set_xlim(-0.6, len(axis) - 0.4)


def draw_errors(section: MethodErrors) -> Any:
    """Balanced errors with their 95% intervals; oracle ones hollow."""
    count = len(section.series)
    with figures.style():
        figure, grid = figures.panels(width=5.2, height=0.5 + 0.24 * count)
        axes = grid[0, 0]
        for i, (one, interval, oracle) in enumerate(
            zip(section.series, section.intervals, section.oracle, strict=True)
        ):
            half = 0.0 if np.isnan(interval.half_width) else interval.half_width
            axes.errorbar(
                interval.mean,
                i,
                xerr=half or None,
                color=one.color,
                fmt="o",
                ms=5.5,
                mfc="white" if oracle else one.color,
                mew=1.4,
                elinewidth=1.4,
            )
        axes.axvline(
            section.intervals[0].mean, color=section.series[0].color, lw=1, ls=":", zorder=0
        )
        axes.set_yticks(range(count), [one.label for one in section.series])
        axes.set_ylim(count - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("balanced error (%), 95% interval")
    return figure


def draw_tau(section: TauCurves) -> Any:
    """Balanced error against tau, with the tau chosen on held-out data and the oracle's."""
    with figures.style():
        figure, grid = figures.panels(width=6.4, height=2.9)
        axes = grid[0, 0]
        for line in section.lines:
            color = line.series.color
            axes.fill_between(section.taus, line.low, line.high, color=color, alpha=0.18, lw=0)
            axes.plot(section.taus, line.mean, color=color, label=line.series.label)
        for one, error in section.references:
            axes.axhline(error, color=one.color, lw=1, ls="--", label=one.label)
        for line in section.lines:
            for choice, marker, size in ((line.chosen, "D", 5), (line.oracle, "*", 9)):
                if choice is not None:
                    axes.errorbar(
                        choice.tau,
                        choice.error,
                        xerr=[[choice.tau - choice.low], [choice.high - choice.tau]],
                        fmt=marker,
                        ms=size,
                        color=figures.BLACK,
                        mfc=line.series.color,
                        mew=0.8,
                        elinewidth=0.8,
                        capsize=2,
                    )
        _tau_marks(axes, section)
        axes.set_xlim(section.taus[0], section.taus[-1])
        axes.set_ylim(0, tau_charts.ceiling(section))
        axes.set_xlabel("τ")
        axes.set_ylabel("balanced error (%)")
        _legend_beside(axes)
    return figure


def _tau_marks(axes: Any, section: TauCurves) -> None:
    """Entries of the legend that stand for every line's marks."""
    for source, marker, size, text in (
        ("chosen", "D", 5, "τ from held-out data"),
        ("oracle", "*", 9, f"oracle τ ({section.judged} set)"),
    ):
        if any(getattr(line, source) is not None for line in section.lines):
            look = {"ms": size, "mfc": "white", "mew": 0.8, "ls": ""}
            axes.plot([], [], marker, color=figures.BLACK, label=text, **look)


def draw_classes(section: ClassErrors) -> Any:
    """Errors by class, most frequent first."""
    with figures.style():
        figure, grid = figures.panels(width=figures.PAGE_WIDTH, height=_height(2.9, section.series))
        axes = grid[0, 0]
        for look, values in zip(_styles(section.series), section.values, strict=True):
            if len(section.axis) > 2 * _MOST_NAMES:
                look |= {"marker": "", "lw": 1}
            axes.plot(range(len(section.axis)), values, **look)
        _class_ticks(axes, section.axis)
        axes.grid(axis="x", visible=False)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("error (%)")
        _legend_beside(axes)
    return figure


def draw_groups(section: GroupErrors) -> Any:
    """Errors of many-, medium- and few-shot classes."""
    count = len(section.series)
    with figures.style():
        figure, grid = figures.panels(width=figures.PAGE_WIDTH, height=_height(2.6, section.series))
        axes = grid[0, 0]
        width = 0.8 / count
        places = np.arange(len(section.groups))
        for i, (one, values) in enumerate(zip(section.series, section.values, strict=True)):
            axes.bar(
                places + (i - (count - 1) / 2) * width,
                values,
                0.9 * width,
                color=one.color,
                hatch=3 * _of(figures.HATCHES, one) or None,
                label=one.label,
            )
        names = [
            f"{group}\n{size} class{'' if size == 1 else 'es'}"
            for group, size in zip(section.groups, section.sizes, strict=True)
        ]
        axes.set_xticks(places, names)
        axes.grid(axis="x", visible=False)
        axes.set_ylabel("error (%)")
        _legend_beside(axes)
    return figure


def draw_reliability(section: Calibration) -> Any:
    """Accuracy against confidence of the predicted label."""
    with figures.style():
        figure, grid = figures.panels(width=6.6, height=_height(3.1, section.series))
        axes = grid[0, 0]
        axes.plot([0, 100], [0, 100], color=figures.GRAY, lw=0.8, ls=":")
        for i, look in enumerate(_styles(section.series)):
            some = section.counts[i] >= charts.FEWEST
            look["label"] += f", ECE {section.ece[i]:.1f}%"
            axes.plot(section.confidence[i][some], section.accuracy[i][some], **look)
        axes.set(xlim=(0, 101), ylim=(0, 101), aspect="equal")
        axes.set_xlabel("confidence (%)")
        axes.set_ylabel("accuracy (%)")
        _legend_beside(axes)
    return figure


def draw_norms(section: WeightNorms) -> Any:
    """Norms of the last layer's weights against class frequency."""
    with figures.style():
        figure, grid = figures.panels(width=6.2, height=_height(2.8, section.series))
        axes = grid[0, 0]
        for look, values, r in zip(
            _styles(section.series), section.values, section.correlations, strict=True
        ):
            if not np.isnan(r):
                look["label"] += f", r = {r:+.2f}".replace("-", "−")
            if len(section.axis) > 2 * _MOST_NAMES:
                look |= {"ls": "", "ms": 3}
            axes.plot(section.frequency, values, **look)
        axes.set_xscale("log")
        axes.set_xticks(charts.decades(section.frequency))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        axes.set_xlim(1.15 * section.frequency.max(), section.frequency.min() / 1.15)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("training examples of the class")
        axes.set_ylabel("norm of its weights")
        _legend_beside(axes)
    return figure


def write(comparison: Comparison, folder: str | Path) -> list[Path]:
    """Write every figure of a comparison as SVG and PNG.

    Args:
        comparison: what `compare` gave.
        folder: made if need be; files of the same names are replaced.

    Returns:
        The paths written: those of `FILES` for which the runs have data.
    """
    folder = Path(folder)
    data = comparison.runs[0].spec.dataset.name
    drawn: tuple[tuple[str, Any, Callable[[Any], Any], str], ...] = (
        ("errors", arrange.method_errors(comparison), draw_errors, "Balanced error of methods"),
        ("tau", arrange.tau_curves(comparison), draw_tau, "Balanced error against tau"),
        ("per-class", arrange.class_errors(comparison), draw_classes, "Error of each class"),
        ("groups", arrange.group_errors(comparison), draw_groups, "Error by group of classes"),
        ("reliability", arrange.calibration(comparison), draw_reliability, "Reliability"),
        ("weight-norms", arrange.weight_norms(comparison), draw_norms, "Weight norms"),
    )
    paths: list[Path] = []
    for stem, section, draw, what in drawn:
        if section is not None:
            paths += figures.save(draw(section), folder / stem, title=f"{what} on {data}")
    return paths
