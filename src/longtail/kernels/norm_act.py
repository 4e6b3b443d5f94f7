"""Batch normalization, residual addition and ReLU in one operation, forward and backward.

The kernels are in `_triton_norm`; here are the choice between them and torch's own operations, the
launches, and what autograd needs to know. Nothing here keeps state: partial sums are allocated per
call, so that calls on several streams, or in several CUDA graphs, never meet.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from longtail._checks import InputError
from longtail.kernels import available

DTYPES = (torch.bfloat16, torch.float32)
TILE = 8192  # numbers that a program holds in registers
PARTIALS = 2048  # partial sums, channels of a block times programs, that every program adds up


def norm_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *,
    residual: Tensor | None = None,
    relu: bool = True,
    training: bool,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """relu(batch_norm(x) + residual): on a GPU in training, four passes over memory fewer.

    y = max(0, w·(x − μ)/√(σ² + ε) + b + r), with μ and σ² of each channel over the batch in
    training, and the running ones otherwise. In training the running statistics move by
    `momentum` towards μ and the unbiased variance, as in `torch.nn.BatchNorm2d`.

    Triton serves CUDA tensors in training, in bfloat16 or float32, laid out channels last;
    torch's own operations serve the rest. The arithmetic of the kernels is in float32.

    Args:
        x: shape (N, C, H, W) or (N, C).
        weight: w, shape (C,), float32.
        bias: b, shape (C,), float32.
        running_mean: shape (C,), changed in place in training, or None.
        running_var: likewise.
        residual: r, of the shape of x, or None for zero.
        relu: whether to cut at zero.
        training: whether to use, and to track, the statistics of the batch.
        momentum: the weight of this batch in the running statistics.
        eps: ε.

    Returns:
        y, of the shape and type of x.

    Examples:
        >>> x = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
        >>> one, zero = torch.ones(2), torch.zeros(2)
        >>> norm_act(x, one, zero, None, None, training=True)
        tensor([[0.0000, 0.0000],
                [1.0000, 0.0000]])
    """
    _check(x, residual)
    options = Options(relu, momentum, eps)
    tensors = (x, weight, bias, running_mean, running_var, residual)
    return norm_act_torch(*tensors, options, training=training)


def norm_act_fork(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *,
    residual: Tensor | None = None,
    relu: bool = True,
    training: bool,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """`norm_act`, its result twice: for two readers whose gradients are added on the way back.

    A residual block's input is read by its first convolution and by its shortcut. With one
    tensor for each, the sum of their two gradients is taken where it is used, without a kernel
    and a pass over memory of its own.

    Args:
        x, weight, bias, running_mean, running_var, residual, relu, training, momentum, eps: as in
            `norm_act`.

    Returns:
        y and y, which share memory; neither may be changed in place.

    Examples:
        >>> x, one, zero = torch.tensor([[1.0], [3.0]]), torch.ones(1), torch.zeros(1)
        >>> y, same = norm_act_fork(x, one, zero, None, None, training=True)
        >>> bool((y == same).all())
        True
    """
    _check(x, residual)
    options = Options(relu, momentum, eps)
    tensors = (x, weight, bias, running_mean, running_var, residual)
    y = norm_act_torch(*tensors, options, training=training)
    return y, y


class Options(NamedTuple):
    """What is the same for every channel."""

    relu: bool = True
    momentum: float = 0.1
    eps: float = 1e-5


def norm_act_torch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    residual: Tensor | None,
    options: Options,
    *,
    training: bool,
) -> Tensor:
    """The same in torch's own operations: the reference and the fallback."""
    batch = training or running_mean is None
    y = F.batch_norm(
        x, running_mean, running_var, weight, bias, batch, options.momentum, options.eps
    )
    if residual is not None:
        y = y + residual
    return F.relu(y) if options.relu else y


def serves(x: Tensor, weight: Tensor, residual: Tensor | None) -> bool:
    """Whether the kernels can take these tensors in training."""
    return (
        not torch.compiler.is_compiling()  # which fuses by itself
        and available(x.device)
        and x.dtype in DTYPES
        and weight.dtype == torch.float32
        and x.numel() > x.shape[1]  # of one value a channel torch says what is wrong
        and _rows_are_channels(x)
        and (residual is None or (residual.dtype == x.dtype and _rows_are_channels(residual)))
    )


def _rows_are_channels(x: Tensor) -> bool:
    """Whether memory holds rows of C channels, one after the other."""
    if x.ndim == 4:
        return x.is_contiguous(memory_format=torch.channels_last)
    return x.ndim == 2 and x.is_contiguous()


def _check(x: Tensor, residual: Tensor | None) -> None:
    if residual is not None and residual.shape != x.shape:
        raise InputError(
            f"norm_act: `residual` must have the shape of x, {tuple(x.shape)}, but has "
            f"{tuple(residual.shape)}; bring the shortcut to that shape first."
        )
