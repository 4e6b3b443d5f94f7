import numpy as np
import pytest
import torch

from longtail.train.augment import (
    crop_flip,
    fill_outside,
    gather_crops,
    normalize,
    plan_crop_flip,
)
from train_factory import assert_uniform


def plan(count, seed=0, **settings):
    settings = {"padding": 4, "flip": True, **settings}
    return plan_crop_flip(count, generator=torch.Generator().manual_seed(seed), **settings)


def oracle(images, dy, dx, flip, padding, fill=0):
    """Image by image: pad, slice, reverse."""
    height, width = images.shape[2:]
    out = []
    for image, top, left, mirrored in zip(images, dy, dx, flip, strict=True):
        pad = ((padding, padding), (padding, padding))
        layers = [
            np.pad(layer, pad, constant_values=value)
            for layer, value in zip(image, np.broadcast_to(fill, len(image)), strict=True)
        ]
        cut = np.stack(layers)[:, top : top + height, left : left + width]
        out.append(cut[:, :, ::-1] if mirrored else cut)
    return np.stack(out)


@pytest.fixture(scope="module")
def images():
    # No zeros, and unequal sides: a padded pixel or swapped axes can't go unseen.
    return np.random.default_rng(0).integers(1, 256, (40, 3, 7, 10)).astype(np.uint8)


@pytest.mark.parametrize("padding", [0, 4, 12])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_crops_and_flips_match_the_loop(images, padding, dtype, layout):
    dy, dx, flip = plan(len(images), padding=padding)
    pixels = torch.from_numpy(images).to(dtype).contiguous(memory_format=layout)
    found = crop_flip(pixels, dy, dx, flip, padding=padding)
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    expected = oracle(images, dy.numpy(), dx.numpy(), flip.numpy(), padding)
    np.testing.assert_array_equal(found.float().numpy(), expected)


def test_padding_may_come_after_normalising(images):
    padding = 3
    mean, std, fill = [0.3, 0.5, 0.7], [0.2, 0.25, 0.3], [-1.0, 0.0, 2.5]
    index = torch.tensor([3, 1, 1, 30])
    drawn = plan(4, padding=padding)
    crops, outside = gather_crops(torch.from_numpy(images), index, *drawn, padding=padding)
    crops = normalize(crops, mean=mean, std=std, pixel_range=255)
    found = fill_outside(crops, outside, torch.tensor(fill))
    scaled = images[index.numpy()] / 255
    scaled = (scaled - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    expected = oracle(scaled, *(d.numpy() for d in drawn), padding, fill=fill)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-5)
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_the_plan_is_uniform_and_its_own():
    state = torch.random.get_rng_state()
    dy, dx, flip = plan(90_000)
    assert torch.equal(state, torch.random.get_rng_state())
    for part, values in ((dy, 9), (dx, 9), (flip, 2)):
        assert_uniform(part, values)
    for one, two in ((dy, dx), (dy, flip), (dx, flip)):
        assert abs(np.corrcoef(one, two)[0, 1]) < 5 / 90_000**0.5
    assert not torch.equal(dy, plan(90_000, seed=1)[0])
    assert torch.equal(flip, plan(90_000, padding=2)[2])
