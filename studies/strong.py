"""The plain logit-adjusted loss on CIFAR-LT as far as it goes: docs/how-far.md and its figure.

`runs_of` lists every run: the recipe `strong`, teachers that are trained in different ways, their
students, the best students (of more or of longer teachers), and what each ingredient changes.
Training, tables, figure and page all read that list. Every number is of the last epoch, and the
test set is opened once for each run.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from longtail.priors import GROUPS
from longtail.report import figures
from longtail.report.compare import Interval, mean_interval
from longtail.report.tables import Table, percent, signed, spread
from longtail.train.recipe import recipe_values
from studies import _pages as pages
from studies import exp
from studies._pages import mean_deviation
from studies._records import (
    ADJUSTED,
    DEV,
    ROOT,
    TITLES,
    Column,
    Record,
    Runs,
    Shelf,
    add_training_arguments,
    cifar,
    resized,
)

TEN, HUNDRED = DATASETS = ("cifar10-lt", "cifar100-lt")
RATIOS = (100.0, 50.0, 10.0)
FIGURE_TITLE = "Balanced test error against the GPU minutes of one network"
SHORT = "Ingredients added and taken away in 100 epochs, imbalance ratio 100"
ADDITIONS = "Ingredients added in 100 epochs, imbalance ratio 100"
LONG = "Parts of `strong` taken away in long training, imbalance ratio 100"
PARTS = ("strong", "teachers", "students", "best", "ablation", "removal")
LOSS, EQUALLY = "logit-adjusted", "softmax+over-sampling"  # the latter: classes drawn equally often
DISTILLED, UNADJUSTED = "strong-distilled", "strong − logit adjustment"

MINORITY = {"cutmix": 0.5, "mix_partner": "minority"}
UNIFORM = {"cutmix": 0.5, "mix_partner": "uniform"}
COSINE = {"head": "cosine", "head_scale": 16.0}
# Of the recipe `strong`, beyond crops and flips.
REMOVED: dict[str, dict[str, Any]] = {
    "TrivialAugment": {"trivial_augment": False},
    "Cutout": {"cutout": 0},
    "SAM": {"sam_rho": 0.0},
}
PLAIN = {key: value for off in REMOVED.values() for key, value in off.items()}
ADDED: dict[str, dict[str, Any]] = {
    "TrivialAugment": {"trivial_augment": True},
    "Cutout": {"cutout": 16},
    "CutMix, minority partner": MINORITY,
    "CutMix, uniform partner": UNIFORM,
    "mixup": {"mixup": 0.5, "mix_partner": "uniform"},
    "SAM": {"sam_rho": 0.1},
    "weight average": {"ema_decay": 0.999},
    "cosine head": COSINE,
}
# Trained in different ways rather than from different seeds: their mean gains from it.
TEACHERS: dict[str, dict[str, dict[str, Any]]] = {
    TEN: {
        "augmented": {"sam_rho": 0.0},
        "minority CutMix": {"sam_rho": 0.0, **MINORITY},
        "SAM 0.1": {"sam_rho": 0.1},
        "SAM 0.2": {"sam_rho": 0.2},
        "SAM 0.1 and minority CutMix": {"sam_rho": 0.1, **MINORITY},
    },
    HUNDRED: {
        "augmented": {"sam_rho": 0.0},
        "weight decay 1e-3": {"sam_rho": 0.0, "weight_decay": 1e-3},
        "minority CutMix": {"sam_rho": 0.0, **MINORITY},
        "uniform CutMix": {"sam_rho": 0.0, **UNIFORM},
        "SAM 0.1": {"sam_rho": 0.1},
        "SAM 0.2": {"sam_rho": 0.2},
        "cosine head": {"sam_rho": 0.0, **COSINE},
    },
}
# Networks four times as wide, which only teach.
WIDE: dict[str, dict[str, Any]] = {
    "wide": {"sam_rho": 0.0},
    "wide, minority CutMix": {"sam_rho": 0.0, **MINORITY},
    "wide, uniform CutMix": {"sam_rho": 0.0, **UNIFORM},
    "wide, SAM 0.1": {"sam_rho": 0.1},
}
# A student as a first trial had it, before the development set chose the recipe's values.
FIRST: dict[str, Any] = {"cutout": 16, **MINORITY, "distill_temperature": 2.0}
STUDENT_CHANGES: dict[str, dict[str, Any]] = {
    "the teachers alone": {"distill_weight": 1.0},
    "KL of prior-shifted logits": {"distill_adjusted": True},
    "temperature 1": {"distill_temperature": 1.0},
    "minority partner": {"mix_partner": "minority"},
    "without mixing": {"cutmix": 0.0},
    "with SAM": {"sam_rho": 0.1},
}


def runs_of(dataset: str, ratio: float = RATIOS[0]) -> dict[str, list[Runs]]:
    """Return every row of a data set at an imbalance ratio, by part.

    Examples:
        >>> [row.name for row in runs_of("cifar100-lt", 10.0)["students"]]
        ['strong-distilled']
    """
    ten, main = dataset == TEN, ratio == RATIOS[0]
    data = cifar(dataset, ratio)
    early = {"epochs": 300 if ten else 400}  # what teachers have, and half of what students have

    def row(name: str, changes: Any = (), *, method: str = LOSS, seeds: Any = range(3)) -> Runs:
        return Runs(name, data, method, "strong", dict(changes), seeds, dev=True)

    def one_each(named: Mapping[str, Any], more: Any, word: str = "", seeds: Any = range(3)) -> Any:
        """One run of each kind; seeds take turns."""
        return tuple(
            row(name + word, {**changes, **more}, seeds=[seeds[number % len(seeds)]])
            for number, (name, changes) in enumerate(named.items())
        )

    def mean(members: tuple[Runs, ...], words: str = "teachers") -> Runs:
        return Runs(f"mean of {len(members)} {words}", data, teachers=members, mean=True, dev=True)

    def taught(name: str, by: tuple[Runs, ...], changes: Any = (), method: str = EQUALLY) -> Runs:
        values = {"image_seed": 0, **dict(changes)}  # one stream of images: teachers answer once
        return Runs(name, data, method, "strong-student", values, (0, 1, 2), teachers=by, dev=True)

    strong = row("strong", seeds=range(5 if main else 3))
    teachers = one_each(TEACHERS[dataset], early)
    found = {
        # The recipe has 500 epochs on CIFAR-10-LT and 400 on CIFAR-100-LT.
        "strong": [strong, *([row("strong, 300 epochs", early, seeds=strong.seeds)] * ten)],
        "teachers": [*teachers, mean(teachers)],
        "students": [taught(DISTILLED, teachers)],
    }
    if not main:
        return found

    first = FIRST | early | ({"distill_adjusted": True} if ten else {})
    found["students"] += [
        taught(f"{DISTILLED}, first settings", teachers, first, LOSS),
        taught(f"{DISTILLED}, half the epochs", teachers, early),
    ]
    if ten:
        best = one_each(TEACHERS[dataset], {"epochs": 500}, ", longer")
        found["best"] = [*best, mean(best, "longer teachers")]
        found["best"] += [taught(f"{DISTILLED}, longer teachers", best)]
    else:
        wide = one_each(WIDE, {"model": "resnet32x4", "epochs": 200}, seeds=[5, 6, 7, 8])
        more = (*teachers, *wide)
        found["best"] = [*wide, mean(more), taught(f"{DISTILLED}, more teachers", more)]

    short = {"epochs": 100}
    found["ablation"] = [
        row("plain", PLAIN | short),
        *(row(f"plain + {name}", PLAIN | on | short) for name, on in ADDED.items()),
        row("strong", short),
        row(UNADJUSTED, short, method="softmax"),
        *(row(f"strong − {name}", off | short) for name, off in REMOVED.items()),
        *(row(f"strong + {k}", on | short) for k, on in ADDED.items() if k not in REMOVED),
        taught("student", teachers, short),
        *(taught(f"student, {k}", teachers, on | short) for k, on in STUDENT_CHANGES.items()),
        taught("student, examples drawn as they come", teachers, short, LOSS),
    ]
    found["removal"] = [
        row("strong", early, seeds=strong.seeds),
        row(UNADJUSTED, early, method="softmax"),
        *(row(f"strong − {name}", off | early) for name, off in REMOVED.items()),
    ]
    return found


# ---------------------------------------------------------------------------- judgement


def dev_error(one: Record) -> float:
    """Return the balanced error on the development set, which may lack classes.

    The nearest classes in size, on a log scale, stand in for those.
    """
    sizes, there = np.log(one.document["counts"]), one.examples(DEV) > 0
    away = np.abs(sizes[:, None] - np.where(there, sizes, np.inf))
    near = away <= away.min(axis=1, keepdims=True) + 1e-9
    shares = np.where(there[:, None], np.eye(len(sizes)), near / near.sum(axis=1, keepdims=True))
    return float(np.nansum(shares.mean(axis=0) * one.per_class(DEV)))


@dataclass(frozen=True, eq=False)
class Line:
    """The records of a row, in order of seed, judged; errors are fractions, one of each run."""

    runs: Runs
    records: list[Record]
    errors: np.ndarray  # balanced, on the test set as it was trained
    tuned: np.ndarray  # there at the τ of the development set
    taus: np.ndarray  # that τ
    dev: np.ndarray  # on the development set
    dev_tuned: np.ndarray  # there at the τ that was chosen there
    minutes: float  # cost of one such network, its teachers included

    @classmethod
    def of(cls, runs: Runs, shelf: Shelf) -> Line | None:
        """Return the line of a row, or None while a run or a teacher of it has no record."""
        if shelf.missing([runs, *runs.teachers]):
            return None
        records = shelf.of(runs)
        teaching = sum(one.seconds for row in runs.teachers for one in shelf.of(row))
        values = (
            [one.per_class().mean() for one in records],
            [one.again.per_class.mean() for one in records],
            [one.again.tau for one in records],
            [dev_error(one) for one in records],
            [one.document["again"]["dev_error"] for one in records],
        )
        minutes = float(np.mean([one.seconds for one in records]) + teaching) / 60
        return cls(runs, records, *map(np.array, values), minutes)

    @property
    def name(self) -> str:
        """Name of the row."""
        return self.runs.name

    @property
    def groups(self) -> dict[str, float]:
        """Mean test error of the classes with many, medium and few examples; NaN without any."""
        errors = np.mean([one.per_class() for one in self.records], axis=0)
        found = self.records[0].prior.groups()
        return {k: float(errors[v].mean()) if len(v) else math.nan for k, v in found.items()}

    @property
    def epochs(self) -> str:
        """Of each run; a dash for a mean of others."""
        return str(self.records[0].spec.recipe.values.get("epochs") or "–")

    @property
    def wide(self) -> bool:
        """True for networks four times as wide."""
        return self.records[0].spec.model.name == "resnet32x4"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; errors in percent."""
        errors = {name: getattr(self, name) for name in ("errors", "tuned", "dev", "dev_tuned")}
        return {
            "name": self.name,
            "seeds": [one.spec.seed for one in self.records],
            **{name: [round(100 * float(v), 4) for v in found] for name, found in errors.items()},
            "taus": [round(float(tau), 4) for tau in self.taus],
            "groups": {k: round(100 * v, 4) for k, v in self.groups.items() if not math.isnan(v)},
            "minutes": round(self.minutes, 3),
        }


@dataclass(frozen=True, eq=False)
class Setting:
    """A data set at an imbalance ratio: its rows by part, and the records there are of them."""

    dataset: str
    ratio: float
    rows: Mapping[str, Sequence[Runs]]
    shelf: Shelf

    @cached_property
    def lines(self) -> dict[tuple[str, str], Line]:
        """By part and name, what is on record."""
        found = {(p, row.name): Line.of(row, self.shelf) for p in self.rows for row in self.rows[p]}
        return {key: line for key, line in found.items() if line is not None}

    def line(self, part: str, name: str) -> Line | None:
        """Return a line, or None while it lacks a record."""
        return self.lines.get((part, name))

    def part(self, *parts: str) -> list[Line]:
        """Return the lines of some parts, in order."""
        return [line for (part, _), line in self.lines.items() if part in parts]

    @property
    def singles(self) -> list[Line]:
        """The teachers, each by itself."""
        return [o for o in self.part("teachers", "best") if o.runs.recipe == "strong"]

    @property
    def means(self) -> list[Line]:
        """The mean logits of teachers."""
        return [o for o in self.part("teachers", "best") if o.runs.mean]

    @property
    def students(self) -> list[Line]:
        """The networks that teachers taught."""
        return [o for o in self.part("students", "best") if o.runs.recipe == "strong-student"]

    @cached_property
    def records(self) -> list[Record]:
        """Every record once; a teacher may be a run of another row, too."""
        found = [one for line in self.lines.values() for one in line.records]
        return list({one.name: one for one in found}.values())

    def missing(self) -> list[str]:
        """Return the runs that should be on record and aren't."""
        return self.shelf.missing(row for rows in self.rows.values() for row in rows)

    @property
    def title(self) -> str:
        """Title for people."""
        return f"{TITLES[self.dataset]}, imbalance ratio {self.ratio:g}"


# ---------------------------------------------------------------------------- published


class Published(NamedTuple):
    """A published error, in percent, of one narrow ResNet-32 at imbalance ratio 100."""

    name: str
    dataset: str
    error: float
    epochs: int | str = "–"
    selection: str = "–"  # what its epoch was chosen on, where its public code shows that
    source: str = "–"


_BEST = "the test set"
_PROCO = "Du et al., TPAMI 2024, arXiv:2403.06726"
_NCL = "Li et al., CVPR 2022, arXiv:2203.15359"
_PACO = "Cui et al., ICCV 2021, arXiv:2107.12028"
_BCL = "Zhu et al., CVPR 2022, arXiv:2207.09052"
PUBLISHED = (  # lowest errors first
    Published("ProCo", HUNDRED, 45.8, 400, _BEST, _PROCO),
    Published("NCL", HUNDRED, 46.7, 400, _BEST, _NCL),
    Published("PaCo", HUNDRED, 48.0, 400, _BEST, _PACO),
    Published("BCL", HUNDRED, 48.1, 200, source=_BCL),
    Published("DDC", TEN, 13.6),
    Published("ProCo", TEN, 14.1, 200, _BEST, _PROCO),
    Published("NCL", TEN, 15.3, 400, _BEST, _NCL),
)


def published(dataset: str) -> list[Published]:
    """Return what is published of a data set, lowest errors first."""
    return [one for one in PUBLISHED if one.dataset == dataset]


# ---------------------------------------------------------------------------- tables


def minutes_text(value: float) -> str:
    """Return minutes with two digits or so: ``0.84``, ``4.2``, ``12``."""
    return f"{value:.{2 if value < 1 else 1 if value < 10 else 0}f}"


def by_group(line: Line) -> list[str]:
    """Return a cell for each of `GROUPS`."""
    return [percent(line.groups[name]) for name in GROUPS]


def summary_table(settings: Sequence[Setting]) -> Table:
    """Return what the recipes reach beside the lowest published errors."""
    wanted = (
        ("strong", "strong"),
        ("students", DISTILLED),
        ("best", f"{DISTILLED}, longer teachers"),
        ("best", f"{DISTILLED}, more teachers"),
    )
    lowest = [published(one.dataset)[0] for one in settings]
    rows = [["lowest published that we know of", *(f"{o.error:.1f} ({o.name})" for o in lowest)]]
    for part, name in wanted:
        found = [one.line(part, name) for one in settings]
        recipe, comma, more = name.partition(",")
        words = f"`{recipe}`{comma}{more}"
        if any(found):
            rows.append([words, *(spread(line.errors) if line else "–" for line in found)])
            tuned = (spread(line.tuned) if line else "–" for line in found)
            rows.append([f"{words}, τ tuned", *tuned])
    return Table(
        "Balanced test error in percent, imbalance ratio 100",
        ("one ResNet-32", *(TITLES[one.dataset] for one in settings)),
        rows,
        note=(
            "Mean and standard deviation over 5 runs of `strong`, which has no teachers, and 3 of "
            f"each student (`{DISTILLED}`), last epoch. τ tuned: adjusted once more by a τ chosen "
            "on training images that the long-tailed subset leaves out. – : not trained."
        ),
    )


def readme_table(settings: Sequence[Setting]) -> Table:
    """Return the README's table: the paper's setting, the loss trained well, the literature."""
    shelf = Shelf(ROOT / "results/exp")
    columns = [
        Column.of(one.dataset, TITLES[one.dataset], exp.definition(one.dataset, "tuned"), shelf)
        for one in settings
    ]
    lines = [one.line("strong", "strong") for one in settings]
    taught = [min(one.students, key=lambda o: o.dev_tuned.mean()) for one in settings]
    lowest = [published(one.dataset)[0] for one in settings]
    rows = {
        "softmax": [mean_deviation(c, exp.ERM) for c in columns],
        "softmax, adjusted with τ from held-out data": [
            mean_deviation(c, exp.row_of(ADJUSTED, "held-out")) for c in columns
        ],
        "logit-adjusted loss": [mean_deviation(c, exp.LOSS) for c in columns],
        "the same loss, trained long and well": [spread(o.errors) for o in lines],
        "and taught by several networks, τ tuned": [spread(o.tuned) for o in taught],
        "lowest published that we know of": [f"{o.error:.1f}" for o in lowest],
    }
    return Table(
        "Balanced test error in percent, imbalance ratio 100",
        ("", *(TITLES[one.dataset] for one in settings)),
        [(name, *cells) for name, cells in rows.items()],
    )


def results_table(setting: Setting) -> Table:
    """Return all kinds of networks but single teachers."""
    rows = []
    lines = [*setting.part("strong"), *setting.means, *setting.students]
    for line in lines:
        cells = (line.epochs, spread(line.errors), spread(line.tuned), *by_group(line))
        rows.append((line.name, *cells, minutes_text(line.minutes)))
    return Table(
        f"Balanced test error in percent, {setting.title}",
        ("method", "epochs", "error", "τ tuned", *GROUPS, "min."),
        rows,
    )


def teachers_table(setting: Setting) -> Table:
    """Return each teacher by itself, and their mean logits."""
    lines = (*setting.singles, *setting.means)
    return Table(
        f"The teachers, {setting.title}",
        ("teacher", "dev", "test", *GROUPS),
        [(one.name, spread(one.dev), spread(one.errors), *by_group(one)) for one in lines],
    )


def ratios_table(settings: Sequence[Setting]) -> Table:
    """Return the same recipes at the other imbalance ratios."""
    settings = [one for one in settings if one.ratio != RATIOS[0]]
    of_row = {
        "strong": [one.line("strong", "strong") for one in settings],
        DISTILLED: [one.line("students", DISTILLED) for one in settings],
    }
    rows = []
    for words, lines in of_row.items():
        for word, measure in ((words, "errors"), (f"{words}, τ tuned", "tuned")):
            errors = [math.nan if line is None else getattr(line, measure).mean() for line in lines]
            rows.append((word, *(percent(error, digits=2) for error in errors)))
    return Table(
        "Balanced test error in percent at other imbalance ratios",
        ("method", *(f"{TITLES[one.dataset]}, {one.ratio:g}" for one in settings)),
        rows,
    )


def change(line: Line, base: Line, measure: str) -> Interval:
    """Return the change of the test error against another row, paired by seed."""
    mine, theirs = (
        {one.spec.seed: error for one, error in zip(of.records, getattr(of, measure), strict=True)}
        for of in (line, base)
    )
    return mean_interval([mine[seed] - theirs[seed] for seed in mine if seed in theirs])


def base_of(name: str) -> str:
    """Return what a row of the ablation changes.

    Examples:
        >>> base_of("plain + SAM"), base_of("strong − Cutout"), base_of("student, with SAM")
        ('plain', 'strong', 'student')
    """
    return name.split(" + ")[0].split(" − ")[0].split(", ")[0]


def changes_table(settings: Sequence[Setting], part: str, *, title: str, base: str = "") -> Table:
    """Return the errors of the ablation or the removal, and their changes against their base.

    With ``base`` only the rows that change that one, as they were trained.
    """
    names = dict.fromkeys(line.name for one in settings for line in one.part(part))
    names = [name for name in names if base_of(name).startswith(base)]
    rows = []
    measures = ("errors",) if base else ("errors", "tuned")
    for name in names:
        cells = [name]
        for setting in settings:
            line, whole = setting.line(part, name), setting.line(part, base_of(name))
            cells.append(percent(float(line.errors.mean()), digits=2) if line else "–")
            for measure in measures:
                if line is None:
                    cells.append("–")
                elif whole is None or whole is line:
                    cells.append("")
                else:
                    found = change(line, whole, measure)
                    text = signed(found.mean, digits=2)
                    if found.seeds > 1:
                        text += f" ± {percent(found.half_width, digits=2)}"
                    cells.append(f"**{text}**" if found.excludes_zero else text)
        rows.append(cells)
    words = ("change", "change, τ tuned")[: len(measures)]
    header = [(TITLES[one.dataset], *words) for one in settings]
    return Table(
        title,
        ("recipe", *(word for some in header for word in some)),
        rows,
        note=(
            "Mean over 3 seeds in percent (over 5 where a recipe has so many); changes paired by "
            "seed, in points, ± half of their 95% interval, in bold where it excludes zero."
        ),
    )


def published_table() -> Table:
    """Return what the published rows are, as their papers and their code say."""
    return Table(
        "Published errors of one narrow ResNet-32 at imbalance ratio 100",
        ("method", "data set", "error", "epochs", "epoch chosen on", "paper"),
        [(o.name, TITLES[o.dataset], f"{o.error:.1f}", str(o.epochs), *o[4:]) for o in PUBLISHED],
    )


# ---------------------------------------------------------------------------- figure


def draw(settings: Sequence[Setting]) -> Any:
    """Return a matplotlib Figure: error against the minutes that one network costs."""
    with figures.style():
        width = 1.0 + 3.3 * len(settings)
        figure, grid = figures.panels(columns=len(settings), width=width, height=4.6)
        named: dict[str, Any] = {}  # what any panel shows, once
        for axes, setting in zip(grid[0], settings, strict=True):
            _draw_setting(axes, setting)
            handles, labels = axes.get_legend_handles_labels()
            named |= dict(zip(labels, handles, strict=True))
        grid[0, 0].set_ylabel("balanced error (%)")
        figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=3)
    return figure


def _draw_setting(axes: Any, setting: Setting) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    single, taught = setting.singles, setting.students
    # Last, whether the error at the tuned τ is shown, too.
    groups: list[tuple[str, list[Line], str, str, bool]] = [
        ("ablation", setting.part("ablation", "removal"), figures.LIGHT_GRAY, "o", False),
        ("teachers", [o for o in single if not o.wide], figures.SKY, "^", False),
        ("wide teachers", [o for o in single if o.wide], figures.GREEN, "v", False),
        ("strong", setting.part("strong"), figures.BLUE, "o", True),
        ("teachers' mean", setting.means, figures.ORANGE, "s", True),
        (DISTILLED, [o for o in taught if o.name == DISTILLED], figures.VERMILION, "D", True),
        ("other students", [o for o in taught if o.name != DISTILLED], figures.WINE, "D", True),
    ]
    for label, lines, color, marker, tuned in groups:
        x = [max(line.minutes, 1e-3) for line in lines]
        y = [100 * float(line.errors.mean()) for line in lines]
        if lines:
            axes.plot(x, y, marker, color=color, ms=5, mew=0, ls="", label=label)
        if lines and tuned:
            y = [100 * float(line.tuned.mean()) for line in lines]
            axes.plot(x, y, marker, mfc="none", mec=color, ms=5, mew=0.9, ls="")
    axes.plot([], [], "o", mfc="none", mec=figures.GRAY, ms=5, mew=0.9, ls="", label="τ tuned")
    _draw_published(axes, published(setting.dataset))
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("minutes of a full GPU, teachers included")
    axes.set_title(setting.title)


def _draw_published(axes: Any, rows: Sequence[Published]) -> None:
    """Draw a line for each published row; names of close lines stand side by side."""
    for number, one in enumerate(rows):
        named = {"label": "published"} if number == 0 else {}
        axes.axhline(one.error, color=figures.GRAY, lw=0.8, ls=":", **named)
    low, high = axes.get_ylim()
    column, before = 0, -math.inf
    look = {"ha": "right", "va": "bottom", "fontsize": 6.5, "color": figures.GRAY}
    for one in rows:
        column = column + 1 if one.error - before < 0.055 * (high - low) else 0
        before, place = one.error, (1.0 - 0.11 * column, one.error)
        axes.annotate(one.name, place, xycoords=("axes fraction", "data"), **look)


# ---------------------------------------------------------------------------- page


def selections() -> dict[str, dict[str, Any]]:
    """Return what the short runs by which the students' recipe was chosen reached, by data set.

    Each was judged on the development set alone, and is none of the runs of the tables.
    """
    found = {}
    for dataset in DATASETS:
        path = ROOT / f"results/strong/selection-{dataset}.json"
        kept = json.loads(path.read_text(encoding="utf-8"))
        errors = {one["name"]: one["dev_error_again"] for one in kept["trials"]}
        best = min(errors, key=errors.__getitem__)
        found[dataset] = {"trials": len(errors), "best": best}
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this study."""
    parser.add_argument(
        "--rho",
        action="append",
        type=float,
        choices=RATIOS,
        metavar="RATIO",
        help="Only this imbalance ratio, 100, 50 or 10; may be repeated.",
    )
    parser.add_argument(
        "--part", action="append", choices=PARTS, help="Train only this part; may be repeated."
    )
    parser.add_argument("--json", action="store_true", help="Print the numbers as JSON.")
    add_training_arguments(parser, records="results/strong", datasets=DATASETS)


def tables(settings: Sequence[Setting]) -> list[Table]:
    """Return all tables of what is on record."""
    main = [one for one in settings if one.ratio == RATIOS[0]]
    found = [summary_table(main)] if main else []
    for one in settings:
        found += [results_table(one), teachers_table(one)]
    found += [ratios_table(settings)] if len({one.ratio for one in settings}) > 1 else []
    if main:
        found.append(changes_table(main, "ablation", title=SHORT))
        found.append(changes_table(main, "removal", title=LONG))
    return found


def _span(setting: Setting) -> tuple[float, float]:
    """Return the least and the largest error of a single teacher."""
    errors = [line.errors.mean() for line in setting.singles]
    return min(errors), max(errors)


def text(settings: Sequence[Setting]) -> str:
    """Return the page."""
    main = {one.dataset: one for one in settings if one.ratio == RATIOS[0]}
    return pages.render(
        "how-far",
        ten=main[TEN].line,
        hundred=main[HUNDRED].line,
        summary=summary_table(list(main.values())),
        tables=[results_table(one) for one in main.values()],
        spans=[_span(one) for one in main.values()],
        ratios=ratios_table(settings),
        ablation=changes_table(list(main.values()), "ablation", title=ADDITIONS, base="plain"),
        removal=changes_table(list(main.values()), "removal", title=LONG),
        published=published_table(),
        strong={dataset: recipe_values("strong", dataset=dataset) for dataset in DATASETS},
        student={dataset: recipe_values("strong-student", dataset=dataset) for dataset in DATASETS},
        selections=selections(),
        change=change,
        **pages.facts([one for setting in settings for one in setting.records]),
        dev=[int(one.records[0].examples(DEV).sum()) for one in settings],
        spread=spread,
        minutes_text=minutes_text,
    )


def main(options: argparse.Namespace) -> None:
    """Train what has no record, print the tables and write the page."""
    asked, wanted = [], []
    for dataset in options.dataset or DATASETS:
        for ratio in options.rho or RATIOS:
            parts = {k: resized(options, rows) for k, rows in runs_of(dataset, ratio).items()}
            asked.append((dataset, ratio, parts))
            wanted += [row for k in parts if k in (options.part or PARTS) for row in parts[k]]
    shelf, _ = pages.trained(options, wanted)
    every = [Setting(*one, shelf) for one in asked]
    settings = [one for one in every if one.lines]
    pages.refuse_nothing(settings, options)
    if options.json:
        found = {
            one.title: {part: [line.to_dict() for line in one.part(part)] for part in one.rows}
            for one in settings
        }
        sys.stdout.write(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        return
    pages.show(tables(settings))
    missing = sum(len(one.missing()) for one in every)
    if missing or len(settings) < len(DATASETS) * len(RATIOS):
        why = f"{missing} of its rows lack runs" if missing else "it shows all data and ratios"
        pages.note(f"The page is left as it is: {why}.")
        return
    with pages.page(options, "docs/how-far.md") as write:
        write(text(settings))
        main_settings = [one for one in settings if one.ratio == RATIOS[0]]
        write.figure("cost", draw(main_settings), title=FIGURE_TITLE)
        write.block("README.md", "results", readme_table(main_settings).markdown())
