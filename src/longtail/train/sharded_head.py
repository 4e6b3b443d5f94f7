"""The last layer cut over processes: each holds a slice of the classes, and no one all logits.

`ShardedHead` is the module: weights as DTensors, the loss, predictions, loading. How classes are
cut and what is sent is in `class_slices`; the arithmetic of the loss in `sharded_loss`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from longtail import _checks
from longtail._checks import InputError
from longtail.kernels._inputs import check_labels, under_autocast
from longtail.losses import EqualizedThresholdLoss, PairwiseMarginLoss
from longtail.priors import ClassPrior
from longtail.train.class_slices import (
    Rows,
    Slice,
    all_rows,
    as_slice,
    everywhere,
    full_state_dict,
    gather_slices,
    local,
    own_rows,
)
from longtail.train.sharded_loss import Margins, mean_denominator, slice_losses

__all__ = ["ShardedHead", "full_state_dict", "gather_slices"]

_DRAWN = 4096  # rows of the weights at once, at the start


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
                return (losses if split is None else own_rows(losses, split, self.part)).to(out)
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
        if rows is None:
            return best, chosen
        return own_rows(best, rows, self.part), own_rows(chosen, rows, self.part)

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
            return everywhere(features, self.part), None
        rows = Rows.of(features, self.part) if known is None else Rows(tuple(known), max(known))
        factor = float(self.part.size) if self.averaging else 1.0
        return all_rows(features, rows, self.part, factor=factor), rows

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
