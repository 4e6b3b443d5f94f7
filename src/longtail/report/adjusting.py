"""How adjusted predictions read: a few sentences and two tables, for the terminal and the page.

The numbers come from `longtail.predictions`; the page is in `adjusting_page`.
"""

from __future__ import annotations

import numpy as np

from longtail import _checks
from longtail.predictions import AdjustResult, Change
from longtail.predictions.adjusting import Written
from longtail.report.names import shortened
from longtail.report.tables import Table, percent, plural, signed
from longtail.tuning import TauResult

# Classes with fewer judged examples than this have wide intervals, and it is said.
_FEW = 5
# Characters of a line that the numbers of a class take, and what its name has at least.
_NUMBERS, _LEAST_NAME = 62, 18


def ends(change: Change) -> str:
    """The confidence interval of a difference, ``[−6.2, −5.0]``."""
    return f"[{signed(change.difference.low)}, {signed(change.difference.high)}]"


def summary(result: AdjustResult) -> list[str]:
    """What was read, which tau was taken and how it was judged, and what came out."""
    found = [_read(result), _tau(result)]
    if result.effective:
        found[1] += " The prior is what the model shows to have learnt, its mean prediction."
    if result.tally is None:
        found.append(f"Nothing could be measured: the examples have no labels. {_unsure(result)}")
        return found
    found.append(conclusion(result))
    if len(result.left_out):
        names = (result.predictions.label(int(k)) for k in result.left_out)
        found.append(
            f"Left out of all means, for lack of labelled examples: {_checks.listing(names)}."
        )
    judged = result.tally.counts
    few = int(np.sum((judged > 0) & (judged < _FEW)))
    if few:
        found.append(
            f"{plural(few, 'class was', 'classes were')} judged on fewer than {_FEW} "
            f"examples: trust the means more than single classes."
        )
    found += _too_narrow(result)
    found += _doubts(result.tuning)
    return found


def _unsure(result: AdjustResult) -> str:
    """What is known of a tau without labels."""
    if result.tau == 1:
        return "That tau = 1 is right holds for calibrated models; label some examples to be sure."
    return f"Label some examples to see whether tau = {result.tau:.4g} is right."


def _too_narrow(result: AdjustResult) -> list[str]:
    """That few examples decide, where tau's interval says nothing of it."""
    tuning = result.tuning
    if tuning is None or tuning.confidence is None or not tuning.few_decide:
        return []
    return [
        f"In effect {tuning.deciding_examples:.0f} of the examples decide about tau, those of rare "
        f"classes, so its interval is likely too narrow."
    ]


def _doubts(tuning: TauResult | None) -> list[str]:
    """What a tau at an end of its bounds, or anywhere within them, may mean."""
    if tuning is None:
        return []
    low, high = tuning.bounds
    if tuning.indifferent:
        return [f"Every tau within the bounds {low:g} and {high:g} is equally good."]
    if tuning.at_zero:
        return [
            "Any adjustment makes it worse: are the counts in the order of the score columns, and "
            "were the logits not adjusted already?"
        ]
    if tuning.at_bound:
        return [
            f"The best tau touches the bounds {low:g} and {high:g}: consider wider ones (--bounds)."
        ]
    return []


def _read(result: AdjustResult) -> str:
    source = result.predictions
    what = {"logits": "logits", "probs": "probabilities"}[source.kind]
    amount = result.num_judged + result.num_left_out
    if result.protocol == "split":
        amount += result.num_tuned
    if result.tally is None:
        rows = f"{source.num_rows:,} " if source.num_rows is not None else ""
        return f"{source.name}: {what} of {rows}examples without labels, {_classes(result)}."
    return f"{source.name}: {what} of {amount:,} labelled examples, {_classes(result)}."


def _classes(result: AdjustResult) -> str:
    return f"{result.prior.num_classes:,} classes"


def _tau(result: AdjustResult) -> str:
    tuning = result.tuning
    if tuning is None:
        text = f"tau = {result.tau:.4g}, as given"
        if result.tally is None:
            text = f"tau = {result.tau:.4g}"
        if result.protocol == "cross-fit":
            return f"{text}; judged by cross-fitting the prior."
        return text + "."
    text = f"tau = {result.tau:.4g}"
    if tuning.confidence is not None:
        low, high = tuning.confidence
        text += f" ({tuning.confidence_level:.0%} bootstrap interval {low:.3g} to {high:.3g})"
    if result.protocol == "split":
        return (
            f"{text}, chosen on {result.num_tuned:,} examples and judged on the "
            f"{result.num_judged:,} others."
        )
    low, high = result.fold_taus.min(), result.fold_taus.max()
    return (
        f"{text}, chosen on all of them; judged by cross-fitting, each of {len(result.fold_taus)} "
        f"folds with the tau of the others ({low:.3g} to {high:.3g})."
    )


def main_change(result: AdjustResult) -> tuple[str, Change]:
    """The error that was to be lowered, and its name."""
    expected = result.expected
    if expected is not None:
        return "error under the target frequencies", expected
    return "balanced error", result.balanced


def conclusion(result: AdjustResult) -> str:
    """Whether the adjustment helped, in one sentence."""
    name, change = main_change(result)
    before, after = percent(change.before.value), percent(change.after.value)
    difference = change.difference
    if not change.beyond_noise:
        return (
            f"The {name} goes from {before}% to {after}%, a difference within chance "
            f"({result.level:.0%} interval {ends(change)} points): these examples show no benefit."
        )
    low, high = sorted((abs(difference.low), abs(difference.high)))
    way = "falls" if difference.value < 0 else "rises"
    text = (
        f"The {name} {way} from {before}% to {after}%, by {percent(abs(difference.value))} points "
        f"({result.level:.0%} interval {percent(low)} to {percent(high)})"
    )
    if difference.value > 0:
        return f"{text}: leave these predictions as they are."
    return f"{text}: more than chance."


def tables(result: AdjustResult, *, width: int | None = None) -> list[Table]:
    """Errors before and after: overall and by group, and of the most changed classes.

    Args:
        result: what came out.
        width: characters that a line has room for; names of classes give way. None: any number.
    """
    if result.tally is None:
        return []
    found = [errors(result)]
    changed = most_changed(result, width=width)
    return [*found, changed] if changed.rows else found


def errors(result: AdjustResult) -> Table:
    """The balanced error, the groups, and the plain error."""
    rows = [("balanced", *_cells(result.balanced))]
    bounds = {
        "many": f"over {result.many:g}",
        "medium": f"{result.few:g} to {result.many:g}",
        "few": f"under {result.few:g}",
    }
    for name, change in result.groups.items():
        rows.append((f"  {name} ({bounds[name]})", *_cells(change)))
    expected = result.expected
    if expected is not None:
        rows.append(("under the target", *_cells(expected)))
    rows.append(("as they come", *_cells(result.overall)))
    return Table(
        "Error in percent",
        ("", "classes", "judged on", "before", "after", "change", f"{result.level:.0%} interval"),
        rows,
        note=(
            "balanced: the mean of the classes' errors"
            + ("; many, medium, few: by training examples" if result.groups else "")
            + "; as they come: the share of all wrong examples."
        ),
    )


def most_changed(result: AdjustResult, number: int = 5, *, width: int | None = None) -> Table:
    """The classes whose errors fell and rose most; their names whole, or cut to fit `width`."""
    better, worse = result.most_changed(number)
    counts, classes = result.prior.counts, [*better, *reversed(worse)]
    names = [result.predictions.label(k) for k in classes]
    if width is not None:
        names = shortened(names, max(_LEAST_NAME, width - _NUMBERS))
    rows = []
    for name, k in zip(names, classes, strict=True):
        trained = "" if counts is None else f"{counts[k]:g}"
        rows.append((name, trained, *_cells(result.of_class(k))[1:]))
    return Table(
        "Most changed classes",
        (
            "class",
            "trained on",
            "judged on",
            "before",
            "after",
            "change",
            f"{result.level:.0%} interval",
        ),
        rows,
    )


def _cells(change: Change) -> tuple[str, ...]:
    return (
        f"{change.num_classes:,}",
        f"{change.num_examples:,}",
        percent(change.before.value),
        percent(change.after.value),
        signed(change.difference.value),
        ends(change),
    )


def written(result: AdjustResult, files: Written) -> str:
    """What was written where."""
    share = files.changed / max(1, files.rows)
    names = " and ".join(path.as_posix() for path in files.paths)
    text = (
        f"Written to {names}: adjusted {result.predictions.kind} and predicted labels, "
        f"{files.changed:,} of {files.rows:,} of them changed ({share:.1%})."
    )
    if result.predictions.left_out:
        text += f" Not copied: {_checks.listing(result.predictions.left_out)}."
    return text
