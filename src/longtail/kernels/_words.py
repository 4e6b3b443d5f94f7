"""When the kernel for rows of a few thousand bfloat16 logits serves, and its launch.

The kernel is in `_triton_words`; where `words_for` says None, `_launch.launch` computes the same.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from longtail.kernels import _launch, interpreted
from longtail.kernels._launch import MEAN, NONE, Options, Tables, _given, _run, _there

# Class counts that this kernel is the quicker one for; the tiles take several narrow rows at once.
CLASSES = range(4097, 8193)
ALIGN = 8  # words: a row's window starts on as many times four bytes, a sector of memory
WARPS, REGISTERS = 8, 64  # of a program, and per thread: four programs to a multiprocessor
TURN = 512  # rows whose losses are added at a time
# The program that adds the losses starts as many waves of programs before the last one: so at the
# end it has only the last rows left to add.
WAVES_AHEAD = 2
# Launches that a GPU runs at the same time. In each of them one program may wait for others, which
# must not be kept from running by those that wait.
MOST_LAUNCHES = 128
DENOMINATORS = 4  # parts of the mean's denominator


class Words(NamedTuple):
    """How a row is read.

    Attributes:
        words: of a row.
        parts: of a window, each of four words a thread.
        summing: number of the program that adds the losses.
    """

    words: int
    parts: int
    summing: int


def plan_words(n_rows: int, classes: int, processors: int) -> Words | None:
    """How rows one behind the other are read, or None where the kernel does not serve.

    Args:
        n_rows: at least one.
        classes: of a row.
        processors: of the GPU; 0 where programs run one after another.

    Examples:
        >>> plan_words(4096, 8142, processors=132)
        Words(words=4071, parts=4, summing=3040)
        >>> plan_words(4096, 8141, processors=132) is None
        True
    """
    if classes not in CLASSES or classes % 2:
        return None
    words = classes // 2
    window = words + ALIGN - math.gcd(words, ALIGN)  # which starts that much before its row
    parts = -(-window // (4 * 32 * WARPS))
    if parts > 4:
        return None
    places = 65_536 // (32 * WARPS * REGISTERS) * processors
    ahead = WAVES_AHEAD * places if places > MOST_LAUNCHES else 0
    return Words(words, parts, n_rows - ahead if n_rows > ahead else n_rows)


def words_for(logits: Tensor, grad: Tensor, options: Options) -> Words | None:
    """How to read for loss and gradient in one launch, or None where `_launch.launch` is to do it.

    Args:
        logits: (groups, rows, classes), as `_launch.rows_of` returns them.
        grad: like logits; may be the logits themselves.
        options: see `_launch.Options`.
    """
    groups, rows, classes = logits.shape
    if groups > 1 or logits.dtype != torch.bfloat16 or classes not in CLASSES:
        return None
    if options.reduction == NONE or options.label_smoothing > 0:
        return None
    # Never in place: a row may be read again when some of it is written.
    if grad.data_ptr() == logits.data_ptr():
        return None
    for tensor in (logits, grad):
        if tensor.data_ptr() % (4 * ALIGN) or (rows > 1 and tensor.stride(1) != classes):
            return None
    if interpreted():
        return plan_words(rows, classes, 0)
    if logits.device.type != "cuda" or not _launch._chains(logits.device.index):
        return None
    return plan_words(rows, classes, _launch._processors(logits.device.index))


@_there
def launch(
    words: Words,
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
        words: from `words_for`.
        logits, target, tables, options, grad, loss, totals: as in `_launch.launch`.
    """
    from longtail.kernels import _triton_words

    threads = 32 * WARPS
    layout = _launch.layout_of(logits, grad, tables._replace(offset=None), 0)
    # One table: two numbers a word, ALIGN words more than a window.
    pitch = 2 * (ALIGN + words.parts * 4 * threads)
    layout = layout._replace(phases=1, halves=1, pitch=pitch)
    own_totals, blank, table = _launch.prepare(
        target, tables, options, layout, 2 * layout.rows, lead=2 * ALIGN, parts=DENOMINATORS
    )
    totals = own_totals if totals is None else totals
    args = (
        logits,
        grad,
        target,
        table,
        _given(tables.positive, totals),
        _given(tables.alpha, totals),
        _given(tables.weight, totals),
        totals,
        blank.view(torch.int64),
        loss,
        layout.rows,
        words.words,
        words.summing,
        options.scale,
        options.ignore_index,
        0,  # of which the compiler is to know nothing
    )
    native = _launch._chained(logits.device)
    constants = {
        "MEAN": options.reduction == MEAN,
        "HAS_POSITIVE": tables.positive is not None,
        "HAS_ALPHA": tables.alpha is not None,
        "HAS_WEIGHT": tables.weight is not None,
        "HAS_SCALE": options.scale != 1.0,
        "TOTALS": totals.shape[1],
        "FULL": words.words // threads * threads,
        "ALIGN": ALIGN,
        "PARTS": words.parts,
        "TURN": TURN,
        "T": threads,
        "NATIVE": native,
    }
    how = {"num_warps": WARPS, "maxnreg": REGISTERS, "launch_pdl": native}
    _run(_triton_words.words_kernel, (layout.rows + 1,), args, constants, **how)
