"""ClassPrior in, Margin out: one function per named loss of the pairwise-margin family.

A Margin is all that distinguishes these losses from each other (equation 11 of the paper):

    ℓ(y, f) = α_y · log[1 + Σ_{y'≠y} exp(s · (Δ_{yy'} + f_{y'} − f_y))],   Δ_{yy'} = a_y + b_{y'}

with a the `positive` part, b the `negative` part and s the `scale` (1 except for LDAM). Nothing
here needs torch: `losses` turns a Margin into a loss, and `consistency` judges whether minimising
that loss minimises the balanced error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from longtail import _checks
from longtail._checks import FloatArray, InputError
from longtail.priors import ClassPrior


@dataclass(frozen=True, eq=False)
class Margin:
    """Weights α and margins Δ of a pairwise-margin loss.

    Attributes:
        alpha: α, weight of each target class, shape (num_classes,), positive.
        positive: a, margin by target class, shape (num_classes,).
        negative: b, margin by competing class, shape (num_classes,).
        dense: Δ itself, shape (num_classes, num_classes), where it is not of the form
            a_y + b_{y'}; `positive` and `negative` are then zero. Its diagonal is ignored.
        scale: s, multiplies logits and margins alike.
        name: the name to show in tables.
        num_classes: L, the number of classes.

    Examples:
        >>> prior = ClassPrior.from_counts([90, 10])
        >>> (logit_adjusted(prior) + adaptive(prior)).matrix().round(3)
        array([[ 0.   , -1.171],
               [ 3.976,  0.   ]])
    """

    alpha: FloatArray
    positive: FloatArray
    negative: FloatArray
    dense: FloatArray | None = None
    scale: float = 1.0
    name: str = "margin"
    num_classes: int = field(init=False)

    def __post_init__(self) -> None:
        for part in ("alpha", "positive", "negative"):
            array = _checks.per_class(getattr(self, part), name=part)
            _checks.all_finite(array, name=part)
            object.__setattr__(self, part, np.array(array, dtype=np.float64))
        object.__setattr__(self, "num_classes", len(self.alpha))
        _checks.positive(self.scale, name="scale")
        sizes = (len(self.alpha), len(self.positive), len(self.negative))
        if len(set(sizes)) > 1:
            raise InputError(
                f"`alpha`, `positive` and `negative` must have one value per class; they have "
                f"{sizes[0]}, {sizes[1]} and {sizes[2]}."
            )
        if np.any(self.alpha <= 0):
            raise InputError(f"`alpha` must be positive, but a value is {self.alpha.min():g}.")
        if self.dense is not None:
            dense = np.array(_checks.matrix(self.dense, name="dense"), np.float64)
            if dense.shape != sizes[:2]:
                raise InputError(
                    f"`dense` must have shape {sizes[:2]}, target class by competing class; its "
                    f"shape is {dense.shape}."
                )
            np.fill_diagonal(dense, 0.0)
            object.__setattr__(self, "dense", dense)

    @classmethod
    def from_matrix(cls, delta: Any, *, alpha: Any = None, name: str = "dense margin") -> Margin:
        """Make a Margin of any Δ, target class by competing class; the diagonal is ignored.

        Args:
            delta: shape (num_classes, num_classes).
            alpha: shape (num_classes,), ones if absent.
            name: the name to show in tables.

        Examples:
            >>> Margin.from_matrix([[0.0, 1.0], [2.0, 0.0]]).num_classes
            2
        """
        zeros = np.zeros(len(delta))
        alpha = zeros + 1.0 if alpha is None else alpha
        return cls(alpha=alpha, positive=zeros, negative=zeros, dense=delta, name=name)

    @property
    def is_antisymmetric(self) -> bool:
        """Δ_{yy'} = b_{y'} − b_y up to rounding, the form of Theorem 1."""
        if self.dense is not None:
            return bool(np.allclose(self.dense, self.dense[0] - self.dense[0][:, None]))
        # Moving a constant from a to b leaves Δ as it is, and a + b too.
        return bool(np.allclose(self.positive + self.negative, 0.0))

    def matrix(self) -> FloatArray:
        """Return Δ, shape (num_classes, num_classes), with zeros on the diagonal.

        Examples:
            >>> equalized(ClassPrior.from_probs([0.5, 0.5])).matrix().round(3)
            array([[ 0.   , -0.693],
                   [-0.693,  0.   ]])
        """
        if self.dense is not None:
            return self.dense.copy()
        delta = self.positive[:, None] + self.negative[None, :]
        np.fill_diagonal(delta, 0.0)
        return delta

    def residual_adjustment(self, prior: ClassPrior) -> FloatArray:
        """Return what to add to the logits of a model trained with this loss, for balanced error.

        At the risk's minimiser u = softmax(s·(f + b)) satisfies, with κ_y = 1 − e^{−s(a_y + b_y)},

            η_y α_y ∝ u_y · (1 − κ_y u_y),

        so adding b_y − log(α_y π_y)/s to the logits gives the Bayes rule argmax η_y/π_y if
        κ_y α_y π_y is the same for every class, as for antisymmetric margins (κ = 0). With three
        or more classes nothing else that is constant does. With two classes a constant always
        exists: minus the difference of the scores at η = π.

        Args:
            prior: of the training data.

        Returns:
            Shape (num_classes,), with mean zero; all zero if the loss is consistent.

        Examples:
            >>> prior = ClassPrior.from_probs([0.9, 0.1])
            >>> logit_adjusted(prior).residual_adjustment(prior)
            array([0., 0.])
            >>> softmax(prior).residual_adjustment(prior).round(3)  # −log π, up to a constant
            array([-1.099,  1.099])
        """
        prior = _checks.prior(prior, num_classes=self.num_classes)
        s, log_weights = self.scale, np.log(self.alpha) + prior.log_probs
        same = self.is_antisymmetric
        if self.dense is None and not same:
            curvature = -np.expm1(-s * (self.positive + self.negative)) * np.exp(log_weights)
            same = np.allclose(curvature, curvature.mean(), atol=0.0)
        if same:
            b = self.negative if self.dense is None else self.dense[0]
            shift = b - log_weights / s
        elif self.num_classes == 2:
            # e^{s(f_1 − f_0)} is the positive root of A x² + (w_0 − w_1) x − C = 0, w = α π.
            delta = self.matrix()
            log_a, log_c = log_weights - s * np.array([delta[1, 0], delta[0, 1]])
            middle = -np.exp(-0.5 * (log_a + log_c)) * np.diff(np.exp(log_weights))[0]
            lead = (0.5 * (log_c - log_a) - np.arcsinh(0.5 * middle)) / s
            shift = np.array([lead, 0.0])
        else:
            raise InputError(
                f"no constant added to the logits corrects the margin '{self.name}' when there are "
                f"three or more classes, since what its loss favours depends on the example; tune "
                f"tau on held-out data instead (tune_tau), or train with a consistent loss."
            )
        shift = shift - shift.mean()
        # Rounding noise would read as a correction where there is none.
        return np.where(np.abs(shift) < 1e-12, 0.0, shift)

    def __add__(self, other: Margin) -> Margin:
        """Combine two margins: Δ add, α multiply."""
        if not isinstance(other, Margin):
            return NotImplemented
        if self.num_classes != other.num_classes:
            raise InputError(
                f"margins that are added must have as many classes: '{self.name}' has "
                f"{self.num_classes} classes and '{other.name}' has {other.num_classes}."
            )
        additive = self.dense is None and other.dense is None
        zeros = np.zeros(self.num_classes)
        return Margin(
            alpha=self.alpha * other.alpha,
            positive=self.positive + other.positive if additive else zeros,
            negative=self.negative + other.negative if additive else zeros,
            dense=None if additive else self.matrix() + other.matrix(),
            scale=_common_scale(self, other),
            name=f"{self.name} + {other.name}",
        )

    def __repr__(self) -> str:
        form = "dense" if self.dense is not None else "additive"
        scale = "" if self.scale == 1.0 else f", scale={self.scale:g}"
        return f"Margin({self.name!r}, num_classes={self.num_classes}, {form}{scale})"


def _common_scale(one: Margin, two: Margin) -> float:
    """Return the scale of a sum; a margin that only weights the classes takes the other's."""
    for plain, other in ((one, two), (two, one)):
        shifts = any(np.any(part) for part in (plain.positive, plain.negative, plain.dense))
        if plain.scale == other.scale or (plain.scale == 1.0 and not shifts):
            return other.scale
    raise InputError(
        f"margins on differently scaled logits don't add: '{one.name}' has scale {one.scale:g} "
        f"and '{two.name}' has {two.scale:g}."
    )


def _additive(
    prior: ClassPrior,
    name: str,
    *,
    alpha: FloatArray | None = None,
    positive: FloatArray | float = 0.0,
    negative: FloatArray | float = 0.0,
    scale: float = 1.0,
) -> Margin:
    """Return a Margin with the parts that are given; α normalised to Σ π_y α_y = 1."""
    zeros = np.zeros(prior.num_classes)
    alpha = zeros + 1.0 if alpha is None else alpha / np.dot(prior.probs, alpha)
    return Margin(alpha, zeros + positive, zeros + negative, scale=scale, name=name)


def softmax(prior: ClassPrior) -> Margin:
    """No weights and no margins: plain cross-entropy, Δ = 0 (empirical risk minimisation).

    Examples:
        >>> softmax(ClassPrior.uniform(2)).matrix()
        array([[0., 0.],
               [0., 0.]])
    """
    return _additive(_checks.prior(prior), "softmax")


def balanced(prior: ClassPrior) -> Margin:
    """Weights 1/π (equation 4): every class counts the same in the mean.

    Returns:
        α_y = 1 / (L π_y), with Σ π α = 1; Δ = 0.

    Examples:
        >>> balanced(ClassPrior.from_probs([0.8, 0.2])).alpha
        array([0.625, 2.5  ])
    """
    return _additive(_checks.prior(prior), "balanced", alpha=1.0 / prior.probs)


def class_balanced(prior: ClassPrior, *, beta: float = 0.9999) -> Margin:
    """Weights by the inverse effective number of examples (Cui et al. 2019).

    Args:
        prior: of the training data, made from counts.
        beta: β in [0, 1); 0 is plain cross-entropy, β → 1 is `balanced`.

    Returns:
        α_y ∝ (1 − β) / (1 − β^{n_y}), with Σ π α = 1; Δ = 0.

    Examples:
        >>> class_balanced(ClassPrior.from_counts([8000, 2000]), beta=0.999).alpha.round(3)
        array([0.97 , 1.121])
    """
    numbers = _checks.prior(prior).effective_numbers(beta=beta)
    return _additive(prior, "class-balanced", alpha=1.0 / numbers)


def adaptive(prior: ClassPrior, *, constant: float = 1.0) -> Margin:
    """A margin for rare target classes, Δ_{yy'} = C · π_y^{−1/4} (equation 5, Cao et al. 2019).

    Args:
        prior: of the training data.
        constant: C. The paper gives no value; 1, with a linear head, is ours.

    Returns:
        a_y = C · π_y^{−1/4}.

    Examples:
        >>> adaptive(ClassPrior.from_probs([0.9375, 0.0625])).positive.round(3)
        array([1.016, 2.   ])
    """
    constant = _checks.tau(constant, name="constant")
    positive = constant * np.exp(-0.25 * _checks.prior(prior).log_probs)
    return _additive(prior, "adaptive", positive=positive)


def ldam(prior: ClassPrior, *, max_margin: float = 0.5, scale: float = 30.0) -> Margin:
    """The adaptive margin as in Cao et al.'s code: for a cosine head, logits times `scale`.

    With an ordinary linear head the scale makes training diverge; use `adaptive` there.

    Args:
        prior: of the training data.
        max_margin: the margin of the rarest class, in units of the cosine.
        scale: s, multiplies logits and margins.

    Returns:
        a_y ∝ n_y^{−1/4}, with max a = `max_margin`.

    Examples:
        >>> ldam(ClassPrior.from_counts([1600, 100])).positive
        array([0.25, 0.5 ])
    """
    max_margin = _checks.positive(max_margin, name="max_margin")
    quarter = -0.25 * _checks.prior(prior).log_probs
    positive = max_margin * np.exp(quarter - quarter.max())
    return _additive(prior, "ldam", positive=positive, scale=scale)


def equalized(prior: ClassPrior, *, tau: float = 1.0) -> Margin:
    """A smaller margin against rare competitors, Δ_{yy'} = τ log π_{y'} (equation 6, F(z) = z^τ).

    This is the deterministic form of the paper's section 5.2; the stochastic threshold form of
    Tan et al. is `losses.equalized_threshold_loss`.

    Args:
        prior: of the training data.
        tau: τ, the strength.

    Returns:
        b_{y'} = τ log π_{y'}.

    Examples:
        >>> equalized(ClassPrior.from_probs([0.5, 0.5]), tau=2.0).negative.round(3)
        array([-1.386, -1.386])
    """
    negative = _checks.tau(tau) * _checks.prior(prior).log_probs
    return _additive(prior, "equalized", negative=negative)


def logit_adjusted(prior: ClassPrior, *, tau: float = 1.0) -> Margin:
    """The logit-adjusted loss (equation 10): Δ_{yy'} = τ log(π_{y'} / π_y).

    Args:
        prior: of the training data.
        tau: τ; 1 is consistent for the balanced error, −1 is the sampled-softmax correction.

    Returns:
        a_y = −τ log π_y and b_{y'} = τ log π_{y'}.

    Examples:
        >>> logit_adjusted(ClassPrior.from_probs([0.9, 0.1])).matrix().round(3)
        array([[ 0.   , -2.197],
               [ 2.197,  0.   ]])
    """
    shift = _checks.tau(tau) * _checks.prior(prior).log_probs
    return _additive(prior, "logit-adjusted", positive=-shift, negative=shift)


def logit_adjusted_adaptive(
    prior: ClassPrior, *, tau: float = 1.0, constant: float = 1.0
) -> Margin:
    """`logit_adjusted` and `adaptive` together (section 6.2 of the paper).

    Args:
        prior: of the training data.
        tau: τ of the logit adjustment.
        constant: C of the adaptive margin.

    Returns:
        a_y = −τ log π_y + C · π_y^{−1/4} and b_{y'} = τ log π_{y'}.

    Examples:
        >>> prior = ClassPrior.from_probs([0.9375, 0.0625])
        >>> logit_adjusted_adaptive(prior).positive.round(3)
        array([1.081, 4.773])
    """
    both = logit_adjusted(prior, tau=tau) + adaptive(prior, constant=constant)
    return replace(both, name="logit-adjusted-adaptive")


def two_parameter(prior: ClassPrior, *, tau1: float = 1.0, tau2: float = 1.0) -> Margin:
    """Different strengths for target and competitor: Δ_{yy'} = τ₂ log π_{y'} − τ₁ log π_y.

    The sign is the one that section 5.3 of the paper means: τ₁ = τ₂ is `logit_adjusted` and
    τ₁ = 0 is `equalized`.

    Args:
        prior: of the training data.
        tau1: τ₁, strength for the target class.
        tau2: τ₂, strength for the competing class.

    Returns:
        a_y = −τ₁ log π_y and b_{y'} = τ₂ log π_{y'}.

    Examples:
        >>> two_parameter(ClassPrior.from_probs([0.9, 0.1]), tau1=0.0).positive
        array([0., 0.])
    """
    log_probs = _checks.prior(prior).log_probs
    positive = -_checks.tau(tau1, name="tau1") * log_probs
    negative = _checks.tau(tau2, name="tau2") * log_probs
    return _additive(prior, "two-parameter", positive=positive, negative=negative)


def consistent(prior: ClassPrior, *, delta: Any) -> Margin:
    """The whole consistent family of Theorem 1: α_y = δ_y / π_y and Δ_{yy'} = log(δ_{y'} / δ_y).

    Args:
        prior: of the training data.
        delta: δ, shape (num_classes,), any positive numbers; δ = π is `logit_adjusted`,
            δ = 1 is `balanced`.

    Returns:
        The Margin, with Σ π α = 1.

    Examples:
        >>> prior = ClassPrior.from_probs([0.8, 0.2])
        >>> consistent(prior, delta=[1.0, 1.0]).alpha
        array([0.625, 2.5  ])
    """
    prior = _checks.prior(prior)
    delta = _checks.totals(delta, name="delta", num_classes=prior.num_classes).astype(np.float64)
    if np.any(delta == 0):
        raise InputError("`delta` must be positive, but a value is 0.")
    shift = np.log(delta)
    return _additive(
        prior, "consistent", alpha=delta / prior.probs, positive=-shift, negative=shift
    )


def weighted_logit_adjusted(prior: ClassPrior, *, tau: float = 0.5) -> Margin:
    """Half margin, half weight: Δ_{yy'} = τ log(π_{y'} / π_y) and α_y = π_y^{τ−1} (section 5.3).

    Args:
        prior: of the training data.
        tau: τ; 1 is `logit_adjusted`, 0 is `balanced`; consistent for every τ.

    Returns:
        The Margin, with Σ π α = 1.

    Examples:
        >>> weighted_logit_adjusted(ClassPrior.from_probs([0.8, 0.2])).alpha.round(3)
        array([0.833, 1.667])
    """
    tau, log_probs = _checks.tau(tau), _checks.prior(prior).log_probs
    return _additive(
        prior,
        "weighted-logit-adjusted",
        alpha=np.exp((tau - 1.0) * log_probs),
        positive=-tau * log_probs,
        negative=tau * log_probs,
    )


# Method names as on the command line and in run folders, in the order of the paper's table.
MARGINS: dict[str, Callable[..., Margin]] = {
    "softmax": softmax,
    "balanced": balanced,
    "class-balanced": class_balanced,
    "adaptive": adaptive,
    "ldam": ldam,
    "equalized": equalized,
    "logit-adjusted": logit_adjusted,
    "logit-adjusted-adaptive": logit_adjusted_adaptive,
    "two-parameter": two_parameter,
    "consistent": consistent,
    "weighted-logit-adjusted": weighted_logit_adjusted,
}


def by_name(name: str, prior: ClassPrior, **settings: Any) -> Margin:
    """Return the margin of a named loss, as the command line calls it.

    Args:
        name: a key of `MARGINS`.
        prior: of the training data.
        **settings: what that margin's function takes besides the prior.

    Examples:
        >>> by_name("logit-adjusted", ClassPrior.uniform(3), tau=2.0)
        Margin('logit-adjusted', num_classes=3, additive)
    """
    _checks.choice(name, list(MARGINS), name="name")
    _checks.settings(settings, MARGINS[name], of=f"the margin {name!r}")
    return MARGINS[name](prior, **settings)
