"""What the study's tables say of a line in their cells, and of a part in their titles."""

from __future__ import annotations

import math

from longtail.experiments.strong_part import DISTILLED, Line, Part
from longtail.priors import GROUPS
from longtail.report.tables import percent, title_of


def count_text(runs: int) -> str:
    """What a figure is of: ``mean of 5 runs``."""
    return "one run" if runs == 1 else f"mean of {runs} runs"


def groups_note(part: Part) -> str:
    """What `GROUPS` are, and which of them has no class here."""
    found = part.records[0].prior.groups()
    sizes = ", ".join(str(len(found[name])) for name in GROUPS)
    return (
        "many, medium, few: mean error of the classes with over 100, 20 to 100 and under 20 "
        f"training images, of which there are {sizes}."
    )


def minutes_text(value: float) -> str:
    """Minutes with three figures or so: ``0.84``, ``4.2``, ``12``."""
    return f"{value:.{2 if value < 1 else 1 if value < 10 else 0}f}"


def by_group(line: Line) -> list[str]:
    """A cell for each of `GROUPS`, the mean error of its classes in percent."""
    return [percent(line.groups.get(name, math.nan)) for name in GROUPS]


def name_of(line: Line) -> str:
    """Its name, and how many of its runs are there unless it is all."""
    if line.is_whole:
        return line.name
    return f"{line.name} ({len(line.records)} of {line.wanted})"


def further_name(line: Line) -> str:
    """What makes students others than the recipe's: ``longer teachers``."""
    return line.name.removeprefix(f"{DISTILLED}, ")


def where(part: Part) -> str:
    """Its data set and ratio in words."""
    return f"{title_of(part.setting.dataset)}, imbalance ratio {part.setting.ratio:g}"
