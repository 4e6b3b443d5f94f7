"""Sharpness-aware minimisation around any optimiser (Foret et al. 2021).

A step takes the gradient not where the weights are but where the loss nearby is worst:

    e = ρ · g / ‖g‖,   g = ∇ℓ(w);      then the optimiser steps from w by ∇ℓ(w + e)

It costs a second forward and backward pass, on the same batch. `SAM` wraps an optimiser for a
loop of one's own; `loop.Training` uses the parts: `Perturbation`, which goes to w + e and back
for one network or many side by side, and `frozen_statistics`, so that batch norm learns its
running statistics at w only. Nothing here waits for a device, so it can be captured in a CUDA
graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.amp.grad_scaler import OptState

from longtail import _checks
from longtail._checks import InputError

_TINY = 1e-12  # keeps a gradient of zero from becoming NaN

_Loss = TypeVar("_Loss", Tensor, float, None)  # what a closure returns


class SAM:
    """Optimiser that steps by the gradient at w + e instead of w.

    Either ``loss = sam.step(closure)``, where the closure computes the loss, calls ``backward()``
    and returns the loss; or by hand: backward, `first_step`, backward again on the same batch,
    `second_step`. Learning-rate schedulers and checkpoints are those of the optimiser inside.

    Gradients can't be accumulated over batches from outside: let the closure go through all of
    them. Where a closure fails, the weights are w again; by hand, call `abandon`.

    Args:
        optimizer: any of torch's whose ``step()`` needs no closure, so not LBFGS.
        rho: ρ, above 0; 0.05 to 0.2 are usual. Set ``sam.rho`` to change it between steps.
        model: the network, if it has batch norm: its running statistics are then left alone in
            the second pass of `step`. By hand, use `frozen_statistics`.
        scaler: the GradScaler, if the losses are scaled by one: the closure then calls
            ``scaler.scale(loss).backward()`` and returns the loss, and the loop calls
            ``scaler.update()`` after every step. Where a gradient overflows, the step is skipped.
            To clip gradients, go by hand, with ``scaler.unscale_(optimizer)`` after the second
            backward only.

    Examples:
        >>> w = nn.Parameter(torch.tensor([1.0]))
        >>> sam = SAM(torch.optim.SGD([w], lr=0.1), rho=0.5)
        >>> def closure():
        ...     loss = (w ** 2).sum()
        ...     loss.backward()
        ...     return loss
        >>> float(sam.step(closure))
        1.0
        >>> w.detach()  # 1 − 0.1 · 2 · (1 + 0.5)
        tensor([0.7000])
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        rho: float = 0.05,
        model: nn.Module | None = None,
        scaler: GradScaler | None = None,
    ) -> None:
        self.optimizer, self.model, self.scaler = optimizer, model, scaler
        self.rho = _checks.positive(rho, name="rho")
        self._away: Perturbation | None = None

    def step(self, closure: Callable[[], _Loss]) -> _Loss:
        """Take both passes and the step; return the closure's loss at w, without its graph."""
        if any(p.grad is not None for p in self._parameters()):
            raise InputError(
                "SAM.step: there are gradients already, which can't be accumulated from outside; "
                "let the closure go through all batches, or call optimizer.zero_grad()."
            )
        try:
            with torch.enable_grad():
                loss: _Loss = closure()  # type: ignore[func-returns-value]
            self.first_step()
            frozen = nullcontext() if self.model is None else frozen_statistics(self.model)
            with frozen, torch.enable_grad():
                closure()
            self.second_step()
        finally:
            self.abandon()  # nothing is left to do after a whole step
        return loss.detach() if isinstance(loss, Tensor) else loss

    def first_step(self) -> None:
        """After backward() at w: go to w + e, without gradients."""
        if self._away is not None:
            raise InputError(
                "SAM.first_step: called twice in a row; gradients of several batches can't be "
                "accumulated this way. After a failed second pass, call abandon()."
            )
        # torch has no public word for what a scaler has seen; one that is off has no states.
        state = getattr(self.scaler, "_per_optimizer_states", {}).get(id(self.optimizer))
        if state is not None and state["stage"] != OptState.READY:
            raise InputError(
                "SAM.first_step: the scaler has been at these gradients already; call "
                "scaler.update() after every step, and scaler.unscale_(optimizer) only after the "
                "second backward()."
            )
        away = Perturbation(self._parameters(), rho=self.rho)
        # Where scaled gradients overflow, the second pass is at w, and does so too: at weights of
        # NaN it would put NaN into running statistics, which outlive the step that is skipped.
        away.go(may_overflow=self.scaler is not None)
        self._away = away
        self.optimizer.zero_grad()

    def second_step(self) -> None:
        """After backward() at w + e: return to w and let the optimiser step; clears gradients."""
        if self._away is None:
            raise InputError("SAM.second_step: first_step must come before it.")
        self._away.back()
        self._away = None
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
        self.optimizer.zero_grad()

    def abandon(self) -> None:
        """Give a step up: return to w, if away, and forget the gradients."""
        if self._away is not None:
            self._away.back()
            self._away = None
        self.optimizer.zero_grad()

    def _parameters(self) -> list[Tensor]:
        groups = self.optimizer.param_groups
        return [p for group in groups for p in group["params"] if p.requires_grad]


class Perturbation:
    """Goes from w to w + ρ g/‖g‖ and back to exactly w.

    Args:
        parameters: to move, on one device.
        rho: ρ, above 0.
        parts: how many networks the parameters are those of, joined along the first axis as by
            `models.stacked`; the norm is each network's own, and every parameter must then have
            a gradient.
    """

    def __init__(self, parameters: Iterable[Tensor], *, rho: float, parts: int = 1) -> None:
        self.parameters, self.rho, self.parts = list(parameters), rho, parts
        self._moved: list[Tensor] = []
        self._before: list[Tensor] = []
        if parts > 1:  # the network that each number belongs to, all parameters end to end
            network = torch.arange(parts, dtype=torch.int32)
            owner = [network.repeat_interleave(p.numel() // parts) for p in self.parameters]
            self._owner = torch.cat(owner).to(self.parameters[0].device)

    @torch.no_grad()
    def go(self, *, may_overflow: bool = False) -> None:
        """Move by the gradients that there are; with `may_overflow` infinite ones move nothing."""
        moved = [(p, p.grad) for p in self.parameters if p.grad is not None]
        if not moved:
            raise InputError("SAM: no parameter has a gradient; call backward() first.")
        # All gradients end to end: a few large kernels instead of some for each parameter. They
        # are read as the parameters lie in memory, so that usually nothing is copied.
        self._moved = [_in_memory(p, p).view(-1) for p, _ in moved]
        grads = [_in_memory(grad, p).reshape(self.parts, -1) for p, grad in moved]
        self._before = list(torch._foreach_mul(self._moved, 1.0))  # copies, in one kernel
        steps = torch.cat([grad.flatten() for grad in grads])
        # In float16 a norm overflows early, and _TINY is zero.
        exact = torch.promote_types(steps.dtype, torch.float32)
        if self.parts == 1:
            norm = steps.norm(dtype=exact)
            steps *= torch.full_like(norm, self.rho) / (norm + _TINY)
        else:
            norm = torch.cat(grads, 1).norm(dim=1, dtype=exact)
            scale = torch.full_like(norm, self.rho) / (norm + _TINY)
            steps *= scale.index_select(0, self._owner)
        if may_overflow:
            steps.nan_to_num_(nan=0.0)  # an infinite norm made them 0, or 0 · inf
        torch._foreach_add_(self._moved, torch.split(steps, [p.numel() for p in self._moved]))

    @torch.no_grad()
    def back(self) -> None:
        """Put the parameters back, to the bit; their gradients stay."""
        if self._moved:
            torch._foreach_copy_(self._moved, self._before)
        self._moved, self._before = [], []


def _in_memory(tensor: Tensor, like: Tensor) -> Tensor:
    """View a tensor with its axes in the order in which those of `like` lie in memory."""
    strides = like.stride()
    return tensor.permute(sorted(range(like.ndim), key=lambda axis: -strides[axis]))


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Let batch norms in training use a batch's own statistics without learning from it."""
    norms = [
        layer
        for layer in model.modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats
    ]
    for layer in norms:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in norms:
            layer.track_running_stats = True
