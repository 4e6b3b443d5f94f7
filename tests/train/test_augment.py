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


@pytest.mark.parametrize("padding", [0, 1, 4, 12])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_crops_and_flips_match_the_loop(images, padding, dtype, layout):
    dy, dx, flip = plan(len(images), padding=padding)
    pixels = torch.from_numpy(images).to(dtype).contiguous(memory_format=layout)
    found = crop_flip(pixels, dy, dx, flip, padding=padding)
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    expected = oracle(images, dy.numpy(), dx.numpy(), flip.numpy(), padding)
    np.testing.assert_array_equal(found.float().numpy(), expected)


def test_an_epoch_at_once_is_its_batches_in_turn(images):
    whole = torch.from_numpy(images)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    drawn = plan(40)
    at_once = crop_flip(whole, *drawn, padding=4, index=order)
    for part in torch.arange(40).split(7):
        batch = crop_flip(whole, *(d[part] for d in drawn), padding=4, index=order[part])
        assert torch.equal(batch, at_once[part])


def test_black_before_normalising_is_the_border_after_it(images):
    mean, std = [0.3, 0.5, 0.7], [0.2, 0.25, 0.3]
    settings = {"mean": mean, "std": std, "pixel_range": 255}
    pixels = torch.from_numpy(images)
    drawn = plan(len(images))
    raw_first = normalize(crop_flip(pixels, *drawn, padding=4), **settings)
    border = -torch.tensor(mean) / torch.tensor(std)
    normal_first = crop_flip(normalize(pixels, **settings), *drawn, padding=4, fill=border)
    torch.testing.assert_close(raw_first, normal_first, rtol=0, atol=1e-6)
    grey = crop_flip(pixels, *drawn, padding=4, fill=128)
    expected = oracle(images, *(d.numpy() for d in drawn), 4, fill=128)
    np.testing.assert_array_equal(grey.numpy(), expected)


@pytest.mark.parametrize("padding", [0, 3])
def test_padding_may_come_after_normalising(images, padding):
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
        counts = torch.bincount(part, minlength=values).double()
        assert len(counts) == values
        expected = 90_000 / values
        # chi-square, five standard deviations
        chi = float(((counts - expected) ** 2 / expected).sum())
        assert chi < (values - 1) + 5 * (2 * (values - 1)) ** 0.5
    for one, two in ((dy, dx), (dy, flip), (dx, flip)):
        assert abs(np.corrcoef(one, two)[0, 1]) < 5 / 90_000**0.5


def test_plans_repeat_and_flips_survive_a_change_of_padding():
    one, same, other = plan(100), plan(100), plan(100, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not torch.equal(one[0], other[0])
    assert torch.equal(one[2], plan(100, padding=2)[2])
    assert not plan(100, flip=False)[2].any()
    assert not plan(100, padding=0)[0].any()


def test_normalising_is_the_equation(images):
    mean, std = [0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]
    found = normalize(torch.from_numpy(images), mean=mean, std=std, pixel_range=255)
    expected = images.astype(np.float64) / 255
    expected = (expected - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-5)
    centred = normalize(torch.from_numpy(images), mean=(0.5,), std=(1.0,), pixel_range=255)
    np.testing.assert_allclose(centred.numpy(), images / 255 - 0.5, rtol=0, atol=1e-6)


def test_it_compiles_without_a_break(images):
    pixels = torch.from_numpy(images)
    drawn = plan(len(images))
    compiled = torch.compile(crop_flip, backend="aot_eager", fullgraph=True)
    found = compiled(pixels, *drawn, padding=4)
    assert torch.equal(found, crop_flip(pixels, *drawn, padding=4))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_graph_replays_new_plans(images):
    whole = torch.from_numpy(images).cuda()
    slots = [torch.zeros(16, dtype=torch.int64, device="cuda") for _ in range(4)]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        crop_flip(whole, *slots[1:], padding=4, index=slots[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = crop_flip(whole, *slots[1:], padding=4, index=slots[0])
    for seed in (0, 1):
        index = torch.randperm(40, generator=torch.Generator().manual_seed(seed))[:16]
        drawn = (index, *plan(16, seed=seed))
        for slot, value in zip(slots, drawn, strict=True):
            slot.copy_(value)
        graph.replay()
        expected = crop_flip(whole.cpu(), *drawn[1:], padding=4, index=index)
        assert torch.equal(out.cpu(), expected)
