"""Run folders that a command names, each by itself or by a folder above them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from longtail.cli import _console

if TYPE_CHECKING:
    from longtail.runs import Run

_PLAIN = {"softmax", "label-smoothing"}  # methods that leave the classes' frequencies as they are


def open_runs(given: list[Path], *, split: str | None = None, anew: bool = False) -> list[Run]:
    """Every run that was named, itself or by a folder above it; each once, none edited.

    Args:
        given: run folders, and folders of runs.
        split: whose logits are wanted; an ensemble in a folder that can't give them is left out.
        anew: compute them, which no ensemble can, also where they are there.
    """

    def able(_: Path, runs: list[Run]) -> list[Run]:
        if split is None:
            return runs
        unable = {run.folder for run in runs if run.members and (anew or split not in run.splits)}
        if runs and len(unable) == len(runs) and not anew:
            runs[0].logits(split)  # says how to make them
        why = "a network" if anew else f"logits of the split {split!r}"
        for folder in sorted(unable):
            _console.warning_line(f"left out {folder}, an ensemble without {why}")
        return [run for run in runs if run.folder not in unable]

    return _opened(given, able)


def open_teachers(given: list[Path]) -> list[Run]:
    """The runs to learn from, each once.

    A folder may be where the students go, too: those of its runs that learnt from others in it are
    left out, so that the same command means the same teachers again. An ensemble among its own
    members adds nothing to them.

    Args:
        given: run folders, and folders of runs; none for no teachers.
    """
    found = _opened(given, _untaught) if given else []
    warn_of_frequencies(found)
    names = {run.name for run in found}
    return [run for run in found if not run.members or not set(run.members) <= names]


def warn_of_frequencies(runs: list[Run]) -> None:
    """Say that runs whose logits are to be averaged answer for different class frequencies."""
    alone = [run for run in runs if not run.members]  # an ensemble was told when it was made
    plain = [run for run in alone if set(run.spec.method.name.split("+")) <= _PLAIN]
    if 0 < len(plain) < len(alone):
        other = next(run for run in alone if run not in plain)
        _console.warning_line(
            f"{plain[0].name} and {other.name} answer for different class frequencies, plain "
            f"softmax for those of training and {other.spec.method.name} for corrected ones; the "
            f"mean of {len(plain)} and {len(alone) - len(plain)} such runs is in between"
        )


def _untaught(path: Path, runs: list[Run]) -> list[Run]:
    """The runs of a folder without those whose teachers are all there."""
    there = {run.name for run in runs}
    left = [run for run in runs if not run.teachers or set(run.teachers) - there]
    if len(left) < len(runs):
        _console.note(
            f"No teachers: {len(runs) - len(left)} of the runs in {path}, which learnt from "
            f"others there (name runs one by one to take any)."
        )
    return left


def _opened(given: list[Path], choose: Callable[[Path, list[Run]], list[Run]]) -> list[Run]:
    """Runs that were named, and those chosen of the finished ones in folders that were."""
    from longtail._checks import InputError
    from longtail.runs import Run, run_folders

    found: dict[Path, Run] = {}
    finished = 0
    for path in given:
        inside = [] if (path / "run.json").exists() or not path.is_dir() else run_folders(path)
        # Named itself, a half-written run is an error; in a folder it is left out.
        runs = [Run.open(folder, unfinished=bool(inside)) for folder in inside or [path]]
        for run in runs:
            if not run.finished:
                _console.warning_line(f"left out {run.folder}, which is half written")
        runs = [run for run in runs if run.finished]
        finished += len(runs)
        for run in choose(path, runs) if inside else runs:
            found.setdefault(run.folder.resolve(), run)
    if not found:
        what = "can be used here" if finished else "is finished"
        raise InputError(f"none of the runs there {what}.")
    return list(found.values())
