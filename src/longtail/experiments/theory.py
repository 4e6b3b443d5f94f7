"""The paper's theory, computed: Table 1 with witnesses, the appendix's curves, separable data.

Table 1 is derived by `check_consistency`. The curves (links, inverse links and conditional Bayes
risks of the appendix on binary losses) come from the closed forms in `binary`, and each carries
its largest deviation from minimising the conditional risk directly. The experiment behind
section 2's claim on separable data is in `separable`. How it looks is in
`longtail.report.theory`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks, margins
from longtail._checks import FloatArray, InputError
from longtail.consistency import (
    PosthocLogitAdjustment,
    PosthocWeightNormalization,
    Verdict,
    binary,
    check_consistency,
)
from longtail.consistency.binary import BinaryLoss, CostSensitiveSVM
from longtail.experiments import Progress, separable
from longtail.margins import Margin
from longtail.priors import ClassPrior

# The curves of the paper's three figures, by name in `binary.examples`.
LINKS = ("balanced", "unequal-margin", "balanced-margin")
BAYES_RISKS = ("logistic", *LINKS, "balanced-margin-pi")
TENT = "tent"

# Priors that the table is judged for, by the number of their classes.
PRIORS = {
    "two classes": ClassPrior.from_probs([0.95, 0.05]),
    "three classes": ClassPrior.from_probs([0.7, 0.25, 0.05]),
}

Subject = Callable[[ClassPrior], Any]

# Name, its margin Δ_yy' or rule, what makes the subject of a verdict, and the paper's own verdict.
TABLE_1: tuple[tuple[str, str, Subject, bool], ...] = (
    ("weight normalisation", "f_y / ν_y, any norms", lambda _: PosthocWeightNormalization(), False),
    ("adaptive margin", "π_y^(−1/4)", margins.adaptive, False),
    ("equalised margin", "log π_y'", margins.equalized, False),
    ("logit-adjusted threshold", "f_y − log π_y", lambda _: PosthocLogitAdjustment(), True),
    ("logit-adjusted loss", "log(π_y'/π_y)", margins.logit_adjusted, True),
)

# Beyond the paper's table: what its text discusses, and what users combine.
MORE_ROWS: tuple[tuple[str, str, Subject, None], ...] = (
    ("softmax", "0", margins.softmax, None),
    ("balanced", "0, α = 1/π", margins.balanced, None),
    (
        "weighted logit adjusted",
        "½ log(π_y'/π_y), α = π^−½",
        margins.weighted_logit_adjusted,
        None,
    ),
    (
        "bounded margin",
        "log(π_y'/(π_y + 0.1))",
        lambda prior: Margin(
            alpha=np.ones(prior.num_classes),
            positive=-np.log(prior.probs + 0.1),
            negative=prior.log_probs,
            name="bounded margin",
        ),
        None,
    ),
    (
        "logit adjusted, τ = 2",
        "2 log(π_y'/π_y)",
        lambda prior: margins.logit_adjusted(prior, tau=2.0),
        None,
    ),
    (
        "logit adj. + adaptive",
        "both margins",
        margins.logit_adjusted_adaptive,
        None,
    ),
    (
        "logit adjusted twice",
        "loss, then threshold",
        lambda prior: PosthocLogitAdjustment(trained_with=margins.logit_adjusted(prior)),
        None,
    ),
)


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        name: of the method.
        procedure: its margin Δ_yy' (with weights α, if any) or post-hoc rule.
        paper: the paper's own verdict in Table 1; None for a row that it does not have.
        verdicts: by the names in `PRIORS`.
    """

    name: str
    procedure: str
    paper: bool | None
    verdicts: dict[str, Verdict]

    @property
    def consistent(self) -> bool | None:
        """True if proved for every prior, False if refuted for one."""
        found = [verdict.consistent for verdict in self.verdicts.values()]
        if False in found:
            return False
        return True if all(found) else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "name": self.name,
            "procedure": self.procedure,
            "paper": self.paper,
            "consistent": self.consistent,
            "verdicts": {
                name: {"prior": PRIORS[name].probs.tolist(), **verdict.to_dict()}
                for name, verdict in self.verdicts.items()
            },
        }


@dataclass(frozen=True)
class Curve:
    """One line of a figure.

    Attributes:
        name: of the loss, a key of `binary.examples`, or "tent".
        gamma: γ; None for the tent, which is no member of the family.
        x: p for links and Bayes risks, the score for inverse links.
        y: the closed form there.
        deviation: largest difference from minimising the conditional risk directly.
    """

    name: str
    gamma: float | None
    x: FloatArray
    y: FloatArray
    deviation: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "x": self.x.tolist(), "y": self.y.tolist()}


@dataclass(frozen=True)
class Theory:
    """Everything that `run` computed.

    Attributes:
        pi: π of the curves.
        gammas: their values of γ.
        rows: Table 1, and more rows of its kind.
        links: Ψ(p), in the order of `gammas` and `LINKS`.
        inverse_links: Ψ⁻¹(f), in the same order.
        bayes_risks: L(p) with maximum 1, in the order of `gammas` and `BAYES_RISKS`, then tent.
        thresholds: by loss, Ψ⁻¹(0) at each of `limit_gammas`: consistent iff it is π.
        tent_distances: by loss, how far the normalised Bayes risk is from the tent at most.
        limit_gammas: γ on the way to infinity; the last is infinity itself.
        separable: the experiment on separable data.
    """

    pi: float
    gammas: tuple[float, ...]
    rows: list[Row]
    links: list[Curve]
    inverse_links: list[Curve]
    bayes_risks: list[Curve]
    thresholds: dict[str, list[float]]
    tent_distances: dict[str, list[float]]
    limit_gammas: tuple[float, ...]
    separable: separable.Study

    @property
    def agrees_with_paper(self) -> bool:
        """Whether every row of Table 1 got the paper's verdict."""
        return all(row.consistent == row.paper for row in self.rows if row.paper is not None)

    @property
    def largest_deviation(self) -> float:
        """Of all curves, from direct minimisation."""
        curves = [*self.links, *self.inverse_links, *self.bayes_risks]
        return max(curve.deviation for curve in curves)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "table": [row.to_dict() for row in self.rows],
            "agrees_with_paper": self.agrees_with_paper,
            "pi": self.pi,
            "largest_deviation": self.largest_deviation,
            "links": [curve.to_dict() for curve in self.links],
            "inverse_links": [curve.to_dict() for curve in self.inverse_links],
            "bayes_risks": [curve.to_dict() for curve in self.bayes_risks],
            "limit": {
                # JSON has no infinity.
                "gamma": [g if np.isfinite(g) else "inf" for g in self.limit_gammas],
                "threshold": self.thresholds,
                "distance_to_tent": self.tent_distances,
            },
            "separable": self.separable.to_dict(),
        }


def minimize_directly(loss: BinaryLoss, p: FloatArray) -> FloatArray:
    """Scores that minimise the conditional risk, from the equation alone.

    The risk is convex, so bisection on the sign of its slope finds the minimiser. The slope is
    taken by the complex step: Im R(f + ih)/h has no rounding error to speak of, and needs no
    formula but the risk's own (equation 13).

    Args:
        loss: the loss.
        p: P(+1), shape (points,), inside (0, 1).

    Returns:
        Shape (points,).

    Examples:
        >>> minimize_directly(BinaryLoss(), np.array([0.5, 0.9])).round(6) + 0.0
        array([0.      , 2.197225])
    """
    step = 1e-30

    def slope(f: FloatArray) -> FloatArray:
        return np.asarray(np.imag(_direct_risk(loss, p, f + 1j * step)) / step)

    reach = 1.0 + abs(loss.delta_pos) + abs(loss.delta_neg) + 100.0 / loss.gamma
    low, high = np.full(p.shape, -reach), np.full(p.shape, reach)
    for _ in range(100):
        middle = 0.5 * (low + high)
        rising = slope(middle) > 0
        low, high = np.where(rising, low, middle), np.where(rising, middle, high)
    return np.asarray(0.5 * (low + high))


def _direct_risk(loss: BinaryLoss, p: FloatArray, f: NDArray[Any]) -> NDArray[Any]:
    """Equation 13's conditional risk as written, also of complex scores."""
    g = loss.gamma
    plus = loss.omega_pos / g * np.log(1 + np.exp(g * (loss.delta_pos - f)))
    minus = loss.omega_neg / g * np.log(1 + np.exp(g * (loss.delta_neg + f)))
    return np.asarray(p * plus + (1 - p) * minus)


def table() -> list[Row]:
    """Table 1 of the paper, derived, and more rows of its kind.

    Examples:
        >>> [(row.name, row.consistent) for row in table()][:2]
        [('weight normalisation', False), ('adaptive margin', False)]
    """
    return [
        Row(
            name,
            procedure,
            paper,
            {label: check_consistency(subject(prior), prior) for label, prior in PRIORS.items()},
        )
        for name, procedure, subject, paper in (*TABLE_1, *MORE_ROWS)
    ]


def _link_curves(pi: float, gamma: float, p: FloatArray) -> tuple[list[Curve], list[Curve]]:
    """Links over p and inverse links over the score."""
    links, inverse = [], []
    scores = np.linspace(-4.0, 4.0, len(p))
    for name in LINKS:
        loss = binary.examples(pi, gamma=gamma)[name]
        best = minimize_directly(loss, p)
        link = loss.link(p)
        links.append(Curve(name, gamma, p, link, float(np.abs(link - best).max())))
        # The p whose minimiser is known to be `best`.
        error = float(np.abs(loss.inverse_link(best) - p).max())
        inverse.append(Curve(name, gamma, scores, loss.inverse_link(scores), error))
    return links, inverse


def _risk_curves(pi: float, gamma: float, p: FloatArray) -> list[Curve]:
    """Conditional Bayes risks with maximum 1."""
    curves = []
    for name in BAYES_RISKS:
        loss = binary.examples(pi, gamma=gamma)[name]
        peak = loss.peak()[1]
        risk = loss.bayes_risk(p) / peak
        direct = _direct_risk(loss, p, minimize_directly(loss, p)) / peak
        curves.append(Curve(name, gamma, p, risk, float(np.abs(risk - direct).max())))
    return curves


def _tent_curve(pi: float, p: FloatArray) -> Curve:
    """The balanced error's own Bayes risk; directly, the better of the two predictions."""
    wrong_if_plus, wrong_if_minus = (1 - p) / (1 - pi), p / pi
    direct = np.where(wrong_if_plus < wrong_if_minus, wrong_if_plus, wrong_if_minus)
    risk = binary.tent(p, pi)
    return Curve(TENT, None, p, risk, float(np.abs(risk - direct).max()))


def _limit(
    pi: float, gammas: Sequence[float], p: FloatArray
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Thresholds and distances to the tent on the way γ → ∞, and there."""
    thresholds: dict[str, list[float]] = {}
    distances: dict[str, list[float]] = {}
    for name in ("balanced", "balanced-margin", "balanced-margin-pi"):
        losses: list[BinaryLoss | CostSensitiveSVM] = [
            loss if np.isfinite(g) else loss.limit()
            for g in gammas
            for loss in [binary.examples(pi, gamma=g if np.isfinite(g) else 1.0)[name]]
        ]
        thresholds[name] = [loss.threshold for loss in losses]
        distances[name] = [
            float(np.abs(loss.bayes_risk(p) / loss.peak()[1] - binary.tent(p, pi)).max())
            for loss in losses
        ]
    return thresholds, distances


def run(
    *,
    pi: float = 0.2,
    gammas: Sequence[float] = (1.0, 8.0),
    points: int = 199,
    settings: separable.Settings | None = None,
    progress: Progress | None = None,
) -> Theory:
    """Table 1, all curves with their deviations, the limit γ → ∞ and the separable experiment.

    Args:
        pi: π of the curves; the paper's is 0.2.
        gammas: γ of the curves.
        points: of each curve, at p = 1/(points + 1), 2/(points + 1) and so on.
        settings: of the separable experiment.
        progress: called as progress(done, total, what).

    Returns:
        The Theory; its `to_dict` is what ``longtail reproduce theory --json`` prints.

    Examples:
        >>> quick = separable.Settings(trials=2, penalties=(1e-3,))
        >>> theory = run(points=99, settings=quick)
        >>> theory.agrees_with_paper, theory.largest_deviation < 1e-9
        (True, True)
    """
    caller = "theory.run"
    points = _checks.whole(points, caller, name="points", at_least=2)
    if not len(gammas):
        raise InputError(f"{caller}: `gammas` is empty; give at least one value.")
    total = 2 + len(separable.LOSSES) + 1

    def announce(done: int, what: str) -> None:
        if progress is not None:
            progress(done, total, what)

    announce(0, "judging consistency")
    rows = table()
    announce(1, "drawing curves")
    p = np.arange(1, points + 1) / (points + 1)
    links, inverse, risks = [], [], []
    for gamma in gammas:
        more_links, more_inverse = _link_curves(pi, gamma, p)
        links += more_links
        inverse += more_inverse
        risks += _risk_curves(pi, gamma, p)
    limit_gammas = (1.0, 8.0, 64.0, 512.0, float("inf"))
    thresholds, distances = _limit(pi, limit_gammas, p)
    study = separable.run(
        settings=settings, progress=lambda done, _, what: announce(2 + done, what)
    )
    return Theory(
        pi=pi,
        gammas=tuple(float(gamma) for gamma in gammas),
        rows=rows,
        links=links,
        inverse_links=inverse,
        bayes_risks=[*risks, _tent_curve(pi, p)],
        thresholds=thresholds,
        tent_distances=distances,
        limit_gammas=limit_gammas,
        separable=study,
    )
