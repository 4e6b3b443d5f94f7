"""Baking an ONNX model: find the scores, change them, run both models, compare, then keep it.

The scores are looked for in one of these places:

    before the Softmax or LogSoftmax, or Sigmoid for two classes, that makes an output
    in the linear layer that makes an output: Gemm, MatMul, Conv, with only reshapes, means or the
        nodes of a quantized layer behind it; also scikit-learn's LinearClassifier without a link
    in the probabilities of a model converted from scikit-learn, LightGBM, XGBoost or CatBoost
    in the tensor that `output` names

A plain bias takes the adjustment up, else Mul and Add nodes behind the scores; probabilities p
become softmax(log max(p, 2^-126) + a), which leaves zeros at zero as `LogitAdjustedClassifier`
does. Whatever is computed from the scores follows; a converted model's label is taken anew.
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
from scipy.special import softmax

from longtail._checks import FloatArray, InputError, listing
from longtail.bake._change import KEY, BakeRecord, Change, close_enough, record_text, refuse_twice
from longtail.posthoc import SMALLEST_PROB
from longtail.runs import files

_DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16"}
_ENDS = {"Softmax", "LogSoftmax", "Sigmoid"}
_LINEAR = {"Gemm", "MatMul", "Conv", "MatMulInteger", "ConvInteger"}
_SAME = {"Identity", "Dropout"}
# Behind a layer these keep its outputs apart, and a constant added to one of them stays the same.
_RESHAPES = _SAME | {"Flatten", "Squeeze", "Unsqueeze", "Reshape", "Transpose"}
_MEANS = {"GlobalAveragePool", "ReduceMean"}
_ROUNDS = {"Cast", "QuantizeLinear", "DequantizeLinear"}
# What converters put between a classifier's scores and the model's outputs.
_SHOWS = _SAME | {"Cast", "ZipMap", "Normalizer", "Reshape", "Slice", "ArrayFeatureExtractor"}
_LABELS = {"classlabels_ints", "classlabels_int64s", "classlabels_strings"}
# Names of all that is put into a graph start so.
_OURS = "longtail_baked_"
# Sizes to try where a dimension other than the first is left open: images, sequences.
_OPEN_SIZES = (32, 64, 224, 8, 1)
_MOST_NUMBERS = 4_000_000


def record_of(model: ModelProto | Path) -> BakeRecord | None:
    """Return the record in the metadata of a model or file."""
    entries = (_load(model) if isinstance(model, Path) else model).metadata_props
    texts = [entry.value for entry in entries if entry.key == KEY]
    return BakeRecord.from_json(texts[0]) if texts else None


def bake_file(
    path: Path, out: Path, change: Change, output: Sequence[str], inputs: Mapping[str, Any] | None
) -> BakeRecord:
    """Write a baked copy of a file; return its record."""
    model = _load(path)
    data = _data_files(model, path.parent)
    baked = bake(model, change, output, inputs, folder=path.parent, name=str(path))
    _write(baked, path.parent, data, out)
    return BakeRecord.from_json(baked.metadata_props[-1].value)


def unbake_file(path: Path, out: Path) -> None:
    """Write a copy as it was before baking."""
    model = _load(path)
    _write(unbake(model, name=str(path)), path.parent, _data_files(model, path.parent), out)


def bake(
    model: ModelProto,
    change: Change,
    output: Sequence[str],
    inputs: Mapping[str, Any] | None,
    *,
    folder: Path = Path(),
    name: str = "the model",
) -> ModelProto:
    """Return a baked copy, compared with the model by running both.

    Args:
        model: the model.
        change: what to bake in.
        output: names of the tensors to adjust; empty for the only one that can be meant.
        inputs: arrays by name; None for random ones.
        folder: where external data lie.
        name: of the model, for messages.
    """
    refuse_twice(record_of(model), name)
    graph = _Graph(model, folder)
    unknown = [tensor for tensor in output if tensor not in graph.makers]
    if unknown:
        raise InputError(f"{name} has no output {unknown[0]!r}; it has {listing(graph.outputs)}.")
    tensors = [t for end in (*output, *graph.outputs) for t in graph.chain(end, _SHOWS | _ENDS)]
    feed, before = _first_run(graph, inputs, tensors, change)
    targets = _find(graph, before, change, output)
    edit = _Edit(graph)
    applied = [_apply(graph, edit, target, before, change) for target in targets]
    edit.finish()
    after = _run(edit.model, folder, [*(t.tensor for t in targets), *graph.outputs], feed)
    also: list[str] = []
    for target, (_, scale, offset) in zip(targets, applied, strict=True):
        also += _compare(graph, target, scale, offset, before, after)
    how = " and ".join(how for how, _, _ in applied)
    if also:
        how += f" (which changes {listing(also)} too, computed from it)"
    where = ", ".join(target.tensor for target in targets)
    text = record_text(change, where=where, how=how, undo=edit.undo)
    edit.model.metadata_props.add(key=KEY, value=text)
    return edit.model


def unbake(model: ModelProto, *, name: str = "the model") -> ModelProto:
    """Return a copy as it was before baking, compared by its digest."""
    record = record_of(model)
    if record is None:
        raise InputError(f"{name} is not baked: it has no record of an adjustment.")
    undo, original = record.undo, ModelProto.FromString(model.SerializeToString())
    graph = original.graph
    _keep(original.metadata_props, lambda entry: entry.key != KEY)
    _keep(graph.node, lambda node: not node.name.startswith(_OURS))
    try:
        for index, (read, made) in undo["ends"].items():
            node = graph.node[int(index)]
            node.input[:], node.output[:] = read, made
        for kind, stored in (("nodes", graph.node), ("initializers", graph.initializer)):
            for index, text in undo[kind].items():
                stored[int(index)].ParseFromString(base64.b64decode(text))
    except IndexError:
        pass  # the digest tells
    if undo["opset"]:
        _keep(original.opset_import, lambda item: item.domain != "")
    if _digest(original) != undo["original"]:
        raise InputError(
            f"{name} was changed after it was baked, so the original can't be given back exactly."
        )
    return original


# --- where the scores are ---------------------------------------------------------------------


class _Graph:
    """A model with its nodes and constants looked up by name.

    Args:
        model: the model.
        folder: where its external data lie.
    """

    def __init__(self, model: ModelProto, folder: Path) -> None:
        self.model, self.folder, self.nodes = model, folder, list(model.graph.node)
        self.makers = {name: k for k, node in enumerate(self.nodes) for name in node.output if name}
        self.constants = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in self.nodes:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self.constants[node.output[0]] = node.attribute[0].t
        self.outputs = [info.name for info in model.graph.output]
        opsets = {item.domain: item.version for item in model.opset_import}
        self.opset = max(opsets.get("", 0), opsets.get("ai.onnx", 0))
        self.converted = "ai.onnx.ml" in opsets

    def maker(self, tensor: str) -> NodeProto | None:
        """Return the standard node that makes a tensor."""
        node = self.nodes[self.makers[tensor]] if tensor in self.makers else None
        return node if node is not None and node.domain in ("", "ai.onnx", "ai.onnx.ml") else None

    def values(self, name: str) -> NDArray[Any] | None:
        """Return a constant, read from its file if it is kept outside."""
        if name not in self.constants:
            return None
        return np.asarray(numpy_helper.to_array(self.constants[name], str(self.folder)))

    def chain(self, tensor: str, operators: set[str]) -> list[str]:
        """Return a tensor and those that it comes from through nodes of these kinds."""
        found = [tensor]
        while (node := self.maker(found[-1])) is not None and node.op_type in operators:
            found.append(node.input[0])
        return [name for name in found if name in self.makers]

    def reached(self, start: Sequence[str]) -> set[str]:
        """Return tensors and all that are computed from them."""
        found, before = set(start), 0
        while len(found) != before:  # tools that append casts leave the nodes out of order
            before = len(found)
            for node in self.nodes:
                if not found.isdisjoint(_reads(node)):
                    found.update(node.output)
        return found


@dataclass(frozen=True)
class _Target:
    """What is to be changed.

    Attributes:
        tensor: the scores.
        axis: of the classes.
        width: number of scores.
        layer: index of the node with the weights, or None.
        bias: index of the node that adds a plain bias and its place among the inputs, or None.
        probs: whether the scores are probabilities.
    """

    tensor: str
    axis: int
    width: int
    layer: int | None = None
    bias: tuple[int, int] | None = None
    probs: bool = False


def _find(
    graph: _Graph, before: Mapping[str, Any], change: Change, output: Sequence[str]
) -> list[_Target]:
    """Return what is to be changed: what `output` names, or the only scores there are."""
    found = {}
    for name in output or graph.outputs:
        target = _target(graph, name, before, change, named=bool(output))
        if target is not None:
            found.setdefault(target.bias or target.tensor, target)
        elif output:
            raise InputError(
                f"{name!r} {_shape_of(before[name])} holds neither logits nor plain probabilities "
                f"of each class; name the scores that it is made of."
            )
    if not found:
        wanted = "" if change.num_classes is None else f" of {change.num_classes} classes"
        sizes = listing(f"{name!r} {_shape_of(before[name])}" for name in graph.outputs)
        raise InputError(
            f"no output is the softmax or the last linear layer{wanted}, or the probabilities of a "
            f"converted classifier; the model has {sizes}. If one of them, or a tensor inside, "
            f"holds the logits, name it with output=... (on the command line: --output)."
        )
    if len(found) > 1 and not output:
        names = listing(repr(target.tensor) for target in found.values())
        raise InputError(
            f"more than one output can be meant: {names}; name one with output=... (on the "
            f"command line: --output), or several."
        )
    return list(found.values())


def _target(
    graph: _Graph, name: str, before: Mapping[str, Any], change: Change, *, named: bool
) -> _Target | None:
    """Return the scores behind an output; None if it is not plain that it has any."""
    end = graph.chain(name, _SAME | {"Cast", "ZipMap"})[-1]
    maker, array = graph.maker(end), np.asarray(before[end])
    if maker is not None and maker.op_type in _ENDS:
        axis = _settings(maker).get("axis", -1 if graph.opset >= 13 else 1) % max(1, array.ndim)
        two = maker.op_type == "Sigmoid" and array.size == len(array)
        # Before opset 13 a softmax runs over all axes from there on.
        if two or (maker.op_type != "Sigmoid" and (graph.opset >= 13 or axis == array.ndim - 1)):
            width = 1 if two else array.shape[axis]
            return _layer(graph, maker.input[0], axis, width) if change.fits(width) else None
        return None
    if graph.converted and change.shift is not None:
        for part in graph.chain(name, _SHOWS):
            rows, node = np.asarray(before[part]), graph.maker(part)
            if rows.ndim == 2 and rows.shape[1] == change.num_classes and _are_probs(rows, 1):
                return _Target(part, 1, rows.shape[1], probs=True)
            if node is not None and _is_margin(node) and rows.shape[1:] == (change.num_classes,):
                return _Target(part, 1, rows.shape[1], graph.makers[part])
    array = np.asarray(before[name])
    axes = [1] if array.ndim == 2 else [k for k in range(1, array.ndim) if change.fits(array.shape[k])]
    maker = graph.maker(name)
    if array.ndim > 2 and maker is not None and maker.op_type in ("Conv", "Gemm", "MatMul"):
        axes = [1 if maker.op_type == "Conv" else array.ndim - 1]
    width = array.shape[axes[0]] if axes else 1
    doubtful = len(axes) != 1 and array.ndim != 1
    if array.dtype.name not in _DTYPES or doubtful or not change.fits(width):
        return None
    target = _layer(graph, name, axes[0] if axes else 0, width)
    if target.layer is not None or not named:
        return target if target.layer is not None else None
    if width > 1 and change.shift is not None and _are_probs(array, target.axis):
        return _Target(name, target.axis, width, probs=True)
    sums = array.sum(target.axis, dtype=np.float64)
    shares = array.min() >= 0 and (array.max() <= 1 or np.ptp(sums) < 1e-3 * sums.mean())
    return None if shares else target


def _layer(graph: _Graph, tensor: str, axis: int, width: int) -> _Target:
    """Return the target of logits, with their layer and its plain bias if it has them."""
    place = tensor = graph.chain(tensor, _SAME)[-1]
    rounded, layer, bias = False, None, None
    # A mean or a part of two logits is no margin.
    moves = _RESHAPES | _ROUNDS | (_MEANS if width > 1 else set())
    while (node := graph.maker(place)) is not None and node.op_type in moves:
        rounded |= node.op_type in _ROUNDS
        place = node.input[0]
    if node is not None and node.op_type in _LINEAR:
        layer = graph.makers[place]
        if node.op_type == "Conv" or (node.op_type == "Gemm" and graph.opset >= 11):
            bias = (layer, 2)
    elif node is not None and node.op_type == "Add":
        for side in (0, 1):
            constant = graph.constants.get(node.input[side])
            inner = graph.chain(node.input[1 - side], {"Cast", "Mul"})[-1:]
            maker = graph.maker(inner[0]) if inner else None
            added = constant is not None and math.prod(constant.dims) == width
            if added and maker is not None and maker.op_type in _LINEAR:
                layer, bias = graph.makers[inner[0]], (graph.makers[place], side)
    if layer is not None and width == 1:
        node = graph.nodes[layer]
        weight = graph.constants.get(node.input[1])
        first = node.op_type.startswith("Conv") or _settings(node).get("transB", 0)
        if weight is None or weight.dims[0 if first else -1] != 1:
            layer = bias = None
    if bias is not None:
        node = graph.nodes[bias[0]]
        given = node.input[bias[1]] if bias[1] < len(node.input) else ""
        constant = graph.constants.get(given)
        plain = constant is not None and math.prod(constant.dims) == width
        if rounded or _settings(node).get("beta", 1.0) != 1 or (given and not plain):
            bias = None
    return _Target(tensor, axis, width, layer, bias)


def _is_margin(node: NodeProto) -> bool:
    """Return whether a node is a linear classifier that gives its plain scores."""
    return node.op_type == "LinearClassifier" and (
        _settings(node).get("post_transform", b"NONE") == b"NONE"
    )


def _are_probs(array: NDArray[Any], axis: int) -> bool:
    rows = array.astype(np.float64) if array.dtype.name in ("float32", "float64") else -np.ones(1)
    # Far likelihoods in float32 are off by more than their rounding.
    return bool(rows.min() >= -1e-6 and np.allclose(rows.sum(axis), 1, atol=1e-2))


# --- changing them ----------------------------------------------------------------------------


def _apply(
    graph: _Graph, edit: _Edit, target: _Target, before: Mapping[str, Any], change: Change
) -> tuple[str, FloatArray, FloatArray]:
    """Change the graph; return what was done, and s and c of s·f + c."""
    weight, bias = (None, None) if change.shift is not None else _weights(graph, target)
    if change.bias_mode != "scale" and bias is None:
        raise InputError("the bias of the layer can't be told apart; use bias_mode='scale'.")
    scale, offset = change.affine(target.width, weight, bias)
    array = np.asarray(before[target.tensor])
    by_class = (-1, *[1] * (max(1, array.ndim) - 1 - target.axis))
    like = array.dtype
    if target.probs:
        _add_to_probs(graph, edit, target, offset.reshape(by_class).astype(like), before)
        how = f"added to the logarithms of the probabilities {target.tensor}"
    elif target.layer is not None and graph.nodes[target.layer].op_type == "LinearClassifier":
        if target.width == 2:  # two margins −d and d
            offset = np.diff(offset) * [-1, 1]
        how = edit.shift_classifier(target.layer, offset)
    elif target.bias is not None and change.shift is not None:
        how = edit.shift_bias(*target.bias, offset, like)
    else:
        steps = [("Mul", scale)] if np.any(scale != 1) else []
        steps += [("Add", offset)] if offset.any() or not steps else []
        behind, tensor = edit.detach(target.tensor)
        for number, (operator, values) in enumerate(steps, 1):
            constant = edit.constant(_finite(values.reshape(by_class), like))
            made = target.tensor if number == len(steps) else None
            tensor = edit.insert(behind, operator, [tensor, constant], made)
        how = f"by {' and '.join(operator for operator, _ in steps)} behind {target.tensor}"
    return how, scale, offset


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
    # If an Add has the bias, there must not be another inside the layer.
    if target.bias is not None and (target.bias[0] == target.layer or len(node.input) < 3):
        holder, place = graph.nodes[target.bias[0]], target.bias[1]
        found = graph.values(holder.input[place]) if place < len(holder.input) else None
        bias = None if found is None else found.astype(np.float64).reshape(-1)
    fits = weight is not None and len(weight) == target.width
    return (weight if fits else None), bias


def _add_to_probs(
    graph: _Graph, edit: _Edit, target: _Target, shift: NDArray[Any], before: Mapping[str, Any]
) -> None:
    """Make p' = softmax(log max(p, 2^-126) + a) of p, and labels of p' where they don't follow."""
    old = np.asarray(before[target.tensor])
    if np.isin(old, (0, 1)).all():
        warnings.warn(
            f"all probabilities {target.tensor!r} are 0 or 1 where they were checked, as of a "
            f"tree with pure leaves, and no adjustment changes such.",
            stacklevel=6,
        )
    behind, name = edit.detach(target.tensor)
    least = edit.constant(np.array(SMALLEST_PROB, old.dtype))
    name = edit.insert(behind, "Max", [name, least])
    name = edit.insert(behind, "Log", [name])
    name = edit.insert(behind, "Add", [name, edit.constant(_finite(shift - shift.max(), old.dtype))])
    edit.insert(behind, "Softmax", [name], target.tensor, axis=target.axis)
    for label in graph.outputs:
        labels = before[label]
        if isinstance(labels, list) or labels.dtype.kind not in "iuOUSb" or labels.size != len(old):
            continue
        if label in graph.reached([target.tensor]):
            continue
        classes = _class_labels(graph, label, target.width)
        if classes is None:
            raise InputError(
                f"the classes that the output {label!r} names can't be told, so it would not "
                f"follow the adjusted probabilities; leave it out of the model."
            )
        if labels.dtype.kind in "OUS":
            stored = helper.make_tensor("", TensorProto.STRING, [len(classes)], classes.tolist())
        else:
            stored = numpy_helper.from_array(classes.astype(labels.dtype))
        edit.detach(label)
        winner = edit.insert(behind, "ArgMax", [target.tensor], axis=1, keepdims=0)
        flat = labels.ndim == 1
        name = edit.insert(behind, "Gather", [edit.constant(stored), winner], label if flat else "")
        if not flat:  # discriminant analysis has its labels as one row
            shape = edit.constant(np.array([1, -1] if labels.shape[0] == 1 else [-1, 1]))
            edit.insert(behind, "Reshape", [name, shape], label)


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
        if node.op_type == "ArrayFeatureExtractor":
            found = graph.values(node.input[0])
        for key, values in _settings(node).items():
            if key in _LABELS and values:
                found = np.array(values, dtype=object)
        if found is not None and np.size(found) == width:
            return np.asarray(found).reshape(-1)
        names += node.input
    return None


class _Edit:
    """A copy of a model under change, complete after `finish`, and what `unbake` needs."""

    def __init__(self, graph: _Graph) -> None:
        self.model = ModelProto.FromString(graph.model.SerializeToString())
        self._graph, self._count = graph, 0
        self._behind: dict[int, list[NodeProto]] = {}
        self.undo: dict[str, Any] = {"ends": {}, "nodes": {}, "initializers": {}, "opset": False}
        self.undo["original"] = _digest(graph.model)

    def insert(
        self, behind: int, operator: str, inputs: list[str], output: str | None = None, **settings: Any
    ) -> str:
        """Put a node behind another one, or with −1 at the front; return its output."""
        self._count += 1
        name = f"{_OURS}{self._count}"
        node = helper.make_node(operator, inputs, [output or name], name=name, **settings)
        self._behind.setdefault(behind, []).append(node)
        return output or name

    def constant(self, values: NDArray[Any] | TensorProto) -> str:
        """Put a constant at the front; a node, since old models have initializers as inputs."""
        if not isinstance(values, TensorProto):
            values = numpy_helper.from_array(values)
        return self.insert(-1, "Constant", [], value=values)

    def _changing(self, number: int) -> NodeProto:
        """Return a node of the copy, after noting what it reads and makes."""
        node: NodeProto = self.model.graph.node[number]
        self.undo["ends"].setdefault(str(number), [list(node.input), list(node.output)])
        return node

    def detach(self, tensor: str) -> tuple[int, str]:
        """Give a tensor's node a new output name, so that another node can make the tensor."""
        number = self._graph.makers[tensor]
        node = self._changing(number)
        self._count += 1
        name = f"{_OURS}{self._count}"
        node.output[list(node.output).index(tensor)] = name
        return number, name

    def shift_bias(self, number: int, place: int, offset: FloatArray, like: Any) -> str:
        """Add to the constant that a layer adds, or give the layer one."""
        node = self._graph.nodes[number]
        label = f"{node.op_type} {node.name or node.output[0]}"
        given = node.input[place] if place < len(node.input) else ""
        if not given:
            node = self._changing(number)
            del node.input[place:]
            node.input.append(self.constant(_finite(offset, like)))
            return f"as a new bias of the {label}, which had none"
        old = self._graph.values(given)
        assert old is not None
        new = numpy_helper.from_array(
            _finite(old.astype(np.float64) + offset.reshape(old.shape), old.dtype), given
        )
        stored = self.model.graph.initializer
        places = [index for index, tensor in enumerate(stored) if tensor.name == given]
        readers = sum(list(_reads(other)).count(given) for other in self._graph.nodes)
        if places and readers == 1:
            index = places[0]
            self.undo["initializers"][str(index)] = _text(stored[index])
            stored[index].CopyFrom(new)
        else:
            self._changing(number).input[place] = self.constant(new)
        return f"added to the bias of the {label}"

    def shift_classifier(self, number: int, offset: FloatArray) -> str:
        """Add to the intercepts of a LinearClassifier."""
        node = self.model.graph.node[number]
        self.undo["nodes"][str(number)] = _text(node)
        bias = np.array(_settings(node).get("intercepts", [0.0] * len(offset)), np.float64)
        kept = [item for item in node.attribute if item.name != "intercepts"]
        new = helper.make_attribute("intercepts", (bias + offset).tolist())
        del node.attribute[:]
        node.attribute.extend([*kept, new])
        return "added to the intercepts of the LinearClassifier"

    def finish(self) -> None:
        """Put the new nodes in."""
        nodes = [*self._behind.get(-1, [])]
        for number, node in enumerate(self.model.graph.node):
            nodes += [NodeProto.FromString(node.SerializeToString()), *self._behind.get(number, [])]
        del self.model.graph.node[:]
        self.model.graph.node.extend(nodes)
        if self._behind and not self._graph.opset:
            self.model.opset_import.append(helper.make_opsetid("", 11))
            self.undo["opset"] = True


# --- running both -----------------------------------------------------------------------------


def _first_run(
    graph: _Graph, inputs: Mapping[str, Any] | None, names: Sequence[str], change: Change
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
    shapes = [
        [size.dim_value if size.dim_value > 0 else open_size for size in kind.shape.dim]
        for kind in (info.type.tensor_type for info in infos)
    ]
    longest = max((math.prod(shape[1:]) for shape in shapes), default=1)
    rows = min(256 if longest <= 10_000 else 16, max(8, _MOST_NUMBERS // (change.num_classes or 1)))
    found = {}
    for info, shape in zip(infos, shapes, strict=True):
        kind = info.type.tensor_type
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
    model: ModelProto, folder: Path, names: Sequence[str], feed: Mapping[str, Any]
) -> dict[str, Any]:
    """Run a model with onnxruntime on the CPU; return the named tensors, outputs or not."""
    names = list(dict.fromkeys(names))
    extended = ModelProto.FromString(model.SerializeToString())
    there = {info.name for info in model.graph.output}
    extended.graph.output.extend(
        helper.make_empty_tensor_value_info(name) for name in names if name not in there
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    key = "session.model_external_initializers_file_folder_path"
    options.add_session_config_entry(key, str(folder.resolve()))
    session = onnxruntime.InferenceSession(
        extended.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return dict(zip(names, session.run(names, dict(feed)), strict=True))


def _compare(
    graph: _Graph,
    target: _Target,
    scale: FloatArray,
    offset: FloatArray,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
) -> list[str]:
    """Refuse scores that are not the adjusted ones; return other outputs that changed with them."""
    old, axis = np.asarray(before[target.tensor], np.float64), target.axis
    new, where = np.asarray(after[target.tensor]), repr(target.tensor)
    shape = [-1] + [1] * (max(1, old.ndim) - 1 - axis)
    scale, offset = scale.reshape(shape), offset.reshape(shape)
    if target.probs:
        wanted = softmax(np.log(np.maximum(old, SMALLEST_PROB)) + offset, axis=axis)
    else:
        wanted = old * scale + offset
    close_enough(new.astype(np.float64), wanted, dtype=_DTYPES[new.dtype.name], where=where)
    starts = [] if target.layer is None else list(graph.nodes[target.layer].output)
    changed, also = graph.reached([target.tensor, *starts]), []
    for name in graph.outputs:
        parts = graph.chain(name, _SHOWS | _ENDS | _RESHAPES)
        values = before[name]
        if isinstance(values, list) or target.tensor in parts:
            continue
        if values.dtype.kind == "f" and name in changed:
            also.append(repr(name))
        elif name not in changed and _is_label(values, old, axis) and not target.probs:
            raise InputError(
                f"the output {name!r} would no longer be the class of the largest score; name the "
                f"scores that it is made of with output=... (on the command line: --output), or "
                f"leave it out of the model."
            )
    return also


def _is_label(values: NDArray[Any], scores: FloatArray, axis: int) -> bool:
    """Return whether values name the class of the largest score, so that they should follow it."""
    rows = np.moveaxis(scores, axis, -1) if scores.ndim else scores.reshape(1, 1)
    if values.dtype.kind not in "iuOUSb" or values.size != rows.size // rows.shape[-1]:
        return False
    winners = rows.argmax(-1) if rows.shape[-1] > 1 else rows[..., 0] > 0
    pairs = set(zip(winners.ravel().tolist(), values.ravel().tolist(), strict=True))
    return len(pairs) == len({winner for winner, _ in pairs}) == len({name for _, name in pairs}) > 1


# --- small things -----------------------------------------------------------------------------


def _load(path: Path) -> ModelProto:
    """Read a model, leaving external data where they are."""
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's own exceptions are not public
        raise InputError(f"{path} is not an ONNX file: {_one_line(error)}.") from error
    if not model.graph.node:
        raise InputError(f"{path} is not an ONNX file: there is no graph in it.")
    return model


def _write(model: ModelProto, source: Path, data: Sequence[Path], out: Path) -> None:
    """Write a model, with its external data where it goes to another folder."""
    for there in data if source.resolve() != out.parent.resolve() else ():
        here = out.parent / there.relative_to(source)
        if not here.exists():
            here.parent.mkdir(parents=True, exist_ok=True)
            with files.atomic_path(here) as temporary:
                shutil.copyfile(there, temporary)
        elif files.sha256(here) != files.sha256(there):
            raise InputError(
                f"{here} exists with other content, but the model needs its data there; write to "
                f"another folder."
            )
    files.write_bytes(out, model.SerializeToString(deterministic=True))


def _data_files(model: ModelProto, folder: Path) -> list[Path]:
    """Return the files beside a model that hold its tensors; refuse any outside its folder."""
    tensors = list(model.graph.initializer)
    tensors += [a.t for node in model.graph.node for a in node.attribute if a.HasField("t")]
    entries = [entry for tensor in tensors for entry in tensor.external_data]
    found = sorted({folder / entry.value for entry in entries if entry.key == "location"})
    for path in found:
        if not path.resolve().is_relative_to(folder.resolve()):
            raise InputError(
                f"the model's data file {path} lies outside its folder; save the model with its "
                f"data beside it."
            )
        if not path.is_file():
            raise InputError(f"the model keeps its weights in {path}, and there is no such file.")
    return found


def _finite(values: FloatArray, dtype: Any) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        rounded = values.astype(dtype)
    if not np.all(np.isfinite(rounded)):
        raise InputError(f"the baked layer would not be finite in {dtype}; tau is too large.")
    return np.ascontiguousarray(rounded)


def _reads(node: NodeProto) -> Iterator[str]:
    """Yield what a node reads, in its subgraphs too."""
    yield from node.input
    for item in node.attribute:
        for graph in (item.g, *item.graphs):
            for inner in graph.node:
                yield from _reads(inner)


def _settings(node: NodeProto) -> dict[str, Any]:
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}


def _shape_of(value: Any) -> str:
    if isinstance(value, list):
        return "(dictionaries)"
    return f"({' x '.join(map(str, np.shape(value)))}, {np.asarray(value).dtype})"


def _text(part: Any) -> str:
    return base64.b64encode(part.SerializeToString(deterministic=True)).decode()


def _keep(items: Any, wanted: Any) -> None:
    for place in reversed(range(len(items))):
        if not wanted(items[place]):
            del items[place]


def _digest(model: ModelProto) -> str:
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300].rstrip(".")
