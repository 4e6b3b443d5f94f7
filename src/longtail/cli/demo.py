"""`longtail demo`: the first thing to run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from longtail.cli import _console
from longtail.cli._console import ForceOption, JsonOption

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def demo(
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Folder for the runs and the page.", show_default=True),
    ] = Path("longtail-demo"),
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Trainings per method.")] = 5,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """See on real images, in a minute, what logit adjustment does.

    Needs no network and no GPU. Trains a small network on scikit-learn's digits, made
    long-tailed (classes of 114 down to 2 images), with five losses and several seeds; adjusts
    the plain one after the fact; and tests all of them on 60 images of each class. Prints a
    table and writes a page, report.html; the trained runs stay beside it, for every other command.

    \b
    Examples:
      longtail demo                  write longtail-demo/report.html
      longtail demo --seeds 10       narrower intervals
      longtail demo --json           numbers only, for a program
    """
    from longtail import _checks
    from longtail.report import comparison as texts

    _checks.require("torch", extra="torch,report", caller="longtail demo")
    _checks.require("plotly", extra="report", caller="longtail demo")
    from longtail.experiments import demo as study
    from longtail.report import page

    file = out / "report.html"
    _console.refuse_overwrite(file, force)
    # What is half done is finished by the same words; what is done, done again only by force.
    words = ["longtail", "demo", "--seeds", str(seeds), "--out", str(out)]
    resume, again = shlex.join(words), shlex.join([*words, "--force"])
    with _console.progress("training") as progress:
        compared, runs = study.run(
            out / "runs", seeds=seeds, force=force, command=resume, progress=progress
        )
    with _console.working("writing the page"):
        page.write(runs, file, command=again, trains=True, force=True)
    if json:
        _console.print_json({**compared.to_dict(), "page": file})
        return
    for table in texts.tables(compared):
        _console.show_table(table)
    _console.line(_console.wrapped(" ".join(texts.summary(compared))))
    _console.line()
    _console.line("For more, with a slider for tau, open this page in a browser:")
    _console.line(f"  {file}")
    _console.line(f"The runs behind it are in {out / 'runs'}; to list them:")
    _console.line(f"  {shlex.join(['longtail', 'runs', 'list', str(out / 'runs')])}")
