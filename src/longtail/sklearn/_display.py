"""The plot of a fitted LogitAdjustedClassifierCV's score against tau."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from longtail import _checks
from longtail._checks import FloatArray


@dataclass(kw_only=True, eq=False, repr=False)
class TauCurveDisplay:
    """The held-out score as a function of tau, with the chosen tau; see `from_estimator`.

    Attributes:
        taus: shape (points,), rising.
        scores: shape (points,).
        edges: shape (points + 1,): ends of the cells between which an exact score is constant,
            or None for a grid, whose points are joined.
        best_tau: the chosen tau.
        best_score: its score.
        score_name: name of the score.
        interval: bootstrap interval of tau, drawn as a band, or None.
        ax_: matplotlib axes, once drawn; likewise `figure_` and `line_`, the curve.
    """

    taus: FloatArray
    scores: FloatArray
    edges: FloatArray | None = None
    best_tau: float
    best_score: float
    score_name: str = "score"
    interval: tuple[float, float] | None = None

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, ax: Any = None, name: str | None = None, **kwargs: Any
    ) -> TauCurveDisplay:
        """Draw the curve of a fitted LogitAdjustedClassifierCV.

        Args:
            estimator: fitted.
            ax: matplotlib axes to draw on; new ones if None.
            name: label of the curve, for a legend that compares several.
            **kwargs: for matplotlib's `plot`.

        Examples:
            >>> import matplotlib; matplotlib.use("agg")
            >>> from sklearn.datasets import load_iris
            >>> from sklearn.naive_bayes import GaussianNB
            >>> from longtail.sklearn import LogitAdjustedClassifierCV, TauCurveDisplay
            >>> X, y = load_iris(return_X_y=True)
            >>> tuned = LogitAdjustedClassifierCV(GaussianNB()).fit(X[:130], y[:130])
            >>> TauCurveDisplay.from_estimator(tuned).ax_.get_xlabel()
            'tau'
        """
        check_is_fitted(estimator, "tau_curve_")
        curve, scoring = estimator.tau_curve_, estimator.scoring
        score_name = scoring if isinstance(scoring, str) else "score"
        display = cls(
            taus=curve.taus,
            scores=curve.scores,
            edges=None if curve.exact is None else curve.exact.breakpoints,
            best_tau=curve.tau,
            best_score=curve.score,
            interval=curve.interval,
            score_name=score_name.replace("target", "score under the target").replace("_", " "),
        )
        return display.plot(ax=ax, name=name, **kwargs)

    def plot(self, ax: Any = None, *, name: str | None = None, **kwargs: Any) -> TauCurveDisplay:
        """Draw the curve, the chosen tau, and tau = 1 for comparison.

        Args:
            ax: matplotlib axes to draw on; new ones if None.
            name: label of the curve.
            **kwargs: for matplotlib's `plot`.
        """
        if ax is None:
            _, ax = _checks.require("matplotlib.pyplot", extra="report").subplots()
        if self.edges is None:
            (line,) = ax.plot(self.taus, self.scores, label=name, **kwargs)
        else:
            # Constant within each cell: hold a score until the cell's end.
            held = np.append(self.scores, self.scores[-1:])
            style = {"drawstyle": "steps-post", **kwargs}
            (line,) = ax.plot(self.edges, held, label=name, **style)
        color = line.get_color()
        if self.interval is not None:
            ax.axvspan(*self.interval, color=color, alpha=0.1, linewidth=0, zorder=0)
        ax.axvline(1.0, color="0.7", linewidth=1, linestyle=":", zorder=0)
        label = f"chosen: tau = {self.best_tau:.2f}"
        ax.plot([self.best_tau], [self.best_score], "o", color=color, label=label)
        ax.set_xlabel("tau")
        ax.set_ylabel(f"held-out {self.score_name}")
        ax.legend()
        self.ax_, self.figure_, self.line_ = ax, ax.figure, line
        return self
