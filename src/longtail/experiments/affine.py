"""Affine separators of two classes under any pairwise-margin loss, fitted exactly.

Many small convex problems of the same shape, solved together by Newton's method. A separator
is one row (w, b) and stands for the two zero-sum logits ±(w·x + b)/2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from longtail import _checks
from longtail._checks import FloatArray, InputError, IntArray
from longtail.margins import Margin

# Samples solved at a time: what one core's cache holds, so that a Newton step reads no memory.
_BLOCK = 40_000


def fit(
    features: FloatArray,
    target: IntArray,
    losses: Sequence[Margin],
    *,
    penalty: float = 0.0,
    tolerance: float = 1e-12,
) -> FloatArray:
    """Minimise a pairwise-margin loss over affine separators, all trials at once, exactly.

    With two zero-sum logits equation 11 is α_y · log(1 + exp(s·(Δ_{yy'} ∓ (w·x + b)))), minus
    for class 1, which is convex in (w, b): damped Newton steps in float64.

    Args:
        features: shape (trials, samples, dimensions).
        target: 0 or 1, shape (trials, samples).
        losses: the Margin of each trial, for two classes.
        penalty: λ of a term λ/2·‖w‖² beside the mean loss, which separable classes need.
        tolerance: largest entry of the mean loss's gradient at which to stop.

    Returns:
        Rows (w, b), shape (trials, dimensions + 1).

    Raises:
        InputError: a trial's classes are separable, so that its loss has no minimiser without
            a penalty; or not one two-class Margin per trial.

    Examples:
        >>> from longtail import ClassPrior, margins
        >>> features = np.array([[[0.0], [1.0], [2.0], [3.0]]])
        >>> target = np.array([[0, 1, 0, 1]])
        >>> fit(features, target, [margins.softmax(ClassPrior.uniform(2))]).round(3)
        array([[ 0.908, -1.362]])
    """
    trials, samples, dimensions = features.shape
    if len(losses) != trials or any(loss.num_classes != 2 for loss in losses):
        raise InputError(
            f"affine.fit: `losses` must hold one Margin of two classes for each of the {trials} "
            f"trials; it holds {len(losses)}, of "
            f"{_checks.listing(sorted({loss.num_classes for loss in losses}))} classes."
        )
    if _checks.tau(penalty, "affine.fit", name="penalty") < 0:
        raise InputError(f"affine.fit: `penalty` must not be negative; got {penalty:g}.")
    solution = np.empty((trials, dimensions + 1))
    size = max(1, _BLOCK // samples)
    for first in range(0, trials, size):
        block = slice(first, min(first + size, trials))
        problem = _Problem.of(features[block], target[block], losses[block], penalty)
        solution[block] = _newton(problem, tolerance=tolerance, first_trial=first)
    # s·(w, b) was solved for: the scale multiplies the logits only.
    solution /= np.array([[loss.scale] for loss in losses])
    return solution


@dataclass(frozen=True)
class _Problem:
    """A block of trials, with the features turned so that every sample wants w·u above 0."""

    turned: FloatArray  # ±(x, 1), shape (trials, dimensions + 1, samples)
    shift: FloatArray  # s·Δ of each sample's class, shape (trials, samples)
    weight: FloatArray  # α of each sample's class over the number of samples
    ridge: FloatArray  # second derivatives of the penalty, shape (trials, dimensions + 1)
    room: tuple[FloatArray, FloatArray, FloatArray]  # what `derivatives` works in

    @classmethod
    def of(
        cls, features: FloatArray, target: IntArray, losses: Sequence[Margin], penalty: float
    ) -> _Problem:
        trials, samples, dimensions = features.shape
        sign = 2.0 * target - 1.0
        turned = np.empty((trials, dimensions + 1, samples))
        turned[:, :-1] = features.transpose(0, 2, 1) * sign[:, None]
        turned[:, -1] = sign
        delta = [loss.scale * loss.matrix()[[0, 1], [1, 0]] for loss in losses]
        alpha = [loss.alpha / samples for loss in losses]
        ridge = np.zeros((trials, dimensions + 1))
        ridge[:, :-1] = [[penalty / loss.scale**2] for loss in losses]  # of s·w, not of b
        return cls(
            turned=turned,
            shift=np.take_along_axis(np.array(delta), target, axis=1),
            weight=np.take_along_axis(np.array(alpha), target, axis=1),
            ridge=ridge,
            room=(np.empty_like(sign), np.empty_like(sign), np.empty_like(turned)),
        )

    def derivatives(self, point: FloatArray, score: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Gradient and Hessian at `point`, where the losses are softplus(score)."""
        # prob = 1 / (1 + exp(−score)), in place: fresh arrays of this size cost page faults,
        # as much time again as the arithmetic.
        prob, pull, weighed = self.room
        np.negative(score, out=prob)
        with np.errstate(over="ignore"):  # exp may overflow: the probability is then 0, rightly
            np.exp(prob, out=prob)
        prob += 1.0
        np.reciprocal(prob, out=prob)
        np.multiply(self.weight, prob, out=pull)
        gradient = self.ridge * point - np.matmul(self.turned, pull[:, :, None])[:, :, 0]
        np.subtract(1.0, prob, out=prob)
        pull *= prob
        np.multiply(self.turned, pull[:, None], out=weighed)
        hessian = np.matmul(weighed, self.turned.transpose(0, 2, 1))
        hessian += self.ridge[:, :, None] * np.eye(self.ridge.shape[1])
        return gradient, hessian

    def along(self, direction: FloatArray) -> FloatArray:
        """How far a direction moves each sample's margin, shape (trials, samples)."""
        return np.asarray(np.matmul(direction[:, None], self.turned)[:, 0])


def _newton(problem: _Problem, *, tolerance: float, first_trial: int) -> FloatArray:
    """Damped Newton from zero; every step goes down, so no line search is needed.

    Moving the scores by at most s changes softplus's curvature by at most a factor e^s. So if
    a whole Newton step moves them by at most r, and would gain λ² on a quadratic, the part of
    it that moves them by s changes the loss by at most λ²·[(eˢ − s − 1)/r² − s/r]. This is
    least at s = log(1 + r), and still well below zero at the longer step taken here, which
    needs fewer iterations; it becomes the whole step near the solution. A penalty, of
    constant curvature, only helps.
    """
    point = np.zeros(problem.turned.shape[:2])
    score = problem.shift.copy()
    for _ in range(1000):
        gradient, hessian = problem.derivatives(point, score)
        if np.abs(gradient).max() <= tolerance:
            break
        try:
            solved = np.linalg.solve(hessian, -gradient[..., None])
        except np.linalg.LinAlgError:
            break
        step = np.asarray(solved[..., 0], dtype=np.float64)
        moved = problem.along(step)
        reach = np.maximum(np.abs(moved).max(axis=1, keepdims=True), 1e-300)
        least = np.log1p(reach)
        length = np.minimum(1.0, (least + 0.5 * np.log1p(least)) / reach)
        point += length * step
        score -= length * moved
    bare = ~problem.ridge.any(axis=1)
    separated = np.flatnonzero(bare & (problem.along(point).min(axis=1) > 0))
    if len(separated):
        raise InputError(
            f"affine.fit: a line separates the classes of trial(s) "
            f"{_checks.listing(separated + first_trial)}, so the loss has no minimiser; "
            f"use more samples or a larger sigma."
        )
    if not np.abs(gradient).max() <= tolerance:
        raise InputError(
            f"affine.fit: Newton's method stopped at a gradient of "
            f"{np.abs(gradient).max():.1e}, above the `tolerance` of {tolerance:g}; "
            f"the features may be collinear, or the tolerance below rounding."
        )
    return point
