"""What went wrong in training, in words; and whether a run has left the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from longtail import _checks

_checks.require("torch", extra="torch", caller=__name__)

import torch
from torch import Tensor

from longtail.runs import RunError

_UNLOST = "Nothing written is lost: the same command goes on from the last checkpoints."


def all_finite(tensors: Mapping[str, Tensor]) -> bool:
    """Whether weights hold neither infinity nor NaN.

    Examples:
        >>> all_finite({"a": torch.ones(2), "b": torch.arange(2)})
        True
        >>> all_finite({"a": torch.tensor([1.0, float("inf")])})
        False
    """
    return all(bool(torch.isfinite(value).all()) for value in tensors.values())


@contextmanager
def explained(runs: int = 0, *, on_disk: bool = False) -> Iterator[None]:
    """Turn the failure of a GPU into words on what it cost and what to do.

    Args:
        runs: how many share it.
        on_disk: whether their images are.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        what = f"{runs} runs at once; train fewer together (--together N, together=N)."
        if runs < 2:
            what = "the data and a run; override batch_size with a smaller one, or train on a CPU."
        if on_disk:
            what = (
                "a part of the batch; take it in smaller ones (--micro-batch N, "
                "Streaming(micro_batch=N))."
            )
        raise RunError(f"train: the GPU's memory does not hold {what} {_UNLOST}") from error
    except RuntimeError as error:
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            said = " ".join(str(error).splitlines()[:2]).rstrip(". ")
            raise RunError(
                f"train: torch.compile failed: {said}. Train without it (--no-compile, "
                f"Streaming(compile=False))."
            ) from error
        if "CUDA" not in str(error) and "cuda" not in str(error):
            raise
        raise RunError(f"train: the GPU failed: {str(error).splitlines()[0]} {_UNLOST}") from error
