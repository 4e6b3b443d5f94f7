"""`longtail train`: methods and seeds on one data set, each into its run folder."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli import _console, _data, _training
from longtail.cli._console import JsonOption, option

if TYPE_CHECKING:
    from longtail.cli._training import AnyData
    from longtail.metrics import PerClassError
    from longtail.runs import Part, Run, RunSpec
    from longtail.train.distributed import World
    from longtail.train.pretrained import Weights

    Errors = dict[str, dict[Path, PerClassError]]  # by split and folder

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
# Options that do nothing to images on disk, and to images in memory.
_OF_SUBSETS = ("profile", "ratio", "counts", "fit", "subset_seed", "together")
_OF_DISKS = ("root", "workers", "micro_batch", "on_error", "compiled")

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class Precision(StrEnum):
    """Of the network's forward and backward pass."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


class OnError(StrEnum):
    """Consequence of an image that can't be decoded."""

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
        option("NAME", "A name, folder or file; see above.", autocompletion=_data._complete),
    ] = None,
    method: Annotated[
        list[str] | None,
        option("METHOD", "See above; repeat it for several.", autocompletion=_complete_method),
    ] = None,
    seeds: Annotated[int | None, option("N", "Seeds 0 to N-1 of each method.", min=1)] = None,
    seed: Annotated[list[int] | None, option("K", "Or this seed; repeatable.", min=0)] = None,
    recipe: Annotated[
        str | None,
        option("NAME", "If absent, what suits the data.", autocompletion=_complete_recipe),
    ] = None,
    overrides: Annotated[
        list[str] | None, option("KEY=VALUE", "Change the recipe: lr=0.05; repeatable.", "--set")
    ] = None,
    weights: Annotated[
        Path | None, option("FILE", "Start from these, with torchvision's names.")
    ] = None,
    teachers: Annotated[
        list[Path] | None, option("RUN", "Learn from finished runs, or a folder's.")
    ] = None,
    more: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN", help="Teachers after the first.")
    ] = None,
    teacher_logits: Annotated[
        bool, option(None, "From their logits (evaluate --split train).", "--teacher-logits")
    ] = False,
    held_out: Annotated[
        float | None, option("X", "Keep out this share of each class, for tau.")
    ] = None,
    data_dir: _data.DataDirOption = None,
    profile: _data.ProfileOption = None,
    ratio: _data.RatioOption = None,
    counts: _data.CountsOption = None,
    fit: _data.FitOption = False,
    subset_seed: _data.SubsetSeedOption = 0,
    out: Annotated[Path, option("FOLDER", "The folder of runs.", "--out", "-o")] = Path("runs"),
    device: _training.DeviceOption = "auto",
    precision: Annotated[
        Precision, option("NAME", "float32, bfloat16; auto: by the device.")
    ] = Precision.auto,
    together: Annotated[
        int | None, option("N", "Runs at a time on a GPU; 16 if absent.", min=1)
    ] = None,
    root: _training.RootOption = None,
    workers: _training.WorkersOption = None,
    micro_batch: Annotated[
        int | None, option("N", "On disk: images at once; gradients add up.", min=1)
    ] = None,
    on_error: Annotated[
        OnError, option("stop|skip", "On disk: what can't be decoded.", "--on-error")
    ] = OnError.stop,
    compiled: Annotated[
        bool | None,
        option(None, "On disk: torch.compile; on a GPU if absent.", "--compile/--no-compile"),
    ] = None,
    tensorboard: Annotated[
        bool, option(None, "Also log into each run's folder.", "--tensorboard")
    ] = False,
    evaluate: Annotated[
        bool, option(None, "Judge the runs on the test set.", "--evaluate/--no-evaluate")
    ] = True,
    resume: Annotated[Path | None, option("RUN", "Continue this run folder.")] = None,
    force: Annotated[bool, option(None, "Train again what is there already.", "--force")] = False,
    json: JsonOption = False,
) -> None:
    """Train on long-tailed images: many runs together on one GPU, or one run on many.

    Each run gets a folder below --out. Training never sees the test set; the finished runs are
    judged on it. The same command goes on where it was interrupted, and trains nothing twice.

    \b
    DATASET  cifar10-lt, cifar100-lt, digits-lt, a frozen file, embeddings (.npz,
             .npy, .parquet) or a folder of images; streamed from disk:
             imagenet-lt, places-lt, inaturalist or a folder of lists
    METHOD   a loss, and what comes on top: softmax, logit-adjusted:tau=1.5,
             ldam+drw:start=120, balanced+label-smoothing, softmax+over-sampling
             (`longtail explain` lists them; post-hoc methods need no training)
    RECIPE   tuned, paper, strong, strong-student, released, ldam, digits,
             imagenet-lt, inaturalist, finetune, scratch, embeddings

    \b
    Examples:
      longtail train --dataset cifar100-lt --method logit-adjusted --seeds 5
      longtail train --dataset cifar10-lt --method softmax --held-out 0.2
      longtail train --dataset photos --method softmax --weights r50.safetensors
      longtail train --dataset features.npz --method logit-adjusted --seeds 5
      longtail train --resume runs/digits-lt/softmax-s0-10db5896
      torchrun --standalone --nproc-per-node 8 -m longtail train \\
          --dataset inaturalist --data-dir inat --method logit-adjusted
    """
    from longtail import _checks
    from longtail._checks import InputError

    for module in ("torch", "safetensors"):
        _checks.require(module, extra="train")
    from longtail.train import distributed, own_data
    from longtail.train.evaluation import evaluate as write_logits
    from longtail.train.evaluation import refuse_logits
    from longtail.train.methods import Method
    from longtail.train.pretrained import read_weights
    from longtail.train.recipe import parse_overrides, recipe_values
    from longtail.train.streamed import Streaming

    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    if teacher_logits and not teachers:
        raise typer.BadParameter("--teacher-logits needs --teachers")
    if more and not teachers:
        words = ", ".join(map(str, more))
        raise typer.BadParameter(f"got unexpected argument(s) {words}; runs stand after --teachers")
    if seeds is not None and seed:
        raise typer.BadParameter("give either --seeds or --seed, not both")
    asked = seed or None if seeds is None else list(range(seeds))
    places = _training.RunData(dataset, data_dir, root)
    with distributed.joined(_training.find_device(device)) as world:
        taught: list[Run] = []
        if teachers:
            from longtail.cli._opening import open_teachers

            taught = open_teachers([*teachers, *(more or [])])
        start = None if weights is None else read_weights(weights)
        exact = None if precision == Precision.auto else precision.value
        if exact is None and resume is None:  # a resumed run has its own
            exact = "bfloat16" if world.device.type == "cuda" else "float32"
        settings = partial(
            _with_settings, precision=exact, teachers=taught, saved=teacher_logits, weights=start
        )
        data: AnyData
        if resume is not None:
            for name in ("force", "counts", "fit", "out"):
                if name in given:
                    raise typer.BadParameter(f"--{name} can't stand beside --resume")
            if len(method or []) > 1 or len(asked or []) > 1:
                raise typer.BadParameter("--resume continues one run: one method and one seed")
            subset: dict[str, Any] = {"profile": profile and profile.value}
            subset |= {"imbalance_ratio": ratio, "held_out": held_out}
            subset |= {"seed": subset_seed} if "subset_seed" in given else {}
            typed: dict[str, Any] = {"method": method and method[0], "seed": asked and asked[0]}
            typed |= {"recipe": recipe, "overrides": overrides or [], "subset": subset}
            run, out = _resumed(resume, places, settings, **typed)
            specs, data = [run.spec], places.of(run)
        else:
            # What can be refused without the data is, before they are read.
            if dataset is None:
                raise typer.BadParameter("missing option '--dataset'")
            if not method:
                words = "missing option '--method'; `longtail explain` lists the losses"
                raise typer.BadParameter(words)
            methods = [Method.of(text).part for text in method]
            changed = parse_overrides(overrides or [])
            size = recipe_values(recipe).get("image_size", 0) if recipe else None
            size = None if recipe in own_data.RECIPES else size
            if held_out is not None:
                _checks.fraction(held_out, name="--held-out", below_one=True)
            _training.refuse_unknown(dataset, "--dataset")
            if recipe == own_data.FINETUNE and start is None:
                raise InputError(
                    "the recipe finetune starts from weights; give them: --weights FILE."
                )
            options = {"data_dir": data_dir, "profile": profile, "ratio": ratio}
            options |= {"counts": counts, "fit": fit, "subset_seed": subset_seed}
            size = changed.get("image_size", size)
            data = _read(dataset, root, options, size=size, colour=start is not None)
            specs, said = _planned(methods, asked or [0], recipe, changed, data, start, held_out)
            specs = list({spec.folder: spec for spec in map(settings, specs)}.values())
            for text in said if world.first else ():
                _console.note(_console.wrapped(text))
        on_disk = specs[0].dataset.settings.get("list") is not None
        for name in _OF_SUBSETS if on_disk else _OF_DISKS:
            if name in given:
                flag = next(p for p in context.command.params if p.name == name).opts[0]
                kind = "stay on disk" if on_disk else "are read into memory"
                raise typer.BadParameter(
                    f"{flag} does nothing here: the images of this data set {kind}"
                )
        if evaluate:
            instead = "train with --no-evaluate, then count errors: longtail evaluate --errors-only"
            test = data.test
            refuse_logits(len(test), test.num_classes, what="the test set", instead=instead)
        how: dict[str, Any] = {"device": world.device, "world": world}
        if on_disk:
            how["streaming"] = Streaming(
                workers=workers,
                on_error=on_error.value,
                micro_batch=micro_batch or 256,
                compile=compiled,
            )
        cohort = {**how, "teachers": taught, "weights": start, "force": force}
        cohort |= {"command": _command(context, given, world)}
        cohort |= {} if together is None else {"together": together}
        runs = _train(specs, data, out, tensorboard=tensorboard, judged=evaluate, **cohort)
        if evaluate:
            with _console.progress("evaluating") if world.first else nullcontext() as progress:
                for done, run in enumerate(runs):
                    if progress is not None:
                        progress(done, len(runs), run.folder.name)
                    runs[done] = write_logits(run, data.test, **how)
    if not world.first:
        return
    errors = {  # by split and folder, for splits that every run has
        split: {run.folder: _training.errors_on(run, split) for run in runs}
        for split in SPLITS
        if all(split in run.splits for run in runs)
    }
    if json:
        _console.print_json(_document(runs, errors))
    else:
        _show(runs, errors, out, places)


def _with_settings(
    spec: RunSpec,
    *,
    precision: str | None,
    teachers: Sequence[Run],
    saved: bool,
    weights: Weights | None,
) -> RunSpec:
    """Return the spec with what is neither data, method, recipe nor seed."""
    if precision is not None:  # float32 goes without saying
        settings = {key: value for key, value in spec.settings.items() if key != "precision"}
        settings |= {} if precision == "float32" else {"precision": precision}
        spec = replace(spec, settings=settings)
    if teachers:
        from longtail.train.teachers import with_teachers

        spec = with_teachers(spec, teachers, saved=saved)
    if weights is not None:
        from longtail.train.pretrained import with_weights

        spec = with_weights(spec, weights)
    return spec


def _planned(
    methods: Sequence[Part],
    seeds: Sequence[int],
    recipe: str | None,
    overrides: dict[str, Any],
    data: AnyData,
    weights: Weights | None,
    held_out: float | None,
) -> tuple[list[RunSpec], list[str]]:
    """Return the specs of all methods and seeds, and lines about what was chosen for the user."""
    from longtail.train import own_data
    from longtail.train.recipe import Recipe, make_spec

    embedded = getattr(data.train, "is_embeddings", False)
    usual = "embeddings" if embedded else RECIPE_OF.get(data.spec.name, own_data.SCRATCH)
    recipe = recipe or (usual if weights is None else own_data.FINETUNE)
    if weights is not None and "model" not in overrides:
        overrides["model"] = weights.find_model()
    if recipe in own_data.RECIPES:
        how: dict[str, Any] = {"given": overrides, "pretrained": weights is not None}
        overrides = {**own_data.settle(recipe, data.train, **how), **overrides}
    spec = replace(data.spec, held_out=held_out or 0.0)
    made = [
        make_spec(spec, method=method, recipe=recipe, seed=seed, overrides=overrides)
        for seed in seeds  # every method of a seed first: they are compared
        for method in methods
    ]
    said = []
    if recipe in own_data.RECIPES:
        said.append(own_data.words(spec.name, Recipe.of(made[0])))
    if weights is not None:
        said += weights.left_out(made[0], data.train)
    return made, said


def _read(
    dataset: str, root: Path | None, options: dict[str, Any], *, size: int | None, colour: bool
) -> AnyData:
    """The data; a folder with one sub-folder per class can be read either way.

    Args:
        dataset: its name, frozen file or folder.
        root: where images on disk are.
        options: how it is read into memory.
        size: what its images are to be cropped to, 0 for images that have one size; None to take
            small images of one size into memory, and to stream others.
        colour: whether images in memory must have three channels.
    """
    from longtail.data import DATASETS
    from longtail.data.large import load_listed
    from longtail.train.own_data import fits_memory

    listed = dataset not in DATASETS and _training.is_on_disk(dataset)
    if listed or (size != 0 and dataset not in DATASETS and Path(dataset).is_dir()):
        data = load_listed(dataset, data_dir=options["data_dir"], root=root)
        if listed or size or not fits_memory(data, colour=colour):
            return data
    return _data.load(dataset, **options)


def _resumed(
    folder: Path,
    places: _training.RunData,
    settings: Callable[[RunSpec], RunSpec],
    *,
    method: str | None,
    seed: int | None,
    recipe: str | None,
    overrides: list[str],
    subset: dict[str, Any],
) -> tuple[Run, Path]:
    """Return the run of a folder and the folder of runs, unless the options ask for another run.

    Args:
        folder: the run's.
        places: where the data are, as typed.
        settings: completes a spec, see `_with_settings`.
        method: as typed, None where nothing was; likewise what follows.
        seed: of the run.
        recipe: its name.
        overrides: of the recipe.
        subset: fields of a DataSpec.
    """
    from longtail.data import DATASETS
    from longtail.data.large import LARGE
    from longtail.runs import Run, RunError
    from longtail.train.recipe import make_spec, parse_overrides

    run = Run.open(folder, verify=False, unfinished=True)
    spec, place = run.spec, folder.resolve()
    if places.dataset in (*DATASETS, *LARGE):
        subset = {**subset, "name": places.dataset}
    dataset = replace(spec.dataset, **{k: v for k, v in subset.items() if v is not None})
    typed = replace(spec, dataset=dataset, seed=spec.seed if seed is None else seed)
    recipe = recipe or spec.recipe.name
    if method or overrides or recipe != spec.recipe.name:
        own: dict[str, Any] = {}
        if recipe == spec.recipe.name:
            own = {"model": spec.model.name, **spec.model.settings, **spec.recipe.overrides}
        own |= parse_overrides(overrides)
        made = make_spec(
            dataset, method=method or spec.method, recipe=recipe, seed=typed.seed, overrides=own
        )
        typed = replace(typed, model=made.model, method=made.method, recipe=made.recipe)
    if wrong := spec.difference(settings(typed)):
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
    return run, root if (root / spec.folder).resolve() == place else place.parents[1]


def _command(context: typer.Context, given: list[str], world: World) -> str:
    """Return the command to go on: as typed, without options that would begin again."""
    words = ["longtail", "train"]
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name not in given or parameter.name in ("force", "json"):
            continue
        if isinstance(value, bool):
            words.append(parameter.opts[0] if value else parameter.secondary_opts[0])
            continue
        flag = "--teachers" if parameter.name == "more" else parameter.opts[0]
        for one in value if isinstance(value, list | tuple) else [value]:
            words += [flag, str(one)]
    command = shlex.join(words)
    if world.count == 1:
        return command
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    machines = "--standalone" if here == world.count else f"--nnodes={world.count // here}"
    return f"torchrun {machines} --nproc-per-node={here} -m {command}"


def _train(
    specs: list[RunSpec],
    data: AnyData,
    root: Path,
    *,
    tensorboard: bool,
    judged: bool,
    world: World,
    **options: Any,
) -> list[Run]:
    """Train while the first process shows how far it is, and on Ctrl-C says what is kept."""
    from longtail.report.tables import plural
    from longtail.train.engine import train_cohort

    if not world.first:
        return train_cohort(specs, data.train, root=root, world=world, **options)
    with ExitStack() as stack:
        progress: Any = None

        def begin(states: dict[Path, str]) -> None:
            nonlocal progress
            left = [spec for spec in specs if states[root / spec.folder] != "finished"]
            _say_plan(specs, left, data, states, world, judged=judged)
            progress = stack.enter_context(_console.progress(plural(len(left), "run", "runs")))

        if tensorboard:
            from longtail.train.tensorboard import TensorBoard

            options["after_epoch"] = stack.enter_context(TensorBoard())
        options |= {"begin": begin, "progress": lambda *done: progress(*done), "within_epoch": True}
        try:
            return train_cohort(specs, data.train, root=root, world=world, **options)
        except (KeyboardInterrupt, OSError):  # a full disk and the like
            folders = [root / spec.folder for spec in specs]
            _say_what_is_saved(folders, options["command"], options["force"])
            raise


def _say_plan(
    specs: list[RunSpec],
    left: list[RunSpec],
    data: AnyData,
    states: dict[Path, str],
    world: World,
    *,
    judged: bool,
) -> None:
    """Say before work begins what will be done, what is there already, and what to look out for."""
    import numpy as np

    from longtail import _checks
    from longtail.posthoc import leaves_little
    from longtail.report.tables import plural
    from longtail.train import checkpoint
    from longtail.train.engine import device_words
    from longtail.train.methods import Method

    test, spec = data.test, specs[0]
    precision = spec.settings.get("precision", "float32")
    lacking = np.setdiff1d(np.arange(test.num_classes), test.labels) if judged else ()
    if len(lacking):
        absent = _checks.class_words(lacking, test.class_names)
        _console.warning_line(
            f"the test set has no examples of {absent}: its mean error will be that of the others"
        )
    if stray := getattr(data, "stray", ()):
        words = _checks.listing(stray, most=3)
        _console.warning_line(f"left out, since in no class folder: {words}")
    if not left:
        there = plural(len(specs), "run", "runs")
        _console.note(f"Nothing to train: {there} finished already (--force: again).")
        return
    text = (
        f"Training {plural(len(left), 'run', 'runs')} on "
        f"{device_words(world.device, world.count)} in {precision}: "
        f"{spec.dataset.name} ({_data.subset_words(spec.dataset)}), recipe {spec.recipe.name}, "
        f"{plural(spec.recipe.values['epochs'], 'epoch', 'epochs')}."
    )
    if len(left) < len(specs):
        text += f" Finished already: {len(specs) - len(left)} of {len(specs)}."
    # One that was killed before its first checkpoint begins again.
    begun = [folder for folder, state in states.items() if state == "begun"]
    if continued := sum(checkpoint.epochs_done(folder) > 0 for folder in begun):
        text += f" Interrupted before, now continued: {continued}."
    _console.note(_console.wrapped(text))
    # Deferred weights on top of a loss that aims at the balanced error by itself: no error, since
    # the literature has such rows.
    prior = data.train.prior
    for method in dict.fromkeys(one.method for one in left):
        trained = Method.of(method)
        alone = replace(trained, drw=False)
        if trained.drw and leaves_little(alone.residual_adjustment(prior), prior):
            _console.warning_line(
                f"{method.name} corrects for class frequencies twice: {trained.loss} aims at the "
                f"balanced error by itself, and drw weighs rare classes more on top of it; "
                f"{trained.loss} alone, or softmax+drw, does it once."
            )


def _say_what_is_saved(folders: list[Path], command: str, force: bool) -> None:
    """Say what is kept of runs that were stopped, and how to go on."""
    from longtail.report.tables import plural
    from longtail.runs import Run
    from longtail.train import checkpoint

    there = [folder for folder in folders if (folder / "run.json").exists()]
    begun = [f for f in there if not Run.open(f, verify=False, unfinished=True).finished]
    saved = sorted(epoch for f in begun if (epoch := checkpoint.epochs_done(f)))
    text = f"{len(there) - len(begun)} of {plural(len(folders), 'run', 'runs')} finished"
    if saved:
        epochs = " to ".join(map(str, dict.fromkeys((saved[0], saved[-1]))))
        text += f", {len(saved)} saved after epoch {epochs}"
    if unsaved := len(begun) - len(saved):
        text += f", {unsaved} begun but not saved yet"
    also = " (what was finished before stays; with --force all begin again)" if force else ""
    _console.note(f"Stopped: {text}. To go on{also}:\n  {command}")


def _document(runs: list[Run], errors: Errors) -> dict[str, Any]:
    """The errors of the finished runs, and of each method's, for a program."""
    from longtail.runs.naming import by_method

    methods = []
    for name, group in by_method(runs).items():
        entry: dict[str, Any] = {"method": name, "seeds": [run.spec.seed for run in group]}
        for split, values in errors.items():
            of_group = [values[run.folder].balanced_error for run in group]
            mean = sum(of_group) / len(of_group)
            spread = _training.deviation(of_group)
            entry[split] = {"balanced_error": mean, "deviation": spread}
        entry["seconds"] = sum(run.record["seconds"] for run in group) / len(group)
        methods.append(entry)
    listed = [
        {
            "folder": run.folder,
            "spec": run.spec.to_json(),
            "device": run.record["device"],
            "seconds": run.record["seconds"],
            "balanced_error": {key: of[run.folder].balanced_error for key, of in errors.items()},
        }
        for run in runs
    ]
    return {"methods": methods, "runs": listed}


def _show(runs: list[Run], errors: Errors, root: Path, places: _training.RunData) -> None:
    """Print the table of the finished runs, and what to do next.

    Args:
        runs: finished.
        errors: of each split and folder.
        root: the folder of runs.
        places: where the data are, for a command that reads them again.
    """
    from longtail import _checks
    from longtail.report import tables
    from longtail.runs.naming import by_method

    methods = by_method(runs)
    rows = []
    for name, group in methods.items():
        cells = [
            tables.spread([of[run.folder].balanced_error for run in group])
            for of in errors.values()
        ]
        seconds = sum(run.record["seconds"] for run in group) / len(group)
        rows.append((name, str(len(group)), *cells, _console.duration(seconds)))
    spec, several = runs[0].spec, any(len(group) > 1 for group in methods.values())
    title = f"{spec.dataset.name} ({_data.subset_words(spec.dataset)}), recipe {spec.recipe.name}"
    header = ("method", "seeds", *(SPLITS[split] for split in errors), "time a run")
    spread = ", mean over the seeds ± standard deviation" if several else ""
    note = f"Balanced error in percent{spread}." if errors else ""
    missing = errors["test"][runs[0].folder].missing_classes if "test" in errors else ()
    if absent := _checks.class_words(missing, runs[0].class_names):
        note += f" Without examples in the test set: {absent}, left out of the means."
    _console.show_table(tables.Table(title, header, rows, note=note))
    folder = root / spec.dataset.name
    plain = [run.folder for run in runs if run.spec.method.name == "softmax"]
    if "test" not in errors:
        why, words = "Not judged on the test set yet", ["evaluate", folder, *places.where]
    elif spec.dataset.held_out and plain:
        why, words = "To choose tau on the held-out part", ["tune", plain[0]]
    elif spec.dataset.held_out:  # the other losses have their adjustment in them already
        return
    elif absent:
        why, words = "For classes with many, medium and few examples", ["evaluate", folder]
    else:
        why, words = "For intervals, post-hoc methods and a page", ["report", folder]
    _console.line(f"{why}: {shlex.join(['longtail', *map(str, words)])}")
