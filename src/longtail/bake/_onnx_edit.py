"""Changing an ONNX graph so that every change can be taken back.

Nodes are changed in place (inputs, outputs, attributes), initialisers are replaced in place, and
nodes are inserted under names of their own; `Edit` notes what was there, and `undo` puts it back
and compares the digest of the whole model.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from longtail._checks import FloatArray, InputError
from longtail.bake._onnx_graph import FLOAT_TYPES, Bias, Graph, attribute
from longtail.bake._record import KEY
from longtail.bake._tensors import RawTensor

_PREFIX = "longtail_baked"


def copied(model: ModelProto) -> ModelProto:
    """A copy."""
    new = ModelProto()
    new.CopyFrom(model)
    return new


def digest(model: ModelProto) -> str:
    """SHA-256 of the model; external data play no part, since they are not changed."""
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()


class Edit:
    """A copy of a model under change.

    Args:
        graph: the original.

    Attributes:
        model: the changed copy; complete after `finish`.
    """

    def __init__(self, graph: Graph) -> None:
        self.model = copied(graph.model)
        self._graph = graph
        self._nodes: dict[int, dict[str, Any]] = {}
        self._initializers: dict[int, str] = {}
        self._first: list[NodeProto] = []
        self._behind: dict[int, list[NodeProto]] = {}
        self._opset: list[str] = []
        self._taken = {name for node in self.model.graph.node for name in (*node.output, node.name)}
        self._taken |= {tensor.name for tensor in self.model.graph.initializer}
        self._taken |= {info.name for info in self.model.graph.input}

    def node(self, index: int) -> NodeProto:
        """A node to change the inputs or outputs of."""
        found = self.model.graph.node[index]
        before = {"input": list(found.input), "output": list(found.output), "attributes": {}}
        self._nodes.setdefault(index, before)
        return found

    def set_attribute(self, index: int, new: AttributeProto) -> None:
        """Replace or add an attribute of a node."""
        node = self.node(index)
        for item in node.attribute:
            if item.name == new.name:
                self._nodes[index]["attributes"][new.name] = _text(item)
                item.CopyFrom(new)
                return
        self._nodes[index]["attributes"][new.name] = None
        node.attribute.append(new)

    def fresh(self) -> str:
        """A name that nothing has."""
        number = 0
        while f"{_PREFIX}_{number}" in self._taken:
            number += 1
        self._taken.add(f"{_PREFIX}_{number}")
        return f"{_PREFIX}_{number}"

    def constant(self, values: FloatArray, element: int) -> str:
        """A new constant; a node, since old models want initialisers among their inputs."""
        return self._constant(_tensor(values, element))

    def _constant(self, tensor: TensorProto) -> str:
        name = self.fresh()
        self._first.append(helper.make_node("Constant", [], [name], name=name, value=tensor))
        return name

    def add(
        self, behind: int, operator: str, inputs: list[str], output: str, **settings: Any
    ) -> str:
        """Put a standard node behind another."""
        node = helper.make_node(operator, inputs, [output], name=self.fresh(), **settings)
        self._behind.setdefault(behind, []).append(node)
        return output

    def detach(self, tensor: str) -> tuple[int, str]:
        """Give a tensor's producer a new output name, so that new nodes can make the tensor."""
        index, node = self._graph.producers[tensor]
        name = self.fresh()
        self.node(index).output[list(node.output).index(tensor)] = name
        return index, name

    def shift_bias(self, bias: Bias, offset: FloatArray, element: int) -> None:
        """b' = b + c, without touching another use of the same constant."""
        offset = offset / bias.factor
        if bias.tensor is None:
            node, name = self.node(bias.number), self.constant(offset, element)
            while len(node.input) <= bias.place:
                node.input.append("")
            node.input[bias.place] = name
            return
        before = self._graph.values(bias.tensor).astype(np.float64)
        new = _tensor(before + offset.reshape(before.shape), bias.tensor.data_type)
        places = [k for k, t in enumerate(self.model.graph.initializer) if t.name == bias.name]
        if places and self._graph.uses(bias.name) == 1:
            old = self.model.graph.initializer[places[0]]
            self._initializers[places[0]] = _text(old)
            new.name = old.name
            old.CopyFrom(new)
        else:
            self.node(bias.number).input[bias.place] = self._constant(new)

    def affine(self, tensor: str, scale: FloatArray, offset: FloatArray, element: int) -> list[str]:
        """Make s·f + c out of the tensor f, by nodes; the operators used."""
        behind, before = self.detach(tensor)
        steps = [("Mul", scale)] if np.any(scale != 1) else []
        if offset.any() or not steps:
            steps.append(("Add", offset))
        for number, (operator, values) in enumerate(steps, 1):
            after = tensor if number == len(steps) else self.fresh()
            before = self.add(behind, operator, [before, self.constant(values, element)], after)
        return [operator for operator, _ in steps]

    def reweigh(self, tensor: str, shift: FloatArray, element: int, *, axis: int) -> None:
        """p' = p·e^a / Σ p·e^a along an axis, for probabilities without logits."""
        behind, before = self.detach(tensor)
        weights = _tensor(np.exp(shift - shift.max()), element)
        if not np.all(numpy_helper.to_array(weights)):
            raise InputError(
                f"the adjustment would make probabilities 0 in {FLOAT_TYPES[element]}; use a "
                f"smaller tau."
            )
        odds = self.add(behind, "Mul", [before, self._constant(weights)], self.fresh())
        if 0 < self._graph.opset < 13:
            total = self.add(behind, "ReduceSum", [odds], self.fresh(), axes=[axis])
        else:
            axes = self._constant(helper.make_tensor("", TensorProto.INT64, [1], [axis]))
            total = self.add(behind, "ReduceSum", [odds, axes], self.fresh())
        self.add(behind, "Div", [odds, total], tensor)

    def relabel(self, classifier: int, probabilities: str) -> None:
        """Make a classifier's label output that of the largest probability."""
        node = self.model.graph.node[classifier]
        label = node.output[0]
        if not label or not self._graph.uses(label):
            return
        names = ("classlabels_ints", "classlabels_int64s", "classlabels_strings")
        classes = next(found for name in names if (found := attribute(node, name, None)))
        is_text = isinstance(classes[0], bytes)
        kind = TensorProto.STRING if is_text else TensorProto.INT64
        known = self._constant(helper.make_tensor("", kind, [len(classes)], classes))
        self.detach(label)
        maker = self._graph.producers[probabilities].number
        winner = self.add(maker, "ArgMax", [probabilities], self.fresh(), axis=1, keepdims=0)
        self.add(maker, "Gather", [known, winner], label)

    def finish(self) -> dict[str, Any]:
        """Put the new nodes in; what `undo` needs."""
        nodes = [*self._first]
        for index, node in enumerate(self.model.graph.node):
            nodes += [node, *self._behind.get(index, [])]
        added = [*self._first, *(node for group in self._behind.values() for node in group)]
        nodes = [_copy_node(node) for node in nodes]
        del self.model.graph.node[:]
        self.model.graph.node.extend(nodes)
        if added and not self._graph.opset:
            self.model.opset_import.append(helper.make_opsetid("", 13))
            self._opset.append("")
        return {
            "inserted": [node.name for node in added],
            "nodes": {str(index): before for index, before in self._nodes.items()},
            "initializers": {str(index): text for index, text in self._initializers.items()},
            "opsets": self._opset,
            "original": digest(self._graph.model),
        }


def undo(model: ModelProto, notes: Mapping[str, Any], *, name: str, caller: str) -> ModelProto:
    """The model as it was before an edit, given what `finish` noted."""
    original = copied(model)
    graph = original.graph
    for place in reversed(range(len(original.metadata_props))):
        if original.metadata_props[place].key == KEY:
            del original.metadata_props[place]
    for place in reversed(range(len(graph.node))):
        if graph.node[place].name in notes["inserted"]:
            del graph.node[place]
    try:
        for index, before in notes["nodes"].items():
            _restore_node(graph.node[int(index)], before)
        for index, text in notes["initializers"].items():
            graph.initializer[int(index)].ParseFromString(base64.b64decode(text))
    except (IndexError, ValueError):
        pass  # the digest tells
    for domain in notes["opsets"]:
        found = [k for k, item in enumerate(original.opset_import) if item.domain == domain]
        if found:
            del original.opset_import[found[-1]]
    if digest(original) != notes["original"]:
        raise InputError(
            f"{caller}: {name} was changed after it was baked, so the original can't be given "
            f"back exactly."
        )
    return original


def _restore_node(node: NodeProto, before: Mapping[str, Any]) -> None:
    del node.input[:], node.output[:]
    node.input.extend(before["input"])
    node.output.extend(before["output"])
    for name, text in before["attributes"].items():
        for place, item in enumerate(node.attribute):
            if item.name == name:
                if text is None:
                    del node.attribute[place]
                else:
                    item.ParseFromString(base64.b64decode(text))
                break


def _text(message: Any) -> str:
    return base64.b64encode(message.SerializeToString(deterministic=True)).decode()


def _copy_node(node: NodeProto) -> NodeProto:
    new = NodeProto()
    new.CopyFrom(node)
    return new


def _tensor(values: FloatArray, element: int) -> TensorProto:
    raw = RawTensor.of(np.asarray(values, np.float64), FLOAT_TYPES[element])
    if not np.all(np.isfinite(raw.values())):
        raise InputError(f"the adjustment is not finite in {raw.dtype}; use a smaller tau.")
    return TensorProto(data_type=element, dims=values.shape, raw_data=raw.data)
