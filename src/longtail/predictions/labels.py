"""Labels, class names and numbers per class, from arrays and from small files.

A label is the name of a class; where no class has a number for its name, it may also be a
class's position 0, 1, … among the columns of the scores.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import FloatArray, InputError, IntArray

LABEL_NAMES = ("target", "label")
"""Names of an array or column of labels where `labels` names no other."""

SEPARATORS = {".csv": ",", ".tsv": "\t"}


@contextmanager
def readable(path: str | Path) -> Iterator[None]:
    """Turn what a reader raises about a damaged or foreign file into one line."""
    if not os.path.isfile(path):  # a pipe would be waited for
        raise InputError(f"{path}: there is no such file.")
    try:
        yield
    except (InputError, ImportError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        if "allow_pickle" in reason:
            reason = "it holds Python objects; save names as text, with names.astype(str)"
        raise InputError(f"{path} can't be read: {reason}.") from error


def as_number(text: str) -> float | None:
    """Return the number that a text holds, or None; a whole one, such as ``3.0``, as an int."""
    try:
        number = float(text)
    except ValueError:
        return None
    return int(number) if number.is_integer() else number


def class_indices(
    labels: Any,
    num_classes: int,
    class_names: Sequence[str] | None,
    *,
    name: str,
    first_row: int = 0,
) -> IntArray:
    """Return labels as class indices, and refuse those that the model does not know.

    Args:
        labels: shape (examples,) or (examples, 1).
        num_classes: L.
        class_names: one per class; None if labels are positions.
        name: of what holds the labels, for messages.
        first_row: of a block of rows, for messages.

    Examples:
        >>> class_indices(["dog", "cat", "0"], 2, ("cat", "dog"), name="x.csv")
        array([1, 0, 0])
    """
    array = _checks.as_numpy(labels)
    if array.ndim != 1 and array.shape[1:] != (1,):
        raise InputError(
            f"{name}: labels must have the shape (examples,), one label each; their shape is "
            f"{array.shape} (of one-hot labels save argmax(axis=1))."
        )
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8", "replace")
    if array.dtype.kind not in "iufUb":
        raise InputError(
            f"{name}: labels must be whole numbers or names; their dtype is {array.dtype} "
            f"(names.astype(str) makes them text)."
        )
    index = _index(num_classes, None if class_names is None else tuple(class_names))

    def code(text: str) -> int:
        number = as_number(text)
        return index.get(text, -1 if number is None else index.get(str(number), -1))

    found, inverse = np.unique(array.reshape(-1), return_inverse=True)
    texts = [str(label).strip() for label in found]
    codes = [code(text) for text in texts]
    result: IntArray = np.array(codes, dtype=np.int64)[inverse]
    if -1 in codes:
        row = int(np.argmin(result))
        known = f"0 to {num_classes - 1}; name the classes with `classes=`"
        if class_names is not None:
            known = _checks.listing(class_names, most=8)
        raise InputError(
            f"{name}: row {first_row + row} has the label {texts[inverse[row]]!r}, which is none "
            f"of the classes {known}."
        )
    return result


@lru_cache(maxsize=1)  # asked for every block of a file, and long for a million classes
def _index(num_classes: int, class_names: tuple[str, ...] | None) -> dict[str, int]:
    """Return classes by their names, and unless names are numbers by position."""
    index = {label: k for k, label in enumerate(class_names or ())}
    if all(as_number(label) is None for label in index):
        index |= {str(k): k for k in range(num_classes)}
    return index


def read_class_names(text: str) -> list[str]:
    """Return the names in ``a,b,c``, or in a file with one per line."""
    if os.path.isfile(text):
        return [row[0] for row in _rows(Path(text))]
    return [part.strip() for part in text.split(",")]


def read_labels(path: Path, class_names: Sequence[str] | None = None) -> NDArray[Any]:
    """Return the labels in a file: .npy, text with one per line, or a csv or tsv file.

    A csv file has one column, or one called ``label`` or ``target``. The first line of one column
    is its name if it is neither a number nor a known class.
    """
    if path.suffix.lower() == ".npy":
        return load_npy(path)
    header, *rows = _rows(path)
    named = [k for k, text in enumerate(header) if text in LABEL_NAMES]
    if len(header) > 1 and len(named) != 1:
        raise InputError(
            f"{path}: a csv file of labels must have one column, or one called label or target; "
            f"its columns are {_checks.listing(header)}."
        )
    if not named and (as_number(header[0]) is not None or header[0] in (class_names or header)):
        rows = [header, *rows]
    with readable(path):
        return np.array([row[named[0] if named else 0] for row in rows], dtype=str)


def read_numbers(
    text: str, *, option: str, num_classes: int | None, class_names: Sequence[str] | None
) -> FloatArray | IntArray:
    """Return one number per class, from ``900,90,10`` or a file, by position or by class.

    Args:
        text: numbers, or the name of a text, .npy, .json or .csv file: one column of numbers, or
            two of classes and numbers (in .json an object).
        option: where the text came from, for messages.
        num_classes: how many there must be; None for as many as there are names, or numbers.
        class_names: names that the file may use.

    Returns:
        Shape (num_classes,), integers if all are whole.
    """
    path, labels = Path(text), []
    if os.path.isfile(text):
        suffix = path.suffix.lower()
        with readable(path):
            if suffix == ".npy":
                rows: Any = load_npy(path).reshape(-1, 1).tolist()
            elif suffix == ".json":
                found = json.loads(path.read_bytes(), object_pairs_hook=tuple)
                rows = found if isinstance(found, tuple) else np.reshape(found, (-1, 1)).tolist()
            elif suffix in SEPARATORS:
                rows = _rows(path)
                if as_number(rows[0][-1]) is None:
                    rows = rows[1:]  # names of the columns
            else:
                rows = [
                    [word] for (line,) in _rows(path) for word in line.replace(",", " ").split()
                ]
            widths = {len(row) for row in rows}
            if widths not in ({1}, {2}):
                raise ValueError("it must have one column of numbers, or two: class and number")
            numbers = np.array([float(row[-1]) for row in rows])
        labels = [row[0] for row in rows if len(row) == 2]
    else:
        words = text.replace(",", " ").split()
        if any(as_number(word) is None for word in words):
            raise InputError(
                f"{option} must be numbers such as 900,90,10 or a file of them; there is no file "
                f"{text!r}."
            )
        numbers = np.array([float(word) for word in words])
    if num_classes is None:
        num_classes = len(numbers if class_names is None else class_names)
    if labels:
        places = class_indices(labels, num_classes, class_names, name=f"{option} {text}")
        if len(set(places)) < len(places):
            raise InputError(f"{option} {text} names a class twice.")
        given, numbers = numbers, np.zeros(num_classes)
        numbers[places] = given
    elif len(numbers) != num_classes:
        raise InputError(
            f"{option} has {len(numbers)} numbers but there are {num_classes} columns of "
            f"scores; give one number per class, 0 for a class without examples."
        )
    exact = np.all((numbers == np.rint(numbers)) & (np.abs(numbers) < 2**53))
    return numbers.astype(np.int64) if exact else numbers


def _rows(path: Path) -> list[list[str]]:
    """Return the cells of a small csv or tsv file, or the lines of a text, one cell each."""
    separator = SEPARATORS.get(path.suffix.lower())
    with readable(path):
        lines = [x for x in path.read_text(encoding="utf-8-sig").split("\n") if x.strip()]
        table = csv.reader(lines, delimiter=separator) if separator else ([x] for x in lines)
        rows = [[cell.strip() for cell in row] for row in table]
        if not rows:
            raise ValueError("it is empty")
    return rows


def load_npy(path: Path) -> NDArray[Any]:
    """Return the array of an .npy file, memory-mapped."""
    with readable(path):
        return np.lib.format.open_memmap(path, mode="r")
