"""Adjusting twice: how much of an adjustment training has done already, and how to say so."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from longtail._checks import FloatArray, InputError
from longtail.priors import ClassPrior

if TYPE_CHECKING:
    from longtail.margins import Margin

# Below this τ there is next to nothing left to correct, see `tau_left`.
_NEXT_TO_NOTHING = 0.1
# The least τ that may be adjusting twice, see `adjusts_again`.
LEAST_AGAIN = 0.5


class AdjustedTwiceWarning(UserWarning):
    """A model whose loss leaves much less to correct than is asked for is being adjusted again."""


def adjusts_again(tau: float) -> bool:
    """Whether adjusting by τ favours rare classes twice, if training has favoured them already.

    A negative τ is the way back to the frequencies of the training data. A small one is what
    held-out data may still ask for, and whoever passes it has chosen it; from half of the whole
    adjustment on it is more likely a mistake.

    Args:
        tau: τ.
    """
    return tau >= LEAST_AGAIN


def tau_left(residual: FloatArray, prior: ClassPrior) -> float:
    """The τ that training leaves to correct: that for which −τ log π comes nearest to r.

        Σ r_y ρ_y / Σ ρ_y²,   ρ = −log π less its mean

    It is 1 after the softmax, 0 after a consistent loss, negative where a loss goes beyond that.

    Args:
        residual: r, what is left to add to the logits, see `Margin.residual_adjustment`.
        prior: π, of the training data; of a uniform one, which corrects nothing, all is left.

    Examples:
        >>> import numpy as np
        >>> prior = ClassPrior.from_probs([0.9, 0.1])
        >>> tau_left(-0.3 * prior.log_probs, prior), tau_left(np.zeros(2), prior)
        (0.3, 0.0)
    """
    whole = prior.log_probs.mean() - prior.log_probs
    size = float(whole @ whole)
    return float(residual @ whole) / size if size > 0 else 1.0


def leaves_little(residual: FloatArray, prior: ClassPrior, *, tau: float = 1.0) -> bool:
    """Whether training has done more than half of an adjustment by τ, or has gone beyond it.

    Of a τ above 1, which is a temperature too, only 1 is what any loss could have done: after the
    softmax every τ is left.

    Args:
        residual: as in `tau_left`.
        prior: as in `tau_left`.
        tau: τ, what is asked for.

    Examples:
        >>> prior = ClassPrior.from_probs([0.9, 0.1])
        >>> left = -0.3 * prior.log_probs
        >>> leaves_little(left, prior), leaves_little(left, prior, tau=0.5)
        (True, False)
    """
    # A loss that did just half may look as if it did more: modules hold their margins in float32.
    return tau_left(residual, prior) < 0.4999 * min(tau, 1.0)


def in_words(
    left: float,
    *,
    again: str = "adjusting its logits favours the rare classes twice",
    instead: str = "use them as they are, or at most with a small tau that held-out data ask for",
) -> tuple[str, str, str]:
    """For warnings: what a loss does, what adjusting again means, and what to do instead.

    Args:
        left: the τ that the loss leaves, see `tau_left`.
        again: what to say of adjusting where next to nothing is left.
        instead: what to do then.
    """
    if left < _NEXT_TO_NOTHING:
        return "already aims at the balanced error", again, instead
    return (
        f"leaves about tau = {left:.1f} to correct",
        "more than that favours the rare classes twice",
        f"take tau = {left:.1f}, or what held-out data ask for",
    )


def from_uniform(num_classes: int) -> str:
    """For warnings: how logits that training has balanced are brought to a target of their own."""
    return (
        f"what training has balanced is adjusted to another target from the uniform prior: pass "
        f"ClassPrior.uniform({num_classes}) as the prior, with the same target_prior or costs"
    )


# For warnings: a shift of 0 is what the target π takes of logits whose prior is π, and no others.
LEFT_BALANCED = (
    "its logits are not those of the training prior, and adjusting to it changes nothing"
)
_AGAIN = "adjusting its logits again is incoherent: the rare classes are favoured twice"


def warn_if_already_adjusted(
    margin: Margin, prior: ClassPrior, tau: float, *, elsewhere: bool, moved: bool
) -> None:
    """`elsewhere`: the target is another than the balanced error; `moved`: the shift is not 0."""
    if not hasattr(margin, "residual_adjustment"):
        raise InputError(
            f"adjust_logits: `trained_with` must be the Margin of the training loss, such as "
            f"margins.logit_adjusted(prior); got {type(margin).__name__}."
        )
    if not margin.is_antisymmetric or not adjusts_again(tau) or prior.imbalance_ratio == 1:
        return
    residual = margin.residual_adjustment(prior)
    if leaves_little(residual, prior, tau=tau):
        does, again, instead = in_words(
            tau_left(residual, prior), again=_AGAIN, instead="use the logits as they are (tau=0)"
        )
        warnings.warn(
            f"adjust_logits: the loss '{margin.name}' {does}, so "
            f"{again if moved else LEFT_BALANCED}; "
            f"{from_uniform(prior.num_classes) if elsewhere else instead}.",
            AdjustedTwiceWarning,
            stacklevel=3,
        )
