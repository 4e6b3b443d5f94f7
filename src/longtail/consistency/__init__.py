"""Does minimising the risk of a loss, or a post-hoc rule, minimise the balanced error?

At a point with class probabilities η the balanced error is least for argmax_y η_y/π_y
(equation 7). A loss is consistent if, for every η, only such classes have the highest score
among the scores f* = link(η) that minimise its conditional risk (`risk`). For every
pairwise-margin loss and any number of classes this can be read off: with δ_y = α_y π_y,

    consistent  ⇔  e^{s Δ_{yy'}} = δ_{y'} / (δ_y + κ) for all y ≠ y', with one number κ > −min δ

κ = 0 is Theorem 1 of the paper, which is therefore not only sufficient but, for antisymmetric
margins, necessary. For two classes it is Lemma 2, with σ(z) = 1/(1 + e^{−z}). Equal margins and
equal δ_y are the case in which nothing tells the classes apart, so adaptive and equalized margins
are consistent under a uniform prior.

Sufficient: with x_y = e^{s f_y} scaled to Σ δ_y x_y = 1, the equation in `risk` reads
η_y/π_y ∝ x_y (1 + κ x_y), and x_i > x_j implies a larger value for i, because
1 + κ (x_i + x_j) > 1 − δ_i x_i − δ_j x_j ≥ 0 if κ < 0.

Necessary: if i and j share the highest score, they must share the highest η/π: else an
arbitrarily small change of score makes the wrong one win. For two classes this is one equation,
Lemma 2, which determines Δ_{21} from Δ_{12} as the condition does. Otherwise let i and j lead at
x = 1, a third class k have x_k = ε, and let all others tend to 0. Equality of η_i/π_i and η_j/π_j
is then a quadratic equation in ε that must hold for all ε in (0, 1]. Its leading coefficient
gives e^{s Δ_{ki}}/δ_i = e^{s Δ_{kj}}/δ_j, hence e^{s Δ_{ki}} = δ_i/c_k with some c_k; its constant
one then gives c_i − δ_i = c_j − δ_j, which is κ.

A rule that adds to the scores only changes Δ. One that divides them is judged by the sign of the
scores, which it can't change. Every "no" comes with a witness, certified by minimising the risk
at its η.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import numpy as np

from longtail import _checks, margins, posthoc
from longtail._checks import FloatArray, InputError
from longtail.consistency import risk
from longtail.consistency._witness import (
    Rule,
    Witness,
    break_tie,
    certify,
    log_ratio,
    present,
    raise_lowest,
)
from longtail.consistency.binary import BinaryLoss
from longtail.margins import Margin
from longtail.priors import ClassPrior

__all__ = [
    "PosthocLogitAdjustment",
    "PosthocWeightNormalization",
    "Verdict",
    "Witness",
    "check_consistency",
]

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
        """Return plain values for JSON."""
        witness = None if self.witness is None else self.witness.to_dict()
        return {**vars(self), "witness": witness}


@dataclass(frozen=True, kw_only=True, eq=False)
class PosthocLogitAdjustment:
    """The rule argmax_y f_y − τ log π_y on the scores of a trained model (equation 9).

    Attributes:
        tau: τ.
        trained_with: the loss that the scores minimise; softmax cross-entropy if None.

    Examples:
        >>> prior = ClassPrior.from_probs([0.7, 0.25, 0.05])
        >>> check_consistency(PosthocLogitAdjustment(), prior).consistent
        True
        >>> twice = PosthocLogitAdjustment(trained_with=margins.logit_adjusted(prior))
        >>> check_consistency(twice, prior).consistent
        False
    """

    tau: float = 1.0
    trained_with: Margin | None = None

    @property
    def name(self) -> str:
        """What to call it in tables."""
        return _rule_name("post-hoc logit adjustment", self.tau, self.trained_with)


@dataclass(frozen=True, kw_only=True, eq=False)
class PosthocWeightNormalization:
    """The rule argmax_y f_y / ν_y^τ on the scores of a trained model (equation 3).

    Scores are only known up to a constant, which this rule does not forgive: Σ_y f_y = 0 is
    assumed, as in the paper's footnote.

    Attributes:
        tau: τ.
        norms: ν, shape (num_classes,), or a ClassPrior for ν = π; None stands for any positive
            norms, and then a "no" holds for all of them.
        trained_with: the loss that the scores minimise; softmax cross-entropy if None.

    Examples:
        >>> prior = ClassPrior.from_probs([0.95, 0.05])
        >>> verdict = check_consistency(PosthocWeightNormalization(), prior)
        >>> verdict.consistent, verdict.witness.wins, verdict.witness.should_win
        (False, 0, 1)
    """

    tau: float = 1.0
    norms: Any = None
    trained_with: Margin | None = None

    @property
    def name(self) -> str:
        """What to call it in tables."""
        return _rule_name("post-hoc weight normalization", self.tau, self.trained_with)


def _rule_name(name: str, tau: float, trained_with: Margin | None) -> str:
    if tau != 1.0:
        name += f" (tau={tau:g})"
    return name if trained_with is None else f"{name} after {trained_with.name}"


def check_consistency(
    margin_or_rule: Margin | PosthocLogitAdjustment | PosthocWeightNormalization,
    prior: ClassPrior,
    *,
    tolerance: float = 1e-9,
) -> Verdict:
    """Decide whether a loss or post-hoc rule, given unlimited data, minimises the balanced error.

    Args:
        margin_or_rule: a Margin, `PosthocLogitAdjustment` or `PosthocWeightNormalization`.
        prior: π, of the training data.
        tolerance: a relative deviation from the exact condition that still counts as rounding;
            raise it for margins that were computed in single precision.

    Returns:
        The Verdict: proved, refuted by a certified witness, or undecided. A Margin is undecided
        only if it fails the condition by too little for a witness in double precision.

    Examples:
        >>> prior = ClassPrior.from_probs([0.95, 0.05])
        >>> print(check_consistency(margins.logit_adjusted(prior), prior))
        logit-adjusted: consistent. Lemma 2 holds: α_1·σ(Δ_10) / (α_0·σ(Δ_01)) = 19 = π_0/π_1, so
        class 1 wins exactly where η_1 > π_1 = 0.05.
        >>> verdict = check_consistency(margins.adaptive(prior), prior)
        >>> verdict.consistent, verdict.witness.eta
        (False, array([0.76, 0.24]))
    """
    prior = _checks.prior(prior)
    tolerance = _checks.positive(tolerance, name="tolerance")
    if prior.num_classes < 2:
        raise InputError("`prior` has one class; there is nothing to confuse.")
    if isinstance(margin_or_rule, Margin):
        return _judge_margin(_fitting(margin_or_rule, prior), prior, tolerance)
    if isinstance(margin_or_rule, PosthocLogitAdjustment):
        return _judge_adjustment(margin_or_rule, prior, tolerance)
    if isinstance(margin_or_rule, PosthocWeightNormalization):
        return _judge_normalization(margin_or_rule, prior, tolerance)
    hint = ""
    if isinstance(margin_or_rule, str):
        hint = f"; for a named loss pass margins.by_name({margin_or_rule!r}, prior)"
    raise InputError(
        f"the first argument must be a Margin, a PosthocLogitAdjustment or a "
        f"PosthocWeightNormalization; got {type(margin_or_rule).__name__}{hint}."
    )


def _fitting(margin: Margin | None, prior: ClassPrior) -> Margin:
    """A loss, softmax cross-entropy if None, with as many classes as the prior."""
    if margin is None:
        return margins.softmax(prior)
    if not isinstance(margin, Margin):
        raise InputError(
            f"`trained_with` must be a Margin, such as margins.adaptive(prior), or None for "
            f"softmax cross-entropy; got {type(margin).__name__}."
        )
    if margin.num_classes != prior.num_classes:
        raise InputError(
            f"`prior` has {prior.num_classes} classes but the margin '{margin.name}' has "
            f"{margin.num_classes}; make both from the same data."
        )
    return margin


# --- losses -----------------------------------------------------------------------------------


def _judge_margin(margin: Margin, prior: ClassPrior, tolerance: float) -> Verdict:
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
    return _refuted(margin.name, reason, _witness_near_prior(margin, prior))


def _judge_many_classes(margin: Margin, prior: ClassPrior, tolerance: float) -> Verdict:
    """The exact condition of this module's first lines, for three classes and more."""
    log_delta = np.log(margin.alpha) + prior.log_probs
    log_delta -= np.logaddexp.reduce(log_delta)
    spread, kappa, deviation = _spread_and_kappa(margin, log_delta)
    if spread <= tolerance and np.all(deviation <= tolerance):
        return Verdict(margin.name, True, _why_consistent(margin, log_delta, kappa, tolerance))
    at_tie = log_ratio(margin, prior, np.zeros(prior.num_classes))
    favored, slighted = int(np.argmin(at_tie)), int(np.argmax(at_tie))
    if at_tie[slighted] - at_tie[favored] > tolerance:
        reason = _why_not(margin, prior, log_delta, favored, slighted, tolerance)
        return _refuted(margin.name, reason, _witness_near_prior(margin, prior))
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
    return _refuted(margin.name, reason, witness)


def _refuted(subject: str, reason: str, witness: Witness | None) -> Verdict:
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
    tied = np.zeros(prior.num_classes)
    at_tie = log_ratio(margin, prior, tied)
    favored, slighted = int(np.argmin(at_tie)), int(np.argmax(at_tie))
    return break_tie(margin, prior, tied, favored=favored, slighted=slighted)


def _excess(margin: Margin, log_delta: FloatArray) -> FloatArray:
    """sΔ_{yy'} − log δ_{y'} of dense margins, NaN on the diagonal."""
    excess = np.asarray(margin.scale * margin.matrix() - log_delta[None, :])
    np.fill_diagonal(excess, np.nan)
    return excess


def _spread_and_kappa(margin: Margin, log_delta: FloatArray) -> tuple[float, float, FloatArray]:
    """How far sΔ_{yy'} − log δ_{y'} varies with y', κ of the rarest class, and how far others' is.

    The last is in units of what it does to log η/π at most, shape (num_classes,); κ, in units of
    Σ δ = 1, means something only where the first is 0.
    """
    if margin.dense is None:
        # a and b are unique up to a constant t for three classes and more: b = log δ + t.
        excess = margin.scale * margin.negative - log_delta
        spread, shift = float(np.ptp(excess)), excess.mean()
        log_c = -margin.scale * margin.positive - shift
    else:
        excess = _excess(margin, log_delta)
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
    excess = _excess(margin, log_delta)
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
            ratio = log_ratio(margin, prior, scores)
            width = float(ratio[i] - ratio[j])
            if abs(width) > best[3]:
                favored, slighted = (j, i) if width > 0 else (i, j)
                best = (scores, favored, slighted, abs(width))
    return best


# --- post-hoc rules ---------------------------------------------------------------------------


def _judge_adjustment(rule: PosthocLogitAdjustment, prior: ClassPrior, tolerance: float) -> Verdict:
    """If f minimises the loss with Δ, f + h minimises the loss with Δ_{yy'} + h_y − h_{y'}."""
    loss = _fitting(rule.trained_with, prior)
    shift = posthoc.adjustment(prior, tau=rule.tau)
    same = (
        replace(loss, positive=loss.positive + shift, negative=loss.negative - shift)
        if loss.dense is None
        else replace(loss, dense=loss.dense + shift[:, None] - shift[None, :])
    )
    verdict = _judge_margin(same, prior, tolerance)
    witness = verdict.witness
    if witness is not None:
        trained = witness.scores - shift
        witness = replace(witness, trained_scores=trained - trained.mean())
    factor = "" if rule.tau == 1.0 else f"{rule.tau:g}·"
    reason = f"The rule is the loss with {factor}log(π_y'/π_y) added to Δ_yy': {verdict.reason}"
    return Verdict(rule.name, verdict.consistent, reason, witness)


def _judge_normalization(
    rule: PosthocWeightNormalization, prior: ClassPrior, tolerance: float
) -> Verdict:
    """Positive norms can't make a negative score win against a positive one."""
    tau, name = _checks.tau(rule.tau), rule.name
    loss = _fitting(rule.trained_with, prior)
    log_factor, division = None, None
    if rule.norms is not None:
        log_factor = tau * posthoc.log_norms(rule.norms, num_classes=prior.num_classes)
        division = partial(_divide, log_factor)
    unmoved = None
    if tau == 0.0 or (log_factor is not None and np.ptp(log_factor) <= tolerance):
        unmoved = "Equal factors ν_y^τ change no winner"
    elif np.ptp(log_ratio(loss, prior, np.zeros(prior.num_classes))) > tolerance:
        return _refute_all_norms(name, loss, prior, division)
    elif prior.num_classes == 2:
        unmoved = (
            "Two scores with sum 0 have opposite signs, so that no positive norms change the winner"
        )
    verdict = _judge_margin(loss, prior, tolerance)
    if unmoved is not None:
        return replace(verdict, subject=name, reason=f"{unmoved}: {verdict.reason}")
    if log_factor is None or division is None:
        return Verdict(
            name,
            None,
            f"It depends on the norms, since '{loss.name}' favours no class at η = π; pass "
            f"norms=, the weight vectors' norms or a ClassPrior.",
        )
    return _refute_norms(name, loss, prior, log_factor, division, verdict)


def _divide(log_factor: FloatArray, scores: FloatArray) -> FloatArray:
    return np.asarray(posthoc.normalize_weights(scores, norms=np.exp(log_factor)))


def _refute_all_norms(name: str, loss: Margin, prior: ClassPrior, division: Rule | None) -> Verdict:
    """A class with the lowest score at η = π stays below zero when it becomes the right one."""
    try:
        at_prior = risk.link(loss, prior.probs)
    except InputError:
        return Verdict(
            name, None, f"'{loss.name}' has no best scores that double precision resolves."
        )
    k = int(np.argmin(at_prior))
    note = f"class {k}'s score is negative and another's is not, which no positive norms change"
    witness = raise_lowest(loss, prior, lead=lambda f, k: float(-f[k]), rule=division, note=note)
    reason = (
        f"At η = π the best scores, with sum 0, leave class {k} at {at_prior[k]:.4g}; slightly "
        f"above its prior it is the right answer, yet its score stays negative and can't win "
        f"for any positive norms and any τ."
    )
    return _refuted(name, reason, witness)


def _refute_norms(
    name: str,
    loss: Margin,
    prior: ClassPrior,
    log_factor: FloatArray,
    division: Rule,
    verdict: Verdict,
) -> Verdict:
    """Unequal norms separate two classes that lead together; one of them is then wrong."""
    small, large = int(np.argmin(log_factor)), int(np.argmax(log_factor))
    spread = float(log_factor[large] - log_factor[small])
    reason = (
        f"Where classes {small} and {large} lead, with equal scores, both are right, but the "
        f"norms make class {small} win by a factor of {np.exp(spread):.6g}, also where η/π is a "
        f"little larger for class {large}."
    )
    if not verdict.consistent:
        reason = f"'{loss.name}' is not consistent, and these norms do not make up for it."
    witnesses = []
    for height in (0.25, 1.0, 4.0):
        for part in (0.5, 0.1, 0.9):
            # `large` leads in f by less than the norms take away.
            scores = np.empty(prior.num_classes)
            scores[small] = height / loss.scale
            scores[large] = scores[small] * np.exp(min(part * spread, 1.0))
            rest = np.delete(np.arange(prior.num_classes), [small, large])
            scores[rest] = -(scores[small] + scores[large]) / len(rest)
            witnesses.append(partial(present, loss, prior, scores, rule=division))
    if verdict.witness is not None:
        witnesses.append(partial(certify, loss, prior, verdict.witness.eta, rule=division))
    for find in witnesses:
        witness = find()
        if witness is not None:
            return Verdict(name, False, reason, witness)
    return Verdict(
        name,
        None,
        f"'{loss.name}' favours no class at η = π, and none of {len(witnesses)} points at which "
        f"the norms decide between two classes refutes the rule.",
    )
