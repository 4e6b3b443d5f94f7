"""NumPy's files of scores, labels or numbers: how one is loaded, what is said of a bad one.

What the arrays of an .npz file mean is in `arrays`.
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
