"""The runs behind `strong`: which they are, and training them.

A `Setting` is a data set at an imbalance ratio. Its runs are the recipe `strong`; teachers, each
trained in another way; students of all of them together; students of more teachers, students
trained for longer, and those of a second generation, which have the first students for teachers
too; and the ablation, which adds every ingredient to a plain recipe and to `strong`, or takes it
away. `StrongTrainer` does what has
no record yet, judges each finished run once on the development and the test set, and can be stopped
and called again. A record is not enough to learn from: where a teacher's weights are missing it is
trained again, to teach alone, and its record stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from longtail import _checks
from longtail._checks import InputError
from longtail.data.subsets import DEVELOPMENT_IMAGES
from longtail.experiments import records
from longtail.experiments.development import with_tau_again
from longtail.experiments.exp_runs import CIFARS, Kind, OutOfTimeError, Plan, Trainer
from longtail.experiments.records import DEV, TEST, Record
from longtail.runs import Run, RunSpec, Settings, ensemble
from longtail.runs.ensemble import ensemble_spec
from longtail.train.recipe import Recipe, recipe_values

if TYPE_CHECKING:
    from longtail.data import LongTailedData

logger = logging.getLogger("longtail")

STAGES = ("strong", "teachers", "students", "further", "ablation")
RATIOS = (100.0, 50.0, 10.0)
METHOD = "logit-adjusted"
ABLATION_EPOCHS = 200  # of everything in it: half of what the recipe takes, for many more runs

OFF: dict[str, Any] = {
    "trivial_augment": False,
    "cutout": 0,
    "cutmix": 0.0,
    "mixup": 0.0,
    "mix_partner": "uniform",
    "sam_rho": 0.0,
    "ema_decay": 0.0,
    "head": "linear",
    "head_scale": 1.0,
}
# What the ablation adds and takes away, one at a time.
INGREDIENTS: dict[str, dict[str, Any]] = {
    "TrivialAugment": {"trivial_augment": True},
    "Cutout": {"cutout": 16},
    "CutMix, minority partner": {"cutmix": 0.5, "mix_partner": "minority"},
    "CutMix, uniform partner": {"cutmix": 0.5, "mix_partner": "uniform"},
    "mixup": {"mixup": 0.5, "mix_partner": "uniform"},
    "SAM": {"sam_rho": 0.1},
    "weight average": {"ema_decay": 0.999},
    "cosine head": {"head": "cosine", "head_scale": 16.0},
}
# The recipe's own augmentation, and nothing else of the ingredients.
_AUGMENTED = {key: value for key, value in OFF.items() if key not in ("trivial_augment", "cutout")}
_MINORITY = INGREDIENTS["CutMix, minority partner"]

STRONG = Kind("strong", METHOD)
STUDENT = Kind("student", METHOD, {"image_seed": 0})  # one stream of images for all students
PLAIN = Kind("plain", METHOD, OFF)


def _teacher(name: str, **changes: Any) -> Kind:
    return Kind(name, METHOD, _AUGMENTED | changes)


_BASE = _teacher("augmented")
_SAM, _SAM_FAR = _teacher("SAM 0.1", sam_rho=0.1), _teacher("SAM 0.2", sam_rho=0.2)
# Different ways rather than different seeds: their mean gains from their disagreement.
TEACHERS: dict[str, tuple[Kind, ...]] = {
    "cifar10-lt": (
        _BASE,
        _teacher("minority CutMix", **_MINORITY),
        _SAM,
        _SAM_FAR,
        _teacher("SAM 0.1 and minority CutMix", sam_rho=0.1, **_MINORITY),
    ),
    "cifar100-lt": (
        _BASE,
        _teacher("weight decay 1e-3", weight_decay=1e-3),
        _teacher("minority CutMix", **_MINORITY),
        _teacher("uniform CutMix", **INGREDIENTS["CutMix, uniform partner"]),
        _SAM,
        _SAM_FAR,
        _teacher("cosine head", **INGREDIENTS["cosine head"]),
    ),
}
# Further ones, for students of more teachers; they train beside the others at little cost. Most of
# them are of the sort that a first trial found strongest on a data set, or the most different.
# STRONG stands for all its runs, which are there anyway.
_UNIFORM, _DECAY = INGREDIENTS["CutMix, uniform partner"], {"weight_decay": 1e-3}
_SAM_DECAY = _teacher("SAM 0.2, weight decay 1e-3", sam_rho=0.2, **_DECAY)
MORE_TEACHERS: dict[str, tuple[Kind, ...]] = {
    "cifar10-lt": (
        STRONG,
        _teacher("SAM 0.1 and uniform CutMix", sam_rho=0.1, **_UNIFORM),
        _teacher("SAM 0.1 and mixup", sam_rho=0.1, **INGREDIENTS["mixup"]),
        _SAM_DECAY,
    ),
    "cifar100-lt": (
        _teacher("mixup", **INGREDIENTS["mixup"]),
        _teacher("minority CutMix, weight decay 1e-3", **_MINORITY, **_DECAY),
        _teacher("uniform CutMix, weight decay 1e-3", **_UNIFORM, **_DECAY),
        _teacher("SAM 0.1 and minority CutMix", sam_rho=0.1, **_MINORITY),
        _SAM_DECAY,
    ),
}


@cache
def ablation(dataset: str) -> tuple[Kind, ...]:
    """Every ingredient added to the plain recipe, and taken from `strong` or added to it.

    Args:
        dataset: recipes may differ by it.

    Examples:
        >>> [kind.name for kind in ablation("cifar100-lt")][:3]
        ['plain', 'plain + TrivialAugment', 'plain + Cutout']
    """
    kinds = [PLAIN]
    kinds += [Kind(f"plain + {name}", METHOD, OFF | on) for name, on in INGREDIENTS.items()]
    values = OFF | recipe_values("strong", dataset=dataset)
    kinds.append(Kind("strong − logit adjustment", "softmax"))
    for name, on in INGREDIENTS.items():
        key = next(iter(on))
        if values[key] == OFF[key]:
            mixed = {k: v for k, v in on.items() if k != "mix_partner" or not _mixes(values)}
            kinds.append(Kind(f"strong + {name}", METHOD, mixed))
        elif not (_mixes(values) and on.get("mix_partner", "") not in ("", values["mix_partner"])):
            kinds.append(Kind(f"strong − {name}", METHOD, {k: OFF[k] for k in on}))
    return tuple(kinds)


def _mixes(values: Mapping[str, Any]) -> bool:
    return bool(values["cutmix"] or values["mixup"])


@cache
def student_ablation(dataset: str) -> tuple[Kind, ...]:
    """What a student is trained with, changed one at a time.

    Args:
        dataset: recipes may differ by it.
    """
    values = OFF | recipe_values("strong-student", dataset=dataset)
    adjusted = bool(values.get("distill_adjusted", False))
    changes: dict[str, dict[str, Any]] = {
        "the teachers alone": {"distill_weight": 1.0},
        "KL of logits as they are" if adjusted else "KL of prior-shifted logits": {
            "distill_adjusted": not adjusted
        },
    }
    if values.get("distill_temperature", 1.0) != 1.0:
        changes["temperature 1"] = {"distill_temperature": 1.0}
    if _mixes(values):
        changes["without mixing"] = {key: OFF[key] for key in ("cutmix", "mixup", "mix_partner")}
    if not values["sam_rho"]:
        changes["with SAM"] = INGREDIENTS["SAM"]
    return tuple(
        Kind(f"student, {name}", METHOD, {**STUDENT.overrides, **change})
        for name, change in changes.items()
    )


@dataclass(frozen=True)
class Setting:
    """A data set at an imbalance ratio, and its runs.

    Attributes:
        dataset: one of `exp_runs.CIFARS`.
        ratio: of its exponential profile.
        seeds: of each kind of run; None for five of `strong` and three of the others.
        overrides: recipe values to change, for a trial in small.
    """

    dataset: str
    ratio: float = 100.0
    seeds: int | None = None
    overrides: Mapping[str, Any] = field(default_factory=Settings)

    def __post_init__(self) -> None:
        object.__setattr__(self, "overrides", Settings(self.overrides))
        _checks.choice(self.dataset, CIFARS, "strong", name="dataset")
        if self.ratio not in RATIOS:
            known = ", ".join(f"{ratio:g}" for ratio in RATIOS)
            raise InputError(f"strong: `rho` must be one of {known}; got {self.ratio:g}.")

    @property
    def strong(self) -> Plan:
        """The recipe itself, and its teachers' plan."""
        return self._plan("strong", self.seeds or 5)

    @property
    def ablation(self) -> Plan:
        """The same recipe with fewer seeds."""
        return self._plan("strong", self.seeds or 3)

    @property
    def student(self) -> Plan:
        """The students'."""
        return self._plan("strong-student", self.seeds or 3)

    def _plan(self, recipe: str, seeds: int) -> Plan:
        return Plan(self.dataset, recipe, seeds, self.overrides, self.ratio)

    def ablated(self) -> list[Kind]:
        """`strong` and every change of it or of the plain recipe, in the ablation's epochs."""
        return [self._short(kind) for kind in (*ablation(self.dataset), STRONG)]

    def ablated_students(self) -> list[Kind]:
        """A student and every change of it, in the ablation's epochs."""
        return [self._short(kind) for kind in (STUDENT, *student_ablation(self.dataset))]

    def _short(self, kind: Kind) -> Kind:
        epochs = self.overrides.get("epochs", ABLATION_EPOCHS)
        return replace(kind, overrides={**kind.overrides, "epochs": epochs})

    def teachers(self) -> list[RunSpec]:
        """One run of each kind, with seeds that take turns, but for their precision."""
        kinds = TEACHERS[self.dataset]
        return [self.strong.spec(kind, number % 3) for number, kind in enumerate(kinds)]

    def more_teachers(self) -> list[RunSpec]:
        """Those of `MORE_TEACHERS` that are none of the teachers."""
        known, more = {spec.folder for spec in self.teachers()}, list[RunSpec]()
        for number, kind in enumerate(MORE_TEACHERS[self.dataset]):
            seeds = range(self.strong.seeds) if kind is STRONG else [number % 3]
            more += [self.strong.spec(kind, seed) for seed in seeds]
        return [spec for spec in more if spec.folder not in known]

    def students(self, names: Iterable[str], kinds: Sequence[Kind] = (STUDENT,)) -> list[RunSpec]:
        """Every seed of some kinds of students.

        Args:
            names: of their teachers, as trained.
            kinds: of students.
        """
        from longtail.train.teachers import with_teachers

        names = list(names)
        return [with_teachers(spec, names) for spec in self.student.specs(kinds)]

    @property
    def longer(self) -> Kind:
        """Students with twice the epochs."""
        epochs = 2 * self.student.spec(STUDENT, 0).recipe.values["epochs"]
        return Kind("student, longer", METHOD, {**STUDENT.overrides, "epochs": epochs})

    def ensemble(self, names: Iterable[str]) -> RunSpec:
        """The teachers' mean logits."""
        return ensemble_spec(self.strong.spec(STRONG, 0).dataset, list(names))

    def command(self, stage: str | None = None) -> str:
        """What to type to train a stage of these runs, or all but the ablation."""
        words = "longtail reproduce strong" + (f" --stage {stage}" if stage else "")
        words += f" --dataset {self.dataset}"
        return words if self.ratio == RATIOS[0] else f"{words} --rho {self.ratio:g}"


def is_judged(found: Record | None) -> bool:
    """Whether a record has all that the tables need of its run."""
    return (
        found is not None
        and None not in (found.data_of(DEV), found.data_of(TEST))
        and found.again is not None
    )


@dataclass
class StrongTrainer(Trainer):
    """Trains settings' runs where records are missing, and writes the records.

    Attributes:
        load: gives a data set by name and imbalance ratio.
    """

    load: Callable[..., LongTailedData]

    def run_stages(self, settings: Sequence[Setting], stages: Sequence[str]) -> bool:
        """Train what is missing, stage by stage of each setting.

        Args:
            settings: in this order.
            stages: of `STAGES`; students need teachers, which are trained for them.

        Returns:
            Whether everything is there; False if time ran out.
        """
        for stage in stages:
            _checks.choice(stage, STAGES, "strong", name="stage")
        try:
            for setting in settings:
                singles: list[RunSpec] = []  # side by side, so that a GPU is full
                if "strong" in stages:
                    singles += setting.strong.specs([STRONG])
                taught = bool({"teachers", "students", "further"} & set(stages))
                if taught:
                    singles += setting.teachers()
                if "further" in stages:
                    singles += setting.more_teachers()
                self._train(setting.strong, list({one.folder: one for one in singles}.values()))
                if taught:
                    self._average(setting)
                if {"students", "further"} & set(stages):
                    self._teach(setting, ([STUDENT], ()))
                if "further" in stages:
                    more, longer = setting.more_teachers(), [setting.longer]
                    first = setting.students(self._names(setting.teachers()))
                    self._teach(
                        setting, ([STUDENT], more), (longer, ()), (longer, more), ([STUDENT], first)
                    )
                if "ablation" in stages:
                    plan = setting.ablation
                    self._train(plan, plan.specs(setting.ablated()))
                    self._teach(setting, (setting.ablated_students(), ()))
        except OutOfTimeError:
            return False
        return True

    def _teach(self, setting: Setting, *lessons: tuple[Sequence[Kind], Sequence[RunSpec]]) -> None:
        """Train students side by side, once all their teachers' weights are there.

        Args:
            setting: of the students.
            *lessons: kinds of students, and whom they listen to beside the setting's teachers.
        """
        lacking: list[tuple[list[RunSpec], Sequence[RunSpec]]] = []
        for kinds, also in lessons:
            specs = setting.students(self._names([*setting.teachers(), *also]), kinds)
            if not all(self._is_whole(self.shelf.get(spec)) for spec in specs):
                lacking.append((specs, also))
        if lacking:
            listened = [spec for _, also in lacking for spec in also]
            self._say_again([*setting.teachers(), *listened])
            self._have_teachers(setting)
        for _, also in lacking:
            self._have(setting.strong, also)
        self._train(setting.student, [spec for specs, _ in lacking for spec in specs])

    def _names(self, specs: Iterable[RunSpec]) -> list[str]:
        """What runs are called as they are trained, by which their students know them."""
        return [self._precise(spec).folder.as_posix() for spec in specs]

    def _have_teachers(self, setting: Setting) -> list[Run]:
        """The teachers' folders; a record is not enough for a student to learn from."""
        self._have(setting.strong, setting.teachers())
        self._train(setting.strong, setting.teachers())  # judges what was left unjudged
        return [Run.open(self.runs / name) for name in self._names(setting.teachers())]

    def _have(self, plan: Plan, specs: Sequence[RunSpec]) -> None:
        """Train what has no finished folder here, record or not."""
        lacking = self._without_folder(specs)
        if lacking:
            self._part(plan, lacking)

    def _without_folder(self, specs: Sequence[RunSpec]) -> list[RunSpec]:
        """Those that have no finished folder here."""
        there = {run.name for run in self._finished([self._precise(s) for s in specs])}
        return [spec for spec in specs if self._precise(spec).folder.as_posix() not in there]

    def _say_again(self, teachers: Sequence[RunSpec]) -> None:
        """Say beforehand how many runs with a record are trained again, for their weights."""
        lacking = self._without_folder(teachers)
        again = {spec.folder for spec in lacking if self._is_whole(self.shelf.get(spec))}
        if again:
            logger.warning(
                "strong: training %d run%s again, to teach and nothing else: there are records, "
                "but no weights in %s. The records stay as they are. To bring the weights instead: "
                "longtail runs unpack ARCHIVE --root %s",
                len(again),
                "" if len(again) == 1 else "s",
                self.runs,
                self.runs,
            )

    def _average(self, setting: Setting) -> None:
        """The ensemble's folder and record."""
        if self._is_whole(self.shelf.get(setting.ensemble(self._names(setting.teachers())))):
            return
        self._say_again(setting.teachers())
        teachers = self._have_teachers(setting)
        # Some may have a record and no logits: from another machine, or trained again.
        data = self._data_of(setting.strong)
        teachers = [self._judged(run, data) for run in teachers]
        for split in (DEV, TEST):
            run = ensemble(teachers, root=self.runs, split=split, replace=True)
        self._write(run)

    def _precise(self, spec: RunSpec) -> RunSpec:
        """As it was trained, where there is a record: students know their teachers by name."""
        found = self.shelf.get(spec)
        return super()._precise(spec) if found is None else found.spec

    def _is_whole(self, found: Record | None) -> bool:
        return is_judged(found)

    def _train(self, plan: Plan, specs: Sequence[RunSpec]) -> None:
        """Train what is missing, in parts that keep together what steps as one."""
        teams: dict[tuple[object, ...], list[RunSpec]] = {}
        for spec in specs:
            if not self._is_whole(self.shelf.get(spec)):
                key = (Recipe.of(spec).team_values, spec.settings)
                teams.setdefault(key, []).append(spec)
        parts: list[list[RunSpec]] = []
        for team in teams.values():
            for first in range(0, len(team), self.together):
                some = team[first : first + self.together]
                room = (part for part in parts if len(part) + len(some) <= self.together)
                part = next(room, None)
                if part is None:
                    parts.append(list(some))
                else:
                    part += some
        for part in parts:
            self._part(plan, part)

    def _keep(self, plan: Plan, data: Any, trained: Sequence[Run]) -> None:
        """Judge finished runs, once on either set, and write their records.

        One that was trained again for its weights has been judged: its record stays.
        """
        for run in trained:
            if not self._is_whole(self.shelf.get(run.spec)):
                self._write(self._judged(run, data))

    def _judged(self, run: Run, data: Any) -> Run:
        """A run with its logits on either set; those that are there stay."""
        from longtail.train.engine import evaluate

        run = evaluate(run, data.development(run), split=DEV, device=self.device)
        return evaluate(run, data.test, split=TEST, device=self.device)

    def _write(self, run: Run) -> None:
        found = with_tau_again(records.record(run), run)
        records.write(found, self.folder)
        self.shelf.put(found)

    def _data_of(self, plan: Plan) -> Any:
        key = f"{plan.dataset} {plan.ratio}"
        if key not in self._data:
            self._data.clear()  # one at a time: a setting is finished before the next
            self._data[key] = self.load(plan.dataset, plan.ratio)
            if self._data[key].dev is None:
                each = DEVELOPMENT_IMAGES // self._data[key].train.num_classes
                raise InputError(
                    f"strong: {plan.dataset} needs a development set; a frozen file has one if it "
                    f"was written with: longtail data freeze {plan.dataset} --ratio "
                    f"{plan.ratio or 100:g} --dev {each} --out FILE.frozen"
                )
        return self._data[key]
