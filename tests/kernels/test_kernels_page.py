"""The documentation's table is what the record says."""

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_record():
    path = ROOT / "benchmarks" / "bench_losses.py"
    spec = importlib.util.spec_from_file_location("bench_losses", path)
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    record = json.loads((ROOT / "results" / "bench_losses.json").read_text())
    assert bench.tables(record) in (ROOT / "docs" / "kernels.md").read_text()
    shapes = {(row["rows"], row["classes"]) for row in record["logits"].values()}
    assert shapes == set(bench.SHAPES.values())
