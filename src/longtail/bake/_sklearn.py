"""Baking a linear classifier of scikit-learn: its intercepts (and coefficients) change.

The classifier may stand at the end of a pipeline or be the best of a search. The record is an
attribute of it, and so is saved with it; a new `fit` leaves nothing of the baking.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
from scipy.special import softmax
from sklearn.linear_model._base import LinearClassifierMixin
from sklearn.utils.validation import check_is_fitted

from longtail._checks import InputError
from longtail.bake._change import (
    BakeRecord,
    Change,
    RawTensor,
    bake_layer,
    close_enough,
    original_tensors,
    record_text,
)
from longtail.posthoc import LEAST_AGAIN, AdjustedTwiceWarning, adjusted_twice
from longtail.sklearn._baked import ATTRIBUTE, PARTS, is_intact
from longtail.sklearn._scores import final_estimator

_DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16"}


def bake(model: Any, change: Change, layers: Any = None, inputs: Any = None) -> Any:
    """Return a baked copy."""
    classifier = final_estimator(model)
    name = type(classifier).__name__
    if not isinstance(classifier, LinearClassifierMixin):
        raise InputError(
            f"{name} is not a linear classifier of scikit-learn, so it has no intercepts to bake "
            f"into; wrap it in LogitAdjustedClassifier, or bake its ONNX export (of an adjusted or "
            f"thresholded classifier bake the `estimator_`)."
        )
    check_is_fitted(model)
    plain, baked = copy.copy(classifier), copy.deepcopy(model)
    vars(plain).pop("feature_names_in_", None)  # random rows have none
    rows = np.random.default_rng(0).normal(size=(256, classifier.n_features_in_))
    old = np.asarray(plain.decision_function(rows), np.float64).reshape(len(rows), -1)
    if hasattr(classifier, "predict_proba"):
        both = np.pad(old, ((0, 0), (1, 0))) if old.shape[1] == 1 else old
        if not np.allclose(plain.predict_proba(rows), softmax(both, axis=1), atol=1e-5):
            raise InputError(
                f"the probabilities of this {name} are not the softmax of its decision function "
                f"(they are one-vs-rest), so its intercepts would not adjust them; wrap it in "
                f"LogitAdjustedClassifier, or bake its ONNX export."
            )
    weight = classifier.coef_
    if change.shift is None and hasattr(weight, "toarray"):
        raise InputError("the coefficients are sparse; call densify() on the classifier first.")
    width = 1 if weight.ndim == 1 else weight.shape[0]  # RidgeClassifier keeps a vector of two
    # Without fit_intercept some classifiers keep the number 0.0, others an array.
    number = isinstance(classifier.intercept_, float)
    bias = np.full(width, classifier.intercept_) if number else classifier.intercept_
    now = {"weight": weight, "bias": bias}
    new = bake_layer(name, width, lambda part: _raw(now[part]), change)
    after = final_estimator(baked)
    for part, tensor in new.tensors.items():
        setattr(after, PARTS[part], _array(tensor))
        setattr(plain, PARTS[part], _array(tensor))
    scale, offset = change.affine(width, np.asarray(weight) if change.shift is None else None, bias)
    got = np.asarray(plain.decision_function(rows), np.float64).reshape(len(rows), -1)
    close_enough(got, old * scale + offset, dtype=_DTYPES[weight.dtype.name], where=name)
    how = new.how.replace("weight", "coefficients").replace("bias", "intercepts")
    undo = {**new.undo, "number": number}
    setattr(after, ATTRIBUTE, record_text(change, where=name, how=how, undo=undo))
    _warn_if_twice(classifier, name, change)
    return baked


def unbake(model: Any) -> Any:
    """Return a copy with the original coefficients."""
    restored = copy.deepcopy(model)
    classifier = final_estimator(restored)
    record = _written(classifier)
    assert record is not None
    before = original_tensors(record.undo, lambda part: _raw(getattr(classifier, PARTS[part])))
    for part, tensor in before.items():
        array = _array(tensor)
        number = part == "bias" and record.undo["number"]
        setattr(classifier, PARTS[part], float(array[0]) if number else array)
    delattr(classifier, ATTRIBUTE)
    return restored


def record_of(model: Any) -> BakeRecord | None:
    """Return the record in a classifier that still has the coefficients it was given."""
    classifier = final_estimator(model)
    record = _written(classifier)
    return record if record and is_intact(classifier, record.undo["baked"]) else None


def _written(classifier: Any) -> BakeRecord | None:
    text = getattr(classifier, ATTRIBUTE, None)
    return None if text is None else BakeRecord.from_json(text)


def _warn_if_twice(classifier: Any, name: str, change: Change) -> None:
    """Warn if a classifier favours rare classes already, by its training or an earlier baking."""
    if change.prior is None or change.tau < LEAST_AGAIN:
        return
    earlier, text = _written(classifier), adjusted_twice(classifier, change.prior, tau=change.tau)
    if (text is None and earlier is not None) and (
        hasattr(classifier, "partial_fit") or getattr(classifier, "warm_start", False)
    ):
        text = (
            f"{name} was baked ({earlier}) and has been trained since. Unless that was a new fit "
            f"from the start, the adjustment is still in it, and another favours rare classes "
            f"twice; train the plain model on, and bake a copy of it."
        )
    if text is not None:
        warnings.warn(text, AdjustedTwiceWarning, stacklevel=5)


def _raw(array: Any) -> RawTensor:
    array = np.asarray(array)
    return RawTensor(_DTYPES[array.dtype.name], array.shape, array.tobytes())


def _array(tensor: Any) -> Any:
    names = {kind: name for name, kind in _DTYPES.items()}
    return np.frombuffer(tensor.data, names[tensor.dtype]).reshape(tensor.shape).copy()
