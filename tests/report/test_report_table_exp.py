"""How the EXP table reads: names, captions, files; the same records give the same bytes."""

import pytest

from exp_factory import made_up_records, small_plan
from longtail.experiments.exp_runs import TABLE
from longtail.experiments.table_exp import ROWS, Study
from longtail.report import table_exp
from longtail.report.claims import claims_table, marks_table


def made(*, seeds=2, asked=None, recipes=("tuned",), datasets=("cifar10-lt",), **options):
    plans = [small_plan(dataset=d, recipe=r, seeds=seeds) for r in recipes for d in datasets]
    found = [one for plan in plans for one in made_up_records(plan, **options)]
    return Study.of(found, recipes=recipes, datasets=datasets, seeds=asked or seeds)


@pytest.fixture(scope="module")
def study():
    return made(datasets=("cifar10-lt", "cifar100-lt"))


def test_every_cell_stands_beside_the_papers(study):
    table = table_exp.cells_table(study.parts[1])
    rows = {row[0]: row[1:] for row in table.rows}
    assert len(rows) == 13
    cell = study.parts[1].cell(ROWS[0])
    mean, spread = 100 * cell.mean, 100 * cell.deviation
    difference = f"{mean - 61.64:+.2f}".replace("-", "−")
    assert rows["softmax (ERM)"] == (
        "61.64",
        f"{mean:.2f} ± {spread:.2f}",
        difference,
        "",
    )
    assert rows["weight norm., bias dropped, τ held-out"][0] == ""
    assert rows["post-hoc logit adj., oracle τ*"][-1] == "1.60"


def test_the_caption_says_seeds_device_and_time(study):
    note = table_exp.cells_table(study.parts[0]).note
    assert "2 training seeds" in note
    assert "20 runs in 10.0 minutes of NVIDIA H200, bfloat16" in note
    assert "Fewer runs" not in note


def test_one_seed_has_no_deviation():
    table = table_exp.cells_table(made(seeds=1).parts[0])
    assert "one training seed, so no deviation" in table.note
    assert "±" not in table.rows[0][2]


def test_fewer_seeds_than_asked_are_said_in_the_caption():
    part = made(asked=5).parts[0]
    table = table_exp.cells_table(part)
    assert table.rows[0][2].endswith("(2 of 5)")
    assert "Fewer runs than asked: missing are softmax, seed 2; softmax, seed 3" in table.note
    wanted = "longtail reproduce table-exp --recipe tuned --dataset cifar10-lt --rows table"
    assert wanted in table.note


def test_a_row_without_runs_has_a_dash():
    kinds = [kind for kind in TABLE if kind.name != "adaptive"]
    table = table_exp.cells_table(made(kinds=kinds).parts[0])
    assert next(row for row in table.rows if row[0] == "adaptive")[1:] == ("26.65", "–", "", "")


def test_verdicts_and_marks_read_as_they_were_judged(study):
    table = claims_table(study.parts[0])
    claim, measured, verdict = table.rows[1]
    assert (claim, verdict) == ("ERM errs more than the logit-adjusted loss", "held")
    assert measured.startswith("+")
    counts = [row[2] for row in table.rows].count("held")
    assert table.note.startswith(f"Of 13 claims {counts} held")
    assert marks_table(study.parts[0]) is not None
    assert marks_table(made(recipes=("paper",)).parts[0]) is None


def test_all_files_are_written_and_twice_the_same(tmp_path):
    study = made()
    first = table_exp.write(study, tmp_path / "a")
    assert [path.name for path in first] == list(table_exp.FILES)
    second = table_exp.write(study, tmp_path / "b")
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes()
        assert one.stat().st_size > 500
    assert "(Menon" not in (tmp_path / "a" / "table-exp.md").read_text()


def test_the_order_of_records_does_not_matter(tmp_path):
    plan = small_plan(seeds=2)
    found = made_up_records(plan)
    texts = [
        table_exp.tables(Study.of(some, recipes=["tuned"], datasets=["cifar10-lt"], seeds=2))
        for some in (found, found[::-1])
    ]
    assert texts[0] == texts[1]


def test_figures_without_runs_are_left_out(tmp_path):
    part = made(adam_runs=False).parts[0]
    names = {path.name for path in table_exp.draw([part], tmp_path / "x")}
    assert "x-weight-norms.svg" in names  # SGD's alone
    assert table_exp.draw([], tmp_path / "y") == []


def test_the_figures_show_what_they_say(study):
    norms = table_exp.FIGURES["weight-norms"][0](study.parts)
    legend = [text.get_text() for text in norms.axes[0].get_legend().get_texts()]
    assert legend[0].startswith("SGD with momentum: r = +")
    assert legend[1].startswith("Adam, lr 0.001: r = −")
    assert legend[2].startswith("Adam without weight decay, lr 0.0003: r = −")
    curves = table_exp.FIGURES["tau-curves"][0](study.parts)
    assert [axes.get_title(loc="left") for axes in curves.axes] == ["cifar10-lt", "cifar100-lt"]
    line = curves.axes[0].get_lines()[0]
    record = study.parts[0].records[0]
    assert line.get_ydata()[0] == pytest.approx(
        100 * record.curve("posthoc-logit-adjusted")[0], abs=0.5
    )
    bars = table_exp.FIGURES["groups"][0](study.parts)
    ticks = [text.get_text() for text in bars.axes[1].get_xticklabels()]
    assert ticks[-1] == "few (under 20)\n30 classes"
    classes = table_exp.FIGURES["per-class"][0](study.parts)
    assert classes.axes[1].get_xlabel() == "group of 10 classes, most frequent first"
    captions = table_exp.figure_captions(study.parts)
    assert set(captions) == set(table_exp.FIGURES)
    assert "0.0003, 0.001, 0.003" in captions["weight-norms"]
    without = table_exp.figure_captions(made(adam_runs=False).parts)
    assert "Adam" not in without["weight-norms"]
    assert captions["groups"].startswith("Mean and standard deviation over 2 runs of each kind")


def test_a_figures_caption_counts_each_data_sets_runs():
    found = made_up_records(small_plan(seeds=3))
    found += made_up_records(small_plan(dataset="cifar100-lt", seeds=2))
    caption = table_exp.figure_captions(Study.of(found, recipes=["tuned"]).parts)["groups"]
    assert "over 3 (cifar10-lt) and 2 (cifar100-lt) runs" in caption
