"""The losses of several runs that train side by side, each its own, in one computation.

    ℓ_m = Σ_n Σ_k λ_kn · w_y · ℓ_m(y, f_mn) / Σ_n Σ_k λ_kn · w_y,   y = y_mkn,

over the examples n of run m and their labels k: one, or two where images are mixed. On a GPU the
loss of one run is several kernels, each too short to fill it, so losses computed one by one would
cost more than the networks of many runs. Here every operation does all runs at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from longtail.losses import EqualizedThresholdLoss
from longtail.losses.pairwise import PairwiseMarginLoss
from longtail.margins import Margin


class StackedLoss:
    """The mean loss of each run, from its margin.

    Args:
        margins: one for each run, none of them dense, all with as many classes.
        weighted: for each run, whether it has class weights; none has if empty.
        device: of the logits.
        dtype: of the margins.

    Attributes:
        weights: for each run its class weights, shape (num_classes,), ones at first, to be changed
            in place; or None.

    Examples:
        >>> from longtail import ClassPrior, margins
        >>> prior = ClassPrior.from_counts([9, 1])
        >>> both = StackedLoss([margins.softmax(prior), margins.logit_adjusted(prior)])
        >>> logits, target = torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]]), torch.tensor([[1], [1]])
        >>> both(logits, target)
        tensor([1.3133, 3.2373])
        >>> both(logits, target, second=torch.tensor([[0], [0]]), share=torch.tensor([[0.25]] * 2))
        tensor([0.5633, 0.8394])
    """

    def __init__(
        self,
        margins: Sequence[Margin],
        *,
        weighted: Sequence[bool] = (),
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        alpha, positive, negative = (
            torch.tensor(np.stack([getattr(m, part) for m in margins]), dtype=dtype)[:, None]
            for part in ("alpha", "positive", "negative")
        )
        scale = torch.tensor([m.scale for m in margins], dtype=dtype)[:, None, None]
        lower = scale * (positive + negative)
        # Shape (runs, 1, num_classes) each; None for what changes nothing.
        self._offset = (scale * negative).to(device)
        self._scale = scale.to(device) if bool((scale != 1).any()) else None
        self._lower = lower.to(device) if bool(lower.any()) else None
        self._alpha = alpha.to(device) if bool((alpha != 1).any()) else None
        self._weight = torch.ones_like(alpha[:, 0]).to(device) if any(weighted) else None
        self.weights = [
            None if self._weight is None or not has else self._weight[run]
            for run, has in enumerate(weighted or [False] * len(margins))
        ]

    def __call__(
        self,
        logits: Tensor,
        target: Tensor,
        *,
        second: Tensor | None = None,
        share: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of each run, shape (runs,).

        Args:
            logits: f, shape (runs, examples, num_classes), float32 or wider.
            target: y, class indices, shape (runs, examples).
            second: the labels of what was mixed in, likewise; None where nothing is.
            share: λ of the first label, likewise, in [0, 1].
        """
        # Labels stand along the last axis; λ of each label, 1 where there is one.
        labels, parts = target[..., None], None
        if second is not None and share is not None:
            labels = torch.stack([target, second], dim=-1)
            parts = torch.stack([share, 1.0 - share], dim=-1).to(logits.dtype)

        z = self._offset.to(logits.dtype)
        z = z + logits if self._scale is None else torch.addcmul(z, logits, self._scale.to(z.dtype))
        if self._lower is None:
            losses = -z.log_softmax(-1).gather(-1, labels)
        else:
            each = z[:, :, None].expand(*labels.shape, -1)
            lower = _of_labels(self._lower, labels, z.dtype)[..., None]
            each = each.scatter_add(-1, labels[..., None], -lower)
            losses = -each.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
        if self._alpha is not None:
            losses = losses * _of_labels(self._alpha, labels, z.dtype)
        if self._weight is not None:
            weight = _of_labels(self._weight, labels, z.dtype)
            parts = weight if parts is None else parts * weight
        if parts is not None:
            losses = losses * parts
        if self._weight is None or parts is None:
            return losses.sum((1, 2)) / target.shape[1]
        return losses.sum((1, 2)) / parts.sum((1, 2))


def _of_labels(table: Tensor, labels: Tensor, dtype: torch.dtype) -> Tensor:
    """Look up values for each run and class, for each label."""
    found = table.to(dtype).flatten(1).gather(1, labels.flatten(1))
    return found.view(labels.shape)


class SeparateLosses:
    """The mean loss of each run, computed one after the other: for losses beyond additive margins.

    Args:
        losses: one for each run, with the reduction "mean".

    Attributes:
        weights: as in `StackedLoss`.
        drawing: the losses whose competitors drop out, by the number of their run.
    """

    def __init__(self, losses: Sequence[PairwiseMarginLoss]) -> None:
        self._losses = list(losses)
        self.weights = [loss.weight for loss in losses]
        self.drawing = {
            run: loss for run, loss in enumerate(losses) if isinstance(loss, EqualizedThresholdLoss)
        }

    def __call__(
        self,
        logits: Tensor,
        target: Tensor,
        *,
        second: Tensor | None = None,
        share: Tensor | None = None,
        dropped: Mapping[int, Tensor] = MappingProxyType({}),
    ) -> Tensor:
        """Return the loss of each run, shape (runs,).

        The arguments are those of `StackedLoss`, and `dropped`: by the number of its run what a
        loss has drawn, see `EqualizedThresholdLoss.draw`.
        """
        found = []
        for run, loss in enumerate(self._losses):
            if second is None or share is None:
                one = loss(logits[run], target[run], dropped=dropped.get(run))
            else:
                labels = target[run], second[run], share[run]
                one = loss.mixed(logits[run], *labels, dropped=dropped.get(run))
            found.append(one)
        return torch.stack(found)
