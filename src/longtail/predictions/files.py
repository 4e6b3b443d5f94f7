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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
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
    SEPARATORS,
    LabelEncoder,
    check_class_names,
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


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive rows of saved predictions.

    Attributes:
        first_row: index of the first one.
        scores: logits or probabilities, shape (rows, num_classes); a view of a memory map, or
            an array of this block's own.
        target: class indices, shape (rows,), or None without labels.
        rest: the whole rows, to save them again.
    """

    first_row: int
    scores: NDArray[Any]
    target: IntArray | None
    rest: Any = None


Adjusted = tuple[Block, NDArray[Any], IntArray]
"""A block, its adjusted scores, and the predicted class indices."""


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
        left_out: arrays or columns that an adjusted file does not repeat, such as other scores
            of the same classes.
    """

    name: str
    kind: Kind
    num_classes: int
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
        """Yield the rows in order, about `elements` scores at a time.

        Args:
            elements: scores per block, at least one row.
            rest: whether to keep what `save` needs besides the scores.
        """
        raise NotImplementedError

    def save(self, path: Path, tau: float, adjusted: Iterable[Adjusted]) -> None:
        """Write adjusted blocks in the same format; on failure no file stays."""
        raise NotImplementedError

    def outputs(self, path: Path) -> tuple[Path, ...]:
        """Return the files that `save` makes."""
        return (path,)

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
    if suffix not in (".npz", ".npy", ".csv", ".tsv", ".parquet", ".pq"):
        raise InputError(
            f"{path} must be a run folder or end in .npz, .npy, .csv, .tsv, .parquet or .pq; save "
            f"predictions with numpy.savez(file, logits=..., target=...), for example."
        )
    if not path.is_file():
        raise InputError(f"{path}: there is no such file.")
    open_one = {".npz": _from_npz, ".npy": _from_npy}.get(suffix, _from_table)
    return open_one(path, kind, labels, scores, classes)


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
        kind: [name for name in names if name == kind or name.startswith(PREFIXES[kind])]
        for kind in KINDS
    }
    if scores is None:
        there = [key for key in KINDS if by_name[key] and kind in (None, key)]
        if len(there) > 1:
            raise InputError(
                f"{path} has both logits and probabilities; choose with `kind='logits'` or "
                f"`kind='probs'`."
            )
        if not there:
            raise InputError(
                f"{path} must have {kind or 'logits or probs'}: in an .npz file an array of that "
                f"name, in a table a column logit_NAME or prob_NAME for each class; name the "
                f"scores that it has otherwise with `scores=`, and their kind with "
                f"`kind='logits'` or `kind='probs'`."
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
    said = [key for key in KINDS if chosen.keys() <= set(by_name[key])]
    return _said(kind or next(iter(said), None), path), list(chosen)


def _said(kind: Kind | None, name: str | Path) -> Kind:
    """Return the kind, which nothing but an argument can say here."""
    if kind is None:
        raise InputError(
            f"{name}: say what the scores are, with `kind='logits'` or `kind='probs'`."
        )
    return kind


def _adjusted_already(name: str | Path, how: str) -> InputError:
    return InputError(
        f"{name} was adjusted already{how}; adjusting twice favours rare classes too much: take "
        f"the predictions that it was made from."
    )


# --- arrays -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Packed:
    """An array in a compressed member of an archive, unpacked anew in each pass."""

    path: Path
    member: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def blocks(self, rows: int) -> Iterator[NDArray[Any]]:
        with readable(self.path), zipfile.ZipFile(self.path) as archive:
            with archive.open(self.member) as file:
                _read_header(file)
                for start in range(0, self.shape[0], rows):
                    shape = (min(rows, self.shape[0] - start), self.shape[1])
                    content = file.read(shape[0] * shape[1] * self.dtype.itemsize)
                    yield np.frombuffer(content, self.dtype).reshape(shape)


@dataclass(frozen=True, eq=False, kw_only=True)
class _ArrayPredictions(Predictions):
    """Scores in one array, or in a compressed member of an archive.

    Attributes:
        dtype: of the scores.
        packed: the compressed member, if `mapped` is None.
        form: "npy" or "npz", the format to save in.
        others: further arrays, which are copied.
    """

    dtype: np.dtype[Any]
    num_rows: int
    packed: _Packed | None = None
    form: str = "npz"
    others: Mapping[str, NDArray[Any]] = dataclasses.field(default_factory=dict)

    def blocks(self, elements: int, *, rest: bool = False) -> Iterator[Block]:
        step = max(1, elements // self.num_classes)
        starts = range(0, self.num_rows, step)
        views = (self.mapped[start : start + step] for start in starts)
        found = self.packed.blocks(step) if self.packed else views
        for start, scores in zip(starts, found, strict=True):
            target = None if self.target is None else self.target[start : start + step]
            yield Block(start, scores, target)

    def outputs(self, path: Path) -> tuple[Path, ...]:
        return (path,) if self.form == "npz" else (path, _answers(path))

    def save(self, path: Path, tau: float, adjusted: Iterable[Adjusted]) -> None:
        dtype = (self.dtype if self.dtype.kind == "f" else np.dtype(np.float64)).newbyteorder("=")
        header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False}
        predicted: list[IntArray] = []

        def write_scores(file: IO[bytes]) -> None:
            shape = (self.num_rows, self.num_classes)
            npy.write_array_header_2_0(file, {**header, "shape": shape})
            for _, scores, classes in adjusted:
                file.write(np.ascontiguousarray(scores, dtype=dtype).data)
                predicted.append(classes)

        with ExitStack() as stack:
            first, *second = [stack.enter_context(atomic_path(p)) for p in self.outputs(path)]
            if second:
                with open(first, "wb") as file:
                    write_scores(file)
                with open(second[0], "wb") as file:
                    npy.write_array(file, self.labels(np.concatenate(predicted)))
                return
            archive = stack.enter_context(zipfile.ZipFile(first, "w"))
            with archive.open(f"{self.kind}.npy", "w", force_zip64=True) as file:
                write_scores(file)
            answers = self.labels(np.concatenate(predicted))
            more = {**self.others, "predicted": answers, ADJUSTED: np.float64(tau)}
            for name, array in more.items():
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
        **known: further attributes of `Predictions`: prior, counts, norms, bias.

    Examples:
        >>> found = from_arrays([[2.0, 1.0], [0.5, 1.5]], ["a", "b"], kind="logits",
        ...                     class_names=["a", "b"])
        >>> found.num_rows, found.labelled, found.label(1)
        (2, True, 'b')
    """
    _checks.choice(kind, KINDS, name="kind")
    packed = scores if isinstance(scores, _Packed) else None
    array = None if packed else _checks.matrix(scores, name=kind, finite=False)
    (num_rows, num_classes), dtype = (packed or array).shape, (packed or array).dtype
    _at_least_two(num_classes, name)
    names = check_class_names(class_names, num_classes, name=name)
    if target is not None:
        known.setdefault("others", {"target": _checks.as_numpy(target)})
        target = LabelEncoder(num_classes, names, name=name)(target)
        if len(target) != num_rows:
            raise InputError(f"{name}: there are {num_rows} rows but {len(target)} labels.")
    return _ArrayPredictions(
        name=name,
        kind=kind,
        num_classes=num_classes,
        class_names=names,
        num_rows=num_rows,
        labelled=target is not None,
        target=target,
        mapped=array,
        packed=packed,
        dtype=dtype,
        **known,
    )


def _at_least_two(num_classes: int, name: str | Path) -> None:
    if num_classes < 2:
        raise InputError(
            f"{name}: there must be scores of at least two classes, one column each (give both "
            f"columns of a binary score)."
        )


def _answers(path: Path) -> Path:
    """Return where the predicted labels of adjusted scores in an .npy file are."""
    return path.with_name(f"{path.stem}.predicted.npy")


def _from_npy(path: Path, kind: Kind | None, labels: Any, scores: Any, classes: Any) -> Predictions:
    if _answers(path).exists():
        raise _adjusted_already(path, f", as {_answers(path).name} beside it says")
    target = _label_source(labels, (), path, classes)[1]
    known = {"kind": _said(kind, path), "class_names": classes, "name": str(path)}
    return from_arrays(load_npy(path), target, form="npy", others={}, **known)


def _from_npz(path: Path, kind: Kind | None, labels: Any, scores: Any, classes: Any) -> Predictions:
    with readable(path), zipfile.ZipFile(path) as archive:
        names = [name[:-4] for name in archive.namelist() if name.endswith(".npy")]
        if ADJUSTED in names:
            raise _adjusted_already(path, f" (tau = {float(_read(archive, ADJUSTED)):g})")
        kind, (chosen, *more) = _score_source(names, scores, kind, path)
        if more:
            raise InputError(f"{path}: one array must hold all scores, not {chosen} and {more[0]}.")
        inside, target = _label_source(labels, [n for n in names if n != chosen], path, classes)
        # Other matrices, such as features, are not read: they may be as large as the scores.
        known = {inside, "classes", "counts", "norms", "bias"} - {chosen}
        others = {
            name: _read(archive, name)
            for name in names
            if name in known or (name not in (chosen, *KINDS) and _is_vector(archive, name))
        }
        where = _located(path, archive, chosen)
    return from_arrays(
        where,
        others[inside] if inside is not None else target,
        kind=kind,
        class_names=others.get("classes") if classes is None else classes,
        name=str(path),
        others=others,
        left_out=tuple(n for n in names if n != chosen and n not in others),
        **{key: np.squeeze(others[key]) for key in ("counts", "norms", "bias") if key in others},
    )


def _read(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with archive.open(f"{name}.npy") as file:
        return np.asarray(npy.read_array(file, allow_pickle=False))


def _is_vector(archive: zipfile.ZipFile, name: str) -> bool:
    with archive.open(f"{name}.npy") as file:
        return sum(size > 1 for size in _read_header(file)[0]) < 2


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, Fortran order and dtype of the array that follows."""
    first = npy.read_magic(file) == (1, 0)
    return (npy.read_array_header_1_0 if first else npy.read_array_header_2_0)(file)


def _located(path: Path, archive: zipfile.ZipFile, name: str) -> NDArray[Any] | _Packed:
    """Return an array in an archive as a memory map, or what unpacks it."""
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as file:
        (shape, fortran, dtype), header = _read_header(file), file.tell()
    if len(shape) != 2 or 0 in shape or dtype.kind not in "fiu":
        raise InputError(
            f"{path}: `{name}` must hold numbers in the shape (examples, classes); it has the "
            f"shape {shape} and dtype {dtype}."
        )
    if info.compress_type != zipfile.ZIP_STORED:
        return _read(archive, name) if fortran else _Packed(path, info.filename, shape, dtype)
    with open(path, "rb") as raw:  # the member's own header says where its data begin
        raw.seek(info.header_offset + 26)
        lengths = np.frombuffer(raw.read(4), "<u2")
    offset = info.header_offset + 30 + int(lengths.sum()) + header
    return np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")


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
    """

    path: Path
    schema: Any
    columns: tuple[str, ...]
    lists: bool = False
    label_column: str | None = None

    def blocks(self, elements: int, *, rest: bool = False) -> Iterator[Block]:
        encode = LabelEncoder(self.num_classes, self.class_names, name=self.name)
        wanted = [*self.columns, *([self.label_column] if self.label_column else [])]
        row, rows = 0, max(1, elements // self.num_classes)
        for batch in _batches(self.path, rows, None if rest else wanted, self.schema):
            scores = self._scores(batch, row)
            target = None if self.target is None else self.target[row : row + len(scores)]
            if self.label_column is not None:
                column = batch.column(self.label_column)
                if column.null_count:
                    empty = row + int(np.argmax(np.asarray(column.is_null())))
                    raise InputError(f"{self.name}: row {empty} has no {self.label_column}.")
                values = column.to_numpy(zero_copy_only=False)
                values = values.astype(str) if values.dtype == object else values
                target = encode(values, first_row=row)
            yield Block(row, scores, target, batch if rest else None)
            row += len(scores)
        if row == 0:
            raise InputError(f"{self.name} has no rows.")
        if self.target is not None and len(self.target) != row:
            raise InputError(f"{self.name}: there are {row} rows but {len(self.target)} labels.")

    def _scores(self, batch: Any, row: int) -> NDArray[Any]:
        columns = [batch.column(name) for name in self.columns]
        if not self.lists:
            return np.stack([c.to_numpy(zero_copy_only=False) for c in columns], axis=1)
        lengths = columns[0].value_lengths().to_numpy(zero_copy_only=False)
        if np.any(lengths != self.num_classes):
            off = int(np.argmax(lengths != self.num_classes))
            raise InputError(
                f"{self.name}: row {row + off} has {lengths[off]} scores but the first row has "
                f"{self.num_classes}."
            )
        values: NDArray[Any] = columns[0].flatten().to_numpy(zero_copy_only=False)
        return values.reshape(-1, self.num_classes)

    def save(self, path: Path, tau: float, adjusted: Iterable[Adjusted]) -> None:
        import pyarrow as pa

        separator = SEPARATORS.get(self.path.suffix.lower())
        place = {name: k for k, name in enumerate(self.columns)}
        dropped = {"predicted", *self.left_out}
        kept = [
            field.with_type(_floats(field.type)) if field.name in place else field
            for field in self.schema
            if field.name not in dropped
        ]
        metadata = {**(self.schema.metadata or {}), f"longtail.{ADJUSTED}".encode(): repr(tau)}
        if kept != list(self.schema):
            metadata.pop(b"pandas", None)  # describes columns that are gone or changed
        fields = [*kept, pa.field("predicted", pa.string() if self.class_names else pa.int64())]
        if separator:
            fields.append(pa.field(ADJUSTED, pa.string()))
        schema = pa.schema(fields, None if separator else metadata)

        def batches() -> Iterator[Any]:
            for block, scores, predicted in adjusted:
                if self.lists:
                    ends = np.arange(len(scores) + 1, dtype=np.int32) * self.num_classes
                    new = [pa.ListArray.from_arrays(ends, pa.array(scores.reshape(-1)))]
                else:
                    new = [pa.array(column) for column in scores.T]
                columns = [
                    new[place[field.name]].cast(field.type, safe=False)
                    if field.name in place
                    else block.rest.column(field.name)
                    for field in kept
                ]
                columns.append(pa.array(self.labels(predicted).tolist(), fields[len(kept)].type))
                columns += [pa.array([f"{tau:.12g}"] * len(scores))] * bool(separator)
                yield pa.record_batch(columns, schema=schema)

        with atomic_path(path) as temporary:
            _write_table(temporary, schema, separator, batches())


def _from_table(
    path: Path, kind: Kind | None, labels: Any, scores: str | None, classes: Any
) -> Predictions:
    schema, num_rows = _form(path)
    names = schema.names
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise InputError(f"{path}: the column {twice!r} occurs twice; rename one of them.")
    mark = (schema.metadata or {}).get(f"longtail.{ADJUSTED}".encode())
    if mark is not None or ADJUSTED in names:
        raise _adjusted_already(path, f" (tau = {mark.decode()})" if mark else "")
    inside, target = _label_source(labels, names, path, classes)
    others = [name for name in names if name != inside]
    kind, columns = _score_source(others, scores, kind, path)
    if num_rows is None:  # csv: numbers are parsed, all other cells stay the text that they are
        schema = _csv_schema(names, columns)
    lists = len(columns) == 1 and hasattr(schema.field(columns[0]).type, "value_type")
    own = None if lists else tuple(name.removeprefix(PREFIXES[kind]) for name in columns)
    if own and classes is not None and own[0] != columns[0] and tuple(classes) != own:
        raise InputError(
            f"{path}: the score columns are of the classes {_checks.listing(own)}, in this order; "
            f"leave `classes=` out."
        )
    width = _list_width(path, columns[0]) if lists else len(columns)
    _at_least_two(width, path)
    class_names = check_class_names(own if classes is None else classes, width, name=str(path))
    if target is not None:
        target = LabelEncoder(width, class_names, name=str(path))(target)
    other = "probs" if kind == "logits" else "logits"
    repeated = {other, *(PREFIXES[other] + name for name in class_names or ())} - set(columns)
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


def _floats(kind: Any) -> Any:
    """Return the type of adjusted scores: the given one, but float64 for whole numbers."""
    import pyarrow as pa

    if pa.types.is_floating(getattr(kind, "value_type", kind)):
        return kind
    return pa.list_(pa.float64()) if hasattr(kind, "value_type") else pa.float64()


def _form(path: Path) -> tuple[Any, int | None]:
    """Return a table's schema and the number of its rows, which of a csv file is not known."""
    parquet = _checks.require("pyarrow.parquet", extra="tables")
    with readable(path):
        if separator := SEPARATORS.get(path.suffix.lower()):
            with open(path, newline="", encoding="utf-8-sig") as file:
                names = next(text.reader(file, delimiter=separator), [])
            return _csv_schema(names, names), None
        file = parquet.ParquetFile(path)
        return file.schema_arrow, int(file.metadata.num_rows)


def _csv_schema(names: Sequence[str], columns: Sequence[str]) -> Any:
    """Return numbers for the score columns, and text as it is for all others."""
    import pyarrow as pa

    numbers = set(columns)
    return pa.schema([(name, pa.float64() if name in numbers else pa.string()) for name in names])


def _batches(path: Path, rows: int, wanted: Sequence[str] | None, schema: Any) -> Iterator[Any]:
    from pyarrow import csv, parquet

    with readable(path):
        if not (separator := SEPARATORS.get(path.suffix.lower())):
            yield from parquet.ParquetFile(path).iter_batches(batch_size=rows, columns=wanted)
            return
        with csv.open_csv(
            path,
            read_options=csv.ReadOptions(block_size=_CSV_BLOCK),
            parse_options=csv.ParseOptions(delimiter=separator),
            convert_options=csv.ConvertOptions(
                column_types=schema, include_columns=wanted, strings_can_be_null=False
            ),
        ) as reader:
            yield from reader


def _list_width(path: Path, column: str) -> int:
    for batch in _batches(path, 1, [column], None):
        return int(batch.column(0).value_lengths()[0].as_py() or 0)
    raise InputError(f"{path} has no rows.")


def _write_table(path: Path, schema: Any, separator: str | None, batches: Iterator[Any]) -> None:
    import pyarrow as pa
    from pyarrow import csv, parquet

    if separator is None:
        with parquet.ParquetWriter(path, schema) as file:
            for batch in batches:
                file.write_batch(batch)
        return

    def cells(batch: Any, quotes: str) -> Any:
        out = pa.BufferOutputStream()
        how = csv.WriteOptions(include_header=False, delimiter=separator, quoting_style=quotes)
        csv.write_csv(batch, out, how)
        return out.getvalue()

    header = io.StringIO()
    text.writer(header, delimiter=separator, lineterminator="\n").writerow(schema.names)
    with open(path, "wb") as raw:
        raw.write(header.getvalue().encode())
        for batch in batches:
            try:
                raw.write(cells(batch, "none"))
            except pa.ArrowInvalid:  # a cell holds a separator or a quotation mark
                raw.write(cells(batch, "needed"))
