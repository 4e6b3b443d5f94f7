"""The Triton kernel of `cross_entropy`: programs that stay, each with a slice of columns.

With u = log₂e · s·(f + b), the target's own lowered, and m = max u:

    ℓ = ln 2 · (log₂ Σ_j 2^(u_j − m) + m − (1 − ε)·u_y − ε/C · Σ_j u_j)
    ∂(c·ℓ)/∂f_j = c·s · (2^(u_j − m) / Σ_j 2^(u_j − m) − ε/C − (1 − ε)·[j = y])

A program keeps its slice of b in registers and goes from row to row, reading the next row while it
works on this one. Where a row has several slices, their programs run at the same time and tell each
other m and Σ 2^(u − m) of their own part through `partials`; while these are on their way, each
works on its part of the following row, so that gradients are one row behind.
"""

# mypy: ignore-errors
# (Triton's language)

from __future__ import annotations

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
LOG2E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-3.0e38)


@triton.jit
def _counted(label, weight, ignore, n_classes, HAS_WEIGHT: tl.constexpr):
    """The class of a row and its weight; class 0 and 0 where it is ignored."""
    kept = label != ignore
    y = tl.where(kept, label, 0).to(tl.int32)
    tl.device_assert((y >= 0) & (y < n_classes), "longtail: a label is not a class")
    share = kept.to(tl.float32)
    if HAS_WEIGHT:
        share *= tl.load(weight + y)
    return y, share


@triton.jit
def _wait(partials, there):
    """m and Σ 2^(u − m) of a row's slices, once all are there: packed, none of them is 0."""
    packed = tl.load(partials, mask=there, other=1, volatile=True)
    while tl.sum((packed == 0).to(tl.int32), 0) > 0:
        packed = tl.load(partials, mask=there, other=1, volatile=True)
    ms = (packed >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    zs = packed.to(tl.int32).to(tl.float32, bitcast=True)
    return tl.where(there, ms, LOWEST), tl.where(there, zs, 0.0)


@triton.jit(do_not_specialize=["rows", "units", "ignore"])
def loss_kernel(
    logits, grad, target, bias, lower, weight, divisor, upstream, losses, partials,
    rows, units, stride, grad_stride, ignore, scale, epsilon,
    HAS_BIAS: tl.constexpr, HAS_LOWER: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    HAS_DIVISOR: tl.constexpr, HAS_UPSTREAM: tl.constexpr, UPSTREAM_STRIDE: tl.constexpr,
    GRADIENT: tl.constexpr, SMOOTHS: tl.constexpr,
    SLICES: tl.constexpr, BLOCK: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """c·ℓ of each row, c = w_y / divisor, 0 where it is ignored; and with GRADIENT its gradient.

    The gradient is also multiplied by `upstream`. `units`, `stride` and `grad_stride` count VEC
    columns, which lie side by side and are read at once. `losses` has an entry for each row, with
    SMOOTHS for each slice of it. `grad` may be `logits`.
    """
    SHARED: tl.constexpr = SLICES > 1
    part = tl.program_id(0) % SLICES
    first = tl.program_id(0) // SLICES
    if not SHARED:  # a quarter less time at 4096 x 8142 than with 32 bits; slices take 2 % more
        first = first.to(tl.int64)
    step = tl.num_programs(0) // SLICES
    n_classes = units * VEC
    stride = tl.cast(stride, tl.int64) * VEC  # Triton takes an argument of 1 for a Python number
    grad_stride = tl.cast(grad_stride, tl.int64) * VEC
    k = scale * LOG2E
    unit = part * (BLOCK // VEC) + tl.arange(0, BLOCK // VEC)[:, None]
    col = unit * VEC + tl.arange(0, VEC)[None, :]
    inside = tl.broadcast_to(unit < units, (BLOCK // VEC, VEC))
    b, tilt, over = 0.0, 0.0, 1.0
    if HAS_BIAS:
        b = tl.load(bias + col, mask=inside, other=0.0) * k
    if HAS_DIVISOR:
        over = 1.0 / tl.load(divisor).to(tl.float32)
    raw = tl.load(logits + first * stride + col, mask=inside & (first < rows), other=float("-inf"))
    next_label = tl.load(target + first, mask=first < rows, other=0)
    kept, kept_m = tl.zeros((BLOCK // VEC, VEC), tl.float32), 0.0
    # Two rows a turn, so that what is kept for the next one need not be moved in registers.
    TURN: tl.constexpr = 2 if SHARED else 1
    for row in tl.range(first, rows + (step if SHARED else 0), step, loop_unroll_factor=TURN):
        ahead = row + step
        next_raw = tl.load(
            logits + ahead * stride + col, mask=inside & (ahead < rows), other=float("-inf")
        )
        # `done` is the row of which the loss and the gradient are written.
        if SHARED:
            done = row - step
            keep = done >= first
            label = tl.load(target + done, mask=keep, other=0)
        else:
            done = row
            keep = row < rows
            label = next_label
            next_label = tl.load(target + ahead, mask=ahead < rows, other=0)
        y, share = _counted(label, weight, ignore, n_classes, HAS_WEIGHT)
        mine = keep & (y // BLOCK == part)
        u_y = tl.load(logits + done * stride + y, mask=mine, other=0.0).to(tl.float32) * k
        if HAS_BIAS:
            u_y += tl.load(bias + y) * k
        u = raw.to(tl.float32) * k + b
        if HAS_LOWER:
            u_y -= tl.load(lower + y) * k
            row_y = y
            if SHARED:
                row_label = tl.load(target + row, mask=row < rows, other=0)
                row_y, _ = _counted(row_label, weight, ignore, n_classes, False)
            u = tl.where(col == row_y, u - tl.load(lower + row_y) * k, u)
        m = tl.maximum(tl.max(tl.max(u, 1), 0), LOWEST)
        powers = tl.exp2(u - m)
        z = tl.sum(tl.sum(powers, 1), 0)
        if SMOOTHS:
            row_tilt = tl.sum(tl.sum(tl.where(inside, u, 0.0), 1), 0)
            done_tilt = tilt if SHARED else row_tilt
            tilt = row_tilt
        if SHARED:
            high = m.to(tl.int32, bitcast=True).to(tl.int64) << 32
            packed = high | z.to(tl.int32, bitcast=True).to(tl.int64)
            tl.store(partials + row * SLICES + part, packed, mask=row < rows)
            lanes = tl.arange(0, triton.next_power_of_2(SLICES))
            ms, zs = _wait(partials + done * SLICES + lanes, (lanes < SLICES) & keep)
            row_powers, row_m = powers, m
            m = tl.max(ms, 0)
            z = tl.sum(zs * tl.exp2(ms - m), 0)
            powers, over_z = kept, tl.exp2(kept_m - m) / z
            kept, kept_m = row_powers, row_m
        else:
            over_z = 1.0 / z
        out = grad + done * grad_stride
        if GRADIENT:
            slope = tl.where(share == 0, 0.0, share * over * scale)
            if HAS_UPSTREAM:
                slope *= tl.load(upstream + done * UPSTREAM_STRIDE, mask=keep).to(tl.float32)
            g = powers * (slope * over_z)
            if SMOOTHS:
                g -= slope * (epsilon / n_classes)
            tl.store(out + col, g, mask=inside & keep, cache_modifier=".cs")
        if SMOOTHS:
            loss = tl.where(share == 0, 0.0, -epsilon / n_classes * LN2 * done_tilt) * share * over
            tl.store(losses + done * SLICES + part, loss, mask=keep)
        if mine:
            # Far from zero, u_y and m agree in their first digits: their difference first.
            own = LN2 * (tl.log2(z) + (m - u_y) + epsilon * u_y)
            own = tl.where(share == 0, 0.0, own) * share * over
            if SMOOTHS:
                tl.store(losses + done * SLICES + part, own + loss)
            else:
                tl.store(losses + done, own)
            if GRADIENT:
                g_y = slope * (tl.exp2(u_y - m) / z - (1 - epsilon) - epsilon / n_classes)
                tl.debug_barrier()  # after the other columns, among which it was written
                tl.store(out + y, g_y)
        raw = next_raw


@triton.jit(do_not_specialize=["n"])
def scale_kernel(values, factor, n, BLOCK: tl.constexpr):
    """values ·= factor, in place; nothing is read or written where the factor is 1."""
    by = tl.load(factor).to(tl.float32)
    if by != 1.0:
        for start in range(tl.program_id(0).to(tl.int64) * BLOCK, n, tl.num_programs(0) * BLOCK):
            place = start + tl.arange(0, BLOCK)
            value = tl.load(values + place, mask=place < n, other=0.0)
            tl.store(values + place, value.to(tl.float32) * by, mask=place < n)
