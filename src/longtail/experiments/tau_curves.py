"""The paper's figure of post-hoc methods: balanced error against tau, exact at every point.

How it looks is in `longtail.report.tau_curves`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from longtail._checks import FloatArray
from longtail.experiments.exp_runs import PLAIN
from longtail.experiments.records import TAUS, VARIANTS
from longtail.experiments.table_exp import Cell, Part, posthoc


@dataclass(frozen=True, eq=False)
class Curve:
    """One post-hoc method over tau.

    Attributes:
        variant: a key of `records.VARIANTS`.
        taus: shape (grid,).
        errors: balanced test error of each seed, shape (seeds, grid).
        held_out: at each seed's tau from held-out data, or None without one.
        oracle: at each seed's best tau on the test set.
    """

    variant: str
    taus: FloatArray
    errors: FloatArray
    held_out: Cell | None
    oracle: Cell | None


def tau_curves(part: Part) -> list[Curve]:
    """Every post-hoc method of the softmax runs, as far as there are any.

    Args:
        part: a data set and recipe.
    """
    runs, found = part.records_of(PLAIN), []
    for variant in VARIANTS:
        curves = [curve for one in runs if (curve := one.curve(variant)) is not None]
        if curves:
            found.append(
                Curve(
                    variant,
                    TAUS,
                    np.array(curves),
                    part.cell(posthoc(variant, "held-out")),
                    part.cell(posthoc(variant, "oracle")),
                )
            )
    return found
