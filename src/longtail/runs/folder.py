"""Run folders, read: what a folder holds, what may be wrong with it, and which compare.

    runs/<dataset>/<method>-s<seed>-<hash8>/
        run.json                    spec, prior, versions, device, hashes, status
        log.jsonl                   one line per logged step or epoch
        logits-<split>.safetensors  logits, target, index; the head's norms and bias
        model.safetensors           the weights

`run.json` is written when the run starts, with the status "running", and again after each
file that belongs to the result; the status becomes "finished" last of all. So whatever a kill
or a full disk leaves behind is either whole or recognisably unfinished. `writer` writes it.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail._checks import InputError, listing
from longtail.priors import ClassPrior
from longtail.runs import files
from longtail.runs.spec import POOL, RunSpec

FORMAT = 1
RECORD, LOG, MODEL = "run.json", "log.jsonl", "model.safetensors"
# The settings by which an ensemble names its runs, and a student those that it learnt from.
MEMBERS, TEACHERS = "runs", "teachers"
_NONFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class RunError(InputError):
    """A run folder is missing, of a newer format, edited, or not what was asked for."""


class UnfinishedRunError(RunError):
    """A run was interrupted: its folder is half written."""


class SplitLogits(NamedTuple):
    """Logits of a split, as `Run.logits` returns them.

    Attributes:
        logits: shape (examples, num_classes).
        target: labels, shape (examples,), int64.
        indices: each example's position in its data set, or None if that was not recorded.
    """

    logits: NDArray[Any]
    target: NDArray[np.int64]
    indices: NDArray[np.int64] | None


class Head(NamedTuple):
    """The last layer, as far as weight normalization needs it.

    Attributes:
        norms: Euclidean norm of each class's weights, shape (num_classes,).
        bias: shape (num_classes,), or None if the layer has none.
    """

    norms: NDArray[Any]
    bias: NDArray[Any] | None


def logits_file(split: str) -> str:
    """Return the name of the file that holds a split's logits."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", split):
        raise InputError(
            f"`split` must be a name of small letters, digits, dashes and underscores, such as "
            f"'test' or 'held-out'; got {split!r}."
        )
    return f"logits-{split}.safetensors"


def seal(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with a checksum of itself, by which an edit is recognised."""
    body = {key: value for key, value in record.items() if key != "checksum"}
    return {**body, "checksum": files.sha256(files.canonical_json(body).encode())}


def read_record(folder: Path) -> dict[str, Any]:
    """Return `run.json` of a folder: of this format or an older one, and not edited."""
    path = folder / RECORD
    if not path.is_file() and (folder / LOG).exists():
        raise UnfinishedRunError(
            f"{folder} is half written: it has no {RECORD}; delete it and train again."
        )
    if not path.is_file():
        raise RunError(
            f"{folder} is not a run folder: it has no {RECORD}; `longtail runs list` shows those "
            f"that exist, and saved predictions are judged by `longtail adjust`."
        )
    try:
        record = files.read_json(path)
    except InputError as error:
        raise RunError(f"{path} was edited or damaged: {error}") from error
    version = record.get("format") if isinstance(record, dict) else None
    if not isinstance(version, int):
        raise RunError(f"{path} is not the record of a run: it has no format version.")
    if version > FORMAT:
        raise RunError(
            f"{folder} has format {version}, which is newer than this longtail reads "
            f"({FORMAT}); run: pip install --upgrade longtail"
        )
    if record.get("checksum") != seal(record)["checksum"]:
        raise RunError(
            f"{path} was edited after it was written (its checksum does not match); "
            f"restore it or train again."
        )
    return dict(record)


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder, opened for reading. Make one with `Run.open`.

    Attributes:
        folder: where it is.
        spec: what was asked for.
        prior: class frequencies of the examples that it trained on.
        record: all of `run.json`.
    """

    folder: Path
    spec: RunSpec
    prior: ClassPrior
    record: Mapping[str, Any]

    @classmethod
    def open(cls, folder: Path | str, *, verify: bool = True, unfinished: bool = False) -> Run:
        """Open a run folder, or say in one line what is wrong with it.

        Args:
            folder: the run folder.
            verify: hash every file and refuse one that was edited; without it only
                `run.json` itself is checked.
            unfinished: also open a run that was interrupted.

        Raises:
            RunError: it is missing, of a newer format, or edited.
            UnfinishedRunError: it is half written.
        """
        folder = Path(folder)
        record = read_record(folder)
        if record["status"] != "finished" and not unfinished:
            again = record.get("command")
            raise UnfinishedRunError(
                f"{folder} is half written: its training did not finish; "
                + (f"resume it with: {again}" if again else "run its command again to resume it.")
            )
        for name, digest in record["files"].items():
            path = folder / name
            if not path.is_file():
                raise RunError(f"{folder} lacks {name}, which its {RECORD} lists; restore it.")
            if verify and files.sha256(path) != digest:
                raise RunError(
                    f"{path} was edited or damaged after it was written (its hash does not "
                    f"match {RECORD}); restore it or train again."
                )
        counts, probs = (record["prior"].get(key) for key in ("counts", "probs"))
        counts = np.asarray(counts)
        probs = counts / counts.sum() if probs is None else np.asarray(probs)
        prior = ClassPrior(probs=probs, counts=counts)
        return cls(folder, RunSpec.from_json(record["spec"]), prior, record)

    @property
    def name(self) -> str:
        """``<dataset>/<method>-s<seed>-<hash8>``, wherever the folder may lie."""
        return self.spec.folder.as_posix()

    @property
    def finished(self) -> bool:
        """True once training came to its end."""
        return bool(self.record["status"] == "finished")

    @property
    def data(self) -> str:
        """Fingerprint of the training data."""
        return str(self.record["data"])

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes, where they were recorded."""
        names = self.record.get("class_names")
        return None if names is None else tuple(names)

    @property
    def splits(self) -> tuple[str, ...]:
        """Splits whose logits are here."""
        return tuple(self.record["splits"])

    @property
    def has_model(self) -> bool:
        """True if the weights are here (an archive may leave them out)."""
        return MODEL in self.record["files"]

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the runs that an ensemble is the mean of; empty for any other run."""
        return tuple(self.spec.settings.get(MEMBERS, ()))

    @property
    def teachers(self) -> tuple[str, ...]:
        """Names of the runs that a student learnt from; empty for any other run."""
        return tuple(self.spec.settings.get(TEACHERS, ()))

    def evaluation(self, split: str, *, data: Sequence[str] | None = None) -> str:
        """Return the command that writes a split's logits; an ensemble's are its members' mean.

        Args:
            split: which.
            data: options that say where the data are; None for one to fill in where only the
                user knows.
        """
        names = [str(self.folder.parent.parent / name) for name in self.members]
        words = ["longtail", "evaluate", *(names or [str(self.folder)]), "--split", split]
        if data is None:
            data = ["--dataset", "PATH"] if POOL in self.spec.dataset.settings else []
        return shlex.join([*words, *(["--ensemble"] if names else []), *data])

    def logits(self, split: str) -> SplitLogits:
        """Return a split's logits, labels and indices, memory-mapped.

        Logits that an archive stored in half precision are decoded into a new float array
        (see `pack`).
        """
        tensors = self._split(split)
        logits = tensors["logits"]
        if "row_max" in tensors:
            peak = tensors["row_max"][:, None]
            logits = peak + logits.astype(peak.dtype)
        return SplitLogits(logits, tensors["target"], tensors.get("index"))

    def _split(self, split: str) -> dict[str, NDArray[Any]]:
        if split not in self.splits:
            there = ", ".join(self.splits) or "none"
            raise RunError(
                f"{self.folder} has no logits of the split {split!r} (there: {there}); "
                f"run: {self.evaluation(split)}"
            )
        return files.read_tensors(self.folder / logits_file(split))

    @property
    def head(self) -> Head | None:
        """Norms and bias of the last layer, or None if no split recorded them."""
        for split, entry in self.record["splits"].items():
            if entry["head"] is not None:
                tensors = self._split(split)
                return Head(tensors["head_norms"], tensors.get("head_bias"))
        return None

    def log(self) -> list[dict[str, Any]]:
        """Return the logged lines; a last line that a kill cut short is left out."""
        return read_log(self.folder / LOG)

    def model(self) -> dict[str, NDArray[Any]]:
        """Return the weights by name, memory-mapped."""
        if not self.has_model:
            how = "; pack it with --weights" if "packed" in self.record else ""
            raise RunError(f"{self.folder} has no {MODEL}{how}.")
        return files.read_tensors(self.folder / MODEL)

    def __repr__(self) -> str:
        state = "" if self.finished else ", unfinished"
        return f"Run({self.folder.as_posix()!r}, splits={list(self.splits)}{state})"


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a log; there may be no log yet."""
    if not path.exists():
        return []
    complete, _, _ = path.read_bytes().rpartition(b"\n")
    try:
        lines = [json.loads(line).items() for line in complete.splitlines()]
    except (ValueError, AttributeError) as error:
        raise RunError(f"{path} has a line that is not a JSON object: {error}.") from error
    return [
        {k: _NONFINITE.get(v, v) if isinstance(v, str) else v for k, v in line} for line in lines
    ]


def run_folders(root: Path | str) -> list[Path]:
    """Return every run folder at or up to two levels below `root`, or its folder ``runs``, by name.

    Args:
        root: a run folder, a data set's folder, a folder of runs, or one that has a folder
            ``runs`` in it, as `longtail demo` leaves it.

    Returns:
        Paths, finished or not, readable or not; `Run.open` says which.
    """
    root = Path(root)
    if not root.is_dir():
        raise RunError(
            f"there is no folder {root}; runs are made by `longtail train` or `longtail demo`."
        )
    # No deeper: below a folder of images there may be a million others.
    depths = ("", "*/", "*/*/", "runs/*/*/")
    found = {path.parent for depth in depths for path in root.glob(depth + RECORD)}
    return sorted(folder for folder in found if not files.is_temporary(folder))


def find_runs(root: Path | str, *, verify: bool = True, unfinished: bool = False) -> list[Run]:
    """Open the finished runs below a folder, in order of their folders' names.

    Args:
        root: as in `run_folders`.
        verify: as in `Run.open`.
        unfinished: also those that were interrupted.
    """
    found = [Run.open(folder, verify=verify, unfinished=True) for folder in run_folders(root)]
    return [run for run in found if run.finished or unfinished]


def same_data(runs: Iterable[Run], *, split: str | None = None) -> None:
    """Refuse runs that can't be compared: other training data, classes or evaluation labels.

    What was held out of the training data plays no part; the spec says that.

    Args:
        runs: the runs.
        split: also require this split's logits of every run.

    Raises:
        RunError: names the two runs and in what they differ.
    """
    opened = list(runs)
    if not opened:
        raise InputError("`runs` is empty; at least one run is needed.")
    first = opened[0]
    seen: dict[str, Run] = {}
    for run in opened:
        if run.prior.num_classes != first.prior.num_classes or run.data != first.data:
            how = "were trained on different data"
            if run.prior.num_classes != first.prior.num_classes:
                how = "have different numbers of classes"
            lines = [s for s in first.spec.difference(run.spec) if s.startswith("dataset.")]
            detail = f" ({'; '.join(lines)})" if lines else ""
            raise RunError(
                f"{first.folder} and {run.folder} {how}{detail}; compare runs of one data set."
            )
        for name in run.splits if split is None else (split,):
            if name not in run.splits:
                run.logits(name)  # says what is missing and how to make it
            other = seen.setdefault(name, run)
            mine, theirs = run.record["splits"][name], other.record["splits"][name]
            both = None not in (mine["data"], theirs["data"])
            if mine["target"] != theirs["target"] or (both and mine["data"] != theirs["data"]):
                raise judged_apart(other, run, name)


def judged_apart(one: Run, other: Run, split: str) -> RunError:
    """Return the error for two runs whose logits of a split are of different examples."""
    way_out = "compare runs of one held-out part"
    if split != "held-out":
        way_out = f"judge both again with `longtail evaluate RUN --split {split} --force`"
    return RunError(
        f"{one.folder} and {other.folder} have different examples in the split {split!r}; "
        f"{way_out}."
    )


def same_training(run: Run, fingerprint: str) -> None:
    """Refuse a run that was trained on other data than those with this fingerprint."""
    if run.data != fingerprint:
        what = "trained" if run.finished else "begun"
        raise RunError(
            f"{run.folder} was {what} on other data of the same name (fingerprint {run.data[:8]}, "
            f"now {fingerprint[:8]}); give another --out (root), or pass --force (force=True) to "
            f"train it again."
        )


def same_images(judged: Iterable[tuple[Run, str]], split: str) -> None:
    """Refuse runs whose logits of a split are of other images than the data are now.

    Args:
        judged: runs with logits of the split, each with the fingerprint of what the split is now.
        split: which.
    """
    stale = [run for run, now in judged if run.record["splits"][split]["data"] not in (None, now)]
    if stale:
        raise RunError(
            f"{listing((run.folder for run in stale), most=3)}: logits of the split {split!r} are "
            f"of other images than the data are now; write them again with `longtail evaluate "
            f"RUN --split {split} --force` (replace=True)."
        )
