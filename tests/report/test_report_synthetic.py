"""The synthetic study's tables, figure and files say what the study found."""

import json

import numpy as np
import pytest

from longtail.experiments import synthetic
from longtail.report import synthetic as report

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def study():
    settings = synthetic.Settings(trials=6, num_train=4000, num_test=2000)
    return synthetic.run(settings=settings)


def test_the_table_holds_the_study_s_numbers(study):
    methods, over_tau = report.tables(study)
    assert "6 trials" in methods.title
    rows = {row[0]: row[1:] for row in methods.rows}
    exact, sampled = study.errors["adaptive"], study.sampled["adaptive"]
    assert rows["adaptive"] == (
        f"{100 * np.mean(exact):.3f}",
        f"{100 * np.std(exact, ddof=1):.3f}",
        f"{100 * np.mean(sampled):.2f}",
        f"{100 * np.std(sampled, ddof=1):.2f}",
    )
    assert rows["Bayes"][0] == "7.865"
    assert over_tau.header == ("method", "tau = 0.5", "tau = 1", "tau = 2")
    by_mode = {row[0]: row[1:] for row in over_tau.rows}
    keep = study.curves["posthoc-weight-normalized/keep"][:, 20].mean()
    assert by_mode["weight norm., bias keep"][2] == f"{100 * keep:.2f}"


def test_dropping_the_bias_is_called_an_artefact(study):
    assert "artefact" in report.tables(study)[1].note


def test_tables_fit_a_terminal_of_80_columns(study):
    for table in report.tables(study):
        widths = [
            max(len(row[i]) for row in [table.header, *table.rows])
            for i in range(len(table.header))
        ]
        assert sum(widths) + 3 * len(widths) <= 80
        assert len(table.title) <= 80


def test_the_figure_has_the_three_panels_and_draws_the_separators(study):
    figure = report.draw(study)
    errors, separators, curves = figure.axes
    assert [axes.get_title(loc="left")[:3] for axes in figure.axes] == ["(a)", "(b)", "(c)"]
    drawn = {line.get_label(): line for line in separators.lines}
    first, second, bias = study.separators["equalized"][0]
    x, y = (np.asarray(v, float) for v in drawn["equalized"].get_data())
    np.testing.assert_allclose(first * x + second * y + bias, 0.0, atol=1e-9)
    x, y = (np.asarray(v, float) for v in drawn["Bayes"].get_data())
    np.testing.assert_allclose(x + y, 0.0, atol=1e-12)
    means = [c.get_offsets()[0, 0] for c in errors.collections if len(c.get_offsets()) == 1]
    names = (*synthetic.LOSSES, *synthetic.POSTHOC)
    np.testing.assert_allclose(means, [100 * study.errors[n].mean() for n in names])
    adjusted = curves.lines[0].get_ydata()
    expected = 100 * study.curves["posthoc-logit-adjusted"].mean(axis=0)
    np.testing.assert_allclose(adjusted, expected)


def test_the_files_written_are_those_announced(study, tmp_path):
    written = report.write(study, tmp_path / "new" / "folder")
    assert [path.name for path in written] == list(report.FILES)
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == sorted(report.FILES)
    assert json.loads(written[0].read_text()) == study.to_dict()
    assert "| logit adjusted |" in written[1].read_text()
    before = [path.read_bytes() for path in written]
    report.write(study, tmp_path / "new" / "folder")
    assert [path.read_bytes() for path in written] == before
