"""`longtail train`: what it trains, what it refuses, and how it goes on."""

import errno
import json
import os
import re
import shlex
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from data_factory import write_folder
from longtail.cli import _cohort, _data, main
from longtail.data.digits import load_digits_lt
from longtail.runs import Run, files, find_runs
from longtail.train import engine
from longtail.train.methods import EXTRAS
from longtail.train.recipe import RECIPES
from longtail.train.recipe import make_spec

pytestmark = pytest.mark.usefixtures("no_data_folder")

DIGITS = ("train", "--dataset", "digits-lt", "--set", "epochs=2", "--device", "cpu")


def by_hand(run, split="test"):
    """The balanced error in percent: a loop over classes, from the stored logits."""
    logits, target, _ = run.logits(split)
    wrong = [np.mean(logits[target == k].argmax(axis=1) != k) for k in range(logits.shape[1])]
    return 100 * float(np.mean(wrong))


def weights(run):
    return {name: np.array(value) for name, value in run.model().items()}


def same_weights(one, other):
    mine, theirs = weights(one), weights(other)
    return all(np.array_equal(mine[name], theirs[name]) for name in mine | theirs)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    """Two methods and two seeds, trained once by the command: its folder of runs and its JSON."""
    out = tmp_path_factory.mktemp("cohort") / "runs"
    methods = ("--method", "softmax", "--method", "logit-adjusted:tau=1.5")
    words = (*DIGITS, *methods, "--seeds", "2", "--out", str(out))
    with pytest.MonkeyPatch.context() as patch:
        printed = []
        patch.setattr("longtail.cli._console.print_json", printed.append)
        assert main([*words, "--json"]) == 0
    return words, out, printed[0]


def test_every_method_and_seed_is_trained_and_judged(cohort):
    _, out, document = cohort
    runs = find_runs(out)
    assert {(run.spec.method.name, run.spec.seed) for run in runs} == {
        (method, seed) for method in ("softmax", "logit-adjusted") for seed in (0, 1)
    }
    for run in runs:
        assert run.splits == ("test",)
        assert dict(run.spec.recipe.overrides) == {"epochs": 2}
        assert run.spec.settings == {}
        assert run.data == load_digits_lt().train.fingerprint
    folders = {Path(entry["folder"]): entry for entry in document["runs"]}
    for run in runs:
        entry = folders[run.folder]
        assert 100 * entry["balanced_error"]["test"] == pytest.approx(by_hand(run))
        assert entry["spec"] == run.spec.to_json()
    softmax, adjusted = document["methods"]
    assert (softmax["method"], softmax["seeds"]) == ("softmax", [0, 1])
    assert adjusted["method"] == "logit-adjusted (tau=1.5)"
    errors = [by_hand(run) for run in runs if run.spec.method.name == "softmax"]
    assert 100 * softmax["test"]["balanced_error"] == pytest.approx(np.mean(errors))
    assert 100 * softmax["test"]["deviation"] == pytest.approx(np.std(errors, ddof=1))
    assert softmax["seconds"] > 0


def test_the_same_command_finds_everything_done_and_prints_the_table(cohort, cli, monkeypatch):
    words, out, document = cohort
    monkeypatch.setattr(_cohort.News, "__call__", lambda *_: pytest.fail("trained again"))
    result = cli(*words)
    assert result.code == 0
    assert result.err == "Nothing to train: 4 runs finished already (--force: again).\n"
    title, header, softmax, adjusted, *_ = result.out.splitlines()
    assert title == "digits-lt (exp, imbalance ratio 50), recipe digits"
    assert header.split() == ["method", "seeds", "test", "set", "time", "a", "run"]
    values = document["methods"][0]["test"]
    shown = f"{100 * values['balanced_error']:.2f} ± {100 * values['deviation']:.2f}"
    assert re.fullmatch(rf"softmax +2 +{shown} +\d+\.\d s", softmax)
    assert adjusted.startswith("logit-adjusted (tau=1.5) ")
    assert f"longtail report {out}/digits-lt" in result.out
    assert max(len(line) for line in result.out.splitlines() if str(out) not in line) <= 80


def test_more_seeds_train_only_what_is_missing(cohort, cli):
    words, out, _ = cohort
    out = shutil.copytree(out, "copy")
    before = {run.folder: run.record["created"] for run in find_runs(out)}
    result = cli(*words[: words.index("--seeds")], "--seed", 1, "--seed", 7, "--out", out)
    assert result.code == 0
    assert "Finished already: 2 of 4." in " ".join(result.err.split())
    assert "Training 2 runs on cpu in float32" in result.err
    runs = find_runs(out)
    assert len(runs) == 6
    assert before.items() <= {run.folder: run.record["created"] for run in runs}.items()
    rows = [line for line in result.out.splitlines() if line.endswith(" s")]
    assert [re.split("  +", row)[1] for row in rows] == ["2", "2"]


def test_a_run_does_not_depend_on_its_cohort(cohort, cli):
    _, out, _ = cohort
    assert cli(*DIGITS, "--method", "softmax", "--seed", 1, "--no-evaluate").code == 0
    (alone,) = find_runs("runs")
    (within,) = (run for run in find_runs(out) if run.name == alone.name)
    assert same_weights(alone, within)


def test_the_recorded_command_goes_on_and_does_not_begin_again(cli):
    words = (*DIGITS, "--method", "softmax", "--profile", "step", "--out", "a b", "--no-evaluate")
    assert cli(*words, "--force", "--json").code == 0
    (run,) = find_runs("a b")
    typed = shlex.split(run.record["command"])
    assert set(typed) == {"longtail", *words}
    assert cli(*typed[1:]).err.startswith("Nothing to train: 1 run finished already")


def test_force_trains_again(cli, monkeypatch):
    words = (*DIGITS, "--method", "softmax", "--no-evaluate")
    assert cli(*words).code == 0
    epochs = []
    monkeypatch.setattr(_cohort.News, "__call__", lambda _, end: epochs.append(end.epoch))
    assert cli(*words).code == 0
    assert epochs == []
    assert cli(*words, "--force").code == 0
    assert epochs == [1, 2]


def test_training_alone_leaves_the_test_set_closed(cli):
    result = cli(*DIGITS, "--method", "softmax", "--no-evaluate")
    assert result.code == 0
    (run,) = find_runs("runs")
    assert run.splits == ()
    assert result.out.splitlines()[1].split() == ["method", "seeds", "time", "a", "run"]
    assert result.out.endswith("yet: longtail evaluate runs/digits-lt\n")


@pytest.mark.parametrize("dataset", ["my birds", "my birds.frozen", "digits.frozen"])
def test_the_command_that_judges_says_where_data_of_ones_own_are(cli, dataset):
    for split in ("train", "test"):
        write_folder(Path("my birds") / split, {"a": 12, "b": 9}, shape=(1, 8, 8))
    for source in ("my birds", "digits-lt"):
        assert cli("data", "freeze", source, "-o", f"{source.removesuffix('-lt')}.frozen").code == 0
    words = ("--set", "epochs=1", "--device", "cpu", "--method", "softmax", "--no-evaluate")
    trained = cli("train", "--dataset", dataset, "--recipe", "digits", *words, "--out", "a b")
    assert trained.code == 0, trained.err
    command = shlex.split(trained.out.splitlines()[-1].partition(": longtail ")[2])
    assert command[-2:] == ["--dataset", dataset]
    judged = cli(*command)
    assert judged.code == 0, judged.err


def test_a_held_out_part_is_judged_beside_the_test_set(cli):
    words = (*DIGITS, "--held-out", 0.2, "--method")
    assert "longtail tune" not in cli(*words, "balanced", "--out", "other").out
    result = cli(*words, "softmax")
    assert result.code == 0
    (run,) = find_runs("runs")
    assert run.spec.dataset.held_out == 0.2
    assert run.prior.counts.sum() < len(load_digits_lt().train)
    row = result.out.splitlines()[2].split()
    assert row[:4] == ["softmax", "1", f"{by_hand(run):.2f}", f"{by_hand(run, 'held-out'):.2f}"]
    assert f"longtail tune {run.folder}" in result.out
    assert cli("tune", run.folder).code == 0


def test_the_precision_is_part_of_the_spec_unless_it_is_float32(cli):
    words = ("train", "--dataset", "digits-lt", "--set", "epochs=1", "--method", "softmax")
    for precision in ("float32", "bfloat16", "auto"):
        assert cli(*words, "--device", "cpu", "--precision", precision).code == 0
    found = [dict(run.spec.settings) for run in find_runs("runs")]
    assert sorted(map(str, found)) == ["{'precision': 'bfloat16'}", "{}"]


def test_a_folder_of_images_needs_a_recipe_by_name(cli):
    for split, count in (("train", 8), ("test", 3)):
        write_folder(Path("birds") / split, {"a": count, "b": 3}, shape=(3, 8, 8))
    words = ("train", "--dataset", "birds", "--method", "balanced", "--device", "cpu")
    result = cli(*words)
    assert result.code == 1
    assert "no recipe is settled for 'birds'; name one with --recipe" in result.err
    changes = ("--set", "epochs=1", "--set", "mean=[0.5,0.5,0.5]", "--set", "batch_size=4")
    assert cli(*words, "--recipe", "digits", *changes).code == 0
    (run,) = find_runs("runs")
    assert run.spec.recipe.overrides["mean"] == (0.5, 0.5, 0.5)
    assert run.prior.counts.tolist() == [8, 3]


def test_a_frozen_file_is_what_was_frozen(cohort, cli):
    assert cli("data", "freeze", "digits-lt", "--out", "d.frozen").code == 0
    words = ("train", "--dataset", "d.frozen", "--set", "epochs=2", "--method", "softmax")
    assert cli(*words, "--device", "cpu").code == 0
    (run,) = find_runs("runs")
    assert run.folder.name in {path.name for path in (cohort[1] / "digits-lt").iterdir()}


# Interrupted and resumed.


def stopping(monkeypatch, *, after):
    """Checkpoints after every epoch, and Ctrl-C after so many epochs."""
    real, seen = engine.train_cohort, []
    monkeypatch.setattr(engine, "train_cohort", partial(real, checkpoint_seconds=0))

    def news(self, end):
        seen.append(end)
        if len(seen) == after:
            raise KeyboardInterrupt

    monkeypatch.setattr(_cohort.News, "__call__", news)
    return seen


WORDS = ("train", "--dataset", "digits-lt", "--set", "epochs=4", "--device", "cpu", "--no-evaluate")


@pytest.fixture
def interrupted(cli, monkeypatch):
    """Two runs, stopped in the fourth epoch of the second: what was printed."""
    with pytest.MonkeyPatch.context() as patch:
        stopping(patch, after=8 - 1)
        return cli(*WORDS, "--method", "softmax", "--seeds", 2)


def unfinished(root="runs"):
    (run,) = (r for r in find_runs(root, unfinished=True) if not r.finished)
    return run


def test_ctrl_c_says_what_is_saved_and_how_to_go_on(interrupted, cli, monkeypatch):
    assert interrupted.code == 130
    said = interrupted.err
    assert "Stopped: 1 of 2 runs finished, 1 saved after epoch 2. To go on:\n" in said
    assert said.endswith("longtail: error: interrupted\n")
    (typed,) = re.findall(r"^  (longtail train .*)$", said, flags=re.MULTILINE)
    left = unfinished().folder
    seen = stopping(monkeypatch, after=None)
    again = cli(*shlex.split(typed)[1:])
    assert again.code == 0
    assert [end.epoch for end in seen] == [3, 4]
    assert "Finished already: 1 of 2. Interrupted before, now" in " ".join(again.err.split())
    assert cli(*WORDS, "--method", "softmax", "--seed", 1, "--out", "whole").code == 0
    (whole,) = find_runs("whole")
    assert same_weights(Run.open(left), whole)


def test_runs_that_force_has_not_come_to_are_not_called_finished(cli, monkeypatch):
    words = (*WORDS, "--method", "softmax", "--seeds", 3)
    assert cli(*words).code == 0
    before = {run.folder: run.record for run in find_runs("runs")}
    with pytest.MonkeyPatch.context() as patch:
        stopping(patch, after=8 - 1)  # in the fourth epoch of the second
        stopped = cli(*words, "--force")
    said = (
        "Stopped: 1 of 3 runs finished, 1 saved after epoch 2, 1 not begun again, and so as "
        "before. To go on (1 will stay as before; with --force all begin again):\n"
    )
    assert said in stopped.err
    assert unfinished().spec.seed == 1
    same = [run.spec.seed for run in find_runs("runs") if run.record == before[run.folder]]
    assert same == [2]


@pytest.mark.parametrize("edited", [False, True])
def test_a_command_that_force_did_not_get_begun_is_given_with_it(cli, monkeypatch, edited):
    words = (*WORDS, "--method", "softmax")
    assert cli(*words).code == 0
    (run,) = find_runs("runs")
    if edited:  # it can't be gone on with then, but replaced
        files.write_json(run.folder / "run.json", {**run.record, "data": "0" * 64})

    def refuse(folder):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(folder))

    monkeypatch.setattr(files, "exclusive", refuse)
    stopped = cli(*words, "--force")
    assert stopped.code == 1
    assert "Stopped: 0 of 1 run finished, 1 not begun again, and so as before. To go on:" in (
        stopped.err
    )
    (typed,) = re.findall(r"^  (longtail train .*)$", stopped.err, flags=re.MULTILINE)
    assert typed.endswith(" --force")


def test_a_full_disk_says_what_is_saved_and_how_to_go_on(cli, monkeypatch):
    write = files.write_tensors

    def full(path, tensors, *, caller):
        if "-s1-" in str(path) and path.name == "checkpoint-000003.safetensors":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, tensors, caller=caller)

    with pytest.MonkeyPatch.context() as patch:
        stopping(patch, after=None)
        patch.setattr(files, "write_tensors", full)
        result = cli(*WORDS, "--method", "softmax", "--seeds", 2)
    assert result.code == 1
    said = "Stopped: 1 of 2 runs finished, 1 saved after epoch 2. To go on:\n  longtail train "
    assert said in result.err
    assert re.search(r"error: No space left on device: .*checkpoint-000003", result.err)


def test_resume_continues_exactly_that_run(interrupted, cli, monkeypatch):
    left = unfinished().folder
    seen = stopping(monkeypatch, after=None)
    result = cli("train", "--resume", left, "--method", "softmax", "--ratio", 50, "--device", "cpu")
    assert result.code == 0, result.err
    assert [end.epoch for end in seen] == [3, 4]
    assert {end.folder for end in seen} == {left}
    assert "test" in Run.open(left).splits
    again = cli("train", "--resume", left, "--seed", 1, "--recipe", "digits")
    assert again.code == 0
    assert again.err == "Nothing to train: 1 run finished already (--force: again).\n"


@pytest.mark.parametrize("given", ["softmax-s1-{}", ".", "../digits-lt/softmax-s1-{}/."])
def test_a_resume_finds_the_folder_from_wherever_it_is_named(interrupted, cli, monkeypatch, given):
    left = unfinished().folder.resolve()
    monkeypatch.chdir(left if given == "." else left.parent)
    result = cli("train", "--resume", given.format(left.name[-8:]), "--no-evaluate")
    assert result.code == 0, result.err
    assert Run.open(left).finished
    assert sorted(path.name for path in left.parents[1].iterdir()) == ["digits-lt"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "balanced"], "method.name: softmax against balanced"),
        (["--seed", 3], "seed: 1 against 3"),
        (["--set", "lr=0.5"], "recipe.values.lr: 0.05 against 0.5"),
        (["--set", "model=resnet20"], "model.name: small-conv against resnet20"),
        (["--recipe", "tuned"], "model.name: small-conv against resnet32"),
        (["--ratio", 10], "dataset.imbalance_ratio: 50.0 against 10.0"),
        (["--held-out", 0.1], "dataset.held_out: 0.0 against 0.1"),
        (["--dataset", "cifar10-lt"], "dataset.name: digits-lt against cifar10-lt"),
        (["--precision", "bfloat16"], "settings.precision: nothing against bfloat16"),
    ],
)
def test_a_resume_with_another_spec_shows_the_difference(interrupted, cli, options, message):
    folder = unfinished().folder
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    result = cli("train", "--resume", folder, *options)
    assert result.code == 1
    assert message in result.err
    assert "(the folder's against yours)" in result.err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_resume_has_one_folder_under_its_own_name(interrupted, cli):
    folder = unfinished().folder
    result = cli("train", "--resume", folder, "--method", "softmax", "--method", "balanced")
    assert result.code == 2
    assert "--resume continues one run" in result.err
    for option in (["--force"], ["--out", "x"], ["--fit"]):
        result = cli("train", "--resume", folder, *option)
        assert (result.code, f"{option[0]} can't stand beside" in result.err) == (2, True)
    moved = folder.rename(folder.with_name("mine"))
    result = cli("train", "--resume", moved)
    assert result.code == 1
    assert f"must be digits-lt/{folder.name}" in result.err
    assert "there is no run folder nowhere" in cli("train", "--resume", "nowhere").err


def test_a_run_of_other_data_in_its_place_is_not_taken_for_done(cli, monkeypatch):
    words = (*DIGITS, "--method", "softmax", "--no-evaluate")
    assert cli(*words).code == 0
    data = load_digits_lt()
    other = replace(data, train=replace(data.train, images=data.train.images[::-1].copy()))
    monkeypatch.setattr(_data, "load", lambda *_, **__: other)
    result = cli(*words)
    assert result.code == 1
    assert "was trained on other data of the same name (fingerprint" in result.err
    assert cli(*words, "--force").code == 0


# Refused before any work.


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--method", "softmax"], 2, "missing option '--dataset'"),
        (["--dataset", "digits-lt"], 2, "missing option '--method'"),
        (["--dataset", "mnist", "--method", "softmax"], 1, "there is no data set, file or folder"),
        (["--dataset", "digits", "--method", "softmax"], 1, "did you mean digits-lt? There are"),
        (["--dataset", "mnist", "--method", "softmax"], 1, "imagenet-lt, places-lt, inaturalist."),
        (["--dataset", "cifar10-lt", "--method", "softmax"], 1, "To get them, put https"),
        (
            ["--dataset", "cifar10-lt", "--data-dir", ".", "--method", "softmax"],
            1,
            "looked for cifar-10-python.tar.gz",
        ),
        (["--dataset", "cifar10-lt", "--method", "sofmax"], 1, "did you mean softmax"),
        (["--dataset", "cifar10-lt", "--method", "softmax+drv"], 1, "did you mean drw"),
        (["--dataset", "cifar10-lt", "--method", "posthoc-logit-adjusted"], 1, "is not trained"),
        (
            ["--dataset", "cifar10-lt", "--method", "softmax", "--recipe", "papr"],
            1,
            "did you mean paper",
        ),
        (
            ["--dataset", "cifar10-lt", "--method", "softmax", "--set", "epoch=3"],
            1,
            "did you mean epochs",
        ),
        (
            ["--dataset", "digits-lt", "--method", "softmax", "--set", "epochs=many"],
            1,
            "`epochs` must be a whole number",
        ),
        (
            ["--dataset", "digits-lt", "--method", "softmax", "--recipe", "tuned"],
            1,
            "is for images of 3 channels (`mean`), but digits-lt has 1",
        ),
        (
            ["--dataset", "digits-lt", "--method", "softmax", "--set", "model=resnet18"],
            1,
            "'resnet18' takes images with 3 channels",
        ),
        (
            ["--dataset", "digits-lt", "--method", "softmax", "--method", "consistent:delta=1/2"],
            1,
            "delta",
        ),
        (
            ["--dataset", "digits-lt", "--method", "softmax", "--held-out", "1.5"],
            1,
            "`--held-out` must lie in [0, 1)",
        ),
        (
            ["--dataset", "digits-lt", "--method", "softmax", "--ratio", "114", "--held-out", ".2"],
            1,
            "class 8 has only 1 example, which can't be both held out and trained on; lower the "
            "imbalance ratio, or hold nothing out.",
        ),
        (
            ["--dataset", "digits-lt", "--method", "softmax", "--seeds", "2", "--seed", "1"],
            2,
            "either --seeds or --seed",
        ),
        (
            ["--dataset", "digits-lt", "--method", "softmax", "--device", "tpu"],
            1,
            "--device must be auto, cpu, cuda or cuda:N; got 'tpu'",
        ),
        (["--dataset", "digits-lt", "--method", "softmax", "--device", "cuda:x"], 1, "cuda:N; got"),
    ],
)
def test_what_is_wrong_is_one_line_before_any_work(cli, arguments, code, message):
    result = cli("train", *arguments)
    assert result.code == code
    assert result.out == ""
    assert re.fullmatch(r"longtail: error: [^\n]+\n", result.err), result.err
    assert message in result.err
    assert not Path("runs").exists()


def test_a_gpu_that_is_not_there_is_refused(cli, monkeypatch):
    import torch

    words = ("train", "--dataset", "digits-lt", "--method", "softmax", "--device")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = cli(*words, "cuda")
    assert result.code == 1
    assert "can use no GPU here" in result.err
    assert "--device cpu works everywhere" in result.err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert "there are 2 GPU(s), cuda:0 to cuda:1" in cli(*words, "cuda:2").err
    assert not Path("runs").exists()


@pytest.mark.parametrize("module", ["torch", "tensorboard"])
def test_a_missing_extra_is_named_before_any_work(cli, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    result = cli(*DIGITS, "--method", "softmax", "--tensorboard")
    assert result.code == 1
    assert f"pip install 'longtail[{module}]'" in result.err
    assert not Path("runs").exists()


def test_tensorboard_logs_lie_in_the_runs_folder(cli):
    pytest.importorskip("tensorboard")
    assert cli(*DIGITS, "--method", "softmax", "--tensorboard", "--no-evaluate").code == 0
    (run,) = find_runs("runs")
    (file,) = (run.folder / "tensorboard").iterdir()
    assert file.name.startswith("events.out.tfevents")


# What is shown while it trains.


def news(*, runs, together, done=None):
    shown = []

    def show(*words):
        shown.append(words)

    return shown, _cohort.News(show, runs=runs, epochs=20, together=together, done=done)


def epoch_end(method, seed, epoch, loss, error=None):
    spec = make_spec(load_digits_lt().spec, method=method, recipe="digits", seed=seed)
    return engine.EpochEnd(spec, Path(f"{method}-{seed}"), epoch, 20, loss, error, 0.1)


def test_runs_one_after_another_are_counted_over_the_whole_cohort():
    shown, tell = news(runs=3, together=1)
    assert shown == [(0, 60, "")]
    tell(epoch_end("softmax", 0, 1, 0.618))
    assert shown[-1] == (1, 60, "loss 0.62 epoch 1/20 (softmax, seed 0)")
    for epoch in range(2, 21):
        tell(epoch_end("softmax", 0, epoch, 0.5))
    tell(epoch_end("logit-adjusted:tau=2", 4, 1, 2.0, 0.3421))
    text = "loss 2.00 held-out 34.2% epoch 1/20 (logit-adjusted (tau=2), seed 4)"
    assert shown[-1] == (21, 60, text)


def test_a_long_epoch_is_told_by_its_share():
    shown, tell = news(runs=2, together=1)
    tell.within(0.25)
    assert shown[-1] == (0.25, 40, "")
    tell.within(1.0)  # nothing more until the epoch is judged
    assert shown[-1] == (0.25, 40, "")
    tell(epoch_end("softmax", 0, 1, 0.5))
    tell.within(0.5)
    assert shown[-1] == (1.5, 40, "loss 0.50 epoch 1/20 (softmax, seed 0)")


def test_runs_side_by_side_are_summarised():
    shown, tell = news(runs=2, together=16)
    for epoch in (1, 2):
        tell(epoch_end("softmax", 0, epoch, 0.25, 0.5 if epoch == 1 else None))
        tell(epoch_end("balanced", 0, epoch, 0.75, 0.3 if epoch == 1 else None))
    assert shown[-1] == (2, 20, "loss 0.50 held-out 40.0% epoch 2/20")


def test_a_resumed_run_counts_from_where_it_was_left():
    shown, tell = news(runs=2, together=1, done={Path("softmax-0"): 15})
    assert shown == [(15, 40, "")]
    tell(epoch_end("softmax", 0, 16, 0.5))
    assert shown[-1][:2] == (16, 40)
    for epoch in range(17, 21):
        tell(epoch_end("softmax", 0, epoch, 0.5))
    tell(epoch_end("softmax", 1, 1, 0.5))
    assert shown[-1][:2] == (21, 40)
    shown, tell = news(runs=2, together=16, done={Path("softmax-0"): 15, Path("softmax-1"): 15})
    assert shown == [(15, 20, "")]  # side by side, the count is that of one run


def test_the_shell_completes_methods_recipes_and_data(fresh):
    def offered(words):
        last = str(len(words.split()) - 1)
        env = {"COMP_WORDS": words, "COMP_CWORD": last, "_LONGTAIL_COMPLETE": "complete_bash"}
        return fresh(**env).out.split()

    assert offered("longtail train --method logit") == ["logit-adjusted", "logit-adjusted-adaptive"]
    assert offered("longtail train --recipe pa") == ["paper"]
    assert offered("longtail train --dataset cif") == ["cifar10-lt", "cifar100-lt"]


def test_the_help_names_every_recipe_and_what_comes_on_top_of_a_loss(cli):
    text = cli("train", "--help").out
    assert all(re.search(rf"\b{name}\b", text) for name in (*RECIPES, *EXTRAS))


def test_json_is_json(cohort, cli):
    document = json.loads(cli(*cohort[0], "--json").out)
    assert [entry["method"] for entry in document["methods"]] == [
        "softmax",
        "logit-adjusted (tau=1.5)",
    ]


@pytest.mark.parametrize(
    ("method", "twice"),
    [
        ("logit-adjusted+drw", True),
        ("balanced+drw", True),
        ("class-balanced+drw", True),
        ("softmax+drw", False),
        ("ldam+drw", False),
        ("logit-adjusted:tau=0.5+drw", False),
        ("logit-adjusted", False),
    ],
)
def test_weights_on_top_of_a_loss_that_needs_none_are_told(cli, method, twice):
    words = (*DIGITS, "--set", "warmup_epochs=1", "--no-evaluate", "--method", method)
    result = cli(*words)
    assert result.code == 0, result.err
    loss = method.partition("+")[0]
    told = (
        f"longtail: warning: {method} corrects for class frequencies twice: {loss} aims at the "
        f"balanced error by itself, and drw weighs rare classes more on top of it; {loss} alone, "
        f"or softmax+drw, does it once."
    )
    assert (told in result.err.splitlines()) is twice
    assert ("warning" in result.err) is twice
    assert "warning" not in cli(*words).err  # nothing is left to train


def test_a_class_of_one_image_that_is_held_out_is_named(cli):
    write_folder(Path("pets/train"), {"cat": 4, "dog": 1}, shape=(1, 8, 8))
    write_folder(Path("pets/test"), {"cat": 1, "dog": 1}, shape=(1, 8, 8))
    words = ("train", "--dataset", "pets", "--recipe", "digits", "--method", "softmax")
    result = cli(*words, "--held-out", "0.2", "--device", "cpu")
    assert result.code == 1
    assert result.err.endswith(
        "class dog has only 1 example, which can't be both held out and trained on; add examples "
        "of it, or hold nothing out.\n"
    )
