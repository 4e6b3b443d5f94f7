"""The paper's CIFAR tables and figures (section 6.2): every published number beside ours.

ResNet-32 on CIFAR-10-LT and CIFAR-100-LT, EXP profile, imbalance ratio 100, five seeds. About
half an hour on one GPU; without any, --no-train shows what results/exp holds.

  python -m studies exp --no-train                  the table and the page from the records
  python -m studies exp --minutes 9 --device cuda   train what has no record, for nine minutes
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from longtail.report import figures
from longtail.report.compare import Interval, mean_interval
from longtail.report.tables import GROUP_BOUNDS, Table
from longtail.runs import DataSpec
from studies import _pages as pages
from studies._pages import mean_deviation, published
from studies._records import (
    ADJUSTED,
    DROPPED,
    ROOT,
    SCALED,
    TAUS,
    TITLES,
    Cell,
    Column,
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
LDAM = Row("LDAM, its authors' recipe", "LDAM")
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


def definition(dataset: str, recipe: str, profile: str = "exp") -> list[Runs]:
    """Return all runs of a data set with a recipe.

    Adam's, with the trials of its rate, are for the weight-norm figure of EXP and `tuned`. LDAM as
    its authors train it stands beside the adaptive loss of STEP.
    """
    data = cifar(dataset, profile=profile)
    found = runs_of(data, recipe)
    if (profile, recipe) == ("step", "tuned"):
        found.append(Runs(LDAM.runs, data, "ldam", recipe="ldam", seeds=(0, 1, 2)))
    for name, changes in ADAM.items() if (profile, recipe) == ("exp", "tuned") else ():
        for rate in ADAM_RATES:
            values, trial = {"optimizer": "adam", "lr": rate, **changes}, f"{name}, lr {rate:g}"
            if rate == ADAM_RATE:
                found.append(Runs(name, data, recipe=recipe, overrides=values))
            one = Runs(trial, data, recipe=recipe, overrides=values, seeds=(0,), held_out=0.2)
            found.append(one)
    return found


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


def row_of(variant: str, source: Source = "fixed", runs: str = "softmax", paper: Any = None) -> Row:
    """Return a post-hoc row."""
    return Row(f"{VARIANTS[variant]}, {SOURCES[source]}", runs, variant, source, paper or {})


def rows_with(paper: Mapping[str, Mapping[str, float]]) -> list[Row]:
    """Return the table's rows with their published values, by name as in `PAPER`."""

    def trained(name: str) -> Row:
        return Row(figures.label(name), name, paper=paper.get(name, {}))

    def posthoc(variant: str) -> list[Row]:
        word = "adjusted" if variant == ADJUSTED else "weight norm."
        return [row_of(variant, s, paper=paper.get(f"{word}, {s}")) for s in SOURCES]

    return [
        trained("softmax"),
        *posthoc(SCALED),
        *posthoc(DROPPED),
        trained("adaptive"),
        trained("equalized-threshold"),
        *posthoc(ADJUSTED),
        trained("logit-adjusted"),
    ]


def rows_of(paper: Mapping[str, Sequence[float | None]]) -> list[Row]:
    """Return the table's rows with what is published of both CIFARs."""
    return rows_with(
        {
            name: {k: v for k, v in zip(CIFARS, values, strict=True) if v is not None}
            for name, values in paper.items()
        }
    )


ROWS = rows_of(PAPER)
ERM, LOSS = Row("softmax (ERM)", "softmax"), Row("logit adjusted", "logit-adjusted")
ADAPTIVE, EQUALIZED = Row("adaptive", "adaptive"), Row("equalized threshold", "equalized-threshold")
TAU_ONE, TAU_BEST = row_of(ADJUSTED), row_of(ADJUSTED, "oracle")


def columns_of(shelf: Shelf, options: argparse.Namespace, profile: str = "exp") -> list[Column]:
    """Return the columns that have records: data sets with the first recipe, then the next."""
    columns = [
        Column.of(name, TITLES[name], resized(options, definition(name, recipe, profile)), shelf)
        for recipe in options.recipe or RECIPES
        for name in options.dataset or CIFARS
    ]
    found = [column for column in columns if column.records]
    pages.refuse_nothing(found, options, f"; to train them: python -m studies {profile}")
    return found


def overview(columns: Sequence[Column], rows: Iterable[Row]) -> Table:
    """Return the published rows beside ours, all data sets and recipes."""
    keys = list(dict.fromkeys(column.key for column in columns))
    by_key = {key: [column for column in columns if column.key == key] for key in keys}
    header = ["method"]
    for key, some in by_key.items():
        header += [f"{TITLES[key]}, published", *(f"`{column.recipe}`" for column in some)]
    found = [[row.name] for row in rows]
    for row, cells in zip(rows, found, strict=True):
        for some in by_key.values():
            cells.append(published(row, some[0]))
            cells += [mean_deviation(column, row) for column in some]
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


def titles(columns: Sequence[Column]) -> list[str]:
    """Return the columns' headings."""
    return [f"{column.title}, `{column.recipe}`" for column in columns]


def taus_table(columns: Sequence[Column]) -> Table:
    """Return the mean τ of every post-hoc row that chooses one."""
    chosen = [row_of(variant, source) for variant in VARIANTS for source in ("held-out", "oracle")]
    rows = []
    for row in chosen:
        cells = [column.cell(row) for column in columns]
        rows.append((row.name, *("–" if c is None else f"{c.taus.mean():.2f}" for c in cells)))
    return Table("Mean τ over the seeds", ("method", *titles(columns)), rows)


# ---------------------------------------------------------------------------- the judgement

ALLOWANCE = 0.005  # of balanced error: what was granted before training, and what is comparable
MARKED = [row for row in ROWS if row.name in {ERM.name, TAU_ONE.name, TAU_BEST.name, LOSS.name}]
MARKS = {"held": "✓", "not held": "✗", "undecided": "?"}
BELOW = (-np.inf, 0.0)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, that a quantity lies within bounds, and what was measured of it.

    Examples:
        >>> Claim("above 0", Interval(2.0, 1.0, 3.0, 5)).verdict
        'held'
        >>> Claim("below 0", Interval(2.0, 1.0, 3.0, 5), BELOW).verdict
        'not held'
        >>> Claim("above 0", Interval(2.0, -1.0, 5.0, 5)).verdict
        'undecided'
    """

    text: str
    interval: Interval | None  # None without runs
    bounds: tuple[float, float] = (0.0, np.inf)
    correlation: bool = False  # else points of balanced error

    @property
    def verdict(self) -> str | None:
        """Held or not held if the 95% interval excludes the opposite."""
        if self.interval is None:
            return None
        (low, high), found = self.bounds, self.interval
        if low <= found.low and found.high <= high:
            return "held"
        return "not held" if found.high < low or found.low > high else "undecided"

    @property
    def measured(self) -> str:
        """The interval as people read it."""
        return (pages.correlation if self.correlation else pages.points)(self.interval)

    @property
    def cell(self) -> str:
        """The mark and the interval; a dash where nothing was measured."""
        return "–" if self.verdict is None else f"{MARKS[self.verdict]} {self.measured}"


def claims(column: Column) -> dict[str, Claim]:
    """Judge the paper's claims on a column; those about Adam where there are such runs."""
    found: dict[str, Claim] = {}

    def judge(text: str, interval: Interval | None, **more: Any) -> None:
        found[text] = Claim(text, interval, **more)

    def errs_more(text: str, worse: Row, better: Row, classes: Any = slice(None)) -> None:
        judge(text, column.difference(worse, better, lambda e: e[:, classes].mean(axis=1)))

    errs_more("softmax errs more than post-hoc, τ = 1", ERM, TAU_ONE)
    errs_more("softmax errs more than the loss", ERM, LOSS)
    errs_more("adaptive errs more than the loss", ADAPTIVE, LOSS)
    errs_more("equalized errs more than the loss", EQUALIZED, LOSS)
    errs_more("post-hoc, τ = 1, errs more than the loss", TAU_ONE, LOSS)
    ways = {SCALED: "scaled", DROPPED: "dropped"}
    for variant, way in ways.items():
        text = f"weight norm. (bias {way}) errs more than post-hoc"
        fixed, best = row_of(variant), row_of(variant, "oracle")
        errs_more(f"{text}, both at τ = 1", fixed, TAU_ONE)
        errs_more(f"{text}, both at τ*", best, TAU_BEST)
        errs_more(f"{text}, at τ* against τ = 1", best, TAU_ONE)
    members = group_members(column)
    for name in GROUP_BOUNDS:
        text = f"the loss gains on classes with {name} examples"
        if name in members:
            errs_more(text, ERM, LOSS, members[name])
        else:
            judge(text, None)
    if column.records_of("softmax"):
        errs_more("the loss gains on the rarest three tenths", ERM, LOSS, rarest(counts_of(column)))
    norms = {"interval": norm_correlation(column, "softmax"), "correlation": True}
    judge("under SGD, weight norms grow with frequency", **norms)
    for name in ADAM if set(ADAM) & column.runs.keys() else ():
        plain, norms["interval"] = Row(name, name), norm_correlation(column, name)
        judge(f"under {name}, weight norms do not grow with frequency", bounds=BELOW, **norms)
        change, bounds = column.difference(plain, ERM), (-ALLOWANCE, ALLOWANCE)
        judge(f"under {name}, the error is that of SGD", change, bounds=bounds)
        for variant, way in ways.items():
            gain = column.difference(plain, row_of(variant, runs=name))
            text = f"under {name}, weight norm. (bias {way}), τ = 1, gains nothing"
            judge(text, gain, bounds=BELOW)
    return found


def claims_table(columns: Sequence[Column]) -> Table:
    """Return every claim with its verdict and interval in each column."""
    by_column = [claims(column) for column in columns]
    texts = dict.fromkeys(text for found in by_column for text in found)
    rows = [
        (text, *(found[text].cell if text in found else "–" for found in by_column))
        for text in texts
    ]
    return Table(
        "",
        ("claim", *titles(columns)),
        rows,
        note=(
            "✓ held, ✗ not held, ? undecided: the 95% interval over the seeds lies within what the "
            "claim says, outside of it, or across. Points of balanced error, paired by seed, that "
            "the first errs more, or that adjusting gains; for norms the correlation with log "
            "class frequency."
        ),
    )


def marks_table(columns: Sequence[Column], marked: Sequence[Row] = MARKED) -> Table:
    """Return the cells that were to be at most half a point above the published value."""
    rows = []
    for column in (column for column in columns if column.recipe == "tuned"):
        for row in (row for row in marked if column.key in row.paper):
            if (cell := column.cell(row)) is not None:
                spare = row.paper[column.key] / 100 + ALLOWANCE - cell.mean
                rows.append(
                    (
                        f"{column.title}, {row.name}",
                        f"{row.paper[column.key] + 100 * ALLOWANCE:.2f}",
                        f"{100 * cell.mean:.2f}",
                        f"{100 * spare:+.3f}".replace("-", "−"),
                        "yes" if spare >= 0 else "no",
                    )
                )
    return Table("Marks, recipe tuned", ("cell", "at most", "ours", "to spare", "met"), rows)


def effects_tables(columns: Sequence[Column], float32: Shelf) -> list[Table]:
    """Return what a change of the setting does to each row: a table of each change."""
    found: dict[str, dict[str, dict[str, Interval | None]]] = {}  # by change, column and row

    def keep(change: str, where: str, of_row: dict[str, Interval | None]) -> None:
        if any(of_row.values()):
            found.setdefault(change, {})[where] = of_row

    for column in columns:
        base = next((c for c in columns if (c.key, c.recipe) == (column.key, "paper")), None)
        if base is not None and column.recipe == "tuned":
            rows = {row.name: paired(column.cell(row), base.cell(row)) for row in ROWS if row.paper}
            keep("Weight decay 5e-4 instead of 1e-4", column.title, rows)
    for column, title in zip(columns, titles(columns), strict=True):
        best = [(row_of(variant, "oracle"), row_of(variant, "held-out")) for variant in VARIANTS]
        rows = {row.name: column.difference(row, other) for row, other in best}
        keep("Oracle τ instead of τ held-out", title, rows)
    for column, title in zip(columns, titles(columns), strict=True):
        again = Column.of(column.key, column.title, column.runs.values(), float32)
        rows = {row.name: paired(column.cell(row), again.cell(row)) for row in ROWS}
        keep("Bfloat16 instead of float32", title, rows)
    tables = []
    for change, of_column in found.items():
        some = {name for of_row in of_column.values() for name, found in of_row.items() if found}
        names = [row.name for row in ROWS if row.name in some]
        rows = [(n, *(pages.points(v.get(n)) for v in of_column.values())) for n in names]
        tables.append(Table(change, ("method", *of_column), rows))
    return tables


# ---------------------------------------------------------------------------- classes and norms


def counts_of(column: Column) -> np.ndarray:
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


def norm_correlation(column: Column, name: str) -> Interval | None:
    """Return the mean correlation of weight norms with log class frequency, by Fisher's z."""
    runs = column.records_of(name)
    if not runs:
        return None
    found = np.array([np.corrcoef(np.log(one.prior.counts), one.norms)[0, 1] for one in runs])
    z = mean_interval(np.arctanh(np.clip(found, -1 + 1e-12, 1 - 1e-12)))
    return Interval(*np.tanh([z.mean, z.low, z.high]).tolist(), z.seeds)


# ---------------------------------------------------------------------------- figures

_CURVES: dict[str, tuple[str, Any]] = {
    ADJUSTED: (figures.SKY, "-"),
    SCALED: (figures.VERMILION, "-"),
    DROPPED: (figures.VERMILION, (0, (4, 1.5))),
}
_TAU_MARKS: dict[Source, tuple[str, float, str]] = {
    "fixed": ("o", 4.5, "τ = 1"),
    "held-out": ("D", 4.5, "τ from held-out data"),
    "oracle": ("*", 9, "τ* of the test set"),
}
_PAPER_MARKS = (("x", 5, "published, τ = 1"), ("<", 5, "published, τ* (not given)"))
_NORMS = {
    "softmax": ("SGD with momentum", figures.BLUE, "o"),
    "Adam": (f"Adam, lr {ADAM_RATE:g}", figures.VERMILION, "s"),
    "Adam without weight decay": ("Adam, no weight decay", figures.GREEN, "^"),
}
_SHOWN = dict(zip((ERM, ADAPTIVE, EQUALIZED, TAU_ONE, LOSS), "os^vD", strict=True))


def _moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
    return values.mean(axis=0), spread


def _band(axes: Any, x: Any, values: np.ndarray, alpha: float, **look: Any) -> np.ndarray:
    """Draw the mean over the seeds within a standard deviation; return the mean."""
    mean, spread = _moments(values)
    axes.plot(x, mean, **look)
    axes.fill_between(x, mean - spread, mean + spread, color=look["color"], alpha=alpha, lw=0)
    return mean


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
            order = by_frequency(counts_of(column))
            for name, (text, color, marker) in _NORMS.items():
                if runs := column.records_of(name):
                    norms = np.array([one.norms[order] / one.norms.mean() for one in runs])
                    error = 100 * np.mean([one.per_class().mean() for one in runs])
                    r = norm_correlation(column, name).mean
                    label = f"{text}: r = {r:+.2f}, error {error:.1f}%".replace("-0", "−0")
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
        for marker, size, text in (*_TAU_MARKS.values(), *_PAPER_MARKS):
            panels[0].plot([], [], marker, ms=size, label=text, **black)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=1 + len(columns))
    return figure


def _draw_curves(axes: Any, column: Column, rows: Sequence[Row]) -> None:
    means, levels = [], []
    for variant, (color, dashes) in _CURVES.items():
        found = [one.curve(variant) for one in column.records_of("softmax")]
        found = [curve for curve in found if curve is not None]
        if not found:
            continue
        look = {"color": color, "ls": dashes, "label": VARIANTS[variant]}
        means.append(_band(axes, TAUS, 100 * np.array(found), 0.18, **look))
        marks = {"mfc": color, "mec": figures.BLACK, "mew": 0.8, "ls": "", "zorder": 3}
        for source, (marker, size, _) in _TAU_MARKS.items():
            if (cell := column.cell(row_of(variant, source))) is not None:
                axes.plot([cell.taus.mean()], [100 * cell.mean], marker, ms=size, **marks)
    for row, text in ((ERM, "softmax (ERM)"), (LOSS, "logit-adjusted loss")):
        if (cell := column.cell(row)) is not None:
            levels.append(100 * cell.mean)
            axes.axhline(levels[-1], label=text, color=figures.color(row.runs), lw=1, ls=":")
    paper = [row for row in rows if row.variant in (ADJUSTED, SCALED) and column.key in row.paper]
    levels += [row.paper[column.key] for row in paper]
    axes.axvline(1.0, color=figures.LIGHT_GRAY, lw=0.9, zorder=0)
    top = max(mean[0] for mean in means)
    room = max(top - min(levels + [mean.min() for mean in means]), 1.0)
    axes.set_ylim(top - 1.15 * room, top + 0.35 * room)
    # As far as a curve is in sight.
    seen = np.flatnonzero((np.array(means) <= top + 0.35 * room).any(axis=0))
    right = TAUS[min(seen[-1] + 1, len(TAUS) - 1)]
    axes.set_xlim(0.0, right)
    for row in paper:
        place, marker = (1.0, "x") if row.source == "fixed" else (right, "<")
        look = {"color": _CURVES[row.variant][0], "ms": 5, "mew": 1.5, "clip_on": False}
        axes.plot([place], [row.paper[column.key]], marker, **look)


def _shown(column: Column) -> list[tuple[Row, Cell, str]]:
    """Return the rows of the two figures by class, with their cells and colours."""
    cells = [(row, column.cell(row), figures.color(row.variant or row.runs)) for row in _SHOWN]
    return [found for found in cells if found[1] is not None]


def draw_classes(columns: Sequence[Column]) -> Any:
    """Draw errors by class from the most to the least frequent; many classes in ten groups."""
    with figures.style():
        figure, panels = _panels(columns, 3.3)
        for axes, column in zip(panels, columns, strict=True):
            order = by_frequency(counts_of(column))
            many = len(order) > 20
            groups = np.array_split(order, 10 if many else len(order))
            places = np.arange(len(groups))
            names = column.records_of("softmax")[0].document.get("class_names")
            ticks = [str(i) for i in places] if many or not names else [names[k] for k in order]
            for row, cell, color in _shown(column):
                errors = np.stack([cell.per_class[:, some].mean(axis=1) for some in groups], axis=1)
                look = {"marker": _SHOWN[row], "ms": 4, "mew": 0, "label": row.name}
                _band(axes, places, 100 * errors, 0.12, color=color, **look)
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
            groups, shown = group_members(column), _shown(column)
            width = 0.8 / len(shown)
            for i, (row, cell, color) in enumerate(shown):
                errors = [cell.per_class[:, some].mean(axis=1) for some in groups.values()]
                mean, spread = _moments(100 * np.stack(errors, axis=1))
                places = np.arange(len(groups)) + (i - (len(shown) - 1) / 2) * width
                bars = {"color": color, "label": row.name, "error_kw": {"elinewidth": 0.8}}
                axes.bar(places, mean, 0.9 * width, yerr=spread if spread.any() else None, **bars)
            ticks = [
                f"{name} ({GROUP_BOUNDS[name]})\n{len(some)} class{'es' * (len(some) > 1)}"
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
    for recipe in dict.fromkeys(column.recipe for column in columns):
        some = [c for c in columns if c.recipe == recipe and c.records_of("softmax")]
        for name, draw, title in (
            ("weight-norms", draw_norms, "Norms of the last layer's weights by class"),
            (
                "tau-curves",
                lambda some: draw_taus(some, rows),
                "Balanced error of the post-hoc methods against tau",
            ),
            ("per-class", draw_classes, "Error by class, from the most frequent to the rarest"),
            (
                "groups",
                draw_groups,
                "Error of the classes with many, medium and few training examples",
            ),
        ):
            if some:
                write.figure(f"{recipe}-{name}", draw(some), title=title)


# ---------------------------------------------------------------------------- the page


def add_arguments(parser: argparse.ArgumentParser, records: str = "results/exp") -> None:
    """Add the options of a study on the CIFARs."""
    parser.add_argument(
        "--recipe", action="append", choices=RECIPES, help="Only this one; tuned and paper train."
    )
    add_training_arguments(parser, records=records, datasets=CIFARS)


def collect(
    options: argparse.Namespace, rows: Sequence[Row], title: str, profile: str = "exp"
) -> list[Column] | None:
    """Train what is missing, print each column, and return them; None if time ran out."""
    recipes, datasets = options.recipe or ("tuned", "paper"), options.dataset or CIFARS
    runs = [
        one for recipe in recipes for name in datasets for one in definition(name, recipe, profile)
    ]
    shelf, finished = pages.trained(options, resized(options, runs))
    if not finished:
        return None
    columns = columns_of(shelf, options, profile)
    for column in columns:
        name = f"{title}, {column.title}, recipe {column.recipe}"
        pages.show([pages.columns_table(column, rows, name)])
    return columns


def main(options: argparse.Namespace) -> None:
    """Train what is missing, print the tables and write the page."""
    columns = collect(options, ROWS, "Balanced error in percent")
    if columns is None:
        return
    pages.show([claims_table(columns), marks_table(columns)])
    with pages.page(options, "docs/reproduction.md") as write:
        write(text(columns))
        write_figures(write, columns, ROWS)


def text(columns: Sequence[Column]) -> str:
    """Return the page."""
    float32 = Shelf(ROOT / "results/exp-float32")
    tuned = [column for column in columns if column.recipe == "tuned"]
    named = [*ROWS, *(Row(name, name) for name in ADAM)]
    return pages.render(
        "reproduction",
        complete={c.key for c in tuned} == set(CIFARS) and not any(c.missing() for c in tuned),
        recipes=list(dict.fromkeys(column.recipe for column in columns)),
        **pages.facts([one for column in columns for one in column.records]),
        overview=overview(columns, ROWS),
        taus=taus_table(columns),
        claims={c.key: claims(c) for c in tuned},
        claims_table=claims_table(columns),
        marks=marks_table(columns),
        missed=_missed(tuned, float32),
        effects=effects_tables(columns, float32),
        cells={c.key: {row.name: c.cell(row) for row in named} for c in tuned},
        parts={c.key: part_errors(c) for c in tuned},
        between=_between(columns),
        rates=ADAM_RATES,
    )


def part_errors(column: Column) -> dict[str, tuple[float, ...]]:
    """Return errors of softmax and of the loss by group, and on the most frequent three tenths."""
    cells = [column.cell(row) for row in (ERM, LOSS)]
    if None in cells:
        return {}
    counts = counts_of(column)
    parts = group_members(column) | {"head": by_frequency(counts)[: max(1, 3 * len(counts) // 10)]}
    return {
        name: tuple(float(cell.per_class[:, some].mean()) for cell in cells)
        for name, some in parts.items()
    }


def _missed(columns: Sequence[Column], float32: Shelf) -> list[dict[str, Any]]:
    """Return marks that were missed, and what the same runs in float32 have."""
    found = []
    for column in columns:
        other = Column.of(column.key, column.title, column.runs.values(), float32)
        for row in MARKED:
            cell, again = column.cell(row), other.cell(row)
            over = 0.0 if cell is None else cell.mean - row.paper[column.key] / 100 - ALLOWANCE
            if over > 0:
                one = {"title": column.title, "row": row.name, "over": over, "cell": cell}
                meets = again and again.mean <= cell.mean - over
                found.append({**one, "again": again, "meets": meets})
    return found


def _between(columns: Sequence[Column]) -> tuple[int, int]:
    """Count the published numbers between ours with `tuned` and with `paper`, and all of them."""
    by_name = {(column.recipe, column.key): column for column in columns}
    inside = []
    for (recipe, key), other in by_name.items():
        tuned = by_name.get(("tuned", key))
        for row in ROWS if recipe == "paper" and tuned else ():
            cells = [column.cell(row) for column in (tuned, other)]
            if row.paper and None not in cells:
                low, high = sorted(100 * cell.mean for cell in cells)
                inside.append(low <= row.paper[key] <= high)
    return sum(inside), len(inside)
