"""`longtail train`: methods and seeds on one data set, each into its run folder."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli import _cohort, _console, _data, _trained, _training
from longtail.cli._console import JsonOption

if TYPE_CHECKING:
    import torch

    from longtail.cli._training import AnyData
    from longtail.runs import Run
    from longtail.train.distributed import World
    from longtail.train.engine import EpochEnd
    from longtail.train.streamed import Streaming

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class Precision(StrEnum):
    """Of the network's forward and backward pass."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


class OnError(StrEnum):
    """What an image that can't be decoded does."""

    stop = "stop"
    skip = "skip"


def _complete_method(incomplete: str) -> list[str]:
    from longtail.train.methods import method_help

    names = [line.name for line in method_help() if line.kind == "loss"]
    return [name for name in names if name.startswith(incomplete)]


def _complete_recipe(incomplete: str) -> list[str]:
    from longtail.train.recipe import RECIPES

    return [name for name in RECIPES if name.startswith(incomplete)]


@app.command()
def train(
    context: typer.Context,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            metavar="NAME",
            help="cifar10-lt, cifar100-lt, digits-lt, a frozen file or a folder of images; or, "
            "streamed from disk, imagenet-lt, places-lt, inaturalist or a folder of lists.",
            autocompletion=_data._complete,
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="METHOD",
            help="What to train, see above; repeat it for several.",
            autocompletion=_complete_method,
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            min=1,
            metavar="N",
            help="Train each method N times, seeds 0 to N-1.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(
            "--seed",
            min=0,
            metavar="K",
            help="Or this very seed; repeat it for several. 0 if absent.",
            show_default=False,
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            metavar="NAME",
            help="paper, tuned, strong, strong-student, released, ldam, digits, imagenet-lt or "
            "inaturalist. If absent, tuned for the CIFARs, imagenet-lt for Places-LT, and else the "
            "data set's own.",
            autocompletion=_complete_recipe,
            show_default=False,
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a value of the recipe, such as lr=0.05; repeatable.",
            show_default=False,
        ),
    ] = None,
    teachers: Annotated[
        list[Path] | None,
        typer.Option(
            "--teachers",
            metavar="RUN",
            help="Learn from finished runs as well, one or several, or all of a folder.",
            show_default=False,
        ),
    ] = None,
    more: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN", help="Teachers after the first.", show_default=False),
    ] = None,
    teacher_logits: Annotated[
        bool,
        typer.Option(
            "--teacher-logits",
            help="Learn from the teachers' saved logits (evaluate --split train), not networks; "
            "for recipes without augmentation.",
        ),
    ] = False,
    held_out: Annotated[
        float | None,
        typer.Option(
            "--held-out",
            metavar="X",
            help="Keep this fraction of each class out of training, to choose tau on.",
            show_default=False,
        ),
    ] = None,
    data_dir: _data.DataDirOption = None,
    profile: _data.ProfileOption = None,
    ratio: _data.RatioOption = None,
    counts: _data.CountsOption = None,
    fit: _data.FitOption = False,
    subset_seed: _data.SubsetSeedOption = 0,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="The folder of runs.")
    ] = Path("runs"),
    device: _training.DeviceOption = "auto",
    precision: Annotated[
        Precision,
        typer.Option("--precision", help="auto is bfloat16 on a GPU and float32 on a CPU."),
    ] = Precision.auto,
    together: Annotated[
        int | None,
        typer.Option(
            "--together",
            min=1,
            metavar="N",
            help="Runs at a time on a GPU, 16 if absent; a CPU trains one after another.",
            show_default=False,
        ),
    ] = None,
    root: _training.RootOption = None,
    workers: _training.WorkersOption = None,
    micro_batch: _training.MicroBatchOption = None,
    on_error: Annotated[
        OnError,
        typer.Option(
            "--on-error",
            help="Images on disk: one that can't be decoded stops training, or is skipped and "
            "counted.",
        ),
    ] = OnError.stop,
    compiled: _training.CompileOption = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also log into each run's tensorboard folder.")
    ] = False,
    evaluate: Annotated[
        bool,
        typer.Option(
            "--evaluate/--no-evaluate", help="Judge the trained runs on the test set afterwards."
        ),
    ] = True,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume", metavar="RUN", help="Continue this run folder.", show_default=False
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Train again, from the start, what is there already.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Train on long-tailed images: many runs together on one GPU, or one run on many.

    Each run gets a folder below --out. Training never sees the test set; the finished runs are
    judged on it. The same command goes on where it was interrupted, and trains nothing twice.

    \b
    METHOD is a loss, and what comes on top of it; settings follow a colon:
      softmax
      logit-adjusted:tau=1.5
      ldam+drw:start=120
      balanced+label-smoothing:epsilon=0.05
      softmax+over-sampling

    `longtail explain` lists the losses; on top come drw, label-smoothing, over-sampling,
    under-sampling and sqrt-sampling. Post-hoc methods need no training: `longtail report`
    computes them from softmax runs.

    With --teachers the runs also learn from the mean logits of finished runs of the same data,
    as much as the recipe's distill_weight says (that of strong-student is 0.8); the teachers
    become part of their specs. Of a folder all finished runs are taken, but for those that learnt
    from others in it: students may go into their teachers' folder.

    \b
    Examples:
      longtail train --dataset digits-lt --method softmax --method balanced
      longtail train --dataset cifar100-lt --method logit-adjusted --seeds 5
      longtail train --dataset cifar10-lt --method ldam+drw --recipe ldam
      longtail train --dataset cifar10-lt --method softmax --held-out 0.2
      longtail train --dataset a.frozen --method softmax --set lr=0.05
      longtail train --resume runs/digits-lt/softmax-s0-10db5896

    Images on disk (imagenet-lt, places-lt, inaturalist, a folder of lists) train one run at a
    time. Started by torchrun, all processes train it together; the batch is that of all of them:

    \b
      longtail train --dataset imagenet-lt --root images --method softmax
      torchrun --standalone --nproc-per-node 8 -m longtail train \\
          --dataset inaturalist --data-dir inat --method logit-adjusted
    """
    from longtail import _checks
    from longtail.cli._opening import open_teachers

    for module in ("torch", "safetensors"):
        _checks.require(module, extra="torch", caller="longtail train")
    if tensorboard:
        _checks.require("tensorboard", extra="tensorboard", caller="longtail train --tensorboard")
    given = [name for name in context.params if _is_given(context, name)]
    if teacher_logits and not teachers:
        raise typer.BadParameter("--teacher-logits needs --teachers")
    places = _training.RunData(dataset, data_dir, root)
    with _training.joined(device) as world:
        asked = _cohort.Asked(
            methods=method or [],
            seeds=_seeds(seeds, seed),
            recipe=recipe,
            overrides=overrides or [],
            held_out=held_out,
            precision=_precision(precision, world.device, resumed=resume is not None),
            teachers=open_teachers(_named(teachers, more)),
            teacher_logits=teacher_logits,
        )
        if resume is not None:
            for name in ("force", "counts", "fit", "out"):
                if name in given:
                    raise typer.BadParameter(f"--{name} can't stand beside --resume")
            subset = {"profile": profile and profile.value, "imbalance_ratio": ratio}
            subset["seed"] = subset_seed if "subset_seed" in given else None
            job = _cohort.resumed(
                resume, asked, subset, dataset=dataset, data_dir=data_dir, images=root
            )
        else:
            in_memory = partial(
                _data.load,
                data_dir=data_dir,
                profile=profile,
                ratio=ratio,
                counts=counts,
                fit=fit,
                subset_seed=subset_seed,
            )
            read = partial(_read, in_memory=in_memory, data_dir=data_dir, root=root)
            job = _cohort.plan(asked, dataset, read, out)
        _refuse_idle(given, context, on_disk=job.on_disk)
        if evaluate:
            _training.refuse_huge(job.data)
            if not force:
                _refuse_judged_otherwise(job, places.typed)
            if world.first:
                _warn_of_absent(job.data.test)
        if world.first:
            _warn_of_stray(getattr(job.data, "stray", ()))
        streaming = _training.streaming(workers, micro_batch, compiled, on_error=on_error.value)
        runs = _train(
            job,
            world,
            streaming,
            command=_command(context, given, world),
            force=force,
            together=together,
            tensorboard=tensorboard,
        )
        if evaluate:
            runs = _evaluate(runs, job.data, world, streaming)
    if not world.first:
        return
    if json:
        _console.print_json(_trained.document(runs))
    else:
        _trained.show(runs, job, where=places.where)


def _named(first: list[Path] | None, more: list[Path] | None) -> list[Path]:
    """The teachers' folders: one behind each --teachers, and what follows it."""
    if more and not first:
        words = ", ".join(map(str, more))
        raise typer.BadParameter(f"got unexpected argument(s) {words}; runs stand after --teachers")
    return [*(first or []), *(more or [])]


def _read(
    name: str,
    on_disk: bool,
    *,
    in_memory: Callable[[str], AnyData],
    data_dir: Path | None,
    root: Path | None,
) -> AnyData:
    from longtail.data.large import load_listed

    return load_listed(name, data_dir=data_dir, root=root) if on_disk else in_memory(name)


_OF_SUBSETS = ("profile", "ratio", "counts", "fit", "subset_seed", "together")
_OF_DISKS = ("root", "workers", "micro_batch", "on_error", "compiled")


def _refuse_idle(given: list[str], context: typer.Context, *, on_disk: bool) -> None:
    """Refuse an option that would do nothing to this kind of data."""
    idle = [name for name in (_OF_SUBSETS if on_disk else _OF_DISKS) if name in given]
    if idle:
        option = next(p for p in context.command.params if p.name == idle[0]).opts[0]
        kind = "stay on disk" if on_disk else "are read into memory"
        raise typer.BadParameter(f"{option} does nothing here: the images of this data set {kind}")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _seeds(number: int | None, each: list[int] | None) -> list[int] | None:
    if number is not None and each:
        raise typer.BadParameter("give either --seeds or --seed, not both")
    return list(range(number)) if number is not None else each or None


def _precision(precision: Precision, device: torch.device, *, resumed: bool) -> str | None:
    if precision != Precision.auto:
        return precision.value
    if resumed:
        return None  # the run's own
    return "bfloat16" if device.type == "cuda" else "float32"


def _command(context: typer.Context, given: list[str], world: World) -> str:
    """What to type to go on: what was typed, without what would begin again."""
    words = ["longtail", "train"]
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if option.name not in given or option.name in ("force", "json"):
            continue
        if isinstance(value, bool):
            words.append(option.opts[0] if value else option.secondary_opts[0])
            continue
        flag = "--teachers" if option.name == "more" else option.opts[0]
        for one in value if isinstance(value, list | tuple) else [value]:
            words += [flag, str(one)]
    return _training.as_launched(shlex.join(words), world)


def _train(
    job: _cohort.Job,
    world: World,
    streaming: Streaming,
    *,
    command: str,
    force: bool,
    together: int | None,
    tensorboard: bool,
) -> list[Run]:
    from longtail.report.tables import plural
    from longtail.train import checkpoint, engine

    options: dict[str, Any] = {"root": job.root, "device": world.device, "force": force}
    options |= {"command": command, "world": world, "streaming": streaming}
    if not world.first:  # the first process talks
        return engine.train_cohort(job.specs, job.data.train, **options)
    states = ["new"] * len(job.specs) if force else job.states()
    left = len(states) - states.count("finished")
    _trained.say_what(job, states, world)
    alone = job.on_disk or world.device.type != "cuda"
    width = 1 if alone else together or engine.TOGETHER
    with ExitStack() as stack:
        listeners: list[Callable[[EpochEnd], None]] = []
        if tensorboard:
            from longtail.train.tensorboard import TensorBoard

            listeners.append(stack.enter_context(TensorBoard()))
        stack.enter_context(_trained.saying_what_is_saved(job, command, force=force))
        show = stack.enter_context(_console.progress(plural(left, "run", "runs")))
        epochs = job.specs[0].recipe.values["epochs"]
        begun = [f for f, state in zip(job.folders, states, strict=True) if state == "begun"]
        done = {folder: checkpoint.epochs_done(folder) for folder in begun}
        news = _cohort.News(show, runs=left, epochs=epochs, together=width, done=done)
        listeners.append(news)

        def tell(end: EpochEnd) -> None:
            for listener in listeners:
                listener(end)

        options |= {
            "teachers": job.teachers,
            "together": width,
            "after_epoch": tell,
            "within_epoch": news.within,
        }
        return engine.train_cohort(job.specs, job.data.train, **options)


def _warn_of_absent(test: Any) -> None:
    """Say, before any work, which classes the test set can't judge."""
    import numpy as np

    from longtail import _checks

    lacking = np.setdiff1d(np.arange(test.num_classes), test.labels)
    if absent := _checks.class_words(lacking, test.class_names):
        _console.warning_line(
            f"the test set has no examples of {absent}: its mean error will be that of the others"
        )


def _warn_of_stray(images: Sequence[Path]) -> None:
    """Say which images on disk are left out, since they lie beside the class folders."""
    from longtail import _checks

    if images:
        words = _checks.listing(images, most=3)
        _console.warning_line(f"left out, since in no class folder: {words}")


def _refuse_judged_otherwise(job: _cohort.Job, typed: list[str]) -> None:
    """Refuse finished runs that were judged on another test set, before any is trained."""
    from longtail.runs import Run
    from longtail.runs.folder import same_images

    states = zip(job.folders, job.states(), strict=True)
    finished = [Run.open(f, verify=False) for f, state in states if state == "finished"]
    now = job.data.test.fingerprint
    same_images([(run, now) for run in finished if "test" in run.splits], "test", data=typed)


def _evaluate(runs: list[Run], data: AnyData, world: World, streaming: Streaming) -> list[Run]:
    from longtail.train.engine import evaluate

    options: dict[str, Any] = {"device": world.device, "world": world, "streaming": streaming}
    found = []
    with _console.progress("evaluating") if world.first else nullcontext() as progress:
        for done, run in enumerate(runs):
            if progress is not None:
                progress(done, len(runs), run.folder.name)
            found.append(evaluate(run, data.test, **options))
    return found
