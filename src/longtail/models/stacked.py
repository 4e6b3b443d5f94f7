"""Networks of one architecture side by side, as one: R of them train in the time of a few.

A small network leaves most of a GPU idle. Stacked ones don't: channels of all of them lie side
by side, a layer of all of them is one grouped convolution, and batch norm, which treats each
channel by itself, needs no change. Every tensor of the stack is that of the R networks joined
along its first axis, under the same name.

    images (batch, R · channels, height, width)  ->  logits (R, batch, num_classes)
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from longtail.kernels.grouped_conv import CHANNELS
from longtail.models.resnet import DESIGNS, PadShortcut


class StackedHead(nn.Module):
    """Last layers of R networks, of one kind and size, each on its own features."""

    def __init__(self, heads: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = len(heads)
        # A pattern for how to compute, not a part of the model: it must not be registered.
        self._pattern = [copy.deepcopy(heads[0])]
        for name, _ in heads[0].named_parameters():
            joined = torch.cat([head.get_parameter(name).detach() for head in heads])
            self.register_parameter(name, nn.Parameter(joined))

    def forward(self, features: Tensor) -> Tensor:
        """Return logits of shape (R, batch, num_classes) of features (batch, R · width)."""
        apart = {
            name: torch.stack(value.chunk(self.networks)) for name, value in self.named_parameters()
        }
        of_each = vmap(partial(functional_call, self._pattern[0]), in_dims=(0, 1))
        logits: Tensor = of_each(apart, features.view(len(features), self.networks, -1))
        return logits


def can_stack(name: str) -> bool:
    """Return True for networks of this name that can stand side by side.

    Wider ones than the grouped kernels serve (`kernels.grouped_conv`) go by themselves.

    Examples:
        >>> [can_stack(name) for name in ("resnet32", "resnet32x4", "small-conv", "head")]
        [True, False, False, True]
    """
    narrow = name in DESIGNS and max(DESIGNS[name].widths) <= max(CHANNELS)
    return narrow or name == "head"


def stack(networks: Sequence[nn.Module]) -> nn.Module:
    """Return networks of one architecture as one; a single one as it is.

    They are residual networks as `build` makes them; their weights are copied, every tensor joined
    along its first axis.

    Examples:
        >>> from longtail import models
        >>> make = lambda: models.build("resnet20", num_classes=10, image_shape=(3, 8, 8))
        >>> both = stack([make(), make()])
        >>> both(torch.zeros(5, 6, 8, 8)).shape
        torch.Size([2, 5, 10])
    """
    count = len(networks)
    if count == 1:
        return networks[0]
    stacked = copy.deepcopy(networks[0])
    for name, layer in stacked.named_modules():
        if isinstance(layer, nn.Conv2d):
            layer.in_channels *= count
            layer.out_channels *= count
            layer.groups *= count
        elif isinstance(layer, nn.BatchNorm2d):
            layer.num_features *= count
        elif isinstance(layer, PadShortcut):
            layer.networks = count
        else:
            continue
        parts = [network.get_submodule(name) for network in networks]
        for key, parameter in list(layer.named_parameters(recurse=False)):
            joined = torch.cat([part.get_parameter(key).detach() for part in parts])
            setattr(layer, key, nn.Parameter(joined, requires_grad=parameter.requires_grad))
        for key, buffer in list(layer.named_buffers(recurse=False)):
            if buffer.ndim:
                setattr(layer, key, torch.cat([part.get_buffer(key) for part in parts]))
    stacked.fc = StackedHead([network.get_submodule("fc") for network in networks])
    return stacked


def part_of(value: Tensor, *, index: int, count: int) -> Tensor:
    """Return a network's part of a tensor of a stack; numbers such as a step count are shared.

    Examples:
        >>> part_of(torch.arange(6), index=1, count=3)
        tensor([2, 3])
    """
    return value if value.ndim == 0 or count == 1 else value.chunk(count)[index]
