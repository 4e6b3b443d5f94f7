"""What `longtail train` says: before it begins, when it is stopped, and of the finished runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longtail.cli import _cohort, _console, _data, _training

if TYPE_CHECKING:
    from longtail.cli._training import AnyData
    from longtail.runs import Run
    from longtail.runs.spec import Part
    from longtail.train.distributed import World

SPLITS = {"test": "test set", "held-out": "held-out part"}


def say_what(job: _cohort.Job, states: list[str], world: World) -> None:
    """One line before work begins: what will be done, and what is there already."""
    from longtail.report.tables import plural
    from longtail.train.engine import device_words, precision_of

    finished, begun = states.count("finished"), states.count("begun")
    if finished == len(states):
        there = plural(finished, "run", "runs")
        _console.note(f"Nothing to train: {there} finished already (--force: again).")
        return
    spec = job.specs[0]
    text = (
        f"Training {plural(len(states) - finished, 'run', 'runs')} on "
        f"{device_words(world.device, world.count)} in "
        f"{precision_of(spec)}: {spec.dataset.name} ({_data.subset_words(spec.dataset)}), "
        f"recipe {spec.recipe.name}, {plural(spec.recipe.values['epochs'], 'epoch', 'epochs')}."
    )
    if finished:
        text += f" Finished already: {finished} of {len(states)}."
    if begun:
        text += f" Interrupted before, now continued: {begun}."
    _console.note(_console.wrapped(text))
    left = [spec for spec, state in zip(job.specs, states, strict=True) if state != "finished"]
    _warn_of_twice([spec.method for spec in left], job.data)


def _warn_of_twice(methods: list[Part], data: AnyData) -> None:
    """Say so of deferred weights on top of a loss that aims at the balanced error by itself.

    Not an error: the literature has such rows.
    """
    from longtail.posthoc import leaves_little
    from longtail.train.methods import Method

    prior = data.train.prior
    for method in dict.fromkeys(methods):
        trained = Method.of(method)
        if trained.drw and leaves_little(trained.without_drw.residual_adjustment(prior), prior):
            _console.warning_line(
                f"{method.name} corrects for class frequencies twice: {trained.loss} aims at the "
                f"balanced error by itself, and drw weighs rare classes more on top of it; "
                f"{trained.loss} alone, or softmax+drw, does it once."
            )


@contextmanager
def saying_what_is_saved(job: _cohort.Job, command: str, *, force: bool) -> Iterator[None]:
    """On Ctrl-C, a full disk and the like, say what is kept and how to go on."""
    from longtail.report.tables import plural
    from longtail.train import checkpoint

    before = _written(job.folders) if force else {}
    try:
        yield
    except (KeyboardInterrupt, OSError):
        # What --force has not come to is of before, perhaps of other data: it is not looked into.
        old = dict(before.items() & _written(job.folders).items())
        folders = [folder for folder in job.folders if folder not in old]
        states = job.states(folders)
        saved = [
            found.epochs
            for folder, state in zip(folders, states, strict=True)
            if state == "begun" and (found := checkpoint.latest(folder)) is not None
        ]
        runs = plural(len(job.folders), "run", "runs")
        text = f"{states.count('finished')} of {runs} finished"
        if saved:
            epochs = f"{min(saved)}" if len(set(saved)) == 1 else f"{min(saved)} to {max(saved)}"
            text += f", {len(saved)} saved after epoch {epochs}"
        if unsaved := states.count("begun") - len(saved):
            text += f", {unsaved} begun but not saved yet"
        also = ""
        if old:
            text += f", {len(old)} not begun again, and so as before"
            also = f" ({len(old)} will stay as before; with --force all begin again)"
        if old and not folders:
            command, also = f"{command} --force", ""
        _console.note(f"Stopped: {text}. To go on{also}:\n  {command}")
        raise


def _written(folders: Iterable[Path]) -> dict[Path, int]:
    """When the record of each run that there is was written last."""
    records = {folder: folder / "run.json" for folder in folders}
    return {folder: path.stat().st_mtime_ns for folder, path in records.items() if path.exists()}


def _errors(runs: list[Run]) -> dict[str, dict[Path, float]]:
    """The balanced error of each run, by split and folder, for splits that every run has."""
    return {
        split: {run.folder: _training.Judged.on(run, split).error.balanced_error for run in runs}
        for split in SPLITS
        if all(split in run.splits for run in runs)
    }


def document(runs: list[Run]) -> dict[str, Any]:
    """The errors of the finished runs, and of each method's, for a program."""
    from longtail.runs.naming import by_method

    errors = _errors(runs)
    methods = []
    for name, group in by_method(runs).items():
        entry: dict[str, Any] = {"method": name, "seeds": [run.spec.seed for run in group]}
        for split, values in errors.items():
            of_group = [values[run.folder] for run in group]
            entry[split] = {
                "balanced_error": sum(of_group) / len(of_group),
                "deviation": _training.deviation(of_group),
            }
        entry["seconds"] = sum(run.record["seconds"] for run in group) / len(group)
        methods.append(entry)
    listed = [
        {
            "folder": run.folder,
            "spec": run.spec.to_json(),
            "device": run.record["device"],
            "seconds": run.record["seconds"],
            "balanced_error": {split: values[run.folder] for split, values in errors.items()},
        }
        for run in runs
    ]
    return {"methods": methods, "runs": listed}


def show(runs: list[Run], job: _cohort.Job, *, where: list[str]) -> None:
    """The table of the finished runs, and what to do next.

    Args:
        runs: finished.
        job: theirs.
        where: options that say where the data are, for a command that reads them again.
    """
    from longtail.report import tables
    from longtail.runs.naming import by_method

    errors, methods = _errors(runs), by_method(runs)
    rows = []
    for name, group in methods.items():
        cells = [tables.spread([values[run.folder] for run in group]) for values in errors.values()]
        seconds = sum(run.record["seconds"] for run in group) / len(group)
        rows.append((name, str(len(group)), *cells, _console.duration(seconds)))
    spec, several = job.specs[0], any(len(group) > 1 for group in methods.values())
    title = f"{spec.dataset.name} ({_data.subset_words(spec.dataset)}), recipe {spec.recipe.name}"
    header = ("method", "seeds", *(SPLITS[split] for split in errors), "time a run")
    spread = ", mean over the seeds ± standard deviation" if several else ""
    note = f"Balanced error in percent{spread}." if errors else ""
    absent = _training.Judged.on(runs[0], "test").absent if "test" in errors else ""
    if absent:
        note += f" Without examples in the test set: {absent}, left out of the means."
    _console.show_table(tables.Table(title, header, rows, note=note))
    folder = job.root / spec.dataset.name
    if "test" not in errors:
        _say_next("Not judged on the test set yet", "evaluate", folder, *where)
    elif spec.dataset.held_out:
        # Only plain runs: the other losses have their adjustment in them already.
        for run in [run for run in runs if run.spec.method.name == "softmax"][:1]:
            _say_next("To choose tau on the held-out part", "tune", run.folder)
    elif absent:
        _say_next("For classes with many, medium and few examples", "evaluate", folder)
    else:
        _say_next("For intervals, post-hoc methods and a page", "report", folder)


def _say_next(why: str, *command: str | Path) -> None:
    """A line with a command to type next."""
    _console.line(f"{why}: {shlex.join(['longtail', *map(str, command)])}")
