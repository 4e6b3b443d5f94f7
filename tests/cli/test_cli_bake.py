"""`longtail bake`: what it prints, writes and refuses."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from safetensors.numpy import load_file, save_file

from longtail import ClassPrior, bake_record
from run_factory import make_spec, make_writer

LOG_PI = np.log([0.9, 0.09, 0.01])
RANDOM = np.random.default_rng(0)
WEIGHT = RANDOM.normal(size=(3, 4)).astype(np.float32)
BIAS = RANDOM.normal(size=3).astype(np.float32)
COUNTS = ("--counts", "900,90,10")


def bias_of(path):
    if path.endswith("safetensors"):
        return load_file(path)["fc.bias"]
    tensors = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    return tensors["b"]


@pytest.fixture
def files(cli):
    """The same model twice in the current folder, with the numbers in every form."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> '
        "g (float[n, 4] x) => (float[n, 3] y) { y = Gemm<transB = 1>(x, w, b) }"
    )
    tensors = {"w": WEIGHT, "b": BIAS}
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in tensors.items())
    onnx.save(model, "m.onnx")
    save_file({"fc.weight": WEIGHT, "fc.bias": BIAS}, "m.safetensors")
    Path("counts.csv").write_text("class,count\nemu,10\ncat,900\ndog,90\n")
    Path("names.txt").write_text("cat\n" * 900 + "dog\n" * 90 + "emu\n" * 10)
    np.save("y.npy", np.repeat([0, 1, 2], [900, 90, 10]))
    np.savez("inputs.npz", x=np.ones((2, 4), np.float32))


def make_model_run(tmp_path, method, **others):
    """The folder of a run with the same model."""
    writer = make_writer(tmp_path / "runs", make_spec(method=method))
    writer.write_model({"fc.weight": WEIGHT} | others)
    return writer.finish().folder


@pytest.mark.parametrize("model", ["m.onnx", "m.safetensors"])
def test_there_and_back(cli, files, model, ok):
    out = "baked." + model.split(".")[1]
    result = ok("bake", model, *COUNTS, "--tau", 1.25, "--out", out, err="")
    assert f"`longtail bake {out} --undo --out FILE` gives" in " ".join(result.out.split())
    np.testing.assert_allclose(bias_of(out), BIAS - 1.25 * LOG_PI, atol=1e-6)
    back = "back." + model.split(".")[1]
    ok("bake", out, "--undo", "-o", back)
    assert Path(back).read_bytes() == Path(model).read_bytes()


@pytest.mark.parametrize(
    "words",
    [
        ("--counts", "counts.csv", "--classes", "cat,dog,emu"),
        ("--train-labels", "y.npy"),
        ("--train-labels", "names.txt", "--classes", "cat,dog,emu"),
        ("--prior", "0.9,0.09,0.01"),
        (*COUNTS, "--inputs", "inputs.npz"),
    ],
)
def test_every_way_to_say_the_same(files, words, ok):
    result = ok("bake", "m.onnx", *words, "-o", "b.onnx", "--json", err="")
    document = json.loads(result.out)
    assert document["prior"] == pytest.approx([0.9, 0.09, 0.01])
    wanted = {"out": "b.onnx", "undone": False, "method": "logit_adjustment", "tau": 1.0}
    assert {key: document[key] for key in wanted} == wanted
    np.testing.assert_allclose(bias_of("b.onnx"), BIAS - LOG_PI, atol=1e-6)


def test_target_costs_and_smoothing(cli, files):
    Path("aim.txt").write_text("2 1 1\n")
    words = ["--counts", "900,90,0", "--smoothing", 1, "--target", "aim.txt", "--costs", "1,1,4"]
    assert cli("bake", "m.onnx", *words, "-o", "b.onnx").code == 0
    pi = np.array([901, 91, 1]) / 993
    shift = np.log(pi) - np.log([0.5, 0.25, 0.25]) - np.log([1, 1, 4])
    np.testing.assert_allclose(bias_of("b.onnx"), BIAS - shift, atol=1e-5)


def test_tau_from_what_tune_printed(cli, files, refused):
    target = np.repeat([0, 1, 2], 60)
    logits = RANDOM.normal(size=(180, 3)) + 2 * np.eye(3)[target] + LOG_PI
    np.savez("held-out.npz", logits=logits, target=target)
    document = cli("tune", "held-out.npz", *COUNTS, "--json").out
    Path("tau.json").write_text(document)
    assert cli("bake", "m.onnx", *COUNTS, "--tau-from", "tau.json", "-o", "b.onnx").code == 0
    assert bake_record("b.onnx").tau == json.loads(document)["tau"]
    words = ["--method", "weight-normalization", "--tau-from", "tau.json", "-o", "c.onnx"]
    said = refused("bake", "m.onnx", *words)
    assert "was chosen for logit-adjustment, but --method is weight-normalization" in said


def test_weight_normalization(cli, files, ok):
    words = ["--method", "weight-normalization", "--tau", 0.5, "--bias-mode", "drop"]
    ok("bake", "m.onnx", *words, "-o", "b.onnx", err="")
    record = bake_record("b.onnx")
    assert (record.tau, record.settings["bias_mode"]) == (0.5, "drop")
    assert cli("bake", "b.onnx", "--undo", "-o", "back.onnx").code == 0
    assert Path("back.onnx").read_bytes() == Path("m.onnx").read_bytes()


def test_a_run_folder(tmp_path, refused, ok):
    others = {"fc.bias": BIAS, "hidden.weight": np.ones((3, 3))}
    folder = make_model_run(tmp_path, "softmax", **others)
    ok("bake", folder, "--tau", 1, "-o", "b.safetensors", err="")
    log_pi = ClassPrior.from_counts([90, 9, 1]).log_probs
    np.testing.assert_allclose(bias_of("b.safetensors"), BIAS - log_pi, atol=1e-6)
    said = refused("bake", folder, "-o", folder / "b.safetensors")
    assert "is a run's record and stays as it is" in said


def test_a_run_that_needs_no_adjustment_warns(cli, tmp_path, ok):
    folder = make_model_run(tmp_path, "logit-adjusted", **{"fc.bias": BIAS})
    warned = ok("bake", folder, "-o", "b.safetensors").err
    assert f"{folder}: the loss 'logit-adjusted' already aims at the balanced error" in warned
    for tau in (0, 0.1, -1):
        assert cli("bake", folder, "--tau", tau, "-o", f"{tau}.safetensors").err == ""


def test_a_run_with_another_head_is_refused(refused, tmp_path):
    said = refused("bake", make_model_run(tmp_path, "ldam"), "-o", "b.safetensors")
    assert "takes no bias, as of a cosine head" in said


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["m.onnx", *COUNTS, "--prior", ".9,.09,.01"], 2, "give either --counts or --prior"),
        (["m.onnx", "--undo", "--tau", 1], 2, "--undo has no use for --tau; leave it out"),
        (["m.onnx"], 1, "the numbers of training examples per class are needed"),
        (["m.onnx", "--counts", "900,90,0"], 1, "pass --smoothing 1 to count"),
        (["m.onnx", "--train-labels", "names.txt"], 1, "with --classes"),
        (["m.onnx", "--prior", "700,200,60"], 1, "which sum to 1, but these sum to 960"),
    ],
)  # fmt: skip
def test_bad_input(refused, files, words, code, message):
    assert message in refused("bake", *words, "-o", "b.onnx", code=code)
    assert not list(Path().glob("b*"))
