"""Output of all commands: results, messages, progress.

Results go to stdout, everything else to stderr, so that ``--json`` can be piped.
"""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from longtail.report.tables import Table as ReportTable


class Failure(Exception):
    """A command can't do what is asked; its text is the line that says so."""


def option(metavar: str | None, text: str, *names: str, **settings: Any) -> Any:
    """Return an option of a command in one line: what it takes, and its help."""
    return typer.Option(*names, metavar=metavar, help=text, **settings)


Json = Annotated[bool, option(None, "Print the result as JSON, and nothing else.", "--json")]
Force = Annotated[bool, option(None, "Replace what is there already.", "--force")]


def typed(context: typer.Context) -> list[str]:
    """Return the options that were given on the command line, and arguments by their names."""
    found = [
        (p.opts[0], context.get_parameter_source(p.name or "")) for p in context.command.params
    ]
    return [name for name, source in found if source and source.name == "COMMANDLINE"]


def refuse_overwrite(path: Path, force: bool, *, page: str | None = None) -> None:
    """Refuse to replace a file unless told to; `page` is an option that names a web page."""
    if page is not None and path.suffix.lower() not in (".html", ".htm"):
        raise Failure(
            f"{page} writes a page for a browser, so its file must end in .html or .htm; got "
            f"{path}."
        )
    if path.is_dir():
        raise Failure(f"{path} is a folder; name a file.")
    if path.exists() and not force:
        raise Failure(f"{path} exists; pass --force to replace it.")


def console(*, stderr: bool = False) -> Console:
    """Return a rich console; in a pipe, wide enough that nothing breaks in the middle of a name."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    piped = not stream.isatty() and "COLUMNS" not in os.environ
    return Console(file=stream, width=160 if piped else None, highlight=False, soft_wrap=False)


def printable(text: str) -> str:
    """Return a text with its control characters, which names in files may have, made visible.

    Examples:
        >>> printable("a\\x1b[31mred")
        'a\\\\x1b[31mred'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def line(text: str = "", *, wrap: bool = False, err: bool = False, kind: str = "") -> None:
    """Print a text as it is; to `wrap` prose; on stderr; or as a warning or error in one line."""
    if kind:
        text, err = f"longtail: {kind}: {' '.join(as_options(text).split())}", True
    if wrap:
        text = textwrap.fill(text, 80, break_long_words=False, break_on_hyphens=False)
    typer.echo(printable(text), err=err)


def show_table(table: ReportTable) -> None:
    """Print a table of results with its title and note, and an empty line after it."""
    from rich.table import Table
    from rich.text import Text

    # Where room is short columns move together first.
    widths = [max(map(len, cells)) for cells in zip(table.header, *table.rows, strict=True)]
    out = console()
    tight = sum(widths) + 2 * (len(widths) - 1) > out.width
    drawn = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=tight)
    for position, title in enumerate(table.header):
        # Then names go on in another line: numbers and names alike stay whole.
        more: dict[str, Any] = {"justify": "right", "no_wrap": True} if position else {}
        drawn.add_column(title, overflow="fold", **more)
    for row in table.rows:
        drawn.add_row(*(Text(printable(cell)) for cell in row))
    out.print(Text(table.title, style="bold"), drawn, sep="\n")
    if table.note:
        line(table.note, wrap=True)
    line()


def print_json(document: Any) -> None:
    """Print the result as JSON in ASCII; NaN and infinity, which JSON lacks, become null."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return dict(value)
        return value.tolist() if hasattr(value, "tolist") else os.fspath(value)

    text = json.dumps(document, default=plain)
    typer.echo(json.dumps(json.loads(text, parse_constant=lambda _: None), indent=2))


def duration(seconds: float | None) -> str:
    """Return seconds for people: ``0.8 s``, ``12 s``, ``3 min 5 s``, ``2 h 4 min``."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def as_options(text: str) -> str:
    """Return a message of the library with its arguments, such as `tau=`, as options.

    Examples:
        >>> as_options("skip them with `missing='skip'`, say `kind='probs'` or `force=True`")
        'skip them with --missing skip, say --probs or --force'
        >>> as_options("name them with `labels=`")
        'name them with --labels'
    """
    renamed = {"folds": "cross-fit", "target-prior": "target", "imbalance-ratio": "ratio"}
    renamed |= {"replace": "force", "half": "full-precision"}

    def option(found: re.Match[str]) -> str:
        name, value = found[1].replace("_", "-"), found[2]
        if name == "kind":
            return f"--{value}"
        plain = value in (None, "True", "False")
        return f"--{renamed.get(name, name)}{'' if plain else f' {value}'}"

    return re.sub(r"`(\w+)=(?:'?([\w.-]+)'?)?`", option, text)


@contextmanager
def progress(title: str, *, show: bool = True) -> Iterator[Callable[[float, int, str], None]]:
    """Show how far something long has come: a bar on a terminal, a line now and then elsewhere.

    Yields:
        A callback of (done, total, text) for library code; total 0 means unknown, and a share
        of a step counts as a decimal.
    """
    if not show:
        yield lambda *_: None
        return
    if sys.stderr.isatty():
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        columns = ("{task.description}", BarColumn(bar_width=12), MofNCompleteColumn())
        more = (TimeRemainingColumn(compact=True), "left  {task.fields[text]}")
        with Progress(*columns, *more, console=console(stderr=True), transient=True) as bars:
            task = bars.add_task(title, total=None, text="")
            yield lambda done, total, text: bars.update(
                task, completed=done, total=total or None, text=text
            )
        return
    due = time.monotonic() + 2  # short work passes without a line
    last: tuple[float, float] | None = None  # the last line: when, and how far

    def update(done: float, total: int, text: str) -> None:
        nonlocal due, last
        if (now := time.monotonic()) < due:
            return
        share = f" of {total} ({done / total:.0%})" if total else ""
        if last is not None and last[1] < done < total:
            share += f", {duration((now - last[0]) * (total - done) / (done - last[1]))} left"
        count = f"{done:.1f}" if isinstance(done, float) else done
        line(f"{title}: {count}{share}{'  ' + text if text else ''}", err=True)
        due, last = now + 5, (now, done)

    yield update


def working(title: str) -> Any:
    """Show that something without steps is under way, on a terminal; nothing elsewhere."""
    return console(stderr=True).status(f"{title} …") if sys.stderr.isatty() else nullcontext()
