"""The kernels in Triton's interpreter, in processes of their own.

The interpreter is chosen when Triton is imported, so the rest of the suite must not share it.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed: pip install triton"
)
HERE = Path(__file__).parent
QUIET = ("-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore")
BATTERIES = ("loss_battery", "norm_battery", "conv_battery", "guarded_battery")


@pytest.mark.parametrize(
    ("battery", "marks"),
    [
        pytest.param(name, marks, marks=pytest.mark.slow if marks[0] == "n" else pytest.mark.long)
        for name in BATTERIES
        for marks in ("not long", "long")
    ],
)
def test_battery(battery, marks):
    file = str(HERE / f"{battery}.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", file, "-qx", "-m", marks, *QUIET],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[:2000]
    assert " passed" in done.stdout
