"""The losses in slow float64 NumPy loops, straight from the equations; shared by the tests."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import minimize


def pairwise_loss(f, y, alpha, delta, scale=1.0, kept=None):
    """ℓ(y, f) = α_y · log[1 + Σ_{k≠y} exp(s · (Δ_{yk} + f_k − f_y))], with its gradient in f.

    `f` has shape (C,), `delta` (C, C), `kept` says which competitors take part.
    """
    f = np.asarray(f, np.float64)
    total, pushes = 0.0, np.zeros(len(f))
    for k in range(len(f)):
        if k != y and (kept is None or kept[k]):
            pushes[k] = np.exp(scale * (delta[y][k] + f[k] - f[y]))
            total += pushes[k]
    grad = alpha[y] * scale * pushes / (1.0 + total)
    grad[y] = -alpha[y] * scale * total / (1.0 + total)
    return alpha[y] * np.log1p(total), grad


def soft_loss(f, q, alpha, delta, scale=1.0, kept=None):
    """Σ_y q_y ℓ(y, f), its gradient, and the sum of the absolute terms that make up the gradient.

    The terms of a soft target's gradient have both signs and may cancel; what arithmetic can
    promise is an error small beside the terms, not beside what is left of them.
    """
    value, grad, terms = 0.0, np.zeros(len(f)), np.zeros(len(f))
    for y in range(len(f)):
        one, slope = pairwise_loss(f, y, alpha, delta, scale, kept)
        value += q[y] * one
        grad += q[y] * slope
        terms += np.abs(q[y] * slope)
    return value, grad, terms


def smoothed(y_or_q, num_classes, epsilon):
    """The target distribution (1 − ε)·q + ε/C of a class index or of probabilities."""
    q = np.eye(num_classes)[y_or_q] if np.ndim(y_or_q) == 0 else np.asarray(y_or_q, np.float64)
    return (1.0 - epsilon) * q + epsilon / num_classes


def float32_bound(logits, delta, scale=1.0):
    """The error of a loss in float32: 4·eps·(4 + max|logit| + max|margin|)."""
    largest = np.abs(np.asarray(logits, np.float64)).max() + np.abs(delta).max()
    return 4 * np.finfo(np.float32).eps * (4 + scale * largest)


def shares_by_hand(counts, examples):
    """Every class once; one without examples is replaced by the nearest in size, on a log scale.

    Equally near ones share its vote.
    """
    votes = np.zeros(len(counts))
    for k in range(len(counts)):
        if examples[k] > 0:
            votes[k] += 1
            continue
        away = {
            j: round(abs(math.log(counts[j] / counts[k])), 9)
            for j in range(len(counts))
            if examples[j] > 0
        }
        near = [j for j in away if away[j] == min(away.values())]
        for j in near:
            votes[j] += 1 / len(near)
    return votes / len(counts)


def conditional_risk(margin, eta, f):
    """Σ_y η_y α_y log[1 + Σ_{y'≠y} exp(s (Δ_{yy'} + f_{y'} − f_y))], term by term."""
    delta, s, total = margin.matrix(), margin.scale, 0.0
    for y in range(len(f)):
        terms = [0.0] + [s * (delta[y, k] + f[k] - f[y]) for k in range(len(f)) if k != y]
        total += eta[y] * margin.alpha[y] * np.logaddexp.reduce(terms)
    return total


def minimizer(margin, eta):
    """The scores, with sum 0, that minimise it."""
    start = np.log(eta) / margin.scale
    for method, options in (("BFGS", {"gtol": 1e-11}), ("Nelder-Mead", {"fatol": 1e-14})):
        start = minimize(
            lambda f: conditional_risk(margin, eta, f), start, method=method, options=options
        ).x
    return start - start.mean()
