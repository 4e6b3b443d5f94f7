"""The arithmetic of baking for linear layers, and the record that can undo it.

Both post-hoc methods are affine in the logits, f' = s·f + c with one s and c per class, so a
layer f = W x + b takes them up as W' = s·W and b' = s·b + c. Arithmetic is in float64 and rounded
once to the layer's own type. A layer with one output for two classes gives the margin
d = f_1 − f_0, to which c_1 − c_0 is added.

Wherever the layers are (a module, a state dict, files), they come as tensors by name and go as
tensors by name with a record.
"""

from __future__ import annotations

import base64
import hashlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from longtail._checks import FloatArray, InputError, listing
from longtail.posthoc import normalize_weights
from longtail.priors import ClassPrior

FORMAT = 4
# Name of the record: in the metadata of a file or of a state dict, and as an attribute.
KEY = "longtail.baked"
ATTRIBUTE = "longtail_baked"

# Types by the names of safetensors.
DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
EPS = {"F64": 2.0**-52, "F32": 2.0**-23, "F16": 2.0**-10, "BF16": 2.0**-7}
# The original weights travel in the record as text, and a safetensors header has its limit.
_MOST_STORED = 48 << 20


class RawTensor(NamedTuple):
    """A tensor as safetensors stores it: name of its type, shape, little-endian bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def values(self) -> FloatArray:
        """Return the numbers as float64."""
        if self.dtype not in FLOATS:
            raise InputError(
                f"the layer's tensors are {self.dtype}, and only float64, float32, float16 and "
                f"bfloat16 can be baked; bake the model before it is quantized, or its ONNX export."
            )
        stored = np.frombuffer(self.data, FLOATS[self.dtype])
        if self.dtype == "BF16":  # the upper half of a float32
            stored = (stored.astype(np.uint32) << 16).view(np.float32)
        return stored.astype(np.float64).reshape(self.shape)

    @classmethod
    def of(cls, values: FloatArray, dtype: str) -> RawTensor:
        """Return numbers rounded to a type, to nearest even; refuse what it can't hold."""
        with np.errstate(over="ignore"):
            rounded = values.astype(np.float32 if dtype == "BF16" else FLOATS[dtype])
        if not np.all(np.isfinite(rounded)):
            raise InputError(
                f"the baked layer would not be finite in {dtype}: its weights are not, or tau is "
                f"too large."
            )
        if dtype == "BF16":
            bits = rounded.view(np.uint32)
            rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
        return cls(dtype, values.shape, rounded.tobytes())

    def to_json(self) -> dict[str, Any]:
        """Return the tensor for a record."""
        text = base64.b64encode(self.data).decode()
        return {"dtype": self.dtype, "shape": self.shape, "data": text}

    def digest(self) -> str:
        """Return SHA-256 of the bytes."""
        return hashlib.sha256(self.data).hexdigest()


# Returns the tensor of a name, None if there is none.
Read = Callable[[str], RawTensor | None]


@dataclass(frozen=True)
class Change:
    """An adjustment, before the layer that takes it up is known."""

    tau: float
    settings: dict[str, Any]  # what else decides the result, for the record
    num_classes: int | None  # None where only the layer knows
    prior: ClassPrior | None = None  # None for weight normalization, as `shift`
    shift: FloatArray | None = None  # −τ (log π − log q − log c), shape (num_classes,)
    norms: FloatArray | None = None  # ν, or None for those of the layer's own weights
    bias_mode: str = "scale"

    def fits(self, width: int) -> bool:
        """Return whether a layer of so many outputs can take it up."""
        if width == 1:
            return self.shift is not None and self.num_classes == 2
        return width == self.num_classes or self.num_classes is None

    def affine(
        self, width: int, weight: FloatArray | None = None, bias: FloatArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return s and c, shape (width,), for a layer of `width` outputs."""
        if not self.fits(width):
            raise InputError(
                f"the model has {width} outputs, but the adjustment is for "
                f"{self.num_classes or 'two or more'} classes; give one number per output, in "
                f"their order."
            )
        if self.shift is not None:
            return np.ones(width), self.shift if width > 1 else np.diff(self.shift)
        norms = self.norms
        if norms is None:
            if weight is None:
                raise InputError("the last layer's weights are not in plain sight; pass `norms`.")
            norms = np.linalg.norm(weight.reshape(width, -1), axis=1)
        scale = normalize_weights(np.ones(width), norms=norms, tau=self.tau)
        if self.bias_mode == "scale" or bias is None:
            return scale, np.zeros(width)
        return scale, (bias if self.bias_mode == "keep" else 0.0) - bias * scale

    def record(self, *, where: str, how: str, undo: Mapping[str, Any]) -> str:
        """Return the record of the change once it was made, as the text that the model carries."""
        from longtail import __version__

        method = "weight_normalization" if self.shift is None else "logit_adjustment"
        record = BakeRecord(method, self.tau, where, how, self.settings, undo, __version__)
        document = {"format": FORMAT, **vars(record)}
        return json.dumps(document, ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True)
class BakeRecord:
    """Record of what was baked into a model, as `bake_record` reads it.

    Attributes:
        method: ``logit_adjustment`` or ``weight_normalization``.
        tau: τ.
        where: the layer or tensor whose numbers are now the adjusted logits.
        how: what was changed.
        settings: what else decides the result: ``prior``, ``target_prior`` and ``costs``, or
            ``norms`` and ``bias_mode``.
        undo: what `unbake` needs.
        version: of longtail.
    """

    method: str
    tau: float
    where: str
    how: str
    settings: Mapping[str, Any] = field(repr=False)
    undo: Mapping[str, Any] = field(repr=False)
    version: str = ""

    def __str__(self) -> str:
        name = self.method.replace("_", " ")
        if "bias_mode" in self.settings:
            name += f" (bias: {self.settings['bias_mode']})"
        return f"{name} with tau = {self.tau:.4g}"

    @classmethod
    def from_json(cls, text: str) -> BakeRecord:
        """Return the record of the text that a model carries."""
        try:
            document = json.loads(text)
            if document.pop("format") == FORMAT:
                record = cls(**document)
                str(record)  # the parts are of their kinds
                return record
        except Exception:  # somebody else's text can go wrong anywhere
            pass
        raise InputError(
            f"the model has a record of baking, {KEY}, that this version of longtail can't read."
        )


def bake_layer(
    label: str, weight: RawTensor, bias: RawTensor | None, change: Change
) -> tuple[dict[str, RawTensor], dict[str, Any], str]:
    """Change a linear layer, whose outputs come first.

    Returns:
        The new tensors by ``weight`` and ``bias``; what undoes them: the original ones as JSON
        (None for a bias that was not there) and, under ``baked``, the digests of the new ones; and
        what was done, for people.
    """
    width = weight.shape[0]
    old = None if bias is None else bias.values().reshape(-1)
    if old is not None and old.size != width:
        raise InputError(
            f"{label} has {width} rows of weights but a bias of {old.size}, so its outputs are not "
            f"first; bake an ONNX export."
        )
    rows = weight.values() if change.shift is None else None  # eight bytes for each weight
    scale, offset = change.affine(width, rows, old)
    tensors, undo = {}, dict[str, Any]()
    if rows is not None:
        if len(weight.data) > _MOST_STORED:
            raise InputError(
                f"{label} has {len(weight.data) >> 20} MiB of weights, too many to keep the "
                f"originals in the record; bake an ONNX export, whose weights stay as they are."
            )
        by_row = scale.reshape(-1, *[1] * (rows.ndim - 1))
        tensors["weight"] = RawTensor.of(rows * by_row, weight.dtype)
        undo["weight"] = weight.to_json()
    how = f"added to the bias of {label}"
    if bias is not None and old is not None:
        new = (old * scale + offset).reshape(bias.shape)
        tensors["bias"], undo["bias"] = RawTensor.of(new, bias.dtype), bias.to_json()
    elif change.shift is not None:
        tensors["bias"], undo["bias"] = RawTensor.of(offset, weight.dtype), None
        how = f"as a new bias of {label}, which had none"
    if rows is not None:
        how = f"folded into the {' and '.join(tensors)} of {label}"
    undo["baked"] = {part: tensor.digest() for part, tensor in tensors.items()}
    return tensors, undo, how


def bake_layers(
    sizes: Mapping[str, Sequence[int]],
    read: Read,
    change: Change,
    named: Sequence[str],
    *,
    ordered: bool,
) -> tuple[dict[str, RawTensor], str, list[str]]:
    """Change the named layers, or the only one that can be last.

    A layer that others follow must be named: in a network they are `ordered`, as it was built; in a
    state dict those that take as many inputs may follow. `sizes` are (outputs, inputs, ...) of the
    linear layers.

    Returns:
        The new tensors by name, the record, and the layers that had no bias before.
    """
    shown = listing(
        (f"{name or 'one layer'!r} ({sizes[name][0]} outputs)" for name in [*sizes][::-1]), most=5
    )
    for name in named:
        if name not in sizes:
            raise InputError(f"there is no linear layer {name!r}; the model has {shown or 'none'}.")
    if not named:
        named = [name for name, size in sizes.items() if change.fits(size[0])]
        followed = named != [*sizes][-1:]
        if not ordered:
            followed = any(size[1] == sizes[name][0] for name in named for size in sizes.values())
        if followed or len(named) != 1:
            outputs = "" if change.num_classes is None else f" of {change.num_classes} outputs"
            raise InputError(
                f"the last linear layer{outputs}, one per class, can't be told; the model has "
                f"{shown or 'none'}. Name the one whose outputs are the logits with `layer=`, or "
                f"several; for a head that is not a plain linear layer, bake an ONNX export."
            )
    tensors, undo, how, without = dict[str, RawTensor](), dict[str, Any](), [], []
    for name in dict.fromkeys(named):
        weight, bias = read(join(name, "weight")), read(join(name, "bias"))
        assert weight is not None  # its size is known
        new, undo[name], done = bake_layer(label_of(name), weight, bias, change)
        tensors |= {join(name, part): tensor for part, tensor in new.items()}
        how.append(done)
        without += [name] if bias is None and "bias" in new else []
    where = ", ".join(undo) or "the layer"
    return (
        tensors,
        change.record(where=where, how=" and ".join(how), undo={"layers": undo}),
        without,
    )


def warn_of_new_biases(layers: Sequence[str]) -> None:
    """Warn that layers were built without a bias and have one now."""
    for name in layers:
        warnings.warn(
            f"{label_of(name)} had no bias and has one now. A network that loads these weights "
            f"must be built with a bias there, or the adjustment is lost (from_pretrained of "
            f"transformers drops it); to leave the network as it is, bake its ONNX export.",
            stacklevel=5,
        )


def unbake_layers(layers: Mapping[str, Any], read: Read) -> dict[str, RawTensor | None]:
    """Return the tensors before baking by name, None for a bias that was not there.

    `layers` is what `bake_layer` gave to undo each layer, by its name.
    """
    before: dict[str, RawTensor | None] = {}
    for layer, undo in layers.items():
        for part, digest in undo["baked"].items():
            name, stored = join(layer, part), undo[part]
            tensor = read(name)
            if tensor is None or tensor.digest() != digest:
                raise InputError(
                    f"the {part} was changed after it was baked, so the original can't be given "
                    f"back exactly; if other weights were loaded into the model, load them into a "
                    f"new one."
                )
            before[name] = stored and RawTensor(
                stored["dtype"], tuple(stored["shape"]), base64.b64decode(stored["data"])
            )
    return before


def layers_of(
    shapes: Mapping[str, Sequence[int]], named: Sequence[str]
) -> dict[str, Sequence[int]]:
    """Return the shapes of the weights of the linear layers among tensors.

    Embeddings are matrices too, and weights with their inputs first (GPT-2's) are told by their
    bias; such count only if they are named.
    """
    layers = {}
    for name, shape in shapes.items():
        layer, _, part = name.rpartition(".")
        if part == "weight" and len(shape) > 1:
            bias = shapes.get(join(layer, "bias"), shape[:1])
            embeds = "embed" in layer.rpartition(".")[2].lower()
            if layer in named or (tuple(bias) == tuple(shape[:1]) and not embeds):
                layers[layer] = shape
    return layers


def join(layer: str, part: str) -> str:
    """Return the name of a part of a layer, which may be the whole model."""
    return f"{layer}.{part}" if layer else part


def label_of(layer: str) -> str:
    """Return the name of a layer for messages."""
    return f"layer {layer}" if layer else "the layer"


def close_enough(got: FloatArray, wanted: FloatArray, *, dtype: str, where: str) -> None:
    """Refuse a difference that rounding to `dtype` does not explain."""
    finite = np.isfinite(wanted)
    if not finite.any():
        raise InputError(
            f"{where} gives only NaN or infinity where it is checked; pass real `inputs=`."
        )
    size = float(np.abs(wanted[finite]).max())
    difference = np.abs(np.where(got == wanted, 0.0, got - wanted))
    if not np.all(difference <= 64 * EPS[dtype] * (1.0 + size)):
        raise InputError(
            f"after baking, {where} does not give the adjusted logits (off by "
            f"{np.max(difference):.3g}), so nothing was written: something behind the layer "
            f"changes them. Name what holds the logits with `layer=` or, in an ONNX model, "
            f"`output=`."
        )
