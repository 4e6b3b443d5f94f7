"""Charts: valid for plotly, no two rows alike, and the same numbers drawn on paper."""

from types import SimpleNamespace

import numpy as np
import pytest

from longtail import ClassPrior
from longtail.margins import MARGINS
from longtail.report import charts, pages
from longtail.report.charts import ClassAxis
from longtail.report.compare import Comparison, Row, compare
from longtail.train.methods import EXTRAS, THRESHOLD
from page_factory import digits_runs

# All the ways in which extras go with one loss, in one setting each.
ON_TOP = ["drw", "label-smoothing", "drw+label-smoothing", *list(EXTRAS)[2:]]
METHODS = [*MARGINS, THRESHOLD, *(f"{loss}+{on}" for loss in ("softmax", "ldam") for on in ON_TOP)]


@pytest.fixture(scope="module")
def page():
    return pages.runs_page(compare(digits_runs()))


def many_methods(num_classes):
    """The charts by class and by group of a comparison of every method."""
    random = np.random.default_rng(0)
    prior = ClassPrior.from_counts(np.arange(num_classes, 0, -1) * 10)
    run = SimpleNamespace(prior=prior, members=(), spec=SimpleNamespace(seed=0))
    values = random.random((len(METHODS), num_classes))
    rows = []
    for method, errors in zip(METHODS, values, strict=True):
        result = SimpleNamespace(balanced_error=errors.mean())
        rows.append(Row(method, None, "", (run,), (result,)))
    compared = Comparison(tuple(rows), np.arange(num_classes), (run,), {}, {}, "test")
    series = pages.series_of(rows, compared)
    sizes = {name: len(k) for name, k in prior.groups().items()}
    lines = charts.by_class(ClassAxis.of(prior), series, 100 * values)
    return lines, charts.group_errors(sizes, series, 100 * values[:, : len(sizes)])


def test_plotly_accepts_every_chart(page):
    graph = pytest.importorskip("plotly.graph_objects")
    assert len(page.charts) == 10
    for chart in page.charts.values():
        graph.Figure(data=chart.data, layout=chart.layout)


@pytest.mark.parametrize("num_classes", [10, 100])  # few classes have marks on their lines
def test_no_two_rows_look_alike(num_classes):
    lines, bars = many_methods(num_classes)
    looks = {(line["line"]["color"], line["line"]["dash"]) for line in lines.data}
    assert len(looks) == len(METHODS)
    looks = {(bar["marker"]["color"], bar["marker"]["pattern"]["shape"]) for bar in bars.data}
    assert len(looks) == len(METHODS)
    assert len(set(charts.DASHES)) == len(set(charts.HATCHES))


def test_papers_show_the_pages_numbers(page):
    pytest.importorskip("matplotlib")
    for name in ("chart-classes", "chart-norms", "chart-calibration"):
        chart = page.charts[name]
        (axes,) = charts.draw(chart).axes
        for line, trace in zip(axes.lines, chart.data, strict=True):
            drawn = np.array(line.get_data(), dtype=float)
            np.testing.assert_allclose(drawn, [trace["x"], trace["y"]])
    groups = page.charts["chart-groups"]
    (axes,) = charts.draw(groups).axes
    heights = [[bar.get_height() for bar in container] for container in axes.containers]
    np.testing.assert_allclose(heights, [trace["y"] for trace in groups.data])
    (axes,) = charts.draw(page.charts["chart-methods"]).axes
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    labels = [text.get_text() for text in axes.get_yticklabels()]
    hollow = [dot.get_markerfacecolor() == charts.PAPER for dot in dots]
    assert hollow == ["oracle" in label for label in labels]


def test_every_figure_is_written_in_both_formats_with_equal_bytes(tmp_path):
    pytest.importorskip("matplotlib")
    compared = compare(digits_runs())
    paths = pages.write_figures(compared, tmp_path / "one")
    assert len(paths) == 2 * len(pages.FIGURES)
    for first, second in zip(paths, pages.write_figures(compared, tmp_path / "two"), strict=True):
        assert first.read_bytes() == second.read_bytes()
