"""How students came to be trained as they are: the tables of what the development set said.

The outcomes are those of `longtail.experiments.selection`.
"""

from __future__ import annotations

from collections.abc import Sequence

from longtail.experiments import selection
from longtail.experiments.selection import Selection
from longtail.report.tables import Table, percent, signed, title_of


def base_values() -> str:
    """What the candidates' names leave unsaid, in words."""
    first = selection.FIRST
    return (
        f"weight decay {first['weight_decay']:g}, Cutout of {first['cutout']} pixels, CutMix on "
        f"{first['cutmix']:.0%} with a {first['mix_partner']} partner, teachers' share "
        f"{first['distill_weight']:g}, temperature {first['distill_temperature']:g}, KL of logits "
        "as they are"
    )


def selection_table(found: Selection) -> Table:
    """What every candidate for the students reached on the development set.

    Args:
        found: the outcomes.
    """
    marks, recipe = {found.best: "least"}, selection.recipe_candidate(found.dataset)
    if recipe is not None:
        marks[recipe] = "least, the recipe" if recipe == found.best else "the recipe"
    rows = [
        (
            f"{name} ({marks[name]})" if name in marks else name,
            percent(one.error, digits=2),
            percent(one.error_again, digits=2),
            f"{one.tau:.2f}",
        )
        for name, one in found.outcomes.items()
    ]
    return Table(
        f"Ways to train a student, judged on the development set, {title_of(found.dataset)}",
        ("student", "error", "τ again", "τ"),
        rows,
        note=(
            f"Balanced error in percent on the development set, one run of {found.epochs} epochs "
            f"each on {found.device}, all of the same teachers; none was judged on the test set. "
            "The first row is what had done best in a first trial, which was judged on the test "
            f"set. Names say what is other than {base_values()}. Where classes are "
            "drawn equally often, the loss of the labels is the plain softmax's, and CutMix's "
            "partners are drawn from all training images alike, most of them of frequent classes. "
            "Teachers' share: the weight of their term. A few tenths may "
            f"be chance. {found.source}".rstrip()
        ),
    )


def changes_table(selections: Sequence[Selection]) -> Table | None:
    """What each single change of a student's training did; None without any such pair.

    Args:
        selections: of some data sets.
    """
    found = [selection.effects(one) for one in selections]
    names = [name for name in selection.CHANGES if any(name in one for one in found)]
    if not names:
        return None
    rows = [
        (name, *(_effect(one[name]) if name in one else "–" for one in found)) for name in names
    ]
    return Table(
        "Single changes of a student's training, judged on the development set",
        ("change", *(title_of(one.dataset) for one in selections)),
        rows,
        note=(
            "Points of the balanced error (τ again) on the development set, mean over the pairs of "
            "candidates in the tables above that differ in nothing else; in brackets, how many "
            "pairs. Of one run each: a few tenths may be chance. – : no such pair."
        ),
    )


def _effect(changes: Sequence[float]) -> str:
    return f"{signed(sum(changes) / len(changes), digits=2)} ({len(changes)})"
