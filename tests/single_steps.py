"""Two ways to train, compared one step at a time, each step from the same weights.

A network this small on batches this small amplifies rounding a thousandfold in three steps, so
the losses of two devices part soon, though every step is right.
"""

from typing import NamedTuple

import numpy as np
import torch

from longtail.train.loop import take_step


class After(NamedTuple):
    """A step's loss, how far it moved the weights, and batch norm's statistics behind it."""

    loss: float
    moved: torch.Tensor
    statistics: torch.Tensor


# Measured where only the order of sums differs: 1e-6, 0.013, 3e-7; in bfloat16 3e-3, 0.26, 3e-4.
# A rate that is off by a tenth moves weights a tenth further; a part's gradient lost, a third.
EXACT = {"loss": 1e-4, "moved": 0.05, "statistics": 1e-4}
ROUGH = {"loss": 0.03, "moved": 0.6, "statistics": 0.03}


def state(stepper):
    """Copy of all that training changes, on the CPU."""
    with stepper.active():
        tensors = stepper.saved_state(0)
        return {name: value.cpu().clone() for name, value in tensors.items()}


def after(stepper, number, start):
    """Return the state after a step."""
    with stepper.active():
        stepper.load_state(0, start)
    take_step(stepper, number)
    end = state(stepper)
    weights = [name for name, _ in stepper.model.named_parameters()]
    running = [name for name in end if "running_" in name]
    return After(
        float(stepper.losses[number]),
        torch.cat([(end[f"model/{w}"] - start[f"model/{w}"]).flatten() for w in weights]),
        torch.cat([end[name] for name in running]),
    )


def compare(one, other, **allowed):
    """Every step of two epochs, each from the weights that the first stepper has.

    Fails where the largest gap of a kind is larger than what is allowed for it.
    """
    worst = dict.fromkeys(After._fields, 0.0)
    for epoch in range(2):
        for training in (one, other):
            with training.active():
                training.load(epoch)
        for number in range(len(one.batch_sizes)):
            start = state(one)
            expected, found = after(one, number, start), after(other, number, start)
            for name, wanted, got in zip(After._fields, expected, found, strict=True):
                wanted, got = torch.as_tensor(wanted), torch.as_tensor(got)
                gap = float((got - wanted).norm() / wanted.norm())
                worst[name] = max(worst[name], gap if np.isfinite(gap) else np.inf)
    assert all(worst[name] <= allowed[name] for name in worst), f"{worst}, allowed {allowed}"
