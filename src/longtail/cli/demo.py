"""`longtail demo`: the first thing to run.

Five losses on long-tailed digits with five seeds, and post-hoc adjustment. The recipe, the same for
every method, was chosen by hand in a few trials that also looked at test errors: compare the
methods, but don't take the level for a benchmark. Taus come from a second softmax run per seed with
a fifth of each class held out.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from longtail.cli import _console
from longtail.cli._console import option

METHODS = ("softmax", "balanced", "adaptive", "equalized", "logit-adjusted")
HELD_OUT = 0.2


def demo(
    out: Annotated[Path, option("FOLDER", "For the runs and the page.", "--out", "-o")] = Path(
        "longtail-demo"
    ),
    seeds: Annotated[int, option("N", "Trainings per method.", min=1)] = 5,
    force: _console.Force = False,
    json: _console.Json = False,
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

    _checks.require("torch", extra="torch,report")
    _checks.require("plotly", extra="report")
    from longtail.cli.report import print_comparison
    from longtail.data.digits import load_digits_lt
    from longtail.report.compare import compare
    from longtail.report.pages import runs_page
    from longtail.train.engine import evaluate, train_cohort
    from longtail.train.recipe import make_spec

    file, root, data = out / "report.html", out / "runs", load_digits_lt()
    _console.refuse_overwrite(file, force)
    parts = [(data.spec, method) for method in METHODS]
    parts.append((replace(data.spec, held_out=HELD_OUT), "softmax"))
    specs = [
        make_spec(part, method=method, recipe="digits", seed=seed)
        for part, method in parts
        for seed in range(seeds)
    ]
    # What is half done is finished by the same words; what is done, done again only by force.
    command = shlex.join(["longtail", "demo", "--seeds", str(seeds), "--out", str(out)])
    with one_thread(), _console.progress("training") as progress:
        trained = train_cohort(
            specs, data.train, root=root, command=command, force=force, progress=progress
        )
        compared = compare(evaluate(run, data.test) for run in trained)
    with _console.working("writing the page"):
        runs_page(compared, command=f"{command} --force").write(file)
    if json:
        _console.print_json({**compared.to_dict(), "page": file})
        return
    print_comparison(compared)
    _console.line("For more, with a slider for tau, open this page in a browser:")
    _console.line(f"  {file}")
    _console.line(f"The runs behind it are in {root}. Next, for predictions of your own:")
    _console.line("  longtail adjust predictions.npz --counts counts.txt")


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one core: faster for so small a network, and the same on every machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
