"""The training loss that a model brings along: does it leave anything to adjust?

A network that holds its loss as a part, as LightningModules do, has the margins among its buffers,
and so has its state dict.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress

import numpy as np

from longtail._checks import FloatArray, InputError
from longtail.bake._change import Change, LogitAdjustment
from longtail.margins import Margin
from longtail.posthoc import (
    LEFT_BALANCED,
    AdjustedTwiceWarning,
    adjusts_again,
    from_uniform,
    in_words,
    leaves_little,
    tau_left,
)
from longtail.priors import ClassPrior


def margin_of(read: Callable[[str], FloatArray | None], *, scale: float = 1.0) -> Margin | None:
    """The margin whose parts are stored by name; None if they are not those of a loss."""
    alpha, positive, negative = (read(part) for part in ("alpha", "positive", "negative"))
    if alpha is None or positive is None or negative is None:
        return None
    with suppress(InputError):  # something of somebody else's, under the same names
        return Margin(alpha, positive, negative, dense=read("dense"), scale=scale)
    return None


def warn_if_adjusted(losses: Iterable[tuple[str, Margin]], change: Change, *, name: str) -> None:
    """Say so if a loss that a model holds leaves much less to correct than is added.

    Not an error: the model may have been trained with another one.

    Args:
        losses: names and margins.
        change: what is baked in.
        name: of the model, for the message.
    """
    if not isinstance(change, LogitAdjustment) or not adjusts_again(change.tau):
        return
    prior = ClassPrior.from_probs(change.settings["prior"])
    if prior.imbalance_ratio == 1:  # takes nothing off
        return
    elsewhere = "target_prior" in change.settings or "costs" in change.settings
    for place, margin in losses:
        if _leaves_little(margin, prior, change.tau):
            does, again, instead = in_words(tau_left(margin.residual_adjustment(prior), prior))
            warnings.warn(
                f"{change.caller}: {name} holds a loss ({place}) that {does}. If it was trained "
                f"with that, {again if np.ptp(change.shift) else LEFT_BALANCED}; "
                f"{from_uniform(prior.num_classes) if elsewhere else instead}.",
                AdjustedTwiceWarning,
                stacklevel=5,  # from the bake of a kind of model, `_bake` and the public function
            )
            return


def _leaves_little(margin: Margin, prior: ClassPrior, tau: float) -> bool:
    if margin.num_classes != prior.num_classes or not margin.is_antisymmetric:
        return False
    return leaves_little(margin.residual_adjustment(prior), prior, tau=tau)
