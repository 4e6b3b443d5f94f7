"""Run folders: read by `Run`, written by `RunWriter`; which of them exist, and which compare.

    runs/<dataset>/<method>-s<seed>-<hash8>/
        run.json                    spec, prior, versions, device, hashes, status
        log.jsonl                   one line per logged step or epoch
        logits-<split>.safetensors  logits, target, index; the head's norms and bias
        model.safetensors           the weights

`run.json` is written when the run starts, with the status "running", and again after each
file that belongs to the result; the status becomes "finished" last of all. So whatever a kill
or a full disk leaves behind is either whole or recognisably unfinished.
"""

from __future__ import annotations

import json
import logging
import math
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import InputError
from longtail.priors import ClassPrior
from longtail.runs import files
from longtail.runs.spec import POOL, RunSpec

FORMAT = 1
RECORD, LOG, MODEL = "run.json", "log.jsonl", "model.safetensors"
# The settings by which an ensemble names its runs, and a student those that it learnt from.
MEMBERS, TEACHERS = "runs", "teachers"
# Packages whose version a result may depend on.
_PACKAGES = ("longtail", "numpy", "scipy", "scikit-learn", "torch", "safetensors", "triton")
_logger = logging.getLogger("longtail")


class RunError(InputError):
    """Run folder missing, of a newer format, edited, or not the one asked for."""


class UnfinishedRunError(RunError):
    """Run folder half written, since its training was interrupted."""


class SplitLogits(NamedTuple):
    """Logits of a split, shape (examples, num_classes), and each example's label.

    `indices` are the examples' positions in their data set, or None if that was not recorded.
    """

    logits: NDArray[Any]
    target: NDArray[np.int64]
    indices: NDArray[np.int64] | None


class Head(NamedTuple):
    """Euclidean norm of each class's weights in the last layer, and its bias if it has one."""

    norms: NDArray[Any]
    bias: NDArray[Any] | None


logits_file = "logits-{}.safetensors".format  # of a split


def seal(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with a checksum of itself, by which an edit is recognised."""
    body = {key: value for key, value in record.items() if key != "checksum"}
    return {**body, "checksum": files.sha256(files.canonical_json(body).encode())}


class Run:
    """Run folder opened for reading; made by `Run.open`.

    Attributes:
        folder: its place.
        record: all of `run.json`.
        spec: of the run.
        name: ``<dataset>/<method>-s<seed>-<hash8>``, wherever the folder may lie.
        prior: class frequencies of the examples that it trained on.
        data: fingerprint of the training data.
        class_names: names of the classes, or None where they were not recorded.
        finished: True once training came to its end.
        splits: those whose logits are here.
        has_model: True if the weights are here (an archive may leave them out).
        members: names of the runs that an ensemble is the mean of; empty for any other run.
        teachers: names of the runs that a student learnt from; empty for any other run.
    """

    def __init__(self, folder: Path, record: Mapping[str, Any]) -> None:
        self.folder, self.record = folder, record
        self.spec = RunSpec.from_json(record["spec"])
        self.name = self.spec.folder.as_posix()
        counts, probs = np.asarray(record["prior"]["counts"]), record["prior"].get("probs")
        # Checked when it was written; smoothed ones have probabilities besides.
        self.prior = (
            ClassPrior._from_totals(counts, 0.0) if probs is None else ClassPrior(probs, counts)
        )
        self.data = str(record["data"])
        names = record.get("class_names")
        self.class_names: tuple[str, ...] | None = None if names is None else tuple(names)
        self.finished = record["status"] == "finished"
        self.splits: tuple[str, ...] = tuple(record["splits"])
        self.has_model = MODEL in record["files"]
        self.members: tuple[str, ...] = tuple(self.spec.settings.get(MEMBERS, ()))
        self.teachers: tuple[str, ...] = tuple(self.spec.settings.get(TEACHERS, ()))

    @classmethod
    def open(cls, folder: Path | str, *, verify: bool = True, unfinished: bool = False) -> Run:
        """Open a run folder.

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
        path = folder / RECORD
        if not path.is_file():
            raise RunError(
                f"{folder} is not a run folder: it has no {RECORD}; `longtail runs list` shows "
                f"those that exist, and saved predictions are judged by `longtail adjust`."
            )
        try:
            record: dict[str, Any] = files.read_json(path)
            newer, whole = record["format"] > FORMAT, record == seal(record)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise RunError(f"{path} can't be read: {error}") from error
        if newer:
            raise RunError(
                f"{path} has format {record['format']}, which is newer than this longtail reads "
                f"({FORMAT}); run: pip install --upgrade longtail"
            )
        if not whole:
            raise RunError(
                f"{path} was edited after it was written (its checksum does not match); "
                f"restore it or train again."
            )
        if record["status"] != "finished" and not unfinished:
            again = record.get("command") or "the command that began it"
            raise UnfinishedRunError(
                f"{folder} is half written: its training did not finish; resume it with: {again}"
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
        return cls(folder, record)

    def evaluation(self, split: str) -> str:
        """Return the command that writes a split's logits; an ensemble's are its members' mean."""
        names = [str(self.folder.parent.parent / name) for name in self.members]
        words = ["longtail", "evaluate", *(names or [str(self.folder)]), "--split", split]
        words += ["--ensemble"] if names else []
        words += ["--dataset", "PATH"] if POOL in self.spec.dataset.settings else []
        return shlex.join(words)

    def logits(self, split: str) -> SplitLogits:
        """Return a split's logits, labels and indices, memory-mapped.

        Logits that an archive stored in half precision are decoded (see `pack`).
        """
        if split not in self.splits:
            raise RunError(
                f"{self.folder} has no logits of the split {split!r} (there: "
                f"{', '.join(self.splits) or 'none'}); run: {self.evaluation(split)}"
            )
        tensors = files.read_tensors(self.folder / logits_file(split))
        logits = tensors["logits"]
        if "row_max" in tensors:
            peak = tensors["row_max"][:, None]
            logits = peak + logits.astype(peak.dtype)
        return SplitLogits(logits, tensors["target"], tensors.get("index"))

    @property
    def head(self) -> Head | None:
        """Norms and bias of the last layer, or None if no split recorded them."""
        for split, entry in self.record["splits"].items():
            if entry["head"] is not None:
                tensors = files.read_tensors(self.folder / logits_file(split))
                return Head(tensors["head_norms"], tensors.get("head_bias"))
        return None

    def log(self) -> list[dict[str, Any]]:
        """Return the logged lines; a last line that a kill cut short is left out."""
        text = ("NaN", "Infinity", "-Infinity")  # of numbers that JSON does not have
        return [
            {key: float(value) if value in text else value for key, value in line.items()}
            for line in map(json.loads, _log_lines(self.folder))
        ]

    def model(self) -> dict[str, NDArray[Any]]:
        """Return the weights by name, memory-mapped."""
        if not self.has_model:
            how = "; pack it with --weights" if "packed" in self.record else ""
            raise RunError(f"{self.folder} has no {MODEL}{how}.")
        return files.read_tensors(self.folder / MODEL)

    def __repr__(self) -> str:
        state = "" if self.finished else ", unfinished"
        return f"Run({self.folder.as_posix()!r}, splits={list(self.splits)}{state})"


def _log_lines(folder: Path) -> list[bytes]:
    """Return the complete lines of a log; there may be no log yet."""
    path = folder / LOG
    return [line for line in path.open("rb") if line.endswith(b"\n")] if path.exists() else []


def run_folders(root: Path | str) -> list[Path]:
    """Return every run folder at or up to two levels below `root`, or its folder ``runs``, by name.

    So `root` may be a run folder, a data set's folder, a folder of runs, or one that has a folder
    ``runs`` in it, as `longtail demo` leaves it. Runs may be unfinished or unreadable.
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
    """Open the finished runs that `run_folders` finds, in its order; options as in `Run.open`."""
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
    first, seen = opened[0], dict[str, Run]()
    for run in opened:
        if run.data != first.data:
            lines = [s for s in first.spec.difference(run.spec) if s.startswith("dataset.")]
            detail = f" ({'; '.join(lines)})" if lines else ""
            raise RunError(
                f"{first.folder} and {run.folder} were trained on different data{detail}; compare "
                f"runs of one data set."
            )
        for name in run.splits if split is None else (split,):
            if name not in run.splits:
                run.logits(name)  # says what is missing and how to make it
            other = seen.setdefault(name, run)
            mine, theirs = (one.record["splits"][name] for one in (run, other))
            images = {mine["data"], theirs["data"]} - {None}
            if mine["target"] != theirs["target"] or len(images) > 1:
                raise RunError(
                    f"{other.folder} and {run.folder} have different examples in the split "
                    f"{name!r}; compare runs that were judged on the same ones, or judge both "
                    f"again: `longtail evaluate RUN --split {name} --force`."
                )


def same_training(run: Run, fingerprint: str) -> None:
    """Refuse a run that was trained on other data than those with this fingerprint."""
    if run.data != fingerprint:
        what = "trained" if run.finished else "begun"
        raise RunError(
            f"{run.folder} was {what} on other data of the same name (fingerprint {run.data[:8]}, "
            f"now {fingerprint[:8]}); train into another folder of runs, or pass "
            f"`force=True` to train it again."
        )


def same_images(run: Run, fingerprint: str, *, split: str) -> None:
    """Refuse a run whose logits of a split are of other images than those with this fingerprint."""
    if run.record["splits"][split]["data"] not in (None, fingerprint):
        raise RunError(
            f"{run.folder}: logits of the split {split!r} are of other images than the data are "
            f"now; write them again with `longtail evaluate RUN --split {split} --force`."
        )


@dataclass
class RunWriter:
    """Writes a run folder. Make one with `create`, `resume` or `reopen`.

    Every method leaves the folder whole: what it wrote is on the disk under its final name,
    and listed with its hash, before it returns.

    Examples:
        >>> import tempfile
        >>> spec = RunSpec("digits-lt", "mlp", "softmax", "digits")
        >>> root = tempfile.TemporaryDirectory()
        >>> writer = RunWriter.create(
        ...     root.name, spec, prior=ClassPrior.from_counts([90, 10]), data="fingerprint"
        ... )
        >>> writer.log(epoch=0, loss=0.7)
        >>> writer.write_logits("test", [[2.0, 1.0]], [0], norms=[1.0, 0.5])
        >>> run = writer.finish()
        >>> run.splits, run.log(), run.logits("test").target.tolist()
        (('test',), [{'epoch': 0, 'loss': 0.7}], [0])
        >>> root.cleanup()
    """

    folder: Path
    _record: dict[str, Any]
    _started: float = field(default_factory=time.monotonic)

    @classmethod
    def create(
        cls,
        root: Path | str,
        spec: RunSpec,
        *,
        prior: ClassPrior,
        data: str,
        device: str = "cpu",
        command: str | None = None,
        class_names: Sequence[str] | None = None,
        force: bool = False,
    ) -> RunWriter:
        """Start a run in ``root / spec.folder``.

        Args:
            root: the folder of runs.
            spec: everything that decides the result.
            prior: of the examples that the model trains on, with counts.
            data: fingerprint of the training data, before anything is held out of it.
            device: of the training, as text.
            command: resumes this run; for messages.
            class_names: one per class, for reports.
            force: delete a run that is there already.
        """
        folder, counts = Path(root) / spec.folder, prior.counts
        if counts is None:
            raise InputError(
                "`prior` must carry the numbers of training examples; make it with "
                "ClassPrior.from_counts or .from_labels."
            )
        known: dict[str, Any] = {"counts": counts.tolist()}
        if not np.array_equal(counts / counts.sum(), prior.probs):  # smoothed
            known["probs"] = prior.probs.tolist()
        record = {
            "format": FORMAT,
            "status": "running",
            "spec": spec.to_json(),
            "prior": known,
            "data": str(data),
            "class_names": None if class_names is None else list(map(str, class_names)),
            "command": command,
            **_machine(device),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "resumed": [],
            "seconds": None,
            "splits": {},
            "files": {},
        }
        if folder.exists():
            files.remove_leftovers(folder)
            if any(folder.iterdir()) and not force:
                raise RunError(
                    f"{folder} exists already; resume or open it, or pass `force=True` to "
                    f"train it again."
                )
            (folder / RECORD).unlink(missing_ok=True)  # first: a kill then leaves no run at all
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        writer = cls(folder, record)
        writer._save()
        return writer

    @classmethod
    def resume(cls, folder: Path | str, spec: RunSpec, *, device: str = "cpu") -> RunWriter:
        """Take up an interrupted run of the same spec.

        Files that were written stay; which log lines to keep is for the caller to say, see
        `rewind_log`. `device` is what it runs on now.
        """
        run = Run.open(folder, verify=False, unfinished=True)
        folder, record = run.folder, dict(run.record)
        if spec.hash8 != run.spec.hash8:
            raise RunError(
                f"{folder} has another spec, so it can't be resumed: "
                f"{'; '.join(run.spec.difference(spec))} (the folder's against yours)."
            )
        if run.finished:
            raise RunError(f"{folder} is finished; there is nothing to resume.")
        files.remove_leftovers(folder)
        now = _machine(device)
        before, threads = record.get("threads"), now["threads"]
        if device == "cpu" and None not in (before, threads) and before != threads:
            _logger.warning(
                "%s was begun with %d threads and goes on with %d: the last bits of its weights "
                "may differ from those of a run that was not interrupted; OMP_NUM_THREADS=%d "
                "keeps them",
                *(folder, before, threads, before),
            )
        writer = cls(folder, record)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        writer._save(resumed=[*record["resumed"], {"at": at, **now}])
        return writer

    @classmethod
    def reopen(cls, folder: Path | str) -> RunWriter:
        """Open a finished run to add the logits of another split."""
        run = Run.open(folder, verify=False)
        return cls(run.folder, dict(run.record))

    def log(self, **values: Any) -> None:
        """Append one line to the log; NaN and infinity are kept, as text."""
        for key, value in values.items():
            if getattr(value, "ndim", None) == 0:
                value = value.item()
            odd = isinstance(value, float) and not math.isfinite(value)
            values[key] = json.dumps(value) if odd else value
        with open(self.folder / LOG, "ab") as file:
            file.write(json.dumps(values, ensure_ascii=False, allow_nan=False).encode() + b"\n")

    def rewind_log(self, keep: Callable[[dict[str, Any]], bool]) -> None:
        """Keep only the log lines that `keep` says yes to, such as those before a checkpoint."""
        lines = [line for line in _log_lines(self.folder) if keep(json.loads(line))]
        files.write_bytes(self.folder / LOG, b"".join(lines))

    def write_logits(
        self,
        split: str,
        logits: Any,
        target: Any,
        *,
        indices: Any = None,
        norms: Any = None,
        bias: Any = None,
        data: str | None = None,
        replace: bool = False,
    ) -> None:
        """Write a split's logits and labels, once.

        If that fails, the run has the split's old logits, the new ones, or none.

        Args:
            split: its name, such as ``test`` or ``held-out``.
            logits: shape (examples, num_classes), finite.
            target: labels, shape (examples,).
            indices: position of each example in its data set, shape (examples,).
            norms: Euclidean norm of each class's weights in the last layer,
                shape (num_classes,); weight normalization needs them.
            bias: of the last layer, shape (num_classes,); only beside `norms`.
            data: fingerprint of the split's examples.
            replace: write again what is there already.
        """
        splits, listed = dict(self._record["splits"]), dict(self._record["files"])
        name, classes = logits_file(split), len(self._record["prior"]["counts"])
        there = splits.pop(split, None) is not None
        listed.pop(name, None)
        if there and not replace:
            raise RunError(
                f"{self.folder} has the logits of the split {split!r} already; pass "
                f"`replace=True` to write them again."
            )
        scores = _checks.matrix(logits)
        if scores.shape[1] != classes:
            raise InputError(
                f"`logits` has {scores.shape[1]} columns but the run has {classes} classes."
            )
        if scores.dtype.kind != "f":
            scores = scores.astype(np.float64)
        tensors = {"logits": scores, "target": _checks.labels(target, num_classes=classes)}
        if indices is not None:
            tensors["index"] = _checks.labels(indices, name="indices")
        for key, values in tensors.items():
            _checks.same_length(scores, values, name=key)
        head = {"head_norms": norms, "head_bias": bias} if norms is not None else {}
        head = {key: _checks.as_numpy(found) for key, found in head.items() if found is not None}
        for other, entry in splits.items():
            if head and entry["head"] is not None:
                theirs = files.read_tensors(self.folder / logits_file(other))["head_norms"]
                # Another machine may add the norms up in another order.
                if not np.allclose(head["head_norms"], theirs, rtol=1e-9):
                    raise InputError(
                        f"the head's `norms` differ from those stored with the split {other!r}, "
                        f"so these logits come from other weights."
                    )
        if there:  # unlisted first: a kill must not look like an edit
            self._save(splits=splits, files=listed)
        files.write_tensors(self.folder / name, tensors | head)
        entry = {
            "examples": len(scores),
            "dtype": scores.dtype.name,
            "target": files.fingerprint(tensors["target"]),
            "data": data,
            "head": files.fingerprint(*head.values()) if head else None,
        }
        listed[name] = files.sha256(self.folder / name)
        self._save(splits={**splits, split: entry}, files=listed)

    def write_model(self, tensors: Mapping[str, Any]) -> None:
        """Write the weights by name (NumPy arrays or torch tensors)."""
        files.write_tensors(self.folder / MODEL, tensors)
        digest = files.sha256(self.folder / MODEL)
        self._save(files={**self._record["files"], MODEL: digest})

    def finish(self, *, seconds: float | None = None, **facts: Any) -> Run:
        """Declare the run finished, and open it.

        Args:
            seconds: training time; without it, the time since this writer was made.
            facts: anything else worth recording, such as ``parameters=464154``.
        """
        listed = dict(self._record["files"])
        if lines := _log_lines(self.folder):
            files.write_bytes(self.folder / LOG, b"".join(lines))  # on the disk, without a torn one
            listed[LOG] = files.sha256(self.folder / LOG)
        taken = time.monotonic() - self._started if seconds is None else seconds
        self._save(
            files=listed,
            seconds=float(taken),
            **({"facts": facts} if facts else {}),
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            status="finished",
        )
        return Run.open(self.folder, verify=False)

    def _save(self, **changes: Any) -> None:
        record = seal({**self._record, **changes})
        files.write_bytes(self.folder / RECORD, f"{files.readable_json(record)}\n".encode())
        self._record = record


def _machine(device: str) -> dict[str, Any]:
    """Return what a run's record says of where it runs: the last bits of sums depend on it."""
    torch = sys.modules.get("torch")
    threads = None if torch is None else int(torch.get_num_threads())
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    for name in _PACKAGES:  # none is imported for it
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {"device": str(device), "threads": threads, "versions": versions}
