"""Logits to logits: adjustment, weight normalization and temperature, without retraining.

The same code serves NumPy, torch and JAX arrays (the array API standard); dtype and device stay,
gradients flow. `adjusted_twice` recognises models whose training favours the rare classes already.
"""

from __future__ import annotations

import math
import operator
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import FloatArray, InputError
from longtail.priors import ClassPrior

if TYPE_CHECKING:
    from longtail.margins import Margin

BiasMode = Literal["scale", "keep", "drop"]

# What a probability of 0 is taken for: the smallest normal float32, the same number in an exported
# graph. Its logarithm is out of reach of any real tau, so that p = 0 never wins by adjusting.
SMALLEST_PROB = 2.0**-126
LOG_ZERO = math.log(SMALLEST_PROB)


def adjust_logits(
    logits: Any,
    prior: ClassPrior,
    *,
    tau: float = 1.0,
    target_prior: Any = None,
    costs: Any = None,
    trained_with: Margin | None = None,
) -> Any:
    """Return adjusted logits (equation 9): f_y − τ (log π_y − log q_y − log c_y).

    Args:
        logits: f, shape (..., num_classes), floating point; NumPy, torch or JAX. Of probabilities
            pass `log_probs(probs)`.
        prior: π, of the data that the model was trained on.
        tau: τ; 1 is right for calibrated logits, `tune_tau` chooses it on held-out data.
        target_prior: q, of the data that the model will meet, a ClassPrior; or an array of the
            logits' shape with the class frequencies at each example's own place or time, positive
            and scaled to sum to 1. None means all classes alike, which is the balanced error.
        costs: c, shape (num_classes,), positive: what an error on each class costs; or a dict or
            Series by class number 0 .. K − 1.
        trained_with: the Margin of the training loss, if any; an AdjustedTwiceWarning is given
            where that loss leaves little to correct.

    Returns:
        Adjusted logits: same shape, dtype, device and array library. Half-precision logits are
        adjusted in float32 and rounded once.

    Examples:
        >>> prior = ClassPrior.from_probs([0.9, 0.1])
        >>> logits = np.array([[2.0, 1.0], [2.0, 1.0]])
        >>> adjust_logits(logits, prior).round(3)
        array([[2.105, 3.303],
               [2.105, 3.303]])
        >>> adjust_logits(logits, prior, target_prior=[[0.9, 0.1], [1.0, 3.0]]).round(3)
        array([[2.   , 1.   ],
               [0.719, 3.015]])
    """
    logits = _logits(logits, refuse=_checks.not_probabilities)
    _checks.prior(prior, num_classes=logits.shape[-1], shape=logits.shape)
    if trained_with is not None:
        if not hasattr(trained_with, "residual_adjustment"):
            raise InputError(
                f"`trained_with` must be the Margin of the training loss, such as "
                f"margins.logit_adjusted(prior); got {type(trained_with).__name__}."
            )
        elsewhere = target_prior is not None or costs is not None
        twice = adjusted_twice(trained_with, prior, tau=tau, elsewhere=elsewhere)
        if twice is not None:
            warnings.warn(twice, AdjustedTwiceWarning, stacklevel=2)
    if target_prior is None or isinstance(target_prior, ClassPrior):
        shift = adjustment(prior, tau=tau, target_prior=target_prior, costs=costs)
        return _apply(logits, operator.add, shift)
    rows = target_prior if hasattr(target_prior, "shape") else np.asarray(target_prior)
    if tuple(rows.shape) != tuple(logits.shape):
        raise InputError(
            f"`target_prior` must be a ClassPrior, or hold class frequencies for each row of the "
            f"logits, shape {tuple(logits.shape)}; its shape is {tuple(rows.shape)}."
        )

    def by_row(f: Any, shift: Any, q: Any) -> Any:
        xp = sys.modules["torch"] if hasattr(f, "new_tensor") else array_namespace(f)
        return f + shift + tau * xp.log(q / xp.sum(q, axis=-1, keepdims=True))

    shift = adjustment(prior, tau=tau, costs=costs)
    return _apply(logits, by_row, shift, rows)


def adjustment(
    prior: ClassPrior,
    *,
    tau: float = 1.0,
    target_prior: ClassPrior | None = None,
    costs: Any = None,
) -> FloatArray:
    """Return the vector that `adjust_logits` adds, −τ (log π − log q − log c), in float64.

    Examples:
        >>> adjustment(ClassPrior.from_probs([0.9, 0.1]), tau=2.0).round(3)
        array([0.211, 4.605])
    """
    num_classes = len(_checks.prior(prior).probs)
    if target_prior is not None:
        _checks.prior(target_prior, num_classes=num_classes, name="target_prior")
    log_ratio = _log_ratio(prior, target_prior)
    if costs is not None:
        costs = _checks.positive_per_class(costs, num_classes, name="costs")
        log_ratio = _same_where_equal(log_ratio - np.log(costs))
    return -_checks.tau(tau) * log_ratio


def normalize_weights(
    logits: Any,
    *,
    norms: Any,
    tau: float = 1.0,
    bias: Any = None,
    bias_mode: BiasMode = "scale",
) -> Any:
    """Return weight-normalized logits (equation 3): f_y / ν_y^τ.

    The three ways to treat the last layer's bias b differ a lot; say which in every table.

    Args:
        logits: f, shape (..., num_classes), floating point; NumPy, torch or JAX.
        norms: ν, shape (num_classes,), positive: the norms of the last layer's weight vectors;
            or a ClassPrior, for ν = π.
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
    logits = _logits(logits)
    num_classes = logits.shape[-1]
    factor = np.exp(-_checks.tau(tau) * log_norms(norms, num_classes=num_classes))
    offset = checked_bias(bias, bias_mode, num_classes=num_classes)
    if offset is None:
        return _apply(logits, operator.mul, factor)
    kept = float(bias_mode == "keep")
    return _apply(logits, lambda f, s, b: (f - b) * s + kept * b, factor, offset)


def scale_temperature(logits: Any, *, temperature: float) -> Any:
    """Return scaled logits, f / T; T above 1 softens the probabilities, the argmax stays.

    Args:
        logits: f, shape (..., num_classes), floating point; NumPy, torch or JAX.
        temperature: T, above zero; `fit_temperature` finds it on held-out data.

    Returns:
        Scaled logits: same shape, dtype, device and array library.

    Examples:
        >>> scale_temperature(np.array([[2.0, 1.0]]), temperature=2.0)
        array([[1. , 0.5]])
    """
    logits = _logits(logits, refuse=_checks.not_probabilities)
    temperature = _checks.positive(temperature, name="temperature")
    return _apply(logits, lambda f: f / temperature)


def log_probs(probs: Any) -> FloatArray:
    """Return logits of probabilities in float64: log(max(p, 2⁻¹²⁶)), finite where p is 0.

    A class of probability 0 stays below every other class whatever the adjustment, as in baked
    models.

    Args:
        probs: any shape, in [0, 1].

    Examples:
        >>> log_probs([0.5, 0.5, 0.0]).round(3)
        array([ -0.693,  -0.693, -87.337])
    """
    return np.log(np.maximum(np.asarray(_checks.as_numpy(probs), np.float64), SMALLEST_PROB))


# --- arguments --------------------------------------------------------------------------------


def log_norms(norms: Any, *, num_classes: int) -> FloatArray:
    """Return log ν of checked norms, or log π of a ClassPrior; shape (num_classes,)."""
    if isinstance(norms, ClassPrior):
        return _log_ratio(_checks.prior(norms, num_classes=num_classes, name="norms"), None)
    if norms is None:
        raise InputError(
            "weight normalization needs `norms`: the norms of the last layer's weight vectors, or "
            "the ClassPrior for ν = π."
        )
    return np.log(_checks.positive_per_class(norms, num_classes, name="norms"))


def checked_bias(bias: Any, bias_mode: str, *, num_classes: int) -> FloatArray | None:
    """Return the last layer's bias in float64; None for "scale", which does without."""
    if _checks.choice(bias_mode, get_args(BiasMode), name="bias_mode") == "scale":
        return None
    if bias is None:
        raise InputError(
            f"bias_mode={bias_mode!r} needs `bias`, the last layer's bias, shape "
            f"({num_classes},); bias_mode='scale' does without."
        )
    array = _checks.per_class(bias, name="bias", num_classes=num_classes).astype(np.float64)
    _checks.all_finite(array, name="bias")
    return array


def _log_ratio(prior: ClassPrior, target_prior: ClassPrior | None) -> FloatArray:
    """Return log π − log q, or log π alone."""
    if target_prior is None:
        return prior.log_probs
    return _same_where_equal(prior.log_probs - target_prior.log_probs)


# As torch.compiler.assume_constant_result does, without importing torch: priors are immutable.
_log_ratio._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _same_where_equal(values: FloatArray) -> FloatArray:
    """Return the values with those that differ by rounding alone made equal, so that they tie."""
    order = np.argsort(values, kind="stable")
    rounding = 8 * np.finfo(np.float64).eps * max(1.0, float(np.abs(values).max()))
    first = np.diff(values[order], prepend=-np.inf) > rounding
    same = np.empty_like(values)
    place = np.cumsum(first, dtype=np.int64) - 1  # torch.compile has no cumsum of bools
    same[order] = values[order][first][place]
    return same


# --- arrays of three libraries ----------------------------------------------------------------


def _logits(logits: Any, refuse: Callable[[NDArray[Any]], None] | None = None) -> Any:
    """Return the logits as an array of the library they came in, floating point.

    Where values are at hand on a CPU, `refuse` is shown the first rows along each axis and raises
    if they are no logits; of a single row, which may look so by chance, that is a warning.
    """
    kind = type(logits).__name__
    if not hasattr(logits, "dtype"):
        logits = _checks.as_numpy(logits)
    if logits.ndim == 0:
        raise InputError(f"`logits` must have the classes on their last axis; got a single {kind}.")
    if "float" not in str(logits.dtype) and getattr(logits.dtype, "kind", "") != "f":
        raise InputError(
            f"`logits` must be floating point, since the result has their dtype; "
            f"it is {logits.dtype}; convert them first, to float32 for example."
        )
    if refuse is None:
        return logits
    if hasattr(logits, "new_tensor"):
        torch: Any = sys.modules["torch"]
        # Subclasses such as DTensor may have to ask other processes.
        traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
        if traced or type(logits) not in (torch.Tensor, torch.nn.Parameter):
            return logits
    try:
        if "cpu" not in str(device(logits)).lower():
            return logits
        found = _checks.as_numpy(logits[(slice(16),) * (logits.ndim - 1)])
    except (RuntimeError, TypeError, AttributeError):  # vmap, grad and jit have no values to show
        return logits
    try:
        if found.size:
            refuse(found.reshape(-1, logits.shape[-1]))
    except InputError as error:
        if found.size > logits.shape[-1]:
            raise
        warnings.warn(str(error), stacklevel=3)
    return logits


def _apply(logits: Any, formula: Callable[..., Any], *vectors: Any) -> Any:
    """Return formula(logits, *vectors), the vectors brought to the logits' dtype and device.

    In half precision log π alone would lose two digits, so float32 does the work there.
    """
    half = logits.dtype.itemsize == 2
    if hasattr(logits, "new_tensor"):
        import torch

        work = logits.float() if half else logits
        as_logits = partial(torch.as_tensor, dtype=work.dtype, device=work.device)
        return formula(work, *map(as_logits, vectors)).to(logits.dtype)
    xp = array_namespace(logits)
    work = xp.astype(logits, xp.float32) if half else logits
    as_logits = partial(xp.asarray, dtype=work.dtype, device=device(logits))
    return xp.astype(formula(work, *map(as_logits, vectors)), logits.dtype, copy=False)


# --- adjusting twice --------------------------------------------------------------------------


class AdjustedTwiceWarning(UserWarning):
    """A model whose training favours the rare classes already is being adjusted again."""


# The least τ that may be adjusting twice: a small one is what held-out data may ask for, and a
# negative one is the way back to the frequencies of the training data.
LEAST_AGAIN = 0.5


def adjusted_twice(
    model: Any, prior: ClassPrior, *, tau: float = 1.0, elsewhere: bool = False
) -> str | None:
    """Return why adjusting by `tau` would favour the rare classes twice, and what to do; or None.

    A loss counts if it has done more than half of the adjustment; a classifier if it, or what
    decides in it, weighs or resamples classes, was told even class frequencies, or is adjusted.

    Args:
        model: the Margin of the training loss; or a fitted classifier with scikit-learn's
            interface; or a clause, such as "the model has an adjustment baked in".
        prior: π of the training labels, which is to be adjusted by.
        tau: τ; below 0.5 nothing is said.
        elsewhere: True if a target prior or costs are asked for instead of the balanced error.

    Examples:
        >>> from longtail import margins
        >>> prior = ClassPrior.from_counts([90, 10])
        >>> print(adjusted_twice(margins.logit_adjusted(prior), prior))
        the loss 'logit-adjusted' already aims at the balanced error, so adjusting again favours the
        rare classes twice; use the logits as they are (tau=0).
        >>> adjusted_twice(margins.softmax(prior), prior) is None
        True
    """
    if tau < LEAST_AGAIN or np.ptp(prior.log_probs) == 0:
        return None
    favours = "adjusting again favours the rare classes twice"
    if isinstance(model, str):
        return f"{model}, so {favours}."
    if not hasattr(model, "residual_adjustment"):
        for what, instead in _own_corrections(model, prior):
            return (
                f"{what}, so the prior that it learned is not that of the labels, and {favours}; "
                f"{instead}, or adjust by the prior that effective_prior finds."
            )
        return None
    if model.num_classes != prior.num_classes or not model.is_antisymmetric:
        return None
    residual = model.residual_adjustment(prior)
    if not leaves_little(residual, prior, tau=tau):
        return None
    left = tau_left(residual, prior)
    does, instead = "already aims at the balanced error", "use the logits as they are (tau=0)"
    if left >= 0.1:
        does = f"leaves about tau = {left:.1f} to correct"
        instead = f"take tau = {left:.1f}, or what held-out data ask for"
    if elsewhere:
        instead += (
            f"; for another target pass ClassPrior.uniform({prior.num_classes}) as the prior, with "
            f"the same target_prior or costs"
        )
    return f"the loss '{model.name}' {does}, so {favours}; {instead}."


def tau_left(residual: FloatArray, prior: ClassPrior) -> float:
    """Return the τ that training leaves to correct, for which −τ log π comes nearest to r.

        Σ r_y ρ_y / Σ ρ_y²,   ρ = −log π less its mean

    It is 1 after the softmax (and for a uniform prior), 0 after a consistent loss, negative where
    a loss goes beyond that; r is what `Margin.residual_adjustment` leaves to add to the logits.

    Examples:
        >>> prior = ClassPrior.from_probs([0.9, 0.1])
        >>> tau_left(-0.3 * prior.log_probs, prior), tau_left(np.zeros(2), prior)
        (0.3, 0.0)
    """
    whole = prior.log_probs.mean() - prior.log_probs
    size = float(whole @ whole)
    return float(residual @ whole) / size if size > 0 else 1.0


def leaves_little(residual: FloatArray, prior: ClassPrior, *, tau: float = 1.0) -> bool:
    """Return whether training has done more than half of an adjustment by min(τ, 1).

    Anything above 1 is a temperature, which no loss corrects.
    """
    # A loss that did just half may look as if it did more: modules hold their margins in float32.
    return tau_left(residual, prior) < 0.4999 * min(tau, 1.0)


# Fitted attributes that hold what makes the predictions of an ensemble; else `best_estimator_`.
_DECIDING = {
    "FrozenEstimator": "estimator",
    "StackingClassifier": "final_estimator_",
    "VotingClassifier": "estimators_",
    "BaggingClassifier": "estimators_",
}


def _own_corrections(model: Any, prior: ClassPrior) -> Iterator[tuple[str, str]]:
    """Yield what a fitted classifier does for rare classes itself, and what to do instead."""
    name, steps = type(model).__name__, [step for _, step in getattr(model, "steps", ())]
    for step in steps:
        if hasattr(step, "fit_resample"):
            yield f"{type(step).__name__} resamples the classes", "leave it out"
    held = getattr(model, _DECIDING.get(name, "best_estimator_"), steps[-1:])
    for part in held if isinstance(held, list) else [held]:
        yield from _own_corrections(part, prior)
    if np.ptp(getattr(model, "adjustment_", 0.0)) > 0:
        yield f"{name} is adjusted already", "adjust once"
    if type(model).__module__.startswith("imblearn.ensemble"):
        yield f"{name} resamples the classes", "use scikit-learn's plain ensemble"
    settings: Any = model.get_params(deep=False) if hasattr(model, "get_params") else {}
    for setting in ("class_weight", "class_weights", "auto_class_weights", "is_unbalance"):
        value = settings.get(setting)
        even = isinstance(value, Mapping) and set(value.values()) == {1}
        if str(value) not in ("None", "False") and not even:
            yield f"{name} weighs classes itself ({setting}={value!r})", f"leave {setting} out"
    weight = settings.get("scale_pos_weight") or 1.0
    # Above 1 it favours the second class, below 1 the first.
    if prior.num_classes == 2 and (weight - 1.0) * -np.diff(prior.log_probs)[0] > 0:
        what = f"{name} weighs classes itself (scale_pos_weight={weight:g})"
        yield what, "use scale_pos_weight=1"
    for setting in ("priors", "class_prior", "fit_prior"):
        given: Any = settings.get(setting)
        if setting == "fit_prior" and given is False and settings.get("class_prior") is None:
            given = np.ones(prior.num_classes)
        # Priors may differ a little by rounding or smoothing.
        if np.shape(given) == prior.probs.shape and tau_left(-np.log(given), prior) < 0.75:
            told = f"{name} is told more even class frequencies ({setting})"
            yield told, f"leave {setting} out, or adjust by the same prior"
