"""The kernels on a GPU: the battery, and what only a GPU can show."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from longtail import ClassPrior, losses
from longtail.kernels.cross_entropy import margin_cross_entropy
from longtail.kernels.linear_cross_entropy import linear_cross_entropy as from_features

if find_spec("triton") is not None and torch.cuda.is_available():
    from kernel_battery import *  # noqa: F403

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        find_spec("triton") is None or not torch.cuda.is_available(),
        reason="needs a CUDA device and Triton",
    ),
]


def adjusted_pair(n, classes, dtype, *, seed=0, spread=3.0):
    """Logits, labels, offset b and the exact loss of logits + b with its gradient, in float64."""
    rng = torch.Generator("cuda").manual_seed(seed)
    logits = (spread * torch.randn(n, classes, device="cuda", generator=rng)).to(dtype)
    target = torch.randint(classes, (n,), device="cuda", generator=rng)
    b = torch.randn(classes, device="cuda", generator=rng)
    exact = logits.double().requires_grad_()
    loss = torch.nn.functional.cross_entropy(exact + b.double(), target)
    loss.backward()
    return logits, target, b, loss.detach(), exact.grad


def errors(found, grad, loss, exact):
    return (
        (found.double() - loss).abs().item() / loss.item(),
        ((grad.double() - exact).norm() / exact.norm()).item(),
    )


SHAPES = [(64, 100_000), (33, 131_073), (70, 20_001), (300, 8142), (16, 400_000), (5000, 17)]


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize(("n", "classes"), SHAPES)
def test_wide_and_odd_rows(n, classes, dtype, inplace):
    logits, target, b, loss, exact = adjusted_pair(n, classes, dtype)
    f = logits.clone().requires_grad_()
    hidden = f * 1 if inplace else f
    with torch.autocast("cuda"):  # keeps the loss in float32
        found = margin_cross_entropy(hidden, target, offset=b, positive=-b, inplace=inplace)
    (grad,) = torch.autograd.grad(found, f)
    off = errors(found, grad, loss, exact)
    assert off[0] < 2e-6
    assert off[1] < {torch.bfloat16: 3e-3, torch.float16: 5e-4, torch.float32: 2e-6}[dtype]


def test_many_random_shapes():
    rng = torch.Generator().manual_seed(3)
    for seed in range(60):
        n = int(torch.randint(1, 200, (), generator=rng))
        classes = int(2 ** (1 + 14 * torch.rand((), generator=rng)))
        dtype = (torch.bfloat16, torch.float32)[seed % 2]
        logits, target, b, loss, exact = adjusted_pair(n, classes, dtype, seed=seed)
        f = logits.requires_grad_()
        with torch.autocast("cuda"):
            found = margin_cross_entropy(f, target, offset=b, positive=-b)
        found.backward()
        off = errors(found, f.grad, loss, exact)
        assert off[0] < 3e-6, (n, classes, dtype)
        assert off[1] < (2**-8 if dtype == torch.bfloat16 else 3e-6), (n, classes, dtype)


def test_ignored_rows_of_split_programs():
    logits, target, b, _, _ = adjusted_pair(64, 100_000, torch.bfloat16)
    target[::3] = -100
    f = logits.requires_grad_()
    margin_cross_entropy(f, target, offset=b, positive=-b).backward()
    assert f.grad[::3].eq(0).all()
    exact = logits.detach().double().requires_grad_()
    torch.nn.functional.cross_entropy(exact + b.double(), target).backward()
    assert (f.grad.double() - exact.grad).norm() < 2**-8 * exact.grad.norm()


def test_same_bits_every_time():
    logits, target, b, _, _ = adjusted_pair(500, 30_000, torch.bfloat16)
    f = logits.requires_grad_()
    results = []
    for _ in range(5):
        loss = margin_cross_entropy(f, target, offset=b)
        results.append((loss.detach().clone(), torch.autograd.grad(loss, f)[0].clone()))
    for loss, grad in results[1:]:
        assert torch.equal(loss, results[0][0])
        assert torch.equal(grad, results[0][1])


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_never_waits_for_the_device(reduction, epsilon):
    logits, target, b, _, _ = adjusted_pair(300, 20_000, torch.bfloat16)
    f = logits.requires_grad_()
    options = {"offset": b, "reduction": reduction, "label_smoothing": epsilon}
    margin_cross_entropy(f, target, **options).sum().backward()  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        margin_cross_entropy(f, target, **options).sum().backward()
        features = torch.randn(64, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        weight = torch.randn(500, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        from_features(
            features, weight, target[:64] % 500, label_smoothing=epsilon, reduction=reduction
        ).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_graph_replays_with_new_data():
    logits, target, b, _, _ = adjusted_pair(64, 8142, torch.bfloat16)
    f = logits.clone().requires_grad_()
    y, offset = target.clone(), b.clone()

    def step():
        loss = margin_cross_entropy(f, y, offset=offset)
        return loss, torch.autograd.grad(loss, f)[0]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss, grad = step()
    other = adjusted_pair(64, 8142, torch.bfloat16, seed=9)
    with torch.no_grad():
        for old, new in zip((f, y, offset), other, strict=False):
            old.copy_(new)
    graph.replay()
    expected_loss, expected = step()
    assert torch.equal(loss, expected_loss)
    assert torch.equal(grad, expected)


def test_compiles_with_inductor():
    logits, target, b, loss, exact = adjusted_pair(64, 8142, torch.bfloat16)
    f = logits.requires_grad_()

    @torch.compile(fullgraph=True)
    def compiled(f, y, b):
        return margin_cross_entropy(f, y, offset=b, positive=-b)

    (grad,) = torch.autograd.grad(compiled(f, target, b), f)
    assert errors(loss, grad, loss, exact)[1] < 3e-3


@pytest.mark.parametrize("label", [8142, -1])
def test_a_bad_label_is_an_error(label):
    code = f"""
import torch
from longtail.kernels.cross_entropy import margin_cross_entropy
logits = torch.randn(64, 8142, device="cuda", dtype=torch.bfloat16, requires_grad=True)
target = torch.zeros(64, dtype=torch.long, device="cuda")
target[5] = {label}
loss = margin_cross_entropy(logits, target)
loss.item()
print("not reached")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0
    assert "not reached" not in done.stdout
    assert "device-side assert" in done.stderr
    assert "a label is no class" in done.stderr + done.stdout


def test_losses_take_the_kernel_by_themselves():
    prior = ClassPrior.from_counts(range(1, 8143))
    logits, target, *_ = adjusted_pair(64, 8142, torch.bfloat16)
    loss = losses.LogitAdjustedLoss(prior).cuda()
    found = {}
    for impl in ("auto", "triton", "torch"):
        loss.impl = impl
        f = logits.clone().requires_grad_()
        value = loss(f, target)
        value.backward()
        found[impl] = f.grad
    assert torch.equal(found["auto"], found["triton"])
    torch.testing.assert_close(found["auto"], found["torch"], rtol=2e-2, atol=1e-6)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_on_another_device_than_the_current_one():
    logits, target, b, *_ = adjusted_pair(64, 8142, torch.bfloat16)
    there = [tensor.to("cuda:1") for tensor in (logits, target, b)]
    found = margin_cross_entropy(there[0], there[1], offset=there[2])
    assert torch.equal(found.cpu(), margin_cross_entropy(logits, target, offset=b).cpu())


def test_the_environment_is_not_the_interpreters():
    assert os.environ.get("TRITON_INTERPRET", "0") in ("", "0")
