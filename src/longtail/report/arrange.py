"""A comparison of runs in, the data of each chart out: averages over seeds, in percent.

What the charts are is in `sections`; how they look in `charts` and `run_figures`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from longtail import metrics
from longtail._checks import FloatArray, IntArray
from longtail.report import comparison as texts
from longtail.report import figures
from longtail.report.compare import Comparison, Row, mean_interval
from longtail.report.sections import (
    CURVE_TAUS,
    SLIDER_TAUS,
    Calibration,
    Choice,
    ClassAxis,
    ClassErrors,
    Frequencies,
    GroupErrors,
    MethodErrors,
    Series,
    SliderMethod,
    TauCurves,
    TauLine,
    TauSlider,
    WeightNorms,
    mean_per_class,
)


def class_axis(comparison: Comparison) -> ClassAxis:
    """The classes that the runs were trained on."""
    run = comparison.runs[0]
    return ClassAxis.of(run.prior, run.class_names)


def frequencies(comparison: Comparison) -> Frequencies:
    """How many training examples each class has."""
    axis = class_axis(comparison)
    return Frequencies(axis, axis.mean(_counts(comparison)))


def _counts(comparison: Comparison) -> FloatArray:
    prior = comparison.runs[0].prior
    counts = prior.probs if prior.counts is None else prior.counts
    return np.asarray(counts, dtype=np.float64)


def method_errors(comparison: Comparison) -> MethodErrors:
    """Every row's balanced error."""
    return MethodErrors(
        _series(comparison.rows, comparison),
        tuple(mean_interval(100 * row.errors) for row in comparison.rows),
        tuple(not texts.honest(row) for row in comparison.rows),
    )


def shown_rows(comparison: Comparison) -> list[Row]:
    """The rows for charts by class: the trained ones, and each post-hoc one once, honestly.

    A tau from held-out data goes before the theory's 1, since that is what a user would do.
    """
    chosen = {row.method for row in comparison.rows if row.tau_source == "held-out"}
    return [
        row
        for row in comparison.rows
        if row.tau_source is None
        or row.tau_source == ("held-out" if row.method in chosen else "fixed")
    ]


def _series(rows: Sequence[Row], comparison: Comparison) -> tuple[Series, ...]:
    """Looks of rows; at first only softmax, the logit-adjusted ones and the best are drawn.

    Rows of one colour are told apart by their variant: a method in several ways, and a loss
    with one thing and another on top.
    """
    first = {"softmax", "logit-adjusted", "posthoc-logit-adjusted", texts.best(comparison).method}
    seen: dict[str, int] = {}
    found = []
    for row in rows:
        color = figures.color(row.method)
        variant = seen.get(color, 0)
        seen[color] = variant + 1
        shown = row.method in first or len(rows) <= 4
        found.append(Series(texts.name(row), color, variant, shown))
    return tuple(found)


def tau_curves(comparison: Comparison) -> TauCurves | None:
    """The post-hoc methods over tau, exact at each point; None without softmax runs."""
    if not comparison.curves:
        return None
    lines = []
    for method, curves in comparison.curves.items():
        values = 100 * np.array([curve(CURVE_TAUS) for curve in curves.values()])
        lines.append(
            TauLine(
                Series(figures.label(method), figures.color(method)),
                values.mean(axis=0),
                values.min(axis=0),
                values.max(axis=0),
                _choice(comparison, method, "held-out"),
                _choice(comparison, method, "oracle"),
            )
        )
    names = ("softmax", "logit-adjusted")
    rows = [row for row in comparison.rows if row.method in names and row.tau_source is None]
    references = [(s, 100 * float(row.errors.mean())) for s, row in _named(rows, comparison)]
    return TauCurves(CURVE_TAUS, tuple(lines), tuple(references), comparison.split)


def _named(rows: Sequence[Row], comparison: Comparison) -> list[tuple[Series, Row]]:
    return list(zip(_series(rows, comparison), rows, strict=True))


def _choice(comparison: Comparison, method: str, source: str) -> Choice | None:
    for row in comparison.rows:
        if row.method == method and row.tau_source == source and row.taus is not None:
            taus = row.taus
            return Choice(
                float(taus.mean()),
                float(taus.min()),
                float(taus.max()),
                100 * float(row.errors.mean()),
            )
    return None


def tau_slider(comparison: Comparison) -> TauSlider | None:
    """Errors of the post-hoc methods at each position of a slider; None without softmax runs."""
    if not comparison.curves:
        return None
    axis, groups = class_axis(comparison), _groups(comparison)
    presets = {method: _presets(comparison, method) for method in comparison.curves}
    # With the very taus that the buttons name, between the steps.
    taus = np.union1d(SLIDER_TAUS, [tau for of in presets.values() for tau in of.values()])
    methods = []
    for method, curves in comparison.curves.items():
        per_class = mean_per_class(list(curves.values()), taus)
        methods.append(
            SliderMethod(
                Series(figures.label(method), figures.color(method)),
                axis.mean(per_class),
                np.stack([per_class[:, k].mean(axis=1) for k in groups.values()], axis=1),
                per_class.mean(axis=1),
                presets[method],
            )
        )
    return TauSlider(taus, axis, tuple(groups), tuple(methods), start=1.0)


def _presets(comparison: Comparison, method: str) -> dict[str, float]:
    """Taus worth a button, by what they are."""
    found = {"no adjustment": 0.0, "theory": 1.0}
    for source in ("held-out", "oracle"):
        choice = _choice(comparison, method, source)
        if choice is not None:
            found[source] = choice.tau
    return found


def _groups(comparison: Comparison) -> dict[str, IntArray]:
    found = comparison.runs[0].prior.groups()
    return {name: classes for name, classes in found.items() if len(classes)}


def class_errors(comparison: Comparison) -> ClassErrors:
    """Each shown row's errors by class."""
    axis, rows = class_axis(comparison), shown_rows(comparison)
    values = 100 * axis.mean(np.array([row.per_class for row in rows]))
    return ClassErrors(axis, _series(rows, comparison), values)


def group_errors(comparison: Comparison) -> GroupErrors:
    """Each shown row's errors by group."""
    groups, rows = _groups(comparison), shown_rows(comparison)
    values = [[row.per_class[k].mean() for k in groups.values()] for row in rows]
    return GroupErrors(
        tuple(groups),
        tuple(len(k) for k in groups.values()),
        _series(rows, comparison),
        100 * np.array(values),
    )


def calibration(comparison: Comparison) -> Calibration:
    """Each shown row's reliability on the judged split."""
    rows = shown_rows(comparison)
    pooled, eces = [], []
    for row in rows:
        found = [
            metrics.evaluate(comparison.target, s.logits, missing="skip").reliability
            for s in row.scored
        ]
        pooled.append(sum(found[1:], found[0]))
        eces.append(100 * float(np.mean([one.ece for one in found])))
    return Calibration(
        _series(rows, comparison),
        100 * np.array([p.mean_confidence for p in pooled]),
        100 * np.array([p.accuracy for p in pooled]),
        np.array([p.counts for p in pooled]),
        np.array(eces),
    )


def weight_norms(comparison: Comparison) -> WeightNorms | None:
    """Each trained row's weight norms; None if no run recorded them."""
    axis, counts = class_axis(comparison), _counts(comparison)
    rows, norms = [], []
    for row in comparison.rows:
        heads = [run.head for run in row.runs]
        if row.tau_source is None and all(head is not None for head in heads):
            rows.append(row)
            norms.append(np.mean([head.norms for head in heads if head is not None], axis=0))
    if not rows:
        return None
    return WeightNorms(
        axis,
        axis.mean(counts),
        _series(rows, comparison),
        axis.mean(np.array(norms)),
        tuple(_correlation(np.log(counts), values) for values in norms),
    )


def _correlation(one: FloatArray, other: FloatArray) -> float:
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return math.nan
    return float(np.corrcoef(one, other)[0, 1])
