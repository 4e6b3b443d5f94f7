"""An average of a network's weights over its steps, to be judged instead of the last ones.

    w̄ = Σ_i d^{t−i} w_i / Σ_i d^{t−i},   over the steps i = 1 .. t,

kept as a sum that starts at zero and divided by (1 − dᵗ) when it is looked at: so it is a true
mean from the first step on, and the weights the training began with have no part in it.
(`torch.optim.swa_utils.AveragedModel` starts at the first weights, which for d = 0.999 still weigh
a third of the average after a thousand steps.) Batch norm's running mean and variance are averaged
like weights; a counter keeps its last value. The sum of half-precision weights is in float32.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from longtail import _checks


class WeightAverage:
    """The exponential moving average of a network's weights.

    Call `update` after every step of the optimiser, and load `state_dict` into a network of the
    same kind to judge or save it.

    Args:
        model: the network that trains, on the device and in the types that it will have.
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
        self.model, self.decay = model, _checks.fraction(decay, name="decay", below_one=True)
        self.sums = {
            name: torch.zeros_like(value, dtype=torch.promote_types(value.dtype, torch.float32))
            for name, value in model.state_dict().items()
            if value.is_floating_point()
        }
        device = next(value.device for value in self.sums.values())
        self.steps = torch.zeros((), dtype=torch.int64, device=device)

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are now, without waiting for the device."""
        state = self.model.state_dict(keep_vars=True)
        weights = [state[name].to(total.dtype) for name, total in self.sums.items()]
        torch._foreach_lerp_(list(self.sums.values()), weights, 1.0 - self.decay)
        self.steps += 1

    def state_dict(self) -> dict[str, Tensor]:
        """Return the average, by the names of the network's state; its weights before any step."""
        steps = int(self.steps)
        share = 1.0 - self.decay**steps
        return {
            name: (self.sums[name] / share).to(value.dtype)
            if steps and name in self.sums
            else value.clone()
            for name, value in self.model.state_dict().items()
        }

    def load(self, sums: Mapping[str, Tensor], steps: int | Tensor) -> None:
        """Go on from the `sums` and `steps` of an average of the same network, on any device."""
        for name, value in self.sums.items():
            value.copy_(sums[name])
        self.steps.fill_(int(steps))
