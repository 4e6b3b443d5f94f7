"""Networks, by name; each ends in a layer called `fc`, whose norms and bias runs record."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor, nn

from longtail import _checks
from longtail._checks import FloatArray
from longtail.models.small import SmallConvNet

MODELS: dict[str, Callable[..., nn.Module]] = {"small-conv": SmallConvNet}


def build(name: str, *, num_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    """A freshly initialised network; the caller seeds torch's generator.

    Args:
        name: a key of `MODELS`.
        num_classes: width of the last layer.
        image_shape: (channels, height, width) of the input.

    Examples:
        >>> model = build("small-conv", num_classes=10, image_shape=(1, 8, 8))
        >>> sum(p.numel() for p in model.parameters())
        38282
    """
    _checks.choice(name, list(MODELS), "models.build", name="name")
    return MODELS[name](num_classes=num_classes, image_shape=image_shape)


def head_norms_and_bias(model: nn.Module) -> tuple[FloatArray, FloatArray]:
    """‖w_y‖₂ and the bias of the last layer, which weight normalization needs.

    Returns:
        Two arrays of shape (num_classes,), float64; the bias is zero where there is none.
    """
    head = model.fc
    if not isinstance(head, nn.Linear):
        raise TypeError(f"the last layer is {type(head).__name__}, not a linear one")
    weight: Tensor = head.weight.detach().double().cpu()
    bias = np.zeros(len(weight)) if head.bias is None else head.bias.detach().double().cpu().numpy()
    return weight.norm(dim=1).numpy(), bias
