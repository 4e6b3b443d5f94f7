"""Run folders that a command names, each by itself or by a folder above them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longtail.cli import _console

if TYPE_CHECKING:
    from longtail.runs import Run

RunsArgument = Annotated[
    list[Path],
    typer.Argument(metavar="RUN", help="Run folders, or folders of runs to take all from."),
]
_PLAIN = {"softmax", "label-smoothing"}  # methods that leave the classes' frequencies as they are


def open_runs(given: list[Path], *, split: str | None = None, anew: bool = False) -> list[Run]:
    """Return the runs that are named, directly or by a folder above them, each once.

    Args:
        given: run folders, and folders of runs.
        split: of the logits that are needed. Of a folder, runs that can't have them are left out:
            ensembles, and for the held-out part runs without one.
        anew: compute them even where they are there.
    """

    def able(_: Path, runs: list[Run]) -> list[Run]:
        if split is None:
            return runs
        idle = [run for run in runs if run.members and (anew or split not in run.splits)]
        why = "no network" if anew else f"no logits of the split {split!r}"
        return _with_part(_without(runs, idle, why), split)

    return _opened(given, able, split=split)


def open_members(given: list[Path], *, split: str) -> list[Run]:
    """Return the runs whose logits on a split are to be averaged, each once.

    Ensembles are left out, and of a folder runs that learnt from others in it and, for the
    held-out part, runs without one.
    """
    from longtail.runs import DataSpec
    from longtail.runs.ensemble import ensemble_spec

    found = _opened(given, lambda path, runs: _with_part(_untaught(path, runs), split), split=split)
    together = [run for run in found if run.members]
    members = _without(found, together, "only trained runs are averaged")
    _warn_of_frequencies(members)
    ensemble_spec(DataSpec("any"), [run.name for run in members])  # a single run is refused here
    return members


def open_teachers(given: list[Path]) -> list[Run]:
    """Return the runs to learn from, each once; none if none are given.

    Students may go into the folder that their teachers are in: runs that learnt from others in it
    are left out, so that the same command means the same teachers again. So are ensembles whose
    members are all there.
    """
    found = _opened(given, _untaught) if given else []
    _warn_of_frequencies(found)
    names = {run.name for run in found}
    return [run for run in found if not run.members or not set(run.members) <= names]


def _warn_of_frequencies(runs: list[Run]) -> None:
    """Warn that runs whose logits are to be averaged assume different class frequencies."""
    alone = [run for run in runs if not run.members]
    plain = [run for run in alone if set(run.spec.method.name.split("+")) <= _PLAIN]
    other = [run for run in alone if run not in plain]
    if plain and other:
        _console.warning_line(
            f"{plain[0].name} and {other[0].name} answer for different class frequencies, plain "
            f"softmax for those of training and {other[0].spec.method.name} for corrected ones; "
            f"the mean of {len(plain)} and {len(other)} such runs is in between"
        )


def _untaught(path: Path, runs: list[Run]) -> list[Run]:
    there = {run.name for run in runs}
    taught = [run for run in runs if run.teachers and set(run.teachers) <= there]
    return _without(runs, taught, f"learnt from others in {path}; name runs one by one to take any")


def _with_part(runs: list[Run], split: str) -> list[Run]:
    # All other logits can be computed; these were written when training ended, or never.
    lacking = [run for run in runs if split == "held-out" and split not in run.splits]
    return _without(runs, lacking, "no held-out part")


def _without(runs: list[Run], left_out: list[Run], why: str) -> list[Run]:
    """Return the runs that are not left out, and print the names of the others."""
    from longtail._checks import listing

    if left_out:
        text = f"Left out: {listing(run.folder for run in left_out)} ({why})."
        _console.note(_console.wrapped(text))
    return [run for run in runs if run not in left_out]


def _opened(
    given: list[Path], choose: Callable[[Path, list[Run]], list[Run]], *, split: str | None = None
) -> list[Run]:
    """Return runs that are named, and those chosen of the finished ones in folders."""
    from longtail._checks import InputError
    from longtail.runs import Run, run_folders

    found: dict[Path, Run] = {}
    any_finished = False
    for path in given:
        inside = [] if (path / "run.json").exists() or not path.is_dir() else run_folders(path)
        # Named itself, a half-written run is an error; in a folder it is left out.
        runs = [Run.open(folder, unfinished=bool(inside)) for folder in inside or [path]]
        for run in runs:
            if not run.finished:
                _console.warning_line(f"left out {run.folder}, which is half written")
        runs = [run for run in runs if run.finished]
        any_finished = any_finished or bool(runs)
        for run in choose(path, runs) if inside else runs:
            found.setdefault(run.folder.resolve(), run)
    if not found:
        what = "can be used here" if any_finished else "is finished"
        if any_finished and split == "held-out":
            what = "has a held-out part; train with --held-out 0.2"
        raise InputError(f"none of the runs there {what}.")
    return list(found.values())
