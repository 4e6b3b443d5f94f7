"""Texts about adjusted predictions, for the terminal and the page: a summary and two tables."""

from __future__ import annotations

from longtail import _checks
from longtail.predictions import AdjustResult, Change
from longtail.predictions.adjusting import Written
from longtail.report.tables import Table, percent, plural, shortened, signed

# Classes with fewer judged examples than this have wide intervals, and it is said.
_FEW = 5
# Characters of a line that the numbers of a class take, and what its name has at least.
_NUMBERS, _LEAST_NAME = 62, 18


def summary(result: AdjustResult) -> list[str]:
    """Return what was read, which tau was taken and how it was judged, and what came out."""
    source, tuning = result.predictions, result.tuning
    what = {"logits": "logits", "probs": "probabilities"}[source.kind]
    classes = f"{source.num_classes:,} classes"
    tau = f"tau = {result.tau:.4g}"
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
        cross = result.protocol == "cross-fit"
        tau += f", as given{'; judged by cross-fitting the prior' if cross else ''}"
    effective = " The prior is what the model shows to have learnt, its mean prediction."
    tau += f".{effective if result.effective else ''}"
    if result.tally is None:
        rows = f"{source.num_rows:,} " if source.num_rows is not None else ""
        unsure = f"Label some examples to see whether tau = {result.tau:.4g} is right."
        if result.tau == 1:
            unsure = "That tau = 1 is right holds for calibrated models; "
            unsure += "label some examples to be sure."
        return [
            f"{source.name}: {what} of {rows}examples without labels, {classes}.",
            tau,
            f"Nothing could be measured: the examples have no labels. {unsure}",
        ]
    amount = result.num_judged + result.num_left_out
    amount += result.num_tuned if result.protocol == "split" else 0
    found = [
        f"{source.name}: {what} of {amount:,} labelled examples, {classes}.",
        tau,
        conclusion(result),
    ]
    if len(result.left_out):
        names = _checks.listing([source.label(int(k)) for k in result.left_out])
        found.append(f"Left out of all means, for lack of labelled examples: {names}.")
    judged = result.tally.counts
    if few := int(((judged > 0) & (judged < _FEW)).sum()):
        found.append(
            f"{plural(few, 'class was', 'classes were')} judged on fewer than {_FEW} "
            f"examples: trust the means more than single classes."
        )
    if tuning is None:
        return found
    if tuning.confidence is not None and tuning.few_decide:
        found.append(
            f"In effect {tuning.deciding_examples:.0f} of the examples decide about tau, those of "
            f"rare classes, so its interval is likely too narrow."
        )
    low, high = tuning.bounds
    if tuning.indifferent:
        found.append(f"Every tau within the bounds {low:g} and {high:g} is equally good.")
    elif tuning.at_zero:
        found.append(
            "Any adjustment makes it worse: are the counts in the order of the score columns, and "
            "were the logits not adjusted already?"
        )
    elif tuning.at_bound:
        found.append(
            f"The best tau touches the bounds {low:g} and {high:g}: consider wider ones (--bounds)."
        )
    return found


def main_change(result: AdjustResult) -> tuple[str, Change]:
    """Return the error that was to be lowered, with its name."""
    if (expected := result.expected) is not None:
        return "error under the target frequencies", expected
    return "balanced error", result.balanced


def conclusion(result: AdjustResult) -> str:
    """Return whether the adjustment helped, in one sentence."""
    name, change = main_change(result)
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


def tables(result: AdjustResult, *, width: int | None = None) -> list[Table]:
    """Return errors before and after: overall and by group, and of the most changed classes.

    Args:
        result: the outcome of `adjust_predictions`.
        width: characters of a line; names of classes are cut to fit. None: any number.
    """
    if result.tally is None:
        return []
    bounds = {
        "many": f"over {result.many:g}",
        "medium": f"{result.few:g} to {result.many:g}",
        "few": f"under {result.few:g}",
    }
    rows = [_row("balanced", result.balanced)]
    groups = result.groups
    for name, change in groups.items():
        rows.append(_row(f"  {name} ({bounds[name]})", change))
    if (expected := result.expected) is not None:
        rows.append(_row("under the target", expected))
    rows.append(_row("as they come", result.overall))
    header = ("judged on", "before", "after", "change", f"{result.level:.0%} interval")
    note = "balanced: the mean of the classes' errors"
    note += "; many, medium, few: by training examples" if groups else ""
    note += "; as they come: the share of all wrong examples."
    found = [Table("Error in percent", ("", "classes", *header), rows, note)]
    better, worse = result.most_changed()
    classes = [*better, *reversed(worse)]
    if not classes:
        return found
    names = [result.predictions.label(k) for k in classes]
    if width is not None:
        names = shortened(names, max(_LEAST_NAME, width - _NUMBERS))
    counts, rows = result.prior.counts, []
    for name, k in zip(names, classes, strict=True):
        cells = _row(name, result.of_class(k))
        rows.append((name, "" if counts is None else f"{counts[k]:g}", *cells[2:]))
    return [*found, Table("Most changed classes", ("class", "trained on", *header), rows)]


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
