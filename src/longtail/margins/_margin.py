"""Margin: the weights and margins of a pairwise-margin loss, what they add up to and correct.

Which margin each named loss has is in the package itself.
"""

from __future__ import annotations

from dataclasses import dataclass
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
            a_y + b_{y'}; `positive` and `negative` are then zero. Its diagonal plays no part.
        scale: s, multiplies logits and margins alike.
        name: what to call it in tables.

    Examples:
        >>> from longtail.margins import adaptive, logit_adjusted
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

    def __post_init__(self) -> None:
        caller = "Margin"
        for part in ("alpha", "positive", "negative"):
            array = _checks.per_class(getattr(self, part), caller=caller, name=part)
            _checks.all_finite(array, caller=caller, name=part)
            object.__setattr__(self, part, np.array(array, dtype=np.float64))
        _checks.positive(self.scale, caller, name="scale")
        sizes = {len(self.alpha), len(self.positive), len(self.negative)}
        if len(sizes) > 1:
            raise InputError(
                f"Margin: `alpha`, `positive` and `negative` must have one value per class; "
                f"they have {len(self.alpha)}, {len(self.positive)} and {len(self.negative)}."
            )
        if np.any(self.alpha <= 0):
            raise InputError(
                f"Margin: `alpha` must be positive, but class "
                f"{int(np.flatnonzero(self.alpha <= 0)[0])} has {self.alpha.min():g}."
            )
        if self.dense is not None:
            dense = np.array(_checks.matrix(self.dense, caller=caller, name="dense"), np.float64)
            if dense.shape != (self.num_classes, self.num_classes):
                raise InputError(
                    f"Margin: `dense` must have shape ({self.num_classes}, {self.num_classes}), "
                    f"target class by competing class; its shape is {dense.shape}."
                )
            np.fill_diagonal(dense, 0.0)
            object.__setattr__(self, "dense", dense)

    @classmethod
    def from_matrix(cls, delta: Any, *, alpha: Any = None, name: str = "dense margin") -> Margin:
        """Any margins Δ, target class by competing class; the diagonal plays no part.

        Args:
            delta: shape (num_classes, num_classes).
            alpha: shape (num_classes,), ones if absent.
            name: what to call it in tables.

        Examples:
            >>> Margin.from_matrix([[0.0, 1.0], [2.0, 0.0]]).num_classes
            2
        """
        delta = _checks.matrix(delta, caller="Margin.from_matrix", name="delta")
        zeros = np.zeros(len(delta))
        ones = np.ones(len(delta)) if alpha is None else alpha
        return cls(alpha=ones, positive=zeros, negative=zeros, dense=delta, name=name)

    @property
    def num_classes(self) -> int:
        """L, the number of classes."""
        return len(self.alpha)

    @property
    def is_additive(self) -> bool:
        """Whether Δ_{yy'} = a_y + b_{y'}, so that no L × L matrix is needed."""
        return self.dense is None

    @property
    def is_antisymmetric(self) -> bool:
        """Whether Δ_{yy'} = b_{y'} − b_y, the form of Theorem 1 (up to rounding)."""
        if self.dense is not None:
            return bool(
                np.allclose(self.dense, -self.dense.T)
                and np.allclose(self.dense, self.dense[0][None, :] - self.dense[0][:, None])
            )
        # Moving a constant from a to b leaves Δ alone; the sum a + b does not see it.
        return bool(np.allclose(self.positive + self.negative, 0.0))

    def matrix(self) -> FloatArray:
        """Δ, shape (num_classes, num_classes), zeros on the diagonal.

        Examples:
            >>> from longtail.margins import equalized
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
        """What to add to the logits of a model trained with this loss, for the balanced error.

        For an antisymmetric margin the risk's minimiser is f_y = log(α_y η_y)/s − b_y + C, so
        the Bayes rule argmax η_y/π_y is reached by adding b_y − log(α_y π_y)/s. It is constant
        over the classes, and so changes nothing, exactly if the loss is consistent.

        Args:
            prior: the prior of the training data.

        Returns:
            Shape (num_classes,), with mean zero.

        Examples:
            >>> from longtail.margins import logit_adjusted, softmax
            >>> prior = ClassPrior.from_probs([0.9, 0.1])
            >>> logit_adjusted(prior).residual_adjustment(prior)
            array([0., 0.])
            >>> softmax(prior).residual_adjustment(prior).round(3)  # −log π, up to a constant
            array([-1.099,  1.099])
        """
        caller = "Margin.residual_adjustment"
        prior = _checks.prior(prior, caller, num_classes=self.num_classes)
        if not self.is_antisymmetric:
            raise InputError(
                f"{caller}: the margin '{self.name}' is not antisymmetric, so no constant added "
                f"to the logits corrects it; tune tau on held-out data instead (tune_tau)."
            )
        negative = self.negative if self.dense is None else self.dense[0]
        shift = negative - (np.log(self.alpha) + prior.log_probs) / self.scale
        shift = shift - shift.mean()
        # Rounding noise would read as a correction where there is none.
        return np.where(np.abs(shift) < 1e-12, 0.0, shift)

    def __add__(self, other: Margin) -> Margin:
        """Both margins at once: Δ add, α multiply."""
        if not isinstance(other, Margin):
            return NotImplemented
        if self.num_classes != other.num_classes:
            raise InputError(
                f"Margin + Margin: '{self.name}' has {self.num_classes} classes and "
                f"'{other.name}' has {other.num_classes}."
            )
        scale = _common_scale(self, other)
        dense = None
        if not (self.is_additive and other.is_additive):
            dense = self.matrix() + other.matrix()
        zeros = np.zeros(self.num_classes)
        return Margin(
            alpha=self.alpha * other.alpha,
            positive=zeros if dense is not None else self.positive + other.positive,
            negative=zeros if dense is not None else self.negative + other.negative,
            dense=dense,
            scale=scale,
            name=f"{self.name} + {other.name}",
        )

    def __repr__(self) -> str:
        form = "dense" if self.dense is not None else "additive"
        scale = "" if self.scale == 1.0 else f", scale={self.scale:g}"
        return f"Margin({self.name!r}, num_classes={self.num_classes}, {form}{scale})"


def _common_scale(one: Margin, two: Margin) -> float:
    """The scale of a sum; a margin that only weighs classes has no scale of its own."""
    if one.scale == two.scale:
        return one.scale
    for plain, scaled in ((one, two), (two, one)):
        parts = (plain.positive, plain.negative, plain.dense)
        if plain.scale == 1.0 and not any(part is not None and part.any() for part in parts):
            return scaled.scale
    raise InputError(
        f"Margin + Margin: '{one.name}' has scale {one.scale:g} and '{two.name}' has "
        f"{two.scale:g}; margins that act on differently scaled logits don't add."
    )
