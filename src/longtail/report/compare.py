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
from longtail.runs.ensemble import trained_seeds
from longtail.runs.naming import by_method

BASELINE = "softmax"
ADJUSTED, NORMALIZED = "posthoc-logit-adjusted", "posthoc-weight-normalized"
TauSource = Literal["fixed", "held-out", "oracle"]
_SOURCES = {"fixed": "τ = 1", "held-out": "τ held-out", "oracle": "oracle τ"}
_TOO_FEW = {1: "one seed is too few for an interval", 2: "two seeds are too few for an interval"}
_BOUNDS = "; ".join(f"{group}: {text}" for group, text in GROUP_BOUNDS.items())


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
    runs: tuple[Run, ...]  # by seed; softmax ones for a post-hoc method, one of an ensemble
    results: tuple[metrics.Evaluation, ...]  # theirs on the judged split, after any adjustment
    taus: FloatArray | None = None  # of a post-hoc method, shape (runs,)

    @property
    def name(self) -> str:
        """Name for people, such as ``post-hoc logit adj. (τ held-out)``."""
        detail = _SOURCES[self.tau_source] if self.tau_source else self.detail
        return figures.label(self.method) + (f" ({detail})" if detail else "")

    @cached_property
    def errors(self) -> FloatArray:
        """Balanced error of each seed."""
        return np.array([result.balanced_error for result in self.results])

    @cached_property
    def per_class(self) -> FloatArray:
        """Error of each class, mean over seeds, shape (num_classes,)."""
        return np.asarray(np.mean([result.per_class.values for result in self.results], axis=0))

    @cached_property
    def members(self) -> tuple[str, ...]:
        """The names of the runs that an ensemble is the mean of; none for any other method."""
        return self.runs[0].members

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, ascending; of an ensemble its networks', or none where one is not known."""
        if not self.members:
            return tuple(run.spec.seed for run in self.runs)
        behind = trained_seeds(self.runs[0].spec)
        return () if None in behind else tuple(sorted(cast(set[int], behind)))

    def errors_of(self, seeds: Sequence[int]) -> FloatArray:
        """Balanced errors of some seeds, in their order; the one that an ensemble has."""
        return self.errors if self.members else self.errors[[*map(self.seeds.index, seeds)]]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Rows of methods on one split, as `compare` returns them."""

    rows: tuple[Row, ...]  # trained methods first, then post-hoc ones
    target: IntArray  # labels of the split, shape (examples,)
    runs: tuple[Run, ...]  # the full runs behind the trained rows
    held_out: dict[int, Run]  # runs with a held-out part, by seed; the source of honest taus
    curves: dict[str, dict[int, tuning.TauCurve]]  # exact error over tau, by method and seed
    split: str  # which was judged
    # Runs with a held-out part that no tau could be chosen on, by the reason.
    left_out: dict[str, tuple[Run, ...]] = field(default_factory=dict)

    def row(self, method: str, tau_source: TauSource | None = None) -> Row:
        """Return the row of a method; of a post-hoc one, by the source of its tau."""
        return next(r for r in self.rows if (r.method, r.tau_source) == (method, tau_source))

    @cached_property
    def baseline(self) -> Row | None:
        """The row of plain softmax, to which the others are compared, if it was run."""
        return next((row for row in self.rows if row.method == BASELINE), None)

    @cached_property
    def honest(self) -> list[Row]:
        """Rows for which nothing was chosen on the data that judge them."""
        return [row for row in self.rows if row.tau_source != "oracle"]

    @cached_property
    def shared_seeds(self) -> tuple[int, ...]:
        """The seeds of every honest row, ensembles aside."""
        found = [set(row.seeds) for row in self.honest if not row.members]
        return tuple(sorted(set.intersection(*found))) if found else ()

    @property
    def which_seeds(self) -> str:
        """Words for the seeds that `mean_error` is over, where they are not each row's own."""
        shared = self.shared_seeds
        if all(row.seeds == shared for row in self.honest if not row.members):
            return ""
        if len(shared) > 1:
            return f"over the {len(shared)} seeds that all share"
        return "with the one seed that all share" if shared else "they share no seed"

    def mean_error(self, row: Row) -> float:
        """Return a row's error over the seeds that all rows share, or else over its own.

        Otherwise a method that was also trained with a hard seed would look worse.
        """
        seeds = self.shared_seeds
        return float((row.errors_of(seeds) if seeds else row.errors).mean())

    @cached_property
    def best(self) -> Row:
        """The honest row with the lowest `mean_error`; the earlier of two equals."""
        return min(self.honest, key=self.mean_error)

    def against_softmax(self, row: Row, *, level: float = 0.95) -> Interval | None:
        """Return the difference of errors to softmax, paired by seed; None without common seeds.

        An ensemble is compared to softmax's mean over the seeds of its networks, all of which
        softmax must have, without an interval.
        """
        base = self.baseline
        both = sorted(set(row.seeds) & set(base.seeds)) if base else []
        if base is None or not both or (row.members and len(both) < len(row.seeds)):
            return None
        mine, theirs = row.errors_of(both), base.errors_of(both)
        if row.members:
            return Interval(float(mine.mean() - theirs.mean()), math.nan, math.nan, len(both))
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
                    "members": list(row.members),
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
        rows.append(
            Row(method, None, detail, tuple(group), tuple(_judged(r, split) for r in group))
        )
    ways = [row.detail or "plain" for row in rows if row.method == BASELINE]
    if len(ways) > 1:
        raise InputError(
            f"compare: {BASELINE!r} was run in {len(ways)} ways ({'; '.join(ways)}), but the "
            f"others are compared to one and the post-hoc methods start from one; compare the "
            f"runs of each by themselves."
        )

    plain = [run for run in full if run.spec.method.name == BASELINE]
    held, left_out = _partners([r for r in everything if r.spec.dataset.held_out], plain)
    curves: dict[str, dict[int, tuning.TauCurve]] = {}
    methods = [ADJUSTED] if plain and prior.imbalance_ratio > 1 else []
    if plain and all(run.head is not None for run in plain):
        methods.append(NORMALIZED)
    for method in methods:
        best = {run.spec.seed: _tuned(run, split, method) for run in plain}
        curves[method] = {seed: result.curve for seed, result in best.items()}
        taus: dict[TauSource, dict[int, float]] = {
            "fixed": dict.fromkeys(best, 1.0),
            "held-out": {seed: _tuned(run, "held-out", method).tau for seed, run in held.items()},
            "oracle": {seed: result.tau for seed, result in best.items()},
        }
        for source, of_seed in taus.items():
            if usable := tuple(run for run in plain if run.spec.seed in of_seed):
                used = np.array([of_seed[run.spec.seed] for run in usable])
                pairs = zip(usable, used, strict=True)
                results = tuple(_judged(run, split, method, tau) for run, tau in pairs)
                rows.append(Row(method, source, "", usable, results, used))
    return Comparison(tuple(rows), target, tuple(full), held, curves, split, left_out)


def _judged(
    run: Run, split: str, method: str | None = None, tau: float = 1.0
) -> metrics.Evaluation:
    """Return every metric of a run's logits, or of what a post-hoc method makes of them."""
    logits, target, _ = run.logits(split)
    scores: Any = np.asarray(logits)
    if method == ADJUSTED:
        scores = posthoc.adjust_logits(scores, run.prior, tau=tau)
    elif method == NORMALIZED:
        scores = posthoc.normalize_weights(scores, norms=cast(Head, run.head).norms, tau=tau)
    return metrics.evaluate(target, scores)


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
    """Runs by their seed, of which each may be there once."""
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
) -> tuple[dict[int, Run], dict[str, tuple[Run, ...]]]:
    """Return held-out runs that choose tau, by seed, and the others, by the reason.

    A tau depends on the training: after one epoch it is another than after ten.
    """
    whole = {run.spec.seed: run.spec for run in plain}
    matched: list[Run] = []
    left_out: dict[str, tuple[Run, ...]] = {}
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
        left_out[why] = (*left_out.get(why, ()), run)
    return _by_seed(matched), left_out


# ---------------------------------------------------------------------------- in words


def headline(comparison: Comparison) -> Table:
    """Return everything about the rows of the comparison in one wide table."""
    lines = []
    for row in comparison.rows:
        error, tau = mean_interval(row.errors), ""
        half = "" if math.isnan(error.low) else f" ± {percent(error.half_width)}"
        change = None if row is comparison.baseline else comparison.against_softmax(row)
        if row.taus is not None:
            low, high = row.taus.min(), row.taus.max()
            tau = f"{row.taus.mean():.2f} ({low:.2f}–{high:.2f})"
            tau = tau if high - low >= 0.005 else f"{row.taus.mean():.3g}"
        cells = (percent(error.mean) + half, f"{change or ''}", tau)
        lines.append((row.name, *cells, *map(percent, comparison.group_errors(row).values())))
    return Table(
        f"Balanced error in percent on the {comparison.split} set",
        ("method", "balanced error", "against softmax", "τ", *GROUP_BOUNDS),
        lines,
        note=f"{_note(comparison)} Training examples of a class: {_BOUNDS}.",
    )


def tables(comparison: Comparison) -> list[Table]:
    """Return the headline in two tables narrow enough for a terminal."""
    full = headline(comparison)
    taus = ["" if row.taus is None else f"{row.taus.mean():.2f}" for row in comparison.rows]
    errors = [(*line[:3], tau) for line, tau in zip(full.rows, taus, strict=True)]
    return [
        Table(full.title, full.header[:4], errors, note=_note(comparison)),
        Table(
            "Error in percent of classes by their training examples",
            ("method", *GROUP_BOUNDS),
            [(line[0], *line[4:]) for line in full.rows],
            note=f"Training examples of a class: {_BOUNDS}.",
        ),
    ]


def _note(comparison: Comparison) -> str:
    counts = sorted({len(row.seeds) for row in comparison.rows if not row.members})
    sources = {row.tau_source for row in comparison.rows}
    seeds = ""
    if counts and counts[-1] > 2:
        number = " to ".join(dict.fromkeys(map(str, (counts[0], counts[-1]))))
        seeds = (
            f"Mean over {number} seeds ± half the width of its 95% interval (Student's t); "
            f"differences are paired by seed, with their 95% interval in brackets."
        )
    elif counts:
        why = _TOO_FEW[counts[-1]]
        seeds = f"{why[0].upper()}{why[1:]}; train more before concluding."
    notes = {
        seeds: True,
        "Ensemble: the mean of several networks' logits, one result without an interval; its "
        "difference is to the mean of softmax over the seeds of its networks.": any(
            row.members for row in comparison.rows
        ),
        "τ held-out: chosen on data held out of a second training run of the same seed.": (
            "held-out" in sources
        ),
        f"Oracle τ: the best on the {comparison.split} set itself, which nobody has in use.": (
            "oracle" in sources
        ),
        bias_note(comparison): True,
    }
    for why, runs in comparison.left_out.items():
        names = _checks.listing((run.name for run in runs), most=5)
        notes[f"Left out: {names} ({why})."] = True
    return " ".join(note for note, holds in notes.items() if note and holds)


def bias_note(comparison: Comparison) -> str:
    """Return what weight normalization did to the bias; its errors depend on it by many points."""
    if not any(row.method == NORMALIZED for row in comparison.rows):
        return ""
    return "Weight norm. divides the whole logit, bias included (bias mode: scale)."


def summary(comparison: Comparison) -> list[str]:
    """Return what happened, in two plain sentences made from the numbers."""
    base, winner, seeds = comparison.baseline, comparison.best, comparison.which_seeds
    aside = f" ({seeds})" if seeds else ""
    error = f"{percent(comparison.mean_error(winner))}%{aside}"
    if base is None:
        first = f"The one method, {winner.name}, has a balanced error of {error}."
        if (number := len(comparison.honest)) > 1:
            first = f"Of {number} methods, {winner.name} has the lowest balanced error, {error}."
        return [
            first,
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
    saw = f"never saw the {comparison.split} set"
    if comparison.split == "train":
        saw = "learnt from these very images"
    text = f"Of the {others} other methods that {saw}, {winner.name} does best, with {error}"
    if others == 1:
        text = f"{winner.name[0].upper()}{winner.name[1:]}, which {saw}, gets {error} wrong"
    found = comparison.against_softmax(winner, level=1 - 0.05 / others)
    if found is None:
        return f"{text}; it shares no seeds with softmax to compare it by."
    text += f": {percent(abs(found.mean))} points {'lower' if found.mean < 0 else 'higher'}"
    if winner.members:
        return (
            f"{text} than softmax's mean over its networks' seeds; it is the mean of "
            f"{len(winner.members)} networks and has no interval, so this may be noise."
        )
    if math.isnan(found.low):
        return f"{text}, but {_TOO_FEW[found.seeds]}, so this may be noise."
    picked = f", wider since it was picked among {others} by these errors" if others > 1 else ""
    text += f" (95% interval over {found.seeds} paired seeds{picked}: {percent(-found.high)} to "
    text += f"{percent(-found.low)})"
    if found.excludes_zero:
        return f"{text}, and as the interval excludes zero, that is more than the seeds' noise."
    return f"{text}, but as the interval includes zero, these seeds show no difference."
