"""Separable classes: what weights and margins do there (the claim of the paper's section 2).

Two Gaussian classes with means ±(1, 1), each cut off at the line between them, so that a
separator without any error exists and every training sample is separable. The rare class fills
its side sparsely; a separator halfway between the nearest samples therefore comes too close to
it, and should move towards the common class. Where it stands is measured in half gaps from
the middle: 0 is the maximum margin, +1 the common class's nearest samples, −1 the rare class's.

Three things are compared as the penalty λ/2·‖w‖² vanishes:

* weights. Zero loss stays zero when it is weighted: the position tends to 0.
* margins of the hinge loss, the ones that the claim is about. They ask for distances
  δ₊ and δ₋ in the ratio given, so the position is (δ₊ − δ₋)/(δ₊ + δ₋), whatever λ.
* margins of the cross-entropy, such as the logit-adjusted loss's. They add to logits
  that grow without bound: e^Δ is a weight where the loss is small, and they fade as weights
  do. They last only as long as the norm of w is bounded, by λ, early stopping or a cosine head.

How it looks is in `longtail.report.theory`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri, owens_t

from longtail import _checks, margins
from longtail._checks import FloatArray, InputError, IntArray
from longtail.experiments import Progress, affine
from longtail.margins import Margin
from longtail.priors import ClassPrior

# Along the means, and across them.
_ALONG = np.array([1.0, 1.0]) / np.sqrt(2.0)
_ACROSS = np.array([1.0, -1.0]) / np.sqrt(2.0)
_CENTER = np.sqrt(2.0)

LOSSES = ("softmax", "balanced", "adaptive", "logit-adjusted")
HINGES = ("hinge", "hinge-weights", "hinge-margins")


@dataclass(frozen=True)
class Settings:
    """What the study samples.

    Attributes:
        trials: independent training samples.
        common: training examples of the common class in each.
        rare: training examples of the rare class in each.
        penalties: λ, decreasing.
        seed: trial t draws from the generator seeded with (seed, t).
    """

    trials: int = 50
    common: int = 380
    rare: int = 20
    penalties: tuple[float, ...] = tuple(10.0 ** -np.arange(1.0, 13.0))
    seed: int = 0

    def __post_init__(self) -> None:
        caller = "separable.Settings"
        for name in ("trials", "common", "rare"):
            _checks.whole(getattr(self, name), caller, name=name)
        if not self.penalties:
            raise InputError(f"{caller}: `penalties` is empty; give at least one value.")
        for value in self.penalties:
            _checks.positive(value, caller, name="penalties")

    @property
    def prior(self) -> ClassPrior:
        """Of every trial: the counts are fixed."""
        return ClassPrior.from_counts([self.common, self.rare])


@dataclass(frozen=True)
class HardMargin:
    """The maximum-margin separator of a separable sample.

    Attributes:
        separator: (w₁, w₂, b) with y·(w·x + b) ≥ 1 for all samples, and equality for some.
        middle: halfway between the nearest points of the two classes' convex hulls.
    """

    separator: FloatArray
    middle: FloatArray

    def position(self, separators: FloatArray) -> FloatArray:
        """Where separators (..., 3) cross the gap, in half gaps towards the common class."""
        normal = self.separator[:2]  # a half gap is 1/‖w‖ along w/‖w‖, so w/‖w‖²
        half = normal / (normal @ normal)
        at_middle = separators[..., :2] @ self.middle + separators[..., 2]
        return np.asarray(at_middle / (separators[..., :2] @ half))


@dataclass(frozen=True)
class Study:
    """What the study found; errors are fractions here and percentages in `to_dict`.

    Attributes:
        settings: what was sampled.
        positions: by loss, over λ, shape (trials, penalties): half gaps from the middle.
        errors: balanced error by loss over λ, shape (trials, penalties), and by hinge loss in
            the limit λ → 0, shape (trials,).
        hinge_position: (δ₊ − δ₋)/(δ₊ + δ₋), what the hinge margins ask for.
        weighted_difference: largest change that weights 1/π make to any coefficient of the
            maximum-margin separator, relative to the largest coefficient.
        features: the sample with the widest gap, for the figure, shape (samples, 2).
        target: its classes, shape (samples,).
        examples: that sample's separators at the smallest λ and in the limit, by name.
    """

    settings: Settings
    positions: dict[str, FloatArray]
    errors: dict[str, FloatArray]
    hinge_position: float
    weighted_difference: float
    features: FloatArray
    target: IntArray
    examples: dict[str, FloatArray]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: medians and quartiles over the trials, errors in percent."""
        return {
            "settings": {**vars(self.settings), "centers": [[-1.0, -1.0], [1.0, 1.0]]},
            "positions": {name: quartiles(rows) for name, rows in self.positions.items()},
            "hinge_position": self.hinge_position,
            "weighted_difference": self.weighted_difference,
            "balanced_error": {
                name: {
                    "mean": (100.0 * rows.mean(axis=0)).tolist(),
                    "standard_error": (100.0 * _standard_error(rows)).tolist(),
                }
                for name, rows in self.errors.items()
            },
        }


def quartiles(rows: FloatArray) -> dict[str, list[float]]:
    """Median and quartiles over the trials, the first axis.

    Examples:
        >>> quartiles(np.array([[1.0], [2.0], [3.0]]))
        {'median': [2.0], 'lower': [1.5], 'upper': [2.5]}
    """
    lower, median, upper = np.percentile(rows, [25, 50, 75], axis=0)
    return {"median": median.tolist(), "lower": lower.tolist(), "upper": upper.tolist()}


def _standard_error(rows: FloatArray) -> FloatArray:
    if len(rows) == 1:
        return np.zeros(rows.shape[1:])
    return np.asarray(rows.std(axis=0, ddof=1) / np.sqrt(len(rows)))


def sample(settings: Settings) -> tuple[FloatArray, IntArray]:
    """Every trial's training sample.

    Returns:
        Features (trials, samples, 2) and classes (trials, samples), 1 being the rare one.

    Examples:
        >>> features, target = sample(Settings(trials=2, common=9, rare=3))
        >>> side = features.sum(axis=-1) > 0
        >>> features.shape, bool(np.all(side == (target == 1)))
        ((2, 12, 2), True)
    """
    size = settings.common + settings.rare
    target = np.repeat([0, 1], [settings.common, settings.rare])
    features = np.empty((settings.trials, size, 2))
    for trial in range(settings.trials):
        generator = np.random.default_rng([settings.seed, trial])
        # A normal variable given that it is positive, by its quantiles.
        quantile = generator.uniform(ndtr(-_CENTER), 1.0, size)
        along = (_CENTER + ndtri(quantile)) * (2.0 * target - 1.0)
        across = generator.standard_normal(size)
        features[trial] = along[:, None] * _ALONG + across[:, None] * _ACROSS
    return features, np.tile(target, (settings.trials, 1))


def balanced_error(separators: FloatArray) -> FloatArray:
    """Balanced error of separators on the population, in closed form.

    Along w and along the means a class is a pair of correlated Gaussians, one of them cut off:
    a bivariate normal probability, by Owen's T function.

    Args:
        separators: rows (w₁, w₂, b), shape (..., 3).

    Returns:
        Shape (...).

    Examples:
        >>> balanced_error(np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])).round(3) + 0.0
        array([0.   , 0.087])
    """
    along, across = separators[..., :2] @ _ALONG, separators[..., :2] @ _ACROSS
    bias = separators[..., 2]
    missed_rare, missed_common = _missed(along, across, bias), _missed(along, across, -bias)
    return np.maximum(0.5 * (missed_rare + missed_common), 0.0)


def _missed(along: FloatArray, across: FloatArray, bias: FloatArray) -> FloatArray:
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
    features: FloatArray, target: IntArray, *, class_weight: dict[int, float] | None = None
) -> HardMargin:
    """The separator of maximum margin: the hinge loss's as the penalty vanishes.

    Args:
        features: shape (samples, 2), separable.
        target: 0 or 1, shape (samples,).
        class_weight: of the hinge losses, by class; it has no effect, which is the point.

    Raises:
        InputError: no line separates the classes.

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
    separator = np.append(model.coef_[0], model.intercept_[0])
    sign = 2.0 * target - 1.0
    if np.min(sign * (features @ separator[:2] + separator[2])) < 1.0 - 1e-4:
        raise InputError("separable.hard_margin: no line separates the classes.")
    pull = np.zeros(len(target))
    pull[model.support_] = np.abs(model.dual_coef_[0])
    nearest = [(pull[side] @ features[side]) / pull[side].sum() for side in (sign > 0, sign < 0)]
    return HardMargin(separator, 0.5 * (nearest[0] + nearest[1]))


def uneven(hard: HardMargin, delta_pos: float, delta_neg: float) -> FloatArray:
    """The hinge loss's separator with margins δ₊ and δ₋ as the penalty vanishes.

    w·x + b ≥ δ₊ and w·x + b ≤ −δ₋ is the maximum-margin problem for b − (δ₊ − δ₋)/2 with the
    margin (δ₊ + δ₋)/2 on both sides: the same line, moved.

    Args:
        hard: the maximum-margin separator.
        delta_pos: δ₊, of class 1.
        delta_neg: δ₋, of class 0.

    Examples:
        >>> hard = hard_margin(np.array([[0.0, 0.0], [2.0, 0.0]]), np.array([0, 1]))
        >>> hard.position(uneven(hard, 3.0, 1.0)).round(6)
        np.float64(0.5)
    """
    moved = 0.5 * (delta_pos + delta_neg) * hard.separator
    moved[2] += 0.5 * (delta_pos - delta_neg)
    return np.asarray(moved)


def _deltas(prior: ClassPrior) -> FloatArray:
    """Hinge margins ∝ π^{−1/4}, as Cao et al. (2019) derive them for separable classes; mean 1."""
    quarter = np.exp(-0.25 * prior.log_probs)
    return np.asarray(quarter / quarter.mean())


def run(*, settings: Settings | None = None, progress: Progress | None = None) -> Study:
    """The whole study: four cross-entropies over λ, and hinge losses in the limit.

    Args:
        settings: what to sample.
        progress: called as progress(done, total, what).

    Returns:
        The Study.

    Examples:
        >>> study = run(settings=Settings(trials=3, penalties=(1e-2, 1e-9)))
        >>> abs(study.weighted_difference) < 1e-6
        True
    """
    settings = settings or Settings()
    total = len(LOSSES) + 1
    step = iter(range(total + 1))

    def announce(what: str) -> None:
        if progress is not None:
            progress(next(step), total, what)

    announce("the maximum margin")
    features, target = sample(settings)
    prior, trials = settings.prior, settings.trials
    hard = [hard_margin(x, y) for x, y in zip(features, target, strict=True)]
    weight = dict(enumerate(margins.balanced(prior).alpha.tolist()))
    weighted = [
        hard_margin(x, y, class_weight=weight) for x, y in zip(features, target, strict=True)
    ]
    common, rare = _deltas(prior)
    limits = {
        "hinge": np.stack([h.separator for h in hard]),
        "hinge-weights": np.stack([h.separator for h in weighted]),
        "hinge-margins": np.stack([uneven(h, rare, common) for h in hard]),
    }

    def fit(loss: Margin, penalty: float) -> FloatArray:
        # The gradient's terms are of the size of the penalty's.
        return affine.fit(
            features, target, [loss] * trials, penalty=penalty, tolerance=1e-7 * penalty
        )

    def place(rows: FloatArray) -> FloatArray:
        return np.stack([h.position(r) for h, r in zip(hard, rows, strict=True)])

    paths: dict[str, FloatArray] = {}
    for name in LOSSES:
        announce(f"solving {name}")
        loss = margins.by_name(name, prior)
        paths[name] = np.stack([fit(loss, lam) for lam in settings.penalties], axis=1)
    announce("done")
    # Half the gap is 1/‖w‖.
    widest = int(np.argmin(np.linalg.norm(limits["hinge"][:, :2], axis=1)))
    change = np.abs(limits["hinge-weights"] - limits["hinge"]).max()
    return Study(
        settings=settings,
        positions={name: place(rows) for name, rows in paths.items()},
        errors={name: balanced_error(rows) for name, rows in {**paths, **limits}.items()},
        hinge_position=float((rare - common) / (rare + common)),
        weighted_difference=float(change / np.abs(limits["hinge"]).max()),
        features=features[widest],
        target=target[widest],
        examples={
            **{name: rows[widest, -1] for name, rows in paths.items()},
            **{name: rows[widest] for name, rows in limits.items()},
        },
    )
