"""The ImageNet-LT and iNaturalist tables: runs, page, and training in small from disk."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_factory import write_large
from longtail.data.large import LARGE
from studies import __main__

ROOT = Path(__file__).parents[2]
COUNTS = {"imagenet-lt": (24, 10, 5, 3), "inaturalist": (20, 8, 4, 2, 2)}
SMALL = ("model=small-conv", "epochs=2", "batch_size=16", "image_size=16", "lr=0.05")


def test_without_records_the_page_has_the_published_numbers(tmp_path, capsys):
    words = ["large", "--no-train", "--records", str(tmp_path / "none"), "--out", str(tmp_path)]
    assert __main__.main(words) == 0
    said = capsys.readouterr()
    assert "no record of any" in said.err
    assert "53.11" in said.out
    text = (tmp_path / "docs/large.md").read_text()
    if not (ROOT / "results/large").exists():
        assert text == (ROOT / "docs/large.md").read_text()


@pytest.fixture
def study(tmp_path, monkeypatch, capsys, one_thread):
    """Call the study in small on images on disk, in a folder of its own."""
    for name, counts in COUNTS.items():
        write_large(tmp_path / name, name, counts=counts, held=3)
        sizes = {"train": sum(counts), "val": 3 * len(counts), "test": 3 * len(counts)}
        monkeypatch.setitem(LARGE, name, replace(LARGE[name], num_classes=len(counts), sizes=sizes))

    def call(*words, name="imagenet-lt"):
        capsys.readouterr()
        sets = [word for value in SMALL for word in ("--set", value)]
        where = ["--runs", str(tmp_path / "runs"), "--records", str(tmp_path / "kept")]
        what = ["--dataset", name, "--model", "resnet50", "--seeds", "1"]
        images = ["--data-dir", str(tmp_path / "imagenet-lt"), "--workers", "0"]
        code = __main__.main(["large", *what, *sets, *where, *images, *words])
        return code, *capsys.readouterr()

    return call


def test_a_column_trained_from_disk(study, tmp_path):
    code, out, err = study("--out", str(tmp_path / "made"))
    assert code == 0, err
    assert "ImageNet-LT, ResNet-50, 90 epochs" in out
    assert "6 runs" in out
    kept = {path: path.read_bytes() for path in (tmp_path / "kept").rglob("*.json")}
    assert len(kept) == 6
    page = (tmp_path / "made/docs/large.md").read_text()
    documents = [json.loads(text) for text in kept.values()]
    names = [one["spec"]["method"]["name"] for one in documents]
    test = documents[names.index("logit-adjusted")]["splits"]["test"]
    error = np.mean(np.divide(test["wrong"], test["examples"]))
    line = next(line for line in page.splitlines() if line.startswith("| logit adjusted |"))
    assert f"| {100 * error:.2f} |" in line
    assert (tmp_path / "made/docs/large/imagenet-lt-tau-curves.svg").exists()

    # From the records alone it is the same page; the images are not needed.
    code, _, err = study("--no-train", "--data-dir", "nowhere", "--out", str(tmp_path / "again"))
    assert code == 0, err
    assert (tmp_path / "again/docs/large.md").read_text() == page
