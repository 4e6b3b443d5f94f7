"""Small tables as plain data: rows of text that the terminal, Markdown and pages share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A titled table; the first column holds names, the others are aligned right.

    Attributes:
        title: one line above.
        header: column names.
        rows: one sequence of texts per row, as long as the header.
        note: what a reader must know to read it, below.

    Example:
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


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
