"""Baked safetensors files and Hugging Face folders: the same other bytes, and the way back."""

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from longtail import (
    ClassPrior,
    InputError,
    bake_logit_adjustment,
    bake_record,
    bake_weight_normalization,
    unbake,
)

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
    state, before = load_file(out), model.state_dict()
    start = before["2.bias"].double().numpy() if bias else 0.0
    assert state.pop("2.bias").equal(torch.as_tensor(start - 1.3 * LOG_PI).to(dtype))
    for name, tensor in state.items():
        assert tensor.equal(before[name]), name
    with safe_open(out, "pt") as file:
        kept = {k: text for k, text in file.metadata().items() if not k.startswith("longtail.")}
    assert kept == (metadata or {})
    assert unbake(out, out=tmp_path / "back.safetensors").read_bytes() == path.read_bytes()


def test_weight_normalization(tmp_path):
    model = network()
    path = saved(tmp_path, model)
    out = bake_weight_normalization(path, tau=0.6, layer="2", out=tmp_path / "b.safetensors")
    wanted = bake_weight_normalization(model, tau=0.6, layer="2").state_dict()
    for name, tensor in load_file(out).items():
        assert tensor.equal(wanted[name]), name
    assert unbake(out, out=tmp_path / "c.safetensors").read_bytes() == path.read_bytes()


def test_in_place_with_force(tmp_path):
    path = saved(tmp_path, network())
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"model\.safetensors exists; pass `force=True`"):
        bake_logit_adjustment(path, PRIOR, out=path)
    bake_logit_adjustment(path, PRIOR, out=path, force=True)
    assert path.read_bytes() != before
    unbake(path, out=path, force=True)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def pickled(folder):
    (folder / "model.pt").write_bytes(b"")
    return folder / "model.pt"


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (lambda f: saved(f, network()), {"layer": "fc"}, "no linear layer 'fc'"),
        (lambda f: saved(f, network()), {"out": None}, "`model` is a path, so pass `out=`"),
        (lambda f: saved(f, network()), {"out": "no/b.safetensors"}, "no folder no to write to"),
        (lambda f: f, {}, "is not a folder as transformers writes it"),
        (pickled, {}, "pickles are never loaded"),
    ],
)
def test_bad_input(tmp_path, make, settings, message):
    arguments = {"prior": PRIOR, "out": tmp_path / "out.safetensors", **settings}
    with pytest.raises(InputError, match=message):
        bake_logit_adjustment(make(tmp_path), **arguments)
    assert not (tmp_path / "out.safetensors").exists()


def test_a_cut_file_is_refused(tmp_path):
    path = saved(tmp_path, network())
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match="is not a safetensors file"):
        bake_logit_adjustment(path, PRIOR, out=tmp_path / "out.safetensors")


def test_undo_refuses(tmp_path):
    plain, out = saved(tmp_path, network()), tmp_path / "b.safetensors"
    with pytest.raises(InputError, match=r"model\.safetensors is not baked"):
        unbake(plain, out=out)
    bake_logit_adjustment(plain, PRIOR, out=out)
    with safe_open(out, "pt") as file:
        metadata = file.metadata()
    state = load_file(out)
    state["2.bias"] += 1
    save_file(state, out, metadata=metadata)
    with pytest.raises(InputError, match="the bias was changed after it was baked"):
        unbake(out, out=tmp_path / "c.safetensors")


# ---- Hugging Face ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_labels": 3}
    config = transformers.BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)
    model = transformers.BertForSequenceClassification(config).eval()
    nn.init.normal_(model.classifier.bias)
    folder = tmp_path_factory.mktemp("bert")
    model.save_pretrained(folder / "single")
    model.save_pretrained(folder / "sharded", max_shard_size="8KB")
    return transformers.BertForSequenceClassification, model, folder


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["single", "sharded"])
def test_a_hugging_face_folder(bert, tmp_path, kind):
    load, model, folder = bert
    source, ids = folder / kind, torch.randint(0, 50, (8, 5))
    out = bake_logit_adjustment(source, PRIOR, out=tmp_path / "baked")
    loaded = load.from_pretrained(out).eval()
    with torch.no_grad():
        shift = (loaded(ids).logits - model(ids).logits).numpy()
    np.testing.assert_allclose(shift, np.tile(-LOG_PI, (8, 1)), atol=1e-5)
    for again in (out, loaded):
        with pytest.raises(InputError, match="is baked already: logit adjustment with tau = 1"):
            bake_logit_adjustment(again, PRIOR, **({"out": tmp_path / "x"} if again is out else {}))
    loaded.save_pretrained(tmp_path / "again")  # which drops the metadata of the file
    for path in (tmp_path / "again", tmp_path / "again" / "model.safetensors"):
        assert bake_record(path).tau == 1
    with pytest.raises(InputError, match="saved anew after it was baked"):
        unbake(tmp_path / "again", out=tmp_path / "x")
    assert contents(unbake(out, out=tmp_path / "back")) == contents(source)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again", "back", "baked"]
    with pytest.raises(InputError, match="exists; name a new file or folder"):
        unbake(out, out=tmp_path / "back", force=True)


def test_a_hugging_face_module_is_known_after_saving_and_loading(bert, tmp_path):
    load, model, _ = bert
    ids = torch.randint(0, 50, (8, 5))
    with pytest.warns(UserWarning, match="only layer classifier was checked"):
        bake_logit_adjustment(model, PRIOR)
    baked = bake_logit_adjustment(model, PRIOR, inputs={"input_ids": ids})
    baked.save_pretrained(tmp_path / "baked")
    loaded = load.from_pretrained(tmp_path / "baked")
    with pytest.raises(InputError, match="BertForSequenceClassification is baked already"):
        bake_logit_adjustment(loaded, PRIOR, inputs={"input_ids": ids})
    restored = unbake(loaded)
    assert restored.classifier.bias.equal(model.classifier.bias)
    assert bake_record(restored) is None
    assert bake_record(model) is None
