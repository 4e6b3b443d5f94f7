"""What baking does to logits, as one affine map per class: f' = s·f + c.

Both post-hoc methods are such a map once the last layer is known, so a container (a torch
module, a file, a graph, an estimator) needs to know only how to put s and c into itself. Where a
binary model has a single margin d = f_1 − f_0, c is c_1 − c_0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from longtail import _checks
from longtail._checks import FloatArray, InputError
from longtail.posthoc import BIAS_MODES, adjustment, checked_bias, log_norms
from longtail.priors import ClassPrior


class Affine(NamedTuple):
    """s and c of f' = s·f + c, shape (outputs,) each."""

    scale: FloatArray
    offset: FloatArray


@dataclass(frozen=True)
class LogitAdjustment:
    """f' = f + a with a = −τ (log π − log q − log c).

    Attributes:
        shift: a, shape (num_classes,), float64.
        tau: τ.
        settings: what a was made of, for the record.
        caller: for messages.
    """

    method: ClassVar[str] = "logit_adjustment"
    needs_weight: ClassVar[bool] = False

    shift: FloatArray
    tau: float
    settings: dict[str, Any]
    caller: str

    @classmethod
    def make(
        cls,
        prior: ClassPrior,
        *,
        tau: float,
        target_prior: ClassPrior | None,
        costs: Any,
        caller: str,
    ) -> LogitAdjustment:
        """From what `adjust_logits` takes."""
        _checks.prior(prior, caller)
        tau = _checks.tau(tau, caller)
        shift = adjustment(prior, tau=tau, target_prior=target_prior, costs=costs)
        settings: dict[str, Any] = {"prior": prior.probs.tolist()}
        if target_prior is not None:
            settings["target_prior"] = target_prior.probs.tolist()
        if costs is not None:
            settings["costs"] = _checks.as_numpy(costs).tolist()
        return cls(shift, tau, settings, caller)

    @property
    def num_classes(self) -> int | None:
        """L."""
        return len(self.shift)

    def fits(self, width: int) -> bool:
        """Whether a layer of so many outputs can carry it."""
        return width == len(self.shift) or (width == 1 and len(self.shift) == 2)

    def affine(
        self, width: int, weight: Callable[[], FloatArray | None], bias: FloatArray | None
    ) -> Affine:
        """s and c for a layer of `width` outputs."""
        if not self.fits(width):
            raise InputError(
                f"{self.caller}: `prior` has {len(self.shift)} classes but the model has {width} "
                f"outputs; give one count per output, in their order."
            )
        shift = self.shift if width == len(self.shift) else np.diff(self.shift)
        return Affine(np.ones(width), shift)


@dataclass(frozen=True)
class WeightNormalization:
    """f' = f / ν^τ, with the bias scaled too, kept, or dropped.

    Attributes:
        norms: ν or a ClassPrior for ν = π; None takes the norms of the layer's own weights.
        tau: τ.
        bias_mode: as in `normalize_weights`.
        caller: for messages.
    """

    method: ClassVar[str] = "weight_normalization"
    needs_weight: ClassVar[bool] = True

    norms: Any
    tau: float
    bias_mode: str
    caller: str
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def make(cls, *, norms: Any, tau: float, bias_mode: str, caller: str) -> WeightNormalization:
        """From what `normalize_weights` takes."""
        tau = _checks.tau(tau, caller)
        bias_mode = _checks.choice(bias_mode, BIAS_MODES, caller, name="bias_mode")
        settings: dict[str, Any] = {"bias_mode": bias_mode, "norms": "weights"}
        if norms is not None:
            if not isinstance(norms, ClassPrior):
                norms = _checks.per_class(norms, caller=caller, name="norms").astype(np.float64)
            logs = log_norms(norms, num_classes=_length(norms), caller=caller)
            settings["norms"] = np.exp(logs).tolist()
        return cls(norms, tau, bias_mode, caller, settings)

    @property
    def num_classes(self) -> int | None:
        """L, or None where only the layer knows."""
        return None if self.norms is None else _length(self.norms)

    def fits(self, width: int) -> bool:
        """Whether a layer of so many outputs can carry it."""
        return width > 1 and self.num_classes in (None, width)

    def affine(
        self, width: int, weight: Callable[[], FloatArray | None], bias: FloatArray | None
    ) -> Affine:
        """s and c for a layer of `width` outputs with this weight, (outputs, ...), and bias."""
        if width == 1:
            raise InputError(
                f"{self.caller}: the model has one weight vector for both classes, so there are "
                f"no norms to make alike; use bake_logit_adjustment."
            )
        if not self.fits(width):
            raise InputError(
                f"{self.caller}: `norms` has {self.num_classes} values but the model has {width} "
                f"outputs; give one per output, in their order."
            )
        norms = self.norms
        if norms is None:
            rows = weight()
            if rows is None:
                raise InputError(
                    f"{self.caller}: the weights of the last layer can't be told, so neither can "
                    f"their norms; pass them as `norms`."
                )
            norms = np.linalg.norm(rows.reshape(width, -1), axis=1)
        scale = np.exp(-self.tau * log_norms(norms, num_classes=width, caller=self.caller))
        offset = checked_bias(bias, self.bias_mode, num_classes=width, caller=self.caller)
        if self.bias_mode == "scale" or offset is None:
            return Affine(scale, np.zeros(width))
        kept = offset if self.bias_mode == "keep" else np.zeros(width)
        return Affine(scale, kept - offset * scale)


Change = LogitAdjustment | WeightNormalization


def _length(norms: Any) -> int:
    return norms.num_classes if isinstance(norms, ClassPrior) else len(norms)
