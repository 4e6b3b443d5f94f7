"""Style of every matplotlib figure: colours, type sizes, and saving as SVG and PNG.

    with figures.style():
        figure, axes = figures.panels(columns=2)
        ...
    figures.save(figure, folder / "name")

A method has the same colour in every figure and page. Figures have no pyplot state; saved bytes
depend on the figure and matplotlib's version alone.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail.runs import files

# Okabe and Ito's palette, told apart under every common colour blindness.
BLACK = "#000000"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
BLUE = "#0072B2"
VERMILION = "#D55E00"
PURPLE = "#CC79A7"
GRAY = "#6F6F6F"
LIGHT_GRAY = "#C8C8C8"
DARK_GRAY = "#3D3D3D"
WINE = "#882255"

# Beside these, Tol's muted palette, and violet, brown and petrol, which are far from all others in
# the page's dark theme too.
METHOD_COLORS = {
    "softmax": GRAY,
    "balanced": GREEN,
    "class-balanced": "#44AA99",
    "adaptive": ORANGE,
    "ldam": "#999933",
    "equalized": PURPLE,
    "equalized-threshold": "#9A2FD6",
    "logit-adjusted": BLUE,
    "logit-adjusted-adaptive": "#332288",
    "two-parameter": WINE,
    "consistent": "#6B4410",
    "weighted-logit-adjusted": "#0B4F5C",
    "posthoc-logit-adjusted": SKY,
    "posthoc-weight-normalized": VERMILION,
    "bayes": BLACK,
}

METHOD_LABELS = {
    "softmax": "softmax (ERM)",
    "ldam": "LDAM",
    "equalized-threshold": "equalized threshold",
    "logit-adjusted": "logit adjusted",
    "logit-adjusted-adaptive": "logit adjusted + adaptive",
    "weighted-logit-adjusted": "weighted logit adjusted",
    "drw": "DRW",
    "label-smoothing": "label smoothing",
    "sqrt-sampling": "square-root sampling",
    "posthoc-logit-adjusted": "post-hoc logit adj.",
    "posthoc-weight-normalized": "post-hoc weight norm.",
    "bayes": "Bayes",
}

# Text width of a one-column page, in inches.
PAGE_WIDTH = 7.0

_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # shipped with matplotlib, so the same everywhere
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GRAY,
    "axes.linewidth": 0.7,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "xtick.color": GRAY,
    "ytick.color": GRAY,
    "xtick.labelcolor": BLACK,
    "ytick.labelcolor": BLACK,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "legend.borderaxespad": 0.3,
    "figure.facecolor": "white",  # readable on a dark page as well
    "savefig.facecolor": "white",
    "savefig.dpi": 300,
    "svg.fonttype": "path",
    "svg.hashsalt": "longtail",  # element names would be random otherwise
}


def color(method: str) -> str:
    """Return a method's colour, that of its loss; dark grey for unknown names.

    Args:
        method: a name such as "logit-adjusted" or "ldam+drw", or with a variant after a slash.

    Examples:
        >>> color("posthoc-weight-normalized/keep") == VERMILION
        True
        >>> color("ldam+drw") == color("ldam")
        True
    """
    return METHOD_COLORS.get(method.partition("/")[0].partition("+")[0], DARK_GRAY)


def label(method: str) -> str:
    """Return a method's name for people.

    Examples:
        >>> label("softmax"), label("class-balanced")
        ('softmax (ERM)', 'class-balanced')
        >>> label("softmax+drw+label-smoothing")
        'softmax + DRW + label smoothing'
    """
    name, _, variant = method.partition("/")
    text = " + ".join(METHOD_LABELS.get(part, part) for part in name.split("+"))
    if "+" in name:  # reweighted or resampled, it no longer minimises the empirical risk
        text = text.replace(" (ERM)", "")
    return f"{text}, {variant}" if variant else text


@contextmanager
def style() -> Iterator[None]:
    """Draw in this package's look within the context; the caller's settings come back."""
    matplotlib = _checks.require("matplotlib", extra="report")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's matplotlibrc has no say in a figure of the paper
        matplotlib.rcParams.update(_STYLE)
        yield


def panels(
    *, rows: int = 1, columns: int = 1, width: float = PAGE_WIDTH, height: float = 2.6, **grid: Any
) -> tuple[Any, NDArray[Any]]:
    """Return an empty figure of a size in inches, and its axes of shape (rows, columns).

    `grid` holds other arguments of `Figure.subplots`, such as width_ratios or sharey.
    """
    _checks.require("matplotlib", extra="report")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **grid)
    return figure, np.asarray(axes)


def save(figure: Any, stem: str | Path, *, title: str | None = None) -> tuple[Path, Path]:
    """Write a figure as STEM.svg and STEM.png and return their paths; equal figures, equal bytes.

    The title says what the figure shows, for readers that can't see it.
    """
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    svg, png = (stem.with_name(f"{stem.name}.{ending}") for ending in ("svg", "png"))
    named = {"Title": title} if title else {}
    metadata: dict[Path, dict[str, Any]] = {
        svg: {"Date": None, "Creator": "longtail"},
        png: {"Software": None},
    }
    with style():
        for path, notes in metadata.items():
            buffer = io.BytesIO()
            figure.savefig(buffer, format=path.suffix[1:], metadata={**notes, **named})
            files.write_bytes(path, buffer.getvalue())
    return svg, png
