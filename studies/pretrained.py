"""Pretrained against from scratch, on fifty classes of CIFAR-100 that the pretraining never saw.

A ResNet-32 is pretrained on the classes with even labels, all 500 images of each, and fine-tuned
on a long-tailed subset (EXP profile, imbalance ratio 100) of those with odd labels: the whole
network or the last layer only, by plain cross-entropy or the logit-adjusted loss; beside it the
same methods from scratch. Three seeds; minutes on a GPU.

  python -m studies pretrained --device cuda     train what has no record, the table and the page
  python -m studies pretrained --no-train        the table and the page from the records
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from longtail import InputError
from longtail.data import ImageSet, LongTailedData, load
from longtail.data.subsets import make_long_tailed
from longtail.report.compare import mean_interval
from longtail.report.tables import Table, percent, spread
from longtail.runs import DataSpec, RunSpec, Settings
from studies import _pages as pages
from studies._pages import points
from studies._records import (
    ADJUSTED,
    Record,
    Shelf,
    add_training_arguments,
    device_of,
    precision_of,
    record_of,
    write,
)

EVEN, ODD = "cifar100-even", "cifar100-odd-lt"
RATIO, SEEDS = 100.0, 3
# The named recipe with what belongs to CIFAR; thirty epochs of so few images are 1,300 steps.
FINETUNE: dict[str, Any] = {
    "model": "resnet32",
    "epochs": 30,
    "image_size": 0,
    "crop_padding": 4,
    "mean": (0.4914, 0.4822, 0.4465),
    "std": (0.2023, 0.1994, 0.2010),
}


SCRATCH, HEAD_ONLY, WHOLE = "from scratch", "pretrained, head only", "pretrained, fine-tuned"
STARTS = {SCRATCH: {}, HEAD_ONLY: FINETUNE | {"freeze_backbone": True}, WHOLE: FINETUNE}
METHODS = ("softmax", "logit-adjusted")
ROWS = [(start, method) for start in STARTS for method in METHODS]


def row_of(one: Record) -> tuple[str, str]:
    """Return the start and the method of a record, whatever its seed, precision and epochs."""
    start = SCRATCH
    if "weights" in one.spec.settings:
        start = HEAD_ONLY if one.spec.recipe.values.get("freeze_backbone") else WHOLE
    return start, one.spec.method.name


def halves(data_dir: Any = None) -> tuple[LongTailedData, LongTailedData]:
    """Return the data to pretrain on and the long-tailed data, which share no class."""
    whole = load("cifar100-lt", data_dir=data_dir, imbalance_ratio=1.0, development=0)
    return split(whole)


def split(whole: LongTailedData) -> tuple[LongTailedData, LongTailedData]:
    """Return the classes with even labels as they are, and those with odd ones long-tailed."""
    parts = [[_half(part, odd) for part in (whole.train, whole.test)] for odd in (False, True)]
    even = LongTailedData(*parts[0], DataSpec(EVEN))
    spec = DataSpec(ODD, profile="exp", imbalance_ratio=RATIO)
    return even, make_long_tailed(*parts[1], spec, development=0)


def _half(part: ImageSet, odd: bool) -> ImageSet:
    chosen = part.take(np.flatnonzero(part.labels % 2 == odd))
    return replace(chosen, labels=chosen.labels // 2, class_names=part.class_names[odd::2])


def train(
    options: argparse.Namespace,
    parts: Callable[[], tuple[LongTailedData, LongTailedData]],
    report: Callable[[float, int, str], None] | None = None,
) -> None:
    """Train and judge the runs that have no record; those that are finished stay."""
    from longtail.train import evaluate, make_spec, train_cohort, with_weights
    from longtail.train.checkpoint import as_tensors
    from longtail.train.pretrained import Weights
    from longtail.train.recipe import parse_overrides

    device, changes = device_of(options), parse_overrides(options.set)
    precision = precision_of(options)
    even, odd = parts()
    how: dict[str, Any] = {"root": options.runs, "device": device, "together": options.together}
    how |= {"progress": report, "command": "python -m studies pretrained"}

    def spec(data: DataSpec, method: str, recipe: str, seed: int, values: Any) -> RunSpec:
        made = make_spec(data, method=method, recipe=recipe, seed=seed, overrides=values | changes)
        settings = {} if precision == "float32" else {"precision": precision}
        return replace(made, settings=Settings(settings))

    (run,) = train_cohort([spec(even.spec, "softmax", "tuned", 0, {})], even.train, **how)
    weights = Weights(run.name, as_tensors(run.model()))
    for start, method in ROWS:
        recipe, begin = ("tuned", None) if start == SCRATCH else ("finetune", weights)
        seeds = range(options.seeds or SEEDS)
        specs = [spec(odd.spec, method, recipe, seed, STARTS[start]) for seed in seeds]
        specs = [with_weights(one, begin) if begin else one for one in specs]
        for run in train_cohort(specs, odd.train, weights=begin, **how):
            write(record_of(evaluate(run, odd.test, device=device)), options.records)


def errors(found: Sequence[Record], adjusted: bool) -> np.ndarray:
    """Return the error of each class, shape (runs, classes), perhaps adjusted at τ = 1."""
    if adjusted:
        return np.array([one.point(ADJUSTED, "fixed").per_class for one in found])
    return np.array([one.per_class() for one in found])


def table(records: Sequence[Record]) -> Table:
    """Return the balanced error of every start and method, and that of groups of classes."""
    of_row: dict[tuple[str, str], list[Record]] = {}
    for one in sorted(records, key=lambda one: one.spec.seed):
        of_row.setdefault(row_of(one), []).append(one)
    groups = {name: at for name, at in records[0].prior.groups().items() if len(at)}
    lines = []
    for start, method in (row for row in ROWS if row in of_row):
        found, scratch = of_row[start, method], of_row.get((SCRATCH, method), [])
        for adjusted in (False, True) if method == "softmax" else (False,):
            values, against = errors(found, adjusted), "–"
            balanced = values.mean(1)
            if start != SCRATCH and len(scratch) == len(found):
                against = points(mean_interval(balanced - errors(scratch, adjusted).mean(1)))
            each = [percent(values[:, at].mean()) for at in groups.values()]
            name = "softmax, post-hoc, τ = 1" if adjusted else method
            lines.append((start, name, spread(list(balanced)), against, *each))
    header = ("start", "method", "balanced error", "against from scratch", *groups)
    return Table(
        "Balanced test error in percent, fifty classes, imbalance ratio 100",
        header,
        lines,
        note=(
            "Mean and standard deviation over the seeds, last epoch. Against from scratch: the "
            "difference in points to the same method, paired by seed, with a 95% interval."
        ),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this study."""
    add_training_arguments(parser, records="results/pretrained")


def main(options: argparse.Namespace) -> None:
    """Train what is missing, print the table and write the page."""
    if options.minutes or options.only:
        raise InputError("this study trains all of its runs at once, in minutes; leave both out.")
    if not options.no_train:
        with pages.progress("training") as report:
            train(options, partial(halves, options.data_dir), report)
    records = Shelf(options.records).records
    pages.refuse_nothing(records, options)
    found = table(records)
    pages.show([found])
    there = set(map(row_of, records))
    lacking = [", ".join(row) for row in ROWS if row not in there]
    if lacking:
        pages.note(f"Not yet trained: {'; '.join(lacking)}.")
    with pages.page(options, "docs/pretrained.md") as write_page:
        write_page(
            pages.render(
                "pretrained",
                table=found,
                **pages.facts(records),
                missing=lacking,
            )
        )
