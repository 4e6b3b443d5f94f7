"""Two processes do what one does: losses step by step, metrics, checkpoints; and a killed one."""

import json
import multiprocessing
import os
import re
import socket
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from data_factory import write_large
from longtail import metrics
from longtail._checks import InputError
from longtail.data.large import load_listed
from longtail.models import MODELS, Entry, _resnet
from longtail.models.resnet import Design, basic, init_he
from longtail.runs import Run
from longtail.train.distributed import ALONE, World, joined
from longtail.train.engine import evaluate, train
from longtail.train.loop import run_epoch
from longtail.train.streamed import Streaming
from train_factory import (
    COUNTS,
    CPU,
    DIGITS,
    HERE,
    SMALL,
    digits_spec,
    interrupt,
    listed_spec,
    make_streamed,
)

# Batches that two processes share evenly, unevenly, and of which one gets nothing (47 = 2·23 + 1);
# a mean with class weights, and a loss that draws.
STEPS = {
    "even": ("logit-adjusted", {}, HERE),
    "odd": ("softmax+drw:start=1", {"batch_size": 23}, HERE),
    "drawn": ("equalized-threshold:threshold=0.3", {"batch_size": 9}, HERE),
    "parts": ("logit-adjusted", {}, Streaming(workers=0, micro_batch=5, compile=True)),
}


# A network with batch norm, of a few layers.
TINY = Entry(
    _resnet(Design(basic, depths=(1,), widths=(8,), init=init_he, stem_width=8)), smallest=4
)
NORMED = {"model": "tiny", "batch_size": 24}


def losses_of(one, epochs=(0, 1)):
    """The mean loss of every step."""
    found = []
    for epoch in epochs:
        run_epoch([one], [epoch])
        found += one.losses.tolist()
    return found


def step_losses(data, world, method, overrides, how):
    """The mean loss of every step, and the weights and statistics after them."""
    one = make_streamed(data, method, world=world, how=how, **overrides)
    found = losses_of(one)
    tensors = [value for value in one.model.state_dict().values() if value.is_floating_point()]
    return found, torch.cat([value.flatten() for value in tensors]).tolist()


def spec(data):
    return listed_spec(data, "logit-adjusted", held_out=0.2)


def whole(made, data, root, world=ALONE):
    """A run from its start, or from where it was interrupted, to its logits."""
    run = train(made, data.train, root=root, world=world, streaming=HERE)
    return evaluate(run, data.test, world=world, streaming=HERE)


def skipped(folder, world, on_error="skip"):
    """The log of training on a set with a damaged image, whose name it stops with unless asked."""
    data = load_listed(folder / "bad")
    how = Streaming(workers=0, on_error=on_error)
    return train(spec(data), data.train, root=folder / on_error, world=world, streaming=how).log()


@contextmanager
def one_of_two(rank, port):
    """The world of one of two processes, as torchrun would start them."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    # The quickest of the compiler's back ends: it is the graph with its breaks that matters.
    torch.compile = partial(torch.compile, backend="aot_eager")
    with joined(CPU) as world:
        yield world


def _work(rank, ports, folder):
    """What each of the two processes does; the first leaves its findings in a file."""
    data = load_listed(folder / "set")
    with one_of_two(rank, ports[0]) as world:
        assert world == World(rank, 2, CPU)
        assert world.tell({"from": 0} if world.rank == 0 else None) == {"from": 0}
        found = {name: step_losses(data.train, world, *case) for name, case in STEPS.items()}
        MODELS["tiny"] = TINY
        found["normed"] = step_losses(data.train, world, "softmax", NORMED, HERE)
        found["skipped"] = skipped(folder, world)
        whole(spec(data), data, folder / "two", world)
        whole(spec(data), data, folder / "one to two", world)
        root = folder / "two to one"
        interrupt(spec(data), data.train, root=root, world=world, streaming=HERE, epoch=2)
    assert not torch.distributed.is_initialized()
    os.environ["MASTER_PORT"] = str(ports[1])
    with pytest.raises(InputError) as caught, joined("cpu") as world:  # by name
        skipped(folder, world, on_error="stop")
    found["stopped"] = str(caught.value)
    (folder / f"found-{rank}.json").write_text(json.dumps(found))


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def run_both(work, *args):
    """`work(rank, *args)` in two processes, by a server that has its module loaded."""
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{Path(__file__).parent}{os.pathsep}{before}"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([work.__module__, "torch._dynamo"])
    both = [context.Process(target=work, args=(rank, *args)) for rank in (0, 1)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
        assert process.exitcode == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes did, beside an interrupted run that one process began for them."""
    folder = tmp_path_factory.mktemp("two")
    write_large(folder / "set", counts=COUNTS, held=4)
    data = load_listed(folder / "set")
    interrupt(spec(data), data.train, root=folder / "one to two", streaming=HERE, epoch=2)
    bad = sorted((write_large(folder / "bad", counts=COUNTS) / "train").rglob("*.JPEG"))[0]
    bad.write_bytes(b"no image")
    run_both(_work, (free_port(), free_port()), folder)
    return folder


@pytest.fixture(scope="module")
def data(folder):
    return load_listed(folder / "set")


@pytest.fixture(scope="module")
def found(folder):
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def alone(data, folder):
    """The run of one process that nothing disturbed."""
    return whole(spec(data), data, folder / "one")


@pytest.mark.parametrize("name", STEPS)
def test_two_processes_have_the_losses_of_one(found, data, name):
    method, overrides, how = STEPS[name]
    plain = replace(how, compile=False, micro_batch=256)
    expected, weights = step_losses(data.train, ALONE, method, overrides, plain)
    for one in found:
        losses, theirs = one[name]
        np.testing.assert_allclose(losses, expected, atol=1e-5)
        np.testing.assert_allclose(theirs, weights, atol=1e-5)
    assert np.ptp(expected) > 1e-2  # they are no constant


def test_batch_norm_is_local_and_one_set_of_statistics_remains(found, data, monkeypatch):
    losses, weights = found[0]["normed"]
    assert found[0]["normed"] == found[1]["normed"]
    monkeypatch.setitem(MODELS, "tiny", TINY)
    expected, tensors = step_losses(data.train, ALONE, "softmax", NORMED, HERE)
    assert losses != pytest.approx(expected, rel=1e-5)
    assert losses == pytest.approx(expected, rel=0.2)
    assert len(weights) == len(tensors)


def compare(run, other):
    """Two runs' losses, weights, logits and metrics."""
    tolerance = {"rtol": 0, "atol": 1e-5}
    for mine, theirs in zip(run.log(), other.log(), strict=True):
        assert mine["epoch"] == theirs["epoch"]
        assert mine["held_out_error"] == theirs["held_out_error"]
        np.testing.assert_allclose(mine["loss"], theirs["loss"], **tolerance)
    for name, value in run.model().items():
        np.testing.assert_allclose(value, other.model()[name], **tolerance)
    for split in ("held-out", "test"):
        (logits, target, _), (others, same, _) = run.logits(split), other.logits(split)
        np.testing.assert_array_equal(target, same)
        np.testing.assert_allclose(logits, others, rtol=0, atol=1e-4)
        assert metrics.balanced_error(target, logits) == metrics.balanced_error(same, others)


def test_the_whole_run_is_that_of_one_process(folder, data, alone):
    run = Run.open(folder / "two" / spec(data).folder)
    compare(run, alone)
    assert run.record["device"] == "2 x cpu"
    assert (run.record["facts"]["processes"], alone.record["facts"]["processes"]) == (2, 1)


def test_checkpoints_do_not_depend_on_the_number_of_processes(folder, data, alone):
    with_one = whole(spec(data), data, folder / "two to one")
    for run in (with_one, Run.open(folder / "one to two" / spec(data).folder)):
        assert len(run.record["resumed"]) == 1
        compare(run, alone)


def test_a_damaged_image_is_counted_once_or_stops_both(found):
    assert found[0]["skipped"] == found[1]["skipped"]
    assert [line.get("skipped") for line in found[0]["skipped"]] == [1] * SMALL["epochs"]
    said = sorted(one["stopped"] for one in found)  # by the one whose share it was in
    assert re.match(r".*\.JPEG is not an image", said[0])
    assert said[1].startswith("another process of this training stopped")


# torchrun itself: the command line in two processes, of which one is killed.

KILLED = """
import os, signal, sys
from longtail.train.streamed import StreamedTraining
load, step = StreamedTraining.load, StreamedTraining.step
def loaded(self, epoch):
    self.epoch = epoch
    load(self, epoch)
def killed(self, size):
    if self.epoch == 2 and self.at == 1 and os.environ["RANK"] == "1":
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
    step(self, size)
StreamedTraining.load, StreamedTraining.step = loaded, killed
from longtail.train import engine
engine.train_cohort.__kwdefaults__["checkpoint_seconds"] = 0.0
from longtail.cli import main
sys.exit(main())
"""


def test_one_of_two_processes_killed_under_torchrun(folder, data, alone, tmp_path):
    (tmp_path / "killed.py").write_text(KILLED)
    words = "--standalone --nproc-per-node=2 --max-restarts=1 killed.py train "
    words += f"--dataset={folder / 'set'} --method=logit-adjusted --held-out=0.2 --workers=0 "
    words += "--recipe=imagenet-lt --device=cpu "
    words += " ".join(f"--set={key}={value}" for key, value in SMALL.items())
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words.split()],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    run = Run.open(tmp_path / "runs" / spec(data).folder)
    assert len(run.record["resumed"]) == 1
    compare(run, alone)
    start = "torchrun --standalone --nproc-per-node=2 -m longtail train --dataset"
    assert run.record["command"].startswith(start)
    assert done.stdout.count("logit-adjusted") == 1  # only the first process speaks


# What can go wrong before the first step.


def launch(monkeypatch, port):
    values = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1"}
    for key, value in (values | {"MASTER_PORT": port}).items():
        monkeypatch.setenv(key, str(value))


def test_processes_that_do_not_meet(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        launch(monkeypatch, port)
        message = rf"can't meet at 127.0.0.1:{port}: another program uses that port.*--standalone"
        with pytest.raises(InputError, match=message), joined(CPU):
            pass
    launch(monkeypatch, free_port())
    message = r"not all 2 processes came to .* within 1 s; start torchrun on every machine"
    with pytest.raises(InputError, match=message), joined(CPU, patience=timedelta(seconds=1)):
        pass


def test_images_in_memory_are_not_shared(tmp_path):
    with pytest.raises(InputError, match="2 processes can share images on disk only"):
        train(digits_spec(), DIGITS.train, root=tmp_path, force=True, world=World(0, 2))
