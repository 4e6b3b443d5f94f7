"""CIFAR-10 and CIFAR-100 from the official python archives, packed or unpacked.

The archives are pickles. They are read by an unpickler that admits what the official files
contain and nothing else: every opcode is looked at before anything is built, and the names
that stand for NumPy's arrays lead to stand-ins that only hold bytes.
"""

from __future__ import annotations

import gzip
import io
import math
import pickle
import pickletools
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import InputError
from longtail.data.images import ImageSet

_SIZE = (3, 32, 32)


@dataclass(frozen=True)
class Archive:
    """What an official archive is called and how it is laid out.

    Attributes:
        title: for people.
        file: the archive's name.
        md5: of the archive.
        folder: inside it.
        train: files of the training set, in the official order.
        test: files of the test set.
        meta: file of the class names.
        labels: key of the labels.
        names: key of the class names.
        num_classes: how many classes there are.
        hub: the data set's name on the Hugging Face hub.
    """

    title: str
    file: str
    md5: str
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: str
    labels: bytes
    names: bytes
    num_classes: int
    hub: str

    @property
    def url(self) -> str:
        """Where the archive is published."""
        return f"https://www.cs.toronto.edu/~kriz/{self.file}"


ARCHIVES = {
    "cifar10": Archive(
        title="CIFAR-10",
        file="cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
        folder="cifar-10-batches-py",
        train=tuple(f"data_batch_{number}" for number in range(1, 6)),
        test=("test_batch",),
        meta="batches.meta",
        labels=b"labels",
        names=b"label_names",
        num_classes=10,
        hub="uoft-cs/cifar10",
    ),
    "cifar100": Archive(
        title="CIFAR-100",
        file="cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        folder="cifar-100-python",
        train=("train",),
        test=("test",),
        meta="meta",
        labels=b"fine_labels",
        names=b"fine_label_names",
        num_classes=100,
        hub="uoft-cs/cifar100",
    ),
}


def read_cifar(path: Path | str, *, name: str) -> tuple[ImageSet, ImageSet]:
    """The training and the test set, in the official order.

    Args:
        path: the archive (.tar.gz), or the folder that it unpacks to.
        name: ``cifar10`` or ``cifar100``.

    Returns:
        (training set, test set); images are 3 x 32 x 32. Labels of CIFAR-100 are the fine ones.
    """
    caller = "read_cifar"
    archive = ARCHIVES[_checks.choice(name, list(ARCHIVES), caller, name="name")]
    path = Path(path)
    wanted = (*archive.train, *archive.test, archive.meta)
    if path.is_dir():
        contents = _from_folder(path, wanted)
    elif path.is_file():
        contents = _from_tar(path, archive, wanted)
    else:
        raise InputError(f"{caller}: there is no archive or folder {path}.")
    missing = [file for file in wanted if file not in contents]
    if missing:
        raise InputError(
            f"{caller}: {path} lacks {_checks.listing(missing)}; it must be the python version "
            f"of {archive.title}, {archive.url}"
        )
    names = _class_names(contents[archive.meta], archive, path)
    return (
        _image_set([contents[file] for file in archive.train], archive, names, path),
        _image_set([contents[file] for file in archive.test], archive, names, path),
    )


def _from_folder(path: Path, wanted: tuple[str, ...]) -> dict[str, Any]:
    present = [path / file for file in wanted if (path / file).is_file()]
    return {file.name: safe_unpickle(file.read_bytes(), source=str(file)) for file in present}


def _from_tar(path: Path, archive: Archive, wanted: tuple[str, ...]) -> dict[str, Any]:
    """The unpickled files of an archive; nothing is written to disk."""
    inside = {f"{archive.folder}/{file}": file for file in wanted}
    contents = {}
    try:
        with tarfile.open(path, "r:gz") as tar:
            for member in tar:
                known = member.name in inside and member.isreg()  # a link is not followed
                source = tar.extractfile(member) if known else None
                if source is not None:
                    content = source.read()
                    if len(content) != member.size:
                        raise EOFError("the file ends early")
                    contents[inside[member.name]] = safe_unpickle(
                        content, source=f"{path}: {member.name}"
                    )
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"read_cifar: {path} is truncated, or no .tar.gz archive: {error}; download it again "
            f"from {archive.url} (its MD5 is {archive.md5})."
        ) from error
    return contents


def _class_names(meta: Any, archive: Archive, path: Path) -> tuple[str, ...]:
    names = meta.get(archive.names) if isinstance(meta, dict) else None
    if (
        not isinstance(names, list)
        or len(names) != archive.num_classes
        or not all(isinstance(name, bytes) for name in names)
    ):
        raise InputError(
            f"read_cifar: {archive.meta} in {path} must list {archive.num_classes} class names "
            f"as {archive.names.decode()!r}; it doesn't."
        )
    return tuple(name.decode() for name in names)


def _image_set(
    batches: list[Any], archive: Archive, names: tuple[str, ...], path: Path
) -> ImageSet:
    caller, pixels, labels = "read_cifar", [], []
    for batch in batches:
        data = batch.get(b"data") if isinstance(batch, dict) else None
        found = batch.get(archive.labels) if isinstance(batch, dict) else None
        if not isinstance(data, _Array) or not isinstance(found, list):
            raise InputError(
                f"{caller}: {path} must hold the images as 'data' and their labels as "
                f"{archive.labels.decode()!r}; it doesn't."
            )
        array = data.to_numpy(caller, str(path))
        if array.ndim != 2 or array.shape != (len(found), math.prod(_SIZE)):
            raise InputError(
                f"{caller}: {path} must hold one row of {math.prod(_SIZE)} bytes (an image of "
                f"3 x 32 x 32) for each of its {len(found)} labels; its images have shape "
                f"{array.shape}."
            )
        pixels.append(array.reshape(-1, *_SIZE))
        labels.append(np.array(found))
    target = _checks.labels(
        np.concatenate(labels), caller=caller, name="labels", num_classes=len(names)
    )
    return ImageSet(np.concatenate(pixels), target, names)


# The unpickler. Official files are of protocol 2, written by Python 2: its strings are bytes.

_OPCODES = frozenset(
    {"PROTO", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE"}
    | {"EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "LIST", "APPEND", "APPENDS"}
    | {"EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
    | {"INT", "BININT", "BININT1", "BININT2", "STRING", "BINSTRING", "SHORT_BINSTRING"}
    | {"UNICODE", "BINUNICODE", "BINBYTES", "SHORT_BINBYTES"}
    | {"PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET"}
    | {"GLOBAL", "REDUCE", "BUILD"}
)


class _Dtype:
    """Stands in for `numpy.dtype`: bytes without sign are all there is."""

    def __init__(self, code: Any, *_: Any) -> None:
        if code not in (b"u1", b"|u1", "u1", "|u1"):
            raise InputError(f"it holds an array of the type {code!r} instead of bytes (u1)")

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like mean nothing for bytes."""


class _Array:
    """Stands in for `numpy.ndarray`: holds what was stored until it is asked for."""

    def __init__(self, *_: Any) -> None:
        raise InputError("it makes an array in another way than the official files do")

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes):
            raise InputError("it holds an array that isn't stored as plain bytes")
        self.shape, self.fortran, self.raw = shape, fortran, raw

    def to_numpy(self, caller: str, source: str) -> NDArray[np.uint8]:
        """The array, read-only."""
        shape = getattr(self, "shape", None)
        if (
            not isinstance(shape, tuple)
            or not all(type(size) is int and size >= 0 for size in shape)
            or math.prod(shape) != len(self.raw)
        ):
            raise InputError(f"{caller}: {source} holds an array whose size and shape disagree.")
        flat = np.frombuffer(self.raw, np.uint8)
        return flat.reshape(shape, order="F" if self.fortran else "C")


class _Reconstruct:
    """Stands in for NumPy's function that makes an empty array to be filled by its state."""

    def __call__(self, kind: Any, *_: Any) -> _Array:
        if kind is not _Array:
            raise InputError("it makes an array of another class than numpy.ndarray")
        return _Array.__new__(_Array)

    def __setstate__(self, state: Any) -> None:
        raise InputError("it gives a function a state")


# NumPy's own modules have moved once; the official files have the first of the two names.
_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}


class _Unpickler(pickle.Unpickler):
    """Finds no class or function but the stand-ins."""

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in of a name that the official files have."""
        if (module, name) not in _ADMITTED:
            raise InputError(
                f"the pickle asks for {module}.{name}, which the official files don't contain"
            )
        return _ADMITTED[module, name]

    def persistent_load(self, identity: Any) -> NoReturn:
        """Official files have no such references."""
        raise InputError("the pickle refers to an object outside it")


def safe_unpickle(content: bytes, *, source: str) -> Any:
    """What a pickle of the official archives holds; any other is refused, and nothing of it runs.

    Args:
        content: the pickle.
        source: what to call it in a message.

    Returns:
        Dicts, lists, numbers, bytes, and stand-ins for arrays of bytes.

    Examples:
        >>> safe_unpickle(pickle.dumps({"a": [1, None]}, protocol=2), source="here")
        {'a': [1, None]}
    """
    try:
        for opcode, _, position in pickletools.genops(content):
            if opcode.name not in _OPCODES:
                raise InputError(
                    f"the pickle has the opcode {opcode.name} (at byte {position}), which the "
                    f"official files don't contain"
                )
        return _Unpickler(io.BytesIO(content), fix_imports=False, encoding="bytes").load()
    except InputError as error:
        raise InputError(
            f"read_cifar: {source} is refused: {error}. Nothing of it was run."
        ) from error
    except Exception as error:  # damaged bytes can fail in any way at all
        raise InputError(
            f"read_cifar: {source} is truncated or damaged: {error}; download the archive again."
        ) from error
