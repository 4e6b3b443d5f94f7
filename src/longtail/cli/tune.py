"""`longtail tune`: held-out logits in, tau out."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from longtail.cli import _console, _inputs
from longtail.cli._console import JsonOption, option
from longtail.cli._inputs import (
    BoundsOption,
    ClassesOption,
    CountsOption,
    FileArgument,
    LabelsOption,
    LogitsOption,
    Method,
    ProbsOption,
    ScoresOption,
    SeedOption,
    SmoothingOption,
    SplitOption,
    TrainLabelsOption,
)

if TYPE_CHECKING:
    from longtail.predictions import Predictions
    from longtail.priors import ClassPrior

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class BiasMode(StrEnum):
    """Treatment of the bias by weight normalization (`keep` has no exact curve)."""

    scale = "scale"
    drop = "drop"


class Criterion(StrEnum):
    """Criterion that tau minimises on the held-out data."""

    balanced_error = "balanced-error"
    log_loss = "log-loss"
    squared_error = "squared-error"
    ece = "ece"
    sharpness = "sharpness"


class Missing(StrEnum):
    """Treatment of classes without held-out examples."""

    error = "error"
    nearest = "nearest"


@app.command()
def tune(
    file: FileArgument,
    counts: CountsOption = None,
    train_labels: TrainLabelsOption = None,
    labels: LabelsOption = None,
    logits: LogitsOption = False,
    probs: ProbsOption = False,
    scores: ScoresOption = None,
    classes: ClassesOption = None,
    smoothing: SmoothingOption = 0.0,
    split: SplitOption = None,
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
    bounds: BoundsOption = (0.0, 4.0),
    bootstrap: Annotated[int, option("N", "Resamplings; 0 for no interval.", min=0)] = 1000,
    seed: SeedOption = 0,
    curve: Annotated[int, option("N", "Points of the curve to add to --json.", min=0)] = 0,
    sets: Annotated[
        float | None,
        option("COVERAGE", "Prediction sets that cover so much in the mean over classes: 0.9."),
    ] = None,
    json: JsonOption = False,
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
    found, prior = _inputs.read_file(
        file,
        counts=counts,
        train_labels=train_labels,
        smoothing=smoothing,
        labels=labels,
        logits=logits,
        probs=probs,
        scores=scores,
        classes=classes,
        split=split,
    )
    assert prior is not None
    with _console.progress("reading") as progress:
        result = tune_predictions(
            found,
            prior,
            method=cast(Any, method.name),
            bias_mode=bias_mode.value,
            criterion=cast(Any, criterion.name),
            missing=missing.value,
            bounds=bounds,
            n_bootstrap=bootstrap,
            random_state=seed,
            progress=progress,
        )
    if file.is_dir():
        by_counts = prior if method is Method.logit_adjustment else None
        _inputs.warn_of_run(file, split, by_counts, tau=None)
    document: dict[str, Any] = result.to_dict(curve_points=curve)
    lines = [result.describe(class_names=found.class_names)]
    if sets is not None:
        document["sets"], more = _sets(found, prior, coverage=sets, tau=result.tau)
        lines += more
    if json:
        _console.print_json(document)
    else:
        _console.line("\n".join(lines))


def _sets(
    found: Predictions, prior: ClassPrior, *, coverage: float, tau: float
) -> tuple[dict[str, Any], list[str]]:
    """Return thresholds of prediction sets with this tau, for JSON and in words."""
    from longtail.conformal import PredictionSets
    from longtail.predictions.passes import whole_logits

    logits, target = whole_logits(found)
    sets = PredictionSets(coverage=coverage, tau=tau).fit(logits, target, prior)
    judged = sets.cross_evaluate(logits, target, prior)
    low, high = sets.thresholds_.min(), sets.thresholds_.max()
    lines = [
        f"prediction sets: the classes with -log softmax(logits - tau log prior) <= {low:.4g}"
        + (f" to {high:.4g}, by class (--json)" if high > low else ""),
        *(f"  {line.strip()}" for line in f"judged by cross-fitting: {judged}".splitlines()),
    ]
    return {"coverage": coverage, "thresholds": sets.thresholds_, **judged.to_dict()}, lines
