"""The paper's CIFAR tables and figures (section 6.2): every published number beside ours.

ResNet-32 on CIFAR-10-LT and CIFAR-100-LT, EXP profile, imbalance ratio 100, five seeds. About
half an hour on one GPU; without any, --no-train shows what results/exp holds.

  python -m studies exp --no-train                  the table and the page from the records
  python -m studies exp --minutes 9 --device cuda   train what has no record, for nine minutes
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from longtail import InputError
from longtail.report import figures
from longtail.report.compare import Interval, mean_interval
from longtail.runs import DataSpec
from studies import _pages as pages
from studies._pages import Table, mean_deviation
from studies._records import (
    ADJUSTED,
    DROPPED,
    HELD_OUT,
    ROOT,
    SCALED,
    TAUS,
    TITLES,
    Cell,
    Column,
    Record,
    Row,
    Runs,
    Shelf,
    Source,
    add_training_arguments,
    cifar,
    paired,
    resized,
)

# ---------------------------------------------------------------------------- the runs

CIFARS = ("cifar10-lt", "cifar100-lt")
RECIPES = {
    "tuned": "the paper's schedule with a weight decay of 5e-4",
    "paper": "the paper's appendix, with a weight decay of 1e-4",
    "released": "the settings of the authors' public code",
}
LOSSES = ("softmax", "adaptive", "equalized-threshold", "logit-adjusted")
# The paper does not give Adam's rate. ADAM_RATE is the best of these on held-out data, for every
# way and data set; it is the largest that was tried.
ADAM_RATES = (3e-4, 1e-3, 3e-3)
ADAM_RATE = 3e-3
ADAM = {"Adam": {}, "Adam without weight decay": {"weight_decay": 0.0}}


def runs_of(data: DataSpec, recipe: str) -> list[Runs]:
    """Return the runs of a column: the losses, and a softmax with a held-out part to choose τ."""
    partner = Runs("softmax, 20% held out", data, recipe=recipe, held_out=0.2)
    return [
        Runs("softmax", data, recipe=recipe, tau_from=partner),
        *(Runs(loss, data, loss, recipe) for loss in LOSSES[1:]),
        partner,
    ]


def adam_of(data: DataSpec, recipe: str) -> list[Runs]:
    """Return the runs of the weight-norm figure: softmax under Adam, and the trials of its rate."""
    found = []
    for name, changes in ADAM.items():
        for rate in ADAM_RATES:
            values, trial = {"optimizer": "adam", "lr": rate, **changes}, f"{name}, lr {rate:g}"
            if rate == ADAM_RATE:
                found.append(Runs(name, data, recipe=recipe, overrides=values))
            found.append(
                Runs(trial, data, recipe=recipe, overrides=values, seeds=(0,), held_out=0.2)
            )
    return found


def definition(dataset: str, recipe: str, profile: str = "exp") -> list[Runs]:
    """Return all runs of a data set with a recipe; Adam's only where the figure shows them."""
    data = cifar(dataset, profile=profile)
    adam = adam_of(data, recipe) if (profile, recipe) == ("exp", "tuned") else []
    return runs_of(data, recipe) + adam


# ---------------------------------------------------------------------------- the table

SOURCES: dict[Source, str] = {"fixed": "τ = 1", "held-out": "τ held-out", "oracle": "oracle τ*"}
VARIANTS = {
    SCALED: "weight norm., bias scaled",
    DROPPED: "weight norm., bias dropped",
    ADJUSTED: "post-hoc logit adj.",
}
# Published errors in percent on CIFAR-10-LT and CIFAR-100-LT. The paper does not say what weight
# normalisation does to the bias: its values stand beside both ways.
PAPER = {
    "softmax": (27.16, 61.64),
    "weight norm., fixed": (24.02, 58.89),
    "weight norm., oracle": (21.50, 58.76),
    "adaptive": (26.65, 60.40),
    "equalized-threshold": (26.02, 57.26),
    "adjusted, fixed": (22.60, 58.24),
    "adjusted, oracle": (19.08, 57.90),
    "logit-adjusted": (22.33, 56.11),
}


def rows_of(paper: Mapping[str, tuple[float | None, float]]) -> list[Row]:
    """Return the table's rows with their published values."""

    def published(name: str) -> dict[str, float]:
        pairs = zip(CIFARS, paper.get(name, ()), strict=False)
        return {dataset: value for dataset, value in pairs if value is not None}

    def trained(name: str) -> Row:
        return Row(figures.label(name), name, paper=published(name))

    def posthoc(variant: str) -> list[Row]:
        word = "adjusted" if variant == ADJUSTED else "weight norm."
        return [
            Row(f"{VARIANTS[variant]}, {text}", "softmax", variant, s, published(f"{word}, {s}"))
            for s, text in SOURCES.items()
        ]

    return [
        trained("softmax"),
        *posthoc(SCALED),
        *posthoc(DROPPED),
        trained("adaptive"),
        trained("equalized-threshold"),
        *posthoc(ADJUSTED),
        trained("logit-adjusted"),
    ]


ROWS = rows_of(PAPER)


def row_of(variant: str, source: Source = "fixed", runs: str = "softmax") -> Row:
    """Return a post-hoc row, without a published value."""
    return Row(f"{VARIANTS[variant]}, {SOURCES[source]}", runs, variant, source)


ERM, LOSS = Row("softmax (ERM)", "softmax"), Row("logit adjusted", "logit-adjusted")
ADAPTIVE, EQUALIZED = Row("adaptive", "adaptive"), Row("equalized threshold", "equalized-threshold")
TAU_ONE, TAU_BEST = row_of(ADJUSTED), row_of(ADJUSTED, "oracle")


def columns_of(
    shelf: Shelf,
    options: argparse.Namespace,
    *,
    profile: str = "exp",
) -> list[Column]:
    """Return the columns that have records: data sets with the first recipe, then the next."""
    found = []
    for recipe in options.recipe or RECIPES:
        for dataset in options.dataset or CIFARS:
            rows = resized(options, definition(dataset, recipe, profile))
            column = Column.of(dataset, TITLES[dataset], rows, shelf)
            found += [column] if column.records else []
    if not found:
        raise InputError(
            f"there is no record of any of these runs in {options.records}; to train them: "
            f"python -m studies {profile}"
        )
    return found


def overview(columns: Sequence[Column], rows: Iterable[Row]) -> Table:
    """Return the published rows beside ours, all data sets and recipes."""
    keys = list(dict.fromkeys(column.key for column in columns))
    by_key = {key: [column for column in columns if column.key == key] for key in keys}
    header, found = ["method"], []
    for key in keys:
        header += [f"{TITLES[key]}, published", *(f"`{column.recipe}`" for column in by_key[key])]
    for row in rows:
        cells = [row.name]
        for key in keys:
            paper = row.paper.get(key)
            cells.append("" if paper is None else f"{paper:.2f}")
            cells += [mean_deviation(column, row) for column in by_key[key]]
        found.append(cells)
    recipes = dict.fromkeys(column.recipe for column in columns)
    words = "; ".join(f"`{name}`: {RECIPES[name]}" for name in recipes)
    return Table(
        "Balanced test error in percent, imbalance ratio 100",
        header,
        found,
        note=(
            f"Mean and standard deviation over {max(c.seeds for c in columns)} training seeds"
            f"{', fewer where a cell says so' if any(c.missing() for c in columns) else ''}, "
            f"last epoch. {words}. τ held-out is chosen on data held out of a second run; oracle "
            f"τ* on the test set itself, as in the paper."
        ),
    )


def taus_table(columns: Sequence[Column]) -> Table:
    """Return the mean τ of every post-hoc row that chooses one."""
    chosen = [row_of(variant, source) for variant in VARIANTS for source in ("held-out", "oracle")]
    cells = [[column.cell(row) for column in columns] for row in chosen]
    return Table(
        "Mean τ over the seeds",
        ("method", *(f"{column.title}, `{column.recipe}`" for column in columns)),
        [
            (row.name, *("–" if c is None else f"{c.taus.mean():.2f}" for c in found))
            for row, found in zip(chosen, cells, strict=True)
        ],
    )


# ---------------------------------------------------------------------------- the judgement

ALLOWANCE = 0.005  # of balanced error: what was granted before training, and what is comparable
MARKED = [row for row in ROWS if row.name in {ERM.name, TAU_ONE.name, TAU_BEST.name, LOSS.name}]

Verdict = Literal["held", "not held", "undecided"]
MARKS: dict[Verdict | None, str] = {"held": "✓", "not held": "✗", "undecided": "?", None: ""}


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and what the runs of a column say of it.

    Attributes:
        text: the claim.
        interval: what was measured, or None without runs.
        verdict: held or not held if the interval excludes the opposite.
        unit: points of balanced error, or r, a correlation.
    """

    text: str
    interval: Interval | None
    verdict: Verdict | None
    unit: Literal["points", "r"] = "points"

    @property
    def measured(self) -> str:
        """The interval as people read it."""
        return (pages.correlation if self.unit == "r" else pages.points)(self.interval)


def judged(
    text: str,
    interval: Interval | None,
    *,
    bounds: tuple[float, float] = (0.0, np.inf),
    unit: Literal["points", "r"] = "points",
) -> Claim:
    """Judge a claim that a quantity lies within bounds, by its 95% interval.

    Examples:
        >>> judged("above 0", Interval(2.0, 1.0, 3.0, 5)).verdict
        'held'
        >>> judged("below 0", Interval(2.0, 1.0, 3.0, 5), bounds=(-np.inf, 0.0)).verdict
        'not held'
        >>> judged("above 0", Interval(2.0, -1.0, 5.0, 5)).verdict
        'undecided'
    """
    low, high = bounds
    verdict: Verdict | None = None
    if interval is not None:
        inside = low <= interval.low and interval.high <= high
        outside = interval.high < low or interval.low > high
        verdict = "held" if inside else "not held" if outside else "undecided"
    return Claim(text, interval, verdict, unit)


BELOW = (-np.inf, 0.0)


def claims(column: Column) -> list[Claim]:
    """Judge the paper's claims on a column; those about Adam where there are such runs."""

    def errs_more(text: str, worse: Row, better: Row, classes: Any = None) -> Claim:
        which = slice(None) if classes is None else classes
        return judged(text, column.difference(worse, better, lambda e: e[:, which].mean(axis=1)))

    found = [
        errs_more("softmax errs more than post-hoc, τ = 1", ERM, TAU_ONE),
        errs_more("softmax errs more than the loss", ERM, LOSS),
        errs_more("adaptive errs more than the loss", ADAPTIVE, LOSS),
        errs_more("equalized errs more than the loss", EQUALIZED, LOSS),
        errs_more("post-hoc, τ = 1, errs more than the loss", TAU_ONE, LOSS),
    ]
    for variant, way in ((SCALED, "scaled"), (DROPPED, "dropped")):
        text = f"weight norm. (bias {way}) errs more than post-hoc"
        fixed, best = row_of(variant), row_of(variant, "oracle")
        found += [
            errs_more(f"{text}, both at τ = 1", fixed, TAU_ONE),
            errs_more(f"{text}, both at τ*", best, TAU_BEST),
            errs_more(f"{text}, at τ* against τ = 1", best, TAU_ONE),
        ]
    members = group_members(column)
    for name in pages.GROUP_BOUNDS:
        text = f"the loss gains on classes with {name} examples"
        if name in members:
            found.append(errs_more(text, ERM, LOSS, members[name]))
        else:
            found.append(Claim(text, None, None))
    if column.records_of("softmax"):
        rare = rarest(frequencies(column))
        found.append(errs_more("the loss gains on the rarest three tenths", ERM, LOSS, rare))
    text = "under SGD, weight norms grow with frequency"
    found.append(judged(text, norm_correlation(column, "softmax"), unit="r"))
    for name in ADAM if set(ADAM) & column.runs.keys() else ():
        text, plain = f"under {name}, weight norms do not grow with frequency", Row(name, name)
        found.append(judged(text, norm_correlation(column, name), bounds=BELOW, unit="r"))
        text, difference = f"under {name}, the error is that of SGD", column.difference(plain, ERM)
        found.append(judged(text, difference, bounds=(-ALLOWANCE, ALLOWANCE)))
        for variant, way in ((SCALED, "scaled"), (DROPPED, "dropped")):
            text = f"under {name}, weight norm. (bias {way}), τ = 1, gains nothing"
            gain = column.difference(plain, row_of(variant, runs=name))
            found.append(judged(text, gain, bounds=BELOW))
    return found


def claims_table(columns: Sequence[Column], judge: Callable[[Column], list[Claim]]) -> Table:
    """Return every claim with its verdict and interval in each column."""
    by_column = [{claim.text: claim for claim in judge(column)} for column in columns]
    texts = dict.fromkeys(text for found in by_column for text in found)
    rows = [(text, *(verdict_cell(found.get(text)) for found in by_column)) for text in texts]
    return Table(
        "",
        ("claim", *(f"{column.title}, `{column.recipe}`" for column in columns)),
        rows,
        note=(
            "✓ held, ✗ not held, ? undecided: the 95% interval over the seeds lies within what the "
            "claim says, outside of it, or across. Points of balanced error, paired by seed, that "
            "the first errs more, or that adjusting gains; for norms the correlation with log "
            "class frequency."
        ),
    )


def verdict_cell(claim: Claim | None) -> str:
    """Return the mark and the interval; a dash where nothing was measured."""
    if claim is None or claim.verdict is None:
        return "–"
    return f"{MARKS[claim.verdict]} {claim.measured}"


def marks_table(columns: Sequence[Column], marked: Sequence[Row] = MARKED) -> Table:
    """Return the cells that were to be at most half a point above the published value."""
    rows = []
    for column in (column for column in columns if column.recipe == "tuned"):
        for row in marked:
            cell, paper = column.cell(row), row.paper.get(column.key)
            if cell is not None and paper is not None:
                spare = paper / 100 + ALLOWANCE - cell.mean
                rows.append(
                    (
                        f"{column.title}, {row.name}",
                        f"{paper + 100 * ALLOWANCE:.2f}",
                        f"{100 * cell.mean:.2f}",
                        f"{100 * spare:+.3f}".replace("-", "−"),
                        "yes" if spare >= 0 else "no",
                    )
                )
    return Table("Marks, recipe tuned", ("cell", "at most", "ours", "to spare", "met"), rows)


def effects(columns: Sequence[Column], other: Shelf) -> dict[str, dict[str, Interval]]:
    """Return what a change of the setting does to each row: by change, by the row's name."""
    found: dict[str, dict[str, Interval]] = {}
    for column in columns:
        base = next((c for c in columns if (c.key, c.recipe) == (column.key, "paper")), None)
        if base is not None and column.recipe == "tuned":
            of_row = {
                row.name: paired(column.cell(row), base.cell(row)) for row in ROWS if row.paper
            }
            found[f"weight decay 5e-4 instead of 1e-4, {column.title}"] = of_row
    for column in columns:
        of_row = {}
        for variant in VARIANTS:
            row = row_of(variant, "oracle")
            of_row[row.name] = column.difference(row, row_of(variant, "held-out"))
        found[f"oracle τ instead of τ held-out, {column.title}, `{column.recipe}`"] = of_row
    for column in columns:
        again = Column.of(column.key, column.title, column.runs.values(), other)
        of_row = {row.name: paired(column.cell(row), again.cell(row)) for row in ROWS}
        found[f"bfloat16 instead of float32, {column.title}, `{column.recipe}`"] = of_row
    known = {what: {k: v for k, v in of_row.items() if v} for what, of_row in found.items()}
    return {what: of_row for what, of_row in known.items() if of_row}


def effects_tables(found: Mapping[str, Mapping[str, Interval]]) -> list[Table]:
    """Return a table of each change, with a column for each data set and recipe."""
    tables = []
    for change in dict.fromkeys(what.split(", ")[0] for what in found):
        some = {w.removeprefix(f"{change}, "): v for w, v in found.items() if w.startswith(change)}
        names = [row.name for row in ROWS if any(row.name in of_row for of_row in some.values())]
        rows = [(name, *(pages.points(v.get(name)) for v in some.values())) for name in names]
        tables.append(Table(change[0].upper() + change[1:], ("method", *some), rows))
    return tables


# ---------------------------------------------------------------------------- classes and norms


def frequencies(column: Column) -> np.ndarray:
    """Return the training examples of each class."""
    return np.asarray(column.records_of("softmax")[0].prior.counts)


def by_frequency(counts: np.ndarray) -> np.ndarray:
    """Return the classes from most to least frequent; equally frequent ones in label order."""
    return np.argsort(-counts, kind="stable")


def rarest(counts: np.ndarray) -> np.ndarray:
    """Return the rarest three tenths of the classes, one at least.

    Examples:
        >>> rarest(np.array([2, 90, 40, 1, 7, 8, 9]))
        array([0, 3])
    """
    return np.sort(by_frequency(counts)[-max(1, 3 * len(counts) // 10) :])


def group_members(column: Column) -> dict[str, np.ndarray]:
    """Return the classes with many, medium and few training examples, where there are any."""
    runs = column.records_of("softmax")
    groups = runs[0].prior.groups() if runs else {}
    return {name: classes for name, classes in groups.items() if len(classes)}


def correlations(runs: Sequence[Record]) -> np.ndarray:
    """Return the correlation of each run's weight norms with log class frequency."""
    return np.array([np.corrcoef(np.log(one.prior.counts), one.norms)[0, 1] for one in runs])


def norm_correlation(column: Column, name: str) -> Interval | None:
    """Return the mean of `correlations` with its interval, taken in Fisher's z."""
    runs = column.records_of(name)
    if not runs:
        return None
    found = mean_interval(np.arctanh(np.clip(correlations(runs), -1 + 1e-12, 1 - 1e-12)))
    ends = np.tanh([found.mean, found.low, found.high]).tolist()
    return Interval(*ends, found.seeds)


# ---------------------------------------------------------------------------- figures

_MARKERS = ("o", "s", "^", "v", "D")
_CURVES: dict[str, tuple[str, Any]] = {
    ADJUSTED: (figures.SKY, "-"),
    SCALED: (figures.VERMILION, "-"),
    DROPPED: (figures.VERMILION, (0, (4, 1.5))),
}
_TAU_MARKS: dict[Source, tuple[str, float]] = {
    "fixed": ("o", 4.5),
    "held-out": ("D", 4.5),
    "oracle": ("*", 9),
}
_NORMS = {
    "softmax": ("SGD with momentum", figures.BLUE, "o"),
    "Adam": (f"Adam, lr {ADAM_RATE:g}", figures.VERMILION, "s"),
    "Adam without weight decay": ("Adam, no weight decay", figures.GREEN, "^"),
}


def _band(axes: Any, x: Any, values: np.ndarray, alpha: float, **look: Any) -> np.ndarray:
    """Draw the mean over the seeds within a standard deviation; return the mean."""
    mean, spread = _moments(values)
    axes.plot(x, mean, **look)
    axes.fill_between(x, mean - spread, mean + spread, color=look["color"], alpha=alpha, lw=0)
    return mean


def _moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
    return values.mean(axis=0), spread


def _panels(columns: Sequence[Column], height: float) -> tuple[Any, Any]:
    width = 1.0 + 3.2 * len(columns)
    figure, grid = figures.panels(columns=len(columns), width=width, height=height)
    for axes, column in zip(grid[0], columns, strict=True):
        axes.set_title(column.title)
    return figure, grid[0]


def draw_norms(columns: Sequence[Column]) -> Any:
    """Draw each class's weight norm, relative to the mean over the classes."""
    with figures.style():
        figure, panels = _panels(columns, 2.8)
        for axes, column in zip(panels, columns, strict=True):
            order = by_frequency(frequencies(column))
            for name, (text, color, marker) in _NORMS.items():
                runs = column.records_of(name)
                if not runs:
                    continue
                norms = np.array([one.norms[order] / one.norms.mean() for one in runs])
                error = 100 * np.mean([one.per_class().mean() for one in runs])
                r = norm_correlation(column, name)
                label = f"{text}: r = {r.mean:+.2f}, error {error:.1f}%".replace("-0", "−0")
                look = {"marker": marker, "ms": 4} if len(order) <= 20 else {"lw": 1.2}
                _band(axes, np.arange(len(order)), norms, 0.2, color=color, label=label, **look)
            axes.set_xlabel("class, most frequent first")
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24), ncols=1)
        panels[0].set_ylabel("weight norm / mean norm")
    return figure


def draw_taus(columns: Sequence[Column], rows: Sequence[Row]) -> Any:
    """Draw the balanced error of the post-hoc methods against τ, exact at every point."""
    with figures.style():
        figure, panels = _panels(columns, 3.6)
        for axes, column in zip(panels, columns, strict=True):
            _draw_curves(axes, column, rows)
            axes.set_xlabel("τ")
        panels[0].set_ylabel("balanced error (%)")
        black = {"color": figures.BLACK, "mfc": "white", "mew": 0.8, "ls": ""}
        for marker, size, text in (
            ("o", 4.5, "τ = 1"),
            ("D", 4.5, "τ from held-out data"),
            ("*", 9, "τ* of the test set"),
            ("x", 5, "published, τ = 1"),
            ("<", 5, "published, τ* (not given)"),
        ):
            panels[0].plot([], [], marker, ms=size, label=text, **black)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=1 + len(columns))
    return figure


def _draw_curves(axes: Any, column: Column, rows: Sequence[Row]) -> None:
    means, levels = [], []
    for variant, (color, dashes) in _CURVES.items():
        runs = column.records_of("softmax")
        found = [curve for one in runs if (curve := one.curve(variant)) is not None]
        if not found:
            continue
        look = {"color": color, "ls": dashes, "label": VARIANTS[variant]}
        means.append(_band(axes, TAUS, 100 * np.array(found), 0.18, **look))
        marks = {"mfc": color, "mec": figures.BLACK, "mew": 0.8, "ls": "", "zorder": 3}
        for source, (marker, size) in _TAU_MARKS.items():
            cell = column.cell(row_of(variant, source))
            if cell is not None:
                axes.plot([cell.taus.mean()], [100 * cell.mean], marker, ms=size, **marks)
    for row, text in ((ERM, "softmax (ERM)"), (LOSS, "logit-adjusted loss")):
        cell = column.cell(row)
        if cell is not None:
            levels.append(100 * cell.mean)
            axes.axhline(levels[-1], label=text, color=figures.color(row.runs), lw=1, ls=":")
    published = [
        row for row in rows if row.variant in (ADJUSTED, SCALED) and column.key in row.paper
    ]
    levels += [row.paper[column.key] for row in published]
    axes.axvline(1.0, color=figures.LIGHT_GRAY, lw=0.9, zorder=0)
    top = max(mean[0] for mean in means)
    room = max(top - min(levels + [mean.min() for mean in means]), 1.0)
    axes.set_ylim(top - 1.15 * room, top + 0.35 * room)
    # As far as a curve is in sight.
    seen = np.flatnonzero((np.array(means) <= top + 0.35 * room).any(axis=0))
    right = TAUS[min(seen[-1] + 1, len(TAUS) - 1)]
    axes.set_xlim(0.0, right)
    for row in published:
        place, marker = (1.0, "x") if row.source == "fixed" else (right, "<")
        look = {"color": _CURVES[row.variant][0], "ms": 5, "mew": 1.5, "clip_on": False}
        axes.plot([place], [row.paper[column.key]], marker, **look)


SHOWN = (ERM, ADAPTIVE, EQUALIZED, TAU_ONE, LOSS)


def _shown(column: Column) -> Iterable[tuple[Row, Cell, str, str]]:
    for row, marker in zip(SHOWN, _MARKERS, strict=True):
        cell = column.cell(row)
        if cell is not None:
            yield row, cell, figures.color(row.variant or row.runs), marker


def draw_classes(columns: Sequence[Column]) -> Any:
    """Draw errors by class from the most to the least frequent; many classes in ten groups."""
    with figures.style():
        figure, panels = _panels(columns, 3.3)
        for axes, column in zip(panels, columns, strict=True):
            order = by_frequency(frequencies(column))
            many = len(order) > 20
            groups = np.array_split(order, 10 if many else len(order))
            places = np.arange(len(groups))
            names = column.records_of("softmax")[0].document.get("class_names")
            ticks = [str(i) for i in places]
            if names is not None and not many:
                ticks = [names[label] for label in order]
            for row, cell, color, marker in _shown(column):
                errors = np.stack([cell.per_class[:, some].mean(axis=1) for some in groups], axis=1)
                look = {"color": color, "marker": marker, "ms": 4, "mew": 0, "label": row.name}
                _band(axes, places, 100 * errors, 0.12, **look)
            slant = 0 if max(map(len, ticks)) < 3 else 45
            axes.set_xticks(places, ticks, rotation=slant, ha="right" if slant else "center")
            what = f"group of {len(groups[0])} classes" if many else "class"
            axes.set_xlabel(f"{what}, most frequent first")
        _finish_panels(figure, panels)
    return figure


def draw_groups(columns: Sequence[Column]) -> Any:
    """Draw errors of the classes with many, medium and few training examples."""
    with figures.style():
        figure, panels = _panels(columns, 3.0)
        for axes, column in zip(panels, columns, strict=True):
            groups, shown = group_members(column), list(_shown(column))
            width = 0.8 / len(shown)
            for i, (row, cell, color, _) in enumerate(shown):
                errors = [cell.per_class[:, some].mean(axis=1) for some in groups.values()]
                mean, spread = _moments(100 * np.stack(errors, axis=1))
                places = np.arange(len(groups)) + (i - (len(shown) - 1) / 2) * width
                bars = {"color": color, "label": row.name, "error_kw": {"elinewidth": 0.8}}
                axes.bar(places, mean, 0.9 * width, yerr=spread if spread.any() else None, **bars)
            ticks = [
                f"{name} ({pages.GROUP_BOUNDS[name]})\n{len(some)} class{'es' * (len(some) > 1)}"
                for name, some in groups.items()
            ]
            axes.set_xticks(range(len(groups)), ticks, fontsize=6.8)
            axes.tick_params(axis="x", length=0)
        _finish_panels(figure, panels)
    return figure


def _finish_panels(figure: Any, panels: Any) -> None:
    for axes in panels:
        axes.set_ylim(0, 102)
        axes.grid(axis="x", visible=False)
    panels[0].set_ylabel("error (%)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)


def write_figures(write: Any, columns: Sequence[Column], rows: Sequence[Row]) -> None:
    """Write every figure of each recipe's columns."""
    drawn = (
        ("weight-norms", draw_norms, "Norms of the last layer's weights by class"),
        (
            "tau-curves",
            partial(draw_taus, rows=rows),
            "Balanced error of the post-hoc methods against tau",
        ),
        ("per-class", draw_classes, "Error by class, from the most frequent to the rarest"),
        (
            "groups",
            draw_groups,
            "Error of the classes with many, medium and few training examples",
        ),
    )
    for recipe in dict.fromkeys(column.recipe for column in columns):
        some = [c for c in columns if c.recipe == recipe and c.records_of("softmax")]
        for name, draw, title in drawn if some else ():
            write.figure(f"{recipe}-{name}", draw(some), title=title)


# ---------------------------------------------------------------------------- the page


def add_arguments(parser: argparse.ArgumentParser, records: str = "results/exp") -> None:
    """Add the options of a study on the CIFARs."""
    parser.add_argument(
        "--recipe", action="append", choices=RECIPES, help="Only this one; tuned and paper train."
    )
    add_training_arguments(parser, records=records, datasets=CIFARS)


def collect(options: argparse.Namespace, *, profile: str = "exp") -> list[Column] | None:
    """Train what is missing and return the columns; None if time ran out before that."""
    recipes, datasets = options.recipe or ("tuned", "paper"), options.dataset or CIFARS
    rows = [
        one for recipe in recipes for name in datasets for one in definition(name, recipe, profile)
    ]
    shelf = pages.trained(options, resized(options, rows))
    return None if shelf is None else columns_of(shelf, options, profile=profile)


def show_columns(columns: Sequence[Column], rows: Sequence[Row], title: str) -> None:
    """Print each column beside the published values."""
    for column in columns:
        lacking = column.missing()
        said = f"{len(column.records)} runs in {column.minutes:.1f} minutes."
        said += f" Missing: {'; '.join(lacking)}." if lacking else ""
        name = f"{title}, {column.title}, recipe {column.recipe}"
        pages.show([pages.cells_table(column, rows, title=name, note=said)])


def main(options: argparse.Namespace) -> None:
    """Train what is missing, print the tables and write the page."""
    columns = collect(options)
    if columns is None:
        return
    show_columns(columns, ROWS, "Balanced error in percent")
    pages.show([claims_table(columns, claims), marks_table(columns)])
    with pages.page(options, "docs/reproduction.md") as write:
        write(text(columns))
        write_figures(write, columns, ROWS)


def text(columns: Sequence[Column], float32: Shelf | None = None) -> str:
    """Return the page."""
    float32 = Shelf(ROOT / "results/exp-float32") if float32 is None else float32
    tuned = [column for column in columns if column.recipe == "tuned"]
    found, named = effects(columns, float32), [*ROWS, *(Row(name, name) for name in ADAM)]
    records = [one for column in columns for one in column.records]
    return pages.render(
        "reproduction",
        complete={c.key for c in tuned} == set(CIFARS) and not any(c.missing() for c in tuned),
        columns=columns,
        tuned=tuned,
        recipes=list(dict.fromkeys(column.recipe for column in columns)),
        words=RECIPES,
        **pages.facts(records),
        overview=overview(columns, ROWS),
        taus=taus_table(columns),
        claims={c.key: {one.text: one for one in claims(c)} for c in tuned},
        claims_table=claims_table(columns, claims),
        marks=marks_table(columns),
        missed=_missed(tuned, float32),
        effects=found,
        effects_tables=effects_tables(found),
        cells={c.key: {row.name: c.cell(row) for row in named} for c in tuned},
        parts={c.key: _part_errors(c) for c in tuned},
        between=_between(columns),
        rates=ADAM_RATES,
        rate=ADAM_RATE,
        held_out_errors={c.key: _trials(c) for c in tuned},
    )


def _trials(column: Column) -> dict[str, float]:
    """Held-out errors of the trials of Adam's rate."""
    return {
        name: float(found[0].per_class(HELD_OUT).mean())
        for name in column.runs
        if ", lr " in name and (found := column.records_of(name))
    }


def _part_errors(column: Column) -> dict[str, tuple[float, float]]:
    """Errors of softmax and of the loss by group, and on the most frequent three tenths."""
    if None in (column.cell(ERM), column.cell(LOSS)):
        return {}
    counts = frequencies(column)
    parts = group_members(column) | {"head": by_frequency(counts)[: max(1, 3 * len(counts) // 10)]}
    return {
        name: tuple(float(column.cell(row).per_class[:, some].mean()) for row in (ERM, LOSS))
        for name, some in parts.items()
    }


def _missed(columns: Sequence[Column], float32: Shelf) -> list[dict[str, Any]]:
    """Marks that were missed, and what the same runs in float32 have."""
    found = []
    for column in columns:
        other = Column.of(column.key, column.title, column.runs.values(), float32)
        for row in MARKED:
            cell = column.cell(row)
            over = 0.0 if cell is None else cell.mean - row.paper[column.key] / 100 - ALLOWANCE
            if over > 0:
                again = other.cell(row)
                found.append({"title": column.title, "row": row.name, "over": over, "cell": cell})
                found[-1] |= {"again": again, "meets": again and again.mean <= cell.mean - over}
    return found


def _between(columns: Sequence[Column]) -> tuple[int, int]:
    """Count the published numbers between ours with `tuned` and with `paper`, and all of them."""
    inside = total = 0
    for one in columns:
        for other in columns:
            if (one.recipe, other.recipe, one.key) == ("tuned", "paper", other.key):
                for row in (row for row in ROWS if row.paper):
                    cells = [column.cell(row) for column in (one, other)]
                    if None not in cells:
                        ends = sorted(100 * cell.mean for cell in cells)
                        inside += ends[0] <= row.paper[one.key] <= ends[1]
                        total += 1
    return inside, total
