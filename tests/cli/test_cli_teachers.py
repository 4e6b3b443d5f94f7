"""`longtail train --teachers`: from run folders to a student, and on after an interruption."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from longtail.cli import main
from longtail.runs import Run, find_runs
from longtail.train import engine
from run_factory import class_errors

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


def test_a_student_names_its_teachers_and_is_judged(teachers, ok):
    result = ok(*STUDENT, "--teachers", teachers, "--out", "runs", "--json")
    (entry,) = json.loads(result.out)["runs"]
    names = [run.name for run in find_runs(teachers) if run.has_model]
    assert entry["spec"]["settings"]["teachers"] == sorted(names)
    (run,) = find_runs("runs")
    wrong = class_errors(*run.logits("test")[:2])
    assert entry["balanced_error"]["test"] == pytest.approx(np.mean(wrong))


def test_several_teachers_may_follow_one_another(teachers, cli, ok):
    """As a shell writes them in the place of a pattern: `--teachers teachers/digits-lt/*`."""
    ok(*STUDENT, "--teachers", *sorted(teachers.glob("digits-lt/*")), "--out", "runs")
    (run,) = find_runs("runs")
    assert len(run.spec.settings["teachers"]) == 2
    same = cli(*STUDENT, "--teachers", teachers, "--out", "runs")
    assert "Nothing to train: 1 run finished already" in same.err


def test_an_interrupted_student_is_resumed(teachers, cli, monkeypatch, ok, refused):
    words = (*TRAIN, "--set", "epochs=3", *LISTENING, "--teachers", teachers, "--out", "runs")
    real = engine.train_cohort

    def stopped(*arguments, **options):
        def stop(end):
            if end.epoch == 2:
                raise KeyboardInterrupt

        return real(*arguments, **options | {"after_epoch": stop, "checkpoint_seconds": 0})

    with monkeypatch.context() as patch:
        patch.setattr(engine, "train_cohort", stopped)
        result = cli(*words)
    assert result.code != 0
    assert "1 saved after epoch 1" in result.err
    assert "--teachers teachers" in result.err
    (folder,) = Path("runs/digits-lt").iterdir()
    said = refused("train", "--resume", folder, "--device", "cpu")
    assert "is not in runs; say where all its teachers are: --teachers RUN" in said
    said = refused("train", "--resume", folder, "--teachers", next(teachers.glob("*/softmax-*")))
    assert "which ask for another run: settings.teachers" in said
    ok("train", "--resume", folder, "--teachers", teachers, "--device", "cpu")
    assert Run.open(folder).finished


def test_refusals_come_before_any_work(teachers, refused):
    (softmax,) = teachers.glob("*/softmax-*")
    (together,) = teachers.glob("*/ensemble-*")
    plain = (*DIGITS, "--method", "softmax")
    for words, message in (
        ((*plain, "--teachers", softmax), "distill_weight 0, so the teachers"),
        ((*STUDENT, "--teachers", together), "is an ensemble"),
        ((*STUDENT, "--ratio", "10", "--teachers", softmax), "was trained on other data"),
    ):
        assert message in refused(*words, "--out", "runs")
        assert not Path("runs").exists()


def test_saved_logits_in_the_place_of_networks(teachers, cli, ok, refused):
    words = (*STUDENT, "--teachers", next(teachers.glob("*/ensemble-*")), "--out", "runs")
    assert "has no logits of the split 'train'" in refused(*words, "--teacher-logits")
    assert cli("evaluate", teachers, "--split", "train", "--ensemble").code == 0
    ok(*words, "--teacher-logits")
    (run,) = find_runs("runs")
    assert run.spec.settings["teacher_logits"] is True
    moved = cli(*words, "--teacher-logits", "--set", "flip=true")
    assert "saved logits are of images as they are" in moved.err
