"""The theory's tables and figures show what was computed, and nothing else."""

import json

import numpy as np
import pytest

from longtail.experiments import separable, theory
from longtail.report import theory as report

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def result():
    settings = separable.Settings(trials=3, common=60, rare=6, penalties=(1e-1, 1e-3, 1e-6))
    return theory.run(points=49, settings=settings)


def test_the_first_table_is_the_papers_with_our_verdicts(result):
    table = report.tables(result)[0]
    assert table.header == ("method", "Δ_yy' or rule", "paper", "L = 2", "L = 3")
    marks = {row[0]: row[2:] for row in table.rows}
    assert marks["adaptive margin"] == ("✗", "✗", "✗")
    assert marks["logit-adjusted loss"] == ("✓", "✓", "✓")
    assert marks["balanced"] == ("", "✓", "✓")
    assert "(0.7, 0.25, 0.05)" in table.note


def test_every_refusal_in_the_table_has_its_witness_below(result):
    verdicts, witnesses = report.tables(result)[:2]
    refused = [row[0] for row in verdicts.rows for mark in row[3:] if mark == "✗"]
    assert [row[0] for row in witnesses.rows] == refused
    adaptive = next(row for row in witnesses.rows if row[0] == "adaptive margin")
    assert adaptive == ("adaptive margin", "(0.76, 0.24)", "(0.91, -0.91)", "0, not 1")


def test_tables_fit_a_terminal_of_80_columns(result):
    for table in report.tables(result):
        widths = [
            max(len(row[i]) for row in [table.header, *table.rows])
            for i in range(len(table.header))
        ]
        assert sum(widths) + 3 * (len(widths) - 1) <= 80
        assert len(table.title) <= 80


def test_the_limit_table_ends_at_infinity(result):
    table = report.tables(result)[2]
    assert table.header[-1] == "γ → ∞"
    assert all(row[-1] in ("0.200", "0.000") for row in table.rows)
    assert f"{result.largest_deviation:.0e}" in table.note


def test_the_separable_table_holds_means_and_positions(result):
    table, study = report.tables(result)[3], result.separable
    rows = {row[0]: row[1:] for row in table.rows}
    error, place = 100 * study.errors["balanced"][:, 2].mean(), study.positions["balanced"][:, 2]
    assert rows["balanced"][-1] == f"{error:.2f} ({np.median(place):+.2f})"
    margins = rows["hinge, margins ∝ π^(−1/4)"][-1]
    assert margins.endswith(f"({study.hinge_position:+.2f})")
    assert table.header == ("loss", "λ = 1e-03", "λ = 1e-06")


def test_a_single_penalty_is_one_column():
    settings = separable.Settings(trials=2, common=20, rare=4, penalties=(1e-2,))
    table = report.tables(theory.run(points=9, settings=settings))[3]
    assert len(table.header) == 2


@pytest.mark.parametrize(
    ("draw", "curves"),
    [
        (report.draw_links, "links"),
        (report.draw_inverse_links, "inverse_links"),
        (report.draw_bayes_risks, "bayes_risks"),
    ],
)
def test_each_panel_draws_its_gammas_curves(result, draw, curves):
    figure = draw(result)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["γ = 1", "γ = 8"]
    for axes, gamma in zip(figure.axes, result.gammas, strict=True):
        expected = [c for c in getattr(result, curves) if c.gamma in (gamma, None)]
        drawn = [line for line in axes.lines if not line.get_label().startswith("_")]
        assert len(drawn) == len(expected)
        for line, curve in zip(drawn, expected, strict=True):
            np.testing.assert_array_equal(line.get_ydata(), curve.y)
    assert len(figure.legends) == 1


def test_the_separable_figure_draws_medians_means_and_the_hinge_lines(result):
    figure, study = report.draw_separable(result), result.separable
    sample, positions, errors = figure.axes
    for line, name in zip(sample.lines[1:], ("hinge-weights", "hinge-margins"), strict=True):
        x, y = (np.asarray(v, float) for v in line.get_data())
        first, second, bias = study.examples[name]
        np.testing.assert_allclose(first * x + second * y + bias, 0.0, atol=1e-9)
    np.testing.assert_allclose(
        positions.lines[1].get_ydata(), np.median(study.positions["balanced"], axis=0)
    )
    drawn = {line.get_label(): line.get_ydata() for line in errors.lines}
    np.testing.assert_allclose(
        drawn["logit adjusted"], 100 * study.errors["logit-adjusted"].mean(axis=0)
    )
    assert drawn["hinge, any weights (λ → 0)"][0] == pytest.approx(
        100 * study.errors["hinge"].mean()
    )


def test_the_files_written_are_those_announced(result, tmp_path):
    written = report.write(result, tmp_path / "folder")
    assert [path.name for path in written] == list(report.FILES)
    assert sorted(p.name for p in (tmp_path / "folder").iterdir()) == sorted(report.FILES)
    assert json.loads(written[0].read_text()) == json.loads(json.dumps(result.to_dict()))
    assert "| logit-adjusted loss |" in written[1].read_text()
    before = [path.read_bytes() for path in written]
    report.write(result, tmp_path / "folder")
    assert [path.read_bytes() for path in written] == before
