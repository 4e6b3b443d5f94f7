"""The kernels' batteries in Triton's interpreter, in processes of their own.

The interpreter is chosen when Triton is imported, so the rest of the suite must not share it.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("triton") is None, reason="Triton is not installed: pip install triton"
    ),
]
HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("battery", "part"),
    [
        ("kernel_battery", "float64 and not linear"),
        ("kernel_battery", "linear or training"),
        ("kernel_battery", "tiles or vmap or compiles or operators"),
        (
            "kernel_battery",
            "not (float64 or linear or training or tiles or vmap or compiles or operators)",
        ),
        ("words_battery", ""),
        ("norm_battery", ""),
        ("conv_battery", ""),
        ("guarded_battery", "offset"),
        ("guarded_battery", "not offset"),
    ],
)
def test_battery(battery, part):
    file = str(HERE / f"{battery}.py")
    command = [sys.executable, "-m", "pytest", file, "-v", "-x", "-k", part]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore"],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    # (A case that ends the process is the last one named.)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[:2000]
    assert " passed" in done.stdout


def test_losses_choose_the_kernel_only_where_asked():
    code = """
import torch
from longtail import ClassPrior, losses, margins
prior = ClassPrior.from_counts([90, 9, 1])
f, y = torch.randn(4, 3, 5), torch.randint(3, (4, 5))
for reduction in ("mean", "none"):
    for name in ("logit_adjusted", "ldam", "balanced"):
        margin = getattr(margins, name)(prior)
        found = losses.pairwise_margin_loss(f, y, margin, impl="triton", reduction=reduction)
        expected = losses.pairwise_margin_loss(f, y, margin, impl="torch", reduction=reduction)
        torch.testing.assert_close(found, expected)
one = losses.logit_adjusted_loss(f[0, :, 0], y[0, 0], prior, impl="triton")
torch.testing.assert_close(one, losses.logit_adjusted_loss(f[0, :, 0], y[0, 0], prior))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_benchmark_of_trainings_runs_small(tmp_path):
    record = tmp_path / "record.json"
    script = HERE.parents[1] / "benchmarks" / "bench_loss_training.py"
    command = [sys.executable, "-W", "ignore", str(script), "--small", "--record", str(record)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(record.read_text())
    assert [(row["dtype"], row["form"]) for row in found["rows"]] == [
        ("bfloat16", "logits"),
        ("bfloat16", "features"),
        ("float32", "logits"),
        ("float32", "features"),
    ]
    for row in found["rows"]:
        rounding = {"float32": 2e-6, "bfloat16": 4e-3}[row["dtype"]]
        plain, kernel, reordered = (row["arms"][k] for k in ("torch", "kernel", "reordered"))
        assert len(set(plain["loss"])) == found["setting"]["seeds"]  # seeds differ
        for arm in (kernel, reordered):
            assert arm["loss"] == pytest.approx(plain["loss"], rel=rounding)
            assert max(arm["step_difference"].values()) < rounding
        apart = [k - p for k, p in zip(kernel["loss"], plain["loss"], strict=True)]
        gap = kernel["loss_difference"]
        assert gap["mean"] == pytest.approx(sum(apart) / len(apart), abs=1e-12)
        # Student's t with one degree of freedom: tan(0.475 π) = 12.706 standard errors.
        error = abs(apart[0] - apart[1]) / 2
        assert gap["high"] - gap["mean"] == pytest.approx(12.7062 * error, rel=1e-4, abs=1e-12)
