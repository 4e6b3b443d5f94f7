"""`longtail reproduce`: the paper's tables and figures, each by its name."""

from __future__ import annotations

import importlib
import shlex
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli import _console, _experiments, _large, _training
from longtail.cli._console import ForceOption, JsonOption
from longtail.cli._data import DataDirOption
from longtail.cli._training import (
    CompileOption,
    DeviceOption,
    MicroBatchOption,
    RootOption,
    WorkersOption,
)

if TYPE_CHECKING:
    from longtail.experiments import strong, table_exp

app = typer.Typer(rich_markup_mode=None, add_completion=False)

# Name -> one line about it. Its module (`module_of`) in `longtail.experiments` computes it, and
# the one in `longtail.report` draws it; what they offer is in the former's __init__.
EXPERIMENTS = {
    "synthetic": "Every loss and post-hoc method on two Gaussians (figure 2).",
    "theory": "What is consistent and why not (table 1); links, Bayes risks.",
    "table-exp": "The CIFAR EXP table and figures, by training (a GPU, minutes).",
    "table-large": "ImageNet-LT and iNaturalist, by training (GPUs, days).",
    "strong": "How far the logit-adjusted loss goes (a GPU, an hour).",
    "strong-distilled": "Of strong the teachers, then their students (a GPU, an hour).",
    "large-simulation": "1,000 and 8,142 classes of real sizes against Bayes (an hour).",
}
# Those that train: they show what is there when time is up.
TRAINED = ("table-exp", "table-large", "strong", "strong-distilled")
# Parts of another experiment, whose records they share: its name, and their own stages.
PARTS = {"strong-distilled": ("strong", ("teachers", "students"))}
# The options of each, beside where to write.
_DRAWN = ("dataset", "data_dir", "seeds", "device")
_TRAINING = (*_DRAWN, "precision", "overrides", "runs", "records", "minutes", "train")
_OF_RESULTS = ("out", "runs", "records", "minutes", "train", "force")
_READING = ("workers", "micro_batch", "compiled")
TAKES = {
    "table-exp": (*_TRAINING, "recipe", "rows", "only"),
    "table-large": (*_TRAINING, "model", "epochs", "root", *_READING, "estimate"),
    "strong": (*_TRAINING, "stage", "rho"),
    "strong-distilled": (*_TRAINING, "stage", "rho"),
    "large-simulation": (*_DRAWN, "multiples"),
}


def whole_of(name: str) -> str:
    """The experiment that one is, or is a part of: ``strong`` for ``strong-distilled``."""
    return PARTS[name][0] if name in PARTS else name


def module_of(name: str) -> str:
    """An experiment's module: ``table-exp`` is in ``table_exp``."""
    return whole_of(name).replace("-", "_")


def _complete(incomplete: str) -> list[str]:
    return [name for name in EXPERIMENTS if name.startswith(incomplete)]


def _option(name: str, text: str, **more: Any) -> Any:
    """An option of the experiments that train; its default is in its help."""
    return typer.Option(name, help=text, show_default=False, **more)


@app.command()
def reproduce(
    context: typer.Context,
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
    recipe: Annotated[
        str | None, _option("--recipe", "How to train; tuned if absent.", metavar="NAME")
    ] = None,
    dataset: Annotated[
        list[str] | None,
        _option("--dataset", "Only this data set; may be repeated.", metavar="NAME"),
    ] = None,
    data_dir: DataDirOption = None,
    seeds: Annotated[
        int | None,
        _option("--seeds", "Of each run; 5 if absent, of some 3.", min=1, metavar="N"),
    ] = None,
    rows: Annotated[
        str | None,
        _option(
            "--rows",
            "Of table-exp: table, the table alone; figures, Adam's runs too; extra, further "
            "methods as well. figures if absent.",
            metavar="NAME",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        _option(
            "--only",
            "table-exp: train only these of the table's runs, such as softmax; may be repeated.",
            metavar="NAME",
        ),
    ] = None,
    stage: Annotated[
        list[str] | None,
        _option(
            "--stage",
            "strong: strong, teachers, selection (ways to train students, compared on the "
            "development set; ratio 100 only), students (with their teachers), earlier (strong "
            "and, at ratio 100, students as they were trained before), more-teachers (students "
            "of more networks, some wider), longer-teachers (students of teachers that train "
            "longer), longer-students (these for twice the epochs), second-generation (students "
            "of students, too), ablation (ingredients added and taken away, in a few epochs) or "
            "removal (strong in the first trial's epochs without each of its parts); may be "
            "repeated. strong and students if absent; of strong-distilled, teachers and students.",
            metavar="NAME",
        ),
    ] = None,
    rho: Annotated[
        list[float] | None,
        _option(
            "--rho",
            "strong: the imbalance ratio, 100, 50 or 10; may be repeated. 100 if absent.",
            metavar="X",
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        _option("--model", "table-large: resnet50 or resnet152 only.", metavar="NAME"),
    ] = None,
    epochs: Annotated[
        list[int] | None,
        _option("--epochs", "table-large: 90 or 200 epochs only.", metavar="N"),
    ] = None,
    root: RootOption = None,
    workers: WorkersOption = None,
    micro_batch: MicroBatchOption = None,
    compiled: CompileOption = None,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate", help="table-large: train for a minute, print hours for every cell."
        ),
    ] = False,
    multiples: Annotated[
        str | None,
        _option(
            "--multiples",
            "large-simulation: times the real number of examples, such as 1,10,100.",
            metavar="N,N",
        ),
    ] = None,
    device: DeviceOption = "auto",
    precision: Annotated[
        str | None,
        _option(
            "--precision", "float32 or bfloat16; the latter on a GPU if absent.", metavar="NAME"
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        _option("--set", "Change a value of the recipe.", metavar="NAME=VALUE"),
    ] = None,
    runs: Annotated[
        Path | None,
        _option("--runs", "Folder of run folders; runs if absent.", metavar="FOLDER"),
    ] = None,
    records: Annotated[
        Path | None,
        _option(
            "--records",
            "Folder of the runs' small records; results/NAME if absent, or results/strong "
            "for strong-distilled.",
            metavar="FOLDER",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        _option("--minutes", "Stop training after so long; the same command goes on.", metavar="N"),
    ] = None,
    train: Annotated[
        bool,
        typer.Option("--train/--no-train", help="Train what has no record yet, or nothing."),
    ] = True,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Compute a table or figure of the paper anew.

    The numbers are printed, and written beside the figures (SVG and PNG). An experiment that
    trains keeps a small record of each run and trains no run twice, but for teachers of `strong`
    whose weights are missing, and their records stay; it can be stopped and goes on.

    \b
    Examples:
      longtail reproduce                     which experiments there are
      longtail reproduce synthetic           print; write longtail-synthetic/
      longtail reproduce synthetic -o paper  write into paper/ instead
      longtail reproduce synthetic --json    numbers only, for a program
      longtail reproduce table-exp --recipe paper --minutes 9
      longtail reproduce table-exp --no-train    from the records alone
      longtail reproduce strong --stage strong --dataset cifar100-lt
      longtail reproduce strong-distilled    teachers, then their students
      longtail reproduce table-large --data-dir lists --root images --estimate
      torchrun --standalone --nproc-per-node 8 -m longtail reproduce table-large
    """
    if name is None:
        _list(json)
        return
    if name not in EXPERIMENTS:
        raise typer.BadParameter(
            f"there is no experiment {name!r}; the experiments are {', '.join(EXPERIMENTS)}"
        )
    _refuse_idle_options(context, name)
    if estimate:
        _refuse_beside_estimate(context)
    if minutes is not None and not minutes > 0:
        raise typer.BadParameter(f"--minutes must be above 0; got {minutes:g}")
    common: dict[str, Any] = {
        "datasets": dataset,
        "seeds": seeds,
        "overrides": overrides or [],
        "minutes": minutes,
        "runs": runs or Path("runs"),
        "folder": records or Path("results") / whole_of(name),
    }
    options: dict[str, Any] = {}
    if name == "table-exp":
        options = _experiments.of_runs(recipe=recipe, rows=rows, only=only, **common)
    elif whole_of(name) == "strong":
        own = PARTS[name][1] if name in PARTS else None
        options = _experiments.of_runs(stages=stage or own, ratios=rho, **common)
    elif name == "table-large":
        options = _large.options(models=model, epochs=epochs, **common)
        if train or estimate:
            _experiments.require_torch()
    if whole_of(name) in ("table-exp", "strong") and train:
        options |= _experiments.of_training(data_dir, device, precision)
        options["command"] = _command(context)
    elif name == "large-simulation":
        options = _experiments.of_simulation(dataset, data_dir, seeds, multiples, device)
    report = importlib.import_module(f"longtail.report.{module_of(name)}")
    # The same command goes on and replaces its own tables, which records can make again.
    force = force or name in TRAINED
    folder = out if out is not None or json else Path(f"longtail-{name}")
    if folder is not None and not estimate:
        _refuse_early(report, folder, force)
    experiment = importlib.import_module(f"longtail.experiments.{module_of(name)}")
    several = name == "table-large" and (train or estimate)
    there = _records_in(common["folder"])
    with _large.processes(device, wanted=several) as world:
        talks = world is None or world.first
        if world is not None:
            options |= _large.training(
                world,
                precision=_experiments.precision(precision, world.device.type),
                data_dir=data_dir,
                root=root,
                streaming=_training.streaming(workers, micro_batch, compiled),
                command=_command(context),
            )
        if estimate:
            hours = _large.estimated(options, talks=talks)
        else:
            with _console.progress(f"reproducing {name}") if talks else nullcontext() as progress:
                results = experiment.run(progress=progress, **options)
    if not talks:
        return
    if estimate:
        _console.print_json(hours.to_dict()) if json else _large.show_hours(hours)
        return
    if name in TRAINED and results.stopped:
        _say_stopped(results, options.get("command") or _command(context))
        if not results.parts:
            return
    elif name in TRAINED and train and there and _records_in(common["folder"]) == there:
        _console.note(
            f"Nothing was trained: all runs are on record in {common['folder']}. To train them "
            f"anew, name a new folder with --records."
        )
    _show(results, report, folder, json=json)


def _records_in(folder: Path) -> set[Path]:
    return set(folder.rglob("*.json"))


def _show(results: Any, report: ModuleType, folder: Path | None, *, json: bool) -> None:
    """Write what was found, where there is a folder, and print it."""
    written = report.write(results, folder) if folder is not None else []
    if json:
        _console.print_json(results.to_dict())
        return
    for table in report.tables(results):
        _console.show_table(table)
    _console.line(
        _console.wrapped(f"Written to {folder}: {', '.join(path.name for path in written)}")
    )


def _given(context: typer.Context) -> list[str]:
    found = []
    for option in context.params:
        source = context.get_parameter_source(option)
        if source is not None and source.name == "COMMANDLINE":
            found.append(option)
    return found


def _refuse_idle_options(context: typer.Context, name: str) -> None:
    """An option that would silently do nothing is refused."""
    known = {"name", "out", "force", "json", *TAKES.get(name, ())}
    for option in context.command.params:
        if option.name in _given(context) and option.name not in known:
            why = ", which trains nothing" if name not in TRAINED else ""
            owners = [other for other, taken in TAKES.items() if option.name in taken]
            raise typer.BadParameter(
                f"{_typed(context, option)} has no part in {name}{why}; it belongs to "
                f"{', '.join(owners)}"
            )


def _typed(context: typer.Context, option: Any) -> str:
    """An option's name as it was typed: ``--no-train`` where that is what it says."""
    off = context.params[option.name] is False and option.secondary_opts
    return str((option.secondary_opts if off else option.opts)[0])


def _refuse_beside_estimate(context: typer.Context) -> None:
    """A trial leaves nothing behind: what says where to, and for how long, would do nothing."""
    for option in context.command.params:
        if option.name in _given(context) and option.name in _OF_RESULTS:
            raise typer.BadParameter(
                f"{_typed(context, option)} can't stand beside --estimate, which trains for a "
                f"minute and writes nothing"
            )


def _command(context: typer.Context) -> str:
    """What to type to go on: what was typed, without what only concerns the output."""
    given, words = _given(context), ["longtail", "reproduce", str(context.params["name"])]
    for option in context.command.params:
        if option.name not in given or option.name in ("name", "force", "json", "out"):
            continue
        value = context.params[option.name]
        if isinstance(value, bool):
            words.append(option.opts[0] if value else option.secondary_opts[0])
            continue
        for one in value if isinstance(value, list | tuple) else [value]:
            words += [option.opts[0], str(one)]
    return shlex.join(words)


def _say_stopped(study: table_exp.Study | strong.Study, command: str) -> None:
    """What is there when time is up, and how to go on."""
    done = sum(len(part.records) for part in study.parts)
    left = sum(len(part.missing()) for part in study.parts)
    text = f"Time is up: {done} run{'' if done == 1 else 's'} finished"
    text += f", {left} of the table's still missing" if left else ""
    _console.note(f"{text}. Nothing is lost; to go on:\n  {command}")


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
