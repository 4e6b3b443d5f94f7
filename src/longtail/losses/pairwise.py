"""The pairwise-margin family on torch's own cross-entropy: a module, its arithmetic, a function.

    ℓ(y, f) = α_y · CE(z, y),   z = s · (f + b), but s · (a_y + b_y) less for the target's own z

With a dense margin, f_j + Δ_{yj} takes the place of f_j + b_j. Where a + b = 0 (softmax, balanced,
class-balanced, logit-adjusted and all consistent losses) the target's z is like any other, so the
loss is `torch.nn.functional.cross_entropy` of z with all of its options.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longtail import _checks
from longtail._checks import InputError
from longtail.kernels import cross_entropy as kernel
from longtail.kernels._inputs import loss_dtype, work_dtype
from longtail.margins import Margin


class LossOptions(TypedDict, total=False):
    """The keywords of every loss, with the meaning they have for `torch.nn.CrossEntropyLoss`.

    Attributes:
        weight: w, shape (num_classes,): multiplies each class's loss, and enters the mean's
            denominator as in torch (α does not).
        ignore_index: class indices with this value don't count; default −100.
        label_smoothing: ε in [0, 1], default 0: the target becomes (1 − ε)·q + ε / num_classes.
        reduction: "mean" (the default), "sum" or "none".
        impl: "auto" (the default) uses the Triton kernel where it is faster, "torch" never does;
            the kernel has no second derivative.
        dtype: of the margin's buffers, float32 at least; torch's default type if None.
    """

    weight: Tensor | None
    ignore_index: int
    label_smoothing: float
    reduction: str
    impl: str
    dtype: torch.dtype | None


# What states of margin losses once held.
_ONCE_SAVED = ("alpha", "positive", "negative", "dense", "rare", "log_q", "cumulative")
# What `repr` shows where it differs from these.
_USUAL = {
    "scale": 1,
    "reduction": None,
    "ignore_index": -100,
    "label_smoothing": 0.0,
    "impl": "auto",
    "sparse": False,
}


class MarginModule(nn.Module):
    """A module that holds a Margin in buffers, of a fixed type and not in the `state_dict`."""

    alpha: Tensor
    positive: Tensor
    negative: Tensor
    dense: Tensor | None
    shown: tuple[str, ...] = ()  # settings that `repr` shows

    def __init__(self, margin: Margin, *, reduction: str, dtype: torch.dtype | None) -> None:
        super().__init__()
        if not isinstance(margin, Margin):
            raise InputError(
                f"`margin` must be a Margin; got {type(margin).__name__}. Make one with "
                f"longtail.margins, such as margins.logit_adjusted(prior)."
            )
        self.reduction = _checks.choice(reduction, ("none", "mean", "sum"), name="reduction")
        self.name, self.scale, self.num_classes = margin.name, margin.scale, margin.num_classes
        self._dtype = torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)
        for part in ("alpha", "positive", "negative", "dense"):
            self._keep(part, getattr(margin, part))
        # A tensor, since torch.compile(dynamic=True) fails on Python floats that become symbolic.
        self._keep("_factor", None if margin.scale == 1 else margin.scale)
        # A step leaves out what has no effect.
        self._weighs, self._shifts = bool((margin.alpha != 1).any()), bool(margin.negative.any())
        self._lowers = bool((margin.positive + margin.negative).any())

    def _keep(self, name: str, value: Any, *, persistent: bool = False) -> None:
        """Register a copy as a buffer."""
        if isinstance(value, Tensor):
            value = value.detach().to(self._dtype, copy=True)
        elif value is not None:
            value = torch.tensor(value, dtype=self._dtype)
        self.register_buffer(name, value, persistent=persistent)

    def _keep_weight(self, name: str, weight: Tensor | None) -> None:
        shape = (self.num_classes,)
        if weight is not None and (not isinstance(weight, Tensor) or weight.shape != shape):
            came = tuple(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
            raise InputError(
                f"class weights must be a torch tensor with one value per class, shape {shape}; "
                f"got {came}."
            )
        self._keep(name, weight, persistent=True)

    def parts(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return α, b and a + b, None for what changes nothing."""
        own = self._buffers  # quicker than attributes, which a module looks up in several places
        return (
            own["alpha"] if self._weighs else None,
            own["negative"] if self._shifts else None,
            own["positive"] + own["negative"] if self._lowers else None,  # type: ignore[operator]
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the buffers with `.to` and the like; their types stay, or the prior would change."""

        def move(old: Tensor) -> Tensor:
            new = fn(old)
            return new if new.dtype == old.dtype else old.to(new.device)

        return super()._apply(move, recurse)  # type: ignore[no-any-return, no-untyped-call]

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Skip the margins that states once held."""
        for name in _ONCE_SAVED:
            state_dict.pop(prefix + name, None)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        """Return the margin's name and settings, and options that differ from the defaults."""
        found = {name: getattr(self, name) for name in ("num_classes", *self.shown)}
        options = {name: getattr(self, name, usual) for name, usual in _USUAL.items()}
        found |= {name: value for name, value in options.items() if value != _USUAL[name]}
        return ", ".join([repr(self.name), *(f"{key}={value!r}" for key, value in found.items())])


class PairwiseMarginLoss(MarginModule):
    """The whole family: cross-entropy with weights α and margins Δ; see `pairwise_margin_loss`.

    The margins are buffers: they move with `.to(device)` and stay in float32 when a model is cast
    to half precision. They are not in a `state_dict`, which has class weights alone, as that of
    `torch.nn.CrossEntropyLoss`: this can replace it in a saved network and be replaced by it.

    Args:
        margin: from `longtail.margins`, or any Margin.
        weight: like ignore_index, label_smoothing, reduction, impl and dtype, see `LossOptions`.

    Attributes:
        alpha, positive, negative: α, a and b, buffers of shape (num_classes,).
        dense: Δ as a buffer of shape (num_classes, num_classes), or None.
        weight: torch's class weights as a buffer, or None.
        scale: s.
        whole_rows: True if the loss needs a row's logits for more than their sum of exponentials.

    Examples:
        >>> from longtail import ClassPrior, margins
        >>> prior = ClassPrior.from_counts([90, 10])
        >>> loss = PairwiseMarginLoss(margins.adaptive(prior) + margins.balanced(prior))
        >>> loss
        PairwiseMarginLoss('adaptive + balanced', num_classes=2, reduction='mean')
        >>> loss(torch.zeros(1, 2), torch.tensor([1]))
        tensor(9.6718)
    """

    weight: Tensor | None

    def __init__(
        self,
        margin: Margin,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        impl: str = "auto",
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(margin, reduction=reduction, dtype=dtype)
        self._keep_weight("weight", weight)
        self.ignore_index = ignore_index
        self.label_smoothing = _checks.fraction(label_smoothing, name="label_smoothing")
        self.impl = _checks.choice(impl, ("auto", "torch"), name="impl")
        self.whole_rows = self.dense is not None or self.label_smoothing > 0

    def forward(
        self,
        logits: Tensor,
        target: Tensor,
        *,
        dropped: Tensor | None = None,
        num_items_in_batch: Any = None,
    ) -> Tensor:
        """Return the loss of `logits` for `target`; shapes as in `pairwise_margin_loss`.

        `dropped`, bool and shaped like `logits`, takes classes out of the competition for an
        example. `num_items_in_batch` is there for an error that helps users of transformers.
        """
        if num_items_in_batch is not None or not isinstance(logits, Tensor):
            raise InputError(
                "this is how transformers' Trainer calls its loss, with the model's outputs and "
                "`num_items_in_batch`; wrap the loss: compute_loss_func=TrainerLoss(loss), from "
                "longtail.integrations.huggingface. Elsewhere pass outputs['logits']."
            )
        return family_loss(self, logits, target, dropped, self.reduction)

    def mixed(
        self,
        logits: Tensor,
        first: Tensor,
        second: Tensor,
        share: Tensor | float,
        *,
        dropped: Tensor | None = None,
    ) -> Tensor:
        """Return λ ℓ(y, f) + (1 − λ) ℓ(y', f) for examples made of two, as by CutMix or mixup.

        That is the loss with class probabilities λ on y and 1 − λ on y', without making them.
        With class weights the mean divides by the weights, as it does for one label; class
        probabilities are divided by the number of examples, as torch does.

        Args:
            logits: f, as in `pairwise_margin_loss`.
            first: y, class indices.
            second: y', likewise.
            share: λ in [0, 1]: one number for all examples, or a floating-point tensor of the
                shape of the labels.
            dropped: as in `forward`.

        Examples:
            >>> from longtail import ClassPrior, margins
            >>> loss = PairwiseMarginLoss(margins.logit_adjusted(ClassPrior.from_counts([9, 1])))
            >>> logits = torch.tensor([[1.0, 0.0]])
            >>> loss.mixed(logits, torch.tensor([0]), torch.tensor([1]), 0.75)
            tensor(0.8394)
            >>> loss(logits, torch.tensor([[0.75, 0.25]]))
            tensor(0.8394)
        """
        if not isinstance(share, Tensor):
            share = _checks.fraction(share, name="share")
        elif not share.is_floating_point() or (share.ndim and share.shape != first.shape):
            raise InputError(
                f"`share` must be a number in [0, 1], or one for each label in a floating-point "
                f"tensor of shape {tuple(first.shape)}; got {share.dtype}, {tuple(share.shape)}."
            )
        work = logits.to(work_dtype(logits))  # so that rounding comes last
        one, two = (family_loss(self, work, y, dropped, "none") for y in (first, second))
        if isinstance(share, Tensor):
            part = share.to(one).expand(first.shape)
        else:
            part = torch.full_like(one, share)
        loss = torch.lerp(two, one, part)
        if self.reduction != "none":
            loss = loss.sum()
        if self.reduction == "mean":
            ones, twos = (
                counted(y.long(), self.weight, self.ignore_index).to(part) for y in (first, second)
            )
            loss = loss / torch.lerp(twos, ones, part).sum()
        return loss.to(loss_dtype(logits))


_NARROW = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32})


def family_loss(
    own: PairwiseMarginLoss, logits: Tensor, target: Tensor, dropped: Tensor | None, reduction: str
) -> Tensor:
    """Return Σ_y q_y w_y α_y ℓ(y, f), reduced."""
    dim, classes, epsilon = 1 if logits.ndim > 1 else 0, own.num_classes, own.label_smoothing
    if logits.size(dim) != classes:
        shape = tuple(logits.shape)
        raise InputError(
            f"the loss has {classes} classes but the logits have {shape[dim]} columns, shape "
            f"{shape}; {_checks.advice_on_width(classes, shape[dim], shape)}."
        )
    soft = target.ndim == logits.ndim and target.shape == logits.shape
    if not soft and target.dtype in _NARROW:
        target = target.long()
    alpha, bias, lower = own.parts()
    buffers = own._buffers
    weight, factor, dense = buffers["weight"], buffers["_factor"], buffers["dense"]
    w = weight if alpha is None else alpha if weight is None else alpha * weight
    special = dense is not None or dropped is not None
    moves = special or lower is not None  # the target's z differs from a competitor's
    how = "none" if reduction == "none" else "sum"
    by_kernel = logits.is_cuda and own.impl == "auto" and kernel.worthwhile(logits)
    if by_kernel and not (soft or special or (epsilon > 0 and (moves or w is not None))):
        divisor = counted(target, weight, own.ignore_index).sum() if reduction == "mean" else None
        how = reduction
        loss = kernel.cross_entropy(
            logits,
            target,
            bias=bias,
            lower=lower,
            weight=w,
            divisor=divisor,
            scale=own.scale,
            ignore_index=own.ignore_index,
            label_smoothing=epsilon,
            reduce=reduction != "none",
        )
    else:
        z = logits
        if bias is not None:  # in float32, so that half precision ends here
            z = z + (bias if z.ndim < 3 else _along(bias, z))
        elif z.dtype.itemsize < 4:
            z = z.float()
        if factor is not None:
            z = z * factor
            lower, dense = (None if part is None else factor * part for part in (lower, dense))
        if w is not None and w.dtype != z.dtype:
            w = w.to(z.dtype)
        if soft and target.dtype != z.dtype and target.is_floating_point():
            target = target.to(z.dtype)
        if moves and (soft or epsilon > 0):
            losses = _class_losses(z, lower, dense, dropped, dim)
            loss = _expected(losses if w is None else losses * _along(w, z), own, target, dim)
            loss = loss if how == "none" else loss.sum()
        else:
            if moves:
                z = _against(z, own, target, lower, dense, dropped, dim)
            if alpha is None:  # torch's own mean divides by what ours would
                how = reduction
            loss = F.cross_entropy(
                z,
                target,
                weight=w,
                ignore_index=own.ignore_index,
                label_smoothing=epsilon,
                reduction=how,
            )
    if how != reduction:
        rows = logits.numel() // classes if soft else counted(target, weight, own.ignore_index)
        loss = loss / (rows if soft else rows.sum())  # type: ignore[union-attr]
    return loss if loss.dtype == logits.dtype else loss.to(loss_dtype(logits))


def _against(
    z: Tensor,
    own: PairwiseMarginLoss,
    target: Tensor,
    lower: Tensor | None,
    dense: Tensor | None,
    dropped: Tensor | None,
    dim: int,
) -> Tensor:
    """Return z with each example's target lowered, or with its row of a dense margin."""
    index = target.masked_fill(target == own.ignore_index, 0)
    if dense is not None:  # unlike indexing, F.embedding knows vmap
        z = z + F.embedding(index, dense.to(z.dtype)).movedim(-1, dim)
    if lower is not None:
        each = of_each(lower.to(z.dtype), index).unsqueeze(dim)
        z = z.scatter_add(dim, index.unsqueeze(dim), -each)
    if dropped is not None:
        rivals = dropped.scatter(dim, index.unsqueeze(dim), False)
        z = z.masked_fill(rivals, torch.finfo(z.dtype).min)
    return z


def _expected(losses: Tensor, own: PairwiseMarginLoss, target: Tensor, dim: int) -> Tensor:
    """Return Σ_y q_y ℓ_y per example, q the smoothed target, from the losses of all classes."""
    share, rest = 1.0 - own.label_smoothing, own.label_smoothing / own.num_classes
    if target.shape == losses.shape:
        return (losses * (share * target + rest)).sum(dim)
    each = -losses.contiguous()  # else nll_loss of pictures has no derivative
    hard = F.nll_loss(each, target, ignore_index=own.ignore_index, reduction="none")
    smooth = (rest * losses.sum(dim)).masked_fill(target == own.ignore_index, 0.0)
    return share * hard + smooth


def _class_losses(
    z: Tensor, lower: Tensor | None, dense: Tensor | None, dropped: Tensor | None, dim: int
) -> Tensor:
    """Return ℓ(y, f) / α_y for every class y as if it were the target, shape of the logits.

    O(C) for additive margins: ℓ_y = softplus(R_y − z_y + s·(a_y + b_y)), R_y = log Σ_{j≠y} e^{z_j}.
    R_y = log Σ_j e^{z_j} + log(1 − p_y) is accurate for p_y ≤ 1/2, which holds for every class but
    that with the largest z; its R_y is the sum over the others.
    """
    if dense is not None:
        last = z.movedim(dim, -1)
        pairs = last.unsqueeze(-2) + dense.to(z.dtype)  # (..., target, competitor)
        return (pairs.logsumexp(-1) - last).movedim(-1, dim)
    never = torch.finfo(z.dtype).min
    rivals = z if dropped is None else z.masked_fill(dropped, never)
    top = rivals.argmax(dim, keepdim=True)
    share = rivals.softmax(dim).scatter(dim, top, 0.0)
    rest = rivals.logsumexp(dim, keepdim=True) + torch.log1p(-share)
    without_top = rivals.scatter(dim, top, never).logsumexp(dim, keepdim=True)
    odds = rest.scatter(dim, top, without_top) - z
    if lower is not None:
        odds = odds + _along(lower.to(z.dtype), z)
    return F.softplus(odds, threshold=40.0)  # the default of 20 would cost half of float64's digits


def counted(target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """Return each example's part of the mean's denominator: w_y, or 1 without weights."""
    kept = target != ignore_index
    return kept if weight is None else of_each(weight, target.masked_fill(~kept, 0)) * kept


def of_each(vector: Tensor, index: Tensor) -> Tensor:
    """Look up one value per class, under vmap too."""
    return vector.gather(0, index.reshape(-1)).reshape(index.shape)


def _along(vector: Tensor, logits: Tensor) -> Tensor:
    """Shape one value per class to broadcast along the logits' class dimension."""
    return vector if logits.ndim < 3 else vector.view(-1, *[1] * (logits.ndim - 2))


def pairwise_margin_loss(
    logits: Tensor,
    target: Tensor,
    margin: Margin,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    impl: str = "auto",
) -> Tensor:
    """The whole family: cross-entropy with weights α and margins Δ (equation 11 of the paper).

        ℓ(y, f) = α_y · log[1 + Σ_{y'≠y} exp(s · (Δ_{yy'} + f_{y'} − f_y))]

    With a zero margin and α = 1 this is `torch.nn.functional.cross_entropy`, whatever the
    options; it is as accurate, raises the same errors for labels out of range, and works under
    autocast, `torch.func` transforms and double backward. Half-precision logits are computed with
    in float32.

    A function copies its margin to the logits' device at every call; in a training loop use the
    module, which holds it there, and which `torch.compile(fullgraph=True)` compiles.

    Args:
        logits: f, shape (N, C), (C,) or (N, C, d1, ...).
        target: class indices, shape (N,), () or (N, d1, ...); or class probabilities q of the
            shape of `logits` (mixup), for which the loss is Σ_y q_y ℓ(y, f).
        margin: from `longtail.margins`, or any Margin with C classes.
        weight: like ignore_index, label_smoothing, reduction and impl, see `LossOptions`; with
            label smoothing each class has its own margin.

    Returns:
        A scalar, or the losses in the shape of the class indices if `reduction` is "none"; in the
        type of the logits (float32 under autocast). The mean over no examples is NaN, as in torch.

    Examples:
        >>> from longtail import ClassPrior, margins
        >>> prior = ClassPrior.from_counts([90, 10])
        >>> logits, target = torch.tensor([[2.0, 1.0], [0.0, 0.5]]), torch.tensor([0, 1])
        >>> pairwise_margin_loss(logits, target, margins.logit_adjusted(prior))
        tensor(0.9528)
    """
    loss = PairwiseMarginLoss(
        margin,
        weight=weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
        impl=impl,
        dtype=logits.dtype,
    )
    return loss.to(logits.device, non_blocking=True).forward(logits, target)
