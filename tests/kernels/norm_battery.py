"""Tests of `norm_act`'s kernels, on the GPU or in Triton's interpreter.

Not collected by its name: `test_kernels` runs it in a process of its own. The oracle is float64,
written from the equations, gradients too.
"""

import pytest
import torch

from longtail.kernels import norm_act as module
from longtail.kernels.norm_act import norm_act, norm_act_fork

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Half a step of each type; Triton's interpreter cuts to bfloat16 instead of rounding.
EPS = {torch.float32: 2**-24, torch.bfloat16: 2**-9 if DEVICE == "cuda" else 2**-8}


def rows(tensor):
    """(N, C, H, W) or (N, C) as rows of channels, in float64 on the CPU."""
    tensor = tensor.detach().double().cpu()
    return tensor.movedim(1, -1).reshape(-1, tensor.shape[1])


def oracle(x, w, b, r, up, *, relu, eps):
    """y, dx, dw, db, dr of rows, from the equations, and the batch's mean and unbiased variance."""
    n = x.shape[0]
    mean = x.sum(0) / n
    var = ((x - mean) ** 2).sum(0) / n
    hat = (x - mean) / torch.sqrt(var + eps)
    y = hat * w + b + (0 if r is None else r)
    g = up
    if relu:
        g = torch.where(y > 0, up, 0.0)
        y = y.clamp_min(0)
    dw, db = (g * hat).sum(0), g.sum(0)
    # dx_i = Σ_j g_j·w·∂x̂_j/∂x_i, with ∂x̂_j/∂x_i = (δ_ij − 1/n − x̂_i·x̂_j/n)/√(σ² + ε)
    dx = w / torch.sqrt(var + eps) * (g - db / n - hat * dw / n)
    return (y, dx, dw, db, g), (mean, var * n / (n - 1))


def make(shape, dtype, *, residual, seed=0, mean=0.5, spread=1.0):
    rng = torch.Generator().manual_seed(seed)
    channels = shape[1]

    def draw(scale=1.0, shift=0.0):
        values = (scale * torch.randn(shape, generator=rng) + shift).to(dtype).to(DEVICE)
        if len(shape) == 4:
            values = values.contiguous(memory_format=torch.channels_last)
        return values

    w = (torch.randn(channels, generator=rng) + 0.5).to(DEVICE)
    b = torch.randn(channels, generator=rng).to(DEVICE)
    x = draw(spread, mean)
    return x, w, b, draw() if residual else None, draw(), draw()


def close(found, exact, *, dtype, size, slack=1.0, more=0.0):
    """Each number within a few roundings of its type, and of float32 at the size of the whole."""
    assert found.isfinite().all()
    found, exact = found.detach().double().cpu(), exact.double()
    assert found.shape == exact.shape
    allowed = 2 * EPS[dtype] * exact.abs() + slack * 2**-22 * size + more
    worst = ((found - exact).abs() - allowed).max()
    assert worst <= 0, f"off by {worst:.2e} more than allowed"


def check(x, w, b, r, up, other=None, *, relu=True, momentum=0.1, eps=1e-5, slack=1.0):
    """The kernels against the oracle; `other` is a second reader's gradient."""
    leaves = [t.detach().clone().requires_grad_() for t in (x, w, b, r) if t is not None]
    given = leaves[3] if r is not None else None
    assert module.supports(*leaves[:3], given)
    old = torch.rand(2, x.shape[1], device=DEVICE)
    tracked = old.clone()
    call = norm_act if other is None else norm_act_fork
    y = call(
        *leaves[:3], tracked[0], tracked[1], residual=given, relu=relu, training=True,
        momentum=momentum, eps=eps,
    )  # fmt: skip
    ys, ups = ((y,), (up,)) if other is None else (y, (up, other))
    grads = torch.autograd.grad(ys, leaves, ups)

    total = sum(rows(u) for u in ups)
    # What two readers send is added, and rounded to the tensors' type, before anything else.
    more = 0.0 if other is None else 2 * EPS[x.dtype] * float(total.abs().max())
    exact_r = None if r is None else rows(r)
    exact, moments = oracle(
        rows(x), w.double().cpu(), b.double().cpu(), exact_r, total, relu=relu, eps=eps
    )
    # Where y is 0 to within rounding, either side of the ReLU is right.
    edge = unsure(x, w, b, r, eps) if relu else torch.zeros_like(rows(x), dtype=torch.bool)
    assert edge.double().mean() < 0.01
    size = max(float(exact[0].abs().max()), 1.0)
    for one in ys:
        assert one.dtype == x.dtype
        close(rows(one), exact[0], dtype=x.dtype, size=size, slack=slack)
    n = rows(x).shape[0]
    reach = float(total.abs().max()) * size * (1 + edge.sum(0).max())
    found_dx = rows(grads[0]).where(~edge, exact[1])
    steep = gain(x, w, eps)
    close(found_dx, exact[1], dtype=x.dtype, size=reach * steep, slack=slack, more=2 * more * steep)
    for found, true in zip(grads[1:3], exact[2:4], strict=True):
        assert found.dtype == torch.float32
        # (a number on the edge of the ReLU moves the sums by itself)
        allowed = slack * n**0.5 * reach * 2**-20 + edge.sum(0) * reach + 0.5 * n * more * size
        assert ((found.double().cpu() - true).abs() <= allowed).all()
    if r is not None:
        close(rows(grads[3]).where(~edge, exact[4]), exact[4], dtype=x.dtype, size=reach, more=more)
    for found, before, true in zip(tracked, old, moments, strict=True):
        expected = (1 - momentum) * before.double().cpu() + momentum * true
        close(found, expected, dtype=torch.float32, size=expected.abs().max(), slack=slack)


def gain(x, w, eps):
    """The largest w/√(σ² + ε)."""
    return float((w.double().cpu().abs() / torch.sqrt(rows(x).var(0, correction=0) + eps)).max())


def unsure(x, w, b, r, eps):
    exact_r = None if r is None else rows(r)
    args = (rows(x), w.double().cpu(), b.double().cpu(), exact_r, rows(x))
    before = oracle(*args, relu=False, eps=eps)[0][0]
    return before.abs() < 2**-20 * max(float(before.abs().max()), 1.0)


SHAPES = [(4, 1, 5, 3), (5, 20, 3, 3)]
LONG = [(3, 3, 7, 5), (8, 16, 8, 8), (2, 64, 9, 7), (6, 130, 2, 3)]
LONG += [(3, 130, 2, 3)]  # a deep layer of a small last batch: one part, several blocks
SHAPES += [pytest.param(shape, marks=pytest.mark.long) for shape in LONG]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_against_float64(shape, residual, relu, dtype):
    x, w, b, r, up, other = make(shape, dtype, residual=residual, seed=sum(shape))
    check(x, w, b, r, up, relu=relu)
    check(x, w, b, r, up, other, relu=relu)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("shape", [SHAPES[1], (128, 40)])
def test_by_running_statistics_in_one_pass(shape, residual, relu, dtype, monkeypatch):
    """w·(x − μ)/√(σ² + ε) + b + r with the μ and σ² that were tracked, which stay as they are."""
    x, w, b, r, *_ = make(shape, dtype, residual=residual, seed=sum(shape))
    tracked = torch.rand(2, shape[1], device=DEVICE) + 0.25
    before = tracked.clone()
    monkeypatch.setattr(module, "norm_act_torch", None)  # the kernel or nothing
    for call in (norm_act, lambda *a, **k: norm_act_fork(*a, **k)[1]):
        y = call(x, w, b, *tracked, residual=r, relu=relu, training=False, eps=1e-3)
        assert y.dtype == dtype
        assert torch.equal(tracked, before)
        mean, var = before.double().cpu()
        exact = (rows(x) - mean) / torch.sqrt(var + 1e-3) * w.double().cpu() + b.double().cpu()
        exact = exact + (0 if r is None else rows(r))
        exact = exact.clamp_min(0) if relu else exact
        close(rows(y), exact, dtype=dtype, size=max(float(exact.abs().max()), 1.0), slack=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_mean_does_not_cancel(dtype):
    """σ = 1 on a mean of 1000: E[x²] − μ² in float32 would be off by some percent."""
    mean, spread = (1000.0, 1.0) if dtype == torch.float32 else (40.0, 1.0)
    x, w, b, r, up, _ = make((16, 16, 8, 8), dtype, residual=False, mean=mean, spread=spread)
    check(x, w, b, r, up, relu=False, slack=4 * mean)  # the mean itself has 24 bits


@pytest.mark.long
def test_more_rows_than_one_round_of_programs(monkeypatch):
    monkeypatch.setattr(module, "TILE", 64)
    monkeypatch.setattr(module, "PROGRAMS", {False: 5, True: 3})
    for shape in [(5, 16, 7, 11), (3, 20, 5, 5), (3, 70, 3, 5)]:
        x, w, b, r, up, other = make(shape, torch.float32, residual=True)
        assert module.cut(x).per_program > module.cut(x).rows
        check(x, w, b, r, up, other, slack=4)


def test_nan_is_not_swallowed():
    x, w, b, *_ = make((4, 3, 2, 2), torch.float32, residual=False)
    x[0, 1, 0, 0] = torch.nan
    y = norm_act(x, w, b, None, None, training=True)
    assert y[:, 1].isnan().all()
    assert y[:, [0, 2]].isfinite().all()
