"""The head in slices on a GPU: against the CPU, without waiting, and its memory."""

import pytest
import torch
from test_sharded_head import CASES, FEATURES, TARGET, criterion_of, gradients, linear, unsharded

from longtail import ClassPrior, losses
from longtail.train.sharded_head import ShardedHead

pytestmark = pytest.mark.gpu


@pytest.fixture
def cuda():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch.device("cuda")


@pytest.mark.parametrize("name", CASES)
def test_a_gpu_agrees_with_the_unsharded_layer(name, cuda):
    found = gradients(ShardedHead.from_linear(linear().to(cuda)), name, cuda)
    for got, wanted in zip(found, unsharded(name), strict=True):
        size = float(wanted.abs().max())
        torch.testing.assert_close(got.cpu().double(), wanted, rtol=1e-5, atol=1e-5 * size)


@pytest.mark.parametrize("name", ["logit-adjusted", "all"])
def test_a_step_never_waits_for_the_device(name, cuda):
    head = ShardedHead.from_linear(linear().to(cuda))
    criterion = criterion_of(name).to(cuda)
    features, target = FEATURES.to(cuda).requires_grad_(), TARGET.to(cuda)
    torch.cuda.set_sync_debug_mode("error")
    try:
        head.loss(features, target, criterion).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_logits_exist_once(cuda):
    classes, rows = 200_001, 512
    criterion = losses.LogitAdjustedLoss(ClassPrior.from_counts(range(1, classes + 1))).to(cuda)
    head = ShardedHead(64, classes, device=cuda)
    features = torch.randn(rows, 64, device=cuda, requires_grad=True)
    target = torch.randint(classes, (rows,), device=cuda)
    head.loss(features, target, criterion).backward()
    head.weight.grad = head.bias.grad = None
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    head.loss(features, target, criterion).backward()
    logits, gradient = 4 * rows * classes, 4 * 64 * classes
    assert torch.cuda.max_memory_allocated() - before < 1.25 * (logits + gradient)
