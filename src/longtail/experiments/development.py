"""The development set in use: an error that stands for all classes, and a tau chosen by it.

The set is made of training images that the long-tailed subset leaves out. The exponential profile
keeps its largest class whole, so the set has none of that class, and few of the next. Every class
counts once all the same: for a class without examples the nearest one in size stands in, whose
error then counts twice (`tuning`, which does so where it is asked to).
"""

from __future__ import annotations

import json

import numpy as np

from longtail import metrics, posthoc
from longtail.experiments.records import DEV, TEST, Record
from longtail.runs import Run, files
from longtail.tuning import TauCurve, TauIntervals, class_shares

# What is left to adjust after the loss has done it, in steps that its noise can't tell apart.
TAUS = np.linspace(0.0, 2.0, 201)


def development_error(one: Record) -> float:
    """The balanced error on the development set, with stand-ins for the classes it lacks."""
    shares = class_shares(np.asarray(one.document["counts"]), one.examples(DEV))
    return float(np.nansum(shares * one.per_class(DEV)))


def choose_again(run: Run) -> tuple[float, float]:
    """The tau, on top of whatever the loss did, with the least error on the development set.

        argmax_y f_y(x) − τ log π_y

    Args:
        run: with logits on the development set.

    Returns:
        (tau, its error there); the smallest of several best ones.
    """
    logits, target, _ = run.logits(DEV)
    parts = TauIntervals.from_logits(logits, target, run.prior).with_stand_ins(run.prior)
    errors = TauCurve(parts, bounds=(TAUS[0], TAUS[-1]))(TAUS)
    best = int(np.argmin(np.round(errors, 12)))
    return float(TAUS[best]), float(errors[best])


def with_tau_again(one: Record, run: Run) -> Record:
    """A run's record with what it gets wrong on the test set at the tau of the development set.

    Args:
        one: the run's record.
        run: with logits of both sets.
    """
    tau, error = choose_again(run)
    logits, target, _ = run.logits(TEST)
    adjusted = posthoc.adjust_logits(np.asarray(logits, dtype=np.float64), run.prior, tau=tau)
    found = metrics.per_class_error(target, adjusted)
    entry = {
        "tau": round(tau, 4),
        "dev_error": round(error, 6),
        "wrong": [round(float(value)) for value in found.wrong],
    }
    document = {**one.document, "again": entry}
    return Record(one.spec, json.loads(files.json_bytes(document)))
