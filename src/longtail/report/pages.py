"""Self-contained HTML pages: about runs of one data set, and about adjusted predictions.

A page is one file with plotly, its data, style and script inside (`page.html`), made of sections
of text, tables and charts. Both pages share the section with the slider for tau.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

import longtail
from longtail import _checks, metrics
from longtail._checks import FloatArray, InputError, IntArray
from longtail.predictions import AdjustResult
from longtail.priors import ClassPrior
from longtail.report import adjusting, charts, figures
from longtail.report import comparison as texts
from longtail.report.charts import Chart, Choice, ClassAxis, Series, TauMethod, tau_grid
from longtail.report.compare import Comparison, Row, mean_interval
from longtail.report.tables import GROUP_BOUNDS, percent, signed
from longtail.runs import Run, files
from longtail.tuning import TauCurve

CURVE_STEPS, SLIDER_STEPS = 200, 80
CURVE_TAUS, SLIDER_TAUS = tau_grid(0, 4, most=CURVE_STEPS), tau_grid(0, 4, most=SLIDER_STEPS)
FIGURES = ("errors", "tau", "per-class", "groups", "reliability", "weight-norms")
_LOGIT_ADJUSTED = "posthoc-logit-adjusted"
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

_GLYPHS = {"bar": "■▨▩▒▤▧▥▦", "diamond": "◆", "star": "★"}  # as figures.HATCHES


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
        """Return a chart with its legend, whose buttons show and hide methods, and a caption."""
        self.charts[chart.id] = chart
        buttons = []
        for item in chart.legend:
            traces = " ".join(map(str, item.traces))
            glyph = _GLYPHS.get(item.mark, "")
            dashes = "8,5" if item.mark == "dash" else charts.dashes(item.variant)
            line = f'<path d="M0 4H36" stroke-dasharray="{dashes.replace("px", "")}"/>'
            mark = f'<svg width="36" height="8">{line}</svg>'
            mark = glyph[item.variant % len(glyph)] if glyph else mark
            buttons.append(
                f'<button type="button" aria-pressed="{str(item.shown).lower()}" '
                f'data-chart="{chart.id}" data-traces="{traces}"><span class="mark" '
                f'style="color: {item.color}" aria-hidden="true">{mark}</span>'
                f"{escape(item.label)}</button>"
            )
        legend = f'<div class="legend">{"".join(buttons)}</div>' if buttons else ""
        return (
            f'<figure>{legend}<div class="chart" id="{chart.id}" role="img" aria-label='
            f'"{escape(chart.label)}" style="min-height: {chart.layout["height"]}px"></div>'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
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
        values, by_group, by_class = charts.slider(slider_taus, axis, groups, methods, start=start)
        self.slider = values
        radios = [
            f'<label><input type="radio" name="method" value="{i}"{" checked" * (i == 0)}> '
            f"{escape(one.series.label)}</label>"
            for i, one in enumerate(methods)
        ]
        choice = f"<div>{''.join(radios)}</div>" if len(radios) > 1 else ""
        each = "class" if axis.each == "class" else "groups of classes"
        slider = (
            f'<div class="slider">{choice}<div id="presets" class="legend"></div>'
            f'<div class="knob"><label for="tau-knob">τ</label><input type="range" id="tau-knob" '
            f'min="0" max="{len(slider_taus) - 1}" value="{values["start"]}" '
            f'aria-describedby="tau-says"><output id="tau-value"></output>'
            f'<p id="tau-says" aria-live="polite"></p></div><div class="pair">'
            + self.figure(by_group, "By group. Outline: τ = 0, no adjustment.")
            + self.figure(by_class, f"By {each}. Outline: τ = 0, no adjustment.")
            + "</div></div>"
        )
        self.section("tau", "What τ does", text, self.figure(curve, caption), slider)

    def class_errors(
        self, axis: ClassAxis, series: Sequence[Series], values: FloatArray, *, note: str = ""
    ) -> None:
        """Add the section about errors by class; `values` in percent, (methods, classes)."""
        shown = axis.mean(values)
        pairs = zip(axis.names, axis.counts, strict=True)
        rows = [
            (name, count, *(f"{value:.1f}" for value in shown[:, i]))
            for i, (name, count) in enumerate(pairs)
        ]
        header = ("class", "training examples", *(one.label for one in series))
        numbers = table(header, rows, f"Error of each {axis.each} in percent", note=note)
        many = "" if axis.each == "class" else f"Each point is the mean of a {axis.each}. "
        self.section(
            "classes",
            f"Error of each {axis.each}",
            f"{many}Classes stand in order of frequency; names in the legend are buttons that "
            "show and hide a line.",
            self.figure(charts.class_errors(axis, series, values), "Means, most frequent first."),
            folded("The numbers", numbers),
        )

    def group_errors(
        self, groups: dict[str, IntArray], bounds: str, series: Sequence[Series], values: FloatArray
    ) -> None:
        """Add the section about errors by group; `values` in percent, (methods, classes)."""
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
        data = {
            "charts": {
                id: {"data": chart.data, "layout": chart.layout}
                for id, chart in self.charts.items()
            },
            "slider": self.slider,
        }
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


def facts(items: Iterable[tuple[str, str]]) -> str:
    """Return names and values; those without a value are left out."""
    shown = (f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in items if v)
    return f"<dl>{''.join(shown)}</dl>"


def commands(lines: Iterable[str]) -> str:
    """Return commands to type."""
    return f'<pre tabindex="0"><code>{escape(chr(10).join(lines))}</code></pre>'


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str,
    *,
    groups: Sequence[tuple[str, int]] = (),
    strong: int | None = None,
    note: str = "",
) -> str:
    """Return a table whose first column holds names.

    Args:
        header: names of the columns.
        rows: texts.
        caption: above it.
        groups: headings among the rows, each with the number of rows below it.
        strong: the row that stands out as the best.
        note: below it.
    """
    starts: dict[int, str] = {}
    place = 0
    for heading, size in groups:
        starts[place] = heading
        place += size
    lines = []
    for i, (name, *cells) in enumerate(rows):
        if i in starts:
            lines.append(f'<tr><th colspan="{len(header)}">{escape(starts[i])}</th></tr>')
        best = ' class="strong"' if i == strong else ""
        badge = " <small>best</small>" if i == strong else ""
        values = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        lines.append(f'<tr{best}><th scope="row">{escape(name)}{badge}</th>{values}</tr>')
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{chr(10).join(lines)}</tbody></table></div>{below}"
    )


# ---------------------------------------------------------------------------- runs


def write_runs(
    comparison: Comparison,
    path: str | Path,
    *,
    title: str | None = None,
    command: str | None = None,
    trains: bool = False,
    force: bool = False,
) -> Path:
    """Write one page about runs of one data set, and return its path.

    Args:
        comparison: of the runs, from `compare`.
        path: the file; its folder is made if need be.
        title: of the page; made from the data's name if absent.
        command: what to type to make it again.
        trains: whether that trains the runs as well.
        force: replace a file that is there.
    """
    page = runs_page(comparison, title=title, command=command, trains=trains)
    return page.write(path, force=force)


def runs_page(
    comparison: Comparison,
    *,
    title: str | None = None,
    command: str | None = None,
    trains: bool = False,
) -> Page:
    """Return the page about a comparison of runs; arguments as in `write_runs`."""
    data, prior = comparison.runs[0].spec.dataset.name, comparison.runs[0].prior
    page = Page(title or f"Long-tailed classification on {data}", texts.summary(comparison))
    page.tiles = _tiles(comparison)
    axis = ClassAxis.of(prior, comparison.runs[0].class_names)
    counts = np.asarray(prior.probs if prior.counts is None else prior.counts, dtype=np.float64)
    frequencies = charts.frequencies(axis, counts)
    page.section(
        "trained",
        "What was trained on what",
        f"The training set has {prior.num_classes:,} classes; the most frequent has "
        f"{prior.imbalance_ratio:,.0f} times as many examples as the rarest "
        f"({axis.ends[0]} against {axis.ends[1]}).",
        pair(
            facts(_data_facts(comparison)),
            page.figure(frequencies, f"Training examples of each {axis.each}."),
        ),
        pair(facts(_recipe_facts(comparison)), facts(_machine_facts(comparison))),
    )
    some = any(len(row.scored) > 2 for row in comparison.rows)
    page.section(
        "results",
        "Results",
        "The balanced error of every method, lower being better. The best one is picked here by "
        "the very error shown, so its lead is flattered a little; the intervals are each "
        "method's own.",
        page.figure(
            method_chart(comparison),
            f"Dots: means over seeds;{' bars: 95% intervals;' * some} dotted: softmax; hollow: "
            "oracle.",
        ),
        _results_table(comparison),
    )
    methods = tau_methods(comparison)
    if methods:
        page.tau(
            "Post-hoc methods have one knob, τ. Each curve is exact: it is computed from the "
            "saved logits, example by example, without training anything again. Move the slider "
            "and watch common classes pay for rare ones.",
            "Lines: mean over seeds; shaded: range over seeds; dashed: trained losses, which "
            "have no slider; upright: where the slider stands.",
            methods,
            curve_taus=CURVE_TAUS,
            slider_taus=_slider_taus(comparison),
            axis=axis,
            groups=_groups(prior),
            references=_references(comparison),
            start=1.0,
        )
    rows = shown_rows(comparison)
    series, errors = series_of(rows, comparison), 100 * np.array([row.per_class for row in rows])
    page.class_errors(axis, series, errors, note=texts.bias_note(comparison))
    bounds = ", ".join(f"{name} {bound}" for name, bound in GROUP_BOUNDS.items())
    page.group_errors(_groups(prior), bounds, series, errors)
    page.section(
        "calibration",
        "Can its confidence be trusted?",
        f"Predictions on the {comparison.split} set, sorted by how sure the model was of them. "
        "On the diagonal it is right as often as it says; below, it is overconfident.",
        page.figure(
            calibration_chart(comparison),
            f"15 bins, seeds together, those with fewer than {charts.FEWEST} predictions left "
            "out; a larger mark holds more. ECE: expected calibration error, mean over seeds.",
        ),
    )
    norms = norms_chart(comparison)
    if norms is not None:
        page.section(
            "norms",
            "Weight norms",
            "Weight normalisation assumes that frequent classes get larger weights in the last "
            "layer, and divides by their norms. Where norms do not follow frequency, it has "
            "nothing to correct.",
            page.figure(
                norms,
                "Mean over seeds; r: correlation of the norm with the logarithm of the frequency.",
            ),
        )
    _again(page, comparison, command, trains)
    return page


def _tiles(comparison: Comparison) -> list[tuple[str, str, str]]:
    winner, seeds = texts.best(comparison), texts.which_seeds(comparison)
    note = f"balanced error ({seeds})" if seeds else "balanced error"
    tiles = [
        (texts.name(row), f"{percent(texts.mean_error(comparison, row))}%", note)
        for row in dict.fromkeys((comparison.baseline, winner))
        if row is not None
    ]
    found = texts.against_softmax(comparison, winner, picked=True)
    if found is not None:
        words = "percentage points"
        if not math.isnan(found.low):
            words += f", 95% interval {signed(found.low)} to {signed(found.high)}"
            rivals = texts.rivals(comparison)
            words += f" as the best of {rivals}" if rivals > 1 else ""
        tiles.append(("difference", signed(found.mean), words))
    return tiles


def _data_facts(comparison: Comparison) -> list[tuple[str, str]]:
    runs, held = comparison.runs, comparison.held_out.values()
    prior, data = runs[0].prior, runs[0].spec.dataset
    asked = {"profile": data.profile, "ratio": data.imbalance_ratio, **data.settings}
    total = 0 if prior.counts is None else int(prior.counts.sum())
    judged = np.bincount(comparison.target, minlength=prior.num_classes)
    least, most = int(judged.min()), int(judged.max())
    each = f"{least}" if least == most else f"{least} to {most}"
    seeds = sorted({seed for row in comparison.rows for seed in row.seeds})
    parts = " and ".join(f"{p:.0%}" for p in sorted({r.spec.dataset.held_out for r in held}))
    return [
        ("Data", _with(data.name, asked)),
        ("Trained on", f"{total:,} examples of {prior.num_classes:,} classes"),
        ("Judged on", f"{len(comparison.target):,} {comparison.split} examples, {each} per class"),
        ("Model", _unique(_model(run) for run in runs)),
        ("Trained with", ", ".join(texts.name(r) for r in comparison.rows if not r.tau_source)),
        ("Seeds", f"{len(seeds)} ({', '.join(map(str, seeds))})"),
        (
            "Choice of τ",
            f"on {parts} of each class, held out of a second softmax run per seed" if parts else "",
        ),
    ]


def _recipe_facts(comparison: Comparison) -> list[tuple[str, str]]:
    specs = [run.spec for run in comparison.runs]
    return [
        ("Recipe", _unique(_with(spec.recipe.name, spec.recipe.values) for spec in specs)),
        ("Changed in it", _unique(_pairs(spec.recipe.overrides) for spec in specs)),
        ("Other settings", _unique(_pairs(spec.settings) for spec in specs)),
        ("Data fingerprint", comparison.runs[0].data[:16]),
    ]


def _machine_facts(comparison: Comparison) -> list[tuple[str, str]]:
    runs = [*comparison.runs, *comparison.held_out.values()]
    total = sum(run.record["seconds"] or 0.0 for run in runs)
    time = f"{total:.0f} s" if total < 120 else f"{total / 60:.0f} min"
    if total >= 7200:
        time = f"{total / 3600:.1f} h"
    records = [run.record for run in comparison.runs]
    versions = (", ".join(f"{k} {v}" for k, v in r["versions"].items()) for r in records)
    return [
        ("Device", _unique(record["device"] for record in records)),
        ("Training time", f"{time} in all, {len(runs)} runs"),
        ("Versions", _unique(versions)),
    ]


def _with(name: str, settings: Any) -> str:
    pairs = _pairs(settings)
    return f"{name} ({pairs})" if pairs else name


def _pairs(settings: Any) -> str:
    def text(value: Any) -> str:
        if isinstance(value, tuple):
            return "[" + ", ".join(map(text, value)) + "]"
        return f"{value:g}" if isinstance(value, float) else str(value)

    return ", ".join(
        f"{key.replace('_', ' ')} {text(value)}"
        for key, value in settings.items()
        if value not in (None, "", (), {})
    )


def _unique(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(value for value in values if value))


def _model(run: Run) -> str:
    text = _with(run.spec.model.name, run.spec.model.settings)
    parameters = run.record.get("facts", {}).get("parameters")
    return text if parameters is None else f"{text}, {parameters:,} parameters"


def _results_table(comparison: Comparison) -> str:
    """The rows in three groups, with the best of the honest ones marked."""
    full = texts.headline(comparison, comparison.rows)
    headings = {
        "trained": "Trained with",
        "honest": "After training, from the softmax model's logits",
        "oracle": f"Oracle: τ chosen on the {comparison.split} set itself. A bound on what a "
        "better choice of τ could give; nobody has it in use.",
    }
    kinds = [
        "trained" if not row.tau_source else "oracle" if row.tau_source == "oracle" else "honest"
        for row in comparison.rows
    ]
    order = sorted(range(len(kinds)), key=lambda i: list(headings).index(kinds[i]))
    return table(
        full.header,
        [full.rows[i] for i in order],
        full.title,
        groups=[(text, kinds.count(kind)) for kind, text in headings.items() if kind in kinds],
        strong=order.index(comparison.rows.index(texts.best(comparison))),
        note=full.note,
    )


def _again(page: Page, comparison: Comparison, command: str | None, trains: bool) -> None:
    runs = [*comparison.runs, *comparison.held_out.values()]
    typed = list(dict.fromkeys(c for run in runs if (c := run.record.get("command"))))
    text = "These commands train the runs; the last one makes this page from their folders."
    if trains:
        typed, text = [], "This trains the runs and makes this page from them:"
    elif not typed:
        text = (
            "The runs do not record how they were started; run.json in each folder holds every "
            "setting. This makes the page from their folders again:"
        )
    if command is None:
        folders = [run.folder for run in runs]
        if len({folder.is_absolute() for folder in folders}) == 1:
            folders = [Path(os.path.commonpath(folders))]
        split = [] if comparison.split == "test" else ["--split", comparison.split]
        names = [folder.as_posix() for folder in folders]
        command = shlex.join(["longtail", "report", *names, *split, "--out", "report.html"])
    rows = []
    for run in runs:
        held = run.spec.dataset.held_out
        seconds = f"{run.record['seconds'] or 0:.1f}"
        rows.append((run.name, f"{held:.0%}" if held else "", seconds))
    summary = f"The {len(runs)} runs behind this page"
    listed = folded(summary, table(("run", "held out", "seconds"), rows, summary))
    page.section("again", "How to run it again", text, commands([*typed, command]), listed)


def shown_rows(comparison: Comparison) -> list[Row]:
    """Return the rows for charts by class: the trained ones, and each post-hoc one once.

    A tau from held-out data goes before the theory's 1, since that is what a user would do.
    """
    chosen = {row.method for row in comparison.rows if row.tau_source == "held-out"}
    return [
        row
        for row in comparison.rows
        if row.tau_source is None
        or row.tau_source == ("held-out" if row.method in chosen else "fixed")
    ]


def series_of(rows: Sequence[Row], comparison: Comparison) -> list[Series]:
    """Return looks of rows; at first softmax, the logit-adjusted ones and the best are drawn.

    Rows of one colour are told apart by their variant: a method in several ways, and a loss
    with one thing and another on top.
    """
    first = {"softmax", "logit-adjusted", _LOGIT_ADJUSTED, texts.best(comparison).method}
    seen: dict[str, int] = {}
    found = []
    for row in rows:
        color = figures.color(row.method)
        variant = seen.get(color, 0)
        seen[color] = variant + 1
        shown = row.method in first or len(rows) <= 4
        found.append(Series(texts.name(row), color, variant, shown))
    return found


def _groups(prior: ClassPrior) -> dict[str, IntArray]:
    return {name: classes for name, classes in prior.groups().items() if len(classes)}


def method_chart(comparison: Comparison) -> Chart:
    """Return the chart of every row's balanced error."""
    rows = comparison.rows
    return charts.method_errors(
        series_of(rows, comparison),
        [mean_interval(100 * row.errors) for row in rows],
        [row.tau_source == "oracle" for row in rows],
    )


def _slider_taus(comparison: Comparison) -> FloatArray:
    """The slider's steps, and between them the very taus that its buttons name."""
    chosen = [float(row.taus.mean()) for row in comparison.rows if row.taus is not None]
    return np.union1d(SLIDER_TAUS, chosen)


def _references(comparison: Comparison) -> list[tuple[Series, float]]:
    names = ("softmax", "logit-adjusted")
    rows = [row for row in comparison.rows if row.method in names and row.tau_source is None]
    errors = [100 * float(row.errors.mean()) for row in rows]
    return list(zip(series_of(rows, comparison), errors, strict=True))


def tau_methods(comparison: Comparison) -> list[TauMethod]:
    """Return the post-hoc methods over tau, at `CURVE_TAUS` and at the slider's taus."""
    taus, found = _slider_taus(comparison), []
    marks = {
        "held-out": "τ chosen on held-out data",
        "oracle": f"oracle: best τ on the {comparison.split} set",
    }
    for method, of_seed in comparison.curves.items():
        curves = list(of_seed.values())
        values = 100 * np.array([curve(CURVE_TAUS) for curve in curves])
        choices, presets = {}, {"no adjustment": 0.0, "theory": 1.0}
        for row in comparison.rows:
            if row.method == method and row.tau_source in marks and row.taus is not None:
                error, chosen = 100 * float(row.errors.mean()), row.taus
                span = (float(chosen.mean()), float(chosen.min()), float(chosen.max()))
                choices[marks[row.tau_source]] = Choice(*span, error)
                presets[row.tau_source] = span[0]
        found.append(
            TauMethod(
                Series(figures.label(method), figures.color(method)),
                values.mean(axis=0),
                values.min(axis=0),
                values.max(axis=0),
                _per_class(curves, taus),
                choices,
                presets,
            )
        )
    return found


def _per_class(curves: Sequence[TauCurve], taus: FloatArray) -> FloatArray:
    """Each class's error in percent at each tau, mean over curves, shape (taus, classes)."""
    values = [[curve.per_class(float(tau)) for tau in taus] for curve in curves]
    return np.asarray(100 * np.mean(values, axis=0))


def calibration_chart(comparison: Comparison) -> Chart:
    """Return the reliability diagram of the shown rows, seeds together."""
    rows = shown_rows(comparison)
    pooled, eces = [], []
    for row in rows:
        found = [
            metrics.evaluate(comparison.target, s.logits, missing="skip").reliability
            for s in row.scored
        ]
        pooled.append(sum(found[1:], found[0]))
        eces.append(100 * float(np.mean([one.ece for one in found])))
    return charts.calibration(series_of(rows, comparison), pooled, eces)


def norms_chart(comparison: Comparison) -> Chart | None:
    """Return the weight norms of the trained rows; None if no run recorded them."""
    rows, norms = [], []
    for row in comparison.rows:
        heads = [run.head for run in row.runs]
        if row.tau_source is None and all(head is not None for head in heads):
            rows.append(row)
            norms.append(np.mean([head.norms for head in heads if head is not None], axis=0))
    if not rows:
        return None
    prior = comparison.runs[0].prior
    counts = np.asarray(prior.probs if prior.counts is None else prior.counts, dtype=np.float64)
    axis = ClassAxis.of(prior, comparison.runs[0].class_names)
    return charts.weight_norms(axis, counts, series_of(rows, comparison), norms)


def write_figures(comparison: Comparison, folder: str | Path) -> list[Path]:
    """Write the page's charts as SVG and PNG for papers, drawn by matplotlib.

    Args:
        comparison: what `compare` gave.
        folder: made if need be; files of the same names are replaced.

    Returns:
        The paths written: `FIGURES` for which the runs have data.
    """
    drawn = runs_page(comparison).charts
    ids = ("methods", "tau", "classes", "groups", "calibration", "norms")
    paths: list[Path] = []
    for stem, id in zip(FIGURES, ids, strict=True):
        chart = drawn.get(f"chart-{id}")
        if chart is not None:
            paths += figures.save(charts.draw(chart), Path(folder) / stem, title=chart.label)
    return paths


# ---------------------------------------------------------------------------- predictions


def write_adjusted(
    result: AdjustResult, path: str | Path, *, command: str | None = None, force: bool = False
) -> Path:
    """Write the page about adjusted predictions, and return its path.

    Args:
        result: of labelled predictions.
        path: the file; its folder is made if need be.
        command: what was typed, for the part on how to do it again.
        force: replace a file that is there.
    """
    return adjusted_page(result, command=command).write(path, force=force)


def adjusted_page(result: AdjustResult, *, command: str | None = None) -> Page:
    """Return the page about adjusted predictions; arguments as in `write_adjusted`."""
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
        [
            ("File", source.name),
            ("Scores", {"logits": "logits", "probs": "probabilities"}[source.kind]),
            ("Classes", f"{source.num_classes:,}; the most frequent is {ratio}"),
            ("Judged on", f"{result.num_judged:,} labelled examples"),
            ("Tau", said[1]),
            ("Left out", f"{left_out:,} classes without examples enough" if left_out else ""),
        ]
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
        *(table(t.header, t.rows, t.title, note=t.note) for t in adjusting.tables(result)),
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
    both = np.asarray(100 * wrong[:, kept] / tally.counts[kept])
    series = [
        Series("before", figures.color("softmax")),
        Series("after", figures.color(_LOGIT_ADJUSTED)),
    ]
    page.class_errors(axis, series, both)
    if groups:
        many, few = f"{result.many:g}", f"{result.few:g}"
        bounds = f"many over {many}, medium {few} to {many}, few under {few}"
        page.group_errors(groups, bounds, series, both)
    if command is not None:
        page.section("again", "How to make it again", "", commands([command]))
    return page


def _adjusted_method(result: AdjustResult) -> tuple[FloatArray, FloatArray, TauMethod]:
    """The taus of the curve and of the slider, and the adjustment over both."""
    curve = result.judged_curve
    best = float(curve.minimizer()[0])
    marks = [result.tau, *result.fold_taus, best]
    curve_taus = _grid_around(marks, CURVE_STEPS)
    slider_taus = _grid_around(marks, SLIDER_STEPS)
    for tau in (0.0, 1.0, result.tau, best):
        if slider_taus[0] <= tau <= slider_taus[-1]:
            slider_taus, curve_taus = np.union1d(slider_taus, tau), np.union1d(curve_taus, tau)
    # A long way beyond 4 has wide steps; up to there they are those of every page.
    inside = (curve_taus[0] <= CURVE_TAUS) & (curve_taus[-1] >= CURVE_TAUS)
    curve_taus = np.union1d(CURVE_TAUS[inside], curve_taus)
    if result.target_prior is None:
        values = 100 * curve(curve_taus)
    else:  # the curve is of the error under the target, the chart of the balanced one
        values = _per_class([curve], curve_taus).mean(axis=1)
    place = int(np.argmin(values))
    lowest = float(curve_taus[place])
    choices = {}
    if result.tuning is not None:
        used = result.fold_taus if len(result.fold_taus) else np.array([result.tau])
        error = 100 * result.balanced.after.value
        span = (result.tau, float(used.min()), float(used.max()))
        choices["τ chosen on held-out data"] = Choice(*span, error)
    oracle = Choice(lowest, lowest, lowest, float(values[place]))
    choices["oracle: best τ on the judged set"] = oracle
    theory = {"theory": 1.0} if slider_taus[-1] >= 1.0 else {}
    method = TauMethod(
        Series(figures.label(_LOGIT_ADJUSTED), figures.color(_LOGIT_ADJUSTED)),
        values,
        values,
        values,
        _per_class([curve], slider_taus),
        choices,
        {
            "no adjustment": 0.0,
            **theory,
            "given" if result.tuning is None else "chosen": result.tau,
        },
    )
    return curve_taus, slider_taus, method


def _grid_around(marks: Sequence[float], steps: int) -> FloatArray:
    """From 0 to 4, or as far as these taus are; closer where all of them are small.

    Logits of a small scale, such as cosines, have small taus: on an axis to 4 all that happens
    would lie in a hair's breadth of it.
    """
    largest = max(map(abs, marks))
    if 0 < largest < 0.4:
        unit = 10.0 ** math.floor(math.log10(4 * largest))
        low, high = (4 * end / unit for end in (min(marks), max(marks)))
        return unit * tau_grid(min(0, math.floor(low)), max(1, math.ceil(high)), most=steps)
    # A quarter beyond it, so that one sees the error rise again.
    low = min(0, math.floor(1.25 * min(marks)))
    high = 4 if max(marks) <= 4 else math.ceil(1.25 * max(marks))
    return tau_grid(low, high, most=steps)
