"""Runs as data, and the small records that tables and figures are made of.

A study lists its `Runs`. `train_missing` trains what has no record yet (nothing with
``--no-train``), in cohorts that fit a GPU, stops after ``--minutes`` and goes on when called again.
`Row` and `Column` turn records into a table's cells.

A record is ``results/STUDY/DATASET/METHOD-sSEED-HASH.json``: the run's spec, and whole numbers of
wrong examples of each class. Softmax runs have the post-hoc methods too, at τ = 1, at the τ of a
held-out part (`Runs.tau_from`) and at the best τ of the test set. Logits and weights stay in the
run's folder.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from longtail import ClassPrior, InputError, adjust_logits, evaluate, tune_tau
from longtail.data import DATASETS
from longtail.report.compare import Interval, mean_interval
from longtail.runs import DataSpec, Run, RunSpec, Settings, ensemble, files
from longtail.runs.ensemble import ensemble_spec
from longtail.tuning import tune_normalization

logger = logging.getLogger("longtail")

ROOT = Path(__file__).resolve().parent.parent
FORMAT = 1
TEST, HELD_OUT, DEV = "test", "held-out", "dev"
TAUS = np.linspace(0.0, 4.0, 81)
DEV_TAUS = np.linspace(0.0, 2.0, 201)  # for what is left to adjust after a loss has done it

ADJUSTED = "posthoc-logit-adjusted"
SCALED = "posthoc-weight-normalized/scale"
DROPPED = "posthoc-weight-normalized/drop"
BY_PRIOR = "posthoc-weight-normalized/prior"  # ν = π in place of the head's norms
CRITERIA = ("log_loss", "squared_error", "ece")  # by which a held-out part chooses τ besides
Source = Literal["fixed", "held-out", "oracle", "log_loss", "squared_error", "ece"]
# The rule by which every τ of a study is chosen: the midpoint of the minimising cell nearest 1.
TUNING: dict[str, Any] = {"n_bootstrap": 0, "select": "minimum"}

TITLES = {"cifar10-lt": "CIFAR-10-LT", "cifar100-lt": "CIFAR-100-LT", "digits-lt": "digits-LT"}
_CAPTURE_SECONDS = 45.0  # what a GPU takes before a cohort's first step
_MOST_NAMES = 20


# ---------------------------------------------------------------------------- definitions


@dataclass(frozen=True)
class Runs:
    """Runs that differ in nothing but the seed: one row of a study's definition."""

    name: str  # short, unique in the study, for people
    data: DataSpec  # which examples, see `cifar`
    method: str = "softmax"  # as on the command line
    recipe: str = "tuned"
    overrides: Mapping[str, Any] = field(default_factory=Settings)  # of recipe values
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)  # one run for each
    held_out: float = 0.0  # fraction of each class kept out of training
    tau_from: Runs | None = None  # whose held-out part chooses τ for these, seed by seed
    teachers: tuple[Runs, ...] = ()  # that these learn from, all their seeds
    mean: bool = False  # not trained at all: the mean logits of the teachers
    dev: bool = False  # judged on the development set as well as on the test set

    def __post_init__(self) -> None:
        object.__setattr__(self, "overrides", Settings(self.overrides))
        object.__setattr__(self, "seeds", (0,) if self.mean else tuple(self.seeds))

    def changed(self, values: Mapping[str, Any], seeds: int | None = None) -> Runs:
        """Return the same runs in small: other recipe values, and at most so many seeds.

        A row's own overrides stay, but for its model and epochs.
        """
        small = {key: values[key] for key in ("model", "epochs") if key in values}
        return replace(
            self,
            overrides={**values, **self.overrides, **small},
            seeds=self.seeds[:seeds],
            tau_from=self.tau_from and self.tau_from.changed(values, seeds),
            teachers=tuple(one.changed(values, seeds) for one in self.teachers),
        )


def cifar(name: str, ratio: float | None = None, *, profile: str = "exp") -> DataSpec:
    """Return a long-tailed CIFAR (or the digits): the literature's subset.

    Examples:
        >>> cifar("cifar10-lt").imbalance_ratio
        100.0
    """
    return DataSpec(name, profile=profile, imbalance_ratio=ratio or DATASETS[name])


def in_order(rows: Iterable[Runs]) -> list[Runs]:
    """Return rows, each once and after those that it needs."""
    found: dict[Runs, None] = {}
    for row in rows:
        needs = (*row.teachers, row.tau_from) if row.tau_from else row.teachers
        found |= dict.fromkeys([*in_order(needs), row])
    return list(found)


@cache
def _spec(runs: Runs, seed: int) -> RunSpec:
    """Return a run's spec, but for its precision and teachers."""
    from longtail.train.recipe import make_spec

    return make_spec(
        replace(runs.data, held_out=runs.held_out),
        method=runs.method,
        recipe=runs.recipe,
        seed=seed,
        overrides=runs.overrides,
    )


@cache
def _key(spec: RunSpec) -> Path:
    """Return the folder of a spec's run, were it not for its precision."""
    settings = {key: value for key, value in spec.settings.items() if key != "precision"}
    return replace(spec, settings=Settings(settings)).folder


# ---------------------------------------------------------------------------- records


class Point(NamedTuple):
    """A run's test error of each class at one τ."""

    tau: float
    per_class: np.ndarray


@dataclass(frozen=True, eq=False)
class Record:
    """One finished run, as far as tables and figures go: its spec, and the file's content."""

    spec: RunSpec
    document: Mapping[str, Any]

    @property
    def name(self) -> str:
        """``<dataset>/<method>-s<seed>-<hash8>``."""
        return self.spec.folder.as_posix()

    @property
    def prior(self) -> ClassPrior:
        """Class frequencies of the examples that it was trained on."""
        return ClassPrior.from_counts(self.document["counts"])

    @property
    def seconds(self) -> float:
        """The run's share of the training time; a mean of others has none of its own."""
        return 0.0 if self.spec.method.name == "ensemble" else float(self.document["seconds"])

    @property
    def norms(self) -> np.ndarray:
        """Norm of each class's weights in the last layer, shape (num_classes,)."""
        return np.asarray(self.document["norms"], dtype=np.float64)

    def examples(self, split: str = TEST) -> np.ndarray:
        """Examples of each class in a split, shape (num_classes,)."""
        return np.asarray(self.document["splits"][split]["examples"])

    def per_class(self, split: str = TEST) -> np.ndarray:
        """Error of each class without adjustment, shape (num_classes,); NaN without examples."""
        wrong, examples = np.asarray(self.document["splits"][split]["wrong"]), self.examples(split)
        return np.where(examples > 0, wrong / np.maximum(examples, 1), np.nan)

    def point(self, variant: str, source: Source) -> Point | None:
        """A post-hoc method on the test set, or None without that τ."""
        found = self.document["posthoc"].get(variant, {}).get(TEST, {}).get("points", {})
        return self._point(found.get(source))

    def curve(self, variant: str) -> np.ndarray | None:
        """Balanced test error at each of `TAUS`, or None for a run that is not adjusted."""
        found = self.document["posthoc"].get(variant, {}).get(TEST)
        return found and np.asarray(found["curve"])

    @property
    def again(self) -> Point | None:
        """The test set at the τ that the development set chose, or None without one."""
        return self._point(self.document.get("again"))

    def _point(self, found: Mapping[str, Any] | None) -> Point | None:
        return found and Point(found["tau"], np.asarray(found["wrong"]) / self.examples())


def record_of(run: Run, *, partner: Record | None = None) -> Record:
    """Keep of a finished run what tables and figures need.

    `partner` is the record of the run with a held-out part that chose τ.
    """
    document: dict[str, Any] = {
        "format": FORMAT,
        "run": run.name,
        "spec": run.spec.to_json(),
        "data": run.data,
        "counts": [int(count) for count in run.prior.counts],
        "device": run.record["device"],
        "versions": {k: v for k, v in run.record["versions"].items() if k != "platform"},
        "seconds": round(float(run.record["seconds"]), 2),
        "splits": {split: _judged(run, split) for split in run.splits},
        "norms": None if run.head is None else _rounded(run.head.norms),
        "posthoc": _posthoc(run, partner),
    }
    if TEST in run.splits:
        document["ece"] = _calibration(run)
    if run.class_names is not None and len(run.class_names) <= _MOST_NAMES:
        document["class_names"] = list(run.class_names)
    if {DEV, TEST} <= set(run.splits):
        document["again"] = _again(run)
    return Record(run.spec, json.loads(json.dumps(document)))  # as it reads from the file


def _judged(run: Run, split: str) -> dict[str, Any]:
    logits, target, _ = run.logits(split)
    examples = np.bincount(target, minlength=run.prior.num_classes).tolist()
    data = run.record["splits"][split]["data"]
    return {"data": data, "examples": examples, "wrong": _wrong(logits, target, len(examples))}


def _wrong(logits: Any, target: np.ndarray, num_classes: int) -> list[int]:
    missed = target[np.asarray(logits).argmax(axis=1) != target]
    return np.bincount(missed, minlength=num_classes).tolist()


def _rounded(values: Any) -> list[float]:
    return [float(f"{value:.6g}") for value in np.asarray(values, dtype=np.float64)]


def _calibration(run: Run) -> dict[str, float]:
    """Return the calibration error on the test set, of all classes and of each group."""
    logits, target, _ = run.logits(TEST)
    groups = {"all": np.arange(run.prior.num_classes), **run.prior.groups()}
    rows = {name: np.isin(target, classes) for name, classes in groups.items()}
    return {
        name: round(evaluate(target[some], logits[some], missing="skip").ece, 6)
        for name, some in rows.items()
        if some.any()
    }


def _posthoc(run: Run, partner: Record | None) -> dict[str, Any]:
    """Adjust softmax runs in every way after training, and the logit-adjusted loss again."""
    found: dict[str, Any] = {}
    for variant, asked in _variants(run).items():
        found[variant] = {}
        for split in (name for name in run.splits if name != DEV):
            logits, target, _ = run.logits(split)
            logits = np.asarray(logits)
            if asked:
                best = tune_normalization(logits, target, **asked, **TUNING)
            else:
                best = tune_tau(logits, target, run.prior, **TUNING)
            entry: dict[str, Any] = {"tau": best.tau, "curve": _rounded(best.curve(TAUS))}
            if split == HELD_OUT and variant == ADJUSTED:
                entry["criteria"] = {
                    name: tune_tau(logits, target, run.prior, criterion=name, n_bootstrap=0).tau
                    for name in CRITERIA
                }
            if split == TEST:
                taus = {"fixed": 1.0, "oracle": best.tau}
                if partner is not None:
                    chosen = partner.document["posthoc"][variant][HELD_OUT]
                    taus |= {"held-out": chosen["tau"], **chosen.get("criteria", {})}
                examples = np.bincount(target, minlength=run.prior.num_classes)
                wrong = {s: best.curve.per_class(tau) * examples for s, tau in taus.items()}
                entry["points"] = {
                    source: {"tau": tau, "wrong": np.rint(wrong[source]).astype(int).tolist()}
                    for source, tau in taus.items()
                }
            found[variant][split] = entry
    return found


def _variants(run: Run) -> dict[str, dict[str, Any]]:
    """Return what `tune_normalization` is asked for each variant of a run; {} for `tune_tau`."""
    method, head = run.spec.method.name, run.head
    if method == "logit-adjusted":
        return {ADJUSTED: {}}
    if method not in ("softmax", "softmax+label-smoothing"):
        return {}
    found: dict[str, dict[str, Any]] = {ADJUSTED: {}, BY_PRIOR: {"norms": run.prior}}
    if head is not None:
        found[SCALED] = {"bias_mode": "scale", "norms": head.norms}
        if head.bias is not None:
            found[DROPPED] = {"bias_mode": "drop", "norms": head.norms, "bias": head.bias}
    return found


def _again(run: Run) -> dict[str, Any]:
    """Judge the test set at the τ, on top of the loss, that errs least on the development set."""
    logits, target, _ = run.logits(DEV)
    bounds = (float(DEV_TAUS[0]), float(DEV_TAUS[-1]))
    found = tune_tau(
        np.asarray(logits), target, run.prior, missing="nearest", bounds=bounds, **TUNING
    )
    errors = found.curve(DEV_TAUS)
    best = int(np.argmin(np.round(errors, 12)))
    tau = float(DEV_TAUS[best])
    logits, target, _ = run.logits(TEST)
    adjusted = adjust_logits(np.asarray(logits, dtype=np.float64), run.prior, tau=tau)
    return {
        "tau": round(tau, 4),
        "dev_error": round(float(errors[best]), 6),
        "wrong": _wrong(adjusted, target, run.prior.num_classes),
    }


def to_text(document: Mapping[str, Any]) -> str:
    """Return JSON with one line for each list of numbers."""
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    return re.sub(r"\[([^\[\]{}]*)\]", lambda m: f"[{' '.join(m[1].split())}]", text) + "\n"


def write_text(path: Path, text: str) -> Path:
    """Write a file whole or not at all, and make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_bytes(path, text.encode())
    return path


def write(found: Record, folder: Path) -> Path:
    """Write a record below a folder of records."""
    return write_text(folder / f"{found.spec.folder}.json", to_text(found.document))


def read(path: Path) -> Record:
    """Return the record in a file."""
    document = json.loads(path.read_text(encoding="utf-8"))
    if document.get("format") != FORMAT:
        raise InputError(f"{path} is not the record of a run in format {FORMAT}.")
    return Record(RunSpec.from_json(document["spec"]), document)


class Shelf:
    """Records, found by what they are records of.

    Args:
        folder: of records; None for none.
        precision: of runs that have no record yet.
    """

    def __init__(self, folder: Path | str | None = None, precision: str = "float32") -> None:
        self.precision = precision
        self._records: dict[Path, Record] = {}  # by `_key`: in whatever precision
        self._data: dict[tuple[DataSpec, str], tuple[str, str]] = {}
        for path in sorted(Path(folder).glob("*/*.json")) if folder else []:
            self.put(read(path))

    @property
    def records(self) -> list[Record]:
        """All of them, in order of name."""
        return list(self._records.values())

    def put(self, one: Record) -> None:
        """Add a record, in the place of what was there of the same run."""
        subset, splits = replace(one.spec.dataset, held_out=0.0), one.document["splits"]
        parts = {part: splits[part]["data"] for part in (TEST, DEV) if part in splits}
        for part, data in {"train": one.document["data"], **parts}.items():
            seen, other = self._data.setdefault((subset, part), (data, one.name))
            if seen != data:
                raise InputError(
                    f"{other} and {one.name} are of different data ({part} fingerprints "
                    f"{seen[:8]} and {data[:8]}), so they can't stand in one table; keep their "
                    f"records in different folders."
                )
        self._records[_key(one.spec)] = one

    def spec(self, runs: Runs, seed: int) -> RunSpec:
        """Return a run's spec: as on record, or as it would be trained here."""
        from longtail.train.teachers import with_teachers

        names = [self.spec(one, n).folder.as_posix() for one in runs.teachers for n in one.seeds]
        if runs.mean:
            spec = ensemble_spec(runs.data, names)
        else:
            spec = with_teachers(_spec(runs, seed), names) if names else _spec(runs, seed)
        there = self._records.get(_key(spec))
        if there is not None:
            return there.spec
        if runs.mean or self.precision == "float32":  # float32 goes without saying
            return spec
        return replace(spec, settings=Settings({**spec.settings, "precision": self.precision}))

    def get(self, runs: Runs, seed: int = 0) -> Record | None:
        """Return the record of one run that was judged, in whatever precision, or None."""
        found = self._records.get(_key(self.spec(runs, seed)))
        wanted = {HELD_OUT} if runs.held_out else {TEST, DEV} if runs.dev else {TEST}
        return found if found and wanted <= found.document["splits"].keys() else None

    def of(self, runs: Runs) -> list[Record]:
        """Return the records of some runs, in order of seed."""
        found = (self.get(runs, seed) for seed in runs.seeds)
        return [one for one in found if one is not None]

    def is_whole(self, runs: Runs, seed: int) -> bool:
        """Return True for a run whose record has all that tables need, its partner's τ too."""
        found = self.get(runs, seed)
        if found is None or (runs.dev and found.again is None):
            return False
        return runs.tau_from is None or found.point(ADJUSTED, "held-out") is not None

    def missing(self, runs: Iterable[Runs]) -> list[str]:
        """Return the runs that should be there and aren't: ``adaptive, seeds 3, 4``."""
        found = []
        for one in runs:
            seeds = [str(seed) for seed in one.seeds if not self.is_whole(one, seed)]
            if seeds:
                found.append(f"{one.name}, seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}")
        return found


# ---------------------------------------------------------------------------- training


class Trainer:
    """Trains runs that have no record, judges each finished run once, and writes its record.

    Args:
        options: of `add_training_arguments`.
        shelf: the records that are there.
        load: gives the data of a DataSpec.
        shared: what `train_cohort` and `evaluate` are told besides, such as `world`.
        progress: called as ``progress(epochs done, epochs in all, what)``.
    """

    def __init__(self, options: argparse.Namespace, shelf: Shelf, load, shared, progress) -> None:
        self.options, self.shelf, self.shared, self.progress = options, shelf, shared, progress
        self.load, self.device = lru_cache(1)(load), device_of(options)

    def train(self, rows: Iterable[Runs]) -> bool:
        """Train what is missing; return False if time ran out."""
        from longtail.train.engine import StoppedError

        waiting = in_order(rows)
        try:
            while waiting:  # a round is all rows whose teachers are there, of one data set
                ready = [one for one in waiting if not set(one.teachers) & set(waiting)]
                ready = [one for one in ready if one.data == ready[0].data]
                self._round(ready)
                waiting = [one for one in waiting if one not in ready]
        except StoppedError:
            return False
        return True

    def _round(self, rows: Sequence[Runs]) -> None:
        lacking = self._once(rows, lambda pair: not self.shelf.is_whole(*pair))
        taught = in_order(teacher for one, _ in lacking for teacher in one.teachers)
        gone = self._once(taught, lambda p: not (p[0].mean or self._is_finished(*p)))
        if gone:
            root = self.options.runs
            logger.warning(
                "training %d runs again, to teach and nothing else: there are records, but no "
                "weights in %s. To bring the weights instead: longtail runs unpack ARCHIVE "
                "--root %s",
                *(len(gone), root, root),
            )
        # Teachers that are students themselves come after theirs.
        self._train([pair for pair in gone if not pair[0].teachers])
        self._train([pair for pair in gone if pair[0].teachers])
        self._train([pair for pair in lacking if not pair[0].mean])
        for one, _ in lacking:
            if one.mean:
                self._average(one)

    def _once(self, rows: Iterable[Runs], wanted: Callable) -> list[tuple[Runs, int]]:
        """Return each wanted run once: it may belong to several rows, such as a teacher's."""
        pairs = [(one, seed) for one in rows for seed in one.seeds]
        found = {self.shelf.spec(*pair).folder: pair for pair in pairs if wanted(pair)}
        return list(found.values())

    def _is_finished(self, one: Runs, seed: int) -> bool:
        folder = self.options.runs / self.shelf.spec(one, seed).folder
        there = (folder / "run.json").exists()
        return there and Run.open(folder, verify=False, unfinished=True).finished

    def _train(self, pairs: Sequence[tuple[Runs, int]]) -> None:
        """Train runs in parts that fit a GPU, each of networks that are alike."""
        of_model: dict[str, list[tuple[Runs, int]]] = {}
        for pair in pairs:
            of_model.setdefault(_spec(*pair).model.name, []).append(pair)
        size = self.options.together
        for some in of_model.values():
            for first in range(0, len(some), size):
                self._part(some[first : first + size])

    def _part(self, pairs: Sequence[tuple[Runs, int]]) -> None:
        """Train some runs side by side, judge them, and write their records."""
        from longtail.train.engine import StoppedError, train_cohort

        if self._is_over(before=_CAPTURE_SECONDS if self.device.type == "cuda" else 0.0):
            raise StoppedError
        try:
            train_cohort(
                [self.shelf.spec(*pair) for pair in pairs],
                self.load(pairs[0][0].data).train,
                root=self.options.runs,
                device=self.device,
                command=" ".join(["python -m studies", *sys.argv[1:]]),
                together=self.options.together,
                progress=self.progress,
                stop=self._is_over,
                **self.shared,
            )
        finally:  # a run that fails, or a stop, must not cost those that are finished
            # Those with a held-out part first: they choose τ for the others.
            for one, seed in sorted(pairs, key=lambda pair: not pair[0].held_out):
                if self._is_finished(one, seed) and not self.shelf.is_whole(one, seed):
                    self._keep(one, seed, self._evaluated(one, self.shelf.spec(one, seed)))

    def _evaluated(self, one: Runs, spec: RunSpec) -> Run:
        from longtail.train.engine import evaluate

        run, data = Run.open(self.options.runs / spec.folder), self.load(one.data)
        if one.dev:
            run = evaluate(run, data.development(run), split=DEV, device=self.device)
        if not one.held_out:
            run = evaluate(run, data.test, split=TEST, device=self.device, **self.shared)
        return run

    def _keep(self, one: Runs, seed: int, run: Run) -> None:
        found = record_of(run, partner=one.tau_from and self.shelf.get(one.tau_from, seed))
        if getattr(self.shared.get("world"), "first", True):
            write(found, self.options.records)
        self.shelf.put(found)

    def _average(self, one: Runs) -> None:
        specs = [self.shelf.spec(member, seed) for member in one.teachers for seed in member.seeds]
        members = [self._evaluated(one, spec) for spec in specs]
        for split in (DEV, TEST) if one.dev else (TEST,):
            run = ensemble(members, root=self.options.runs, split=split, replace=True)
        self._keep(one, 0, run)

    def _is_over(self, *, before: float = 0.0) -> bool:
        deadline = getattr(self.options, "deadline", None)
        if deadline is None:
            return False
        over, world = time.monotonic() + before >= deadline, self.shared.get("world")
        # Processes that train together stop together, by the first one's clock.
        return over if world is None else bool(world.tell(over))


def add_training_arguments(
    parser: argparse.ArgumentParser, *, records: str, datasets: Sequence[str] = ()
) -> None:
    """Add the options of every study that trains.

    Args:
        parser: of the study.
        records: where its records are, from the repository's root.
        datasets: to choose among; none to have no such option.
    """
    if datasets:
        parser.add_argument(
            "--dataset", action="append", choices=datasets, help="Only this; may be repeated."
        )
    group = parser.add_argument_group("training")
    group.add_argument("--no-train", action="store_true", help="Only from the records.")
    group.add_argument("--minutes", type=_positive, help="Stop training after so long.")
    group.add_argument("--only", action="append", metavar="NAME", help="Train only these runs.")
    group.add_argument("--seeds", type=int, metavar="N", help="At most so many of each run.")
    group.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="Change the recipe."
    )
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N.")
    group.add_argument(
        "--precision", choices=("float32", "bfloat16"), help="bfloat16 on a GPU if absent."
    )
    group.add_argument("--together", type=int, default=32, help="Runs side by side on a GPU.")
    group.add_argument("--data-dir", type=Path, help="Of the data; LONGTAIL_DATA if absent.")
    group.add_argument("--runs", type=Path, default=Path("runs"), help="Folder of run folders.")
    group.add_argument("--records", type=Path, default=ROOT / records, help="Folder of records.")


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be above 0; got {text}")
    return value


def resized(options: argparse.Namespace, rows: Iterable[Runs]) -> list[Runs]:
    """Return rows as ``--set`` and ``--seeds`` change them."""
    from longtail.train.recipe import parse_overrides

    changes = parse_overrides(options.set)
    if not changes and options.seeds is None:
        return list(rows)
    return [one.changed(changes, options.seeds) for one in rows]


def device_of(options: argparse.Namespace) -> Any:
    """Return the device that ``--device`` names."""
    import torch

    auto = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(auto if options.device == "auto" else options.device)


def precision_of(options: argparse.Namespace) -> str:
    """Return the precision that ``--precision`` names: bfloat16 on a GPU if absent."""
    return options.precision or ("bfloat16" if device_of(options).type == "cuda" else "float32")


def train_missing(
    options: argparse.Namespace,
    rows: Iterable[Runs],
    *,
    load: Callable[[DataSpec], Any] | None = None,
    shared: Mapping[str, Any] | None = None,
    progress: Callable[[float, int, str], None] | None = None,
) -> tuple[Shelf, bool]:
    """Train what has no record, as the options of `add_training_arguments` say.

    Args:
        options: parsed; `options.deadline` is set at the first call and holds for later ones.
        rows: as `resized` gave them.
        load: gives the data of a DataSpec; the CIFARs and the digits by default.
        shared: what training and evaluation are told besides, such as `world`.
        progress: called as ``progress(epochs done, epochs in all, what)``.

    Returns:
        All records, and whether everything is there that was to be trained.
    """
    rows = list(rows)
    names = dict.fromkeys(one.name for one in rows)
    for name in options.only or ():
        if name not in names:
            raise InputError(f"--only {name}: the runs are {'; '.join(names)}.")
    if options.no_train:
        return Shelf(options.records), True
    if options.minutes and not hasattr(options, "deadline"):
        options.deadline = time.monotonic() + 60.0 * options.minutes
    load = load or (lambda spec: _load(spec, options.data_dir))
    shelf = Shelf(options.records, precision_of(options))
    trainer = Trainer(options, shelf, load, shared or {}, progress)
    return shelf, trainer.train(one for one in rows if one.name in (options.only or names))


def _load(spec: DataSpec, data_dir: Path | None) -> Any:
    from longtail.data import load

    subset = {"profile": spec.profile, "imbalance_ratio": spec.imbalance_ratio, "seed": spec.seed}
    return load(spec.name, data_dir=data_dir, **subset)


# ---------------------------------------------------------------------------- tables' cells


@dataclass(frozen=True)
class Row:
    """A row of a table: runs of one name, perhaps adjusted after training."""

    name: str  # as people read it
    runs: str  # name of the runs
    variant: str | None = None  # such as `ADJUSTED`, or None for the runs as they are
    source: Source = "fixed"  # where τ comes from
    paper: Mapping[str, float] = field(default_factory=dict, hash=False)  # percent, by `Column.key`


@dataclass(frozen=True, eq=False)
class Cell:
    """A row in a column, by seed."""

    seeds: tuple[int, ...]  # ascending
    per_class: np.ndarray  # error of each class, shape (seeds, num_classes)
    taus: np.ndarray | None = None  # of each seed, for a post-hoc row

    @property
    def errors(self) -> np.ndarray:
        """Balanced error of each seed, shape (seeds,)."""
        return _balanced(self.per_class)

    @property
    def mean(self) -> float:
        """Mean balanced error."""
        return float(self.errors.mean())

    @property
    def deviation(self) -> float:
        """Standard deviation of the balanced error over seeds, NaN for a single one."""
        return float(self.errors.std(ddof=1)) if len(self.seeds) > 1 else float("nan")


def _balanced(per_class: np.ndarray) -> np.ndarray:
    return per_class.mean(axis=1)


def paired(one: Cell | None, other: Cell | None, measure: Callable = _balanced) -> Interval | None:
    """Return the mean difference of a measure of per-class errors over the seeds of both cells."""
    if one is None or other is None:
        return None
    mine, theirs = (
        dict(zip(cell.seeds, measure(cell.per_class), strict=True)) for cell in (one, other)
    )
    both = [seed for seed in mine if seed in theirs]
    return mean_interval([mine[seed] - theirs[seed] for seed in both]) if both else None


@dataclass(frozen=True, eq=False)
class Column:
    """A column of a table: a data set trained in one way."""

    key: str  # by which rows know their published value
    title: str  # as people read it
    recipe: str
    runs: Mapping[str, Runs]  # by name, those that the column should have
    shelf: Shelf

    @classmethod
    def of(cls, key: str, title: str, runs: Iterable[Runs], shelf: Shelf) -> Column:
        """Return a column of some runs, which share a recipe."""
        named = {one.name: one for one in runs}
        return cls(key, title, next(iter(named.values())).recipe, named, shelf)

    def records_of(self, name: str) -> list[Record]:
        """Return the records of the runs of a name, in order of seed."""
        return self.shelf.of(self.runs[name]) if name in self.runs else []

    @property
    def records(self) -> list[Record]:
        """Every record of the column."""
        return [one for name in self.runs for one in self.records_of(name)]

    @property
    def seeds(self) -> int:
        """Number of seeds that there should be of the runs."""
        return max(len(one.seeds) for one in self.runs.values())

    @property
    def minutes(self) -> float:
        """Training time of all its runs; shares of runs that trained together add up."""
        return sum(one.seconds for one in self.records) / 60.0

    def missing(self) -> list[str]:
        """Return the runs that should be there and aren't."""
        return self.shelf.missing(self.runs.values())

    def cell(self, row: Row) -> Cell | None:
        """Return a row's errors, or None where there is no run of it."""
        known = {one.spec.seed: one for one in self.records_of(row.runs)}
        if row.variant is None:
            points = {seed: Point(np.nan, one.per_class()) for seed, one in known.items()}
        else:
            points = {seed: one.point(row.variant, row.source) for seed, one in known.items()}
        points = {seed: point for seed, point in points.items() if point is not None}
        if not points:
            return None
        taus, errors = map(np.array, zip(*points.values(), strict=True))
        return Cell(tuple(points), errors, None if row.variant is None else taus)

    def difference(self, row: Row, other: Row, measure: Callable = _balanced) -> Interval | None:
        """Return one row's measure of the classes' errors minus another's, paired by seed."""
        return paired(self.cell(row), self.cell(other), measure)
