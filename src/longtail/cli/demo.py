"""`longtail demo`: the first thing to run.

Five losses on long-tailed digits, five seeds, and what adjusting does. The recipe was settled by
hand, in a few trials that also looked at test errors, and is the same for every method: compare
the methods, but don't take the level for a benchmark. Taus come from a second softmax run per
seed with a fifth of each class held out.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longtail.cli import _console
from longtail.cli._console import ForceOption, JsonOption

if TYPE_CHECKING:
    from longtail.report.compare import Comparison
    from longtail.runs import Run, RunSpec

app = typer.Typer(rich_markup_mode=None, add_completion=False)

METHODS = ("softmax", "balanced", "adaptive", "equalized", "logit-adjusted")
HELD_OUT = 0.2


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

    _checks.require("torch", extra="torch,report")
    _checks.require("plotly", extra="report")
    from longtail.report.pages import write_runs

    file = out / "report.html"
    _console.refuse_overwrite(file, force)
    # What is half done is finished by the same words; what is done, done again only by force.
    words = ["longtail", "demo", "--seeds", str(seeds), "--out", str(out)]
    resume, again = shlex.join(words), shlex.join([*words, "--force"])
    with _console.progress("training") as progress:
        compared, _ = train_all(
            out / "runs", seeds=seeds, force=force, command=resume, progress=progress
        )
    with _console.working("writing the page"):
        write_runs(compared, file, command=again, trains=True, force=True)
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


def specs(*, seeds: int = 5, epochs: int | None = None) -> list[RunSpec]:
    """Every method on every seed, and softmax with a held-out part."""
    from longtail.data.digits import load_digits_lt
    from longtail.train.recipe import make_spec

    data = load_digits_lt().spec
    overrides = {} if epochs is None else {"epochs": epochs}
    parts = [(data, method) for method in METHODS]
    parts.append((replace(data, held_out=HELD_OUT), METHODS[0]))
    return [
        make_spec(part, method=method, recipe="digits", seed=seed, overrides=overrides)
        for part, method in parts
        for seed in range(seeds)
    ]


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one core: for so small a network, waiting for the others costs more than it saves.

    It also makes the result independent of how many cores there are.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train_all(
    root: Path | str,
    *,
    seeds: int = 5,
    epochs: int | None = None,
    force: bool = False,
    command: str | None = None,
    progress: Callable[[float, int, str], None] | None = None,
) -> tuple[Comparison, list[Run]]:
    """Train, open the test set once for each finished run, and compare.

    Args:
        root: where the run folders go; finished runs there are used as they are.
        seeds: how many.
        epochs: other than the recipe's.
        force: train finished runs again.
        command: what to type to do this again, for the record.
        progress: called as ``progress(epochs done, epochs in all, what)``.

    Returns:
        The comparison, and the runs behind it.
    """
    from longtail.data.digits import load_digits_lt
    from longtail.report.compare import compare
    from longtail.train.engine import evaluate, train_cohort

    data = load_digits_lt()
    with one_thread():
        trained = train_cohort(
            specs(seeds=seeds, epochs=epochs),
            data.train,
            root=root,
            command=command,
            force=force,
            progress=progress,
        )
        runs = [evaluate(one, data.test) for one in trained]
    return compare(runs), runs
