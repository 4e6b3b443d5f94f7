"""The kernels' batteries, each in a process of its own, and what torch does in their place.

Triton's interpreter is chosen when Triton is imported, so the rest of the suite must not share it.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from longtail.kernels.grouped_conv import grouped_conv, pad_shortcut
from longtail.kernels.norm_act import norm_act

BATTERIES = ("loss_battery", "norm_battery", "conv_battery", "guarded_battery")
INTERPRETED = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}


def run_battery(name, marks, **env):
    file = Path(__file__).with_name(f"{name}.py")
    quiet = ("-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(file), "-qx", "-m", marks, *quiet],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[:2000]
    assert " passed" in done.stdout


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton: pip install triton")
@pytest.mark.parametrize(
    ("battery", "marks"),
    [pytest.param(name, "not long", marks=pytest.mark.slow) for name in BATTERIES]
    + [pytest.param(name, "long", marks=pytest.mark.long) for name in BATTERIES],
)
def test_battery_in_the_interpreter(battery, marks):
    run_battery(battery, marks, **INTERPRETED)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("battery", BATTERIES[:3])
def test_battery_on_the_gpu(battery):
    run_battery(battery, "long or not long")


# --- torch's operations in their place ------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("residual", [True, False])
def test_norm_act_is_torchs_own_sequence(residual, relu, training):
    rng = torch.Generator().manual_seed(1)
    x, r = torch.randn(2, 4, 6, 5, 3, generator=rng)
    w, b = torch.randn(2, 6, generator=rng)
    r = r if residual else None
    tracked = torch.rand(2, 6)
    expected_tracked = tracked.clone()
    options = {"training": training, "momentum": 0.2, "eps": 1e-3}
    found = norm_act(x, w, b, *tracked, residual=r, relu=relu, **options)
    expected = F.batch_norm(x, *expected_tracked, w, b, **options)
    expected = expected + r if residual else expected
    assert torch.equal(found, expected.relu() if relu else expected)
    assert torch.equal(tracked, expected_tracked)


@pytest.mark.parametrize("stride", [1, 2])
def test_networks_side_by_side_are_networks_apart(stride):
    rng = torch.Generator().manual_seed(0)
    xs = [torch.randn(2, 5, 6, 7, generator=rng) for _ in range(3)]
    weights = [torch.randn(4, 5, 3, 3, generator=rng) for _ in range(3)]
    y, moments = grouped_conv(torch.cat(xs, 1), torch.cat(weights), stride=stride, groups=3)
    apart = [F.conv2d(x, w, None, stride, 1) for x, w in zip(xs, weights, strict=True)]
    torch.testing.assert_close(y, torch.cat(apart, 1))
    assert moments is None


def test_shortcut_in_torch_operations():
    x = torch.arange(1.0, 33.0).view(1, 4, 2, 4)
    y = pad_shortcut(x, groups=2)
    assert y.shape == (1, 8, 1, 2)
    assert y[0, :, 0, 0].tolist() == [0, 1, 9, 0, 0, 17, 25, 0]
