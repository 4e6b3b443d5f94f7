"""What the kernels must do, on whatever device they run: the GPU, or Triton's interpreter.

Not collected by its name: `test_interpreted` runs it in a process of its own, where Triton
interprets, and `test_gpu` imports it. The oracle is a float64 loop written from the equation.
"""

import importlib
import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from longtail.kernels import _launch, cross_entropy, linear_cross_entropy
from longtail.kernels._launch import BACKWARD, FORWARD, FUSED, Options, Tables, Tiles
from longtail.kernels.cross_entropy import margin_cross_entropy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Half a step of each type; Triton's interpreter cuts to bfloat16 instead of rounding.
EPS = {torch.float32: 2**-24, torch.float16: 2**-11}
EPS[torch.bfloat16] = 2**-8 if DEVICE == "cuda" else 2**-7


def oracle(logits, target, tables, *, scale=1.0, ignore_index=-100, epsilon=0.0, reduction="mean"):
    """Σ_c q_c·w_c·α_c·log(1 + Σ_{j≠c} e^{s·(f_j + b_j − f_c + a_c)}) by rows, in float64."""
    classes = logits.shape[1]
    one, zero = torch.ones(classes).double(), torch.zeros(classes).double()
    b, a, alpha, w = (
        neutral if table is None else table.double().cpu()
        for table, neutral in zip(tables, (zero, zero, one, one), strict=True)
    )
    rows, denominator = [], 0.0
    for f, y in zip(logits.double().cpu(), target.tolist(), strict=True):
        if y == ignore_index:
            rows.append(0.0 * f.sum())
            continue
        total = 0.0
        for c in [y] if epsilon == 0 else range(classes):
            others = torch.arange(classes) != c
            rest = (scale * (f + b))[others].logsumexp(0) if classes > 1 else -math.inf
            d = rest - scale * (f[c] - a[c])
            q = epsilon / classes + (1 - epsilon) * (c == y)
            total = total + q * w[c] * alpha[c] * (d.clamp_min(0) + torch.log1p((-d.abs()).exp()))
        rows.append(total)
        denominator += float(w[y])
    losses = torch.stack([torch.as_tensor(row, dtype=torch.float64) for row in rows])
    if reduction == "none":
        return losses
    return losses.sum() / (denominator if reduction == "mean" else 1.0)


def make(n, classes, dtype, *, names="bA", spread=1.0, ignored=True, seed=0):
    """Logits, labels and the tables that `names` calls for (b, a, A for α, w)."""
    rng = torch.Generator().manual_seed(seed)
    logits = (spread * torch.randn(n, classes, generator=rng)).to(dtype)
    target = torch.randint(classes, (n,), generator=rng)
    if ignored and n > 2:
        target[1] = -100
    b, a = (2 * torch.randn(classes, generator=rng) for _ in range(2))
    alpha, w = (0.5 + torch.rand(classes, generator=rng) for _ in range(2))
    given = zip("baAw", (b, a, alpha, w), strict=True)
    tables = Tables(*(table.to(DEVICE) if key in names else None for key, table in given))
    return logits.to(DEVICE), target.to(DEVICE), tables


def torch_reference(logits, target, tables, **options):
    """The package's own torch arithmetic, in float32."""
    f = logits.detach().float().requires_grad_()
    rows = Tables(*(None if table is None else table.unsqueeze(0) for table in tables))
    epsilon = options.get("epsilon", 0.0)
    losses = linear_cross_entropy.torch_losses(
        f, target, rows, Options(options.get("scale", 1.0), -100, epsilon)
    )
    if options["reduction"] != "none":
        count = 1.0
        if options["reduction"] == "mean":
            counted = target != -100
            w = torch.ones(f.shape[1], device=f.device) if tables.weight is None else tables.weight
            count = (w[target.clamp_min(0)] * counted).sum()
        losses = losses.sum() / count
    return f, losses


def check(logits, target, tables, *, upstream=None, result=None, **options):
    """Kernel against float64: no further off than torch is, plus rounding; gradients likewise."""
    reduction = options["reduction"]
    exact_f = logits.detach().double().cpu().requires_grad_()
    exact = oracle(exact_f, target, tables, **options)
    rng = torch.Generator().manual_seed(0)  # near 0 half-precision gradients would be subnormal
    up = torch.randn(exact.shape, generator=rng).double() if upstream is None else upstream
    up = up.to(logits.dtype).double()  # the gradient of a loss has the loss's type
    (exact * up).sum().backward()
    torch_f, torch_loss = torch_reference(logits, target, tables, **options)
    (torch_loss * up.to(DEVICE, torch.float32)).sum().backward()
    if result is None:
        f = logits.detach().requires_grad_()
        loss = margin_cross_entropy(
            f, target, **tables._asdict(), scale=options.get("scale", 1.0),
            label_smoothing=options.get("epsilon", 0.0), reduction=reduction,
        )  # fmt: skip
        (loss.float() * up.to(DEVICE, torch.float32)).sum().backward()
        result = loss, f.grad
    loss, grad = result
    assert loss.dtype == logits.dtype or loss.dtype == torch.float32
    assert grad.dtype == logits.dtype
    size = 4 + float(logits.abs().max()) + 8 * (tables.offset is not None)
    size *= options.get("scale", 1.0)
    _close(loss, exact, torch_loss, dtype=loss.dtype, slack=8 * 2**-24 * size)
    _close(grad, exact_f.grad, torch_f.grad, dtype=grad.dtype, slack=8 * 2**-24 * size)


def _close(found, exact, other, *, dtype, slack):
    """|found − exact| ≤ |torch − exact| + rounding of the result + what float32 allows."""
    found, other = found.detach().double().cpu(), other.detach().double().cpu()
    exact = exact.detach()
    assert torch.isfinite(found).all()
    scale = exact.abs().max().clamp_min(1e-30)
    allowed = (other - exact).abs().max() + 2 * EPS[dtype] * exact.abs() + slack * scale
    worst = ((found - exact).abs() - allowed).max()
    assert worst <= 0, f"off by {worst:.2e} more than allowed; largest {scale:.2e}"


CASES = [
    # rows, classes, dtype, tables, options; alignment: 8 and 16 bytes apart, odd, one, narrow
    (5, 37, torch.float32, "b", {}),
    (5, 37, torch.bfloat16, "bA", {"reduction": "sum"}),
    (6, 1000, torch.float16, "baw", {}),
    (7, 1203, torch.bfloat16, "baAw", {"scale": 2.5}),
    (4, 1204, torch.bfloat16, "", {"reduction": "none"}),
    (3, 2050, torch.float32, "ba", {"reduction": "none"}),
    (9, 3, torch.bfloat16, "bw", {}),
    (4, 2, torch.float32, "a", {}),
    (4, 1, torch.float32, "ba", {}),
    (1, 1, torch.bfloat16, "b", {}),
    (40, 10, torch.bfloat16, "baAw", {}),
    (3, 8142, torch.bfloat16, "ba", {}),
    (5, 29, torch.float32, "baAw", {"epsilon": 0.1}),
    (4, 33, torch.bfloat16, "ba", {"epsilon": 0.3, "reduction": "none"}),
    (4, 17, torch.float16, "bw", {"epsilon": 1.0, "reduction": "sum", "scale": 3.0}),
]


@pytest.mark.parametrize(("n", "classes", "dtype", "names", "options"), CASES)
def test_equals_float64(n, classes, dtype, names, options):
    check(*make(n, classes, dtype, names=names), **{"reduction": "mean", **options})


@pytest.mark.parametrize("spread", [0.01, 30.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.2])
def test_flat_and_confident_logits(spread, epsilon):
    data = make(6, 70, torch.float32, names="baA", spread=spread)
    check(*data, reduction="none", epsilon=epsilon)


@pytest.mark.parametrize("lead", [5.0, 20.0, 50.0, 80.0])
def test_tiny_losses_keep_their_digits(lead):
    logits, target, tables = make(4, 40, torch.float32, names="", ignored=False)
    rows = torch.arange(4, device=DEVICE)
    logits[rows, target] = logits.max() + lead
    loss = margin_cross_entropy(logits, target, reduction="none").double().cpu()
    exact = oracle(logits, target, tables, reduction="none")
    assert ((loss - exact).abs() <= 1e-5 * exact).all()
    assert (exact > 0).all()


@pytest.mark.parametrize("level", [-3e4, -300.0, 300.0, 3e4])
@pytest.mark.parametrize("classes", [40, 1200])
def test_any_level_of_the_logits(level, classes):
    # Far from zero the guessed maximum of a row is no good, and the second way is taken.
    logits, target, tables = make(4, classes, torch.float32, names="")
    check(logits + level, target, tables, reduction="none", upstream=torch.ones(4).double())


def test_one_giant_competitor():
    logits, target, tables = make(5, 300, torch.float32, names="b")
    logits[:, 250] += 500.0
    check(logits, target, tables, reduction="mean")


@pytest.mark.parametrize("offset", [1, 3, 8])
def test_misaligned_and_strided_logits(offset):
    logits, target, tables = make(5, 41, torch.bfloat16, names="ba")
    wide = torch.full((5, 60), math.nan, dtype=torch.bfloat16, device=DEVICE)
    wide[:, offset : offset + 41] = logits
    check(wide[:, offset : offset + 41], target, tables, reduction="mean")
    check(logits.t().contiguous().t(), target, tables, reduction="mean")


def test_neighbours_do_not_leak_into_a_row():
    # Rows share 16-byte words with their neighbours.
    logits, target, tables = make(7, 41, torch.bfloat16, names="b", ignored=False)
    logits[3] = math.nan
    losses = margin_cross_entropy(logits, target, offset=tables.offset, reduction="none")
    assert losses.isnan().tolist() == [False, False, False, True, False, False, False]
    f = logits.detach().requires_grad_()
    margin_cross_entropy(f, target, reduction="none").nansum().backward()
    assert f.grad[[0, 1, 2, 4, 5, 6]].isfinite().all()


def test_ignored_rows_have_no_gradient_even_beside_nan():
    logits, target, _ = make(4, 41, torch.float32, ignored=False)
    target[2], logits[2] = -100, math.nan
    f = logits.requires_grad_()
    loss = margin_cross_entropy(f, target)
    loss.backward()
    assert loss.isfinite()
    assert f.grad[2].eq(0).all()
    assert f.grad.isfinite().all()


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_all_ignored(epsilon):
    f = torch.randn(3, 9, device=DEVICE, requires_grad=True)
    target = torch.full((3,), -100, device=DEVICE)
    loss = margin_cross_entropy(f, target, label_smoothing=epsilon)
    loss.backward()
    assert loss.isnan()
    assert f.grad.eq(0).all()
    assert margin_cross_entropy(f, target, reduction="sum", label_smoothing=epsilon) == 0


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_empty_batch_as_torch_has_it(reduction):
    f = torch.randn(0, 9, device=DEVICE, requires_grad=True)
    target = torch.zeros(0, dtype=torch.long, device=DEVICE)
    loss = margin_cross_entropy(f, target, reduction=reduction)
    expected = F.cross_entropy(f, target, reduction=reduction)
    assert torch.equal(loss.isnan(), expected.isnan())
    assert loss.shape == expected.shape
    loss.sum().backward()
    assert f.grad.shape == (0, 9)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("form", ["mean", "none", "linear"])
def test_narrow_labels_never_wrap_around_to_the_ignored_one(form, dtype):
    """-100 in uint8 is 156."""
    logits, target, tables = make(3, 200, torch.float32, names="bw", ignored=False)
    target[1] = 156
    if form == "linear":
        logits, call = torch.ones(3, 4, device=DEVICE), linear_cross_entropy.linear_cross_entropy
        weight = torch.zeros(200, 4, device=DEVICE)
        found, wide = (
            call(logits, weight, labels, class_weight=tables.weight, impl="triton")
            for labels in (target.to(dtype), target)
        )
    else:
        given = {**tables._asdict(), "reduction": form}
        found, wide = (
            margin_cross_entropy(logits, labels, **given) for labels in (target.to(dtype), target)
        )
        oracle_loss = oracle(logits, target, tables, reduction=form)
        torch.testing.assert_close(wide.double().cpu(), oracle_loss, rtol=1e-5, atol=1e-6)
    assert torch.equal(found, wide)


def test_an_infinite_offset_takes_a_class_out():
    logits, target, tables = make(5, 41, torch.float32, names="b", ignored=False)
    target[:] = 7
    b = tables.offset.clone()
    b[[3, 40]] = -math.inf
    f = logits.requires_grad_()
    margin_cross_entropy(f, target, offset=b).backward()
    assert f.grad[:, [3, 40]].eq(0).all()
    check(f.detach(), target, tables._replace(offset=b), reduction="mean")


@pytest.mark.parametrize("form", ["mean", "none", "linear", "linear in torch"])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_is_left_where_every_competitor_is_masked(dtype, epsilon, form):
    # Below t = -103, e^t is 0 in float32, as the sum over the competitors is.
    f, target, _ = make(5, 41, dtype, ignored=False)
    f[:4].scatter_(1, target[:4, None], -200.0)
    f.requires_grad_()
    alone = torch.full((41,), -math.inf, device=DEVICE)
    given = {"offset": alone, "label_smoothing": epsilon}
    if "linear" in form:
        impl, one = "torch" if "torch" in form else "triton", torch.eye(41).to(f)
        loss = linear_cross_entropy.linear_cross_entropy(f, one, target, impl=impl, **given)
    else:
        loss = margin_cross_entropy(f, target, reduction=form, **given)
    loss.sum().backward()
    assert loss.eq(0).all()
    assert f.grad.eq(0).all()


def test_gradients_are_multiplied_by_what_comes_in():
    logits, target, tables = make(5, 37, torch.float32)
    f = logits.requires_grad_()
    loss = margin_cross_entropy(f, target, **tables._asdict())
    (once,) = torch.autograd.grad(loss, f, retain_graph=True)
    kept = once.clone()
    (thrice,) = torch.autograd.grad(loss, f, 3 * torch.ones_like(loss), retain_graph=True)
    (last,) = torch.autograd.grad(loss, f, 3 * torch.ones_like(loss))
    assert torch.equal(once, kept)  # a graph that was kept gives fresh tensors
    torch.testing.assert_close(thrice, 3 * once)
    torch.testing.assert_close(last, 3 * once)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_second_derivative_is_refused(reduction):
    logits, target, _ = make(5, 37, torch.float32)
    f = logits.requires_grad_()
    loss = margin_cross_entropy(f, target, reduction=reduction).sum()
    with pytest.raises(RuntimeError, match="impl='torch'"):
        torch.autograd.grad(loss, f, create_graph=True)[0].sum().backward()


def test_inplace_overwrites_and_says_so():
    logits, target, tables = make(5, 40, torch.float32, names="b")
    leaf = logits.requires_grad_()
    expected = margin_cross_entropy(leaf * 2, target, offset=tables.offset)
    (grad,) = torch.autograd.grad(expected, leaf)
    hidden = leaf * 2
    before = hidden.detach().clone()
    saved = hidden.sin()  # saves `hidden` for its backward pass
    loss = margin_cross_entropy(hidden, target, offset=tables.offset, inplace=True)
    assert not torch.equal(hidden, before)
    torch.testing.assert_close(torch.autograd.grad(loss, leaf, retain_graph=True)[0], grad)
    with pytest.raises(RuntimeError, match="inplace operation"):
        saved.sum().backward()
    with pytest.raises(cross_entropy.InputError, match="leaf that requires grad"):
        margin_cross_entropy(leaf, target, inplace=True)


def test_the_callers_logits_are_left_alone():
    logits, target, tables = make(5, 41, torch.bfloat16)
    before = logits.clone()
    margin_cross_entropy(logits.requires_grad_(), target, **tables._asdict()).backward()
    assert torch.equal(logits, before)


@pytest.mark.parametrize("mode", [(FUSED,), (FORWARD, BACKWARD)])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize(
    "tiles",
    [Tiles(1, 64, 5, 1), Tiles(1, 64, 5, 1, looped=1), Tiles(2, 64, 5, 1), Tiles(4, 512, 1, 1)],
)
def test_tiles_of_any_shape(mode, reduction, tiles):
    # Rows split over programs, programs that loop, several rows to a program.
    if FUSED in mode and (reduction == "none" or (tiles.slices > 1 and DEVICE == "cpu")):
        pytest.skip("programs that wait for each other need a GPU; unreduced takes two launches")
    logits, target, tables = make(7, 303, torch.bfloat16, names="baAw")
    rows = Tables(*(table.unsqueeze(0) for table in tables))
    options = Options(reduction=("none", "mean").index(reduction))
    up = torch.randn(7 if reduction == "none" else 1, device=DEVICE)
    blank = torch.full((1, 7, 303), math.nan, dtype=torch.bfloat16, device=DEVICE)
    loss = torch.full((1, 7) if reduction == "none" else (1,), math.nan, device=DEVICE)
    stats = torch.empty(1, 3, 7, device=DEVICE)
    for step in mode:
        _launch.launch(
            step, logits[None], target[None], rows, options, grad=blank, loss=loss, stats=stats,
            upstream=up.reshape(loss.shape), tiles=tiles,
        )  # fmt: skip
    grad = blank[0] if BACKWARD in mode else (blank[0].float() * up).to(torch.bfloat16)
    shape = () if reduction == "mean" else (7,)
    upstream = up.double().cpu().reshape(shape)
    check(
        logits, target, tables, reduction=reduction, upstream=upstream,
        result=(loss.reshape(shape), grad),
    )  # fmt: skip


def batched(count=3, n=6, classes=37):
    rng = torch.Generator().manual_seed(1)
    logits = torch.randn(count, n, classes, generator=rng).to(DEVICE)
    target = torch.randint(classes, (count, n), generator=rng).to(DEVICE)
    offsets = torch.randn(count, classes, generator=rng).to(DEVICE)
    return logits, target, offsets


def adjusted(f, y, b):
    return margin_cross_entropy(f, y, offset=b, positive=-b)


def plain(f, y, b):
    return F.cross_entropy(f + b, y)


@pytest.mark.parametrize("dims", [(0, 0, None), (0, 0, 0), (0, None, None), (1, 0, 0)])
def test_vmap_of_grad(dims):
    logits, target, offsets = batched()
    if dims[0] == 1:
        logits = logits.transpose(0, 1)
    args = (logits, target if dims[1] == 0 else target[0], offsets if dims[2] == 0 else offsets[0])
    for transform in (lambda f: f, torch.func.grad, torch.func.grad_and_value):
        found = torch.vmap(transform(adjusted), dims)(*args)
        expected = torch.vmap(transform(plain), dims)(*args)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_compiles_into_one_graph(reduction):
    logits, target, offsets = batched()
    f = logits[0].requires_grad_()

    def loss(f, y, b):
        return margin_cross_entropy(2 * f, y, offset=b, positive=-b, reduction=reduction).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(f, target[0], offsets[0]), f)
    torch.testing.assert_close(found, torch.autograd.grad(loss(f, target[0], offsets[0]), f))


def test_the_operators_pass_torchs_own_checks():
    logits, target, offsets = batched(2)
    for args in ((1.0, -100, 0.0, 1), (2.0, 3, 0.1, 0)):
        torch.library.opcheck(
            torch.ops.longtail.margin_cross_entropy,
            (logits.requires_grad_(), target, offsets, -offsets, None, None, *args),
        )


def test_autocast_keeps_the_loss_in_float32():
    logits, target, _ = make(5, 37, torch.bfloat16)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert margin_cross_entropy(logits, target).dtype == torch.float32
    assert margin_cross_entropy(logits, target).dtype == torch.bfloat16


def test_float16_gradients_of_a_mean_do_not_underflow():
    logits, target, _ = make(16, 1000, torch.float16, ignored=False)
    f = logits.requires_grad_()
    (65536.0 * margin_cross_entropy(f, target).float()).backward()
    assert (f.grad == 0).float().mean() < 0.01


LINEAR = [
    (torch.float32, "mean", 0.0, 37),
    (torch.bfloat16, "mean", 0.0, 37),
    (torch.bfloat16, "sum", 0.1, 40),
    (torch.float16, "mean", 0.0, 37),
    (torch.float32, "none", 0.0, 37),
    (torch.bfloat16, "none", 0.1, 37),
]


@pytest.mark.parametrize("impl", ["triton", "torch"])
@pytest.mark.parametrize("rows", [4, 100])
@pytest.mark.parametrize(("dtype", "reduction", "epsilon", "classes"), LINEAR)
def test_linear_equals_float64(dtype, reduction, epsilon, classes, rows, impl):
    if rows == 100 and dtype != torch.bfloat16:
        pytest.skip("one chunk is the simpler case; once is enough")
    _, target, tables = make(11, classes, dtype, names="baAw")
    inputs = [
        torch.randn(shape).to(DEVICE, dtype).requires_grad_()
        for shape in ((11, 8), (classes, 8), (classes,))
    ]
    features, weight, bias = inputs
    given = tables._asdict()
    loss = linear_cross_entropy.linear_cross_entropy(
        features, weight, target, bias=bias, class_weight=given.pop("weight"), **given,
        label_smoothing=epsilon, reduction=reduction, impl=impl,
        chunk_bytes=rows * classes * features.element_size(),
    )  # fmt: skip
    up = torch.randn(loss.shape, dtype=torch.float64)
    (loss.float() * up.to(DEVICE, torch.float32)).sum().backward()
    exact = [tensor.detach().double().cpu().requires_grad_() for tensor in inputs]
    f = exact[0] @ exact[1].t() + exact[2]
    expected = oracle(f, target, tables, epsilon=epsilon, reduction=reduction)
    (expected * up).sum().backward()
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
    torch.testing.assert_close(
        loss.double().cpu(), expected.detach(), rtol=tolerance, atol=5 * tolerance
    )
    for found, wanted in zip(inputs, exact, strict=True):
        assert found.grad.dtype == dtype
        error = (found.grad.double().cpu() - wanted.grad).norm() / wanted.grad.norm()
        assert error < tolerance


@pytest.mark.parametrize("impl", ["triton", "torch"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("given", [None, torch.float32])
def test_linear_under_autocast(given, half, reduction, impl):
    # Features of a layer under autocast are in half precision, its parameters in float32.
    _, target, tables = make(11, 37, torch.float32, names="ba")
    features = torch.randn(11, 8).to(DEVICE, given or half).requires_grad_()
    weight, bias = (torch.randn(n).to(DEVICE).requires_grad_() for n in ((37, 8), (37,)))
    with torch.autocast(DEVICE, dtype=half):
        loss = linear_cross_entropy.linear_cross_entropy(
            features, weight, target, bias=bias, offset=tables.offset, positive=tables.positive,
            reduction=reduction, impl=impl, chunk_bytes=4 * 37 * 2,
        )  # fmt: skip
        assert loss.dtype == torch.float32
    loss.sum().backward()
    exact = [t.detach().double().cpu().requires_grad_() for t in (features, weight, bias)]
    expected = oracle(exact[0] @ exact[1].t() + exact[2], target, tables, reduction=reduction)
    expected.sum().backward()
    torch.testing.assert_close(loss.double().cpu(), expected.detach(), rtol=2e-2, atol=5e-2)
    for found, wanted in zip((features, weight, bias), exact, strict=True):
        assert found.grad.dtype == found.dtype
        error = (found.grad.double().cpu() - wanted.grad).norm() / wanted.grad.norm()
        assert error < 2e-2


def linear_gradients(target, dtype, **options):
    """Loss of labels from random features, and the gradients of features, weight and bias."""
    inputs = [
        torch.randn(shape).to(DEVICE, dtype).requires_grad_()
        for shape in ((len(target), 8), (37, 8), (37,))
    ]
    features, weight, bias = inputs
    loss = linear_cross_entropy.linear_cross_entropy(
        features, weight, target.to(DEVICE), bias=bias, impl="triton", **options
    )
    return loss, torch.autograd.grad(loss.sum(), inputs)


@pytest.mark.parametrize("rows", [3, 0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", EPS)
def test_linear_of_nothing(dtype, reduction, epsilon, rows):
    """All ignored, or an empty batch."""
    target = torch.full((rows,), -100)
    loss, grads = linear_gradients(target, dtype, reduction=reduction, label_smoothing=epsilon)
    assert loss.isnan() if reduction == "mean" else loss.eq(0).all()
    for grad, shape in zip(grads, ((rows, 8), (37, 8), (37,)), strict=True):
        assert grad.shape == shape
        assert grad.eq(0).all()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_linear_of_an_empty_batch_compiles(reduction):
    torch._dynamo.reset()
    compiled = torch.compile(linear_gradients, backend="aot_eager")
    loss, grads = compiled(torch.zeros(0).long(), torch.float32, reduction=reduction)
    assert loss.isnan() if reduction == "mean" else loss == 0
    assert all(grad.eq(0).all() for grad in grads)


def test_linear_sums_chunks_in_float32():
    # 32 chunks of one row each: bfloat16 sums of these would be off by several percent.
    features = torch.ones(32, 8, device=DEVICE, dtype=torch.bfloat16)
    weight = torch.zeros(16, 8, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    target = torch.zeros(32, dtype=torch.long, device=DEVICE)
    linear_cross_entropy.linear_cross_entropy(
        features, weight, target, chunk_bytes=32, reduction="sum", impl="triton"
    ).backward()
    expected = torch.full((16, 8), 32 / 16)
    expected[0] -= 32
    torch.testing.assert_close(weight.grad.float().cpu(), expected, rtol=2**-8, atol=0)


@pytest.fixture
def training_bench(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("bench_loss_training")


def exact_training(bench, training, seed):
    """The losses of a finished training's steps in float64, from torch's cross-entropy."""
    data, setting = training.data, training.setting
    network = bench.Network(data.prior.num_classes, setting)
    network.start(torch.Generator().manual_seed(seed))
    network.double()
    optimizer = torch.optim.SGD(network.parameters(), lr=setting.rate, momentum=0.9)
    b, losses = torch.tensor(data.prior.log_probs), []
    for rows in training.order.cpu():
        x, y = data.inputs.cpu()[rows].double(), data.target.cpu()[rows]
        loss = plain(network.head(network.features(x)), y, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("form", ["logits", "features"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_training_with_and_without_the_kernel_goes_alike(training_bench, dtype, form):
    bench, device, found = training_bench, torch.device(DEVICE), {}
    with bench.own_stream(device):
        data = bench.make_data(37, bench.SMALL, device)
        for impl in ("torch", "triton"):
            training = bench.Training(data, bench.SMALL, form=form, dtype=dtype, impl=impl)
            training.train(1)
            steps, _ = training.train(0)  # of another seed's training nothing may be left
            found[impl] = torch.as_tensor(steps), training.judge()[0]
    exact = torch.tensor(exact_training(bench, training, 0), dtype=torch.float64)
    assert exact[-1] < exact[0]
    tolerance = {"float32": 2e-6, "bfloat16": 4e-3}[dtype]
    for impl in found:
        torch.testing.assert_close(found[impl][0], exact, rtol=tolerance, atol=0)
    assert found["triton"][1] == pytest.approx(found["torch"][1], rel=tolerance)
