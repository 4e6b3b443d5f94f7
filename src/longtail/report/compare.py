"""Comparison of methods from finished runs of one data set: its numbers, tables and summary.

Trained methods are rows; the post-hoc methods are rows too, computed from the saved logits of
the runs trained with plain softmax. A tau comes from one of three places, and its row says
which: fixed at 1, chosen on the held-out part of a second run of the same seed and training, or
the best on the test set, an oracle that practice does not have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np
from scipy import stats

from longtail import _checks, metrics, posthoc, tuning
from longtail._checks import FloatArray, InputError, IntArray
from longtail.report import figures
from longtail.report.tables import GROUP_BOUNDS, Table, percent, signed
from longtail.runs import Head, Run, same_data
from longtail.runs.naming import by_method

BASELINE = "softmax"
ADJUSTED, NORMALIZED = "posthoc-logit-adjusted", "posthoc-weight-normalized"
TauSource = Literal["fixed", "held-out", "oracle"]
SOURCES: dict[TauSource | None, str] = {
    "fixed": "τ = 1",
    "held-out": "τ held-out",
    "oracle": "oracle τ",
}
_TOO_FEW = {1: "one seed is too few for an interval", 2: "two seeds are too few for an interval"}


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its t-interval (of 95% unless said); NaN ends for one or two seeds.

    Examples:
        >>> mean_interval([1.0, 2.0, 3.0])
        Interval(mean=2.0, low=-0.484..., high=4.484..., seeds=3)
    """

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def half_width(self) -> float:
        """Distance from the mean to either end."""
        return self.high - self.mean

    @property
    def excludes_zero(self) -> bool:
        """True if zero lies outside: a paired difference is then more than noise."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        """Return ``−5.0 [−6.3, −3.7]``, in percentage points."""
        ends = "" if math.isnan(self.low) else f" [{signed(self.low)}, {signed(self.high)}]"
        return f"{signed(self.mean)}{ends}"


def mean_interval(values: Sequence[float] | FloatArray, *, level: float = 0.95) -> Interval:
    """Return Student's t-interval of a mean; none of two values, with which it spans ±12.7 SE."""
    array = np.asarray(values, dtype=np.float64)
    mean, n = float(array.mean()), len(array)
    half = math.nan
    if n >= 3:
        half = float(stats.t.ppf(0.5 + level / 2, n - 1) * array.std(ddof=1) / np.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


@dataclass(frozen=True, eq=False)
class Row:
    """One method over all its seeds."""

    method: str  # as on the command line
    tau_source: TauSource | None  # of a post-hoc method
    detail: str  # settings, and whatever else differs between rows of one method
    runs: tuple[Run, ...]  # by seed; softmax ones for a post-hoc method, the mean for an ensemble
    results: tuple[metrics.Evaluation, ...]  # theirs on the judged split, after any adjustment
    taus: FloatArray | None = None  # of a post-hoc method, shape (runs,)

    @property
    def name(self) -> str:
        """Name for people, such as ``post-hoc logit adj. (τ held-out)``."""
        detail = SOURCES.get(self.tau_source, self.detail)
        return figures.label(self.method) + (f" ({detail})" if detail else "")

    @cached_property
    def errors(self) -> FloatArray:
        """Balanced error of each seed."""
        return np.array([result.balanced_error for result in self.results])

    @cached_property
    def per_class(self) -> FloatArray:
        """Error of each class, mean over seeds, shape (num_classes,)."""
        return np.asarray(np.mean([result.per_class.values for result in self.results], axis=0))

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, ascending; none of an ensemble, which is the mean of several."""
        return () if self.runs[0].members else tuple(run.spec.seed for run in self.runs)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Rows of methods on one split, as `compare` returns them."""

    rows: tuple[Row, ...]  # trained methods first, then post-hoc ones
    target: IntArray  # labels of the split, shape (examples,)
    runs: tuple[Run, ...]  # the full runs behind the trained rows
    held_out: dict[int, Run]  # runs with a held-out part, by seed; the source of honest taus
    curves: dict[str, list[tuning.TauCurve]]  # exact error over tau, by method, of each seed
    split: str  # which was judged
    # Runs with a held-out part that no tau could be chosen on, by the reason.
    left_out: dict[str, list[Run]] = field(default_factory=dict)

    @cached_property
    def baseline(self) -> Row | None:
        """The row of plain softmax, to which the others are compared, if it was run."""
        return next((row for row in self.rows if row.method == BASELINE), None)

    @cached_property
    def honest(self) -> list[Row]:
        """Rows for which nothing was chosen on the data that judge them."""
        return [row for row in self.rows if row.tau_source != "oracle"]

    @cached_property
    def shared_seeds(self) -> list[int]:
        """The seeds of every honest row, ensembles aside."""
        found = [set(row.seeds) for row in self.honest if row.seeds]
        return sorted(set.intersection(*found)) if found else []

    def mean_error(self, row: Row) -> float:
        """Return a row's error over the seeds that all rows share, or else over its own.

        Otherwise a method that was also trained with a hard seed would look worse.
        """
        shared = np.isin(row.seeds, self.shared_seeds)
        return float(row.errors[shared].mean() if shared.any() else row.errors.mean())

    @cached_property
    def best(self) -> Row:
        """The honest row with the lowest `mean_error`; the earlier of two equals."""
        return min(self.honest, key=self.mean_error)

    def against_softmax(self, row: Row, *, level: float = 0.95) -> Interval | None:
        """Return the difference of errors to softmax, paired by seed; None without common seeds."""
        base = self.baseline
        both = sorted(set(row.seeds) & set(base.seeds)) if base else []
        if base is None or not both:
            return None
        mine, theirs = (one.errors[[*map(one.seeds.index, both)]] for one in (row, base))
        return mean_interval(mine - theirs, level=level)

    def group_errors(self, row: Row) -> dict[str, float]:
        """Return mean errors of many-, medium- and few-shot classes; NaN for an empty group."""
        return {
            name: float(row.per_class[classes].mean()) if len(classes) else math.nan
            for name, classes in self.runs[0].prior.groups().items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, lists and dicts for JSON; errors are fractions."""
        rows: list[dict[str, Any]] = []
        for row in self.rows:
            error, change = mean_interval(row.errors), self.against_softmax(row)
            rows.append(
                {
                    "method": row.method,
                    "tau_source": row.tau_source,
                    "detail": row.detail,
                    "seeds": list(row.seeds),
                    "members": list(row.runs[0].members),
                    "errors": row.errors.tolist(),
                    "balanced_error": {"mean": error.mean, "low": error.low, "high": error.high},
                    "difference_to_softmax": change and vars(change),
                    "groups": self.group_errors(row),
                    "taus": None if row.taus is None else row.taus.tolist(),
                }
            )
        pairs = [(run.folder, why) for why, runs in self.left_out.items() for run in runs]
        left_out = [{"run": folder, "why": why} for folder, why in pairs]
        return {"split": self.split, "rows": rows, "left_out": left_out}


# ---------------------------------------------------------------------------- from runs


def compare(runs: Iterable[Run], *, split: str = "test") -> Comparison:
    """Judge runs of one data set by their saved logits, post-hoc methods included.

    Args:
        runs: finished runs that have the split's logits. Those without a held-out part are the
            rows. Softmax runs with one choose tau for the softmax run that differs in nothing
            else; any others are left out, and the result says why.
        split: which logits to judge.

    Returns:
        The Comparison.
    """
    everything = sorted(
        runs,
        key=lambda run: (run.spec.method.name != BASELINE, run.spec.method.name, run.spec.seed),
    )
    same_data(everything, split=split)
    full = [run for run in everything if not run.spec.dataset.held_out]
    if not full:
        raise InputError(
            "compare: every run has a held-out part; runs on the whole training set are needed."
        )
    target, prior = np.asarray(full[0].logits(split).target), full[0].prior
    lacking = np.setdiff1d(np.arange(prior.num_classes), target)
    if absent := _checks.class_words(lacking, full[0].class_names):
        raise InputError(
            f"compare: the {split} set has no examples of {absent}, and a comparison is over all "
            f"classes; `longtail evaluate` shows the errors of the others."
        )

    rows = []
    for name, group in by_method(full).items():
        method = group[0].spec.method.name
        detail = name.removeprefix(method).strip(" ()").replace(") (", ", ")
        _by_seed(group)
        results = tuple(metrics.evaluate(target, run.logits(split).logits) for run in group)
        rows.append(Row(method, None, detail, tuple(group), results))
    ways = [row.detail or "plain" for row in rows if row.method == BASELINE]
    if len(ways) > 1:
        raise InputError(
            f"compare: {BASELINE!r} was run in {len(ways)} ways ({'; '.join(ways)}), but the "
            f"others are compared to one and the post-hoc methods start from one; compare the "
            f"runs of each by themselves."
        )

    plain = [run for run in full if run.spec.method.name == BASELINE]
    held, left_out = _partners([r for r in everything if r.spec.dataset.held_out], plain)
    curves: dict[str, list[tuning.TauCurve]] = {}
    methods = [ADJUSTED] if plain and prior.imbalance_ratio > 1 else []
    if plain and all(run.head is not None for run in plain):
        methods.append(NORMALIZED)
    for method in methods:
        best = [_tuned(run, split, method) for run in plain]
        curves[method] = [result.curve for result in best]
        taus: dict[TauSource, dict[int, float]] = {
            "fixed": {run.spec.seed: 1.0 for run in plain},
            "held-out": {seed: _tuned(run, "held-out", method).tau for seed, run in held.items()},
            "oracle": {run.spec.seed: one.tau for run, one in zip(plain, best, strict=True)},
        }
        for source, of_seed in taus.items():
            usable = tuple(run for run in plain if run.spec.seed in of_seed)
            used = [of_seed[run.spec.seed] for run in usable]
            pairs = zip(usable, used, strict=True)
            results = tuple(metrics.evaluate(target, _moved(r, split, method, t)) for r, t in pairs)
            if usable:
                rows.append(Row(method, source, "", usable, results, np.array(used)))
    return Comparison(tuple(rows), target, tuple(full), held, curves, split, left_out)


def _moved(run: Run, split: str, method: str, tau: float) -> Any:
    """Return what a post-hoc method makes of a run's logits."""
    logits = np.asarray(run.logits(split).logits)
    if method == ADJUSTED:
        return posthoc.adjust_logits(logits, run.prior, tau=tau)
    return posthoc.normalize_weights(logits, norms=cast(Head, run.head).norms, tau=tau)


def _tuned(run: Run, split: str, method: str) -> tuning.TauResult:
    """Return the exact curve and best tau of a post-hoc method on one split of a run."""
    logits, target, _ = run.logits(split)
    scores = np.asarray(logits)
    settings: dict[str, Any] = {"select": "minimum", "n_bootstrap": 0}
    if method == ADJUSTED:
        return tuning.tune_tau(scores, target, run.prior, **settings)
    norms = cast(Head, run.head).norms
    return tuning.tune_normalization(scores, target, norms=norms, **settings)


def _by_seed(runs: Sequence[Run]) -> dict[int, Run]:
    """Return runs by their seed, of which each may be there once."""
    found: dict[int, Run] = {}
    for run in runs:
        other = found.setdefault(run.spec.seed, run)
        if other is not run:
            raise InputError(
                f"compare: {other.folder} and {run.folder} are the same run, or differ in the "
                f"held-out part alone; name the runs to compare one by one, with one of them."
            )
    return found


def _partners(
    held: Sequence[Run], plain: Sequence[Run]
) -> tuple[dict[int, Run], dict[str, list[Run]]]:
    """Return held-out runs that choose tau, by seed, and the others, by the reason.

    A tau depends on the training: after one epoch it is another than after ten.
    """
    whole = {run.spec.seed: run.spec for run in plain}
    matched: list[Run] = []
    left_out: dict[str, list[Run]] = {}
    for run in held:
        why = f"no {BASELINE} run on the whole training set has the same seed"
        if run.spec.seed in whole:
            spec = replace(run.spec, dataset=replace(run.spec.dataset, held_out=0.0))
            words = spec.difference(whole[run.spec.seed])
            if not words:
                matched.append(run)
                continue
            words = [line.removeprefix("recipe.values.") for line in words]
            why = f"not trained like the {BASELINE} run on the whole training set: "
            why += _checks.listing(words, most=3)
        left_out.setdefault(why, []).append(run)
    return _by_seed(matched), left_out


# ---------------------------------------------------------------------------- in words


def tables(comparison: Comparison) -> list[Table]:
    """Return errors, differences and taus, and errors by group, narrow enough for a terminal."""
    lines, groups = [], []
    for row in comparison.rows:
        error = mean_interval(row.errors)
        half = "" if math.isnan(error.low) else f" ± {percent(error.half_width)}"
        change = None if row is comparison.baseline else comparison.against_softmax(row)
        tau = "" if row.taus is None else f"{row.taus.mean():.2f}"
        lines.append((row.name, percent(error.mean) + half, f"{change or ''}", tau))
        groups.append((row.name, *map(percent, comparison.group_errors(row).values())))
    bounds = "; ".join(f"{group}: {text}" for group, text in GROUP_BOUNDS.items())
    return [
        Table(
            f"Balanced error in percent on the {comparison.split} set",
            ("method", "balanced error", "against softmax", "τ"),
            lines,
            " ".join(_notes(comparison)),
        ),
        Table(
            "Error in percent of classes by their training examples",
            ("method", *GROUP_BOUNDS),
            groups,
            f"Training examples of a class: {bounds}.",
        ),
    ]


def _notes(comparison: Comparison) -> Iterable[str]:
    """Yield what a reader of the numbers should know."""
    rows = comparison.rows
    counts = sorted({len(row.seeds) for row in rows if row.seeds})
    if counts and counts[-1] > 2:
        number = " to ".join(dict.fromkeys(map(str, (counts[0], counts[-1]))))
        yield (
            f"Mean over {number} seeds ± half the width of its 95% interval (Student's t); "
            f"differences are paired by seed, with their 95% interval in brackets."
        )
    elif counts:
        yield f"{_TOO_FEW[counts[-1]].capitalize()}; train more before concluding."
    if comparison.split == "train":
        yield "The runs learnt from these very examples."
    if not all(row.seeds for row in rows):
        yield "Ensemble: the mean of several networks' logits, one result without an interval."
    sources = {row.tau_source for row in rows}
    if "held-out" in sources:
        yield "τ held-out: chosen on data held out of a second training run of the same seed."
    if "oracle" in sources:
        yield f"Oracle τ: the best on the {comparison.split} set itself, which nobody has in use."
    if NORMALIZED in comparison.curves:
        yield "Weight norm. divides the whole logit, bias included (bias mode: scale)."
    for why, runs in comparison.left_out.items():
        yield f"Left out: {_checks.listing((run.name for run in runs), most=5)} ({why})."


def summary(comparison: Comparison) -> list[str]:
    """Return what happened, in two plain sentences made from the numbers."""
    base, winner, shared = comparison.baseline, comparison.best, comparison.shared_seeds
    aside = ""
    if any(list(row.seeds) != shared for row in comparison.honest if row.seeds):
        aside = f" (over the {len(shared)} seeds that all share)"
        if len(shared) < 2:
            aside = " (with the one seed that all share)" if shared else " (they share no seed)"
    error = f"{percent(comparison.mean_error(winner))}%{aside if winner.seeds else ''}"
    if base is None:
        return [
            f"The lowest balanced error is that of {winner.name}, {error}.",
            "Without a run trained with plain softmax there is nothing to compare it to.",
        ]
    text = (
        f"Trained on {comparison.runs[0].spec.dataset.name} with plain softmax, the model gets "
        f"{percent(float(base.errors.mean()))}% of an average class wrong"
    )
    groups = {k: v for k, v in comparison.group_errors(base).items() if not math.isnan(v)}
    if len(groups) > 1:
        first, *_, last = groups
        text += (
            f": {percent(groups[first])}% where a class has {first} training examples "
            f"({GROUP_BOUNDS[first]}), {percent(groups[last])}% where it has {last} "
            f"({GROUP_BOUNDS[last]})"
        )
    if winner is base:
        return [f"{text}.", f"No other method has a lower balanced error here{aside}."]
    return [f"{text}.", _winner_sentence(comparison, error)]


def _winner_sentence(comparison: Comparison, error: str) -> str:
    """Return how the best method compares to softmax, its interval wider for having been picked.

    By Bonferroni's correction, where no method differs from softmax, at most one report in forty
    finds the best one better.
    """
    winner, others = comparison.best, len(comparison.honest) - 1
    found = comparison.against_softmax(winner, level=1 - 0.05 / others)
    text = f"The best of the other methods is {winner.name}, with {error}"
    if found is None:
        why = "it shares no seeds with softmax" if winner.seeds else "an ensemble has no interval"
        return f"{text}, but {why}, so this may be noise."
    text += f": {percent(abs(found.mean))} points {'lower' if found.mean < 0 else 'higher'}"
    if math.isnan(found.low):
        return f"{text}, but {_TOO_FEW[found.seeds]}, so this may be noise."
    picked = f", wider since it was picked among {others} by these errors" if others > 1 else ""
    text += f" (95% interval over {found.seeds} paired seeds{picked}: {percent(-found.high)} to "
    text += f"{percent(-found.low)})"
    if found.excludes_zero:
        return f"{text}, and as the interval excludes zero, that is more than the seeds' noise."
    return f"{text}, but as the interval includes zero, these seeds show no difference."
