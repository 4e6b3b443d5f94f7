"""Run folders, written: each file whole or absent, `run.json` telling how far it got.

The folder's layout is described in `folder`.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import InputError
from longtail.priors import ClassPrior
from longtail.runs import files
from longtail.runs.folder import (
    FORMAT,
    LOG,
    MODEL,
    RECORD,
    Run,
    RunError,
    logits_file,
    read_log,
    read_record,
    seal,
)
from longtail.runs.spec import RunSpec

_HEAD = ("head_norms", "head_bias")
_logger = logging.getLogger("longtail")


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

    def __init__(self, folder: Path, record: dict[str, Any]) -> None:
        self.folder = folder
        self._record = record
        self._started = time.monotonic()

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
            spec: what decides the result.
            prior: of the examples that the model trains on, with counts.
            data: fingerprint of the training data, before anything is held out of it.
            device: what it runs on, in words.
            command: what to type to resume this run, for messages.
            class_names: one per class, for reports.
            force: delete a run that is there already.

        Returns:
            The writer.
        """
        folder = Path(root) / spec.folder
        counts = _checks.prior(prior).counts
        if counts is None:
            raise InputError(
                "`prior` must carry the numbers of training examples; make it with "
                "ClassPrior.from_counts or .from_labels."
            )
        smoothed = not np.array_equal(counts / counts.sum(), prior.probs)
        names = None if class_names is None else [str(name) for name in class_names]
        if names is not None and len(names) != prior.num_classes:
            raise InputError(
                f"`class_names` has {len(names)} names for {prior.num_classes} classes."
            )
        record = {
            "format": FORMAT,
            "status": "running",
            "spec": spec.to_json(),
            "prior": {
                "counts": counts.tolist(),
                **({"probs": prior.probs.tolist()} if smoothed else {}),
            },
            "data": str(data),
            "class_names": names,
            "command": command,
            "device": str(device),
            "threads": _threads(),
            "versions": files.versions(),
            "created": _now(),
            "resumed": [],
            "seconds": None,
            "splits": {},
            "files": {},
        }
        if folder.exists():
            files.remove_leftovers(folder)
            if any(folder.iterdir()) and not force:
                raise RunError(
                    f"{folder} exists already; resume or open it, or pass --force (force=True) "
                    f"to train it again."
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

        Files that were written stay; temporary leftovers of a killed writer are removed. Which
        log lines to keep is the caller's to say, see `rewind_log`.

        Args:
            folder: the run's folder.
            spec: must decide the same result as the run's own.
            device: what it runs on now.
        """
        folder = Path(folder)
        writer = cls(folder, read_record(folder))
        there = RunSpec.from_json(writer._record["spec"])
        if spec.identity != there.identity:
            raise RunError(
                f"{folder} has another spec, so it can't be resumed: "
                f"{'; '.join(there.difference(spec))} (the folder's against yours)."
            )
        if writer.finished:
            raise RunError(f"{folder} is finished; there is nothing to resume.")
        files.remove_leftovers(folder)
        before, threads = writer._record.get("threads"), _threads()
        if device == "cpu" and None not in (before, threads) and before != threads:
            _logger.warning(
                "%s was begun with %d threads and goes on with %d: the last bits of its weights "
                "may differ from those of a run that was not interrupted; OMP_NUM_THREADS=%d "
                "keeps them",
                *(folder, before, threads, before),
            )
        now: dict[str, Any] = {"at": _now(), "device": str(device), "threads": threads}
        now |= {"versions": files.versions()}
        writer._save(resumed=[*writer._record["resumed"], now])
        return writer

    @classmethod
    def reopen(cls, folder: Path | str) -> RunWriter:
        """Open a finished run to add the logits of another split."""
        run = Run.open(folder, verify=False)
        return cls(run.folder, dict(run.record))

    @property
    def finished(self) -> bool:
        """True once the run's training has ended."""
        return bool(self._record["status"] == "finished")

    def log(self, **values: Any) -> None:
        """Append one line to the log; NaN and infinity are kept, as text."""
        self._refuse_if_finished()
        with open(self.folder / LOG, "ab") as file:
            file.write(_log_line(values))

    def rewind_log(self, keep: Callable[[dict[str, Any]], bool]) -> None:
        """Keep only the log lines that `keep` says yes to, such as those before a checkpoint."""
        self._refuse_if_finished()
        lines = [_log_line(line) for line in read_log(self.folder / LOG) if keep(line)]
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
            bias: of the last layer, shape (num_classes,).
            data: fingerprint of the split's examples.
            replace: write again what is there already.
        """
        before, name = self._record, logits_file(split)
        if split in before["splits"] and not replace:
            raise RunError(
                f"{self.folder} has the logits of the split {split!r} already; pass --force "
                f"(replace=True) to write them again."
            )
        classes = len(before["prior"]["counts"])
        tensors = _logits_tensors(logits, target, indices, norms, bias, classes=classes)
        head = [tensors[key] for key in _HEAD if key in tensors]
        entry: dict[str, Any] = {
            "examples": len(tensors["target"]),
            "dtype": tensors["logits"].dtype.name,
            "target": files.fingerprint(tensors["target"]),
            "data": data,
            "head": files.fingerprint(*head) if head else None,
        }
        others = {key: value for key, value in before["splits"].items() if key != split}
        self._refuse_other_head(others, entry["head"], tensors)
        listed = {key: value for key, value in before["files"].items() if key != name}
        with files.atomic_path(self.folder / name) as temporary:
            files.save_tensors(temporary, tensors)
            digest = files.sha256(temporary)
            if split in before["splits"]:  # unlisted first: a kill must not look like an edit
                self._save(splits=others, files=listed)
        self._save(splits={**others, split: entry}, files={**listed, name: digest})

    def _refuse_other_head(
        self, splits: Mapping[str, Any], head: str | None, tensors: Mapping[str, NDArray[Any]]
    ) -> None:
        """Refuse logits whose head differs from another split's: they are of other weights."""
        for other, entry in splits.items():
            if None in (head, entry["head"]) or head == entry["head"]:
                continue
            theirs = files.read_tensors(self.folder / logits_file(other))
            for name in _HEAD:
                one, two = tensors.get(name), theirs.get(name)
                # Another machine may add the norms up in another order.
                same = one is two if one is None or two is None else np.allclose(one, two, 1e-9)
                if not same:
                    raise InputError(
                        f"the head's `norms` or `bias` differ from those stored with the split "
                        f"{other!r}, so these logits come from other weights."
                    )

    def write_model(self, tensors: Mapping[str, Any]) -> None:
        """Write the weights by name (NumPy arrays or torch tensors)."""
        self._refuse_if_finished()
        files.write_tensors(self.folder / MODEL, tensors)
        digest = files.sha256(self.folder / MODEL)
        self._save(files={**self._record["files"], MODEL: digest})

    def finish(self, *, seconds: float | None = None, **facts: Any) -> Run:
        """Declare the run finished.

        Args:
            seconds: training time; without it, the time since this writer was made.
            facts: anything else worth recording, such as ``parameters=464154``.

        Returns:
            The finished run.
        """
        self._refuse_if_finished()
        listed = dict(self._record["files"])
        if (self.folder / LOG).exists():
            self.rewind_log(lambda line: True)  # puts it on the disk, without a torn line
            listed[LOG] = files.sha256(self.folder / LOG)
        taken = time.monotonic() - self._started if seconds is None else seconds
        self._save(
            files=listed,
            seconds=float(taken),
            **({"facts": facts} if facts else {}),
            finished=_now(),
            status="finished",
        )
        return Run.open(self.folder, verify=False)

    def _save(self, **changes: Any) -> None:
        record = seal({**self._record, **changes})
        files.write_json(self.folder / RECORD, record)
        self._record = record

    def _refuse_if_finished(self) -> None:
        if self.finished:
            raise RunError(f"{self.folder} is finished.")


def _log_line(values: Mapping[str, Any]) -> bytes:
    """Return values as JSON; non-finite numbers, which a diverging loss may be, as text."""
    kept = {}
    for key, value in values.items():
        if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
            value = value.item()
        if isinstance(value, float) and not math.isfinite(value):
            value = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        kept[key] = value
    return (json.dumps(kept, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _logits_tensors(
    logits: Any, target: Any, indices: Any, norms: Any, bias: Any, *, classes: int
) -> dict[str, NDArray[Any]]:
    scores = _checks.matrix(logits)
    if scores.shape[1] != classes:
        raise InputError(
            f"`logits` has {scores.shape[1]} columns but the run has {classes} classes."
        )
    if scores.dtype.kind != "f":
        scores = scores.astype(np.float64)
    labels = _checks.labels(target, num_classes=classes)
    _checks.same_length(scores, labels)
    tensors: dict[str, NDArray[Any]] = {"logits": scores, "target": labels}
    if indices is not None:
        tensors["index"] = _checks.labels(indices, name="indices")
        _checks.same_length(tensors["index"], labels, name="indices")
    for name, values in (("norms", norms), ("bias", bias)):
        if values is not None:
            array = _checks.per_class(values, name=name)
            _checks.all_finite(array, name=name)
            _checks.width(array, classes, name=name)
            tensors[f"head_{name}"] = array
    if bias is not None and norms is None:
        raise InputError("`bias` needs the head's `norms` beside it.")
    return tensors


def _threads() -> int | None:
    """Return torch's number of threads, on which the last bits of a sum depend; None without it."""
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
