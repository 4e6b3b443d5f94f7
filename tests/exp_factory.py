"""A CIFAR-10-LT in small, trained for the tests of the EXP table: its records, and made-up ones.

The data have the real ones' name, profile and ratio, so that every command takes them.
"""

import functools
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from longtail.data.images import ImageSet
from longtail.data.subsets import make_long_tailed
from longtail.experiments import records
from longtail.experiments.demo import one_thread
from longtail.experiments.exp_runs import EXTRA, TABLE, Plan, Trainer, adam, adam_trial
from longtail.experiments.records import TAUS, VARIANTS, Record
from longtail.runs import DataSpec

OVERRIDES = {
    "model": "small-conv",
    "epochs": 3,
    "milestones": [[2, 0.1]],
    "batch_size": 32,
    "lr": 0.02,
    "warmup_epochs": 0,
    "crop_padding": 0,
    "flip": False,
}
SEEDS = 2
_folder = tempfile.TemporaryDirectory(prefix="longtail-exp-")


def small_cifar(*, seed=0, largest=200, classes=10, size=8, ratio=100.0):
    """Noisy pictures, each class around one of its own; sizes from `largest` down to its 1%."""
    random = np.random.default_rng(seed)
    centres = random.integers(60, 196, (classes, 3, size, size))

    def pictures(each):
        labels = np.repeat(np.arange(classes), each)
        noise = random.normal(0, 60, (len(labels), 3, size, size))
        images = np.clip(centres[labels] + noise, 0, 255).astype(np.uint8)
        return ImageSet(images, labels.astype(np.int64), tuple(f"c{k}" for k in range(classes)))

    spec = DataSpec("cifar10-lt", profile="exp", imbalance_ratio=ratio)
    return make_long_tailed(pictures(largest), pictures(6), spec)


def small_plan(**changes):
    return Plan(**{"dataset": "cifar10-lt", "recipe": "tuned", "seeds": SEEDS, **changes})


def trainer(root, **changes):
    """A trainer of small runs below a folder."""
    options = {"load": lambda name: small_cifar(), "runs": root / "runs", "folder": root / "kept"}
    return Trainer(**{**options, **changes})


@functools.cache
def trained_root() -> Path:
    """The folder of the small runs (`runs`) and their records (`kept`)."""
    root = Path(_folder.name)
    with one_thread():
        assert trainer(root).run([small_plan(overrides=OVERRIDES)], rows="table")
    return root


def made_up(spec, *, partner=False, level=0.3, classes=10, data="d" * 64, norms=None):
    """A record with chosen numbers; errors rise from the frequent class to the rare."""
    random = np.random.default_rng([spec.seed, *spec.method.name.encode()])
    examples = np.full(classes, 100)
    shape = np.linspace(0.5, 1.5, classes)
    counts = [max(2, int((50_000 / classes) * 100 ** (-k / (classes - 1)))) for k in range(classes)]

    def wrong(value):
        noise = random.normal(0, 0.01, classes)
        return np.clip(np.rint(100 * (value * shape + noise)), 0, 100).astype(int).tolist()

    def entry(best, depth):
        curve = level - depth + depth * (TAUS - best) ** 2 / best**2
        found = {"tau": best, "curve": [round(float(v), 6) for v in np.clip(curve, 0, 1)]}
        points = {"fixed": 1.0, "oracle": best} | ({"held-out": 0.9 * best} if partner else {})
        found["points"] = {
            source: {"tau": tau, "wrong": wrong(level - depth + 0.02 * abs(tau - best))}
            for source, tau in points.items()
        }
        return found

    softmax = spec.method.name in records.ADJUSTED
    held = bool(spec.dataset.held_out)
    split = {"data": "t" * 64, "examples": examples.tolist(), "wrong": wrong(level)}
    if norms is None:
        norms = np.linspace(2, 1, classes) + random.normal(0, 0.03, classes)
    document = {
        "format": 1,
        "run": spec.folder.as_posix(),
        "spec": spec.to_json(),
        "data": data,
        "counts": counts,
        "device": "NVIDIA H200",
        "versions": {"torch": "2.11.0"},
        "seconds": 30.0,
        "splits": {"held-out" if held else "test": split},
        "norms": [round(float(v), 5) for v in norms],
        "posthoc": {
            name: {"held-out": {"tau": 1.4}} if held else {"test": entry(1.6 + 0.2 * i, 0.06)}
            for i, name in enumerate(VARIANTS)
        }
        if softmax
        else {},
    }
    return Record(spec, document)


LEVELS = {
    "softmax": 0.30,
    "adaptive": 0.28,
    "equalized-threshold": 0.27,
    "logit-adjusted": 0.22,
    "logit-adjusted+drw": 0.21,
}


def made_up_records(
    plan, *, classes=None, adam_runs=True, extra=(), precision="bfloat16", kinds=TABLE
):
    """Made-up records of a whole plan."""
    classes = classes or (10 if plan.dataset == "cifar10-lt" else 100)
    more = 0.0 if plan.dataset == "cifar10-lt" else 0.25
    more += 0.02 if plan.recipe == "paper" else 0.0
    data = {"data": ("a" if plan.dataset == "cifar10-lt" else "b") * 64, "classes": classes}

    def precise(spec):
        return replace(spec, settings={"precision": precision})

    found = []
    for kind in (*kinds, *extra):
        for seed in range(plan.seeds):
            spec = precise(plan.spec(kind, seed))
            level = LEVELS.get(spec.method.name, 0.26) + more
            plain = kind is TABLE[0]
            found.append(made_up(spec, partner=plain, level=level, **data))
    if adam_runs:
        flat = np.linspace(1.0, 1.2, classes)
        for decay in plan.adam_ways:
            best = 1e-3 if decay else 3e-4
            for rate in (3e-4, 1e-3, 3e-3):
                spec = precise(plan.spec(adam_trial(rate, decay=decay), 0))
                found.append(made_up(spec, level=0.3 + more + 40 * abs(rate - best), **data))
            for seed in range(plan.seeds):
                spec = precise(plan.spec(adam(best, decay=decay), seed))
                found.append(made_up(spec, level=0.31 + more, norms=flat + 0.01 * seed, **data))
    return found


__all__ = ["EXTRA", "made_up", "made_up_records", "small_cifar", "small_plan", "trained_root"]
