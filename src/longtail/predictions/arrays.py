"""Predictions in NumPy's files, .npy and .npz, in run folders, or in memory.

Arrays that lie in a file as they are (.npy, and .npz by `numpy.savez`) are memory-mapped, so
that only the rows in use take memory; compressed ones are unpacked row by row, on every pass.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import InputError, IntArray
from longtail.predictions.base import (
    ADJUSTED,
    KINDS,
    Block,
    Kind,
    Predictions,
    Writer,
    adjusted_already,
    declared,
)
from longtail.predictions.labels import (
    LABEL_NAMES,
    LabelEncoder,
    check_class_names,
    is_label_shape,
    is_vector,
    one_dimensional,
    one_label_each,
    one_per_class,
)
from longtail.predictions.small_files import holds_objects, load_npy, unreadable
from longtail.runs.files import atomic_path

# Arrays of an .npz file with one number per class.
_PER_CLASS = ("counts", "norms", "bias")

_BROKEN = (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError)


@dataclass(frozen=True, eq=False, kw_only=True)
class ArrayPredictions(Predictions):
    """Scores in one array, or in a stream that has the form of one.

    Attributes:
        shape: (examples, num_classes).
        dtype: of the scores.
        scores: array or memory map; None for a compressed member, which `stream` opens anew.
        stream: opens the compressed scores behind their header.
        target: class indices, or None.
        form: "npy" or "npz": what is written.
        others: further arrays of an .npz file, which are copied.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    scores: NDArray[Any] | None
    stream: Callable[[], IO[bytes]] | None = None
    target: IntArray | None = None
    form: str = "npz"
    others: Mapping[str, NDArray[Any]]

    @property
    def mapped(self) -> NDArray[Any] | None:
        """All scores, unless they are compressed."""
        return self.scores

    def blocks(self, elements: int, *, rest: bool = False) -> Iterator[Block]:
        """The rows in order; views of the array where there is one."""
        step = self.rows_per_block(elements)
        for start, scores in self._pieces(step):
            rows = slice(start, start + len(scores))
            yield Block(start, scores, None if self.target is None else self.target[rows])

    def _pieces(self, step: int) -> Iterator[tuple[int, NDArray[Any]]]:
        if self.scores is not None:
            for start in range(0, self.shape[0], step):
                yield start, self.scores[start : start + step]
            return
        assert self.stream is not None  # one of the two is there, by construction
        with self.stream() as file:
            for start in range(0, self.shape[0], step):
                shape = (min(step, self.shape[0] - start), self.shape[1])
                size = shape[0] * shape[1] * self.dtype.itemsize
                try:
                    content = file.read(size)
                    if len(content) < size:
                        raise EOFError("it is shorter than its header says, as if cut off")
                except _BROKEN as error:
                    raise unreadable(self.name, error) from error
                yield start, np.frombuffer(content, self.dtype).reshape(shape)

    def outputs(self, path: Path) -> tuple[Path, ...]:
        """The file, and for .npy a second one with the predicted labels."""
        if self.form == "npz":
            return (path,)
        return path, _answers(path)

    @contextmanager
    def writer(self, path: Path, *, tau: float) -> Iterator[Writer]:
        """Writes blocks as they come; the predicted labels follow at the end."""
        rows = _ArrayRows(self)
        out, *labels = self.outputs(path)
        if labels:
            with atomic_path(out) as scores, atomic_path(labels[0]) as predicted:
                with open(scores, "wb") as rows.file:
                    rows.header()
                    yield rows
                with open(predicted, "wb") as file:
                    npy.write_array(file, rows.predicted(), allow_pickle=False)
            return
        with atomic_path(out) as temporary, zipfile.ZipFile(temporary, "w") as archive:
            with archive.open(f"{self.kind}.npy", "w", force_zip64=True) as rows.file:
                rows.header()
                yield rows
            extra = {**self.others, "predicted": rows.predicted(), ADJUSTED: np.float64(tau)}
            for name, array in extra.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    npy.write_array(file, np.asanyarray(array), allow_pickle=False)


class _ArrayRows:
    """The score array on its way to a file."""

    file: IO[bytes]

    def __init__(self, source: ArrayPredictions) -> None:
        self.source = source
        dtype = source.dtype if source.dtype.kind == "f" else np.dtype(np.float64)
        self.dtype = dtype.newbyteorder("=")
        self.chosen: list[IntArray] = []

    def header(self) -> None:
        npy.write_array_header_2_0(
            self.file,
            {
                "descr": npy.dtype_to_descr(self.dtype),
                "fortran_order": False,
                "shape": self.source.shape,
            },
        )

    def write(self, block: Block, scores: NDArray[Any], predicted: IntArray) -> None:
        self.file.write(np.ascontiguousarray(scores, dtype=self.dtype).data)
        self.chosen.append(predicted)

    def predicted(self) -> NDArray[Any]:
        return self.source.labels(np.concatenate(self.chosen))


def from_arrays(
    scores: Any,
    target: Any = None,
    *,
    kind: Kind,
    class_names: Any = None,
    name: str = "predictions",
    form: str = "npz",
    **known: Any,
) -> ArrayPredictions:
    """Predictions that are arrays already: NumPy (memory maps as well), torch or JAX.

    Args:
        scores: logits or probabilities, shape (examples, num_classes).
        target: labels, shape (examples,) or (examples, 1), as numbers or class names; None
            without.
        kind: "logits" or "probs".
        class_names: one per column, or None.
        name: for messages.
        form: "npz" or "npy", what `write` makes of it.
        **known: further attributes of `Predictions`: prior, counts, norms, bias, notes.

    Returns:
        The Predictions.

    Examples:
        >>> found = from_arrays([[2.0, 1.0], [0.5, 1.5]], ["a", "b"], kind="logits",
        ...                     class_names=["a", "b"])
        >>> found.num_rows, found.labelled, found.label(1)
        (2, True, 'b')
    """
    array = _checks.matrix(scores, caller=name, name=kind, finite=False)
    names = check_class_names(class_names, array.shape[1], name=name)
    form = _checks.choice(form, ("npz", "npy"), "from_arrays", name="form")
    others = {}
    if target is not None and form == "npz":
        others["target"] = _checks.as_numpy(target)
    return _made(
        array,
        array.shape,
        array.dtype,
        None,
        name=name,
        kind=declared(kind, None, name=name),
        names=names,
        target=target,
        form=form,
        others=others,
        **known,
    )


def _made(
    scores: NDArray[Any] | None,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    stream: Callable[[], IO[bytes]] | None,
    *,
    name: str,
    kind: Kind,
    names: tuple[str, ...] | None,
    target: Any,
    form: str,
    others: Mapping[str, NDArray[Any]],
    **known: Any,
) -> ArrayPredictions:
    codes = None
    if target is not None:
        codes = LabelEncoder(shape[1], names, name=name)(target)
        one_label_each(shape[0], codes, name=name, kind=kind)
    return ArrayPredictions(
        name=name,
        kind=kind,
        num_classes=shape[1],
        class_names=names,
        labelled=codes is not None,
        num_rows=shape[0],
        shape=(shape[0], shape[1]),
        dtype=dtype,
        scores=scores,
        stream=stream,
        target=codes,
        form=form,
        others=others,
        **known,
    )


def _answers(path: Path) -> Path:
    """Where the predicted labels of adjusted scores in an .npy file are."""
    return path.with_name(f"{path.stem}.predicted.npy")


def from_npy(path: Path, *, kind: Kind | None, target: Any, class_names: Any) -> ArrayPredictions:
    """The scores of an .npy file, memory-mapped; labels come from elsewhere."""
    if _answers(path).exists():  # the one mark that an adjusted .npy file can bear
        beside = _answers(path).name
        raise adjusted_already(
            str(path), seen=f", as {beside} beside it says (if not, move or rename {beside})"
        )
    kind = declared(kind, None, name=str(path))
    return from_arrays(
        load_npy(path), target, kind=kind, class_names=class_names, name=str(path), form="npy"
    )


@dataclass(frozen=True)
class _Member:
    """An array in an .npz archive: its form, and how to get at it."""

    name: str
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    stored: bool
    offset: int  # of the data: in the file if stored, else in the unpacked member


def from_npz(
    path: Path, *, kind: Kind | None, labels: Any, target: Any, class_names: Any
) -> ArrayPredictions:
    """The arrays of an .npz file.

    Args:
        path: the file.
        kind: which kind of scores, if the name of its array doesn't say.
        labels: name of the array of labels, if not one of the usual ones.
        target: labels that come from elsewhere.
        class_names: names that come from elsewhere; else the array `classes`.

    Returns:
        The Predictions.
    """
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is not an .npz file, or a damaged one; make it with numpy.savez.")
    members = {member.name: member for member in _members(path)}
    for member in members.values():
        if member.dtype.hasobject:
            raise holds_objects(path, f"`{member.name}`")
    if ADJUSTED in members:
        tau = float(_load(path, members[ADJUSTED]))
        raise adjusted_already(str(path), seen=f" (tau = {tau:g})")
    scores, kind = _score_member(members, kind, labels, path)
    rest = [member for member in members.values() if member is not scores]
    others = {m.name: _load(path, m) for m in rest if is_vector(m.shape) and m.name not in KINDS}
    per_class = {
        name: one_per_class(_load(path, members[name])) for name in _PER_CLASS if name in members
    }
    if target is None:
        target = _labels_in(members, labels, path)
    if class_names is None and "classes" in others:
        class_names = one_per_class(others["classes"])
    array = _load(path, scores) if scores.stored or scores.fortran else None
    if array is not None:
        _checks.matrix(array, caller=str(path), name=scores.name, finite=False)
    return _made(
        array,
        scores.shape,
        scores.dtype,
        None if array is not None else lambda: _unpacked(path, scores),
        name=str(path),
        kind=kind,
        names=check_class_names(class_names, scores.shape[1], name=str(path)),
        target=target,
        form="npz",
        others=others,
        notes=() if scores.stored else (_slow(path),),
        left_out=tuple(member.name for member in rest if member.name not in others),
        named_by="array" if scores.name in KINDS else None,
        **per_class,
    )


def _slow(path: Path) -> str:
    return f"{path} is compressed, so every pass unpacks it; numpy.savez stores it ready to map."


def _score_member(
    members: Mapping[str, _Member], kind: Kind | None, labels: str | None, path: Path
) -> tuple[_Member, Kind]:
    """The array of scores: the one named by its kind, or with a kind the only matrix.

    Labels, those in the array `labels` too, and what is there per class are no scores.
    """
    named = [name for name in KINDS if name in members]
    if kind is None and len(named) > 1:
        raise InputError(
            f"{path} has both logits and probs; choose with --logits (kind='logits') or --probs "
            f"(kind='probs')."
        )
    if kind in members or (kind is None and named):
        found = members[kind or named[0]]
    else:
        known = {*LABEL_NAMES, *_PER_CLASS, "classes", labels}
        matrices = [m for m in members.values() if len(m.shape) == 2 and m.name not in known]
        if len(matrices) != 1 or (kind is None and not matrices):
            raise InputError(
                f"{path} must hold `logits` or `probs`, of shape (examples, classes); it has "
                f"{_checks.listing(sorted(members)) or 'nothing'}. Save it with "
                f"numpy.savez(file, logits=..., target=...)."
            )
        (found,) = matrices
    said = declared(kind, found.name if found.name in KINDS else None, name=str(path))
    if len(found.shape) != 2 or 0 in found.shape or found.dtype.kind not in "fiu":
        raise InputError(
            f"{path}: `{found.name}` must hold numbers in the shape (examples, classes); it has "
            f"shape {found.shape} and dtype {found.dtype}."
        )
    return found, said


def _labels_in(
    members: Mapping[str, _Member], wanted: str | None, path: Path
) -> NDArray[Any] | None:
    """The labels in an .npz file: of the array `wanted`, or of one of a usual name."""
    named = [members[name] for name in LABEL_NAMES if name in members]
    found = [member for member in named if is_label_shape(member.shape)]
    otherwise = ""
    if wanted is not None:
        found = [members[wanted]]
    elif len(found) > 1:
        raise InputError(
            f"{path} has several arrays of labels, {', '.join(member.name for member in found)}; "
            f"name one with --labels."
        )
    elif not found:  # an array of such a name is not passed over in silence
        found = named[:1]
        otherwise = "; if it holds none, rename it or name the labels with --labels"
    if not found:
        return None
    name = f"`{found[0].name}` in {path}"
    return one_dimensional(_load(path, found[0]), name=name, otherwise=otherwise)


def array_names(path: Path) -> list[str]:
    """Names of the arrays in an .npz file; none if it is no such file."""
    if not zipfile.is_zipfile(path):
        return []
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    return [name.removesuffix(".npy") for name in names if name.endswith(".npy")]


def _members(path: Path) -> Iterator[_Member]:
    """The arrays of an archive, from their headers alone."""
    try:
        with zipfile.ZipFile(path) as archive, open(path, "rb") as raw:
            for info in archive.infolist():
                if not info.filename.endswith(".npy"):
                    continue
                with archive.open(info) as file:
                    shape, fortran, dtype = _header(file)
                    header = file.tell()
                stored = info.compress_type == zipfile.ZIP_STORED
                # The local header's own lengths count: they may differ from the directory's.
                raw.seek(info.header_offset + 26)
                lengths = np.frombuffer(raw.read(4), "<u2")
                begin = info.header_offset + 30 + int(lengths.sum())
                name = info.filename.removesuffix(".npy")
                offset = begin + header if stored else header
                yield _Member(name, shape, fortran, dtype, stored, offset)
    except _BROKEN as error:
        raise unreadable(path, error) from error


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(file)
    if version == (1, 0):
        return npy.read_array_header_1_0(file)
    if version == (2, 0):
        return npy.read_array_header_2_0(file)
    raise ValueError(f"an array has the unknown format version {version}")


def _load(path: Path, member: _Member) -> NDArray[Any]:
    """An array: mapped if it is a stored one of some size, in memory otherwise."""
    try:
        if member.stored and len(member.shape) == 2 and 0 not in member.shape:
            order = "F" if member.fortran else "C"
            return np.memmap(path, member.dtype, "r", member.offset, member.shape, order)  # type: ignore[call-overload,no-any-return]
        with np.load(path, allow_pickle=False) as archive:
            return archive[member.name]  # type: ignore[no-any-return]
    except _BROKEN as error:
        raise unreadable(path, error) from error


def _unpacked(path: Path, member: _Member) -> IO[bytes]:
    """A compressed array as a stream, its header read."""
    with zipfile.ZipFile(path) as archive:  # the member keeps the file open until it is closed
        file = archive.open(f"{member.name}.npy")
    file.read(member.offset)
    return file
