"""Self-contained HTML pages: about runs of one data set, and about adjusted predictions.

A page is one file with plotly, its data, style and script inside (`page.html`), made of sections
of text, tables and charts. Both pages share the sections about tau and about errors by class.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

import longtail
from longtail import _checks
from longtail._checks import FloatArray, InputError, IntArray
from longtail.conformal import PredictionSets
from longtail.predictions import AdjustResult
from longtail.priors import ClassPrior
from longtail.report import adjusting, charts, figures
from longtail.report import comparison as texts
from longtail.report.charts import Chart, Choice, ClassAxis, Series, TauMethod
from longtail.report.compare import ADJUSTED, Comparison, Row, mean_interval
from longtail.report.tables import GROUP_BOUNDS, Table, percent, signed
from longtail.runs import files
from longtail.tuning import TauCurve

CURVE_STEPS, SLIDER_STEPS = 200, 80
# Files of `write_figures`, and the charts in them.
FIGURES = {
    "errors": "chart-methods",
    "tau": "chart-tau",
    "per-class": "chart-classes",
    "groups": "chart-groups",
    "reliability": "chart-calibration",
    "weight-norms": "chart-norms",
}
_PRIMER = (
    "In most real data a few classes are common and many are rare. A classifier trained the usual "
    "way (softmax cross-entropy) hardly ever predicts the rare ones, which the ordinary error rate "
    "does not show. The balanced error does: it is the mean of the classes' own errors, so that a "
    "rare class counts as much as a common one.",
    "Logit adjustment subtracts τ times the logarithm of a class's training frequency from its "
    "score. Done after training (post-hoc) it costs nothing; done inside the loss, the model "
    "learns with it. τ = 0 changes nothing, τ = 1 is what theory says for a calibrated model, and "
    "more than 1 favours rare classes further. Rare classes gain, common ones pay for it.",
)


class Page:
    """A page under construction: its sections as HTML, and the charts in them."""

    def __init__(self, title: str, lead: Sequence[str]) -> None:
        self.title, self.lead = title, lead
        self.tiles: list[tuple[str, str, str]] = []
        self.charts: dict[str, Chart] = {}
        self.slider: dict[str, Any] | None = None
        self.sections: list[tuple[str, str, str]] = []

    def section(self, id: str, heading: str, text: str, *blocks: str) -> None:
        """Add a section of a paragraph and blocks of HTML."""
        paragraph = f"<p>{escape(text)}</p>" if text else ""
        self.sections.append((id, heading, "\n".join([paragraph, *blocks])))

    def figure(self, chart: Chart, caption: str) -> str:
        """Return the place of a chart, which the page's script draws, and a caption."""
        self.charts[chart.id] = chart
        return (
            f'<figure><div class="legend"></div><div class="chart" id="{chart.id}" role="img" '
            f'aria-label="{escape(chart.label)}" style="min-height: {chart.layout["height"]}px">'
            f"</div><figcaption>{escape(caption)}</figcaption></figure>"
        )

    def tau(
        self,
        text: str,
        caption: str,
        methods: Sequence[TauMethod],
        *,
        curve_taus: FloatArray,
        slider_taus: FloatArray,
        axis: ClassAxis,
        groups: dict[str, IntArray],
        references: Sequence[tuple[Series, float]] = (),
        start: float,
    ) -> None:
        """Add the section about tau: the curve, and the slider with its two charts."""
        curve = charts.tau_curves(curve_taus, methods, references, start=start)
        self.slider, *bars = charts.slider(slider_taus, axis, groups, methods, start=start)
        by = ("By group", "By groups of classes" if axis.each != "class" else "By class")
        both = (
            self.figure(chart, f"{how}. Outline: τ = 0, no adjustment.")
            for how, chart in zip(by, bars, strict=True)
        )
        slider = (
            f'<div class="slider"><div id="methods"></div>'
            f'<div id="presets" class="legend"></div>'
            f'<div class="knob"><label for="tau-knob">τ</label><input type="range" id="tau-knob" '
            f'min="0" max="{len(slider_taus) - 1}" value="{self.slider["start"]}" '
            f'aria-describedby="tau-says"><output id="tau-value"></output>'
            f'<p id="tau-says" aria-live="polite"></p></div><div class="pair">{"".join(both)}</div>'
            f"</div>"
        )
        self.section("tau", "What τ does", text, self.figure(curve, caption), slider)

    def errors(
        self,
        axis: ClassAxis,
        groups: dict[str, IntArray],
        series: Sequence[Series],
        values: FloatArray,
        *,
        bounds: str,
        note: str = "",
    ) -> None:
        """Add the sections about errors by class and group; `values` (methods, classes)."""
        named = zip(axis.names, axis.counts, axis.mean(values).T, strict=True)
        rows = [(name, count, *(f"{value:.1f}" for value in of)) for name, count, of in named]
        header = ("class", "training examples", *(one.label for one in series))
        numbers = table(Table(f"Error of each {axis.each} in percent", header, rows, note))
        many = f"Each point is the mean of a {axis.each}. " if axis.each != "class" else ""
        self.section(
            "classes",
            f"Error of each {axis.each}",
            f"{many}Classes stand in order of frequency; names in the legend are buttons that "
            "show and hide a line.",
            self.figure(charts.by_class(axis, series, values), "Means, most frequent first."),
            folded("The numbers", numbers),
        )
        if groups:
            sizes = {name: len(classes) for name, classes in groups.items()}
            means = np.stack([values[:, k].mean(axis=1) for k in groups.values()], axis=1)
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
        tiles = "".join(
            f"<li>{name} <strong>{value}</strong> <small>{note}</small></li>"
            for name, value, note in (map(escape, tile) for tile in self.tiles)
        )
        primer = "".join(f"<p>{escape(sentence)}</p>" for sentence in _PRIMER)
        body = [
            f"<h1>{escape(self.title)}</h1>",
            *(f'<p class="lead">{escape(sentence)}</p>' for sentence in self.lead),
            f'<ul class="tiles">{tiles}</ul>',
            folded("New to this? The idea in a minute", primer),
            "<nav>",
            *(f'<a href="#{id}">{escape(heading)}</a>' for id, heading, _ in self.sections),
            "</nav>",
            *(
                f'<section id="{id}"><h2>{escape(heading)}</h2>{content}</section>'
                for id, heading, content in self.sections
            ),
        ]
        parts = {
            "<!--title-->": escape(self.title),
            "<!--version-->": longtail.__version__,
            "<!--body-->": "\n".join(body),
            "<!--data-->": text,
            "<!--plotly-->": plotly.get_plotlyjs(),
        }
        document = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
        for place, part in parts.items():
            document = document.replace(place, part)
        return document

    def write(self, path: str | Path, *, force: bool) -> Path:
        """Write the page, making its folder, and return the path."""
        path = Path(path)
        if path.exists() and not force:
            raise InputError(f"{path} exists; pass --force (force=True) to replace it.")
        text = self.render()
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_bytes(path, text.encode())
        return path


def folded(summary: str, content: str) -> str:
    """Return HTML that waits behind its summary until asked for."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def pair(left: str, right: str) -> str:
    """Return two blocks side by side where the screen is wide enough."""
    return f'<div class="pair"><div>{left}</div><div>{right}</div></div>'


def facts(items: dict[str, str]) -> str:
    """Return names and values; those without a value are left out."""
    shown = (f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in items.items() if v)
    return f"<dl>{''.join(shown)}</dl>"


def commands(lines: Iterable[str]) -> str:
    """Return commands to type."""
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


def tau_grid(marks: Sequence[float], steps: int) -> FloatArray:
    """Return taus from 0 to 4, or a quarter beyond the marks, and the marks.

    Logits of a small scale, such as cosines, have small taus: on an axis to 4 all that happens
    would lie in a hair's breadth of it, so there it ends at four times the largest.

    Examples:
        >>> tau_grid([0.0, 1.0, 1.3], 4)
        array([0. , 1. , 1.3, 2. , 3. , 4. ])
        >>> tau_grid([-0.02, 0.0, 1.0], 4)
        array([-0.08, -0.04, -0.02,  0.  ,  0.04,  0.08])
    """
    chosen = [0.0, *(mark for mark in marks if mark != 1.0)]
    low, high, reach = min(chosen), max(chosen), 4 * max(map(abs, chosen))
    if 0 < reach < 1.6:
        low, high = (-reach if low else 0.0), reach
    else:
        low, high = 1.25 * low, 4.0 if high <= 4 else 1.25 * high
    inside = [mark for mark in marks if low <= mark <= high]
    grid = np.union1d(np.linspace(low, high, steps + 1), inside)
    return np.asarray(grid[np.append(True, np.diff(grid) > 1e-9 * (high - low))])


# ---------------------------------------------------------------------------- runs


def runs_page(
    comparison: Comparison, *, title: str | None = None, command: str | None = None
) -> Page:
    """Return the page about runs of one data set.

    Args:
        comparison: of the runs, from `compare`.
        title: of the page; made from the data's name if absent.
        command: what to type to make it again.
    """
    first = comparison.runs[0]
    data, prior = first.spec.dataset.name, first.prior
    page = Page(title or f"Long-tailed classification on {data}", texts.summary(comparison))
    page.tiles = _tiles(comparison)
    axis = ClassAxis.of(prior, first.class_names)
    counts = np.asarray(prior.probs if prior.counts is None else prior.counts, dtype=np.float64)
    page.section(
        "trained",
        "What was trained on what",
        f"The training set has {prior.num_classes:,} classes; the most frequent has "
        f"{prior.imbalance_ratio:,.0f} times as many examples as the rarest "
        f"({counts.max():,.6g} against {counts.min():,.6g}).",
        pair(
            facts(_data_facts(comparison)),
            page.figure(
                charts.frequencies(axis, counts), f"Training examples of each {axis.each}."
            ),
        ),
        facts(_training_facts(comparison)),
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
    groups = {name: classes for name, classes in prior.groups().items() if len(classes)}
    if comparison.curves:
        chosen = [float(row.taus.mean()) for row in comparison.rows if row.taus is not None]
        curve_taus = tau_grid((), CURVE_STEPS)
        slider_taus = np.union1d(tau_grid((), SLIDER_STEPS), chosen)
        rows = [row for row in comparison.rows if row.method in ("softmax", "logit-adjusted")]
        errors = [100 * float(row.errors.mean()) for row in rows]
        page.tau(
            "Post-hoc methods have one knob, τ. Each curve is exact: it is computed from the "
            "saved logits, example by example, without training anything again. Move the slider "
            "and watch common classes pay for rare ones.",
            "Lines: mean over seeds; shaded: range over seeds; dashed: trained losses, which "
            "have no slider; upright: where the slider stands.",
            _tau_methods(comparison, curve_taus, slider_taus),
            curve_taus=curve_taus,
            slider_taus=slider_taus,
            axis=axis,
            groups=groups,
            references=list(zip(series_of(rows, comparison), errors, strict=True)),
            start=1.0,
        )
    rows = shown_rows(comparison)
    series, values = series_of(rows, comparison), 100 * np.array([row.per_class for row in rows])
    bounds = ", ".join(f"{name} {bound}" for name, bound in GROUP_BOUNDS.items())
    page.errors(axis, groups, series, values, bounds=bounds, note=texts.bias_note(comparison))
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
    _sets(page, comparison, axis)
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
                charts.weight_norms(axis, counts, series_of(rows, comparison), norms),
                "Mean over seeds; r: correlation of the norm with the logarithm of the frequency.",
            ),
        )
    _again(page, comparison, command)
    return page


def _sets(page: Page, comparison: Comparison, axis: ClassAxis) -> None:
    """Coverage by class of prediction sets, of the runs that have held-out and judged logits."""
    runs = [run for run in comparison.held_out.values() if comparison.split in run.splits]
    if not runs:
        return
    ways = {
        "softmax score": (PredictionSets(method="marginal", tau=0.0), "softmax"),
        "logit-adjusted score, classes weighing alike": (PredictionSets(), ADJUSTED),
    }
    series, values = [], []
    for label, (sets, method) in ways.items():
        judged = [
            sets.fit(*run.logits("held-out")[:2], run.prior).evaluate(
                *run.logits(comparison.split)[:2]
            )
            for run in runs
        ]
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
            charts.by_class(axis, series, np.array(values), what="coverage"),
            "Share of each class's examples whose set holds their class, mean over seeds.",
        ),
    )


def _tiles(comparison: Comparison) -> list[tuple[str, str, str]]:
    winner, seeds = comparison.best, texts.which_seeds(comparison)
    note = f"balanced error ({seeds})" if seeds else "balanced error"
    tiles = [
        (texts.name(row), f"{percent(comparison.mean_error(row))}%", note)
        for row in dict.fromkeys((comparison.baseline, winner))
        if row is not None
    ]
    found = comparison.best_against_softmax()
    if found is not None:
        words = "percentage points"
        if not math.isnan(found.low):
            words += f", 95% interval {signed(found.low)} to {signed(found.high)}"
            words += f" as the best of {comparison.rivals}" if comparison.rivals > 1 else ""
        tiles.append(("difference", signed(found.mean), words))
    return tiles


def _data_facts(comparison: Comparison) -> dict[str, str]:
    runs, first = comparison.runs, comparison.runs[0]
    prior, data = first.prior, first.spec.dataset
    asked = {"profile": data.profile, "ratio": data.imbalance_ratio, **data.settings}
    total = 0 if prior.counts is None else int(prior.counts.sum())
    judged = np.bincount(comparison.target, minlength=prior.num_classes)
    each = "–".join(dict.fromkeys(f"{n}" for n in (judged.min(), judged.max())))
    seeds = sorted({seed for row in comparison.rows for seed in row.seeds})
    parts = {f"{run.spec.dataset.held_out:.0%}" for run in comparison.held_out.values()}
    sizes = [run.record.get("facts", {}).get("parameters") for run in runs]
    return {
        "Data": _with(data.name, asked),
        "Trained on": f"{total:,} examples of {prior.num_classes:,} classes",
        "Judged on": f"{len(comparison.target):,} {comparison.split} examples, {each} per class",
        "Model": _unique(_with(r.spec.model.name, r.spec.model.settings) for r in runs),
        "Parameters": _unique(f"{size:,}" for size in sizes if size),
        "Trained with": ", ".join(texts.name(r) for r in comparison.rows if not r.tau_source),
        "Seeds": f"{len(seeds)} ({', '.join(map(str, seeds))})",
        "Choice of τ": "".join(
            f"on {part} of each class, held out of a second softmax run per seed" for part in parts
        ),
    }


def _training_facts(comparison: Comparison) -> dict[str, str]:
    runs, both = comparison.runs, [*comparison.runs, *comparison.held_out.values()]
    seconds = sum(run.record["seconds"] or 0.0 for run in both)
    return {
        "Recipe": _unique(_with(r.spec.recipe.name, r.spec.recipe.values) for r in runs),
        "Changed in it": _unique(_pairs(run.spec.recipe.overrides) for run in runs),
        "Other settings": _unique(_pairs(run.spec.settings) for run in runs),
        "Data fingerprint": runs[0].data[:16],
        "Device": _unique(run.record["device"] for run in runs),
        "Training time": f"{seconds / 60:.1f} minutes in all, {len(both)} runs",
        "Versions": _unique(_pairs(run.record["versions"]) for run in runs),
    }


def _with(name: str, settings: Any) -> str:
    pairs = _pairs(settings)
    return f"{name} ({pairs})" if pairs else name


def _pairs(settings: Any) -> str:
    there = {k: v for k, v in settings.items() if v not in (None, "", (), {})}
    texts = (f"{v:g}" if isinstance(v, float) else f"{v}" for v in there.values())
    return ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in zip(there, texts, strict=True))


def _unique(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(value for value in values if value))


def _results_table(comparison: Comparison) -> str:
    """The rows in three groups, with the best of the honest ones marked."""
    full = texts.headline(comparison)
    headings = (
        "Trained with",
        "After training, from the softmax model's logits",
        f"Oracle: τ chosen on the {comparison.split} set itself. A bound on what a better choice "
        "of τ could give; nobody has it in use.",
    )
    kinds = [(r.tau_source is not None) + (r.tau_source == "oracle") for r in comparison.rows]
    order = sorted(range(len(kinds)), key=kinds.__getitem__)
    starts = {[kinds[i] for i in order].index(kind): headings[kind] for kind in set(kinds)}
    best = order.index(comparison.rows.index(comparison.best))
    ordered = Table(full.title, full.header, [full.rows[i] for i in order], full.note)
    return table(ordered, headings=starts, strong=best)


def _again(page: Page, comparison: Comparison, command: str | None) -> None:
    runs = [*comparison.runs, *comparison.held_out.values()]
    last = [] if command is None else [command]
    typed = dict.fromkeys(run.record.get("command") or "" for run in runs)
    first = [words for words in typed if words and f"{words} --force" != command]
    text = "What was typed; the last command makes this page."
    if not first:
        text = "This trains the runs and makes this page from them:"
        if not all(typed):
            text = "The runs don't say how they were started; each one's run.json has its settings."
    summary = f"The {len(runs)} runs behind this page"
    rows = [(run.name, f"{run.record['seconds'] or 0:.1f}") for run in runs]
    listed = folded(summary, table(Table(summary, ("run", "seconds"), rows)))
    page.section("again", "How to run it again", text, commands([*first, *last]), listed)


def shown_rows(comparison: Comparison) -> list[Row]:
    """Return the rows for charts by class: the trained ones, and each post-hoc one once.

    A tau from held-out data goes before the theory's 1, since that is what a user would do.
    """
    chosen = {row.method for row in comparison.rows if row.tau_source == "held-out"}
    return [
        row
        for row in comparison.rows
        if row.tau_source in (None, "held-out" if row.method in chosen else "fixed")
    ]


def series_of(rows: Sequence[Row], comparison: Comparison) -> list[Series]:
    """Looks of rows; at first softmax, the logit-adjusted ones and the best are drawn.

    Rows of one colour are told apart by their variant: a method in several ways, and a loss
    with one thing and another on top.
    """
    first = {"softmax", "logit-adjusted", ADJUSTED, comparison.best.method}
    seen: dict[str, int] = {}
    found = []
    for row in rows:
        color = figures.color(row.method)
        variant = seen.get(color, 0)
        seen[color] = variant + 1
        shown = row.method in first or len(rows) <= 4
        found.append(Series(texts.name(row), color, variant, shown))
    return found


def _tau_methods(
    comparison: Comparison, curve_taus: FloatArray, slider_taus: FloatArray
) -> list[TauMethod]:
    marks = {
        "held-out": "τ chosen on held-out data",
        "oracle": f"oracle: best τ on the {comparison.split} set",
    }
    found = []
    for method, of_seed in comparison.curves.items():
        curves = list(of_seed.values())
        choices, presets = {}, {"no adjustment": 0.0, "theory": 1.0}
        for row in comparison.rows:
            if row.method == method and row.tau_source in marks and row.taus is not None:
                error, tau = 100 * float(row.errors.mean()), float(row.taus.mean())
                span = (tau, float(row.taus.min()), float(row.taus.max()))
                choices[marks[row.tau_source]] = Choice(*span, error)
                presets[row.tau_source] = tau
        found.append(
            TauMethod(
                Series(figures.label(method), figures.color(method)),
                100 * np.array([curve(curve_taus) for curve in curves]),
                _per_class(curves, slider_taus),
                choices,
                presets,
            )
        )
    return found


def _per_class(curves: Sequence[TauCurve], taus: FloatArray) -> FloatArray:
    """Each class's error in percent at each tau, mean over curves, shape (taus, classes)."""
    values = [[curve.per_class(float(tau)) for tau in taus] for curve in curves]
    return np.asarray(100 * np.mean(values, axis=0))


def write_figures(comparison: Comparison, folder: str | Path) -> list[Path]:
    """Write the page's charts as SVG and PNG for papers, drawn by matplotlib.

    Args:
        comparison: what `compare` gave.
        folder: made if need be; files of the same names are replaced.

    Returns:
        The paths written: `FIGURES` for which the runs have data.
    """
    drawn = runs_page(comparison).charts
    paths: list[Path] = []
    for stem, id in FIGURES.items():
        if id in drawn:
            figure = charts.draw(drawn[id])
            paths += figures.save(figure, Path(folder) / stem, title=drawn[id].label)
    return paths


# ---------------------------------------------------------------------------- predictions


def write_adjusted(
    result: AdjustResult, path: str | Path, *, command: str | None = None, force: bool = False
) -> Path:
    """Write the page about adjusted predictions, and return its path; see `adjusted_page`."""
    return adjusted_page(result, command=command).write(path, force=force)


def adjusted_page(result: AdjustResult, *, command: str | None = None) -> Page:
    """Return the page about adjusted predictions.

    Args:
        result: of labelled predictions.
        command: what was typed, for the part on how to do it again.
    """
    source, prior, tally = result.predictions, result.prior, result.tally
    assert tally is not None  # a page is about labelled predictions
    said = adjusting.summary(result)
    page = Page(f"Adjusted predictions of {Path(source.name).name}", said[2:])
    name, change = adjusting.main_change(result)
    low, high = signed(change.difference.low), signed(change.difference.high)
    interval = f"percentage points, {result.level:.0%} interval {low} to {high}"
    page.tiles = [
        ("before", f"{percent(change.before.value)}%", name),
        ("after", f"{percent(change.after.value)}%", name),
        ("difference", signed(change.difference.value), interval),
    ]
    kept = np.setdiff1d(np.arange(prior.num_classes), result.left_out)
    counts, probs = prior.counts, prior.probs[kept]
    judged = ClassPrior(probs / probs.sum(), None if counts is None else counts[kept])
    axis = ClassAxis.of(judged, [source.label(int(k)) for k in kept])
    groups: dict[str, IntArray] = {}
    if counts is not None:
        for group, members in prior.groups(many=result.many, few=result.few).items():
            places = np.flatnonzero(np.isin(kept, members))
            groups |= {group: places} if len(places) else {}
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
        chart = charts.frequencies(axis, np.asarray(counts[kept], dtype=np.float64))
        read = pair(read, page.figure(chart, f"Training examples of each {axis.each}."))
    page.section("read", "What was adjusted", "", read)
    page.section(
        "results",
        "Before and after",
        "Every example was judged with a τ that it had no part in choosing. Differences are "
        "paired by example; an interval that excludes zero is more than chance.",
        *map(table, adjusting.tables(result)),
    )
    curve_taus, slider_taus, method = _adjusted_method(result)
    page.tau(
        "Each point of the curve is exact: an example is right in one interval of τ, found from "
        "its scores. Move the slider and watch common classes pay for rare ones.",
        "Of the judged examples; upright: where the slider stands.",
        [method],
        curve_taus=curve_taus,
        slider_taus=slider_taus,
        axis=axis,
        groups=groups,
        start=result.tau,
    )
    wrong = np.stack([tally.wrong, tally.wrong - tally.fixed + tally.broken])
    series = [
        Series("before", figures.color("softmax")),
        Series("after", figures.color(ADJUSTED)),
    ]
    many, few = f"{result.many:g}", f"{result.few:g}"
    bounds = f"many over {many}, medium {few} to {many}, few under {few}"
    values = np.asarray(100 * wrong[:, kept] / tally.counts[kept])
    page.errors(axis, groups, series, values, bounds=bounds)
    if command is not None:
        page.section("again", "How to make it again", "", commands([command]))
    return page


def _adjusted_method(result: AdjustResult) -> tuple[FloatArray, FloatArray, TauMethod]:
    """The taus of the curve and of the slider, and the adjustment over both."""
    curve = result.judged_curve
    used = result.fold_taus if len(result.fold_taus) else np.array([result.tau])
    marks = [0.0, 1.0, result.tau, float(curve.minimizer()[0])]
    curve_taus = tau_grid([*marks, *used], CURVE_STEPS)
    slider_taus = tau_grid(marks, SLIDER_STEPS)
    if result.target_prior is None:
        values = 100 * curve(curve_taus)
    else:  # the curve is of the error under the target, the chart of the balanced one
        values = _per_class([curve], curve_taus).mean(axis=1)
    choices = {}
    if result.tuning is not None:
        span = (result.tau, float(used.min()), float(used.max()))
        choices["τ chosen on held-out data"] = Choice(*span, 100 * result.balanced.after.value)
    place = int(np.argmin(values))
    lowest = float(curve_taus[place])
    choices["oracle: best τ on the judged set"] = Choice(
        lowest, lowest, lowest, float(values[place])
    )
    presets = {"no adjustment": 0.0}
    if slider_taus[-1] >= 1.0:
        presets["theory"] = 1.0
    presets["given" if result.tuning is None else "chosen"] = result.tau
    series = Series(figures.label(ADJUSTED), figures.color(ADJUSTED))
    per_class = _per_class([curve], slider_taus)
    return curve_taus, slider_taus, TauMethod(series, values[None], per_class, choices, presets)
