"""Held-out logits, labels and training counts from what a command line names.

A run folder has all three; an .npz file has logits and target, and may have counts, norms and
bias; an .npy file has logits, and its labels come from a second one.
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import InputError

if TYPE_CHECKING:
    from longtail.priors import ClassPrior


@dataclass(frozen=True)
class HeldOut:
    """What was found; None where the source has no such thing."""

    logits: NDArray[Any]
    target: NDArray[Any]
    prior: ClassPrior | None = None
    norms: NDArray[Any] | None = None
    bias: NDArray[Any] | None = None


def read_held_out(path: Path, *, target: Path | None, split: str) -> HeldOut:
    """Logits and labels from a run folder, an .npz file, or a pair of .npy files."""
    if not path.exists():
        raise InputError(f"there is no file or run folder {path}.")
    if path.is_dir():
        return _from_run(path, split)
    if path.suffix == ".npz":
        return _from_npz(path, target)
    if path.suffix == ".npy":
        if target is None:
            raise InputError(
                f"{path} holds one array, the logits; name the labels' file with --target."
            )
        return HeldOut(load_array(path), load_array(target))
    raise InputError(
        f"{path} is none of a run folder, an .npz file with `logits` and `target`, or an .npy "
        f"file of logits."
    )


def _from_run(path: Path, split: str) -> HeldOut:
    from longtail.runs import Run

    run = Run.open(path)
    if split not in run.splits:
        raise InputError(
            f"{path} has no logits of the split {split!r}; there: "
            f"{', '.join(run.splits) or 'none'}. Choose one with --split, or run: "
            f"longtail evaluate {path} --split {split}"
        )
    logits, labels, _ = run.logits(split)
    head = run.head
    norms, bias = (None, None) if head is None else (head.norms, head.bias)
    return HeldOut(logits, labels, run.prior, norms, bias)


def _from_npz(path: Path, target: Path | None) -> HeldOut:
    from longtail.priors import ClassPrior

    arrays = load_npz(path)
    if target is not None:
        arrays["target"] = load_array(target)
    missing = [name for name in ("logits", "target") if name not in arrays]
    if missing:
        raise InputError(
            f"{path} must hold `logits` and `target`; it lacks {' and '.join(missing)} and has "
            f"{_checks.listing(sorted(arrays)) or 'nothing'}. Save it with "
            f"numpy.savez(file, logits=..., target=...)."
        )
    counts = arrays.get("counts")
    prior = None if counts is None else ClassPrior.from_counts(counts)
    return HeldOut(
        arrays["logits"], arrays["target"], prior, arrays.get("norms"), arrays.get("bias")
    )


def load_npz(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz file; pickled objects are refused."""
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is not an .npz file, or a damaged one; make it with numpy.savez.")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, zipfile.BadZipFile, EOFError, KeyError, zlib.error) as error:
        raise _unreadable(path, error) from error


def load_array(path: Path) -> NDArray[Any]:
    """The array of an .npy file, memory-mapped, or the numbers of a text file."""
    if not path.is_file():
        raise InputError(f"there is no file {path}.")
    try:
        if path.suffix == ".npy":
            with open(path, "rb") as file:
                if file.read(6) != b"\x93NUMPY":
                    raise ValueError("it is not an .npy file")
            return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
        return _numbers(path.read_text(encoding="utf-8"))
    except (ValueError, EOFError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> InputError:
    reason = str(error).rstrip(".")
    if "allow_pickle" in reason or "Array can't be memory-mapped" in reason:
        reason = "it holds Python objects, which are never loaded"
    return InputError(f"{path} can't be read as numbers: {reason}.")


def _numbers(text: str) -> NDArray[Any]:
    values = [float(word) for word in text.replace(",", " ").split()]
    if not values:
        raise ValueError("it is empty")
    whole = all(value.is_integer() for value in values)
    return np.array(values, dtype=np.int64 if whole else np.float64)


def read_prior(
    held_out: HeldOut, *, counts: str | None, train_labels: Path | None, smoothing: float
) -> ClassPrior:
    """The prior of the training data: from an option if there is one, else from the source."""
    from longtail.priors import ClassPrior

    if counts is not None and train_labels is not None:
        raise InputError("give either --counts or --train-labels, not both.")
    width = held_out.logits.shape[1] if held_out.logits.ndim == 2 else None
    if train_labels is not None:
        labels = load_array(train_labels)
        return ClassPrior.from_labels(labels, num_classes=width, smoothing=smoothing)
    if counts is not None:
        numbers = _counts(counts)
        if width is not None and len(numbers) != width:
            raise InputError(
                f"--counts has {len(numbers)} numbers but the logits have {width} columns; give "
                f"one number per class, 0 for a class without examples."
            )
        if not smoothing and np.any(numbers == 0) and np.any(numbers > 0):
            raise InputError(
                f"--counts: class(es) {_checks.listing(np.flatnonzero(numbers == 0))} have no "
                f"training examples, so log π is infinite; pass --smoothing 1 to count one more "
                f"example of every class."
            )
        return ClassPrior.from_counts(numbers, smoothing=smoothing)
    if held_out.prior is None:
        raise InputError(
            "the numbers of training examples per class are needed: pass --counts 900,90,10, "
            "--counts FILE or --train-labels FILE."
        )
    if smoothing and held_out.prior.counts is not None:
        return ClassPrior.from_weights(held_out.prior.counts, smoothing=smoothing)
    return held_out.prior


def _counts(text: str) -> NDArray[Any]:
    if Path(text).is_file():
        return load_array(Path(text))
    try:
        return _numbers(text)
    except ValueError as error:
        raise InputError(
            f"--counts must be numbers such as 900,90,10 or a file of them; there is no file "
            f"{text!r}."
        ) from error
