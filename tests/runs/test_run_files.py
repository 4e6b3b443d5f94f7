import errno
import hashlib
import json
import os

import numpy as np
import pytest
import torch

from longtail import InputError
from longtail.runs import files


def test_the_fingerprint_is_sha256_over_dtype_shape_and_bytes():
    labels, images = np.array([1, 2], np.int64), np.zeros((2, 3), np.float32)
    content = b"<i8;2;" + labels.tobytes() + b"<f4;2,3;" + images.tobytes()
    expected = hashlib.sha256(content).hexdigest()
    assert files.fingerprint(labels, images) == expected
    assert files.fingerprint(torch.from_numpy(labels), images.T.copy().T) == expected
    assert files.fingerprint(labels.astype(">i8"), images) == expected
    array = np.random.default_rng(0).normal(size=(3_000_000,))  # more than one piece
    whole = hashlib.sha256(b"<f8;3000000;" + array.tobytes()).hexdigest()
    assert files.fingerprint(array) == whole


def test_tensors_survive_a_file(tmp_path):
    tensors = {
        "half": np.arange(6, dtype=np.float16).reshape(2, 3),
        "double": np.arange(3.0),
        "scalar": np.array(7),
        "empty": np.zeros((0, 3), np.float32),
        "strided": np.arange(12, dtype=np.float32).reshape(3, 4).T,
        "big endian": np.arange(3, dtype=">i4"),
        "torch": torch.arange(24.0).reshape(2, 3, 4).transpose(0, 2),
    }
    files.write_tensors(tmp_path / "t.safetensors", tensors)
    found = files.read_tensors(tmp_path / "t.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].shape == tuple(tensor.shape), name
        np.testing.assert_array_equal(found[name], np.asarray(tensor), err_msg=name)
    assert isinstance(found["double"], np.memmap)
    assert not found["double"].flags.writeable


def test_the_same_tensors_give_the_same_bytes_that_safetensors_reads(tmp_path):
    from safetensors.numpy import load_file

    one = {"b": np.arange(5.0), "a": np.ones((2, 2), np.float32)}
    files.write_tensors(tmp_path / "1", one)
    files.write_tensors(tmp_path / "2", dict(reversed(one.items())))
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    np.testing.assert_array_equal(load_file(tmp_path / "1")["b"], one["b"])


@pytest.mark.parametrize("cut", [0, 5, 40, -1])
def test_a_damaged_tensor_file_says_so(tmp_path, cut):
    path = tmp_path / "t.safetensors"
    files.write_tensors(path, {"a": np.arange(10.0)})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match="is not a readable safetensors file"):
        files.read_tensors(path)


def test_a_failed_write_leaves_the_old_file_alone_and_names_it(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def stops_midway():
        with files.atomic_path(path) as temporary:
            temporary.write_text("new, but")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        stops_midway()
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_content_reaches_the_disk_before_the_name(tmp_path, monkeypatch):
    order = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("sync"), fsync(handle))[1])
    monkeypatch.setattr(os, "replace", lambda *a: (order.append("rename"), replace(*a))[1])
    files.write_json(tmp_path / "a.json", {"x": 1})
    assert order == ["sync", "rename", "sync"]
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 1}


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path):
    files.write_bytes(tmp_path / "a", b"1")
    (tmp_path / "a").chmod(0o640)
    files.write_bytes(tmp_path / "a", b"2")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
