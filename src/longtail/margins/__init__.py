"""ClassPrior in, Margin out: one function per named loss of the pairwise-margin family.

A Margin is the whole difference between these losses (equation 11 of the paper):

    ℓ(y, f) = α_y · log[1 + Σ_{y'≠y} exp(s · (Δ_{yy'} + f_{y'} − f_y))],   Δ_{yy'} = a_y + b_{y'}

with a the `positive` part, b the `negative` part and s the `scale` (1 except for
LDAM). Nothing here knows torch: `losses` turns a Margin into a loss, and
`consistency` judges whether minimising that loss minimises the balanced error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from longtail import _checks
from longtail._checks import FloatArray, InputError
from longtail.margins._margin import Margin
from longtail.priors import ClassPrior

__all__ = [
    "MARGINS",
    "Margin",
    "adaptive",
    "balanced",
    "by_name",
    "class_balanced",
    "consistent",
    "equalized",
    "ldam",
    "logit_adjusted",
    "logit_adjusted_adaptive",
    "softmax",
    "two_parameter",
    "weighted_logit_adjusted",
]


def _additive(
    prior: ClassPrior,
    name: str,
    *,
    alpha: FloatArray | None = None,
    positive: FloatArray | None = None,
    negative: FloatArray | None = None,
    scale: float = 1.0,
) -> Margin:
    """A Margin with the parts that are given; α normalised to Σ π_y α_y = 1."""
    zeros = np.zeros(prior.num_classes)
    alpha = np.ones(prior.num_classes) if alpha is None else alpha / np.dot(prior.probs, alpha)
    return Margin(
        alpha=alpha,
        positive=zeros if positive is None else positive,
        negative=zeros if negative is None else negative,
        scale=scale,
        name=name,
    )


def softmax(prior: ClassPrior) -> Margin:
    """No weights and no margins: plain cross-entropy, Δ = 0 (empirical risk minimisation).

    Examples:
        >>> softmax(ClassPrior.uniform(2)).matrix()
        array([[0., 0.],
               [0., 0.]])
    """
    return _additive(_checks.prior(prior, "margins.softmax"), "softmax")


def balanced(prior: ClassPrior) -> Margin:
    """Weights 1/π (equation 4): every class counts alike in the mean.

    Args:
        prior: of the training data.

    Returns:
        α_y = 1 / (L π_y), so that Σ π α = 1; Δ = 0.

    Examples:
        >>> balanced(ClassPrior.from_probs([0.8, 0.2])).alpha
        array([0.625, 2.5  ])
    """
    prior = _checks.prior(prior, "margins.balanced")
    return _additive(prior, "balanced", alpha=1.0 / prior.probs)


def class_balanced(prior: ClassPrior, *, beta: float = 0.9999) -> Margin:
    """Weights by the inverse effective number of examples (Cui et al. 2019).

    Args:
        prior: of the training data, made from counts.
        beta: β in [0, 1); 0 is plain cross-entropy, β → 1 is `balanced`.

    Returns:
        α_y ∝ (1 − β) / (1 − β^{n_y}), with Σ π α = 1; Δ = 0.

    Examples:
        >>> class_balanced(ClassPrior.from_counts([8000, 2000]), beta=0.999).alpha.round(3)
        array([0.97 , 1.121])
    """
    prior = _checks.prior(prior, "margins.class_balanced")
    return _additive(prior, "class-balanced", alpha=1.0 / prior.effective_numbers(beta=beta))


def adaptive(prior: ClassPrior, *, constant: float = 1.0) -> Margin:
    """A margin for rare target classes, Δ_{yy'} = C · π_y^{−1/4} (equation 5, Cao et al. 2019).

    Args:
        prior: of the training data.
        constant: C; the paper's experiments use 1 with a linear head.

    Returns:
        a_y = C · π_y^{−1/4}.

    Examples:
        >>> adaptive(ClassPrior.from_probs([0.9375, 0.0625])).positive.round(3)
        array([1.016, 2.   ])
    """
    prior = _checks.prior(prior, "margins.adaptive")
    constant = _checks.tau(constant, "margins.adaptive", name="constant")
    return _additive(prior, "adaptive", positive=constant * np.exp(-0.25 * prior.log_probs))


def ldam(prior: ClassPrior, *, max_margin: float = 0.5, scale: float = 30.0) -> Margin:
    """The adaptive margin as in Cao et al.'s code: for a cosine head, logits times `scale`.

    With an ordinary linear head the scale makes training diverge; use `adaptive` there.

    Args:
        prior: of the training data.
        max_margin: the margin of the rarest class, in units of the cosine.
        scale: s, multiplies logits and margins.

    Returns:
        a_y ∝ n_y^{−1/4}, with max a = `max_margin`.

    Examples:
        >>> ldam(ClassPrior.from_counts([1600, 100])).positive
        array([0.25, 0.5 ])
    """
    prior = _checks.prior(prior, "margins.ldam")
    max_margin = _checks.positive(max_margin, "margins.ldam", name="max_margin")
    quarter = -0.25 * prior.log_probs
    positive = max_margin * np.exp(quarter - quarter.max())
    return _additive(prior, "ldam", positive=positive, scale=scale)


def equalized(prior: ClassPrior, *, tau: float = 1.0) -> Margin:
    """A smaller margin against rare competitors, Δ_{yy'} = τ log π_{y'} (equation 6, F(z) = z^τ).

    This is the deterministic form of the paper's section 4.2; the stochastic threshold form of
    Tan et al. is `losses.equalized_threshold_loss`.

    Args:
        prior: of the training data.
        tau: τ, strength.

    Returns:
        b_{y'} = τ log π_{y'}.

    Examples:
        >>> equalized(ClassPrior.from_probs([0.5, 0.5]), tau=2.0).negative.round(3)
        array([-1.386, -1.386])
    """
    prior = _checks.prior(prior, "margins.equalized")
    tau = _checks.tau(tau, "margins.equalized")
    return _additive(prior, "equalized", negative=tau * prior.log_probs)


def logit_adjusted(prior: ClassPrior, *, tau: float = 1.0) -> Margin:
    """The logit-adjusted loss (equation 10): Δ_{yy'} = τ log(π_{y'} / π_y).

    Args:
        prior: of the training data.
        tau: τ; 1 is consistent for the balanced error, −1 is the sampled-softmax correction.

    Returns:
        a_y = −τ log π_y and b_{y'} = τ log π_{y'}.

    Examples:
        >>> logit_adjusted(ClassPrior.from_probs([0.9, 0.1])).matrix().round(3)
        array([[ 0.   , -2.197],
               [ 2.197,  0.   ]])
    """
    prior = _checks.prior(prior, "margins.logit_adjusted")
    shift = _checks.tau(tau, "margins.logit_adjusted") * prior.log_probs
    return _additive(prior, "logit-adjusted", positive=-shift, negative=shift)


def logit_adjusted_adaptive(
    prior: ClassPrior, *, tau: float = 1.0, constant: float = 1.0
) -> Margin:
    """`logit_adjusted` and `adaptive` together (section 4.3 of the paper).

    Args:
        prior: of the training data.
        tau: τ of the logit adjustment.
        constant: C of the adaptive margin.

    Returns:
        a_y = −τ log π_y + C · π_y^{−1/4} and b_{y'} = τ log π_{y'}.

    Examples:
        >>> prior = ClassPrior.from_probs([0.9375, 0.0625])
        >>> logit_adjusted_adaptive(prior).positive.round(3)
        array([1.081, 4.773])
    """
    total = logit_adjusted(prior, tau=tau) + adaptive(prior, constant=constant)
    return _additive(
        prior, "logit-adjusted-adaptive", positive=total.positive, negative=total.negative
    )


def two_parameter(prior: ClassPrior, *, tau1: float = 1.0, tau2: float = 1.0) -> Margin:
    """Different strengths for target and competitor: Δ_{yy'} = τ₂ log π_{y'} − τ₁ log π_y.

    The sign is the one that section 4.3 of the paper means: τ₁ = τ₂ is `logit_adjusted` and
    τ₁ = 0 is `equalized`.

    Args:
        prior: of the training data.
        tau1: τ₁, strength for the target class.
        tau2: τ₂, strength for the competing class.

    Returns:
        a_y = −τ₁ log π_y and b_{y'} = τ₂ log π_{y'}.

    Examples:
        >>> two_parameter(ClassPrior.from_probs([0.9, 0.1]), tau1=0.0).positive
        array([0., 0.])
    """
    prior = _checks.prior(prior, "margins.two_parameter")
    tau1 = _checks.tau(tau1, "margins.two_parameter", name="tau1")
    tau2 = _checks.tau(tau2, "margins.two_parameter", name="tau2")
    return _additive(
        prior,
        "two-parameter",
        positive=-tau1 * prior.log_probs + 0.0,  # + 0.0 turns −0 into 0
        negative=tau2 * prior.log_probs,
    )


def consistent(prior: ClassPrior, *, delta: Any) -> Margin:
    """The whole consistent family of Theorem 1: α_y = δ_y / π_y and Δ_{yy'} = log(δ_{y'} / δ_y).

    Args:
        prior: of the training data.
        delta: δ, shape (num_classes,), any positive numbers; δ = π is `logit_adjusted`,
            δ = 1 is `balanced`.

    Returns:
        The Margin, with Σ π α = 1.

    Examples:
        >>> prior = ClassPrior.from_probs([0.8, 0.2])
        >>> consistent(prior, delta=[1.0, 1.0]).alpha
        array([0.625, 2.5  ])
    """
    caller = "margins.consistent"
    prior = _checks.prior(prior, caller)
    delta = _checks.weights(delta, caller=caller, name="delta")
    _checks.width(delta, prior.num_classes, caller=caller, name="delta")
    if np.any(delta == 0):
        raise InputError(f"{caller}: `delta` must be positive, but a value is 0.")
    log_delta = np.log(delta)
    return _additive(
        prior, "consistent", alpha=delta / prior.probs, positive=-log_delta, negative=log_delta
    )


def weighted_logit_adjusted(prior: ClassPrior, *, tau: float = 0.5) -> Margin:
    """Half margin, half weight: Δ_{yy'} = τ log(π_{y'} / π_y) and α_y = π_y^{τ−1}; consistent.

    Args:
        prior: of the training data.
        tau: τ; 1 is `logit_adjusted`, 0 is `balanced`.

    Returns:
        The Margin, with Σ π α = 1.

    Examples:
        >>> weighted_logit_adjusted(ClassPrior.from_probs([0.8, 0.2])).alpha.round(3)
        array([0.833, 1.667])
    """
    prior = _checks.prior(prior, "margins.weighted_logit_adjusted")
    tau = _checks.tau(tau, "margins.weighted_logit_adjusted")
    shift = tau * prior.log_probs
    return _additive(
        prior,
        "weighted-logit-adjusted",
        alpha=np.exp((tau - 1.0) * prior.log_probs),
        positive=-shift,
        negative=shift,
    )


# Method names as on the command line and in run folders, in the order of the paper's table.
MARGINS: dict[str, Callable[..., Margin]] = {
    "softmax": softmax,
    "balanced": balanced,
    "class-balanced": class_balanced,
    "adaptive": adaptive,
    "ldam": ldam,
    "equalized": equalized,
    "logit-adjusted": logit_adjusted,
    "logit-adjusted-adaptive": logit_adjusted_adaptive,
    "two-parameter": two_parameter,
    "consistent": consistent,
    "weighted-logit-adjusted": weighted_logit_adjusted,
}


def by_name(name: str, prior: ClassPrior, **settings: Any) -> Margin:
    """The margin of a named loss, as the command line calls it.

    Args:
        name: a key of `MARGINS`.
        prior: of the training data.
        **settings: what that margin's function takes besides the prior.

    Examples:
        >>> by_name("logit-adjusted", ClassPrior.uniform(3), tau=2.0)
        Margin('logit-adjusted', num_classes=3, additive)
    """
    caller = "margins.by_name"
    _checks.choice(name, list(MARGINS), caller, name="name")
    _checks.settings(settings, MARGINS[name], caller, of=f"the margin {name!r}")
    return MARGINS[name](prior, **settings)
