"""The residual networks: counts, names, the forward pass against its equations, initial weights.

The references use the state dict's names and plain functions.
"""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from longtail import models
from longtail.models import resnet

CIFAR = ["resnet20", "resnet32", "resnet56", "resnet32x4", "resnet32-released"]
IMAGENET = ["resnet18", "resnet50", "resnet152"]
SMALL = ["resnet20", "resnet32-released", "resnet18", "resnet50"]  # one of each kind, the quickest


def build(name, num_classes=10, size=32, seed=0, **options):
    torch.manual_seed(seed)
    return models.build(name, num_classes=num_classes, image_shape=(3, size, size), **options)


def skeleton(name, num_classes):
    """Shapes without numbers: quick, however large the network."""
    with torch.device("meta"):
        return build(name, num_classes)


def shaken(model, seed=1):
    """The same network with batch norms that do something, in training and out of it."""
    generator = torch.Generator().manual_seed(seed)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            for tensor, low in (
                (layer.weight, 0.5),
                (layer.bias, -0.5),
                (layer.running_mean, -0.5),
                (layer.running_var, 0.5),
            ):
                tensor.data.uniform_(low, low + 1.0, generator=generator)
    return model


def images(*shape, seed=2, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# --- counts and names


@pytest.mark.parametrize(
    ("name", "num_classes", "count"),
    [
        ("resnet20", 10, 269_722),
        ("resnet32", 100, 464_154 + 90 * 65),
        ("resnet56", 10, 853_018),
        ("resnet32-released", 10, 300_762),
        ("resnet152", 1000, 60_192_808),
    ],
)
def test_number_of_parameters(name, num_classes, count):
    assert sum(p.numel() for p in skeleton(name, num_classes).parameters()) == count


def norm_rows(name, width):
    for part in ("weight", "bias", "running_mean", "running_var"):
        yield f"{name}.{part}", (width,)
    yield f"{name}.num_batches_tracked", ()


def imagenet_rows(depths, *, bottleneck, num_classes):
    """torchvision's names and shapes, in its order, from the rules of the architecture."""
    yield "conv1.weight", (64, 3, 7, 7)
    yield from norm_rows("bn1", 64)
    arriving = 64
    for stage, depth in enumerate(depths):
        width = 64 << stage
        leaving = 4 * width if bottleneck else width
        for number in range(depth):
            block = f"layer{stage + 1}.{number}"
            if bottleneck:
                convs = [(width, arriving, 1), (width, width, 3), (leaving, width, 1)]
            else:
                convs = [(width, arriving, 3), (leaving, width, 3)]
            for i, (out, came, kernel) in enumerate(convs, start=1):
                yield f"{block}.conv{i}.weight", (out, came, kernel, kernel)
                yield from norm_rows(f"{block}.bn{i}", out)
            if number == 0 and (stage > 0 or bottleneck):
                yield f"{block}.downsample.0.weight", (leaving, arriving, 1, 1)
                yield from norm_rows(f"{block}.downsample.1", leaving)
            arriving = leaving
    yield "fc.weight", (num_classes, arriving)
    yield "fc.bias", (num_classes,)


@pytest.mark.parametrize(
    ("name", "depths", "bottleneck"),
    [
        ("resnet18", (2, 2, 2, 2), False),
        ("resnet50", (3, 4, 6, 3), True),
        ("resnet152", (3, 8, 36, 3), True),
    ],
)
def test_imagenet_names_and_shapes_are_torchvisions(name, depths, bottleneck):
    found = [(k, tuple(v.shape)) for k, v in skeleton(name, 1000).state_dict().items()]
    assert found == list(imagenet_rows(depths, bottleneck=bottleneck, num_classes=1000))


# --- the forward pass


def reference(state, x, name):
    """Logits outside training from a state dict, in plain functions."""
    released, imagenet = name == "resnet32-released", name in IMAGENET

    def norm(x, key):
        mean, var, weight, bias = (
            state[f"{key}.{part}"].view(1, -1, 1, 1)
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / (var + 1e-5).sqrt() * weight + bias

    def conv(x, key, stride=1):
        weight = state[f"{key}.weight"]
        if released and stride == 2 and weight.shape[-1] == 3:
            return F.conv2d(F.pad(x, (0, 1, 0, 1)), weight, stride=2)
        return F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)

    if released:
        x = F.conv2d(x, state["conv1.weight"], padding=3)
    else:
        x = conv(x, "conv1", 2 if imagenet else 1)
    x = norm(x, "bn1").relu()
    if imagenet:
        x = F.max_pool2d(x, 3, 2, 1)
    for block in dict.fromkeys(k.split(".conv1")[0] for k in state if ".conv1" in k):
        stride = 2 if block.endswith(".0") and block != "layer1.0" else 1
        if f"{block}.conv3.weight" in state:
            y = norm(conv(x, f"{block}.conv1"), f"{block}.bn1").relu()
            y = norm(conv(y, f"{block}.conv2", stride), f"{block}.bn2").relu()
            y = norm(conv(y, f"{block}.conv3"), f"{block}.bn3")
        else:
            y = norm(conv(x, f"{block}.conv1", stride), f"{block}.bn1").relu()
            y = norm(conv(y, f"{block}.conv2"), f"{block}.bn2")
        if f"{block}.downsample.0.weight" in state:
            x = norm(conv(x, f"{block}.downsample.0", stride), f"{block}.downsample.1")
        elif stride == 2:
            old, x = x, torch.zeros_like(y)
            quarter = y.shape[1] // 4
            x[:, quarter : 3 * quarter] = old[:, :, ::2, ::2]
        x = (y + x).relu()
    if released:
        x = norm(x, "final_bn")
    return x.flatten(2).mean(2) @ state["fc.weight"].T + state["fc.bias"]


@pytest.mark.parametrize("name", SMALL)
def test_logits_follow_from_the_state_dict(name):
    model = shaken(build(name)).double().eval()
    x = images(2, 3, 32, 32)
    with torch.no_grad():
        expected = reference(model.state_dict(), x, name)
        assert torch.allclose(
            model(x), expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max())
        )


@pytest.mark.parametrize("name", SMALL)
def test_training_is_what_torch_layers_do(name, monkeypatch):
    """Logits, gradients and buffers after two batches, against the layers' own forward."""
    ours = shaken(build(name)).double()
    theirs = deepcopy(ours)

    def run(model):
        for seed in (3, 4):
            logits = model(images(4, 3, 32, 32, seed=seed))
        logits.pow(2).mean().backward()
        return logits

    logits = run(ours)

    def layers(bn, x, *, conv=None, residual=None, relu=True, fork=False):
        x = x if conv is None else conv(x)
        y = bn(x) if residual is None else bn(x) + residual
        y = y.relu() if relu else y
        return (y, y) if fork else y

    monkeypatch.setattr(resnet, "norm_act", layers)
    monkeypatch.setattr(resnet, "count_batches", lambda model: None)
    assert torch.allclose(logits, run(theirs), rtol=1e-9, atol=1e-9)
    buffers = dict(theirs.named_buffers())
    for key, value in ours.named_buffers():
        assert torch.allclose(value, buffers[key]), key
        if key.endswith("num_batches_tracked"):
            assert value == 2
    for (key, one), (_, two) in zip(
        ours.named_parameters(), theirs.named_parameters(), strict=True
    ):
        assert torch.allclose(one.grad, two.grad, rtol=1e-6, atol=1e-9), key


# --- memory format, precision, capture


@pytest.mark.parametrize("head", models.HEADS)
@pytest.mark.parametrize("name", ["small-conv", *CIFAR, *IMAGENET])
def test_a_step_never_asks_the_device(name, head):
    """On the meta device there are no values: a branch on one, or a read, raises."""
    with torch.device("meta"):
        model = build(name, 7, head=head).train()
        logits = model(torch.empty(4, 3, 32, 32))
        logits.sum().backward()
    assert logits.shape == (4, 7)


# --- initial weights


@pytest.mark.parametrize(
    ("name", "weight", "variance"),
    [
        # He normal by fan-in; Keras' own; He normal by fan-out
        ("resnet56", "layer3.8.conv2.weight", 2 / (9 * 64)),
        ("resnet56", "fc.weight", 2 / 64),
        ("resnet32-released", "layer3.4.conv2.weight", 2 / (9 * 64)),
        ("resnet32-released", "fc.weight", 1e-4),
        ("resnet18", "conv1.weight", 2 / (49 * 64)),
        ("resnet18", "layer4.0.downsample.0.weight", 2 / 512),
    ],
)
def test_spread_of_the_initial_weights(name, weight, variance):
    values = build(name, num_classes=100).get_parameter(weight).detach().double()
    assert float(values.pow(2).mean()) == pytest.approx(variance, rel=0.1)
