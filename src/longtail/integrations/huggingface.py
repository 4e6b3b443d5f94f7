"""Losses for transformers' Trainer, scaled as gradient accumulation needs; DRW as a callback.

Nothing here trains: `Trainer(compute_loss_func=TrainerLoss(LogitAdjustedLoss(prior)))` does.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from longtail import _checks, margins
from longtail._checks import InputError
from longtail.priors import ClassPrior

_checks.require("torch", extra="torch")
_checks.require("transformers", extra="hf")

import torch
from torch import Tensor
from transformers.trainer_callback import TrainerCallback

from longtail.kernels._inputs import work_dtype
from longtail.losses import PairwiseMarginLoss

# Trainer counts the labels that differ from this one; no setting of its changes that.
COUNTED_OUT = -100


class TrainerLoss:
    """Any loss of the family, for ``Trainer(compute_loss_func=...)``.

        Σ_i ℓ(y_i, f_i) / num_items_in_batch

    `num_items_in_batch` is the number of labels in everything that makes one optimizer step: all
    micro-batches of gradient accumulation, all processes. So the step is the same however it is
    cut up, also into parts of unequal size. A mean per micro-batch would not be.

    The labels have to be in the batch under ``labels``. Logits are the model's ``logits``, with
    the classes last: (B, L) with labels (B,), or (B, T, L) with labels (B, T) for tokens, where
    −100 marks what does not count. Labels of the logits' own shape are class probabilities
    (Mixup). The copy of `loss` that this holds moves to the logits' device by itself.

    Args:
        loss: a module of `longtail.losses`; its `reduction` plays no part.

    Attributes:
        loss: the copy.

    Examples:
        >>> import torch
        >>> from longtail.losses import LogitAdjustedLoss
        >>> loss = TrainerLoss(LogitAdjustedLoss(ClassPrior.from_counts([90, 10])))
        >>> logits, labels = torch.zeros(3, 2), torch.tensor([0, 1, 1])
        >>> whole = loss({"logits": logits}, labels, num_items_in_batch=3)
        >>> parts = [
        ...     loss({"logits": logits[rows]}, labels[rows], num_items_in_batch=3)
        ...     for rows in (slice(0, 1), slice(1, 3))
        ... ]
        >>> whole, sum(parts)
        (tensor(1.5702), tensor(1.5702))
    """

    def __init__(self, loss: PairwiseMarginLoss) -> None:
        if loss.ignore_index != COUNTED_OUT:
            raise InputError(
                f"TrainerLoss: the loss has ignore_index={loss.ignore_index}, but Trainer counts "
                f"every label that is not {COUNTED_OUT}; mark ignored labels with {COUNTED_OUT}."
            )
        if loss.weight is not None:
            raise InputError(
                "the loss has torch's class weights, whose mean divides by the weights of the "
                "batch, but Trainer gives the number of labels; weigh the classes in the margin "
                "instead, as PairwiseMarginLoss(margins.balanced(prior)) does."
            )
        self.loss = copy.deepcopy(loss)
        self.loss.reduction = "none"  # a sum would be in the logits' type, which may be float16

    def __call__(
        self,
        outputs: Any,
        labels: Tensor,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the loss of a micro-batch, a scalar, in float32 for logits in half precision.

        Args:
            outputs: the model's, with ``logits``.
            labels: see the class.
            num_items_in_batch: of the whole optimizer step; None for the mean over this batch.
        """
        if "CausalLM" in type(outputs).__name__:
            raise InputError(
                "TrainerLoss: a causal language model predicts the next token, and this loss does "
                "not shift the labels; it is for classification of sequences, images and tokens."
            )
        if isinstance(outputs, Mapping | tuple):
            outputs = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
        logits: Tensor = outputs
        if logits.device != self.loss.alpha.device:
            self.loss.to(logits.device)
        num_classes = logits.shape[-1]
        soft = labels.shape == logits.shape
        # To look at the rows costs no more than Trainer's NaN filter.
        off = (labels.sum(-1, dtype=torch.float64) - 1).abs().max().item() if soft else 0.0
        if not off <= 1e-2:
            raise InputError(
                f"TrainerLoss: `labels` of the logits' shape {tuple(labels.shape)} are class "
                f"probabilities, but a row's sum is off 1 by {off:.3g}. Several labels per example "
                f"(problem_type='multi_label_classification') are another problem: train with its "
                f"own loss, then adjust the logits by longtail.multilabel."
            )
        losses: Tensor = self.loss(
            logits.reshape(-1, num_classes),
            labels.reshape(-1, num_classes) if soft else labels.reshape(-1),
        )
        if num_items_in_batch is None:
            # In uint8 a comparison with -100 would find 156.
            num_items_in_batch = ((labels if soft else labels.long()) != COUNTED_OUT).sum()
        total = losses.sum(dtype=work_dtype(losses))
        # Trainer counts numbers, and a soft label has one for each class.
        return total / (num_items_in_batch / num_classes if soft else num_items_in_batch)

    def weigh(self, weights: Any) -> None:
        """Multiply the loss of each class by a weight, shape (num_classes,); None for none."""
        alpha = self.loss.alpha
        self.loss.weight = None if weights is None else alpha.new_tensor(weights)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.loss!r})"


class DeferredReweighting(TrainerCallback):  # type: ignore[misc]
    """DRW (Cao et al. 2019) for Trainer: class-balanced weights from epoch `start` on.

        α_y ∝ (1 − β) / (1 − β^{n_y}),   Σ_y π_y α_y = 1

    on top of the loss's own. Cao et al. divide by the weights of each batch; here it is by their
    expectation, since a batch's own would change with gradient accumulation.

    An epoch is a pass over the data. Of data without a length, such as an IterableDataset, Trainer
    does not know where a checkpoint was saved, and counts from 0 again after a break.

    Args:
        loss: the one that the Trainer has.
        prior: of the training data, made from counts.
        start: the first epoch that has the weights, counted from 0.
        beta: β in [0, 1).

    Examples:
        >>> from longtail.losses import LDAMLoss
        >>> prior = ClassPrior.from_counts([900, 100])
        >>> loss = TrainerLoss(LDAMLoss(prior))
        >>> callbacks = [DeferredReweighting(loss, prior, start=160)]
    """

    def __init__(
        self, loss: TrainerLoss, prior: ClassPrior, *, start: int, beta: float = 0.9999
    ) -> None:
        self.start = _checks.whole(start, name="start", at_least=0)
        self.loss = loss
        prior = _checks.prior(prior, num_classes=len(loss.loss.alpha))
        self.weights = margins.class_balanced(prior, beta=beta).alpha
        self.epoch = 0  # the coming one

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Begin with the epoch that Trainer is in, which it counts in floats of steps."""
        self.epoch = math.floor((state.epoch or 0.0) + 1e-6)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Weigh the classes or not, by the epoch alone, so that a resumed run goes on right."""
        self.loss.weigh(self.weights if self.epoch >= self.start else None)
        self.epoch += 1
