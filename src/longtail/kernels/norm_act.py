"""Batch normalization, residual addition and ReLU in one operation, forward and backward.

The kernels are in `_triton_norm`; here are the choice between them and torch's own operations, the
launches, and what autograd needs to know. Nothing here keeps state: partial sums are allocated per
call, so that calls on several streams, or in several CUDA graphs, never meet.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from longtail._checks import InputError
from longtail.kernels import available
from longtail.kernels._launch import given, launch

DTYPES = (torch.bfloat16, torch.float32)
TILE = 2048  # numbers that a program of WARPS · 32 threads holds at a time
WARPS = 4
PROGRAMS = {False: 1024, True: 528}  # that leave partial sums, forward and backward


def norm_act_fork(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *,
    residual: Tensor | None = None,
    relu: bool = True,
    training: bool,
    momentum: float = 0.1,
    eps: float = 1e-5,
    moments: Moments | None = None,
) -> tuple[Tensor, Tensor]:
    """Return relu(batch_norm(x) + residual) for two readers, fused on a GPU.

    y = max(0, w·(x − μ)/√(σ² + ε) + b + r), with μ and σ² of each channel over the batch in
    training, and the running ones otherwise. In training the running statistics move by
    `momentum` towards μ and the unbiased variance, as in `torch.nn.BatchNorm2d`.

    A residual block's input is read by its first convolution and by its shortcut. With one tensor
    for each, the backward kernel adds their two gradients itself, which saves a pass over memory.

    The Triton kernels support CUDA tensors in bfloat16 or float32, channels last, in training and
    in evaluation without gradients; torch's own operations do the rest. The kernels compute in
    float32.

    Args:
        x: shape (N, C, H, W) or (N, C).
        weight: w, shape (C,), float32.
        bias: b, shape (C,), float32.
        running_mean: shape (C,), changed in place in training, or None.
        running_var: likewise.
        residual: r, of the shape of x, or None for zero.
        relu: whether to cut at zero.
        training: whether to use, and to track, the statistics of the batch.
        momentum: the weight of this batch in the running statistics.
        eps: ε.
        moments: of x, if what made x computed them too.

    Returns:
        y and y, of the shape and type of x, which share memory: neither may be changed in place.

    Examples:
        >>> x = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
        >>> one, zero = torch.ones(2), torch.zeros(2)
        >>> y, same = norm_act_fork(x, one, zero, None, None, training=True)
        >>> y
        tensor([[0.0000, 0.0000],
                [1.0000, 0.0000]])
    """
    if residual is not None and residual.shape != x.shape:
        raise InputError(
            f"norm_act: `residual` must have the shape of x, {tuple(x.shape)}, but has "
            f"{tuple(residual.shape)}; bring the shortcut to that shape first."
        )
    options = Options(relu, momentum, eps)
    tensors = (x, weight, bias, running_mean, running_var, residual)
    if training and supports(x, weight, bias, residual):
        return _NormAct.apply(*tensors, options, moments)  # type: ignore[no-any-return, no-untyped-call]
    y = _without_gradient(*tensors, options, training=training)
    return y, y


def norm_act(*tensors: Tensor | None, **options: Any) -> Tensor:
    """Return the result of `norm_act_fork` for one reader."""
    return norm_act_fork(*tensors, **options)[0]  # type: ignore[arg-type]


def _without_gradient(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    residual: Tensor | None,
    options: Options,
    *,
    training: bool,
) -> Tensor:
    """Normalize in one pass by the running statistics if no gradient is needed, else by torch."""
    tensors = (x, weight, bias, residual)
    learns = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    # Tracing, forward-mode and functorch transforms need torch's own operations.
    traced: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    dual = torch.autograd.forward_ad._current_level >= 0
    watched = traced or dual or torch._C._are_functorch_transforms_active()
    one_pass = not (training or learns or watched) and supports(x, weight, bias, residual)
    if running_mean is None or running_var is None or not one_pass:
        rest = (running_mean, running_var, residual, options)
        return norm_act_torch(x, weight, bias, *rest, training=training)
    stats = torch.stack([running_mean, (running_var + options.eps).rsqrt()])
    return apply_statistics(x, weight, bias, stats, residual, relu=options.relu)


class Moments(NamedTuple):
    """The mean and Σ(x − mean)² of each channel over `rows` rows at a time.

    Attributes:
        partials: shape (parts, 2, C), float32.
        rows: to a part; the last may have fewer.
    """

    partials: Tensor
    rows: int


class Options(NamedTuple):
    """Settings that are the same for every channel."""

    relu: bool = True
    momentum: float = 0.1
    eps: float = 1e-5


def norm_act_torch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    residual: Tensor | None,
    options: Options,
    *,
    training: bool,
) -> Tensor:
    """Return the same by torch's own operations: the reference and the fallback."""
    batch = training or running_mean is None
    y = F.batch_norm(
        x, running_mean, running_var, weight, bias, batch, options.momentum, options.eps
    )
    if residual is not None:
        y = y + residual
    return F.relu(y) if options.relu else y


def supports(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None
) -> bool:
    """Return whether the kernels support these tensors."""
    return (
        not torch.compiler.is_compiling()  # which fuses by itself
        and available(x.device)
        and x.dtype in DTYPES
        and weight is not None
        and bias is not None
        and weight.dtype == torch.float32
        and x.numel() > x.shape[1]  # torch refuses one value per channel
        and _rows_are_channels(x)
        and (residual is None or (residual.dtype == x.dtype and _rows_are_channels(residual)))
    )


def _rows_are_channels(x: Tensor) -> bool:
    """Return whether memory holds rows of C channels, one after the other."""
    if x.ndim == 4:
        return x.is_contiguous(memory_format=torch.channels_last)
    return x.ndim == 2 and x.is_contiguous()


class Cut(NamedTuple):
    """Tiles of n rows of C channels, and the rows that one partial sum covers."""

    rows: int
    block: int
    blocks: int
    tiles: int
    per_program: int
    parts: int


def cut(x: Tensor, *, back: bool = False) -> Cut:
    """Return tiles of about TILE numbers, and at most PROGRAMS partial sums of several tiles."""
    channels = x.shape[1]
    n_rows = x.numel() // channels
    block = min(max(1 << (channels - 1).bit_length(), 8), 64)
    blocks = -(-channels // block)
    rows = min(TILE // block, max(1 << (n_rows - 1).bit_length(), 8))
    tiles = -(-n_rows // rows)
    per_program = rows * -(-tiles // max(PROGRAMS[back] // blocks, 1))
    return Cut(rows, block, blocks, tiles, per_program, -(-n_rows // per_program))


def apply_statistics(
    x: Tensor, weight: Tensor, bias: Tensor, stats: Tensor, residual: Tensor | None, *, relu: bool
) -> Tensor:
    """Return y by given statistics, μ and 1/√(σ² + ε), shape (2, C)."""
    from longtail.kernels import _triton_norm as kernels

    shape, channels, y = cut(x), x.shape[1], torch.empty_like(x)
    launch(
        kernels.forward_kernel,
        (shape.tiles, shape.blocks),
        (x, given(residual, x), weight, bias, stats, y, x.numel() // channels),
        {
            "HAS_RESIDUAL": residual is not None, "RELU": relu,
            "C": channels, "ROWS": shape.rows, "BLOCK": shape.block,
        },
        num_warps=WARPS,
    )  # fmt: skip
    return y


def _gathering(partials: Tensor) -> dict[str, int]:
    """Return the tile of kernels that combine partial sums: few channels, all parts at once."""
    return {"C": partials.shape[2], "PARTS": 1 << (len(partials) - 1).bit_length(), "BLOCK": 8}


class _NormAct(torch.autograd.Function):
    """The kernels as autograd sees them."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        residual: Tensor | None,
        options: Options,
        moments: Moments | None,
    ) -> tuple[Tensor, Tensor]:
        from longtail.kernels import _triton_norm as kernels

        shape, channels = cut(x), x.shape[1]
        n_rows = x.numel() // channels
        stats = weight.new_empty((2, channels))
        tile = {"C": channels, "ROWS": shape.rows, "BLOCK": shape.block}
        if moments is None:
            moments = Moments(weight.new_empty((shape.parts, 2, channels)), shape.per_program)
            launch(
                kernels.moments_kernel,
                (shape.parts, shape.blocks),
                (x, moments.partials, n_rows, moments.rows),
                tile,
                num_warps=WARPS,
            )
        running = (given(running_mean, stats), given(running_var, stats))
        launch(
            kernels.statistics_kernel,
            (-(-channels // 8),),
            (
                moments.partials, *running, stats, n_rows, moments.rows, len(moments.partials),
                options.momentum, options.eps,
            ),
            {"HAS_RUNNING": running_mean is not None, **_gathering(moments.partials)},
            num_warps=4,
        )  # fmt: skip
        y = apply_statistics(x, weight, bias, stats, residual, relu=options.relu)
        # Without a residual, x and the statistics say what the ReLU cut; y need not be kept.
        kept = y if options.relu and residual is not None else None
        ctx.save_for_backward(x, kept, weight, bias, stats)
        ctx.set_materialize_grads(False)
        ctx.relu = options.relu
        return y, y.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *came: Tensor | None) -> tuple[Tensor | None, ...]:
        from longtail.kernels import _triton_norm as kernels

        x, y, weight, bias, stats = ctx.saved_tensors
        # The gradients of y, one for each of its readers.
        grads = [_as_rows(grad, x) for grad in came if grad is not None]
        if not grads:
            return (None,) * 8
        shape, channels = cut(x, back=True), x.shape[1]
        n_rows = x.numel() // channels
        partials = weight.new_empty((shape.parts, 2, channels))
        keep = ctx.needs_input_grad[5]
        g = torch.empty_like(x) if keep or len(grads) > 1 else None
        dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
        tile = {"C": channels, "ROWS": shape.rows, "BLOCK": shape.block}
        mask = 0 if not ctx.relu else 1 if y is not None else 2
        launch(
            kernels.sums_kernel,
            (shape.parts, shape.blocks),
            (
                x, given(y, x), grads[0], grads[-1], weight, bias, stats, partials, given(g, x),
                n_rows, shape.per_program,
            ),
            {"HAS_OTHER": len(grads) > 1, "MASK": mask, "KEEP": g is not None, **tile},
            num_warps=WARPS,
        )  # fmt: skip
        launch(
            kernels.gradients_kernel,
            (-(-channels // 8),),
            (partials, dweight, dbias, shape.parts),
            _gathering(partials),
            num_warps=4,
        )
        launch(
            kernels.backward_kernel,
            (shape.tiles, shape.blocks),
            (x, given(g, grads[0]), weight, bias, stats, dx, dweight, dbias, n_rows),
            {"MASK": mask if g is None else 0, **tile},
            num_warps=WARPS,
        )
        return dx, dweight, dbias, None, None, g if keep else None, None, None


def _as_rows(grad: Tensor, x: Tensor) -> Tensor:
    """Return a gradient in the type and layout of x, copied only where needed."""
    if x.ndim == 4:
        return grad.to(x.dtype).contiguous(memory_format=torch.channels_last)
    return grad.to(x.dtype).contiguous()
