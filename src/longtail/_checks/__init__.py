"""Every check of user input, once; nothing here computes.

    _errors      the errors, and words that messages share
    _arrays      what came, as NumPy
    _by_class    counts, weights, probabilities: one number per class
    _by_example  labels, logits, sample weights: one or one row per example
    _single      numbers, names, keyword arguments, the prior

A message says, in this order: the function, the argument, the rule, what came,
and what to do next. Checks return the cleaned value, so that a caller reads
``tau = _checks.tau(tau, "adjust_logits")``.
"""

from __future__ import annotations

from longtail._checks._arrays import FloatArray, IntArray, as_numpy, vector
from longtail._checks._by_class import (
    by_label,
    counts,
    distribution,
    each_once,
    per_class,
    positive_per_class,
    totals,
    weights,
    width,
)
from longtail._checks._by_example import (
    BY_ONE_LIST,
    all_finite,
    labels,
    like_probabilities,
    matrix,
    not_probabilities,
    probability_rows,
    same_length,
    sample_weight,
)
from longtail._checks._errors import InputError, MissingExtraError, class_words, listing, require
from longtail._checks._single import choice, fraction, positive, prior, settings, tau, whole

__all__ = [
    "BY_ONE_LIST",
    "FloatArray",
    "InputError",
    "IntArray",
    "MissingExtraError",
    "all_finite",
    "as_numpy",
    "by_label",
    "choice",
    "class_words",
    "counts",
    "distribution",
    "each_once",
    "fraction",
    "labels",
    "like_probabilities",
    "listing",
    "matrix",
    "not_probabilities",
    "per_class",
    "positive",
    "positive_per_class",
    "prior",
    "probability_rows",
    "require",
    "same_length",
    "sample_weight",
    "settings",
    "tau",
    "totals",
    "vector",
    "weights",
    "whole",
    "width",
]
