"""The charts over tau: the curve of the balanced error, and the bars that the slider moves."""

from __future__ import annotations

from typing import Any

import numpy as np

from longtail._checks import FloatArray
from longtail.report._plotly import (
    INK,
    PERCENT,
    Chart,
    LegendItem,
    chart,
    class_hover,
    class_ticks,
    faded,
    upright,
    y_percent,
)
from longtail.report.blocks import Plot, Slider
from longtail.report.sections import (
    ClassAxis,
    SliderMethod,
    TauCurves,
    TauLine,
    TauSlider,
    decimals,
    rounded,
    unadjusted,
)

_DENSE = 40


def tau_curves(section: TauCurves, *, start: float) -> Chart:
    """Balanced error against tau; the first shape is the line that the slider moves."""
    traces: list[dict[str, Any]] = []
    legend: list[LegendItem] = []
    ends, digits = [float(section.taus[0]), float(section.taus[-1])], decimals(section.taus)
    for line in section.lines:
        first = len(traces)
        traces += _band_and_line(section.taus, line)
        legend.append(
            LegendItem(line.series.label, line.series.color, (first, first + 1, first + 2))
        )
    for source, symbol, what in (
        ("chosen", "diamond", "τ chosen on held-out data"),
        ("oracle", "star", f"oracle: best τ on the {section.judged} set"),
    ):
        first = len(traces)
        traces += [
            _marker(line, getattr(line, source), symbol, what, digits)
            for line in section.lines
            if getattr(line, source) is not None
        ]
        if len(traces) > first:
            legend.append(LegendItem(what, INK, tuple(range(first, len(traces))), mark=symbol))
    for series, error in section.references:
        legend.append(LegendItem(series.label, series.color, (len(traces),), mark="dash"))
        traces.append(
            {
                "type": "scatter",
                "x": ends,
                "y": [round(error, 3)] * 2,
                "mode": "lines",
                "line": {"color": series.color, "width": 1.6, "dash": "dash"},
                "hovertemplate": f"{series.label}: %{{y:.1f}}%<extra></extra>",
            }
        )
    zero = unadjusted(section.taus)
    said = [_said(line, zero, digits) for line in section.lines]
    return chart(
        "chart-tau",
        traces,
        label=f"Lines: balanced error against τ from {ends[0]:g} to {ends[1]:g}. " + " ".join(said),
        height=400,
        legend=legend,
        shapes=[{**upright(start, dash="solid", color=INK), "name": "now"}],
        xaxis={"title": {"text": "τ"}, "range": ends, "showgrid": True},
        yaxis=y_percent("balanced error", ceiling(section)),
    )


def ceiling(section: TauCurves) -> float:
    """Room for what matters, the valley: far beyond it every curve climbs to useless errors."""
    top = max(float(line.high.max()) for line in section.lines)
    zero = unadjusted(section.taus)
    start = max(float(line.high[zero]) for line in section.lines)
    return min(1.05 * top, 2.5 * start, 102.0) if start else 1.05 * top


def _band_and_line(taus: FloatArray, line: TauLine) -> list[dict[str, Any]]:
    color, digits = line.series.color, decimals(taus)
    x = rounded(taus, digits + 1)
    edge = {"type": "scatter", "x": x, "mode": "lines", "hoverinfo": "skip"}
    return [
        {**edge, "y": rounded(line.low), "line": {"width": 0, "color": color}},
        {
            **edge,
            "y": rounded(line.high),
            "line": {"width": 0, "color": color},
            "fill": "tonexty",
            "fillcolor": faded(color),
        },
        {
            "type": "scatter",
            "x": x,
            "y": rounded(line.mean),
            "mode": "lines",
            "line": {"color": color, "width": 2.8},
            "hovertemplate": f"{line.series.label}<br>τ = %{{x:.{digits}f}}: %{{y:.1f}}%"
            "<extra></extra>",
        },
    ]


def _marker(line: TauLine, choice: Any, symbol: str, what: str, digits: int) -> dict[str, Any]:
    color = line.series.color
    return {
        "type": "scatter",
        "x": [round(choice.tau, digits + 1)],
        "y": [round(choice.error, 3)],
        "mode": "markers",
        "marker": {
            "symbol": symbol,
            "size": 15 if symbol == "star" else 12,
            "color": color,
            "line": {"color": INK, "width": 1.4},
        },
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [round(choice.high - choice.tau, digits + 1)],
            "arrayminus": [round(choice.tau - choice.low, digits + 1)],
            "color": INK,
            "thickness": 1.4,
            "width": 4,
            "visible": choice.high > choice.low,
        },
        "hovertemplate": (
            f"{line.series.label}<br>{what}<br>τ = {choice.tau:.{digits}f} "
            f"({choice.low:.{digits}f} to {choice.high:.{digits}f})<br>%{{y:.1f}}%<extra></extra>"
        ),
    }


def _said(line: TauLine, zero: int, digits: int) -> str:
    text = f"{line.series.label}: {line.mean[zero]:.1f}% at τ = 0, least {line.mean.min():.1f}%"
    for choice, what in ((line.chosen, "held-out"), (line.oracle, "oracle")):
        if choice is not None:
            text += f", {choice.error:.1f}% at the {what} τ (mean {choice.tau:.{digits}f})"
    return f"{text}."


def slider_classes(section: TauSlider) -> Chart:
    """Errors by class at the slider's tau, over outlines of those without adjustment."""
    method = section.methods[0]
    return chart(
        "chart-slider-classes",
        _bars(section, method, method.per_class, list(range(len(section.axis))), section.axis),
        label=f"Bar chart: error of each {section.axis.each} at the slider's τ, most frequent "
        "first; the line above the slider says the same in words.",
        height=360,
        barmode="overlay",
        bargap=0.2 if len(section.axis) <= _DENSE else 0.05,
        xaxis=class_ticks(section.axis),
        yaxis=y_percent("error"),
    )


def slider_groups(section: TauSlider) -> Chart:
    """Errors by group at the slider's tau, and of all classes together."""
    method = section.methods[0]
    names = ["all classes", *section.groups]
    return chart(
        "chart-slider-groups",
        _bars(section, method, _with_all(method), names, None),
        label="Bar chart: balanced error, and error of many-, medium- and few-shot classes, "
        "at the slider's τ.",
        height=360,
        barmode="overlay",
        bargap=0.3,
        xaxis={"title": {"text": "classes by training examples"}},
        yaxis=y_percent("error"),
    )


def _with_all(method: SliderMethod) -> FloatArray:
    return np.concatenate([method.balanced[:, None], method.groups], axis=1)


def _bars(
    section: TauSlider,
    method: SliderMethod,
    values: FloatArray,
    x: list[Any],
    axis: ClassAxis | None,
) -> list[dict[str, Any]]:
    now = int(np.argmin(np.abs(section.taus - section.start)))
    hover = class_hover(axis) if axis is not None else list(map(str, x))
    moving: dict[str, Any] = {
        "type": "bar",
        "x": x,
        "y": rounded(values[now]),
        "marker": {"color": method.series.color},
        "hovertext": hover,
        "hovertemplate": f"%{{hovertext}}<br>{PERCENT}<extra></extra>",
    }
    without: dict[str, Any] = {
        "type": "bar",
        "x": x,
        "y": rounded(values[unadjusted(section.taus)]),
        "marker": {"color": "rgba(0,0,0,0)", "line": {"color": INK, "width": 1.4}},
        "hovertext": hover,
        "hovertemplate": f"%{{hovertext}}<br>without adjustment {PERCENT}<extra></extra>",
    }
    if len(x) > _DENSE:  # a hundred boxes would hide the bars; one line around them does not
        del without["marker"]
        line = {"color": INK, "width": 1.4, "shape": "hvh"}
        without |= {"type": "scatter", "mode": "lines", "line": line}
    return [moving, without]


def _says(groups: tuple[str, ...], values: FloatArray) -> str:
    parts = [f"{name} {value:.1f}%" for name, value in zip(groups, values[1:], strict=True)]
    return f"Balanced error {values[0]:.1f}%: {', '.join(parts)}."


def slider_block(section: TauSlider) -> Slider:
    """The slider with its two charts, as every page shows it."""
    bars = "groups of classes" if section.axis.binned else "class"
    return Slider(
        slider_values(section),
        Plot(slider_groups(section), "By group. Outline: τ = 0, no adjustment."),
        Plot(
            slider_classes(section),
            f"By {bars}, most frequent first. Outline: τ = 0, no adjustment.",
        ),
    )


def slider_values(section: TauSlider) -> dict[str, Any]:
    """What the script needs to move the bars: every number that it will show, rounded here."""
    digits = decimals(section.taus)
    return {
        "taus": rounded(section.taus, digits + 1),
        "digits": digits,
        "start": int(np.argmin(np.abs(section.taus - section.start))),
        "unadjusted": unadjusted(section.taus),
        "methods": [
            {
                "label": method.series.label,
                "color": method.series.color,
                "classes": rounded(method.per_class),
                "groups": rounded(_with_all(method)),
                "says": [_says(section.groups, values) for values in _with_all(method)],
                "presets": [
                    [name, int(np.argmin(np.abs(section.taus - tau)))]
                    for name, tau in method.presets.items()
                ],
            }
            for method in section.methods
        ],
    }
