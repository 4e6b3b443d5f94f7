"""Adjusted predictions in, one self-contained HTML page out, with a slider for tau.

The page is made of the same blocks and charts as the one about runs (`page`); its sentences and
tables are those of the terminal (`adjusting`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from longtail._checks import FloatArray, InputError, IntArray
from longtail.predictions import AdjustResult
from longtail.priors import ClassPrior
from longtail.report import adjusting as texts
from longtail.report import charts, figures, tau_charts
from longtail.report.blocks import (
    Body,
    Commands,
    Facts,
    Grid,
    Page,
    Pair,
    Plot,
    Section,
    Tile,
    render,
)
from longtail.report.sections import (
    CURVE_STEPS,
    CURVE_TAUS,
    SLIDER_STEPS,
    Choice,
    ClassAxis,
    ClassErrors,
    Frequencies,
    GroupErrors,
    Series,
    SliderMethod,
    TauCurves,
    TauLine,
    TauSlider,
    mean_per_class,
    tau_grid,
)
from longtail.report.tables import Table, percent, signed
from longtail.runs import files

# Where every tau is below the one, the axis ends at about the other times the largest.
_SMALL, _REACH = 0.4, 4.0
_METHOD = "posthoc-logit-adjusted"
_PRIMER = (
    "A classifier trained on data with common and rare classes leans to the common ones. Logit "
    "adjustment subtracts τ times the logarithm of each class's training frequency from its "
    "score: τ = 0 changes nothing, τ = 1 is what theory says for a calibrated model.",
    "The balanced error is the mean of the classes' own errors, so that a rare class counts as "
    "much as a common one. Rare classes gain by an adjustment, common ones pay for it.",
)


def write(
    result: AdjustResult, path: str | Path, *, command: str | None = None, force: bool = False
) -> Path:
    """Write the page about a result.

    Args:
        result: of labelled predictions.
        path: the file; its folder must exist.
        command: what was typed, for the part on how to do it again.
        force: replace a file that is there.

    Returns:
        The path.
    """
    path = Path(path)
    if path.exists() and not force:
        raise InputError(f"{path} exists; pass --force (force=True) to replace it.")
    files.write_bytes(path, render(page_of(result, command=command)).encode())
    return path


def page_of(result: AdjustResult, *, command: str | None = None) -> Page:
    """The page about a result.

    Args:
        result: of labelled predictions.
        command: what was typed to make it.
    """
    sections = [
        _read(result),
        _results(result),
        _tau(result),
        _classes(result),
        _groups(result),
        _again(command),
    ]
    return Page(
        title=f"Adjusted predictions of {Path(result.predictions.name).name}",
        lead=[texts.conclusion(result), *texts.summary(result)[3:]],
        tiles=_tiles(result),
        primer=_PRIMER,
        sections=[section for section in sections if section is not None],
    )


def _tiles(result: AdjustResult) -> list[Tile]:
    name, change = texts.main_change(result)
    low, high = texts.ends(change).strip("[]").split(", ")
    return [
        Tile("before", f"{percent(change.before.value)}%", name),
        Tile("after", f"{percent(change.after.value)}%", name),
        Tile(
            "difference",
            signed(change.difference.value),
            f"percentage points, {result.level:.0%} interval {low} to {high}",
        ),
    ]


def _kept(result: AdjustResult) -> IntArray:
    return np.setdiff1d(np.arange(result.prior.num_classes), result.left_out)


def _axis(result: AdjustResult) -> ClassAxis:
    """The judged classes, from most to least frequent."""
    kept = _kept(result)
    probs, counts = result.prior.probs[kept], result.prior.counts
    prior = ClassPrior(probs / probs.sum(), None if counts is None else counts[kept])
    return ClassAxis.of(prior, [result.predictions.label(int(k)) for k in kept])


def _read(result: AdjustResult) -> Section:
    source, axis = result.predictions, _axis(result)
    counts = result.prior.counts
    kept = _kept(result)
    values = axis.mean(np.asarray((result.prior.probs if counts is None else counts)[kept], float))
    ratio = f"{result.prior.imbalance_ratio:,.4g} times as frequent as the rarest"
    facts = [
        ("File", source.name),
        ("Scores", {"logits": "logits", "probs": "probabilities"}[source.kind]),
        ("Classes", f"{source.num_classes:,}; the most frequent is {ratio}"),
        ("Judged on", f"{result.num_judged:,} labelled examples"),
        ("Tau", texts.summary(result)[1]),
    ]
    if len(result.left_out):
        facts.append(("Left out", f"{len(result.left_out):,} classes without examples enough"))
    blocks: list[Facts | Pair] = [Facts(facts)]
    if counts is not None:
        chart = charts.frequencies(Frequencies(axis, values))
        blocks = [Pair(Facts(facts), Plot(chart, f"Training examples of each {axis.each}."))]
    return Section("read", "What was adjusted", (), blocks)


def _results(result: AdjustResult) -> Section:
    return Section(
        "results",
        "Before and after",
        (
            "Every example was judged with a τ that it had no part in choosing. Differences are "
            "paired by example; an interval that excludes zero is more than chance.",
        ),
        [_grid(table) for table in texts.tables(result)],
    )


def _grid(table: Table) -> Grid:
    return Grid(table.title, table.header, [Body("", table.rows)], table.note)


def _series(*, after: bool) -> Series:
    if after:
        return Series("after", figures.color(_METHOD))
    return Series("before", figures.color("softmax"))


def _tau(result: AdjustResult) -> Section:
    slider = _slider(result)
    return Section(
        "tau",
        "What τ does",
        (
            "Each point of the curve is exact: an example is right in one interval of τ, found "
            "from its scores. Move the slider and watch common classes pay for rare ones.",
        ),
        [
            Plot(
                tau_charts.tau_curves(_curve(result), start=slider.start),
                "Of the judged examples; upright: where the slider stands.",
            ),
            tau_charts.slider_block(slider),
        ],
    )


def _taus(result: AdjustResult, steps: int) -> FloatArray:
    """Taus that the page shows: those of every page, further where a tau is, and the very best."""
    best = result.judged_curve.minimizer()[0]
    grid = _grid_around([result.tau, *result.fold_taus, best], steps)
    marks = [tau for tau in (0.0, 1.0, result.tau, best) if grid[0] <= tau <= grid[-1]]
    return np.union1d(grid, marks)


def _grid_around(marks: Sequence[float], steps: int) -> FloatArray:
    """From 0 to 4, or as far as these taus are; closer where all of them are small.

    Logits of a small scale, such as cosines, have small taus: on an axis to 4 all that happens
    would lie in a hair's breadth of it.
    """
    largest = max(map(abs, marks))
    if 0 < largest < _SMALL:
        unit = 10.0 ** math.floor(math.log10(_REACH * largest))
        low, high = (_REACH * end / unit for end in (min(marks), max(marks)))
        return unit * tau_grid(min(0, math.floor(low)), max(1, math.ceil(high)), most=steps)
    # A quarter beyond it, so that one sees the error rise again.
    low = min(0, math.floor(1.25 * min(marks)))
    high = 4 if max(marks) <= 4 else math.ceil(1.25 * max(marks))
    return tau_grid(low, high, most=steps)


def _curve(result: AdjustResult) -> TauCurves:
    curve, taus = result.judged_curve, _taus(result, CURVE_STEPS)
    # A long way beyond 4 has wide steps; up to there they are those of every page.
    inside = (taus[0] <= CURVE_TAUS) & (taus[-1] >= CURVE_TAUS)
    taus = np.union1d(CURVE_TAUS[inside], taus)
    if result.target_prior is None:
        values = 100 * curve(taus)
    else:  # the curve is of the error under the target, the chart of the balanced one
        values = mean_per_class([curve], taus).mean(axis=1)
    place = int(np.argmin(values))
    best = float(taus[place])
    oracle = Choice(best, best, best, float(values[place]))
    chosen = None
    if result.tuning is not None:
        used = result.fold_taus if len(result.fold_taus) else np.array([result.tau])
        error = 100 * result.balanced.after.value
        chosen = Choice(result.tau, float(used.min()), float(used.max()), error)
    line = TauLine(
        Series(figures.label(_METHOD), figures.color(_METHOD)),
        values,
        values,
        values,
        chosen,
        oracle,
    )
    return TauCurves(taus, (line,), (), "judged")


def _slider(result: AdjustResult) -> TauSlider:
    axis, taus = _axis(result), _taus(result, SLIDER_STEPS)
    per_class = mean_per_class([result.judged_curve], taus)
    groups = _members(result)
    what = "chosen" if result.tuning is not None else "given"
    theory = {"theory": 1.0} if taus[-1] >= 1.0 else {}
    method = SliderMethod(
        Series(figures.label(_METHOD), figures.color(_METHOD)),
        axis.mean(per_class),
        np.stack([per_class[:, k].mean(axis=1) for k in groups.values()], axis=1)
        if groups
        else np.empty((len(taus), 0)),
        per_class.mean(axis=1),
        {"no adjustment": 0.0, **theory, what: result.tau},
    )
    return TauSlider(taus, axis, tuple(groups), (method,), start=result.tau)


def _members(result: AdjustResult) -> dict[str, IntArray]:
    """Positions among the judged classes, by group; empty groups are left out."""
    if result.prior.counts is None:
        return {}
    kept = _kept(result)
    found = result.prior.groups(many=result.many, few=result.few)
    places = {name: np.flatnonzero(np.isin(kept, members)) for name, members in found.items()}
    return {name: place for name, place in places.items() if len(place)}


def _both(result: AdjustResult) -> FloatArray:
    """Errors of the judged classes in percent, before and after, shape (2, classes)."""
    kept, tally = _kept(result), result.tally
    assert tally is not None  # a page is about labelled predictions
    wrong = np.stack([tally.wrong, tally.wrong - tally.fixed + tally.broken])
    return np.asarray(100 * wrong[:, kept] / tally.counts[kept])


def _classes(result: AdjustResult) -> Section:
    axis = _axis(result)
    values = axis.mean(_both(result))
    section = ClassErrors(axis, (_series(after=False), _series(after=True)), values)
    many = f"Each point is the mean of a {axis.each}. " if axis.binned else ""
    return Section(
        "classes",
        f"Error of each {axis.each}",
        (f"{many}Classes stand in order of frequency.",),
        charts.class_blocks(section, "Of the judged examples."),
    )


def _groups(result: AdjustResult) -> Section | None:
    members = _members(result)
    if not members:
        return None
    both = _both(result)
    values = np.stack([both[:, place].mean(axis=1) for place in members.values()], axis=1)
    section = GroupErrors(
        tuple(members),
        tuple(len(place) for place in members.values()),
        (_series(after=False), _series(after=True)),
        values,
    )
    return Section(
        "groups",
        "Many, medium, few",
        (
            f"The same errors, averaged over groups of classes by training examples: many over "
            f"{result.many:g}, medium {result.few:g} to {result.many:g}, few under "
            f"{result.few:g}.",
        ),
        [Plot(charts.group_errors(section), "Of the judged examples.")],
    )


def _again(command: str | None) -> Section | None:
    if command is None:
        return None
    return Section("again", "How to make it again", (), [Commands([command])])
