"""What the numbers of an ONNX model's tensor tell of it: probabilities, or shares of something."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def are_probabilities(
    array: NDArray[Any], axis: int, step: float = 0.0, slack: float = 1e-4
) -> bool:
    """Whether numbers are probabilities along an axis.

    Args:
        array: the numbers.
        axis: of the classes.
        step: of what they are multiples, if they are rounded: a runtime's quantized softmax rounds
            each of them down.
        slack: by how much sums may differ from 1.
    """
    values = array.astype(np.float64)
    sums = values.sum(axis=axis)
    # One minus a forest's rounded sum of votes may lie below 0 by a rounding error.
    least = max(1e-6, 4 * float(np.finfo(array.dtype).eps))
    inside = bool(np.all(values >= -least) and np.all(values <= 1 + max(least, slack)))
    rounded = step * array.shape[axis]
    return inside and bool(np.all(np.abs(sums - 1) < max(slack, least, rounded)))


def common_sum(array: NDArray[Any], axis: int) -> float | None:
    """What numbers that are all positive sum to along an axis, if that is the same everywhere.

    Made-up inputs may hardly differ, as those of 8-bit images; then equal sums tell nothing.
    """
    rows = np.moveaxis(array.astype(np.float64), axis, -1).reshape(-1, array.shape[axis])
    sums = rows.sum(axis=1)
    slack = max(1e-5, 4 * float(np.finfo(array.dtype).eps)) * float(np.max(sums))
    alike = bool(np.all(rows >= 0) and np.ptp(sums) <= slack)  # NaN is not
    varied = float(np.max(np.ptp(rows, axis=0))) > 100 * slack
    return float(np.mean(sums)) if alike and varied else None
