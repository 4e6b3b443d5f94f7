"""What the kernel for rows of a few thousand logits must do, on a GPU or in Triton's interpreter.

Not collected by its name: `test_interpreted` runs it in a process of its own, where Triton
interprets, and `test_words_gpu` imports it. Oracles are `kernel_battery`'s, and plain torch in
float64.
"""

import math
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
import triton
import triton.language as tl
from kernel_battery import DEVICE, check, make, oracle, torch_reference

from longtail.kernels import _triton_words, _words
from longtail.kernels._launch import Options, Tables
from longtail.kernels.cross_entropy import margin_cross_entropy
from longtail.kernels.linear_cross_entropy import linear_cross_entropy

BF16 = torch.bfloat16


@contextmanager
def counted():
    """Launches of this kernel."""
    with mock.patch.object(_words, "launch", wraps=_words.launch) as launch:
        yield launch


def fused(logits, target, tables=Tables(), *, served=True, **options):  # noqa: B008
    """Loss in float32 and gradient from this kernel, or from the other one."""
    f = logits.detach().requires_grad_()
    with counted() as launch, torch.autocast(DEVICE, BF16):  # which keeps the loss in float32
        if served:
            loss = margin_cross_entropy(f, target, **tables._asdict(), **options)
        else:
            with mock.patch.object(_words, "words_for", return_value=None):
                loss = margin_cross_entropy(f, target, **tables._asdict(), **options)
    assert launch.call_count == served
    assert loss.dtype == torch.float32
    (grad,) = torch.autograd.grad(loss, f)
    return loss.detach(), grad


def check_fused(logits, target, tables, *, reduction="mean", **options):
    result = fused(logits, target, tables, reduction=reduction, **options)
    one = torch.ones(()).double()
    check(logits, target, tables, upstream=one, result=result, reduction=reduction, **options)
    return result


CASES = [
    # rows, classes, tables, options: rows that start anywhere in a sector, or all at its start
    (9, 8142, "ba", {}),
    (5, 8142, "", {}),
    (1, 8142, "b", {}),
    (4, 8142, "baAw", {"reduction": "sum"}),
    (9, 4098, "baAw", {}),
    (3, 4104, "w", {"reduction": "sum"}),
    (5, 5004, "bA", {"scale": 2.5}),
    (9, 6142, "a", {"scale": 0.3, "reduction": "sum"}),
    (6, 6146, "baAw", {"scale": 4.0}),
    (9, 8178, "b", {}),
    (3, 8184, "bw", {}),
    (3, 8192, "ba", {}),
]


@pytest.mark.parametrize(("n", "classes", "names", "options"), CASES)
def test_words_equal_float64(n, classes, names, options):
    logits, target, tables = make(n, classes, BF16, names=names, spread=3.0)
    target[0], target[-1] = classes - 1, 0
    loss, grad = check_fused(logits, target, tables, **options)
    other, other_grad = fused(logits, target, tables, served=False, **options)
    torch.testing.assert_close(loss, other, rtol=4e-6, atol=0)
    torch.testing.assert_close(grad.float(), other_grad.float(), rtol=2**-6, atol=1e-30)


def test_offsets_of_words_may_start_anywhere():
    logits, target, tables = make(5, 4098, BF16, names="b")
    room = torch.full((4099,), math.nan, device=DEVICE)
    room[1:] = tables.offset
    offset = room[1:]
    assert offset.data_ptr() % 8 == 4
    loss, grad = fused(logits, target, Tables(offset=offset))
    other, other_grad = fused(logits, target, tables)
    assert loss == other
    assert torch.equal(grad, other_grad)


@pytest.mark.parametrize("target_type", [torch.int32, torch.int64])
@pytest.mark.parametrize("ignore_index", [-100, 7])
def test_words_of_any_labels(target_type, ignore_index):
    logits, target, tables = make(9, 4098, BF16, names="bw")
    target[2] = 7
    with counted() as launch:
        f = logits.requires_grad_()
        given = {"offset": tables.offset, "weight": tables.weight}
        target[1] = ignore_index
        loss = margin_cross_entropy(f, target.to(target_type), ignore_index=ignore_index, **given)
    assert launch.called
    assert loss.dtype == BF16
    exact = f.detach().double().requires_grad_()
    expected = oracle(exact, target, tables, ignore_index=ignore_index)
    expected.backward()
    torch.testing.assert_close(loss.double().cpu(), expected.detach(), rtol=2**-7, atol=0)
    grad = torch.autograd.grad(loss, f)[0].double()
    assert (grad - exact.grad).norm() < 2**-7 * exact.grad.norm()
    assert grad[1].eq(0).all()
    assert grad[2].eq(0).all() == (ignore_index == 7)


@pytest.mark.parametrize("spread", [0.01, 30.0])
@pytest.mark.parametrize("level", [-3e4, -300.0, -60.0, 0.0, 60.0, 300.0, 3e4])
def test_words_at_any_level(level, spread):
    # Far from zero the sum leaves float32's range, and the second way is taken.
    logits, target, tables = make(3, 4098, BF16, names="b", spread=spread)
    check_fused((logits + level).to(BF16), target, tables)


def test_words_of_rows_at_different_levels():
    logits, target, tables = make(9, 8142, BF16, names="ba", ignored=False)
    logits += torch.tensor([0, 200, 0, -300, 0, 40, -60, 90, 0], device=DEVICE)[:, None]
    logits[4, 4000] += 500.0
    check_fused(logits, target, tables, reduction="sum")


@pytest.mark.parametrize("level", [0.0, 30.0, -50.0])
@pytest.mark.parametrize("lead", [0.0, 20.0, 50.0, 70.0])
def test_tiny_losses_and_gradients_keep_their_digits(lead, level):
    # By themselves: beside a row with a larger loss nothing would be seen.
    logits, target, tables = make(1, 4098, BF16, names="", ignored=False)
    logits[0, target] = logits.max() + lead
    logits += level
    loss, grad = fused(logits, target)
    f = logits.detach().double().cpu().requires_grad_()
    exact = oracle(f, target, tables)
    (expected,) = torch.autograd.grad(exact, f)
    assert (loss.double().cpu() - exact).abs() <= 1e-5 * exact
    assert exact > 0
    torch.testing.assert_close(grad.double().cpu(), expected, rtol=2**-7, atol=1e-37)


WILD = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("value", WILD)
@pytest.mark.parametrize("at", [0, 1, 2000, 4097, "target", "all"])
def test_a_wild_row_is_torchs_and_others_are_as_before(value, at):
    # Rows share sectors with their neighbours.
    logits, target, tables = make(5, 4098, BF16, names="ba", ignored=False)
    target[3] = 77
    _, before = fused(logits, target, tables, reduction="sum")
    columns = slice(None) if at == "all" else 77 if at == "target" else at
    logits[3, columns] = value
    loss, grad = fused(logits, target, tables, reduction="sum")
    others = [0, 1, 2, 4]
    # (One that begins in a sector with NaN takes the second way, which may round differently.)
    torch.testing.assert_close(grad[others].float(), before[others].float(), rtol=2**-6, atol=1e-30)
    if (at, value) == ("all", -math.inf):  # 0/0: torch takes the target out by a finite number
        assert loss.isnan()
        assert grad[3].eq(0).all()
        return
    f, expected = torch_reference(logits, target, tables, reduction="sum")
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=0, equal_nan=True)
    torch.testing.assert_close(grad[3].float(), f.grad[3], rtol=2**-7, atol=1e-6, equal_nan=True)


def test_ignored_rows_of_words_have_no_gradient_even_of_nan():
    logits, target, tables = make(9, 8142, BF16, names="b", ignored=False)
    target[[2, 8]] = -100
    exact = check_fused(logits, target, tables)
    logits[2], logits[8] = math.nan, math.inf
    loss, grad = fused(logits, target, tables)
    # A row that begins in a sector with NaN takes the second way, which may round differently.
    torch.testing.assert_close(loss, exact[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(grad.float(), exact[1].float(), rtol=2**-6, atol=1e-30)
    assert grad[[2, 8]].eq(0).all()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_all_rows_of_words_ignored_or_of_no_weight(reduction):
    logits, target, _ = make(3, 4098, BF16, ignored=False)
    nothing = torch.full_like(target, -100)
    no_weight = Tables(weight=torch.zeros(4098, device=DEVICE))
    for y, tables in ((nothing, Tables()), (target, no_weight)):
        loss, grad = fused(logits, y, tables, reduction=reduction)
        assert loss.isnan() if reduction == "mean" else loss == 0
        assert grad.eq(0).all()


def test_words_with_masked_classes():
    logits, target, tables = make(5, 8142, BF16, names="b", ignored=False)
    target[:] = 7
    tables.offset[[0, 3, 4000, 8141]] = -math.inf
    _, grad = check_fused(logits, target, tables)
    assert grad[:, [0, 3, 4000, 8141]].eq(0).all()
    tables.offset[7] = -math.inf  # the target's own
    check_fused(logits, target, tables)


def test_nothing_is_left_of_words_where_every_competitor_is_masked():
    logits, target, _ = make(5, 4098, BF16, ignored=False)
    logits[:4].scatter_(1, target[:4, None], -200.0)
    alone = Tables(offset=torch.full((4098,), -math.inf, device=DEVICE))
    loss, grad = fused(logits, target, alone)
    assert loss == 0
    assert grad.eq(0).all()


def test_words_with_zero_and_negative_factors():
    logits, target, tables = make(9, 4098, BF16, names="baAw")
    tables.alpha[::3] = 0
    tables.alpha[1::3] *= -1
    target[3:] = torch.arange(6) * 5
    check_fused(logits, target, tables)


def test_words_are_added_up_in_turns(monkeypatch):
    monkeypatch.setattr(_words, "TURN", 64)
    check_fused(*make(67, 4098, BF16, names="A"))


def test_words_have_the_same_bits_every_time():
    data = make(9, 8142, BF16, names="ba")
    (loss, grad), (again, grad_again) = fused(*data), fused(*data)
    assert torch.equal(loss, again)
    assert torch.equal(grad, grad_again)


def test_the_logits_of_words_are_left_alone():
    logits, target, tables = make(5, 8142, BF16)
    before = logits.clone()
    fused(logits, target, tables)
    assert torch.equal(logits, before)


@triton.jit
def read_once(words, mask):
    return tl.load(words, mask=mask, other=0)


@pytest.mark.parametrize("summing", [0, 2, 4, 5])
def test_the_losses_are_added_by_any_program(summing, monkeypatch):
    # One after another, programs cannot wait for those behind them: then only gradients are right.
    data = make(5, 4098, BF16, names="ba")
    loss, grad = fused(*data)
    plan = _words.plan_words
    place = lambda *args: plan(*args)._replace(summing=summing)  # noqa: E731
    monkeypatch.setattr(_words, "plan_words", place)
    if DEVICE == "cpu":
        monkeypatch.setattr(_triton_words, "await_words", read_once)
    moved, moved_grad = fused(*data)
    assert torch.equal(grad, moved_grad)
    if DEVICE == "cuda" or summing == 5:
        assert torch.equal(loss, moved)


def test_the_program_that_adds_waits_only_where_others_can_run():
    assert _words.plan_words(4096, 8142, 132).summing == 4096 - 2 * 4 * 132
    assert _words.plan_words(1056, 8142, 132).summing == 1056
    assert _words.plan_words(4096, 8142, 32).summing == 4096
    assert _words.plan_words(4096, 8142, 0).summing == 4096


UNSERVED = [
    # classes, dtype, what else
    (8141, BF16, {}),
    (8182, BF16, {}),  # of whose rows some start 14 places into a sector, and end behind 8192
    (8194, BF16, {}),
    (4096, BF16, {}),
    (8142, torch.float16, {}),
    (8142, torch.float32, {}),
    (8142, BF16, {"reduction": 0}),
    (8142, BF16, {"label_smoothing": 0.1}),
]


@pytest.mark.parametrize(("classes", "dtype", "options"), UNSERVED)
def test_what_words_do_not_serve(classes, dtype, options):
    assert _words.words_for(*pair(1, 3, classes, dtype=dtype), Options(**options)) is None


def pair(*shape, dtype=BF16):
    """Logits and a place for their gradient, both on 32 bytes."""
    found = [torch.empty(shape, dtype=dtype, device=DEVICE) for _ in range(2)]
    assert all(one.data_ptr() % 32 == 0 for one in found)
    return found


def test_how_rows_must_lie_for_words():
    logits, grad = pair(1, 5, 8142)
    assert _words.words_for(logits, grad, Options())[:2] == (4071, 4)
    assert _words.words_for(logits, logits, Options()) is None
    assert _words.words_for(logits[:, 1:], grad[:, 1:], Options()) is None  # off 32 bytes
    assert _words.words_for(logits[:, ::2], grad[:, ::2], Options()) is None
    assert _words.words_for(*pair(2, 16, 8142), Options()) is None  # two groups
    wide = pair(1, 3, 8192)
    assert _words.words_for(*(one[..., :8142] for one in wide), Options()) is None
    assert _words.words_for(*(one[:, :1, :8142] for one in wide), Options()) is not None


@pytest.mark.parametrize("case", ["inplace", "off 32 bytes", "apart"])
def test_the_other_kernel_takes_what_words_do_not(case):
    logits, target, tables = make(4, 8142, BF16, names="b", ignored=False)
    served = fused(logits, target, tables)
    buffer = torch.zeros(4 * 8192 + 8, dtype=BF16, device=DEVICE)
    view = buffer[8 : 8 + 4 * 8142].view(4, 8142)
    if case == "apart":
        view = buffer[:-8].view(4, 8192)[:, :8142]
    view.copy_(logits)
    leaf = (logits.clone() if case == "inplace" else view).requires_grad_()
    hidden = leaf * 1 if case == "inplace" else leaf
    with counted() as launch, torch.autocast(DEVICE, BF16):
        given = {"offset": tables.offset, "inplace": case == "inplace"}
        loss = margin_cross_entropy(hidden, target, **given)
    assert not launch.called
    (grad,) = torch.autograd.grad(loss, leaf)
    torch.testing.assert_close(loss.detach(), served[0], rtol=4e-6, atol=0)
    torch.testing.assert_close(grad.float(), served[1].float(), rtol=2**-6, atol=1e-30)


def test_logits_from_features_stay_with_the_other_kernel():
    # They become their gradient in place.
    features, weight = (torch.randn(n, 8, dtype=BF16, device=DEVICE) for n in (6, 4098))
    target = torch.arange(6, device=DEVICE) * 600
    with counted() as launch:
        loss = linear_cross_entropy(features.requires_grad_(), weight, target, impl="triton")
        loss.backward()
    assert not launch.called
