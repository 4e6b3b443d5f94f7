"""Logits in, logits out: what can be done to a trained classifier without retraining it.

Logit adjustment, weight normalization and temperature, the same code for NumPy, torch and JAX
arrays (the array API standard); dtype and device stay, gradients flow. Choosing tau is in
`tuning`; folding an adjustment into a model's own weights is in `bake`; what is said of adjusting
a model whose training has favoured the rare classes already, in `_twice`.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import FloatArray, InputError
from longtail.posthoc._twice import (
    LEAST_AGAIN,
    LEFT_BALANCED,
    AdjustedTwiceWarning,
    adjusts_again,
    from_uniform,
    in_words,
    leaves_little,
    tau_left,
    warn_if_already_adjusted,
)
from longtail.priors import LIVING, ClassPrior

if TYPE_CHECKING:
    from longtail.margins import Margin

__all__ = [
    "BIAS_MODES",
    "LEAST_AGAIN",
    "LEFT_BALANCED",
    "AdjustedTwiceWarning",
    "BiasMode",
    "adjust_logits",
    "adjustment",
    "adjusts_again",
    "checked_bias",
    "class_costs",
    "from_uniform",
    "in_words",
    "leaves_little",
    "log_norms",
    "log_ratio",
    "normalize_weights",
    "scale_temperature",
    "tau_left",
]

_F = TypeVar("_F", bound=Callable[..., Any])
BiasMode = Literal["scale", "keep", "drop"]
BIAS_MODES = ("scale", "keep", "drop")

# Rows along each leading axis that are looked at to tell logits from probabilities.
_FIRST = 16

_FLOAT16_MAX = 65504.0
# A logit as large as this is still ordinary; its product must be a number too.
_ORDINARY_LOGIT = 64.0


def _traced_as_constant(function: _F) -> _F:
    """What torch.compiler.assume_constant_result does, without importing torch.

    Only for functions of immutable objects, which are named by their ids (see `priors.LIVING`):
    torch.compile guards on these, and would not notice a changed array.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def adjust_logits(
    logits: Any,
    prior: ClassPrior,
    *,
    tau: float = 1.0,
    target_prior: ClassPrior | None = None,
    costs: Any = None,
    trained_with: Margin | None = None,
) -> Any:
    """Post-hoc logit adjustment (equation 9): f_y − τ (log π_y − log q_y − log c_y).

    Args:
        logits: f, shape (..., num_classes), floating point; NumPy, torch or JAX. Of probabilities
            pass the logarithm; where they are seen for what they are, they are refused.
        prior: π, of the data that the model was trained on.
        tau: τ; 1 is right for calibrated logits, `tune_tau` chooses it on held-out data.
        target_prior: q, of the data that the model will meet; None means all classes alike,
            which is the balanced error.
        costs: c, shape (num_classes,), positive: what an error on each class costs; or a dict or
            Series by class number 0 .. K − 1.
        trained_with: the Margin of the loss that the model was trained with, if any. Where that
            loss leaves less than half of tau to correct, such as the logit-adjusted loss with
            tau = 1, an AdjustedTwiceWarning says so if tau is 0.5 or more. For a target_prior or
            costs such a model is adjusted from ClassPrior.uniform(num_classes).

    Returns:
        Adjusted logits: same shape, dtype, device and array library. Half-precision logits are
        adjusted in float32 and rounded once.

    Examples:
        >>> prior = ClassPrior.from_probs([0.9, 0.1])
        >>> adjust_logits(np.array([[2.0, 1.0]]), prior).round(3)
        array([[2.105, 3.303]])
        >>> adjust_logits(np.array([[2.0, 1.0]]), prior, target_prior=prior)
        array([[2., 1.]])
    """
    caller = "adjust_logits"
    logits = _logits(logits, caller)
    _refuse_probabilities(logits, caller)
    _checks.prior(prior, caller, num_classes=logits.shape[-1], shape=logits.shape)
    tau = _checks.tau(tau, caller)
    shift = -tau * log_ratio(prior, target_prior, costs, caller=caller)
    if trained_with is not None:
        elsewhere = target_prior is not None or costs is not None
        moved = bool(np.ptp(shift))
        warn_if_already_adjusted(trained_with, prior, tau, elsewhere=elsewhere, moved=moved)
    return _apply(logits, lambda f, a: f + a, shift)


def adjustment(
    prior: ClassPrior,
    *,
    tau: float = 1.0,
    target_prior: ClassPrior | None = None,
    costs: Any = None,
) -> FloatArray:
    """The vector that `adjust_logits` adds: −τ (log π_y − log q_y − log c_y).

    Args:
        prior: as in `adjust_logits`.
        tau: as in `adjust_logits`.
        target_prior: as in `adjust_logits`.
        costs: as in `adjust_logits`.

    Returns:
        Shape (num_classes,), float64.

    Examples:
        >>> adjustment(ClassPrior.from_probs([0.9, 0.1]), tau=2.0).round(3)
        array([0.211, 4.605])
    """
    caller = "adjustment"
    return -_checks.tau(tau, caller) * log_ratio(prior, target_prior, costs, caller=caller)


def normalize_weights(
    logits: Any,
    *,
    norms: Any,
    tau: float = 1.0,
    bias: Any = None,
    bias_mode: BiasMode = "scale",
) -> Any:
    """Weight normalization (equation 3): f_y / ν_y^τ.

    The three ways to treat the last layer's bias b differ a lot; say which in every table.

    Args:
        logits: f, shape (..., num_classes), floating point; NumPy, torch or JAX.
        norms: ν, shape (num_classes,), positive: the norms of the last layer's weight vectors;
            or a ClassPrior, for ν = π. Of float16 logits a factor 1/ν_y^τ above 1000 or so is
            refused: it would make ordinary logits infinite.
        tau: τ; 0 changes nothing.
        bias: b, shape (num_classes,), of the last layer; "keep" and "drop" need it.
        bias_mode: "scale" divides the whole logit, as in the paper (the bias is the weight of a
            constant feature); "keep" divides only the weights' part, (f_y − b_y) / ν_y^τ + b_y;
            "drop" leaves the bias out, (f_y − b_y) / ν_y^τ.

    Returns:
        Normalized logits: same shape, dtype, device and array library.

    Examples:
        >>> logits, norms, bias = np.array([[4.0, 3.0]]), [2.0, 1.0], [2.0, -1.0]
        >>> normalize_weights(logits, norms=norms)
        array([[2., 3.]])
        >>> normalize_weights(logits, norms=norms, bias=bias, bias_mode="keep")
        array([[3., 3.]])
        >>> normalize_weights(logits, norms=norms, bias=bias, bias_mode="drop")
        array([[1., 4.]])
    """
    caller = "normalize_weights"
    logits = _logits(logits, caller)
    tau = _checks.tau(tau, caller)
    log_nu = log_norms(norms, num_classes=logits.shape[-1], caller=caller)
    _refuse_overflow(logits, norms, log_nu, tau, caller)
    factor = np.exp(-tau * log_nu)
    offset = checked_bias(bias, bias_mode, num_classes=logits.shape[-1], caller=caller)
    if bias_mode == "scale" or offset is None:
        return _apply(logits, lambda f, s: f * s, factor)
    back = offset if bias_mode == "keep" else np.zeros_like(offset)
    return _apply(logits, lambda f, s, b, k: (f - b) * s + k, factor, offset, back)


def scale_temperature(logits: Any, *, temperature: float) -> Any:
    """Temperature scaling: f / T; above 1 softens the probabilities, the argmax stays.

    With T = τ it is one half of logit adjustment: argmax f − τ log π = argmax f/τ − log π.

    Args:
        logits: f, shape (..., num_classes), floating point; NumPy, torch or JAX.
        temperature: T, above zero; `fit_temperature` finds it on held-out data.

    Returns:
        Scaled logits: same shape, dtype, device and array library.

    Examples:
        >>> scale_temperature(np.array([[2.0, 1.0]]), temperature=2.0)
        array([[1. , 0.5]])
    """
    caller = "scale_temperature"
    logits = _logits(logits, caller)
    _refuse_probabilities(logits, caller)
    temperature = _checks.positive(temperature, caller, name="temperature")
    return _apply(logits, lambda f: f / temperature)


def log_norms(norms: Any, *, num_classes: int, caller: str) -> FloatArray:
    """log ν of checked norms, or log π of a ClassPrior; shape (num_classes,)."""
    if isinstance(norms, ClassPrior):
        _checks.prior(norms, caller, num_classes=num_classes, name="norms")
        return _log_ratio_of_priors(id(norms), None)
    if norms is None:
        raise InputError(
            f"{caller}: weight normalization needs `norms`: the norms of the last layer's weight "
            f"vectors, or the ClassPrior for ν = π."
        )
    return np.log(_checks.positive_per_class(norms, num_classes, caller=caller, name="norms"))


def _refuse_overflow(logits: Any, norms: Any, log_nu: FloatArray, tau: float, caller: str) -> None:
    """Refuse float16 logits that 1/ν^τ may make infinite, by the factors alone.

    The logits are not looked at: on a GPU they would have to be waited for.
    """
    if str(logits.dtype).rpartition(".")[2] != "float16":
        return
    of_prior = isinstance(norms, ClassPrior)
    smallest, largest = _extremes_of_prior(id(norms)) if of_prior else _extremes(log_nu)
    k, log_of_k = smallest if tau > 0 else largest
    if -tau * log_of_k <= math.log(_FLOAT16_MAX / _ORDINARY_LOGIT):
        return
    factor = math.exp(min(-tau * log_of_k, 700.0))
    raise InputError(
        f"{caller}: class {k} has its logits multiplied by {factor:.4g}, and in float16, which "
        f"ends at {_FLOAT16_MAX:.0f}, those above {_FLOAT16_MAX / factor:.3g} would be infinite; "
        f"convert them first, to float32 for example."
    )


def _extremes(values: FloatArray) -> tuple[tuple[int, float], tuple[int, float]]:
    """The smallest and the largest value, each after its class."""
    low, high = int(np.argmin(values)), int(np.argmax(values))
    return (low, float(values[low])), (high, float(values[high]))


@_traced_as_constant
def _extremes_of_prior(prior: int) -> tuple[tuple[int, float], tuple[int, float]]:
    """`_extremes` of log π, which torch.compile may branch on."""
    return _extremes(LIVING[prior].log_probs)


def checked_bias(bias: Any, bias_mode: str, *, num_classes: int, caller: str) -> FloatArray | None:
    """The last layer's bias in float64, required by every mode but "scale"."""
    _checks.choice(bias_mode, BIAS_MODES, caller, name="bias_mode")
    if bias is None:
        if bias_mode != "scale":
            raise InputError(
                f"{caller}: bias_mode={bias_mode!r} needs `bias`, the last layer's bias, shape "
                f"({num_classes},); bias_mode='scale' does without."
            )
        return None
    array = _checks.per_class(bias, caller=caller, name="bias").astype(np.float64)
    _checks.all_finite(array, caller=caller, name="bias")
    _checks.width(array, num_classes, caller=caller, name="bias")
    return array


def class_costs(costs: Any, *, num_classes: int, caller: str) -> FloatArray:
    """Checked per-class costs c, ones if None; shape (num_classes,)."""
    if costs is None:
        return np.ones(num_classes)
    return _checks.positive_per_class(costs, num_classes, caller=caller, name="costs")


def log_ratio(
    prior: ClassPrior, target_prior: ClassPrior | None, costs: Any, *, caller: str
) -> FloatArray:
    """log π − log q − log c, each part only if given; shape (num_classes,)."""
    _checks.prior(prior, caller)
    target = None
    if target_prior is not None:
        _checks.prior(target_prior, caller, num_classes=prior.num_classes, name="target_prior")
        target = id(target_prior)
    of_priors = _log_ratio_of_priors(id(prior), target)
    if costs is None:
        return of_priors
    return _same_where_equal(
        of_priors - np.log(class_costs(costs, num_classes=len(of_priors), caller=caller))
    )


def _same_where_equal(values: FloatArray) -> FloatArray:
    """Values that differ by rounding alone made the same, so that classes which tie do tie."""
    order = np.argsort(values, kind="stable")
    rounding = 8 * np.finfo(np.float64).eps * max(1.0, float(np.abs(values).max()))
    first = np.diff(values[order], prepend=-np.inf) > rounding
    same = np.empty_like(values)
    place = np.cumsum(first, dtype=np.int64) - 1  # torch.compile has no cumsum of bools
    same[order] = values[order][first][place]
    return same


@_traced_as_constant
def _log_ratio_of_priors(prior: int, target_prior: int | None) -> FloatArray:
    """log π − log q, or log π alone."""
    log_probs = LIVING[prior].log_probs
    if target_prior is None:
        return log_probs
    return _same_where_equal(log_probs - LIVING[target_prior].log_probs)


def _logits(logits: Any, caller: str) -> Any:
    """The logits as an array of whatever library they came in, classes last, floating point."""
    if not hasattr(logits, "dtype"):
        logits = _checks.as_numpy(logits)
    if logits.ndim == 0:
        raise InputError(
            f"{caller}: `logits` must have the classes on their last axis; got a single number."
        )
    if "float" not in str(logits.dtype):
        raise InputError(
            f"{caller}: `logits` must be floating point, since the result has their dtype; "
            f"it is {logits.dtype}; convert them first, to float32 for example."
        )
    return logits


def _refuse_probabilities(logits: Any, caller: str) -> None:
    """Refuse rows that are probabilities, where looking at them costs next to nothing.

    One row of honest logits may add up to 1 by chance, about once in a million, and a service that
    asks row by row must not stop for that: it is told, and goes on.
    """
    rows = _rows_at_hand(logits)
    if rows is None or rows.size == 0:
        return
    hint = "pass their logarithm, log(probs)"
    if len(rows) > 1:
        _checks.not_probabilities(rows, caller=caller, hint=hint)
    elif _checks.like_probabilities(rows):
        warnings.warn(
            f"{caller}: the row of `logits` lies in [0, 1] and sums to 1, as probabilities do; if "
            f"that is what they are, {hint}.",
            stacklevel=3,
        )


def _rows_at_hand(logits: Any) -> NDArray[Any] | None:
    """A few rows, shape (rows, classes), or None where their values are elsewhere.

    That is on a GPU, which would have to be waited for, and wherever a computation is only being
    recorded: torch.compile, vmap and the like, JAX's transformations.
    """
    first = (slice(_FIRST),) * (logits.ndim - 1)
    if hasattr(logits, "new_tensor"):
        import torch

        if torch.compiler.is_compiling():
            return None
        if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            return None
        # Subclasses such as DTensor may have to ask other processes.
        if type(logits) not in (torch.Tensor, torch.nn.Parameter) or logits.device.type != "cpu":
            return None
        try:
            found = _checks.as_numpy(logits[first])
        except RuntimeError:  # what a tensor inside vmap or torch.func.grad says of its values
            return None
    elif isinstance(logits, np.ndarray):
        found = logits[first]
    elif _is_jax_on_cpu(logits):
        found = _checks.as_numpy(logits)[first]
    else:
        return None
    return found.reshape(-1, logits.shape[-1])


def _is_jax_on_cpu(array: Any) -> bool:
    """Whether it is a JAX array with values, in the memory of this process."""
    jax = sys.modules.get("jax")
    if jax is None or not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer):
        return False
    return [device.platform for device in array.devices()] == ["cpu"]


def _apply(logits: Any, formula: Callable[..., Any], *vectors: FloatArray) -> Any:
    """formula(logits, *vectors), with the vectors brought to the logits' dtype and device.

    In half precision log π alone would lose two digits, so float32 does the work there.
    """
    half = logits.dtype.itemsize == 2
    if hasattr(logits, "new_tensor"):
        # torch by its own names: torch.compile cannot trace the namespace lookup below.
        import torch

        work = logits.float() if half else logits
        same = {"dtype": work.dtype, "device": work.device}
        return formula(work, *(torch.as_tensor(v, **same) for v in vectors)).to(logits.dtype)
    xp = array_api_compat.array_namespace(logits)
    work = xp.astype(logits, xp.float32) if half else logits
    device = array_api_compat.device(logits)
    result = formula(work, *(xp.asarray(v, dtype=work.dtype, device=device) for v in vectors))
    return xp.astype(result, logits.dtype, copy=False)
