"""Files that are either whole or absent, and hashes that tell one content from another.

Writes go to a temporary name of their own beside the target, reach the disk, and are renamed.
Nothing here knows what a run is.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
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
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
    "I8": "|i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
_RECORDED = ("longtail", "numpy", "scipy", "scikit-learn", "torch", "safetensors", "triton")
_TEMPORARY = re.compile(r".*\.[0-9a-f]{8}\.tmp|\.tmp\w{6}")  # ours, and safetensors'


def temporary_name(path: Path) -> Path:
    """Return a name beside `path` that no other process uses."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path to write to; on success it becomes `path`, on failure it is gone.

    The rename happens only after the content reached the disk, so a reader sees the old file
    or the new one, never a part; of several writers the last one wins. A file that is replaced
    keeps its permissions.

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
    temporary = temporary_name(path)
    try:
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        mode = os.fstat(handle).st_mode  # as the umask has it
        os.close(handle)
        with suppress(FileNotFoundError):
            mode = path.stat().st_mode
        yield temporary
        temporary.chmod(mode & 0o7777)
        _sync(temporary)
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise
    _sync(path.parent)


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no folders
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
    """Return JSON for people to read; NaN and infinity are refused."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def write_json(path: Path | str, document: Any) -> None:
    """Write JSON for people to read, atomically."""
    write_bytes(path, json_bytes(document))


def read_json(path: Path | str) -> Any:
    """Return the JSON in a file, or say in one line why it can't be read."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}.") from error


def append(path: Path | str, content: bytes) -> None:
    """Add `content` to the end of a file, or leave the file as it was."""
    with open(path, "ab", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        try:
            if file.write(content) != len(content):  # a disk that fills up can take a part
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except BaseException:
            with suppress(OSError):
                file.truncate(before)
            raise


def canonical_json(document: Any) -> str:
    """Return the one text of a JSON document: sorted keys, no spaces, no NaN.

    Examples:
        >>> canonical_json({"b": 1, "a": [0.1, None]})
        '{"a":[0.1,null],"b":1}'
    """
    return json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def sha256(content: Path | str | bytes) -> str:
    """Return the hex digest of a file's content, or of the bytes themselves.

    Examples:
        >>> sha256(b"")[:8]
        'e3b0c442'
    """
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with open(content, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(*arrays: Any) -> str:
    """Return the SHA-256 of arrays: over each one's dtype, shape and bytes.

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
            raise InputError(f"arrays must hold numbers or booleans; one is {values.dtype}.")
        dtype = values.dtype.newbyteorder("<")
        shape = ",".join(str(size) for size in values.shape)
        digest.update(f"{dtype.str};{shape};".encode())
        flat = np.atleast_1d(values)
        rows = max(1, (1 << 24) // max(1, values.nbytes // max(1, len(flat))))
        for start in range(0, len(flat), rows):
            digest.update(np.ascontiguousarray(flat[start : start + rows], dtype=dtype).data)
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Return installed versions of what a result may depend on, without importing any of it.

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


def write_tensors(path: Path | str, tensors: Mapping[str, Any]) -> None:
    """Write named arrays (NumPy or torch) to a safetensors file, atomically.

    The same tensors give the same bytes.
    """
    safetensors = _checks.require("safetensors", extra="train")
    api = _checks.require("safetensors.numpy", extra="train")
    arrays = tensor_arrays(tensors)
    with atomic_path(path) as temporary:
        try:
            api.save_file(arrays, temporary)
        except safetensors.SafetensorError as error:  # it reports a full disk as text
            code = re.search(r"os error (\d+)", str(error))
            raise OSError(int(code[1]) if code else errno.EIO, str(error), str(path)) from error


def tensor_arrays(tensors: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return arrays of numbers or booleans as safetensors writes them, in order of name."""
    arrays = {n: np.asarray(_checks.as_numpy(tensors[n]), order="C") for n in sorted(tensors)}
    for name, array in arrays.items():
        if array.dtype.newbyteorder("<").str not in _DTYPES.values():
            raise InputError(f"`{name}` must hold numbers or booleans; its dtype is {array.dtype}.")
    return arrays


def read_tensors(path: Path | str) -> dict[str, NDArray[Any]]:
    """Return all arrays of a safetensors file, as read-only memory maps.

    The safetensors package checks the header; its own reader would load every array whole.
    """
    safetensors = _checks.require("safetensors", extra="train")
    path, found = Path(path), {}
    try:
        with safetensors.safe_open(path, framework="numpy"):
            pass
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            start, shape = 8 + length + entry["data_offsets"][0], tuple(entry["shape"])
            dtype = np.dtype(_DTYPES[entry["dtype"]])
            empty = 0 in shape
            found[name] = (
                np.empty(shape, dtype)
                if empty
                else np.memmap(path, dtype, "r", offset=start, shape=shape)
            )
        return found
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise InputError(f"{path} is not a readable safetensors file: {error}.") from error


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Be the only process that writes to a folder; a killed one leaves no claim behind.

    Args:
        folder: the folder; it need not exist. ``<folder>.lock`` stands beside it meanwhile.
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
        if _TEMPORARY.fullmatch(path.name):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
