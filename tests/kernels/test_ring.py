"""The kernel for wide rows: its arithmetic and its waiting in NumPy, its launch's rules, its build.

The oracle is the float64 loop of `kernel_battery`. What a GPU makes of it is in `test_gpu`.
"""

import math
import os
import subprocess
import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

import gluon_in_numpy as gluon
import kernel_battery
import numpy as np
import pytest
import torch
from kernel_battery import oracle, torch_reference

import longtail.kernels
from longtail.kernels import _launch, _ring, cross_entropy
from longtail.kernels._launch import MEAN, NONE, SUM, Options, Tables

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


@pytest.mark.parametrize(
    ("processors", "unit"), [(24, 8), (132, 8), (148, 8), (132, 16), (132, 64)]
)
def test_the_cut_of_any_shape(processors, unit):
    rng = torch.Generator().manual_seed(0)
    served = 0
    for _ in range(300):
        rows, classes = (int(2 ** (k * torch.rand((), generator=rng))) for k in (16, 20))
        stride = classes + int(torch.randint(9, (), generator=rng))
        stride = -(-stride // 64) * 64 if rows % 4 == 0 else stride
        ring = _ring.plan_ring(rows, classes, stride, processors, unit)
        if ring is None:
            continue
        served += 1
        # All of a row for every place it may start at, and its programs at the same time.
        starts = {k * stride % unit for k in range(unit)}
        assert (ring.slices - 1) * _ring.BLOCK < max(starts) + classes
        assert (ring.slices - 1) * ring.width <= classes
        assert max(starts) + classes <= ring.slices * ring.width
        assert ring.width <= _ring.BLOCK
        # A slice starts on as much as all windows do: a line, where rows lie on lines.
        assert ring.width % unit == 0
        assert stride % 64 or ring.width % 64 == 0
        assert 2 * ring.slices <= processors
        # All rows of a lane start at the same place, and there is room for their labels.
        assert ring.lanes * stride % unit == 0
        assert ring.unit == unit
        assert ring.lanes <= _ring.MOST_LANES
        assert ring.labels * ring.lanes >= rows
        assert rows * ring.slices < 2**31  # counted in 32 bits
        assert 2 * 16 * 32 * _ring.WARPS == _ring.BLOCK  # `PAIRS` of a thread in the kernel
        # All run at once on an H200: a multiprocessor has 65536 registers, and 228 KiB of shared
        # memory, of which one goes with every program.
        each = -(-ring.lanes * ring.slices // processors)
        assert each <= 5
        assert each * (ring.slots * _ring.BLOCK * 2 + 12 * ring.labels + 2048) <= 228 * 1024
        assert each * 32 * _ring.WARPS * ring.registers <= 65536
        # Without an offset, shifted rows have more registers; nothing else changes for others.
        bare = _ring.plan_ring(rows, classes, stride, processors, unit, has_offset=False)
        if classes % 8 or stride % 8:
            assert bare is None or bare.registers > 96
        else:
            assert bare == ring
    assert served > 30


def logits_like(**changes):
    """Something that answers `ring_for`'s questions as logits on a GPU would."""
    facts = {"shape": (1, 256, 100_000), "dtype": torch.bfloat16, "at": 0, "distance": 100_000}
    facts |= {"device": torch.device("cuda:0"), **changes}
    return SimpleNamespace(
        shape=facts["shape"],
        dtype=facts["dtype"],
        device=facts["device"],
        data_ptr=lambda: facts["at"],
        stride=lambda dim: facts["distance"],
        element_size=lambda: facts["dtype"].itemsize,
    )


def test_when_the_kernel_serves(monkeypatch):
    monkeypatch.setattr(_launch, "_processors", lambda index: 132)
    monkeypatch.setattr(_launch, "_chains", lambda index: True)
    monkeypatch.setattr(_ring, "_has_gluon", lambda: True)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    good, options = logits_like(), Options()
    assert _ring.ring_for(good, good, options) == _ring.Ring(25, 26, 64, 96, 5, 4000)
    assert _ring.ring_for(good, good, options._replace(reduction=SUM)) is not None
    assert _ring.ring_for(logits_like(shape=(1, 130, 100_000)), good, options) is not None
    assert _ring.ring_for(good, good, options, False) == _ring.ring_for(good, good, options)
    odd = logits_like(shape=(1, 256, 99_999), distance=99_999)
    assert [_ring.ring_for(odd, odd, options, has).registers for has in (True, False)] == [96, 128]
    for changes in (
        {"shape": (1, 256, 8142)},
        {"shape": (2, 256, 100_000)},
        {"shape": (1, 256, 600_000)},
        {"shape": (1, 50_000, 100_000)},
        {"shape": (1, 129, 100_000)},  # 26 lanes: fewer than five rows for some of them
        {"shape": (1, 64, 100_000)},
        {"shape": (1, 1, 100_000)},
        {"dtype": torch.float32},
        {"dtype": torch.float16},
        {"at": 8},
        {"device": torch.device("cpu")},
    ):
        assert _ring.ring_for(logits_like(**changes), good, options) is None
    assert _ring.ring_for(good, logits_like(at=2), options) is None
    assert _ring.ring_for(good, logits_like(distance=100_008), options) is None
    for change in ({"scale": 2.0}, {"reduction": NONE}, {"label_smoothing": 0.1}):
        assert _ring.ring_for(good, good, options._replace(**change)) is None
    for where, name, fact in (
        (_launch, "_chains", lambda index: False),
        (_ring, "_has_gluon", lambda: False),
        (_ring, "interpreted", lambda: True),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, fact)
            assert _ring.ring_for(good, good, options) is None


@pytest.mark.parametrize(
    ("version", "error", "known"),
    [
        ("3.7.1", None, True),
        ("3.6.0+git1234", None, True),
        ("3.7.1", ImportError, False),
        ("3.7.1", AttributeError, False),
        ("3.7.1", TypeError, False),
        ("3.7.1", RuntimeError, False),
        ("3.8.0", "not imported", False),
        ("3.8rc1", "not imported", False),
        ("main", "not imported", False),
    ],
)
def test_versions_of_gluon(version, error, known, monkeypatch):
    imported = []

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "longtail.kernels._triton_ring":
                imported.append(name)
                raise error

    ring = ModuleType("longtail.kernels._triton_ring")
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__=version))
    monkeypatch.setattr(longtail.kernels, "_triton_ring", ring, raising=False)
    if error is not None:
        monkeypatch.delattr(longtail.kernels, "_triton_ring")
        monkeypatch.delitem(sys.modules, ring.__name__, raising=False)
        monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    assert _ring._has_gluon.__wrapped__() == known
    assert bool(imported) == isinstance(error, type)


def test_the_call_says_whether_there_is_an_offset(monkeypatch):
    asked = []
    monkeypatch.setattr(_ring, "ring_for", lambda *given: asked.append(given[3:]))
    monkeypatch.setattr(_launch, "launch", lambda *args, **how: None)
    logits, target, tables = make(6, 203, torch.float32, names="b")
    for offset in (None, tables.offset[None]):
        cross_entropy.loss_and_gradient(
            logits[None], target[None], Tables(offset=offset), Options(), logits[None]
        )
    assert asked == [(False,), (True,)]


def test_what_is_launched(monkeypatch):
    """Arguments and constants, in the kernel's order, for the launch before and for this one."""
    pytest.importorskip("triton")
    logits, target, tables = make(6, 9003, torch.bfloat16, names="bA")
    ring = _ring.plan_ring(6, 9003, 9003, 132)
    rows = Tables(*(None if table is None else table[None] for table in tables))
    grad, loss, runs = torch.empty_like(logits)[None], torch.empty(1), []
    for module in (_launch, _ring):
        monkeypatch.setattr(module, "_run", lambda *args, **how: runs.append((args, how)))
    _ring.launch(
        ring, logits[None], target[None], rows, Options(reduction=MEAN), grad=grad, loss=loss
    )
    (_, _, before, _), (kernel, grid, args, constants) = (found for found, _ in runs)
    names = kernel.arg_names
    assert list(constants) == names[len(args) :]
    assert grid == (ring.lanes * ring.slices,)
    named = dict(zip(names, args, strict=False))
    assert named["parts"].numel() == 6 * ring.slices
    assert named["sums"].numel() == 6
    assert named["words"].numel() == before[8]
    assert all(named[name].data_ptr() % 16 == 0 for name in ("words", "sums", "parts"))
    assert (named["stride"], named["n_rows"], named["lanes"]) == (9003, 6, ring.lanes)
    assert constants["SHIFTED"]
    assert not constants["HAS_WEIGHT"]


BUILD = """
import subprocess, tempfile
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from longtail.kernels import _ring
from longtail.kernels._triton_ring import ring_kernel
numbers = "n_rows n_classes stride n_slices width unit lanes ignore_index"
kinds = dict.fromkeys(numbers.split(), "i32")
kinds |= dict.fromkeys("offset positive alpha weight totals loss".split(), "*fp32")
kinds |= {"logits": "*bf16", "grad": "*bf16", "target": "*i64"}
kinds |= {"words": "*i32", "parts": "*i64", "sums": "*i64"}
# As they are launched, in 49 slices and in 25.
calls = [(classes, True) for classes in (200_000, 200_001, 100_000, 99_999)]
for classes, has_offset in [*calls, (100_000, False), (99_999, False)]:
    ring = _ring.plan_ring(4096, classes, classes, 132, has_offset=has_offset)
    shifted, registers, slots, labels = classes % 8 != 0, ring.registers, ring.slots, ring.labels
    constants = dict.fromkeys(("MEAN", "HAS_POSITIVE", "HAS_ALPHA"), True)
    constants["HAS_OFFSET"] = has_offset
    constants |= dict.fromkeys(("HAS_WEIGHT", "LEAD", "SHIFTED"), shifted)
    constants |= {"TOTALS": 4, "PART": 1 << (ring.slices - 1).bit_length()}
    constants |= {"LABELS": labels, "BLOCK": 4096, "SLOTS": slots, "num_warps": 4}
    names = ring_kernel.arg_names
    source = GluonASTSource(
        fn=ring_kernel,
        signature={n: "constexpr" if n in constants else kinds[n] for n in names},
        constexprs={(names.index(n),): value for n, value in constants.items()},
        attrs={(k,): [["tt.divisibility", 16]] for k, n in enumerate(names[:12])},
    )
    options = {"num_warps": 4, "maxnreg": registers, "launch_pdl": True}
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    # As many to a multiprocessor as its registers allow, each with a KiB of shared memory more.
    assert 65536 // (128 * registers) * (built.metadata.shared + 1024) <= 228 * 1024
    text = built.asm["ptx"]
    # The ring is where the assembly takes it to be: what else is in shared memory lies behind it.
    start = slots * 4096 * 2 + 32
    assert all(f"+{start + k * labels * 4}]" in text for k in range(3))
    # Whole words go in and out, and the launch before is waited for before its words are read.
    assert text.count("cp.async.cg.shared.global") == 4 * (slots - 2)
    assert "st.global.v4.b32" in text
    assert text.index("griddepcontrol.wait") < text.index("ld.volatile")
    # Nothing is kept in local memory.
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        tool = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        assert " STACK:0 " in subprocess.check_output(tool, text=True), (classes, has_offset)
    print("built")
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_builds_for_a_gpu_that_is_not_there():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BUILD],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("built") == 6
