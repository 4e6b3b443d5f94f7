"""`longtail runs`: what was trained here, one run in full, and archives of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli import _console, _runs
from longtail.cli._console import Failure, option, printable

if TYPE_CHECKING:
    from longtail.runs import Run

app = typer.Typer(
    help="List, show and pack run folders.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
)

RootOption = Annotated[Path, option("FOLDER", "The folder of runs.", "--root")]
RootArgument = Annotated[Path, typer.Argument(metavar="ROOT", help="The folder of runs.")]


@app.command("list")
def list_runs(root: RootArgument = Path("runs"), json: _console.Json = False) -> None:
    """List the runs in a folder, finished or not.

    A folder of runs holds one folder for each data set, and these hold the runs. A folder that has
    one by the name of `runs` stands for it, in every command that takes folders of runs.

    \b
    Examples:
      longtail runs list
      longtail runs list longtail-demo
      longtail runs list results/runs --json
    """
    from rich.table import Table
    from rich.text import Text

    from longtail.runs import Run, RunError, run_folders

    rows = []
    for folder in run_folders(root):
        try:
            rows.append(_summary(Run.open(folder, verify=False, unfinished=True)))
        except RunError as error:
            rows.append({"folder": folder, "status": "unreadable", "problem": str(error)})
    if json:
        _console.print_json(rows)
        return
    if not rows:
        _console.line(f"no runs in {root}")
        return
    table = Table("run", "recipe", "splits", box=None, pad_edge=False, header_style="bold")
    table.columns[0].overflow = "fold"
    table.add_column("time", justify="right")
    states = {
        "unreadable": Text("unreadable", style="red"),
        "running": Text("half written", style="yellow"),
    }
    group = None
    for row in rows:
        # The data set once, above its runs: their names alone fit a terminal.
        if row["folder"].parent != group:
            group = row["folder"].parent
            table.add_row(Text(printable(group.as_posix()), style="bold"))
        recipe = row.get("recipe", "") + ("*" if row.get("overrides") else "")
        time = states.get(row["status"]) or Text(_console.duration(row["seconds"]))
        cells = (f"  {row['folder'].name}", recipe, ", ".join(row.get("splits", ())))
        table.add_row(*(Text(printable(cell)) for cell in cells), time)
    _console.console().print(table)
    finished = sum(row["status"] == "finished" for row in rows)
    _console.line(f"\n{finished} of {len(rows)} runs finished")
    if any(row.get("overrides") for row in rows):
        _console.line("* a recipe with changed values; see: longtail runs show RUN")
    for row in rows:
        if "problem" in row:
            _console.line(row["problem"], kind="warning")


def _summary(run: Run) -> dict[str, Any]:
    spec = run.spec
    return {
        "folder": run.folder,
        "status": run.record["status"],
        "dataset": spec.dataset.name,
        "method": spec.method.name,
        "recipe": spec.recipe.name,
        "overrides": dict(spec.recipe.overrides),
        "seed": spec.seed,
        "splits": list(run.splits),
        "seconds": run.record["seconds"],
    }


@app.command()
def show(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run folder, or a part of its name, as its hash.")
    ],
    root: RootOption = Path("runs"),
    json: _console.Json = False,
) -> None:
    """Show one run in full, and whether a file of it was edited.

    \b
    Examples:
      longtail runs show runs/digits-lt/softmax-s0-10db5896
      longtail runs show 10db5896
    """
    from rich.table import Table
    from rich.text import Text

    from longtail._checks import listing
    from longtail.runs import Run, run_folders

    if not Path(run).exists() and root.is_dir():
        found = [folder for folder in run_folders(root) if run in str(folder.relative_to(root))]
        if len(found) > 1:
            words = listing((path.relative_to(root).as_posix() for path in found), most=4)
            raise Failure(f"{run!r} fits {len(found)} runs in {root}: {words}; give more of it.")
        run = str(found[0]) if found else run
    opened = Run.open(run, unfinished=True)
    errors = {split: _runs.errors_on(opened, split).balanced_error for split in opened.splits}
    spec, record, prior = opened.spec, opened.record, opened.prior
    if json:
        _console.print_json({**record, "folder": opened.folder, "balanced_error": errors})
        return

    def named(name: str, settings: Any) -> str:
        pairs = ", ".join(f"{key}={value(item)}" for key, item in settings.items())
        return f"{name} ({pairs})" if name and pairs else name or pairs

    def value(item: Any) -> str:
        return f"[{', '.join(map(value, item))}]" if isinstance(item, tuple) else str(item)

    examples = sum(record["prior"]["counts"])
    data = {k: v for k, v in spec.dataset.to_json().items() if k != "name" and v not in (None, {})}
    threads = f", {record['threads']} thread(s)" if record.get("threads") else ""
    versions = dict(record["versions"])
    platform = versions.pop("platform", "-")
    state = "finished" if opened.finished else "half written"
    rows = {
        "status": f"{state}; {len(record['files'])} files verified",
        "resume with": "" if opened.finished else record.get("command"),
        "data set": named(spec.dataset.name, data),
        "trained on": f"{examples} examples of {prior.num_classes} classes, imbalance ratio "
        f"{prior.imbalance_ratio:.4g}",
        "method": named(spec.method.name, spec.method.settings),
        "model": named(spec.model.name, spec.model.settings),
        "recipe": named(spec.recipe.name, spec.recipe.values),
        "overrides": named("", spec.recipe.overrides) or "none",
        "seed": str(spec.seed),
        "teachers": "\n".join(opened.teachers),
        "mean of": "\n".join(opened.members),
    }
    for split, entry in record["splits"].items():
        error = f"balanced error {100 * errors[split]:.2f}%"
        rows[f"split {split}"] = f"{entry['examples']} examples, {entry['dtype']}, {error}"
    rows |= {
        "trained in": f"{_console.duration(record['seconds'])} on {record['device']}{threads}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "platform": platform,
        "fingerprint": f"{opened.data[:16]} (training data)",
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in rows.items():
        if text:
            table.add_row(label, Text(printable(text)))
    _console.line(opened.folder.as_posix())
    _console.console().print(table)


@app.command()
def pack(
    runs: _runs.Runs,
    out: Annotated[Path, option("FILE", "The archive, NAME.tar.gz.", "--out", "-o")],
    weights: Annotated[bool, option(None, "Also the models' weights.", "--weights")] = False,
    logits: Annotated[
        bool, option(None, "Leave logits out: weights can teach.", "--logits/--no-logits")
    ] = True,
    full_precision: Annotated[
        bool, option(None, "Keep logits as they are: twice the size.", "--full-precision")
    ] = False,
    force: _console.Force = False,
    json: _console.Json = False,
) -> None:
    """Put finished runs into one archive, with logits in half precision.

    Half precision keeps every prediction; at most 1/2048 of a logit's distance from the
    largest one is lost. The same runs give the same archive, byte for byte.

    \b
    Examples:
      longtail runs pack runs --out runs.tar.gz
      longtail runs pack runs/digits-lt/softmax-s0-10db5896 --weights -o a.tgz
      longtail runs pack runs --weights --no-logits -o teachers.tar.gz
    """
    from rich import filesize

    from longtail.runs import pack as pack_runs
    from longtail.runs import run_folders

    folders = [run.folder for run in _runs.open_runs(runs)]
    options = {"weights": weights, "logits": logits, "half": not full_precision, "force": force}
    with _console.progress("packing") as progress:
        path = pack_runs(folders, out, **options, progress=progress)
    size = path.stat().st_size
    if json:
        packed = {folder.resolve() for folder in folders}
        there = [folder for given in runs for folder in run_folders(given)]
        left_out = [folder for folder in there if folder.resolve() not in packed]
        _console.print_json({"archive": path, "bytes": size, "runs": folders, "left_out": left_out})
    else:
        _console.line(f"{path}: {len(folders)} runs, {filesize.decimal(size)}")


@app.command()
def unpack(
    archive: Annotated[
        Path, typer.Argument(metavar="ARCHIVE", help="An archive made by `longtail runs pack`.")
    ],
    root: RootOption = Path("runs"),
    force: _console.Force = False,
    json: _console.Json = False,
) -> None:
    """Take the runs out of an archive and put them among the others.

    \b
    Examples:
      longtail runs unpack runs.tar.gz --root runs
    """
    from longtail.runs import unpack as unpack_runs

    with _console.progress("unpacking") as progress:
        found = unpack_runs(archive, root, force=force, progress=progress)
    if json:
        _console.print_json([_summary(run) for run in found])
        return
    for run in found:
        _console.line(run.folder.as_posix())
