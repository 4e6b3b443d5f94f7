"""The Triton kernels of the additive losses without label smoothing; importing needs Triton.

`cross_entropy` decides what to launch. With u = s·(f + b), t = s·(f_y − a_y) and A = α_y·w_y, the
loss of a row is A·softplus(d), d = log Σ_{j≠y} e^{u_j} − t, and its gradient is A·s·σ(d) times the
softmax of u over j ≠ y, and −A·s·σ(d) at the target: the target stays out of the log-sum-exp, so a
tiny loss keeps its digits. Powers are of two: m and u·log2 e count in bits.

A tile is ROWS rows by BLOCK columns, held in registers: read once, written once. Rows wider than a
tile are split into slices, a program for each, which tell each other their (m, z) through memory.
What is fast on a GPU shapes this file: 16-byte loads whatever the row length, few registers (else
few programs run at once and memory latency shows), no atomics, no second launch to reduce.
"""

# mypy: ignore-errors
# (written in Triton's language: Python only to look at)

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from longtail.kernels._triton_parts import (
    LOG2E,
    NEG_INF,
    along,
    collect,
    down,
    fringe_places,
    gather,
    locate,
    numbers,
    outside_word,
    pack,
    powers,
    powers_sum,
    row_loss,
    safe,
    scores,
    slice_of,
    sum_words,
    target_terms,
    tile_scores,
    whole_words,
    write,
)

FUSED = tl.constexpr(0)  # loss and gradient, one launch
FORWARD = tl.constexpr(1)  # loss and per-row statistics
BACKWARD = tl.constexpr(2)  # gradient from the statistics


@triton.jit
def targets_kernel(
    target, weight, offset, totals, words, shifted,
    n_rows, n_classes, n_words, n_copies, per_program, table_stride, pitch, scale, ignore_index,
    HAS_WEIGHT: tl.constexpr, HAS_OFFSET: tl.constexpr, TOTALS: tl.constexpr, PHASES: tl.constexpr,
    STEP: tl.constexpr, HALVES: tl.constexpr, LEAD: tl.constexpr, CHAINED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Before the tiles: check the labels, sum the mean's denominator in parts, lay out tables.

    Clears the words that the tiles' programs write to each other, and makes PHASES copies of the
    offset, copy p shifted right by p·STEP columns, so that rows which start off a 16-byte
    boundary read it in whole words too. With HALVES = 2 a copy has the even places first, then
    the odd ones, as logits of two bytes come out of a four-byte register. With LEAD > 0 the table
    is `words_kernel`'s: in bits, times the scale, −inf in LEAD places before the row and behind it.
    """
    if CHAINED:
        # It may have started before what came before has ended. Only now that has, and only now
        # the tiles' programs may start: they read the call's tensors before they wait for this one.
        gdc_wait()
        gdc_launch_dependents()
    part, group = tl.program_id(0), tl.program_id(1)
    lanes = tl.arange(0, BLOCK)
    if part < TOTALS:
        first = part * per_program
        end = tl.minimum(first + per_program, n_rows)
        total = tl.zeros([BLOCK], tl.float32)
        for start in range(first, end, BLOCK):
            inside = start + lanes < end
            rows = group.to(tl.int64) * n_rows + start + lanes
            y = tl.load(target + rows, mask=inside, other=ignore_index)
            counted = inside & (y != ignore_index)
            valid = (y >= 0) & (y < n_classes)
            tl.device_assert(valid | ~counted, "longtail: a label is no class and not ignore_index")
            if HAS_WEIGHT:
                row = weight + group.to(tl.int64) * table_stride
                total += tl.load(row + y, mask=counted & valid, other=0.0).to(tl.float32)
            else:
                total += counted.to(tl.float32)
        tl.store(totals + group * TOTALS + part, tl.sum(total))
        return
    # Other programs than those of the labels, so that nobody waits for two things in turn.
    programs = (tl.num_programs(0) - TOTALS) * tl.num_programs(1)
    mine = group * (tl.num_programs(0) - TOTALS) + part - TOTALS
    blank = tl.full([BLOCK], -1, tl.int32)
    for start in range(mine * BLOCK, n_words, programs * BLOCK):
        tl.store(words + start + lanes, blank, mask=start + lanes < n_words)
    if PHASES > 0:
        half = pitch // HALVES
        blocks = (half + BLOCK - 1) // BLOCK
        for block in range(mine, n_copies * HALVES * blocks, programs):
            piece = block // blocks
            copy = piece // HALVES
            place = (block % blocks) * BLOCK + lanes
            col = place * HALVES + piece % HALVES - (copy % PHASES) * STEP - LEAD
            there = (col >= 0) & (col < n_classes)
            b = tl.zeros([BLOCK], tl.float32)
            if HAS_OFFSET:
                source = offset + (copy // PHASES).to(tl.int64) * table_stride
                b = tl.load(source + col, mask=there, other=0.0)
            if LEAD > 0:
                b = tl.where(there, b * (scale * LOG2E), NEG_INF)
            tl.store(shifted + piece.to(tl.int64) * half + place, b, mask=place < half)


@triton.jit
def _tile(
    tile, slice_id, denominator, guess,
    logits, grad, target, offset, positive, alpha, weight, totals, upstream, stats, words, parts,
    loss, n_rows, n_classes, n_slices, tiles, groups, logits_stride, grad_stride, table_stride,
    offset_stride, pitch, scale, ignore_index,
    MODE: tl.constexpr, MEAN: tl.constexpr, REDUCED: tl.constexpr, HAS_OFFSET: tl.constexpr,
    HAS_POSITIVE: tl.constexpr, HAS_ALPHA: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    HAS_SCALE: tl.constexpr, TOTALS: tl.constexpr, SPLIT: tl.constexpr, PART: tl.constexpr,
    ALIGNED: tl.constexpr, SHIFTED: tl.constexpr, STEP: tl.constexpr, GROUPED: tl.constexpr,
    HALVES: tl.constexpr, CHAINED: tl.constexpr, LOOPED: tl.constexpr, VEC: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One tile: ROWS rows by BLOCK columns of the logits, to losses and gradients."""
    AXIS: tl.constexpr = 1 if ROWS > 1 else 0
    EASY: tl.constexpr = SPLIT and ALIGNED and ROWS == 1
    NEVER: tl.constexpr = -8323200 if HALVES == 2 else float("-inf")  # −inf, twice in a pair
    group, local, rows, inside, start, shift, low, high = locate(
        tile, n_rows, n_classes, tiles, logits_stride, GROUPED, SHIFTED, VEC, ROWS
    )
    # What is read here does not wait for the label.
    copy = group.to(tl.int64) * offset_stride
    if ALIGNED:
        window, mask = whole_words(slice_id, low, high, HALVES, VEC, BLOCK, ROWS)
        mask &= down(inside, ROWS)
        copy = offset + down(tl.multiple_of(copy + shift // STEP * pitch, 4), ROWS)
        base = down(tl.multiple_of((start - shift) // HALVES, VEC // HALVES), ROWS)
        source = logits + base
        if HALVES == 2:
            source = logits.to(tl.pointer_type(tl.int32), bitcast=True) + base
    else:
        window = slice_id * BLOCK + along(BLOCK, ROWS)
        mask = (window < n_classes) & down(inside, ROWS)
        copy = offset + down(copy + rows * 0, ROWS)
        source = logits + down(start, ROWS)
    full = False
    if EASY:  # most slices lie well inside their row: no masks
        full = (slice_id * BLOCK >= low) & ((slice_id + 1) * BLOCK <= high)
        if full:
            x = tl.load(source + window, eviction_policy="evict_first")
        else:
            x = tl.load(source + window, mask=mask, other=NEVER, eviction_policy="evict_first")
    else:
        x = tl.load(source + window, mask=mask, other=NEVER, eviction_policy="evict_first")
    x = numbers(x, HALVES)
    if ALIGNED and not LOOPED and MODE != BACKWARD:  # a sample of the tile
        near = down(tl.maximum(low, slice_id * BLOCK), ROWS) + along(32, ROWS)
        some = (near < down(high, ROWS)) & down(inside, ROWS)
        sample = tl.load(logits + down(start - shift, ROWS) + near, mask=some, other=NEG_INF)
    if CHAINED:
        # Waits for `targets_kernel`; and the compiler moves no load across it, else it would have
        # the label arrive before it asks for the logits.
        gdc_wait()
    y = tl.load(target + rows, mask=inside, other=ignore_index)
    if ALIGNED and not LOOPED and MODE != BACKWARD:
        b = tl.zeros_like(near).to(tl.float32)
        if HAS_OFFSET:
            b = tl.load(copy + near // HALVES + near % HALVES * (pitch // HALVES))
        guess = tl.max(scores(sample, b, scale, HAS_OFFSET, HAS_SCALE), axis=AXIS) * LOG2E

    counted = inside & (y != ignore_index)
    valid = counted & (y >= 0) & (y < n_classes)
    y = tl.where(valid, y, -1).to(tl.int32)
    own = tl.where(valid, (y + shift) & -VEC, -VEC)
    here = valid & (slice_of(y + (shift if ALIGNED else 0), BLOCK, SPLIT) == slice_id)
    if ALIGNED:
        place, edge = fringe_places(
            shift, low, high, own, y, n_classes, slice_id, VEC, BLOCK, SPLIT, ROWS
        )
        seen = edge & down(counted, ROWS)
        f = tl.full(place.shape, NEG_INF, tl.float32)
    else:
        place, edge, f = window, mask, x  # of no use without whole words
    special = True
    if EASY:
        special = here | (full == 0) | (counted == 0)
    if special:
        if ALIGNED:
            keep = outside_word(window, own, HALVES, VEC, ROWS) & down(counted, ROWS)
            f = tl.load(logits + down(start - shift, ROWS) + place, mask=seen, other=NEG_INF)
            fringe_b = tl.zeros_like(place).to(tl.float32)
            if HAS_OFFSET:
                at = copy + place // HALVES + place % HALVES * (pitch // HALVES)
                fringe_b = tl.load(at, mask=seen, other=0.0)
            f = scores(f, fringe_b, scale, HAS_OFFSET, HAS_SCALE)
        else:
            keep = (window != down(y, ROWS)) & down(counted, ROWS)
        x = tl.where(keep, x, NEVER)
    u, u_odd = tile_scores(
        x, copy, window, mask, pitch, scale, HAS_OFFSET, HAS_SCALE, ALIGNED, HALVES
    )

    stats += group.to(tl.int64) * 3 * n_rows + local
    if MODE == BACKWARD:
        up = tl.load(upstream + (rows * 0 + group if REDUCED else rows), mask=inside, other=0.0)
        m = tl.load(stats, mask=inside, other=0.0)
        c = tl.load(stats + n_rows, mask=inside, other=0.0) * up.to(tl.float32)
        pull = tl.load(stats + 2 * n_rows, mask=inside, other=0.0) * up.to(tl.float32)
        e, e_odd = powers(u, down(m, ROWS)), powers(u_odd, down(m, ROWS))
        ratio = c
    else:
        t, a = target_terms(
            logits + start, positive, alpha, weight, group.to(tl.int64) * table_stride, y, counted,
            valid, scale, HAS_POSITIVE, HAS_ALPHA, HAS_WEIGHT, HAS_SCALE,
        )  # fmt: skip
        if MEAN and (GROUPED or not LOOPED):
            denominator = tl.sum(tl.load(totals + group * TOTALS + tl.arange(0, TOTALS)))
        # A guess at the maximum will do if no power comes near the ends of float32's range.
        m = safe(guess) if ALIGNED else safe(tl.max(u, axis=AXIS) * LOG2E)
        e, e_odd, z = powers_sum(u, u_odd, f, m, special, AXIS, ALIGNED, HALVES, ROWS)
        good = (z > 1e-18) & (z < 1e18)
        if ROWS > 1:
            good = tl.min(good.to(tl.int32)) > 0
        if ALIGNED:  # noqa: SIM102
            if good == 0:  # read again: held in registers until here, u would crowd out programs
                x = numbers(tl.load(source + window, mask=mask, other=NEVER), HALVES)
                keep = outside_word(window, own, HALVES, VEC, ROWS) & down(counted, ROWS)
                u, u_odd = tile_scores(
                    tl.where(keep, x, NEVER), copy, window, mask, pitch, scale, HAS_OFFSET,
                    HAS_SCALE, ALIGNED, HALVES,
                )  # fmt: skip
                m = tl.maximum(tl.max(tl.maximum(u, u_odd), axis=AXIS), tl.max(f, axis=AXIS))
                m = safe(m * LOG2E)
                e, e_odd, z = powers_sum(u, u_odd, f, m, True, AXIS, ALIGNED, HALVES, ROWS)
        own_m, own_z, finisher = m, z, True
        if SPLIT:
            guess = m + tl.log2(z)
            # The word depends on t, without being changed by it: all programs have read the
            # target's logit before one of them, in place, may write there.
            heard = tl.maximum(tl.where(z > 0, m, NEG_INF), tl.minimum(t, -3e38))
            tl.store(parts + rows * n_slices + slice_id, pack(heard, z), mask=inside)
            finisher = slice_id == n_slices - 1
            if MODE == FUSED or finisher:
                m, z = gather(parts, rows, inside, n_slices, PART, ROWS)
        # σ(d)/z without a logarithm: 1/(z + e^t·2^−m). Nothing where A = 0, even over 0 rows, nor
        # where nothing competes (z = 0), though e^t may be 0 too.
        c = a * scale / denominator / (z + tl.exp2(t * LOG2E - m))
        c = tl.where((a == 0) | (z == 0), 0.0, c)
        pull = c * z
        ratio = c
        if SPLIT:
            # e is relative to the slice's own m, which means nothing where nothing competes.
            ratio = tl.where((own_z > 0) & (c != 0), c * tl.exp2(own_m - m), 0.0)
    if MODE != FORWARD:
        write(
            grad, e, e_odd, f, ratio, c, pull, m, y, here, special, place, edge, rows, inside,
            shift, low, high, own, slice_id, n_classes, grad_stride,
            ALIGNED, HALVES, VEC, ROWS, BLOCK,
        )  # fmt: skip
    if MODE != BACKWARD:  # noqa: SIM102
        if finisher:
            losses = tl.where(counted, a * row_loss(m, z, t), 0.0)
            if MODE == FORWARD:
                tl.store(stats, m, mask=inside)
                tl.store(stats + n_rows, c, mask=inside)
                tl.store(stats + 2 * n_rows, pull, mask=inside)
            if not REDUCED:
                tl.store(loss + rows, losses, mask=inside)
            else:
                if ROWS > 1:
                    losses = tl.sum(losses)
                if LOOPED:
                    tl.store(words + tile, losses.to(tl.int32, bitcast=True))
                else:
                    sums = words + groups * tiles
                    tile = tile % tiles if GROUPED else tile
                    collect(words, sums, loss, losses, tile, tiles, group, denominator, 64)
    return guess


@triton.jit
def tile_kernel(
    logits, grad, target, offset, positive, alpha, weight, totals, upstream, stats, words, parts,
    loss, n_rows, n_classes, n_slices, tiles, groups, logits_stride, grad_stride, table_stride,
    offset_stride, pitch, scale, ignore_index, lanes,
    MODE: tl.constexpr, MEAN: tl.constexpr, REDUCED: tl.constexpr, HAS_OFFSET: tl.constexpr,
    HAS_POSITIVE: tl.constexpr, HAS_ALPHA: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    HAS_SCALE: tl.constexpr, TOTALS: tl.constexpr, SPLIT: tl.constexpr, PART: tl.constexpr,
    ALIGNED: tl.constexpr, SHIFTED: tl.constexpr, STEP: tl.constexpr, GROUPED: tl.constexpr,
    HALVES: tl.constexpr, CHAINED: tl.constexpr, LOOPED: tl.constexpr, VEC: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Every tile of the logits; with LOOPED a program keeps its columns and goes down the rows."""
    pid = tl.program_id(0)
    first, slice_id = pid, 0
    if SPLIT:
        first, slice_id = pid // n_slices, pid % n_slices
    denominator = 1.0
    if LOOPED:
        if CHAINED:
            gdc_wait()
        if MEAN and MODE != BACKWARD:
            denominator = tl.sum(tl.load(totals + tl.arange(0, TOTALS)))
        guess = denominator * float("nan")  # no guess yet: the first tile takes its maximum
        for at in tl.range(first, tiles * groups, lanes, num_stages=1):
            guess = _tile(
                pid * 0 + at, slice_id, denominator, guess,
                logits, grad, target, offset, positive, alpha, weight, totals, upstream, stats,
                words, parts, loss, n_rows, n_classes, n_slices, tiles, groups, logits_stride,
                grad_stride, table_stride, offset_stride, pitch, scale, ignore_index,
                MODE, MEAN, REDUCED, HAS_OFFSET, HAS_POSITIVE, HAS_ALPHA, HAS_WEIGHT, HAS_SCALE,
                TOTALS, SPLIT, PART, ALIGNED, SHIFTED, STEP, GROUPED, HALVES, CHAINED, LOOPED, VEC,
                ROWS, BLOCK,
            )  # fmt: skip
        # Here, not on the way: who waits must wait for lower ids only, and these are all lower.
        if REDUCED and MODE != BACKWARD:  # noqa: SIM102
            if pid == tl.num_programs(0) - 1:
                tl.store(loss, sum_words(words, tiles, 512) / denominator)
    else:
        _tile(
            first, slice_id, denominator, denominator,
            logits, grad, target, offset, positive, alpha, weight, totals, upstream, stats,
            words, parts, loss, n_rows, n_classes, n_slices, tiles, groups, logits_stride,
            grad_stride, table_stride, offset_stride, pitch, scale, ignore_index,
            MODE, MEAN, REDUCED, HAS_OFFSET, HAS_POSITIVE, HAS_ALPHA, HAS_WEIGHT, HAS_SCALE,
            TOTALS, SPLIT, PART, ALIGNED, SHIFTED, STEP, GROUPED, HALVES, CHAINED, LOOPED, VEC,
            ROWS, BLOCK,
        )  # fmt: skip


@triton.jit
def scale_some(values, by, place, end):
    x = tl.load(values + place, mask=place < end, other=0.0)
    tl.store(values + place, x.to(tl.float32) * by, mask=place < end)


@triton.jit(do_not_specialize=["n"])  # 1 would be compiled in, as what multiple_of can't take
def scale_kernel(values, factor, n, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    """values ·= factor, in place; nothing is read or written where the factor is 1."""
    if CHAINED:
        gdc_wait()
    by = tl.load(factor).to(tl.float32)
    if by != 1.0:
        whole = tl.multiple_of(n // 16 * 16, 16)  # so that masks don't cut words
        first = tl.program_id(0).to(tl.int64) * BLOCK
        for start in range(first, whole, tl.num_programs(0) * BLOCK):
            scale_some(values, by, start + tl.arange(0, BLOCK), whole)
        if tl.program_id(0) == 0:
            scale_some(values, by, whole + tl.arange(0, 16), n)
