"""Training runs into their folders, whatever the method, the data set and the number of runs.

`train_cohort` trains several runs of one data set; a single run is a cohort of one. On a CPU
the runs follow one another, on a GPU they train together, with the same results up to rounding;
photographs from disk train one run at a time, in as many processes as share it (`distributed`).
Training never sees a test set: `evaluate` opens it later, from the finished run's folder.

A run's randomness comes from its seed, a purpose and the epoch, never from a global generator:
what its neighbours do can't change it, and two methods with one seed start from the same
weights and see the same batches, so that their difference is paired.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from longtail import _checks, metrics
from longtail._checks import InputError
from longtail.data.lists import ListedImages
from longtail.data.subsets import held_out_split
from longtail.priors import ClassPrior
from longtail.runs import Run, RunError, RunSpec, RunWriter, files
from longtail.runs.folder import same_training
from longtail.runs.naming import method_words

_checks.require("torch", extra="torch")

import torch
from torch import Tensor

from longtail.models.stacked import can_stack
from longtail.train import checkpoint
from longtail.train.cuda_graphs import Stepper
from longtail.train.distributed import ALONE, World
from longtail.train.evaluation import (
    Head,
    Images,
    evaluate,
    network_logits,
    split_logits,
    write_split,
)
from longtail.train.loop import Training, run_epoch
from longtail.train.methods import Method
from longtail.train.plan import Planner, stream_seed
from longtail.train.prefetch import Resident
from longtail.train.recipe import Recipe, unreached_rates
from longtail.train.streamed import StreamedTraining, Streaming
from longtail.train.teachers import TeacherPool
from longtail.train.validate import precision_of, validate

__all__ = [
    "EpochEnd",
    "Progress",
    "StoppedError",
    "device_words",
    "evaluate",
    "network_logits",
    "precision_of",
    "train",
    "train_cohort",
    "validate",
]

logger = logging.getLogger("longtail")

TOGETHER = 16  # runs at once on a GPU; more only wait for each other
Progress = Callable[[float, int, str], None]


class StoppedError(Exception):
    """`stop` asked for it; every run was saved after its last whole epoch."""


@dataclass(frozen=True)
class EpochEnd:
    """What is known of a run after an epoch.

    Attributes:
        spec: of the run.
        folder: of the run.
        epoch: how many are done.
        epochs: how many there will be.
        loss: mean loss of the epoch's examples.
        held_out_error: balanced error on the held-out part, where it was measured.
        rate: learning rate of the epoch's last step.
    """

    spec: RunSpec
    folder: Path
    epoch: int
    epochs: int
    loss: float
    held_out_error: float | None
    rate: float


@dataclass
class _Job:
    """A run to train: its part of the data, and how far it is.

    `writer` is None in processes that leave the writing to the first one.
    """

    spec: RunSpec
    folder: Path
    planner: Planner
    held: Any  # the held-out images and their rows, or None
    writer: RunWriter | None
    start: checkpoint.Checkpoint | None
    epoch: int = 0
    seconds: float = 0.0
    diverged: bool = False

    @property
    def recipe(self) -> Recipe:
        return self.planner.recipe

    @property
    def alike(self) -> tuple[object, ...]:
        """Equal for runs that can step as one: settings are their precision and teachers."""
        # What can't be stacked steps by itself.
        alone = () if can_stack(self.recipe.model) else (id(self),)
        sizes = tuple(self.planner.batch_sizes)
        return self.recipe.stack_values, self.spec.settings, sizes, self.epoch, alone


@dataclass
class _Group:
    """Runs that step as one, in their training's order."""

    jobs: list[_Job]
    stepper: Stepper
    saved: float = field(default_factory=time.monotonic)

    @property
    def epoch(self) -> int:
        return self.jobs[0].epoch

    @property
    def done(self) -> bool:
        at_end = self.epoch >= self.jobs[0].recipe.epochs
        return at_end or all(job.diverged for job in self.jobs)


def train_cohort(
    specs: Sequence[RunSpec],
    images: Images,
    *,
    root: Path | str,
    teachers: Sequence[Run] = (),
    device: torch.device | str = "cpu",
    command: str | None = None,
    force: bool = False,
    together: int = TOGETHER,
    checkpoint_seconds: float = 60.0,
    progress: Progress | None = None,
    after_epoch: Callable[[EpochEnd], None] | None = None,
    within_epoch: bool = False,
    stop: Callable[[], bool] | None = None,
    world: World = ALONE,
    streaming: Streaming | None = None,
) -> list[Run]:
    """Train several runs of one data set, each into its folder below `root`.

    A run that is finished already is opened and not trained again; one that was interrupted goes
    on from its last checkpoint.

    Args:
        specs: what to train; all name the data set that `images` is.
        images: the training set, before anything is held out of it. No test set comes here.
        root: the folder of runs.
        teachers: those of the specs' teachers (see `teachers.with_teachers`) that are not below
            `root`.
        device: where to train.
        command: what to type to do this again, for the record.
        force: train finished and interrupted runs again, from the start.
        together: how many runs share a GPU at a time.
        checkpoint_seconds: how much work an interruption may cost, at epoch ends.
        progress: called as ``progress(epochs done, epochs in all, text)``.
        after_epoch: called after each epoch of each run.
        within_epoch: call `progress` after each step, too, with a part of an epoch: on a CPU or
            with images from disk, where epochs can be long. A GPU may be some steps behind.
        stop: asked after each epoch of all runs that train together; once it says yes, they are
            saved and `StoppedError` is raised.
        world: the processes that train these runs together, each with the same arguments; for
            images on disk. The first one writes, into a folder that all of them see.
        streaming: how images on disk are read; None for the defaults.

    Returns:
        The finished runs, in the order of `specs`.
    """
    device, root = torch.device(device), Path(root)
    folders = [root / spec.folder for spec in specs]
    finished = _finished_of(folders, images, world, force=force)
    waiting = {f: spec for f, spec in zip(folders, specs, strict=True) if f not in finished}
    validate(list(waiting.values()), images, processes=world.count)
    pool = TeacherPool(list(waiting.values()), images, root=root, given=teachers)
    if world.first:
        for folder in finished:
            _tidy(folder, images)
        for told in dict.fromkeys(filter(None, map(unreached_rates, waiting.values()))):
            logger.warning(told)
    at = {} if force else {folder: checkpoint.epochs_done(folder) for folder in waiting}
    total = sum(Recipe.of(spec).epochs for spec in waiting.values())
    report = _Report(progress if waiting else None, after_epoch, at, total)
    on_disk = isinstance(images, ListedImages)
    width = together if device.type == "cuda" and not on_disk else 1
    pending, diverged = list(waiting.items()), list[Path]()
    with explained():
        data = Resident(images, device) if pending and not on_disk else images  # type: ignore[arg-type]
    for first in range(0, len(pending), width):
        wave = dict(pending[first : first + width])
        with ExitStack() as stack:
            for folder in wave if world.first else ():
                stack.enter_context(files.exclusive(folder))
            # Another process may have finished some just before they were claimed.
            done = _finished_of(wave, images, world, force=force)
            stack.enter_context(explained(len(wave) - len(done), on_disk=on_disk))
            jobs = [
                _start(spec, images, root, device, command=command, force=force, world=world)
                for folder, spec in wave.items()
                if folder not in done
            ]
            for job in jobs:
                pool.pin(job.folder, job.spec)
            groups = _group(jobs, data, pool, device=device, world=world, streaming=streaming)
            _train(groups, images, report, within_epoch, checkpoint_seconds, stop, world)
            for group in groups:
                for member in range(len(group.jobs)):
                    _finish(group, member, world)
            diverged += [job.folder for job in jobs if job.diverged]
            groups.clear()  # memory and workers, before the next ones take theirs
    world.wait()  # for what the first process writes: all must find the same runs finished
    if diverged:
        some = len(diverged) < len(set(folders))
        rest = " The others are finished, for `longtail evaluate` to judge." if some else ""
        raise RunError(
            f"train: the loss or the weights of {len(diverged)} run(s) became infinite or NaN, so "
            f"they stay unfinished: {', '.join(map(str, diverged))}.{rest} A lower lr or a longer "
            f"warm-up (override lr or warmup_epochs) may help."
        )
    return [Run.open(folder, verify=False) for folder in folders]


def train(spec: RunSpec, images: Images, *, root: Path | str, **options: Any) -> Run:
    """Train one run: a cohort of one, see `train_cohort` for the options."""
    (run,) = train_cohort([spec], images, root=root, **options)
    return run


def device_words(device: torch.device, processes: int = 1) -> str:
    """A device as records name it: ``cpu``, ``NVIDIA H200``, ``8 x NVIDIA H200``."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return name if processes == 1 else f"{processes} x {name}"


def _finished_of(
    folders: Iterable[Path], images: Images, world: World, *, force: bool
) -> set[Path]:
    """Which of these runs are finished, as the first process sees it; with `force` none is."""
    if force:
        return set()
    mine = [_is_finished(folder, images) for folder in folders] if world.first else None
    return {folder for folder, done in zip(folders, world.tell(mine), strict=True) if done}


def _is_finished(folder: Path, images: Images) -> bool:
    if not (folder / "run.json").exists():
        return False
    run = Run.open(folder, verify=False, unfinished=True)
    if run.finished:
        same_training(run, images.fingerprint)
    return run.finished


def _tidy(folder: Path, images: Images) -> None:
    """Delete the checkpoints that a kill just before the end left with a finished run."""
    if any(folder.glob("checkpoint-*")):
        # Where only reading is allowed, or another process is at work there, they may stay.
        with suppress(OSError, InputError), files.exclusive(folder):
            if _is_finished(folder, images):
                checkpoint.delete_all(folder)


def _start(
    spec: RunSpec,
    images: Images,
    root: Path,
    device: torch.device,
    *,
    command: str | None,
    force: bool,
    world: World,
) -> _Job:
    """Open the run's folder, anew or where it was left; the first process does, for all."""
    kept, held = np.arange(len(images)), None
    if spec.dataset.held_out:
        kept, rows = held_out_split(
            images.labels, fraction=spec.dataset.held_out, seed=stream_seed(spec.seed, "held-out")
        )
        held = images.take(rows)
    prior = ClassPrior.from_labels(images.labels[kept], num_classes=images.num_classes)
    planner = Planner(
        Recipe.of(spec), Method.of(spec.method), images.labels, kept, prior, seed=spec.seed
    )
    folder, where = root / spec.folder, device_words(device, world.count)
    writer, start = None, None
    if world.first and (folder / "run.json").exists() and not force:
        writer = RunWriter.resume(folder, spec, device=where)
        same_training(Run.open(folder, verify=False, unfinished=True), images.fingerprint)
        start = checkpoint.latest(folder)
        done = 0 if start is None else start.epochs
        writer.rewind_log(lambda line: int(line.get("epoch", 0)) <= done)
        if start is not None:
            logger.info("%s goes on after epoch %d", folder, done)
    elif world.first:
        writer = RunWriter.create(
            root,
            spec,
            prior=prior,
            data=images.fingerprint,
            device=where,
            command=command,
            class_names=images.class_names,
            force=True,
        )
    epochs = world.tell(None if start is None else start.epochs)
    if not world.first and epochs is not None:
        start = checkpoint.Checkpoint(epochs, 0.0, {})  # the first process will send its tensors
    job = _Job(spec, folder, planner, held, writer, start)
    if start is not None:
        job.epoch, job.seconds = start.epochs, start.seconds
    return job


def _group(
    jobs: Sequence[_Job],
    data: Resident | Images,
    pool: TeacherPool,
    *,
    device: torch.device,
    world: World,
    streaming: Streaming | None,
) -> list[_Group]:
    """The jobs in as few groups as they allow, each where it was left."""
    alike: dict[tuple[object, ...], list[_Job]] = {}
    for job in jobs:
        alike.setdefault(job.alike, []).append(job)
    groups = []
    for members in alike.values():
        spec, planners = members[0].spec, [job.planner for job in members]
        how: dict[str, Any] = {"precision": precision_of(spec), "device": device}
        make: Callable[[], Any]
        if isinstance(data, ListedImages):
            how |= {"world": world, "how": streaming}
            make = partial(StreamedTraining, planners[0], data, **how)
        else:
            assert isinstance(data, Resident)
            teachers = pool.ready(spec, members[0].recipe, data, device)
            make = partial(Training, planners, data, teachers=teachers, **how)
        stepper = Stepper(make, device=device, graphs=isinstance(data, Resident))
        with stepper.active():
            for member, job in enumerate(members):
                if job.start is not None:
                    if world.first:
                        own = stepper.training.state(member)
                        checkpoint.check_fits(job.start.tensors, own, folder=job.folder)
                    stepper.training.load_state(member, job.start.tensors)
                    job.start = None
        groups.append(_Group(members, stepper))
    return groups


def _train(
    groups: Sequence[_Group],
    images: Images,
    report: _Report,
    within_epoch: bool,
    checkpoint_seconds: float,
    stop: Callable[[], bool] | None,
    world: World,
) -> None:
    """Take all runs to their last epoch, or to where their loss becomes infinite or NaN."""
    while active := [group for group in groups if not group.done]:
        started = time.monotonic()
        steppers, epochs = [g.stepper for g in active], [g.epoch for g in active]
        losses = run_epoch(steppers, epochs, after_step=report.within if within_epoch else None)
        # A step of SAM takes two passes.
        passes = [2 if job.recipe.sam_rho else 1 for group in active for job in group.jobs]
        share = (time.monotonic() - started) / sum(passes)
        for group, of_group in zip(active, losses, strict=True):
            for member, (job, loss) in enumerate(zip(group.jobs, of_group, strict=True)):
                job.epoch += 1
                job.seconds += share * (2 if job.recipe.sam_rho else 1)
                if not job.diverged:
                    job.diverged = not np.isfinite(loss)
                    _log(group, member, loss, images, report, world)
            due = not group.done and time.monotonic() - group.saved >= checkpoint_seconds
            if world.tell(due):  # all processes take part in it, or none
                _save(group)
        # What is at its end is better finished.
        if stop is not None and not all(group.done for group in groups) and stop():
            for group in groups:
                _save(group)
            raise StoppedError


def _log(
    group: _Group,
    member: int,
    loss: float,
    images: Images,
    report: _Report,
    world: World,
) -> None:
    """Measure the held-out error where it is due, write a line of the log and tell the caller."""
    job, training, error = group.jobs[member], group.stepper.training, None
    # On a GPU an epoch takes a second for many runs, so looking at each would slow it down.
    every = 1 if training.device.type == "cpu" else max(1, job.recipe.epochs // 20)
    if job.held is not None and not job.diverged and (group.done or job.epoch % every == 0):
        with group.stepper.active():
            answers = _held_out_logits(job, training, member, gathered=False)
        # The loss is of the weights before the last step, which may be the one too many.
        job.diverged = world.tell(answers is not None and not np.isfinite(answers).all())
        if answers is not None and not job.diverged:
            error = metrics.balanced_error(job.held.labels, answers, num_classes=images.num_classes)
    line = {"epoch": job.epoch, "loss": loss}
    if error is not None:
        line["held_out_error"] = error
    if training.skipped:
        line["skipped"] = training.skipped
    if job.writer is not None:
        job.writer.log(**line)
    rate = float(training.plans[member].rates[-1])
    report(EpochEnd(job.spec, job.folder, job.epoch, job.recipe.epochs, loss, error, rate))


def _held_out_logits(job: _Job, training: Any, member: int, *, gathered: bool) -> Any:
    where = {"world": training.world, "streaming": training.how} if training.on_disk else {}
    network = training.network(member)
    return split_logits(network, job.held, job.recipe, gathered=gathered, **where)


def _save(group: _Group) -> None:
    training = group.stepper.training
    with group.stepper.active():
        for member, job in enumerate(group.jobs):
            if not job.diverged:
                state = training.saved_state(member)
                if job.writer is not None:
                    checkpoint.save(job.folder, state, epochs=job.epoch, seconds=job.seconds)
    group.saved = time.monotonic()


def _finish(group: _Group, member: int, world: World) -> None:
    """Write the weights and the held-out logits, unless the last step was one too many."""
    job, training, logits = group.jobs[member], group.stepper.training, None
    if job.diverged:
        return
    with group.stepper.active():
        model = training.network(member)
        if job.held is not None:
            logits = _held_out_logits(job, training, member, gathered=True)
        # Every process has a part in these.
        head, weights = Head.of(model, job.recipe), training.saved_weights(model)
        lost = logits is not None and not np.isfinite(logits).all()
        job.diverged = world.tell(lost or not all_finite(weights))
        if job.diverged or job.writer is None:
            return
        job.writer.write_model(weights)
        if logits is not None:
            write_split(job.writer, head, job.held, logits, split="held-out")
    facts = {"parameters": sum(p.numel() for p in model.parameters()), "together": len(group.jobs)}
    if training.on_disk:
        facts["processes"] = world.count
    job.writer.finish(seconds=job.seconds, **facts)
    checkpoint.delete_all(job.folder)


def all_finite(tensors: Mapping[str, Tensor]) -> bool:
    """Whether weights hold neither infinity nor NaN.

    Examples:
        >>> all_finite({"a": torch.ones(2), "b": torch.arange(2)})
        True
        >>> all_finite({"a": torch.tensor([1.0, float("inf")])})
        False
    """
    return all(bool(torch.isfinite(value).all()) for value in tensors.values())


class _Report:
    """Tells the caller how far all runs are, after each epoch and within long ones.

    Args:
        progress: see `train_cohort`, and so the next.
        after_epoch: see there.
        at: the epochs that each run has behind it, by folder.
        total: epochs of all runs.
    """

    def __init__(
        self,
        progress: Progress | None,
        after_epoch: Callable[[EpochEnd], None] | None,
        at: dict[Path, int],
        total: int,
    ) -> None:
        self.progress, self.after_epoch = progress, after_epoch
        self.at, self.total, self.text = at, total, ""
        self.within(0.0)

    def within(self, share: float) -> None:
        """Take in the share of an epoch that is done, of a run that trains by itself."""
        if self.progress is not None and share < 1:  # a whole one is told when it is judged
            done = sum(self.at.values())
            self.progress(done + share if share else done, self.total, self.text)

    def __call__(self, end: EpochEnd) -> None:
        """Take in an epoch of a run."""
        self.at[end.folder] = end.epoch
        if self.after_epoch is not None:
            self.after_epoch(end)
        # On 80 columns a bar leaves room for 36 letters, so what says least comes last.
        held = "" if end.held_out_error is None else f" held-out {end.held_out_error:.1%}"
        run = f"({method_words(end.spec)}, seed {end.spec.seed})"
        self.text = f"loss {end.loss:.2f}{held} epoch {end.epoch}/{end.epochs} {run}"
        self.within(0.0)


@contextmanager
def explained(runs: int = 0, *, on_disk: bool = False) -> Iterator[None]:
    """Turn the failure of a GPU into one line with its cost and a remedy.

    Args:
        runs: how many share it.
        on_disk: whether their images are.
    """
    unlost = "Nothing written is lost: the same command goes on from the last checkpoints."
    try:
        yield
    except torch.OutOfMemoryError as error:
        what = f"{runs} runs at once; train fewer together (--together N, together=N)."
        if runs < 2:
            what = "the data and a run; override batch_size with a smaller one, or train on a CPU."
        if on_disk:
            what = (
                "a part of the batch; take it in smaller ones (--micro-batch N, "
                "Streaming(micro_batch=N))."
            )
        raise RunError(f"train: the GPU's memory does not hold {what} {unlost}") from error
    except RuntimeError as error:
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            said = " ".join(str(error).splitlines()[:2]).rstrip(". ")
            raise RunError(
                f"train: torch.compile failed: {said}. Train without it (--no-compile, "
                f"Streaming(compile=False))."
            ) from error
        if "CUDA" not in str(error) and "cuda" not in str(error):
            raise
        raise RunError(f"train: the GPU failed: {str(error).splitlines()[0]} {unlost}") from error
