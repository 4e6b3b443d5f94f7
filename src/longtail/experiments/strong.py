"""How far the plain logit-adjusted loss goes: the recipes `strong` and `strong-distilled`.

`run` trains what is missing (see `strong_runs`) and returns a `Study`, which is made of records
alone. Only the published rows are copied. Every number is of the last epoch; the test set is
opened once for each run. How it looks is in `longtail.report.strong`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from longtail._checks import FloatArray, InputError
from longtail.experiments import Progress, records, selection
from longtail.experiments.development import development_error
from longtail.experiments.exp_runs import CIFARS, Kind, Shelf
from longtail.experiments.records import Record
from longtail.experiments.selection import Selection
from longtail.experiments.strong_kinds import STRONG, STUDENT, TEACHERS
from longtail.experiments.strong_runs import RATIOS, Setting, StrongTrainer, is_judged

if TYPE_CHECKING:
    import torch

    from longtail.data import LongTailedData

DISTILLED = "strong-distilled"
DEFAULT_STAGES = ("strong", "students")


# Mean errors in percent at ratio 100, set after a first trial of one seed and before these runs.
GOALS = {
    "strong": {"cifar10-lt": 13.6, "cifar100-lt": 47.5},
    DISTILLED: {"cifar10-lt": 12.6, "cifar100-lt": 44.5},
}
# What students were to come near after that.
FURTHER_GOALS = {"cifar10-lt": 11.5, "cifar100-lt": 43.0}


@dataclass(frozen=True, eq=False)
class Line:
    """Runs of one kind, judged.

    Attributes:
        name: what they are.
        records: in order of seed.
        wanted: how many there should be.
        shared_seconds: training time of what all of them needed first, such as teachers.
    """

    name: str
    records: tuple[Record, ...]
    wanted: int
    shared_seconds: float = 0.0

    @property
    def per_class(self) -> FloatArray:
        """Test error of each class, shape (runs, num_classes)."""
        return np.array([one.per_class() for one in self.records])

    @property
    def errors(self) -> FloatArray:
        """Balanced test error of each run with nothing chosen afterwards, shape (runs,)."""
        return np.asarray(self.per_class.mean(axis=1))

    @property
    def again(self) -> FloatArray:
        """Balanced test error at the tau of the development set, shape (runs,)."""
        points = [one.again for one in self.records]
        return np.array([point.per_class.mean() for point in points if point is not None])

    @property
    def taus(self) -> FloatArray:
        """That tau of each run."""
        return np.array([one.again.tau for one in self.records if one.again is not None])

    @property
    def dev_errors(self) -> FloatArray:
        """Balanced error on the development set, shape (runs,)."""
        return np.array([development_error(one) for one in self.records])

    @property
    def dev_errors_again(self) -> FloatArray:
        """The same at the tau that was chosen there, shape (runs,)."""
        points = [one.document.get("again") for one in self.records]
        return np.array([point["dev_error"] for point in points if point is not None])

    @property
    def groups(self) -> dict[str, float]:
        """Mean test error of the classes with many, medium and few examples, if there are any."""
        found = self.records[0].prior.groups()
        return {
            name: float(self.per_class[:, classes].mean())
            for name, classes in found.items()
            if len(classes)
        }

    @property
    def epochs(self) -> int | None:
        """Of each run; None for an ensemble."""
        epochs = self.records[0].spec.recipe.values.get("epochs")
        return None if epochs is None else int(epochs)

    @property
    def minutes(self) -> float:
        """What one such network costs: its own training and all that it needed first."""
        own = float(np.mean([one.seconds for one in self.records]))
        return (own + self.shared_seconds) / 60.0

    @property
    def is_whole(self) -> bool:
        """Whether all its runs are there."""
        return len(self.records) == self.wanted

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; errors in percent."""
        return {
            "name": self.name,
            "seeds": [one.spec.seed for one in self.records],
            "errors": _percents(self.errors),
            "mean": _percents([self.errors.mean()])[0],
            "tau_again": [round(float(tau), 4) for tau in self.taus],
            "errors_tau_again": _percents(self.again),
            "dev_errors": _percents(self.dev_errors),
            "groups": {name: round(100 * value, 4) for name, value in self.groups.items()},
            "minutes": round(self.minutes, 3),
        }


def _in_percent(found: Selection) -> dict[str, Any]:
    """A selection for JSON, with its errors in percent as all others."""
    document = found.to_dict()
    for trial in document["trials"]:
        for key in ("dev_error", "dev_error_again"):
            (trial[key],) = _percents([trial[key]])
    return document


def _percents(values: Iterable[float]) -> list[float]:
    return [round(100 * float(value), 4) for value in values]


@dataclass(frozen=True, eq=False)
class Part:
    """One setting and the records there are of it.

    Attributes:
        setting: which runs there should be.
        shelf: the records.
    """

    setting: Setting
    shelf: Shelf

    def _line(self, name: str, kind: Kind, wanted: int) -> Line | None:
        found = [self.shelf.get(self.setting.strong.spec(kind, seed)) for seed in range(wanted)]
        return _line(name, found, wanted)

    @cached_property
    def strong(self) -> Line | None:
        """The recipe `strong`."""
        return self._line("strong", STRONG, self.setting.strong.seeds)

    @cached_property
    def teachers(self) -> list[Line]:
        """One line for each teacher there is."""
        kinds, specs = TEACHERS[self.setting.dataset], self.setting.teachers()
        lines = [_line(k.name, [self.shelf.get(s)], 1) for k, s in zip(kinds, specs, strict=True)]
        return [line for line in lines if line is not None]

    @cached_property
    def further_teachers(self) -> list[Line]:
        """One line for each further teacher; none while one is missing, since none teaches yet."""
        wanted = self.setting.more_teachers().items()
        lines = [_line(name, [self.shelf.get(spec)], 1) for name, spec in wanted]
        return [line for line in lines if line is not None] if None not in lines else []

    @property
    def _more(self) -> list[Record] | None:
        """The further teachers' records, or None while one is missing."""
        return [line.records[0] for line in self.further_teachers] or None

    @property
    def _names(self) -> list[str] | None:
        """The teachers' names as they were trained, or None while one is missing."""
        if len(self.teachers) < len(TEACHERS[self.setting.dataset]):
            return None
        return [line.records[0].name for line in self.teachers]

    @property
    def _teaching_seconds(self) -> float:
        return sum(line.records[0].seconds for line in self.teachers)

    @cached_property
    def ensemble(self) -> Line | None:
        """The mean logits of all teachers; its own seconds are those of its members."""
        return self._mean_of(self._names or [])

    @cached_property
    def larger_ensemble(self) -> Line | None:
        """The same with the further teachers."""
        if self._names is None or self._more is None:
            return None
        return self._mean_of([*self._names, *(one.name for one in self._more)])

    @property
    def ensembles(self) -> list[Line]:
        """Those that there are."""
        return [line for line in (self.ensemble, self.larger_ensemble) if line is not None]

    def _mean_of(self, names: Sequence[str]) -> Line | None:
        if not names:
            return None
        found = self.shelf.get(self.setting.ensemble(names))
        return _line(f"ensemble of {len(names)} teachers", [found], 1)

    @cached_property
    def distilled(self) -> Line | None:
        """The students of all teachers."""
        return self._students(DISTILLED, STUDENT)

    @cached_property
    def first_students(self) -> Line | None:
        """Students with the first trial's settings and half of today's epochs."""
        return self._students(f"{DISTILLED}, first trial's settings", self.setting.earlier[0])

    @cached_property
    def shorter(self) -> Line | None:
        """Students with today's settings and half the epochs."""
        return self._students(f"{DISTILLED}, half the epochs", self.setting.earlier[1])

    @property
    def students(self) -> list[Line]:
        """All students but the ablation's, in the order in which they were tried."""
        found = [self.first_students, self.shorter, self.distilled, *self.further]
        return [line for line in found if line is not None]

    @cached_property
    def further(self) -> list[Line]:
        """Students of more teachers, and with the first ones for teachers too."""
        first = self.distilled
        second = first.records if first and first.is_whole else None
        wanted = [
            ("more teachers", self._more),
            ("second generation", second),
        ]
        lines = [
            self._students(f"{DISTILLED}, {name}", STUDENT, also=also)
            for name, also in wanted
            if also is not None
        ]
        return [line for line in lines if line is not None]

    def _students(self, name: str, kind: Kind, *, also: Sequence[Record] = ()) -> Line | None:
        if self._names is None:
            return None
        names = [*self._names, *(one.name for one in also)]
        found = [self.shelf.get(spec) for spec in self.setting.students(names, [kind])]
        line = _line(name, found, len(found))
        shared = self._teaching_seconds + sum(one.seconds for one in also)
        return line and replace(line, shared_seconds=shared)

    @cached_property
    def ablation(self) -> list[Line]:
        """Every ingredient added or taken away, where it was trained; `strong` among them."""
        wanted = self.setting.ablation.seeds
        lines = [self._line(kind.name, kind, wanted) for kind in self.setting.ablated()]
        students = self.setting.ablated_students()
        lines += [self._students(kind.name, kind) for kind in students]
        return [line for line in lines if line is not None]

    @cached_property
    def removal(self) -> list[Line]:
        """`strong` in its own epochs without one of its parts, where that was trained."""
        wanted = self.setting.ablation.seeds
        lines = [self._line(kind.name, kind, wanted) for kind in self.setting.removed()]
        return [line for line in lines if line is not None]

    @property
    def lines(self) -> list[Line]:
        """The table's own rows, as far as they are there."""
        found = [self.strong, *self.ensembles, *self.students]
        return [line for line in found if line is not None]

    @cached_property
    def records(self) -> list[Record]:
        """Every record that a table uses, each once."""
        lines = [*self.lines, *self.teachers, *self.further_teachers]
        lines += [*self.ablation, *self.removal]
        found = [one for line in lines for one in line.records]
        return list({one.name: one for one in found}.values())

    def missing(self) -> list[str]:
        """The runs that the table should have and doesn't: ``strong, seed 3``."""
        wanted = {
            "strong": (self.strong, self.setting.strong.seeds),
            DISTILLED: (self.distilled, self.setting.student.seeds),
        }
        lacking = []
        for name, (line, seeds) in wanted.items():
            there = set() if line is None else {one.spec.seed for one in line.records}
            lacking += [f"{name}, seed {seed}" for seed in range(seeds) if seed not in there]
        return lacking

    @property
    def minutes(self) -> float:
        """Training time of all its runs; an ensemble has none of its own."""
        return sum(one.seconds for one in self.records if one.spec.method.name != "ensemble") / 60.0


def _line(name: str, found: Iterable[Record | None], wanted: int) -> Line | None:
    kept = tuple(one for one in found if one is not None and is_judged(one))
    return Line(name, kept, wanted) if kept else None


@dataclass(frozen=True, eq=False)
class Study:
    """All settings.

    Attributes:
        parts: those with records, by data set and then by ratio.
        absent: those without any.
        stopped: whether training ended before everything was trained.
        selections: what ways to train students reached on the development set.
    """

    parts: tuple[Part, ...]
    absent: tuple[Setting, ...] = ()
    stopped: bool = False
    selections: tuple[Selection, ...] = ()

    @classmethod
    def of(
        cls,
        found: Iterable[Record],
        *,
        datasets: Sequence[str] = CIFARS,
        ratios: Sequence[float] = RATIOS,
        seeds: int | None = None,
        overrides: Mapping[str, Any] | None = None,
        selections: Iterable[Selection] = (),
    ) -> Study:
        """The study of some records; others than its own play no part.

        Args:
            found: records.
            datasets: which to show.
            ratios: which to show.
            seeds: how many there should be of each kind; None for the usual numbers.
            overrides: recipe values that were changed, for a trial in small.
            selections: to show beside them.
        """
        shelf = Shelf(found)
        settings = [
            Setting(dataset, ratio, seeds, overrides or {})
            for dataset in datasets
            for ratio in ratios
        ]
        parts = [part for setting in settings if (part := Part(setting, shelf)).records]
        there = [part.setting for part in parts]
        absent = tuple(setting for setting in settings if setting not in there)
        return cls(tuple(parts), absent, selections=tuple(selections))

    def part(self, dataset: str, ratio: float = RATIOS[0]) -> Part | None:
        """One part, or None where there are no records of it."""
        for part in self.parts:
            if (part.setting.dataset, part.setting.ratio) == (dataset, ratio):
                return part
        return None

    def require_parts(self) -> None:
        """Refuse a study without any run, naming the commands that make them."""
        if not self.parts:
            raise InputError(
                "strong: there is no record of any of its runs; train them with: "
                + " ; ".join(setting.command() for setting in self.absent)
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; errors in percent."""
        return {
            "absent": [setting.command() for setting in self.absent],
            "selections": [_in_percent(found) for found in self.selections],
            "parts": [
                {
                    "dataset": part.setting.dataset,
                    "imbalance_ratio": part.setting.ratio,
                    "minutes": round(part.minutes, 2),
                    "missing": part.missing(),
                    "lines": [line.to_dict() for line in part.lines],
                    "teachers": [line.to_dict() for line in part.teachers],
                    "further_teachers": [line.to_dict() for line in part.further_teachers],
                    "ablation": [line.to_dict() for line in part.ablation],
                    "removal": [line.to_dict() for line in part.removal],
                }
                for part in self.parts
            ],
        }


def run(
    *,
    load: Callable[..., LongTailedData] | None = None,
    runs: Path | str = "runs",
    folder: Path | str = "results/strong",
    datasets: Sequence[str] = CIFARS,
    ratios: Sequence[float] | None = None,
    seeds: int | None = None,
    stages: Sequence[str] = DEFAULT_STAGES,
    overrides: Mapping[str, Any] | None = None,
    minutes: float | None = None,
    device: torch.device | str = "cpu",
    precision: str = "float32",
    command: str | None = None,
    progress: Progress | None = None,
) -> Study:
    """Train what has no record yet, and make the tables.

    Args:
        load: gives a data set by name and imbalance ratio; None trains nothing.
        runs: the folder of run folders.
        folder: of records, read and written.
        datasets: of `exp_runs.CIFARS`.
        ratios: of `strong_runs.RATIOS`; 100 if None, and all of them without training.
        seeds: of each kind of run; None for five of `strong` at ratio 100, and else three.
        stages: of `strong_runs.STAGES`.
        overrides: recipe values to change, for a trial in small.
        minutes: stop at an epoch's end after so long; the same call goes on.
        device: where to train.
        precision: of the networks, ``float32`` or ``bfloat16``.
        command: what to type to do this again, for the runs' own records.
        progress: called as ``progress(epochs done, epochs in all, what)``.

    Returns:
        The Study; `stopped` if time ran out.
    """
    shown = tuple(ratios or (RATIOS if load is None else RATIOS[:1]))
    ended = True
    if load is not None:
        trainer = StrongTrainer(
            load=load,
            runs=Path(runs),
            folder=Path(folder),
            device=device,
            precision=precision,
            command=command,
            deadline=None if minutes is None else time.monotonic() + 60.0 * minutes,
            progress=progress,
        )
        settings = [
            Setting(name, rho, seeds, overrides or {}) for rho in shown for name in datasets
        ]
        ended = trainer.run_stages(settings, stages)
    study = Study.of(
        records.read_all(folder),
        datasets=datasets,
        ratios=shown,
        seeds=seeds,
        overrides=overrides,
        selections=selection.read_all(folder, datasets),
    )
    if ended:
        study.require_parts()
    return replace(study, stopped=not ended)
