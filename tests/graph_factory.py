"""Small ONNX networks in ONNX's own notation, and what their adjusted probabilities are."""

import numpy as np
import onnx
import onnxruntime

from longtail import ClassPrior

COUNTS = np.array([900, 90, 10])
PRIOR = ClassPrior.from_counts(COUNTS)
LOG_PI = np.log(COUNTS / COUNTS.sum())
RANDOM = np.random.default_rng(0)
W = RANDOM.normal(size=(5, 3)).astype(np.float32)
X = RANDOM.normal(size=(1000, 5)).astype(np.float32)
F = X.astype(np.float64) @ W


def softmax(f):
    odds = np.exp(f - f.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


P = softmax(F - LOG_PI)
ORDER = np.argsort(-P, axis=1)
LABEL = P.argmax(axis=1)
PROBS = "z = Gemm(x, w, b) p = Softmax<axis = -1>(z)"
HALF = {"half": np.float32(0.5)}


def network(nodes, *outputs, weight=W, **constants):
    """A model of nodes in ONNX's own notation; names of outputs that start with i are integers."""
    ends = ", ".join(f"{'int64' if name[0] == 'i' else 'float'}[] {name}" for name in outputs)
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> net (float[n, 5] x) => ({ends}) {{ {nodes} }}'
    )
    width = weight.shape[1]
    constants = {"b": np.zeros(width, np.float32)} | constants
    constants |= {"w": weight, "three": np.array([3])}
    constants |= {"hundred": np.float32(100), "one": np.array(1), "two": np.array([2])}
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(value), name)
        for name, value in constants.items()
        if name in used
    )
    return model


def run(model):
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": X})
