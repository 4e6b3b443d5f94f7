"""What the EXP table comes to, in a few plain sentences that are made from its numbers.

The verdicts come from `longtail.experiments.claims`; the tables are in `claims` and `table_exp`.
"""

from __future__ import annotations

from collections.abc import Sequence

from longtail.experiments.claims import CHANGES, claims, judged, precision_effects, recipe_effects
from longtail.experiments.records import Record
from longtail.experiments.table_exp import ALLOWANCE, JUDGED_RECIPE, Part, Study
from longtail.report.exp_rows import interval_text, row_name
from longtail.report.tables import percent


def summary(study: Study, *, other_precision: Sequence[Record] = ()) -> list[str]:
    """The sentences, one paragraph each.

    Args:
        study: of any recipes.
        other_precision: records of some of its runs in another precision.
    """
    parts = [part for part in study.parts if part.recipe == JUDGED_RECIPE]
    found = [_marks(parts), *(_verdicts(part) for part in parts), _weight_decay(study)]
    found += [_precision(part, other_precision) for part in parts]
    return [sentence for sentence in found if sentence]


def _marks(parts: Sequence[Part]) -> str:
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
    return text


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
        f"**Precision.** The table's runs are in {part.records[0].precision}. {effects[0].what} "
        f"changes the error on {part.dataset} by, in points: {said}."
    )
