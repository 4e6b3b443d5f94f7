"""Baking a scikit-learn linear model: its intercepts (and coefficients) change.

The classifier may stand at the end of a pipeline or be the best of a search. Where it gives
probabilities, they must be the softmax of its decision function, or adding to one would not
adjust the other: one-vs-rest probabilities are refused. The record is an attribute of the
classifier and so is saved with it.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
from sklearn.linear_model._base import LinearClassifierMixin
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.utils.validation import check_is_fitted

from longtail._checks import FloatArray, InputError
from longtail.bake._change import Change, LogitAdjustment
from longtail.bake._layer import Layer, bake_layer, close_enough, original_tensors
from longtail.bake._record import BakeRecord, refuse_twice, require_record
from longtail.bake._tensors import RawTensor
from longtail.posthoc import AdjustedTwiceWarning, adjusts_again
from longtail.priors import ClassPrior
from longtail.sklearn._baked import ATTRIBUTE, PARTS, is_intact
from longtail.sklearn._base import AdjustedBase
from longtail.sklearn._scores import final_estimator
from longtail.sklearn._twice import own_correction

_DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16"}
_ROWS = 256


def bake(model: Any, change: Change, *, layer: str | None) -> Any:
    """A baked copy."""
    caller = change.caller
    if layer is not None:
        raise InputError(f"{caller}: `layer` is for torch modules and state dicts; leave it out.")
    classifier = final_estimator(model)
    name = type(classifier).__name__
    _refuse_others(model, classifier, caller)
    refuse_twice(record_of(model, caller=caller), name=name, caller=caller)
    found = _layer_of(classifier, change)
    new = bake_layer(found, change)
    baked = copy.deepcopy(model)
    after = final_estimator(baked)
    for part, tensor in new.tensors.items():
        setattr(after, PARTS[part], _array(tensor))
    _check(_without_names(classifier), _without_names(after), change)
    # Without fit_intercept some classifiers keep the number 0.0, others an array.
    undo = {**new.undo, "number": isinstance(classifier.intercept_, float)}
    record = BakeRecord.of(change, where=name, how=_how(new.how), undo=undo)
    setattr(after, ATTRIBUTE, record.to_json())
    _warn_if_twice(classifier, change)
    return baked


def unbake(model: Any, *, caller: str) -> Any:
    """A copy with the original coefficients."""
    name = type(final_estimator(model)).__name__
    record = require_record(_written(model, caller), name=name, caller=caller)
    restored = copy.deepcopy(model)
    classifier = final_estimator(restored)

    def now(part: str) -> RawTensor:
        return _raw(getattr(classifier, PARTS[part]))

    for part, tensor in original_tensors(record, now, caller=caller).items():
        array = _array(tensor) if tensor is not None else np.zeros(0)
        if part == "bias" and record.undo["number"]:
            setattr(classifier, PARTS[part], float(array.ravel()[0]))
        else:
            setattr(classifier, PARTS[part], array)
    delattr(classifier, ATTRIBUTE)
    return restored


def record_of(model: Any, *, caller: str) -> BakeRecord | None:
    """What was baked into an estimator, or None; a new `fit` leaves nothing of it."""
    record = _written(model, caller)
    if record is None or not is_intact(final_estimator(model), record.undo["baked"]):
        return None
    return record


def _written(model: Any, caller: str) -> BakeRecord | None:
    text = getattr(final_estimator(model), ATTRIBUTE, None)
    return None if text is None else BakeRecord.from_json(text, caller=caller)


def _warn_if_twice(classifier: Any, change: Change) -> None:
    """Say so if a classifier favours rare classes already, by its training or an earlier baking."""
    if not isinstance(change, LogitAdjustment) or not adjusts_again(change.tau):
        return
    name, text = type(classifier).__name__, None
    found = own_correction(classifier, ClassPrior.from_probs(change.settings["prior"]))
    earlier = _written(classifier, change.caller)
    goes_on = hasattr(classifier, "partial_fit") or getattr(classifier, "warm_start", False)
    if found is not None:
        text = (
            f"{name} {found.what}, so the prior that it learned is not that of the labels. Unless "
            f"`prior` is what effective_prior gives, adjusting by it favours rare classes twice; "
            f"{found.instead}, or pass that."
        )
    elif earlier is not None and goes_on:
        text = (
            f"{name} was baked ({earlier}) and has been trained since. Unless that was a new fit "
            f"from the start, the adjustment is still in it, and another favours rare classes "
            f"twice; train the plain model on, and bake a copy of it."
        )
    if text is not None:
        # From the bake of this kind of model, `_bake` and the public function.
        warnings.warn(f"{change.caller}: {text}", AdjustedTwiceWarning, stacklevel=5)


def _how(text: str) -> str:
    return text.replace("weight", "coefficients").replace("bias", "intercepts")


def _refuse_others(model: Any, classifier: Any, caller: str) -> None:
    name = type(classifier).__name__
    if isinstance(classifier, AdjustedBase):
        tau = "best_tau_" if hasattr(classifier, "best_tau_") else "tau"
        raise InputError(
            f"{caller}: {name} is adjusted already: deploy it as it is, or bake its `estimator_` "
            f"with the same prior and tau (its `prior_` and `{tau}`)."
        )
    if isinstance(classifier, FixedThresholdClassifier | TunedThresholdClassifierCV):
        raise InputError(
            f"{caller}: {name} moves the threshold of the classifier in it, which an adjustment "
            f"does in its stead; bake its `estimator_`."
        )
    if not isinstance(classifier, LinearClassifierMixin):
        raise InputError(
            f"{caller}: {name} is not a linear classifier of scikit-learn, so there are no "
            f"intercepts to bake into; wrap it in LogitAdjustedClassifier, or bake its ONNX "
            f"export."
        )
    check_is_fitted(model)
    if not hasattr(classifier, "predict_proba"):
        return
    classifier = _without_names(classifier)
    rows = np.random.default_rng(0).normal(size=(_ROWS, classifier.n_features_in_))
    wanted = _softmax(_scores(classifier, rows))
    if not np.allclose(classifier.predict_proba(rows), wanted, atol=1e-5):
        raise InputError(
            f"{caller}: the probabilities of this {name} are not the softmax of its decision "
            f"function (they are one-vs-rest), so adjusting its intercepts would not adjust "
            f"them; wrap it in LogitAdjustedClassifier, or bake its ONNX export."
        )


def _without_names(classifier: Any) -> Any:
    """The same classifier without its columns' names, which random rows don't have."""
    same = copy.copy(classifier)
    vars(same).pop("feature_names_in_", None)
    return same


def _layer_of(classifier: Any, change: Change) -> Layer:
    coefficients = classifier.coef_
    # Of two classes RidgeClassifier keeps a bare vector, others a matrix of one row.
    width = 1 if coefficients.ndim == 1 else coefficients.shape[0]
    if change.needs_weight and hasattr(coefficients, "toarray"):
        raise InputError(
            f"{change.caller}: the coefficients are sparse; call densify() on the classifier first."
        )
    dtype = _DTYPES[coefficients.dtype.name]
    intercepts = classifier.intercept_
    if isinstance(intercepts, float):
        intercepts = np.full(width, intercepts)
    name = type(classifier).__name__
    return Layer(name, width, dtype, lambda: _raw(coefficients), _raw(intercepts))


def _raw(array: Any) -> RawTensor:
    array = np.asarray(array)
    return RawTensor(_DTYPES[array.dtype.name], array.shape, array.tobytes())


def _array(tensor: RawTensor) -> Any:
    name = next(key for key, value in _DTYPES.items() if value == tensor.dtype)
    return np.frombuffer(tensor.data, name).reshape(tensor.shape).copy()


def _scores(classifier: Any, rows: FloatArray) -> FloatArray:
    """One logit per class; a single margin d stands for (0, d)."""
    scores = np.asarray(classifier.decision_function(rows), np.float64)
    return np.stack([np.zeros_like(scores), scores], axis=1) if scores.ndim == 1 else scores


def _softmax(logits: FloatArray) -> FloatArray:
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)  # type: ignore[no-any-return]


def _check(before: Any, after: Any, change: Change) -> None:
    """Random rows through the classifier before and after: scores and predicted classes."""
    rows = np.random.default_rng(1).normal(size=(_ROWS, before.n_features_in_))
    old = np.asarray(before.decision_function(rows), np.float64).reshape(_ROWS, -1)
    new = np.asarray(after.decision_function(rows), np.float64).reshape(_ROWS, -1)
    bias = np.broadcast_to(np.asarray(before.intercept_, np.float64), old.shape[1:])
    scale, offset = change.affine(old.shape[1], lambda: np.asarray(before.coef_), bias)
    size = float(abs(old).max() * max(1.0, scale.max()) + abs(offset).max())
    name = type(before).__name__
    dtype = _DTYPES[np.asarray(before.coef_.dtype.type(0)).dtype.name]
    wanted = old * scale + offset
    close_enough(new, wanted, dtype=dtype, size=size, where=name, caller=change.caller)
    winners = new[:, 0] > 0 if new.shape[1] == 1 else new.argmax(axis=1)
    if not np.array_equal(after.predict(rows), after.classes_[winners.astype(np.intp)]):
        raise InputError(
            f"{change.caller}: {name}.predict does not follow its decision function, so nothing "
            f"was baked."
        )
