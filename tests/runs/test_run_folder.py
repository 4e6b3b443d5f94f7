import errno
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from longtail import ClassPrior, InputError
from longtail.runs import (
    Part,
    Run,
    RunError,
    RunWriter,
    UnfinishedRunError,
    files,
    find_runs,
    run_folders,
    same_data,
)
from longtail.runs.folder import seal
from run_factory import make_run, make_spec, make_writer

# What a finished run holds.


def test_a_run_reads_back_what_was_written(run, root):
    assert run.folder == root / make_spec().folder
    assert run.spec == make_spec()
    assert run.finished
    assert run.prior == ClassPrior.from_counts([90, 9, 1])
    assert run.splits == ("test",)
    logits, target, indices = run.logits("test")
    expected = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    np.testing.assert_array_equal(logits, expected)
    assert logits.dtype == np.float32
    assert isinstance(logits, np.memmap)
    assert target.tolist() == [0, 1, 2, 0, 1, 2]
    assert indices.tolist() == list(range(6))
    assert run.head.norms.tolist() == [1.0, 2.0, 3.0]
    assert run.head.bias.tolist() == [0.5, 0.0, -0.5]
    assert run.model()["steps"] == 7
    first, second = run.log()
    assert first == {"epoch": 0, "loss": 1.5}
    assert second["epoch"] == 1
    assert math.isnan(second["loss"])


def test_a_smoothed_prior_survives_exactly(root):
    prior = ClassPrior.from_counts([90, 9, 0], smoothing=0.5)
    run = make_run(root, prior=prior)
    assert run.prior.counts.tolist() == [90, 9, 0]
    np.testing.assert_array_equal(run.prior.probs, prior.probs)
    np.testing.assert_array_equal(run.prior.log_probs, prior.log_probs)


def test_a_split_is_written_once(run):
    writer = RunWriter.reopen(run.folder)
    with pytest.raises(RunError, match="split 'test' already; pass `replace=True`"):
        writer.write_logits("test", np.eye(3), [0, 1, 2])
    writer.write_logits("test", np.eye(3), [2, 1, 0], replace=True)
    assert Run.open(run.folder).logits("test").target.tolist() == [2, 1, 0]


@pytest.mark.parametrize("split", ["test", "new"])
def test_a_write_that_fails_leaves_the_old_split_the_new_one_or_none(run, monkeypatch, split):
    real, old = os.fsync, run.logits("test").target.tolist()
    for step in range(20):
        left = [step]

        def fsync(handle, left=left):
            left[0] -= 1
            if left[0] == -1:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(handle)

        writer = RunWriter.reopen(run.folder)
        monkeypatch.setattr(os, "fsync", fsync)
        try:
            writer.write_logits(split, np.eye(3), [2, 1, 0], replace=True)
        except OSError:
            found = Run.open(run.folder)  # and every hash is right
            if split in found.splits:
                assert found.logits(split).target.tolist() in (old, [2, 1, 0])
        else:
            break
    assert step > 3
    monkeypatch.undo()
    assert Run.open(run.folder).logits(split).target.tolist() == [2, 1, 0]
    assert not [name for name in os.listdir(run.folder) if name.endswith(".tmp")]


# What may be wrong with a folder.


def test_a_half_written_run_names_the_command_that_resumes_it(root):
    writer = make_writer(root, command="longtail train --dataset digits-lt --seeds 1")
    writer.log(epoch=0)
    with pytest.raises(UnfinishedRunError, match=r"half written: .* longtail train .* --seeds 1"):
        Run.open(writer.folder)
    run = Run.open(writer.folder, unfinished=True)
    assert not run.finished
    assert run.log() == [{"epoch": 0}]


def test_a_newer_format_is_refused(run):
    record = json.loads((run.folder / "run.json").read_text())
    (run.folder / "run.json").write_text(json.dumps(seal({**record, "format": 2})))
    with pytest.raises(RunError, match=r"format 2, which is newer .* \(1\); run: pip install"):
        Run.open(run.folder)


def test_a_record_edited_by_hand(run):
    path = run.folder / "run.json"
    path.write_text(path.read_text().replace("90", "91"))
    with pytest.raises(RunError, match=r"run\.json was edited after it was written"):
        Run.open(run.folder)


@pytest.mark.parametrize("name", ["logits-test.safetensors", "model.safetensors"])
def test_a_file_edited_by_hand_is_named(run, name):
    content = bytearray((run.folder / name).read_bytes())
    content[-2] ^= 1
    (run.folder / name).write_bytes(content)
    with pytest.raises(RunError, match=f"{re.escape(name)} was edited or damaged"):
        Run.open(run.folder)
    assert Run.open(run.folder, verify=False).splits == ("test",)


def test_an_unknown_split_names_those_there_and_the_command(run):
    with pytest.raises(RunError, match=r"'val' \(there: test\); run: longtail evaluate"):
        run.logits("val")


# Starting, resuming and dying.


def test_an_existing_run_needs_force(run, root):
    with pytest.raises(RunError, match="exists already; resume or open it, or pass `force=True`"):
        make_writer(root)
    writer = make_writer(root, force=True)
    assert sorted(os.listdir(writer.folder)) == ["run.json"]


def test_an_interrupted_run_resumes(root):
    writer = make_writer(root)
    for epoch in range(4):
        writer.log(epoch=epoch)
    writer.write_model({"w": np.zeros(2)})
    with open(writer.folder / "log.jsonl", "ab") as file:
        file.write(b'{"epoch": 4, "lo')  # killed in the middle of a line
    (writer.folder / "logits-test.safetensors.0a1b2c3d.tmp").write_bytes(b"part")
    (writer.folder / ".tmpa1B2c3").write_bytes(b"part")

    writer = RunWriter.resume(writer.folder, make_spec(), device="a GPU")
    assert sorted(os.listdir(writer.folder)) == ["log.jsonl", "model.safetensors", "run.json"]
    writer.rewind_log(lambda line: line["epoch"] < 2)
    writer.log(epoch=2, again=True)
    run = writer.finish()
    assert run.log() == [{"epoch": 0}, {"epoch": 1}, {"epoch": 2, "again": True}]
    assert [entry["device"] for entry in run.record["resumed"]] == ["a GPU"]
    assert Run.open(run.folder).finished


def test_resuming_with_another_spec_shows_the_difference(root):
    folder = make_writer(root).folder
    with pytest.raises(RunError, match=r"another spec, .* method\.settings\.tau: 1\.0 against 2"):
        RunWriter.resume(folder, make_spec(method=Part("logit-adjusted", {"tau": 2.0})))


def test_a_finished_run_is_not_resumed(run):
    with pytest.raises(RunError, match="is finished; there is nothing to resume"):
        RunWriter.resume(run.folder, make_spec())


STEPS = """
import os, sys
sys.path.insert(0, {tests!r})
import numpy as np
from pathlib import Path
from run_factory import make_run
real, left = os.fsync, [int(sys.argv[2])]
def fsync(handle):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), 9)
    real(handle)
os.fsync = fsync
make_run(Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_killed_at_any_write_a_run_is_finished_or_says_it_is_not(tmp_path):
    code = STEPS.format(tests=str(Path(__file__).parents[1]))
    for step in range(40):
        root = tmp_path / str(step)
        died = subprocess.run([sys.executable, "-c", code, root, str(step)]).returncode == -9
        for path in root.rglob("*"):
            if path.is_file() and path.suffix == ".safetensors":  # a final name is a whole file
                files.read_tensors(path)
        folders = run_folders(root)
        assert len(folders) == (1 if step else 0)
        if not died:
            assert Run.open(folders[0]).finished
            break
        if folders:
            run = Run.open(folders[0], unfinished=True)  # what is listed is whole
            if not run.finished:
                with pytest.raises(UnfinishedRunError):
                    Run.open(folders[0])
                RunWriter.resume(folders[0], make_spec()).finish()
            assert not [p for p in folders[0].iterdir() if p.name.endswith(".tmp")]
        else:
            make_run(root)  # nothing of the dead writer is in the way
        assert find_runs(root)[0].finished
    else:
        pytest.fail("never ran to the end")
    assert step > 8


# What may not be written.


@pytest.mark.parametrize(
    ("logits", "target", "message"),
    [
        (np.zeros((2, 4)), [0, 1], "`logits` has 4 columns but the run has 3 classes"),
        (np.zeros((2, 3)), [0, 3], "`target` must lie in 0 .. 2, but 3 occurs"),
        (np.full((2, 3), np.nan), [0, 1], "`logits` must be finite"),
    ],
)
def test_bad_logits_are_refused_before_anything_is_written(root, logits, target, message):
    writer = make_writer(root)
    with pytest.raises(InputError, match=message):
        writer.write_logits("test", logits, target)
    assert os.listdir(writer.folder) == ["run.json"]


# Finding and comparing.


def test_runs_are_found_from_any_level(root):
    one, two = (make_run(root, make_spec(seed=seed)) for seed in (0, 1))
    unfinished = make_writer(root, make_spec(seed=2))
    for start in (root, root / "digits-lt"):
        assert [run.folder for run in find_runs(start)] == [one.folder, two.folder]
    assert run_folders(root) == [one.folder, two.folder, unfinished.folder]
    assert [run.folder for run in find_runs(one.folder)] == [one.folder]
    assert len(find_runs(root, unfinished=True)) == 3
    with pytest.raises(RunError, match="there is no folder"):
        find_runs(root / "nowhere")


def test_runs_judged_on_different_examples_are_refused(root):
    folders = [make_run(root, make_spec(seed=seed)).folder for seed in (0, 1)]
    for folder, target in zip(folders, ([0, 1, 2], [0, 0, 2]), strict=True):
        RunWriter.reopen(folder).write_logits("test", np.eye(3), target, replace=True)
    with pytest.raises(RunError, match=r"s0-.* and .*s1-.* have different examples"):
        same_data(map(Run.open, folders), split="test")


def test_resuming_with_another_number_of_threads_is_told(root, caplog):
    before, folder = torch.get_num_threads(), make_writer(root).folder
    try:
        torch.set_num_threads(before + 1)
        RunWriter.resume(folder, make_spec(), device="a GPU")  # whose sums take no threads
        assert not caplog.records
        record = RunWriter.resume(folder, make_spec()).finish().record
    finally:
        torch.set_num_threads(before)
    assert f"begun with {before} threads and goes on with {before + 1}" in caplog.text
    assert [entry["threads"] for entry in record["resumed"]] == [before + 1, before + 1]


def test_logits_of_other_weights_are_refused(run):
    writer = RunWriter.reopen(run.folder)
    with pytest.raises(InputError, match=r"differ from those stored with the split 'test'"):
        writer.write_logits("val", np.eye(3), [0, 1, 2], norms=[1.0, 2.0, 4.0])
