"""The runs behind the paper's CIFAR EXP table and its figures: which they are, and training them.

A `Kind` is one way to train; a table has several seeds of each. `train` does what is missing, in
parts that fit a GPU, and leaves a record of each run (see `records`); it stops at an epoch's end
when its time is up, and the same call goes on. What the table makes of the records is in
`table_exp`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from longtail import _checks
from longtail._checks import InputError
from longtail.data import DATASETS
from longtail.experiments import Progress, records
from longtail.experiments.comparison import BASELINE
from longtail.experiments.records import HELD_OUT, TEST, Record
from longtail.runs import DataSpec, Run, RunError, RunSpec, Settings
from longtail.train.recipe import make_spec

if TYPE_CHECKING:
    import torch

    from longtail.data import LongTailedData
    from longtail.data.large import ListedData
    from longtail.train.distributed import World
    from longtail.train.streamed import Streaming

Rows = Literal["table", "figures", "extra"]
CIFARS = ("cifar10-lt", "cifar100-lt")
FRACTION = 0.2
# Adam's rates to choose from, on held-out data: the paper doesn't give the one it used.
ADAM_RATES = (3e-4, 1e-3, 3e-3)
# What a GPU takes before some thirty runs train: a second for each. Begun with less, they would
# not come far enough to be worth it, and end after their time.
_CAPTURE_SECONDS = 45.0


@dataclass(frozen=True)
class Kind:
    """One way to train.

    Attributes:
        name: short, unique, for people.
        method: as the command line takes it.
        overrides: of the recipe.
        held_out: fraction of each class kept out of training.
    """

    name: str
    method: str
    overrides: Mapping[str, Any] = field(default_factory=Settings)
    held_out: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "overrides", Settings(self.overrides))


PLAIN = Kind("softmax", BASELINE)
PARTNER = Kind("softmax, 20% held out", BASELINE, held_out=FRACTION)
TABLE = (
    PLAIN,
    Kind("adaptive", "adaptive"),
    Kind("equalized-threshold", "equalized-threshold"),
    Kind("logit-adjusted", "logit-adjusted"),
    PARTNER,
)
# In the order in which they are trained, as time allows.
EXTRA = (
    Kind("balanced", "balanced"),
    Kind("class-balanced", "class-balanced"),
    Kind("softmax+drw", "softmax+drw"),
    Kind("logit-adjusted+drw", "logit-adjusted+drw"),
    Kind("logit-adjusted-adaptive", "logit-adjusted-adaptive"),
    Kind("softmax+label-smoothing", "softmax+label-smoothing"),
    Kind("unit-norm head", BASELINE, {"head": "unit-norm"}),
)


def adam(rate: float, *, decay: bool = True) -> Kind:
    """Softmax under Adam, for the figure of weight norms.

    Args:
        rate: learning rate.
        decay: with the recipe's weight decay, as a term of the loss, or without any.
    """
    changed = {"optimizer": "adam", "lr": rate} | ({} if decay else {"weight_decay": 0.0})
    name = "Adam" if decay else "Adam without weight decay"
    return Kind(f"{name}, lr {rate:g}", BASELINE, changed)


def adam_trial(rate: float, *, decay: bool = True) -> Kind:
    """The same with a held-out part, on which the rate is chosen."""
    kind = adam(rate, decay=decay)
    return replace(kind, name=f"{kind.name}, 20% held out", held_out=FRACTION)


@dataclass(frozen=True)
class Plan:
    """Which runs a table is made of.

    Attributes:
        dataset: one of `CIFARS`; its subset is the literature's.
        recipe: a name of `train.recipe.RECIPES`.
        seeds: how many of each kind.
        overrides: recipe values to change, for a trial in small.
        ratio: the imbalance ratio; the literature's if None.

    Examples:
        >>> plan = Plan("cifar10-lt", "tuned", seeds=2)
        >>> plan.spec(PLAIN, 1).method.name, plan.spec(PLAIN, 1).seed
        ('softmax', 1)
    """

    dataset: str
    recipe: str
    seeds: int = 5
    overrides: Mapping[str, Any] = field(default_factory=Settings)
    ratio: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "overrides", Settings(self.overrides))
        _checks.choice(self.dataset, CIFARS, "table-exp", name="dataset")
        _checks.whole(self.seeds, "table-exp", name="seeds")

    experiment: ClassVar[str] = "table-exp"
    kinds: ClassVar[tuple[Kind, ...]] = TABLE

    @property
    def column(self) -> str:
        """What the table's column is called, by which the paper's values are found."""
        return self.dataset

    def labels(self) -> dict[str, Any]:
        """What tells this plan's part of a table from others, for JSON."""
        return {"dataset": self.dataset, "recipe": self.recipe}

    def spec(self, kind: Kind, seed: int) -> RunSpec:
        """What one run is, but for its precision."""
        return _spec(self, kind, seed)

    def specs(self, kinds: Iterable[Kind]) -> list[RunSpec]:
        """Every seed of some kinds, all kinds of a seed together."""
        kinds = list(kinds)
        return [self.spec(kind, seed) for seed in range(self.seeds) for kind in kinds]

    @property
    def adam_ways(self) -> tuple[bool, ...]:
        """With which weight decay Adam is tried: the recipe's, and none at all.

        Without any, `paper` and `tuned` are one and the same, so these runs are `tuned`'s alone.
        """
        return (True, False) if self.recipe == "tuned" else (True,)

    def trials(self, *, decay: bool = True) -> list[RunSpec]:
        """The runs that choose Adam's rate: one seed of each rate, with a held-out part."""
        return [self.spec(adam_trial(rate, decay=decay), 0) for rate in ADAM_RATES]

    def command(self, rows: Rows = "table") -> str:
        """What to type to train these runs."""
        words = f"longtail reproduce table-exp --recipe {self.recipe} --dataset {self.dataset}"
        words += f" --seeds {self.seeds}" if self.seeds != 5 else ""
        return words if rows == "figures" else f"{words} --rows {rows}"


@cache  # a table asks for each many times
def _spec(plan: Plan, kind: Kind, seed: int) -> RunSpec:
    ratio = DATASETS[plan.dataset] if plan.ratio is None else plan.ratio
    data = DataSpec(plan.dataset, profile="exp", imbalance_ratio=ratio)
    return make_spec(
        replace(data, held_out=kind.held_out),
        method=kind.method,
        recipe=plan.recipe,
        seed=seed,
        overrides={**plan.overrides, **kind.overrides},
    )


@cache
def without_precision(spec: RunSpec) -> RunSpec:
    """The spec as a plan has it: on a GPU runs are in bfloat16, which a plan leaves open."""
    settings = {key: value for key, value in spec.settings.items() if key != "precision"}
    return replace(spec, settings=Settings(settings))


class Shelf:
    """Records by what they are records of.

    Args:
        found: records, one of each run.
    """

    def __init__(self, found: Iterable[Record] = ()) -> None:
        self._records: dict[Path, Record] = {}
        for one in found:
            other = self.get(one.spec)
            if other is not None:
                raise InputError(
                    f"records: {other.name} and {one.name} are the same run in {other.precision} "
                    f"and {one.precision}; keep one of them."
                )
            self.put(one)
        records.one_data(self.records)

    @property
    def records(self) -> list[Record]:
        """All of them."""
        return list(self._records.values())

    def get(self, spec: RunSpec) -> Record | None:
        """The record of a run, in whatever precision, or None."""
        return self._records.get(without_precision(spec).folder)

    def put(self, one: Record) -> None:
        """Add a record, in the place of what was there of the same run."""
        self._records[without_precision(one.spec).folder] = one

    def adam_rate(self, plan: Plan, *, decay: bool = True) -> float | None:
        """The rate with the least balanced error on held-out data; None while one is missing."""
        errors = []
        for spec in plan.trials(decay=decay):
            trial = self.get(spec)
            if trial is None:
                return None
            errors.append(float(trial.per_class(HELD_OUT).mean()))
        return ADAM_RATES[int(np.argmin(errors))]


def needs_partner(spec: RunSpec) -> bool:
    """Whether a run's record is whole only with the taus that its partner chose."""
    plain = spec.method.name == BASELINE and not spec.model.settings.get("head")
    return plain and not spec.dataset.held_out and spec.recipe.values["optimizer"] != "adam"


def is_judged(found: Record | None) -> bool:
    """Whether a record has its run's errors: on the held-out part, or on the test set."""
    if found is None:
        return False
    return found.data_of(HELD_OUT if found.spec.dataset.held_out else TEST) is not None


def is_whole(found: Record | None) -> bool:
    """Whether a record has all that a table needs of its run, its partner's taus included."""
    if found is None or not is_judged(found):
        return False
    point = found.point(records.LOGIT_ADJUSTMENT, "held-out")
    return point is not None or not needs_partner(found.spec)


class OutOfTimeError(Exception):
    """The time that `train` was given is over; what was trained is kept."""


@dataclass
class Trainer:
    """Trains plans' runs where records are missing, and writes the records.

    Attributes:
        load: gives a data set by name.
        runs: the folder of run folders.
        folder: of records.
        device: where to train.
        precision: of the networks, ``float32`` or ``bfloat16``.
        together: how many runs share a GPU.
        command: what to type to do this again, for the runs' own records.
        only: kinds of the table's runs to train, by name; none for all.
        deadline: on the clock of `time.monotonic`, or None for no end.
        progress: called as ``progress(epochs done, epochs in all, what)``.
        world: the processes that train images on disk together; None for this one alone.
        streaming: how images on disk are read.
    """

    load: Callable[[str], LongTailedData | ListedData]
    runs: Path
    folder: Path
    device: torch.device | str = "cpu"
    precision: str = "float32"
    together: int = 32
    command: str | None = None
    only: Sequence[str] = ()
    deadline: float | None = None
    progress: Progress | None = None
    world: World | None = None
    streaming: Streaming | None = None

    def __post_init__(self) -> None:
        for name in self.only:
            _checks.choice(name, [kind.name for kind in TABLE], "table-exp", name="only")
        self.shelf = Shelf(records.read_all(self.folder))
        self._data: dict[str, Any] = {}

    def run(self, plans: Sequence[Plan], *, rows: Rows = "figures") -> bool:
        """Train what is missing: the table's runs of every plan first, then the others.

        Returns:
            Whether everything is there; False if time ran out.
        """
        _checks.choice(rows, ("table", "figures", "extra"), "table-exp", name="rows")
        if self.only and rows != "table":
            raise InputError(
                f"table-exp: `only` picks among the table's runs, so it goes with rows 'table'; "
                f"got {rows!r}."
            )
        try:
            for plan in plans:
                # What waits for nothing trains together: Adam's trials fill the table's gaps.
                trials = [spec for decay in plan.adam_ways for spec in plan.trials(decay=decay)]
                self._train(
                    plan, plan.specs(self._kinds(plan)) + (trials if rows != "table" else [])
                )
            if rows != "table":
                for plan in plans:
                    rates = {way: self.shelf.adam_rate(plan, decay=way) for way in plan.adam_ways}
                    chosen = [adam(rate, decay=way) for way, rate in rates.items() if rate]
                    self._train(plan, plan.specs(chosen))
            if rows == "extra":
                for plan in plans:
                    for kind in EXTRA:
                        self._train(plan, plan.specs([kind]))
        except OutOfTimeError:
            return False
        return True

    def _kinds(self, plan: Plan) -> list[Kind]:
        return [kind for kind in plan.kinds if not self.only or kind.name in self.only]

    def _train(self, plan: Plan, specs: Sequence[RunSpec]) -> None:
        missing = [spec for spec in specs if not self._is_whole(self.shelf.get(spec))]
        if not missing:
            return
        # A run and its partner are trained in one part: its record needs both.
        part: list[RunSpec] = []
        for seed in sorted({spec.seed for spec in missing}):
            of_seed = [spec for spec in missing if spec.seed == seed]
            if part and len(part) + len(of_seed) > self.together:
                self._part(plan, part)
                part = []
            part += of_seed
        self._part(plan, part)

    def _is_whole(self, found: Record | None) -> bool:
        # Without the partners, what waits for their taus is as whole as it gets.
        no_partner = self.only and PARTNER.name not in self.only
        return is_judged(found) if no_partner else is_whole(found)

    def _part(self, plan: Plan, specs: Sequence[RunSpec]) -> None:
        """Train some runs together, judge them, and write their records."""
        from longtail.train.engine import StoppedError, train_cohort

        if not self._is_time_to_begin():
            raise OutOfTimeError
        data = self._data_of(plan)
        precise = [self._precise(spec) for spec in specs]
        try:
            trained = train_cohort(
                precise,
                data.train,
                root=self.runs,
                device=self.device,
                command=self.command,
                together=self.together,
                progress=self.progress,
                stop=self._is_over,
                **self._shared(),
            )
        except StoppedError as stopped:
            raise OutOfTimeError from stopped
        except RunError:  # one whose loss became infinite must not cost the others
            self._keep(plan, data, self._finished(precise))
            raise
        self._keep(plan, data, trained)

    def _shared(self) -> dict[str, Any]:
        """What training and evaluation are told about images on disk, where there are any."""
        given = {"world": self.world, "streaming": self.streaming}
        return {name: value for name, value in given.items() if value is not None}

    def _finished(self, specs: Sequence[RunSpec]) -> list[Run]:
        folders = [self.runs / spec.folder for spec in specs]
        begun = [folder for folder in folders if (folder / "run.json").exists()]
        opened = [Run.open(folder, verify=False, unfinished=True) for folder in begun]
        return [run for run in opened if run.finished]

    def _keep(self, plan: Plan, data: Any, trained: Sequence[Run]) -> None:
        """Judge finished runs and write their records."""
        from longtail.train.engine import evaluate

        # Those with a held-out part first: the others' records take their taus from them.
        for run in sorted(trained, key=lambda run: not run.spec.dataset.held_out):
            partner = None
            if run.spec.dataset.held_out == 0:
                run = evaluate(run, data.test, device=self.device, **self._shared())
                if needs_partner(run.spec):
                    partner = self.shelf.get(plan.spec(PARTNER, run.spec.seed))
            found = records.record(run, partner=partner)
            if self.world is None or self.world.first:
                records.write(found, self.folder)
            self.shelf.put(found)

    def _precise(self, spec: RunSpec) -> RunSpec:
        """The spec with the precision; float32 goes without saying."""
        if self.precision == "float32":
            return spec
        return replace(spec, settings=Settings({**spec.settings, "precision": self.precision}))

    def _data_of(self, plan: Plan) -> Any:
        if plan.dataset not in self._data:
            self._data[plan.dataset] = self.load(plan.dataset)
        return self._data[plan.dataset]

    def _is_time_to_begin(self) -> bool:
        """Whether more is left than what a GPU takes to capture the steps of a new part."""
        on_gpu = str(self.device).startswith("cuda")
        return not self._is_over(before=_CAPTURE_SECONDS if on_gpu else 0.0)

    def _is_over(self, *, before: float = 0.0) -> bool:
        """Whether the time is up, or less than so many seconds are left of it."""
        if self.deadline is None:
            return False
        over = time.monotonic() + before >= self.deadline
        # All stop alike, by the first one's clock: one that stops alone leaves the others waiting.
        return over if self.world is None else bool(self.world.tell(over))
