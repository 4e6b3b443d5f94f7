"""Metadata for a whole estimator in, the sample weights of the classifier inside it out.

With metadata routing on, a pipeline, a search or an ensemble sends weights on under names and to
parts of the user's choosing; the prior is that of the weights that the classifier is fitted with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.utils.metadata_routing import MetadataRouter, get_routing_for_object
from sklearn.utils.validation import has_fit_parameter

from longtail._checks import FloatArray

# Whatever those inside are fitted with: bagging draws its examples by its own weights, and by
# theirs a calibrator and the last estimator of a stack learn the frequencies anew.
_BY_ITSELF = ("BaggingClassifier", "CalibratedClassifierCV", "StackingClassifier")


class UnlikeWeightsError(Exception):
    """Some classifiers of an ensemble are fitted with other weights than the rest."""


def classifier_weight(estimator: Any, fit_params: Mapping[str, Any]) -> FloatArray | None:
    """The `sample_weight` that the classifier itself is fitted with, or None for no weights.

    Args:
        estimator: a classifier, or a pipeline, search or ensemble of such.
        fit_params: what its `fit` is given, with metadata routing on.

    Raises:
        UnlikeWeightsError: if several classifiers learn from different weights.
    """
    found = _weights(get_routing_for_object(estimator), fit_params)
    first = found[0]
    if any(not _same(first, other) for other in found):
        raise UnlikeWeightsError
    return None if first is None else np.asarray(first, dtype=np.float64)


def _weights(router: Any, params: Mapping[str, Any]) -> list[Any]:
    """The weights of each classifier that is fitted, None for one without."""
    own = params.get("sample_weight")
    if not isinstance(router, MetadataRouter) or _owner(router) in _BY_ITSELF:
        return [own]
    routed = router.route_params(caller="fit", params=params)
    called = {
        name: (part.router, {callee for caller, callee in part.mapping if caller == "fit"})
        for name, part in router
        if name in routed  # which leaves out the router's own request
    }
    fitted = [name for name, (_, methods) in called.items() if "fit" in methods]
    if any(methods & {"transform", "fit_transform"} for _, methods in called.values()):
        fitted = fitted[-1:]  # a pipeline: the steps before the last only make its features
    found = [w for name in fitted for w in _weights(called[name][0], routed[name]["fit"])]
    takes = hasattr(router.owner, "fit") and has_fit_parameter(router.owner, "sample_weight")
    return [*found, own] if takes or not found else found


def _owner(router: MetadataRouter) -> str:
    """Whose router it is; before scikit-learn 1.8 it knows no more than that."""
    owner = router.owner
    return owner if isinstance(owner, str) else type(owner).__name__


def _same(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return bool(np.array_equal(one, other))
