"""`longtail report`: one HTML page, and figures for papers, from run folders."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longtail.cli import _console, _runs
from longtail.cli._console import option

if TYPE_CHECKING:
    from longtail.report.compare import Comparison


def report(
    context: typer.Context,
    runs: _runs.Runs,
    out: Annotated[Path, option("FILE.html", "The page.", "--out", "-o")] = Path("report.html"),
    figures: Annotated[
        Path | None, option("DIR", "Also write the charts there, as SVG and PNG.")
    ] = None,
    split: Annotated[str, option("NAME", "Split to judge the runs on.")] = "test",
    title: Annotated[
        str | None, option("TEXT", "Title of the page; from the data's name if absent.")
    ] = None,
    force: _console.Force = False,
    json: _console.Json = False,
) -> None:
    """Compare runs of one data set on one page.

    The page is a single file that opens anywhere, without a network. It shows errors with
    intervals, a slider for tau that moves them, calibration, prediction sets, weight norms and how
    to run it again. Post-hoc methods are computed from the saved logits of the softmax runs.
    Softmax runs that differ from these only in a held-out part choose tau; other runs with a
    held-out part are left out.

    \b
    Examples:
      longtail report runs/digits-lt
      longtail report runs/cifar10-lt --out cifar10.html --figures paper/
      longtail report runs/digits-lt/softmax-s0-* runs/digits-lt/balanced-s0-*
    """
    from longtail import _checks
    from longtail.report import pages
    from longtail.report.compare import compare

    # What would fail after the work is refused before it.
    for module in ("plotly", *(["matplotlib"] if figures is not None else [])):
        _checks.require(module, extra="report")
    _console.refuse_overwrite(out, force, page="--out")
    for stem in pages.FIGURES:
        for ending in ("svg", "png") if figures is not None else ():
            _console.refuse_overwrite(Path(figures or "") / f"{stem}.{ending}", force)
    words = [word for word in context.obj if word != "--force"]  # by then the page is there
    command = shlex.join(["longtail", *words, "--force"])
    compared = compare(_runs.open_runs(runs, split=split), split=split)
    with _console.working("writing the page"):
        page = pages.runs_page(compared, title=title, command=command)
        page.write(out)
        drawn = [] if figures is None else page.write_figures(figures)
    if json:
        _console.print_json({**compared.to_dict(), "page": out, "figures": drawn})
        return
    print_comparison(compared)
    slider = ": it has a slider for tau" if compared.curves else ""
    _console.line(f"Open {out} in a browser{slider}.")
    if drawn:
        names = ", ".join(path.name for path in drawn)
        _console.line(f"Figures in {figures}: {names}", wrap=True)


def print_comparison(compared: Comparison) -> None:
    """Print the tables and the summary of a comparison."""
    from longtail.report.compare import summary, tables

    for table in tables(compared):
        _console.show_table(table)
    _console.line(" ".join(summary(compared)), wrap=True)
    _console.line()
