"""`longtail tune`: held-out logits in, tau out."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from longtail.cli import _console
from longtail.cli._console import JsonOption

if TYPE_CHECKING:
    from longtail.tuning import Criterion as CriterionName

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class Method(StrEnum):
    """The post-hoc methods, as the command line spells them."""

    logit_adjustment = "logit-adjustment"
    weight_normalization = "weight-normalization"


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


@app.command()
def tune(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A run folder, an .npz with `logits` and `target`, or logits.npy."
        ),
    ],
    target: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Labels, .npy or text, if FILE holds only logits."),
    ] = None,
    counts: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...|FILE", help="Training examples per class, or a file of them."
        ),
    ] = None,
    train_labels: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Or the training labels themselves, .npy or text."),
    ] = None,
    smoothing: Annotated[
        float,
        typer.Option(metavar="X", help="Added to every count; needed if a class has no examples."),
    ] = 0.0,
    split: Annotated[
        str, typer.Option(metavar="NAME", help="Which split of a run folder.")
    ] = "held-out",
    method: Annotated[Method, typer.Option(help="What tau is for.")] = Method.logit_adjustment,
    bias_mode: Annotated[
        BiasMode, typer.Option(help="What weight normalization does with the bias.")
    ] = BiasMode.scale,
    criterion: Annotated[
        Criterion, typer.Option(help="What to minimise; all but the first need no balanced data.")
    ] = Criterion.balanced_error,
    bounds: Annotated[
        tuple[float, float], typer.Option(metavar="LOW HIGH", help="Where to search.")
    ] = (0.0, 4.0),
    bootstrap: Annotated[
        int, typer.Option(min=0, metavar="N", help="Resamplings behind the interval; 0 for none.")
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the resampling.")] = 0,
    curve: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Points of the curve to add to --json; 0 for none."),
    ] = 0,
    json: JsonOption = False,
) -> None:
    """Choose tau on held-out logits, by the exact error curve.

    The logits must be of examples that the model was not trained on, and not of the test set:
    an error that was minimised is no longer an honest estimate.

    \b
    Examples:
      longtail tune held-out.npz --counts 900,90,10
      longtail tune logits.npy --target labels.npy --train-labels train.npy
      longtail tune runs/digits-lt/softmax-s0-10db5896 --json
    """
    from longtail._checks import InputError
    from longtail.cli._inputs import read_held_out, read_prior
    from longtail.tuning import tune_tau

    found = read_held_out(file, target=target, split=split)
    prior = read_prior(found, counts=counts, train_labels=train_labels, smoothing=smoothing)
    by_norms = method is Method.weight_normalization
    if by_norms and found.norms is None:
        raise InputError(
            f"weight normalization needs the norms of the last layer's weights, one per class, "
            f"which {file} lacks; save them with numpy.savez(file, ..., norms=...)."
        )
    with _console.working("tuning"):
        result = tune_tau(
            found.logits,
            found.target,
            prior,
            method="weight_normalization" if by_norms else "logit_adjustment",
            norms=found.norms if by_norms else None,
            bias=found.bias if by_norms and bias_mode is BiasMode.drop else None,
            bias_mode=bias_mode.value,
            criterion=cast("CriterionName", criterion.name),
            bounds=bounds,
            n_bootstrap=bootstrap,
            random_state=seed,
        )
    if json:
        _console.print_json(result.to_dict(curve_points=curve))
        return
    _console.line(str(result))
    if file.is_dir() and split == "test":
        _console.warning_line(
            "this tau was chosen on the test set: it is an oracle's, and its "
            "error is no estimate for new data."
        )
