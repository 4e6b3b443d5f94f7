"""How the study of `strong` looks: its tables, and the figure of error against GPU minutes.

The numbers come from `longtail.experiments.strong`; nothing is computed here but means.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from longtail.experiments import selection
from longtail.experiments.strong import FURTHER_GOALS, GOALS, Study
from longtail.experiments.strong_kinds import TRIAL_EPOCHS, WIDE
from longtail.experiments.strong_part import DISTILLED, Line, Part
from longtail.experiments.strong_published import PUBLISHED, Published
from longtail.experiments.strong_runs import RATIOS
from longtail.priors import GROUPS
from longtail.report import figures, strong_ablation, strong_selection
from longtail.report.strong_cells import (
    by_group,
    groups_note,
    minutes_text,
    name_of,
    where,
)
from longtail.report.tables import (
    TITLES,
    Table,
    percent,
    plural,
    spread,
    title_of,
    write_numbers,
)
from longtail.train.recipe import recipe_values

_NAME_HEIGHT, _NAME_WIDTH = 0.055, 0.11  # of a published row's name, as shares of its panel
FILES = ("strong.json", "strong.md", "strong-cost.svg", "strong-cost.png")
FIGURE_TITLE = "Balanced test error against the GPU minutes of one network"


def tables(study: Study) -> list[Table]:
    """All tables that there are records for."""
    found: list[Table | None] = []
    for part in study.parts:
        found += [results_table(part), goals_table(part), teachers_table(part)]
        found += [strong_ablation.ablation_table(part), strong_ablation.removal_table(part)]
    found.append(ratios_table(study))
    if any(part.setting.ratio == RATIOS[0] for part in study.parts):
        found += [strong_selection.selection_table(one) for one in study.selections]
        found.append(strong_selection.changes_table(study.selections))
    return [table for table in found if table is not None]


def _datasets(study: Study) -> list[str]:
    return list(dict.fromkeys(part.setting.dataset for part in study.parts))


def results_table(part: Part) -> Table | None:
    """Our rows and, where there are any, the published ones; None where nothing is trained.

    Args:
        part: a data set at some ratio.
    """
    if not part.lines:
        return None
    rows = [
        (f"{one.name}, published", str(one.epochs or "–"), f"{one.error:.1f}", *["–"] * 5)
        for one in reversed(_published(part))
    ]
    rows += [
        (
            name_of(line),
            "–" if line.epochs is None else str(line.epochs),
            spread(line.errors),
            spread(line.again),
            *by_group(line),
            minutes_text(line.minutes),
        )
        for line in part.lines
    ]
    return Table(
        f"Balanced test error in percent, {where(part)}",
        ("method", "epochs", "error", "τ again", *GROUPS, "min."),
        rows,
        note=_results_note(part),
    )


def _published(part: Part) -> list[Published]:
    """What is published of a part's data set and ratio, lowest errors first."""
    if part.setting.ratio != RATIOS[0]:
        return []
    found = [one for one in PUBLISHED if one.dataset == part.setting.dataset]
    return sorted(found, key=lambda one: one.error)


def summary_table(study: Study) -> Table:
    """What the recipes reach beside the lowest published errors: the README's table.

    Args:
        study: of any settings; ratio 100 is shown.
    """
    parts = {dataset: study.part(dataset) for dataset in TITLES}
    lowest = [
        min((one for one in PUBLISHED if one.dataset == dataset), key=lambda one: one.error)
        for dataset in parts
    ]
    rows = [
        ("lowest published that we know of", *(f"{one.error:.1f} ({one.name})" for one in lowest))
    ]
    on_test = ", ".join(sorted({one.name for one in lowest if one.selection}))
    unknown = ", ".join(sorted({one.name for one in lowest if not one.source}))
    unconfirmed = f"; of {unknown} we found the figure alone" if unknown else ""
    names = {"strong": "`strong`, without teachers", "distilled": f"`{DISTILLED}`"}
    runs: list[str] = []
    for name, word in names.items():
        lines = [None if part is None else getattr(part, name) for part in parts.values()]
        rows += _summary_rows(word, lines)
        counts = sorted({len(line.records) for line in lines if line})
        runs += [f"{' or '.join(map(str, counts))} for {word.split(',')[0]}"] if counts else []
    rows += _further_rows(list(parts.values()))
    note = "Ours are one ResNet-32 of 0.46 million parameters when they are used; the teachers are "
    note += "needed in training only. Last epoch, mean and standard deviation over the runs"
    note += f" ({', '.join(runs)})" if runs else ""
    return Table(
        "Balanced test error in percent, imbalance ratio 100",
        ("", *TITLES.values()),
        rows,
        note=(
            f"{note}; τ again: adjusted once more by a τ chosen on left-out training images. The "
            "settings of `strong` were picked in a first trial that was judged on the test set"
            f"{_raised(parts.values())}. "
            f"Public code of {on_test} picks its epoch on the test set, too{unconfirmed}."
            + (" – : not trained yet." if any("–" in row for row in rows) else "")
        ),
    )


def _summary_rows(word: str, lines: Sequence[Line | None]) -> list[tuple[str, ...]]:
    """Lines of one kind, a column for each data set: their errors, and those with τ again."""
    return [
        (word, *(spread(line.errors) if line else "–" for line in lines)),
        (f"{word}, τ again", *(spread(line.again) if line else "–" for line in lines)),
    ]


def _further_rows(parts: Sequence[Part | None]) -> list[tuple[str, ...]]:
    """Students beyond the recipe's, where any data set has them."""
    found = [{line.name: line for line in part.further} if part else {} for part in parts]
    names = dict.fromkeys(name for each in found for name in each)
    rows: list[tuple[str, ...]] = []
    for name in names:
        word = name.replace(DISTILLED, f"`{DISTILLED}`")
        rows += _summary_rows(word, [each.get(name) for each in found])
    return rows


def _raised(parts: Iterable[Part | None]) -> str:
    """Where and why the recipe `strong` has more epochs than the first trial."""
    words = [
        f"{part.strong.epochs} epochs on {title_of(part.setting.dataset)} after "
        f"{part.earlier_strong.epochs} had missed a goal there "
        f"({percent(float(part.earlier_strong.errors.mean()), digits=2)})"
        for part in parts
        if part is not None and part.strong is not None and part.earlier_strong is not None
    ]
    return f", but for its {'; '.join(words)}" if words else ""


def _results_note(part: Part) -> str:
    used = part.records
    devices = " and ".join(sorted({str(one.document["device"]) for one in used}))
    taus = "; ".join(f"{line.name} {line.taus.mean():.2f}" for line in part.lines if len(line.taus))
    first = selection.candidates(part.setting.dataset)[0].name
    text = (
        "error: last epoch, whole test set, no τ chosen on the development set; mean and "
        "standard deviation over the runs. τ again: the same networks with their "
        f"logits adjusted once more by a τ chosen on the development set ({taus or 'none'}). "
        f"min.: minutes of {devices or 'training'} for one such network, as its share of the time "
        "of all that trained beside it, in which SAM counts twice; an ensemble's are those of its "
        f"members, and a student's include its teachers'. {groups_note(part)}"
    )
    if part.first_students is not None and first != selection.FIRST_NAME:
        text += f" first trial's settings: those that had done best in it, with {first}."
    lacking = part.missing()
    if lacking:
        text += f" Not trained yet: {'; '.join(lacking)}; {part.setting.command()}"
    return text


def goals_table(part: Part) -> Table | None:
    """The goals and what came of them; None where there is none, or nothing is trained.

    Args:
        part: a data set at some ratio; there are goals for 100.
    """
    if part.setting.ratio != RATIOS[0]:
        return None
    dataset, students = part.setting.dataset, part.students
    rows = [_goal_row(line, GOALS["strong"][dataset]) for line in part.singles]
    rows += [_goal_row(line, GOALS[DISTILLED][dataset]) for line in students]
    if students:
        best = min(students, key=lambda line: float(line.dev_errors_again.mean()))
        rows.append(_goal_row(best, FURTHER_GOALS[dataset], word=", further goal"))
    if not rows:
        return None
    return Table(
        f"Goals, {title_of(part.setting.dataset)}",
        ("recipe", "at most", "error", "reached", "τ again", "reached"),
        rows,
        note="Balanced test error in percent. The goals were set before any of these runs, but "
        "after a first trial of one seed, which was judged on the test set; the further goal is "
        "what students were to come near after that, and is held against those of the least error "
        "on the development set with τ again.",
    )


def _goal_row(line: Line, goal: float, *, word: str = "") -> tuple[str, ...]:
    means = [100 * float(errors.mean()) for errors in (line.errors, line.again)]
    cells = [cell for mean in means for cell in (f"{mean:.2f}", "yes" if mean <= goal else "no")]
    return (f"{name_of(line)}{word}", f"{goal:.1f}", *cells)


def teachers_table(part: Part) -> Table | None:
    """Each teacher by itself, and all together.

    Args:
        part: a data set at some ratio.
    """
    if not part.teachers:
        return None
    rows = [
        (line.name, spread(line.dev_errors), spread(line.errors), *by_group(line))
        for line in (*part.all_teachers, *part.ensembles)
    ]
    return Table(
        f"The teachers, {where(part)}",
        ("teacher", "dev", "test", *GROUPS),
        rows,
        note=_teachers_note(part),
    )


def _teachers_note(part: Part) -> str:
    text = "Balanced error in percent, one run each; dev: the development set."
    if part.longer_teachers:
        text += (
            f" longer: for {part.longer_teachers[0].epochs} epochs instead of "
            f"{part.teachers[0].epochs}."
        )
    wide = [line for line in part.further_teachers if _is_wide(line)]
    if wide:
        text += (
            f" wide: four times as wide, 7.4 million parameters, trained for {wide[0].epochs} "
            "epochs; such networks teach, and are never a student."
        )
    return text


def _is_wide(line: Line) -> bool:
    return bool(line.records[0].spec.model.name == WIDE["model"])


def ratios_table(study: Study) -> Table | None:
    """The same recipes at other imbalance ratios; None where only one ratio was trained.

    Args:
        study: of any settings.
    """
    if len({part.setting.ratio for part in study.parts}) < 2:
        return None
    there = {one.ratio for one in (*(part.setting for part in study.parts), *study.absent)}
    ratios = [ratio for ratio in RATIOS if ratio in there]
    columns = [(dataset, ratio) for dataset in _datasets(study) for ratio in ratios]
    parts = [study.part(dataset, ratio) for dataset, ratio in columns]
    words = {"strong": "strong", "ensemble": "the teachers' mean", "distilled": DISTILLED}
    earlier = [part for part in study.parts if part.earlier_strong is not None]
    if earlier:
        words = {"trial_strong": "strong, first trial's epochs", **words}
    rows = []
    for name, word in words.items():
        lines = [None if part is None else getattr(part, name) for part in parts]
        rows.append((word, *(_mean(line, "errors") for line in lines)))
        rows.append((f"{word}, τ again", *(_mean(line, "again") for line in lines)))
    absent = " – : not trained yet." if any("–" in row for row in rows) else ""
    return Table(
        "Balanced test error in percent at other imbalance ratios",
        ("method", *(f"{_short(dataset)}, {ratio:g}" for dataset, ratio in columns)),
        rows,
        note=(
            "The recipes are those of ratio 100, and nothing is chosen anew but, in the rows that "
            f"say so, the τ after training. Means of {', '.join(_seeds(study))}; the teachers' "
            f"mean is one.{_trial_note(earlier)}{absent}"
        ),
    )


def _trial_note(earlier: Sequence[Part]) -> str:
    """What the first trial's epochs are, where the recipe has others."""
    words = {
        f"{TRIAL_EPOCHS[name]} instead of {recipe_values('strong', dataset=name)['epochs']} on "
        f"{title_of(name)}"
        for name in (part.setting.dataset for part in earlier)
    }
    return f" First trial's epochs: {'; '.join(sorted(words))}." if words else ""


def _seeds(study: Study) -> list[str]:
    """How many runs a mean is of, where there are any: ``5 runs of strong (C10, 100)``."""
    found: dict[str, list[str]] = {}
    for part in study.parts:
        for line in (*part.singles, part.distilled):
            if line is not None:
                runs = f"{plural(len(line.records), 'run', 'runs')} of {line.name}"
                where = f"{_short(part.setting.dataset)}, {part.setting.ratio:g}"
                found.setdefault(runs, []).append(where)
    return [f"{runs} ({'; '.join(where)})" for runs, where in found.items()]


def _mean(line: Line | None, which: str) -> str:
    return "–" if line is None else percent(float(getattr(line, which).mean()), digits=2)


def _short(dataset: str) -> str:
    return title_of(dataset).removesuffix("-LT").replace("CIFAR-", "C")


def published_table() -> Table:
    """What the published rows are, as their papers and their code say."""
    rows = [
        (
            one.name,
            title_of(one.dataset),
            f"{one.error:.1f}",
            str(one.epochs or "–"),
            one.network,
            one.selection or "–",
            one.source or "–",
        )
        for one in PUBLISHED
    ]
    return Table(
        "Published errors of one narrow ResNet-32 at imbalance ratio 100",
        ("method", "data set", "error", "epochs", "network", "epoch chosen on", "paper"),
        rows,
        note=(
            "ResNet-32: the narrow one of 0.46 million parameters. – : not found, in public code "
            "where it is about the epoch; of DDC nothing but the figure. Errors of wider networks "
            "by the same name are left out: the public code of GLMC (CVPR 2023), which reports "
            "lower ones, trains a ResNet-32 four times as wide."
        ),
    )


def draw(study: Study) -> Any | None:
    """Error against the minutes that one network costs, a panel for each data set.

    Args:
        study: of any settings; the first of `RATIOS` that it has is drawn.

    Returns:
        A matplotlib Figure, or None without runs.
    """
    if not study.parts:
        return None
    ratio = max(part.setting.ratio for part in study.parts)
    parts = [part for part in study.parts if part.setting.ratio == ratio]
    with figures.style():
        width = 1.0 + 3.3 * len(parts)
        figure, grid = figures.panels(columns=len(parts), width=width, height=4.6)
        for axes, part in zip(grid[0], parts, strict=True):
            _draw_part(axes, part)
        grid[0, 0].set_ylabel("balanced error (%)")
        named: dict[str, Any] = {}  # what any panel shows, once
        for axes in grid[0]:
            handles, labels = axes.get_legend_handles_labels()
            named |= dict(zip(labels, handles, strict=True))
        figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=3)
    return figure


def _draw_part(axes: Any, part: Part) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    # The ablation's many and the teachers, which are means to an end, without their τ again.
    in_small = ("ablation", "teachers", "wide teachers")
    wide = [line for line in part.all_teachers if _is_wide(line)]
    groups: list[tuple[str, Sequence[Line], str, str]] = [
        ("ablation", [*part.ablation, *part.removal], figures.LIGHT_GRAY, "o"),
        ("teachers", [one for one in part.all_teachers if one not in wide], figures.SKY, "^"),
        ("wide teachers", wide, figures.GREEN, "v"),
        ("strong", part.singles, figures.BLUE, "o"),
        ("teachers' mean", part.ensembles, figures.ORANGE, "s"),
        (DISTILLED, [part.distilled] if part.distilled else [], figures.VERMILION, "D"),
        (
            "other students",
            [line for line in part.students if line is not part.distilled],
            figures.WINE,
            "D",
        ),
    ]
    for label, lines, color, marker in groups:
        if not lines:
            continue
        x = [max(line.minutes, 1e-3) for line in lines]
        y = [100 * float(line.errors.mean()) for line in lines]
        axes.plot(x, y, marker, color=color, ms=5, mew=0, ls="", label=label)
        if label not in in_small:
            again = [100 * float(line.again.mean()) for line in lines]
            axes.plot(x, again, marker, mfc="none", mec=color, ms=5, mew=0.9, ls="")
    axes.plot([], [], "o", mfc="none", mec=figures.GRAY, ms=5, mew=0.9, ls="", label="τ again")
    _draw_published(axes, _published(part))
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("minutes of a full GPU, teachers included")
    axes.set_title(where(part))


def _draw_published(axes: Any, published: Sequence[Published]) -> None:
    """A line for each published row; where lines are close, their names stand side by side."""
    for number, one in enumerate(published):
        named = {"label": "published"} if number == 0 else {}
        axes.axhline(one.error, color=figures.GRAY, lw=0.8, ls=":", **named)
    low, high = axes.get_ylim()
    column, before = 0, -math.inf
    for one in published:
        column = column + 1 if one.error - before < _NAME_HEIGHT * (high - low) else 0
        before = one.error
        axes.annotate(
            one.name,
            (1.0 - _NAME_WIDTH * column, one.error),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=6.5,
            color=figures.GRAY,
        )


def write(study: Study, folder: str | Path) -> list[Path]:
    """Write all numbers as JSON, the tables as Markdown and the figure as SVG and PNG.

    Args:
        study: of any settings.
        folder: made if need be; files of the same names are replaced.

    Returns:
        The paths written, in the order of `FILES`.
    """
    blocks = (table.markdown() for table in tables(study))
    written, figure = write_numbers(folder, FILES, study.to_dict(), blocks), draw(study)
    if figure is None:
        return written
    return [*written, *figures.save(figure, Path(folder) / "strong-cost", title=FIGURE_TITLE)]
