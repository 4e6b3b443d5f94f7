"""What `train` does before and during training: options into specs, refusals, one line of news."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from longtail.cli import _training

if TYPE_CHECKING:
    from longtail.cli._console import Progress
    from longtail.cli._training import AnyData
    from longtail.runs import Run, RunSpec
    from longtail.train.engine import EpochEnd

# What a data set is trained with unless the user names a recipe.
RECIPE_OF = {
    "cifar10-lt": "tuned",
    "cifar100-lt": "tuned",
    "digits-lt": "digits",
    "imagenet-lt": "imagenet-lt",
    "places-lt": "imagenet-lt",
    "inaturalist": "inaturalist",
}


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
    teachers: Sequence[Run] = ()
    teacher_logits: bool = False


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
        folders = self.folders if folders is None else folders
        return [_state(folder, self.data.train.fingerprint) for folder in folders]


def plan(asked: Asked, dataset: str | None, read: Callable[[str, bool], AnyData], out: Path) -> Job:
    """The runs that the options name; what can be refused without the data is, before reading.

    Args:
        asked: the options.
        dataset: its name, frozen file or folder.
        read: reads it, given whether its images stay on disk.
        out: the folder of runs.
    """
    from longtail import _checks
    from longtail._checks import InputError
    from longtail.train.engine import validate
    from longtail.train.methods import parse_method
    from longtail.train.recipe import RECIPES
    from longtail.train.recipe import make_spec, parse_overrides, recipe_values
    from longtail.train.teachers import TeacherPool

    if dataset is None:
        raise typer.BadParameter("missing option '--dataset'")
    if not asked.methods:
        raise typer.BadParameter("missing option '--method'; `longtail explain` lists the losses")
    methods = [parse_method(text) for text in asked.methods]
    overrides = parse_overrides(asked.overrides)
    values = {} if asked.recipe is None else recipe_values(asked.recipe)  # or an unknown name
    if asked.held_out is not None:
        _checks.fraction(asked.held_out, "longtail train", name="--held-out", below_one=True)
    # A folder of photographs in one sub-folder per class can be read either way: its recipe tells.
    _training.refuse_unknown(dataset, "--dataset")
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
        _whole(make_spec(spec, method=method, recipe=recipe, seed=seed, overrides=overrides), asked)
        for seed in asked.seeds or [0]  # every method of a seed first: they are compared
        for method in methods
    ]
    job = Job(list({one.folder: one for one in made}.values()), data, out, asked.teachers)
    validate(job.specs, data.train)
    TeacherPool(job.specs, data.train, root=out, given=asked.teachers)
    return job


def _whole(spec: RunSpec, asked: Asked) -> RunSpec:
    """The spec with what is neither data, method, recipe nor seed."""
    from longtail.train.teachers import with_teachers

    precise = _precise(spec, asked.precision)
    if not asked.teachers:
        return precise
    return with_teachers(precise, asked.teachers, saved=asked.teacher_logits)


def _precise(spec: RunSpec, precision: str | None) -> RunSpec:
    """The spec with a precision; float32 goes without saying."""
    settings = {key: value for key, value in spec.settings.items() if key != "precision"}
    if precision not in (None, "float32"):
        settings["precision"] = precision
    return replace(spec, settings=settings)


def resumed(
    folder: Path,
    asked: Asked,
    subset: dict[str, Any],
    *,
    dataset: str | None,
    data_dir: Path | None,
    images: Path | None,
) -> Job:
    """The run of a folder, if nothing that was typed beside it says otherwise.

    Args:
        folder: the run's.
        asked: the options.
        subset: fields of a DataSpec, None where nothing was typed.
        dataset: the data's name, frozen file or folder, if it was typed.
        data_dir: where the original files are.
        images: the root of images on disk.
    """
    from longtail.data import DATASETS
    from longtail.data.large import LARGE
    from longtail.runs import Run, RunError

    run = Run.open(folder, verify=False, unfinished=True)
    spec, place = run.spec, folder.resolve()
    if dataset in (*DATASETS, *LARGE):
        subset = {**subset, "name": dataset}
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
    data = _training.RunData(dataset, data_dir, images).of(run)
    return Job([spec], data, root, asked.teachers)


def _beside(spec: RunSpec, asked: Asked, subset: dict[str, Any]) -> RunSpec:
    """A run's spec with what was typed in the place of its own."""
    from longtail.train.recipe import make_spec, parse_overrides
    from longtail.train.teachers import with_teachers

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
    if asked.precision is not None:
        found = _precise(found, asked.precision)
    if not asked.teachers:
        return found
    return with_teachers(found, asked.teachers, saved=asked.teacher_logits)


def _state(folder: Path, data: str) -> str:
    """How far a run is; one that was trained on other data is refused."""
    from longtail.runs import Run
    from longtail.runs.folder import same_training

    if not (folder / "run.json").exists():
        return "new"
    run = Run.open(folder, verify=False, unfinished=True)
    same_training(run, data)
    return "finished" if run.finished else "begun"


class News:
    """Tells how far a cohort is, after each epoch of each run: a listener for the engine.

    Of runs that train side by side it gives the means.

    Args:
        show: takes (epochs done, epochs in all, text).
        runs: how many will train.
        epochs: of each.
        together: how many of them at a time.
        done: the epochs that resumed ones have behind them, by folder.
    """

    def __init__(
        self,
        show: Progress,
        *,
        runs: int,
        epochs: int,
        together: int,
        done: Mapping[Path, int] | None = None,
    ) -> None:
        self.show, self.runs, self.epochs, self.together = show, runs, epochs, together
        self.latest: dict[Path, EpochEnd] = {}
        self.at = dict(done or {})
        self.errors: dict[Path, float] = {}
        self.words = ""
        self._count()

    def __call__(self, end: EpochEnd) -> None:
        """Take in one epoch of one run."""
        self.at[end.folder] = end.epoch
        self.latest[end.folder] = end
        if end.held_out_error is not None:
            self.errors[end.folder] = end.held_out_error
        self.words = self.text(end)
        self._count()

    def within(self, share: float) -> None:
        """Take in how much of an epoch is done, of a run that trains by itself."""
        if share < 1:  # a whole one is told when it is judged
            self._count(share)

    def _count(self, share: float = 0.0) -> None:
        done, total = sum(self.at.values()), self.runs * self.epochs
        if 1 < self.runs <= self.together:  # all side by side: the count is that of one run
            done, total = done // self.runs, total // self.runs
        self.show(done + share if share else done, total, self.words)

    def text(self, end: EpochEnd) -> str:
        """``loss 0.61 held-out 34.2% epoch 37/200 (softmax, seed 0)``."""
        from longtail.runs.naming import method_words

        # On 80 columns a bar leaves room for 36 letters, so what says least comes last.
        active = [one for one in self.latest.values() if one.epoch < one.epochs] or [end]
        if self.together == 1:
            active = [end]
        words = f"loss {_mean([one.loss for one in active]):.2f}"
        errors = [self.errors[one.folder] for one in active if one.folder in self.errors]
        if errors:
            words += f" held-out {_mean(errors):.1%}"
        words += f" epoch {end.epoch}/{end.epochs}"
        if len(active) == 1:
            words += f" ({method_words(end.spec)}, seed {end.spec.seed})"
        return words


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
