"""Along which axis an ONNX model is adjusted, where an image may be as wide as the classes."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    quantize_dynamic,
    quantize_static,
)

from longtail import (
    ClassPrior,
    InputError,
    bake_logit_adjustment,
    bake_record,
    bake_weight_normalization,
    unbake,
)

CLASSES = 32  # as CamVid has them; also what an open width is tried with
PRIOR = ClassPrior.from_counts(range(CLASSES, 0, -1))
RANDOM = np.random.default_rng(0)
KERNEL = RANDOM.normal(size=(CLASSES, 3, 1, 1)).astype(np.float32)
CONV = "z = Conv(x, k)"
WIDER = "s = Constant<value = float[4] {1.0, 1.0, 2.0, 2.0}>() y = Resize(z, , s)"
SWAP = "Transpose<perm = [0, 2, 3, 1]>"


def network(nodes, *, size="h, w", batch="n", kernel=KERNEL, **constants):
    """From images x of three channels to y, with a constant k and others by name."""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> '
        f"net (float[{batch}, 3, {size}] x) => (float[n, a, b, c] y) {{ {nodes} }}"
    )
    for name, values in {"k": kernel, **constants}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


def weight(inputs, outputs):
    return RANDOM.normal(size=(inputs, outputs)).astype(np.float32)


def run(model, height, width):
    x = np.random.default_rng(1).normal(size=(2, 3, height, width)).astype(np.float32)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})[0]


def check(nodes, *, axis, sides=((32, 32), (5, 7)), **settings):
    model = network(nodes, **settings)
    baked = bake_logit_adjustment(model, PRIOR)
    shift = PRIOR.log_probs.reshape((-1, *[1] * (3 - axis)))
    for side in sides:
        np.testing.assert_allclose(run(baked, *side), run(model, *side) - shift, atol=1e-5)


MADE = {
    "resized": (f"{CONV} {WIDER}", 1),
    "scaled": (
        f"{CONV} c = Constant<value = float {{0.5}}>() m = Mul(c, z) y = Relu(m)",
        1,
    ),
    "transposed": (f"{CONV} y = {SWAP}(z)", 3),
    "transposed, then resized": (
        f"{CONV} t = {SWAP}(z) s = Constant<value = float[4] {{1.0, 2.0, 2.0, 1.0}}>() "
        f"y = Resize(t, , s)",
        3,
    ),
    "there and back": (f"{CONV} t = {SWAP}(z) y = Transpose<perm = [0, 3, 1, 2]>(t)", 1),
    "of two convolutions": ("a = Conv(x, k) n = Neg(x) b = Conv(n, k) m = Abs(b) y = Add(a, m)", 1),
}


@pytest.mark.parametrize(("nodes", "axis"), MADE.values(), ids=MADE)
def test_an_open_width_is_not_taken_for_the_classes(nodes, axis):
    check(nodes, axis=axis)


@pytest.mark.parametrize("size", ["32, 32", "16, 16"])
def test_a_width_that_equals_the_classes(size):
    side = int(size[:2])
    check(f"{CONV} {WIDER}", axis=1, size=size, sides=[(side, side)])


def test_a_linear_layer_on_pixels_has_its_classes_last():
    weight = np.ascontiguousarray(KERNEL[:, :, 0, 0])  # transposed inside the graph
    nodes = f"t = {SWAP}(x) w = Transpose(k) z = MatMul(t, w) y = Neg(z)"
    check(nodes, axis=3, kernel=weight, size="32, 32", sides=[(32, 32)])


def test_a_layer_of_another_width_leaves_it_to_the_one_before():
    over_columns = {"size": "6, 10", "sides": [(6, 10)], "w": weight(10, 25)}
    check(f"{CONV} y = MatMul(z, w)", axis=1, **over_columns)
    check(f"{CONV} t = MatMul(z, w) y = {SWAP}(t)", axis=3, **over_columns)
    smoothed = "t = MatMul(x, w) y = Conv<pads = [2, 0, 2, 0]>(t, k)"
    kernel = RANDOM.normal(size=(1, 3, 5, 1)).astype(np.float32)
    check(smoothed, axis=3, kernel=kernel, size="6, 8", sides=[(6, 8)], w=weight(8, CLASSES))


def test_layers_that_disagree_do_not_tell():
    model = network(f"{CONV} y = MatMul(z, w)", size="6, 10", w=weight(10, CLASSES))
    for named in ({}, {"output": "y"}):
        with pytest.raises(InputError, match="x 32 x 6 x 32, so the 32 classes may be") as error:
            bake_logit_adjustment(model, PRIOR, **named)
        assert "layers as wide have their outputs along either; export" in str(error.value)
        assert "output=" not in str(error.value)  # which would not help
    ended = network(
        f"{CONV} t = MatMul(z, w) y = Softmax<axis = 1>(t)", size="6, 10", w=weight(10, CLASSES)
    )
    shift = PRIOR.log_probs[:, None, None]
    before, after = run(ended, 6, 10), run(bake_logit_adjustment(ended, PRIOR), 6, 10)
    odds = before / np.exp(shift)
    np.testing.assert_allclose(after, odds / odds.sum(1, keepdims=True), atol=1e-5)


def test_a_width_that_no_layer_makes_is_not_taken_for_the_classes():
    """Thirty channels, of an image that happens to be as wide as the prior."""
    model = network(CONV.replace("z", "y"), size="32, 32", kernel=KERNEL[:30])
    with pytest.raises(InputError, match="no layer gives 32 scores, one per class") as error:
        bake_logit_adjustment(model, PRIOR)
    assert "x 30 x 32 x 32, float32)" in str(error.value)
    assert "softmax over them" in str(error.value)
    with pytest.raises(InputError, match="32 classes but the model has 30 outputs"):
        bake_logit_adjustment(model, PRIOR, output="y")


def test_two_axes_that_fit_are_not_guessed_between():
    nodes = f"{CONV} y = Softplus(z)"
    model = network(nodes, size="32, 32")
    with pytest.raises(InputError, match="x 32 x 32 x 32, so the 32 classes may be") as error:
        bake_logit_adjustment(model, PRIOR)
    for way_out in ("inputs=...", "--inputs", "output=...", "--output", "softmax"):
        assert way_out in str(error.value)
    baked = bake_logit_adjustment(model, PRIOR, output="z")  # a way out that it names
    assert "Conv" in bake_record(baked).how
    check(nodes, axis=1)  # open sizes are chosen so that one axis alone fits
    x = np.zeros((1, 3, 32, 32), np.float32)
    with pytest.raises(InputError, match="second axis or on its last"):
        bake_logit_adjustment(network(nodes), PRIOR, inputs={"x": x})


HALF = "h = Cast<to = 10>(z) p = Softmax<axis = 1>(h) y = Cast<to = 1>(p)"
PROBABILITIES = {
    "made larger": f"{CONV} p = Softmax<axis = 1>(z) {WIDER.replace('(z', '(p')}",
    "moved and back": f"{CONV} t = {SWAP}(z) p = Softmax<axis = 3>(t) "
    "y = Transpose<perm = [0, 3, 1, 2]>(p)",
    "in half precision": f"{CONV} {HALF}",
    "a mean": f"{CONV} p = Softmax<axis = 1>(z) n = Neg(z) q = Softmax<axis = 1>(n) y = Mean(p, q)",
}


@pytest.mark.parametrize(
    ("name", "opset"), [*((name, 17) for name in PROBABILITIES), ("moved and back", 11)]
)
def test_probabilities_in_front_of_other_axes(name, opset):
    """They are weighed anew along their own axis, and not taken for logits."""
    model = network(PROBABILITIES[name])
    model.opset_import[0].version = opset
    baked = bake_logit_adjustment(model, PRIOR, tau=0.5)
    assert "probabilities y anew" in bake_record(baked).how
    for side in ((32, 32), (5, 7)):
        odds = run(model, *side) * np.exp(-0.5 * PRIOR.log_probs[:, None, None])
        wanted = odds / odds.sum(1, keepdims=True)
        np.testing.assert_allclose(run(baked, *side), wanted, atol=1e-5)
    assert unbake(baked) == model
    with pytest.raises(InputError, match=r"'y' holds probabilities.* name the logits with output="):
        bake_weight_normalization(model, norms=PRIOR)


def test_two_classes_of_a_sigmoid():
    nodes = "z = Conv(x, k) p = Sigmoid(z) q = Sub(one, p) y = Concat<axis = 1>(q, p)"
    model = network(nodes, kernel=KERNEL[:1], one=np.float32(1).reshape(()))
    prior = ClassPrior.from_counts([9, 1])
    odds = run(model, 5, 7) / prior.probs[:, None, None]
    wanted = odds / odds.sum(1, keepdims=True)
    for output in (None, "z"):
        baked = bake_logit_adjustment(model, prior, output=output)
        np.testing.assert_allclose(run(baked, 5, 7), wanted, atol=1e-5)


def test_a_map_of_labels_that_the_probabilities_do_not_decide():
    model = network(f"{CONV} {HALF} m = ArgMax<axis = 1, keepdims = 0>(z)")
    label = onnx.helper.make_tensor_value_info("m", onnx.TensorProto.INT64, None)
    model.graph.output.append(label)
    with pytest.raises(InputError, match="'m' would no longer be the class of the largest score"):
        bake_logit_adjustment(model, PRIOR)
    x = np.random.default_rng(1).normal(size=(2, 3, 5, 7)).astype(np.float32)
    baked = bake_logit_adjustment(model, PRIOR, output="z")  # decides both
    session = onnxruntime.InferenceSession(baked.SerializeToString())
    probabilities, labels = session.run(None, {"x": x})
    assert (probabilities.argmax(1) == labels).mean() > 0.99


TALL = {"size": "32, 32", "sides": [(32, 32)]}  # two axes fit: a layer must tell


@pytest.mark.parametrize("name", ["Conv", "com.microsoft.FusedConv"])
def test_convolutions_that_a_runtime_has_fused(name):
    check(f"z = {name}(x, k) {WIDER}", axis=1, size="16, 16", sides=[(16, 16)])


@pytest.mark.parametrize("name", ["MatMul", "com.microsoft.FusedMatMul"])
def test_products_that_a_runtime_has_fused(name):
    check(f"t = {SWAP}(x) z = {name}(t, w) y = Neg(z)", axis=3, w=weight(3, CLASSES), **TALL)


def test_tokens_that_were_rows_of_one_matrix():
    nodes = f"t = {SWAP}(x) r = Reshape(t, rows) g = Gemm(r, w, b) y = Reshape(g, back)"
    shapes = {"rows": np.array([-1, 3]), "back": np.array([2, 32, 32, CLASSES])}
    layer = {"w": weight(3, CLASSES), "b": weight(1, CLASSES)[0]}
    settings = shapes | layer | TALL | {"batch": 2}
    check(nodes, axis=3, **settings)
    turned = nodes.replace(
        "y = Reshape(g, back)", "a = Reshape(g, back) y = Transpose<perm = [0, 3, 1, 2]>(a)"
    )
    check(turned, axis=1, **settings)


def test_tokens_that_become_an_image():
    """As in the linear decoder of a vision transformer."""
    nodes = (
        "t = Transpose<perm = [0, 2, 3, 1]>(x) r = Reshape(t, tokens) z = MatMul(r, w) "
        f"c = Transpose<perm = [0, 2, 1]>(z) i = Reshape(c, image) {WIDER.replace('(z', '(i')}"
    )
    shapes = {"tokens": np.array([2, 256, 3]), "image": np.array([2, CLASSES, 16, 16])}
    check(nodes, axis=1, size="16, 16", sides=[(16, 16)], batch=2, w=weight(3, CLASSES), **shapes)


def test_axes_that_a_reshape_mixes_tell_nothing():
    nodes = f"t = {SWAP}(x) g = MatMul(t, w) y = Reshape(g, back)"
    split = {"w": weight(3, 2 * CLASSES), "back": np.array([2, CLASSES, 64, CLASSES])}
    with pytest.raises(InputError, match="its layers do not tell"):
        bake_logit_adjustment(network(nodes, size="32, 32", batch=2, **split), PRIOR)


def test_a_reshape_of_what_nothing_is_known_of_tells_nothing():
    nodes = (
        f"t = {SWAP}(x) z = com.microsoft.FusedMatMul(t, w) p = Softmax<axis = 3>(z) "
        f"y = Reshape(p, back)"
    )
    settings = {"w": weight(3, CLASSES), "back": np.array([2, CLASSES, 32, CLASSES])}
    with pytest.raises(InputError, match="its layers do not tell"):
        bake_logit_adjustment(network(nodes, size="32, 32", batch=2, **settings), PRIOR)


class Images(CalibrationDataReader):
    def __init__(self, side):
        x = np.random.default_rng(1).normal(size=(2, 3, side, side)).astype(np.float32)
        self._inputs = iter([{"x": x}])

    def get_next(self):
        return next(self._inputs, None)


def quantized(model, how, folder, side):
    before, after = folder / "before.onnx", folder / "after.onnx"
    onnx.save(model, before)
    if how.startswith("dynamic"):
        quantize_dynamic(before, after, per_channel=how.endswith("channel"))
    else:
        quantize_static(before, after, Images(side), quant_format=QuantFormat[how])
    return onnx.load(after)


@pytest.mark.parametrize("how", ["dynamic", "dynamic, per channel", "QDQ", "QOperator"])
@pytest.mark.parametrize("kind", ["convolution", "tokens"])
def test_quantized_layers_tell_the_axis_too(kind, how, tmp_path):
    if kind == "convolution":
        side, axis = 16, 1
        model = network(f"z = Conv(x, k, b) {WIDER}", size="16, 16", b=weight(1, CLASSES)[0])
    else:
        side, axis = 32, 3
        layer = {"w": weight(3, CLASSES), "b": weight(1, CLASSES)[0]}
        model = network(f"t = {SWAP}(x) z = MatMul(t, w) y = Add(z, b)", size="32, 32", **layer)
    model = quantized(model, how, tmp_path, side)
    assert not {"Conv", "MatMul"} & {node.op_type for node in model.graph.node} or how == "QDQ"
    shift = PRIOR.log_probs.reshape((-1, *[1] * (3 - axis)))
    wanted = run(model, side, side) - shift
    np.testing.assert_allclose(
        run(bake_logit_adjustment(model, PRIOR), side, side), wanted, atol=1e-5
    )


def test_integer_outputs_of_tokens_are_told_for_what_they_are():
    nodes = f"t = {SWAP}(x) z = MatMul(t, w) y = QuantizeLinear(z, step, zero)"
    scale = {"step": np.float32(0.1).reshape(()), "zero": np.uint8(128).reshape(())}
    model = network(nodes, w=weight(3, CLASSES), **scale)
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    with pytest.raises(InputError, match="This looks like a quantized model: its outputs must be"):
        bake_logit_adjustment(model, PRIOR)
