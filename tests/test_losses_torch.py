"""The losses inside torch: derivatives, transforms, the compiler, modules, devices."""

import numpy as np
import pytest
import torch
from torch.func import grad, vmap

from longtail import Margin, losses
from loss_contract import CONTRACTS, NUM_CLASSES
from test_margins import PRIOR

contracts = pytest.mark.parametrize("contract", CONTRACTS, ids=str)
TARGET = torch.tensor([0, 1, 3])
DENSE = Margin.from_matrix(np.random.default_rng(0).normal(size=(NUM_CLASSES, NUM_CLASSES)))
gpu = pytest.mark.gpu


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def soft(*shape, dtype=torch.float64):
    return randn(*shape, seed=1, dtype=dtype).softmax(1)


# --- derivatives and transforms -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["index", "soft", "smoothed"])
@contracts
def test_derivatives_of_first_and_second_order(contract, kind):
    target = soft(3, NUM_CLASSES) if kind == "soft" else TARGET
    epsilon = 0.1 if kind == "smoothed" else 0.0
    logits = (randn(3, NUM_CLASSES) / contract.scale**0.5).requires_grad_()

    def loss(f):
        return contract.function(f, target, label_smoothing=epsilon, reduction="none")

    assert torch.autograd.gradcheck(loss, logits, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(loss, logits, check_fwd_over_rev=True)


@pytest.mark.parametrize("kind", ["index", "soft"])
def test_derivatives_with_a_dense_margin_and_with_dropped_classes(kind):
    target = soft(3, NUM_CLASSES) if kind == "soft" else TARGET
    logits = randn(3, NUM_CLASSES).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda f: losses.pairwise_margin_loss(f, target, DENSE), logits, check_forward_ad=True
    )

    def threshold(f):
        generator = torch.Generator().manual_seed(0)
        return losses.equalized_threshold_loss(
            f, target, PRIOR, threshold=0.5, gamma=0.5, generator=generator, reduction="none"
        )

    assert torch.autograd.gradcheck(threshold, logits, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(threshold, logits)


@pytest.mark.parametrize("kind", ["index", "soft", "smoothed"])
@pytest.mark.parametrize("contract", [*CONTRACTS, "dense"], ids=str)
def test_vmap_and_grad(contract, kind):
    epsilon = 0.1 if kind == "smoothed" else 0.0
    if contract == "dense":
        module = losses.PairwiseMarginLoss(DENSE, label_smoothing=epsilon).double()
    else:
        module = contract.module(label_smoothing=epsilon)
    logits = randn(5, 3, NUM_CLASSES)
    targets = torch.stack([TARGET.roll(i) for i in range(5)])
    if kind == "soft":
        targets = randn(5, 3, NUM_CLASSES, seed=2).softmax(-1)
    expected = torch.stack([module(f, y) for f, y in zip(logits, targets, strict=True)])
    torch.testing.assert_close(vmap(module)(logits, targets), expected)
    slope = torch.stack([grad(module)(f, y) for f, y in zip(logits, targets, strict=True)])
    torch.testing.assert_close(vmap(grad(module))(logits, targets), slope)


# --- the compiler ---------------------------------------------------------------------------------


def compiled(loss, backend="aot_eager"):
    torch.compiler.reset()
    return torch.compile(loss, fullgraph=True, backend=backend)


def assert_same_loss(one, two, logits, *args):
    results = []
    for loss in (one, two):
        f = logits.clone().requires_grad_()
        value = loss(f, *args)
        value.sum().backward()
        results.append((value.detach(), f.grad))
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_compiled_for_any_size_from_the_start():
    """A Python float that becomes symbolic crashes in inductor on a CPU."""
    loss = losses.LDAMLoss(PRIOR, label_smoothing=0.1)
    torch.compiler.reset()
    fast = torch.compile(loss, fullgraph=True, dynamic=True)
    for n in (3, 5):
        logits = randn(n, NUM_CLASSES, dtype=torch.float32) / loss.scale
        assert_same_loss(fast, loss, logits, torch.arange(n) % NUM_CLASSES)


def assert_same_for_all_sizes(loss, *, mixed=False):
    """Batches of several sizes, of which the second makes the compiler go over to any size."""
    fast, exact = (compiled(loss.mixed), loss.mixed) if mixed else (compiled(loss), loss)
    for n in (8, 3, 5):
        logits, labels = randn(n, NUM_CLASSES, dtype=torch.float32), torch.arange(n) % NUM_CLASSES
        args = (labels, labels.flip(0), 0.3) if mixed else (labels,)
        assert_same_loss(fast, exact, logits / loss.scale, *args)


@pytest.mark.slow
@contracts
def test_compiled_for_batches_of_any_size(contract):
    assert_same_for_all_sizes(contract.module())


@pytest.mark.slow
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(
    "loss",
    [
        losses.LogitAdjustedLoss(PRIOR, label_smoothing=0.1, weight=torch.arange(1.0, 5.0)),
        losses.PairwiseMarginLoss(DENSE),
        losses.EqualizedThresholdLoss(PRIOR, threshold=0.1, gamma=1.0),
    ],
    ids=["smoothed", "dense", "threshold"],
)
def test_other_forms_compiled_for_batches_of_any_size(loss, mixed):
    assert_same_for_all_sizes(loss, mixed=mixed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "kind"), [("aot_eager", "soft"), ("aot_eager", "smoothed"), ("inductor", "index")]
)
def test_compiled_with_every_kind_of_target(backend, kind):
    logits = 20 * randn(3, NUM_CLASSES, dtype=torch.float32)
    target = soft(3, NUM_CLASSES, dtype=torch.float32) if kind == "soft" else TARGET
    options = {"label_smoothing": 0.1 if kind == "smoothed" else 0.0, "weight": torch.rand(4)}
    loss = losses.LogitAdjustedLoss(PRIOR, **options)
    assert_same_loss(compiled(loss, backend), loss, logits, target)


# --- modules --------------------------------------------------------------------------------------


def test_casting_leaves_types_alone_and_moving_moves():
    loss = losses.EqualizedThresholdLoss(PRIOR, threshold=0.1, weight=torch.ones(4))
    for cast in (loss.double, loss.half):
        assert {b.dtype for b in cast().buffers()} == {torch.float32, torch.bool}
    assert {b.device.type for b in loss.to("meta").buffers()} == {"meta"}
    assert torch.nn.Module.to_empty(loss, device="cpu").rare.dtype == torch.bool


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_under_autocast_a_loss_has_float32_at_least(dtype):
    logits, wide = randn(3, NUM_CLASSES, dtype=dtype), torch.promote_types(dtype, torch.float32)
    loss, features = losses.LogitAdjustedLoss(PRIOR), randn(3, 2, dtype=dtype)
    weight = randn(NUM_CLASSES, 2, dtype=dtype)
    for enabled in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            found = [
                loss(logits, TARGET),
                loss.mixed(logits, TARGET, TARGET, 0.3),
                losses.sampled_softmax_loss(features, weight, TARGET, PRIOR, num_sampled=2),
            ]
        assert {value.dtype for value in found} == {wide if enabled else dtype}


# --- a GPU ----------------------------------------------------------------------------------------


@pytest.fixture
def cuda():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch.device("cuda")


@gpu
@pytest.mark.parametrize("kind", ["index", "soft", "smoothed"])
@contracts
def test_gpu_agrees_with_cpu_and_never_waits_for_the_device(contract, kind, cuda):
    logits = randn(3, NUM_CLASSES, dtype=torch.float32) / contract.scale
    target = soft(3, NUM_CLASSES, dtype=torch.float32) if kind == "soft" else TARGET
    loss = contract.module(label_smoothing=0.1 if kind == "smoothed" else 0.0, impl="torch")
    expected = loss(logits, target)
    loss.to(cuda)
    f, y = logits.to(cuda).requires_grad_(), target.to(cuda)
    torch.cuda.set_sync_debug_mode("error")
    try:
        value = loss(f, y)
        value.backward()
        contract.function(f, y)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(value.detach().cpu(), expected, rtol=1e-5, atol=1e-6)
