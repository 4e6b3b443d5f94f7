"""Data of a section in, a plotly chart out, with what a reader who can't see it needs.

The charts over tau and the slider's are in `tau_charts`; what all share is in `_plotly`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from longtail._checks import FloatArray
from longtail.report import figures
from longtail.report._plotly import (
    INK,
    MUTED,
    PAPER,
    PERCENT,
    Chart,
    chart,
    class_hover,
    class_ticks,
    legend_of,
    listed,
    looks,
    upright,
    y_percent,
)
from longtail.report.blocks import Block, Body, Grid, Plot
from longtail.report.sections import (
    Calibration,
    ClassErrors,
    Frequencies,
    GroupErrors,
    MethodErrors,
    WeightNorms,
    rounded,
)

# Fewer predictions than this in a bin say nothing about how often such ones are right.
FEWEST = 10


def frequencies(section: Frequencies) -> Chart:
    """Training examples per class."""
    most, least = section.axis.ends
    means = f"; a bar is the mean of a {section.axis.each}" if section.axis.binned else ""
    trace = {
        "type": "bar",
        "x": list(range(len(section.axis))),
        "y": rounded(section.values),
        "marker": {"color": figures.GRAY},
        "hovertext": class_hover(section.axis),
        "hovertemplate": "%{hovertext}<extra></extra>",
    }
    return chart(
        "chart-frequencies",
        [trace],
        label=f"Bar chart: training examples per class, from {most} down to {least}{means}.",
        height=280,
        xaxis=class_ticks(section.axis),
        yaxis={"title": {"text": "training examples"}, "rangemode": "tozero"},
        bargap=0.25,
    )


def method_errors(section: MethodErrors) -> Chart:
    """A dot with its 95% interval for each method; oracle ones hollow."""
    count = len(section.series)
    traces, notes = [], []
    for i, (one, interval, oracle) in enumerate(
        zip(section.series, section.intervals, section.oracle, strict=True)
    ):
        half = 0.0 if np.isnan(interval.half_width) else interval.half_width
        traces.append(
            {
                "type": "scatter",
                "x": [round(interval.mean, 3)],
                "y": [i],
                "mode": "markers",
                "marker": {
                    "color": PAPER if oracle else one.color,
                    "size": 12,
                    "line": {"color": one.color, "width": 2.5},
                },
                "error_x": {
                    "type": "data",
                    "array": [round(half, 3)],
                    "color": one.color,
                    "thickness": 2,
                    "width": 0,
                    "visible": half > 0,
                },
                "hovertemplate": f"{one.label}<br>%{{x:.1f}} ± {half:.1f}%<extra></extra>",
            }
        )
        notes.append(
            {
                "text": one.label,
                "x": 0,
                "xref": "paper",
                "xanchor": "left",
                "y": i,
                "yshift": 19,
                "showarrow": False,
                "bgcolor": PAPER,
                "font": {"size": 13, "color": MUTED if oracle else INK},
            }
        )
    means = [interval.mean for interval in section.intervals]
    lows = [i.mean if np.isnan(i.low) else i.low for i in section.intervals]
    highs = [i.mean if np.isnan(i.high) else i.high for i in section.intervals]
    room = 0.06 * (max(highs) - min(lows)) or 1.0
    return chart(
        "chart-methods",
        traces,
        label=f"Dot plot of balanced errors: {listed(section.series, means)}.",
        height=46 * count + 60,
        annotations=notes,
        shapes=[upright(means[0], dash="dot", color=figures.GRAY)],
        xaxis={
            "title": {"text": "balanced error"},
            "ticksuffix": "%",
            "showgrid": True,
            "range": [max(0.0, min(lows) - room), max(highs) + room],
        },
        yaxis={"range": [count - 0.6, -0.8], "showticklabels": False, "showgrid": False},
    )


def class_errors(section: ClassErrors) -> Chart:
    """A line per method over the classes in order of frequency."""
    hover = class_hover(section.axis)
    dense = len(section.axis) > 40
    traces = [
        {
            "type": "scatter",
            "x": list(range(len(section.axis))),
            "y": rounded(values),
            "mode": "lines" if dense else "lines+markers",
            "hovertext": hover,
            "hovertemplate": f"{one['name']}<br>%{{hovertext}}<br>{PERCENT}<extra></extra>",
            **one,
        }
        for one, values in zip(looks(section.series), section.values, strict=True)
    ]
    return chart(
        "chart-classes",
        traces,
        label=f"Lines: error of each {section.axis.each}, most frequent first. Rarest "
        f"{'group' if section.axis.binned else 'class'}: "
        + listed(section.series, section.values[:, -1])
        + ".",
        height=400,
        legend=legend_of(section.series),
        xaxis=class_ticks(section.axis),
        yaxis=y_percent("error"),
    )


def class_blocks(section: ClassErrors, caption: str, *, note: str = "") -> list[Block]:
    """The chart of errors by class and the table of its numbers, as every page shows them."""
    axis = section.axis
    rows = [
        (axis.names[i], axis.counts[i], *(f"{value:.1f}" for value in section.values[:, i]))
        for i in range(len(axis))
    ]
    table = Grid(
        f"The numbers: error of each {axis.each} in percent",
        (
            "classes" if axis.binned else "class",
            "training examples",
            *(one.label for one in section.series),
        ),
        [Body("", rows)],
        note,
        folded=True,
    )
    return [Plot(class_errors(section), caption), table]


def group_errors(section: GroupErrors) -> Chart:
    """Bars of each method for many-, medium- and few-shot classes."""
    names = [
        f"{group}<br><span style='font-size:11px'>{size} class{'' if size == 1 else 'es'}</span>"
        for group, size in zip(section.groups, section.sizes, strict=True)
    ]
    traces = [
        {
            "type": "bar",
            "x": names,
            "y": rounded(values),
            "marker": {
                "color": one.color,
                "pattern": {"shape": figures.HATCHES[one.variant % len(figures.HATCHES)]},
            },
            "visible": one.shown,
            "name": one.label,
            "hovertemplate": f"{one.label}<br>%{{x}}: {PERCENT}<extra></extra>",
        }
        for one, values in zip(section.series, section.values, strict=True)
    ]
    said = [
        f"{group}: {listed(section.series, section.values[:, i])}."
        for i, group in enumerate(section.groups)
    ]
    return chart(
        "chart-groups",
        traces,
        label="Bar chart: error by group of classes. " + " ".join(said),
        height=400,
        legend=legend_of(section.series, mark="bar"),
        bargap=0.25,
        bargroupgap=0.08,
        xaxis={"title": {"text": "classes by training examples"}},
        yaxis=y_percent("error"),
    )


def calibration(section: Calibration) -> Chart:
    """Accuracy against confidence; on the diagonal a method is as right as it is sure."""
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "x": [0, 100],
            "y": [0, 100],
            "mode": "lines",
            "line": {"color": MUTED, "width": 1.2, "dash": "dot"},
            "hoverinfo": "skip",
        }
    ]
    for one, x, y, counts in zip(
        looks(section.series), section.confidence, section.accuracy, section.counts, strict=True
    ):
        some = counts >= FEWEST
        share = counts[some] / counts.sum()
        one["marker"]["size"] = rounded(5 + 16 * np.sqrt(share), 1)
        traces.append(
            {
                "type": "scatter",
                "x": rounded(x[some]),
                "y": rounded(y[some]),
                "mode": "lines+markers",
                "hovertext": [f"{s:.1%} of predictions" for s in share],
                "hovertemplate": f"{one['name']}<br>sure: %{{x:.1f}}%<br>right: {PERCENT}"
                "<br>%{hovertext}<extra></extra>",
                **one,
            }
        )
    return chart(
        "chart-calibration",
        traces,
        label="Reliability diagram. Expected calibration error: "
        + listed(section.series, section.ece)
        + ".",
        height=420,
        legend=legend_of(
            section.series, first=1, notes=[f", ECE {value:.1f}%" for value in section.ece]
        ),
        xaxis={
            "title": {"text": "confidence of the prediction"},
            "range": [0, 103],
            "showgrid": True,
            "ticksuffix": "%",
        },
        yaxis=y_percent("how often it is right", 103),
    )


def decades(values: FloatArray) -> list[int]:
    """Where a logarithmic axis of counts has its ticks: 1, 2, 5, 10 … or powers of ten alone."""
    low, high = float(values.min()), float(values.max())
    steps = (1, 2, 5) if high / low < 1000 else (1,)
    every = (step * 10**power for power in range(8) for step in steps)
    return [place for place in every if low / 1.1 <= place <= high * 1.1] or [round(low)]


def weight_norms(section: WeightNorms) -> Chart:
    """Norm of each class's weights against its number of training examples."""
    places = decades(section.frequency)
    hover = class_hover(section.axis)
    traces = [
        {
            "type": "scatter",
            "x": rounded(section.frequency),
            "y": rounded(values),
            "mode": "markers" if len(section.axis) > 40 else "lines+markers",
            "hovertext": hover,
            "hovertemplate": f"{one['name']}<br>%{{hovertext}}<br>norm %{{y:.2f}}<extra></extra>",
            **one,
        }
        for one, values in zip(looks(section.series), section.values, strict=True)
    ]
    notes = [
        "" if np.isnan(r) else f", r = {r:+.2f}".replace("-", "−") for r in section.correlations
    ]
    said = [s.label + note for s, note in zip(section.series, notes, strict=True)]
    return chart(
        "chart-norms",
        traces,
        label=f"Norms of the last layer's weights against training examples, of each "
        f"{section.axis.each}. Correlation with the logarithm of the frequency: "
        + "; ".join(said)
        + ".",
        height=420,
        legend=legend_of(section.series, notes=notes),
        xaxis={
            "title": {"text": "training examples of the class"},
            "type": "log",
            "autorange": "reversed",
            "showgrid": True,
            "tickmode": "array",
            "tickvals": places,
            "ticktext": [f"{place:,}" for place in places],
        },
        yaxis={"title": {"text": "norm of its weights"}, "rangemode": "tozero"},
    )
