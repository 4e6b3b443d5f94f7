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
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx.numpy_helper import from_array, to_array
from scipy.special import softmax

from longtail._checks import FloatArray, InputError, listing
from longtail.bake._layers import DTYPES, KEY, BakeRecord, Change, close_enough
from longtail.posthoc import SMALLEST_PROB
from longtail.runs import files

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
# Names of all that is put into a graph start so, and end in the name that they stand in for.
_OURS, _FOR = "longtail_baked_", "_for_"
# Sizes to try where a dimension other than the first is left open: images, sequences.
_OPEN_SIZES = (32, 64, 224, 8, 1)
_MOST_NUMBERS = 400_000


class Model(NamedTuple):
    """A model, the folder in which its external data lie, and their files' names there."""

    proto: ModelProto
    folder: Path = Path()
    data: Sequence[str] = ()


def load(source: ModelProto | Path) -> Model:
    """Open a model or file, whose data must lie in its folder."""
    if isinstance(source, ModelProto):
        return Model(source)
    try:
        model = onnx.load(str(source), load_external_data=False)
    except Exception as error:  # protobuf's own exceptions are not public
        raise InputError(f"{source} is not an ONNX file: {error}.") from error
    if not model.graph.node:
        raise InputError(f"{source} is not an ONNX file: there is no graph in it.")
    tensors = list(model.graph.initializer)
    tensors += [a.t for node in model.graph.node for a in node.attribute if a.HasField("t")]
    entries = [entry for tensor in tensors for entry in tensor.external_data]
    data = sorted({entry.value for entry in entries if entry.key == "location"})
    for file in (source.parent / name for name in data):
        if not file.resolve().is_relative_to(source.parent.resolve()) or not file.is_file():
            raise InputError(
                f"the model's data file {file} is not there or lies outside its folder; save the "
                f"model with its data beside it."
            )
    return Model(model, source.parent, data)


def save(model: Model, out: Path | None) -> ModelProto | Path:
    """Write a model, with its data where it goes to another folder; without `out` return it."""
    if out is None:
        return model.proto
    for name in model.data:
        there, here = model.folder / name, out.parent / name
        if not here.exists():
            here.parent.mkdir(parents=True, exist_ok=True)
            with files.atomic_path(here) as temporary:
                shutil.copyfile(there, temporary)
        elif not here.samefile(there) and files.sha256(here) != files.sha256(there):
            raise InputError(
                f"{here} exists with other content, but the model needs its data there; write to "
                f"another folder."
            )
    with files.atomic_path(out) as temporary:
        temporary.write_bytes(model.proto.SerializeToString(deterministic=True))
    return out


def record_of(model: Model) -> BakeRecord | None:
    """Return the record in the metadata."""
    texts = [entry.value for entry in model.proto.metadata_props if entry.key == KEY]
    return BakeRecord.from_json(texts[0]) if texts else None


def bake(
    model: Model,
    change: Change,
    *,
    output: Sequence[str] = (),
    inputs: Mapping[str, Any] | None = None,
) -> Model:
    """Return a baked copy, compared with the model by running both."""
    graph = _Graph(model)
    unknown = [tensor for tensor in output if tensor not in graph.index]
    if unknown:
        raise InputError(f"there is no output {unknown[0]!r}; there is {listing(graph.outputs)}.")
    feed = _first_run(graph, inputs, output, change)
    targets = _find(graph, change, output)
    with np.errstate(over="ignore"):  # the comparison finds what is not finite
        applied = [_apply(graph, target, change) for target in targets]
    baked, content = graph.baked, model.proto.SerializeToString(deterministic=True)
    for number in sorted(graph.behind, reverse=True):
        for node in reversed(graph.behind[number]):
            baked.graph.node.insert(number + 1, node)
    graph.undo["original"] = hashlib.sha256(content).hexdigest()
    graph.undo["opset"] = any(graph.behind.values()) and not graph.opset
    if graph.undo["opset"]:
        baked.opset_import.append(helper.make_opsetid("", 11))
    after = _run(baked, model.folder, [target.tensor for target in targets], feed)
    for target, (_, scale, offset) in zip(targets, applied, strict=True):
        pair = target.values, np.asarray(after[target.tensor])
        was, got = (np.moveaxis(part.astype(np.float64), target.axis, -1) for part in pair)
        wanted = was * scale + offset
        if target.probs:
            wanted = softmax(np.log(np.maximum(was, SMALLEST_PROB)) + offset, axis=-1)
        dtype, where = DTYPES[target.values.dtype.name], repr(target.tensor)
        close_enough(got, wanted, dtype=dtype, where=where)
    where, how = ", ".join(t.tensor for t in targets), " and ".join(how for how, *_ in applied)
    text = change.record(where=where, how=how, undo=graph.undo)
    baked.metadata_props.add(key=KEY, value=text)
    return model._replace(proto=baked)


def unbake(model: Model) -> Model:
    """Return a copy as it was before baking, compared by its digest."""
    record = record_of(model)
    assert record is not None
    undo, original = record.undo, ModelProto.FromString(model.proto.SerializeToString())
    graph = original.graph
    _keep(original.metadata_props, lambda entry: entry.key != KEY)
    _keep(graph.node, lambda node: not node.name.startswith(_OURS))
    if undo["opset"]:
        _keep(original.opset_import, lambda item: item.domain != "")
    for node in graph.node:
        for names in (node.input, node.output):
            own = [name for name in names if not name.startswith(_OURS) or _FOR in name]
            names[:] = [n.partition(_FOR)[2] if n.startswith(_OURS) else n for n in own]
    for kind, stored in (("nodes", graph.node), ("initializers", graph.initializer)):
        for index, text in undo[kind].items():
            if int(index) < len(stored):  # else the digest tells
                stored[int(index)].ParseFromString(base64.b64decode(text))
    content = original.SerializeToString(deterministic=True)
    if hashlib.sha256(content).hexdigest() != undo["original"]:
        raise InputError(
            "the model was changed after it was baked, so the original can't be given back exactly."
        )
    return model._replace(proto=original)


class _Graph:
    """A model, its nodes, constants and values of its first run by name; and a copy to change."""

    def __init__(self, source: Model) -> None:
        model, self.folder, _ = source
        self.model = model
        self.nodes = list(model.graph.node)
        self.index = {name: k for k, node in enumerate(self.nodes) for name in node.output if name}
        made = {name: self.nodes[k] for name, k in self.index.items()}
        self.makers = defaultdict(NodeProto, made)  # an input is made by a node without a type
        self.constants = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in self.nodes:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self.constants[node.output[0]] = node.attribute[0].t
        self.sizes = {name: math.prod(tensor.dims) for name, tensor in self.constants.items()}
        self.outputs = [info.name for info in model.graph.output]
        opsets = {item.domain: item.version for item in model.opset_import}
        self.opset = max(opsets.get("", 0), opsets.get("ai.onnx", 0))
        self.converted = "ai.onnx.ml" in opsets  # by scikit-learn's converters and their kind
        self.values: dict[str, Any] = {}
        self.baked = ModelProto.FromString(model.SerializeToString())
        # New nodes of the copy, by the node that they stand behind; -1 is the front.
        self.behind: dict[int, list[NodeProto]] = defaultdict(list)
        # What `unbake` needs beside the names: nodes and initializers as they were, by index.
        self.undo: dict[str, Any] = {"nodes": {}, "initializers": {}}
        self.count = 0

    def array(self, constant: str) -> NDArray[Any]:
        """Return a constant."""
        return np.asarray(to_array(self.constants[constant], str(self.folder)))

    def chain(self, tensor: str, operators: set[str]) -> list[str]:
        """Return a tensor and those that it comes from through nodes of these kinds."""
        found = [tensor]
        while self.makers[found[-1]].op_type in operators:
            found.append(self.makers[found[-1]].input[0])
        return [name for name in found if name in self.index]

    def reached(self, start: str) -> set[str]:
        """Return a tensor and all that are computed from it."""
        found, more = set[str](), {start}
        while more:
            found |= more
            readers = (node for node in self.nodes if not more.isdisjoint(node.input))
            more = {name for node in readers for name in node.output} - found
        return found

    def name(self, instead: str | None = None) -> str:
        """Return a new name, of something that stands in for `instead`."""
        self.count += 1
        return f"{_OURS}{self.count}" + ("" if instead is None else _FOR + instead)

    def insert(
        self, behind: int, operator: str, inputs: list[str], output: str = "", **settings: Any
    ) -> str:
        """Put a node behind another one (at the front: -1); return its output."""
        name = self.name()
        node = helper.make_node(operator, inputs, [output or name], name=name, **settings)
        self.behind[behind].append(node)
        return output or name

    def constant(self, values: NDArray[Any] | TensorProto, output: str = "") -> str:
        """Put a constant at the front; a node, since old models have initializers as inputs."""
        stored = values if isinstance(values, TensorProto) else from_array(values)
        return self.insert(-1, "Constant", [], output, value=stored)

    def detach(self, tensor: str) -> tuple[int, str]:
        """Give a tensor's node a new output name, so that another node can make the tensor."""
        number, name = self.index[tensor], self.name(tensor)
        output = self.baked.graph.node[number].output
        output[list(output).index(tensor)] = name
        return number, name


@dataclass(frozen=True)
class _Target:
    """The scores that are to be changed."""

    tensor: str
    values: NDArray[Any]
    axis: int  # of the classes
    width: int  # number of scores
    layer: int | None = None  # index of the node with the weights
    bias: tuple[int, int] | None = None  # index of the node that adds a plain bias, and which input
    probs: bool = False  # not logits

    def by_class(self, vector: FloatArray) -> FloatArray:
        """Return numbers per class, shaped to be broadcast over the scores."""
        return vector.reshape(-1, *[1] * (self.values.ndim - 1 - self.axis))


def _find(graph: _Graph, change: Change, output: Sequence[str]) -> list[_Target]:
    """Return what is to be changed: what `output` names, or the only scores there are."""
    found = dict[Any, _Target]()
    for name in output or graph.outputs:
        target = _target(graph, name, change, named=bool(output))
        if target is not None:
            found.setdefault(target.bias or target.tensor, target)
        elif output:
            raise InputError(
                f"{name!r} holds neither logits nor plain probabilities, one per class; name the "
                f"scores that it is made of."
            )
    if len(found) != 1 and not output:
        wanted = "" if change.num_classes is None else f" of {change.num_classes} classes"
        shapes = (f"{name!r} {np.shape(graph.values[name])}" for name in graph.outputs)
        raise InputError(
            f"{'more than one' if found else 'no'} output is the softmax or the last linear layer"
            f"{wanted}, or the probabilities of a converted classifier; the model has "
            f"{listing(shapes)}. If one of them, or a tensor inside, holds the logits, name it, or "
            f"several, with `output=`."
        )
    return list(found.values())


def _target(graph: _Graph, name: str, change: Change, *, named: bool) -> _Target | None:
    """Return the scores behind an output; None if it is not plain that it has any."""
    if name not in graph.index:  # an input that is given back
        return None
    end = graph.chain(name, _SAME | {"Cast", "ZipMap"})[-1]
    maker, array = graph.makers[end], np.asarray(graph.values[end])
    two = maker.op_type == "Sigmoid" and array.ndim > 0 and array.size == len(array)
    if two or maker.op_type in ("Softmax", "LogSoftmax"):
        axis = _settings(maker).get("axis", -1 if graph.opset >= 13 else 1) % array.ndim
        width = 1 if two else array.shape[axis]
        # Before opset 13 a softmax runs over all axes from there on.
        plain = change.fits(width) and (graph.opset >= 13 or axis == array.ndim - 1)
        plain = plain and bool(graph.chain(maker.input[0], _SAME))  # not of an input
        return _logits(graph, maker.input[0], axis, width) if plain else None
    if graph.converted and change.shift is not None:
        for part in graph.chain(name, _SHOWS):
            rows, maker = np.asarray(graph.values[part]), graph.makers[part]
            if rows.ndim == 2 and rows.shape[1] == change.num_classes:
                if _are_probs(rows, 1):
                    return _Target(part, rows, 1, rows.shape[1], probs=True)
                post = _settings(maker).get("post_transform", b"NONE")
                if maker.op_type == "LinearClassifier" and post == b"NONE":
                    return _Target(part, rows, 1, rows.shape[1], graph.index[part])
    array, maker = np.asarray(graph.values[name]), graph.makers[name]
    axes = [k for k in range(1, array.ndim) if change.fits(array.shape[k])]
    if maker.op_type in ("Conv", "Gemm", "MatMul"):
        axes = [1 if maker.op_type == "Conv" else array.ndim - 1]
    if array.dtype.name not in DTYPES or (len(axes) != 1 and array.ndim != 1):
        return None
    axis, width = (axes[0], array.shape[axes[0]]) if axes else (0, 1)
    target = _logits(graph, name, axis, width)
    if not change.fits(width) or (target.layer is None and not named):
        return None
    if target.layer is None and width > 1:
        if change.shift is not None and _are_probs(array, target.axis):
            return replace(target, probs=True)
        sums = array.sum(target.axis, dtype=np.float64)
        if array.min() >= 0 and (array.max() <= 1 or np.ptp(sums) < 1e-3 * sums.mean()):
            return None  # sigmoids, shares, percentages
    return target


def _logits(graph: _Graph, tensor: str, axis: int, width: int) -> _Target:
    """Return the target of logits, with their layer and its plain bias if it has them."""
    tensor = graph.chain(tensor, _SAME)[-1]
    # A mean or a part of two logits is no margin.
    behind = graph.chain(tensor, _RESHAPES | _ROUNDS | (_MEANS if width > 1 else set()))
    number, node = graph.index[behind[-1]], graph.makers[behind[-1]]
    layer, bias = None, None
    if node.op_type in _LINEAR:
        layer, given = number, "".join(node.input[2:3])
        takes = node.op_type == "Conv" or (node.op_type == "Gemm" and graph.opset >= 11)
        if takes and _settings(node).get("beta", 1.0) == 1:
            bias = (number, 2) if not given or graph.sizes.get(given) == width else None
    elif node.op_type == "Add":
        for side in (0, 1):
            added = graph.sizes.get(node.input[side]) == width
            inner = graph.chain(node.input[1 - side], {"Cast", "Mul"})[-1:]
            if added and inner and graph.makers[inner[0]].op_type in _LINEAR:
                layer, bias = graph.index[inner[0]], (number, side)
    if any(graph.makers[name].op_type in _ROUNDS for name in behind):
        bias = None
    return _Target(tensor, np.asarray(graph.values[tensor]), axis, width, layer, bias)


def _are_probs(array: NDArray[Any], axis: int) -> bool:
    if array.dtype.name not in ("float32", "float64"):
        return False
    # Far likelihoods in float32 are off by more than their rounding.
    sums = array.sum(axis, dtype=np.float64)
    return bool(array.min() >= -1e-6 and np.allclose(sums, 1, atol=1e-2))


def _apply(graph: _Graph, target: _Target, change: Change) -> tuple[str, FloatArray, FloatArray]:
    """Change the model; return what was done, and s and c of s·f + c."""
    weight, bias = (None, None) if change.shift is not None else _weights(graph, target)
    if change.bias_mode != "scale" and bias is None:
        raise InputError("the bias of the layer can't be told apart; use bias_mode='scale'.")
    scale, offset = change.affine(target.width, weight, bias)
    if target.probs:
        _add_to_probs(graph, target, offset)
        how = f"added to the logarithms of the probabilities {target.tensor}"
    elif target.layer is not None and graph.nodes[target.layer].op_type == "LinearClassifier":
        if target.width == 2:  # two margins, -d and d
            offset = np.diff(offset) * [-1, 1]
        node = graph.baked.graph.node[target.layer]
        content = node.SerializeToString(deterministic=True)
        graph.undo["nodes"][target.layer] = base64.b64encode(content).decode()
        intercepts = np.array(_settings(node).get("intercepts", 0.0)) + offset
        _keep(node.attribute, lambda item: item.name != "intercepts")
        node.attribute.append(helper.make_attribute("intercepts", intercepts.tolist()))
        how = "added to the intercepts of the LinearClassifier"
    elif target.bias is not None and change.shift is not None:
        _refuse_labels(graph, target, graph.nodes[target.bias[0]].output[0])
        how = _add_to_bias(graph, *target.bias, offset, target.values.dtype)
    else:
        _refuse_labels(graph, target, target.tensor)
        steps = [("Mul", scale)] if np.any(scale != 1) else []
        steps += [("Add", offset)] if offset.any() or not steps else []
        behind, name = graph.detach(target.tensor)
        for operator, values in steps:
            constant = graph.constant(target.by_class(values).astype(target.values.dtype))
            made = target.tensor if operator == steps[-1][0] else ""
            name = graph.insert(behind, operator, [name, constant], made)
        how = f"by {' and '.join(step for step, _ in steps)} behind {target.tensor}"
    return how, scale, offset


def _add_to_bias(graph: _Graph, number: int, place: int, offset: FloatArray, dtype: Any) -> str:
    """Add to the constant that a layer adds, or give the layer one; return what was done."""
    node, stored = graph.baked.graph.node[number], graph.baked.graph.initializer
    label = f"{node.op_type} {node.name or node.output[0]}"
    given = node.input[place] if place < len(node.input) else ""
    if not given:
        name = graph.name("") if place < len(node.input) else graph.name()
        node.input[:] = [*node.input[:place], graph.constant(offset.astype(dtype), name)]
        return f"as a new bias of the {label}, which had none"
    old = graph.array(given)
    new = (old.astype(np.float64) + offset.reshape(old.shape)).astype(old.dtype)
    index = {tensor.name: k for k, tensor in enumerate(stored)}.get(given)
    readers = sum(list(other.input).count(given) for other in graph.nodes)
    if index is not None and readers == 1:
        content = stored[index].SerializeToString(deterministic=True)
        graph.undo["initializers"][index] = base64.b64encode(content).decode()
        stored[index].CopyFrom(from_array(new, given))
    else:
        node.input[place] = graph.constant(new, graph.name(given))
    return f"added to the bias of the {label}"


def _refuse_labels(graph: _Graph, target: _Target, start: str) -> None:
    """Refuse an output that names the class of the largest score, and would not any more."""
    if len(graph.outputs) == 1:
        return
    rows = np.moveaxis(target.values, target.axis, -1)
    winners = rows.argmax(-1).ravel() if target.width > 1 else (rows > 0).ravel()
    for name in set(graph.outputs) - graph.reached(start):
        found = np.asarray(graph.values[name])
        if found.dtype.kind in "iub" and np.array_equal(found.ravel(), winners):
            raise InputError(
                f"the output {name!r} would no longer be the class of the largest score; name the "
                f"scores that it is made of with `output=`, or leave it out of the model."
            )


def _weights(graph: _Graph, target: _Target) -> tuple[FloatArray | None, FloatArray | None]:
    """Return weight (outputs, ...) and bias of a target's layer, if they are plain constants."""
    weight = bias = None
    if target.layer is None:
        return None, None
    node = graph.nodes[target.layer]
    settings = _settings(node)
    if node.op_type in ("Gemm", "MatMul", "Conv") and node.input[1] in graph.constants:
        weight = graph.array(node.input[1]).astype(np.float64) * settings.get("alpha", 1.0)
        if node.op_type != "Conv" and not settings.get("transB", 0):
            weight = np.moveaxis(weight, -1, 0)
        weight = weight if len(weight) == target.width else None
    # If an Add has the bias, there must not be another inside the layer.
    if target.bias is not None and (target.bias[0] == target.layer or len(node.input) < 3):
        given = graph.nodes[target.bias[0]].input[target.bias[1] :][:1]
        bias = graph.array(given[0]).astype(np.float64).reshape(-1) if given else None
    return weight, bias


def _add_to_probs(graph: _Graph, target: _Target, shift: FloatArray) -> None:
    """Make p' = softmax(log max(p, 2^-126) + a) of p, and labels of p' where they don't follow."""
    old = target.values
    if np.isin(old, (0, 1)).all():
        warnings.warn(
            f"all probabilities {target.tensor!r} are 0 or 1 where they were checked, as of a "
            f"tree with pure leaves, and no adjustment changes such.",
            stacklevel=6,
        )
    behind, name = graph.detach(target.tensor)
    least = graph.constant(np.array(SMALLEST_PROB, old.dtype))
    vector = graph.constant(target.by_class(shift - shift.max()).astype(old.dtype))
    name = graph.insert(behind, "Max", [name, least])
    name = graph.insert(behind, "Log", [name])
    name = graph.insert(behind, "Add", [name, vector])
    graph.insert(behind, "Softmax", [name], target.tensor, axis=target.axis)
    follow = graph.reached(target.tensor)
    for label in graph.outputs:
        values = np.asarray(graph.values[label])
        if label in follow or values.dtype.kind == "f" or isinstance(values.flat[0], dict):
            continue
        classes = _class_labels(graph, label, target.width)
        if classes is None or values.size != len(old):
            raise InputError(
                f"the classes that the output {label!r} names can't be told, so it would not "
                f"follow the adjusted probabilities; leave it out of the model."
            )
        if values.dtype.kind in "OUS":
            stored = helper.make_tensor("", TensorProto.STRING, [len(classes)], classes.tolist())
        else:
            stored = from_array(classes.astype(values.dtype))
        graph.detach(label)
        winner = graph.insert(behind, "ArgMax", [target.tensor], axis=1, keepdims=0)
        flat = values.ndim == 1
        name = graph.insert(behind, "Gather", [graph.constant(stored), winner], label * flat)
        if not flat:  # discriminant analysis has its labels as one row
            shape = (1, -1) if values.shape[0] == 1 else (-1, 1)
            graph.insert(behind, "Reshape", [name, graph.constant(np.array(shape))], label)


def _class_labels(graph: _Graph, label: str, width: int) -> NDArray[Any] | None:
    """Return the classes that a converter wrote down behind a label or beside it."""
    names = [label]
    for name in names:  # which grow on the way
        node = graph.makers[name]
        written = [values for key, values in _settings(node).items() if key in _LABELS and values]
        if node.op_type == "ArrayFeatureExtractor" and node.input[0] in graph.constants:
            written.append(graph.array(node.input[0]))
        for values in written:
            if np.size(values) == width:
                return np.array(values, dtype=object).reshape(-1)
        names += [source for source in node.input if source not in names]
    return None


def _first_run(
    graph: _Graph, inputs: Mapping[str, Any] | None, output: Sequence[str], change: Change
) -> Mapping[str, Any]:
    """Run the model on given or random inputs; return these and keep the values of its tensors."""
    ends = [*output, *graph.outputs]
    names = [name for end in ends for name in graph.chain(end, _SHOWS | _ENDS)] + graph.outputs
    sizes, reason = [size for size in _OPEN_SIZES if size != change.num_classes], ""
    random = (_random_inputs(graph, size, change.num_classes or 1) for size in sizes)
    for feed in random if inputs is None else [inputs]:
        try:
            graph.values = _run(graph.model, graph.folder, names, feed)
        except Exception as error:  # onnxruntime's exceptions have no common base of their own
            reason = " ".join(str(error).split())[:300].rstrip(".")
        else:
            return feed
    which = "random inputs, so it could not be checked; pass" if inputs is None else "`inputs`; use"
    raise InputError(
        f"the model can't be run on {which} real `inputs=`, arrays by the name of each: {reason}."
    )


def _random_inputs(graph: _Graph, size: int, width: int) -> dict[str, Any]:
    """Return normal numbers, 0 and 1 for integers, a name for texts; open axes get `size`."""
    random, feed = np.random.default_rng(0), {}
    for info in graph.model.graph.input:
        if info.name in graph.constants:  # as old models list them
            continue
        kind = info.type.tensor_type
        dims = [dim.dim_value for dim in kind.shape.dim]
        shape = [dim or size for dim in dims]
        if dims and not dims[0]:
            each = max(math.prod(shape[1:]), width // 10)
            shape[0] = min(256, max(8, _MOST_NUMBERS // each))
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
        if dtype.kind == "O":
            feed[info.name] = np.full(shape, "a", dtype=object)
        elif dtype.kind in "iub":
            feed[info.name] = np.asarray(random.integers(2, size=shape)).astype(dtype)
        else:
            feed[info.name] = np.asarray(random.normal(size=shape)).astype(dtype)
    return feed


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


def _settings(node: NodeProto) -> dict[str, Any]:
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}


def _keep(items: Any, wanted: Any) -> None:
    for place in reversed(range(len(items))):
        if not wanted(items[place]):
            del items[place]
