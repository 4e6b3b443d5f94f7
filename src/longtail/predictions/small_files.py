"""How an .npy or a text file is loaded, and what is said of a file that can't be read.

What is in it is the matter of `labels` and `arrays`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail._checks import InputError


def load_npy(path: Path) -> NDArray[Any]:
    """The array of an .npy file, memory-mapped."""
    if not path.is_file():
        raise InputError(f"there is no file {path}.")
    try:
        with open(path, "rb") as file:
            if file.read(6) != b"\x93NUMPY":
                raise ValueError("it is not an .npy file")
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except (ValueError, EOFError) as error:
        if "Python objects" in str(error):
            raise holds_objects(path, "it") from error
        raise unreadable(path, error) from error


def unreadable(path: Path | str, error: Exception) -> InputError:
    """What to say of a file that NumPy can't read."""
    reason = " ".join(str(error).split()).rstrip(".")
    if "mmap length" in reason or "cannot reshape" in reason:
        reason = "it is shorter than its header says, as if cut off"
    return InputError(f"{path} can't be read as numbers: {reason}.")


def holds_objects(path: Path, what: str) -> InputError:
    """What to say of an array of Python objects, as pandas keeps names; `what` names it."""
    return InputError(
        f"{path} can't be read: {what} holds Python objects, which are never loaded; save names "
        f"as text, with names.astype(str), and numbers with .astype(float)."
    )


def read_text(path: Path) -> str:
    """The whole text of a file in UTF-8."""
    if not path.is_file():
        raise InputError(f"there is no file {path}.")
    content = path.read_bytes()
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{path} is text in UTF-16, not in UTF-8; save it in UTF-8.")
    if b"\0" in content:
        raise InputError(
            f"{path} is not a text file; labels and numbers are read from .npy, .csv, .tsv or text "
            f"files, in UTF-8."
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8: {error}; save it in UTF-8.") from error
