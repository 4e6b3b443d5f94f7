"""What of the paper holds: its claims, each with our verdict, a figure and where that comes from.

Computes the theory and the two Gaussians anew, which takes seconds, and reads the records of `exp`
and `step`.
"""

from __future__ import annotations

import argparse

from longtail.report.tables import Table
from studies import _pages as pages
from studies import exp, step, synthetic, theory
from studies._records import ROOT, TITLES, Column, Shelf

# The paper's words in short, the claim of `exp.claims` that tests them, with the reading of it.
TRAINED = (
    ("The loss beats plain softmax", "softmax errs more than the loss"),
    ("Adjusting after training beats plain softmax", "softmax errs more than post-hoc, τ = 1"),
    ("The loss beats the adaptive margin", "adaptive errs more than the loss"),
    ("The loss beats the equalized loss", "equalized errs more than the loss"),
    ("The loss beats adjusting afterwards", "post-hoc, τ = 1, errs more than the loss"),
    (
        "Adjusting beats weight normalisation, both at τ = 1",
        "weight norm. (bias scaled) errs more than post-hoc, both at τ = 1",
    ),
    (
        "Adjusting beats weight normalisation, both at their best τ",
        "weight norm. (bias scaled) errs more than post-hoc, both at τ*",
    ),
    (
        "Adjusting at τ = 1 beats weight normalisation at its best τ",
        "weight norm. (bias scaled) errs more than post-hoc, at τ* against τ = 1",
    ),
    ("Rare classes gain", "the loss gains on the rarest three tenths"),
    (
        "Classes with many examples gain, too",
        "the loss gains on classes with many examples",
    ),
    ("Under SGD, weight norms grow with frequency", "under SGD, weight norms grow with frequency"),
    (
        "Under Adam they do not",
        "under Adam, weight norms do not grow with frequency",
    ),
    (
        "Under Adam without weight decay they do not",
        "under Adam without weight decay, weight norms do not grow with frequency",
    ),
    ("Adam's error is comparable to SGD's", "under Adam, the error is that of SGD"),
)


def columns() -> list[Column]:
    """Return the trained columns of the recipe `tuned`: EXP, then STEP where there are records."""
    found = []
    for profile, folder in (("exp", "results/exp"), (step.PROFILE, "results/step")):
        shelf = Shelf(ROOT / folder)
        for name in exp.CIFARS:
            runs = exp.definition(name, "tuned", profile)
            column = Column.of(name, f"{TITLES[name]}, {profile.upper()}", runs, shelf)
            found += [column] if column.records else []
    return found


def trained_table(found: list[Column]) -> Table:
    """Return the claims about networks with their verdicts."""
    judged = [exp.claims(column) for column in found]
    rows = [
        (words, *(one[text].cell.partition(" [")[0] if text in one else "–" for one in judged))
        for words, text in TRAINED
    ]
    return Table("", ("the paper says", *(column.title for column in found)), rows)


def computed_table() -> Table:
    """Return the claims that need no network, with links to their pages."""
    verdicts, study = theory.verdicts(), theory.separable()
    known = [(name, paper) for name, _, _, paper in theory.TABLE if paper is not None]
    right = sum(all(v.consistent == paper for v in verdicts[name]) for name, paper in known)
    results = synthetic.compute()
    error = {name: 100 * results.errors(name).mean() for name in ("logit-adjusted", "softmax")}
    bayes = 100 * synthetic.BAYES
    weights, shifted = (study.errors[f"hinge-{name}"].mean() for name in ("weights", "margins"))
    links = {"theory": "[theory](paper-theory.md)", "synthetic": "[two Gaussians](synthetic.md)"}
    rows = [
        (
            "its Table 1: which methods are consistent for the balanced error",
            right == len(known),
            f"{right} of {len(known)} rows",
            "theory",
        ),
        (
            "the loss comes to the Bayes error on two Gaussians",
            error["logit-adjusted"] < bayes + 0.05,
            f"{error['logit-adjusted']:.3f}%, Bayes {bayes:.3f}%, softmax {error['softmax']:.3f}%",
            "synthetic",
        ),
        (
            "on separable classes weights do nothing",
            study.weighted_difference < 1e-6,
            "hinge loss: no coefficient of the best separator moves",
            "theory",
        ),
        (
            "on separable classes margins do something",
            shifted < weights,
            f"hinge loss: error {100 * weights:.2f}% with weights, {100 * shifted:.2f}% with "
            f"margins; those of a cross-entropy fade in the end",
            "theory",
        ),
    ]
    return Table(
        "",
        ("the paper says", "what we find", "where"),
        [
            (claim, f"{'✓' if yes else '✗'} {text}", links[where])
            for claim, yes, text, where in rows
        ],
    )


def main(options: argparse.Namespace) -> None:
    """Judge every claim, print the tables and write the page."""
    found = columns()
    tables = {"trained": trained_table(found), "computed": computed_table()}
    pages.show(tables.values())
    known = [text for row in tables["trained"].rows for text in row[1:]]
    tally = {mark: sum(text.startswith(mark) for text in known) for mark in "✓✗?"}
    with pages.page(options, "docs/what-holds.md") as write:
        write(pages.render("holds", **tables, tally=tally))
