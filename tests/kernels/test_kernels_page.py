"""The documentation's tables are what the records say."""

import copy
import importlib
import json
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
