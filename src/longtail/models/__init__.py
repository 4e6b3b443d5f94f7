"""Networks, by name; each ends in a layer called `fc`, whose norms and bias runs record.

For every one of them ``model(images) == model.fc(model.features(images))``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from longtail import _checks
from longtail._checks import FloatArray, InputError

_checks.require("torch", extra="torch")

from torch import Tensor, nn

from longtail.models.heads import (
    HEADS,
    HeadAlone,
    HeadFactory,
    effective_weight_and_bias,
    head_factory,
)
from longtail.models.resnet import CIFAR_DESIGNS, IMAGENET_DESIGNS, Design, ResNet

__all__ = ["HEADS", "MODELS", "Entry", "build", "head_norms_and_bias"]

ImageShape = tuple[int, int, int]


@dataclass(frozen=True)
class Entry:
    """Network of `MODELS`, and the images it takes."""

    make: Callable[[ImageShape, HeadFactory], nn.Module]
    smallest: int  # height and width; below it the last maps would be mere padding
    channels: int | None = None  # of the images; None for any number


class SmallConvNet(nn.Module):
    """Two 3 x 3 convolutions, one pooling, one hidden layer, one head: for small grey images.

    The pooling leaves out an odd last row or column.
    """

    def __init__(self, image_shape: ImageShape, head: HeadFactory) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.features = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * (height // 2) * (width // 2), 64),
            nn.ReLU(),
        )
        self.fc = head(64)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of shape (batch, num_classes)."""
        return self.fc(self.features(images))  # type: ignore[no-any-return]


def _resnet(design: Design) -> Callable[[ImageShape, HeadFactory], nn.Module]:
    return lambda image_shape, head: ResNet(design, channels=image_shape[0], head=head)


MODELS = {
    "small-conv": Entry(SmallConvNet, smallest=2),
    **{name: Entry(_resnet(design), smallest=4) for name, design in CIFAR_DESIGNS.items()},
    **{
        name: Entry(_resnet(design), smallest=32, channels=3)
        for name, design in IMAGENET_DESIGNS.items()
    },
    "head": Entry(HeadAlone, smallest=1),
}


def build(
    name: str,
    *,
    num_classes: int,
    image_shape: tuple[int, int, int],
    head: str = "linear",
    head_scale: float = 1.0,
) -> nn.Module:
    """Return a freshly initialised network; seed torch's generator for a certain one.

    Args:
        name: a key of `MODELS`.
        num_classes: width of the last layer.
        image_shape: (channels, height, width) of the input.
        head: `linear`; `cosine`, head_scale · w·x / (‖w‖ ‖x‖); or `unit-norm`, w·x / ‖w‖.
        head_scale: of the cosine head; the others have none.

    Examples:
        >>> model = build("small-conv", num_classes=10, image_shape=(1, 8, 8))
        >>> sum(p.numel() for p in model.parameters())
        38282
    """
    entry = MODELS[_checks.choice(name, list(MODELS), name="name")]
    factory = head_factory(head, num_classes=num_classes, scale=head_scale)
    channels, height, width = image_shape
    if min(height, width) < entry.smallest or entry.channels not in (None, channels):
        kind = f"{entry.channels} channels and " if entry.channels else ""
        raise InputError(
            f"{name!r} takes images of {kind}at least {entry.smallest} x {entry.smallest} pixels, "
            f"but `image_shape` (channels, height, width) is {(channels, height, width)}; resize "
            f"the images, repeat a grey one three times, or choose another network."
        )
    return entry.make((channels, height, width), factory)


def head_norms_and_bias(model: nn.Module) -> tuple[FloatArray, FloatArray]:
    """Return ‖w_y‖₂ and the bias of the last layer, for weight normalization.

    w_y is what multiplies the features: of length 1 in a unit-norm head, and of length `scale`
    in a cosine head, which multiplies their direction. Of a sharded layer every process must ask.

    Returns:
        Two arrays of shape (num_classes,), float64; the bias is zero where there is none.

    Examples:
        >>> model = build("small-conv", num_classes=2, image_shape=(1, 8, 8), head="unit-norm")
        >>> [values.round(6).tolist() for values in head_norms_and_bias(model)]
        [[1.0, 1.0], [0.0, 0.0]]
    """
    head: Any = model.get_submodule("fc")
    if hasattr(head, "norms_and_bias"):  # sharded
        norms, bias = head.norms_and_bias()
        return norms.numpy(), bias.numpy()
    # On the CPU and in float64, so that it does not depend on where the network is.
    weight, bias = effective_weight_and_bias(copy.deepcopy(head).cpu().double())
    norms = weight.detach().norm(dim=1).numpy()
    return norms, np.zeros(len(norms)) if bias is None else bias.detach().numpy()
