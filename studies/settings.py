"""The paper's CIFAR table in other settings: ratios, subsets and the authors' weight decay.

The runs and rows of `exp` on CIFAR-10-LT and CIFAR-100-LT at imbalance ratios 10, 50 and 200 (three
seeds), on three further subsets at ratio 100 (three seeds), and with the recipe `paper` under
twice its weight decay, which is what the authors' Keras penalty amounts to (five seeds).

  python -m studies settings --minutes 9 --device cuda   train what has no record, for nine minutes
  python -m studies settings --no-train                  the tables and the page from the records
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from longtail.report.tables import Table, percent
from studies import _pages as pages
from studies._pages import mean_deviation
from studies._records import (
    ROOT,
    SCALED,
    TITLES,
    Column,
    Runs,
    Shelf,
    add_training_arguments,
    cifar,
    resized,
)
from studies.exp import ADAPTIVE, CIFARS, EQUALIZED, ERM, LOSS, TAU_ONE, row_of, runs_of

RATIOS, SUBSETS, SEEDS = (10.0, 50.0, 200.0), (1, 2, 3), (0, 1, 2)
ROWS = (ERM, row_of(SCALED), ADAPTIVE, EQUALIZED, TAU_ONE, LOSS)
DECAY = "`paper`, weight decay 2e-4"


def _three(runs: Runs) -> Runs:
    return replace(runs, seeds=SEEDS, tau_from=runs.tau_from and _three(runs.tau_from))


def definition(dataset: str) -> dict[str, list[Runs]]:
    """Return the runs of each setting of a data set, by the setting's name."""
    data = cifar(dataset)
    found = {
        f"ratio {ratio:g}": [_three(one) for one in runs_of(cifar(dataset, ratio), "tuned")]
        for ratio in RATIOS
    }
    for seed in SUBSETS:
        subset = replace(data, seed=seed)
        found[f"subset {seed}"] = [_three(one) for one in runs_of(subset, "tuned")]
    found[DECAY] = [one.changed({"weight_decay": 2e-4}) for one in runs_of(data, "paper")]
    return found


def settings_table(title: str, columns: dict[str, Column], wanted: Sequence[str]) -> Table:
    """Return the rows of `exp` in some settings of a data set."""
    rows = [(row.name, *(mean_deviation(columns[name], row) for name in wanted)) for row in ROWS]
    return Table(f"Balanced test error in percent, {title}", ("method", *wanted), rows)


def spread_table(columns: dict[str, dict[str, Column]]) -> Table:
    """Return how much of the spread is the subset's and how much the training seed's."""
    header, rows = ["method"], []
    for found in columns.values():
        header += [f"{found['subset 0'].title}: seeds", "subsets"]
    for row in ROWS:
        cells = [row.name]
        for found in columns.values():
            errors = [
                cell.errors[:3]
                for name, column in found.items()
                if name.startswith("subset") and (cell := column.cell(row)) is not None
            ]
            if len(errors) < 1 + len(SUBSETS):
                cells += ["–", "–"]
                continue
            within = np.mean([np.var(some, ddof=1) for some in errors])
            between = np.var([some.mean() for some in errors], ddof=1) - within / len(SEEDS)
            cells += [percent(v, digits=2) for v in (np.sqrt(within), np.sqrt(max(between, 0.0)))]
        rows.append(cells)
    note = "Standard deviations in points: of training seeds on one subset, and of the subsets."
    return Table("What varies: the training seed or the subset?", header, rows, note=note)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this study."""
    add_training_arguments(parser, records="results/settings", datasets=CIFARS)


def main(options: argparse.Namespace) -> None:
    """Train what is missing, print the tables and write the page."""
    wanted = {
        name: {setting: resized(options, runs) for setting, runs in definition(name).items()}
        for name in options.dataset or CIFARS
    }
    rows = [one for found in wanted.values() for runs in found.values() for one in runs]
    shelf, finished = pages.trained(options, rows)
    if not finished:
        return
    known = Shelf(ROOT / "results/exp")
    columns, tables = {}, []
    for name, found in wanted.items():
        title, mine = TITLES[name], {}
        for recipe, setting in (("tuned", "subset 0"), ("paper", "`paper`")):
            mine[setting] = Column.of(name, title, runs_of(cifar(name), recipe), known)
        mine |= {setting: Column.of(name, title, runs, shelf) for setting, runs in found.items()}
        mine["ratio 100"] = mine["subset 0"]
        columns[name] = mine
        ratios = [f"ratio {ratio:g}" for ratio in sorted({*RATIOS, 100.0})]
        subsets = [f"subset {seed}" for seed in (0, *SUBSETS)]
        parts = {"recipe `tuned`": ratios, "ratio 100": subsets, "weight decay": ["`paper`", DECAY]}
        tables += [settings_table(f"{title}, {t}", mine, some) for t, some in parts.items()]
    records = [r for found in columns.values() for c in found.values() for r in c.records]
    records = [one for one in records if one in shelf.records]
    pages.refuse_nothing(records, options)
    tables.append(spread_table(columns))
    pages.show(tables)
    with pages.page(options, "docs/settings.md") as write:
        write(
            pages.render(
                "settings",
                tables=tables,
                **pages.facts(records),
                missing=sorted(
                    f"{TITLES[name]}, {setting}: {m}"
                    for name, found in wanted.items()
                    for setting in found
                    for m in columns[name][setting].missing()
                ),
            )
        )
