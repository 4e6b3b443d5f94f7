"""The paper's claim at full class count: Gaussian features with ImageNet-LT's class sizes.

Each class is a Gaussian with unit covariance around its own centre, and has as many training
examples as the real class (and a multiple of it). So the Bayes rule is linear, a softmax regression
is the right model, and what it errs above Bayes is due to the class prior and to the number of
examples alone. ERM, post-hoc logit adjustment and the logit-adjusted loss are judged against the
Bayes balanced error, which the true densities give by Monte Carlo. How the results look is in
`longtail.report.large_simulation`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from longtail import _checks
from longtail._checks import FloatArray, InputError, IntArray
from longtail.experiments import Progress, softmax_regression
from longtail.experiments.gaussian_classes import (
    Estimate,
    bayes_balanced_error,
    decide,
    estimate,
    plug_in,
    sample,
    shifted,
    true_weights,
)
from longtail.experiments.natural_profiles import FACTS
from longtail.experiments.natural_profiles import class_counts as natural_counts
from longtail.priors import ClassPrior

if TYPE_CHECKING:
    import torch

DATASETS = tuple(FACTS)
TRAINED = ("softmax", "logit-adjusted")
POSTHOC = "posthoc-logit-adjusted"
# Softmax regression on ever more examples tends to the true posterior, prior and all.
LIMIT = "softmax/limit"
METHODS = ("softmax", POSTHOC, "logit-adjusted", LIMIT, "bayes")
BINS = 20


@dataclass(frozen=True)
class Settings:
    """What is sampled and solved.

    Attributes:
        dimension: of the features.
        scales: by data set, the standard deviation of the centres' coordinates; these give a
            Bayes balanced error of 27 to 30%.
        multiples: by data set, how many times the real number of examples.
        trials: each with its own centres, training and test sample.
        test_points: in all, equally many of each class.
        ridge: of the regression, in units of 1/scale²: at 1 it is the one that fits the way the
            centres were drawn.
        tolerance: see `softmax_regression.fit`.
        seed: trial t draws from generators seeded with (seed, t).
    """

    dimension: int = 16
    scales: Mapping[str, float] = field(
        default_factory=lambda: {"imagenet-lt": 1.2, "inaturalist": 1.5}
    )
    multiples: Mapping[str, Sequence[int]] = field(
        default_factory=lambda: {"imagenet-lt": (1, 10), "inaturalist": (1,)}
    )
    trials: int = 3
    test_points: int = 400_000
    ridge: float = 1.0
    tolerance: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        caller = "large_simulation.Settings"
        for name in ("dimension", "trials", "test_points"):
            _checks.whole(getattr(self, name), caller, name=name)
        for name in ("ridge", "tolerance"):
            _checks.positive(getattr(self, name), caller, name=name)
        for scale in self.scales.values():
            _checks.positive(scale, caller, name="scales")
        for several in self.multiples.values():
            for multiple in several:
                _checks.whole(multiple, caller, name="multiples")


@dataclass(frozen=True)
class Trial:
    """One draw of centres and samples, judged; all errors in percent.

    Attributes:
        dataset: whose class sizes.
        multiple: of the real number of training examples.
        seed: of this trial.
        bayes: the Bayes balanced error, E[1 − max_y p(y|x)] under balanced classes.
        errors: balanced error on the test points by method of `METHODS`.
        excess: the same minus the Bayes rule's on the same points.
        groups: by method, the errors of the classes with many, medium and few real examples.
        bins: by method, the errors of `BINS` groups of classes, from frequent to rare.
        disagreement: share of test points on which post-hoc adjustment and the loss decide
            differently.
        evaluations: that each regression took, by loss.
        gradients: at which each stopped, in standard errors.
    """

    dataset: str
    multiple: int
    seed: int
    bayes: Estimate
    errors: dict[str, Estimate]
    excess: dict[str, Estimate]
    groups: dict[str, dict[str, float]]
    bins: dict[str, list[float]]
    disagreement: float
    evaluations: dict[str, int]
    gradients: dict[str, float]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Trial:
        """What `dataclasses.asdict` made of one."""
        made = {
            "bayes": Estimate(**values["bayes"]),
            **{
                key: {name: Estimate(**one) for name, one in values[key].items()}
                for key in ("errors", "excess")
            },
        }
        return cls(**{**values, **made})


@dataclass(frozen=True)
class Study:
    """All trials.

    Attributes:
        trials: by data set, then multiple, then seed.
        sizes: by data set, facts about the class sizes and where they come from.
        settings: what was sampled, as plain values.
    """

    trials: tuple[Trial, ...]
    sizes: dict[str, dict[str, Any]]
    settings: dict[str, Any]

    def datasets(self) -> list[str]:
        """Names of the data sets, each once."""
        return list(dict.fromkeys(trial.dataset for trial in self.trials))

    def multiples(self, dataset: str) -> list[int]:
        """How many times the real number of examples, ascending."""
        return sorted({trial.multiple for trial in self.trials if trial.dataset == dataset})

    def of(self, dataset: str, multiple: int) -> list[Trial]:
        """The trials of one data set and size."""
        return [
            trial for trial in self.trials if (trial.dataset, trial.multiple) == (dataset, multiple)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "settings": self.settings,
            "class_sizes": self.sizes,
            "trials": [_rounded(asdict(trial)) for trial in self.trials],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Study:
        """What `to_dict` made of one."""
        return cls(
            tuple(Trial.from_dict(one) for one in document["trials"]),
            dict(document["class_sizes"]),
            dict(document["settings"]),
        )


def _rounded(value: Any) -> Any:
    """Six digits: more than the sampling noise leaves."""
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def run_trial(
    dataset: str,
    counts: IntArray,
    *,
    multiple: int,
    settings: Settings,
    seed: int,
    device: torch.device | str = "cpu",
    announce: Callable[[str], None] = lambda what: None,
) -> Trial:
    """Draw, solve both losses, adjust the softmax one, and judge everything.

    Args:
        dataset: its name, a key of ``settings.scales``.
        counts: real class sizes, shape (num_classes,).
        multiple: how many times that to draw.
        settings: the rest.
        seed: of this trial; the centres and test points depend on it alone, so that multiples of
            the sizes are compared on the same problem.
        device: where to compute.
        announce: called before each piece of work.

    Returns:
        The Trial.
    """
    scale, num_classes = settings.scales[dataset], len(counts)
    drawn, training = (np.random.default_rng([settings.seed, seed, part]) for part in (0, 1))
    centers = scale * drawn.standard_normal((num_classes, settings.dimension))
    per_class = max(2, settings.test_points // num_classes)
    points, answers = sample(centers, np.full(num_classes, per_class), drawn)
    features, target = sample(centers, counts * multiple, training)
    log_prior = ClassPrior.from_counts(counts).log_probs
    start = plug_in(features, target, scale=scale, num_classes=num_classes)
    fits = {}
    for loss in TRAINED:
        announce(f"{dataset} ×{multiple}, {loss}")
        fits[loss] = softmax_regression.fit(
            features,
            target,
            start=start,
            ridge=settings.ridge / scale**2,
            offset=log_prior if loss == "logit-adjusted" else None,
            tolerance=settings.tolerance,
            device=device,
        )
    announce(f"{dataset} ×{multiple}, judging")
    exact = true_weights(centers)
    rules = {
        "softmax": fits["softmax"].weights,
        POSTHOC: shifted(fits["softmax"].weights, -log_prior),
        "logit-adjusted": fits["logit-adjusted"].weights,
        LIMIT: shifted(exact, log_prior),
        "bayes": exact,
    }
    chosen = {name: decide(points, weights, device=device) for name, weights in rules.items()}
    wrong = {name: (labels != answers).astype(np.float64) for name, labels in chosen.items()}
    summed = partial(estimate, per_class=per_class)
    by_class = {name: 100 * w.reshape(-1, per_class).mean(axis=1) for name, w in wrong.items()}
    return Trial(
        dataset=dataset,
        multiple=multiple,
        seed=seed,
        bayes=bayes_balanced_error(points, exact, per_class=per_class, device=device),
        errors={name: summed(w) for name, w in wrong.items()},
        excess={name: summed(w - wrong["bayes"]) for name, w in wrong.items()},
        groups={name: _by_group(errors, counts) for name, errors in by_class.items()},
        bins={name: _by_bin(errors, counts) for name, errors in by_class.items()},
        disagreement=100.0 * float((chosen[POSTHOC] != chosen["logit-adjusted"]).mean()),
        evaluations={name: one.evaluations for name, one in fits.items()},
        gradients={name: one.gradient for name, one in fits.items()},
    )


def _by_group(errors: FloatArray, counts: IntArray) -> dict[str, float]:
    groups = ClassPrior.from_counts(counts).groups()
    return {name: float(errors[members].mean()) for name, members in groups.items() if len(members)}


def frequency_bins(counts: IntArray) -> list[IntArray]:
    """The classes in `BINS` groups of neighbours in frequency, the most frequent first."""
    return np.array_split(np.argsort(-counts, kind="stable"), min(BINS, len(counts)))


def _by_bin(errors: FloatArray, counts: IntArray) -> list[float]:
    return [float(errors[members].mean()) for members in frequency_bins(counts)]


def run(
    *,
    settings: Settings | None = None,
    datasets: Sequence[str] = DATASETS,
    class_counts: Mapping[str, Any] | None = None,
    data_dir: Any = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Study:
    """The whole simulation.

    Args:
        settings: what to sample.
        datasets: of `DATASETS`.
        class_counts: class sizes by data set, for another problem than the real ones.
        data_dir: where the file of class sizes is, see `natural_profiles.class_counts`.
        device: where to compute.
        progress: called as progress(done, total, what).

    Returns:
        The Study; `Study.to_dict` is what ``longtail reproduce large-simulation --json`` prints.

    Examples:
        >>> small = Settings(dimension=4, trials=1, test_points=2000)
        >>> study = run(settings=small, datasets=["imagenet-lt"],
        ...             class_counts={"imagenet-lt": [90, 30, 9, 3]})
        >>> trial = study.of("imagenet-lt", 10)[0]
        >>> trial.disagreement < 1  # post-hoc adjustment and the loss are one rule here
        True
    """
    caller = "large_simulation.run"
    settings = settings or Settings()
    for name in datasets:
        _checks.choice(name, DATASETS, caller, name="datasets")
        if name not in settings.scales or name not in settings.multiples:
            raise InputError(f"{caller}: `settings` has no scale or no multiples for {name!r}.")
    sizes = {name: _sizes(name, class_counts, data_dir) for name in datasets}
    work = [
        (name, multiple, seed)
        for name in datasets
        for multiple in settings.multiples[name]
        for seed in range(settings.trials)
    ]
    done = 0

    def announce(what: str) -> None:
        nonlocal done
        if progress is not None:
            progress(done, 3 * len(work), what)
        done += 1

    trials = [
        run_trial(
            name,
            sizes[name][0],
            multiple=multiple,
            settings=settings,
            seed=seed,
            device=device,
            announce=announce,
        )
        for name, multiple, seed in work
    ]
    facts = {name: _size_facts(*found) for name, found in sizes.items()}
    return Study(tuple(trials), facts, _plain(settings, datasets))


def _sizes(name: str, given: Mapping[str, Any] | None, data_dir: Any) -> tuple[IntArray, str]:
    if given is not None and name in given:
        return _checks.counts(given[name], caller="large_simulation.run"), "given"
    return natural_counts(name, data_dir=data_dir)


def _size_facts(counts: IntArray, source: str) -> dict[str, Any]:
    groups = ClassPrior.from_counts(counts).groups()
    return {
        "source": source,
        "classes": len(counts),
        "examples": int(counts.sum()),
        "largest": int(counts.max()),
        "smallest": int(counts.min()),
        "groups": {name: len(members) for name, members in groups.items()},
        "bins": [round(float(np.exp(np.log(counts[b]).mean())), 2) for b in frequency_bins(counts)],
    }


def _plain(settings: Settings, datasets: Sequence[str]) -> dict[str, Any]:
    """The settings as JSON gives them back, of the data sets that were used."""
    values = dict(vars(settings))
    values["scales"] = {name: settings.scales[name] for name in datasets}
    values["multiples"] = {name: list(settings.multiples[name]) for name in datasets}
    return values
