"""Two Gaussian classes, one of them rare (section 6.1, figure 2): every loss against Bayes.

Each of 100 trials draws a training and a test sample, fits an affine separator under every loss
to its exact minimum, and corrects the softmax one after the fact. The balanced error of a
separator has a closed form here, so methods are judged without sampling noise. Takes seconds.

An affine separator is one row (w, b) and stands for the two zero-sum logits ±(w·x + b)/2; class 1
is the rare one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

from longtail import (
    ClassPrior,
    InputError,
    Margin,
    adjust_logits,
    balanced_error,
    margins,
    normalize_weights,
)
from longtail.report import figures
from longtail.report.tables import Table, percent
from studies import _pages as pages

TRIALS, TRAIN, TEST = 100, 10_000, 10_000
RARE = 0.05  # P(y = 1)
SIGMA = 1.0  # not in the paper's text
CENTERS = np.array([[-1.0, -1.0], [1.0, 1.0]])  # row y is the centre of class y

LOSSES = {
    "softmax": margins.softmax,
    "balanced": margins.balanced,
    "adaptive": margins.adaptive,
    "equalized": margins.equalized,
    "logit-adjusted": margins.logit_adjusted,
}
ADJUSTED = "posthoc-logit-adjusted"
MODES = ("scale", "keep", "drop")  # what weight normalisation does to the bias
NORMALIZED = {mode: f"posthoc-weight-normalized/{mode}" for mode in MODES}
POSTHOC = (ADJUSTED, *NORMALIZED.values())
TAUS = np.arange(31) / 10.0


# ---------------------------------------------------------------------------- the solver

_BLOCK = 40_000  # samples solved at a time: what a core's cache holds


def fit(
    features: np.ndarray,
    target: np.ndarray,
    losses: Sequence[Margin],
    *,
    penalty: float = 0.0,
    tolerance: float = 1e-12,
) -> np.ndarray:
    """Minimise a pairwise-margin loss over affine separators, all trials at once, exactly.

    With two zero-sum logits equation 11 is α_y · log(1 + exp(s·(Δ_{yy'} ∓ (w·x + b)))), minus
    for class 1: convex in (w, b), solved by damped Newton steps in float64.

    Args:
        features: shape (trials, samples, dimensions).
        target: 0 or 1, shape (trials, samples).
        losses: the Margin of each trial, for two classes.
        penalty: λ of a term λ/2·‖w‖² beside the mean loss, which separable classes need.
        tolerance: largest entry of the mean loss's gradient at which to stop.

    Returns:
        Rows (w, b), shape (trials, dimensions + 1).

    Examples:
        >>> features = np.array([[[0.0], [1.0], [2.0], [3.0]]])
        >>> target = np.array([[0, 1, 0, 1]])
        >>> fit(features, target, [margins.softmax(ClassPrior.uniform(2))]).round(3)
        array([[ 0.908, -1.362]])
    """
    trials, samples, dimensions = features.shape
    scale = np.array([[loss.scale] for loss in losses])
    delta = np.array([loss.scale * loss.matrix()[[0, 1], [1, 0]] for loss in losses])
    alpha = np.array([loss.alpha / samples for loss in losses])
    ridge = np.zeros((trials, dimensions + 1))
    ridge[:, :-1] = penalty / scale**2  # of s·w, not of b
    solution = np.empty((trials, dimensions + 1))
    size = max(1, _BLOCK // samples)
    for first in range(0, trials, size):
        some = slice(first, min(first + size, trials))
        sign = 2.0 * target[some] - 1.0
        turned = np.concatenate(  # every sample wants (w, b)·turned above 0
            [features[some].transpose(0, 2, 1) * sign[:, None], sign[:, None]], axis=1
        )
        shift, weight = (
            np.take_along_axis(values[some], target[some], axis=1) for values in (delta, alpha)
        )
        try:
            solution[some] = _newton(turned, shift, weight, ridge[some], tolerance)
        except InputError as error:
            raise InputError(f"trials {first} to {some.stop - 1}: {error}") from error
    return solution / scale  # s·(w, b) was solved for


def _newton(
    turned: np.ndarray,
    shift: np.ndarray,
    weight: np.ndarray,
    ridge: np.ndarray,
    tolerance: float,
) -> np.ndarray:
    """Damped Newton steps from zero.

    Moving the scores by at most s changes softplus's curvature by at most a factor e^s. So if a
    whole Newton step moves them by at most r and would gain λ² on a quadratic, the part of it
    that moves them by s changes the loss by at most λ²·[(eˢ − s − 1)/r² − s/r]: least at
    s = log(1 + r), and still well below zero at the longer step taken here.
    """
    point, score = np.zeros(turned.shape[:2]), shift.copy()
    gradient = np.full(1, np.inf)
    for _ in range(1000):
        with np.errstate(over="ignore"):
            prob = 1.0 / (1.0 + np.exp(-score))
        pull = weight * prob
        gradient = ridge * point - np.matmul(turned, pull[:, :, None])[:, :, 0]
        if np.abs(gradient).max() <= tolerance:
            break
        curvature = pull * (1.0 - prob)
        hessian = np.matmul(turned * curvature[:, None], turned.transpose(0, 2, 1))
        hessian += ridge[:, :, None] * np.eye(ridge.shape[1])
        try:
            step = np.linalg.solve(hessian, -gradient[..., None])[..., 0]
        except np.linalg.LinAlgError:
            break
        moved = np.matmul(step[:, None], turned)[:, 0]
        reach = np.maximum(np.abs(moved).max(axis=1, keepdims=True), 1e-300)
        least = np.log1p(reach)
        length = np.minimum(1.0, (least + 0.5 * np.log1p(least)) / reach)
        point += length * step
        score -= length * moved
    bare = ~ridge.any(axis=1)
    if np.any(bare & (np.matmul(point[:, None], turned)[:, 0].min(axis=1) > 0)):
        raise InputError("a line separates the classes, so the loss has no minimiser.")
    if not np.abs(gradient).max() <= tolerance:
        raise InputError(
            f"Newton's method stopped at a gradient of {np.abs(gradient).max():.1e}, above "
            f"{tolerance:g}; the features may be collinear."
        )
    return point


# ---------------------------------------------------------------------------- the experiment


def separator_error(separators: np.ndarray, *, sigma: float = SIGMA) -> np.ndarray:
    """Return the balanced error of affine separators in closed form.

    Class y is missed with probability Φ(∓(w·μ_y + b) / (σ‖w‖)).

    Examples:
        >>> round(float(separator_error(np.array([2.0, 2.0, 0.0]))), 5)  # Bayes
        0.07865
    """
    weight, bias = separators[..., :2], separators[..., 2]
    spread = sigma * np.linalg.norm(weight, axis=-1)
    missed_common = ndtr((weight @ CENTERS[0] + bias) / spread)
    missed_rare = ndtr(-(weight @ CENTERS[1] + bias) / spread)
    return np.asarray(0.5 * (missed_common + missed_rare))


BAYES = float(separator_error(np.array([1.0, 1.0, 0.0])))


def sample(trials: int, size: int, *, test: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Draw every trial's sample: labels first, then features given labels.

    Trial t draws from a generator of its own, so its data do not depend on how many there are.

    Examples:
        >>> features, target = sample(2, 5)
        >>> features.shape, target.shape
        ((2, 5, 2), (2, 5))
    """
    features, target = np.empty((trials, size, 2)), np.empty((trials, size), dtype=np.int64)
    for trial in range(trials):
        generator = np.random.default_rng([0, trial, int(test)])
        target[trial] = generator.random(size) < RARE
        features[trial] = CENTERS[target[trial]] + SIGMA * generator.standard_normal((size, 2))
    return features, target


def logits_of(separator: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Return the zero-sum logits (−g/2, g/2) of g(x) = w·x + b, shape (samples, 2)."""
    half = 0.5 * (features @ separator[:-1] + separator[-1])
    return np.stack([-half, half], axis=1)


def corrected(method: str, separator: np.ndarray, prior: ClassPrior, tau: float) -> np.ndarray:
    """Return a separator after a post-hoc method, which keeps its logits affine.

    The method sees logits, as everywhere else: those at the origin and the unit vectors, which
    determine an affine function. Both classes' weights have the norm ‖w‖/2.

    Examples:
        >>> prior = ClassPrior.from_probs([0.95, 0.05])
        >>> corrected(ADJUSTED, np.array([2.0, 2.0, -2.94]), prior, 1.0).round(3)
        array([2.   , 2.   , 0.004])
        >>> corrected(NORMALIZED["drop"], np.array([3.0, 4.0, -1.0]), prior, 1.0)
        array([1.2, 1.6, 0. ])
    """
    logits = logits_of(separator, np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
    if method == ADJUSTED:
        logits = adjust_logits(logits, prior, tau=tau)
    else:
        logits = normalize_weights(
            logits,
            norms=np.full(2, np.linalg.norm(separator[:2]) / 2),
            tau=tau,
            bias=separator[2] / 2 * np.array([-1.0, 1.0]),
            bias_mode=method.partition("/")[2],
        )
    difference = logits[:, 1] - logits[:, 0]
    return np.array([*(difference[:2] - difference[2]), difference[2]])


@dataclass(frozen=True, eq=False)
class Results:
    """Results of the study, by method; post-hoc ones at τ = 1."""

    separators: dict[str, np.ndarray]  # rows (w₁, w₂, b), shape (trials, 3)
    sampled: dict[str, np.ndarray]  # balanced error on the test sample, shape (trials,)
    curves: dict[str, np.ndarray]  # exact, over `TAUS`, of post-hoc methods, shape (trials, taus)
    features: np.ndarray  # of the first trial's training sample, shape (samples, 2)
    target: np.ndarray  # its classes

    def errors(self, method: str) -> np.ndarray:
        """Return a method's balanced error in closed form, shape (trials,)."""
        return separator_error(self.separators[method])

    @property
    def posthoc_difference(self) -> float:
        """Largest coefficient by which adjusting after and in training differ."""
        return float(np.abs(self.separators[ADJUSTED] - self.separators["logit-adjusted"]).max())


def compute(trials: int = TRIALS, *, train: int = TRAIN, test: int = TEST) -> Results:
    """Fit every loss and apply both post-hoc methods in all trials.

    Examples:
        >>> results = compute(3, train=2000, test=500)
        >>> bool(results.errors("logit-adjusted").mean() < 0.085)
        True
    """
    features, target = sample(trials, train)
    tested = sample(trials, test, test=True)
    # The prior of the examples trained on, as a user would have it, not the true rate.
    priors = [ClassPrior.from_labels(labels, num_classes=2) for labels in target]
    separators = {
        name: fit(features, target, [make(prior) for prior in priors])
        for name, make in LOSSES.items()
    }

    def after(method: str, tau: float) -> np.ndarray:
        pairs = zip(separators["softmax"], priors, strict=True)
        return np.array([corrected(method, row, prior, tau) for row, prior in pairs])

    separators |= {method: after(method, 1.0) for method in POSTHOC}
    return Results(
        separators=separators,
        sampled={
            name: np.array(
                [balanced_error(y, logits_of(w, x)) for w, x, y in zip(rows, *tested, strict=True)]
            )
            for name, rows in separators.items()
        },
        curves={
            method: np.stack([separator_error(after(method, tau)) for tau in TAUS], axis=1)
            for method in POSTHOC
        },
        features=features[0],
        target=target[0],
    )


# ---------------------------------------------------------------------------- tables and figure

_SHOWN = (*LOSSES, ADJUSTED, NORMALIZED["scale"])  # the paper scales the bias with the weights


def _label(method: str) -> str:
    return figures.label(method.removesuffix("/scale"))


def errors_table(results: Results) -> Table:
    """Return every method's error, exact and on the test samples."""

    def cells(values: np.ndarray, digits: int) -> list[str]:
        return [percent(value, digits=digits) for value in (values.mean(), values.std(ddof=1))]

    rows = [
        (_label(name), *cells(results.errors(name), 3), *cells(results.sampled[name], 2))
        for name in _SHOWN
    ]
    trials = len(results.separators["softmax"])
    return Table(
        f"Balanced error in percent, {trials} trials, P(rare) = {100 * RARE:g}%",
        ("method", "exact", "std", "sampled", "std"),
        [*rows, ("Bayes", percent(BAYES, digits=3), "", "", "")],
        note=(
            f"exact: closed form for the learned separator; sampled: on {TEST:,} test points. "
            "Post-hoc methods at τ = 1; weight normalisation scales the bias, as in the paper."
        ),
    )


def taus_table(results: Results) -> Table:
    """Return the post-hoc methods' errors at some τ."""
    names = {ADJUSTED: "logit adjustment"}
    names |= {NORMALIZED[mode]: f"weight norm., bias {mode}" for mode in MODES}
    places = [5, 10, 20]
    return Table(
        "Post-hoc methods over τ, balanced error in percent (exact)",
        ("method", *(f"τ = {TAUS[place]:g}" for place in places)),
        [
            (text, *(percent(results.curves[name][:, i].mean(), digits=2) for i in places))
            for name, text in names.items()
        ],
    )


def draw(results: Results) -> Any:
    """Draw the paper's figure 2: errors by method, separators, post-hoc methods over τ."""
    with figures.style():
        figure, axes = figures.panels(columns=3, width=10.2, height=3.1, width_ratios=[1, 1, 1.05])
        figure.get_layout_engine().set(wspace=0.06)
        _draw_errors(axes[0, 0], results)
        _draw_separators(axes[0, 1], results)
        _draw_curves(axes[0, 2], results)
    return figure


def _draw_errors(axes: Any, results: Results) -> None:
    """One dot per trial and the mean, by method; the Bayes error as a line."""
    trials = len(results.separators["softmax"])
    jitter = np.random.default_rng(0).uniform(-0.22, 0.22, trials)
    for row, name in enumerate(_SHOWN):
        values, shade = 100 * results.errors(name), figures.color(name)
        axes.scatter(values, row + jitter, s=5, color=shade, alpha=0.45, linewidths=0)
        axes.scatter(values.mean(), row, s=28, color=shade, edgecolor="white", linewidth=0.8)
        place = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(f"{values.mean():.2f}", (values.max(), row), fontsize=7.5, **place)
    axes.axvline(100 * BAYES, color=figures.color("bayes"), lw=1, ls="--", zorder=0)
    axes.text(100 * BAYES + 0.25, -0.62, f"Bayes {100 * BAYES:.2f}", fontsize=7.5, va="center")
    axes.set_yticks(range(len(_SHOWN)), [_label(name) for name in _SHOWN])
    axes.set_ylim(len(_SHOWN) - 0.5, -0.95)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.1)
    low, high = axes.get_xlim()
    axes.set_xlim(low, high + 0.12 * (high - low))  # room for the last number
    axes.set_xlabel("balanced error (%)")
    axes.set_title(f"(a) Losses and post-hoc methods, {trials} trials")


def _draw_separators(axes: Any, results: Results) -> None:
    """The first trial's sample, thinned, with what each loss learned from it."""
    features, target = results.features[:4000], results.target[:4000]
    for rare, shade, size in ((0, figures.LIGHT_GRAY, 3), (1, figures.DARK_GRAY, 6)):
        points = features[target == rare].T
        axes.scatter(*points, s=size, color=shade, linewidths=0, rasterized=True)
    low, high = -5.4, 4.2
    ends = np.array([low - high, high - low])
    for name in ("softmax", "adaptive", "equalized", "balanced", "logit-adjusted"):
        first, second, bias = results.separators[name][0]
        line = -(bias + first * ends) / second
        axes.plot(ends, line, color=figures.color(name), lw=1.7, label=figures.label(name))
    axes.plot(ends, -ends, color=figures.color("bayes"), lw=1.1, ls="--", label="Bayes")
    axes.text(4.1, 3.85, "rare class", ha="right", fontsize=7.5)
    axes.text(-5.2, 1.2, "common\nclass", fontsize=7.5, color=figures.GRAY)
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal", xlabel="$x_1$", ylabel="$x_2$")
    axes.grid(visible=False)
    look = {"frameon": True, "framealpha": 0.92, "edgecolor": "none", "fontsize": 6.8}
    axes.legend(loc="lower left", labelspacing=0.25, borderpad=0.2, **look)
    axes.set_title("(b) Separators learned in one trial")


def _draw_curves(axes: Any, results: Results) -> None:
    """Balanced error against τ, a band of one standard deviation around the mean."""
    looks: dict[str, dict[str, Any]] = {
        ADJUSTED: {"ls": "-"},
        NORMALIZED["scale"]: {"ls": "-"},
        NORMALIZED["keep"]: {"ls": (0, (5, 1.5))},
        # Coincides with the Bayes line: a broad band under its dashes.
        NORMALIZED["drop"]: {"lw": 4, "alpha": 0.45},
    }
    for name, look in looks.items():
        shade, values = figures.color(name), 100 * results.curves[name]
        mean, spread = values.mean(axis=0), values.std(axis=0)
        axes.plot(TAUS, mean, color=shade, solid_capstyle="butt", **look)
        axes.fill_between(TAUS, mean - spread, mean + spread, color=shade, alpha=0.2, lw=0)
    axes.axhline(100 * BAYES, color=figures.color("bayes"), lw=1, ls="--")
    axes.set(xlim=(TAUS[0], TAUS[-1]), ylim=(0, 50), xlabel="τ", ylabel="balanced error (%)")
    axes.set_title("(c) Post-hoc methods over τ")
    # Names beside the lines, where a legend would send the eye back and forth.
    brick, blue = figures.color("posthoc-weight-normalized"), figures.color("logit-adjusted")
    dropped = "bias dropped: on the Bayes line (dashed)\nonly because these centres are symmetric"
    for x, y, text, look in (
        (0.1, 46, "weight normalisation", {"color": brick, "weight": "bold"}),
        (1.05, 30.5, "bias kept", {"color": brick, "ha": "right"}),
        (0.33, 15.8, "bias scaled (the paper's)", {"color": brick}),
        (0.1, 3.4, dropped, {"color": brick}),
        (2.93, 13.4, "logit\nadjustment", {"color": blue, "weight": "bold", "ha": "right"}),
    ):
        axes.text(x, y, text, fontsize=7.5, va="center", **look)


# ---------------------------------------------------------------------------- the page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this study."""
    parser.add_argument("--trials", type=int, default=TRIALS, help="Independent repetitions.")


def main(options: argparse.Namespace) -> None:
    """Compute everything, print the tables and write the page."""
    results = compute(options.trials)
    tables = errors_table(results), taus_table(results)
    pages.show(tables)
    with pages.page(options, "docs/synthetic.md") as write:
        write(
            pages.render(
                "synthetic",
                errors=tables[0],
                taus=tables[1],
                mean={name: results.errors(name).mean() for name in _SHOWN},
                bayes=BAYES,
                trials=options.trials,
                train=TRAIN,
                difference=results.posthoc_difference,
            )
        )
        title = "Balanced error of losses and post-hoc methods on two Gaussian classes"
        write.figure("synthetic", draw(results), title=title)
