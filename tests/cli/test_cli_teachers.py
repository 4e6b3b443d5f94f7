"""`longtail train --teachers`: from run folders to a student, and on after an interruption."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from longtail.cli import main
from longtail.runs import Run, find_runs
from longtail.train import engine

pytestmark = pytest.mark.usefixtures("no_data_folder")

TRAIN = ("train", "--dataset", "digits-lt", "--device", "cpu")
DIGITS = (*TRAIN, "--set", "epochs=2")
LISTENING = ("--method", "logit-adjusted", "--set", "distill_weight=0.8")
STUDENT = (*DIGITS, *LISTENING)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two teachers, and their mean logits beside them."""
    out = tmp_path_factory.mktemp("teachers") / "teachers"
    words = (*DIGITS, "--method", "softmax", "--method", "logit-adjusted", "--out", str(out))
    assert main(list(words)) == 0
    assert main(["evaluate", str(out), "--ensemble", "--device", "cpu"]) == 0
    return out


@pytest.fixture
def teachers(trained, cli):
    return shutil.copytree(trained, Path("teachers"))


def test_a_student_names_its_teachers_and_is_judged(teachers, cli):
    result = cli(*STUDENT, "--teachers", teachers, "--out", "runs", "--json")
    assert result.code == 0, result.err
    (entry,) = json.loads(result.out)["runs"]
    names = [run.name for run in find_runs(teachers) if run.has_model]
    assert entry["spec"]["settings"]["teachers"] == sorted(names)
    (run,) = find_runs("runs")
    logits, target, _ = run.logits("test")
    wrong = [np.mean(logits[target == k].argmax(axis=1) != k) for k in range(10)]
    assert entry["balanced_error"]["test"] == pytest.approx(np.mean(wrong))


def test_several_teachers_may_follow_one_another(teachers, cli):
    """As a shell writes them in the place of a pattern: `--teachers teachers/digits-lt/*`."""
    result = cli(*STUDENT, "--teachers", *sorted(teachers.glob("digits-lt/*")), "--out", "runs")
    assert result.code == 0, result.err
    (run,) = find_runs("runs")
    assert len(run.spec.settings["teachers"]) == 2
    same = cli(*STUDENT, "--teachers", teachers, "--out", "runs")
    assert "Nothing to train: 1 run finished already" in same.err


def test_an_interrupted_student_is_resumed(teachers, cli, monkeypatch):
    words = (*TRAIN, "--set", "epochs=3", *LISTENING, "--teachers", teachers, "--out", "runs")
    real = engine.train_cohort

    def stopped(*arguments, **options):
        def stop(end):
            if end.epoch == 2:
                raise KeyboardInterrupt

        return real(*arguments, after_epoch=stop, checkpoint_seconds=0, **options)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "train_cohort", stopped)
        result = cli(*words)
    assert result.code != 0
    assert "1 saved after epoch 1" in result.err
    assert "--teachers teachers" in result.err
    (folder,) = Path("runs/digits-lt").iterdir()
    lost = cli("train", "--resume", folder, "--device", "cpu")
    assert lost.code == 1
    assert "is not in runs; say where all its teachers are: --teachers RUN" in lost.err
    other = cli("train", "--resume", folder, "--teachers", next(teachers.glob("*/softmax-*")))
    assert other.code == 1
    assert "which ask for another run: settings.teachers" in other.err
    went_on = cli("train", "--resume", folder, "--teachers", teachers, "--device", "cpu")
    assert went_on.code == 0, went_on.err
    assert Run.open(folder).finished


def test_refusals_come_before_any_work(teachers, cli):
    (softmax,) = teachers.glob("*/softmax-*")
    (together,) = teachers.glob("*/ensemble-*")
    plain = (*DIGITS, "--method", "softmax")

    def refused(words, *messages):
        result = cli(*words, "--out", "runs")
        assert result.code == 1
        for message in messages:
            assert message in result.err
        assert len(result.err.splitlines()) == 1
        assert not Path("runs").exists()

    refused((*plain, "--teachers", softmax), "distill_weight 0, so the teachers")
    refused(STUDENT, "needs teachers; name their run folders (--teachers RUN)")
    refused((*STUDENT, "--teachers", together), "is an ensemble", "name its members")
    refused((*STUDENT, "--ratio", "10", "--teachers", softmax), "was trained on other data")
    refused((*STUDENT, "--held-out", "0.2", "--teachers", softmax), "its student holds out")


def test_saved_logits_in_the_place_of_networks(teachers, cli):
    words = (*STUDENT, "--teachers", next(teachers.glob("*/ensemble-*")), "--out", "runs")
    without = cli(*words, "--teacher-logits")
    assert without.code == 1
    assert "has no logits of the split 'train'" in without.err
    assert cli("evaluate", teachers, "--split", "train", "--ensemble").code == 0
    taught = cli(*words, "--teacher-logits")
    assert taught.code == 0, taught.err
    (run,) = find_runs("runs")
    assert run.spec.settings["teacher_logits"] is True
    moved = cli(*words, "--teacher-logits", "--set", "flip=true")
    assert "saved logits are of images as they are" in moved.err
