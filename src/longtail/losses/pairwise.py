"""The pairwise-margin family on torch's own cross-entropy: the arithmetic, a function, a module.

    ℓ(y, f) = α_y · CE(z, y),   z = s · (f + b), but s · (a_y + b_y) less for the target's own z

With a dense margin, f_j + Δ_{yj} takes the place of f_j + b_j. Where a + b = 0 (softmax, balanced,
class-balanced, logit-adjusted and all consistent losses) the target's z is like any other, so the
loss is `torch.nn.functional.cross_entropy` of z with all of its options.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self, TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longtail import _checks
from longtail._checks import InputError
from longtail.kernels import cross_entropy as kernel
from longtail.kernels._inputs import loss_dtype, work_dtype
from longtail.margins import Margin
from longtail.priors import ClassPrior

REDUCTIONS = ("none", "mean", "sum")
IMPLS = ("auto", "torch")


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
    """

    weight: Tensor | None
    ignore_index: int
    label_smoothing: float
    reduction: str
    impl: str


class Numbers(NamedTuple):
    """A Margin and the options of a loss on one device; None for what changes nothing.

    Attributes:
        num_classes: C.
        alpha: α, None if all are 1.
        bias: b, None if all are 0.
        lower: a + b, None if all are 0.
        dense: Δ.
        factor: s as a tensor without dimensions, None if it is 1. (torch.compile(dynamic=True)
            fails on Python floats that it takes for variable.)
        scale: s.
        weight, ignore_index, label_smoothing, reduction, impl: see `LossOptions`.
    """

    num_classes: int
    alpha: Tensor | None
    bias: Tensor | None
    lower: Tensor | None
    dense: Tensor | None
    factor: Tensor | None
    scale: float
    weight: Tensor | None = None
    ignore_index: int = -100
    label_smoothing: float = 0.0
    reduction: str = "mean"
    impl: str = "auto"

    @classmethod
    def of(cls, margin: Margin, like: Tensor, *options: Any) -> Numbers:
        """Copy a Margin to the device of a tensor, without waiting for it."""

        def move(part: Any, used: Any = True) -> Tensor | None:
            if part is None or not used:
                return None
            values: Tensor = torch.as_tensor(part, dtype=work_dtype(like))
            return values.to(like.device, non_blocking=True)

        lower = margin.positive + margin.negative
        return cls(
            margin.num_classes,
            move(margin.alpha, (margin.alpha != 1).any()),
            move(margin.negative, margin.negative.any()),
            move(lower, lower.any()),
            move(margin.dense),
            move(margin.scale, margin.scale != 1),
            margin.scale,
            *options,
        )


def family_loss(
    logits: Tensor, target: Tensor, own: Numbers, dropped: Tensor | None = None
) -> Tensor:
    """Return Σ_y q_y w_y α_y ℓ(y, f), reduced.

    Args:
        logits: f, as in `pairwise_margin_loss`.
        target: class indices or class probabilities.
        own: on the device of the logits.
        dropped: bool, shape of `logits`: classes that don't compete in that example.
    """
    dim = 1 if logits.ndim > 1 else 0
    if logits.size(dim) != own.num_classes:
        raise _wrong_width(logits, dim, own.num_classes)
    soft = target.ndim == logits.ndim and target.shape == logits.shape
    if not soft and target.dtype in _NARROW:
        target = target.long()
    w = own.weight if own.alpha is None else class_weights(own)
    special = own.dense is not None or dropped is not None
    moves = special or own.lower is not None  # the target's z differs from a competitor's
    how = "none" if own.reduction == "none" else "sum"
    if moves and (soft or own.label_smoothing > 0):
        loss = _each_class_in_turn(logits, target, own, w, dropped, dim)
        if how == "sum":
            loss = loss.sum()
    elif (
        logits.is_cuda
        and own.impl == "auto"
        and not (soft or special)
        and not (own.label_smoothing > 0 and w is not None)
        and kernel.worthwhile(logits)
    ):
        how = own.reduction
        loss = kernel.cross_entropy(
            logits,
            target,
            bias=own.bias,
            lower=own.lower,
            scale=own.scale,
            weight=w,
            ignore_index=own.ignore_index,
            label_smoothing=own.label_smoothing,
            reduction=how,
            mean_weight=own.weight,
        )
    else:
        z = _scores(logits, own, dim)
        if moves:
            z = _against(z, target, own, dropped, dim)
        if w is not None and w.dtype != z.dtype:
            w = w.to(z.dtype)
        if soft and target.dtype != z.dtype and target.is_floating_point():
            target = target.to(z.dtype)
        if own.alpha is None:  # torch's own mean divides by what ours would
            how = own.reduction
        loss = F.cross_entropy(
            z,
            target,
            weight=w,
            ignore_index=own.ignore_index,
            label_smoothing=own.label_smoothing,
            reduction=how,
        )
    if how != own.reduction:
        loss = loss / (logits.numel() // own.num_classes if soft else counted(target, own).sum())
    return loss if loss.dtype == logits.dtype else loss.to(loss_dtype(logits))


_NARROW = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32})


def class_weights(own: Numbers) -> Tensor | None:
    """α·w, None if all are 1."""
    if own.alpha is None or own.weight is None:
        return own.weight if own.alpha is None else own.alpha
    return own.alpha * own.weight


def _scores(logits: Tensor, own: Numbers, dim: int) -> Tensor:
    """z = s·(f + b), in float32 at least."""
    z = logits
    if own.bias is not None:  # in float32, so that half precision ends here
        z = z + (own.bias if z.ndim < 3 else along(own.bias, z, dim))
    elif z.dtype.itemsize < 4:
        z = z.float()
    return z if own.factor is None else z * own.factor


def _scaled(values: Tensor, own: Numbers, like: Tensor) -> Tensor:
    return (values if own.factor is None else own.factor * values).to(like.dtype)


def _against(z: Tensor, target: Tensor, own: Numbers, dropped: Tensor | None, dim: int) -> Tensor:
    """z for the one target of each example: lowered there, or with the row of a dense margin."""
    index = target.masked_fill(target == own.ignore_index, 0)
    if own.dense is not None:  # unlike indexing, F.embedding knows vmap
        z = z + F.embedding(index, _scaled(own.dense, own, z)).movedim(-1, dim)
    index = index.unsqueeze(dim)
    if own.lower is not None:
        z = z.scatter_add(dim, index, -of_each(_scaled(own.lower, own, z), index))
    if dropped is not None:
        z = z.masked_fill(dropped.scatter(dim, index, False), torch.finfo(z.dtype).min)
    return z


def _each_class_in_turn(
    logits: Tensor,
    target: Tensor,
    own: Numbers,
    w: Tensor | None,
    dropped: Tensor | None,
    dim: int,
) -> Tensor:
    """Σ_y q_y w_y ℓ(y, f) per example where the margin depends on the target."""
    losses = _class_losses(logits, own, dropped, dim)
    if w is not None:
        losses = losses * along(w.to(losses.dtype), logits, dim)
    share, rest = 1.0 - own.label_smoothing, own.label_smoothing / own.num_classes
    if target.shape == logits.shape:
        return (losses * (share * target.to(losses.dtype) + rest)).sum(dim)
    if target.shape != logits.shape[:dim] + logits.shape[dim + 1 :]:
        raise InputError(
            f"`target` must hold one class index for each row of the logits, or class "
            f"probabilities; its shape is {tuple(target.shape)} and theirs {tuple(logits.shape)}."
        )
    ignored = target == own.ignore_index
    index = target.masked_fill(ignored, 0).unsqueeze(dim)
    hard = losses.gather(dim, index).squeeze(dim)
    return (share * hard + rest * losses.sum(dim)).masked_fill(ignored, 0.0)


def _class_losses(logits: Tensor, own: Numbers, dropped: Tensor | None, dim: int) -> Tensor:
    """ℓ(y, f) / α_y for every class y as if it were the target, shape of the logits.

    O(C) for additive margins: ℓ_y = softplus(R_y − z_y + s·(a_y + b_y)), R_y = log Σ_{j≠y} e^{z_j}.
    R_y = log Σ_j e^{z_j} + log(1 − p_y) is safe for p_y ≤ 1/2, which holds for all classes but the
    one with the largest z. For that one the other classes are added up.
    """
    z = _scores(logits, own, dim)
    if own.dense is not None:
        last = z.movedim(dim, -1)
        pairs = last.unsqueeze(-2) + _scaled(own.dense, own, z)  # (..., target, competitor)
        return (pairs.logsumexp(-1) - last).movedim(-1, dim)
    never = torch.finfo(z.dtype).min
    rivals = z if dropped is None else z.masked_fill(dropped, never)
    top = rivals.argmax(dim, keepdim=True)
    share = rivals.softmax(dim).scatter(dim, top, 0.0)
    rest = rivals.logsumexp(dim, keepdim=True) + torch.log1p(-share)
    without_top = rivals.scatter(dim, top, never).logsumexp(dim, keepdim=True)
    odds = rest.scatter(dim, top, without_top) - z
    if own.lower is not None:
        odds = odds + along(_scaled(own.lower, own, z), logits, dim)
    return F.softplus(odds, threshold=40.0)  # the default of 20 would cost half of float64's digits


def counted(target: Tensor, own: Numbers) -> Tensor:
    """The part of each example in the mean's denominator: w_y, or 1 without weights."""
    kept = target != own.ignore_index
    return kept if own.weight is None else of_each(own.weight, target.masked_fill(~kept, 0)) * kept


def of_each(vector: Tensor, index: Tensor) -> Tensor:
    """Look one value per class up, under vmap too."""
    return vector.gather(0, index.reshape(-1)).reshape(index.shape)


def along(vector: Tensor, logits: Tensor, dim: int) -> Tensor:
    """Shape one value per class to broadcast along the logits' class dimension."""
    return vector if logits.ndim - dim == 1 else vector.view(-1, *[1] * (logits.ndim - dim - 1))


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
        weight: w, shape (C,), multiplies each class's loss; the mean divides by the weights of
            the targets, as in torch. α does not enter that denominator.
        ignore_index: class indices with this value don't count.
        label_smoothing: ε in [0, 1]: q becomes (1 − ε)·q + ε/C, each class with its own margin.
        reduction: "mean", "sum" or "none".
        impl: "torch", or "auto": the Triton kernel where it is faster.

    Returns:
        A scalar, or the losses in the shape of the class indices if `reduction` is "none"; in the
        type of the logits (float32 under autocast). The mean over no examples is NaN, as in torch.

    Examples:
        >>> from longtail import margins
        >>> prior = ClassPrior.from_counts([90, 10])
        >>> logits, target = torch.tensor([[2.0, 1.0], [0.0, 0.5]]), torch.tensor([0, 1])
        >>> pairwise_margin_loss(logits, target, margins.logit_adjusted(prior))
        tensor(0.9528)
    """
    check_margin(margin)
    check_options(margin.num_classes, weight, label_smoothing, reduction, impl)
    options = weight, ignore_index, label_smoothing, reduction, impl
    return family_loss(logits, target, Numbers.of(margin, logits, *options))


class PriorBuffers(nn.Module):
    """A loss whose numbers per class are buffers, of one type for good and not in its state."""

    def keep(self, *, persistent: bool = False, **values: Any) -> None:
        """Register copies as buffers, in float32 or torch's wider default type."""
        dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
        for name, value in values.items():
            if isinstance(value, Tensor):
                value = value.detach().to(dtype, copy=True)
            elif value is not None:
                value = torch.tensor(value, dtype=dtype)
            self.register_buffer(name, value, persistent=persistent)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the buffers with `.to` and the like; their types stay, or the prior would change."""
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, old in before.items():
            new = self._buffers[name]
            if old is not None and new is not None and new.dtype != old.dtype:
                self._buffers[name] = old.to(new.device)
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Skip the margins that states once held: those the loss was made with stay."""
        for name in _ONCE_SAVED:
            state_dict.pop(prefix + name, None)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


_ONCE_SAVED = ("alpha", "positive", "negative", "dense", "rare", "log_q", "cumulative")


def shown(name: str, loss: nn.Module, first: dict[str, Any], **defaults: Any) -> str:
    """Return a name, some settings, and the attributes that differ from torch's defaults."""
    first["reduction"] = loss.reduction
    own = {key: getattr(loss, key) for key in defaults}
    first |= {key: value for key, value in own.items() if value != defaults[key]}
    return ", ".join([repr(name), *(f"{key}={value!r}" for key, value in first.items())])


class PairwiseMarginLoss(PriorBuffers):
    """The whole family: cross-entropy with weights α and margins Δ; see `pairwise_margin_loss`.

    The margins are buffers: they move with `.to(device)` and stay in float32 when a model is cast
    to half precision. They are not in a `state_dict`, which has class weights alone, as that of
    `torch.nn.CrossEntropyLoss`: this can replace it in a saved network and be replaced by it.

    Args:
        margin: from `longtail.margins`, or any Margin.
        weight, ignore_index, label_smoothing, reduction, impl: as in the function.

    Attributes:
        alpha, positive, negative: α, a and b, buffers of shape (num_classes,).
        dense: Δ as a buffer of shape (num_classes, num_classes), or None.
        weight: torch's class weights as a buffer, or None.
        scale: s.

    Examples:
        >>> from longtail import margins
        >>> prior = ClassPrior.from_counts([90, 10])
        >>> loss = PairwiseMarginLoss(margins.adaptive(prior) + margins.balanced(prior))
        >>> loss
        PairwiseMarginLoss('adaptive + balanced', num_classes=2, reduction='mean')
        >>> loss(torch.zeros(1, 2), torch.tensor([1]))
        tensor(9.6718)
    """

    alpha: Tensor
    positive: Tensor
    negative: Tensor
    dense: Tensor | None
    weight: Tensor | None
    settings: dict[str, Any]  # the margin's arguments, for printing

    def __init__(
        self,
        margin: Margin,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        impl: str = "auto",
    ) -> None:
        super().__init__()
        check_margin(margin)
        self.label_smoothing = check_options(
            margin.num_classes, weight, label_smoothing, reduction, impl
        )
        self.keep(alpha=margin.alpha, positive=margin.positive, negative=margin.negative)
        self.keep(dense=margin.dense, _factor=None if margin.scale == 1 else margin.scale)
        self.keep(weight=weight, persistent=True)
        # What has no effect is left out of every step.
        self._weighs, self._shifts = bool((margin.alpha != 1).any()), bool(margin.negative.any())
        self._lowers = bool((margin.positive + margin.negative).any())
        self.name, self.scale, self.settings = margin.name, float(margin.scale), {}
        self.num_classes = margin.num_classes
        self.ignore_index, self.reduction, self.impl = ignore_index, reduction, impl

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
        example. `num_items_in_batch` is what transformers' Trainer passes; the error then says what
        to do.
        """
        if num_items_in_batch is not None or not isinstance(logits, Tensor):
            raise InputError(
                "this is how transformers' Trainer calls its loss, with the model's outputs and "
                "`num_items_in_batch`; wrap the loss: compute_loss_func=TrainerLoss(loss), from "
                "longtail.integrations.huggingface. Elsewhere pass outputs['logits']."
            )
        return family_loss(logits, target, self.numbers(), dropped)

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

        Returns:
            As in `pairwise_margin_loss`.

        Examples:
            >>> from longtail import margins
            >>> loss = PairwiseMarginLoss(margins.logit_adjusted(ClassPrior.from_counts([9, 1])))
            >>> logits = torch.tensor([[1.0, 0.0]])
            >>> loss.mixed(logits, torch.tensor([0]), torch.tensor([1]), 0.75)
            tensor(0.8394)
            >>> loss(logits, torch.tensor([[0.75, 0.25]]))
            tensor(0.8394)
        """
        own, each = self.numbers(), self.numbers(reduction="none")
        work = logits.to(work_dtype(logits))  # so that rounding comes last
        one, two = (family_loss(work, y, each, dropped) for y in (first, second))
        if not isinstance(share, Tensor):
            part = torch.full_like(one, _checks.fraction(share, name="share"))
        else:
            part = share.expand(first.shape) if share.ndim == 0 else share
            if not part.is_floating_point() or part.shape != first.shape:
                raise InputError(
                    f"`share` must be a number in [0, 1], or one for each label in a floating-point"
                    f" tensor of shape {tuple(first.shape)}; got {part.dtype}, {tuple(part.shape)}."
                )
            part = part.to(one.dtype)
        loss = torch.lerp(two, one, part)
        if own.reduction != "none":
            loss = loss.sum()
        if own.reduction == "mean":
            second_part, first_part = (counted(y.long(), own).to(part) for y in (second, first))
            loss = loss / torch.lerp(second_part, first_part, part).sum()
        return loss.to(loss_dtype(logits))

    def numbers(self, reduction: str | None = None) -> Numbers:
        """Return the margin and the options, as the computation takes them."""
        own = self._buffers  # quicker than attributes, which a module looks up in several places
        return Numbers(
            self.num_classes,
            own["alpha"] if self._weighs else None,
            own["negative"] if self._shifts else None,
            own["positive"] + own["negative"] if self._lowers else None,  # type: ignore[operator]
            own["dense"],
            own["_factor"],
            self.scale,
            own["weight"],
            self.ignore_index,
            self.label_smoothing,
            reduction or self.reduction,
            self.impl,
        )

    def extra_repr(self) -> str:
        """Return the margin's name and settings, and options that differ from torch's defaults."""
        first = {"num_classes": self.num_classes, **self.settings}
        if self.scale != 1.0:
            first["scale"] = self.scale
        return shown(self.name, self, first, ignore_index=-100, label_smoothing=0.0, impl="auto")


def _wrong_width(logits: Tensor, dim: int, num_classes: int) -> InputError:
    shape = tuple(logits.shape)
    return InputError(
        f"the loss has {num_classes} classes but the logits have {shape[dim]} columns, shape "
        f"{shape}; {ClassPrior._advice_on_width(num_classes, shape[dim], shape)}."
    )


def check_margin(margin: Any) -> None:
    """Refuse anything but a Margin."""
    if not isinstance(margin, Margin):
        raise InputError(
            f"`margin` must be a Margin; got {type(margin).__name__}. Make one with "
            f"longtail.margins, such as margins.logit_adjusted(prior)."
        )


def check_options(
    num_classes: int, weight: Any, label_smoothing: float, reduction: str, impl: str = "auto"
) -> float:
    """Check the options of a loss; return the label smoothing."""
    if weight is not None and (not isinstance(weight, Tensor) or weight.shape != (num_classes,)):
        came = tuple(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
        raise InputError(
            f"class weights must be a torch tensor with one value per class, shape "
            f"({num_classes},); got {came}."
        )
    _checks.choice(reduction, REDUCTIONS, name="reduction")
    _checks.choice(impl, IMPLS, name="impl")
    return _checks.fraction(label_smoothing, name="label_smoothing")
