"""Predictions saved by any framework: read, measured, adjusted, and written in the same format.

base       what saved predictions are, whatever the file
labels     labels, class names and counts, and the files that hold them
columns    which columns of a table are scores
arrays     .npy, .npz, run folders, arrays in memory
text       .csv
parquet    .parquet
passes     what one pass over the blocks can find: intervals of tau, the learnt prior
estimates  errors before and after, with confidence intervals
adjusting  the choice of tau and the honest result
result     what comes out, and writing it

    predictions = open_predictions("predictions.npz")
    result = adjust_predictions(predictions, ClassPrior.from_counts(counts))
    result.write("adjusted.npz")

Files larger than memory are read in blocks. How results look is in `report.adjusting`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from longtail import _checks
from longtail._checks import InputError
from longtail.predictions.adjusting import adjust_predictions as adjust_predictions
from longtail.predictions.arrays import array_names, from_npy, from_npz
from longtail.predictions.arrays import from_arrays as from_arrays
from longtail.predictions.base import Block as Block
from longtail.predictions.base import Kind as Kind
from longtail.predictions.base import Predictions as Predictions
from longtail.predictions.estimates import Change as Change
from longtail.predictions.estimates import Estimate as Estimate
from longtail.predictions.passes import tau_intervals as tau_intervals
from longtail.predictions.result import AdjustResult as AdjustResult

if TYPE_CHECKING:
    from longtail.runs import Run

__all__ = [
    "AdjustResult",
    "Block",
    "Change",
    "Estimate",
    "Predictions",
    "adjust_predictions",
    "from_arrays",
    "open_predictions",
    "tau_intervals",
]

# The splits whose logits `longtail evaluate` writes.
EVALUATED = ("test", "dev", "val", "held-out", "train")
FORMATS = (".npz", ".npy", ".csv", ".tsv", ".parquet", ".pq")


def open_predictions(
    path: str | Path,
    *,
    kind: Kind | None = None,
    labels: Any = None,
    columns: str | None = None,
    classes: Sequence[str] | None = None,
    split: str = "held-out",
) -> Predictions:
    """Open a file of saved predictions; nothing but its form is read yet.

    - ``.npz``: an array `logits` or `probs`, shape (examples, classes), and perhaps `target`
      (labels), `classes` (names), `counts` (training examples per class), `norms`, `bias`.
    - ``.npy``: the scores alone; labels from a second file.
    - ``.csv``, ``.tsv``: a header line, one column of scores per class, perhaps a label column.
    - ``.parquet``: the same, or one column `logits` or `probs` of lists.
    - a run folder: the logits of one of its splits.

    Args:
        path: the file.
        kind: "logits" or "probs", where the names of arrays or columns don't say.
        labels: the name of an array or column in the file, or another file (.npy, text, csv), or
            labels themselves, as numbers or class names. By default an array or column called
            target, label, labels or y_true, if there is one. The first line of a csv file of
            labels may be the name of the column; a number there is a label.
        columns: of csv and parquet: names of the score columns, with wild cards, separated by
            commas; by default those called logit… or prob…, else all but labels and row numbers.
        classes: names of the classes in the order of the scores' columns.
        split: which split of a run folder.

    Returns:
        The Predictions.

    Examples:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = Path(folder.name) / "predictions.csv"
        >>> _ = path.write_text("logit_cat,logit_dog,label\\n2,1,cat\\n0.5,1.5,dog\\n")
        >>> found = open_predictions(path)
        >>> found.kind, found.class_names, found.labelled
        ('logits', ('cat', 'dog'), True)
        >>> folder.cleanup()
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"there is no file or run folder {path}.")
    if path.is_dir():
        return _from_run(path, split, kind)
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        way_out = "save predictions with numpy.savez(file, logits=..., target=...), for example"
        if Path(path.stem).suffix.lower() in FORMATS:
            way_out = f"unpack it to {path.stem} first"
        raise InputError(f"{path} is none of {', '.join(FORMATS)} or a run folder; {way_out}.")
    inside, target = _find_labels(path, suffix, labels)
    if suffix == ".npz":
        return from_npz(path, kind=kind, labels=inside, target=target, class_names=classes)
    if suffix == ".npy":
        return from_npy(path, kind=kind, target=target, class_names=classes)
    if suffix in (".csv", ".tsv"):
        from longtail.predictions.text import from_csv as reader
    else:
        from longtail.predictions.parquet import from_parquet as reader  # type: ignore[assignment]
    return reader(
        path, kind=kind, label=inside, target=target, columns=columns, class_names=classes
    )


def _find_labels(path: Path, suffix: str, labels: Any) -> tuple[str | None, Any]:
    """The name of labels inside the file, or labels from elsewhere; (None, None) if not said."""
    if labels is None or not isinstance(labels, str | Path):
        return None, labels
    inside = _names_in(path, suffix)
    if str(labels) in inside:
        return str(labels), None
    if Path(labels).is_file():
        return None, Path(labels)  # read where the classes are known
    there = f"{path} has no array or column of that name (it has {_checks.listing(inside)}), and "
    raise InputError(f"--labels {labels}: {there if inside else ''}there is no file {labels}.")


def _names_in(path: Path, suffix: str) -> list[str]:
    if suffix == ".npz":
        return array_names(path)
    if suffix in (".csv", ".tsv"):
        from longtail.predictions.text import read_header

        return read_header(path)[0]
    if suffix in (".parquet", ".pq"):
        from longtail.predictions.parquet import column_names

        return column_names(path)
    return []


def _no_split(run: Run, split: str) -> str:
    """What to do where a run lacks a split: only commands that this run can follow."""
    held_out = run.spec.dataset.held_out
    if split == "held-out" and not held_out:
        text = f"{run.folder} has no held-out part: it was trained without --held-out 0.2"
    else:
        text = f"{run.folder} has no logits of the split {split!r}"
    # The test set last: what is chosen on it has none left. The training images not at all.
    there = sorted(set(run.splits) - {"train"}, key=lambda name: (name == "test", name))
    ways = [f"choose one that is there with --split ({', '.join(there)})"] if there else []
    wanted = split
    if split == "held-out" and not (run.members and held_out):
        # Training alone writes these. A subset of a larger set leaves images out: those are dev.
        wanted = "dev" if run.spec.dataset.profile is not None else ""
    if wanted in EVALUATED and wanted not in run.splits and (run.has_model or run.members):
        make = "run" if wanted == split else f"make one for --split {wanted} by"
        ways.append(f"{make}: {run.evaluation(wanted)}")
    none = f"it has none {'but of the images that it was trained on' if run.splits else 'at all'}"
    return f"{text}; {', or '.join(ways) or none}"


def _from_run(path: Path, split: str, kind: Kind | None) -> Predictions:
    from longtail.runs import Run

    run = Run.open(path)
    if split not in run.splits:
        raise InputError(_no_split(run, split))
    if kind == "probs":
        raise InputError(f"{path} is a run folder, which holds logits; leave --probs out.")
    logits, target, _ = run.logits(split)
    head, names = run.head, run.class_names
    return from_arrays(
        logits,
        # A run has positions, which as labels would be names where classes are called 1, 2, ...
        target if names is None else np.asarray(names)[target],
        kind="logits",
        class_names=names,
        name=str(path),
        prior=run.prior,
        norms=None if head is None else head.norms,
        bias=None if head is None else head.bias,
    )
