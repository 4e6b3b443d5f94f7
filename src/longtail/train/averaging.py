"""An average of a network's weights over its steps, to be judged instead of the last ones.

    w̄ = Σ_i d^{t−i} w_i / Σ_i d^{t−i},   over the steps i = 1 .. t,

kept as a sum that starts at zero and divided by (1 − dᵗ) when it is looked at: so it is a true
mean from the first step on, and the weights the training began with have no part in it. Batch
norm's running mean and variance are averaged like weights; a counter keeps its last value, and so
does what a module saves besides tensors. The sum of half-precision weights is kept in float32: in
their own type it would stop to grow as soon as (1 − d) of the way is less than a rounding, and be
divided as if it were complete. Nothing here waits for a device until the average is looked at.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from longtail import _checks
from longtail._checks import InputError

_checks.require("torch", extra="torch", caller=__name__)

import torch
from torch import Tensor, nn


class WeightAverage:
    """The exponential moving average of a network's weights.

    Call `update` after every step of the optimiser, and load `state_dict` into a network of the
    same kind to judge or save it.

    Args:
        model: the network that trains, on the device and in the shapes that it will have.
        decay: d in (0, 1): the average is over about the last 1/(1 − d) steps.

    Attributes:
        sums: (1 − d) Σ_i d^{t−i} w_i, by the names of the network's tensors; in float32 at least.
        steps: t, a tensor of one whole number.

    Examples:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> average = WeightAverage(model, decay=0.5)
        >>> for value in (1.0, 4.0):
        ...     _ = model.weight.data.fill_(value)
        ...     average.update()
        >>> average.state_dict()["weight"]  # (0.5 · 1 + 1 · 4) / 1.5
        tensor([[3.]])
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        caller = "WeightAverage"
        self.decay = _checks.fraction(decay, caller, name="decay", below_one=True)
        if self.decay == 0:
            raise InputError(f"{caller}: `decay` must be above 0; without one, use the model.")
        self.model, state = model, model.state_dict()
        self._names = set(state)
        self.sums = {
            name: torch.zeros_like(value, dtype=torch.promote_types(value.dtype, torch.float32))
            for name, value in state.items()
            if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
        }
        if not self.sums:
            raise InputError(
                f"{caller}: `model` must have weights to average; got {type(model).__name__} "
                f"without a floating-point or complex tensor."
            )
        device = next(iter(self.sums.values())).device
        self.steps = torch.zeros((), dtype=torch.int64, device=device)

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are now."""
        # Looked up each time: .to() and the like put other tensors in the network.
        state = self._state()
        weights = [_as_summed(state[name], total, name=name) for name, total in self.sums.items()]
        torch._foreach_lerp_(list(self.sums.values()), weights, 1.0 - self.decay)
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        """The average, by the names of the network's own state; its weights before any step."""
        steps, state = int(self.steps), self._state()
        if steps == 0:
            return {name: _copied(value) for name, value in state.items()}
        share = 1.0 - self.decay**steps
        return {
            name: (self.sums[name] / share).to(value.dtype) if name in self.sums else _copied(value)
            for name, value in state.items()
        }

    def load(self, sums: Mapping[str, Tensor], steps: int | Tensor) -> None:
        """Go on from an average that was saved.

        Args:
            sums: its `sums`, on any device.
            steps: its `steps`.
        """
        count = _checks.whole(steps, "WeightAverage.load", name="steps", at_least=0)
        self._check_sums(sums)
        for name, value in self.sums.items():
            value.copy_(sums[name])
        self.steps.fill_(count)

    def _check_sums(self, sums: Mapping[str, Tensor]) -> None:
        """Refuse sums that are not of this network's weights, before any is loaded."""
        caller = "WeightAverage.load"
        lacking, unknown = sorted(self.sums.keys() - sums), sorted(sums.keys() - self.sums)
        if lacking:
            raise InputError(
                f"{caller}: `sums` lacks {_checks.listing(lacking)}; give the `sums` of an average "
                f"of the same network, all of them."
            )
        if unknown:
            raise InputError(
                f"{caller}: `sums` has {_checks.listing(unknown)}, but the network has no such "
                f"weight to average; give the `sums` of an average, not its state_dict()."
            )
        for name, own in self.sums.items():
            saved = sums[name]
            if not isinstance(saved, Tensor):
                raise InputError(
                    f"{caller}: `sums` must hold tensors; its {name} is {type(saved).__name__}."
                )
            if saved.shape != own.shape:
                raise InputError(
                    f"{caller}: `sums` has {name} of shape {tuple(saved.shape)}, but the network's "
                    f"has shape {tuple(own.shape)}."
                )
            if not torch.can_cast(saved.dtype, own.dtype):
                raise InputError(
                    f"{caller}: `sums` has {name} of {saved.dtype}, but the network's is "
                    f"{own.dtype}."
                )

    def _state(self) -> dict[str, Any]:
        """What the network saves, as it is now, by name: tensors and modules' extra state."""
        state: dict[str, Any] = self.model.state_dict(keep_vars=True)
        if state.keys() != self._names:
            raise InputError(
                f"WeightAverage: the network has changed, it has got or lost "
                f"{_checks.listing(sorted(state.keys() ^ self._names))}; make the WeightAverage "
                f"after such changes."
            )
        return state


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def _as_summed(weight: Tensor, total: Tensor, *, name: str) -> Tensor:
    """A weight in the type of its sum: itself, unless it is in half precision."""
    if weight.device == total.device and weight.shape == total.shape:
        if weight.dtype == total.dtype:
            return weight
        if torch.promote_types(weight.dtype, torch.float32) == total.dtype:
            return weight.to(total.dtype)
    raise InputError(
        f"WeightAverage: the network has changed, its `{name}` is now {_described(weight)}, but "
        f"the average is {_described(total)}; make the WeightAverage after .to() and the like."
    )


def _described(value: Tensor) -> str:
    return f"{value.dtype} on {value.device}, shape {tuple(value.shape)}"
