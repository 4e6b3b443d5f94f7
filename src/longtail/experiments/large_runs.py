"""The runs behind the paper's ImageNet-LT and iNaturalist tables: columns, and a plan for each.

A column is a data set, a network and a number of epochs. Its runs are those of the EXP table and
one more loss; `exp_runs.Trainer` trains them, one at a time from disk, in as many processes as
torchrun started. What the table makes of their records is in `table_large`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar

from longtail import _checks
from longtail._checks import InputError
from longtail.data.large import LARGE
from longtail.experiments.exp_runs import EXTRA, PARTNER, TABLE, Kind, Plan, Rows
from longtail.experiments.records import Record
from longtail.runs import DataSpec, RunSpec, Settings
from longtail.train.recipe import make_spec

LARGES = ("imagenet-lt", "inaturalist")
NETWORKS = {"resnet50": "ResNet-50", "resnet152": "ResNet-152"}
EPOCHS = (90, 200)
# The paper's last row belongs to its table of larger networks.
KINDS = (
    *(kind for kind in TABLE if kind is not PARTNER),
    next(kind for kind in EXTRA if kind.name == "logit-adjusted-adaptive"),
    PARTNER,
)
_THRESHOLD = "equalized-threshold"


@dataclass(frozen=True)
class Column:
    """A column of the large tables.

    Attributes:
        dataset: of `LARGES`; a recipe has its name.
        model: of `NETWORKS`.
        epochs: of `EPOCHS`.

    Examples:
        >>> Column("inaturalist", "resnet152", 200).title
        'iNaturalist 2018, ResNet-152, 200 epochs'
    """

    dataset: str
    model: str
    epochs: int

    @property
    def title(self) -> str:
        """As people read it."""
        network = NETWORKS.get(self.model, self.model)
        words = f"{self.epochs} epoch{'' if self.epochs == 1 else 's'}"
        return f"{LARGE[self.dataset].title}, {network}, {words}"


# Those of the paper, in its order; ImageNet-LT's epochs are those of its appendix.
COLUMNS = (
    Column("imagenet-lt", "resnet50", 90),
    Column("imagenet-lt", "resnet152", 90),
    Column("inaturalist", "resnet50", 90),
    Column("inaturalist", "resnet152", 90),
    Column("inaturalist", "resnet152", 200),
)


def columns(
    *,
    datasets: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    epochs: Sequence[int] | None = None,
) -> tuple[Column, ...]:
    """The paper's columns, or those that are asked for.

    Args:
        datasets: only these of `LARGES`.
        models: only these of `NETWORKS`; with epochs, also where the paper has no such column.
        epochs: only these of `EPOCHS`.

    Examples:
        >>> len(columns()), len(columns(models=["resnet50"]))
        (5, 2)
        >>> columns(datasets=["imagenet-lt"], models=["resnet50"], epochs=[200])[0].epochs
        200
    """
    caller = "table-large"
    for name in datasets or ():
        _checks.choice(name, LARGES, caller, name="dataset")
    for name in models or ():
        _checks.choice(name, list(NETWORKS), caller, name="model")
    for number in epochs or ():
        if number not in EPOCHS:
            raise InputError(
                f"{caller}: `epochs` must be one of {', '.join(map(str, EPOCHS))}, the paper's; "
                f"got {number}. For a trial in small, override epochs (--set epochs={number})."
            )
    found = [
        Column(dataset, model, number)
        for dataset in LARGES
        for model in NETWORKS
        for number in EPOCHS
        if dataset in (datasets or LARGES)
        and model in (models or NETWORKS)
        and number in (epochs or EPOCHS)
    ]
    asked = models is not None and epochs is not None
    return tuple(one for one in found if asked or one in COLUMNS)


@dataclass(frozen=True)
class LargePlan(Plan):
    """Which runs one column is made of; the recipe has the data set's name.

    Attributes:
        model: the network.
        epochs: passes over the training set.
        data: the examples as their list names them; without it, no run can be named.
    """

    model: str = "resnet50"
    epochs: int = 90
    data: DataSpec | None = field(default=None)

    experiment: ClassVar[str] = "table-large"
    kinds: ClassVar[tuple[Kind, ...]] = KINDS

    def __post_init__(self) -> None:
        object.__setattr__(self, "overrides", Settings(self.overrides))
        _checks.choice(self.dataset, LARGES, self.experiment, name="dataset")
        _checks.choice(self.model, list(NETWORKS), self.experiment, name="model")
        _checks.whole(self.seeds, self.experiment, name="seeds")

    @classmethod
    def of(
        cls,
        column: Column,
        data: DataSpec | None,
        *,
        seeds: int = 5,
        overrides: Mapping[str, Any] | None = None,
    ) -> LargePlan:
        """The plan of a column."""
        return cls(
            column.dataset,
            column.dataset,
            seeds=seeds,
            overrides=Settings(overrides or {}),
            model=column.model,
            epochs=column.epochs,
            data=data,
        )

    @property
    def column(self) -> str:
        """The column's title."""
        return Column(self.dataset, self.model, self.epochs).title

    def labels(self) -> dict[str, Any]:
        """What tells this column from others, for JSON."""
        return {**super().labels(), "model": self.model, "epochs": self.epochs}

    def spec(self, kind: Kind, seed: int) -> RunSpec:
        """What one run is, but for its precision."""
        return _spec(self, kind, seed)

    @property
    def adam_ways(self) -> tuple[bool, ...]:
        """None: the paper has no figure of weight norms under Adam at this size."""
        return ()

    def command(self, rows: Rows = "table") -> str:
        """What to type to train these runs."""
        words = f"longtail reproduce {self.experiment} --dataset {self.dataset}"
        words += f" --model {self.model} --epochs {self.epochs}"
        return words + (f" --seeds {self.seeds}" if self.seeds != 5 else "")


@cache
def _spec(plan: LargePlan, kind: Kind, seed: int) -> RunSpec:
    if plan.data is None:
        raise InputError(
            f"{plan.experiment}: the runs on {plan.dataset} have the list's fingerprint in their "
            f"names, so the list must be there, or a record of a run on it."
        )
    method = kind.method
    if method == _THRESHOLD:
        # The public settings for both CIFARs are half of the mean frequency; so it is here.
        method = f"{method}:threshold={0.5 / LARGE[plan.dataset].num_classes:g}"
    return make_spec(
        replace(plan.data, held_out=kind.held_out),
        method=method,
        recipe=plan.recipe,
        seed=seed,
        overrides={
            "model": plan.model,
            "epochs": plan.epochs,
            **plan.overrides,
            **kind.overrides,
        },
    )


def data_of(found: Sequence[Record]) -> dict[str, DataSpec]:
    """How the records of each large data set name its examples.

    Args:
        found: records of any runs.

    Returns:
        By data set; those without records are left out.
    """
    named: dict[str, tuple[DataSpec, Record]] = {}
    for one in found:
        spec = replace(one.spec.dataset, held_out=0.0)
        if spec.name not in LARGES:
            continue
        seen, other = named.setdefault(spec.name, (spec, one))
        if seen != spec:
            raise InputError(
                f"records: {other.name} and {one.name} were trained on different lists of "
                f"{LARGE[spec.name].title}, so they can't stand in one table; keep their records "
                f"in different folders."
            )
    return {name: spec for name, (spec, _) in named.items()}
