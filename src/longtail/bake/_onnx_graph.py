"""Reading an ONNX graph: which tensor holds the logits, and how the outputs follow from it.

From an output, `trace` goes back through softmax, casts and the like to the tensor whose numbers
are the logits (or, where there are none, the probabilities). Nothing here changes a graph; that
is `_onnx_edit`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from longtail._checks import FloatArray

Kind = Literal["logits", "probs", "log_probs", "sigmoid"]

# What each type is called here; only these can be baked.
FLOAT_TYPES = {
    TensorProto.DOUBLE: "F64",
    TensorProto.FLOAT: "F32",
    TensorProto.FLOAT16: "F16",
    TensorProto.BFLOAT16: "BF16",
}
_STANDARD = ("", "ai.onnx", "ai.onnx.ml")
_CLASSIFIERS = {"LinearClassifier", "TreeEnsembleClassifier", "SVMClassifier"}
_SAME = {"Identity", "Dropout"}
# What leaves every axis in its place.
_KEEPS_AXES = {
    *_SAME, "Cast", "Resize", "Upsample", "Pad", "Slice", "Clip", "Relu", "LeakyRelu", "Neg",
    "Tanh", "BatchNormalization", "AveragePool", "MaxPool", "GlobalAveragePool", "GlobalMaxPool",
    "QuantizeLinear", "DequantizeLinear",
}  # fmt: skip
_ELEMENTWISE = {"Add", "Sub", "Mul", "Div", "QLinearAdd", "QLinearMul"}
_RESHAPES = {"Reshape", "Flatten", "Squeeze", "Unsqueeze"}
_SOFTMAX = {"Softmax", "LogSoftmax"}
# Behind which the smallest number is the smallest still.
_KEEPS_ORDER = frozenset({*_SAME, "Cast", "Add", "Sqrt", "Exp", "Log", "Clip", "Relu"})
# What shows some scores in another form: percentages, clipped, the largest, one of them, a label.
SHOWS = frozenset({
    *_SAME, *_RESHAPES, "Cast", "Transpose", "QuantizeLinear", "DequantizeLinear", "Round", "Floor",
    "Ceil", "Neg", "Log", "Sqrt", "Pow", "Mul", "Div", "Add", "Sub", "Clip", "Min", "Max", "Relu",
    "Where", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "TopK", "ArgMax", "Hardmax",
    "ReduceMax", "Gather", "GatherElements", "Slice", "Sigmoid",
})  # fmt: skip
# Layers, quantized and fused by a runtime too, with their outputs on axis 1, and on the last axis
# (and which of their inputs is the weight).
_CONVOLUTIONS = {"Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "FusedConv"}
_PRODUCTS = {"Gemm": 1, "MatMul": 1, "MatMulInteger": 1, "FusedMatMul": 1, "QLinearMatMul": 3}

_LAYERS = {*_CONVOLUTIONS, *_PRODUCTS, "Einsum", "LSTM", "GRU", "RNN"}


class Producer(NamedTuple):
    """A node and its place in the graph."""

    number: int
    node: NodeProto


class Trace(NamedTuple):
    """Where an output's numbers come from.

    Attributes:
        tensor: what is to be changed.
        kind: what the output is, as a function of the changed tensor: the tensor itself, its
            softmax, log-softmax or sigmoid. "probs" of a tensor that is its own output means
            that no logits were found.
        axis: of the softmax, if there is one.
    """

    tensor: str
    kind: Kind
    axis: int | None = None


class Bias(NamedTuple):
    """A constant that is added to the logits: input `place` of a node, times `factor`."""

    number: int
    place: int
    name: str
    tensor: TensorProto | None
    factor: float


class Graph:
    """A model with its tensors' producers and constants looked up once.

    Args:
        model: the model, which must not change meanwhile.
        folder: where its external data lie, or None.
    """

    def __init__(self, model: ModelProto, folder: Path | None) -> None:
        self.model, self.folder = model, folder
        nodes = model.graph.node
        self.producers = {
            name: Producer(index, node)
            for index, node in enumerate(nodes)
            for name in node.output
            if name
        }
        self.constants = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in nodes:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self.constants[node.output[0]] = node.attribute[0].t

    @property
    def opset(self) -> int:
        """Version of the standard operators; 0 if they are not imported."""
        found = [item.version for item in self.model.opset_import if item.domain in ("", "ai.onnx")]
        return max(found, default=0)

    @property
    def outputs(self) -> list[str]:
        """Names of the model's outputs."""
        return [output.name for output in self.model.graph.output]

    def values(self, tensor: TensorProto) -> NDArray[Any]:
        """A constant's numbers, read from its file if they are kept outside."""
        if onnx.external_data_helper.uses_external_data(tensor):
            tensor = TensorProto.FromString(tensor.SerializeToString())
            folder = str(self.folder or Path())
            onnx.external_data_helper.load_external_data_for_tensor(tensor, folder)
        return np.asarray(numpy_helper.to_array(tensor))

    def classifier(self) -> Producer | None:
        """The one node that is a whole classifier, as converters from scikit-learn make it."""
        found = [
            Producer(index, node)
            for index, node in enumerate(self.model.graph.node)
            if node.domain == "ai.onnx.ml" and node.op_type in _CLASSIFIERS
        ]
        return found[0] if len(found) == 1 else None

    def downstream(self, tensor: str) -> set[str]:
        """The model's outputs that depend on a tensor (itself too)."""
        return self.reached(tensor) & set(self.outputs)

    def reached(self, *tensors: str) -> set[str]:
        """Some tensors and all that depend on them."""
        found, before = set(tensors), -1
        # The format demands topological order, but tools that put casts in front append them.
        while len(found) != before:
            before = len(found)
            for node in self.model.graph.node:
                if any(name in found for name in _all_inputs(node)):
                    found.update(node.output)
        return found

    def ancestors(self, tensor: str) -> list[NodeProto]:
        """The nodes that a tensor depends on."""
        names, found = [tensor], dict[int, NodeProto]()
        while names:
            maker = self.producers.get(names.pop())
            if maker is not None and maker.number not in found:
                found[maker.number] = maker.node
                names += _all_inputs(maker.node)
        return list(found.values())

    def trace(self, output: str) -> Trace:
        """Back from an output to the logits."""
        kind: Kind = "logits"
        axis = None
        tensor = output
        while tensor in self.producers:
            node = self.producers[tensor].node
            if node.domain not in _STANDARD:  # a function may have any name
                break
            if node.op_type in ("Softmax", "LogSoftmax", "Sigmoid") and kind == "logits":
                kind = {"Softmax": "probs", "LogSoftmax": "log_probs"}.get(node.op_type, "sigmoid")  # type: ignore[assignment]
                axis = attribute(node, "axis", -1 if self.opset >= 13 else 1)
            elif not self._passes(node):
                break
            tensor = node.input[0]
        return Trace(tensor, kind, axis)

    def back_through(
        self, tensor: str, operators: frozenset[str]
    ) -> Iterator[tuple[NodeProto, str]]:
        """The nodes that made a tensor, last first, each with the tensor it computes from.

        Ends where a node computes from several: a gate, attention over something else.

        Args:
            tensor: from which to go back.
            operators: others end it, too.
        """
        while tensor in self.producers:
            node = self.producers[tensor].node
            if node.op_type not in operators or node.domain not in ("", "ai.onnx"):
                return
            source = self._only_source(node, operators)
            if source is None or (node.op_type == "Div" and node.input[0] != source):
                return
            yield node, source
            tensor = source

    def _only_source(self, node: NodeProto, operators: frozenset[str]) -> str | None:
        """The tensor whose numbers a node computes with; None if there are several, or none.

        Of several the first, if the operators make the others of it: p in p·[p > t] or p / (1 − p).
        """
        varying = [name for name in node.input if name in self._varying]
        if node.op_type in _KEEPS_AXES | _RESHAPES and varying:  # the rest are sizes and scales
            return str(node.input[0])
        known = {name for name in varying if self.element_type(name) in (0, *FLOAT_TYPES)}
        if not known:
            return None
        first = min(known, key=lambda name: self.producers.get(name, (-1,))[0])
        others = (self.back_through(name, operators) for name in known - {first})
        return first if all(first in (source for _, source in way) for way in others) else None

    def order_of_map(self, output: str) -> list[int] | None:
        """The classes in the order in which a dictionary has them: runtimes sort its keys."""
        node = self.producers[output].node if output in self.producers else None
        if node is None or node.op_type != "ZipMap":
            return None
        names = ("classlabels_int64s", "classlabels_strings")
        labels = next(found for name in names if (found := attribute(node, name, None)))
        return sorted(range(len(labels)), key=labels.__getitem__)

    def rounding(self, tensor: str) -> float:
        """Of what a tensor's numbers are multiples, where a quantized model makes it; 0 if none."""
        node = self.producers[tensor].node
        scale = node.input[1] if node.op_type == "DequantizeLinear" else ""
        return float(np.max(self.values(self.constants[scale]))) if scale in self.constants else 0.0

    def is_certain(self, tensor: str) -> bool:
        """Whether a tensor of 0 and 1 holds nothing else, whatever the inputs: a label, one tree.

        On made-up inputs, far from the data, neighbours vote alike and likelihoods are 0 as well.
        """
        node = self.producers[tensor].node
        if node.op_type == "Cast":
            return self.element_type(node.input[0]) not in (0, *FLOAT_TYPES)
        if node.op_type != "TreeEnsembleClassifier":
            return bool(node.op_type == "OneHot")
        weights, trees = (set(attribute(node, f"class_{k}", [])) for k in ("weights", "treeids"))
        return weights <= {0.0, 1.0} and len(trees) == 1

    def least_wins(self, tensor: str) -> bool:
        """Whether a label is that of the smallest number in a tensor, and none of the largest."""
        nodes = self.model.graph.node
        largest = {self.trace(n.input[0]).tensor for n in nodes if n.op_type == "ArgMax"}
        found = (node.input[0] for node in nodes if node.op_type == "ArgMin")
        return tensor not in largest and any(tensor in self._same_order(name) for name in found)

    def _same_order(self, tensor: str) -> Iterator[str]:
        """A tensor and those whose order it has, as far as the operators tell."""
        yield self.trace(tensor).tensor
        for _, source in self.back_through(tensor, _KEEPS_ORDER):
            yield source

    def _passes(self, node: NodeProto) -> bool:
        """Whether a node hands on what it gets."""
        if node.op_type == "Cast":
            # In front of a cast from half precision the adjustment would lose digits.
            before = self.element_type(node.input[0])
            after = attribute(node, "to", 0)
            wide = before in (TensorProto.FLOAT, TensorProto.DOUBLE)
            return wide and after in FLOAT_TYPES
        if node.op_type == "ZipMap":
            return True
        if node.op_type == "Normalizer" and node.input[0] in self.producers:
            source = self.producers[node.input[0]].node
            return bool(attribute(source, "post_transform", b"NONE") == b"SOFTMAX")
        return node.op_type in _SAME

    def told_axes(self, tensor: str, rank: int) -> Iterator[int]:
        """The axes along which the layers behind a tensor have their outputs, nearest layer first.

        Args:
            tensor: its name; what stands between it and a layer may move axes, not mix them.
            rank: its number of axes.
        """
        order: list[int | None] = list(range(rank))  # where each of its axes was before, if kept
        while tensor in self.producers and self._may_have_rank(tensor, rank):
            node = self.producers[tensor].node
            axis = self._axis_of_layer(node, rank)
            if axis is not None:
                if axis in order:
                    yield order.index(axis)
                if axis not in order or not self._leaves_other_axes(node):
                    return
            elif node.op_type == "Transpose":
                came_from = attribute(node, "perm", list(reversed(range(rank))))
                if len(came_from) != rank:
                    return
                order = [None if axis is None else came_from[axis] for axis in order]
            elif node.op_type in _RESHAPES:
                before, after = (self._shapes.get(name, []) for name in (node.input[0], tensor))
                kept = _kept_axes(before, after)
                if not kept:
                    return
                order, rank = [kept.get(axis) for axis in order], len(before)
            elif node.op_type not in _KEEPS_AXES | _ELEMENTWISE:
                return
            source = self._source(node)
            if source is None:
                return
            tensor = source

    def is_plain(self, node: NodeProto) -> bool:
        """Whether a node is a standard one without weights and without a graph of its own."""
        inner = any(item.HasField("g") or item.graphs for item in node.attribute)
        return not inner and node.op_type not in _LAYERS and node.domain in ("", "ai.onnx")

    def _axis_of_layer(self, node: NodeProto, rank: int) -> int | None:
        """The axis of a layer's outputs; None if the node is no layer that is known."""
        if node.op_type in _CONVOLUTIONS:
            return 1
        if node.op_type in _SOFTMAX:
            return int(attribute(node, "axis", -1 if self.opset >= 13 else 1)) % rank
        weight = self._weight(node)
        if weight is None or weight in self._varying or len(self._shapes.get(weight, ())) == 1:
            return None
        return rank - 1

    def _weight(self, node: NodeProto) -> str | None:
        """Name of what a product multiplies by; None if the node is none."""
        place = _PRODUCTS.get(node.op_type)
        return None if place is None else str(node.input[place])

    def _leaves_other_axes(self, node: NodeProto) -> bool:
        """Whether the axes of which a layer makes no outputs are where they were before."""
        weight = self._weight(node)
        if weight is None:
            return node.op_type in _CONVOLUTIONS
        moved = any(attribute(node, name, 0) for name in ("transA", "transBatchA"))
        return len(self._shapes.get(weight, ())) == 2 and not moved

    def _source(self, node: NodeProto) -> str | None:
        """The input whose axes a node hands on; None if that can't be told."""
        if node.op_type not in _ELEMENTWISE:
            return str(node.input[0]) if node.input[0] in self._varying else None
        data = [name for name in node.input if name in self._varying]
        # What has one axis at most has none of the examples: the scale of a quantized layer.
        data = [name for name in data if len(self._shapes.get(name, range(2))) > 1]
        return data[0] if len(data) == 1 else None

    def _may_have_rank(self, tensor: str, rank: int) -> bool:
        """False where it is known to have another: a constant of more axes was added since."""
        return len(self._shapes.get(tensor, range(rank))) == rank

    def varies(self, tensor: str) -> bool:
        """Whether a tensor depends on the model's inputs."""
        return tensor in self._varying

    @cached_property
    def _varying(self) -> set[str]:
        """The tensors that depend on the model's inputs."""
        inputs = {info.name for info in self.model.graph.input}
        return self.reached(*(inputs - set(self.constants)))

    def element_type(self, tensor: str) -> int:
        """Type of a tensor's elements by shape inference; 0 if it can't be told."""
        if tensor in self.constants:
            return int(self.constants[tensor].data_type)
        graph = self._inferred.graph
        for info in (*graph.value_info, *graph.output, *graph.input):
            if info.name == tensor:
                return int(info.type.tensor_type.elem_type)
        return 0

    @cached_property
    def _shapes(self) -> dict[str, list[int]]:
        """Shapes by shape inference, where the number of axes is known; 0 for an open size."""
        found = {name: list(tensor.dims) for name, tensor in self.constants.items()}
        graph = self._inferred.graph
        for info in (*graph.value_info, *graph.output, *graph.input):
            if info.type.tensor_type.HasField("shape"):
                found[info.name] = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        return found

    @cached_property
    def _inferred(self) -> ModelProto:
        return onnx.shape_inference.infer_shapes(self.model)

    def uses(self, tensor: str) -> int:
        """How often a tensor is read, as an output of the model too."""
        reads = [name for node in self.model.graph.node for name in _all_inputs(node)]
        return reads.count(tensor) + self.outputs.count(tensor)

    def bias_of(self, tensor: str, width: int) -> Bias | None:
        """The constant bias of the layer that makes a tensor, if it can simply be replaced."""
        if tensor not in self.producers:
            return None
        index, node = self.producers[tensor]
        factor = float(attribute(node, "beta", 1.0)) if node.op_type == "Gemm" else 1.0
        places = {"Gemm": [2], "Conv": [2], "Add": [1, 0]}.get(node.op_type, [])
        if (
            node.domain not in _STANDARD
            or not factor
            or (node.op_type == "Gemm" and self.opset < 11)
        ):
            return None
        for place in places:
            if place >= len(node.input) or not node.input[place]:
                return Bias(index, place, "", None, factor)
            constant = self.constants.get(node.input[place])
            if constant is None or constant.data_type not in FLOAT_TYPES:
                continue
            if constant.dims and constant.dims[-1] == width == math.prod(constant.dims):
                return Bias(index, place, node.input[place], constant, factor)
        return None

    def layer_of(self, tensor: str, width: int) -> tuple[FloatArray | None, FloatArray | None, str]:
        """Weight (outputs, inputs) and bias of the layer that makes a tensor, and its name."""
        offset = None
        if tensor not in self.producers:
            return None, offset, tensor
        node = self.producers[tensor].node
        place = tensor
        while (bias := self.bias_of(place, width)) is not None and bias.tensor is not None:
            more = self.values(bias.tensor).astype(np.float64).reshape(-1) * bias.factor
            offset = more if offset is None else offset + more
            inner = node.input[1 - bias.place] if node.op_type == "Add" else ""
            if inner not in self.producers:
                break
            place, node = inner, self.producers[inner].node
        weight = self.constants.get(node.input[1]) if len(node.input) > 1 else None
        if weight is None or node.op_type not in ("Gemm", "MatMul", "Conv"):
            return None, offset, node.name or tensor
        rows = self.values(weight).astype(np.float64)
        by_rows = node.op_type == "Conv" or attribute(node, "transB", 0)
        rows = rows if by_rows else np.moveaxis(rows, -1, 0)
        rows = rows * attribute(node, "alpha", 1.0) if node.op_type == "Gemm" else rows
        return (rows if len(rows) == width else None), offset, node.name or tensor


def attribute(node: NodeProto, name: str, default: Any) -> Any:
    """An attribute's value."""
    for item in node.attribute:
        if item.name == name:
            return helper.get_attribute_value(item)
    return default


def _kept_axes(before: list[int], after: list[int]) -> dict[int | None, int]:
    """For the axes that a reshape leaves whole, where they were: same sizes up to either end."""
    kept: dict[int | None, int] = {}
    for axis, sizes in enumerate(zip(before, after, strict=False)):
        if 0 in sizes or sizes[0] != sizes[1]:  # 0: not known
            break
        kept[axis] = axis
    for back, sizes in enumerate(zip(reversed(before), reversed(after), strict=False), 1):
        if 0 in sizes or sizes[0] != sizes[1]:
            break
        kept[len(after) - back] = len(before) - back
    return kept


def _all_inputs(node: NodeProto) -> Iterator[str]:
    """What a node reads, in its subgraphs too."""
    yield from node.input
    for item in node.attribute:
        for graph in (item.g, *item.graphs):
            for inner in graph.node:
                yield from _all_inputs(inner)
