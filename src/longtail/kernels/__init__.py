"""Optional Triton kernels; beside each, torch operations stay the reference.

    cross_entropy  logits, target, margins -> loss, at the cost of the memory traffic
    norm_act       batch norm, residual and ReLU in one, forward and backward
    grouped_conv   3 × 3 convolutions of several networks side by side

Nothing here imports Triton before a kernel is launched, and nothing elsewhere needs it.
"""

from __future__ import annotations

import importlib.util
import os

from longtail import _checks

_checks.require("torch", extra="torch")

import torch

# Looked up once, since every call asks. The kernels need the Triton that came with torch 2.11.
_INSTALLED = torch.__version__ >= (2, 11) and importlib.util.find_spec("triton") is not None  # type: ignore[operator]


def interpreted() -> bool:
    """Return whether Triton runs in its interpreter, on the CPU, as in the tests."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("0", "")


def available(device: torch.device | str = "cuda") -> bool:
    """Return whether the kernels can run on `device`: a CUDA GPU with Triton installed.

    Examples:
        >>> available("meta")
        False
    """
    kind = torch.device(device).type
    if not _INSTALLED:
        return False
    return kind == "cpu" if interpreted() else kind == "cuda" and torch.version.hip is None
