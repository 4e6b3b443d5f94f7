"""The head in slices on a GPU: against the CPU, without waiting, its memory, and under NCCL."""

import numpy as np
import pytest
import torch
from test_sharded_head import CASES, FEATURES, TARGET, UPSTREAM, criterion_of, linear, unsharded
from torch import distributed, multiprocessing
from torch.distributed.device_mesh import init_device_mesh

from longtail import ClassPrior, losses
from longtail.train.sharded_head import ShardedHead, full_state_dict

pytestmark = pytest.mark.gpu


@pytest.fixture
def cuda():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch.device("cuda")


def gradients(head, name, device):
    features = FEATURES.to(device).requires_grad_()
    loss = head.loss(features, TARGET.to(device), criterion_of(name).to(device))
    loss.backward(UPSTREAM.to(device) if loss.ndim else None)
    return [loss.detach(), features.grad, head.weight.grad, head.bias.grad]


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


def _under_nccl(rank, folder):
    torch.cuda.set_device(0)
    store = f"file://{folder}/store"
    distributed.init_process_group("nccl", init_method=store, rank=0, world_size=1)
    mesh = init_device_mesh("cuda", (1,))
    found = {}
    for batch in ("replicated", "split"):
        head = ShardedHead.from_linear(linear().cuda(), mesh=mesh, batch=batch)
        assert head.predict(FEATURES.cuda()).is_cuda
        loss, features, weight, _ = gradients(head, "all", torch.device("cuda"))
        found[f"{batch} loss"], found[f"{batch} features"] = loss.cpu(), features.cpu()
        found[f"{batch} weight"] = weight.to_local().cpu()
    found["state"] = full_state_dict(head)["weight"]
    np.savez(f"{folder}/found.npz", **{name: value.numpy() for name, value in found.items()})
    distributed.destroy_process_group()


def test_a_mesh_of_one_gpu(tmp_path, cuda):
    multiprocessing.spawn(_under_nccl, (str(tmp_path),), nprocs=1)
    found = dict(np.load(tmp_path / "found.npz"))
    loss, features, weight, _ = unsharded("all")
    for batch in ("replicated", "split"):
        np.testing.assert_allclose(found[f"{batch} loss"], loss, rtol=1e-5)
        np.testing.assert_allclose(found[f"{batch} features"], features, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found[f"{batch} weight"], weight, rtol=1e-4, atol=1e-5)
    assert np.array_equal(found["state"], linear().weight.detach())
