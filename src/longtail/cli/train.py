"""`longtail train`: methods and seeds on one data set, each into its run folder."""

from __future__ import annotations

import os
import shlex
import statistics
from contextlib import nullcontext
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli import _console, _data, _runs
from longtail.cli._console import Failure, option

if TYPE_CHECKING:
    from longtail.runs import Run, RunSpec
    from longtail.train.distributed import World
    from longtail.train.pretrained import Weights

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
_OF_SUBSETS = (*_data.SUBSET, "--together")
_OF_DISKS = ("--root", "--workers", "--micro-batch", "--on-error", "--compile")

Precision = StrEnum("Precision", ["auto", "float32", "bfloat16"])
OnError = StrEnum("OnError", ["stop", "skip"])


def train(
    context: typer.Context,
    dataset: Annotated[str | None, option("NAME", "A name, folder or file; see above.")] = None,
    # Typer 0.27.3 would take METHOD for the option's name.
    method: Annotated[
        list[str] | None, option("METHOD", "See above; repeat it for several.", "--method")
    ] = None,
    seeds: Annotated[int | None, option("N", "Seeds 0 to N-1 of each method.", min=1)] = None,
    seed: Annotated[list[int] | None, option("K", "Or this seed; repeatable.", min=0)] = None,
    recipe: Annotated[str | None, option("NAME", "If absent, what suits the data.")] = None,
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
    data_dir: _data.DataDir = None,
    profile: _data.ProfileOption = None,
    ratio: _data.Ratio = None,
    counts: _data.Counts = None,
    fit: _data.Fit = False,
    subset_seed: _data.SubsetSeed = None,
    out: Annotated[
        Path | None, option("FOLDER", "The folder of runs; ./runs if absent.", "--out", "-o")
    ] = None,
    device: _runs.Device = "auto",
    precision: Annotated[
        Precision, option("NAME", "float32 or bfloat16; auto: by device.", show_default=False)
    ] = Precision.auto,
    together: Annotated[
        int | None, option("N", "Runs at a time on a GPU; 16 if absent.", min=1)
    ] = None,
    root: _runs.Root = None,
    workers: _runs.Workers = None,
    micro_batch: Annotated[
        int | None, option("N", "Images on disk: how many at a time.", min=1)
    ] = None,
    on_error: Annotated[
        OnError | None, option("stop|skip", "Unreadable images on disk; stop if absent.")
    ] = None,
    compile: Annotated[
        bool | None, option(None, "On disk: torch.compile; on a GPU if absent.")
    ] = None,
    tensorboard: Annotated[
        bool, option(None, "Also log into each run's folder.", "--tensorboard")
    ] = False,
    evaluate: Annotated[
        bool, option(None, "Judge the runs on the test set; yes if absent.", show_default=False)
    ] = True,
    resume: Annotated[Path | None, option("RUN", "Continue this run folder.")] = None,
    force: Annotated[bool, option(None, "Train again what is there already.", "--force")] = False,
    json: _console.Json = False,
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

    for module in ("torch", "safetensors"):
        _checks.require(module, extra="train")
    from longtail.train import distributed, engine, evaluation
    from longtail.train.pretrained import read_weights, with_weights
    from longtail.train.streamed import Streaming
    from longtail.train.teachers import with_teachers

    params = context.params.items()
    given = {k: v for k, v in params if v is not None and v is not False and v != ()}
    if more and not teachers:
        raise typer.BadParameter(f"unexpected argument {more[0]}; runs stand after --teachers")
    if teacher_logits and not teachers:
        raise typer.BadParameter("--teacher-logits needs --teachers")
    if seeds is not None and seed:
        raise typer.BadParameter("give either --seeds or --seed, not both")
    asked = seed or None if seeds is None else list(range(seeds))
    places, root_of_runs = _runs.RunData(dataset, data_dir, root), out or Path("runs")
    with distributed.joined(_runs.find_device(device)) as world:
        taught: list[Run] = []
        if teachers:
            taught = _runs.open_runs([*teachers, *(more or [])], together=True)
            names = {run.name for run in taught}  # of an ensemble, its members are enough
            taught = [run for run in taught if not run.members or not set(run.members) <= names]
        start = None if weights is None else read_weights(weights)
        data: Any = None
        notes: list[str] = []
        if resume is not None:
            for name in ("force", "counts", "fit", "out"):
                if name in given:
                    raise typer.BadParameter(f"--{name} can't stand beside --resume")
            if len(method or []) > 1 or len(asked or []) > 1:
                raise typer.BadParameter("--resume continues one run: one method and one seed")
            run, spec = _resumed(resume, given, asked)
            specs = [spec]
        else:
            specs, data, notes = _planned(context.params, asked or [0], start)
        exact = precision.value
        if precision == Precision.auto and resume is None:  # a resumed run has its own
            exact = "bfloat16" if world.device.type == "cuda" else "float32"
        for number, spec in enumerate(specs):
            if exact != "auto":  # float32 goes without saying
                settings = {**spec.settings, "precision": exact}
                if exact == "float32":
                    del settings["precision"]
                spec = replace(spec, settings=settings)
            if taught:
                spec = with_teachers(spec, taught, saved=teacher_logits)
            specs[number] = spec if start is None else with_weights(spec, start)
        if resume is not None:
            root_of_runs = _root_of(resume, run.spec, specs[0])
            specs, data = [run.spec], places.of(run)
        first = world.rank == 0  # the process that prints
        for text in notes if first else ():
            _console.line(text, wrap=True, err=True)
        specs = list({spec.folder: spec for spec in specs}.values())
        on_disk = specs[0].dataset.settings.get("list") is not None
        idle = _OF_SUBSETS if on_disk else _OF_DISKS
        _data.refuse_idle(context, idle, on_disk=on_disk)
        if evaluate:
            instead = "train with --no-evaluate, then count errors: longtail evaluate --errors-only"
            sizes = len(data.test), data.test.num_classes
            evaluation.refuse_logits(*sizes, what="the test set", instead=instead)
        how: dict[str, Any] = {"device": world.device, "world": world}
        if on_disk:
            how["streaming"] = Streaming(
                workers=workers,
                on_error=on_error or "stop",
                micro_batch=micro_batch or 256,
                compile=compile,
            )
        # To go on: as typed, without options that would begin again.
        words = [word for word in context.obj if word not in ("--force", "--json")]
        command = shlex.join(["longtail", *words])
        if world.count > 1:
            here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            machines = "--standalone" if here == world.count else f"--nnodes={world.count // here}"
            command = f"torchrun {machines} --nproc-per-node={here} -m {command}"
        logged: Any = nullcontext()
        if tensorboard and first:
            from longtail.train.tensorboard import TensorBoard

            logged = TensorBoard()
        try:
            with logged as log, _console.progress("training", show=first) as progress:
                runs = engine.train_cohort(
                    specs,
                    data.train,
                    root=root_of_runs,
                    teachers=taught,
                    weights=start,
                    command=command,
                    force=force,
                    together=together or engine.TOGETHER,
                    begin=partial(_say_plan, specs, data, root_of_runs, world, evaluate),
                    progress=progress,
                    after_epoch=log,
                    within_epoch=True,
                    **how,
                )
        except (KeyboardInterrupt, OSError):  # a full disk and the like
            if first:
                _say_what_is_saved([root_of_runs / spec.folder for spec in specs], command, force)
            raise
        if evaluate:
            with _console.progress("evaluating", show=first) as progress:
                for done, run in enumerate(runs):
                    progress(done, len(runs), run.folder.name)
                    runs[done] = evaluation.evaluate(run, data.test, **how)
    if first:
        _show(runs, root_of_runs, places, json)


def _planned(
    given: dict[str, Any], seeds: list[int], weights: Weights | None
) -> tuple[list[RunSpec], Any, list[str]]:
    """Return the specs of all methods and seeds, the data, and lines on what was chosen.

    What can be refused without the data is, before they are read.
    """
    from longtail import _checks
    from longtail.data import DATASETS
    from longtail.data.large import load_listed
    from longtail.train import own_data
    from longtail.train.methods import Method
    from longtail.train.recipe import Recipe, make_spec, parse_overrides, recipe_values

    dataset, recipe, held_out = given["dataset"], given["recipe"], given["held_out"]
    if dataset is None:
        raise typer.BadParameter("missing option '--dataset'")
    if not given["method"]:
        raise typer.BadParameter("missing option '--method'; `longtail explain` lists the losses")
    methods = [Method.of(text).part for text in given["method"]]
    values = parse_overrides(given["overrides"] or [])
    size = recipe_values(recipe).get("image_size", 0) if recipe else None
    size = values.get("image_size", None if recipe in own_data.RECIPES else size)
    if held_out is not None:
        _checks.fraction(held_out, name="--held-out", below_one=True)
    listed = dataset not in DATASETS and _data.is_on_disk(dataset, "--dataset")
    if recipe == own_data.FINETUNE and weights is None:
        raise Failure("the recipe finetune starts from weights; give them: --weights FILE.")
    # A folder with one sub-folder per class is streamed, or read into memory: as a recipe with or
    # without a size to crop images to asks, or else by what its images are.
    data: Any = None
    if listed or (size != 0 and dataset not in DATASETS and Path(dataset).is_dir()):
        data = load_listed(dataset, data_dir=given["data_dir"], root=given["root"])
        if not (listed or size) and own_data.fits_memory(data, colour=weights is not None):
            data = None
    if data is None:
        data = _data.load(dataset, given)
    if recipe is None:
        embedded = getattr(data.train, "is_embeddings", False)
        usual = "embeddings" if embedded else RECIPE_OF.get(data.spec.name, own_data.SCRATCH)
        recipe = usual if weights is None else own_data.FINETUNE
    if weights is not None and "model" not in values:
        values["model"] = weights.find_model()
    if recipe in own_data.RECIPES:
        how: dict[str, Any] = {"given": values, "pretrained": weights is not None}
        values = {**own_data.settle(recipe, data.train, **how), **values}
    spec = replace(data.spec, held_out=held_out or 0.0)
    made = [
        make_spec(spec, method=method, recipe=recipe, seed=seed, overrides=values)
        for seed in seeds  # every method of a seed first: they are compared
        for method in methods
    ]
    notes = []
    if recipe in own_data.RECIPES:
        notes.append(own_data.words(spec.name, Recipe.of(made[0])))
    if weights is not None:
        notes += weights.left_out(made[0], data.train)
    return made, data, notes


def _resumed(folder: Path, given: dict[str, Any], seeds: list[int] | None) -> tuple[Run, RunSpec]:
    """Return the run of a folder, and its spec as changed by the options that were given."""
    from longtail.data import DATASETS
    from longtail.data.large import LARGE
    from longtail.runs import Run
    from longtail.train.recipe import make_spec, parse_overrides

    run = Run.open(folder, verify=False, unfinished=True)
    spec = run.spec
    fields = {"profile": "profile", "imbalance_ratio": "ratio", "held_out": "held_out"}
    subset = {field: given[name] for field, name in fields.items() if name in given}
    if "subset_seed" in given:
        subset["seed"] = given["subset_seed"]
    if given.get("dataset") in (*DATASETS, *LARGE):
        subset["name"] = given["dataset"]
    dataset = replace(spec.dataset, **subset)
    typed = replace(spec, dataset=dataset, seed=seeds[0] if seeds else spec.seed)
    recipe = given.get("recipe", spec.recipe.name)
    if {"method", "overrides"} & given.keys() or recipe != spec.recipe.name:
        own: dict[str, Any] = {}
        if recipe == spec.recipe.name:
            own = {"model": spec.model.name, **spec.model.settings, **spec.recipe.overrides}
        own |= parse_overrides(given.get("overrides", []))
        method = given["method"][0] if "method" in given else spec.method
        made = make_spec(dataset, method=method, recipe=recipe, seed=typed.seed, overrides=own)
        typed = replace(typed, model=made.model, method=made.method, recipe=made.recipe)
    return run, typed


def _root_of(folder: Path, spec: RunSpec, typed: RunSpec) -> Path:
    """Return the folder of runs that a run is resumed in, unless the options ask for another."""
    if wrong := spec.difference(typed):
        raise Failure(
            f"{folder} can't be resumed with these options, which ask for another run: "
            f"{'; '.join(wrong)} (the folder's against yours)."
        )
    place = folder.resolve()
    if place.parts[-2:] != spec.folder.parts:
        raise Failure(
            f"{folder} was renamed, so it can't be resumed; its last two names must be "
            f"{spec.folder.as_posix()}."
        )
    root = folder.parent.parent  # as it was typed, where that leads there
    return root if (root / spec.folder).resolve() == place else place.parents[1]


def _say_plan(
    specs: list[RunSpec],
    data: Any,
    root: Path,
    world: World,
    judged: bool,
    states: dict[Path, str],
) -> None:
    """Say before work begins what will be done, what is there already, what to look out for."""
    import numpy as np

    from longtail import _checks
    from longtail.posthoc import leaves_little
    from longtail.report.tables import plural
    from longtail.train import checkpoint, engine
    from longtail.train.methods import Method

    left = [spec for spec in specs if states[root / spec.folder] != "finished"]
    spec, test = specs[0], data.test
    lacking = np.setdiff1d(np.arange(test.num_classes), test.labels) if judged else ()
    if len(lacking):
        absent = _checks.class_words(lacking, test.class_names)
        _console.line(
            f"the test set has no examples of {absent}: its mean error will be that of the others",
            kind="warning",
        )
    if stray := getattr(data, "stray", ()):
        words = _checks.listing(stray, most=3)
        _console.line(f"left out, since in no class folder: {words}", kind="warning")
    if not left:
        there = plural(len(specs), "run", "runs")
        text = f"Nothing to train: {there} finished already (--force: again)."
        _console.line(text, err=True)
        return
    text = (
        f"Training {plural(len(left), 'run', 'runs')} on "
        f"{engine.device_words(world.device, world.count)} in "
        f"{spec.settings.get('precision', 'float32')}: "
        f"{spec.dataset.name} ({_data.subset_words(spec.dataset)}), recipe {spec.recipe.name}, "
        f"{plural(spec.recipe.values['epochs'], 'epoch', 'epochs')}."
    )
    if len(left) < len(specs):
        text += f" Finished already: {len(specs) - len(left)} of {len(specs)}."
    # One that was killed before its first checkpoint begins again.
    begun = [folder for folder, state in states.items() if state == "begun"]
    if continued := sum(checkpoint.epochs_done(folder) > 0 for folder in begun):
        text += f" Interrupted before, now continued: {continued}."
    _console.line(text, wrap=True, err=True)
    # Deferred weights on top of a loss that aims at the balanced error by itself: no error, since
    # the literature has such rows.
    for method in dict.fromkeys(one.method for one in left):
        trained = Method.of(method)
        if not trained.drw:
            continue
        prior, alone = data.train.prior, replace(trained, drw=False)
        if leaves_little(alone.residual_adjustment(prior), prior):
            _console.line(
                f"{method.name} corrects for class frequencies twice: {trained.loss} aims at the "
                f"balanced error by itself, and drw weighs rare classes more on top of it; "
                f"{trained.loss} alone, or softmax+drw, does it once.",
                kind="warning",
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
    _console.line(f"Stopped: {text}. To go on{also}:\n  {command}", err=True)


def _show(runs: list[Run], root: Path, places: _runs.RunData, json: bool) -> None:
    """Print the errors of finished runs and of each method, and what to do next; or as JSON."""
    import numpy as np

    from longtail import _checks
    from longtail.report import tables
    from longtail.runs.naming import by_method

    splits = [split for split in SPLITS if all(split in run.splits for run in runs)]
    errors = {run.folder: {s: _runs.errors_on(run, s) for s in splits} for run in runs}
    methods, rows = [], []
    for name, group in by_method(runs).items():
        seconds = sum(run.record["seconds"] for run in group) / len(group)
        entry: dict[str, Any] = {"method": name, "seeds": [run.spec.seed for run in group]}
        cells = []
        for split in splits:
            values = [errors[run.folder][split].balanced_error for run in group]
            spread = statistics.stdev(values) if len(values) > 1 else None
            entry[split] = {"balanced_error": sum(values) / len(values), "deviation": spread}
            cells.append(tables.spread(values))
        methods.append({**entry, "seconds": seconds})
        rows.append((name, str(len(group)), *cells, _console.duration(seconds)))
    if json:
        listed = [
            {
                "folder": run.folder,
                "spec": run.spec.to_json(),
                "device": run.record["device"],
                "seconds": run.record["seconds"],
                "balanced_error": {s: e.balanced_error for s, e in errors[run.folder].items()},
            }
            for run in runs
        ]
        _console.print_json({"methods": methods, "runs": listed})
        return
    first, spec = runs[0], runs[0].spec
    title = f"{spec.dataset.name} ({_data.subset_words(spec.dataset)}), recipe {spec.recipe.name}"
    header = ("method", "seeds", *(SPLITS[split] for split in splits), "time a run")
    several = len(rows) < len(runs)
    spread_words = ", mean over the seeds ± standard deviation" if several else ""
    note = f"Balanced error in percent{spread_words}." if splits else ""
    counts = errors[first.folder]["test"].counts if "test" in splits else np.ones(1)
    missing = np.flatnonzero(counts == 0)
    if len(missing):
        absent = _checks.class_words(missing, first.class_names)
        note += f" Without examples in the test set: {absent}, left out of the means."
    _console.show_table(tables.Table(title, header, rows, note=note))
    folder = root / spec.dataset.name
    plain = [run.folder for run in runs if run.spec.method.name == "softmax"]
    if "test" not in splits:
        why, words = "Not judged on the test set yet", ["evaluate", folder, *places.where()]
    elif spec.dataset.held_out and plain:
        why, words = "To choose tau on the held-out part", ["tune", plain[0]]
    elif spec.dataset.held_out:  # the other losses have their adjustment in them already
        return
    elif len(missing):
        why, words = "For classes with many, medium and few examples", ["evaluate", folder]
    else:
        why, words = "For intervals, post-hoc methods and a page", ["report", folder]
    _console.line(f"{why}: {shlex.join(['longtail', *map(str, words)])}")
