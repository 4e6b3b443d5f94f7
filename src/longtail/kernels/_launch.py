"""Launching Triton kernels with little Python."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longtail.kernels import interpreted

# Compiled kernels by everything that Triton compiles for. Finding one here takes a fraction of the
# time that Triton needs to find it, which at small sizes is longer than the work itself.
_COMPILED: dict[tuple[Any, ...], Any] = {}


def launch(
    kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], constants: dict[str, Any], **how: Any
) -> None:
    """Run ``kernel[grid](*args, **constants, **how)`` on the device of the first argument.

    Args:
        kernel: a Triton function.
        grid: numbers of programs.
        args: the arguments that are not constants, in order; first a tensor.
        constants: the constants, in order.
        **how: Triton's own options.
    """
    if interpreted():
        kernel[grid](*args, **constants, **how)
        return
    device = args[0].device.index
    if device != torch.cuda.current_device():  # the one that Triton launches on
        with torch.cuda.device(device):
            return launch(kernel, grid, args, constants, **how)
    traits = tuple(
        (arg.dtype, arg.data_ptr() % 16 == 0)
        if isinstance(arg, Tensor)
        else (arg == 1, arg % 16 == 0, -(2**31) <= arg < 2**31)
        if isinstance(arg, int)
        else None
        for arg in args
    )
    fixed = tuple(constants.values())
    key = (id(kernel), device, traits, fixed, tuple(how.values()))
    compiled = _COMPILED.get(key)
    if compiled is None:
        _COMPILED[key] = kernel[grid](*args, **constants, **how)
    else:
        compiled[(*grid, 1, 1)[:3]](*args, *fixed)


def given(tensor: Tensor | None, other: Tensor) -> Tensor:
    """Return `tensor`, or any other one in its place: kernels take a pointer for every argument."""
    return other if tensor is None else tensor
