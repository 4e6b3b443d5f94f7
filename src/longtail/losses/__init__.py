"""The losses of the pairwise-margin family in torch: a module and a function for each.

    pairwise  the family on torch's own cross-entropy, which everything here stands on
    sampled   features, weights, target -> any of them from a few classes drawn
    linear    features, weights, target -> any of them without holding the logits
    stacked   the losses of several runs at once, for training
    outside   the average of the k largest losses, and hinge losses

The family's losses take what `torch.nn.CrossEntropyLoss` takes, with the same meaning. To add one,
write its margin in `longtail.margins`, and here a class, with its equation and its settings, and
the line that makes its function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import InitVar, field, replace
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, Unpack, cast, dataclass_transform

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


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(field,))
class _Declared(PairwiseMarginLoss):
    """A loss whose margin is `of(prior, **settings)`; a subclass declares the settings.

    Type checkers and editors make its `__init__` from these declarations, as for a dataclass. At
    run time it is made here, with the signature of the margin's function and `LossOptions`.
    """

    def __init_subclass__(cls, *, of: Callable[..., Margin] | None = None) -> None:
        """Make `__init__`, and add to the docstring the arguments that `of` documents."""
        if of is None:
            return
        own = inspect.signature(of, eval_str=True)
        cls.shown = tuple(name for name in own.parameters if name in vars(cls))

        def __init__(self: Any, prior: ClassPrior, **given: Any) -> None:
            options = {name: given.pop(name) for name in LossOptions.__annotations__.keys() & given}
            margin = of(prior, **given)
            PairwiseMarginLoss.__init__(self, margin, **options)
            _refuse_double_correction(margin, self.weight, prior)
            for name in given.keys() & cls.shown:
                setattr(self, name, given[name])

        parameters = [_SELF, *own.parameters.values(), _OPTIONS]
        signature = inspect.Signature(parameters, return_annotation=None)
        __init__.__signature__ = signature  # type: ignore[attr-defined]
        __init__.__qualname__ = f"{cls.__qualname__}.__init__"
        cls.__init__ = __init__  # type: ignore[assignment, misc]
        doc, margin = inspect.cleandoc(cls.__doc__ or ""), inspect.getdoc(of) or ""
        args = margin.partition("Args:\n")[2].partition("\n\n")[0] or _PRIOR
        cls.__doc__ = f"{doc}\n\nArgs:\n{args}\n    **options: see `LossOptions`."


_SELF = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
_OPTIONS = inspect.Parameter(
    "options", inspect.Parameter.VAR_KEYWORD, annotation=Unpack[LossOptions]
)
_PRIOR = "    prior: of the training data."


class _NamedLoss(_Declared):
    if TYPE_CHECKING:  # prior and `LossOptions` as declarations
        prior: InitVar[ClassPrior] = field(kw_only=False)
        weight: Tensor | None = None
        ignore_index: int = -100
        label_smoothing: float = 0.0
        reduction: str = "mean"
        impl: str = "auto"
        dtype: InitVar[torch.dtype | None] = None


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


class SoftmaxLoss(_NamedLoss, of=margins.softmax):
    """Plain cross-entropy, the baseline; the prior only gives the number of classes.

    ℓ(y, f) = log[1 + Σ_{y'≠y} exp(f_{y'} − f_y)]
    """


class BalancedLoss(_NamedLoss, of=margins.balanced):
    """Every class counts the same: α_y ∝ 1/π_y, no margin (equation 4).

    ℓ(y, f) = α_y · log[1 + Σ_{y'≠y} exp(f_{y'} − f_y)]
    """


class ClassBalancedLoss(_NamedLoss, of=margins.class_balanced):
    """Weights by effective numbers, α_y ∝ (1 − β)/(1 − β^{n_y}), no margin (Cui et al. 2019).

    ℓ(y, f) = α_y · log[1 + Σ_{y'≠y} exp(f_{y'} − f_y)]
    """

    beta: Final[float] = 0.9999


class AdaptiveLoss(_NamedLoss, of=margins.adaptive):
    """A margin for rare target classes, for a linear head (equation 5, Cao et al. 2019).

    ℓ(y, f) = log[1 + Σ_{y'≠y} exp(C · π_y^{−1/4} + f_{y'} − f_y)]
    """

    constant: Final[float] = 1.0


class LDAMLoss(_NamedLoss, of=margins.ldam):
    """The adaptive margin for a cosine head, logits times s, as Cao et al.'s code has it.

        ℓ(y, f) = log[1 + Σ_{y'≠y} exp(s · (m_y + f_{y'} − f_y))],   m_y ∝ n_y^{−1/4}

    The logits are cosines, within [−1, 1]; on an ordinary head use `AdaptiveLoss`.
    """

    max_margin: Final[float] = 0.5
    scale: float = 30.0


class EqualizedLoss(_NamedLoss, of=margins.equalized):
    """Rare competitors push less: the deterministic form of Tan et al. (equation 6, F(z) = z^τ).

    ℓ(y, f) = log[1 + Σ_{y'≠y} π_{y'}^τ · exp(f_{y'} − f_y)]
    """

    tau: Final[float] = 1.0


class EqualizedThresholdLoss(PairwiseMarginLoss):
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

    shown = ("threshold", "gamma")
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
        super().__init__(margins.softmax(prior), **options)
        self.threshold = _checks.fraction(threshold, name="threshold")
        self.gamma = _checks.fraction(gamma, name="gamma")
        self.generator = generator
        self.name = "equalized-threshold"
        self.whole_rows = True  # which classes compete differs from example to example
        rare = torch.as_tensor(prior.probs < self.threshold)
        self.register_buffer("rare", rare, persistent=False)

    def forward(self, logits: Any, *args: Any, dropped: Tensor | None = None, **how: Any) -> Tensor:
        """Return the loss with a fresh draw of which classes compete, or with `dropped`."""
        if dropped is None and isinstance(logits, Tensor):
            dropped = self.draw(logits)
        return super().forward(logits, *args, dropped=dropped, **how)

    def mixed(self, logits: Any, *args: Any, dropped: Tensor | None = None, **how: Any) -> Tensor:
        """As for every loss, see `PairwiseMarginLoss.mixed`; both labels with the same draw."""
        dropped = self.draw(logits) if dropped is None else dropped
        return super().mixed(logits, *args, dropped=dropped, **how)

    def draw(self, logits: Tensor) -> Tensor:
        """Draw which classes don't compete, bool, shape of `logits`; to use a draw repeatedly."""
        if self.generator is None:  # torch.compile takes no generator when sizes vary
            chance = torch.rand(logits.shape, device=logits.device)
        else:
            chance = torch.rand(logits.shape, generator=self.generator, device=logits.device)
        dim = min(logits.ndim - 1, 1)
        return self.rare.view(-1, *[1] * (logits.ndim - dim - 1)) & (chance < self.gamma)


class LogitAdjustedLoss(_NamedLoss, of=margins.logit_adjusted):
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

    tau: Final[float] = 1.0


class LogitAdjustedAdaptiveLoss(_NamedLoss, of=margins.logit_adjusted_adaptive):
    """Logit adjustment and the adaptive margin together (section 6.2).

    ℓ(y, f) = log[1 + Σ_{y'≠y} (π_{y'}/π_y)^τ · exp(C · π_y^{−1/4} + f_{y'} − f_y)]
    """

    tau: Final[float] = 1.0
    constant: Final[float] = 1.0


class TwoParameterLoss(_NamedLoss, of=margins.two_parameter):
    """Different strengths for target and competitor (section 5.3, with the sign it means).

    ℓ(y, f) = log[1 + Σ_{y'≠y} π_{y'}^{τ₂} / π_y^{τ₁} · exp(f_{y'} − f_y)]
    """

    tau1: Final[float] = 1.0
    tau2: Final[float] = 1.0


class ConsistentLoss(_NamedLoss, of=margins.consistent):
    """Any member of the consistent family of Theorem 1: α_y ∝ δ_y/π_y, Δ_{yy'} = log(δ_{y'}/δ_y).

    ℓ(y, f) = α_y · log[1 + Σ_{y'≠y} δ_{y'}/δ_y · exp(f_{y'} − f_y)]
    """

    delta: InitVar[Any]


class WeightedLogitAdjustedLoss(_NamedLoss, of=margins.weighted_logit_adjusted):
    """Part margin, part weight, and consistent for every τ: α_y ∝ π_y^{τ−1} (section 5.3).

    ℓ(y, f) = α_y · log[1 + Σ_{y'≠y} (π_{y'}/π_y)^τ · exp(f_{y'} − f_y)]
    """

    tau: Final[float] = 0.5


# --- functions ------------------------------------------------------------------------------------

P = ParamSpec("P")


class LossFunction(Protocol[P]):
    """A loss of logits and target, with the arguments of its module."""

    def __call__(
        self, logits: Tensor, target: Tensor, /, *args: P.args, **kwargs: P.kwargs
    ) -> Tensor: ...


def _function(module: Callable[P, PairwiseMarginLoss], name: str) -> LossFunction[P]:
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
