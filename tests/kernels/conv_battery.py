"""Tests of `grouped_conv`'s kernels, on the GPU or in Triton's interpreter.

Not collected by its name: `test_kernels` runs it in a process of its own. The oracle is float64, a
sum over the window's nine places, gradients too.
"""

import pytest
import torch

from longtail.kernels import grouped_conv as module
from longtail.kernels.grouped_conv import grouped_conv, pad_shortcut
from longtail.kernels.norm_act import norm_act

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Half a step of bfloat16; Triton's interpreter cuts instead of rounding.
EPS = 2**-9 if DEVICE == "cuda" else 2**-8


def oracle(x, weight, up, *, stride, groups):
    """y, dx, dW of y[o, h, w] = Σ W[o, i, a, b]·x[i, s·h + a − 1, s·w + b − 1], and Σ|W·x|."""
    n, _, height, width = x.shape
    inner, outer = weight.shape[1], weight.shape[0] // groups
    x = x.double().cpu().reshape(n, groups, inner, height, width)
    weight = weight.double().cpu().reshape(groups, outer, inner, 3, 3)
    out = (-(-height // stride), -(-width // stride))
    up = up.double().cpu().reshape(n, groups, outer, *out)
    padded = torch.zeros(n, groups, inner, height + 4, width + 4, dtype=torch.float64)
    padded[..., 1 : height + 1, 1 : width + 1] = x
    y, size = torch.zeros_like(up), torch.zeros_like(up)
    dpadded, dweight = torch.zeros_like(padded), torch.zeros_like(weight)
    for a in range(3):
        for b in range(3):
            rows = slice(a, a + stride * out[0], stride), slice(b, b + stride * out[1], stride)
            seen, tap = padded[..., rows[0], rows[1]], weight[..., a, b]
            y += torch.einsum("goi,ngihw->ngohw", tap, seen)
            size += torch.einsum("goi,ngihw->ngohw", tap.abs(), seen.abs())
            dweight[..., a, b] = torch.einsum("ngohw,ngihw->goi", up, seen)
            dpadded[..., rows[0], rows[1]] += torch.einsum("goi,ngohw->ngihw", tap, up)
    dx = dpadded[..., 1 : height + 1, 1 : width + 1]
    return y.flatten(1, 2), dx.flatten(1, 2), dweight.flatten(0, 1), size.flatten(1, 2)


def make(shape, outer, *, groups, stride, seed=0):
    n, inner, height, width = shape
    rng = torch.Generator().manual_seed(seed)
    last = {"memory_format": torch.channels_last}

    def draw(*size):
        return torch.randn(size, generator=rng).to(DEVICE, torch.bfloat16).contiguous(**last)

    weight = draw(groups * outer, inner, 3, 3).float().contiguous(**last)
    out = (-(-height // stride), -(-width // stride))
    return draw(n, groups * inner, height, width), weight, draw(n, groups * outer, *out)


CASES = [
    # (batch, channels in, height, width), channels out, networks, stride
    ((3, 3, 5, 6), 16, 2, 1),  # images: filled up
    ((2, 16, 5, 7), 16, 3, 1),
    ((3, 16, 7, 5), 32, 2, 2),
    ((2, 64, 4, 4), 64, 2, 1),
]
LONG = [
    ((3, 16, 8, 8), 32, 1, 1),
    ((2, 16, 6, 8), 32, 2, 2),
    ((5, 32, 9, 7), 32, 2, 1),
    ((2, 32, 5, 5), 64, 2, 2),
    ((1, 64, 1, 1), 16, 1, 1),
    ((6, 64, 16, 16), 64, 1, 1),  # one network alone, several tiles
]
CASES += [pytest.param(*case, marks=pytest.mark.long) for case in LONG]


@pytest.mark.parametrize(("shape", "outer", "groups", "stride"), CASES)
def test_conv_against_float64(shape, outer, groups, stride):
    x, weight, up = make(shape, outer, groups=groups, stride=stride)
    exact = oracle(x, weight, up, stride=stride, groups=groups)
    x.requires_grad_(shape[1] >= 16)
    weight.requires_grad_()
    assert module.supports(x, weight, groups=groups)
    y, moments = grouped_conv(x, weight, stride=stride, groups=groups)
    leaves = [leaf for leaf in (x, weight) if leaf.requires_grad]
    grads = torch.autograd.grad(y, leaves, up)
    assert y.dtype == torch.bfloat16
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert grads[-1].dtype == torch.float32
    assert grads[-1].stride() == weight.stride()  # as fused optimisers want it
    for found, true in zip((y, *grads), (exact[0], *exact[3 - len(grads) : 3]), strict=True):
        worst = (found.double().cpu() - true).abs() - 2 * EPS * true.abs()
        assert worst.max() <= 2**-18 * true.abs().max() + 2**-18 * exact[3].max()
    check_moments(y.detach(), moments)


def check_moments(y, moments):
    """Those the kernel hands on are those `norm_act` would find."""
    channels = y.shape[1]
    if moments is None or y.numel() == channels:
        return
    tracked = torch.zeros(2, 2, channels, device=DEVICE)
    one, zero = torch.ones(channels, device=DEVICE), torch.zeros(channels, device=DEVICE)
    found, expected = (
        norm_act(y, one, zero, *track, training=True, moments=given)
        for track, given in zip(tracked, (moments, None), strict=True)
    )
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=2**-7)
    torch.testing.assert_close(tracked[0], tracked[1], rtol=1e-5, atol=1e-5)


def test_the_kernels_and_torch_share_the_work():
    """Moments come from the kernels alone, so they show which of the two ran."""
    for inner, outer, stride, by_kernel in (
        (16, 16, 1, False),
        (32, 32, 1, True),
        (16, 32, 2, True),
    ):
        x, weight, _ = make((2, inner, 4, 4), outer, groups=2, stride=stride)
        moments = grouped_conv(x, weight, stride=stride, groups=2)[1]
        assert (moments is not None) == by_kernel


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("groups", "channels", "side"), [(2, 4, 5), (1, 16, 4), (3, 6, 1)])
def test_shortcut_of_option_a(groups, channels, side, dtype):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(3, groups * channels, side, side + 1, generator=rng).to(DEVICE, dtype)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    y = pad_shortcut(x, groups=groups)
    out = (-(-side // 2), -(-(side + 1) // 2))
    expected = torch.zeros(3, groups, 2 * channels, *out, dtype=dtype, device=DEVICE)
    kept = x.detach().reshape(3, groups, channels, side, side + 1)[..., ::2, ::2]
    expected[:, :, channels // 2 : channels // 2 + channels] = kept
    assert torch.equal(y.reshape(expected.shape), expected)
    assert y.is_contiguous(memory_format=torch.channels_last)
    up = torch.randn(y.shape, generator=rng).to(DEVICE, dtype)
    (dx,) = torch.autograd.grad(y, x, up)
    true = torch.zeros_like(x).reshape(3, groups, channels, side, side + 1)
    middle = slice(channels // 2, channels // 2 + channels)
    true[..., ::2, ::2] = up.reshape(expected.shape)[:, :, middle]
    assert torch.equal(dx.reshape(true.shape), true)
