"""Texts about a comparison of runs: names of its rows, tables, and a summary in two sentences."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from longtail._checks import listing
from longtail.report import figures
from longtail.report.compare import Comparison, Interval, Row, mean_interval
from longtail.report.tables import GROUP_BOUNDS, Table, percent, signed

# Names of rows don't say how weight normalization treats the bias where it is the plain way.
_BIAS_MODES = {
    "bias scale": "divides the whole logit, bias included (bias mode: scale)",
    "bias keep": "divides the weights and keeps the bias (bias mode: keep)",
    "bias drop": "drops the bias and divides the weights (bias mode: drop)",
}
_SOURCES = {"fixed": "τ = 1", "held-out": "τ held-out", "oracle": "oracle τ"}
_TOO_FEW = {1: "one seed is too few for an interval", 2: "two seeds are too few for an interval"}


def name(row: Row) -> str:
    """Return a row's name for people, such as ``post-hoc logit adj. (τ held-out)``."""
    parts = []
    if row.detail and row.detail != "bias scale":
        # DRW's settings say whose they are, for a loss has a beta too.
        text = row.detail.replace("drw_start=", "DRW start=").replace("drw_beta=", "DRW beta=")
        parts.append(re.sub(r"=\(([-+\d.e, ]+)\)", _numbers, text))
    if row.tau_source is not None:
        parts.append(_SOURCES[row.tau_source])
    label = figures.label(row.method)
    return f"{label} ({', '.join(parts)})" if parts else label


def _numbers(found: re.Match[str]) -> str:
    """Numbers as the command line takes them, ``1/2/0.5``, the first few of many."""
    values = [f"{float(value):g}" for value in found[1].split(",") if value.strip()]
    return "=" + "/".join(values[:3]) + ("/…" if len(values) > 3 else "")


def honest(comparison: Comparison) -> list[Row]:
    """Return the rows for which nothing was chosen on the data that judge them."""
    return [row for row in comparison.rows if row.tau_source != "oracle"]


def shared_seeds(comparison: Comparison) -> tuple[int, ...]:
    """Return the seeds of every honest row, ensembles aside."""
    found = [set(row.seeds) for row in honest(comparison) if not row.members]
    return tuple(sorted(set.intersection(*found))) if found else ()


def mean_error(comparison: Comparison, row: Row) -> float:
    """Return a row's error over the seeds that all rows share, or else over its own.

    A method that was trained with a hard seed more than the others would lose by it.
    """
    seeds = shared_seeds(comparison)
    return float((row.errors_of(seeds) if seeds else row.errors).mean())


def best(comparison: Comparison) -> Row:
    """Return the honest row with the lowest `mean_error`; the earlier of two equals."""
    return min(honest(comparison), key=lambda row: mean_error(comparison, row))


def which_seeds(comparison: Comparison) -> str:
    """Return which seeds `mean_error` is over, where that is not each row's own."""
    shared = shared_seeds(comparison)
    if all(row.seeds == shared for row in honest(comparison) if not row.members):
        return ""
    if len(shared) > 1:
        return f"over the {len(shared)} seeds that all share"
    return "with the one seed that all share" if shared else "they share no seed"


def rivals(comparison: Comparison) -> int:
    """Return the number of honest rows besides softmax."""
    return len([row for row in honest(comparison) if row is not comparison.baseline])


def against_softmax(comparison: Comparison, row: Row, *, picked: bool = False) -> Interval | None:
    """Return the paired difference to softmax; None for softmax, or without common seeds.

    A row that was picked for its low error has a lucky one: with every rival there is one chance
    more. `picked` widens its interval accordingly (Bonferroni), so that where no method differs
    from softmax, no more than one report in forty finds the best one better.
    """
    if row is comparison.baseline:
        return None
    return comparison.against_softmax(row, level=1 - 0.05 / (rivals(comparison) if picked else 1))


def interval_text(interval: Interval | None) -> str:
    """Return ``−5.0 [−6.3, −3.7]``, in percentage points; the mean alone without an interval."""
    if interval is None:
        return ""
    if math.isnan(interval.low):
        return signed(interval.mean)
    return f"{signed(interval.mean)} [{signed(interval.low)}, {signed(interval.high)}]"


def headline(comparison: Comparison, rows: Sequence[Row]) -> Table:
    """Return everything about some rows of the comparison in one wide table."""
    lines = []
    for row in rows:
        error, taus, groups = mean_interval(row.errors), row.taus, comparison.group_errors(row)
        half = "" if math.isnan(error.low) else f" ± {percent(error.half_width)}"
        tau = ""
        if taus is not None:
            low, high = taus.min(), taus.max()
            alike = high - low < 0.005
            tau = f"{taus.mean():.3g}" if alike else f"{taus.mean():.2f} ({low:.2f}–{high:.2f})"
        lines.append(
            (
                name(row),
                percent(error.mean) + half,
                interval_text(against_softmax(comparison, row)),
                tau,
                *(percent(groups[group]) for group in GROUP_BOUNDS),
            )
        )
    return Table(
        f"Balanced error in percent on the {comparison.split} set",
        ("method", "balanced error", "against softmax", "τ", *GROUP_BOUNDS),
        lines,
        note=f"{_note(comparison)} {_bounds()}",
    )


def tables(comparison: Comparison) -> list[Table]:
    """Return the headline in two tables narrow enough for a terminal."""
    full = headline(comparison, comparison.rows)
    taus = ["" if row.taus is None else f"{row.taus.mean():.2f}" for row in comparison.rows]
    errors = [(*line[:3], tau) for line, tau in zip(full.rows, taus, strict=True)]
    groups = [(line[0], *line[-len(GROUP_BOUNDS) :]) for line in full.rows]
    return [
        Table(full.title, full.header[:4], errors, note=_note(comparison)),
        Table(
            "Error in percent of classes by their training examples",
            (full.header[0], *GROUP_BOUNDS),
            groups,
            note=" ".join(filter(None, (_bounds(), bias_note(comparison)))),
        ),
    ]


def _bounds() -> str:
    bounds = "; ".join(f"{group}: {text}" for group, text in GROUP_BOUNDS.items())
    return f"Training examples of a class: {bounds}."


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
    rows = (row for row in comparison.rows if row.method == "posthoc-weight-normalized")
    details = dict.fromkeys(row.detail for row in rows)
    return " ".join(f"Weight norm. {_BIAS_MODES[detail]}." for detail in details)


def summary(comparison: Comparison) -> list[str]:
    """Return what happened, in two plain sentences made from the numbers."""
    base, winner = comparison.baseline, best(comparison)
    if base is not None:
        return [_softmax_sentence(comparison, base), _winner_sentence(comparison, base, winner)]
    rows, seeds = honest(comparison), which_seeds(comparison)
    error = percent(mean_error(comparison, winner))
    first = f"Of {len(rows)} methods, {name(winner)} has the lowest balanced error, {error}%"
    if len(rows) == 1:
        first = f"The one method, {name(winner)}, has a balanced error of {error}%"
    return [
        f"{first} ({seeds})." if seeds else f"{first}.",
        "Without a run trained with plain softmax there is nothing to compare it to.",
    ]


def _softmax_sentence(comparison: Comparison, base: Row) -> str:
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
    return f"{text}."


def _winner_sentence(comparison: Comparison, base: Row, winner: Row) -> str:
    others, seeds = rivals(comparison), which_seeds(comparison)
    aside = f" ({seeds})" if seeds else ""
    if winner is base:
        return f"No other method has a lower balanced error here{aside}."
    found = against_softmax(comparison, winner, picked=True)
    label, error = name(winner), percent(mean_error(comparison, winner))
    saw = f"never saw the {comparison.split} set"
    if comparison.split == "train":
        saw = "learnt from these very images"
    text = f"Of the {others} other methods that {saw}, {label} does best, with {error}%{aside}"
    if others == 1:
        text = f"{label[0].upper()}{label[1:]}, which {saw}, gets {error}% wrong{aside}"
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
    if found.low > 0 or found.high < 0:
        return f"{text}, and as the interval excludes zero, that is more than the seeds' noise."
    return f"{text}, but as the interval includes zero, these seeds show no difference."
