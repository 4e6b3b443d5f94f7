"""The losses of several runs that train side by side, each its own, in one computation.

    ℓ_m = Σ_n Σ_k λ_kn · w_y · ℓ_m(y, f_mn) / Σ_n Σ_k λ_kn · w_y,   y = y_mkn,

over the examples n of run m and their labels k: one, or two where images are mixed. On a GPU the
loss of one run is several kernels, each too short to fill it, so losses computed one by one would
cost more than the networks of many runs. Here every operation does all runs at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longtail.losses.pairwise import PairwiseMarginLoss


class StackedLoss:
    """The mean loss of each run.

    Losses with a dense margin, with label smoothing, with competitors that drop out or with an
    `ignore_index` of their own are computed one by one, all others together; the values are the
    same.

    Args:
        criteria: one for each run, all with as many classes and on one device, with the reduction
            "mean". Their class weights move into one tensor: they are still to be changed in
            place, by ``criterion.weight.copy_``.

    Examples:
        >>> from longtail import ClassPrior
        >>> from longtail.losses import LogitAdjustedLoss, SoftmaxLoss
        >>> prior = ClassPrior.from_counts([9, 1])
        >>> both = StackedLoss([SoftmaxLoss(prior), LogitAdjustedLoss(prior)])
        >>> logits, target = torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]]), torch.tensor([[1], [1]])
        >>> both(logits, target)
        tensor([1.3133, 3.2373])
        >>> both(logits, target, second=torch.tensor([[0], [0]]), share=torch.tensor([[0.25]] * 2))
        tensor([0.5633, 0.8394])
    """

    def __init__(self, criteria: Sequence[PairwiseMarginLoss]) -> None:
        self.criteria = list(criteria)
        # An `ignore_index` may be a class, whose examples must not count.
        own = [loss.whole_rows or loss.ignore_index != -100 for loss in criteria]
        self._alone = [n for n, one in enumerate(own) if one]
        members = [n for n, one in enumerate(own) if not one]
        usual = [criteria[n] for n in members]
        if not usual:
            return
        self._members = torch.tensor(members, device=usual[0].alpha.device)
        alpha, positive, negative = (
            torch.stack([getattr(loss, name) for loss in usual])[:, None]
            for name in ("alpha", "positive", "negative")
        )
        scale = alpha.new_tensor([loss.scale for loss in usual])[:, None, None]
        lower = scale * (positive + negative)
        # Shape (runs, 1, num_classes) each; None for what changes nothing.
        self._scale = None if all(loss.scale == 1 for loss in usual) else scale
        self._offset = scale * negative
        self._lower = lower if bool(lower.any()) else None
        self._alpha = None if bool((alpha == 1).all()) else alpha
        self._weight: Tensor | None = None
        if any(loss.weight is not None for loss in usual):
            self._weight = torch.stack(
                [torch.ones_like(one.alpha) if one.weight is None else one.weight for one in usual]
            )
            for loss, row in zip(usual, self._weight, strict=True):
                if loss.weight is not None:
                    loss.weight = row  # the same memory from now on

    def __call__(
        self,
        logits: Tensor,
        target: Tensor,
        *,
        second: Tensor | None = None,
        share: Tensor | None = None,
        dropped: Sequence[Tensor | None] = (),
    ) -> Tensor:
        """Return the loss of each run, shape (runs,).

        Args:
            logits: f, shape (runs, examples, num_classes), float32 or wider.
            target: y, class indices, shape (runs, examples); the `ignore_index` of a run whose
                loss has one of its own, but not the usual -100.
            second: the labels of what was mixed in, likewise; None where nothing is.
            share: λ of the first label, likewise, in [0, 1].
            dropped: for each run what its loss has drawn, see `EqualizedThresholdLoss.draw`.
        """
        labels = [target] if second is None or share is None else [target, second, share]
        if not self._alone:
            return self._together(logits, *labels)
        found: list[Any] = [None] * len(self.criteria)
        for n in self._alone:
            loss: Any = self.criteria[n] if len(labels) == 1 else self.criteria[n].mixed
            drawn = dropped[n] if dropped else None
            found[n] = loss(logits[n], *(part[n] for part in labels), dropped=drawn)
        if len(self._alone) < len(found):
            picked = (part.index_select(0, self._members) for part in (logits, *labels))
            together = iter(self._together(*picked))
            found = [next(together) if loss is None else loss for loss in found]
        return torch.stack(found)

    def _together(
        self,
        logits: Tensor,
        target: Tensor,
        second: Tensor | None = None,
        share: Tensor | None = None,
    ) -> Tensor:
        """The losses of those that are alike; labels stand along the last axis."""
        labels, parts = target[..., None], None  # λ of each label; 1 where there is one label
        if second is not None and share is not None:
            labels = torch.stack([target, second], dim=-1)
            parts = torch.stack([share, 1.0 - share], dim=-1).to(logits.dtype)

        def of_labels(table: Tensor) -> Tensor:
            """Values for each run and class, looked up for each label."""
            found = table.to(logits.dtype).flatten(1).gather(1, labels.flatten(1))
            return found.view(labels.shape)

        z = self._offset.to(logits.dtype)
        z = z + logits if self._scale is None else torch.addcmul(z, logits, self._scale.to(z.dtype))
        if self._lower is None:
            losses = -z.log_softmax(-1).gather(-1, labels)
        else:
            each = z[:, :, None].expand(*labels.shape, -1)
            lower = of_labels(self._lower)[..., None]
            each = each.scatter_add(-1, labels[..., None], -lower)
            losses = -each.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
        if self._alpha is not None:
            losses = losses * of_labels(self._alpha)
        if self._weight is not None:
            weight = of_labels(self._weight)
            parts = weight if parts is None else parts * weight
        if parts is not None:
            losses = losses * parts
        if self._weight is None or parts is None:
            return losses.sum((1, 2)) / target.shape[1]
        return losses.sum((1, 2)) / parts.sum((1, 2))
