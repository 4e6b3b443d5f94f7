"""Balanced error and run folder as a mixin for Lightning; DRW as a callback.

Nothing here trains, and the losses go into a LightningModule as they are. In several processes
every example is judged once: repetitions that a sampler makes to fill up the last batch are taken
out again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail import _checks, metrics
from longtail._checks import InputError, IntArray
from longtail.priors import ClassPrior
from longtail.runs import Run, RunSpec, RunWriter

_checks.require("torch", extra="torch")
_checks.require("lightning", extra="lightning")

import torch
from lightning.pytorch import Callback
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, distributed
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler

from longtail.losses import PairwiseMarginLoss
from longtail.models.heads import effective_weight_and_bias
from longtail.train.methods import Method

__all__ = ["DeferredReweighting", "LongTailMixin"]

_logger = logging.getLogger("longtail")


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
        self.prior = _checks.prior(prior)
        self.method = Method("softmax", drw=True, drw_start=start, drw_beta=beta)
        self.loss = loss
        self._weighed: Any = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Give the loss weights of one, which move with it to its device."""
        if stage != "fit":
            return
        parts = pl_module.named_modules()
        losses = {name: part for name, part in parts if isinstance(part, PairwiseMarginLoss)}
        name = next(iter(losses)) if self.loss is None and len(losses) == 1 else self.loss
        if name not in losses:
            raise InputError(
                f"DeferredReweighting: which of the LightningModule's losses of longtail.losses is "
                f"to be weighed can't be told; there: {_checks.listing(losses) or 'none'}. Name it "
                f"with `loss`."
            )
        found = losses[name]
        _checks.prior(self.prior, num_classes=len(found.alpha))
        if self.method.drw_start is None and (trainer.max_epochs or -1) < 1:
            raise InputError(
                "DeferredReweighting: the Trainer has no max_epochs, so 80% of the epochs is not "
                "known; pass `start`."
            )
        if found.weight is not None:
            raise InputError(
                "DeferredReweighting: the loss has class weights already; leave `weight` out of it."
            )
        found.register_buffer("weight", torch.ones_like(found.alpha), persistent=False)
        self._weighed = found

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Fill in the epoch's weights; a training resumed within an epoch does not start one."""
        weights = self.method.class_weights(
            self.prior, trainer.current_epoch, trainer.max_epochs or 0
        )
        self._weighed.weight.copy_(torch.ones(()) if weights is None else torch.as_tensor(weights))

    on_train_epoch_start = on_train_start

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave the loss as it was, for whatever is done with it next."""
        if self._weighed is not None:
            self._weighed.register_buffer("weight", None)
        self._weighed = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Do the same after a fit that failed or was interrupted, which has no teardown."""
        self.teardown(trainer, pl_module, "fit")


class LongTailMixin:
    """Adds the balanced error of each evaluation, and a run folder, to a LightningModule.

    Put it first among the bases and hand the logits over in `validation_step` and `test_step`:

        class Net(LongTailMixin, L.LightningModule):
            def validation_step(self, batch, _):
                images, target = batch
                self.collect(self(images), target)

    The balanced error is then logged as ``val_balanced_error`` and ``test_balanced_error``: exact,
    over all processes, each example counted once. With `record_run`, the training also becomes
    a run folder that `longtail report` reads: the log, the weights at the end, the logits of
    a validation after the last step (split ``held-out``) and of the test. All logits of an
    evaluation are then kept in memory; without it no more than what they decide.

    A hook of your own with a name that this class has (`on_validation_epoch_end` and the like) has
    to call super's.

    Attributes:
        missing: as in `balanced_error`: what to do about classes without examples.
    """

    missing: Literal["error", "skip"] = "error"

    trainer: Any
    current_epoch: int
    get_submodule: Callable[[str], Any]
    log: Callable[..., None]
    parameters: Callable[[], Any]
    state_dict: Callable[[], dict[str, Tensor]]

    _collected: list[_Examples]
    _collected_at: int | None = None  # the step of the last validation
    _width: int = 0
    _told: Any = None  # what `record_run` was given
    _folder: Any = None  # of the run
    _head: str | None = None
    _writer: Any = None
    _losses: tuple[Any, int] = (0.0, 0)
    _latest_error: float | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse an order of bases in which LightningModule's empty hooks come first."""
        super().__init_subclass__(**options)
        before = cls.__mro__[1 : cls.__mro__.index(LongTailMixin)]
        if any(base.__name__ == "LightningModule" for base in before):
            raise TypeError(
                f"{cls.__name__}: LongTailMixin must stand before LightningModule among the bases, "
                f"whose empty hooks would hide its own and log no balanced error; write: "
                f"class {cls.__name__}(LongTailMixin, LightningModule)."
            )

    def collect(self, logits: Tensor, target: Tensor, *, indices: Tensor | None = None) -> None:
        """Hand over a batch of logits for the balanced error and the run folder.

        Args:
            logits: shape (examples, num_classes).
            target: labels, shape (examples,).
            indices: each example's position in its data set, shape (examples,). Needed only in
                several processes, and there only if each has data of its own, or the loader has
                a batch sampler of its own, a sampler that draws at random, or one that is neither
                torch's DistributedSampler, which Lightning puts in by itself, nor of its kind.
        """
        scores, labels = _checks.matrix(logits, finite=False), _checks.labels(target)
        _checks.same_length(scores, labels)
        told = None if indices is None else _checks.labels(indices, name="indices")
        # All processes hear together of what is not finite, at the end.
        decided = np.where(np.isfinite(scores).all(axis=1), scores.argmax(axis=1), -1)
        kept = scores if self._told is not None else None
        self._width = scores.shape[1]
        self._collected.append(_Examples(decided, labels, told, kept))

    def record_run(
        self,
        root: Path | str,
        spec: RunSpec,
        *,
        prior: ClassPrior,
        data: str,
        class_names: Sequence[str] | None = None,
        head: str | None = None,
        force: bool = False,
    ) -> None:
        """Make a run folder of the coming training, in ``root / spec.folder``.

        Args:
            root: the folder of runs.
            spec: what decides the result, in your words: data set, model, method, recipe, seed.
            prior: of the examples that the model trains on.
            data: fingerprint of the training data (`longtail.runs.fingerprint`); runs with the
                same one compare.
            class_names: one per class, for reports.
            head: name of the last linear layer, such as ``net.fc``; its norms and bias are
                stored beside the logits, for weight normalization.
            force: replace a run that is there already.
        """
        if head is not None:
            effective_weight_and_bias(self.get_submodule(head))  # refuses what has no rows
        self._told = {"root": Path(root), "spec": spec, "prior": _checks.prior(prior), "data": data}
        self._told |= {"class_names": class_names, "force": force}
        self._folder, self._head = Path(root) / spec.folder, head

    @property
    def _recording(self) -> bool:
        """True if a run is recorded; a `fast_dev_run` leaves nothing behind."""
        return self._told is not None and not self.trainer.fast_dev_run

    # Lightning's hooks, in the order in which they come.

    def on_train_start(self) -> None:
        """Open the run folder."""
        # An earlier fit's validation tells nothing of the weights at the end of this one.
        self._collected, self._collected_at = [], None
        if self._recording:
            self._first_process(self._open_run)

    def on_train_epoch_start(self) -> None:
        """Begin the mean of the training loss."""
        self._losses = (0.0, 0)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Add to the mean of the training loss."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if self._recording and isinstance(loss, Tensor):
            total, count = self._losses
            self._losses = (total + loss.detach(), count + 1)  # on the device: no waiting

    def on_validation_epoch_start(self) -> None:
        """Forget the batches of the evaluation before."""
        self._collected = []

    on_test_epoch_start = on_validation_epoch_start

    def on_validation_epoch_end(self) -> None:
        """Log the balanced error."""
        if self.trainer.sanity_checking:
            self._collected = []
        else:
            self._latest_error = self._judge("val")
            self._collected_at = self.trainer.global_step

    def on_train_epoch_end(self) -> None:
        """Write a line of the run's log."""
        if not self._recording:
            return
        total, count = self._losses
        line: dict[str, Any] = {"epoch": self.current_epoch + 1}
        if count:
            line["loss"] = float(np.mean(_of_all_processes(float(total) / count)))
        if self._latest_error is not None:
            line["val_balanced_error"] = self._latest_error
        self._latest_error = None
        self._first_process(lambda: self._writer.log(**line))

    def on_train_end(self) -> None:
        """Write the weights and the last validation's logits, and finish the run."""
        if not self._recording:
            return
        split = self._whole("val") if self._collected_at == self.trainer.global_step else None
        if split is None and any(_of_all_processes(bool(self._collected))):
            _logger.warning(
                "LongTailMixin: training went on after the last validation, so its logits are "
                "not those of the run's weights and are left out of the run folder."
            )
        self._first_process(lambda: self._finish_run(split))

    def on_test_epoch_end(self) -> None:
        """Log the balanced error, and add the logits to the run folder."""
        if self._judge("test") is not None and self._recording:
            split = self._whole("test")
            self._first_process(lambda: self._add_test(split))

    # The evaluation.

    def _judge(self, stage: Literal["val", "test"]) -> float | None:
        """Return and log the balanced error of what was collected; None if nothing was."""
        split = self._whole(stage, logits=False)
        if split is None:
            rank_zero_warn(
                f"LongTailMixin: nothing was collected, so there is no {stage}_balanced_error; "
                f"call self.collect(logits, target) in {stage.replace('val', 'validation')}_step."
            )
            return None
        if np.any(split.decided < 0):
            raise InputError(
                f"LongTailMixin: some {stage} logits are not finite; the training has diverged."
            )
        error = metrics.balanced_error(
            split.target,
            split.decided,
            num_classes=max(_of_all_processes(self._width)),
            missing="skip" if self.trainer.fast_dev_run else self.missing,
        )
        # Every process has computed the same; Lightning wants to be told how to reduce it.
        self.log(f"{stage}_balanced_error", error, prog_bar=True, sync_dist=True)
        return float(error)

    def _whole(self, stage: str, *, logits: bool = True) -> _Examples | None:
        """Return the examples of all processes; None if nothing was collected."""
        mine = None
        if self._collected:
            mine = _joined(self._collected)
            if mine.indices is None:
                loader = getattr(self.trainer, f"{stage}_dataloaders")
                mine = mine._replace(indices=_positions(loader, len(mine.target)))
            self._collected = [mine]
            mine = mine if logits else mine._replace(logits=None)
        there = [part for part in _of_all_processes(mine) if part is not None]
        return _together(there) if there else None

    # The run folder; only the first process writes.

    def _open_run(self) -> None:
        device = str(getattr(self, "device", "cpu"))
        if self.trainer.ckpt_path is not None and (self._folder / "run.json").exists():
            self._writer = RunWriter.resume(self._folder, self._told["spec"], device=device)
            self._writer.rewind_log(lambda line: line.get("epoch", 0) <= self.current_epoch)
        else:
            self._writer = RunWriter.create(**self._told, device=device)

    def _finish_run(self, split: _Examples | None) -> None:
        state = self.state_dict().items()
        self._writer.write_model({k: v for k, v in state if isinstance(v, Tensor)})
        if split is not None:
            self._write_split(self._writer, "held-out", split, replace=True)
        self._writer.finish(parameters=sum(p.numel() for p in self.parameters()))
        self._writer = None

    def _add_test(self, split: Any) -> None:
        kept = Run.open(self._folder, verify=False).model()
        for name, value in self.state_dict().items():
            if name not in kept or not np.array_equal(_checks.as_numpy(value), kept[name]):
                raise InputError(
                    f"LongTailMixin: the weights under test are not those at the end of the "
                    f"training that {self._folder} holds ({name} differs); test with the last "
                    f"weights, trainer.test(module, ...), or leave record_run out."
                )
        self._write_split(
            RunWriter.reopen(self._folder), "test", split, replace=self._told["force"]
        )

    def _write_split(
        self, writer: RunWriter, name: str, split: _Examples, *, replace: bool
    ) -> None:
        norms = bias = None
        if self._head is not None:
            weight, bias = effective_weight_and_bias(self.get_submodule(self._head))
            norms = weight.detach().double().norm(dim=1)
            bias = None if bias is None else bias.detach().double()
        writer.write_logits(
            name,
            split.logits,
            split.target,
            indices=split.indices,
            norms=norms,
            bias=bias,
            replace=replace,
        )

    def _first_process(self, action: Callable[[], None]) -> None:
        """Do it in the first process; if it fails there, fail in all, so that none waits."""
        failed: BaseException | None = None
        if self.trainer.is_global_zero:
            try:
                action()
            except Exception as error:
                failed = error
        for failure in _of_all_processes(failed):
            if failure is not None:
                raise failure


def _of_all_processes(value: Any) -> list[Any]:
    """Return the values of all processes, in the order of their ranks."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return [value]
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, value)
    return found


# Which examples a process has evaluated, and those of all processes together.


class _Examples(NamedTuple):
    """Examples of a batch, of a process's part of a split, or of all of it."""

    decided: IntArray  # class of the largest logit, or -1 if they are not finite
    target: IntArray
    indices: IntArray | None  # position in the data set, where that is known
    logits: NDArray[Any] | None = None


def _joined(parts: Sequence[_Examples]) -> _Examples:
    """Return examples one after another, with what all parts have."""
    columns: list[Any] = []
    for column in zip(*parts, strict=True):
        lacking = any(part is None for part in column)
        columns.append(None if lacking else np.concatenate(column))
    return _Examples(*columns)


def _together(parts: Sequence[_Examples]) -> _Examples:
    """Return the parts of all processes, each example once and in the order of its data set."""
    whole = _joined(parts)
    if whole.indices is None:
        if len(parts) > 1:
            raise InputError(
                "LongTailMixin: in several processes the examples have to be told apart, and their "
                "loader's sampler does not say which they are; pass collect(..., indices=...), the "
                "position of each in its data set."
            )
        return whole
    _, first, place = np.unique(whole.indices, return_index=True, return_inverse=True)
    if not np.array_equal(whole.target[first[place]], whole.target):
        raise InputError(
            "LongTailMixin: examples at the same position have different labels, as if each "
            "process had a data set of its own; pass collect(..., indices=...), the position "
            "of each in the data of all."
        )
    columns: list[Any] = [None if column is None else column[first] for column in whole]
    return _Examples(*columns)


def _positions(loaders: Any, rows: int) -> IntArray | None:
    """Return where the first examples of a loader are in its data set; None if that is not known.

    Beside a batch sampler a DataLoader always has a SequentialSampler, which nobody asks: the order
    is the batch sampler's own, and only torch's leaves it as its sampler says.
    """
    loader = loaders[0] if isinstance(loaders, list) and len(loaders) == 1 else loaders
    sampler, batches = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    if batches is not None:
        sampler = batches.sampler if type(batches) is BatchSampler else None
    if not isinstance(sampler, DistributedSampler | SequentialSampler):
        return None
    with torch.random.fork_rng(devices=[]):  # what is drawn afterwards must not change
        found, again = (np.fromiter(iter(sampler), np.int64) for _ in range(2))
    # One that draws anew on each pass, such as Lightning's wrapper of a random choice, no longer
    # knows what it dealt out.
    known = len(found) >= rows and np.array_equal(found, again)
    return found[:rows] if known else None
