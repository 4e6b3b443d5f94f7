"""`longtail evaluate`: a run's logits on a split, where they are missing, and its errors."""

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
from longtail.cli._console import ForceOption, JsonOption, option
from longtail.cli._opening import RunsArgument, open_members, open_runs

if TYPE_CHECKING:
    from longtail.metrics import PerClassError
    from longtail.runs import Run

    Errors = dict[Path, PerClassError]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class Split(StrEnum):
    """Splits that a run can be judged on."""

    test = "test"
    dev = "dev"
    val = "val"
    held_out = "held-out"
    train = "train"


@app.command()
def evaluate(
    runs: RunsArgument,
    split: Annotated[Split, option(None, "What to judge them on.")] = Split.test,
    ensemble: Annotated[
        bool,
        option(None, "Also average their logits, into a run folder of its own.", "--ensemble"),
    ] = False,
    errors_only: Annotated[
        bool,
        option(
            None,
            "Predict anew and keep no logits: for label spaces too large for them.",
            "--errors-only",
        ),
    ] = False,
    dataset: Annotated[
        str | None, option("NAME", "The data's frozen file or folder, if the runs don't say.")
    ] = None,
    data_dir: _data.DataDirOption = None,
    root: _training.RootOption = None,
    workers: _training.WorkersOption = None,
    device: _training.DeviceOption = "auto",
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Judge finished runs on the test set, alone or together.

    Logits that are missing are computed and kept in the run's folder, where every other command
    reads them. Those of the held-out part were written when training ended; runs of a folder that
    have no such part are left out. The development set (dev) is made of images that the training
    set leaves out: choose on it, and open the test set once; ImageNet-LT and Places-LT have a
    validation set (val) for that. Logits on the training set (train) are for students to learn
    from.

    With --ensemble the mean logits become one more run, without weights. Ensembles are left out
    of it and, of a folder, runs that learnt from others in it: name those to take them. With
    --errors-only nothing is kept, and the logits of a classifier that is cut over the processes
    (classifier=sharded) are never put together. Started by torchrun, the processes share the
    images of runs that were trained from disk.

    \b
    Examples:
      longtail evaluate runs/cifar100-lt
      longtail evaluate runs/digits-lt/softmax-s0-* --json
      longtail evaluate runs/digits-lt --split held-out
      longtail evaluate runs/flowers --dataset flowers.parquet
      longtail evaluate runs/cifar100-lt --split dev --ensemble
      longtail evaluate runs/imagenet-lt --split val --root images
    """
    from longtail import runs as library

    anew = force or errors_only
    if errors_only and (ensemble or force):
        raise typer.BadParameter("--errors-only writes nothing; leave out --ensemble and --force")
    if anew and split == Split.held_out:
        raise typer.BadParameter(
            "training writes held-out logits; leave out --force and --errors-only"
        )
    if ensemble:
        opened = open_members(runs, split=split.value)
    else:
        opened = open_runs(runs, split=split.value, anew=anew)
    data = _training.RunData(dataset, data_dir, root)
    missing = [run for run in opened if anew or split not in run.splits]
    # What is there already is held against the data that the command names.
    work = opened if data.where and split != Split.held_out else missing
    errors: Errors = {}
    if work or "WORLD_SIZE" in os.environ:
        how: dict[str, Any] = {"force": force, "errors_only": errors_only}
        found = _compute(work, split, data, workers=workers, device=device, **how)
        if found is None:
            return
        if errors_only:
            errors = found
        else:
            opened = [found.get(run.folder, run) for run in opened]
    shown = opened
    if ensemble:
        home = opened[0].folder.parent.parent
        together = library.ensemble(opened, root=home, split=split.value, replace=force)
        shown = [*opened, together]
    # Runs of one training set, whatever was held out of it.
    groups: dict[Any, list[Run]] = {}
    for run in shown:
        groups.setdefault((run.data, replace(run.spec.dataset, held_out=0.0)), []).append(run)
    if not errors_only:
        # What is held out differs from seed to seed; other splits must be the same images.
        for group in groups.values() if split != Split.held_out else ():
            library.same_data(group, split=split.value)
        errors = {run.folder: _training.errors_on(run, split) for run in shown}
    if json:
        made = {"ensemble": together.folder} if ensemble else {}
        _console.print_json({"split": str(split), **_document(groups, shown, errors), **made})
        return
    for (_, spec), group in groups.items():
        title = f"{spec.name} ({_data.subset_words(spec)}), errors in percent on the {split} set"
        _show(title, group, errors)
    if missing and not errors_only:
        _console.note(
            f"Logits of {len(missing)} run(s) on the {split} set are in their folders now."
        )
    if ensemble:
        _console.note(f"The mean logits of {len(opened)} runs are in {together.folder}")


def _compute(
    work: list[Run],
    split: Split,
    data: _training.RunData,
    *,
    workers: int | None,
    device: str,
    force: bool,
    errors_only: bool,
) -> dict[Path, Any] | None:
    """Compute logits, in as many processes as there are.

    Returns:
        By folder the runs, reopened, or with `errors_only` their errors; None in all processes
        but the first, which talks.
    """
    from longtail import _checks
    from longtail._checks import InputError
    from longtail.metrics import per_class_error

    for run in work:
        if split == Split.held_out:
            raise InputError(f"{run.folder} has no held-out part; train with --held-out 0.2.")
        if force or errors_only or split not in run.splits:
            if run.members:
                raise InputError(
                    f"{run.folder} is an ensemble and has no network to compute logits with; its "
                    f"members have: {run.evaluation(split)}{' --force' if force else ''}"
                )
            run.model()  # says why there are no weights, before work on other runs
    _checks.require("torch", extra="train")
    from longtail.train import distributed, evaluation
    from longtail.train.streamed import Streaming

    found: dict[Path, Any] = {}
    with distributed.joined(_training.find_device(device)) as world:
        parts = [_part(data.of(run), run, split) for run in work]
        streaming = Streaming(workers=workers)
        how: dict[str, Any] = {"device": world.device, "world": world, "streaming": streaming}
        with _console.progress("evaluating") if world.first else nullcontext() as progress:
            for done, (run, part) in enumerate(zip(work, parts, strict=True)):
                if progress is not None:
                    progress(done, len(work), run.folder.name)
                if not errors_only:
                    again = evaluation.evaluate(run, part, split=split.value, replace=force, **how)
                    found[run.folder] = again
                elif (labels := evaluation.predict(run, part, **how)) is not None:
                    classes = run.prior.num_classes
                    found[run.folder] = per_class_error(
                        part.labels, labels, num_classes=classes, missing="skip"
                    )
        return found if world.first else None


def _part(data: Any, run: Run, split: Split) -> Any:
    """Return the images of a split, if the run's data set has it."""
    from longtail._checks import InputError

    name = run.spec.dataset.name
    if split == Split.dev:
        if not hasattr(data, "development"):
            raise InputError(f"{name} has no development set; --split val is for choosing.")
        return data.development(run)
    images = getattr(data, split.value, None)
    if images is None:
        raise InputError(
            f"{name} has no validation set; train with --held-out 0.2 for a part to choose tau on."
        )
    return images


def _values(run: Run, errors: Errors) -> dict[str, float]:
    """Return the balanced error, and that of the classes with many, medium and few examples."""
    error = errors[run.folder]
    return {"balanced_error": error.balanced_error, **error.by_group(run.prior).values}


def _methods(
    runs: list[Run], errors: Errors
) -> Iterator[tuple[str, list[Run], dict[str, float], list[float]]]:
    """Yield methods: name, runs, the means of their values, and their balanced errors."""
    from longtail.runs.naming import by_method

    for name, group in by_method(runs).items():
        values = [_values(run, errors) for run in group]
        means = {key: sum(value[key] for value in values) / len(group) for key in values[0]}
        yield name, group, means, [value["balanced_error"] for value in values]


def _document(groups: dict[Any, list[Run]], runs: list[Run], errors: Errors) -> dict[str, Any]:
    return {
        "runs": [
            {
                "folder": run.folder,
                "method": run.spec.method.to_json(),
                "seed": run.spec.seed,
                "examples": int(errors[run.folder].counts.sum()),
                **_values(run, errors),
                "missing_classes": errors[run.folder].missing_classes.tolist(),
            }
            for run in runs
        ],
        "methods": [
            {
                "dataset": group[0].spec.dataset.to_json(),
                "method": name,
                "seeds": [run.spec.seed for run in group],
                **means,
                "deviation": _training.deviation(balanced),
            }
            for together in groups.values()
            for name, group, means, balanced in _methods(together, errors)
        ],
    }


def _show(title: str, runs: list[Run], errors: Errors) -> None:
    """Print the errors of runs of one data set, and their methods' means."""
    from longtail import _checks
    from longtail.report.tables import GROUP_BOUNDS, Table, percent, spread
    from longtail.runs.naming import trained_unlike

    rows, lines = [], []
    for name, group, means, balanced in _methods(runs, errors):
        rows += [(r.folder.name, *map(percent, _values(r, errors).values())) for r in group]
        cells = map(percent, (means[key] for key in GROUP_BOUNDS))
        lines.append((name, str(len(group)), spread(balanced, digits=1), *cells))
    header = ("balanced", *GROUP_BOUNDS)
    _console.show_table(Table(title, ("run", *header), rows))
    bounds = "; ".join(f"{group}: {text}" for group, text in GROUP_BOUNDS.items())
    note = f"Classes by training examples: {bounds}."
    if len({tuple(map(tuple, run.prior.groups().values())) for run in runs}) > 1:
        note += (
            " Runs with a held-out part count what was left to train on, so a group is not of "
            "the same classes in every row."
        )
    missing = errors[runs[0].folder].missing_classes
    if absent := _checks.class_words(missing, runs[0].class_names):
        note += f" Without examples there: {absent}, left out of the means."
    if unlike := trained_unlike(runs):
        note += f" The methods were not all trained alike: {_checks.listing(unlike, most=5)}."
    if len(lines) < len(rows):
        note = f"Means over the seeds, ± standard deviation. {note}"
    _console.show_table(Table("By method", ("method", "seeds", *header), lines, note=note))
