"""ONNX outputs beside the scores or in place of them: labels, distances, one example's numbers."""

import numpy as np
import onnx
import onnxruntime
import pytest

from graph_factory import (
    COUNTS,
    HALF,
    LABEL,
    LOG_PI,
    PRIOR,
    PROBS,
    F,
    P,
    W,
    X,
    network,
    run,
    softmax,
)
from longtail import ClassPrior, InputError, bake_logit_adjustment


@pytest.mark.parametrize("classes", [2, 3])
def test_distances_are_no_logits(classes):
    prior = ClassPrior.from_counts(COUNTS[:classes])
    nodes = "z = Gemm(x, w, b) dist = Neg(z) il = ArgMin<axis = 1, keepdims = 0>(dist)"
    model = network(nodes, "dist", "il", weight=W[:, :classes])
    message = r"smallest number in 'dist' \(ArgMin\).*name the scores before them \('z'\)"
    with pytest.raises(InputError, match=message):
        bake_logit_adjustment(model, prior)
    dist, label = run(bake_logit_adjustment(model, prior, output="z"))
    wanted = F[:, :classes] - prior.log_probs
    np.testing.assert_allclose(dist, -wanted, atol=1e-5)
    np.testing.assert_array_equal(label, wanted.argmax(axis=1))


@pytest.mark.parametrize("output", ["distance", "square"])
def test_before_distances_there_may_be_others(output):
    nodes = "z = Gemm(x, w, b) square = Mul(z, z) distance = Sqrt(square) "
    nodes += "il = ArgMin<axis = 1, keepdims = 0>(distance)"
    model = network(nodes, "distance", "il")
    with pytest.raises(InputError, match="frequent classes; let the model give them with a minus"):
        bake_logit_adjustment(model, PRIOR, output=output)


@pytest.mark.parametrize("turned", ["Sub(hundred, z)", "Mul(z, minus)", "Div(z, minus)"])
def test_the_least_of_what_is_turned_round_is_the_largest(turned):
    nodes = f"z = Gemm(x, w, b) t = {turned} il = ArgMin<axis = 1, keepdims = 0>(t)"
    model = network(nodes, "z", "il", minus=np.float32(-1))
    logits, label = run(bake_logit_adjustment(model, PRIOR))
    np.testing.assert_allclose(logits, F - LOG_PI, atol=1e-5)
    np.testing.assert_array_equal(label, LABEL)


def test_logits_of_inputs_that_hardly_differ_are_no_percentages():
    """The sums of three logits are as much alike as the logits, and these are all positive."""
    nodes = "s = Mul(x, tiny) z = Gemm(s, w, five) y = Identity(z)"
    model = network(nodes, "y", tiny=np.float32(1e-6), five=np.full(3, 5, np.float32))
    got = run(bake_logit_adjustment(model, PRIOR))[0]
    np.testing.assert_allclose(got, 1e-6 * F + 5 - LOG_PI, atol=1e-5)


def test_logits_whose_smallest_is_given_too():
    nodes = "z = Gemm(x, w, b) il = ArgMax<axis = 1, keepdims = 0>(z) "
    nodes += "ir = ArgMin<axis = 1, keepdims = 0>(z)"
    logits, label, least = run(bake_logit_adjustment(network(nodes, "z", "il", "ir"), PRIOR))
    np.testing.assert_allclose(logits, F - LOG_PI, atol=1e-5)
    np.testing.assert_array_equal(label, LABEL)
    np.testing.assert_array_equal(least, P.argmin(axis=1))


@pytest.mark.parametrize("end", ["", "s = Identity(y)", "s = Softmax<axis = 0>(y)"])
@pytest.mark.parametrize("classes", [2, 3])
def test_one_example_without_its_axis(classes, end):
    nodes = f"z = Gemm(x, w, b) y = Squeeze(z, nought) {end}"
    model = network(nodes, "s" if end else "y", weight=W[:, :classes], nought=np.array([0]))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    prior = ClassPrior.from_counts(COUNTS[:classes])
    baked = bake_logit_adjustment(model, prior)
    session = onnxruntime.InferenceSession(baked.SerializeToString())
    wanted = F[:1, :classes] - prior.log_probs
    wanted = softmax(wanted) if "Softmax" in end else wanted
    np.testing.assert_allclose(session.run(None, {"x": X[:1]})[0], wanted[0], atol=1e-5)


ALONE = {
    "temperature": ("z = Gemm(x, w, b) s = Squeeze(z, nought) y = Mul(s, half)", F / 2 - LOG_PI),
    "bias": ("h = MatMul(x, w) s = Squeeze(h, nought) y = Add(s, b)", F - LOG_PI),
    "the first row": ("z = Gemm(x, w, b) s = Gather(z, begin) y = Mul(s, half)", F / 2 - LOG_PI),
    "a vector": ("s = Squeeze(x, nought) y = MatMul(s, w)", F - LOG_PI),
    "percent": (f"{PROBS} m = Mul(p, hundred) y = Squeeze(m, nought)", 100 * P),
    "percent of a vector": (
        "z = Gemm(x, w, b) s = Squeeze(z, nought) p = Softmax<axis = 0>(s) y = Mul(p, hundred)",
        100 * P,
    ),
}


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", list(ALONE))
def test_a_vector_of_scores_of_one_example(name, classes):
    nodes, wanted = ALONE[name]
    model = network(
        nodes, "y", weight=W[:, :classes], nought=np.array([0]), **HALF, begin=np.array(0)
    )
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    prior = ClassPrior.from_counts(COUNTS[:classes])
    session = onnxruntime.InferenceSession(bake_logit_adjustment(model, prior).SerializeToString())
    wanted = wanted[0, :classes]
    if "percent" in name:
        wanted = 100 * softmax(F[:1, :classes] - prior.log_probs)[0]
    else:
        wanted = wanted + LOG_PI[:classes] - prior.log_probs
    np.testing.assert_allclose(session.run(None, {"x": X[:1]})[0], wanted, rtol=1e-5, atol=1e-5)


def test_two_numbers_of_two_examples_are_margins():
    model = network(
        "z = Gemm(x, w, b) y = Squeeze(z, last)", "y", weight=W[:, :1], last=np.array([1])
    )
    prior = ClassPrior.from_counts([9, 1])
    np.testing.assert_allclose(
        run(bake_logit_adjustment(model, prior))[0], F[:, 0] + np.log(9), atol=1e-5
    )
    baked = bake_logit_adjustment(model, prior, inputs={"x": X[:2]})
    np.testing.assert_allclose(run(baked)[0], F[:, 0] + np.log(9), atol=1e-5)


def test_two_numbers_that_are_not_of_one_example_each_are_not_guessed_at():
    """Two channels of one example, or a batch whose examples play into each other."""
    nodes = "m = ReduceMean<axes = [0], keepdims = 0>(x) y = MatMul(m, w)"
    model, prior = network(nodes, "y", weight=W[:, :2]), ClassPrior.from_counts([9, 1])
    with pytest.raises(
        InputError, match="'y' is 2 numbers, which may be two scores of one example"
    ):
        bake_logit_adjustment(model, prior, inputs={"x": X[:2]})


def test_a_single_number_is_refused():
    model = network("z = Gemm(x, w, b) y = ReduceMax<keepdims = 0>(z)", "y")
    with pytest.raises(InputError, match="'y' is a single number; export the model with an axis"):
        bake_logit_adjustment(model, PRIOR, output="y")


def test_numbers_that_no_input_decides_are_no_scores_of_an_example():
    model = network("z = Gemm(x, w, b) y = Mul(row, half)", "z", "y", row=W[0], **HALF)
    np.testing.assert_allclose(run(bake_logit_adjustment(model, PRIOR))[0], F - LOG_PI, atol=1e-5)


def test_a_label_that_made_up_inputs_never_change():
    """All are of one class before; the label is of the logits, the output a mean of softmaxes."""
    nodes = "s = Mul(x, tiny) z = Gemm(s, w, first) p = Softmax(z) h = Mul(z, half) q = Softmax(h) "
    nodes += "t = Add(p, q) y = Mul(t, half) "
    constants = {"tiny": np.float32(0.05), "first": np.array([6, 4.5, 4], np.float32), **HALF}
    label = "il = ArgMax<axis = 1, keepdims = 0>"
    model = network(f"{nodes} {label}(z)", "y", "il", **constants)
    with pytest.raises(InputError, match="'il' would no longer be the class of the largest score"):
        bake_logit_adjustment(model, PRIOR)
    probs, label = run(
        bake_logit_adjustment(network(f"{nodes} {label}(y)", "y", "il", **constants), PRIOR)
    )
    np.testing.assert_array_equal(label, probs.argmax(axis=1))


def test_the_label_of_another_head():
    """Made-up inputs are all of one class in either head, and only one is adjusted."""
    nodes = "s = Mul(x, tiny) z = Gemm(s, w, first) v = Gemm(s, w, first) "
    nodes += "il = ArgMax<axis = 1, keepdims = 0>(z) io = ArgMax<axis = 1, keepdims = 0>(v)"
    constants = {"tiny": np.float32(0.05), "first": np.array([6, 4.5, 4], np.float32)}
    model = network(nodes, "z", "il", "v", "io", **constants)
    logits, label, others, other = run(bake_logit_adjustment(model, PRIOR, output="z"))
    np.testing.assert_allclose(logits, others - LOG_PI, atol=1e-5)
    np.testing.assert_array_equal(label, logits.argmax(axis=1))
    np.testing.assert_array_equal(other, 0)


def test_a_label_of_scores_that_half_precision_makes_equal():
    nodes = "h = Cast<to = 10>(x) z = Gemm(h, w, b) p = Softmax(z) "
    nodes += "il = ArgMax<axis = 1, keepdims = 0>(p)"
    # Adjusted, the second class is as probable as the first but for noise.
    weight, bias = W[:, [0, 0, 2]] + 1e-3 * W, np.log([9, 1, 1])
    model = network(nodes, "p", "il", weight=weight.astype(np.float16), b=bias.astype(np.float16))
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    probs, label = run(bake_logit_adjustment(model, ClassPrior.from_counts([9, 1, 1])))
    chosen = np.take_along_axis(probs, label[:, None], 1)[:, 0]
    np.testing.assert_allclose(chosen, probs.max(axis=1), rtol=0.02)


def test_a_label_that_does_not_follow_a_margin():
    nodes = (
        "z = Gemm(x, w, b) y = Sigmoid(z) v = Gemm(x, w, b) c = Greater(v, b) il = Cast<to = 7>(c)"
    )
    model = network(nodes, "y", "il", weight=W[:, :1])
    with pytest.raises(InputError, match="'il' would no longer be the class of the largest score"):
        bake_logit_adjustment(model, ClassPrior.from_counts([9, 1]))


def test_a_label_as_zeros_and_ones_can_not_be_adjusted():
    nodes = "z = Gemm(x, w, b) i = ArgMax<axis = 1, keepdims = 0>(z) y = OneHot(i, depth, values)"
    constants = {"depth": np.array(3), "values": np.array([0, 1], np.float32)}
    with pytest.raises(
        InputError, match="'y' holds nothing but 0 and 1, which no adjustment chang"
    ):
        bake_logit_adjustment(network(nodes, "y", **constants), PRIOR)


@pytest.mark.parametrize("end", ["Squeeze(p, nought)", "Reshape(p, all)", "Gather(p, first)"])
def test_probabilities_of_one_example_without_its_axis(end):
    constants = {"nought": np.array([0]), "all": np.array([-1]), "first": np.array(0)}
    model = network(f"{PROBS} y = {end}", "y", **constants)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    session = onnxruntime.InferenceSession(bake_logit_adjustment(model, PRIOR).SerializeToString())
    np.testing.assert_allclose(session.run(None, {"x": X[:1]})[0], P[0], atol=1e-5)


def test_scores_of_which_only_the_label_is_given_are_named():
    nodes = "z = Gemm(x, w, b) il = ArgMax<axis = 1, keepdims = 0>(z) "
    nodes += "y = ReduceMax<axes = [1], keepdims = 0>(z)"
    for outputs in (["il"], ["il", "y"]):
        model = network(nodes, *outputs)
        message = "no output of the model is 3 wide.* inside the model seem to be 'z': name these"
        with pytest.raises(InputError, match=message):
            bake_logit_adjustment(model, PRIOR)
        label = run(bake_logit_adjustment(model, PRIOR, output="z"))[0]
        np.testing.assert_array_equal(label, LABEL)
