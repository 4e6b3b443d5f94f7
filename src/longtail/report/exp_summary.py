"""What the EXP table comes to, in a few plain sentences that are made from its numbers.

The verdicts come from `longtail.experiments.claims`; the tables are in `claims` and `table_exp`.
"""

from __future__ import annotations

from collections.abc import Sequence

from longtail.experiments.claims import (
    CHANGES,
    Judged,
    claims,
    judged,
    precision_effects,
    recipe_effects,
)
from longtail.experiments.exp_runs import Shelf
from longtail.experiments.records import Record
from longtail.experiments.table_exp import ALLOWANCE, JUDGED_RECIPE, Part, Study
from longtail.experiments.weight_norms import weight_norms
from longtail.report.exp_rows import interval_text, row_name
from longtail.report.tables import percent

_ADAM = ("adam", "adam-no-decay")


def summary(study: Study, *, other_precision: Sequence[Record] = ()) -> list[str]:
    """The sentences, one paragraph each.

    Args:
        study: of any recipes.
        other_precision: records of some of its runs in another precision.
    """
    parts = [part for part in study.parts if part.recipe == JUDGED_RECIPE]
    found = [_marks(parts, other_precision), *(_verdicts(part) for part in parts)]
    found += [_adam(parts), _weight_decay(study)]
    found += [_precision(part, other_precision) for part in parts]
    return [sentence for sentence in found if sentence]


def _marks(parts: Sequence[Part], others: Sequence[Record]) -> str:
    """Which of the marks that were set before training are reached."""
    marks = [(part, one) for part in parts for one in judged(part)]
    if not marks:
        return ""
    reached = sum(one.reached for _, one in marks)
    text = (
        f"**Marks.** Before training it was fixed that ERM and logit adjustment should be at most "
        f"{ALLOWANCE:g} points above the paper, with recipe `{JUDGED_RECIPE}`: {reached} of "
        f"{len(marks)} cells are."
    )
    for part, one in marks:
        if not one.reached:
            cell = part.cell(one.row)
            spread = 0.0 if cell is None else cell.deviation
            over = one.ours - one.paper - ALLOWANCE
            text += (
                f" The one of {row_name(one.row)} on {part.dataset} is missed by {over:.3f} "
                f"points (the deviation over seeds is {percent(spread, digits=2)})."
            )
            text += _elsewhere(Part(part.plan, Shelf(others)), one)
    return text


def _elsewhere(part: Part, mark: Judged) -> str:
    """Where a mark was missed: the same cell of runs in another precision."""
    cell = part.cell(mark.row)
    if cell is None:
        return ""
    reached = "reaches" if 100 * cell.mean <= mark.paper + ALLOWANCE else "misses"
    return (
        f" The same runs in {part.records[0].precision} have {percent(cell.mean, digits=2)} ± "
        f"{percent(cell.deviation, digits=2)}, which {reached} it."
    )


def _verdicts(part: Part) -> str:
    """What did not hold on a data set, and what stays open."""
    by: dict[str, list[str]] = {}
    for claim in claims(part):
        by.setdefault(claim.verdict, []).append(
            f"{claim.text} ({interval_text(claim.interval, unit=claim.unit)})"
        )
    text = f"**The paper's claims on {part.dataset}.** {len(by.get('held', []))} held."
    for verdict, words in (("not held", "Not held"), ("undecided", "Undecided")):
        if by.get(verdict):
            text += f" {words}: {'; '.join(by[verdict])}."
    return text


def _adam(parts: Sequence[Part]) -> str:
    """What becomes of the norms under Adam with the recipe's weight decay and without any."""
    said = []
    for part in parts:
        found = weight_norms(part)
        if found.keys() >= set(_ADAM):
            ways = [interval_text(found[name].correlation, unit="r") for name in _ADAM]
            said.append(f"on {part.dataset} {ways[0]} with it and {ways[1]} without")
    if not said:
        return ""
    return (
        "**Norms under Adam.** Whether they follow class frequency is a matter of weight decay, "
        "which the paper does not give for Adam. Their correlation with log frequency is "
        f"{'; '.join(said)}."
    )


def _weight_decay(study: Study) -> str:
    """What the weight decay changes, in which alone `paper` and `tuned` differ."""
    said, between, cells = [], 0, 0
    for dataset in study.datasets:
        found = [one for one in recipe_effects(study, dataset) if one.what == CHANGES["tuned"]]
        if not found:
            continue
        lower = sum(one.interval.high < 0 for one in found)
        changes = sorted(one.interval.mean for one in found)
        said.append(
            f"on {dataset} by {percent(-changes[-1], digits=1)} to "
            f"{percent(-changes[0], digits=1)} points ({lower} of {len(found)} intervals lie "
            f"below zero)"
        )
        parts = [study.part(dataset, recipe) for recipe in ("tuned", "paper")]
        for row in (one.row for one in found):
            means = [100 * cell.mean for part in parts if part and (cell := part.cell(row))]
            cells += 1
            between += min(means) <= (row.paper_value(dataset) or 0.0) <= max(means)
    if not said:
        return ""
    return (
        "**Weight decay.** The paper's appendix gives 1e-4. Five times as much, and nothing else "
        f"changed, lowers the error of the paper's rows {' and '.join(said)}. Of the paper's "
        f"{cells} numbers {between} lie between ours with the one and with the other."
    )


def _precision(part: Part, others: Sequence[Record]) -> str:
    effects = precision_effects(part, others)
    if not effects:
        return ""
    said = "; ".join(f"{row_name(one.row)} {interval_text(one.interval)}" for one in effects)
    return (
        f"**Precision.** The table's runs are in {part.records[0].precision}; some were trained in "
        f"another precision too, with records of their own. {effects[0].what} "
        f"changes the error on {part.dataset} by, in points: {said}."
    )
