"""The last layer cut over processes: each holds a slice of the classes, and no one all logits.

`ShardedHead` is the module: weights as DTensors, the loss, predictions, loading. Before it, in
this file, how classes are cut and what processes send each other, and the arithmetic of the loss:

    ℓ(y, f) = α_y · softplus(R_y − t_y)
    R_y = logsumexp_{j≠y} s·(f_j + b_j),   t_y = s·(f_y − a_y)

A process computes logsumexp over its own classes but y, and t_y if it holds y; these two numbers
per example are all that is exchanged. The target stays out of the sum, so that a tiny loss keeps
its digits. The logits exist once, in the features' type; the backward pass turns them into their
own gradient in place. Arithmetic is float32, in blocks of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional as F

from longtail import _checks
from longtail._checks import InputError
from longtail.kernels._inputs import check_labels, refuse_second_derivative, under_autocast
from longtail.losses import EqualizedThresholdLoss, PairwiseMarginLoss
from longtail.priors import ClassPrior

__all__ = ["ShardedHead", "full_state_dict", "gather_slices"]

BLOCK_BYTES = 4 * 2**20  # of float32 scores at once; more if that is a sixteenth of the rows
_DRAWN = 4096  # rows of the weights at once, at the start

# Their names since torch 2.13, and before.
_ALL_GATHER: Callable[..., Any] = getattr(
    distributed, "all_gather_single", distributed.all_gather_into_tensor
)
_REDUCE_SCATTER: Callable[..., Any] = getattr(
    distributed, "reduce_scatter_single", distributed.reduce_scatter_tensor
)


# ---------------------------------------------------------------------------- slices of classes


class Slice(NamedTuple):
    """The classes start .. stop − 1 of `num_classes`, which process `rank` of `size` holds.

    They are cut as `torch.chunk` does, so the last ones may be shorter or empty. `group` are
    the processes, None for a single one.

    Examples:
        >>> [Slice.cut(11, rank=rank, size=3)[:2] for rank in range(3)]
        [(0, 4), (4, 8), (8, 11)]
    """

    start: int
    stop: int
    num_classes: int
    rank: int = 0
    size: int = 1
    group: distributed.ProcessGroup | None = None

    @classmethod
    def cut(
        cls,
        num_classes: int,
        *,
        rank: int = 0,
        size: int = 1,
        group: distributed.ProcessGroup | None = None,
    ) -> Slice:
        """The slice of one process."""
        length = -(-num_classes // size)
        start, stop = (min(num_classes, length * edge) for edge in (rank, rank + 1))
        return cls(start, stop, num_classes, rank, size, group)

    @classmethod
    def of_mesh(cls, num_classes: int, mesh: DeviceMesh | None) -> Slice:
        """The slice of this process in a one-dimensional mesh; all classes without one."""
        if mesh is None:
            return cls.cut(num_classes)
        if mesh.size() > num_classes:
            raise InputError(
                f"`mesh` has {mesh.size()} processes for {num_classes} classes, so some would "
                f"hold none; cut the classes over at most {num_classes} processes."
            )
        rank, group = mesh.get_local_rank(), mesh.get_group()
        return cls.cut(num_classes, rank=rank, size=mesh.size(), group=group)

    def __deepcopy__(self, memo: dict[int, Any]) -> Slice:
        """Itself: a copy of a head talks to the same processes, whose group can't be copied."""
        return self

    @property
    def width(self) -> int:
        """Number of classes it holds."""
        return self.stop - self.start

    def gather(self, tensor: Tensor) -> Tensor:
        """Every process's tensor of this shape, stacked along a new first dimension."""
        if self.group is None:
            return tensor.unsqueeze(0)
        out = tensor.new_empty((self.size * tensor.shape[0], *tensor.shape[1:]))
        _ALL_GATHER(out, tensor.contiguous(), group=self.group)
        return out.reshape(self.size, *tensor.shape)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the processes, in place."""
        if self.group is not None:
            distributed.all_reduce(tensor, group=self.group)
        return tensor


class Rows(NamedTuple):
    """Layout of the rows of all processes behind each other: padded to the longest.

    Attributes:
        counts: rows of each process.
        length: the largest of them; process r's rows start at r · length.
    """

    counts: tuple[int, ...]
    length: int

    @classmethod
    def of(cls, own: Tensor, part: Slice) -> Rows:
        """From each process's own rows; on a GPU this waits for the device."""
        count = torch.tensor([own.shape[0]], device=own.device)
        counts = tuple(part.gather(count).flatten().tolist())
        return cls(counts, max(counts))

    def pad(self, own: Tensor, value: float = 0.0) -> Tensor:
        """A process's rows with as many more as the longest has."""
        missing = self.length - own.shape[0]
        if missing == 0:
            return own
        return torch.cat([own, own.new_full((missing, *own.shape[1:]), value)])

    def places(self, device: torch.device) -> Tensor:
        """Positions of the rows that are not padding, in the order of the processes."""
        starts = (rank * self.length for rank in range(len(self.counts)))
        pairs = zip(starts, self.counts, strict=True)
        return torch.cat([torch.arange(s, s + n, device=device) for s, n in pairs])


class _Everywhere(torch.autograd.Function):
    """Features that are the same on every process; their gradients are added up over these."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, part: Slice) -> Tensor:
        ctx.part = part
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.part.sum(grads[0].contiguous().clone()), None


class _AllRows(torch.autograd.Function):
    """Each process's rows behind each other; its own rows' gradient comes back times a factor."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, part: Slice, factor: float) -> Tensor:
        ctx.part, ctx.factor = part, factor
        return part.gather(features).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        rows = grads[0].shape[0] // ctx.part.size
        out = grads[0].new_empty((rows, *grads[0].shape[1:]))
        _REDUCE_SCATTER(out, grads[0].contiguous(), group=ctx.part.group)
        return out.mul_(ctx.factor), None, None


class _OwnRows(torch.autograd.Function):
    """This process's entries of what every process computed for all rows."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, rows: Rows, part: Slice) -> Tensor:
        ctx.rows, ctx.part = rows, part
        start = part.rank * rows.length
        return values[start : start + rows.counts[part.rank]].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        # Every process holds a slice of every row's logits, so it needs every row's gradient.
        return ctx.part.gather(ctx.rows.pad(grads[0])).flatten(0, 1), None, None


def as_slice(local: Tensor, part: Slice, mesh: DeviceMesh | None, *, dim: int = 0) -> Tensor:
    """A process's own classes as the DTensor that they are a part of; the tensor without a mesh."""
    if mesh is None:
        return local
    shape = list(local.shape)
    shape[dim] = part.num_classes
    # Said explicitly, since slices of unequal length can't tell the whole; nothing is sent.
    stride = torch.empty(shape, device="meta").stride()
    where = [Shard(dim)]
    return DTensor.from_local(
        local, mesh, where, run_check=False, shape=torch.Size(shape), stride=stride
    )


def local(tensor: Tensor) -> Tensor:
    """This process's part of a DTensor, differentiable; any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _slices(tensor: DTensor) -> tuple[distributed.ProcessGroup, int, list[Slice], list[int]]:
    """The group, this process's rank in it, and of each process the slice and the global rank."""
    group, rank = tensor.device_mesh.get_group(), tensor.device_mesh.get_local_rank()
    size = tensor.device_mesh.size()
    parts = [Slice.cut(tensor.shape[0], rank=n, size=size) for n in range(size)]
    return group, rank, parts, [distributed.get_global_rank(group, n) for n in range(size)]


def gather_slices(tensor: Tensor) -> Tensor | None:
    """The whole of a tensor in slices of classes, on the CPU of the mesh's first process.

    One slice after the other is sent, so no device ever holds more than two. Every process of the
    mesh must call this.

    Args:
        tensor: a DTensor, sharded along dimension 0 of a one-dimensional mesh, or a plain tensor.

    Returns:
        A copy on the CPU; None on the other processes of the mesh.

    Examples:
        >>> gather_slices(torch.ones(2))
        tensor([1., 1.])
    """
    if not isinstance(tensor, DTensor):
        return tensor.detach().to("cpu", copy=True)
    own = local(tensor.detach()).contiguous()
    group, rank, parts, places = _slices(tensor)
    whole = torch.empty(tensor.shape, dtype=tensor.dtype) if rank == 0 else None
    for part, place in zip(parts, places, strict=True):
        if part.width == 0:
            continue
        values = own if part.rank == rank else own.new_empty((part.width, *own.shape[1:]))
        distributed.broadcast(values, src=place, group=group)
        if whole is not None:
            whole[part.start : part.stop] = values.cpu()
    return whole


def scatter_slices(tensor: Tensor, whole: Tensor | None) -> None:
    """Fill a tensor in slices of classes from the whole, the reverse of `gather_slices`.

    Args:
        tensor: a DTensor, sharded along dimension 0 of a one-dimensional mesh.
        whole: of the same shape, on any device; None on the processes but the mesh's first.
    """
    assert isinstance(tensor, DTensor)
    own = local(tensor.detach())
    group, rank, parts, places = _slices(tensor)
    for part, place in zip(parts, places, strict=True):
        if part.width == 0 or rank not in (0, part.rank):
            continue
        if rank != 0:
            values = own.new_empty(own.shape)
            distributed.recv(values, src=places[0], group=group)
        else:
            assert whole is not None
            values = whole[part.start : part.stop].to(own.device, own.dtype).contiguous()
        if rank == part.rank:
            own.copy_(values)
        else:
            distributed.send(values, dst=place, group=group)


def gather_all(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`gather_slices` of each tensor, where there is something."""
    found = {name: gather_slices(value) for name, value in tensors.items()}
    return {name: value for name, value in found.items() if value is not None}


def full_state_dict(module: nn.Module) -> dict[str, Tensor]:
    """A module's state under the names and in the shapes of the unsharded one, on the CPU.

    Args:
        module: any, with sharded heads somewhere in it. Every process of the mesh must call this.

    Returns:
        Whole tensors on the mesh's first process, fit for safetensors and for `load_state_dict`
        of a module with any number of slices or none; on the others, what is not in slices.

    Examples:
        >>> sorted(full_state_dict(nn.Sequential(nn.Linear(2, 3))))
        ['0.bias', '0.weight']
    """
    return gather_all(module.state_dict())


# ---------------------------------------------------------------------------- the loss of a slice


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
        index: where among them, int64, shape (N, 1); 0 for other classes.
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


# ---------------------------------------------------------------------------- the module


class ShardedHead(nn.Module):
    """A linear layer with a slice of the classes on each process, and its loss without the logits.

    `weight` and `bias` are DTensors sharded along the classes; their gradients and what an
    optimiser keeps for them live in the same slices. They start as those of `nn.Linear` would:
    with the same seed on every process, whatever the number of processes. Give them a parameter
    group of their own: an optimiser that steps many tensors at once can't mix DTensors with others.

    Two ways to feed it:

    - `batch="replicated"`: every process has the same features (the network below runs with the
      same input everywhere, or is itself parallel over the model). Each gets the whole gradient.
    - `batch="split"`: every process has features of examples of its own, as in data-parallel
      training. They are gathered, in the order of the processes, and the batch is all of them:
      "mean" and "sum" are over all, so every process gets the same number; "none" and
      predictions are of its own examples. Processes may have different numbers of them.

    Args:
        in_features: D, width of the features.
        num_classes: C; not fewer than processes. Process r holds the r-th of `torch.chunk`'s parts.
        mesh: one-dimensional, over which the classes are cut; None for a single process, which
            then needs no process group and has ordinary tensors.
        batch: "replicated" or "split".
        averaging: for "split": whether the gradients of the network below are averaged over the
            processes, as DDP and FSDP do. The features' gradient is then multiplied by the number
            of processes, so that the average is the gradient of the loss of the whole batch.
        bias: whether there is one.
        device: where; the mesh's kind of device by default.
        dtype: torch's default by default.

    Attributes:
        part: which classes this process holds: `part.start` up to `part.stop`.

    Examples:
        >>> from longtail.losses import LogitAdjustedLoss
        >>> head = ShardedHead(8, 5)  # one process
        >>> head
        ShardedHead(in_features=8, num_classes=5, slices=1, batch='replicated')
        >>> loss = LogitAdjustedLoss(ClassPrior.from_counts([50, 20, 10, 5, 1]))
        >>> features, target = torch.zeros(2, 8), torch.tensor([0, 4])
        >>> value = head.loss(features, target, loss)
        >>> torch.testing.assert_close(value, loss(head(features), target))
        >>> head.predict(features).shape
        torch.Size([2])
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        mesh: DeviceMesh | None = None,
        batch: str = "replicated",
        averaging: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = _checks.whole(in_features, name="in_features")
        self.num_classes = _checks.whole(num_classes, name="num_classes")
        self.batch = _checks.choice(batch, ("replicated", "split"), name="batch")
        self.averaging = averaging
        self.mesh = mesh
        self.part = Slice.of_mesh(self.num_classes, mesh)
        if device is None and mesh is not None:
            device = mesh.device_type
        here: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(self.sliced(self._draw(self.in_features, **here)))
        self.bias = nn.Parameter(self.sliced(self._draw(**here))) if bias else None

    def _draw(self, *tail: int, device: Any, dtype: Any) -> Tensor:
        """This process's part of what `nn.Linear` would draw alone, from torch's CPU generator."""
        bound = 1.0 / math.sqrt(self.in_features)
        own = torch.empty((self.part.width, *tail), device=device, dtype=dtype)
        for start in range(0, self.num_classes, _DRAWN):
            stop = min(start + _DRAWN, self.num_classes)
            drawn = torch.empty((stop - start, *tail), dtype=dtype).uniform_(-bound, bound)
            first, last = max(start, self.part.start), min(stop, self.part.stop)
            if first < last:
                to = slice(first - self.part.start, last - self.part.start)
                own[to] = drawn[first - start : last - start].to(own.device)
        return own

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        *,
        mesh: DeviceMesh | None = None,
        batch: str = "replicated",
        averaging: bool = True,
        device: torch.device | str | None = None,
    ) -> ShardedHead:
        """A head with the weights of a linear layer that every process has whole.

        The options are those of the class; `device` is that of the layer by default.

        Examples:
            >>> linear = nn.Linear(8, 5)
            >>> torch.equal(ShardedHead.from_linear(linear).weight, linear.weight)
            True
        """
        options: dict[str, Any] = {"mesh": mesh, "batch": batch, "averaging": averaging}
        options |= {"bias": linear.bias is not None, "dtype": linear.weight.dtype}
        options["device"] = linear.weight.device if device is None else device
        head = cls(linear.in_features, linear.out_features, **options)
        head.load_state_dict(linear.state_dict())
        return head

    def forward(self, features: Tensor) -> Tensor:
        """Logits, shape (N, C), as a DTensor of which each process holds its classes' columns.

        With `batch="split"` N counts the examples of all processes, in their order. `.to_local()`
        are the own columns, `.full_tensor()` gathers all of them. Without a mesh, plain logits.
        """
        whole, rows = self._whole_batch(features)
        if rows is not None:
            whole = whole[rows.places(whole.device)]
        return as_slice(self._own_logits(whole), self.part, self.mesh, dim=1)

    def sliced(self, values: Tensor) -> Tensor:
        """This process's classes' values, shape (width, ...), as the DTensor they are a part of."""
        return as_slice(values, self.part, self.mesh)

    # Not for the compiler: it talks to other processes and writes over what it saved.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def loss(
        self,
        features: Tensor,
        target: Tensor,
        criterion: PairwiseMarginLoss,
        *,
        rows: Sequence[int] | None = None,
    ) -> Tensor:
        """The criterion's loss of the logits of all classes, which no process ever holds.

        A process computes its own classes' logits, once, and exchanges two numbers per example
        with the others (five with label smoothing). Half-precision logits are computed with in
        float32; under autocast the logits are made in autocast's type. Class weights,
        `ignore_index`, label smoothing and reductions mean what they mean to the criterion.

        Args:
            features: shape (N, D).
            target: class indices of all C classes, shape (N,).
            criterion: a loss of `longtail.losses` with an additive margin: any of them but
                `EqualizedThresholdLoss` and dense ones. All C values of its margin are on each
                process, on the features' device. Its `impl` plays no part.
            rows: for "split": how many examples each process has, the same list on all of them.
                If None they tell each other, for which a GPU has to be waited for.

        Returns:
            As the criterion on logits. "mean" and "sum" are the same on every process, and the
            backward pass takes the gradients that come in to be so, too.
        """
        self._check_criterion(criterion)
        ignored = criterion.ignore_index
        check_labels(target, len(features), of="features")
        target = target.long()  # in uint8 a comparison with -100 would find 156
        whole, split = self._whole_batch(features, rows)
        if split is not None:
            target = self.part.gather(split.pad(target, ignored)).flatten()
            # Padding is told by its place: `ignore_index` may be a class that others count.
            real = torch.zeros_like(target, dtype=torch.bool)
            real[split.places(real.device)] = True
        counted = target != ignored if split is None else (target != ignored) & real
        target = target.masked_fill(~counted, 0)

        compute = out = features.dtype
        cast: AbstractContextManager[object] = nullcontext()
        if under_autocast(features.device):  # logits in its type, all else in float32
            kind = features.device.type
            compute, out = torch.get_autocast_dtype(kind), torch.float32
            cast = torch.autocast(kind, enabled=False)
        work = torch.promote_types(out, torch.float32)
        weight = None if criterion.weight is None else criterion.weight.to(work)
        negative, alpha = criterion.negative.to(work), criterion.alpha.to(work)
        margins = Margins(
            target,
            counted,
            negative[self.part.start : self.part.stop],
            criterion.scale * (criterion.positive.to(work) + negative),
            alpha if weight is None else alpha * weight,
            criterion.scale,
            criterion.label_smoothing,
        )
        bias = None if self.bias is None else local(self.bias)
        with cast:
            losses = slice_losses(
                whole.to(compute), local(self.weight).to(compute), bias, margins, self.part
            )
            if criterion.reduction == "none":
                return self._own(losses, split).to(out)
            total = losses.sum()
            if criterion.reduction == "mean":
                total = total / mean_denominator(margins, weight)
            return total.to(out)

    @torch.no_grad()
    def predict(
        self, features: Tensor, *, prior: ClassPrior | None = None, tau: float = 1.0
    ) -> Tensor:
        """The class with the largest logit; of several, the first, as argmax has it.

        Args:
            features: shape (N, D).
            prior: for post-hoc logit adjustment: argmax f_y − τ log π_y. Leave it out after
                training with the logit-adjusted loss.
            tau: τ.

        Returns:
            Classes, int64, shape (N,), of this process's own examples with `batch="split"`.
        """
        return self.topk(features, 1, prior=prior, tau=tau)[1].squeeze(1)

    @torch.no_grad()
    def topk(
        self, features: Tensor, k: int, *, prior: ClassPrior | None = None, tau: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """The k largest logits and their classes, from each process's own k largest.

        Args:
            features: shape (N, D).
            k: at most C.
            prior: as in `predict`.
            tau: as in `predict`.

        Returns:
            Logits, adjusted if there is a prior, and classes, shape (N, k) each, falling; equal
            logits in the order of `torch.topk`, or of `torch.max` with k = 1.
        """
        if prior is not None:
            _checks.prior(prior, num_classes=self.num_classes)
        whole, rows = self._whole_batch(features)
        logits = self._own_logits(whole)
        if prior is not None:
            log_probs = torch.tensor(prior.log_probs[self.part.start : self.part.stop])
            adjustment = _checks.tau(tau) * log_probs
            work = torch.promote_types(logits.dtype, torch.float32)
            logits = logits.to(work) - adjustment.to(logits.device, work)
        values = logits.new_full((len(logits), k), -math.inf)
        classes = torch.zeros((len(logits), k), dtype=torch.int64, device=logits.device)
        kept = min(k, self.part.width)
        if kept == 1:  # max takes the first of equal ones, which topk does not promise
            values[:, :1], classes[:, :1] = logits.max(1, keepdim=True)
        elif kept:
            values[:, :kept], classes[:, :kept] = logits.topk(kept, 1)
        # All processes' candidates side by side, in the order of their classes.
        values = self.part.gather(values).movedim(0, 1).flatten(1)
        classes = self.part.gather(classes + self.part.start).movedim(0, 1).flatten(1)
        best, place = values.max(1, keepdim=True) if k == 1 else values.topk(k, 1)
        chosen = classes.gather(1, place)
        return self._own(best, rows), self._own(chosen, rows)

    def _own(self, values: Tensor, rows: Rows | None) -> Tensor:
        """This process's entries of what every process computed for the whole batch."""
        return values if rows is None else _OwnRows.apply(values, rows, self.part)  # type: ignore[no-any-return, no-untyped-call]

    def _own_logits(self, features: Tensor) -> Tensor:
        """Logits of this process's classes, in the features' type or autocast's, as in `loss`."""
        weight, bias = local(self.weight).to(features.dtype), self.bias
        own = None if bias is None else local(bias).to(features.dtype)
        return nn.functional.linear(features, weight, own)

    @torch.no_grad()
    def norms_and_bias(self) -> tuple[Tensor, Tensor]:
        """‖w_y‖₂ and the bias of all classes, on every process; the bias is zero without one.

        Returns:
            Two float64 tensors of shape (C,), on the CPU.
        """
        weight = local(self.weight).double()
        own = torch.zeros((-(-self.num_classes // self.part.size), 2), dtype=torch.float64)
        own[: self.part.width, 0] = weight.norm(dim=1).cpu()
        if self.bias is not None:
            own[: self.part.width, 1] = local(self.bias).cpu()
        every = self.part.gather(own.to(weight.device)).flatten(0, 1)[: self.num_classes].cpu()
        return every[:, 0].clone(), every[:, 1].clone()

    def _whole_batch(
        self, features: Tensor, known: Sequence[int] | None = None
    ) -> tuple[Tensor, Rows | None]:
        """The features of the whole batch, and how the processes' rows lie in it if it is split."""
        if features.ndim != 2 or features.shape[1] != self.in_features:
            raise InputError(
                f"ShardedHead: `features` must have shape (N, {self.in_features}); got "
                f"{tuple(features.shape)}."
            )
        if known is not None and known[self.part.rank] != len(features):
            raise InputError(
                f"ShardedHead.loss: `rows` must say how many examples each process has; got "
                f"{list(known)} with {len(features)} features in process {self.part.rank}."
            )
        if self.batch == "replicated" or self.part.group is None:
            alone = self.part.group is None
            return features if alone else _Everywhere.apply(features, self.part), None  # type: ignore[no-untyped-call]
        rows = Rows.of(features, self.part) if known is None else Rows(tuple(known), max(known))
        factor = float(self.part.size) if self.averaging else 1.0
        return _AllRows.apply(rows.pad(features), self.part, factor), rows  # type: ignore[no-untyped-call]

    def _check_criterion(self, criterion: PairwiseMarginLoss) -> None:
        additive = isinstance(criterion, PairwiseMarginLoss) and criterion.dense is None
        if not additive or isinstance(criterion, EqualizedThresholdLoss):
            raise InputError(
                f"ShardedHead.loss: `criterion` must be a loss of longtail.losses whose margin is "
                f"additive and that drops no competitors at random; got "
                f"{type(criterion).__name__}. For plain cross-entropy take SoftmaxLoss."
            )
        if len(criterion.alpha) != self.num_classes:
            raise InputError(
                f"ShardedHead.loss: the criterion has {len(criterion.alpha)} classes but the head "
                f"has {self.num_classes}, over all processes; pass num_classes={self.num_classes} "
                f"to ClassPrior.from_labels if a class has no examples."
            )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Take whole tensors of an unsharded layer, of which each process keeps its slice."""
        cut = dict(state_dict)
        for name, own in self.named_parameters(recurse=False):
            value = cut.get(prefix + name)
            if value is not None and value.shape == own.shape and not isinstance(value, DTensor):
                mine = value[self.part.start : self.part.stop].to(own.device)
                cut[prefix + name] = as_slice(mine, self.part, self.mesh)
        super()._load_from_state_dict(cut, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        """Widths, slices and how it is fed, for printing."""
        widths = f"in_features={self.in_features}, num_classes={self.num_classes}"
        return f"{widths}, slices={self.part.size}, batch={self.batch!r}"
