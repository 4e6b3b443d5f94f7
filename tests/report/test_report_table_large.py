"""How the large tables read: cells beside the paper's, captions, hours, files."""

import pytest

from large_factory import made_up_column
from longtail.experiments.large_hours import Hours, Rate
from longtail.experiments.large_runs import COLUMNS, KINDS
from longtail.experiments.table_large import study_of
from longtail.report import table_large


@pytest.fixture(scope="module")
def study():
    found = [*made_up_column(COLUMNS[0]), *made_up_column(COLUMNS[1]), *made_up_column(COLUMNS[4])]
    return study_of(found, columns=(*COLUMNS[:2], COLUMNS[4]), seeds=2)


def test_every_cell_stands_beside_the_papers(study):
    cells, claims, *_ = table_large.tables(study)
    assert "ImageNet-LT, ResNet-50, 90 epochs" in cells.title
    rows = {row[0]: row[1:] for row in cells.rows}
    assert rows["logit adjusted + adaptive"][0] == "51.25"
    assert rows["post-hoc logit adj., oracle τ*"][0] == "49.56"
    assert rows["weight norm., bias dropped, τ held-out"][0] == ""
    mean = 100 * study.parts[0].cell(study.parts[0].rows[0]).mean
    ours, difference = rows["softmax (ERM)"][1:3]
    assert ours.startswith(f"{mean:.2f} ±")
    assert difference.replace("−", "-") == f"{mean - 53.11:+.2f}"
    assert "ImageNet-LT, ResNet-50, 90 epochs" in claims.title
    assert not any("Adam" in row[0] for row in claims.rows)
    assert len(claims.rows) == 11


def test_the_caption_says_what_is_missing_and_how_to_train_it():
    kinds = tuple(kind for kind in KINDS if kind.name != "adaptive")
    study = study_of(made_up_column(COLUMNS[4], kinds=kinds), columns=COLUMNS[4:], seeds=2)
    said = table_large.tables(study)[0].note
    assert "missing are adaptive, seed 0; adaptive, seed 1" in said
    assert "--dataset inaturalist --model resnet152 --epochs 200 --seeds 2" in said
    assert "hours of NVIDIA H200, bfloat16" in said


@pytest.fixture
def hours():
    rates = {
        (column.dataset, column.model): Rate(
            1500.0 if "50" in column.model else 500.0, 1, 40, "GPU"
        )
        for column in COLUMNS
    }
    sizes = {"imagenet-lt": 115_846, "inaturalist": 437_513}
    return Hours.of(COLUMNS, rates, sizes, seeds=5)


def test_the_hours_of_every_cell(hours):
    rates, first, second = table_large.hours_tables(hours)
    assert rates.rows[0][1:3] == ("1,500", f"{90 * 115_846 / 1500 / 3600:.2f}")
    assert f"Everything: {hours.total:,.1f} GPU hours" in rates.note
    assert first.header == ("method", "50, 90 ep.", "152, 90 ep.")
    assert second.header == ("method", "50, 90 ep.", "152, 90 ep.", "152, 200 ep.")
    cells = {row[0]: row[1:] for row in second.rows}
    long = 200 * 437_513 / 500 / 3600
    assert cells["adaptive"][2] == f"{long:.2f}"
    assert cells["post-hoc logit adj., τ = 1"] == ("0", "0", "0")
    assert cells["post-hoc logit adj., τ held-out"][2] == f"{0.8 * long:.2f}"
    for table in (rates, first, second):
        width = sum(
            2 + max(map(len, column)) for column in zip(table.header, *table.rows, strict=True)
        )
        assert width <= 80


def test_files_and_figures(study, tmp_path):
    pytest.importorskip("matplotlib")
    written = table_large.write(study, tmp_path)
    assert {path.name for path in written} == set(table_large.FILES)
    assert "ResNet-152, 200 epochs" in (tmp_path / "table-large.md").read_text()
    figure = table_large.FIGURES["groups"][0](study.parts[:2])
    assert [axes.get_title("left") or axes.get_title() for axes in figure.axes] == [
        column.title for column in COLUMNS[:2]
    ]


def test_a_data_set_without_records_has_no_figures(tmp_path):
    pytest.importorskip("matplotlib")
    one = study_of(made_up_column(COLUMNS[0], seeds=1), columns=COLUMNS[:1], seeds=1)
    names = [path.name for path in table_large.draw(one, tmp_path)]
    assert len(names) == 6
    assert all("imagenet-lt" in name for name in names)
