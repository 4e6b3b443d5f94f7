"""Decide whether minimising the risk of a loss, or a post-hoc rule, minimises the balanced error.

At a point with class probabilities η the balanced error is least for argmax_y η_y/π_y
(equation 7). A loss is consistent if, for every η, only such classes have the highest score
among the scores f = link(η) that minimise its conditional risk (`risk`). For every
pairwise-margin loss this can be read off: with δ_y = α_y π_y,

    consistent  ⇔  e^{s Δ_{yy'}} = δ_{y'} / (δ_y + κ) for all y ≠ y', with one number κ > −min δ

κ = 0 is Theorem 1 of the paper, which for antisymmetric margins is therefore necessary, too. For
two classes it is Lemma 2, with σ(z) = 1/(1 + e^{−z}).

Sufficient: with x_y = e^{s f_y} scaled to Σ δ_y x_y = 1, the equation in `risk` reads
η_y/π_y ∝ x_y (1 + κ x_y), and x_i > x_j implies a larger value for i, because
1 + κ (x_i + x_j) > 1 − δ_i x_i − δ_j x_j ≥ 0 if κ < 0.

Necessary: if i and j share the highest score, they must share the highest η/π. For two classes
this is Lemma 2. Otherwise let i and j lead at x = 1, a third class k have x_k = ε, and let all
others tend to 0: equality of η_i/π_i and η_j/π_j is a quadratic equation in ε that must hold for
all ε in (0, 1]. Its leading coefficient gives e^{s Δ_{ki}} = δ_i/c_k with some c_k; its constant
one then gives c_i − δ_i = c_j − δ_j, which is κ.

A rule that adds to the scores only changes Δ. One that divides them is judged by the sign of the
scores, which it can't change. Every "no" comes with a witness, certified by minimising the risk
at its η.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, NoReturn

import numpy as np

from longtail import _checks, margins, posthoc
from longtail._checks import FloatArray, InputError
from longtail.consistency import risk
from longtail.consistency.binary import BinaryLoss, CostSensitiveSVM
from longtail.margins import Margin
from longtail.priors import ClassPrior

__all__ = [
    "PosthocLogitAdjustment",
    "PosthocWeightNormalization",
    "Verdict",
    "Witness",
    "check_consistency",
]

# Above it, witnesses are built from scores to η, in one pass; from η to scores takes many.
_MANY_CLASSES = 10_000
# Differences below this can't be told from rounding, and prove nothing.
_RESOLUTION = 1e-12
# Above this many classes a witness is not rounded, and above this many not written out.
_READABLE, _SHOWN = 20, 8


@dataclass(frozen=True, eq=False)
class Witness:
    """A point at which minimising the risk does not minimise the balanced error.

    Attributes:
        eta: η, the class probabilities there, shape (num_classes,).
        ratio: η_y / π_y, largest for the class that should win.
        trained_scores: the scores f that minimise the risk at η, with Σ_y f_y = 0.
        scores: what the argmax is taken of: f, or what a post-hoc rule makes of it.
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
            parts = (self.eta, self.ratio, self.scores)
            eta, ratio, scores = (f"({', '.join(f'{v:.4g}' for v in part)})" for part in parts)
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


@dataclass(frozen=True, eq=False)
class Verdict:
    """The answer of `check_consistency`.

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


def check_consistency(
    margin_or_rule: Margin | PosthocLogitAdjustment | PosthocWeightNormalization | CostSensitiveSVM,
    prior: ClassPrior,
    *,
    tolerance: float = 1e-9,
) -> Verdict:
    """Decide whether a loss or post-hoc rule, given unlimited data, minimises the balanced error.

    Args:
        margin_or_rule: a Margin, `PosthocLogitAdjustment` or `PosthocWeightNormalization`; or
            `binary.CostSensitiveSVM`, for two classes, of which class 1 is +1.
        prior: π, of the training data.
        tolerance: a relative deviation from the exact condition that still counts as rounding;
            raise it for margins that were computed in single precision.

    Returns:
        The Verdict: proved, refuted by a certified witness, or undecided. A Margin is undecided
        only if double precision is too little for a witness: the condition fails by a hair, or
        margins are extreme.

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
    subject: Any = margin_or_rule
    if isinstance(subject, CostSensitiveSVM):
        return Verdict("hinge", *_judge_hinge(subject, prior, tolerance))
    loss = subject
    if isinstance(subject, PosthocLogitAdjustment | PosthocWeightNormalization):
        loss = subject.trained_with or margins.softmax(prior)
    if not isinstance(loss, Margin):
        name = subject if isinstance(subject, str) else getattr(subject, "name", None)
        hint = f"; for a named loss pass margins.by_name({name!r}, prior)" if name else ""
        raise InputError(
            f"the first argument must be a Margin, a PosthocLogitAdjustment, a "
            f"PosthocWeightNormalization or a CostSensitiveSVM; got {type(subject).__name__}{hint}."
        )
    if loss.num_classes != prior.num_classes:
        raise InputError(
            f"`prior` has {prior.num_classes} classes but the margin '{loss.name}' has "
            f"{loss.num_classes}; make both from the same data."
        )
    judge, name = _judge_margin, loss.name
    if loss is not subject:
        adjusts = isinstance(subject, PosthocLogitAdjustment)
        judge = partial(_judge_adjustment if adjusts else _judge_norms, subject)
        tau = "" if subject.tau == 1.0 else f" (tau={subject.tau:g})"
        after = "" if subject.trained_with is None else f" after {loss.name}"
        name = f"post-hoc {'logit adjustment' if adjusts else 'weight normalization'}{tau}{after}"
    try:
        return Verdict(name, *judge(loss, prior, tolerance))
    except risk.Unresolved:
        return Verdict(name, None, "Margins or probabilities are too extreme for double precision.")


# Verdicts without their subject.
_Judgement = tuple[bool | None, str, Witness | None]


# --- losses -----------------------------------------------------------------------------------


def _judge_two_classes(margin: Margin, prior: ClassPrior, tolerance: float) -> _Judgement:
    """Judge by Lemma 2, on Δ itself, since a and b are not unique for two classes."""
    rare = int(prior.probs[1] <= prior.probs[0])
    common = 1 - rare
    loss = BinaryLoss.from_margin(margin, positive=rare)
    left, right = loss.lemma(prior.probs[rare])
    s = "" if margin.scale == 1.0 else f"{margin.scale:g}·"
    # The left side of the lemma in this package's symbols.
    above, below = f"α_{rare}·σ({s}Δ_{rare}{common})", f"α_{common}·σ({s}Δ_{common}{rare})"
    ratio, pi = f"{above} / ({below})", f"π_{rare} = {prior.probs[rare]:.6g}"
    if abs(np.log(left) - np.log(right)) <= tolerance:
        reason = (
            f"Lemma 2 holds: {ratio} = {left:.6g} = π_{common}/π_{rare}, so class {rare} wins "
            f"exactly where η_{rare} > {pi}."
        )
        return True, reason, None
    reason = (
        f"Lemma 2 fails: {ratio} is {left:.6g} but must be π_{common}/π_{rare} = {right:.6g}, so "
        f"class {rare} wins where η_{rare} > {loss.threshold:.6g} instead of where "
        f"η_{rare} > {pi}."
    )
    return _refuted(reason, _Search(margin, prior).near_prior())


def _judge_margin(margin: Margin, prior: ClassPrior, tolerance: float) -> _Judgement:
    """Judge by the exact condition of this module's docstring, or Lemma 2 for two classes."""
    if prior.num_classes == 2:
        return _judge_two_classes(margin, prior, tolerance)
    log_delta = np.log(margin.alpha) + prior.log_probs
    log_delta -= np.logaddexp.reduce(log_delta)
    spread, kappa, deviation, suspects = _condition(margin, log_delta)
    if spread <= tolerance and np.all(deviation <= tolerance):
        return True, _why_consistent(margin, log_delta, kappa, tolerance), None
    search, zeros = _Search(margin, prior), np.zeros(prior.num_classes)
    favored, slighted, width = search.apart(zeros)
    if width > tolerance:
        parts = risk.additive_parts(margin)
        if parts is not None and np.abs(parts[0] + parts[1]).max() <= tolerance:
            constant = np.exp(log_delta - parts[1])
            reason = (
                f"Theorem 1's condition, which for Δ_yy' = b_y' − b_y is necessary too, fails: "
                f"α_yπ_ye^(−b_y) must be the same for every class, but class {favored} has "
                f"{constant[favored] / constant[slighted]:.6g} times that of class {slighted}."
            )
        else:
            slope = risk.gradient(margin, prior.probs, zeros)
            reason = (
                f"At η = π every class is as right as any other, so equal scores must minimise "
                f"the risk there, but its gradient at f = 0 does not vanish: it is "
                f"{slope[favored]:.4g} for class {favored} and {slope[slighted]:.4g} for class "
                f"{slighted}."
            )
        return _refuted(reason, search.near_prior())
    # Beside leaders of small δ a frequent class counts, unless it is as far below as the last.
    rests = (2.0, 6.0, 12.0, 12.0 + float(np.ptp(log_delta)))
    ties = [search.worst_tie(suspects, rest=rest) for rest in rests]
    for tie in sorted(ties, key=lambda tie: -tie[3]):
        tied, favored, slighted, width = tie
        witness = search.break_tie(tied, favored=favored, slighted=slighted)
        if witness is not None:
            break
    reason = (
        f"No κ makes e^(sΔ_yy') = α_y'π_y' / (α_yπ_y + κ) for every pair: the gradient vanishes at "
        f"η = π, but where only classes {favored} and {slighted} lead, with equal scores, class "
        f"{slighted} has the larger η/π, by a factor of {np.exp(width):.6g}."
    )
    return _refuted(reason, witness)


def _judge_hinge(svm: CostSensitiveSVM, prior: ClassPrior, tolerance: float) -> _Judgement:
    """Judge hinge losses: their best score changes sign at the threshold, which must be π."""
    if prior.num_classes != 2:
        raise InputError(f"a CostSensitiveSVM has two classes; `prior` has {prior.num_classes}.")
    if min(svm.delta_pos, svm.delta_neg) <= 0:
        return None, "A margin is 0, and a best score of 0 predicts neither class.", None
    pi, ratio = float(prior.probs[1]), svm.omega_pos / svm.omega_neg
    if math.isclose(ratio, (1 - pi) / pi, rel_tol=tolerance):
        wins_where = f"so class 1 wins exactly where η_1 > π_1 = {pi:.6g}"
        return True, f"ω₊/ω₋ = {ratio:.6g} = π_0/π_1, {wins_where}.", None
    reason = (
        f"ω₊/ω₋ = {ratio:.6g} but must be π_0/π_1 = {(1 - pi) / pi:.6g}, so class 1 wins where "
        f"η_1 > {svm.threshold:.6g} instead of where η_1 > {pi:.6g}."
    )
    eta = np.array([1.0, 0.0]) + np.array([-0.5, 0.5]) * (svm.threshold + pi)
    scores = np.array([-0.5, 0.5]) * float(svm.link(eta[1]))
    wins = int(scores[1] > 0)
    return False, reason, Witness(eta, eta / prior.probs, scores, scores, wins, 1 - wins)


def _refuted(reason: str, witness: Witness | None) -> _Judgement:
    """Return "not consistent" with a witness, and "undecided" without."""
    if witness is not None:
        return False, reason, witness
    return None, f"{reason[:-1]}, by too little for a witness in double precision.", None


def _condition(
    margin: Margin, log_delta: FloatArray
) -> tuple[float, float, FloatArray, list[tuple[int, int, int]]]:
    """Return how far a loss is from the exact condition, and the classes (i, j, k) that are most.

    That is the variation of sΔ_{yy'} − log δ_{y'} with y'; κ of the rarest class, in units of
    Σ δ = 1; and the distance of each class's κ from it, in units of what that does to log η/π at
    most. k = −1 stands for no third class.
    """
    s = margin.scale
    if margin.dense is None:
        # a and b are unique up to a constant t for three classes and more: b = log δ + t.
        excess = s * margin.negative - log_delta
        spread = float(np.ptp(excess))
        log_c = -s * margin.positive - excess.mean()
        suspects = [(int(np.argmax(excess)), int(np.argmin(excess)), -1)]
    else:
        excess = s * margin.matrix() - log_delta[None, :]
        np.fill_diagonal(excess, np.nan)
        widths = np.nanmax(excess, axis=1) - np.nanmin(excess, axis=1)
        spread, log_c = float(np.max(widths)), -np.nanmean(excess, axis=1)
        suspects = [
            (int(np.nanargmax(excess[k])), int(np.nanargmin(excess[k])), int(k))
            for k in np.argsort(-widths)[:5]
        ]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        c, delta = np.exp(log_c), np.exp(log_delta)
        kappa = c - delta
        # Where i and j lead, η_i/π_i : η_j/π_j = (1 + κ_i x) : (1 + κ_j x) with
        # x ≤ 1/(δ_i + δ_j), which is largest beside the rarest class.
        rarest = int(np.argmin(delta))
        deviation = np.abs(kappa - kappa[rarest]) / (delta + c[rarest])
    suspects.append((int(np.argmin(log_delta)), int(np.argmax(deviation)), -1))
    return spread, float(kappa[rarest]), deviation, suspects


def _why_consistent(margin: Margin, log_delta: FloatArray, kappa: float, tolerance: float) -> str:
    """Return the form of the condition that holds."""
    if abs(kappa) <= tolerance * np.exp(log_delta).min():
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


# --- post-hoc rules ---------------------------------------------------------------------------


def _judge_adjustment(rule: Any, loss: Margin, prior: ClassPrior, tolerance: float) -> _Judgement:
    """Judge the loss with Δ_{yy'} + h_y − h_{y'}, which f + h minimises if f does that with Δ."""
    shift = posthoc.adjustment(prior, tau=rule.tau)
    same = loss + Margin(np.ones(len(shift)), shift, -shift, scale=loss.scale)
    consistent, reason, witness = _judge_margin(same, prior, tolerance)
    if witness is not None:
        trained = witness.scores - shift
        witness = replace(witness, trained_scores=trained - trained.mean())
    factor = "" if rule.tau == 1.0 else f"{rule.tau:g}·"
    reason = f"The rule is the loss with {factor}log(π_y'/π_y) added to Δ_yy': {reason}"
    return consistent, reason, witness


def _judge_norms(rule: Any, loss: Margin, prior: ClassPrior, tolerance: float) -> _Judgement:
    """Judge norms, which can't make a negative score win against a positive one."""
    tau, log_factor, division = _checks.tau(rule.tau), None, None
    if rule.norms is not None:
        log_factor = tau * posthoc.log_norms(rule.norms, num_classes=prior.num_classes)
        division = partial(posthoc.normalize_weights, norms=np.exp(log_factor))
    search = _Search(loss, prior, division)
    if tau == 0.0 or (log_factor is not None and np.ptp(log_factor) <= tolerance):
        why = "Equal factors ν_y^τ change no winner"
    elif search.apart(np.zeros(prior.num_classes))[2] > tolerance:
        return _refute_all_norms(search)
    elif prior.num_classes == 2:
        why = "Two scores with sum 0 have opposite signs, so that no norms change the winner"
    elif log_factor is not None:
        return _refute_norms(search, log_factor)
    else:
        reason = (
            f"It depends on the norms, since '{loss.name}' favours no class at η = π; pass "
            f"norms=, the weight vectors' norms or a ClassPrior."
        )
        return None, reason, None
    consistent, reason, witness = _judge_margin(loss, prior, tolerance)
    return consistent, f"{why}: {reason}", witness


def _refute_all_norms(search: _Search) -> _Judgement:
    """Refute all norms: the lowest score at η = π stays below zero when its class is right."""
    at_prior = risk.link(search.margin, search.prior.probs)
    k = int(np.argmin(at_prior))
    note = f"class {k}'s score is negative and another's is not, which no positive norms change"
    reason = (
        f"At η = π the best scores, with sum 0, leave class {k} at {at_prior[k]:.4g}; slightly "
        f"above its prior it is the right answer, yet its score stays negative and can't win "
        f"for any positive norms and any τ."
    )
    witness = search.raise_lowest(lambda f, k: float(-f[k]))
    return _refuted(reason, witness and replace(witness, note=note))


def _refute_norms(search: _Search, log_factor: FloatArray) -> _Judgement:
    """Refute unequal norms: they separate two classes that lead together and are both right."""
    size = len(log_factor)
    small, large = int(np.argmin(log_factor)), int(np.argmax(log_factor))
    spread = float(log_factor[large] - log_factor[small])
    for height, part in product((0.25, 1.0, 4.0), (0.5, 0.1, 0.9)):
        # `large` leads in f by less than the norms take away.
        pair = height / search.margin.scale * np.array([1.0, np.exp(min(part * spread, 1.0))])
        scores = np.full(size, -pair.sum() / (size - 2))
        scores[[small, large]] = pair
        if witness := search.near(scores):
            reason = (
                f"Where classes {small} and {large} lead, with equal scores, the norms make class "
                f"{small} win by a factor of {np.exp(spread):.6g}, also where η/π is a little "
                f"larger for class {large}."
            )
            return False, reason, witness
    reason = f"'{search.margin.name}' favours no class at η = π, and no witness was found."
    return None, reason, None


# --- witnesses --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Search:
    """Search for witnesses against a loss, or against a rule on its scores."""

    margin: Margin
    prior: ClassPrior
    rule: Callable[[FloatArray], FloatArray] | None = None

    def log_ratio(self, scores: FloatArray) -> FloatArray:
        """Return log η_y/π_y of the η at which these scores minimise the risk."""
        return np.asarray(risk.log_inverse_link(self.margin, scores) - self.prior.log_probs)

    def apart(self, scores: FloatArray) -> tuple[int, int, float]:
        """Return the classes with the least and greatest η/π there, and their distance in logs."""
        ratio = self.log_ratio(scores)
        least, most = int(np.argmin(ratio)), int(np.argmax(ratio))
        return least, most, float(ratio[most] - ratio[least])

    def certify(self, eta: FloatArray, scores: FloatArray | None = None) -> Witness | None:
        """Return the Witness that η is, with the scores that minimise the risk there, or None."""
        if eta.min() < np.finfo(np.float64).tiny:
            return None
        f = risk.link(self.margin, eta) if scores is None else scores - scores.mean()
        slope = risk.gradient(self.margin, eta, f) / (self.margin.scale * eta * self.margin.alpha)
        final = f if self.rule is None else self.rule(f)
        ratio = np.log(eta) - self.prior.log_probs
        wins, should_win = int(np.argmax(final)), int(np.argmax(ratio))
        lead = final[wins] - final[should_win]
        stationary = np.abs(slope).max() <= 1e-8
        clear = lead > _RESOLUTION * (1.0 + np.abs(final).max())
        if not (stationary and clear and ratio[should_win] - ratio[wins] > _RESOLUTION):
            return None
        return Witness(eta, np.exp(ratio), f, final, wins, should_win)

    def rounded(self, eta: FloatArray) -> Witness | None:
        """Return the witness η with as few decimals as keep half of its lead; as it is for many."""

        def lead(found: Witness) -> float:
            wins, right = found.wins, found.should_win
            by_score = found.scores[wins] - found.scores[right]
            return float(min(by_score, np.log(found.ratio[right] / found.ratio[wins])))

        exact = self.certify(eta)
        if exact is None or len(eta) > _READABLE:
            return exact
        for decimals in range(2, 13):
            short = np.round(eta, decimals)
            top = int(np.argmax(short))
            short[top] = np.round(1.0 - np.delete(short, top).sum(), decimals)
            witness = self.certify(short)
            if witness is not None and lead(witness) >= 0.5 * lead(exact):
                return witness
        return exact

    def near(self, scores: FloatArray) -> Witness | None:
        """Return a certified witness near the η of these scores."""
        eta = risk.inverse_link(self.margin, scores)
        return self.rounded(eta) or self.certify(eta, scores)

    def near_prior(self) -> Witness | None:
        """Return a witness against a loss whose gradient at f = 0 does not vanish at η = π."""
        witness = None
        if self.prior.num_classes <= _MANY_CLASSES:
            witness = self.raise_lowest(lambda f, k: float(f.max() - f[k]))
        if witness is not None:
            return witness
        tied = np.zeros(self.prior.num_classes)
        favored, slighted, _ = self.apart(tied)
        return self.break_tie(tied, favored=favored, slighted=slighted)

    def raise_lowest(self, lead: Callable[[FloatArray, int], float]) -> Witness | None:
        """Return a witness near η = π, where equal η/π should mean equal scores, but one is lowest.

        Raising that class's probability alone makes it the right answer, while by continuity its
        score stays too low. It is raised until it leads in log η/π by as much as it lacks in
        score, which `lead` says of the scores and the class.
        """
        margin, pi = self.margin, self.prior.probs
        at_prior = risk.link(margin, pi)
        k = int(np.argmin(at_prior))
        low, high, eta = 0.0, margin.scale * lead(at_prior, k), pi
        for _ in range(8):
            rise = 0.5 * (low + high)
            raised = pi.copy()
            raised[k] *= np.exp(rise)
            raised /= raised.sum()
            if margin.scale * lead(risk.link(margin, raised), k) >= rise:
                low, eta = rise, raised
            else:
                high = rise
        return self.rounded(eta)

    def worst_tie(
        self, triples: list[tuple[int, int, int]], *, rest: float
    ) -> tuple[FloatArray, int, int, float]:
        """Return scores at which two classes lead and differ in η/π, although at η = π none does.

        The quadratic of this module's docstring has at most two roots, so a few depths of the
        third class, with the others `rest` below, are enough to miss them.
        """
        size, s = self.prior.num_classes, self.margin.scale
        best: tuple[FloatArray, int, int, float] = (np.zeros(size), 0, 1, 0.0)
        for i, j, k in triples:
            for third in (0.1, 0.7, 2.0, 4.0):
                scores = np.full(size, -rest / s)
                if k >= 0:
                    scores[k] = -third / s
                scores[[i, j]] = 0.0
                ratio = self.log_ratio(scores)
                width = float(ratio[i] - ratio[j])
                if abs(width) > best[3]:
                    favored, slighted = (j, i) if width > 0 else (i, j)
                    best = (scores, favored, slighted, abs(width))
        return best

    def break_tie(self, tied: FloatArray, *, favored: int, slighted: int) -> Witness | None:
        """Return a witness near scores at which two classes lead together but differ in η/π.

        If `slighted` has the larger η/π of the two, `favored` can be given the lead by a little,
        and is then wrong. How little is chosen to make the lesser of the two leads, in score and
        in log η/π, as large as it gets.
        """
        s, gap = self.margin.scale, self.log_ratio(tied)
        best, best_scores = 0.0, None
        for step in float(gap[slighted] - gap[favored]) * 1.5 ** np.arange(8, -14, -1):
            scores = tied.copy()
            scores[favored] += 0.5 * step / s
            scores[slighted] -= 0.5 * step / s
            ratio = self.log_ratio(scores)  # NaN where double precision does not reach
            lead = s * (scores[favored] - np.delete(scores, favored).max())
            strength = float(np.minimum(lead, ratio.max() - ratio[favored]))
            if strength > best:
                best, best_scores = strength, scores
        return None if best_scores is None else self.near(best_scores)
