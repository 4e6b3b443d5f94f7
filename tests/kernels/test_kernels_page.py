"""The documentation's tables are what the records say."""

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "page", "mark", "table"),
    [
        ("bench_kernels", "kernels.md", "bench_kernels", "table"),
        ("bench_losses", "train-pytorch.md", "bench_losses eager", "eager_table"),
    ],
)
def test_the_page_shows_the_record(monkeypatch, name, page, mark, table):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    record = json.loads((ROOT / "results" / f"{name}.json").read_text())
    shown = (ROOT / "docs" / page).read_text().split(f"<!-- {mark} -->\n")[1]
    text = getattr(importlib.import_module(name), table)(record)
    assert shown.split("\n<!-- end -->")[0].strip() == text.strip()


def test_the_page_on_drift_is_that_of_its_record_and_its_alarm_holds_the_level(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    bench = importlib.import_module("bench_drift")
    record = json.loads((ROOT / "results" / "bench_drift.json").read_text())
    assert bench.page(record) == bench.PAGE.read_text()
    assert all(row["false"] <= record["level"] for row in record["alarms"])
    assert max(record["quapy"]["largest_difference"].values()) < 1e-4
