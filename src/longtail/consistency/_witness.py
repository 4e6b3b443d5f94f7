"""Class probabilities that refute a rule: how they are made, rounded and certified.

A witness is never taken on trust: `certify` minimises the conditional risk at the witness's own
η, checks that the gradient vanishes, and compares the winner with the class that should win.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from longtail._checks import FloatArray, InputError
from longtail.consistency import risk
from longtail.margins import Margin
from longtail.priors import ClassPrior

# What a post-hoc rule makes of the scores.
Rule = Callable[[FloatArray], FloatArray]

# Differences below this can't be told from rounding, and prove nothing.
_RESOLUTION = 1e-12
# Above this many classes nobody reads the numbers, so rounding them is not worth the search.
_READABLE = 20
# Above this many, only the two classes in question are written out.
_SHOWN = 8


@dataclass(frozen=True, eq=False)
class Witness:
    """A point at which minimising the risk does not minimise the balanced error.

    Attributes:
        eta: η, the class probabilities there, shape (num_classes,).
        ratio: η_y / π_y, largest for the class that should win.
        trained_scores: f*, what minimises the risk at η, with Σ_y f*_y = 0.
        scores: what the argmax is taken of: f*, or what a post-hoc rule makes of it.
        wins: the class with the highest score.
        should_win: the class with the highest η_y / π_y.
        note: why no setting of the rule can help, or empty.
    """

    eta: FloatArray
    ratio: FloatArray
    trained_scores: FloatArray
    scores: FloatArray
    wins: int
    should_win: int
    note: str = ""

    def __str__(self) -> str:
        w, r = self.wins, self.should_win
        if len(self.eta) <= _SHOWN:
            eta, ratio, scores = (
                f"({', '.join(f'{value:.4g}' for value in values)})"
                for values in (self.eta, self.ratio, self.scores)
            )
            text = (
                f"at η = {eta} class {r} should win, with η/π = {ratio}, but the scores {scores} "
                f"make class {w} win"
            )
        else:
            text = (
                f"where η_{r} = {self.eta[r]:.4g} and η_{w} = {self.eta[w]:.4g} class {r} should "
                f"win, with η/π = {self.ratio[r]:.4g} against {self.ratio[w]:.4g}, but its score "
                f"is {self.scores[r]:.4g} and that of class {w}, which wins, is "
                f"{self.scores[w]:.4g}"
            )
        return f"{text} ({self.note})" if self.note else text

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = asdict(self)
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in values.items()}

    def strength(self) -> float:
        """Return the lesser of the winner's lead in score and the right class's in log η/π."""
        lead = self.scores[self.wins] - self.scores[self.should_win]
        return float(min(lead, np.log(self.ratio[self.should_win] / self.ratio[self.wins])))


def log_ratio(margin: Margin, prior: ClassPrior, scores: FloatArray) -> FloatArray:
    """Return log η_y/π_y of the η at which these scores minimise the risk."""
    return np.asarray(risk.log_inverse_link(margin, scores) - prior.log_probs)


def certify(
    margin: Margin,
    prior: ClassPrior,
    eta: FloatArray,
    *,
    rule: Rule | None = None,
    scores: FloatArray | None = None,
    note: str = "",
) -> Witness | None:
    """Return the Witness that η is, or None if it proves nothing.

    Args:
        margin: the loss.
        prior: π.
        eta: the candidate.
        rule: what is done to the scores before the argmax.
        scores: the minimiser where it is known; found here otherwise.
        note: kept with the witness.
    """
    if eta.min() < np.finfo(np.float64).tiny:
        return None
    try:
        f = risk.link(margin, eta) if scores is None else scores - scores.mean()
    except InputError:
        return None  # too extreme for double precision: no proof
    slope = risk.gradient(margin, eta, f) / (margin.scale * eta * margin.alpha)
    final = f if rule is None else rule(f)
    ratio = np.log(eta) - prior.log_probs
    wins, should_win = int(np.argmax(final)), int(np.argmax(ratio))
    lead = final[wins] - final[should_win]
    if (
        np.abs(slope).max() > 1e-8
        or lead <= _RESOLUTION * (1.0 + np.abs(final).max())
        or ratio[should_win] - ratio[wins] <= _RESOLUTION
    ):
        return None
    return Witness(eta, np.exp(ratio), f, final, wins, should_win, note)


def round_off(
    margin: Margin,
    prior: ClassPrior,
    eta: FloatArray,
    *,
    rule: Rule | None = None,
    note: str = "",
) -> Witness | None:
    """Return the witness η with as few decimals as keep half of its lead; as it is for many."""
    exact = certify(margin, prior, eta, rule=rule, note=note)
    if exact is None or len(eta) > _READABLE:
        return exact
    for decimals in range(2, 13):
        rounded = np.round(eta, decimals)
        top = int(np.argmax(rounded))
        rounded[top] = np.round(1.0 - np.delete(rounded, top).sum(), decimals)
        if rounded.min() <= 0:
            continue
        witness = certify(margin, prior, rounded, rule=rule, note=note)
        if witness is not None and witness.strength() >= 0.5 * exact.strength():
            return witness
    return exact


def present(
    margin: Margin, prior: ClassPrior, scores: FloatArray, *, rule: Rule | None = None
) -> Witness | None:
    """Return a certified witness near the η of these scores, rounded if that still proves it."""
    eta = risk.inverse_link(margin, scores)
    return round_off(margin, prior, eta, rule=rule) or certify(
        margin, prior, eta, rule=rule, scores=scores
    )


def raise_lowest(
    margin: Margin,
    prior: ClassPrior,
    *,
    lead: Callable[[FloatArray, int], float],
    rule: Rule | None = None,
    note: str = "",
) -> Witness | None:
    """Return a witness near η = π, where equal η/π should mean equal scores, but one is lowest.

    Raising that class's probability alone makes it the right answer, while by continuity its
    score stays too low. It is raised until it leads in log η/π by as much as it lacks in score,
    which `lead` says of the scores and the class.
    """
    try:
        at_prior = risk.link(margin, prior.probs)
        k = int(np.argmin(at_prior))
        low, high, eta = 0.0, margin.scale * lead(at_prior, k), prior.probs
        for _ in range(8):
            rise = 0.5 * (low + high)
            raised = prior.probs.copy()
            raised[k] *= np.exp(rise)
            raised /= raised.sum()
            if margin.scale * lead(risk.link(margin, raised), k) >= rise:
                low, eta = rise, raised
            else:
                high = rise
    except InputError:
        return None  # too extreme for double precision: no proof
    return round_off(margin, prior, eta, rule=rule, note=note)


def break_tie(
    margin: Margin, prior: ClassPrior, tied: FloatArray, *, favored: int, slighted: int
) -> Witness | None:
    """Return a witness near scores at which two classes lead together but differ in η/π.

    η is a continuous function of the scores. So if `slighted` has the larger η/π of the two,
    `favored` can be given the lead by a little, and is then wrong. How little is chosen to make
    the lesser of the two leads, in score and in log η/π, as large as it gets.
    """
    gap = log_ratio(margin, prior, tied)
    best, best_scores = 0.0, None
    for step in float(gap[slighted] - gap[favored]) * 1.5 ** np.arange(8, -14, -1):
        scores = tied.copy()
        scores[favored] += 0.5 * step / margin.scale
        scores[slighted] -= 0.5 * step / margin.scale
        try:
            ratio = log_ratio(margin, prior, scores)
        except InputError:
            continue
        lead = margin.scale * (scores[favored] - np.delete(scores, favored).max())
        strength = min(lead, ratio.max() - ratio[favored])
        if strength > best:
            best, best_scores = float(strength), scores
    return None if best_scores is None else present(margin, prior, best_scores)
