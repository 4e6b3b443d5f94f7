"""Baking a torch module: its last linear layer gets a new bias (and weight).

The record is an attribute of that layer. A state-dict hook also puts it into the state dict's
own metadata, where `torch.save` keeps it and where it adds no key, so that the state dict still
loads into the plain architecture. A module that is pickled whole loads without longtail.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longtail._checks import InputError, as_numpy
from longtail.bake._change import Change
from longtail.bake._layer import (
    Layer,
    Size,
    bake_layer,
    close_enough,
    is_undone,
    original_tensors,
    pick,
    warn_of_new_bias,
)
from longtail.bake._loss import margin_of, warn_if_adjusted
from longtail.bake._record import (
    ATTRIBUTE,
    KEY,
    BakeRecord,
    refuse_twice,
    require_record,
)
from longtail.bake._tensors import EPS, RawTensor
from longtail.margins import Margin

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_QUANTIZED = ("torch.ao.nn", "torch.nn.quantized")
_ROWS = 64


def bake(model: nn.Module, change: Change, *, layer: str | None, inputs: Any) -> nn.Module:
    """A baked copy."""
    caller = change.caller
    refuse_twice(record_of(model, caller=caller), name="the model", caller=caller)
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError(
            f"{caller}: a TorchScript module can't be changed; bake the module that it was made "
            f"from, and script or trace that."
        )
    name = pick(_sizes(model, change, layer), change, layer, name="the model", caller=caller)
    before: Any = model.get_submodule(name)
    label = f"layer {name}" if name else "the layer"
    found = _layer_of(before, label, change)
    new = bake_layer(found, change)
    baked = _copied(model, caller)
    for module in baked.modules():
        if hasattr(module, ATTRIBUTE):  # of an earlier baking, whose weights were replaced
            _forget(module)
    after: Any = baked.get_submodule(name)
    for part, tensor in new.tensors.items():
        _put(after, part, tensor)
    _check(before, after, change, label)
    if inputs is not None:
        _check_whole(model, baked, before, inputs, change)
    record = BakeRecord.of(
        change, where=name or label, how=new.how, undo={**new.undo, "layer": name}
    )
    setattr(after, ATTRIBUTE, record.to_json())
    after.register_state_dict_post_hook(_WriteMetadata())
    if hasattr(model, "save_pretrained"):  # load_state_dict says itself what it does not know
        warn_of_new_bias(found, new, what="it is saved and loaded again", caller=caller)
    warn_if_adjusted(_losses(model), change, name="the model")
    return baked


def unbake(model: nn.Module, *, caller: str) -> nn.Module:
    """A copy with the original weights."""
    record = require_record(record_of(model, caller=caller), name="the model", caller=caller)
    restored = copy.deepcopy(model)
    layer: Any = _baked_layer(restored)
    instead = "; if other weights were loaded into it, load them into a network built anew"
    before = original_tensors(record, _reader(layer), instead=instead, caller=caller)
    for part, tensor in before.items():
        _put(layer, part, tensor)
    _forget(layer)
    return restored


def _forget(layer: Any) -> None:
    """Take the record out of a layer."""
    delattr(layer, ATTRIBUTE)
    for key, hook in list(layer._state_dict_hooks.items()):
        if isinstance(hook, _WriteMetadata):
            del layer._state_dict_hooks[key]


def _reader(layer: Any) -> Callable[[str], RawTensor | None]:
    """What gives a layer's tensors by name, None for one that is not there."""

    def now(part: str) -> RawTensor | None:
        tensor = getattr(layer, part)
        return None if tensor is None else raw(tensor)

    return now


def _has_old_weights(layer: Any) -> bool:
    """Whether a layer that was baked has got its original weights back, by load_state_dict."""
    record = BakeRecord.from_json(getattr(layer, ATTRIBUTE), caller="bake_record")
    tensors: list[Any] = [getattr(layer, part, None) for part in record.undo["baked"]]
    # Sharded tensors, or fake ones of an export, have no bytes to compare.
    readable = (
        type(tensor) in (Tensor, nn.Parameter) and tensor.dtype in _DTYPES and not tensor.is_meta
        for tensor in tensors
    )
    return all(readable) and is_undone(record, _reader(layer))


def record_of(model: nn.Module, *, caller: str) -> BakeRecord | None:
    """What was baked into a module, or None."""
    layer = _baked_layer(model)
    if layer is None:
        return None
    return BakeRecord.from_json(getattr(layer, ATTRIBUTE), caller=caller)


def _baked_layer(model: nn.Module) -> nn.Module | None:
    """The layer with the record, wherever it is now: its model may have been put into another."""
    marked = (module for module in model.modules() if hasattr(module, ATTRIBUTE))
    return next((layer for layer in marked if not _has_old_weights(layer)), None)


def record_of_state(state: Mapping[str, Any], *, caller: str) -> BakeRecord | None:
    """What was baked into the module that a state dict came from, or None."""
    for entry in getattr(state, "_metadata", {}).values():
        if KEY in entry:
            return BakeRecord.from_json(entry[KEY], caller=caller)
    return None


class _WriteMetadata:
    """State-dict hook of a baked layer: its record goes into the metadata, not among the keys."""

    def __call__(
        self, module: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any]
    ) -> None:
        if not _has_old_weights(module):
            metadata[KEY] = getattr(module, ATTRIBUTE)

    def __deepcopy__(self, memo: Any) -> _WriteMetadata:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # Where a pickled module is deployed there need be no longtail: the standard library's
        # callable that takes anything and does nothing stands in. The layer keeps its record.
        return getattr, (contextlib.nullcontext(), "__exit__")


def _losses(model: nn.Module) -> Iterator[tuple[str, Margin]]:
    """The losses of `longtail.losses` among the parts of a module."""
    for name, part in model.named_modules():
        buffers = {
            key: as_numpy(value)
            for key, value in part.named_buffers(recurse=False)
            if key in ("alpha", "positive", "negative", "dense") and not value.is_meta
        }
        margin = margin_of(buffers.get, scale=getattr(part, "scale", 1.0)) if buffers else None
        if margin is not None:
            yield name or type(part).__name__, margin


def _copied(model: nn.Module, caller: str) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise InputError(
            f"{caller}: the model can't be copied ({reason}); bake its last layer alone, or an "
            f"ONNX export."
        ) from error


def raw(tensor: Tensor) -> RawTensor:
    """A tensor of floats as bytes."""
    plain = tensor.detach().cpu().contiguous()
    data = plain.view(torch.uint8).numpy().tobytes() if plain.ndim else plain.numpy().tobytes()
    return RawTensor(_DTYPES[tensor.dtype], tuple(tensor.shape), data)


def _tensor(stored: RawTensor, like: Tensor) -> Tensor:
    data = torch.frombuffer(bytearray(stored.data), dtype=torch.uint8)
    dtype = next(key for key, name in _DTYPES.items() if name == stored.dtype)
    return data.view(dtype).reshape(stored.shape).to(like.device)


def _put(layer: Any, part: str, stored: RawTensor | None) -> None:
    """Replace a parameter by a new one: the old may be shared with another layer."""
    old = getattr(layer, part)
    if stored is None:
        layer.register_parameter(part, None)
        return
    like = layer.weight if old is None else old
    new = nn.Parameter(_tensor(stored, like), requires_grad=like.requires_grad)
    setattr(layer, part, new)


def _sizes(model: nn.Module, change: Change, layer: str | None) -> dict[str, Size]:
    """Sizes of the linear layers; convolutions count, too, where none of these fits.

    A convolution whose channels a linear layer behind it may take is not the last, so it must be
    named.
    """
    linear: dict[str, Size] = {}
    convolutions: dict[str, Size] = {}
    for name, module in model.named_modules():
        kind = type(module)  # a quantized layer is no nn.Linear, but a message should name it
        quantized = kind.__module__.startswith(_QUANTIZED) and "Linear" in kind.__name__
        if isinstance(module, nn.Linear) or quantized:
            found = (getattr(module, part, 0) for part in ("out_features", "in_features"))
            linear[name] = size = Size(*map(int, found))
            if layer is None:
                convolutions = {k: c for k, c in convolutions.items() if size.inputs % c.outputs}
        elif isinstance(module, _CONVOLUTIONS):
            convolutions[name] = Size(module.out_channels, module.in_channels)
    if any(change.fits(size.outputs) for size in linear.values()) and layer is None:
        return linear
    return linear | convolutions


def _layer_of(module: Any, name: str, change: Change) -> Layer:
    caller, weight = change.caller, module.weight
    if not isinstance(weight, Tensor):
        raise InputError(
            f"{caller}: {name} is a quantized layer ({type(module).__module__}."
            f"{type(module).__name__}); only layers of float64, float32, float16 or bfloat16 "
            f"weights can be baked: bake the model before you quantize it."
        )
    if nn.parameter.is_lazy(weight) or weight.is_meta:
        raise InputError(
            f"{caller}: the weights of {name} are not there yet; load them or run the model once."
        )
    if not {"weight", "bias"} <= set(module._parameters):
        raise InputError(
            f"{caller}: {name} is parametrized or pruned, so its weights are computed anew each "
            f"time; call torch.nn.utils.parametrize.remove_parametrizations (for the older way "
            f"remove_weight_norm or remove_spectral_norm, for pruning prune.remove) first."
        )
    dtype = _DTYPES.get(weight.dtype, str(weight.dtype).removeprefix("torch."))
    bias = module.bias
    stored = raw(bias) if isinstance(bias, Tensor) and bias.dtype in _DTYPES else None
    width = getattr(module, "out_features", None) or module.out_channels
    return Layer(name, int(width), dtype, lambda: raw(weight), stored)


def _check(before: Any, after: Any, change: Change, name: str) -> None:
    """Random features through the layer before and after."""
    weight = before.weight
    if isinstance(before, _CONVOLUTIONS):
        extent = [
            step * (size - 1) + 1
            for step, size in zip(before.dilation, before.kernel_size, strict=True)
        ]
        shape = (_ROWS, before.in_channels, *extent)
    else:
        shape = (_ROWS, weight.shape[1])
    random = torch.Generator().manual_seed(0)
    features = torch.randn(shape, generator=random).to(weight.device, weight.dtype)
    with torch.no_grad():
        old, new = before(features), after(features)
    _compare(old, new, before, change, name)


def _check_whole(
    model: nn.Module, baked: nn.Module, layer: Any, inputs: Any, change: Change
) -> None:
    """The user's inputs through the whole module before and after."""
    old, new = (_logits(module, inputs, change) for module in (model, baked))
    if not _compare_probabilities(old, new, layer, change):
        _compare(old, new, layer, change, "the model")


def _compare_probabilities(old: Tensor, new: Tensor, layer: Any, change: Change) -> bool:
    """Where a module ends in a softmax: refuse what is not softmax(log p + c); False if it doesn't.

    The logarithms of a log-softmax are compared as probabilities too, since small ones underflow.
    """
    axis = 1 if isinstance(layer, _CONVOLUTIONS) and old.ndim > 2 else -1
    before, after = (as_numpy(part.double().movedim(axis, -1)) for part in (old, new))
    dtype = _DTYPES[layer.weight.dtype]
    if change.needs_weight or before.shape[-1] < 2:
        return False
    if np.all(before <= 0):
        before, after = np.exp(before), np.exp(after)
    if np.any(before < 0) or np.any(abs(before.sum(-1) - 1) > max(1e-4, 4 * EPS[dtype])):
        return False
    _, offset = change.affine(before.shape[-1], lambda: None, None)
    odds = before * np.exp(offset - offset.max())
    wanted = odds / odds.sum(-1, keepdims=True)
    # By the digits of bfloat16 probabilities would pass for anything.
    dtype = "F16" if dtype == "BF16" else dtype
    close_enough(after, wanted, dtype=dtype, size=0.0, where="the model", caller=change.caller)
    return True


def _compare(old: Tensor, new: Tensor, layer: Any, change: Change, where: str) -> None:
    """Refuse logits that are not s·f + c of those before."""
    if isinstance(layer, _CONVOLUTIONS) and old.ndim > 2:
        old, new = old.movedim(1, -1), new.movedim(1, -1)
    f, got = as_numpy(old.double()), as_numpy(new.double())
    bias = None if layer.bias is None else raw(layer.bias).values()
    scale, offset = change.affine(f.shape[-1], lambda: raw(layer.weight).values(), bias)
    size = float(abs(f).max(initial=0.0) * max(1.0, scale.max()) + abs(offset).max())
    dtype = _DTYPES[layer.weight.dtype]
    close_enough(got, f * scale + offset, dtype=dtype, size=size, where=where, caller=change.caller)


def _logits(module: nn.Module, inputs: Any, change: Change) -> Tensor:
    """What a module gives, in evaluation mode; its `logits` where it gives several things."""
    training = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            if isinstance(inputs, Mapping):
                found = module(**inputs)
            else:
                found = module(*inputs) if isinstance(inputs, tuple) else module(inputs)
    except Exception as error:
        reason = " ".join(str(error).split())[:300].rstrip(".")
        raise InputError(
            f"{change.caller}: the model can't be run on the given `inputs` "
            f"({type(error).__name__}: {reason}); pass what it is called with: a tensor, a tuple, "
            f"or a dictionary of keywords."
        ) from error
    finally:
        for part, mode in training.items():
            part.training = mode
    if isinstance(found, Mapping):
        found = found.get("logits")
    elif isinstance(found, tuple):
        found = found[0]
    if not isinstance(found, Tensor) or found.ndim < 2:
        raise InputError(
            f"{change.caller}: on `inputs` the model must give logits of shape (examples, "
            f"classes), or a dictionary with `logits`, or a tuple that begins with them."
        )
    return found
