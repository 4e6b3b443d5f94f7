"""How the simulation at full class count looks: its tables, what follows from it, its figure.

The numbers come from `longtail.experiments.large_simulation`; only means over trials and their
standard errors are taken here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from longtail.data.large import LARGE
from longtail.experiments.gaussian_classes import Estimate
from longtail.experiments.large_simulation import LIMIT, METHODS, POSTHOC, Study, Trial
from longtail.priors import GROUPS
from longtail.report import figures
from longtail.report.compare import mean_interval
from longtail.report.tables import Table, write_numbers

FILES = tuple(f"large-simulation.{ending}" for ending in ("json", "md", "svg", "png"))
TITLE = "Balanced error above Bayes at the class sizes of ImageNet-LT and iNaturalist"
_LABELS = {LIMIT: "softmax (ERM), unlimited data"}


def label(method: str) -> str:
    """A rule as people read it."""
    return _LABELS.get(method, figures.label(method))


def over_trials(values: Sequence[float]) -> Estimate:
    """Mean over trials and its standard error, NaN for a single one.

    Examples:
        >>> over_trials([1.0, 3.0])
        Estimate(mean=2.0, se=1.0)
    """
    array = np.asarray(values, dtype=np.float64)
    spread = array.std(ddof=1) if len(array) > 1 else np.nan
    return Estimate(float(array.mean()), float(spread / np.sqrt(len(array))))


def bayes(trials: Sequence[Trial]) -> Estimate:
    """The Bayes balanced error, mean of the trials' own, with the error of Monte Carlo."""
    errors = np.array([trial.bayes.se for trial in trials])
    mean = float(np.mean([trial.bayes.mean for trial in trials]))
    return Estimate(mean, float(np.sqrt(np.square(errors).sum()) / len(errors)))


def excess(trials: Sequence[Trial], method: str) -> Estimate:
    """Balanced error above Bayes, in points; of a single trial, with its error of sampling."""
    if len(trials) == 1:
        return trials[0].excess[method]
    return over_trials([trial.excess[method].mean for trial in trials])


def text(found: Estimate) -> str:
    """``3.47 ± 0.05``, or the mean alone."""
    return f"{found.mean:.2f}" + ("" if np.isnan(found.se) else f" ± {found.se:.2f}")


def tables(study: Study) -> list[Table]:
    """For each data set the rules at the real class sizes, and all sizes side by side."""
    return [*(_rules_table(study, name) for name in study.datasets()), _sizes_table(study)]


# Where class sizes come from, in words; see `natural_profiles.class_counts`.
_SIZES = {
    "file": "the real class sizes",
    "rebuilt": "class sizes rebuilt from what is published of the real ones",
    "given": "the given class sizes",
}


def _rules_table(study: Study, dataset: str) -> Table:
    facts, first = study.sizes[dataset], study.multiples(dataset)[0]
    trials = study.of(dataset, first)
    rows = [
        (
            label(method),
            f"{np.mean([trial.errors[method].mean for trial in trials]):.2f}",
            "" if method == "bayes" else text(excess(trials, method)),
            *(_group(trials, method, group) for group in GROUPS),
        )
        for method in METHODS
    ]
    least = bayes(trials)
    sizes = ("" if first == 1 else f"{first} times ") + _SIZES[facts["source"]]
    return Table(
        f"{LARGE[dataset].title}: {facts['classes']:,} classes, balanced error in percent",
        ("rule", "error", "above Bayes", *GROUPS),
        rows,
        note=(
            f"Gaussian features, {sizes} ({facts['examples'] * first:,} examples, "
            f"{facts['largest'] * first:,} to {facts['smallest'] * first} a class), "
            f"{_trials(trials)}; ± one standard error. Bayes balanced error by Monte "
            f"Carlo with the true densities: {least.mean:.3f} with a standard error of "
            f"{least.se:.3f}. Errors above Bayes are on the same test points as the Bayes rule's. "
            f"Each regression was solved until its gradient was below "
            f"{study.settings['tolerance']:g} of its own sampling error in the worst direction."
        ),
    )


def _trials(trials: Sequence[Trial]) -> str:
    return f"{len(trials)} trial{'' if len(trials) == 1 else 's'}"


def _group(trials: Sequence[Trial], method: str, group: str) -> str:
    values = [trial.groups[method][group] for trial in trials if group in trial.groups[method]]
    return f"{np.mean(values):.1f}" if values else "–"


def _sizes_table(study: Study) -> Table:
    rows = []
    for dataset in study.datasets():
        for multiple in study.multiples(dataset):
            trials = study.of(dataset, multiple)
            rows.append(
                (
                    f"{LARGE[dataset].title} × {multiple}",
                    *(text(excess(trials, m)) for m in ("softmax", POSTHOC, "logit-adjusted")),
                    f"{np.mean([trial.disagreement for trial in trials]):.2f}",
                )
            )
        trials = study.of(dataset, study.multiples(dataset)[0])
        rows.append((f"{LARGE[dataset].title} × ∞", text(excess(trials, LIMIT)), "0", "0", "0"))
    return Table(
        "Points of balanced error above Bayes, by number of training examples",
        ("class sizes", "ERM", "post-hoc", "loss", "differ"),
        rows,
        note=(
            "× n: n times the real number of examples of each class; × ∞: what softmax regression "
            "tends to, the true densities with the class prior. differ: percent of the test points "
            "on which post-hoc adjustment and the loss, each solved by itself, decide differently."
        ),
    )


def findings(study: Study) -> list[str]:
    """What the numbers say, a sentence for each data set; a difference needs its 95% interval."""
    return [_finding(study, dataset) for dataset in study.datasets()]


def _finding(study: Study, dataset: str) -> str:
    multiples = study.multiples(dataset)
    first, last = (study.of(dataset, multiple) for multiple in (multiples[0], multiples[-1]))
    facts = study.sizes[dataset]
    gain = [t.errors["softmax"].mean - t.errors["logit-adjusted"].mean for t in first]
    rare = list(first[0].groups["softmax"])[-1]  # few, where there are such classes
    saved = over_trials(
        [t.groups["softmax"][rare] - t.groups["logit-adjusted"][rare] for t in first]
    )
    words = (
        f"With the {facts['classes']:,} class sizes of {LARGE[dataset].title}, ERM errs "
        f"{excess(first, 'softmax').mean:.2f} points above Bayes and the logit-adjusted loss "
        f"{excess(first, 'logit-adjusted').mean:.2f} ({_verdict(gain)}); on the classes with "
        f"{rare} examples the loss errs {_points(saved.mean)} than ERM."
    )
    if len(multiples) > 1:
        words += (
            f" With {multiples[-1]} times the examples it is "
            f"{excess(last, 'softmax').mean:.2f} and {excess(last, 'logit-adjusted').mean:.2f}."
        )
    differ = max(t.disagreement for m in multiples for t in study.of(dataset, m))
    return (
        f"{words} However many examples there are, ERM stays {excess(first, LIMIT).mean:.2f} "
        f"points above Bayes, and the adjusted rules don't. Post-hoc adjustment and the loss "
        f"decide alike on all but {differ:.2f}% of the test points at most: with free biases they "
        f"are the same convex problem, here solved twice."
    )


def _points(difference: float) -> str:
    return f"{abs(difference):.1f} points {'less' if difference > 0 else 'more'}"


def _verdict(differences: Sequence[float]) -> str:
    if len(differences) == 1:
        return "one trial"
    interval = mean_interval(differences)
    if not interval.excludes_zero:
        return "a difference that these trials don't settle"
    return f"95% interval of the difference {interval.low:.2f} to {interval.high:.2f}"


def draw(study: Study) -> Any:
    """Error by class frequency above, and against the number of examples below.

    Args:
        study: what `experiments.large_simulation.run` returned.

    Returns:
        A matplotlib Figure, a column for each data set.
    """
    datasets = study.datasets()
    with figures.style():
        figure, axes = figures.panels(
            rows=2, columns=len(datasets), width=0.6 + 3.4 * len(datasets), height=5.6
        )
        for column, dataset in enumerate(datasets):
            _draw_frequencies(axes[0, column], study, dataset)
            _draw_sizes(axes[1, column], study, dataset)
        axes[0, 0].set_ylabel("error of the classes (%)")
        axes[1, 0].set_ylabel("balanced error (%)")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=1 + len(datasets))
    return figure


# Post-hoc adjustment and the loss coincide: the one is a broad line under the other's dashes.
_LOOKS: dict[str, dict[str, Any]] = {
    "softmax": {"lw": 1.6, "marker": "o", "ms": 3.5},
    LIMIT: {"lw": 1.1, "ls": (0, (1, 1.2))},
    POSTHOC: {"lw": 4.0, "alpha": 0.55, "solid_capstyle": "butt"},
    "logit-adjusted": {"lw": 1.4, "ls": (0, (4, 1.5)), "marker": "s", "ms": 3},
    "bayes": {"lw": 1.1, "ls": "--"},
}


def _draw_frequencies(axes: Any, study: Study, dataset: str) -> None:
    """Errors of groups of classes at the real sizes, the most frequent left."""
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
    """Balanced error at each multiple of the real sizes, and in the limit."""
    multiples = study.multiples(dataset)
    places = np.arange(len(multiples) + 1)
    of_size = [study.of(dataset, multiple) for multiple in multiples]
    least = bayes(of_size[0])
    for method in ("softmax", POSTHOC, "logit-adjusted"):
        ends = excess(of_size[0], LIMIT) if method == "softmax" else Estimate(0.0, 0.0)
        found = [*(excess(trials, method) for trials in of_size), ends]
        values = [least.mean + one.mean for one in found]
        axes.plot(places, values, color=figures.color(method), **_LOOKS[method])
        if method == POSTHOC:
            continue
        for place, value, one in zip(places, values, found, strict=True):
            axes.annotate(
                f"+{one.mean:.2f}" if one.mean else "",
                (place, value),
                xytext=(4, 5),  # right of the line, which falls
                textcoords="offset points",
                ha="left",
                fontsize=7.5,
            )
    axes.axhline(least.mean, color=figures.color("bayes"), lw=1.1, ls="--")
    axes.annotate(
        f"Bayes {least.mean:.2f}",
        (-0.2, least.mean),
        xytext=(0, -4),
        textcoords="offset points",
        va="top",
        fontsize=7.5,
    )
    axes.set_xlim(-0.25, places[-1] + 0.35)
    low, high = axes.get_ylim()
    axes.set_ylim(low - 0.08 * (high - low), high + 0.08 * (high - low))
    axes.set_xticks(places, [*(f"×{multiple}" for multiple in multiples), "unlimited"])
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("training examples, times the real number")


def write(study: Study, folder: str | Path) -> list[Path]:
    """Write all numbers as JSON, the tables as Markdown and the figure as SVG and PNG.

    Args:
        study: what `experiments.large_simulation.run` returned.
        folder: made if need be; files of the same names are replaced.

    Returns:
        The paths written, in the order of `FILES`.
    """
    written = write_numbers(folder, FILES, study.to_dict(), blocks(study))
    drawn = figures.save(draw(study), Path(folder) / "large-simulation", title=TITLE)
    return [*written, *drawn]


def blocks(study: Study) -> list[str]:
    """The findings and all tables, in Markdown."""
    return [*findings(study), *(table.markdown() for table in tables(study))]
