"""`longtail reproduce`: the paper's tables and figures, each by its name."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from longtail.cli import _console
from longtail.cli._console import ForceOption, JsonOption

app = typer.Typer(rich_markup_mode=None, add_completion=False)

# Name -> one line about it. The module of that name in `longtail.experiments` computes it, and
# the one in `longtail.report` draws it; what they offer is in the former's __init__.
EXPERIMENTS = {
    "synthetic": "Every loss and post-hoc method on two Gaussian classes (figure 2).",
    "theory": "What is consistent and why not (table 1); links, Bayes risks.",
}


def _complete(incomplete: str) -> list[str]:
    return [name for name in EXPERIMENTS if name.startswith(incomplete)]


@app.command()
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="An experiment; none lists them all.", autocompletion=_complete
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder for numbers, tables and figures; longtail-NAME if absent. "
            "With --json, nothing is written unless this is given.",
            show_default=False,
        ),
    ] = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Compute a table or figure of the paper anew.

    The numbers are printed, and written beside the figures (SVG and PNG).

    \b
    Examples:
      longtail reproduce                     which experiments there are
      longtail reproduce synthetic           print; write longtail-synthetic/
      longtail reproduce synthetic -o paper  write into paper/ instead
      longtail reproduce synthetic --json    numbers only, for a program
    """
    if name is None:
        _list(json)
        return
    if name not in EXPERIMENTS:
        raise typer.BadParameter(
            f"there is no experiment {name!r}; the experiments are {', '.join(EXPERIMENTS)}"
        )
    experiment = importlib.import_module(f"longtail.experiments.{name}")
    report = importlib.import_module(f"longtail.report.{name}")
    folder = out if out is not None or json else Path(f"longtail-{name}")
    if folder is not None:
        _refuse_early(report, folder, force)
    with _console.progress(f"reproducing {name}") as progress:
        results = experiment.run(progress=progress)
    written = report.write(results, folder) if folder is not None else []
    if json:
        _console.print_json(results.to_dict())
        return
    for table in report.tables(results):
        _console.show_table(table)
    _console.line(
        _console.wrapped(f"Written to {folder}: {', '.join(path.name for path in written)}")
    )


def _list(json: bool) -> None:
    if json:
        _console.print_json([{"name": n, "summary": text} for n, text in EXPERIMENTS.items()])
        return
    width = max(map(len, EXPERIMENTS))
    for name, text in EXPERIMENTS.items():
        _console.line(f"{name:<{width}}  {text}")


def _refuse_early(report: ModuleType, folder: Path, force: bool) -> None:
    """What would fail after the work is refused before it."""
    from longtail import _checks

    _checks.require("matplotlib", extra="report", caller="longtail reproduce")
    if folder.exists() and not folder.is_dir():
        raise _checks.InputError(f"--out must be a folder, but {folder} is a file.")
    for file in report.FILES:
        _console.refuse_overwrite(folder / file, force)
