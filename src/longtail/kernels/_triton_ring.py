"""The Gluon kernel of the additive losses for wide rows; importing needs Triton with Gluon.

`_triton` has the equation and the symbols, `_ring` says when this kernel serves. A row is cut into
slices, a program for each, which tell each other their (m, z) through memory. A program keeps its
columns: it goes down the rows in steps of `lanes`, with its part of the offset in registers. Two or
three rows are always on their way into a ring of shared memory while one is summed up. The gradient
of a row is written two turns after its sum, when the other slices' sums have long arrived; until
then the row stays in its slot, and its powers are computed a second time.

Rows are read in windows that start at multiples of `unit`: on whole lines or sectors of memory
where that can be (if the tensor starts on one), else on 16 bytes, as in `_triton`. `lanes` is a
multiple of the number of ways in which rows can lie, so all rows of a program start at the same
place in their windows.
Slices are of one width, so that nobody waits for those with more to read, and have BLOCK places,
of which some remain empty: place = column + shift, where the shift grows from slice to slice.
"""

# mypy: ignore-errors
# (written in Gluon's language: Python only to look at)

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from longtail.kernels._triton_ring_parts import (
    INF,
    LOG2E,
    NEG_INF,
    PER_LOG2E,
    PER_LOG2E_REST,
    await_pairs,
    await_words,
    halves,
    leave_sums,
    log2_roughly,
    opaque_zero,
    pack,
    quotient,
    replace,
    softplus,
    store_halves,
    take_sum,
    to_pairs,
    unpack,
    usual,
    wait_for_launch,
)

MINUS_INFS = gl.constexpr(-8323200)  # two of them in bfloat16
DEFER = gl.constexpr(2)  # turns from a row's sum to its gradient
NO_CLASS, IGNORED = gl.constexpr(-1), gl.constexpr(-2)  # in the place of a target
MOST_LANES = gl.constexpr(512)  # as in `_ring`
CUTS = gl.constexpr(16)  # of a slice, where a row is out of range: a pair of a thread at a time
barrier = getattr(gl, "thread_barrier", None) or gl.barrier  # renamed in Triton 3.7


@gluon.jit
def following(slot, SLOTS: gl.constexpr):
    """The next slot of the ring: cheaper than a remainder."""
    return gl.where(slot == SLOTS - 1, 0, slot + 1)


@gluon.jit
def offsets(offset, place, shift, end, HAS_OFFSET: gl.constexpr):
    """b·log2 e, and −inf outside the row and from `end` on."""
    inside = (place >= shift) & (place < end)
    if HAS_OFFSET:
        # One address and constants to add to it: what is the same for all comes first.
        return gl.load((offset + -shift) + place, mask=inside, other=NEG_INF) * LOG2E
    else:
        return gl.where(inside, 0.0, NEG_INF)


@gluon.jit
def fetch(ring, slot, logits, start, pair, read_to):
    """Send a row on its way into a slot."""
    base = gl.multiple_of(start >> 1, 4)
    source = logits.to(gl.pointer_type(gl.int32), bitcast=True) + base + pair
    async_copy.async_copy_global_to_shared(ring.index(slot), source, mask=pair < read_to)
    async_copy.commit_group()


@gluon.jit
def target_terms(
    logits, target, positive, alpha, weight, row, shift, n_rows, n_classes, stride, ignore_index,
    HAS_POSITIVE: gl.constexpr, HAS_ALPHA: gl.constexpr, HAS_WEIGHT: gl.constexpr,
):  # fmt: skip
    """The target's place, t = f_y − a_y, and A = α_y·w_y: 0 for ignored rows, NaN for no class."""
    y = gl.load(target + row, mask=row < n_rows, other=ignore_index)
    counted = (row < n_rows) & (y != ignore_index)
    valid = counted & (y >= 0) & (y < n_classes)
    t = gl.load(logits + row.to(gl.int64) * stride + y, mask=valid, other=0.0).to(gl.float32)
    if HAS_POSITIVE:
        t -= gl.load(positive + y, mask=valid, other=0.0)
    a = gl.where(counted, gl.where(valid, 1.0, float("nan")), 0.0)
    if HAS_ALPHA:
        a *= gl.load(alpha + y, mask=valid, other=1.0)
    if HAS_WEIGHT:
        a *= gl.load(weight + y, mask=valid, other=1.0)
    y_at = gl.where(valid, y.to(gl.int32) + shift, gl.where(counted, NO_CLASS, IGNORED))
    return y_at, t, a


@gluon.jit
def away(pair, at, half: gl.constexpr, num_warps: gl.constexpr):
    """0 in the thread whose pairs may include `at`, the same for all of a thread's pairs."""
    # A thread's pairs differ in these bits, and in no others.
    within: gl.constexpr = ((half - 1) & (-128 * num_warps)) | 3
    return (pair ^ at) & ~within


@gluon.jit
def put_target(x, pair, y_at, value, half: gl.constexpr, num_warps: gl.constexpr):
    """The half of its pair that is the target's becomes that of `value`, two bfloat16.

    The thread that holds it does so: no other memory, nobody waits.
    """
    at = y_at >> 1  # negative where there is no target
    return replace(x, pair, away(pair, at, half, num_warps), at, y_at, value)


@gluon.jit
def warp_sums(v, half: gl.constexpr, num_warps: gl.constexpr):
    """Each warp's sum over its own elements of a slice: registers and shuffles alone."""
    return gl.sum(gl.sum(gl.reshape(v, [half // (128 * num_warps), num_warps, 128]), 0), 1)


@gluon.jit
def across_warps(v, at):
    """The sum of the warps' sums, through 16 bytes of shared memory, `at` bytes after its start.

    `gl.sum` goes through it twice, and meets twice each time: all must have read before one may
    write again. Here turns take turns with two places, and between a sum that is read and the next
    one written there, all have met in the turn between.
    """
    leave_sums(v, at)
    barrier()
    return take_sum(at)


@gluon.jit
def some_of(
    cuts, slot, k, offset, first, y_at, shift, end, HAS_OFFSET: gl.constexpr,
    half: gl.constexpr, thin: gl.constexpr,
):  # fmt: skip
    """u in the k-th cut of a slice; −inf for the target and outside the row, whatever is there."""
    x0, x1 = halves(cuts.index(slot * CUTS + k).load(thin))
    pair = gl.arange(0, half // CUTS, layout=thin) + opaque_zero(k)
    place = (first + k * (half // CUTS) + pair) * 2
    in0 = (place >= shift) & (place < end) & (place != y_at)
    in1 = (place + 1 >= shift) & (place + 1 < end) & (place + 1 != y_at)
    u0 = x0 * LOG2E + offsets(offset, place, shift, end, HAS_OFFSET)
    u1 = x1 * LOG2E + offsets(offset, place + 1, shift, end, HAS_OFFSET)
    return gl.where(in0, u0, NEG_INF), gl.where(in1, u1, NEG_INF)


@gluon.jit
def exact_sum(
    cuts, slot, offset, first, y_at, shift, end, HAS_OFFSET: gl.constexpr,
    half: gl.constexpr, thin: gl.constexpr,
):  # fmt: skip
    """(m, z) of a slice's competitors with their maximum for m, and exact masks.

    Infinities and NaN of the row's neighbours are no concern of its own. All this is rare, and must
    not take registers from what is not: it goes cut by cut, and reads everything again.
    """
    zero = opaque_zero(slot)
    first, n_cuts = first + zero, CUTS + zero  # or the loops would be undone
    most = gl.zeros([half // CUTS], gl.float32, layout=thin) + NEG_INF
    for k in range(0, n_cuts):
        u0, u1 = some_of(cuts, slot, k, offset, first, y_at, shift, end, HAS_OFFSET, half, thin)
        most = gl.maximum(most, gl.maximum(u0, u1))
    m = gl.max(most, 0)
    m = gl.where((m > -3e38) & (m < 3e38), m, 0.0)
    z = gl.zeros([half // CUTS], gl.float32, layout=thin)
    for k in range(0, n_cuts):
        u0, u1 = some_of(cuts, slot, k, offset, first, y_at, shift, end, HAS_OFFSET, half, thin)
        z += gl.exp2(u0 - m) + gl.exp2(u1 - m)
    return m, gl.sum(z, 0)


@gluon.jit
def slice_sum(
    ring, slot, held, pair, y_at, b0, b1,
    at, half: gl.constexpr, num_warps: gl.constexpr, wide: gl.constexpr,
):  # fmt: skip
    """z = Σ 2^(u − m) over the slice's competitors, and the powers 2^(u − m) of the row in `held`.

    b0 and b1 have an m in them, that of a row before.
    """
    x = put_target(ring.index(slot).load(wide), pair, y_at, MINUS_INFS, half, num_warps)
    x0, x1 = halves(x)
    e = gl.exp2(x0 * LOG2E + b0) + gl.exp2(x1 * LOG2E + b1)
    z = warp_sums(e, half, num_warps)
    # Here, where they have time.
    x0, x1 = halves(held.load(wide))
    e0, e1 = gl.exp2(x0 * LOG2E + b0), gl.exp2(x1 * LOG2E + b1)
    return across_warps(z, at), e0, e1


@gluon.jit
def row_sum(ms, zs):
    """The whole row's (m, z) from those of its slices."""
    m = gl.max(ms, 0)
    m = gl.where(m == NEG_INF, 0.0, m)
    # An infinite sum stays so, however far its slice's finite m lies below the others'.
    return m, gl.sum(gl.where(zs == INF, zs, zs * gl.exp2(ms - m)), 0)


@gluon.jit
def any_gradient(slot, ms, zs, b0, b1, m, a, share, t, counted, wide: gl.constexpr):
    """The gradient of rows that are not `usual`, minus the target's pull, and the row's (m, z)."""
    m_all, z = row_sum(ms, zs)
    # As in `_triton`: σ(d)/z, and nothing where A = 0 or where nothing competes.
    c = quotient(a * share, z + gl.exp2(t * LOG2E - m_all))
    c = gl.where((a == 0) | (z == 0), 0.0, c)
    x0, x1 = halves(slot.load(wide))
    lower = log2_roughly(gl.abs(c)) + (m - m_all)  # gradients are ±2^(u − m + lower)
    g = to_pairs(gl.exp2(x0 * LOG2E + (b0 + lower)), gl.exp2(x1 * LOG2E + (b1 + lower)))
    g = gl.where(c < 0, g ^ -2147450880, g)  # both signs: a negative weight
    # σ(inf) = 1, though c·z is 0·inf; of inf less inf nothing is known.
    pull = gl.where((z == INF) & (t < INF), a * share, c * z)
    return gl.where(counted, g, 0), -pull, m_all, z


@gluon.jit
def write(
    g, pull, grad, start, live, y_at, pair, shift, low, high, end, LEAD: gl.constexpr,
    SHIFTED: gl.constexpr, half: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """The gradient of a slice: whole words; those shared with other rows by elements."""
    g = put_target(g, pair, y_at, to_pairs(pull, pull), half, num_warps)
    to = grad.to(gl.pointer_type(gl.int32), bitcast=True) + gl.multiple_of(start >> 1, 4) + pair
    inner = pair < gl.multiple_of(gl.where(live, high, 0), 4)
    if LEAD:
        inner = inner & (pair >= low)
    gl.store(to, g, mask=inner)
    if SHIFTED:
        first = away(pair, gl.multiple_of(shift // 8 * 4, 4), half, num_warps)
        far = gl.minimum(first, away(pair, high, half, num_warps))
        store_halves(g, pair, far, low, high, shift, gl.where(live, end, 0), to)


@gluon.jit
def finish(
    words, sums, loss, y_line, t_line, a_line, lane, lanes, n_rows, denominator,
    LABELS: gl.constexpr, last: gl.constexpr,
):  # fmt: skip
    """Sum up a lane's losses; the last lane adds those of all, in a fixed order."""
    row = lane + opaque_zero(lane) + gl.arange(0, LABELS, layout=last) * lanes
    m, z = unpack(gl.load(sums + row, mask=row < n_rows, other=0))
    # m/log2 e − t rounds once: the product is exact inside the multiply-add.
    d = gl.fma(m, PER_LOG2E, -t_line.load(last)) + gl.fma(m, PER_LOG2E_REST, gl.log(z))
    counted = (row < n_rows) & (y_line.load(last) != IGNORED)
    own = gl.sum(gl.where(counted, a_line.load(last) * softplus(d), 0.0), 0)
    gl.store(words + lane, own.to(gl.int32, bitcast=True))
    if lane == lanes - 1:
        every = gl.arange(0, MOST_LANES, layout=last)
        found = await_words(words + every, every < lanes).to(gl.float32, bitcast=True)
        gl.store(loss, gl.sum(gl.where(every < lanes, found, 0.0), 0) / denominator)


@gluon.jit(do_not_specialize=["n_rows", "n_slices", "width", "unit", "lanes", "ignore_index"])
def ring_kernel(
    logits, grad, target, offset, positive, alpha, weight, totals, words, parts, sums, loss,
    n_rows, n_classes, stride, n_slices, width, unit, lanes, ignore_index,
    MEAN: gl.constexpr, HAS_OFFSET: gl.constexpr, HAS_POSITIVE: gl.constexpr,
    HAS_ALPHA: gl.constexpr, HAS_WEIGHT: gl.constexpr, LEAD: gl.constexpr, SHIFTED: gl.constexpr,
    TOTALS: gl.constexpr, PART: gl.constexpr, LABELS: gl.constexpr, BLOCK: gl.constexpr,
    SLOTS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Loss and gradient of bfloat16 logits, one launch.

    Nobody waits for ever: programs start in the order of their ids, and a program waits only for
    the slices of its own lane, which are neighbours, and the last lane at its end for lanes before
    it. Take the lowest lane that has not ended. If one of its slices had not started, then none of
    a higher lane had: fewer than n_slices programs would hold the GPU, which has room for twice as
    many (`_ring` sees to it), so that slice starts. That they all run at once is only fast.

    In place nobody reads a target's logit too late: a program reads those of all its rows before
    it hands in its first sum, and nothing of a row is written before all its slices' sums are in.

    Threads of a program meet in `across_warps`, once a turn, and where the compiler finds that one
    may read what another's copy brings, or copy over what another reads: that is more than they
    need. A thread reads those words of a slot that it has fetched itself (`pair` is laid out like
    what is loaded), and fetches into a slot again when it has used what it read there. Only
    `exact_sum` reads what others have fetched: after they have met, in this turn; and DEFER + 1
    turns before they fetch into that slot again.
    """
    wide: gl.constexpr = gl.BlockedLayout([4], [32], [num_warps], [0])
    thin: gl.constexpr = gl.BlockedLayout([1], [32], [num_warps], [0])
    # Every warp has the words of all slices, and reduces them by itself.
    each: gl.constexpr = gl.BlockedLayout([PART // 32 if PART > 32 else 1], [32], [num_warps], [0])
    line: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    half: gl.constexpr = BLOCK // 2
    AHEAD: gl.constexpr = SLOTS - 1 - DEFER
    pid = gl.program_id(0)
    lane, slice_id = pid // n_slices, pid % n_slices
    # A slice has BLOCK places, of which the last ones belong to no column.
    shift = slice_id * (BLOCK - width) + ((lane * stride) & (unit - 1) if LEAD else 0)
    end = gl.minimum(shift + n_classes, slice_id * BLOCK + width)
    pair = slice_id * half + gl.arange(0, half, layout=wide)
    read_to = gl.multiple_of((end + 7) // 8 * 4, 4)
    # Where the window of a row starts, and from a row of the lane to the next.
    start, step = lane.to(gl.int64) * stride - shift, lanes.to(gl.int64) * stride
    # The slots of the ring, and behind them two places for the warps' sums. By far the largest
    # piece of shared memory: such the compiler places first, at its start, where `leave_sums` and
    # `take_sum` look for it (the tests look where it is).
    lines: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    room = gl.allocate_shared_memory(gl.int32, [SLOTS * half // 8 + 1, 8], lines)
    ring = room._reinterpret(gl.int32, [SLOTS, half], line)
    cuts = ring._reinterpret(gl.int32, [SLOTS * CUTS, half // CUTS], line)
    for k in gl.static_range(AHEAD):
        to = gl.multiple_of(gl.where(lane + k * lanes < n_rows, read_to, 0), 4)
        fetch(ring, k, logits, start + k * step, pair, to)

    low = gl.multiple_of((shift + 7) // 8 * 4, 4) if LEAD else 0
    high = gl.multiple_of(end // 8 * 4, 4)
    b0 = offsets(offset, pair * 2, shift, end, HAS_OFFSET)
    b1 = offsets(offset, pair * 2 + 1, shift, end, HAS_OFFSET)

    # What the targets of all the program's rows say, so that nothing in the loop waits for it.
    rows = lane + gl.arange(0, LABELS, layout=thin) * lanes
    y_ats, ts, scales = target_terms(
        logits, target, positive, alpha, weight, rows, shift, n_rows, n_classes, stride,
        ignore_index, HAS_POSITIVE, HAS_ALPHA, HAS_WEIGHT,
    )  # fmt: skip

    wait_for_launch()  # for `targets_kernel`: from here on its totals and blank words are there
    denominator = 1.0
    if MEAN:
        denominator = gl.sum(gl.load(totals + gl.arange(0, TOTALS, layout=thin)), 0)
    share = 1.0 / denominator
    t_line = gl.allocate_shared_memory(gl.float32, [LABELS], line, value=ts)
    a_line = gl.allocate_shared_memory(gl.float32, [LABELS], line, value=scales)
    y_line = gl.allocate_shared_memory(gl.int32, [LABELS], line, value=y_ats)
    t_of = t_line._reinterpret(gl.float32, [LABELS, 1], line)
    a_of = a_line._reinterpret(gl.float32, [LABELS, 1], line)
    y_of = y_line._reinterpret(gl.int32, [LABELS, 1], line)

    m = gl.to_tensor(0.0)
    slot, free = gl.to_tensor(0), gl.to_tensor(AHEAD)
    slices = gl.arange(0, PART, layout=each)
    barrier()  # the lines are there for all
    for turn in range(0, (n_rows - lane + lanes - 1) // lanes + DEFER):
        row = lane + turn * lanes  # to be summed up
        done = row - DEFER * lanes  # whose gradient is to be written
        to = gl.multiple_of(gl.where(row + AHEAD * lanes < n_rows, read_to, 0), 4)
        fetch(ring, free, logits, start + AHEAD * step, pair, to)
        live = (done >= 0) & (done < n_rows)
        there = (slices < n_slices) & live
        heard = parts + (done * n_slices + slices)
        early = gl.load(heard, mask=there, other=-1, volatile=True)
        y_at = gl.sum(y_of.index(gl.where(row < n_rows, turn, 0)).load(thin), 0)
        async_copy.wait_group(AHEAD)
        held = ring.index(following(free, SLOTS))  # DEFER behind `slot`, as SLOTS is chosen
        sums_at = SLOTS * half * 4 + (turn & 1) * 16
        z, e0, e1 = slice_sum(ring, slot, held, pair, y_at, b0, b1, sums_at, half, num_warps, wide)
        next_m, word = m, pack(m, z)
        good = (z > 1e-5) & (z < 1e18)  # m will do; `usual` asks the same of rows
        if good == 0:
            own = gl.to_tensor(0.0)
            if (z != 0) | (gl.max(gl.maximum(b0, b1), 0) > NEG_INF):  # else all are masked
                own, z = exact_sum(
                    cuts, slot, offset, slice_id * half, y_at, shift, end, HAS_OFFSET, half, thin
                )
            word = pack(gl.where(z > 0, own, NEG_INF), z)
            next_m = gl.where(gl.abs(own) < 4096, own, 0.0)  # a larger one leaves few digits of b
        gl.store(parts + (row * n_slices + slice_id), word, mask=row < n_rows)

        ms, zs = unpack(await_pairs(heard, there, early))
        ms, zs = gl.where(there, ms, NEG_INF), gl.where(there, zs, 0.0)
        turn_of = gl.where(live, turn - DEFER, 0)
        t = gl.sum(t_of.index(turn_of).load(thin), 0)
        a = gl.sum(a_of.index(turn_of).load(thin), 0)
        y_at = gl.sum(y_of.index(turn_of).load(thin), 0)
        m_all, z_all = m, gl.sum(zs * gl.exp2(ms - m), 0)
        c = quotient(a * share, z_all + gl.exp2(t * LOG2E - m))
        at = start - DEFER * step
        if usual(z_all, c):
            write(
                to_pairs(e0 * c, e1 * c), -c * z_all, grad, at, live, y_at, pair, shift, low, high,
                end, LEAD, SHIFTED, half, num_warps,
            )  # fmt: skip
        else:
            g, pull, m_all, z_all = any_gradient(
                held, ms, zs, b0, b1, m, a, share, t, y_at != IGNORED, wide
            )
            write(
                g, pull, grad, at, live, y_at, pair, shift, low, high, end, LEAD, SHIFTED,
                half, num_warps,
            )  # fmt: skip
        if slice_id == 0:
            gl.store(sums + done, pack(m_all, z_all), mask=live)
        if next_m != m:
            m = next_m
            place = (pair + opaque_zero(row)) * 2
            b0 = offsets(offset, place, shift, end, HAS_OFFSET) - m
            b1 = offsets(offset, place + 1, shift, end, HAS_OFFSET) - m
        start += step
        slot, free = following(slot, SLOTS), following(free, SLOTS)

    async_copy.wait_group(0)
    if slice_id == 0:
        barrier()  # what one thread has stored in `sums`, others read
        # Laid out otherwise than `thin`, which would keep an address in a register all along.
        last: gl.constexpr = gl.BlockedLayout([2], [32], [num_warps], [0])
        finish(
            words, sums, loss, y_line, t_line, a_line, lane, lanes, n_rows, denominator, LABELS,
            last,
        )  # fmt: skip
