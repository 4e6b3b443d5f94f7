"""The Triton kernel for rows of a few thousand bfloat16 logits, in words; importing needs Triton.

The equations are in `_triton`, when this kernel serves in `_words`. A word is two logits. A program
has one row: thread i of T holds words i, i + T, ... of a window that starts at the 32-byte sector
which has the row's first word, up to ALIGN − 1 words (`shift`) before it. Four bytes a thread are
as fast as sixteen if no two warps share a sector, and need no care for where a row begins.

What a logit costs here is one multiply-add and one power, 2^(f·log2 e + b). The table of b, in
bits, is −inf beside the row, so the words before it need no mask: whatever they hold, they add
nothing, unless it is NaN or infinite. Nor is a maximum subtracted: a row whose sum comes near the
ends of float32's range, also by a neighbour's NaN, is read again, the slow way, with masks and a
maximum.

The row is in PARTS, and `fence` keeps the table's values out of the registers until their part is
the next. Where compilers would do badly, a few instructions are given as assembly;
without NATIVE, as in the interpreter, the same is done in Triton's own words.
"""

# mypy: ignore-errors
# (written in Triton's language: Python only to look at)

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from longtail.kernels._triton_parts import (
    LOG2E,
    NEG_INF,
    PER_LOG2E,
    PER_LOG2E_REST,
    await_words,
    pack,
    row_factor,
    row_loss,
    safe,
    target_terms,
    unpack,
)

# Sums that are taken as they come. Powers below 2^−126 are lost: each less than 2e−20 of the sum.
# And σ(d)/z keeps its digits: with the target's power the sum stays far from float32's largest.
LEAST = tl.constexpr(1e-18)
MOST = tl.constexpr(1e25)
# Each logit is read once, each gradient written once: both may leave the L2 cache first.
READ = tl.constexpr("evict_first")
WRITE = tl.constexpr(".cs")
PACK = tl.constexpr(4)  # words of a thread in a part
NEVER = tl.constexpr(-8323200)  # −inf, twice in a word


def _replacing(parts):
    """Assembly: put `put` into one half of one of a thread's words, and its constraints.

    The word's number is the same for all threads, and one comparison tells most warps that they do
    not have it.
    """
    words = 4 * parts
    far, which, keep, put = (2 * words + 4 * k for k in range(4))
    text = "{\n.reg .pred %p;\n"
    text += "".join(f"mov.b32 ${i}, ${words + i};\n" for i in range(words))
    text += f"setp.ne.s32 %p, ${far}, 0;\n@%p bra OUT;\n"
    for i in range(words):
        text += f"setp.eq.s32 %p, ${which}, {i};\n"
        text += f"@%p lop3.b32 ${i}, ${i}, ${keep}, ${put}, 0xEA;\n"
    where = ",".join(["=&r"] * words + ["r"] * (words + 16))
    return tl.constexpr(text + "OUT:\n}"), tl.constexpr(where)


TEXT3, WHERE3 = _replacing(3)
TEXT4, WHERE4 = _replacing(4)


@triton.jit
def halves(x):
    """The even and the odd class of each word, in float32."""
    return (x << 16).to(tl.float32, bitcast=True), (x & -65536).to(tl.float32, bitcast=True)


@triton.jit
def to_words(even, odd, NATIVE: tl.constexpr):
    """Two float32 rounded into a word of two bfloat16."""
    if NATIVE:
        word = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f", [odd, even], dtype=tl.int32, is_pure=True,
            pack=1,
        )  # fmt: skip
    else:
        even = even.to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        word = even | (odd.to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32) << 16)
    return word


@triton.jit
def quotient(a, b, NATIVE: tl.constexpr):
    """a/b as exactly as Triton has it, but only for b = 0 or between 2^−126 and 2^126."""
    if NATIVE:
        ratio = tl.inline_asm_elementwise(
            "div.approx.f32 $0, $1, $2;", "=f,f,f", [a, b], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        ratio = a / b
    return ratio


@triton.jit
def veil(zero, NATIVE: tl.constexpr):
    """A zero of which the compilers know nothing, not even that all threads have the same."""
    if NATIVE:
        zero = tl.inline_asm_elementwise(
            """{
            .reg .b32 %t;
            mov.u32 %t, %laneid;
            mul.lo.u32 $0, %t, $1;
            }""",
            "=r,r", [zero], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    return zero


@triton.jit
def everywhere(yes, NATIVE: tl.constexpr):
    """The same truth by a vote: so the compiler knows that a warp's threads agree."""
    if NATIVE:
        yes = tl.inline_asm_elementwise(
            """{
            .reg .pred %p;
            setp.ne.s32 %p, $1, 0;
            vote.sync.all.pred %p, %p, -1;
            selp.b32 $0, 1, 0, %p;
            }""",
            "=r,r", [yes.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
        ) != 0  # fmt: skip
    return yes


@triton.jit
def fence(NATIVE: tl.constexpr):
    """Nothing; but no load is moved across it, to crowd the registers before it."""
    if NATIVE:
        tl.inline_asm_elementwise(
            "bar.warp.sync -1; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def half_masks(y_at):
    """What to keep of the target's word, and −inf for its half of it."""
    keep = tl.where((y_at & 1) != 0, 0xFFFF, -65536)
    return keep, NEVER & ~keep


@triton.jit
def part_without_target(x, window, y_at, AT: tl.constexpr):
    """The words of the part at AT with −inf at the target."""
    keep, put = half_masks(y_at)
    return tl.where(window + AT == (y_at >> 1), (x & keep) | put, x)


@triton.jit
def without_target(xs, window, y_at, PARTS: tl.constexpr, T: tl.constexpr, NATIVE: tl.constexpr):
    """A row's words with −inf at the target, place `y_at` of the window; −1 is none."""
    if NATIVE:
        keep, put = half_masks(y_at)
        at = y_at >> 1
        far = (window ^ at) & (T - 1)
        which = (at.to(tl.uint32) // T).to(tl.int32)  # without a target a large number
        if PARTS == 3:
            a, b, c = xs[0], xs[1], xs[2]
            xs = tl.inline_asm_elementwise(
                TEXT3, WHERE3, [a, b, c, far, which, keep, put],
                dtype=(tl.int32, tl.int32, tl.int32), is_pure=True, pack=PACK,
            )  # fmt: skip
        else:
            a, b, c, d = xs[0], xs[1], xs[2], xs[3]
            xs = tl.inline_asm_elementwise(
                TEXT4, WHERE4, [a, b, c, d, far, which, keep, put],
                dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=True, pack=PACK,
            )  # fmt: skip
    else:
        PART: tl.constexpr = window.shape[0]
        out = ()
        for p in tl.static_range(PARTS):
            x = part_without_target(xs[p], window, y_at, p * PART)
            out = out + (x,)  # noqa: RUF005 (Triton has no unpacking)
        xs = out
    return xs


@triton.jit
def begin_of(base, row, shift, n_words):
    """Where a row's window begins, in words."""
    return base.to(tl.pointer_type(tl.int32), bitcast=True) + (row.to(tl.int64) * n_words - shift)


@triton.jit
def before_end(window, shift, n_words, AT: tl.constexpr, FULL: tl.constexpr):
    """Which words of the part at AT are not behind the row; none below FULL is."""
    return (window + AT < FULL) | (window + AT < shift + n_words)


@triton.jit
def owned(window, shift, n_words, AT: tl.constexpr, FULL: tl.constexpr):
    """Which words of the part at AT are the row's own."""
    inside = before_end(window, shift, n_words, AT, FULL)
    if AT == 0:
        inside = inside & (window >= shift)
    return inside


@triton.jit
def read_row(begin, window, shift, n_words, PARTS: tl.constexpr, FULL: tl.constexpr):
    """The window's words, also those before the row: faster than to leave them out."""
    PART: tl.constexpr = window.shape[0]
    xs = ()
    for p in tl.static_range(PARTS):
        inside = before_end(window, shift, n_words, p * PART, FULL)
        x = tl.load(begin + p * PART + window, mask=inside, other=0, eviction_policy=READ)
        xs = xs + (x,)  # noqa: RUF005
    return xs


@triton.jit
def read_table(entry, window, AT: tl.constexpr):
    """b of the even and the odd classes of the part at AT, in bits."""
    odd, even = unpack(tl.load(entry + AT + window))
    return even, odd


@triton.jit
def scores_again(
    logits, table, row, shift, n_words, window, y_at, m, bits, zero,
    AT: tl.constexpr, FULL: tl.constexpr, ALIGN: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """The slow way: u − m of the part at AT, in bits, −inf where nothing competes.

    By addresses that the compiler cannot share with the fast way, which they would cost registers.
    """
    hidden = veil(zero, NATIVE)
    begin = begin_of(logits, row + hidden, shift, n_words)
    entry = table + (ALIGN - shift + hidden)
    x = tl.load(begin + AT + window, mask=owned(window, shift, n_words, AT, FULL), other=0)
    f, f_odd = halves(part_without_target(x, window, y_at, AT))
    b, b_odd = read_table(entry, window, AT)
    return tl.fma(f, bits, -m) + b, tl.fma(f_odd, bits, -m) + b_odd


@triton.jit
def row_again(
    logits, grad, table, row, shift, n_words, window, y_at, t, a, share, bits, zero,
    PARTS: tl.constexpr, FULL: tl.constexpr, ALIGN: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """The slow way, in three sweeps: z and t relative to m, and the target's pull."""
    PART: tl.constexpr = window.shape[0]
    most = tl.full([PART], NEG_INF, tl.float32)
    for p in tl.static_range(PARTS):
        u, u_odd = scores_again(
            logits, table, row, shift, n_words, window, y_at, 0.0, bits, zero,
            p * PART, FULL, ALIGN, NATIVE,
        )  # fmt: skip
        most = tl.maximum(most, tl.maximum(u, u_odd))
    m = safe(tl.max(most, 0))
    m = tl.where((m == m) & (m < 3e38), m, 0.0)  # NaN and inf are to show in the sum
    sums = tl.zeros([PART], tl.float32)
    for p in tl.static_range(PARTS):
        u, u_odd = scores_again(
            logits, table, row, shift, n_words, window, y_at, m, bits, zero,
            p * PART, FULL, ALIGN, NATIVE,
        )  # fmt: skip
        sums += tl.exp2(u) + tl.exp2(u_odd)
    z = tl.sum(sums, 0)
    # Nothing where A = 0, even over 0, nor where nothing competes, though e^t may be 0 too.
    nothing = (a == 0) | (z == 0)
    c = tl.where(nothing, 0.0, share / (z + tl.exp2(t * LOG2E - m)))
    # σ(inf) = 1, though c·z is 0·inf; of inf less inf nothing is known.
    pull = tl.where((z == float("inf")) & (t < float("inf")), share, c * z)
    for p in tl.static_range(PARTS):
        u, u_odd = scores_again(
            logits, table, row, shift, n_words, window, y_at, m, bits, zero,
            p * PART, FULL, ALIGN, NATIVE,
        )  # fmt: skip
        e, e_odd = tl.exp2(u), tl.exp2(u_odd)
        g, g_odd = tl.where(nothing, 0.0, e * c), tl.where(nothing, 0.0, e_odd * c)
        to = begin_of(grad, row, shift, n_words) + p * PART + window
        mine = owned(window, shift, n_words, p * PART, FULL)
        tl.store(to, to_words(g, g_odd, NATIVE), mask=mine, cache_modifier=WRITE)
    # t − m/log2 e rounds once: the product is exact inside the multiply-add.
    t = -(tl.fma(m, PER_LOG2E, -t) + m * PER_LOG2E_REST)
    return z, t, tl.where(nothing, 0.0, pull)


@triton.jit
def row_terms(
    y, logits, positive, alpha, weight, row, shift, n_words, scale, ignore_index,
    HAS_POSITIVE: tl.constexpr, HAS_ALPHA: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    HAS_SCALE: tl.constexpr,
):  # fmt: skip
    """Whether a row counts, where its target is in the window (−1: nowhere), t and A."""
    counted = y != ignore_index
    valid = counted & (y >= 0) & (y < 2 * n_words)
    begin = logits + row.to(tl.int64) * (2 * n_words)
    t, a = target_terms(
        begin, positive, alpha, weight, 0, y, counted, valid, scale,
        HAS_POSITIVE, HAS_ALPHA, HAS_WEIGHT, HAS_SCALE,
    )  # fmt: skip
    return counted, tl.where(valid, y.to(tl.int32) + 2 * shift, -1), t, a


@triton.jit
def denominator_of(totals, hidden, TOTALS: tl.constexpr):
    """What the mean divides by, from its parts."""
    total = tl.load(totals + hidden)
    for k in tl.static_range(1, TOTALS):
        total += tl.load(totals + hidden + k)
    return total


@triton.jit
def sum_losses(
    words, target, alpha, weight, loss, denominator, n_rows, n_classes, ignore_index,
    HAS_ALPHA: tl.constexpr, HAS_WEIGHT: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """The loss from the (z, t) of all rows, TURN at a time: the same every time."""
    # Two dimensions: from one the compiler would take the layout for the rows' words too.
    within = tl.arange(0, TURN // 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    total = tl.zeros([TURN // 64, 64], tl.float32)
    for first in range(0, n_rows, TURN):
        place = first + within
        inside = place < n_rows
        y = tl.load(target + place, mask=inside, other=ignore_index)
        counted = inside & (y != ignore_index)
        valid = counted & (y >= 0) & (y < n_classes)
        a = row_factor(alpha, weight, y, counted, valid, HAS_ALPHA, HAS_WEIGHT)
        z, t = unpack(await_words(words + place, inside))
        total += tl.where(counted, a * row_loss(tl.zeros_like(z), z, t), 0.0)
    tl.store(loss, tl.sum(tl.sum(total, 1), 0) / denominator)


@triton.jit(do_not_specialize=["n_rows", "summing", "ignore_index", "zero"])
def words_kernel(
    logits, grad, target, table, positive, alpha, weight, totals, words, loss,
    n_rows, n_words, summing, scale, ignore_index, zero,
    MEAN: tl.constexpr, HAS_POSITIVE: tl.constexpr, HAS_ALPHA: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, HAS_SCALE: tl.constexpr, TOTALS: tl.constexpr, FULL: tl.constexpr,
    ALIGN: tl.constexpr, PARTS: tl.constexpr, TURN: tl.constexpr, T: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    """Loss and gradient: a program for each row, and number `summing`, which adds their losses.

    That one waits for rows which may not have started yet. They do not wait for anybody, so they
    need but one place to run beside it. It is not the last one, so that at the end there is little
    left to add.
    """
    PART: tl.constexpr = PACK * T
    pid = tl.program_id(0)
    if pid == summing:
        if NATIVE:
            gdc_wait()
        denominator = 1.0
        if MEAN:
            denominator = denominator_of(totals, veil(zero, NATIVE), TOTALS)
        sum_losses(
            words, target, alpha, weight, loss, denominator, n_rows, 2 * n_words, ignore_index,
            HAS_ALPHA, HAS_WEIGHT, TURN,
        )  # fmt: skip
        return
    row = pid - (pid > summing).to(tl.int32)
    window = tl.arange(0, PART)
    shift = (row * n_words) & (ALIGN - 1)
    xs = read_row(begin_of(logits, row, shift, n_words), window, shift, n_words, PARTS, FULL)
    if NATIVE:
        # Waits for `targets_kernel`; and the compiler moves no load across it, else it would have
        # the label arrive before it asks for the logits.
        gdc_wait()
    hidden = veil(zero, NATIVE)  # a label that all threads share would be waited for at once
    y = tl.load(target + row + hidden)
    share = scale
    if MEAN:
        if HAS_WEIGHT:
            share = scale / denominator_of(totals, hidden, TOTALS)
        else:  # a number of rows
            share = quotient(scale, denominator_of(totals, hidden, TOTALS), NATIVE)
    entry = table.to(tl.pointer_type(tl.int64), bitcast=True)
    near = entry + (ALIGN - shift + hidden)
    b, b_odd = read_table(near, window, 0)
    next_b, next_b_odd = read_table(near, window, PART)
    bits = LOG2E
    if HAS_SCALE:
        bits = scale * LOG2E
    counted, y_at, t, a = row_terms(
        y, logits, positive, alpha, weight, row, shift, n_words, scale, ignore_index,
        HAS_POSITIVE, HAS_ALPHA, HAS_WEIGHT, HAS_SCALE,
    )  # fmt: skip
    share *= a

    xs = without_target(xs, window, y_at, PARTS, T, NATIVE)
    f, f_odd = halves(xs[0])
    e, e_odd = tl.exp2(f * bits + b), tl.exp2(f_odd * bits + b_odd)
    es = (e, e_odd)
    sums = e + e_odd
    for p in tl.static_range(1, PARTS):
        fence(NATIVE)
        b, b_odd = next_b, next_b_odd
        if p + 1 < PARTS:
            next_b, next_b_odd = read_table(near, window, (p + 1) * PART)
        f, f_odd = halves(xs[p])
        e, e_odd = tl.exp2(f * bits + b), tl.exp2(f_odd * bits + b_odd)
        es = es + (e, e_odd)  # noqa: RUF005
        sums += e + e_odd
    z = tl.sum(sums, 0)
    all_of_it = z + tl.exp2(t * LOG2E)
    pull = 0.0
    to = begin_of(grad, row, shift, n_words)
    if everywhere((z > LEAST) & (all_of_it < MOST) & (a != 0), NATIVE):
        tl.store(words + row, pack(z, t))  # before the gradient: the loss is not to wait for it
        c = quotient(share, all_of_it, NATIVE)  # A·s·σ(d)/z without a logarithm
        pull = c * z
        for p in tl.static_range(PARTS):
            g = to_words(es[2 * p] * c, es[2 * p + 1] * c, NATIVE)
            mine = owned(window, shift, n_words, p * PART, FULL)
            tl.store(to + p * PART + window, g, mask=mine, cache_modifier=WRITE)
    elif everywhere(counted, NATIVE):
        z, t, pull = row_again(
            logits, grad, entry, row, shift, n_words, window, y_at, t, a, share, bits, zero,
            PARTS, FULL, ALIGN, NATIVE,
        )  # fmt: skip
        tl.store(words + row, pack(z, t))
    else:
        tl.store(words + row, pack(z, t))
        for p in tl.static_range(PARTS):
            mine = owned(window, shift, n_words, p * PART, FULL)
            tl.store(to + p * PART + window, window * 0, mask=mine, cache_modifier=WRITE)
    # By the thread that wrote the word, after it: two stores of one thread stay in order.
    thread = tl.arange(0, T)
    place = to.to(tl.pointer_type(tl.bfloat16), bitcast=True) + y_at + thread * 0
    writer = (thread == ((y_at >> 1) & (T - 1))) & (y_at >= 0)
    tl.store(place, (-pull + thread * 0.0).to(tl.bfloat16), mask=writer)
