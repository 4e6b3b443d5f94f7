"""The arithmetic of the pairwise-margin family, once, for every named loss; no names here.

    ℓ(y, f) = α_y · softplus(x_y),   x_y = R_y − t_y,
    R_y = logsumexp_{j≠y} s·(f_j + b_j),   t_y = s·(f_y − a_y)

x_y is the log-odds against the target, and it is computed without ever putting the target into
the log-sum-exp: where the target leads by 80 logits, `lse − t_y` has lost every digit and
softplus(R_y − t_y) has lost none. With a dense margin, f_j + Δ_{yj} takes the place of f_j + b_j.

The road of a call: `family_loss` checks, then takes `example_losses` (class-index targets: one y
per example) or `class_losses` (soft targets: every y), then weighs and reduces.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal, NoReturn, TypedDict

import torch
from torch import Tensor
from torch.nn import functional as F

from longtail import _checks
from longtail._checks import InputError
from longtail.kernels._inputs import loss_dtype
from longtail.losses import _kernel
from longtail.losses._tensors import MarginTensors
from longtail.priors import ClassPrior

REDUCTIONS = ("none", "mean", "sum")
IMPLS = ("auto", "torch", "triton")


class LossOptions(TypedDict, total=False):
    """What every loss takes by keyword, with the meaning of `torch.nn.CrossEntropyLoss`.

    Attributes:
        weight: w, shape (num_classes,): multiplies each class's loss, and enters the mean's
            denominator as torch has it (α does not).
        ignore_index: class-index targets with this value count for nothing; default −100.
        label_smoothing: ε in [0, 1], default 0: the target becomes (1 − ε)·q + ε / num_classes.
        reduction: "mean" (the default), "sum" or "none".
        impl: "torch" for the reference in torch operations, "triton" for the GPU kernel, or
            "auto" (the default): the kernel where it can serve, else torch.
    """

    weight: Tensor | None
    ignore_index: int
    label_smoothing: float
    reduction: str
    impl: str


def family_loss(
    logits: Tensor,
    target: Tensor,
    margin: MarginTensors,
    *,
    caller: str,
    dropped: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    impl: str = "auto",
) -> Tensor:
    """The loss of `caller`: checks, then Σ_y q_y w_y α_y ℓ(y, f) per example, then the reduction.

    Args:
        logits: f, shape (N, C), (C,) or (N, C, d1, ...).
        target: class indices (shape without C) or class probabilities q (shape of `logits`), in
            [0, 1]; as with torch, they need not sum to 1.
        margin: on the device of the logits.
        caller: whose name the errors carry.
        dropped: bool, shape of `logits`: classes that don't compete in that example.
        weight: see `LossOptions`, as for the following.
        ignore_index: see there.
        label_smoothing: see there.
        reduction: see there.
        impl: see there.

    Returns:
        A scalar, or the shape of the class indices if `reduction` is "none".
    """
    epsilon = _checks.fraction(label_smoothing, caller, name="label_smoothing")
    _checks.choice(reduction, REDUCTIONS, caller, name="reduction")
    dim, num_classes = check_logits(logits, caller=caller)
    _check_margin(margin, logits, num_classes, caller=caller)
    soft = _check_target(target, logits, dim, ignore_index=ignore_index, caller=caller)
    check_weight(weight, num_classes, caller=caller)
    obstacle = _kernel.obstacle(logits, margin, soft=soft, dropped=dropped is not None)
    if _choose_impl(impl, logits, obstacle, caller=caller) == "triton":
        return _kernel.kernel_loss(
            logits,
            target,
            margin,
            weight=weight,
            ignore_index=ignore_index,
            label_smoothing=epsilon,
            reduction=reduction,
        )
    # Half-precision logits are computed with in float32, as torch's own kernels do inside.
    work = torch.promote_types(logits.dtype, torch.float32)
    margin = margin.cast(work)
    if weight is not None:  # from here on α_y means α_y · w_y; only the mean knows w alone
        weight = weight.to(work)
        margin = margin._replace(alpha=margin.alpha * weight)

    if soft:
        q = (1.0 - epsilon) * target.to(work) + epsilon / num_classes
        losses = (q * class_losses(logits, margin, dim, dropped)).sum(dim)
        count: Tensor | int = losses.numel()
    else:
        target = target.long()  # in uint8 a comparison with -100 would find 156
        ignored = target == ignore_index
        index = target.masked_fill(ignored, 0).unsqueeze(dim)
        _check_labels(logits, index, dim, ignore_index=ignore_index, caller=caller)
        if epsilon == 0.0:
            losses = example_losses(logits, index, margin, dim, dropped)
        else:
            every = class_losses(logits, margin, dim, dropped)
            uniform = every.sum(dim, keepdim=True) * (epsilon / num_classes)
            losses = (1.0 - epsilon) * every.gather(dim, index) + uniform
        losses = losses.squeeze(dim).masked_fill(ignored, 0.0)
        counted = ~ignored if weight is None else _of(weight, index).squeeze(dim) * ~ignored
        count = counted.sum()
        if weight is not None and epsilon > 0.0:  # torch has NaN here, not infinity
            count = count.masked_fill(count == 0, torch.nan)

    out = loss_dtype(logits)
    if reduction == "none":
        return losses.to(out)
    return (losses.sum() / (count if reduction == "mean" else 1)).to(out)


def example_losses(
    logits: Tensor, index: Tensor, margin: MarginTensors, dim: int, dropped: Tensor | None = None
) -> Tensor:
    """α_y · ℓ(y, f) for the one target y of each example.

    Args:
        logits: f, classes along `dim`.
        index: y, int64, shape of `logits` with one entry along `dim`.
        margin: in the type to compute in.
        dim: where the classes are.
        dropped: see `family_loss`; the target itself is never dropped.

    Returns:
        Shape of `index`.
    """
    if margin.dense is None:
        scores = _scores(logits, margin, dim)
        shift: Tensor | float = margin.scale * _of(margin.positive + margin.negative, index)
    else:
        # Δ_{yj} for the y at hand; unlike indexing, F.embedding knows vmap.
        rows = F.embedding(index.squeeze(dim), margin.dense).movedim(-1, dim)
        scores = margin.scale * (logits + rows)
        shift = 0.0
    if dropped is not None:
        scores = scores.masked_fill(dropped.scatter(dim, index, False), _never(scores))
    odds, _, _ = all_but_one(scores, index, dim)
    return _of(margin.alpha, index) * _softplus(odds + shift)


def class_losses(
    logits: Tensor, margin: MarginTensors, dim: int, dropped: Tensor | None = None
) -> Tensor:
    """α_y · ℓ(y, f) for every class y, as if it were the target: O(C) for additive margins.

    Args:
        logits: f, classes along `dim`.
        margin: in the type to compute in. A dense one costs C × C numbers per example.
        dim: where the classes are.
        dropped: see `family_loss`; a class is never dropped from its own loss.

    Returns:
        Shape of `logits`.
    """
    if margin.dense is None:
        scores = _scores(logits, margin, dim)
        own = scores - along(margin.scale * (margin.positive + margin.negative), logits, dim)
        if dropped is not None:
            scores = scores.masked_fill(dropped, _never(scores))
        against = _rest_for_each_class(scores, dim) - own
    else:
        own = margin.scale * logits.movedim(dim, -1).to(margin.dense.dtype)
        pairs = own.unsqueeze(-2) + margin.scale * margin.dense  # (..., target, competitor)
        if dropped is not None:
            pairs = pairs.masked_fill(dropped.movedim(dim, -1).unsqueeze(-2), _never(pairs))
        itself = torch.eye(pairs.shape[-1], dtype=torch.bool, device=pairs.device)
        rest = pairs.masked_fill(itself, _never(pairs)).logsumexp(-1)
        against = (rest - own).movedim(-1, dim)
    return along(margin.alpha, logits, dim) * _softplus(against)


def all_but_one(scores: Tensor, index: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """R = logsumexp_{j≠y} z_j, the log-odds R − z_y, and the competitors' shares e^{z_j − R}.

    Args:
        scores: z, classes along `dim`.
        index: y, shape of `scores` with one entry along `dim`.
        dim: where the classes are.

    Returns:
        R − z_y and R, in the shape of `index`; the shares, in the shape of `scores`, whose entry
        for y itself means nothing.
    """
    if torch.compiler.is_compiling():  # the compiler fuses this itself, and can't trace jvp
        rivals = _put(scores, index, _never(scores), dim)
        rest = rivals.logsumexp(dim, keepdim=True)
        return rest - _pick(scores, index, dim), rest, (rivals - rest).exp()
    odds, rest, jacobian = _AllButOne.apply(scores, index, dim)  # type: ignore[no-untyped-call]
    return odds, rest, jacobian


class _AllButOne(torch.autograd.Function):
    """`all_but_one` at half the cost of the same in separate operations.

    The gradient of the log-odds, J_j = e^{z_j − R} for the competitors and −1 for y, falls out of
    the forward pass, so the backward pass of a loss is one multiplication by it. J is an output
    with derivatives of its own, so that double backward and forward mode work too.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, index: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
        rivals = scores.scatter(dim, index, _never(scores))
        share = rivals.softmax(dim)
        # The largest rival's share is e^{max − R}: so R without another sum over the classes.
        rest = rivals.amax(dim, keepdim=True) - share.amax(dim, keepdim=True).log()
        odds = rest - scores.gather(dim, index)
        # The share of y is 0, so adding is setting, and vmap knows how to add.
        return odds, rest, share.scatter_add_(dim, index, torch.full_like(odds, -1.0))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, index, ctx.dim = inputs
        ctx.save_for_backward(index, output[2])
        ctx.save_for_forward(index, output[2])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None]:
        index, jacobian = ctx.saved_tensors
        grad_odds, grad_rest, grad_jacobian = grads
        terms = []
        if grad_odds is not None:
            terms.append(jacobian * grad_odds)
        if grad_rest is not None:
            terms.append(jacobian.scatter(ctx.dim, index, 0.0) * grad_rest)
        if grad_jacobian is not None:
            terms.append(_share_tangent(jacobian, index, grad_jacobian, ctx.dim))
        return (sum(terms[1:], start=terms[0]) if terms else None), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor, Tensor]:
        index, jacobian = ctx.saved_tensors
        tangent = tangents[0]
        odds = (jacobian * tangent).sum(ctx.dim, keepdim=True)
        shares = _share_tangent(jacobian, index, tangent, ctx.dim)
        return odds, odds + tangent.gather(ctx.dim, index), shares


def _share_tangent(jacobian: Tensor, index: Tensor, tangent: Tensor, dim: int) -> Tensor:
    """The derivative of the shares p along v, p·(v − Σ p·v), which is its own transpose."""
    share = jacobian.scatter(dim, index, 0.0)
    weighted = share * tangent
    return weighted - share * weighted.sum(dim, keepdim=True)


def _rest_for_each_class(scores: Tensor, dim: int) -> Tensor:
    """R_y = logsumexp_{j≠y} z_j for every y at once.

    R_y = log Σ_j e^{z_j} + log(1 − p_y), with p = softmax(z), is safe where p_y ≤ 1/2. That holds
    for all classes but the one with the largest score, which gets its own log-sum-exp; p of the
    others is their share without it, times the probability that it is not it.
    """
    top = scores.argmax(dim, keepdim=True)
    odds, rest, share = all_but_one(scores, top, dim)
    total = torch.logaddexp(_pick(scores, top, dim), rest)
    each = total + torch.log1p(share * -odds.sigmoid())
    return _put(each, top, rest, dim)


def _of(vector: Tensor, index: Tensor) -> Tensor:
    """One value per class, looked up; unlike `vector[index]`, gather refuses negative labels."""
    return vector.gather(0, index.reshape(-1)).reshape(index.shape)


def _pick(values: Tensor, index: Tensor, dim: int) -> Tensor:
    """The one entry along `dim` that `index` names."""
    if torch.compiler.is_compiling():  # a masked sum is fused with its neighbours, gather is not
        return values.masked_fill(~_mask(values, index, dim), 0.0).sum(dim, keepdim=True)
    return values.gather(dim, index)


def _put(values: Tensor, index: Tensor, new: Tensor | float, dim: int) -> Tensor:
    """The values with another entry where `index` says."""
    if torch.compiler.is_compiling():
        return torch.where(_mask(values, index, dim), new, values)
    return values.scatter(dim, index, new)


def _mask(values: Tensor, index: Tensor, dim: int) -> Tensor:
    return along(torch.arange(values.shape[dim], device=values.device), values, dim) == index


def _scores(logits: Tensor, margin: MarginTensors, dim: int) -> Tensor:
    """z_j = s·(f_j + b_j), in the margin's type."""
    offset = along(margin.scale * margin.negative, logits, dim)
    return torch.add(offset, logits, alpha=margin.scale)


def _never(scores: Tensor) -> float:
    """A score that never competes: finite, so that a row of nothing else has no NaN in it."""
    return float(torch.finfo(scores.dtype).min)


def _softplus(x: Tensor) -> Tensor:
    """log(1 + e^x); torch's default threshold of 20 would cost half the digits of float64."""
    return F.softplus(x, threshold=40.0)


def along(vector: Tensor, logits: Tensor, dim: int) -> Tensor:
    """One value per class, shaped to broadcast along the logits' class dimension."""
    return vector.reshape(-1, *([1] * (logits.ndim - dim - 1)))


def _choose_impl(
    impl: str, logits: Tensor, obstacle: str | None, *, caller: str
) -> Literal["torch", "triton"]:
    """Which implementation serves this call; an explicit choice is kept or refused."""
    _checks.choice(impl, IMPLS, caller, name="impl")
    if impl == "triton" and obstacle is not None:
        raise InputError(
            f"{caller}: `impl` is 'triton', but no Triton kernel can serve this call: {obstacle} "
            f"pass impl='auto' to take the kernel only where there is one, or impl='torch'."
        )
    if impl == "triton" or (impl == "auto" and obstacle is None and _kernel.worthwhile(logits)):
        return "triton"
    return "torch"


def check_logits(logits: Any, *, caller: str) -> tuple[int, int]:
    """Floating-point logits; which dimension holds the classes, and how many there are."""
    if isinstance(logits, Mapping) and "logits" in logits:
        refuse_trainer(caller=caller)
    if not isinstance(logits, Tensor):
        raise InputError(f"{caller}: `logits` must be a torch tensor; got {type(logits).__name__}.")
    if not logits.is_floating_point():
        raise InputError(
            f"{caller}: `logits` must be floating point; their dtype is {logits.dtype}."
        )
    if logits.ndim == 0:
        raise InputError(
            f"{caller}: `logits` must have shape (N, C), (C,) or (N, C, d1, ...); got a scalar."
        )
    dim = min(logits.ndim - 1, 1)
    return dim, logits.shape[dim]


def refuse_trainer(*, caller: str) -> NoReturn:
    """Say how a loss that was called as transformers' Trainer calls one becomes what it needs."""
    raise InputError(
        f"{caller}: this is how transformers' Trainer calls its loss, with the model's outputs and "
        f"`num_items_in_batch`; wrap the loss: compute_loss_func=TrainerLoss(loss), from "
        f"longtail.integrations.huggingface. Elsewhere pass outputs['logits']."
    )


def _check_margin(margin: MarginTensors, logits: Tensor, num_classes: int, *, caller: str) -> None:
    """A margin as wide as the logits, on their device."""
    if len(margin.alpha) != num_classes:
        raise InputError(
            f"{caller}: the margin has {len(margin.alpha)} classes but the logits have "
            f"{num_classes} columns, shape {tuple(logits.shape)}; "
            f"{ClassPrior._advice_on_width(len(margin.alpha), num_classes, tuple(logits.shape))}."
        )
    if margin.alpha.device != logits.device:
        raise InputError(
            f"{caller}: the loss's buffers are on {margin.alpha.device} but the logits are on "
            f"{logits.device}; move the loss once, with loss.to(logits.device)."
        )


def _check_target(target: Any, logits: Tensor, dim: int, *, ignore_index: int, caller: str) -> bool:
    """Whether the target holds class probabilities rather than class indices, as torch decides."""
    if not isinstance(target, Tensor):
        raise InputError(f"{caller}: `target` must be a torch tensor; got {type(target).__name__}.")
    shape = tuple(target.shape)
    indices_shape = tuple(logits.shape[:dim]) + tuple(logits.shape[dim + 1 :])
    if shape == tuple(logits.shape):
        if not target.is_floating_point():
            raise InputError(
                f"{caller}: `target` has the shape of the logits, {shape}, so it must hold class "
                f"probabilities, but its dtype is {target.dtype}; pass target.to(logits.dtype), "
                f"or class indices of shape {indices_shape}."
            )
        if ignore_index >= 0:
            raise InputError(
                f"{caller}: `ignore_index` is {ignore_index}, but `target` holds class "
                f"probabilities, which have no index to ignore."
            )
        _check_probabilities(target, indices_shape, caller=caller)
        return True
    if shape != indices_shape:
        raise InputError(
            f"{caller}: `target` must have shape {indices_shape} (class indices) or "
            f"{tuple(logits.shape)} (class probabilities) for logits of shape "
            f"{tuple(logits.shape)}; its shape is {shape}."
        )
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise InputError(
            f"{caller}: `target` must be integer class labels; their dtype is {target.dtype}; "
            f"cast them with .long() if they are whole numbers."
        )
    return False


def _check_probabilities(target: Tensor, indices_shape: tuple[int, ...], *, caller: str) -> None:
    """Class probabilities in [0, 1], up to rounding; what they sum to is free, as with torch."""
    seen = seen_range(target)
    # For what rounding leaves of 1, and for the step of a numerical derivative.
    slack = max(1e-5, 4 * torch.finfo(target.dtype).eps)
    if seen is None or (seen[0] >= -slack and seen[1] <= 1 + slack):
        return
    low, high = seen
    came = "NaN occurs" if math.isnan(low + high) else f"they go from {low:g} to {high:g}"
    raise InputError(
        f"{caller}: `target` has the shape of the logits, so it must hold class probabilities, "
        f"which lie in [0, 1], but {came}; pass target.softmax({min(target.ndim - 1, 1)}) if these "
        f"are logits, or class indices of shape {indices_shape}."
    )


def seen_range(values: Tensor) -> tuple[float, float] | None:
    """The least and the largest value, NaN if there is one; None where looking is not free.

    On a GPU it would wait for the device, a compiler sees no values, and neither does `vmap`.
    """
    if values.device.type != "cpu" or torch.compiler.is_compiling() or values.numel() == 0:
        return None
    try:
        low, high = values.detach().aminmax()
        return float(low), float(high)
    except RuntimeError:  # as under vmap, and with tensors that only have a shape
        return None


def check_weight(weight: Any, num_classes: int, *, caller: str) -> None:
    if weight is None:
        return
    if not isinstance(weight, Tensor) or tuple(weight.shape) != (num_classes,):
        came = (
            f"shape {tuple(weight.shape)}" if isinstance(weight, Tensor) else type(weight).__name__
        )
        raise InputError(
            f"{caller}: `weight` must be a torch tensor with one value per class, shape "
            f"({num_classes},); got {came}."
        )


def _check_labels(
    logits: Tensor, index: Tensor, dim: int, *, ignore_index: int, caller: str
) -> None:
    """Labels in range, where looking is free: on a GPU torch's own device assertion says so."""
    if logits.device.type != "cpu" or torch.compiler.is_compiling():
        return
    try:  # gather looks at every label anyway, also under vmap, where we can't
        logits.detach().gather(dim, index)
    except RuntimeError as error:
        found = re.search(r"index (-?\d+) is out of bounds", str(error))
        if found is None:
            raise
        raise InputError(
            f"{caller}: `target` must lie in 0 .. {logits.shape[dim] - 1}, but {found[1]} occurs; "
            f"labels to leave out must equal ignore_index={ignore_index}."
        ) from error
