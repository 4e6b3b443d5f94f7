"""Baking an ONNX model: find the scores, change them, run both models, compare, then keep it.

    _onnx_graph   where the scores are
    _onnx_run     running and comparing

A layer's bias takes the adjustment up, and nodes behind the scores where there is none: Add for
logits, and for probabilities

    p' = softmax(log max(p, 2^-126) + a)

which leaves zeros at zero, as `LogitAdjustedClassifier` does. Whatever is computed from the
scores follows; a converted model's label is taken anew from p'. The record is in the metadata.
External data are not changed, only copied beside a file that is written to another folder.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from longtail._checks import FloatArray, InputError, listing
from longtail.bake._change import (
    KEY,
    BakeRecord,
    Change,
    RawTensor,
    refuse_twice,
)
from longtail.bake._onnx_graph import (
    ENDS,
    FLOAT_TYPES,
    LABELS,
    SHOWS,
    SMALLEST_PROB,
    TYPE_OF,
    Graph,
    Target,
    find_targets,
    inputs_of,
    is_mirrored,
    is_softmax,
    settings_of,
)
from longtail.bake._onnx_run import compare, first_run, one_line, run_model
from longtail.runs import files


def load(path: Path) -> ModelProto:
    """Read a model, leaving external data where they are."""
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's own exceptions are not public
        raise InputError(f"{path} is not an ONNX file: {one_line(error)}.") from error
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
    graph = Graph(model, folder)
    unknown = [tensor for tensor in output if tensor not in (*graph.makers, *graph.outputs)]
    if unknown:
        raise InputError(f"{name} has no output {unknown[0]!r}; it has {listing(graph.outputs)}.")
    wanted = list(dict.fromkeys([*output, *graph.outputs]))
    chains = [part for start in wanted for part in graph.chain(start, SHOWS | set(ENDS))]
    extra = [part for part in chains if part in graph.makers]
    feed, before = first_run(graph, inputs, list(dict.fromkeys([*wanted, *extra])), change)
    found = find_targets(graph, before, change, output)
    targets = list({target.tensor: target for target in reversed(found)}.values())
    edit = _Edit(graph)
    applied = {t.tensor: _apply(graph, edit, t, before, change) for t in targets}
    edit.finish()
    names = [*dict.fromkeys([*(target.shown for target in found), *graph.outputs])]
    after = run_model(edit.model, folder, names, feed)
    others = compare(graph, found, applied, before, after)
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


def _apply(
    graph: Graph, edit: _Edit, target: Target, before: Mapping[str, Any], change: Change
) -> tuple[str, FloatArray, FloatArray]:
    """Change the graph; return what was done, and s and c of s·f + c."""
    weight, bias = (None, None) if change.shift is not None else _weights(graph, target)
    if bias is None and change.bias_mode != "scale":
        raise InputError("the bias of the layer can't be told apart; use bias_mode='scale'.")
    scale, offset = change.affine(target.width, lambda: weight, bias)
    if target.way == "classifier":
        node = graph.nodes[target.layer or 0]
        if not is_softmax(node) and is_mirrored(node):
            margin = float(np.diff(offset)[0]) if target.width > 1 else float(offset[0])
            how = edit.shift_classifier(target.layer or 0, np.array([-margin, margin]))
            if target.kind == "logits":  # its scores are −d and d
                offset = np.array([-margin, margin])[-target.width :]
            return how, scale, offset
        return edit.shift_classifier(target.layer or 0, offset), scale, offset
    element = TYPE_OF[np.asarray(before[target.shown]).dtype.name]
    by_class = (-1, *[1] * (np.ndim(before[target.shown]) - 1 - target.axis))
    if target.way == "probs":
        if np.isin(before[target.tensor], (0, 1)).all():
            warnings.warn(
                f"all probabilities {target.tensor!r} are 0 or 1 where they were checked, as of a "
                f"tree with pure leaves, and no adjustment changes such.",
                stacklevel=6,
            )
        edit.probabilities(target.tensor, offset.reshape(by_class), element, target.axis)
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
        vector = RawTensor.of(values.reshape(by_class), FLOAT_TYPES[element])
        inputs = [tensor, edit.constant(vector)]
        tensor = target.tensor if number == len(steps) else edit.fresh()
        edit.insert(behind, operator, inputs, tensor)
    operators = " and ".join(operator for operator, _ in steps)
    return f"by {operators} behind {target.tensor}", scale, offset


def _weights(graph: Graph, target: Target) -> tuple[FloatArray | None, FloatArray | None]:
    """Return weight (outputs, ...) and bias of a target's layer, if they are plain constants."""
    if target.layer is None:
        return None, None
    node, bias = graph.nodes[target.layer], None
    settings = settings_of(node)
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
    graph: Graph, edit: _Edit, target: Target, name: str, before: Mapping[str, Any]
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


def _class_labels(graph: Graph, label: str, width: int) -> NDArray[Any] | None:
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
            if item.name in LABELS and (item.ints or item.strings):
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

    def __init__(self, graph: Graph) -> None:
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
            element = next(key for key, name in FLOAT_TYPES.items() if name == values.dtype)
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
            node.input.append(self.constant(RawTensor.of(offset, FLOAT_TYPES[element])))
            return f"as a new bias of the {label}, which had none"
        old = self._graph.values(given)
        assert old is not None
        constant = self._graph.constants[given]
        new = RawTensor.of(
            old.astype(np.float64) + offset.reshape(old.shape), FLOAT_TYPES[constant.data_type]
        )
        places = [k for k, t in enumerate(self.model.graph.initializer) if t.name == given]
        if places and sum(list(inputs_of(other)).count(given) for other in self._graph.nodes) == 1:
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
        bias = np.array(settings_of(node).get("intercepts", [0.0] * len(offset)), np.float64)
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
        kind = "F32" if half else FLOAT_TYPES[element]
        if half:
            name = self.insert(behind, "Cast", [name], self.fresh(), to=TensorProto.FLOAT)
        least = self.constant(RawTensor.of(np.array(SMALLEST_PROB), kind))
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


def _keep(items: Any, wanted: Any) -> None:
    for place in reversed(range(len(items))):
        if not wanted(items[place]):
            del items[place]


def _digest(model: ModelProto) -> str:
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()


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
