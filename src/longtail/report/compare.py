"""Comparison of methods from finished runs of one data set, post-hoc methods included.

Trained methods are rows; the post-hoc methods are rows too, computed from the saved logits of
the runs trained with plain softmax. A tau comes from one of three places, and its row says
which: fixed at 1, chosen on the held-out part of a second run of the same seed and training, or
the best on the test set, which is an oracle that nobody has in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from longtail import _checks, metrics, posthoc, tuning
from longtail._checks import FloatArray, InputError, IntArray
from longtail.posthoc import BiasMode
from longtail.runs import Run, same_data
from longtail.runs.ensemble import trained_seeds
from longtail.runs.naming import told_apart

BASELINE = "softmax"
TauSource = Literal["fixed", "held-out", "oracle"]
POSTHOC: dict[str, tuning.Method] = {
    "posthoc-logit-adjusted": "logit_adjustment",
    "posthoc-weight-normalized": "weight_normalization",
}


@dataclass(frozen=True, eq=False)
class Scored:
    """Errors of one method on one seed on the test set, after any adjustment.

    Attributes:
        seed: of the run.
        tau: of the post-hoc method, or None.
        per_class: error of each class, shape (num_classes,).
        read: gives the logits anew; dozens of rows of a large test set would not fit in memory.
    """

    seed: int
    tau: float | None
    per_class: FloatArray
    read: Callable[[], NDArray[Any]]

    @property
    def logits(self) -> NDArray[Any]:
        """Shape (examples, num_classes), after any adjustment."""
        return self.read()

    @property
    def error(self) -> float:
        """The balanced error."""
        return float(self.per_class.mean())


@dataclass(frozen=True, eq=False)
class Row:
    """One method over all its seeds.

    Attributes:
        method: name, as on the command line.
        tau_source: where a post-hoc method's tau comes from, or None.
        detail: what else tells it from its neighbours, such as the bias mode or settings.
        scored: one entry per seed, in order of seed; a single one of an ensemble.
        runs: the runs behind them, in the same order; softmax ones for a post-hoc method.
    """

    method: str
    tau_source: TauSource | None
    detail: str
    scored: tuple[Scored, ...]
    runs: tuple[Run, ...]

    @property
    def errors(self) -> FloatArray:
        """Balanced error of each seed."""
        return np.array([s.error for s in self.scored])

    @property
    def members(self) -> tuple[str, ...]:
        """The names of the runs that an ensemble is the mean of; none for any other method."""
        return self.runs[0].members if self.runs else ()

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, ascending; of an ensemble its networks', or none where one is not known."""
        if not self.members:
            return tuple(s.seed for s in self.scored)
        behind = trained_seeds(self.runs[0].spec)
        known = [seed for seed in behind if seed is not None]
        return tuple(sorted(known)) if len(known) == len(behind) else ()

    def errors_of(self, seeds: Sequence[int]) -> FloatArray:
        """Balanced errors of some seeds, in their order; the one that an ensemble has."""
        if self.members:
            return self.errors
        of_seed = dict(zip(self.seeds, self.errors, strict=True))
        return np.array([of_seed[seed] for seed in seeds])

    @property
    def per_class(self) -> FloatArray:
        """Error of each class, mean over seeds, shape (num_classes,)."""
        return np.asarray(np.mean([s.per_class for s in self.scored], axis=0))

    @property
    def taus(self) -> FloatArray | None:
        """The tau of each seed, for a post-hoc method."""
        if self.tau_source is None:
            return None
        return np.array([s.tau for s in self.scored], dtype=np.float64)


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


def mean_interval(values: Sequence[float] | FloatArray, *, level: float = 0.95) -> Interval:
    """Return Student's t-interval of a mean; none of two values, with which it spans ±12.7 SE."""
    array = np.asarray(values, dtype=np.float64)
    mean, n = float(array.mean()), len(array)
    if n < 3:
        return Interval(mean, float("nan"), float("nan"), n)
    half = float(stats.t.ppf(0.5 + level / 2, n - 1) * array.std(ddof=1) / np.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Rows of methods on one test set, as `compare` returns them.

    Attributes:
        rows: trained methods first, then post-hoc ones.
        target: labels of the test set, shape (examples,).
        runs: the full runs behind the trained rows.
        held_out: runs with a held-out part, by seed; the source of honest taus.
        curves: the exact error over tau on the judged split, by post-hoc method and seed.
        split: which split was judged.
        left_out: runs with a held-out part that no tau could be chosen on, by the reason.
    """

    rows: tuple[Row, ...]
    target: IntArray
    runs: tuple[Run, ...]
    held_out: dict[int, Run]
    curves: dict[str, dict[int, tuning.TauCurve]]
    split: str
    left_out: dict[str, tuple[Run, ...]] = field(default_factory=dict)

    @property
    def baseline(self) -> Row | None:
        """The row of plain softmax, to which the others are compared, if it was run."""
        return next((row for row in self.rows if row.method == BASELINE), None)

    def row(
        self, method: str, *, tau_source: TauSource | None = None, detail: str | None = None
    ) -> Row:
        """Return the row of a method; of a post-hoc one, by the source of its tau."""
        for row in self.rows:
            named = row.method == method and row.tau_source == tau_source
            if named and detail in (None, row.detail):
                return row
        there = ", ".join(sorted({row.method for row in self.rows}))
        raise InputError(f"Comparison.row: there is no {method!r} ({tau_source}); rows: {there}.")

    def difference(self, row: Row, *, baseline: Row | None = None, level: float = 0.95) -> Interval:
        """Return the paired difference of errors, `row` minus `baseline` (softmax), over seeds.

        An ensemble is no seed among others: its difference is to the mean of the other's errors
        over the seeds of its networks, without an interval.
        """
        base = self.row(BASELINE) if baseline is None else baseline
        common = _common_seeds(row, base)
        if not common:
            raise InputError(
                f"Comparison.difference: {row.method!r} and {base.method!r} share no seed, or not "
                f"all of an ensemble's."
            )
        mine, theirs = row.errors_of(common), base.errors_of(common)
        if row.members or base.members:
            change = float(mine.mean() - theirs.mean())
            return Interval(change, float("nan"), float("nan"), len(common))
        return mean_interval(mine - theirs, level=level)

    def against_softmax(self, row: Row, *, level: float = 0.95) -> Interval | None:
        """Return the `difference` to softmax, or None without softmax runs of the same seeds."""
        if self.baseline is None or not _common_seeds(row, self.baseline):
            return None
        return self.difference(row, level=level)

    def group_errors(self, row: Row) -> dict[str, float]:
        """Mean error of many-, medium- and few-shot classes; NaN for a group without classes."""
        groups = self.runs[0].prior.groups()
        return {
            name: float(row.per_class[classes].mean()) if len(classes) else float("nan")
            for name, classes in groups.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and dicts for JSON; errors are fractions, NaN where none is."""
        left_out = [
            {"run": run.folder, "why": why} for why, runs in self.left_out.items() for run in runs
        ]
        rows = [self._row_dict(row) for row in self.rows]
        return {"split": self.split, "rows": rows, "left_out": left_out}

    def _row_dict(self, row: Row) -> dict[str, Any]:
        error = mean_interval(row.errors)
        change = self.against_softmax(row)
        against = change and {
            "mean": change.mean,
            "low": change.low,
            "high": change.high,
            "seeds": change.seeds,
        }
        return {
            "method": row.method,
            "tau_source": row.tau_source,
            "detail": row.detail,
            "seeds": list(row.seeds),
            "members": list(row.members),
            "errors": row.errors.tolist(),
            "balanced_error": {"mean": error.mean, "low": error.low, "high": error.high},
            "difference_to_softmax": against,
            "groups": self.group_errors(row),
            "taus": None if row.taus is None else row.taus.tolist(),
        }


def _common_seeds(one: Row, other: Row) -> list[int]:
    """The seeds by which two rows are compared: those of both, which must be all of an ensemble."""
    both = set(one.seeds) & set(other.seeds)
    whole = all(set(row.seeds) == both for row in (one, other) if row.members)
    return sorted(both) if whole else []


def compare(
    runs: Iterable[Run], *, split: str = "test", bias_mode: BiasMode = "scale"
) -> Comparison:
    """Judge runs of one data set by their saved logits, post-hoc methods included.

    Args:
        runs: finished runs that have the split's logits. Those without a held-out part are the
            rows. Softmax runs with one choose tau for the softmax run that differs in nothing
            else; any others are left out, and the result says why.
        split: which logits to judge.
        bias_mode: of weight normalization.

    Returns:
        The Comparison.
    """
    everything = sorted(runs, key=_order)
    same_data(everything, split=split)
    full = [run for run in everything if not run.spec.dataset.held_out]
    if not full:
        raise InputError(
            "compare: every run has a held-out part; runs on the whole training set are needed."
        )
    target, first = np.asarray(full[0].logits(split).target), full[0]
    lacking = np.setdiff1d(np.arange(first.prior.num_classes), target)
    if absent := _checks.class_words(lacking, first.class_names):
        raise InputError(
            f"compare: the {split} set has no examples of {absent}, and a comparison is over all "
            f"classes; `longtail evaluate` shows the errors of the others."
        )

    def judged(run: Run, method: str | None = None, tau: float | None = None) -> Scored:
        def read() -> NDArray[Any]:
            logits = np.asarray(run.logits(split).logits)
            return logits if method is None else _adjusted(run, logits, method, tau, bias_mode)

        return Scored(run.spec.seed, tau, metrics.per_class_error(target, read()).values, read)

    rows = [
        Row(name, None, detail, tuple(judged(run) for run in group), tuple(group))
        for (name, detail), group in _grouped(full).items()
    ]
    plain = [run for run in full if run.spec.method.name == BASELINE]
    held, left_out = _partners([r for r in everything if r.spec.dataset.held_out], plain)
    curves: dict[str, dict[int, tuning.TauCurve]] = {}
    for method in POSTHOC if plain else ():
        if method == "posthoc-weight-normalized" and any(run.head is None for run in plain):
            continue
        best = {run.spec.seed: tuned(run, split, method, bias_mode) for run in plain}
        curves[method] = {seed: cast(tuning.TauCurve, r.curve) for seed, r in best.items()}
        taus: dict[TauSource, dict[int, float]] = {
            "fixed": dict.fromkeys(best, 1.0),
            "held-out": {
                seed: tuned(run, "held-out", method, bias_mode).tau for seed, run in held.items()
            },
            "oracle": {seed: result.tau for seed, result in best.items()},
        }
        detail = f"bias {bias_mode}" if "weight" in method else ""
        for source, of_seed in taus.items():
            usable = tuple(run for run in plain if run.spec.seed in of_seed)
            if usable:
                scored = tuple(judged(run, method, of_seed[run.spec.seed]) for run in usable)
                rows.append(Row(method, source, detail, scored, usable))
    return Comparison(tuple(rows), target, tuple(full), held, curves, split, left_out)


def _order(run: Run) -> tuple[bool, str, int]:
    return run.spec.method.name != BASELINE, run.spec.method.name, run.spec.seed


def _grouped(runs: Sequence[Run]) -> dict[tuple[str, str], list[Run]]:
    """Runs by method; settings and recipe become the detail where a method has several.

    Where that leaves two runs of one seed together, so does all else that tells them apart.
    """
    alike: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        method = run.spec.method
        detail = ", ".join(f"{key}={value}" for key, value in sorted(method.settings.items()))
        if len({r.spec.recipe.name for r in runs if r.spec.method.name == method.name}) > 1:
            detail = ", ".join(filter(None, (detail, run.spec.recipe.name)))
        alike.setdefault((method.name, detail), []).append(run)
    groups: dict[tuple[str, str], list[Run]] = {}
    for (name, detail), group in alike.items():
        distinct = len({run.spec.seed for run in group}) == len(group)
        for words, part in ({"": group} if distinct else told_apart(group)).items():
            _refuse_twice(part)
            groups[name, ", ".join(filter(None, (detail, words)))] = part
    plain = [detail or "plain" for name, detail in groups if name == BASELINE]
    if len(plain) > 1:
        raise InputError(
            f"compare: {BASELINE!r} was run in {len(plain)} ways ({'; '.join(plain)}), but the "
            f"others are compared to one and the post-hoc methods start from one; compare the "
            f"runs of each by themselves."
        )
    return groups


def _refuse_twice(runs: Sequence[Run]) -> None:
    """Refuse a run that came from two folders; `runs` differ in nothing but the seed."""
    seen: dict[int, Run] = {}
    for run in runs:
        other = seen.setdefault(run.spec.seed, run)
        if other is not run:
            raise InputError(
                f"compare: {other.folder} and {run.folder} are the same run, {other.name}; "
                f"compare one of them."
            )


def _partners(
    held: Sequence[Run], plain: Sequence[Run]
) -> tuple[dict[int, Run], dict[str, tuple[Run, ...]]]:
    """Return held-out runs that choose tau, by seed, and the others, by the reason.

    A tau suits the training that it was chosen for: after one epoch it is another than after ten.
    """
    of_seed = {run.spec.seed: run for run in plain}
    matched: list[Run] = []
    left_out: dict[str, tuple[Run, ...]] = {}
    for run in held:
        whole, why = of_seed.get(run.spec.seed), ""
        if run.spec.method.name != BASELINE:
            why = f"tau is chosen on runs trained with {BASELINE} alone"
        elif whole is None:
            why = f"no {BASELINE} run on the whole training set has the same seed"
        else:
            same_part = replace(run.spec.dataset, held_out=whole.spec.dataset.held_out)
            lines = replace(run.spec, dataset=same_part).difference(whole.spec)
            words = [line.removeprefix("recipe.values.") for line in lines]
            if words:
                why = f"not trained like the {BASELINE} run on the whole training set: "
                why += _checks.listing(words, most=3)
        if why:
            left_out[why] = (*left_out.get(why, ()), run)
        else:
            matched.append(run)
    parts = sorted({run.spec.dataset.held_out for run in matched})
    if len(parts) > 1:  # nothing decides between them
        ways = "; ".join(
            f"{100 * part:.3g}% held out: "
            + _checks.listing(
                [r.folder for r in matched if r.spec.dataset.held_out == part], most=3
            )
            for part in parts
        )
        raise InputError(
            f"compare: tau could be chosen on {len(parts)} held-out parts ({ways}); "
            f"name the runs to compare one by one, with those of one part."
        )
    _refuse_twice(matched)
    return {run.spec.seed: run for run in matched}, left_out


def _adjusted(
    run: Run, logits: NDArray[Any], method: str, tau: float | None, bias_mode: BiasMode
) -> Any:
    assert tau is not None
    if method == "posthoc-logit-adjusted":
        return posthoc.adjust_logits(logits, run.prior, tau=tau)
    return posthoc.normalize_weights(logits, tau=tau, **_head(run, bias_mode))


def _head(run: Run, bias_mode: BiasMode) -> dict[str, Any]:
    """Arguments of weight normalization from a run that recorded its last layer."""
    assert run.head is not None
    bias = None if bias_mode == "scale" else run.head.bias
    return {"norms": run.head.norms, "bias": bias, "bias_mode": bias_mode}


def tuned(run: Run, split: str, method: str, bias_mode: BiasMode) -> tuning.TauResult:
    """Return the exact curve and best tau of a post-hoc method on one split of a run."""
    logits, target, _ = run.logits(split)
    settings = _head(run, bias_mode) if method == "posthoc-weight-normalized" else {}
    # Not by `tune_tau`: where a run's classes are all alike every tau is as good, which is worth
    # a row of a table though not a choice.
    parts = tuning.TauIntervals.from_logits(
        np.asarray(logits), target, run.prior, method=POSTHOC[method], **settings
    )
    return tuning.tune_from_intervals(parts, select="minimum", n_bootstrap=0)
