"""Softmax regression over thousands of classes, solved to its minimum: a last layer by itself.

Features are fixed, so the problem is convex. It is solved by L-BFGS in coordinates that make each
class's own block of the Hessian the identity, so that classes of 2 and of 1,000 examples converge
alike. The logits of all examples would not fit in memory: they are made and used in pieces, on any
torch device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import minimize

from longtail import _checks
from longtail._checks import FloatArray, InputError, IntArray

if TYPE_CHECKING:
    import torch

# Logits made at a time: what a core's cache holds, and what keeps a GPU busy.
_PIECE = {"cpu": 1 << 18, "cuda": 1 << 27}


@dataclass(frozen=True, eq=False)
class Fit:
    """A minimum, and how well it was reached.

    Attributes:
        weights: rows (w_y, b_y), shape (num_classes, dimensions + 1).
        evaluations: of the loss and its gradient.
        gradient: largest entry of the gradient of the summed loss, in units of a standard error.
    """

    weights: FloatArray
    evaluations: int
    gradient: float


def fit(
    features: Any,
    target: IntArray,
    *,
    start: FloatArray,
    ridge: float,
    offset: FloatArray | None = None,
    tolerance: float = 0.1,
    most: int = 500,
    device: torch.device | str = "cpu",
) -> Fit:
    """Minimise Σ_i −log softmax(W x_i + b + offset)_{y_i} + ridge/2·Σ_y ‖w_y‖².

    With offset 0 it is the softmax cross-entropy; with offset_y = τ log π_y the logit-adjusted
    loss (equation 10). The biases are free, which makes the two the same problem but for a shift
    of the biases by the offset.

    Args:
        features: shape (examples, dimensions), float32.
        target: shape (examples,).
        start: rows (w_y, b_y) to begin from, shape (num_classes, dimensions + 1).
        ridge: of the weights, above zero: classes of a few examples are separable without it.
        offset: added to the logits in training only, shape (num_classes,); none if absent.
        tolerance: the gradient at which to stop, in the units of `Fit.gradient`.
        most: evaluations to allow.
        device: where the logits are made.

    Returns:
        The Fit.

    Examples:
        >>> x = np.array([[0.0], [1.0], [2.0], [3.0]], dtype=np.float32)
        >>> found = fit(x, np.array([0, 1, 0, 1]), start=np.zeros((2, 2)), ridge=1e-6,
        ...             tolerance=1e-3)
        >>> (found.weights[1] - found.weights[0]).round(2)
        array([ 0.91, -1.36])
    """
    problem = _Problem.of(features, target, start, ridge, offset, device)
    begin = problem.calibrated(np.asarray(start, dtype=np.float64))
    frame = _Frame.at(problem, begin)
    # The Hessian being about the identity in this frame, Newton's step is as long as the gradient.
    # L-BFGS-B begins with a step of length 1: so that is the unit.
    unit = float(np.linalg.norm(frame.gradient(problem.value_and_gradient(begin)[1])))
    evaluations = 1

    def evaluate(flat: FloatArray) -> tuple[float, FloatArray]:
        nonlocal evaluations
        evaluations += 1
        value, slope = problem.value_and_gradient(frame.weights(unit * flat))
        return value / unit**2, frame.gradient(slope) / unit

    found = minimize(
        evaluate,
        frame.flat(begin) / unit,
        jac=True,
        method="L-BFGS-B",
        options={"gtol": tolerance / unit, "ftol": 0.0, "maxfun": most, "maxcor": 20},
    )
    gradient = float(np.abs(found.jac).max()) * unit
    if gradient > 10 * tolerance:
        raise RuntimeError(
            f"softmax_regression.fit: no minimum after {evaluations} evaluations; the gradient is "
            f"{gradient:.2g} and should be {tolerance:g} ({found.message}); raise `ridge`, `most` "
            f"or `tolerance`."
        )
    return Fit(frame.weights(unit * found.x), evaluations, gradient)


@dataclass(frozen=True, eq=False)
class _Problem:
    """The loss as a function of the weights; tensors on the device."""

    features: torch.Tensor  # with a constant 1, shape (examples, dimensions + 1)
    target: torch.Tensor
    sums: FloatArray  # of each class's features, shape (num_classes, dimensions + 1)
    ridge: float
    offset: torch.Tensor

    @property
    def examples(self) -> int:
        return len(self.features)

    @classmethod
    def of(
        cls,
        features: Any,
        target: IntArray,
        start: FloatArray,
        ridge: float,
        offset: FloatArray | None,
        device: torch.device | str,
    ) -> _Problem:
        caller = "softmax_regression.fit"
        torch = _checks.require("torch", extra="torch", caller=caller)
        _checks.positive(ridge, caller, name="ridge")
        num_classes, columns = start.shape
        if features.shape != (len(target), columns - 1):
            raise InputError(
                f"{caller}: `features` must have shape ({len(target)}, {columns - 1}) to go with "
                f"`target` and `start`; it has shape {tuple(features.shape)}."
            )
        empty = np.flatnonzero(np.bincount(target, minlength=num_classes) == 0)
        if len(empty):
            raise InputError(
                f"{caller}: class(es) {_checks.listing(empty)} have no examples, so no minimum "
                f"has a bias for them; leave them out of `start`."
            )
        labels = torch.as_tensor(target, dtype=torch.int64, device=device)
        x = torch.ones(len(labels), columns, device=device)
        x[:, :-1] = torch.as_tensor(features)
        sums = torch.zeros(num_classes, columns, dtype=torch.float64, device=device)
        sums.index_add_(0, labels, x.double())
        shift = np.zeros(num_classes) if offset is None else offset
        moved = torch.tensor(shift, dtype=torch.float32, device=device)  # a prior's is read-only
        return cls(x, labels, sums.cpu().numpy(), ridge, moved)

    def _matrix(self, weights: FloatArray) -> torch.Tensor:
        """Weights as columns, with the offset in the biases, float32 on the device."""
        import torch

        matrix = torch.as_tensor(weights.T, dtype=torch.float32, device=self.features.device)
        matrix = matrix.contiguous()
        matrix[-1] += self.offset
        return matrix

    def _pieces(self, weights: FloatArray) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Which examples, their logits and their probabilities; memory is used again."""
        import torch

        matrix = self._matrix(weights)
        rows = max(1, _PIECE[self.features.device.type] // matrix.shape[1])
        logits, probs = (torch.empty(rows, matrix.shape[1], device=matrix.device) for _ in range(2))
        for first in range(0, self.examples, rows):
            which = slice(first, min(first + rows, self.examples))
            size = which.stop - which.start
            torch.mm(self.features[which], matrix, out=logits[:size])
            torch.softmax(logits[:size], 1, out=probs[:size])
            yield which, logits[:size], probs[:size]

    def calibrated(self, weights: FloatArray, *, rounds: int = 3) -> FloatArray:
        """The weights with biases that predict each class about as often as it occurs.

        b_y grows by log(n_y / Σ_i p_iy). A minimum has such biases, and a prior that the start
        ignores would otherwise cost L-BFGS most of its steps.
        """
        import torch

        moved = weights.copy()
        for _ in range(rounds):
            total = torch.zeros(len(weights), device=self.features.device)
            for _, _, probs in self._pieces(moved):
                total += probs.sum(0)
            moved[:, -1] += np.log(self.sums[:, -1] / total.double().cpu().numpy())
        return moved

    def value_and_gradient(self, weights: FloatArray) -> tuple[float, FloatArray]:
        """The summed loss and its gradient, float64."""
        import torch

        device, (num_classes, columns) = self.features.device, weights.shape
        total = torch.zeros((), dtype=torch.float64, device=device)
        expected = torch.zeros(columns, num_classes, device=device)
        for which, logits, probs in self._pieces(weights):
            # From the largest entry, whose probability does not vanish as the target's may.
            log_sum = logits.amax(1) - probs.amax(1).log()
            own = logits.gather(1, self.target[which, None]).squeeze(1)
            total += (log_sum - own).sum(dtype=torch.float64)
            expected.addmm_(self.features[which].T, probs)
        gradient = expected.T.double().cpu().numpy() - self.sums
        gradient[:, :-1] += self.ridge * weights[:, :-1]
        penalty = 0.5 * self.ridge * float(np.square(weights[:, :-1]).sum())
        return float(total) + penalty, gradient

    def blocks(self, weights: FloatArray) -> FloatArray:
        """Each class's block of the Hessian, Σ_i p_iy (1 − p_iy) x_i x_iᵀ + ridge."""
        import torch

        num_classes, columns = weights.shape
        upper = torch.triu_indices(columns, columns, device=self.features.device)
        sums = torch.zeros(upper.shape[1], num_classes, device=self.features.device)
        for which, _, probs in self._pieces(weights):
            x = self.features[which]
            sums.addmm_((x[:, upper[0]] * x[:, upper[1]]).T, probs - probs * probs)
        found = np.empty((num_classes, columns, columns))
        entries, (rows, places) = sums.T.double().cpu().numpy(), upper.cpu().numpy()
        found[:, rows, places] = entries
        found[:, places, rows] = entries
        penalty = np.full(columns, self.ridge)
        penalty[-1] = 1e-3 * self.ridge  # keeps the block of a class without rivals invertible
        return found + np.diag(penalty)


@dataclass(frozen=True, eq=False)
class _Frame:
    """Coordinates v with w_y = R_y⁻¹ v_y, where R_yᵀ R_y is class y's block of the Hessian."""

    factors: FloatArray  # R_y, upper triangular, shape (num_classes, columns, columns)
    inverses: FloatArray

    @classmethod
    def at(cls, problem: _Problem, weights: FloatArray) -> _Frame:
        factors = np.linalg.cholesky(problem.blocks(weights)).transpose(0, 2, 1)
        return cls(np.asarray(factors), np.asarray(np.linalg.inv(factors)))

    def weights(self, flat: FloatArray) -> FloatArray:
        rows = flat.reshape(len(self.inverses), -1)
        return np.asarray(np.einsum("yij,yj->yi", self.inverses, rows))

    def flat(self, weights: FloatArray) -> FloatArray:
        return np.asarray(np.einsum("yij,yj->yi", self.factors, weights)).ravel()

    def gradient(self, slope: FloatArray) -> FloatArray:
        """In these coordinates an entry is in units of that direction's standard error."""
        return np.asarray(np.einsum("yji,yj->yi", self.inverses, slope)).ravel()
