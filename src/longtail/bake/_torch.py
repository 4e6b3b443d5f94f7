"""Baking torch modules and state dicts: the last linear layer gets a new bias (and weight).

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
from longtail.bake._layers import (
    ATTRIBUTE,
    DTYPES,
    EPS,
    KEY,
    BakeRecord,
    Change,
    RawTensor,
    bake_layers,
    close_enough,
    label_of,
    unbake_layers,
    warn_of_new_biases,
)
from longtail.losses import PairwiseMarginLoss
from longtail.margins import Margin
from longtail.posthoc import AdjustedTwiceWarning, adjusted_twice, log_probs

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_SOFTMAX = (nn.Softmax, nn.LogSoftmax, nn.Softmax2d)


def bake(model: Any, change: Change, *, layer: Sequence[str] = (), inputs: Any = None) -> Any:
    """Return a baked copy of a module, checked on `inputs` or, without them, layer by layer."""
    layers = {name: part for name, part in model.named_modules() if isinstance(part, _LAYERS)}
    sizes = {name: part.weight.shape for name, part in layers.items()}
    tensors, record, without = bake_layers(
        sizes, partial(_read, model), change, layer, ordered=True
    )
    baked = copy.deepcopy(model)
    for name, tensor in tensors.items():
        _put(baked, name, tensor)
    names = list(dict.fromkeys(name.rpartition(".")[0] for name in tensors))
    for name in names if inputs is None else ():
        _check_end(model, baked, name, change)
    if inputs is not None:
        _check(model, baked, [layers[name] for name in names], inputs, change, "the model")
    if hasattr(model, "save_pretrained"):
        warn_of_new_biases(without)
    setattr(baked, ATTRIBUTE, record)
    baked.register_state_dict_post_hook(_WriteMetadata())
    if hasattr(getattr(baked, "config", None), "to_json_string"):  # of transformers
        setattr(baked.config, ATTRIBUTE, record)
    _warn_of_losses(model, change)
    return baked


def unbake(model: Any) -> Any:
    """Return a copy of a module with the original weights."""
    restored = copy.deepcopy(model)
    for part, text in _records(restored):
        layers = BakeRecord.from_json(text).undo["layers"]
        for name, tensor in unbake_layers(layers, partial(_read, part)).items():
            _put(part, name, tensor)
        for holder in (part, getattr(part, "config", None)):
            if hasattr(holder, ATTRIBUTE):
                delattr(holder, ATTRIBUTE)
        for key, hook in list(part._state_dict_hooks.items()):
            if isinstance(hook, _WriteMetadata):
                del part._state_dict_hooks[key]
    return restored


def record_of(model: Any) -> BakeRecord | None:
    """Return the record in a module."""
    return next((BakeRecord.from_json(text) for _, text in _records(model)), None)


def _records(model: Any) -> list[tuple[Any, str]]:
    """Return the baked modules, which may stand inside another one, and their records.

    A model that transformers saved and loaded again has it in its configuration alone.
    """
    parts = [part for part in model.modules() if hasattr(part, ATTRIBUTE)]
    text = getattr(getattr(model, "config", None), ATTRIBUTE, None)
    alone = [(model, text)] if isinstance(text, str) else []
    return [(part, getattr(part, ATTRIBUTE)) for part in parts] or alone


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


def _read(model: Any, name: str) -> RawTensor | None:
    """Return a parameter by its name; None for a bias that is not there."""
    layer, _, part = name.rpartition(".")
    tensor = getattr(model.get_submodule(layer), part)
    return None if tensor is None else raw(tensor)


def _put(model: Any, name: str, stored: RawTensor | None) -> None:
    """Replace a parameter by a new one, since the old may be shared with another layer."""
    path, _, part = name.rpartition(".")
    layer = model.get_submodule(path)
    if stored is None:
        layer.register_parameter(part, None)
        return
    like = layer.weight if getattr(layer, part) is None else getattr(layer, part)
    new = nn.Parameter(tensor_of(stored, like), requires_grad=like.requires_grad)
    setattr(layer, part, new)


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


def _check_end(model: Any, baked: Any, name: str, change: Change) -> None:
    """Compare a layer, with what follows it in a Sequential, on random features.

    Only running the model would tell what else does with the layer's outputs.
    """
    layer, label = model.get_submodule(name), label_of(name)
    before, after = [layer], [baked.get_submodule(name)]
    chain = _chain(model)
    places = [k for k, part in enumerate(chain) if part is layer]
    if places:
        before, after = chain[places[-1] :], _chain(baked)[places[-1] :]
    else:
        warnings.warn(
            f"only {label} was checked, since what the model does behind it shows only when it "
            f"runs; pass `inputs=`, what the model is called with, to check the whole of it.",
            stacklevel=5,
        )
    shape: tuple[int, ...] = (64, layer.weight.shape[1])
    if layer.weight.ndim > 2:
        spans = zip(layer.dilation, layer.kernel_size, strict=True)
        shape = (8, layer.in_channels, *(step * size for step, size in spans))
    random = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    features = random.to(layer.weight.device, layer.weight.dtype)
    try:
        _check(nn.Sequential(*before), nn.Sequential(*after), [layer], features, change, label)
    except RuntimeError as error:  # of torch, as where pooling wants larger images
        raise InputError(
            f"what follows {label} can't run on random features ({error}); pass `inputs=`, what "
            f"the model is called with, to check the whole of it."
        ) from error


def _chain(model: Any) -> list[Any]:
    """Return the steps of a Sequential, in which others may stand, but for softmax and loss."""
    if isinstance(model, nn.Sequential):
        return [step for part in model for step in _chain(part)]
    skipped = isinstance(model, _SOFTMAX) or type(model).__name__.endswith("Loss")
    return [] if skipped else [model]


def _check(
    model: Any, baked: Any, layers: Sequence[Any], inputs: Any, change: Change, where: str
) -> None:
    """Compare the outputs of a module that have one number per class, before and after."""
    width = len(layers[0].weight)
    found = [
        (old, new, axis)
        for old, new in zip(_scores(model, inputs), _scores(baked, inputs), strict=True)
        for axis in [1 if layers[0].weight.ndim > 2 and old.ndim > 2 else -1]
        if old.shape[axis] == width
    ]
    if len(layers) == 1:  # outputs of other heads stay as they are
        found = [pair for pair in found if not torch.equal(pair[0], pair[1])] or found
    for old, new, axis in found:
        _compare(old.movedim(axis, -1), new.movedim(axis, -1), layers[0], change, where)
    if not found:
        raise InputError(
            "the layer decides no output of the model that has one number per class; name the last "
            "layer with `layer=`."
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
    before, after = (as_numpy(part.double()) for part in (old, new))
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
