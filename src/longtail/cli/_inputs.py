"""Options that `adjust`, `tune` and `bake` share, and the predictions and priors they name."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli._console import Failure, option

if TYPE_CHECKING:
    from longtail.predictions import Predictions
    from longtail.priors import ClassPrior


class Method(StrEnum):
    """The post-hoc methods, as the command line spells them."""

    logit_adjustment = "logit-adjustment"
    weight_normalization = "weight-normalization"


File = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="An .npz, .npy, .csv or .parquet file, or a run folder."),
]
Labels = Annotated[str | None, option("NAME|FILE", "Labels: a name in FILE, or a file.")]
Counts = Annotated[
    str | None,
    option("N,N,...|FILE", "Training examples per class, in the order of the score columns."),
]
TrainLabels = Annotated[Path | None, option("FILE", "Or the training labels, to be counted.")]
Smoothing = Annotated[float, option("X", "Added to every count.", min=0)]
Split = Annotated[str | None, option("NAME", "Split of a run folder (default: held-out).")]
Bounds = Annotated[tuple[float, float], option("LOW HIGH", "Where to search for tau.")]
Logits = Annotated[bool, option(None, "Scores are logits, if FILE doesn't say.", "--logits")]
Probs = Annotated[bool, option(None, "They are probabilities, if it doesn't say.", "--probs")]
Scores = Annotated[str | None, option("NAMES", "Array or columns, such as 'score_*'.")]
Classes = Annotated[str | None, option("A,B,...|FILE", "Class names, in the order of the scores.")]
Target = Annotated[str, option("balanced|FILE", "Class frequencies to aim at.")]
Seed = Annotated[int, option("N", "Of splits and resampling.", min=0)]


def read_file(file: Path, given: dict[str, Any]) -> tuple[Predictions, ClassPrior | None]:
    """Open predictions as a command's parameters say, with the prior of the training data.

    There may be no prior with --effective-prior, which is to find one.
    """
    from longtail.predictions import open_predictions
    from longtail.predictions.labels import read_class_names

    if given["logits"] and given["probs"]:
        raise typer.BadParameter("the scores are either --logits or --probs, not both")
    if given["split"] is not None and file.is_file():
        raise typer.BadParameter(f"--split is for run folders, and {file} is a file")
    found = open_predictions(
        file,
        kind="logits" if given["logits"] else "probs" if given["probs"] else None,
        labels=given["labels"],
        scores=given["scores"],
        classes=None if given["classes"] is None else read_class_names(given["classes"]),
        split=given["split"] or "held-out",
    )
    known = found.prior if found.counts is None else found.counts
    nothing = known is None and given["counts"] is None and given["train_labels"] is None
    if nothing and given.get("effective_prior"):
        return found, None
    return found, read_prior(given, known, found.num_classes, found.class_names)


def read_prior(
    given: dict[str, Any], known: Any, num_classes: int | None, class_names: Sequence[str] | None
) -> ClassPrior:
    """Return the prior of the training data, from a command's parameters, or as known otherwise.

    `known` is a ClassPrior, or counts, that the file or run has.
    """
    import numpy as np

    from longtail._checks import InputError, class_words
    from longtail.predictions.labels import class_indices, read_labels, read_numbers
    from longtail.priors import ClassPrior

    counts, labelled, smoothing = given["counts"], given["train_labels"], given["smoothing"]
    if counts is not None and labelled is not None:
        raise Failure("give either --counts or --train-labels, not both.")
    source, numbers = "the file's counts", known
    if counts is not None:
        source, names = "--counts", class_names
        numbers = read_numbers(counts, option=source, num_classes=num_classes, class_names=names)
    elif labelled is not None:
        source = f"--train-labels {labelled}"
        labels = read_labels(Path(labelled), class_names)
        if num_classes is not None:
            labels = class_indices(labels, num_classes, class_names, name=source)
        try:
            numbers = np.bincount(np.asarray(labels, np.int64), minlength=num_classes or 0)
        except ValueError as error:
            raise Failure(
                f"{source}: labels that are names need the classes in the order of the model's "
                f"outputs, with --classes."
            ) from error
    elif known is None:
        raise Failure(
            f"the numbers of training examples per class are needed: pass --counts 900,90,10, "
            f"--counts FILE or --train-labels FILE{' or --prior FILE' * ('prior' in given)}."
        )
    elif isinstance(known, ClassPrior):
        if not smoothing or known.counts is None:
            return known
        numbers = known.counts
    empty = np.flatnonzero(np.asarray(numbers) == 0)
    if len(empty) and not smoothing:
        raise Failure(
            f"{source}: {class_words(empty, class_names)} have no examples, so log π is "
            f"infinite; pass --smoothing 1 to count one more example of every class."
        )
    try:
        return ClassPrior.from_counts(numbers, smoothing=smoothing)
    except InputError as error:
        raise Failure(f"{source}: {error}") from error


def read_target(text: str, width: int, class_names: Sequence[str] | None) -> ClassPrior:
    """Return the class frequencies that --target names."""
    from longtail.predictions.labels import read_numbers
    from longtail.priors import ClassPrior

    numbers = read_numbers(text, option="--target", num_classes=width, class_names=class_names)
    if not (numbers > 0).all():
        raise Failure("--target must be above zero for every class.")
    return ClassPrior.from_weights(numbers)
