"""The study `pretrained` in small, on made-up images."""

import numpy as np
import pytest

from data_factory import pixels
from longtail.data import ImageSet, LongTailedData
from longtail.runs import DataSpec
from studies import __main__, pretrained

pytestmark = pytest.mark.usefixtures("one_thread")


def whole():
    names = tuple(map(str, range(8)))
    train, test = (
        ImageSet(pixels(8 * each, shape=(3, 8, 8), seed=each), np.arange(8 * each) % 8, names)
        for each in (20, 3)
    )
    return LongTailedData(train, test, DataSpec("made"))


def test_the_halves_share_no_class(monkeypatch):
    monkeypatch.setattr(pretrained, "RATIO", 10.0)
    even, odd = pretrained.split(whole())
    assert even.train.class_names == ("0", "2", "4", "6")
    assert odd.test.class_names == ("1", "3", "5", "7")
    assert even.train.counts.tolist() == [20] * 4
    assert odd.train.counts.tolist() == [20, 9, 4, 2]
    assert np.array_equal(even.test.images, whole().test.images[::2])


def test_the_study_in_small(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pretrained, "RATIO", 5.0)
    monkeypatch.setattr(pretrained, "halves", lambda data_dir: pretrained.split(whole()))
    small = ["epochs=1", "model=resnet20", "batch_size=16", "warmup_epochs=0", "milestones=[]"]
    words = [word for one in small for word in ("--set", one)]
    words += ["--set", "schedule=cosine", "--seeds", "2", "--device", "cpu"]
    for name in ("records", "runs", "out"):
        words += [f"--{name}", str(tmp_path / name)]
    assert __main__.main(["pretrained", *words]) == 0
    text = (tmp_path / "out/docs/pretrained.md").read_text()
    for way in ("from scratch", "pretrained, head only", "pretrained, fine-tuned"):
        assert text.count(f"| {way} | ") == 3
    assert "Not yet trained" not in text
    assert len(list((tmp_path / "records").rglob("*.json"))) == 12
    assert "head only" in capsys.readouterr().out
