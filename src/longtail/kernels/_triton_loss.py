"""The Triton kernels of `cross_entropy`: a program for each row.

With u = log₂e · s·(f + b), the target's own lowered, and m = max u:

    ℓ = ln 2 · (log₂ Σ_j 2^(u_j − m) + m − (1 − ε)·u_y − ε/C · Σ_j u_j)
    ∂(c·ℓ)/∂f_j = c·s · (2^(u_j − m) / Σ_j 2^(u_j − m) − ε/C − (1 − ε)·[j = y])

A row of up to BLOCK columns is read once and stays in registers. A longer one is read twice, the
second time from its end, of which most is still in a cache.
"""

# mypy: ignore-errors
# (Triton's language)

from __future__ import annotations

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(-3.0e38)


@triton.jit
def _scores(
    logits, bias, start, units, y, low, k,
    HAS_BIAS: tl.constexpr, HAS_LOWER: tl.constexpr, BLOCK: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """u of the columns from `start`, −∞ behind the row; the columns, and which are in the row.

    A tile's last axis is VEC columns that lie side by side in memory and are read at once.
    """
    unit = start // VEC + tl.arange(0, BLOCK // VEC)[:, None]
    col = unit * VEC + tl.arange(0, VEC)[None, :]
    inside = tl.broadcast_to(unit < units, (BLOCK // VEC, VEC))
    u = tl.load(logits + col, mask=inside, other=float("-inf")).to(tl.float32)
    if HAS_BIAS:
        u += tl.load(bias + col, mask=inside, other=0.0)
    u *= k
    if HAS_LOWER:
        u = tl.where(col == y, u - low, u)
    return u, col, inside


@triton.jit
def _write(grad, powers, col, inside, y, by, z, epsilon, n_classes):
    g = powers * (by / z) - by * (epsilon / n_classes)
    g = tl.where(col == y, g - by * (1 - epsilon), g)
    tl.store(grad + col, g, mask=inside)


@triton.jit(do_not_specialize=["units"])
def loss_kernel(
    logits, grad, target, bias, lower, coefficient, losses, units, stride, grad_stride, scale, k,
    epsilon,
    GRADIENT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LOWER: tl.constexpr,
    SMOOTHS: tl.constexpr, ONCE: tl.constexpr, BLOCK: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """ℓ of a row, 0 where c is, and with GRADIENT the gradient of c·ℓ.

    `units`, `stride` and `grad_stride` count VEC columns, so that the compiler sees how far rows
    are aligned. `grad` may be `logits`.
    """
    row = tl.program_id(0).to(tl.int64)
    n_classes = units * VEC
    logits += row * stride * VEC
    grad += row * grad_stride * VEC
    y = tl.load(target + row).to(tl.int32)
    tl.device_assert((y >= 0) & (y < n_classes), "longtail: a label is not a class")
    by = tl.load(coefficient + row) * scale
    u_y = tl.load(logits + y).to(tl.float32)
    if HAS_BIAS:
        u_y += tl.load(bias + y)
    low = 0.0
    if HAS_LOWER:
        low = tl.load(lower + y) * k
    u_y = u_y * k - low
    tilt = 0.0
    if ONCE:
        u, col, inside = _scores(logits, bias, 0, units, y, low, k, HAS_BIAS, HAS_LOWER, BLOCK, VEC)
        m = tl.max(tl.max(u, 1), 0)
        powers = tl.exp2(u - m)
        z = tl.sum(tl.sum(powers, 1), 0)
        if SMOOTHS:
            tilt = tl.sum(tl.sum(tl.where(inside, u, 0.0), 1), 0)
    else:
        ms = tl.full([BLOCK // VEC], LOWEST, tl.float32)
        zs = tl.zeros([BLOCK // VEC], tl.float32)
        for start in range(0, n_classes, BLOCK):
            u, col, inside = _scores(
                logits, bias, start, units, y, low, k, HAS_BIAS, HAS_LOWER, BLOCK, VEC
            )
            larger = tl.maximum(ms, tl.max(u, 1))
            zs = zs * tl.exp2(ms - larger) + tl.sum(tl.exp2(u - larger[:, None]), 1)
            ms = larger
            if SMOOTHS:
                tilt += tl.sum(tl.sum(tl.where(inside, u, 0.0), 1), 0)
        m = tl.max(ms, 0)
        z = tl.sum(zs * tl.exp2(ms - m), 0)
    # Far from zero, u_y and m agree in their first digits: their difference first.
    loss = tl.log2(z) + (m - u_y)
    if SMOOTHS:
        loss += epsilon * u_y - epsilon / n_classes * tilt
    tl.store(losses + row, tl.where(by == 0, 0.0, loss * LN2))
    if GRADIENT:
        if ONCE:
            _write(grad, powers, col, inside, y, by, z, epsilon, n_classes)
        else:
            blocks = tl.cdiv(n_classes, BLOCK)
            for turn in range(blocks):
                u, col, inside = _scores(
                    logits, bias, (blocks - 1 - turn) * BLOCK, units, y, low, k,
                    HAS_BIAS, HAS_LOWER, BLOCK, VEC,
                )  # fmt: skip
                _write(grad, tl.exp2(u - m), col, inside, y, by, z, epsilon, n_classes)


@triton.jit(do_not_specialize=["n"])
def scale_kernel(values, factor, n, BLOCK: tl.constexpr):
    """values ·= factor, in place; nothing is read or written where the factor is 1."""
    by = tl.load(factor).to(tl.float32)
    if by != 1.0:
        for start in range(tl.program_id(0).to(tl.int64) * BLOCK, n, tl.num_programs(0) * BLOCK):
            place = start + tl.arange(0, BLOCK)
            value = tl.load(values + place, mask=place < n, other=0.0)
            tl.store(values + place, value.to(tl.float32) * by, mask=place < n)
