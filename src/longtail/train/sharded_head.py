"""Last layer cut over processes: each holds a slice of the classes, and none all logits.

`ShardedHead` is a linear layer whose weights are DTensors, with its loss and its predictions:

    ℓ(y, f) = α_y · log(1 + Σ_{j≠y} e^{z_j − z_y}),   z_j = s · (f_j + b_j),   z_y = s · (f_y − a_y)

A process computes the scores z of its own classes. Of each example it tells the others the largest
of a class that is not the target, the sum of their exponentials, and the target's score if it has
that one; these few numbers are all that is exchanged. Since the target's own exponential is not in
the sum, small losses and their gradients keep their digits. The logits exist once, in the features'
type: they become exponentials in the forward pass and their own gradient in the backward pass, in
place. Arithmetic is float32, in blocks of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn import functional as F

from longtail import _checks
from longtail._checks import InputError
from longtail.kernels._inputs import check_labels, loss_dtype, work_dtype
from longtail.losses import EqualizedThresholdLoss, PairwiseMarginLoss
from longtail.losses.pairwise import counted
from longtail.priors import ClassPrior

__all__ = ["ShardedHead", "full_state_dict", "gather_slices"]

BLOCK_BYTES = 4 * 2**20  # of float32 scores at once; more if that is a sixteenth of the rows
_DRAWN = 4096  # rows of the weights at once, at the start


class SliceLoss(torch.autograd.Function):
    """Loss of each example, shape (N,), from the logits of a slice of the classes.

    With label smoothing ε it is (1 − ε) · ℓ(y, f) + ε/C · Σ_c ℓ(c, f), for losses with a + b = 0.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        criterion: PairwiseMarginLoss,
        part: slice,
        gather: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Exchange what the slices know of each example, and leave exponentials in the logits.

        Args:
            logits: f of the slice's classes, shape (N, width); overwritten.
            target: y of all classes, int64, shape (N,).
            criterion: the loss; its reduction plays no part.
            part: the slice.
            gather: stacks the tensors of all slices.
        """
        (_, bias, lower), scale = criterion.parts(), criterion.scale
        epsilon, weight = criterion.label_smoothing, criterion.weight
        alpha = criterion.alpha if weight is None else criterion.alpha * weight
        alpha = alpha.to(work_dtype(logits))
        spread = epsilon / len(alpha) * alpha if epsilon > 0 else None  # ε/C · α_c of each class
        ignored = target == criterion.ignore_index
        target = target.masked_fill(ignored, 0)
        own = (1.0 - epsilon) * alpha.gather(0, target)  # (1 − ε) · α_y
        mine = (target >= part.start) & (target < part.stop)
        column = ((target - part.start) * mine).unsqueeze(1)
        lowest = torch.finfo(alpha.dtype).min
        told = alpha.new_zeros(3 if spread is None else 4, len(target))
        tops, sums, scores = told[:3]
        tops.fill_(lowest)  # of a slice without rivals of the target
        for rows in _blocks(logits):
            block, at, here = logits[rows], column[rows], mine[rows].unsqueeze(1)
            z = block.to(alpha.dtype)
            if bias is not None:
                z.add_(bias[part])
            if scale != 1:
                z.mul_(scale)
            if spread is not None:
                told[3, rows] = z @ spread[part]
            found = z.gather(1, at)
            z.scatter_(1, at, found.masked_fill(here, lowest))
            scores[rows] = (found * here).squeeze(1)
            tops[rows] = z.amax(1)
            sums[rows] = z.sub_(tops[rows].unsqueeze(1)).exp_().sum(1)
            block.copy_(z)
        if lower is not None:
            scores.sub_(scale * lower.gather(0, target) * mine)
        all_tops, all_sums, all_scores, *all_spread = gather(told).unbind(1)
        top, score = all_tops.amax(0), all_scores.sum(0)
        rest = (all_sums * (all_tops - top).exp()).sum(0)
        odds = F.softplus(rest.log() + top - score, threshold=40.0)  # log Σ_j e^{z_j} − z_y
        whole = rest + (score - top).exp()  # where it is infinite, no rival has a share
        wrong = rest / whole  # 1 − p_y
        losses, total, lost = own * odds, own, own * wrong
        if spread is not None:
            every = spread.sum()
            losses = losses + every * (score + odds) - all_spread[0].sum(0)
            total, lost = own + every, lost - every * (1.0 - wrong)
        share = total * (tops - top).exp() / whole  # the slope of z for an exponential of 1
        ctx.scale, spread = scale, None if spread is None else spread[part]
        ctx.save_for_backward(logits, column, ignored, lost * mine, share, spread)
        return losses.masked_fill(ignored, 0.0)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """Turn the exponentials into the logits' gradient, s · (α p − q), in place."""
        logits, column, ignored, lost, share, spread = ctx.saved_tensors
        # A mean over nothing has an infinite slope.
        slope = (ctx.scale * slope).masked_fill(ignored, 0.0).unsqueeze(1)
        share, lost = slope * share.unsqueeze(1), slope * lost.unsqueeze(1)
        for rows in _blocks(logits):
            block = logits[rows]
            grad = block.to(share.dtype).mul_(share[rows])
            grad.scatter_add_(1, column[rows], -lost[rows])
            if spread is not None:
                grad.addcmul_(slope[rows], spread, value=-1.0)
            block.copy_(grad)
        return logits.detach(), *(None,) * 4


def _blocks(logits: Tensor) -> list[slice]:
    """Split the rows, so that few of them are in float32 at once; no rows without classes."""
    count, width = logits.shape
    if width == 0:
        return []
    step = max(1, -(-count // 16), BLOCK_BYTES // (4 * width))
    return [slice(start, start + step) for start in range(0, count, step)]


class ShardedHead(nn.Module):
    """Linear layer with a slice of the classes on each process, and its loss without the logits.

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
        num_classes: C. Process r holds the r-th of `torch.chunk`'s parts, the last may hold none.
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
        part: the slice of the classes that this process holds.

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
        self.averaging, self.mesh = averaging, mesh
        self.processes = 1 if mesh is None else mesh.size()
        self.rank = 0 if mesh is None else mesh.get_local_rank()
        self.part = class_slices(num_classes, self.processes)[self.rank]
        if device is None and mesh is not None:
            device = mesh.device_type
        self.weight = nn.Parameter(
            self.sliced(self._draw(self.in_features, dtype=dtype).to(device))
        )
        self.bias = nn.Parameter(self.sliced(self._draw(dtype=dtype).to(device))) if bias else None

    def _draw(self, *tail: int, dtype: torch.dtype | None) -> Tensor:
        """Draw this process's part of what `nn.Linear` would, from torch's CPU generator."""
        bound, found = 1.0 / math.sqrt(self.in_features), []
        for start in range(0, self.num_classes, _DRAWN):
            count = min(_DRAWN, self.num_classes - start)
            drawn = torch.empty(count, *tail, dtype=dtype).uniform_(-bound, bound)
            found.append(drawn[max(0, self.part.start - start) : max(0, self.part.stop - start)])
        return torch.cat(found)

    @classmethod
    def from_linear(cls, linear: nn.Linear, **options: Any) -> ShardedHead:
        """Return a head with the weights of a linear layer that every process has whole.

        The options are those of the class; `device` is that of the layer by default.

        Examples:
            >>> linear = nn.Linear(8, 5)
            >>> torch.equal(ShardedHead.from_linear(linear).weight, linear.weight)
            True
        """
        own: dict[str, Any] = {"device": linear.weight.device, "dtype": linear.weight.dtype}
        own |= {"bias": linear.bias is not None, **options}
        head = cls(linear.in_features, linear.out_features, **own)
        head.load_state_dict(linear.state_dict())
        return head

    def forward(self, features: Tensor) -> Tensor:
        """Return logits, shape (N, C), as a DTensor: each process holds its classes' columns.

        With `batch="split"` N counts the examples of all processes, in their order. `.to_local()`
        are the own columns, `.full_tensor()` gathers all of them. Without a mesh, plain logits.
        """
        logits = self._own_logits(features, self._counts(features))
        return self.sliced(logits, dim=1)

    def sliced(self, values: Tensor, *, dim: int = 0) -> Tensor:
        """Return the DTensor whose part, along `dim`, these values of the own classes are."""
        if self.mesh is None:
            return values
        # Said explicitly, since slices of unequal length can't tell the whole; nothing is sent.
        shape = torch.Size([*values.shape[:dim], self.num_classes, *values.shape[dim + 1 :]])
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(
            values, self.mesh, [Shard(dim)], run_check=False, shape=shape, stride=stride
        )

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
        """Return the criterion's loss of the logits of all classes, which no process ever holds.

        A process computes its own classes' logits, once, and exchanges three numbers per example
        with the others, or four with label smoothing. Half-precision logits are computed with in
        float32; under autocast the logits are made in autocast's type. Class weights,
        `ignore_index`, label smoothing and reductions mean what they mean to the criterion. There
        is no second derivative.

        Args:
            features: shape (N, D).
            target: class indices of all C classes, shape (N,).
            criterion: a loss of `longtail.losses` with an additive margin: any of them but
                `EqualizedThresholdLoss` and dense ones; with label smoothing, one that leaves the
                target's own logit alone. All C values of its margin are on each process, on the
                features' device. Its `impl` plays no part.
            rows: for "split": how many examples each process has, the same list on all of them.
                If None they tell each other, for which a GPU has to be waited for.

        Returns:
            As the criterion on logits. "mean" and "sum" are the same on every process, and the
            backward pass takes the gradients that come in to be so, too.
        """
        self._check_criterion(criterion)
        check_labels(target, len(features))
        counts = self._counts(features, rows)
        target = self._all_rows(target.long(), counts)
        logits = self._own_logits(features, counts)
        if logits.dtype == torch.float16:  # too narrow for exponentials
            logits = logits.float()
        losses: Tensor = SliceLoss.apply(logits, target, criterion, self.part, self._gather)  # type: ignore[no-untyped-call]
        if criterion.reduction == "none":
            return self._own_rows(losses, counts).to(loss_dtype(features))
        total = losses.sum()
        if criterion.reduction == "mean":
            total = total / counted(target, criterion.weight, criterion.ignore_index).sum()
        return total.to(loss_dtype(features))

    @torch.no_grad()
    def predict(
        self, features: Tensor, *, prior: ClassPrior | None = None, tau: float = 1.0
    ) -> Tensor:
        """Return the class with the largest logit; of several, the first, as argmax has it.

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
        """Return the k largest logits and their classes, from each process's own k largest.

        Args:
            features: shape (N, D).
            k: at most C.
            prior: as in `predict`.
            tau: as in `predict`.

        Returns:
            Logits, adjusted if there is a prior, and classes, shape (N, k) each, falling; equal
            logits in the order of `torch.topk`, or of `torch.max` with k = 1.
        """
        counts = self._counts(features)
        logits = self._own_logits(features, counts)
        if prior is not None:
            _checks.prior(prior, num_classes=self.num_classes)
            logits = logits.to(work_dtype(logits))
            logits = logits - logits.new_tensor(_checks.tau(tau) * prior.log_probs[self.part])
        kept = min(k, logits.shape[1])
        values, classes = _largest(logits, kept)
        values = F.pad(values, (0, k - kept), value=-math.inf)
        classes = F.pad(classes + self.part.start, (0, k - kept))
        # All processes' candidates side by side, in the order of their classes.
        values, classes = (
            self._gather(each).movedim(0, 1).flatten(1) for each in (values, classes)
        )
        best, place = _largest(values, k)
        return self._own_rows(best, counts), self._own_rows(classes.gather(1, place), counts)

    @torch.no_grad()
    def norms_and_bias(self) -> tuple[Tensor, Tensor]:
        """Return ‖w_y‖₂ and the bias of all classes, on every process; zeros without a bias.

        Returns:
            Two float64 tensors of shape (C,), on the CPU.
        """
        norms = torch.linalg.vector_norm(local(self.weight), dim=1, dtype=torch.float64)
        bias = torch.zeros_like(norms) if self.bias is None else local(self.bias).double()
        every = self.sliced(torch.stack([norms, bias], 1))
        whole = every.full_tensor() if isinstance(every, DTensor) else every
        return whole[:, 0].cpu(), whole[:, 1].cpu()

    def _own_logits(self, features: Tensor, counts: list[int] | None) -> Tensor:
        """Return all examples' logits of the own classes, in the features' type or autocast's."""
        weight, bias = local(self.weight).to(features.dtype), self.bias
        own = None if bias is None else local(bias).to(features.dtype)
        return F.linear(self._all_rows(features, counts), weight, own)

    def _counts(self, features: Tensor, known: Sequence[int] | None = None) -> list[int] | None:
        """Return how many examples each process has; None where all have the same ones."""
        if self.mesh is None or self.batch == "replicated":
            return None
        if known is not None:
            return list(known)
        own = torch.tensor(len(features), device=features.device)
        return self._gather(own).tolist()  # type: ignore[no-any-return]

    def _gather(self, values: Tensor) -> Tensor:
        """Stack every process's tensor of this shape along a new first dimension."""
        values = values.unsqueeze(0)
        if self.mesh is None:
            return values
        return DTensor.from_local(values, self.mesh, [Shard(0)], run_check=False).full_tensor()

    def _all_rows(self, own: Tensor, counts: list[int] | None) -> Tensor:
        """Return the rows of all processes, in order; gradients are added up over these."""
        if self.mesh is None or counts is None:
            return self._shared(own, Replicate())
        if self.averaging and own.requires_grad:
            own = own.view_as(own)
            own.register_hook(lambda grad: grad * self.processes)  # type: ignore[no-untyped-call]
        longest = max(counts)
        padded = F.pad(own, (0, 0) * (own.ndim - 1) + (0, longest - len(own)))
        whole = self._shared(padded, Shard(0))
        if min(counts) == longest:
            return whole
        parts = zip(torch.split(whole, longest), counts, strict=True)
        return torch.cat([part[:count] for part, count in parts])

    def _own_rows(self, values: Tensor, counts: list[int] | None) -> Tensor:
        """Return the part for this process's examples of what was computed for those of all."""
        if counts is None:
            return values
        start = sum(counts[: self.rank])
        return self._shared(values, Replicate())[start : start + counts[self.rank]]

    def _shared(self, values: Tensor, placement: Replicate | Shard) -> Tensor:
        """Return the whole of a tensor on every process; gradients are added up over these."""
        if self.mesh is None:
            return values
        given = DTensor.from_local(values, self.mesh, [placement], run_check=False)
        return given.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])

    def _check_criterion(self, criterion: PairwiseMarginLoss) -> None:
        rule = None
        if criterion.dense is not None or isinstance(criterion, EqualizedThresholdLoss):
            rule = "must be a loss whose margin is additive and that drops no competitors at random"
        elif criterion.label_smoothing and criterion.parts()[2] is not None:
            rule = "has label smoothing, so it must leave the target's own logit alone"
        if rule is not None:
            raise InputError(f"ShardedHead.loss: `criterion` {rule}, unlike {criterion.name!r}.")
        if criterion.num_classes != self.num_classes:
            raise InputError(
                f"ShardedHead.loss: the criterion has {criterion.num_classes} classes but the head "
                f"has {self.num_classes}, over all processes; pass num_classes={self.num_classes} "
                f"to ClassPrior.from_labels if a class has no examples."
            )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Load whole tensors of an unsharded layer, of which each process keeps its slice."""
        cut = dict(state_dict)
        for name, own in self.named_parameters(recurse=False):
            value = cut.get(prefix + name)
            if value is not None and value.shape == own.shape and not isinstance(value, DTensor):
                cut[prefix + name] = self.sliced(value[self.part].to(own.device))
        super()._load_from_state_dict(cut, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        """Return widths, slices and how it is fed, for printing."""
        widths = f"in_features={self.in_features}, num_classes={self.num_classes}"
        return f"{widths}, slices={self.processes}, batch={self.batch!r}"


def _largest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of each row and where; max takes the first of equals, topk any."""
    largest: Any = values.max(1, keepdim=True) if k == 1 else values.topk(k, 1)
    return largest.values, largest.indices


def class_slices(num_classes: int, processes: int) -> list[slice]:
    """Cut classes as `torch.chunk` does, a slice to a process; the last may be short or empty.

    Examples:
        >>> class_slices(11, 3)
        [slice(0, 4, None), slice(4, 8, None), slice(8, 11, None)]
    """
    length = -(-num_classes // processes)
    edges = [min(num_classes, length * edge) for edge in range(processes + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def local(tensor: Tensor) -> Tensor:
    """Return the own part of a DTensor, differentiable; any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gather_slices(tensor: Tensor) -> Tensor | None:
    """Gather a tensor in slices of classes on the CPU of the mesh's first process.

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
    own, mesh = local(tensor.detach()).contiguous(), tensor.device_mesh
    if mesh.get_local_rank() != 0:
        if len(own):
            distributed.send(own, group=mesh.get_group(), group_dst=0)
        return None
    whole = torch.empty(tensor.shape, dtype=tensor.dtype)
    for rank, part in enumerate(class_slices(len(whole), mesh.size())):
        if rank and part.start < part.stop:
            own = own.new_empty(whole[part].shape)
            distributed.recv(own, group=mesh.get_group(), group_src=rank)
        if part.start < part.stop:
            whole[part] = own.cpu()
    return whole


def scatter_slices(tensor: DTensor, whole: Tensor | None) -> None:
    """Fill a tensor in slices of classes from the whole, the reverse of `gather_slices`.

    Args:
        tensor: sharded along dimension 0 of a one-dimensional mesh.
        whole: of the same shape, on any device; None on the processes but the mesh's first.
    """
    own, mesh = local(tensor.detach()), tensor.device_mesh
    if whole is None:
        if len(own):
            distributed.recv(own, group=mesh.get_group(), group_src=0)
        return
    for rank, part in enumerate(class_slices(len(whole), mesh.size())):
        if rank == 0:
            own.copy_(whole[part])
        elif part.start < part.stop:
            values = whole[part].to(own.device, own.dtype).contiguous()
            distributed.send(values, group=mesh.get_group(), group_dst=rank)


def full_state_dict(module: nn.Module | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a module's state with the names and shapes of the unsharded one, on the CPU.

    Args:
        module: any, with sharded heads somewhere in it, or tensors by name. Every process of the
            mesh must call this.

    Returns:
        Whole tensors on the mesh's first process, fit for safetensors and for `load_state_dict`
        of a module with any number of slices or none; on the others, what is not in slices.

    Examples:
        >>> sorted(full_state_dict(nn.Sequential(nn.Linear(2, 3))))
        ['0.bias', '0.weight']
    """
    tensors = module.state_dict() if isinstance(module, nn.Module) else module
    found = {name: gather_slices(value) for name, value in tensors.items()}
    return {name: value for name, value in found.items() if value is not None}
