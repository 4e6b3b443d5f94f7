"""What each step on the way from `strong` to the best students changed, as one table."""

from __future__ import annotations

from collections.abc import Iterator

from longtail._checks import FloatArray
from longtail.experiments.exp_runs import CIFARS
from longtail.experiments.strong import Study
from longtail.experiments.strong_part import DISTILLED, Line, Part
from longtail.report.strong_cells import further_name
from longtail.report.tables import Table, signed, title_of

_NONE = ("–", "–")


def gain(after: FloatArray, before: FloatArray) -> str:
    """The change of a mean error, in points."""
    return signed(float(after.mean() - before.mean()), digits=2)


def gains_table(study: Study) -> Table | None:
    """A row for each step and two columns for each data set; None while nothing is trained.

    Args:
        study: of any settings; ratio 100 is shown.
    """
    parts = {dataset: part for dataset in CIFARS if (part := study.part(dataset)) is not None}
    found = {dataset: dict(_rows(part)) for dataset, part in parts.items()}
    names = dict.fromkeys(name for rows in found.values() for name in rows)
    if not names:
        return None
    rows = [
        (name, *(cell for d in CIFARS for cell in found.get(d, {}).get(name, _NONE)))
        for name in names
    ]
    return Table(
        "Changes of the mean test error in points, imbalance ratio 100",
        ("step", *(head for dataset in CIFARS for head in (title_of(dataset), "τ again"))),
        rows,
        note=_note(parts, with_dash=any("–" in row for row in rows)),
    )


def _rows(part: Part) -> Iterator[tuple[str, tuple[str, str]]]:
    """The steps of a data set, in the order in which they were tried."""
    for name, after, before in (*_steps(part), *_further_steps(part)):
        if after is not None and before is not None:
            yield name, (gain(after.errors, before.errors), gain(after.again, before.again))


def _steps(part: Part) -> Iterator[tuple[str, Line | None, Line | None]]:
    """Those of the recipes, each with what it led to and what it started from."""
    strong, students, first = part.strong, part.distilled, part.first_students
    if strong is not None and part.earlier_strong is not None:
        epochs = f"{strong.epochs} instead of {part.earlier_strong.epochs} epochs for `strong`"
        yield epochs, strong, part.earlier_strong
    yield (
        "teachers (and CutMix instead of SAM), in the first trial's epochs",
        first,
        part.trial_strong,
    )
    yield "what the development set chose for students", part.shorter, first
    yield "twice the epochs for students", students, part.shorter
    yield f"in all, from `strong` to `{DISTILLED}`", students, strong
    yield "the teachers' own mean instead of a student", part.ensemble, students


def _further_steps(part: Part) -> Iterator[tuple[str, Line | None, Line | None]]:
    """Those beyond the recipes: what other teachers mean for students, and by themselves."""
    for line in part.further:
        name = further_name(line)
        yield f"{name}, for students", line, part.distilled
        yield f"{name}, for the teachers' own mean", part.means.get(name), part.ensemble


def _note(parts: dict[str, Part], *, with_dash: bool) -> str:
    text = (
        "Differences between rows of the tables of results; τ again: the same differences once τ "
        "is chosen again on the development set."
    )
    for dataset, part in parts.items():
        if part.strong and part.earlier_strong and part.distilled:
            text += (
                f" On {title_of(dataset)} `strong` trains for {part.strong.epochs} epochs, the "
                f"teachers of `{DISTILLED}` for {part.teachers[0].epochs}."
            )
    if any(part.means for part in parts.values()):
        text += (
            " Where the teachers' own mean gains more than students, these are at the limit of so "
            "small a network, or of how it is trained."
        )
    return text + (" – : there is no such step." if with_dash else "")
