"""Self-contained HTML pages: about runs of one data set, and about adjusted predictions.

A page is a list of sections of texts, tables and charts, in one file with plotly, data, style and
script inside (`page.html`). Both pages share the sections about tau and about errors by class.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

import longtail
from longtail import _checks
from longtail._checks import FloatArray
from longtail.conformal import PredictionSets
from longtail.predictions import AdjustResult
from longtail.priors import ClassPrior
from longtail.report import adjusting, charts, figures
from longtail.report.charts import Chart, ClassAxis, Series, TauMethod
from longtail.report.compare import (
    ADJUSTED,
    SOURCES,
    Comparison,
    Row,
    mean_interval,
    summary,
    tables,
)
from longtail.report.tables import GROUP_BOUNDS, Table
from longtail.runs import files
from longtail.tuning import TauCurve

STEPS = 80  # of the curves over tau and of the slider
# The charts that are drawn for papers too, by the names of their files.
FIGURES = ("errors", "tau", "per-class", "groups", "reliability", "weight-norms")


@dataclass
class Page:
    """A page: its heading, first paragraphs and sections, and values for the slider's script."""

    title: str
    lead: Sequence[str]
    # Id, heading, and what is below it: HTML and charts.
    sections: list[tuple[str, str, tuple[str | Chart, ...]]] = field(default_factory=list)
    slider: dict[str, Any] | None = None

    def add(self, id: str, heading: str, *parts: str | Chart) -> None:
        """Add a section."""
        self.sections.append((id, heading, parts))

    @property
    def charts(self) -> dict[str, Chart]:
        """All charts, by their ids."""
        every = [part for *_, parts in self.sections for part in parts]
        return {part.id: part for part in every if isinstance(part, Chart)}

    def render(self) -> str:
        """Return the whole document; equal pages give equal text."""
        plotly = _checks.require("plotly.offline", extra="report")
        drawn = {one.id: {"data": one.data, "layout": one.layout} for one in self.charts.values()}
        data = {"charts": drawn, "slider": self.slider}
        # JSON that may stand inside a script element, whatever names the classes have.
        text = json.dumps(data, sort_keys=True, allow_nan=False, separators=(",", ":"))
        text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
        parts: dict[str, Iterable[str]] = {
            "title": [escape(self.title)],
            "version": [longtail.__version__],
            "lead": [f'<p class="lead">{escape(sentence)}</p>' for sentence in self.lead],
            "nav": [f'<a href="#{id}">{escape(heading)}</a>' for id, heading, _ in self.sections],
            "sections": (
                f'<section id="{id}"><h2>{escape(heading)}</h2>{"".join(map(_html, parts))}'
                "</section>"
                for id, heading, parts in self.sections
            ),
            "data": [text],
            "plotly": [plotly.get_plotlyjs()],
        }
        document = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
        for place, lines in parts.items():
            document = document.replace(f"<!--{place}-->", "\n".join(lines))
        return document

    def write(self, path: str | Path) -> Path:
        """Write the page, making its folder, and return the path."""
        path, text = Path(path), self.render()
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_bytes(path, text.encode())
        return path

    def write_figures(self, folder: str | Path) -> list[Path]:
        """Write the charts of `FIGURES` that are there as SVG and PNG for papers."""
        paths: list[Path] = []
        for stem in FIGURES:
            if chart := self.charts.get(f"chart-{stem}"):
                paths += figures.save(charts.draw(chart), Path(folder) / stem, title=chart.label)
        return paths


# ---------------------------------------------------------------------------- HTML


def _html(part: str | Chart) -> str:
    """Return HTML as it is, and the frame of a chart, which the page's script fills."""
    if isinstance(part, str):
        return part
    half = ' class="half"' if part.half else ""
    return (
        f'<figure{half}><div class="legend"></div><div class="chart" id="{part.id}" role="img" '
        f'aria-label="{escape(part.label)}" style="min-height: {part.layout["height"]}px"></div>'
        f"<figcaption>{escape(part.caption)}</figcaption></figure>"
    )


def text(words: str) -> str:
    """Return a paragraph as HTML."""
    return f"<p>{escape(words)}</p>"


def folded(summary: str, content: str) -> str:
    """Return HTML that a click on its summary unfolds."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def facts(items: dict[str, str]) -> str:
    """Return names and values as HTML; those without a value are left out."""
    shown = (f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in items.items() if v)
    return f'<dl class="half">{"".join(shown)}</dl>'


def commands(lines: Iterable[str]) -> str:
    """Return commands as HTML."""
    return f'<pre tabindex="0"><code>{escape(chr(10).join(lines))}</code></pre>'


def table(shown: Table) -> str:
    """Return a table as HTML, with its title above and its note below."""
    rows = (
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        for name, *cells in shown.rows
    )
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in shown.header)
    title = escape(shown.title)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{title}"><table>'
        f"<caption>{title}</caption><thead><tr>{head}</tr></thead>"
        f'<tbody>{"".join(rows)}</tbody></table></div><p class="note">{escape(shown.note)}</p>'
    )


# ---------------------------------------------------------------------------- both pages


def _add_tau(
    page: Page,
    axis: ClassAxis,
    taus: FloatArray,
    methods: Sequence[TauMethod],
    references: Sequence[tuple[Series, float]] = (),
    *,
    words: str,
    start: float,
) -> None:
    """Add the section about tau: the curve, and the slider with its two charts."""
    curves = charts.tau_curves(taus, methods, references, start=start)
    page.slider, *bars = charts.slider(taus, axis, methods, start=start)
    knob = (
        f'<div id="methods"></div><div id="presets" class="legend"></div>'
        f'<div class="knob"><label for="tau-knob">τ</label><input type="range" id="tau-knob" '
        f'min="0" max="{len(taus) - 1}" value="{page.slider["start"]}" aria-describedby="tau-says">'
        f'<output id="tau-value"></output><p id="tau-says" aria-live="polite"></p></div>'
    )
    words += " Move the slider and watch common classes pay for rare ones."
    page.add("tau", "What τ does", text(words), curves, knob, *bars)


def _add_errors(page: Page, axis: ClassAxis, series: Sequence[Series], values: FloatArray) -> None:
    """Add the sections about errors by class and group; `values` (methods, classes)."""
    named = zip(axis.names, axis.counts, axis.mean(values).T, strict=True)
    rows = [(name, count, *(f"{value:.1f}" for value in of)) for name, count, of in named]
    header = ("class", "training examples", *(one.label for one in series))
    words = "Classes stand in order of frequency; a click on a name shows or hides its line."
    title = f"Error of each {axis.each}"
    by_class = charts.by_class("chart-per-class", axis, series, values, caption=f"{title}.")
    numbers = folded("The numbers", table(Table(f"{title} in percent", header, rows)))
    page.add("classes", title, text(words), by_class, numbers)
    if axis.groups:
        words = "The same errors, averaged over groups of classes by training examples: "
        words += ", ".join(f"{name} {bound}" for name, bound in GROUP_BOUNDS.items())
        by_group = charts.group_errors(axis, series, values)
        page.add("groups", "Many, medium, few", text(f"{words}."), by_group)


def tau_grid(marks: Sequence[float], steps: int = STEPS) -> FloatArray:
    """Return taus from 0 to 4, or a quarter beyond the marks, with the marks, 0 and 1 among them.

    Logits of a small scale, such as cosines, have small taus; the grid then ends at four times
    the largest mark.

    Examples:
        >>> tau_grid([1.3], 4)
        array([0. , 1. , 1.3, 2. , 3. , 4. ])
        >>> tau_grid([0.02], 4)
        array([0.  , 0.02, 0.04, 0.06, 0.08])
    """
    low, high = min(0.0, *marks), max(0.0, *marks)
    if 0 < max(-low, high) < 0.4:
        low, high = 4 * low, 4 * high
    else:
        low, high = 1.25 * low, 4.0 if high <= 4 else 1.25 * high
    inside = [mark for mark in (0.0, 1.0, *marks) if mark <= high]
    return np.union1d(np.linspace(low, high, steps + 1), inside)


def errors_at(taus: FloatArray, curves: Iterable[TauCurve]) -> FloatArray:
    """Return each class's error in percent, shape (curves, taus, num_classes)."""
    return 100 * np.array([[curve.per_class(float(tau)) for tau in taus] for curve in curves])


# ---------------------------------------------------------------------------- runs


def runs_page(
    comparison: Comparison, *, title: str | None = None, command: str | None = None
) -> Page:
    """Return the page about runs of one data set.

    Args:
        comparison: of the runs, from `compare`.
        title: heading of the page; from the data's name if absent.
        command: command line that makes the page again.
    """
    first, prior = comparison.runs[0], comparison.runs[0].prior
    page = Page(
        title or f"Long-tailed classification on {first.spec.dataset.name}", summary(comparison)
    )
    axis = ClassAxis.of(prior, first.class_names)
    counts = np.asarray(prior.probs if prior.counts is None else prior.counts, dtype=np.float64)
    words = (
        f"The training set has {prior.num_classes:,} classes; the most frequent has "
        f"{prior.imbalance_ratio:,.0f} times as many examples as the rarest "
        f"({counts.max():,.6g} against {counts.min():,.6g})."
    )
    shown = (text(words), facts(_facts(comparison)), charts.frequencies(axis, counts))
    page.add("trained", "What was trained on what", *shown)
    errors = charts.method_errors(
        series_of(comparison.rows, comparison),
        [mean_interval(100 * row.errors) for row in comparison.rows],
        [row.tau_source == "oracle" for row in comparison.rows],
    )
    words = (
        "The balanced error of every method, lower being better. The best one is picked here by "
        "the very error shown, so its lead is flattered a little; the intervals are each "
        "method's own."
    )
    page.add("results", "Results", text(words), errors, *map(table, tables(comparison)))
    if comparison.curves:
        _add_runs_tau(page, axis, comparison)
    rows = shown_rows(comparison)
    series, values = series_of(rows, comparison), 100 * np.array([row.per_class for row in rows])
    _add_errors(page, axis, series, values)

    bins = [[result.reliability for result in row.results] for row in rows]
    pooled = [sum(of_seed[1:], of_seed[0]) for of_seed in bins]
    eces = [100 * float(np.mean([one.ece for one in of_seed])) for of_seed in bins]
    words = (
        f"Predictions on the {comparison.split} set, sorted by how sure the model was of them. "
        "On the diagonal it is right as often as it says; below, it is overconfident."
    )
    chart = charts.calibration(series, pooled, eces)
    page.add("calibration", "Can its confidence be trusted?", text(words), chart)
    if comparison.held_out:
        _add_sets(page, axis, comparison)
    rows = [row for row in rows if not row.tau_source and all(run.head for run in row.runs)]
    if rows:
        _add_norms(page, axis, rows, comparison)
    _add_commands(page, comparison, command)
    return page


def _facts(comparison: Comparison) -> dict[str, str]:
    """Return facts about the data, the models and their training."""
    runs = [*comparison.runs, *comparison.held_out.values()]
    prior, data = runs[0].prior, runs[0].spec.dataset
    asked = {"profile": data.profile, "ratio": data.imbalance_ratio, **data.settings}
    total = 0 if prior.counts is None else int(prior.counts.sum())
    judged = np.bincount(comparison.target, minlength=prior.num_classes)
    each = "–".join(dict.fromkeys(f"{n}" for n in (judged.min(), judged.max())))
    seconds = sum(run.record["seconds"] or 0.0 for run in runs)
    several = {
        "Model": [_words(run.spec.model.settings, run.spec.model.name) for run in runs],
        "Recipe": [_words(run.spec.recipe.values, run.spec.recipe.name) for run in runs],
        "Other settings": [_words(run.spec.settings) for run in runs],
        "Data fingerprint": [runs[0].data[:16]],
        "Device": [run.record["device"] for run in runs],
        "Versions": [_words(run.record["versions"]) for run in runs],
    }
    return {
        "Data": _words(asked, data.name),
        "Trained on": f"{total:,} examples",
        "Judged on": f"{len(comparison.target):,} {comparison.split} examples, {each} per class",
        "Training time": f"{seconds / 60:.1f} minutes in all, {len(runs)} runs",
        **{name: "; ".join(dict.fromkeys(filter(None, of))) for name, of in several.items()},
    }


def _words(settings: Any, name: str = "") -> str:
    """Return settings as text, in parentheses after a name if there is one."""
    pairs = ", ".join(
        f"{key.replace('_', ' ')} {f'{value:g}' if isinstance(value, float) else value}"
        for key, value in settings.items()
        if value not in (None, "", (), {})
    )
    return f"{name} ({pairs})" if name and pairs else name or pairs


def shown_rows(comparison: Comparison) -> list[Row]:
    """Return the rows for charts by class: the trained ones, and each post-hoc one once.

    That with a tau from held-out data is preferred to tau = 1, since a user would do the same.
    """
    source = "held-out" if comparison.held_out else "fixed"
    return [row for row in comparison.rows if row.tau_source in (None, source)]


def series_of(rows: Sequence[Row], comparison: Comparison) -> list[Series]:
    """Return the appearance of rows: rows of one colour differ in their variant.

    Softmax, the logit-adjusted ones and the best are drawn at first.
    """
    first = {"softmax", "logit-adjusted", ADJUSTED, comparison.best.method}
    colors = [figures.color(row.method) for row in rows]
    return [
        Series(row.name, color, colors[:i].count(color), row.method in first or len(rows) <= 4)
        for i, (row, color) in enumerate(zip(rows, colors, strict=True))
    ]


def _add_runs_tau(page: Page, axis: ClassAxis, comparison: Comparison) -> None:
    """Add the section about tau of the post-hoc methods."""
    used = [float(row.taus.mean()) for row in comparison.rows if row.taus is not None]
    taus = tau_grid(used)
    methods = []
    for method, curves in comparison.curves.items():
        choices = {
            SOURCES[row.tau_source]: (
                float(row.taus.mean()),
                row.taus,
                100 * float(row.errors.mean()),
            )
            for row in comparison.rows
            if row.method == method and row.taus is not None and row.tau_source != "fixed"
        }
        series = Series(figures.label(method), figures.color(method))
        methods.append(TauMethod(series, errors_at(taus, curves), choices))
    rows = [row for row in comparison.rows if row.method in ("softmax", "logit-adjusted")]
    errors = [100 * float(row.errors.mean()) for row in rows]
    _add_tau(
        page,
        axis,
        taus,
        methods,
        list(zip(series_of(rows, comparison), errors, strict=True)),
        words="Post-hoc methods have one knob, τ. Each curve is exact: it is computed from the "
        "saved logits, example by example, without training anything again. Lines: mean over "
        "seeds; shaded: range over seeds; dashed: trained losses, which have no slider.",
        start=1.0,
    )


def _add_sets(page: Page, axis: ClassAxis, comparison: Comparison) -> None:
    """Add the section about the coverage by class of prediction sets."""
    ways = {
        "softmax score": (PredictionSets(method="marginal", tau=0.0), "softmax"),
        "logit-adjusted score, classes weighing alike": (PredictionSets(), ADJUSTED),
    }
    series, values = [], []
    for label, (sets, method) in ways.items():
        judged = []
        for run in comparison.held_out.values():
            sets.fit(*run.logits("held-out")[:2], run.prior)
            judged.append(sets.evaluate(*run.logits(comparison.split)[:2]))
        macro, size = (np.mean([getattr(j, k) for j in judged]) for k in ("macro", "macro_size"))
        told = f"{label}: {macro:.1%} in the mean, sets of {size:.2f} classes"
        series.append(Series(told, figures.color(method)))
        values.append(100 * np.mean([one.per_class for one in judged], axis=0))
    words = (
        "Sets of classes that are to hold the true one in 90% of cases, by the softmax runs with a "
        "held-out part, which chose the threshold. The usual sets leave rare classes out."
    )
    caption = "Share of each class's examples whose set holds their class, mean over seeds."
    chart = charts.by_class(
        "chart-coverage", axis, series, np.array(values), what="coverage", caption=caption
    )
    page.add("sets", "Sets that cover rare classes", text(words), chart)


def _add_norms(page: Page, axis: ClassAxis, rows: Sequence[Row], comparison: Comparison) -> None:
    """Add the section about the weight norms of trained rows."""
    norms = [np.mean([run.head.norms for run in r.runs if run.head], axis=0) for r in rows]
    words = (
        "Weight normalisation assumes that frequent classes get larger weights in the last layer, "
        "and divides by their norms. Where norms do not follow frequency, it has nothing to "
        "correct."
    )
    chart = charts.by_class(
        "chart-weight-norms",
        axis,
        series_of(rows, comparison),
        np.array(norms),
        what="weight norm",
        unit="",
        caption="Mean over seeds.",
    )
    page.add("norms", "Weight norms", text(words), chart)


def _add_commands(page: Page, comparison: Comparison, command: str | None) -> None:
    """Add the section with the commands that train the runs and make the page."""
    runs = [*comparison.runs, *comparison.held_out.values()]
    typed = dict.fromkeys(run.record.get("command") or "" for run in runs)
    lines = [words for words in typed if words and f"{words} --force" != command]
    words = "What was typed; the last command makes this page."
    if not all(typed):
        words = "Not every run says how it was started; its run.json has its settings."
    title = f"The {len(runs)} runs behind this page"
    rows = [(run.name, f"{run.record['seconds'] or 0:.1f}") for run in runs]
    listed = folded(title, table(Table(title, ("run", "seconds"), rows)))
    shown = commands([*lines, command] if command else lines)
    page.add("again", "How to run it again", text(words), shown, listed)


# ---------------------------------------------------------------------------- predictions


def adjusted_page(result: AdjustResult, *, command: str | None = None) -> Page:
    """Return the page about adjusted predictions.

    Args:
        result: of labelled predictions.
        command: command line that made the result.
    """
    source, prior, tally = result.predictions, result.prior, result.tally
    assert tally is not None  # a page is about labelled predictions
    said = adjusting.summary(result)
    page = Page(f"Adjusted predictions of {Path(source.name).name}", said[2:])
    # Classes with too few examples have no place on the page.
    kept = np.setdiff1d(np.arange(prior.num_classes), result.left_out)
    counts, probs = prior.counts, prior.probs[kept]
    judged = ClassPrior(probs / probs.sum(), None if counts is None else counts[kept])
    axis = ClassAxis.of(judged, [source.label(int(k)) for k in kept])

    ratio = f"{prior.imbalance_ratio:,.4g} times as frequent as the rarest"
    left_out = len(result.left_out)
    read = {
        "File": source.name,
        "Scores": {"logits": "logits", "probs": "probabilities"}[source.kind],
        "Classes": f"{source.num_classes:,}; the most frequent is {ratio}",
        "Judged on": f"{result.num_judged:,} labelled examples",
        "Tau": said[1],
        "Left out": f"{left_out:,} classes without examples enough" if left_out else "",
    }
    shown: list[str | Chart] = [facts(read)]
    if counts is not None:
        shown.append(charts.frequencies(axis, np.asarray(counts[kept], dtype=np.float64)))
    page.add("read", "What was adjusted", *shown)
    words = (
        "Every example was judged with a τ that it had no part in choosing. Differences are "
        "paired by example; an interval that excludes zero is more than chance."
    )
    page.add("results", "Before and after", text(words), *map(table, adjusting.tables(result)))

    curve = result.judged_curve
    used = result.fold_taus if len(result.fold_taus) else np.array([result.tau])
    taus = tau_grid([result.tau, float(curve.minimizer()[0]), *used])
    errors = errors_at(taus, [curve])
    balanced = errors[0].mean(axis=1)
    best = int(np.argmin(balanced))
    assert result.balanced is not None  # of labelled examples
    chosen = "τ given" if result.tuning is None else "τ chosen"
    choices = {
        chosen: (result.tau, used, 100 * result.balanced.after.value),
        "oracle τ": (float(taus[best]), taus[[best]], float(balanced[best])),
    }
    series = [Series(figures.label(ADJUSTED), figures.color(ADJUSTED))]
    _add_tau(
        page,
        axis,
        taus,
        [TauMethod(series[0], errors, choices)],
        words="Each point of the curve is exact: a judged example is right in one interval of τ, "
        "found from its scores.",
        start=result.tau,
    )
    wrong = np.stack([tally.wrong, tally.wrong - tally.fixed + tally.broken])
    looks = {"before": "softmax", "after": ADJUSTED}
    series = [Series(label, figures.color(method)) for label, method in looks.items()]
    _add_errors(page, axis, series, np.asarray(100 * wrong[:, kept] / tally.counts[kept]))
    if command is not None:
        page.add("again", "How to make it again", commands([command]))
    return page
