"""The conditional risk of a pairwise-margin loss, and the scores that minimise it.

At a point whose class probabilities are η, a pairwise-margin loss (equation 11) costs

    R(η, f) = Σ_y η_y α_y log[1 + Σ_{y'≠y} exp(s · (Δ_{yy'} + f_{y'} − f_y))]

in expectation. R is convex in f, so that one zero-sum f = link(η) minimises it, and this f
belongs to one η = inverse_link(f). Both maps are exact here, without a general optimiser:

* R is stationary at f where w_y = η_y α_y is the stationary distribution of the Markov chain
  that goes from y to y' with probability ∝ exp(s · (Δ_{yy'} + f_{y'})) (Δ_{yy} = 0).
* For Δ_{yy'} = a_y + b_{y'} this is a quadratic equation per class: with u = softmax(s·(f + b)),
  w_y ∝ u_y · [(1 − u_y) + e^{−s·(a_y + b_y)} u_y], found in O(L).

In all functions `margin` gives α, Δ and the scale s; `eta` is η, shape (num_classes,), positive
with sum 1; `scores` is f, of the same shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from longtail import _checks
from longtail._checks import FloatArray, InputError
from longtail.margins import Margin

_LOG2, _LOG4 = np.log(2.0), np.log(4.0)


class Unresolved(InputError):
    """The link or its inverse is beyond double precision."""


def inverse_link(margin: Margin, scores: Any) -> FloatArray:
    """Return the class probabilities η at which the given scores minimise the risk."""
    log_eta = log_inverse_link(margin, np.asarray(scores, np.float64))
    if not np.all(np.isfinite(log_eta)):
        raise Unresolved(
            "the scores and margins differ by more than double precision can hold (e^700); scale "
            "them down."
        )
    return np.exp(log_eta)


def log_inverse_link(margin: Margin, scores: FloatArray) -> FloatArray:
    """Return log η of `inverse_link`, accurate where η itself is tiny; NaN where it fails."""
    additive = additive_parts(margin)
    if additive is None:
        log_w = _log_stationary(margin, scores)
    else:
        a, b = additive
        log_u = _log_softmax(margin.scale * scores + b)
        log_w = log_u + np.logaddexp(_log_sum_of_others(log_u), log_u - (a + b))
    return _log_softmax(log_w - np.log(margin.alpha))


def link(margin: Margin, eta: Any) -> FloatArray:
    """Return the scores f that minimise the risk R(η, f), with Σ_y f_y = 0, for positive η.

    Examples:
        >>> from longtail import ClassPrior, margins
        >>> prior = ClassPrior.from_probs([0.8, 0.2])
        >>> link(margins.softmax(prior), [0.8, 0.2]).round(3)  # log η, centred
        array([ 0.693, -0.693])
        >>> link(margins.logit_adjusted(prior), [0.8, 0.2]).round(9) + 0.0  # a tie at η = π
        array([0., 0.])
    """
    eta = np.asarray(eta, np.float64)
    _checks.probability_rows(eta[None], name="eta")
    if np.any(eta == 0):
        raise InputError(
            "`eta` must be positive, but a probability is 0, whose best score is minus infinity."
        )
    log_w = _log_softmax(np.log(eta) + np.log(margin.alpha))
    additive = additive_parts(margin)
    if additive is None:
        scores = _minimize_dense(margin.scale * margin.matrix(), log_w)
    else:
        a, b = additive
        scores = _solve_additive(log_w, a + b) - b
    return np.asarray((scores - scores.mean()) / margin.scale)


def additive_parts(margin: Margin) -> tuple[FloatArray, FloatArray] | None:
    """Return s·a and s·b where Δ_{yy'} = a_y + b_{y'}, as for two classes always, else None."""
    s = margin.scale
    if margin.dense is None:
        return s * margin.positive, s * margin.negative
    if margin.num_classes == 2:
        return s * margin.dense.sum(axis=1), np.zeros(2)
    return None


def gradient(margin: Margin, eta: Any, scores: Any) -> FloatArray:
    """Return ∂R(η, f)/∂f, shape (num_classes,); it vanishes at f = link(η)."""
    s = margin.scale
    f, w = s * np.asarray(scores, np.float64), np.asarray(eta, np.float64) * margin.alpha
    if margin.dense is not None:
        return np.asarray(s * _derivatives(s * margin.dense, w, f)[0])
    z = f + s * margin.negative
    # Target y meets rival k with probability e^{z_k} / d_y, d_y = e^{f_y − a_y} + Σ_{j≠y} e^{z_j}.
    rivals = _log_sum_of_others(z)
    log_d = np.logaddexp(rivals, f - s * margin.positive)
    with np.errstate(divide="ignore"):
        pull = np.exp(z + _log_sum_of_others(np.log(w) - log_d))
    return np.asarray(s * (pull - w * np.exp(rivals - log_d)))


def _log_sum(values: FloatArray) -> FloatArray:
    """log Σ e^v over the last axis, which is kept; scipy's takes longer to start than to sum."""
    top = values.max(axis=-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(top + np.log(np.exp(values - top).sum(axis=-1, keepdims=True)))


def _log_softmax(values: FloatArray) -> FloatArray:
    return np.asarray(values - _log_sum(values))


def _log_sum_of_others(values: FloatArray) -> FloatArray:
    """log Σ_{j≠k} e^{v_j} for every k, in O(L) and without cancelling."""
    top, total = int(np.argmax(values)), _log_sum(values)
    # No class but the top one holds more than half of the sum, so 1 − share loses nothing.
    share = np.exp(values - total)
    share[top] = 0.0
    rest = total + np.log1p(-share)
    without_top = values.copy()
    without_top[top] = -np.inf
    rest[top] = _log_sum(without_top)[0]
    return np.asarray(rest)


def _solve_additive(log_w: FloatArray, c: FloatArray) -> FloatArray:
    """log u with u_k · [(1 − u_k) + e^{−c_k} u_k] ∝ w_k and Σ u = 1.

    With the factor λ of proportionality given, each class solves a quadratic. If c_k > 0 that
    has two roots, u_k below and above 1/(2·(1 − e^{−c_k})) > 1/2, so at most one class can
    stand on its upper root: as λ grows it is the one, `lead`, whose roots meet first. Following
    u_lead from 0 to 1 therefore passes the solution, once because R is strictly convex; it
    is found by bisection on logit(u_lead), which resolves both ends.
    """
    if not np.any(c):
        return _log_softmax(log_w)  # u = w
    with np.errstate(divide="ignore"):
        log_bend = np.log(-np.expm1(-np.maximum(c, 0.0)))  # log(1 − e^{−c}) for c > 0
    key = log_bend + log_w if np.any(c > 0) else log_w
    lead = int(np.argmax(key))

    def others(z: float) -> FloatArray:
        """log u of all but the leading class, if that has logit(u) = z."""
        log_v, log_rest = -np.logaddexp(0.0, -z), -np.logaddexp(0.0, z)
        log_factor = log_v + np.logaddexp(log_rest, log_v - c[lead]) - log_w[lead]
        log_u = _lower_root(log_factor + log_w, c)
        log_u[lead] = -np.inf
        return log_u

    high = 100.0 + 4.0 * float(np.ptp(log_w) + np.abs(c).max())
    low = -high
    while low < (middle := 0.5 * (low + high)) < high:
        too_much = _log_sum(others(middle))[0] + np.logaddexp(0.0, middle) > 0
        low, high = (low, middle) if too_much else (middle, high)
    log_u = others(middle)
    log_u[lead] = -np.logaddexp(0.0, -middle)
    return log_u


def _lower_root(log_t: FloatArray, c: FloatArray) -> FloatArray:
    """log u of the smaller root of u · [1 + (e^{−c} − 1) u] = t, where it exists."""
    with np.errstate(divide="ignore", over="ignore"):
        bend = np.log(np.abs(np.expm1(-np.abs(c)))) + np.maximum(-c, 0.0)  # log|e^{−c} − 1|
        # Where the roots meet, rounding may step past the end.
        root_up = np.sqrt(np.maximum(1.0 - np.exp(np.minimum(_LOG4 + bend + log_t, 0.0)), 0.0))
        root_down = 0.5 * np.logaddexp(0.0, _LOG4 + bend + log_t)
    log_denominator = np.where(c > 0, np.log1p(root_up), np.logaddexp(0.0, root_down))
    return np.asarray(_LOG2 + log_t - log_denominator)


def _log_stationary(margin: Margin, scores: FloatArray) -> FloatArray:
    """log of the stationary distribution of the chain with P_{yk} ∝ exp(s·(Δ_{yk} + f_k)).

    Elimination after Grassmann, Taksar and Heyman (1985): it subtracts nowhere, so that the
    smallest entries keep all their digits.
    """
    size = margin.num_classes
    chain = np.exp(_log_softmax(margin.scale * (margin.matrix() + scores)))  # from, to
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for k in range(size - 1, 0, -1):
            chain[:k, k] /= chain[k, :k].sum()
            chain[:k, :k] += chain[:k, k, None] * chain[k, :k]
        weight = np.ones(size)
        for k in range(1, size):
            weight[k] = (weight[:k] * chain[:k, k]).sum()
        return np.asarray(np.where(np.isfinite(weight) & (weight > 0), np.log(weight), np.nan))


def _minimize_dense(delta: FloatArray, log_w: FloatArray) -> FloatArray:
    """Newton's method with step halving for one row of log w and any scaled margins Δ."""
    w = np.exp(log_w)
    anchor = int(np.argmax(w))  # its score stays put; the Hessian of the others is definite
    free = np.delete(np.arange(len(w)), anchor)

    def value(f: FloatArray) -> float:
        return float(w @ _log_sum(delta + f[None, :] - f[:, None])[:, 0])

    f, best, error = log_w - delta.mean(axis=0), log_w, np.inf
    for _ in range(200):
        gradient, hessian = _derivatives(delta, w, f)
        found = float(np.max(np.abs(gradient) / w))
        if found >= error and error < 1e-6:
            break  # as good as double precision has it
        error, best = found, f
        # Rare classes have tiny rows; an equilibrated system keeps their digits.
        step, system = np.zeros_like(f), hessian[np.ix_(free, free)]
        size = 1.0 / np.sqrt(np.diag(system))
        system = system * size[:, None] * size[None, :]
        with np.errstate(over="ignore", invalid="ignore"):
            try:
                step[free] = -size * np.linalg.solve(system, size * gradient[free])
            except np.linalg.LinAlgError:
                break
        if error < 1e-15 or not np.all(np.isfinite(step)):
            break
        step *= min(1.0, 50.0 / np.abs(step).max())  # on a plateau the model reaches too far
        here, slope, length = value(f), float(gradient @ step), 1.0
        # This close, the decrease drowns in the risk's rounding; the gradient judges above.
        while error > 1e-6 and length > 1e-9:
            if value(f + length * step) <= here + 1e-4 * length * slope + 1e-15 * (1 + abs(here)):
                break
            length *= 0.5
        f = f + length * step
    if not error < 1e-6:
        raise Unresolved(
            "the minimiser for these margins and probabilities can't be resolved in double "
            "precision; use less extreme ones."
        )
    return best


def _derivatives(delta: FloatArray, w: FloatArray, f: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Gradient and Hessian of R in f; neither subtracts a large probability from 1."""
    p = np.exp(_log_softmax(delta + f[None, :]))
    rivals = p - np.diag(np.diag(p))
    gradient = w @ rivals - w * rivals.sum(axis=1)
    hessian = -(p.T * w) @ p  # rows sum to zero, which gives the diagonal
    np.fill_diagonal(hessian, 0.0)
    np.fill_diagonal(hessian, np.maximum(-hessian.sum(axis=1), np.finfo(np.float64).tiny))
    return gradient, hessian
