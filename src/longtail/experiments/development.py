"""The development set in use: an error that stands for all classes, and a tau chosen by it.

The set is made of training images that the long-tailed subset leaves out. The exponential profile
keeps its largest class whole, so the set has none of that class, and few of the next. Every class
counts once all the same: for a class without examples the nearest one in size stands in, whose
error then counts twice. Left out instead, the largest classes would have no say in how far logits
may be adjusted against them, and tau would come out too large.
"""

from __future__ import annotations

import json

import numpy as np

from longtail import metrics, posthoc
from longtail._checks import FloatArray, InputError, IntArray
from longtail.experiments.records import DEV, TEST, Record
from longtail.runs import Run, files

# What is left to adjust after the loss has done it, in steps that its noise can't tell apart.
TAUS = np.linspace(0.0, 2.0, 201)


def class_shares(counts: IntArray, examples: IntArray) -> FloatArray:
    """How much each class's error counts, shape (num_classes,); they add up to 1.

    Args:
        counts: training examples of each class, shape (num_classes,).
        examples: of each class in the development set, shape (num_classes,).

    Examples:
        >>> class_shares(np.array([500, 400, 90, 10]), np.array([0, 20, 50, 50]))
        array([0.  , 0.5 , 0.25, 0.25])
    """
    counts, present = np.asarray(counts), np.flatnonzero(np.asarray(examples) > 0)
    if not len(present):
        raise InputError("class_shares: `examples` has none of any class.")
    shares = np.zeros(len(counts))
    for label, count in enumerate(counts):
        if examples[label]:
            shares[label] += 1
        else:
            shares[present[np.argmin(np.abs(np.log(counts[present] / count)))]] += 1
    return shares / len(counts)


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
    scores = np.asarray(logits, dtype=np.float64)
    examples = np.bincount(target, minlength=run.prior.num_classes)
    shares = class_shares(np.asarray(run.prior.counts), examples)
    weight = (shares / np.maximum(examples, 1))[target]  # of each example
    errors = [
        float(weight @ (posthoc.adjust_logits(scores, run.prior, tau=tau).argmax(axis=1) != target))
        for tau in TAUS
    ]
    best = int(np.argmin(np.round(errors, 12)))
    return float(TAUS[best]), errors[best]


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
