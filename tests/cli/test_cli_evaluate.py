"""`longtail evaluate`: logits where they are missing, and the errors they make."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from data_factory import write_folder, write_list, write_photos
from longtail.cli import main
from longtail.data import freeze, load
from longtail.data.digits import load_digits_lt
from longtail.runs import Run, find_runs
from longtail.train import engine

pytestmark = pytest.mark.usefixtures("no_data_folder")

DIGITS = ("train", "--dataset", "digits-lt", "--device", "cpu", "--set", "epochs=2")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two methods with two seeds, and one run with a held-out part; the test set still closed."""
    out = tmp_path_factory.mktemp("trained") / "runs"
    words = (*DIGITS, "--no-evaluate", "--out", str(out), "--method", "logit-adjusted")
    assert main([*words, "--method", "softmax", "--seeds", "2"]) == 0
    assert main([*words, "--held-out", "0.2"]) == 0
    return out


@pytest.fixture
def runs(trained, cli):
    """A copy of those runs in the folder of the test."""
    return shutil.copytree(trained, Path("runs"))


def errors_by_hand(run, split="test"):
    """Balanced error and those of many (over 100), medium and few (under 20), in percent."""
    logits, target, _ = run.logits(split)
    found = {"balanced": [], "many": [], "medium": [], "few": []}
    for k, count in enumerate(run.prior.counts):
        wrong = 100 * np.mean(logits[target == k].argmax(axis=1) != k)
        found["balanced"].append(wrong)
        found["many" if count > 100 else "few" if count < 20 else "medium"].append(wrong)
    return [float(np.mean(values)) if values else float("nan") for values in found.values()]


@pytest.fixture
def birds(cli):
    """A folder of images, and how to train on it."""
    for split in ("train", "test"):
        write_folder(Path("birds") / split, {"a": 12, "b": 9}, shape=(1, 8, 8))
    words = ["train", "--dataset", "birds", "--recipe", "digits", "--method", "softmax"]
    return [*words, "--set", "epochs=1", "--device", "cpu"]


def test_logits_of_other_images_are_not_shown_as_those_of_the_data_named(birds, cli, refused):
    """The two test classes have changed places since the run was judged."""
    assert cli(*birds).code == 0
    for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
        (Path("birds/test") / old).rename(Path("birds/test") / new)
    (run,) = find_runs("runs")
    before = errors_by_hand(run)[0]
    for words in (["evaluate", "runs", "--dataset", "birds"], birds):
        result = cli(*words)
        assert result.code == 1
        assert "split 'test' are of other images than the data are now" in result.err
    assert cli("evaluate", "runs").code == 0  # whose data were not asked about
    assert cli("evaluate", "runs", "--dataset", "birds", "--force").code == 0
    assert errors_by_hand(Run.open(run.folder))[0] == pytest.approx(100 - before)


def test_a_class_that_the_test_set_lacks_is_left_out_and_said(cli, ok):
    """Beforehand, too: with many classes that is common, and training is long."""
    for split, counts in {"train": (4, 3, 2), "test": (2, 2, 0)}.items():
        entries = [(f"{split}/{k}-{i}.jpg", k) for k, n in enumerate(counts) for i in range(n)]
        write_photos(Path("birds"), [path for path, _ in entries])
        write_list(Path("birds") / f"{split}.txt", entries)
    train = ["train", "--dataset", "birds", "--recipe", "imagenet-lt", "--method", "softmax"]
    train += ["--set", "epochs=1", "--set", "warmup_epochs=0", "--set", "batch_size=4"]
    small = ["--set", "model=small-conv", "--set", "image_size=16", "--workers", "0"]
    result = ok(*train, *small, "--device", "cpu")
    assert "warning: the test set has no examples of class(es) 2: its mean error" in result.err
    (run,) = find_runs("runs")
    logits, target, _ = run.logits("test")
    wanted = np.mean([np.mean(logits[target == k].argmax(1) != k) for k in range(2)])
    judged = json.loads(cli("evaluate", "runs", "--json").out)
    assert judged["runs"][0]["balanced_error"] == pytest.approx(wanted)
    assert judged["runs"][0]["missing_classes"] == [2]
    assert "a comparison is over" in cli("report", "runs").err


def test_logits_are_written_once_and_judged(runs, cli, monkeypatch, ok):
    result = ok("evaluate", runs)
    found = find_runs(runs)
    title, header, *lines = result.out.splitlines()
    assert title == "digits-lt (exp, imbalance ratio 50), errors in percent on the test set"
    assert header.split() == ["run", "balanced", "many", "medium", "few"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[: len(found)]}
    for run in found:
        assert np.array_equal(run.logits("test").target, load_digits_lt().test.labels)
        wanted = ["–" if np.isnan(v) else f"{v:.1f}" for v in errors_by_hand(run)]
        assert rows[run.folder.name] == wanted
    # Now they are there, and neither the network nor the data are needed.
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr("longtail.data.load", lambda *_, **__: pytest.fail("data were read"))
    again = cli("evaluate", runs)
    assert (again.code, again.out, again.err) == (0, result.out, "")


def test_of_a_folder_those_are_judged_that_have_a_held_out_part(runs, cli, ok, refused):
    (held,) = (run for run in find_runs(runs) if run.spec.dataset.held_out)
    others = [run for run in find_runs(runs) if run.folder != held.folder]
    result = ok("evaluate", runs, "--split", "held-out")
    assert result.out.splitlines()[2].split()[1] == f"{errors_by_hand(held, 'held-out')[0]:.1f}"
    # One that was named itself is an error, and training alone writes those logits.
    said = refused("evaluate", others[0].folder, held.folder, "--split", "held-out")
    assert "has no held-out part" in said
    forced = cli("evaluate", held.folder, "--split", "held-out", "--force")
    assert "training writes held-out logits" in forced.err


def test_an_unfinished_run_is_refused_by_name_and_left_out_of_a_folder(
    runs, cli, monkeypatch, ok, refused
):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "EpochEnd", stop)
    assert cli(*DIGITS, "--method", "balanced").code == 130
    (half,) = (run for run in find_runs(runs, unfinished=True) if not run.finished)
    said = refused("evaluate", half.folder)
    assert "its training did not finish; resume it with: longtail train --dataset" in said
    result = ok("evaluate", runs)
    assert f"left out {half.folder} (half written)" in result.err


def test_other_data_are_refused(runs, cli, refused):
    freeze(load_digits_lt(imbalance_ratio=20), "other.frozen")
    freeze(load_digits_lt(), "same.frozen")
    said = refused("evaluate", runs, "--dataset", "other.frozen")
    assert "was trained on other data than other.frozen is now (fingerprint" in said
    assert not any("test" in run.splits for run in find_runs(runs))
    assert cli("evaluate", runs, "--dataset", "same.frozen").code == 0


def test_the_data_are_found_again_from_the_spec(birds, cli, refused):
    assert cli(*birds, "--profile", "step", "--ratio", 4, "--no-evaluate").code == 0
    assert "was trained on 'birds', a folder of images" in refused("evaluate", "runs")
    assert cli("evaluate", "runs", "--dataset", "birds").code == 0
    (run,) = find_runs("runs")
    assert run.record["splits"]["test"]["examples"] == 21
    assert run.prior.counts.tolist() == [9, 2]


def test_the_development_set_is_judged_without_classes_it_lacks(runs, ok):
    """The largest class of an exponential profile may be in the training set as a whole."""
    softmax, *_ = sorted((runs / "digits-lt").glob("softmax-*"))
    result = ok("evaluate", softmax, "--split", "dev", "--json")
    (entry,) = json.loads(result.out)["runs"]
    data = load("digits-lt").dev
    logits, target, _ = Run.open(softmax).logits("dev")
    assert np.array_equal(target, data.labels)
    wrong = [np.mean(logits[target == k].argmax(axis=1) != k) for k in np.unique(target)]
    assert entry["balanced_error"] == pytest.approx(np.mean(wrong))
    assert entry["missing_classes"] == np.flatnonzero(data.counts == 0).tolist()


def test_an_ensemble_is_one_more_run(runs, cli, ok):
    members = sorted((runs / "digits-lt").glob("softmax-*"))
    result = ok("evaluate", *members, "--ensemble")
    (folder,) = (runs / "digits-lt").glob("ensemble-*")
    assert f"The mean logits of 2 runs are in {folder}" in result.err
    found = [Run.open(one).logits("test") for one in members]
    mean = np.mean([one.logits for one in found], axis=0, dtype=np.float64)
    together = Run.open(folder)
    np.testing.assert_allclose(together.logits("test").logits, mean, rtol=1e-6)
    row = next(line for line in result.out.splitlines() if line.startswith(folder.name))
    assert row.split()[1] == f"{errors_by_hand(together)[0]:.1f}"
    # Other commands take it, and it is no member of itself.
    assert cli("tune", folder, "--split", "test").code == 0
    assert cli("report", folder, *members).code == 0
    again = cli("evaluate", *members, folder, "--ensemble", "--json")
    assert json.loads(again.out)["ensemble"] == str(folder)
