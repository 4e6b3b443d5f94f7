"""Images on disk through the command line: from lists in each format to a report, and refusals."""

import json
import os
import re
import shlex
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from data_factory import write_large
from longtail import metrics
from longtail.data import large, streaming
from longtail.runs import Run, find_runs
from longtail.train import engine, evaluation

pytestmark = pytest.mark.usefixtures("no_data_folder")

COUNTS, HELD = (120, 60, 30, 12, 6), 6  # some hundred images of five classes
SMALL = [f"--set={word}" for word in ("model=small-conv", "batch_size=32", "image_size=16")]
SMALL += [f"--set={word}" for word in ("epochs=3", "lr=0.05", "warmup_epochs=1")]
HERE = ("--device", "cpu", "--workers", 0)


@pytest.fixture
def published(monkeypatch):
    """Take the small sets for the published ones: no smaller one goes by their names."""

    def declare(name):
        known = large.LARGE[name]
        sizes = {split: HELD * len(COUNTS) for split in known.files} | {"train": sum(COUNTS)}
        small = large.Known(known.title, len(COUNTS), known.files, sizes)
        monkeypatch.setitem(large.LARGE, name, small)

    return declare


@pytest.mark.parametrize("name", large.LARGE)
def test_from_a_list_to_a_report(cli, published, name, ok):
    """By name, with the recipe of that name, lists apart from the images where there are lists."""
    published(name)
    write_large(Path("disk"), name, counts=COUNTS, held=HELD)
    Path("lists").mkdir()
    for file in Path("disk").glob("*.txt"):
        shutil.move(file, "lists")
    where = ("--data-dir", "lists", "--root", "disk")
    words = ("train", "--dataset", name, *where, "--method", "logit-adjusted")
    result = ok(*words, *SMALL, *HERE)
    recipe = "inaturalist" if name == "inaturalist" else "imagenet-lt"
    assert f"{name} (its own class sizes), recipe {recipe}" in result.out
    (run,) = find_runs(Path("runs"))
    assert run.prior.counts.tolist() == list(COUNTS)
    logits, target, _ = run.logits("test")
    assert np.bincount(target).tolist() == [HELD] * len(COUNTS)
    assert f"{100 * metrics.balanced_error(target, logits):.2f}" in result.out
    again = cli("evaluate", f"runs/{name}", *where, *HERE, "--json")
    assert json.loads(again.out)["runs"][0]["examples"] == HELD * len(COUNTS)


def test_what_is_printed_finds_the_images_again(ok, places):
    """Lists of one's own, apart from their images, in a folder whose name is quoted."""
    Path("my lists").mkdir()
    for file in Path("spots").glob("*.txt"):
        shutil.move(file, "my lists")
    words = ("--recipe", "imagenet-lt", "--method", "softmax", "--no-evaluate", *SMALL, *HERE)
    trained = ok("train", "--dataset", "my lists", "--root", "spots", *words)
    command = shlex.split(trained.out.splitlines()[-1].partition(": longtail ")[2])
    assert command[2:] == ["--dataset", "my lists", "--root", "spots"]
    ok(*command, *HERE)


@pytest.fixture
def places(cli):
    return write_large(Path("spots"), "places-lt", counts=(12, 6, 4), held=2)


def train(cli, *words):
    first = ("train", "--dataset", "spots", "--recipe", "imagenet-lt", "--method", "softmax")
    return cli(*first, *SMALL, *HERE, *words)


def test_the_validation_set_serves_to_choose_tau(cli, places, ok):
    assert train(cli, "--no-evaluate").code == 0
    (run,) = find_runs(Path("runs"))
    ok("evaluate", run.folder, "--split", "val", "--dataset", "spots", *HERE)
    tuned = cli("tune", run.folder, "--split", "val", "--json")
    assert 0 <= json.loads(tuned.out)["tau"] <= 4
    assert Run.open(run.folder).splits == ("val",)


@pytest.mark.parametrize("classifier", ["whole", "sharded"])
def test_errors_without_logits(cli, places, monkeypatch, classifier, ok):
    """For label spaces whose logits are too large to keep, which is said before training."""
    monkeypatch.setattr(evaluation, "LARGEST_LOGITS", 4 * 6 * 3 - 1)  # of the test set, but one
    option = f"--set=classifier={classifier}"
    refused = train(cli, option)
    assert (refused.code, refused.out) == (1, "")
    message = "6 examples by 3 classes, take 0 GB, more .* with --no-evaluate, then .*--errors-only"
    assert re.search(message, " ".join(refused.err.split()))
    assert not Path("runs").exists()
    assert train(cli, option, "--no-evaluate").code == 0
    (run,) = find_runs(Path("runs"))
    words = ("evaluate", run.folder, "--dataset", "spots", *HERE)
    assert "--errors-only" in cli(*words).err
    shown = ok(*words, "--errors-only", "--json")
    assert Run.open(run.folder).splits == ()
    monkeypatch.setattr(evaluation, "LARGEST_LOGITS", 4 * 6 * 3)
    assert json.loads(cli(*words, "--json").out)["runs"] == json.loads(shown.out)["runs"]


def test_an_interrupted_run_says_how_to_go_on_and_does(cli, places, monkeypatch, ok):
    original = streaming.StreamedImages.__getitem__

    def dying(self, request):
        if request.epoch == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, request)

    monkeypatch.setattr(streaming.StreamedImages, "__getitem__", dying)
    monkeypatch.setitem(engine.train_cohort.__kwdefaults__, "checkpoint_seconds", 0.0)
    result = train(cli, "--workers", 1)
    assert result.code == 1
    assert "0 of 1 run finished, 1 saved after epoch 1. To go on:\n  longtail train" in result.err
    assert "a worker process that decodes images died" in result.err
    monkeypatch.setattr(streaming.StreamedImages, "__getitem__", original)
    (folder,) = Path("runs/spots").iterdir()
    ok("train", "--resume", folder, "--dataset", "spots", *HERE)
    assert [line["epoch"] for line in Run.open(folder).log()] == [1, 2, 3]


def test_a_damaged_image_is_skipped_if_asked(cli, places):
    file = sorted(Path("spots/train").rglob("*.jpg"))[2]
    file.write_bytes(file.read_bytes()[:300])
    skipped = train(cli, "--on-error", "skip")
    assert skipped.code == 0
    assert f"warning: {file} can't be decoded" in skipped.err


@pytest.mark.parametrize(
    ("dataset", "option"),
    [
        ("digits-lt", ("--workers", 2)),
        ("digits-lt", ("--no-compile",)),
        ("spots", ("--ratio", 10)),
        ("spots", ("--together", 4)),
    ],
)
def test_options_that_would_do_nothing_are_refused(cli, places, dataset, option):
    words = ("--dataset", dataset, "--recipe", "imagenet-lt", "--method", "softmax")
    result = cli("train", *words, *option)
    assert result.code in (1, 2)
    assert f"{option[0].replace('no-', '')} does nothing here" in result.err
    assert not Path("runs").exists()
