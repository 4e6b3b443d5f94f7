"""The loss kernel against float64, on a GPU or in Triton's interpreter.

Not collected by its name: `test_kernels` runs it in a process of its own.
"""

import math

import pytest
import torch
from torch.nn import functional as F

from longtail.kernels import cross_entropy as module
from longtail.kernels.cross_entropy import cross_entropy, loss_of_rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Half a step of each type; Triton's interpreter cuts to bfloat16 instead of rounding.
EPS = {torch.float32: 2**-24, torch.float16: 2**-11}
EPS[torch.bfloat16] = 2**-8 if DEVICE == "cuda" else 2**-7
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
LONG = pytest.mark.long


def make(n, classes, dtype, names="b", *, spread=2.0, ignored=True, seed=0):
    """Logits, labels, and those of bias, lower and weight whose initials are named."""
    rng = torch.Generator().manual_seed(seed)
    logits = (spread * torch.randn(n, classes, generator=rng)).to(dtype)
    target = torch.randint(classes, (n,), generator=rng)
    if ignored and n > 2:
        target[1] = -100
    tables = {
        "bias": 2 * torch.randn(classes, generator=rng),
        "lower": 4 * torch.rand(classes, generator=rng),
        "weight": 0.5 + torch.rand(classes, generator=rng),
    }
    named = {name: table.to(DEVICE) for name, table in tables.items() if name[0] in names}
    if "d" in names:
        named["divisor"] = (target != -100).sum().to(DEVICE)
    return logits.to(DEVICE), target.to(DEVICE), named


def oracle(
    logits, target, *, bias=None, lower=None, weight=None, divisor=None, scale=1.0,
    label_smoothing=0.0, reduce=True,
):  # fmt: skip
    """The loss from its equation, row by row in float64."""
    classes = logits.shape[1]
    ones, zeros = torch.ones(classes).double(), torch.zeros(classes).double()

    def of(table, neutral):
        return neutral if table is None else table.double().cpu()

    b, a, w = of(bias, zeros), of(lower, zeros), of(weight, ones)
    losses = []
    for f, y in zip(logits.double().cpu(), target.tolist(), strict=True):
        if y == -100:
            losses.append(0.0 * f.nan_to_num().sum())
            continue
        z = scale * (f + b)
        z = torch.cat([z[:y], z[y : y + 1] - scale * a[y], z[y + 1 :]])
        each = w * (z.logsumexp(0) - z)
        smooth = each.mean() if label_smoothing else 0.0
        losses.append((1 - label_smoothing) * each[y] + label_smoothing * smooth)
    losses = torch.stack(losses) / (1 if divisor is None else float(divisor))
    return losses.sum() if reduce else losses


def check(logits, target, tables, **options):
    """Loss and gradient, for a random incoming gradient, against float64."""
    f = logits.detach().requires_grad_()
    loss = cross_entropy(f, target, **tables, **options)
    exact_f = logits.detach().double().cpu().requires_grad_()
    exact = oracle(exact_f, target, **tables, **options)
    up = 0.5 + torch.rand(exact.shape, generator=torch.Generator().manual_seed(1))
    (grad,) = torch.autograd.grad(loss, f, up.to(DEVICE))
    (exact_grad,) = torch.autograd.grad(exact, exact_f, up.double())
    assert loss.dtype == F32
    assert grad.dtype == logits.dtype
    # What float32 loses in logits of this size, as torch's own cross-entropy does.
    size = options.get("scale", 1.0) * (float(logits.abs().max()) + 8)
    slack = 8 * 2**-24 * size
    top = exact.abs().max().item()
    torch.testing.assert_close(
        loss.double().cpu(), exact.detach(), rtol=slack, atol=slack * (1 + top)
    )
    top = exact_grad.abs().max().item()
    tiny = torch.finfo(logits.dtype).smallest_normal
    torch.testing.assert_close(
        grad.double().cpu(), exact_grad,
        rtol=2 * EPS[logits.dtype] + slack,
        atol=(EPS[logits.dtype] / 8 + slack) * top + 2**-22 + tiny,
    )  # fmt: skip


@pytest.fixture
def sliced(monkeypatch):
    """Rows are cut into slices.

    In the interpreter programs follow each other and can't wait: they run twice, the second time
    with what the first one wrote for the others.
    """

    def twice(kernel, grid, args, constants, **how):
        if "SLICES" in constants:
            args[kernel.arg_names.index("partials")].fill_(1)
            launch(kernel, grid, args, constants, **how)
        launch(kernel, grid, args, constants, **how)

    launch, layout = module.launch, module._layout
    monkeypatch.setattr(module, "WIDE", 32)
    if DEVICE == "cpu":
        monkeypatch.setattr(module, "launch", twice)
        monkeypatch.setattr(module, "_layout", lambda n, *_: (1024, 1, 168, 2 * -(-n // 1024)))
    layout.cache_clear()
    yield
    layout.cache_clear()


CASES = [
    # Rows on 16, 8, 4 and 2 bytes; one class; all tables; all options
    (5, 37, F32, "bd", {}),
    (4, 40, BF16, "blwd", {"scale": 2.5}),
    (3, 34, F16, "bd", {"label_smoothing": 0.3}),
    (4, 1, F32, "bl", {"reduce": False}),
    (3, 8142, BF16, "bd", {}),
    (6, 29, BF16, "", {"reduce": False, "label_smoothing": 0.1}),
]
CASES += [
    pytest.param(n, classes, dtype, names, {"reduce": reduce, **options}, marks=LONG)
    for n, classes in ((1, 2), (7, 130), (4, 1203), (3, 9000))
    for dtype in (F32, BF16, F16)
    for reduce in (True, False)
    for names, options in (("bd", {"label_smoothing": 0.2}), ("blwd", {"scale": 0.5}))
]


@pytest.mark.parametrize(("n", "classes", "dtype", "names", "options"), CASES)
def test_against_float64(n, classes, dtype, names, options):
    check(*make(n, classes, dtype, names), **options)


@pytest.mark.parametrize(
    ("classes", "dtype", "names", "options"),
    [
        pytest.param(2001, F32, "bld", {}, marks=LONG),
        (5000, BF16, "b", {"label_smoothing": 0.1}),
        (4102, F16, "blw", {"reduce": False}),
    ],
)
def test_rows_in_slices(sliced, classes, dtype, names, options):
    check(*make(3, classes, dtype, names), **options)


@pytest.mark.parametrize("classes", [203, 5000])
def test_the_gradient_may_take_the_place_of_the_logits(classes):
    logits, target, tables = make(5, classes, F32, "bl", ignored=False)
    share = torch.rand(5, device=DEVICE)
    exact_f = logits.double().cpu().requires_grad_()
    exact = oracle(exact_f, target, **tables, reduce=False)
    (exact_grad,) = torch.autograd.grad(exact @ share.double().cpu(), exact_f)
    losses = loss_of_rows(logits, target, **tables, grad=logits, upstream=share).sum(1)
    torch.testing.assert_close(losses.double().cpu(), exact.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(logits.double().cpu(), exact_grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("level", [-3e4, 300.0])
def test_any_level_of_the_logits(level):
    logits, target, tables = make(4, 40, F32, "")
    check(logits + level, target, tables, reduce=False)


def test_a_lowered_target_that_leads_keeps_the_digits_of_the_rest():
    logits, target, tables = make(4, 40, F32, "", ignored=False)
    logits[torch.arange(4), target] = logits.max() + 30
    tables["lower"] = torch.full((40,), 13.8, device=DEVICE)  # −log 1e-6
    check(logits, target, tables, reduce=False)


@pytest.mark.parametrize("offset", [1, 8])
def test_misaligned_and_strided_logits(offset):
    logits, target, tables = make(5, 40, BF16, "bld")
    wide = torch.full((5, 60), math.nan, dtype=BF16, device=DEVICE)
    wide[:, offset : offset + 40] = logits
    check(wide[:, offset : offset + 40], target, tables)


def test_neighbours_do_not_leak_into_a_row():
    logits, target, tables = make(7, 41, BF16, ignored=False)
    logits[3] = math.nan
    f = logits.requires_grad_()
    losses = cross_entropy(f, target, **tables, reduce=False)
    assert losses.isnan().tolist() == [row == 3 for row in range(7)]
    losses.nansum().backward()
    assert f.grad[[0, 1, 2, 4, 5, 6]].isfinite().all()


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_all_ignored(label_smoothing):
    f = torch.randn(3, 9, device=DEVICE, requires_grad=True)
    target = torch.full((3,), -100, device=DEVICE)
    given = {"label_smoothing": label_smoothing}
    none = torch.zeros((), device=DEVICE)
    loss = cross_entropy(f, target, divisor=none, **given)
    loss.backward()
    assert loss.isnan()
    assert f.grad.eq(0).all()
    assert cross_entropy(f, target, **given) == 0


def test_an_infinite_bias_takes_a_class_out():
    logits, target, tables = make(5, 41, F32, ignored=False)
    target[:] = 7
    tables["bias"][[3, 40]] = -math.inf
    f = logits.requires_grad_()
    loss = cross_entropy(f, target, **tables)
    loss.backward()
    assert f.grad[:, [3, 40]].eq(0).all()
    exact = F.cross_entropy(f.detach().double() + tables["bias"].double(), target, reduction="sum")
    torch.testing.assert_close(loss.detach().double(), exact, rtol=1e-6, atol=0)


def test_gradients_are_multiplied_by_what_comes_in():
    logits, target, tables = make(5, 37, F32)
    f = logits.requires_grad_()
    loss = cross_entropy(f, target, **tables)
    (once,) = torch.autograd.grad(loss, f, retain_graph=True)
    kept = once.clone()
    (thrice,) = torch.autograd.grad(loss, f, 3 * torch.ones_like(loss), retain_graph=True)
    (last,) = torch.autograd.grad(loss, f, 3 * torch.ones_like(loss))
    assert torch.equal(once, kept)  # a graph that was kept gives fresh tensors
    torch.testing.assert_close(thrice, 3 * once)
    torch.testing.assert_close(last, 3 * once)
