"""What the runs of `strong` reached: a `Line` for runs of one kind, a `Part` for a whole setting.

Made of records alone; which runs there are is in `strong_runs`, and `strong` is all settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from longtail._checks import FloatArray
from longtail.experiments.development import development_error
from longtail.experiments.exp_runs import Kind, Shelf
from longtail.experiments.records import Record
from longtail.experiments.strong_kinds import STRONG, STUDENT, TEACHERS
from longtail.experiments.strong_runs import Setting, is_judged
from longtail.runs import RunSpec

DISTILLED = "strong-distilled"


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
        own = float(np.mean([_own_seconds(one) for one in self.records]))
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
            "errors": percents(self.errors),
            "mean": percents([self.errors.mean()])[0],
            "tau_again": [round(float(tau), 4) for tau in self.taus],
            "errors_tau_again": percents(self.again),
            "dev_errors": percents(self.dev_errors),
            "groups": {name: round(100 * value, 4) for name, value in self.groups.items()},
            "minutes": round(self.minutes, 3),
        }


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
    def trial_strong(self) -> Line | None:
        """The same in the first trial's epochs, which may be the recipe's."""
        return self._line("strong", self.setting.trial_strong, self.setting.strong.seeds)

    @cached_property
    def earlier_strong(self) -> Line | None:
        """The same under a name of its own, where the recipe has other epochs than the trial."""
        if self.trial_strong is None or self.setting.epochs_are_the_trials:
            return None
        return replace(self.trial_strong, name="strong, first trial's epochs")

    @property
    def singles(self) -> list[Line]:
        """All runs of `strong` but the ablation's, in the order in which they were tried."""
        return [line for line in (self.earlier_strong, self.strong) if line is not None]

    @cached_property
    def teachers(self) -> list[Line]:
        """One line for each teacher there is."""
        kinds, specs = TEACHERS[self.setting.dataset], self.setting.teachers()
        lines = [_line(k.name, [self.shelf.get(s)], 1) for k, s in zip(kinds, specs, strict=True)]
        return [line for line in lines if line is not None]

    @cached_property
    def longer_teachers(self) -> list[Line]:
        """One line for each that trains longer; none while one is missing."""
        kinds, specs = TEACHERS[self.setting.dataset], self.setting.longer_teachers()
        pairs = zip(kinds, specs, strict=False)  # of a trial in small there are no such teachers
        return self._all_or_none({f"{kind.name}, longer": spec for kind, spec in pairs})

    @cached_property
    def further_teachers(self) -> list[Line]:
        """One line for each further teacher; none while one is missing, since none teaches yet."""
        return self._all_or_none(self.setting.more_teachers())

    def _all_or_none(self, wanted: Mapping[str, RunSpec]) -> list[Line]:
        """A line for each of some runs by their names, once all are there."""
        lines = [_line(name, [self.shelf.get(spec)], 1) for name, spec in wanted.items()]
        found = [line for line in lines if line is not None]
        return found if len(found) == len(lines) else []

    @property
    def all_teachers(self) -> list[Line]:
        """Those of every kind of student."""
        return [*self.teachers, *self.further_teachers, *self.longer_teachers]

    @property
    def _first(self) -> list[Record]:
        """The teachers' records; none while one is missing."""
        whole = len(self.teachers) == len(TEACHERS[self.setting.dataset])
        return [line.records[0] for line in self.teachers] if whole else []

    @property
    def _more(self) -> list[Record]:
        """The same and those of the further teachers; none while one is missing."""
        more = [line.records[0] for line in self.further_teachers]
        return [*self._first, *more] if self._first and more else []

    @property
    def _longer(self) -> list[Record]:
        return [line.records[0] for line in self.longer_teachers]

    @cached_property
    def ensemble(self) -> Line | None:
        """The mean logits of all teachers."""
        return self._mean_of(self._first)

    @cached_property
    def means(self) -> dict[str, Line]:
        """The mean logits of other teachers by what these are, where they are there."""
        found = {
            "more teachers": self._mean_of(self._more),
            "longer teachers": self._mean_of(self._longer, what="longer teachers"),
        }
        return {name: line for name, line in found.items() if line is not None}

    @property
    def ensembles(self) -> list[Line]:
        """That of the teachers, and those of others."""
        return [*([self.ensemble] if self.ensemble else []), *self.means.values()]

    def _mean_of(self, members: Sequence[Record], *, what: str = "teachers") -> Line | None:
        if not members:
            return None
        found = self.shelf.get(self.setting.ensemble([one.name for one in members]))
        line = _line(f"ensemble of {len(members)} {what}", [found], 1)
        return line and replace(line, shared_seconds=_seconds_of(members))

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
        """Students of more or longer teachers, longer ones, and with the first for teachers too."""
        first = self.distilled
        second = [*self._first, *first.records] if first and first.is_whole else []
        wanted = {
            "more teachers": (STUDENT, self._more),
            "longer teachers": (STUDENT, self._longer),
            "longer teachers and students": (self.setting.longer_student, self._longer),
            "second generation": (STUDENT, second),
        }
        lines = [
            self._students(f"{DISTILLED}, {name}", kind, teachers)
            for name, (kind, teachers) in wanted.items()
        ]
        return [line for line in lines if line is not None]

    def _students(
        self, name: str, kind: Kind, teachers: Sequence[Record] | None = None
    ) -> Line | None:
        teachers = self._first if teachers is None else teachers
        if not teachers:
            return None
        names = [one.name for one in teachers]
        found = [self.shelf.get(spec) for spec in self.setting.students(names, [kind])]
        line = _line(name, found, len(found))
        return line and replace(line, shared_seconds=_seconds_of(teachers))

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
        """`trial_strong` without one of its parts, where that was trained."""
        wanted = self.setting.ablation.seeds
        lines = [self._line(kind.name, kind, wanted) for kind in self.setting.removed()]
        return [line for line in lines if line is not None]

    @property
    def lines(self) -> list[Line]:
        """The table's own rows, as far as they are there."""
        return [*self.singles, *self.ensembles, *self.students]

    @cached_property
    def records(self) -> list[Record]:
        """Every record that a table uses, each once."""
        lines = [*self.lines, *self.all_teachers, *self.ablation, *self.removal]
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
        """Training time of all its runs."""
        return _seconds_of(self.records) / 60.0


def _line(name: str, found: Iterable[Record | None], wanted: int) -> Line | None:
    kept = tuple(one for one in found if one is not None and is_judged(one))
    return Line(name, kept, wanted) if kept else None


def _own_seconds(one: Record) -> float:
    """Training time of a run alone.

    An ensemble has none. What its record has is of the folders that were there, some of which may
    have been trained again by themselves, for longer than their own records say.
    """
    return 0.0 if one.spec.method.name == "ensemble" else one.seconds


def _seconds_of(runs: Iterable[Record]) -> float:
    return sum(_own_seconds(one) for one in runs)


def percents(values: Iterable[float]) -> list[float]:
    """Fractions as they are written to JSON: in percent, rounded."""
    return [round(100 * float(value), 4) for value in values]
