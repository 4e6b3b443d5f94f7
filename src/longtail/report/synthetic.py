"""How the synthetic study looks: its tables and the three panels of the paper's figure 2.

The numbers come from `longtail.experiments.synthetic`; nothing is computed here but means.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from longtail._checks import FloatArray
from longtail.experiments import synthetic
from longtail.experiments.synthetic import BIAS_MODES, LOSSES, POSTHOC, Study
from longtail.report import figures
from longtail.report.tables import Table, write_numbers

FILES = ("synthetic.json", "synthetic.md", "synthetic.svg", "synthetic.png")

# The separators worth drawing: post-hoc adjustment's is the logit-adjusted loss's own.
_DRAWN = ("softmax", "adaptive", "equalized", "balanced", "logit-adjusted")
_MODE_LINES: dict[str, Any] = {"scale": "-", "keep": (0, (5, 1.5))}


def tables(study: Study) -> list[Table]:
    """The errors of every method, and of weight normalisation by bias mode."""
    settings = study.settings
    methods = [
        (
            figures.label(name),
            *_mean_std(study.errors[name], digits=3),
            *_mean_std(study.sampled[name], digits=2),
        )
        for name in (*LOSSES, *POSTHOC)
    ]
    bayes = ("Bayes", f"{100 * study.bayes_error:.3f}", "", "", "")
    grid = [t for t in (0.5, 1.0, 2.0) if np.isclose(study.tau, t).any()]
    modes = [
        (name, *(_at(study, curve, t) for t in grid))
        for name, curve in [
            ("logit adjustment", "posthoc-logit-adjusted"),
            *((f"weight norm., bias {m}", synthetic.weight_normalized(m)) for m in BIAS_MODES),
        ]
    ]
    return [
        Table(
            f"Balanced error in percent, {settings.trials} trials, "
            f"P(rare) = {100 * settings.rare:g}%",
            ("method", "exact", "std", "sampled", "std"),
            [*methods, bayes],
            note=(
                f"exact: closed form for the learned separator; sampled: on "
                f"{settings.num_test:,} test points. Post-hoc methods at tau = 1; weight "
                f"normalisation scales the bias, as in the paper."
            ),
        ),
        Table(
            "Post-hoc methods over tau, balanced error in percent (exact)",
            ("method", *(f"tau = {t:g}" for t in grid)),
            modes,
            note=(
                "Dropping the bias looks optimal only because these class centres are "
                "symmetric about the origin, where the best separator has no bias: an "
                "artefact of this problem, not a property of the method."
            ),
        ),
    ]


def _mean_std(errors: FloatArray, *, digits: int) -> tuple[str, str]:
    spread = errors.std(ddof=1) if len(errors) > 1 else 0.0
    return f"{100 * errors.mean():.{digits}f}", f"{100 * spread:.{digits}f}"


def _at(study: Study, curve: str, tau: float) -> str:
    place = int(np.argmin(np.abs(study.tau - tau)))
    return f"{100 * study.curves[curve][:, place].mean():.2f}"


def draw(study: Study) -> Any:
    """The paper's figure 2: errors by method, learned separators, post-hoc methods over tau.

    Args:
        study: what `experiments.synthetic.run` returned.

    Returns:
        A matplotlib Figure with three panels.
    """
    with figures.style():
        figure, axes = figures.panels(columns=3, width=10.2, height=3.1, width_ratios=[1, 1, 1.05])
        figure.get_layout_engine().set(wspace=0.06)
        errors, separators, curves = axes[0]
        _draw_errors(errors, study)
        _draw_separators(separators, study)
        _draw_curves(curves, study)
    return figure


def _draw_errors(axes: Any, study: Study) -> None:
    """One dot per trial and the mean, by method; the Bayes error as a line."""
    names = (*LOSSES, *POSTHOC)
    jitter = np.random.default_rng(0).uniform(-0.22, 0.22, study.settings.trials)
    for row, name in enumerate(names):
        values, shade = 100 * study.errors[name], figures.color(name)
        axes.scatter(values, row + jitter, s=5, color=shade, alpha=0.45, linewidths=0)
        axes.scatter(values.mean(), row, s=28, color=shade, edgecolor="white", linewidth=0.8)
        axes.annotate(
            f"{values.mean():.2f}",
            (values.max(), row),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
        )
    bayes = 100 * study.bayes_error
    axes.axvline(bayes, color=figures.color("bayes"), lw=1, ls="--", zorder=0)
    axes.text(bayes + 0.25, -0.62, f"Bayes {bayes:.2f}", fontsize=7.5, va="center")
    axes.set_yticks(range(len(names)), [figures.label(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.95)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.1)
    low, high = axes.get_xlim()
    axes.set_xlim(low, high + 0.12 * (high - low))  # room for the last number
    axes.set_xlabel("balanced error (%)")
    axes.set_title(f"(a) Losses and post-hoc methods, {study.settings.trials} trials")


def _draw_separators(axes: Any, study: Study) -> None:
    """The first trial's sample, thinned, with what each loss learned from it."""
    features, target = study.example.features[:4000], study.example.target[:4000]
    for rare, shade, size in ((0, figures.LIGHT_GRAY, 3), (1, figures.DARK_GRAY, 6)):
        points = features[target == rare]
        axes.scatter(*points.T, s=size, color=shade, linewidths=0, rasterized=True)
    low, high = -5.4, 4.2
    ends = np.array([low - high, high - low])
    for name in _DRAWN:
        first, second, bias = study.separators[name][0]
        axes.plot(
            ends,
            -(bias + first * ends) / second,
            color=figures.color(name),
            lw=1.7,
            label=figures.label(name),
        )
    axes.plot(ends, -ends, color=figures.color("bayes"), lw=1.1, ls="--", label="Bayes")
    axes.text(4.1, 3.85, "rare class", ha="right", fontsize=7.5)
    axes.text(-5.2, 1.2, "common\nclass", fontsize=7.5, color=figures.GRAY)
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    axes.set_xlabel("$x_1$")
    axes.set_ylabel("$x_2$")
    axes.grid(visible=False)
    axes.legend(
        loc="lower left",
        frameon=True,
        framealpha=0.92,
        edgecolor="none",
        fontsize=6.8,
        labelspacing=0.25,
        borderpad=0.2,
    )
    axes.set_title("(b) Separators learned in one trial")


def _draw_curves(axes: Any, study: Study) -> None:
    """Balanced error against tau, a band of one standard deviation around the mean."""
    names = ["posthoc-logit-adjusted", *map(synthetic.weight_normalized, BIAS_MODES)]
    for name in names:
        mode, shade = name.partition("/")[2], figures.color(name)
        values = 100 * study.curves[name]
        mean, spread = values.mean(axis=0), values.std(axis=0)
        # The dropped bias coincides with the Bayes line: a broad band under its dashes.
        look = {"lw": 4, "alpha": 0.45} if mode == "drop" else {"ls": _MODE_LINES.get(mode, "-")}
        axes.plot(study.tau, mean, color=shade, solid_capstyle="butt", **look)
        axes.fill_between(study.tau, mean - spread, mean + spread, color=shade, alpha=0.2, lw=0)
    bayes = 100 * study.bayes_error
    axes.axhline(bayes, color=figures.color("bayes"), lw=1, ls="--")
    axes.set_xlim(study.tau[0], study.tau[-1])
    axes.set_ylim(0, 50)
    axes.set_xlabel("τ")
    axes.set_ylabel("balanced error (%)")
    axes.set_title("(c) Post-hoc methods over τ")
    _label_curves(axes)


def _label_curves(axes: Any) -> None:
    """Names beside the lines, where a legend would send the eye back and forth."""
    brick = figures.color("posthoc-weight-normalized")
    blue = figures.color("logit-adjusted")  # the line's own sky blue is too light for letters
    for x, y, text, shade, how in (
        (0.1, 46, "weight normalisation", brick, {"weight": "bold"}),
        (1.05, 30.5, "bias kept", brick, {"ha": "right"}),
        (0.33, 15.8, "bias scaled (the paper's)", brick, {}),
        (
            0.1,
            3.4,
            "bias dropped: on the Bayes line (dashed)\nonly because these centres are symmetric",
            brick,
            {},
        ),
        (2.93, 13.4, "logit\nadjustment", blue, {"weight": "bold", "ha": "right"}),
    ):
        axes.text(x, y, text, color=shade, fontsize=7.5, va="center", **how)


def write(study: Study, folder: str | Path) -> list[Path]:
    """Write all numbers as JSON, the tables as Markdown and the figure as SVG and PNG.

    Args:
        study: what `experiments.synthetic.run` returned.
        folder: made if need be; files of the same names are replaced.

    Returns:
        The paths written, in the order of `FILES`.
    """
    blocks = (table.markdown() for table in tables(study))
    title = "Balanced error of losses and post-hoc methods on two Gaussian classes"
    drawn = figures.save(draw(study), Path(folder) / "synthetic", title=title)
    return [*write_numbers(folder, FILES, study.to_dict(), blocks), *drawn]
