"""The kernel for wide rows: its arithmetic and its waiting, in NumPy.

The oracle is the float64 loop of `kernel_battery`. What a GPU makes of it is in `test_gpu`, when it
serves and how it is launched and built in `test_ring_launch`.
"""

import math

import gluon_in_numpy as gluon
import kernel_battery
import numpy as np
import pytest
import torch
from kernel_battery import oracle, torch_reference

from longtail.kernels import _ring
from longtail.kernels._launch import Tables

UNTOUCHED = 0x1234  # what lies between the rows of the gradient before, and must after
KERNEL = gluon.load_kernel()


def make(*shape, **how):
    """What the battery makes, on the CPU wherever that makes it."""
    logits, target, tables = kernel_battery.make(*shape, **how)
    tables = Tables(*(None if table is None else table.cpu() for table in tables))
    return logits.cpu(), target.cpu(), tables


def run(logits, target, tables, *, stride=None, reduction="mean", inplace=False, block=64, **how):
    """Loss and gradient from the kernel, with small slices and 8 or 16 lanes."""
    n, classes = logits.shape
    stride = stride or classes
    lanes = how.pop("lanes", 8)
    unit = how.pop("unit", 8)
    step = math.gcd(stride, unit)
    slices = -(-(classes + unit - step) // block)
    size = -(-n * stride // 8) * 8  # a 16-byte word may be read to its end
    x = np.full(size, gluon.to_bfloat16(np.float32(math.nan)))
    rows = [slice(k * stride, k * stride + classes) for k in range(n)]
    for place, row in zip(rows, logits.view(torch.uint16).numpy(), strict=True):
        x[place] = row
    grad = x if inplace else np.full(size, UNTOUCHED, np.uint16)
    before = x.copy()
    y = target.numpy()
    w = np.ones(classes) if tables.weight is None else tables.weight.numpy()
    totals = np.zeros(4, np.float32)
    totals[1] = w[np.clip(y, 0, classes - 1)][y != -100].sum()
    words, loss = np.full(_ring.MOST_LANES, -1, np.int32), np.full(1, math.nan, np.float32)
    parts, sums = np.full(n * slices, -1, np.int64), np.full(n, -1, np.int64)
    given = [totals if table is None else table.numpy() for table in tables]
    arrays = (y, *given, totals, words, parts, sums, loss)
    pointers = [gluon.Pointer(array, gluon.BFLOAT16) for array in (x, grad)]
    pointers += [gluon.Pointer(array, array.dtype) for array in arrays]
    width = how.pop("width", -(-(classes + unit - step) // (unit * slices)) * unit)
    numbers = (n, classes, stride, slices, width, unit, lanes, -100)
    names = ("HAS_OFFSET", "HAS_POSITIVE", "HAS_ALPHA", "HAS_WEIGHT")
    constants = {
        "MEAN": reduction == "mean",
        **{name: table is not None for name, table in zip(names, tables, strict=True)},
        "LEAD": stride % unit != 0,
        "SHIFTED": classes % 8 != 0 or stride % 8 != 0,
        "TOTALS": 4,
        "PART": 1 << (slices - 1).bit_length(),
        "LABELS": max(1 << (-(-n // lanes) - 1).bit_length(), 4),
        "BLOCK": block,
        "SLOTS": how.pop("slots", 6),
        "num_warps": 4,
    }
    args = (*pointers, *(gluon.Value(np.int32(number)) for number in numbers))
    gluon.launch(KERNEL.ring_kernel, lanes * slices, args, constants, **how)
    between = np.ones(size, bool)
    for place in rows:
        between[place] = False
    assert np.array_equal(grad[between], (before if inplace else grad * 0 + UNTOUCHED)[between])
    assert inplace or np.array_equal(x, before)
    found = torch.stack([torch.from_numpy(gluon.from_bfloat16(grad[place])) for place in rows])
    return torch.tensor(float(loss[0])), found


def check(logits, target, tables, *, reduction="mean", **how):
    f = logits.double().requires_grad_()
    exact = oracle(f, target, tables, reduction=reduction)
    (expected,) = torch.autograd.grad(exact, f)
    loss, grad = run(logits, target, tables, reduction=reduction, **how)
    torch.testing.assert_close(loss.double(), exact.detach(), rtol=3e-6, atol=1e-9)
    torch.testing.assert_close(grad.double(), expected, rtol=2**-8, atol=1e-30)


CASES = [
    # rows, classes, stride, tables, how
    (21, 200, 200, "b", {}),
    (37, 203, 203, "baAw", {}),
    (24, 301, 301, "", {"reduction": "sum"}),
    (19, 203, 208, "bA", {"reduction": "sum"}),
    (40, 204, 204, "aw", {"block": 128, "lanes": 16, "slots": 5}),
    (75, 203, 203, "bA", {"slots": 5}),
    (3, 190, 190, "baA", {}),
    (1, 131, 131, "b", {}),
    (33, 513, 520, "baAw", {"block": 128}),
    (17, 256, 256, "ba", {}),
    (17, 256, 256, "ba", {"width": 64}),
    (29, 203, 203, "baAw", {"width": 64}),
    (37, 203, 203, "baAw", {"unit": 16, "lanes": 16}),
    (29, 200, 204, "bA", {"unit": 16, "lanes": 12}),
    (29, 200, 200, "ba", {"unit": 16}),
    (37, 395, 395, "ba", {"unit": 64, "lanes": 64, "block": 128}),
    (21, 416, 416, "ba", {"unit": 64, "block": 128}),
]


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(("n", "classes", "stride", "names", "how"), CASES)
def test_equals_float64(n, classes, stride, names, how, inplace):
    logits, target, tables = make(n, classes, torch.bfloat16, names=names, spread=3.0)
    target[2:5] = torch.tensor([0, classes - 1, classes - 2])[: max(n - 2, 0)]
    check(logits, target, tables, stride=stride, inplace=inplace, **how)


@pytest.mark.parametrize("seed", range(3))
def test_any_level_and_one_giant_competitor(seed):
    logits, target, tables = make(40, 203, torch.bfloat16, names="ba", seed=seed)
    rng = torch.Generator().manual_seed(seed)
    for row in range(0, 40, 2):
        logits[row] += 300 * torch.randn((), generator=rng)
    logits[5, 77] += 500
    logits[torch.arange(7, 12), target[7:12]] += 60
    check(logits, target, tables, seed=seed, inplace=True)


@pytest.mark.parametrize("level", [1e5, -1e6, 1e30])
def test_a_row_far_off_does_no_harm_to_others(level):
    # Its maximum must not stay in the offset, whose digits would be lost.
    logits, target, tables = make(40, 203, torch.bfloat16, names="ba", ignored=False)
    f = logits.double().requires_grad_()
    (expected,) = torch.autograd.grad(oracle(f, target, tables), f)
    far = torch.arange(40) % 9 == 3
    logits[far] += level
    _, grad = run(logits, target, tables)
    torch.testing.assert_close(grad[~far].double(), expected[~far], rtol=2**-8, atol=1e-30)


@pytest.mark.parametrize("level", [-60.0, -12.0, 0.0, 25.0, 100.0])
def test_rows_of_one_level_go_the_usual_way(level, monkeypatch):
    # The other way is slower, and right too: no comparison of results would tell.
    logits, target, tables = make(80, 203, torch.bfloat16, names="baA", ignored=False)
    logits += level
    found, usual = [], KERNEL.usual
    monkeypatch.setattr(KERNEL, "usual", lambda *sums: found.append(usual(*sums)) or found[-1])
    check(logits, target, tables)
    # Of 10 rows of a lane the first ones may have to find the level; two turns have no row.
    assert len(found) == 8 * 4 * 12
    assert sum(map(bool, found)) >= 8 * 4 * 6
    found.clear()
    tables.alpha[:] = -1.0
    check(logits, target, tables)
    assert not any(found)


@pytest.mark.parametrize("resident", [4, 7, 25])
def test_programs_get_on_when_few_run_at_once(resident):
    # Slices of a row are 4 here: with fewer than these nobody could.
    logits, target, tables = make(45, 200, torch.bfloat16, names="ba")
    for seed in range(3):
        check(logits, target, tables, resident=resident, seed=seed, inplace=True)
    with pytest.raises(AssertionError, match="for ever"):
        check(logits, target, tables, resident=3, patience=20_000)


def test_no_mistake_where_rows_do_not_count():
    # Rows share words with their neighbours, whose NaN and infinities must stay theirs.
    logits, target, tables = make(21, 203, torch.bfloat16, names="ba", ignored=False)
    target[[3, 4, 20]] = -100
    expected = oracle(logits, target, tables)
    logits[3], logits[4], logits[20] = math.nan, math.inf, -math.inf
    loss, grad = run(logits, target, tables)
    assert loss.item() == pytest.approx(expected.item(), rel=3e-6)
    assert grad[[3, 4, 20]].eq(0).all()
    assert grad.isfinite().all()


@pytest.mark.parametrize("at", [0, 77, 202])
def test_a_nan_shows_in_its_row_and_in_the_loss(at):
    logits, target, tables = make(21, 203, torch.bfloat16, names="ba", ignored=False)
    target[6] = 5
    tables.offset[77] = -math.inf
    logits[6, at] = math.nan
    loss, grad = run(logits, target, tables)
    assert loss.isnan()
    assert grad.isnan().any(1).nonzero().flatten().tolist() == [6]


@pytest.mark.parametrize("at", [0, 77, 202, [40, 150]])
@pytest.mark.parametrize("level", [0.0, 400.0])  # of the other slices, beside which 2^0 is nothing
@pytest.mark.parametrize("own", [1.0, -math.inf])
def test_an_infinite_competitor_is_torchs(at, level, own):
    logits, target, tables = make(21, 203, torch.bfloat16, names="baA", ignored=False)
    tables.alpha[9] *= -1
    target[6], target[13] = 5, 9
    _, before = run(logits, target, tables, reduction="sum")
    rows = torch.tensor([6, 13])
    logits[rows] += level
    logits[rows, target[rows]] = own
    for row in rows:
        logits[row, at] = math.inf
    f, expected = torch_reference(logits, target, tables, reduction="sum")
    expected.backward()
    loss, grad = run(logits, target, tables, reduction="sum")
    others = torch.ones(21, dtype=torch.bool)
    others[rows] = False
    torch.testing.assert_close(grad[others], before[others], rtol=2**-6, atol=1e-30)
    pulls = tables.alpha[target[rows]].bfloat16().float()
    assert torch.equal(-f.grad[rows, target[rows]].bfloat16().float(), pulls)
    torch.testing.assert_close(grad[rows], f.grad[rows], rtol=2**-7, atol=0, equal_nan=True)
    torch.testing.assert_close(loss, expected.detach(), equal_nan=True)  # inf less inf, too


def test_an_infinite_competitor_makes_the_loss_infinite():
    logits, target, tables = make(21, 203, torch.bfloat16, names="ba", ignored=False)
    logits += 400.0
    logits[6, (target[6] + 1) % 203] = math.inf
    assert run(logits, target, tables)[0] == math.inf


def test_labels_that_cannot_be_the_ignored_one():
    # Of one byte, −100 is 156, a class: places for 32 rows must not make labels of it, but for 21.
    logits, target, tables = make(21, 203, torch.bfloat16, names="baAw", ignored=False)
    check(logits, target.byte(), tables)


def test_a_label_that_is_no_class_shows():
    # On a GPU an assertion ends the process before.
    logits, target, tables = make(21, 203, torch.bfloat16, names="ba", ignored=False)
    target[2] = 203
    loss, grad = run(logits, target, tables)
    assert loss.isnan()
    assert grad.isnan().any(1).nonzero().flatten().tolist() == [2]


def test_infinite_offsets_take_classes_out():
    logits, target, tables = make(21, 203, torch.bfloat16, names="ba")
    tables.offset[3:140] = -math.inf  # a whole slice and more
    check(logits, target, tables)
    logits[:11].scatter_(1, target[:11, None].clamp_min(0), -200.0)
    loss, grad = run(logits, target, tables._replace(offset=torch.full((203,), -math.inf)))
    assert loss == 0
    assert grad.eq(0).all()


def test_a_slice_without_competitors_is_not_read_again(monkeypatch):
    # Right either way, but many times slower if every row of it is.
    logits, target, tables = make(80, 203, torch.bfloat16, names="ba", ignored=False)
    logits += 60.0  # so the others' first rows are read again, and tell that this counts
    tables.offset[45:115] = -math.inf  # the second of four slices: columns 49 to 111 at most
    found, exact = [], KERNEL.exact_sum

    def noted(cuts, slot, offset, first, *rest):
        found.append(int(first))
        return exact(cuts, slot, offset, first, *rest)

    monkeypatch.setattr(KERNEL, "exact_sum", noted)
    check(logits, target, tables)
    assert set(found) == {0, 64, 96}  # places in pairs, 32 to a slice
    assert len(found) <= 3 * 8 * 3  # of 12 turns, those that had to find the level


def test_all_ignored_or_without_weight():
    logits, _, tables = make(10, 203, torch.bfloat16, names="bA")
    target = torch.full((10,), -100)
    loss, grad = run(logits, target, tables)
    assert loss.isnan()  # 0/0, as torch has it
    assert grad.eq(0).all()
    assert run(logits, target, tables, reduction="sum")[0] == 0
    target[:] = 7
    loss, grad = run(logits, target, tables._replace(weight=torch.zeros(203)))
    assert loss.isnan()
    assert grad.eq(0).all()


def test_zero_and_negative_factors():
    logits, target, tables = make(21, 203, torch.bfloat16, names="bAw")
    tables.alpha[::3] = 0
    tables.alpha[1::3] *= -1
    check(logits, target.int(), tables)


def test_same_bits_in_any_order():
    logits, target, tables = make(37, 203, torch.bfloat16, names="baAw")
    first = run(logits, target, tables, seed=0)
    for seed in (1, 2):
        found = run(logits, target, tables, seed=seed)
        assert torch.equal(found[0], first[0])
        assert torch.equal(found[1], first[1])
