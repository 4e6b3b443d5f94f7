"""The page's charts for papers: same data, both formats, equal bytes."""

import numpy as np
import pytest

from longtail.report import arrange, run_figures
from longtail.report.compare import compare
from page_factory import digits_runs

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def compared():
    return compare(digits_runs())


def test_every_figure_in_both_formats_and_equal_bytes(compared, tmp_path):
    paths = run_figures.write(compared, tmp_path / "one")
    assert [path.name for path in paths] == list(run_figures.FILES)
    for first, second in zip(paths, run_figures.write(compared, tmp_path / "two"), strict=True):
        assert first.read_bytes() == second.read_bytes()
    assert "Balanced error against tau on digits-lt" in (tmp_path / "one/tau.svg").read_text()


def test_the_lines_are_the_sections_values(compared):
    section = arrange.class_errors(compared)
    axes = run_figures.draw_classes(section).axes[0]
    assert [line.get_label() for line in axes.lines] == [s.label for s in section.series]
    for line, values in zip(axes.lines, section.values, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), values)
    curves = arrange.tau_curves(compared)
    axes = run_figures.draw_tau(curves).axes[0]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), curves.lines[0].mean)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels[-2:] == ["τ from held-out data", "oracle τ (test set)"]


def test_bars_and_dots_are_the_sections_values(compared):
    groups = arrange.group_errors(compared)
    axes = run_figures.draw_groups(groups).axes[0]
    heights = [[bar.get_height() for bar in container] for container in axes.containers]
    np.testing.assert_allclose(heights, groups.values)
    errors = arrange.method_errors(compared)
    axes = run_figures.draw_errors(errors).axes[0]
    dots = [container.lines[0].get_xdata()[0] for container in axes.containers]
    np.testing.assert_allclose(dots, [interval.mean for interval in errors.intervals])
    hollow = [container.lines[0].get_markerfacecolor() == "white" for container in axes.containers]
    assert hollow == list(errors.oracle)


def test_what_the_runs_lack_is_not_drawn(compared, monkeypatch, tmp_path):
    monkeypatch.setattr(arrange, "weight_norms", lambda compared: None)
    names = [path.name for path in run_figures.write(compared, tmp_path)]
    assert "weight-norms.svg" not in names
    assert len(names) == len(run_figures.FILES) - 2
