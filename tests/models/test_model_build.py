"""`models.build`: what it refuses, and that older runs of the small network still load."""

import pytest
import torch

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
        ({"head_scale": 30.0}, "the linear head has none, but 30 came; leave it out, or pass head"),
        ({"image_shape": (3, 3, 32)}, r"at least 4 x 4 pixels.*is \(3, 3, 32\)"),
        ({"image_shape": (64, 64, 3), "name": "resnet18"}, "takes images of 3 channels and at"),
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
