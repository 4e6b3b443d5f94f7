"""The runs behind `strong`: which they are, and training them.

A `Setting` is a data set at an imbalance ratio. Its runs are the recipe `strong`; teachers, each
trained in another way; students of all of them together; both as they were trained before;
students of more teachers, some of them wider networks, of teachers that train longer, these for
twice the epochs too, and those of a second generation, which have the first students for teachers
too; the ablation, which in a few epochs adds every ingredient to a plain recipe and to `strong`, or
takes it away; and
`strong` in the first trial's epochs without each of its parts. Candidates for how students are
trained are not among them: those never see the test set, see `selection`. `StrongTrainer` does what
has no record yet, judges each finished run once on the development and the test set, and can be
stopped and called again. A record is not enough to learn from: where a teacher's weights are
missing it is trained again, to teach alone, and its record stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longtail import _checks
from longtail._checks import InputError
from longtail.data.subsets import DEVELOPMENT_IMAGES
from longtail.experiments import records, selection
from longtail.experiments.development import choose_again, development_error, with_tau_again
from longtail.experiments.exp_runs import CIFARS, Kind, OutOfTimeError, Plan, Trainer
from longtail.experiments.records import DEV, TEST, Record
from longtail.experiments.strong_kinds import (
    ABLATION_EPOCHS,
    LONGER_EPOCHS,
    MORE_TEACHERS,
    STRONG,
    STUDENT,
    TEACHERS,
    TRIAL_EPOCHS,
    ablation,
    removal,
    student_ablation,
)
from longtail.runs import Run, RunSpec, Settings, ensemble
from longtail.runs.ensemble import ensemble_spec
from longtail.train.recipe import Recipe

if TYPE_CHECKING:
    from longtail.data import LongTailedData

logger = logging.getLogger("longtail")

STAGES = (
    "strong",
    "teachers",
    "selection",
    "students",
    "earlier",
    "more-teachers",
    "longer-teachers",
    "longer-students",
    "second-generation",
    "ablation",
    "removal",
)
# Those that begin with the teachers and their mean; the ablation asks for weights alone.
_WITH_TEACHERS = {"teachers", "selection", "students", "more-teachers", "second-generation"}
RATIOS = (100.0, 50.0, 10.0)


@dataclass(frozen=True)
class Setting:
    """A data set at an imbalance ratio, and its runs.

    Attributes:
        dataset: one of `exp_runs.CIFARS`.
        ratio: of its exponential profile.
        seeds: of each kind of run; None for five of `strong` at ratio 100, and else three.
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
        return self._plan("strong", self.seeds or (5 if self.ratio == RATIOS[0] else 3))

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
        return [self._short(kind) for kind in ablation(self.dataset)]

    @property
    def trial_strong(self) -> Kind:
        """`strong` in the first trial's epochs."""
        return self._in_trial(STRONG)

    @property
    def epochs_are_the_trials(self) -> bool:
        """Whether the recipe `strong` has as many as the first trial."""
        return self.strong.spec(self.trial_strong, 0) == self.strong.spec(STRONG, 0)

    def removed(self) -> list[Kind]:
        """`trial_strong` without each of its parts."""
        return [self._in_trial(kind) for kind in removal(self.dataset)]

    def ablated_students(self) -> list[Kind]:
        """A student and every change of it, in the ablation's epochs."""
        return [self._short(kind) for kind in (STUDENT, *student_ablation(self.dataset))]

    def candidates(self) -> list[Kind]:
        """The ways to train a student of which the development set chooses one."""
        kinds = selection.candidates(self.dataset)
        return [self._short(kind, selection.EPOCHS[self.dataset]) for kind in kinds]

    def _in_trial(self, kind: Kind) -> Kind:
        return self._short(kind, TRIAL_EPOCHS[self.dataset])

    def _short(self, kind: Kind, epochs: int = ABLATION_EPOCHS) -> Kind:
        return self._small(replace(kind, overrides={**kind.overrides, "epochs": epochs}))

    def _small(self, kind: Kind) -> Kind:
        """A kind whose own model and epochs give way to those of a trial in small."""
        mine = {key: self.overrides[key] for key in ("model", "epochs") if key in self.overrides}
        own = {**kind.overrides, **{key: mine[key] for key in mine if key in kind.overrides}}
        return replace(kind, overrides=own)

    def teachers(self) -> list[RunSpec]:
        """One run of each kind, with seeds that take turns, but for their precision."""
        return self._taught_by([self._in_trial(kind) for kind in TEACHERS[self.dataset]])

    def longer_teachers(self) -> list[RunSpec]:
        """The same for more epochs; none in a trial in small, which has one number for all."""
        kinds = [self._short(k, LONGER_EPOCHS[self.dataset]) for k in TEACHERS[self.dataset]]
        longer = self._taught_by(kinds)
        return [] if longer == self.teachers() else longer

    def _taught_by(self, kinds: Iterable[Kind]) -> list[RunSpec]:
        return [self.strong.spec(kind, number % 3) for number, kind in enumerate(kinds)]

    def more_teachers(self) -> dict[str, RunSpec]:
        """Those of `MORE_TEACHERS` that are none of the teachers, by name."""
        more: dict[str, RunSpec] = {}
        for number, kind in enumerate(MORE_TEACHERS[self.dataset]):
            if kind is STRONG:
                specs = self.strong.specs([STRONG])
                more |= {f"{kind.name}, seed {spec.seed}": spec for spec in specs}
            else:
                # A seed that no teacher has: in a trial in small nothing else may tell them apart.
                seed = max(3, self.strong.seeds) + number
                more[kind.name] = self.strong.spec(self._small(kind), seed)
        known = {spec.folder for spec in self.teachers()}
        return {name: spec for name, spec in more.items() if spec.folder not in known}

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
    def earlier(self) -> tuple[Kind, Kind]:
        """Two ways tried before, with half the epochs: the first trial's settings, and today's."""
        epochs = {"epochs": max(1, self.student.spec(STUDENT, 0).recipe.values["epochs"] // 2)}
        kinds = (selection.candidates(self.dataset)[0], STUDENT)
        first, half = (replace(kind, overrides={**kind.overrides, **epochs}) for kind in kinds)
        return first, half

    @property
    def longer_student(self) -> Kind:
        """Students for twice the recipe's epochs."""
        epochs = {"epochs": 2 * self.student.spec(STUDENT, 0).recipe.values["epochs"]}
        return replace(STUDENT, overrides={**STUDENT.overrides, **epochs})

    def ensemble(self, names: Iterable[str]) -> RunSpec:
        """The teachers' mean logits."""
        return ensemble_spec(self.strong.spec(STRONG, 0).dataset, list(names))

    def command(self, stage: str | None = None) -> str:
        """What to type to train a stage of these runs, or `strong` and its students."""
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

    def __post_init__(self) -> None:
        super().__post_init__()
        self._tried: dict[Path, str] = {}  # candidates' run folders, which are judged apart

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
        if "selection" in stages and {setting.ratio for setting in settings} != {RATIOS[0]}:
            raise InputError(
                f"strong: the stage selection is for imbalance ratio {RATIOS[0]:g} alone, whose "
                f"recipes the other ratios take; leave out `rho`."
            )
        try:
            for setting in settings:
                singles: list[RunSpec] = []  # side by side, so that a GPU is full
                if "strong" in stages:
                    singles += setting.strong.specs([STRONG])
                if {"earlier", "removal"} & set(stages):
                    singles += setting.strong.specs([setting.trial_strong])
                # Of students at other ratios there are the recipe's alone.
                both = "earlier" in stages and setting.ratio == RATIOS[0]
                earlier = setting.earlier if both else ()
                taught = both or bool(_WITH_TEACHERS & set(stages))
                teachers = setting.teachers()
                if taught:
                    singles += teachers
                more: list[RunSpec] = []
                if "more-teachers" in stages:
                    more += setting.more_teachers().values()
                of_longer = [STUDENT] if "longer-teachers" in stages else []
                of_longer += [setting.longer_student] if "longer-students" in stages else []
                longer = setting.longer_teachers() if of_longer else []
                singles += [*more, *longer]
                self._train(setting.strong, list({one.folder: one for one in singles}.values()))
                if taught:
                    self._average(setting, teachers)
                if more:
                    self._average(setting, [*teachers, *more])
                if longer:
                    self._average(setting, longer)
                if "selection" in stages:
                    self._select(setting)
                kinds = [STUDENT] if {"students", "second-generation"} & set(stages) else []
                kinds += earlier
                self._teach(setting, *(([kind], teachers) for kind in kinds))
                if more:
                    self._teach(setting, ([STUDENT], [*teachers, *more]))
                if longer:
                    self._teach(setting, (of_longer, longer))
                if "second-generation" in stages:
                    first = setting.students(self._names(teachers))
                    self._teach(setting, ([STUDENT], [*teachers, *first]))
                if "ablation" in stages:
                    plan = setting.ablation
                    self._train(plan, plan.specs(setting.ablated()))
                    self._teach(setting, (setting.ablated_students(), teachers))
                if "removal" in stages:
                    plan = setting.ablation
                    self._train(plan, plan.specs(setting.removed()))
        except OutOfTimeError:
            return False
        return True

    def _select(self, setting: Setting) -> None:
        """Train the candidates that have no outcome yet, and judge them on the development set."""
        from longtail.train.teachers import with_teachers

        kinds, kept = setting.candidates(), selection.read(self.folder, setting.dataset)
        lacking = [kind for kind in kinds if not kept or kind.name not in kept.outcomes]
        if kept is not None:
            epochs = kinds[0].overrides["epochs"]
            kept.refuse_other(self.folder, epochs, setting.overrides, adds=bool(lacking))
        if not lacking:
            return
        self._say_again(setting.teachers())
        self._have(setting.strong, setting.teachers())
        names, plan = self._names(setting.teachers()), setting.student
        plain = [with_teachers(plan.spec(kind, selection.SEED), names) for kind in lacking]
        specs = [self._precise(spec) for spec in plain]
        self._tried = {s.folder: kind.name for s, kind in zip(specs, lacking, strict=True)}
        try:
            for part in self._parts(specs):
                self._part(plan, part)
        finally:
            self._tried = {}

    def _note(self, plan: Plan, run: Run, data: Any) -> None:
        """Keep what a candidate reached on the development set; the test set stays shut."""
        from longtail.train.engine import evaluate

        run = evaluate(run, data.development(run), split=DEV, device=self.device)
        one, (tau, again) = records.record(run), choose_again(run)
        kept = selection.read(self.folder, plan.dataset) or selection.Selection(
            plan.dataset,
            epochs=int(run.spec.recipe.values["epochs"]),
            device=str(one.document["device"]),
            overrides=plan.overrides,
        )
        outcome = selection.Outcome(development_error(one), tau, again)
        outcomes = {**kept.outcomes, self._tried[run.spec.folder]: outcome}
        selection.write(replace(kept, outcomes=outcomes), self.folder)

    def _teach(self, setting: Setting, *lessons: tuple[Sequence[Kind], Sequence[RunSpec]]) -> None:
        """Train students side by side, once all their teachers' weights are there.

        Args:
            setting: of the students.
            *lessons: kinds of students, and whom they listen to.
        """
        from longtail.train.teachers import names_of

        lacking: list[tuple[list[RunSpec], Sequence[RunSpec]]] = []
        for kinds, teachers in lessons:
            specs = setting.students(self._names(teachers), kinds)
            if not all(self._is_whole(self.shelf.get(spec)) for spec in specs):
                lacking.append((specs, teachers))
        listened = list({one.folder: one for _, teachers in lacking for one in teachers}.values())
        if listened:
            self._say_again(listened)
            # Some may be students themselves, who need the weights of the others first.
            learned = [spec for spec in listened if names_of(spec)]
            self._have(setting.strong, [spec for spec in listened if spec not in learned])
            self._have(setting.student, learned)
        self._train(setting.student, [spec for specs, _ in lacking for spec in specs])

    def _names(self, specs: Iterable[RunSpec]) -> list[str]:
        """What runs are called as they are trained, by which their students know them."""
        return [self._precise(spec).folder.as_posix() for spec in specs]

    def _have(self, plan: Plan, specs: Sequence[RunSpec]) -> list[Run]:
        """The folders of some teachers; a record is not enough for a student to learn from."""
        for part in self._parts(self._without_folder(specs)):
            self._part(plan, part)
        self._train(plan, specs)  # judges what was left unjudged
        return [Run.open(self.runs / name) for name in self._names(specs)]

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

    def _average(self, setting: Setting, specs: Sequence[RunSpec]) -> None:
        """The folder and the record of some teachers' ensemble."""
        if self._is_whole(self.shelf.get(setting.ensemble(self._names(specs)))):
            return
        self._say_again(specs)
        teachers = self._have(setting.strong, specs)
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
        """Train what is missing."""
        for part in self._parts([s for s in specs if not self._is_whole(self.shelf.get(s))]):
            self._part(plan, part)

    def _parts(self, specs: Sequence[RunSpec]) -> list[list[RunSpec]]:
        """Runs in parts of what fits side by side, which keep together what steps as one.

        A part's networks are of one design, so that its time can be shared out among them.
        """
        teams: dict[tuple[object, ...], list[RunSpec]] = {}
        for spec in specs:
            teams.setdefault((Recipe.of(spec).team_values, spec.settings), []).append(spec)
        parts: list[list[RunSpec]] = []
        for team in teams.values():
            for first in range(0, len(team), self.together):
                some = team[first : first + self.together]
                room = (
                    part
                    for part in parts
                    if len(part) + len(some) <= self.together
                    and part[0].model.name == some[0].model.name
                )
                part = next(room, None)
                if part is None:
                    parts.append(list(some))
                else:
                    part += some
        return parts

    def _keep(self, plan: Plan, data: Any, trained: Sequence[Run]) -> None:
        """Judge finished runs, once on either set, and write their records.

        One that was trained again for its weights has been judged: its record stays. Candidates
        are judged on the development set alone.
        """
        for run in trained:
            if run.spec.folder in self._tried:
                self._note(plan, run, data)
            elif not self._is_whole(self.shelf.get(run.spec)):
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
