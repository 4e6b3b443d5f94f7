"""Kernels between forbidden pages: one that leaves its tensors ends the process with SIGSEGV.

At each launch every tensor that the kernel is given moves to memory that ends where a page begins
which nobody may touch, or starts where one ends, and moves back afterwards. It makes no difference
who allocated a tensor, nor is there the rounding of an allocator to hide what lies behind: the
last element that a tensor's shape and strides reach is the last that can be read.

The launches have been decided by then, so rows that were on 16 bytes are still taken in whole
words, though at the end of a page they lie anywhere. To the interpreter that is all the same.
"""

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from unittest import mock

import torch
from torch import Tensor

from longtail.kernels import _launch, cross_entropy, grouped_conv, norm_act

LAUNCHERS = (cross_entropy, norm_act, grouped_conv)  # modules that launch
ROOM = 2 << 20  # bytes between two guards: for one tensor at a time
SLOTS = 20  # tensors of one launch
PROT_NONE = 0  # which `mmap` does not name


class Arena:
    """SLOTS rooms with a guard before and behind each, as large as a room."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, (2 * SLOTS + 1) * ROOM, flags=mmap.MAP_PRIVATE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        libc = ctypes.CDLL(None, use_errno=True)
        for slot in range(SLOTS + 1):
            guard = ctypes.c_void_p(base + 2 * slot * ROOM)
            if libc.mprotect(guard, ctypes.c_size_t(ROOM), PROT_NONE):
                raise OSError(ctypes.get_errno(), "mprotect")

    def place(self, slot: int, size: int, *, end: bool) -> Tensor:
        """`size` bytes at the end or the start of a room."""
        assert slot < SLOTS, "make SLOTS larger"
        assert size <= ROOM, "make ROOM larger"
        start = (2 * slot + 1) * ROOM + (ROOM - size if end else 0)
        return torch.frombuffer(self.memory, dtype=torch.uint8, count=size, offset=start)


the_arena = cache(Arena)  # one serves all launches


@contextmanager
def guarded(*, end: bool) -> Iterator[set[str]]:
    """Launch between guards; yields the names of the kernels that did, as they do.

    Args:
        end: whether tensors end at a guard, instead of starting behind one.
    """
    arena, seen, run = the_arena(), set(), _launch.launch

    def run_guarded(kernel, grid, args, constants, **how):
        seen.add(kernel.__name__)
        with moved(arena, args, end=end) as there:
            run(kernel, grid, there, constants, **how)

    with ExitStack() as patches:
        for module in LAUNCHERS:
            patches.enter_context(mock.patch.object(module, "launch", run_guarded))
        yield seen


@contextmanager
def moved(arena: Arena, args: tuple, *, end: bool) -> Iterator[tuple]:
    """The arguments with tensors in the arena; what is written there is copied back.

    Tensors that share memory still do: gradients over their logits, views of one buffer.
    """
    tensors = [arg for arg in args if isinstance(arg, Tensor) and arg.numel() > 0]
    places = []
    for slot, (low, high, owner) in enumerate(spans(tensors)):
        storage = owner.untyped_storage()
        here = as_bytes(storage, low - storage.data_ptr(), high - low)
        there = arena.place(slot, high - low, end=end)
        there.copy_(here)
        places.append((low, high, here, there))

    def move(tensor):
        for low, high, _, there in places:
            if low <= tensor.data_ptr() < high:
                offset = (tensor.data_ptr() - low) // tensor.element_size()
                storage = there.untyped_storage()
                blank = torch.empty(0, dtype=tensor.dtype)
                return blank.set_(storage, offset, tensor.shape, tensor.stride())
        return tensor  # of no elements

    yield tuple(move(arg) if isinstance(arg, Tensor) else arg for arg in args)
    for _, _, here, there in places:
        here.copy_(there)


def spans(tensors: list[Tensor]) -> list[tuple[int, int, Tensor]]:
    """First byte, last byte + 1 and a tensor of each piece of memory, overlapping ones as one."""
    found: list[tuple[int, int, Tensor]] = []
    for tensor in sorted(tensors, key=Tensor.data_ptr):
        sizes = zip(tensor.shape, tensor.stride(), strict=True)
        reach = 1 + sum((size - 1) * stride for size, stride in sizes)
        low = tensor.data_ptr()
        high = low + reach * tensor.element_size()
        if found and low < found[-1][1]:
            first, last, owner = found[-1]
            found[-1] = first, max(last, high), owner
        else:
            found.append((low, high, tensor))
    return found


def as_bytes(storage: torch.UntypedStorage, offset: int, size: int) -> Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage, offset, (size,), (1,))
