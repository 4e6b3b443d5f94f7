"""Where the scores of an ONNX model are: `find_targets`.

They are looked for in one of three places, in this order:

    before the Softmax, LogSoftmax or Sigmoid that makes an output
    in the linear layer that makes it: Gemm, MatMul, Conv, with only reshapes or the nodes of a
        quantized layer behind it; also scikit-learn's LinearClassifier
    in the output itself, which holds probabilities: of a model converted from scikit-learn,
        LightGBM, XGBoost or CatBoost, or where `output` names it

Any other output is left alone unless `output` names it as logits. Nothing here changes a graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from longtail._checks import InputError, listing
from longtail.bake._change import (
    Change,
)

FLOAT_TYPES = {
    TensorProto.DOUBLE: "F64",
    TensorProto.FLOAT: "F32",
    TensorProto.FLOAT16: "F16",
    TensorProto.BFLOAT16: "BF16",
}
TYPE_OF = {"float64": TensorProto.DOUBLE, "float32": TensorProto.FLOAT}
TYPE_OF |= {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
ENDS = {"Softmax": "probs", "LogSoftmax": "log_probs", "Sigmoid": "sigmoid"}
_LINEAR = {"Gemm", "MatMul", "Conv", "MatMulInteger", "ConvInteger"}
# Behind a layer these keep its outputs apart, and a constant added to one of them stays the same.
_MOVES = {"Identity", "Dropout", "Flatten", "Squeeze", "Unsqueeze", "Reshape", "Transpose"}
_MOVES |= {"GlobalAveragePool", "ReduceMean", "Gather"}
# These would round a bias that is added before them.
_ROUNDS = {"Cast", "QuantizeLinear", "DequantizeLinear"}
# What converters put between a classifier's scores and the model's outputs.
SHOWS = {"Identity", "Dropout", "Cast", "ZipMap", "Normalizer", "Reshape", "Slice"}
SHOWS |= {"ArrayFeatureExtractor"}
LABELS = ("classlabels_ints", "classlabels_int64s", "classlabels_strings")
SMALLEST_PROB = 2.0**-126


@dataclass(frozen=True)
class Target:
    """What is to be changed.

    Attributes:
        tensor: the scores.
        way: "bias" of the layer that makes them, "nodes" behind them, "probs" for nodes behind
            probabilities, "classifier" for the attributes of a LinearClassifier.
        kind: what `shown` is of the scores: logits, probs, log_probs or sigmoid.
        shown: a tensor with one number per class, which is compared before and after.
        axis: of the classes, in both.
        width: number of scores.
        layer: index of the node with the weights, or None.
        bias: index of the node and place of its bias among the inputs.
    """

    tensor: str
    way: str
    kind: str
    shown: str
    axis: int
    width: int
    layer: int | None = None
    bias: tuple[int, int] | None = None


class Graph:
    """A model with its nodes and constants looked up by name.

    Args:
        model: the model.
        folder: where its external data lie, or None.
    """

    def __init__(self, model: ModelProto, folder: Path | None) -> None:
        self.model, self.folder, self.nodes = model, folder, model.graph.node
        self.makers = {name: k for k, node in enumerate(self.nodes) for name in node.output if name}
        self.constants = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in self.nodes:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self.constants[node.output[0]] = node.attribute[0].t
        self.outputs = [info.name for info in model.graph.output]
        opsets = {item.domain: item.version for item in model.opset_import}
        self.opset = max(opsets.get("", 0), opsets.get("ai.onnx", 0))
        self.converted = "ai.onnx.ml" in opsets

    def node(self, tensor: str) -> NodeProto | None:
        """Return the standard node that makes a tensor."""
        node = self.nodes[self.makers[tensor]] if tensor in self.makers else None
        return node if node is not None and node.domain in ("", "ai.onnx", "ai.onnx.ml") else None

    def values(self, name: str) -> NDArray[Any] | None:
        """Return a constant, read from its file if it is kept outside."""
        if name not in self.constants:
            return None
        tensor = self.constants[name]
        if onnx.external_data_helper.uses_external_data(tensor):
            tensor = TensorProto.FromString(tensor.SerializeToString())
            folder = str(self.folder or Path())
            onnx.external_data_helper.load_external_data_for_tensor(tensor, folder)
        return np.asarray(numpy_helper.to_array(tensor))

    def reached(self, start: str) -> set[str]:
        """Return a tensor and all that are computed from it."""
        found, before = {start}, 0
        while len(found) != before:  # tools that append casts leave the nodes out of order
            before = len(found)
            for node in self.nodes:
                if any(name in found for name in inputs_of(node)):
                    found.update(node.output)
        return found

    def chain(self, tensor: str, operators: set[str]) -> list[str]:
        """Return a tensor and those that it comes from through nodes of these kinds."""
        found = [tensor]
        while (node := self.node(found[-1])) is not None and node.op_type in operators:
            found.append(node.input[0])
        return found


def find_targets(
    graph: Graph, before: Mapping[str, Any], change: Change, output: Sequence[str]
) -> list[Target]:
    """Return what is to be changed, and with it other outputs that show the same scores.

    Of several with the same `tensor` the first says how it is changed.
    """
    plain = [_resolve(graph, name, before, change, named=False) for name in graph.outputs]
    # Of logits and their softmax, the softmax tells the axis of the classes.
    found = [t for t in plain if t is not None and t.tensor in graph.makers]
    found.sort(key=lambda target: target.kind == "logits")
    if output:
        named = [_resolve(graph, name, before, change, named=True) for name in output]
        first = [target for target in named if target is not None]
        if len(first) < len(named) or any(t.tensor not in graph.makers for t in first):
            raise InputError(f"the scores behind {listing(output)} can't be told; name another.")
        tensors = {target.tensor for target in first}
        return [*first, *(target for target in found if target.tensor in tensors)]
    by_tensor = {target.tensor: target for target in found}
    if len(by_tensor) == 1:
        return found
    sizes = [f"{name!r} {_shape_of(before[name])}" for name in graph.outputs]
    wanted = "" if change.num_classes is None else f" of {change.num_classes} classes"
    if by_tensor:
        names = listing(repr(target.shown) for target in by_tensor.values())
        raise InputError(
            f"more than one output can be meant: {names}; name one with output=... (on the "
            f"command line: --output), or several."
        )
    raise InputError(
        f"no output is the softmax or the last linear layer{wanted}, or the probabilities of a "
        f"converted classifier; the model has {listing(sizes)}. If one of them, or a tensor "
        f"inside, holds the logits, name it with output=... (on the command line: --output)."
    )


def _resolve(
    graph: Graph, name: str, before: Mapping[str, Any], change: Change, *, named: bool
) -> Target | None:
    """Return where the scores of an output are; None if it is not plain that it has any."""
    chain = graph.chain(name, {"Identity", "Cast", "Dropout", "ZipMap"})
    maker = graph.node(chain[-1])
    if maker is not None and maker.op_type in ENDS:
        shown, tensor, kind = chain[-1], maker.input[0], ENDS[maker.op_type]
        array = np.asarray(before[shown])
        axis = settings_of(maker).get("axis", -1 if graph.opset >= 13 else 1)
        if kind == "sigmoid":
            axis = -1
            if array.ndim > 1 and array.shape[-1] > 1:
                if named:
                    raise InputError(
                        f"{name!r} is a sigmoid of {array.shape[-1]} scores, each a question of "
                        f"its own, so no adjustment for one label out of several applies."
                    )
                return None
        elif graph.opset < 13 and axis % array.ndim != array.ndim - 1:
            return None  # it normalizes over all axes from there on
        axis %= array.ndim
        width = 1 if kind == "sigmoid" else array.shape[axis]
        if not change.fits(width):
            if named:
                change.affine(width, lambda: None, None)  # says which widths disagree
            return None
        if change.shift is None:  # probabilities do not tell what a scaling makes of them
            shown, kind = tensor, "logits"
        return _layer(graph, tensor, kind, shown, axis, width)
    if graph.converted and (found := _converted(graph, name, before, change)) is not None:
        return found
    array = before[name]
    if isinstance(array, list) or np.asarray(array).dtype.name not in TYPE_OF:
        if named:
            raise InputError(f"{name!r} holds no floating point scores, so name what does.")
        return None
    array = np.asarray(array)
    place: int | None = array.ndim - 1
    if array.ndim > 2:
        place = _class_axis(graph, name, array.shape, change)
    if place is None or array.shape in ((), (2,)):  # two scores of one example, or two margins
        return None
    width = 1 if array.ndim == 1 else array.shape[place]
    if not change.fits(width):
        if named:
            change.affine(width, lambda: None, None)
        return None
    target = _layer(graph, name, "logits", name, place, width)
    if target.layer is not None:
        return target
    if not named:
        return None
    sums = array.astype(np.float64).sum(axis=place)
    if width > 1 and array.min() >= 0:
        if change.shift is not None and np.allclose(sums, 1, atol=1e-3):
            return Target(name, "probs", "probs", name, place, width)
        if array.max() <= 1 or np.ptp(sums) < 1e-3 * sums.mean():
            raise InputError(
                f"{name!r} holds shares or something rounded, and neither logits nor plain "
                f"probabilities; name the scores that it is made of."
            )
    return target


def _layer(graph: Graph, tensor: str, kind: str, shown: str, axis: int, width: int) -> Target:
    """Return the target of logits: the bias of their layer if it has a plain one, else nodes."""
    way, place, bias, rounded = "nodes", tensor, None, False
    while (node := graph.node(place)) is not None and node.op_type in _MOVES | _ROUNDS:
        rounded |= node.op_type in _ROUNDS
        place = node.input[0]
    layer = None
    if node is not None:
        number = graph.makers[place]
        if node.op_type in _LINEAR:
            layer = number
            if node.op_type == "Conv" or (node.op_type == "Gemm" and graph.opset >= 11):
                bias = (number, 2)
        elif node.op_type == "Add":
            for side in (0, 1):
                constant = graph.constants.get(node.input[side])
                sizes = [] if constant is None else [size for size in constant.dims if size != 1]
                if constant is not None and (sizes == [width] or width == 1 == len(sizes) + 1):
                    inner = graph.chain(node.input[1 - side], {"Cast", "Mul"})[-1]
                    maker = graph.node(inner)
                    if maker is not None and maker.op_type in _LINEAR:
                        layer, bias = graph.makers[inner], (number, side)
    if width == 1 and layer is not None:  # a margin, and not one of two logits
        node = graph.nodes[layer]
        weight = graph.constants.get(node.input[1])
        first = node.op_type.startswith("Conv") or settings_of(node).get("transB", 0)
        if weight is None or weight.dims[0 if first else -1] != 1:
            layer = bias = None
    if bias is not None and not rounded:
        node = graph.nodes[bias[0]]
        given = node.input[bias[1]] if bias[1] < len(node.input) else ""
        constant = graph.constants.get(given)
        beta = settings_of(node).get("beta", 1.0)
        if not given or (
            constant is not None and constant.data_type in FLOAT_TYPES and beta == 1.0
            and math.prod(constant.dims) == width
        ):  # fmt: skip
            way = "bias"
    return Target(tensor, way, kind, shown, axis, width, layer, bias)


def _class_axis(graph: Graph, name: str, shape: Sequence[int], change: Change) -> int | None:
    """Return the axis of the classes among three or more, if there is no doubt about it."""
    node = graph.node(name)
    if node is not None and node.op_type in ("Conv", "Gemm", "MatMul"):
        return 1 if node.op_type == "Conv" else len(shape) - 1
    axes = [k for k in range(1, len(shape)) if change.fits(shape[k])]
    axes = [k for k in axes if shape[k] == change.num_classes] or axes
    return axes[0] if len(axes) == 1 else None


def _converted(graph: Graph, name: str, before: Mapping[str, Any], change: Change) -> Target | None:
    """Return the target in a model converted from scikit-learn or a library of trees."""
    if change.shift is None:
        return None
    chain = graph.chain(name, SHOWS)
    number = graph.makers.get(chain[-1])
    node = None if number is None else graph.nodes[number]
    arrays = {part: before[part] for part in chain if part in graph.makers}
    if node is not None and node.op_type == "LinearClassifier" and chain[-1] == node.output[1]:
        post = settings_of(node).get("post_transform", b"NONE")
        kind = {b"SOFTMAX": "probs", b"NONE": "logits"}.get(post)
        kind = "probs" if post == b"LOGISTIC" and is_mirrored(node) else kind
        # Its own scores, or one column of them: the margin of two classes.
        shown = next((part for part in chain if np.ndim(arrays[part]) == 2), None)
        if kind is not None and shown is not None:
            width = np.shape(arrays[shown])[1]
            if change.fits(width) and (width > 1 or kind == "logits"):
                return Target(chain[-1], "classifier", kind, shown, 1, width, number)
    for part, array in arrays.items():
        if np.ndim(array) != 2 or np.asarray(array).dtype.name not in TYPE_OF:
            continue
        rows = np.asarray(array, np.float64)
        within = rows.min() >= -1e-6 and rows.max() <= 1 + 1e-3
        if (
            rows.shape[1] == change.num_classes
            and within
            and np.allclose(rows.sum(axis=1), 1, atol=1e-2)  # float32 of far likelihoods
        ):
            return Target(part, "probs", "probs", part, 1, rows.shape[1])
    return None


def is_mirrored(classifier: NodeProto) -> bool:
    """Return whether a classifier's two rows are −w and w of one margin."""
    weights = np.array(settings_of(classifier).get("coefficients", []), np.float32)
    first, second = np.split(weights, [len(weights) // 2])
    return _num_labels(classifier) == 2 and np.array_equal(first, -second)


def is_softmax(classifier: NodeProto) -> bool:
    return bool(settings_of(classifier).get("post_transform") == b"SOFTMAX")


def _num_labels(classifier: NodeProto) -> int:
    settings = settings_of(classifier)
    return max(len(settings.get(name, ())) for name in LABELS)


def settings_of(node: NodeProto) -> dict[str, Any]:
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}


def _shape_of(value: Any) -> str:
    if isinstance(value, list):
        return "(dictionaries)"
    return f"({' x '.join(map(str, np.shape(value)))}, {np.asarray(value).dtype})"


def inputs_of(node: NodeProto) -> Iterator[str]:
    """Yield what a node reads, in its subgraphs too."""
    yield from node.input
    for item in node.attribute:
        for graph in (item.g, *item.graphs):
            for inner in graph.node:
                yield from inputs_of(inner)
