"""`longtail tune`: held-out logits in, tau out."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, cast

import typer

from longtail.cli import _console, _inputs, _runs
from longtail.cli._console import option
from longtail.cli._inputs import Method

BiasMode = StrEnum("BiasMode", ["scale", "drop"])  # `keep` has no exact curve
Missing = StrEnum("Missing", ["error", "nearest"])


class Criterion(StrEnum):
    """What tau minimises on the held-out data."""

    balanced_error = "balanced-error"
    log_loss = "log-loss"
    squared_error = "squared-error"
    ece = "ece"
    sharpness = "sharpness"


def tune(
    context: typer.Context,
    file: _inputs.File,
    counts: _inputs.Counts = None,
    train_labels: _inputs.TrainLabels = None,
    labels: _inputs.Labels = None,
    logits: _inputs.Logits = False,
    probs: _inputs.Probs = False,
    scores: _inputs.Scores = None,
    classes: _inputs.Classes = None,
    smoothing: _inputs.Smoothing = 0.0,
    split: _inputs.Split = None,
    method: Annotated[Method, option("NAME", "Or weight-normalization.")] = Method.logit_adjustment,
    bias_mode: Annotated[
        BiasMode, option(None, "What weight normalization does with the bias.")
    ] = BiasMode.scale,
    criterion: Annotated[
        Criterion,
        option(
            "NAME",
            "Or log-loss, squared-error, ece, sharpness: these see tau as a temperature, and "
            "weigh the classes as the training data are mixed.",
        ),
    ] = Criterion.balanced_error,
    missing: Annotated[
        Missing,
        option(
            None,
            "Classes without examples: refuse, or let the nearest in size count for them too "
            "(for --split dev of CIFAR).",
        ),
    ] = Missing.error,
    bounds: _inputs.Bounds = (0.0, 4.0),
    bootstrap: Annotated[int, option("N", "Resamplings; 0 for no interval.", min=0)] = 1000,
    seed: _inputs.Seed = 0,
    curve: Annotated[int, option("N", "Points of the curve to add to --json.", min=0)] = 0,
    sets: Annotated[
        float | None,
        option("COVERAGE", "Prediction sets that cover so much in the mean over classes: 0.9."),
    ] = None,
    json: _console.Json = False,
) -> None:
    """Choose tau on held-out logits, by the exact error curve.

    The logits must be of examples that the model was not trained on, and not of the test set:
    an error that was minimised is no longer an honest estimate.

    \b
    Examples:
      longtail tune held-out.npz --counts 900,90,10
      longtail tune logits.npy --logits --labels y.npy --train-labels train.npy
      longtail tune runs/digits-lt/softmax-s0-10db5896 --json
      longtail tune RUN --split dev --missing nearest
      longtail tune held-out.npz --counts 900,90,10 --sets 0.9
    """
    from longtail.predictions import tune_predictions

    if sets is not None and method is not Method.logit_adjustment:
        raise typer.BadParameter("--sets goes with logit adjustment, not weight normalization")
    found, prior = _inputs.read_file(file, context.params)
    assert prior is not None
    with _console.progress("reading") as progress:
        result = tune_predictions(
            found,
            prior,
            method=cast(Any, method.name),
            bias_mode=cast(Any, bias_mode.value),
            criterion=cast(Any, criterion.name),
            missing=cast(Any, missing.value),
            bounds=bounds,
            n_bootstrap=bootstrap,
            random_state=seed,
            progress=progress,
        )
    if file.is_dir():
        _runs.warn_of_run(file, context.params, prior)
    document: dict[str, Any] = result.to_dict(curve_points=curve)
    lines = [result.describe(class_names=found.class_names)]
    if sets is not None:
        from longtail.conformal import PredictionSets
        from longtail.predictions.passes import whole_logits

        scored, target = whole_logits(found)
        fitted = PredictionSets(coverage=sets, tau=result.tau).fit(scored, target, prior)
        judged = fitted.cross_evaluate(scored, target, prior)
        each = fitted.thresholds_
        document["sets"] = {"coverage": sets, "thresholds": each, **judged.to_dict()}
        more = f" to {each.max():.4g}, by class (--json)" if each.max() > each.min() else ""
        lines += [
            f"prediction sets: the classes with -log softmax(logits - tau log prior) <= "
            f"{each.min():.4g}{more}",
            *(f"  {line.strip()}" for line in f"judged by cross-fitting: {judged}".splitlines()),
        ]
    if json:
        _console.print_json(document)
    else:
        _console.line("\n".join(lines))
