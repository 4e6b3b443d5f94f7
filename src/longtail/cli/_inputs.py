"""What `adjust`, `tune` and `bake` have in common: options, and what they name.

Files are read in `longtail.predictions`; here are only the options, spelt the same in every
command, and the training prior that they give.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from longtail.predictions import Kind, Predictions
    from longtail.priors import ClassPrior


class Method(StrEnum):
    """The post-hoc methods, as the command line spells them."""

    logit_adjustment = "logit-adjustment"
    weight_normalization = "weight-normalization"


LabelsOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        help="Labels: a column or array in FILE, or a file of their own (.npy, text, csv).",
    ),
]
CountsOption = Annotated[
    str | None,
    typer.Option(
        metavar="N,N,...|FILE",
        help="Training examples per class, or a file of them (text, .npy, .csv, .json).",
    ),
]
TrainLabelsOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Or the training labels themselves (.npy, text, csv)."),
]
SmoothingOption = Annotated[
    float,
    typer.Option(metavar="X", help="Added to every count; needed if a class has no examples."),
]
LogitsOption = Annotated[
    bool, typer.Option("--logits", help="The scores are logits, if FILE doesn't say.")
]
ProbsOption = Annotated[
    bool, typer.Option("--probs", help="The scores are probabilities, if FILE doesn't say.")
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES", help="Score columns of a csv or parquet file, such as 'logit_*'."
    ),
]
ClassesOption = Annotated[
    str | None,
    typer.Option(metavar="A,B,...|FILE", help="Names of the classes, in the order of the scores."),
]


def open_file(
    file: Path,
    *,
    labels: str | None,
    logits: bool,
    probs: bool,
    columns: str | None,
    classes: str | None,
    split: str = "held-out",
) -> Predictions:
    """The predictions that the options name."""
    from longtail.predictions import open_predictions
    from longtail.predictions.labels import read_class_names

    if logits and probs:
        raise typer.BadParameter("the scores are either --logits or --probs, not both")
    kind: Kind | None = "logits" if logits else "probs" if probs else None
    return open_predictions(
        file,
        kind=kind,
        labels=labels,
        columns=columns,
        classes=None if classes is None else read_class_names(classes),
        split=split,
    )


def read_prior(
    found: Predictions,
    *,
    counts: str | None,
    train_labels: Path | None,
    smoothing: float,
    optional: bool = False,
) -> ClassPrior | None:
    """The prior of the training data: from an option if there is one, else from the source."""
    import numpy as np

    from longtail._checks import InputError
    from longtail.predictions.labels import LabelEncoder, read_labels, read_numbers

    if counts is not None and train_labels is not None:
        raise InputError("give either --counts or --train-labels, not both.")
    width, names = found.num_classes, found.class_names
    numbers: Any
    if train_labels is not None:
        source = "--train-labels"
        encode = LabelEncoder(width, names, name=f"{source} {train_labels}")
        numbers = np.bincount(encode(read_labels(train_labels)), minlength=width)
    elif counts is not None:
        source = "--counts"
        numbers = read_numbers(counts, option=source, num_classes=width, class_names=names)
    elif found.counts is not None:
        source, numbers = f"`counts` in {found.name}", found.counts
    elif found.prior is not None:
        if not smoothing or found.prior.counts is None:
            return found.prior
        source, numbers = found.name, found.prior.counts
    elif optional:
        return None
    else:
        raise InputError(
            "the numbers of training examples per class are needed: pass --counts 900,90,10, "
            "--counts FILE or --train-labels FILE."
        )
    return prior_of_counts(numbers, source=source, smoothing=smoothing, label=found.label)


def prior_of_counts(
    counts: Any, *, source: str, smoothing: float, label: Callable[[int], str] = str
) -> ClassPrior:
    """The prior of counts, one per class; a class without examples is told by its `label`."""
    import numpy as np

    from longtail import _checks
    from longtail._checks import InputError
    from longtail.priors import ClassPrior

    if not smoothing and np.any(counts == 0) and np.any(counts > 0):
        never = _checks.listing(label(int(k)) for k in np.flatnonzero(counts == 0))
        raise InputError(
            f"{source}: class(es) {never} have no training examples, so log π is infinite; pass "
            f"--smoothing 1 to count one more example of every class."
        )
    return ClassPrior.from_counts(counts, smoothing=smoothing)
