"""The section "What was chosen on what" of the page "How far can it go"."""

from __future__ import annotations

from collections.abc import Sequence

from longtail.data.subsets import DEVELOPMENT_IMAGES
from longtail.experiments import selection
from longtail.experiments.exp_runs import CIFARS
from longtail.experiments.selection import Selection
from longtail.experiments.strong import Study
from longtail.experiments.strong_part import DISTILLED, Part
from longtail.experiments.strong_runs import Setting
from longtail.report import strong_selection
from longtail.report.strong_cells import count_text, further_name
from longtail.report.tables import percent, spread, title_of


def _chosen(selections: Sequence[Selection]) -> str:
    """What was chosen on the development set beside the tau."""
    if not selections:
        return "and nothing else so far"
    words = []
    for found in selections:
        name = title_of(found.dataset)
        if selection.recipe_candidate(found.dataset) == found.best:
            words.append(f"on {name} the recipe has the values of the least error")
        else:
            words.append(f"on {name} the recipe still has other values than the least error's")
    return (
        "and how students are trained, by short runs that the tables below list: "
        f"{'; '.join(words)}"
    )


def _not_chosen(selections: Sequence[Selection]) -> str:
    """Which values were chosen on the test set."""
    best = {one.dataset: one.best for one in selections}
    others = [
        title_of(dataset)
        for dataset in CIFARS
        if dataset not in best or selection.recipe_candidate(dataset) != best[dataset]
    ]
    students = f", and of the students on {' and '.join(others)}" if others else ""
    longer = [title_of(d) for d in CIFARS if not Setting(d).epochs_are_the_trials]
    epochs = f" (but for its epochs on {' and '.join(longer)})" if longer else ""
    return f"the values of `strong`{epochs}{students}"


def _preferred(study: Study) -> str:
    """Which of the teachers, each a way to train a single network, the development set prefers."""
    words = []
    for dataset in CIFARS:
        part = study.part(dataset)
        if part is None or part.trial_strong is None or not part.teachers:
            continue
        best = min(part.teachers, key=lambda line: float(line.dev_errors.mean()))
        own = {one.name for one in part.trial_strong.records}
        named = f"{best.name} on {title_of(dataset)}"
        if best.records[0].name in own:
            words.append(f"{named}, which is `strong` itself{_in_as_many(part)}")
        else:
            errors = [
                percent(float(line.dev_errors.mean()), digits=2)
                for line in (best, part.trial_strong)
            ]
            of = count_text(len(part.trial_strong.records))
            words.append(
                f"{named} with {errors[0]}% (one run), where `strong` has {errors[1]}% "
                f"({of}){_in_as_many(part)}"
            )
    if not words:
        return ""
    return f" Of the teachers it prefers: {'; '.join(words)}."


def _in_as_many(part: Part) -> str:
    """Which `strong` is meant, where its recipe has other epochs than the teachers."""
    return "" if part.earlier_strong is None else " in as many epochs"


def _not_tried(study: Study) -> str:
    """Which teachers were no part of the first trial."""
    if not any(part.further_teachers for part in study.parts):
        return ""
    return (
        " The wide teachers were not in the trial: they have the narrow ones' values, and their "
        "epochs were set before any of them was trained."
    )


def _strict(study: Study) -> str:
    """Who owes nothing to the development set, or to runs before it, and what that reaches."""
    words, singles = [], []
    for dataset in CIFARS:
        part = study.part(dataset)
        if part is not None and part.first_students is not None:
            error = percent(float(part.first_students.errors.mean()), digits=2)
            words.append(f"{error}% on {title_of(dataset)}")
        if part is not None and part.earlier_strong is not None:
            error = percent(float(part.earlier_strong.errors.mean()), digits=2)
            singles.append(f"{error}% on {title_of(dataset)}")
    only = "only students with the first trial's settings owe it nothing"
    text = f"{only} ({', '.join(words)})" if words else f"{only}, and there are none yet"
    if singles:
        text += (
            "; and of `strong` only the first trial's epochs were set before any of these runs "
            f"({', '.join(singles)})"
        )
    return f"{text}."


def _epochs_compared(study: Study) -> str:
    """What the development set says of the students' epochs, where both numbers were trained."""
    words = []
    for dataset in CIFARS:
        part = study.part(dataset)
        if part is not None and part.shorter is not None and part.distilled is not None:
            errors = [
                f"{spread(line.dev_errors_again)} after {line.epochs}"
                for line in (part.shorter, part.distilled)
            ]
            words.append(f"{' and '.join(errors)} epochs on {title_of(dataset)}")
    if not words:
        return ""
    return (
        "after that students were trained for twice the epochs, too, and the recipe has those; "
        "both numbers of epochs had been judged on the test set by then. With τ again the error on "
        "the development set, in percent and with the deviation over the runs, is "
        f"{'; '.join(words)}."
    )


def _longer_strong(study: Study) -> str:
    """Why the recipe `strong` has more epochs than the first trial, and what they did."""
    words = []
    for dataset in CIFARS:
        part = study.part(dataset)
        if part is not None and part.earlier_strong is not None and part.strong is not None:
            errors = [f"{spread(line.dev_errors)} after {line.epochs}" for line in part.singles]
            words.append(f"{' and '.join(errors)} epochs on {title_of(dataset)}")
    if not words:
        return ""
    return (
        "`strong` was trained for more epochs than the first trial had: with one other number of "
        "them, and where it had missed its goal on the test set; the recipe has those. "
        "Without τ again its error on the development set is "
        f"{'; '.join(words)}."
    )


def _further_students(study: Study) -> str:
    """What the development set says of students beyond the recipe's, which came last."""
    words = []
    for dataset in CIFARS:
        part = study.part(dataset)
        if part is not None and part.distilled is not None:
            before = spread(part.distilled.dev_errors_again)
            words += [
                f"{further_name(line)}, {spread(line.dev_errors_again)} instead of {before} on "
                f"{title_of(dataset)}"
                for line in part.further
            ]
    if not words:
        return ""
    return (
        f" (of `{DISTILLED}`) were begun when all that had been judged on the test set. Their "
        "error on the development set with τ again: "
        f"{'; '.join(words)}."
    )


def _sizes(study: Study) -> str:
    """How many images that makes, by data set and ratio."""
    words = []
    for dataset in CIFARS:
        parts = [part for part in study.parts if part.setting.dataset == dataset]
        if parts:
            totals = [
                f"{sum(part.records[0].document['splits']['dev']['examples']):,} at ratio "
                f"{part.setting.ratio:g}"
                for part in parts
            ]
            words.append(f"{title_of(dataset)}: {', '.join(totals)}")
    return f" ({'; '.join(words)})" if words else ""


def blocks(study: Study) -> list[str]:
    """The section as paragraphs of Markdown, with a table for each selection.

    Args:
        study: of any settings; ratio 100 is what was chosen on.
    """
    epochs = " ".join(filter(None, (_epochs_compared(study), _longer_strong(study))))
    points = {
        "The test set": " is opened once for each run, after its last epoch. There is no early "
        "stopping and no best epoch.",
        "The development set": " is made of training images that the long-tailed subset leaves "
        f"out: {DEVELOPMENT_IMAGES:,} are shared out equally among the classes, and as many of "
        "each are taken as it leaves out, the same ones for every imbalance ratio"
        f"{_sizes(study)}. None of them is one of the training or the test set; `longtail` refuses "
        "to train on them, and refuses teachers that saw any other data.",
        "Chosen on it": f": the τ of the column *τ again*, {_chosen(study.selections)}.",
        "Epochs": f": {epochs}" if epochs else "",
        "Attempts beyond the recipes": _further_students(study),
        "Its largest class is missing": ": the exponential profile keeps that class whole, so "
        "the subset leaves none of its images out, and of others nearly as large it may leave "
        "fewer than asked. In the development error the nearest class in size stands in for it and "
        "counts twice. Holding out head images instead would have meant training on another subset "
        "than everybody else.",
        "The stricter line": " is the column *error*: last epoch, and no τ from the development "
        "set; that of the loss is fixed in advance, 1 for `strong` and none for students. How "
        "these are trained was compared on the development set all the same, as above; "
        f"{_strict(study)}",
        "What this does not undo": f": {_not_undone(study)}",
    }
    text = "\n".join(f"- **{name}**{words}" for name, words in points.items() if words)
    tables = [strong_selection.selection_table(one).markdown() for one in study.selections]
    return ["## What was chosen on what", text, *tables]


def _not_undone(study: Study) -> str:
    """What was chosen on the test set all the same."""
    return (
        f"{_not_chosen(study.selections)}, also where they differ between "
        "the data sets, are those that did best in a first trial of one seed each, which was "
        "judged on the test set, as is usual here; so were the papers from which the ingredients "
        "are. The teachers are the different ways of that trial, good and less good, for the sake "
        "of their difference. Whatever all candidates for the students share (such as their "
        "augmentation and their teachers) is from there, too, and the tables of results show every "
        "way in which students were trained in full, with its error on the test set. The "
        "development set need not have chosen the same as the trial; the tables of the teachers "
        f"show its error beside that on the test set.{_preferred(study)}{_not_tried(study)}"
    )
