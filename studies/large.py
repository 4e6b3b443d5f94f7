"""The paper's ImageNet-LT and iNaturalist tables: every published number beside ours.

A column is a data set, a network and a number of epochs; its runs are those of the CIFAR table and
one more loss, each trained from images on disk by all processes that torchrun started. It takes
GPUs and days; --estimate says how many hours after a minute of training.

  python -m studies large --no-train                 the table and the page from the records
  python -m studies large --dataset imagenet-lt --data-dir lists --root images --estimate
  torchrun --standalone --nproc-per-node 8 -m studies large --dataset inaturalist --data-dir FOLDER
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longtail import InputError
from longtail.data.large import LARGE
from longtail.report import figures
from longtail.report.tables import Table
from longtail.runs import DataSpec
from studies import _pages as pages
from studies import exp
from studies._pages import mean_deviation
from studies._records import (
    DROPPED,
    Column,
    Record,
    Row,
    Runs,
    Shelf,
    add_training_arguments,
    device_of,
    precision_of,
    resized,
    train_missing,
)

if TYPE_CHECKING:
    from longtail.data.large import ListedData
    from longtail.train.distributed import World
    from longtail.train.streamed import Streaming

# ---------------------------------------------------------------------------- the runs

NETWORKS = {"resnet50": "ResNet-50", "resnet152": "ResNet-152"}
PARTNER = "softmax, 20% held out"
LOSSES = (
    "softmax",
    "adaptive",
    "equalized-threshold",
    "logit-adjusted",
    "logit-adjusted-adaptive",  # of the paper's table of larger networks
)
NAMES = (*LOSSES, PARTNER)


@dataclass(frozen=True)
class Setting:
    """A column of the tables: a data set, whose name its recipe has, a network, and its epochs.

    Examples:
        >>> Setting("inaturalist", "resnet152", 200).title
        'iNaturalist 2018, ResNet-152, 200 epochs'
    """

    dataset: str
    model: str
    epochs: int

    @property
    def title(self) -> str:
        """Title for people."""
        return f"{LARGE[self.dataset].title}, {NETWORKS[self.model]}, {self.epochs} epochs"

    @property
    def short(self) -> str:
        """For the head of a wide table."""
        name = LARGE[self.dataset].title.removesuffix(" 2018")
        return f"{name}, {self.model.replace('resnet', 'R')}, {self.epochs} ep."

    def runs(self, data: DataSpec) -> list[Runs]:
        """Return the column's runs."""
        values = {"model": self.model, "epochs": self.epochs}
        # The public settings for both CIFARs are half of the mean frequency; so it is here.
        threshold = 0.5 / LARGE[self.dataset].num_classes
        methods = {"equalized-threshold": f"equalized-threshold:threshold={threshold:g}"}

        def runs(name: str, **more: Any) -> Runs:
            method = methods.get(name, name if name in LOSSES else "softmax")
            return Runs(name, data, method, self.dataset, values, **more)

        partner = runs(PARTNER, held_out=0.2)
        return [runs("softmax", tau_from=partner), *(runs(name) for name in LOSSES[1:]), partner]


# The paper's, in its order; ImageNet-LT's epochs are those of its appendix.
SETTINGS = (
    Setting("imagenet-lt", "resnet50", 90),
    Setting("imagenet-lt", "resnet152", 90),
    Setting("inaturalist", "resnet50", 90),
    Setting("inaturalist", "resnet152", 90),
    Setting("inaturalist", "resnet152", 200),
)
DATASETS = tuple(dict.fromkeys(one.dataset for one in SETTINGS))

# ---------------------------------------------------------------------------- the table


def _published(*values: float) -> dict[str, float]:
    return {one.title: value for one, value in zip(SETTINGS, values, strict=True)}


# In percent. The adaptive loss on iNaturalist with ResNet-50 is quoted there from Cao et al., and
# weight normalisation at its best τ from Kang et al.
PAPER = {
    "softmax": _published(53.11, 53.30, 38.66, 35.88, 34.38),
    "weight norm., fixed": _published(52.00, 51.49, 48.05, 45.17, 45.33),
    "weight norm., oracle": _published(49.37, 48.97, 34.10, 31.85, 30.34),
    "adaptive": _published(52.15, 53.34, 35.42, 31.18, 29.46),
    "equalized-threshold": _published(54.02, 51.38, 38.37, 35.86, 34.53),
    "adjusted, fixed": _published(49.66, 49.25, 33.98, 31.46, 30.15),
    "adjusted, oracle": _published(49.56, 49.15, 33.80, 31.08, 29.74),
    "logit-adjusted": _published(48.89, 47.86, 33.64, 31.15, 30.12),
}
BOTH = "logit-adjusted-adaptive"
ROWS = [
    *exp.rows_with(PAPER),
    Row(figures.label(BOTH), BOTH, paper=_published(51.25, 50.46, 31.56, 29.22, 28.02)),
]


def data_of(records: Iterable[Record]) -> dict[str, DataSpec]:
    """Return how the records name the examples of each data set; two lists of one are refused."""
    found: dict[str, tuple[DataSpec, str]] = {}
    for one in records:
        spec = replace(one.spec.dataset, held_out=0.0)
        seen, other = found.setdefault(spec.name, (spec, one.name))
        if seen != spec:
            raise InputError(
                f"{other} and {one.name} were trained on different lists of {spec.name}, so they "
                f"can't stand in one table; keep their records in different folders."
            )
    return {name: spec for name, (spec, _) in found.items()}


def overview(settings: Sequence[Setting], columns: Sequence[Column]) -> Table:
    """Return the published errors, and ours beside them where there are any."""
    by_key = {column.key: column for column in columns}
    header, found = ["method"], [[row.name] for row in ROWS]
    for one in settings:
        ours = by_key.get(one.title)
        header += [f"{one.short}, published", f"{one.short}, ours"] if ours else [one.short]
        for row, cells in zip(ROWS, found, strict=True):
            cells.append(f"{row.paper[one.title]:.2f}" if one.title in row.paper else "")
            cells += [mean_deviation(ours, row)] if ours else []
    title = "Balanced test error in percent" + ("" if columns else ", published")
    shown = [
        cells
        for row, cells in zip(ROWS, found, strict=True)
        if any(cells[1:]) and (columns or row.variant != DROPPED)  # published once for both biases
    ]
    return Table(title, header, shown)


# ---------------------------------------------------------------------------- hours


def gpu_hours(
    setting: Setting, images_per_second: float, *, processes: int = 1, images: int | None = None
) -> dict[str, float]:
    """Return the GPU hours of one run of each kind; evaluation is not counted.

    The images of the training set are as many as published, if absent.

    Examples:
        >>> {k: round(v, 1) for k, v in gpu_hours(SETTINGS[0], 1000.0).items() if "softmax" in k}
        {'softmax': 2.9, 'softmax, 20% held out': 2.3}
    """
    size = LARGE[setting.dataset].sizes["train"] if images is None else images
    whole = setting.epochs * size / images_per_second / 3600 * processes
    return {name: whole * (0.8 if name == PARTNER else 1.0) for name in NAMES}


_WARM_UP = 5  # steps that compile, choose algorithms and fill queues


class _EnoughError(Exception):
    """A trial has measured for as long as it was told; its rate."""


def measure(
    runs: Runs,
    data: ListedData,
    *,
    world: World,
    streaming: Streaming,
    precision: str,
    seconds: float = 30.0,
) -> float:
    """Train a run for a while, leave nothing behind, and return its images per second."""
    import torch

    from longtail.train.engine import train_cohort

    steps, begun, at_begin = 0, 0.0, 0.0
    passed, last = 0, 0.0  # epochs of earlier passes over a small set, and of this one

    def after_step(done: float, total: int, text: str) -> None:
        nonlocal steps, begun, at_begin, passed, last
        if done == int(done):
            return  # the end of an epoch, which not every process is told
        if done <= last:  # it began anew
            passed += int(last) + 1
        steps, last = steps + 1, done
        if steps > _WARM_UP and not world.tell(time.monotonic() - begun >= seconds):
            return  # the first process decides, so that all stop at the same step
        if world.device.type == "cuda":  # steps are queued, not done, when they return
            torch.cuda.synchronize(world.device)
        now = time.monotonic()
        if steps > _WARM_UP:
            raise _EnoughError((passed + done - at_begin) * len(data.train) / (now - begun))
        begun, at_begin = now, passed + done

    spec = Shelf(None, precision).spec(runs, runs.seeds[0])
    with tempfile.TemporaryDirectory() as own:
        how: dict[str, Any] = {"root": world.tell(own), "device": world.device, "world": world}
        how |= {"progress": after_step, "within_epoch": True, "streaming": streaming}
        while True:  # a small set may have been passed over before the time is up
            try:
                train_cohort([spec], data.train, force=True, **how)
            except _EnoughError as enough:
                return float(enough.args[0])


# ---------------------------------------------------------------------------- the command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this study."""
    parser.add_argument("--model", action="append", choices=NETWORKS, help="Only this network.")
    parser.add_argument(
        "--epochs", action="append", type=int, choices=(90, 200), help="Only so many epochs."
    )
    parser.add_argument("--estimate", action="store_true", help="Train a minute, print GPU hours.")
    parser.add_argument("--root", type=Path, help="Folder of the images, beside their lists.")
    parser.add_argument("--workers", type=int, help="Processes that decode images.")
    parser.add_argument("--micro-batch", type=int, default=256, help="Images on a GPU at once.")
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, help="On a GPU if absent."
    )
    add_training_arguments(parser, records="results/large", datasets=DATASETS)


def chosen(options: argparse.Namespace) -> list[Setting]:
    """Return the columns that are asked for."""
    return [
        one
        for one in SETTINGS
        if one.dataset in (options.dataset or DATASETS)
        and one.model in (options.model or NETWORKS)
        and one.epochs in (options.epochs or (90, 200))
    ]


def main(options: argparse.Namespace) -> None:
    """Train what is missing, print the tables and write the page."""
    settings = chosen(options)
    if options.no_train:
        shelf = Shelf(options.records)
        report(options, settings, shelf, data_of(shelf.records))
        return
    from longtail.data.large import load_listed
    from longtail.train.distributed import joined
    from longtail.train.streamed import Streaming

    streaming = Streaming(
        workers=options.workers, micro_batch=options.micro_batch, compile=options.compile
    )
    with joined(device_of(options)) as world:
        options.device = str(world.device)
        loaded = {
            name: load_listed(name, data_dir=options.data_dir, root=options.root)
            for name in dict.fromkeys(one.dataset for one in settings)
        }
        data = {name: one.spec for name, one in loaded.items()}
        if options.estimate:
            table = estimate(options, settings, loaded, world, streaming)
            pages.show([table] if world.rank == 0 else [])
            return
        rows = [run for one in settings for run in one.runs(data[one.dataset])]
        with pages.progress("training") if world.rank == 0 else nullcontext() as said:
            shelf, finished = train_missing(
                options,
                resized(options, rows),
                load=lambda spec: loaded[spec.name],
                shared={"world": world, "streaming": streaming},
                progress=said,
            )
        if world.rank > 0:
            return
    if not finished:
        pages.note("Time is up. Nothing is lost; the same command goes on.")
    report(options, settings, shelf, data)


def estimate(
    options: argparse.Namespace,
    settings: Sequence[Setting],
    loaded: Mapping[str, ListedData],
    world: World,
    streaming: Streaming,
) -> Table:
    """Measure each network on each data set for its share of a minute; return the hours."""
    pairs = {(one.dataset, one.model): one for one in settings}
    how: dict[str, Any] = {"world": world, "streaming": streaming, "seconds": 60.0 / len(pairs)}
    how["precision"] = precision_of(options)
    rates = {}
    for key, one in pairs.items():
        data = loaded[one.dataset]
        rates[key] = measure(resized(options, one.runs(data.spec))[0], data, **how)
    rows, total, seeds = [], 0.0, options.seeds or 5
    for one in settings:
        rate, images = rates[one.dataset, one.model], len(loaded[one.dataset].train)
        hours = gpu_hours(one, rate, processes=world.count, images=images)
        total += seeds * sum(hours.values())
        cells = (hours["softmax"], hours[PARTNER], seeds * sum(hours.values()))
        rows.append((one.title, f"{rate:,.0f}", *(f"{value:,.2f}" for value in cells)))
    return Table(
        "GPU hours, estimated",
        ("column", "images/s", "a run", "with a held-out part", "all runs"),
        rows,
        note=(
            f"All runs: {seeds} of each of {', '.join(NAMES)}. Post-hoc rows are made from the "
            f"softmax runs, τ held-out from those with a held-out part. {total:,.1f} GPU hours in "
            f"all; evaluation is not counted."
        ),
    )


def report(
    options: argparse.Namespace,
    settings: Sequence[Setting],
    shelf: Shelf,
    data: Mapping[str, DataSpec],
) -> None:
    """Print the tables and write the page."""
    columns = [
        Column.of(one.title, one.title, resized(options, one.runs(data[one.dataset])), shelf)
        for one in settings
        if one.dataset in data
    ]
    columns = [column for column in columns if column.records]
    claims = exp.claims_table(columns) if columns else None
    pages.show([pages.columns_table(column, ROWS, column.title, hours=True) for column in columns])
    pages.show([claims or overview(settings, columns)])
    if not columns:
        pages.note(f"There is no record of any of these runs in {options.records}.")
    drawn: dict[str, list[Column]] = {}
    for column in columns:
        if column.records_of("softmax"):
            drawn.setdefault(column.recipe, []).append(column)
    titles = ("Balanced error of the post-hoc methods against tau", "Error by class")
    with pages.page(options, "docs/large.md") as write:
        write(
            pages.render(
                "large",
                overview=overview(settings, columns),
                columns=columns,
                claims=claims,
                drawn=drawn,
                titles=titles,
                **pages.facts([one for column in columns for one in column.records]),
            )
        )
        for name, some in drawn.items():
            write.figure(f"{name}-tau-curves", exp.draw_taus(some, ROWS), title=titles[0])
            write.figure(f"{name}-per-class", exp.draw_classes(some), title=titles[1])
