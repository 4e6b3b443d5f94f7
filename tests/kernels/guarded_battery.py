"""Kernels between forbidden pages, in Triton's interpreter: see `guarded_memory`."""

import pytest
import torch
from guarded_memory import guarded

from longtail.kernels import cross_entropy as module
from longtail.kernels.grouped_conv import grouped_conv, pad_shortcut
from longtail.kernels.norm_act import norm_act

F32, BF16 = torch.float32, torch.bfloat16


@pytest.fixture(params=["end", pytest.param("start", marks=pytest.mark.long)], autouse=True)
def guards(request):
    with guarded(end=request.param == "end") as seen:
        yield seen
    assert seen  # something was launched


def loss(n, classes, dtype, stride=None, **options):
    wide = torch.randn(n, stride or classes).to(dtype)
    logits = wide[:, :classes].requires_grad_()
    target = torch.randint(classes, (n,))
    target[-1], target[0] = classes - 1, -100 if n > 1 else 0
    tables = {name: torch.rand(classes) for name in ("bias", "weight", "mean_weight")}
    if "label_smoothing" in options:
        del tables["weight"]
    found = module.cross_entropy(logits, target, **tables, **options)
    (grad,) = torch.autograd.grad(found.sum(), logits)
    assert found.isfinite().all()
    assert grad.isfinite().all()


@pytest.mark.parametrize("options", [{}, {"reduction": "mean"}, {"label_smoothing": 0.1}])
@pytest.mark.parametrize(
    ("n", "classes", "dtype"), [(1, 1, F32), (3, 29, BF16), (3, 30, BF16), (2, 40, BF16)]
)
def test_loss(n, classes, dtype, options):
    loss(n, classes, dtype, **options)


@pytest.mark.parametrize("classes", [2003, pytest.param(2304, marks=pytest.mark.long)])
def test_rows_that_are_read_twice(classes, monkeypatch):
    monkeypatch.setattr(module, "ONCE", 512)
    loss(3, classes, BF16, reduction="mean")


@pytest.mark.parametrize(
    "shape", [(2, 3, 1, 5), (3, 16, 5, 5), pytest.param((5, 70, 3, 7), marks=pytest.mark.long)]
)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_norm_act(shape, dtype):
    x, residual = (
        torch.randn(shape).to(dtype).contiguous(memory_format=torch.channels_last) for _ in range(2)
    )
    one, zero, mean, var = (torch.full((shape[1],), v) for v in (1.0, 0.0, 0.0, 1.0))
    leaves = [t.requires_grad_() for t in (x, one, zero, residual)]
    y = norm_act(x, one, zero, mean, var, residual=residual, training=True)
    assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum(), leaves))


@pytest.mark.parametrize(
    ("inner", "outer", "side", "stride"),
    [(3, 32, 5, 1), (16, 32, 5, 2), pytest.param(64, 64, 3, 1, marks=pytest.mark.long)],
)
def test_grouped_conv(inner, outer, side, stride):
    x = torch.randn(2, 2 * inner, side, side).bfloat16()
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_(inner >= 16)
    weight = torch.randn(2 * outer, inner, 3, 3).requires_grad_()
    y, _ = grouped_conv(x, weight, stride=stride, groups=2)
    leaves = [t for t in (x, weight) if t.requires_grad]
    assert all(g.isfinite().all() for g in torch.autograd.grad(y.float().sum(), leaves))


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_shortcut(dtype):
    x = torch.randn(2, 8, 5, 3).to(dtype).contiguous(memory_format=torch.channels_last)
    y = pad_shortcut(x.requires_grad_(), groups=2)
    assert torch.autograd.grad(y.float().sum(), x)[0].isfinite().all()
