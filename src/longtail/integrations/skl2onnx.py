"""Converters to ONNX for both classifiers: import this module, and `skl2onnx.to_onnx` knows them.

The inner estimator is converted by its own converter; behind it stand

    f = log max(p, 2^-126)   or the decision function, (−d/2, d/2) for two classes
    probabilities = softmax(f + adjustment)
    label = the class of the largest score, with costs if there are any
"""

from __future__ import annotations

from typing import Any

import numpy as np
from skl2onnx import update_registered_converter
from skl2onnx._parse import _parse_sklearn, _parse_sklearn_classifier
from skl2onnx._supported_operators import sklearn_operator_name_map
from skl2onnx.algebra import onnx_ops as ops
from skl2onnx.common._registration import _converter_pool
from skl2onnx.common.data_types import FloatTensorType
from skl2onnx.common.shape_calculator import calculate_linear_classifier_output_shapes
from skl2onnx.proto import onnx_proto
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection._search import BaseSearchCV
from sklearn.svm import SVC, NuSVC

from longtail._checks import InputError
from longtail.posthoc import SMALLEST_PROB
from longtail.sklearn import LogitAdjustedClassifier, LogitAdjustedClassifierCV
from longtail.sklearn._scores import Encoded, final_estimator

_KINDS = (LogitAdjustedClassifier, LogitAdjustedClassifierCV)


def _parse(scope: Any, model: Any, inputs: Any, custom_parsers: Any = None) -> Any:
    """Convert the inner estimator, whose scores are what ours reads."""
    inner = model.estimator_
    while isinstance(inner, FrozenEstimator | Encoded | BaseSearchCV):
        inner = inner.best_estimator_ if isinstance(inner, BaseSearchCV) else inner.estimator
    final = final_estimator(inner)
    margins = model._method == "decision_function"
    if margins and (isinstance(final, SVC | NuSVC) or hasattr(final, "predict_proba")):
        raise InputError(
            f"the decision function of {type(final).__name__} has no converter; use its "
            f"probabilities (of an SVC: probability=True, or CalibratedClassifierCV)."
        )
    operator = sklearn_operator_name_map.get(type(final))
    known = _converter_pool[operator].get_allowed_options() if operator else None
    # An entry, if empty, keeps a pipeline from giving the option to a step that does not know it.
    scope.add_options(id(final), {"zipmap": False} if "zipmap" in (known or ()) else {})
    found = _parse_sklearn(scope, inner, inputs, custom_parsers=custom_parsers)
    return _parse_sklearn_classifier(scope, model, [found[1]], custom_parsers=custom_parsers)


def _shapes(operator: Any) -> None:
    """Set the types of label and probabilities; the latter are float32 whatever the input."""
    calculate_linear_classifier_output_shapes(operator)
    operator.outputs[1].type = FloatTensorType([None, len(operator.raw_operator.classes_)])


def _convert(scope: Any, operator: Any, container: Any) -> None:
    """Add the nodes behind the inner estimator's scores."""
    model, opset = operator.raw_operator, {"op_version": container.target_opset}
    logits = ops.OnnxCast(operator.inputs[0], to=onnx_proto.TensorProto.FLOAT, **opset)
    if model._method == "predict_proba":
        least = np.array([SMALLEST_PROB], np.float32)
        logits = ops.OnnxLog(ops.OnnxMax(logits, least, **opset), **opset)
    elif len(model.classes_) == 2:  # the last column is the margin, if there are two
        half = ops.OnnxMul(logits, np.array([0.5], np.float32), **opset)
        half = ops.OnnxGather(half, np.array([-1]), axis=1, **opset)
        logits = ops.OnnxConcat(ops.OnnxNeg(half, **opset), half, axis=1, **opset)
    label, probs = (variable.full_name for variable in operator.outputs)
    shift = model.adjustment_.astype(np.float32)[None]
    scores = ops.OnnxAdd(logits, shift, **opset)
    probs = ops.OnnxSoftmax(scores, axis=1, output_names=[probs], **opset)
    if model._costs is not None and model._costs.ndim == 2:
        scores = ops.OnnxNeg(
            ops.OnnxMatMul(probs, model._costs.astype(np.float32), **opset), **opset
        )
    elif model._costs is not None:
        costs = (model._tau * np.log(model._costs)).astype(np.float32)[None]
        scores = ops.OnnxAdd(scores, costs, **opset)
    classes = model.classes_
    classes = classes.astype(np.int64 if classes.dtype.kind in "iub" else str)
    best = ops.OnnxArgMax(scores, axis=1, keepdims=0, **opset)
    best = ops.OnnxArrayFeatureExtractor(classes, best, **opset)
    best = ops.OnnxReshape(best, np.array([-1]), output_names=[label], **opset)
    probs.add_to(scope, container)
    best.add_to(scope, container)


for _kind in _KINDS:
    update_registered_converter(
        _kind,
        f"Longtail{_kind.__name__}",
        _shapes,
        _convert,
        parser=_parse,
        options={
            "zipmap": [True, False, "columns"],
            "nocl": [True, False],
            "output_class_labels": [False, True],
        },
    )
