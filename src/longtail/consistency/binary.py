"""Two classes and a scalar score: links, Bayes risks and the limit to hinge losses.

The theory of the paper's appendix on binary margin-based losses (equation 13), with its slips
corrected, for a rare class +1 of prior π:

    ℓ(+1, f) = ω₊/γ · log(1 + e^{γ(δ₊ − f)}),   ℓ(−1, f) = ω₋/γ · log(1 + e^{γ(δ₋ + f)})

`BinaryLoss` is this family, `CostSensitiveSVM` its limit γ → ∞, and `examples` the parameter
choices that the paper discusses. Scores f and probabilities p = P(+1) may have any shape.

Corrected here: σ(z) = 1/(1 + e^{−z}) in Lemma 2; the −log 2 of Lemma 3's link stands inside
the 1/γ; the conditional Bayes risk is p·ℓ(+1, Ψ(p)) + (1 − p)·ℓ(−1, Ψ(p)); the balanced
error's own Bayes risk is `tent`; and the hinge losses' Bayes risk has ω₊ in its second case.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, log_expit, logit

from longtail._checks import FloatArray
from longtail.margins import Margin


class _Losses:
    def loss(self, f: Any) -> tuple[FloatArray, FloatArray]:
        """Return ℓ(+1, f) and ℓ(−1, f)."""
        raise NotImplementedError

    def link(self, p: Any) -> FloatArray:
        """Return Ψ(p), the score that minimises the conditional risk."""
        raise NotImplementedError

    def conditional_risk(self, p: Any, f: Any) -> FloatArray:
        """Return the expected loss p · ℓ(+1, f) + (1 − p) · ℓ(−1, f).

        Examples:
            >>> CostSensitiveSVM(2.0, 1.0).conditional_risk(0.5, 0.0)
            array(1.5)
        """
        p, (plus, minus) = np.asarray(p, np.float64), self.loss(f)
        # A probability of 0 silences an infinite loss.
        with np.errstate(invalid="ignore"):
            plus, minus = p * plus, (1.0 - p) * minus
        return np.asarray(np.where(p > 0, plus, 0.0) + np.where(p < 1, minus, 0.0))

    def bayes_risk(self, p: Any) -> FloatArray:
        """Return the least conditional risk, L(p) = p · ℓ(+1, Ψ(p)) + (1 − p) · ℓ(−1, Ψ(p))."""
        return self.conditional_risk(p, self.link(p))


@dataclass(frozen=True)
class BinaryLoss(_Losses):
    """A loss of the binary pairwise-margin family.

    Attributes:
        omega_pos: ω₊, weight of class +1, positive.
        omega_neg: ω₋, weight of class −1, positive.
        delta_pos: δ₊, margin of class +1.
        delta_neg: δ₋, margin of class −1.
        gamma: γ, inverse temperature, positive; γ → ∞ is `limit`.

    Examples:
        >>> loss = BinaryLoss(omega_pos=5.0, omega_neg=1.25)  # weights 1/π, π = 0.2
        >>> loss.threshold
        0.2
        >>> loss.link([0.2, 0.5]).round(3) + 0.0
        array([0.   , 1.386])
    """

    omega_pos: float = 1.0
    omega_neg: float = 1.0
    delta_pos: float = 0.0
    delta_neg: float = 0.0
    gamma: float = 1.0

    @classmethod
    def from_margin(cls, margin: Margin, *, positive: int = 1) -> BinaryLoss:
        """Return a two-class Margin as a function of the scalar score f₊ − f₋, +1 being `positive`.

        Examples:
            >>> from longtail import ClassPrior, margins
            >>> prior = ClassPrior.from_probs([0.8, 0.2])
            >>> round(BinaryLoss.from_margin(margins.logit_adjusted(prior)).threshold, 6)
            0.2
        """
        negative, delta, s = 1 - positive, margin.matrix(), margin.scale
        return cls(
            float(s * margin.alpha[positive]),
            float(s * margin.alpha[negative]),
            float(delta[positive, negative]),
            float(delta[negative, positive]),
            s,
        )

    def loss(self, f: Any) -> tuple[FloatArray, FloatArray]:
        """Return ℓ(+1, f) and ℓ(−1, f)."""
        f, g = np.asarray(f, dtype=np.float64), self.gamma
        plus = self.omega_pos / g * np.logaddexp(0.0, g * (self.delta_pos - f))
        minus = self.omega_neg / g * np.logaddexp(0.0, g * (self.delta_neg + f))
        return np.asarray(plus), np.asarray(minus)

    def link(self, p: Any) -> FloatArray:
        """Return Ψ(p), the score that minimises the conditional risk (Lemma 3, corrected).

        Ψ(p) = (1/γ) · log{[x + √(x² + 4a/q)] / 2} with x = ab/q − c, q = (1 − p)/p,
        a = ω₊/ω₋ · e^{γ(δ₊ − δ₋)}, b = e^{γδ₋} and c = e^{γδ₊}; for x < 0 the bracket is
        2(a/q) / (√(x² + 4a/q) − x), which does not cancel. All in logs.

        Examples:
            >>> BinaryLoss().link([0.0, 0.5, 0.9]).round(4)  # the log-odds
            array([  -inf, 0.    , 2.1972])
        """
        log_c = self.gamma * self.delta_pos
        m = logit(np.asarray(p, np.float64)) + math.log(self.omega_pos) - math.log(self.omega_neg)
        log_aq = m + self.gamma * (self.delta_pos - self.delta_neg)  # log(a/q)
        with np.errstate(divide="ignore"):
            # x = c · (e^m − 1)
            log_x = log_c + np.maximum(m, 0.0) + np.log(-np.expm1(-np.abs(m)))
        log_root = 0.5 * np.logaddexp(2.0 * log_x, math.log(4.0) + log_aq)
        log_sum = np.logaddexp(log_x, log_root)  # log(|x| + √…)
        with np.errstate(invalid="ignore"):
            log_g = np.where(m >= 0, log_sum - math.log(2.0), math.log(2.0) + log_aq - log_sum)
        return np.asarray(log_g / self.gamma)

    def inverse_link(self, f: Any) -> FloatArray:
        """Return Ψ⁻¹(f) = 1 / (1 − ℓ'(+1, f)/ℓ'(−1, f)), the P(+1) at which f is the best score."""
        return np.asarray(expit(-self._log_slope_ratio(np.asarray(f, dtype=np.float64))))

    def _log_slope_ratio(self, f: FloatArray) -> FloatArray:
        """log(−ℓ'(+1, f) / ℓ'(−1, f))."""
        return np.asarray(
            math.log(self.omega_pos)
            - math.log(self.omega_neg)
            + log_expit(self.gamma * (self.delta_pos - f))
            - log_expit(self.gamma * (self.delta_neg + f))
        )

    @property
    def threshold(self) -> float:
        """Ψ⁻¹(0): above this P(+1) the best score is positive, so +1 is predicted."""
        return float(self.inverse_link(0.0))

    def lemma(self, pi: float) -> tuple[float, float]:
        """Return both sides of Lemma 2 for π = P(+1); the loss is consistent iff they agree.

        ω₊/ω₋ · σ(γδ₊)/σ(γδ₋) = (1 − π)/π with σ(z) = 1/(1 + e^{−z}).

        Examples:
            >>> [round(side, 6) for side in BinaryLoss(omega_pos=4.0).lemma(0.2)]
            [4.0, 4.0]
        """
        return float(np.exp(self._log_slope_ratio(np.zeros(())))), (1.0 - pi) / pi

    def peak(self) -> tuple[float, float]:
        """Return the p at which the Bayes risk is largest, and that risk.

        L'(p) = ℓ(+1, Ψ(p)) − ℓ(−1, Ψ(p)), so it is where both losses are the same.

        Examples:
            >>> p, risk = BinaryLoss(omega_pos=5.0, omega_neg=1.25).peak()
            >>> round(p, 3), round(risk, 3)
            (0.397, 1.611)
        """

        def difference(f: float) -> float:
            return float(np.subtract(*self.loss(f)))

        # ℓ(+1) falls and ℓ(−1) rises, so a bracket is found by doubling.
        reach = 1.0 + abs(self.delta_pos) + abs(self.delta_neg) + 1.0 / self.gamma
        while difference(-reach) < 0 or difference(reach) > 0:
            reach *= 2.0
        f = brentq(difference, -reach, reach, xtol=1e-14, rtol=1e-14)
        return float(self.inverse_link(f)), float(self.loss(f)[0])

    def limit(self) -> CostSensitiveSVM:
        """Return the hinge losses that γ → ∞ leads to, with this loss's weights and margins.

        0 ≤ L_γ(p) − L_∞(p) ≤ (p ω₊ + (1 − p) ω₋) · log(2)/γ for every p.
        """
        return CostSensitiveSVM(self.omega_pos, self.omega_neg, self.delta_pos, self.delta_neg)


@dataclass(frozen=True)
class CostSensitiveSVM(_Losses):
    """Weighted hinge losses with margins: ω₊ · [δ₊ − f]₊ and ω₋ · [δ₋ + f]₊.

    Attributes:
        omega_pos: ω₊, weight of class +1, positive.
        omega_neg: ω₋, weight of class −1, positive.
        delta_pos: δ₊ ≥ 0.
        delta_neg: δ₋ ≥ 0; not both margins are 0.

    Examples:
        >>> svm = CostSensitiveSVM(4.0, 1.0, delta_neg=0.25)
        >>> svm.threshold, svm.peak()
        (0.2, (0.2, 1.0))
    """

    omega_pos: float
    omega_neg: float
    delta_pos: float = 1.0
    delta_neg: float = 1.0

    @property
    def threshold(self) -> float:
        """ω₋ / (ω₋ + ω₊): above this P(+1) the best score is δ₊, below it −δ₋."""
        return self.omega_neg / (self.omega_neg + self.omega_pos)

    def loss(self, f: Any) -> tuple[FloatArray, FloatArray]:
        """Return ℓ(+1, f) and ℓ(−1, f)."""
        f = np.asarray(f, dtype=np.float64)
        plus = self.omega_pos * np.maximum(self.delta_pos - f, 0.0)
        return plus, self.omega_neg * np.maximum(self.delta_neg + f, 0.0)

    def link(self, p: Any) -> FloatArray:
        """Return the score that minimises the conditional risk: δ₊ above the threshold, else −δ₋.

        At the threshold every score between the two is as good; −δ₋ is returned.
        """
        return np.asarray(np.where(np.asarray(p) > self.threshold, self.delta_pos, -self.delta_neg))

    def peak(self) -> tuple[float, float]:
        """Return the p at which the Bayes risk is largest, the threshold, and that risk."""
        total = self.delta_neg + self.delta_pos
        # threshold · ω₊ = ω₊ω₋ / (ω₊ + ω₋)
        return self.threshold, total * self.threshold * self.omega_pos


def tent(p: Any, pi: float) -> FloatArray:
    """Return the balanced error's own Bayes risk, of maximum 1: min(p/π, (1 − p)/(1 − π)).

    Examples:
        >>> tent([0.0, 0.1, 0.2, 0.6, 1.0], 0.2)
        array([0. , 0.5, 1. , 0.5, 0. ])
    """
    p = np.asarray(p, np.float64)
    return np.asarray(np.minimum(p / pi, (1.0 - p) / (1.0 - pi)))


def examples(pi: float, *, gamma: float = 1.0) -> dict[str, BinaryLoss]:
    """Return the parameter choices that the paper's appendix discusses, by name and in its order.

    "balanced" and "unequal-margin" are consistent for every γ,
    "balanced-margin" and "balanced-margin-pi" only as γ → ∞, "logistic", "both" and
    "small-margin" not at all (unless π = 1/2).

    Examples:
        >>> losses = examples(0.2, gamma=8.0)
        >>> [name for name, loss in losses.items() if np.isclose(*loss.lemma(0.2))]
        ['balanced', 'unequal-margin']
    """
    weights = {"omega_pos": 1.0 / pi, "omega_neg": 1.0 / (1.0 - pi)}
    shift = (math.log1p(-pi) - math.log(pi)) / gamma  # (1/γ) · log((1 − π)/π)
    choices: dict[str, dict[str, float]] = {
        "logistic": {},
        "balanced": {**weights, "delta_pos": 1.0, "delta_neg": 1.0},
        "unequal-margin": {"delta_pos": shift, "delta_neg": -shift},
        "balanced-margin": {**weights, "delta_pos": 1.0, "delta_neg": pi / (1.0 - pi)},
        "balanced-margin-pi": {**weights, "delta_pos": 1.0, "delta_neg": pi},
        "both": {**weights, "delta_pos": shift, "delta_neg": -shift},
        "small-margin": {"delta_pos": (1.0 - pi) / gamma, "delta_neg": pi / gamma},
    }
    return {name: BinaryLoss(**parts, gamma=gamma) for name, parts in choices.items()}
