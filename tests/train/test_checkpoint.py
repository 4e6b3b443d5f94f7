"""Checkpoints: whole or passed over, and a killed training that ends where the unkilled one did."""

import json
import multiprocessing
import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from longtail._checks import InputError
from longtail.runs import Run, files
from longtail.runs.folder import RunError
from longtail.train import checkpoint, engine
from longtail.train.engine import train, train_cohort
from train_factory import DIGITS as DATA
from train_factory import digits_spec, interrupt, resumed, same_files

EPOCHS = 24
spec = partial(digits_spec, held_out=0.2, epochs=EPOCHS)


def save(folder, epochs):
    tensors = {"model/w": torch.full((3,), float(epochs)), "optimizer/0/step": torch.tensor(1.0)}
    checkpoint.save(folder, tensors, epochs=epochs, seconds=1.5)


def test_the_two_newest_checkpoints_stay(tmp_path):
    assert checkpoint.latest(tmp_path) is None
    for epochs in (9, 10, 11):
        save(tmp_path, epochs)
    assert {path.stem for path in tmp_path.iterdir()} == {"checkpoint-000010", "checkpoint-000011"}
    found = checkpoint.latest(tmp_path)
    assert (found.epochs, found.seconds) == (11, 1.5)
    assert torch.equal(found.tensors["model/w"], torch.full((3,), 11.0))
    assert found.tensors["optimizer/0/step"].shape == ()


DAMAGES = {
    "flip": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x01"),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-4]),
    "gone": lambda path: path.unlink(),
    "record": lambda path: path.with_suffix(".json").write_text("{"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, caplog, damage):
    for epochs in (1, 2):
        save(tmp_path, epochs)
    DAMAGES[damage](tmp_path / "checkpoint-000002.safetensors")
    with caplog.at_level("WARNING", logger="longtail"):
        assert checkpoint.latest(tmp_path).epochs == 1
    assert "checkpoint-000002.safetensors can't be used" in caplog.text


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [("softmax", "nesterov"), ("ldam+drw", "adam"), ("equalized-threshold:threshold=0.1", "sgd")],
)
def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path, method, optimizer):
    """With Adam's two moments and count, DRW's weights, a loss that draws."""
    resumed(spec(method, optimizer=optimizer, lr=0.002, epochs=4), DATA.train, tmp_path, epoch=3)


def _train(root, begun=None):
    torch.set_num_threads(1)
    if begun is not None:
        begun.touch()
    train(spec(), DATA.train, root=root, checkpoint_seconds=0.0)


def epochs_logged(folder):
    log = folder / "log.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


@pytest.fixture
def context(monkeypatch):
    """Processes that begin at once: they fork from one that has imported what they need."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])  # a first step imports the latter
    return context


@pytest.mark.slow
def test_kill_nine_ten_times(tmp_path, context):
    """SIGKILL at ten random moments of one training: the weights are those of an unkilled one."""
    undisturbed = context.Process(target=_train, args=(tmp_path / "a",))
    undisturbed.start()
    undisturbed.join()
    expected = Run.open(tmp_path / "a" / spec().folder)
    draw, folder = random.Random(5), tmp_path / "b" / spec().folder
    begun, seen = tmp_path / "begun", []
    for _ in range(10):
        begun.unlink(missing_ok=True)
        process = context.Process(target=_train, args=(tmp_path / "b", begun))
        process.start()
        # Some kills fall into the start, the others one or two epochs later, anywhere in them.
        goal = epochs_logged(folder) + draw.randint(0, 2)
        while not begun.exists() or epochs_logged(folder) < goal:
            time.sleep(0.002)
        time.sleep(draw.uniform(0.0, expected.record["seconds"] / EPOCHS))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL, "it ended before the kill"
        newest = checkpoint.latest(folder) if folder.exists() else None
        seen.append(newest.epochs if newest else 0)
    final = context.Process(target=_train, args=(tmp_path / "b",))
    final.start()
    final.join()
    assert final.exitcode == 0
    assert same_files(Run.open(folder), expected)
    assert len(set(seen)) > 2, f"the kills should hit different epochs, not {seen}"


def test_other_data_are_refused(tmp_path):
    interrupt(spec(), DATA.train, root=tmp_path, epoch=7)
    folder = tmp_path / spec().folder
    before = sorted(path.name for path in folder.iterdir())
    fewer = DATA.train.take(np.arange(1, len(DATA.train)))
    with pytest.raises(RunError, match="begun on other data"):
        train(spec(), fewer, root=tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_full_gpu_is_explained(tmp_path, monkeypatch):
    def fail(steppers, epochs, **options):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(engine, "run_epoch", fail)
    with pytest.raises(RunError, match=r"does not hold .*; override batch_size"):
        train(spec(), DATA.train, root=tmp_path)


def test_a_diverging_run_does_not_take_the_others_down(tmp_path):
    wild, tame = spec(seed=1, lr=1e9, epochs=3, warmup_epochs=0), spec(seed=1, epochs=3)
    with pytest.raises(RunError, match=r"1 run\(s\) became infinite or NaN.* The others are"):
        train_cohort([wild, tame], DATA.train, root=tmp_path)
    assert Run.open(tmp_path / tame.folder).finished
    stuck = Run.open(tmp_path / wild.folder, unfinished=True)
    assert not stuck.finished
    assert "NaN" in json.dumps(stuck.log()) or "Infinity" in json.dumps(stuck.log())


def test_a_last_step_too_far_is_seen_in_the_weights(tmp_path):
    """One step in all: its loss is that of the first weights, and finite."""
    one_step = {"epochs": 1, "warmup_epochs": 0, "batch_size": len(DATA.train)}
    wild = spec(seed=1, lr=1e38, weight_decay=1e3, held_out=0.0, **one_step)
    for _ in range(2):  # also when asked again
        with pytest.raises(RunError, match="became infinite or NaN"):
            train(wild, DATA.train, root=tmp_path)
    stuck = Run.open(tmp_path / wild.folder, unfinished=True)
    assert not stuck.finished
    assert np.isfinite([line["loss"] for line in stuck.log()]).all()


def _hold(root, begun, end):
    with files.exclusive(root / spec().folder):
        begun.touch()
        while not end.exists():
            time.sleep(0.005)


def test_two_processes_do_not_train_one_run(tmp_path, context):
    begun, end = tmp_path / "begun", tmp_path / "end"
    other = context.Process(target=_hold, args=(tmp_path, begun, end))
    other.start()
    while not begun.exists():
        time.sleep(0.005)
    with pytest.raises(InputError, match="is being written by another process; wait for it"):
        train(spec(), DATA.train, root=tmp_path)
    os.kill(other.pid, signal.SIGKILL)  # a killed owner's claim ends with it
    other.join()
    run = train(spec(), DATA.train, root=tmp_path)
    assert not run.folder.with_name(run.folder.name + ".lock").exists()
