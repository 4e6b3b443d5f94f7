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

from longtail import _checks
from longtail._checks import InputError
from longtail.bake._change import Change
from longtail.bake._onnx_graph import SHOWS, Graph, attribute
from longtail.bake._onnx_numbers import are_probabilities
from longtail.bake._onnx_run import Runner, scores

# Logarithms of probabilities are logits like any others behind these: a temperature, a bias.
_MAKES_LOGITS = {
    "Mul", "Div", "Add", "Sub", "Clip", "Min", "Max", "Relu", "Where", "Sqrt", "Pow",
}  # fmt: skip
_SQUASHES = {"Softmax", "Sigmoid", "HardSigmoid"}
_SELECTS = {"Gather", "GatherElements", "Slice"}
_PICKS = {"ReduceMax", "ArgMax", *_SELECTS}


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
        if _ranks(node, tensor, before, graph, change):
            return shown_by(graph, runner, source, change)
        if _reorders(node, found[tensor], before):
            return output  # the classes are in the order of the outputs
        made_logits = made_logits or node.op_type in _MAKES_LOGITS
        logs = before is not None and _are_logs(before, change)
        if made_logits and (node.op_type == "Log" or logs):
            return output
        if logs or (before is not None and _sum_to_one(before, change)):
            # Turned, they are probabilities still; behind a floor they may only look like some,
            # and weighing would make the rarest class win wherever it stands on the floor.
            inner = shown_by(graph, runner, source, change)
            turned = inner == source and not made_logits
            return output if turned and here is not None and _sum_to_one(here, change) else inner
        _refuse_some_of_more(node, tensor, before, change)
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


def refuse_made_of_probabilities(graph: Graph, tensor: str, change: Change) -> None:
    """Refuse what is no logit and not seen through: it would be adjusted as if it were one."""
    found = _made_of(graph, tensor)
    if found:
        raise InputError(
            f"{change.caller}: {tensor!r} is made of the probabilities "
            f"{_checks.listing(map(repr, found))}, so it holds no logits that could be adjusted; "
            f"name what shall be adjusted with output=... (on the command line: --output), and "
            f"what is made of it follows."
        )


def is_width(size: int, change: Change) -> bool:
    """Whether so many numbers are one for each class, and not one margin."""
    return size > 1 and change.fits(size)


def _ranks(
    node: NodeProto, tensor: str, before: NDArray[Any] | None, graph: Graph, change: Change
) -> bool:
    """Whether a tensor holds the classes' scores by their rank, or which of them is the largest."""
    if before is None or before.ndim == 0 or tensor != node.output[0]:
        return False
    sorts = node.op_type == "GatherElements" and graph.varies(node.input[1])
    if not sorts and node.op_type not in ("TopK", "Hardmax"):
        return False
    axis = attribute(node, "axis", 0 if sorts else -1)
    return is_width(before.shape[axis], change)


def _reorders(node: NodeProto, here: Any, before: NDArray[Any] | None) -> bool:
    """Whether a node gives as many numbers as it gets, in another order."""
    return node.op_type in _SELECTS and before is not None and np.shape(here) == before.shape


def _refuse_some_of_more(
    node: NodeProto, tensor: str, before: NDArray[Any] | None, change: Change
) -> None:
    """Refuse the probabilities of all classes but some: of these the rest takes its share."""
    classes = change.num_classes
    if classes is None or node.op_type not in _SELECTS or before is None or before.ndim < 2:
        return
    for axis in (1, before.ndim - 1):
        more = before.shape[axis]
        if more > classes and are_probabilities(before, axis):
            raise InputError(
                f"{change.caller}: {tensor!r} is a part of probabilities of {more} classes "
                f"({node.input[0]!r}); give a prior of all {more}, the background with them if it "
                f"is one, in their order."
            )


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


def _made_of(graph: Graph, tensor: str) -> list[str]:
    """The softmaxes and sigmoids that a tensor is made of, with no layer and no logarithm between.

    Empty where it is made of anything else besides, such as logits that a softmax weighs.
    """
    found, seen, names = [], set(), [tensor]
    while names:
        name = names.pop()
        if name in seen or not graph.varies(name):
            continue
        seen.add(name)
        node = graph.producers[name].node if name in graph.producers else None
        if node is None or not graph.is_plain(node) or node.op_type in ("Log", "LogSoftmax"):
            return []
        if node.op_type in _SQUASHES:
            found.append(name)
        else:
            names += node.input
    return found
