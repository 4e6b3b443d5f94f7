"""The paper's STEP tables and figure (its appendix): the runs and the judgement of `exp`.

ResNet-32 on CIFAR-10-LT and CIFAR-100-LT, STEP profile: half of the classes whole, the others
with a hundredth. About 48 minutes on one H200.

  python -m studies step --minutes 9 --device cuda   train what has no record, for nine minutes
  python -m studies step --no-train                  the table and the page from the records
"""

from __future__ import annotations

import argparse

from studies import _pages as pages
from studies import exp
from studies._records import ADJUSTED

PROFILE = "step"
# Published errors in percent on CIFAR-10-LT and CIFAR-100-LT.
PAPER = {
    "softmax": (36.54, 60.23),
    "weight norm., fixed": (30.86, 55.19),
    "adaptive": (34.61, 58.86),
    "equalized-threshold": (31.42, 57.82),
    "adjusted, fixed": (28.66, 55.82),
    "adjusted, oracle": (None, 54.80),  # said of τ > 1, in the text alone
    "logit-adjusted": (27.57, 55.52),
}
ROWS = [*exp.rows_of(PAPER), exp.LDAM]
MARKED = [row for row in ROWS if row.paper and (row.variant is None or row.variant == ADJUSTED)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this study."""
    exp.add_arguments(parser, "results/step")


def main(options: argparse.Namespace) -> None:
    """Train what is missing, print the tables and write the page."""
    columns = exp.collect(options, ROWS, "Balanced error in percent, STEP", PROFILE)
    if columns is None:
        return
    claims, marks = exp.claims_table(columns), exp.marks_table(columns, MARKED)
    pages.show([claims, marks])
    lacking = {f"{c.title}, recipe `{c.recipe}`": c.missing() for c in columns}
    with pages.page(options, "docs/step.md") as write:
        write(
            pages.render(
                "step",
                **pages.facts([one for column in columns for one in column.records]),
                overview=exp.overview(columns, ROWS),
                taus=exp.taus_table(columns),
                claims=claims,
                marks=marks,
                recipes=list(dict.fromkeys(column.recipe for column in columns)),
                missing=[f"{name}: {'; '.join(runs)}" for name, runs in lacking.items() if runs],
            )
        )
        exp.write_figures(write, columns, ROWS)
