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
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail import metrics, models
from longtail.data.images import ImageSet
from longtail.data.lists import ListedImages
from longtail.data.subsets import held_out_split
from longtail.models.stacked import can_stack
from longtail.priors import ClassPrior
from longtail.runs import Run, RunError, RunSpec, RunWriter, files
from longtail.runs.folder import TEACHERS, same_training
from longtail.runs.naming import method_words
from longtail.train import checkpoint
from longtail.train.cuda_graphs import place
from longtail.train.distributed import ALONE, World
from longtail.train.evaluation import Images, evaluate, network_logits
from longtail.train.loop import Training, run_epoch
from longtail.train.methods import Method
from longtail.train.plan import Planner, stream_seed
from longtail.train.prefetch import Resident
from longtail.train.pretrained import SETTING, Weights, check_start, started
from longtail.train.recipe import Recipe, learning_rate, unreached_rates
from longtail.train.streamed import StreamedTraining, Streaming
from longtail.train.teachers import TeacherPool
from longtail.train.validate import validate

__all__ = [
    "EpochEnd",
    "Progress",
    "StoppedError",
    "device_words",
    "evaluate",
    "network_logits",
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
    """State of a run after an epoch.

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


def train_cohort(
    specs: Sequence[RunSpec],
    images: Images,
    *,
    root: Path | str,
    teachers: Sequence[Run] = (),
    weights: Weights | None = None,
    device: torch.device | str = "cpu",
    command: str | None = None,
    force: bool = False,
    together: int = TOGETHER,
    checkpoint_seconds: float = 60.0,
    begin: Callable[[dict[Path, str]], None] | None = None,
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
        weights: what the runs start from, see `pretrained.with_weights`; runs with checkpoints
            don't need them.
        device: where to train.
        command: what to type to do this again, for the record.
        force: train finished and interrupted runs again, from the start.
        together: how many runs share a GPU at a time.
        checkpoint_seconds: how much work an interruption may cost, at epoch ends.
        begin: called once everything is checked and before any work, with what `run_states` says.
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
    folders = {root / spec.folder: spec for spec in specs}
    states = run_states(folders, images, world, force=force)
    waiting = {folder: spec for folder, spec in folders.items() if states[folder] != "finished"}
    validate(list(waiting.values()), images, processes=world.count)
    done = dict.fromkeys(waiting, 0)  # epochs
    for folder, spec in waiting.items():
        if states[folder] == "begun":
            done[folder] = checkpoint.epochs_done(folder)
        if weights is not None:
            check_start(spec, weights)
            weights.fitting_run(spec, images)
        elif SETTING in spec.settings and not done[folder]:  # a run that goes on needs no file
            check_start(spec, None)
    pool = None
    if any(TEACHERS in spec.settings for spec in waiting.values()):
        pool = TeacherPool(list(waiting.values()), images, root=root, given=teachers)
    writes = world.rank == 0
    if writes:
        for folder in folders.keys() - waiting.keys():
            with suppress(OSError):  # where only reading is allowed, they may stay
                checkpoint.delete_all(folder)  # left by a kill just before the end
        for told in dict.fromkeys(unreached_rates(spec) for spec in waiting.values()):
            if told:
                logger.warning(told)
        if begin is not None:
            begin(states)

    total, text = sum(spec.recipe.values["epochs"] for spec in waiting.values()), ""

    def tell(share: float = 0.0, end: EpochEnd | None = None) -> None:
        """Tell the caller what an epoch ended with, and how far all runs are."""
        nonlocal text
        if end is not None:
            done[end.folder] = end.epoch
            # A bar leaves room for 36 letters: what says least comes last.
            held = "" if end.held_out_error is None else f" held-out {end.held_out_error:.1%}"
            text = f"loss {end.loss:.2f}{held} epoch {end.epoch}/{end.epochs}"
            text += f" ({method_words(end.spec)}, seed {end.spec.seed})"
            if after_epoch is not None:
                after_epoch(end)
        # A whole epoch is told once it is logged.
        if progress is not None and waiting and share < 1:
            progress(sum(done.values()) + share, total, text)

    tell()
    on_disk, diverged = isinstance(images, ListedImages), list[Path]()
    data: Resident | ListedImages | None = None
    at_once = together if device.type == "cuda" and not on_disk else 1
    where: dict[str, Any] = {"world": world, "streaming": streaming}
    for first in range(0, len(waiting), at_once):
        wave = list(waiting)[first : first + at_once]
        with ExitStack() as stack:
            for folder in wave if writes else ():
                stack.enter_context(files.exclusive(folder))
            # Another process may have finished some just before they were claimed.
            states = run_states(wave, images, world, force=force)
            try:
                jobs = [
                    _open_job(
                        folder, waiting[folder], states[folder], images, device, command, world
                    )
                    for folder in wave
                    if states[folder] != "finished"
                ]
                if data is None:
                    data = Resident(images, device) if isinstance(images, ImageSet) else images
                for alike in _alike(jobs) if at_once > 1 else [[job] for job in jobs]:
                    _make_training(alike, data, device, pool, weights, **where)
                _train_wave(
                    jobs,
                    tell=tell,
                    after_step=tell if within_epoch else None,
                    checkpoint_seconds=checkpoint_seconds,
                    stop=stop,
                    **where,
                )
            except RuntimeError as error:
                if said := _explanation(error, len(wave), on_disk=on_disk):
                    raise RunError(f"train: {said}") from error
                raise
            diverged += [job.folder for job in jobs if job.diverged]
    world.tell()  # what the first process wrote: all must find the same runs finished
    if diverged:
        rest = " The others are finished." if len(diverged) < len(folders) else ""
        raise RunError(
            f"train: the loss or the weights of {len(diverged)} run(s) became infinite or NaN, so "
            f"they stay unfinished: {', '.join(map(str, diverged))}.{rest} A lower lr or a longer "
            f"warm-up (override lr or warmup_epochs) may help."
        )
    return [Run.open(root / spec.folder, verify=False) for spec in specs]


def train(spec: RunSpec, images: Images, *, root: Path | str, **options: Any) -> Run:
    """Train one run: a cohort of one, see `train_cohort` for the options."""
    (run,) = train_cohort([spec], images, root=root, **options)
    return run


def run_states(
    folders: Iterable[Path], images: Images, world: World = ALONE, *, force: bool = False
) -> dict[Path, str]:
    """Return ``new``, ``begun`` or ``finished`` for each folder, as the first process sees them.

    A run of other images is refused; with `force` all are new, whatever is there.
    """
    folders, found = list(folders), []
    if force:
        return dict.fromkeys(folders, "new")
    for folder in folders if world.rank == 0 else ():
        state = "new"
        if (folder / "run.json").exists():
            run = Run.open(folder, verify=False, unfinished=True)
            same_training(run, images.fingerprint)
            state = "finished" if run.finished else "begun"
        found.append(state)
    return dict(zip(folders, world.tell(found), strict=True))


def device_words(device: torch.device, processes: int = 1) -> str:
    """Return a device as records name it: ``cpu``, ``NVIDIA H200``, ``8 x NVIDIA H200``."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return name if processes == 1 else f"{processes} x {name}"


@dataclass
class _Job:
    """A run to train: its part of the data, and how far it is."""

    spec: RunSpec
    folder: Path
    planner: Planner
    held: Any  # the held-out images, or None
    writer: RunWriter | None = None  # None in processes that leave the writing to the first one
    start: Mapping[str, Tensor] | None = None  # what it goes on from; only the first process has it
    epoch: int = 0
    seconds: float = 0.0
    saved: bool = False  # True where checkpoints may be
    diverged: bool = False
    training: Any = None  # which steps it, as its member of that number, of so many together
    member: int = 0
    together: int = 1


def _open_job(
    folder: Path,
    spec: RunSpec,
    state: str,
    images: Images,
    device: torch.device,
    command: str | None,
    world: World,
) -> _Job:
    """Open the run's folder, anew or where it was left; the first process does, for all."""
    kept, held = np.arange(len(images)), None
    if spec.dataset.held_out:
        seed = stream_seed(spec.seed, "held-out")
        kept, rows = held_out_split(images.labels, fraction=spec.dataset.held_out, seed=seed)
        held = images.take(rows)
    prior = ClassPrior.from_labels(images.labels[kept], num_classes=images.num_classes)
    recipe, method = Recipe.of(spec), Method.of(spec.method)
    planner = Planner(recipe, method, images.labels, kept, prior, seed=spec.seed)
    job = _Job(spec, folder, planner, held)
    where = device_words(device, world.count)
    if world.rank == 0 and state == "begun":
        job.writer, job.saved = RunWriter.resume(folder, spec, device=where), True
        if saved := checkpoint.latest(folder):
            job.start, job.epoch, job.seconds = saved.tensors, saved.epochs, saved.seconds
            logger.info("%s goes on after epoch %d", folder, job.epoch)
        job.writer.rewind_log(lambda line: int(line.get("epoch", 0)) <= job.epoch)
    elif world.rank == 0:
        job.writer = RunWriter.create(
            folder.parents[1],
            spec,
            prior=prior,
            data=images.fingerprint,
            device=where,
            command=command,
            class_names=images.class_names,
            force=True,
        )
    job.epoch = world.tell(job.epoch)
    if job.epoch and job.start is None:
        job.start = {}  # the first process will send its tensors
    return job


def _alike(jobs: Sequence[_Job]) -> Iterable[list[_Job]]:
    """Return the jobs in as few groups that can step as one as they allow."""
    groups: dict[tuple[object, ...], list[_Job]] = {}
    for job in jobs:
        recipe = replace(job.planner.recipe, name="", image_seed=None)
        alone = None if can_stack(recipe.model) else job.folder
        stacked = job.planner.method.margin(job.planner.prior) is not None  # the loss, too
        # Settings are their precision and teachers.
        key = recipe, job.spec.settings, tuple(job.planner.batch_sizes), job.epoch, alone, stacked
        groups.setdefault(key, []).append(job)
    return groups.values()


def _make_training(
    jobs: Sequence[_Job],
    data: Resident | ListedImages,
    device: torch.device,
    pool: TeacherPool | None,
    weights: Weights | None,
    *,
    world: World,
    streaming: Streaming | None,
) -> None:
    """Make the training of jobs that step as one, each where it was left."""
    spec, planners = jobs[0].spec, [job.planner for job in jobs]
    how: dict[str, Any] = {"device": device}
    how["precision"] = spec.settings.get("precision", "float32")
    make: Callable[[], Any]
    if isinstance(data, ListedImages):
        make = partial(StreamedTraining, planners[0], data, world=world, how=streaming, **how)
    else:
        if pool is not None:
            for job in jobs:
                pool.pin(job.folder, job.spec)
            how["teachers"] = pool.ready(spec, planners[0].recipe, data, device)
        make = partial(Training, planners, data, **how)
    if device.type == "cuda":
        training = place(make, device=device, graphs=isinstance(data, Resident))
    else:
        training = make()
    for member, job in enumerate(jobs):
        job.training, job.member, job.together = training, member, len(jobs)
        with training.active():
            if job.start is None and SETTING in job.spec.settings:
                check_start(job.spec, weights)  # its checkpoint was damaged
                state = training.saved_state(member)  # every process has a part in it
                first = weights if world.rank == 0 else None
                job.start = {} if first is None else started(state, job.spec, first)
            if job.start is not None:
                training.load_state(member, job.start)
                job.start = None


def _train_wave(
    jobs: Sequence[_Job],
    *,
    tell: Callable[..., None],
    after_step: Callable[[float], None] | None,
    checkpoint_seconds: float,
    stop: Callable[[], bool] | None,
    world: World,
    streaming: Streaming | None,
) -> None:
    """Train the runs that are in memory at a time: epoch by epoch, with a log and checkpoints."""
    where: dict[str, Any] = {"world": world, "streaming": streaming}
    saved = time.monotonic()
    unfinished = [job for job in jobs if job.epoch < job.planner.recipe.epochs]
    while unfinished:
        began = time.monotonic()
        epochs = {job.training: job.epoch for job in unfinished}
        found = run_epoch(list(epochs), list(epochs.values()), after_step=after_step)
        losses = dict(zip(epochs, found, strict=True))
        took = (time.monotonic() - began) / len(unfinished)
        for job in unfinished:
            loss = losses[job.training][job.member]
            job.epoch += 1
            job.seconds += took
            job.diverged = not math.isfinite(loss)
            tell(end=_log(job, loss, **where))
        unfinished = [
            job for job in unfinished if not job.diverged and job.epoch < job.planner.recipe.epochs
        ]
        # All processes take part in saving, or none.
        if world.tell(time.monotonic() - saved >= checkpoint_seconds):
            _save(unfinished)
            saved = time.monotonic()
        if unfinished and stop is not None and stop():  # what is at its end is better finished
            _save([job for job in jobs if not job.diverged])
            raise StoppedError
    for job in jobs:
        if not job.diverged:
            _finish(job, **where)
    for job in jobs:  # memory and workers, before the next ones take theirs
        job.training = None


def _log(job: _Job, loss: float, *, world: World, streaming: Streaming | None) -> EpochEnd:
    """Measure the held-out error where it is due, and write a line of the log."""
    recipe, training, error = job.planner.recipe, job.training, None
    # On a GPU an epoch takes a second for many runs, so looking at each would slow it down.
    every = 1 if training.device.type == "cpu" else max(1, recipe.epochs // 20)
    due = job.epoch == recipe.epochs or job.epoch % every == 0
    if job.held is not None and due and not job.diverged:
        how: dict[str, Any] = {"world": world, "streaming": streaming, "gathered": False}
        with training.active():
            answers = network_logits(training.network(job.member), job.held, recipe, **how)
        # The loss is of the weights before the last step, which may be the one too many.
        job.diverged = world.tell(answers is not None and not np.isfinite(answers).all())
        if answers is not None and not job.diverged:
            classes = job.planner.prior.num_classes
            error = metrics.balanced_error(job.held.labels, answers, num_classes=classes)
    if job.writer is not None:
        line = {"epoch": job.epoch, "loss": loss}
        line |= {} if error is None else {"held_out_error": error}
        line |= {"skipped": training.skipped} if training.skipped else {}
        job.writer.log(**line)
    steps = len(training.batch_sizes)
    rate = learning_rate(recipe, job.epoch * steps - 1, steps)
    return EpochEnd(job.spec, job.folder, job.epoch, recipe.epochs, loss, error, rate)


def _save(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        with job.training.active():
            state = job.training.saved_state(job.member)  # every process has a part in it
            if job.writer is not None:
                checkpoint.save(job.folder, state, epochs=job.epoch, seconds=job.seconds)
                job.saved = True


def _finish(job: _Job, *, world: World, streaming: Streaming | None) -> None:
    """Write the weights and the held-out logits, unless the last step was one too many."""
    training, recipe, logits = job.training, job.planner.recipe, None
    with training.active():
        model = training.network(job.member)
        if job.held is not None:
            logits = network_logits(model, job.held, recipe, world=world, streaming=streaming)
        # Every process has a part in these.
        norms, bias = models.head_norms_and_bias(model)
        weights = training.saved_weights(model)
        lost = logits is not None and not np.isfinite(logits).all()
        lost = lost or not all(bool(value.isfinite().all()) for value in weights.values())
        job.diverged = world.tell(lost)
        if job.diverged or job.writer is None:
            return
        job.writer.write_model(weights)
        if logits is not None:
            job.writer.write_logits(
                "held-out",
                logits,
                job.held.labels,
                norms=norms,
                bias=bias,
                data=job.held.fingerprint,
                replace=True,  # those of a run killed while it finished
            )
    facts = {"parameters": sum(p.numel() for p in model.parameters()), "together": job.together}
    facts |= {"processes": world.count} if isinstance(training, StreamedTraining) else {}
    job.writer.finish(seconds=job.seconds, **facts)
    if job.saved:
        checkpoint.delete_all(job.folder)


def _explanation(error: RuntimeError, runs: int, *, on_disk: bool) -> str | None:
    """Return one line on the failure of a GPU that some runs share: its cost, and a remedy."""
    unlost = "Nothing written is lost: the same command goes on from the last checkpoints."
    said = " ".join(str(error).splitlines()[:2])
    if isinstance(error, torch.OutOfMemoryError):
        what = "the data and a run; override batch_size with a smaller one, or train on a CPU."
        if on_disk:
            what = "a part of the batch; take it in smaller ones (--micro-batch N)."
        elif runs > 1:
            what = f"{runs} runs at once; train fewer together (--together N, together=N)."
        return f"the GPU's memory does not hold {what} {unlost}"
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return (
            f"torch.compile failed: {said} Train without it (--no-compile, "
            f"Streaming(compile=False))."
        )
    return f"the GPU failed: {said} {unlost}" if "cuda" in str(error).lower() else None
