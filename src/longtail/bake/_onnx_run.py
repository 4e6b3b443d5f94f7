"""Running an ONNX model before and after baking, and comparing every output."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from longtail._checks import FloatArray, InputError
from longtail.bake._change import (
    Change,
    close_enough,
)
from longtail.bake._onnx_graph import (
    FLOAT_TYPES,
    SHOWS,
    SMALLEST_PROB,
    TYPE_OF,
    Graph,
    Target,
)

# Sizes to try where a dimension other than the first is left open: images, sequences.
_OPEN_SIZES = (32, 64, 224, 8, 1)
_MOST_NUMBERS = 4_000_000


def first_run(
    graph: Graph, inputs: Mapping[str, Any] | None, names: list[str], change: Change
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the model on given or random inputs; return these and the named tensors."""
    reason = ""
    sizes = [size for size in _OPEN_SIZES if size != change.num_classes]
    for size in sizes if inputs is None else sizes[:1]:
        feed = _random_inputs(graph, size, change) if inputs is None else dict(inputs)
        try:
            return feed, run_model(graph.model, graph.folder, names, feed)
        except Exception as error:  # onnxruntime's exceptions have no common base of their own
            reason = one_line(error)
    which = "random inputs, so it could not be checked; pass" if inputs is None else "`inputs`; use"
    raise InputError(
        f"the model can't be run on {which} real ones with inputs=..., arrays by the name of each "
        f"input (on the command line: --inputs FILE.npz): {reason}."
    )


def _random_inputs(graph: Graph, open_size: int, change: Change) -> dict[str, Any]:
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


def run_model(
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


def compare(
    graph: Graph,
    targets: Sequence[Target],
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
        dtype = FLOAT_TYPES[TYPE_OF[new.dtype.name]]
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
        shown = {target.shown for target in targets} & set(graph.chain(name, SHOWS))
        if name in changed:
            others += [] if same or shown else [repr(name)]
        elif not same and not np.allclose(old, new, 1e-4, 1e-6, equal_nan=True):
            raise InputError(f"the output {name!r} changed though it should not have.")
    return others


def _wanted(
    target: Target, old: FloatArray, scale: FloatArray, offset: FloatArray
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
        floored = np.log(np.maximum(old, SMALLEST_PROB))
        wanted = np.exp(_log_softmax(floored * scale + offset, axis))
        if target.way == "probs":
            return wanted, everywhere
        # A softmax that underflowed does not tell what its logits become.
        zeros = np.exp(_log_softmax(np.log(old) * scale + offset, axis))
        agree = np.all(np.abs(wanted - zeros) < 1e-6, axis=axis, keepdims=True)
    return wanted, np.broadcast_to(agree, old.shape)


def _compare_labels(
    target: Target,
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
    least = 1e-3 if target.kind == "probs" else 1e-2
    was_clear, clear = (np.diff(np.sort(part, axis=1))[:, -1] > least for part in (first, then))
    winners, names = first.argmax(1)[was_clear].tolist(), np.ravel(old)[was_clear].tolist()
    labels = dict(zip(winners, names, strict=True))
    if len(labels) < 2 or [labels[winner] for winner in winners] != names:
        return  # something else than the label of the largest score
    given = zip(then.argmax(1)[clear].tolist(), np.ravel(new)[clear].tolist(), strict=True)
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


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300].rstrip(".")
