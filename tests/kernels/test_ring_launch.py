"""The kernel for wide rows: when it serves, how it cuts rows, what is launched, and its build."""

import os
import subprocess
import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

import pytest
import torch

import longtail.kernels
from longtail.kernels import _launch, _ring, cross_entropy
from longtail.kernels._launch import MEAN, NONE, SUM, Options, Tables


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
        ring = _ring._cut(rows, classes, stride, processors, unit, True)
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
        bare = _ring._cut(rows, classes, stride, processors, unit, False)
        if classes % 8 or stride % 8:
            assert bare is None or bare.registers > 96
        else:
            assert bare == ring
    assert served > 30


@pytest.mark.parametrize(
    ("rows", "classes", "stride", "unit"),
    [
        (4096, 102_400, 102_400, 64),  # on lines as they are
        (4096, 100_000, 100_000, 64),  # every second one is
        (4096, 50_257, 50_257, 16),  # 64 lanes there would be room for only with fewer slices
        (4096, 20_001, 20_001, 64),
        (4096, 99_996, 99_996, 16),  # 24 of 26 lanes; lines would leave 16
        (2048, 69_628, 69_628, 8),  # wider ones would need a slice more
    ],
)
def test_the_widest_windows_that_cost_little(rows, classes, stride, unit):
    assert _ring.plan_ring(rows, classes, stride, 132).unit == unit


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
    assert _ring.ring_for(good, good, options) == _ring.Ring(25, 26, 64, 96, 5, 4032, 64)
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
    logits, target = torch.randn(6, 203), torch.arange(6)
    for offset in (None, torch.zeros(1, 203)):
        cross_entropy.loss_and_gradient(
            logits[None], target[None], Tables(offset=offset), Options(), logits[None]
        )
    assert asked == [(False,), (True,)]


def test_what_is_launched(monkeypatch):
    """Arguments and constants, in the kernel's order, for the launch before and for this one."""
    pytest.importorskip("triton")
    logits, target = torch.randn(6, 9003).bfloat16(), torch.arange(6)
    ring = _ring.plan_ring(6, 9003, 9003, 132)
    rows = Tables(offset=torch.zeros(1, 9003), alpha=torch.ones(1, 9003))
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


BUILD = r"""
import re, subprocess, tempfile
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
    constants |= {"HAS_WEIGHT": shifted, "SHIFTED": shifted, "LEAD": classes % ring.unit != 0}
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
    # No local memory; but a number may wait there for the end of the main loop, in a word or two.
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        tool = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        used = subprocess.check_output(tool, text=True)
    stack = int(re.search(r" STACK:(\d+) ", used)[1])
    assert stack <= 8 * (has_offset or not shifted), (classes, has_offset, stack)
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
