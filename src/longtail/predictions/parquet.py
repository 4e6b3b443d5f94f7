"""Predictions in parquet files: one column per class, or one column of lists.

Read row group by row group through pyarrow, which comes with the extra `torch`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import InputError, IntArray
from longtail.predictions.base import (
    ADJUSTED,
    KINDS,
    Block,
    Kind,
    NamedBy,
    Predictions,
    Writer,
    adjusted_already,
    declared,
    hinting,
)
from longtail.predictions.columns import label_column, other_scores, understand
from longtail.predictions.labels import LabelEncoder, check_class_names, one_label_each
from longtail.runs.files import atomic_path

_ADJUSTED = f"longtail.{ADJUSTED}".encode()


@dataclass(frozen=True, eq=False, kw_only=True)
class ParquetPredictions(Predictions):
    """Scores in a parquet file.

    Attributes:
        path: the file.
        scores: names of the score columns; one name if it holds lists.
        lists: whether it does.
        label_column: name of the label column, or None.
        target: labels that come from elsewhere, or None.
    """

    path: Path
    scores: tuple[str, ...]
    lists: bool
    label_column: str | None
    target: IntArray | None = None

    def blocks(self, elements: int, *, rest: bool = False) -> Iterator[Block]:
        """The rows in order; `rest` keeps the record batches."""
        encode = LabelEncoder(self.num_classes, self.class_names, name=self.name)
        wanted = [*self.scores, *([self.label_column] if self.label_column else [])]
        row = 0
        for batch in _batches(self.path, self.rows_per_block(elements), None if rest else wanted):
            scores = self._numbers(batch, row)
            if self.target is not None:
                target: IntArray | None = self.target[row : row + len(scores)]
            elif self.label_column is not None:
                target = self._labels(batch, encode, row)
            else:
                target = None
            yield Block(row, scores, target, batch if rest else None)
            row += len(scores)

    def _numbers(self, batch: Any, row: int) -> NDArray[Any]:
        if self.lists:
            found = self._from_lists(batch.column(self.scores[0]), row)
        else:
            found = np.stack([self._column(batch, name, row) for name in self.scores], axis=1)
        if not np.isfinite(found.sum()) and not np.isfinite(found).all():
            k, column = (int(place) for place in np.argwhere(~np.isfinite(found))[0])
            raise InputError(
                f"{self.name}: row {row + k}, column "
                f"{self.scores[0 if self.lists else column]!r} is {found[k, column]}; scores must "
                f"be finite."
            )
        return np.asarray(found)

    def _column(self, batch: Any, name: str, row: int) -> NDArray[Any]:
        column = batch.column(name)
        self._refuse_nulls(column, name, row)
        return np.asarray(column.to_numpy(zero_copy_only=False))

    def _from_lists(self, column: Any, row: int) -> NDArray[Any]:
        self._refuse_nulls(column, self.scores[0], row)
        lengths = np.asarray(column.value_lengths().to_numpy(zero_copy_only=False))
        off = np.flatnonzero(lengths != self.num_classes)
        if len(off):
            raise InputError(
                f"{self.name}: row {row + int(off[0])} has {int(lengths[off[0]])} scores in "
                f"{self.scores[0]!r} but the first row has {self.num_classes}."
            )
        values = column.flatten()
        if values.null_count:
            place = int(np.argmax(np.asarray(values.is_null())))
            raise self._empty(self.scores[0], row + place // self.num_classes)
        return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(-1, self.num_classes)

    def _labels(self, batch: Any, encode: LabelEncoder, row: int) -> IntArray:
        pyarrow = _pyarrow()
        column = batch.column(self.label_column)
        self._refuse_nulls(column, str(self.label_column), row)
        if pyarrow.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        values = np.asarray(column.to_numpy(zero_copy_only=False))
        if values.dtype == object:
            values = values.astype(np.str_)
        with hinting(self.hint):
            return encode(values, place=lambda k: f"row {row + k}")

    def _refuse_nulls(self, column: Any, name: str, row: int) -> None:
        if column.null_count:
            raise self._empty(name, row + int(np.argmax(np.asarray(column.is_null()))))

    def _empty(self, column: str, row: int) -> InputError:
        return InputError(f"{self.name}: row {row}, column {column!r} is empty.")

    @contextmanager
    def writer(self, path: Path, *, tau: float) -> Iterator[Writer]:
        """Writes the same columns with adjusted scores, and `predicted` behind them."""
        parquet = _parquet()
        rows = _Batches(self, tau)
        with (
            atomic_path(path) as temporary,
            parquet.ParquetWriter(temporary, rows.schema) as rows.file,
        ):
            yield rows


class _Batches:
    """Record batches on their way to a parquet file."""

    file: Any

    def __init__(self, source: ParquetPredictions, tau: float) -> None:
        pyarrow = _pyarrow()
        self.source = source
        schema = _schema(source.path)
        dropped = {"predicted", *source.left_out}
        fields = [
            field.with_type(_as_floats(field.type)) if field.name in source.scores else field
            for field in schema
            if field.name not in dropped
        ]
        kind = pyarrow.int64() if source.class_names is None else pyarrow.string()
        self.names = [field.name for field in fields]
        self.schema = pyarrow.schema(
            [*fields, pyarrow.field("predicted", kind)],
            {**_metadata(schema, fields), _ADJUSTED: repr(tau).encode()},
        )

    def write(self, block: Block, scores: NDArray[Any], predicted: IntArray) -> None:
        pyarrow, source = _pyarrow(), self.source
        columns = []
        for name in self.names:
            column, kind = block.rest.column(name), self.schema.field(name).type
            if name in source.scores:
                if source.lists:
                    values = pyarrow.array(scores.reshape(-1), type=kind.value_type)
                    if pyarrow.types.is_fixed_size_list(kind):
                        column = pyarrow.FixedSizeListArray.from_arrays(values, type=kind)
                    else:
                        ends = np.arange(len(scores) + 1, dtype=np.int32) * source.num_classes
                        column = pyarrow.ListArray.from_arrays(ends, values).cast(kind)
                else:
                    place = source.scores.index(name)
                    column = pyarrow.array(scores[:, place], type=kind)
            columns.append(column)
        labels = source.labels(predicted)
        columns.append(pyarrow.array(labels.tolist(), type=self.schema.field("predicted").type))
        self.file.write_batch(pyarrow.record_batch(columns, schema=self.schema))


def _metadata(schema: Any, fields: Sequence[Any]) -> dict[bytes, bytes]:
    """The file's own; what pandas noted of its columns is brought up to date.

    Columns that are not kept lose their notes, and are no index any more; those that are floats
    now are noted as such.
    """
    found = dict(schema.metadata or {})
    if b"pandas" in found:
        notes = json.loads(found[b"pandas"])
        kept = {field.name: field.type for field in fields}
        columns = [note for note in notes.get("columns", ()) if note.get("field_name") in kept]
        for note in columns:
            name = note["field_name"]
            now = kept[name]
            if _pyarrow().types.is_floating(now) and now != schema.field(name).type:
                note["pandas_type"] = note["numpy_type"] = "float64"
        # An index that is no column, such as a range, is described there by a dict.
        parts = notes.get("index_columns", ())
        index = [part for part in parts if isinstance(part, dict) or part in kept]
        notes |= {"columns": columns, "index_columns": index}
        found[b"pandas"] = json.dumps(notes).encode()
    return found


def _as_floats(kind: Any) -> Any:
    """The type of adjusted scores: the given one, but float64 for whole numbers."""
    pyarrow = _pyarrow()
    types = pyarrow.types
    if types.is_fixed_size_list(kind):
        return pyarrow.list_(_floating_values(kind), kind.list_size)
    if types.is_list(kind):
        return pyarrow.list_(_floating_values(kind))
    if types.is_large_list(kind):
        return pyarrow.large_list(_floating_values(kind))
    return pyarrow.float64() if types.is_integer(kind) else kind


def _floating_values(kind: Any) -> Any:
    return kind.value_field.with_type(_as_floats(kind.value_type))


def from_parquet(
    path: Path,
    *,
    kind: Kind | None,
    label: str | None,
    target: Any,
    columns: str | None,
    class_names: Sequence[str] | None,
) -> ParquetPredictions:
    """Open a parquet file.

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
    schema = _schema(path)
    if schema.metadata and _ADJUSTED in schema.metadata:
        tau = schema.metadata[_ADJUSTED].decode()
        raise adjusted_already(str(path), seen=f" (tau = {tau})")
    lists = _list_column(schema, columns, kind, path)
    names: tuple[str, ...] | None
    hint = ""
    named_by: NamedBy | None
    if lists is not None:
        width = _list_width(path, lists)
        named_by = "lists" if lists in KINDS else None
        said = declared(kind, lists if named_by else None, name=str(path), named_by="lists")
        names = check_class_names(class_names, width, name=str(path))
        place = None if target is not None else label_column(schema.names, label, str(path))
        scores: tuple[str, ...] = (lists,)
    else:
        found = understand(
            schema.names,
            name=str(path),
            kind=kind,
            label=label,
            elsewhere=target is not None,
            columns=columns,
            class_names=class_names,
        )
        width, said, names = len(found.scores), found.kind, found.class_names
        place, hint, named_by = found.label, found.hint, found.named_by
        scores = tuple(schema.names[k] for k in found.scores)
    _refuse_text(schema, scores, path)
    where = None if place is None else schema.names[place]
    codes = None
    if target is not None:
        with hinting(hint):
            codes = LabelEncoder(width, names, name=str(path))(target)
        one_label_each(_rows(path), codes, name=str(path), kind=said)
    return ParquetPredictions(
        name=str(path),
        kind=said,
        num_classes=width,
        class_names=names,
        labelled=codes is not None or where is not None,
        num_rows=_rows(path),
        path=path,
        scores=scores,
        lists=lists is not None,
        label_column=None if codes is not None else where,
        target=codes,
        hint=hint,
        named_by=named_by,
        left_out=other_scores(
            schema.names,
            scores=scores,
            label=where,
            classes=names or [str(k) for k in range(width)],
        ),
    )


def column_names(path: Path) -> list[str]:
    """Names of the columns of a parquet file."""
    return list(_schema(path).names)


def _list_column(schema: Any, columns: str | None, kind: Kind | None, path: Path) -> str | None:
    """The column of lists that holds the scores, if there is one."""
    lists = [field.name for field in schema if _holds_lists(field.type)]
    if columns is not None:
        return columns if columns in lists else None
    named = [name for name in lists if name in KINDS and kind in (None, name)]
    candidates = named or lists
    if len(candidates) > 1:
        raise InputError(
            f"{path} has several columns of lists, {', '.join(candidates)}; name the scores' with "
            f"--columns."
        )
    return candidates[0] if candidates else None


def _holds_lists(kind: Any) -> bool:
    types = _pyarrow().types
    return any(
        test(kind) for test in (types.is_list, types.is_large_list, types.is_fixed_size_list)
    )


def _list_width(path: Path, column: str) -> int:
    for batch in _batches(path, 1, [column]):
        length = batch.column(0).value_lengths()[0].as_py()
        if length is None:
            raise InputError(f"{path}: row 0, column {column!r} is empty.")
        return int(length)
    raise InputError(f"{path} has no rows.")


def _refuse_text(schema: Any, scores: Sequence[str], path: Path) -> None:
    types = _pyarrow().types
    for name in scores:
        column = schema.field(name).type
        kind = column.value_type if _holds_lists(column) else column
        if not (types.is_floating(kind) or types.is_integer(kind)):
            raise InputError(
                f"{path}: the column {name!r} holds {column}, not numbers; if it is no score, name "
                f"the columns that are with --columns, as in --columns 'logit_*'."
            )


def _pyarrow() -> Any:
    return _checks.require("pyarrow", extra="parquet", caller="reading parquet files")


def _parquet() -> Any:
    return _checks.require("pyarrow.parquet", extra="parquet", caller="reading parquet files")


def _unreadable(path: Path, error: Exception) -> InputError:
    reason = " ".join(str(error).split()).rstrip(".")
    return InputError(f"{path} is not a parquet file, or a damaged one: {reason}.")


def _file(path: Path) -> Any:
    try:
        return _parquet().ParquetFile(path)
    except (_pyarrow().ArrowException, OSError) as error:
        raise _unreadable(path, error) from error


def _schema(path: Path) -> Any:
    return _file(path).schema_arrow


def _rows(path: Path) -> int:
    return int(_file(path).metadata.num_rows)


def _batches(path: Path, rows: int, columns: Sequence[str] | None) -> Iterator[Any]:
    file = _file(path)
    try:
        yield from file.iter_batches(batch_size=rows, columns=columns)
    except (_pyarrow().ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
