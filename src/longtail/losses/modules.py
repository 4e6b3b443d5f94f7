"""The losses as nn.Modules: each only holds its margins as buffers and calls the family.

Buffers move with `.to(device)`, are saved in `state_dict` (loading another run's state restores
that run's margins, with a warning if they are others) and stay in float32 at least when a model
is cast to half precision: a rounded log-prior would be a different loss. `scale` and the options
are settings, not state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, Unpack

import torch
from torch import Tensor

from longtail import _checks, margins
from longtail._checks import InputError
from longtail.losses import _family
from longtail.losses._draws import draw_dropped
from longtail.losses._family import LossOptions, family_loss
from longtail.losses._loading import LoadsMargins
from longtail.losses._mixed import mixed_loss
from longtail.losses._tensors import MarginTensors
from longtail.margins import Margin
from longtail.priors import ClassPrior


class PairwiseMarginLoss(LoadsMargins):
    """The whole family: cross-entropy with weights α and margins Δ; see `pairwise_margin_loss`.

    Args:
        margin: from `longtail.margins`, or any Margin.
        weight: w, shape (num_classes,), torch's class weights.
        ignore_index: class indices with this value count for nothing.
        label_smoothing: ε in [0, 1].
        reduction: "mean", "sum" or "none".
        impl: "auto", "torch" or "triton".

    Attributes:
        alpha: α, a buffer of shape (num_classes,).
        positive: a, a buffer of shape (num_classes,).
        negative: b, a buffer of shape (num_classes,).
        dense: Δ as a buffer of shape (num_classes, num_classes), or None.
        weight: torch's class weights as a buffer, or None.

    Examples:
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
        caller = type(self).__name__
        if not isinstance(margin, Margin):
            raise InputError(
                f"{caller}: `margin` must be a Margin; got {type(margin).__name__}. "
                f"Make one with longtail.margins, such as margins.logit_adjusted(prior)."
            )
        _family.check_weight(weight, margin.num_classes, caller=caller)
        dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
        for name, part in (
            ("alpha", margin.alpha),
            ("positive", margin.positive),
            ("negative", margin.negative),
            ("dense", margin.dense),
            ("weight", weight),
        ):
            # A copy: a buffer that shares the Margin's memory would change it when loaded into.
            buffer = None if part is None else torch.as_tensor(part).detach().to(dtype, copy=True)
            self.register_buffer(name, buffer)
        self.name = margin.name
        self.scale = margin.scale
        self.ignore_index = ignore_index
        self.label_smoothing = _checks.fraction(label_smoothing, caller, name="label_smoothing")
        self.reduction = _checks.choice(reduction, _family.REDUCTIONS, caller, name="reduction")
        self.impl = _checks.choice(impl, _family.IMPLS, caller, name="impl")
        self.settings = {}

    def forward(self, logits: Tensor, target: Tensor, *, num_items_in_batch: Any = None) -> Tensor:
        """The loss of `logits` for `target`; shapes as in `pairwise_margin_loss`.

        `num_items_in_batch` is what transformers' Trainer passes; the error then says what to do.
        """
        if num_items_in_batch is not None:
            _family.refuse_trainer(caller=type(self).__name__)
        return self._loss(logits, target)

    def mixed(self, logits: Tensor, first: Tensor, second: Tensor, share: Tensor | float) -> Tensor:
        """The loss of examples made of two, as by CutMix or mixup: λ ℓ(y, f) + (1 − λ) ℓ(y', f).

        That is the loss with class probabilities λ on y and 1 − λ on y', without making them.
        With class weights the mean divides by the weights, as it does for one label; class
        probabilities are divided by the number of examples, as torch does.

        Args:
            logits: f, as in `pairwise_margin_loss`.
            first: y, class indices.
            second: y', likewise.
            share: λ in [0, 1]: one number for all examples, or a floating-point tensor of the
                shape of the labels.

        Returns:
            As in `pairwise_margin_loss`.

        Examples:
            >>> loss = PairwiseMarginLoss(margins.logit_adjusted(ClassPrior.from_counts([9, 1])))
            >>> logits = torch.tensor([[1.0, 0.0]])
            >>> loss.mixed(logits, torch.tensor([0]), torch.tensor([1]), torch.tensor([0.75]))
            tensor(0.8394)
            >>> loss.mixed(logits, torch.tensor([0]), torch.tensor([1]), 0.75)
            tensor(0.8394)
            >>> loss(logits, torch.tensor([[0.75, 0.25]]))
            tensor(0.8394)
        """
        return self._loss(logits, (first, second, share))

    def _loss(
        self,
        logits: Tensor,
        target: Tensor | tuple[Tensor, Tensor, Tensor | float],
        dropped: Tensor | None = None,
    ) -> Tensor:
        """The loss for one target, or for two labels and the share of the first."""
        margin = MarginTensors(self.alpha, self.positive, self.negative, self.dense, self.scale)
        options: dict[str, Any] = {
            "caller": type(self).__name__,
            "dropped": dropped,
            "weight": self.weight,
            "ignore_index": self.ignore_index,
            "label_smoothing": self.label_smoothing,
            "reduction": self.reduction,
            "impl": self.impl,
        }
        if isinstance(target, tuple):
            return mixed_loss(logits, *target, margin, **options)
        return family_loss(logits, target, margin, **options)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """`.to`, `.half` and the like; a cast below float32 moves the buffers but keeps them."""
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, old in before.items():
            new = self._buffers[name]
            if old is None or new is None or not new.is_floating_point():
                continue
            if new.dtype.itemsize < min(4, old.dtype.itemsize):
                self._buffers[name] = old.to(new.device)
        return self

    def extra_repr(self) -> str:
        """The margin's name and settings, and the options that differ from torch's defaults."""
        shown: dict[str, Any] = {"num_classes": len(self.alpha), **self.settings}
        if self.scale != 1.0:
            shown["scale"] = self.scale
        shown["reduction"] = self.reduction
        for name, default in (("ignore_index", -100), ("label_smoothing", 0.0), ("impl", "auto")):
            if getattr(self, name) != default:
                shown[name] = getattr(self, name)
        return ", ".join([repr(self.name), *(f"{key}={value!r}" for key, value in shown.items())])


class _NamedLoss(PairwiseMarginLoss):
    """A loss whose margin is `margins.<name>(prior, **settings)`."""

    def __init__(self, name: str, prior: ClassPrior, options: LossOptions, **settings: Any) -> None:
        _checks.prior(prior, type(self).__name__)
        super().__init__(getattr(margins, name)(prior, **settings), **options)
        self.settings = settings


class SoftmaxLoss(_NamedLoss):
    """Plain cross-entropy; see `softmax_loss`.

    Args:
        prior: says how many classes there are, so that this loss can stand in for any other.
        **options: as in `PairwiseMarginLoss`.

    Examples:
        >>> SoftmaxLoss(ClassPrior.uniform(4))(torch.zeros(1, 4), torch.tensor([0]))  # log 4
        tensor(1.3863)
    """

    def __init__(self, prior: ClassPrior, **options: Unpack[LossOptions]) -> None:
        super().__init__("softmax", prior, options)


class BalancedLoss(_NamedLoss):
    """Weights 1/π: every class counts alike; see `balanced_loss`.

    Args:
        prior: of the training data.
        **options: as in `PairwiseMarginLoss`.

    Examples:
        >>> BalancedLoss(ClassPrior.from_probs([0.8, 0.2]))
        BalancedLoss('balanced', num_classes=2, reduction='mean')
    """

    def __init__(self, prior: ClassPrior, **options: Unpack[LossOptions]) -> None:
        super().__init__("balanced", prior, options)


class ClassBalancedLoss(_NamedLoss):
    """Weights by the inverse effective number of examples; see `class_balanced_loss`.

    Args:
        prior: of the training data, made from counts.
        beta: β in [0, 1).
        **options: as in `PairwiseMarginLoss`.

    Examples:
        >>> ClassBalancedLoss(ClassPrior.from_counts([8000, 2000]), beta=0.999)
        ClassBalancedLoss('class-balanced', num_classes=2, beta=0.999, reduction='mean')
    """

    def __init__(
        self, prior: ClassPrior, *, beta: float = 0.9999, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__("class_balanced", prior, options, beta=beta)


class AdaptiveLoss(_NamedLoss):
    """A margin C · π_y^{−1/4} for rare target classes; see `adaptive_loss`.

    Args:
        prior: of the training data.
        constant: C.
        **options: as in `PairwiseMarginLoss`.

    Examples:
        >>> loss = AdaptiveLoss(ClassPrior.from_probs([0.9375, 0.0625]))
        >>> loss(torch.tensor([[0.0, 2.0]]), torch.tensor([1]))  # log 2
        tensor(0.6931)
    """

    def __init__(
        self, prior: ClassPrior, *, constant: float = 1.0, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__("adaptive", prior, options, constant=constant)


class LDAMLoss(_NamedLoss):
    """The adaptive margin for a cosine head; see `ldam_loss`.

    Args:
        prior: of the training data.
        max_margin: the rarest class's margin.
        scale: s, multiplies logits and margins.
        **options: as in `PairwiseMarginLoss`.

    Examples:
        >>> loss = LDAMLoss(ClassPrior.from_counts([1600, 100]))
        >>> loss(torch.tensor([[0.25, 0.0]]), torch.tensor([0]))  # log 2
        tensor(0.6931)
    """

    def __init__(
        self,
        prior: ClassPrior,
        *,
        max_margin: float = 0.5,
        scale: float = 30.0,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__("ldam", prior, options, max_margin=max_margin, scale=scale)


class EqualizedLoss(_NamedLoss):
    """Rare competitors push less, by π^τ; see `equalized_loss`.

    Args:
        prior: of the training data.
        tau: τ.
        **options: as in `PairwiseMarginLoss`.

    Examples:
        >>> loss = EqualizedLoss(ClassPrior.from_probs([0.75, 0.25]))
        >>> loss(torch.zeros(1, 2), torch.tensor([0]))  # log 1.25
        tensor(0.2231)
    """

    def __init__(
        self, prior: ClassPrior, *, tau: float = 1.0, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__("equalized", prior, options, tau=tau)


class EqualizedThresholdLoss(_NamedLoss):
    """Rare competitors drop out at random; see `equalized_threshold_loss`.

    It draws in `eval()` mode too: what is drawn belongs to the loss, not to the model.

    Args:
        prior: of the training data.
        threshold: λ in [0, 1], a frequency: classes with π < λ may drop out.
        gamma: γ in [0, 1], with which probability they do.
        generator: of the random numbers, on the device of the logits; torch's own if None.
        **options: as in `PairwiseMarginLoss`.

    Attributes:
        rare: which classes may drop out, a buffer of shape (num_classes,).

    Examples:
        >>> prior = ClassPrior.from_probs([0.5, 0.45, 0.05])
        >>> loss = EqualizedThresholdLoss(prior, threshold=0.1, gamma=1.0)
        >>> loss(torch.zeros(1, 3), torch.tensor([0]))  # log 2: class 2 does not compete
        tensor(0.6931)
    """

    rare: Tensor

    def __init__(
        self,
        prior: ClassPrior,
        *,
        threshold: float,
        gamma: float = 0.9,
        generator: torch.Generator | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__("softmax", prior, options)
        caller = type(self).__name__
        threshold = _checks.fraction(threshold, caller, name="threshold")
        self.gamma = _checks.fraction(gamma, caller, name="gamma")
        self.generator = generator
        self.name = "equalized-threshold"
        self.settings = {"threshold": threshold, "gamma": gamma}
        self.register_buffer("rare", torch.as_tensor(prior.probs < threshold))

    def forward(
        self,
        logits: Tensor,
        target: Tensor,
        *,
        dropped: Tensor | None = None,
        num_items_in_batch: Any = None,
    ) -> Tensor:
        """The loss of `logits` for `target`, with a fresh draw of who competes, or a given one."""
        if num_items_in_batch is not None:
            _family.refuse_trainer(caller=type(self).__name__)
        return self._loss(logits, target, self.draw(logits) if dropped is None else dropped)

    def mixed(
        self,
        logits: Tensor,
        first: Tensor,
        second: Tensor,
        share: Tensor | float,
        *,
        dropped: Tensor | None = None,
    ) -> Tensor:
        """As for every loss, see `PairwiseMarginLoss.mixed`; both labels with the same draw."""
        dropped = self.draw(logits) if dropped is None else dropped
        return self._loss(logits, (first, second, share), dropped)

    def draw(self, logits: Tensor) -> Tensor:
        """Who does not compete, bool, of the shape of `logits`; to use one draw more than once."""
        caller = type(self).__name__
        return draw_dropped(logits, self.rare, self.gamma, self.generator, caller=caller)


class LogitAdjustedLoss(_NamedLoss):
    """The logit-adjusted loss (equation 10); see `logit_adjusted_loss`.

    Predict with argmax of the logits: they need no further adjustment.

    Args:
        prior: of the training data.
        tau: τ; 1 is consistent for the balanced error.
        **options: as in `PairwiseMarginLoss`.

    Examples:
        >>> loss = LogitAdjustedLoss(ClassPrior.from_probs([0.75, 0.25]), label_smoothing=0.1)
        >>> loss
        LogitAdjustedLoss('logit-adjusted', num_classes=2, tau=1.0, reduction='mean',
                          label_smoothing=0.1)
        >>> loss(torch.zeros(1, 2), torch.tensor([1]))
        tensor(1.3314)
    """

    def __init__(
        self, prior: ClassPrior, *, tau: float = 1.0, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__("logit_adjusted", prior, options, tau=tau)


class LogitAdjustedAdaptiveLoss(_NamedLoss):
    """Logit adjustment and the adaptive margin together; see `logit_adjusted_adaptive_loss`.

    Args:
        prior: of the training data.
        tau: τ of the logit adjustment.
        constant: C of the adaptive margin.
        **options: as in `PairwiseMarginLoss`.

    Examples:
        >>> prior = ClassPrior.from_probs([0.75, 0.25])
        >>> loss = LogitAdjustedAdaptiveLoss(prior, constant=0.0)
        >>> loss(torch.zeros(1, 2), torch.tensor([1]))  # log 4
        tensor(1.3863)
    """

    def __init__(
        self,
        prior: ClassPrior,
        *,
        tau: float = 1.0,
        constant: float = 1.0,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__("logit_adjusted_adaptive", prior, options, tau=tau, constant=constant)


class TwoParameterLoss(_NamedLoss):
    """Different strengths for target and competitor; see `two_parameter_loss`.

    Args:
        prior: of the training data.
        tau1: τ₁, for the target.
        tau2: τ₂, for the competitor.
        **options: as in `PairwiseMarginLoss`.

    Examples:
        >>> TwoParameterLoss(ClassPrior.uniform(3), tau1=0.5)
        TwoParameterLoss('two-parameter', num_classes=3, tau1=0.5, tau2=1.0, reduction='mean')
    """

    def __init__(
        self,
        prior: ClassPrior,
        *,
        tau1: float = 1.0,
        tau2: float = 1.0,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__("two_parameter", prior, options, tau1=tau1, tau2=tau2)


class ConsistentLoss(_NamedLoss):
    """Any member of the consistent family of Theorem 1; see `consistent_loss`.

    Args:
        prior: of the training data.
        delta: δ, shape (num_classes,), positive.
        **options: as in `PairwiseMarginLoss`.

    Examples:
        >>> prior = ClassPrior.from_probs([0.75, 0.25])
        >>> loss = ConsistentLoss(prior, delta=prior.probs)
        >>> loss(torch.zeros(1, 2), torch.tensor([1]))  # log 4
        tensor(1.3863)
    """

    def __init__(self, prior: ClassPrior, *, delta: Any, **options: Unpack[LossOptions]) -> None:
        super().__init__("consistent", prior, options, delta=delta)
        self.settings = {}  # δ is as long as the classes are many; the buffers hold it


class WeightedLogitAdjustedLoss(_NamedLoss):
    """Part margin, part weight, and consistent for every τ; see `weighted_logit_adjusted_loss`.

    Args:
        prior: of the training data.
        tau: τ; 1 is the logit-adjusted loss, 0 the balanced one.
        **options: as in `PairwiseMarginLoss`.

    Examples:
        >>> loss = WeightedLogitAdjustedLoss(ClassPrior.from_probs([0.8, 0.2]))
        >>> loss(torch.zeros(1, 2), torch.tensor([1]))  # 5/3 log 3
        tensor(1.8310)
    """

    def __init__(
        self, prior: ClassPrior, *, tau: float = 0.5, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__("weighted_logit_adjusted", prior, options, tau=tau)
