"""Tensors as bytes with a type and a shape: what baking reads, writes and gives back exactly.

The types have the names that safetensors gives them. NumPy has no bfloat16, so its sixteen bits
are taken from float32's upper half, rounded to nearest even.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from longtail._checks import FloatArray, InputError

FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
EPS = {"F64": 2.0**-52, "F32": 2.0**-23, "F16": 2.0**-10, "BF16": 2.0**-7}
_READABLE = "float64, float32, float16 or bfloat16"


class RawTensor(NamedTuple):
    """A tensor's type, shape and little-endian bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def values(self) -> FloatArray:
        """Its numbers, exactly."""
        stored = np.frombuffer(self.data, FLOATS[self.dtype])
        if self.dtype == "BF16":
            stored = (stored.astype(np.uint32) << 16).view(np.float32)
        return stored.astype(np.float64).reshape(self.shape)

    @classmethod
    def of(cls, values: FloatArray, dtype: str) -> RawTensor:
        """Numbers rounded once to a type; infinite where the type can't hold them."""
        with np.errstate(over="ignore"):
            rounded = values.astype(np.float32 if dtype == "BF16" else FLOATS[dtype])
        if dtype == "BF16":
            bits = rounded.view(np.uint32)
            rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
        return cls(dtype, values.shape, rounded.tobytes())

    def to_json(self) -> dict[str, Any]:
        """For a record."""
        text = base64.b64encode(self.data).decode()
        return {"dtype": self.dtype, "shape": list(self.shape), "data": text}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RawTensor:
        """From a record."""
        found = cls(document["dtype"], tuple(document["shape"]), base64.b64decode(document["data"]))
        if len(found.data) != math.prod(found.shape) * np.dtype(FLOATS[found.dtype]).itemsize:
            raise ValueError("a stored tensor has another size than its shape says")
        return found

    def digest(self) -> str:
        """SHA-256 of its bytes."""
        return hashlib.sha256(self.data).hexdigest()


def refuse_unless_float(dtype: str, *, where: str, caller: str) -> None:
    """Refuse integer and 8-bit weights, saying what is supported."""
    if dtype not in FLOATS:
        raise InputError(
            f"{caller}: {where} is stored as {dtype}, so this model is quantized; only layers of "
            f"{_READABLE} can be baked. Bake the model before you quantize it, or bake its ONNX "
            f"export, which is possible wherever the outputs are floating point."
        )
