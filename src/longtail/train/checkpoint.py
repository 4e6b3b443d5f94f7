"""Checkpoints of a run, in its folder: tensors in safetensors, the rest in JSON.

    checkpoint-000012.safetensors   what training changes, after 12 epochs
    checkpoint-000012.json          epochs done, seconds so far, the tensors' hash

The JSON is written last and names the hash, so a checkpoint counts only if it is whole. The two
newest are kept: if the newest was damaged since, training goes on from the one before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from longtail._checks import InputError
from longtail.runs import files

logger = logging.getLogger("longtail")

_KEPT = 2


class Checkpoint(NamedTuple):
    """A run after some epochs: how many, the seconds they took, and all that training changes."""

    epochs: int
    seconds: float
    tensors: dict[str, Tensor]


def save(folder: Path, tensors: Mapping[str, Tensor], *, epochs: int, seconds: float) -> None:
    """Write a checkpoint, then delete all but it and the one before."""
    path = folder / f"checkpoint-{epochs:06d}.safetensors"
    record = path.with_suffix(".json")
    record.unlink(missing_ok=True)  # of an attempt before: it must not vouch for the new tensors
    files.write_tensors(path, tensors)
    files.write_json(record, {"epochs": epochs, "seconds": seconds, "sha256": files.sha256(path)})
    records = _records(folder)
    here = records.index(record)
    for other in records[:here] + records[here + _KEPT :]:  # later ones are damaged: it went back
        other.unlink()
        other.with_suffix(".safetensors").unlink(missing_ok=True)


def latest(folder: Path) -> Checkpoint | None:
    """Return the newest whole checkpoint, or None; a damaged one is passed over with a warning."""
    records = _records(folder)
    for record in records:
        path = record.with_suffix(".safetensors")
        try:
            found = files.read_json(record)
            if files.sha256(path) != found["sha256"]:
                raise InputError("its content is not what was written")
            tensors = as_tensors(files.read_tensors(path))
            return Checkpoint(int(found["epochs"]), float(found["seconds"]), tensors)
        except (InputError, OSError, KeyError, TypeError, ValueError) as error:
            last = record == records[-1]
            then = "training begins again" if last else "going back to the one before"
            logger.warning("%s can't be used (%s); %s.", path, str(error).rstrip("."), then)
    return None


def epochs_done(folder: Path) -> int:
    """Return how many epochs the newest checkpoint has behind it, by its name; 0 without one."""
    return max((_epochs(path) for path in _records(folder)), default=0)


def delete_all(folder: Path) -> None:
    """Delete a finished run's checkpoints, whole or not."""
    for path in sorted(folder.glob("checkpoint-*")):  # records before the tensors that they name
        path.unlink(missing_ok=True)


def as_tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Return copies of a file's arrays, which are read-only maps that torch can't take."""
    return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}


def _records(folder: Path) -> list[Path]:
    """Return the records of all checkpoints, newest first."""
    return sorted(folder.glob("checkpoint-*.json"), key=_epochs, reverse=True)


def _epochs(path: Path) -> int:
    return int(path.stem.split("-")[1])
