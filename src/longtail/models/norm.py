"""Convolution, batch norm, residual and ReLU in one call, for every network here.

The layers stay ordinary `nn.Conv2d` and `nn.BatchNorm2d`, so state dicts do too; how the steps
are computed is the business of `longtail.kernels.norm_act` and `longtail.kernels.grouped_conv`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from longtail._checks import InputError
from longtail.kernels import norm_act as kernel
from longtail.kernels.grouped_conv import grouped_conv
from longtail.kernels.norm_act import Moments

# One value for two readers: a block's branch and its shortcut.
Fork = tuple[Tensor, Tensor]


def norm_act(
    bn: nn.BatchNorm2d,
    x: Tensor,
    *,
    conv: nn.Conv2d | None = None,
    residual: Tensor | None = None,
    relu: bool = True,
) -> Tensor:
    """Normalise, add, rectify: ``relu(gamma * (x - mean) / sqrt(var + eps) + beta + residual)``.

    In training the mean and the variance are the batch's, and the running ones move towards
    them; otherwise they are the running ones. Counting the batches is `count_batches`'s part.

    Args:
        bn: the layer with gamma, beta and the running statistics.
        x: shape (batch, channels, height, width).
        conv: what x goes through first; a convolution may know its result's mean and variance.
        residual: what to add, of the same shape, or nothing.
        relu: whether to rectify.

    Returns:
        A tensor like `x`, or like what `conv` makes of it.

    Examples:
        >>> x = torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1)
        >>> y = norm_act(nn.BatchNorm2d(1), x, residual=2 * x)
        >>> [round(value, 3) for value in y.flatten().tolist()]
        [0.0, 3.0]
    """
    y, moments = _convolved(conv, x)
    return kernel.norm_act(
        y, *_tensors(bn), residual=residual, relu=relu, moments=moments, **_settings(bn)
    )


def norm_act_fork(
    bn: nn.BatchNorm2d,
    x: Tensor,
    *,
    conv: nn.Conv2d | None = None,
    residual: Tensor | None = None,
) -> Fork:
    """`norm_act`, its result once for each of its two readers.

    What one tensor's two readers send back has to be added up by a kernel of its own; of two
    tensors it is added where batch norm reads it.
    """
    y, moments = _convolved(conv, x)
    return kernel.norm_act_fork(
        y, *_tensors(bn), residual=residual, moments=moments, **_settings(bn)
    )


def _convolved(conv: nn.Conv2d | None, x: Tensor) -> tuple[Tensor, Moments | None]:
    """The convolution of x, with its moments where the kernel for the usual 3 x 3 one made it."""
    if conv is None:
        return x, None
    usual = type(conv) is nn.Conv2d and conv.bias is None and conv.dilation == (1, 1)
    shape = (conv.kernel_size, conv.padding)
    if usual and shape == ((3, 3), (1, 1)) and conv.stride in ((1, 1), (2, 2)):
        return grouped_conv(x, conv.weight, stride=conv.stride[0], groups=conv.groups)
    return conv(x), None


def _tensors(bn: nn.BatchNorm2d) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    return bn.weight, bn.bias, bn.running_mean, bn.running_var


def _settings(bn: nn.BatchNorm2d) -> dict[str, Any]:
    if bn.momentum is None:
        raise InputError(
            "norm_act: `bn` must have a momentum; with momentum=None the running statistics "
            "depend on the number of batches, which the device would have to be asked for."
        )
    return {"training": bn.training, "momentum": bn.momentum, "eps": bn.eps}


def count_batches(model: nn.Module) -> None:
    """Add one to `num_batches_tracked` of every batch norm in training mode.

    `nn.BatchNorm2d` does this itself, one kernel for each layer; here one launch serves them
    all, which a small network's step notices.
    """
    counters = [
        layer.num_batches_tracked
        for layer in model.modules()
        if isinstance(layer, nn.BatchNorm2d)
        and layer.training
        and layer.num_batches_tracked is not None
    ]
    if counters:
        torch._foreach_add_(counters, 1)
