"""`longtail evaluate`: finished runs' logits on a split, and the errors they make."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli import _console, _data, _training
from longtail.cli._console import ForceOption, JsonOption
from longtail.cli._training import Judged

if TYPE_CHECKING:
    from longtail.runs import Run
    from longtail.train.distributed import World

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class Split(StrEnum):
    """What a run can be judged on."""

    test = "test"
    dev = "dev"
    val = "val"
    held_out = "held-out"
    train = "train"


@app.command()
def evaluate(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders, or folders of runs to take all from."),
    ],
    split: Annotated[Split, typer.Option("--split", help="What to judge them on.")] = Split.test,
    ensemble: Annotated[
        bool,
        typer.Option("--ensemble", help="Also average their logits, into a run folder of its own."),
    ] = False,
    errors_only: Annotated[
        bool,
        typer.Option(
            "--errors-only",
            help="Predict anew and keep no logits: for label spaces too large for them.",
        ),
    ] = False,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            metavar="NAME",
            help="The data's frozen file or folder, if the runs don't say.",
            show_default=False,
        ),
    ] = None,
    data_dir: _data.DataDirOption = None,
    root: _training.RootOption = None,
    workers: _training.WorkersOption = None,
    device: _training.DeviceOption = "auto",
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Judge finished runs on the test set, alone or together.

    The network's logits on the split are computed where they are missing and kept in the run's
    folder: everything after that, such as `longtail report`, reads them and needs neither the
    network nor the data. Logits on the held-out part were written when training ended; runs of a
    folder that have no such part are left out. The development set (dev) is made of images that
    the training set leaves out: choose on it, and open the test set once; the validation set (val)
    is what ImageNet-LT and Places-LT have for that. Logits on the training set (train) are for
    students to learn from, not to judge by.

    With --ensemble the mean logits of all of them become one more run, without weights, which
    every command reads. Ensembles are left out of it and, of a folder, runs that learnt from
    others in it: name those to take them. With --errors-only nothing is kept, and the logits of a
    classifier that is cut over the processes (classifier=sharded) are never put together. Started
    by torchrun, the processes share the images of runs that were trained from disk.

    \b
    Examples:
      longtail evaluate runs/cifar100-lt
      longtail evaluate runs/digits-lt/softmax-s0-* --json
      longtail evaluate runs/digits-lt --split held-out
      longtail evaluate runs/flowers --dataset flowers.parquet
      longtail evaluate runs/cifar100-lt --split dev --ensemble
      longtail evaluate runs/imagenet-lt --split val --root images
    """
    from longtail.cli._opening import open_members, open_runs

    if errors_only and (ensemble or force or split == Split.held_out):
        other = "--ensemble" if ensemble else "--force" if force else "--split held-out"
        raise typer.BadParameter(f"--errors-only writes nothing; it can't stand beside {other}")
    anew = force or errors_only
    if ensemble:
        opened = open_members(runs, split=split.value)
    else:
        opened = open_runs(runs, split=split.value, anew=anew)
    data = _training.RunData(dataset, data_dir, root)
    judged: dict[Path, Judged] = {}
    with _training.joined(device) if _needed(opened, split, anew) else nullcontext() as world:
        numbers = [n for n, run in enumerate(opened) if anew or split not in run.splits]
        if world is not None:
            numbers = world.tell(numbers)  # another process may have written some by now
        missing = [opened[number] for number in numbers]
        _refuse(missing, split, force=force)
        if not anew and split != Split.held_out and (dataset or data_dir or root):
            _compare([run for run in opened if run not in missing], split, data, bool(missing))
        if missing and world is not None:
            from longtail.train import evaluation

            parts = _parts(missing, split, data, workers)
            how: dict[str, Any] = {"device": world.device, "world": world}
            how["streaming"] = _training.streaming(workers, None, None)
            written: dict[Path, Run] = {}
            for run, part in _shown(parts, world):
                if not errors_only:
                    again = evaluation.evaluate(run, part, split=split.value, replace=force, **how)
                    written[run.folder] = again
                elif (predicted := evaluation.predict(run, part, **how)) is not None:
                    judged[run.folder] = Judged.by(run, part.labels, predicted)
            opened = [written.get(run.folder, run) for run in opened]
    if world is not None and not world.first:
        return
    together = None
    if ensemble:
        from longtail import runs as library

        root_of = opened[0].folder.parent.parent
        together = library.ensemble(opened, root=root_of, split=split.value, replace=force)
    shown = [*opened, *([together] if together is not None else [])]
    if not judged:
        _refuse_mixed(shown, split, data.typed)
        judged = {run.folder: Judged.on(run, split) for run in shown}
    if json:
        found = _document(judged, split)
        _console.print_json(found | ({"ensemble": together.folder} if together else {}))
        return
    _show(judged, split)
    if missing and not errors_only:
        _console.note(
            f"Logits of {len(missing)} run(s) on the {split} set are in their folders now."
        )
    if together is not None:
        _console.note(f"The mean logits of {len(opened)} runs are in {together.folder}")


def _compare(judged: list[Run], split: Split, data: _training.RunData, others: bool) -> None:
    """Refuse logits that are of other images than the data that the command names.

    Of runs of several data sets it names one, or the place of one; that it names that of none is
    refused, too, unless there are `others`, which are not judged yet.
    """
    from longtail._checks import InputError
    from longtail.runs.folder import same_images

    now: list[tuple[Run, str]] = []
    refused = None
    for run in judged:
        try:
            now.append((run, _part(data.of(run), run, split).fingerprint))
        except InputError as error:
            refused = refused or error
    same_images(now, split.value)
    if refused is not None and not (now or others):
        raise refused


def _refuse_mixed(runs: list[Run], split: Split, typed: list[str]) -> None:
    """Refuse a mean over runs that were judged on different images of a split.

    What is held out of the training set differs from seed to seed, and so may what a training
    loop of one's own wrote, which tells no fingerprint.
    """
    from longtail.runs.folder import judged_apart

    if split == Split.held_out:
        return
    for together in _by_data(runs).values():
        images = [(run.record["splits"][split.value]["data"], run) for run in together]
        differing = list({data: run for data, run in images if data is not None}.values())
        if len(differing) > 1:
            one, other = differing[:2]
            raise judged_apart(one, other, split.value)


def _needed(opened: list[Run], split: Split, force: bool) -> bool:
    """Whether there may be something to compute, or several processes of which one shall talk."""
    from longtail import _checks

    launched = "WORLD_SIZE" in os.environ
    absent = any(force or split not in run.splits for run in opened) and split != Split.held_out
    if absent:
        _checks.require("torch", extra="train")
    return absent or launched


def _refuse(missing: list[Run], split: Split, *, force: bool) -> None:
    """What would fail after work on other runs is refused before it."""
    from longtail._checks import InputError

    for run in missing:
        if split == Split.held_out:
            raise InputError(
                f"{run.folder} has no held-out part; train with --held-out 0.2."
                if not run.spec.dataset.held_out
                else "--force has no use with --split held-out: training writes those logits."
            )
        if run.members:
            again = " --force" if force else ""
            raise InputError(
                f"{run.folder} is an ensemble and has no network to compute logits with; its "
                f"members have: {run.evaluation(split.value)}{again}"
            )
        run.model()  # says why there are no weights


def _parts(
    missing: list[Run], split: Split, data: _training.RunData, workers: int | None
) -> list[tuple[Run, Any]]:
    """Each run with its images of a split; all of them are found before any work."""
    from longtail._checks import InputError
    from longtail.data.lists import ListedImages

    parts = [(run, _part(data.of(run), run, split)) for run in missing]
    if workers is not None and not any(isinstance(part, ListedImages) for _, part in parts):
        raise InputError("--workers is for images on disk; those of these runs are in memory.")
    return parts


def _shown(parts: list[tuple[Run, Any]], world: World) -> Iterator[tuple[Run, Any]]:
    """Runs and images one after another, while the first process shows how far it is."""
    with _console.progress("evaluating") if world.first else nullcontext() as progress:
        for done, (run, part) in enumerate(parts):
            if progress is not None:
                progress(done, len(parts), run.folder.name)
            yield run, part


def _part(data: Any, run: Run, split: Split) -> Any:
    """The images of a split, if the run's data set has it."""
    from longtail._checks import InputError

    if split == Split.dev:
        if not hasattr(data, "development"):
            raise InputError(
                f"{run.spec.dataset.name} has no development set; --split val is what it has for "
                f"choosing."
            )
        return data.development(run)
    images = getattr(data, split.value, None)
    if images is None:
        raise InputError(
            f"{run.spec.dataset.name} has no validation set, so {run.folder} can't be judged on "
            f"one; --held-out in training makes a part to choose tau on."
        )
    return images


def _document(errors_of: dict[Path, Judged], split: Split) -> dict[str, Any]:
    from longtail.runs.naming import by_method

    judged = {folder: one.values() for folder, one in errors_of.items()}
    runs, methods = [one.run for one in errors_of.values()], []
    for together in _by_data(runs).values():
        for name, group in by_method(together).items():
            errors = [judged[run.folder] for run in group]
            balanced = [values["balanced_error"] for values in errors]
            methods.append(
                {
                    "dataset": group[0].spec.dataset.to_json(),
                    "method": name,
                    "seeds": [run.spec.seed for run in group],
                    **{key: _mean([v[key] for v in errors]) for key in errors[0]},
                    "deviation": _training.deviation(balanced),
                }
            )
    listed = [
        {
            "folder": run.folder,
            "method": run.spec.method.to_json(),
            "seed": run.spec.seed,
            "examples": int(errors_of[run.folder].error.counts.sum()),
            **judged[run.folder],
            "missing_classes": errors_of[run.folder].error.missing_classes.tolist(),
        }
        for run in runs
    ]
    return {"split": str(split), "runs": listed, "methods": methods}


def _by_data(runs: list[Run]) -> dict[Any, list[Run]]:
    """Runs of one training set, whatever was held out of it."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault((run.data, replace(run.spec.dataset, held_out=0.0)), []).append(run)
    return groups


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _show(errors_of: dict[Path, Judged], split: Split) -> None:
    from longtail import _checks
    from longtail.report.tables import GROUP_BOUNDS, Table, percent, spread
    from longtail.runs.naming import by_method, trained_unlike

    bounds = "; ".join(f"{group}: {text}" for group, text in GROUP_BOUNDS.items())
    judged = {folder: one.values() for folder, one in errors_of.items()}
    for (_, spec), together in _by_data([one.run for one in errors_of.values()]).items():
        methods = by_method(together)
        rows, means = [], []
        for name, group in methods.items():
            errors = [judged[run.folder] for run in group]
            for run, values in zip(group, errors, strict=True):
                rows.append((run.folder.name, *(percent(value) for value in values.values())))
            balanced, *groups = ([values[key] for values in errors] for key in errors[0])
            cells = [spread(balanced, digits=1), *(percent(_mean(g)) for g in groups)]
            means.append((name, str(len(group)), *cells))
        title = f"{spec.name} ({_data.subset_words(spec)}), errors in percent on the {split} set"
        header = ("balanced", *GROUP_BOUNDS)
        _console.show_table(Table(title, ("run", *header), rows))
        note = f"Classes by training examples: {bounds}.{_groups_words(together)}"
        absent = errors_of[together[0].folder].absent
        if absent:
            note += f" Without examples there: {absent}, left out of the means."
        if unlike := trained_unlike(together):
            note += f" The methods were not all trained alike: {_checks.listing(unlike, most=5)}."
        if any(len(group) > 1 for group in methods.values()):
            note = f"Means over the seeds, ± standard deviation. {note}"
        _console.show_table(Table("By method", ("method", "seeds", *header), means, note=note))


def _groups_words(runs: list[Run]) -> str:
    """That a column is of other classes in some rows, if it is.

    What is held out is missing from the training set, and with it classes fall into lower groups.
    """
    found = {tuple(map(tuple, run.prior.groups().values())) for run in runs}
    if len(found) == 1:
        return ""
    return (
        " Runs with a held-out part count what was left to train on, so a group is not of the same "
        "classes in every row."
    )
