"""What the kernel for rows of a few thousand logits takes for granted of the compiler; no GPU.

What it computes is in `words_battery`. Here it is compiled for a GPU of compute capability 9, in a
process of its own, since others of the suite may have chosen Triton's interpreter.
"""

import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from assembly import run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("triton") is None, reason="Triton is not installed: pip install triton"
    ),
]
KINDS = {"logits": "*bf16", "grad": "*bf16", "target": "*i64", "words": "*i64", "scale": "fp32"}
KINDS |= dict.fromkeys(("table", "positive", "alpha", "weight", "totals", "loss"), "*fp32")
KINDS |= dict.fromkeys(("n_rows", "n_words", "summing", "ignore_index", "zero"), "i32")


def compile_for_a_gpu(classes, options):
    """Triton's own form of the kernel, with layouts, after all of its passes; and the assembly."""
    code = f"""
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from longtail.kernels import _words
from longtail.kernels._triton_words import words_kernel
plan, threads = _words.plan_words(4096, {classes}, 132), 32 * _words.WARPS
constants = dict.fromkeys(("HAS_POSITIVE", "HAS_ALPHA", "HAS_WEIGHT", "HAS_SCALE"), {options})
constants |= dict(MEAN=True, TOTALS=4, FULL=plan.words // threads * threads, ALIGN=_words.ALIGN)
constants |= dict(PARTS=plan.parts, TURN=_words.TURN, T=threads, NATIVE=True)
names, kinds = words_kernel.arg_names, {KINDS}
source = ASTSource(
    fn=words_kernel,
    signature={{name: "constexpr" if name in constants else kinds[name] for name in names}},
    constexprs={{(names.index(name),): value for name, value in constants.items()}},
    attrs={{(names.index(n),): [["tt.divisibility", 16]] for n in kinds if kinds[n][0] == "*"}},
)
how = {{"num_warps": _words.WARPS, "maxnreg": _words.REGISTERS, "launch_pdl": True}}
made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=how)
print(made.asm["ttgir"], "\\n=====\\n", made.asm["ptx"])
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "0"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split("\n=====\n")


@pytest.mark.parametrize(("classes", "parts", "options"), [(8142, 4, False), (4098, 3, True)])
def test_words_are_where_the_assembly_looks_for_them(classes, parts, options):
    ttgir, ptx = compile_for_a_gpu(classes, options)
    layouts = dict(re.findall(r"^(#\w+) = (#ttg\.blocked<.*>)$", ttgir, re.M))
    # Thread i has words i, i + 256, ...; so it is the one that writes the target's word, too.
    right = (
        "#ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [8], order = [0]}>"
    )
    found = re.findall(r"tt\.(?:load|store) .*tensor<(1024|256)x!tt\.ptr<(\w+)>, (#\w+)>", ttgir)
    assert {(size, kind) for size, kind, _ in found} == {
        ("1024", "i32"), ("1024", "i64"), ("256", "bf16"),
    }  # fmt: skip
    assert {layouts[layout] for *_, layout in found} == {right}
    moved = re.findall(r"ttg\.convert_layout .*tensor<1024x", ttgir)
    assert not moved
    # Words that a thread asks for at first: four bytes each, before it waits for anything.
    first = ptx[: ptx.index("griddepcontrol.wait", ptx.index("griddepcontrol.wait") + 1)]
    assert len(re.findall(r"ld\.global\S*\.b32 \{", first)) >= 4 * parts


@pytest.mark.parametrize("parts", [3, 4])
def test_the_assembly_takes_the_target_out(parts):
    from longtail.kernels import _triton_words

    text, where = (getattr(_triton_words, name + str(parts)).value for name in ("TEXT", "WHERE"))
    n, threads = 4 * parts, 256
    assert where.split(",") == ["=&r"] * n + ["r"] * (n + 16)
    row = torch.randint(-(2**31), 2**31, (n * threads,), generator=torch.Generator().manual_seed(0))
    for y_at in (0, 1, 2, 511, 512, 1025, 2 * n * threads - 1, -1):
        keep, half = (0xFFFF, -8388608) if y_at & 1 else (-65536, 0xFF80)  # −inf is 0xFF80
        which = ((y_at >> 1) & 0xFFFFFFFF) // threads
        for thread in (0, 1, 255, (y_at >> 1) % threads):
            mine = row[thread::threads].tolist()
            far = (thread ^ (y_at >> 1)) & (threads - 1)
            given = [value for value in (far, which, keep, half) for _ in range(4)]
            registers = {f"${n + i}": value for i, value in enumerate(mine + given)}
            found = run(text, registers, {})
            for i, word in enumerate(mine):
                halves = [word & 0xFFFF, (word >> 16) & 0xFFFF]
                if (i * threads + thread) == y_at >> 1:
                    halves[y_at & 1] = 0xFF80
                assert found[f"${i}"] & 0xFFFFFFFF == halves[0] | halves[1] << 16
