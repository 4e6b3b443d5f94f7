"""What the threshold form draws: which competitors drop out of which examples."""

from __future__ import annotations

import torch
from torch import Tensor

from longtail import _checks
from longtail.losses._family import along, check_logits


def draw_dropped(
    logits: Tensor, rare: Tensor, gamma: float, generator: torch.Generator | None, *, caller: str
) -> Tensor:
    """Which classes of which examples drop out: the rare ones, each with probability γ.

    Args:
        logits: for their shape and device.
        rare: bool, shape (C,).
        gamma: γ in [0, 1].
        generator: on the logits' device, or None.
        caller: whose name the errors carry.

    Returns:
        bool, shape of `logits`.
    """
    gamma = _checks.fraction(gamma, caller, name="gamma")
    dim, _ = check_logits(logits, caller=caller)
    if generator is None:  # the compiler takes no generator with sizes that it does not know
        chance = torch.rand(logits.shape, device=logits.device)
    else:
        chance = torch.rand(logits.shape, generator=generator, device=logits.device)
    return along(rare, logits, dim) & (chance < gamma)
