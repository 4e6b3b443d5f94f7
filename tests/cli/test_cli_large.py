"""Images on disk through the command line: from lists in each format to a report, and refusals."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from data_factory import competition, listed_entries, write_large, write_photos
from longtail import metrics
from longtail.data import large, streaming
from longtail.data.large import load_listed
from longtail.runs import Run, find_runs
from longtail.train import engine, evaluation

pytestmark = pytest.mark.usefixtures("no_data_folder")

COUNTS, HELD = (120, 60, 30, 12, 6), 6  # some hundred images of five classes
SMALL = [f"--set={word}" for word in ("model=small-conv", "batch_size=32", "image_size=16")]
SMALL += [f"--set={word}" for word in ("epochs=3", "lr=0.05", "warmup_epochs=1")]
HERE = ("--device", "cpu", "--workers", 0)


def write_competition(root):
    """iNaturalist as the competition has it: json beside the images."""
    for split, counts in (("train", COUNTS), ("val", [HELD] * len(COUNTS))):
        entries = listed_entries(counts, form="inaturalist", split=split)
        write_photos(root, [path for path, _ in entries])
        document = competition(entries, num_classes=len(COUNTS))
        (root / f"{split}2018.json").write_text(json.dumps(document))
    return root


WRITE = {
    "imagenet-lt": lambda root: write_large(root, "imagenet-lt", counts=COUNTS, held=HELD),
    "places-lt": lambda root: write_large(root, "places-lt", counts=COUNTS, held=HELD),
    "inaturalist": write_competition,
}


@pytest.fixture
def published(monkeypatch):
    """Take the small sets for the published ones: no smaller one goes by their names."""

    def declare(name):
        known = large.LARGE[name]
        sizes = {split: HELD * len(COUNTS) for split in known.files} | {"train": sum(COUNTS)}
        small = large.Known(known.title, len(COUNTS), known.files, sizes)
        monkeypatch.setitem(large.LARGE, name, small)

    return declare


@pytest.mark.parametrize("name", WRITE)
def test_from_a_list_to_a_report(cli, published, name):
    """By name, with the recipe of that name, lists apart from the images where there are lists."""
    published(name)
    WRITE[name](Path("disk"))
    Path("lists").mkdir()
    for file in [*Path("disk").glob("*.txt"), *Path("disk").glob("*.json")]:
        shutil.move(file, "lists")
    where = ("--data-dir", "lists", "--root", "disk")
    words = ("train", "--dataset", name, *where, "--method", "softmax")
    result = cli(*words, "--method", "logit-adjusted", *SMALL, *HERE)
    assert result.code == 0, result.err
    recipe = "inaturalist" if name == "inaturalist" else "imagenet-lt"
    assert f"{name} (its own class sizes), recipe {recipe}" in result.out
    runs = find_runs(Path("runs"))
    assert {run.spec.method.name for run in runs} == {"softmax", "logit-adjusted"}
    for run in runs:
        assert run.prior.counts.tolist() == list(COUNTS)
        logits, target, _ = run.logits("test")
        assert np.bincount(target).tolist() == [HELD] * len(COUNTS)
        shown = f"{100 * metrics.balanced_error(target, logits):.2f}"
        assert shown in next(
            line for line in result.out.splitlines() if run.spec.method.name in line
        )
        assert run.spec.dataset.name == name
    page = cli("report", f"runs/{name}", "--out", "page.html")
    assert page.code == 0, page.err
    assert "post-hoc" in Path("page.html").read_text()
    again = cli("evaluate", f"runs/{name}", *where, *HERE, "--json")
    assert json.loads(again.out)["runs"][0]["examples"] == HELD * len(COUNTS)


@pytest.fixture
def places(cli):
    return write_large(Path("spots"), "places-lt", counts=(12, 6, 4), held=2)


def train(cli, *words):
    first = ("train", "--dataset", "spots", "--recipe", "imagenet-lt", "--method", "softmax")
    return cli(*first, *SMALL, *HERE, *words)


def test_the_validation_set_serves_to_choose_tau(cli, places):
    assert train(cli, "--no-evaluate").code == 0
    (run,) = find_runs(Path("runs"))
    assert run.splits == ()
    result = cli("evaluate", run.folder, "--split", "val", "--dataset", "spots", *HERE)
    assert result.code == 0, result.err
    tuned = cli("tune", run.folder, "--split", "val", "--json")
    assert tuned.code == 0, tuned.err
    assert 0 <= json.loads(tuned.out)["tau"] <= 4
    assert Run.open(run.folder).splits == ("val",)
    # A data set without one says so.
    Path("spots/Places_LT_val.txt").unlink()
    refused = cli("evaluate", run.folder, "--split", "val", "--dataset", "spots", "--force", *HERE)
    assert (refused.code, refused.out) == (1, "")
    assert "spots has no validation set" in refused.err


@pytest.mark.parametrize("classifier", ["whole", "sharded"])
def test_errors_without_logits(cli, places, monkeypatch, classifier):
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
    (entry,) = json.loads(cli(*words, "--errors-only", "--json").out)["runs"]
    shown = cli(*words, "--errors-only")
    assert shown.code == 0, shown.err
    assert Run.open(run.folder).splits == ()
    monkeypatch.setattr(evaluation, "LARGEST_LOGITS", 4 * 6 * 3)
    kept = cli(*words)
    assert kept.out == shown.out
    assert json.loads(cli(*words, "--json").out)["runs"] == [entry]
    logits, target, _ = Run.open(run.folder).logits("test")
    assert entry["balanced_error"] == metrics.balanced_error(target, logits)
    assert entry["examples"] == 6


def test_an_interrupted_run_says_how_to_go_on_and_does(cli, places, monkeypatch):
    original = streaming.StreamedImages.__getitems__

    def dying(self, request):
        if request.epoch == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, request)

    monkeypatch.setattr(streaming.StreamedImages, "__getitems__", dying)
    monkeypatch.setitem(engine.train_cohort.__kwdefaults__, "checkpoint_seconds", 0.0)
    result = train(cli, "--workers", 1)
    assert result.code == 1
    assert "0 of 1 run finished, 1 saved after epoch 1. To go on:\n  longtail train" in result.err
    assert "a worker process that decodes images died" in result.err
    monkeypatch.setattr(streaming.StreamedImages, "__getitems__", original)
    (folder,) = Path("runs/spots").iterdir()
    resumed = cli("train", "--resume", folder, "--dataset", "spots", *HERE)
    assert resumed.code == 0, resumed.err
    assert [line["epoch"] for line in Run.open(folder).log()] == [1, 2, 3]


def test_a_folder_of_classes_is_streamed_if_the_recipe_crops(cli):
    for split, counts in (("train", (6, 3)), ("test", (2, 2))):
        paths = [f"{split}/c{c}/{i}.jpg" for c, n in enumerate(counts) for i in range(n)]
        write_photos(Path("flora"), paths)
    words = ("--recipe", "inaturalist", "--method", "softmax", *SMALL, *HERE)
    result = cli("train", "--dataset", "flora", *words)
    assert result.code == 0, result.err
    (run,) = find_runs(Path("runs"))
    assert run.spec.dataset == load_listed("flora").spec
    assert "class folder" not in result.err


def test_the_module_is_the_command(fresh):
    result = fresh(
        "--version", code="import runpy; runpy.run_module('longtail', run_name='__main__')"
    )
    assert result.code == 0
    assert result.out.startswith("longtail ")
