"""Heads against their equations, networks side by side, and what `models.build` refuses."""

import numpy as np
import pytest
import torch

from longtail import models
from longtail._checks import InputError
from longtail.models.heads import head_factory
from longtail.models.stacked import part_of, stack


def make(head, *, scale=1.0, classes=5, width=7):
    torch.manual_seed(0)
    layer = head_factory(head, num_classes=classes, scale=scale)(width).double()
    with torch.no_grad():
        layer.weight.mul_(torch.arange(1.0, classes + 1).view(-1, 1))  # rows of unequal length
    return layer


def length(vectors):
    return np.sqrt((vectors**2).sum(1))


EQUATIONS = {
    "linear": lambda x, w, b, s: x @ w.T + b,
    "cosine": lambda x, w, b, s: s * x @ w.T / np.outer(length(x), length(w)),
    "unit-norm": lambda x, w, b, s: x @ w.T / length(w),
}


@pytest.mark.parametrize(
    ("head", "scale"), [("linear", 1.0), ("cosine", 1.0), ("cosine", 30.0), ("unit-norm", 1.0)]
)
def test_logits_are_the_equation(head, scale):
    layer = make(head, scale=scale)
    x = torch.randn(4, 7, dtype=torch.float64)
    weight = layer.weight.detach().numpy()
    bias = layer.bias.detach().numpy() if head == "linear" else None
    expected = EQUATIONS[head](x.numpy(), weight, bias, scale)
    assert np.abs(layer(x).detach().numpy() - expected).max() < 1e-12


@pytest.mark.parametrize("name", ["small-conv", "resnet20", "resnet32-released"])
@pytest.mark.parametrize(
    ("head", "scale", "norm"),
    [("linear", 1.0, None), ("cosine", 30.0, 30.0), ("unit-norm", 1.0, 1)],
)
def test_norms_and_bias_of_every_head(name, head, scale, norm):
    torch.manual_seed(0)
    model = models.build(name, num_classes=6, image_shape=(3, 8, 8), head=head, head_scale=scale)
    with torch.no_grad():
        model.fc.weight.mul_(torch.arange(1.0, 7.0).view(-1, 1))
    norms, bias = models.head_norms_and_bias(model)
    assert norms.dtype == bias.dtype == np.float64
    if head == "linear":
        weight = model.fc.weight.detach().double().numpy()
        assert np.allclose(norms, length(weight), rtol=1e-12)
        assert np.array_equal(bias, model.fc.bias.tolist())
    else:
        assert np.allclose(norms, norm, rtol=1e-6)
        assert np.array_equal(bias, np.zeros(6))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "resnet34"}, "`name` must be one of 'small-conv', 'resnet20'.*got 'resnet34'"),
        ({"head": "normed"}, "`head` must be one of 'linear', 'cosine', 'unit-norm'; got 'normed'"),
        ({"head_scale": 30.0}, "the linear head has none, but 30 came; leave it out, or pass head"),
        ({"image_shape": (3, 3, 32)}, r"at least 4 x 4 pixels.*is \(3, 3, 32\)"),
    ],
)
def test_bad_input_is_refused(changes, message):
    good = {"name": "resnet32", "num_classes": 10, "image_shape": (3, 32, 32)}
    with pytest.raises(InputError, match=message):
        models.build(**good | changes)


@pytest.mark.parametrize("name", models.MODELS)
def test_the_smallest_images_work(name):
    side = models.MODELS[name].smallest
    with torch.device("meta"):
        model = models.build(name, image_shape=(3, side, side), num_classes=2)
        assert model(torch.empty(2, 3, side, side)).shape == (2, 2)


def network(name, head, seed):
    torch.manual_seed(seed)
    return models.build(name, num_classes=7, image_shape=(3, 16, 16), head=head)


@pytest.mark.parametrize("head", models.HEADS)
@pytest.mark.parametrize("name", ["resnet20", "resnet32-released"])
def test_each_network_is_as_it_would_be_alone(name, head):
    alone = [network(name, head, seed) for seed in range(3)]
    together = stack(alone)
    images = torch.randn(4, 9, 16, 16).contiguous(memory_format=torch.channels_last)
    logits = together(images)
    expected = torch.stack([net(images[:, 3 * i : 3 * i + 3]) for i, net in enumerate(alone)])
    assert logits.shape == (3, 4, 7)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    slope = torch.randn_like(logits)
    logits.backward(slope)
    expected.backward(slope)
    for key, value in together.named_parameters():
        for index, net in enumerate(alone):
            mine = part_of(value.grad, index=index, count=3)
            theirs = net.get_parameter(key).grad
            assert (mine - theirs).norm() < 1e-3 * theirs.norm(), (key, index)
    assert list(together.state_dict()) == list(alone[0].state_dict())
    for key, value in together.state_dict().items():
        for index, net in enumerate(alone):
            mine = part_of(value, index=index, count=3)
            torch.testing.assert_close(mine, net.state_dict()[key], rtol=1e-4, atol=1e-5)
