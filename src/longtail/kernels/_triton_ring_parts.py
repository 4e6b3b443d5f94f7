"""Small parts of the Gluon kernel for wide rows: what is in assembly, words and pairs.

The kernel is in `_triton_ring`. Importing needs Triton with Gluon.
"""

# mypy: ignore-errors
# (written in Gluon's language: Python only to look at)

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# As in `_triton_parts`; Gluon takes no functions or constants of Triton's own.
LOG2E = gl.constexpr(1.4426950216293335)
PER_LOG2E = gl.constexpr(0.6931471824645996)
PER_LOG2E_REST = gl.constexpr(7.348693e-09)
INF, NEG_INF = gl.constexpr(float("inf")), gl.constexpr(float("-inf"))
PAIRS = gl.constexpr(16)  # of a thread, in a slice: BLOCK // 2 // (32 * num_warps)


@gluon.jit
def wait_for_launch():
    """Until the launch before this one has ended; no load is moved across."""
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


# Both count from the start of shared memory, where `ring_kernel` has its ring.
LEAVE = gl.constexpr(
    """{
    .reg .b32 %to;
    .reg .b32 %warp;
    mov.u32 %to, global_smem;
    add.u32 %to, %to, $2;
    mov.u32 %warp, %tid.x;
    shr.u32 %warp, %warp, 5;
    shl.b32 %warp, %warp, 2;
    add.u32 %to, %to, %warp;
    st.shared.f32 [%to], $1;
    mov.b32 $0, 0;
    }"""
)
TAKE = gl.constexpr(
    """{
    .reg .b32 %from;
    .reg .f32 %z<4>;
    mov.u32 %from, global_smem;
    add.u32 %from, %from, $1;
    ld.shared.v4.f32 {%z0, %z1, %z2, %z3}, [%from];
    add.f32 %z0, %z0, %z1;
    add.f32 %z2, %z2, %z3;
    add.f32 $0, %z0, %z2;
    }"""
)


@gluon.jit
def leave_sums(v, at):
    """Each of four warps leaves its number where `take_sum` finds it after a barrier."""
    gl.inline_asm_elementwise(LEAVE, "=r,f,r", [v, at], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def take_sum(at):
    """The sum of the numbers that four warps have left; the same in all threads."""
    return gl.inline_asm_elementwise(TAKE, "=f,r", [at], dtype=gl.float32, is_pure=False, pack=1)


@gluon.jit
def await_pairs(pointer, mask, early):
    """The 64-bit words at `pointer`, once written; −1 is blank. `early` is a first reading."""
    return gl.inline_asm_elementwise(
        """{
        .reg .pred %p;
        mov.b64 $0, $3;
        setp.eq.s32 %p, $2, 0;
        @%p bra OUT;
        setp.ne.s64 %p, $0, -1;
        @%p bra OUT;
        SPIN:
        ld.relaxed.gpu.global.b64 $0, [$1];
        setp.eq.s64 %p, $0, -1;
        @%p bra SPIN;
        OUT:
        }""",
        "=&l,l,r,l",
        [pointer.to(gl.int64), mask.to(gl.int32), early],
        dtype=gl.int64,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def await_words(pointer, mask):
    """The 32-bit words at `pointer`, once written; −1 is blank, 0 where the mask is not."""
    return gl.inline_asm_elementwise(
        """{
        .reg .pred %p;
        mov.b32 $0, 0;
        setp.eq.s32 %p, $2, 0;
        @%p bra OUT;
        SPIN:
        ld.relaxed.gpu.global.b32 $0, [$1];
        setp.eq.s32 %p, $0, -1;
        @%p bra SPIN;
        OUT:
        }""",
        "=&r,l,r",
        [pointer.to(gl.int64), mask.to(gl.int32)],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def to_pairs(even, odd):
    """Two float32 to bfloat16 in one word."""
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f", [odd, even], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def quotient(a, b):
    """a / b to two units in the last place, 0 for b beyond 2^126: a reciprocal and a product."""
    return gl.inline_asm_elementwise(
        "div.approx.ftz.f32 $0, $1, $2;", "=f,f,f", [a, b], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def log2_roughly(a):
    """log2 to 2^−22: enough for a gradient in bfloat16."""
    return gl.inline_asm_elementwise(
        "lg2.approx.ftz.f32 $0, $1;", "=f,f", [a], dtype=gl.float32, is_pure=True, pack=1
    )


def _replace_text(n):
    """Assembly for a thread's n pairs: one test for all of them, behind it one for each."""
    x, pair, far, at, place, value = (range(n * k, n * k + n) for k in range(1, 7))
    lines = ["{", ".reg .pred %p;", ".reg .b32 %keep;"]
    lines += [f"mov.b32 ${k}, ${x[k]};" for k in range(n)]
    lines += [f"setp.ne.s32 %p, ${far[0]}, 0;", "@%p bra OUT;"]
    lines += [f"and.b32 %keep, ${place[0]}, 1;", "setp.ne.s32 %p, %keep, 0;"]
    lines += ["selp.b32 %keep, 0x0000FFFF, 0xFFFF0000, %p;"]
    for k in range(n):
        lines += [f"setp.eq.s32 %p, ${pair[k]}, ${at[0]};"]
        # (x & keep) | (value & ~keep)
        lines += [f"@%p lop3.b32 ${k}, ${k}, %keep, ${value[0]}, 0xE2;"]
    return "\n".join([*lines, "OUT:", "}"]), ",".join(["=&r"] * n + ["r"] * (6 * n))


REPLACE, REPLACED = (gl.constexpr(text) for text in _replace_text(PAIRS))


@gluon.jit
def replace(x, pair, far, at, place, value):
    """x where pair is not `at`; there, the half that is `place` from `value`.

    `far` is 0 in the thread that has it, and in few others: nearly all warps pass by with one test.
    """
    return gl.inline_asm_elementwise(
        REPLACE,
        REPLACED,
        [x, pair, far, at, place, value],
        dtype=gl.int32,
        is_pure=True,
        pack=PAIRS,
    )


def _edges_text(n):
    """Assembly for a thread's n pairs, four to a word: those of two words are stored by halves."""
    g, pair, far, low, high, first, end, to = (range(n * k, n * k + n) for k in range(1, 9))
    lines = ["{", ".reg .pred %p;", ".reg .b16 %h<2>;", ".reg .b32 %e;"]
    lines += [f"mov.b32 ${k}, 0;" for k in range(n)]
    lines += [f"setp.ne.s32 %p, ${far[0]}, 0;", "@%p bra OUT;"]
    for k in range(n):
        if k % 4 == 0:
            lines += [f"setp.lt.s32 %p, ${pair[k]}, ${low[0]};"]
            lines += [f"setp.eq.or.s32 %p, ${pair[k]}, ${high[0]}, %p;", f"@!%p bra NEXT{k};"]
        lines += [f"mov.b32 {{%h0, %h1}}, ${g[k]};", f"shl.b32 %e, ${pair[k]}, 1;"]
        for half in range(2):
            lines += [f"setp.ge.s32 %p, %e, ${first[0]};"]
            lines += [f"setp.lt.and.s32 %p, %e, ${end[0]}, %p;"]
            lines += [f"@%p st.global.b16 [${to[k]} + {2 * half}], %h{half};", "add.s32 %e, %e, 1;"]
        if k % 4 == 3:
            lines += [f"NEXT{k - 3}:"]
    return "\n".join([*lines, "OUT:", "}"]), ",".join(["=&r"] * n + ["r"] * (7 * n) + ["l"] * n)


EDGES, EDGED = (gl.constexpr(text) for text in _edges_text(PAIRS))


@gluon.jit
def store_halves(g, pair, far, low, high, first, end, to):
    """Places first to end − 1 of the words below `low` and at `high`; `far` as in `replace`."""
    return gl.inline_asm_elementwise(
        EDGES,
        EDGED,
        [g, pair, far, low, high, first, end, to.to(gl.int64)],
        dtype=gl.int32,
        is_pure=False,
        pack=PAIRS,
    )


@gluon.jit
def opaque_zero(like):
    """A zero that the compiler does not see through.

    What depends on it is computed where it is needed; else it would be computed before the loop,
    and kept in registers all along.
    """
    return gl.inline_asm_elementwise(
        "mov.b32 $0, 0;", "=r,r", [like], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def usual(z, c):
    """Whether z relative to this slice's own m will do, and c, from it, is positive.

    1e−6 < z < 1e20: what slices lose below 2^−126 is less than 2^−24·z then, no gradient above
    1e−32 is lost, and the logarithm of z is exact enough for the loss. c is 0 where `quotient` is
    at its end. All of a warp agree; a vote tells the compiler, which would keep what is the same in
    all threads in each one's registers if they might go separate ways.
    """
    voted = gl.inline_asm_elementwise(
        """{
        .reg .pred %p;
        setp.gt.f32 %p, $1, 0f358637BD;
        setp.lt.and.f32 %p, $1, 0f60AD78EC, %p;
        setp.gt.and.f32 %p, $2, 0f00000000, %p;
        vote.sync.all.pred %p, %p, -1;
        selp.b32 $0, 1, 0, %p;
        }""",
        "=r,f,f",
        [z, c],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )
    return voted != 0


@gluon.jit
def halves(x):
    """The even and the odd places of pairs of bfloat16."""
    return (x << 16).to(gl.float32, bitcast=True), (x & -65536).to(gl.float32, bitcast=True)


@gluon.jit
def pack(high, low):
    """Two float32 in one word, which is written and read whole: no fence, no flag beside it."""
    high = high.to(gl.int32, bitcast=True).to(gl.int64) << 32
    return high | (low.to(gl.int32, bitcast=True).to(gl.int64) & 0xFFFFFFFF)


@gluon.jit
def unpack(word):
    high = (word >> 32).to(gl.int32).to(gl.float32, bitcast=True)
    return high, word.to(gl.int32).to(gl.float32, bitcast=True)


@gluon.jit
def softplus(d):
    x = gl.exp2(-gl.abs(d) * LOG2E)
    w = 1.0 + x  # its rounding is put back: full relative accuracy
    return gl.where(d > 0, d, 0.0) + gl.log(w) + (x - (w - 1.0)) / w
