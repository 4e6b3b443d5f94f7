"""Margin or post-hoc rule in, verdict out: does minimising the risk minimise the balanced error?

At a point with class probabilities η the balanced error is least for argmax_y η_y/π_y
(equation 7). A loss is consistent if, for every η, only such classes have the highest score
among the scores f* = link(η) that minimise its conditional risk (`risk`). For every
pairwise-margin loss and any number of classes this can be read off: with δ_y = α_y π_y,

    consistent  ⇔  e^{s Δ_{yy'}} = δ_{y'} / (δ_y + κ) for all y ≠ y', with one number κ > −min δ

(proved in `_exact_condition`). κ = 0 is Theorem 1 of the paper, which is therefore not only
sufficient but, for antisymmetric margins, necessary. For two classes it is Lemma 2, with
σ(z) = 1/(1 + e^{−z}). Equal margins and equal δ_y are the case in which nothing tells the
classes apart, so adaptive and equalized margins are consistent under a uniform prior.

A rule that adds to the scores only changes Δ. One that divides them is judged by the sign of the
scores, which it can't change. Every "no" comes with a witness, certified by minimising the risk
at its η (`_witness`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from longtail import _checks, margins, posthoc
from longtail._checks import FloatArray, InputError
from longtail.consistency import risk
from longtail.consistency._exact_condition import Verdict, judge_margin, log_ratio_at_tie, refuted
from longtail.consistency._witness import Rule, Witness, certify, present, raise_lowest
from longtail.margins import Margin
from longtail.priors import ClassPrior

__all__ = [
    "PosthocLogitAdjustment",
    "PosthocWeightNormalization",
    "Verdict",
    "Witness",
    "check_consistency",
]

_CALLER = "check_consistency"


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
    """Whether a loss or post-hoc rule, given unlimited data, minimises the balanced error.

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
    prior = _checks.prior(prior, _CALLER)
    tolerance = _checks.positive(tolerance, _CALLER, name="tolerance")
    if prior.num_classes < 2:
        raise InputError(f"{_CALLER}: `prior` has one class; there is nothing to confuse.")
    if isinstance(margin_or_rule, Margin):
        return judge_margin(_fitting(margin_or_rule, prior), prior, tolerance)
    if isinstance(margin_or_rule, PosthocLogitAdjustment):
        return _judge_adjustment(margin_or_rule, prior, tolerance)
    if isinstance(margin_or_rule, PosthocWeightNormalization):
        return _judge_normalization(margin_or_rule, prior, tolerance)
    hint = ""
    if isinstance(margin_or_rule, str):
        hint = f"; for a named loss pass margins.by_name({margin_or_rule!r}, prior)"
    raise InputError(
        f"{_CALLER}: the first argument must be a Margin, a PosthocLogitAdjustment or a "
        f"PosthocWeightNormalization; got {type(margin_or_rule).__name__}{hint}."
    )


def _fitting(margin: Margin, prior: ClassPrior) -> Margin:
    """The margin, if it has as many classes as the prior."""
    if margin.num_classes != prior.num_classes:
        raise InputError(
            f"{_CALLER}: `prior` has {prior.num_classes} classes but the margin "
            f"'{margin.name}' has {margin.num_classes}; make both from the same data."
        )
    return margin


def _base_loss(trained_with: Any, prior: ClassPrior) -> Margin:
    """The loss under a post-hoc rule."""
    if trained_with is None:
        return margins.softmax(prior)
    if not isinstance(trained_with, Margin):
        raise InputError(
            f"{_CALLER}: `trained_with` must be a Margin, such as margins.adaptive(prior), or "
            f"None for softmax cross-entropy; got {type(trained_with).__name__}."
        )
    return _fitting(trained_with, prior)


def _judge_adjustment(rule: PosthocLogitAdjustment, prior: ClassPrior, tolerance: float) -> Verdict:
    """If f minimises the loss with Δ, f + h minimises the loss with Δ_{yy'} + h_y − h_{y'}."""
    tau = _checks.tau(rule.tau, _CALLER)
    loss = _base_loss(rule.trained_with, prior)
    shift = posthoc.adjustment(prior, tau=tau)
    same = (
        replace(loss, positive=loss.positive + shift, negative=loss.negative - shift)
        if loss.dense is None
        else replace(loss, dense=loss.dense + shift[:, None] - shift[None, :])
    )
    verdict = judge_margin(same, prior, tolerance)
    witness = verdict.witness
    if witness is not None:
        trained = witness.scores - shift
        witness = replace(witness, trained_scores=trained - trained.mean())
    factor = "" if tau == 1.0 else f"{tau:g}·"
    reason = f"The rule is the loss with {factor}log(π_y'/π_y) added to Δ_yy': {verdict.reason}"
    return Verdict(rule.name, verdict.consistent, reason, witness)


def _judge_normalization(
    rule: PosthocWeightNormalization, prior: ClassPrior, tolerance: float
) -> Verdict:
    """Positive norms can't make a negative score win against a positive one."""
    tau = _checks.tau(rule.tau, _CALLER)
    loss = _base_loss(rule.trained_with, prior)
    log_factor = None
    if rule.norms is not None:
        log_factor = tau * posthoc.log_norms(
            rule.norms, num_classes=prior.num_classes, caller=_CALLER
        )
    if tau == 0.0 or (log_factor is not None and np.ptp(log_factor) <= tolerance):
        return _renamed(
            rule, "Equal factors ν_y^τ change no winner", judge_margin(loss, prior, tolerance)
        )
    if np.ptp(log_ratio_at_tie(loss, prior)) > tolerance:
        return _refute_all_norms(rule, loss, prior, log_factor)
    verdict = judge_margin(loss, prior, tolerance)
    if prior.num_classes == 2:
        return _renamed(
            rule,
            "Two scores with sum 0 have opposite signs, so that no positive norms change the "
            "winner",
            verdict,
        )
    if log_factor is None:
        return Verdict(
            rule.name,
            None,
            f"It depends on the norms, since '{loss.name}' favours no class at η = π; pass "
            f"norms=, the weight vectors' norms or a ClassPrior.",
        )
    return _refute_norms(rule, loss, prior, log_factor, verdict)


def _renamed(rule: PosthocWeightNormalization, why: str, verdict: Verdict) -> Verdict:
    """The verdict on the loss, which is also that on the rule."""
    return replace(verdict, subject=rule.name, reason=f"{why}: {verdict.reason}")


def _divide(log_factor: FloatArray, scores: FloatArray) -> FloatArray:
    return np.asarray(posthoc.normalize_weights(scores, norms=np.exp(log_factor)))


def _refute_all_norms(
    rule: PosthocWeightNormalization,
    loss: Margin,
    prior: ClassPrior,
    log_factor: FloatArray | None,
) -> Verdict:
    """A class with the lowest score at η = π stays below zero when it becomes the right one."""
    try:
        at_prior = risk.link(loss, prior.probs)
    except InputError:
        return Verdict(
            rule.name, None, f"'{loss.name}' has no best scores that double precision resolves."
        )
    k = int(np.argmin(at_prior))
    division: Rule | None = None if log_factor is None else partial(_divide, log_factor)
    note = f"class {k}'s score is negative and another's is not, which no positive norms change"
    witness = raise_lowest(loss, prior, lead=lambda f, k: float(-f[k]), rule=division, note=note)
    reason = (
        f"At η = π the best scores, with sum 0, leave class {k} at {at_prior[k]:.4g}; slightly "
        f"above its prior it is the right answer, yet its score stays negative and can't win "
        f"for any positive norms and any τ."
    )
    return refuted(rule.name, reason, witness)


def _refute_norms(
    rule: PosthocWeightNormalization,
    loss: Margin,
    prior: ClassPrior,
    log_factor: FloatArray,
    verdict: Verdict,
) -> Verdict:
    """Unequal norms separate two classes that lead together; one of them is then wrong."""
    small, large = int(np.argmin(log_factor)), int(np.argmax(log_factor))
    spread = float(log_factor[large] - log_factor[small])
    division: Rule = partial(_divide, log_factor)
    reason = (
        f"Where classes {small} and {large} lead, with equal scores, both are right, but the "
        f"norms make class {small} win by a factor of {np.exp(spread):.6g}, also where η/π is a "
        f"little larger for class {large}."
    )
    if not verdict.consistent:
        reason = f"'{loss.name}' is not consistent, and these norms do not make up for it."
    tried = 0
    for height in (0.25, 1.0, 4.0):
        for part in (0.5, 0.1, 0.9):
            # `large` leads in f by less than the norms take away.
            scores = np.empty(prior.num_classes)
            scores[small] = height / loss.scale
            scores[large] = scores[small] * np.exp(min(part * spread, 1.0))
            rest = np.delete(np.arange(prior.num_classes), [small, large])
            scores[rest] = -(scores[small] + scores[large]) / len(rest)
            tried += 1
            witness = present(loss, prior, scores, rule=division)
            if witness is not None:
                return Verdict(rule.name, False, reason, witness)
    if verdict.witness is not None:
        tried += 1
        witness = certify(loss, prior, verdict.witness.eta, rule=division)
        if witness is not None:
            return Verdict(rule.name, False, reason, witness)
    return Verdict(
        rule.name,
        None,
        f"'{loss.name}' favours no class at η = π, and none of {tried} points at which the norms "
        f"decide between two classes refutes the rule.",
    )
