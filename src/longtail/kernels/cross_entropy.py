"""Cross-entropy with a bias and a lowered target, by one Triton kernel: for logits on a GPU.

Where the loss is reduced, one launch computes it and writes the gradient. Float16 logits,
``reduction="none"`` and evaluation take a launch for the losses and, where there is a backward
pass, another for the gradient. Under `torch.compile` and `torch.func` torch's own operations are
the better way, which `worthwhile` says.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from longtail.kernels import _INSTALLED, interpreted
from longtail.kernels._inputs import refuse_second_derivative
from longtail.kernels._launch import given, launch

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# From so many logits on, the kernel's eager step is shorter than torch's (H200; bench_losses.py).
# Below it, both are bound by the host.
FEWEST = 3 << 23
NARROWEST = 256  # columns; with fewer, a program for each row leaves most of its threads idle
WIDE = 8192  # columns; longer rows are cut into slices, one for a program
_LOG2E = 1.4426950408889634


def worthwhile(logits: Tensor) -> bool:
    """Return whether the kernel makes an eager training step faster than torch's own operations.

    Examples:
        >>> worthwhile(torch.zeros(4096, 8142))  # on a CPU
        False
    """
    return (
        logits.is_cuda
        and logits.ndim == 2
        and logits.numel() >= FEWEST
        and logits.size(1) >= NARROWEST
        and logits.dtype in DTYPES
        and logits.stride(1) == 1
        and type(logits) in (Tensor, torch.nn.Parameter)
        and _INSTALLED
        and torch.version.hip is None
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
    )


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    lower: Tensor | None = None,
    scale: float = 1.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "none",
    mean_weight: Tensor | None = None,
) -> Tensor:
    """Return w_y · CE(z, y) with z_j = s·(f_j + b_j), the target's lowered by s·a_y.

    Args:
        logits: f, shape (N, C), bfloat16, float16 or float32, on a CUDA device.
        target: y, shape (N,), int64 or int32. A label out of range is a device-side assertion, as
            in torch's own cross-entropy.
        bias: b, shape (C,), float32. No gradient flows into it, `lower` or the weights.
        lower: a, shape (C,), float32; without label smoothing.
        scale: s.
        weight: w, shape (C,), float32; without label smoothing.
        ignore_index: rows with this label count for nothing.
        label_smoothing: ε, with torch's meaning.
        reduction: "none", "sum", or "mean": the sum over Σ v_y of the rows that count.
        mean_weight: v, shape (C,), float32; None for ones.

    Returns:
        The loss in float32, shape (N,) or a scalar. A sum or mean that is scaled afterwards costs
        one pass over the gradient more: "mean" saves dividing a sum.
    """
    index, share = counted_rows(target, weight, ignore_index)
    divisor = None
    if reduction == "mean":
        like = (
            share if mean_weight is weight else counted_rows(target, mean_weight, ignore_index)[1]
        )
        divisor = like.sum()
    learns = torch.is_grad_enabled() and logits.requires_grad
    options = (bias, lower, scale, label_smoothing)
    return _CrossEntropy.apply(logits, index, share, divisor, options, reduction, learns)  # type: ignore[no-any-return, no-untyped-call]


def counted_rows(target: Tensor, weight: Tensor | None, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Return labels with 0 for rows that don't count, and w_y of each row, 0 for those."""
    kept = target != ignore_index
    index = target * kept
    return index, kept.float() if weight is None else weight[index] * kept


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        index: Tensor,
        share: Tensor,
        divisor: Tensor | None,
        options: tuple[Any, ...],
        reduction: str,
        learns: bool,
    ) -> Tensor:
        # A float16 gradient underflows unless the loss scale is in it from the start.
        later = learns and (reduction == "none" or logits.dtype == torch.float16)
        ctx.later, coefficient, grad = None, share, None
        if divisor is not None:  # where nothing counts the mean is NaN, its gradient 0
            share = share / divisor
            coefficient = share.nan_to_num(0.0)
        if later:
            ctx.later = index, coefficient, options
            ctx.save_for_backward(logits)
        elif learns:
            grad = torch.empty_like(logits, memory_format=torch.contiguous_format)
            ctx.save_for_backward(grad)
        losses = loss_of_rows(logits, index, coefficient, *options, grad=grad) * share
        return losses if reduction == "none" else losses.sum()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("longtail's Triton kernel", "compute the loss in torch operations")
        (kept,) = ctx.saved_tensors
        if ctx.later is not None:
            grad = torch.empty_like(kept, memory_format=torch.contiguous_format)
            index, coefficient, options = ctx.later
            loss_of_rows(kept, index, coefficient * upstream, *options, grad=grad)
        elif torch._C._autograd._get_current_graph_task_keep_graph():
            grad = kept * upstream.to(kept.dtype)
        else:
            grad = scale_(kept, upstream)
        return grad, *(None,) * 6


def loss_of_rows(
    logits: Tensor,
    index: Tensor,
    coefficient: Tensor,
    bias: Tensor | None = None,
    lower: Tensor | None = None,
    scale: float = 1.0,
    label_smoothing: float = 0.0,
    *,
    grad: Tensor | None = None,
) -> Tensor:
    """Return CE(z, y) of each row, and write the gradient of Σ c·CE(z, y) into `grad`.

    Args:
        logits, bias, lower, scale, label_smoothing: as in `cross_entropy`.
        index: y, classes only.
        coefficient: c, shape (N,), float32; a row where it is 0 counts for nothing.
        grad: of the shape of the logits, with rows that lie together; may be the logits.
    """
    from longtail.kernels import _triton_loss as kernels

    n_rows, classes = logits.shape
    losses = torch.empty(n_rows, dtype=torch.float32, device=logits.device)
    if n_rows == 0:
        return losses
    out = logits if grad is None else grad
    vec, strides = 16 // logits.element_size(), (logits.stride(0), out.stride(0))
    while any(number % vec for number in (classes, *strides)) or (
        (logits.data_ptr() | out.data_ptr()) % (vec * logits.element_size())
    ):
        vec //= 2
    block, warps, registers, programs = _layout(classes, logits.element_size(), logits.device)
    slices = -(-classes // block)
    partials = tilts = losses
    if slices > 1:
        partials = torch.zeros((n_rows, slices), dtype=torch.int64, device=logits.device)
    if label_smoothing:
        tilts = torch.empty((n_rows, slices), dtype=torch.float32, device=logits.device)
    launch(
        kernels.loss_kernel,
        (min(programs // slices, n_rows) * slices,),
        (
            logits, out, index, given(bias, losses), given(lower, losses), coefficient, losses,
            partials, tilts, n_rows, classes // vec, strides[0] // vec, strides[1] // vec, scale,
            scale * _LOG2E, label_smoothing,
        ),
        {
            "GRADIENT": grad is not None, "HAS_BIAS": bias is not None,
            "HAS_LOWER": lower is not None, "SMOOTHS": label_smoothing > 0,
            "SLICES": slices, "BLOCK": block, "VEC": vec,
        },
        num_warps=warps,
        maxnreg=registers,
        launch_cooperative_grid=slices > 1,
        debug=True,  # else a bad label would not be an error
        sanitize_overflow=False,
    )  # fmt: skip
    if label_smoothing:
        tilt = tilts.sum(1).mul_(-label_smoothing / classes / _LOG2E)
        losses += tilt.masked_fill_(coefficient == 0, 0.0)
    return losses


@functools.cache
def _layout(classes: int, item: int, device: torch.device) -> tuple[int, int, int, int]:
    """Return columns and warps of a program, registers of a thread, and programs at once (H200)."""
    block = max(1 << (classes - 1).bit_length(), 256)
    if interpreted():  # one program after the other: none may wait for another
        return block, 1, 255, 2
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    if classes > WIDE:
        block = 1024
        while block * 16 * processors < classes:
            block *= 2
        return block, 1, 128, 16 * processors
    if block > 1024 and item == 2:  # 64 columns for each thread, else 32
        warps = block // 2048
        return block, warps, 255, 8 // warps * processors
    warps = max(block // 1024, 1)
    return block, warps, 128, 16 // warps * processors


def scale_(values: Tensor, factor: Tensor) -> Tensor:
    """Multiply contiguous `values` by a scalar on the device, at no cost where it is 1."""
    from longtail.kernels import _triton_loss as kernels

    if values.numel():
        programs = min(-(-values.numel() // 16384), 132)
        args = (values, factor, values.numel())
        launch(kernels.scale_kernel, (programs,), args, {"BLOCK": 16384}, num_warps=8)
    return values
