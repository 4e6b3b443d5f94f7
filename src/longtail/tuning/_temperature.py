"""Held-out logits in, the temperature of least log-loss out; and the chunks it reads them in.

The calibration criteria of `tune_tau` read the same chunks, in `_calibration`. Import
`fit_temperature` from `tuning`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import FloatArray, InputError, IntArray

# Elements of a chunk: 2 MB in float64.
_CHUNK_ELEMENTS = 1 << 18


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Checked examples, handed out in chunks; `group` is that of each class, see `_mix`."""

    logits: NDArray[Any]
    target: IntArray
    weight: FloatArray
    group: IntArray
    rows: int
    caller: str

    def chunks(self) -> Iterator[tuple[FloatArray, IntArray, FloatArray]]:
        """(f − max f in float64, labels, weights) of consecutive rows."""
        for start in range(0, len(self.target), self.rows):
            part = slice(start, start + self.rows)
            chunk = self.logits[part]
            _checks.all_finite(chunk, caller=self.caller, name="logits", first_row=start)
            if start == 0:
                _checks.not_probabilities(
                    chunk, caller=self.caller, hint="pass their logarithm, numpy.log(probs)"
                )
            below = chunk.astype(np.float64)
            below -= below.max(axis=1, keepdims=True)
            kept = self.weight[part] > 0
            if not kept.all():
                below = below[kept]
            yield below, self.target[part][kept], self.weight[part][kept]


def held_out(
    logits: NDArray[Any],
    target: IntArray,
    weight: FloatArray | None,
    chunk_rows: int | None,
    caller: str,
    *,
    group: IntArray | None = None,
) -> HeldOut:
    """Checked arrays as the functions below want them."""
    if chunk_rows is not None:
        chunk_rows = _checks.whole(chunk_rows, caller, name="chunk_rows")
    return HeldOut(
        logits=logits,
        target=target,
        weight=np.ones(len(target)) if weight is None else weight,
        group=np.zeros(logits.shape[1], dtype=np.int64) if group is None else group,
        rows=chunk_rows or max(1, _CHUNK_ELEMENTS // logits.shape[1]),
        caller=caller,
    )


def fit_temperature(
    logits: Any, target: Any, *, sample_weight: Any = None, chunk_rows: int | None = None
) -> float:
    """The temperature T that minimises the log-loss of softmax(f / T) on held-out data.

    The log-loss is convex in 1/T, so Newton's method finds the one minimum. Where the held-out
    data are mixed like the training data, long tail and all, T is also a tau for
    `adjust_logits`; on others it is none, and `tune_tau`, which knows the prior, finds one.

    Args:
        logits: f, shape (examples, num_classes), of examples the model was not trained on.
        target: true labels, shape (examples,), integers.
        sample_weight: shape (examples,).
        chunk_rows: rows that are held in memory at once; a few megabytes by default.

    Returns:
        T, above zero.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> logits = 2 * rng.normal(size=(20000, 3))
        >>> target = (logits + rng.gumbel(size=(20000, 3))).argmax(axis=1)  # drawn by softmax
        >>> round(fit_temperature(3 * logits, target), 1)
        3.0
    """
    caller = "fit_temperature"
    logits = _checks.matrix(logits, caller=caller, finite=False)
    target = _checks.labels(target, caller=caller, num_classes=logits.shape[1])
    _checks.same_length(logits, target, caller=caller)
    weight = None
    if sample_weight is not None:
        weight = _checks.sample_weight(sample_weight, len(target), caller=caller)
    data = held_out(logits, target, weight, chunk_rows, caller)
    _refuse_hopeless(data)
    low, high, inverse = 0.0, np.inf, 1.0
    for _ in range(200):
        slope, curvature = _slope_of_log_loss(data, inverse)
        low, high = (low, inverse) if slope > 0 else (inverse, high)
        step = inverse - slope / curvature if curvature > 0 else np.inf
        if not low < step < high:  # too far for the quadratic: halve the bracket, or double
            step = 2.0 * inverse if np.isinf(high) else (low + high) / 2.0
        if abs(step - inverse) <= 1e-10 * inverse:
            break
        inverse = step
    return float(1.0 / step)


def _refuse_hopeless(data: HeldOut) -> None:
    """There is a finite, positive temperature iff some example is wrong and f beats chance."""
    all_right, slope = True, 0.0
    for below, labels, weight in data.chunks():
        own = below[np.arange(len(labels)), labels]
        all_right &= bool(np.all(own == 0))
        slope += float(weight @ (below.mean(axis=1) - own))
    if slope >= 0:  # logits that are all alike too, of which none is wrong
        raise InputError(
            f"{data.caller}: the logits predict the labels no better than chance, so the "
            f"log-loss falls all the way to an infinite temperature; check that `target` belongs "
            f"to these logits."
        )
    if all_right:
        raise InputError(
            f"{data.caller}: every example is predicted right, so the log-loss falls all the way "
            f"to temperature 0; use held-out examples, which the model was not trained on."
        )


def _slope_of_log_loss(data: HeldOut, inverse: float) -> tuple[float, float]:
    """First and second derivative of the summed log-loss by 1/T: Σ E_p f − f_y and Σ Var_p f."""
    slope = curvature = 0.0
    for below, labels, weight in data.chunks():
        probs = np.exp(inverse * below)
        probs /= probs.sum(axis=1, keepdims=True)
        mean = np.einsum("ij,ij->i", probs, below)
        square = np.einsum("ij,ij,ij->i", probs, below, below)
        slope += float(weight @ (mean - below[np.arange(len(labels)), labels]))
        curvature += float(weight @ (square - mean**2))
    return slope, curvature
