"""Whether held-out labels are mixed like the training data, which the calibration criteria need.

softmax(f/τ) can fit only labels that are drawn with the prior which the model has learnt; on
other ones, balanced ones above all, its best temperature makes up for the difference and is no
tau. The criteria themselves are in `_calibration`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from longtail._checks import FloatArray, InputError, IntArray
from longtail.priors import ClassPrior

# A refusal can't be overruled, so chance may cause one in a million draws, no more.
_CHANCE = 1e-6
# Of many examples every small drift is beyond chance. From here on tau is off by 0.4 and more
# where the drift is towards balanced data; nearer than this, held-out data count as alike.
_FAR = 0.1
# Examples that a group of classes should hold, below which the test's law is a poor one, and
# how many groups there are at most, each of which adds to its error.
_LEAST, _GROUPS = 5.0, 100


class OtherMix(NamedTuple):
    """How held-out labels differ from the prior.

    Attributes:
        label: the class whose share differs most.
        share: of it in the held-out labels, by weight.
        expected: its share in the prior.
    """

    label: int
    share: float
    expected: float


def other_mix(
    target: IntArray, prior: ClassPrior, *, weight: FloatArray | None = None
) -> OtherMix | None:
    """How the labels differ from the prior, or None where they may well be drawn with it.

    They differ if a likelihood-ratio test says so beyond chance and the total variation between
    the mixes is a tenth or more. Of a smoothed prior, or one that a model has learnt, the counts
    behind it are as good a mix.

    Args:
        target: labels, shape (examples,).
        prior: π, of the data that the model was trained on.
        weight: of each example; None for all alike.

    Returns:
        The most different class, or None.

    Examples:
        >>> prior = ClassPrior.from_counts([900, 90, 10])
        >>> other_mix(np.repeat([0, 1, 2], [88, 10, 2]), prior)
        >>> other_mix(np.repeat([0, 1, 2], 50), prior)
        OtherMix(label=0, share=0.33..., expected=0.9)
    """
    shares = np.bincount(target, weights=weight, minlength=prior.num_classes).astype(np.float64)
    total = float(shares.sum())
    shares /= total
    # As many equally weighted examples would say as much (Kish).
    size = total if weight is None else total**2 / float(weight @ weight)
    mixes = [prior.probs] if prior.counts is None else [prior.probs, prior.counts]
    if not all(_differ(shares, size, mix / mix.sum()) for mix in mixes):
        return None
    label = int(np.argmax(np.abs(shares - prior.probs)))
    return OtherMix(label, float(shares[label]), float(prior.probs[label]))


def _differ(shares: FloatArray, size: float, mix: FloatArray) -> bool:
    """The G-test over groups of classes of like frequency, and the total variation."""
    from scipy import special  # most uses of this package never come here

    group = _groups(mix, max(_LEAST / size, 1.0 / _GROUPS))
    found, wanted = (np.bincount(group, weights=part) for part in (shares, mix))
    if len(wanted) < 2 or np.abs(found - wanted).sum() / 2 < _FAR:
        return False
    there = found > 0
    statistic = 2.0 * size * np.sum(found[there] * np.log(found[there] / wanted[there]))
    return bool(special.chdtrc(len(wanted) - 1, statistic) < _CHANCE)


def _groups(mix: FloatArray, least: float) -> IntArray:
    """The group of each class: neighbours in frequency, together `least` of the mix or more.

    Examples:
        >>> _groups(np.array([0.6, 0.01, 0.3, 0.02, 0.07]), 0.05)
        array([2, 0, 1, 0, 0])
    """
    order = np.argsort(mix, kind="stable")
    sums = np.cumsum(mix[order])
    cuts: list[int] = []
    while True:
        before = float(sums[cuts[-1] - 1]) if cuts else 0.0
        stop = int(np.searchsorted(sums, before + least)) + 1
        if stop >= len(mix) or sums[-1] - sums[stop - 1] < least:
            break  # what is left is too small for a group of its own
        cuts.append(stop)
    group: IntArray = np.empty(len(mix), dtype=np.int64)
    group[order] = np.searchsorted(cuts, np.arange(len(mix)), side="right")
    return group


def refuse_other_mix(
    target: IntArray,
    prior: ClassPrior,
    weight: FloatArray | None,
    *,
    criterion: str,
    caller: str,
) -> None:
    """Refuse labels that are clearly not drawn with the prior."""
    found = other_mix(target, prior, weight=weight)
    if found is not None:
        raise InputError(
            f"{caller}: criterion={criterion!r} needs held-out data mixed like the training data, "
            f"but class {found.label} is {found.share:.3g} of `target` and {found.expected:.3g} "
            f"of `prior`; use criterion='balanced_error', which suits any mix, or data mixed like "
            f"the training data (`sample_weight` can restore the mix)."
        )
