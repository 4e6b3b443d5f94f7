"""The Triton kernels of `cross_entropy`; importing needs Triton.

With k = s·log2 e, a row's competitors are u_j = k·(f_j + b_j), the target's lowered by k·lower_y:

    lse = m + log2 Σ_j 2^(u_j − m)
    loss = A·(lse − u_y)/log2 e
    gradient = s·A·(2^(u_j − lse) − [j = y])

and A is the weight of the target's class, over the mean's divisor. With smoothing ε, A·lse becomes
(A·(1 − ε) + Σ_c ε_c)·lse, and Σ_c ε_c·u_c is taken off, ε_c = ε/C·w_c.

A program keeps the columns of one slice, with their part of the bias in registers, and goes down
the rows; the next row arrives while it works on one. A row wider than a slice needs the sums of all
its slices before its gradient can be written: each program leaves its (m, z) in a 64-bit word,
keeps the powers 2^(u_j − m) in registers, and writes the gradient in the next turn, when the other
words have arrived. So the logits are read once, as if a row fitted into one program.
"""

# mypy: ignore-errors
# (Triton's language)

from __future__ import annotations

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
NEG_INF = tl.constexpr(float("-inf"))


@triton.jit
def divisor_kernel(
    target, weight, totals, n_rows, n_classes, per_program, ignore_index,
    HAS_WEIGHT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Check the labels, and sum what the mean divides by, in parts."""
    part = tl.program_id(0)
    end = tl.minimum((part + 1) * per_program, n_rows)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(part * per_program, end, BLOCK):
        row = start + tl.arange(0, BLOCK)
        y = tl.load(target + row, mask=row < end, other=ignore_index)
        counted = y != ignore_index
        valid = (y >= 0) & (y < n_classes)
        tl.device_assert(valid | ~counted, "longtail: a label is no class and not ignore_index")
        if HAS_WEIGHT:
            total += tl.load(weight + y, mask=counted & valid, other=0.0)
        else:
            total += counted.to(tl.float32)
    tl.store(totals + part, tl.sum(total, 0))


@triton.jit
def _pack(m, z):
    """Two float32 in one word, which is written and read whole: it needs no fence and no flag."""
    high = m.to(tl.int32, bitcast=True).to(tl.int64) << 32
    return high | (z.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def _combined(words, word, there, WAIT: tl.constexpr):
    """(m, z) of a row from the words of its slices; −1, a NaN, is a word not written yet."""
    if WAIT:
        while tl.max((word == -1).to(tl.int32), 0) != 0:
            word = tl.load(words, mask=there, other=0, volatile=True)
    ms = tl.where(there, (word >> 32).to(tl.int32).to(tl.float32, bitcast=True), NEG_INF)
    zs = tl.where(there, word.to(tl.int32).to(tl.float32, bitcast=True), 0.0)
    m = _finite(tl.max(ms, 0))
    return m, tl.sum(zs * tl.exp2(ms - m), 0)


@triton.jit
def _finite(m):
    """A shift of the exponents that is finite where every class is masked."""
    return tl.where(m == NEG_INF, 0.0, m)


@triton.jit
def _label(
    label, logits, bias, weight, lower, row, stride, k, n_classes, ignore_index,
    HAS_BIAS: tl.constexpr, HAS_LOWER: tl.constexpr, HAS_WEIGHT: tl.constexpr,
):  # fmt: skip
    """The class (−1 where the row does not count), its weight A, k·lower, and u_y with that off."""
    counted = (label != ignore_index) & (label >= 0) & (label < n_classes)
    y = tl.where(counted, label, -1).to(tl.int32)
    u = tl.load(logits + row * stride + y, mask=counted, other=0.0).to(tl.float32) * k
    if HAS_BIAS:
        u += tl.load(bias + y, mask=counted, other=0.0) * k
    a, low = u * 0.0 + 1.0, u * 0.0
    if HAS_WEIGHT:
        a = tl.load(weight + y, mask=counted, other=0.0)
    if HAS_LOWER:
        low = k * tl.load(lower + y, mask=counted, other=0.0)
    return y, a, low, u - low


@triton.jit
def _lowered(u, unit, y, low, HAS_LOWER: tl.constexpr, VEC: tl.constexpr):
    """Take `low` off at place y of a tile."""
    if HAS_LOWER:
        there = (unit == y // VEC) & (tl.arange(0, VEC)[None, :] == y % VEC)
        u = tl.where(there, u - low, u)
    return u


@triton.jit
def _read(logits, start, unit, end, PACKED: tl.constexpr, VEC: tl.constexpr):
    """Logits of units before `end`, as they wait in registers: PACKED, two of them in each."""
    mask = unit < end  # compared anew for each row: masks kept for the next take registers
    if PACKED:
        pairs = logits.to(tl.pointer_type(tl.int32), bitcast=True) + start * (VEC // 2)
        place = unit * (VEC // 2) + tl.arange(0, VEC // 2)[None, :]
        x = tl.load(pairs + place, mask=mask, other=0)
    else:
        place = unit * VEC + tl.arange(0, VEC)[None, :]
        x = tl.load(logits + start * VEC + place, mask=mask, other=0.0)
    return x


@triton.jit
def _numbers(x, KIND: tl.constexpr, PACKED: tl.constexpr, VEC: tl.constexpr):
    """Logits as float32."""
    if PACKED:
        low = x.to(tl.int16).to(KIND, bitcast=True)
        high = (x >> 16).to(tl.int16).to(KIND, bitcast=True)
        x = tl.reshape(tl.join(low, high), (x.shape[0], VEC))
    return x.to(tl.float32)


@triton.jit
def _row_loss(y, a, u, m, z, keep, total):
    """(1 − ε)·A·(lse − u_y) + Σ ε_c·lse of a row, from its u_y; 0 where y is −1."""
    lse = tl.log2(z)  # far from zero, u and m agree in their first digits: their difference first
    loss = keep * a * (lse - (u - m)) + total * (lse + m)
    return tl.where(y >= 0, loss * LN2, 0.0)


@triton.jit
def _rounded(x, KIND: tl.constexpr):
    """A scalar or a few numbers, to the nearest bfloat16: their own conversion cuts digits off."""
    if tl.bfloat16 == KIND:
        bits = x.to(tl.int32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        x = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return x


@triton.jit
def _write(
    grad, losses, upstream, smooth, e, epsilon, e_edge, epsilon_edge, edge, edged,
    own, row, y, a, u, m, z, share, scale, keep, total, start, phase, unit, end, ready, mine,
    SUMS: tl.constexpr, PER_ROW: tl.constexpr, HAS_UPSTREAM: tl.constexpr,
    HAS_SMOOTH: tl.constexpr, EDGES: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """Write a row's gradient from e = 2^(u − own), and where it has the target, its loss."""
    by = share * scale
    if HAS_UPSTREAM:
        by *= tl.load(upstream + (row if PER_ROW else 0), mask=ready, other=0.0)
    by = tl.where(y >= 0, by, 0.0)  # where nothing counts the share is infinite
    pull = by * keep * a
    factor = tl.where(z != 0, (pull + by * total) / z, 0.0)
    ratio = factor * tl.exp2(own - m)
    g = e * ratio
    if HAS_SMOOTH:
        g -= epsilon * by
    grad += start * VEC
    tl.store(
        grad + (unit * VEC + tl.arange(0, VEC)[None, :]), g, mask=unit < tl.where(ready, end, 0)
    )
    if EDGES:
        g_edge = e_edge * ratio
        if HAS_SMOOTH:
            g_edge -= epsilon_edge * by
        tl.store(grad + phase + edge, _rounded(g_edge, grad.dtype.element_ty), mask=edged & ready)
    if mine:
        at_y = factor * tl.exp2(u - m) - pull
        if HAS_SMOOTH:
            at_y -= by * tl.load(smooth + y, mask=y >= 0, other=0.0)
        tl.debug_barrier()  # after what has just been written in its place
        tl.store(grad + phase + y, _rounded(at_y, grad.dtype.element_ty), mask=ready & (y >= 0))
        if SUMS:
            tl.store(losses + row, share * _row_loss(y, a, u, m, z, keep, total), mask=ready)


@triton.jit(do_not_specialize=["lanes", "n_slices", "width", "ignore_index"])
def loss_kernel(
    logits, grad, target, bias, lower, weight, smooth, smooth_total, totals, upstream, losses,
    tilts, words, n_rows, n_classes, stride, grad_stride, n_slices, width, lanes, scale, k, keep,
    ignore_index,
    SUMS: tl.constexpr, GRADS: tl.constexpr, PER_ROW: tl.constexpr, HAS_UPSTREAM: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_LOWER: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    HAS_SMOOTH: tl.constexpr, TOTALS: tl.constexpr, PART: tl.constexpr,
    EDGES: tl.constexpr, VEC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """SUMS: the words of the slices. GRADS: the gradient, from the words. Both: the losses, too.

    Columns are counted in units of VEC elements that are aligned in memory. All rows of a program
    start at the same `phase` of a unit. With EDGES, the ends of a row that fill no unit are read
    and written by elements, by the program of the first slice. PART is the number of slices,
    filled up to a power of two; TOTALS, the divisor's parts.
    """
    LATER: tl.constexpr = SUMS and GRADS and PART > 1  # the gradient follows a turn later
    PACKED: tl.constexpr = logits.dtype.element_ty.primitive_bitwidth == 16 and VEC > 1
    KIND: tl.constexpr = logits.dtype.element_ty
    row, part = (tl.program_id(0) // n_slices).to(tl.int64), tl.program_id(0) % n_slices
    phase = (row * stride % VEC).to(tl.int32) if EDGES else 0
    first = (phase + VEC - 1) // VEC
    last = (phase + n_classes) // VEC
    unit = first + part * width + tl.arange(0, BLOCK // VEC)[:, None]
    end = tl.minimum(first + (part + 1) * width, last)
    inside = tl.broadcast_to(unit < end, (BLOCK // VEC, VEC))
    col = unit * VEC + tl.arange(0, VEC)[None, :] - phase
    tail = tl.arange(0, 2 * VEC) >= VEC
    edge = tl.where(tail, last * VEC, 0) + tl.arange(0, 2 * VEC) % VEC - phase
    edged = (tail & (last >= first)) | ((tail == 0) & (phase > 0))
    edged &= (edge >= 0) & (edge < n_classes) & (part == 0)
    b, b_edge = tl.where(inside, 0.0, NEG_INF), tl.where(edged, 0.0, NEG_INF)
    if HAS_BIAS:
        b = tl.load(bias + col, mask=inside, other=NEG_INF) * k
        if EDGES:
            b_edge = tl.load(bias + edge, mask=edged, other=NEG_INF) * k
    total, epsilon, epsilon_edge = 0.0, 0.0, 0.0
    if HAS_SMOOTH:
        epsilon = tl.load(smooth + col, mask=inside, other=0.0)
        if EDGES:
            epsilon_edge = tl.load(smooth + edge, mask=edged, other=0.0)
        total = tl.load(smooth_total)
    share = 1.0
    if TOTALS > 0:
        share /= tl.sum(tl.load(totals + tl.arange(0, TOTALS)), 0)
    slices = tl.arange(0, PART)
    live = row < n_rows
    x = _read(logits, row * stride // VEC, unit, tl.where(live, end, 0), PACKED, VEC)
    x_edge, e_edge = k, k  # of no use without edges
    if EDGES:
        x_edge = tl.load(logits + row * stride + edge, mask=edged & live, other=0.0)
        e_edge = x_edge.to(tl.float32)
    label = tl.load(target + row, mask=live, other=ignore_index)
    turns = ((n_rows - row + lanes - 1) // lanes).to(tl.int32)
    zero = k * 0.0
    if LATER:
        turns += 1
        y0, a0, u0, m0 = (zero - 1.0).to(tl.int32), zero, zero, zero
        kept, kept_edge = tl.zeros([BLOCK // VEC, VEC], tl.float32), e_edge
    for _ in range(turns):
        live = row < n_rows
        old = row - lanes
        ready = old >= 0
        more = row + lanes < n_rows
        following = _read(
            logits, (row + lanes) * stride // VEC, unit, tl.where(more, end, 0), PACKED, VEC
        )
        following_edge = x_edge
        if EDGES:
            following_edge = tl.load(
                logits + (row + lanes) * stride + edge, mask=edged & more, other=0.0
            )
        next_label = tl.load(target + row + lanes, mask=more, other=ignore_index)
        y, a, low, u_y = _label(
            label, logits, bias, weight, lower, row, stride, k, n_classes, ignore_index,
            HAS_BIAS, HAS_LOWER, HAS_WEIGHT,
        )  # fmt: skip
        if not SUMS or LATER:
            there = (slices < n_slices) & (ready if LATER else live)
            place = words + (old if LATER else row) * n_slices + slices
        u = _numbers(x, KIND, PACKED, VEC) * k + b
        if EDGES:
            u_edge = x_edge.to(tl.float32) * k + b_edge
        if SUMS and HAS_SMOOTH:
            tilt = tl.sum(tl.sum(tl.where(epsilon != 0, epsilon * u, 0.0), 1), 0)
            if EDGES:
                tilt += tl.sum(tl.where(epsilon_edge != 0, epsilon_edge * u_edge, 0.0), 0)
            tilt = tl.where(y >= 0, tilt * (share * LN2), 0.0)
            tl.store(tilts + row * n_slices + part, tilt, mask=live)
        u = _lowered(u, unit, y + phase, low, HAS_LOWER, VEC)
        if EDGES and HAS_LOWER:
            u_edge = tl.where(edge == y, u_edge - low, u_edge)
        if SUMS:
            m = tl.max(tl.max(u, 1), 0)
            if EDGES:
                m = tl.maximum(m, tl.max(u_edge, 0))
        if LATER or not SUMS:
            word = tl.load(place, mask=there, other=0, volatile=True)
        if SUMS:
            e = tl.exp2(u - _finite(m))
            z = tl.sum(tl.sum(e, 1), 0)
            if EDGES:
                e_edge = tl.exp2(u_edge - _finite(m))
                z += tl.sum(e_edge, 0)
            if LATER or not GRADS:
                tl.store(words + row * n_slices + part, _pack(m, z), mask=live)
        if LATER:
            m_row, z_row = _combined(place, word, there, True)
            at = (y0 + phase) // VEC
            mine = tl.where((at >= first) & (at < last), (at - first) // width, 0) == part
            _write(
                grad, losses, upstream, smooth, kept, epsilon, kept_edge, epsilon_edge, edge,
                edged, m0, old, y0, a0, u0, m_row, z_row, share, scale, keep, total,
                old * grad_stride // VEC, phase, unit, end, ready, mine,
                SUMS, PER_ROW, HAS_UPSTREAM, HAS_SMOOTH, EDGES, VEC,
            )  # fmt: skip
            y0, a0, u0, m0 = y, a, u_y, m
            kept, kept_edge = e, e_edge
        elif GRADS:
            if SUMS:
                m = _finite(m)
            else:
                m, z = _combined(place, word, there, False)
                e = tl.exp2(u - m)
                if EDGES:
                    e_edge = tl.exp2(u_edge - m)
            at = (y + phase) // VEC
            mine = tl.where((at >= first) & (at < last), (at - first) // width, 0) == part
            _write(
                grad, losses, upstream, smooth, e, epsilon, e_edge, epsilon_edge, edge, edged, m,
                row, y, a, u_y, m, z, share, scale, keep, total,
                row * grad_stride // VEC, phase, unit, end, live, mine,
                SUMS, PER_ROW, HAS_UPSTREAM, HAS_SMOOTH, EDGES, VEC,
            )  # fmt: skip
        x, x_edge, label = following, following_edge, next_label
        row += lanes


@triton.jit
def losses_kernel(
    logits, target, bias, lower, weight, smooth_total, totals, losses, words,
    n_rows, n_classes, stride, n_slices, k, keep, ignore_index,
    HAS_BIAS: tl.constexpr, HAS_LOWER: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    HAS_SMOOTH: tl.constexpr, TOTALS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """The losses from the words, one program for each row."""
    row = tl.program_id(0)
    share, total = 1.0, 0.0
    if TOTALS > 0:
        share /= tl.sum(tl.load(totals + tl.arange(0, TOTALS)), 0)
    if HAS_SMOOTH:
        total = tl.load(smooth_total)
    slices = tl.arange(0, PART)
    place = words + row.to(tl.int64) * n_slices + slices
    word = tl.load(place, mask=slices < n_slices, other=0)
    m, z = _combined(place, word, slices < n_slices, False)
    label = tl.load(target + row)
    y, a, _, u = _label(
        label, logits, bias, weight, lower, row.to(tl.int64), stride, k, n_classes, ignore_index,
        HAS_BIAS, HAS_LOWER, HAS_WEIGHT,
    )  # fmt: skip
    tl.store(losses + row, share * _row_loss(y, a, u, m, z, keep, total))


@triton.jit(do_not_specialize=["n"])
def scale_kernel(values, factor, n, BLOCK: tl.constexpr):
    """values ·= factor, in place; nothing is read or written where the factor is 1."""
    by = tl.load(factor).to(tl.float32)
    if by != 1.0:
        for start in range(tl.program_id(0).to(tl.int64) * BLOCK, n, tl.num_programs(0) * BLOCK):
            place = start + tl.arange(0, BLOCK)
            value = tl.load(values + place, mask=place < n, other=0.0)
            tl.store(values + place, value.to(tl.float32) * by, mask=place < n)
