"""The Triton kernel of `cross_entropy`: programs that stay, each with a slice of columns.

With u = log₂e · s·(f + b), the target's own lowered, and m = max u:

    ℓ = ln 2 · (log₂ Σ_j 2^(u_j − m) + m − (1 − ε)·u_y − ε/C · Σ_j u_j)
    ∂(c·ℓ)/∂f_j = c·s · (2^(u_j − m) / Σ_j 2^(u_j − m) − ε/C − (1 − ε)·[j = y])

A program keeps its slice of b in registers and goes from row to row, reading the next row while it
works on this one. Where a row has several slices, their programs run at the same time and tell each
other m and Σ 2^(u − m) of their own part through `partials`; while these are on their way, each
reads its part of the following row, so that gradients are one row behind.
"""

# mypy: ignore-errors
# (Triton's language)

from __future__ import annotations

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(-3.0e38)


@triton.jit
def _scores(raw, b, col, y, low, k, HAS_LOWER: tl.constexpr):
    u = raw.to(tl.float32) * k + b
    if HAS_LOWER:
        u = tl.where(col == y, u - low, u)
    return u


@triton.jit
def _wait(partials, there):
    """m and Σ 2^(u − m) of a row's slices, once all are there: packed, none of them is 0."""
    packed = tl.load(partials, mask=there, other=1, volatile=True)
    while tl.sum((packed == 0).to(tl.int32), 0) > 0:
        packed = tl.load(partials, mask=there, other=1, volatile=True)
    ms = (packed >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    zs = packed.to(tl.int32).to(tl.float32, bitcast=True)
    return tl.where(there, ms, LOWEST), tl.where(there, zs, 0.0)


@triton.jit(do_not_specialize=["rows", "units"])
def loss_kernel(
    logits, grad, target, bias, lower, coefficient, losses, partials, tilts, rows, units, stride,
    grad_stride, scale, k, epsilon,
    GRADIENT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LOWER: tl.constexpr,
    SMOOTHS: tl.constexpr, SLICES: tl.constexpr, BLOCK: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """ℓ of each row, 0 where c is, and with GRADIENT the gradient of c·ℓ.

    `units`, `stride` and `grad_stride` count VEC columns, which lie side by side and are read at
    once. `tilts` takes Σ_j u_j of each slice. `grad` may be `logits`.
    """
    SHARED: tl.constexpr = SLICES > 1
    part = tl.program_id(0) % SLICES
    first = (tl.program_id(0) // SLICES).to(tl.int64)
    step = tl.num_programs(0) // SLICES
    n_classes = units * VEC
    stride *= VEC
    unit = part * (BLOCK // VEC) + tl.arange(0, BLOCK // VEC)[:, None]
    col = unit * VEC + tl.arange(0, VEC)[None, :]
    inside = tl.broadcast_to(unit < units, (BLOCK // VEC, VEC))
    b, low = 0.0, 0.0
    if HAS_BIAS:
        b = tl.load(bias + col, mask=inside, other=0.0) * k
    raw = tl.load(logits + first * stride + col, mask=inside & (first < rows), other=float("-inf"))
    next_y = tl.load(target + first, mask=first < rows, other=0)
    for row in range(first, rows + (step if SHARED else 0), step):
        ahead = row + step
        next_raw = tl.load(
            logits + ahead * stride + col, mask=inside & (ahead < rows), other=float("-inf")
        )
        # `done` is the row of which the loss and the gradient are written.
        if SHARED:
            done = row - step
            keep = done >= first
            y = tl.load(target + done, mask=keep, other=0).to(tl.int32)
        else:
            done = row
            keep = row < rows
            y = next_y.to(tl.int32)
            next_y = tl.load(target + ahead, mask=ahead < rows, other=0)
        tl.device_assert((y >= 0) & (y < n_classes), "longtail: a label is not a class")
        mine = keep & (y // BLOCK == part)
        by = tl.load(coefficient + done, mask=keep, other=0.0) * scale
        u_y = tl.load(logits + done * stride + y, mask=mine, other=0.0).to(tl.float32) * k
        if HAS_BIAS:
            u_y += tl.load(bias + y) * k
        if HAS_LOWER:
            low = tl.load(lower + y) * k
            u_y -= low
        row_y, row_low = y, low
        if SHARED and HAS_LOWER:
            row_y = tl.load(target + row, mask=row < rows, other=0).to(tl.int32)
            row_low = tl.load(lower + row_y) * k
        u = _scores(raw, b, col, row_y, row_low, k, HAS_LOWER)
        m = tl.maximum(tl.max(tl.max(u, 1), 0), LOWEST)
        powers = tl.exp2(u - m)
        z = tl.sum(tl.sum(powers, 1), 0)
        if SMOOTHS:
            tilt = tl.sum(tl.sum(tl.where(inside, u, 0.0), 1), 0)
            tl.store(tilts + row * SLICES + part, tilt, mask=row < rows)
        if SHARED:
            high = m.to(tl.int32, bitcast=True).to(tl.int64) << 32
            packed = high | z.to(tl.int32, bitcast=True).to(tl.int64)
            tl.store(partials + row * SLICES + part, packed, mask=row < rows)
            # in the first-level cache still, where it takes no registers
            held = tl.load(logits + done * stride + col, mask=inside & keep, other=float("-inf"))
            lanes = tl.arange(0, triton.next_power_of_2(SLICES))
            ms, zs = _wait(partials + done * SLICES + lanes, (lanes < SLICES) & keep)
            m = tl.max(ms, 0)
            z = tl.sum(zs * tl.exp2(ms - m), 0)
            powers = tl.exp2(_scores(held, b, col, y, low, k, HAS_LOWER) - m)
        out = grad + done * grad_stride * VEC
        if GRADIENT:
            g = powers * (by / z)
            if SMOOTHS:
                g -= by * (epsilon / n_classes)
            tl.store(out + col, g, mask=inside & keep, cache_modifier=".cs")
        if mine:
            # Far from zero, u_y and m agree in their first digits: their difference first.
            loss = tl.log2(z) + (m - u_y) + epsilon * u_y
            tl.store(losses + done, tl.where(by == 0, 0.0, loss * LN2))
            if GRADIENT:
                g_y = by * (tl.exp2(u_y - m) / z - (1 - epsilon) - epsilon / n_classes)
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
