"""Baking state dicts in memory: new tensors under the same names, and the record as metadata."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from longtail.bake._layers import (
    KEY,
    BakeRecord,
    Change,
    RawTensor,
    bake_layers,
    join,
    layers_of,
    unbake_layers,
    warn_of_new_biases,
)
from longtail.bake._torch import raw, tensor_of


def bake(state: Mapping[str, Any], change: Change, *, layer: Sequence[str] = ()) -> Any:
    """Return a baked copy; tensors that don't change are the same objects."""
    shapes = {name: tuple(t.shape) for name, t in state.items() if hasattr(t, "shape")}

    def read(name: str) -> RawTensor | None:
        return raw(state[name]) if name in state else None

    layers = layers_of(shapes, layer)
    tensors, record, without = bake_layers(layers, read, change, layer, ordered=False)
    warn_of_new_biases(without)
    new = OrderedDict(state)
    for name, tensor in tensors.items():
        new[name] = tensor_of(tensor, state[join(name.rpartition(".")[0], "weight")])
    metadata = copy.deepcopy(getattr(state, "_metadata", {}))
    metadata.setdefault("", {})[KEY] = record
    new._metadata = metadata  # type: ignore[attr-defined]
    return new


def unbake(state: Mapping[str, Any]) -> Any:
    """Return a copy with the original weights, also of a module that stands inside another one."""
    new, metadata = OrderedDict(state), copy.deepcopy(state._metadata)  # type: ignore[attr-defined]
    for prefix, entry in metadata.items():
        if KEY not in entry:
            continue
        layers = {
            join(prefix, layer): undo
            for layer, undo in BakeRecord.from_json(entry.pop(KEY)).undo["layers"].items()
        }
        for name, tensor in unbake_layers(layers, lambda name: raw(state[name])).items():
            if tensor is None:
                del new[name]
            else:
                new[name] = tensor_of(tensor, state[name])
    new._metadata = metadata  # type: ignore[attr-defined]
    return new


def record_of(state: Mapping[str, Any]) -> BakeRecord | None:
    """Return the record in the metadata."""
    entries = getattr(state, "_metadata", {}).values()
    return next((BakeRecord.from_json(entry[KEY]) for entry in entries if KEY in entry), None)
