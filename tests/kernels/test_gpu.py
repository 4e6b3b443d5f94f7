"""The kernels on a GPU: the battery, and what only a GPU can show."""

import os
import subprocess
import sys
from importlib.util import find_spec
from unittest import mock

import pytest
import torch
from exact_losses import exact_loss
from graphs import captured

from longtail import ClassPrior, losses
from longtail.kernels import _ring
from longtail.kernels._launch import Options
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
serves_wide_rows = pytest.mark.skipif(
    not torch.cuda.is_available()
    or torch.cuda.get_device_capability()[0] < 9
    or not _ring._has_gluon(),
    reason="needs compute capability 9 and a Triton whose Gluon is known",
)


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


@pytest.mark.parametrize("classes", [8142, 30_001])
def test_same_bits_every_time(classes):
    logits, target, b, _, _ = adjusted_pair(500, classes, torch.bfloat16)
    f = logits.requires_grad_()
    results = []
    for _ in range(5):
        loss = margin_cross_entropy(f, target, offset=b)
        results.append((loss.detach().clone(), torch.autograd.grad(loss, f)[0].clone()))
    for loss, grad in results[1:]:
        assert torch.equal(loss, results[0][0])
        assert torch.equal(grad, results[0][1])


@pytest.mark.parametrize(
    ("n", "reduction", "epsilon"),
    [
        (300, "mean", 0.0),
        (300, "mean", 0.1),
        (300, "none", 0.0),
        (300, "none", 0.1),
        pytest.param(700, "mean", 0.0, marks=serves_wide_rows),  # enough for the ring
    ],
)
def test_never_waits_for_the_device(n, reduction, epsilon):
    logits, target, b, _, _ = adjusted_pair(n, 20_000, torch.bfloat16)
    f = logits.requires_grad_()
    options = {"offset": b, "reduction": reduction, "label_smoothing": epsilon}
    with mock.patch.object(_ring, "launch", wraps=_ring.launch) as launch:
        margin_cross_entropy(f, target, **options).sum().backward()  # compiles
    assert launch.called == (n == 700)
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


@pytest.mark.parametrize("classes", [8143, pytest.param(131_073, marks=serves_wide_rows)])
def test_a_graph_replays_with_new_data(classes):
    # The tiles, and as many wide rows as the ring serves.
    logits, target, b, _, _ = adjusted_pair(160, classes, torch.bfloat16)
    f = logits.clone().requires_grad_()
    y, offset = target.clone(), b.clone()

    def step():
        loss = margin_cross_entropy(f, y, offset=offset)
        return loss, torch.autograd.grad(loss, f)[0]

    with mock.patch.object(_ring, "launch", wraps=_ring.launch) as launch:
        graph, (loss, grad) = captured(step)
    assert launch.call_count == 2 * (classes == 131_073)
    other = adjusted_pair(160, classes, torch.bfloat16, seed=9)
    with torch.no_grad():
        for old, new in zip((f, y, offset), other, strict=False):
            old.copy_(new)
    graph.replay()
    expected_loss, expected = step()
    assert torch.equal(loss, expected_loss)
    assert torch.equal(grad, expected)


@pytest.mark.parametrize("classes", [8142, 131_073])
def test_compiles_with_inductor(classes):
    logits, target, b, loss, exact = adjusted_pair(64, classes, torch.bfloat16)
    f = logits.requires_grad_()

    @torch.compile(fullgraph=True)
    def compiled(f, y, b):
        return margin_cross_entropy(f, y, offset=b, positive=-b)

    (grad,) = torch.autograd.grad(compiled(f, target, b), f)
    assert errors(loss, grad, loss, exact)[1] < 3e-3


@pytest.mark.parametrize(
    ("classes", "label"),
    # Of the words, of the tiles, of the ring.
    [(8142, 8142), (8143, -1), pytest.param(100_000, 100_000, marks=serves_wide_rows)],
)
def test_a_bad_label_is_an_error(classes, label):
    code = f"""
import torch
from longtail.kernels import _ring
from longtail.kernels._launch import Options
from longtail.kernels.cross_entropy import margin_cross_entropy
logits = torch.randn(160, {classes}, device="cuda", dtype=torch.bfloat16, requires_grad=True)
ring = _ring.ring_for(logits[None], logits[None], Options(), False)
assert (ring is not None) == {classes == 100_000}
target = torch.zeros(160, dtype=torch.long, device="cuda")
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


def wide_loss(logits, target, *, ring=True, inplace=False, **given):
    """Loss and gradient from the kernel for wide rows, however few, or from the other one."""
    leaf = logits.detach().requires_grad_()
    found = mock.patch.object(_ring, "ring_for", wraps=_ring.ring_for if ring else lambda *_: None)
    few = mock.patch.object(_ring, "FEWEST_TURNS", 0)
    with found, few, mock.patch.object(_ring, "launch", wraps=_ring.launch) as launch:
        with torch.autocast("cuda"):  # keeps the loss in float32
            hidden = leaf.view_as(leaf) if inplace else leaf
            loss = margin_cross_entropy(hidden, target, inplace=inplace, **given)
        assert launch.called == ring
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


def wide_tables(classes, names, *, seed=1):
    rng = torch.Generator("cuda").manual_seed(seed)
    made = {
        name: torch.randn(classes, device="cuda", generator=rng)
        for name in ("offset", "positive", "alpha", "weight")
    }
    made["alpha"], made["weight"] = made["alpha"].exp(), made["weight"].exp()
    return {name: table for name, table in made.items() if name[0] in names}


WIDE = [
    # rows, classes, tables by their first letters
    (64, 100_000, "op"),
    (33, 131_073, "opaw"),
    (513, 20_001, "oa"),
    (300, 9_003, ""),
    (1000, 8_190, "pw"),
    (700, 30_004, "opa"),
    (2, 200_001, "o"),
    (1, 65_536, "o"),
]


@serves_wide_rows
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(("n", "classes", "names"), WIDE)
def test_wide_rows_against_float64_and_the_other_kernel(n, classes, names, reduction, inplace):
    logits, target, *_ = adjusted_pair(n, classes, torch.bfloat16)
    logits[::7] += 200  # other levels: the maximum of the row before is no good
    logits[3::11] -= 300
    if n > 5:
        target[1], target[3], target[4], target[5] = -100, 0, classes - 1, classes - 2
    given = {**wide_tables(classes, names), "reduction": reduction}
    exact, expected = exact_loss(logits, target, **given)
    other, other_grad = wide_loss(logits.clone(), target, ring=False, **given)
    loss, grad = wide_loss(logits.clone(), target, inplace=inplace, **given)
    assert (loss.double() - exact).abs() <= 4e-6 * exact.abs()
    assert (grad.double() - expected).norm() <= 3e-3 * expected.norm()
    torch.testing.assert_close(grad.double(), expected, rtol=2**-7, atol=1e-30)
    assert (loss - other).abs() <= 4e-6 * other.abs()
    assert (grad.float() - other_grad.float()).norm() <= 4e-3 * other_grad.float().norm()


@serves_wide_rows
def test_many_turns_of_wide_rows_against_float64():
    n, classes = 2000, 20_001
    logits, target, *_ = adjusted_pair(n, classes, torch.bfloat16)
    logits[::7] += 200
    target[1], target[3], target[4] = -100, 0, classes - 1
    ring = _ring.ring_for(logits[None], logits[None], Options())
    assert ring.registers == 96  # and 16 turns on 132 multiprocessors
    assert n > 10 * ring.lanes
    tables = wide_tables(classes, "op")
    exact, expected = exact_loss(logits, target, **tables)
    loss, grad = wide_loss(logits, target, **tables)
    assert (loss.double() - exact).abs() <= 4e-6 * exact.abs()
    torch.testing.assert_close(grad.double(), expected, rtol=2**-7, atol=1e-30)


@serves_wide_rows
@pytest.mark.parametrize(("classes", "stride"), [(20_001, 20_008), (9_000, 9_002), (9_000, 9_016)])
def test_wide_rows_apart_from_each_other(classes, stride):
    logits, target, b, loss, exact = adjusted_pair(200, classes, torch.bfloat16)
    buffer = torch.full((200, stride), torch.nan, device="cuda", dtype=torch.bfloat16)
    buffer[:, :classes] = logits
    found, grad = wide_loss(buffer[:, :classes], target, inplace=True, offset=b, positive=-b)
    off = errors(found, grad, loss, exact)
    assert off[0] < 2e-6
    assert off[1] < 3e-3
    assert buffer[:, classes:].isnan().all()
    assert torch.equal(buffer[:, :classes], grad)


@serves_wide_rows
@pytest.mark.parametrize("unit", [8, 16, 64])
@pytest.mark.parametrize(("n", "classes"), [(513, 20_001), (300, 100_000), (300, 99_996)])
def test_wide_rows_in_any_windows(n, classes, unit):
    logits, target, b, *_ = adjusted_pair(n, classes, torch.bfloat16)
    target[3], target[4] = 0, classes - 1
    exact, expected = exact_loss(logits, target, offset=b, positive=-b)
    with mock.patch.object(_ring, "UNITS", (unit,)):
        loss, grad = wide_loss(logits, target, inplace=True, offset=b, positive=-b)
    assert (loss.double() - exact).abs() <= 4e-6 * exact.abs()
    torch.testing.assert_close(grad.double(), expected, rtol=2**-7, atol=1e-30)


@serves_wide_rows
def test_many_wide_rows():
    # More labels than four programs have room for: three to a multiprocessor.
    n, classes = 100_000, 9_003
    x = torch.empty(n, classes, device="cuda", dtype=torch.bfloat16)
    torch.nn.init.normal_(x, std=2.0, generator=torch.Generator("cuda").manual_seed(0))
    target = torch.arange(n, device="cuda") % classes
    assert _ring.ring_for(x[None], x[None], Options(), False).registers == 168
    other, other_grad = wide_loss(x, target, ring=False)
    loss, grad = wide_loss(x, target)
    assert (loss - other).abs() < 4e-6 * other
    assert (grad - other_grad).float().norm() < 4e-3 * other_grad.float().norm()


@serves_wide_rows
def test_wide_rows_with_nan_and_rows_that_do_not_count():
    logits, target, b, *_ = adjusted_pair(100, 20_001, torch.bfloat16)
    target[[7, 99]] = -100
    exact, _ = exact_loss(logits, target, offset=b)
    logits[7], logits[99] = torch.nan, torch.inf
    loss, grad = wide_loss(logits, target, offset=b)
    assert (loss.double() - exact).abs() < 4e-6 * exact
    assert grad[[7, 99]].eq(0).all()
    assert grad.isfinite().all()
    for at in (0, 12_345, 20_000):
        broken = logits.clone()
        broken[50, at] = torch.nan
        loss, grad = wide_loss(broken, target, offset=b)
        assert loss.isnan()
        assert grad.isnan().any(1).nonzero().flatten().tolist() == [50]


@serves_wide_rows
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_wide_rows_all_ignored_or_all_masked(reduction):
    logits, target, *_ = adjusted_pair(40, 20_001, torch.bfloat16)
    nothing = torch.full_like(target, -100)
    loss, grad = wide_loss(logits, nothing, reduction=reduction)
    assert loss.isnan() if reduction == "mean" else loss == 0
    assert grad.eq(0).all()
    logits[:20].scatter_(1, target[:20, None], -200.0)
    alone = torch.full((20_001,), -torch.inf, device="cuda")
    loss, grad = wide_loss(logits, target, offset=alone, reduction=reduction)
    assert loss == 0
    assert grad.eq(0).all()


@serves_wide_rows
def test_wide_rows_with_zero_and_negative_factors():
    logits, target, *_ = adjusted_pair(100, 20_001, torch.bfloat16)
    tables = wide_tables(20_001, "oaw")
    tables["alpha"][::3] = 0
    tables["alpha"][1::3] *= -1
    exact, expected = exact_loss(logits, target.int(), **tables)
    loss, grad = wide_loss(logits, target.int(), **tables)
    assert (loss.double() - exact).abs() < 1e-4  # a sum in which terms cancel
    assert (grad.double() - expected).norm() < 3e-3 * expected.norm()


@serves_wide_rows
def test_wide_rows_on_two_streams_at_once():
    calls, results = [], []
    for seed, classes in enumerate((131_073, 200_001)):
        logits, target, b, *_ = adjusted_pair(100, classes, torch.bfloat16, seed=seed)
        calls.append(lambda x=logits, y=target, b=b: wide_loss(x, y, offset=b))
    expected = [call() for call in calls]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(4)]
    for _ in range(10):
        for k, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                results.append((k % 2, calls[k % 2]()))
    torch.cuda.synchronize()
    for k, (loss, grad) in results:
        assert torch.equal(loss, expected[k][0])
        assert torch.equal(grad, expected[k][1])


@serves_wide_rows
def test_wide_rows_from_features():
    rng = torch.Generator("cuda").manual_seed(0)
    features, weight, bias = (
        torch.randn(shape, device="cuda", generator=rng).bfloat16().requires_grad_()
        for shape in ((300, 64), (20_001, 64), (20_001,))
    )
    target = torch.randint(20_001, (300,), device="cuda", generator=rng)
    found = {}
    for served in (True, False):
        with mock.patch.object(_ring, "launch", wraps=_ring.launch) as launch:
            way = _ring.ring_for if served else lambda *_: None
            few = mock.patch.object(_ring, "FEWEST_TURNS", 0)
            with few, mock.patch.object(_ring, "ring_for", wraps=way):
                loss = from_features(
                    features, weight, target, bias=bias, chunk_bytes=100 * 20_008 * 2
                )
            grads = torch.autograd.grad(loss, (features, weight, bias))
            assert launch.call_count == (3 if served else 0)  # a chunk each
        found[served] = (loss, *grads)
    for one, other in zip(found[True], found[False], strict=True):
        assert (one - other).float().norm() <= 1e-2 * other.float().norm()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_on_another_device_than_the_current_one():
    logits, target, b, *_ = adjusted_pair(64, 8142, torch.bfloat16)
    there = [tensor.to("cuda:1") for tensor in (logits, target, b)]
    found = margin_cross_entropy(there[0], there[1], offset=there[2])
    assert torch.equal(found.cpu(), margin_cross_entropy(logits, target, offset=b).cpu())


def test_the_environment_is_not_the_interpreters():
    assert os.environ.get("TRITON_INTERPRET", "0") in ("", "0")
