"""The losses of the pairwise-margin family in torch: a module and a function for each.

    pairwise  the family on torch's own cross-entropy, which everything here stands on
    sampled   features, weights, target -> any of them from a few classes drawn
    linear    features, weights, target -> any of them without holding the logits
    stacked   the losses of several runs at once, for training
    outside   the average of the k largest losses, and hinge losses

The family's losses take what `torch.nn.CrossEntropyLoss` takes, with the same meaning. To add one,
write its margin in `longtail.margins`, and here a class and the line that makes its function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ParamSpec, Protocol, Unpack, cast

from longtail import _checks

# First, so that a missing torch is one line and not a long traceback.
_checks.require("torch", extra="torch")

import torch
from torch import Tensor

from longtail import margins
from longtail._checks import InputError
from longtail.losses.linear import linear_cross_entropy
from longtail.losses.outside import AverageTopKLoss, CostSensitiveHingeLoss, average_top_k
from longtail.losses.pairwise import LossOptions, PairwiseMarginLoss, pairwise_margin_loss
from longtail.losses.sampled import SampledSoftmaxLoss, sampled_softmax_loss
from longtail.margins import Margin
from longtail.priors import ClassPrior

# In the order of the paper's table, each function beside its module.
__all__ = [  # noqa: RUF022
    "LossOptions",
    "pairwise_margin_loss",
    "PairwiseMarginLoss",
    "softmax_loss",
    "SoftmaxLoss",
    "balanced_loss",
    "BalancedLoss",
    "class_balanced_loss",
    "ClassBalancedLoss",
    "adaptive_loss",
    "AdaptiveLoss",
    "ldam_loss",
    "LDAMLoss",
    "equalized_loss",
    "EqualizedLoss",
    "equalized_threshold_loss",
    "EqualizedThresholdLoss",
    "logit_adjusted_loss",
    "LogitAdjustedLoss",
    "logit_adjusted_adaptive_loss",
    "LogitAdjustedAdaptiveLoss",
    "two_parameter_loss",
    "TwoParameterLoss",
    "consistent_loss",
    "ConsistentLoss",
    "weighted_logit_adjusted_loss",
    "WeightedLogitAdjustedLoss",
    "sampled_softmax_loss",
    "SampledSoftmaxLoss",
    "linear_cross_entropy",
    "average_top_k",
    "AverageTopKLoss",
    "CostSensitiveHingeLoss",
]


class _NamedLoss(PairwiseMarginLoss):
    """A loss whose margin is `of(prior, **settings)`, which says what the settings are."""

    of: Callable[..., Margin]

    def __init__(self, prior: ClassPrior, options: LossOptions, **settings: Any) -> None:
        margin = type(self).of(prior, **settings)
        super().__init__(margin, **options)
        _refuse_double_correction(margin, self.weight, prior)
        # (δ has a value for each class.)
        self.settings = {key: value for key, value in settings.items() if key != "delta"}

    def __init_subclass__(cls) -> None:
        """Add to the docstring the arguments that the margin's function documents."""
        doc, margin = inspect.cleandoc(cls.__doc__ or ""), inspect.getdoc(cls.of) or ""
        if "Args:" not in doc:
            args = margin.partition("Args:\n")[2].partition("\n\n")[0] or _PRIOR
            cls.__doc__ = f"{doc}\n\nArgs:\n{args}\n    **options: see `LossOptions`."


_PRIOR = "    prior: of the training data."


def _refuse_double_correction(margin: Margin, weight: Tensor | None, prior: ClassPrior) -> None:
    """Refuse class weights w that correct once more for what an antisymmetric margin corrects.

    With them the loss leaves b − log(α w π)/s to be added to the logits, which is −log π for
    plain cross-entropy, 0 for a consistent loss, and log π for one that corrects twice.
    """
    if weight is None or not margin.is_antisymmetric or not bool((weight > 0).all()):
        return
    weighted = replace(margin, alpha=margin.alpha * _checks.as_numpy(weight))
    whole = prior.log_probs.mean() - prior.log_probs
    if weighted.residual_adjustment(prior) @ whole < -0.501 * (whole @ whole):
        raise InputError(
            "the class weights correct for the prior, and so does the loss: together they favour "
            "rare classes twice. Leave `weight` out, or take a loss that balances the two, such as "
            "WeightedLogitAdjustedLoss. (PairwiseMarginLoss takes any margin with any weights.)"
        )


class SoftmaxLoss(_NamedLoss):
    """Plain cross-entropy, the baseline; the prior only gives the number of classes.

    ℓ(y, f) = log[1 + Σ_{y'≠y} exp(f_{y'} − f_y)]
    """

    of = staticmethod(margins.softmax)

    def __init__(self, prior: ClassPrior, **options: Unpack[LossOptions]) -> None:
        super().__init__(prior, options)


class BalancedLoss(_NamedLoss):
    """Every class counts the same: α_y ∝ 1/π_y, no margin (equation 4).

    ℓ(y, f) = α_y · log[1 + Σ_{y'≠y} exp(f_{y'} − f_y)]
    """

    of = staticmethod(margins.balanced)

    def __init__(self, prior: ClassPrior, **options: Unpack[LossOptions]) -> None:
        super().__init__(prior, options)


class ClassBalancedLoss(_NamedLoss):
    """Weights by effective numbers, α_y ∝ (1 − β)/(1 − β^{n_y}), no margin (Cui et al. 2019).

    ℓ(y, f) = α_y · log[1 + Σ_{y'≠y} exp(f_{y'} − f_y)]
    """

    of = staticmethod(margins.class_balanced)

    def __init__(
        self, prior: ClassPrior, *, beta: float = 0.9999, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(prior, options, beta=beta)


class AdaptiveLoss(_NamedLoss):
    """A margin for rare target classes, for a linear head (equation 5, Cao et al. 2019).

    ℓ(y, f) = log[1 + Σ_{y'≠y} exp(C · π_y^{−1/4} + f_{y'} − f_y)]
    """

    of = staticmethod(margins.adaptive)

    def __init__(
        self, prior: ClassPrior, *, constant: float = 1.0, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(prior, options, constant=constant)


class LDAMLoss(_NamedLoss):
    """The adaptive margin for a cosine head, logits times s, as Cao et al.'s code has it.

        ℓ(y, f) = log[1 + Σ_{y'≠y} exp(s · (m_y + f_{y'} − f_y))],   m_y ∝ n_y^{−1/4}

    The logits are cosines, within [−1, 1]; on an ordinary head use `AdaptiveLoss`.
    """

    of = staticmethod(margins.ldam)

    def __init__(
        self,
        prior: ClassPrior,
        *,
        max_margin: float = 0.5,
        scale: float = 30.0,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(prior, options, max_margin=max_margin, scale=scale)


class EqualizedLoss(_NamedLoss):
    """Rare competitors push less: the deterministic form of Tan et al. (equation 6, F(z) = z^τ).

    ℓ(y, f) = log[1 + Σ_{y'≠y} π_{y'}^τ · exp(f_{y'} − f_y)]
    """

    of = staticmethod(margins.equalized)

    def __init__(
        self, prior: ClassPrior, *, tau: float = 1.0, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(prior, options, tau=tau)


class EqualizedThresholdLoss(_NamedLoss):
    """Rare competitors drop out at random: the stochastic form of Tan et al. (2020).

        ℓ(y, f) = log[1 + Σ_{y'≠y, y' kept} exp(f_{y'} − f_y)]

    For each example a class rarer than λ is dropped with probability γ, unless it is the target.
    If no competitor is left, the loss is 0 and so is its gradient. Classes are dropped in `eval()`
    mode too, since that belongs to the loss, not to the model.

    Args:
        prior: of the training data.
        threshold: λ in [0, 1], a frequency: classes with π < λ may drop out.
        gamma: γ in [0, 1].
        generator: of the random numbers, on the device of the logits; torch's own if None.
        **options: see `LossOptions`.

    Attributes:
        rare: classes that may drop out, a buffer of shape (num_classes,).

    Examples:
        >>> prior = ClassPrior.from_probs([0.5, 0.45, 0.05])
        >>> loss = EqualizedThresholdLoss(prior, threshold=0.1, gamma=1.0, reduction="none")
        >>> loss(torch.zeros(2, 3), torch.tensor([0, 2])).exp()  # class 2 competes only as target
        tensor([2., 3.])
    """

    of = staticmethod(margins.softmax)
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
        super().__init__(prior, options)
        threshold = _checks.fraction(threshold, name="threshold")
        self.gamma = _checks.fraction(gamma, name="gamma")
        self.generator = generator
        self.name = "equalized-threshold"
        self.settings = {"threshold": threshold, "gamma": gamma}
        self.whole_rows = True  # which classes compete differs from example to example
        self.register_buffer("rare", torch.as_tensor(prior.probs < threshold), persistent=False)

    def forward(self, logits: Any, target: Tensor, **options: Any) -> Tensor:
        """Return the loss with a fresh draw of which classes compete, or with `dropped`."""
        return super().forward(logits, target, **self._with_draw(logits, options))

    def mixed(
        self, logits: Tensor, first: Tensor, second: Tensor, share: Any, **options: Any
    ) -> Tensor:
        """As for every loss, see `PairwiseMarginLoss.mixed`; both labels with the same draw."""
        return super().mixed(logits, first, second, share, **self._with_draw(logits, options))

    def _with_draw(self, logits: Any, options: dict[str, Any]) -> dict[str, Any]:
        if options.get("dropped") is None and isinstance(logits, Tensor):
            options["dropped"] = self.draw(logits)
        return options

    def draw(self, logits: Tensor) -> Tensor:
        """Draw which classes don't compete, bool, shape of `logits`; to use a draw repeatedly."""
        if self.generator is None:  # torch.compile takes no generator when sizes vary
            chance = torch.rand(logits.shape, device=logits.device)
        else:
            chance = torch.rand(logits.shape, generator=self.generator, device=logits.device)
        dim = min(logits.ndim - 1, 1)
        return self.rare.view(-1, *[1] * (logits.ndim - dim - 1)) & (chance < self.gamma)


class LogitAdjustedLoss(_NamedLoss):
    """The logit-adjusted loss (equation 10): cross-entropy of f + τ log π.

        ℓ(y, f) = log[1 + Σ_{y'≠y} (π_{y'}/π_y)^τ · exp(f_{y'} − f_y)]

    With τ = 1 (balanced softmax) its minimiser minimises the balanced error; predict with argmax f,
    without adjusting again.

    Examples:
        >>> loss = LogitAdjustedLoss(ClassPrior.from_probs([0.75, 0.25]), label_smoothing=0.1)
        >>> loss
        LogitAdjustedLoss('logit-adjusted', num_classes=2, tau=1.0, reduction='mean',
                          label_smoothing=0.1)
        >>> loss(torch.zeros(1, 2), torch.tensor([1]))
        tensor(1.3314)
    """

    of = staticmethod(margins.logit_adjusted)

    def __init__(
        self, prior: ClassPrior, *, tau: float = 1.0, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(prior, options, tau=tau)


class LogitAdjustedAdaptiveLoss(_NamedLoss):
    """Logit adjustment and the adaptive margin together (section 6.2).

    ℓ(y, f) = log[1 + Σ_{y'≠y} (π_{y'}/π_y)^τ · exp(C · π_y^{−1/4} + f_{y'} − f_y)]
    """

    of = staticmethod(margins.logit_adjusted_adaptive)

    def __init__(
        self,
        prior: ClassPrior,
        *,
        tau: float = 1.0,
        constant: float = 1.0,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(prior, options, tau=tau, constant=constant)


class TwoParameterLoss(_NamedLoss):
    """Different strengths for target and competitor (section 5.3, with the sign it means).

    ℓ(y, f) = log[1 + Σ_{y'≠y} π_{y'}^{τ₂} / π_y^{τ₁} · exp(f_{y'} − f_y)]
    """

    of = staticmethod(margins.two_parameter)

    def __init__(
        self,
        prior: ClassPrior,
        *,
        tau1: float = 1.0,
        tau2: float = 1.0,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(prior, options, tau1=tau1, tau2=tau2)


class ConsistentLoss(_NamedLoss):
    """Any member of the consistent family of Theorem 1: α_y ∝ δ_y/π_y, Δ_{yy'} = log(δ_{y'}/δ_y).

    ℓ(y, f) = α_y · log[1 + Σ_{y'≠y} δ_{y'}/δ_y · exp(f_{y'} − f_y)]
    """

    of = staticmethod(margins.consistent)

    def __init__(self, prior: ClassPrior, *, delta: Any, **options: Unpack[LossOptions]) -> None:
        super().__init__(prior, options, delta=delta)


class WeightedLogitAdjustedLoss(_NamedLoss):
    """Part margin, part weight, and consistent for every τ: α_y ∝ π_y^{τ−1} (section 5.3).

    ℓ(y, f) = α_y · log[1 + Σ_{y'≠y} (π_{y'}/π_y)^τ · exp(f_{y'} − f_y)]
    """

    of = staticmethod(margins.weighted_logit_adjusted)

    def __init__(
        self, prior: ClassPrior, *, tau: float = 0.5, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(prior, options, tau=tau)


# --- functions ------------------------------------------------------------------------------------

P = ParamSpec("P")


class LossFunction(Protocol[P]):
    """A loss of logits and target, with the arguments of its module."""

    def __call__(
        self, logits: Tensor, target: Tensor, /, *args: P.args, **kwargs: P.kwargs
    ) -> Tensor: ...


def _function(module: Callable[P, _NamedLoss], name: str) -> LossFunction[P]:
    """Make the function of a module: the module, for one call."""

    def loss(logits: Tensor, target: Tensor, prior: ClassPrior, **given: Any) -> Tensor:
        made = cast(Any, module)(prior, **given, dtype=logits.dtype)
        return cast(Tensor, made.to(logits.device, non_blocking=True).forward(logits, target))

    shape, own = inspect.signature(loss, eval_str=True), inspect.signature(module, eval_str=True)
    first = [shape.parameters["logits"], shape.parameters["target"]]
    loss.__signature__ = shape.replace(  # type: ignore[attr-defined]
        parameters=[*first, *own.parameters.values()]
    )
    loss.__name__ = loss.__qualname__ = name
    equation, _, args = (module.__doc__ or "").partition("Args:\n")
    equation = equation.partition("Examples:")[0].rstrip()
    loss.__doc__ = f"{equation}\n\nArgs:\n{_LOGITS}\n{args}"
    return cast(LossFunction[P], loss)


_LOGITS = """    logits: f, shape (N, C), (C,) or (N, C, d1, ...).
    target: class indices or probabilities, as in `pairwise_margin_loss`."""

balanced_loss = _function(BalancedLoss, "balanced_loss")
class_balanced_loss = _function(ClassBalancedLoss, "class_balanced_loss")
adaptive_loss = _function(AdaptiveLoss, "adaptive_loss")
ldam_loss = _function(LDAMLoss, "ldam_loss")
equalized_loss = _function(EqualizedLoss, "equalized_loss")
logit_adjusted_loss = _function(LogitAdjustedLoss, "logit_adjusted_loss")
logit_adjusted_adaptive_loss = _function(LogitAdjustedAdaptiveLoss, "logit_adjusted_adaptive_loss")
two_parameter_loss = _function(TwoParameterLoss, "two_parameter_loss")
consistent_loss = _function(ConsistentLoss, "consistent_loss")
weighted_logit_adjusted_loss = _function(WeightedLogitAdjustedLoss, "weighted_logit_adjusted_loss")
equalized_threshold_loss = _function(EqualizedThresholdLoss, "equalized_threshold_loss")


def softmax_loss(
    logits: Tensor,
    target: Tensor,
    prior: ClassPrior | None = None,
    **options: Unpack[LossOptions],
) -> Tensor:
    """Plain cross-entropy; `prior` is ignored, so that this can replace any other loss.

    Examples:
        >>> softmax_loss(torch.zeros(1, 4), torch.tensor([0]))  # log 4
        tensor(1.3863)
    """
    uniform = ClassPrior.uniform(logits.shape[min(logits.ndim - 1, 1)])
    return _softmax_loss(logits, target, prior or uniform, **options)


_softmax_loss = _function(SoftmaxLoss, "softmax_loss")
