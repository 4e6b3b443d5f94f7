"""`longtail evaluate`: a run's logits on a split, where they are missing, and its errors."""

from __future__ import annotations

import os
import statistics
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli import _console, _data, _runs
from longtail.cli._console import Failure, option

if TYPE_CHECKING:
    from longtail.report.tables import Table
    from longtail.runs import Run


Split = StrEnum(
    "Split", {"test": "test", "dev": "dev", "val": "val", "held_out": "held-out", "train": "train"}
)


def evaluate(
    runs: _runs.Runs,
    split: Annotated[Split, option(None, "What to judge them on.")] = Split.test,
    ensemble: Annotated[
        bool, option(None, "Also average their logits, into a run folder of its own.", "--ensemble")
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
    data_dir: _data.DataDir = None,
    root: _runs.Root = None,
    workers: _runs.Workers = None,
    device: _runs.Device = "auto",
    force: _console.Force = False,
    json: _console.Json = False,
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
    from longtail import _checks, metrics
    from longtail import runs as library
    from longtail.runs import DataSpec
    from longtail.runs.ensemble import ensemble_spec

    anew = force or errors_only
    if errors_only and (ensemble or force):
        raise typer.BadParameter("--errors-only writes nothing; leave out --ensemble and --force")
    if anew and split == Split.held_out:
        raise typer.BadParameter(
            "training writes held-out logits; leave out --force and --errors-only"
        )
    shown = _runs.open_runs(runs, split=split.value, anew=anew, together=ensemble)
    if ensemble:
        averages = [run for run in shown if run.members]
        shown = _runs.without(shown, averages, "only trained runs are averaged")
        ensemble_spec(DataSpec("any"), [run.name for run in shown])  # refuses a single run
    places = _runs.RunData(dataset, data_dir, root)
    missing = [run for run in shown if anew or split not in run.splits]
    # What is there already is held against the data that the command names.
    work = shown if places.where() and split != Split.held_out else missing
    for run in missing:
        if split == Split.held_out:
            raise Failure(f"{run.folder} has no held-out part; train with --held-out 0.2.")
        if run.members:
            raise Failure(
                f"{run.folder} is an ensemble and has no network to compute logits with; its "
                f"members have: {run.evaluation(split)}{' --force' if force else ''}"
            )
        run.model()  # says why there are no weights, before work on other runs
    errors: dict[Path, Any] = {}
    if work or "WORLD_SIZE" in os.environ:  # in as many processes as there are
        _checks.require("torch", extra="train")
        from longtail.train import distributed, evaluation
        from longtail.train.streamed import Streaming

        with distributed.joined(_runs.find_device(device)) as world:
            parts = [_part(places.of(run), run, split) for run in work]
            how: dict[str, Any] = {"device": world.device, "world": world}
            how["streaming"] = Streaming(workers=workers)
            with _console.progress("evaluating", show=world.rank == 0) as progress:
                for done, (run, part) in enumerate(zip(work, parts, strict=True)):
                    progress(done, len(work), run.folder.name)
                    if not errors_only:
                        shown[shown.index(run)] = evaluation.evaluate(
                            run, part, split=split.value, replace=force, **how
                        )
                    elif (labels := evaluation.predict(run, part, **how)) is not None:
                        errors[run.folder] = metrics.per_class_error(
                            part.labels, labels, num_classes=run.prior.num_classes, missing="skip"
                        )
            if world.rank > 0:
                return
    notes = []
    if missing and not errors_only:
        notes.append(
            f"Logits of {len(missing)} run(s) on the {split} set are in their folders now."
        )
    together = None
    if ensemble:
        home = shown[0].folder.parent.parent
        mean = library.ensemble(shown, root=home, split=split.value, replace=force)
        notes.append(f"The mean logits of {len(shown)} runs are in {mean.folder}")
        shown, together = [*shown, mean], mean.folder
    # Runs of one training set, whatever was held out of it.
    groups: dict[Any, list[Run]] = {}
    for run in shown:
        groups.setdefault((run.data, replace(run.spec.dataset, held_out=0.0)), []).append(run)
    if not errors_only:
        # What is held out differs from seed to seed; other splits must be the same images.
        for group in groups.values() if split != Split.held_out else ():
            library.same_data(group, split=split.value)
        errors = {run.folder: _runs.errors_on(run, split) for run in shown}
    document, tables = _results(groups, errors, split)
    if json:
        _console.print_json(document | ({"ensemble": together} if ensemble else {}))
        return
    for table in tables:
        _console.show_table(table)
    for note in notes:
        _console.line(note, err=True)


def _part(data: Any, run: Run, split: Split) -> Any:
    """Return the images of a split, if the run's data set has it."""
    name = run.spec.dataset.name
    if split == Split.dev:
        if not hasattr(data, "development"):
            raise Failure(f"{name} has no development set; --split val is for choosing.")
        return data.development(run)
    images = getattr(data, split.value, None)
    if images is None:
        raise Failure(
            f"{name} has no validation set; train with --held-out 0.2 for a part to choose tau on."
        )
    return images


def _results(
    groups: dict[Any, list[Run]], errors: dict[Path, Any], split: Split
) -> tuple[dict[str, Any], list[Table]]:
    """Return the errors of runs and of their methods, data set by data set: JSON, and tables."""
    from longtail import _checks
    from longtail.report.tables import GROUP_BOUNDS, Table, percent, spread
    from longtail.runs.naming import by_method, trained_unlike

    document: dict[str, Any] = {"split": str(split), "runs": [], "methods": []}
    of_run: dict[Path, Any] = {}
    tables: list[Table] = []
    for (_, spec), runs in groups.items():
        rows, lines = [], []
        for name, alike in by_method(runs).items():
            values = []
            for run in alike:
                error = errors[run.folder]
                by_group = error.by_group(run.prior).values
                values.append({"balanced_error": error.balanced_error, **by_group})
                rows.append((run.folder.name, *map(percent, values[-1].values())))
                of_run[run.folder] = {
                    "folder": run.folder,
                    "method": run.spec.method.to_json(),
                    "seed": run.spec.seed,
                    "examples": int(error.counts.sum()),
                    **values[-1],
                    "missing_classes": error.missing_classes.tolist(),
                }
            balanced = [value["balanced_error"] for value in values]
            means = {key: sum(value[key] for value in values) / len(values) for key in values[0]}
            cells = [percent(means[key]) for key in GROUP_BOUNDS]
            lines.append((name, str(len(alike)), spread(balanced, digits=1), *cells))
            document["methods"].append(
                {
                    "dataset": alike[0].spec.dataset.to_json(),
                    "method": name,
                    "seeds": [run.spec.seed for run in alike],
                    **means,
                    "deviation": statistics.stdev(balanced) if len(balanced) > 1 else None,
                }
            )
        bounds = "; ".join(f"{group}: {text}" for group, text in GROUP_BOUNDS.items())
        note = f"Classes by training examples: {bounds}."
        if len({tuple(map(tuple, run.prior.groups().values())) for run in runs}) > 1:
            note += (
                " Runs with a held-out part count what was left to train on, so a group is not of "
                "the same classes in every row."
            )
        lacking = errors[runs[0].folder].missing_classes
        if absent := _checks.class_words(lacking, runs[0].class_names):
            note += f" Without examples there: {absent}, left out of the means."
        if unlike := trained_unlike(runs):
            note += f" The methods were not all trained alike: {_checks.listing(unlike, most=5)}."
        if len(lines) < len(rows):
            note = f"Means over the seeds, ± standard deviation. {note}"
        title = f"{spec.name} ({_data.subset_words(spec)}), errors in percent on the {split} set"
        header = ("balanced", *GROUP_BOUNDS)
        tables.append(Table(title, ("run", *header), rows))
        tables.append(Table("By method", ("method", "seeds", *header), lines, note=note))
    document["runs"] = [of_run[folder] for folder in errors]
    return document, tables
