"""What came as an array, and what its dtype says; what it must hold is for those who call."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail._checks._errors import InputError, _by

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def as_numpy(values: Any) -> NDArray[Any]:
    """NumPy view or copy of a list, array, torch tensor (any device), JAX array or Series."""
    # torch, without importing it; under torch.compile a NumPy array would pass for one.
    if hasattr(values, "detach") and not isinstance(values, np.ndarray):
        values = values.detach().cpu()
        if "bfloat16" in str(values.dtype):
            values = values.float()  # NumPy has no bfloat16; float32 holds it exactly
        return np.asarray(values.numpy())
    array = np.asarray(values)
    if array.dtype.name == "bfloat16":  # JAX's own NumPy extension type
        return array.astype(np.float32)
    return array


def row(values: Any, what: str, per: str, *, caller: str = "", name: str) -> NDArray[Any]:
    """A non-empty one-dimensional array, of one `what` per `per`."""
    try:
        array = as_numpy(values)
    except (ValueError, TypeError) as error:
        raise InputError(f"{_by(caller)}`{name}` is not an array of {what}s: {error}") from error
    if array.ndim != 1:
        raise InputError(
            f"{_by(caller)}`{name}` must be one-dimensional, one {what} per {per}; "
            f"its shape is {array.shape}."
        )
    if array.size == 0:
        raise InputError(f"{_by(caller)}`{name}` is empty; at least one {what} is needed.")
    return array


def vector(values: Any, *, caller: str = "", name: str) -> NDArray[Any]:
    """A non-empty one-dimensional array of real numbers, of whatever numeric dtype came."""
    array = row(values, "number", "class or example", caller=caller, name=name)
    if array.dtype.kind not in "iufb":
        raise InputError(
            f"{_by(caller)}`{name}` must hold numbers; its dtype is {array.dtype}"
            f" (first value {array.flat[0]!r})."
        )
    return array


def slack_of_sums(array: NDArray[Any], *, least: float = 1e-4) -> float:
    """How far sums of probabilities may be from 1: half-precision ones add up their rounding."""
    own = float(np.finfo(array.dtype).eps) if array.dtype.kind == "f" else 0.0
    return max(least, 4 * (2.0**-7 if _was_bfloat16(array) else own))


def _was_bfloat16(array: NDArray[Any]) -> bool:
    """Whether every value is one of bfloat16, which NumPy lacks and `as_numpy` makes float32."""
    if array.dtype != np.float32:
        return False
    bits = array.view(np.uint32)  # the upper half is bfloat16
    return not np.any(bits[0] & 0xFFFF) and not np.any(bits & 0xFFFF)
