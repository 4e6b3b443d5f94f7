"""Saved predictions of any framework, read in blocks, and adjusted ones written.

One layout for each format; the options of `open_predictions` name what is called otherwise:

- ``.npz``: an array `logits` or `probs`, shape (examples, classes); `target` with the labels,
  `classes` with their names, `counts` with the training examples per class.
- ``.npy``: the scores alone; adjusted they become an .npz.
- ``.csv``, ``.tsv``: a column logit_NAME or prob_NAME for each class, and a column `label`.
- ``.parquet``: the same, or one column `logits` or `probs` of lists.
- a run folder: the logits of one of its splits; adjusted they become an .npz.

Arrays that lie in a file as they are (.npy, and .npz by `numpy.savez`) are memory-mapped. Tables
are read and written through pyarrow.
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
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import InputError, IntArray
from longtail.predictions.labels import (
    LABEL_NAMES,
    SEPARATORS,
    class_indices,
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
_MARK = f"longtail.{ADJUSTED}".encode()  # in the metadata of parquet

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


@dataclass(eq=False, kw_only=True)
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
        mapped: all scores as one array or memory map, where they are no table.
        table: the table otherwise.
        others: further arrays that an adjusted file repeats.
        left_out: arrays or columns that it does not repeat: other scores of the same classes.
        prior: of the training data, where the source knows it.
        counts: training examples per class, where the file has them.
        norms: of the last layer's weights, where the source has them.
        bias: of the last layer, where the source has it.
    """

    name: str
    kind: Kind
    num_classes: int
    class_names: tuple[str, ...] | None = None
    labelled: bool = False
    num_rows: int | None = None
    target: IntArray | None = None
    mapped: Any = None
    table: _Table | None = None
    others: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    prior: ClassPrior | None = None
    counts: NDArray[Any] | None = None
    norms: NDArray[Any] | None = None
    bias: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        """Check that class names and labels fit the scores."""
        if self.num_classes < 2:
            raise InputError(
                f"{self.name}: there must be scores of at least two classes, one column each (give "
                f"both columns of a binary score)."
            )
        if self.class_names is not None:
            names = tuple(str(text).strip() for text in np.asarray(self.class_names).reshape(-1))
            if len(names) != self.num_classes or len(set(names)) < self.num_classes:
                raise InputError(
                    f"{self.name}: there are {len(set(names))} class names but {self.num_classes} "
                    f"columns of scores; give one name per column, in order."
                )
            self.class_names = names
        if self.target is not None:
            self.labelled, known = True, (self.num_classes, self.class_names)
            self.target = class_indices(self.target, *known, name=self.name)
            if self.num_rows not in (None, len(self.target)):
                raise InputError(
                    f"{self.name}: there are {self.num_rows} rows but {len(self.target)} labels."
                )

    def blocks(self, elements: int, *, rest: bool = False) -> Iterator[Block]:
        """Yield the rows in order, about `elements` scores at a time; `rest` keeps whole rows."""
        known = self.num_classes, self.class_names
        row, rows = 0, max(1, elements // self.num_classes)
        if self.table is not None:
            found = self.table.read(rows, rest)
        else:
            starts = range(0, len(self.mapped), rows)
            found = ((self.mapped[start : start + rows], None, None) for start in starts)
        for scores, labels, whole in found:
            target = None
            if labels is not None:
                target = class_indices(labels, *known, name=self.name, first_row=row)
            elif self.target is not None:
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

    def save(self, path: Path, tau: float, adjusted: Iterable[Adjusted]) -> None:
        """Write adjusted predictions with all else that the source had."""
        if self.table is not None:
            self.table.save(path, tau, adjusted)
            return
        scores, predicted = self.mapped, list[NDArray[Any]]()
        dtype = scores.dtype if scores.dtype.kind == "f" else np.dtype(np.float64)
        dtype = dtype.newbyteorder("=")
        header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": scores.shape}
        with atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
            with archive.open(f"{self.kind}.npy", "w", force_zip64=True) as member:
                npy.write_array_header_2_0(member, header)
                for _, block, labels in adjusted:
                    member.write(np.ascontiguousarray(block, dtype=dtype).data)
                    predicted.append(labels)
            more = {"predicted": np.concatenate(predicted), ADJUSTED: np.float64(tau)}
            for name, array in {**self.others, **more}.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    npy.write_array(member, np.asanyarray(array), allow_pickle=False)


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
    if suffix in (".csv", ".tsv", ".parquet", ".pq"):
        return _from_table(path, kind, labels, scores, classes)
    if suffix not in (".npz", ".npy"):
        raise InputError(
            f"{path} must be a run folder or end in .npz, .npy, .csv, .tsv, .parquet or .pq; save "
            f"predictions with numpy.savez(file, logits=..., target=...), for example."
        )
    if suffix == ".npy":
        arrays: dict[str, Any] = {"scores": load_npy(path)}
        kind, (chosen,), inside, target = _select(path, arrays, kind, "scores", labels, classes)
        left_out: tuple[str, ...] = ()
    else:
        with readable(path), zipfile.ZipFile(path) as archive:
            names = [name[:-4] for name in archive.namelist() if name.endswith(".npy")]
            if ADJUSTED in names:
                raise _adjusted_already(path)
            kind, columns, inside, target = _select(path, names, kind, scores, labels, classes)
            if len(columns) > 1:
                raise InputError(
                    f"{path}: one array must hold all scores, not {columns[0]} and {columns[1]}."
                )
            (chosen,) = columns
            left_out = tuple(name for name in names if name in KINDS and name != chosen)
            arrays = {n: mapped_member(path, archive, n) for n in names if n not in left_out}
    values = arrays.pop(chosen)
    return from_arrays(
        values,
        target if inside is None else arrays[inside],
        kind=kind,
        class_names=arrays.get("classes") if classes is None else classes,
        name=str(path),
        others=arrays,
        left_out=left_out,
        **{n: np.squeeze(arrays[n]) for n in ("counts", "norms", "bias") if n in arrays},
    )


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
        **known: further attributes of `Predictions`: prior, counts, norms, bias, and others (by
            default the target).

    Examples:
        >>> found = from_arrays([[2.0, 1.0], [0.5, 1.5]], ["a", "b"], kind="logits",
        ...                     class_names=["a", "b"])
        >>> found.num_rows, found.labelled, found.label(1)
        (2, True, 'b')
    """
    _checks.choice(kind, KINDS, name="kind")
    known["mapped"] = array = _checks.matrix(scores, name=kind, finite=False)
    known.setdefault("others", {} if target is None else {"target": _checks.as_numpy(target)})
    known |= {"num_rows": len(array), "num_classes": array.shape[1]}
    return Predictions(name=name, kind=kind, class_names=class_names, target=target, **known)


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


def _select(
    path: Path,
    names: Iterable[str],
    kind: Kind | None,
    scores: str | None,
    labels: Any,
    classes: Sequence[str] | None,
) -> tuple[Kind, list[str], str | None, Any]:
    """Return the kind of the scores, the names of the arrays or columns that hold them, that of
    the labels inside the file or None, and labels from elsewhere or None.
    """
    there, inside, target = list(names), None, None
    if labels is None:
        inside = next((name for name in LABEL_NAMES if name in there), None)
    elif not isinstance(labels, str | Path):
        target = labels
    elif str(labels) in there:
        inside = str(labels)
    elif Path(labels).is_file():
        target = read_labels(Path(labels), classes)
    else:
        raise InputError(
            f"there is no file {labels} of labels, and {path} has no array or column of that name "
            f"(it has {_checks.listing(there) or 'none with a name'})."
        )
    names = [name for name in there if name != inside]
    called: dict[Kind, list[str]] = {
        key: [key] if key in names else [n for n in names if n.startswith(PREFIXES[key])]
        for key in KINDS
    }
    if scores is None:
        found = [key for key in KINDS if called[key] and kind in (None, key)]
        if len(found) != 1:
            raise InputError(
                f"{path} must have {kind or 'either logits or probs'}: an array of that name, or "
                f"columns logit_NAME or prob_NAME; it has {_checks.listing(there) or 'nothing'}. "
                f"Say which with `kind='logits'` or `kind='probs'`, name others with `scores=`."
            )
        return found[0], called[found[0]], inside, target
    chosen: dict[str, None] = {}
    for pattern in (part.strip() for part in scores.split(",")):
        matching = [name for name in names if name == pattern or fnmatchcase(name, pattern)]
        if not matching:
            raise InputError(
                f"{path} has no array or column {pattern!r}; it has {_checks.listing(there)}."
            )
        chosen |= dict.fromkeys(matching)
    kind = kind or next((key for key in KINDS if chosen.keys() <= set(called[key])), None)
    if kind is None:
        raise InputError(
            f"{path}: say what the scores are, with `kind='logits'` or `kind='probs'`."
        )
    return kind, list(chosen), inside, target


def _adjusted_already(path: Path) -> InputError:
    return InputError(
        f"{path} was adjusted already; adjusting twice favours rare classes too much: take the "
        f"predictions that it was made from."
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
    """Scores in a csv or parquet file.

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
    lists: bool
    label_column: str | None
    left_out: tuple[str, ...]

    def read(self, rows: int, whole: bool) -> Iterator[tuple[NDArray[Any], Any, Any]]:
        """Yield scores, labels or None, and whole rows if they are wanted."""
        from pyarrow import csv, parquet

        labelled = [] if self.label_column is None else [self.label_column]
        wanted = None if whole else [*self.columns, *labelled]
        row = width = 0
        with readable(self.path), ExitStack() as stack:
            if self.separator is None:
                batches = parquet.ParquetFile(self.path).iter_batches(rows, columns=wanted)
            else:
                convert = csv.ConvertOptions(
                    column_types=self.schema, include_columns=wanted, strings_can_be_null=False
                )
                parse = csv.ParseOptions(delimiter=self.separator)
                blocks = csv.ReadOptions(block_size=_CSV_BLOCK)
                batches = stack.enter_context(csv.open_csv(self.path, blocks, parse, convert))
            for batch in batches:
                columns = [batch.column(name) for name in self.columns]
                if self.lists:
                    lengths = columns[0].value_lengths().to_numpy(zero_copy_only=False)
                    width = width or int(lengths[0])
                    if np.any(lengths != width):
                        bad = row + int(np.argmax(lengths != width))
                        raise InputError(
                            f"{self.path}: row {bad} has not {width} scores, as the first has."
                        )
                    scores = columns[0].flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
                else:
                    scores = np.stack([c.to_numpy(zero_copy_only=False) for c in columns], axis=1)
                labels = None
                if self.label_column is not None:
                    labels = batch.column(self.label_column).to_numpy(zero_copy_only=False)
                    labels = labels.astype(str) if labels.dtype == object else labels
                yield scores, labels, batch if whole else None
                row += len(scores)

    def save(self, path: Path, tau: float, adjusted: Iterable[Adjusted]) -> None:
        """Write the adjusted table."""
        import pyarrow as pa
        from pyarrow import parquet

        kept = [f for f in self.schema if f.name not in {"predicted", *self.left_out}]
        metadata = {**(self.schema.metadata or {}), _MARK: repr(tau)}
        if kept != list(self.schema):
            metadata.pop(b"pandas", None)  # describes columns that are gone
        file: Any = None
        with ExitStack() as stack:
            temporary = stack.enter_context(atomic_path(path))
            for block, scores, predicted in adjusted:
                columns = {f.name: block.rest.column(f.name) for f in kept}
                ends = np.arange(len(scores) + 1, dtype=np.int32) * scores.shape[1]
                new = (
                    [pa.array(column) for column in scores.T]
                    if not self.lists
                    else [pa.ListArray.from_arrays(ends, pa.array(scores.reshape(-1)))]
                )
                for name, column in zip(self.columns, new, strict=True):
                    columns[name] = column.cast(self.schema.field(name).type, safe=False)
                columns["predicted"] = pa.array(predicted.tolist())
                if self.separator is not None:
                    columns[ADJUSTED] = pa.array([f"{tau:.12g}"] * len(scores))
                more = [pa.field(name, columns[name].type) for name in [*columns][len(kept) :]]
                batch = pa.record_batch([*columns.values()], pa.schema([*kept, *more], metadata))
                if self.separator is None:
                    if file is None:
                        file = stack.enter_context(parquet.ParquetWriter(temporary, batch.schema))
                    file.write_batch(batch)
                    continue
                if file is None:
                    file = stack.enter_context(open(temporary, "w", encoding="utf-8", newline=""))
                    cells = text.writer(file, delimiter=self.separator, lineterminator="\n")
                    cells.writerow(batch.schema.names)
                file.write(_csv_rows(batch, self.separator))


def _csv_rows(batch: Any, separator: str) -> str:
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
    return bytes(out.getvalue()).decode()


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
    if ADJUSTED in names or _MARK in (schema.metadata or {}):
        raise _adjusted_already(path)
    kind, columns, inside, target = _select(path, names, kind, scores, labels, classes)
    lists = len(columns) == 1 and hasattr(schema.field(columns[0]).type, "value_type")
    real, numbers = pa.list_(pa.float64()) if lists else pa.float64(), {*columns}
    fields = [  # other cells of a csv file stay the text that they are
        f.with_type(real)
        if f.name in numbers and not pa.types.is_floating(getattr(f.type, "value_type", f.type))
        else f
        for f in schema
    ]
    own = None if lists else tuple(name.removeprefix(PREFIXES[kind]) for name in columns)
    if own and classes is not None and own[0] != columns[0] and tuple(classes) != own:
        raise InputError(
            f"{path}: the score columns are of the classes {_checks.listing(own)}, in this order; "
            f"leave `classes=` out."
        )
    other = "probs" if kind == "logits" else "logits"
    repeated = {other, *(PREFIXES[other] + name for name in own or classes or ())} - numbers
    left_out = tuple(name for name in names if name in repeated and name != inside)
    schema = pa.schema(fields, schema.metadata)
    table = _Table(path, separator, schema, tuple(columns), lists, inside, left_out)
    width = len(columns)
    if lists:
        width = next((scores.shape[1] for scores, _, _ in table.read(1, False)), 0)
    return Predictions(
        name=str(path),
        kind=kind,
        num_classes=width,
        class_names=own if classes is None else tuple(classes),
        labelled=inside is not None,
        num_rows=num_rows,
        target=target,
        table=table,
        left_out=left_out,
    )
