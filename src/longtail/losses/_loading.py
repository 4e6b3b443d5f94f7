"""Loading a state into a loss that was made with other margins: the saved ones win, and it says so.

A checkpoint that goes on with its own margins is what resuming needs. But a network that is taken
over for other data brings the old data's margins along, in the place of those that the new loss
was made with.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from torch import Tensor, nn

# Not class weights: these change in training, and a checkpoint has them as they were.
_MARGINS = ("alpha", "positive", "negative", "dense", "rare", "log_q")


class LoadedMarginsWarning(UserWarning):
    """A loss was made with other margins than those of the state that is loaded into it."""


class LoadsMargins(nn.Module):
    """A loss whose margins are buffers; see `longtail.losses.modules`.

    Attributes:
        settings: what the margins were made with, for printing.
    """

    settings: dict[str, Any]

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        other = [
            prefix + name
            for name in _MARGINS
            if _differ(self._buffers.get(name), state_dict.get(prefix + name))
        ]
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        if not other:
            return
        # What is a value of its own, such as `scale`, has not been loaded and still holds.
        kept = {name: value for name, value in self.settings.items() if hasattr(self, name)}
        self.settings = {**kept, "margins": "loaded"}
        warnings.warn(
            f"{type(self).__name__}: the state that is loaded ({', '.join(other)}) has other "
            f"margins than the loss was made with, as of another prior or other settings; the "
            f"loaded ones hold from now on. To train with the others, make the loss again after "
            f"loading.",
            LoadedMarginsWarning,
            stacklevel=_levels_to_caller(),
        )


def _differ(own: Tensor | None, loaded: Any) -> bool:
    """Whether two tensors differ by more than rounding; no if they can't be compared."""
    if own is None or type(loaded) is not Tensor or loaded.shape != own.shape:
        return False
    if own.is_meta or loaded.is_meta:
        return False
    both = own.detach(), loaded.detach()
    if own.dtype == loaded.dtype and own.device == loaded.device and torch.equal(*both):
        return False
    slack = 4 * max(torch.finfo(v.dtype).eps if v.is_floating_point() else 0.0 for v in both)
    # Dense margins have a row for each class: some at a time, for the memory's sake.
    pieces = zip(*(torch.split(value, 256) for value in both), strict=True)
    return not all(
        torch.allclose(here.cpu().double(), there.cpu().double(), rtol=slack, atol=slack)
        for here, there in pieces
    )


def _levels_to_caller() -> int:
    """How far up the stack the call of `load_state_dict` is: a loss may lie deep in a network."""
    frame, levels = sys._getframe(1), 1
    while frame.f_back is not None and (
        levels == 1 or frame.f_globals.get("__name__", "").startswith("torch.")
    ):
        frame, levels = frame.f_back, levels + 1
    return levels
