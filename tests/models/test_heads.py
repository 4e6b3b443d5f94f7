"""The heads against their equations, and what runs record of them."""

import math

import numpy as np
import pytest
import torch

from longtail import models
from longtail.models.heads import head_factory


def make(head, *, scale=1.0, classes=5, width=7):
    torch.manual_seed(0)
    layer = head_factory(head, num_classes=classes, scale=scale)(width).double()
    with torch.no_grad():
        layer.weight.mul_(torch.arange(1.0, classes + 1).view(-1, 1))  # rows of unequal length
    return layer


def length(vector):
    return math.sqrt(sum(v * v for v in vector))


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


EQUATIONS = {
    "linear": lambda x, w, b, s: dot(x, w) + b,
    "cosine": lambda x, w, b, s: s * dot(x, w) / (length(x) * length(w)),
    "unit-norm": lambda x, w, b, s: dot(x, w) / length(w),
}


@pytest.mark.parametrize(
    ("head", "scale"), [("linear", 1.0), ("cosine", 1.0), ("cosine", 30.0), ("unit-norm", 1.0)]
)
def test_logits_are_the_equation(head, scale):
    layer = make(head, scale=scale)
    x = torch.randn(4, 7, dtype=torch.float64)
    bias = layer.bias.tolist() if head == "linear" else [0.0] * 5
    expected = [
        [
            EQUATIONS[head](row, w, b, scale)
            for w, b in zip(layer.weight.tolist(), bias, strict=True)
        ]
        for row in x.tolist()
    ]
    assert np.abs(layer(x).detach().numpy() - np.array(expected)).max() < 1e-12


@pytest.mark.parametrize("head", ["cosine", "unit-norm"])
def test_a_rows_length_leaves_logits_alone_and_its_gradient_is_across(head):
    layer = make(head)
    x = torch.randn(4, 7, dtype=torch.float64)
    logits = layer(x)
    logits.pow(3).sum().backward()
    assert layer.weight.grad.abs().max() > 1e-3
    assert torch.allclose((layer.weight * layer.weight.grad).sum(dim=1), torch.zeros(5).double())
    with torch.no_grad():
        layer.weight.mul_(3.0)
    assert torch.allclose(layer(x), logits)


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
        assert np.allclose(norms, [length(row) for row in model.fc.weight.tolist()], rtol=1e-12)
        assert np.array_equal(bias, model.fc.bias.tolist())
    else:
        assert np.allclose(norms, norm, rtol=1e-6)
        assert np.array_equal(bias, np.zeros(6))
