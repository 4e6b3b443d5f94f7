"""Labels of any form in, class indices out; and files of labels, class names and counts.

Labels are numbers 0, 1, … or names of classes. Which class a name means is known from the
scores' column names or from a list of class names.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import FloatArray, InputError, IntArray
from longtail.predictions.base import at_least_two
from longtail.predictions.small_files import load_npy, read_text

# What a column or array of labels is called where nothing else is said.
LABEL_NAMES = ("target", "label", "labels", "y_true")

# What may stand between the cells of a csv file.
DELIMITERS = ",;\t"

# What pandas and R call a column of row numbers.
_UNNAMED = ("", "unnamed: 0")

# A column such as logit_cat or prob3 is the score of the class `cat` or `3`. Of logit-1 the minus
# stands between; of logit_-1, where something else does already, it belongs to the class.
_PREFIX = re.compile(
    r"(logits?|probs?|proba|probability|scores?)"
    r"(?:[_\-.: ]+(?=-\.?\d)|[_\-.: ]+|(?=\d))(.+)",
    re.I,
)
_KINDS = {"logit": "logits", "prob": "probs"}


def called_label(column: str) -> bool:
    """Whether a column's name says that it holds labels."""
    return column.lower() in LABEL_NAMES


def prefixed(column: str) -> tuple[str | None, str]:
    """What a score column says it is, and its class.

    Examples:
        >>> prefixed("logit_cat"), prefixed("Prob3"), prefixed("score: a"), prefixed("problem")
        (('logits', 'cat'), ('probs', '3'), ('', 'a'), (None, 'problem'))
        >>> prefixed("logit-1"), prefixed("logit_-1")
        (('logits', '1'), ('logits', '-1'))
    """
    found = _PREFIX.fullmatch(column)
    if found is None:
        return None, column
    word = found[1].lower()
    return next((kind for stem, kind in _KINDS.items() if word.startswith(stem)), ""), found[2]


def whole(text: str) -> int | None:
    """The whole number that a text is, also as ``3.0`` or ``3.0e+00``, or None.

    Examples:
        >>> whole("3"), whole("3.0"), whole("-1"), whole("three"), whole("2.5"), whole("1.2e+01")
        (3, 3, -1, None, None, 12)
    """
    match = re.fullmatch(r"\s*([+-]?\d+)(?:\.0*)?\s*", text)
    if match is not None:
        return int(match[1])
    if not re.fullmatch(r"\s*[+-]?\d+(?:\.\d*)?[eE][+-]?\d+\s*", text):
        return None
    number = float(text)
    return int(number) if number.is_integer() else None


class LabelEncoder:
    """Turns labels into class indices, refusing those that the model does not know.

    A label is the name of a class. Where no class has a number for its name, a whole number is
    a class's position, counted from 0.

    Args:
        num_classes: L.
        class_names: one per class, or None: then labels are positions.
        name: of what holds the labels, for messages.

    Examples:
        >>> LabelEncoder(2, ("cat", "dog"), name="x.csv")(np.array(["dog", "cat", "0"]))
        array([1, 0, 0])
    """

    def __init__(self, num_classes: int, class_names: Sequence[str] | None, *, name: str) -> None:
        at_least_two(num_classes, name=name)
        self.num_classes = num_classes
        self.class_names = None if class_names is None else tuple(class_names)
        self.name = name
        self._index = {label: k for k, label in enumerate(self.class_names or ())}
        self._positions = all(whole(label) is None for label in self._index)

    def __call__(
        self, values: Any, *, place: Callable[[int], str] = lambda row: f"row {row}"
    ) -> IntArray:
        """Class indices of labels, or of a file's; `place` says where the label of a row stands."""
        if isinstance(values, Path):
            values = read_labels(values, self.class_names)
        array = one_dimensional(_checks.as_numpy(values), name=self.name)
        if array.dtype.kind in "iu" and self._positions:
            return self._in_range(array, place)
        found, inverse = np.unique(self._texts(array), return_inverse=True)
        codes = np.array([self._code(str(label)) for label in found], dtype=np.int64)
        result = codes[inverse.reshape(-1)]
        if np.any(result < 0):
            row = int(np.argmax(result < 0))
            raise self._unknown(str(found[inverse.reshape(-1)[row]]), place(row))
        return result

    def _texts(self, array: NDArray[Any]) -> NDArray[Any]:
        if array.dtype.kind == "S":
            return np.char.decode(array, "utf-8")
        if array.dtype.kind in "iufUb":
            return array.astype(np.str_)
        raise InputError(
            f"{self.name}: labels must be whole numbers or names; their dtype is {array.dtype}."
        )

    def _code(self, text: str) -> int:
        text = text.strip()
        if text in self._index:
            return self._index[text]
        number = whole(text)
        if number is None:
            return -1
        if self._positions:
            return number if 0 <= number < self.num_classes else -1
        return self._index.get(str(number), -1)

    def _in_range(self, array: NDArray[Any], place: Callable[[int], str]) -> IntArray:
        bad = (array < 0) | (array >= self.num_classes)
        if bad.any():
            row = int(np.argmax(bad))
            raise self._unknown(str(array[row]), place(row))
        return array.astype(np.int64)

    def _unknown(self, label: str, where: str) -> InputError:
        if not label.strip() or label.strip().lower() == "nan":
            return InputError(
                f"{self.name}: {where} has no label; drop the unlabelled examples, or leave the "
                f"labels out to apply a given tau to all."
            )
        if self.class_names is None:
            known = f"0 to {self.num_classes - 1}, the columns of the scores"
            if whole(label) is None:
                known += (
                    "; labels that are names need the classes' names, with --classes (classes= "
                    "in Python; class_names= of from_arrays)"
                )
        else:
            known = _checks.listing(self.class_names, most=8)
        return InputError(
            f"{self.name}: {where} has the label {label.strip()!r}, which the model does not "
            f"know; its classes are {known}."
        )


def is_label_shape(shape: Sequence[int]) -> bool:
    """Whether labels may have this shape: one per example, also as a column, as Keras has it."""
    return len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)


def one_dimensional(labels: NDArray[Any], *, name: str, otherwise: str = "") -> NDArray[Any]:
    """One label per example, shape (examples,), of such a vector or a column.

    Args:
        labels: any array.
        name: of what holds the labels, for messages.
        otherwise: what else to do about another shape, for the message.

    Examples:
        >>> one_dimensional(np.array([[2], [0]]), name="y.npy")
        array([2, 0])
    """
    if is_label_shape(labels.shape):
        return labels.reshape(-1)
    hint = "; of one-hot labels save argmax(axis=1)" if labels.ndim == 2 else ""
    raise InputError(
        f"{name}: labels must be one-dimensional, one per example; their shape is "
        f"{labels.shape}{hint}{otherwise}."
    )


def is_vector(shape: Sequence[int]) -> bool:
    """Whether an array of this shape is one number, a vector, or one as a row or a column."""
    return len(shape) < 2 or (len(shape) == 2 and 1 in shape)


def one_per_class(values: NDArray[Any]) -> NDArray[Any]:
    """Numbers or names of classes as a vector, also of a row or a column; others as they are."""
    return values.reshape(-1) if is_vector(values.shape) else values


def one_label_each(num_rows: int, codes: IntArray, *, name: str, kind: str) -> None:
    """Refuse another number of labels than of rows."""
    if len(codes) == num_rows + 1:
        raise InputError(
            f"{name}: `{kind}` has {num_rows} rows but there are {len(codes)} labels (in a csv "
            f"file, a number in the first line is a label: name the column `label`)."
        )
    _checks.same_length(range(num_rows), codes, caller=name, name=kind)


def check_class_names(
    names: Sequence[Any] | NDArray[Any] | None, num_classes: int, *, name: str
) -> tuple[str, ...] | None:
    """One distinct, non-empty name per class."""
    if names is None:
        return None
    texts = tuple(str(text).strip() for text in names)
    if len(texts) != num_classes:
        raise InputError(
            f"{name}: there are {len(texts)} class names but {num_classes} columns of scores; "
            f"give one name per column, in order."
        )
    twice = sorted({text for text in texts if texts.count(text) > 1}) if len(texts) < 5000 else []
    if twice or len(set(texts)) < len(texts) or "" in texts:
        shown = _checks.listing(map(repr, twice)) if twice else "some are empty or occur twice"
        raise InputError(f"{name}: class names must be distinct and not empty; {shown}.")
    return texts


def read_labels(path: Path, class_names: Sequence[str] | None = None) -> NDArray[Any]:
    """Labels of a file: .npy, text with one per line, or a csv or tsv file with a column of them.

    Args:
        path: the file. Of a csv file with one column the first line may be a label or a name;
            whole numbers alone may also stand several in a line, as numpy.savetxt writes a row.
        class_names: tell them apart, where labels are names.

    Returns:
        The labels as they are in the file.
    """
    if path.suffix == ".npy":
        return one_dimensional(load_npy(path), name=str(path))
    if _is_table(path):
        known = class_names or ()
        return np.array(_bare_numbers(path, known) or _label_column(path, known))
    lines = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    parts = " ".join(lines).replace(",", " ").split()
    if all(map(is_number, parts)):
        lines = parts
    if not lines:
        raise InputError(f"{path} is empty; it must hold labels, one per line.")
    return np.array(lines)


def _bare_numbers(path: Path, class_names: Sequence[str]) -> list[str]:
    """The labels of a csv file of whole numbers in one line, or in lines that have no columns."""
    lines = [line.strip() for line in read_text(path).splitlines() if line]
    words = [re.findall(rf"[^{DELIMITERS}\s]+", line) for line in lines]
    columns = len(lines) > 1 and any(mark in line for line in lines for mark in DELIMITERS)
    if columns or not all(words):  # an empty line lacks a label
        return []
    if any(
        len(parts) > 1 and line in class_names for line, parts in zip(lines, words, strict=True)
    ):
        return []
    labels = [word for parts in words for word in parts]
    return labels if all(whole(word) is not None for word in labels) else []


def _label_column(path: Path, class_names: Sequence[str]) -> list[str]:
    """The labels of a csv file: its only column, or the one of a usual name."""
    # Where a label may hold a semicolon, only a column's name tells that it stands between cells.
    header, rows = _csv_rows(
        path, names=lambda cells: not cells[0] or any(map(called_label, cells))
    )
    numbered = _row_numbers(header, rows)
    if numbered:
        header, rows = header[1:], [row[1:] for row in rows]
    known = [column for column in header if called_label(column)]
    if len(header) > 1 and len(known) != 1:
        raise InputError(
            f"{path}: a csv file of labels must have one column, or one called "
            f"{' or '.join(LABEL_NAMES[:2])}; its columns are {_checks.listing(header)}."
        )
    if len(header) == 1 and not numbered and known and header[0] in class_names:
        raise InputError(
            f"{path}: its first line, {header[0]!r}, may be a label or the name of the column; "
            f"write the labels to a text file instead, one per line."
        )
    if not numbered and not known and not _names_a_column(header[0], rows, class_names):
        rows = [header, *rows]
    if not rows:
        raise InputError(f"{path} has a header, {','.join(header)!r}, but no labels below it.")
    column = header.index(known[0]) if known else 0
    return [row[column] for row in rows]


def _names_a_column(first: str, rows: Sequence[Sequence[str]], class_names: Sequence[str]) -> bool:
    """Whether the first line of one column is a name: no class, and words or alone a number.

    pandas calls a column without a name 0, which above numbers can't be told from a label.
    """
    if first in class_names:
        return False
    if not first or not all(map(is_number, first.split())):
        return True
    return whole(first) is not None and bool(rows) and all(whole(row[0]) is None for row in rows)


def read_class_names(text: str) -> list[str]:
    """Names from ``a,b,c`` or from a file with one per line."""
    path = Path(text)
    if path.is_file():
        return [line.strip() for line in read_text(path).splitlines() if line.strip()]
    return [part.strip() for part in text.split(",")]


def read_numbers(
    text: str, *, option: str, num_classes: int | None, class_names: Sequence[str] | None
) -> FloatArray | IntArray:
    """One number per class: ``900,90,10``, or a file of them by position or by class name.

    Args:
        text: numbers, or the name of an .npy, .json, .csv (class, number) or text file.
        option: which option it came from, for messages.
        num_classes: how many there must be; None for as many as there are names, or numbers.
        class_names: to which names in the file refer.

    Returns:
        Shape (num_classes,), integers if all are whole.
    """
    values = _given_numbers(text, option)
    if num_classes is None:
        num_classes = len(values if class_names is None else class_names)
    if isinstance(values, Mapping):
        encode = LabelEncoder(num_classes, class_names, name=f"{option} {text}")
        places = encode(np.array(list(values)), place=lambda row: f"entry {row + 1}")
        numbers = np.zeros(num_classes)
        numbers[places] = list(values.values())
    else:
        numbers = one_per_class(np.asarray(values, dtype=np.float64))
        if numbers.ndim != 1:
            raise InputError(
                f"{option} must be one number per class; {text} has the shape {numbers.shape}."
            )
        absent = ", 0 for a class without examples" if option == "--counts" else ""
        one_number_each(numbers, num_classes, source=option, absent=absent)
    rounded = np.rint(numbers)
    finite = bool(np.all(np.isfinite(numbers)))
    return rounded.astype(np.int64) if finite and np.all(numbers == rounded) else numbers


def one_number_each(
    numbers: NDArray[Any],
    num_classes: int,
    *,
    source: str,
    absent: str = ", 0 for a class without examples",
) -> None:
    """Refuse more or fewer numbers than classes.

    Args:
        numbers: one-dimensional.
        num_classes: how many there must be.
        source: the option or array that they came from, for the message.
        absent: what to give for a class that has none, if something.
    """
    if len(numbers) != num_classes:
        raise InputError(
            f"{source} has {len(numbers)} numbers but the scores have {num_classes} columns; give "
            f"one number per class{absent}."
        )


def _given_numbers(text: str, option: str) -> Any:
    path = Path(text)
    if path.is_file():
        try:
            return _number_file(path)
        except (ValueError, TypeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path} can't be read as numbers: {error}.") from error
    try:
        return [float(word) for word in text.replace(",", " ").split()]
    except ValueError as error:
        raise InputError(
            f"{option} must be numbers such as 900,90,10 or a file of them; there is no file "
            f"{text!r}."
        ) from error


def _number_file(path: Path) -> Any:
    if path.suffix == ".npy":
        return load_npy(path)
    if path.suffix == ".json":
        values = json.loads(read_text(path))
        return {str(k): float(v) for k, v in values.items()} if isinstance(values, dict) else values
    if _is_table(path):
        return _number_table(path)
    return _floats([read_text(path).replace(",", " ")])


def _number_table(path: Path) -> list[float] | dict[str, float]:
    """The numbers of a csv file: of two columns by class, of others in order."""
    header, rows = _csv_rows(path)
    if len(header) > 2 and _row_numbers(header, rows):
        header, rows = header[1:], [row[1:] for row in rows]
    if len(header) == 2 and (rows or not is_number(header[0])):
        if header[0] and is_number(header[1]):  # no header line
            rows = [header, *rows]
        found = {row[0].strip(): float(row[1]) for row in rows}
        if len(found) < len(rows):
            raise InputError(f"{path}: a class occurs twice.")
        return found
    if len(header) > 1 or not rows or any(map(is_number, header[0].split())):
        rows = [header, *rows]  # else it is the name of the one column
    return _floats(cell for row in rows for cell in row)


def _floats(texts: Iterable[str]) -> list[float]:
    words = " ".join(texts).split()
    if not words:
        raise ValueError("it is empty")
    return [float(word) for word in words]


def is_number(text: str) -> bool:
    """Whether a text is a number to Python, also ``nan`` and ``inf``."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_table(path: Path) -> bool:
    return path.suffix.lower() in (".csv", ".tsv")


def _csv_rows(
    path: Path, *, names: Callable[[Sequence[str]], bool] = bool
) -> tuple[list[str], list[list[str]]]:
    """First line and other lines of a small csv file, all with as many cells.

    A comma stands between the cells (in .tsv files a tab), or whatever else of `DELIMITERS` cuts
    all lines into as many.

    Args:
        path: the file.
        names: whether the cells of a first line show that it was cut rightly.

    Returns:
        The cells of the first line, and those of the others.
    """
    lines = [line for line in read_text(path).splitlines() if line]
    if not lines:
        raise InputError(f"{path} is empty.")
    usual = "\t" if path.suffix.lower() == ".tsv" else ","
    others = [text for text in DELIMITERS if text != usual and text in lines[0]]
    cuts = [_cut(lines, delimiter) for delimiter in (usual, *others)]
    rows = next((cut for cut in cuts if _even(cut) and names(cut[0])), cuts[0])
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows[0]):
            raise InputError(
                f"{path}: line {number} has {len(row)} cells but the first has {len(rows[0])}."
            )
    return rows[0], rows[1:]


def _cut(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    first, *rows = csv.reader(lines, delimiter=delimiter)
    return [[cell.strip() for cell in first], *rows]


def _even(rows: Sequence[Sequence[str]]) -> bool:
    """Whether all rows have as many cells, and more than one."""
    return len(rows[0]) > 1 and len({len(row) for row in rows}) == 1


def _row_numbers(header: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first of several columns numbers the rows, as pandas and R write it."""
    unnamed = len(header) > 1 and header[0].lower() in _UNNAMED
    return unnamed and all(whole(row[0]) is not None for row in rows)
