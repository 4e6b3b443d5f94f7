"""The documentation's tables are what the records say."""

import copy
import importlib
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "kernels.md"


@pytest.fixture
def benchmark(monkeypatch):
    """A benchmark by its name."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


def read(name):
    """A record, or None where nothing has been measured yet."""
    path = ROOT / "results" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def part(page, mark):
    """What stands between a page's marks."""
    return page.read_text().split(f"<!-- {mark} -->\n")[1].split("\n<!-- end -->")[0]


def test_the_page_shows_the_record(benchmark):
    bench = benchmark("bench_losses")
    record = read("bench_losses")
    assert part(PAGE, "bench_losses") == bench.tables(record)
    shapes = {(row["rows"], row["classes"]) for row in record["logits"].values()}
    assert shapes == set(bench.SHAPES.values())


def test_a_part_is_measured_into_a_whole_record_of_its_kind(benchmark, monkeypatch, tmp_path):
    pytest.importorskip("triton")
    bench, path = benchmark("bench_losses"), tmp_path / "record.json"
    device, number = ["a GPU"], [0]

    def count(name, *_, **__):
        number[0] += 1
        return {"measured": number[0]}

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: device[0])
    monkeypatch.setattr(bench, "measure_linear", count)
    monkeypatch.setattr(bench, "measure_logits", lambda *a, **k: (count(*a), {}))
    monkeypatch.setattr(bench, "count_launches", lambda row, calls: None)
    how = {"quick": False, "compile_from": 0}
    with pytest.raises(SystemExit, match="is not there yet; measure all of it first"):
        bench.measure(path, parts=("linear",), **how)
    before = bench.measure(path, parts=bench.PARTS, **how)
    assert number == [len(bench.SHAPES) + len(bench.LINEAR)]
    bench.measure(path, parts=("linear",), **how)
    after = json.loads(path.read_text())
    assert after["logits"] == before["logits"]
    assert [row["measured"] for row in after["linear"].values()] == [9, 10]
    with pytest.raises(SystemExit, match="differs in one of device, versions, quick"):
        bench.measure(path, parts=("linear",), **{**how, "quick": True})
    device[0] = "another GPU"
    with pytest.raises(SystemExit, match="differs in one of device, versions, quick"):
        bench.measure(path, parts=("linear",), **how)
    assert json.loads(path.read_text()) == after


def test_what_waits_has_no_device_time_in_the_table(benchmark):
    bench = benchmark("bench_losses")
    record = copy.deepcopy(read("bench_losses"))
    row = next(iter(record["logits"].values()))
    row["peers"] = {
        name: {"graph": graph, "device_us": [5.0], "share_of_floor": 0.5, "wall_us": [9.0],
               "peak_MB": 1.0}
        for name, graph in {"quick": True, "waits": False}.items()
    }  # fmt: skip
    lines = bench.tables(record).splitlines()
    assert next(line for line in lines if "| quick |" in line).endswith(
        "| quick | 5.0 µs | 50.0% | 9 µs | 1 MB | – |"
    )
    assert next(line for line in lines if "| waits |" in line).endswith(
        "| waits | – | – | 9 µs | 1 MB | – |"
    )


def test_the_page_shows_the_trainings_or_that_there_is_no_record(benchmark):
    bench = benchmark("bench_loss_training")
    record = read("bench_loss_training")
    assert part(PAGE, "bench_loss_training") == bench.tables(record)
    if record is not None:
        assert not record["interpreted"]
        assert record["setting"] == json.loads(json.dumps(bench.Setting()._asdict()))


def arm(losses, errors, ms, *, other=None):
    found = {"loss": losses, "error": errors, "ms_a_step": ms}
    if other is not None:
        found["loss_difference"], found["error_difference"] = other
        found["step_difference"] = {"1": 1.2e-7}
    return found


@pytest.fixture
def record():
    """One setting of two seeds, made up: the kernel 0.5 ± 0.1 below torch, errors the same."""
    apart = {"mean": -0.5, "low": -0.6, "high": -0.4}
    same = {"mean": 0.0, "low": -0.01, "high": 0.01}
    arms = {
        "torch": arm([2.0, 4.0], [0.5, 0.6], 1.0),
        "kernel": arm([1.5, 3.5], [0.5, 0.6], 0.25, other=(apart, same)),
        "reordered": arm([2.0, 4.0], [0.5, 0.6], 1.0, other=(same, same)),
    }
    return {
        "device": "a GPU",
        "interpreted": False,
        "versions": {"torch": "2", "triton": "3"},
        "setting": {"seeds": 2, "steps": 250, "batch": 512},
        "rows": [{"classes": 1203, "dtype": "float32", "form": "logits", "arms": arms}],
    }


def test_the_table_of_trainings(benchmark, record):
    text = benchmark("bench_loss_training").tables(record)
    row = next(line for line in text.splitlines() if line.startswith("| 1,203"))
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "1,203", "float32", "logits", "3.0000", "−5.0e−01 [−6.0e−01, −4.0e−01]",
        "+0.0e+00 [−1.0e−02, +1.0e−02]", "55.00", "+0.00 [−1.00, +1.00]", "1.00", "0.25",
    ]  # fmt: skip
    # Of the kernel's two intervals the loss's misses zero; 1.5/2 and 3.5/4 of torch's loss are
    # 25% and 12.5% less.
    assert "Of the 2 intervals of the kernel 1 include zero" in text
    assert "by a share of −1.9e−01 [" in text
    assert "first step differ by 1e−07 at most" in text


@pytest.mark.parametrize(
    ("kernel", "message"), [(False, "TRITON_INTERPRET=1"), (True, "add --small")]
)
def test_trainings_that_make_no_sense_do_not_start(benchmark, monkeypatch, capsys, kernel, message):
    bench = benchmark("bench_loss_training")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(bench, "available", lambda device: kernel)
    monkeypatch.setattr(sys, "argv", ["bench", "--record", "nowhere.json"])
    with pytest.raises(SystemExit):
        bench.main()
    assert message in capsys.readouterr().err


def test_the_table_gets_into_its_own_place(benchmark, record, tmp_path):
    bench = benchmark("bench_loss_training")
    page = Path(shutil.copy(PAGE, tmp_path))
    bench.put_into(page, bench.tables(record), mark="bench_loss_training")
    assert part(page, "bench_loss_training") == bench.tables(record)
    assert part(page, "bench_losses") == part(PAGE, "bench_losses")
    other = copy.deepcopy(record)
    other["device"] = "another"
    bench.put_into(page, bench.tables(other), mark="bench_loss_training")
    assert "a GPU" not in part(page, "bench_loss_training")
