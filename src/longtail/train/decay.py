"""Weight decay of networks side by side that differ in it; an optimiser has one for all."""

from __future__ import annotations

from collections.abc import Sequence

from longtail import _checks

_checks.require("torch", extra="torch", caller=__name__)

import torch
from torch import Tensor


class OwnDecay:
    """Adds to the gradients of each network what its weight decay has beyond the optimiser's.

        g ← g + (λ_m − λ)·w,   for the weights w of network m; the optimiser then adds λ·w

    Args:
        optimizer: of networks joined along the first axis as by `models.stacked`; parameters that
            it lets not decay (λ = 0 in their group) don't.
        decays: λ_m of each network; the optimiser's λ is the first one's.

    Examples:
        >>> w = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
        >>> w.grad = torch.zeros(2)
        >>> own = OwnDecay(torch.optim.SGD([w], lr=1.0, weight_decay=0.1), [0.1, 0.3])
        >>> own.add()
        >>> w.grad
        tensor([0.0000, 0.4000])
    """

    def __init__(self, optimizer: torch.optim.Optimizer, decays: Sequence[float]) -> None:
        self.parameters: list[Tensor] = [
            p for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]
        ]
        # As large as the parameters, so that a few kernels serve all of them.
        self.beyond = [torch.empty_like(p, requires_grad=False) for p in self.parameters]
        for beyond in self.beyond:
            for part, decay in zip(beyond.chunk(len(decays)), decays, strict=True):
                part.fill_(decay - decays[0])

    @torch.no_grad()
    def add(self) -> None:
        """Change the gradients, before the optimiser's step."""
        grads = [p.grad for p in self.parameters if p.grad is not None]
        pairs = zip(self.parameters, self.beyond, strict=True)
        there = [(p.detach(), beyond) for p, beyond in pairs if p.grad is not None]
        torch._foreach_addcmul_(grads, [p for p, _ in there], [beyond for _, beyond in there])
