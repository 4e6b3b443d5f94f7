"""Tensors as bytes: the same rounding as torch's, and nothing lost on the way through JSON."""

import json

import numpy as np
import pytest
import torch

from longtail.bake._tensors import FLOATS, RawTensor

TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


@pytest.mark.parametrize("name", list(FLOATS))
def test_rounding_is_torchs(name):
    random = np.random.default_rng(0)
    values = random.normal(size=20_000) * 10.0 ** random.uniform(-12, 4, size=20_000)
    # Exactly between two bfloat16 numbers: ties go to even.
    values[:4] = [1 + 2.0**-8, 1 + 3 * 2.0**-8, -0.0, 2.0**-149]
    stored = RawTensor.of(values, name)
    wanted = torch.as_tensor(values).to(TYPES[name])
    assert stored.data == wanted.view(torch.uint8).numpy().tobytes()
    np.testing.assert_array_equal(stored.values(), wanted.double().numpy())


@pytest.mark.parametrize("name", list(FLOATS))
def test_json_keeps_every_bit(name):
    bits = np.random.default_rng(1).integers(256, size=48, dtype=np.uint8).tobytes()
    size = np.dtype(FLOATS[name]).itemsize
    stored = RawTensor(name, (48 // size // 2, 2), bits)
    assert RawTensor.from_json(json.loads(json.dumps(stored.to_json()))) == stored
    with pytest.raises(ValueError, match="another size than its shape says"):
        RawTensor.from_json({**stored.to_json(), "shape": [5]})
