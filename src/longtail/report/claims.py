"""How the verdicts on the paper's claims read: a table, and the marks that were set beforehand.

The verdicts come from `longtail.experiments.claims`.
"""

from __future__ import annotations

from collections.abc import Sequence

from longtail.experiments.claims import (
    Claim,
    Effect,
    claims,
    judged,
    precision_effects,
    recipe_effects,
    selection_effects,
)
from longtail.experiments.records import Record
from longtail.experiments.table_exp import ALLOWANCE, Part, Study
from longtail.report.exp_rows import interval_text, row_name
from longtail.report.tables import Table, signed


def claims_table(part: Part) -> Table:
    """The claims with their verdicts on one data set and recipe.

    Args:
        part: which.
    """
    found = claims(part)
    rows = [
        (claim.text, interval_text(claim.interval, unit=claim.unit), _said(claim))
        for claim in found
    ]
    return Table(
        f"The paper's claims on {part.column}, recipe {part.recipe}",
        ("claim", "measured", "verdict"),
        rows,
        note=(
            f"Of {len(rows)} claims {_counted([claim.verdict for claim in found])}. "
            "measured: the difference that the claim says is above zero, in points of balanced "
            "error and paired by seed, with its 95% interval; for norms, the correlation with "
            "log class frequency. held: the interval lies above zero; not held: below; "
            "undecided: it includes zero. For Adam, the claim is that the correlation is not "
            "above zero."
        ),
    )


def _counted(verdicts: list[str]) -> str:
    """``9 held, 1 not held, 2 undecided``, in this order, without zeros."""
    counts = {name: verdicts.count(name) for name in ("held", "not held", "undecided")}
    counts["had no runs"] = verdicts.count("no runs")
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _said(claim: Claim) -> str:
    seeds = 0 if claim.interval is None else claim.interval.seeds
    return f"{claim.verdict} (one seed)" if seeds == 1 else claim.verdict


def marks_table(part: Part) -> Table | None:
    """The cells against the marks that were set before training; None where none were set.

    Args:
        part: which.
    """
    rows = [
        (
            row_name(one.row),
            f"{one.paper + ALLOWANCE:.2f}",
            f"{one.ours:.2f}",
            signed((one.paper + ALLOWANCE - one.ours) / 100, digits=3),
            "yes" if one.reached else "no",
        )
        for one in judged(part)
    ]
    if not rows:
        return None
    return Table(
        f"Marks set before training, {part.dataset}, recipe {part.recipe}",
        ("cell", "at most", "ours", "to spare", "reached"),
        rows,
        note=f"The mark is the paper's value plus {ALLOWANCE:g} points of balanced error.",
    )


def effects_table(
    study: Study, dataset: str, *, other_precision: Sequence[Record] = ()
) -> Table | None:
    """What the recipe, the choice of tau and the precision change; None without such pairs.

    Args:
        study: with several recipes.
        dataset: which.
        other_precision: records of some of the runs in another precision.
    """
    found: list[tuple[str, Effect]] = [("", one) for one in recipe_effects(study, dataset)]
    for recipe in study.recipes:
        part = study.part(dataset, recipe)
        if part is not None:
            effects = [*selection_effects(part), *precision_effects(part, other_precision)]
            found += [(f", recipe {recipe}", one) for one in effects]
    if not found:
        return None
    rows = [
        (
            f"{one.what}{where}",
            row_name(one.row),
            interval_text(one.interval),
        )
        for where, one in found
    ]
    return Table(
        f"What a change of the setting does to the error on {dataset}",
        ("change", "row", "points"),
        rows,
        note="Change of the balanced error, paired by seed, with its 95% interval.",
    )
