"""DRW for Lightning: a callback that weighs the classes of a module's loss from an epoch on."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback

from longtail import _checks
from longtail._checks import InputError
from longtail.losses import PairwiseMarginLoss
from longtail.priors import ClassPrior
from longtail.train.methods import Method


class DeferredReweighting(Callback):  # type: ignore[misc]
    """DRW (Cao et al. 2019): plain training first, class-balanced weights from epoch `start` on.

        w_y = L · v_y / Σ v,   v_y = (1 − β) / (1 − β^{n_y})

    They become torch's class weights of the module's loss, so the mean divides by the weights of
    the batch. Which weights an epoch has depends on its number alone, so a resumed training goes
    on right. Checkpoints have no place for them, and load with or without this callback. After the
    training, however it ends, the loss is as it was before.

    Args:
        prior: of the training data, made from counts.
        start: the first epoch that has the weights, counted from 0; by default after 80% of them.
        beta: β in [0, 1).
        loss: name of the loss among the LightningModule's parts, such as ``criterion``; needed
            only if there are several of `longtail.losses`.

    Examples:
        >>> prior = ClassPrior.from_counts([900, 100])
        >>> callbacks = [DeferredReweighting(prior, start=160)]
    """

    def __init__(
        self,
        prior: ClassPrior,
        *,
        start: int | None = None,
        beta: float = 0.9999,
        loss: str | None = None,
    ) -> None:
        self.prior = _checks.prior(prior, type(self).__name__)
        self.method = Method("softmax", drw=True, drw_start=start, drw_beta=beta)
        self.loss = loss
        self._weighed: PairwiseMarginLoss | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Give the loss weights of one, which move with it to its device."""
        if stage != "fit":
            return
        caller, found = type(self).__name__, self._found(pl_module)
        _checks.prior(self.prior, caller, num_classes=len(found.alpha))
        if self.method.drw_start is None and (trainer.max_epochs or -1) < 1:
            raise InputError(
                f"{caller}: the Trainer has no max_epochs, so 80% of the epochs is not known; "
                f"pass `start`."
            )
        if found.weight is not None:
            raise InputError(
                f"{caller}: the loss has class weights already; leave `weight` out of it."
            )
        found.register_buffer("weight", torch.ones_like(found.alpha), persistent=False)
        self._weighed = found

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Fill in the weights: a training that is resumed within an epoch does not start one."""
        self._weigh(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Fill in the weights of this epoch."""
        self._weigh(trainer, pl_module)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave the loss as it was, for whatever is done with it next."""
        self._unweigh()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Likewise: a fit that fails or is interrupted has no teardown, and may be repeated."""
        self._unweigh()

    def _unweigh(self) -> None:
        if self._weighed is not None:
            self._weighed.register_buffer("weight", None)
        self._weighed = None

    def _weigh(self, trainer: Any, pl_module: Any) -> None:
        weights = self.method.class_weights(
            self.prior, trainer.current_epoch, trainer.max_epochs or 0
        )
        found = self._found(pl_module)
        if found.weight is None:
            raise InputError(f"{type(self).__name__}: the loss was replaced during training.")
        if weights is None:
            found.weight.fill_(1.0)
        else:
            found.weight.copy_(torch.as_tensor(weights))

    def _found(self, pl_module: Any) -> PairwiseMarginLoss:
        """The one loss of the module."""
        caller = type(self).__name__
        losses = {
            name: part
            for name, part in pl_module.named_modules()
            if isinstance(part, PairwiseMarginLoss)
        }
        if self.loss is not None and self.loss in losses:
            return losses[self.loss]
        if self.loss is None and len(losses) == 1:
            return next(iter(losses.values()))
        there = _checks.listing(losses) or "none"
        raise InputError(
            f"{caller}: the LightningModule must have one loss of longtail.losses"
            f"{'' if self.loss is None else f' called {self.loss!r}'}; there: {there}."
            f"{' Say which with `loss`.' if len(losses) > 1 else ''}"
        )
