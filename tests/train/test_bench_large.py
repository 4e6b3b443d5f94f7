"""The benchmark of large-scale training, in small on a CPU: what it compares and what it writes."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from longtail import models

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def load(name):
    sys.path.insert(0, str(BENCHMARKS))  # for the module that benchmarks share
    try:
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCHMARKS))
    return module


@pytest.fixture(scope="module")
def bench():
    return load("bench_large")


def test_both_loops_train_the_same_network(bench):
    ours = models.build("resnet50", num_classes=7, image_shape=(3, 32, 32))
    plain = bench.Plain(bench.DEPTHS["resnet50"], 7)
    plain.load_state_dict(ours.state_dict())  # the same names and shapes, or it refuses
    pixels = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    zero, one = torch.zeros(3, 1, 1), torch.ones(3, 1, 1)
    with torch.no_grad():
        expected = ours.eval()(pixels / 255)
        torch.testing.assert_close(plain.eval()(pixels, zero, one), expected, rtol=1e-3, atol=1e-3)


def test_a_step_of_the_trainer_is_measured_on_the_same_bytes(bench):
    setting = bench.Setting(torch.device("cpu"), batch=2, size=32, steps=1, rounds=1)
    begin, step = bench.trainer(setting, "resnet18", num_classes=5, compiled=False)
    team = begin.__closure__[0].cell_contents.training
    before = team.model.fc.weight.detach().clone()
    rates = bench.rates_of(setting, {"trainer": (begin, step)})
    assert rates["trainer"]["images_per_second"] > 0
    assert not torch.equal(team.model.fc.weight, before)
    assert team.batch[0] is setting.pixels
    assert setting.pixels.is_contiguous(memory_format=torch.channels_last)


def test_the_loader_reads_real_files(bench):
    found = bench.loader_rate(files=2, seconds=0.2, size=32, workers=1)
    assert found["images_per_second"] > 0
    assert 50_000 < found["bytes_a_file"] < 250_000  # ImageNet's have about 110,000
    setting = bench.Setting(torch.device("cpu"), batch=4, size=32, steps=1, rounds=1)
    found = bench.from_files(setting, "resnet18", files=2, seconds=0.1, workers=1)
    assert found["images_per_second"] > 0
