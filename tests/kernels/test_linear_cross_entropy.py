"""`linear_cross_entropy` in torch operations: batches that count for nothing, float64, chunks.

Values and gradients against the oracle, for the kernel too, are in `kernel_battery`.
"""

import pytest
import torch
from torch.nn import functional as F

from longtail.kernels import linear_cross_entropy as module
from longtail.kernels.linear_cross_entropy import linear_cross_entropy

ROWS, CLASSES, WIDTH = 5, 7, 3
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def layer(dtype, rows=ROWS):
    """Features, weight and bias that need gradients."""
    draw = torch.Generator().manual_seed(0)
    shapes = ((rows, WIDTH), (CLASSES, WIDTH), (CLASSES,))
    return [torch.randn(n, generator=draw).to(dtype).requires_grad_() for n in shapes]


def tables():
    draw = torch.Generator().manual_seed(1)
    names = ("offset", "positive", "alpha", "class_weight")
    return {name: 0.5 + torch.rand(CLASSES, generator=draw, dtype=torch.float64) for name in names}


def plain(features, weight, bias, target, **options):
    return F.cross_entropy(F.linear(features, weight, bias), target, **options)


@pytest.mark.parametrize("rows", [ROWS, 0], ids=["all ignored", "empty"])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batch_that_counts_for_nothing_has_torchs_loss_and_no_gradient(
    dtype, reduction, epsilon, rows
):
    options = {"reduction": reduction, "label_smoothing": epsilon}
    target = torch.full((rows,), -100)
    features, weight, bias = inputs = layer(dtype, rows)
    loss = linear_cross_entropy(features, weight, target, bias=bias, **options)
    torch.testing.assert_close(loss, plain(*inputs, target, **options), equal_nan=True)
    for grad, tensor in zip(torch.autograd.grad(loss.sum(), inputs), inputs, strict=True):
        torch.testing.assert_close(grad, torch.zeros_like(tensor), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_chunk_without_counted_rows_adds_nothing(dtype):
    target = torch.tensor([-100, -100, 3, 1, -100])
    features, weight, bias = inputs = layer(dtype)
    chunk = 2 * CLASSES * features.element_size()
    loss = linear_cross_entropy(features, weight, target, bias=bias, chunk_bytes=chunk)
    found = torch.autograd.grad(loss, inputs)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    wanted = torch.autograd.grad(plain(*exact, target), exact)
    tolerance = 1e-12 if dtype == torch.float64 else 4 * torch.finfo(dtype).eps
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rows_at_once", [2, ROWS])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_float64_has_the_digits_of_float64(reduction, epsilon, rows_at_once):
    target = torch.tensor([0, 6, -100, 3, 3])
    options = {**tables(), "reduction": reduction, "label_smoothing": epsilon, "scale": 1.5}

    def loss(features, weight, bias):
        chunk = rows_at_once * CLASSES * 8
        return linear_cross_entropy(
            features, weight, target, bias=bias, chunk_bytes=chunk, **options
        )

    assert torch.autograd.gradcheck(loss, layer(torch.float64))
    features, weight, bias = inputs = layer(torch.float64)
    assert loss(*inputs).dtype == torch.float64
    whole = linear_cross_entropy(
        F.linear(features, weight, bias), torch.eye(CLASSES).double(), target, **options
    )
    torch.testing.assert_close(loss(*inputs), whole, rtol=1e-13, atol=1e-13)


def test_float64_equals_torchs_own():
    target = torch.tensor([0, 6, 2, 3, 3])
    features, weight, bias = inputs = layer(torch.float64)
    given = {"bias": bias, "offset": tables()["offset"], "positive": -tables()["offset"]}
    loss = linear_cross_entropy(features, weight, target, **given)
    wanted = F.cross_entropy(F.linear(*inputs) + tables()["offset"], target)
    torch.testing.assert_close(loss, wanted, rtol=1e-13, atol=0)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_second_derivative_is_refused(reduction):
    features, weight, bias = layer(torch.float32)
    loss = linear_cross_entropy(
        features, weight, torch.arange(ROWS), bias=bias, reduction=reduction
    )
    with pytest.raises(RuntimeError, match=r"linear_cross_entropy has no second.*impl='torch'"):
        torch.autograd.grad(loss.sum(), features, create_graph=True)


@pytest.mark.parametrize(
    ("width", "given", "chunks"),
    [
        (4, {}, [29, 29, 6]),  # rows of 8 MiB
        (400, {}, [50, 14]),  # an eighth of the weights
        (4, {"chunk_bytes": 10 * 4 * 70_000}, [10] * 6 + [4]),
    ],
)
def test_chunks_on_a_cpu_are_small(monkeypatch, width, given, chunks):
    seen, real = [], module._torch_chunk

    def watched(logits, *args, **options):
        seen.append(len(logits))
        return real(logits, *args, **options)

    monkeypatch.setattr(module, "_torch_chunk", watched)
    features, weight = torch.ones(64, width), torch.zeros(70_000, width)
    with torch.no_grad():
        loss = linear_cross_entropy(features, weight, torch.arange(64), **given)
    torch.testing.assert_close(loss, torch.tensor(70_000.0).log())
    assert seen == chunks


@pytest.mark.parametrize(("device", "kernel"), [("meta", False), ("cpu", True)])
def test_chunks_elsewhere_are_as_large_as_the_weights(device, kernel):
    small, large = (torch.empty(n, 1024, device=device) for n in (1000, 2**17))
    sizes = [module._default_chunk(weight, kernel=kernel) for weight in (small, large)]
    assert sizes == [256 * 2**20, 2**17 * 1024 * 4]
