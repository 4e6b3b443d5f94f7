"""TrivialAugment against Pillow, operation by operation and strength by strength, exactly."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from longtail.train.trivial import OPERATIONS, plan_trivial_augment, trivial_augment
from train_factory import assert_uniform

ENHANCERS = {
    "color": ImageEnhance.Color,
    "contrast": ImageEnhance.Contrast,
    "brightness": ImageEnhance.Brightness,
    "sharpness": ImageEnhance.Sharpness,
}


def pillow(image, name, strength):
    """The published operation by Pillow: `image` an Image, `strength` from -30 to 30."""
    m, signed = abs(strength), strength / 30
    moves = {
        "shear-x": (1, 0.99 * signed, 0, 0, 1, 0),
        "shear-y": (1, 0, 0, 0.99 * signed, 1, 0),
        "translate-x": (1, 0, 32 * signed, 0, 1, 0),
        "translate-y": (1, 0, 0, 0, 1, 32 * signed),
    }
    if name in moves:
        return image.transform(image.size, Image.Transform.AFFINE, moves[name])
    if name in ENHANCERS:
        return ENHANCERS[name](image).enhance(0.01 + 1.99 * m / 30)
    return {
        "identity": lambda: image,
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "equalize": lambda: ImageOps.equalize(image),
        "solarize": lambda: ImageOps.solarize(image, 256 - int(256 * m / 30)),
        "posterize": lambda: ImageOps.posterize(image, 8 - int(6 * m / 30)),
        "rotate": lambda: image.rotate(135 * signed),
    }[name]()


def pictures(channels, height, width, count=61):
    """Noise, dull pictures, ramps, and pictures of one or two colours."""
    random = np.random.default_rng(0)
    found = random.integers(0, 256, (count, channels, height, width))
    found[10:30] = found[10:30] // random.integers(2, 40, (20, channels, 1, 1)) + 60
    found[30:40] = np.linspace(0, 255, width).astype(int) // random.integers(1, 9, (10, 1, 1, 1))
    found[40:44] = random.integers(0, 256, (4, channels, 1, 1))
    found[44:48] = np.where(found[44:48] > 250, 9, 200)
    return found.astype(np.uint8)


def as_image(pixels):
    return Image.fromarray(np.moveaxis(pixels, 0, -1) if len(pixels) == 3 else pixels[0])


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 20, 30)])
def test_an_operation_is_pillows_to_the_grey_level(name, shape):
    pixels = pictures(*shape)
    strength = torch.arange(-30, 31).roll(7)
    operation = torch.full_like(strength, OPERATIONS.index(name))
    found = trivial_augment(torch.from_numpy(pixels), operation, strength)
    assert found.dtype == torch.uint8
    assert found.is_contiguous(memory_format=torch.channels_last)
    changed = 0
    for image, level, got in zip(pixels, strength.tolist(), found.numpy(), strict=True):
        expected = np.asarray(pillow(as_image(image), name, level))
        expected = np.moveaxis(expected, -1, 0) if shape[0] == 3 else expected[None]
        np.testing.assert_array_equal(got, expected, err_msg=f"{name} at {level}")
        changed += not np.array_equal(expected, image)
    # A strength of 0 or a picture of one colour may change nothing; the rest must.
    expected_changes = 0 if name == "identity" or (name == "color" and shape[0] == 1) else 25
    assert changed >= expected_changes


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_mixed_batch_is_its_images_one_by_one(layout):
    pixels = torch.from_numpy(pictures(3, 16, 16)).contiguous(memory_format=layout)
    before = pixels.clone()
    operation, strength = plan_trivial_augment(61, generator=torch.Generator().manual_seed(3))
    found = trivial_augment(pixels, operation, strength)
    assert torch.equal(pixels, before)
    for n in range(61):
        alone = trivial_augment(pixels[n : n + 1], operation[n : n + 1], strength[n : n + 1])
        assert torch.equal(found[n], alone[0]), OPERATIONS[int(operation[n])]


def test_the_plan_is_uniform_and_its_own():
    state = torch.random.get_rng_state()
    operation, strength = plan_trivial_augment(84_000, generator=torch.Generator().manual_seed(1))
    assert torch.equal(state, torch.random.get_rng_state())
    assert_uniform(operation, 14)
    assert_uniform(strength.abs(), 31)
    signed = strength[strength != 0].sign().double()
    assert abs(float(signed.mean())) < 5 / 84_000**0.5
    assert abs(np.corrcoef(operation, strength)[0, 1]) < 5 / 84_000**0.5
