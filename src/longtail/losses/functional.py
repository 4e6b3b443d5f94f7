"""Logits, target and prior in, loss out: one function per named loss.

Each function names its margin and hands over to `_family`, where the arithmetic is. These
functions make the margin anew at every call, in NumPy, and copy it to the logits' device: cheap
for one call, but in a training loop on a GPU take the module, whose margins already live there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor

from longtail import _checks
from longtail._checks import InputError
from longtail.losses import _tensors
from longtail.losses._draws import draw_dropped
from longtail.losses._family import LossOptions, check_logits, family_loss
from longtail.losses._tensors import MarginTensors
from longtail.margins import Margin
from longtail.priors import ClassPrior


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
    options. Half-precision logits are computed with in float32. It works under autocast,
    `torch.compile(fullgraph=True)`, `torch.func` transforms and double backward.

    Args:
        logits: f, shape (N, C), (C,) or (N, C, d1, ...).
        target: class indices, shape (N,), () or (N, d1, ...); or class probabilities q of the
            shape of `logits` (mixup), for which the loss is Σ_y q_y ℓ(y, f). Probabilities lie in
            [0, 1]; as with torch, rows that don't sum to 1 are taken as they are. On a CPU labels
            and probabilities outside their range are refused.
        margin: from `longtail.margins`, or any Margin with C classes.
        weight: w, shape (C,), multiplies each class's loss; the mean divides by the weights of
            the targets, as in torch. α does not enter that denominator.
        ignore_index: class indices with this value count for nothing.
        label_smoothing: ε in [0, 1]: q becomes (1 − ε)·q + ε/C, each class with its own margin.
        reduction: "mean", "sum" or "none".
        impl: "torch", "triton", or "auto": the Triton kernel where it can serve, else torch.

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
    caller = "pairwise_margin_loss"
    check_logits(logits, caller=caller)
    if not isinstance(margin, Margin):
        raise InputError(
            f"{caller}: `margin` must be a Margin; got {type(margin).__name__}. "
            f"Make one with longtail.margins, such as margins.logit_adjusted(prior)."
        )
    return family_loss(
        logits,
        target,
        _tensors.of_margin(margin, logits.device),
        caller=caller,
        weight=weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
        impl=impl,
    )


def softmax_loss(
    logits: Tensor,
    target: Tensor,
    prior: ClassPrior | None = None,
    **options: Unpack[LossOptions],
) -> Tensor:
    """Plain cross-entropy: no weights, no margins; what the others are measured against.

        ℓ(y, f) = log[1 + Σ_{y'≠y} exp(f_{y'} − f_y)]

    Args:
        logits: f, shape (N, C), (C,) or (N, C, d1, ...).
        target: class indices or probabilities, as in `pairwise_margin_loss`.
        prior: plays no part; taken so that this loss can stand in for any other.
        **options: as in `pairwise_margin_loss`.

    Returns:
        As in `pairwise_margin_loss`.

    Examples:
        >>> softmax_loss(torch.zeros(1, 4), torch.tensor([0]))  # log 4
        tensor(1.3863)
    """
    caller = "softmax_loss"
    _, num_classes = check_logits(logits, caller=caller)
    if prior is not None:
        _check_prior(prior, logits, caller=caller)
    zero = torch.zeros(num_classes, device=logits.device)
    margin = MarginTensors(alpha=zero + 1.0, positive=zero, negative=zero)
    return family_loss(logits, target, margin, caller=caller, **options)


def balanced_loss(
    logits: Tensor, target: Tensor, prior: ClassPrior, **options: Unpack[LossOptions]
) -> Tensor:
    """Every class counts alike: α_y ∝ 1/π_y, no margin.

        ℓ(y, f) = α_y · log[1 + Σ_{y'≠y} exp(f_{y'} − f_y)]

    Args:
        logits: f, shape (N, C), (C,) or (N, C, d1, ...).
        target: class indices or probabilities, as in `pairwise_margin_loss`.
        prior: of the training data.
        **options: as in `pairwise_margin_loss`.

    Returns:
        As in `pairwise_margin_loss`.

    Examples:
        >>> prior = ClassPrior.from_probs([0.8, 0.2])
        >>> balanced_loss(torch.zeros(2, 2), torch.tensor([0, 1]), prior, reduction="none")
        tensor([0.4332, 1.7329])
    """
    return _named_loss("balanced", logits, target, prior, {}, options)


def class_balanced_loss(
    logits: Tensor,
    target: Tensor,
    prior: ClassPrior,
    *,
    beta: float = 0.9999,
    **options: Unpack[LossOptions],
) -> Tensor:
    """Weights by the inverse effective number of examples, α_y ∝ (1 − β)/(1 − β^{n_y}) (Cui 2019).

        ℓ(y, f) = α_y · log[1 + Σ_{y'≠y} exp(f_{y'} − f_y)]

    Args:
        logits: f, shape (N, C), (C,) or (N, C, d1, ...).
        target: class indices or probabilities, as in `pairwise_margin_loss`.
        prior: of the training data, made from counts.
        beta: β in [0, 1).
        **options: as in `pairwise_margin_loss`.

    Returns:
        As in `pairwise_margin_loss`.

    Examples:
        >>> prior = ClassPrior.from_counts([8000, 2000])
        >>> class_balanced_loss(torch.zeros(1, 2), torch.tensor([1]), prior, beta=0.999)
        tensor(0.7770)
    """
    return _named_loss("class_balanced", logits, target, prior, {"beta": beta}, options)


def adaptive_loss(
    logits: Tensor,
    target: Tensor,
    prior: ClassPrior,
    *,
    constant: float = 1.0,
    **options: Unpack[LossOptions],
) -> Tensor:
    """A margin for rare target classes, for a linear head (Cao et al. 2019 as the paper runs it).

        ℓ(y, f) = log[1 + Σ_{y'≠y} exp(C · π_y^{−1/4} + f_{y'} − f_y)]

    Args:
        logits: f, shape (N, C), (C,) or (N, C, d1, ...).
        target: class indices or probabilities, as in `pairwise_margin_loss`.
        prior: of the training data.
        constant: C.
        **options: as in `pairwise_margin_loss`.

    Returns:
        As in `pairwise_margin_loss`.

    Examples:
        >>> prior = ClassPrior.from_probs([0.9375, 0.0625])  # the rare class's margin is 2
        >>> adaptive_loss(torch.tensor([[0.0, 2.0]]), torch.tensor([1]), prior)  # log 2
        tensor(0.6931)
    """
    return _named_loss("adaptive", logits, target, prior, {"constant": constant}, options)


def ldam_loss(
    logits: Tensor,
    target: Tensor,
    prior: ClassPrior,
    *,
    max_margin: float = 0.5,
    scale: float = 30.0,
    **options: Unpack[LossOptions],
) -> Tensor:
    """The adaptive margin for a cosine head, logits times s (Cao et al. 2019 as their code has it).

        ℓ(y, f) = log[1 + Σ_{y'≠y} exp(s · (m_y + f_{y'} − f_y))],   m_y ∝ n_y^{−1/4}

    Args:
        logits: cosines, so within [−1, 1]; on an ordinary head use `adaptive_loss`.
        target: class indices or probabilities, as in `pairwise_margin_loss`.
        prior: of the training data.
        max_margin: the rarest class's margin.
        scale: s.
        **options: as in `pairwise_margin_loss`.

    Returns:
        As in `pairwise_margin_loss`.

    Examples:
        >>> prior = ClassPrior.from_counts([1600, 100])  # margins 0.25 and 0.5
        >>> ldam_loss(torch.tensor([[0.25, 0.0]]), torch.tensor([0]), prior)  # log 2
        tensor(0.6931)
    """
    settings = {"max_margin": max_margin, "scale": scale}
    return _named_loss("ldam", logits, target, prior, settings, options)


def equalized_loss(
    logits: Tensor,
    target: Tensor,
    prior: ClassPrior,
    *,
    tau: float = 1.0,
    **options: Unpack[LossOptions],
) -> Tensor:
    """Rare competitors push less: the deterministic form of Tan et al. (2020), with F(z) = z^τ.

        ℓ(y, f) = log[1 + Σ_{y'≠y} π_{y'}^τ · exp(f_{y'} − f_y)]

    Args:
        logits: f, shape (N, C), (C,) or (N, C, d1, ...).
        target: class indices or probabilities, as in `pairwise_margin_loss`.
        prior: of the training data.
        tau: τ.
        **options: as in `pairwise_margin_loss`.

    Returns:
        As in `pairwise_margin_loss`.

    Examples:
        >>> prior = ClassPrior.from_probs([0.75, 0.25])
        >>> equalized_loss(torch.zeros(1, 2), torch.tensor([0]), prior)  # log 1.25
        tensor(0.2231)
    """
    return _named_loss("equalized", logits, target, prior, {"tau": tau}, options)


def equalized_threshold_loss(
    logits: Tensor,
    target: Tensor,
    prior: ClassPrior,
    *,
    threshold: float,
    gamma: float = 0.9,
    generator: torch.Generator | None = None,
    **options: Unpack[LossOptions],
) -> Tensor:
    """Rare competitors drop out at random: the stochastic form of Tan et al. (2020).

        ℓ(y, f) = log[1 + Σ_{y'≠y, y' kept} exp(f_{y'} − f_y)]

    For each example a class rarer than λ is dropped with probability γ, unless it is the target.
    If no competitor is left, the loss is 0 and so is its gradient.

    Args:
        logits: f, shape (N, C), (C,) or (N, C, d1, ...).
        target: class indices or probabilities, as in `pairwise_margin_loss`.
        prior: of the training data.
        threshold: λ in [0, 1], a frequency: classes with π < λ may drop out.
        gamma: γ in [0, 1].
        generator: of the random numbers, on the device of the logits; torch's own if None.
        **options: as in `pairwise_margin_loss`.

    Returns:
        As in `pairwise_margin_loss`.

    Examples:
        >>> prior = ClassPrior.from_probs([0.5, 0.45, 0.05])
        >>> logits, target = torch.zeros(2, 3), torch.tensor([0, 2])
        >>> equalized_threshold_loss(
        ...     logits, target, prior, threshold=0.1, gamma=1.0, reduction="none"
        ... ).exp()  # class 2 competes only where it is the target
        tensor([2., 3.])
    """
    caller = "equalized_threshold_loss"
    threshold = _checks.fraction(threshold, caller, name="threshold")
    _check_prior(prior, logits, caller=caller)
    rare = torch.as_tensor(prior.probs < threshold).to(logits.device, non_blocking=True)
    dropped = draw_dropped(logits, rare, gamma, generator, caller=caller)
    margin = _tensors.of_prior("softmax", prior, {}, logits.device)
    return family_loss(logits, target, margin, caller=caller, dropped=dropped, **options)


def logit_adjusted_loss(
    logits: Tensor,
    target: Tensor,
    prior: ClassPrior,
    *,
    tau: float = 1.0,
    **options: Unpack[LossOptions],
) -> Tensor:
    """The logit-adjusted loss (equation 10): cross-entropy on f + τ log π.

        ℓ(y, f) = log[1 + Σ_{y'≠y} (π_{y'}/π_y)^τ · exp(f_{y'} − f_y)]

    Its minimiser minimises the balanced error; predict with argmax f, without adjusting again.

    Args:
        logits: f, shape (N, C), (C,) or (N, C, d1, ...).
        target: class indices or probabilities, as in `pairwise_margin_loss`.
        prior: of the training data.
        tau: τ; 1 is consistent, 0 is plain cross-entropy, −1 corrects a sampled softmax.
        **options: as in `pairwise_margin_loss`.

    Returns:
        As in `pairwise_margin_loss`.

    Examples:
        >>> prior = ClassPrior.from_probs([0.75, 0.25])
        >>> logit_adjusted_loss(torch.zeros(1, 2), torch.tensor([1]), prior)  # log 4
        tensor(1.3863)
    """
    return _named_loss("logit_adjusted", logits, target, prior, {"tau": tau}, options)


def logit_adjusted_adaptive_loss(
    logits: Tensor,
    target: Tensor,
    prior: ClassPrior,
    *,
    tau: float = 1.0,
    constant: float = 1.0,
    **options: Unpack[LossOptions],
) -> Tensor:
    """Logit adjustment and the adaptive margin together.

        ℓ(y, f) = log[1 + Σ_{y'≠y} (π_{y'}/π_y)^τ · exp(C · π_y^{−1/4} + f_{y'} − f_y)]

    Args:
        logits: f, shape (N, C), (C,) or (N, C, d1, ...).
        target: class indices or probabilities, as in `pairwise_margin_loss`.
        prior: of the training data.
        tau: τ.
        constant: C.
        **options: as in `pairwise_margin_loss`.

    Returns:
        As in `pairwise_margin_loss`.

    Examples:
        >>> prior = ClassPrior.from_probs([0.75, 0.25])
        >>> args = torch.zeros(1, 2), torch.tensor([1]), prior
        >>> logit_adjusted_adaptive_loss(*args, constant=0.0) == logit_adjusted_loss(*args)
        tensor(True)
    """
    settings = {"tau": tau, "constant": constant}
    return _named_loss("logit_adjusted_adaptive", logits, target, prior, settings, options)


def two_parameter_loss(
    logits: Tensor,
    target: Tensor,
    prior: ClassPrior,
    *,
    tau1: float = 1.0,
    tau2: float = 1.0,
    **options: Unpack[LossOptions],
) -> Tensor:
    """Different strengths for target and competitor (section 4.3, with the sign it means).

        ℓ(y, f) = log[1 + Σ_{y'≠y} π_{y'}^{τ₂} / π_y^{τ₁} · exp(f_{y'} − f_y)]

    Args:
        logits: f, shape (N, C), (C,) or (N, C, d1, ...).
        target: class indices or probabilities, as in `pairwise_margin_loss`.
        prior: of the training data.
        tau1: τ₁, for the target; 0 is `equalized_loss`.
        tau2: τ₂, for the competitor; τ₁ = τ₂ is `logit_adjusted_loss`.
        **options: as in `pairwise_margin_loss`.

    Returns:
        As in `pairwise_margin_loss`.

    Examples:
        >>> prior = ClassPrior.from_probs([0.75, 0.25])
        >>> two_parameter_loss(torch.zeros(1, 2), torch.tensor([0]), prior, tau1=0.0)  # log 1.25
        tensor(0.2231)
    """
    settings = {"tau1": tau1, "tau2": tau2}
    return _named_loss("two_parameter", logits, target, prior, settings, options)


def consistent_loss(
    logits: Tensor,
    target: Tensor,
    prior: ClassPrior,
    *,
    delta: Any,
    **options: Unpack[LossOptions],
) -> Tensor:
    """Any member of the consistent family of Theorem 1: α_y ∝ δ_y/π_y, Δ_{yy'} = log(δ_{y'}/δ_y).

        ℓ(y, f) = α_y · log[1 + Σ_{y'≠y} δ_{y'}/δ_y · exp(f_{y'} − f_y)]

    Args:
        logits: f, shape (N, C), (C,) or (N, C, d1, ...).
        target: class indices or probabilities, as in `pairwise_margin_loss`.
        prior: of the training data.
        delta: δ, shape (C,), positive; δ = π is `logit_adjusted_loss`, δ = 1 `balanced_loss`.
        **options: as in `pairwise_margin_loss`.

    Returns:
        As in `pairwise_margin_loss`.

    Examples:
        >>> prior = ClassPrior.from_probs([0.75, 0.25])
        >>> consistent_loss(torch.zeros(1, 2), torch.tensor([1]), prior, delta=prior.probs)  # log 4
        tensor(1.3863)
    """
    return _named_loss("consistent", logits, target, prior, {"delta": delta}, options)


def weighted_logit_adjusted_loss(
    logits: Tensor,
    target: Tensor,
    prior: ClassPrior,
    *,
    tau: float = 0.5,
    **options: Unpack[LossOptions],
) -> Tensor:
    """Part margin, part weight, and consistent for every τ: α_y ∝ π_y^{τ−1}.

        ℓ(y, f) = α_y · log[1 + Σ_{y'≠y} (π_{y'}/π_y)^τ · exp(f_{y'} − f_y)]

    Args:
        logits: f, shape (N, C), (C,) or (N, C, d1, ...).
        target: class indices or probabilities, as in `pairwise_margin_loss`.
        prior: of the training data.
        tau: τ; 1 is `logit_adjusted_loss`, 0 is `balanced_loss`.
        **options: as in `pairwise_margin_loss`.

    Returns:
        As in `pairwise_margin_loss`.

    Examples:
        >>> prior = ClassPrior.from_probs([0.8, 0.2])  # α is 5/6 and 5/3
        >>> weighted_logit_adjusted_loss(torch.zeros(1, 2), torch.tensor([1]), prior)  # 5/3 log 3
        tensor(1.8310)
    """
    return _named_loss("weighted_logit_adjusted", logits, target, prior, {"tau": tau}, options)


def _named_loss(
    name: str,
    logits: Tensor,
    target: Tensor,
    prior: ClassPrior,
    settings: Mapping[str, Any],
    options: LossOptions,
) -> Tensor:
    """The loss with the margin `margins.<name>(prior, **settings)`."""
    caller = f"{name}_loss"
    _check_prior(prior, logits, caller=caller)
    margin = _tensors.of_prior(name, prior, settings, logits.device)
    return family_loss(logits, target, margin, caller=caller, **options)


def _check_prior(prior: ClassPrior, logits: Tensor, *, caller: str) -> None:
    _, num_classes = check_logits(logits, caller=caller)
    _checks.prior(prior, caller, num_classes=num_classes, shape=tuple(logits.shape))
