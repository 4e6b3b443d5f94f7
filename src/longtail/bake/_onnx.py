"""Baking an ONNX model: find the scores, change them, run both models, compare, then keep it.

The scores of a graph are found in one of three places, tried in this order:

    before the Softmax, LogSoftmax or Sigmoid that makes the output
    in the linear layer that makes it: Gemm, MatMul, Conv, with only reshapes or the nodes of a
        quantized layer behind it; also scikit-learn's LinearClassifier
    in the output itself, which holds probabilities: of a model converted from scikit-learn,
        LightGBM, XGBoost or CatBoost, or where `output` names it

A layer's bias takes the adjustment up, and nodes behind the scores where there is none:
Add for logits, and for probabilities

    p' = softmax(log max(p, 2^-126) + a)

which leaves zeros at zero, as `LogitAdjustedClassifier` does. Whatever is computed from the
scores follows; a converted model's label is taken anew from p'. Any other graph is refused
unless `output` names its logits. The record is in the metadata. External data are not changed,
only copied beside a file that is written to another folder.
"""

from __future__ import annotations

import base64
import hashlib
import math
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from longtail._checks import FloatArray, InputError, listing
from longtail.bake._change import (
    KEY,
    BakeRecord,
    Change,
    RawTensor,
    close_enough,
    refuse_twice,
)
from longtail.runs import files

_FLOATS = {
    TensorProto.DOUBLE: "F64",
    TensorProto.FLOAT: "F32",
    TensorProto.FLOAT16: "F16",
    TensorProto.BFLOAT16: "BF16",
}
_TYPES = {"float64": TensorProto.DOUBLE, "float32": TensorProto.FLOAT}
_TYPES |= {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
_ENDS = {"Softmax": "probs", "LogSoftmax": "log_probs", "Sigmoid": "sigmoid"}
_LINEAR = {"Gemm", "MatMul", "Conv", "MatMulInteger", "ConvInteger"}
# Behind a layer these keep its outputs apart, and a constant added to one of them stays the same.
_MOVES = {"Identity", "Dropout", "Flatten", "Squeeze", "Unsqueeze", "Reshape", "Transpose"}
_MOVES |= {"GlobalAveragePool", "ReduceMean", "Gather"}
# These would round a bias that is added before them.
_ROUNDS = {"Cast", "QuantizeLinear", "DequantizeLinear"}
# What converters put between a classifier's scores and the model's outputs.
_SHOWS = {"Identity", "Dropout", "Cast", "ZipMap", "Normalizer", "Reshape", "Slice"}
_SHOWS |= {"ArrayFeatureExtractor"}
_LABELS = ("classlabels_ints", "classlabels_int64s", "classlabels_strings")
# Sizes to try where a dimension other than the first is left open: images, sequences.
_OPEN_SIZES = (32, 64, 224, 8, 1)
_MOST_NUMBERS = 4_000_000
_SMALLEST_PROB = 2.0**-126


@dataclass(frozen=True)
class _Target:
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


class _Graph:
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
                if any(name in found for name in _inputs(node)):
                    found.update(node.output)
        return found

    def chain(self, tensor: str, operators: set[str]) -> list[str]:
        """Return a tensor and those that it comes from through nodes of these kinds."""
        found = [tensor]
        while (node := self.node(found[-1])) is not None and node.op_type in operators:
            found.append(node.input[0])
        return found


def load(path: Path) -> ModelProto:
    """Read a model, leaving external data where they are."""
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's own exceptions are not public
        raise InputError(f"{path} is not an ONNX file: {_one_line(error)}.") from error
    if not model.graph.node:
        raise InputError(f"{path} is not an ONNX file: there is no graph in it.")
    return model


def record_of(model: ModelProto | Path) -> BakeRecord | None:
    """Return the record in the metadata of a model or file."""
    entries = (load(model) if isinstance(model, Path) else model).metadata_props
    texts = [entry.value for entry in entries if entry.key == KEY]
    return BakeRecord.from_json(texts[0]) if texts else None


def bake_file(
    path: Path, out: Path, change: Change, output: Sequence[str], inputs: Mapping[str, Any] | None
) -> None:
    """Write a baked copy of a file."""
    model = load(path)
    data = _data_files(model, path.parent)
    baked = bake(model, change, output, inputs, folder=path.parent, name=str(path))
    _write(baked, path.parent, data, out)


def unbake_file(path: Path, out: Path) -> None:
    """Write a copy as it was before baking."""
    model = load(path)
    data = _data_files(model, path.parent)
    _write(unbake(model, name=str(path)), path.parent, data, out)


def bake(
    model: ModelProto,
    change: Change,
    output: Sequence[str],
    inputs: Mapping[str, Any] | None,
    *,
    folder: Path | None = None,
    name: str = "the model",
) -> ModelProto:
    """Return a baked copy, compared with the model by running both.

    Args:
        model: the model.
        change: what to bake in.
        output: names of the outputs to adjust; empty for the only one that can be meant.
        inputs: arrays by name; None for random ones.
        folder: where external data lie.
        name: of the model, for messages.
    """
    refuse_twice(record_of(model), name)
    graph = _Graph(model, folder)
    unknown = [tensor for tensor in output if tensor not in (*graph.makers, *graph.outputs)]
    if unknown:
        raise InputError(f"{name} has no output {unknown[0]!r}; it has {listing(graph.outputs)}.")
    wanted = list(dict.fromkeys([*output, *graph.outputs]))
    chains = [part for start in wanted for part in graph.chain(start, _SHOWS | set(_ENDS))]
    extra = [part for part in chains if part in graph.makers]
    feed, before = _first_run(graph, inputs, list(dict.fromkeys([*wanted, *extra])), change)
    found = _targets(graph, before, change, output)
    targets = list({target.tensor: target for target in reversed(found)}.values())
    edit = _Edit(graph)
    applied = {t.tensor: _apply(graph, edit, t, before, change) for t in targets}
    edit.finish()
    names = [*dict.fromkeys([*(target.shown for target in found), *graph.outputs])]
    after = _run(edit.model, folder, names, feed)
    others = _compare(graph, found, applied, before, after)
    how = " and ".join(how for how, _, _ in applied.values())
    if others:
        how += f" (which changes {listing(others)} too, computed from it)"
    where = ", ".join(target.tensor for target in targets)
    record = BakeRecord.of(change, where=where, how=how, undo=edit.notes)
    edit.model.metadata_props.add(key=KEY, value=record.to_json())
    return edit.model


def unbake(model: ModelProto, *, name: str = "the model") -> ModelProto:
    """Return a copy as it was before baking, compared by its digest."""
    record = record_of(model)
    if record is None:
        raise InputError(f"{name} is not baked: it has no record of an adjustment.")
    notes, original = record.undo, ModelProto.FromString(model.SerializeToString())
    graph = original.graph
    _keep(original.metadata_props, lambda entry: entry.key != KEY)
    inserted = set(notes["inserted"])
    _keep(graph.node, lambda node: not node.name or node.name not in inserted)
    try:
        for index, names in notes["inputs"].items():
            del graph.node[int(index)].input[:]
            graph.node[int(index)].input.extend(names)
        for index, text in notes["initializers"].items():
            graph.initializer[int(index)].ParseFromString(base64.b64decode(text))
        for index, texts in notes["attributes"].items():
            del graph.node[int(index)].attribute[:]
            for text in texts:
                graph.node[int(index)].attribute.add().ParseFromString(base64.b64decode(text))
    except IndexError:
        pass  # the digest tells
    for node in graph.node:
        for place, tensor in enumerate(node.output):
            node.output[place] = notes["renamed"].get(tensor, tensor)
    if notes["opset"]:
        _keep(original.opset_import, lambda item: item.domain != "")
    if _digest(original) != notes["original"]:
        raise InputError(
            f"{name} was changed after it was baked, so the original can't be given back exactly."
        )
    return original


def _targets(
    graph: _Graph, before: Mapping[str, Any], change: Change, output: Sequence[str]
) -> list[_Target]:
    """Return what is to be changed, and with it other outputs that show the same scores.

    Of several with the same `tensor` the first says how it is changed.
    """
    plain = [_resolve(graph, name, before, change, named=False) for name in graph.outputs]
    # Of logits and their softmax, the softmax tells the axis of the classes.
    found = [target for target in plain if target is not None]
    found.sort(key=lambda target: target.kind == "logits")
    if output:
        named = [_resolve(graph, name, before, change, named=True) for name in output]
        first = [target for target in named if target is not None]
        if len(first) < len(named):
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
    graph: _Graph, name: str, before: Mapping[str, Any], change: Change, *, named: bool
) -> _Target | None:
    """Return where the scores of an output are; None if it is not plain that it has any."""
    chain = graph.chain(name, {"Identity", "Cast", "Dropout", "ZipMap"})
    maker = graph.node(chain[-1])
    if maker is not None and maker.op_type in _ENDS:
        shown, tensor, kind = chain[-1], maker.input[0], _ENDS[maker.op_type]
        array = np.asarray(before[shown])
        axis = _settings(maker).get("axis", -1 if graph.opset >= 13 else 1)
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
    if isinstance(array, list) or np.asarray(array).dtype.name not in _TYPES:
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
            return _Target(name, "probs", "probs", name, place, width)
        if array.max() <= 1 or np.ptp(sums) < 1e-3 * sums.mean():
            raise InputError(
                f"{name!r} holds shares or something rounded, and neither logits nor plain "
                f"probabilities; name the scores that it is made of."
            )
    return target


def _layer(graph: _Graph, tensor: str, kind: str, shown: str, axis: int, width: int) -> _Target:
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
    if bias is not None and not rounded:
        node = graph.nodes[bias[0]]
        given = node.input[bias[1]] if bias[1] < len(node.input) else ""
        constant = graph.constants.get(given)
        beta = _settings(node).get("beta", 1.0)
        if not given or (
            constant is not None and constant.data_type in _FLOATS and beta == 1.0
            and math.prod(constant.dims) == width
        ):  # fmt: skip
            way = "bias"
    return _Target(tensor, way, kind, shown, axis, width, layer, bias)


def _class_axis(graph: _Graph, name: str, shape: Sequence[int], change: Change) -> int | None:
    """Return the axis of the classes among three or more, if there is no doubt about it."""
    node = graph.node(name)
    if node is not None and node.op_type in ("Conv", "Gemm", "MatMul"):
        return 1 if node.op_type == "Conv" else len(shape) - 1
    axes = [k for k in range(1, len(shape)) if change.fits(shape[k])]
    axes = [k for k in axes if shape[k] == change.num_classes] or axes
    return axes[0] if len(axes) == 1 else None


def _converted(
    graph: _Graph, name: str, before: Mapping[str, Any], change: Change
) -> _Target | None:
    """Return the target in a model converted from scikit-learn or a library of trees."""
    if change.shift is None:
        return None
    chain = graph.chain(name, _SHOWS)
    number = graph.makers.get(chain[-1])
    node = None if number is None else graph.nodes[number]
    arrays = {part: before[part] for part in chain if part in graph.makers}
    if node is not None and node.op_type == "LinearClassifier" and chain[-1] == node.output[1]:
        post = _settings(node).get("post_transform", b"NONE")
        kind = {b"SOFTMAX": "probs", b"NONE": "logits"}.get(post)
        kind = "probs" if post == b"LOGISTIC" and _mirrored(node) else kind
        # Its own scores, or one column of them: the margin of two classes.
        shown = next((part for part in chain if np.ndim(arrays[part]) == 2), None)
        if kind is not None and shown is not None:
            width = np.shape(arrays[shown])[1]
            if change.fits(width) and (width > 1 or kind == "logits"):
                return _Target(chain[-1], "classifier", kind, shown, 1, width, number)
    for part, array in arrays.items():
        if np.ndim(array) != 2 or np.asarray(array).dtype.name not in _TYPES:
            continue
        rows = np.asarray(array, np.float64)
        within = rows.min() >= -1e-6 and rows.max() <= 1 + 1e-3
        if (
            rows.shape[1] == change.num_classes
            and within
            and np.allclose(rows.sum(axis=1), 1, atol=1e-2)  # float32 of far likelihoods
        ):
            return _Target(part, "probs", "probs", part, 1, rows.shape[1])
    return None


def _mirrored(classifier: NodeProto) -> bool:
    """Return whether a classifier's two rows are −w and w of one margin."""
    weights = np.array(_settings(classifier).get("coefficients", []), np.float32)
    first, second = np.split(weights, [len(weights) // 2])
    return _num_labels(classifier) == 2 and np.array_equal(first, -second)


def _is_softmax(classifier: NodeProto) -> bool:
    return bool(_settings(classifier).get("post_transform") == b"SOFTMAX")


def _num_labels(classifier: NodeProto) -> int:
    settings = _settings(classifier)
    return max(len(settings.get(name, ())) for name in _LABELS)


def _settings(node: NodeProto) -> dict[str, Any]:
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}


def _apply(
    graph: _Graph, edit: _Edit, target: _Target, before: Mapping[str, Any], change: Change
) -> tuple[str, FloatArray, FloatArray]:
    """Change the graph; return what was done, and s and c of s·f + c."""
    weight, bias = (None, None) if change.shift is not None else _weights(graph, target)
    if bias is None and change.bias_mode != "scale":
        raise InputError("the bias of the layer can't be told apart; use bias_mode='scale'.")
    scale, offset = change.affine(target.width, lambda: weight, bias)
    if target.way == "classifier":
        node = graph.nodes[target.layer or 0]
        if not _is_softmax(node) and _mirrored(node):
            margin = float(np.diff(offset)[0]) if target.width > 1 else float(offset[0])
            how = edit.shift_classifier(target.layer or 0, np.array([-margin, margin]))
            if target.kind == "logits":  # its scores are −d and d
                offset = np.array([-margin, margin])[-target.width :]
            return how, scale, offset
        return edit.shift_classifier(target.layer or 0, offset), scale, offset
    element = _TYPES[np.asarray(before[target.shown]).dtype.name]
    if target.way == "probs":
        if np.isin(before[target.tensor], (0, 1)).all():
            warnings.warn(
                f"all probabilities {target.tensor!r} are 0 or 1 where they were checked, as of a "
                f"tree with pure leaves, and no adjustment changes such.",
                stacklevel=6,
            )
        edit.probabilities(target.tensor, offset, element, target.axis)
        for name in graph.outputs:
            _relabel(graph, edit, target, name, before)
        return f"added to the logarithms of the probabilities {target.tensor}", scale, offset
    if target.way == "bias" and target.bias is not None and change.shift is not None:
        return edit.shift_bias(target.bias, offset, element), scale, offset
    steps = [("Mul", scale)] if np.any(scale != 1) else []
    if offset.any() or not steps:
        steps.append(("Add", offset))
    behind, tensor = edit.detach(target.tensor)
    for number, (operator, values) in enumerate(steps, 1):
        vector = values.reshape(-1, *[1] * (np.ndim(before[target.shown]) - 1 - target.axis))
        inputs = [tensor, edit.constant(RawTensor.of(vector, _FLOATS[element]))]
        tensor = target.tensor if number == len(steps) else edit.fresh()
        edit.insert(behind, operator, inputs, tensor)
    operators = " and ".join(operator for operator, _ in steps)
    return f"by {operators} behind {target.tensor}", scale, offset


def _weights(graph: _Graph, target: _Target) -> tuple[FloatArray | None, FloatArray | None]:
    """Return weight (outputs, ...) and bias of a target's layer, if they are plain constants."""
    if target.layer is None:
        return None, None
    node, bias = graph.nodes[target.layer], None
    settings = _settings(node)
    weight = graph.values(node.input[1]) if node.op_type in ("Gemm", "MatMul", "Conv") else None
    if weight is not None:
        weight = weight.astype(np.float64) * settings.get("alpha", 1.0)
        if node.op_type != "Conv" and not settings.get("transB", 0):
            weight = np.moveaxis(weight, -1, 0)
    if target.bias is not None:
        holder, place = graph.nodes[target.bias[0]], target.bias[1]
        found = graph.values(holder.input[place]) if place < len(holder.input) else None
        if found is not None and found.size == target.width:
            bias = found.astype(np.float64).reshape(-1) * settings.get("beta", 1.0)
        if target.bias[0] != target.layer and len(node.input) > 2:
            bias = None  # there is another inside the layer
    fits = weight is not None and len(weight) == target.width
    return (weight if fits else None), bias


def _relabel(
    graph: _Graph, edit: _Edit, target: _Target, name: str, before: Mapping[str, Any]
) -> None:
    """Take a label output from the new probabilities, if it would not follow them."""
    labels = np.asarray(before[name]) if not isinstance(before[name], list) else np.zeros(0)
    probs = np.asarray(before[target.shown])
    if labels.dtype.kind not in "iuOUSb" or labels.size != len(probs):
        return
    if name in graph.reached(target.tensor) - {target.tensor}:
        return
    classes = _class_labels(graph, name, target.width)
    if classes is None:
        raise InputError(
            f"the classes that the output {name!r} names can't be told, so it would not follow the "
            f"adjusted probabilities; leave it out of the model."
        )
    if labels.dtype.kind in "OUS":
        tensor = helper.make_tensor("", TensorProto.STRING, [len(classes)], classes.tolist())
    else:
        tensor = numpy_helper.from_array(classes.astype(labels.dtype))
    edit.detach(name)
    behind = graph.makers[target.tensor]
    column = labels.ndim == 2 and labels.shape[-1] == 1
    winner = edit.insert(
        behind, "ArgMax", [target.tensor], edit.fresh(), axis=1, keepdims=int(column)
    )
    row = labels.ndim == 2 and not column
    found = edit.fresh() if row else name
    edit.insert(behind, "Gather", [edit.constant(tensor), winner], found)
    if row:  # discriminant analysis has its labels as one row
        shape = edit.constant(numpy_helper.from_array(np.array([1, -1])))
        edit.insert(behind, "Reshape", [found, shape], name)


def _class_labels(graph: _Graph, label: str, width: int) -> NDArray[Any] | None:
    """Return the classes that a converter wrote down behind a label or beside it."""
    names, seen = [label], set[int]()
    while names:
        number = graph.makers.get(names.pop(0))
        if number is None or number in seen:
            continue
        seen.add(number)
        node = graph.nodes[number]
        found: Any = None
        if node.domain == "ai.onnx.ml" and node.op_type == "ArrayFeatureExtractor":
            found = graph.values(node.input[0])
        for item in node.attribute:
            if item.name in _LABELS and (item.ints or item.strings):
                found = np.array(helper.get_attribute_value(item), dtype=object)
        if found is not None and np.size(found) == width:
            return np.asarray(found).reshape(-1)
        names += node.input
    return None


class _Edit:
    """A copy of a model under change, with notes that `unbake` needs.

    Attributes:
        model: the changed copy, complete after `finish`.
        notes: for the record.
    """

    def __init__(self, graph: _Graph) -> None:
        self.model = ModelProto.FromString(graph.model.SerializeToString())
        self._graph, self._count = graph, 0
        self._behind: dict[int, list[NodeProto]] = {}
        self._taken = {*graph.makers, *graph.constants}
        self._taken |= {info.name for info in graph.model.graph.input}
        self._taken |= {node.name for node in graph.nodes}
        self.notes: dict[str, Any] = {
            "inserted": [], "renamed": {}, "inputs": {}, "initializers": {}, "attributes": {},
            "opset": False, "original": _digest(graph.model),
        }  # fmt: skip

    def fresh(self) -> str:
        """Return a name that nothing has."""
        self._count += 1
        name = f"longtail_baked_{self._count}"
        return self.fresh() if name in self._taken else name

    def insert(
        self, behind: int, operator: str, inputs: list[str], output: str, **settings: Any
    ) -> str:
        """Put a node behind another one, or with −1 at the front; return its output."""
        node = helper.make_node(operator, inputs, [output], name=self.fresh(), **settings)
        self._behind.setdefault(behind, []).append(node)
        self.notes["inserted"].append(node.name)
        return output

    def constant(self, values: RawTensor | TensorProto) -> str:
        """Put a constant at the front; a node, since old models have initializers as inputs."""
        if isinstance(values, RawTensor):
            element = next(key for key, name in _FLOATS.items() if name == values.dtype)
            values = TensorProto(data_type=element, dims=values.shape, raw_data=values.data)
        return self.insert(-1, "Constant", [], self.fresh(), value=values)

    def detach(self, tensor: str) -> tuple[int, str]:
        """Give a tensor's node a new output name, so that another node can make the tensor."""
        number = self._graph.makers[tensor]
        node, name = self.model.graph.node[number], self.fresh()
        node.output[list(node.output).index(tensor)] = name
        self.notes["renamed"][name] = tensor
        return number, name

    def shift_bias(self, bias: tuple[int, int], offset: FloatArray, element: int) -> str:
        """Add to the constant that a layer adds, or give the layer one."""
        number, place = bias
        node = self.model.graph.node[number]
        label = f"{node.op_type} {node.name or node.output[0]}"
        given = node.input[place] if place < len(node.input) else ""
        if not given:
            self.notes["inputs"][str(number)] = list(node.input)
            del node.input[place:]
            node.input.append(self.constant(RawTensor.of(offset, _FLOATS[element])))
            return f"as a new bias of the {label}, which had none"
        old = self._graph.values(given)
        assert old is not None
        constant = self._graph.constants[given]
        new = RawTensor.of(
            old.astype(np.float64) + offset.reshape(old.shape), _FLOATS[constant.data_type]
        )
        places = [k for k, t in enumerate(self.model.graph.initializer) if t.name == given]
        if places and sum(list(_inputs(other)).count(given) for other in self._graph.nodes) == 1:
            stored = self.model.graph.initializer[places[0]]
            text = base64.b64encode(stored.SerializeToString(deterministic=True)).decode()
            self.notes["initializers"][str(places[0])] = text
            stored.Clear()
            stored.name, stored.data_type, stored.raw_data = given, constant.data_type, new.data
            stored.dims.extend(new.shape)
        else:
            self.notes["inputs"].setdefault(str(number), list(node.input))
            node.input[place] = self.constant(new)
        return f"added to the bias of the {label}"

    def shift_classifier(self, number: int, offset: FloatArray) -> str:
        """Add to the intercepts of a LinearClassifier."""
        node = self.model.graph.node[number]
        bias = np.array(_settings(node).get("intercepts", [0.0] * len(offset)), np.float64)
        texts = [item.SerializeToString(deterministic=True) for item in node.attribute]
        self.notes["attributes"][str(number)] = [base64.b64encode(t).decode() for t in texts]
        old = [item for item in node.attribute if item.name == "intercepts"]
        new = helper.make_attribute("intercepts", (bias + offset).tolist())
        (old[0] if old else node.attribute.add()).CopyFrom(new)
        return "added to the intercepts of the LinearClassifier"

    def probabilities(self, tensor: str, shift: FloatArray, element: int, axis: int) -> None:
        """Make softmax(log max(p, 2^-126) + a) of the probabilities p."""
        behind, name = self.detach(tensor)
        half = element in (TensorProto.FLOAT16, TensorProto.BFLOAT16)
        kind = "F32" if half else _FLOATS[element]
        if half:
            name = self.insert(behind, "Cast", [name], self.fresh(), to=TensorProto.FLOAT)
        least = self.constant(RawTensor.of(np.array(_SMALLEST_PROB), kind))
        name = self.insert(behind, "Max", [name, least], self.fresh())
        name = self.insert(behind, "Log", [name], self.fresh())
        vector = self.constant(RawTensor.of(shift - shift.max(), kind))
        name = self.insert(behind, "Add", [name, vector], self.fresh())
        end = self.fresh() if half else tensor
        self.insert(behind, "Softmax", [name], end, axis=axis)
        if half:
            self.insert(behind, "Cast", [end], tensor, to=element)

    def finish(self) -> None:
        """Put the new nodes in."""
        nodes = [*self._behind.get(-1, [])]
        for number, node in enumerate(self.model.graph.node):
            nodes += [NodeProto.FromString(node.SerializeToString()), *self._behind.get(number, [])]
        del self.model.graph.node[:]
        self.model.graph.node.extend(nodes)
        if self.notes["inserted"] and not self._graph.opset:
            self.model.opset_import.append(helper.make_opsetid("", 11))
            self.notes["opset"] = True


def _first_run(
    graph: _Graph, inputs: Mapping[str, Any] | None, names: list[str], change: Change
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the model on given or random inputs; return these and the named tensors."""
    reason = ""
    sizes = [size for size in _OPEN_SIZES if size != change.num_classes]
    for size in sizes if inputs is None else sizes[:1]:
        feed = _random_inputs(graph, size, change) if inputs is None else dict(inputs)
        try:
            return feed, _run(graph.model, graph.folder, names, feed)
        except Exception as error:  # onnxruntime's exceptions have no common base of their own
            reason = _one_line(error)
    which = "random inputs, so it could not be checked; pass" if inputs is None else "`inputs`; use"
    raise InputError(
        f"the model can't be run on {which} real ones with inputs=..., arrays by the name of each "
        f"input (on the command line: --inputs FILE.npz): {reason}."
    )


def _random_inputs(graph: _Graph, open_size: int, change: Change) -> dict[str, Any]:
    """Return an array for each input: normal numbers, 0 and 1 for integers, names for texts."""
    random = np.random.default_rng(0)
    infos = [info for info in graph.model.graph.input if info.name not in graph.constants]
    shapes = {}
    for info in infos:
        dims = info.type.tensor_type.shape.dim
        shapes[info.name] = [d.dim_value if d.dim_value > 0 else open_size for d in dims]
    longest = max((math.prod(shape[1:]) for shape in shapes.values()), default=1)
    rows = min(256 if longest <= 10_000 else 16, max(8, _MOST_NUMBERS // (change.num_classes or 1)))
    found = {}
    for info in infos:
        shape, kind = shapes[info.name], info.type.tensor_type
        if shape and kind.shape.dim[0].dim_value <= 0:
            shape[0] = rows
        if kind.elem_type == TensorProto.STRING:
            found[info.name] = np.full(shape, "a", dtype=object)
            continue
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
        whole = dtype.kind in "iub"
        values = random.integers(2, size=shape) if whole else random.normal(size=shape)
        found[info.name] = np.asarray(values).astype(dtype)
    return found


def _run(
    model: ModelProto, folder: Path | None, names: Sequence[str], feed: Mapping[str, Any]
) -> dict[str, Any]:
    """Run a model with onnxruntime on the CPU; return the named tensors, outputs or not."""
    extended = ModelProto.FromString(model.SerializeToString())
    there = {info.name for info in model.graph.output}
    extended.graph.output.extend(
        helper.make_empty_tensor_value_info(name) for name in names if name not in there
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if folder is not None:
        key = "session.model_external_initializers_file_folder_path"
        options.add_session_config_entry(key, str(folder.resolve()))
    session = onnxruntime.InferenceSession(
        extended.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return dict(zip(names, session.run(list(names), dict(feed)), strict=True))


def _compare(
    graph: _Graph,
    targets: Sequence[_Target],
    applied: Mapping[str, tuple[str, FloatArray, FloatArray]],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
) -> list[str]:
    """Refuse outputs that are not what they should be; return others that changed too."""
    changed = set[str]()
    for target in targets:
        old, new = (np.asarray(part[target.shown]) for part in (before, after))
        _, scale, offset = applied[target.tensor]
        wanted, sure = _wanted(target, old.astype(np.float64), scale, offset)
        got, expected = (np.where(sure, part, 0.0) for part in (new.astype(np.float64), wanted))
        dtype = _FLOATS[_TYPES[new.dtype.name]]
        close_enough(got, expected, dtype=dtype, where=repr(target.shown))
        starts = [target.tensor, target.shown]
        starts += [] if target.layer is None else graph.nodes[target.layer].output
        changed |= set().union(*map(graph.reached, starts))
        for name in graph.outputs:
            if not isinstance(after[name], list) and after[name].dtype.kind in "iuOUSb":
                _compare_labels(target, name, before, after, wanted)
    others = []
    for name in graph.outputs:
        old, new = before[name], after[name]
        same = isinstance(old, list) or np.asarray(old).dtype.kind not in "fV"
        shown = {target.shown for target in targets} & set(graph.chain(name, _SHOWS))
        if name in changed:
            others += [] if same or shown else [repr(name)]
        elif not same and not np.allclose(old, new, 1e-4, 1e-6, equal_nan=True):
            raise InputError(f"the output {name!r} changed though it should not have.")
    return others


def _wanted(
    target: _Target, old: FloatArray, scale: FloatArray, offset: FloatArray
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return what a tensor should become, and where float32 held enough of it to say so."""
    everywhere, axis = np.ones_like(old, bool), target.axis
    shape = [-1] + [1] * (old.ndim - 1 - axis)
    scale, offset = scale.reshape(shape), offset.reshape(shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        if target.kind == "sigmoid":
            return 1 / (1 + np.exp(-(np.log(old) - np.log1p(-old)) * scale - offset)), everywhere
        if target.kind == "logits":
            return old * scale + offset, everywhere
        if target.kind == "log_probs":
            return _log_softmax(old * scale + offset, axis), everywhere
        floored = np.log(np.maximum(old, _SMALLEST_PROB))
        wanted = np.exp(_log_softmax(floored * scale + offset, axis))
        if target.way == "probs":
            return wanted, everywhere
        # A softmax that underflowed does not tell what its logits become.
        zeros = np.exp(_log_softmax(np.log(old) * scale + offset, axis))
        agree = np.all(np.abs(wanted - zeros) < 1e-6, axis=axis, keepdims=True)
    return wanted, np.broadcast_to(agree, old.shape)


def _compare_labels(
    target: _Target,
    name: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    wanted: FloatArray,
) -> None:
    """Refuse a label that was that of the largest score and is not any more."""
    old, new = before[name], after[name]
    scores = np.asarray(before[target.shown], np.float64)
    both = [np.moveaxis(part, target.axis, -1) for part in (scores, wanted)]
    if target.width == 1:  # a margin d stands for (0, d), a sigmoid p for (1 − p, p)
        floor = 0.5 if target.kind == "sigmoid" else 0.0
        both = [part.reshape(-1, 1) for part in both]
        both = [np.concatenate([np.full_like(part, floor), part], axis=1) for part in both]
    first, then = (part.reshape(-1, part.shape[-1]) for part in both)
    if np.size(old) != len(first):
        return
    labels = dict(zip(first.argmax(1).tolist(), np.ravel(old).tolist(), strict=True))
    winners, best = then.argmax(1), np.sort(then, axis=1)
    clear = best[:, -1] - best[:, -2] > 1e-3 * (1.0 if target.kind == "probs" else 10.0)
    pairs = zip(first.argmax(1).tolist(), np.ravel(old).tolist(), strict=True)
    if len(labels) < 2 or any(labels[winner] != label for winner, label in pairs):
        return  # something else than the label of the largest score
    given = zip(winners[clear].tolist(), np.ravel(new)[clear].tolist(), strict=True)
    if any(labels.get(winner, label) != label for winner, label in given):
        raise InputError(
            f"the output {name!r} would no longer be the class of the largest score; name the "
            f"scores that it is made of with output=... (on the command line: --output), or "
            f"leave it out of the model."
        )


def _log_softmax(logits: FloatArray, axis: int) -> FloatArray:
    top = logits.max(axis=axis, keepdims=True)
    total = np.log(np.exp(logits - top).sum(axis=axis, keepdims=True))
    return np.asarray(logits - top - total)


def _shape_of(value: Any) -> str:
    if isinstance(value, list):
        return "(dictionaries)"
    return f"({' x '.join(map(str, np.shape(value)))}, {np.asarray(value).dtype})"


def _inputs(node: NodeProto) -> Iterator[str]:
    """Yield what a node reads, in its subgraphs too."""
    yield from node.input
    for item in node.attribute:
        for graph in (item.g, *item.graphs):
            for inner in graph.node:
                yield from _inputs(inner)


def _keep(items: Any, wanted: Any) -> None:
    for place in reversed(range(len(items))):
        if not wanted(items[place]):
            del items[place]


def _digest(model: ModelProto) -> str:
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300].rstrip(".")


def _write(model: ModelProto, source: Path, data: Sequence[Path], out: Path) -> None:
    """Write a model, with its external data where it goes to another folder."""
    if source.resolve() != out.parent.resolve():
        for there in data:
            here = out.parent / there.relative_to(source)
            if here.exists():
                if files.sha256(here) != files.sha256(there):
                    raise InputError(
                        f"{here} exists with other content, but the model needs its data there; "
                        f"write to another folder."
                    )
                continue
            here.parent.mkdir(parents=True, exist_ok=True)
            with files.atomic_path(here) as temporary:
                shutil.copyfile(there, temporary)
    files.write_bytes(out, model.SerializeToString(deterministic=True))


def _data_files(model: ModelProto, folder: Path) -> list[Path]:
    """Return the files beside a model that hold its tensors; refuse any outside its folder."""
    tensors = list(model.graph.initializer)
    tensors += [a.t for node in model.graph.node for a in node.attribute if a.HasField("t")]
    found = set()
    for tensor in tensors:
        for entry in tensor.external_data:
            if entry.key == "location":
                found.add(folder / entry.value)
    for path in sorted(found):
        if not path.resolve().is_relative_to(folder.resolve()):
            raise InputError(
                f"the model's data file {path} lies outside its folder; save the model with its "
                f"data beside it."
            )
        if not path.is_file():
            raise InputError(f"the model keeps its weights in {path}, and there is no such file.")
    return sorted(found)
