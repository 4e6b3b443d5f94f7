"""Buffers for numbers that come from a prior: of one type for good, and no part of the state."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

# What losses of this package once had in their state.
_ONCE_SAVED = ("alpha", "positive", "negative", "dense", "rare", "log_q", "cumulative")


class LoadedMarginsWarning(UserWarning):
    """A saved state has other margins than the loss that it is loaded into."""


class PriorBuffers(nn.Module):
    """A loss whose numbers per class are buffers.

    Attributes:
        settings: what the margins were made with, for printing.
    """

    settings: dict[str, Any]

    def keep(self, *, persistent: bool = False, **values: Any) -> None:
        """Register copies as buffers, in float32 or torch's wider default type."""
        dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
        for name, value in values.items():
            if isinstance(value, Tensor):
                value = value.detach().to(dtype, copy=True)
            elif value is not None:
                value = torch.tensor(value, dtype=dtype)
            self.register_buffer(name, value, persistent=persistent)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the buffers with `.to` and the like; their types stay, or the prior would change."""
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, old in before.items():
            new = self._buffers[name]
            if old is not None and new is not None and new.dtype != old.dtype:
                self._buffers[name] = old.to(new.device)
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Pass over margins that an older state holds."""
        other = []
        for name in _ONCE_SAVED:
            old, own = state_dict.pop(prefix + name, None), self._buffers.get(name)
            if isinstance(old, Tensor) and own is not None and not (old.is_meta or own.is_meta):
                near = old.shape == own.shape and torch.allclose(
                    old.to(own), own, rtol=1e-2 if old.dtype.itemsize < 4 else 1e-5
                )
                other += [] if near else [prefix + name]
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        if other:
            warnings.warn(
                f"{type(self).__name__}: the state that is loaded has other margins "
                f"({', '.join(other)}) than the loss was made with; those it was made with hold.",
                LoadedMarginsWarning,
                stacklevel=_levels_to_caller(),
            )


def _levels_to_caller() -> int:
    """How far up the stack `load_state_dict` was called: a loss may lie deep in a network."""
    frame, levels = sys._getframe(1), 1
    while frame.f_back is not None and (
        levels == 1 or frame.f_globals.get("__name__", "").startswith("torch.")
    ):
        frame, levels = frame.f_back, levels + 1
    return levels
