"""Kernels between forbidden pages, in Triton's interpreter: reading outside is a SIGSEGV.

At each launch every tensor that the kernel is given moves to memory that ends where a page begins
which nobody may touch, or starts where one ends, and moves back afterwards.
"""

import ctypes
import mmap
from contextlib import ExitStack, contextmanager
from functools import cache
from unittest import mock

import pytest
import torch
from torch import Tensor

from longtail.kernels import _launch
from longtail.kernels import cross_entropy as module
from longtail.kernels import grouped_conv as conv
from longtail.kernels import norm_act as norm
from longtail.kernels.grouped_conv import grouped_conv, pad_shortcut
from longtail.kernels.norm_act import norm_act

ROOM = 2 << 20  # bytes between two guards: for one tensor at a time
SLOTS = 20  # tensors of one launch
PROT_NONE = 0  # which `mmap` does not name


@cache
def arena():
    """SLOTS rooms with a guard before and behind each, as large as a room."""
    memory = mmap.mmap(-1, (2 * SLOTS + 1) * ROOM, flags=mmap.MAP_PRIVATE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    for slot in range(SLOTS + 1):
        guard = ctypes.c_void_p(base + 2 * slot * ROOM)
        if libc.mprotect(guard, ctypes.c_size_t(ROOM), PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    return memory


@contextmanager
def moved(args, *, end):
    """The arguments with their storages at the end or the start of rooms; copied back after."""
    places, there = {}, []
    for arg in args:
        if not isinstance(arg, Tensor) or arg.numel() == 0:
            there.append(arg)
            continue
        storage = arg.untyped_storage()
        if storage.data_ptr() not in places:  # tensors that share memory still do
            size, slot = storage.nbytes(), len(places)
            assert slot < SLOTS, "make SLOTS larger"
            assert size <= ROOM, "make ROOM larger"
            start = (2 * slot + 1) * ROOM + (ROOM - size if end else 0)
            here = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (size,), (1,))
            room = torch.frombuffer(arena(), dtype=torch.uint8, count=size, offset=start)
            places[storage.data_ptr()] = here, room.copy_(here)
        room = places[storage.data_ptr()][1].untyped_storage()
        blank = torch.empty(0, dtype=arg.dtype)
        there.append(blank.set_(room, arg.storage_offset(), arg.shape, arg.stride()))
    yield tuple(there)
    for here, room in places.values():
        here.copy_(room)


@pytest.fixture(params=["end", pytest.param("start", marks=pytest.mark.long)], autouse=True)
def guards(request):
    seen, run = set(), _launch.launch

    def run_guarded(kernel, grid, args, constants, **how):
        seen.add(kernel.__name__)
        with moved(args, end=request.param == "end") as there:
            run(kernel, grid, there, constants, **how)

    with ExitStack() as patches:
        for launching in (module, norm, conv):
            patches.enter_context(mock.patch.object(launching, "launch", run_guarded))
        yield
    assert seen  # something was launched


F32, BF16 = torch.float32, torch.bfloat16


def loss(n, classes, dtype, **options):
    logits = torch.randn(n, classes).to(dtype).requires_grad_()
    target = torch.randint(classes, (n,))
    target[-1], target[0] = classes - 1, -100 if n > 1 else 0
    tables = {name: torch.rand(classes) for name in ("bias", "weight")}
    tables["divisor"] = torch.tensor(3)
    if "label_smoothing" in options:
        del tables["weight"]
    found = module.cross_entropy(logits, target, **tables, **options)
    (grad,) = torch.autograd.grad(found.sum(), logits)
    assert found.isfinite().all()
    assert grad.isfinite().all()


@pytest.mark.parametrize("options", [{}, {"reduce": False}, {"label_smoothing": 0.1}])
@pytest.mark.parametrize(
    ("n", "classes", "dtype"), [(1, 1, F32), (3, 29, BF16), (3, 30, BF16), (2, 40, BF16)]
)
def test_loss(n, classes, dtype, options):
    loss(n, classes, dtype, **options)


@pytest.mark.parametrize("classes", [2003, pytest.param(2304, marks=pytest.mark.long)])
def test_longer_rows(classes):
    loss(3, classes, BF16)


@pytest.mark.parametrize(
    "shape", [(2, 3, 1, 5), (3, 16, 5, 5), pytest.param((5, 70, 3, 7), marks=pytest.mark.long)]
)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_norm_act(shape, dtype):
    x, residual = (
        torch.randn(shape).to(dtype).contiguous(memory_format=torch.channels_last) for _ in range(2)
    )
    one, zero, mean, var = (torch.full((shape[1],), v) for v in (1.0, 0.0, 0.0, 1.0))
    leaves = [t.requires_grad_() for t in (x, one, zero, residual)]
    y = norm_act(x, one, zero, mean, var, residual=residual, training=True)
    assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum(), leaves))


@pytest.mark.parametrize(
    ("inner", "outer", "side", "stride"),
    [(3, 32, 5, 1), (16, 32, 5, 2), pytest.param(64, 64, 3, 1, marks=pytest.mark.long)],
)
def test_grouped_conv(inner, outer, side, stride):
    x = torch.randn(2, 2 * inner, side, side).bfloat16()
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_(inner >= 16)
    weight = torch.randn(2 * outer, inner, 3, 3).requires_grad_()
    y, _ = grouped_conv(x, weight, stride=stride, groups=2)
    leaves = [t for t in (x, weight) if t.requires_grad]
    assert all(g.isfinite().all() for g in torch.autograd.grad(y.float().sum(), leaves))


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_shortcut(dtype):
    x = torch.randn(2, 8, 5, 3).to(dtype).contiguous(memory_format=torch.channels_last)
    y = pad_shortcut(x.requires_grad_(), groups=2)
    assert torch.autograd.grad(y.float().sum(), x)[0].isfinite().all()
