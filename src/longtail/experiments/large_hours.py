"""How long the large tables take: images per second in a short trial, and hours for every cell.

A trial trains as a run does, from disk and in all processes, but leaves nothing behind. Post-hoc
rows cost no training; evaluation is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from longtail.experiments.exp_runs import PLAIN, Kind
from longtail.experiments.large_runs import KINDS, Column, LargePlan

if TYPE_CHECKING:
    import torch

    from longtail.data.lists import ListedImages
    from longtail.train.distributed import World
    from longtail.train.lane import Lane
    from longtail.train.streamed import Streaming

_WARM_UP = 5  # steps that compile, choose algorithms and fill queues


@dataclass(frozen=True)
class Rate:
    """What a trial measured.

    Attributes:
        images_per_second: of all processes together.
        processes: that trained.
        steps: that were measured.
        device: in words.
    """

    images_per_second: float
    processes: int
    steps: int
    device: str


@dataclass(frozen=True)
class Hours:
    """The time of every run of the tables.

    Attributes:
        columns: of the tables.
        rates: by data set and network.
        epochs: of each column, after overrides.
        sizes: training images by data set.
        seeds: of each run.
    """

    columns: tuple[Column, ...]
    rates: Mapping[tuple[str, str], Rate]
    epochs: tuple[int, ...]
    sizes: Mapping[str, int]
    seeds: int

    @classmethod
    def of(
        cls,
        columns: Sequence[Column],
        rates: Mapping[tuple[str, str], Rate],
        sizes: Mapping[str, int],
        *,
        seeds: int,
        overrides: Mapping[str, Any] | None = None,
    ) -> Hours:
        """The hours at some rates."""
        changed = (overrides or {}).get("epochs")
        epochs = tuple(one.epochs if changed is None else int(changed) for one in columns)
        return cls(tuple(columns), rates, epochs, sizes, seeds)

    def rate(self, column: Column) -> Rate:
        """The rate of a column's network on its data."""
        return self.rates[column.dataset, column.model]

    def of_run(self, column: Column, kind: Kind = PLAIN) -> float:
        """GPU hours of one run: wall-clock hours times processes.

        One of which a part is held out trains on the rest.
        """
        epochs = self.epochs[self.columns.index(column)]
        images = self.sizes[column.dataset] * (1.0 - kind.held_out)
        rate = self.rate(column)
        return epochs * images / rate.images_per_second / 3600.0 * rate.processes

    def of_column(self, column: Column) -> float:
        """GPU hours of all seeds of all runs of a column."""
        return self.seeds * sum(self.of_run(column, kind) for kind in KINDS)

    @property
    def total(self) -> float:
        """GPU hours of everything."""
        return sum(self.of_column(column) for column in self.columns)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "seeds": self.seeds,
            "gpu_hours": round(self.total, 3),
            "columns": [
                {
                    **asdict(column),
                    "epochs": self.epochs[number],
                    "rate": asdict(self.rate(column)),
                    "gpu_hours_of_a_run": {
                        kind.name: round(self.of_run(column, kind), 4) for kind in KINDS
                    },
                    "gpu_hours": round(self.of_column(column), 3),
                }
                for number, column in enumerate(self.columns)
            ],
        }


class _EnoughError(Exception):
    """A trial has measured for as long as it was told."""


class _Clock:
    """Counts images from the end of the warm-up on, and ends the trial."""

    def __init__(self, sizes: Sequence[int], seconds: float, world: World) -> None:
        self.sizes, self.seconds, self.world = sizes, seconds, world
        self.done, self.images, self.steps = 0, 0, 0
        self.started = 0.0
        self.elapsed = 0.0
        self.warm_up = min(_WARM_UP, len(sizes) - 1)

    def __call__(self, share: float) -> None:
        """After a step, with the share of the epoch that is done."""
        size = self.sizes[self.done % len(self.sizes)]
        self.done += 1
        if self.done == self.warm_up or not self.started:
            self._synchronize()
            self.started = time.monotonic()
            self.images = self.steps = 0
            return
        self.images += size
        self.steps += 1
        # The processes must stop at the same step, so the first one decides.
        if self.world.tell(time.monotonic() - self.started >= self.seconds):
            self._synchronize()
            self.elapsed = time.monotonic() - self.started
            raise _EnoughError

    def _synchronize(self) -> None:
        import torch

        if self.world.device.type == "cuda":  # steps are queued, not done, when they return
            torch.cuda.synchronize(self.world.device)


def measure(
    plan: LargePlan,
    images: ListedImages,
    *,
    device: torch.device | str = "cpu",
    precision: str = "float32",
    world: World | None = None,
    streaming: Streaming | None = None,
    seconds: float = 30.0,
) -> Rate:
    """Train one network for a while, as its runs do, and count.

    Args:
        plan: of the column.
        images: its training set.
        device: where to train.
        precision: of the network, ``float32`` or ``bfloat16``.
        world: the processes that train together, each with the same arguments.
        streaming: how the images are read.
        seconds: to measure for, after the steps that compile.

    Returns:
        The Rate.
    """
    import torch

    from longtail.train.distributed import World
    from longtail.train.engine import device_words
    from longtail.train.lane import Lane
    from longtail.train.methods import Method
    from longtail.train.plan import Planner
    from longtail.train.recipe import Recipe
    from longtail.train.streamed import StreamedTeam

    where = torch.device(device)
    world = world or World(device=where)
    spec = plan.spec(PLAIN, 0)
    planner = Planner(
        Recipe.of(spec),
        Method.of(spec.method),
        images.labels,
        np.arange(len(images)),
        images.prior,
        seed=0,
    )
    make = partial(
        StreamedTeam,
        planner,
        images,
        precision=precision,
        device=where,
        world=world,
        how=streaming,
    )
    lane = Lane(make, device=where, graphs=False)
    clock = _Clock(planner.batch_sizes, seconds, world)
    _until_enough(lane, clock)
    rate = clock.images / clock.elapsed
    return Rate(rate, world.count, clock.steps, device_words(where, world.count))


def _until_enough(lane: Lane, clock: _Clock) -> None:
    from longtail.train.lane import run_epoch

    epoch = 0
    try:
        while True:
            run_epoch([lane], [epoch], after_step=clock)
            epoch += 1
    except _EnoughError:
        return
