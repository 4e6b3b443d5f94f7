"""The loss kernels on a GPU: what only a GPU can show."""

import subprocess
import sys
from importlib.util import find_spec

import numpy
import pytest
import torch
from torch.nn import functional as F

from longtail import Margin
from longtail.kernels.cross_entropy import cross_entropy, loss_of_rows
from longtail.losses import PairwiseMarginLoss, linear, linear_cross_entropy

ON_GPU = find_spec("triton") is not None and torch.cuda.is_available()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device and Triton"),
]
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def captured(step):
    """A graph of `step`, and the tensors that it writes; the step has run once before."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        written = step()
    return graph, written


def make_wide(n, classes, dtype=BF16, *, seed=0):
    """Logits, labels and a bias."""
    rng = torch.Generator("cuda").manual_seed(seed)
    logits = (3 * torch.randn(n, classes, device="cuda", generator=rng)).to(dtype)
    target = torch.randint(classes, (n,), device="cuda", generator=rng)
    if n > 1:
        target[n // 2] = -100
    return logits, target, torch.randn(classes, device="cuda", generator=rng)


def exact(logits, target, b, *, rows=64):
    """The mean loss of logits + b and its gradient in float64, some rows at a time."""
    losses, grads, count = 0.0, [], (target != -100).sum()
    for f, y in zip(logits.split(rows), target.split(rows), strict=True):
        f = f.double().requires_grad_()
        loss = F.cross_entropy(f + b.double(), y, reduction="sum") / count
        grads.append(torch.autograd.grad(loss, f)[0].to(F32))
        losses += loss.detach()
    return losses, torch.cat(grads)


def compare(loss, grad, target, exact_loss, exact_grad, factor=1.0):
    assert abs(loss.double() - exact_loss) <= 1e-5 * exact_loss
    # One rounding to the gradient's type may cost its unit roundoff.
    limit = {BF16: 2**-8 + 1e-4, F16: 2**-11 + 1e-4, F32: 1e-5}[grad.dtype]
    error = (grad.float() / factor - exact_grad).norm(dim=1)
    cancelled = 2**-19 / len(target)  # p − 1 where p is almost 1, of float32 scores of up to 32
    assert (error <= limit * exact_grad.norm(dim=1) + cancelled).all()


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(
    ("n", "classes", "dtype"),
    [
        (64, 100_000, BF16),
        (700, 100_000, BF16),
        (33, 131_073, BF16),
        (70, 20_002, BF16),
        (40, 100_000, F32),
        (200, 50_001, F32),
        (300, 8142, BF16),
        (301, 8141, F32),
        (5000, 17, BF16),
        (3, 2_500_000, BF16),
        (1, 30_000, BF16),
    ],
)
def test_against_float64_on_wide_rows(n, classes, dtype, inplace):
    logits, target, b = make_wide(n, classes, dtype)
    wanted = exact(logits, target, b)
    if inplace:
        losses = loss_of_rows(logits, target, b, divisor=(target != -100).sum(), grad=logits)
        compare(losses.sum(), logits, target, *wanted)
        return
    f = logits.requires_grad_()
    loss = cross_entropy(f, target, bias=b, divisor=(target != -100).sum())
    compare(loss, torch.autograd.grad(loss, f)[0], target, *wanted)


@pytest.mark.parametrize("classes", [8142, 131_073])
def test_a_graph_replays_with_new_data(classes):
    logits, target, b = make_wide(200, classes)
    f = logits.requires_grad_()

    def step():
        loss = cross_entropy(f, target, bias=b, divisor=(target != -100).sum())
        return loss, torch.autograd.grad(loss, f)[0]

    graph, (loss, grad) = captured(step)
    for seed in (1, 2):
        fresh, y, _ = make_wide(200, classes, seed=seed)
        f.data.copy_(fresh)
        target.copy_(y)
        graph.replay()
        torch.cuda.synchronize()
        compare(loss.detach(), grad, y, *exact(fresh, y, b))


@pytest.mark.parametrize(("classes", "label"), [(8142, 8142), (100_000, -1)])
def test_a_bad_label_is_an_error(classes, label):
    code = f"""
import torch
from longtail.kernels.cross_entropy import cross_entropy
logits = torch.randn(160, {classes}, device="cuda", dtype=torch.bfloat16, requires_grad=True)
target = torch.zeros(160, dtype=torch.long, device="cuda")
target[5] = {label}
cross_entropy(logits, target).item()
print("not reached")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0
    assert "not reached" not in done.stdout
    assert "device-side assert" in done.stderr
    assert "a label is not a class" in done.stderr + done.stdout


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("dtype", [BF16, F32, F16])
def test_linear_against_float64(dtype, reduction, compiled, monkeypatch):
    monkeypatch.setattr(linear, "chunk_rows", lambda *_: 150)
    draw = numpy.random.default_rng(0)
    a, b = draw.random((2, 20_001))
    criterion = PairwiseMarginLoss(Margin(numpy.ones(20_001), a, b), reduction=reduction).cuda()
    leaves = [
        torch.tensor(0.2 * draw.standard_normal(shape), device="cuda").to(dtype).requires_grad_()
        for shape in ((400, 64), (20_001, 64), (20_001,))
    ]
    target = torch.tensor(draw.integers(20_001, size=400), device="cuda")
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    wanted = criterion(F.linear(*wide), target)
    call = torch.compile(linear_cross_entropy, fullgraph=True) if compiled else linear_cross_entropy
    loss = call(leaves[0], leaves[1], target, criterion, bias=leaves[2])
    limit = {BF16: 2e-2, F16: 5e-3, F32: 1e-3}[dtype]
    assert (loss.double() - wanted).norm() <= limit * wanted.norm()
    factor = 2.0**10 if dtype == F16 else 1.0
    found = torch.autograd.grad(factor * loss.sum(), leaves)
    for one, other in zip(found, torch.autograd.grad(factor * wanted.sum(), wide), strict=True):
        assert (one.double() - other).norm() <= limit * other.norm()
