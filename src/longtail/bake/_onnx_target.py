"""Which tensor of an ONNX model is to be changed, and in which of four ways.

    bias        the constant bias of the layer that makes the logits
    node        no such bias: nodes behind the logits
    classifier  the coefficients of a whole classifier in one node, from scikit-learn
    probs       no logits at all (trees, one-vs-rest), or more than a softmax behind them: the
                probabilities themselves

What the outputs are is seen by running the model, not by their names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import InputError
from longtail.bake._change import Change
from longtail.bake._onnx_graph import Bias, Graph, Producer, Trace, attribute
from longtail.bake._onnx_numbers import are_probabilities, common_sum
from longtail.bake._onnx_run import Arrays, Runner, scores
from longtail.bake._onnx_shown import is_width, picked_from, refuse_made_of_probabilities, shown_by

Way = Literal["bias", "node", "classifier", "probs"]


@dataclass(frozen=True)
class Target:
    """What is to be changed.

    Attributes:
        tensor: its name.
        way: how.
        axis: of the classes, counted from the front.
        rank: number of axes.
        width: number of outputs along `axis`.
        dtype: NumPy's name of its type.
        bias: for the way "bias".
        classifier: the node that makes labels too, if there is one.
        margin: the two scores are −d and d of one margin d, as converters from scikit-learn
            write a decision function.
        source: for the way "probs", the tensor from which probabilities and label both come, if
            the label does not come from the probabilities.
        logs: whether `source` holds logarithms of what the probabilities are proportional to.
    """

    tensor: str
    way: Way
    axis: int
    rank: int
    width: int
    dtype: str
    bias: Bias | None = None
    classifier: Producer | None = None
    margin: bool = False
    source: str | None = None
    logs: bool = False


def alternatives(graph: Graph, target: Target, outputs: Arrays) -> list[Target]:
    """The target, and what else may do where a label output does not follow from it.

    Converters take the label of naive Bayes from joint log-likelihoods, of nearest neighbours
    from votes, and not from the probabilities that they make of these. A change there changes
    both. An Exp on the way tells logarithms from votes: numbers need not, far from the data.
    """
    following = graph.downstream(target.tensor)
    if target.way != "probs" or target.classifier is not None or target.rank > 2:
        return [target]
    found = []
    for name, value in outputs.items():
        if name not in following and one_per_row(value):
            found += [node.input[0] for node in graph.ancestors(name) if node.op_type == "ArgMax"]
    found = [name for name in dict.fromkeys(found) if name in graph.producers]
    if len(found) != 1:
        return [target]
    later = graph.reached(found[0])
    way = (n for n in graph.ancestors(target.tensor) if any(name in later for name in n.input))
    logs = any(node.op_type in ("Exp", "Softmax") for node in way)
    return [replace(target, source=found[0], logs=logs), target]


def one_per_row(value: Any) -> bool:
    """Whether an output may be a label: names or whole numbers, one for each example."""
    shape = np.shape(value)  # (n,), (n, 1), or (1, n) as converters have it too
    return scores(value) is None and len(shape) > 0 and math.prod(shape) == max(shape)


def find_target(
    graph: Graph, outputs: Arrays, runner: Runner, change: Change, output: str | None
) -> Target:
    """What is to be changed so that the chosen output is adjusted.

    Args:
        graph: the model.
        outputs: its outputs on some inputs, by name.
        runner: runs it again, for tensors inside.
        change: says how many classes there are, if it knows.
        output: the output that the user named.
    """
    classifier = graph.classifier()
    if output is None and classifier is not None and _is_whole(graph, classifier, outputs):
        trace = graph.trace(_last(graph, classifier))
    else:
        trace = _chosen(graph, outputs, runner, change, output)
    if trace.tensor not in graph.producers:
        raise InputError(
            f"{change.caller}: the output is the input or constant {trace.tensor!r} itself, which "
            f"no layer computes, so there is nothing to bake into."
        )
    found = runner.run(graph.model, [trace.tensor])[trace.tensor]
    value = scores(found)
    if value is None:
        raise InputError(f"{change.caller}: {trace.tensor!r} holds no floating point numbers.")
    if value.ndim == 0:
        raise InputError(
            f"{change.caller}: {trace.tensor!r} is a single number; export the model with an axis "
            f"for the examples, or name its scores with output=... (on the command line: --output)."
        )
    _refuse_two_axes(value, trace, graph, change)
    _refuse_two_numbers(value, trace, runner, change)
    axis, width = _class_axis(value, trace, graph, runner, change)
    if not change.fits(width):
        change.affine(width, lambda: None, None)  # says which widths disagree
    dtype = np.asarray(found).dtype.name
    shape = {"axis": axis, "rank": value.ndim, "width": width, "dtype": dtype}
    if trace.kind == "sigmoid" and width > 1:
        raise InputError(
            f"{change.caller}: the output is a sigmoid of {width} scores, each a question of its "
            f"own, and not logits or probabilities of one label out of {width}; an adjustment "
            f"for one label per example does not apply."
        )
    target = _way(graph, trace, value, change, classifier, shape)
    # Whoever names a tensor inside the model has looked, and means it.
    if (
        trace.kind == "logits"
        and target.way in ("bias", "node")
        and output in (None, *graph.outputs)
    ):
        refuse_made_of_probabilities(graph, trace.tensor, change)
    return target


def _way(
    graph: Graph,
    trace: Trace,
    value: NDArray[Any],
    change: Change,
    classifier: Producer | None,
    shape: dict[str, Any],
) -> Target:
    maker = graph.producers[trace.tensor]
    width, last = shape["width"], shape["axis"] == shape["rank"] - 1
    mine = classifier if classifier is not None and _feeds(graph, classifier, trace) else None
    if mine is not None and maker.number == mine.number:
        usable, margin = _usable(mine, width)
        if usable:
            return Target(trace.tensor, "classifier", classifier=mine, margin=margin, **shape)
    # Two zero-sum logits of a network look like a margin but are what they are: logits. And only
    # converters make probabilities of log-likelihoods so large that their sums are rounded.
    converted = any(item.domain == "ai.onnx.ml" for item in graph.model.opset_import)
    step, slack = graph.rounding(trace.tensor), 0.02 if converted else 1e-4
    probs = width > 1 and are_probabilities(value, shape["axis"], step, slack)
    if trace.kind == "logits" and probs:
        _refuse_unadjustable(graph, trace.tensor, value, width, change)
        return Target(trace.tensor, "probs", classifier=mine, **shape)
    if mine is not None:
        raise InputError(
            f"{change.caller}: the scores of this {mine.node.op_type} are neither probabilities "
            f"nor one logit per class, so they can't be adjusted; convert the model with "
            f"probabilities, or wrap it in LogitAdjustedClassifier."
        )
    if trace.kind == "logits" and graph.least_wins(trace.tensor):
        instead = "let the model give them with a minus sign (Neg), and an ArgMax of that"
        if maker.node.op_type == "Neg":
            instead = (
                f"name the scores before them ({maker.node.input[0]!r}) with output=... (on the "
                f"command line: --output)"
            )
        raise InputError(
            f"{change.caller}: the model's label is that of the smallest number in "
            f"{trace.tensor!r} (ArgMin), so these are distances and not logits, and adjusting "
            f"them would favour the frequent classes; {instead}."
        )
    if trace.kind == "logits" and width > 1 and (total := common_sum(value, shape["axis"])):
        raise InputError(
            f"{change.caller}: the numbers of {trace.tensor!r} are all positive and sum to "
            f"{total:.6g} for every example, as percentages do, so they are neither logits nor "
            f"probabilities; export the model with probabilities (divide by {total:.6g}), or name "
            f"its logits with output=... (on the command line: --output)."
        )
    bias = graph.bias_of(trace.tensor, width)
    lined_up = shape["axis"] == 1 if maker.node.op_type == "Conv" else last
    mirrored = value.shape[-1:] == (2,) and np.array_equal(value[..., 0], -value[..., 1])
    margin = converted and mirrored and trace.kind == "logits"
    if not change.needs_weight and bias is not None and lined_up:
        return Target(trace.tensor, "bias", bias=bias, margin=margin, **shape)
    return Target(trace.tensor, "node", margin=margin, **shape)


def _refuse_unadjustable(
    graph: Graph, tensor: str, value: NDArray[Any], width: int, change: Change
) -> None:
    """Refuse probabilities that have no norms to make alike, or that no weights would change."""
    if change.needs_weight:
        raise InputError(
            f"{change.caller}: {tensor!r} holds probabilities and not logits, made by "
            f"the {graph.producers[tensor].node.op_type}, so there is nothing to normalize; use "
            f"bake_logit_adjustment, or name the logits with output=... (on the command line: "
            f"--output) if the model has them."
        )
    step = graph.rounding(tensor)
    if step * width > 1:
        raise InputError(
            f"{change.caller}: {tensor!r} holds probabilities in steps of {step:.2g}, "
            f"too coarse for {width} classes: most are 0, which no adjustment changes; bake "
            f"the model before it is quantized, or leave its softmax in floating point."
        )
    if np.isin(value, (0, 1)).all() and graph.is_certain(tensor):
        raise InputError(
            f"{change.caller}: {tensor!r} holds nothing but 0 and 1, which no adjustment "
            f"changes: a label, or the pure leaves of one tree; name the scores before it with "
            f"output=... (on the command line: --output), or wrap the classifier in "
            f"LogitAdjustedClassifier."
        )


def _last(graph: Graph, classifier: Producer) -> str:
    """A classifier's scores, normalised if the next node does that."""
    tensor = classifier.node.output[1]
    for node in graph.model.graph.node:
        if node.op_type == "Normalizer" and list(node.input) == [tensor]:
            return str(node.output[0])
    return str(tensor)


def _is_whole(graph: Graph, classifier: Producer, outputs: Arrays) -> bool:
    """Whether a classifier is all of the model: its label is the model's, and so are its scores.

    Else it is a part: one of several that vote, or what a calibration comes behind.
    """
    labels = [name for name, value in outputs.items() if one_per_row(value)]
    if labels:
        later = graph.reached(*classifier.node.output)
        before = [node for name in labels for node in graph.ancestors(name)]
        return not any(node.op_type == "ArgMax" and node.input[0] in later for node in before)
    found = graph.trace(_last(graph, classifier)).tensor
    return any(graph.trace(name).tensor == found for name in outputs)


def _feeds(graph: Graph, classifier: Producer, trace: Trace) -> bool:
    maker = graph.producers[trace.tensor]
    return maker.number == classifier.number or (
        maker.node.op_type == "Normalizer" and maker.node.input[0] == classifier.node.output[1]
    )


def _usable(classifier: Producer, width: int) -> tuple[bool, bool]:
    """Whether a classifier's intercepts are logits, and whether they are a margin −d, d."""
    node = classifier.node
    if node.op_type != "LinearClassifier":
        return False, False
    post = attribute(node, "post_transform", b"NONE")
    weights = np.array(attribute(node, "coefficients", []), np.float32)
    if len(weights) % width or not len(weights):
        return False, False
    rows = weights.reshape(width, -1)
    intercepts = np.array(attribute(node, "intercepts", []), np.float32)
    if len(intercepts) not in (0, width):
        return False, False
    mirrored = width == 2 and np.array_equal(rows[0], -rows[1])
    if mirrored and post in (b"LOGISTIC", b"NONE"):
        return True, True
    return post in (b"SOFTMAX", b"NONE"), False


def _chosen(
    graph: Graph, outputs: Arrays, runner: Runner, change: Change, output: str | None
) -> Trace:
    """The trace of the named output, or of the only one that can be meant."""
    caller = change.caller
    if output is not None:
        if output not in graph.outputs and output not in graph.producers:
            raise InputError(
                f"{caller}: the model has no output {output!r}; it has {_shown(outputs)}."
            )
        value = outputs.get(output)
        if value is None:
            value = runner.run(graph.model, [output])[output]
        if scores(value) is None:
            raise InputError(
                f"{caller}: the output {output!r} holds {_type(value)}, not floating point."
                + _quantized(value)
            )
        if output not in graph.outputs:  # somebody looked into the model and means this
            return graph.trace(output)
        inner = shown_by(graph, runner, output, change)
        if inner == output:
            _refuse_one_picked(graph, runner, output, change)
        return graph.trace(inner)
    # What is no score of each class itself, such as the largest, counts if nothing else is.
    traces = _candidates(graph, outputs, runner, change, themselves=True) or _candidates(
        graph, outputs, runner, change, themselves=False
    )
    if not traces:
        raise InputError(_none(outputs, change) + _inside(graph, runner, change))
    if len(traces) > 1:
        names = [name for group in traces.values() for name in group]
        raise InputError(
            f"{caller}: more than one output can be meant: {_checks.listing(map(repr, names))} "
            f"(all: {_shown(outputs)}); name one with output=... (on the command line: --output)."
        )
    # Of logits and their softmax, the softmax says more: where its axis is.
    (names,) = traces.values()
    return max((graph.trace(name) for name in names), key=lambda trace: trace.kind != "logits")


def _refuse_one_picked(graph: Graph, runner: Runner, output: str, change: Change) -> None:
    source = picked_from(graph, runner, output, change)
    if source is not None:
        raise InputError(
            f"{change.caller}: the output {output!r} is only one of the scores in {source!r} for "
            f"each example; name these with output=... (on the command line: --output)."
        )


def _candidates(
    graph: Graph, outputs: Arrays, runner: Runner, change: Change, *, themselves: bool
) -> dict[Trace, list[str]]:
    """The tensors of one score per class that outputs are or show, by the logits behind them.

    Args:
        graph: of the model.
        outputs: what it gives.
        runner: runs it.
        change: what is to be baked.
        themselves: only of outputs that have one number per class.
    """
    traces: dict[Trace, list[str]] = {}
    for name, value in outputs.items():
        array = scores(value)
        if array is None or (
            themselves and not _fits(array, graph.trace(name), graph, runner, change)
        ):
            continue
        inner = shown_by(graph, runner, name, change)
        trace = graph.trace(inner)
        array = scores(value if inner == name else runner.run(graph.model, [inner])[inner])
        if array is None or not _fits(array, trace, graph, runner, change, vectors=not themselves):
            continue
        if picked_from(graph, runner, inner, change) is None:
            traces.setdefault(Trace(trace.tensor, "logits"), []).append(inner)
    return traces


def _fits(
    array: NDArray[Any],
    trace: Trace,
    graph: Graph,
    runner: Runner,
    change: Change,
    *,
    vectors: bool = False,
) -> bool:
    """Whether numbers can be the classes' scores; as a vector, for one example, only if asked."""
    if array.ndim == 0:
        return False
    _, width = _class_axis(array, trace, graph, runner, change)
    return change.fits(width) and (vectors or array.ndim > 1 or width == 1)


def _none(outputs: Arrays, change: Change) -> str:
    count = change.num_classes
    wanted = "of one score per class" if count is None else f"{count} wide, one score per class"
    text = f"{change.caller}: no output of the model is {wanted}; it has {_shown(outputs)}"
    arrays = [array for value in outputs.values() if (array := scores(value)) is not None]
    if any(array.ndim > 2 and count in array.shape[1:] for array in arrays):
        return (
            f"{change.caller}: no layer gives {count} scores, one per class; the model has "
            f"{_shown(outputs)}. The prior must have one class per output of the last layer; if "
            f"the classes are on an axis of {count} all the same, export the model with a softmax "
            f"over them at its end."
        )
    for value in outputs.values():
        if _quantized(value) and np.shape(value)[-1:] == (count,):
            return text + "." + _quantized(value)
    return text + ". The prior must have one class per output."


def _inside(graph: Graph, runner: Runner, change: Change) -> str:
    """Names the scores inside the model of which it only gives the largest."""
    takers = [n for n in graph.model.graph.node if n.op_type in ("ArgMax", "ReduceMax", "TopK")]
    names = list(dict.fromkeys(n.input[0] for n in takers if n.input[0] in graph.producers))
    values = runner.run(graph.model, names) if names else {}
    found = [
        name
        for name, value in values.items()
        if scores(value) is not None and np.shape(value)[1:] == (change.num_classes,)
    ]
    if len(found) != 1:
        return ""
    return (
        f" The scores inside the model seem to be {found[0]!r}: name these with output=... (on "
        f"the command line: --output)."
    )


def _quantized(value: Any) -> str:
    if np.asarray(value).dtype.name not in ("uint8", "int8", "uint16", "int16"):
        return ""
    return (
        " This looks like a quantized model: its outputs must be dequantized inside the model "
        "to be baked (quantized layers before that are no hindrance)."
    )


def _class_axis(
    array: NDArray[Any], trace: Trace, graph: Graph, runner: Runner, change: Change
) -> tuple[int, int]:
    """The axis of the classes, and its size; a single number per example counts as size 1."""
    if array.ndim == 1:
        return 0, len(array) if _of_one_example(array, trace, graph, runner, change) else 1
    if array.ndim == 2:
        return 1, array.shape[1]
    axis = _told_axis(array, trace, graph, change)
    if axis is None:
        last = array.ndim - 1
        # One score for two classes has an axis of one; as the last one it may be of anything.
        second = array.shape[1] == change.num_classes != array.shape[last]
        axis = 1 if second or not change.fits(array.shape[last]) else last
    return axis, array.shape[axis]


def _of_one_example(
    array: NDArray[Any], trace: Trace, graph: Graph, runner: Runner, change: Change
) -> bool:
    """Whether a vector has one number for each class, and not for each of several examples."""
    if not is_width(len(array), change) or not graph.varies(trace.tensor):
        return False
    return trace.kind in ("probs", "log_probs") or len(array) not in runner.rows


def _told_axis(array: NDArray[Any], trace: Trace, graph: Graph, change: Change) -> int | None:
    """The axis of the classes by a softmax over it or by a layer, if these are to be seen.

    A layer of another width, such as one over time, leaves it to the layer before. Where layers
    of the same width have their outputs along different axes, none of them tells.
    """
    if trace.axis is not None and trace.kind in ("probs", "log_probs"):
        return trace.axis % array.ndim
    told, fitting = _axes_of_layers(array, trace, graph, change)
    if len(fitting) > 1 and change.num_classes is not None:
        return None
    return next(iter(fitting or told), None)


def _axes_of_layers(
    array: NDArray[Any], trace: Trace, graph: Graph, change: Change
) -> tuple[list[int], list[int]]:
    """The axes along which layers have their outputs, and those of them as wide as the classes."""
    told = list(dict.fromkeys(graph.told_axes(trace.tensor, array.ndim)))
    return told, [axis for axis in told if change.fits(array.shape[axis])]


def _refuse_two_axes(array: NDArray[Any], trace: Trace, graph: Graph, change: Change) -> None:
    """Refuse to guess where the second axis and the last are both as wide as the classes."""
    classes = change.num_classes
    if array.ndim < 3 or not array.shape[1] == array.shape[-1] == classes:
        return
    if _told_axis(array, trace, graph, change) is None:
        text = (
            f"{change.caller}: {trace.tensor!r} is {' x '.join(map(str, array.shape))}, so the "
            f"{classes} classes may be on its second axis or on its last one"
        )
        end = "export the model with a softmax over the classes at its end."
        if len(_axes_of_layers(array, trace, graph, change)[1]) > 1:
            raise InputError(f"{text}: layers as wide have their outputs along either; {end}")
        raise InputError(
            f"{text}, and its layers do not tell; pass inputs of another size with inputs=... (on "
            f"the command line: --inputs FILE.npz), name the output of the layer itself with "
            f"output=... (--output), or {end}"
        )


def _refuse_two_numbers(array: NDArray[Any], trace: Trace, runner: Runner, change: Change) -> None:
    """Refuse to guess between two scores of one example and a margin of each of two."""
    two = array.shape == (2,) == (change.num_classes,) and 2 in runner.rows
    if two and trace.kind == "logits" and not runner.one_per_example(trace.tensor):
        raise InputError(
            f"{change.caller}: {trace.tensor!r} is 2 numbers, which may be two scores of one "
            f"example or one of each of 2 examples; pass inputs of another number of examples with "
            f"inputs=... (on the command line: --inputs FILE.npz), or export the model with one."
        )


def _type(value: Any) -> str:
    if isinstance(value, list):
        return "a list"
    return str(np.asarray(value).dtype.name)


def _shown(outputs: Arrays) -> str:
    texts = []
    for name, value in outputs.items():
        shape = " x ".join(str(size) for size in np.shape(value)) or "a number"
        texts.append(f"{name!r} ({shape}, {_type(value)})")
    return _checks.listing(texts)
