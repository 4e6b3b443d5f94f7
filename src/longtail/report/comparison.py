"""Texts about a comparison of runs: names of its rows, tables, and a summary in two sentences."""

from __future__ import annotations

import math
import re

from longtail._checks import listing
from longtail.report import figures
from longtail.report.compare import NORMALIZED, Comparison, Interval, Row, mean_interval
from longtail.report.tables import GROUP_BOUNDS, Table, percent, signed

_SOURCES = {"fixed": "τ = 1", "held-out": "τ held-out", "oracle": "oracle τ"}
_TOO_FEW = {1: "one seed is too few for an interval", 2: "two seeds are too few for an interval"}
_BOUNDS = "; ".join(f"{group}: {text}" for group, text in GROUP_BOUNDS.items())


def name(row: Row) -> str:
    """Return a row's name for people, such as ``post-hoc logit adj. (τ held-out)``."""
    # DRW's settings say whose they are, for a loss has a beta too.
    text = row.detail.replace("drw_start=", "DRW start=").replace("drw_beta=", "DRW beta=")
    parts = [re.sub(r"=\(([-+\d.e, ]+)\)", _numbers, text), _SOURCES.get(row.tau_source or "", "")]
    detail = ", ".join(filter(None, parts))
    label = figures.label(row.method)
    return f"{label} ({detail})" if detail else label


def _numbers(found: re.Match[str]) -> str:
    """Numbers as the command line takes them, ``1/2/0.5``, the first few of many."""
    values = [f"{float(value):g}" for value in found[1].split(",") if value.strip()]
    return "=" + "/".join(values[:3]) + ("/…" if len(values) > 3 else "")


def which_seeds(comparison: Comparison) -> str:
    """Return which seeds `mean_error` is over, where that is not each row's own."""
    shared = comparison.shared_seeds
    if all(row.seeds == shared for row in comparison.honest if not row.members):
        return ""
    if len(shared) > 1:
        return f"over the {len(shared)} seeds that all share"
    return "with the one seed that all share" if shared else "they share no seed"


def interval_text(interval: Interval | None) -> str:
    """Return ``−5.0 [−6.3, −3.7]``, in percentage points; the mean alone without an interval."""
    if interval is None:
        return ""
    if math.isnan(interval.low):
        return signed(interval.mean)
    return f"{signed(interval.mean)} [{signed(interval.low)}, {signed(interval.high)}]"


def headline(comparison: Comparison) -> Table:
    """Return everything about the rows of the comparison in one wide table."""
    lines = []
    for row in comparison.rows:
        error, taus, groups = mean_interval(row.errors), row.taus, comparison.group_errors(row)
        half = "" if math.isnan(error.low) else f" ± {percent(error.half_width)}"
        change = None if row is comparison.baseline else comparison.against_softmax(row)
        tau = ""
        if taus is not None:
            low, high = taus.min(), taus.max()
            alike = high - low < 0.005
            tau = f"{taus.mean():.3g}" if alike else f"{taus.mean():.2f} ({low:.2f}–{high:.2f})"
        cells = (percent(groups[group]) for group in GROUP_BOUNDS)
        lines.append((name(row), percent(error.mean) + half, interval_text(change), tau, *cells))
    return Table(
        f"Balanced error in percent on the {comparison.split} set",
        ("method", "balanced error", "against softmax", "τ", *GROUP_BOUNDS),
        lines,
        note=f"{_note(comparison)} Training examples of a class: {_BOUNDS}.",
    )


def tables(comparison: Comparison) -> list[Table]:
    """Return the headline in two tables narrow enough for a terminal."""
    full = headline(comparison)
    taus = ["" if row.taus is None else f"{row.taus.mean():.2f}" for row in comparison.rows]
    errors = [(*line[:3], tau) for line, tau in zip(full.rows, taus, strict=True)]
    groups = [(line[0], *line[-len(GROUP_BOUNDS) :]) for line in full.rows]
    return [
        Table(full.title, full.header[:4], errors, note=_note(comparison)),
        Table(
            "Error in percent of classes by their training examples",
            (full.header[0], *GROUP_BOUNDS),
            groups,
            note=f"Training examples of a class: {_BOUNDS}.",
        ),
    ]


def _note(comparison: Comparison) -> str:
    counts = sorted({len(row.seeds) for row in comparison.rows if not row.members})
    sources = {row.tau_source for row in comparison.rows}
    parts = []
    if counts and counts[-1] > 2:
        number = f"{counts[-1]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        parts.append(
            f"Mean over {number} seeds ± half the width of its 95% interval (Student's t); "
            f"differences are paired by seed, with their 95% interval in brackets."
        )
    elif counts:
        why = _TOO_FEW[counts[-1]]
        parts.append(f"{why[0].upper()}{why[1:]}; train more before concluding.")
    if any(row.members for row in comparison.rows):
        parts.append(
            "Ensemble: the mean of several networks' logits, one result without an interval; its "
            "difference is to the mean of softmax over the seeds of its networks."
        )
    if "held-out" in sources:
        parts.append(
            "τ held-out: chosen on data held out of a second training run of the same seed."
        )
    if "oracle" in sources:
        parts.append(
            f"Oracle τ: the best on the {comparison.split} set itself, which nobody has in use."
        )
    parts.append(bias_note(comparison))
    for why, runs in comparison.left_out.items():
        parts.append(f"Left out: {listing((run.name for run in runs), most=5)} ({why}).")
    return " ".join(filter(None, parts))


def bias_note(comparison: Comparison) -> str:
    """Return what weight normalization did to the bias; its errors depend on it by many points."""
    if not any(row.method == NORMALIZED for row in comparison.rows):
        return ""
    return "Weight norm. divides the whole logit, bias included (bias mode: scale)."


def summary(comparison: Comparison) -> list[str]:
    """Return what happened, in two plain sentences made from the numbers."""
    base, winner, seeds = comparison.baseline, comparison.best, which_seeds(comparison)
    error, aside = percent(comparison.mean_error(winner)), f" ({seeds})" if seeds else ""
    if base is None:
        text = f"Of {len(comparison.honest)} methods, {name(winner)} has the lowest balanced error"
        if len(comparison.honest) == 1:
            text = f"The one method, {name(winner)}, has a balanced error of {error}%{aside}."
        else:
            text += f", {error}%{aside}."
        return [text, "Without a run trained with plain softmax there is nothing to compare it to."]
    text = (
        f"Trained on {comparison.runs[0].spec.dataset.name} with plain softmax, the model gets "
        f"{percent(float(base.errors.mean()))}% of an average class wrong"
    )
    groups = {k: v for k, v in comparison.group_errors(base).items() if not math.isnan(v)}
    if len(groups) > 1:
        first, *_, last = groups
        text += (
            f": {percent(groups[first])}% where a class has {first} training examples "
            f"({GROUP_BOUNDS[first]}), {percent(groups[last])}% where it has {last} "
            f"({GROUP_BOUNDS[last]})"
        )
    if winner is base:
        return [f"{text}.", f"No other method has a lower balanced error here{aside}."]
    return [f"{text}.", _winner_sentence(comparison, f"{error}%{aside}")]


def _winner_sentence(comparison: Comparison, error: str) -> str:
    winner, others = comparison.best, comparison.rivals
    found, label = comparison.best_against_softmax(), name(winner)
    saw = f"never saw the {comparison.split} set"
    if comparison.split == "train":
        saw = "learnt from these very images"
    text = f"Of the {others} other methods that {saw}, {label} does best, with {error}"
    if others == 1:
        text = f"{label[0].upper()}{label[1:]}, which {saw}, gets {error} wrong"
    if found is None:
        return f"{text}; it shares no seeds with softmax to compare it by."
    text += f": {percent(abs(found.mean))} points {'lower' if found.mean < 0 else 'higher'}"
    if winner.members:
        return (
            f"{text} than softmax's mean over its networks' seeds; it is the mean of "
            f"{len(winner.members)} networks and has no interval, so this may be noise."
        )
    if math.isnan(found.low):
        return f"{text}, but {_TOO_FEW[found.seeds]}, so this may be noise."
    low, high = sorted((-found.low, -found.high))
    picked = f", wider since it was picked among {others} by these errors" if others > 1 else ""
    text += (
        f" (95% interval over {found.seeds} paired seeds{picked}: "
        f"{percent(low)} to {percent(high)})"
    )
    if found.excludes_zero:
        return f"{text}, and as the interval excludes zero, that is more than the seeds' noise."
    return f"{text}, but as the interval includes zero, these seeds show no difference."
