"""A small CIFAR-10-LT trained for the tests of `strong`: its records, and made-up ones."""

import functools
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from exp_factory import made_up as plain_record
from exp_factory import small_cifar
from longtail.experiments import strong
from longtail.experiments.demo import one_thread
from longtail.experiments.records import Record
from longtail.experiments.strong_kinds import STRONG, STUDENT
from longtail.experiments.strong_runs import Setting

# Images must be larger than the square that Cutout hides.
OVERRIDES = {"model": "small-conv", "epochs": 2, "batch_size": 64, "lr": 0.02, "warmup_epochs": 0}
_folder = tempfile.TemporaryDirectory(prefix="longtail-strong-")


@functools.cache
def small_data(ratio=100.0):
    return small_cifar(size=18, largest=100, ratio=ratio)


def small_run(root, **changes):
    """The experiment in small below a folder; what is trained there is not trained again."""
    options = {
        "load": lambda name, ratio: small_data(ratio),
        "runs": root / "runs",
        "folder": root / "kept",
        "datasets": ["cifar10-lt"],
        "seeds": 1,
        "overrides": OVERRIDES,
    }
    with one_thread():
        return strong.run(**{**options, **changes})


@functools.cache
def trained_root() -> Path:
    """The folder of the small runs (`runs`) and their records (`kept`), without ablation."""
    small_run(Path(_folder.name))
    return Path(_folder.name)


def made_up(spec, *, level=0.3, tau=0.2, gain=0.01, minutes=1.0, classes=10, data="d" * 64):
    """A record with chosen errors on the test set and the development set, which lacks class 0."""
    one = plain_record(spec, level=level, classes=classes, data=data)
    wrong = one.document["splits"]["test"]["wrong"]
    dev = {"data": "v" * 64, "examples": [0] + [100] * (classes - 1), "wrong": [0, *wrong[1:]]}
    better = [max(0, value - round(100 * gain)) for value in wrong]
    document = {
        **one.document,
        "splits": {"test": one.document["splits"]["test"], "dev": dev},
        "posthoc": {},
        "seconds": 60.0 * minutes,
        "again": {"tau": tau, "dev_error": level, "wrong": better},
    }
    return Record(spec, document)


def precise(spec):
    return replace(spec, settings={**spec.settings, "precision": "bfloat16"})


def made_up_setting(
    setting: Setting, *, with_ablation=True, with_shorter=False, with_longer=False, level=0.2
):
    """Made-up records of a whole setting, as a GPU would leave them."""
    classes = 10 if setting.dataset == "cifar10-lt" else 100
    marks = f"{setting.dataset} {setting.ratio}".encode().hex()
    more = {"classes": classes, "data": marks.ljust(64, "0")[:64]}
    found = [
        made_up(precise(spec), level=level, minutes=2.0, **more)
        for spec in setting.strong.specs([STRONG])
    ]
    found += [
        made_up(precise(spec), level=level + 0.01, minutes=1.0, **more)
        for spec in setting.strong.specs([setting.trial_strong])
        if not setting.epochs_are_the_trials
    ]
    teachers = [
        made_up(precise(spec), level=level + 0.01 * number, minutes=1.0 + number, **more)
        for number, spec in enumerate(setting.teachers())
    ]
    # A teacher may be a run that is there already.
    found = list({one.name: one for one in [*found, *teachers]}.values())
    names = [one.name for one in teachers]
    seconds = sum(one.seconds for one in found if one.name in names)
    together = setting.ensemble(names)
    found.append(made_up(together, level=level - 0.04, minutes=seconds / 60, **more))
    kinds = [STUDENT, *(setting.ablated_students() if with_ablation else ())]
    found += [
        made_up(precise(spec), level=level - 0.03, minutes=3.0, **more)
        for spec in setting.students(names, kinds)
    ]
    for number, kind in enumerate(setting.earlier if with_shorter else ()):
        found += [
            made_up(precise(spec), level=level - 0.01 * (number + 1), minutes=1.5, **more)
            for spec in setting.students(names, [kind])
        ]
    if with_longer:
        longer = [
            made_up(precise(spec), level=level + 0.01, minutes=4.0, **more)
            for spec in setting.longer_teachers()
        ]
        names = [one.name for one in longer]
        found += [*longer, made_up(setting.ensemble(names), level=level - 0.05, **more)]
        found += [
            made_up(precise(spec), level=level - 0.04, gain=0.03, minutes=5.0, **more)
            for spec in setting.students(names)
        ]
    if with_ablation:
        for number, kind in enumerate(setting.ablated()):
            base = kind.name in ("plain", "strong")
            error = level if base else level + 0.06 * (number % 3 - 1)
            for spec in setting.ablation.specs([kind]):
                found.append(made_up(precise(spec), level=error, **more))
        for number, kind in enumerate(setting.removed()):
            for spec in setting.ablation.specs([kind]):
                error = level + 0.03 * number + 0.001 * spec.seed
                found.append(made_up(precise(spec), level=error, **more))
    return list({one.name: one for one in found}.values())


def shares_by_hand(counts, examples):
    """Every class once; one without examples is replaced by the nearest in size, on a log scale.

    Equally near ones share its vote.
    """
    votes = np.zeros(len(counts))
    for k in range(len(counts)):
        if examples[k] > 0:
            votes[k] += 1
            continue
        away = {
            j: round(abs(math.log(counts[j] / counts[k])), 9)
            for j in range(len(counts))
            if examples[j] > 0
        }
        near = [j for j in away if away[j] == min(away.values())]
        for j in near:
            votes[j] += 1 / len(near)
    return votes / len(counts)
