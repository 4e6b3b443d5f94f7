"""Options that `adjust`, `tune` and `bake` share, and the priors and files that they name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli import _console
from longtail.cli._console import option

if TYPE_CHECKING:
    from longtail.predictions import Predictions
    from longtail.priors import ClassPrior
    from longtail.runs import Run


class Method(StrEnum):
    """The post-hoc methods, as the command line spells them."""

    logit_adjustment = "logit-adjustment"
    weight_normalization = "weight-normalization"


FileArgument = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="An .npz, .npy, .csv or .parquet file, or a run folder."),
]
LabelsOption = Annotated[str | None, option("NAME|FILE", "Labels: a name in FILE, or a file.")]
CountsOption = Annotated[
    str | None,
    option("N,N,...|FILE", "Training examples per class, in the order of the score columns."),
]
TrainLabelsOption = Annotated[Path | None, option("FILE", "Or the training labels, to be counted.")]
SmoothingOption = Annotated[float, option("X", "Added to every count.", min=0)]
SplitOption = Annotated[str | None, option("NAME", "Split of a run folder (default: held-out).")]
BoundsOption = Annotated[tuple[float, float], option("LOW HIGH", "Where to search for tau.")]
LogitsOption = Annotated[bool, option(None, "Scores are logits, if FILE doesn't say.", "--logits")]
ProbsOption = Annotated[bool, option(None, "They are probabilities, if it doesn't say.", "--probs")]
ScoresOption = Annotated[str | None, option("NAMES", "Array or columns, such as 'score_*'.")]
ClassesOption = Annotated[
    str | None, option("A,B,...|FILE", "Class names, in the order of the scores.")
]
SeedOption = Annotated[int, option("N", "Of splits and resampling.", min=0)]


def read_file(
    file: Path,
    *,
    counts: str | None,
    train_labels: Path | None,
    smoothing: float,
    labels: str | None,
    logits: bool,
    probs: bool,
    scores: str | None,
    classes: str | None,
    split: str | None,
    effective: bool = False,
) -> tuple[Predictions, ClassPrior | None]:
    """Open the predictions that the options name, with the prior of the training data.

    There may be no prior if the `effective` one is to be found.
    """
    from longtail.predictions import open_predictions
    from longtail.predictions.labels import read_class_names

    if logits and probs:
        raise typer.BadParameter("the scores are either --logits or --probs, not both")
    if split is not None and file.is_file():
        raise typer.BadParameter(f"--split is for run folders, and {file} is a file")
    found = open_predictions(
        file,
        kind="logits" if logits else "probs" if probs else None,
        labels=labels,
        scores=scores,
        classes=None if classes is None else read_class_names(classes),
        split=split or "held-out",
    )
    known = found.prior if found.counts is None else found.counts
    if effective and counts is None and train_labels is None and known is None:
        return found, None
    return found, read_prior(
        counts,
        train_labels,
        known=known,
        smoothing=smoothing,
        num_classes=found.num_classes,
        class_names=found.class_names,
    )


def read_prior(
    counts: str | None,
    train_labels: Path | None,
    *,
    known: Any,
    smoothing: float,
    num_classes: int | None,
    class_names: Sequence[str] | None,
    otherwise: str = "",
) -> ClassPrior:
    """Return the prior of the training data, from an option or as the file has it.

    Args:
        counts: the option --counts.
        train_labels: the option --train-labels.
        known: ClassPrior or counts that the file has, or None.
        smoothing: added to every count.
        num_classes: how many there must be, where that is known.
        class_names: in the order of the scores, where they have names.
        otherwise: a further option that would do, for the message.
    """
    import numpy as np

    from longtail._checks import InputError, class_words
    from longtail.predictions.labels import LabelEncoder, read_labels, read_numbers
    from longtail.priors import ClassPrior

    if counts is not None and train_labels is not None:
        raise InputError("give either --counts or --train-labels, not both.")
    source, numbers = "the file's counts", known
    if counts is not None:
        source = "--counts"
        names: Any = {"num_classes": num_classes, "class_names": class_names}
        numbers = read_numbers(counts, option=source, **names)
    elif train_labels is not None:
        source = f"--train-labels {train_labels}"
        labels = read_labels(train_labels, class_names)
        if num_classes is not None:
            labels = LabelEncoder(num_classes, class_names, name=source)(labels)
        try:
            numbers = np.bincount(np.asarray(labels, np.int64), minlength=num_classes or 0)
        except ValueError as error:
            raise InputError(
                f"{source}: labels that are names need the classes in the order of the model's "
                f"outputs, with --classes."
            ) from error
    elif isinstance(known, ClassPrior):
        if not smoothing or known.counts is None:
            return known
        numbers = known.counts
    elif known is None:
        raise InputError(
            f"the numbers of training examples per class are needed: pass --counts 900,90,10, "
            f"--counts FILE or --train-labels FILE{otherwise}."
        )
    empty = np.flatnonzero(np.asarray(numbers) == 0)
    if len(empty) and not smoothing:
        raise InputError(
            f"{source}: {class_words(empty, class_names)} have no examples, so log π is "
            f"infinite; pass --smoothing 1 to count one more example of every class."
        )
    try:
        return ClassPrior.from_counts(numbers, smoothing=smoothing)
    except InputError as error:
        raise InputError(f"{source}: {error}") from error


def read_target(text: str, width: int, class_names: Sequence[str] | None) -> ClassPrior:
    """Return the class frequencies that --target names."""
    from longtail._checks import InputError
    from longtail.predictions.labels import read_numbers
    from longtail.priors import ClassPrior

    numbers = read_numbers(text, option="--target", num_classes=width, class_names=class_names)
    if not (numbers > 0).all():
        raise InputError("--target must be above zero for every class.")
    return ClassPrior.from_weights(numbers)


# --- warnings about runs ----------------------------------------------------------------------


def warn_of_run(
    file: Path,
    split: str | None,
    prior: ClassPrior | None,
    *,
    tau: float | None,
    elsewhere: str | None = None,
) -> None:
    """Warn where a run's logits are no honest ground for a choice, or are adjusted already.

    Args:
        file: the run folder; its files were verified when they were read.
        split: of the logits.
        prior: to adjust by; None if what the training left doesn't matter.
        tau: that is asked for; None if it is chosen on the logits.
        elsewhere: as in `warn_if_adjusted`.
    """
    from longtail.runs import Run

    if prior is not None:
        warn_if_adjusted(Run.open(file, verify=False), prior, tau=tau, elsewhere=elsewhere)
    if split == "train":
        _console.warning_line(
            "these logits are of the images that the run was trained on: neither a tau that is "
            "chosen on them nor an error that is measured on them holds for others. Take the "
            "held-out part of a run that was trained with --held-out 0.2, or --split dev."
        )
    if split == "test" and tau is None:
        _console.warning_line(
            "tau was chosen on the test set: it is an oracle's, and its errors there are no "
            "estimate for new data; choose it on another split."
        )


def warn_if_adjusted(
    run: Run, prior: ClassPrior, *, tau: float | None, elsewhere: str | None = None
) -> bool:
    """Say so if a run's training leaves much less to correct than is asked for.

    Not an error: of a student that learnt from adjusted teachers, say, a small tau chosen on
    held-out data may still help.

    Args:
        run: what the logits or weights are of.
        prior: that they are adjusted by; a uniform one takes nothing off.
        tau: that is asked for. None for one that held-out data choose, which may be as small as
            what is left: then it is said only where next to no tau is right.
        elsewhere: the options that name another target than the balanced error, if any do.

    Returns:
        True if it was said.
    """
    from longtail.posthoc import LEAST_AGAIN, leaves_little, tau_left

    asked = LEAST_AGAIN if tau is None else tau
    if asked < LEAST_AGAIN or 1 in (run.prior.imbalance_ratio, prior.imbalance_ratio):
        return False
    for name, method in _trained_with(run):
        residual = method.residual_adjustment(run.prior)
        if not leaves_little(residual, run.prior, tau=asked):
            continue
        left = tau_left(residual, run.prior)
        does = "already aims at the balanced error: adjusting its logits"
        instead = "use them as they are, or at most with a small tau that held-out data ask for"
        if left >= 0.1:
            does = f"leaves about tau = {left:.1f} to correct: more than that"
            instead = f"take tau = {left:.1f}, or what held-out data ask for"
        if elsewhere is not None:
            instead = (
                f"what training has balanced is adjusted to another target from equal counts: "
                f"pass --counts 1,1,... with the same {elsewhere}"
            )
        _console.warning_line(
            f"{run.folder} was trained with {name}, which {does} favours the rare classes twice; "
            f"{instead}."
        )
        return True
    return False


def trained_plainly(run: Run) -> bool:
    """Return whether nothing in a run's training favoured rare classes, as its record tells."""
    if run.teachers:  # whose answers may be balanced
        return False
    plain = [method.is_plain for _, method in _trained_with(run)]
    return bool(plain) and all(plain)


def _trained_with(run: Run) -> Iterator[tuple[str, Any]]:
    """Yield the method of a run, or those of an ensemble's members, as far as they are known."""
    from longtail._checks import InputError
    from longtail.runs import Run
    from longtail.train.methods import Method as Trained

    folders = [run.folder.parent.parent / name for name in run.members] or [run.folder]
    for folder in folders:
        with suppress(InputError):  # a member that is not there, or somebody else's method
            part = Run.open(folder, verify=False).spec.method
            yield part.name, Trained.of(part)
