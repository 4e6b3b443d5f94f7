"""Baking a state dict in a safetensors file: one layer's tensors change, all else is copied.

The file is read and written as the format defines it (a JSON header, then the tensors' bytes),
piece by piece, so neither torch nor the memory for the whole model is needed, and tensors of any
type pass through untouched. The record is in the header's metadata.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from longtail._checks import FloatArray, InputError
from longtail.bake._change import Change
from longtail.bake._layer import (
    Layer,
    Size,
    bake_layer,
    close_enough,
    original_tensors,
    pick,
    warn_of_new_bias,
)
from longtail.bake._loss import margin_of, warn_if_adjusted
from longtail.bake._record import KEY, BakeRecord, refuse_twice, require_record
from longtail.bake._tensors import FLOATS, RawTensor, refuse_unless_float
from longtail.margins import Margin
from longtail.runs.files import atomic_path

_LARGEST_HEADER = 100_000_000  # the format's own limit
_PIECE = 1 << 24


class StateFile(NamedTuple):
    """The header of a safetensors file.

    Attributes:
        path: the file.
        start: where the tensors' bytes begin.
        metadata: texts by name, or None if there are none.
        entries: dtype, shape and data_offsets of each tensor by name, in the header's order.
    """

    path: Path
    start: int
    metadata: dict[str, str] | None
    entries: dict[str, dict[str, Any]]

    def read(self, name: str) -> RawTensor | None:
        """A tensor, or None if there is no such."""
        if name not in self.entries:
            return None
        entry = self.entries[name]
        begin, end = entry["data_offsets"]
        with open(self.path, "rb") as file:
            file.seek(self.start + begin)
            return RawTensor(entry["dtype"], tuple(entry["shape"]), file.read(end - begin))


def open_state(path: Path, *, caller: str) -> StateFile:
    """The header of a file, checked against its size."""
    size = path.stat().st_size
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, _LARGEST_HEADER):
                raise ValueError("its header has an impossible length")
            header = json.loads(file.read(length))
        metadata = header.pop("__metadata__", None)
        ends = [entry["data_offsets"][1] for entry in header.values()]
        if 8 + length + max(ends, default=0) != size:
            raise ValueError("it is cut off, or longer than its header says")
        for name, entry in header.items():
            if not {"dtype", "shape", "data_offsets"} <= set(entry):
                raise ValueError(f"the entry of {name!r} is incomplete")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{caller}: {path} is not a safetensors file: {error}.") from error
    return StateFile(path, 8 + length, metadata, header)


def record_of(path: Path, *, caller: str) -> BakeRecord | None:
    """What was baked into a file, or None."""
    text = (open_state(path, caller=caller).metadata or {}).get(KEY)
    return None if text is None else BakeRecord.from_json(text, caller=caller)


def bake(path: Path, out: Path, change: Change, *, layer: str | None) -> None:
    """Write a baked copy of a file."""
    caller, name = change.caller, str(path)
    refuse_twice(record_of(path, caller=caller), name=name, caller=caller)
    state = open_state(path, caller=caller)
    chosen = pick(_sizes(state, change, layer), change, layer, name=name, caller=caller)
    found = _layer_of(state, chosen)
    new = bake_layer(found, change)
    _check(found, new.tensors, change)
    record = BakeRecord.of(
        change, where=chosen or found.name, how=new.how, undo={**new.undo, "layer": chosen}
    )
    changed: dict[str, RawTensor | None] = {
        _join(chosen, part): tensor for part, tensor in new.tensors.items()
    }
    metadata = {**(state.metadata or {}), KEY: record.to_json()}
    _write(state, out, changed, metadata, after=_join(chosen, "weight"), caller=caller)
    warn_of_new_bias(found, new, what="this file is loaded", caller=caller)
    warn_if_adjusted(_losses(state), change, name=name)


def unbake(path: Path, out: Path, *, caller: str) -> None:
    """Write a copy with the original weights."""
    record = require_record(record_of(path, caller=caller), name=str(path), caller=caller)
    state, layer = open_state(path, caller=caller), record.undo["layer"]
    before = original_tensors(record, lambda part: state.read(_join(layer, part)), caller=caller)
    metadata = {key: text for key, text in (state.metadata or {}).items() if key != KEY}
    changed = {_join(layer, part): tensor for part, tensor in before.items()}
    _write(state, out, changed, metadata or None, after=_join(layer, "weight"), caller=caller)


def _join(layer: str, part: str) -> str:
    return f"{layer}.{part}" if layer else part


def _sizes(state: StateFile, change: Change, named: str | None) -> dict[str, Size]:
    """Sizes of the layers; kernels of convolutions count where no matrix fits.

    Embeddings are matrices too, as of two kinds of tokens, and are layers only if named; so are
    weights with their inputs first (GPT-2's Conv1D), which their bias tells.
    """
    linear: dict[str, Size] = {}
    convolutions: dict[str, Size] = {}
    for name, entry in state.entries.items():
        layer, _, part = name.rpartition(".")
        if part == "weight" and len(entry["shape"]) >= 2:
            biases = state.entries.get(_join(layer, "bias"), {"shape": entry["shape"][:1]})["shape"]
            turned = math.prod(biases) != entry["shape"][0]
            if layer != named and (turned or "embed" in layer.rpartition(".")[2].lower()):
                continue
            group = linear if len(entry["shape"]) == 2 else convolutions
            group[layer] = Size(*entry["shape"][:2])
    if any(change.fits(size.outputs) for size in linear.values()):
        return linear
    return linear | convolutions


def _losses(state: StateFile) -> Iterator[tuple[str, Margin]]:
    """The losses of `longtail.losses` in a state dict; a scale is not state, and few have one."""

    def reader(place: str) -> Callable[[str], FloatArray | None]:
        def read(part: str) -> FloatArray | None:
            tensor = state.read(_join(place, part))
            return None if tensor is None or tensor.dtype not in FLOATS else tensor.values()

        return read

    for key in state.entries:
        place, _, part = key.rpartition(".")
        margin = margin_of(reader(place)) if part == "alpha" else None
        if margin is not None:
            yield place or "at the top", margin


def _layer_of(state: StateFile, layer: str) -> Layer:
    def weight() -> RawTensor:
        found = state.read(_join(layer, "weight"))
        if found is None:  # pragma: no cover - `pick` chose among those that are there
            raise KeyError(layer)
        return found

    entry = state.entries[_join(layer, "weight")]
    bias = state.read(_join(layer, "bias"))
    name = f"layer {layer}" if layer else "the layer"
    return Layer(name, entry["shape"][0], entry["dtype"], weight, bias)


def _check(layer: Layer, tensors: Mapping[str, RawTensor], change: Change) -> None:
    """Random features through the layer before and after, in float64."""
    refuse_unless_float(layer.dtype, where=layer.name, caller=change.caller)
    weight = layer.weight().values().reshape(layer.width, -1)
    bias = None if layer.bias is None else layer.bias.values()
    new_weight = tensors["weight"].values() if "weight" in tensors else weight
    new_bias = tensors["bias"].values() if "bias" in tensors else 0.0
    features = np.random.default_rng(0).normal(size=(64, weight.shape[1]))
    old = features @ weight.T + (0.0 if bias is None else bias)
    new = features @ new_weight.reshape(weight.shape).T + new_bias
    scale, offset = change.affine(layer.width, lambda: weight, bias)
    size = float(abs(old).max() * max(1.0, scale.max()) + abs(offset).max())
    close_enough(
        new,
        old * scale + offset,
        dtype=layer.dtype,
        size=size,
        where=layer.name,
        caller=change.caller,
    )


def _write(
    state: StateFile,
    out: Path,
    changed: Mapping[str, RawTensor | None],
    metadata: Mapping[str, str] | None,
    *,
    after: str,
    caller: str,
) -> None:
    """Copy a file with some tensors replaced, removed (None), or put in right behind `after`."""
    order = []
    for name in sorted(state.entries, key=lambda key: state.entries[key]["data_offsets"]):
        if name not in changed or changed[name] is not None:
            order.append(name)
        if name == after:  # beside its weight a new bias is aligned as the weight is
            order += [key for key, new in changed.items() if new and key not in state.entries]
    offsets, place = {}, 0
    for name in order:
        new = changed.get(name)
        begin, end = (0, len(new.data)) if new else state.entries[name]["data_offsets"]
        offsets[name] = [place, place + end - begin]
        place += end - begin
    listed = [name for name in state.entries if name in offsets]
    listed += [name for name in order if name not in state.entries]
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    for name in listed:
        new = changed.get(name)
        about = {"dtype": new.dtype, "shape": list(new.shape)} if new else state.entries[name]
        header[name] = {**about, "data_offsets": offsets[name]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _LARGEST_HEADER:
        raise InputError(
            f"{caller}: the record of what is baked would make the header of {out} larger than a "
            f"safetensors file may have; bake an ONNX export instead."
        )
    with atomic_path(out) as temporary, open(temporary, "wb") as target:
        target.write(len(text).to_bytes(8, "little") + text)
        with open(state.path, "rb") as source:
            for name in order:
                new = changed.get(name)
                if new:
                    target.write(new.data)
                else:
                    begin, end = state.entries[name]["data_offsets"]
                    _copy(source, target, state.start + begin, end - begin)


def _copy(source: BinaryIO, target: BinaryIO, start: int, length: int) -> None:
    source.seek(start)
    while length:
        piece = source.read(min(_PIECE, length))
        target.write(piece)
        length -= len(piece)
