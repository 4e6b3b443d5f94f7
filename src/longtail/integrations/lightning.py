"""For Lightning: the balanced error and a run folder as a mixin; DRW as a callback.

Nothing here trains, and the losses go into a LightningModule as they are. In several processes
every example is judged once: what a sampler repeats to fill up the last batch is taken out again.
Which examples a process has is found out in `_lightning_examples`; the callback is in
`_lightning_drw`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from longtail import _checks, metrics
from longtail._checks import InputError, IntArray
from longtail.priors import ClassPrior
from longtail.runs import Run, RunSpec, RunWriter

_checks.require("torch", extra="torch", caller=__name__)
_checks.require("lightning", extra="lightning", caller=__name__)

import torch
from torch import Tensor, distributed

from longtail.integrations._lightning_drw import (
    DeferredReweighting as DeferredReweighting,
)
from longtail.integrations._lightning_examples import (
    Batch,
    Examples,
    positions,
    shares_out,
    together,
)
from longtail.models.heads import effective_weight_and_bias

__all__ = ["DeferredReweighting", "LongTailMixin"]

_logger = logging.getLogger("longtail")


@dataclass(frozen=True)
class _Recording:
    """What `record_run` was told."""

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
    get_submodule: Callable[[str], torch.nn.Module]
    named_modules: Callable[[], Any]
    parameters: Callable[[], Any]
    state_dict: Callable[[], dict[str, Tensor]]

    _collected: list[Batch] | None = None
    _collected_at: int | None = None
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
        caller = "LongTailMixin.collect"
        # Whether they are finite is judged at the end, in all processes together.
        scores = _checks.matrix(logits, caller=caller, finite=False)
        labels = _checks.labels(target, caller=caller)
        _checks.same_length(scores, labels, caller=caller)
        told = None
        if indices is not None:
            told = _checks.labels(indices, caller=caller, name="indices")
        batch = Batch.of(scores, labels, told, whole=self._told is not None)
        if self._collected is None:
            self._collected = []
        if self._collected and self._collected[0].num_classes != batch.num_classes:
            raise InputError(
                f"{caller}: `logits` has {batch.num_classes} columns, but had in the batches "
                f"before {self._collected[0].num_classes}; an evaluation is of one set of classes."
            )
        self._collected.append(batch)

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
        self._told = _Recording(
            Path(root),
            spec,
            _checks.prior(prior, "LongTailMixin.record_run"),
            data,
            class_names,
            head,
            force,
        )

    @property
    def _recording(self) -> _Recording | None:
        """What to record; a `fast_dev_run` is no training and leaves nothing behind."""
        return None if self.trainer.fast_dev_run else self._told

    def _head(self, name: str) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the last layer; refuses what has no rows."""
        try:
            module = self.get_submodule(name)
        except AttributeError as error:
            linear = (
                key
                for key, part in self.named_modules()
                if getattr(getattr(part, "weight", None), "ndim", 0) == 2
            )
            raise InputError(
                f"LongTailMixin.record_run: the module has no part {name!r} for `head`; its "
                f"linear layers are {_checks.listing(map(repr, reversed(list(linear))), most=5)}."
            ) from error
        return effective_weight_and_bias(module)

    # Lightning's hooks, in the order in which they come.

    def on_train_start(self) -> None:
        """Open the run folder."""
        # An earlier fit's validation tells nothing of the weights at the end of this one.
        self._collected = self._collected_at = None
        if self._recording is not None:
            self._first_process(lambda: self._open_run(self._recording))

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
                split = together(_of_all_processes(self._with_logits(mine)))
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
            split = together(_of_all_processes(self._with_logits(self._mine("test"))))
            self._first_process(lambda: self._add_test(split))

    # The evaluation.

    def _judge(self, stage: Literal["val", "test"]) -> bool:
        """Log the balanced error of what was collected; False if nothing was."""
        mine = self._mine(stage)
        batches = self._collected or []
        facts = _of_all_processes(
            (batches[0].num_classes, all(batch.finite for batch in batches)) if batches else None
        )
        known = [fact for fact in facts if fact is not None]
        if not known:
            self._tell_of_nothing(stage)
            return False
        if not all(finite for _, finite in known):
            raise InputError(
                f"LongTailMixin: some {stage} logits are not finite; the training has diverged."
            )
        split = together(_of_all_processes(mine))
        missing = "skip" if self.trainer.fast_dev_run else self.missing
        self._refuse_missing(split.target, known[0][0], missing, stage)
        error = metrics.balanced_error(
            split.target, split.scores, num_classes=known[0][0], missing=missing
        )
        if stage == "val":
            self._latest_error = error
        # Every process has computed the same; Lightning wants to be told how to reduce it.
        self.log(f"{stage}_balanced_error", error, prog_bar=True, sync_dist=True)
        return True

    def _tell_of_nothing(self, stage: Literal["val", "test"]) -> None:
        """Say once that there is no error to log; it may be meant, so it stops no training."""
        if stage in self._told_of_nothing or not self.trainer.is_global_zero:
            return
        self._told_of_nothing += (stage,)
        step = "validation_step" if stage == "val" else "test_step"
        _logger.warning(
            f"LongTailMixin: nothing was collected, so there is no {stage}_balanced_error; call "
            f"self.collect(logits, target) in {step}."
        )

    def _refuse_missing(self, target: IntArray, width: int, missing: str, stage: str) -> None:
        absent = np.setdiff1d(np.arange(width), target)
        if missing == "error" and len(absent):
            raise InputError(
                f"LongTailMixin: {len(absent)} of {width} classes have no {stage} examples: "
                f'{_checks.listing(absent.tolist())}; set `missing = "skip"` in your class to '
                f"leave them out of the balanced error, or evaluate on more data."
            )

    def _mine(self, stage: Literal["val", "test"]) -> Examples | None:
        """What this process's logits decide, and which examples that is: as told, or as found."""
        batches = self._collected
        if not batches:
            return None
        decided = np.concatenate([batch.decided for batch in batches])
        target = np.concatenate([batch.target for batch in batches])
        told = [batch.indices for batch in batches if batch.indices is not None]
        if len(told) == len(batches):
            return Examples(decided, target, np.concatenate(told))
        loader = self._loader(stage)
        shared = shares_out(loader, self.trainer.world_size)
        marks = None if shared else np.concatenate([batch.marks for batch in batches])
        return Examples(decided, target, positions(loader, len(target)), marks)

    def _with_logits(self, mine: Examples | None) -> Examples | None:
        """The same examples with their logits, which may be large: the batches are let go of."""
        if mine is None:
            return None
        batches, self._collected = self._collected or [], None
        kept = [batch.logits for batch in batches if batch.logits is not None]
        return mine._replace(scores=np.concatenate(kept))

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

    def _open_run(self, recording: _Recording | None) -> None:
        recording = self._the_recording(recording)
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

    def _finish_run(self, split: Examples | None) -> None:
        writer = self._the_writer()
        state = self.state_dict().items()
        writer.write_model({k: v for k, v in state if isinstance(v, Tensor)})
        if split is not None:
            self._write_split(writer, "held-out", split, replace=True)
        writer.finish(parameters=sum(p.numel() for p in self.parameters()))
        self._writer = None

    def _add_test(self, split: Examples) -> None:
        recording = self._the_recording(self._recording)
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

    def _write_split(self, writer: RunWriter, name: str, split: Examples, *, replace: bool) -> None:
        norms = bias = None
        head = self._the_recording(self._recording).head
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

    def _the_recording(self, recording: _Recording | None) -> _Recording:
        if recording is None:
            raise InputError("LongTailMixin: call record_run before the training.")
        return recording

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
    """What each process passed, in the order of their ranks."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return [value]
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, value)
    return found
