"""Losses outside the pairwise-margin family: the average of the largest, and hinge losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longtail import _checks
from longtail._checks import InputError
from longtail.priors import ClassPrior


def average_top_k(losses: Tensor, k: int) -> Tensor:
    """Return the mean of the k largest losses of a batch (Fan et al. 2017).

        AT_k(ℓ) = 1/k · Σ_{i≤k} ℓ_[i] = min_λ {λ + 1/k · Σ_i [ℓ_i − λ]₊},   ℓ_[1] ≥ ℓ_[2] ≥ …

    Args:
        losses: of each example, as from reduction="none".
        k: at least 1; the mean of all losses if the batch has no more than k.

    Examples:
        >>> average_top_k(torch.tensor([1.0, 4.0, 2.0]), 2)
        tensor(3.)
    """
    each = losses.flatten()
    return each.topk(min(k, len(each)), sorted=False).values.mean()


class AverageTopKLoss(nn.Module):
    """Any loss, reduced to the mean of its k largest values; see `average_top_k`.

    Args:
        loss: a module with reduction="none".
        k: as in the function.

    Examples:
        >>> from longtail.losses import LogitAdjustedLoss
        >>> prior = ClassPrior.from_probs([0.75, 0.25])
        >>> loss = AverageTopKLoss(LogitAdjustedLoss(prior, reduction="none"), k=1)
        >>> loss(torch.zeros(3, 2), torch.tensor([0, 1, 0]))  # that of class 1, log 4
        tensor(1.3863)
    """

    def __init__(self, loss: nn.Module, *, k: int) -> None:
        super().__init__()
        if getattr(loss, "reduction", "none") != "none":
            raise InputError(
                f"AverageTopKLoss needs the loss of each example: make {type(loss).__name__} with "
                f'reduction="none"; it has {loss.reduction!r}.'
            )
        self.loss, self.k = loss, _checks.whole(k, name="k")

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss; arguments as of the loss inside."""
        return average_top_k(self.loss(*args, **kwargs), self.k)

    def extra_repr(self) -> str:
        """Return k."""
        return f"k={self.k}"


class CostSensitiveHingeLoss(nn.Module):
    """Weighted hinge losses with margins, binary or one class against the rest.

        ℓ(y, f) = ω₊_y · [δ₊_y − f_y]₊ + Σ_{y'≠y} ω₋_{y'} · [δ₋_{y'} + f_{y'}]₊

    This is the limit γ → ∞ of the paper's binary losses (equation 13), for each class. With the
    default weights, ω₊/ω₋ = (1 − π)/π, the best f_y is positive where η_y > π_y. For two classes
    that is the Bayes rule; with more, several scores may be positive and equal.

    Args:
        prior: of the training data.
        omega_pos: ω₊, a number or one per class; 1/π if None.
        omega_neg: ω₋, likewise; 1/(1 − π) if None.
        delta_pos: δ₊ ≥ 0, likewise.
        delta_neg: δ₋ ≥ 0, likewise.
        reduction: "mean", "sum" or "none".

    Examples:
        >>> loss = CostSensitiveHingeLoss(ClassPrior.from_probs([0.8, 0.2]))
        >>> loss(torch.tensor([0.5, 0.5]), torch.tensor([1, 0]))  # (5 · 0.5 + 1.25 · 1.5) / 2
        tensor(2.1875)
    """

    omega_pos: Tensor
    omega_neg: Tensor
    delta_pos: Tensor
    delta_neg: Tensor

    def __init__(
        self,
        prior: ClassPrior,
        *,
        omega_pos: Any = None,
        omega_neg: Any = None,
        delta_pos: Any = 1.0,
        delta_neg: Any = 1.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        pi = _checks.prior(prior).probs
        given = {
            "omega_pos": 1.0 / pi if omega_pos is None else omega_pos,
            "omega_neg": 1.0 / (1.0 - pi) if omega_neg is None else omega_neg,
            "delta_pos": delta_pos,
            "delta_neg": delta_neg,
        }
        for name, values in given.items():
            array = np.array(np.broadcast_to(_checks.as_numpy(values), pi.shape), np.float64)
            if not np.all(array >= 0):
                raise InputError(f"`{name}` must not be negative; got {array.min():g}.")
            tensor = torch.tensor(array, dtype=torch.get_default_dtype())
            self.register_buffer(name, tensor, persistent=False)
        self.reduction = _checks.choice(reduction, ("none", "mean", "sum"), name="reduction")

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of class labels.

        Args:
            logits: f, shape (N, num_classes); or (N,), the score of class 1 of two.
            target: y, shape (N,).
        """
        classes = torch.arange(len(self.omega_pos), device=logits.device)
        if logits.ndim == 1:
            classes, logits = classes[1:], logits[:, None]
        if logits.shape[1] != len(classes):
            raise InputError(
                f"`logits` must have shape (N, {len(self.omega_pos)}), or (N,) for two classes; "
                f"got {logits.shape[1]} columns."
            )
        positive = self.omega_pos[classes] * (self.delta_pos[classes] - logits).relu()
        negative = self.omega_neg[classes] * (self.delta_neg[classes] + logits).relu()
        losses = torch.where(target[:, None] == classes, positive, negative).sum(1)
        if self.reduction == "none":
            return losses
        return losses.mean() if self.reduction == "mean" else losses.sum()
