"""`longtail train`: methods and seeds on one data set, each into its run folder."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli import _console, _data, _training
from longtail.cli._console import JsonOption

if TYPE_CHECKING:
    from longtail.cli._training import AnyData
    from longtail.runs import Run, RunSpec
    from longtail.train.distributed import World
    from longtail.train.streamed import Streaming

# What a data set is trained with unless the user names a recipe.
RECIPE_OF = {
    "cifar10-lt": "tuned",
    "cifar100-lt": "tuned",
    "digits-lt": "digits",
    "imagenet-lt": "imagenet-lt",
    "places-lt": "imagenet-lt",
    "inaturalist": "inaturalist",
}
SPLITS = {"test": "test set", "held-out": "held-out part"}

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
      longtail train --dataset a.parquet --method softmax --set lr=0.05
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
        _checks.require(module, extra="train")
    if tensorboard:
        _checks.require("tensorboard", extra="tensorboard")
    given = [name for name in context.params if _is_given(context, name)]
    if teacher_logits and not teachers:
        raise typer.BadParameter("--teacher-logits needs --teachers")
    places = _training.RunData(dataset, data_dir, root)
    with _training.joined(device) as world:
        exact: str | None = precision.value
        if precision == Precision.auto:  # a resumed run has its own
            exact = "bfloat16" if world.device.type == "cuda" else "float32"
            exact = exact if resume is None else None
        asked = Asked(
            methods=method or [],
            seeds=_seeds(seeds, seed),
            recipe=recipe,
            overrides=overrides or [],
            held_out=held_out,
            precision=exact,
            teachers=open_teachers(_named(teachers, more)),
            teacher_logits=teacher_logits,
        )
        if resume is not None:
            for name in ("force", "counts", "fit", "out"):
                if name in given:
                    raise typer.BadParameter(f"--{name} can't stand beside --resume")
            subset = {"profile": profile and profile.value, "imbalance_ratio": ratio}
            subset["seed"] = subset_seed if "subset_seed" in given else None
            job = _resumed(resume, asked, subset, places)
        else:

            def read(name: str, on_disk: bool) -> AnyData:
                if on_disk:
                    from longtail.data.large import load_listed

                    return load_listed(name, data_dir=data_dir, root=root)
                return _data.load(
                    name,
                    data_dir=data_dir,
                    profile=profile,
                    ratio=ratio,
                    counts=counts,
                    fit=fit,
                    subset_seed=subset_seed,
                )

            job = _plan(asked, dataset, read, out)
        _refuse_idle(given, context, on_disk=job.on_disk)
        if evaluate:
            _check_judging(job, places.typed, force=force)
        if world.first:
            _warn(job, evaluate=evaluate)
        streaming = _training.streaming(workers, micro_batch, compiled, on_error=on_error.value)
        runs = _train(
            job,
            world,
            force=force,
            together=together,
            tensorboard=tensorboard,
            command=_command(context, given, world),
            streaming=streaming,
        )
        if evaluate:
            runs = _evaluate(runs, job.data, world, streaming)
    if not world.first:
        return
    if json:
        _console.print_json(_document(runs))
    else:
        _show(runs, job, where=places.where)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _seeds(number: int | None, each: list[int] | None) -> list[int] | None:
    if number is not None and each:
        raise typer.BadParameter("give either --seeds or --seed, not both")
    return list(range(number)) if number is not None else each or None


def _named(first: list[Path] | None, more: list[Path] | None) -> list[Path]:
    """The teachers' folders: one behind each --teachers, and what follows it."""
    if more and not first:
        words = ", ".join(map(str, more))
        raise typer.BadParameter(f"got unexpected argument(s) {words}; runs stand after --teachers")
    return [*(first or []), *(more or [])]


@dataclass(frozen=True)
class Asked:
    """What the user typed about runs, as far as it is not about data; None where nothing was.

    Attributes:
        methods: as typed.
        seeds: of the runs.
        recipe: its name.
        overrides: of the recipe, as typed.
        held_out: fraction of each class.
        precision: of the network.
        teachers: that the runs learn from.
        teacher_logits: from their saved logits.
    """

    methods: Sequence[str]
    seeds: Sequence[int] | None
    recipe: str | None
    overrides: Sequence[str]
    held_out: float | None
    precision: str | None
    teachers: Sequence[Run]
    teacher_logits: bool

    def complete(self, spec: RunSpec) -> RunSpec:
        """The spec with what is neither data, method, recipe nor seed."""
        from longtail.train.teachers import with_teachers

        if self.precision is not None:  # float32 goes without saying
            settings = {key: value for key, value in spec.settings.items() if key != "precision"}
            settings |= {} if self.precision == "float32" else {"precision": self.precision}
            spec = replace(spec, settings=settings)
        if self.teachers:
            spec = with_teachers(spec, self.teachers, saved=self.teacher_logits)
        return spec


@dataclass(frozen=True)
class Job:
    """What to train.

    Attributes:
        specs: of the runs, each once.
        data: their data set.
        root: the folder of runs.
        teachers: those that were named; a resumed run's others are found below the root.
    """

    specs: Sequence[RunSpec]
    data: AnyData
    root: Path
    teachers: Sequence[Run] = ()

    @property
    def on_disk(self) -> bool:
        """Whether the images stay on disk."""
        from longtail.data.large import ListedData

        return isinstance(self.data, ListedData)

    @property
    def folders(self) -> list[Path]:
        """Of the runs."""
        return [self.root / spec.folder for spec in self.specs]

    def states(self, folders: Sequence[Path] | None = None) -> list[str]:
        """Of each run, or of those in some folders: ``finished``, ``begun`` or ``new``."""
        from longtail.runs import Run
        from longtail.runs.folder import same_training

        found = []
        for folder in self.folders if folders is None else folders:
            state = "new"
            if (folder / "run.json").exists():
                run = Run.open(folder, verify=False, unfinished=True)
                same_training(run, self.data.train.fingerprint)
                state = "finished" if run.finished else "begun"
            found.append(state)
        return found


def _plan(
    asked: Asked, dataset: str | None, read: Callable[[str, bool], AnyData], out: Path
) -> Job:
    """The runs that the options name; what can be refused without the data is, before reading.

    Args:
        asked: the options.
        dataset: its name, frozen file or folder.
        read: reads it, given whether its images stay on disk.
        out: the folder of runs.
    """
    from longtail import _checks
    from longtail._checks import InputError
    from longtail.train.methods import parse_method
    from longtail.train.recipe import RECIPES, make_spec, parse_overrides, recipe_values
    from longtail.train.teachers import TeacherPool
    from longtail.train.validate import validate

    if dataset is None:
        raise typer.BadParameter("missing option '--dataset'")
    if not asked.methods:
        raise typer.BadParameter("missing option '--method'; `longtail explain` lists the losses")
    methods = [parse_method(text) for text in asked.methods]
    overrides = parse_overrides(asked.overrides)
    values = {} if asked.recipe is None else recipe_values(asked.recipe)  # or an unknown name
    if asked.held_out is not None:
        _checks.fraction(asked.held_out, name="--held-out", below_one=True)
    _training.refuse_unknown(dataset, "--dataset")
    # A folder of photographs in one sub-folder per class can be read either way: its recipe tells.
    cropped = bool(overrides.get("image_size", values.get("image_size")))
    data = read(dataset, _training.is_on_disk(dataset) or (cropped and Path(dataset).is_dir()))
    recipe = asked.recipe or RECIPE_OF.get(data.spec.name)
    if recipe is None:
        raise InputError(
            f"no recipe is settled for {data.spec.name!r}; name one with --recipe "
            f"({', '.join(RECIPES)}) and change what must be with --set."
        )
    spec = replace(data.spec, held_out=asked.held_out or 0.0)
    made = [
        asked.complete(
            make_spec(spec, method=method, recipe=recipe, seed=seed, overrides=overrides)
        )
        for seed in asked.seeds or [0]  # every method of a seed first: they are compared
        for method in methods
    ]
    job = Job(list({one.folder: one for one in made}.values()), data, out, asked.teachers)
    validate(job.specs, data.train)
    TeacherPool(job.specs, data.train, root=out, given=asked.teachers)
    return job


def _resumed(folder: Path, asked: Asked, subset: dict[str, Any], places: _training.RunData) -> Job:
    """The run of a folder, if nothing that was typed beside it says otherwise.

    Args:
        folder: the run's.
        asked: the options.
        subset: fields of a DataSpec, None where nothing was typed.
        places: where the data are, as typed.
    """
    from longtail.data import DATASETS
    from longtail.data.large import LARGE
    from longtail.runs import Run, RunError

    run = Run.open(folder, verify=False, unfinished=True)
    spec, place = run.spec, folder.resolve()
    if places.dataset in (*DATASETS, *LARGE):
        subset = {**subset, "name": places.dataset}
    wrong = spec.difference(_beside(spec, asked, subset))
    if wrong:
        raise RunError(
            f"{folder} can't be resumed with these options, which ask for another run: "
            f"{'; '.join(wrong)} (the folder's against yours)."
        )
    if place.parts[-2:] != spec.folder.parts:
        raise RunError(
            f"{folder} was renamed, so it can't be resumed; its last two names must be "
            f"{spec.folder.as_posix()}."
        )
    root = folder.parent.parent  # as it was typed, where that leads there
    if (root / spec.folder).resolve() != place:
        root = place.parents[1]
    return Job([spec], places.of(run), root, asked.teachers)


def _beside(spec: RunSpec, asked: Asked, subset: dict[str, Any]) -> RunSpec:
    """A run's spec with what was typed in the place of its own."""
    from longtail.train.recipe import make_spec, parse_overrides

    if len(asked.methods) > 1 or len(asked.seeds or []) > 1:
        raise typer.BadParameter("--resume continues one run: one method and one seed")
    typed = {**subset, "held_out": asked.held_out}
    dataset = replace(spec.dataset, **{k: v for k, v in typed.items() if v is not None})
    seed = spec.seed if asked.seeds is None else asked.seeds[0]
    found = replace(spec, dataset=dataset, seed=seed)
    recipe = asked.recipe or spec.recipe.name
    if asked.methods or asked.overrides or recipe != spec.recipe.name:
        own: dict[str, Any] = {}
        if recipe == spec.recipe.name:
            own = {"model": spec.model.name, **spec.model.settings, **spec.recipe.overrides}
        remade = make_spec(
            dataset,
            method=asked.methods[0] if asked.methods else spec.method,
            recipe=recipe,
            seed=seed,
            overrides={**own, **parse_overrides(asked.overrides)},
        )
        found = replace(found, model=remade.model, method=remade.method, recipe=remade.recipe)
    return asked.complete(found)


_OF_SUBSETS = ("profile", "ratio", "counts", "fit", "subset_seed", "together")
_OF_DISKS = ("root", "workers", "micro_batch", "on_error", "compiled")


def _refuse_idle(given: list[str], context: typer.Context, *, on_disk: bool) -> None:
    """Refuse an option that would do nothing to this kind of data."""
    idle = [name for name in (_OF_SUBSETS if on_disk else _OF_DISKS) if name in given]
    if idle:
        option = next(p for p in context.command.params if p.name == idle[0]).opts[0]
        kind = "stay on disk" if on_disk else "are read into memory"
        raise typer.BadParameter(f"{option} does nothing here: the images of this data set {kind}")


def _check_judging(job: Job, typed: list[str], *, force: bool) -> None:
    """Refuse before training what could not be judged after it.

    That is logits of the test set that are too large, and finished runs that were judged on
    another one.
    """
    from longtail.runs import Run
    from longtail.runs.folder import same_images
    from longtail.train.evaluation import refuse_logits
    NO_LOGITS = ''

    test = job.data.test
    instead = f"train with --no-evaluate, then {NO_LOGITS}"
    refuse_logits(len(test), test.num_classes, what="the test set", instead=instead)
    if not force:
        states = zip(job.folders, job.states(), strict=True)
        finished = [Run.open(f, verify=False) for f, state in states if state == "finished"]
        judged = [(run, test.fingerprint) for run in finished if "test" in run.splits]
        same_images(judged, "test", data=typed)


def _warn(job: Job, *, evaluate: bool) -> None:
    """Say which classes the test set can't judge, and which images lie beside the class folders."""
    import numpy as np

    from longtail import _checks

    test = job.data.test
    lacking = np.setdiff1d(np.arange(test.num_classes), test.labels) if evaluate else ()
    if absent := _checks.class_words(lacking, test.class_names):
        _console.warning_line(
            f"the test set has no examples of {absent}: its mean error will be that of the others"
        )
    if stray := getattr(job.data, "stray", ()):
        words = _checks.listing(stray, most=3)
        _console.warning_line(f"left out, since in no class folder: {words}")


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
    job: Job, world: World, *, force: bool, together: int | None, tensorboard: bool, **options: Any
) -> list[Run]:
    """Train while the first process shows how far it is, and on Ctrl-C says what is kept."""
    from longtail.report.tables import plural
    from longtail.train import engine

    options |= {"root": job.root, "device": world.device, "world": world, "force": force}
    options |= {"teachers": job.teachers, "together": together or engine.TOGETHER}
    if not world.first:
        return engine.train_cohort(job.specs, job.data.train, **options)
    states = ["new"] * len(job.specs) if force else job.states()
    _say_plan(job, states, world)
    with ExitStack() as stack:
        if tensorboard:
            from longtail.train.tensorboard import TensorBoard

            options["after_epoch"] = stack.enter_context(TensorBoard())
        stack.enter_context(_saying_what_is_saved(job, options["command"], force=force))
        left = plural(len(states) - states.count("finished"), "run", "runs")
        options["progress"] = stack.enter_context(_console.progress(left))
        return engine.train_cohort(job.specs, job.data.train, within_epoch=True, **options)


def _evaluate(runs: list[Run], data: AnyData, world: World, streaming: Streaming) -> list[Run]:
    from longtail.train.engine import evaluate

    found = []
    with _console.progress("evaluating") if world.first else nullcontext() as progress:
        for done, run in enumerate(runs):
            if progress is not None:
                progress(done, len(runs), run.folder.name)
            found.append(
                evaluate(run, data.test, device=world.device, world=world, streaming=streaming)
            )
    return found


def _say_plan(job: Job, states: list[str], world: World) -> None:
    """Say before work begins what will be done, and what is there already."""
    from longtail.posthoc import leaves_little
    from longtail.report.tables import plural
    from longtail.train import checkpoint
    from longtail.train.engine import device_words
    from longtail.train.validate import precision_of
    from longtail.train.methods import Method

    finished = states.count("finished")
    if finished == len(states):
        there = plural(finished, "run", "runs")
        _console.note(f"Nothing to train: {there} finished already (--force: again).")
        return
    spec = job.specs[0]
    text = (
        f"Training {plural(len(states) - finished, 'run', 'runs')} on "
        f"{device_words(world.device, world.count)} in "
        f"{precision_of(spec)}: {spec.dataset.name} ({_data.subset_words(spec.dataset)}), "
        f"recipe {spec.recipe.name}, {plural(spec.recipe.values['epochs'], 'epoch', 'epochs')}."
    )
    if finished:
        text += f" Finished already: {finished} of {len(states)}."
    begun = [f for f, state in zip(job.folders, states, strict=True) if state == "begun"]
    # One that was killed before its first checkpoint begins again.
    if continued := sum(checkpoint.epochs_done(folder) > 0 for folder in begun):
        text += f" Interrupted before, now continued: {continued}."
    _console.note(_console.wrapped(text))
    # Deferred weights on top of a loss that aims at the balanced error by itself: no error, since
    # the literature has such rows.
    prior = job.data.train.prior
    left = [one.method for one, s in zip(job.specs, states, strict=True) if s != "finished"]
    for method in dict.fromkeys(left):
        trained = Method.of(method)
        if trained.drw and leaves_little(replace(trained, drw=False).residual_adjustment(prior), prior):
            _console.warning_line(
                f"{method.name} corrects for class frequencies twice: {trained.loss} aims at the "
                f"balanced error by itself, and drw weighs rare classes more on top of it; "
                f"{trained.loss} alone, or softmax+drw, does it once."
            )


@contextmanager
def _saying_what_is_saved(job: Job, command: str, *, force: bool) -> Iterator[None]:
    """On Ctrl-C, a full disk and the like, say what is kept and how to go on."""
    from longtail.report.tables import plural
    from longtail.train import checkpoint

    def written() -> dict[Path, int]:
        records = {folder: folder / "run.json" for folder in job.folders}
        return {
            folder: path.stat().st_mtime_ns for folder, path in records.items() if path.exists()
        }

    before = written() if force else {}
    try:
        yield
    except (KeyboardInterrupt, OSError):
        # What --force has not come to is of before, perhaps of other data: it is not looked into.
        old = dict(before.items() & written().items())
        folders = [folder for folder in job.folders if folder not in old]
        states = job.states(folders)
        saved = [
            found.epochs
            for folder, state in zip(folders, states, strict=True)
            if state == "begun" and (found := checkpoint.latest(folder)) is not None
        ]
        runs = plural(len(job.folders), "run", "runs")
        text = f"{states.count('finished')} of {runs} finished"
        if saved:
            epochs = f"{min(saved)}" if len(set(saved)) == 1 else f"{min(saved)} to {max(saved)}"
            text += f", {len(saved)} saved after epoch {epochs}"
        if unsaved := states.count("begun") - len(saved):
            text += f", {unsaved} begun but not saved yet"
        also = ""
        if old:
            text += f", {len(old)} not begun again, and so as before"
            also = f" ({len(old)} will stay as before; with --force all begin again)"
        if old and not folders:
            command, also = f"{command} --force", ""
        _console.note(f"Stopped: {text}. To go on{also}:\n  {command}")
        raise


def _errors(runs: list[Run]) -> dict[str, dict[Path, float]]:
    """The balanced error of each run, by split and folder, for splits that every run has."""
    return {
        split: {run.folder: _training.Judged.on(run, split).error.balanced_error for run in runs}
        for split in SPLITS
        if all(split in run.splits for run in runs)
    }


def _document(runs: list[Run]) -> dict[str, Any]:
    """The errors of the finished runs, and of each method's, for a program."""
    from longtail.runs.naming import by_method

    errors = _errors(runs)
    methods = []
    for name, group in by_method(runs).items():
        entry: dict[str, Any] = {"method": name, "seeds": [run.spec.seed for run in group]}
        for split, values in errors.items():
            of_group = [values[run.folder] for run in group]
            entry[split] = {
                "balanced_error": sum(of_group) / len(of_group),
                "deviation": _training.deviation(of_group),
            }
        entry["seconds"] = sum(run.record["seconds"] for run in group) / len(group)
        methods.append(entry)
    listed = [
        {
            "folder": run.folder,
            "spec": run.spec.to_json(),
            "device": run.record["device"],
            "seconds": run.record["seconds"],
            "balanced_error": {split: values[run.folder] for split, values in errors.items()},
        }
        for run in runs
    ]
    return {"methods": methods, "runs": listed}


def _show(runs: list[Run], job: Job, *, where: list[str]) -> None:
    """The table of the finished runs, and what to do next.

    Args:
        runs: finished.
        job: theirs.
        where: options that say where the data are, for a command that reads them again.
    """
    from longtail.report import tables
    from longtail.runs.naming import by_method

    errors, methods = _errors(runs), by_method(runs)
    rows = []
    for name, group in methods.items():
        cells = [tables.spread([values[run.folder] for run in group]) for values in errors.values()]
        seconds = sum(run.record["seconds"] for run in group) / len(group)
        rows.append((name, str(len(group)), *cells, _console.duration(seconds)))
    spec, several = job.specs[0], any(len(group) > 1 for group in methods.values())
    title = f"{spec.dataset.name} ({_data.subset_words(spec.dataset)}), recipe {spec.recipe.name}"
    header = ("method", "seeds", *(SPLITS[split] for split in errors), "time a run")
    spread = ", mean over the seeds ± standard deviation" if several else ""
    note = f"Balanced error in percent{spread}." if errors else ""
    absent = _training.Judged.on(runs[0], "test").absent if "test" in errors else ""
    if absent:
        note += f" Without examples in the test set: {absent}, left out of the means."
    _console.show_table(tables.Table(title, header, rows, note=note))
    folder = job.root / spec.dataset.name
    if "test" not in errors:
        _say_next("Not judged on the test set yet", "evaluate", folder, *where)
    elif spec.dataset.held_out:
        # Only plain runs: the other losses have their adjustment in them already.
        for run in [run for run in runs if run.spec.method.name == "softmax"][:1]:
            _say_next("To choose tau on the held-out part", "tune", run.folder)
    elif absent:
        _say_next("For classes with many, medium and few examples", "evaluate", folder)
    else:
        _say_next("For intervals, post-hoc methods and a page", "report", folder)


def _say_next(why: str, *command: str | Path) -> None:
    """A line with a command to type next."""
    _console.line(f"{why}: {shlex.join(['longtail', *map(str, command)])}")
