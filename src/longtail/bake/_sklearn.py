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
from longtail.bake._layers import (
    DTYPES,
    FLOATS,
    BakeRecord,
    Change,
    RawTensor,
    bake_layer,
    close_enough,
    unbake_layers,
)
from longtail.posthoc import AdjustedTwiceWarning, adjusted_twice
from longtail.sklearn._scores import BAKED, PARTS, final_estimator, is_intact


def bake(model: Any, change: Change) -> Any:
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
    weight = weight.toarray() if hasattr(weight, "toarray") else weight  # after sparsify()
    weight = np.atleast_2d(weight)  # RidgeClassifier keeps a vector of two classes
    # Without fit_intercept some classifiers keep the number 0.0, others an array.
    number = isinstance(classifier.intercept_, float)
    bias = np.full(len(weight), classifier.intercept_) if number else classifier.intercept_
    tensors, undo, how = bake_layer(name, _raw(weight), _raw(bias), change)
    after = final_estimator(baked)
    for part, tensor in tensors.items():
        setattr(after, PARTS[part], _array(tensor))
        setattr(plain, PARTS[part], _array(tensor))
    scale, offset = change.affine(len(weight), weight, bias)
    got = np.asarray(plain.decision_function(rows), np.float64).reshape(len(rows), -1)
    close_enough(got, old * scale + offset, dtype=DTYPES[weight.dtype.name], where=name)
    how = how.replace("weight", "coefficients").replace("bias", "intercepts")
    setattr(after, BAKED, change.record(where=name, how=how, undo={**undo, "number": number}))
    if change.prior is not None:
        text = adjusted_twice(classifier, change.prior, tau=change.tau)
        if text is not None:
            warnings.warn(text, AdjustedTwiceWarning, stacklevel=4)
    return baked


def unbake(model: Any) -> Any:
    """Return a copy with the original coefficients."""
    restored = copy.deepcopy(model)
    classifier = final_estimator(restored)
    undo = BakeRecord.from_json(getattr(classifier, BAKED)).undo

    def read(part: str) -> RawTensor:
        return _raw(getattr(classifier, PARTS[part]))

    for part, tensor in unbake_layers({"": undo}, read).items():
        array = _array(tensor)
        number = part == "bias" and undo["number"]
        setattr(classifier, PARTS[part], float(array[0]) if number else array)
    delattr(classifier, BAKED)
    return restored


def record_of(model: Any) -> BakeRecord | None:
    """Return the record in a classifier that still has the coefficients it was given."""
    classifier = final_estimator(model)
    text = getattr(classifier, BAKED, None)
    record = None if text is None else BakeRecord.from_json(text)
    return record if record and is_intact(classifier, record.undo.get("baked", {})) else None


def _raw(array: Any) -> RawTensor:
    return RawTensor(DTYPES[array.dtype.name], array.shape, array.tobytes())


def _array(tensor: Any) -> Any:
    return np.frombuffer(tensor.data, FLOATS[tensor.dtype]).reshape(tensor.shape).copy()
