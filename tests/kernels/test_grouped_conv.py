"""`grouped_conv`: its torch form, and its kernels on a GPU; `test_interpreted` has them without."""

from importlib.util import find_spec

import pytest
import torch
from torch.nn import functional as F

from longtail._checks import InputError
from longtail.kernels.grouped_conv import grouped_conv, pad_shortcut
from longtail.kernels.norm_act import norm_act

ON_GPU = find_spec("triton") is not None and torch.cuda.is_available()
if ON_GPU:
    from conv_battery import *  # noqa: F403

gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device and Triton"),
]


@pytest.mark.parametrize("stride", [1, 2])
def test_networks_side_by_side_are_networks_apart(stride):
    rng = torch.Generator().manual_seed(0)
    xs = [torch.randn(2, 5, 6, 7, generator=rng) for _ in range(3)]
    weights = [torch.randn(4, 5, 3, 3, generator=rng) for _ in range(3)]
    y, moments = grouped_conv(torch.cat(xs, 1), torch.cat(weights), stride=stride, groups=3)
    apart = [F.conv2d(x, w, None, stride, 1) for x, w in zip(xs, weights, strict=True)]
    torch.testing.assert_close(y, torch.cat(apart, 1))
    assert moments is None


def test_shortcut_in_torch_operations():
    x = torch.arange(1.0, 33.0).view(1, 4, 2, 4)
    y = pad_shortcut(x, groups=2)
    assert y.shape == (1, 8, 1, 2)
    assert y[0, :, 0, 0].tolist() == [0, 1, 9, 0, 0, 17, 25, 0]


@pytest.mark.parametrize(
    ("shape", "weight", "options", "message"),
    [
        ((1, 6, 4, 4), (4, 2, 3, 3), {"groups": 2}, r"\(N, 2·I, H, W\)"),
        ((1, 4, 4, 4), (4, 2, 5, 5), {"groups": 2}, r"\(2·O, I, 3, 3\); got"),
        ((1, 4, 4, 4), (4, 4, 3, 3), {"stride": 3}, "`stride` must be 1 or 2; got 3"),
    ],
)
def test_bad_input_is_named(shape, weight, options, message):
    with pytest.raises(InputError, match=message):
        grouped_conv(torch.zeros(shape), torch.zeros(weight), **options)


class TestOnGPU:
    pytestmark = gpu

    @pytest.mark.parametrize(
        ("inner", "outer", "side", "stride"),
        [(3, 16, 32, 1), (16, 16, 32, 1), (16, 32, 32, 2), (32, 32, 16, 1), (32, 64, 16, 2),
         (64, 64, 8, 1)],
    )  # fmt: skip
    def test_no_further_from_float32_than_torch(self, inner, outer, side, stride):
        last = {"memory_format": torch.channels_last}
        x = torch.randn(128, 8 * inner, side, side, device="cuda").bfloat16().contiguous(**last)
        w = (torch.randn(8 * outer, inner, 3, 3, device="cuda") / inner**0.5).contiguous(**last)
        x.requires_grad_(inner >= 16)
        w.requires_grad_()
        leaves = [leaf for leaf in (x, w) if leaf.requires_grad]
        y, moments = grouped_conv(x, w, stride=stride, groups=8)
        up = torch.randn_like(y)
        found = (y, *torch.autograd.grad(y, leaves, up))
        other = F.conv2d(x, w.bfloat16(), None, stride, 1, 1, 8)
        other = (other, *torch.autograd.grad(other, leaves, up))
        exact_x = x.detach().double().requires_grad_(inner >= 16)
        exact_w = w.detach().bfloat16().double().requires_grad_()
        exact = F.conv2d(exact_x, exact_w, None, stride, 1, 1, 8)
        exact_leaves = [leaf for leaf in (exact_x, exact_w) if leaf.requires_grad]
        exact = (exact, *torch.autograd.grad(exact, exact_leaves, up.double()))
        for f, o, e in zip(found, other, exact, strict=True):
            off, reference = (f.double() - e).norm() / e.norm(), (o.double() - e).norm() / e.norm()
            assert off <= 1.05 * reference + 1e-6
        if moments is not None:
            ones, zeros = (
                torch.ones(8 * outer, device="cuda"),
                torch.zeros(8 * outer, device="cuda"),
            )
            given = norm_act(y.detach(), ones, zeros, None, None, training=True, moments=moments)
            made = norm_act(y.detach(), ones, zeros, None, None, training=True)
            torch.testing.assert_close(given, made, rtol=2**-7, atol=2**-7)
