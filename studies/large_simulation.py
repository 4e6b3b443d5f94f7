"""The paper's claim at full class count: Gaussian features with ImageNet-LT's class sizes.

Each class is a Gaussian with unit covariance around its own centre, and has as many training
examples as the real class of ImageNet-LT or iNaturalist 2018 (or a multiple of it). So the Bayes
rule is linear, a softmax regression is the right model, and what it errs above Bayes is due to the
class prior and to the number of examples alone. ERM, post-hoc adjustment and the logit-adjusted
loss are judged against the Bayes balanced error, which the true densities give by Monte Carlo.

Writes docs/large-scale.md and its figure from results/large-simulation; ``--run`` makes that record
anew (an hour on a GPU).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch.nn.functional import cross_entropy

from longtail import ClassPrior, InputError
from longtail.data.large import LARGE
from longtail.data.profiles import read_counts
from longtail.priors import GROUPS
from longtail.report import figures
from longtail.report.tables import Table
from studies import _pages as pages
from studies._records import ROOT, device_of, write_text

DATASETS = ("imagenet-lt", "inaturalist")
POSTHOC = "posthoc-logit-adjusted"
LIMIT = "softmax/limit"  # the true posterior, prior and all: what ERM tends to with more examples
METHODS = ("softmax", POSTHOC, "logit-adjusted", LIMIT, "bayes")
BINS = 20
TITLE = "Balanced error above Bayes at the class sizes of ImageNet-LT and iNaturalist"


@dataclass(frozen=True)
class Settings:
    """Sizes of samples and of the regressions."""

    dimension: int = 16  # of the features
    # By data set, the standard deviation of the centres' coordinates; these give a Bayes balanced
    # error of 27 to 30%.
    scales: Mapping[str, float] = field(
        default_factory=lambda: {"imagenet-lt": 1.2, "inaturalist": 1.5}
    )
    # By data set, how many times the real number of examples.
    multiples: Mapping[str, Sequence[int]] = field(
        default_factory=lambda: dict.fromkeys(DATASETS, (1, 10))
    )
    trials: int = 3  # each with its own centres, training and test sample
    test_points: int = 400_000  # in all, equally many of each class
    # In units of 1/scale²: at 1 it is the one that fits the way the centres were drawn.
    ridge: float = 1.0
    tolerance: float = 0.1  # see `fit`
    seed: int = 0  # trial t draws from generators seeded with (seed, t)


FILES = {"imagenet-lt": "imagenet_lt.txt", "inaturalist": "inaturalist2018.txt"}


def class_counts(name: str, data_dir: Path | None = None) -> np.ndarray:
    """Return the training examples of each class, from ``class_counts`` in a folder of data."""
    folder = data_dir or os.environ.get("LONGTAIL_DATA")
    if folder is None:
        raise InputError("--run needs --data-dir, or LONGTAIL_DATA, with the folder class_counts.")
    return read_counts(Path(folder).expanduser() / "class_counts" / FILES[name])


# ---------------------------------------------------------------------------- Gaussian classes


@dataclass(frozen=True)
class Estimate:
    """A mean, in percent, and its standard error."""

    mean: float
    se: float

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if np.isnan(self.se) else f" ± {self.se:.2f}")


def true_weights(centers: np.ndarray) -> np.ndarray:
    """Return the Bayes rule for balanced classes as rows (w_y, b_y) = (μ_y, −‖μ_y‖²/2).

    Up to what all classes share, log p(x|y) of a Gaussian with unit covariance is μ_y·x − ‖μ_y‖²/2.

    Examples:
        >>> true_weights(np.array([[1.0, 2.0], [0.0, 1.0]]))
        array([[ 1. ,  2. , -2.5],
               [ 0. ,  1. , -0.5]])
    """
    biases = -0.5 * np.square(centers).sum(axis=1, keepdims=True)
    return np.concatenate([centers, biases], axis=1)


def shifted(weights: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Return rows (w_y, b_y) with something added to each bias."""
    moved = weights.copy()
    moved[:, -1] += by
    return moved


def plug_in(
    features: np.ndarray, target: np.ndarray, *, scale: float, num_classes: int
) -> np.ndarray:
    """Return `true_weights` of estimated centres, shrunk as their distribution asks."""
    sums = [np.bincount(target, weights=column, minlength=num_classes) for column in features.T]
    counts = np.bincount(target, minlength=num_classes)[:, None]
    return true_weights(np.stack(sums, axis=1) / (counts + scale**-2))


def sample(
    centers: np.ndarray, counts: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw so many examples of each class: float32 features, and classes in order."""
    target = np.repeat(np.arange(len(counts)), counts)
    features = generator.standard_normal((len(target), centers.shape[1]), dtype=np.float32)
    features += centers.astype(np.float32)[target]
    return features, target


def _logits(features: np.ndarray, weights: np.ndarray, device: Any) -> Iterator[torch.Tensor]:
    """Yield the logits of all points, piece by piece."""
    matrix = torch.as_tensor(weights[:, :-1].T, dtype=torch.float32, device=device).contiguous()
    biases = torch.as_tensor(weights[:, -1], dtype=torch.float32, device=device)
    for piece in torch.as_tensor(features).split(max(1, (1 << 22) // len(weights))):
        yield torch.addmm(biases, piece.to(device), matrix)


def decide(features: np.ndarray, weights: np.ndarray, device: Any = "cpu") -> np.ndarray:
    """Return the class that affine logits choose at each point."""
    found = [logits.argmax(1).cpu().numpy() for logits in _logits(features, weights, device)]
    return np.concatenate(found)


def bayes_error(
    features: np.ndarray, weights: np.ndarray, *, per_class: int, device: Any = "cpu"
) -> Estimate:
    """Return the least balanced error of any classifier, E[1 − max_y p(x|y)/Σ_j p(x|j)].

    `features` are balanced test points in order of class, `weights` as in `true_weights`.

    Examples:
        >>> centers = np.array([[-1.0, -1.0], [1.0, 1.0]])
        >>> x, _ = sample(centers, np.full(2, 50_000), np.random.default_rng(0))
        >>> found = bayes_error(x, true_weights(centers), per_class=50_000)
        >>> abs(found.mean - 7.865) < 4 * found.se < 0.3  # Φ(−√2)
        True
    """
    pieces = [
        (1.0 - logits.softmax(1).amax(1)).double().cpu().numpy()
        for logits in _logits(features, weights, device)
    ]
    return estimate(np.concatenate(pieces), per_class=per_class)


def estimate(values: np.ndarray, *, per_class: int) -> Estimate:
    """Return the mean of a value at points in order of class, in percent, and its sampling error.

    Examples:
        >>> estimate(np.array([0.0, 1.0, 1.0, 1.0]), per_class=2)
        Estimate(mean=75.0, se=25.0)
    """
    by_class = np.asarray(values, dtype=np.float64).reshape(-1, per_class)
    variance = by_class.var(axis=1, ddof=1) / per_class if per_class > 1 else np.nan
    se = np.sqrt(np.sum(variance)) / len(by_class)
    return Estimate(100.0 * float(by_class.mean()), 100.0 * float(se))


# ---------------------------------------------------------------------------- softmax regression

# Logits made at a time: what a core's cache holds, and what keeps a GPU busy.
_PIECE = {"cpu": 1 << 18, "cuda": 1 << 27}


@dataclass(frozen=True, eq=False)
class Fit:
    """A minimum, and how well it was reached."""

    weights: np.ndarray  # rows (w_y, b_y), shape (num_classes, dimensions + 1)
    evaluations: int  # of the loss and its gradient
    gradient: float  # largest entry of the summed loss's, in units of a standard error


def fit(
    features: np.ndarray,
    target: np.ndarray,
    *,
    start: np.ndarray,
    ridge: float,
    offset: np.ndarray | None = None,
    tolerance: float = 0.1,
    most: int = 500,
    device: torch.device | str = "cpu",
) -> Fit:
    """Minimise Σ_i −log softmax(W x_i + b + offset)_{y_i} + ridge/2·Σ_y ‖w_y‖².

    With offset 0 it is the softmax cross-entropy; with offset_y = τ log π_y the logit-adjusted
    loss (equation 10). The biases are free, so the two are the same problem but for a shift of the
    biases by the offset. Solved by L-BFGS in coordinates in which each class's own block of the
    Hessian is the identity, so that classes of 2 and of 1,000 examples converge alike.

    It begins at rows (w_y, b_y), and stops at a gradient of `tolerance`, in the units of
    `Fit.gradient`. The ridge must be above zero: classes of a few examples are separable without.

    Examples:
        >>> x = np.array([[0.0], [1.0], [2.0], [3.0]], dtype=np.float32)
        >>> found = fit(x, np.array([0, 1, 0, 1]), start=np.zeros((2, 2)), ridge=1e-6,
        ...             tolerance=1e-3)
        >>> (found.weights[1] - found.weights[0]).round(2)
        array([ 0.91, -1.36])
    """
    problem = _Problem(features, target, len(start), ridge, offset, device)
    begin = problem.calibrated(np.asarray(start, dtype=np.float64))
    # v with w_y = R_y⁻¹ v_y, where R_yᵀ R_y is class y's block of the Hessian. An entry of the
    # gradient in v is in units of that direction's standard error.
    factors = np.linalg.cholesky(problem.blocks(begin)).transpose(0, 2, 1)
    inverses = np.linalg.inv(factors)

    def weights_of(flat: np.ndarray) -> np.ndarray:
        return np.asarray(np.einsum("yij,yj->yi", inverses, flat.reshape(len(inverses), -1)))

    def in_frame(slope: np.ndarray) -> np.ndarray:
        return np.asarray(np.einsum("yji,yj->yi", inverses, slope)).ravel()

    # The Hessian being about the identity there, Newton's step is as long as the gradient.
    # L-BFGS-B begins with a step of length 1: so that is the unit.
    unit = float(np.linalg.norm(in_frame(problem.value_and_gradient(begin)[1])))
    evaluations = 1

    def evaluate(flat: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal evaluations
        evaluations += 1
        value, slope = problem.value_and_gradient(weights_of(unit * flat))
        return value / unit**2, in_frame(slope) / unit

    found = minimize(
        evaluate,
        np.einsum("yij,yj->yi", factors, begin).ravel() / unit,
        jac=True,
        method="L-BFGS-B",
        options={"gtol": tolerance / unit, "ftol": 0.0, "maxfun": most, "maxcor": 20},
    )
    gradient = float(np.abs(found.jac).max()) * unit
    if gradient > 10 * tolerance:
        raise RuntimeError(
            f"no minimum after {evaluations} evaluations; the gradient is {gradient:.2g} and "
            f"should be {tolerance:g} ({found.message}); raise `ridge`, `most` or `tolerance`."
        )
    return Fit(weights_of(unit * found.x), evaluations, gradient)


class _Problem:
    """The loss as a function of the weights; tensors on the device."""

    def __init__(self, features, target, num_classes, ridge, offset, device) -> None:
        self.ridge = ridge
        self.target = torch.as_tensor(target, dtype=torch.int64, device=device)
        self.features = torch.ones(len(target), features.shape[1] + 1, device=device)  # a constant
        self.features[:, :-1] = torch.as_tensor(features)
        sums = torch.zeros(num_classes, features.shape[1] + 1, dtype=torch.float64, device=device)
        self.sums = sums.index_add_(0, self.target, self.features.double()).cpu().numpy()
        shift = np.zeros(num_classes) if offset is None else offset
        self.offset = torch.tensor(shift, dtype=torch.float32, device=device)

    def _pieces(self, weights: np.ndarray) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield features, classes, logits and probabilities of some examples after the others."""
        device = self.features.device
        matrix = torch.as_tensor(weights.T, dtype=torch.float32, device=device).contiguous()
        matrix[-1] += self.offset
        rows = max(1, _PIECE[device.type] // len(weights))
        for x, y in zip(self.features.split(rows), self.target.split(rows), strict=True):
            logits = x @ matrix
            yield x, y, logits, logits.softmax(1)

    def calibrated(self, weights: np.ndarray, *, rounds: int = 3) -> np.ndarray:
        """Return the weights with biases that predict each class about as often as it occurs.

        b_y grows by log(n_y / Σ_i p_iy). A minimum has such biases, and a prior that the start
        ignores would otherwise cost L-BFGS most of its steps.
        """
        moved = weights.copy()
        for _ in range(rounds):
            total = torch.zeros(len(weights), device=self.features.device)
            for *_, probs in self._pieces(moved):
                total += probs.sum(0)
            moved[:, -1] += np.log(self.sums[:, -1] / total.double().cpu().numpy())
        return moved

    def value_and_gradient(self, weights: np.ndarray) -> tuple[float, np.ndarray]:
        """The summed loss and its gradient, float64."""
        device, (num_classes, columns) = self.features.device, weights.shape
        total = torch.zeros((), dtype=torch.float64, device=device)
        expected = torch.zeros(columns, num_classes, device=device)
        for x, y, logits, probs in self._pieces(weights):
            total += cross_entropy(logits, y, reduction="none").sum(dtype=torch.float64)
            expected.addmm_(x.T, probs)
        gradient = expected.T.double().cpu().numpy() - self.sums
        gradient[:, :-1] += self.ridge * weights[:, :-1]
        penalty = 0.5 * self.ridge * float(np.square(weights[:, :-1]).sum())
        return float(total) + penalty, gradient

    def blocks(self, weights: np.ndarray) -> np.ndarray:
        """Each class's block of the Hessian, Σ_i p_iy (1 − p_iy) x_i x_iᵀ + ridge."""
        num_classes, columns = weights.shape
        upper = torch.triu_indices(columns, columns, device=self.features.device)
        sums = torch.zeros(upper.shape[1], num_classes, device=self.features.device)
        for x, _, _, probs in self._pieces(weights):
            sums.addmm_((x[:, upper[0]] * x[:, upper[1]]).T, probs - probs * probs)
        found = np.empty((num_classes, columns, columns))
        entries, (rows, places) = sums.T.double().cpu().numpy(), upper.cpu().numpy()
        found[:, rows, places] = entries
        found[:, places, rows] = entries
        penalty = np.full(columns, self.ridge)
        penalty[-1] = 1e-3 * self.ridge  # keeps the block of a class without rivals invertible
        return found + np.diag(penalty)


# ---------------------------------------------------------------------------- trials


@dataclass(frozen=True)
class Trial:
    """One draw of centres and samples, judged; all errors in percent, by method of `METHODS`."""

    dataset: str
    multiple: int  # of the real number of training examples
    seed: int
    bayes: Estimate  # E[1 − max_y p(y|x)] under balanced classes
    errors: dict[str, Estimate]  # balanced, on the test points
    excess: dict[str, Estimate]  # minus the Bayes rule's on the same points
    groups: dict[str, dict[str, float]]  # of the classes with many, medium and few real examples
    bins: dict[str, list[float]]  # of `BINS` groups of classes, from frequent to rare
    disagreement: float  # of post-hoc adjustment and the loss, in percent of the test points
    evaluations: dict[str, int]  # that each regression took, by loss
    gradients: dict[str, float]  # at which each stopped, in standard errors


def run_trial(
    dataset: str,
    counts: np.ndarray,
    *,
    multiple: int,
    settings: Settings,
    seed: int,
    device: torch.device | str = "cpu",
) -> Trial:
    """Draw, solve both losses, adjust the softmax one, and judge everything.

    Centres and test points depend on the seed alone, so that multiples of the class sizes are
    compared on the same problem.
    """
    scale, num_classes = settings.scales[dataset], len(counts)
    drawn, training = (np.random.default_rng([settings.seed, seed, part]) for part in (0, 1))
    centers = scale * drawn.standard_normal((num_classes, settings.dimension))
    per_class = max(2, settings.test_points // num_classes)
    points, answers = sample(centers, np.full(num_classes, per_class), drawn)
    features, target = sample(centers, counts * multiple, training)
    log_prior = ClassPrior.from_counts(counts).log_probs
    solve = partial(
        fit,
        features,
        target,
        start=plug_in(features, target, scale=scale, num_classes=num_classes),
        ridge=settings.ridge / scale**2,
        tolerance=settings.tolerance,
        device=device,
    )
    fits = {"softmax": solve(), "logit-adjusted": solve(offset=log_prior)}
    exact = true_weights(centers)
    rules = {
        "softmax": fits["softmax"].weights,
        POSTHOC: shifted(fits["softmax"].weights, -log_prior),
        "logit-adjusted": fits["logit-adjusted"].weights,
        LIMIT: shifted(exact, log_prior),
        "bayes": exact,
    }
    chosen = {name: decide(points, weights, device) for name, weights in rules.items()}
    wrong = {name: (labels != answers).astype(np.float64) for name, labels in chosen.items()}
    by_class = {name: 100 * w.reshape(-1, per_class).mean(axis=1) for name, w in wrong.items()}
    groups = {k: v for k, v in ClassPrior.from_counts(counts).groups().items() if len(v)}
    return Trial(
        dataset=dataset,
        multiple=multiple,
        seed=seed,
        bayes=bayes_error(points, exact, per_class=per_class, device=device),
        errors={name: estimate(w, per_class=per_class) for name, w in wrong.items()},
        excess={
            name: estimate(w - wrong["bayes"], per_class=per_class) for name, w in wrong.items()
        },
        groups={
            name: {group: float(errors[v].mean()) for group, v in groups.items()}
            for name, errors in by_class.items()
        },
        bins={
            name: [float(errors[v].mean()) for v in frequency_bins(counts)]
            for name, errors in by_class.items()
        },
        disagreement=100.0 * float((chosen[POSTHOC] != chosen["logit-adjusted"]).mean()),
        evaluations={name: one.evaluations for name, one in fits.items()},
        gradients={name: one.gradient for name, one in fits.items()},
    )


def frequency_bins(counts: np.ndarray) -> list[np.ndarray]:
    """Return the classes in `BINS` groups of neighbours in frequency, the most frequent first."""
    return np.array_split(np.argsort(-counts, kind="stable"), min(BINS, len(counts)))


@dataclass(frozen=True)
class Study:
    """All trials, facts about each data set's class sizes, and what was sampled."""

    trials: tuple[Trial, ...]  # by data set, then multiple, then seed
    sizes: dict[str, dict[str, Any]]
    settings: dict[str, Any]

    @property
    def datasets(self) -> list[str]:
        """Names of the data sets, each once."""
        return list(dict.fromkeys(trial.dataset for trial in self.trials))

    def multiples(self, dataset: str) -> list[int]:
        """Return how many times the real number of examples, ascending."""
        return sorted({trial.multiple for trial in self.trials if trial.dataset == dataset})

    def of(self, dataset: str, multiple: int) -> list[Trial]:
        """Return the trials of one data set and size."""
        return [one for one in self.trials if (one.dataset, one.multiple) == (dataset, multiple)]

    def to_json(self) -> str:
        """Return the record, in six digits: more than the sampling noise leaves."""
        trials = json.loads(
            json.dumps([asdict(one) for one in self.trials]),
            parse_float=lambda text: float(f"{float(text):.6g}"),
        )
        kept = {"settings": self.settings, "class_sizes": self.sizes, "trials": trials}
        return json.dumps(kept, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Study:
        """Return what `to_json` made of one."""
        # An estimate is the only object with these two keys.
        document = json.loads(
            text, object_hook=lambda d: Estimate(**d) if d.keys() == {"mean", "se"} else d
        )
        trials = tuple(Trial(**values) for values in document["trials"])
        return cls(trials, document["class_sizes"], document["settings"])


def run(
    settings: Settings,
    sizes: Mapping[str, np.ndarray],
    *,
    device: torch.device | str = "cpu",
    said: Any = lambda done, total, what: None,
) -> Study:
    """Return the whole simulation of some class sizes.

    `said` is told (trials done, trials in all, what).

    Examples:
        >>> small = Settings(dimension=4, trials=1, test_points=2000)
        >>> study = run(small, {"imagenet-lt": np.array([90, 30, 9, 3])})
        >>> study.of("imagenet-lt", 10)[0].disagreement < 1  # post hoc and loss are one rule here
        True
    """
    work = [
        (name, multiple, seed)
        for name in sizes
        for multiple in settings.multiples[name]
        for seed in range(settings.trials)
    ]
    trials = []
    for done, (name, multiple, seed) in enumerate(work):
        said(done, len(work), f"{name} ×{multiple}, trial {seed}")
        how: dict[str, Any] = {"multiple": multiple, "settings": settings, "seed": seed}
        trials.append(run_trial(name, sizes[name], device=device, **how))
    values = vars(settings) | {"scales": {name: settings.scales[name] for name in sizes}}
    values["multiples"] = {name: list(settings.multiples[name]) for name in sizes}
    facts = {
        name: {
            "classes": len(counts),
            "examples": int(counts.sum()),
            "largest": int(counts.max()),
            "smallest": int(counts.min()),
            "bins": [
                round(float(np.exp(np.log(counts[some]).mean())), 2)
                for some in frequency_bins(counts)
            ],
        }
        for name, counts in sizes.items()
    }
    return Study(tuple(trials), facts, values)


# ---------------------------------------------------------------------------- judgement, tables


def bayes(trials: Sequence[Trial]) -> Estimate:
    """Return the Bayes balanced error, mean of the trials' own, with the error of Monte Carlo."""
    errors = np.array([trial.bayes.se for trial in trials])
    mean = float(np.mean([trial.bayes.mean for trial in trials]))
    return Estimate(mean, float(np.sqrt(np.square(errors).sum()) / len(errors)))


def excess(trials: Sequence[Trial], method: str) -> Estimate:
    """Return the balanced error above Bayes: mean over the trials and its standard error.

    Of a single trial it has the error of sampling.
    """
    if len(trials) == 1:
        return trials[0].excess[method]
    found = [trial.excess[method].mean for trial in trials]
    return Estimate(float(np.mean(found)), float(np.std(found, ddof=1) / np.sqrt(len(found))))


def label(method: str) -> str:
    """Return a rule as people read it."""
    return "softmax (ERM), unlimited data" if method == LIMIT else figures.label(method)


def rules_table(study: Study, dataset: str) -> Table:
    """Return every rule at the real class sizes."""
    facts, trials = study.sizes[dataset], study.of(dataset, study.multiples(dataset)[0])

    def group(method: str, name: str) -> str:
        values = [trial.groups[method][name] for trial in trials if name in trial.groups[method]]
        return f"{np.mean(values):.1f}" if values else "–"

    rows = [
        (
            label(method),
            f"{np.mean([trial.errors[method].mean for trial in trials]):.2f}",
            "" if method == "bayes" else str(excess(trials, method)),
            *(group(method, name) for name in GROUPS),
        )
        for method in METHODS
    ]
    least, times = bayes(trials), study.multiples(dataset)[0]
    words = "The real class sizes" + (f", {times} times" if times > 1 else "")
    return Table(
        f"{LARGE[dataset].title}: {facts['classes']:,} classes, balanced error in percent",
        ("rule", "error", "above Bayes", *GROUPS),
        rows,
        note=(
            f"{words} ({facts['examples'] * times:,} examples, {facts['largest'] * times:,} to "
            f"{facts['smallest'] * times} a class), {len(trials)} trials; ± one standard error, of "
            f"Bayes {least.se:.3f}. Errors above Bayes are on the test points of the Bayes rule."
        ),
    )


def finding(study: Study, dataset: str) -> dict[str, Any]:
    """Return what the page says of a data set, in percent and points."""
    multiples = study.multiples(dataset)
    first, last = (study.of(dataset, multiple) for multiple in (multiples[0], multiples[-1]))
    frequent, *_, rare = first[0].groups["softmax"]  # few, where there are such classes
    saved = {
        group: np.mean(
            [t.groups["softmax"][group] - t.groups["logit-adjusted"][group] for t in first]
        )
        for group in (frequent, rare)
    }
    return {
        "title": LARGE[dataset].title,
        "classes": study.sizes[dataset]["classes"],
        "erm": excess(first, "softmax").mean,
        "loss": excess(first, "logit-adjusted").mean,
        "rare": rare,
        "saved": saved[rare],
        "paid": -saved[frequent],
        "most": multiples[-1],
        "erm_last": excess(last, "softmax").mean,
        "loss_last": excess(last, "logit-adjusted").mean,
        "limit": excess(first, LIMIT).mean,
        "differ": max(t.disagreement for m in multiples for t in study.of(dataset, m)),
    }


# ---------------------------------------------------------------------------- figure

# Post-hoc adjustment and the loss coincide: the one is a broad line under the other's dashes.
_LOOKS: dict[str, dict[str, Any]] = {
    "softmax": {"lw": 1.6, "marker": "o", "ms": 3.5},
    LIMIT: {"lw": 1.1, "ls": (0, (1, 1.2))},
    POSTHOC: {"lw": 4.0, "alpha": 0.55, "solid_capstyle": "butt"},
    "logit-adjusted": {"lw": 1.4, "ls": (0, (4, 1.5)), "marker": "s", "ms": 3},
    "bayes": {"lw": 1.1, "ls": "--"},
}


def draw(study: Study) -> Any:
    """Return a matplotlib Figure, a column for each data set.

    Above, the error by class frequency; below, against the number of examples.
    """
    columns = len(study.datasets)
    with figures.style():
        figure, axes = figures.panels(
            rows=2, columns=columns, width=0.6 + 3.4 * columns, height=5.6
        )
        for column, dataset in enumerate(study.datasets):
            _draw_frequencies(axes[0, column], study, dataset)
            _draw_sizes(axes[1, column], study, dataset)
        axes[0, 0].set_ylabel("error of the classes (%)")
        axes[1, 0].set_ylabel("balanced error (%)")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=1 + columns)
    return figure


def _draw_frequencies(axes: Any, study: Study, dataset: str) -> None:
    """Draw the errors of groups of classes at the real sizes, the most frequent left."""
    facts, trials = study.sizes[dataset], study.of(dataset, study.multiples(dataset)[0])
    for method, look in _LOOKS.items():
        values = np.array([trial.bins[method] for trial in trials]).mean(axis=0)
        axes.plot(facts["bins"], values, color=figures.color(method), label=label(method), **look)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.invert_xaxis()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("training examples of a class")
    axes.set_title(
        f"{LARGE[dataset].title}: {facts['classes']:,} classes of "
        f"{facts['largest']:,} to {facts['smallest']}"
    )


def _draw_sizes(axes: Any, study: Study, dataset: str) -> None:
    """Draw the balanced error at each multiple of the real sizes, and in the limit."""
    multiples = study.multiples(dataset)
    places = np.arange(len(multiples) + 1)
    of_size = [study.of(dataset, multiple) for multiple in multiples]
    least, small = bayes(of_size[0]), {"textcoords": "offset points", "fontsize": 7.5}
    for method in ("softmax", POSTHOC, "logit-adjusted"):
        ends = excess(of_size[0], LIMIT) if method == "softmax" else Estimate(0.0, 0.0)
        found = [*(excess(trials, method) for trials in of_size), ends]
        values = [least.mean + one.mean for one in found]
        axes.plot(places, values, color=figures.color(method), **_LOOKS[method])
        if method == POSTHOC:
            continue
        for place, value, one in zip(places, values, found, strict=True):
            gap = f"+{one.mean:.2f}" if one.mean else ""
            # Right of the line, which falls.
            axes.annotate(gap, (place, value), xytext=(4, 5), ha="left", **small)
    axes.axhline(least.mean, color=figures.color("bayes"), lw=1.1, ls="--")
    axes.annotate(f"Bayes {least.mean:.2f}", (-0.2, least.mean), xytext=(0, -4), va="top", **small)
    axes.set_xlim(-0.25, places[-1] + 0.35)
    low, high = axes.get_ylim()
    axes.set_ylim(low - 0.08 * (high - low), high + 0.08 * (high - low))
    axes.set_xticks(places, [*(f"×{multiple}" for multiple in multiples), "unlimited"])
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("training examples, times the real number")


# ---------------------------------------------------------------------------- the command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this study."""
    parser.add_argument("--run", action="store_true", help="Make the record anew (an hour).")
    parser.add_argument(
        "--dataset", action="append", choices=DATASETS, help="Only this; may be repeated."
    )
    parser.add_argument("--trials", type=int, default=3, help="Draws of everything; 3.")
    parser.add_argument(
        "--multiples",
        type=_multiples,
        default=(1, 10),
        metavar="N,N",
        help="Times the real number of examples; 1,10.",
    )
    parser.add_argument("--data-dir", type=Path, help="With class_counts; LONGTAIL_DATA if absent.")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N.")
    parser.add_argument("--json", action="store_true", help="Print the numbers as JSON.")
    parser.add_argument(
        "--record",
        type=Path,
        default=ROOT / "results/large-simulation/large-simulation.json",
        help="The file of numbers, read and with --run written.",
    )


def _multiples(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) for word in words):
        raise argparse.ArgumentTypeError(f"takes whole numbers above 0, such as 1,10; got {text}")
    return tuple(sorted({int(word) for word in words}))


def main(options: argparse.Namespace) -> None:
    """Simulate if asked to, print the tables and write the page."""
    if options.run:
        several = dict.fromkeys(DATASETS, options.multiples)
        settings = Settings(multiples=several, trials=options.trials)
        sizes = {n: class_counts(n, options.data_dir) for n in options.dataset or DATASETS}
        with pages.progress("simulating") as said:
            made = run(settings, sizes, device=device_of(options), said=said)
        write_text(options.record, made.to_json())
    if not options.record.exists():
        raise InputError(f"there is no record {options.record}; make it with --run.")
    study = Study.from_json(options.record.read_text(encoding="utf-8"))
    if options.json:
        sys.stdout.write(study.to_json())
        return
    tables = [rules_table(study, dataset) for dataset in study.datasets]
    pages.show(tables)
    if set(study.datasets) != set(DATASETS):
        pages.note("The page needs both data sets, so it is left as it is.")
        return
    with pages.page(options, "docs/large-scale.md") as write:
        write(
            pages.render(
                "large-scale",
                found=[finding(study, dataset) for dataset in study.datasets],
                tables=tables,
                settings=study.settings,
                title=TITLE,
            )
        )
        write.figure("simulation", draw(study), title=TITLE)
