"""The page on the EXP table and the README's table: made from records, checked to be up to date."""

import re
from pathlib import Path

import pytest

from exp_factory import made_up_records, small_plan
from longtail import InputError
from longtail.experiments import records
from longtail.experiments.exp_runs import PARTNER
from longtail.experiments.table_exp import Study
from longtail.report import reproduction

ROOT = Path(__file__).parents[2]
PARTS = [("tuned", "cifar10-lt"), ("tuned", "cifar100-lt"), ("paper", "cifar10-lt")]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A repository with made-up records."""
    root = tmp_path_factory.mktemp("site")
    for recipe, dataset in PARTS:
        for one in made_up_records(small_plan(dataset=dataset, recipe=recipe, seeds=5)):
            records.write(one, root / reproduction.RECORDS)
    (root / "docs").mkdir()
    marks = f"{reproduction.BEGIN}\n{reproduction.END}"
    (root / "README.md").write_text(f"before\n\n{marks}\n\nafter\n")
    reproduction.write(root)
    return root


def test_the_page_has_tables_figures_and_commands(site):
    text = (site / reproduction.PAGE).read_text()
    for recipe in ("tuned", "paper"):
        command = f"longtail reproduce table-exp --recipe {recipe}"
        assert f"{command} --data-dir data --records new\n" in text
        for name in ("weight-norms", "tau-curves", "per-class", "groups"):
            assert f"(reproduction/{recipe}-{name}.svg)" in text
            assert (site / "docs" / "reproduction" / f"{recipe}-{name}.svg").is_file()
    assert "115 runs, 58 minutes of training" in text
    assert "## Where the numbers differ from the paper's" in text
    assert "weight decay 5e-4 instead of 1e-4" in text
    assert "The paper's claims on cifar100-lt, recipe tuned" in text


@pytest.mark.parametrize(("there", "rows"), [(True, ""), (False, " --rows table")])
def test_the_command_trains_what_the_page_has(there, rows):
    """Adam's runs are those of a figure; where they are missing, it does not train them either."""
    found = made_up_records(small_plan(dataset="cifar10-lt", recipe="paper"), adam_runs=there)
    text = reproduction.page(Study.of(found))
    assert f"table-exp --recipe paper{rows} --data-dir data --records new\n" in text
    assert "minutes of training on NVIDIA H200. To train" in text


def test_the_readme_keeps_its_own_words(site):
    text = (site / "README.md").read_text()
    assert text.startswith("before\n\n<!-- reproduction: begin -->\n**Balanced test error")
    assert text.endswith("<!-- reproduction: end -->\n\nafter\n")
    header = next(line for line in text.splitlines() if line.startswith("| method"))
    assert header == (
        "| method | cifar10-lt, published | `tuned` | `paper` | cifar100-lt, published | `tuned` |"
    )


def test_running_twice_gives_the_same_bytes(site):
    paths = [site / "README.md", *sorted((site / "docs").rglob("*.*"))]
    assert len(paths) == 2 + 8
    before = {path: path.read_bytes() for path in paths}
    reproduction.write(site)
    assert {path: path.read_bytes() for path in paths} == before


def test_a_new_record_changes_the_page(site, tmp_path):
    found = [one for one in records.read_all(site / reproduction.RECORDS) if one.spec.seed < 4]
    text = reproduction.page(reproduction.study_of(found))
    assert text != (site / reproduction.PAGE).read_text()
    assert "Fewer seeds than asked: cifar10-lt, `tuned` lacks 5 runs" in text
    assert "(4 of 5)" in text


def test_a_page_of_a_few_records_says_what_is_missing():
    plan = small_plan(seeds=5)
    found = made_up_records(plan, kinds=[PARTNER], adam_runs=False)
    text = reproduction.page(reproduction.study_of(found))
    assert "missing are softmax, seed 0" in text
    assert "Figures" not in text


@pytest.mark.parametrize("text", ["no marks", f"{reproduction.END}{reproduction.BEGIN}"])
def test_a_readme_without_its_marks_is_refused(text):
    with pytest.raises(InputError, match="each once and in this order"):
        reproduction.with_block(text, "block")


def test_without_records_the_commands_are_named(tmp_path):
    with pytest.raises(InputError, match="longtail reproduce table-exp --recipe tuned"):
        reproduction.write(tmp_path)


def test_the_repositorys_own_page_is_up_to_date():
    found = records.read_all(ROOT / reproduction.RECORDS)
    if not found:
        pytest.skip("no records in results/exp yet: nothing to check the page against")
    study, run = reproduction.study_of(found), "run: python -m longtail.report.reproduction"
    page = reproduction.page(study, other_precision=reproduction.in_float32(ROOT))
    assert (ROOT / reproduction.PAGE).read_text() == page, run
    assert reproduction.readme_block(study) in (ROOT / reproduction.README).read_text(), run
    for figure in re.findall(r"\]\((\S+\.svg)\)", page):
        assert (ROOT / reproduction.PAGE.parent / figure).is_file(), run
