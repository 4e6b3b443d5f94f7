"""ImageNet-LT and iNaturalist in small, on disk in their formats, and made-up records of them."""

import functools
import tempfile
from dataclasses import replace
from pathlib import Path

from data_factory import write_large
from exp_factory import made_up
from longtail.data.large import LARGE, load_listed
from longtail.experiments import table_large
from longtail.experiments.demo import one_thread
from longtail.experiments.exp_runs import PLAIN
from longtail.experiments.large_runs import COLUMNS, KINDS, LargePlan
from longtail.runs import DataSpec
from longtail.train.streamed import Streaming

COUNTS = {"imagenet-lt": (24, 10, 5, 3), "inaturalist": (20, 8, 4, 2, 2)}
OVERRIDES = {
    "model": "small-conv",
    "epochs": 2,
    "batch_size": 16,
    "image_size": 16,
    "lr": 0.05,
    "warmup_epochs": 1,
}
HERE = Streaming(workers=0)
DATA = {name: DataSpec(name, settings={"list": name[:1] * 16}) for name in COUNTS}
_folder = tempfile.TemporaryDirectory(prefix="longtail-large-")


@functools.cache
def trees():
    """A folder with a sub-folder of lists and photographs for each data set."""
    root = Path(_folder.name) / "data"
    for name, counts in COUNTS.items():
        write_large(root / name, name, counts=counts, held=3)
    return root


def load(name):
    return load_listed(name, data_dir=trees(), verify=False)


def small_sizes(monkeypatch):
    """Let the small data sets pass for the published ones."""
    for name, counts in COUNTS.items():
        sizes = {"train": sum(counts), "val": 3 * len(counts), "test": 3 * len(counts)}
        monkeypatch.setitem(LARGE, name, replace(LARGE[name], sizes=sizes))


@functools.cache
def trained():
    """One column of each data set, trained: the folder and the study."""
    root = Path(_folder.name) / "trained"
    with one_thread():
        study = table_large.run(
            load=load,
            runs=root / "runs",
            folder=root / "kept",
            columns=(COLUMNS[0], COLUMNS[4]),
            seeds=1,
            overrides=OVERRIDES,
            streaming=HERE,
        )
    return root, study


LEVELS = {"softmax": 0.5, "logit-adjusted": 0.4, "logit-adjusted-adaptive": 0.38}


def made_up_column(column, *, seeds=2, classes=30, kinds=KINDS):
    """Records with chosen numbers of every run of a column."""
    plan = LargePlan.of(column, DATA[column.dataset], seeds=seeds)
    found = []
    for kind in kinds:
        for seed in range(seeds):
            spec = replace(plan.spec(kind, seed), settings={"precision": "bfloat16"})
            level = LEVELS.get(spec.method.name, 0.45)
            partner = kind is PLAIN
            data = column.dataset[0] * 64
            found.append(made_up(spec, partner=partner, level=level, classes=classes, data=data))
    return found
