"""Files that are either whole or absent, and hashes that tell one content from another."""

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
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import InputError

_TEMPORARY = re.compile(r".*\.[0-9a-f]{8}\.tmp|\.tmp\w{6}")  # ours, and safetensors'


def temporary_name(path: Path) -> Path:
    """Return a name beside `path` that no other process uses."""
    return path.parent / f"{path.name}.{secrets.token_hex(4)}.tmp"


def is_temporary(path: Path) -> bool:
    """Return whether a file or folder has a temporary name."""
    return _TEMPORARY.fullmatch(path.name) is not None


def remove_leftovers(folder: Path) -> None:
    """Delete what killed writers left in a folder that nobody else writes to now."""
    for path in filter(is_temporary, folder.iterdir()):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path to write to; on success it becomes `path`, on failure it is gone.

    The rename comes after the content has reached the disk, so a reader sees the old file or the
    new one, never a part; of several writers the last one wins. A file that is replaced keeps its
    permissions.

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
        temporary.touch(exist_ok=False)
        mode = (path if path.exists() else temporary).stat().st_mode
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(mode & 0o7777)
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise
    if os.name != "nt":  # Windows opens no folders
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_bytes(path: Path | str, content: bytes) -> None:
    """Write `content` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


# JSON for people to read, without NaN.
readable_json = json.JSONEncoder(indent=2, ensure_ascii=False, allow_nan=False).encode


def write_json(path: Path | str, document: Any) -> None:
    """Write JSON for people to read, atomically."""
    write_bytes(path, f"{readable_json(document)}\n".encode())


def read_json(path: Path | str) -> Any:
    """Return the JSON in a file."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}.") from error


# The one text of a JSON document: sorted keys, no spaces, no NaN.
canonical_json = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
).encode


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

    Byte order and memory layout play no part; dtype, shape and the arrays' order do.

    Examples:
        >>> fingerprint(np.arange(3))[:8]
        '56d0673d'
        >>> fingerprint(np.arange(3)) == fingerprint(np.arange(3).reshape(1, 3))
        False
    """
    digest = hashlib.sha256()
    for array in map(_checks.as_numpy, arrays):
        if array.dtype.kind not in "biuf":
            raise InputError(f"arrays must hold numbers or booleans; one is {array.dtype}.")
        dtype = array.dtype.newbyteorder("<")
        digest.update(f"{dtype.str};{','.join(map(str, array.shape))};".encode())
        content = np.ascontiguousarray(array, dtype=dtype).reshape(-1).view(np.uint8)
        for start in range(0, len(content), 1 << 24):  # in pieces, which can be interrupted
            digest.update(content[start : start + (1 << 24)].data)
    return digest.hexdigest()


def write_tensors(path: Path | str, tensors: Mapping[str, Any]) -> None:
    """Write named arrays (NumPy or torch) to a safetensors file, atomically.

    The same tensors give the same bytes.
    """
    safetensors = _checks.require("safetensors", extra="train")
    from safetensors.numpy import save_file

    arrays = {n: np.asarray(_checks.as_numpy(tensors[n]), order="C") for n in sorted(tensors)}
    with atomic_path(path) as temporary:
        try:
            save_file(arrays, temporary)
        except safetensors.SafetensorError as error:  # it reports a full disk as text
            code = re.search(r"os error (\d+)", str(error))
            raise OSError(int(code[1]) if code else errno.EIO, str(error)) from error


def read_tensors(path: Path | str) -> dict[str, NDArray[Any]]:
    """Return all arrays of a safetensors file, as read-only memory maps.

    The safetensors package checks the header; its own NumPy reader would load every array whole.
    """
    safetensors = _checks.require("safetensors", extra="train")
    try:
        with safetensors.safe_open(path, framework="numpy"), open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            first, content = file.tell(), np.memmap(path, mode="r")
    except (safetensors.SafetensorError, ValueError) as error:
        raise InputError(f"{path} is not a readable safetensors file: {error}.") from error
    header.pop("__metadata__", None)
    found: dict[str, NDArray[Any]] = {}
    for name, entry in header.items():
        dtype, (start, end) = entry["dtype"], entry["data_offsets"]
        kind = np.dtype("?" if dtype == "BOOL" else f"<{dtype[0].lower()}{int(dtype[1:]) // 8}")
        found[name] = content[first + start : first + end].view(kind).reshape(entry["shape"])
    return found


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Be the only process that writes to a folder; a killed one leaves no claim behind.

    The folder need not exist; ``<folder>.lock`` stands beside it meanwhile.
    """
    try:
        import fcntl
    except ImportError:  # Windows has no such locks
        yield
        return
    path = folder.with_name(folder.name + ".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with open(path, "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"{folder} is being written by another process; wait for it to end, or stop it."
                ) from None
            except OSError as error:  # some network file systems have no locks: go on without
                if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return
            # Its owner removed the lock just now: take a new one.
