"""How the study of `strong` reads: rows, captions, files; the same records give the same bytes."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from longtail.experiments import selection
from longtail.experiments.records import Record
from longtail.experiments.strong import Study
from longtail.experiments.strong_part import DISTILLED
from longtail.experiments.strong_runs import Setting
from longtail.report import strong, strong_ablation
from longtail.report.compare import mean_interval
from strong_factory import made_up, made_up_setting, precise

ROOT = Path(__file__).parents[2]


def cell(values):
    return f"{100 * np.mean(values):.2f} ± {100 * np.std(values, ddof=1):.2f}"


@pytest.fixture(scope="module")
def study():
    settings = [Setting("cifar10-lt"), Setting("cifar100-lt"), Setting("cifar100-lt", 10.0)]
    return Study.of([one for setting in settings for one in made_up_setting(setting)])


def rows(table):
    return {row[0]: row[1:] for row in table.rows}


def test_ours_stand_beside_the_published_ones(study):
    part = study.part("cifar100-lt")
    table = strong.results_table(part)
    found = rows(table)
    assert list(found) == [
        "BCL, published",
        "PaCo, published",
        "NCL, published",
        "ProCo, published",
        "strong",
        "ensemble of 7 teachers",
        DISTILLED,
    ]
    assert found["ProCo, published"][:2] == ("400", "45.8")
    epochs, error, again, *groups = found["strong"][:-1]
    assert (epochs, error) == ("400", cell(part.strong.errors))
    assert again == cell(part.strong.again)
    prior = part.strong.records[0].prior.groups()
    for text, classes in zip(groups, prior.values(), strict=True):
        assert text == f"{100 * part.strong.per_class[:, classes].mean():.1f}"
    assert found[DISTILLED][-1] == "31"  # 3 of its own, 28 of its teachers
    assert "Not trained yet" not in table.note
    assert "NVIDIA H200" in table.note


def test_further_teachers_show_once_they_teach():
    setting = Setting("cifar100-lt")
    there = made_up_setting(setting, with_ablation=False)
    like = {"classes": 100, "data": there[0].data}
    more = [made_up(precise(spec), **like) for spec in setting.more_teachers().values()]
    names = [precise(spec).folder.as_posix() for spec in setting.teachers()]
    together = setting.ensemble([*names, *(one.name for one in more)])
    few = Study.of([*there, *more[1:]]).part("cifar100-lt")
    assert not [name for name in rows(strong.teachers_table(few)) if name.startswith("wide")]
    assert not set(more) & set(few.records)
    part = Study.of([*there, *more, made_up(together, **like)]).part("cifar100-lt")
    table = strong.teachers_table(part)
    wide = list(setting.more_teachers())
    assert list(rows(table))[-6:] == [*wide, "ensemble of 7 teachers", "ensemble of 11 teachers"]
    assert "four times as wide, 7.4 million parameters" in table.note
    assert "ensemble of 11 teachers" in rows(strong.results_table(part))


def test_goals_say_yes_and_no(study):
    found = rows(strong.goals_table(study.part("cifar100-lt")))
    assert found["strong"][0] == "47.5"
    assert {found["strong"][2], found[DISTILLED][2]} == {"yes"}
    high = Study.of(made_up_setting(Setting("cifar100-lt"), level=0.6))
    assert rows(strong.goals_table(high.part("cifar100-lt")))["strong"][2] == "no"


def test_goals_are_judged_with_and_without_the_development_set():
    """Half a point above the goal, and a point less at the tau of the development set."""
    part = Study.of(made_up_setting(Setting("cifar100-lt"), level=0.47)).part("cifar100-lt")
    goal, error, missed, again, reached = rows(strong.goals_table(part))["strong"]
    assert error == f"{100 * part.strong.errors.mean():.2f}"
    assert again == f"{100 * part.strong.again.mean():.2f}"
    assert float(again) <= float(goal) < float(error)
    assert (missed, reached) == ("no", "yes")


def test_the_further_goal_is_judged_by_the_best_students():
    part = Study.of(made_up_setting(Setting("cifar100-lt"), level=0.47)).part("cifar100-lt")
    goal, error, _, again, _ = rows(strong.goals_table(part))[f"{DISTILLED}, further goal"]
    assert goal == "43.0"
    assert error == f"{100 * part.distilled.errors.mean():.2f}"
    assert again == f"{100 * part.distilled.again.mean():.2f}"


def test_the_further_goal_is_held_against_whom_the_development_set_prefers():
    """Whatever the test set says: its errors are not what students are picked by."""
    setting = Setting("cifar100-lt")
    found = made_up_setting(setting, with_ablation=False, with_longer=True)
    part = Study.of(found).part("cifar100-lt")
    (longer,) = part.further
    for dev_error, name in ((0.01, longer.name), (0.99, DISTILLED)):
        mine = {
            one.name: Record(
                one.spec,
                {**one.document, "again": {**one.document["again"], "dev_error": dev_error}},
            )
            for one in longer.records
        }
        changed = Study.of(mine.get(one.name, one) for one in found).part("cifar100-lt")
        assert changed.further[0].again.mean() < changed.distilled.again.mean()
        goals = [row for row in rows(strong.goals_table(changed)) if row.endswith("further goal")]
        assert goals == [f"{name}, further goal"]


def test_what_many_medium_and_few_are_is_said(study):
    note = strong.results_table(study.part("cifar10-lt")).note
    groups = study.part("cifar10-lt").records[0].prior.groups()
    sizes = ", ".join(str(len(classes)) for classes in groups.values())
    assert f"over 100, 20 to 100 and under 20 training images, of which there are {sizes}." in note


def test_the_note_tells_which_sam_is_added():
    for dataset, said in (("cifar10-lt", "ρ = 0.1,"), ("cifar100-lt", "ρ = 0.1 (strong's own is")):
        part = Study.of(made_up_setting(Setting(dataset))).part(dataset)
        assert said in strong_ablation.ablation_table(part).note


def test_the_ablation_is_paired_by_seed(study):
    part = study.part("cifar10-lt")
    table = strong_ablation.ablation_table(part)
    found = rows(table)
    lines = {line.name: line for line in part.ablation}
    name = "strong − Cutout"
    pairs = lines[name].errors - lines["strong"].errors
    assert len(pairs) == 3
    assert "Each for 100 epochs." in table.note
    interval = mean_interval(pairs)
    half = 100 * (interval.high - interval.mean)
    wanted = f"{100 * interval.mean:+.2f} ± {half:.2f}".replace("-", "−")
    assert found[name][:2] == (f"{100 * lines[name].errors.mean():.2f}", wanted)
    assert found["plain"][1] == found["strong"][1] == found["student"][1] == ""
    assert found["student, with SAM"][1] != ""


def test_the_ablation_shows_what_tau_alone_would_do():
    """Half of a gain that is there as it is, and all of another, are gone with τ again."""
    found = made_up_setting(Setting("cifar10-lt"))
    part = Study.of(found).part("cifar10-lt")
    base = next(line for line in part.ablation if line.name == "plain")
    level, gains = float(base.errors.mean()), {"plain + SAM": 0.025, "plain + Cutout": 0.05}
    names = {o.name: line.name for line in part.ablation for o in line.records}
    changed = []
    for one in found:
        kind = names.get(one.name)
        if kind == "plain":  # τ is worth four points to it, and to no other
            one = made_up(one.spec, level=level, gain=0.04 + 0.01 * (one.spec.seed - 1))
        elif kind in gains:
            one = made_up(one.spec, level=level - 2 * gains[kind], gain=0.0)
        changed.append(replace(one, document={**one.document, "data": found[0].data}))
    part = Study.of(changed).part("cifar10-lt")
    cells = rows(strong_ablation.ablation_table(part))
    lines = {line.name: line for line in part.ablation}
    assert cells["plain"][1] == cells["plain"][3] == ""
    for name in gains:
        interval = mean_interval(lines[name].again - lines["plain"].again)
        half = 100 * (interval.high - interval.mean)
        wanted = f"{100 * interval.mean:+.2f} ± {half:.2f}".replace("-", "−")
        assert cells[name][2:4] == (f"{100 * lines[name].again.mean():.2f}", wanted)
    told = strong_ablation.verdicts(part.ablation).split("With τ again, otherwise than that:")
    assert re.search(r"Cutout.*: lower the test error", told[0])
    assert "plain + Cutout" not in told[1]
    assert re.search(r"plain \+ SAM.*: change the test error by no more than chance", told[1])


def test_what_strong_owes_to_its_parts_is_paired_by_seed(study):
    """Against the seeds of `strong` in the same epochs that both have: three of its five."""
    part = study.part("cifar10-lt")
    table = strong_ablation.removal_table(part)
    found, lines = rows(table), {line.name: line for line in part.removal}
    assert list(found) == ["strong", *lines]
    assert "Each for 300 epochs." in table.note
    assert part.strong.epochs == 500
    assert "so far" not in table.note
    name = "strong − Cutout"
    pairs = lines[name].errors - part.trial_strong.errors[:3]
    interval = mean_interval(pairs)
    half = 100 * (interval.high - interval.mean)
    assert found[name][1] == f"{100 * interval.mean:+.2f} ± {half:.2f}".replace("-", "−")
    assert found["strong"][:4] == (
        f"{100 * part.trial_strong.errors.mean():.2f}",
        "",
        f"{100 * part.trial_strong.again.mean():.2f}",
        "",
    )


def test_strong_in_the_first_trials_epochs_has_its_own_rows_where_the_recipe_has_others(study):
    name = "strong, first trial's epochs"
    ten, hundred = study.part("cifar10-lt"), study.part("cifar100-lt")
    found = rows(strong.results_table(ten))
    assert found[name][:2] == ("300", cell(ten.trial_strong.errors))
    assert found["strong"][:2] == ("500", cell(ten.strong.errors))
    assert found[name][1] != found["strong"][1]
    assert list(rows(strong.goals_table(ten)))[:2] == [name, "strong"]
    assert name not in rows(strong.results_table(hundred))
    assert name not in rows(strong.goals_table(hundred))
    table = strong.ratios_table(study)
    means = [f"{100 * line.errors.mean():.2f}" for line in (ten.trial_strong, hundred.strong)]
    assert [rows(table)[name][column] for column in (0, 3)] == means
    assert "First trial's epochs: 300 instead of 500 on CIFAR-10-LT." in table.note
    assert "5 runs of strong, first trial's epochs (C10, 100)" in table.note
    alone = [Setting("cifar100-lt", ratio) for ratio in (100.0, 10.0)]
    others = [one for setting in alone for one in made_up_setting(setting, with_ablation=False)]
    assert name not in rows(strong.ratios_table(Study.of(others)))


def test_tables_of_parts_name_their_ratio():
    part = Study.of(made_up_setting(Setting("cifar10-lt", 50.0)), ratios=[50.0]).parts[0]
    for table in (strong_ablation.ablation_table(part), strong_ablation.removal_table(part)):
        assert table.title.endswith("CIFAR-10-LT, imbalance ratio 50")


def test_one_run_that_is_a_teacher_makes_no_table_of_parts():
    found = made_up_setting(Setting("cifar10-lt"), with_ablation=False)
    part = Study.of(found).part("cifar10-lt")
    assert [line.name for line in part.removal] == ["strong − SAM"]
    assert strong_ablation.removal_table(part) is None


def test_parts_that_are_half_trained_say_so():
    setting = Setting("cifar10-lt")
    whole = Study.of(made_up_setting(setting)).part("cifar10-lt")
    gone = {line.records[0].name for line in whole.removal if "Cutout" in line.name}
    kept = [one for one in whole.records if one.name not in gone]
    table = strong_ablation.removal_table(Study.of(kept).part("cifar10-lt"))
    assert " 4 of 5 rows are trained with all their seeds so far" in table.note
    assert setting.command("removal") in table.note
    assert "strong − Cutout (2 of 3)" in rows(table)


def test_that_strong_needs_long_training_is_said_from_the_records():
    """The short runs of `strong` made five points worse; and no better than the whole ones."""
    found = made_up_setting(Setting("cifar10-lt"))
    part = Study.of(found).part("cifar10-lt")
    short = {one.name for line in part.ablation if line.name == "strong" for one in line.records}
    for level, said in ((0.25, True), (0.15, False)):
        others = [one for one in found if one.name not in short]
        mine = [made_up(o.spec, level=level, data=o.data) for o in found if o.name in short]
        changed = Study.of([*others, *mine]).part("cifar10-lt")
        text = strong_ablation.short_strong(changed)
        assert (text is not None) == said
        if text is not None:
            lines = {line.name: line for line in changed.ablation}
            alone = [line for line in changed.ablation if not line.name.startswith("student")]
            assert len(alone) < len(lines)
            least = min(alone, key=lambda line: line.errors.mean())
            full, few = (100 * line.errors.mean() for line in (changed.strong, lines["strong"]))
            assert f"{few:.2f}% after these 100 epochs, {full:.2f}% after its own 500" in text
            assert f"Without teachers the least error in so few epochs has *{least.name}*" in text
            assert f"*{least.name}*, {100 * least.errors.mean():.2f}%" in text
    assert strong_ablation.short_strong(Study.of(others).part("cifar10-lt")) is None


def test_other_ratios_have_their_columns(study):
    table = strong.ratios_table(study)
    assert table.header == (
        "method", "C10, 100", "C10, 50", "C10, 10", "C100, 100", "C100, 50", "C100, 10",
    )  # fmt: skip
    found = rows(table)
    assert found["strong"][1] == "–"
    assert table.note.endswith(" – : not trained yet.")
    ten = study.part("cifar100-lt", 10.0)
    assert found["strong"][5] == f"{100 * ten.strong.errors.mean():.2f}"
    assert found[DISTILLED][5] == f"{100 * ten.distilled.errors.mean():.2f}"
    assert found[f"{DISTILLED}, τ again"][5] == f"{100 * ten.distilled.again.mean():.2f}"
    assert "5 runs of strong (C10, 100; C100, 100)" in table.note
    assert "3 runs of strong (C100, 10)" in table.note
    assert strong.ratios_table(Study.of(made_up_setting(Setting("cifar10-lt")))) is None


def test_a_ratio_alone_has_its_own_tables_and_figure(tmp_path):
    """Nothing of ratio 100 is among them: no published rows, goals or candidates."""
    fifty, chosen = Setting("cifar10-lt", 50.0), selection.read_all(ROOT / "results" / "strong")
    assert len(chosen) == 2
    study = Study.of(made_up_setting(fifty, with_ablation=False), ratios=[50.0], selections=chosen)
    results, teachers = strong.tables(study)
    assert results.title == "Balanced test error in percent, CIFAR-10-LT, imbalance ratio 50"
    assert list(rows(results)) == [
        "strong, first trial's epochs", "strong", "ensemble of 5 teachers", DISTILLED,
    ]  # fmt: skip
    assert rows(results)["strong"][1] == cell(study.part("cifar10-lt", 50.0).strong.errors)
    assert teachers.title == "The teachers, CIFAR-10-LT, imbalance ratio 50"
    assert [path.name for path in strong.write(study, tmp_path)] == list(strong.FILES)
    (axes,) = strong.draw(study).axes
    assert axes.get_title(loc="left") == "CIFAR-10-LT, imbalance ratio 50"
    assert "published" not in axes.get_legend_handles_labels()[1]


def test_a_few_ratios_are_the_only_columns():
    settings = [Setting("cifar10-lt", ratio) for ratio in (50.0, 10.0)]
    found = [one for setting in settings for one in made_up_setting(setting, with_ablation=False)]
    study = Study.of(found, datasets=["cifar10-lt"], ratios=[50.0, 10.0])
    table = strong.ratios_table(study)
    assert table.header == ("method", "C10, 50", "C10, 10")
    assert "not trained" not in table.note  # nothing is missing, so no sign stands for it


def test_an_ablation_that_is_half_trained_says_so():
    setting = Setting("cifar10-lt")
    whole = Study.of(made_up_setting(setting)).part("cifar10-lt")
    assert "so far" not in strong_ablation.ablation_table(whole).note
    names = {line.name: {one.name for one in line.records} for line in whole.ablation}
    gone = names["strong"] | names["student, with SAM"]
    gone |= {line.records[-1].name for line in whole.ablation if line.name == "plain + SAM"}
    kept = [one for one in whole.records if one.name not in gone]
    table = strong_ablation.ablation_table(Study.of(kept).part("cifar10-lt"))
    wanted = len(names)
    assert f" {wanted - 3} of {wanted} rows are trained with all their seeds so far" in table.note
    assert setting.command("ablation") in table.note
    assert rows(table)["strong − SAM"][1] == "–"  # nothing to compare it to
    assert "plain + SAM (2 of 3)" in rows(table)


def test_what_is_missing_is_said():
    setting = Setting("cifar10-lt")
    found = [one for one in made_up_setting(setting, with_ablation=False) if one.spec.seed < 2]
    part = Study.of(found).part("cifar10-lt")
    table = strong.results_table(part)
    assert "strong (2 of 5)" in rows(table)
    note = "Not trained yet: strong, seed 2; strong, seed 3; strong, seed 4; "
    assert note in table.note
    assert "longtail reproduce strong --dataset cifar10-lt" in table.note
    assert strong_ablation.ablation_table(part) is None


def test_files_are_written_and_stay_the_same(study, tmp_path):
    written = strong.write(study, tmp_path)
    assert [path.name for path in written] == list(strong.FILES)
    before = [path.read_bytes() for path in written]
    assert [path.read_bytes() for path in strong.write(study, tmp_path)] == before
    numbers = json.loads(written[0].read_text())
    assert numbers["parts"][0]["lines"][0]["seeds"] == [0, 1, 2, 3, 4]
    assert "ProCo" in written[2].read_text() or b"<svg" in before[2]


def test_the_legend_names_what_any_panel_shows():
    ten, hundred = Setting("cifar10-lt"), Setting("cifar100-lt")
    found = made_up_setting(ten, with_ablation=False) + made_up_setting(hundred)
    figure = strong.draw(Study.of(found))
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "ablation" in named  # of the second panel alone
    assert "other students" not in named
    assert len(named) == len(set(named)) == 7
    assert "τ again" in named


def test_the_published_table_says_what_is_known():
    table = strong.published_table()
    proco = next(row for row in table.rows if row[0] == "ProCo")
    assert proco[1:4] == ("CIFAR-100-LT", "45.8", "400")
    assert "keeps the best epoch" in proco[-2]
    assert "TPAMI 2024" in proco[-1]
    ddc = next(row for row in table.rows if row[0] == "DDC")
    assert (ddc[3], ddc[4], ddc[-1]) == ("–", "not confirmed", "–")


def test_one_seed_is_no_plural():
    part = Study.of(made_up_setting(Setting("cifar10-lt", seeds=1)), seeds=1).part("cifar10-lt")
    assert "in percent over 1 seed;" in strong_ablation.ablation_table(part).note
