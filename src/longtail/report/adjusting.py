"""Texts about adjusted predictions, for the terminal and the page: a summary and two tables."""

from __future__ import annotations

import numpy as np

from longtail import _checks
from longtail.predictions import AdjustResult, Change
from longtail.predictions.adjusting import Written
from longtail.report.tables import GROUP_BOUNDS, Table, percent, plural, signed

# Classes with fewer judged examples than this have wide intervals, as the summary says.
_FEW = 5
# Classes that are shown of those whose error fell most, and of those whose error rose most.
_MOST = 5


def summary(result: AdjustResult) -> list[str]:
    """Return what was read, which tau was taken and how it was judged, and what came out."""
    source, tally = result.predictions, result.tally
    what = {"logits": "logits", "probs": "probabilities"}[source.kind]
    classes = f"{source.num_classes:,} classes"
    if tally is None:
        rows = f"{source.num_rows:,} " if source.num_rows is not None else ""
        unsure = f"Label some examples to see whether tau = {result.tau:.4g} is right."
        if result.tau == 1:
            unsure = "That tau = 1 is right holds for calibrated models; "
            unsure += "label some examples to be sure."
        return [
            f"{source.name}: {what} of {rows}examples without labels, {classes}.",
            _chosen(result),
            f"Nothing could be measured: the examples have no labels. {unsure}",
        ]
    first = f"{source.name}: {what} of {result.num_labelled:,} labelled examples, {classes}."
    found = [first, _chosen(result), conclusion(result)]
    if len(result.left_out):
        names = _checks.listing([source.label(int(k)) for k in result.left_out])
        found.append(f"Left out of all means, for lack of labelled examples: {names}.")
    if few := int(((tally.counts > 0) & (tally.counts < _FEW)).sum()):
        found.append(
            f"{plural(few, 'class was', 'classes were')} judged on fewer than {_FEW} "
            f"examples: trust the means more than single classes."
        )
    doubts = [] if result.tuning is None else result.tuning.doubts
    return found + [f"{doubt[0].upper()}{doubt[1:]}." for doubt in doubts]


def _chosen(result: AdjustResult) -> str:
    """Return tau, where it comes from, and how it was judged."""
    tuning, tau = result.tuning, f"tau = {result.tau:.4g}"
    if tuning is not None and tuning.confidence is not None:
        low, high = tuning.confidence
        tau += f" ({tuning.confidence_level:.0%} bootstrap interval {low:.3g} to {high:.3g})"
    if result.protocol == "split":
        tau += f", chosen on {result.num_tuned:,} examples and judged on the "
        tau += f"{result.num_judged:,} others"
    elif tuning is not None:
        taus = result.fold_taus
        tau += f", chosen on all of them; judged by cross-fitting, each of {len(taus)} folds with "
        tau += f"the tau of the others ({taus.min():.3g} to {taus.max():.3g})"
    elif result.tally is not None:
        cross = "; judged by cross-fitting the prior" if result.protocol == "cross-fit" else ""
        tau += f", as given{cross}"
    effective = " The prior is what the model has learnt: its mean prediction."
    return f"{tau}.{effective if result.effective else ''}"


def conclusion(result: AdjustResult) -> str:
    """Return whether the adjustment helped, in one sentence."""
    name, change = "balanced error", result.balanced
    if result.expected is not None:
        name, change = "error under the target frequencies", result.expected
    assert change is not None  # of labelled examples
    value, low, high = change.difference.value, change.difference.low, change.difference.high
    span = f"from {percent(change.before.value)}% to {percent(change.after.value)}%"
    level = f"{result.level:.0%} interval"
    if low <= 0 <= high:
        return (
            f"The {name} goes {span}, a difference within chance ({level} [{signed(low)}, "
            f"{signed(high)}] points): these examples show no benefit."
        )
    low, high = sorted((abs(low), abs(high)))
    way, verdict = "falls", "more than chance."
    if value > 0:
        way, verdict = "rises", "leave these predictions as they are."
    return (
        f"The {name} {way} {span}, by {percent(abs(value))} points ({level} {percent(low)} to "
        f"{percent(high)}): {verdict}"
    )


def tables(result: AdjustResult) -> list[Table]:
    """Return errors before and after: overall and by group, and of the most changed classes."""
    tally = result.tally
    if tally is None:
        return []
    groups, errors = result.groups, {"balanced": result.balanced}
    errors |= {f"  {name} ({GROUP_BOUNDS[name]})": change for name, change in groups.items()}
    errors |= {"under the target": result.expected, "as they come": result.overall}
    rows = [_row(name, change) for name, change in errors.items() if change is not None]
    header = ("judged on", "before", "after", "change", f"{result.level:.0%} interval")
    note = "balanced: the mean of the classes' errors"
    note += "; many, medium, few: by training examples" if groups else ""
    note += "; as they come: the share of all wrong examples."
    found = [Table("Error in percent", ("", "classes", *header), rows, note)]
    # Among equals the class with more judged examples.
    change = (tally.broken - tally.fixed) / np.maximum(tally.counts, 1)
    better = [k for k in np.lexsort((-tally.counts, change)) if change[k] < 0][:_MOST]
    worse = [k for k in np.lexsort((-tally.counts, -change)) if change[k] > 0][:_MOST]
    rows, counts = [], result.prior.counts
    for k in [*better, *reversed(worse)]:
        one = tally.change(np.arange(len(change)) == k)
        name, _, *cells = _row(result.predictions.label(k), one)
        rows.append((name, "" if counts is None else f"{counts[k]:g}", *cells))
    if rows:
        found.append(Table("Most changed classes", ("class", "trained on", *header), rows))
    return found


def _row(name: str, change: Change) -> tuple[str, ...]:
    difference = change.difference
    return (
        name,
        f"{change.num_classes:,}",
        f"{change.num_examples:,}",
        percent(change.before.value),
        percent(change.after.value),
        signed(difference.value),
        f"[{signed(difference.low)}, {signed(difference.high)}]",
    )


def written(result: AdjustResult, files: Written) -> str:
    """Return what was written where."""
    share = files.changed / max(1, files.rows)
    names = " and ".join(path.as_posix() for path in files.paths)
    text = (
        f"Written to {names}: adjusted {result.predictions.kind} and predicted labels, "
        f"{files.changed:,} of {files.rows:,} of them changed ({share:.1%})."
    )
    if result.predictions.left_out:
        text += f" Not copied: {_checks.listing(result.predictions.left_out)}."
    return text
