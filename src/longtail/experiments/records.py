"""A finished run as one small text file, and back: what tables and figures need of it.

    results/<experiment>/<dataset>/<method>-s<seed>-<hash8>.json

Errors are kept as whole numbers of wrong examples of each class. The post-hoc methods of a
softmax run are there too: their exact error on a grid of taus, and what they get wrong at
tau = 1, at the tau that a second run's held-out part chose, and at the best tau of the test set
(an oracle). A run that was judged on the development set may have the tau that this set chose,
see `development`. Logits and weights stay in the run's folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from longtail import metrics, tuning
from longtail._checks import FloatArray, InputError, IntArray
from longtail.posthoc import BiasMode
from longtail.priors import ClassPrior
from longtail.report.compare import BASELINE, TauSource, tuned
from longtail.runs import DataSpec, Run, RunSpec, files

FORMAT = 1
TEST, HELD_OUT, DEV = "test", "held-out", "dev"
TAUS = np.linspace(0.0, 4.0, 81)

LOGIT_ADJUSTMENT = "posthoc-logit-adjusted"
# Post-hoc methods, and weight normalisation by what it does to the bias.
VARIANTS: dict[str, tuple[str, BiasMode]] = {
    LOGIT_ADJUSTMENT: (LOGIT_ADJUSTMENT, "scale"),
    "posthoc-weight-normalized/scale": ("posthoc-weight-normalized", "scale"),
    "posthoc-weight-normalized/drop": ("posthoc-weight-normalized", "drop"),
}
# The losses whose logits are still to be adjusted.
ADJUSTED = (BASELINE, f"{BASELINE}+label-smoothing")

# More classes than this have no room for their names in a figure.
_MOST_NAMES = 20


@dataclass(frozen=True, eq=False)
class Point:
    """A post-hoc method at one tau, judged on the test set.

    Attributes:
        tau: which.
        per_class: error of each class, shape (num_classes,).
    """

    tau: float
    per_class: FloatArray


@dataclass(frozen=True, eq=False)
class Record:
    """One run, as far as tables and figures go.

    Attributes:
        spec: what was asked for.
        document: everything, as in the file.
    """

    spec: RunSpec
    document: Mapping[str, Any]

    @property
    def name(self) -> str:
        """``<dataset>/<method>-s<seed>-<hash8>``."""
        return self.spec.folder.as_posix()

    @property
    def data(self) -> str:
        """Fingerprint of the training data, before anything was held out."""
        return str(self.document["data"])

    @property
    def prior(self) -> ClassPrior:
        """Class frequencies of the examples that it was trained on."""
        return ClassPrior.from_counts(self.document["counts"])

    @property
    def seconds(self) -> float:
        """The run's share of the training time; shares of runs that trained together add up."""
        return float(self.document["seconds"])

    @property
    def precision(self) -> str:
        """Of the network's features."""
        return str(self.spec.settings.get("precision", "float32"))

    @property
    def norms(self) -> FloatArray:
        """Norm of each class's weights in the last layer, shape (num_classes,)."""
        return np.asarray(self.document["norms"], dtype=np.float64)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The classes' names, where there are few."""
        names = self.document.get("class_names")
        return None if names is None else tuple(names)

    def per_class(self, split: str = TEST) -> FloatArray:
        """Error of each class without adjustment, shape (num_classes,); NaN without examples."""
        return _shares(self._split(split))

    def examples(self, split: str = TEST) -> IntArray:
        """Examples of each class in a split, shape (num_classes,)."""
        return np.asarray(self._split(split)["examples"], dtype=np.int64)

    def data_of(self, split: str) -> str | None:
        """Fingerprint of a split, or None if the run was not judged on it."""
        return None if split not in self.document["splits"] else self._split(split)["data"]

    def _split(self, split: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] | None = self.document["splits"].get(split)
        if found is None:
            raise InputError(f"the record of {self.name} has no errors on the split {split!r}.")
        return found

    def point(self, variant: str, source: TauSource) -> Point | None:
        """A post-hoc method on the test set, or None where that tau is not known."""
        found = self._posthoc(variant, TEST).get("points", {}).get(source)
        if found is None:
            return None
        wrong = np.asarray(found["wrong"]) / self.examples()
        return Point(float(found["tau"]), wrong)

    @property
    def again(self) -> Point | None:
        """The test set at the tau that the development set chose, or None without one."""
        found = self.document.get("again")
        if found is None:
            return None
        return Point(float(found["tau"]), np.asarray(found["wrong"]) / self.examples())

    def curve(self, variant: str, split: str = TEST) -> FloatArray | None:
        """Balanced error at each of `TAUS`, or None for a run that is not adjusted."""
        found = self._posthoc(variant, split).get("curve")
        return None if found is None else np.asarray(found, dtype=np.float64)

    def chosen_tau(self, variant: str) -> float | None:
        """The tau that the held-out part of this run chose, or None without one."""
        found = self._posthoc(variant, HELD_OUT).get("tau")
        return None if found is None else float(found)

    def _posthoc(self, variant: str, split: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.document["posthoc"].get(variant, {}).get(split, {})
        return found


def _shares(split: Mapping[str, Any]) -> FloatArray:
    wrong, examples = (np.asarray(split[key], dtype=np.float64) for key in ("wrong", "examples"))
    shares: FloatArray = np.full(len(wrong), np.nan)
    np.divide(wrong, examples, out=shares, where=examples > 0)
    return shares


def record(run: Run, *, partner: Record | None = None) -> Record:
    """What is kept of a finished run.

    Args:
        run: with logits of the test set, of its held-out part, or both.
        partner: the record of the run of the same seed with a held-out part, which chose taus.

    Returns:
        The Record.
    """
    if partner is not None:
        _check_partner(run, partner)
    head = run.head
    document: dict[str, Any] = {
        "format": FORMAT,
        "run": run.name,
        "spec": run.spec.to_json(),
        "data": run.data,
        "counts": _counts(run),
        "device": run.record["device"],
        "versions": {k: v for k, v in run.record["versions"].items() if k != "platform"},
        "seconds": round(float(run.record["seconds"]), 2),
        "splits": {split: _split_of(run, split) for split in run.splits},
        "norms": None if head is None else _rounded(head.norms),
        "posthoc": _posthoc(run, partner) if run.spec.method.name in ADJUSTED else {},
    }
    names = run.class_names
    if names is not None and len(names) <= _MOST_NAMES:
        document["class_names"] = list(names)
    # As it reads from the file: no tuples, no NumPy numbers.
    return Record(run.spec, json.loads(files.json_bytes(document)))


def _counts(run: Run) -> list[int]:
    if run.prior.counts is None:
        raise InputError(f"record: {run.folder} has no numbers of training examples.")
    return [int(count) for count in run.prior.counts]


def _check_partner(run: Run, partner: Record) -> None:
    differs = (
        partner.data != run.data
        or partner.spec.seed != run.spec.seed
        or not partner.spec.dataset.held_out
    )
    if differs:
        raise InputError(
            f"record: {partner.name} can't choose taus for {run.name}: it must be a run of the "
            f"same seed and data with a held-out part."
        )


def _split_of(run: Run, split: str) -> dict[str, Any]:
    logits, target, _ = run.logits(split)
    # A development set may lack the largest classes.
    missing: metrics.Missing = "skip" if split == DEV else "error"
    error = metrics.per_class_error(target, np.asarray(logits), missing=missing)
    examples = np.bincount(target, minlength=run.prior.num_classes)
    return {
        "data": run.record["splits"][split]["data"],
        "examples": examples.tolist(),
        "wrong": _wrong(error.values, examples),
    }


def _wrong(shares: FloatArray, examples: IntArray) -> list[int]:
    return [int(count) for count in np.rint(np.nan_to_num(shares) * examples)]


def _rounded(values: Any) -> list[float]:
    return [float(f"{value:.6g}") for value in np.asarray(values, dtype=np.float64)]


def _posthoc(run: Run, partner: Record | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for variant, (method, bias_mode) in VARIANTS.items():
        weights = variant != LOGIT_ADJUSTMENT
        if weights and (run.head is None or (bias_mode == "drop" and run.head.bias is None)):
            continue
        of_variant = {}
        for split in (name for name in run.splits if name != DEV):
            result = tuned(run, split, method, bias_mode)
            curve = cast(tuning.TauCurve, result.curve)
            entry: dict[str, Any] = {"tau": result.tau, "curve": _rounded(curve(TAUS))}
            if split == TEST:
                taus: dict[str, float | None] = {
                    "fixed": 1.0,
                    "held-out": None if partner is None else partner.chosen_tau(variant),
                    "oracle": result.tau,
                }
                examples = np.bincount(run.logits(split).target, minlength=run.prior.num_classes)
                entry["points"] = {
                    source: {"tau": tau, "wrong": _wrong(curve.per_class(tau), examples)}
                    for source, tau in taus.items()
                    if tau is not None
                }
            of_variant[split] = entry
        found[variant] = of_variant
    return found


def to_text(found: Record) -> str:
    """The file's text: JSON with one line for each list of numbers."""
    text = json.dumps(found.document, indent=1, ensure_ascii=False, allow_nan=False)
    return re.sub(r"\[([^\[\]{}]*)\]", lambda m: f"[{' '.join(m[1].split())}]", text) + "\n"


def path_of(found: Record | RunSpec, folder: Path | str) -> Path:
    """Where a run's record lies below a folder of records."""
    spec = found.spec if isinstance(found, Record) else found
    return Path(folder) / spec.folder.with_name(f"{spec.folder.name}.json")


def write(found: Record, folder: Path | str) -> Path:
    """Write a record below a folder of records.

    Args:
        found: the record.
        folder: made if need be.

    Returns:
        The file's path.
    """
    path = path_of(found, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_bytes(path, to_text(found).encode())
    return path


def read(path: Path | str) -> Record:
    """The record in a file, or one line that says why it can't be read."""
    path = Path(path)
    document = files.read_json(path, caller="records.read")
    version = document.get("format") if isinstance(document, dict) else None
    if not isinstance(version, int) or "spec" not in document:
        raise InputError(f"records.read: {path} is not the record of a run.")
    if version > FORMAT:
        raise InputError(
            f"records.read: {path} has format {version}, which is newer than this longtail reads "
            f"({FORMAT}); run: pip install --upgrade longtail"
        )
    spec = RunSpec.from_json(document["spec"])
    if document["run"] != spec.folder.as_posix() or path.stem != spec.folder.name:
        raise InputError(
            f"records.read: {path} was renamed or edited: its spec is that of {spec.folder}."
        )
    return Record(spec, document)


def read_all(folder: Path | str) -> list[Record]:
    """Every record below a folder, in order of name; none if the folder does not exist."""
    found = [read(path) for path in sorted(Path(folder).glob("*/*.json"))]
    one_data(found)
    return found


def one_data(found: Iterable[Record]) -> None:
    """Refuse records of one data set's name that were made on different data.

    Args:
        found: the records.

    Raises:
        InputError: names two records and in what they differ.
    """
    first: dict[tuple[DataSpec, str], tuple[str, Record]] = {}
    for one in found:
        subset = replace(one.spec.dataset, held_out=0.0)
        parts = (("train", one.data), *((split, one.data_of(split)) for split in (TEST, DEV)))
        for part, fingerprint in parts:
            if fingerprint is None:
                continue
            seen, other = first.setdefault((subset, part), (fingerprint, one))
            if seen != fingerprint:
                what = "trained" if part == "train" else "judged"
                raise InputError(
                    f"records: {other.name} and {one.name} were {what} on different data "
                    f"(fingerprints {seen[:8]} and {fingerprint[:8]}), so they can't stand in one "
                    f"table; keep their records in different folders."
                )
