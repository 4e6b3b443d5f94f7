"""Saved predictions of any framework, read in blocks and written again in the same format.

One layout for each format; the options of `open_predictions` name what is called otherwise:

- ``.npz``: an array `logits` or `probs`, shape (examples, classes); `target` with the labels,
  `classes` with their names, `counts` with the training examples per class.
- ``.npy``: the scores alone.
- ``.csv``, ``.tsv``: a column logit_NAME or prob_NAME for each class, and a column `label`.
- ``.parquet``: the same, or one column `logits` or `probs` of lists.
- a run folder: the logits of one of its splits.

Arrays that lie in a file as they are (.npy, and .npz by `numpy.savez`) are memory-mapped. Tables
are read through pyarrow.
"""

from __future__ import annotations

import csv as text
import dataclasses
import io
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import InputError, IntArray
from longtail.predictions.labels import (
    LABEL_NAMES,
    LabelEncoder,
    check_class_names,
    load_npy,
    read_labels,
)
from longtail.priors import ClassPrior
from longtail.runs.files import atomic_path

Kind = Literal["logits", "probs"]
KINDS = ("logits", "probs")
ADJUSTED = "adjusted_tau"
"""Marks an adjusted file, so that it is not adjusted again."""

_CSV_BLOCK = 1 << 25  # bytes; a row must fit
_PREFIXES = {"logits": "logit_", "probs": "prob_"}
_BROKEN = (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError)
_KIND_OPTIONS = "--logits (kind='logits') or --probs (kind='probs')"


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive rows of saved predictions.

    Attributes:
        first_row: index of the first one.
        scores: logits or probabilities, shape (rows, num_classes); a view of a memory map, or
            an array of this block's own.
        target: class indices, shape (rows,), or None without labels.
        rest: the whole rows, for the writer of their format.
    """

    first_row: int
    scores: NDArray[Any]
    target: IntArray | None
    rest: Any = None


Writer = Callable[[Block, NDArray[Any], IntArray], None]
"""Takes each block in order with its adjusted scores and the predicted class indices."""


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
        norms: of the last layer's weights, where the source has them.
        bias: of the last layer, where the source has it.
        notes: what a user should know about how the file was read.
        left_out: arrays or columns that an adjusted file does not repeat, such as other scores
            of the same classes.
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

    def blocks(self, elements: int, *, rest: bool = False) -> Iterator[Block]:
        """Yield the rows in order, about `elements` scores at a time.

        Args:
            elements: scores per block, at least one row.
            rest: whether to keep what `writer` needs besides the scores.
        """
        raise NotImplementedError

    def writer(self, path: Path, *, tau: float) -> Any:
        """Return a context manager whose value writes adjusted blocks; on failure no file stays."""
        raise NotImplementedError

    def outputs(self, path: Path) -> tuple[Path, ...]:
        """Return the files that `writer` makes."""
        return (path,)

    @property
    def mapped(self) -> NDArray[Any] | None:
        """All scores as one array or memory map, or None where they are read in pieces."""
        return None

    def label(self, index: int) -> str:
        """Return a class as people read it."""
        return str(index) if self.class_names is None else self.class_names[index]

    def labels(self, indices: IntArray) -> NDArray[Any]:
        """Return class indices in the form that the file's labels have: names, or numbers."""
        return indices if self.class_names is None else np.asarray(self.class_names)[indices]


def open_predictions(
    path: str | Path,
    *,
    kind: Kind | None = None,
    labels: Any = None,
    scores: str | None = None,
    classes: Sequence[str] | None = None,
    split: str = "held-out",
) -> Predictions:
    """Open a file of saved predictions; nothing but its form is read yet.

    Args:
        path: an .npz, .npy, .csv, .tsv or .parquet file in the layout described in
            `longtail.predictions.files`, or a run folder.
        kind: "logits" or "probs", where the names of arrays or columns don't say.
        labels: the name of an array or column in the file, another file (.npy, text, csv), or
            labels themselves, as numbers or class names. By default the array or column called
            `target` or `label`, if there is one.
        scores: name of the array of scores, or names of the score columns separated by commas,
            with wild cards.
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
    if kind is not None:
        _checks.choice(kind, KINDS, name="kind")
    if path.is_dir():
        return _from_run(path, split, kind)
    suffix = path.suffix.lower()
    readers = {
        ".npz": _from_npz,
        ".npy": _from_npy,
        ".csv": _from_table,
        ".tsv": _from_table,
        ".parquet": _from_table,
        ".pq": _from_table,
    }
    if suffix not in readers:
        raise InputError(
            f"{path} must be a run folder or end in {', '.join(readers)}; save predictions with "
            f"numpy.savez(file, logits=..., target=...), for example."
        )
    if not path.is_file():
        raise InputError(f"{path}: there is no such file.")
    return readers[suffix](path, kind, labels, scores, classes)


def _from_run(path: Path, split: str, kind: Kind | None) -> Predictions:
    from longtail.runs import Run

    if kind == "probs":
        raise InputError(f"{path} is a run folder, which holds logits; leave --probs out.")
    run = Run.open(path)
    if split not in run.splits:
        there = _checks.listing(sorted(set(run.splits) - {"train"})) or "none of other images"
        wanted = "dev" if split == "held-out" and not run.spec.dataset.held_out else split
        make = f", or make them: {run.evaluation(wanted)}" if run.has_model else ""
        raise InputError(
            f"{path} has no logits of the split {split!r}; choose one that is there with --split "
            f"({there}){make}"
        )
    logits, target, _ = run.logits(split)
    head, names = run.head, run.class_names
    return from_arrays(
        logits,
        target if names is None else np.asarray(names)[target],
        kind="logits",
        class_names=names,
        name=str(path),
        prior=run.prior,
        norms=None if head is None else head.norms,
        bias=None if head is None else head.bias,
    )


def _named_or_given(
    labels: Any, names: Sequence[str], path: Path, classes: Sequence[str] | None
) -> tuple[str | None, Any]:
    """Return the name of the labels inside the file, or the labels from elsewhere."""
    if labels is None:
        inside = [name for name in LABEL_NAMES if name in names]
        return (inside[0] if inside else None), None
    if not isinstance(labels, str | Path):
        return None, labels
    if str(labels) in names:
        return str(labels), None
    if Path(labels).is_file():
        return None, read_labels(Path(labels), classes)
    raise InputError(
        f"--labels {labels}: there is no such file, and {path} has no array or column of that "
        f"name (it has {_checks.listing(names) or 'none with a name'})."
    )


def _choose_scores(found: Mapping[Kind, Any], kind: Kind | None, path: Path, named: str) -> Kind:
    """Return the kind of scores that a file has, or that is asked for of the two that it has."""
    there: list[Kind] = [key for key in found if found[key]]
    if len(there) > 1 and kind is None:
        raise InputError(f"{path} has both logits and probabilities; choose with {_KIND_OPTIONS}.")
    if not there or kind not in (None, *there):
        raise InputError(
            f"{path} must have {named}; name the scores that it has otherwise with --scores "
            f"(scores=), and their kind with {_KIND_OPTIONS}."
        )
    return kind or there[0]


def _declared(kind: Kind | None, name: str) -> Kind:
    """Return the kind, which nothing but an option can say here."""
    if kind is None:
        raise InputError(f"{name}: say what the scores are, with {_KIND_OPTIONS}.")
    return kind


def _at_least_two(num_classes: int, name: str | Path) -> int:
    if num_classes < 2:
        raise InputError(
            f"{name}: there must be scores of at least two classes, one column each (give both "
            f"columns of a binary score)."
        )
    return num_classes


def _adjusted_already(name: str | Path, how: str = "") -> InputError:
    return InputError(
        f"{name} was adjusted already{how}; adjusting twice favours rare classes too much: take "
        f"the predictions that it was made from."
    )


# --- arrays -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class _ArrayPredictions(Predictions):
    """Scores in one array, or in a compressed member of an archive.

    Attributes:
        dtype: of the scores.
        scores: the array or memory map; None for a compressed one.
        unpack: opens a compressed one behind its header.
        target: class indices, or None.
        form: "npy" or "npz", the format that `writer` writes.
        others: further arrays, which the writer copies.
    """

    dtype: np.dtype[Any]
    scores: NDArray[Any] | None
    unpack: Callable[[], IO[bytes]] | None = None
    target: IntArray | None = None
    form: str = "npz"
    others: Mapping[str, NDArray[Any]] = dataclasses.field(default_factory=dict)

    @property
    def mapped(self) -> NDArray[Any] | None:
        """All scores, unless they are compressed."""
        return self.scores

    def blocks(self, elements: int, *, rest: bool = False) -> Iterator[Block]:
        """Yield the rows in order; views of the array where there is one."""
        total, step = self.num_rows or 0, max(1, elements // self.num_classes)
        with ExitStack() as stack:
            file = stack.enter_context(self.unpack()) if self.unpack else None
            for start in range(0, total, step):
                rows = slice(start, min(start + step, total))
                if file is None:
                    assert self.scores is not None  # one of the two is there
                    scores = self.scores[rows]
                else:
                    scores = self._unpacked(file, rows.stop - rows.start)
                yield Block(start, scores, None if self.target is None else self.target[rows])

    def _unpacked(self, file: IO[bytes], rows: int) -> NDArray[Any]:
        try:
            content = file.read(rows * self.num_classes * self.dtype.itemsize)
            return np.frombuffer(content, self.dtype).reshape(rows, self.num_classes)
        except _BROKEN as error:
            raise InputError(f"{self.name} is damaged: {error}.") from error

    def outputs(self, path: Path) -> tuple[Path, ...]:
        """Return the file, and for .npy a second one with the predicted labels."""
        return (path,) if self.form == "npz" else (path, _answers(path))

    @contextmanager
    def writer(self, path: Path, *, tau: float) -> Iterator[Writer]:
        """Write blocks as they come; the predicted labels follow at the end."""
        dtype = (self.dtype if self.dtype.kind == "f" else np.dtype(np.float64)).newbyteorder("=")
        shape = (self.num_rows, self.num_classes)
        header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        chosen: list[IntArray] = []
        with ExitStack() as stack:
            temporary = stack.enter_context(atomic_path(path))
            scores: IO[bytes]
            if self.form == "npz":
                archive = stack.enter_context(zipfile.ZipFile(temporary, "w"))
                scores = archive.open(f"{self.kind}.npy", "w", force_zip64=True)
            else:
                second = stack.enter_context(atomic_path(_answers(path)))
                scores = temporary.open("wb")
            with scores:
                npy.write_array_header_2_0(scores, header)

                def write(block: Block, adjusted: NDArray[Any], predicted: IntArray) -> None:
                    scores.write(np.ascontiguousarray(adjusted, dtype=dtype).data)
                    chosen.append(predicted)

                yield write
            predicted = self.labels(np.concatenate(chosen))
            if self.form == "npy":
                with open(second, "wb") as answers:
                    npy.write_array(answers, predicted, allow_pickle=False)
                return
            extra = {**self.others, "predicted": predicted, ADJUSTED: np.float64(tau)}
            for name, array in extra.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    npy.write_array(file, np.asanyarray(array), allow_pickle=False)


def from_arrays(
    scores: Any,
    target: Any = None,
    *,
    kind: Kind,
    class_names: Any = None,
    name: str = "predictions",
    **known: Any,
) -> Predictions:
    """Return predictions that are arrays already: NumPy (memory maps too), torch or JAX.

    Args:
        scores: logits or probabilities, shape (examples, num_classes).
        target: labels, shape (examples,) or (examples, 1), as numbers or class names; None
            without.
        kind: "logits" or "probs".
        class_names: one per column, or None.
        name: for messages.
        **known: further attributes of `Predictions`: prior, counts, norms, bias, notes.

    Examples:
        >>> found = from_arrays([[2.0, 1.0], [0.5, 1.5]], ["a", "b"], kind="logits",
        ...                     class_names=["a", "b"])
        >>> found.num_rows, found.labelled, found.label(1)
        (2, True, 'b')
    """
    _checks.choice(kind, KINDS, name="kind")
    array = _checks.matrix(scores, name=kind, finite=False)
    num_rows, num_classes = len(array), _at_least_two(array.shape[1], name)
    names = check_class_names(class_names, num_classes, name=name)
    if target is not None:
        known.setdefault("others", {"target": _checks.as_numpy(target)})
        target = LabelEncoder(num_classes, names, name=name)(target)
        _checks.same_length(array, target, name=kind)
    return _ArrayPredictions(
        name=name,
        kind=kind,
        num_classes=num_classes,
        class_names=names,
        num_rows=num_rows,
        labelled=target is not None,
        target=target,
        scores=array,
        dtype=array.dtype,
        **known,
    )


def _answers(path: Path) -> Path:
    """Return where the predicted labels of adjusted scores in an .npy file are."""
    return path.with_name(f"{path.stem}.predicted.npy")


def _from_npy(path: Path, kind: Kind | None, labels: Any, scores: Any, classes: Any) -> Predictions:
    if _answers(path).exists():
        raise _adjusted_already(path, f", as {_answers(path).name} beside it says")
    _, target = _named_or_given(labels, (), path, classes)
    return from_arrays(
        load_npy(path),
        target,
        kind=_declared(kind, str(path)),
        class_names=classes,
        name=str(path),
        form="npy",
        others={},
    )


def _from_npz(path: Path, kind: Kind | None, labels: Any, scores: Any, classes: Any) -> Predictions:
    try:
        archive = np.load(path, allow_pickle=False)
        names = list(archive.files)
        if ADJUSTED in names:
            raise _adjusted_already(path, f" (tau = {float(archive[ADJUSTED]):g})")
        if scores is not None and scores not in names:
            raise InputError(f"{path} has no array {scores!r}; it has {_checks.listing(names)}.")
        if scores is None:
            found: dict[Kind, Any] = {"logits": "logits" in names, "probs": "probs" in names}
            kind = _choose_scores(found, kind, path, "an array `logits` or `probs`")
            scores = kind
        kind = _declared(kind or (scores if scores in KINDS else None), str(path))
        inside, target = _named_or_given(labels, [n for n in names if n != scores], path, classes)
        repeated = {scores, "probs" if kind == "logits" else "logits"}
        # Other matrices, such as features, are not read: they may be as large as the scores.
        known = {inside, "classes", "counts", "norms", "bias"}
        others = {
            name: archive[name]
            for name in names
            if name not in repeated and (name in known or _is_vector(_header(archive, name)[0]))
        }
        shape, dtype, where = _locate(path, archive, scores)
    except _BROKEN as error:
        if isinstance(error, InputError):
            raise
        reason = str(error)
        if "allow_pickle" in reason:
            reason = "it holds Python objects; save names as text, with names.astype(str)"
        raise InputError(f"{path} can't be read: {reason}.") from error
    if len(shape) != 2 or 0 in shape or dtype.kind not in "fiu":
        raise InputError(
            f"{path}: `{scores}` must hold numbers in the shape (examples, classes); it has the "
            f"shape {shape} and dtype {dtype}."
        )
    _at_least_two(shape[1], path)
    names_of_classes = check_class_names(
        others.get("classes") if classes is None else classes, shape[1], name=str(path)
    )
    target = others[inside] if inside is not None else target
    if target is not None:
        target = LabelEncoder(shape[1], names_of_classes, name=str(path))(target)
        if len(target) != shape[0]:
            raise InputError(f"{path}: there are {shape[0]} rows but {len(target)} labels.")
    packed = callable(where)
    note = f"{path} is compressed, so every pass unpacks it; numpy.savez stores it ready to map."
    return _ArrayPredictions(
        name=str(path),
        kind=kind,
        num_classes=shape[1],
        class_names=names_of_classes,
        labelled=target is not None,
        num_rows=shape[0],
        dtype=dtype,
        target=target,
        others=others,
        scores=None if packed else where,
        unpack=where if packed else None,
        notes=(note,) if packed else (),
        left_out=tuple(n for n in names if n != scores and n not in others),
        **{key: np.squeeze(others[key]) for key in ("counts", "norms", "bias") if key in others},
    )


def _header(archive: Any, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, Fortran order, dtype and the header's length of an array in an archive."""
    with archive.zip.open(f"{name}.npy") as file:
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        return (*read[npy.read_magic(file)](file), file.tell())


def _is_vector(shape: tuple[int, ...]) -> bool:
    return sum(size > 1 for size in shape) < 2


def _locate(path: Path, archive: Any, name: str) -> tuple[tuple[int, ...], np.dtype[Any], Any]:
    """Return shape and dtype of an array in an archive, and a memory map of it or an opener."""
    info = archive.zip.getinfo(f"{name}.npy")

    def opened() -> IO[bytes]:
        file = zipfile.ZipFile(path).open(info.filename)  # noqa: SIM115 (closed by `blocks`)
        file.read(header)
        return file

    shape, fortran, dtype, header = _header(archive, name)
    if info.compress_type != zipfile.ZIP_STORED:
        return shape, dtype, archive[name] if fortran else opened
    with open(path, "rb") as raw:  # the member's own header says where its data begin
        raw.seek(info.header_offset + 26)
        lengths = np.frombuffer(raw.read(4), "<u2")
    offset = info.header_offset + 30 + int(lengths.sum()) + header
    if dtype.hasobject or 0 in shape:
        return shape, dtype, np.empty(0)
    return shape, dtype, np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")


# --- tables -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class _TablePredictions(Predictions):
    """Scores in a csv or parquet file, read as batches of pyarrow.

    Attributes:
        path: the file.
        schema: of the whole table, as pyarrow reads it.
        columns: names of the score columns; a single one if it holds lists.
        lists: whether it does.
        label_column: name of the column of labels, or None.
        target: labels that came from elsewhere, or None.
    """

    path: Path
    schema: Any
    columns: tuple[str, ...]
    lists: bool = False
    label_column: str | None = None
    target: IntArray | None = None

    def blocks(self, elements: int, *, rest: bool = False) -> Iterator[Block]:
        """Yield the rows in order; `rest` keeps the record batches."""
        encode = LabelEncoder(self.num_classes, self.class_names, name=self.name)
        wanted = [*self.columns, *([self.label_column] if self.label_column else [])]
        row, rows = 0, max(1, elements // self.num_classes)
        for batch in _batches(self.path, rows, None if rest else wanted, self.schema):
            scores = self._scores(batch, row)
            target = None if self.target is None else self.target[row : row + len(scores)]
            if self.label_column is not None:
                labels = batch.column(self.label_column)
                self._refuse_nulls(labels, self.label_column, row)
                values = labels.to_numpy(zero_copy_only=False)
                target = encode(
                    values.astype(str) if values.dtype == object else values, first_row=row
                )
            yield Block(row, scores, target, batch if rest else None)
            row += len(scores)
        if row == 0:
            raise InputError(f"{self.name} has no rows.")
        if self.target is not None and len(self.target) != row:
            raise InputError(f"{self.name}: there are {row} rows but {len(self.target)} labels.")

    def _scores(self, batch: Any, row: int) -> NDArray[Any]:
        columns = [batch.column(name) for name in self.columns]
        for name, column in zip(self.columns, columns, strict=True):
            self._refuse_nulls(column, name, row)
        if not self.lists:
            return np.stack([c.to_numpy(zero_copy_only=False) for c in columns], axis=1)
        lengths = columns[0].value_lengths().to_numpy(zero_copy_only=False)
        off = np.flatnonzero(lengths != self.num_classes)
        if len(off):
            raise InputError(
                f"{self.name}: row {row + int(off[0])} has {lengths[off[0]]} scores but the first "
                f"row has {self.num_classes}."
            )
        values: NDArray[Any] = columns[0].flatten().to_numpy(zero_copy_only=False)
        return values.reshape(-1, self.num_classes)

    def _refuse_nulls(self, column: Any, name: str, row: int) -> None:
        if column.null_count:
            place = row + int(np.argmax(np.asarray(column.is_null())))
            raise InputError(f"{self.name}: row {place}, column {name!r} is empty.")

    @contextmanager
    def writer(self, path: Path, *, tau: float) -> Iterator[Writer]:
        """Write the same columns with adjusted scores, and `predicted` behind them."""
        import pyarrow as pa

        csv = _separator(self.path)
        dropped = {"predicted", *self.left_out}
        kept = [
            field.with_type(_floats(field.type)) if field.name in self.columns else field
            for field in self.schema
            if field.name not in dropped
        ]
        fields = [*kept, pa.field("predicted", pa.string() if self.class_names else pa.int64())]
        if csv:
            fields.append(pa.field(ADJUSTED, pa.string()))
        metadata = {**(self.schema.metadata or {}), f"longtail.{ADJUSTED}".encode(): repr(tau)}
        if kept != list(self.schema):
            metadata.pop(b"pandas", None)  # describes columns that are gone or changed
        schema = pa.schema(fields, None if csv else metadata)
        with atomic_path(path) as temporary, _table_writer(temporary, schema, csv) as write_batch:

            def write(block: Block, adjusted: NDArray[Any], predicted: IntArray) -> None:
                arrays = []
                for field in kept:
                    column = block.rest.column(field.name)
                    if field.name in self.columns and self.lists:
                        ends = np.arange(len(adjusted) + 1, dtype=np.int32) * self.num_classes
                        values = pa.array(adjusted.reshape(-1))
                        column = pa.ListArray.from_arrays(ends, values).cast(field.type)
                    elif field.name in self.columns:
                        place = self.columns.index(field.name)
                        column = pa.array(adjusted[:, place]).cast(field.type, safe=False)
                    arrays.append(column)
                arrays.append(
                    pa.array(self.labels(predicted).tolist(), type=fields[len(kept)].type)
                )
                if csv:
                    arrays.append(pa.array([f"{tau:.12g}"] * len(predicted)))
                write_batch(pa.record_batch(arrays, schema=schema))

            yield write


def _from_table(
    path: Path, kind: Kind | None, labels: Any, scores: str | None, classes: Any
) -> Predictions:
    schema, num_rows = _form(path)
    names = list(schema.names)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{path}: the column {twice[0]!r} occurs twice; rename one of them.")
    mark = (schema.metadata or {}).get(f"longtail.{ADJUSTED}".encode())
    if mark is not None or ADJUSTED in names:
        raise _adjusted_already(path, f" (tau = {mark.decode()})" if mark else "")
    inside, target = _named_or_given(labels, names, path, classes)
    others = [name for name in names if name != inside]
    by_kind: dict[Kind, list[str]] = {
        "logits": [name for name in others if name == "logits" or name.startswith("logit_")],
        "probs": [name for name in others if name == "probs" or name.startswith("prob_")],
    }
    if scores is not None:
        columns = _matching(others, scores, path)
        said = {key for key, known in by_kind.items() if set(columns) <= set(known)}
        kind = _declared(kind or (said.pop() if said else None), str(path))
    else:
        named = "columns logit_NAME or prob_NAME, one for each class"
        kind = _choose_scores(by_kind, kind, path, named)
        columns = by_kind[kind]
    lists = len(columns) == 1 and hasattr(schema.field(columns[0]).type, "value_type")
    if num_rows is None:
        schema = _csv_schema(names, columns)
    _refuse_text(schema, columns, path)
    width, own = len(columns), None
    if lists:
        width = _list_width(path, columns[0])
    else:
        own = tuple(name.removeprefix(_PREFIXES[kind]) for name in columns)
        if classes is not None and columns[0] != own[0] and tuple(classes) != own:
            raise InputError(
                f"{path}: the score columns are of the classes {_checks.listing(own)}, in this "
                f"order; leave --classes (classes=) out."
            )
    _at_least_two(width, path)
    class_names = check_class_names(own if classes is None else classes, width, name=str(path))
    if target is not None:
        target = LabelEncoder(width, class_names, name=str(path))(target)
    other: Kind = "probs" if kind == "logits" else "logits"
    repeated = {other, *(_PREFIXES[other] + name for name in class_names or ())} - set(columns)
    return _TablePredictions(
        name=str(path),
        kind=kind,
        num_classes=width,
        class_names=class_names,
        labelled=target is not None or inside is not None,
        num_rows=num_rows,
        path=path,
        schema=schema,
        columns=tuple(columns),
        lists=lists,
        label_column=inside,
        target=target,
        left_out=tuple(name for name in others if name in repeated),
    )


def _matching(names: Sequence[str], patterns: str, path: Path) -> list[str]:
    chosen: list[str] = []
    for pattern in (part.strip() for part in patterns.split(",")):
        found = [name for name in names if name == pattern or fnmatchcase(name, pattern)]
        if not found:
            raise InputError(
                f"{path}: no column matches {pattern!r}; its columns are {_checks.listing(names)}."
            )
        chosen += [name for name in found if name not in chosen]
    return chosen


def _refuse_text(schema: Any, columns: Sequence[str], path: Path) -> None:
    import pyarrow as pa

    for name in columns:
        column = schema.field(name).type
        kind = getattr(column, "value_type", column)
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
            raise InputError(
                f"{path}: the column {name!r} holds {column}, not numbers; name the score columns "
                f"with --scores (scores=)."
            )


def _floats(kind: Any) -> Any:
    """Return the type of adjusted scores: the given one, but float64 for whole numbers."""
    import pyarrow as pa

    if hasattr(kind, "value_type"):
        value = kind.value_field.with_type(_floats(kind.value_type))
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(value, kind.list_size)
        return pa.large_list(value) if pa.types.is_large_list(kind) else pa.list_(value)
    return kind if pa.types.is_floating(kind) else pa.float64()


def _separator(path: Path) -> str | None:
    """Return what stands between the cells of a csv file, or None for parquet."""
    return {".csv": ",", ".tsv": "\t"}.get(path.suffix.lower())


@contextmanager
def _readable(path: Path) -> Iterator[Any]:
    """Import pyarrow, and turn its errors about a file into one line."""
    pyarrow = _checks.require("pyarrow", extra="tables")
    for part in ("csv", "parquet"):
        _checks.require(f"pyarrow.{part}", extra="tables")
    try:
        yield pyarrow
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"{path} can't be read: {reason}.") from error


def _form(path: Path) -> tuple[Any, int | None]:
    """Return a table's schema and the number of its rows, which of a csv file is not known."""
    with _readable(path) as pa:
        if _separator(path):
            return _open_csv(pa, path).schema, None
        file = pa.parquet.ParquetFile(path)
        return file.schema_arrow, int(file.metadata.num_rows)


def _csv_schema(names: Sequence[str], columns: Sequence[str]) -> Any:
    """Return numbers for the score columns, and text as it is for all others."""
    import pyarrow as pa

    return pa.schema([(name, pa.float64() if name in columns else pa.string()) for name in names])


def _open_csv(pa: Any, path: Path, schema: Any = None, wanted: Sequence[str] | None = None) -> Any:
    return pa.csv.open_csv(
        path,
        read_options=pa.csv.ReadOptions(block_size=_CSV_BLOCK),
        parse_options=pa.csv.ParseOptions(delimiter=_separator(path)),
        convert_options=pa.csv.ConvertOptions(
            column_types=schema, include_columns=wanted, strings_can_be_null=False
        ),
    )


def _batches(path: Path, rows: int, wanted: Sequence[str] | None, schema: Any) -> Iterator[Any]:
    with _readable(path) as pa:
        if _separator(path):
            with _open_csv(pa, path, schema, wanted) as reader:
                yield from reader
        else:
            yield from pa.parquet.ParquetFile(path).iter_batches(batch_size=rows, columns=wanted)


def _list_width(path: Path, column: str) -> int:
    for batch in _batches(path, 1, [column], None):
        return int(batch.column(0).value_lengths()[0].as_py() or 0)
    raise InputError(f"{path} has no rows.")


@contextmanager
def _table_writer(path: Path, schema: Any, separator: str | None) -> Iterator[Callable[..., None]]:
    import pyarrow as pa
    from pyarrow import csv, parquet

    if separator is None:
        with parquet.ParquetWriter(path, schema) as file:
            yield file.write_batch
        return
    with open(path, "wb") as raw:
        header = io.StringIO()
        text.writer(header, delimiter=separator, lineterminator="\n").writerow(schema.names)
        raw.write(header.getvalue().encode())

        def written(batch: Any, quotes: str) -> Any:
            out = pa.BufferOutputStream()
            options = csv.WriteOptions(
                include_header=False, delimiter=separator, quoting_style=quotes
            )
            csv.write_csv(batch, out, options)
            return out.getvalue()

        def write_batch(batch: Any) -> None:
            try:
                raw.write(written(batch, "none"))
            except pa.ArrowInvalid:  # a cell holds a separator or a quotation mark
                raw.write(written(batch, "needed"))

        yield write_batch
