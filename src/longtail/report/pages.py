"""Self-contained HTML pages: about runs of one data set, and about adjusted predictions.

A page is one file with plotly, its data, style and script inside (`page.html`), made of sections
of text, tables and charts. Both pages share the sections about tau and about errors by class.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

import longtail
from longtail import _checks
from longtail._checks import FloatArray, IntArray
from longtail.conformal import PredictionSets
from longtail.predictions import AdjustResult
from longtail.priors import ClassPrior
from longtail.report import adjusting, charts, figures
from longtail.report.charts import Chart, Choice, ClassAxis, Series, TauMethod
from longtail.report.compare import (
    ADJUSTED,
    Comparison,
    Row,
    bias_note,
    headline,
    mean_interval,
    summary,
)
from longtail.report.tables import GROUP_BOUNDS, Table
from longtail.runs import files
from longtail.tuning import TauCurve

STEPS = 80  # of the curves over tau and of the slider
# The charts that are drawn for papers too, by the names of their files.
FIGURES = {
    "errors": "chart-methods",
    "tau": "chart-tau",
    "per-class": "chart-classes",
    "groups": "chart-groups",
    "reliability": "chart-calibration",
    "weight-norms": "chart-norms",
}


class Page:
    """A page under construction.

    Attributes:
        charts: by their ids, as `figure` adds them.
        slider: values for the slider's script.
        sections: id, heading and HTML.
    """

    def __init__(
        self, title: str, lead: Sequence[str], axis: ClassAxis, groups: dict[str, IntArray]
    ) -> None:
        """Begin a page: its heading, first paragraphs, classes, and groups of classes."""
        self.title, self.lead, self.axis = title, lead, axis
        self.groups = {name: members for name, members in groups.items() if len(members)}
        self.charts: dict[str, Chart] = {}
        self.slider: dict[str, Any] | None = None
        self.sections: list[tuple[str, str, str]] = []

    def section(self, id: str, heading: str, text: str, *blocks: str) -> None:
        """Add a section of a paragraph and blocks of HTML."""
        paragraph = f"<p>{escape(text)}</p>" if text else ""
        self.sections.append((id, heading, "\n".join([paragraph, *blocks])))

    def figure(self, chart: Chart, caption: str) -> str:
        """Return the HTML of a chart, which the page's script draws, with its caption."""
        self.charts[chart.id] = chart
        return (
            f'<figure><div class="legend"></div><div class="chart" id="{chart.id}" role="img" '
            f'aria-label="{escape(chart.label)}" style="min-height: {chart.layout["height"]}px">'
            f"</div><figcaption>{escape(caption)}</figcaption></figure>"
        )

    def frequencies(self, counts: FloatArray, facts: str) -> str:
        """Return the chart of class frequencies beside facts about the data."""
        chart = charts.frequencies(self.axis, counts)
        figure = self.figure(chart, f"Training examples of each {self.axis.each}.")
        return f'<div class="pair"><div>{facts}</div><div>{figure}</div></div>'

    def tau(
        self,
        text: str,
        caption: str,
        taus: FloatArray,
        methods: Sequence[TauMethod],
        references: Sequence[tuple[Series, float]] = (),
        *,
        start: float,
    ) -> None:
        """Add the section about tau: the curve, and the slider with its two charts."""
        curves = charts.tau_curves(taus, methods, references, start=start)
        curve = self.figure(curves, caption)
        self.slider, *bars = charts.slider(taus, self.axis, self.groups, methods, start=start)
        by = ("By group", "By class" if self.axis.each == "class" else "By groups of classes")
        both = (
            self.figure(chart, f"{how}. Outline: τ = 0, no adjustment.")
            for how, chart in zip(by, bars, strict=True)
        )
        slider = (
            f'<div class="slider"><div id="methods"></div>'
            f'<div id="presets" class="legend"></div>'
            f'<div class="knob"><label for="tau-knob">τ</label><input type="range" id="tau-knob" '
            f'min="0" max="{len(taus) - 1}" value="{self.slider["start"]}" '
            f'aria-describedby="tau-says"><output id="tau-value"></output>'
            f'<p id="tau-says" aria-live="polite"></p></div><div class="pair">{"".join(both)}</div>'
            f"</div>"
        )
        self.section("tau", "What τ does", text, curve, slider)

    def errors(
        self, series: Sequence[Series], values: FloatArray, *, bounds: str, note: str = ""
    ) -> None:
        """Add the sections about errors by class and group; `values` (methods, classes)."""
        axis, each = self.axis, self.axis.each
        named = zip(axis.names, axis.counts, axis.mean(values).T, strict=True)
        rows = [(name, count, *(f"{value:.1f}" for value in of)) for name, count, of in named]
        header = ("class", "training examples", *(one.label for one in series))
        numbers = table(Table(f"Error of each {each} in percent", header, rows, note))
        many = f"Each point is the mean of a {each}. " if each != "class" else ""
        self.section(
            "classes",
            f"Error of each {each}",
            f"{many}Classes stand in order of frequency; names in the legend are buttons that "
            "show and hide a line.",
            self.figure(charts.by_class(axis, series, values), "Means, most frequent first."),
            folded("The numbers", numbers),
        )
        if self.groups:
            sizes = {name: len(classes) for name, classes in self.groups.items()}
            means = np.stack([values[:, k].mean(axis=1) for k in self.groups.values()], axis=1)
            self.section(
                "groups",
                "Many, medium, few",
                f"The same errors, averaged over groups of classes by training examples: {bounds}.",
                self.figure(charts.group_errors(sizes, series, means), "Means over the classes."),
            )

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
                f'<section id="{id}"><h2>{escape(heading)}</h2>{content}</section>'
                for id, heading, content in self.sections
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
        for stem, id in FIGURES.items():
            if chart := self.charts.get(id):
                paths += figures.save(charts.draw(chart), Path(folder) / stem, title=chart.label)
        return paths


# ---------------------------------------------------------------------------- HTML


def folded(summary: str, content: str) -> str:
    """Return HTML that a click on its summary unfolds."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def facts(items: dict[str, str]) -> str:
    """Return names and values as HTML; those without a value are left out."""
    shown = (f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in items.items() if v)
    return f"<dl>{''.join(shown)}</dl>"


def commands(lines: Iterable[str]) -> str:
    """Return commands as HTML."""
    return f'<pre tabindex="0"><code>{escape(chr(10).join(lines))}</code></pre>'


def table(
    shown: Table, *, headings: dict[int, str] | None = None, strong: int | None = None
) -> str:
    """Return a table as HTML.

    Args:
        shown: its title goes above it, its note below.
        headings: of the rows from this one on.
        strong: the row that stands out as the best.
    """
    lines = []
    for i, (name, *cells) in enumerate(shown.rows):
        if headings and i in headings:
            lines.append(f'<tr><th colspan="{len(shown.header)}">{escape(headings[i])}</th></tr>')
        best, badge = (' class="strong"', " <small>best</small>") if i == strong else ("", "")
        values = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        lines.append(f'<tr{best}><th scope="row">{escape(name)}{badge}</th>{values}</tr>')
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in shown.header)
    title = escape(shown.title)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{title}"><table>'
        f"<caption>{title}</caption><thead><tr>{head}</tr></thead>"
        f'<tbody>{"".join(lines)}</tbody></table></div><p class="note">{escape(shown.note)}</p>'
    )


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
        title or f"Long-tailed classification on {first.spec.dataset.name}",
        summary(comparison),
        ClassAxis.of(prior, first.class_names),
        prior.groups(),
    )
    counts = np.asarray(prior.probs if prior.counts is None else prior.counts, dtype=np.float64)
    data, training = _facts(comparison)
    page.section(
        "trained",
        "What was trained on what",
        f"The training set has {prior.num_classes:,} classes; the most frequent has "
        f"{prior.imbalance_ratio:,.0f} times as many examples as the rarest "
        f"({counts.max():,.6g} against {counts.min():,.6g}).",
        page.frequencies(counts, facts(data)),
        facts(training),
    )
    page.section(
        "results",
        "Results",
        "The balanced error of every method, lower being better. The best one is picked here by "
        "the very error shown, so its lead is flattered a little; the intervals are each "
        "method's own.",
        page.figure(
            charts.method_errors(
                series_of(comparison.rows, comparison),
                [mean_interval(100 * row.errors) for row in comparison.rows],
                [row.tau_source == "oracle" for row in comparison.rows],
            ),
            "Dots: means over seeds, with 95% intervals from three seeds on; dotted: softmax; "
            "hollow: oracle.",
        ),
        _results_table(comparison),
    )
    if comparison.curves:
        _tau(page, comparison)
    rows = shown_rows(comparison)
    series, values = series_of(rows, comparison), 100 * np.array([row.per_class for row in rows])
    bounds = ", ".join(f"{name} {bound}" for name, bound in GROUP_BOUNDS.items())
    page.errors(series, values, bounds=bounds, note=bias_note(comparison))
    found = [[result.reliability for result in row.results] for row in rows]
    pooled = [sum(of_seed[1:], of_seed[0]) for of_seed in found]
    eces = [100 * float(np.mean([one.ece for one in of_seed])) for of_seed in found]
    page.section(
        "calibration",
        "Can its confidence be trusted?",
        f"Predictions on the {comparison.split} set, sorted by how sure the model was of them. "
        "On the diagonal it is right as often as it says; below, it is overconfident.",
        page.figure(
            charts.calibration(series, pooled, eces),
            f"15 bins, seeds together, those with fewer than {charts.FEWEST} predictions left "
            "out; a larger mark holds more. ECE: expected calibration error, mean over seeds.",
        ),
    )
    _sets(page, comparison)
    rows = [row for row in rows if not row.tau_source and all(run.head for run in row.runs)]
    if rows:
        norms = [np.mean([run.head.norms for run in r.runs if run.head], axis=0) for r in rows]
        page.section(
            "norms",
            "Weight norms",
            "Weight normalisation assumes that frequent classes get larger weights in the last "
            "layer, and divides by their norms. Where norms do not follow frequency, it has "
            "nothing to correct.",
            page.figure(
                charts.weight_norms(page.axis, counts, series_of(rows, comparison), norms),
                "Mean over seeds; r: correlation of the norm with the logarithm of the frequency.",
            ),
        )
    _again(page, comparison, command)
    return page


def _facts(comparison: Comparison) -> tuple[dict[str, str], dict[str, str]]:
    """Return facts about the data and the models, and about their training."""
    runs, both = comparison.runs, [*comparison.runs, *comparison.held_out.values()]
    prior, data = runs[0].prior, runs[0].spec.dataset
    asked = {"profile": data.profile, "ratio": data.imbalance_ratio, **data.settings}
    total = 0 if prior.counts is None else int(prior.counts.sum())
    judged = np.bincount(comparison.target, minlength=prior.num_classes)
    each = "–".join(dict.fromkeys(f"{n}" for n in (judged.min(), judged.max())))
    seeds = sorted({seed for row in comparison.rows for seed in row.seeds})
    parts = {f"{run.spec.dataset.held_out:.0%}" for run in comparison.held_out.values()}
    sizes = (run.record.get("facts", {}).get("parameters") for run in runs)
    seconds = sum(run.record["seconds"] or 0.0 for run in both)
    return {
        "Data": _words(asked, data.name),
        "Trained on": f"{total:,} examples of {prior.num_classes:,} classes",
        "Judged on": f"{len(comparison.target):,} {comparison.split} examples, {each} per class",
        "Model": _unique(_words(run.spec.model.settings, run.spec.model.name) for run in runs),
        "Parameters": _unique(f"{size:,}" for size in sizes if size),
        "Trained with": ", ".join(row.name for row in comparison.rows if not row.tau_source),
        "Seeds": f"{len(seeds)} ({', '.join(map(str, seeds))})",
        "Choice of τ": "".join(
            f"on {part} of each class, held out of a second softmax run per seed" for part in parts
        ),
    }, {
        "Recipe": _unique(_words(run.spec.recipe.values, run.spec.recipe.name) for run in runs),
        "Changed in it": _unique(_words(run.spec.recipe.overrides) for run in runs),
        "Other settings": _unique(_words(run.spec.settings) for run in runs),
        "Data fingerprint": runs[0].data[:16],
        "Device": _unique(run.record["device"] for run in runs),
        "Training time": f"{seconds / 60:.1f} minutes in all, {len(both)} runs",
        "Versions": _unique(_words(run.record["versions"]) for run in runs),
    }


def _words(settings: Any, name: str = "") -> str:
    """Return settings as text, in parentheses after a name if there is one."""
    pairs = ", ".join(
        f"{key.replace('_', ' ')} {f'{value:g}' if isinstance(value, float) else value}"
        for key, value in settings.items()
        if value not in (None, "", (), {})
    )
    return f"{name} ({pairs})" if name and pairs else name or pairs


def _unique(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(value for value in values if value))


def _results_table(comparison: Comparison) -> str:
    """Return the rows in three groups, with the best of the honest ones marked."""
    full, rows = headline(comparison), comparison.rows
    headings = (
        "Trained with",
        "After training, from the softmax model's logits",
        f"Oracle: τ chosen on the {comparison.split} set itself. A bound on what a better choice "
        "of τ could give; nobody has it in use.",
    )
    kinds = [(row.tau_source is not None) + (row.tau_source == "oracle") for row in rows]
    order = sorted(range(len(rows)), key=kinds.__getitem__)
    starts = {sorted(kinds).index(kind): headings[kind] for kind in kinds}
    ordered = Table(full.title, full.header, [full.rows[i] for i in order], full.note)
    return table(ordered, headings=starts, strong=order.index(rows.index(comparison.best)))


def shown_rows(comparison: Comparison) -> list[Row]:
    """Return the rows for charts by class: the trained ones, and each post-hoc one once.

    That with a tau from held-out data is preferred to tau = 1, since a user would do the same.
    """
    chosen = {row.method for row in comparison.rows if row.tau_source == "held-out"}
    return [
        row
        for row in comparison.rows
        if row.tau_source in (None, "held-out" if row.method in chosen else "fixed")
    ]


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


def _tau(page: Page, comparison: Comparison) -> None:
    """Add the section about tau of the post-hoc methods."""
    marks = {
        "held-out": "τ chosen on held-out data",
        "oracle": f"oracle: best τ on the {comparison.split} set",
    }
    used = [float(row.taus.mean()) for row in comparison.rows if row.taus is not None]
    taus = np.union1d(np.linspace(0, 4, STEPS + 1), used)
    methods = []
    for method, of_seed in comparison.curves.items():
        choices, presets = {}, {"no adjustment": 0.0, "theory": 1.0}
        for row in comparison.rows:
            if row.method == method and row.tau_source in marks and row.taus is not None:
                tau, error = float(row.taus.mean()), 100 * float(row.errors.mean())
                ends = float(row.taus.min()), float(row.taus.max())
                choices[marks[row.tau_source]] = Choice(tau, *ends, error)
                presets[row.tau_source] = tau
        series = Series(figures.label(method), figures.color(method))
        methods.append(TauMethod(series, errors_at(taus, of_seed.values()), choices, presets))
    rows = [row for row in comparison.rows if row.method in ("softmax", "logit-adjusted")]
    errors = [100 * float(row.errors.mean()) for row in rows]
    page.tau(
        "Post-hoc methods have one knob, τ. Each curve is exact: it is computed from the saved "
        "logits, example by example, without training anything again. Move the slider and watch "
        "common classes pay for rare ones.",
        "Lines: mean over seeds; shaded: range over seeds; dashed: trained losses, which have no "
        "slider; upright: where the slider stands.",
        taus,
        methods,
        list(zip(series_of(rows, comparison), errors, strict=True)),
        start=1.0,
    )


def errors_at(taus: FloatArray, curves: Iterable[TauCurve]) -> FloatArray:
    """Return each class's error in percent, shape (curves, taus, num_classes)."""
    return 100 * np.array([[curve.per_class(float(tau)) for tau in taus] for curve in curves])


def _sets(page: Page, comparison: Comparison) -> None:
    """Add the coverage by class of prediction sets, of runs with held-out and judged logits."""
    split = comparison.split
    runs = [run for run in comparison.held_out.values() if split in run.splits]
    if not runs:
        return
    ways = {
        "softmax score": (PredictionSets(method="marginal", tau=0.0), "softmax"),
        "logit-adjusted score, classes weighing alike": (PredictionSets(), ADJUSTED),
    }
    series, values = [], []
    for label, (sets, method) in ways.items():
        judged = []
        for run in runs:
            sets.fit(*run.logits("held-out")[:2], run.prior)
            judged.append(sets.evaluate(*run.logits(split)[:2]))
        macro, size = (np.mean([getattr(j, k) for j in judged]) for k in ("macro", "macro_size"))
        told = f"{label}: {macro:.1%} in the mean, sets of {size:.2f} classes"
        series.append(Series(told, figures.color(method)))
        values.append(100 * np.mean([one.per_class for one in judged], axis=0))
    page.section(
        "sets",
        "Sets that cover rare classes",
        "Sets of classes that are to hold the true one in 90% of cases, by the softmax runs with a "
        "held-out part, which chose the threshold. The usual sets leave rare classes out.",
        page.figure(
            charts.by_class(page.axis, series, np.array(values), what="coverage"),
            "Share of each class's examples whose set holds their class, mean over seeds.",
        ),
    )


def _again(page: Page, comparison: Comparison, command: str | None) -> None:
    """Add the section with the commands that train the runs and make the page."""
    runs = [*comparison.runs, *comparison.held_out.values()]
    typed = dict.fromkeys(run.record.get("command") or "" for run in runs)
    lines = [words for words in typed if words and f"{words} --force" != command]
    text = "What was typed; the last command makes this page."
    if not lines:
        text = "This trains the runs and makes this page from them:"
        if not all(typed):
            text = "The runs don't say how they were started; each one's run.json has its settings."
    summary = f"The {len(runs)} runs behind this page"
    rows = [(run.name, f"{run.record['seconds'] or 0:.1f}") for run in runs]
    listed = folded(summary, table(Table(summary, ("run", "seconds"), rows)))
    typed_all = commands([*lines, command] if command else lines)
    page.section("again", "How to run it again", text, typed_all, listed)


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
    kept = np.setdiff1d(np.arange(prior.num_classes), result.left_out)
    counts, probs = prior.counts, prior.probs[kept]
    judged = ClassPrior(probs / probs.sum(), None if counts is None else counts[kept])
    groups = {} if counts is None else prior.groups()
    page = Page(
        f"Adjusted predictions of {Path(source.name).name}",
        said[2:],
        ClassAxis.of(judged, [source.label(int(k)) for k in kept]),
        {name: np.flatnonzero(np.isin(kept, k)) for name, k in groups.items()},
    )
    left_out = len(result.left_out)
    ratio = f"{prior.imbalance_ratio:,.4g} times as frequent as the rarest"
    read = facts(
        {
            "File": source.name,
            "Scores": {"logits": "logits", "probs": "probabilities"}[source.kind],
            "Classes": f"{source.num_classes:,}; the most frequent is {ratio}",
            "Judged on": f"{result.num_judged:,} labelled examples",
            "Tau": said[1],
            "Left out": f"{left_out:,} classes without examples enough" if left_out else "",
        }
    )
    if counts is not None:
        read = page.frequencies(np.asarray(counts[kept], dtype=np.float64), read)
    page.section("read", "What was adjusted", "", read)
    page.section(
        "results",
        "Before and after",
        "Every example was judged with a τ that it had no part in choosing. Differences are "
        "paired by example; an interval that excludes zero is more than chance.",
        *map(table, adjusting.tables(result)),
    )
    _adjusted_tau(page, result)
    wrong = np.stack([tally.wrong, tally.wrong - tally.fixed + tally.broken])
    looks = {"before": "softmax", "after": ADJUSTED}
    series = [Series(label, figures.color(method)) for label, method in looks.items()]
    bounds = ", ".join(f"{name} {bound}" for name, bound in GROUP_BOUNDS.items())
    page.errors(series, np.asarray(100 * wrong[:, kept] / tally.counts[kept]), bounds=bounds)
    if command is not None:
        page.section("again", "How to make it again", "", commands([command]))
    return page


def _adjusted_tau(page: Page, result: AdjustResult) -> None:
    """Add the section about tau of the adjustment."""
    curve = result.judged_curve
    used = result.fold_taus if len(result.fold_taus) else np.array([result.tau])
    taus = tau_grid([result.tau, float(curve.minimizer()[0]), *used])
    errors = errors_at(taus, [curve])
    choices = {}
    if result.tuning is not None:
        ends = float(used.min()), float(used.max())
        assert result.balanced is not None  # of labelled examples
        after = 100 * result.balanced.after.value
        choices["τ chosen on held-out data"] = Choice(result.tau, *ends, after)
    balanced = errors[0].mean(axis=1)
    lowest = float(taus[np.argmin(balanced)])
    best = Choice(lowest, lowest, lowest, float(balanced.min()))
    choices["oracle: best τ on the judged set"] = best
    presets = {"no adjustment": 0.0}
    if taus[-1] >= 1.0:
        presets["theory"] = 1.0
    presets["given" if result.tuning is None else "chosen"] = result.tau
    series = Series(figures.label(ADJUSTED), figures.color(ADJUSTED))
    page.tau(
        "Each point of the curve is exact: an example is right in one interval of τ, found from "
        "its scores. Move the slider and watch common classes pay for rare ones.",
        "Of the judged examples; upright: where the slider stands.",
        taus,
        [TauMethod(series, errors, choices, presets)],
        start=result.tau,
    )


def tau_grid(marks: Sequence[float], steps: int = STEPS) -> FloatArray:
    """Return taus from 0 to 4, or a quarter beyond the marks, with the marks, 0 and 1 among them.

    Logits of a small scale, such as cosines, have small taus; the grid then ends at four times
    the largest mark.

    Examples:
        >>> tau_grid([1.3], 4)
        array([0. , 1. , 1.3, 2. , 3. , 4. ])
        >>> tau_grid([-0.02, 1.0], 4)
        array([-0.08, -0.04, -0.02,  0.  ,  0.04,  0.08])
    """
    chosen = [0.0, *(mark for mark in marks if mark != 1.0)]
    low, high, reach = min(chosen), max(chosen), 4 * max(map(abs, chosen))
    if 0 < reach < 1.6:
        low, high = (-reach if low else 0.0), reach
    else:
        low, high = 1.25 * low, 4.0 if high <= 4 else 1.25 * high
    inside = [mark for mark in (0.0, 1.0, *marks) if low <= mark <= high]
    grid = np.union1d(np.linspace(low, high, steps + 1), inside)
    return np.asarray(grid[np.append(True, np.diff(grid) > 1e-9 * (high - low))])
