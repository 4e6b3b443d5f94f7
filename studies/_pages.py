"""Parts of the studies' pages: templates, figures, tables of cells, and the terminal.

A page is a Jinja template, ``studies/pages/NAME.md.j2``, that gets plain values and tables::

    def main(options):
        ...
        show([table, ...])                                   # on the terminal
        with page(options, "docs/synthetic.md") as write:    # or nothing, for a trial in small
            write(render("synthetic", cells=table, gap=0.0123))
            write.figure("errors", draw(...), title="…")     # docs/synthetic/errors.svg

In a template ``{{ table }}`` is Markdown, ``{{ 0.123|pct }}`` is 12.3, ``{{ 0.123|pct(2) }}`` is
12.30 and ``{{ x|signed }}`` +1.2. Names that were not given are errors.
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
from pathlib import Path
from typing import Any

from longtail import InputError
from longtail.report import figures
from longtail.report.compare import Interval
from longtail.report.tables import Table, percent, signed, spread
from studies._records import ROOT, Column, Record, Row, Runs, Shelf, train_missing, write_text

# Options that change how a study is done, not what it shows.
_HARMLESS = {
    *("no_train", "minutes", "only", "device", "precision", "data_dir", "runs", "together"),
    *("out", "deadline", "defaults", "workers", "micro_batch", "compile", "root"),
}
_PROSE = 88


# ---------------------------------------------------------------------------- text


def points(interval: Interval | None) -> str:
    """Return a difference in points of error with its interval.

    Examples:
        >>> points(Interval(0.05, 0.04, 0.06, 5))
        '+5.00 [+4.00, +6.00]'
    """
    if interval is None:
        return "–"
    mean, low, high = (
        signed(value, digits=2) for value in (interval.mean, interval.low, interval.high)
    )
    return mean if math.isnan(interval.low) else f"{mean} [{low}, {high}]"


def correlation(interval: Interval) -> str:
    """Return a correlation with its interval.

    Examples:
        >>> correlation(Interval(-0.5, -0.75, -0.25, 5))
        '−0.50 [−0.75, −0.25]'
    """
    ends = (interval.mean / 100, interval.low / 100, interval.high / 100)
    return points(Interval(*ends, interval.seeds))


def listing(words: Sequence[str]) -> str:
    """Return words with commas between them, and "and" before the last."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def render(name: str, **values: Any) -> str:
    """Return a page's text, from the template of that name in ``studies/pages``."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "pages"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Without a title where a heading says enough.
        finalize=lambda v: _markdown(v) if isinstance(v, Table) else v,
    )
    environment.filters["pct"] = lambda value, digits=1: percent(value, digits=digits)
    environment.filters["signed"] = lambda value, digits=1: signed(value, digits=digits)
    text = environment.get_template(f"{name}.md.j2").render(**values)
    blocks = (block.strip("\n") for block in text.split("\n\n"))
    return "\n\n".join(block for block in blocks if block.strip()) + "\n"


def _markdown(table: Table) -> str:
    """Return a table with words aligned left and intervals kept on one line."""
    aligned = [
        "---" if any(cell.lstrip("✓✗? [`")[:1].isalpha() for cell in column) else "---:"
        for column in zip(*table.rows, strict=True)
    ]
    right = f"| {' | '.join(['---', *['---:'] * (len(table.header) - 1)])} |"
    text = table.markdown().removeprefix("****\n\n")
    text = text.replace(right, f"| {' | '.join(['---', *aligned[1:]])} |", 1)
    return re.sub(r"(\[[+−]?[\d.]+), ", "\\1,\N{NO-BREAK SPACE}", text)


# ---------------------------------------------------------------------------- files


class Writer:
    """Writes a page and its figures below a folder, or nothing without one.

    Call it with the page's text.
    """

    def __init__(self, root: Path | None, path: str) -> None:
        self.root, self.path = root, Path(path)
        self.written: list[Path] = []

    def __call__(self, text: str) -> None:
        self._write(self.path, text)

    def figure(self, name: str, figure: Any, *, title: str) -> None:
        """Write a matplotlib Figure as SVG into a folder of the page's name."""
        if self.root is None:
            return
        buffer = io.StringIO()
        with figures.style():
            metadata = {"Date": None, "Creator": "longtail", "Title": title}
            figure.savefig(buffer, format="svg", metadata=metadata)
        self._write(self.path.with_suffix("") / f"{name}.svg", buffer.getvalue())

    def block(self, path: str, marks: str, text: str) -> None:
        """Replace what stands between two marks of another page, if that page is there."""
        if self.root is not None and (self.root / path).exists():
            begin, end = f"<!-- {marks}: begin -->", f"<!-- {marks}: end -->"
            before, rest = (self.root / path).read_text(encoding="utf-8").split(begin)
            self._write(Path(path), f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}")

    def _write(self, path: Path, text: str) -> None:
        if self.root is not None:
            write_text(self.root / path, text)
            self.written.append(path)


@contextmanager
def page(options: argparse.Namespace, path: str) -> Iterator[Writer]:
    """Give a `Writer` for a page of this checkout, or of ``--out``.

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
        yield Writer(None, path)
        return
    writer = Writer(options.out or ROOT, path)
    yield writer
    note(f"Written below {writer.root}: {', '.join(map(str, writer.written))}")


# ---------------------------------------------------------------------------- tables


def mean_deviation(column: Column, row: Row) -> str:
    """Return ``27.03 ± 0.41``: mean, deviation over the seeds, and how many seeds if not all."""
    cell = column.cell(row)
    if cell is None:
        return "–"
    lacking = len(cell.seeds) < column.seeds
    return spread(cell.errors) + (f" ({len(cell.seeds)} of {column.seeds})" if lacking else "")


def published(row: Row, column: Column) -> str:
    """Return a row's published error in percent, or nothing."""
    return f"{row.paper[column.key]:.2f}" if column.key in row.paper else ""


def columns_table(column: Column, rows: Iterable[Row], title: str, hours: bool = False) -> Table:
    """Return a column's cells beside the published ones, and which runs it lacks."""
    found = []
    for row in rows:
        cell, paper = column.cell(row), published(row, column)
        if cell is None and not paper:
            continue
        both = cell is not None and paper
        gap = signed(cell.mean - row.paper[column.key] / 100, digits=2) if both else ""
        tau = "" if cell is None or cell.taus is None else f"{cell.taus.mean():.2f}"
        found.append((row.name, paper, mean_deviation(column, row), gap, tau))
    time = f"{column.minutes / 60:.1f} hours" if hours else f"{column.minutes:.1f} minutes"
    said, lacking = f"{len(column.records)} runs in {time}.", column.missing()
    said += f" Missing: {'; '.join(lacking)}." if lacking else ""
    return Table(title, ("method", "published", "ours", "difference", "τ"), found, note=said)


def facts(records: Sequence[Record]) -> dict[str, Any]:
    """Return number, training minutes and devices of runs, which every page states."""
    names = sorted({str(one.document["device"]) for one in records})
    minutes = sum(one.seconds for one in records) / 60
    return {"runs": len(records), "minutes": minutes, "devices": listing(names or ["any device"])}


def refuse_nothing(records: Any, options: argparse.Namespace, more: str = "") -> None:
    """Refuse to make a page of no records."""
    if not records:
        raise InputError(
            f"there is no record of any of these runs in {options.records}{more or '.'}"
        )


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


def trained(options: argparse.Namespace, rows: Iterable[Runs], **more: Any) -> tuple[Shelf, bool]:
    """`train_missing` with its progress; it is said if time ran out."""
    with progress("training") as report:
        shelf, finished = train_missing(options, rows, progress=report, **more)
    if not finished:
        note("Time is up. Nothing is lost; the same command goes on.")
    return shelf, finished


@contextmanager
def progress(title: str, *, every: float = 30.0) -> Iterator[Callable[[float, int, str], None]]:
    """Show how far something is: a bar on a terminal, now and then a line elsewhere."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bars:
            task = bars.add_task(title, total=None)
            yield lambda done, total, text: bars.update(
                task, completed=done, total=total or None, description=text or title
            )
        return
    latest = time.monotonic()

    def say(done: float, total: int, text: str) -> None:
        nonlocal latest
        if time.monotonic() - latest >= every:
            latest = time.monotonic()
            sys.stderr.write(f"{title}: {done:g} of {total:g}, {text}\n")

    yield say
