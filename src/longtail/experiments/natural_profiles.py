"""Class sizes of ImageNet-LT and iNaturalist 2018: from a file of counts, or rebuilt.

The published facts (largest, smallest and number of the classes with many, medium and few examples,
and the total) leave little room; `rebuilt_counts` fills it with a smooth curve.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import brentq

from longtail import _checks
from longtail._checks import FloatArray, InputError, IntArray
from longtail.data.large import LARGE
from longtail.data.profiles import read_counts
from longtail.data.registry import VARIABLE


@dataclass(frozen=True)
class Facts:
    """What is published about a data set's class sizes.

    Attributes:
        file: what its file of counts is called in the folder ``class_counts``.
        largest: examples of the most frequent class.
        smallest: of the rarest.
        groups: classes with many, medium and few examples.
    """

    file: str
    largest: int
    smallest: int
    groups: tuple[int, int, int]


FACTS = {
    "imagenet-lt": Facts("imagenet_lt.txt", 1280, 5, (385, 479, 136)),
    "inaturalist": Facts("inaturalist2018.txt", 1000, 2, (842, 4076, 3224)),
}


def class_counts(name: str, *, data_dir: Path | str | None = None) -> tuple[IntArray, str]:
    """Training examples of each class, and where the numbers come from.

    Args:
        name: a key of `FACTS`.
        data_dir: a folder with ``class_counts/<file>``, which must be there then; the environment
            variable LONGTAIL_DATA if None, and without such a file `rebuilt_counts`.

    Returns:
        Shape (num_classes,), and ``file`` or ``rebuilt``.
    """
    caller = "class_counts"
    facts = FACTS[_checks.choice(name, list(FACTS), caller, name="name")]
    folder = data_dir if data_dir is not None else os.environ.get(VARIABLE)
    path = None if not folder else Path(folder).expanduser() / "class_counts" / facts.file
    if path is None or (data_dir is None and not path.is_file()):
        return rebuilt_counts(name), "rebuilt"
    counts, known = read_counts(path), LARGE[name]
    if (len(counts), int(counts.sum())) != (known.num_classes, known.sizes["train"]):
        raise InputError(
            f"{caller}: {path} has {len(counts):,} classes and {counts.sum():,} examples, but "
            f"{known.title} has {known.num_classes:,} and {known.sizes['train']:,}."
        )
    return counts, "file"


def rebuilt_counts(name: str) -> IntArray:
    """Class sizes with every published fact of a data set, from the most frequent to the rarest.

    From the most to the least frequent class of a group, log n falls as (1 − t)^p among those with
    many examples, with the p that gives the published total, and evenly among the medium ones; n
    itself falls evenly among the few.

    Args:
        name: a key of `FACTS`.

    Returns:
        Shape (num_classes,).

    Examples:
        >>> counts = rebuilt_counts("imagenet-lt")
        >>> len(counts), int(counts.sum()), int(counts[0]), int(counts[-1])
        (1000, 115846, 1280, 5)
    """
    facts, total = FACTS[name], LARGE[name].sizes["train"]
    power = brentq(lambda p: _curve(facts, p).sum() - total, 0.1, 100.0)
    counts = np.rint(_curve(facts, power)).astype(np.int64)
    # Rounding leaves a few too many or too few: the large classes take them, each the same.
    inner = np.arange(1, facts.groups[0] - 1)
    share, left = divmod(total - int(counts.sum()), len(inner))
    counts[inner] += share
    counts[inner[:left]] += 1
    return counts


def _curve(facts: Facts, power: float) -> FloatArray:
    many, medium, few = (np.linspace(1.0, 0.0, size) for size in facts.groups)
    return np.concatenate(
        [
            101.0 * (facts.largest / 101.0) ** (many**power),
            20.0 * 5.0**medium,
            facts.smallest + (19.0 - facts.smallest) * few,
        ]
    )
