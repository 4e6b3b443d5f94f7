"""The conditional risk of a pairwise-margin loss, and the scores that minimise it.

At a point whose class probabilities are η, a pairwise-margin loss (equation 11) costs

    R(η, f) = Σ_y η_y α_y log[1 + Σ_{y'≠y} exp(s · (Δ_{yy'} + f_{y'} − f_y))]

in expectation. R is convex in f, so that one zero-sum f = link(η) minimises it, and this f
belongs to one η = inverse_link(f). Both maps are exact here, without a general optimiser:

* R is stationary at f where w_y = η_y α_y is the stationary distribution of the Markov chain
  that goes from y to y' with probability ∝ exp(s · (Δ_{yy'} + f_{y'})) (Δ_{yy} = 0).
* For Δ_{yy'} = a_y + b_{y'} this is a quadratic equation per class: with u = softmax(s·(f + b)),
  w_y ∝ u_y · [(1 − u_y) + e^{−s·(a_y + b_y)} u_y], found in O(L).

In all functions `margin` gives α, Δ and the scale s; `eta` is η, shape (..., num_classes), rows
of non-negative numbers that sum to 1; `scores` is f, of the same shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from longtail import _checks
from longtail._checks import FloatArray, InputError
from longtail.margins import Margin

_LOG2, _LOG4 = np.log(2.0), np.log(4.0)


def conditional_risk(margin: Margin, eta: Any, scores: Any) -> FloatArray:
    """Return the expected loss R(η, f), shape (...)."""
    eta, f, s = _probabilities(eta, margin), np.asarray(scores, np.float64), margin.scale
    if margin.dense is None:
        # The loss of every target class at once; the target stays out of the sum.
        rivals = _log_sum_of_others(s * (f + margin.negative))
        losses = np.logaddexp(0.0, rivals - s * (f - margin.positive))
    else:
        losses = _log_sum(s * (margin.dense + f[..., None, :] - f[..., :, None]))[..., 0]
    return np.asarray((eta * margin.alpha * losses).sum(axis=-1))


def inverse_link(margin: Margin, scores: Any) -> FloatArray:
    """Return the class probabilities η at which the given scores minimise the risk."""
    return np.exp(log_inverse_link(margin, np.asarray(scores, np.float64)))


def log_inverse_link(margin: Margin, scores: FloatArray) -> FloatArray:
    """Return log η of `inverse_link`, accurate where η itself is tiny."""
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
    eta = _probabilities(eta, margin)
    if np.any(eta == 0):
        raise InputError(
            "`eta` must be positive, but a probability is 0, whose best score is minus infinity."
        )
    rows = eta.reshape(-1, margin.num_classes)
    log_w = _log_softmax(np.log(rows) + np.log(margin.alpha))
    additive = additive_parts(margin)
    if additive is None:
        scores = np.array([_minimize_dense(margin.scale * margin.matrix(), row) for row in log_w])
    else:
        a, b = additive
        scores = _solve_additive(log_w, a + b) - b
    scores = (scores - scores.mean(axis=-1, keepdims=True)) / margin.scale
    return np.asarray(scores.reshape(eta.shape))


def additive_parts(margin: Margin) -> tuple[FloatArray, FloatArray] | None:
    """Return s·a and s·b where Δ_{yy'} = a_y + b_{y'}, as for two classes always, else None."""
    s = margin.scale
    if margin.dense is None:
        return s * margin.positive, s * margin.negative
    if margin.num_classes == 2:
        return s * margin.dense.sum(axis=1), np.zeros(2)
    return None


def gradient(margin: Margin, eta: Any, scores: Any) -> FloatArray:
    """Return ∂R(η, f)/∂f for one η and f, shape (num_classes,); it vanishes at f = link(η)."""
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
    """log Σ_{j≠k} e^{v_j} for every k of the last axis, in O(L) and without cancelling."""
    top = np.argmax(values, axis=-1, keepdims=True)
    total = _log_sum(values)
    # No class but the top one holds more than half of the sum, so 1 − share loses nothing.
    share = np.exp(values - total)
    np.put_along_axis(share, top, 0.0, axis=-1)
    rest = total + np.log1p(-share)
    without_top = values.copy()
    np.put_along_axis(without_top, top, -np.inf, axis=-1)
    np.put_along_axis(rest, top, _log_sum(without_top), axis=-1)
    return np.asarray(rest)


def _solve_additive(log_w: FloatArray, c: FloatArray) -> FloatArray:
    """log u with u_k · [(1 − u_k) + e^{−c_k} u_k] ∝ w_k and Σ u = 1, for rows of log w.

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
    lead = np.argmax(key, axis=-1)[:, None]
    w_lead, c_lead = np.take_along_axis(log_w, lead, axis=-1), c[lead]

    def others(z: FloatArray) -> tuple[FloatArray, FloatArray]:
        log_v, log_rest = -np.logaddexp(0.0, -z), -np.logaddexp(0.0, z)
        log_factor = log_v + np.logaddexp(log_rest, log_v - c_lead) - w_lead
        log_u = _lower_root(log_factor + log_w, c)
        np.put_along_axis(log_u, lead, -np.inf, axis=-1)
        return log_u, _log_sum(log_u) - log_rest

    reach = 100.0 + 4.0 * (np.ptp(log_w) + np.abs(c).max())
    low, high = np.full(lead.shape, -reach), np.full(lead.shape, reach)
    for _ in range(200):
        middle = 0.5 * (low + high)
        if np.all((middle == low) | (middle == high)):
            break
        too_much = others(middle)[1] > 0
        low, high = np.where(too_much, low, middle), np.where(too_much, middle, high)
    z = 0.5 * (low + high)
    log_u = others(z)[0]
    np.put_along_axis(log_u, lead, -np.logaddexp(0.0, -z), axis=-1)
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
    rows = scores.reshape(-1, size)
    # of shape (rows, from, to)
    chain = np.exp(_log_softmax(margin.scale * (margin.matrix() + rows[:, None, :])))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for k in range(size - 1, 0, -1):
            chain[:, :k, k] /= chain[:, k, :k].sum(axis=1)[:, None]
            chain[:, :k, :k] += chain[:, :k, k, None] * chain[:, k, None, :k]
        weight = np.zeros_like(rows)
        weight[:, 0] = 1.0
        for k in range(1, size):
            weight[:, k] = (weight[:, :k] * chain[:, :k, k]).sum(axis=1)
        log_weight = np.log(weight)
    if not np.all(np.isfinite(log_weight)):
        raise InputError(
            "the scores and margins differ by more than double precision can hold (e^700); scale "
            "them down."
        )
    return np.asarray(log_weight.reshape(scores.shape))


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
        raise InputError(
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


def _probabilities(values: Any, margin: Margin) -> FloatArray:
    eta = np.asarray(values, dtype=np.float64)
    _checks.probability_rows(eta.reshape(-1, margin.num_classes), name="eta")
    return eta
