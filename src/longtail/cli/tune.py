"""`longtail tune`: held-out logits in, tau out."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from longtail.cli import _console
from longtail.cli._console import JsonOption
from longtail.cli._inputs import (
    BoundsOption,
    ClassesOption,
    CountsOption,
    LabelsOption,
    LogitsOption,
    Method,
    ProbsOption,
    ScoresOption,
    SmoothingOption,
    SplitOption,
    TrainLabelsOption,
)

if TYPE_CHECKING:
    from longtail.predictions import Predictions
    from longtail.priors import ClassPrior
    from longtail.tuning import Criterion as CriterionName
    from longtail.tuning import TauResult

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class BiasMode(StrEnum):
    """What weight normalization does with the bias (`keep` has no exact curve)."""

    scale = "scale"
    drop = "drop"


class Criterion(StrEnum):
    """What tau minimises on the held-out data."""

    balanced_error = "balanced-error"
    log_loss = "log-loss"
    squared_error = "squared-error"
    ece = "ece"
    sharpness = "sharpness"


class Missing(StrEnum):
    """What becomes of classes without held-out examples."""

    error = "error"
    nearest = "nearest"


@app.command()
def tune(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Saved predictions: .npz, .npy, .csv, .parquet or a run folder."
        ),
    ],
    counts: CountsOption = None,
    train_labels: TrainLabelsOption = None,
    labels: LabelsOption = None,
    logits: LogitsOption = False,
    probs: ProbsOption = False,
    scores: ScoresOption = None,
    classes: ClassesOption = None,
    smoothing: SmoothingOption = 0.0,
    split: SplitOption = None,
    method: Annotated[Method, typer.Option(help="What tau is for.")] = Method.logit_adjustment,
    bias_mode: Annotated[
        BiasMode, typer.Option(help="What weight normalization does with the bias.")
    ] = BiasMode.scale,
    criterion: Annotated[
        Criterion,
        typer.Option(
            help="What to minimise; all but the first see tau as a temperature, and weigh the "
            "classes as the training data are mixed."
        ),
    ] = Criterion.balanced_error,
    missing: Annotated[
        Missing,
        typer.Option(
            help="What to do about classes without held-out examples: refuse, or let the nearest "
            "class in size count for them too, equally near ones sharing (for --split dev of "
            "CIFAR)."
        ),
    ] = Missing.error,
    bounds: BoundsOption = (0.0, 4.0),
    bootstrap: Annotated[
        int, typer.Option(min=0, metavar="N", help="Resamplings behind the interval; 0 for none.")
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the resampling.")] = 0,
    curve: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Points of the curve to add to --json; 0 for none."),
    ] = 0,
    sets: Annotated[
        float | None,
        typer.Option(
            metavar="COVERAGE",
            help="Also thresholds for prediction sets that hold the true class this often, in "
            "the mean over classes; 0.9, say.",
        ),
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
    from longtail.cli._inputs import (
        open_file,
        opened_run,
        read_prior,
        warn_if_adjusted,
        warn_of_split,
    )

    by_norms = method is Method.weight_normalization
    _refuse_contradictions(criterion, missing, bounds, by_norms=by_norms)
    if sets is not None and by_norms:
        raise typer.BadParameter("--sets goes with logit adjustment, not weight normalization")
    found = open_file(
        file,
        labels=labels,
        logits=logits,
        probs=probs,
        scores=scores,
        classes=classes,
        split=split,
    )
    prior = read_prior(found, counts=counts, train_labels=train_labels, smoothing=smoothing)
    with _console.progress("reading") as progress:
        result = _tuned(
            found,
            cast("ClassPrior", prior),
            by_norms=by_norms,
            bias_mode=bias_mode,
            criterion=criterion,
            missing=missing,
            progress=progress,
            bounds=bounds,
            n_bootstrap=bootstrap,
            random_state=seed,
        )
    if not by_norms:
        warn_if_adjusted(opened_run(file), cast("ClassPrior", prior), tau=None)
    document: dict[str, Any] = result.to_dict(curve_points=curve)
    lines: list[str] = []
    if sets is not None:
        document["sets"], lines = _sets(found, prior, coverage=sets, tau=result.tau)
    if json:
        _console.print_json(document)
    else:
        _console.line("\n".join([result.describe(class_names=found.class_names), *lines]))
    warn_of_split(file, split, chosen=True)


def _sets(
    found: Predictions, prior: Any, *, coverage: float, tau: float
) -> tuple[dict[str, Any], list[str]]:
    """Thresholds of prediction sets with this tau, for JSON and in words."""
    from longtail.conformal import PredictionSets
    from longtail.predictions.passes import whole_logits

    logits, target = whole_logits(found, prior)
    sets = PredictionSets(coverage=coverage, tau=tau).fit(logits, target, prior)
    judged = sets.cross_evaluate(logits, target, prior)
    low, high = sets.thresholds_.min(), sets.thresholds_.max()
    lines = [
        f"prediction sets: the classes with -log softmax(logits - tau log prior) <= {low:.4g}"
        + (f" to {high:.4g}, by class (--json)" if high > low else ""),
        *(f"  {line.strip()}" for line in f"judged by cross-fitting: {judged}".splitlines()),
    ]
    return {"coverage": coverage, "thresholds": sets.thresholds_, **judged.to_dict()}, lines


def _refuse_contradictions(
    criterion: Criterion, missing: Missing, bounds: tuple[float, float], *, by_norms: bool
) -> None:
    """Refuse what a calibration criterion, which sees tau as a temperature, has no use for."""
    if criterion is Criterion.balanced_error:
        return
    given = {
        "--method weight-normalization": by_norms,
        "--missing nearest": missing is Missing.nearest,
        "negative --bounds": bounds[0] < 0,
    }
    for name, is_given in given.items():
        if is_given:
            raise typer.BadParameter(
                f"{name} can't stand beside --criterion {criterion.value}, only beside "
                f"balanced-error"
            )


def _tuned(
    found: Predictions,
    prior: ClassPrior,
    *,
    by_norms: bool,
    bias_mode: BiasMode,
    criterion: Criterion,
    missing: Missing,
    progress: _console.Progress,
    **settings: Any,
) -> TauResult:
    from longtail._checks import InputError
    from longtail.predictions.adjusting import refuse_nothing_to_tune
    from longtail.predictions.passes import tau_intervals, whole_logits
    from longtail.tuning import tune_from_intervals, tune_tau

    if not found.labelled:
        raise InputError(
            f"{found.name} has no labels, so tau can't be chosen on it; name them with --labels."
        )
    if by_norms and found.kind == "probs":
        raise InputError(
            f"weight normalization divides logits by norms, but {found.name} holds probabilities."
        )
    if by_norms and found.norms is None:
        raise InputError(
            f"weight normalization needs the norms of the last layer's weights, one per class, "
            f"which {found.name} lacks; save them with numpy.savez(file, ..., norms=...)."
        )
    method: dict[str, Any] = {"method": "logit_adjustment"}
    if by_norms:
        bias = found.bias if bias_mode is BiasMode.drop else None
        method = {"method": "weight_normalization", "norms": found.norms, "bias": bias}
        method["bias_mode"] = bias_mode.value
    else:
        refuse_nothing_to_tune(prior)
    if criterion is Criterion.balanced_error:
        parts = tau_intervals(found, prior, progress=progress, **method)
        if missing is Missing.nearest:
            parts = parts.with_stand_ins(prior)
        else:
            _refuse_missing_classes(found, parts.counts)
        return tune_from_intervals(parts, **settings)
    logits, target = whole_logits(found, prior)
    return tune_tau(
        logits,
        target,
        prior,
        criterion=cast("CriterionName", criterion.name),
        missing=missing.value,
        **settings,
    )


def _refuse_missing_classes(found: Predictions, counts: Any) -> None:
    from longtail import _checks

    lacking = [found.label(k) for k, count in enumerate(counts) if not count]
    if lacking:
        raise _checks.InputError(
            f"{found.name}: every class needs held-out examples, but {len(lacking)} of "
            f"{len(counts)} have none: {_checks.listing(lacking)}; hold out at least one of each, "
            f"let the nearest class in size count for them too with --missing nearest, or pass "
            f"--criterion log-loss, which can do without some."
        )
