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

from longtail._checks import FloatArray, InputError
from longtail.bake._change import (
    BakeRecord,
    Change,
    RawTensor,
    bake_layer,
    close_enough,
    original_tensors,
    refuse_twice,
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
    refuse_twice(record_of(model), name)
    rows = np.random.default_rng(0).normal(size=(256, classifier.n_features_in_))
    old = _scores(classifier, rows)
    if hasattr(classifier, "predict_proba"):
        both = np.pad(old, ((0, 0), (1, 0))) if old.shape[1] == 1 else old
        if not np.allclose(
            _plain(classifier).predict_proba(rows), softmax(both, axis=1), atol=1e-5
        ):
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
    found = {"weight": weight, "bias": bias}
    new = bake_layer(name, width, lambda part: _raw(found[part]), change)
    baked = copy.deepcopy(model)
    after = final_estimator(baked)
    for part, tensor in new.tensors.items():
        setattr(after, PARTS[part], _array(tensor))
    scale, offset = change.affine(width, lambda: np.asarray(weight, np.float64), bias)
    dtype = _DTYPES[weight.dtype.name]
    close_enough(_scores(after, rows), old * scale + offset, dtype=dtype, where=name)
    how = new.how.replace("weight", "coefficients").replace("bias", "intercepts")
    undo = {**new.undo, "number": number}
    setattr(after, ATTRIBUTE, BakeRecord.of(change, where=name, how=how, undo=undo).to_json())
    _warn_if_twice(classifier, name, change)
    return baked


def unbake(model: Any) -> Any:
    """Return a copy with the original coefficients."""
    record = _written(model)
    if record is None:
        raise InputError(f"{type(final_estimator(model)).__name__} is not baked.")
    restored = copy.deepcopy(model)
    classifier = final_estimator(restored)
    before = original_tensors(record.undo, lambda part: _raw(getattr(classifier, PARTS[part])))
    for part, tensor in before.items():
        assert tensor is not None
        array: Any = _array(tensor)
        if part == "bias" and record.undo["number"]:
            array = float(array.ravel()[0])
        setattr(classifier, PARTS[part], array)
    delattr(classifier, ATTRIBUTE)
    return restored


def record_of(model: Any) -> BakeRecord | None:
    """Return the record in a classifier that still has the coefficients it was given."""
    record = _written(model)
    if record is None or not is_intact(final_estimator(model), record.undo["baked"]):
        return None
    return record


def _written(model: Any) -> BakeRecord | None:
    text = getattr(final_estimator(model), ATTRIBUTE, None)
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


def _plain(classifier: Any) -> Any:
    """Return the same classifier without its columns' names, which random rows don't have."""
    same = copy.copy(classifier)
    vars(same).pop("feature_names_in_", None)
    return same


def _scores(classifier: Any, rows: FloatArray) -> FloatArray:
    """Return the decision function, shape (rows, 1) for two classes."""
    return np.asarray(_plain(classifier).decision_function(rows), np.float64).reshape(len(rows), -1)


def _raw(array: Any) -> RawTensor:
    array = np.asarray(array)
    return RawTensor(_DTYPES[array.dtype.name], array.shape, array.tobytes())


def _array(tensor: RawTensor) -> Any:
    names = {kind: name for name, kind in _DTYPES.items()}
    return np.frombuffer(tensor.data, names[tensor.dtype]).reshape(tensor.shape).copy()
