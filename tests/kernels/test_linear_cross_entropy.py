"""`linear_cross_entropy` on a CPU is the loss of the layer; on a GPU, `test_gpu` has it."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from longtail import InputError, Margin, losses
from longtail.losses import linear as module
from longtail.losses import linear_cross_entropy
from loss_contract import CONTRACTS, NUM_CLASSES
from test_margins import PRIOR

contracts = pytest.mark.parametrize("contract", CONTRACTS, ids=str)
reductions = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
WIDTH, F64, F32 = 3, torch.float64, torch.float32
TARGET = torch.tensor([0, 1, -100, 3, 2, 0])
WEIGHT = torch.tensor([1.0, 2.0, 0.5, 1.0])


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(module, "chunk_rows", lambda *_: 2)


def layer(dtype=F32, rows=6, scale=1.0):
    """Features, weight and bias that need gradients."""
    draw = torch.Generator().manual_seed(0)
    shapes = ((rows, WIDTH), (NUM_CLASSES, WIDTH), (NUM_CLASSES,))
    made = [torch.randn(n, generator=draw) / scale**0.5 for n in shapes]
    return [leaf.to(dtype).requires_grad_() for leaf in made]


def assert_as_the_layer(criterion, leaves, target, *, tolerance, call=linear_cross_entropy):
    """Value and gradients, against those of the layer and the loss in float64."""
    hidden, weight, bias = leaves
    loss = call(hidden, weight, target, criterion, bias=bias)
    assert loss.dtype == hidden.dtype
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    wanted = criterion(F.linear(*wide), target)
    close = {"rtol": tolerance, "atol": tolerance, "check_dtype": False, "equal_nan": True}
    torch.testing.assert_close(loss, wanted, **close)
    found = torch.autograd.grad(3 * loss.sum(), leaves)
    for one, other in zip(found, torch.autograd.grad(3 * wanted.sum(), wide), strict=True):
        torch.testing.assert_close(one, other, **close)


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "class weights"])
@reductions
@contracts
def test_every_loss_is_that_of_the_layer(contract, reduction, weight, small_chunks):
    criterion = contract.module(weight=weight, reduction=reduction)
    assert_as_the_layer(criterion, layer(scale=contract.scale), TARGET, tolerance=2e-4)


@pytest.mark.parametrize(
    ("dtype", "compiled"),
    [(F64, False), (F32, False), (F32, True), (torch.bfloat16, False), (torch.float16, False)],
)
@reductions
def test_every_type_and_compiled(dtype, reduction, compiled, small_chunks):
    criterion, call = losses.AdaptiveLoss(PRIOR, reduction=reduction), linear_cross_entropy
    if compiled:
        call = torch.compile(call, fullgraph=True, backend="aot_eager")
    tolerance = {F64: 1e-6, F32: 1e-5}.get(dtype, 3e-2)  # (margins are in float32)
    assert_as_the_layer(criterion, layer(dtype), TARGET, tolerance=tolerance, call=call)


@pytest.mark.parametrize("rows", [6, 0], ids=["all ignored", "empty"])
@reductions
def test_a_batch_that_counts_for_nothing_has_torchs_loss_and_no_gradient(reduction, rows):
    hidden, weight, bias = leaves = layer(rows=rows)
    criterion, target = losses.SoftmaxLoss(PRIOR, reduction=reduction), torch.full((rows,), -100)
    loss = linear_cross_entropy(hidden, weight, target, criterion, bias=bias)
    torch.testing.assert_close(loss, criterion(F.linear(*leaves), target), equal_nan=True)
    for grad, tensor in zip(torch.autograd.grad(loss.sum(), leaves), leaves, strict=True):
        torch.testing.assert_close(grad, torch.zeros_like(tensor), rtol=0, atol=0)


def test_functional_gradients_and_autocast():
    hidden, weight, _ = layer(F64)
    criterion = losses.LogitAdjustedLoss(PRIOR)
    found = torch.func.grad(lambda w: linear_cross_entropy(hidden, w, TARGET, criterion))(weight)
    wanted = torch.func.grad(lambda w: criterion(hidden @ w.t(), TARGET))(weight)
    torch.testing.assert_close(found, wanted)
    hidden, weight, _ = layer(F32)
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(hidden, weight, TARGET, criterion)
    assert loss.dtype == F32
    assert all(g.dtype == F32 for g in torch.autograd.grad(loss, (hidden, weight)))


@pytest.mark.parametrize(
    "criterion",
    [
        losses.PairwiseMarginLoss(Margin.from_matrix(np.arange(16.0).reshape(4, 4))),
        losses.SoftmaxLoss(PRIOR, label_smoothing=0.1),
    ],
    ids=["dense", "smoothed"],
)
def test_losses_that_need_all_logits_at_once_are_refused(criterion):
    hidden, weight, _ = layer()
    with pytest.raises(InputError, match="need all logits at once"):
        linear_cross_entropy(hidden, weight, TARGET, criterion)


@pytest.mark.slow
def test_a_few_rows_of_logits_at_a_time():
    """64 rows of 500,000 classes: 128 MB of logits, which torch holds three times."""
    code = """
import resource, torch
from longtail import ClassPrior
from longtail.losses import LogitAdjustedLoss, linear_cross_entropy
def step(rows, classes):
    hidden = torch.randn(rows, 16, requires_grad=True)
    weight = torch.zeros(classes, 16, requires_grad=True)
    loss = LogitAdjustedLoss(ClassPrior.uniform(classes))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    linear_cross_entropy(hidden, weight, torch.arange(rows), loss).backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
step(64, 1000)
print(step(64, 500_000))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 128_000  # KB; the gradient of the weights takes 32 MB of them
