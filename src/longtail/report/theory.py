"""How the theory looks: Table 1 with witnesses, the appendix's three figures, separable data.

The numbers come from `longtail.experiments.theory`; nothing is computed here but medians.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from longtail._checks import FloatArray
from longtail.experiments import separable
from longtail.experiments.theory import PRIORS, TENT, Curve, Theory
from longtail.report import figures
from longtail.report.tables import Table, write_numbers

FIGURES = ("links", "inverse-links", "bayes-risks", "separable")
FILES = (
    "theory.json",
    "theory.md",
    *(f"theory-{name}.{ending}" for name in FIGURES for ending in ("svg", "png")),
)

_MARKS = {True: "✓", False: "✗", None: "?"}

# Label, colour, dashes and width; lines that coincide lie broad under thin.
_LINES: dict[str, tuple[str, str, Any, float]] = {
    "logistic": ("log-loss", figures.LIGHT_GRAY, "-", 4.5),
    "balanced": ("balanced", figures.GREEN, "-", 1.6),
    "unequal-margin": ("unequal margins", figures.BLUE, (0, (5, 1.6)), 1.6),
    "balanced-margin": ("balanced + margin, δ₋ = π/(1 − π)", figures.VERMILION, (0, (1.2, 1)), 2.0),
    "balanced-margin-pi": ("balanced + margin, δ₋ = π", figures.PURPLE, (0, (4, 1, 1, 1)), 1.4),
    TENT: ("balanced error (tent)", figures.BLACK, "-", 0.9),
}

_SHORT = {
    "balanced": "balanced",
    "balanced-margin": "+ δ₋ = π/(1 − π)",
    "balanced-margin-pi": "+ δ₋ = π",
}

_HINGE_LABELS = {
    "hinge": "hinge, maximum margin",
    "hinge-weights": "hinge, weights 1/π",
    "hinge-margins": "hinge, margins ∝ π^(−1/4)",
}


def tables(theory: Theory) -> list[Table]:
    """Table 1, the witnesses, the limit γ → ∞ and the errors on separable data."""
    return [
        _consistency_table(theory),
        _witness_table(theory),
        _limit_table(theory),
        _separable_table(theory.separable),
    ]


def _consistency_table(theory: Theory) -> Table:
    rows = [
        (
            row.name,
            row.procedure,
            "" if row.paper is None else _MARKS[row.paper],
            *(_MARKS[row.verdicts[name].consistent] for name in PRIORS),
        )
        for row in theory.rows
    ]
    return Table(
        "Consistent for the balanced error? (Table 1 of the paper, and more)",
        ("method", "Δ_yy' or rule", "paper", *(f"L = {p.num_classes}" for p in PRIORS.values())),
        rows,
        note=(
            "✓ proved, ✗ refuted by a witness below. Priors: "
            + " and ".join(_numbers(prior.probs) for prior in PRIORS.values())
            + "."
        ),
    )


def _witness_table(theory: Theory) -> Table:
    rows = [
        (row.name, _numbers(w.eta), _numbers(w.scores, digits=2), f"{w.wins}, not {w.should_win}")
        for row in theory.rows
        for verdict in row.verdicts.values()
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


def _limit_table(theory: Theory) -> Table:
    heads = [f"γ = {g:g}" if np.isfinite(g) else "γ → ∞" for g in theory.limit_gammas]
    rows = [
        (_SHORT[name], what, *(f"{v:.3f}" for v in values[name]))
        for what, values in (
            ("threshold", theory.thresholds),
            ("to tent", theory.tent_distances),
        )
        for name in values
    ]
    return Table(
        f"Binary losses as γ → ∞, π = {theory.pi:g}",
        ("loss", "quantity", *heads),
        rows,
        note=(
            f"threshold: Ψ⁻¹(0), which is π iff the loss is consistent. to tent: largest "
            f"distance of its Bayes risk from the balanced error's own, both of maximum 1. "
            f"The curves' closed forms differ from direct minimisation "
            f"of the risk by at most {theory.largest_deviation:.0e}."
        ),
    )


def _separable_table(study: separable.Study) -> Table:
    shown = _shown_penalties(study)
    rows = []
    for name in separable.LOSSES:
        errors, places = 100 * study.errors[name], np.median(study.positions[name], axis=0)
        cells = [f"{errors[:, i].mean():.2f} ({places[i]:+.2f})" for i in shown]
        rows.append((figures.label(name), *cells))
    for name in separable.HINGES:
        place = study.hinge_position if name == "hinge-margins" else 0.0
        cell = f"{100 * study.errors[name].mean():.2f} ({place:+.2f})"
        rows.append((_HINGE_LABELS[name], *[""] * (len(shown) - 1), cell))
    return Table(
        "Separable classes: balanced error in percent (position of the separator)",
        ("loss", *(f"λ = {study.settings.penalties[i]:.0e}" for i in shown)),
        rows,
        note=(
            f"Mean of {study.settings.trials} trials of {study.settings.common} + "
            f"{study.settings.rare} examples; position: median, in half gaps from the "
            f"maximum-margin separator towards the common class. Hinge losses in the limit "
            f"λ → 0, where weights change no coefficient of the separator by more than "
            f"{study.weighted_difference:.0e} of the largest. "
            f"Weights and logit margins fade as λ does; margins of the hinge loss stay."
        ),
    )


def _shown_penalties(study: separable.Study) -> list[int]:
    """Three of them, down to the last."""
    last = len(study.settings.penalties) - 1
    return sorted({round(part * last) for part in (1 / 3, 2 / 3, 1.0)})


def _numbers(values: FloatArray, *, digits: int | None = None) -> str:
    form = ".3g" if digits is None else f".{digits}f"
    return f"({', '.join(f'{value:{form}}' for value in values)})"


def draw_links(theory: Theory) -> Any:
    """The paper's figure of link functions Ψ(p), one panel per γ.

    Args:
        theory: what `experiments.theory.run` returned.

    Returns:
        A matplotlib Figure.
    """
    with figures.style():
        figure, axes = _panel_per_gamma(theory)
        for panel, gamma in zip(axes, theory.gammas, strict=True):
            _mark_prior(panel, theory.pi)
            panel.axhline(0.0, color=figures.GRAY, lw=0.7)
            _plot(panel, [c for c in theory.links if c.gamma == gamma])
            panel.set(xlim=(0, 1), ylim=(-4, 4), title=f"γ = {gamma:g}")
            panel.set_xlabel("p = P(y = +1 | x)")
        axes[0].set_ylabel("link Ψ(p): best score at p")
        _legend_below(figure, axes[0])
        axes[0].text(theory.pi + 0.015, -3.85, f"π = {theory.pi:g}", fontsize=7.5, va="bottom")
    return figure


def draw_inverse_links(theory: Theory) -> Any:
    """The paper's figure of inverse links Ψ⁻¹(f), one panel per γ.

    Args:
        theory: what `experiments.theory.run` returned.

    Returns:
        A matplotlib Figure.
    """
    with figures.style():
        figure, axes = _panel_per_gamma(theory)
        for panel, gamma in zip(axes, theory.gammas, strict=True):
            panel.axhline(theory.pi, color=figures.GRAY, lw=0.9, ls=(0, (2, 2)))
            panel.axvline(0.0, color=figures.GRAY, lw=0.7)
            _plot(panel, [c for c in theory.inverse_links if c.gamma == gamma])
            panel.set(xlim=(-4, 4), ylim=(0, 1.02), title=f"γ = {gamma:g}")
            panel.set_xlabel("score f")
        axes[0].set_ylabel("inverse link Ψ⁻¹(f)")
        _legend_below(figure, axes[0])
        axes[0].text(3.9, theory.pi + 0.015, f"π = {theory.pi:g}", fontsize=7.5, ha="right")
    return figure


def draw_bayes_risks(theory: Theory) -> Any:
    """The paper's figure of conditional Bayes risks with maximum 1, one panel per γ.

    Args:
        theory: what `experiments.theory.run` returned.

    Returns:
        A matplotlib Figure.
    """
    with figures.style():
        figure, axes = _panel_per_gamma(theory, height=3.2)
        for panel, gamma in zip(axes, theory.gammas, strict=True):
            _mark_prior(panel, theory.pi)
            _plot(panel, [c for c in theory.bayes_risks if c.gamma in (gamma, None)])
            panel.set(xlim=(0, 1), ylim=(0, 1.04), title=f"γ = {gamma:g}")
            panel.set_xlabel("p = P(y = +1 | x)")
        axes[0].set_ylabel("conditional Bayes risk / its maximum")
        axes[0].text(theory.pi + 0.015, 0.02, f"π = {theory.pi:g}", fontsize=7.5, va="bottom")
        _legend_below(figure, axes[0])
    return figure


def _panel_per_gamma(theory: Theory, *, height: float = 3.0) -> tuple[Any, Any]:
    figure, axes = figures.panels(columns=len(theory.gammas), height=height, sharey=True)
    return figure, axes[0]


def _legend_below(figure: Any, panel: Any, *, columns: int = 3) -> None:
    """One legend for all panels, where it hides no line."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def _mark_prior(panel: Any, pi: float) -> None:
    panel.axvline(pi, color=figures.GRAY, lw=0.9, ls=(0, (2, 2)))


def _plot(panel: Any, curves: Sequence[Curve]) -> None:
    for curve in curves:
        label, shade, dashes, width = _LINES[curve.name]
        panel.plot(curve.x, curve.y, color=shade, ls=dashes, lw=width, label=label)


def draw_separable(theory: Theory) -> Any:
    """The separable experiment: a sample, positions over λ, balanced errors over λ.

    Args:
        theory: what `experiments.theory.run` returned.

    Returns:
        A matplotlib Figure with three panels.
    """
    study = theory.separable
    with figures.style():
        figure, axes = figures.panels(columns=3, width=10.2, height=3.3)
        figure.get_layout_engine().set(wspace=0.05)
        _draw_sample(axes[0, 0], study)
        _draw_positions(axes[0, 1], study)
        _draw_errors(axes[0, 2], study)
        _legend_below(figure, axes[0, 2], columns=6)
    return figure


_HINGE_LINES: dict[str, dict[str, Any]] = {
    "hinge-weights": {"color": figures.BLACK, "ls": (0, (4, 2)), "lw": 1.2},
    "hinge-margins": {"color": figures.VERMILION, "ls": (0, (4, 2)), "lw": 1.4},
}
_HINGE_LEGEND = {
    "hinge-weights": "hinge, any weights (λ → 0)",
    "hinge-margins": "hinge, margins ∝ $π^{-1/4}$ (λ → 0)",
}


def _draw_sample(axes: Any, study: separable.Study) -> None:
    """The sample with the widest gap, with the separators that remain as λ → 0."""
    for rare, shade, size in ((0, figures.LIGHT_GRAY, 9), (1, figures.DARK_GRAY, 14)):
        axes.scatter(*study.features[study.target == rare].T, s=size, color=shade, linewidths=0)
    ends = np.array([-6.0, 6.0])
    axes.plot(ends, -ends, color=figures.GRAY, lw=0.8)
    for name, look in _HINGE_LINES.items():
        first, second, bias = study.examples[name]
        axes.plot(ends, -(bias + first * ends) / second, **look)
    axes.set(xlim=(-2.6, 2.6), ylim=(-2.6, 2.6), aspect="equal")
    axes.set_xlabel("$x_1$")
    axes.set_ylabel("$x_2$")
    axes.grid(visible=False)
    for x, y, text, shade, side in (
        (2.5, 2.5, "rare class", figures.BLACK, "right"),
        (-2.5, -2.4, "common class", figures.GRAY, "left"),
    ):
        axes.text(
            x,
            y,
            text,
            color=shade,
            ha=side,
            va="top" if y > 0 else "bottom",
            fontsize=7.5,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5},
        )
    axes.text(
        1.5,
        -1.72,
        "true boundary",
        color=figures.GRAY,
        rotation=-45,
        ha="center",
        va="center",
        fontsize=7.5,
    )
    axes.set_title("(a) Sample with the widest gap")


def _draw_positions(axes: Any, study: separable.Study) -> None:
    """Median position in half gaps with the quartiles as a band."""
    for name in separable.LOSSES:
        shade, rows = figures.color(name), study.positions[name]
        lower, median, upper = np.percentile(rows, [25, 50, 75], axis=0)
        axes.plot(study.settings.penalties, median, color=shade)
        axes.fill_between(study.settings.penalties, lower, upper, color=shade, alpha=0.15, lw=0)
    axes.axhline(0.0, **_HINGE_LINES["hinge-weights"])
    axes.axhline(study.hinge_position, **_HINGE_LINES["hinge-margins"])
    least = min(study.settings.penalties)
    axes.set_xscale("log")
    axes.set_xlim(max(study.settings.penalties), least)
    axes.set_ylim(-1.5, 1.5)
    for place, text in ((1, "nearest common samples"), (-1, "nearest rare samples")):
        axes.axhline(place, color=figures.GRAY, lw=0.7)
        axes.text(
            0.985,
            place - 0.04,
            text,
            transform=axes.get_yaxis_transform(),
            ha="right",
            va="top",
            fontsize=7.5,
            color=figures.GRAY,
        )
    axes.set_xlabel("penalty λ, falling")
    axes.set_ylabel("separator's place in the gap (half gaps)")
    axes.set_title("(b) Where separators go, median and quartiles")


def _draw_errors(axes: Any, study: separable.Study) -> None:
    """Mean balanced error on the population."""
    for name in separable.LOSSES:
        mean = 100 * study.errors[name].mean(axis=0)
        axes.plot(
            study.settings.penalties, mean, color=figures.color(name), label=figures.label(name)
        )
    for name, look in _HINGE_LINES.items():
        axes.axhline(100 * study.errors[name].mean(), label=_HINGE_LEGEND[name], **look)
    axes.set_xscale("log")
    axes.set_xlim(max(study.settings.penalties), min(study.settings.penalties))
    axes.set_ylim(0, 4)
    axes.set_xlabel("penalty λ, falling")
    axes.set_ylabel("balanced error (%)")
    axes.set_title(f"(c) Error on the population, mean of {study.settings.trials}")


_DRAW = dict(
    zip(FIGURES, (draw_links, draw_inverse_links, draw_bayes_risks, draw_separable), strict=True)
)
_TITLES = {
    "links": "Link functions of binary losses",
    "inverse-links": "Inverse link functions of binary losses",
    "bayes-risks": "Conditional Bayes risks of binary losses",
    "separable": "Weights and margins on separable classes",
}


def write(theory: Theory, folder: str | Path) -> list[Path]:
    """Write all numbers as JSON, the tables as Markdown and the figures as SVG and PNG.

    Args:
        theory: what `experiments.theory.run` returned.
        folder: made if need be; files of the same names are replaced.

    Returns:
        The paths written, in the order of `FILES`.
    """
    blocks = (table.markdown() for table in tables(theory))
    paths = write_numbers(folder, FILES, theory.to_dict(), blocks)
    for name, draw in _DRAW.items():
        paths += figures.save(draw(theory), Path(folder) / f"theory-{name}", title=_TITLES[name])
    return paths
