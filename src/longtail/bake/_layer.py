"""A linear layer's weight and bias, baked and given back: the part that all containers share.

    f = W x + b,   f' = s·f + c   =>   W' = s·W,   b' = s·b + c

Arithmetic is in float64, rounded once to the layer's own type. Where the layer's tensors are
kept (a module, a file, an estimator) is not known here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from longtail import _checks
from longtail._checks import FloatArray, InputError
from longtail.bake._change import Change
from longtail.bake._record import BakeRecord
from longtail.bake._tensors import EPS, RawTensor, refuse_unless_float

# Stored originals travel in headers and attributes as text; beyond this they are no longer small.
_MOST_STORED = 48 << 20


class Layer(NamedTuple):
    """A linear layer, its weight read only if asked for.

    Attributes:
        name: where it is, for people.
        width: number of outputs, the first axis of the weight.
        dtype: of the weight.
        weight: gives the weight.
        bias: shape (outputs,), or None.
    """

    name: str
    width: int
    dtype: str
    weight: Callable[[], RawTensor]
    bias: RawTensor | None


class Size(NamedTuple):
    """How many numbers a layer gives, and takes."""

    outputs: int
    inputs: int


class BakedLayer(NamedTuple):
    """What `bake_layer` gives.

    Attributes:
        tensors: the changed tensors, by ``weight`` and ``bias``.
        undo: the original ones as JSON, None for a bias that was not there.
        how: what was changed, in words.
    """

    tensors: dict[str, RawTensor]
    undo: dict[str, Any]
    how: str


def bake_layer(layer: Layer, change: Change) -> BakedLayer:
    """The layer's new tensors, checked on random features, and what undoes them."""
    caller = change.caller
    refuse_unless_float(layer.dtype, where=f"the weight of {layer.name}", caller=caller)
    bias = None if layer.bias is None else layer.bias.values()
    if bias is not None and not np.all(np.isfinite(bias)):
        raise InputError(
            f"{caller}: the bias of {layer.name} holds NaN or infinity: the training has diverged."
        )
    if bias is not None and bias.size != layer.width:
        raise InputError(
            f"{caller}: {layer.name} has {layer.width} rows of weights but a bias of {bias.size}, "
            f"so it is no linear layer that has its outputs first; bake an ONNX export."
        )
    scale, offset = change.affine(layer.width, lambda: layer.weight().values(), bias)
    tensors: dict[str, RawTensor] = {}
    undo: dict[str, Any] = {}
    if change.needs_weight:
        original = layer.weight()
        if len(original.data) > _MOST_STORED:
            raise InputError(
                f"{caller}: {layer.name} has {len(original.data) >> 20} MiB of weights, too many "
                f"to keep the original beside the new ones; bake an ONNX export, where weight "
                f"normalization leaves the weights alone."
            )
        shaped = scale.reshape(-1, *[1] * (len(original.shape) - 1))
        tensors["weight"] = RawTensor.of(original.values() * shaped, layer.dtype)
        undo["weight"] = original.to_json()
    if bias is not None or offset.any() or not change.needs_weight:
        dtype = layer.dtype if layer.bias is None else layer.bias.dtype
        refuse_unless_float(dtype, where=f"the bias of {layer.name}", caller=caller)
        start = np.zeros(layer.width) if bias is None else bias
        tensors["bias"] = RawTensor.of(start * scale + offset, dtype)
        undo["bias"] = None if layer.bias is None else layer.bias.to_json()
    _refuse_overflow(tensors, layer.name, caller)
    undo["baked"] = {name: tensor.digest() for name, tensor in tensors.items()}
    return BakedLayer(tensors, undo, _how(layer, tensors))


def _how(layer: Layer, tensors: Mapping[str, RawTensor]) -> str:
    if "weight" in tensors:
        return f"folded into the weight{' and bias' if 'bias' in tensors else ''} of {layer.name}"
    if layer.bias is None:
        return f"as a new bias of {layer.name}, which had none"
    return f"added to the bias of {layer.name}"


def warn_of_new_bias(layer: Layer, new: BakedLayer, *, what: str, caller: str) -> None:
    """Say that a bias which the network was built without is lost where that is built again.

    Args:
        layer: as it was.
        new: as it is baked.
        what: whose tensors these are, and when they are read: "this file is loaded".
        caller: for messages.
    """
    if layer.bias is None and "bias" in new.tensors:
        warnings.warn(
            f"{caller}: {layer.name} had no bias and has one now. The network must be built with a "
            f"bias there when {what}, or the adjustment is lost: from_pretrained of transformers "
            f"drops a bias that it does not know. To leave the network as it is, export it to ONNX "
            f"and bake that.",
            stacklevel=5,  # from the bake of a kind of model, `_bake` and the public function
        )


def _refuse_overflow(tensors: Mapping[str, RawTensor], name: str, caller: str) -> None:
    for part, tensor in tensors.items():
        if not np.all(np.isfinite(tensor.values())):
            raise InputError(
                f"{caller}: the {part} of {name} would not be finite in {tensor.dtype}; use a "
                f"smaller tau, or a wider type."
            )


def is_undone(record: BakeRecord, now: Callable[[str], RawTensor | None]) -> bool:
    """Whether the tensors are the original ones again, as after loading the old weights."""
    for part, digest in record.undo["baked"].items():
        tensor, stored = now(part), record.undo[part]
        if tensor is None or stored is None or tensor.digest() == digest:
            return False
        if tensor != RawTensor.from_json(stored):
            return False
    return True


def original_tensors(
    record: BakeRecord,
    now: Callable[[str], RawTensor | None],
    *,
    instead: str = "",
    caller: str,
) -> dict[str, RawTensor | None]:
    """The tensors before baking, None for one that was not there; refuses what changed since.

    Args:
        record: of the baking.
        now: gives the tensors as they are, by ``weight`` and ``bias``.
        instead: what to do where they changed, for the message.
        caller: for messages.
    """
    found: dict[str, RawTensor | None] = {}
    for part, digest in record.undo["baked"].items():
        tensor = now(part)
        if tensor is None or tensor.digest() != digest:
            raise InputError(
                f"{caller}: the {part} of {record.where} is not what was baked: it was changed "
                f"since, so the original can't be given back exactly{instead}."
            )
        stored = record.undo[part]
        found[part] = None if stored is None else RawTensor.from_json(stored)
    return found


def close_enough(
    got: FloatArray, wanted: FloatArray, *, dtype: str, size: float, where: str, caller: str
) -> float:
    """The largest difference, refused if rounding numbers of `size` to `dtype` is no excuse."""
    if np.isnan(wanted).any():
        raise InputError(
            f"{caller}: {where} gives NaN before anything is baked: its weights, or the inputs "
            f"that it is checked on, are not finite."
        )
    difference = float(np.max(np.abs(got - wanted), initial=0.0))
    if not difference <= 64 * EPS[dtype] * (1.0 + size):
        raise InputError(
            f"{caller}: after baking, {where} does not give the adjusted logits (it is off by "
            f"{difference:.3g}), so nothing was written; its outputs are not those of a plain "
            f"linear layer."
        )
    return difference


def pick(
    sizes: Mapping[str, Size], change: Change, layer: str | None, *, name: str, caller: str
) -> str:
    """The layer that is named, or the only one that can be meant.

    Args:
        sizes: of each linear layer, by name.
        change: says how many classes there are, if it knows.
        layer: the name that the user gave.
        name: of the model, for messages.
        caller: for messages.
    """
    if layer is not None:
        if layer not in sizes:
            raise InputError(
                f"{caller}: {name} has no linear layer {layer!r}; it has {_shown(sizes)}."
            )
        return layer
    wanted = change.num_classes
    fitting = [key for key, size in sizes.items() if wanted in (None, size.outputs)]
    behind = list(sizes)[list(sizes).index(fitting[-1]) :] if fitting else list(sizes)
    # One output may stand for two classes, behind a layer of two as well if something takes these:
    # else it is no last layer but a gate or a value beside it.
    if not fitting or any(size.inputs == wanted for size in sizes.values()):
        fitting += [k for k in behind if k not in fitting and change.fits(sizes[k].outputs)]
    if len(fitting) == 1:
        return fitting[0]
    if not sizes:
        raise InputError(f"{caller}: {name} has no linear layer, so nothing can be baked into it.")
    outputs = "can be meant" if wanted is None else f"has {wanted} outputs, one per class"
    if not fitting:
        raise InputError(
            f"{caller}: no linear layer of {name} {outputs}; it has {_shown(sizes)}. The prior "
            f"must have one class per output; for a head that is not a plain linear layer, bake "
            f"an ONNX export."
        )
    shown = _checks.listing(map(repr, fitting))
    if any(wanted not in (None, sizes[key].outputs) for key in fitting):
        outputs += ", or 1 for both"
    raise InputError(
        f"{caller}: more than one linear layer of {name} {outputs}: {shown}; name the one "
        f"whose outputs are the logits with layer=... (on the command line: --layer)."
    )


def _shown(sizes: Mapping[str, Size]) -> str:
    # The last ones are the likely ones.
    names = reversed(list(sizes))
    shown = (f"{repr(k) if k else 'one layer'} ({sizes[k].outputs} outputs)" for k in names)
    return _checks.listing(shown, most=5) or "none"
