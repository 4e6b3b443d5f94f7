"""Residual networks: one class, and a table of designs at the end of the file.

    stem -> stages of blocks -> (final norm) -> mean over positions -> fc

A block computes ``relu(branch(x) + shortcut(x))``. Branch and shortcut each get an x of their
own, equal and in the same memory, which saves the way back a pass.

Parameter names are torchvision's throughout (`conv1`, `bn1`, `layer1.0.conv1`,
`layer1.0.downsample.0`, `fc`), so its weights load into `resnet18`, `resnet50` and `resnet152`.
The layers stay ordinary `nn.Conv2d` and `nn.BatchNorm2d`; how convolution, batch norm, residual
and ReLU are computed in one call is up to `longtail.kernels`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail.kernels import norm_act as kernel
from longtail.kernels.grouped_conv import grouped_conv, pad_shortcut
from longtail.models.heads import HeadFactory

Conv = Callable[[int, int, int], nn.Conv2d]  # channels in and out, stride
Fork = tuple[Tensor, Tensor]  # one value for two readers: a block's branch and its shortcut


def norm_act(
    bn: nn.BatchNorm2d,
    x: Tensor,
    *,
    conv: nn.Conv2d | None = None,
    residual: Tensor | None = None,
    relu: bool = True,
    fork: bool = False,
) -> Any:
    """Normalise, add, rectify: ``relu(gamma * (x - mean) / sqrt(var + eps) + beta + residual)``.

    In training the mean and the variance are the batch's, and the running ones move towards
    them; otherwise they are the running ones. `count_batches` counts the batches.

    Args:
        bn: the layer with gamma, beta and the running statistics.
        x: shape (batch, channels, height, width).
        conv: goes before it; the usual 3 x 3 convolution knows its result's mean and variance.
        residual: added, of the same shape.
        relu: rectify.
        fork: return the result once for each of its two readers. What one tensor's two readers
            send back has to be added up by a kernel of its own; of two tensors it is added where
            batch norm reads it.

    Examples:
        >>> x = torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1)
        >>> y = norm_act(nn.BatchNorm2d(1), x, residual=2 * x)
        >>> [round(value, 3) for value in y.flatten().tolist()]
        [0.0, 3.0]
    """
    moments = None
    if conv is not None:
        shape = (type(conv), conv.bias, conv.kernel_size, conv.padding, conv.dilation)
        usual = shape == (nn.Conv2d, None, (3, 3), (1, 1), (1, 1))
        if usual and conv.stride in ((1, 1), (2, 2)):
            x, moments = grouped_conv(x, conv.weight, stride=conv.stride[0], groups=conv.groups)
        else:
            x = conv(x)
    options: dict[str, Any] = {"training": bn.training, "momentum": bn.momentum, "eps": bn.eps}
    options |= {"moments": moments, "residual": residual}
    running: Any = (bn.running_mean, bn.running_var)
    if bn.training and not bn.track_running_stats:  # as torch's own layer
        running = (None, None)
    tensors: Any = (x, bn.weight, bn.bias, *running)
    if fork:
        return kernel.norm_act_fork(*tensors, **options)
    return kernel.norm_act(*tensors, relu=relu, **options)


def count_batches(model: nn.Module) -> None:
    """Add one to `num_batches_tracked` of every batch norm in training mode.

    `nn.BatchNorm2d` does this itself, one kernel for each layer; here one launch serves them
    all, which a small network's step notices.
    """
    norms = (m for m in model.modules() if isinstance(m, nn.BatchNorm2d) and m.training)
    counters: Any = [m.num_batches_tracked for m in norms if m.track_running_stats]
    if counters:
        torch._foreach_add_(counters, 1)


def conv1x1(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """Return a 1 x 1 convolution without bias: the batch norm that follows has one."""
    return nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """Return a 3 x 3 convolution without bias, padded by 1 on each side."""
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


class EndPaddedConv(nn.Conv2d):
    """3 x 3 convolution with stride 2 that pads an even side only at its end.

    This is TensorFlow's padding "same": the output has ceil(size / 2) positions, centred on
    pixels 1, 3, 5, ... where padding by 1 on each side would centre them on 0, 2, 4, ...
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, stride=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return maps of shape (batch, outputs, ceil(height / 2), ceil(width / 2))."""
        height, width = x.shape[-2:]
        return super().forward(F.pad(x, (width % 2, 1, height % 2, 1)))


def conv3x3_same(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """Return a 3 x 3 convolution without bias, padded as TensorFlow does it."""
    return EndPaddedConv(inputs, outputs) if stride == 2 else conv3x3(inputs, outputs)


class PadShortcut(nn.Module):
    """Option A: every second pixel, and as many new channels of zeros; no parameters.

    The zeros go half before the old channels and half after them; see `kernels.grouped_conv`.
    Of `networks` side by side (see `stacked`) each one's channels are padded.
    """

    networks = 1

    def forward(self, x: Tensor) -> Tensor:
        """Return maps of shape (batch, outputs, ceil(height / 2), ceil(width / 2))."""
        return pad_shortcut(x, groups=self.networks)


class ProjectionShortcut(nn.Sequential):
    """1 x 1 convolution with its batch norm, under torchvision's names `0` and `1`."""

    def forward(self, x: Tensor) -> Tensor:
        """Return maps of shape (batch, outputs, ceil(height / stride), ceil(width / stride))."""
        return norm_act(self[1], x, conv=self[0], relu=False)  # type: ignore[arg-type, no-any-return]


class Block(nn.Module):
    """Convolutions, each with batch norm and ReLU, the last one's after the shortcut is added."""

    def __init__(self, convs: list[nn.Conv2d], shortcut: nn.Module) -> None:
        super().__init__()
        self.depth = len(convs)
        for i, conv in enumerate(convs, start=1):
            self.add_module(f"conv{i}", conv)
            self.add_module(f"bn{i}", nn.BatchNorm2d(conv.out_channels))
        self.downsample = shortcut

    def forward(self, fork: Fork) -> Fork:
        """Return maps of shape (batch, outputs, ceil(height / stride), ...), twice."""
        x, same_x = fork
        for i in range(1, self.depth):
            x = norm_act(getattr(self, f"bn{i}"), x, conv=getattr(self, f"conv{i}"))
        bn, conv = getattr(self, f"bn{self.depth}"), getattr(self, f"conv{self.depth}")
        found: Fork = norm_act(bn, x, conv=conv, residual=self.downsample(same_x), fork=True)
        return found


def basic(inputs: int, width: int, outputs: int, stride: int, conv: Conv) -> list[nn.Conv2d]:
    """Return two 3 x 3 convolutions, the first with the stride."""
    return [conv(inputs, width, stride), conv3x3(width, outputs)]


def bottleneck(inputs: int, width: int, outputs: int, stride: int, conv: Conv) -> list[nn.Conv2d]:
    """Return 1 x 1, 3 x 3 and 1 x 1 convolutions; the 3 x 3 one has the stride ("v1.5")."""
    return [conv1x1(inputs, width), conv(width, width, stride), conv1x1(width, outputs)]


def init_he(model: nn.Module) -> None:
    """Draw convolutions and a linear head's weight from N(0, 2 / fan_in); its bias is torch's."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight)


def init_he_fan_out(model: nn.Module) -> None:
    """Draw convolutions from N(0, 2 / fan_out); a linear head is torch's."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out")


# Standard deviation of N(0, 1) cut off at -2 and 2: dividing by it keeps the variance asked for.
TRUNCATED_STD = 0.8796256610342398


def init_keras(model: nn.Module) -> None:
    """Draw normals of variance 2 / fan_in, cut off at two deviations; a head from N(0, 0.01²)."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            std = (2.0 / layer.weight[0].numel()) ** 0.5 / TRUNCATED_STD
            nn.init.trunc_normal_(layer.weight, std=std, a=-2.0 * std, b=2.0 * std)
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)


@dataclass(frozen=True)
class Design:
    """Differences between residual networks."""

    block: Callable[[int, int, int, int, Conv], list[nn.Conv2d]]  # `basic` or `bottleneck`
    depths: tuple[int, ...]  # blocks in each stage; every stage after the first halves the maps
    widths: tuple[int, ...]  # of the blocks in each stage
    init: Callable[[nn.Module], None]  # sets the initial weights
    expansion: int = 1  # channels that leave a block, as a multiple of its width
    stem: tuple[int, int, int] = (3, 1, 1)  # kernel, stride and padding of the first convolution
    stem_width: int = 16
    stem_pool: bool = False  # whether a 3 x 3 max pool with stride 2 follows
    # Where a block changes the shape, `pad` is option A and `projection` a convolution;
    # `stage-projection` has that in the first block of every stage, even where the shape stays.
    shortcut: Literal["pad", "projection", "stage-projection"] = "pad"
    conv: Conv = conv3x3  # makes the 3 x 3 convolutions that may have a stride
    final_norm: bool = False  # whether a batch norm follows the last block

    def make_shortcut(self, inputs: int, outputs: int, stride: int, *, first: bool) -> nn.Module:
        """Return the shortcut of one block; `first` says that it opens a stage."""
        same = stride == 1 and inputs == outputs
        if same and not (self.shortcut == "stage-projection" and first):
            return nn.Identity()
        if self.shortcut == "pad":
            return PadShortcut()
        return ProjectionShortcut(conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """Residual network after a design; ``model(x) = model.fc(model.features(x))``.

    Examples:
        >>> from longtail.models.heads import head_factory
        >>> head = head_factory("linear", num_classes=10)
        >>> model = ResNet(DESIGNS["resnet32"], channels=3, head=head)
        >>> sum(p.numel() for p in model.parameters())
        464154
    """

    def __init__(self, design: Design, *, channels: int, head: HeadFactory) -> None:
        super().__init__()
        kernel, stride, padding = design.stem
        outputs = design.stem_width
        self.conv1 = nn.Conv2d(
            channels, outputs, kernel, stride=stride, padding=padding, bias=False
        )
        self.bn1 = nn.BatchNorm2d(outputs)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if design.stem_pool else None
        self.stages: list[str] = []
        for number, (depth, width) in enumerate(zip(design.depths, design.widths, strict=True)):
            stage = nn.Sequential()
            for block in range(depth):
                inputs, outputs = outputs, width * design.expansion
                stride = 2 if number > 0 and block == 0 else 1
                shortcut = design.make_shortcut(inputs, outputs, stride, first=block == 0)
                convs = design.block(inputs, width, outputs, stride, design.conv)
                stage.append(Block(convs, shortcut))
            self.stages.append(f"layer{number + 1}")
            self.add_module(self.stages[-1], stage)
        self.final_bn = nn.BatchNorm2d(outputs) if design.final_norm else None
        self.fc = head(outputs)
        design.init(self)

    def features(self, images: Tensor) -> Tensor:
        """Return the input of the head, shape (batch, features), of (batch, channels, h, w)."""
        count_batches(self)
        fork: Fork = norm_act(self.bn1, images, conv=self.conv1, fork=True)
        if self.maxpool is not None:
            fork = (self.maxpool(fork[0]),) * 2
        for stage in self.stages:
            fork = self.get_submodule(stage)(fork)
        x = fork[0]
        if self.final_bn is not None:
            x = norm_act(self.final_bn, x, relu=False)
        return x.mean(dim=(2, 3))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of shape (batch, num_classes)."""
        return self.fc(self.features(images))  # type: ignore[no-any-return]


def cifar_design(blocks: int, *, times: int = 1) -> Design:
    """Return the CIFAR network of 6 · blocks + 2 layers, so many times as wide."""
    widths = (16 * times, 32 * times, 64 * times)
    return Design(basic, depths=(blocks,) * 3, widths=widths, init=init_he, stem_width=widths[0])


# What the paper's authors trained with, as far as it is public. Given: the kinds of convolution,
# 5 blocks a stage, the widths, projections, a final batch norm, maps of 36 x 36 after the stem,
# the dense layer's N(0, 0.01²), and 300,762 parameters for 10 classes. The rest follows:
#   - a 3 x 3 stem yields 36 x 36 from 32 x 32 only if it pads by 3;
#   - the parameters come out exactly with no expansion, no convolution with a bias, a batch norm
#     as wide as its convolution after each (so after, not before it), the projections' too, and
#     a projection in the first stage as well, where the shape stays as it is.
# Where a count can't tell, this does what the authors' code says: stride on the 3 x 3, padded
# TensorFlow's way; no ReLU after the final norm; truncated normals.
RELEASED = Design(
    bottleneck,
    depths=(5, 5, 5),
    widths=(16, 32, 64),
    init=init_keras,
    stem=(3, 1, 3),
    shortcut="stage-projection",
    conv=conv3x3_same,
    final_norm=True,
)


def imagenet_design(*depths: int, expansion: int = 1) -> Design:
    """Return an ImageNet network: 7 x 7 stem, max pool, four stages, projections."""
    return Design(
        basic if expansion == 1 else bottleneck,
        depths=depths,
        widths=(64, 128, 256, 512),
        init=init_he_fan_out,
        expansion=expansion,
        stem=(7, 2, 3),
        stem_width=64,
        stem_pool=True,
        shortcut="projection",
    )


CIFAR_DESIGNS: dict[str, Design] = {
    "resnet20": cifar_design(3),
    "resnet32": cifar_design(5),
    "resnet56": cifar_design(9),
    "resnet32x4": cifar_design(5, times=4),
    "resnet32-released": RELEASED,
}

IMAGENET_DESIGNS: dict[str, Design] = {
    "resnet18": imagenet_design(2, 2, 2, 2),
    "resnet50": imagenet_design(3, 4, 6, 3, expansion=4),
    "resnet152": imagenet_design(3, 8, 36, 3, expansion=4),
}

DESIGNS: dict[str, Design] = CIFAR_DESIGNS | IMAGENET_DESIGNS
