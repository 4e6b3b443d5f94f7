"""What each chart of a comparison shows, as plain data: percentages, labels, colours.

Both drawings of a chart start from here, the page's (`charts`, plotly) and the papers'
(`run_figures`, matplotlib), so that they can't differ. Nothing here knows of runs: `arrange`
fills these classes from a comparison of runs, and saved predictions can fill them as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from longtail._checks import FloatArray, IntArray
from longtail.priors import ClassPrior
from longtail.report.compare import Interval
from longtail.tuning import TauCurve

# More classes than this are shown in groups of neighbours in frequency.
MOST_BARS = 200
BINS = 20
# Fine enough that a hand on the slider sees every change, small enough to ship.
SLIDER_STEPS = 80
CURVE_STEPS = 200


def tau_grid(low: int, high: int, *, most: int) -> FloatArray:
    """Taus from `low` to `high` in the smallest round steps of which there are at most `most`.

    Examples:
        >>> tau_grid(-1, 1, most=10)
        array([-1.  , -0.75, -0.5 , -0.25,  0.  ,  0.25,  0.5 ,  0.75,  1.  ])
        >>> tau_grid(0, 70, most=10)
        array([ 0.,  7., 14., 21., 28., 35., 42., 49., 56., 63., 70.])
    """
    span = high - low
    for per_unit in (50, 20, 10, 4, 2, 1):
        if span * per_unit <= most:
            return np.arange(low * per_unit, high * per_unit + 1) / per_unit
    step = math.ceil(span / most)
    return np.arange(low // step, -(-high // step) + 1, dtype=np.float64) * step


SLIDER_TAUS = tau_grid(0, 4, most=SLIDER_STEPS)
CURVE_TAUS = tau_grid(0, 4, most=CURVE_STEPS)


def decimals(taus: FloatArray) -> int:
    """Digits after the point with which a page writes taus that lie so close.

    Examples:
        >>> decimals(CURVE_TAUS), decimals(0.01 * SLIDER_TAUS)
        (2, 4)
    """
    return max(2, 2 - math.floor(math.log10(taus[-1] - taus[0])))


def unadjusted(taus: FloatArray) -> int:
    """The place of tau = 0 in a grid, where nothing is adjusted."""
    return int(np.argmin(np.abs(taus)))


@dataclass(frozen=True)
class Series:
    """How one method looks in every chart.

    Attributes:
        label: its name for people.
        color: hexadecimal.
        variant: 0, 1, …: tells methods of one colour apart, by dashes.
        shown: whether it is drawn at first; the others wait in the legend.
    """

    label: str
    color: str
    variant: int = 0
    shown: bool = True


@dataclass(frozen=True, eq=False)
class ClassAxis:
    """Classes from most to least frequent, or groups of neighbours where there are too many.

    Attributes:
        members: the classes of each bar, in order.
        names: of each bar, short.
        counts: training examples of each bar's classes, as text: ``114`` or ``500–480``.
    """

    members: tuple[IntArray, ...]
    names: tuple[str, ...]
    counts: tuple[str, ...]

    @classmethod
    def of(cls, prior: ClassPrior, class_names: Sequence[str] | None = None) -> ClassAxis:
        """The axis of these class frequencies; equally frequent classes stay in label order.

        Examples:
            >>> axis = ClassAxis.of(ClassPrior.from_counts([5, 90, 20]), ["a", "b", "c"])
            >>> axis.names, axis.counts
            (('b', 'c', 'a'), ('90', '20', '5'))
        """
        order = np.argsort(-prior.probs, kind="stable").astype(np.int64)
        amounts = [_amount(prior, int(k)) for k in order]
        if len(order) <= MOST_BARS:
            named = [str(k) if class_names is None else class_names[k] for k in order]
            return cls(tuple(order[:, None]), tuple(named), tuple(amounts))
        parts = np.array_split(np.arange(len(order)), BINS)
        return cls(
            tuple(order[part] for part in parts),
            tuple(f"{len(part)} classes" for part in parts),
            tuple(f"{amounts[part[0]]}–{amounts[part[-1]]}" for part in parts),
        )

    @property
    def binned(self) -> bool:
        """Whether a bar stands for several classes."""
        return any(len(part) > 1 for part in self.members)

    @property
    def each(self) -> str:
        """What a bar stands for: ``class``, or ``group of about 100 classes``."""
        if not self.binned:
            return "class"
        sizes = [len(part) for part in self.members]
        about = "" if min(sizes) == max(sizes) else "about "
        return f"group of {about}{round(sum(sizes) / len(sizes)):,} classes"

    @property
    def ends(self) -> tuple[str, str]:
        """Training examples of the most and of the least frequent class, as text."""
        return self.counts[0].partition("–")[0], self.counts[-1].rpartition("–")[2]

    def mean(self, values: FloatArray) -> FloatArray:
        """The mean over each bar's classes of one value per class, shape (…, num_classes)."""
        return np.stack([values[..., part].mean(axis=-1) for part in self.members], axis=-1)

    def __len__(self) -> int:
        return len(self.members)


def _amount(prior: ClassPrior, label: int) -> str:
    if prior.counts is None:
        return f"{100 * prior.probs[label]:.3g}%"
    return f"{prior.counts[label]:,}"


@dataclass(frozen=True, eq=False)
class Frequencies:
    """How many training examples each class has.

    Attributes:
        axis: the classes.
        values: mean number per bar, shape (bars,).
    """

    axis: ClassAxis
    values: FloatArray


@dataclass(frozen=True, eq=False)
class MethodErrors:
    """The balanced error of each method with its interval, all in percent.

    Attributes:
        series: one per method, in the order of the table.
        intervals: one per method.
        oracle: whether a method's tau was chosen on the very data that judge it.
    """

    series: tuple[Series, ...]
    intervals: tuple[Interval, ...]
    oracle: tuple[bool, ...]


@dataclass(frozen=True)
class Choice:
    """A tau that was chosen, and what it gives.

    Attributes:
        tau: mean over seeds.
        low: least over seeds.
        high: greatest over seeds.
        error: mean balanced error with each seed's own tau, in percent.
    """

    tau: float
    low: float
    high: float
    error: float


@dataclass(frozen=True, eq=False)
class TauLine:
    """One post-hoc method over tau.

    Attributes:
        series: how it looks.
        mean: balanced error in percent, mean over seeds, shape (taus,).
        low: least over seeds.
        high: greatest over seeds.
        chosen: tau from held-out data, if there were any.
        oracle: the best tau on the judging data.
    """

    series: Series
    mean: FloatArray
    low: FloatArray
    high: FloatArray
    chosen: Choice | None
    oracle: Choice | None


@dataclass(frozen=True, eq=False)
class TauCurves:
    """Balanced error against tau, with lines of reference that have no tau.

    Attributes:
        taus: shape (taus,).
        lines: one per post-hoc method.
        references: trained methods to compare to, with their error in percent.
        judged: the split on which the errors were counted.
    """

    taus: FloatArray
    lines: tuple[TauLine, ...]
    references: tuple[tuple[Series, float], ...]
    judged: str = "test"


@dataclass(frozen=True, eq=False)
class SliderMethod:
    """Errors of one post-hoc method at every position of the slider, in percent.

    Attributes:
        series: how it looks.
        per_class: shape (taus, bars).
        groups: shape (taus, groups).
        balanced: shape (taus,).
        presets: taus worth a button, by what they are; positions of the slider.
    """

    series: Series
    per_class: FloatArray
    groups: FloatArray
    balanced: FloatArray
    presets: dict[str, float]


@dataclass(frozen=True, eq=False)
class TauSlider:
    """What the slider moves.

    Attributes:
        taus: its positions, shape (taus,).
        axis: the classes.
        groups: names of the groups that have classes.
        methods: one per post-hoc method.
        start: where it stands at first.
    """

    taus: FloatArray
    axis: ClassAxis
    groups: tuple[str, ...]
    methods: tuple[SliderMethod, ...]
    start: float


@dataclass(frozen=True, eq=False)
class ClassErrors:
    """Errors by class, in order of frequency.

    Attributes:
        axis: the classes.
        series: one per method.
        values: percent, shape (methods, bars).
    """

    axis: ClassAxis
    series: tuple[Series, ...]
    values: FloatArray


@dataclass(frozen=True, eq=False)
class GroupErrors:
    """Errors of many-, medium- and few-shot classes.

    Attributes:
        groups: names of the groups that have classes.
        sizes: how many classes each has.
        series: one per method.
        values: percent, shape (methods, groups).
    """

    groups: tuple[str, ...]
    sizes: tuple[int, ...]
    series: tuple[Series, ...]
    values: FloatArray


@dataclass(frozen=True, eq=False)
class Calibration:
    """Reliability of the predicted label: how often it is right, by how sure it was.

    Attributes:
        series: one per method.
        confidence: mean confidence in percent per bin, shape (methods, bins); NaN if empty.
        accuracy: in percent, likewise.
        counts: predictions in each bin, all seeds together.
        ece: expected calibration error in percent, mean over seeds, shape (methods,).
    """

    series: tuple[Series, ...]
    confidence: FloatArray
    accuracy: FloatArray
    counts: IntArray
    ece: FloatArray


@dataclass(frozen=True, eq=False)
class WeightNorms:
    """Norms of the last layer's weights against class frequency.

    Attributes:
        axis: the classes.
        frequency: mean number of training examples per bar.
        series: one per trained method.
        values: mean norm over seeds, shape (methods, bars).
        correlations: of norm and log frequency over classes, per method; NaN for equal counts.
    """

    axis: ClassAxis
    frequency: FloatArray
    series: tuple[Series, ...]
    values: FloatArray
    correlations: tuple[float, ...]


def mean_per_class(curves: Sequence[TauCurve], taus: FloatArray) -> FloatArray:
    """Each class's error in percent at each tau, mean over curves, shape (taus, num_classes)."""
    values = [[curve.per_class(float(tau)) for tau in taus] for curve in curves]
    return np.asarray(100 * np.mean(values, axis=0))


def rounded(values: Any, digits: int = 3) -> Any:
    """Nested lists of rounded numbers for JSON; None where there is none.

    Examples:
        >>> rounded(np.array([[1.23456, np.nan]]))
        [[1.235, None]]
    """
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, list | tuple):
        return [rounded(value, digits) for value in values]
    return None if math.isnan(values) else round(values, digits)
