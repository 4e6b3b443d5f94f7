"""Logits, target and additive margins in, loss out: one Triton kernel, read once, written once.

The kernels are in `_triton`, `_triton_ring`, `_triton_words` and `_triton_smooth`, their launches
in `_launch`, `_ring` and `_words`; here are the checks and what autograd, `torch.compile` and
`torch.func` need to know. `longtail.losses` is the reference, and chooses this where it can serve.

Two roads lead to the gradient. In eager mode, where the loss is reduced, the forward launch writes
it and the backward pass only multiplies it by the incoming scalar, which costs nothing where that
is 1. Elsewhere (no reduction, float16, `torch.compile`, `torch.func`) an operator of our own keeps
three numbers per row, and its backward pass reads the logits again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longtail import _checks
from longtail._checks import InputError
from longtail.kernels import _launch, _ring, _words, available
from longtail.kernels._inputs import (
    check_labels,
    check_table,
    loss_dtype,
    no_second_derivative,
    refuse_second_derivative,
    what_came,
)
from longtail.kernels._launch import BACKWARD, FORWARD, FUSED, MEAN, NONE, Options, Tables

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
REDUCTIONS = ("none", "mean", "sum")  # in the order of `_launch`
_NO_SECOND = ("longtail's Triton kernel", "compute the loss with impl='torch'")


def margin_cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    offset: Tensor | None = None,
    positive: Tensor | None = None,
    alpha: Tensor | None = None,
    weight: Tensor | None = None,
    scale: float = 1.0,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    inplace: bool = False,
) -> Tensor:
    """Cross-entropy with additive margins (equation 11) at the cost of its memory traffic.

    ℓ(y, f) = w_y·α_y·log[1 + Σ_{j≠y} exp(s·(f_j + b_j − f_y + a_y))]

    A label that is neither a class nor `ignore_index` is found on the device, without waiting for
    it: the error surfaces at the next call that synchronises, as with torch's own cross-entropy.

    Args:
        logits: f, shape (N, C), bfloat16, float16 or float32, on a CUDA device.
        target: y, shape (N,), integers.
        offset: b, shape (C,); −inf takes a class out of the competition.
        positive: a, shape (C,).
        alpha: α, shape (C,); does not enter the mean's denominator.
        weight: w, shape (C,), as in `torch.nn.CrossEntropyLoss`.
        scale: s.
        ignore_index: rows with this label count for nothing.
        label_smoothing: ε in [0, 1].
        reduction: "mean", "sum" or "none".
        inplace: write the gradient over the logits, which are of no use afterwards; for logits
            that are not a leaf. Saves as much memory as they take.

    Returns:
        The loss, a scalar or shape (N,), in the logits' type; in float32 under autocast.

    Examples:
        >>> margin_cross_entropy(torch.zeros(2, 3), torch.tensor([0, 1]))
        Traceback (most recent call last):
        ...
        longtail.InputError: margin_cross_entropy: the logits are on cpu, but ...
    """
    caller = "margin_cross_entropy"
    tables = check(
        logits, target, Tables(offset, positive, alpha, weight), caller=caller, reduction=reduction
    )
    options = Options(
        scale=_checks.positive(scale, caller, name="scale"),
        ignore_index=ignore_index,
        label_smoothing=_checks.fraction(label_smoothing, caller, name="label_smoothing"),
        reduction=REDUCTIONS.index(reduction),
    )
    if inplace and logits.is_leaf and logits.requires_grad:
        raise InputError(
            f"{caller}: `inplace` writes the gradient over the logits, but these logits are a leaf "
            f"that requires grad; pass inplace=False."
        )
    out = loss_dtype(logits)
    if logits.shape[0] == 0:
        return _of_nothing(logits, reduction).to(out)
    target = target.contiguous()
    if target.dtype not in (torch.int32, torch.int64):
        target = target.long()
    if _takes_one_pass(logits, options):
        return _OnePass.apply(logits, target, tables, options, out, inplace)  # type: ignore[no-any-return, no-untyped-call]
    args = (logits.unsqueeze(0), target.unsqueeze(0), *tables, *options)
    if torch.compiler.is_compiling():
        loss, _ = torch.ops.longtail.margin_cross_entropy(*args)
    else:
        loss, _ = _TwoPass.apply(*args)  # type: ignore[no-untyped-call]
    return loss.squeeze(0).to(out)  # type: ignore[no-any-return]


def check(logits: Any, target: Any, tables: Tables, *, caller: str, reduction: str) -> Tables:
    """Refuse what the kernel can't serve; return the tables in float32, shape (1, C)."""
    _checks.choice(reduction, REDUCTIONS, caller, name="reduction")
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        came = what_came(logits)
        raise InputError(f"{caller}: `logits` must be a tensor of shape (N, C); got {came}.")
    reason = unavailable(logits)
    if reason is not None:
        raise InputError(f"{caller}: {reason} longtail.losses has the same in torch operations.")
    check_labels(target, len(logits), of="logits", caller=caller)
    named = {"target": target, **tables._asdict()}
    for name, tensor in named.items():
        if tensor is None:
            continue
        check_table(tensor, name=name, caller=caller)
        if tensor.device != logits.device:
            raise InputError(
                f"{caller}: `{name}` is on {tensor.device} but the logits are on {logits.device}; "
                f"move it there once, outside the training loop."
            )
    return Tables(
        *(
            _table(table, logits.shape[1], caller=caller, name=name)
            for name, table in tables._asdict().items()
        )
    )


def unavailable(logits: Tensor) -> str | None:
    """Why the kernel can't serve these logits, or None if it can."""
    if not available(logits.device):
        return (
            f"the logits are on {logits.device}, but the kernel needs a CUDA device and Triton "
            f"(pip install triton);"
        )
    if logits.dtype not in DTYPES:
        return f"the kernel takes bfloat16, float16 and float32, but the logits are {logits.dtype};"
    if logits.shape[-1] == 0:
        return "the logits have no classes;"
    return None


def keeps_graph() -> bool:
    """Whether the backward pass at hand may run again (`retain_graph`), as far as we can tell."""
    ask = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return True if ask is None else bool(ask())


def times(grad: Tensor, factor: Tensor, *, once: bool) -> Tensor:
    """A stored gradient times the incoming scalar: in place if it serves only this `once`."""
    if once:
        return _launch.scale_(grad, factor)
    return (grad * factor).to(grad.dtype)


def _table(table: Any, classes: int, *, caller: str, name: str) -> Tensor | None:
    if table is None:
        return None
    if tuple(table.shape) != (classes,) or not table.is_floating_point():
        raise InputError(
            f"{caller}: `{name}` must have one floating-point value per class, shape ({classes},); "
            f"it has shape {tuple(table.shape)} and dtype {table.dtype}."
        )
    return table.detach().to(torch.float32).contiguous().unsqueeze(0)  # type: ignore[no-any-return]


def _of_nothing(logits: Tensor, reduction: str) -> Tensor:
    """The loss of an empty batch, as torch has it: nothing, 0 or 0/0; connected to the graph."""
    rows = logits.float().sum(1)
    if reduction == "none":
        return rows
    return rows.sum() / (0.0 if reduction == "mean" else 1.0)


def _takes_one_pass(logits: Tensor, options: Options) -> bool:
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    if not (torch.is_grad_enabled() and logits.requires_grad):
        return False
    # A float16 gradient of the mean underflows unless the loss scale is in it from the start.
    return options.reduction != NONE and logits.dtype != torch.float16


class _OnePass(torch.autograd.Function):
    """Loss and gradient from one launch over the logits; eager mode, reduced losses."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        tables: Tables,
        options: Options,
        out: torch.dtype,
        inplace: bool,
    ) -> Tensor:
        work = _launch.rows_of(logits.detach().unsqueeze(0))
        grad = work
        if not (inplace and work.data_ptr() == logits.data_ptr()):
            grad = torch.empty(work.shape, dtype=work.dtype, device=work.device)
        elif inplace:
            torch.autograd.graph.increment_version(logits)  # whoever saved them is to know
        loss = loss_and_gradient(work, target.unsqueeze(0), tables, options, grad, out=out)
        ctx.save_for_backward(grad.squeeze(0))
        return loss.squeeze(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative(*_NO_SECOND)
        (grad,) = ctx.saved_tensors
        return times(grad, grads[0], once=not keeps_graph()), None, None, None, None, None


def loss_and_gradient(
    logits: Tensor,
    target: Tensor,
    tables: Tables,
    options: Options,
    grad: Tensor,
    *,
    out: torch.dtype = torch.float32,
    totals: Tensor | None = None,
) -> Tensor:
    """Reduced loss, shape (groups,), and its gradient into `grad`, which may be the logits.

    Args:
        logits, target, tables, options, grad, totals: as in `_launch.launch`.
        out: type of the loss.
    """
    if options.label_smoothing > 0:
        losses = torch.empty(target.shape, dtype=torch.float32, device=logits.device)
        parts = _launch.launch_smooth(
            FUSED, logits, target, tables, options, grad=grad, losses=losses, totals=totals
        )
        return _reduce(losses, parts, options).to(out)
    loss = torch.empty(logits.shape[0], dtype=out, device=logits.device)
    words = _words.words_for(logits, grad, options)
    if words is not None:
        _words.launch(words, logits, target, tables, options, grad=grad, loss=loss, totals=totals)
        return loss
    ring = _ring.ring_for(logits, grad, options, tables.offset is not None)
    if ring is not None:
        _ring.launch(ring, logits, target, tables, options, grad=grad, loss=loss, totals=totals)
        return loss
    tiles = _launch.tiles_for(logits)
    given: dict[str, Any] = {"totals": totals, "tiles": tiles}
    if _launch.fits_one_launch(tiles, logits.device):
        _launch.launch(FUSED, logits, target, tables, options, grad=grad, loss=loss, **given)
        return loss
    stats = _statistics(logits)
    _launch.launch(FORWARD, logits, target, tables, options, stats=stats, loss=loss, **given)
    one = torch.ones(logits.shape[0], dtype=torch.float32, device=logits.device)
    _launch.launch(
        BACKWARD, logits, target, tables, options, grad=grad, stats=stats, upstream=one, **given
    )
    return loss


def _statistics(logits: Tensor) -> Tensor:
    groups, rows, _ = logits.shape
    return torch.empty((groups, 3, rows), dtype=torch.float32, device=logits.device)


def _reduce(losses: Tensor, parts: Tensor, options: Options) -> Tensor:
    if options.reduction == NONE:
        return losses
    total = losses.sum(1)
    if options.reduction != MEAN:
        return total
    count = parts.sum(1)
    return total / count.masked_fill(count == 0, torch.nan)  # 0/0, whatever the sum


@torch.library.custom_op("longtail::margin_cross_entropy", mutates_args=())
def _forward(
    logits: Tensor,
    target: Tensor,
    offset: Tensor | None,
    positive: Tensor | None,
    alpha: Tensor | None,
    weight: Tensor | None,
    scale: float,
    ignore_index: int,
    label_smoothing: float,
    reduction: int,
) -> tuple[Tensor, Tensor]:
    """Loss in float32, (groups,) or (groups, rows), and statistics for the backward pass."""
    tables = Tables(offset, positive, alpha, weight)
    options = Options(scale, ignore_index, label_smoothing, reduction)
    logits, stats = _launch.rows_of(logits), _statistics(logits)
    shape = target.shape if reduction == NONE else target.shape[:1]
    if label_smoothing > 0:
        losses = torch.empty(target.shape, dtype=torch.float32, device=logits.device)
        parts = _launch.launch_smooth(
            FORWARD, logits, target.contiguous(), tables, options, losses=losses
        )
        return _reduce(losses, parts, options), stats[:, :, :0].contiguous()
    loss = torch.empty(shape, dtype=torch.float32, device=logits.device)
    _launch.launch(FORWARD, logits, target.contiguous(), tables, options, stats=stats, loss=loss)
    return loss, stats


@torch.library.custom_op("longtail::margin_cross_entropy_backward", mutates_args=())
def _backward(
    upstream: Tensor,
    stats: Tensor,
    logits: Tensor,
    target: Tensor,
    offset: Tensor | None,
    positive: Tensor | None,
    alpha: Tensor | None,
    weight: Tensor | None,
    scale: float,
    ignore_index: int,
    label_smoothing: float,
    reduction: int,
) -> Tensor:
    """The gradient of the logits, for the incoming gradient of the loss."""
    tables = Tables(offset, positive, alpha, weight)
    options = Options(scale, ignore_index, label_smoothing, reduction)
    logits, target = _launch.rows_of(logits), target.contiguous()
    upstream, stats = upstream.contiguous(), stats.contiguous()
    grad = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    if label_smoothing > 0:
        _launch.launch_smooth(
            BACKWARD, logits, target, tables, options, grad=grad, upstream=upstream
        )
    else:
        _launch.launch(
            BACKWARD, logits, target, tables, options, grad=grad, upstream=upstream, stats=stats
        )
    return grad


@_forward.register_fake
def _(logits: Tensor, target: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    groups, rows, _ = logits.shape
    shape = (groups, rows) if rest[-1] == NONE else (groups,)
    return (
        logits.new_empty(shape, dtype=torch.float32),
        logits.new_empty((groups, 3, 0 if rest[-2] > 0 else rows), dtype=torch.float32),
    )


@_backward.register_fake
def _(upstream: Tensor, stats: Tensor, logits: Tensor, *rest: Any) -> Tensor:
    return logits.new_empty(logits.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1], *inputs[:6])
    ctx.options = inputs[6:]


def _differentiate(ctx: Any, grad_loss: Tensor, grad_stats: Tensor) -> tuple[Any, ...]:
    grad = torch.ops.longtail.margin_cross_entropy_backward(
        grad_loss, *ctx.saved_tensors, *ctx.options
    )
    return (grad, *(None,) * 9)


def _refuse(ctx: Any, *grads: Any) -> Any:
    raise no_second_derivative(*_NO_SECOND)


_forward.register_autograd(_differentiate, setup_context=_remember)
_backward.register_autograd(_refuse)


class _TwoPass(torch.autograd.Function):
    """The operator with its derivative, for eager mode and `torch.func`.

    (An operator's own derivative, registered above, serves `torch.compile` and not `torch.func`.)
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> Any:
        return torch.ops.longtail.margin_cross_entropy(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        _remember(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        grad = _Gradient.apply(grads[0], *ctx.saved_tensors, *ctx.options)  # type: ignore[no-untyped-call]
        return (grad, *(None,) * 9)


class _Gradient(torch.autograd.Function):
    """The operator's backward pass, which has no derivative of its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> Any:
        return torch.ops.longtail.margin_cross_entropy_backward(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _refuse(ctx, *grads)


def _fold(size: int, tensor: Tensor | None, dim: int | None, *, share: bool) -> Tensor | None:
    """A batched argument with the batch folded into the groups; shared tables stay one."""
    if tensor is None or (share and dim is None and tensor.shape[0] == 1):
        return tensor
    moved = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return moved.reshape(-1, *moved.shape[2:])


def _fold_tables(
    size: int, groups: int, tables: tuple[Tensor | None, ...], dims: tuple[int | None, ...]
) -> tuple[Tensor | None, ...]:
    """Tables for all groups of a batch; all shared, or all with one row per group."""
    folded = [_fold(size, table, dim, share=True) for table, dim in zip(tables, dims, strict=True)]
    if all(table is None or table.shape[0] == 1 for table in folded):
        return tuple(folded)
    per = [
        None
        if table is None
        else table.expand(size * groups, -1).contiguous()
        if table.shape[0] == 1
        else table.repeat_interleave(size * groups // table.shape[0], 0)
        for table in folded
    ]
    return tuple(per)


@_forward.register_vmap
def _(info: Any, dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
    size = info.batch_size
    logits, target = (_fold(size, args[i], dims[i], share=False) for i in range(2))
    assert logits is not None
    tables = _fold_tables(size, logits.shape[0] // size, args[2:6], dims[2:6])
    loss, stats = torch.ops.longtail.margin_cross_entropy(logits, target, *tables, *args[6:])
    return (loss.unflatten(0, (size, -1)), stats.unflatten(0, (size, -1))), (0, 0)


@_backward.register_vmap
def _(info: Any, dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
    size = info.batch_size
    first = [_fold(size, args[i], dims[i], share=False) for i in range(4)]
    assert first[2] is not None
    tables = _fold_tables(size, first[2].shape[0] // size, args[4:8], dims[4:8])
    grad = torch.ops.longtail.margin_cross_entropy_backward(*first, *tables, *args[8:])
    return grad.unflatten(0, (size, -1)), 0
