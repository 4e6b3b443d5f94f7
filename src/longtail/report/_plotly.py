"""What the page's plotly charts share: colours in both themes, axes, legends.

A chart carries the light theme's colours; `DARK` says what each becomes in the dark, and the
page's script swaps them. Its legend is a list beside it, not plotly's own: the page makes
buttons of it, which a keyboard reaches and a narrow screen wraps. What each chart shows is in
`charts` and `tau_charts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from longtail import _checks
from longtail._checks import FloatArray
from longtail.report import figures
from longtail.report.names import shortened
from longtail.report.sections import ClassAxis, Series

INK, MUTED, GRID, PAPER = "#1F2328", "#57606A", "#E4E7EB", "#FFFFFF"
# Light theme -> dark theme. Colours that show on both stay as they are.
DARK = {
    INK: "#E9EBEE",
    MUTED: "#A7AFB9",
    GRID: "#30353C",
    PAPER: "#15181C",
    figures.GRAY: "#A3A9B1",
    figures.BLACK: "#FFFFFF",
    figures.DARK_GRAY: "#C4C9CF",
    figures.BLUE: "#1A7FC4",
    figures.INDIGO: "#8F84E8",
    figures.WINE: "#D82E86",
    figures.VIOLET: "#B84DF5",
    figures.BROWN: "#D9B98A",
    figures.PETROL: "#7FDDE6",
}


def faded(color: str) -> str:
    """A colour for areas, which lie over the grid and under lines.

    Examples:
        >>> faded("#56B4E9")
        'rgba(86, 180, 233, 0.2)'
    """
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.2)"


DARK |= {faded(light): faded(dark) for light, dark in DARK.items()}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "triangle-down", "x", "cross", "star")
_LINE_WIDTH = 2.2
# Beyond this many classes their names no longer fit below the bars.
_MOST_NAMES = 20
_LONGEST_NAME = 12
# Characters of all names together that stand side by side below a wide chart.
_MOST_LEVEL = 100
PERCENT = "%{y:.1f}%"


@dataclass(frozen=True)
class LegendItem:
    """One entry of a legend: what it says, how it looks, and which traces it shows or hides."""

    label: str
    color: str
    traces: tuple[int, ...]
    shown: bool = True
    mark: str = "line"
    variant: int = 0

    @property
    def dark(self) -> str:
        """Its colour in the dark theme."""
        return DARK.get(self.color, self.color)

    @property
    def dashes(self) -> str:
        """Of a line: lengths of ink and gap, in pixels; empty if it is solid."""
        return " ".join(map(str, _pixels(self.variant)))

    @property
    def hatch(self) -> int:
        """Of a bar: the number of its hatch."""
        return self.variant % len(figures.HATCHES)


@dataclass(frozen=True, eq=False)
class Chart:
    """A plotly chart for the page.

    Attributes:
        id: of its element; the script finds it by this.
        data: plotly traces.
        layout: plotly layout, without a width.
        label: what it shows, in a sentence with the main numbers, for screen readers.
        legend: its entries; none if there is nothing to tell apart.
    """

    id: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    label: str
    legend: tuple[LegendItem, ...] = field(default=())


def chart(
    id: str,
    traces: Sequence[dict[str, Any]],
    *,
    label: str,
    height: int,
    legend: Sequence[LegendItem] = (),
    **layout: Any,
) -> Chart:
    graph = _checks.require("plotly.graph_objects", extra="report", caller="longtail report")
    axis = {
        "color": MUTED,
        "gridcolor": GRID,
        "linecolor": GRID,
        "zeroline": False,
        "fixedrange": True,
        "automargin": True,
    }
    for name in ("xaxis", "yaxis"):
        given = layout.get(name, {})
        title = {"font": {"size": 13}, "standoff": 10, **given.get("title", {})}
        layout[name] = {**axis, **given, "title": title}
    layout["xaxis"].setdefault("showgrid", False)
    # Plotly checks every name and value; the empty template keeps the user's defaults out.
    figure = graph.Figure(
        data=list(traces),
        layout={
            "template": {},
            "height": height,
            "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
            "font": {"family": FONT, "size": 13, "color": INK},
            "paper_bgcolor": PAPER,
            "plot_bgcolor": PAPER,
            "showlegend": False,
            "dragmode": False,
            "hoverlabel": {"font": {"family": FONT, "size": 13}, "align": "left"},
            **layout,
        },
    )
    document = figure.to_plotly_json()
    return Chart(id, document["data"], document["layout"], label, tuple(legend))


def y_percent(title: str, top: float | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"title": {"text": title}, "rangemode": "tozero", "ticksuffix": "%"}
    if top is not None:
        found["range"] = [0, top]
    return found


def class_ticks(axis: ClassAxis) -> dict[str, Any]:
    """Names and counts below each class where they fit, else a few counts along the way."""
    if len(axis) <= _MOST_NAMES and not axis.binned:
        places = list(range(len(axis)))
        names = shortened(axis.names, _LONGEST_NAME)
        longest = max(map(len, names))
        # Names that have to lean have their counts in the same line, or those lie on the next name.
        between = "<br>" if len(names) * longest <= _MOST_LEVEL else ": "
        labels = [
            f"{_text(n)}{between}<span style='font-size:11px'>{c}</span>"
            for n, c in zip(names, axis.counts, strict=True)
        ]
        title, level = "class, and its training examples", longest <= 4
    else:
        places = np.linspace(0, len(axis) - 1, 6).round().astype(int).tolist()
        labels = [axis.counts[place].partition("–")[0] for place in places]
        labels[-1] = axis.ends[1]
        title, level = "training examples of the class", True
    return {
        "title": {"text": title},
        "tickmode": "array",
        "tickvals": places,
        "ticktext": labels,
        "tickangle": 0 if level else None,
        # Leaning names end at their tick, so that the last one stays on the chart.
        "autotickangles": [0, -45, -90],
        "ticklabeloverflow": "allow",
        "range": [-0.6, len(axis) - 0.4],
    }


def _text(name: str) -> str:
    """A name as it is in plotly's own markup, which has <b> and the like but no &quot;.

    Plotly makes text nodes of it, and the page's data are JSON: quotes mean nothing to either.
    """
    return escape(name, quote=False)


def class_hover(axis: ClassAxis) -> list[str]:
    """What a pointer on each bar is told about its class."""
    if axis.binned:
        return [f"{n} with {c} examples each" for n, c in zip(axis.names, axis.counts, strict=True)]
    return [
        f"class {_text(name)}, {count} training examples"
        for name, count in zip(axis.names, axis.counts, strict=True)
    ]


def looks(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Line and marker of each method: colour, symbol and dash together tell them apart."""
    return [
        {
            "line": {
                "color": one.color,
                "width": _LINE_WIDTH,
                "dash": ",".join(f"{length}px" for length in _pixels(one.variant)) or "solid",
            },
            "marker": {
                "color": one.color,
                "size": 8,
                "symbol": _SYMBOLS[i % len(_SYMBOLS)],
                "line": {"width": 0},
            },
            "visible": one.shown,
            "name": one.label,
        }
        for i, one in enumerate(series)
    ]


def _pixels(variant: int) -> list[float]:
    """The dashes of a variant, in pixels."""
    lengths = figures.DASHES[variant % len(figures.DASHES)]
    return [round(length * _LINE_WIDTH, 1) for length in lengths]


def legend_of(
    series: Sequence[Series], *, first: int = 0, mark: str = "line", notes: Sequence[str] = ()
) -> list[LegendItem]:
    texts = notes or [""] * len(series)
    return [
        LegendItem(one.label + note, one.color, (first + i,), one.shown, mark, one.variant)
        for i, (one, note) in enumerate(zip(series, texts, strict=True))
    ]


def listed(series: Sequence[Series], values: Sequence[float] | FloatArray) -> str:
    pairs = zip(series, values, strict=True)
    return "; ".join(f"{one.label} {value:.1f}%" for one, value in pairs)


def upright(x: float, *, dash: str, color: str) -> dict[str, Any]:
    return {
        "type": "line",
        "x0": x,
        "x1": x,
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "line": {"color": color, "width": 1.5, "dash": dash},
    }
