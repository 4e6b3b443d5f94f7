"""Last layers, from features to logits, by name. Every network calls its own `fc`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail import _checks
from longtail._checks import InputError

# A network knows how wide its features are; everything else about its head is decided outside.
HeadFactory = Callable[[int], nn.Module]

HEADS = ("linear", "cosine", "unit-norm")


class UnitNormHead(nn.Module):
    """Classification weights kept at unit length: ``f_y = w_y·x / ‖w_y‖``.

    The paper (section 3) names this as enforcing ‖w_y‖₂ = 1 during training. Its scorer
    w_y·Φ(x) has no bias of its own, so neither has this. The length of a row leaves the logits as
    they are, yet not their gradient, so all rows start at length 1, in directions that are uniform
    on the sphere.

    Examples:
        >>> head = UnitNormHead(2, 1)
        >>> head.load_state_dict({"weight": torch.tensor([[3.0, 4.0]])})
        <All keys matched successfully>
        >>> round(head(torch.tensor([[10.0, 0.0]])).item(), 4)
        6.0
    """

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_classes, in_features))
        nn.init.normal_(self.weight)
        self.weight.data = F.normalize(self.weight.data, dim=1)

    def effective_weight(self) -> Tensor:
        """Return the rows that multiply the features, shape (num_classes, in_features)."""
        return F.normalize(self.weight, dim=1)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits of shape (batch, num_classes)."""
        return F.linear(features, self.effective_weight())


class CosineHead(UnitNormHead):
    """Scaled cosines of features and weights: ``f_y = scale · w_y·x / (‖w_y‖ ‖x‖)``.

    The `ldam` loss multiplies logits and margins by its own scale, so with it this one stays 1.

    Examples:
        >>> head = CosineHead(2, 1, scale=30.0)
        >>> head.load_state_dict({"weight": torch.tensor([[3.0, 4.0]])})
        <All keys matched successfully>
        >>> round(head(torch.tensor([[10.0, 0.0]])).item(), 4)
        18.0
    """

    def __init__(self, in_features: int, num_classes: int, *, scale: float = 1.0) -> None:
        super().__init__(in_features, num_classes)
        self.scale = scale

    def effective_weight(self) -> Tensor:
        """Return the rows that multiply the features' direction."""
        return self.scale * super().effective_weight()

    def forward(self, features: Tensor) -> Tensor:
        """Return logits of shape (batch, num_classes)."""
        return super().forward(F.normalize(features, dim=1))


class HeadAlone(nn.Module):
    """Last layer by itself, for features that come as images of 1 x 1 pixels.

    A linear one starts at zero, with every class equally likely: random weights would first have
    to be unlearned, which takes long where features are large.
    """

    def __init__(self, image_shape: tuple[int, int, int], head: HeadFactory) -> None:
        super().__init__()
        self.features = nn.Flatten()
        self.fc = head(math.prod(image_shape))
        if isinstance(self.fc, nn.Linear):
            nn.init.zeros_(self.fc.weight)
            nn.init.zeros_(self.fc.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of shape (batch, num_classes)."""
        return self.fc(self.features(images))  # type: ignore[no-any-return]


def head_factory(head: str, *, num_classes: int, scale: float = 1.0) -> HeadFactory:
    """Return a function that makes a head of `HEADS`, given the width of the features.

    The scale is that of the cosines; the other heads have none, so there it stays 1.
    """
    _checks.choice(head, HEADS, name="head")
    num_classes = _checks.whole(num_classes, name="num_classes", at_least=2)
    scale = _checks.positive(scale, name="head_scale")
    if head == "cosine":
        return partial(CosineHead, num_classes=num_classes, scale=scale)
    if scale != 1.0:
        raise InputError(
            f"`head_scale` belongs to the cosine head; the {head} head has none, but {scale:g} "
            f"came; leave it out, or pass head='cosine'."
        )
    if head == "unit-norm":
        return partial(UnitNormHead, num_classes=num_classes)
    return partial(nn.Linear, out_features=num_classes)


def effective_weight_and_bias(head: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return what multiplies the features, shape (num_classes, in_features), and the bias."""
    if isinstance(head, UnitNormHead):
        return head.effective_weight(), None
    if isinstance(head, nn.Linear):
        return head.weight, head.bias
    raise InputError(
        f"the last layer must be an nn.Linear, a CosineHead or a UnitNormHead, whose rows have "
        f"norms; it is a {type(head).__name__}."
    )
