"""The documentation's pages and tables of benchmarks are what the records say."""

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def bench(monkeypatch):
    """A benchmark's module, and its record."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")

    def load(name):
        record = json.loads((ROOT / "results" / f"{name}.json").read_text())
        return importlib.import_module(name), record

    return load


@pytest.mark.parametrize(
    ("name", "page", "mark", "table"),
    [
        ("bench_kernels", "kernels.md", "bench_kernels", "table"),
        ("bench_losses", "train-pytorch.md", "bench_losses eager", "eager_table"),
    ],
)
def test_the_page_shows_the_record(bench, name, page, mark, table):
    module, record = bench(name)
    shown = (ROOT / "docs" / page).read_text().split(f"<!-- {mark} -->\n")[1]
    assert shown.split("\n<!-- end -->")[0].strip() == getattr(module, table)(record).strip()


@pytest.mark.parametrize("name", ["bench_drift", "bench_which_loss"])
def test_the_page_is_that_of_its_record(bench, name):
    module, record = bench(name)
    assert module.page(record) == module.PAGE.read_text()


def test_the_tables_of_estimators_are_those_of_the_record(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    made = importlib.import_module("make_page")
    assert made.PAGE.read_text() == made.page()
    assert made.SKLEARN.read_text() == made.tables(made.SKLEARN.read_text())


def test_the_alarm_of_drift_holds_its_level_and_a_step_costs_what_torch_s_does(bench):
    _, drift = bench("bench_drift")
    assert all(row["false"] <= drift["level"] for row in drift["alarms"])
    _, losses = bench("bench_losses")
    for shape, kinds in losses["eager"]["cpu"]["rows"].items():
        worst = max(row["ratio"][0] for row in kinds.values())
        assert worst <= (1.4 if shape == "32 x 10" else 1.15)
