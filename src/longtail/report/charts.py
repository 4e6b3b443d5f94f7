"""Charts as plotly's traces and layout, and the same drawn by matplotlib for papers.

A chart is plain data. The page (`page.html`) adds the common look and makes a legend of the
traces' names; traces of one `legendgroup` share an entry. Errors are in percent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from longtail._checks import FloatArray, IntArray
from longtail.metrics import Reliability
from longtail.priors import ClassPrior
from longtail.report import figures
from longtail.report.compare import Interval
from longtail.report.tables import shortened

# More classes than this are shown in groups of neighbours in frequency; more than DENSE without
# marks on lines and outlines of bars.
MOST_BARS, BINS, DENSE = 200, 20, 40
# Bins of a reliability diagram with fewer predictions than this are left out.
FEWEST = 10

INK, MUTED, PAPER, CLEAR = "#1F2328", "#57606A", "#FFF", "#FFF0"
# Methods of one colour, such as softmax and softmax+drw, differ in dashes and hatches.
DASHES = (
    "solid", "9px,3px", "2px,3px", "11px,3px,2px,3px", "20px,4px", "4px,9px",
    "11px,3px,2px,3px,2px,3px", "20px,3px,7px,3px",
)  # fmt: skip
HATCHES = ("", "/", "x", ".", "-", "\\", "|", "+")
# Plotly's names of markers, and matplotlib's.
SYMBOLS = {
    "circle": "o", "diamond": "D", "square": "s", "triangle-up": "^", "triangle-down": "v",
    "x": "X", "cross": "P", "star": "*",
}  # fmt: skip


class Series(NamedTuple):
    """Appearance of one method in every chart."""

    label: str  # its name for people
    color: str  # hexadecimal
    variant: int = 0  # 0, 1, …: dashes and hatches of methods that share a colour
    shown: bool = True  # drawn at first; the legend's buttons show the others


class Chart(NamedTuple):
    """Plotly's data and layout, and a description for screen readers."""

    id: str
    label: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]


class ClassAxis(NamedTuple):
    """Classes from most to least frequent, or groups of neighbours where there are too many."""

    members: list[IntArray]  # the classes of each bar, in order
    names: list[str]  # of each bar, short
    counts: list[str]  # training examples of each bar's classes: ``114`` or ``500–480``
    each: str  # meaning of a bar: ``class``, or ``group of 100 classes``

    @classmethod
    def of(cls, prior: ClassPrior, class_names: Sequence[str] | None = None) -> ClassAxis:
        """Return the axis of these frequencies; equally frequent classes stay in label order.

        Examples:
            >>> axis = ClassAxis.of(ClassPrior.from_counts([5, 90, 20]), ["a", "b", "c"])
            >>> axis.names, axis.counts
            (['b', 'c', 'a'], ['90', '20', '5'])
        """
        names = list(class_names or map(str, range(prior.num_classes)))
        if prior.counts is None:
            amounts = [f"{100 * share:.3g}%" for share in prior.probs]
        else:
            amounts = [f"{count:,}" for count in prior.counts]
        order = np.argsort(-prior.probs, kind="stable").astype(np.int64)
        if len(order) <= MOST_BARS:
            names, amounts = [names[k] for k in order], [amounts[k] for k in order]
            return cls([*order[:, None]], names, amounts, "class")
        parts = np.array_split(order, BINS)
        counts = ["–".join(dict.fromkeys((amounts[p[0]], amounts[p[-1]]))) for p in parts]
        each = f"group of {len(parts[0]):,} classes"
        return cls(parts, [f"{len(part)} classes" for part in parts], counts, each)

    def mean(self, values: FloatArray) -> FloatArray:
        """Return the mean over each bar's classes of values of shape (…, num_classes)."""
        return np.stack([values[..., part].mean(axis=-1) for part in self.members], axis=-1)

    def ticks(self) -> dict[str, Any]:
        """Return plotly's axis: names and counts where they fit, else some counts on the way."""
        names = shortened(self.names, 12)
        longest = max(map(len, names))
        if len(names) <= 20 and self.each == "class":
            # Leaning names have their counts in the same line, or those lie on the next name.
            between = "<br>" if len(names) * longest <= 100 else ": "
            pairs = zip(names, self.counts, strict=True)
            labels = [f"{escape(name, quote=False)}{between}{count}" for name, count in pairs]
            places, title = list(range(len(names))), "class, and its training examples"
        else:
            places = np.linspace(0, len(names) - 1, 6).round().astype(int).tolist()
            labels = [self.counts[place].partition("–")[0] for place in places[:-1]]
            labels.append(self.counts[-1].rpartition("–")[2])
            title, longest = "training examples of the class", 0
        return {
            "title": {"text": title},
            "tickmode": "array",
            "tickvals": places,
            "ticktext": labels,
            "tickangle": 0 if longest <= 4 else None,
            "autotickangles": [0, -45, -90],
            "ticklabeloverflow": "allow",
            "range": [-0.6, len(names) - 0.4],
        }

    def hover(self) -> list[str]:
        """Return the hover text of each bar."""
        kind = "class " if self.each == "class" else ""
        pairs = zip(self.names, self.counts, strict=True)
        return [f"{kind}{escape(n, quote=False)}, {count} training examples" for n, count in pairs]


class Choice(NamedTuple):
    """A chosen tau (mean, least and greatest over seeds), and the error with it."""

    tau: float
    low: float
    high: float
    error: float


class TauMethod(NamedTuple):
    """One post-hoc method over tau."""

    series: Series
    errors: FloatArray  # of the classes at each tau in percent, shape (seeds, taus, num_classes)
    choices: dict[str, Choice]  # chosen taus to mark, by how they were chosen
    presets: dict[str, float]  # taus of the slider with a button, by name


# ---------------------------------------------------------------------------- parts


def rounded(values: Any, digits: int = 3) -> Any:
    """Return nested lists of rounded numbers for JSON."""
    return np.round(np.asarray(values, dtype=np.float64), digits).tolist()


def _axis(title: str, **settings: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **settings}


def _percent(title: str, **settings: Any) -> dict[str, Any]:
    return _axis(title, rangemode="tozero", ticksuffix="%", **settings)


def _upright(x: float, dash: str, color: str) -> dict[str, Any]:
    line = {"color": color, "width": 1.5, "dash": dash}
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def _bar(x: Iterable[Any], y: FloatArray, color: str, **trace: Any) -> dict[str, Any]:
    return {"type": "bar", "x": list(x), "y": rounded(y), "marker": {"color": color}, **trace}


def _line(
    x: Any, y: Any, color: str, *, width: float = 2.2, dash: str = "solid", **trace: Any
) -> dict[str, Any]:
    look = {"color": color, "width": width, "dash": dash}
    found = {"type": "scatter", "mode": "lines", "x": rounded(x, 6), "y": rounded(y), "line": look}
    return {**found, **trace}


def _lines(
    series: Sequence[Series], x: Any, values: Iterable[FloatArray], hover: str, **trace: Any
) -> list[dict[str, Any]]:
    """Return a line per method: colour, symbol and dash together tell them apart."""
    found = []
    for i, (one, y) in enumerate(zip(series, values, strict=True)):
        line = _line(x, y, one.color, dash=DASHES[one.variant % len(DASHES)], **trace)
        symbol = list(SYMBOLS)[i % len(SYMBOLS)]
        line["marker"] = {"color": one.color, "size": 8, "symbol": symbol}
        line |= {"name": one.label, "visible": one.shown}
        found.append({**line, "hovertemplate": f"{one.label}<br>{hover}<extra></extra>"})
    return found


def _mark(
    x: float, low: float, high: float, y: float, fill: str, edge: str, symbol: str, **trace: Any
) -> dict[str, Any]:
    """Return a single mark with an interval; a circle stands out by thicker lines."""
    round_ = symbol == "circle"
    thick, size = 2.0 if round_ else 1.4, 15 if symbol == "star" else 12
    line = {"color": edge, "width": thick}
    error = {"type": "data", "symmetric": False, "color": edge, "thickness": thick}
    error |= {"arrayminus": rounded([x - low], 6), "array": rounded([high - x], 6)}
    marker = {"symbol": symbol, "size": size, "color": fill, "line": line}
    place = {"x": rounded([x], 6), "y": rounded([y]), "error_x": {**error, "width": 4 - 4 * round_}}
    return {"type": "scatter", "mode": "markers", "marker": marker, **place, **trace}


# ---------------------------------------------------------------------------- charts


def frequencies(axis: ClassAxis, counts: FloatArray) -> Chart:
    """Training examples per class."""
    hover = {"hovertext": axis.hover(), "hovertemplate": "%{hovertext}<extra></extra>"}
    bars = _bar(range(len(axis.members)), axis.mean(counts), figures.GRAY, **hover)
    examples = _axis("training examples", rangemode="tozero")
    layout = {"xaxis": axis.ticks(), "yaxis": examples, "height": 280, "bargap": 0.25}
    return Chart("chart-frequencies", f"Training examples of each {axis.each}", [bars], layout)


def method_errors(
    series: Sequence[Series], intervals: Sequence[Interval], hollow: Sequence[bool]
) -> Chart:
    """Return a dot for each method, with its interval where there is one; oracles hollow."""
    means = np.array([one.mean for one in intervals])
    halves = np.nan_to_num([one.half_width for one in intervals])
    lows, highs = means - halves, means + halves
    traces, names = [], []
    for i, (one, oracle) in enumerate(zip(series, hollow, strict=True)):
        spread = f" ± {halves[i]:.1f}" if halves[i] else ""
        hover = f"{one.label}<br>{means[i]:.1f}{spread}%<extra></extra>"
        place = (means[i], lows[i], highs[i], i, PAPER if oracle else one.color, one.color)
        traces.append(_mark(*place, "circle", hovertemplate=hover))
        font = {"size": 13, "color": MUTED if oracle else INK}
        at = {"x": 0, "xref": "paper", "xanchor": "left", "y": i, "yshift": 19}
        names.append({"text": one.label, "showarrow": False, "font": font, **at})
    room = 0.06 * (highs.max() - lows.min()) or 1.0
    limits = rounded([max(0, lows.min() - room), highs.max() + room])
    layout = {
        "xaxis": _percent("balanced error", showgrid=True, range=limits),
        "yaxis": {"range": [len(names) - 0.6, -0.8], "showticklabels": False, "showgrid": False},
        "height": 46 * len(names) + 60,
        "annotations": names,
        "shapes": [_upright(float(means[0]), "dot", figures.GRAY)],
    }
    return Chart("chart-methods", "Balanced error of each method", traces, layout)


def by_class(
    axis: ClassAxis, series: Sequence[Series], values: FloatArray, *, what: str = "error"
) -> Chart:
    """Return lines of methods over classes, most frequent first; `values` (methods, classes)."""
    places = range(len(axis.members))
    mode, hover = "lines" if len(places) > DENSE else "lines+markers", "%{hovertext}<br>%{y:.1f}%"
    traces = _lines(series, places, axis.mean(values), hover, mode=mode, hovertext=axis.hover())
    layout = {"xaxis": axis.ticks(), "yaxis": _percent(what), "height": 400}
    label = f"{what.capitalize()} of each {axis.each}, most frequent first"
    return Chart("chart-classes" if what == "error" else f"chart-{what}", label, traces, layout)


def group_errors(sizes: dict[str, int], series: Sequence[Series], values: FloatArray) -> Chart:
    """Bars by group of classes; `values` of shape (methods, groups)."""
    names = [f"{name}<br>{n} class{'' if n == 1 else 'es'}" for name, n in sizes.items()]
    traces = []
    for one, y in zip(series, values, strict=True):
        hover = f"{one.label}<br>%{{x}}: %{{y:.1f}}%<extra></extra>"
        bar = _bar(names, y, one.color, name=one.label, visible=one.shown, hovertemplate=hover)
        bar["marker"]["pattern"] = {"shape": HATCHES[one.variant % len(HATCHES)]}
        traces.append(bar)
    examples = _axis("classes by training examples")
    layout = {"xaxis": examples, "yaxis": _percent("error"), "height": 400, "bargap": 0.25}
    label = f"Error of classes with {', '.join(sizes)} training examples"
    return Chart("chart-groups", label, traces, layout)


def calibration(
    series: Sequence[Series], pooled: Sequence[Reliability], eces: Sequence[float]
) -> Chart:
    """Accuracy against confidence: on the diagonal a method is as right as it is sure."""
    diagonal = _line([0, 100], [0, 100], MUTED, width=1.2, dash="dot", hoverinfo="skip")
    some = [found.counts >= FEWEST for found in pooled]
    right = [100 * found.accuracy[kept] for found, kept in zip(pooled, some, strict=True)]
    hover = "sure: %{x:.1f}%<br>right: %{y:.1f}%<br>%{hovertext}"
    traces = _lines(series, (), right, hover, mode="lines+markers")
    for trace, found, kept, ece in zip(traces, pooled, some, eces, strict=True):
        share = found.counts[kept] / found.counts.sum()
        trace["name"] += f", ECE {ece:.1f}%"
        trace["x"] = rounded(100 * found.mean_confidence[kept])
        trace["marker"]["size"] = rounded(5 + 16 * np.sqrt(share), 1)
        trace["hovertext"] = [f"{part:.1%} of predictions" for part in share]
    layout = {
        "xaxis": _percent("confidence of the prediction", range=[0, 103], showgrid=True),
        "yaxis": _percent("how often it is right", range=[0, 103]),
        "height": 420,
    }
    label = "Reliability diagram, with expected calibration errors"
    return Chart("chart-calibration", label, [diagonal, *traces], layout)


def weight_norms(
    axis: ClassAxis, counts: FloatArray, series: Sequence[Series], norms: Sequence[FloatArray]
) -> Chart:
    """Norm of each class's weights against its number of training examples."""
    frequency, means = axis.mean(counts), [axis.mean(values) for values in norms]
    mode = "markers" if len(axis.members) > DENSE else "lines+markers"
    hover = "%{hovertext}<br>norm %{y:.2f}"
    traces = _lines(series, frequency, means, hover, mode=mode, hovertext=axis.hover())
    for trace, values in zip(traces, norms, strict=True):
        if np.ptp(counts) and np.ptp(values):
            r = np.corrcoef(np.log(counts), values)[0, 1]
            trace["name"] += f", r = {r:+.2f}".replace("-", "−")
    low, high = float(frequency.min()), float(frequency.max())
    every = [s * 10**k for k in range(8) for s in ((1, 2, 5) if high / low < 1000 else (1,))]
    places = [place for place in every if low / 1.1 <= place <= high * 1.1] or [low]
    ticks = {"tickvals": places, "ticktext": [f"{place:,.6g}" for place in places]}
    log = {"type": "log", "autorange": "reversed", "showgrid": True, "tickmode": "array"}
    layout = {
        "xaxis": _axis("training examples of the class", **log, **ticks),
        "yaxis": _axis("norm of its weights", rangemode="tozero"),
        "height": 420,
    }
    label = "Norms of the last layer's weights against training examples of the class"
    return Chart("chart-norms", label, traces, layout)


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
    digits, ends = tau_digits(taus), [float(taus[0]), float(taus[-1])]
    curves = np.stack([one.errors.mean(axis=-1) for one in methods])  # (methods, seeds, taus)
    traces: list[dict[str, Any]] = []
    for one, balanced in zip(methods, curves, strict=True):
        color, label = one.series.color, one.series.label
        hidden: dict[str, Any] = {"width": 0, "legendgroup": label, "hoverinfo": "skip"}
        fill: Any = {"fill": "tonexty", "fillcolor": color + "33"}
        hover = f"{label}<br>τ = %{{x:.{digits}f}}: %{{y:.1f}}%<extra></extra>"
        named: dict[str, Any] = {"name": label, "legendgroup": label, "hovertemplate": hover}
        traces += [
            _line(taus, balanced.min(axis=0), color, **hidden),
            _line(taus, balanced.max(axis=0), color, **hidden, **fill),
            _line(taus, balanced.mean(axis=0), color, width=2.8, **named),
        ]
    for how in dict.fromkeys(how for one in methods for how in one.choices):
        symbol = "star" if how.startswith("oracle") else "diamond"
        for one in (one for one in methods if how in one.choices):
            found = one.choices[how]
            tau, low, high = (f"{value:.{digits}f}" for value in found[:3])
            hover = f"{one.series.label}<br>{how}<br>τ = {tau} ({low} to {high})<br>%{{y:.1f}}%"
            named = {"name": how, "legendgroup": how, "hovertemplate": f"{hover}<extra></extra>"}
            traces.append(_mark(*found, one.series.color, INK, symbol, **named))
    for series, error in references:
        hover = f"{series.label}: %{{y:.1f}}%<extra></extra>"
        named = {"width": 1.6, "dash": "8px,5px", "name": series.label, "hovertemplate": hover}
        traces.append(_line(ends, [error] * 2, series.color, **named))
    # Room for the valley: far beyond it every curve climbs to useless errors.
    top, zero = float(curves.max()), int(np.argmin(np.abs(taus)))
    highest = min(1.05 * top, 2.5 * float(curves[:, :, zero].max()) or math.inf, 102.0)
    layout = {
        "xaxis": _axis("τ", range=ends, showgrid=True),
        "yaxis": _percent("balanced error", range=[0, highest]),
        "height": 400,
        "shapes": [_upright(start, "solid", INK)],
    }
    label = f"Balanced error against τ from {ends[0]:g} to {ends[1]:g}"
    return Chart("chart-tau", label, traces, layout)


def slider(
    taus: FloatArray,
    axis: ClassAxis,
    groups: dict[str, IntArray],
    methods: Sequence[TauMethod],
    *,
    start: float,
) -> tuple[dict[str, Any], Chart, Chart]:
    """Return the values for the slider's script, and its two charts, by group and by class.

    The script draws the bars at the slider's tau, and the outline of those without adjustment.
    """

    def place(tau: float) -> int:
        return int(np.argmin(np.abs(taus - tau)))

    values: list[dict[str, Any]] = []
    for one in methods:
        per_class = one.errors.mean(axis=0)
        parts = [per_class, *(per_class[:, k] for k in groups.values())]
        values.append(
            {
                "label": one.series.label,
                "color": one.series.color,
                "classes": rounded(axis.mean(per_class)),
                "groups": rounded(np.stack([part.mean(axis=1) for part in parts], axis=1)),
                "presets": [[name, place(tau)] for name, tau in one.presets.items()],
            }
        )
    digits = tau_digits(taus)
    script = {"taus": rounded(taus, digits + 1), "digits": digits, "methods": values}
    script |= {"unadjusted": place(0.0), "start": place(start)}

    def bars(key: str, x: Sequence[Any], hover: list[str], xaxis: dict[str, Any]) -> Chart:
        told, line = "<br>%{y:.1f}%<extra></extra>", {"color": INK, "width": 1.4}
        found: dict[str, Any] = {"type": "bar", "x": list(x), "y": [], "hovertext": hover}
        moving = {**found, "marker": {}, "hovertemplate": f"%{{hovertext}}{told}"}
        told = told.replace("<br>", "<br>without adjustment ")
        outline = {**found, "marker": {"color": CLEAR, "line": line}}
        outline["hovertemplate"] = f"%{{hovertext}}{told}"
        dense = len(x) > DENSE
        if dense:  # a hundred boxes would hide the bars; one line around them does not
            outline |= {"type": "scatter", "mode": "lines", "line": {**line, "shape": "hvh"}}
        layout = {"xaxis": xaxis, "yaxis": _percent("error"), "height": 360}
        layout |= {"barmode": "overlay", "bargap": 0.05 if dense else 0.25}
        label = f"Error of {key} at the slider's τ, most frequent first"
        return Chart(f"chart-slider-{key}", label, [moving, outline], layout)

    names = ["all classes", *groups]
    of_groups = bars("groups", names, names, _axis("classes by training examples"))
    of_classes = bars("classes", range(len(axis.members)), axis.hover(), axis.ticks())
    return script, of_groups, of_classes


# ---------------------------------------------------------------------------- on paper


def draw(chart: Chart) -> Any:
    """Return a chart as a matplotlib figure, with all of its methods and its legend beside it."""
    names = {trace["name"] for trace in chart.data if "name" in trace}
    bars = [trace for trace in chart.data if trace["type"] == "bar"]
    entries: dict[str, Any] = {}
    height = max(chart.layout["height"] / 135, 0.3 + 0.17 * len(names))
    with figures.style():
        figure, grid = figures.panels(height=height)
        axes = grid[0, 0]
        for i, trace in enumerate(chart.data):
            x, y, look = trace["x"], trace["y"], trace.get("marker", {})
            if trace["type"] == "bar":
                width = 0.8 / len(bars)
                places = np.arange(len(x)) + (i - (len(bars) - 1) / 2) * width
                hatch = {"hatch": 3 * look["pattern"]["shape"], "color": look["color"]}
                drawn = axes.bar(places, y, 0.9 * width, **hatch)
            elif "fill" in trace:
                band = {"color": trace["line"]["color"], "alpha": 0.18, "lw": 0}
                drawn = axes.fill_between(x, chart.data[i - 1]["y"], y, **band)
            else:
                drawn = _draw_line(axes, trace)
            if "name" in trace:
                entries.setdefault(trace["name"], drawn)
        # Without the line at the slider's position.
        for shape in chart.layout.get("shapes", ()) if chart.id != "chart-tau" else ():
            axes.axvline(shape["x0"], color=shape["line"]["color"], lw=1, ls=":", zorder=0)
        for name in "xy":
            _draw_axis(axes, name, chart.layout[f"{name}axis"])
        if notes := chart.layout.get("annotations"):
            axes.set_yticks([note["y"] for note in notes], [note["text"] for note in notes])
        if bars:
            axes.set_xticks(range(len(bars[0]["x"])), map(_plain, bars[0]["x"]))
        if entries:
            place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "handlelength": 3.4}
            axes.legend(list(entries.values()), list(entries), **place)
    return figure


def _plain(text: str) -> str:
    return re.sub("<[^>]*>", "", text.replace("<br>", "\n"))


def _draw_line(axes: Any, trace: dict[str, Any]) -> Any:
    line, look, error = (trace.get(part, {}) for part in ("line", "marker", "error_x"))
    dash: Any = {"solid": "-", "dot": ":"}.get(line.get("dash", "solid"))
    if dash is None:
        dash = (0, [float(part[:-2]) / line["width"] for part in line["dash"].split(",")])
    size, edge = look.get("size", 8), look.get("line", {})
    drawn = axes.errorbar(
        trace["x"],
        trace["y"],
        xerr=[error["arrayminus"], error["array"]] if error else None,
        ecolor=error.get("color"),
        elinewidth=0.6 * error.get("thickness", 1),
        capsize=0.5 * error.get("width", 0),
        color=line.get("color", look.get("color")),
        lw=0.65 * line.get("width", 2),
        ls=dash if "lines" in trace["mode"] else "",
        marker=SYMBOLS[look["symbol"]] if "markers" in trace["mode"] else "",
        ms=4 if isinstance(size, list) else 0.5 * size,
        mfc=look.get("color"),
        mec=edge.get("color", look.get("color")),
        mew=0.5 * edge.get("width", 0),
    )
    return drawn.lines[0]


def _draw_axis(axes: Any, name: str, axis: dict[str, Any]) -> None:
    if axis.get("type") == "log":
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        axes.invert_xaxis()
    if "tickvals" in axis:
        labels = [_plain(text) for text in axis["ticktext"]]
        leaning = axis.get("tickangle", 0) is None and max(map(len, labels)) > 9
        axes.set_xticks(axis["tickvals"], labels, rotation=45 if leaning else 0)
    if "range" in axis:
        axes.set(**{f"{name}lim": axis["range"]})
    elif axis.get("rangemode") == "tozero":
        axes.set_ylim(bottom=0)
    axes.grid(axis=name, visible=axis.get("showgrid", name == "y"))
    unit = " (%)" if axis.get("ticksuffix") else ""
    axes.set(**{f"{name}label": axis.get("title", {"text": ""})["text"] + unit})
