"""What the tile kernel is made of: windows, fringe, powers, words between programs.

`_triton` says what it is for. Everything here is inlined into the kernel by the compiler.
"""

# mypy: ignore-errors
# (written in Triton's language: Python only to look at)

from __future__ import annotations

import triton
import triton.language as tl

# log2 e as float32 has it, and the inverse of exactly that number in two parts.
LOG2E = tl.constexpr(1.4426950216293335)
PER_LOG2E = tl.constexpr(0.6931471824645996)
PER_LOG2E_REST = tl.constexpr(7.348693e-09)
NEG_INF = tl.constexpr(float("-inf"))


@triton.jit
def powers(u, m):
    """2^(u·log2 e − m), one multiply-add and one power; m counts in powers of two."""
    return tl.exp2(u * LOG2E - m)


@triton.jit
def safe(m):
    """A shift that is finite where every competitor is masked."""
    return tl.where(m == NEG_INF, 0.0, m)


@triton.jit
def log1p(x):
    """log(1 + x) for 0 ≤ x ≤ 1, to full relative accuracy: the rounding of 1 + x is put back."""
    w = 1.0 + x
    return tl.log(w) + (x - (w - 1.0)) / w


@triton.jit
def row_loss(m, z, t):
    """softplus(d) with d = log(z·2^m) − t."""
    # m/log2 e − t rounds once: the product is exact inside the multiply-add.
    d = tl.fma(m, PER_LOG2E, -t) + tl.fma(m, PER_LOG2E_REST, tl.log(z))
    return tl.where(d > 0, d, 0.0) + log1p(tl.exp2(-tl.abs(d) * LOG2E))


@triton.jit
def down(v, ROWS: tl.constexpr):
    """A value per row, ready to meet a tile: a scalar where the tile is a single row."""
    if ROWS > 1:
        v = v[:, None]
    return v


@triton.jit
def along(n: tl.constexpr, ROWS: tl.constexpr):
    """0 .. n − 1 along the columns of a tile."""
    v = tl.arange(0, n)
    if ROWS > 1:
        v = v[None, :]
    return v


@triton.jit
def pack(high, low):
    """Two float32 in one word, which is written and read whole: no fence, no flag beside it."""
    high = high.to(tl.int32, bitcast=True).to(tl.int64) << 32
    return high | (low.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def unpack(word):
    high = (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return high, word.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def await_words(words, mask):
    """Read the words once all of them have been written; none that is written is −1, a NaN.

    Programs start in the order of their ids, so whoever waits for lower ids waits for programs
    that run or have ended.
    """
    word = tl.load(words, mask=mask, other=0, volatile=True)
    while tl.max((word == -1).to(tl.int32)) != 0:
        word = tl.load(words, mask=mask, other=0, volatile=True)
    return word


@triton.jit
def gather(words, rows, inside, n_slices, PART: tl.constexpr, ROWS: tl.constexpr):
    """The whole row's (m, z) from those of its slices."""
    slices = along(PART, ROWS)
    there = (slices < n_slices) & down(inside, ROWS)
    if ROWS > 1:
        word = tl.reshape(
            await_words(
                tl.reshape(words + down(rows * n_slices, ROWS) + slices, [ROWS * PART]),
                tl.reshape(there, [ROWS * PART]),
            ),
            [ROWS, PART],
        )
    else:
        word = await_words(words + rows * n_slices + slices, there)
    ms, zs = unpack(word)
    ms, zs = tl.where(there, ms, NEG_INF), tl.where(there, zs, 0.0)
    axis: tl.constexpr = 1 if ROWS > 1 else 0
    m = safe(tl.max(ms, axis=axis))
    return m, tl.sum(zs * tl.exp2(ms - down(m, ROWS)), axis=axis)


@triton.jit
def sum_words(words, n, BLOCK: tl.constexpr):
    """Σ of n float32 words, as soon as they are written, in a fixed order: the same every time."""
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        place = start + tl.arange(0, BLOCK)
        total += await_words(words + place, place < n).to(tl.float32, bitcast=True)
    return tl.sum(total)


@triton.jit
def collect(words, sums, loss, losses, tile, tiles, group, denominator, HERD: tl.constexpr):
    """Hand in a tile's loss; the last of every HERD tiles adds theirs, the last of all the sums."""
    words += group * tiles
    tl.store(words + tile, losses.to(tl.int32, bitcast=True))
    last = tile == tiles - 1
    if (tile % HERD == HERD - 1) | last:
        herd, herds = tile // HERD, (tiles + HERD - 1) // HERD
        sums += group * herds
        total = sum_words(words + herd * HERD, tile - herd * HERD + 1, HERD)
        tl.store(sums + herd, total.to(tl.int32, bitcast=True))
        if last:
            tl.store(loss + group, sum_words(sums, herds, HERD) / denominator)


@triton.jit
def slice_of(place, BLOCK: tl.constexpr, SPLIT: tl.constexpr):
    """Which slice of its row a place belongs to."""
    return place // BLOCK if SPLIT else place * 0


@triton.jit
def locate(
    tile, n_rows, n_classes, tiles, stride,
    GROUPED: tl.constexpr, SHIFTED: tl.constexpr, VEC: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Where a tile's rows lie.

    Addresses are read in windows that start on 16 bytes (VEC elements), at most VEC − 1 columns
    left of the row: `shift`. In a window, the row's own whole words run from `low` to `high`.
    """
    group, local = tile * 0, tile
    if GROUPED:
        group, local = tile // tiles, tile % tiles
    local *= ROWS
    if ROWS > 1:
        local += tl.arange(0, ROWS)
    inside = local < n_rows
    rows = group.to(tl.int64) * n_rows + local
    start = rows * stride
    shift = (start & (VEC - 1) if SHIFTED else start * 0).to(tl.int32)
    low = tl.where(shift > 0, VEC, 0)
    high = (shift + n_classes) & -VEC
    return group, local, rows, inside, start, shift, low, high


@triton.jit
def whole_words(slice_id, low, high, UNIT: tl.constexpr, VEC: tl.constexpr, BLOCK: tl.constexpr,
            ROWS: tl.constexpr):  # fmt: skip
    """Places of a tile's columns in units of UNIT elements, and which words are the row's own.

    The mask is constant over each 16-byte word: without that the compiler would load and store
    element by element.
    """
    STEP: tl.constexpr = VEC // UNIT
    window = slice_id * (BLOCK // UNIT) + along(BLOCK // UNIT, ROWS)
    low = down(tl.multiple_of(low // VEC * STEP, STEP), ROWS)
    high = down(tl.multiple_of(high // VEC * STEP, STEP), ROWS)
    return window, (window >= low) & (window < high)


@triton.jit
def outside_word(window, own, UNIT: tl.constexpr, VEC: tl.constexpr, ROWS: tl.constexpr):
    """Whether a place lies outside the word that starts at `own`; constant over words too."""
    STEP: tl.constexpr = VEC // UNIT
    own = down(tl.multiple_of(own // VEC * STEP, STEP), ROWS)
    return (window < own) | (window >= own + STEP)


@triton.jit
def fringe_places(
    shift, low, high, own, y, n_classes, slice_id,
    VEC: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Places in up to three words that are read and written by elements, and which are the row's.

    The first and the last word of a row may belong to its neighbours too, and the target's word
    (`own`) holds the one class that does not compete.
    """
    # Backwards, so that these few elements are spread over threads, not stacked in one.
    j = (4 * VEC - 1) - along(4 * VEC, ROWS)
    word = j // VEC
    base = tl.where(word == 1, down(high, ROWS), tl.where(word == 2, down(own, ROWS), 0))
    head = (word == 0) & down((shift > 0) & (slice_id == 0), ROWS)
    tail = (word == 1) & down((high >= low) & (slice_of(high, BLOCK, SPLIT) == slice_id), ROWS)
    inner = (own >= low) & (own < high) & (slice_of(own, BLOCK, SPLIT) == slice_id)
    place = base + j % VEC
    col = place - down(shift, ROWS)
    taken = head | tail | ((word == 2) & down(inner, ROWS))
    return place, taken & (col >= 0) & (col < n_classes) & (col != down(y, ROWS))


@triton.jit
def scores(x, b, scale, HAS_OFFSET: tl.constexpr, HAS_SCALE: tl.constexpr):
    """u = s·(f + b)."""
    u = x.to(tl.float32)
    if HAS_OFFSET:
        u += b
    if HAS_SCALE:
        u *= scale
    return u


@triton.jit
def row_factor(alpha, weight, y, counted, valid, HAS_ALPHA: tl.constexpr, HAS_WEIGHT: tl.constexpr):
    """A = α_y·w_y; 0 where a row does not count, NaN for no class."""
    a = tl.where(counted, tl.where(valid, 1.0, float("nan")), 0.0)
    if HAS_ALPHA:
        a *= tl.load(alpha + y, mask=valid, other=1.0)
    if HAS_WEIGHT:
        a *= tl.load(weight + y, mask=valid, other=1.0)
    return a


@triton.jit
def target_terms(
    row, positive, alpha, weight, table, y, counted, valid, scale,
    HAS_POSITIVE: tl.constexpr, HAS_ALPHA: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    HAS_SCALE: tl.constexpr,
):  # fmt: skip
    """t = s·(f_y − a_y), and A of `row_factor`."""
    t = tl.load(row + y, mask=valid, other=0.0).to(tl.float32)
    if HAS_POSITIVE:
        t -= tl.load(positive + table + y, mask=valid, other=0.0)
    if HAS_SCALE:
        t *= scale
    return t, row_factor(alpha + table, weight + table, y, counted, valid, HAS_ALPHA, HAS_WEIGHT)


@triton.jit
def numbers(x, HALVES: tl.constexpr):
    """Logits as read: pairs of two bytes as they are, others in float32."""
    if HALVES == 1:
        x = x.to(tl.float32)
    return x


@triton.jit
def tile_scores(
    x, offset, window, mask, pitch, scale, HAS_OFFSET: tl.constexpr, HAS_SCALE: tl.constexpr,
    ALIGNED: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    """u of a tile in float32: the even and the odd places if HALVES is 2."""
    if HALVES == 2:  # two-byte logits, read as pairs
        even = (x << 16).to(tl.float32, bitcast=True)
        odd = (x & -65536).to(tl.float32, bitcast=True)
        b, b_odd = even, odd
        if HAS_OFFSET:
            b = tl.load(offset + window)
            b_odd = tl.load(offset + pitch // 2 + window)
        u = scores(even, b, scale, HAS_OFFSET, HAS_SCALE)
        u_odd = scores(odd, b_odd, scale, HAS_OFFSET, HAS_SCALE)
    else:
        b = tl.zeros_like(x).to(tl.float32)
        if HAS_OFFSET:
            if ALIGNED:
                b = tl.load(offset + window)
            else:
                b = tl.load(offset + window, mask=mask, other=0.0)
        u = scores(x, b, scale, HAS_OFFSET, HAS_SCALE)
        u_odd = u
    return u, u_odd


@triton.jit
def powers_sum(u, u_odd, f, m, special, AXIS: tl.constexpr, ALIGNED: tl.constexpr,
                HALVES: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """e = 2^(u − m) of a tile, and its sum with the fringe's."""
    e, e_odd = powers(u, down(m, ROWS)), powers(u_odd, down(m, ROWS))
    z = tl.sum(e + e_odd if HALVES == 2 else e, axis=AXIS)
    if ALIGNED:  # noqa: SIM102 (one is the compiler's, one the program's)
        if special:
            z += tl.sum(powers(f, down(m, ROWS)), axis=AXIS)
    return e, e_odd, z


@triton.jit
def write(
    grad, e, e_odd, f, ratio, c, pull, m, y, here, special, place, edge, rows, inside, shift, low,
    high, own, slice_id, n_classes, grad_stride,
    ALIGNED: tl.constexpr, HALVES: tl.constexpr, VEC: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile: whole words, then the fringe and the target by elements."""
    kind: tl.constexpr = grad.dtype.element_ty
    g = (e * down(ratio, ROWS)).to(kind)
    start = rows * grad_stride
    if ALIGNED:
        if HALVES == 2:
            g = tl.interleave(g, (e_odd * down(ratio, ROWS)).to(kind))
        window, mask = whole_words(slice_id, low, high, 1, VEC, BLOCK, ROWS)
        to = grad + down(tl.multiple_of(start - shift, VEC), ROWS) + window
        if special:
            mask &= outside_word(window, own, 1, VEC, ROWS) & down(inside, ROWS)
            tl.store(to, g, mask=mask, eviction_policy="evict_first")
            edges = powers(f, down(m, ROWS)) * down(c, ROWS)
            at = grad + down(start - shift, ROWS) + place
            tl.store(at, edges, mask=edge & down(inside, ROWS))
        else:
            tl.store(to, g, eviction_policy="evict_first")
    else:
        window = slice_id * BLOCK + along(BLOCK, ROWS)
        mask = (window < n_classes) & (window != down(y, ROWS)) & down(inside, ROWS)
        tl.store(grad + down(start, ROWS) + window, g, mask=mask)
    tl.store(grad + start + y, -pull, mask=here)
