"""The benchmark of large-scale training, in small on a CPU: what it compares and what it writes."""

import importlib.util
import json
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


@pytest.fixture
def measured(bench, monkeypatch):
    """Known rates in the place of measured ones."""
    speed = {"resnet50": 3000.0, "resnet152": 1200.0}

    def rate(setting, model, *, num_classes, compiled):
        value = speed[model] * (0.9 if num_classes == 8142 else 1.0) * (1.5 if compiled else 1.0)
        return {"images_per_second": value, "least": value, "most": value}

    def versus(setting, model, *, compiled):
        both = {"trainer": rate(None, model, num_classes=1000, compiled=compiled)}
        return {**both, "bare loop": {"images_per_second": 3100.0}, "ratio": 3000 / 3100}

    monkeypatch.setattr(bench, "trainer_rate", rate)
    monkeypatch.setattr(bench, "against_bare", versus)
    monkeypatch.setattr(bench, "from_files", lambda *_, **__: {"images_per_second": 8e3})
    loader = {"images_per_second": 9e3, "workers": 2, "pixels": [500, 375]}
    monkeypatch.setattr(bench, "loader_rate", lambda **_: loader)
    return speed


def test_what_was_measured_before_a_kill_is_in_the_record(bench, measured, tmp_path, monkeypatch):
    known = bench.trainer_rate

    def killed(setting, model, *, num_classes, compiled):
        if compiled:
            raise KeyboardInterrupt
        return known(setting, model, num_classes=num_classes, compiled=compiled)

    monkeypatch.setattr(bench, "trainer_rate", killed)
    path = tmp_path / "bench_large.json"
    with pytest.raises(KeyboardInterrupt):
        bench.main(["--record", str(path), "--device", "cpu", "--batch", "2", "--size", "32"])
    record = json.loads(path.read_text())
    assert set(record["rates"]) == {"resnet50, eager", "resnet152, eager", "resnet50, compiled"}
    assert record["loader"]["of what the GPU takes"] == pytest.approx(2.0)
    hours = record["hours"]["ImageNet-LT, ResNet-152, 90 epochs"]
    assert hours["softmax"] == pytest.approx(90 * 115_846 / 1200 / 3600)
    bench.main(["--show", str(path)])


def test_the_record_is_whole_and_its_hours_follow_from_its_rates(
    bench, measured, tmp_path, monkeypatch
):
    speed = measured
    path = tmp_path / "results" / "bench_large.json"
    path.parent.mkdir()
    bench.main(["--record", str(path), "--device", "cpu", "--batch", "2", "--size", "32"])
    record = json.loads(path.read_text())
    assert set(record["rates"]) == {f"{m}, {c}" for m in speed for c in ("eager", "compiled")}
    assert record["loader"]["of what the GPU takes"] == pytest.approx(2.0)
    hours = record["hours"]["iNaturalist 2018, ResNet-152, 200 epochs"]
    assert hours["softmax"] == pytest.approx(200 * 437_513 / (1200 * 1.5 * 0.9) / 3600)
    assert len(record["hours"]) == 5
    bench.main(["--show", str(path)])
    page = load("make_page")
    monkeypatch.setattr(page, "ROOT", tmp_path)
    text = "\n".join(page.large())
    assert "| resnet50, compiled | 4,500 | 3,100 | 0.968 |" in text
    assert "| resnet152, eager | 1,200 |  |  |" in text
    assert "2.00 of what the GPU takes with ResNet-50" in text
    path.unlink()
    assert page.large() == []
