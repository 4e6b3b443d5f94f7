"""Baking state dicts: in memory, in safetensors files and in Hugging Face folders.

The last linear layer gets a new bias (and weight). The record is in the state dict's metadata, in
the file's, or in config.json and the metadata of the file with the layer. Files are read and
written without torch, piece by piece. The original header is kept in the metadata, so that undoing
gives back the file to the byte.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import json
import shutil
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from longtail import _checks
from longtail._checks import InputError
from longtail.bake._change import (
    ATTRIBUTE,
    KEY,
    BakeRecord,
    Change,
    RawTensor,
    bake_layers,
    join,
    original_layers,
)
from longtail.runs.files import atomic_path, read_json, temporary_name

_HEADER, _CONFIG = "longtail.header", "longtail.config"
_MODEL, _INDEX = "model.safetensors", "model.safetensors.index.json"
# Weights in other formats beside a model, which would stay as they were.
_OTHER_WEIGHTS = {".bin", ".h5", ".msgpack", ".ot", ".pt", ".pth", ".ckpt", ".onnx"}
_PIECE = 1 << 24


def bake(state: Mapping[str, Any], change: Change, layers: Sequence[str], inputs: Any) -> Any:
    """Return a baked copy of a state dict; tensors that don't change are the same objects."""
    from longtail.bake._torch import raw, tensor_of

    shapes = {name: tuple(t.shape) for name, t in state.items() if hasattr(t, "shape")}
    made, text = bake_layers(
        _sizes(shapes, layers),
        lambda name: raw(state[name]) if name in state else None,
        change,
        layers,
        ordered=False,
    )
    new = OrderedDict(state)
    for layer, baked in made.items():
        baked.warn_of_new_bias()
        like = state[join(layer, "weight")]
        new.update({join(layer, part): tensor_of(t, like) for part, t in baked.tensors.items()})
    metadata = copy.deepcopy(getattr(state, "_metadata", {}))
    metadata.setdefault("", {})[KEY] = text
    new._metadata = metadata  # type: ignore[attr-defined]
    return new


def unbake(state: Mapping[str, Any]) -> Any:
    """Return a copy of a state dict with the original weights."""
    from longtail.bake._torch import raw, tensor_of

    new, metadata = OrderedDict(state), copy.deepcopy(state._metadata)  # type: ignore[attr-defined]
    for prefix, entry in metadata.items():
        if KEY not in entry:
            continue
        record = BakeRecord.from_json(entry.pop(KEY))
        for name, tensor in original_layers(record, lambda n: raw(state[n]), prefix).items():
            if tensor is None:
                del new[name]
            else:
                new[name] = tensor_of(tensor, state[name])
    new._metadata = metadata  # type: ignore[attr-defined]
    return new


def record_of(state: Mapping[str, Any] | Path) -> BakeRecord | None:
    """Return the record of a state dict, a safetensors file or a Hugging Face folder.

    A model that transformers saved and loaded again has it in config.json alone.
    """
    if isinstance(state, Path):
        shards = _shards(state)
        texts = [shard.metadata[KEY] for shard in shards if KEY in shard.metadata]
        folder = shards[0].path.parent
        if not texts and (folder / "config.json").is_file():
            texts = [text for key, text in _config(folder).items() if key == ATTRIBUTE]
    else:
        entries = getattr(state, "_metadata", {}).values()
        texts = [entry[KEY] for entry in entries if KEY in entry]
    return BakeRecord.from_json(texts[0]) if texts else None


def bake_file(path: Path, out: Path, change: Change, layers: Sequence[str], inputs: Any) -> None:
    """Write a baked copy of a safetensors file or a Hugging Face folder."""
    home = {name: shard for shard in _shards(path) for name in shard.entries}
    shapes = {name: shard.entries[name]["shape"] for name, shard in home.items()}
    made, text = bake_layers(
        _sizes(shapes, layers),
        lambda name: home[name].read(name) if name in home else None,
        change,
        layers,
        ordered=False,
    )
    texts = {KEY: text}
    for layer, new in made.items():
        if path.is_dir() and join(layer, "bias") not in home and "bias" in new.tensors:
            raise InputError(
                f"layer {layer} has no bias, and from_pretrained would drop a new one and the "
                f"adjustment with it; export the model to ONNX and bake that."
            )
        new.warn_of_new_bias()
    if path.is_dir():
        texts[_CONFIG] = _packed((path / "config.json").read_bytes())
    changed: dict[_File, dict[str, RawTensor | None]] = {}
    for layer, new in made.items():
        shard = home[join(layer, "weight")]
        for part, tensor in new.tensors.items():
            name = join(layer, part)
            changed.setdefault(home.get(name, shard), {})[name] = tensor
    with _target(path, out) as target:
        for shard, tensors in changed.items():
            shard.write(target / shard.path.name if path.is_dir() else target, tensors, texts)
        if path.is_dir():
            document = json.dumps(_config(path) | {ATTRIBUTE: text}, indent=2)
            (target / "config.json").write_text(document + "\n", encoding="utf-8")


def unbake_file(path: Path, out: Path) -> None:
    """Write a copy of a safetensors file or a Hugging Face folder as it was before baking."""
    shards = _shards(path)
    baked = [shard for shard in shards if _HEADER in shard.metadata]
    if not baked:
        raise InputError(
            f"{path} was saved anew after it was baked; load the model and call unbake on it."
        )
    home = {name: shard for shard in shards for name in shard.entries}
    record = BakeRecord.from_json(baked[0].metadata[KEY])
    before = original_layers(record, lambda name: home[name].read(name) if name in home else None)
    with _target(path, out) as target:
        for shard in baked:
            own = {name: tensor for name, tensor in before.items() if home[name] is shard}
            header = _unpacked(shard.metadata[_HEADER])
            shard.copy(target / shard.path.name if path.is_dir() else target, header, own)
        if path.is_dir():
            (target / "config.json").write_bytes(_unpacked(baked[0].metadata[_CONFIG]))


def _sizes(shapes: Mapping[str, Sequence[int]], named: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return (outputs, inputs) of the linear layers among tensors.

    Embeddings are matrices too, and weights with their inputs first (GPT-2's) are told by their
    bias; such count only if they are named.
    """
    sizes = {}
    for name, shape in shapes.items():
        layer, _, part = name.rpartition(".")
        if part == "weight" and len(shape) > 1:
            bias = shapes.get(join(layer, "bias"), shape[:1])
            embeds = "embed" in layer.rpartition(".")[2].lower()
            if layer in named or (tuple(bias) == tuple(shape[:1]) and not embeds):
                sizes[layer] = (shape[0], shape[1])
    return sizes


def _config(folder: Path) -> dict[str, Any]:
    document = read_json(folder / "config.json")
    if not isinstance(document, dict):
        raise InputError(f"{folder / 'config.json'} is not the configuration of a model.")
    return document


class _File:
    """A safetensors file: its header, its metadata, and the entries of its tensors."""

    def __init__(self, path: Path) -> None:
        safetensors = _checks.require("safetensors", extra="train")
        try:
            with safetensors.safe_open(str(path), framework="numpy"):
                pass  # the package checks the header
        except (safetensors.SafetensorError, OSError) as error:
            raise InputError(f"{path} is not a safetensors file: {error}.") from error
        self.path = path
        with open(path, "rb") as file:
            length = file.read(8)
            self.header = length + file.read(int.from_bytes(length, "little"))
        self.entries: dict[str, Any] = json.loads(self.header[8:])
        self.metadata: dict[str, str] = self.entries.pop("__metadata__", {})

    def read(self, name: str) -> RawTensor:
        """Return a tensor."""
        entry = self.entries[name]
        begin, end = entry["data_offsets"]
        with open(self.path, "rb") as file:
            file.seek(len(self.header) + begin)
            return RawTensor(entry["dtype"], tuple(entry["shape"]), file.read(end - begin))

    def write(
        self, out: Path, changed: Mapping[str, RawTensor | None], texts: Mapping[str, str]
    ) -> None:
        """Write a copy with some tensors replaced and new ones behind their layer's weight."""
        order = _by_offset(self.entries)
        for name in changed:
            if name not in self.entries:  # where it is aligned as the weight is
                order.insert(order.index(join(name.rpartition(".")[0], "weight")) + 1, name)
        metadata = {**self.metadata, **texts, _HEADER: _packed(self.header)}
        header: dict[str, Any] = {"__metadata__": metadata}
        place = 0
        for name in order:
            new = changed.get(name)
            begin, end = (0, len(new.data)) if new else self.entries[name]["data_offsets"]
            about = {"dtype": new.dtype, "shape": new.shape} if new else self.entries[name]
            header[name] = {**about, "data_offsets": [place, place + end - begin]}
            place += end - begin
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self.copy(out, len(text).to_bytes(8, "little") + text, changed)

    def copy(self, out: Path, header: bytes, changed: Mapping[str, RawTensor | None]) -> None:
        """Write a file with a header, its tensors from `changed` or else from here."""
        entries = json.loads(header[8:])
        entries.pop("__metadata__", None)
        with (
            atomic_path(out) as temporary,
            open(temporary, "wb") as target,
            open(self.path, "rb") as source,
        ):
            target.write(header)
            for name in _by_offset(entries):
                if new := changed.get(name):
                    target.write(new.data)
                    continue
                begin, end = self.entries[name]["data_offsets"]
                source.seek(len(self.header) + begin)
                for place in range(begin, end, _PIECE):
                    target.write(source.read(min(_PIECE, end - place)))


def _by_offset(entries: Mapping[str, Any]) -> list[str]:
    return sorted(entries, key=lambda name: entries[name]["data_offsets"])


def _shards(path: Path) -> list[_File]:
    """Return the files of a model: itself, or those of a Hugging Face folder."""
    if path.is_file():
        return [_File(path)]
    names = [_MODEL]
    if (path / _INDEX).is_file():
        names = sorted(
            {Path(name).name for name in read_json(path / _INDEX)["weight_map"].values()}
        )
    return [_File(path / name) for name in names]


@contextlib.contextmanager
def _target(path: Path, out: Path) -> Iterator[Path]:
    """Yield where to write: a file itself; for a folder another one, which is renamed at the end.

    The rest of a folder is copied, but for weights in other formats, which are not baked.
    """
    if path.is_file():
        yield out
        return
    staged = temporary_name(out)
    staged.mkdir()
    try:
        yield staged
        for item in sorted(path.iterdir()):
            there = staged / item.name
            if item.is_dir():
                shutil.copytree(item, there)
            elif not there.exists() and item.suffix.lower() not in _OTHER_WEIGHTS:
                shutil.copyfile(item, there)
        staged.rename(out)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 9)).decode()


def _unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))
