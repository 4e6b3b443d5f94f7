"""Checkpoints of a run, in its folder: tensors in safetensors, the rest in JSON.

    checkpoint-000012.safetensors   what training changes, after 12 epochs
    checkpoint-000012.json          epochs done, seconds so far, the tensors' hash

The JSON is written last and names the hash, so a checkpoint counts only if it is whole. The two
newest are kept: if the newest was damaged since, training goes on from the one before.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from longtail import _checks

_checks.require("torch", extra="torch")

import torch
from torch import Tensor

from longtail._checks import InputError
from longtail.runs import files
from longtail.runs.folder import RunError

logger = logging.getLogger("longtail")

_NAME = re.compile(r"checkpoint-(\d{6,})\.json")
_KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """A run after some epochs.

    Attributes:
        epochs: how many are done.
        seconds: training time until then.
        tensors: everything that training changes, by name.
    """

    epochs: int
    seconds: float
    tensors: dict[str, Tensor]


def save(folder: Path, tensors: Mapping[str, Tensor], *, epochs: int, seconds: float) -> None:
    """Write a checkpoint, then delete all but it and the one before.

    Args:
        folder: the run's.
        tensors: everything that training changes, by name.
        epochs: how many are done.
        seconds: training time until now.
    """
    path = folder / f"checkpoint-{epochs:06d}.safetensors"
    record = path.with_suffix(".json")
    record.unlink(missing_ok=True)  # of an attempt before: it must not vouch for the new tensors
    files.write_tensors(path, tensors)
    files.write_json(record, {"epochs": epochs, "seconds": seconds, "sha256": files.sha256(path)})
    records = _records(folder)
    here = records.index(record)
    for other in records[:here] + records[here + _KEPT :]:  # later ones are damaged: it went back
        _delete(other)


def latest(folder: Path) -> Checkpoint | None:
    """Return the newest whole checkpoint, or None; a damaged one is passed over with a warning."""
    records = _records(folder)
    for record in records:
        try:
            return _read(record)
        except (InputError, OSError, KeyError, TypeError, ValueError) as error:
            last = record == records[-1]
            logger.warning(
                "%s can't be used (%s); %s.",
                record.with_suffix(".safetensors"),
                str(error).rstrip("."),
                "training begins again" if last else "going back to the one before",
            )
    return None


def epochs_done(folder: Path) -> int:
    """The epochs that the newest checkpoint has behind it, by its name; 0 without one."""
    records = _records(folder) if folder.is_dir() else []
    return int(records[0].stem.split("-")[1]) if records else 0


def check_fits(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor], *, folder: Path) -> None:
    """Refuse tensors of another network than a run's own, naming what differs."""
    wrong = [f"{name} is missing" for name in own if name not in tensors]
    wrong += [f"{name} is unknown" for name in tensors if name not in own]
    wrong += [
        f"{name} has shape {tuple(tensors[name].shape)}, not {tuple(value.shape)}"
        for name, value in own.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise RunError(
            f"{folder}: its checkpoint is of another network: {'; '.join(wrong[:3])}{more}. Put "
            f"the right one there, or pass --force (force=True) to begin again."
        )


def delete_all(folder: Path) -> None:
    """Delete a finished run's checkpoints."""
    for record in _records(folder):
        _delete(record)
    for rest in folder.glob("checkpoint-*.safetensors"):  # whose record was never written
        rest.unlink()


def as_tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Copies of a file's arrays, which are read-only maps that torch can't take."""
    return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}


def _read(record: Path) -> Checkpoint:
    found = files.read_json(record)
    path = record.with_suffix(".safetensors")
    if files.sha256(path) != found["sha256"]:
        raise InputError("its content is not what was written")
    tensors = as_tensors(files.read_tensors(path))
    return Checkpoint(int(found["epochs"]), float(found["seconds"]), tensors)


def _records(folder: Path) -> list[Path]:
    """The records of all checkpoints, newest first."""
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.stem.split("-")[1]), reverse=True)


def _delete(record: Path) -> None:
    record.unlink()
    record.with_suffix(".safetensors").unlink(missing_ok=True)
