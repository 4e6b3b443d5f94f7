"""Features, classifier weights and target in, loss out, without all the logits at once.

Logits exist for a chunk of rows at a time. They become their own gradient, which is multiplied into
the gradients of features and weights before the next chunk takes their place.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from longtail._checks import InputError
from longtail.kernels import available
from longtail.kernels import cross_entropy as kernel
from longtail.kernels._inputs import (
    check_labels,
    loss_dtype,
    refuse_second_derivative,
    under_autocast,
    work_dtype,
)
from longtail.losses.pairwise import PairwiseMarginLoss, counted, family_loss

CHUNK_BYTES = 256 * 2**20  # of logits at once; as much as the weights, if these are larger
CPU_CHUNK_BYTES = 8 * 2**20  # or a quarter of the weights: every chunk costs passes over them
CPU_CHUNK_ROWS = 8  # at least


def linear_cross_entropy(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    criterion: PairwiseMarginLoss,
    *,
    bias: Tensor | None = None,
) -> Tensor:
    """Return `criterion` of the logits features @ weight.T + bias, holding a few rows of them.

    Values and gradients are those of the layer followed by the loss, but of N × C logits and
    their gradient only a chunk of rows exists at a time. There is no second derivative.

    Args:
        features: shape (N, D).
        weight: of the classifier, shape (C, D), in the features' type.
        target: class indices, shape (N,).
        criterion: a loss of this package on the features' device, without label smoothing, with an
            additive margin; its class weights, `ignore_index` and reduction apply.
        bias: of the classifier, shape (C,).

    Returns:
        As from the criterion.

    Examples:
        >>> from longtail import ClassPrior
        >>> from longtail.losses import LogitAdjustedLoss
        >>> features, weight = torch.ones(2, 4), torch.zeros(3, 4)
        >>> criterion = LogitAdjustedLoss(ClassPrior.uniform(3))
        >>> linear_cross_entropy(features, weight, torch.tensor([0, 2]), criterion)  # log 3
        tensor(1.0986)
    """
    if criterion.whole_rows:
        raise InputError(
            "label smoothing, dense margins and EqualizedThresholdLoss need all logits at once: "
            "take criterion(linear(features), target)."
        )
    if weight.shape[0] != criterion.num_classes:
        raise InputError(
            f"`weight` must have a row for each of the loss's {criterion.num_classes} classes; its "
            f"shape is {tuple(weight.shape)}."
        )
    check_labels(target, len(features))
    reduction, ignored = criterion.reduction, criterion.ignore_index
    target, hidden = target.long(), features
    if under_autocast(features.device) and features.dtype != torch.float64:
        low = torch.get_autocast_dtype(features.device.type)
        hidden, weight = features.to(low), weight.to(low)
    work = work_dtype(features)
    divisor = features.new_ones((), dtype=work)
    if reduction == "mean":
        divisor = counted(target, criterion.weight, ignored).sum().to(work)
    functional = torch._C._are_functorch_transforms_active()
    if reduction == "none" or hidden.dtype == torch.float16 or functional:

        def of_rows(hidden: Tensor, target: Tensor) -> Tensor:
            logits = F.linear(hidden, weight, bias)
            return family_loss(criterion, logits.to(work), target, None, "none")

        # The backward pass computes the logits again, unless checkpoints are not supported.
        if functional or torch.compiler.is_compiling():
            losses = of_rows(hidden, target)
        else:
            chunks = (torch.split(t, chunk_rows(hidden, weight)) for t in (hidden, target))
            pairs = zip(*chunks, strict=True)
            found = [checkpoint(of_rows, *pair, use_reentrant=False) for pair in pairs]
            losses = torch.cat(found)
        loss = losses if reduction == "none" else losses.sum() / divisor
    else:
        (alpha, margin, lower), w = criterion.parts(), criterion.weight
        w = w if alpha is None else alpha if w is None else alpha * w
        tables = [None if table is None else table.to(work) for table in (margin, lower, w)]
        leaves, learns = (hidden, weight, bias), torch.is_grad_enabled()
        needs = [learns and leaf is not None and leaf.requires_grad for leaf in leaves]
        loss = torch.ops.longtail.linear_cross_entropy(
            *leaves, target, *tables, criterion.scale, ignored, divisor, needs
        )[0]
    return loss.to(loss_dtype(features))


def chunk_rows(hidden: Tensor, weight: Tensor) -> int:
    """Return how many rows' logits exist at a time."""
    weights, row = weight.numel() * weight.element_size(), len(weight) * weight.element_size()
    if hidden.is_cuda:
        return max(max(CHUNK_BYTES, weights) // row, 1)
    return max(max(CPU_CHUNK_BYTES, weights // 4) // row, CPU_CHUNK_ROWS)


def _by_kernel(logits: Tensor) -> bool:
    return available(logits.device) and logits.is_cuda and logits.dtype in kernel.DTYPES


_SCHEMA = (
    "(Tensor hidden, Tensor weight, Tensor? linear_bias, Tensor target, Tensor? bias, "
    "Tensor? lower, Tensor? class_weight, float scale, int ignore_index, Tensor divisor, "
    "bool[] needs) -> Tensor[]"
)


@torch.library.custom_op("longtail::linear_cross_entropy", mutates_args=(), schema=_SCHEMA)
def _operator(
    hidden: Tensor,
    weight: Tensor,
    linear_bias: Tensor | None,
    target: Tensor,
    bias: Tensor | None,
    lower: Tensor | None,
    class_weight: Tensor | None,
    scale: float,
    ignore_index: int,
    divisor: Tensor,
    needs: list[bool],
) -> list[Tensor]:
    """Return the reduced loss and the gradients of those of the first three that `needs` names."""
    if linear_bias is not None:
        bias = linear_bias.to(divisor.dtype) if bias is None else bias + linear_bias
    n, classes, size = len(hidden), len(weight), chunk_rows(hidden, weight)
    # The kernel is faster on rows of whole 16 bytes, padded with classes at −∞.
    more = -classes % 8 if hidden.is_cuda else 0
    buffer = hidden.new_zeros((min(size, n), classes + more))
    if more:
        bias = divisor.new_zeros(classes) if bias is None else bias
        bias = F.pad(bias, (0, more), value=-torch.inf)
    tables = (bias, lower, class_weight, divisor)
    total = divisor.new_zeros(()) / divisor  # NaN for the mean of nothing
    d_hidden = torch.empty_like(hidden, memory_format=torch.contiguous_format)
    d_weight = d_bias = None
    for rows in (slice(start, start + size) for start in range(0, n, size)):
        h = hidden[rows]
        logits = buffer[: len(h)]
        torch.mm(h, weight.t(), out=logits[:, :classes])
        loss, grad = _chunk(logits, target[rows], *tables, scale, ignore_index, learns=any(needs))
        total += loss
        grad = grad[:, :classes]
        if needs[0]:
            torch.mm(grad, weight, out=d_hidden[rows])
        if needs[1]:
            d_weight = _add_product(d_weight, grad.t(), h, last=rows.stop >= n)
        if needs[2]:
            part = grad.sum(0, dtype=divisor.dtype)
            d_bias = part if d_bias is None else d_bias.add_(part)
    found: list[Tensor] = [total]
    if needs[0]:
        found.append(d_hidden)
    if needs[1]:
        found.append(torch.zeros_like(weight) if d_weight is None else d_weight.to(weight.dtype))
    if needs[2] and linear_bias is not None:
        empty = torch.zeros_like(linear_bias)
        found.append(empty if d_bias is None else d_bias.to(linear_bias.dtype))
    return found


def _chunk(
    logits: Tensor,
    target: Tensor,
    bias: Tensor | None,
    lower: Tensor | None,
    class_weight: Tensor | None,
    divisor: Tensor,
    scale: float,
    ignore_index: int,
    *,
    learns: bool,
) -> tuple[Tensor, Tensor]:
    """Return the sum of the rows' losses over the divisor, and its gradient, perhaps in place."""
    if _by_kernel(logits):
        tables = (bias, lower, class_weight, divisor)
        grad = logits if learns else None
        losses = kernel.loss_of_rows(logits, target, *tables, scale, ignore_index, grad=grad)
        return losses.sum(), logits
    z = logits.to(divisor.dtype)
    if bias is not None:
        z = z.add_(bias)
    if scale != 1:
        z = z.mul_(scale)
    column = target.masked_fill(target == ignore_index, 0).unsqueeze(1)
    if lower is not None:
        z.scatter_add_(1, column, -scale * lower[column])
    z = torch.log_softmax(z, 1)
    # Where nothing counts the mean is NaN, but its gradient 0.
    part = counted(target, class_weight, ignore_index).to(z) / divisor
    part = part.nan_to_num(0.0).unsqueeze(1)
    loss = -(z.gather(1, column) * part).masked_fill(part == 0, 0.0).sum()
    if learns:
        z = z.exp_().mul_(scale * part).scatter_add_(1, column, -scale * part)
    return loss, z.to(logits.dtype)


def _add_product(total: Tensor | None, a: Tensor, b: Tensor, *, last: bool) -> Tensor:
    """Return total + a b, added up in float32 at least."""
    if total is None:
        return a @ b if last else (a @ b).to(work_dtype(b))
    if total.dtype == b.dtype:
        return total.addmm_(a, b)
    if a.is_cuda and torch.__version__ >= (2, 11):  # type: ignore[operator]
        return torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    return total.add_(a @ b)


@_operator.register_fake
def _(hidden: Tensor, weight: Tensor, linear_bias: Tensor | None, *rest: Any) -> list[Tensor]:
    of = itertools.compress((hidden, weight, linear_bias), rest[-1])
    like = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in of if t is not None)
    return [rest[-2].new_empty(()), *like]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.needs = inputs[-1]
    ctx.save_for_backward(*output[1:])


def _differentiate(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    if not torch.compiler.is_compiling():
        refuse_second_derivative("linear_cross_entropy", "compute the logits, and their loss,")
    saved = iter(ctx.saved_tensors)
    found = [_times(next(saved), grads[0]) if need else None for need in ctx.needs]
    return (*found, *(None,) * 8)


def _times(grad: Tensor, factor: Tensor) -> Tensor:
    """Return grad · factor, without a pass over memory if the factor is 1."""
    if torch.compiler.is_compiling() or type(grad) is not Tensor:  # tracing runs no kernel
        return grad * factor
    if not grad.is_cuda:
        return grad if factor == 1 else grad * factor
    again = torch._C._autograd._get_current_graph_task_keep_graph()
    if again or not _by_kernel(grad):
        return (grad * factor).to(grad.dtype)
    return kernel.scale_(grad, factor)


_operator.register_autograd(_differentiate, setup_context=_remember)
