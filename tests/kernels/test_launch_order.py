"""Kernels that may start before the launch before them has ended wait for it first; no GPU.

They are compiled for a GPU of compute capability 9, in a process of their own, since others of the
suite may have chosen Triton's interpreter. What the other kernels do is in `test_words` and
`test_ring_launch`.
"""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("triton") is None, reason="Triton is not installed: pip install triton"
    ),
]
TARGETS = dict.fromkeys(("weight", "offset", "totals", "shifted"), "*fp32")
TARGETS |= {"target": "*i64", "words": "*i32", "scale": "fp32"}
CASES = {
    "labels alone": ("targets_kernel", TARGETS, {"HAS_WEIGHT": False, "PHASES": 0}),
    "weights and tables": ("targets_kernel", TARGETS, {"HAS_WEIGHT": True, "PHASES": 4}),
    "scaling": ("scale_kernel", {"values": "*bf16", "factor": "*bf16"}, {"BLOCK": 16384}),
}
REST = {"HAS_OFFSET": True, "TOTALS": 4, "STEP": 2, "HALVES": 2, "LEAD": 0, "BLOCK": 1024}
CODE = """
import json, sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from longtail.kernels import _triton
name, kinds, constants, rest = json.loads(sys.argv[1])
kernel = getattr(_triton, name)
names = kernel.arg_names
constants = {n: v for n, v in {**rest, **constants, "CHAINED": True}.items() if n in names}
source = ASTSource(
    fn=kernel,
    signature={n: "constexpr" if n in constants else kinds.get(n, "i32") for n in names},
    constexprs={(names.index(n),): value for n, value in constants.items()},
    attrs={(k,): [["tt.divisibility", 16]] for k, n in enumerate(names) if n in kinds},
)
how = {"num_warps": 8, "launch_pdl": True}
print(triton.compile(source, target=GPUTarget("cuda", 90, 32), options=how).asm["ptx"])
"""


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_read_or_written_before_the_launch_before_has_ended(case):
    name, kinds, constants = CASES[case]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE, json.dumps([name, kinds, constants, REST])],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "0"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    before, after = done.stdout.split("griddepcontrol.wait")  # once
    memory = r"\b(ld|st|atom|red)\.(global|volatile|relaxed|v\d)"
    assert not re.search(memory, before)
    assert re.search(memory, after)
    # Those who follow it read before they wait: they may not start before either.
    assert "launch_dependents" not in before
    assert ("launch_dependents" in after) == (name == "targets_kernel")
    if name == "scale_kernel":  # in whole words, however many numbers there are
        assert "ld.global.v4" in after
