"""Baking torch modules: the last linear layer gets a new bias (and weight).

The record is an attribute of the module, in the metadata of its state dict (where it adds no key,
so that the plain network loads it) and, in a model of transformers, in `model.config`, which
survives save_pretrained and from_pretrained.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.special import log_softmax
from torch import Tensor, nn

from longtail._checks import InputError, as_numpy
from longtail.bake._change import (
    ATTRIBUTE,
    DTYPES,
    EPS,
    KEY,
    BakeRecord,
    Change,
    RawTensor,
    bake_layers,
    close_enough,
    original_layers,
)
from longtail.losses import PairwiseMarginLoss
from longtail.margins import Margin
from longtail.posthoc import AdjustedTwiceWarning, adjusted_twice, log_probs

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_HARMLESS = (
    *(nn.Softmax, nn.LogSoftmax, nn.Softmax2d),
    *(nn.Identity, nn.Dropout, nn.Flatten, nn.Sequential),
)


def bake(model: Any, change: Change, layers: Sequence[str], inputs: Any) -> Any:
    """Return a baked copy of a module, checked on `inputs` or, without them, layer by layer."""
    modules: dict[str, Any] = {
        name: part for name, part in model.named_modules() if isinstance(part, _LAYERS)
    }
    sizes = {name: (part.weight.shape[0], part.weight.shape[1]) for name, part in modules.items()}
    made, text = bake_layers(sizes, partial(_read, model), change, layers, ordered=True)
    baked = copy.deepcopy(model)
    for name, new in made.items():
        after = baked.get_submodule(name)
        for part, tensor in new.tensors.items():
            _put(after, part, tensor)
        if inputs is None:
            _check_layer(modules[name], after, change, new.label)
            _check_order(model, name, new.label)
        if hasattr(model, "save_pretrained"):
            new.warn_of_new_bias()
    if inputs is not None:
        _check_whole(model, baked, [modules[name] for name in made], inputs, change)
    setattr(baked, ATTRIBUTE, text)
    baked.register_state_dict_post_hook(_WriteMetadata())
    if hasattr(getattr(baked, "config", None), "to_json_string"):  # of transformers
        setattr(baked.config, ATTRIBUTE, text)
    _warn_of_losses(model, change)
    return baked


def unbake(model: Any) -> Any:
    """Return a copy of a module with the original weights."""
    restored = copy.deepcopy(model)
    while (found := _marked(restored)) is not None:
        part, text = found
        before = original_layers(BakeRecord.from_json(text), partial(_read, part))
        for name, tensor in before.items():
            layer, _, piece = name.rpartition(".")
            _put(part.get_submodule(layer), piece, tensor)
        if hasattr(part, ATTRIBUTE):
            delattr(part, ATTRIBUTE)
        if hasattr(getattr(part, "config", None), ATTRIBUTE):
            delattr(part.config, ATTRIBUTE)
        for key, hook in list(part._state_dict_hooks.items()):
            if isinstance(hook, _WriteMetadata):
                del part._state_dict_hooks[key]
    return restored


def record_of(model: Any) -> BakeRecord | None:
    """Return the record in a module."""
    found = _marked(model)
    return None if found is None else BakeRecord.from_json(found[1])


def _marked(model: Any) -> tuple[Any, str] | None:
    """Return the baked module, which may stand inside another one, and its record.

    A model that transformers saved and loaded again has it in its configuration alone.
    """
    for part in model.modules():
        if hasattr(part, ATTRIBUTE):
            return part, getattr(part, ATTRIBUTE)
    text = getattr(getattr(model, "config", None), ATTRIBUTE, None)
    return (model, text) if isinstance(text, str) else None


class _WriteMetadata:
    """State-dict hook of a baked module: its record goes into the metadata, not among the keys."""

    def __call__(self, module: Any, state: Any, prefix: str, metadata: dict[str, Any]) -> None:
        metadata[KEY] = getattr(module, ATTRIBUTE)

    def __deepcopy__(self, memo: Any) -> _WriteMetadata:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # A pickled module must load where there is no longtail: the standard library's callable
        # that takes anything and does nothing stands in. The module keeps its record.
        return getattr, (contextlib.nullcontext(), "__exit__")


def raw(tensor: Tensor) -> RawTensor:
    """Return a tensor as bytes."""
    plain = tensor.detach().cpu().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    data = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return RawTensor(DTYPES.get(name, name), tuple(tensor.shape), data)


def tensor_of(stored: RawTensor, like: Tensor) -> Tensor:
    """Return the tensor of some bytes, on the device of another."""
    name = next(key for key, kind in DTYPES.items() if kind == stored.dtype)
    data = torch.frombuffer(bytearray(stored.data), dtype=torch.uint8)
    return data.view(getattr(torch, name)).reshape(stored.shape).to(like.device)


def _read(model: Any, name: str) -> RawTensor | None:
    """Return a parameter by its name; None for a bias that is not there."""
    layer, _, part = name.rpartition(".")
    tensor = getattr(model.get_submodule(layer), part)
    return None if tensor is None else raw(tensor)


def _put(layer: Any, part: str, stored: RawTensor | None) -> None:
    """Replace a parameter by a new one, since the old may be shared with another layer."""
    if stored is None:
        layer.register_parameter(part, None)
        return
    like = layer.weight if getattr(layer, part) is None else getattr(layer, part)
    new = nn.Parameter(tensor_of(stored, like), requires_grad=like.requires_grad)
    setattr(layer, part, new)


def _warn_of_losses(model: Any, change: Change) -> None:
    """Warn if a loss in the model, as a LightningModule holds it, has made the adjustment already.

    Not an error, since the model may have been trained with another one.
    """
    for name, part in model.named_modules():
        if change.prior is None or not isinstance(part, PairwiseMarginLoss):
            continue
        alpha, positive, negative = map(as_numpy, (part.alpha, part.positive, part.negative))
        dense = None if part.dense is None else as_numpy(part.dense)
        margin = Margin(alpha, positive, negative, dense, part.scale, part.name)
        elsewhere = bool({"target_prior", "costs"} & change.settings.keys())
        text = adjusted_twice(margin, change.prior, tau=change.tau, elsewhere=elsewhere)
        if text is not None:
            where = name or type(part).__name__
            warnings.warn(
                f"the model holds a loss ({where}): {text}", AdjustedTwiceWarning, stacklevel=5
            )


def _check_layer(before: Any, after: Any, change: Change, label: str) -> None:
    """Compare a layer with its baked copy on random features."""
    weight = before.weight
    shape: tuple[int, ...] = (64, weight.shape[1])
    if weight.ndim > 2:
        extents = (
            step * size for step, size in zip(before.dilation, before.kernel_size, strict=True)
        )
        shape = (8, before.in_channels, *extents)
    random = torch.Generator().manual_seed(0)
    features = torch.randn(shape, generator=random).to(weight.device, weight.dtype)
    with torch.no_grad():
        _compare(before(features), after(features), before, change, label)


def _check_order(model: Any, name: str, label: str) -> None:
    """Refuse a layer that is not the last of a Sequential; warn where only running would tell."""
    parts = dict(model.named_modules())
    later = list(parts.values())[list(parts).index(name) + 1 :]
    found = [type(p).__name__ for p in later if not isinstance(p, _HARMLESS)]
    found = [kind for kind in found if not kind.endswith("Loss")]
    steps = name.split(".") if name else []
    around = [parts[".".join(steps[:k])] for k in range(len(steps))]
    if not all(isinstance(part, nn.Sequential) for part in around):
        warnings.warn(
            f"only {label} was checked, since what the model does behind it shows only when it "
            f"runs; pass `inputs=`, what the model is called with, to check the whole of it.",
            stacklevel=5,
        )
    elif found:
        raise InputError(
            f"{label} is not the last step, since {found[0]} follows; pass `inputs=`, what the "
            f"model is called with, and the whole of it is checked."
        )


def _check_whole(
    model: Any, baked: Any, layers: Sequence[Any], inputs: Any, change: Change
) -> None:
    """Compare the outputs of a model that have one number per class, before and after."""
    adjusted = 0
    for old, new in zip(_scores(model, inputs), _scores(baked, inputs), strict=True):
        axis = 1 if layers[0].weight.ndim > 2 and old.ndim > 2 else -1
        other_head = len(layers) == 1 and torch.equal(old, new) and change.tau
        if old.shape[axis] == len(layers[0].weight) and not other_head:
            _compare(old, new, layers[0], change, "the model")
            adjusted += 1
    if not adjusted:
        raise InputError(
            "on `inputs` the layer decides no output of the model that has one number per class; "
            "name the last layer with `layer=`."
        )


def _scores(model: Any, inputs: Any) -> list[Tensor]:
    """Return the floating point tensors that a copy of a module gives, in evaluation mode."""
    model = copy.deepcopy(model).eval()
    with torch.no_grad():
        if isinstance(inputs, Mapping):
            found = model(**inputs)
        else:
            found = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    if isinstance(found, Mapping):
        found = [found["logits"]] if "logits" in found else list(found.values())
    parts = found if isinstance(found, tuple | list) else [found]
    scores = [part for part in parts if isinstance(part, Tensor) and part.ndim > 1]
    return [part for part in scores if part.is_floating_point()]


def _compare(old: Tensor, new: Tensor, layer: Any, change: Change, where: str) -> None:
    """Refuse scores that are not the adjusted ones, up to a number per example if normalized."""
    axis = 1 if layer.weight.ndim > 2 and old.ndim > 2 else -1
    before, after = (as_numpy(part.double().movedim(axis, -1)) for part in (old, new))
    weight, bias = _read(layer, "weight"), _read(layer, "bias")
    assert weight is not None
    dtype: str = weight.dtype
    scale, offset = change.affine(
        before.shape[-1], weight.values(), None if bias is None else bias.values()
    )
    known: Any = True
    if before.shape[-1] > 1:
        if before.min() >= 0 and np.allclose(before.sum(-1), 1, atol=max(1e-4, 4 * EPS[dtype])):
            known = (before > 0) & (after > 0)  # probabilities that did not underflow
            before, after = log_probs(before), log_probs(after)
            # By the digits of bfloat16 probabilities would pass for anything.
            dtype = "F16" if dtype == "BF16" else dtype
        before, after = log_softmax(before * scale + offset, -1), log_softmax(after, -1)
    else:
        before = before * scale + offset
    close_enough(np.where(known, after, before), before, dtype=dtype, where=where)
