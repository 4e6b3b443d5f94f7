"""Baking an ONNX model: find the logits, change them, run both models, compare, then keep it.

    _onnx_graph   reading a graph
    _onnx_target  what is to be changed
    _onnx_shown   outputs that show it in another form
    _onnx_edit    changing a graph, and taking it back
    _onnx_run     running a model

The record is in the model's metadata. External data files are not changed, only copied beside a
file that is written elsewhere.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from longtail import _checks
from longtail._checks import FloatArray, InputError
from longtail.bake._change import Affine, Change
from longtail.bake._layer import close_enough
from longtail.bake._onnx_edit import Edit, copied, undo
from longtail.bake._onnx_graph import FLOAT_TYPES, Graph, Producer, attribute
from longtail.bake._onnx_run import Arrays, Runner, scores
from longtail.bake._onnx_target import Target, alternatives, find_target, one_per_row
from longtail.bake._record import KEY, BakeRecord, refuse_twice, require_record
from longtail.bake._tensors import EPS
from longtail.runs import files

_ELEMENTS = {
    "float64": TensorProto.DOUBLE,
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
}
_ROWS = 100_000  # so many pixels show whether labels are those of the largest score
_NAMES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def load(path: Path, *, caller: str) -> ModelProto:
    """The model of a file, external data left where they are."""
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's own exceptions are not public
        reason = " ".join(str(error).split())
        raise InputError(f"{caller}: {path} is not an ONNX file: {reason}.") from error
    if not model.graph.node:
        raise InputError(f"{caller}: {path} is not an ONNX file: there is no graph in it.")
    return model


def bake_file(path: Path, out: Path, change: Change, **settings: Any) -> None:
    """Write a baked copy of a file."""
    model = load(path, caller=change.caller)
    _data_files(model, path.parent, caller=change.caller)
    baked = bake(model, change, folder=path.parent, name=str(path), **settings)
    _write(baked, path.parent, out, caller=change.caller)


def unbake_file(path: Path, out: Path, *, caller: str) -> None:
    """Write a copy as it was before baking."""
    model = load(path, caller=caller)
    _write(unbake(model, name=str(path), caller=caller), path.parent, out, caller=caller)


def record_of(model: ModelProto, *, caller: str) -> BakeRecord | None:
    """What was baked into a model, or None."""
    for entry in model.metadata_props:
        if entry.key == KEY:
            return BakeRecord.from_json(entry.value, caller=caller)
    return None


def unbake(model: ModelProto, *, name: str, caller: str) -> ModelProto:
    """A copy as it was before baking."""
    record = require_record(record_of(model, caller=caller), name=name, caller=caller)
    return undo(model, record.undo, name=name, caller=caller)


def bake(
    model: ModelProto,
    change: Change,
    *,
    output: str | None,
    inputs: Mapping[str, Any] | None,
    layer: str | None = None,
    folder: Path | None = None,
    name: str = "the model",
) -> ModelProto:
    """A baked copy, checked by running both."""
    caller = change.caller
    if layer is not None:
        raise InputError(
            f"{caller}: `layer` is for torch modules and state dicts; in an ONNX model name the "
            f"output with output=... (on the command line: --output)."
        )
    refuse_twice(record_of(model, caller=caller), name=name, caller=caller)
    graph = Graph(model, folder)
    runner = Runner(model, folder, inputs, num_classes=change.num_classes, caller=caller)
    outputs = runner.run(model, graph.outputs)
    target = find_target(graph, outputs, runner, change, output)
    for candidate in alternatives(graph, target, outputs):
        try:
            return _edited(graph, candidate, runner, outputs, change)
        except InputError as error:
            last = error
    raise last


def _edited(
    graph: Graph, target: Target, runner: Runner, outputs: Arrays, change: Change
) -> ModelProto:
    """A copy with the target changed, checked, and with its record."""
    edit = Edit(graph)
    affine, how = _apply(graph, edit, target, change)
    others = _computed_from(graph, target, outputs)
    if others:
        how += f" (which changes {_checks.listing(map(repr, others))} too, computed from it)"
    notes = edit.finish()
    _Check(graph, edit.model, runner, target, affine, change).outputs(outputs)
    record = BakeRecord.of(change, where=target.tensor, how=how, undo=notes)
    entry = edit.model.metadata_props.add()
    entry.key, entry.value = KEY, record.to_json()
    return edit.model


def _computed_from(graph: Graph, target: Target, outputs: Arrays) -> list[str]:
    """Outputs that are neither scores nor label but change with them: a margin, another head."""
    start = target.source or target.tensor
    scored = {name for name in graph.outputs if graph.trace(name).tensor in (target.tensor, start)}
    if not scored:  # a converter's nodes stand between: what is computed from it are the scores
        return []
    others = [name for name in graph.outputs if name in graph.downstream(start) - scored]
    return [name for name in others if not one_per_row(outputs[name])]


def _apply(graph: Graph, edit: Edit, target: Target, change: Change) -> tuple[Affine, str]:
    """Change the graph; s and c of the target's scores, and what was done, in words."""
    tensor, width = target.tensor, target.width
    element = _ELEMENTS[target.dtype]
    maker = graph.producers[tensor].node
    if target.way == "classifier" and target.classifier is not None:
        return _apply_to_classifier(edit, target, target.classifier, change)
    weight, bias, layer = graph.layer_of(tensor, width)
    affine = _affine(target, change, weight, bias)
    if target.way == "bias" and target.bias is not None:
        edit.shift_bias(target.bias, affine.offset, element)
        if target.bias.tensor is None:
            return affine, f"as a new bias of the {maker.op_type} {layer}, which had none"
        return affine, f"added to the bias of the {maker.op_type} {layer}"
    if target.source is not None:
        return affine, _apply_to_source(graph, edit, target, affine, target.source)
    shape = (-1, *[1] * (target.rank - 1 - target.axis))
    scale, offset = (values.reshape(shape) for values in affine)
    if target.way == "probs":
        edit.reweigh(tensor, offset, element, axis=target.axis)
        if target.classifier is not None:
            edit.relabel(target.classifier.number, tensor)
        return affine, f"by weighing the probabilities {tensor} anew (Mul, ReduceSum, Div)"
    operators = edit.affine(tensor, scale, offset, element)
    return affine, f"by {' and '.join(operators)} behind the {maker.op_type} that makes {tensor}"


def _affine(
    target: Target, change: Change, weight: FloatArray | None, bias: FloatArray | None
) -> Affine:
    """s and c of the target's scores; those of one margin d for its two scores −d and d."""
    if not target.margin:
        return change.affine(target.width, lambda: weight, bias)
    (shift,) = change.affine(1, lambda: None, None).offset
    return Affine(np.ones(2), np.array([-shift, shift]))


def _apply_to_source(graph: Graph, edit: Edit, target: Target, affine: Affine, source: str) -> str:
    """Change what probabilities and label both come from: add a to logarithms, or times e^a."""
    element = graph.element_type(source)
    if element not in FLOAT_TYPES:
        element = _ELEMENTS[target.dtype]
    if not target.logs:
        weights = np.exp(affine.offset - affine.offset.max())
        edit.affine(source, weights, np.zeros(target.width), element)
        return f"by Mul behind {source}, of which {target.tensor} and the label are made"
    bias = graph.bias_of(source, target.width)
    if bias is not None:
        edit.shift_bias(bias, affine.offset, element)
        return f"added to {bias.name}, of which {target.tensor} and the label are made"
    edit.affine(source, np.ones(target.width), affine.offset, element)
    return f"by Add behind {source}, of which {target.tensor} and the label are made"


def _apply_to_classifier(
    edit: Edit, target: Target, classifier: Producer, change: Change
) -> tuple[Affine, str]:
    """W' = s·W and b' = s·b + c in the attributes of a LinearClassifier."""
    index, node = classifier
    rows = np.array(attribute(node, "coefficients", []), np.float64).reshape(target.width, -1)
    bias = np.array(attribute(node, "intercepts", [0.0] * target.width), np.float64)
    scale, offset = affine = _affine(target, change, rows, bias)
    edit.set_attribute(index, helper.make_attribute("intercepts", bias * scale + offset))
    if change.needs_weight:
        scaled = (rows * scale[:, None]).ravel()
        edit.set_attribute(index, helper.make_attribute("coefficients", scaled))
        return affine, "folded into the coefficients and intercepts of the LinearClassifier"
    return affine, "added to the intercepts of the LinearClassifier"


class _Check:
    """Compares the outputs of both models with what they should be."""

    def __init__(
        self,
        graph: Graph,
        baked: ModelProto,
        runner: Runner,
        target: Target,
        affine: Affine,
        change: Change,
    ) -> None:
        self._graph, self._baked, self._runner = graph, baked, runner
        self._target, self._affine, self._change = target, affine, change
        self._rounded = 0.0  # size of the logarithms that probabilities are made of, which round
        if target.source is not None and target.logs:
            logs = _floats(runner.run(graph.model, [target.source])[target.source])
            self._rounded = float(abs(np.where(np.isfinite(logs), logs, 0.0)).max())

    def outputs(self, before: Arrays) -> None:
        """Refuse any output that is not what it should be."""
        graph, target = self._graph, self._target
        names = dict.fromkeys([*graph.outputs, target.tensor])
        after = self._runner.run(self._baked, list(names))
        wanted = self._wanted(after)
        changed = self._changed = graph.downstream(target.source or target.tensor)
        if target.classifier is not None:
            changed |= graph.downstream(target.classifier.node.output[0])
        for name in graph.outputs:
            old, new = scores(before[name]), scores(after[name])
            trace = graph.trace(name)
            if one_per_row(before[name]):
                self._label(name, np.ravel(before[name]), np.ravel(after[name]), wanted)
            elif name not in changed:
                if self._may_be_map_of_labels(before[name]):
                    self._label(name, np.ravel(before[name]), np.ravel(after[name]), wanted)
                self._same(name, before[name], after[name])
            elif new is not None and old is not None and trace.tensor == target.tensor:
                kind: str = trace.kind
                if target.way == "classifier" and target.classifier is not None:
                    kind = self._post(target.classifier)
                shown = _through(kind, wanted, target.axis)
                order = graph.order_of_map(name)
                self._close(name, new, shown if order is None else shown[:, order])

    def _wanted(self, after: Arrays) -> FloatArray:
        """The target's scores as they should be, after checking that they are."""
        target = self._target
        if target.way == "classifier":
            old, new = self._logits(self._graph.model), self._logits(self._baked)
        else:
            before = self._runner.run(self._graph.model, [target.tensor])
            old, new = _floats(before[target.tensor]), _floats(after[target.tensor])
        self._before = old
        shape = (-1, *[1] * (target.rank - 1 - target.axis))
        scale, offset = (values.reshape(shape) for values in self._affine)
        if target.way == "probs":
            weights = old * np.exp(offset - offset.max())
            wanted = weights / weights.sum(axis=target.axis, keepdims=True)
        else:
            wanted = old * scale + offset
        if not np.any(np.isfinite(wanted)):
            raise InputError(
                f"{self._change.caller}: the model gives only NaN or infinity on made-up inputs, "
                f"so the result could not be checked; pass real ones with inputs=... (on the "
                f"command line: --inputs FILE.npz)."
            )
        self._close(target.tensor, new, wanted)
        return np.asarray(wanted)

    def _logits(self, model: ModelProto) -> FloatArray:
        """A LinearClassifier's logits: its scores without what it does to them at the end."""
        shown = copied(model)
        for node in shown.graph.node:
            for item in node.attribute:
                if node.op_type == "LinearClassifier" and item.name == "post_transform":
                    item.s = b"NONE"
        return _floats(self._runner.run(shown, [self._target.tensor])[self._target.tensor])

    def _post(self, classifier: Producer) -> str:
        """What a classifier does to its scores at the end."""
        post = attribute(classifier.node, "post_transform", b"NONE")
        return {b"SOFTMAX": "probs", b"LOGISTIC": "sigmoid"}.get(post, "logits")

    def _close(self, name: str, new: NDArray[Any], wanted: FloatArray) -> None:
        types = (_NAMES[self._target.dtype], _NAMES.get(new.dtype.name, "F64"))
        offset = float(abs(self._affine.offset).max())
        finite = np.isfinite(wanted)
        size = float(abs(np.where(finite, wanted, 0.0)).max()) + offset + self._rounded
        close_enough(
            np.where(finite, new, 0.0),
            np.where(finite, wanted, 0.0),
            dtype=max(types, key=lambda key: EPS[key]),
            size=size,
            where=f"{name!r}",
            caller=self._change.caller,
        )

    def _same(self, name: str, before: Any, after: Any) -> None:
        floats = scores(before)
        if floats is not None:  # another plan of the runtime may round in another order
            same = np.allclose(floats, np.asarray(scores(after)), 1e-4, 1e-6, equal_nan=True)
        else:
            same = np.array_equal(np.asarray(before), np.asarray(after))
        if not same:
            raise InputError(
                f"{self._change.caller}: the output {name!r} changed though it should not, so "
                f"nothing was written."
            )

    def _may_be_map_of_labels(self, value: Any) -> bool:
        """Whether an output may hold a label for each pixel or token."""
        return scores(value) is None and np.size(value) * self._target.width == self._before.size

    def _rows(self, values: FloatArray) -> FloatArray:
        """Scores as rows of one per class."""
        return np.moveaxis(values, self._target.axis, -1).reshape(-1, self._target.width)

    def _label(
        self, name: str, before: NDArray[Any], after: NDArray[Any], wanted: FloatArray
    ) -> None:
        """A label that named the largest score must still name it."""
        old, wanted = self._rows(self._before), self._rows(wanted)
        if self._target.width == 1:  # a margin d stands for (0, d)
            old, wanted = (np.pad(each, ((0, 0), (1, 0))) for each in (old, wanted))
        if len(before) != len(old):
            return
        old, wanted, before, after = (each[:_ROWS] for each in (old, wanted, before, after))
        pairs = list(zip(old.argmax(axis=1).tolist(), before.tolist(), strict=True))
        known = dict(pairs)
        if any(known[winner] != label for winner, label in pairs):
            return  # something else than the label of the largest score
        top = np.sort(wanted, axis=1)
        # In half precision scores that differ by a rounding error are equal, and the first wins.
        size = float(abs(np.where(np.isfinite(top), top, 0.0)).max())
        rounding = 4 * EPS[_NAMES[self._target.dtype]] * (1.0 + size)
        with np.errstate(invalid="ignore"):
            clear = top[:, -1] - top[:, -2] > max(1e-4, rounding)
        winners = wanted.argmax(axis=1)[clear].tolist()
        # Where made-up inputs are all of one class, only a label that can't change tells.
        stays = self._is_stuck(name) and winners != old.argmax(axis=1)[clear].tolist()
        for winner, label in zip(winners, after[clear].tolist(), strict=True):
            if stays or known.get(winner, label) != label:
                raise InputError(
                    f"{self._change.caller}: the output {name!r} would no longer be the class of "
                    f"the largest score, so nothing was written; if it is made of the same logits, "
                    f"name these with output=... (on the command line: --output), or else leave "
                    f"that output out when you export the model."
                )

    def _is_stuck(self, name: str) -> bool:
        """Whether an output is the place of the largest of what the scores were made of.

        That of another head is none of theirs.
        """
        graph = self._graph
        made_of = {out for node in graph.ancestors(self._target.tensor) for out in node.output}
        largest = (node.input[0] for node in graph.ancestors(name) if node.op_type == "ArgMax")
        inside = any(graph.trace(tensor).tensor in made_of for tensor in largest)
        return inside and name not in self._changed


def _floats(value: Any) -> FloatArray:
    return np.asarray(scores(value), np.float64)


def _through(kind: str, logits: FloatArray, axis: int) -> FloatArray:
    """What an output is, as a function of the changed tensor."""
    if kind == "logits":
        return logits
    if kind == "sigmoid":
        return 1.0 / (1.0 + np.exp(-logits))
    shifted = logits - logits.max(axis=axis, keepdims=True)
    total = np.exp(shifted).sum(axis=axis, keepdims=True)
    return np.asarray(np.exp(shifted) / total if kind == "probs" else shifted - np.log(total))


def _write(model: ModelProto, source: Path, out: Path, *, caller: str) -> None:
    """Write a model, with its external data where it goes to another folder."""
    if source.resolve() != out.parent.resolve():
        for there in _data_files(model, source, caller=caller):
            here = out.parent / there.relative_to(source)
            if here.exists():
                if files.sha256(here) != files.sha256(there):
                    raise InputError(
                        f"{caller}: {here} exists with other content, but the model needs its "
                        f"data file there; write to another folder."
                    )
                continue
            here.parent.mkdir(parents=True, exist_ok=True)
            with files.atomic_path(here) as temporary:
                shutil.copyfile(there, temporary)
    files.write_bytes(out, model.SerializeToString(deterministic=True))


def _data_files(model: ModelProto, folder: Path, *, caller: str) -> list[Path]:
    """The files beside a model that hold its tensors."""
    found = set()
    tensors = list(model.graph.initializer)
    tensors += [
        item.t for node in model.graph.node for item in node.attribute if item.HasField("t")
    ]
    for tensor in tensors:
        if onnx.external_data_helper.uses_external_data(tensor):
            for entry in tensor.external_data:
                if entry.key == "location":
                    if os.path.isabs(entry.value) or ".." in Path(entry.value).parts:
                        raise InputError(
                            f"{caller}: the model's data file {entry.value!r} lies outside its "
                            f"folder; save the model with its data beside it."
                        )
                    found.add(folder / entry.value)
    for path in sorted(found):
        if not path.is_file():
            raise InputError(
                f"{caller}: the model keeps its weights in {path}, and there is no such file; put "
                f"it back beside the model."
            )
    return sorted(found)
