"""Files that are either whole or absent, and what tells one content from another.

Writes go to a temporary name beside the target, reach the disk, and are renamed; hashes,
fingerprints and tensors in files. Nothing here knows what a run is.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import InputError

# Safetensors' own names of the types that NumPy has too.
_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}
_RECORDED = ("longtail", "numpy", "scipy", "scikit-learn", "torch", "safetensors", "triton")


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """A temporary path to write to; on success it becomes `path`, on failure it is gone.

    The rename happens only after the content reached the disk, so a reader sees the old file
    or the new one, never a part. A killed writer leaves at most ``<name>.tmp`` behind, which
    the next writer replaces.

    Args:
        path: the file's final name; its folder must exist.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic_path(Path(folder) / "a.txt") as temporary:
        ...         _ = temporary.write_text("whole")
        ...     sorted(os.listdir(folder))
        ['a.txt']
    """
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        raise _named(error, path) from None
    _sync(path.parent)


@contextmanager
def in_place_of(path: Path, staged: Path) -> Iterator[Path]:
    """Have a finished file take the place of another; if the block fails, the other is back.

    Args:
        path: the final name; there need not be such a file yet.
        staged: the finished file, in the same folder.

    Yields:
        Where the other is kept, to be removed after the block.
    """
    kept = path.with_name(path.name + ".old.tmp")
    kept.unlink(missing_ok=True)  # a killed writer's
    with suppress(FileNotFoundError):
        os.replace(path, kept)
    try:
        os.replace(staged, path)
        _sync(path.parent)
        yield kept
    except BaseException:
        path.unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            os.replace(kept, path)
        raise


def _named(error: BaseException, path: Path | str) -> BaseException:
    """The error, saying for which file a full disk had no room."""
    if isinstance(error, OSError) and error.errno is not None and error.filename is None:
        error.filename = str(path)
    return error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes(path: Path | str, content: bytes) -> None:
    """Write `content` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def json_bytes(document: Any) -> bytes:
    """JSON for people to read; NaN and infinity are refused."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def write_json(path: Path | str, document: Any) -> None:
    """Write JSON for people to read, atomically."""
    write_bytes(path, json_bytes(document))


def read_json(path: Path | str, *, caller: str) -> Any:
    """The JSON in a file, or one line that says why it can't be read."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{caller}: {path} is not valid JSON: {error}.") from error


def append(path: Path | str, content: bytes) -> None:
    """Add `content` to the end of a file, or leave the file as it was."""
    with open(path, "ab", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        try:
            written = file.write(content)
            if written != len(content):  # a disk that fills up can take a part
                raise OSError(28, "No space left on device", str(path))
        except BaseException as error:
            with suppress(OSError):
                file.truncate(before)
            raise _named(error, path) from None


def canonical_json(document: Any) -> str:
    """The one text of a JSON document: sorted keys, no spaces, no NaN.

    Examples:
        >>> canonical_json({"b": 1, "a": [0.1, None]})
        '{"a":[0.1,null],"b":1}'
    """
    return json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def sha256(content: Path | str | bytes) -> str:
    """Hex digest of a file's content, or of the bytes themselves.

    Examples:
        >>> sha256(b"")[:8]
        'e3b0c442'
    """
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with open(content, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(*arrays: Any) -> str:
    """What identifies arrays: SHA-256 over each one's dtype, shape and bytes.

    Byte order and memory layout play no part; dtype, shape and the arrays' order do. Memory
    maps are read in pieces.

    Args:
        arrays: NumPy arrays, torch tensors, lists; numbers or booleans.

    Returns:
        64 hexadecimal digits.

    Examples:
        >>> fingerprint(np.arange(3))[:8]
        '56d0673d'
        >>> fingerprint(np.arange(3)) == fingerprint(np.arange(3).reshape(1, 3))
        False
    """
    digest = hashlib.sha256()
    for array in arrays:
        values = _checks.as_numpy(array)
        if values.dtype.kind not in "biuf":
            raise InputError(
                f"fingerprint: arrays must hold numbers or booleans; one has dtype {values.dtype}."
            )
        dtype = values.dtype.newbyteorder("<")
        shape = ",".join(str(size) for size in values.shape)
        digest.update(f"{dtype.str};{shape};".encode())
        rows = max(1, (1 << 24) // max(1, values.nbytes // max(1, len(np.atleast_1d(values)))))
        flat = np.atleast_1d(values)
        for start in range(0, len(flat), rows):
            digest.update(np.ascontiguousarray(flat[start : start + rows], dtype=dtype).data)
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Installed versions of what a result may depend on, without importing any of it.

    Examples:
        >>> "numpy" in versions()
        True
    """
    import platform

    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in _RECORDED:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def write_tensors(path: Path | str, tensors: Mapping[str, Any], *, caller: str) -> None:
    """Write named arrays (NumPy or torch, any memory layout) to a safetensors file, atomically.

    The same tensors give the same bytes.

    Args:
        path: the file.
        tensors: arrays of numbers or booleans, by name.
        caller: for messages.
    """
    safetensors = _checks.require("safetensors", extra="torch", caller=caller)
    numpy_api = _checks.require("safetensors.numpy", extra="torch", caller=caller)
    arrays = {}
    for name in sorted(tensors):
        array = np.asarray(_checks.as_numpy(tensors[name]), order="C")
        if array.dtype.newbyteorder("<").str not in _DTYPES.values():
            raise InputError(
                f"{caller}: `{name}` must hold numbers or booleans; its dtype is {array.dtype}."
            )
        arrays[name] = array
    with atomic_path(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode  # what the umask gives; safetensors makes files private
        try:
            numpy_api.save_file(arrays, temporary)
            temporary.chmod(mode)
        except safetensors.SafetensorError as error:
            # It reports a full disk as text; callers catch OSError.
            code = re.search(r"os error (\d+)", str(error))
            if code is None:
                raise
            number = int(code.group(1))
            raise OSError(number, os.strerror(number), str(path)) from error


def read_tensors(path: Path | str, *, caller: str) -> dict[str, NDArray[Any]]:
    """All arrays of a safetensors file, as read-only memory maps: only what is used is read.

    Args:
        path: the file.
        caller: for messages.

    Returns:
        Arrays by name.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > size:
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        found: dict[str, NDArray[Any]] = {}
        for name, entry in header.items():
            start, stop = entry["data_offsets"]
            dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(entry["shape"])
            if stop - start != dtype.itemsize * math.prod(shape) or 8 + length + stop > size:
                raise ValueError(f"the extent of {name!r} is wrong")
            if stop == start:
                found[name] = np.empty(shape, dtype)
            else:
                found[name] = np.memmap(path, dtype, "r", offset=8 + length + start, shape=shape)
        return found
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{caller}: {path} is not a readable safetensors file: {error}."
        ) from error


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Be the only process that writes to a folder; a killed one leaves no claim behind.

    Args:
        folder: which; it need not exist. ``<folder>.lock`` stands beside it meanwhile.
    """
    try:
        import fcntl
    except ImportError:  # a system without such locks
        yield
        return
    path = folder.with_name(folder.name + ".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise InputError(
                f"{folder} is being written by another process; wait for it to end, or stop it."
            ) from None
        except OSError as error:  # some network file systems have no locks: go on without
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                os.close(handle)
                raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                break
        os.close(handle)  # its owner removed it just now
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def remove_leftovers(folder: Path) -> None:
    """Delete what a killed writer may have left in a folder under a temporary name."""
    for path in folder.iterdir():
        # safetensors has a temporary name of its own, .tmpXXXXXX
        if path.name.endswith(".tmp") or re.fullmatch(r"\.tmp\w{6}", path.name):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
