"""What each ingredient of `strong` changes: the tables of it, and what is more than chance.

The runs are those of `longtail.experiments.strong`: its `ablation`, of a few epochs, and its
`removal`, which takes the same away from `strong` in the first trial's epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from longtail.experiments.strong_kinds import INGREDIENTS, STUDENT
from longtail.experiments.strong_part import Line, Part
from longtail.priors import GROUPS
from longtail.report.compare import mean_interval
from longtail.report.strong_cells import by_group, minutes_text, name_of, where
from longtail.report.tables import Table, percent, plural, signed
from longtail.train.recipe import recipe_values

Which = Literal["errors", "again"]

_HEADER = ("recipe", "error", "change", "τ again", "its change", *GROUPS, "min.")
_BASES = ("plain", "strong", "student")


def ablation_table(part: Part) -> Table | None:
    """Every ingredient added or taken away, in a few epochs; None where none was trained.

    Args:
        part: a data set at some ratio.
    """
    wanted = len(part.setting.ablated()) + len(part.setting.ablated_students())
    return _table(
        part,
        part.ablation,
        title="Ablation",
        note=(
            f"Each for {_epochs(part.ablation)} epochs. {_judged(part)} change: against plain, "
            "strong or student, paired by seed, in points, ± half of its 95% interval. plain: "
            f"crops, flips and the schedule of strong. {_values(part)} min.: GPU minutes of one "
            "network." + _rows_missing(part, part.ablation, wanted, stage="ablation")
        ),
    )


def removal_table(part: Part) -> Table | None:
    """What `strong` owes to each of its parts in long training; None where none was trained.

    Args:
        part: a data set at some ratio.
    """
    lines = [*([] if part.trial_strong is None else [part.trial_strong]), *part.removal]
    wanted = 1 + len(part.setting.removed())
    return _table(
        part,
        lines,
        title="Taken from strong in the first trial's epochs",
        note=(
            f"Each for {_epochs(lines)} epochs. {_judged(part)} strong itself: over "
            "all its runs. change: against strong, paired by seed, in points, ± half of its 95% "
            "interval. min.: GPU minutes of one network."
            + _rows_missing(part, lines, wanted, stage="removal")
        ),
    )


def _judged(part: Part) -> str:
    seeds = plural(part.setting.ablation.seeds, "seed", "seeds")
    return (
        f"Mean balanced test error in percent over {seeds}; τ again: with logits adjusted once "
        "more by a τ chosen on the development set."
    )


def _values(part: Part) -> str:
    """What is added, as numbers, and where `strong` has another one."""
    added = {key: value for on in INGREDIENTS.values() for key, value in on.items()}
    own = float(recipe_values("strong", dataset=part.setting.dataset)["sam_rho"])
    other = f" (strong's own is {own:g})" if own != added["sam_rho"] else ""
    return (
        f"Added: Cutout of {added['cutout']} pixels, CutMix on {added['cutmix']:.0%} and mixup on "
        f"{added['mixup']:.0%} of the examples, SAM with ρ = {added['sam_rho']:g}{other}, a weight "
        f"average with decay {added['ema_decay']:g}, a cosine head of scale "
        f"{added['head_scale']:g}."
    )


def _table(part: Part, found: Sequence[Line], *, title: str, note: str) -> Table | None:
    # A teacher may be one run of a row, which alone makes no ablation.
    if not {line.name for line in found if line.is_whole} - set(_BASES):
        return None
    lines = {line.name: line for line in found}
    rows = []
    for name, line in lines.items():
        base = lines.get(base_of(name))
        cells = []
        for which in ("errors", "again"):
            cells.append(percent(float(getattr(line, which).mean()), digits=2))
            cells.append("" if base is line else change_text(line, base, which))
        rows.append((name_of(line), *cells, *by_group(line), minutes_text(line.minutes)))
    return Table(f"{title}, {where(part)}", _HEADER, rows, note=note)


def _rows_missing(part: Part, lines: Sequence[Line], wanted: int, *, stage: str) -> str:
    """How many of the rows are there, unless it is all."""
    whole = sum(line.is_whole for line in lines)
    if whole == wanted:
        return ""
    return (
        f" {whole} of {wanted} rows are trained with all their seeds so far; the others: "
        f"{part.setting.command(stage)}"
    )


def _epochs(lines: Iterable[Line]) -> str:
    return " or ".join(str(epochs) for epochs in sorted({line.epochs or 0 for line in lines}))


def short_strong(part: Part) -> str | None:
    """That a few epochs are too few for `strong`, where the records say so; else None.

    Args:
        part: a data set at some ratio.
    """
    lines = {line.name: line for line in part.ablation if line.is_whole}
    short, full = lines.get("strong"), part.strong
    if short is None or full is None or short.errors.mean() <= full.errors.mean():
        return None
    here, there = (percent(float(line.errors.mean()), digits=2) for line in (short, full))
    # Students have teachers of many more epochs.
    alone = [line for line in lines.values() if base_of(line.name) != STUDENT.name]
    least = min(alone, key=lambda line: float(line.errors.mean()))
    text = (
        f"**`strong` is a recipe for long training**: {here}% after these {short.epochs} epochs, "
        f"{there}% after its own {full.epochs}. What its rows above gain or lose tells of short "
        "training alone, not of what the recipe owes to its parts."
    )
    if least is not short:
        error = percent(float(least.errors.mean()), digits=2)
        text += f" Without teachers the least error in so few epochs has *{least.name}*, {error}%."
    return text


def base_of(name: str) -> str:
    """What a row of the ablation is compared to.

    Examples:
        >>> base_of("plain + SAM"), base_of("strong − Cutout"), base_of("student, with SAM")
        ('plain', 'strong', 'student')
    """
    return name.split(" + ")[0].split(" − ")[0].split(", ")[0]


def paired_changes(line: Line, base: Line, which: Which = "errors") -> list[float]:
    """The difference of the test error for each seed that both have.

    Args:
        line: a row of a table.
        base: what it is compared to.
        which: the errors as they are, or those with τ again.
    """
    mine, theirs = (
        {one.spec.seed: e for one, e in zip(of.records, getattr(of, which), strict=True)}
        for of in (line, base)
    )
    return [float(error - theirs[seed]) for seed, error in mine.items() if seed in theirs]


def change_text(line: Line, base: Line | None, which: Which = "errors") -> str:
    """The paired change of the test error in points: ``−1.20 ± 0.41``."""
    pairs = [] if base is None else paired_changes(line, base, which)
    if not pairs:
        return "–"
    found = mean_interval(pairs)
    text = signed(found.mean, digits=2)
    return text if found.seeds < 2 else f"{text} ± {percent(found.half_width, digits=2)}"


def verdicts(lines: Sequence[Line]) -> str | None:
    """Which changes are more than chance, sorted by what they do: a point each; None without any.

    Args:
        lines: of the ablation, with what they are compared to; one that lacks a seed is not
            judged.
    """
    whole = {line.name: line for line in lines if line.is_whole}
    found: dict[str, list[str]] = {"lower": [], "raise": [], "open": []}
    otherwise: dict[str, list[str]] = {"lower": [], "raise": [], "open": []}
    for name, line in whole.items():
        base = whole.get(base_of(name))
        if base is not None and base is not line:
            found[_verdict(line, base)].append(name)
            again = _verdict(line, base, "again")
            if again != _verdict(line, base):
                otherwise[again].append(name)
    sentences = {
        "lower": "lower the test error by more than chance",
        "raise": "raise the test error by more than chance",
        "open": "change the test error by no more than chance may",
    }
    points = [f"- {'; '.join(names)}: {sentences[key]}." for key, names in found.items() if names]
    if not points:
        return None
    text = "Paired by seed, at 95%:\n\n" + "\n".join(points)
    others = [f"- {'; '.join(names)}: {sentences[k]}." for k, names in otherwise.items() if names]
    if not others:
        return text
    # What one number, chosen afterwards, gives for nothing is none of an ingredient's.
    return f"{text}\n\nWith τ again, otherwise than that:\n\n" + "\n".join(others)


def _verdict(line: Line, base: Line, which: Which = "errors") -> str:
    pairs = paired_changes(line, base, which)
    if len(pairs) < 2:
        return "open"
    interval = mean_interval(pairs)
    if not interval.excludes_zero:
        return "open"
    return "lower" if interval.mean < 0 else "raise"
