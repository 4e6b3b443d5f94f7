"""A run on photographs that learns from a few classes drawn at each step: sampled softmax.

The negatives are drawn from the training set's prior with the run's own numbers, once for each
global batch: the same in every process, whatever its share and its parts. The classifier is whole
in every process, and judged by all its logits.
"""

from __future__ import annotations

from typing import Any, cast

from longtail import _checks

_checks.require("torch", extra="torch", caller=__name__)

import torch
from torch import Tensor, nn

from longtail import margins
from longtail.losses import SampledSoftmaxLoss
from longtail.train.recipe import Recipe
from longtail.train.streamed import Part, PixelsToLogits, StreamedTeam


class PixelsToLoss(PixelsToLogits):
    """From bytes to the sum of the losses from some classes, in float32.

    Args:
        model: see `PixelsToLogits`, as what follows `loss`.
        loss: of features, classifier weights and labels.
        recipe: see there.
        precision: see there.
        device: see there.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: SampledSoftmaxLoss,
        recipe: Recipe,
        *,
        precision: str,
        device: torch.device,
    ) -> None:
        super().__init__(model, recipe, precision=precision, device=device)
        self.loss = loss

    def forward(self, pixels: Tensor, labels: Tensor, sampled: Tensor) -> Tensor:  # type: ignore[override]
        """A scalar; pixels as for `PixelsToLogits`, labels (images,), sampled (negatives,)."""
        fc: Any = self.model.fc
        return cast(
            Tensor,
            self.loss(self.features(pixels), fc.weight, labels, bias=fc.bias, sampled=sampled),
        )


class SampledTeam(StreamedTeam):
    """A `StreamedTeam` whose loss is taken over the labels' classes and some that are drawn."""

    def _network(self) -> nn.Module:
        (planner,), method = self.planners, self.planners[0].method
        self.sampled = SampledSoftmaxLoss(
            planner.prior,
            num_sampled=self.recipe.sampled_classes,
            margin=margins.by_name(method.loss, planner.prior, **method.settings),
            reduction="sum",
            generator=self.generators[0],
        ).to(self.device)
        self.sampled.class_weight = self.criterion.weight  # the tensor that an epoch's go into
        return PixelsToLoss(
            self.model, self.sampled, self.recipe, precision=self.precision, device=self.device
        )

    def _draw(self, size: int) -> Tensor:
        """The negatives of a step, shape (sampled_classes,)."""
        return self.sampled.draw()

    def _sum(self, part: Part, drawn: Tensor | None, place: int) -> Tensor:
        return part.counts * cast(Tensor, self.logits(part.images, part.labels, drawn))
