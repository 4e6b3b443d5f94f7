"""Predictions in csv files: one row per example, one column per class, read in blocks of lines.

NumPy's own parser reads the numbers. Where it fails, the lines are looked at one by one to say
which cell is wrong.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from longtail._checks import FloatArray, InputError, IntArray
from longtail.predictions.base import (
    ADJUSTED,
    Block,
    Kind,
    Predictions,
    Writer,
    adjusted_already,
    hinting,
)
from longtail.predictions.columns import (
    Columns,
    example_in_header,
    other_scores,
    understand,
    word_above_numbers,
)
from longtail.predictions.labels import DELIMITERS, LabelEncoder, is_number, one_label_each
from longtail.runs.files import atomic_path


@dataclass(frozen=True, eq=False, kw_only=True)
class TextPredictions(Predictions):
    """Scores in a csv file.

    Attributes:
        path: the file.
        columns: what its columns mean.
        delimiter: between its cells.
        target: labels that come from elsewhere, or None.
    """

    path: Path
    columns: Columns
    delimiter: str
    target: IntArray | None = None

    def blocks(self, elements: int, *, rest: bool = False) -> Iterator[Block]:
        """The rows in order; `rest` keeps their lines."""
        step = self.rows_per_block(elements)
        encode = LabelEncoder(self.num_classes, self.class_names, name=self.name)
        row = 0
        with _opened(self.path) as file:
            next(file)
            filled = ((n, line) for n, line in enumerate(file, start=2) if line.strip())
            numbered = _decodable(filled, self.name)
            while lines := list(islice(numbered, step)):
                self._check_width(lines)
                scores = self._numbers(lines)
                target = self._labels(lines, encode, row)
                yield Block(row, scores, target, [line for _, line in lines] if rest else None)
                row += len(lines)
        if row == 0:
            raise InputError(f"{self.name} has a header but no rows.")
        if self.target is not None:
            one_label_each(row, self.target, name=self.name, kind=self.kind)

    def _check_width(self, lines: Sequence[tuple[int, str]]) -> None:
        wanted = len(self.columns.header)
        for number, line in lines:
            if '"' not in line:
                cells = line.count(self.delimiter) + 1
            elif line.count('"') % 2:
                raise InputError(
                    f"{self.name}: line {number} has an open quotation mark; cells can't span "
                    f"lines."
                )
            else:
                cells = len(self._split(line))
            if cells != wanted:
                raise InputError(
                    f"{self.name}: line {number} has {cells} cells but the header has {wanted}."
                )

    def _numbers(self, lines: Sequence[tuple[int, str]]) -> FloatArray:
        try:
            found = np.loadtxt(
                (line for _, line in lines),
                delimiter=self.delimiter,
                usecols=self.columns.scores,
                quotechar='"',
                comments=None,
                ndmin=2,
            )
        except ValueError as error:
            raise self._bad_cell(lines, error) from error
        if not np.isfinite(found.sum()) and not np.isfinite(found).all():
            row, column = (int(k) for k in np.argwhere(~np.isfinite(found))[0])
            raise InputError(
                f"{self.name}: line {lines[row][0]}, column "
                f"{self.columns.header[self.columns.scores[column]]!r} is {found[row, column]}; "
                f"scores must be finite."
            )
        return found

    def _bad_cell(self, lines: Sequence[tuple[int, str]], error: Exception) -> InputError:
        for number, line in lines:
            cells = self._split(line)
            for column in self.columns.scores:
                try:
                    float(cells[column])
                except ValueError:
                    name = self.columns.header[column]
                    what = f"holds {cells[column]!r}, not a number" if cells[column] else "is empty"
                    advice = (
                        "if it is no score, name the columns that are with --columns, as in "
                        "--columns 'logit_*'"
                    )
                    if cells[column].count(",") == 1 and is_number(cells[column].replace(",", ".")):
                        advice = "save the scores with a decimal point"
                    return InputError(
                        f"{self.name}: line {number}, column {name!r} {what}; {advice}."
                    )
        return InputError(f"{self.name} can't be read as numbers: {error}.")

    def _labels(
        self, lines: Sequence[tuple[int, str]], encode: LabelEncoder, row: int
    ) -> IntArray | None:
        if self.target is not None:
            return self.target[row : row + len(lines)]
        where = self.columns.label
        if where is None:
            return None
        texts = [
            line.rstrip("\r\n").split(self.delimiter, where + 1)[where]
            if '"' not in line
            else self._split(line)[where]
            for _, line in lines
        ]
        with hinting(self.hint):
            return encode(np.array(texts), place=lambda k: f"line {lines[k][0]}")

    def _split(self, line: str) -> list[str]:
        return next(csv.reader([line], delimiter=self.delimiter))

    @contextmanager
    def writer(self, path: Path, *, tau: float) -> Iterator[Writer]:
        """Writes the same columns with adjusted scores, then `predicted` and `adjusted_tau`."""
        with (
            atomic_path(path) as temporary,
            open(temporary, "w", encoding="utf-8", newline="") as file,
        ):
            yield _Lines(self, file, tau)


class _Lines:
    """Rows on their way to a csv file."""

    def __init__(self, source: TextPredictions, file: IO[str], tau: float) -> None:
        self.file, self.delimiter, self.tau = file, source.delimiter, f"{tau:.12g}"
        scores, header = source.columns.scores, list(source.columns.header)
        self.place = header.index("predicted") if "predicted" in header else len(header)
        header[self.place : self.place + 1] = ["predicted"]
        self.labels = [self._row([source.label(k)]) for k in range(source.num_classes)]
        self.scores = scores
        # Scores that stand side by side are written by one format: most files, and much faster.
        together = scores == tuple(range(scores[0], scores[0] + len(scores)))
        self.side_by_side = together and not source.left_out
        self.format = self.delimiter.join(["%.12g"] * len(scores))
        left_out = set(source.left_out)
        self.kept = [k for k, name in enumerate(header) if name not in left_out]
        file.write(self._row([*(header[k] for k in self.kept), ADJUSTED]) + "\n")

    def write(self, block: Block, scores: NDArray[Any], predicted: IntArray) -> None:
        for line, numbers, label in zip(block.rest, scores.tolist(), predicted, strict=True):
            cells = self._quoted_cells(line.rstrip("\r\n"))
            cells[self.place : self.place + 1] = [self.labels[label]]
            if self.side_by_side:
                first, last = self.scores[0], self.scores[-1]
                cells[first : last + 1] = [self.format % tuple(numbers)]
            else:
                for column, number in zip(self.scores, numbers, strict=True):
                    cells[column] = f"{number:.12g}"
                cells = [cells[k] for k in self.kept]
            self.file.write(self.delimiter.join([*cells, self.tau]) + "\n")

    def _quoted_cells(self, line: str) -> list[str]:
        """The cells of a line, each as it must stand in a csv file."""
        if '"' not in line:
            return line.split(self.delimiter)
        return [self._row([cell]) for cell in next(csv.reader([line], delimiter=self.delimiter))]

    def _row(self, cells: list[str]) -> str:
        out = io.StringIO()
        csv.writer(out, delimiter=self.delimiter, lineterminator="").writerow(cells)
        return out.getvalue()


def from_csv(
    path: Path,
    *,
    kind: Kind | None,
    label: str | None,
    target: Any,
    columns: str | None,
    class_names: Sequence[str] | None,
) -> TextPredictions:
    """Open a csv file (comma, semicolon or tab); its first line names the columns.

    Args:
        path: the file.
        kind: as in `open_predictions`.
        label: name of the label column.
        target: labels that come from elsewhere.
        columns: as in `open_predictions`.
        class_names: as in `open_predictions`.

    Returns:
        The Predictions.
    """
    header, delimiter = read_header(path)
    cell = example_in_header(header, label=label, columns=columns)
    if cell is not None and not word_above_numbers(header, _first_rows(path, delimiter)):
        score = "prob" if kind == "probs" else "logit"
        raise InputError(
            f"{path}: the first line must name the columns, but it holds {cell!r}, as if it were "
            f"an example; put a line above it such as {score}_cat,{score}_dog,label. If it does "
            f"name them, say which hold scores with --columns, all by --columns '*'."
        )
    if ADJUSTED in header:
        raise adjusted_already(str(path), seen=_seen_tau(path, header, delimiter))
    found = understand(
        header,
        name=str(path),
        kind=kind,
        label=label,
        elsewhere=target is not None,
        columns=columns,
        class_names=class_names,
    )
    codes = None
    if target is not None:
        with hinting(found.hint):
            codes = LabelEncoder(len(found.scores), found.class_names, name=str(path))(target)
    return TextPredictions(
        name=str(path),
        kind=found.kind,
        num_classes=len(found.scores),
        class_names=found.class_names,
        labelled=codes is not None or found.label is not None,
        path=path,
        columns=found,
        delimiter=delimiter,
        target=codes,
        hint=found.hint,
        named_by=found.named_by,
        left_out=other_scores(
            header,
            scores=[header[k] for k in found.scores],
            label=None if found.label is None else header[found.label],
            classes=found.class_names,
        ),
    )


def read_header(path: Path) -> tuple[list[str], str]:
    """The names in a csv file's first line, and what stands between them."""
    with _opened(path) as file:
        line = next(_decodable(file, str(path)), "").rstrip("\r\n")
    if not line.strip():
        raise InputError(f"{path} is empty; its first line must name the columns.")
    delimiter = max(DELIMITERS, key=line.count)
    return [text.strip() for text in next(csv.reader([line], delimiter=delimiter))], delimiter


def _first_rows(path: Path, delimiter: str) -> list[list[str]]:
    """The cells of some lines below the first."""
    with _opened(path) as file:
        lines = (line for line in islice(_decodable(file, str(path)), 1, 100) if line.strip())
        return list(csv.reader(lines, delimiter=delimiter))


def _seen_tau(path: Path, header: Sequence[str], delimiter: str) -> str:
    """The tau of an adjusted file, from its first row, where it has one."""
    with _opened(path) as file:
        next(file)
        rows = csv.DictReader(file, header, delimiter=delimiter)
        tau = next(rows, {}).get(ADJUSTED)
    return f" (tau = {tau})" if tau else ""


def _opened(path: Path) -> IO[str]:
    return open(path, encoding="utf-8-sig", newline="")


def _decodable(lines: Any, name: str) -> Iterator[Any]:
    """The lines, or one line that says why they are no text."""
    try:
        yield from lines
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not a text file (UTF-8): {error}.") from error
