"""What the paper claims about its EXP table, and whether these runs bear it out.

A claim is a difference that should be above zero. It held if the 95% interval of the paired
difference over the seeds lies above zero, it did not hold if it lies below, and it is undecided
if it includes zero. How the verdicts read is in `longtail.report.claims`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from longtail.experiments import per_class
from longtail.experiments.exp_runs import PLAIN, Shelf
from longtail.experiments.records import LOGIT_ADJUSTMENT, Record
from longtail.experiments.table_exp import (
    ALLOWANCE,
    DROP,
    ERM,
    JUDGED,
    JUDGED_RECIPE,
    LOSS,
    ROWS,
    SCALE,
    Part,
    Row,
    Study,
    paired,
    posthoc,
)
from longtail.experiments.weight_norms import weight_norms
from longtail.report.compare import Interval

Verdict = Literal["held", "not held", "undecided", "no runs"]


@dataclass(frozen=True)
class Claim:
    """A claim and its verdict on one data set with one recipe.

    Attributes:
        text: the claim, in plain words.
        unit: of the interval: ``points`` of error (as fractions) or ``r``, a correlation.
        interval: of what should be above zero, or None without runs.
        verdict: by that interval.
    """

    text: str
    unit: Literal["points", "r"]
    interval: Interval | None
    verdict: Verdict


def verdict(interval: Interval | None) -> Verdict:
    """The verdict on a difference that a claim says is above zero.

    Examples:
        >>> verdict(Interval(2.0, 1.0, 3.0, 5)), verdict(Interval(-2.0, -3.0, -1.0, 5))
        ('held', 'not held')
        >>> verdict(Interval(2.0, -1.0, 5.0, 5)), verdict(None)
        ('undecided', 'no runs')
    """
    if interval is None:
        return "no runs"
    if not interval.excludes_zero:  # a single seed has no interval, so it decides nothing
        return "undecided"
    return "held" if interval.low > 0 else "not held"


_TAU_ONE, _TAU_BEST = (posthoc(LOGIT_ADJUSTMENT, source) for source in ("fixed", "oracle"))
_MODES = (("bias scaled", SCALE), ("bias dropped", DROP))


def _errors() -> Iterator[tuple[str, Row, Row]]:
    """(claim, the row that should err more, the other one)."""
    yield "ERM errs more than post-hoc logit adjustment, τ = 1", ERM, _TAU_ONE
    yield "ERM errs more than the logit-adjusted loss", ERM, LOSS
    for mode, variant in _MODES:
        text = f"weight normalisation ({mode}) errs more than post-hoc logit adjustment"
        one, best = posthoc(variant, "fixed"), posthoc(variant, "oracle")
        yield f"{text}, both at τ = 1", one, _TAU_ONE
        yield f"{text}, each at its best τ on the test set", best, _TAU_BEST
        yield f"{text}, the former at its best τ, the latter at τ = 1", best, _TAU_ONE
    yield "post-hoc logit adjustment, τ = 1, errs more than the loss", _TAU_ONE, LOSS


def claims(part: Part) -> list[Claim]:
    """Every claim, judged on one data set with one recipe.

    Args:
        part: which.
    """
    found = [
        _claim(text, "points", part.difference(worse, better)) for text, worse, better in _errors()
    ]
    return [*found, _rare(part), *_norms(part)]


def _claim(text: str, unit: Literal["points", "r"], interval: Interval | None) -> Claim:
    return Claim(text, unit, interval, verdict(interval))


def _rare(part: Part) -> Claim:
    """Gains on the rarest classes."""
    text = "on the rarest three tenths of the classes, ERM errs more than the logit-adjusted loss"
    if not part.records_of(PLAIN):
        return _claim(text, "points", None)
    classes = per_class.rarest(per_class.prior_of(part))
    interval = part.paired(ERM, LOSS, lambda errors: errors[:, classes].mean(axis=1))
    return _claim(text, "points", interval)


def _norms(part: Part) -> list[Claim]:
    """Norms follow frequency under SGD; under Adam they don't, or run against it."""
    found = weight_norms(part)
    sgd = found["sgd"].correlation if "sgd" in found else None
    claimed = [_claim("under SGD the norms grow with class frequency", "r", sgd)]
    ways = {True: ("adam", "Adam"), False: ("adam-no-decay", "Adam without weight decay")}
    for name, optimizer in (ways[way] for way in part.plan.adam_ways):
        text = f"under {optimizer} the norms do not grow with class frequency"
        interval = found[name].correlation if name in found else None
        # Here not being above zero is the claim: an interval below or around zero bears it out.
        judged: Verdict = "held" if interval and interval.low <= 0 else "not held"
        if interval is None:
            judged = "no runs"
        elif np.isnan(interval.low):
            judged = "undecided"
        claimed.append(Claim(text, "r", interval, judged))
    return claimed


@dataclass(frozen=True)
class Judged:
    """A cell against the mark that was set before training.

    Attributes:
        row: of the table.
        ours: our mean error in percent.
        paper: the paper's.
        reached: whether ours is at most `ALLOWANCE` above the paper's.
    """

    row: Row
    ours: float
    paper: float
    reached: bool


def judged(part: Part) -> list[Judged]:
    """The cells that were to be at or below the paper's value plus half a point.

    Args:
        part: a data set and recipe; with another recipe than `JUDGED_RECIPE` nothing was set.
    """
    found = []
    for row in JUDGED if part.recipe == JUDGED_RECIPE else ():
        cell, paper = part.cell(row), row.paper_value(part.dataset)
        if cell is not None and paper is not None:
            ours = 100 * cell.mean
            found.append(Judged(row, ours, paper, ours <= paper + ALLOWANCE))
    return found


# What a recipe changes from `paper`.
CHANGES = {
    "tuned": "weight decay 5e-4 instead of 1e-4",
    "released": "network, schedule and weight decay of the authors' code",
}


@dataclass(frozen=True)
class Effect:
    """What one change of the setting does to a row, all else equal.

    Attributes:
        what: the change.
        row: of the table.
        interval: of the change in balanced error, paired by seed.
    """

    what: str
    row: Row
    interval: Interval


def recipe_effects(study: Study, dataset: str) -> list[Effect]:
    """How each row's error changes from the recipe `paper` to the others, paired by seed."""
    base = study.part(dataset, "paper")
    rows = [row for row in ROWS if row.paper]
    found = []
    for recipe in study.recipes:
        part = study.part(dataset, recipe)
        if base is None or part is None or part is base:
            continue
        for row in rows:
            interval = paired(part.cell(row), base.cell(row), lambda errors: errors.mean(axis=1))
            if interval is not None:
                found.append(Effect(CHANGES.get(recipe, f"recipe {recipe}"), row, interval))
    return found


def selection_effects(part: Part) -> list[Effect]:
    """What choosing tau on the test set is worth over choosing it on held-out data."""
    found = []
    for variant in (SCALE, DROP, LOGIT_ADJUSTMENT):
        row = posthoc(variant, "oracle")
        interval = part.difference(row, posthoc(variant, "held-out"))
        if interval is not None:
            found.append(Effect("τ chosen on the test set instead of held-out data", row, interval))
    return found


def precision_effects(part: Part, others: Sequence[Record]) -> list[Effect]:
    """How each row's error changes from runs in another precision to the table's own.

    Args:
        part: a data set and recipe.
        others: records of the same runs in another precision; those of other plans play no part.
    """
    other = Part(part.plan, Shelf(others))
    if not other.records or not part.records:
        return []
    what = f"{part.records[0].precision} instead of {other.records[0].precision}"
    found = []
    for row in ROWS:
        interval = paired(part.cell(row), other.cell(row), lambda errors: errors.mean(axis=1))
        if interval is not None:
            found.append(Effect(what, row, interval))
    return found
