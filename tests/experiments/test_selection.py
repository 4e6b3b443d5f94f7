"""Ways to train students, compared on the development set: which, how they are kept and trained."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from longtail import InputError
from longtail.experiments import selection, strong_runs
from longtail.experiments.records import DEV, TEST
from longtail.experiments.selection import CHANGES, FIRST, TRIED, Outcome, Selection, candidates
from longtail.experiments.strong import Study
from longtail.experiments.strong_kinds import STUDENT
from longtail.experiments.strong_runs import Setting
from longtail.runs import find_runs
from longtail.train.recipe import Recipe
from longtail.train.teachers import names_of, with_teachers
from strong_factory import OVERRIDES, small_run, trained_root

RECORDS = Path(__file__).parents[2] / "results" / "strong"


@pytest.mark.parametrize("dataset", sorted(TRIED))
def test_a_candidate_is_the_first_trial_but_for_what_its_name_says(dataset):
    kinds = candidates(dataset)
    assert len({kind.name for kind in kinds}) == len(kinds)
    for changes, kind in zip(TRIED[dataset], kinds, strict=True):
        changed = {key for key, value in FIRST.items() if kind.overrides[key] != value}
        assert changed == {key for change in changes for key in CHANGES[change]}
        equally = "classes drawn equally" in kind.name
        assert kind.method == ("softmax+over-sampling" if equally else "logit-adjusted")
        assert kind.overrides["image_seed"] == 0


def test_a_change_is_judged_by_the_pairs_that_differ_in_it_alone():
    found = selection.read(RECORDS, "cifar10-lt")
    again = {name: one.error_again for name, one in found.outcomes.items()}
    equal, bare, warm = "classes drawn equally", "no Cutout", "temperature 4"
    wanted = [
        again["KL of prior-shifted logits, temperature 4"] - again["KL of prior-shifted logits"],
        again[f"{equal}, {warm}"] - again[equal],
        again[f"{equal}, {bare}, {warm}"] - again[f"{equal}, {bare}"],
    ]
    found = selection.effects(found)
    assert sorted(found[warm]) == pytest.approx(sorted(wanted))
    assert equal not in found  # those without it differ in something else, too


def test_candidates_take_the_epochs_of_a_trial_in_small():
    usual, small = Setting("cifar100-lt"), Setting("cifar100-lt", overrides={"epochs": 2})
    assert {kind.overrides["epochs"] for kind in usual.candidates()} == {200}
    assert {kind.overrides["epochs"] for kind in small.candidates()} == {2}
    spec = small.students(["a/b-s0-0"], kinds=small.candidates())[0]
    assert Recipe.of(spec).epochs == 2


def test_a_selection_is_read_as_it_was_written(tmp_path):
    names = [kind.name for kind in candidates("cifar10-lt")]
    outcomes = {name: Outcome((20 + n) / 100, 0.1, (30 - n) / 100) for n, name in enumerate(names)}
    found = Selection("cifar10-lt", 75, "CPU", outcomes, {"lr": 0.5}, "From a log.")
    assert selection.read(tmp_path, "cifar10-lt") is None
    selection.write(found, tmp_path)
    assert selection.read(tmp_path, "cifar10-lt") == found
    assert found.best == names[-1]  # by the error with its own tau


def test_an_outcome_of_other_values_than_the_candidate_has_is_not_read(tmp_path, monkeypatch):
    first = candidates("cifar10-lt")[0].name
    selection.write(Selection("cifar10-lt", 75, "CPU", {first: Outcome(0.2, 0.1, 0.2)}), tmp_path)
    monkeypatch.setitem(FIRST, "cutmix", 0.25)
    candidates.cache_clear()
    try:
        assert selection.read(tmp_path, "cifar10-lt").outcomes == {}
    finally:
        candidates.cache_clear()


@pytest.mark.parametrize("dataset", sorted(TRIED))
def test_what_is_kept_is_of_all_candidates(dataset):
    found = selection.read(RECORDS, dataset)
    assert list(found.outcomes) == [kind.name for kind in candidates(dataset)]
    assert found.epochs == selection.EPOCHS[dataset]


@pytest.mark.parametrize("dataset", sorted(TRIED))
@pytest.mark.parametrize("overrides", [{}, {"epochs": 2}])
def test_no_run_of_the_tables_is_a_candidate_too(dataset, overrides):
    setting, names = Setting(dataset, overrides=overrides), ["a/b-s0-0"]
    kinds = [STUDENT, *setting.earlier, *setting.ablated_students()]
    shown = {spec.folder for spec in setting.students(names, kinds)}
    tried = {
        with_teachers(setting.student.spec(kind, selection.SEED), names).folder
        for kind in setting.candidates()
    }
    assert len(tried) == len(TRIED[dataset])
    assert not shown & tried


@pytest.mark.parametrize(
    ("kept", "wanted", "message"),
    [
        ({"epochs": 3}, {}, "with other epochs or other recipe values"),
        ({"overrides": {"lr": 0.5}}, {}, "with other epochs or other recipe values"),
        ({"source": "From a log."}, {"adds": True}, r"can't be gone on with \(From a log\)"),
    ],
)
def test_a_selection_of_another_kind_is_not_gone_on_with(kept, wanted, message, tmp_path):
    found = replace(Selection("cifar10-lt", 75, "CPU"), **kept)
    with pytest.raises(InputError, match=message) as caught:
        found.refuse_other(tmp_path, 75, {}, **{"adds": False, **wanted})
    assert str(tmp_path / "selection-cifar10-lt.json") in str(caught.value)
    Selection("cifar10-lt", 75, "CPU", source="From a log.").refuse_other(
        tmp_path, 75, {}, adds=False
    )


def test_a_trial_in_small_leaves_the_kept_selection(tmp_path):
    root = shutil.copytree(trained_root(), tmp_path / "small")
    selection.write(Selection("cifar10-lt", 75, "CPU"), root / "kept")
    before = selection.path_of(root / "kept", "cifar10-lt").read_bytes()
    with pytest.raises(InputError, match="--records"):
        small_run(root, stages=["selection"])
    assert selection.path_of(root / "kept", "cifar10-lt").read_bytes() == before


def few(monkeypatch, *, first=1, last=3):
    """Only some candidates, of either method."""
    some = candidates("cifar10-lt")[first:last]
    monkeypatch.setattr(strong_runs.selection, "candidates", lambda dataset: some)
    return some


def test_candidates_and_students_train_in_one_call(tmp_path, monkeypatch):
    some = few(monkeypatch, first=0, last=1)  # the students' own values, in small
    root = shutil.copytree(trained_root(), tmp_path / "small")
    (student,) = [run for run in find_runs(root / "runs") if names_of(run.spec)]
    (root / "kept" / f"{student.name}.json").unlink()
    study = small_run(root, stages=["selection", "students"])
    assert study.part("cifar10-lt").distilled is not None
    assert set(study.selections[0].outcomes) == {kind.name for kind in some}


def test_a_selection_that_was_stopped_goes_on(tmp_path, monkeypatch):
    some = few(monkeypatch)
    root = shutil.copytree(trained_root(), tmp_path / "small")
    with monkeypatch.context() as patch:
        asked = iter([False, True])  # before training begins, then after the first epoch
        patch.setattr(
            strong_runs.StrongTrainer, "_is_over", lambda self, **options: next(asked, True)
        )
        assert small_run(root, stages=["selection"], minutes=100.0).stopped
    assert selection.read(root / "kept", "cifar10-lt") is None
    assert not small_run(root, stages=["selection"]).stopped
    assert set(selection.read(root / "kept", "cifar10-lt").outcomes) == {one.name for one in some}
    for run in find_runs(root / "runs"):
        assert run.spec.seed != selection.SEED or TEST not in run.record["splits"]


def test_errors_for_programs_are_percents_like_the_others():
    name = candidates("cifar10-lt")[0].name
    found = Selection("cifar10-lt", 75, "CPU", {name: Outcome(0.1544, 0.25, 0.1448)})
    (document,) = Study.of([], selections=[found]).to_dict()["selections"]
    (trial,) = document["trials"]
    assert (trial["dev_error"], trial["dev_error_again"], trial["tau"]) == (15.44, 14.48, 0.25)


def test_other_ratios_choose_nothing(tmp_path):
    with pytest.raises(InputError, match="is for imbalance ratio 100 alone"):
        small_run(tmp_path, stages=["selection"], ratios=[50.0])


def test_candidates_are_trained_once_and_never_see_the_test_set(tmp_path, monkeypatch):
    some = few(monkeypatch)
    root = tmp_path / "small"
    shutil.copytree(trained_root(), root)
    before = {run.name for run in find_runs(root / "runs")}
    small_run(root, stages=["selection"])
    found = selection.read(root / "kept", "cifar10-lt")
    assert set(found.outcomes) == {kind.name for kind in some}
    new = [run for run in find_runs(root / "runs") if run.name not in before]
    assert len(new) == len(some)
    for run in new:
        assert DEV in run.record["splits"]
        assert TEST not in run.record["splits"]
        assert Recipe.of(run.spec).epochs == OVERRIDES["epochs"]
    methods = {run.spec.method.name for run in new}
    assert len(methods) == 2
    # The plain error, by hand: the largest class has no image there, and the next stands in.
    run = new[0]
    (name,) = [k.name for k in some if k.method.split("+")[0] == run.spec.method.name]
    logits, target, _ = run.logits(DEV)
    wrong = np.argmax(logits, axis=1) != target
    each = [wrong[target == y].mean() for y in range(10) if (target == y).any()]
    lacking = 10 - len(each)
    expected = (sum(each) + lacking * each[0]) / 10
    np.testing.assert_allclose(found.outcomes[name].error, expected, atol=1e-6)
    assert found.outcomes[name].error_again <= found.outcomes[name].error + 1e-6
    # And nothing of it again.
    monkeypatch.setattr(strong_runs.StrongTrainer, "_part", None)
    small_run(root, stages=["selection"])
