"""For Lightning: the balanced error and a run folder as a mixin; DRW as a callback.

Nothing here trains, and the losses go into a LightningModule as they are. In several processes
every example is judged once: repetitions that a sampler makes to fill up the last batch are taken
out again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
        self._weighed: PairwiseMarginLoss | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Give the loss weights of one, which move with it to its device."""
        if stage != "fit":
            return
        found = self._found(pl_module)
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
        """Fill in the weights: a training that is resumed within an epoch does not start one."""
        weights = self.method.class_weights(
            self.prior, trainer.current_epoch, trainer.max_epochs or 0
        )
        found = self._found(pl_module)
        if found.weight is None:
            raise InputError("DeferredReweighting: the loss was replaced during training.")
        found.weight.copy_(torch.ones(()) if weights is None else torch.as_tensor(weights))

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Fill in the weights of this epoch."""
        self.on_train_start(trainer, pl_module)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave the loss as it was, for whatever is done with it next."""
        if self._weighed is not None:
            self._weighed.register_buffer("weight", None)
        self._weighed = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Likewise: a fit that fails or is interrupted has no teardown, and may be repeated."""
        self.teardown(trainer, pl_module, "fit")

    def _found(self, pl_module: Any) -> PairwiseMarginLoss:
        """The one loss of the module."""
        parts = pl_module.named_modules()
        losses = {name: part for name, part in parts if isinstance(part, PairwiseMarginLoss)}
        if self.loss is None and len(losses) == 1:
            return next(iter(losses.values()))
        if self.loss in losses:
            return losses[self.loss]
        named = "" if self.loss is None else f" called {self.loss!r}"
        raise InputError(
            f"DeferredReweighting: the LightningModule must have one loss of longtail.losses"
            f"{named}; there: {_checks.listing(losses) or 'none'}."
            f"{' Say which with `loss`.' if len(losses) > 1 else ''}"
        )


@dataclass(frozen=True)
class _Recording:
    """The arguments of `record_run`."""

    root: Path
    spec: RunSpec
    prior: ClassPrior
    data: str
    class_names: Sequence[str] | None
    head: str | None
    force: bool

    @property
    def folder(self) -> Path:
        return self.root / self.spec.folder


class LongTailMixin:
    """For a LightningModule: the balanced error of each evaluation, and a run folder.

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

    Behind `LightningModule` its hooks would never be called, so that order is a TypeError. An
    evaluation from which nothing was collected is told in a warning, once. A hook of your own with
    a name that this class has (`on_validation_epoch_end` and the like) has to call super's.

    Attributes:
        missing: as in `balanced_error`: what to do about classes without examples.
    """

    missing: Literal["error", "skip"] = "error"

    trainer: Any
    current_epoch: int
    log: Callable[..., None]
    named_modules: Callable[[], Any]
    parameters: Callable[[], Any]
    state_dict: Callable[[], dict[str, Tensor]]

    _collected: list[_Examples] | None = None
    _collected_at: int | None = None
    _width: int = 0
    _finite: bool = True
    _told: _Recording | None = None
    _writer: RunWriter | None = None
    _losses: tuple[Any, int] = (0.0, 0)
    _latest_error: float | None = None
    _told_of_nothing: tuple[str, ...] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse an order of bases in which LightningModule's empty hooks come first."""
        super().__init_subclass__(**options)
        before = cls.__mro__[1 : cls.__mro__.index(LongTailMixin)]
        if any(map(_is_lightning_module, before)):
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
        # Whether they are finite is judged at the end, in all processes together.
        scores = _checks.matrix(logits, finite=False)
        labels = _checks.labels(target)
        _checks.same_length(scores, labels)
        told = None if indices is None else _checks.labels(indices, name="indices")
        if not self._collected:
            self._collected, self._width, self._finite = [], scores.shape[1], True
        if scores.shape[1] != self._width:
            raise InputError(
                f"LongTailMixin.collect: `logits` has {scores.shape[1]} columns, but had in the "
                f"batches before {self._width}; an evaluation is of one set of classes."
            )
        self._finite = self._finite and bool(np.isfinite(scores).all())
        kept = scores if self._told is not None else scores.argmax(axis=1)
        self._collected.append(_Examples(kept, labels, told))

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
            self._head(head)
        prior = _checks.prior(prior)
        self._told = _Recording(Path(root), spec, prior, data, class_names, head, force)

    @property
    def _recording(self) -> _Recording | None:
        """Arguments of `record_run`; a `fast_dev_run` leaves nothing behind."""
        return None if self.trainer.fast_dev_run else self._told

    def _head(self, name: str) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the last layer; refuses what has no rows."""
        parts = dict(self.named_modules())
        if name not in parts:
            linear = (k for k, part in parts.items() if isinstance(part, torch.nn.Linear))
            raise InputError(
                f"LongTailMixin.record_run: the module has no part {name!r} for `head`; its "
                f"linear layers are {_checks.listing(map(repr, linear), most=5)}."
            )
        return effective_weight_and_bias(parts[name])

    # Lightning's hooks, in the order in which they come.

    def on_train_start(self) -> None:
        """Open the run folder."""
        # An earlier fit's validation tells nothing of the weights at the end of this one.
        self._collected = self._collected_at = None
        recording = self._recording
        if recording is not None:
            self._first_process(lambda: self._open_run(recording))

    def on_train_epoch_start(self) -> None:
        """Begin the mean of the training loss."""
        self._losses = (0.0, 0)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Add to the mean of the training loss."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if self._recording is not None and isinstance(loss, Tensor):
            total, count = self._losses
            self._losses = (total + loss.detach(), count + 1)  # on the device: no waiting

    def on_validation_epoch_start(self) -> None:
        """Forget the batches of the evaluation before."""
        self._collected = None

    def on_validation_epoch_end(self) -> None:
        """Log the balanced error."""
        if self.trainer.sanity_checking:
            self._collected = None
        else:
            self._judge("val")
            self._collected_at = self.trainer.global_step

    def on_train_epoch_end(self) -> None:
        """Write a line of the run's log."""
        if self._recording is None:
            return
        total, count = self._losses
        means = _of_all_processes(float(total) / count) if count else []
        line: dict[str, Any] = {"epoch": self.current_epoch + 1}
        if means:
            line["loss"] = float(np.mean(means))
        if self._latest_error is not None:
            line["val_balanced_error"] = self._latest_error
        self._latest_error = None
        self._first_process(lambda: self._the_writer().log(**line))

    def on_train_end(self) -> None:
        """Write the weights and the last validation's logits, and finish the run."""
        if self._recording is None:
            return
        mine = self._mine("val")
        split = None
        if any(_of_all_processes(mine is not None)):
            if self._collected_at == self.trainer.global_step:
                split = _together(_of_all_processes(mine))
            else:
                _logger.warning(
                    "LongTailMixin: training went on after the last validation, so its logits are "
                    "not those of the run's weights and are left out of the run folder."
                )
        self._first_process(lambda: self._finish_run(split))

    def on_test_epoch_start(self) -> None:
        """Forget the batches of the evaluation before."""
        self._collected = None

    def on_test_epoch_end(self) -> None:
        """Log the balanced error, and add the logits to the run folder."""
        if self._judge("test") and self._recording is not None:
            split = _together(_of_all_processes(self._mine("test")))
            self._first_process(lambda: self._add_test(split))

    # The evaluation.

    def _judge(self, stage: Literal["val", "test"]) -> bool:
        """Log the balanced error of what was collected; False if nothing was."""
        mine = self._mine(stage)
        found = _of_all_processes((self._width, self._finite) if mine is not None else None)
        known = [facts for facts in found if facts is not None]
        if not known:
            self._tell_of_nothing(stage)
            return False
        if not all(finite for _, finite in known):
            raise InputError(
                f"LongTailMixin: some {stage} logits are not finite; the training has diverged."
            )
        split = _together(_of_all_processes(None if mine is None else mine.decided()))
        width, missing = known[0][0], "skip" if self.trainer.fast_dev_run else self.missing
        absent = np.setdiff1d(np.arange(width), split.target)
        if missing == "error" and len(absent):
            raise InputError(
                f"LongTailMixin: {len(absent)} of {width} classes have no {stage} examples: "
                f'{_checks.listing(absent.tolist())}; set `missing = "skip"` in your class to '
                f"leave them out of the balanced error, or evaluate on more data."
            )
        error = metrics.balanced_error(
            split.target, split.scores, num_classes=width, missing=missing
        )
        if stage == "val":
            self._latest_error = error
        # Every process has computed the same; Lightning wants to be told how to reduce it.
        self.log(f"{stage}_balanced_error", error, prog_bar=True, sync_dist=True)
        return True

    def _tell_of_nothing(self, stage: Literal["val", "test"]) -> None:
        """Say once that there is no error to log; it may be meant, so it stops no training."""
        if stage not in self._told_of_nothing and self.trainer.is_global_zero:
            self._told_of_nothing += (stage,)
            step = "validation_step" if stage == "val" else "test_step"
            _logger.warning(
                f"LongTailMixin: nothing was collected, so there is no {stage}_balanced_error; "
                f"call self.collect(logits, target) in {step}."
            )

    def _mine(self, stage: Literal["val", "test"]) -> _Examples | None:
        """This process's examples, and which they are: as told, or as found."""
        if not self._collected:
            return None
        scores, target = (np.concatenate([batch[i] for batch in self._collected]) for i in (0, 1))
        self._collected = [_Examples(scores, target, self._indices(stage, len(target)))]
        return self._collected[0]

    def _indices(self, stage: Literal["val", "test"], rows: int) -> IntArray | None:
        told = [batch.indices for batch in self._collected or () if batch.indices is not None]
        if len(told) == len(self._collected or ()):
            return np.concatenate(told)
        return _positions(self._loader(stage), rows)

    def _loader(self, stage: Literal["val", "test"]) -> Any:
        """The one loader of an evaluation."""
        loaders = self.trainer.val_dataloaders if stage == "val" else self.trainer.test_dataloaders
        if not isinstance(loaders, list | tuple | dict):
            return loaders
        if len(loaders) != 1:
            raise InputError(
                f"LongTailMixin: there are {len(loaders)} {stage} loaders; the balanced "
                f"error is of one data set, so pass one loader, or collect from one only and "
                f"say which examples they are with collect(..., indices=...)."
            )
        return next(iter(loaders.values() if isinstance(loaders, dict) else loaders))

    # The run folder; only the first process writes.

    def _open_run(self, recording: _Recording) -> None:
        device = str(getattr(self, "device", "cpu"))
        if self.trainer.ckpt_path is not None and (recording.folder / "run.json").exists():
            self._writer = RunWriter.resume(recording.folder, recording.spec, device=device)
            self._writer.rewind_log(lambda line: line.get("epoch", 0) <= self.current_epoch)
            return
        self._writer = RunWriter.create(
            recording.root,
            recording.spec,
            prior=recording.prior,
            data=recording.data,
            device=device,
            class_names=recording.class_names,
            force=recording.force,
        )

    def _finish_run(self, split: _Examples | None) -> None:
        writer = self._the_writer()
        state = self.state_dict().items()
        writer.write_model({k: v for k, v in state if isinstance(v, Tensor)})
        if split is not None:
            self._write_split(writer, "held-out", split, replace=True)
        writer.finish(parameters=sum(p.numel() for p in self.parameters()))
        self._writer = None

    def _add_test(self, split: _Examples) -> None:
        recording = self._told
        assert recording is not None
        run = Run.open(recording.folder, verify=False)
        kept = run.model()
        for name, value in self.state_dict().items():
            if name not in kept or not np.array_equal(_checks.as_numpy(value), kept[name]):
                raise InputError(
                    f"LongTailMixin: the weights under test are not those at the end of the "
                    f"training that {recording.folder} holds ({name} differs); test with the "
                    f"last weights, trainer.test(module, ...), or leave record_run out."
                )
        self._write_split(
            RunWriter.reopen(recording.folder), "test", split, replace=recording.force
        )

    def _write_split(
        self, writer: RunWriter, name: str, split: _Examples, *, replace: bool
    ) -> None:
        norms = bias = None
        head = None if self._told is None else self._told.head
        if head is not None:
            weight, bias = self._head(head)
            norms = weight.detach().double().norm(dim=1)
        writer.write_logits(
            name,
            split.scores,
            split.target,
            indices=split.indices,
            norms=norms,
            bias=None if bias is None else bias.detach().double(),
            replace=replace,
        )

    def _the_writer(self) -> RunWriter:
        if self._writer is None:
            raise InputError("LongTailMixin: call record_run before the training, not during it.")
        return self._writer

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


def _is_lightning_module(base: type) -> bool:
    """Lightning's own class; by name, since pytorch_lightning has one of its own."""
    package = base.__module__.partition(".")[0]
    return base.__name__ == "LightningModule" and package in ("lightning", "pytorch_lightning")


def _of_all_processes(value: Any) -> list[Any]:
    """The values of all processes, in the order of their ranks."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return [value]
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, value)
    return found


# Which examples a process has evaluated, and those of all processes together.


class _Examples(NamedTuple):
    """A batch, a process's part of a split, or all of it.

    Attributes:
        scores: logits, shape (examples, num_classes); or what they decide, shape (examples,).
        target: labels, shape (examples,).
        indices: position in the data set, shape (examples,), where that is known.
    """

    scores: NDArray[Any]
    target: IntArray
    indices: IntArray | None

    def decided(self) -> _Examples:
        """The same with the class of the largest logit in place of the logits."""
        return self._replace(scores=self.scores.argmax(1)) if self.scores.ndim == 2 else self


def _positions(loader: Any, rows: int) -> IntArray | None:
    """Where a loader's first examples are in its data set; None if its sampler does not say."""
    sampler = _sampler(loader)
    if not isinstance(sampler, DistributedSampler | SequentialSampler):
        return None
    with torch.random.fork_rng(devices=[]):  # what is drawn afterwards must not change
        found, again = (np.fromiter(iter(sampler), np.int64) for _ in range(2))
    # One that draws anew on each pass, such as Lightning's wrapper of a random choice, no longer
    # knows what it dealt out.
    known = len(found) >= rows and np.array_equal(found, again)
    return found[:rows] if known else None


def _sampler(loader: Any) -> Any:
    """The sampler that decides the order of a loader's examples; None if that is not known.

    Beside a batch sampler a DataLoader always has a SequentialSampler, which nobody asks: the order
    is the batch sampler's own, and only torch's leaves it as its sampler says.
    """
    batches = getattr(loader, "batch_sampler", None)
    if batches is None:  # not cut into batches
        return getattr(loader, "sampler", None)
    return batches.sampler if type(batches) is BatchSampler else None


def _together(parts: Sequence[_Examples | None]) -> _Examples:
    """The parts of all processes, each example once and in the order of its data set.

    Args:
        parts: one for each process, None where it has no examples.
    """
    there = [part for part in parts if part is not None]
    scores, target = (np.concatenate([part[i] for part in there]) for i in (0, 1))
    known = [part.indices for part in there if part.indices is not None]
    if len(known) == len(there):
        indices = np.concatenate(known)
        order, first, place = np.unique(indices, return_index=True, return_inverse=True)
        twins = first[place]
        if not np.array_equal(target[twins], target):
            raise InputError(
                "LongTailMixin: examples at the same position have different labels, as if each "
                "process had a data set of its own; pass collect(..., indices=...), the position "
                "of each in the data of all."
            )
        return _Examples(scores[first], target[first], order)
    if len(there) > 1:
        raise InputError(
            "LongTailMixin: in several processes the examples have to be told apart, and their "
            "loader's sampler does not say which they are; pass collect(..., indices=...), the "
            "position of each in its data set."
        )
    return _Examples(scores, target, None)
