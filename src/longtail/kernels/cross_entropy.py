"""Cross-entropy with a bias and a lowered target, by one Triton kernel: for logits on a GPU.

In eager mode, where the loss is reduced, one launch reads the logits once and writes their
gradient once. Float16 logits, ``reduction="none"`` and evaluation take a launch for the sums of the
rows and, where there is a backward pass, another for the gradient. Under `torch.compile` and
`torch.func` torch's own operations are the better way, which `worthwhile` says.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longtail.kernels import _INSTALLED, interpreted
from longtail.kernels._inputs import refuse_second_derivative
from longtail.kernels._launch import given, launch, on_device

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# From so many logits on, the kernel's eager step is shorter than torch's (H200; bench_losses.py).
# Below it, both are bound by the host.
FEWEST = 3 << 23
WIDEST = 8192  # columns that a program holds at once
COLUMNS = 32  # of a thread
REGISTERS = 128  # of a thread
SLICE = 4096  # columns of a program where a row takes several
SLICE_COLUMNS = 32  # of a thread there
SLICE_REGISTERS = 128


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
        and logits.dtype in DTYPES
        and logits.stride(1) == 1
        and type(logits) in (Tensor, torch.nn.Parameter)
        and _INSTALLED
        and torch.version.hip is None
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
    )


class Options(NamedTuple):
    """What a loss is, beside logits and labels.

    Attributes:
        bias, lower, weight: shape (C,), float32, or None.
        scale: s.
        ignore_index: rows with this label count for nothing.
        smoothing: label smoothing ε.
    """

    bias: Tensor | None = None
    lower: Tensor | None = None
    weight: Tensor | None = None
    scale: float = 1.0
    ignore_index: int = -100
    smoothing: float = 0.0


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
        lower: a, shape (C,), float32.
        scale: s.
        weight: w, shape (C,), float32.
        ignore_index: rows with this label count for nothing.
        label_smoothing: ε, with torch's meaning; without `lower`.
        reduction: "none", "sum", or "mean": the sum over Σ v_y of the rows that count.
        mean_weight: v, shape (C,), float32; None for ones.

    Returns:
        The loss in float32, shape (N,) or a scalar. A sum or mean that is scaled afterwards costs
        one pass over the gradient more: "mean" saves dividing a sum.
    """
    options = Options(bias, lower, weight, scale, ignore_index, label_smoothing)
    learns = torch.is_grad_enabled() and logits.requires_grad
    return _CrossEntropy.apply(logits, target, options, reduction, mean_weight, learns)  # type: ignore[no-any-return, no-untyped-call]


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        options: Options,
        reduction: str,
        mean_weight: Tensor | None,
        learns: bool,
    ) -> Tensor:
        rows = logits if logits.stride(1) == 1 else logits.contiguous()
        parts = divisor(target, rows.shape[1], mean_weight, options, mean=reduction == "mean")
        ctx.call = None
        if not learns:
            losses, _ = sums(rows, target, options, parts)
        # A float16 gradient underflows unless the loss scale is in it from the start.
        elif reduction == "none" or rows.dtype == torch.float16:
            losses, words = sums(rows, target, options, parts)
            # (Not as saved tensors, which would have to be taken out of `options` and put back.)
            ctx.call = (target, options, parts, words)
            ctx.save_for_backward(rows)
        else:
            grad = torch.empty_like(rows, memory_format=torch.contiguous_format)
            losses = loss_and_gradient(rows, target, options, parts, grad)
            ctx.save_for_backward(grad)
        return losses if reduction == "none" else losses.sum()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("longtail's Triton kernel", "compute the loss in torch operations")
        (kept,) = ctx.saved_tensors
        if ctx.call is None:
            again = torch._C._autograd._get_current_graph_task_keep_graph()
            grad = kept * upstream.to(kept.dtype) if again else scale_(kept, upstream)
        else:
            grad = torch.empty_like(kept, memory_format=torch.contiguous_format)
            target, options, parts, words = ctx.call
            gradient(kept, target, options, parts, words, grad, upstream.contiguous())
        return grad, None, None, None, None, None


class Cut(NamedTuple):
    """How the logits are cut into slices.

    Attributes:
        vec: elements that are read at once.
        block: places of a slice, a power of two.
        slices: of a row.
        width: columns of a slice, in units of `vec`.
        lanes: rows that are worked on at a time.
        warps: of a program.
        edges: whether rows may begin and end inside a unit.
    """

    vec: int
    block: int
    slices: int
    width: int
    lanes: int
    warps: int
    edges: bool


def cut(logits: Tensor, grad: Tensor) -> Cut:
    """Return the cut for logits of shape (N, C), and a gradient, that lie in rows."""
    n_rows, classes = logits.shape
    size = logits.element_size()
    slices, block, columns = 1, max(1 << (classes - 1).bit_length(), 32), COLUMNS
    if classes > WIDEST:
        slices, block, columns = -(-classes // SLICE), SLICE, SLICE_COLUMNS
    how = Cut(16 // size, block, slices, 0, 0, max(block // (32 * columns), 1), False)
    lanes = max(min(running(how, logits.device) // slices, n_rows), 1)
    strides = logits.stride(0), grad.stride(0)
    aligned = (logits.data_ptr() | grad.data_ptr()) % 16 == 0
    # Rows a whole number of periods apart start at the same place of a unit.
    period = how.vec // math.gcd(how.vec, strides[0])
    if lanes < n_rows:
        lanes = max(lanes // period * period, 1)
    edges = period > 1 or classes % how.vec > 0
    if not aligned or (strides[0] - strides[1]) % how.vec or (lanes < n_rows and lanes % period):
        first = math.gcd(logits.data_ptr() // size, grad.data_ptr() // size)
        how = how._replace(vec=math.gcd(how.vec, classes, *strides, first))
        edges = False
    width = max(-(-(classes // how.vec) // slices), 1)
    return how._replace(width=width, lanes=lanes, edges=edges)


def running(how: Cut, device: torch.device) -> int:
    """Return how many programs are sure to run at the same time."""
    if interpreted():
        return 32 if how.slices > 1 else 8
    registers = SLICE_REGISTERS if how.slices > 1 else REGISTERS
    return _processors(device.index) * min(65536 // (registers * 32 * how.warps), 32)


@cache
def _processors(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


@on_device
def divisor(
    target: Tensor, classes: int, weight: Tensor | None, options: Options, *, mean: bool
) -> Tensor | None:
    """Check the labels on the device; return what the mean divides by, in parts, or None."""
    from longtail.kernels import _triton_loss as kernels

    n_rows = len(target)
    parts = min(1 << max(-(-n_rows // 1024) - 1, 0).bit_length(), 64)
    totals = torch.empty(parts, dtype=torch.float32, device=target.device)
    launch(
        kernels.divisor_kernel,
        (parts,),
        (target, given(weight, totals), totals, n_rows, classes, -(-n_rows // parts),
         options.ignore_index),
        {"HAS_WEIGHT": weight is not None, "BLOCK": 1024},
        num_warps=8,
        debug=True,  # else a bad label would not be an error
        sanitize_overflow=False,
    )  # fmt: skip
    return totals if mean else None


@on_device
def loss_and_gradient(
    logits: Tensor,
    target: Tensor,
    options: Options,
    parts: Tensor | None,
    grad: Tensor,
) -> Tensor:
    """Return the losses of the rows, over the divisor, and write their gradient into `grad`.

    Args:
        logits, target, options: as in `cross_entropy`.
        parts: from `divisor`.
        grad: of the shape of the logits; may be the logits.
    """
    how = cut(logits, grad)
    if how.slices > 1 and not interpreted() and how.slices > running(how, logits.device):
        losses, words = sums(logits, target, options, parts)
        gradient(logits, target, options, parts, words, grad, None)
        return losses
    losses = torch.empty(len(target), dtype=torch.float32, device=logits.device)
    words = losses
    if how.slices > 1:
        words = _blank(len(target), how.slices, logits.device)
        if interpreted():  # programs that follow one another can't wait for each other
            _, words = sums(logits, target, options, parts)
    tilts = _launch_loss(how, logits, target, options, parts, words, grad=grad, losses=losses)
    return losses if tilts is None else losses - tilts.sum(1)


@on_device
def sums(
    logits: Tensor, target: Tensor, options: Options, parts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the losses of the rows, over the divisor, and the words for `gradient`."""
    from longtail.kernels import _triton_loss as kernels

    how = cut(logits, logits)
    losses = torch.empty(len(target), dtype=torch.float32, device=logits.device)
    words = torch.empty((len(target), how.slices), dtype=torch.int64, device=logits.device)
    tilts = _launch_loss(how, logits, target, options, parts, words)
    _, total, keep = _smoothing(logits, options)
    launch(
        kernels.losses_kernel,
        (len(target),),
        (
            logits, target, given(options.bias, losses), given(options.lower, losses),
            given(options.weight, losses), given(total, losses), given(parts, losses), losses,
            words, len(target), logits.shape[1], logits.stride(0), how.slices,
            options.scale * _LOG2E, keep, options.ignore_index,
        ),
        {
            "HAS_BIAS": options.bias is not None, "HAS_LOWER": options.lower is not None,
            "HAS_WEIGHT": options.weight is not None, "HAS_SMOOTH": options.smoothing > 0,
            "TOTALS": 0 if parts is None else len(parts), "PART": _filled(how.slices),
        },
        num_warps=1,
    )  # fmt: skip
    return (losses if tilts is None else losses - tilts.sum(1)), words


@on_device
def gradient(
    logits: Tensor,
    target: Tensor,
    options: Options,
    parts: Tensor | None,
    words: Tensor,
    grad: Tensor,
    upstream: Tensor | None,
) -> None:
    """Write the gradient into `grad` by the words of `sums`; `upstream` may be a scalar."""
    how = cut(logits, grad)
    _launch_loss(
        how, logits, target, options, parts, words, grad=grad, upstream=upstream, sums=False
    )


@on_device
def scale_(values: Tensor, factor: Tensor) -> Tensor:
    """Multiply contiguous `values` by a scalar on the device, at no cost where it is 1."""
    from longtail.kernels import _triton_loss as kernels

    if values.numel():
        programs = min(-(-values.numel() // 16384), 132)
        args = (values, factor, values.numel())
        launch(kernels.scale_kernel, (programs,), args, {"BLOCK": 16384}, num_warps=8)
    return values


_LOG2E = 1.4426950408889634


def _launch_loss(
    how: Cut,
    logits: Tensor,
    target: Tensor,
    options: Options,
    parts: Tensor | None,
    words: Tensor,
    *,
    grad: Tensor | None = None,
    losses: Tensor | None = None,
    upstream: Tensor | None = None,
    sums: bool = True,
) -> Tensor | None:
    """Launch the sums, the gradient (where `grad` is) or both; return the tilts, if any."""
    from longtail.kernels import _triton_loss as kernels

    n_rows = len(target)
    smooth, total, keep = _smoothing(logits, options)
    tilts = None
    if sums and smooth is not None:
        tilts = torch.empty((n_rows, how.slices), dtype=torch.float32, device=logits.device)
    together = sums and grad is not None and how.slices > 1
    registers = SLICE_REGISTERS if how.slices > 1 else REGISTERS
    constants = {
        "SUMS": sums, "GRADS": grad is not None,
        "PER_ROW": upstream is not None and upstream.ndim == 1,
        "HAS_UPSTREAM": upstream is not None,
        "HAS_BIAS": options.bias is not None, "HAS_LOWER": options.lower is not None,
        "HAS_WEIGHT": options.weight is not None, "HAS_SMOOTH": smooth is not None,
        "TOTALS": 0 if parts is None else len(parts), "PART": _filled(how.slices),
        "EDGES": how.edges, "VEC": how.vec, "BLOCK": how.block,
    }  # fmt: skip
    launch(
        kernels.loss_kernel,
        (how.lanes * how.slices,),
        (
            logits, given(grad, logits), target, given(options.bias, words),
            given(options.lower, words), given(options.weight, words), given(smooth, words),
            given(total, words), given(parts, words), given(upstream, words), given(losses, words),
            given(tilts, words), words, n_rows, logits.shape[1], logits.stride(0),
            logits.stride(0) if grad is None else grad.stride(0), how.slices, how.width, how.lanes,
            options.scale, options.scale * _LOG2E, keep, options.ignore_index,
        ),
        constants,
        num_warps=how.warps,
        maxnreg=registers,
        launch_cooperative_grid=together and not interpreted(),  # they wait for each other
    )  # fmt: skip
    return tilts


def _smoothing(logits: Tensor, options: Options) -> tuple[Tensor | None, Tensor | None, float]:
    """Return ε/C·w, its sum, and 1 − ε."""
    if options.smoothing == 0:
        return None, None, 1.0
    share = options.smoothing / logits.shape[1]
    if options.weight is None:
        smooth = logits.new_full((logits.shape[1],), share, dtype=torch.float32)
    else:
        smooth = options.weight * share
    return smooth, smooth.sum().reshape(1), 1.0 - options.smoothing


def _blank(n_rows: int, slices: int, device: torch.device) -> Tensor:
    return torch.full((n_rows, slices), -1, dtype=torch.int64, device=device)


def _filled(number: int) -> int:
    """Return the next power of two."""
    return 1 << (number - 1).bit_length()
