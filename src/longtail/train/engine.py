"""Training runs into their folders, once for every method, data set and number of runs.

`train_cohort` trains several runs of one data set; a single run is a cohort of one. On a CPU
the runs follow one another, on a GPU they train together, with the same results up to rounding;
photographs from disk train one run at a time, in as many processes as share it (`distributed`).
Training never sees a test set: `evaluation` opens it later, from the finished run's folder.

A run's randomness comes from its seed, a purpose and the epoch, never from a global generator:
what its neighbours do can't change it, and two methods with one seed start from the same
weights and see the same batches, so that their difference is paired.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from longtail import _checks, metrics
from longtail._checks import InputError, IntArray
from longtail.data.lists import ListedImages
from longtail.data.subsets import held_out_split
from longtail.priors import ClassPrior
from longtail.runs import Run, RunSpec, RunWriter, files
from longtail.runs.folder import RunError, same_training

_checks.require("torch", extra="torch", caller=__name__)

import torch

from longtail.models.stacked import can_stack
from longtail.train import checkpoint
from longtail.train.distributed import ALONE, World
from longtail.train.evaluation import (
    Head,
    Images,
    evaluate,
    network_logits,
    split_answers,
    split_logits,
    write_split,
)
from longtail.train.failures import all_finite, explained
from longtail.train.lane import Lane, run_epoch
from longtail.train.methods import Method
from longtail.train.plan import Planner, stream_seed
from longtail.train.progress import EpochEnd, Progress, Report
from longtail.train.recipe import Recipe
from longtail.train.refusals import precision_of, refuse_early
from longtail.train.streamed import StreamedTeam, Streaming, team_kind
from longtail.train.teachers import Staff
from longtail.train.team import Resident, Team
from longtail.train.unreached import unreached

__all__ = [
    "EpochEnd",
    "Progress",
    "StoppedError",
    "device_words",
    "evaluate",
    "network_logits",
    "precision_of",
    "refuse_early",
    "train",
    "train_cohort",
]

logger = logging.getLogger("longtail")

TOGETHER = 16  # runs at once on a GPU; more only wait for each other


class StoppedError(Exception):
    """`stop` asked for it; every run was saved after its last whole epoch."""


@dataclass
class _Job:
    """A run to train: its part of the data, its writer, and how far it is."""

    spec: RunSpec
    planner: Planner
    held: IntArray | None
    writer: RunWriter | _Onlooker
    start: checkpoint.Checkpoint | None
    epoch: int = 0
    seconds: float = 0.0
    diverged: bool = False

    @property
    def recipe(self) -> Recipe:
        return self.planner.recipe

    @property
    def passes(self) -> int:
        """Forward and backward passes of a step; SAM takes two."""
        return 2 if self.recipe.sam_rho else 1

    @property
    def team(self) -> tuple[object, ...]:
        """Runs for which this is equal can step as one."""
        sizes = tuple(self.planner.batch_sizes)
        # The settings are its precision and its teachers.
        return self.recipe.team_values, self.spec.settings, sizes, self.epoch


class _Onlooker:
    """In the place of a run's writer in processes that leave the writing to the first one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def log(self, **_: object) -> None:
        pass


@dataclass
class _Crew:
    """The jobs of one team, in its order, and the lane it runs on."""

    jobs: list[_Job]
    lane: Lane
    saved: float = field(default_factory=time.monotonic)

    @property
    def epoch(self) -> int:
        return self.jobs[0].epoch

    @property
    def done(self) -> bool:
        job = self.jobs[0]
        return job.epoch >= job.recipe.epochs or all(job.diverged for job in self.jobs)


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
    within_epoch: Callable[[float], None] | None = None,
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
        progress: called as ``progress(epochs done, epochs in all, what)``.
        after_epoch: called after each epoch of each run.
        within_epoch: called where epochs can be long, on a CPU or with images from disk, after
            each step with the share of the epoch that is done; a GPU may be some steps behind.
        stop: asked after each epoch of all runs that train together; once it says yes, they are
            saved and `StoppedError` is raised.
        world: the processes that train these runs together, each with the same arguments; for
            images on disk. The first one writes, into a folder that all of them see.
        streaming: how images on disk are read; None for the defaults.

    Returns:
        The finished runs, in the order of `specs`.
    """
    device = torch.device(device)
    folders = [Path(root) / spec.folder for spec in specs]
    there = _finished_of(folders, images, world, force=force)
    if world.first:
        for folder in there:
            _tidy(folder, images)
    waiting = {f: s for f, s in zip(folders, specs, strict=True) if f not in there}
    refuse_early(list(waiting.values()), images, processes=world.count)
    staff = Staff(list(waiting.values()), images, root=root, given=teachers)
    if world.first:
        for told in dict.fromkeys(filter(None, map(unreached, waiting.values()))):
            logger.warning(told)
    begun = {} if force else {folder: checkpoint.epochs_done(folder) for folder in waiting}
    report = Report(progress, after_epoch, within_epoch, waiting, begun)
    on_disk = isinstance(images, ListedImages)
    width = together if device.type == "cuda" and not on_disk else 1
    pending = list(waiting.items())
    with explained():
        data = None
        if pending:
            data = images if isinstance(images, ListedImages) else Resident(images, device)
    diverged: list[Path] = []
    for first in range(0, len(pending), width):
        wave = dict(pending[first : first + width])
        with ExitStack() as claims:
            for folder in wave:
                if world.first:
                    claims.enter_context(files.exclusive(folder))
            # Another process may have finished some just before they were claimed.
            done = _finished_of(wave, images, world, force=force)
            jobs = [
                _start(spec, images, root, device=device, command=command, force=force, world=world)
                for folder, spec in wave.items()
                if folder not in done
            ]
            claims.enter_context(explained(len(jobs), on_disk=on_disk))
            for job in jobs:
                staff.pin(job.writer.folder, job.spec)
            where: dict[str, Any] = {"device": device, "world": world, "streaming": streaming}
            crews = _crews(jobs, cast(Resident | ListedImages, data), staff, **where)
            _train_together(
                crews, images, report=report, checkpoint_seconds=checkpoint_seconds, stop=stop
            )
            diverged += _finish_all(crews, images)
            crews.clear()  # memory and workers, before the next ones take theirs
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


def train(spec: RunSpec, images: Images, *, root: Path | str, **options: object) -> Run:
    """Train one run: a cohort of one, see `train_cohort` for the options."""
    (run,) = train_cohort([spec], images, root=root, **options)  # type: ignore[arg-type]
    return run


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
    if not any(folder.glob("checkpoint-*")):
        return
    # Where only reading is allowed, or another process is at work there, they may stay.
    with suppress(OSError, InputError), files.exclusive(folder):
        if _is_finished(folder, images):
            checkpoint.delete_all(folder)


def _start(
    spec: RunSpec,
    images: Images,
    root: Path | str,
    *,
    device: torch.device,
    command: str | None,
    force: bool,
    world: World,
) -> _Job:
    """Open the run's folder, anew or where it was left; the first process does, for all."""
    kept, held = np.arange(len(images)), None
    if spec.dataset.held_out:
        kept, held = held_out_split(
            images.labels, fraction=spec.dataset.held_out, seed=stream_seed(spec.seed, "held-out")
        )
    prior = ClassPrior.from_labels(images.labels[kept], num_classes=images.num_classes)
    planner = Planner(
        Recipe.of(spec), Method.of(spec.method), images.labels, kept, prior, seed=spec.seed
    )
    folder, where, start = Path(root) / spec.folder, device_words(device, world.count), None
    writer: RunWriter | _Onlooker
    if not world.first:
        writer = _Onlooker(folder)
    elif (folder / "run.json").exists() and not force:
        writer = RunWriter.resume(folder, spec, device=where)
        same_training(Run.open(folder, verify=False, unfinished=True), images.fingerprint)
        start = checkpoint.latest(folder)
        done = 0 if start is None else start.epochs
        writer.rewind_log(lambda line: int(line.get("epoch", 0)) <= done)
        logger.info("%s goes on after epoch %d", folder, done)
    else:
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
    job = _Job(spec, planner, held, writer, start)
    if start is not None:
        job.epoch, job.seconds = start.epochs, start.seconds
    return job


def _crews(
    jobs: Sequence[_Job],
    data: Resident | ListedImages,
    staff: Staff,
    *,
    device: torch.device,
    world: World,
    streaming: Streaming | None,
) -> list[_Crew]:
    """The jobs in as few teams as they allow, each on its lane, where each was left."""
    teams: dict[tuple[object, ...], list[_Job]] = {}
    for job in jobs:
        # What can't be stacked steps by itself.
        alone = () if can_stack(job.recipe.model) else (id(job),)
        teams.setdefault((*job.team, *alone), []).append(job)
    crews = []
    for members in teams.values():
        settings: dict[str, Any] = {"precision": precision_of(members[0].spec), "device": device}
        planners = [job.planner for job in members]
        make: Callable[[], Team]
        if isinstance(data, ListedImages):
            settings |= {"world": world, "how": streaming}
            make = partial(team_kind(members[0].recipe), planners[0], data, **settings)
        else:
            teachers = staff.answering(members[0].spec, members[0].recipe, data, device)
            make = partial(Team, planners, data, teachers=teachers, **settings)
        lane = Lane(make, device=device, graphs=isinstance(data, Resident))
        with lane.active():
            for member, job in enumerate(members):
                if job.start is not None:
                    if world.first:
                        own, folder = lane.team.state(member), job.writer.folder
                        checkpoint.check_fits(job.start.tensors, own, folder=folder)
                    lane.team.load_state(member, job.start.tensors)
                    job.start = None
        crews.append(_Crew(members, lane))
    return crews


def _train_together(
    crews: Sequence[_Crew],
    images: Images,
    *,
    report: Report,
    checkpoint_seconds: float,
    stop: Callable[[], bool] | None = None,
) -> None:
    """Take all jobs to their last epoch, or to where their loss leaves the numbers."""
    while active := [crew for crew in crews if not crew.done]:
        jobs = [job for crew in active for job in crew.jobs]
        started = time.monotonic()
        losses = run_epoch(
            [crew.lane for crew in active],
            [crew.epoch for crew in active],
            after_step=report.within_epoch,
        )
        share = (time.monotonic() - started) / sum(job.passes for job in jobs)
        for crew, of_crew in zip(active, losses, strict=True):
            for member, (job, loss) in enumerate(zip(crew.jobs, of_crew, strict=True)):
                job.epoch += 1
                job.seconds += share * job.passes
                if not job.diverged:
                    job.diverged = not np.isfinite(loss)
                    _after_epoch(crew, member, loss, images, report)
            due = not crew.done and time.monotonic() - crew.saved >= checkpoint_seconds
            if _world(crew.lane.team).tell(due):  # all take part in it, or none
                _save(crew)
        # What is at its end is better finished.
        if stop is not None and not all(crew.done for crew in crews) and stop():
            for crew in crews:
                _save(crew)
            raise StoppedError


def _save(crew: _Crew) -> None:
    with crew.lane.active():
        for member, job in enumerate(crew.jobs):
            if job.diverged:
                continue
            state = crew.lane.team.whole(crew.lane.team.state(member))
            if not isinstance(job.writer, _Onlooker):
                checkpoint.save(job.writer.folder, state, epochs=job.epoch, seconds=job.seconds)
    crew.saved = time.monotonic()


def _after_epoch(crew: _Crew, member: int, loss: float, images: Images, report: Report) -> None:
    job, team, error = crew.jobs[member], crew.lane.team, None
    # On a GPU an epoch takes a second for many runs, so looking at each would slow it down.
    every = 1 if team.device.type == "cpu" else max(1, job.recipe.epochs // 20)
    if job.held is not None and not job.diverged and (crew.done or job.epoch % every == 0):
        with crew.lane.active():
            held = images.take(job.held)
            answers = split_answers(team.network(member), held, job.recipe, **_sharing(team))
        # The loss is of the weights before the last step, which may be the one too many.
        job.diverged = _world(team).tell(answers is not None and not np.isfinite(answers).all())
        if answers is not None and not job.diverged:
            error = metrics.balanced_error(
                images.labels[job.held], answers, num_classes=images.num_classes
            )
    line = {"epoch": job.epoch, "loss": loss}
    if error is not None:
        line["held_out_error"] = error
    if team.skipped:
        line["skipped"] = team.skipped
    job.writer.log(**line)
    rate = float(team.plans[member].rates[-1])
    report.epoch(
        EpochEnd(job.spec, job.writer.folder, job.epoch, job.recipe.epochs, loss, error, rate)
    )


def _sharing(team: Team) -> dict[str, Any]:
    """Who computes a part of a team's logits, and how."""
    if isinstance(team, StreamedTeam):
        return {"world": team.world, "streaming": team.how}
    return {}


def _world(team: Team) -> World:
    return team.world if isinstance(team, StreamedTeam) else ALONE


def _finish_all(crews: Sequence[_Crew], images: Images) -> list[Path]:
    """Finish the runs that stayed among the numbers; the folders of the others."""
    for crew in crews:
        for member, job in enumerate(crew.jobs):
            if not job.diverged:
                _finish(crew, member, images)  # may find that its last step was one too many
    return [job.writer.folder for crew in crews for job in crew.jobs if job.diverged]


def _finish(crew: _Crew, member: int, images: Images) -> None:
    job, team, held, logits = crew.jobs[member], crew.lane.team, None, None
    with crew.lane.active():
        model = team.network(member)
        if job.held is not None:
            held = images.take(job.held)
            logits = split_logits(model, held, job.recipe, **_sharing(team))
        # Every process has a part in these.
        head, weights = Head.of(model, job.recipe), team.whole(model.state_dict())
        lost = logits is not None and not np.isfinite(logits).all()
        job.diverged = _world(team).tell(lost or not all_finite(weights))
        if job.diverged or isinstance(job.writer, _Onlooker):
            return
        job.writer.write_model(weights)
        if held is not None:
            write_split(job.writer, head, held, cast(np.ndarray, logits), split="held-out")
    facts = {"parameters": sum(p.numel() for p in model.parameters()), "together": len(crew.jobs)}
    if isinstance(team, StreamedTeam):
        facts["processes"] = team.world.count
    run = job.writer.finish(seconds=job.seconds, **facts)
    checkpoint.delete_all(run.folder)


def device_words(device: torch.device, processes: int = 1) -> str:
    """A device as records name it: ``cpu``, ``NVIDIA H200``, ``8 x NVIDIA H200``."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return name if processes == 1 else f"{processes} x {name}"
