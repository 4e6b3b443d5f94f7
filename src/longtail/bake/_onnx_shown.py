"""Outputs of an ONNX model that show its scores in another form, and what they show.

Percentages, clipped or rounded probabilities, logarithms, the largest few, one class: such numbers
are no logits, and nothing can be added to them. What they are computed from can be adjusted, and
they follow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from longtail.bake._change import Change
from longtail.bake._onnx_graph import SHOWS, Graph, attribute
from longtail.bake._onnx_numbers import are_probabilities
from longtail.bake._onnx_run import Runner, scores

# Logarithms of probabilities are logits like any others behind these: a temperature, a bias.
_MAKES_LOGITS = {
    "Mul", "Div", "Add", "Sub", "Clip", "Min", "Max", "Relu", "Where", "Sqrt", "Pow",
}  # fmt: skip
_PICKS = {"ReduceMax", "ArgMax", "Gather", "GatherElements", "Slice"}


def shown_by(graph: Graph, runner: Runner, output: str, change: Change) -> str:
    """The output, or the scores of all classes inside the model that it only shows otherwise."""
    trace = graph.trace(output)
    steps = list(graph.back_through(trace.tensor, SHOWS))
    if not steps:
        return output
    found = runner.run(graph.model, [trace.tensor, *(source for _, source in steps)])
    here, before = scores(found[trace.tensor]), scores(found[steps[0][1]])
    dropped = steps[0][1] if _drops_examples(here, before, change) else None
    if trace.kind != "logits":
        return dropped or output
    if dropped is not None:
        return shown_by(graph, runner, dropped, change)
    made_logits, tensor = False, trace.tensor
    for node, source in steps:
        before = scores(found[source])
        if node.op_type == "Sigmoid":
            return output if tensor == trace.tensor else tensor
        if _ranks(node, tensor, before, change):
            return shown_by(graph, runner, source, change)
        if tensor == trace.tensor and here is not None and _sum_to_one(here, change):
            return output  # rounded, turned: probabilities still
        made_logits = made_logits or node.op_type in _MAKES_LOGITS
        logs = before is not None and _are_logs(before, change)
        if made_logits and (node.op_type == "Log" or logs):
            return output
        if logs or (before is not None and _sum_to_one(before, change)):
            return source
        tensor = source
    return output


def picked_from(graph: Graph, runner: Runner, output: str, change: Change) -> str | None:
    """The logits of which an output gives one for each example: the largest, or the same class's.

    Of two logits that is one number per example, as a margin would be.
    """
    trace = graph.trace(output)
    steps = list(graph.back_through(trace.tensor, SHOWS))
    found = runner.run(graph.model, [trace.tensor, *(source for _, source in steps)])
    for node, source in steps:
        before = scores(found[source])
        if node.op_type in _PICKS and before is not None and before.ndim == 2:
            one_each = np.size(found[trace.tensor]) == len(before)
            return source if one_each and is_width(before.shape[1], change) else None
    return None


def is_width(size: int, change: Change) -> bool:
    """Whether so many numbers are one for each class, and not one margin."""
    return size > 1 and change.fits(size)


def _ranks(node: NodeProto, tensor: str, before: NDArray[Any] | None, change: Change) -> bool:
    """Whether a tensor holds the classes' scores by their rank, or which of them is the largest."""
    if node.op_type not in ("TopK", "Hardmax") or before is None or tensor != node.output[0]:
        return False
    return is_width(before.shape[attribute(node, "axis", -1)], change)


def _sum_to_one(array: NDArray[Any], change: Change) -> bool:
    """Whether numbers are probabilities of the classes along some axis."""
    axes = range(1, array.ndim) if array.ndim > 1 else range(array.ndim)
    return any(
        are_probabilities(array, axis) for axis in axes if is_width(array.shape[axis], change)
    )


def _are_logs(array: NDArray[Any], change: Change) -> bool:
    """Whether numbers are logarithms of the classes' probabilities."""
    return bool(np.all(array <= 0)) and _sum_to_one(np.exp(array), change)


def _drops_examples(here: NDArray[Any] | None, before: NDArray[Any] | None, change: Change) -> bool:
    """Whether numbers are the only row of what they come from, without the axis of examples."""
    if here is None or before is None or here.ndim != 1 or not is_width(len(here), change):
        return False
    return np.array_equal(here[None], before)
