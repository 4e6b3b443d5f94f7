"""A Margin's numbers as torch tensors: from a Margin, or from a prior and a margin's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longtail import margins
from longtail.margins import Margin
from longtail.priors import ClassPrior


class MarginTensors(NamedTuple):
    """The parts of a `longtail.margins.Margin` on one device."""

    alpha: Tensor
    positive: Tensor
    negative: Tensor
    dense: Tensor | None = None
    scale: float = 1.0

    def cast(self, dtype: torch.dtype) -> MarginTensors:
        """The same in another floating-point type."""
        return MarginTensors(
            self.alpha.to(dtype),
            self.positive.to(dtype),
            self.negative.to(dtype),
            None if self.dense is None else self.dense.to(dtype),
            self.scale,
        )


def of_margin(margin: Margin, device: torch.device) -> MarginTensors:
    """A Margin as tensors, without waiting for the device."""

    def move(part: Any) -> Tensor:
        return torch.as_tensor(part).to(device, non_blocking=True)

    return MarginTensors(
        move(margin.alpha),
        move(margin.positive),
        move(margin.negative),
        None if margin.dense is None else move(margin.dense),
        margin.scale,
    )


def of_prior(
    name: str, prior: ClassPrior, settings: Mapping[str, Any], device: torch.device
) -> MarginTensors:
    """`margins.<name>(prior, **settings)` as tensors, under the compiler too."""
    if not torch.compiler.is_compiling():
        return of_margin(getattr(margins, name)(prior, **settings), device)
    # The compiler would trace into the NumPy. An operator of our own is a closed box to it, and
    # takes the prior as data, so that another prior is not mistaken for the compiled one.
    counts = None if prior.counts is None else torch.as_tensor(prior.counts)
    values = [torch.as_tensor(value, dtype=torch.float64) for value in settings.values()]
    alpha, positive, negative = torch.ops.longtail.margin(
        name, torch.as_tensor(prior.probs), counts, " ".join(settings), values
    )
    return MarginTensors(
        alpha.to(device),
        positive.to(device),
        negative.to(device),
        scale=settings.get("scale", 1.0),
    )


@torch.library.custom_op("longtail::margin", mutates_args=())
def _margin(
    name: str, probs: Tensor, counts: Tensor | None, keys: str, values: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    prior = ClassPrior(probs.numpy(), None if counts is None else counts.numpy())
    numbers = (value.item() if value.ndim == 0 else value.numpy() for value in values)
    margin = getattr(margins, name)(prior, **dict(zip(keys.split(), numbers, strict=True)))
    return (
        torch.from_numpy(margin.alpha),
        torch.from_numpy(margin.positive),
        torch.from_numpy(margin.negative),
    )


@_margin.register_fake
def _(
    name: str, probs: Tensor, counts: Tensor | None, keys: str, values: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(probs), torch.empty_like(probs), torch.empty_like(probs)
