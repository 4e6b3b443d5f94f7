"""The paper's synthetic study (section 6.1): two Gaussian classes, one of them rare.

Each trial draws its own training and test sample, fits an affine separator under every loss
and corrects the softmax one after the fact. The error of an affine separator on Gaussian
classes has a closed form, so the methods are judged without sampling noise; the error on the
test sample is kept beside it. All trials are solved together. How the results look is in
`longtail.report.synthetic`.

An affine separator is one row (w, b) here and stands for the two zero-sum logits
f₊(x) = (w·x + b)/2 and f₋(x) = −f₊(x) of the paper's footnote; class 1 is the rare one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.special import ndtr

from longtail import _checks, margins, metrics, posthoc
from longtail._checks import FloatArray, InputError, IntArray
from longtail.experiments import Progress, affine
from longtail.posthoc import BiasMode
from longtail.priors import ClassPrior

LOSSES = ("softmax", "balanced", "adaptive", "equalized", "logit-adjusted")
BIAS_MODES: tuple[BiasMode, ...] = ("scale", "keep", "drop")
POSTHOC = ("posthoc-logit-adjusted", "posthoc-weight-normalized")

# Class centres ±(1, 1) of the paper; row y is the centre of class y.
CENTERS = np.array([[-1.0, -1.0], [1.0, 1.0]])


@dataclass(frozen=True)
class Settings:
    """What the study samples; the defaults are the paper's (σ = 1 is not in its text).

    Attributes:
        trials: independent repetitions.
        num_train: training samples in each.
        num_test: test samples in each.
        rare: P(y = 1).
        sigma: σ, standard deviation of either class in every direction.
        seed: trial t draws from the generator seeded with (seed, t, split), so its data do
            not depend on how many trials there are.
    """

    trials: int = 100
    num_train: int = 10_000
    num_test: int = 10_000
    rare: float = 0.05
    sigma: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        caller = "synthetic.Settings"
        for name in ("trials", "num_train", "num_test"):
            value = getattr(self, name)
            if isinstance(value, bool) or int(value) != value or value < 1:
                raise InputError(
                    f"{caller}: `{name}` must be a whole number above zero; got {value!r}."
                )
        _checks.positive(self.sigma, caller, name="sigma")
        if not 0 < _checks.fraction(self.rare, caller, name="rare") < 1:
            raise InputError(
                f"{caller}: `rare` must lie strictly between 0 and 1, so that both classes "
                f"occur; got {self.rare:g}."
            )


@dataclass(frozen=True)
class Sample:
    """Features (..., samples, 2) and their classes (..., samples)."""

    features: FloatArray
    target: IntArray


@dataclass(frozen=True)
class Study:
    """Everything the study found; errors are fractions here and percentages in `to_dict`.

    Attributes:
        settings: what was sampled.
        separators: rows (w₁, w₂, b) by method, shape (trials, 3).
        errors: balanced error by method in closed form, shape (trials,).
        sampled: balanced error by method on the test sample, shape (trials,).
        tau: the grid of the curves, shape (grid,).
        curves: closed-form error over `tau`, shape (trials, grid), of post-hoc logit
            adjustment and, by bias mode, of post-hoc weight normalisation.
        example: the training sample of the first trial, for the figure.
    """

    settings: Settings
    separators: dict[str, FloatArray]
    errors: dict[str, FloatArray]
    sampled: dict[str, FloatArray]
    tau: FloatArray
    curves: dict[str, FloatArray]
    example: Sample

    @property
    def bayes_error(self) -> float:
        """The least balanced error that any classifier has on this problem."""
        return bayes_error(sigma=self.settings.sigma)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: means and standard deviations over the trials, in percent."""
        gap = self.separators["posthoc-logit-adjusted"] - self.separators["logit-adjusted"]
        names = [*LOSSES, *POSTHOC]
        curves = {name: _moments(errors) for name, errors in self.curves.items()}
        return {
            "bayes_error": 100.0 * self.bayes_error,
            "methods": {name: _moments(self.errors[name]) for name in names},
            "sampled": {name: _moments(self.sampled[name]) for name in names},
            "weight_normalization": {
                mode: {
                    **_moments(self.errors[weight_normalized(mode)]),
                    "sampled": _moments(self.sampled[weight_normalized(mode)]),
                }
                for mode in BIAS_MODES
            },
            "curves": {"tau": self.tau.round(10).tolist(), **curves},
            "separators": {
                name: self.separators[name].mean(axis=0).tolist() for name in self.separators
            },
            "posthoc_minus_loss_separator": float(np.abs(gap).max()),
            "settings": {**vars(self.settings), "centers": CENTERS.tolist()},
        }


def weight_normalized(mode: BiasMode) -> str:
    """Key of post-hoc weight normalisation in one bias mode."""
    return f"posthoc-weight-normalized/{mode}"


def _moments(errors: FloatArray) -> dict[str, Any]:
    """Mean and standard deviation over the trials, the first axis, in percent."""
    spread = errors.std(axis=0, ddof=1) if len(errors) > 1 else np.zeros(errors.shape[1:])
    return {
        "mean": (100.0 * errors.mean(axis=0)).tolist(),
        "std": (100.0 * np.asarray(spread)).tolist(),
    }


def bayes_error(*, sigma: float = 1.0) -> float:
    """Balanced error of the separator that class-conditional densities give, Φ(−√2/σ).

    Args:
        sigma: σ of both classes.

    Examples:
        >>> round(100 * bayes_error(), 3)
        7.865
    """
    return float(ndtr(-0.5 * np.linalg.norm(CENTERS[1] - CENTERS[0]) / sigma))


def separator_error(separators: FloatArray, *, sigma: float = 1.0) -> FloatArray:
    """Balanced error of affine separators in closed form.

    Class y is missed with probability Φ(∓(w·μ_y + b) / (σ‖w‖)): along w, a class is a
    one-dimensional Gaussian.

    Args:
        separators: rows (w₁, w₂, b), shape (..., 3).
        sigma: σ of both classes.

    Returns:
        Shape (...), the mean of the two classes' errors.

    Examples:
        >>> round(float(separator_error(np.array([2.0, 2.0, 0.0]))), 5)  # Bayes
        0.07865
    """
    weight, bias = separators[..., :2], separators[..., 2]
    spread = sigma * np.linalg.norm(weight, axis=-1)
    missed_common = ndtr((weight @ CENTERS[0] + bias) / spread)
    missed_rare = ndtr(-(weight @ CENTERS[1] + bias) / spread)
    return np.asarray(0.5 * (missed_common + missed_rare))


def sample(settings: Settings, *, split: str) -> Sample:
    """Draw every trial's training or test sample: labels first, then features given labels.

    Args:
        settings: sizes, rate, spread and seed.
        split: "train" or "test".

    Examples:
        >>> drawn = sample(Settings(trials=2, num_train=5), split="train")
        >>> drawn.features.shape, drawn.target.shape
        ((2, 5, 2), (2, 5))
    """
    split = _checks.choice(split, ("train", "test"), "synthetic.sample", name="split")
    size = settings.num_train if split == "train" else settings.num_test
    features = np.empty((settings.trials, size, 2))
    target = np.empty((settings.trials, size), dtype=np.int64)
    for trial in range(settings.trials):
        generator = np.random.default_rng([settings.seed, trial, int(split == "test")])
        target[trial] = generator.random(size) < settings.rare
        noise = generator.standard_normal((size, 2))
        features[trial] = CENTERS[target[trial]] + settings.sigma * noise
    return Sample(features, target)


def logits_of(separator: FloatArray, features: FloatArray) -> FloatArray:
    """The two zero-sum logits (−g/2, g/2) of a separator g(x) = w·x + b, shape (samples, 2)."""
    half = 0.5 * (features @ separator[:-1] + separator[-1])
    return np.stack([-half, half], axis=1)


def corrected(separators: FloatArray, rule: Callable[[int, FloatArray], FloatArray]) -> FloatArray:
    """The separators after a post-hoc rule that keeps logits affine.

    The rule sees logits, as it does everywhere else in this package: those at the origin and
    the unit vectors, which determine an affine function.

    Args:
        separators: rows (w₁, w₂, b), shape (trials, 3).
        rule: (trial, logits) -> logits, both (3, 2).

    Returns:
        Rows (w₁, w₂, b), shape (trials, 3).
    """
    probes = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    result = np.empty_like(separators)
    for trial, separator in enumerate(separators):
        logits = np.asarray(rule(trial, logits_of(separator, probes)))
        difference = logits[:, 1] - logits[:, 0]
        result[trial, :2] = difference[:2] - difference[2]
        result[trial, 2] = difference[2]
    return result


def adjust(separators: FloatArray, priors: Sequence[ClassPrior], *, tau: float) -> FloatArray:
    """Post-hoc logit adjustment (equation 9) of separators, shape (trials, 3).

    Examples:
        >>> prior = ClassPrior.from_probs([0.95, 0.05])
        >>> adjust(np.array([[2.0, 2.0, -2.94]]), [prior], tau=1.0).round(3)
        array([[2.   , 2.   , 0.004]])
    """
    return corrected(
        separators,
        lambda trial, logits: posthoc.adjust_logits(logits, priors[trial], tau=tau),
    )


def normalize(separators: FloatArray, *, tau: float, bias_mode: BiasMode) -> FloatArray:
    """Post-hoc weight normalisation (equation 3) of separators, ν_y = ‖w_y‖ = ‖w‖/2.

    Examples:
        >>> normalize(np.array([[3.0, 4.0, -1.0]]), tau=1.0, bias_mode="drop")
        array([[1.2, 1.6, 0. ]])
    """
    norms = np.linalg.norm(separators[:, :2], axis=1) / 2.0

    def rule(trial: int, logits: FloatArray) -> FloatArray:
        half = separators[trial, 2] / 2.0
        return np.asarray(
            posthoc.normalize_weights(
                logits,
                norms=np.full(2, norms[trial]),
                tau=tau,
                bias=np.array([-half, half]),
                bias_mode=bias_mode,
            )
        )

    return corrected(separators, rule)


def _sampled_errors(separators: FloatArray, test: Sample) -> FloatArray:
    """Balanced error of every trial's separator on that trial's test sample."""
    return np.array(
        [
            metrics.balanced_error(target, logits_of(separator, features))
            for separator, features, target in zip(
                separators, test.features, test.target, strict=True
            )
        ]
    )


def run(
    *,
    settings: Settings | None = None,
    tau: Sequence[float] | FloatArray | None = None,
    progress: Progress | None = None,
) -> Study:
    """The whole study: every loss, both post-hoc methods, all trials.

    Args:
        settings: what to sample, the paper's problem if absent.
        tau: grid of the post-hoc curves, 0 to 3 in steps of 0.1 if absent.
        progress: called as progress(done, total, what).

    Returns:
        The Study; `Study.to_dict` is what ``longtail reproduce synthetic --json`` prints.

    Examples:
        >>> study = run(settings=Settings(trials=3, num_train=2000, num_test=500), tau=[1.0])
        >>> study.to_dict()["methods"]["logit-adjusted"]["mean"] < 8.5
        True
    """
    settings = settings or Settings()
    grid = np.arange(31) / 10.0 if tau is None else np.asarray(tau, dtype=np.float64)
    total = 2 + len(LOSSES) + 1 + len(BIAS_MODES)
    done = 0

    def announce(what: str) -> None:
        nonlocal done
        if progress is not None:
            progress(done, total, what)
        done += 1

    announce("sampling")
    train, test = sample(settings, split="train"), sample(settings, split="test")
    _require_both_classes(train, test)
    # The prior of the examples trained on, as a user would have it, not the true rate.
    priors = [ClassPrior.from_labels(target, num_classes=2) for target in train.target]
    separators: dict[str, FloatArray] = {}
    for name in LOSSES:
        announce(f"solving {name}")
        losses = [margins.by_name(name, prior) for prior in priors]
        separators[name] = affine.fit(train.features, train.target, losses)
    curves: dict[str, FloatArray] = {}
    for name, rule in _rules(separators["softmax"], priors).items():
        announce(f"correcting {name}")
        separators[name] = rule(1.0)
        errors = [separator_error(rule(float(t)), sigma=settings.sigma) for t in grid]
        curves[name] = np.stack(errors, axis=1)
    # The headline is the paper's equation, in which the bias is scaled with the weights.
    separators["posthoc-weight-normalized"] = separators[weight_normalized("scale")]
    announce("testing")
    study = Study(
        settings=settings,
        separators=separators,
        errors={k: separator_error(rows, sigma=settings.sigma) for k, rows in separators.items()},
        sampled={k: _sampled_errors(rows, test) for k, rows in separators.items()},
        tau=grid,
        curves=curves,
        example=Sample(train.features[0], train.target[0]),
    )
    announce("done")
    return study


def _require_both_classes(train: Sample, test: Sample) -> None:
    for split, drawn in (("train", train), ("test", test)):
        rare = drawn.target.mean(axis=1)
        lacking = np.flatnonzero((rare == 0) | (rare == 1))
        if len(lacking):
            raise InputError(
                f"synthetic.run: trial(s) {_checks.listing(lacking)} drew one class only; "
                f"raise `num_{split}`, {drawn.target.shape[1]} now, or move `rare` away from 0 "
                f"and 1."
            )


def _rules(
    separators: FloatArray, priors: Sequence[ClassPrior]
) -> dict[str, Callable[[float], FloatArray]]:
    """Every post-hoc method as tau -> corrected separators, by the name of its curve."""
    return {
        "posthoc-logit-adjusted": lambda tau: adjust(separators, priors, tau=tau),
        **{
            weight_normalized(mode): partial(_normalize_at, separators, mode) for mode in BIAS_MODES
        },
    }


def _normalize_at(separators: FloatArray, bias_mode: BiasMode, tau: float) -> FloatArray:
    return normalize(separators, tau=tau, bias_mode=bias_mode)
