"""`linear_cross_entropy` on a CPU; on a GPU, `test_gpu` has it."""

import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

from longtail._checks import InputError
from longtail.kernels import linear_cross_entropy as module
from longtail.kernels.cross_entropy import worthwhile
from longtail.kernels.linear_cross_entropy import linear_cross_entropy

ROWS, CLASSES, WIDTH = 5, 7, 3
F64 = torch.float64
DTYPES = [F64, torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(module, "chunk_rows", lambda *_: 2)


def layer(dtype, rows=ROWS):
    """Features, weight and bias that need gradients."""
    draw = torch.Generator().manual_seed(0)
    shapes = ((rows, WIDTH), (CLASSES, WIDTH), (CLASSES,))
    return [torch.randn(n, generator=draw).to(dtype).requires_grad_() for n in shapes]


def tables():
    draw = torch.Generator().manual_seed(1)
    names = ("bias", "lower", "class_weight")
    return {name: 0.5 + torch.rand(CLASSES, generator=draw, dtype=F64) for name in names}


def plain(
    hidden, weight, target, *, linear_bias=None, bias=0.0, lower=None, class_weight=None,
    scale=1.0, reduction="mean",
):  # fmt: skip
    z = scale * (F.linear(hidden, weight, linear_bias) + bias)
    if lower is not None:
        y = target.clamp_min(0)
        z = z - scale * lower[y].unsqueeze(1) * F.one_hot(y, len(weight))
    return F.cross_entropy(z, target, class_weight, reduction=reduction)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_value_and_gradients_are_the_plain_layers(dtype, reduction, compiled, small_chunks):
    if compiled and dtype != torch.float32:
        pytest.skip("one type is enough")
    call = linear_cross_entropy
    if compiled:
        call = torch.compile(call, fullgraph=True, backend="aot_eager")
    target = torch.tensor([0, 6, -100, 3, 3])
    options = {**tables(), "scale": 1.5, "reduction": reduction}
    hidden, weight, linear_bias = leaves = layer(dtype)
    loss = call(hidden, weight, target, linear_bias=linear_bias, **options)
    assert loss.dtype == dtype
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    wanted = plain(wide[0], wide[1], target, linear_bias=wide[2], **options)
    tolerance = {F64: 1e-12, torch.float32: 1e-5}.get(dtype, 3e-2)
    close = {"rtol": tolerance, "atol": tolerance, "check_dtype": False}
    torch.testing.assert_close(loss, wanted, **close)
    found = torch.autograd.grad(3 * loss.sum(), leaves)
    for one, other in zip(found, torch.autograd.grad(3 * wanted.sum(), wide), strict=True):
        torch.testing.assert_close(one, other, **close)


@pytest.mark.parametrize("rows", [ROWS, 0], ids=["all ignored", "empty"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_batch_that_counts_for_nothing_has_torchs_loss_and_no_gradient(reduction, rows):
    target = torch.full((rows,), -100)
    hidden, weight, linear_bias = inputs = layer(torch.float32, rows)
    given = {"linear_bias": linear_bias, "reduction": reduction}
    loss = linear_cross_entropy(hidden, weight, target, **given)
    torch.testing.assert_close(loss, plain(hidden, weight, target, **given), equal_nan=True)
    for grad, tensor in zip(torch.autograd.grad(loss.sum(), inputs), inputs, strict=True):
        torch.testing.assert_close(grad, torch.zeros_like(tensor), rtol=0, atol=0)


def test_a_chunk_without_counted_rows_adds_nothing(small_chunks):
    target = torch.tensor([-100, -100, 3, 1, -100])
    hidden, weight, _ = layer(F64)
    loss = linear_cross_entropy(hidden, weight, target)
    torch.testing.assert_close(loss, plain(hidden, weight, target))


def test_functional_gradients():
    hidden, weight, _ = (leaf.detach() for leaf in layer(F64))
    target = torch.arange(ROWS)
    found = torch.func.grad(lambda w: linear_cross_entropy(hidden, w, target))(weight)
    wanted = torch.func.grad(lambda w: plain(hidden, w, target))(weight)
    torch.testing.assert_close(found, wanted)


def test_under_autocast():
    hidden, weight, _ = layer(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(hidden, weight, torch.arange(ROWS))
    assert loss.dtype == torch.float32
    assert all(g.dtype == torch.float32 for g in torch.autograd.grad(loss, (hidden, weight)))


def test_a_second_derivative_is_refused():
    hidden, weight, _ = layer(torch.float32)
    loss = linear_cross_entropy(hidden, weight, torch.arange(ROWS))
    with pytest.raises(RuntimeError, match="linear_cross_entropy has no second derivative"):
        torch.autograd.grad(loss, hidden, create_graph=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.ones(CLASSES, 4)}, "agree in their last dimension"),
        ({"weight": torch.ones(CLASSES, WIDTH).double()}, "must have one type"),
        ({"target": torch.ones(ROWS)}, "integer class labels"),
        ({"bias": torch.ones(3)}, r"`bias` must have one value per class, shape \(7,\)"),
        ({"reduction": "avg"}, "`reduction`"),
    ],
)
def test_bad_input_is_named(change, message):
    hidden, weight, _ = layer(torch.float32)
    given = {"weight": weight, "target": torch.arange(ROWS), **change}
    with pytest.raises(InputError, match=message):
        linear_cross_entropy(hidden, given.pop("weight"), given.pop("target"), **given)


@pytest.mark.slow
def test_a_few_rows_of_logits_at_a_time():
    """64 rows of 500,000 classes: 128 MB of logits, which torch holds three times."""
    code = """
import resource, torch
from longtail.kernels.linear_cross_entropy import linear_cross_entropy
def step(rows, classes):
    hidden = torch.randn(rows, 16, requires_grad=True)
    weight = torch.zeros(classes, 16, requires_grad=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bias = torch.zeros(classes)
    linear_cross_entropy(hidden, weight, torch.arange(rows), bias=bias).backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
step(64, 1000)
print(step(64, 500_000))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 128_000  # KB; the gradient of the weights takes 32 MB of them


def test_the_kernel_is_for_gpus():
    assert not worthwhile(torch.empty(4096, 8142))
