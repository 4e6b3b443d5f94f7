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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from longtail import metrics, models
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
    if world.first:
        for folder in folders.keys() - waiting.keys():
            with suppress(OSError):  # where only reading is allowed, they may stay
                checkpoint.delete_all(folder)  # left by a kill just before the end
        for told in dict.fromkeys(unreached_rates(spec) for spec in waiting.values()):
            if told:
                logger.warning(told)
        if begin is not None:
            begin(states)

    total, text = sum(spec.recipe.values["epochs"] for spec in waiting.values()), ""

    def tell(share: float = 0) -> None:
        """Tell the caller how far all runs are; a whole epoch is told once it is logged."""
        if progress is not None and waiting and share < 1:
            progress(sum(done.values()) + share, total, text)

    tell()
    on_disk, diverged = isinstance(images, ListedImages), list[Path]()
    at_once = together if device.type == "cuda" and not on_disk else 1
    after_step = tell if within_epoch else None
    common = _Common(images, images, pool, weights, device, command, world, streaming)
    if waiting and not isinstance(images, ListedImages):
        with explained():
            common.data = Resident(images, device)
    for first in range(0, len(waiting), at_once):
        wave = list(waiting)[first : first + at_once]
        with ExitStack() as stack:
            for folder in wave if world.first else ():
                stack.enter_context(files.exclusive(folder))
            # Another process may have finished some just before they were claimed.
            states = run_states(wave, images, world, force=force)
            stack.enter_context(explained(len(wave), on_disk=on_disk))
            jobs = [
                _open_job(folder, waiting[folder], states[folder], common)
                for folder in wave
                if states[folder] != "finished"
            ]
            for alike in _alike(jobs) if at_once > 1 else [[job] for job in jobs]:
                _place(alike, common)
            saved = time.monotonic()
            while active := {job.training: job.epoch for job in jobs if not job.done}:
                began = time.monotonic()
                found = run_epoch(list(active), list(active.values()), after_step=after_step)
                losses = dict(zip(map(id, active), found, strict=True))
                stepped = [job for job in jobs if id(job.training) in losses]
                took = (time.monotonic() - began) / len(stepped)
                for job in stepped:
                    loss = losses[id(job.training)][job.member]
                    job.epoch += 1
                    job.seconds += took
                    if job.diverged:
                        continue
                    job.diverged = not math.isfinite(loss)
                    end = _log(job, loss, world)
                    done[job.folder] = job.epoch
                    if after_epoch is not None:
                        after_epoch(end)
                    # A bar leaves room for 36 letters: what says least comes last.
                    held, text = end.held_out_error, f"loss {loss:.2f}"
                    text += "" if held is None else f" held-out {held:.1%}"
                    text += f" epoch {job.epoch}/{end.epochs}"
                    text += f" ({method_words(job.spec)}, seed {job.spec.seed})"
                    tell()
                # All processes take part in saving, or none.
                if world.tell(time.monotonic() - saved >= checkpoint_seconds):
                    _save([job for job in jobs if not job.done])
                    saved = time.monotonic()
                # What is at its end is better finished.
                if stop is not None and not all(job.done for job in jobs) and stop():
                    _save([job for job in jobs if not job.diverged])
                    raise StoppedError
            for job in jobs:
                if not job.diverged:
                    _finish(job, world)
            for job in jobs:  # memory and workers, before the next ones take theirs
                job.training = None
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
    for folder in folders if world.first else ():
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
class _Common:
    """What all runs have in common; `data` are the images where training reads them."""

    images: Images
    data: Resident | Images
    pool: TeacherPool | None
    weights: Weights | None
    device: torch.device
    command: str | None
    world: World
    streaming: Streaming | None


@dataclass
class _Job:
    """A run to train: its part of the data, and how far it is."""

    spec: RunSpec
    folder: Path
    planner: Planner
    held: Any  # the held-out images, or None
    writer: RunWriter | None = None  # in processes that leave the writing to the first one
    start: checkpoint.Checkpoint | None = None
    epoch: int = 0
    seconds: float = 0.0
    diverged: bool = False
    training: Any = None  # which steps it, as its member of that number, of so many together
    member: int = 0
    together: int = 1

    @property
    def done(self) -> bool:
        return self.diverged or self.epoch >= self.planner.recipe.epochs


def _open_job(folder: Path, spec: RunSpec, state: str, common: _Common) -> _Job:
    """Open the run's folder, anew or where it was left; the first process does, for all."""
    images, world = common.images, common.world
    kept, held = np.arange(len(images)), None
    if spec.dataset.held_out:
        seed = stream_seed(spec.seed, "held-out")
        kept, rows = held_out_split(images.labels, fraction=spec.dataset.held_out, seed=seed)
        held = images.take(rows)
    prior = ClassPrior.from_labels(images.labels[kept], num_classes=images.num_classes)
    recipe, method = Recipe.of(spec), Method.of(spec.method)
    planner = Planner(recipe, method, images.labels, kept, prior, seed=spec.seed)
    job = _Job(spec, folder, planner, held)
    where = device_words(common.device, world.count)
    if world.first and state == "begun":
        job.writer = RunWriter.resume(folder, spec, device=where)
        if start := checkpoint.latest(folder):
            job.start, job.epoch, job.seconds = start, start.epochs, start.seconds
            logger.info("%s goes on after epoch %d", folder, job.epoch)
        job.writer.rewind_log(lambda line: int(line.get("epoch", 0)) <= job.epoch)
    elif world.first:
        job.writer = RunWriter.create(
            folder.parents[1],
            spec,
            prior=prior,
            data=images.fingerprint,
            device=where,
            command=common.command,
            class_names=images.class_names,
            force=True,
        )
    job.epoch = world.tell(job.epoch)
    if job.epoch and not world.first:  # the first process will send its tensors
        job.start = checkpoint.Checkpoint(job.epoch, 0.0, {})
    return job


def _alike(jobs: Sequence[_Job]) -> Iterable[list[_Job]]:
    """The jobs in as few groups that can step as one as they allow."""
    groups: dict[tuple[object, ...], list[_Job]] = {}
    for job in jobs:
        recipe = replace(job.planner.recipe, name="", image_seed=None)
        alone = None if can_stack(recipe.model) else job.folder
        # Settings are their precision and teachers.
        key = recipe, job.spec.settings, tuple(job.planner.batch_sizes), job.epoch, alone
        groups.setdefault(key, []).append(job)
    return groups.values()


def _place(jobs: Sequence[_Job], common: _Common) -> None:
    """Make the training of jobs that step as one, each where it was left."""
    data, world, pool = common.data, common.world, common.pool
    spec, planners = jobs[0].spec, [job.planner for job in jobs]
    how: dict[str, Any] = {"device": common.device}
    how["precision"] = spec.settings.get("precision", "float32")
    make: Callable[[], Any]
    if isinstance(data, Resident):
        if pool is not None:
            for job in jobs:
                pool.pin(job.folder, job.spec)
            how["teachers"] = pool.ready(spec, planners[0].recipe, data, common.device)
        make = partial(Training, planners, data, **how)
    else:
        how |= {"world": world, "how": common.streaming}
        make = partial(StreamedTraining, planners[0], data, **how)  # type: ignore[arg-type]
    training = place(make, device=common.device, graphs=isinstance(data, Resident))
    for member, job in enumerate(jobs):
        job.training, job.member, job.together = training, member, len(jobs)
        with training.active():
            if job.start is None and SETTING in job.spec.settings:
                check_start(job.spec, common.weights)  # its checkpoint was damaged
                state = training.saved_state(member)  # every process has a part in it
                first = world.first and common.weights
                tensors = started(state, job.spec, first) if first else {}
                job.start = checkpoint.Checkpoint(0, 0.0, tensors)
            if job.start is not None:
                training.load_state(member, job.start.tensors)
                job.start = None


def _log(job: _Job, loss: float, world: World) -> EpochEnd:
    """Measure the held-out error where it is due, and write a line of the log."""
    recipe, training, error = job.planner.recipe, job.training, None
    # On a GPU an epoch takes a second for many runs, so looking at each would slow it down.
    every = 1 if training.device.type == "cpu" else max(1, recipe.epochs // 20)
    due = job.epoch == recipe.epochs or job.epoch % every == 0
    if job.held is not None and due and not job.diverged:
        with training.active():
            answers = _held_out(job, training.network(job.member), gathered=False)
        # The loss is of the weights before the last step, which may be the one too many.
        job.diverged = world.tell(answers is not None and not np.isfinite(answers).all())
        if answers is not None and not job.diverged:
            classes = job.planner.prior.num_classes
            error = metrics.balanced_error(job.held.labels, answers, num_classes=classes)
    line = {"epoch": job.epoch, "loss": loss}
    line |= {} if error is None else {"held_out_error": error}
    line |= {"skipped": training.skipped} if training.skipped else {}
    if job.writer is not None:
        job.writer.log(**line)
    steps = len(training.batch_sizes)
    rate = learning_rate(recipe, job.epoch * steps - 1, steps)
    return EpochEnd(job.spec, job.folder, job.epoch, recipe.epochs, loss, error, rate)


def _held_out(job: _Job, network: Any, *, gathered: bool) -> Any:
    """The logits of the held-out part on the first process, see `network_logits`."""
    how = {"world": job.training.world, "streaming": job.training.how, "gathered": gathered}
    return network_logits(network, job.held, job.planner.recipe, **how)


def _save(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        with job.training.active():
            state = job.training.saved_state(job.member)  # every process has a part in it
            if job.writer is not None:
                checkpoint.save(job.folder, state, epochs=job.epoch, seconds=job.seconds)


def _finish(job: _Job, world: World) -> None:
    """Write the weights and the held-out logits, unless the last step was one too many."""
    training, logits = job.training, None
    with training.active():
        model = training.network(job.member)
        if job.held is not None:
            logits = _held_out(job, model, gathered=True)
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
    facts |= {"processes": world.count} if training.on_disk else {}
    job.writer.finish(seconds=job.seconds, **facts)
    checkpoint.delete_all(job.folder)


@contextmanager
def explained(runs: int = 0, *, on_disk: bool = False) -> Iterator[None]:
    """Turn the failure of a GPU that some runs share into one line with its cost and a remedy."""
    unlost = "Nothing written is lost: the same command goes on from the last checkpoints."
    what = "the data and a run; override batch_size with a smaller one, or train on a CPU."
    if on_disk:
        what = "a part of the batch; take it in smaller ones (--micro-batch N)."
    elif runs > 1:
        what = f"{runs} runs at once; train fewer together (--together N, together=N)."
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RunError(f"train: the GPU's memory does not hold {what} {unlost}") from error
    except RuntimeError as error:
        said = " ".join(str(error).splitlines()[:2])
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise RunError(
                f"train: torch.compile failed: {said} Train without it (--no-compile, "
                f"Streaming(compile=False))."
            ) from error
        if "cuda" not in str(error).lower():
            raise
        raise RunError(f"train: the GPU failed: {said} {unlost}") from error
