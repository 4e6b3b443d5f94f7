"""The paper's figures by class: errors from the most to the least frequent, and by group.

Many classes are shown as ten groups of neighbours in frequency; many, medium and few are the
groups by number of training examples. How it looks is in `longtail.report.per_class`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from longtail._checks import FloatArray, IntArray
from longtail.experiments.exp_runs import PLAIN
from longtail.experiments.records import LOGIT_ADJUSTMENT
from longtail.experiments.table_exp import ERM, LOSS, ROWS, Part, Row, posthoc
from longtail.experiments.weight_norms import by_frequency
from longtail.priors import ClassPrior

GROUPS = 10
_MOST_CLASSES = 20

# The losses of the paper's figure, and logit adjustment after training.
SHOWN = (
    ERM,
    *(row for row in ROWS if row.variant is None and row not in (ERM, LOSS)),
    posthoc(LOGIT_ADJUSTMENT, "fixed"),
    LOSS,
)


@dataclass(frozen=True, eq=False)
class ErrorsByClass:
    """Errors of classes or groups of classes.

    Attributes:
        names: of the classes or groups.
        members: the classes of each.
        rows: the methods.
        errors: of each method and seed, one array of shape (seeds, groups) per method.
    """

    names: tuple[str, ...]
    members: tuple[IntArray, ...]
    rows: tuple[Row, ...]
    errors: tuple[FloatArray, ...]


def prior_of(part: Part) -> ClassPrior:
    """Class frequencies of the whole training set."""
    return part.records_of(PLAIN)[0].prior


def rarest(prior: ClassPrior) -> IntArray:
    """The rarest three tenths of the classes, one at least.

    Examples:
        >>> rarest(ClassPrior.from_counts([2, 90, 40, 1, 7, 8, 9]))
        array([0, 3])
    """
    order = by_frequency(np.asarray(prior.counts))
    return np.sort(order[-max(1, 3 * len(order) // 10) :])


def frequency_groups(prior: ClassPrior) -> dict[str, IntArray]:
    """Each class by itself, or ten groups of them where there are many, most frequent first."""
    order = by_frequency(np.asarray(prior.counts))
    if len(order) <= _MOST_CLASSES:
        return {str(label): np.array([label]) for label in order}
    return {str(i): part for i, part in enumerate(np.array_split(order, GROUPS))}


def by_frequency_group(part: Part) -> ErrorsByClass | None:
    """Errors by class, or by ten groups of classes; None without softmax runs."""
    if not part.records_of(PLAIN):
        return None
    names = part.records_of(PLAIN)[0].class_names
    groups = frequency_groups(prior_of(part))
    if names is not None and all(len(classes) == 1 for classes in groups.values()):
        groups = {names[int(classes[0])]: classes for classes in groups.values()}
    return _by(part, groups)


def by_size(part: Part) -> ErrorsByClass | None:
    """Errors of the classes with many, medium and few training examples, where there are any."""
    if not part.records_of(PLAIN):
        return None
    groups = prior_of(part).groups()
    return _by(part, {name: classes for name, classes in groups.items() if len(classes)})


def _by(part: Part, groups: dict[str, IntArray]) -> ErrorsByClass:
    rows, errors = [], []
    for row in SHOWN:
        cell = part.cell(row)
        if cell is not None:
            rows.append(row)
            means = [cell.per_class[:, classes].mean(axis=1) for classes in groups.values()]
            errors.append(np.stack(means, axis=1))
    return ErrorsByClass(tuple(groups), tuple(groups.values()), tuple(rows), tuple(errors))
