"""Labels, class names and numbers per class, from arrays and from small files.

A label is the name of a class; where no class has a number for its name, it may also be a
class's position 0, 1, … among the columns of the scores.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import FloatArray, InputError, IntArray

LABEL_NAMES = ("target", "label")
"""Names of an array or column of labels where `labels` names no other."""


def whole(text: str) -> int | None:
    """Return the whole number that a text holds, also as ``3.0``, or None.

    Examples:
        >>> whole("3"), whole("3.0"), whole("-1"), whole("three"), whole("2.5")
        (3, 3, -1, None, None)
    """
    try:
        number = float(text)
    except ValueError:
        return None
    return int(number) if number.is_integer() else None


class LabelEncoder:
    """Turn labels into class indices and refuse those that the model does not know.

    Args:
        num_classes: L.
        class_names: one per class; None if labels are positions.
        name: of what holds the labels, for messages.

    Examples:
        >>> LabelEncoder(2, ("cat", "dog"), name="x.csv")(["dog", "cat", "0"])
        array([1, 0, 0])
    """

    def __init__(self, num_classes: int, class_names: Sequence[str] | None, *, name: str) -> None:
        self.num_classes, self.class_names, self.name = num_classes, class_names, name
        self._index = {label: k for k, label in enumerate(class_names or ())}
        if all(whole(label) is None for label in self._index):
            self._index |= {str(k): k for k in range(num_classes)}

    def __call__(self, values: Any, *, first_row: int = 0) -> IntArray:
        """Return the class indices of labels, shape (examples,) or (examples, 1)."""
        array = _checks.as_numpy(values)
        if array.ndim != 1 and array.shape[1:] != (1,):
            hint = "; of one-hot labels save argmax(axis=1)" if array.ndim == 2 else ""
            raise InputError(
                f"{self.name}: labels must have the shape (examples,), one label each; their "
                f"shape is {array.shape}{hint}."
            )
        array = array.reshape(-1)
        if array.dtype.kind == "S":
            array = np.char.decode(array, "utf-8")
        if array.dtype.kind not in "iufUb":
            raise InputError(
                f"{self.name}: labels must be whole numbers or names; their dtype is "
                f"{array.dtype} (names.astype(str) makes them text)."
            )
        found, inverse = np.unique(array, return_inverse=True)
        codes = np.array([self._code(str(label)) for label in found], dtype=np.int64)
        result: IntArray = codes[inverse.reshape(-1)]
        if np.any(codes < 0):
            row = int(np.argmax(result < 0))
            label = str(array[row]).strip()
            known = f"0 to {self.num_classes - 1}; labels that are names need --classes (classes=)"
            if self.class_names is not None:
                known = _checks.listing(self.class_names, most=8)
            raise InputError(
                f"{self.name}: row {first_row + row} has the label {label!r}, which is none of "
                f"the classes {known}."
            )
        return result

    def _code(self, text: str) -> int:
        text = text.strip()
        if text in self._index:
            return self._index[text]
        return self._index.get(str(whole(text)), -1)


def check_class_names(names: Any, num_classes: int, *, name: str) -> tuple[str, ...] | None:
    """Return one distinct, non-empty name per class, or None."""
    if names is None:
        return None
    texts = tuple(str(text).strip() for text in np.asarray(names).reshape(-1))
    if len(texts) != num_classes:
        raise InputError(
            f"{name}: there are {len(texts)} class names but {num_classes} columns of scores; "
            f"give one name per column, in order."
        )
    if "" in texts or len(set(texts)) < len(texts):
        raise InputError(f"{name}: class names must be distinct and not empty.")
    return texts


def read_class_names(text: str) -> list[str]:
    """Return the names in ``a,b,c``, or in a file with one per line."""
    path = Path(text)
    if path.is_file():
        return [line.strip() for line in read_text(path).splitlines() if line.strip()]
    return [part.strip() for part in text.split(",")]


def read_labels(path: Path, class_names: Sequence[str] | None = None) -> NDArray[Any]:
    """Return the labels in a file: .npy, text with one per line, or a csv or tsv file.

    Args:
        path: the file. A csv file has one column, or one called ``label`` or ``target``.
        class_names: the known names; a first line that is neither one of these nor a number is
            the name of the column.
    """
    if path.suffix == ".npy":
        return load_npy(path)
    rows = _rows(path)
    header = rows[0]
    named = [k for k, text in enumerate(header) if text in LABEL_NAMES]
    if len(header) > 1 and len(named) != 1:
        raise InputError(
            f"{path}: a csv file of labels must have one column, or one called label or target; "
            f"its columns are {_checks.listing(header)}."
        )
    column = named[0] if named else 0
    if named or (whole(header[0]) is None and header[0] not in (class_names or (header[0],))):
        rows = rows[1:]
    if not rows:
        raise InputError(f"{path} has no labels below its first line.")
    return np.array([row[column] for row in rows])


def read_numbers(
    text: str, *, option: str, num_classes: int | None, class_names: Sequence[str] | None
) -> FloatArray | IntArray:
    """Return one number per class, from ``900,90,10`` or a file, by position or by class.

    Args:
        text: numbers, or the name of an .npy, .json, .csv (class, number) or text file.
        option: the option it came from, for messages.
        num_classes: how many there must be; None for as many as there are names, or numbers.
        class_names: names that the file may use.

    Returns:
        Shape (num_classes,), integers if all are whole.
    """
    values = _number_file(Path(text)) if Path(text).is_file() else _typed_numbers(text, option)
    if num_classes is None:
        num_classes = len(values if class_names is None else class_names)
    if isinstance(values, Mapping):
        encode = LabelEncoder(num_classes, class_names, name=f"{option} {text}")
        numbers = np.zeros(num_classes)
        numbers[encode(list(values))] = list(values.values())
    else:
        numbers = np.asarray(values, dtype=np.float64).reshape(-1)
        if len(numbers) != num_classes:
            raise InputError(
                f"{option} has {len(numbers)} numbers but there are {num_classes} columns of "
                f"scores; give one number per class, 0 for a class without examples."
            )
    return numbers.astype(np.int64) if np.all(numbers == np.rint(numbers)) else numbers


def _typed_numbers(text: str, option: str) -> list[float]:
    try:
        return [float(word) for word in text.replace(",", " ").split()]
    except ValueError as error:
        raise InputError(
            f"{option} must be numbers such as 900,90,10 or a file of them; there is no file "
            f"{text!r}."
        ) from error


def _number_file(path: Path) -> Any:
    try:
        if path.suffix == ".npy":
            return load_npy(path).astype(np.float64)
        if path.suffix == ".json":
            found = json.loads(read_text(path), object_pairs_hook=_each_once)
            if isinstance(found, dict):
                return {key: float(value) for key, value in found.items()}
            return np.asarray(found, np.float64)
        rows = _rows(path)
        if len(rows[0]) == 1 or path.suffix.lower() not in _SEPARATORS:
            if whole(rows[0][0]) is None and len(rows) > 1 and _is_table(path):
                rows = rows[1:]  # the name of the column
            return [float(word) for row in rows for cell in row for word in cell.split()]
        if len(rows[0]) != 2:
            raise ValueError("it must have one column of numbers, or two: class and number")
        try:
            float(rows[0][1])
        except ValueError:
            rows = rows[1:]
        return _each_once((row[0], float(row[1])) for row in rows)
    except (ValueError, TypeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} can't be read as numbers: {error}.") from error


def _each_once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    pairs = list(pairs)
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a class occurs twice")
    return found


_SEPARATORS = {".csv": ",", ".tsv": "\t"}


def _is_table(path: Path) -> bool:
    return path.suffix.lower() in _SEPARATORS


def _rows(path: Path) -> list[list[str]]:
    """Return the cells of a small csv or tsv file, or the lines of a text file, commas split."""
    lines = [line for line in read_text(path).splitlines() if line.strip()]
    if not lines:
        raise InputError(f"{path} is empty.")
    if not _is_table(path):
        return [[cell.strip()] for line in lines for cell in line.split(",")]
    reader = csv.reader(lines, delimiter=_SEPARATORS[path.suffix.lower()])
    rows = [[cell.strip() for cell in row] for row in reader]
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows[0]):
            raise InputError(
                f"{path}: line {number} has {len(row)} cells but the first has {len(rows[0])}."
            )
    return rows


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8: {error}.") from error


def load_npy(path: Path) -> NDArray[Any]:
    """Return the array of an .npy file, memory-mapped."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError) as error:
        raise InputError(f"{path} can't be read as an array of numbers: {error}.") from error
