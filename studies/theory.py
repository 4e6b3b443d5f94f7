"""The paper's theory, computed: Table 1 with witnesses, the appendix's curves, separable classes.

Table 1 is derived by `check_consistency`. Links and conditional Bayes risks of the appendix on
binary losses come from the corrected closed forms in `longtail.consistency.binary`, each checked
against direct minimisation of the risk. Section 2 says that weights do nothing on separable
classes while margins do: the last part shows it. Takes seconds.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri, owens_t

from longtail import (
    ClassPrior,
    InputError,
    Margin,
    PosthocLogitAdjustment,
    PosthocWeightNormalization,
    Verdict,
    check_consistency,
    margins,
)
from longtail.consistency import binary
from longtail.consistency.binary import BinaryLoss
from longtail.report import figures
from longtail.report.tables import Table
from studies import _pages as pages
from studies.synthetic import fit

# ---------------------------------------------------------------------------- Table 1

PRIORS = (ClassPrior.from_probs([0.95, 0.05]), ClassPrior.from_probs([0.7, 0.25, 0.05]))


def bounded(prior: ClassPrior) -> Margin:
    """Return a consistent margin that stays bounded for the rarest classes."""
    return Margin(
        alpha=np.ones(prior.num_classes),
        positive=-np.log(prior.probs + 0.1),
        negative=prior.log_probs,
        name="bounded margin",
    )


# Name, its margin Δ_yy' or rule, what is judged, and the paper's own verdict where it has one.
TABLE: tuple[tuple[str, str, Callable[[ClassPrior], Any], bool | None], ...] = (
    ("weight normalisation", "f_y / ν_y, any norms", lambda _: PosthocWeightNormalization(), False),
    ("adaptive margin", "π_y^{−1/4}", margins.adaptive, False),
    ("equalised margin", "log π_y'", margins.equalized, False),
    ("logit-adjusted threshold", "f_y − log π_y", lambda _: PosthocLogitAdjustment(), True),
    ("logit-adjusted loss", "log(π_y'/π_y)", margins.logit_adjusted, True),
    ("softmax", "0", margins.softmax, None),
    ("balanced", "0, α = 1/π", margins.balanced, None),
    (
        "weighted logit adjusted",
        "½ log(π_y'/π_y), α = π^−½",
        margins.weighted_logit_adjusted,
        None,
    ),
    ("bounded margin", "log(π_y'/(π_y + 0.1))", bounded, None),
    (
        "logit adjusted, τ = 2",
        "2 log(π_y'/π_y)",
        lambda prior: margins.logit_adjusted(prior, tau=2.0),
        None,
    ),
    ("logit adj. + adaptive", "both margins", margins.logit_adjusted_adaptive, None),
    (
        "logit adjusted twice",
        "loss, then threshold",
        lambda prior: PosthocLogitAdjustment(trained_with=margins.logit_adjusted(prior)),
        None,
    ),
)


def verdicts() -> dict[str, list[Verdict]]:
    """Return the verdicts on every row of the table, for each of `PRIORS`."""
    return {
        name: [check_consistency(subject(prior), prior) for prior in PRIORS]
        for name, _, subject, _ in TABLE
    }


def consistency_table(found: Mapping[str, list[Verdict]]) -> Table:
    """Return Table 1 and more rows of its kind."""
    marks = {True: "✓", False: "✗", None: "?"}
    rows = [
        (
            name,
            procedure,
            "" if paper is None else marks[paper],
            "".join(dict.fromkeys(marks[verdict.consistent] for verdict in found[name])),
        )
        for name, procedure, _, paper in TABLE
    ]
    priors = " and ".join(_numbers(prior.probs) for prior in PRIORS)
    return Table(
        "Consistent for the balanced error?",
        ("method", "Δ_yy' or rule", "paper", "here"),
        rows,
        note=f"✓ proved, ✗ refuted by a witness, for the priors {priors}.",
    )


def witness_table(found: Mapping[str, list[Verdict]]) -> Table:
    """Return where inconsistent methods put a wrong class first, with the last of `PRIORS`."""
    rows = [
        (name, _numbers(w.eta), _numbers(w.scores, digits=2), f"{w.wins}, not {w.should_win}")
        for name, (*_, verdict) in found.items()
        if (w := verdict.witness) is not None
    ]
    return Table(
        "Witnesses: class probabilities η at which the wrong class wins",
        ("method", "η", "best scores", "wins"),
        rows,
        note=(
            "The scores minimise the method's risk at η (after the rule, for post-hoc methods); "
            "the class with the largest η/π should win. Classes are numbered from 0, the last "
            "being the rarest."
        ),
    )


def _numbers(values: np.ndarray, *, digits: int | None = None) -> str:
    form = ".3g" if digits is None else f".{digits}f"
    return f"({', '.join(f'{value:{form}}' for value in values)})"


# ---------------------------------------------------------------------------- binary losses

PI = 0.2
GAMMAS = (1.0, 8.0)
LIMIT_GAMMAS = (1.0, 8.0, 64.0, 512.0, np.inf)
POINTS = np.arange(1, 200) / 200  # of every curve over p
SCORES = np.linspace(-4.0, 4.0, len(POINTS))
LINKS = ("balanced", "unequal-margin", "balanced-margin")
RISKS = ("logistic", *LINKS, "balanced-margin-pi")
LIMITS = {
    "balanced": "balanced",
    "balanced-margin": "+ δ₋ = π/(1 − π)",
    "balanced-margin-pi": "+ δ₋ = π",
}


@dataclass(frozen=True, eq=False)
class Curve:
    """A line of a figure."""

    name: str  # of the loss, a key of `binary.examples`, or "tent"
    gamma: float | None  # γ; None for the tent
    x: np.ndarray  # p for links and Bayes risks, the score for inverse links
    y: np.ndarray  # the closed form there
    deviation: float  # largest difference from minimising the conditional risk directly


def minimize_directly(loss: BinaryLoss, p: np.ndarray) -> np.ndarray:
    """Return scores that minimise the conditional risk, from equation 13 alone.

    The risk is convex, so bisection on the sign of its slope finds the minimiser. The slope is
    taken by the complex step, Im R(f + ih)/h, which has no rounding error to speak of.

    Examples:
        >>> minimize_directly(BinaryLoss(), np.array([0.5, 0.9])).round(6) + 0.0
        array([0.      , 2.197225])
    """
    step = 1e-30
    reach = 1.0 + abs(loss.delta_pos) + abs(loss.delta_neg) + 100.0 / loss.gamma
    low, high = np.full(p.shape, -reach), np.full(p.shape, reach)
    for _ in range(100):
        middle = 0.5 * (low + high)
        rising = np.imag(direct_risk(loss, p, middle + 1j * step)) > 0
        low, high = np.where(rising, low, middle), np.where(rising, middle, high)
    return np.asarray(0.5 * (low + high))


def direct_risk(loss: BinaryLoss, p: np.ndarray, f: np.ndarray) -> np.ndarray:
    """Return equation 13's conditional risk as written, also of complex scores."""
    g = loss.gamma
    plus = loss.omega_pos / g * np.log(1 + np.exp(g * (loss.delta_pos - f)))
    minus = loss.omega_neg / g * np.log(1 + np.exp(g * (loss.delta_neg + f)))
    return np.asarray(p * plus + (1 - p) * minus)


def curves() -> dict[str, list[Curve]]:
    """Return links, inverse links and Bayes risks with maximum 1, at each γ."""
    found: dict[str, list[Curve]] = {"links": [], "inverse-links": [], "bayes-risks": []}

    def keep(kind: str, name: str, gamma: float | None, x: Any, y: Any, off: Any) -> None:
        found[kind].append(Curve(name, gamma, x, y, float(np.abs(off).max())))

    for gamma in GAMMAS:
        losses, p = binary.examples(PI, gamma=gamma), POINTS
        for name in LINKS:
            loss, best = losses[name], minimize_directly(losses[name], p)
            link = loss.link(p)
            keep("links", name, gamma, p, link, link - best)
            # The p whose minimiser is known to be `best`.
            off = loss.inverse_link(best) - p
            keep("inverse-links", name, gamma, SCORES, loss.inverse_link(SCORES), off)
        for name in RISKS:
            loss = losses[name]
            peak, risk = loss.peak()[1], loss.bayes_risk(p)
            direct = direct_risk(loss, p, minimize_directly(loss, p))
            keep("bayes-risks", name, gamma, p, risk / peak, (risk - direct) / peak)
    # The balanced error's own Bayes risk: the better of the two predictions.
    direct = np.minimum((1 - POINTS) / (1 - PI), POINTS / PI)
    tent = binary.tent(POINTS, PI)
    keep("bayes-risks", "tent", None, POINTS, tent, tent - direct)
    return found


def limit_table() -> Table:
    """Return thresholds and distances from the balanced error's risk on the way γ → ∞."""
    rows = []
    for what in ("threshold", "to tent"):
        for name, text in LIMITS.items():
            cells = []
            for gamma in LIMIT_GAMMAS:
                loss: Any = binary.examples(PI, gamma=min(gamma, 1e3))[name]
                loss = loss if np.isfinite(gamma) else loss.limit()
                risk = loss.bayes_risk(POINTS) / loss.peak()[1]
                distance = np.abs(risk - binary.tent(POINTS, PI)).max()
                cells.append(f"{loss.threshold if what == 'threshold' else distance:.3f}")
            rows.append((text, what, *cells))
    heads = [f"γ = {gamma:g}" if np.isfinite(gamma) else "γ → ∞" for gamma in LIMIT_GAMMAS]
    return Table(
        f"Binary losses as γ → ∞, π = {PI:g}",
        ("loss", "quantity", *heads),
        rows,
        note=(
            "threshold: Ψ⁻¹(0), which is π iff the loss is consistent. to tent: largest distance "
            "of its Bayes risk from the balanced error's own, both of maximum 1."
        ),
    )


# Label, colour, dashes and width; lines that coincide lie broad under thin.
_LINES: dict[str, tuple[str, str, Any, float]] = {
    "logistic": ("log-loss", figures.LIGHT_GRAY, "-", 4.5),
    "balanced": ("balanced", figures.GREEN, "-", 1.6),
    "unequal-margin": ("unequal margins", figures.BLUE, (0, (5, 1.6)), 1.6),
    "balanced-margin": ("balanced + margin, δ₋ = π/(1 − π)", figures.VERMILION, (0, (1.2, 1)), 2.0),
    "balanced-margin-pi": ("balanced + margin, δ₋ = π", figures.PURPLE, (0, (4, 1, 1, 1)), 1.4),
    "tent": ("balanced error (tent)", figures.BLACK, "-", 0.9),
}
_AXES: dict[str, dict[str, Any]] = {
    "links": {"xlim": (0, 1), "ylim": (-4, 4), "xlabel": "p = P(y = +1 | x)"},
    "inverse-links": {"xlim": (-4, 4), "ylim": (0, 1.02), "xlabel": "score f"},
    "bayes-risks": {"xlim": (0, 1), "ylim": (0, 1.04), "xlabel": "p = P(y = +1 | x)"},
}
_HEIGHTS = {
    "links": "link Ψ(p): best score at p",
    "inverse-links": "inverse link Ψ⁻¹(f)",
    "bayes-risks": "conditional Bayes risk / its maximum",
}


def draw_curves(kind: str, found: Iterable[Curve]) -> Any:
    """Draw one of the appendix's three figures, one panel per γ."""
    shown = list(found)
    with figures.style():
        figure, grid = figures.panels(columns=len(GAMMAS), height=3.1, sharey=True)
        for panel, gamma in zip(grid[0], GAMMAS, strict=True):
            prior_line = panel.axhline if kind == "inverse-links" else panel.axvline
            prior_line(PI, color=figures.GRAY, lw=0.9, ls=(0, (2, 2)))
            if kind != "bayes-risks":
                zero_line = panel.axvline if kind == "inverse-links" else panel.axhline
                zero_line(0.0, color=figures.GRAY, lw=0.7)
            for curve in (one for one in shown if one.gamma in (gamma, None)):
                label, shade, dashes, width = _LINES[curve.name]
                panel.plot(curve.x, curve.y, color=shade, ls=dashes, lw=width, label=label)
            panel.set(title=f"γ = {gamma:g}", **_AXES[kind])
        first = grid[0, 0]
        first.set_ylabel(_HEIGHTS[kind])
        if kind == "inverse-links":
            first.text(3.9, PI + 0.015, f"π = {PI:g}", fontsize=7.5, ha="right")
        else:
            low = _AXES[kind]["ylim"][0]
            first.text(PI + 0.015, low + 0.02, f"π = {PI:g}", fontsize=7.5, va="bottom")
        handles, labels = first.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


# ---------------------------------------------------------------------------- separable classes

TRIALS, COMMON, SCARCE = 50, 380, 20
PENALTIES = tuple(10.0 ** -np.arange(1.0, 13.0))  # λ, falling
SHOWN_PENALTIES = (4, 7, 11)
LOSSES = {
    "softmax": margins.softmax,
    "balanced": margins.balanced,
    "adaptive": margins.adaptive,
    "logit-adjusted": margins.logit_adjusted,
}
HINGES = {
    "hinge": "hinge, maximum margin",
    "hinge-weights": "hinge, weights 1/π",
    "hinge-margins": "hinge, margins ∝ π^{−1/4}",
}
_ALONG, _ACROSS = np.array([1.0, 1.0]) / np.sqrt(2.0), np.array([1.0, -1.0]) / np.sqrt(2.0)
_CENTER = np.sqrt(2.0)  # of either class, along the means


@dataclass(frozen=True, eq=False)
class HardMargin:
    """The maximum-margin separator of a separable sample."""

    separator: np.ndarray  # (w₁, w₂, b), y·(w·x + b) ≥ 1 for all samples, with equality for some
    middle: np.ndarray  # halfway between the nearest points of the classes' convex hulls

    def position(self, separators: np.ndarray) -> np.ndarray:
        """Return where separators (..., 3) cross the gap, in half gaps towards the common class."""
        normal = self.separator[:2]  # a half gap is 1/‖w‖ along w/‖w‖, so w/‖w‖²
        half = normal / (normal @ normal)
        at_middle = separators[..., :2] @ self.middle + separators[..., 2]
        return np.asarray(at_middle / (separators[..., :2] @ half))


def separable_sample(trials: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw two Gaussians with means ±(1, 1), each cut off at the line between them.

    Returns:
        Features (trials, samples, 2) and classes (trials, samples), 1 being the rare one.

    Examples:
        >>> features, target = separable_sample(2)
        >>> bool(np.all((features.sum(axis=-1) > 0) == (target == 1)))
        True
    """
    size, target = COMMON + SCARCE, np.repeat([0, 1], [COMMON, SCARCE])
    features = np.empty((trials, size, 2))
    for trial in range(trials):
        generator = np.random.default_rng([0, trial])
        # A normal variable given that it is positive, by its quantiles.
        quantile = generator.uniform(ndtr(-_CENTER), 1.0, size)
        along = (_CENTER + ndtri(quantile)) * (2.0 * target - 1.0)
        across = generator.standard_normal(size)
        features[trial] = along[:, None] * _ALONG + across[:, None] * _ACROSS
    return features, np.tile(target, (trials, 1))


def population_error(separators: np.ndarray) -> np.ndarray:
    """Return the balanced error of separators on the population, in closed form.

    Along w and along the means a class is a pair of correlated Gaussians, one of them cut off:
    a bivariate normal probability, by Owen's T function.

    Examples:
        >>> population_error(np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])).round(3) + 0.0
        array([0.   , 0.087])
    """
    along, across = separators[..., :2] @ _ALONG, separators[..., :2] @ _ACROSS
    bias = separators[..., 2]
    missed = [_missed(along, across, sign * bias) for sign in (1.0, -1.0)]
    return np.maximum(0.5 * (missed[0] + missed[1]), 0.0)


def _missed(along: np.ndarray, across: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """P(along·t + across·v + bias < 0 | t > 0) for t ~ N(√2, 1) and v ~ N(0, 1)."""
    norm = np.hypot(along, across)
    h, k, rho = -(bias + along * _CENTER) / norm, _CENTER, -along / norm
    # √(1 − ρ²), without cancelling, and never 0: at the true line the quotient would be 0/0.
    rest = np.maximum(np.abs(across) / norm, 1e-300)
    with np.errstate(divide="ignore", over="ignore"):
        joint = (
            0.5 * (ndtr(h) + ndtr(k))
            - owens_t(h, (k - rho * h) / (h * rest))
            - owens_t(k, (h - rho * k) / (k * rest))
            - 0.5 * (h < 0)
        )
    return np.asarray(joint / ndtr(k))


def hard_margin(
    features: np.ndarray, target: np.ndarray, *, class_weight: dict[int, float] | None = None
) -> HardMargin:
    """Return the separator of maximum margin: the hinge loss's as the penalty vanishes.

    Examples:
        >>> features = np.array([[0.0, 0.0], [2.0, 0.0], [3.0, 1.0]])
        >>> found = hard_margin(features, np.array([0, 1, 1]))
        >>> found.separator.round(6) + 0.0, found.middle.round(6)
        (array([ 1.,  0., -1.]), array([1., 0.]))
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.svm import SVC

    model = SVC(kernel="linear", C=1e9, tol=1e-9, class_weight=class_weight, max_iter=2_000_000)
    with warnings.catch_warnings():
        # It never converges where no line separates, which is found out below.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(features, target)
    separator, sign = np.append(model.coef_[0], model.intercept_[0]), 2.0 * target - 1.0
    if np.min(sign * (features @ separator[:2] + separator[2])) < 1.0 - 1e-4:
        raise InputError("no line separates the classes.")
    pull = np.zeros(len(target))
    pull[model.support_] = np.abs(model.dual_coef_[0])
    nearest = [(pull[side] @ features[side]) / pull[side].sum() for side in (sign > 0, sign < 0)]
    return HardMargin(separator, 0.5 * (nearest[0] + nearest[1]))


def uneven(hard: HardMargin, delta_pos: float, delta_neg: float) -> np.ndarray:
    """Return the hinge loss's separator with margins δ₊ and δ₋ as the penalty vanishes.

    w·x + b ≥ δ₊ and w·x + b ≤ −δ₋ is the maximum-margin problem for b − (δ₊ − δ₋)/2 with the
    margin (δ₊ + δ₋)/2 on both sides: the same line, moved.

    Examples:
        >>> hard = hard_margin(np.array([[0.0, 0.0], [2.0, 0.0]]), np.array([0, 1]))
        >>> float(hard.position(uneven(hard, 3.0, 1.0)).round(6))
        0.5
    """
    moved = 0.5 * (delta_pos + delta_neg) * hard.separator
    moved[2] += 0.5 * (delta_pos - delta_neg)
    return np.asarray(moved)


@dataclass(frozen=True, eq=False)
class Separable:
    """Separators of separable classes, by loss."""

    # By loss over λ, shape (trials, penalties): half gaps from the middle, +1 being the common
    # class's nearest samples.
    positions: dict[str, np.ndarray]
    # Balanced error by loss over λ, and by hinge loss in the limit, shape (trials,).
    errors: dict[str, np.ndarray]
    hinge_position: float  # (δ₊ − δ₋)/(δ₊ + δ₋), what the hinge margins ask for
    # Largest change that weights 1/π make to any coefficient, relative to the largest.
    weighted_difference: float
    features: np.ndarray  # the sample with the widest gap, for the figure
    target: np.ndarray
    examples: dict[str, np.ndarray]  # that sample's hinge separators


def separable(trials: int = TRIALS, penalties: tuple[float, ...] = PENALTIES) -> Separable:
    """Fit four cross-entropies over λ, and hinge losses in the limit λ → 0.

    Examples:
        >>> abs(separable(2, (1e-2, 1e-9)).weighted_difference) < 1e-6
        True
    """
    features, target = separable_sample(trials)
    prior = ClassPrior.from_counts([COMMON, SCARCE])
    pairs = list(zip(features, target, strict=True))
    weight = dict(enumerate(margins.balanced(prior).alpha.tolist()))
    hard = [hard_margin(x, y) for x, y in pairs]
    weighted = [hard_margin(x, y, class_weight=weight) for x, y in pairs]
    # Cao et al. (2019) derive margins ∝ π^(−1/4) for separable classes; their mean is 1 here.
    deltas = np.exp(-0.25 * prior.log_probs)
    common, rare = deltas / deltas.mean()
    limits = {
        "hinge": np.stack([one.separator for one in hard]),
        "hinge-weights": np.stack([one.separator for one in weighted]),
        "hinge-margins": np.stack([uneven(one, rare, common) for one in hard]),
    }
    paths = {
        name: np.stack(
            [  # the gradient's terms are of the size of the penalty's
                fit(features, target, [make(prior)] * trials, penalty=lam, tolerance=1e-7 * lam)
                for lam in penalties
            ],
            axis=1,
        )
        for name, make in LOSSES.items()
    }
    widest = int(np.argmin(np.linalg.norm(limits["hinge"][:, :2], axis=1)))  # half a gap is 1/‖w‖
    change = np.abs(limits["hinge-weights"] - limits["hinge"]).max()
    return Separable(
        positions={
            name: np.stack([one.position(row) for one, row in zip(hard, rows, strict=True)])
            for name, rows in paths.items()
        },
        errors={name: population_error(rows) for name, rows in {**paths, **limits}.items()},
        hinge_position=float((rare - common) / (rare + common)),
        weighted_difference=float(change / np.abs(limits["hinge"]).max()),
        features=features[widest],
        target=target[widest],
        examples={name: rows[widest] for name, rows in limits.items()},
    )


def separable_table(study: Separable) -> Table:
    """Return errors and positions at three penalties, and in the limit for hinge losses."""
    rows = []
    for name in LOSSES:
        errors, places = 100 * study.errors[name], np.median(study.positions[name], axis=0)
        cells = [f"{errors[:, i].mean():.2f} ({places[i]:+.2f})" for i in SHOWN_PENALTIES]
        rows.append((figures.label(name), *cells))
    for name, text in HINGES.items():
        place = study.hinge_position if name == "hinge-margins" else 0.0
        cell = f"{100 * study.errors[name].mean():.2f} ({place:+.2f})"
        rows.append((text, *[""] * (len(SHOWN_PENALTIES) - 1), cell))
    return Table(
        "Separable classes: balanced error in percent (position of the separator)",
        ("loss", *(f"λ = {PENALTIES[i]:.0e}" for i in SHOWN_PENALTIES)),
        rows,
        note=(
            f"Mean of {TRIALS} trials of {COMMON} + {SCARCE} examples; position: median, in half "
            f"gaps from the maximum-margin separator towards the common class. Hinge losses in "
            f"the limit λ → 0, where weights change no coefficient of the separator by more than "
            f"{max(study.weighted_difference, 1e-12):.0e} of the largest."
        ),
    )


_HINGE_LINES: dict[str, dict[str, Any]] = {
    "hinge-weights": {"color": figures.BLACK, "ls": (0, (4, 2)), "lw": 1.2},
    "hinge-margins": {"color": figures.VERMILION, "ls": (0, (4, 2)), "lw": 1.4},
}
_HINGE_LEGEND = {
    "hinge-weights": "hinge, any weights (λ → 0)",
    "hinge-margins": "hinge, margins ∝ $π^{-1/4}$ (λ → 0)",
}


def draw_separable(study: Separable) -> Any:
    """Draw a sample, the separators' positions over λ, and balanced errors over λ."""
    with figures.style():
        figure, grid = figures.panels(columns=3, width=10.2, height=3.3)
        figure.get_layout_engine().set(wspace=0.05)
        plane, positions, errors = grid[0]
        _draw_plane(plane, study)
        for name in LOSSES:
            shade, rows = figures.color(name), study.positions[name]
            lower, median, upper = np.percentile(rows, [25, 50, 75], axis=0)
            positions.plot(PENALTIES, median, color=shade)
            positions.fill_between(PENALTIES, lower, upper, color=shade, alpha=0.15, lw=0)
            mean = 100 * study.errors[name].mean(axis=0)
            errors.plot(PENALTIES, mean, color=shade, label=figures.label(name))
        positions.axhline(0.0, **_HINGE_LINES["hinge-weights"])
        positions.axhline(study.hinge_position, **_HINGE_LINES["hinge-margins"])
        for name, look in _HINGE_LINES.items():
            errors.axhline(100 * study.errors[name].mean(), label=_HINGE_LEGEND[name], **look)
        small = {"ha": "right", "va": "top", "fontsize": 7.5, "color": figures.GRAY}
        for place, text in ((1, "nearest common samples"), (-1, "nearest rare samples")):
            positions.axhline(place, color=figures.GRAY, lw=0.7)
            across = positions.get_yaxis_transform()
            positions.text(0.985, place - 0.04, text, transform=across, **small)
        for axes in (positions, errors):
            axes.set_xscale("log")
            axes.set(xlim=(max(PENALTIES), min(PENALTIES)), xlabel="penalty λ, falling")
        positions.set(ylim=(-1.5, 1.5), ylabel="separator's place in the gap (half gaps)")
        positions.set_title("(b) Where separators go, median and quartiles")
        errors.set(ylim=(0, 4), ylabel="balanced error (%)")
        errors.set_title(f"(c) Error on the population, mean of {TRIALS}")
        handles, labels = errors.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=6)
    return figure


def _draw_plane(axes: Any, study: Separable) -> None:
    """The sample with the widest gap, with the separators that remain as λ → 0."""
    for rare, shade, size in ((0, figures.LIGHT_GRAY, 9), (1, figures.DARK_GRAY, 14)):
        axes.scatter(*study.features[study.target == rare].T, s=size, color=shade, linewidths=0)
    ends = np.array([-6.0, 6.0])
    axes.plot(ends, -ends, color=figures.GRAY, lw=0.8)
    for name, look in _HINGE_LINES.items():
        first, second, bias = study.examples[name]
        axes.plot(ends, -(bias + first * ends) / second, **look)
    axes.set(xlim=(-2.6, 2.6), ylim=(-2.6, 2.6), aspect="equal", xlabel="$x_1$", ylabel="$x_2$")
    axes.grid(visible=False)
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5}
    top = {"ha": "right", "va": "top", "fontsize": 7.5, "bbox": box}
    axes.text(2.5, 2.5, "rare class", color=figures.BLACK, **top)
    bottom = top | {"ha": "left", "va": "bottom"}
    axes.text(-2.5, -2.4, "common class", color=figures.GRAY, **bottom)
    slanted = {"rotation": -45, "ha": "center", "va": "center", "fontsize": 7.5}
    axes.text(1.5, -1.72, "true boundary", color=figures.GRAY, **slanted)
    axes.set_title("(a) Sample with the widest gap")


# ---------------------------------------------------------------------------- the page

FIGURES = {
    "links": "Link functions of binary losses",
    "inverse-links": "Inverse link functions of binary losses",
    "bayes-risks": "Conditional Bayes risks of binary losses",
}


def main(options: argparse.Namespace) -> None:
    """Compute everything, print the tables and write the page."""
    found, drawn, study = verdicts(), curves(), separable()
    deviation = max(curve.deviation for several in drawn.values() for curve in several)
    tables = {
        "consistency": consistency_table(found),
        "witnesses": witness_table(found),
        "limit": limit_table(),
        "separable": separable_table(study),
    }
    pages.show(tables.values())
    agrees = all(
        paper is None or all(verdict.consistent == paper for verdict in found[name])
        for name, _, _, paper in TABLE
    )
    with pages.page(options, "docs/paper-theory.md") as write:
        write(
            pages.render(
                "theory", **tables, agrees=agrees, deviation=deviation, figures=FIGURES, study=study
            )
        )
        for kind, title in FIGURES.items():
            write.figure(kind, draw_curves(kind, drawn[kind]), title=title)
        title = "Weights and margins on separable classes"
        write.figure("separable", draw_separable(study), title=title)
