"""Charts as plotly's traces and layout, and the same drawn by matplotlib for papers.

A chart is plain data. The page (`page.html`) adds the common look and makes a legend of the
traces' names; traces of one `legendgroup` share an entry. Errors are in percent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from longtail._checks import FloatArray, IntArray
from longtail.metrics import Reliability
from longtail.priors import ClassPrior
from longtail.report import figures
from longtail.report.compare import Interval
from longtail.report.tables import plural, shortened

# More classes than MOST_BARS are shown in groups of neighbours in frequency, more than DENSE
# without marks on the lines, more than NAMED without their names.
MOST_BARS, BINS, DENSE, NAMED = 200, 20, 40, 20
# Bins of a reliability diagram with fewer predictions than this are left out.
FEWEST = 10

INK, MUTED, PAPER = "#1F2328", "#57606A", "#FFF"
# Methods of one colour, such as softmax and softmax+drw, differ in dashes.
DASHES = (
    "solid", "9px,3px", "2px,3px", "11px,3px,2px,3px", "20px,4px", "4px,9px",
    "11px,3px,2px,3px,2px,3px", "20px,3px,7px,3px",
)  # fmt: skip
SYMBOLS = {"circle": "o", "diamond": "D", "star": "*"}  # plotly's names, and matplotlib's


class Series(NamedTuple):
    """Appearance of one method in every chart."""

    label: str  # its name for people
    color: str  # hexadecimal
    variant: int = 0  # 0, 1, …: dashes and shades of methods that share a colour
    shown: bool = True  # drawn at first; the legend's buttons show the others


class Chart(NamedTuple):
    """Plotly's data and layout, with texts around it."""

    id: str
    label: str  # for screen readers
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    caption: str = ""
    half: bool = False  # takes half of the page's width


class ClassAxis(NamedTuple):
    """Classes from most to least frequent, or groups of neighbours where there are too many."""

    members: list[IntArray]  # the classes of each place, in order
    names: list[str]  # of each place, short
    counts: list[str]  # training examples of each place's classes: ``114`` or ``500–480``
    each: str  # meaning of a place: ``class``, or ``group of 100 classes``
    groups: dict[str, IntArray]  # classes by training examples: many, medium, few

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
        groups = {} if prior.counts is None else prior.groups()
        groups = {name: classes for name, classes in groups.items() if len(classes)}
        order = np.argsort(-prior.probs, kind="stable").astype(np.int64)
        if len(order) <= MOST_BARS:
            names, amounts = [names[k] for k in order], [amounts[k] for k in order]
            return cls([*order[:, None]], names, amounts, "class", groups)
        parts = np.array_split(order, BINS)
        counts = ["–".join(dict.fromkeys((amounts[p[0]], amounts[p[-1]]))) for p in parts]
        each = f"group of {len(parts[0]):,} classes"
        return cls(parts, [f"{len(part)} classes" for part in parts], counts, each, groups)

    def mean(self, values: FloatArray) -> FloatArray:
        """Return the mean over each place's classes of values of shape (…, num_classes)."""
        return np.stack([values[..., part].mean(axis=-1) for part in self.members], axis=-1)

    def ticks(self) -> dict[str, Any]:
        """Return plotly's axis: names and counts where they fit, else some counts on the way."""
        title = "class, and its training examples"
        places = list(range(len(self.names)))
        if len(places) <= NAMED and self.each == "class":
            pairs = zip(shortened(self.names, 12), self.counts, strict=True)
            labels = [f"{escape(name, quote=False)}: {count}" for name, count in pairs]
        else:
            title = "training examples of the class"
            places = np.linspace(0, len(self.names) - 1, 6).round().astype(int).tolist()
            labels = [self.counts[place].partition("–")[0] for place in places[:-1]]
            labels.append(self.counts[-1].rpartition("–")[2])
        return {
            "title": {"text": title},
            "tickmode": "array",
            "tickvals": places,
            "ticktext": labels,
            "tickangle": -45 if sum(map(len, labels)) > 40 else 0,
            "ticklabeloverflow": "allow",
            "range": [-0.6, len(self.names) - 0.4],
        }

    def hover(self) -> list[str]:
        """Return the hover text of each place."""
        kind = "class " if self.each == "class" else ""
        pairs = zip(self.names, self.counts, strict=True)
        return [f"{kind}{escape(n, quote=False)}, {count} training examples" for n, count in pairs]


class TauMethod(NamedTuple):
    """One post-hoc method over tau."""

    series: Series
    errors: FloatArray  # of the classes at each tau in percent, shape (seeds, taus, num_classes)
    # By how they were chosen: a tau to mark, those of the seeds or folds, and the error.
    choices: dict[str, tuple[float, FloatArray, float]]


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


def _hover(*lines: str) -> dict[str, Any]:
    return {"hovertemplate": f"{'<br>'.join(lines)}<extra></extra>"}


def _line(
    x: Any, y: Any, color: str, *, width: float = 2.2, dash: str = "solid", **trace: Any
) -> dict[str, Any]:
    look = {"color": color, "width": width, "dash": dash}
    found = {"type": "scatter", "mode": "lines", "x": rounded(x, 6), "y": rounded(y), "line": look}
    return {**found, **trace}


def _method_line(one: Series, x: Any, y: Any, *hover: str, **trace: Any) -> dict[str, Any]:
    """Return a method's line, with marks if the mode has them."""
    look = {"dash": DASHES[one.variant % len(DASHES)], "marker": {"color": one.color, "size": 8}}
    named = {"name": one.label, "visible": one.shown, **_hover(one.label, *hover)}
    return _line(x, y, one.color, **{**look, **named, **trace})


def _mark(
    x: float, span: FloatArray, y: float, fill: str, edge: str, symbol: str, **trace: Any
) -> dict[str, Any]:
    """Return a single mark with a line over its span."""
    width = 2.0 if symbol == "circle" else 1.4
    error = {"type": "data", "symmetric": False, "color": edge, "thickness": width, "width": 0}
    error |= {"arrayminus": rounded([x - span.min()], 6), "array": rounded([span.max() - x], 6)}
    line = {"color": edge, "width": width}
    marker = {"symbol": symbol, "size": 15 if symbol == "star" else 12, "color": fill, "line": line}
    place = {"x": rounded([x], 6), "y": rounded([y]), "error_x": error}
    return {"type": "scatter", "mode": "markers", "marker": marker, **place, **trace}


# ---------------------------------------------------------------------------- charts


def frequencies(axis: ClassAxis, counts: FloatArray) -> Chart:
    """Training examples per class."""
    places, heights = list(range(len(axis.members))), rounded(axis.mean(counts))
    bars = {"type": "bar", "x": places, "y": heights, "marker": {"color": figures.GRAY}}
    bars |= {"hovertext": axis.hover(), **_hover("%{hovertext}")}
    examples = _axis("training examples", rangemode="tozero", nticks=5)
    layout = {"xaxis": axis.ticks(), "yaxis": examples, "height": 320, "bargap": 0.25}
    label = f"Training examples of each {axis.each}"
    return Chart("chart-frequencies", label, [bars], layout, f"{label}.", half=True)


def method_errors(
    series: Sequence[Series], intervals: Sequence[Interval], hollow: Sequence[bool]
) -> Chart:
    """Return a dot for each method, with its interval where there is one; oracles hollow."""
    halves = np.nan_to_num([one.half_width for one in intervals])
    ends = np.array([one.mean for one in intervals])[:, None] + np.outer(halves, [-1, 1])
    traces, names = [], []
    for i, (one, oracle) in enumerate(zip(series, hollow, strict=True)):
        error = f"%{{x:.1f}}{f' ± {halves[i]:.1f}' if halves[i] else ''}%"
        look = (i, PAPER if oracle else one.color, one.color, "circle")
        traces.append(_mark(intervals[i].mean, ends[i], *look, **_hover(one.label, error)))
        font = {"size": 13, "color": MUTED if oracle else INK}
        at = {"x": 0, "xref": "paper", "xanchor": "left", "y": i, "yshift": 19}
        names.append({"text": one.label, "showarrow": False, "font": font, **at})
    room = 0.06 * np.ptp(ends) or 1.0
    limits = rounded([max(0, ends.min() - room), ends.max() + room])
    layout = {
        "xaxis": _percent("balanced error", showgrid=True, range=limits),
        "yaxis": {"range": [len(names) - 0.6, -0.8], "showticklabels": False, "showgrid": False},
        "height": 46 * len(names) + 60,
        "annotations": names,
        "shapes": [_upright(float(intervals[0].mean), "dot", figures.GRAY)],
    }
    caption = (
        "Dots: means over seeds, with 95% intervals from three seeds on; dotted: the first method; "
        "hollow: oracle."
    )
    return Chart("chart-errors", "Balanced error of each method", traces, layout, caption)


def by_class(
    id: str,
    axis: ClassAxis,
    series: Sequence[Series],
    values: FloatArray,
    *,
    what: str = "error",
    unit: str = "%",
    caption: str = "",
) -> Chart:
    """Return lines of methods over classes, most frequent first; `values` (methods, classes)."""
    places, hover = range(len(axis.members)), axis.hover()
    mode = "lines" if len(places) > DENSE else "lines+markers"
    traces = [
        _method_line(one, places, y, "%{hovertext}", "%{y:.4g}" + unit, mode=mode, hovertext=hover)
        for one, y in zip(series, axis.mean(values), strict=True)
    ]
    yaxis = _axis(what, rangemode="tozero", ticksuffix=unit)
    layout = {"xaxis": axis.ticks(), "yaxis": yaxis, "height": 400}
    label = f"{what.capitalize()} of each {axis.each}, most frequent first"
    return Chart(id, label, traces, layout, caption)


def group_errors(axis: ClassAxis, series: Sequence[Series], values: FloatArray) -> Chart:
    """Bars by group of classes; `values` of shape (methods, classes)."""
    groups = axis.groups.items()
    names = [f"{name}<br>{plural(len(classes), 'class', 'classes')}" for name, classes in groups]
    means = np.stack([values[:, classes].mean(axis=1) for _, classes in groups], axis=1)
    traces = []
    for one, y in zip(series, means, strict=True):
        marker = {"color": one.color, "opacity": rounded(0.6**one.variant)}
        bars = {"type": "bar", "x": names, "y": rounded(y), "marker": marker, "name": one.label}
        traces.append({**bars, "visible": one.shown, **_hover(one.label, "%{x}: %{y:.1f}%")})
    examples = _axis("classes by training examples")
    layout = {"xaxis": examples, "yaxis": _percent("error"), "height": 400, "bargap": 0.25}
    label = f"Error of classes with {', '.join(axis.groups)} training examples"
    return Chart("chart-groups", label, traces, layout, "Means over the classes.")


def calibration(
    series: Sequence[Series], pooled: Sequence[Reliability], eces: Sequence[float]
) -> Chart:
    """Accuracy against confidence: on the diagonal a method is as right as it is sure."""
    traces = [_line([0, 100], [0, 100], MUTED, width=1.2, dash="dot", hoverinfo="skip")]
    hover = ("sure: %{x:.1f}%", "right: %{y:.1f}%", "%{hovertext}")
    for one, found, ece in zip(series, pooled, eces, strict=True):
        some = found.counts >= FEWEST
        sure, right = 100 * found.mean_confidence[some], 100 * found.accuracy[some]
        shares = [f"{n / found.counts.sum():.1%} of predictions" for n in found.counts[some]]
        line = _method_line(one, sure, right, *hover, mode="lines+markers", hovertext=shares)
        traces.append({**line, "name": f"{one.label}, ECE {ece:.1f}%"})
    layout = {
        "xaxis": _percent("confidence of the prediction", range=[0, 103], showgrid=True),
        "yaxis": _percent("how often it is right", range=[0, 103]),
        "height": 420,
    }
    label = "Reliability diagram, with expected calibration errors"
    caption = (
        f"15 bins, seeds together, those with fewer than {FEWEST} predictions left out. ECE: "
        "expected calibration error, mean over seeds."
    )
    return Chart("chart-reliability", label, traces, layout, caption)


def tau_curves(
    taus: FloatArray,
    methods: Sequence[TauMethod],
    references: Sequence[tuple[Series, float]] = (),
    *,
    start: float,
) -> Chart:
    """Balanced error against tau; the first shape is the line that the slider moves."""
    ends = [float(taus[0]), float(taus[-1])]
    curves = np.stack([one.errors.mean(axis=-1) for one in methods])  # (methods, seeds, taus)
    there_and_back = np.concatenate([taus, taus[::-1]])
    traces: list[dict[str, Any]] = []
    for one, balanced in zip(methods, curves, strict=True):
        color, label = one.series.color, one.series.label
        band = np.concatenate([balanced.min(axis=0), balanced.max(axis=0)[::-1]])
        look: dict[str, Any] = {"width": 0, "fill": "toself", "fillcolor": color + "33"}
        traces += [
            _line(there_and_back, band, color, legendgroup=label, hoverinfo="skip", **look),
            _line(taus, balanced.mean(axis=0), color, width=2.8, name=label, legendgroup=label)
            | _hover(label, "τ = %{x:.3~g}: %{y:.1f}%"),
        ]
    for how in dict.fromkeys(how for one in methods for how in one.choices):
        symbol = "star" if how.startswith("oracle") else "diamond"
        for one in (one for one in methods if how in one.choices):
            tau, used, error = one.choices[how]
            span = f"τ = {tau:.3g} ({used.min():.3g} to {used.max():.3g})"
            look = {"name": how, "legendgroup": how}
            look |= _hover(one.series.label, how, span, "%{y:.1f}%")
            traces.append(_mark(tau, used, error, one.series.color, INK, symbol, **look))
    for series, error in references:
        look = {"width": 1.6, "dash": "8px,5px", "name": series.label}
        look |= _hover(f"{series.label}: %{{y:.1f}}%")
        traces.append(_line(ends, [error] * 2, series.color, **look))
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
    return Chart("chart-tau", label, traces, layout, "Upright: where the slider stands.")


def slider(
    taus: FloatArray,
    axis: ClassAxis,
    methods: Sequence[TauMethod],
    *,
    start: float,
) -> tuple[dict[str, Any], Chart, Chart]:
    """Return the values for the slider's script, and its two charts, by group and by class.

    The script draws the bars at the slider's tau, and a mark at each one's height without
    adjustment.
    """

    def place(tau: float) -> int:
        return int(np.argmin(np.abs(taus - tau)))

    values: list[dict[str, Any]] = []
    for one in methods:
        per_class = one.errors.mean(axis=0)
        parts = [per_class, *(per_class[:, k] for k in axis.groups.values())]
        presets = {"no adjustment": 0.0, "theory": 1.0}
        presets = {name: tau for name, tau in presets.items() if taus[0] <= tau <= taus[-1]}
        presets |= {how: tau for how, (tau, *_) in one.choices.items()}
        values.append(
            {
                "label": one.series.label,
                "color": one.series.color,
                "classes": rounded(axis.mean(per_class)),
                "groups": rounded(np.stack([part.mean(axis=1) for part in parts], axis=1)),
                "presets": [[name, place(tau)] for name, tau in presets.items()],
            }
        )
    script = {"taus": rounded(taus, 6), "methods": values}
    script |= {"unadjusted": place(0.0), "start": place(start)}

    def bars(key: str, x: Sequence[Any], hover: list[str], xaxis: dict[str, Any]) -> Chart:
        told = {"x": list(x), "y": [], "hovertext": hover}
        moving = {"type": "bar", "marker": {}, **told, **_hover("%{hovertext}", "%{y:.1f}%")}
        dash = {"symbol": "line-ew-open", "size": max(3, 160 // len(x)), "color": INK}
        before = {"type": "scatter", "mode": "markers", "marker": {**dash, "line": {"width": 2}}}
        before |= {**told, **_hover("%{hovertext}", "without adjustment %{y:.1f}%")}
        layout = {"xaxis": xaxis, "yaxis": _percent("error"), "height": 360, "bargap": 0.25}
        label = f"Error of {key} at the slider's τ, most frequent first"
        caption = f"Error of {key}. Dashes: τ = 0, no adjustment."
        return Chart(f"chart-slider-{key}", label, [moving, before], layout, caption, half=True)

    names = ["all classes", *axis.groups]
    of_groups = bars("groups", names, names, _axis("classes by training examples"))
    of_classes = bars("classes", range(len(axis.members)), axis.hover(), axis.ticks())
    return script, of_groups, of_classes


# ---------------------------------------------------------------------------- on paper


def draw(chart: Chart) -> Any:
    """Return a chart as a matplotlib figure, with all of its methods and its legend beside it."""
    layout, bars = chart.layout, [trace for trace in chart.data if trace["type"] == "bar"]
    names = {trace["name"] for trace in chart.data if "name" in trace}
    with figures.style():
        figure, grid = figures.panels(height=max(layout["height"] / 135, 0.3 + 0.17 * len(names)))
        axes = grid[0, 0]
        for trace in chart.data:
            if "fill" in trace:
                axes.fill(trace["x"], trace["y"], trace["line"]["color"], alpha=0.18, lw=0)
            elif trace["type"] == "scatter":
                _draw_line(axes, trace)
        for i, trace in enumerate(bars):
            width, look = 0.8 / len(bars), trace["marker"]
            places = np.arange(len(trace["x"])) + (i - (len(bars) - 1) / 2) * width
            look = {"color": look["color"], "alpha": look["opacity"], "label": trace["name"]}
            axes.bar(places, trace["y"], 0.9 * width, **look)
        # Without the line at the slider's position.
        for shape in layout.get("shapes", ()) if chart.id != "chart-tau" else ():
            axes.axvline(shape["x0"], color=shape["line"]["color"], lw=1, ls=":", zorder=0)
        for name in "xy":
            _draw_axis(axes, name, layout[f"{name}axis"])
        if notes := layout.get("annotations"):
            axes.set_yticks([note["y"] for note in notes], [note["text"] for note in notes])
        if bars:
            axes.set_xticks(range(len(bars[0]["x"])), map(_plain, bars[0]["x"]))
        handles, labels = axes.get_legend_handles_labels()
        if entries := {name: handles[labels.index(name)] for name in labels}:
            place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "handlelength": 3.4}
            axes.legend(list(entries.values()), list(entries), **place)
    return figure


def _plain(text: str) -> str:
    return re.sub("<[^>]*>", "", text.replace("<br>", "\n"))


def _draw_line(axes: Any, trace: dict[str, Any]) -> None:
    line, look, error = (trace.get(part, {}) for part in ("line", "marker", "error_x"))
    dash: Any = {"solid": "-", "dot": ":"}.get(line.get("dash", "solid"))
    if dash is None:
        dash = (0, [float(part[:-2]) / line["width"] for part in line["dash"].split(",")])
    if error:
        reach = [error["arrayminus"], error["array"]]
        axes.errorbar(trace["x"], trace["y"], xerr=reach, fmt="none", ecolor=error["color"], lw=1)
    axes.plot(
        trace["x"],
        trace["y"],
        color=line.get("color", look.get("color")),
        lw=0.65 * line.get("width", 2),
        ls=dash if "lines" in trace["mode"] else "",
        marker=SYMBOLS[look.get("symbol", "circle")] if "markers" in trace["mode"] else "",
        ms=0.5 * look.get("size", 8),
        mec=look.get("line", look).get("color"),
        label=trace.get("name"),
    )


def _draw_axis(axes: Any, name: str, axis: dict[str, Any]) -> None:
    if "tickvals" in axis:
        labels = [_plain(text) for text in axis["ticktext"]]
        axes.set_xticks(axis["tickvals"], labels, rotation=-axis["tickangle"])
    if "range" in axis:
        axes.set(**{f"{name}lim": axis["range"]})
    elif axis.get("rangemode") == "tozero":
        axes.set_ylim(bottom=0)
    axes.grid(axis=name, visible=axis.get("showgrid", name == "y"))
    unit = " (%)" if axis.get("ticksuffix") else ""
    axes.set(**{f"{name}label": axis.get("title", {"text": ""})["text"] + unit})
