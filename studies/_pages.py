"""Parts of the studies' pages: tables, templates, figures, and the terminal.

A page is a Jinja template, ``studies/pages/NAME.md.j2``, that gets plain values and tables::

    def main(options):
        ...
        show([table, ...])                                   # on the terminal
        with page(options, "docs/synthetic.md") as write:    # or nothing, for a trial in small
            write(render("synthetic", cells=table, gap=0.0123))
            write.figure("errors", draw(...), title="…")     # docs/synthetic/errors.svg
            write.block("README.md", "name-of-marks", text)  # between two marks of another page

In a template ``{{ table }}`` is Markdown, ``{{ 0.123|pct }}`` is 12.3, ``{{ 0.123|pct(2) }}``
12.30, ``{{ x|signed }}`` +1.2, ``{{ interval|points }}`` +1.20 [+0.80, +1.60], and ``{{ interval|r
}}`` a correlation. Names that were not given are errors. The same values give the same bytes.
"""

from __future__ import annotations

import argparse
import io
import math
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longtail import InputError
from longtail.report import figures
from longtail.report.compare import Interval
from longtail.report.tables import GROUP_BOUNDS, Table, percent, plural, signed, spread
from studies._records import (
    ROOT,
    Column,
    Record,
    Row,
    Runs,
    Shelf,
    add_page_arguments,
    train_missing,
    write_text,
)

__all__ = [
    "GROUP_BOUNDS",
    "Table",
    "add_page_arguments",
    "percent",
    "plural",
    "signed",
    "spread",
]

# Options that change how a study is done, not what it shows.
_HARMLESS = {
    *("no_train", "minutes", "only", "device", "precision", "data_dir", "runs", "together"),
    *("out", "deadline", "defaults", "workers", "micro_batch", "compile", "root"),
}
_PROSE = 88


# ---------------------------------------------------------------------------- text


def points(interval: Interval | None, *, digits: int = 2) -> str:
    """A difference in points of error with its interval.

    Examples:
        >>> points(Interval(0.05, 0.04, 0.06, 5))
        '+5.00 [+4.00, +6.00]'
    """
    if interval is None:
        return "–"
    mean, low, high = (
        signed(value, digits=digits) for value in (interval.mean, interval.low, interval.high)
    )
    return mean if math.isnan(interval.low) else f"{mean} [{low}, {high}]"


def correlation(interval: Interval | None) -> str:
    """A correlation with its interval.

    Examples:
        >>> correlation(Interval(-0.5, -0.75, -0.25, 5))
        '−0.50 [−0.75, −0.25]'
    """
    if interval is None:
        return "–"
    ends = (interval.mean / 100, interval.low / 100, interval.high / 100)
    return points(Interval(*ends, interval.seeds))


def listing(words: Sequence[str]) -> str:
    """Words with commas between them, and "and" before the last."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def render(name: str, **values: Any) -> str:
    """A page's text, from the template of that name in ``studies/pages``."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "pages"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        # Without a title where a heading says enough.
        finalize=lambda v: _markdown(v) if isinstance(v, Table) else v,
    )
    environment.filters |= {
        "pct": lambda value, digits=1: percent(value, digits=digits),
        "signed": lambda value, digits=1: signed(value, digits=digits),
        "points": points,
        "r": correlation,
        "listing": listing,
        "plural": plural,
    }
    text = environment.get_template(f"{name}.md.j2").render(**values)
    blocks = (block.strip("\n") for block in text.split("\n\n"))
    return "\n\n".join(block for block in blocks if block.strip()) + "\n"


def _markdown(table: Table) -> str:
    """A table with words aligned left and intervals kept on one line."""
    aligned = [
        "---" if any(cell.lstrip("✓✗? [`")[:1].isalpha() for cell in column) else "---:"
        for column in zip(*table.rows, strict=True)
    ]
    right = f"| {' | '.join(['---', *['---:'] * (len(table.header) - 1)])} |"
    text = table.markdown().removeprefix("****\n\n")
    text = text.replace(right, f"| {' | '.join(['---', *aligned[1:]])} |", 1)
    return re.sub(r"(\[[+−]?[\d.]+), ", "\\1,\N{NO-BREAK SPACE}", text)


# ---------------------------------------------------------------------------- files


@dataclass
class Writer:
    """Writes a page and its figures; call it with the page's text.

    Attributes:
        root: below which; None to write nothing.
        path: of the page, from there.
        written: what was written so far.
    """

    root: Path | None
    path: Path
    written: list[Path] = field(default_factory=list)

    def __call__(self, text: str) -> None:
        self._write(self.path, text)

    def figure(self, name: str, figure: Any | None, *, title: str) -> None:
        """Write a matplotlib Figure as SVG into a folder of the page's name; None is left out."""
        if figure is None or self.root is None:
            return
        buffer = io.StringIO()
        with figures.style():
            metadata = {"Date": None, "Creator": "longtail", "Title": title}
            figure.savefig(buffer, format="svg", metadata=metadata)
        self._write(self.path.with_suffix("") / f"{name}.svg", buffer.getvalue())

    def block(self, path: str, marks: str, text: str) -> None:
        """Replace what stands between two marks of another page, if that page is there."""
        if self.root is None or not (self.root / path).exists():
            return
        begin, end = f"<!-- {marks}: begin -->", f"<!-- {marks}: end -->"
        old = (self.root / path).read_text(encoding="utf-8")
        if old.count(begin) != 1 or old.count(end) != 1 or old.index(begin) > old.index(end):
            raise InputError(f"{path} must have the lines {begin} and {end}, once and in order.")
        before, after = old[: old.index(begin)], old[old.index(end) + len(end) :]
        self._write(Path(path), f"{before}{begin}\n{text.strip()}\n{end}{after}")

    def _write(self, path: Path, text: str) -> None:
        if self.root is not None:
            write_text(self.root / path, text)
            self.written.append(path)


@contextmanager
def page(options: argparse.Namespace, path: str) -> Iterator[Writer]:
    """A `Writer` for a page of this checkout, or of ``--out``.

    A trial in small must not replace the checkout's page: with options that change what is shown
    and without ``--out``, nothing is written.
    """
    changed = [
        f"--{name.replace('_', '-')}"
        for name, value in vars(options).items()
        if name not in _HARMLESS and value != options.defaults.get(name)
    ]
    if options.out is None and changed:
        note(f"The page is left as it is, because of {listing(changed)}; --out FOLDER writes one.")
        yield Writer(None, Path(path))
        return
    writer = Writer(options.out or ROOT, Path(path))
    yield writer
    note(f"Written below {writer.root}: {', '.join(map(str, writer.written))}")


# ---------------------------------------------------------------------------- tables


def mean_deviation(column: Column, row: Row) -> str:
    """``27.03 ± 0.41``: mean and standard deviation over the seeds, and how many if not all."""
    cell = column.cell(row)
    if cell is None:
        return "–"
    lacking = len(cell.seeds) < column.seeds
    return spread(cell.errors) + (f" ({len(cell.seeds)} of {column.seeds})" if lacking else "")


def cells_table(column: Column, rows: Iterable[Row], *, title: str, note: str = "") -> Table:
    """A column's cells beside the published ones; rows that have neither are left out."""
    found = []
    for row in rows:
        cell, paper = column.cell(row), row.paper.get(column.key)
        if cell is not None or paper is not None:
            both = cell is not None and paper is not None
            found.append(
                (
                    row.name,
                    "" if paper is None else f"{paper:.2f}",
                    mean_deviation(column, row),
                    signed(cell.mean - paper / 100, digits=2) if both else "",
                    "" if cell is None or cell.taus is None else f"{cell.taus.mean():.2f}",
                )
            )
    return Table(title, ("method", "published", "ours", "difference", "τ"), found, note=note)


def facts(records: Sequence[Record]) -> dict[str, Any]:
    """Number, training minutes and devices of runs, which every page states."""
    names = sorted({str(one.document["device"]) for one in records})
    minutes = sum(one.seconds for one in records) / 60
    return {"runs": len(records), "minutes": minutes, "devices": listing(names or ["any device"])}


# ---------------------------------------------------------------------------- the terminal


def show(tables: Iterable[Table]) -> None:
    """Print tables of results."""
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    for table in tables:
        drawn = Drawn(box=None, pad_edge=False, header_style="bold")
        for position, name in enumerate(table.header):
            drawn.add_column(name, overflow="fold", justify="right" if position else "left")
        for row in table.rows:
            drawn.add_row(*map(Text, row))
        console.print(*([Text(table.title, style="bold")] if table.title else []), drawn)
        if table.note:
            console.print(Text(textwrap.fill(table.note, _PROSE)))
        console.print()


def note(text: str) -> None:
    """Say something that is not the result."""
    sys.stderr.write(textwrap.fill(text, _PROSE, break_long_words=False) + "\n")


def trained(options: argparse.Namespace, rows: Iterable[Runs]) -> Shelf | None:
    """`train_missing` with its progress; None, and said, if time ran out."""
    with progress("training") as report:
        shelf, finished = train_missing(options, rows, progress=report)
    if not finished:
        note("Time is up. Nothing is lost; the same command goes on.")
        return None
    return shelf


@contextmanager
def progress(title: str, *, every: float = 30.0) -> Iterator[Callable[[float, int, str], None]]:
    """Show how far something is: a bar on a terminal, now and then a line elsewhere."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bars:
            task = bars.add_task(title, total=None)

            def draw(done: float, total: int, text: str) -> None:
                bars.update(task, completed=done, total=total or None, description=text or title)

            yield draw
        return
    latest = time.monotonic()

    def say(done: float, total: int, text: str) -> None:
        nonlocal latest
        if time.monotonic() - latest >= every:
            latest = time.monotonic()
            sys.stderr.write(f"{title}: {done:g} of {total:g}, {text}\n")

    yield say
