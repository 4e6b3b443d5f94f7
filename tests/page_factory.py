"""Small real runs on digits, trained once per process, and predictions, for pages and figures."""

import functools
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from longtail import ClassPrior
from longtail.cli.demo import one_thread
from longtail.data.digits import load_digits_lt
from longtail.predictions import adjust_predictions, from_arrays
from longtail.report.compare import Comparison, compare
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


@functools.cache
def digits_comparison() -> Comparison:
    return compare(digits_runs())


def adjusted_predictions(**settings):
    """The adjustment of saved predictions of three classes."""
    target, prior = np.arange(600) % 3, ClassPrior.from_counts([900, 90, 10])
    noise = np.random.default_rng(0).normal(size=(600, 3))
    logits = noise + prior.log_probs + 2 * np.eye(3)[target]
    names = ["cat", "dog", "emu"]
    source = from_arrays(logits, target, kind="logits", class_names=names, name="p.npz")
    return adjust_predictions(source, prior, n_bootstrap=50, **settings)
