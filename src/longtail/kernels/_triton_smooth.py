"""The Triton kernel of the additive losses with label smoothing; importing needs Triton.

Σ_c q_c·A_c·softplus(d_c) with q_c = ε/C, and 1 − ε more at the target: every class is once the
target, with its own margin. With z_c = Σ_{j≠c} 2^{u_j − m}, d_c = log(z_c·2^m) − t_c and o_c =
A_c·σ(d_c)/z_c, the gradient is s·[2^{u_j − m}·Σ_{c≠j} q_c·o_c − q_j·A_j·σ(d_j)].

A program takes a row and goes over it three times: for (m, z), for the sums over c, for the
gradient. The second and third time it finds the row in the caches, so the cost in memory traffic is
the same; in time it is not at the memory's limit, as the kernel without smoothing is meant to be.
"""

# mypy: ignore-errors
# (written in Triton's language: Python only to look at)

from __future__ import annotations

import triton
import triton.language as tl

from longtail.kernels._triton_parts import LOG2E, NEG_INF, PER_LOG2E, PER_LOG2E_REST, log1p, safe

FUSED = tl.constexpr(0)
FORWARD = tl.constexpr(1)
BACKWARD = tl.constexpr(2)


@triton.jit
def _row_parts(
    row, offset, positive, alpha, weight, col, n_classes, scale,
    HAS_OFFSET: tl.constexpr, HAS_POSITIVE: tl.constexpr, HAS_ALPHA: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
):  # fmt: skip
    """u in bits, t and A of some columns; −inf, 0 and 0 beyond the row."""
    inside = col < n_classes
    f = tl.load(row + col, mask=inside, other=0.0).to(tl.float32)
    u, t, a = f, f, inside.to(tl.float32)
    if HAS_OFFSET:
        u += tl.load(offset + col, mask=inside, other=0.0)
    if HAS_POSITIVE:
        t -= tl.load(positive + col, mask=inside, other=0.0)
    if HAS_ALPHA:
        a *= tl.load(alpha + col, mask=inside, other=0.0)
    if HAS_WEIGHT:
        a *= tl.load(weight + col, mask=inside, other=0.0)
    return tl.where(inside, u * scale * LOG2E, NEG_INF), tl.where(inside, t * scale, 0.0), a


@triton.jit
def _own_terms(u, t, col, m, rest, top):
    """e = 2^(u − m), z_c and d_c of some columns, each as if it were the target.

    The largest score has its z_c from a sum that never held it: 1 + rest − 1 would cancel. Where
    every class is masked there is no largest (top < 0), and nothing competes.
    """
    e = tl.exp2(u - m)
    z = tl.where((col == top) | (top < 0), rest, (1.0 + rest) - e)
    d = tl.fma(m, PER_LOG2E, -t) + tl.fma(m, PER_LOG2E_REST, tl.log(z))
    small = tl.exp2(-tl.abs(d) * LOG2E)
    sigmoid = tl.where(d > 0, 1.0, small) / (1.0 + small)
    return e, z, sigmoid, tl.where(d > 0, d, 0.0) + log1p(small)


@triton.jit
def smooth_kernel(
    logits, grad, target, offset, positive, alpha, weight, totals, upstream, losses,
    n_rows, n_classes, logits_stride, grad_stride, table_stride, scale, epsilon, ignore_index,
    MODE: tl.constexpr, MEAN: tl.constexpr, REDUCED: tl.constexpr, HAS_OFFSET: tl.constexpr,
    HAS_POSITIVE: tl.constexpr, HAS_ALPHA: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    TOTALS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row: its loss (before the reduction) and its gradient."""
    row_id = tl.program_id(0).to(tl.int64)
    group = row_id // n_rows
    table = group * table_stride
    row, out = logits + row_id * logits_stride, grad + row_id * grad_stride
    y = tl.load(target + row_id)
    counted = y != ignore_index
    valid = counted & (y >= 0) & (y < n_classes)
    lanes = tl.arange(0, BLOCK)

    # The largest score, where it is, and the sum of the others' powers relative to it.
    zero = (row_id * 0).to(tl.float32)
    m, rest, top = zero + NEG_INF, zero, (row_id * 0).to(tl.int32) - 1
    for start in range(0, n_classes, BLOCK):
        col = start + lanes
        u, t, a = _row_parts(
            row, offset + table, positive + table, alpha + table, weight + table, col, n_classes,
            scale, HAS_OFFSET, HAS_POSITIVE, HAS_ALPHA, HAS_WEIGHT,
        )  # fmt: skip
        peak = tl.max(u)
        at = tl.min(tl.where(u == peak, col, n_classes))
        others = tl.sum(tl.where(col == at, 0.0, tl.exp2(u - safe(peak))))
        to = safe(tl.maximum(m, peak))
        grown = others + (rest + (m > NEG_INF).to(tl.float32)) * tl.exp2(m - to)
        same = rest + (others + (peak > NEG_INF).to(tl.float32)) * tl.exp2(peak - to)
        rest = tl.where(peak > m, grown, same)
        top = tl.where(peak > m, at, top)
        m = tl.maximum(m, peak)
    m = safe(m)

    q = epsilon / n_classes
    plain = tl.zeros([BLOCK], tl.float32)  # Σ q·A·softplus(d) over all classes
    shares = tl.zeros([BLOCK], tl.float32)  # Σ q·o over all but the target and the largest
    share_top, share_y, loss_y = zero, zero, zero
    for start in range(0, n_classes, BLOCK):
        col = start + lanes
        u, t, a = _row_parts(
            row, offset + table, positive + table, alpha + table, weight + table, col, n_classes,
            scale, HAS_OFFSET, HAS_POSITIVE, HAS_ALPHA, HAS_WEIGHT,
        )  # fmt: skip
        e, z, sigmoid, soft = _own_terms(u, t, col, m, rest, top)
        inside = col < n_classes
        o = tl.where(inside & (z > 0), a * sigmoid / z, 0.0)
        soft = tl.where(inside, a * soft, 0.0)
        plain += q * soft
        shares += tl.where((col != y) & (col != top), q * o, 0.0)
        share_top += tl.sum(tl.where((col == top) & (col != y), q * o, 0.0))
        share_y += tl.sum(tl.where(col == y, (1.0 - epsilon + q) * o, 0.0))
        loss_y += tl.sum(tl.where(col == y, (1.0 - epsilon) * soft, 0.0))
    total = tl.sum(shares)
    if MODE != BACKWARD:
        loss = tl.where(valid, tl.sum(plain) + loss_y, tl.where(counted, float("nan"), 0.0))
        tl.store(losses + row_id, loss)

    if MODE != FORWARD:
        factor = tl.where(valid, zero + scale, tl.where(counted, float("nan"), 0.0))
        if MEAN:
            denominator = tl.sum(tl.load(totals + group * TOTALS + tl.arange(0, TOTALS)))
            factor = tl.where(counted, factor / denominator, 0.0)
        if MODE == BACKWARD:
            factor *= tl.load(upstream + (group if REDUCED else row_id)).to(tl.float32)
        for start in range(0, n_classes, BLOCK):
            col = start + lanes
            u, t, a = _row_parts(
                row, offset + table, positive + table, alpha + table, weight + table, col,
                n_classes, scale, HAS_OFFSET, HAS_POSITIVE, HAS_ALPHA, HAS_WEIGHT,
            )  # fmt: skip
            e, z, sigmoid, soft = _own_terms(u, t, col, m, rest, top)
            o = tl.where(z > 0, a * sigmoid / z, 0.0)
            plain_one = (col != y) & (col != top)
            others = total - tl.where(plain_one, q * o, 0.0)
            others += tl.where(col != top, share_top, 0.0) + tl.where(col != y, share_y, 0.0)
            mine = tl.where(col == y, 1.0 - epsilon + q, q) * a * sigmoid
            g = tl.where(counted, factor * (e * others - mine), 0.0)
            tl.store(out + col, g, mask=col < n_classes)
