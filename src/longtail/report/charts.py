"""Charts of a page as plotly descriptions, and the same charts drawn by matplotlib for papers.

A chart is data: plotly's traces and layout, a legend, and a sentence for readers that can't see
it. The page hands it to plotly's script; `draw` makes a matplotlib figure of it. Errors are in
percent throughout.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from longtail._checks import FloatArray, IntArray
from longtail.metrics import Reliability
from longtail.priors import ClassPrior
from longtail.report import figures
from longtail.report.compare import Interval
from longtail.report.tables import shortened

# More classes than this are shown in groups of neighbours in frequency.
MOST_BARS, BINS = 200, 20
# Bins of a reliability diagram with fewer predictions than this are left out.
FEWEST = 10

INK, MUTED, GRID, PAPER, CLEAR = "#1F2328", "#57606A", "rgba(128,128,128,0.22)", "#FFF", "#FFF0"
_DENSE = 40  # beyond this many classes: no markers, no outlined bars
_MOST_NAMES, _LONGEST_NAME = 20, 12
_SYMBOLS = {
    "circle": "o", "diamond": "D", "square": "s", "triangle-up": "^", "triangle-down": "v",
    "x": "X", "cross": "P", "star": "*",
}  # fmt: skip


@dataclass(frozen=True)
class Series:
    """The look of one method in every chart.

    Attributes:
        label: its name for people.
        color: hexadecimal.
        variant: 0, 1, …: tells methods of one colour apart, by dashes and hatches.
        shown: drawn at first; the others wait in the legend.
    """

    label: str
    color: str
    variant: int = 0
    shown: bool = True


@dataclass(frozen=True)
class LegendItem:
    """One entry of a legend, and the traces that it shows or hides; `mark` is how it looks."""

    label: str
    color: str
    traces: tuple[int, ...]
    mark: str = "line"
    variant: int = 0
    shown: bool = True


@dataclass(frozen=True, eq=False)
class Chart:
    """A chart: plotly's data and layout, a sentence for screen readers, and a legend."""

    id: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    label: str
    legend: tuple[LegendItem, ...] = field(default=())


@dataclass(frozen=True, eq=False)
class ClassAxis:
    """Classes from most to least frequent, or groups of neighbours where there are too many.

    Attributes:
        members: the classes of each bar, in order.
        names: of each bar, short.
        counts: training examples of each bar's classes, as text: ``114`` or ``500–480``.
    """

    members: tuple[IntArray, ...]
    names: tuple[str, ...]
    counts: tuple[str, ...]

    @classmethod
    def of(cls, prior: ClassPrior, class_names: Sequence[str] | None = None) -> ClassAxis:
        """Return the axis of these frequencies; equally frequent classes stay in label order.

        Examples:
            >>> axis = ClassAxis.of(ClassPrior.from_counts([5, 90, 20]), ["a", "b", "c"])
            >>> axis.names, axis.counts
            (('b', 'c', 'a'), ('90', '20', '5'))
        """
        order = np.argsort(-prior.probs, kind="stable").astype(np.int64)
        if prior.counts is None:
            amounts = [f"{100 * prior.probs[k]:.3g}%" for k in order]
        else:
            amounts = [f"{prior.counts[k]:,}" for k in order]
        if len(order) <= MOST_BARS:
            names = [str(k) if class_names is None else class_names[k] for k in order]
            return cls(tuple(order[:, None]), tuple(names), tuple(amounts))
        parts = np.array_split(np.arange(len(order)), BINS)
        return cls(
            tuple(order[part] for part in parts),
            tuple(f"{len(part)} classes" for part in parts),
            tuple(f"{amounts[part[0]]}–{amounts[part[-1]]}" for part in parts),
        )

    @property
    def ends(self) -> tuple[str, str]:
        """Training examples of the most and of the least frequent class, as text."""
        return self.counts[0].partition("–")[0], self.counts[-1].rpartition("–")[2]

    @property
    def each(self) -> str:
        """Meaning of a bar: ``class``, or ``group of about 100 classes``."""
        sizes = [len(part) for part in self.members]
        if max(sizes) == 1:
            return "class"
        about = "" if min(sizes) == max(sizes) else "about "
        return f"group of {about}{round(sum(sizes) / len(sizes)):,} classes"

    def mean(self, values: FloatArray) -> FloatArray:
        """Return the mean over each bar's classes of values of shape (…, num_classes)."""
        return np.stack([values[..., part].mean(axis=-1) for part in self.members], axis=-1)

    def ticks(self) -> dict[str, Any]:
        """Return plotly's axis: names and counts where they fit, else some counts on the way."""
        places = list(range(len(self.members)))
        if len(places) <= _MOST_NAMES and self.each == "class":
            names = shortened(self.names, _LONGEST_NAME)
            longest = max(map(len, names))
            # Leaning names have their counts in the same line, or those lie on the next name.
            between = "<br>" if len(names) * longest <= 100 else ": "
            labels = [
                f"{escape(name, quote=False)}{between}{count}"
                for name, count in zip(names, self.counts, strict=True)
            ]
            title, level = "class, and its training examples", longest <= 4
        else:
            places = np.linspace(0, len(places) - 1, 6).round().astype(int).tolist()
            labels = [self.counts[place].partition("–")[0] for place in places]
            labels[-1] = self.ends[1]
            title, level = "training examples of the class", True
        return {
            "title": {"text": title},
            "tickmode": "array",
            "tickvals": places,
            "ticktext": labels,
            "tickangle": 0 if level else None,
            "autotickangles": [0, -45, -90],
            "ticklabeloverflow": "allow",
            "range": [-0.6, len(self.members) - 0.4],
        }

    def hover(self) -> list[str]:
        """Return the text that a pointer sees on each bar."""
        pairs = zip(self.names, self.counts, strict=True)
        if self.each != "class":
            return [f"{name} with {count} examples each" for name, count in pairs]
        return [f"class {escape(n, quote=False)}, {count} training examples" for n, count in pairs]


@dataclass(frozen=True)
class Choice:
    """A chosen tau (mean, least and greatest over seeds), and the error with it."""

    tau: float
    low: float
    high: float
    error: float


@dataclass(frozen=True, eq=False)
class TauMethod:
    """One post-hoc method over tau.

    Attributes:
        series: its look.
        mean: balanced error at each tau of the curve, mean over seeds.
        low: least over seeds.
        high: greatest over seeds.
        per_class: error of each class at each tau of the slider, shape (taus, num_classes).
        choices: chosen taus to mark, by how they were chosen.
        presets: taus of the slider with a button, by name.
    """

    series: Series
    mean: FloatArray
    low: FloatArray
    high: FloatArray
    per_class: FloatArray
    choices: dict[str, Choice]
    presets: dict[str, float]


def rounded(values: Any, digits: int = 3) -> Any:
    """Return nested lists of rounded numbers for JSON, with None for NaN.

    Examples:
        >>> rounded(np.array([[1.23456, np.nan]]))
        [[1.235, None]]
    """
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, list | tuple):
        return [rounded(value, digits) for value in values]
    return None if math.isnan(values) else round(values, digits)


def tau_grid(low: int, high: int, *, most: int) -> FloatArray:
    """Return taus from `low` to `high` in the smallest round steps, at most `most` of them.

    Examples:
        >>> tau_grid(-1, 1, most=10)
        array([-1.  , -0.75, -0.5 , -0.25,  0.  ,  0.25,  0.5 ,  0.75,  1.  ])
        >>> tau_grid(0, 70, most=10)
        array([ 0.,  7., 14., 21., 28., 35., 42., 49., 56., 63., 70.])
    """
    span = high - low
    for per_unit in (50, 20, 10, 4, 2, 1):
        if span * per_unit <= most:
            return np.arange(low * per_unit, high * per_unit + 1) / per_unit
    step = math.ceil(span / most)
    return np.arange(low // step, -(-high // step) + 1, dtype=np.float64) * step


def _chart(
    id: str,
    traces: list[dict[str, Any]],
    label: str,
    xaxis: dict[str, Any],
    yaxis: dict[str, Any],
    *,
    legend: Sequence[LegendItem] = (),
    height: int = 400,
    **layout: Any,
) -> Chart:
    axis = {"color": MUTED, "gridcolor": GRID, "linecolor": GRID, "zeroline": False}
    axis |= {"fixedrange": True, "automargin": True}
    for given in (xaxis, yaxis):
        given.get("title", {})["font"] = {"size": 13}
    base = {
        "height": height,
        "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
        "font": {"family": "system-ui, Roboto, Arial, sans-serif", "size": 13, "color": INK},
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "showlegend": False,
        "dragmode": False,
        "hoverlabel": {"align": "left"},
        "xaxis": {**axis, "showgrid": False, **xaxis},
        "yaxis": {**axis, **yaxis},
    }
    return Chart(id, traces, {**base, **layout}, label, tuple(legend))


def _percent(title: str) -> dict[str, Any]:
    return {"title": {"text": title}, "rangemode": "tozero", "ticksuffix": "%"}


def _upright(x: float, dash: str, color: str) -> dict[str, Any]:
    line = {"color": color, "width": 1.5, "dash": dash}
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def dashes(variant: int) -> str:
    """Return the lengths of ink and gap of a variant's line in pixels; empty for a solid one."""
    lengths = figures.DASHES[variant % len(figures.DASHES)]
    return ",".join(f"{2.2 * length:.1f}px" for length in lengths)


def _lines(
    series: Sequence[Series],
    x: Sequence[Any] | FloatArray,
    values: Sequence[FloatArray],
    *,
    mode: str,
    hover: str,
    hovertext: Sequence[str],
) -> list[dict[str, Any]]:
    """A line per method: colour, symbol and dash together tell them apart."""
    symbols = list(_SYMBOLS)
    return [
        {
            "type": "scatter",
            "x": rounded(list(x)),
            "y": rounded(y),
            "mode": mode,
            "name": one.label,
            "visible": one.shown,
            "line": {"color": one.color, "width": 2.2, "dash": dashes(one.variant) or "solid"},
            "marker": {"color": one.color, "size": 8, "symbol": symbols[i % len(symbols)]},
            "hovertext": list(hovertext),
            "hovertemplate": f"{one.label}<br>{hover}<extra></extra>",
        }
        for i, (one, y) in enumerate(zip(series, values, strict=True))
    ]


def _legend(
    series: Sequence[Series], *, mark: str = "line", notes: Sequence[str] = (), first: int = 0
) -> list[LegendItem]:
    texts = notes or [""] * len(series)
    return [
        LegendItem(one.label + note, one.color, (first + i,), mark, one.variant, one.shown)
        for i, (one, note) in enumerate(zip(series, texts, strict=True))
    ]


def _listed(series: Sequence[Series], values: Sequence[float] | FloatArray) -> str:
    pairs = zip(series, values, strict=True)
    return "; ".join(f"{one.label} {value:.1f}%" for one, value in pairs)


def frequencies(axis: ClassAxis, counts: FloatArray) -> Chart:
    """Training examples per class."""
    trace = {
        "type": "bar",
        "x": list(range(len(axis.members))),
        "y": rounded(axis.mean(counts)),
        "marker": {"color": figures.GRAY},
        "hovertext": axis.hover(),
        "hovertemplate": "%{hovertext}<extra></extra>",
    }
    most, least = axis.ends
    each = "" if axis.each == "class" else f"; a bar is the mean of a {axis.each}"
    return _chart(
        "chart-frequencies",
        [trace],
        f"Bar chart: training examples per class, from {most} down to {least}{each}.",
        axis.ticks(),
        {"title": {"text": "training examples"}, "rangemode": "tozero"},
        height=280,
        bargap=0.25,
    )


def method_errors(
    series: Sequence[Series], intervals: Sequence[Interval], hollow: Sequence[bool]
) -> Chart:
    """A dot for each method, with its interval where there is one; oracles hollow."""
    count, traces, names = len(series), [], []
    halves = [0.0 if math.isnan(one.half_width) else one.half_width for one in intervals]
    for i, (one, interval, half, open_) in enumerate(
        zip(series, intervals, halves, hollow, strict=True)
    ):
        mean = round(interval.mean, 3)
        spread = f" ± {half:.1f}" if half else ""
        fill, hover = PAPER if open_ else one.color, f"{one.label}<br>{mean:.1f}{spread}%"
        traces.append(_dot(mean, i, fill, one.color, reach=(half, half), hover=hover))
        names.append(
            {
                "text": one.label,
                "x": 0,
                "xref": "paper",
                "xanchor": "left",
                "y": i,
                "yshift": 19,
                "showarrow": False,
                "font": {"size": 13, "color": MUTED if open_ else INK},
            }
        )
    means = [interval.mean for interval in intervals]
    low = min(mean - half for mean, half in zip(means, halves, strict=True))
    high = max(mean + half for mean, half in zip(means, halves, strict=True))
    room = 0.06 * (high - low) or 1.0
    return _chart(
        "chart-methods",
        traces,
        f"Dot plot of balanced errors: {_listed(series, means)}.",
        {
            **_percent("balanced error"),
            "showgrid": True,
            "range": [max(0, low - room), high + room],
        },
        {"range": [count - 0.6, -0.8], "showticklabels": False, "showgrid": False},
        height=46 * count + 60,
        annotations=names,
        shapes=[_upright(means[0], "dot", figures.GRAY)],
    )


def class_errors(axis: ClassAxis, series: Sequence[Series], values: FloatArray) -> Chart:
    """A line per method over the classes, most frequent first; `values` (methods, classes)."""
    values = axis.mean(values)
    count = len(axis.members)
    traces = _lines(
        series,
        range(count),
        list(values),
        mode="lines" if count > _DENSE else "lines+markers",
        hover="%{hovertext}<br>%{y:.1f}%",
        hovertext=axis.hover(),
    )
    return _chart(
        "chart-classes",
        traces,
        f"Lines: error of each {axis.each}, most frequent first. Rarest: "
        f"{_listed(series, values[:, -1])}.",
        axis.ticks(),
        _percent("error"),
        legend=_legend(series),
    )


def group_errors(sizes: dict[str, int], series: Sequence[Series], values: FloatArray) -> Chart:
    """Bars by group of classes; `values` of shape (methods, groups)."""
    names = [f"{name}<br>{n} class{'' if n == 1 else 'es'}" for name, n in sizes.items()]
    traces = [
        {
            "type": "bar",
            "x": names,
            "y": rounded(y),
            "name": one.label,
            "visible": one.shown,
            "marker": {
                "color": one.color,
                "pattern": {"shape": figures.HATCHES[one.variant % len(figures.HATCHES)]},
            },
            "hovertemplate": f"{one.label}<br>%{{x}}: %{{y:.1f}}%<extra></extra>",
        }
        for one, y in zip(series, values, strict=True)
    ]
    said = (f"{name}: {_listed(series, values[:, i])}." for i, name in enumerate(sizes))
    return _chart(
        "chart-groups",
        traces,
        f"Bar chart: error by group of classes. {' '.join(said)}",
        {"title": {"text": "classes by training examples"}},
        _percent("error"),
        legend=_legend(series, mark="bar"),
        bargap=0.25,
        bargroupgap=0.08,
    )


def calibration(
    series: Sequence[Series], pooled: Sequence[Reliability], eces: Sequence[float]
) -> Chart:
    """Accuracy against confidence: on the diagonal a method is as right as it is sure."""
    diagonal: dict[str, Any] = {"type": "scatter", "x": [0, 100], "y": [0, 100], "mode": "lines"}
    diagonal |= {"line": {"color": MUTED, "width": 1.2, "dash": "dot"}, "hoverinfo": "skip"}
    traces = [diagonal]
    for i, (one, found) in enumerate(zip(series, pooled, strict=True)):
        some = found.counts >= FEWEST
        share = found.counts[some] / found.counts.sum()
        (trace,) = _lines(
            [one],
            100 * found.mean_confidence[some],
            [100 * found.accuracy[some]],
            mode="lines+markers",
            hover="sure: %{x:.1f}%<br>right: %{y:.1f}%<br>%{hovertext}",
            hovertext=[f"{s:.1%} of predictions" for s in share],
        )
        symbol = list(_SYMBOLS)[i % len(_SYMBOLS)]
        trace["marker"] |= {"size": rounded(5 + 16 * np.sqrt(share), 1), "symbol": symbol}
        traces.append(trace)
    axis = {"range": [0, 103], "showgrid": True}
    return _chart(
        "chart-calibration",
        traces,
        f"Reliability diagram. Expected calibration error: {_listed(series, eces)}.",
        {**_percent("confidence of the prediction"), **axis},
        {**_percent("how often it is right"), **axis},
        legend=_legend(series, notes=[f", ECE {value:.1f}%" for value in eces], first=1),
        height=420,
    )


def weight_norms(
    axis: ClassAxis, counts: FloatArray, series: Sequence[Series], norms: Sequence[FloatArray]
) -> Chart:
    """Norm of each class's weights against its number of training examples."""
    notes, x = [], np.log(counts)
    for values in norms:
        flat = np.ptp(x) == 0 or np.ptp(values) == 0
        r = math.nan if flat else float(np.corrcoef(x, values)[0, 1])
        notes.append("" if flat else f", r = {r:+.2f}".replace("-", "−"))
    frequency = axis.mean(counts)
    low, high = float(frequency.min()), float(frequency.max())
    steps = (1, 2, 5) if high / low < 1000 else (1,)
    every = (step * 10**power for power in range(8) for step in steps)
    places = [place for place in every if low / 1.1 <= place <= high * 1.1] or [round(low)]
    traces = _lines(
        series,
        frequency,
        [axis.mean(values) for values in norms],
        mode="markers" if len(axis.members) > _DENSE else "lines+markers",
        hover="%{hovertext}<br>norm %{y:.2f}",
        hovertext=axis.hover(),
    )
    said = "; ".join(one.label + note for one, note in zip(series, notes, strict=True))
    return _chart(
        "chart-norms",
        traces,
        f"Norms of the last layer's weights against training examples, of each {axis.each}. "
        f"Correlation with the logarithm of the frequency: {said}.",
        {
            "title": {"text": "training examples of the class"},
            "type": "log",
            "autorange": "reversed",
            "showgrid": True,
            "tickmode": "array",
            "tickvals": places,
            "ticktext": [f"{place:,}" for place in places],
        },
        {"title": {"text": "norm of its weights"}, "rangemode": "tozero"},
        legend=_legend(series, notes=notes),
        height=420,
    )


def tau_digits(taus: FloatArray) -> int:
    """Return the decimals with which taus on such an axis are written."""
    return max(2, 2 - math.floor(math.log10(taus[-1] - taus[0])))


def tau_curves(
    taus: FloatArray,
    methods: Sequence[TauMethod],
    references: Sequence[tuple[Series, float]] = (),
    *,
    start: float,
) -> Chart:
    """Balanced error against tau; the first shape is the line that the slider moves."""
    digits, zero = tau_digits(taus), int(np.argmin(np.abs(taus)))
    x, ends = rounded(taus, digits + 1), [float(taus[0]), float(taus[-1])]
    traces: list[dict[str, Any]] = []
    legend: list[LegendItem] = []
    said = []
    for one in methods:
        color, label = one.series.color, one.series.label
        edge = {"type": "scatter", "x": x, "mode": "lines", "hoverinfo": "skip"}
        low, high = (
            {**edge, "y": rounded(y), "line": {"width": 0, "color": color}}
            for y in (one.low, one.high)
        )
        hover = f"{label}<br>τ = %{{x:.{digits}f}}: %{{y:.1f}}%<extra></extra>"
        legend.append(LegendItem(label, color, tuple(range(len(traces), len(traces) + 3))))
        traces += [
            low,
            {**high, "fill": "tonexty", "fillcolor": color + "33"},
            {
                "type": "scatter",
                "x": x,
                "y": rounded(one.mean),
                "mode": "lines",
                "line": {"color": color, "width": 2.8},
                "hovertemplate": hover,
            },
        ]
        text = f"{label}: {one.mean[zero]:.1f}% at τ = 0, least {one.mean.min():.1f}%"
        for what, choice in one.choices.items():
            text += f", {choice.error:.1f}% at the {what} (mean {choice.tau:.{digits}f})"
        said.append(f"{text}.")
    for what in dict.fromkeys(what for one in methods for what in one.choices):
        symbol, first = "star" if what.startswith("oracle") else "diamond", len(traces)
        for one in methods:
            if (found := one.choices.get(what)) is None:
                continue
            tau = f"{found.tau:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"
            hover = f"{one.series.label}<br>{what}<br>τ = {tau}<br>%{{y:.1f}}%"
            reach = (found.tau - found.low, found.high - found.tau)
            place = (found.tau, found.error, one.series.color, INK)
            traces.append(_dot(*place, reach=reach, hover=hover, symbol=symbol, cap=4))
        legend.append(LegendItem(what, INK, tuple(range(first, len(traces))), symbol))
    for series, error in references:
        legend.append(LegendItem(series.label, series.color, (len(traces),), "dash"))
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
    # Room for the valley: far beyond it every curve climbs to useless errors.
    top = max(float(one.high.max()) for one in methods)
    before = max(float(one.high[zero]) for one in methods)
    ceiling = min(1.05 * top, 2.5 * before, 102.0) if before else 1.05 * top
    return _chart(
        "chart-tau",
        traces,
        f"Lines: balanced error against τ from {ends[0]:g} to {ends[1]:g}. {' '.join(said)}",
        {"title": {"text": "τ"}, "range": ends, "showgrid": True},
        {**_percent("balanced error"), "range": [0, ceiling]},
        legend=legend,
        shapes=[_upright(start, "solid", INK)],
    )


def _dot(
    x: float,
    y: float,
    color: str,
    edge: str,
    *,
    reach: tuple[float, float],
    hover: str,
    symbol: str = "circle",
    cap: int = 0,
) -> dict[str, Any]:
    """A single mark with an interval that goes `reach` to its left and right."""
    look = {"symbol": symbol, "size": 15 if symbol == "star" else 12, "color": color}
    left, right = ([round(end, 6)] for end in reach)
    return {
        "type": "scatter",
        "x": [round(x, 6)],
        "y": [round(y, 3)],
        "mode": "markers",
        "marker": {**look, "line": {"color": edge, "width": 1.4 if cap else 2.5}},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "arrayminus": left,
            "array": right,
            "color": edge,
            "thickness": 1.4 if cap else 2,
            "width": cap,
        },
        "hovertemplate": f"{hover}<extra></extra>",
    }


def slider(
    taus: FloatArray,
    axis: ClassAxis,
    groups: dict[str, IntArray],
    methods: Sequence[TauMethod],
    *,
    start: float,
) -> tuple[dict[str, Any], Chart, Chart]:
    """Return the values for the slider's script, and its two charts: by group and by class.

    Args:
        taus: positions of the slider.
        axis: the classes.
        groups: classes of each group that has some.
        methods: with `per_class` at these taus.
        start: where it stands at first.
    """
    digits = tau_digits(taus)
    places = [int(np.argmin(np.abs(taus - tau))) for tau in (0.0, start)]
    values: list[dict[str, Any]] = []
    for one in methods:
        means = [one.per_class, *(one.per_class[:, k] for k in groups.values())]
        of_groups = np.stack([part.mean(axis=1) for part in means], axis=1)
        names = [f"{name} {{:.1f}}%" for name in groups]
        says = "Balanced error {:.1f}%" + (f": {', '.join(names)}." if names else ".")
        values.append(
            {
                "label": one.series.label,
                "color": one.series.color,
                "classes": rounded(axis.mean(one.per_class)),
                "groups": rounded(of_groups),
                "says": [says.format(*row) for row in of_groups],
                "presets": [
                    [name, int(np.argmin(np.abs(taus - tau)))] for name, tau in one.presets.items()
                ],
            }
        )
    document = {
        "taus": rounded(taus, digits + 1),
        "digits": digits,
        "unadjusted": places[0],
        "start": places[1],
        "methods": values,
    }
    names = ["all classes", *groups]
    by_group = _bars(values[0], "groups", places, names, names)
    by_class = _bars(values[0], "classes", places, list(range(len(axis.members))), axis.hover())
    return (
        document,
        _chart(
            "chart-slider-groups",
            by_group,
            "Bar chart: balanced error, and error of groups of classes, at the slider's τ.",
            {"title": {"text": "classes by training examples"}},
            _percent("error"),
            height=360,
            barmode="overlay",
            bargap=0.3,
        ),
        _chart(
            "chart-slider-classes",
            by_class,
            f"Bar chart: error of each {axis.each} at the slider's τ, most frequent first.",
            axis.ticks(),
            _percent("error"),
            height=360,
            barmode="overlay",
            bargap=0.2 if len(axis.members) <= _DENSE else 0.05,
        ),
    )


def _bars(
    values: dict[str, Any], key: str, places: list[int], x: list[Any], hover: list[str]
) -> list[dict[str, Any]]:
    """The bars that the slider moves, and the outline of those without adjustment."""
    zero, now = places
    base = {"x": x, "hovertext": hover}
    moving = {"type": "bar", **base, "y": values[key][now], "marker": {"color": values["color"]}}
    outline: dict[str, Any] = {"type": "bar", **base, "y": values[key][zero]}
    line = {"color": INK, "width": 1.4}
    if len(x) > _DENSE:  # a hundred boxes would hide the bars; one line around them does not
        outline |= {"type": "scatter", "mode": "lines", "line": {**line, "shape": "hvh"}}
    else:
        outline["marker"] = {"color": CLEAR, "line": line}
    moving["hovertemplate"] = "%{hovertext}<br>%{y:.1f}%<extra></extra>"
    outline["hovertemplate"] = "%{hovertext}<br>without adjustment %{y:.1f}%<extra></extra>"
    return [moving, outline]


# ---------------------------------------------------------------------------- for papers


def draw(chart: Chart) -> Any:
    """Return a chart as a matplotlib figure, with all of its methods and its legend beside it."""
    rows = len(chart.legend)
    height = max(chart.layout["height"] / 135, 0.3 + 0.17 * rows)
    drawn: list[Any] = []
    with figures.style():
        figure, grid = figures.panels(height=height)
        axes = grid[0, 0]
        bars = [trace for trace in chart.data if trace["type"] == "bar"]
        for i, trace in enumerate(chart.data):
            if trace["type"] == "bar":
                drawn.append(_draw_bar(axes, trace, bars.index(trace), len(bars)))
            else:
                drawn.append(_draw_line(axes, trace, chart.data[i - 1]))
        # The line at the slider's place means nothing on paper.
        for shape in chart.layout.get("shapes", ()) if chart.id != "chart-tau" else ():
            axes.axvline(shape["x0"], color=shape["line"]["color"], lw=1, ls=":", zorder=0)
        _draw_axis(axes, "x", chart.layout["xaxis"])
        _draw_axis(axes, "y", chart.layout["yaxis"])
        if notes := chart.layout.get("annotations"):
            axes.set_yticks([note["y"] for note in notes], [note["text"] for note in notes])
        if len(bars) > 1:
            axes.set_xticks(range(len(bars[0]["x"])), map(_plain, bars[0]["x"]))
        if rows:
            labels = [item.label for item in chart.legend]
            handles = [drawn[item.traces[-1]] for item in chart.legend]
            place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "handlelength": 3.4}
            axes.legend(handles, labels, **place)
    return figure


def _plain(text: str) -> str:
    return re.sub("<[^>]*>", "", str(text).replace("<br>", "\n"))


def _draw_bar(axes: Any, trace: dict[str, Any], index: int, count: int) -> Any:
    width = 0.8 / count
    places = np.arange(len(trace["x"])) + (index - (count - 1) / 2) * width
    look = trace["marker"]
    hatch = 3 * look.get("pattern", {}).get("shape", "") or None
    return axes.bar(places, trace["y"], 0.9 * width, color=look["color"], hatch=hatch)


def _draw_line(axes: Any, trace: dict[str, Any], before: dict[str, Any]) -> Any:
    x, y = trace["x"], np.array(trace["y"], dtype=float)
    line, look = trace.get("line", {}), trace.get("marker", {})
    if "fill" in trace:
        band = {"color": line["color"], "alpha": 0.18, "lw": 0}
        return axes.fill_between(x, np.array(before["y"], dtype=float), y, **band)
    marked = "markers" in trace["mode"]
    sizes = look.get("size", 8)
    size = 0.5 * (sizes if isinstance(sizes, int) else 8)
    dash = line.get("dash", "solid")
    if "px" in dash:
        lengths = [float(part.removesuffix("px")) / line["width"] for part in dash.split(",")]
        style: Any = (0, lengths)
    else:
        style = {"solid": "-", "dash": "--", "dot": ":"}[dash]
    edge = look.get("line", {})
    (drawn,) = axes.plot(
        x,
        y,
        color=line.get("color", look.get("color")),
        lw=0.65 * line.get("width", 2),
        ls=style if "lines" in trace["mode"] else "",
        marker=_SYMBOLS[look.get("symbol", "circle")] if marked else "",
        ms=size,
        mfc=look.get("color"),
        mec=edge.get("color", look.get("color")),
        mew=0.5 * edge.get("width", 0),
    )
    error = trace.get("error_x")
    if error and any(error["array"] + error["arrayminus"]):
        halves = [error["arrayminus"], error["array"]]
        ends = {
            "fmt": "none",
            "ecolor": error["color"],
            "elinewidth": 0.6 * error["thickness"],
            "capsize": error["width"] / 2,
        }
        axes.errorbar(x, y, xerr=halves, zorder=1, **ends)
    return drawn


def _draw_axis(axes: Any, name: str, axis: dict[str, Any]) -> None:
    percent = " (%)" if axis.get("ticksuffix") == "%" else ""
    set_limits = axes.set_xlim if name == "x" else axes.set_ylim
    set_ticks = axes.set_xticks if name == "x" else axes.set_yticks
    if axis.get("type") == "log":
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        axes.invert_xaxis()
    if "tickvals" in axis:
        labels = [_plain(text) for text in axis["ticktext"]]
        lean = max(map(len, labels)) > 9 and axis.get("tickangle") is None and name == "x"
        lean = lean and axis.get("type") != "log" and "\n" not in labels[0]
        set_ticks(axis["tickvals"], labels, rotation=45 if lean else 0)
    if "range" in axis:
        set_limits(*axis["range"])
    elif axis.get("rangemode") == "tozero":
        axes.set_ylim(bottom=0)
    axes.grid(axis=name, visible=axis.get("showgrid", True))
    if "title" in axis:
        axes.set(**{f"{name}label": axis["title"]["text"] + percent})
