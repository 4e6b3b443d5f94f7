"""Small tables as plain data: rows of text that the terminal, Markdown and pages share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from longtail._checks import FloatArray

# What `ClassPrior.groups` takes for many, medium and few training examples, in words.
GROUP_BOUNDS = {"many": "over 100", "medium": "20 to 100", "few": "under 20"}


@dataclass(frozen=True)
class Table:
    """A titled table; the first column holds names, the others are aligned right.

    Attributes:
        title: one line above.
        header: column names.
        rows: one sequence of texts per row, as long as the header.
        note: what a reader must know to read it, below.

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
        """The table in Markdown."""
        lines = [
            _line(self.header),
            _line(["---", *["---:"] * (len(self.header) - 1)]),
            *(_line(row) for row in self.rows),
        ]
        parts = [f"**{self.title}**", "\n".join(lines), *([self.note] if self.note else [])]
        return "\n\n".join(parts)


def percent(value: float, *, digits: int = 1) -> str:
    """A fraction as a percentage without its sign; a dash where there is none.

    Examples:
        >>> percent(0.1234), percent(float("nan"))
        ('12.3', '–')
    """
    return "–" if math.isnan(value) else _minus(f"{100 * value:.{digits}f}")


def spread(values: Sequence[float] | FloatArray, *, digits: int = 2) -> str:
    """Mean and standard deviation in percent, the mean alone of a single value; a dash for none.

    Examples:
        >>> spread([0.45, 0.46]), spread([0.45], digits=1), spread([float("nan")] * 2), spread([])
        ('45.50 ± 0.71', '45.0', '–', '–')
    """
    mean = float(np.mean(values)) if len(values) else math.nan
    text = percent(mean, digits=digits)
    if len(values) < 2 or math.isnan(mean):  # a group without classes has no error
        return text
    return f"{text} ± {percent(float(np.std(values, ddof=1)), digits=digits)}"


def signed(value: float, *, digits: int = 1) -> str:
    """A difference in percentage points, with its sign.

    Examples:
        >>> signed(-0.0512), signed(0.02), signed(0.0)
        ('−5.1', '+2.0', '0.0')
    """
    text = percent(value, digits=digits)
    return text if value <= 0 or text.strip("0.") == "" else f"+{text}"


def _minus(text: str) -> str:
    """A true minus sign, and none before a zero."""
    if text.lstrip("-").strip("0.") == "":
        return text.lstrip("-")
    return text.replace("-", "−")


def _line(cells: Sequence[str]) -> str:
    # A number and its deviation stay on one line of a page.
    kept = (cell.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}") for cell in cells)
    return f"| {' | '.join(kept)} |"


def plural(count: int, one: str, many: str) -> str:
    """A number with its noun.

    Examples:
        >>> plural(1, "class", "classes"), plural(1200, "class", "classes")
        ('1 class', '1,200 classes')
    """
    return f"{count:,} {one if count == 1 else many}"
