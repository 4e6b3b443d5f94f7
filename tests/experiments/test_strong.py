"""Which runs `strong` is made of, training them in pieces, and what a study makes of records."""

import shutil
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from longtail import InputError
from longtail.data.images import LongTailedData
from longtail.experiments import records, strong
from longtail.experiments.exp_runs import Shelf
from longtail.experiments.records import DEV, TEST, Record
from longtail.experiments.strong import Study
from longtail.experiments.strong_kinds import (
    ABLATION_EPOCHS,
    INGREDIENTS,
    MORE_TEACHERS,
    OFF,
    STRONG,
    STUDENT,
    TEACHERS,
    TRIAL_EPOCHS,
    ablation,
    removal,
    student_ablation,
)
from longtail.experiments.strong_part import DISTILLED
from longtail.experiments.strong_published import PUBLISHED
from longtail.experiments.strong_runs import Setting, StrongTrainer
from longtail.runs import Run, find_runs, pack, unpack
from longtail.train import engine
from longtail.train.recipe import Recipe
from longtail.train.teachers import names_of
from strong_factory import OVERRIDES, made_up_setting, small_data, small_run, trained_root


@pytest.mark.parametrize("dataset", ["cifar10-lt", "cifar100-lt"])
@pytest.mark.parametrize("ratio", [100.0, 50.0, 10.0])
def test_a_setting_names_its_runs(dataset, ratio):
    setting = Setting(dataset, ratio)
    specs = setting.strong.specs([STRONG])
    assert len({spec.folder for spec in specs}) == (5 if ratio == 100 else 3)
    teachers = setting.teachers()
    assert len({spec.folder for spec in teachers}) == len(TEACHERS[dataset])
    names = [spec.folder.as_posix() for spec in teachers]
    students = setting.students(names)
    assert len(students) == 3
    assert {names_of(spec) for spec in students} == {tuple(sorted(names))}
    assert {Recipe.of(spec).image_seed for spec in students} == {0}
    for spec in (*specs, *teachers, *students, setting.ensemble(names)):
        assert (spec.dataset.name, spec.dataset.imbalance_ratio) == (dataset, ratio)
        learns = STUDENT.method if spec in students else STRONG.method
        assert spec.method.name in (learns, "ensemble")
    for spec in (*specs, *teachers, *students):
        assert Recipe.of(spec).model == "resnet32"
    trial, own = (300, 500) if dataset == "cifar10-lt" else (400, 400)
    assert {Recipe.of(spec).epochs for spec in specs} == {own}
    assert {Recipe.of(spec).epochs for spec in teachers} == {trial}
    assert {Recipe.of(spec).epochs for spec in students} == {2 * trial}


@pytest.mark.parametrize("dataset", ["cifar10-lt", "cifar100-lt"])
def test_teachers_differ_in_more_than_their_seeds(dataset):
    recipes = [Recipe.of(spec) for spec in Setting(dataset).teachers()]
    assert len(set(recipes)) == len(recipes)


@pytest.mark.parametrize("dataset", ["cifar10-lt", "cifar100-lt"])
def test_the_ablation_changes_one_ingredient_at_a_time(dataset):
    """Against plain or strong, nothing but the ingredient's own values differs."""
    plan = Setting(dataset).ablation
    kinds = {kind.name: kind for kind in ablation(dataset)}
    bases = {"plain": plan.spec(kinds["plain"], 0), "strong": plan.spec(STRONG, 0)}
    of_plain = Recipe.of(bases["plain"])
    assert all(getattr(of_plain, key) == value for key, value in OFF.items())
    seen = Counter()
    for name, kind in kinds.items():
        base, _, ingredient = name.partition(" + " if " + " in name else " − ")
        if not ingredient or ingredient == "logit adjustment":
            continue
        mine, theirs = Recipe.of(plan.spec(kind, 0)), Recipe.of(bases[base])
        changed = {key for key in OFF if getattr(mine, key) != getattr(theirs, key)}
        assert changed
        assert changed <= set(INGREDIENTS[ingredient])
        seen[base] += 1
    assert seen == {"plain": len(INGREDIENTS), "strong": len(INGREDIENTS)}
    assert plan.spec(kinds["strong − logit adjustment"], 0).method.name == "softmax"


def test_the_ablation_has_its_own_epochs():
    setting = Setting("cifar100-lt")
    kinds = [*setting.ablated(), *setting.ablated_students()]
    plans = [setting.ablation if "student" not in kind.name else setting.student for kind in kinds]
    for plan, kind in zip(plans, kinds, strict=True):
        assert Recipe.of(plan.spec(kind, 0)).epochs == ABLATION_EPOCHS
    assert {"strong", "student", "plain"} <= {kind.name for kind in kinds}
    small = Setting("cifar100-lt", overrides={"epochs": 2})
    assert {kind.overrides["epochs"] for kind in small.ablated()} == {2}


@pytest.mark.parametrize("dataset", ["cifar10-lt", "cifar100-lt"])
def test_each_part_of_strong_is_taken_away_in_the_first_trials_epochs(dataset):
    """Nothing else differs from `strong` in these; a part is what is on in it."""
    setting = Setting(dataset)
    base = setting.strong.spec(setting.trial_strong, 1)
    assert Recipe.of(base).epochs == TRIAL_EPOCHS[dataset]
    recipe = vars(Recipe.of(setting.strong.spec(STRONG, 1)))
    assert {**vars(Recipe.of(base)), "epochs": 0} == {**recipe, "epochs": 0}
    values, on = Recipe.of(base), set()
    for kind in setting.removed():
        mine = setting.ablation.spec(kind, 1)
        theirs = Recipe.of(mine)
        changed = {key for key, value in vars(values).items() if getattr(theirs, key) != value}
        if kind.name.endswith("logit adjustment"):
            assert (mine.method.name, changed) == ("softmax", set())
            continue
        assert mine.method == base.method
        assert all(getattr(theirs, key) == OFF[key] for key in changed)
        on |= changed
    assert on == {key for key in OFF if getattr(values, key) != OFF[key]}
    assert len(removal(dataset)) == 1 + len(on)


def test_the_parts_are_taken_away_without_any_teacher(tmp_path):
    part = small_run(tmp_path, stages=["removal"]).part("cifar10-lt")
    assert part.trial_strong.is_whole  # what they are compared to
    assert [line.name for line in part.removal] == [kind.name for kind in removal("cifar10-lt")]
    assert all(line.is_whole for line in part.removal)
    named = {one.name for line in [part.trial_strong, *part.removal] for one in line.records}
    assert {run.name for run in find_runs(tmp_path / "runs")} == named
    assert named == {one.name for one in part.records}


@pytest.mark.parametrize("dataset", ["cifar10-lt", "cifar100-lt"])
def test_students_are_changed_one_at_a_time_too(dataset):
    """One value, or the method and nothing else."""
    setting = Setting(dataset)
    base, seen = setting.student.spec(STUDENT, 0), set()
    for kind in student_ablation(dataset):
        mine = setting.student.spec(kind, 0)
        values, own = (vars(Recipe.of(spec)) for spec in (base, mine))
        changed = {key for key, value in values.items() if own[key] != value}
        changed |= {"method"} if mine.method != base.method else set()
        assert len(changed) == 1, kind.name
        seen |= changed
        assert Recipe.of(mine).image_seed == 0
    assert {"method", "mix_partner", "cutmix", "sam_rho", "distill_weight"} < seen


def test_what_is_trained_has_whole_records():
    study = Study.of(
        records.read_all(trained_root() / "kept"), seeds=1, overrides=OVERRIDES, ratios=[100.0]
    )
    part = study.part("cifar10-lt")
    assert part.missing() == []
    assert [line.name for line in part.lines] == ["strong", "ensemble of 5 teachers", DISTILLED]
    for one in part.records:
        assert one.data_of(DEV) == small_data().dev.fingerprint
        assert one.data_of(TEST) == small_data().test.fingerprint
        assert one.again is not None
        assert one.data == small_data().train.fingerprint
    student = part.distilled.records[0]
    teachers = sorted(line.records[0].name for line in part.teachers)
    assert names_of(student.spec) == tuple(teachers)


def test_the_ensemble_is_the_mean_of_the_teachers():
    runs = {run.name: run for run in find_runs(trained_root() / "runs")}
    (together,) = [run for run in runs.values() if run.spec.method.name == "ensemble"]
    for split in (DEV, TEST):
        each = [runs[name].logits(split).logits for name in together.spec.settings["runs"]]
        mean = np.mean(np.asarray(each, np.float64), axis=0)
        np.testing.assert_allclose(together.logits(split).logits, mean, rtol=1e-5, atol=1e-6)


def parts_of(specs, tmp_path, monkeypatch, *, together):
    """The parts that runs of an empty folder of records are trained in."""
    parts = []
    trainer = StrongTrainer(load=None, runs=tmp_path, folder=tmp_path, together=together)
    monkeypatch.setattr(trainer, "_part", lambda plan, some: parts.append(some))
    trainer._train(Setting("cifar100-lt").ablation, specs)
    assert Counter(spec.folder for part in parts for spec in part) == Counter(
        spec.folder for spec in specs
    )
    return parts


def teams_of(part):
    return Counter(Recipe.of(spec).team_values for spec in part)


def test_what_steps_as_one_trains_in_one_part(tmp_path, monkeypatch):
    setting = Setting("cifar100-lt")
    wanted = setting.ablation.specs(setting.ablated())
    parts = parts_of(wanted, tmp_path, monkeypatch, together=32)
    assert len(parts) == 2
    teams = [teams_of(part) for part in parts]
    assert not set(teams[0]) & set(teams[1])
    assert [max(part.values()) for part in teams] == [21, 24]  # without SAM, and with it
    small = parts_of(wanted, tmp_path, monkeypatch, together=10)
    assert max(len(part) for part in small) <= 10


def test_strong_and_all_teachers_train_in_one_part(tmp_path, monkeypatch):
    """SAM's two passes apart from the others, and another head by itself."""
    setting = Setting("cifar100-lt")
    specs = setting.strong.specs([STRONG]) + setting.teachers()
    specs = list({spec.folder: spec for spec in specs}.values())
    (part,) = parts_of(specs, tmp_path, monkeypatch, together=32)
    assert sorted(teams_of(part).values()) == [1, 4, 6]


def test_networks_of_another_design_train_in_a_part_of_their_own(tmp_path, monkeypatch):
    """A run's seconds are its share of its part's, which holds among equals only."""
    setting = Setting("cifar100-lt")
    specs = [*setting.teachers(), *setting.more_teachers().values()]
    parts = parts_of(specs, tmp_path, monkeypatch, together=32)
    designs = [{spec.model.name for spec in part} for part in parts]
    assert designs == [{"resnet32"}, {"resnet32x4"}]


@pytest.mark.parametrize(("dataset", "more"), [("cifar10-lt", 5 + 3), ("cifar100-lt", 4)])
def test_more_teachers_are_others(dataset, more):
    """On CIFAR-10-LT every run of strong, and wide networks."""
    setting = Setting(dataset)
    named = setting.more_teachers()
    folders = [spec.folder for spec in (*setting.teachers(), *named.values())]
    small = Setting(dataset, seeds=6, overrides={"model": "resnet20", "epochs": 2})
    trial = [spec.folder for spec in (*small.teachers(), *small.more_teachers().values())]
    assert len(set(trial)) == len(trial)
    for name, spec in named.items():
        assert (spec.model.name == "resnet32x4") == name.startswith("wide"), name
    assert len(set(folders)) == len(folders)
    assert len(folders) == len(TEACHERS[dataset]) + more
    kinds = [kind for kind in (*TEACHERS[dataset], *MORE_TEACHERS[dataset]) if kind is not STRONG]
    assert len({Recipe.of(setting.strong.spec(kind, 0)) for kind in kinds}) == len(kinds)
    assert len({kind.name for kind in kinds}) == len(kinds)


def test_a_gpu_begins_nothing_in_its_last_seconds(tmp_path):
    options = {"load": None, "runs": tmp_path, "folder": tmp_path}
    for device, left, begins in (
        ("cuda", 20.0, False),
        ("cuda", 120.0, True),
        ("cpu", 20.0, True),
        ("cpu", -1.0, False),
    ):
        one = StrongTrainer(**options, device=device, deadline=time.monotonic() + left)
        assert one._is_time_to_begin() == begins, (device, left)
    assert StrongTrainer(**options, device="cuda")._is_time_to_begin()


def test_processes_begin_alike_by_the_first_ones_clock(tmp_path):
    """Theirs began at other times; one that ends alone would leave the others waiting for it."""
    asked = []

    class Others:
        def __init__(self, first):
            self.first = first

        def tell(self, mine):
            asked.append(mine)
            return self.first

    options = {"load": None, "runs": tmp_path, "folder": tmp_path, "device": "cuda"}
    for left, mine in ((20.0, True), (120.0, False)):
        for first in (False, True):
            deadline = time.monotonic() + left
            one = StrongTrainer(**options, deadline=deadline, world=Others(first))
            assert one._is_time_to_begin() == (not first)
            assert asked.pop() == mine
            assert not asked


@pytest.fixture
def trained_before(monkeypatch):
    """A study's root, after which nothing may be trained."""
    root = trained_root()
    monkeypatch.setattr(engine, "train_cohort", lambda *_, **__: pytest.fail("trained again"))
    return root


def test_nothing_is_trained_twice(trained_before):
    study = small_run(trained_before, load=lambda *_: pytest.fail("read data"))
    assert not study.stopped


def test_records_are_enough_without_run_folders(tmp_path, trained_before):
    study = small_run(tmp_path, folder=trained_before / "kept")
    assert study.part("cifar10-lt").missing() == []


def test_records_of_another_precision_are_enough_too(tmp_path, trained_before):
    """Those of a GPU are in bfloat16; on a CPU nothing has to be trained again for that."""
    study = small_run(tmp_path, folder=trained_before / "kept", precision="bfloat16")
    assert study.part("cifar10-lt").missing() == []


def test_a_lost_student_takes_its_teachers_from_their_folders(tmp_path):
    """And a teacher that was lost with it is trained again."""
    shutil.copytree(trained_root(), tmp_path / "here")
    root = tmp_path / "here"
    runs = find_runs(root / "runs")
    (student,) = [run for run in runs if names_of(run.spec)]
    teacher = names_of(student.spec)[0]
    before = {name: np.array(value) for name, value in student.model().items()}
    (root / "kept" / f"{student.name}.json").unlink()
    for name in (student.name, teacher):
        shutil.rmtree(root / "runs" / name)
    study = small_run(root)
    assert study.part("cifar10-lt").missing() == []
    again = Run.open(root / "runs" / student.name)
    for name, value in again.model().items():
        np.testing.assert_array_equal(value, before[name])


def test_teachers_need_nothing_but_records_and_weights(tmp_path, monkeypatch):
    """What travels to another machine: an archive without logits, and the records."""
    (student,) = [run for run in find_runs(trained_root() / "runs") if names_of(run.spec)]
    folders = [trained_root() / "runs" / name for name in names_of(student.spec)]
    archive = pack(folders, tmp_path / "teachers.tgz", weights=True, logits=False)
    root = tmp_path / "there"
    shutil.copytree(trained_root() / "kept", root / "kept")
    (root / "kept" / f"{student.name}.json").unlink()
    unpack(archive, root / "runs")
    whole, trained = engine.train_cohort, []

    def watched(specs, *arguments, **options):
        trained.extend(specs)
        return whole(specs, *arguments, **options)

    monkeypatch.setattr(engine, "train_cohort", watched)
    assert small_run(root).part("cifar10-lt").missing() == []
    assert [spec.folder.as_posix() for spec in trained] == [student.name]
    again = Run.open(root / "runs" / student.name)
    for name, value in again.model().items():
        np.testing.assert_array_equal(value, student.model()[name])


def test_teachers_without_logits_are_judged_where_their_mean_is_needed(tmp_path):
    """It has no record; one of them was not in the archive and is trained again."""
    runs = find_runs(trained_root() / "runs")
    (student,) = [run for run in runs if names_of(run.spec)]
    gone = {student.name, names_of(student.spec)[0]}
    some = [run for run in runs if run.name not in gone]
    archive = pack(some, tmp_path / "runs.tgz", weights=True, logits=False)
    root = tmp_path / "there"
    shutil.copytree(trained_root() / "kept", root / "kept")
    (root / "kept" / f"{student.name}.json").unlink()
    (mean,) = (root / "kept").rglob("ensemble-*.json")
    before = records.read(mean)
    mean.unlink()
    unpack(archive, root / "runs")
    assert small_run(root).part("cifar10-lt").missing() == []
    assert records.read(mean).document["splits"] == before.document["splits"]


def without_weights(root, tmp_path):
    """A fresh clone: records and no run folders; the records' bytes by their paths."""
    shutil.copytree(root / "kept", tmp_path / "kept")
    return {path: path.read_bytes() for path in (tmp_path / "kept").rglob("*.json")}


@pytest.mark.parametrize(
    ("stage", "again"), [("students", 5), ("more-teachers", 5 + 1), ("second-generation", 5 + 1)]
)
def test_teachers_that_are_trained_again_keep_their_records(
    tmp_path, monkeypatch, caplog, stage, again
):
    """They teach and are not judged again, nor is their mean.

    Students of more teachers listen to the run of strong, too, and a second generation to the
    first student.
    """
    before = without_weights(trained_root(), tmp_path)
    kept = {one.name: one for one in records.read_all(tmp_path / "kept")}
    (student,) = [name for name, one in kept.items() if names_of(one.spec)]
    if stage == "students":
        path = tmp_path / "kept" / f"{student}.json"
        del before[path]
        path.unlink()
    whole, judged = engine.evaluate, []

    def watched(run, *arguments, split, **options):
        judged.extend([] if split in run.splits else [run.name])  # what is there, stays
        return whole(run, *arguments, split=split, **options)

    monkeypatch.setattr(engine, "evaluate", watched)
    for path in before:  # as if of another training, so that writing one again would show
        before[path] = before[path].replace(b'"seconds": ', b'"seconds": 9')
        path.write_bytes(before[path])
    small_run(tmp_path, stages=[stage])
    assert {path: path.read_bytes() for path in before} == before
    now = {one.name: one for one in records.read_all(tmp_path / "kept")}
    new = set(now) - set(kept)
    # A new mean of more teachers needs the logits of each.
    means = {name for name in new if now[name].spec.method.name == "ensemble"}
    members = {name for mean in means for name in now[mean].spec.settings["runs"]}
    assert bool(means) == (stage == "more-teachers")
    assert set(judged) == ((new - means) | members or {student})
    assert max(Counter(judged).values()) == 2  # the development set and the test set
    said = [one.getMessage() for one in caplog.records]
    (line,) = [text for text in said if "again, to teach" in text]
    assert f"training {again} runs again" in line
    assert f"longtail runs unpack ARCHIVE --root {tmp_path / 'runs'}" in line
    assert "\n" not in line


def test_a_mean_without_a_record_leaves_those_of_its_members(tmp_path, caplog):
    """They have to be trained and judged again for it, but what is known of them stays."""
    before = without_weights(trained_root(), tmp_path)
    (mean,) = [path for path in before if path.name.startswith("ensemble-")]
    found = records.read(mean)
    mean.unlink()
    del before[mean]
    small_run(tmp_path, stages=["teachers"])
    assert {path: path.read_bytes() for path in before} == before
    assert records.read(mean).document["splits"] == found.document["splits"]
    assert sum("training 5 runs again" in one.getMessage() for one in caplog.records) == 1


def test_nothing_is_said_where_all_weights_are_there(tmp_path, caplog):
    root = shutil.copytree(trained_root(), tmp_path / "here")
    (student,) = [run for run in find_runs(root / "runs") if names_of(run.spec)]
    (root / "kept" / f"{student.name}.json").unlink()
    small_run(root)
    assert not [one for one in caplog.records if "again" in one.getMessage()]


def test_it_stops_when_time_is_up_and_goes_on(tmp_path, monkeypatch):
    root = shutil.copytree(trained_root(), tmp_path / "here")
    (student,) = [run for run in find_runs(root / "runs") if names_of(run.spec)]
    before = {name: np.array(value) for name, value in student.model().items()}
    (root / "kept" / f"{student.name}.json").unlink()
    shutil.rmtree(student.folder)
    clock = [0.0]
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda real=time.monotonic: real() + clock[0])
        asked = StrongTrainer._is_over

        def late(self, **options):
            # Not yet when it is asked before training begins, then after the first epoch.
            over = asked(self, **options)
            clock[0] += 61.0
            return over

        patch.setattr(StrongTrainer, "_is_over", late)
        study = small_run(root, minutes=1.0)
    assert study.stopped
    assert study.part("cifar10-lt").missing() == [f"{DISTILLED}, seed 0"]
    assert not Run.open(student.folder, unfinished=True).finished
    whole = small_run(root)
    assert not whole.stopped
    assert whole.part("cifar10-lt").missing() == []
    for name, value in Run.open(student.folder).model().items():
        np.testing.assert_array_equal(value, before[name])


def test_students_as_they_were_before_can_be_trained_by_themselves(tmp_path):
    root = tmp_path / "small"
    shutil.copytree(trained_root(), root)
    part = small_run(root, stages=["earlier"]).part("cifar10-lt")
    assert part.shorter.name == f"{DISTILLED}, half the epochs"
    assert part.first_students.name == f"{DISTILLED}, first trial's settings"
    for line in (part.shorter, part.first_students):
        assert 2 * line.epochs == OVERRIDES["epochs"] == part.distilled.epochs
        assert names_of(line.records[0].spec) == names_of(part.distilled.records[0].spec)
    assert part.lines[-3:] == [part.first_students, part.shorter, part.distilled]
    first = part.first_students.records[0].spec
    assert first.method.name == "logit-adjusted"
    values = first.recipe.values
    assert (values["distill_temperature"], values["cutout"]) == (2.0, 16)
    assert (values["mix_partner"], values["distill_adjusted"]) == ("minority", True)


def test_further_students_have_more_teachers_or_students_for_teachers(tmp_path):
    root = shutil.copytree(trained_root(), tmp_path / "here")
    before = small_run(root).part("cifar10-lt")
    assert before.further_teachers == []  # though the run of strong, which is one, is there
    part = small_run(root, stages=["more-teachers", "second-generation"]).part("cifar10-lt")
    more, second = part.further
    strong_runs = {one.name for one in part.strong.records}
    listed = set(names_of(more.records[0].spec))
    assert strong_runs < listed
    assert listed > set(names_of(part.distilled.records[0].spec))
    assert len(listed) == len(part.teachers) + len(MORE_TEACHERS["cifar10-lt"])
    first = part.distilled.records[0]
    assert set(names_of(second.records[0].spec)) == {*names_of(first.spec), first.name}
    assert second.shared_seconds == pytest.approx(part.distilled.shared_seconds + first.seconds)
    assert [line.name for line in part.lines][-2:] == [line.name for line in part.further]
    small, large = part.ensembles
    assert small == part.ensemble
    assert set(large.records[0].spec.settings["runs"]) == listed
    assert large.records[0].seconds == pytest.approx(more.shared_seconds, abs=0.1)  # rounded
    assert len(part.further_teachers) == len(listed) - len(part.teachers)
    assert {line.records[0].name for line in part.further_teachers} < listed
    assert len({line.name for line in part.lines}) == len(part.lines)


@pytest.mark.parametrize(
    ("dataset", "epochs"), [("cifar10-lt", (300, 500)), ("cifar100-lt", (400, 800))]
)
def test_longer_teachers_are_the_same_ways_in_more_epochs(dataset, epochs):
    setting = Setting(dataset)
    pairs = zip(setting.teachers(), setting.longer_teachers(), strict=True)
    for short, longer in pairs:
        assert (Recipe.of(short).epochs, Recipe.of(longer).epochs) == epochs
        assert replace(Recipe.of(short), epochs=epochs[1]) == Recipe.of(longer)
        assert short.seed == longer.seed
    assert Setting(dataset, overrides={"epochs": 2}).longer_teachers() == []


def test_students_of_longer_teachers_listen_to_these_alone(tmp_path, monkeypatch):
    """In small, where a trial's epochs are the recipe's: half of them for the teachers."""
    half = OVERRIDES["epochs"] // 2

    def shorter(self, kind):
        return replace(kind, overrides={**kind.overrides, "epochs": half})

    monkeypatch.setattr(Setting, "_in_trial", shorter)
    stages = ["longer-teachers", "longer-students"]
    part = small_run(tmp_path, stages=stages).part("cifar10-lt")
    assert [line.name for line in part.longer_teachers] == [
        f"{kind.name}, longer" for kind in TEACHERS["cifar10-lt"]
    ]
    assert {line.epochs for line in part.longer_teachers} == {2 * half}
    students, longer = part.further
    assert students.name == f"{DISTILLED}, longer teachers"
    assert longer.name == f"{DISTILLED}, longer teachers and students"
    assert (students.epochs, longer.epochs) == (2 * half, 4 * half)
    members = {line.records[0].name for line in part.longer_teachers}
    for line in part.further:
        assert set(names_of(line.records[0].spec)) == members
    (mean,) = part.ensembles
    assert mean.name == "ensemble of 5 longer teachers"
    assert set(mean.records[0].spec.settings["runs"]) == members
    seconds = sum(line.records[0].seconds for line in part.longer_teachers)
    assert students.shared_seconds == pytest.approx(seconds)
    # Nothing else was trained: neither the teachers of the recipe's students nor these.
    assert part.teachers == []
    assert part.distilled is None
    assert {one.name for one in part.records} == {
        *members, students.records[0].name, longer.records[0].name, mean.records[0].name,
    }  # fmt: skip


def test_at_other_ratios_strong_alone_is_trained_as_before(tmp_path, monkeypatch):
    """There are no other students there than the recipe's, hence no teachers either."""
    monkeypatch.setattr(
        Setting, "_in_trial", lambda _, k: replace(k, overrides={**k.overrides, "epochs": 1})
    )
    (part,) = small_run(tmp_path, stages=["earlier"], ratios=[10.0]).parts
    assert part.records == list(part.earlier_strong.records)
    assert len(find_runs(tmp_path / "runs")) == 1


def test_another_ratio_has_its_own_data_and_records(tmp_path):
    study = small_run(tmp_path, stages=["strong"], ratios=[10.0])
    (part,) = study.parts
    assert part.setting.ratio == 10.0
    assert part.strong.records[0].data == small_data(10.0).train.fingerprint


def test_data_without_a_development_set_are_refused(tmp_path):
    data = small_data()
    bare = LongTailedData(data.train, data.test, data.spec)
    with pytest.raises(InputError, match="freeze cifar10-lt --ratio 100 --dev 500 --out FILE"):
        small_run(tmp_path, load=lambda *_: bare, stages=["strong"])


def test_bad_settings_are_refused():
    with pytest.raises(InputError, match="`rho` must be one of 100, 50, 10; got 7"):
        Setting("cifar10-lt", 7.0)
    with pytest.raises(InputError, match="dataset"):
        Setting("digits-lt")
    with pytest.raises(InputError, match="stage"):
        small_run(trained_root(), stages=["student"])


@pytest.fixture(scope="module")
def made():
    setting = Setting("cifar100-lt")
    return setting, made_up_setting(setting)


def test_lines_of_a_study(made):
    _, found = made
    part = Study.of(found).part("cifar100-lt")
    assert part.missing() == []
    assert len(part.strong.records) == 5
    assert len(part.distilled.records) == 3
    assert part.ensemble.minutes == pytest.approx(sum(1.0 + n for n in range(7)))
    assert part.distilled.minutes == pytest.approx(3.0 + part.ensemble.minutes)
    wrong = [one.document["splits"]["test"]["wrong"] for one in part.strong.records]
    np.testing.assert_allclose(part.strong.errors, [sum(each) / 100 / 100 for each in wrong])
    assert set(part.strong.groups) == {"many", "medium", "few"}
    names = [line.name for line in part.ablation]
    assert len(names) == len(set(names))
    assert {"plain", "strong", "student"} <= set(names)
    assert part.minutes == pytest.approx(
        sum(one.seconds for one in found if one.spec.method.name != "ensemble") / 60
    )


def test_a_mean_costs_what_its_members_records_say(made):
    """Its own record tells of folders, whose runs may have been trained again, alone."""
    _, found = made
    before = Study.of(found).part("cifar100-lt")
    together = before.ensemble.records[0]
    slow = Record(together.spec, {**together.document, "seconds": 1e6})
    others = [one for one in found if one.name != together.name]
    after = Study.of([*others, slow]).part("cifar100-lt")
    assert after.ensemble.records[0].seconds == 1e6
    assert after.ensemble.minutes == before.ensemble.minutes > 0
    assert after.minutes == before.minutes


def test_fewer_records_are_said(made):
    _, found = made
    kept = [one for one in found if one.spec.seed < 2 or one.spec.recipe.name != "strong"]
    part = Study.of(kept).part("cifar100-lt")
    assert [f"strong, seed {seed}" for seed in (2, 3, 4)] == part.missing()[:3]
    alone = [one for one in found if not names_of(one.spec)]
    students = [f"{DISTILLED}, seed {seed}" for seed in range(3)]  # one entry for each run
    assert Study.of(alone).part("cifar100-lt").missing()[-3:] == students


def test_precision_does_not_hide_a_record(made):
    setting, found = made
    shelf = Shelf(found)
    assert shelf.get(setting.strong.spec(STRONG, 0)).precision == "bfloat16"


def test_without_records_the_commands_are_named():
    study = Study.of([])
    with pytest.raises(InputError, match="longtail reproduce strong --dataset cifar10-lt"):
        study.require_parts()
    assert len(study.absent) == 6


def test_the_published_rows_are_the_ones_to_beat():
    best = {d: min(one.error for one in PUBLISHED if one.dataset == d) for d in TEACHERS}
    assert best == {"cifar10-lt": 13.6, "cifar100-lt": 45.8}
    for name, goals in strong.GOALS.items():
        assert set(goals) == set(TEACHERS), name
    assert all(strong.GOALS[DISTILLED][d] < error for d, error in best.items())
