"""Margin and ClassPrior in, Verdict out: the exact condition for consistency, and its proof.

Write δ_y = α_y π_y. A pairwise-margin loss of two or more classes is consistent for the balanced
error exactly if there is a number κ > −min δ with

    e^{s Δ_{yy'}} = δ_{y'} / (δ_y + κ)   for all y ≠ y'.

Why it is sufficient. Then, with x_y = e^{s f_y} scaled to Σ δ_y x_y = 1, the equation in `risk`
reads η_y/π_y ∝ x_y (1 + κ x_y), and x_i > x_j implies a larger value for i, because
1 + κ (x_i + x_j) > 1 − δ_i x_i − δ_j x_j ≥ 0 if κ < 0.

Why it is necessary. If i and j share the highest score, they must share the highest η/π: else
an arbitrarily small change of score makes the wrong one win. For two classes this is one
equation, Lemma 2, which determines Δ_{21} from Δ_{12} as the condition does. Otherwise let i
and j lead at x = 1, a third class k have x_k = ε, and let all others tend to 0. Equality of
η_i/π_i and η_j/π_j is then a quadratic equation in ε that must hold for all ε in (0, 1]. Its
leading coefficient gives e^{s Δ_{ki}}/δ_i = e^{s Δ_{kj}}/δ_j, hence e^{s Δ_{ki}} = δ_i/c_k
with some c_k; its constant one then gives c_i − δ_i = c_j − δ_j, which is κ.

Post-hoc rules are judged in `consistency`, by reducing them to this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from longtail._checks import FloatArray
from longtail.consistency import risk
from longtail.consistency._witness import Witness, break_tie, raise_lowest
from longtail.consistency.binary import BinaryLoss
from longtail.margins import Margin
from longtail.priors import ClassPrior

# Above it, a witness is built from scores to η, which takes one pass; from η to scores takes many.
_MANY_CLASSES = 10_000


@dataclass(frozen=True, eq=False)
class Verdict:
    """What `check_consistency` found.

    Attributes:
        subject: name of the loss or rule.
        consistent: True, proved; False, refuted by the witness; None, neither.
        reason: the closed-form condition with its numbers, in one sentence.
        witness: class probabilities at which the wrong class wins; None unless refuted.
    """

    subject: str
    consistent: bool | None
    reason: str
    witness: Witness | None = None

    def __str__(self) -> str:
        word = {True: "consistent", False: "not consistent", None: "undecided"}[self.consistent]
        text = f"{self.subject}: {word}. {self.reason}"
        return text if self.witness is None else f"{text} Witness: {self.witness}."

    def __bool__(self) -> NoReturn:
        # `if check_consistency(...)` would take every verdict for a yes.
        raise TypeError("a Verdict is neither true nor false; ask for verdict.consistent")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "subject": self.subject,
            "consistent": self.consistent,
            "reason": self.reason,
            "witness": None if self.witness is None else self.witness.to_dict(),
        }


def judge_margin(margin: Margin, prior: ClassPrior, tolerance: float) -> Verdict:
    judge = _judge_two_classes if prior.num_classes == 2 else _judge_many_classes
    return judge(margin, prior, tolerance)


def _judge_two_classes(margin: Margin, prior: ClassPrior, tolerance: float) -> Verdict:
    """Lemma 2, on Δ itself: a and b are not unique for two classes."""
    rare = int(prior.probs[1] <= prior.probs[0])
    common = 1 - rare
    loss = BinaryLoss.from_margin(margin, positive=rare)
    left, right = loss.lemma(prior.probs[rare])
    s = "" if margin.scale == 1.0 else f"{margin.scale:g}·"
    # The left side of the lemma in this package's symbols.
    above, below = f"α_{rare}·σ({s}Δ_{rare}{common})", f"α_{common}·σ({s}Δ_{common}{rare})"
    ratio = f"{above} / ({below})"
    if abs(np.log(left) - np.log(right)) <= tolerance:
        return Verdict(
            margin.name,
            True,
            f"Lemma 2 holds: {ratio} = {left:.6g} = π_{common}/π_{rare}, so class {rare} wins "
            f"exactly where η_{rare} > π_{rare} = {prior.probs[rare]:.6g}.",
        )
    reason = (
        f"Lemma 2 fails: {ratio} is {left:.6g} but must be π_{common}/π_{rare} = {right:.6g}, so "
        f"class {rare} wins where η_{rare} > {loss.threshold:.6g} instead of where "
        f"η_{rare} > π_{rare} = {prior.probs[rare]:.6g}."
    )
    return refuted(margin.name, reason, _witness_near_prior(margin, prior))


def _judge_many_classes(margin: Margin, prior: ClassPrior, tolerance: float) -> Verdict:
    """The exact condition of this module's first lines, for three classes and more."""
    log_delta = np.log(margin.alpha) + prior.log_probs
    log_delta -= np.logaddexp.reduce(log_delta)
    kappa = _kappa(margin, log_delta, tolerance)
    if kappa is not None:
        return Verdict(margin.name, True, _why_consistent(margin, log_delta, kappa, tolerance))
    at_tie = log_ratio_at_tie(margin, prior)
    favored, slighted = int(np.argmin(at_tie)), int(np.argmax(at_tie))
    if at_tie[slighted] - at_tie[favored] > tolerance:
        reason = _why_not(margin, prior, log_delta, favored, slighted, tolerance)
        return refuted(margin.name, reason, _witness_near_prior(margin, prior))
    # Beside leaders of small δ a frequent class counts, unless it is as far below as the last.
    rests = (2.0, 6.0, 12.0, 12.0 + float(np.ptp(log_delta)))
    triples = _suspects(margin, log_delta)
    ties = [_worst_tie(margin, prior, triples, rest=rest) for rest in rests]
    for tie in sorted(ties, key=lambda tie: -tie[3]):
        tied, favored, slighted, width = tie
        witness = break_tie(margin, prior, tied, favored=favored, slighted=slighted)
        if witness is not None:
            break
    reason = (
        f"No κ makes e^(sΔ_yy') = α_y'π_y' / (α_yπ_y + κ) for every pair: the gradient vanishes at "
        f"η = π, but where only classes {favored} and {slighted} lead, with equal scores, class "
        f"{slighted} has the larger η/π, by a factor of {np.exp(width):.6g}."
    )
    return refuted(margin.name, reason, witness)


def refuted(subject: str, reason: str, witness: Witness | None) -> Verdict:
    """Not consistent if a witness shows it; without one nothing is claimed."""
    if witness is not None:
        return Verdict(subject, False, reason, witness)
    return Verdict(
        subject, None, f"{reason[:-1]}, by too little for a witness in double precision."
    )


def _witness_near_prior(margin: Margin, prior: ClassPrior) -> Witness | None:
    """A witness against a loss whose gradient at f = 0 does not vanish at η = π."""
    witness = None
    if prior.num_classes <= _MANY_CLASSES:
        witness = raise_lowest(margin, prior, lead=lambda f, k: float(f.max() - f[k]))
    if witness is not None:
        return witness
    at_tie = log_ratio_at_tie(margin, prior)
    favored, slighted = int(np.argmin(at_tie)), int(np.argmax(at_tie))
    tied = np.zeros(prior.num_classes)
    return break_tie(margin, prior, tied, favored=favored, slighted=slighted)


def log_ratio_at_tie(margin: Margin, prior: ClassPrior) -> FloatArray:
    """log η_y/π_y of the η at which equal scores are best; constant iff that η is π.

    So it is constant exactly if the gradient of Σ_y π_y ℓ(y, f) vanishes at f = 0.
    """
    equal = np.zeros(prior.num_classes)
    return np.asarray(risk.log_inverse_link(margin, equal) - prior.log_probs)


def _kappa(margin: Margin, log_delta: FloatArray, tolerance: float) -> float | None:
    """κ of the exact condition, in units of Σ δ = 1, or None if no κ meets it."""
    spread, kappa, deviation = _spread_and_kappa(margin, log_delta)
    return kappa if spread <= tolerance and np.all(deviation <= tolerance) else None


def _spread_and_kappa(margin: Margin, log_delta: FloatArray) -> tuple[float, float, FloatArray]:
    """How far sΔ_{yy'} − log δ_{y'} varies with y', κ of the rarest class, and how far others' is.

    The last is in units of what it does to log η/π at most, shape (num_classes,); κ means
    something only where the first is 0.
    """
    if margin.dense is None:
        # a and b are unique up to a constant t for three classes and more: b = log δ + t.
        excess = margin.scale * margin.negative - log_delta
        spread, shift = float(np.ptp(excess)), excess.mean()
        log_c = -margin.scale * margin.positive - shift
    else:
        excess = margin.scale * margin.dense - log_delta[None, :]
        np.fill_diagonal(excess, np.nan)
        spread = float(np.max(np.nanmax(excess, axis=1) - np.nanmin(excess, axis=1)))
        log_c = -np.nanmean(excess, axis=1)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        c, delta = np.exp(log_c), np.exp(log_delta)
        kappa = c - delta
        # Where i and j lead, η_i/π_i : η_j/π_j = (1 + κ_i x) : (1 + κ_j x) with
        # x ≤ 1/(δ_i + δ_j), so this is what a difference of κ can do at most. The rarest
        # class has the smallest denominator.
        rarest = int(np.argmin(delta))
        deviation = np.abs(kappa - kappa[rarest]) / (delta + c[rarest])
    return spread, float(kappa[rarest]), deviation


def _why_consistent(margin: Margin, log_delta: FloatArray, kappa: float, tolerance: float) -> str:
    delta = np.exp(log_delta)
    if abs(kappa) <= tolerance * delta.min():
        return (
            "Theorem 1 holds: Δ_yy' = log(δ_y'/δ_y) with δ_y ∝ α_yπ_y for every pair, so the best "
            "scores are log(η_y/π_y) plus a constant."
        )
    if np.ptp(log_delta) <= tolerance:
        # Not from κ, which rounds to −δ where the margins are large.
        dense = margin.dense
        equal = margin.positive[0] + margin.negative[1] if dense is None else dense[0, 1]
        return (
            f"α_yπ_y is the same for every class and Δ_yy' = {equal:.6g} for every pair, so that "
            f"exchanging two classes exchanges their scores and the larger η/π has the larger "
            f"score."
        )
    return (
        f"e^(sΔ_yy') = δ_y' / (δ_y + κ) for every pair, with δ_y ∝ α_yπ_y summing to 1 and "
        f"κ = {kappa:.6g}, so the best scores increase with η_y/π_y."
    )


def _why_not(
    margin: Margin,
    prior: ClassPrior,
    log_delta: FloatArray,
    favored: int,
    slighted: int,
    tolerance: float,
) -> str:
    parts = risk.additive_parts(margin)
    if parts is not None and np.abs(parts[0] + parts[1]).max() <= tolerance:
        constant = np.exp(log_delta - parts[1])
        constant /= constant.sum()
        return (
            f"Theorem 1's condition, which for Δ_yy' = b_y' − b_y is necessary too, fails: "
            f"α_yπ_ye^(−b_y) must be the same for every class, but class {favored} has "
            f"{constant[favored] / constant[slighted]:.6g} times that of class {slighted}."
        )
    slope = risk.gradient(margin, prior.probs, np.zeros(prior.num_classes))
    return (
        f"At η = π every class is as right as any other, so equal scores must minimise the risk "
        f"there, but its gradient at f = 0 does not vanish: it is {slope[favored]:.4g} for class "
        f"{favored} and {slope[slighted]:.4g} for class {slighted}."
    )


def _suspects(margin: Margin, log_delta: FloatArray) -> list[tuple[int, int, int]]:
    """Classes i, j and k for which the condition fails by most; k = −1 where it takes no third."""
    _, _, deviation = _spread_and_kappa(margin, log_delta)
    of_kappa = (int(np.argmin(log_delta)), int(np.argmax(deviation)), -1)
    if margin.dense is None:
        spread = margin.scale * margin.negative - log_delta
        return [(int(np.argmax(spread)), int(np.argmin(spread)), -1), of_kappa]
    excess = margin.scale * margin.matrix() - log_delta[None, :]
    np.fill_diagonal(excess, np.nan)
    widths = np.nanmax(excess, axis=1) - np.nanmin(excess, axis=1)
    of_rows = [
        (int(np.nanargmax(excess[k])), int(np.nanargmin(excess[k])), int(k))
        for k in np.argsort(-widths)[:5]
    ]
    return [*of_rows, of_kappa]


def _worst_tie(
    margin: Margin, prior: ClassPrior, triples: list[tuple[int, int, int]], *, rest: float
) -> tuple[FloatArray, int, int, float]:
    """Scores at which two classes lead and differ in η/π, although at η = π none does.

    The quadratic of this module's first lines has at most two roots, so a few depths of the
    third class, with the others `rest` below, are enough to miss them.
    """
    best: tuple[FloatArray, int, int, float] = (np.zeros(prior.num_classes), 0, 1, 0.0)
    for i, j, k in triples:
        for third in (0.1, 0.7, 2.0, 4.0):
            scores = np.full(prior.num_classes, -rest / margin.scale)
            if k >= 0:
                scores[k] = -third / margin.scale
            scores[[i, j]] = 0.0
            ratio = risk.log_inverse_link(margin, scores) - prior.log_probs
            width = float(ratio[i] - ratio[j])
            if abs(width) > best[3]:
                favored, slighted = (j, i) if width > 0 else (i, j)
                best = (scores, favored, slighted, abs(width))
    return best
