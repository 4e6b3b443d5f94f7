"""`longtail runs`: what was trained here, one run in full, and archives of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli import _console
from longtail.cli._console import ForceOption, JsonOption
from longtail.cli._groups import CommandGroup

if TYPE_CHECKING:
    from longtail.runs import Run

app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, show and pack run folders.",
)

RootOption = Annotated[Path, typer.Option("--root", metavar="FOLDER", help="The folder of runs.")]


@app.command("list")
def list_runs(
    root: Annotated[Path, typer.Argument(metavar="ROOT", help="The folder of runs.")] = Path(
        "runs"
    ),
    json: JsonOption = False,
) -> None:
    """List the runs in a folder, finished or not.

    A folder of runs holds one folder for each data set, and these hold the runs. A folder that has
    one by the name of `runs` stands for it, in every command that takes folders of runs.

    \b
    Examples:
      longtail runs list
      longtail runs list longtail-demo
      longtail runs list results/runs --json
    """
    from longtail.runs import Run, RunError, run_folders

    rows = []
    for folder in run_folders(root):
        try:
            rows.append(_summary(Run.open(folder, verify=False, unfinished=True)))
        except RunError as error:
            rows.append({"folder": folder, "status": "unreadable", "problem": str(error)})
    if json:
        _console.print_json(rows)
    elif not rows:
        _console.line(f"no runs in {root}")
    else:
        _show_list(rows)


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


def _show_list(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run", overflow="fold")
    table.add_column("recipe")
    table.add_column("splits")
    table.add_column("time", justify="right")
    group = None
    for row in rows:
        # The data set once, above its runs: their names alone fit a terminal.
        if row["folder"].parent != group:
            group = row["folder"].parent
            table.add_row(Text(group.as_posix(), style="bold"))
        name = Text(f"  {row['folder'].name}")
        if row["status"] == "unreadable":
            table.add_row(name, "", "", Text("unreadable", style="red"))
            continue
        recipe = row["recipe"] + ("*" if row["overrides"] else "")
        time = Text(_console.duration(row["seconds"]))
        if row["status"] != "finished":
            time = Text("half written", style="yellow")
        table.add_row(name, Text(recipe), Text(", ".join(row["splits"])), time)
    _console.show(table)
    finished = sum(row["status"] == "finished" for row in rows)
    _console.line(f"\n{finished} of {len(rows)} runs finished")
    if any(row.get("overrides") for row in rows):
        _console.line("* a recipe with changed values; see: longtail runs show RUN")
    for row in rows:
        if "problem" in row:
            _console.warning_line(row["problem"])


@app.command()
def show(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run folder, or a part of its name, such as its hash."
        ),
    ],
    root: RootOption = Path("runs"),
    json: JsonOption = False,
) -> None:
    """Show one run in full, and whether a file of it was edited.

    \b
    Examples:
      longtail runs show runs/digits-lt/softmax-s0-10db5896
      longtail runs show 10db5896
    """
    from longtail.runs import Run

    opened = Run.open(find(run, root), unfinished=True)
    errors = {split: _balanced_error(opened, split) for split in opened.splits}
    if json:
        document = {**opened.record, "folder": opened.folder, "balanced_error": errors}
        _console.print_json(document)
    else:
        _show_run(opened, errors)


def find(name: str, root: Path) -> Path:
    """The run folder that a path, or a part of a run's name, means."""
    from longtail._checks import InputError, listing
    from longtail.runs import run_folders

    if Path(name).exists() or not root.is_dir():
        return Path(name)
    folders = run_folders(root)
    matches = [folder for folder in folders if name in folder.relative_to(root).as_posix()]
    if len(matches) > 1:
        found = listing((path.relative_to(root).as_posix() for path in matches), most=4)
        raise InputError(f"{name!r} fits {len(matches)} runs in {root}: {found}; give more of it.")
    return matches[0] if matches else Path(name)


def _balanced_error(run: Run, split: str) -> float:
    from longtail.metrics import balanced_error

    logits, target, _ = run.logits(split)
    return float(balanced_error(target, logits, num_classes=run.prior.num_classes, missing="skip"))


def _show_run(run: Run, errors: dict[str, float]) -> None:
    from rich.table import Table
    from rich.text import Text

    spec, record, prior = run.spec, run.record, run.prior
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")

    def add(label: str, text: str) -> None:
        table.add_row(label, Text(text))

    state = "finished" if run.finished else "half written"
    add("status", f"{state}; {len(record['files'])} files verified")
    if not run.finished and record.get("command"):
        add("resume with", record["command"])
    data = {k: v for k, v in spec.dataset.to_json().items() if k != "name" and v not in (None, {})}
    add("data set", f"{spec.dataset.name} ({_pairs(data)})")
    examples = int(prior.counts.sum()) if prior.counts is not None else 0
    add(
        "trained on",
        f"{examples} examples of {prior.num_classes} classes, imbalance ratio "
        f"{prior.imbalance_ratio:.4g}",
    )
    add("method", _named(spec.method.name, spec.method.settings))
    add("model", _named(spec.model.name, spec.model.settings))
    add("recipe", _named(spec.recipe.name, spec.recipe.values))
    add("overrides", _pairs(spec.recipe.overrides) or "none")
    add("seed", str(spec.seed))
    for label, names in (("teachers", run.teachers), ("mean of", run.members)):
        if names:
            add(label, "\n".join(names))
    for split, entry in record["splits"].items():
        add(
            f"split {split}",
            f"{entry['examples']} examples, {entry['dtype']}, "
            f"balanced error {100 * errors[split]:.2f}%",
        )
    add("trained in", f"{_console.duration(record['seconds'])} on {record['device']}")
    versions = record["versions"]
    add("versions", ", ".join(f"{k} {v}" for k, v in versions.items() if k != "platform"))
    add("platform", versions.get("platform", "-"))
    add("fingerprint", f"{run.data[:16]} (training data)")
    _console.line(run.folder.as_posix())
    _console.show(table)


def _named(name: str, settings: Any) -> str:
    return f"{name} ({_pairs(settings)})" if settings else name


def _pairs(settings: Any) -> str:
    def text(value: Any) -> str:
        return "[" + ", ".join(map(text, value)) + "]" if isinstance(value, tuple) else str(value)

    return ", ".join(f"{key}={text(value)}" for key, value in settings.items())


@app.command()
def pack(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders, or folders of runs to take all from."),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The archive, NAME.tar.gz.")
    ],
    weights: Annotated[bool, typer.Option("--weights", help="Also the models' weights.")] = False,
    logits: Annotated[
        bool, typer.Option("--logits/--no-logits", help="Leave logits out: weights can teach.")
    ] = True,
    full_precision: Annotated[
        bool, typer.Option("--full-precision", help="Keep logits as they are: twice the size.")
    ] = False,
    force: ForceOption = False,
    json: JsonOption = False,
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
    from longtail.runs import pack as pack_runs

    folders, left_out = _to_pack(runs)
    with _console.progress("packing") as progress:
        path = pack_runs(
            folders,
            out,
            weights=weights,
            logits=logits,
            half=not full_precision,
            force=force,
            progress=progress,
        )
    size = path.stat().st_size
    if json:
        document = {"archive": path, "bytes": size, "runs": folders, "left_out": left_out}
        _console.print_json(document)
        return
    _console.line(f"{path}: {len(folders)} runs, {_console.size(size)}")
    for folder in left_out:
        _console.warning_line(f"left out {folder}, which is half written")


def _to_pack(given: list[Path]) -> tuple[list[Path], list[Path]]:
    """The run folders to pack, and the unfinished ones among those that were not named."""
    from longtail._checks import InputError
    from longtail.runs import Run, run_folders

    folders: list[Path] = []
    left_out: list[Path] = []
    for path in given:
        inside = [] if (path / "run.json").exists() else run_folders(path)
        if not inside:
            folders.append(path)  # named itself, so pack says what is wrong with it
        for folder in inside:
            finished = Run.open(folder, verify=False, unfinished=True).finished
            (folders if finished else left_out).append(folder)
    if not folders:
        raise InputError(f"none of the {len(left_out)} runs there is finished.")
    return folders, left_out


@app.command()
def unpack(
    archive: Annotated[
        Path, typer.Argument(metavar="ARCHIVE", help="An archive made by `longtail runs pack`.")
    ],
    root: RootOption = Path("runs"),
    force: ForceOption = False,
    json: JsonOption = False,
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
