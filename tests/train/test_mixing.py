"""Cutout, CutMix and mixup against loops over pixels; what is drawn, and how often."""

import math

import numpy as np
import pytest
import torch

from longtail.train.mixing import (
    cutout,
    draw_partners,
    mix,
    plan_cutout,
    plan_mixing,
)
from train_factory import assert_uniform


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(count=40, channels=2, height=7, width=10, seed=0):
    return torch.randn(count, channels, height, width, generator=generator(seed)) + 5.0


@pytest.mark.parametrize("size", [1, 4, 5])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_hole_is_a_square_around_its_centre(size, layout):
    pixels = pictures().contiguous(memory_format=layout)
    centre = plan_cutout(len(pixels), generator=generator())
    found = cutout(pixels, centre, size=size, fill=-1.5)
    assert found.is_contiguous(memory_format=layout)
    hidden = set()
    for image, (y, x), got in zip(pixels, centre.tolist(), found, strict=True):
        row, column = math.floor(y * 7), math.floor(x * 10)
        for i in range(7):
            for j in range(10):
                inside = 0 <= i - (row - size // 2) < size and 0 <= j - (column - size // 2) < size
                expected = torch.full((2,), -1.5) if inside else image[:, i, j]
                assert torch.equal(got[:, i, j], expected)
        hidden.add(int((got[0] == -1.5).sum()))
    assert max(hidden) == size * size
    assert size == 1 or min(hidden) < size * size  # cut off at an edge


def by_loops(image, partner, share, patch, centre):
    """One example, pixel by pixel; and how much of it is still its own."""
    _, height, width = image.shape
    tall, wide = (math.floor(math.sqrt(1 - share) * side) for side in (height, width))
    top = math.floor(centre[0] * height) - tall // 2
    left = math.floor(centre[1] * width) - wide // 2
    out, own = np.array(image), 0
    for i in range(height):
        for j in range(width):
            if not patch:
                out[:, i, j] = share * image[:, i, j] + (1 - share) * partner[:, i, j]
            elif 0 <= i - top < tall and 0 <= j - left < wide:
                out[:, i, j] = partner[:, i, j]
            else:
                own += 1
    return out, own / (height * width) if patch else share


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_patches_and_blends_match_the_loop(layout):
    images = pictures(120).double().contiguous(memory_format=layout)
    partners = -pictures(120, seed=1).double()
    plan = plan_mixing(120, cutmix=0.5, mixup=0.3, mixup_alpha=0.5, generator=generator(2))
    mixed, shares = mix(images, partners, plan)
    kinds = {"patch": 0, "blend": 0, "neither": 0}
    for n in range(120):
        share, patch = float(plan.share[n]), bool(plan.patch[n])
        expected, own = by_loops(
            images[n].numpy(), partners[n].numpy(), share, patch, plan.centre[n].tolist()
        )
        np.testing.assert_allclose(mixed[n].numpy(), expected, rtol=0, atol=1e-6)
        assert float(shares[n]) == pytest.approx(own, abs=1e-6)
        kinds["neither" if share == 1 else "patch" if patch else "blend"] += 1
        if patch or share == 1:  # of a patch every pixel is one image's or the other's
            either = (mixed[n] == images[n]) | (mixed[n] == partners[n])
            assert either.all()
    assert min(kinds.values()) > 10, kinds


def test_shares_are_drawn_as_they_should():
    plan = plan_mixing(40_000, cutmix=0.3, mixup=0.5, mixup_alpha=0.4, generator=generator())
    mixed = plan.share < 1
    assert float(plan.patch.double().mean()) == pytest.approx(0.3, abs=0.012)
    assert float((mixed & ~plan.patch).double().mean()) == pytest.approx(0.5, abs=0.013)
    patches, blends = plan.share[plan.patch].double(), plan.share[mixed & ~plan.patch].double()
    # Uniform: mean 1/2, variance 1/12. Beta(α, α): mean 1/2, variance 1 / (4 (2α + 1)).
    for values, variance in ((patches, 1 / 12), (blends, 1 / (4 * 1.8))):
        assert float(values.mean()) == pytest.approx(0.5, abs=0.015)
        assert float(values.var()) == pytest.approx(variance, rel=0.04)
    # Centres are uniform on the unit square: a row says nothing about its column, or about λ.
    assert plan.centre.shape == (40_000, 2)
    drawn = np.column_stack([plan.centre.numpy(), np.where(plan.patch, plan.share, 0.5)])
    np.testing.assert_allclose(drawn.mean(axis=0), 0.5, atol=0.01)
    np.testing.assert_allclose(plan.centre.double().var(dim=0), 1 / 12, rtol=0.03)
    np.testing.assert_allclose(np.corrcoef(drawn.T), np.eye(3), atol=0.025)


def test_partners_are_uniform_over_images_or_over_classes():
    labels = np.repeat([0, 1, 3], [900, 90, 10])[np.random.default_rng(0).permutation(1000)]
    count = 60_000
    for rule, expected in (
        ("uniform", [0.9, 0.09, 0, 0.01]),
        ("minority", [1 / 3, 1 / 3, 0, 1 / 3]),
    ):
        rows = draw_partners(labels, count, rule=rule, generator=generator()).numpy()
        shares = np.bincount(labels[rows], minlength=4) / count
        np.testing.assert_allclose(shares, expected, atol=0.01)
        # Within a class all images are alike.
        images = np.flatnonzero(labels == 1)
        of_class = rows[labels[rows] == 1]
        assert_uniform(torch.from_numpy(np.searchsorted(images, of_class)), 90)
