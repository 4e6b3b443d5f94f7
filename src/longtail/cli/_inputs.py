"""What `adjust`, `tune` and `bake` have in common: options, and what they name.

Files are read in `longtail.predictions`; here are only the options, spelt the same in every
command, the priors that they give, and what is refused or warned of in the options' own words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli import _console

if TYPE_CHECKING:
    from longtail._checks import FloatArray
    from longtail.predictions import Kind, Predictions
    from longtail.priors import ClassPrior
    from longtail.runs import Run
    from longtail.runs.spec import Part


class Method(StrEnum):
    """The post-hoc methods, as the command line spells them."""

    logit_adjustment = "logit-adjustment"
    weight_normalization = "weight-normalization"


def finite(value: float | None) -> float | None:
    """Refuse NaN and infinity, which the parser takes for numbers."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"must be a finite number; got {value:g}")
    return value


def _rising(value: tuple[float, float]) -> tuple[float, float]:
    low, high = (finite(end) or 0.0 for end in value)
    if low >= high:
        raise typer.BadParameter(f"must be a lower and a higher tau; got {low:g} and {high:g}")
    return low, high


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
        help="Training examples per class, in the order of the score columns, or a file of them "
        "(text, .npy, .csv, .json).",
    ),
]
TrainLabelsOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Or the training labels themselves (.npy, text, csv)."),
]
SmoothingOption = Annotated[
    float,
    typer.Option(
        metavar="X",
        min=0,
        callback=finite,
        help="Added to every count; needed if a class has no examples.",
    ),
]
SplitOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Which split of a run folder (default: held-out)."),
]
BoundsOption = Annotated[
    tuple[float, float],
    typer.Option(metavar="LOW HIGH", callback=_rising, help="Where to search for tau."),
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
    split: str | None,
) -> Predictions:
    """The predictions that the options name."""
    from longtail.predictions import open_predictions
    from longtail.predictions.labels import read_class_names

    if logits and probs:
        raise typer.BadParameter("the scores are either --logits or --probs, not both")
    if split is not None and file.is_file():
        raise typer.BadParameter(f"--split is for run folders, and {file} is a file")
    kind: Kind | None = "logits" if logits else "probs" if probs else None
    return open_predictions(
        file,
        kind=kind,
        labels=labels,
        columns=columns,
        classes=None if classes is None else read_class_names(classes),
        split=split or "held-out",
    )


def warn_of_training_images(file: Path, split: str | None) -> None:
    """Say so where a run's logits are those that distillation learns from, of its own images."""
    if file.is_dir() and split == "train":
        _console.warning_line(
            "these logits are of the images that the run was trained on: neither a tau that is "
            "chosen on them nor an error that is measured on them holds for others. Take the "
            "held-out part of a run that was trained with --held-out 0.2, or --split dev."
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
    from longtail.predictions.arrays import ArrayPredictions
    from longtail.predictions.base import hinting
    from longtail.predictions.labels import LabelEncoder, one_number_each, read_numbers

    if counts is not None and train_labels is not None:
        raise InputError("give either --counts or --train-labels, not both.")
    width, names = found.num_classes, found.class_names
    numbers: Any
    if train_labels is not None:
        source = "--train-labels"
        encode = LabelEncoder(width, names, name=f"{source} {train_labels}")
        with hinting(found.hint):
            numbers = np.bincount(encode(train_labels), minlength=width)
    elif counts is not None:
        source = "--counts"
        with hinting(found.hint):
            numbers = read_numbers(counts, option=source, num_classes=width, class_names=names)
    elif found.counts is not None:
        source, numbers = f"`counts` in {found.name}", found.counts
        with hinting(found.hint):
            one_number_each(numbers, width, source=source)
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
    columns = names is not None and not isinstance(found, ArrayPredictions)
    return prior_of_counts(
        numbers,
        source=source,
        smoothing=smoothing,
        label=found.label,
        no_class="; if a column is no class, choose the others with --columns" if columns else "",
    )


def prior_of_counts(
    counts: Any,
    *,
    source: str,
    smoothing: float,
    label: Callable[[int], str] = str,
    fractions: str = "give counts, say the shares times the number of training examples",
    no_class: str = "",
) -> ClassPrior:
    """The prior of counts, one per class, whose faults are told by the classes' `label`.

    Args:
        counts: what the user gave.
        source: the option that it came from, for messages.
        smoothing: added to every count.
        label: a class as people read it.
        fractions: what to do with numbers that are not whole.
        no_class: what else to do about a class without examples.

    Returns:
        The prior.
    """
    import numpy as np

    from longtail import _checks
    from longtail._checks import InputError
    from longtail.priors import ClassPrior

    counts = _no_less_than_zero(counts, source, label)
    part = np.flatnonzero(counts != np.floor(counts))
    if len(part):
        raise InputError(
            f"{source} must be whole numbers of training examples, but class "
            f"{label(int(part[0]))} has {counts[part[0]]:g}; {fractions}."
        )
    if not smoothing and np.any(counts == 0):
        never = _checks.listing(label(int(k)) for k in np.flatnonzero(counts == 0))
        raise InputError(
            f"{source}: class(es) {never} have no training examples, so log π is infinite; pass "
            f"--smoothing 1 to count one more example of every class{no_class}."
        )
    return ClassPrior.from_counts(counts, smoothing=smoothing)


def label_of(class_names: Sequence[str] | None) -> Callable[[int], str]:
    """How a class is called in messages: by its name, or without names by its number."""
    return str if class_names is None else class_names.__getitem__


def above_zero(numbers: Any, source: str, class_names: Sequence[str] | None) -> Any:
    """One finite number above zero per class, or a complaint that names option and class."""
    import numpy as np

    from longtail._checks import InputError

    label = label_of(class_names)
    numbers = _no_less_than_zero(numbers, source, label)
    if np.any(numbers == 0):
        raise InputError(
            f"{source} must be above zero for every class, but class "
            f"{label(int(np.flatnonzero(numbers == 0)[0]))} has 0; give it a number that is small "
            f"beside the others."
        )
    return numbers


def _no_less_than_zero(numbers: Any, source: str, label: Callable[[int], str]) -> Any:
    import numpy as np

    from longtail._checks import InputError

    numbers = np.asarray(numbers)
    if numbers.ndim != 1:
        raise InputError(f"{source} must be one number per class; its shape is {numbers.shape}.")
    bad = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0)))
    if len(bad):
        raise InputError(
            f"{source} must be finite and must not be negative, but class {label(int(bad[0]))} "
            f"has {numbers[bad[0]]:g}."
        )
    if not np.any(numbers > 0):
        raise InputError(f"{source}: the numbers are all zero; at least one class needs more.")
    return numbers


def read_target(text: str, width: int, class_names: Sequence[str] | None) -> ClassPrior | None:
    """The class frequencies that --target names; None for all alike."""
    if text == "balanced":
        return None
    from longtail.predictions.labels import read_numbers
    from longtail.priors import ClassPrior

    numbers = read_numbers(text, option="--target", num_classes=width, class_names=class_names)
    return ClassPrior.from_weights(above_zero(numbers, "--target", class_names))


def refuse_nothing_to_tune(prior: ClassPrior, target: ClassPrior | None = None) -> None:
    """Refuse to choose a tau where none changes any prediction."""
    import numpy as np

    from longtail._checks import InputError
    from longtail.posthoc import adjustment

    if np.ptp(adjustment(prior, target_prior=target)) > 0:
        return
    if target is not None:
        raise InputError(
            "--target has the class frequencies of the training data, so no tau changes any "
            "prediction; leave the predictions as they are."
        )
    raise InputError(
        "the prior is uniform, every class having as many training examples, so no tau changes "
        "any prediction; if these are counts of held-out data, give those of the training data "
        "with --counts or --train-labels."
    )


def opened_run(file: Path) -> Run | None:
    """The run, if the argument is a run folder; its files were verified when they were read."""
    if not file.is_dir():
        return None
    from longtail.runs import Run

    return Run.open(file, verify=False)


def warn_if_adjusted(
    run: Run | None, prior: ClassPrior, *, tau: float | None, elsewhere: str | None = None
) -> bool:
    """Say so if a run's training leaves much less to correct than is asked for.

    Not an error: of a student that learnt from adjusted teachers, say, a small tau chosen on
    held-out data may still help.

    Args:
        run: what the logits or weights are of, if it is a run.
        prior: that they are adjusted by; a uniform one takes nothing off.
        tau: that is asked for. None for one that held-out data choose, which may be as small as
            what is left: then it is said only where next to no tau is right.
        elsewhere: the options that name another target than the balanced error, if any do.

    Returns:
        Whether it was said.
    """
    if run is None or 1 in (run.prior.imbalance_ratio, prior.imbalance_ratio):
        return False
    from longtail.posthoc import LEAST_AGAIN, in_words, leaves_little, tau_left

    from_equal = ""
    if elsewhere is not None:
        ones = ",".join(["1"] * min(prior.num_classes, 3))
        dots = ",..." if prior.num_classes > 3 else ""
        from_equal = (
            f"what training has balanced is adjusted to another target from equal counts: pass "
            f"--counts {ones}{dots} with the same {elsewhere}"
        )
    for method in dict.fromkeys(_trained_with(run)):
        residual = _residual(method, run.prior)
        asked = LEAST_AGAIN if tau is None else tau
        if residual is not None and leaves_little(residual, run.prior, tau=asked):
            does, again, instead = in_words(tau_left(residual, run.prior))
            _console.warning_line(
                f"{run.folder} was trained with {method.name}, which {does}: {again}; "
                f"{from_equal or instead}."
            )
            return True
    return False


def trained_plainly(run: Run) -> bool:
    """Whether nothing in a run's training favoured rare classes, as far as its record tells."""
    from longtail._checks import InputError
    from longtail.train.methods import Method as Trained

    if run.teachers:  # whose answers may be balanced
        return False
    with suppress(InputError):  # a method of somebody else's, of which nothing is known
        return Trained.of(run.spec.method).is_plain
    return False


def _trained_with(run: Run) -> Iterator[Part]:
    """The method of a run, or those of an ensemble's members as far as they are there."""
    from longtail._checks import InputError
    from longtail.runs import Run

    if not run.members:
        yield run.spec.method
    for name in run.members:
        with suppress(InputError):
            yield Run.open(run.folder.parent.parent / name, verify=False).spec.method


def _residual(method: Part, prior: ClassPrior) -> FloatArray | None:
    from longtail._checks import InputError
    from longtail.train.methods import Method as Trained

    with suppress(InputError):  # a method of somebody else's, of which nothing is known
        return Trained.of(method).residual_adjustment(prior)
    return None
