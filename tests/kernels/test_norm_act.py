"""`norm_act`: its torch form, and its kernels on a GPU; `test_interpreted` has them without."""

from importlib.util import find_spec

import pytest
import torch
from torch.nn import functional as F

from longtail._checks import InputError
from longtail.kernels.norm_act import norm_act

ON_GPU = find_spec("triton") is not None and torch.cuda.is_available()
if ON_GPU:
    from norm_battery import *  # noqa: F403

gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device and Triton"),
]


def tensors(device="cpu", dtype=torch.float32, shape=(4, 6, 5, 3)):
    rng = torch.Generator().manual_seed(1)
    x, r = (torch.randn(shape, generator=rng).to(device, dtype) for _ in range(2))
    w, b = (torch.randn(shape[1], generator=rng).to(device) for _ in range(2))
    return x, w, b, r


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("residual", [True, False])
def test_torch_form_is_torchs_own_sequence(residual, relu, training):
    x, w, b, r = tensors()
    tracked = [torch.rand(2, 6), None]
    tracked[1] = tracked[0].clone()
    found = norm_act(
        x, w, b, *tracked[0], residual=r if residual else None, relu=relu, training=training,
        momentum=0.2, eps=1e-3,
    )  # fmt: skip
    expected = F.batch_norm(x, *tracked[1], w, b, training, 0.2, 1e-3)
    expected = expected + r if residual else expected
    assert torch.equal(found, expected.relu() if relu else expected)
    assert torch.equal(*tracked)


def test_a_residual_of_another_shape_is_refused():
    x, w, b, r = tensors()
    with pytest.raises(InputError, match=r"`residual` must have the shape of x, \(4, 6, 5, 3\)"):
        norm_act(x, w, b, None, None, residual=r[:, :3], training=True)


def channels_last(shape, dtype=torch.bfloat16):
    x, w, b, r = tensors("cuda", dtype, shape)
    return (
        x.contiguous(memory_format=torch.channels_last).requires_grad_(), w.requires_grad_(),
        b.requires_grad_(), r.contiguous(memory_format=torch.channels_last).requires_grad_(),
    )  # fmt: skip


class TestOnGPU:
    pytestmark = gpu

    def test_no_further_from_float64_than_torch(self):
        for channels, side in ((16, 32), (32, 16), (64, 8)):
            x, w, b, r = channels_last((128, channels, side, side))
            up = torch.randn_like(x)

            def run(call, *leaves, up=up):
                y = call(*leaves)
                return y, *torch.autograd.grad(y, leaves, up.to(y.dtype))

            def plain(x, w, b, r):
                return (F.batch_norm(x, None, None, w, b, True) + r).relu()

            def ours(x, w, b, r):
                return norm_act(x, w, b, None, None, residual=r, training=True)

            exact = run(plain, *(t.detach().double().requires_grad_() for t in (x, w, b, r)))
            found, other = run(ours, x, w, b, r), run(plain, x, w, b, r)
            for f, o, e in zip(found, other, exact, strict=True):
                size = e.norm()
                assert (f.double() - e).norm() / size <= 1.05 * (
                    o.double() - e
                ).norm() / size + 1e-6

    def test_never_waits_for_the_device(self):
        x, w, b, r = channels_last((16, 16, 8, 8))
        norm_act(x, w, b, None, None, residual=r, training=True).sum().backward()
        torch.cuda.set_sync_debug_mode("error")
        try:
            norm_act(x, w, b, None, None, residual=r, training=True).sum().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
