"""`longtail adjust`: saved predictions in; tau, what it is worth, and adjusted ones out."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from longtail.cli import _console, _inputs, _runs
from longtail.cli._console import Failure, option

Missing = StrEnum("Missing", ["error", "skip"])


def adjust(
    context: typer.Context,
    file: _inputs.File,
    counts: _inputs.Counts = None,
    train_labels: _inputs.TrainLabels = None,
    labels: _inputs.Labels = None,
    logits: _inputs.Logits = False,
    probs: _inputs.Probs = False,
    out: Annotated[Path | None, option("FILE", "Write the result here.", "--out", "-o")] = None,
    report: Annotated[Path | None, option("FILE.html", "Write a page with charts here.")] = None,
    tau: Annotated[float | None, option("T", "Apply this tau instead of choosing one.")] = None,
    tune_on: Annotated[
        float | None, option("X", "Choose tau on this part, judge it on the rest.", min=0, max=1)
    ] = None,
    cross_fit: Annotated[
        int | None, option("K", "Judge K folds by the tau of the others (default: 5).", min=2)
    ] = None,
    target: _inputs.Target = "balanced",
    effective_prior: Annotated[
        bool, option(None, "Correct the model's mean prediction, not counts.", "--effective-prior")
    ] = False,
    missing: Annotated[
        Missing, option(None, "Classes with too few labels: refuse, or leave out.")
    ] = Missing.error,
    scores: _inputs.Scores = None,
    classes: _inputs.Classes = None,
    smoothing: _inputs.Smoothing = 0.0,
    split: _inputs.Split = None,
    bounds: _inputs.Bounds = (0.0, 4.0),
    seed: _inputs.Seed = 0,
    force: _console.Force = False,
    json: _console.Json = False,
) -> None:
    """Adjust saved predictions, and measure what it is worth.

    FILE holds one score per example and class: arrays `logits` or `probs`, and `target` if the
    labels are known, in an .npz; a column logit_NAME or prob_NAME per class, and `label`, in a
    csv or parquet file. Tau is chosen on labelled examples and always judged on others. Without
    labels it is 1, unless given, and nothing is measured.

    \b
    Examples:
      longtail adjust predictions.npz --counts 900,90,10
      longtail adjust predictions.csv --counts counts.csv --out adjusted.csv
      longtail adjust logits.npy --logits --labels y.npy --train-labels train.npy
      longtail adjust unlabelled.npz --counts 900,90,10 --tau 1 --out adjusted.npz
      longtail adjust RUN --split dev --report page.html
    """
    from longtail import _checks
    from longtail.predictions import adjust_predictions
    from longtail.predictions.adjusting import check_output

    found, prior = _inputs.read_file(file, context.params)
    # Refused before the work rather than after it.
    if not found.labelled and (out is None or report is not None):
        raise Failure(
            f"{found.name} has no labels, so nothing can be measured or shown; name them with "
            f"--labels, or only write the predictions adjusted, with --out FILE."
        )
    if out is not None:
        check_output(found, out, force=force)
    if report is not None:
        _checks.require("plotly", extra="report")
        _console.refuse_overwrite(report, force, page="--report")
    aim = None
    if target != "balanced":
        aim = _inputs.read_target(target, found.num_classes, found.class_names)
    with _console.progress("reading") as progress:
        result = adjust_predictions(
            found,
            prior,
            tau=tau,
            tune_on=tune_on,
            folds=cross_fit,
            target_prior=aim,
            effective=effective_prior,
            missing=cast(Any, missing.value),
            bounds=bounds,
            random_state=seed,
            progress=progress,
        )
    if file.is_dir():
        _runs.warn_of_run(file, context.params, prior)
    written = None
    if out is not None:
        with _console.progress("writing") as progress:
            written = result.write(out, force=force, progress=progress)
    if report is not None:
        from longtail.report.pages import adjusted_page

        command = shlex.join(["longtail", *context.obj])
        adjusted_page(result, command=command).write(report)
    if json:
        files = None if written is None else written._asdict()
        _console.print_json({**result.to_dict(), "written": files, "page": report})
        return
    from longtail.report import adjusting as texts

    for text in texts.summary(result):
        _console.line(text, wrap=True)
    _console.line()
    for table in texts.tables(result):
        _console.show_table(table)
    if written is not None:
        _console.line(texts.written(result, written), wrap=True)
    elif report is None:
        _console.line("Nothing was written: --out FILE writes the adjusted predictions.")
    if report is not None:
        _console.line(f"Open {report} in a browser: it has a slider for tau.")
