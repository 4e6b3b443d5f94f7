"""ONNX outputs that show the classes' scores in another form: what they are made of is adjusted."""

import numpy as np
import onnx
import pytest

from graph_factory import (
    HALF,
    LABEL,
    LOG_PI,
    ORDER,
    PRIOR,
    PROBS,
    RANDOM,
    F,
    P,
    W,
    network,
    run,
    softmax,
)
from longtail import (
    ClassPrior,
    InputError,
    bake_logit_adjustment,
    bake_record,
    bake_weight_normalization,
    unbake,
)

TOP = np.take_along_axis(P, ORDER, 1)
SHOWN = {
    "percent": (f"{PROBS} y = Mul(p, hundred)", [100 * P]),
    "logarithms": (f"{PROBS} y = Log(p)", [np.log(P)]),
    "negative logarithms": ("z = Gemm(x, w, b) l = LogSoftmax(z) y = Neg(l)", [-np.log(P)]),
    "ranks": (
        f"{PROBS} y, i = TopK(p, three) il = ArgMax<axis = 1, keepdims = 0>(p)",
        [TOP, ORDER, LABEL],
    ),
    "ranks of logits": (
        "z = Gemm(x, w, b) y, i = TopK(z, three) il = ArgMax<axis = 1, keepdims = 0>(z)",
        [np.take_along_axis(F - LOG_PI, ORDER, 1), ORDER, LABEL],
    ),
    "the first two": (f"{PROBS} y, i = TopK(p, two)", [TOP[:, :2], ORDER[:, :2]]),
    "percent of the first two": (
        f"{PROBS} t, i = TopK(p, two) y = Mul(t, hundred)",
        [100 * TOP[:, :2], ORDER[:, :2]],
    ),
    "label and confidence": (
        f"{PROBS} y = ReduceMax<axes = [1], keepdims = 0>(p) "
        "il = ArgMax<axis = 1, keepdims = 0>(p)",
        [P.max(axis=1), LABEL],
    ),
    "clipped": (
        f"{PROBS} y = Clip(p, low, high) il = ArgMax<axis = 1, keepdims = 0>(p)",
        [np.clip(P, 0.05, 0.95), LABEL],
    ),
    "the larger of each and a floor": (f"{PROBS} y = Max(p, low)", [np.maximum(P, 0.05)]),
    "a floor that made-up inputs hardly reach": (
        f"{PROBS} y = Max(p, tiny)",
        [np.maximum(P, 1e-5)],
    ),
    "percent above a floor": (
        f"{PROBS} m = Max(p, tiny) y = Mul(m, hundred)",
        [100 * np.maximum(P, 1e-5)],
    ),
    "turned behind a floor": (
        f"{PROBS} m = Max(p, tiny) t = Unsqueeze(m, two) y = Squeeze(t, two)",
        [np.maximum(P, 1e-5)],
    ),
    "mixed with a guess": (f"{PROBS} m = Mul(p, high) y = Add(m, guess)", [0.95 * P + 0.05 / 3]),
    "by rank": (
        f"{PROBS} v, i = TopK(p, three) y = GatherElements<axis = 1>(p, i)",
        [TOP, ORDER],
    ),
    "roots": (f"{PROBS} y = Sqrt(p)", [np.sqrt(P)]),
    "what is missing from 1": (f"{PROBS} y = Sub(full, p)", [1 - P]),
    "only large ones": (
        f"{PROBS} c = Greater(p, high) y = Where(c, p, low)",
        [np.where(P > 0.95, P, 0.05)],
    ),
    "only large ones by a mask": (
        f"{PROBS} c = Greater(p, high) m = Cast<to = 1>(c) y = Mul(p, m)",
        [np.where(P > 0.95, P, 0)],
    ),
    "odds": (f"{PROBS} r = Sub(more, p) y = Div(p, r)", [P / (1.5 - P)]),
    "the largest as 1": (
        "z = Gemm(x, w, b) y = Hardmax(z) il = ArgMax<axis = 1, keepdims = 0>(z)",
        [np.eye(3)[LABEL], LABEL],
    ),
    "quantized probabilities": (
        f"{PROBS} q = QuantizeLinear(p, s, o) y = DequantizeLinear(q, s, o)",
        [np.round(P * 100) / 100],
    ),
}


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("name", list(SHOWN))
def test_what_the_outputs_are_made_of_is_adjusted(name, named):
    nodes, wanted = SHOWN[name]
    outputs = ["y", *(word for word in ("i", "il") if f" {word} =" in nodes)]
    scale = {"s": np.float32(0.01), "o": np.array(0, np.uint8)}
    bounds = {"low": 0.05, "high": 0.95, "full": 1, "more": 1.5, "tiny": 1e-5, "guess": 0.05 / 3}
    bounds = {name: np.float32(value) for name, value in bounds.items()}
    model = network(nodes, *outputs, **scale, **bounds)
    baked = bake_logit_adjustment(model, PRIOR, output="y" if named else None)
    assert bake_record(baked).where == "z"
    got = dict(zip(outputs, run(baked), strict=True))
    for key, value in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(
            got[key], value, rtol=1e-4, atol=1.01e-2 if "q =" in nodes else 1e-4
        )
    assert unbake(baked) == model


def test_probabilities_that_a_quantized_model_rounds_are_probabilities():
    """As a quantized softmax of a runtime gives them, of which the search knows nothing."""
    nodes = "z = Gemm(x, w, b) i = QuantizeLinear(z, tenth, middle) "
    nodes += "q = com.microsoft.QLinearSoftmax<axis = 1, opset = 17>(i, tenth, middle, k, o) "
    nodes += "y = DequantizeLinear(q, k, o)"
    constants = {"k": np.float32(1 / 255), "o": np.array(0, np.uint8)}
    constants |= {"tenth": np.float32(0.1), "middle": np.array(128, np.uint8)}
    model = network(nodes, "y", **constants)
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    before = run(model)[0].astype(np.float64)
    assert np.abs(before.sum(axis=1) - 1).max() > 1e-3
    odds = before / PRIOR.probs
    got = run(bake_logit_adjustment(model, PRIOR))[0]
    np.testing.assert_allclose(got, odds / odds.sum(axis=1, keepdims=True), atol=1e-5)


def test_probabilities_that_are_rounded_too_coarsely_are_refused():
    nodes = "z = Gemm(x, w, b) i = QuantizeLinear(z, k, o) "
    nodes += "q = com.microsoft.QLinearSoftmax<axis = 1, opset = 17>(i, k, o, k, o) "
    nodes += "y = DequantizeLinear(q, k, o)"
    weight = RANDOM.normal(size=(5, 300)).astype(np.float32)
    model = network(nodes, "y", weight=weight, k=np.float32(1 / 255), o=np.array(0, np.uint8))
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(
        InputError, match=r"steps of 0.0039, too coarse for 300 classes: most are 0"
    ):
        bake_logit_adjustment(model, ClassPrior.from_counts(range(300, 0, -1)))


def test_probabilities_that_their_type_would_make_zero_are_refused():
    """In float16 nothing below 6e-8 is left, and a row of nothing but 0 would be made NaN."""
    nodes = f"{PROBS} v = Gemm(x, w, b) q = Softmax(v) c = Cast<to = 10>(p) d = Cast<to = 10>(q) "
    model = network(f"{nodes} s = Add(c, d) y = Mul(s, half)", "y", half=np.float16(0.5))
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    assert np.isfinite(run(bake_logit_adjustment(model, PRIOR, tau=3))[0]).all()
    with pytest.raises(InputError, match="would make probabilities 0 in F16; use a smaller tau"):
        bake_logit_adjustment(model, PRIOR, tau=4)


def test_weights_behind_percentages_are_normalized_in_the_logits():
    model = network(SHOWN["percent"][0], "y")
    got = run(bake_weight_normalization(model, norms=PRIOR))[0]
    np.testing.assert_allclose(got, 100 * softmax(F / PRIOR.probs), atol=1e-2)


@pytest.mark.parametrize("nodes", [
    "one_of_two = Gather<axis = 1>(p, one) y = Identity(one_of_two)",
    "y = ReduceMax<axes = [1], keepdims = 0>(p)",
])  # fmt: skip
def test_one_of_two_probabilities_is_no_margin(nodes):
    model = network(f"{PROBS} {nodes}", "y", weight=W[:, :2])
    baked = bake_logit_adjustment(model, ClassPrior.from_counts([9, 1]))
    probs = softmax(F[:, :2] - np.log([0.9, 0.1]))
    wanted = probs[:, 1] if "Gather" in nodes else probs.max(axis=1)
    np.testing.assert_allclose(run(baked)[0], wanted, atol=1e-5)


TURN = np.array([2, 0, 1])


@pytest.mark.parametrize("nodes", [
    "p = Softmax(z) y = Gather<axis = 1>(p, turn)",
    "l = LogSoftmax(z) y = Gather<axis = 1>(l, turn)",
    "p = Softmax(z) g = Gather<axis = 1>(p, turn) y = Mul(g, hundred)",
])  # fmt: skip
def test_the_prior_is_in_the_order_of_the_outputs(nodes):
    model = network(f"z = Gemm(x, w, b) {nodes}", "y", turn=TURN)
    got = run(bake_logit_adjustment(model, PRIOR))[0].astype(np.float64)
    got = softmax(got) if "Log" in nodes else got / got.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(got, softmax(F[:, TURN] - LOG_PI), atol=1e-5)


def test_percentages_in_another_order_are_refused():
    nodes = f"{PROBS} m = Mul(p, hundred) y = Gather<axis = 1>(m, turn)"
    with pytest.raises(InputError, match=r"sum to 100 for every example, as percentages do"):
        bake_logit_adjustment(network(nodes, "y", turn=TURN), PRIOR)


@pytest.mark.parametrize("end", ["Identity(s)", "Mul(s, hundred)"])
def test_probabilities_without_the_background_need_a_prior_of_all(end):
    model = network(f"{PROBS} s = Slice(p, one1, three, one1) y = {end}", "y", one1=np.array([1]))
    message = r"'s' is a part of probabilities of 3 classes \('p'\); give a prior of all 3"
    with pytest.raises(InputError, match=message):
        bake_logit_adjustment(model, ClassPrior.from_counts([90, 10]))
    got = run(bake_logit_adjustment(model, PRIOR))[0]
    np.testing.assert_allclose(got, P[:, 1:] * (100 if "Mul" in end else 1), rtol=1e-3, atol=1e-4)


def test_percent_of_a_sigmoid():
    model = network("z = Gemm(x, w, b) p = Sigmoid(z) y = Mul(p, hundred)", "y", weight=W[:, :1])
    baked = bake_logit_adjustment(model, ClassPrior.from_counts([9, 1]))
    wanted = 100 / (1 + np.exp(-F[:, :1]) / 9)
    np.testing.assert_allclose(run(baked)[0], wanted, atol=1e-3)
    several = network("z = Gemm(x, w, b) p = Sigmoid(z) y = Mul(p, hundred)", "y")
    with pytest.raises(InputError, match="a sigmoid of 3 scores, each a question of its own"):
        bake_logit_adjustment(several, PRIOR)


CLIPPED = "z = Gemm(x, w, b) p = Sigmoid(z) y = Clip(p, low, high)"


def test_a_clipped_sigmoid_is_no_logit():
    bounds = {"low": np.float32(0.05), "high": np.float32(0.95)}
    model = network(CLIPPED, "y", weight=W[:, :1], **bounds)
    baked = bake_logit_adjustment(model, ClassPrior.from_counts([9, 1]))
    wanted = np.clip(1 / (1 + np.exp(-F[:, :1]) / 9), 0.05, 0.95)
    np.testing.assert_allclose(run(baked)[0], wanted, atol=1e-5)
    with pytest.raises(InputError, match="a sigmoid of 3 scores, each a question of its own"):
        bake_logit_adjustment(network(CLIPPED, "y", **bounds), PRIOR)


@pytest.mark.parametrize("nodes", [
    "y = ReduceMax<axes = [1], keepdims = 0>(z)",
    "y = Gather<axis = 1>(z, one)",
    "l = ArgMax<axis = 1, keepdims = 0>(z) y = Cast<to = 1>(l)",
])  # fmt: skip
def test_one_of_two_logits_is_no_margin(nodes):
    nodes = f"z = Gemm(x, w, b) {nodes} il = ArgMax<axis = 1, keepdims = 0>(z)"
    model, prior = network(nodes, "y", "il", weight=W[:, :2]), ClassPrior.from_counts([9, 1])
    with pytest.raises(InputError, match="inside the model seem to be 'z': name these"):
        bake_logit_adjustment(model, prior)
    with pytest.raises(InputError, match="'y' is only one of the scores in 'z' for each example"):
        bake_logit_adjustment(model, prior, output="y")
    label = run(bake_logit_adjustment(model, prior, output="z"))[1]
    np.testing.assert_array_equal(label, (F[:, :2] - prior.log_probs).argmax(axis=1))


HONEST = {
    "negative distances": "z = Gemm(x, w, b) y = Neg(z)",
    "attention over features": "z = Gemm(x, w, b) a = Softmax<axis = 1>(x) "
    "m = ReduceMax<axes = [1]>(a) y = Mul(z, m)",
    "an item of a list": "z = Gemm(x, w, b) l = SequenceConstruct(z) y = SequenceAt(l, nought)",
    "a softmax before the layer": "a = Softmax<axis = 1>(x) y = Gemm(a, w, b)",
    "half of some logarithms": "z = Gemm(x, w, b) l = LogSoftmax(z) y = Mul(l, half)",
    "half of a softmax's logarithm": f"{PROBS} l = Log(p) y = Mul(l, half)",
    "logarithms and a bias": "z = Gemm(x, w, b) l = LogSoftmax(z) y = Add(l, half)",
    "clipped logarithms": f"{PROBS} l = Log(p) y = Max(l, least)",
    "a gate of its own": "z = Gemm(x, w, b) g = Sigmoid(z) y = Mul(z, g)",
    "weights of its own": "z = Gemm(x, w, b) v = Gemm(x, w, b) g = Softmax(v) y = Mul(z, g)",
    "classes in another order": "z = Gemm(x, w, b) y = Gather<axis = 1>(z, order)",
}


@pytest.mark.parametrize("name", list(HONEST))
def test_logits_stay_logits(name):
    more = {"least": np.float32(-3), "order": np.array([2, 0, 1])}
    model = network(HONEST[name], "y", nought=np.array(0), **HALF, **more)
    got = run(bake_logit_adjustment(model, PRIOR))[0]
    np.testing.assert_allclose(got, run(model)[0] - LOG_PI, atol=1e-5)


def test_the_largest_pixels_of_each_class_are_logits():
    """A top-k over places, not over classes."""
    nodes = "u = Unsqueeze(x, two) z = Mul(u, w3) t = Transpose<perm = [0, 2, 1]>(z) "
    nodes += "k, i = TopK(t, two) y = ReduceMean<axes = [2], keepdims = 0>(k)"
    model = network(nodes, "y", w3=W[None])
    got = run(bake_logit_adjustment(model, PRIOR))[0]
    np.testing.assert_allclose(got, run(model)[0] - LOG_PI, atol=1e-5)


@pytest.mark.parametrize("nodes", [
    "z = Gemm(x, w, b) l = LogSoftmax(z) m = Mul(l, half) y = Softmax(m)",
    f"{PROBS} l = Log(p) m = Mul(l, half) y = Softmax(m)",
    f"{PROBS} m = Mul(p, hundred) y = Softmax(m)",
    f"{PROBS} y = Softmax(p)",
])  # fmt: skip
def test_a_softmax_behind_another_is_adjusted_as_it_is(nodes):
    """Adjusting the one inside would be a tau of another size: a half, or a hundred."""
    model = network(nodes, "y", **HALF)
    odds = run(model)[0].astype(np.float64) / PRIOR.probs
    got = run(bake_logit_adjustment(model, PRIOR))[0]
    np.testing.assert_allclose(got, odds / odds.sum(axis=1, keepdims=True), atol=1e-5)


def test_a_tensor_that_is_named_inside_the_model_is_meant():
    nodes = "z = Gemm(x, w, b) l = LogSoftmax(z) m = Neg(l) y = Softmax(m)"
    model = network(nodes, "y")
    baked = bake_logit_adjustment(model, PRIOR, output="m")
    assert bake_record(baked).where == "m"
    np.testing.assert_allclose(run(baked)[0], softmax(-np.log(softmax(F)) - LOG_PI), atol=1e-5)


@pytest.mark.parametrize("outputs", [("z", "y"), ("y", "z")])
def test_the_largest_of_something_else_is_no_score_of_a_class(outputs):
    """The largest weight of as many experts as there are classes."""
    nodes = "z = Gemm(x, w, b) v = Gemm(x, gate, b) g = Softmax(v) "
    nodes += "y = ReduceMax<axes = [1], keepdims = 0>(g)"
    model = network(nodes, *outputs, gate=W[:, ::-1].copy())
    got = dict(zip(outputs, run(bake_logit_adjustment(model, PRIOR)), strict=True))
    np.testing.assert_allclose(got["z"], F - LOG_PI, atol=1e-5)
    np.testing.assert_allclose(got["y"], softmax(F[:, ::-1]).max(axis=1), atol=1e-5)


@pytest.mark.parametrize("nodes", ["y = Add(p, q)", "s = Add(p, q) y = Mul(s, hundred)"])
def test_percentages_of_several_softmaxes_are_refused(nodes):
    model = network(f"{PROBS} v = Gemm(x, w, c) q = Softmax(v) {nodes}", "y", c=W[0])
    message = r"'y' are all positive and sum to 200? for every .* \(divide by 200?\)"
    if "hundred" not in nodes:
        message = message.replace("200?", "2")
    with pytest.raises(InputError, match=message):
        bake_logit_adjustment(model, PRIOR)


@pytest.mark.parametrize("nodes", [
    "y = CumSum(p, one)",
    "n = ReduceL2<axes = [1]>(p) y = Div(p, n)",
    "v = Gemm(x, w, c) q = Softmax(v) y = Mul(p, q)",
])  # fmt: skip
def test_functions_of_probabilities_that_are_not_seen_through_are_refused(nodes):
    model = network(f"{PROBS} {nodes}", "y", c=W[0])
    with pytest.raises(InputError, match=r"'y' is made of the probabilities '.*name what"):
        bake_logit_adjustment(model, PRIOR)
    baked = bake_logit_adjustment(model, PRIOR, output="p")
    assert bake_record(baked).where == "z"
