"""Every kernel between forbidden pages: none may touch what is not its own.

Not collected by its name: `test_interpreted` runs it in a process of its own, which a kernel that
leaves its tensors ends, in the case that was named last. That results are right is for the other
batteries; here shapes, types and options go through every way that addresses are made.
"""

import faulthandler
import importlib
import os
import pkgutil
import resource
import signal

import conv_battery
import kernel_battery
import norm_battery
import pytest
import torch
import triton
import triton.language as tl
from guarded_memory import guarded

import longtail.kernels
from longtail.kernels import (
    _launch,
    _triton_parts,
    cross_entropy,
    grouped_conv,
    linear_cross_entropy,
    norm_act,
)
from longtail.kernels._launch import BACKWARD, FORWARD, FUSED, Options, Tables, Tiles
from longtail.kernels.cross_entropy import margin_cross_entropy

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
SEEN: set[str] = set()
UNGUARDED = _launch._run


@pytest.fixture(params=["end", "start"], autouse=True)
def guards(request):
    """Around each case, once with tensors up to a guard, once with tensors behind one."""
    with guarded(end=request.param == "end") as seen:
        yield
    SEEN.update(seen)


def named(case):
    """A case as pytest prints it before it runs."""
    parts = case if isinstance(case, tuple) else (case,)
    return "-".join(str(part).removeprefix("torch.").replace(" ", "") for part in parts)


def placed(cases, *, every):
    """All cases up to a guard; behind one, only some: first rows differ less than last ones."""
    pairs = [("end", case) for case in cases] + [("start", case) for case in cases[::every]]
    return pytest.mark.parametrize(("guards", "case"), pairs, indirect=["guards"], ids=named)


def labels(n, classes, *, ignored=True):
    """The first class, the last one, some between, one row that does not count."""
    target = torch.arange(n) * 7 % classes
    target[-1] = classes - 1
    if ignored and n > 2:
        target[1] = -100
    return target


def run(logits, target, tables, **options):
    """Loss and gradient; a gradient other than 1 comes in, which `scale_kernel` multiplies by."""
    f = logits.detach().requires_grad_()
    (2 * margin_cross_entropy(f, target, **tables._asdict(), **options).sum()).backward()


# Up to 40 classes, each number: every start of a row in its 16 bytes, every end.
SWEEP = [(33 if classes % 8 == 5 else 3, classes, F32) for classes in range(1, 41)]
SWEEP += [(33 if classes % 8 == 3 else 3, classes, BF16) for classes in range(1, 41)]
SWEEP += [(1, classes, dtype) for classes in (1, 5, 16, 37) for dtype in (F32, BF16)]
SWEEP += [(3, classes, dtype) for classes in (1203, 1204, 8143) for dtype in (F32, BF16)]
SWEEP += [(1, 20_001, F32), (1, 20_001, BF16)]


@placed(SWEEP, every=4)
def test_offset(case):
    n, classes, dtype = case
    logits, _, tables = kernel_battery.make(n, classes, dtype, names="b")
    run(logits, labels(n, classes), tables)


# Rows that start anywhere in a sector, or at its start; in three parts and in four.
WORDS = [(9, 8142, "b"), (9, 4098, "baAw"), (1, 4098, ""), (2, 8192, "b"), (3, 6140, "w")]


@pytest.mark.parametrize("case", WORDS, ids=named)
def test_words(case):
    n, classes, names = case
    logits, _, tables = kernel_battery.make(n, classes, BF16, names=names)
    run(logits, labels(n, classes), tables)


OPTIONS = [
    # rows, classes, dtype, tables, options
    (3, 5, F32, "", {}),
    (3, 37, BF16, "", {"scale": 2.0}),
    (3, 5, F32, "baAw", {"reduction": "none"}),
    (33, 11, BF16, "baAw", {"reduction": "none", "scale": 0.5}),
    (3, 16, F16, "w", {"reduction": "sum"}),
    (1, 1, F32, "baAw", {"reduction": "none"}),
    (1, 13, BF16, "bw", {"reduction": "none"}),
    (3, 9, BF16, "aA", {"reduction": "sum"}),
    (3, 7, F32, "baAw", {"ignore_index": 6}),
    (3, 1204, F32, "baAw", {"reduction": "none", "scale": 2.0}),
    (1025, 2, F32, "bw", {"reduction": "sum"}),  # the mean's denominator in parts
    (3, 4098, BF16, "baAw", {"scale": 2.0}),
    (2, 8142, BF16, "", {"reduction": "sum"}),
    (2, 8142, BF16, "aw", {"ignore_index": 6}),
    (1, 1, F32, "baAw", {"label_smoothing": 0.1}),
    (3, 5, BF16, "baAw", {"label_smoothing": 0.1, "reduction": "none"}),
    (1, 33, F16, "b", {"label_smoothing": 1.0, "reduction": "sum"}),
    (3, 37, F32, "", {"label_smoothing": 0.1}),
    (2, 4100, F32, "baAw", {"label_smoothing": 0.1}),  # wider than a block
    *((3, classes, F16, "b", {}) for classes in (1, 7, 8, 9, 15, 31, 1203)),
]


@placed(OPTIONS, every=2)
def test_options(case):
    n, classes, dtype, names, options = case
    logits, _, tables = kernel_battery.make(n, classes, dtype, names=names)
    target = labels(n, classes, ignored="ignore_index" not in options)
    run(logits, target.int() if classes == 5 else target, tables, **options)


APART = [
    # dtype, where rows start in their buffer's, label smoothing: on 16 bytes, and off them
    (F32, 0, 0.0),
    (F32, 1, 0.0),
    (BF16, 8, 0.0),
    (BF16, 3, 0.0),
    (F32, 1, 0.1),
]


@pytest.mark.parametrize("case", APART, ids=named)
def test_rows_apart(case):
    dtype, first, epsilon = case
    wide = torch.randn(5, 24, dtype=dtype)
    _, _, tables = kernel_battery.make(5, 11, dtype, names="bw")
    run(wide[:, first : first + 11], labels(5, 11), tables, label_smoothing=epsilon)


@pytest.mark.parametrize(("classes", "dtype"), [(29, F32), (29, BF16), (4098, BF16)], ids=named)
def test_far_from_zero(classes, dtype):
    # The guessed maximum is no good: the tile, or the row, is read again.
    logits, _, tables = kernel_battery.make(3, classes, dtype, names="b")
    logits[:, 25] += 3e4
    run(logits, labels(3, classes), tables)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=named)
def test_in_place(dtype):
    logits, _, tables = kernel_battery.make(3, 13, dtype, names="ba")
    hidden = logits.requires_grad_() * 2
    margin_cross_entropy(hidden, labels(3, 13), **tables._asdict(), inplace=True).backward()


@triton.jit
def read_once(words, mask):
    return tl.load(words, mask=mask, other=0)


SPLIT = [
    # tiles, launches, reduction
    (Tiles(1, 64, 3, 1), "forward-backward", "mean"),
    (Tiles(1, 64, 3, 1), "fused", "mean"),
    (Tiles(1, 64, 3, 1, looped=1), "fused", "mean"),
    (Tiles(1, 64, 3, 1, looped=1), "forward-backward", "none"),
    (Tiles(2, 64, 3, 1), "forward-backward", "none"),
]


@pytest.mark.parametrize("case", SPLIT, ids=named)
def test_rows_split_over_programs(case, monkeypatch):
    # Fused, programs wait for each other, which here would take for ever: they read on instead.
    monkeypatch.setattr(_triton_parts, "await_words", read_once)
    tiles, launches, reduction = case
    modes = (FUSED,) if launches == "fused" else (FORWARD, BACKWARD)
    launch_tiles(tiles, 2, 131, modes, reduction)


@pytest.mark.parametrize("guards", ["end"], indirect=True)
def test_more_tiles_than_one_program_adds():
    launch_tiles(Tiles(1, 16, 1, 1), _launch.HERD + 1, 5, (FORWARD,), "mean")


def launch_tiles(tiles, n, classes, modes, reduction):
    logits, _, tables = kernel_battery.make(n, classes, BF16, names="baAw")
    rows = Tables(*(table.unsqueeze(0) for table in tables))
    loss = torch.empty((1, n) if reduction == "none" else (1,))
    given = {"loss": loss, "stats": torch.empty(1, 3, n), "grad": torch.empty_like(logits)[None]}
    options = Options(reduction=("none", "mean").index(reduction))
    for mode in modes:
        _launch.launch(
            mode, logits[None], labels(n, classes)[None], rows, options, tiles=tiles,
            upstream=torch.ones_like(loss), **given,
        )  # fmt: skip


GROUPS = [
    # classes, dtype, sets of tables, label smoothing
    (5, F32, 2, 0.0),
    (13, BF16, 2, 0.0),
    (7, F32, 1, 0.0),
    (6, BF16, 2, 0.1),
]


@pytest.mark.parametrize("case", GROUPS, ids=named)
def test_groups(case):
    # What a batch under `torch.func.vmap` becomes.
    classes, dtype, sets, epsilon = case
    tables = [torch.rand(sets, classes) for _ in range(4)]
    logits = torch.randn(2, 3, classes, dtype=dtype)
    given = (logits, torch.stack([labels(3, classes)] * 2), *tables, 1.0, -100, epsilon, 1)
    loss, stats = torch.ops.longtail.margin_cross_entropy(*given)
    torch.ops.longtail.margin_cross_entropy_backward(loss, stats, *given)


@pytest.mark.parametrize(("size", "dtype"), [(1, F32), (4095, BF16), (8193, F32)], ids=named)
def test_scale(size, dtype):
    cross_entropy.times(torch.ones(size, dtype=dtype), torch.tensor(3.0), once=True)


LINEAR = [
    # classes, dtype, reduction, label smoothing, whether gradients are wanted; chunks of 4 rows
    (5, F32, "mean", 0.0, True),
    (37, BF16, "mean", 0.0, True),
    (13, F16, "mean", 0.0, True),
    (9, F32, "none", 0.0, True),
    (11, BF16, "none", 0.1, True),
    (16, BF16, "sum", 0.1, True),
    (6, F32, "mean", 0.0, False),
    (7, BF16, "sum", 0.1, False),
]


@pytest.mark.parametrize("case", LINEAR, ids=named)
def test_linear(case):
    classes, dtype, reduction, epsilon, learns = case
    shapes = ((7, 3), (classes, 3), (classes,))
    features, weight, bias = (torch.randn(shape, dtype=dtype) for shape in shapes)
    loss = linear_cross_entropy.linear_cross_entropy(
        features.requires_grad_(learns), weight.requires_grad_(learns), labels(7, classes),
        bias=bias.requires_grad_(learns), class_weight=torch.rand(classes),
        label_smoothing=epsilon, reduction=reduction, impl="triton",
        chunk_bytes=4 * classes * features.element_size(),
    )  # fmt: skip
    if learns:
        loss.sum().backward()


NORM = [
    # shape, dtype, residual, ReLU, two readers
    ((2, 1), F32, False, True, False),
    ((3, 7), F32, True, True, True),
    ((5, 65), BF16, True, False, False),
    ((3, 8, 1, 3), BF16, False, False, True),
    ((2, 5, 3, 3), F32, False, True, False),
    ((3, 100, 2, 3), BF16, True, True, True),
    ((12, 16, 5, 7), BF16, True, True, False),  # several parts
]


@pytest.mark.parametrize("case", NORM, ids=named)
def test_norm_act(case):
    shape, dtype, residual, relu, fork = case
    x, w, b, r, *ups = norm_battery.make(shape, dtype, residual=residual)
    leaves = [leaf.requires_grad_() for leaf in (x, w, b, r) if leaf is not None]
    running = torch.rand(2, shape[1]) if fork else (None, None)
    call = norm_act.norm_act_fork if fork else norm_act.norm_act
    y = call(x, w, b, *running, residual=r, relu=relu, training=True)
    torch.autograd.grad(y, leaves, ups if fork else ups[0])


CONV = [
    # (batch, channels in, height, width), channels out, networks, stride
    ((1, 3, 5, 6), 32, 2, 1),
    ((2, 16, 5, 7), 32, 2, 2),
    ((2, 16, 6, 4), 64, 1, 2),
    ((3, 32, 3, 5), 16, 1, 1),
    ((2, 32, 5, 5), 64, 2, 2),
    ((1, 64, 1, 1), 16, 1, 2),
    ((1, 64, 13, 11), 64, 1, 1),  # several tiles
]


@pytest.mark.parametrize("case", CONV, ids=named)
def test_grouped_conv(case):
    shape, outer, groups, stride = case
    x, weight, up = conv_battery.make(shape, outer, groups=groups, stride=stride)
    leaves = [leaf.requires_grad_() for leaf in (x, weight)]
    y, _ = grouped_conv.grouped_conv(x, weight, stride=stride, groups=groups)
    torch.autograd.grad(y, leaves, up)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=named)
@pytest.mark.parametrize("shape", [(1, 2, 1, 1), (3, 12, 5, 4), (2, 32, 6, 7)], ids=named)
def test_shortcut(shape, dtype):
    x = torch.randn(shape).to(dtype, memory_format=torch.channels_last).requires_grad_()
    y = grouped_conv.pad_shortcut(x, groups=1 if shape[1] == 2 else 2)
    torch.autograd.grad(y, x, torch.ones_like(y))


SPOILED = [
    # guards, what is wrong in the layout, label smoothing
    ("end", {"pitch": 32}, 0.0),  # of copies from which a guess at the maximum reads 36 columns
    ("start", {"stride": -1}, 0.1),  # the second row starts before the first
]


@pytest.mark.parametrize(("guards", "spoiled", "epsilon"), SPOILED, indirect=["guards"], ids=named)
def test_the_guards_see_what_else_goes_unnoticed(guards, spoiled, epsilon, monkeypatch):
    logits, _, tables = kernel_battery.make(3, 5, F32, names="b")
    given = (logits, labels(3, 5), *(None if t is None else t[None] for t in tables))

    def losses():
        f, y, *rows = given
        options = (1.0, -100, epsilon, 0)
        return torch.ops.longtail.margin_cross_entropy(f[None], y[None], *rows, *options)[0]

    found = losses()
    with monkeypatch.context() as patch:
        patch.setattr(_launch, "_run", UNGUARDED)
        assert torch.equal(losses(), found)
    right = _launch.layout_of
    monkeypatch.setattr(_launch, "layout_of", lambda *args: right(*args)._replace(**spoiled))
    assert ending_of(losses) == -signal.SIGSEGV
    monkeypatch.setattr(_launch, "_run", UNGUARDED)
    assert ending_of(losses) == 0


def ending_of(call):
    """The exit code of a process that does nothing else."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # it is meant to end like this,
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # and to leave nothing behind
        try:
            call()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_every_kernel_was_guarded():
    """The last case: a kernel that no case above launches, or that goes round the guards."""
    kernels = set()
    for module in pkgutil.iter_modules(longtail.kernels.__path__):
        if module.name.startswith("_triton"):
            found = vars(importlib.import_module(f"longtail.kernels.{module.name}"))
            kernels |= {name for name in found if name.endswith("_kernel")}
    # Gluon has no interpreter: `test_ring` runs that one in NumPy, which checks every address.
    assert kernels - {"ring_kernel"} == SEEN
