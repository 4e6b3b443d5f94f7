"""When the Gluon kernel for wide rows serves, how it cuts them, and its launch.

The kernel is in `_triton_ring`. Wherever `ring_for` says None, `_launch.launch` computes the same.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from longtail.kernels import _launch, interpreted
from longtail.kernels._launch import MEAN, NONE, Options, Tables, _given, _run, _there

BLOCK = 4096  # places of a slice, its columns at most
WARPS = 4  # of 32 threads, in a program: the kernel's assembly is written for as many
# Elements of 128, 32 and 16 bytes: a line of memory, a sector, and what a thread copies at once.
UNITS = (64, 16, 8)
LINE = UNITS[0]
MOST_LANES = 512  # as in `_triton_ring`
# Rows that a lane must have. A program starts with a fetch of all that its rows' targets say, and
# ends two turns after its last sum, which few rows do not repay: for those the tiles are quicker.
FEWEST_TURNS = 5
# Gluon is an experimental part of Triton, which may change: versions that the kernel is known for.
VERSIONS = ((3, 6), (3, 7))


class Ring(NamedTuple):
    """How the logits are cut; the numbers are from measurements on an H200.

    Attributes:
        slices: programs to a row.
        lanes: rows that are worked on at the same time.
        labels: rows that a program has room for, a power of two.
        registers: most per thread.
        slots: rows in a program's shared memory.
        width: columns of a slice, a multiple of unit.
        unit: elements; rows are read in windows that start at multiples of it. A multiple of 8.
    """

    slices: int
    lanes: int
    labels: int
    registers: int
    slots: int
    width: int
    unit: int


def plan_ring(
    n_rows: int, classes: int, stride: int, processors: int, *, has_offset: bool = True
) -> Ring | None:
    """The cut for rows that lie `stride` apart, or None where the kernel does not serve.

    Programs wait for the others of their row. They get on if twice as many can run at the same
    time, as `ring_kernel` says, and a multiprocessor has room for one at least. More than that is
    speed: five to a multiprocessor, or fewer where the labels of many rows take more room.

    Examples:
        >>> plan_ring(4096, 100_000, 100_000, processors=132)
        Ring(slices=25, lanes=26, labels=256, registers=96, slots=5, width=4032, unit=64)
        >>> plan_ring(4096, 1_000_000, 1_000_000, processors=132) is None
        True
    """
    shape = (n_rows, classes, stride, processors)
    narrow = _cut(*shape, UNITS[-1], has_offset)
    if narrow is None:
        return None
    for unit in UNITS[:-1]:
        # Wider windows go with fewer numbers of lanes: not at the cost of many.
        ring = _cut(*shape, unit, has_offset)
        if ring and ring.slices == narrow.slices and 10 * ring.lanes >= 9 * narrow.lanes:
            return ring
    return narrow


def _cut(
    n_rows: int, classes: int, stride: int, processors: int, unit: int, has_offset: bool
) -> Ring | None:
    """The cut with windows that start at multiples of `unit`.

    Slices start wherever rows would on their own: if all rows lie on whole lines of memory, so do
    all slices.
    """
    step = math.gcd(stride, unit)
    window = classes + unit - step  # which starts up to unit - step before its row
    slices = -(-window // BLOCK)
    # Equal slices, so that none waits for one with more to read. But slices that share a line of
    # memory cost more than that: where rows lie on whole lines, slices do too.
    fine = max(unit, math.gcd(stride, LINE))
    width = -(-window // (fine * slices)) * fine
    if 2 * slices > processors:
        return None
    ways = unit // step  # in which rows can lie in their windows
    ways_to_fill = ((5, 256, 96, 5), (4, 512, 128, 6), (3, 1024, 168, 6))
    # 96 registers are too few with the words of more than 32 slices; and for shifted rows without
    # an offset: the compiler would keep some of them in local memory, used in every turn.
    shifted = classes % 8 != 0 or stride % 8 != 0
    too_few = slices > 32 or (shifted and not has_offset)
    for programs, room, registers, slots in ways_to_fill[too_few:]:
        most = min(processors * programs // slices, MOST_LANES) // ways * ways
        if n_rows <= most * room:
            lanes = min(most, -(-n_rows // ways) * ways)
            labels = max(1 << (-(-n_rows // lanes) - 1).bit_length(), 64)
            return Ring(slices, lanes, labels, registers, slots, width, unit)
    return None


@cache
def _has_gluon() -> bool:
    """Whether Triton has Gluon as the kernel knows it; of other versions nothing is imported."""
    try:
        import triton

        version = tuple(int(part) for part in triton.__version__.split(".")[:2])
        if version not in VERSIONS:
            return False
        from longtail.kernels import _triton_ring  # noqa: F401
    except Exception:  # a version that is no number, or whatever a changed Gluon may raise
        return False
    return True


def ring_for(
    logits: Tensor, grad: Tensor, options: Options, has_offset: bool = True
) -> Ring | None:
    """The cut for loss and gradient in one launch, or None where `_launch.launch` is to do it.

    Args:
        logits: (groups, rows, classes), as `_launch.rows_of` returns them.
        grad: like logits; may be the logits themselves.
        options: see `_launch.Options`.
        has_offset: whether the launch will have one.
    """
    groups, rows, classes = logits.shape
    if _launch.tiles_for(logits).slices == 1 or groups > 1 or logits.dtype != torch.bfloat16:
        return None
    if options.scale != 1.0 or options.reduction == NONE or options.label_smoothing > 0:
        return None
    if interpreted() or logits.device.type != "cuda" or logits.data_ptr() % 16:
        return None
    stride = classes if rows == 1 else logits.stride(1)
    if grad.data_ptr() % 16 or (rows > 1 and grad.stride(1) != stride):
        return None
    if not (_launch._chains(logits.device.index) and _has_gluon()):
        return None
    processors = _launch._processors(logits.device.index)
    ring = plan_ring(rows, classes, stride, processors, has_offset=has_offset)
    return None if ring is None or rows < FEWEST_TURNS * ring.lanes else ring


@_there
def launch(
    ring: Ring,
    logits: Tensor,
    target: Tensor,
    tables: Tables,
    options: Options,
    *,
    grad: Tensor,
    loss: Tensor,
    totals: Tensor | None = None,
) -> None:
    """Loss and gradient, into the tensors given.

    Args:
        ring: from `ring_for`.
        logits, target, tables, options, grad, loss, totals: as in `_launch.launch`.
    """
    from longtail.kernels import _triton_ring

    # No copies of the offset: a program reads its part once, whatever the place.
    layout = _launch.layout_of(logits, grad, tables._replace(offset=None), 0)
    # A word per lane for its loss; two per row for its sum; two per slice of a row, on 16 bytes.
    parts_at = MOST_LANES + 2 * (layout.rows + layout.rows % 2)
    n_words = parts_at + 2 * layout.rows * ring.slices
    own_totals, words, _ = _launch.prepare(
        target, tables._replace(offset=None), options, layout, n_words
    )
    totals = own_totals if totals is None else totals
    args = (
        logits,
        grad,
        target,
        _given(tables.offset, totals),
        _given(tables.positive, totals),
        _given(tables.alpha, totals),
        _given(tables.weight, totals),
        totals,
        words,
        words[parts_at:].view(torch.int64),
        words[MOST_LANES:parts_at].view(torch.int64),
        loss,
        layout.rows,
        layout.classes,
        layout.stride,
        ring.slices,
        ring.width,
        ring.unit,
        ring.lanes,
        options.ignore_index,
    )
    constants = {
        "MEAN": options.reduction == MEAN,
        "HAS_OFFSET": tables.offset is not None,
        "HAS_POSITIVE": tables.positive is not None,
        "HAS_ALPHA": tables.alpha is not None,
        "HAS_WEIGHT": tables.weight is not None,
        "LEAD": layout.stride % ring.unit != 0,
        "SHIFTED": layout.shifted,
        "TOTALS": totals.shape[1],
        "PART": 1 << (ring.slices - 1).bit_length(),
        "LABELS": ring.labels,
        "BLOCK": BLOCK,
        "SLOTS": ring.slots,
        "num_warps": WARPS,  # an argument of Gluon's kernels too, the last one
    }
    how = {"maxnreg": ring.registers, "launch_pdl": True}
    _run(_triton_ring.ring_kernel, (ring.lanes * ring.slices,), args, constants, **how)
