"""What saved predictions are, whatever file they are in: blocks of scores, perhaps with labels.

Readers and writers of the formats subclass `Predictions` in `arrays` (npy, npz, memory), `text`
(csv) and `parquet`. What is done with the blocks is in `passes` and `adjusting`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import InputError, IntArray
from longtail.priors import ClassPrior

Kind = Literal["logits", "probs"]
KINDS = ("logits", "probs")

# How each kind is declared, in a message: on the command line and in Python.
DECLARE = {"logits": "--logits (kind='logits')", "probs": "--probs (kind='probs')"}

# What in a file may say the kind by its name, and how it is then saved as the one or the other.
NamedBy = Literal["array", "columns", "lists"]
_SAVE = {
    "array": {"logits": "save them as `logits=`", "probs": "save them as `probs=`"},
    "columns": {
        "logits": "save them in columns `logit_NAME`",
        "probs": "save them in columns `prob_NAME`",
    },
    "lists": {"logits": "save them in a column `logits`", "probs": "save them in a column `probs`"},
}

# What an adjusted file calls the tau that was applied, so that it is not adjusted again.
ADJUSTED = "adjusted_tau"


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive rows of a file.

    Attributes:
        first_row: index of the first one.
        scores: logits or probabilities, shape (rows, num_classes); a view of a memory map, or
            an array of this block's own.
        target: class indices, shape (rows,), or None without labels.
        rest: whatever else the file has in these rows, for its own writer.
    """

    first_row: int
    scores: NDArray[Any]
    target: IntArray | None
    rest: Any = None


class Writer(Protocol):
    """Takes the blocks of a file in order, adjusted, and writes them in the same format."""

    def write(self, block: Block, scores: NDArray[Any], predicted: IntArray) -> None:
        """Add one block: its adjusted scores and the predicted class indices."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Predictions:
    """Saved predictions of one model: read them with `open_predictions`.

    Attributes:
        name: of the file, for messages.
        kind: "logits" or "probs"; it is always said, never guessed.
        num_classes: L, columns of scores.
        class_names: one per column, or None where classes are numbers.
        labelled: whether the true labels are known.
        num_rows: examples, or None where only reading tells (csv).
        prior: of the training data, where the source knows it.
        counts: training examples per class, where the file has them.
        norms: of the last layer's weights, where the file has them.
        bias: of the last layer, where the file has it.
        notes: what a user should know about how the file was read.
        left_out: what `writer` does not copy.
        hint: what to try where a class seems to be missing, a sentence, if there is something.
        named_by: what says the kind by its name, where the file itself does.
    """

    name: str
    kind: Kind
    num_classes: int
    class_names: tuple[str, ...] | None = None
    labelled: bool = False
    num_rows: int | None = None
    prior: ClassPrior | None = None
    counts: NDArray[Any] | None = None
    norms: NDArray[Any] | None = None
    bias: NDArray[Any] | None = None
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    hint: str = ""
    named_by: NamedBy | None = None

    def __post_init__(self) -> None:
        at_least_two(self.num_classes, name=self.name)

    def blocks(self, elements: int, *, rest: bool = False) -> Iterator[Block]:
        """The rows in order, about `elements` scores at a time.

        Args:
            elements: scores per block, at least one row.
            rest: whether to keep what `writer` needs besides the scores.
        """
        raise NotImplementedError

    def writer(self, path: Path, *, tau: float) -> AbstractContextManager[Writer]:
        """Writes adjusted blocks to `path`; on failure nothing is left there."""
        raise NotImplementedError

    def outputs(self, path: Path) -> tuple[Path, ...]:
        """The files that `writer` makes."""
        return (path,)

    @property
    def mapped(self) -> NDArray[Any] | None:
        """All scores as one array or memory map, or None where they are read in pieces."""
        return None

    def how_to_say(self, kind: Kind) -> str:
        """For messages: what to do if the scores are of this kind."""
        if self.named_by is None:
            return f"declare them with {DECLARE[kind]}"
        return _SAVE[self.named_by][kind]

    def label(self, index: int) -> str:
        """A class as people read it."""
        return str(index) if self.class_names is None else self.class_names[index]

    def labels(self, indices: IntArray) -> NDArray[Any]:
        """Class indices in the form that the file's labels have: names, or numbers."""
        if self.class_names is None:
            return indices
        return np.asarray(self.class_names)[indices]

    def rows_per_block(self, elements: int) -> int:
        """How many rows make a block of about `elements` scores."""
        return max(1, elements // self.num_classes)


def at_least_two(num_classes: int, *, name: str) -> None:
    """Refuse scores of a single class."""
    if num_classes < 2:
        raise InputError(
            f"{name}: scores of one class leave nothing to decide; there must be one column per "
            f"class, at least two (give both columns of a binary score)."
        )


@contextmanager
def hinting(hint: str) -> Iterator[None]:
    """Add a hint, if there is one, to what is said of input that is refused in the block."""
    try:
        yield
    except InputError as error:
        if not hint:
            raise
        raise InputError(f"{error} {hint}") from error


def adjusted_already(name: str, *, seen: str) -> InputError:
    """What to say of a file that was adjusted, as is `seen` by its tau or otherwise."""
    return InputError(
        f"{name} was adjusted already{seen}; adjusting twice favours rare classes beyond reason: "
        f"give the file it was made from."
    )


def declared(kind: Any, found: Any, *, name: str, named_by: NamedBy = "array") -> Kind:
    """The kind that was said: by the caller, or by what the file calls its scores."""
    if kind is None and found is None:
        raise InputError(
            f"{name} doesn't say whether its scores are logits or probabilities; say it with "
            f"{' or '.join(DECLARE.values())}."
        )
    _checks.choice(kind or found, KINDS, "open_predictions", name="kind")
    if kind is not None and found is not None and kind != found:
        raise InputError(
            f"{name} calls its scores {found}, but {kind} was asked for; use {DECLARE[found]}, or "
            f"if they are {kind} all the same, {_SAVE[named_by][kind]}."
        )
    return "logits" if (kind or found) == "logits" else "probs"
