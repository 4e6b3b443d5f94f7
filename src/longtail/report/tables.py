"""Tables as plain data, for the terminal, Markdown and pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from longtail._checks import FloatArray

# The groups of `ClassPrior.groups`: training examples per class.
GROUP_BOUNDS = {"many": "over 100", "medium": "20 to 100", "few": "under 20"}


@dataclass(frozen=True)
class Table:
    """A titled table; the first column holds names, the others are aligned right.

    Attributes:
        title: one line above.
        header: column names.
        rows: one sequence of texts per row, as long as the header.
        note: explanation below the table.

    Examples:
        >>> table = Table("Errors", ("method", "mean"), [("softmax", "18.0")])
        >>> print(table.markdown())
        **Errors**
        <BLANKLINE>
        | method | mean |
        | --- | ---: |
        | softmax | 18.0 |
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        """Return the table in Markdown."""
        rows = [self.header, ["---", *["---:"] * (len(self.header) - 1)], *self.rows]
        # A number and its deviation stay on one line of a page.
        kept = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"
        lines = [f"| {' | '.join(row)} |".replace(" ± ", kept) for row in rows]
        parts = [f"**{self.title}**", "\n".join(lines), *([self.note] if self.note else [])]
        return "\n\n".join(parts)


def percent(value: float, *, digits: int = 1) -> str:
    """Return a fraction as a percentage without its sign, or a dash for NaN.

    Examples:
        >>> percent(0.1234), percent(-0.05), percent(-0.0001), percent(float("nan"))
        ('12.3', '−5.0', '0.0', '–')
    """
    if math.isnan(value):
        return "–"
    text = f"{abs(100 * value):.{digits}f}"
    return f"−{text}" if value < 0 and float(text) else text


def spread(values: Sequence[float] | FloatArray, *, digits: int = 2) -> str:
    """Return mean and standard deviation in percent; the mean alone of a single value.

    Examples:
        >>> spread([0.45, 0.46]), spread([0.45], digits=1), spread([float("nan")] * 2), spread([])
        ('45.50 ± 0.71', '45.0', '–', '–')
    """
    mean = float(np.mean(values)) if len(values) else math.nan
    if math.isnan(mean):  # a group without classes has no error
        return "–"
    deviation = f" ± {100 * np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{100 * mean:.{digits}f}{deviation}"


def signed(value: float, *, digits: int = 1) -> str:
    """Return a difference in percentage points, with its sign.

    Examples:
        >>> signed(-0.0512), signed(0.02), signed(0.0)
        ('−5.1', '+2.0', '0.0')
    """
    text = percent(value, digits=digits)
    return text if value <= 0 or text.strip("0.") == "" else f"+{text}"


def plural(count: int, one: str, many: str) -> str:
    """Return a number with its noun.

    Examples:
        >>> plural(1, "class", "classes"), plural(1200, "class", "classes")
        ('1 class', '1,200 classes')
    """
    return f"{count:,} {one if count == 1 else many}"


def shortened(names: Sequence[str], width: int) -> list[str]:
    """Return the names cut to `width` characters, in the middle: long names often end differently.

    Examples:
        >>> shortened(["Felidae/Panthera leo", "Felidae/Panthera onca", "dog"], 12)
        ['Feli…era leo', 'Feli…ra onca', 'dog']
    """
    tail = 2 * (width - 1) // 3
    cut = (f"{name[: width - 1 - tail]}…{name[-tail:]}" for name in names)
    return [name if len(name) <= width else short for name, short in zip(names, cut, strict=True)]
