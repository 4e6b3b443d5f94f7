"""Small real runs on digits for the tests of pages and figures, trained once per process."""

import functools
import tempfile
from dataclasses import replace
from pathlib import Path

from longtail.cli.demo import one_thread
from longtail.data.digits import load_digits_lt
from longtail.runs import Run, find_runs
from longtail.train.engine import evaluate, train_cohort
from longtail.train.recipe import make_spec

EPOCHS, SEEDS = 3, 2
_folder = tempfile.TemporaryDirectory(prefix="longtail-digits-")


@functools.cache
def digits_root() -> Path:
    """A folder of runs: softmax, logit-adjusted and softmax with a held-out part, two seeds."""
    data, root = load_digits_lt(), Path(_folder.name) / "runs"
    held = replace(data.spec, held_out=0.2)
    specs = [
        make_spec(spec, method=method, recipe="digits", seed=seed, overrides={"epochs": EPOCHS})
        for spec, method in (
            (data.spec, "softmax"),
            (data.spec, "logit-adjusted"),
            (held, "softmax"),
        )
        for seed in range(SEEDS)
    ]
    with one_thread():
        for run in train_cohort(specs, data.train, root=root, command="longtail train digits"):
            evaluate(run, data.test)
    return root


@functools.cache
def digits_runs() -> tuple[Run, ...]:
    return tuple(find_runs(digits_root()))
