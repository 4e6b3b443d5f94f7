"""The page "How far can it go": made from records, honest about what is not trained."""

import re
from collections import Counter
from pathlib import Path

import pytest

from longtail.experiments import records
from longtail.experiments.selection import Outcome, Selection, candidates, recipe_candidate
from longtail.experiments.strong import Study
from longtail.experiments.strong_part import DISTILLED
from longtail.experiments.strong_runs import Setting
from longtail.report import how_far
from longtail.report.tables import title_of
from strong_factory import made_up_setting

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A repository with made-up records of two settings."""
    root = tmp_path_factory.mktemp("far")
    for setting in (Setting("cifar10-lt"), Setting("cifar100-lt", 50.0)):
        for one in made_up_setting(setting):
            records.write(one, root / how_far.RECORDS)
    (root / "docs").mkdir()
    (root / "README.md").write_text(f"before\n{how_far.BEGIN}\nold\n{how_far.END}\nafter\n")
    how_far.write(root)
    return root


def test_without_records_everything_is_said_to_be_missing():
    text = how_far.page(Study.of([]))
    assert "| `strong`, without teachers | – | – |" in text
    assert text.count("Not trained yet") == 7
    assert "longtail reproduce strong --stage ablation --dataset cifar100-lt" in text
    assert ".svg" not in text
    assert "%" not in text.split("## What was needed")[0]  # no number without a run


def test_a_page_of_records_has_their_numbers(site):
    text = (site / how_far.PAGE).read_text()
    study = how_far.study_at(site / how_far.RECORDS)
    part = study.part("cifar10-lt")
    answer = text.split("## What was needed")[0]
    for line in (part.strong, part.distilled):
        for errors in (line.errors, line.again):
            mean, deviation = 100 * errors.mean(), 100 * errors.std(ddof=1)
            assert f" | {mean:.2f}\xa0±\xa0{deviation:.2f} | – |" in answer
    assert "– : not trained yet." in answer
    assert "(how-far/cost.svg)" in text
    assert (site / "docs" / "how-far" / "cost.svg").is_file()
    assert "C100, 50" in text
    assert f"{sum(len(one.records) for one in study.parts)} records" in text


def test_the_commands_lead_into_each_other(site):
    """What one command writes is what the next one reads."""
    used = (site / how_far.PAGE).read_text().split("## Use it")[1]
    trained, judged, taught, *again = re.findall(
        r"^longtail (?:train|evaluate|tune|adjust).*?[^\\]$", used, re.M | re.S
    )
    assert [line.split()[1] for line in again] == ["evaluate", "tune", "evaluate", "adjust"]
    (out,) = re.findall(r"--out (\S+)", trained)
    assert judged.startswith(f"longtail evaluate {out}/cifar100-lt ")
    assert f"--teachers {out}/cifar100-lt " in taught
    for recipe in ("strong --stage strong", "strong-distilled"):  # either by one command
        assert f"\nlongtail reproduce {recipe}\n" in used


def test_verdicts_follow_the_intervals(site):
    text = (site / how_far.PAGE).read_text()
    verdicts = re.search(r"Paired by seed, at 95%:\n\n(.*?)\n\n", text, re.DOTALL)[1]
    study = how_far.study_at(site / how_far.RECORDS)
    lines = {line.name: line for line in study.part("cifar10-lt").ablation}
    told = {}
    for sentence in verdicts.splitlines():
        names, _, verdict = sentence.removeprefix("- ").rpartition(": ")
        told |= dict.fromkeys(names.split("; "), verdict)
    changed = set(lines) - {"plain", "strong", "student"}
    assert set(told) == changed
    said = Counter(told.values())
    assert len(said) > 1
    for name in changed:
        base = next(one for one in ("plain", "strong", "student") if name.startswith(one))
        pairs = lines[name].errors - lines[base].errors[: len(lines[name].errors)]
        half = 4.302653 * pairs.std(ddof=1) / 3**0.5  # t(0.975, 2) from the tables
        wanted = "change the test error by no more than chance may."
        if pairs.mean() - half > 0:
            wanted = "raise the test error by more than chance."
        elif pairs.mean() + half < 0:
            wanted = "lower the test error by more than chance."
        assert told[name] == wanted


def test_a_row_that_lacks_a_seed_is_not_judged():
    part = Study.of(made_up_setting(Setting("cifar10-lt"))).part("cifar10-lt")
    name = "plain + SAM"
    last = next(line for line in part.ablation if line.name == name).records[-1]
    for kept, judged in ((part.records, True), ([o for o in part.records if o != last], False)):
        verdicts = how_far.page(Study.of(kept)).split("Paired by seed, at 95%:")[1]
        assert (f"{name};" in verdicts or f"{name}:" in verdicts) == judged


@pytest.mark.parametrize(("dataset", "epochs"), [("cifar10-lt", 300), ("cifar100-lt", 400)])
def test_what_helped_is_told_from_the_results(dataset, epochs):
    """Teachers are compared to `strong` in as many epochs as their first students had."""
    part = Study.of(made_up_setting(Setting(dataset), with_shorter=True)).part(dataset)
    said = gains(how_far.page(Study.of(part.records)), dataset)
    names = ("strong", "trial_strong", "first_students", "shorter", "distilled", "ensemble")
    lines = {name: getattr(part, name) for name in names}
    assert part.first_students.epochs == part.trial_strong.epochs == epochs
    steps = {
        "teachers (and CutMix instead of SAM), in the first trial's epochs": (
            "first_students", "trial_strong",
        ),
        "what the development set chose for students": ("shorter", "first_students"),
        "twice the epochs for students": ("distilled", "shorter"),
        f"in all, from `strong` to `{DISTILLED}`": ("distilled", "strong"),
        "the teachers' own mean instead of a student": ("ensemble", "distilled"),
    }  # fmt: skip
    if part.strong.epochs > epochs:
        assert lines["strong"].errors.mean() != lines["trial_strong"].errors.mean()
        steps["500 instead of 300 epochs for `strong`"] = ("strong", "trial_strong")
    assert (part.strong.epochs > epochs) == (dataset == "cifar10-lt")
    assert said == {
        name: [
            change(lines[after].errors, lines[before].errors),
            change(lines[after].again, lines[before].again),
        ]
        for name, (after, before) in steps.items()
    }


def gains(page, dataset):
    """The rows of the table of changes: name -> a data set's two cells."""
    table = page.split("**Changes of the mean test error in points")[1].split("\n\n")[1]
    first = 2 if dataset == "cifar10-lt" else 4
    rows = [[cell.strip() for cell in row.split("|")] for row in table.splitlines()[2:]]
    return {row[1]: row[first : first + 2] for row in rows if row[first] != "–"}


def change(after, before):
    return f"{100 * (after.mean() - before.mean()):+.2f}".replace("-", "−")


def test_what_is_not_trained_is_no_part_of_everything_else():
    """Students of more teachers are none of the page's yet, so it does not say that they are."""
    found = made_up_setting(Setting("cifar10-lt"), with_ablation=False)
    before, after = how_far.page(Study.of(found)).split("And so is everything else on this page")
    assert "more-teachers" not in before
    assert "Not trained yet: students of more teachers" in after
    assert after.index("--rho 10") < after.index("Not trained yet") < after.index("more-teachers")


def test_what_is_trained_of_it_is_part_of_everything_else():
    """On one data set, on the other, and on both."""
    stage = "longtail reproduce strong --stage longer-teachers"
    found = {
        name: made_up_setting(Setting(name), with_ablation=False, with_longer=True)
        for name in ("cifar10-lt", "cifar100-lt")
    }
    epochs = {"cifar10-lt": "500 epochs on CIFAR-10-LT", "cifar100-lt": "800 epochs on CIFAR-100"}
    for (name, mine), other in zip(found.items(), reversed(found), strict=True):
        after = how_far.page(Study.of(mine)).split("And so is everything else on this page")[1]
        told, lacking = after.split("Not trained yet")
        assert f"{stage} --dataset {name}\n" in told
        assert f"{stage} --dataset {other}\n" in lacking
        assert f"students of teachers that train longer, for {epochs[other]}" in lacking
        assert epochs[name] not in lacking
        assert "--stage more-teachers\n" in lacking
    both = how_far.page(Study.of([one for mine in found.values() for one in mine]))
    told, lacking = both.split("And so is everything else on this page")[1].split("Not trained yet")
    assert f"{stage}\n" in told
    assert stage not in lacking
    assert "longtail reproduce strong --stage longer-students\n" in lacking


def test_students_of_longer_teachers_are_told_with_what_both_sets_say_of_them():
    found = made_up_setting(Setting("cifar10-lt"), with_ablation=False, with_longer=True)
    study = Study.of(found)
    part = study.part("cifar10-lt")
    (longer,) = part.further
    text = how_far.page(study)
    again = f"{100 * longer.again.mean():.2f}"
    (mean,) = part.means.values()
    said = gains(text, "cifar10-lt")
    for name, after, before in (
        ("longer teachers, for students", longer, part.distilled),
        ("longer teachers, for the teachers' own mean", mean, part.ensemble),
    ):
        wanted = [change(after.errors, before.errors), change(after.again, before.again)]
        assert said[name] == wanted
    assert len(set(said["longer teachers, for students"])) == 2
    dev = [
        100 * sum(one.document["again"]["dev_error"] for one in line.records) / 3
        for line in (longer, part.distilled)
    ]
    spread = r" ± [\d.]+"
    wanted = f"longer teachers, {dev[0]:.2f}{spread} instead of {dev[1]:.2f}{spread} on CIFAR-10-LT"
    assert re.search(wanted, text)
    readme = how_far.readme_block(study)
    assert f"| `{DISTILLED}`, longer teachers, τ again | {again}" in readme
    assert "– : not trained yet" in readme  # on CIFAR-100-LT
    without = Study.of(made_up_setting(Setting("cifar10-lt"), with_ablation=False))
    assert "longer teachers" not in how_far.readme_block(without)
    assert "Attempts beyond" not in how_far.page(without)


def test_running_twice_gives_the_same_bytes(site):
    paths = [site / "README.md", *sorted((site / "docs").rglob("*.*"))]
    assert len(paths) == 3
    before = {path: path.read_bytes() for path in paths}
    how_far.write(site)
    assert {path: path.read_bytes() for path in paths} == before


def test_the_recipes_are_described_as_they_are():
    text = how_far.page(Study.of([]))
    from longtail.train.recipe import recipe_values

    student = recipe_values("strong-student")
    assert f"for {recipe_values('strong', dataset='cifar100-lt')['epochs']} epochs" in text
    assert f"temperature {student['distill_temperature']:g}" in text
    assert f"**`{DISTILLED}`**" in text


def test_the_repositorys_own_page_is_up_to_date():
    study, run = (
        how_far.study_at(ROOT / how_far.RECORDS),
        "run: python -m longtail.report.how_far",
    )
    text = how_far.page(study)
    assert (ROOT / how_far.PAGE).read_text() == text, run
    for figure in re.findall(r"\]\((\S+\.svg)\)", text):
        assert (ROOT / how_far.PAGE.parent / figure).is_file(), run
    assert how_far.readme_block(study) in (ROOT / how_far.README).read_text(), run


def test_the_readme_has_the_recipes_beside_the_lowest_published(site):
    text = (site / "README.md").read_text()
    assert text.startswith("before\n<!-- how-far: begin -->\n**Balanced test error")
    assert text.endswith("\n<!-- how-far: end -->\nafter\n")
    assert "old" not in text
    cells = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:4]]
        for line in text.splitlines()
        if line.startswith("| ")
    }
    assert cells["lowest published that we know of"] == ["13.6 (DDC)", "45.8 (ProCo)"]
    part = how_far.study_at(site / how_far.RECORDS).part("cifar10-lt")
    lines = {"`strong`, without teachers": part.strong, f"`{DISTILLED}`": part.distilled}
    for name, line in lines.items():
        for row, errors in ((name, line.errors), (f"{name}, τ again", line.again)):
            mean, deviation = 100 * errors.mean(), 100 * errors.std(ddof=1)
            assert cells[row] == [f"{mean:.2f}\xa0±\xa0{deviation:.2f}", "–"]
    assert "over the runs (5 for `strong`, 3 for `strong-distilled`);" in text
    before = 100 * part.earlier_strong.errors.mean()
    raised = f"500 epochs on CIFAR-10-LT after 300 had missed a goal there ({before:.2f}). Public"
    assert f"judged on the test set, but for its {raised}" in text
    assert "Public code of ProCo picks its epoch on the test set, too; of DDC we found" in text


@pytest.mark.parametrize("dataset", ["cifar10-lt", "cifar100-lt"])
def test_the_development_set_on_teachers_and_epochs(dataset):
    title = title_of(dataset)
    found = made_up_setting(Setting(dataset), with_shorter=True)
    study = Study.of(found)
    part, text = study.part(dataset), how_far.page(study)
    dev = {line.name: line.to_dict()["dev_errors"][0] for line in part.teachers}
    best = min(dev, key=dev.get)
    (said,) = re.findall(rf"Of the teachers it prefers: (.*?on {title}.*)\.\n", text)
    assert said.startswith(f"{best} on {title}")
    mine = next(line for line in part.teachers if line.name == best).records[0]
    mean = sum(part.trial_strong.to_dict()["dev_errors"]) / 5
    epochs = "" if part.earlier_strong is None else " in as many epochs"
    assert bool(epochs) == (dataset == "cifar10-lt")
    assert said.endswith(
        f"which is `strong` itself{epochs}"
        if mine in part.trial_strong.records
        else f" with {dev[best]:.2f}% (one run), where `strong` has {mean:.2f}% (mean of 5 runs)"
        f"{epochs}"
    )
    again = [
        100 * sum(one.document["again"]["dev_error"] for one in line.records) / 3
        for line in (part.shorter, part.distilled)
    ]
    epochs = {"cifar10-lt": (300, 600), "cifar100-lt": (400, 800)}[dataset]
    wanted = [(f"{e:.2f}", str(n)) for e, n in zip(again, epochs, strict=True)]
    error = 100 * part.trial_strong.errors.mean()
    strict = f"only the first trial's epochs were set before any of these runs ({error:.2f}% on"
    assert (strict in text) == (dataset == "cifar10-lt")
    if dataset == "cifar10-lt":  # `strong` was trained longer there, too
        dev = [sum(line.to_dict()["dev_errors"]) / 5 for line in (part.trial_strong, part.strong)]
        wanted += [(f"{e:.2f}", str(n)) for e, n in zip(dev, (300, 500), strict=True)]
    said = re.findall(rf"([\d.]+) ± [\d.]+ after (\d+)(?= and| epochs on {title})", text)
    assert said == wanted
    without = how_far.page(Study.of(made_up_setting(Setting(dataset))))
    assert "trained for twice the epochs" not in without


def test_what_teachers_gain_is_told_for_each_ratio():
    """A ratio that has no students yet is none of them."""
    found = [one for ratio in (100, 10) for one in made_up_setting(Setting("cifar10-lt", ratio))]
    half = made_up_setting(Setting("cifar10-lt", 50), with_ablation=False)
    started = [one for one in half if one.spec.recipe.name != "strong-student"]
    study = Study.of([*found, *started])
    text = how_far.page(study)
    (said,) = re.findall(r"^From `strong` to `strong-distilled`, .*: (.*)\.$", text, re.MULTILINE)
    words = []
    for ratio in (100, 10):
        part = study.part("cifar10-lt", ratio)
        change = 100 * (part.distilled.errors.mean() - part.strong.errors.mean())
        words.append(f"{change:+.2f} at ratio {ratio}".replace("-", "−"))
    assert study.part("cifar10-lt", 50).strong is not None
    assert said == ", ".join(words) + " on CIFAR-10-LT"


def test_a_ratio_that_is_half_trained_is_still_to_be_trained():
    setting = Setting("cifar10-lt", 50.0)
    found = made_up_setting(setting, with_ablation=False)
    started = [one for one in found if one.spec.recipe.name != "strong-student"]
    for kept, wanted in ((found, False), (started, True)):
        text = how_far.page(Study.of([*made_up_setting(Setting("cifar10-lt")), *kept]))
        (block,) = re.findall(r"## Other imbalance ratios.*?```sh\n(.*?)```", text, re.DOTALL)
        assert (setting.command() in block.splitlines()) == wanted
        assert Setting("cifar10-lt", 10.0).command() in block.splitlines()


def selection_of(best):
    """Outcomes of a data set's candidates, of which one has the least error."""
    names = [kind.name for kind in candidates("cifar100-lt")]
    outcomes = {name: Outcome(0.46, 0.1, 0.44 if name == best else 0.45) for name in names}
    return Selection("cifar100-lt", 200, "NVIDIA H200", outcomes)


def test_what_the_development_set_chose_is_said_and_whether_the_recipe_has_it():
    recipe = recipe_candidate("cifar100-lt")
    assert recipe is not None
    other = next(kind.name for kind in candidates("cifar100-lt") if kind.name != recipe)
    text = how_far.page(Study.of([], selections=[selection_of(recipe)]))
    assert "on CIFAR-100-LT the recipe has the values of the least error." in text
    assert f"| {recipe} (least, the recipe) | 46.00 | 44.00 | 0.10 |" in text
    assert "and of the students on CIFAR-10-LT, also where" in text
    text = how_far.page(Study.of([], selections=[selection_of(other)]))
    assert "on CIFAR-100-LT the recipe still has other values than the least error's." in text
    assert f"| {other} (least) | 46.00 | 44.00 | 0.10 |" in text
    assert f"| {recipe} (the recipe) |" in text
    assert "and of the students on CIFAR-10-LT and CIFAR-100-LT, also where" in text
    assert "and nothing else so far" not in text
    assert "and nothing else so far" in how_far.page(Study.of([]))
