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
import io
import math
import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import InputError, IntArray
from longtail.predictions.labels import (
    LABEL_NAMES,
    SEPARATORS,
    LabelEncoder,
    load_npy,
    read_labels,
    readable,
)
from longtail.priors import ClassPrior
from longtail.runs.files import atomic_path

Kind = Literal["logits", "probs"]
KINDS: tuple[Kind, Kind] = ("logits", "probs")
PREFIXES = {"logits": "logit_", "probs": "prob_"}
ADJUSTED = "adjusted_tau"
"""Marks an adjusted file, so that it is not adjusted again."""

_CSV_BLOCK = 1 << 25  # bytes; a row must fit


class Block(NamedTuple):
    """Consecutive rows of saved predictions.

    Attributes:
        first_row: index of the first one.
        scores: logits or probabilities, shape (rows, num_classes).
        target: class indices, shape (rows,), or None without labels.
        rest: the whole rows of a table, to save them again.
    """

    first_row: int
    scores: NDArray[Any]
    target: IntArray | None
    rest: Any = None


Adjusted = tuple[Block, NDArray[Any], NDArray[Any]]
"""A block, its adjusted scores, and the predicted labels."""


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
        target: class indices, where they are not among the columns of a table.
        mapped: all scores as one array or memory map, where they are not read in pieces.
        prior: of the training data, where the source knows it.
        counts: training examples per class, where the file has them.
        norms: of the last layer's weights, where the source has them.
        bias: of the last layer, where the source has it.
        left_out: arrays or columns that an adjusted file does not repeat: other scores of the
            same classes.
        source: the format: `save(path, tau, adjusted)` writes the same rows with other scores;
            where scores are not mapped, `read(rows, whole)` yields them, labels or None, and
            whole rows.
    """

    name: str
    kind: Kind
    num_classes: int
    source: Any
    class_names: tuple[str, ...] | None = None
    labelled: bool = False
    num_rows: int | None = None
    target: IntArray | None = None
    mapped: Any = None
    prior: ClassPrior | None = None
    counts: NDArray[Any] | None = None
    norms: NDArray[Any] | None = None
    bias: NDArray[Any] | None = None
    left_out: tuple[str, ...] = ()

    def blocks(self, elements: int, *, rest: bool = False) -> Iterator[Block]:
        """Yield the rows in order, about `elements` scores at a time; `rest` keeps whole rows."""
        encode = LabelEncoder(self.num_classes, self.class_names, name=self.name)
        row, rows = 0, max(1, elements // self.num_classes)
        if self.mapped is None:
            found = self.source.read(rows, rest)
        else:
            starts = range(0, len(self.mapped), rows)
            found = ((self.mapped[start : start + rows], None, None) for start in starts)
        for scores, labels, whole in found:
            target = None if labels is None else encode(labels, first_row=row)
            if self.target is not None:
                target = self.target[row : row + len(scores)]
                if len(target) < len(scores):
                    raise InputError(
                        f"{self.name} has more rows than the {len(self.target)} labels."
                    )
            yield Block(row, scores, target, whole)
            row += len(scores)
        if row < (1 if self.target is None else len(self.target)):
            raise InputError(f"{self.name} has no more than {row} rows.")

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
    if suffix == ".npz":
        return _from_npz(path, kind, labels, scores, classes)
    if suffix == ".npy":
        return _from_npy(path, kind, labels, classes)
    if suffix in (".csv", ".tsv", ".parquet", ".pq"):
        return _from_table(path, kind, labels, scores, classes)
    raise InputError(
        f"{path} must be a run folder or end in .npz, .npy, .csv, .tsv, .parquet or .pq; save "
        f"predictions with numpy.savez(file, logits=..., target=...), for example."
    )


def from_arrays(
    scores: Any,
    target: Any = None,
    *,
    kind: Kind,
    class_names: Any = None,
    name: str = "predictions",
    others: Mapping[str, NDArray[Any]] | None = None,
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
        others: arrays to be written with adjusted scores; the target if None.
        **known: further attributes of `Predictions`: prior, counts, norms, bias.

    Examples:
        >>> found = from_arrays([[2.0, 1.0], [0.5, 1.5]], ["a", "b"], kind="logits",
        ...                     class_names=["a", "b"])
        >>> found.num_rows, found.labelled, found.label(1)
        (2, True, 'b')
    """
    _checks.choice(kind, KINDS, name="kind")
    array = _checks.matrix(scores, name=kind, finite=False)
    if others is None:
        others = {} if target is None else {"target": _checks.as_numpy(target)}
    known |= {"mapped": array, "source": _Arrays(array, kind, others)}
    return _predictions(name, kind, array.shape, class_names, target, **known)


def _predictions(
    name: str,
    kind: Kind,
    shape: tuple[int | None, int],
    class_names: Any,
    target: Any,
    *,
    labelled: bool = False,
    **known: Any,
) -> Predictions:
    """Return predictions whose class names and labels fit the scores; rows may be unknown."""
    num_rows, num_classes = shape
    if num_classes < 2:
        raise InputError(
            f"{name}: there must be scores of at least two classes, one column each (give both "
            f"columns of a binary score)."
        )
    if class_names is not None:
        class_names = tuple(str(text).strip() for text in np.asarray(class_names).reshape(-1))
        if len(class_names) != num_classes or len(set(class_names)) < num_classes:
            raise InputError(
                f"{name}: there are {len(set(class_names))} class names but {num_classes} columns "
                f"of scores; give one name per column, in order."
            )
    if target is not None:
        target = LabelEncoder(num_classes, class_names, name=name)(target)
        if num_rows not in (None, len(target)):
            raise InputError(f"{name}: there are {num_rows} rows but {len(target)} labels.")
    return Predictions(
        name=name,
        kind=kind,
        num_classes=num_classes,
        class_names=class_names,
        labelled=labelled or target is not None,
        num_rows=num_rows,
        target=target,
        **known,
    )


def _from_run(path: Path, split: str, kind: Kind | None) -> Predictions:
    from longtail.runs import Run

    if kind == "probs":
        raise InputError(f"{path} is a run folder, which holds logits, not probabilities.")
    run = Run.open(path)
    if split not in run.splits:
        there = _checks.listing(sorted(set(run.splits) - {"train"})) or "none of other images"
        make = "dev" if split == "held-out" and not run.spec.dataset.held_out else split
        raise InputError(
            f"{path} has no logits of the split {split!r}; choose one that is there with `split=` "
            f"({there}), or make them: {run.evaluation(make)}"
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


def _label_source(
    labels: Any, names: Sequence[str], path: Path, classes: Sequence[str] | None
) -> tuple[str | None, Any]:
    """Return the name of the labels inside the file, or the labels from elsewhere."""
    if labels is None:
        return next((name for name in LABEL_NAMES if name in names), None), None
    if not isinstance(labels, str | Path):
        return None, labels
    if str(labels) in names:
        return str(labels), None
    if Path(labels).is_file():
        return None, read_labels(Path(labels), classes)
    raise InputError(
        f"there is no file {labels} of labels, and {path} has no array or column of that name "
        f"(it has {_checks.listing(names) or 'none with a name'})."
    )


def _score_source(
    names: Sequence[str], scores: str | None, kind: Kind | None, path: Path
) -> tuple[Kind, list[str]]:
    """Return the kind of scores, and the arrays or columns that hold them.

    They are called by their kind, or prefix and class; or else chosen by names and wild cards.
    """
    by_name: dict[Kind, list[str]] = {
        key: [key] if key in names else [n for n in names if n.startswith(PREFIXES[key])]
        for key in KINDS
    }
    if scores is None:
        there = [key for key in KINDS if by_name[key] and kind in (None, key)]
        if len(there) != 1:
            raise InputError(
                f"{path} must have {kind or 'either logits or probs'}: an array of that name, or "
                f"columns logit_NAME or prob_NAME; it has {_checks.listing(names) or 'nothing'}. "
                f"Say which with `kind='logits'` or `kind='probs'`, name others with `scores=`."
            )
        return there[0], by_name[there[0]]
    chosen: dict[str, None] = {}
    for pattern in (part.strip() for part in scores.split(",")):
        found = [name for name in names if name == pattern or fnmatchcase(name, pattern)]
        if not found:
            raise InputError(
                f"{path} has no array or column {pattern!r}; it has {_checks.listing(names)}."
            )
        chosen |= dict.fromkeys(found)
    kind = kind or next((key for key in KINDS if chosen.keys() <= set(by_name[key])), None)
    if kind is None:
        raise InputError(
            f"{path}: say what the scores are, with `kind='logits'` or `kind='probs'`."
        )
    return kind, list(chosen)


def _adjusted_already(name: str | Path, how: str) -> InputError:
    return InputError(
        f"{name} was adjusted already{how}; adjusting twice favours rare classes too much: take "
        f"the predictions that it was made from."
    )


# --- arrays -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Arrays:
    """Scores in one array or memory map, and further arrays to be copied."""

    scores: NDArray[Any]
    kind: Kind
    others: Mapping[str, NDArray[Any]]

    def save(self, path: Path, tau: float, adjusted: Iterable[Adjusted]) -> None:
        dtype = self.scores.dtype if self.scores.dtype.kind == "f" else np.dtype(np.float64)
        dtype = dtype.newbyteorder("=")
        predicted: list[NDArray[Any]] = []

        def write_scores(file: IO[bytes]) -> None:
            header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False}
            npy.write_array_header_2_0(file, {**header, "shape": self.scores.shape})
            for _, scores, labels in adjusted:
                file.write(np.ascontiguousarray(scores, dtype=dtype).data)
                predicted.append(labels)

        with ExitStack() as stack:
            temporary = stack.enter_context(atomic_path(path))
            if path.suffix.lower() == ".npy":
                answers = stack.enter_context(atomic_path(answers_path(path)))
                with open(temporary, "wb") as file:
                    write_scores(file)
                with open(answers, "wb") as file:
                    np.save(file, np.concatenate(predicted))
                return
            archive = stack.enter_context(zipfile.ZipFile(temporary, "w"))
            with archive.open(f"{self.kind}.npy", "w", force_zip64=True) as member:
                write_scores(member)
            more = {"predicted": np.concatenate(predicted), ADJUSTED: np.float64(tau)}
            for name, array in {**self.others, **more}.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    npy.write_array(member, np.asanyarray(array), allow_pickle=False)


def answers_path(path: Path) -> Path:
    """Return where the predicted labels of adjusted scores in an .npy file are."""
    return path.with_name(f"{path.stem}.predicted.npy")


def _from_npy(path: Path, kind: Kind | None, labels: Any, classes: Any) -> Predictions:
    if answers_path(path).exists():
        raise _adjusted_already(path, f", as {answers_path(path).name} beside it says")
    kind, _ = _score_source(["scores"], "scores", kind, path)
    _, target = _label_source(labels, (), path, classes)
    return from_arrays(
        load_npy(path), target, kind=kind, class_names=classes, name=str(path), others={}
    )


def _from_npz(path: Path, kind: Kind | None, labels: Any, scores: Any, classes: Any) -> Predictions:
    with readable(path), zipfile.ZipFile(path) as archive:
        names = [name[:-4] for name in archive.namelist() if name.endswith(".npy")]
        if ADJUSTED in names:
            tau = float(mapped_member(path, archive, ADJUSTED))
            raise _adjusted_already(path, f" (tau = {tau:g})")
        kind, (chosen, *more) = _score_source(names, scores, kind, path)
        if more:
            raise InputError(f"{path}: one array must hold all scores, not {chosen} and {more[0]}.")
        inside, target = _label_source(labels, [n for n in names if n != chosen], path, classes)
        left_out = tuple(name for name in names if name in KINDS and name != chosen)
        arrays = {n: mapped_member(path, archive, n) for n in names if n not in left_out}
    scores = arrays.pop(chosen)
    known = {
        name: np.squeeze(arrays[name]) for name in ("counts", "norms", "bias") if name in arrays
    }
    return from_arrays(
        scores,
        target if inside is None else arrays[inside],
        kind=kind,
        class_names=arrays.get("classes") if classes is None else classes,
        name=str(path),
        others=arrays,
        left_out=left_out,
        **known,
    )


def mapped_member(path: Path, archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """Return a memory map of an array in an .npz; what is compressed is unpacked to a disk."""
    info = archive.getinfo(f"{name}.npy")
    with ExitStack() as stack:
        if info.compress_type == zipfile.ZIP_STORED:
            file: Any = stack.enter_context(open(path, "rb"))
            file.seek(info.header_offset + 26)  # the member's own header says where its data begin
            lengths = np.frombuffer(file.read(4), "<u2")
            file.seek(int(lengths.sum()), io.SEEK_CUR)
        else:
            file = stack.enter_context(tempfile.TemporaryFile())
            with archive.open(info) as packed:
                shutil.copyfileobj(packed, file)
            file.seek(0)
        start = file.tell()
        first = npy.read_magic(file) == (1, 0)
        header = npy.read_array_header_1_0 if first else npy.read_array_header_2_0
        shape, fortran, dtype = header(file)
        if dtype.hasobject:
            raise ValueError(f"`{name}` holds Python objects; save names as text")
        size = math.prod(shape) * dtype.itemsize
        if size > info.file_size - (file.tell() - start):  # else what follows would be taken
            raise ValueError(f"`{name}` is smaller than its header says")
        return np.memmap(file, dtype, "r", file.tell(), shape, "F" if fortran else "C")


# --- tables -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Table:
    """Scores in a csv or parquet file, read and written through pyarrow.

    Attributes:
        path: the file.
        separator: what stands between the cells of a csv file; None for parquet.
        schema: of the whole table.
        columns: names of the score columns; a single one if it holds lists.
        lists: whether it does.
        label_column: name of the column of labels, or None.
        left_out: columns that are not written again.
    """

    path: Path
    separator: str | None
    schema: Any
    columns: tuple[str, ...]
    lists: bool = False
    label_column: str | None = None
    left_out: tuple[str, ...] = ()

    def read(self, rows: int, whole: bool) -> Iterator[tuple[NDArray[Any], Any, Any]]:
        wanted = [*self.columns, *([self.label_column] if self.label_column else [])]
        row = width = 0
        with readable(self.path):
            for batch in self._batches(rows, None if whole else wanted):
                columns, labels = [batch.column(name) for name in self.columns], None
                if self.lists:
                    lengths = columns[0].value_lengths().to_numpy(zero_copy_only=False)
                    width = width or int(lengths[0])
                    self._refuse(lengths != width, row, f"has not {width} scores, as the first has")
                    scores = columns[0].flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
                else:
                    scores = np.stack([c.to_numpy(zero_copy_only=False) for c in columns], axis=1)
                if self.label_column is not None:
                    column = batch.column(self.label_column)
                    self._refuse(np.asarray(column.is_null()), row, f"has no {self.label_column}")
                    labels = column.to_numpy(zero_copy_only=False)
                    labels = labels.astype(str) if labels.dtype == object else labels
                yield scores, labels, batch if whole else None
                row += len(scores)

    def _refuse(self, bad: NDArray[Any], row: int, why: str) -> None:
        if np.any(bad):
            raise InputError(f"{self.path}: row {row + int(np.argmax(bad))} {why}.")

    def _batches(self, rows: int, wanted: Sequence[str] | None) -> Iterator[Any]:
        from pyarrow import csv, parquet

        if self.separator is None:
            yield from parquet.ParquetFile(self.path).iter_batches(rows, columns=wanted)
            return
        convert = csv.ConvertOptions(
            column_types=self.schema, include_columns=wanted, strings_can_be_null=False
        )
        parse = csv.ParseOptions(delimiter=self.separator)
        blocks = csv.ReadOptions(block_size=_CSV_BLOCK)
        with csv.open_csv(self.path, blocks, parse, convert) as reader:
            yield from reader

    def save(self, path: Path, tau: float, adjusted: Iterable[Adjusted]) -> None:
        from pyarrow import parquet

        found = self._adjusted(tau, adjusted)
        first = next(found)
        with ExitStack() as stack:
            temporary = stack.enter_context(atomic_path(path))
            if self.separator is None:
                file = stack.enter_context(parquet.ParquetWriter(temporary, first.schema))
                for batch in chain([first], found):
                    file.write_batch(batch)
                return
            out = stack.enter_context(open(temporary, "wb"))
            header = io.StringIO()
            cells = text.writer(header, delimiter=self.separator, lineterminator="\n")
            cells.writerow(first.schema.names)
            out.write(header.getvalue().encode())
            for batch in chain([first], found):
                out.write(_csv_rows(batch, self.separator))

    def _adjusted(self, tau: float, adjusted: Iterable[Adjusted]) -> Iterator[Any]:
        """Yield the batches of the adjusted table."""
        import pyarrow as pa

        place = {name: k for k, name in enumerate(self.columns)}
        kept = [f for f in self.schema if f.name not in {"predicted", *self.left_out}]
        metadata = {**(self.schema.metadata or {}), f"longtail.{ADJUSTED}".encode(): repr(tau)}
        if kept != list(self.schema):
            metadata.pop(b"pandas", None)  # describes columns that are gone
        for block, scores, predicted in adjusted:
            if self.lists:
                ends = np.arange(len(scores) + 1, dtype=np.int32) * scores.shape[1]
                new = [pa.ListArray.from_arrays(ends, pa.array(scores.reshape(-1)))]
            else:
                new = [pa.array(column) for column in scores.T]
            columns = {
                f.name: new[place[f.name]].cast(f.type, safe=False)
                if f.name in place
                else block.rest.column(f.name)
                for f in kept
            }
            columns["predicted"] = pa.array(predicted.tolist())
            if self.separator is not None:
                columns[ADJUSTED] = pa.array([f"{tau:.12g}"] * len(scores))
                metadata = {}
            fields = [*kept, *(pa.field(n, columns[n].type) for n in [*columns][len(kept) :])]
            yield pa.record_batch([*columns.values()], pa.schema(fields, metadata))


def _csv_rows(batch: Any, separator: str) -> bytes:
    """Return rows of csv, in quotation marks only where a cell holds one or a separator."""
    import pyarrow as pa
    from pyarrow import csv

    out = pa.BufferOutputStream()
    how = {"include_header": False, "delimiter": separator}
    try:
        csv.write_csv(batch, out, csv.WriteOptions(**how, quoting_style="none"))
    except pa.ArrowInvalid:
        out = pa.BufferOutputStream()
        csv.write_csv(batch, out, csv.WriteOptions(**how, quoting_style="needed"))
    return bytes(out.getvalue())


def _from_table(
    path: Path, kind: Kind | None, labels: Any, scores: str | None, classes: Any
) -> Predictions:
    parquet = _checks.require("pyarrow.parquet", extra="tables")
    import pyarrow as pa

    num_rows, separator = None, SEPARATORS.get(path.suffix.lower())
    with readable(path):
        if separator:
            with open(path, newline="", encoding="utf-8-sig") as file:
                names = next(text.reader(file, delimiter=separator), [])
            schema = pa.schema([(name, pa.string()) for name in names])
        else:
            file = parquet.ParquetFile(path)
            schema, num_rows = file.schema_arrow, int(file.metadata.num_rows)
    names = schema.names
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"{path}: the column {twice[0]!r} occurs twice; rename one of them.")
    mark = (schema.metadata or {}).get(f"longtail.{ADJUSTED}".encode())
    if mark is not None or ADJUSTED in names:
        raise _adjusted_already(path, f" (tau = {mark.decode()})" if mark else "")
    inside, target = _label_source(labels, names, path, classes)
    others = [name for name in names if name != inside]
    kind, columns = _score_source(others, scores, kind, path)
    lists = len(columns) == 1 and hasattr(schema.field(columns[0]).type, "value_type")
    numbers, real = set(columns), pa.list_(pa.float64()) if lists else pa.float64()
    fields = [  # other cells of a csv file stay the text that they are
        f.with_type(real)
        if f.name in numbers and not pa.types.is_floating(getattr(f.type, "value_type", f.type))
        else f
        for f in schema
    ]
    schema = pa.schema(fields, schema.metadata)
    own = None if lists else tuple(name.removeprefix(PREFIXES[kind]) for name in columns)
    if own and classes is not None and own[0] != columns[0] and tuple(classes) != own:
        raise InputError(
            f"{path}: the score columns are of the classes {_checks.listing(own)}, in this order; "
            f"leave `classes=` out."
        )
    other = "probs" if kind == "logits" else "logits"
    repeated = {other, *(PREFIXES[other] + name for name in own or classes or ())} - numbers
    left_out = tuple(name for name in others if name in repeated)
    table = _Table(path, separator, schema, tuple(columns), lists, inside, left_out)
    shape = num_rows, len(columns)
    if lists:
        shape = num_rows, next((scores.shape[1] for scores, _, _ in table.read(1, False)), 0)
    known: dict[str, Any] = {"labelled": inside is not None, "left_out": left_out}
    class_names = own if classes is None else classes
    return _predictions(str(path), kind, shape, class_names, target, source=table, **known)
