"""Cross-entropy with a bias and a lowered target, by one Triton kernel: for logits on a GPU.

Where the loss is reduced, one launch computes it and writes the gradient. Float16 logits,
``reduction="none"`` and evaluation take a launch for the losses and, where there is a backward
pass, another for the gradient. `worthwhile` leaves `torch.compile`, `torch.func` and small logits
to torch's own operations.
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
    weight: Tensor | None = None,
    divisor: Tensor | None = None,
    scale: float = 1.0,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduce: bool = True,
) -> Tensor:
    """Return w_y / d · CE(z, y) with z_j = s·(f_j + b_j), the target's lowered by s·a_y.

    Args:
        logits: f, shape (N, C), bfloat16, float16 or float32, on a CUDA device.
        target: y, shape (N,), int64 or int32. A label out of range is a device-side assertion, as
            in torch's own cross-entropy.
        bias: b, shape (C,), float32. No gradient flows into it, `lower`, `weight` or `divisor`.
        lower: a, shape (C,), float32; without label smoothing.
        weight: w, shape (C,), float32; without label smoothing.
        divisor: d, a number on the device; 1 if None.
        scale: s.
        ignore_index: rows with this label count for nothing.
        label_smoothing: ε, with torch's meaning.
        reduce: add the rows up.

    Returns:
        The loss in float32, a scalar or shape (N,).
    """
    tables = (bias, lower, weight, divisor)
    options = (scale, ignore_index, label_smoothing)
    learns = torch.is_grad_enabled() and logits.requires_grad
    return _CrossEntropy.apply(logits, target, tables, options, reduce, learns)  # type: ignore[no-any-return, no-untyped-call]


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        tables: tuple[Any, ...],
        options: tuple[Any, ...],
        reduce: bool,
        learns: bool,
    ) -> Tensor:
        # A float16 gradient underflows unless the loss scale is in it from the start.
        later = learns and (not reduce or logits.dtype == torch.float16)
        ctx.later, grad = None, None
        if later:
            ctx.later = target, tables, options
            ctx.save_for_backward(logits)
        elif learns:
            grad = torch.empty_like(logits, memory_format=torch.contiguous_format)
            ctx.save_for_backward(grad)
        losses = loss_of_rows(logits, target, *tables, *options, grad=grad)
        return losses.sum() if reduce else losses.sum(1)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("longtail's Triton kernel", "compute the loss in torch operations")
        (kept,) = ctx.saved_tensors
        if ctx.later is not None:
            grad = torch.empty_like(kept, memory_format=torch.contiguous_format)
            target, tables, options = ctx.later
            loss_of_rows(kept, target, *tables, *options, grad=grad, upstream=upstream)
        elif torch._C._autograd._get_current_graph_task_keep_graph():
            grad = kept * upstream.to(kept.dtype)
        else:
            grad = scale_(kept, upstream)
        return grad, *(None,) * 5


def loss_of_rows(
    logits: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    lower: Tensor | None = None,
    weight: Tensor | None = None,
    divisor: Tensor | None = None,
    scale: float = 1.0,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    *,
    grad: Tensor | None = None,
    upstream: Tensor | None = None,
) -> Tensor:
    """Return the terms of each row's loss, shape (N, k), and write the gradient of their sum.

    The arguments are those of `cross_entropy`, and besides `grad` with rows that lie together,
    which may be the logits, and `upstream`, one number or one for each row, by which the gradient
    is multiplied.
    """
    from longtail.kernels import _triton_loss as kernels

    n_rows, classes = logits.shape
    vec, word = 16 // logits.element_size(), logits.element_size()
    block, warps, registers, programs = _layout(classes, word, logits.device)
    slices, smooths = -(-classes // block), label_smoothing > 0
    losses = logits.new_empty((n_rows, slices if smooths else 1), dtype=torch.float32)
    if n_rows == 0:
        return losses
    out, partials = logits if grad is None else grad, losses
    if slices > 1:
        partials = logits.new_zeros((n_rows, slices), dtype=torch.int64)
    strides = logits.stride(0), out.stride(0)
    while any(number % vec for number in (classes, *strides)) or (
        (logits.data_ptr() | out.data_ptr()) % (vec * word)
    ):
        vec //= 2
    launch(
        kernels.loss_kernel,
        (min(programs // slices, n_rows) * slices,),
        (
            logits, out, target, given(bias, losses), given(lower, losses), given(weight, losses),
            given(divisor, losses), given(upstream, losses), losses, partials, n_rows,
            classes // vec, strides[0] // vec, strides[1] // vec, ignore_index, scale,
            label_smoothing,
        ),
        {
            "HAS_BIAS": bias is not None, "HAS_LOWER": lower is not None,
            "HAS_WEIGHT": weight is not None, "HAS_DIVISOR": divisor is not None,
            "HAS_UPSTREAM": upstream is not None,
            "UPSTREAM_STRIDE": upstream.stride(0) if upstream is not None and upstream.ndim else 0,
            "GRADIENT": grad is not None, "SMOOTHS": smooths, "SLICES": slices, "BLOCK": block,
            "VEC": vec,
        },
        num_warps=warps,
        maxnreg=registers,
        launch_cooperative_grid=slices > 1,
        debug=True,  # else a bad label would not be an error
        sanitize_overflow=False,
    )  # fmt: skip
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
        while block * 12 * processors < classes:
            block *= 2
        return block, 1, 168, 12 * processors
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
