"""The additive margin losses from a slice of the classes: each process sees only its own logits.

    ℓ(y, f) = α_y · softplus(R_y − t_y)
    R_y = logsumexp_{j≠y} s·(f_j + b_j),   t_y = s·(f_y − a_y)

A process computes logsumexp over its own classes but y, and t_y if it holds y; these two numbers
per example are all that is exchanged. The target stays out of the sum, so that a tiny loss keeps
its digits. The logits exist once, in the features' type; the backward pass turns them into their
own gradient in place. Arithmetic is float32, in blocks of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from longtail.kernels._inputs import refuse_second_derivative
from longtail.train.class_slices import Slice

BLOCK_BYTES = 4 * 2**20  # of float32 scores at once; more if that is a sixteenth of the rows


class Margins(NamedTuple):
    """Margins of the classes and labels of the batch, in the type to compute in.

    Attributes:
        target: y, int64, shape (N,); any class where not counted.
        counted: bool, shape (N,): not ignored.
        negative: b of this process's classes, shape (width,).
        shift: s·(a + b) of all classes, shape (C,).
        strength: α · w of all classes, shape (C,).
        scale: s.
        epsilon: label smoothing.
    """

    target: Tensor
    counted: Tensor
    negative: Tensor
    shift: Tensor
    strength: Tensor
    scale: float
    epsilon: float

    def counted_only(self, slopes: Tensor) -> Tensor:
        """Slopes of the examples, shape (N, 1): 0 where not counted, whatever came in.

        Where nothing counts a mean's denominator is 0, and infinity comes in.
        """
        return slopes.masked_fill(~self.counted, 0.0).unsqueeze(1)


def slice_losses(
    features: Tensor, weight: Tensor, bias: Tensor | None, margins: Margins, part: Slice
) -> Tensor:
    """The loss of every example, the same on every process; zero where not counted.

    The gradient that comes back for the features is this process's part of it, yet to be added
    up over the processes; those of weight and bias are whole.

    Args:
        features: shape (N, D), the same on every process.
        weight: this process's rows, shape (width, D), in the features' type.
        bias: this process's, shape (width,), or None.
        margins: see there.
        part: this process's classes.
    """
    function = _Smoothed if margins.epsilon > 0.0 else _Plain
    return function.apply(features, weight, bias, margins, part)  # type: ignore[no-any-return, no-untyped-call]


class _Scores:
    """One process's logits, and the scores z = s·(f + bias + b) of a block of their rows.

    Attributes:
        logits: features @ weight.T, shape (N, width).
        mine: bool, shape (N, 1): whether the target is one of this process's classes.
        index: where among them, int64, shape (N, 1); 0 where it is none of them.
    """

    def __init__(
        self, features: Tensor, weight: Tensor, bias: Tensor | None, margins: Margins, part: Slice
    ) -> None:
        self.logits = features @ weight.t()
        self.scale = margins.scale
        self.dtype = margins.negative.dtype
        offset = margins.negative if bias is None else margins.negative + bias
        self.offset = margins.scale * offset
        self.mine = ((margins.target >= part.start) & (margins.target < part.stop)).unsqueeze(1)
        self.index = (margins.target.unsqueeze(1) - part.start) * self.mine

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Rows and their scores, a tensor of its own; none where this process has no classes."""
        count, width = self.logits.shape
        if width == 0:
            return
        step = max(1, -(-count // 16), BLOCK_BYTES // (width * self.dtype.itemsize))
        for start in range(0, count, step):
            rows = slice(start, min(start + step, count))
            yield rows, torch.add(self.offset, self.logits[rows].to(self.dtype), alpha=self.scale)

    def gradients(
        self, features: Tensor, weight: Tensor, bias_grad: Tensor | None, needs: tuple[bool, ...]
    ) -> tuple[Tensor | None, ...]:
        """Those of features, weight and bias, once the logits hold their own gradient."""
        return (
            self.logits @ weight if needs[0] else None,
            self.logits.t() @ features if needs[1] else None,
            bias_grad if needs[2] else None,  # autograd casts it to the bias's own type
        )


def _swap(values: Tensor, index: Tensor, where: Tensor, new: Tensor | float) -> Tensor:
    """Put `new` where `index` says, in the rows of which `where` is true; return what was there."""
    old = values.gather(1, index)
    values.scatter_(1, index, torch.where(where, new, old))
    return old


def _keep(ctx: Any, scores: _Scores, *args: Any) -> None:
    """Save what a backward pass takes."""
    features, weight, bias, ctx.margins, ctx.part = args
    ctx.save_for_backward(features, weight, bias)
    ctx.scores = scores if any(ctx.needs_input_grad[:3]) else None


def _taken(ctx: Any) -> tuple[_Scores, Tensor, Tensor, Tensor | None]:
    """The scores, whose logits may be overwritten; computed again the second time."""
    refuse_second_derivative(
        "ShardedHead.loss",
        "compute the logits with a whole nn.Linear, and their loss with the criterion itself,",
    )
    features, weight, bias = ctx.saved_tensors
    scores, ctx.scores = ctx.scores, None
    if scores is None:
        scores = _Scores(features, weight, bias, ctx.margins, ctx.part)
    total = None if bias is None else torch.zeros_like(bias, dtype=scores.dtype)
    return scores, features, weight, total


class _Plain(torch.autograd.Function):
    """Class-index targets: one y per example."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        margins: Margins = args[3]
        part: Slice = args[4]
        scores = _Scores(*args)
        # This process's logsumexp and target score, until the others' come to it.
        stats = torch.zeros(
            (2, len(margins.target)), dtype=scores.dtype, device=margins.target.device
        )
        never = torch.finfo(scores.dtype).min
        stats[0] = never
        for rows, z in scores.blocks():
            mine = scores.mine[rows]
            own = _swap(z, scores.index[rows], mine, never)
            stats[0, rows] = z.logsumexp(1)
            stats[1, rows] = (own * mine).squeeze(1)
        every = part.gather(stats)
        rest, own = every[:, 0].logsumexp(0), every[:, 1].sum(0)
        odds = rest - own + margins.shift.gather(0, margins.target)
        strength = margins.strength.gather(0, margins.target) * margins.counted
        _keep(ctx, scores, *args)
        ctx.rest, ctx.slope = rest, strength * odds.sigmoid()
        return strength * F.softplus(odds, threshold=40.0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scores, features, weight, bias_grad = _taken(ctx)
        factor = ctx.margins.counted_only(ctx.margins.scale * ctx.slope * grads[0])
        for rows, z in scores.blocks():
            share = z.sub_(ctx.rest[rows].unsqueeze(1)).exp_()
            _swap(share, scores.index[rows], scores.mine[rows], -1.0)
            share.mul_(factor[rows])
            if bias_grad is not None:
                bias_grad += share.sum(0)
            scores.logits[rows] = share
        return *scores.gradients(features, weight, bias_grad, ctx.needs_input_grad), None, None


class _Smoothed(torch.autograd.Function):
    """Label smoothing: Σ_c q_c α_c ℓ(c, f) over every class c, each with its own margin.

    With T = log Σ_j e^{z_j} and p = e^{z − T}, R_c = T + log(1 − p_c), which is safe for all
    classes but the one with the largest score; that one's R is the logsumexp of the others.
    The gradient is p_j · Σ_{c≠j} h_c − k_j σ_j, with k = q·α, σ_c = sigmoid(R_c − t_c) and
    h_c = k_c σ_c / (1 − p_c). The largest score's h is kept out of the sum: it may be much larger
    than all others together, and subtracting it again would leave no digits of them.
    """

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        margins: Margins = args[3]
        part: Slice = args[4]
        scores = _Scores(*args)
        count, device = len(margins.target), margins.target.device
        never = torch.finfo(scores.dtype).min
        stats = torch.full((2, count), never, dtype=scores.dtype, device=device)
        place = torch.zeros((count, 1), dtype=torch.int64, device=device)
        for rows, z in scores.blocks():
            top, place[rows] = z.max(1, keepdim=True)
            stats[0, rows] = top.squeeze(1)
            stats[1, rows] = z.scatter_(1, place[rows], never).logsumexp(1)
        every = part.gather(stats)
        top, winner = every[:, 0].max(0, keepdim=True)
        losers = every[:, 0].scatter(0, winner, never)
        rest = torch.cat([every[:, 1], losers]).logsumexp(0)
        total = torch.logaddexp(rest, top.squeeze(0))
        leads = (winner == part.rank).t() & (part.width > 0)
        where = scores.mine, scores.index, place, leads
        ctx.terms, ctx.where = partial(_terms, where, margins, part, rest, total), (place, leads)

        sums = torch.zeros((3, count), dtype=scores.dtype, device=device)
        for rows, z in scores.blocks():
            _, odds, coefficient, h = ctx.terms(rows, z)
            sums[0, rows] = (coefficient * F.softplus(odds, threshold=40.0)).sum(1)
            largest = _swap(h, place[rows], leads[rows], 0.0)
            sums[1, rows] = h.sum(1)
            sums[2, rows] = (largest * leads[rows]).squeeze(1)
        sums = part.sum(sums)
        ctx.others, ctx.largest = sums[1], sums[2]
        _keep(ctx, scores, *args)
        return sums[0] * margins.counted

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scores, features, weight, bias_grad = _taken(ctx)
        terms, (place, leads) = ctx.terms, ctx.where
        factor = ctx.margins.counted_only(ctx.margins.scale * grads[0])
        for rows, z in scores.blocks():
            share, odds, coefficient, h = terms(rows, z)
            others, largest = ctx.others[rows].unsqueeze(1), ctx.largest[rows].unsqueeze(1)
            h = others + largest - h
            _swap(h, place[rows], leads[rows], others)
            grad = share.mul_(h).sub_(coefficient * odds.sigmoid()).mul_(factor[rows])
            if bias_grad is not None:
                bias_grad += grad.sum(0)
            scores.logits[rows] = grad
        return *scores.gradients(features, weight, bias_grad, ctx.needs_input_grad), None, None


def _terms(
    where: tuple[Tensor, Tensor, Tensor, Tensor],
    margins: Margins,
    part: Slice,
    rest: Tensor,
    total: Tensor,
    rows: slice,
    z: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Per example of some rows and class of this process: p, R − t, k and h of `_Smoothed`."""
    mine, index, place, leads = (value[rows] for value in where)
    own, total = slice(part.start, part.stop), total[rows].unsqueeze(1)
    share = (z - total).exp()
    free = torch.log1p(-share)  # log(1 − p)
    _swap(free, place, leads, rest[rows].unsqueeze(1) - total)
    odds = total + free - z + margins.shift[own]
    strength = margins.strength[own]
    coefficient = (margins.epsilon / part.num_classes * strength).repeat(len(z), 1)
    coefficient.scatter_add_(1, index, (1.0 - margins.epsilon) * strength[index] * mine)
    h = coefficient * (F.logsigmoid(odds) - free).exp()
    return share, odds, coefficient, h


def mean_denominator(margins: Margins, weight: Tensor | None) -> Tensor:
    """The mean's denominator, as torch has it: the counted examples, or their class weights."""
    if weight is None:
        return margins.counted.sum()
    total = (weight.gather(0, margins.target) * margins.counted).sum()
    if margins.epsilon > 0.0:  # torch has NaN here, not infinity
        total = total.masked_fill(total == 0, math.nan)
    return total
