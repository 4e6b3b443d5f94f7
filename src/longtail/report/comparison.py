"""How a comparison of methods reads: names of its rows, its table, and two sentences about it.

The numbers come from `longtail.report.compare`. The terminal and the page share these
texts; charts of a comparison start in `sections`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from longtail._checks import listing
from longtail.report import figures
from longtail.report.compare import Comparison, Interval, Row, mean_interval
from longtail.report.tables import GROUP_BOUNDS, Table
from longtail.report.tables import percent as percent

# Settings whose key in a run's record does not say enough, or too much.
_SETTINGS = {"drw_start=": "DRW start=", "drw_beta=": "DRW beta="}
# By a row's detail; the plain way has no words in its name, which the table's note makes up for.
_BIAS_MODES = {
    "bias scale": "divides the whole logit, bias included (bias mode: scale)",
    "bias keep": "divides the weights and keeps the bias (bias mode: keep)",
    "bias drop": "drops the bias and divides the weights (bias mode: drop)",
}
_SOURCES = {"fixed": "τ = 1", "held-out": "τ held-out", "oracle": "oracle τ"}


def name(row: Row) -> str:
    """A row as people read it, such as ``post-hoc logit adj. (τ held-out)``."""
    parts = []
    if row.detail and row.detail != "bias scale":  # `bias_note` says it, where a row has no room
        parts.append(_detail(row))
    if row.tau_source is not None:
        parts.append(_SOURCES[row.tau_source])
    label = figures.label(row.method)
    return f"{label} ({', '.join(parts)})" if parts else label


def _detail(row: Row) -> str:
    """Settings as they were typed; those of DRW say whose they are, for a loss has a beta too."""
    text = row.detail
    for key, words in _SETTINGS.items():
        text = text.replace(key, words)
    return re.sub(r"=\(([-+\d.e, ]+)\)", _shortened, text)


def _shortened(found: re.Match[str]) -> str:
    """Numbers as the command line takes them, ``1/2/0.5``, the first few of many."""
    values = [f"{float(value):g}" for value in found[1].split(",") if value.strip()]
    shown = "=" + "/".join(values[:3])
    return shown if len(values) <= 3 else f"{shown}/…"


def honest(row: Row) -> bool:
    """Whether nothing about the method was chosen on the data that judge it."""
    return row.tau_source != "oracle"


def best(comparison: Comparison) -> Row:
    """The honest row with the lowest mean balanced error; the earlier of two equals.

    They are held against each other over the seeds that all of them share, if there are any: a
    method that was trained with a hard seed more would lose by it.
    """
    return min(_honest(comparison), key=lambda row: mean_error(comparison, row))


def mean_error(comparison: Comparison, row: Row) -> float:
    """The error by which `best` compares: over the seeds that all share, or else its own."""
    seeds = shared_seeds(comparison)
    return float((row.errors_of(seeds) if seeds else row.errors).mean())


def shared_seeds(comparison: Comparison) -> tuple[int, ...]:
    """The seeds of every honest row; ensembles, which are no seed among others, aside."""
    found = [set(row.seeds) for row in _honest(comparison) if not row.members]
    return tuple(sorted(set.intersection(*found))) if found else ()


def which_seeds(comparison: Comparison) -> str:
    """Over which seeds `best` compares, in words, where that is not each method's own seeds."""
    shared = shared_seeds(comparison)
    if all(row.seeds == shared for row in _honest(comparison) if not row.members):
        return ""
    if len(shared) > 1:
        return f"over the {len(shared)} seeds that all share"
    return "with the one seed that all share" if shared else "they share no seed"


def _honest(comparison: Comparison) -> list[Row]:
    return [row for row in comparison.rows if honest(row)]


def mean_half_width(interval: Interval) -> str:
    """``12.3 ± 0.4``, or the mean alone where one seed gives no interval."""
    if math.isnan(interval.half_width):
        return percent(interval.mean)
    return f"{percent(interval.mean)} ± {percent(interval.half_width)}"


def change(interval: Interval) -> str:
    """``−5.0 [−6.3, −3.7]``, in percentage points."""
    mean = ("+" if interval.mean > 0 else "") + percent(interval.mean)
    if math.isnan(interval.half_width):
        return mean
    ends = (("+" if end > 0 else "") + percent(end) for end in (interval.low, interval.high))
    return f"{mean} [{', '.join(ends)}]"


def tau(row: Row) -> str:
    """The mean tau of a post-hoc row, with its range over seeds where it varies."""
    if row.taus is None:
        return ""
    low, high = float(row.taus.min()), float(row.taus.max())
    if high - low < 0.005:
        return f"{row.taus.mean():.3g}"
    return f"{row.taus.mean():.2f} ({low:.2f}–{high:.2f})"


def against_softmax(comparison: Comparison, row: Row, *, picked: bool = False) -> Interval | None:
    """The paired difference to softmax; None for softmax itself, or without common seeds.

    A row that was picked for its low error has a lucky one: with every rival there is one chance
    more. `picked` widens its interval accordingly (Bonferroni), so that where no method differs
    from softmax, no more than one report in forty finds the best one better.
    """
    if row is comparison.baseline:
        return None
    return comparison.against_softmax(row, level=1 - 0.05 / (rivals(comparison) if picked else 1))


def rivals(comparison: Comparison) -> int:
    """How many honest rows there are besides softmax."""
    return len([row for row in _honest(comparison) if row is not comparison.baseline])


def tables(comparison: Comparison) -> list[Table]:
    """Balanced errors with intervals and taus, and errors by group: two tables for a terminal."""
    rows = comparison.rows
    full = headline(comparison, rows)
    means = ["" if row.taus is None else f"{row.taus.mean():.2f}" for row in rows]
    errors = [(*line[:3], mean) for line, mean in zip(full.rows, means, strict=True)]
    groups = [(line[0], *line[-len(GROUP_BOUNDS) :]) for line in full.rows]
    bounds = "; ".join(f"{group}: {text}" for group, text in GROUP_BOUNDS.items())
    return [
        Table(full.title, full.header[:4], errors, note=_note(comparison)),
        Table(
            "Error in percent of classes by their training examples",
            (full.header[0], *GROUP_BOUNDS),
            groups,
            note=_joined(f"Training examples of a class: {bounds}.", bias_note(comparison)),
        ),
    ]


def headline(comparison: Comparison, rows: Sequence[Row]) -> Table:
    """Everything about some rows of the comparison in one wide table."""
    lines = []
    for row in rows:
        difference = against_softmax(comparison, row)
        groups = comparison.group_errors(row)
        lines.append(
            (
                name(row),
                mean_half_width(mean_interval(row.errors)),
                change(difference) if difference is not None else "",
                tau(row),
                *(percent(groups[group]) for group in GROUP_BOUNDS),
            )
        )
    bounds = "; ".join(f"{group}: {text}" for group, text in GROUP_BOUNDS.items())
    return Table(
        f"Balanced error in percent on the {comparison.split} set",
        ("method", "balanced error", "against softmax", "τ", *GROUP_BOUNDS),
        lines,
        note=f"{_note(comparison)} Errors of classes by their training examples ({bounds}).",
    )


def _note(comparison: Comparison) -> str:
    counts = sorted({len(row.seeds) for row in comparison.rows if not row.members})
    parts = []
    if counts and counts[-1] > 1:
        number = f"{counts[-1]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        parts.append(
            f"Mean over {number} seeds ± half the width of its 95% interval (Student's t); "
            f"differences are paired by seed, with their 95% interval in brackets."
        )
    elif counts:
        parts.append("One seed: there are no intervals; train more seeds before concluding.")
    if any(row.members for row in comparison.rows):
        parts.append(
            "Ensemble: the mean of several networks' logits, one result without an interval; its "
            "difference is to the mean of softmax over the seeds of its networks."
        )
    if any(row.tau_source == "held-out" for row in comparison.rows):
        parts.append(
            "τ held-out: chosen on data held out of a second training run of the same seed."
        )
    if any(row.tau_source == "oracle" for row in comparison.rows):
        parts.append(
            f"Oracle τ: the best on the {comparison.split} set itself, which nobody has in use."
        )
    left_out = (
        f"Left out: {listing((run.name for run in runs), most=5)} ({why})."
        for why, runs in comparison.left_out.items()
    )
    return _joined(*parts, bias_note(comparison), *left_out)


def bias_note(comparison: Comparison) -> str:
    """What weight normalization did to the bias, on which its errors depend by many points."""
    found = dict.fromkeys(
        row.detail for row in comparison.rows if row.method == "posthoc-weight-normalized"
    )
    return _joined(*(f"Weight norm. {_BIAS_MODES[detail]}." for detail in found))


def _joined(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def summary(comparison: Comparison) -> list[str]:
    """What happened, in two plain sentences made from the numbers."""
    base, winner = comparison.baseline, best(comparison)
    if base is None:
        return [
            _lowest_sentence(comparison, winner),
            "Without a run trained with plain softmax there is nothing to compare it to.",
        ]
    return [_softmax_sentence(comparison, base), _winner_sentence(comparison, base, winner)]


def _lowest_sentence(comparison: Comparison, winner: Row) -> str:
    """Who is lowest where there is no softmax, and by how much luck that may be."""
    rows, seeds = _honest(comparison), which_seeds(comparison)
    error = f"{percent(mean_error(comparison, winner))}%"
    if len(rows) == 1:
        return f"The one method, {name(winner)}, has a balanced error of {error}."
    text = f"Of {len(rows)} methods, {name(winner)} has the lowest balanced error, {error}"
    if winner.members:
        return f"{text}; it is the mean of {len(winner.members)} networks, so this may be noise."
    numbers = sorted({len(row.seeds) for row in rows if not row.members})
    if not seeds:
        return f"{text}, but it is of one seed and may be noise." if numbers == [1] else f"{text}."
    spans = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    shared = len(shared_seeds(comparison))
    if not shared:
        return f"{text}; {seeds} (each has {spans}), so this may be noise."
    return f"{text}{',' if shared > 1 else ''} {seeds} (each has {spans}); this may be noise."


def _softmax_sentence(comparison: Comparison, base: Row) -> str:
    data = comparison.runs[0].spec.dataset.name
    text = (
        f"Trained on {data} with plain softmax, the model gets "
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
    return text + "."


def _winner_sentence(comparison: Comparison, base: Row, winner: Row) -> str:
    others, seeds = rivals(comparison), which_seeds(comparison)
    if winner is base:
        who = f"None of the {others} other methods has" if others > 1 else "No other method has"
        return f"{who} a lower balanced error here{f' ({seeds})' if seeds else ''}."
    found = against_softmax(comparison, winner, picked=True)
    label, error = name(winner), percent(mean_error(comparison, winner))
    saw = f"never saw the {comparison.split} set"
    if comparison.split == "train":
        saw = "learnt from these very images"
    text = f"Of the {others} other methods that {saw}, {label} does best, with {error}%"
    if others == 1:
        first = f"{label[0].upper()}{label[1:]}"
        text = f"{first}, which {saw}, gets {error}% wrong"
    if winner.members:
        return f"{text}{_ensemble_words(winner, found)}"
    if found is None:
        return f"{text}; it shares no seed with softmax, so the difference has no interval."
    text += f" ({seeds})" if seeds else ""
    text += f": {percent(abs(found.mean))} points {'lower' if found.mean < 0 else 'higher'}"
    if math.isnan(found.half_width):
        return f"{text}, but one seed gives no interval, so this may be noise."
    low, high = sorted((-found.low, -found.high))
    picked = f", wider since it was picked among {others} by these errors" if others > 1 else ""
    text += (
        f" (95% interval over {found.seeds} paired seeds{picked}: "
        f"{percent(low)} to {percent(high)})"
    )
    if found.excludes_zero:
        return f"{text}, and as the interval excludes zero, that is more than the seeds' noise."
    return f"{text}, but as the interval includes zero, these seeds show no difference."


def _ensemble_words(row: Row, found: Interval | None) -> str:
    """How an ensemble's error goes on: it is neither a seed nor a mean over seeds."""
    what = f"it is the mean of {len(row.members)} networks"
    if found is None:
        return f"; {what}, and softmax was not trained with all of their seeds to compare it to."
    lower = "lower" if found.mean < 0 else "higher"
    seeds = "seed" if found.seeds == 1 else f"{found.seeds} seeds"
    return (
        f": {percent(abs(found.mean))} points {lower} than softmax's mean over the same {seeds}; "
        f"{what} and has no interval, so this may be noise."
    )
