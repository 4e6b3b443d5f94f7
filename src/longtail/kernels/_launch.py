"""From tensors to launches: how the logits are cut into tiles, where rows lie, what runs when.

Works on logits of shape (groups, rows, classes): a group has its own mean and may have its own
tables, which is what a batch under `torch.func.vmap` is. Nothing here knows autograd.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from longtail.kernels import interpreted

NONE, MEAN, SUM = range(3)  # reductions
FUSED, FORWARD, BACKWARD = range(3)  # modes, as in `_triton`
HERD = 64  # tiles whose losses one program adds, as in `_triton`
# Few programs: mostly the factor is 1, and then starting them is all that they cost.
SCALE_PROGRAMS, SCALE_WARPS, SCALE_BLOCK = 132, 8, 16384

P = ParamSpec("P")
T = TypeVar("T")


def _there(function: Callable[P, T]) -> Callable[P, T]:
    """Run on the device of the first tensor: Triton launches on the current one."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        device = next(arg.device for arg in args if isinstance(arg, Tensor))
        if device.type != "cuda" or device.index == torch.cuda.current_device():
            return function(*args, **kwargs)
        with torch.cuda.device(device):
            return function(*args, **kwargs)

    return run


class Tables(NamedTuple):
    """One float32 value per class, shape (1 or groups, classes), or None where it is neutral."""

    offset: Tensor | None = None
    positive: Tensor | None = None
    alpha: Tensor | None = None
    weight: Tensor | None = None


class Options(NamedTuple):
    """What is the same for every row."""

    scale: float = 1.0
    ignore_index: int = -100
    label_smoothing: float = 0.0
    reduction: int = MEAN


class Tiles(NamedTuple):
    """How the logits are cut.

    Attributes:
        rows, block: a tile's height and width.
        slices: tiles to a row.
        warps: of 32 threads, per program.
        registers: most per thread; fewer let more programs run at once.
        looped: 0, or how many programs per multiprocessor go over all rows in turn.
    """

    rows: int
    block: int
    slices: int
    warps: int
    registers: int | None = None
    looped: int = 0


class Layout(NamedTuple):
    """Where things lie: strides, 16-byte words, and the shifted copies of the offset."""

    groups: int
    rows: int
    classes: int
    stride: int
    grad_stride: int
    vec: int
    aligned: bool
    shifted: bool
    phases: int
    step: int
    pitch: int
    table_stride: int
    halves: int


# Kernels by everything that Triton compiles for: finding one here takes a fraction of the time that
# Triton needs to find it, which at small sizes is longer than the work itself.
_COMPILED: dict[tuple[Any, ...], Any] = {}


def _run(
    kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], constants: dict[str, Any], **how: Any
) -> None:
    """kernel[grid](*args, **constants, **how), quickly.

    Args:
        kernel: a Triton function.
        grid: programs.
        args: what is not a constant, in order.
        constants: what is, in order.
        **how: Triton's own options.
    """
    if interpreted():
        kernel[grid](*args, **constants, **how)
        return
    traits = tuple(
        (arg.dtype, arg.data_ptr() % 16 == 0)
        if isinstance(arg, Tensor)
        else (arg == 1, arg % 16 == 0, -(2**31) <= arg < 2**31)
        if isinstance(arg, int)
        else None
        for arg in args
    )
    fixed = tuple(constants.values())
    key = (id(kernel), torch.cuda.current_device(), traits, fixed, tuple(how.values()))
    compiled = _COMPILED.get(key)
    if compiled is None:
        _COMPILED[key] = kernel[grid](*args, **constants, **how)
    else:
        compiled[(*grid, 1, 1)[:3]](*args, *fixed)


def plan(n_rows: int, width: int, itemsize: int) -> Tiles:
    """Tiles for `n_rows` rows of `width` columns, from measurements on an H200.

    A tile lives in registers, 64 two-byte or 32 four-byte numbers a thread. Rows up to 8192 wide
    are one tile; narrow rows share one; wider rows are split, into pieces that waste little.
    """
    per_thread = 64 if itemsize == 2 else 32
    block = max(1 << (width - 1).bit_length(), 16)
    if block <= 8192:
        rows = 1
        while rows * block < 512 and rows < n_rows:
            rows *= 2
        warps = max(rows * block // (32 * per_thread), 1)
        return Tiles(
            rows, block, 1, warps, registers=96 if rows * block == 8192 and itemsize == 2 else None
        )
    block = min((8192, 4096, 2048), key=lambda b: (-(-width // b) * b > 1.1 * width, -b))
    warps = block // (32 * per_thread)
    return Tiles(1, block, -(-width // block), warps, registers=128, looped=16 // warps)


@cache
def _processors(index: int) -> int:
    """How many programs are sure to run at the same time on a device."""
    return torch.cuda.get_device_properties(index).multi_processor_count


@cache
def _chains(index: int) -> bool:
    """Whether a kernel may start while the one before it ends (compute capability 9 and up)."""
    return torch.cuda.get_device_capability(index)[0] >= 9


def fits_one_launch(tiles: Tiles, device: torch.device) -> bool:
    """Whether loss and gradient can come from one launch.

    The programs of a row wait for each other, so all of them must run at the same time: sure
    on a GPU that has twice as many multiprocessors, never in the interpreter, where they follow
    one another.
    """
    if tiles.slices == 1:
        return True
    return device.type == "cuda" and 2 * tiles.slices <= _processors(device.index)


def layout_of(logits: Tensor, grad: Tensor | None, tables: Tables, reach: int) -> Layout:
    """The layout of a call whose programs read columns up to `reach`."""
    groups, rows, classes = logits.shape
    single = groups * rows == 1
    stride = classes if single else logits.stride(1)
    grad_stride = stride if grad is None else (classes if single else grad.stride(1))
    vec = 16 // logits.element_size()
    step = math.gcd(stride, vec)
    aligned = logits.data_ptr() % 16 == 0 and (grad_stride - stride) % vec == 0
    aligned = aligned and (grad is None or grad.data_ptr() % 16 == 0)
    # A little more than the programs read, 32 columns for a guess at the least; on 128 bytes.
    pitch = (max(classes, reach, 32) + 4 * vec + 31) // 32 * 32
    phases = vec // step if aligned and tables.offset is not None else 0
    # The copies must stay small beside the logits: few rows are read element by element instead.
    if 4 * phases * pitch > max(groups * rows * classes * logits.element_size(), 1 << 20):
        aligned, phases = False, 0
    grouped = any(table is not None and table.shape[0] > 1 for table in tables)
    return Layout(
        groups=groups,
        rows=rows,
        classes=classes,
        stride=stride,
        grad_stride=grad_stride,
        vec=vec,
        aligned=aligned,
        shifted=classes % vec != 0 or step != vec,
        phases=phases,
        step=step,
        pitch=pitch,
        table_stride=classes if grouped else 0,
        halves=2 if aligned and logits.dtype == torch.bfloat16 else 1,
    )


def rows_of(logits: Tensor) -> Tensor:
    """The same (groups, rows, classes) with rows at one distance, copied only where needed."""
    groups, rows, classes = logits.shape
    if logits.stride(2) != 1 and classes > 1:
        return logits.contiguous()
    if groups > 1 and logits.stride(0) != rows * logits.stride(1):
        return logits.contiguous()
    return logits


def prepare(
    target: Tensor,
    tables: Tables,
    options: Options,
    layout: Layout,
    n_words: int,
    *,
    lead: int = 0,
    parts: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Check the labels on the device and launch what the tiles need.

    Args:
        target, tables, options: as in `launch`.
        layout: from `layout_of`.
        n_words: how many the programs need.
        lead: 0, or the places before the row in the table that `_triton_words` reads.
        parts: of the mean's denominator; by the number of rows if None.

    Returns:
        The mean's denominator in parts, shape (groups, parts); blank words for the programs to
        talk through; shifted copies of the offset.
    """
    from longtail.kernels import _triton

    device = target.device
    if parts is None:
        parts = min(1 << max(-(-layout.rows // 1024) - 1, 0).bit_length(), 64)
    totals = torch.empty((layout.groups, parts), dtype=torch.float32, device=device)
    words = torch.empty(max(n_words, 1), dtype=torch.int32, device=device)
    copies = 0 if tables.offset is None else tables.offset.shape[0] * layout.phases
    copies = 1 if lead else copies  # there is a table then, offset or not
    shifted = totals
    if copies:
        shifted = torch.empty(copies * layout.pitch, dtype=torch.float32, device=device)
    work = max(-(-shifted.numel() // 1024) + 2 * copies, -(-n_words // 4096))
    grid = (parts + min(-(-work // layout.groups), 512), layout.groups)
    args = (
        target,
        _given(tables.weight, totals),
        _given(tables.offset, totals),
        totals,
        words,
        shifted,
        layout.rows,
        layout.classes,
        n_words,
        copies,
        -(-layout.rows // parts),
        layout.table_stride,
        layout.pitch,
        options.scale,
        options.ignore_index,
    )
    chained = _chained(device)
    constants = {
        "HAS_WEIGHT": tables.weight is not None,
        "HAS_OFFSET": tables.offset is not None,
        "TOTALS": parts,
        "PHASES": layout.phases,
        "STEP": layout.step,
        "HALVES": layout.halves,
        "LEAD": lead,
        "CHAINED": chained,
        "BLOCK": 1024,
    }
    # Without `debug` a bad label would not be an error.
    how = {"num_warps": 8, "debug": True, "sanitize_overflow": False, "launch_pdl": chained}
    _run(_triton.targets_kernel, grid, args, constants, **how)
    return totals, words, shifted


@_there
def launch(
    mode: int,
    logits: Tensor,
    target: Tensor,
    tables: Tables,
    options: Options,
    *,
    grad: Tensor | None = None,
    upstream: Tensor | None = None,
    stats: Tensor | None = None,
    loss: Tensor | None = None,
    totals: Tensor | None = None,
    tiles: Tiles | None = None,
) -> None:
    """Run one mode of the kernel, into the tensors given.

    Args:
        mode: FUSED (loss and grad), FORWARD (loss and stats) or BACKWARD (grad from stats).
        logits: (groups, rows, classes), as `rows_of` returns them.
        target: (groups, rows), contiguous.
        tables: see `Tables`.
        options: see `Options`.
        grad: like logits; may be the logits themselves.
        upstream: BACKWARD: the gradient of the loss, (groups,), or (groups, rows) unreduced.
        stats: (groups, 3, rows), float32.
        loss: (groups,), or (groups, rows) unreduced.
        totals: the mean's denominator from `prepare`, where it covers more than these rows.
        tiles: how to cut; `plan` decides if None.
    """
    from longtail.kernels import _triton

    if tiles is None:
        tiles = tiles_for(logits)
    layout = layout_of(logits, grad, tables, tiles.slices * tiles.block)
    device = logits.device
    split = tiles.slices > 1
    per_group = -(-layout.rows // tiles.rows)
    n_tiles = layout.groups * per_group
    # One word for a tile's loss, one for a herd's; two for a row's slice, on 8 bytes.
    n_flags = (n_tiles + layout.groups * -(-per_group // HERD) + 1) // 2 * 2
    n_words = n_flags + (2 * layout.groups * layout.rows * tiles.slices if split else 0)
    own_totals, words, shifted = prepare(target, tables, options, layout, n_words)
    totals = own_totals if totals is None else totals
    lanes = n_tiles
    looped = tiles.looped > 0 and layout.groups == 1 and tiles.rows == 1 and split
    if looped and not interpreted():
        lanes = min(n_tiles, max(_processors(device.index) * tiles.looped // tiles.slices, 1))
    args = (
        logits,
        _given(grad, logits),
        target,
        shifted if layout.phases else _given(tables.offset, totals),
        _given(tables.positive, totals),
        _given(tables.alpha, totals),
        _given(tables.weight, totals),
        totals,
        _given(upstream, totals),
        _given(stats, totals),
        words,
        words[n_flags:].view(torch.int64) if split else words,
        _given(loss, totals),
        layout.rows,
        layout.classes,
        tiles.slices,
        per_group,
        layout.groups,
        layout.stride,
        layout.grad_stride,
        layout.table_stride,
        _table_step(layout),
        layout.pitch,
        options.scale,
        options.ignore_index,
        lanes,
    )
    constants = {
        "MODE": mode,
        "MEAN": options.reduction == MEAN,
        "REDUCED": options.reduction != NONE,
        "HAS_OFFSET": tables.offset is not None,
        "HAS_POSITIVE": tables.positive is not None,
        "HAS_ALPHA": tables.alpha is not None,
        "HAS_WEIGHT": tables.weight is not None,
        "HAS_SCALE": options.scale != 1.0,
        "TOTALS": totals.shape[1],
        "SPLIT": split,
        "PART": 1 << (tiles.slices - 1).bit_length(),
        "ALIGNED": layout.aligned,
        "SHIFTED": layout.shifted,
        "STEP": layout.step,
        "GROUPED": layout.groups > 1,
        "HALVES": layout.halves,
        "CHAINED": _chained(device),
        "LOOPED": looped,
        "VEC": layout.vec,
        "ROWS": tiles.rows,
        "BLOCK": tiles.block,
    }
    how = {
        "num_warps": tiles.warps,
        "maxnreg": tiles.registers,
        "launch_pdl": _chained(device),
    }
    _run(_triton.tile_kernel, (lanes * tiles.slices,), args, constants, **how)


@_there
def launch_smooth(
    mode: int,
    logits: Tensor,
    target: Tensor,
    tables: Tables,
    options: Options,
    *,
    grad: Tensor | None = None,
    upstream: Tensor | None = None,
    losses: Tensor | None = None,
    totals: Tensor | None = None,
) -> Tensor:
    """`launch` with label smoothing; `losses` (groups, rows) are not reduced.

    Returns:
        The mean's denominator in parts.
    """
    from longtail.kernels import _triton_smooth

    layout = layout_of(logits, grad, tables._replace(offset=None), 0)
    own_totals, _, _ = prepare(target, tables._replace(offset=None), options, layout, 0)
    totals = own_totals if totals is None else totals
    block = min(max(1 << (layout.classes - 1).bit_length(), 32), 4096)
    args = (
        logits,
        _given(grad, logits),
        target,
        _given(tables.offset, totals),
        _given(tables.positive, totals),
        _given(tables.alpha, totals),
        _given(tables.weight, totals),
        totals,
        _given(upstream, totals),
        _given(losses, totals),
        layout.rows,
        layout.classes,
        layout.stride,
        layout.grad_stride,
        layout.table_stride,
        options.scale,
        options.label_smoothing,
        options.ignore_index,
    )
    constants = {
        "MODE": mode,
        "MEAN": options.reduction == MEAN,
        "REDUCED": options.reduction != NONE,
        "HAS_OFFSET": tables.offset is not None,
        "HAS_POSITIVE": tables.positive is not None,
        "HAS_ALPHA": tables.alpha is not None,
        "HAS_WEIGHT": tables.weight is not None,
        "TOTALS": totals.shape[1],
        "BLOCK": block,
    }
    grid = (layout.groups * layout.rows,)
    _run(_triton_smooth.smooth_kernel, grid, args, constants, num_warps=max(block // 512, 1))
    return totals


@_there
def scale_(values: Tensor, factor: Tensor) -> Tensor:
    """values ·= factor, a scalar on the device; free of memory traffic where the factor is 1."""
    from longtail.kernels import _triton

    if not values.is_contiguous():
        return values.mul_(factor)
    if values.numel():
        chained = _chained(values.device)
        programs = min(-(-values.numel() // SCALE_BLOCK), SCALE_PROGRAMS)
        constants = {"BLOCK": SCALE_BLOCK, "CHAINED": chained}
        how = {"num_warps": SCALE_WARPS, "launch_pdl": chained}
        args = (values, factor, values.numel())
        _run(_triton.scale_kernel, (programs,), args, constants, **how)
    return values


def tiles_for(logits: Tensor) -> Tiles:
    """`plan` for these logits."""
    itemsize = logits.element_size()
    return plan(logits.shape[0] * logits.shape[1], logits.shape[2] + 16 // itemsize - 1, itemsize)


def _given(tensor: Tensor | None, other: Tensor) -> Tensor:
    """Kernels take a pointer for every argument; an absent one is never followed."""
    return other if tensor is None else tensor


def _chained(device: torch.device) -> Any:
    return device.type == "cuda" and _chains(device.index)


def _table_step(layout: Layout) -> int:
    """From one group's offset to the next one's."""
    if layout.table_stride == 0:
        return 0
    return layout.phases * layout.pitch if layout.phases else layout.classes
