"""Baked safetensors files: same predictions, same other bytes, and back to the original file."""

import json
import warnings

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import load_file, save_file
from torch import nn

from longtail import (
    ClassPrior,
    InputError,
    Run,
    bake_logit_adjustment,
    bake_record,
    bake_weight_normalization,
    unbake,
)
from run_factory import make_run

COUNTS = np.array([900, 90, 10])
PRIOR = ClassPrior.from_counts(COUNTS)
LOG_PI = np.log(COUNTS / COUNTS.sum())


def network(*, bias=True, dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3, bias=bias)).to(dtype).eval()


def saved(folder, model, metadata=None, name="model.safetensors"):
    save_file(model.state_dict(), folder / name, metadata=metadata)
    return folder / name


@pytest.mark.filterwarnings("ignore:.*had no bias")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("metadata", [None, {"format": "pt", "ä": "ß"}])
def test_there_and_back(tmp_path, bias, dtype, metadata):
    model = network(bias=bias, dtype=dtype)
    path = saved(tmp_path, model, metadata)
    out = bake_logit_adjustment(path, PRIOR, tau=1.3, out=tmp_path / "baked.safetensors")
    assert out == tmp_path / "baked.safetensors"
    state = load_file(out)
    before = model.state_dict()
    start = before["2.bias"].double().numpy() if bias else 0.0
    wanted = torch.as_tensor(start - 1.3 * LOG_PI).to(dtype)
    assert state.pop("2.bias").equal(wanted)
    for name, tensor in state.items():
        assert tensor.equal(before[name]), name
    with safe_open(out, "pt") as file:
        kept = {key: text for key, text in file.metadata().items() if key != "longtail.baked"}
    assert kept == (metadata or {})
    back = unbake(out, out=tmp_path / "back.safetensors")
    assert back.read_bytes() == path.read_bytes()


def test_a_bias_that_is_new_is_told_of(tmp_path):
    path = saved(tmp_path, network(bias=False))
    message = "layer 2 had no bias and has one now.*when this file is loaded, or.* is lost"
    with pytest.warns(UserWarning, match=message) as caught:
        bake_logit_adjustment(path, PRIOR, out=tmp_path / "baked.safetensors")
    assert [one.filename for one in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bake_weight_normalization(path, norms=PRIOR, out=tmp_path / "b.safetensors")  # has none
        bake_logit_adjustment(saved(tmp_path, network()), PRIOR, out=tmp_path / "c.safetensors")


def test_it_loads_into_the_plain_network(tmp_path):
    model = network()
    out = bake_logit_adjustment(saved(tmp_path, model), PRIOR, out=tmp_path / "b.safetensors")
    plain = network()
    plain.load_state_dict(load_file(out))
    x = torch.randn(10_000, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        got, old = plain(x).double().numpy(), model(x).double().numpy()
    np.testing.assert_allclose(got, old - LOG_PI, atol=1e-5)
    np.testing.assert_array_equal(got.argmax(1), (old - LOG_PI).argmax(1))


@pytest.mark.parametrize("bias_mode", ["scale", "keep", "drop"])
def test_weight_normalization(tmp_path, bias_mode):
    model = network()
    path = saved(tmp_path, model)
    out = bake_weight_normalization(
        path, tau=0.6, bias_mode=bias_mode, layer="2", out=tmp_path / "b.safetensors"
    )
    state, old = load_file(out), model.state_dict()
    weight, bias = old["2.weight"].double().numpy(), old["2.bias"].double().numpy()
    scale = np.linalg.norm(weight, axis=1) ** -0.6
    np.testing.assert_allclose(state["2.weight"].numpy(), weight * scale[:, None], rtol=1e-6)
    wanted = {"scale": bias * scale, "keep": bias, "drop": 0 * bias}[bias_mode]
    np.testing.assert_allclose(state["2.bias"].numpy(), wanted, rtol=1e-6, atol=1e-12)
    assert unbake(out, out=tmp_path / "c.safetensors").read_bytes() == path.read_bytes()


def test_other_types_pass_through(tmp_path):
    tensors = {
        "fc.weight": torch.randn(3, 4),
        "fc.bias": torch.zeros(3),
        "steps": torch.tensor(7),
        "mask": torch.tensor([True, False]),
        "small": torch.randn(5).to(torch.float8_e4m3fn),
        "empty": torch.zeros(0, 3),
    }
    save_file(tensors, tmp_path / "m.safetensors")
    out = bake_logit_adjustment(tmp_path / "m.safetensors", PRIOR, out=tmp_path / "b.safetensors")
    state = load_file(out)
    for name in ("steps", "mask", "empty", "fc.weight"):
        assert state[name].equal(tensors[name])
    assert state["small"].view(torch.uint8).equal(tensors["small"].view(torch.uint8))


def test_the_record_says_what_was_done(tmp_path):
    out = bake_logit_adjustment(
        saved(tmp_path, network()), PRIOR, tau=2, costs=[1, 1, 3], out=tmp_path / "b.safetensors"
    )
    record = bake_record(out)
    assert str(record) == "logit adjustment with tau = 2"
    assert (record.where, record.how) == ("2", "added to the bias of layer 2")
    assert record.settings == {"prior": PRIOR.probs.tolist(), "costs": [1, 1, 3]}
    with pytest.raises(InputError, match=r"b\.safetensors is baked already: logit adjustment"):
        bake_logit_adjustment(out, PRIOR, out=tmp_path / "c.safetensors")
    assert not (tmp_path / "c.safetensors").exists()
    assert bake_record(tmp_path / "model.safetensors") is None


def test_in_place_with_force(tmp_path):
    path = saved(tmp_path, network())
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"model\.safetensors exists; pass force=True"):
        bake_logit_adjustment(path, PRIOR, out=path)
    bake_logit_adjustment(path, PRIOR, out=path, force=True)
    assert path.read_bytes() != before
    unbake(path, out=path, force=True)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_run_folders_model(tmp_path):
    run = make_run(tmp_path / "runs")
    run = Run.open(run.folder)
    out = bake_logit_adjustment(
        run.folder / "model.safetensors", run.prior, layer="", out=tmp_path / "b.safetensors"
    )
    np.testing.assert_allclose(load_file(out)["bias"].numpy(), -run.prior.log_probs, rtol=1e-6)
    assert Run.open(run.folder)  # its own file is as it was


def test_convolutions_count_where_no_matrix_fits(tmp_path):
    tensors = {"hidden.weight": np.ones((7, 2), np.float32), "head.weight": np.ones((3, 2, 1, 1))}
    save_numpy(tensors, tmp_path / "m.safetensors")
    out = bake_logit_adjustment(tmp_path / "m.safetensors", PRIOR, out=tmp_path / "b.safetensors")
    np.testing.assert_allclose(load_file(out)["head.bias"].numpy(), -LOG_PI)
    assert bake_record(out).how == "as a new bias of layer head, which had none"


@pytest.mark.filterwarnings("ignore:.*had no bias")
def test_embeddings_are_layers_only_if_named(tmp_path):
    """Those of two kinds of tokens, in a network with one output for two classes."""
    kinds, path = "bert.embeddings.token_type_embeddings", tmp_path / "m.safetensors"
    tensors = {f"{kinds}.weight": np.ones((2, 4)), "answer.weight": np.ones((1, 4))}
    save_numpy(tensors, path)
    prior = ClassPrior.from_counts([9, 1])
    out = bake_logit_adjustment(path, prior, out=tmp_path / "b.safetensors")
    np.testing.assert_allclose(load_file(out)["answer.bias"].numpy(), [np.log(9)])
    out = bake_logit_adjustment(path, prior, layer=kinds, out=out, force=True)
    assert bake_record(out).where == kinds


def test_one_output_beside_two_in_a_file_that_tells_no_order(tmp_path):
    """Names are sorted in a file; only a layer that takes two numbers can be behind one of two."""
    path, out = tmp_path / "m.safetensors", tmp_path / "b.safetensors"
    tensors = {"head.weight": np.ones((2, 4)), "head.bias": np.ones(2)}
    save_numpy({**tensors, "pool.gate.weight": np.ones((1, 4))}, path)
    prior = ClassPrior.from_counts([9, 1])
    assert bake_record(bake_logit_adjustment(path, prior, out=out)).where == "head"
    save_numpy({**tensors, "last.weight": np.ones((1, 2))}, path)
    with pytest.raises(InputError, match="2 outputs, one per class, or 1 for both: 'head', 'last'"):
        bake_logit_adjustment(path, prior, out=out, force=True)


def test_weights_with_their_inputs_first_are_no_layers_of_as_many_outputs(tmp_path):
    path, out = tmp_path / "m.safetensors", tmp_path / "b.safetensors"
    tensors = {"inner.weight": np.ones((3, 9)), "inner.bias": np.ones(9)}
    save_numpy({**tensors, "score.weight": np.ones((3, 4)), "score.bias": np.ones(3)}, path)
    bake_logit_adjustment(path, PRIOR, out=out)
    assert bake_record(out).where == "score"
    message = "layer inner has 3 rows of weights but a bias of 9, .* outputs first; bake an ONNX"
    with pytest.raises(InputError, match=message):
        bake_logit_adjustment(path, PRIOR, layer="inner", out=out, force=True)


def quantized(folder):
    save_numpy({"fc.weight": np.ones((3, 4), np.int8)}, folder / "q.safetensors")
    return folder / "q.safetensors"


def text(folder, content=b"once upon a time", name="x.safetensors"):
    (folder / name).write_bytes(content)
    return folder / name


def cut(folder):
    path = saved(folder, network())
    path.write_bytes(path.read_bytes()[:-4])
    return path


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (lambda f: saved(f, network()), {"layer": "fc"}, "has no linear layer 'fc'; it has '2' "
         r"\(3 outputs\), '0' \(6 outputs\)\."),
        (lambda f: saved(f, network()), {"prior": ClassPrior.from_counts([9, 1])},
         r"no linear layer of .*model\.safetensors has 2 outputs, one per class; it has '2'"),
        (lambda f: saved(f, network()), {"layer": "0"}, "has 3 classes but the model has 6"),
        (lambda f: saved(f, nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))), {},
         r"more than one linear layer of .* has 3 outputs, one per class: '0', '1'; .*--layer"),
        (lambda f: saved(f, network()), {"out": None}, "`model` is a file, so pass out"),
        (lambda f: saved(f, network()), {"out": "/nowhere/x"}, "there is no folder /nowhere"),
        (lambda f: saved(f, network()), {"output": "y"}, "`output` is for ONNX models"),
        (quantized, {}, "weight of layer fc is stored as I8, so this model is quantized; only"),
        (text, {}, "x.safetensors is not a safetensors file: its header has an impossible length"),
        (lambda f: text(f, b"\x02" + b"\0" * 7 + b"[]"), {}, "is not a safetensors file"),
        (cut, {}, "is not a safetensors file: it is cut off"),
        (lambda f: f / "none.safetensors", {}, "there is no file"),
        (lambda f: f, {}, "is a folder; name the model's file in it"),
        (lambda f: saved(f, network()), {"out": "/"}, "/ is a folder; name the file to write"),
        (lambda f: text(f, name="model.pt"), {}, "is a pickle by its name, and pickles are never"),
        (lambda f: text(f, name="model"), {}, "is neither an ONNX nor a safetensors file"),
    ],
)  # fmt: skip
def test_bad_input(tmp_path, make, settings, message):
    arguments = {"prior": PRIOR, "out": tmp_path / "out.safetensors", **settings}
    with pytest.raises(InputError, match=message):
        bake_logit_adjustment(make(tmp_path), **arguments)
    assert not (tmp_path / "out.safetensors").exists()


OF_ANOTHER_KIND = {
    "b.onnx": r"is an ONNX file by its name; write \S*b\.safetensors",
    "b.ONNX": r"is an ONNX file by its name; write \S*b\.safetensors",
    "b.pt": r"is a pickle by its name; write \S*b\.safetensors",
    "b.bin": r"is a pickle by its name; write \S*b\.safetensors",
}


@pytest.mark.parametrize(("name", "message"), OF_ANOTHER_KIND.items())
@pytest.mark.parametrize("force", [False, True])
def test_an_output_named_as_another_kind_is_refused(tmp_path, name, message, force):
    path, out = saved(tmp_path, network()), tmp_path / name
    if force:
        out.write_bytes(b"as it was")
    with pytest.raises(InputError, match=f"{message}, or export the model to ONNX and bake that"):
        bake_logit_adjustment(path, PRIOR, out=out, force=force)
    with pytest.raises(InputError, match=message):
        bake_weight_normalization(path, layer="2", out=out, force=force)
    baked = bake_logit_adjustment(path, PRIOR, out=tmp_path / "baked.safetensors")
    with pytest.raises(InputError, match=rf"{message}\.$"):
        unbake(baked, out=out, force=force)
    assert (out.read_bytes() == b"as it was") if force else not out.exists()


@pytest.mark.parametrize("name", ["baked", "baked.v2", "baked.sft"])
def test_an_output_may_have_any_other_name(tmp_path, name):
    out = bake_logit_adjustment(saved(tmp_path, network()), PRIOR, out=tmp_path / name)
    assert bake_record(out) is not None
    assert bake_record(unbake(out, out=tmp_path / "back")) is None


def test_undo_refuses(tmp_path):
    with pytest.raises(InputError, match=r"model\.safetensors is not baked: it has no record"):
        unbake(saved(tmp_path, network()), out=tmp_path / "b.safetensors")
    path = tmp_path / "baked.safetensors"
    bake_logit_adjustment(tmp_path / "model.safetensors", PRIOR, out=path)
    with safe_open(path, "pt") as file:
        record = json.loads(file.metadata()["longtail.baked"])
    record["format"] = 2
    newer = tmp_path / "newer.safetensors"
    save_file(load_file(path), newer, metadata={"longtail.baked": json.dumps(record)})
    with pytest.raises(InputError, match=r"baked by a newer longtail .* pip install --upgrade"):
        unbake(newer, out=tmp_path / "b.safetensors")
    damaged = tmp_path / "damaged.safetensors"
    save_file(load_file(path), damaged, metadata={"longtail.baked": "{}"})
    with pytest.raises(InputError, match="record of what was baked into it is damaged"):
        unbake(damaged, out=tmp_path / "b.safetensors")


def test_undo_refuses_changed_weights(tmp_path):
    out = tmp_path / "b.safetensors"
    bake_logit_adjustment(saved(tmp_path, network()), PRIOR, out=out)
    with safe_open(out, "pt") as file:
        metadata = file.metadata()
    state = load_file(out)
    state["2.bias"] += 1
    save_file(state, out, metadata=metadata)
    with pytest.raises(InputError, match="the bias of 2 is not what was baked"):
        unbake(out, out=tmp_path / "c.safetensors")
