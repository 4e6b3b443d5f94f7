"""Which columns of a table are scores, which is the label, and what the classes are called.

Shared by csv and parquet files; nothing here reads a file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise

from longtail import _checks
from longtail._checks import InputError
from longtail.predictions.base import (
    DECLARE,
    KINDS,
    Kind,
    NamedBy,
    at_least_two,
    declared,
    hinting,
)
from longtail.predictions.labels import called_label, check_class_names, is_number, prefixed

# Columns that are neither scores nor labels: row numbers, as pandas writes them, and answers.
_ASIDE = ("", "id", "index", "unnamed: 0", "__index_level_0__", "predicted", "prediction", "split")

# Numbers as examples hold them (not nan or 1_2, which may be names), and as classes are counted.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.I)
_COUNTED = re.compile(r"[+-]?\d+")

# What examples hold in place of a number that is missing, besides nan.
_MISSING = ("na", "n/a", "null", "none", "?")


@dataclass(frozen=True)
class Columns:
    """What the columns of a table mean.

    Attributes:
        header: all names, in order.
        scores: positions of the score columns.
        label: position of the label column, or None.
        kind: of the scores.
        class_names: one per score column.
        hint: as in `Predictions`.
        named_by: as there.
    """

    header: tuple[str, ...]
    scores: tuple[int, ...]
    label: int | None
    kind: Kind
    class_names: tuple[str, ...]
    hint: str
    named_by: NamedBy | None


def understand(
    header: Sequence[str],
    *,
    name: str,
    kind: Kind | None,
    label: str | None,
    elsewhere: bool = False,
    columns: str | None,
    class_names: Sequence[str] | None,
) -> Columns:
    """Find the columns.

    Args:
        header: names of all columns.
        name: of the file, for messages.
        kind: of the scores, if their names don't say.
        label: name of the label column; else one of the usual names, if it is there.
        elsewhere: whether the labels are not in this table. Columns of the usual names are then
            neither labels nor scores.
        columns: names or patterns of the score columns, separated by commas; else those called
            logit… or prob…, else all that are left.
        class_names: of the score columns, in order; else their own names.

    Returns:
        The columns.

    Examples:
        >>> found = understand(["id", "prob_a", "prob_b", "label"], name="x.csv", kind=None,
        ...                    label=None, columns=None, class_names=None)
        >>> found.scores, found.label, found.kind, found.class_names
        ((1, 2), 3, 'probs', ('a', 'b'))
    """
    header = tuple(text.strip() for text in header)
    twice = [text for k, text in enumerate(header) if text in header[:k]]
    if twice:
        raise InputError(f"{name}: the column {twice[0]!r} occurs twice; rename one of them.")
    where = None if elsewhere else label_column(header, label, name)
    if columns is None:
        chosen = _usual_scores(header, where, kind, name)
    else:
        chosen = _matching(header, where, columns, name)
    said = {prefixed(header[k])[0] for k in chosen}
    found = said.pop() if len(said) == 1 else None
    names = [prefixed(header[k])[1] if found is not None else header[k] for k in chosen]
    unsure = found is None and (columns is None or "*" in columns)
    hint = _taken_for_labels(header, where, chosen) if unsure else ""
    kind = declared(kind, found or None, name=name, named_by="columns")
    with hinting(hint):
        at_least_two(len(chosen), name=name)
        classes = check_class_names(class_names or names, len(chosen), name=name) or ()
    return Columns(
        header=header,
        scores=tuple(chosen),
        label=where,
        kind=kind,
        class_names=classes,
        hint=hint,
        named_by="columns" if found else None,
    )


def _taken_for_labels(header: Sequence[str], label: int | None, scores: Sequence[int]) -> str:
    """What to say of a column that has a usual name of labels, and may be the score of a class."""
    aside = [k for k, text in enumerate(header) if called_label(text) and k not in {label, *scores}]
    if not aside:
        return ""
    names = [header[k] for k in sorted([*aside[:1], *scores])]
    every = shlex.quote(",".join(names)) if len(names) <= 8 else "with the names of all that do"
    return (
        f"The column {header[aside[0]]!r} was taken for labels; if it holds the scores of a class, "
        f"pass --columns {every}."
    )


def example_in_header(
    header: Sequence[str], *, label: str | None, columns: str | None
) -> str | None:
    """The cell by which the first line of a csv file is an example, as in a file without a header.

    Args:
        header: the cells.
        label: name of the label column, if it was said.
        columns: names or patterns of the score columns, if they were said.

    Returns:
        The cell, or None where the cells may be names: whole numbers are, as classes are often
        counted (negative ones one by one), and others beside a name that no example has.

    Examples:
        >>> example_in_header(["0.98", "0.02", "0"], label=None, columns=None)
        '0.98'
        >>> example_in_header(["0", "1", "2"], label=None, columns=None)
        >>> example_in_header(["1", "0", "-1"], label=None, columns=None)
        >>> example_in_header(["0.0", "1.0", "label"], label=None, columns=None)
    """
    if columns is not None or any(_surely_a_name(text, label) for text in header):
        return None
    numbers = [text for text in header if _NUMBER.fullmatch(text)]
    ordered = all(map(_COUNTED.fullmatch, header)) and _in_order([int(text) for text in numbers])
    for k, text in enumerate(numbers):
        negative = text.startswith("-") and not ordered  # -1,0,1 are classes, and so are 1,0,-1
        if text in numbers[:k] or negative or not _COUNTED.fullmatch(text):
            return text
    return None


def word_above_numbers(header: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first line holds a word where the next ones hold numbers: it names a column.

    Args:
        header: the cells of the first line.
        rows: those of some lines below it.

    Returns:
        Whether there is such a word; `nan` and `NA` are none, as examples hold them, too.

    Examples:
        >>> word_above_numbers(["beta", "1.0", "2.0"], [["0.3", "0.1", "0.6"]])
        True
        >>> word_above_numbers(["0.3", "0.6", "beta"], [["0.2", "0.7", "beta"]])
        False
    """
    width = min(map(len, rows), default=0)
    return any(
        all(_NUMBER.fullmatch(row[k].strip()) for row in rows)
        for k, text in enumerate(header[:width])
        if not is_number(text) and text.lower() not in _MISSING
    )


def _in_order(numbers: Sequence[int]) -> bool:
    """Whether they count up or down by one, or are -1 and 1: 3,-2 is more likely an example."""
    steps = {b - a for a, b in pairwise(numbers)}
    return steps in ({1}, {-1}) or sorted(numbers) == [-1, 1]


def _surely_a_name(text: str, label: str | None) -> bool:
    """Whether a cell names a column, since no example would hold it."""
    if called_label(text) or text.lower() in _ASIDE or prefixed(text)[0] is not None:
        return True
    return text == label and not _NUMBER.fullmatch(text)


def other_scores(
    header: Sequence[str], *, scores: Sequence[str], label: str | None, classes: Sequence[str]
) -> tuple[str, ...]:
    """Columns with other scores of the same classes, which adjusted ones would contradict.

    Args:
        header: names of all columns.
        scores: those of the scores that are adjusted.
        label: that of the labels, if there is one.
        classes: names of the classes.

    Returns:
        Their names, in order.

    Examples:
        >>> other_scores(["logit_a", "logit_b", "prob_a", "prob_b", "prob_rain"],
        ...              scores=["logit_a", "logit_b"], label=None, classes=["a", "b"])
        ('prob_a', 'prob_b')
    """
    known = {*classes, *(prefixed(name)[1] for name in scores)}
    others = [(name, *prefixed(name)) for name in header if name not in {*scores, label}]
    # A score may be of anything, unless there is one for every class.
    unsure = {of_class for _, kind, of_class in others if kind == ""}
    kinds = {*KINDS, ""} if unsure >= set(classes) else set(KINDS)
    return tuple(
        name
        for name, kind, of_class in others
        if name in KINDS or (kind in kinds and of_class in known)
    )


def label_column(header: Sequence[str], label: str | None, name: str) -> int | None:
    """Position of the label column: the one named, or the only one of a usual name."""
    if label is not None:
        if label not in header:
            raise InputError(
                f"{name} has no column {label!r} for the labels; its columns are "
                f"{_checks.listing(header)}."
            )
        return header.index(label)
    known = [k for k, text in enumerate(header) if called_label(text)]
    if len(known) > 1:
        raise InputError(
            f"{name} has several columns of labels, {', '.join(header[k] for k in known)}; name "
            f"one with --labels."
        )
    return known[0] if known else None


def _usual_scores(
    header: Sequence[str], label: int | None, kind: Kind | None, name: str
) -> list[int]:
    free = [
        k
        for k, text in enumerate(header)
        if k != label and not called_label(text) and text.lower() not in _ASIDE
    ]
    by_kind = {
        said: [k for k in free if prefixed(header[k])[0] == said] for said in ("logits", "probs")
    }
    if all(by_kind.values()) and kind is None:
        raise InputError(
            f"{name} has columns of logits and of probabilities; choose with "
            f"{' or '.join(DECLARE.values())}."
        )
    named = by_kind[kind] if kind is not None else by_kind["logits"] or by_kind["probs"]
    chosen = named or free
    if not chosen:
        raise InputError(
            f"{name} has no columns of scores; its columns are {_checks.listing(header)}."
        )
    return chosen


def _matching(header: Sequence[str], label: int | None, columns: str, name: str) -> list[int]:
    chosen: list[int] = []
    for pattern in (part.strip() for part in columns.split(",")):
        # A wild card does not mean labels; who names such a column in full does.
        found = [
            k
            for k, text in enumerate(header)
            if k != label
            and fnmatchcase(text, pattern)
            and (text == pattern or not called_label(text))
        ]
        if not found:
            raise InputError(
                f"{name}: no column matches {pattern!r}; its columns are {_checks.listing(header)}."
            )
        chosen += [k for k in found if k not in chosen]
    return chosen
