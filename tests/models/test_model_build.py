"""`models.build`: what it refuses, and that older runs of the small network still load."""

import pytest
import torch
from torch import nn

from longtail import models
from longtail._checks import InputError

GOOD = {"name": "resnet32", "num_classes": 10, "image_shape": (3, 32, 32)}


def build(**changes):
    arguments = GOOD | changes
    with torch.device("meta"):
        return models.build(arguments.pop("name"), **arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "resnet34"}, "`name` must be one of 'small-conv', 'resnet20'.*got 'resnet34'"),
        ({"head": "normed"}, "`head` must be one of 'linear', 'cosine', 'unit-norm'; got 'normed'"),
        ({"num_classes": 1}, "`num_classes` must be a whole number, at least 2; got 1"),
        ({"head": "cosine", "head_scale": 0.0}, "`head_scale` must be above zero; got 0"),
        ({"head": "cosine", "head_scale": -1.0}, "`head_scale` must be above zero; got -1"),
        ({"head": "cosine", "head_scale": float("nan")}, "`head_scale` must be finite; got nan"),
        ({"head_scale": 0.0}, "`head_scale` must be above zero; got 0"),
        ({"head_scale": 30.0}, "the linear head has none, but 30 came; leave it out, or pass head"),
        ({"head": "unit-norm", "head_scale": 2.0}, "the unit-norm head has none, but 2 came"),
        (
            {"image_shape": (3, 3, 32)},
            r"at least 4 x 4 pixels.*\(3, 3, 32\); choose small-conv",
        ),
        (
            {"image_shape": (3, 1, 1), "name": "small-conv"},
            r"at least 2 x 2 pixels.*; choose head, or",
        ),
        (
            {"image_shape": (3, 31, 40), "name": "resnet50"},
            r"at least 32 x 32 pixels.*\(3, 31, 40\); choose small-conv, resnet20,",
        ),
        (
            {"image_shape": (1, 64, 64), "name": "resnet18"},
            "'resnet18' takes images with 3 channels.*repeat a grey image three times",
        ),
        (
            {"image_shape": (64, 64, 3), "name": "resnet152"},
            r"is the shape in the order \(height, width, channels\)\?",
        ),
    ],
)
def test_bad_input_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        build(**changes)


@pytest.mark.parametrize("name", models.MODELS)
def test_the_smallest_images_work(name):
    side = models.MODELS[name].smallest
    model = build(name=name, image_shape=(3, side, side), num_classes=2)
    assert model(torch.empty(2, 3, side, side, device="meta")).shape == (2, 2)


def test_cifar_networks_take_grey_images():
    model = models.build("resnet20", num_classes=10, image_shape=(1, 8, 8)).eval()
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_the_small_network_is_what_older_runs_hold():
    torch.manual_seed(3)
    model = models.build("small-conv", num_classes=10, image_shape=(1, 8, 8))
    assert {k: tuple(v.shape) for k, v in model.state_dict().items()} == {
        "features.0.weight": (16, 1, 3, 3),
        "features.0.bias": (16,),
        "features.2.weight": (32, 16, 3, 3),
        "features.2.bias": (32,),
        "features.6.weight": (64, 512),
        "features.6.bias": (64,),
        "fc.weight": (10, 64),
        "fc.bias": (10,),
    }
    torch.manual_seed(3)
    layers = nn.Conv2d(1, 16, 3), nn.Conv2d(16, 32, 3), nn.Linear(512, 64), nn.Linear(64, 10)
    drawn = [tensor for layer in layers for tensor in layer.state_dict().values()]
    for (key, value), expected in zip(model.state_dict().items(), drawn, strict=True):
        assert torch.equal(value, expected), key
