"""`longtail train` on embeddings, from the file to a baked head."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from longtail.runs import find_runs

COUNTS = np.array([60, 25, 8])
RANDOM = np.random.default_rng(0)
CENTRES = RANDOM.normal(size=(3, 5))


def rows(counts):
    labels = np.repeat(["ant", "bee", "emu"], counts)
    codes = np.repeat(np.arange(3), counts)
    return (CENTRES[codes] + RANDOM.normal(size=(len(codes), 5))).astype(np.float32), labels


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (features, labels), (test_features, test_labels) = rows(COUNTS), rows([20, 20, 20])
    np.savez("features.npz", features=features, labels=labels,
             test_features=test_features, test_labels=test_labels)  # fmt: skip
    return tmp_path / "features.npz"


TRAIN = ("train", "--dataset", "features.npz", "--device", "cpu", "--set", "epochs=5")


def test_from_features_to_a_baked_head(file, cli, ok):
    methods = ("--method", "softmax", "--method", "logit-adjusted", "--seeds", "2")
    result = ok(*TRAIN, *methods)
    assert "features (its own class sizes), recipe embeddings" in result.out
    runs = find_runs("runs")
    assert len(runs) == 4
    assert runs[0].class_names == ("ant", "bee", "emu")
    assert runs[0].prior.counts.tolist() == COUNTS.tolist()
    assert "Nothing to train: 4 runs" in cli(*TRAIN, *methods).err
    ok("evaluate", "runs", "--dataset", "features.npz", "--force")
    (plain,) = (run for run in runs if run.spec.method.name == "softmax" and run.spec.seed == 0)
    ok("bake", str(plain.folder), "--tau", "1", "--out", "head.safetensors")
    head, features = load_file("head.safetensors"), np.load(file)["test_features"]
    logits = plain.logits("test")[0] - np.log(COUNTS / COUNTS.sum())
    assert head["fc.weight"].shape == (3, 5)
    ours = features @ head["fc.weight"].T + head["fc.bias"]
    np.testing.assert_allclose(ours, logits, rtol=1e-4, atol=1e-4)
    told = cli("evaluate", "runs", "--force").err
    assert "say where" in told
    assert "--dataset PATH" in told


def test_resumed_and_long_tailed(file, cli, ok):
    words = (*TRAIN, "--profile", "step", "--ratio", "4", "--method", "softmax")
    assert cli(*words).code == 0
    (run,) = find_runs("runs")
    assert run.prior.counts.tolist() == [8, 2, 2]
    ok("train", "--resume", str(run.folder), "--dataset", "features.npz")
