"""ONNX graphs of every shape that baking meets: hand-made, so that each has one thing special."""

import json
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from longtail import (
    ClassPrior,
    InputError,
    MissingExtraError,
    bake_logit_adjustment,
    bake_record,
    bake_weight_normalization,
    unbake,
)

COUNTS = np.array([900, 90, 10])
PRIOR = ClassPrior.from_counts(COUNTS)
LOG_PI = np.log(COUNTS / COUNTS.sum())
RANDOM = np.random.default_rng(0)
W = RANDOM.normal(size=(4, 3)).astype(np.float32)
B = RANDOM.normal(size=3).astype(np.float32)
X = RANDOM.normal(size=(500, 4)).astype(np.float32)
F = X.astype(np.float64) @ W + B
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def graph(nodes, outputs, tensors, *, opset=17, ir=8, inputs=(("x", FLOAT, ["n", 4]),), listed=()):
    """A model of (operator, inputs, outputs, attributes), outputs by name and type, constants."""
    made = [
        helper.make_node(op, list(ins), list(outs), **(settings[0] if settings else {}))
        for op, ins, outs, *settings in nodes
    ]
    constants = [numpy_helper.from_array(value, name) for name, value in tensors.items()]
    infos = [helper.make_tensor_value_info(*info) for info in inputs]
    infos += [
        helper.make_tensor_value_info(t.name, t.data_type, t.dims)
        for t in constants
        if t.name in listed
    ]
    ends = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    body = helper.make_graph(made, "g", infos, ends, constants)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(body, opset_imports=opsets, ir_version=ir)


def gemm(output="y", **changes):
    settings = {"tensors": {"w": W, "b": B}, **changes}
    return graph([("Gemm", "xwb", [output])], {output: FLOAT}, **settings)


def run(model, **inputs):
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, inputs or {"x": X})


def softmax(f, axis=1):
    odds = np.exp(f - f.max(axis=axis, keepdims=True))
    return odds / odds.sum(axis=axis, keepdims=True)


def baked_and_back(model, prior=PRIOR, **settings):
    """A baked model, after checking that it can be undone to the byte."""
    before = model.SerializeToString(deterministic=True)
    baked = bake_logit_adjustment(model, prior, **settings)
    assert model.SerializeToString(deterministic=True) == before
    assert unbake(baked).SerializeToString(deterministic=True) == before
    return baked


GEMMS = {
    "plain": (gemm(), 0),
    "a bias row": (gemm(tensors={"w": W, "b": B[None]}), 0),
    "beta": (graph([("Gemm", "xwb", "y", {"beta": 0.5})], {"y": FLOAT}, {"w": W, "b": 2 * B}), 0),
    "beta, no bias": (
        graph(
            [("Gemm", "xw", ["z"], {"beta": 0.5}), ("Add", "zb", ["y"])],
            {"y": FLOAT},
            {"w": W, "b": B},
        ),
        0,
    ),
    "alpha and transB": (
        graph(
            [("Gemm", "xwb", "y", {"alpha": 0.5, "transB": 1})],
            {"y": FLOAT},
            {"w": np.ascontiguousarray(2 * W.T), "b": B},
        ),
        0,
    ),
    "opset 9": (gemm(opset=9, ir=4), 2),
    "constants among the inputs": (gemm(opset=11, ir=3, listed=("w", "b")), 0),
    "bias in a Constant node": (
        graph(
            [
                ("Constant", [], "b", {"value": numpy_helper.from_array(B)}),
                ("Gemm", "xwb", "y"),
            ],
            {"y": FLOAT},
            {"w": W},
        ),
        1,
    ),
    "add first": (
        graph([("MatMul", "xw", "z"), ("Add", "bz", "y")], {"y": FLOAT}, {"w": W, "b": B}),
        0,
    ),
    "two biases": (
        graph(
            [("MatMul", "xw", "z"), ("Add", "bz", "u"), ("Sub", "ub", "v"), ("Add", "vb", "y")],
            {"y": FLOAT},
            {"w": W, "b": B},
        ),
        1,
    ),
    "identity and cast": (
        graph(
            [
                ("Gemm", "xwb", "z"),
                ("Identity", "z", "u"),
                ("Cast", "u", "v", {"to": TensorProto.DOUBLE}),
                ("Cast", "v", "y", {"to": FLOAT}),
            ],
            {"y": FLOAT},
            {"w": W, "b": B},
        ),
        0,
    ),
    "something unknown at the end": (
        graph(
            [("Gemm", "xwb", "z"), ("Mul", "zo", "y")],
            {"y": FLOAT},
            {"w": W, "b": B, "o": np.ones(1, np.float32)},
        ),
        2,
    ),
}


@pytest.mark.parametrize("name", list(GEMMS))
def test_final_layers(name):
    model, added = GEMMS[name]
    baked = baked_and_back(model, tau=1.4)
    wanted = F - 1.4 * LOG_PI
    np.testing.assert_allclose(run(baked)[0], wanted, atol=1e-5)
    assert len(baked.graph.node) - len(model.graph.node) == added
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(baked), full_check=True)


def test_a_bias_that_something_else_uses_stays_there():
    model = graph(
        [("Gemm", "xwb", "y"), ("Add", "xc", "u"), ("Gemm", "uwb", ["other"])],
        {"y": FLOAT, "other": FLOAT},
        {"w": W, "b": B, "c": np.ones(4, np.float32)},
    )
    before = run(model)
    baked = baked_and_back(model, output="y")
    after = run(baked)
    np.testing.assert_allclose(after[0], before[0] - LOG_PI, atol=1e-5)
    np.testing.assert_array_equal(after[1], before[1])
    both = graph([("Gemm", "xwb", "y")], {"y": FLOAT, "b": FLOAT}, {"w": W, "b": B})
    y, b = run(baked_and_back(both, output="y"))
    np.testing.assert_allclose(y, F - LOG_PI, atol=1e-5)
    np.testing.assert_array_equal(b, B)


def test_logits_their_softmax_and_the_label_change_together():
    model = graph(
        [
            ("Gemm", "xwb", ["logits"]),
            ("Softmax", ["logits"], ["probs"], {"axis": 1}),
            ("ArgMax", ["probs"], ["label"], {"axis": 1, "keepdims": 0}),
            ("ReduceMean", "x", ["mean"]),
        ],
        {"label": INT, "probs": FLOAT, "logits": FLOAT, "mean": FLOAT},
        {"w": W, "b": B},
    )
    label, probs, logits, mean = run(baked_and_back(model))
    np.testing.assert_allclose(logits, F - LOG_PI, atol=1e-5)
    np.testing.assert_allclose(probs, softmax(F - LOG_PI), atol=1e-5)
    np.testing.assert_array_equal(label, (F - LOG_PI).argmax(axis=1))
    np.testing.assert_array_equal(mean, run(model)[3])


def test_an_output_that_is_computed_from_the_logits_is_named():
    model = graph(
        [
            ("Gemm", "xwb", ["logits"]),
            ("ReduceMax", ["logits"], ["largest"], {"axes": [1]}),
            ("ReduceMean", "x", ["mean"]),
        ],
        {"logits": FLOAT, "largest": FLOAT, "mean": FLOAT},
        {"w": W, "b": B},
    )
    baked = baked_and_back(model, output="logits")
    np.testing.assert_allclose(run(baked)[1][:, 0], (F - LOG_PI).max(axis=1), atol=1e-5)
    how = bake_record(baked).how
    assert how.endswith(" (which changes 'largest' too, computed from it)")
    assert "changes" not in bake_record(baked_and_back(gemm())).how


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_probabilities_that_rounding_has_made_negative(dtype):
    """As a forest has them: the second probability is 1 less the votes for the other class."""
    error = np.finfo(dtype).eps / 2
    p = np.array([[1 + error, -error, 0.0], [0.5, 0.3, 0.2]] * 20, dtype)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = graph([("Add", ["z", "p"], "y")], {"y": kind}, {"p": p}, inputs=[("z", kind, [1])])
    got = run(baked_and_back(model, inputs={"z": np.zeros(1, dtype)}), z=np.zeros(1, dtype))[0]
    np.testing.assert_allclose(got[1], softmax(np.log(p[1:2]) - LOG_PI)[0], atol=2e-3)


def heads():
    nodes = [("Gemm", "xwb", ["main"]), ("Gemm", "xvb", ["aux"])]
    return graph(nodes, {"main": FLOAT, "aux": FLOAT}, {"w": W, "v": 2 * W, "b": B})


def test_several_outputs_are_listed_and_one_is_named():
    message = (
        r"more than one output can be meant: 'main', 'aux' \(all: 'main' \(256 x 3, float32\), "
        r"'aux' \(256 x 3, float32\)\); name one with output=... \(on the command line: --output\)"
    )
    with pytest.raises(InputError, match=message):
        bake_logit_adjustment(heads(), PRIOR)
    with pytest.raises(InputError, match="has no output 'head'; it has 'main'"):
        bake_logit_adjustment(heads(), PRIOR, output="head")
    before, after = run(heads()), run(baked_and_back(heads(), output="aux"))
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_allclose(after[1], before[1] - LOG_PI, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_a_softmax_before_opset_13(bias):
    model = graph(
        [
            ("MatMul", "xw", "z"),
            ("Add", "zb", "u") if bias else ("Identity", "z", "u"),
            ("Softmax", "u", "y"),
        ],
        {"y": FLOAT},
        {"w": W, "b": B} if bias else {"w": W},
        opset=11,
    )
    f = F if bias else F - B
    np.testing.assert_allclose(run(baked_and_back(model))[0], softmax(f - LOG_PI), atol=1e-5)


def test_the_axis_that_a_softmax_had_before_opset_13():
    nodes = [("Gemm", "xwb", "z"), ("Unsqueeze", "z", "u", {"axes": [2]}), ("Softmax", "u", "y")]
    model = graph(nodes, {"y": FLOAT}, {"w": W, "b": B}, opset=11)
    got = run(baked_and_back(model))[0]
    np.testing.assert_allclose(got[:, :, 0], softmax(F - LOG_PI), atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("axis", [None, 1])
def test_convolutions(bias, axis):
    kernel = RANDOM.normal(size=(3, 2, 1, 1)).astype(np.float32)
    nodes = [("Conv", "xkb" if bias else "xk", "z" if axis else "y")]
    nodes += [("Softmax", "z", "y", {"axis": axis})] if axis else []
    model = graph(
        nodes,
        {"y": FLOAT},
        {"k": kernel, "b": B} if bias else {"k": kernel},
        inputs=[("x", FLOAT, ["n", 2, 3, "w"])],
    )
    baked = baked_and_back(model)
    x = RANDOM.normal(size=(5, 2, 3, 3)).astype(np.float32)
    f = np.einsum("nchw,kc->nkhw", x, kernel[:, :, 0, 0]) + (B[:, None, None] if bias else 0)
    f = f - LOG_PI[:, None, None]
    np.testing.assert_allclose(run(baked, x=x)[0], softmax(f) if axis else f, atol=1e-5)


def test_images_with_classes_in_front_and_no_bias_to_take():
    model = graph(
        [("Softmax", "x", "y", {"axis": 1})],
        {"y": FLOAT},
        {},
        inputs=[("x", FLOAT, ["n", 3, 4, 4])],
    )
    with pytest.raises(InputError, match="'x' itself, which no layer computes"):
        bake_logit_adjustment(model, PRIOR)
    model = graph(
        [("Neg", "x", "z"), ("Softmax", "z", "y", {"axis": 1})],
        {"y": FLOAT},
        {},
        inputs=[("x", FLOAT, ["n", 3, 4, 4])],
    )
    x = RANDOM.normal(size=(2, 3, 4, 4)).astype(np.float32)
    wanted = softmax(-x - LOG_PI[:, None, None])
    np.testing.assert_allclose(run(baked_and_back(model), x=x)[0], wanted, atol=1e-5)


def half(dtype, kind, *, cast):
    nodes = [("Cast", "x", "h", {"to": kind}), ("MatMul", "hw", "z"), ("Add", "zb", "u")]
    nodes += [("Cast", "u", "y", {"to": FLOAT})] if cast else [("Identity", "u", "y")]
    tensors = {"w": W.astype(dtype), "b": B.astype(dtype)}
    return graph(nodes, {"y": FLOAT if cast else kind}, tensors, opset=17, ir=8)


def test_half_precision_is_adjusted_behind_the_cast():
    model = half(np.float16, TensorProto.FLOAT16, cast=True)
    (before,), (after,) = run(model), run(baked_and_back(model))
    np.testing.assert_allclose(after, before - LOG_PI, atol=1e-5)


def test_half_precision_outputs_round_once():
    model = half(np.float16, TensorProto.FLOAT16, cast=False)
    baked = baked_and_back(model)
    bias = next(t for t in baked.graph.initializer if t.name == "b")
    wanted = (B.astype(np.float16).astype(np.float64) - LOG_PI).astype(np.float16)
    np.testing.assert_array_equal(numpy_helper.to_array(bias), wanted)
    np.testing.assert_allclose(run(baked)[0], run(model)[0] - LOG_PI, atol=0.03)


def test_bfloat16_runs_in_the_reference():
    import ml_dtypes
    from onnx.reference import ReferenceEvaluator

    model = half(ml_dtypes.bfloat16, TensorProto.BFLOAT16, cast=True)
    baked = baked_and_back(model)
    (before,), (after,) = (ReferenceEvaluator(m).run(None, {"x": X}) for m in (model, baked))
    np.testing.assert_allclose(after, before - LOG_PI, atol=1e-5)


def test_one_score_for_two_classes():
    w, b = W[:, :1], B[:1]
    f = (X.astype(np.float64) @ w + b) + np.log(9)
    prior = ClassPrior.from_counts([90, 10])
    for nodes, through in [
        ([("Gemm", "xwb", "y")], lambda f: f),
        ([("Gemm", "xwb", "z"), ("Sigmoid", "z", "y")], lambda f: 1 / (1 + np.exp(-f))),
        (
            [("Gemm", "xwb", "z"), ("Squeeze", "za", "u"), ("Sigmoid", "u", "y")],
            lambda f: 1 / (1 + np.exp(-f[:, 0])),
        ),
    ]:
        tensors = {"w": w, "b": b, "a": np.array([1])}
        model = graph(nodes, {"y": FLOAT}, tensors)
        got = run(baked_and_back(model, prior))[0]
        np.testing.assert_allclose(got, through(f), atol=1e-5)


def test_weight_normalization_by_other_norms_of_an_unknown_layer():
    model, _ = GEMMS["something unknown at the end"]
    baked = bake_weight_normalization(model, norms=PRIOR, tau=0.5)
    np.testing.assert_allclose(run(baked)[0], F / (COUNTS / 1000) ** 0.5, atol=1e-4)
    with pytest.raises(InputError, match="weights of the last layer can't be told"):
        bake_weight_normalization(model)
    with pytest.raises(InputError, match="no output of the model is 2 wide"):
        bake_weight_normalization(model, norms=[1.0, 2.0])


def quantize(tmp_path, **settings):
    from onnxruntime.quantization import quantize_dynamic

    onnx.save(gemm(), tmp_path / "f.onnx")
    quantize_dynamic(tmp_path / "f.onnx", tmp_path / "q.onnx", **settings)
    return onnx.load(tmp_path / "q.onnx")


def test_quantized_layers_are_no_hindrance_where_outputs_are_floats(tmp_path):
    model = quantize(tmp_path)
    assert any("Integer" in node.op_type for node in model.graph.node)
    np.testing.assert_allclose(run(baked_and_back(model))[0], run(model)[0] - LOG_PI, atol=1e-5)


def test_quantized_outputs_are_refused():
    model = graph(
        [("Gemm", "xwb", "z"), ("QuantizeLinear", "zsp", "y")],
        {"y": TensorProto.UINT8},
        {"w": W, "b": B, "s": np.float32(0.1).reshape(()), "p": np.uint8(128).reshape(())},
    )
    message = (
        r"no output of the model is 3 wide, one score per class; it has 'y' \(256 x 3, uint8\)\. "
        r"This looks like a quantized model: its outputs must be dequantized"
    )
    with pytest.raises(InputError, match=message):
        bake_logit_adjustment(model, PRIOR)
    with pytest.raises(InputError, match=r"the output 'y' holds uint8, not floating point\. This"):
        bake_logit_adjustment(model, PRIOR, output="y")


def test_external_data(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    onnx.save(
        gemm(), here / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0
    )
    onnx.load(here / "m.onnx")
    beside = bake_logit_adjustment(here / "m.onnx", PRIOR, out=here / "b.onnx")
    away = bake_logit_adjustment(here / "m.onnx", PRIOR, out=there / "b.onnx")
    assert (there / "m.data").read_bytes() == (here / "m.data").read_bytes()
    for path in (beside, away):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(session.run(None, {"x": X})[0], F - LOG_PI, atol=1e-5)
        back = unbake(path, out=path.with_name("back.onnx"))
        assert back.read_bytes() == (here / "m.onnx").read_bytes()
    (there / "m.data").write_bytes(b"of another model")
    with pytest.raises(InputError, match=r"m\.data exists with other content"):
        bake_logit_adjustment(here / "m.onnx", PRIOR, out=there / "c.onnx")
    (here / "m.data").unlink()
    missing = r"keeps its weights in .*m\.data, and there is no such file; put it back"
    with pytest.raises(InputError, match=missing):
        bake_logit_adjustment(here / "m.onnx", PRIOR, out=here / "c.onnx")
    with pytest.raises(InputError, match=missing):
        unbake(here / "b.onnx", out=there / "d.onnx")


def test_tokens_and_several_inputs():
    model = graph(
        [
            ("Gather", ["table", "ids"], ["words"]),
            ("ReduceMean", ["words"], ["mean"], {"axes": [1], "keepdims": 0}),
            ("Add", ["mean", "x"], ["h"]),
            ("Gemm", "hwb", "y"),
        ],
        {"y": FLOAT},
        {"table": RANDOM.normal(size=(7, 4)).astype(np.float32), "w": W, "b": B},
        inputs=[("ids", INT, ["n", "length"]), ("x", FLOAT, ["n", 4])],
    )
    inputs = {"ids": RANDOM.integers(7, size=(500, 5)), "x": X}
    before, after = run(model, **inputs), run(baked_and_back(model), **inputs)
    np.testing.assert_allclose(after[0], before[0] - LOG_PI, atol=1e-5)


def picky():
    """Takes rows in groups of seven only."""
    return graph(
        [("Reshape", ["x", "s"], ["g"]), ("Reshape", ["g", "t"], ["h"]), ("Gemm", "hwb", "y")],
        {"y": FLOAT},
        {"s": np.array([-1, 7, 4]), "t": np.array([-1, 4]), "w": W, "b": B},
    )


def test_inputs_of_ones_own():
    message = r"can't be run on made-up inputs, .* pass real ones with inputs=.*--inputs FILE\.npz"
    with pytest.raises(InputError, match=message):
        bake_logit_adjustment(picky(), PRIOR)
    with pytest.raises(InputError, match="can't be run on the given `inputs`: "):
        bake_logit_adjustment(picky(), PRIOR, inputs={"z": X[:21]})
    baked = bake_logit_adjustment(picky(), PRIOR, inputs={"x": X[:21]})
    np.testing.assert_allclose(run(baked, x=X[:21])[0], (F - LOG_PI)[:21], atol=1e-5)


def sigmoid():
    nodes = [("Gemm", "xwb", "z"), ("Sigmoid", "z", "y")]
    return graph(nodes, {"y": FLOAT}, {"w": W, "b": B})


def contradicting_label():
    """The label is that of the largest score, but not by way of what the probabilities are."""
    nodes = [
        ("Gemm", "xwb", "z"),
        ("Softmax", "z", "y", {"axis": 1}),
        ("Gemm", "xvb", "u"),
        ("ArgMax", "u", ["label"], {"axis": 1, "keepdims": 0}),
    ]
    return graph(nodes, {"y": FLOAT, "label": INT}, {"w": W, "v": W, "b": B})


def nothing_but_nan():
    nodes = [("Abs", "x", "a"), ("Neg", "a", "n"), ("Sqrt", "n", "s"), ("Gemm", "swb", "y")]
    return graph(nodes, {"y": FLOAT}, {"w": W, "b": B})


def label_only():
    nodes = [("Gemm", "xwb", "z"), ("ArgMax", "z", ["label"], {"axis": 1, "keepdims": 0})]
    return graph(nodes, {"label": INT}, {"w": W, "b": B})


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (gemm, {"prior": ClassPrior.from_counts([9, 1])},
         r"no output of the model is 2 wide, one score per class; it has 'y' \(256 x 3, .*\)\. "
         "The prior must have one class per output"),
        (gemm, {"prior": ClassPrior.from_counts([9, 1]), "output": "y"},
         "`prior` has 2 classes but the model has 3 outputs"),
        (label_only, {}, r"no output of the model is 3 wide.* it has 'label' \(256, int64\)"),
        (label_only, {"output": "label"}, "the output 'label' holds int64, not floating point"),
        (sigmoid, {}, "the output is a sigmoid of 3 scores, each a question of its own"),
        (contradicting_label, {},
         "the output 'label' would no longer be the class of the largest score"),
        (nothing_but_nan, {}, "gives only NaN or infinity on made-up inputs"),
        (gemm, {"inputs": {"z": X}}, r"on the given `inputs`: Required inputs .*[^.]\.$"),
        (gemm, {"layer": "fc"}, "`layer` is for torch modules and state dicts; in an ONNX model"),
        (gemm, {"out": "x"}, "`out` is for files"),
        (lambda: half(np.float16, TensorProto.FLOAT16, cast=False), {"tau": 1e5},
         "the adjustment is not finite in F16"),
    ],
)  # fmt: skip
def test_bad_input(model, settings, message):
    with pytest.raises(InputError, match=message):
        bake_logit_adjustment(model(), **{"prior": PRIOR, **settings})


def test_refuses_to_bake_twice_and_to_undo_what_changed(tmp_path):
    onnx.save(gemm(), tmp_path / "m.onnx")
    bake_logit_adjustment(tmp_path / "m.onnx", PRIOR, out=tmp_path / "b.onnx")
    with pytest.raises(InputError, match=r"b\.onnx is baked already: logit adjustment with tau"):
        bake_logit_adjustment(tmp_path / "b.onnx", PRIOR, out=tmp_path / "c.onnx")
    with pytest.raises(InputError, match=r"m\.onnx is not baked"):
        unbake(tmp_path / "m.onnx", out=tmp_path / "c.onnx")
    model = onnx.load(tmp_path / "b.onnx")
    model.graph.initializer[0].raw_data = (2 * W).tobytes()
    with pytest.raises(InputError, match="the model was changed after it was baked"):
        unbake(model)
    del model.graph.node[:]
    with pytest.raises(InputError, match="the model was changed after it was baked"):
        unbake(model)
    record = json.loads(model.metadata_props[0].value)
    assert record["method"] == "logit_adjustment"
    assert not (tmp_path / "c.onnx").exists()


def test_other_metadata_stays():
    model = gemm()
    helper.set_model_props(model, {"author": "me"})
    baked = baked_and_back(model)
    assert [entry.key for entry in baked.metadata_props] == ["author", "longtail.baked"]
    assert bake_record(baked).where == "y"


@pytest.mark.parametrize("content", [b"once upon a time", b"", b"\x08\x08"])
def test_files_that_are_none(tmp_path, content):
    (tmp_path / "x.onnx").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.onnx is not an ONNX file"):
        bake_logit_adjustment(tmp_path / "x.onnx", PRIOR, out=tmp_path / "b.onnx")


@pytest.mark.parametrize("module", ["onnx", "onnxruntime"])
def test_a_missing_extra(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"needs {module}, .*'longtail\[onnx\]'"):
        bake_logit_adjustment(gemm(), PRIOR)


def test_a_check_that_fails_stops_everything(monkeypatch, tmp_path):
    from longtail.bake import _onnx_edit

    real = _onnx_edit.Edit.shift_bias
    monkeypatch.setattr(
        _onnx_edit.Edit, "shift_bias", lambda self, bias, c, kind: real(self, bias, c + 0.01, kind)
    )
    onnx.save(gemm(), tmp_path / "m.onnx")
    with pytest.raises(InputError, match=r"'y' does not give the adjusted logits .* off by 0\.01"):
        bake_logit_adjustment(tmp_path / "m.onnx", PRIOR, out=tmp_path / "b.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
