"""Baking safetensors files and Hugging Face folders.

The record is in the metadata of the files that change, and in config.json. What was there before,
the header and config.json, is kept in the metadata too, so that undoing gives it back to the byte.
Tensors are read and written one at a time, without torch.
"""

from __future__ import annotations

import base64
import json
import shutil
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from longtail._checks import InputError
from longtail.bake._layers import (
    ATTRIBUTE,
    KEY,
    BakeRecord,
    Change,
    RawTensor,
    bake_layers,
    label_of,
    layers_of,
    unbake_layers,
    warn_of_new_biases,
)
from longtail.runs.files import atomic_path, read_json, temporary_name

_HEADER, _CONFIG = "longtail.header", "longtail.config"
# Weights in other formats beside a model, which would stay as they were.
_OTHER_WEIGHTS = {".bin", ".h5", ".msgpack", ".ot", ".pt", ".pth", ".ckpt", ".onnx"}


class _File:
    """A safetensors file; `header` and `changed` are what is to be written instead of its own."""

    def __init__(self, path: Path) -> None:
        try:
            with safe_open(str(path), framework="numpy"):
                pass  # the package checks the header
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path} is not a safetensors file: {error}.") from error
        with open(path, "rb") as file:
            length = file.read(8)
            self.header = length + file.read(int.from_bytes(length, "little"))
        self.path, self.start = path, len(self.header)
        self.entries: dict[str, Any] = json.loads(self.header[8:])
        self.metadata: dict[str, str] = self.entries.pop("__metadata__", {})
        self.changed: Mapping[str, RawTensor | None] = {}

    def read(self, name: str) -> RawTensor:
        """Return a tensor as it is."""
        entry = self.entries[name]
        begin, end = entry["data_offsets"]
        with open(self.path, "rb") as file:
            file.seek(self.start + begin)
            return RawTensor(entry["dtype"], tuple(entry["shape"]), file.read(end - begin))

    def change(self, changed: Mapping[str, RawTensor], texts: Mapping[str, str]) -> None:
        """Take new tensors, those of new names behind their layer's weight, and metadata."""
        order = _by_offset(self.entries)
        for name in changed:
            if name not in self.entries:  # where it is aligned as the weight is
                order.insert(order.index(name.removesuffix("bias") + "weight") + 1, name)
        metadata = {**self.metadata, **texts, _HEADER: _packed(self.header)}
        header: dict[str, Any] = {"__metadata__": metadata}
        place = 0
        for name in order:
            entry = dict(self.entries.get(name, {}))
            begin, end = entry.get("data_offsets", (0, 0))
            if new := changed.get(name):
                entry |= {"dtype": new.dtype, "shape": new.shape}
                begin, end = 0, len(new.data)
            header[name] = entry | {"data_offsets": [place, place + end - begin]}
            place += end - begin
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self.header, self.changed = len(text).to_bytes(8, "little") + text, changed

    def write(self, out: Path) -> None:
        """Write the header, and behind it the tensors."""
        entries = json.loads(self.header[8:])
        entries.pop("__metadata__", None)
        with atomic_path(out) as temporary, open(temporary, "wb") as target:
            target.write(self.header)
            for name in _by_offset(entries):
                target.write((self.changed.get(name) or self.read(name)).data)


class Model:
    """The files of a model, and the config.json beside them if there is one."""

    def __init__(self, path: Path) -> None:
        self.path, files = path, [path]
        self.folder = path if path.is_dir() else path.parent
        config = None
        with suppress(InputError, OSError):
            config = read_json(self.folder / "config.json")
        self.config: dict[str, Any] = config if isinstance(config, dict) else {}
        self.new_config = b""
        if path.is_dir():
            files = sorted(path.glob("model.safetensors")) or sorted(
                path.glob("model-*.safetensors")
            )
            if not files or not self.config:
                raise InputError(
                    f"{path} is not a folder as transformers writes it, with the settings of a "
                    f"model in config.json and its weights in model.safetensors; name the model's "
                    f"file."
                )
        self.files = [_File(file) for file in files]

    def read(self, name: str) -> RawTensor | None:
        """Return a tensor as it is, None if there is none."""
        return next((file.read(name) for file in self.files if name in file.entries), None)


load = Model


def record_of(model: Model) -> BakeRecord | None:
    """Return the record of a model; if transformers loaded and saved it, of config.json alone."""
    places = [(file.metadata, KEY) for file in model.files] + [(model.config, ATTRIBUTE)]
    texts = [texts[key] for texts, key in places if key in texts]
    return BakeRecord.from_json(texts[0]) if texts else None


def bake(model: Model, change: Change, *, layer: Sequence[str] = ()) -> Model:
    """Give a model new tensors, and the record."""
    shapes = {name: entry["shape"] for file in model.files for name, entry in file.entries.items()}
    layers = layers_of(shapes, layer)
    tensors, record, without = bake_layers(layers, model.read, change, layer, ordered=False)
    texts = {KEY: record}
    if model.path.is_dir():
        if without:
            raise InputError(
                f"{label_of(without[0])} has no bias, and from_pretrained would drop a new one and "
                f"the adjustment with it; export the model to ONNX and bake that."
            )
        texts[_CONFIG] = _packed((model.folder / "config.json").read_bytes())
        config = json.dumps(model.config | {ATTRIBUTE: record}, indent=2) + "\n"
        model.new_config = config.encode()
    warn_of_new_biases(without)
    for file in model.files:
        own = {k: new for k, new in tensors.items() if k in file.entries or len(model.files) == 1}
        if own:
            file.change(own, texts)
    return model


def unbake(model: Model) -> Model:
    """Give a model its tensors from before."""
    baked = [file for file in model.files if _HEADER in file.metadata]
    if not baked:
        raise InputError(
            f"{model.path} was saved anew after it was baked; load the model and call unbake on it."
        )
    metadata = baked[0].metadata
    before = unbake_layers(BakeRecord.from_json(metadata[KEY]).undo["layers"], model.read)
    for file in baked:
        file.header, file.changed = _unpacked(file.metadata[_HEADER]), before
    if model.path.is_dir():
        model.new_config = _unpacked(metadata[_CONFIG])
    return model


def save(model: Model, out: Path) -> Path:
    """Write a file; or a folder under another name, which is renamed at the end.

    The rest of a folder is copied, but for weights in other formats, which are not baked.
    """
    if model.path.is_file():
        model.files[0].write(out)
        return out
    staged = temporary_name(out)
    staged.mkdir()
    try:
        for file in model.files:
            file.write(staged / file.path.name)
        (staged / "config.json").write_bytes(model.new_config)
        for item in sorted(model.path.iterdir()):
            there = staged / item.name
            if item.is_dir():
                shutil.copytree(item, there)
            elif not there.exists() and item.suffix.lower() not in _OTHER_WEIGHTS:
                shutil.copyfile(item, there)
        staged.rename(out)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return out


def _by_offset(entries: Mapping[str, Any]) -> list[str]:
    return sorted(entries, key=lambda name: entries[name]["data_offsets"])


def _packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 9)).decode()


def _unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))
