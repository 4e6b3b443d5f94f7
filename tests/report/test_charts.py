"""Charts: valid for plotly, with the same numbers on paper; a data set described."""

import numpy as np
import plotly.graph_objects as graph
import pytest

from longtail import ClassPrior
from longtail.report import charts, pages
from longtail.report.describe import bars
from page_factory import digits_comparison


@pytest.fixture(scope="module")
def page():
    return pages.runs_page(digits_comparison())


def test_plotly_accepts_every_chart(page):
    assert len(page.charts) == 10
    for chart in page.charts.values():
        graph.Figure(data=chart.data, layout=chart.layout)


def test_papers_show_the_pages_numbers(page):
    for name in ("chart-per-class", "chart-weight-norms", "chart-reliability"):
        chart = page.charts[name]
        (axes,) = charts.draw(chart).axes
        for line, trace in zip(axes.lines, chart.data, strict=True):
            drawn = np.array(line.get_data(), dtype=float)
            np.testing.assert_allclose(drawn, [trace["x"], trace["y"]])
    groups = page.charts["chart-groups"]
    (axes,) = charts.draw(groups).axes
    heights = [[bar.get_height() for bar in container] for container in axes.containers]
    np.testing.assert_allclose(heights, [trace["y"] for trace in groups.data])
    (axes,) = charts.draw(page.charts["chart-errors"]).axes
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    labels = [text.get_text() for text in axes.get_yticklabels()]
    hollow = [dot.get_markerfacecolor() == charts.PAPER for dot in dots]
    assert hollow == ["oracle" in label for label in labels]


def test_neighbours_in_frequency_share_a_place_where_classes_are_many():
    counts = np.random.default_rng(0).permutation(np.arange(1, 301))
    axis = charts.ClassAxis.of(ClassPrior.from_counts(counts))
    assert axis.each == "group of 15 classes"
    assert (axis.counts[0], axis.counts[-1]) == ("300–286", "15–1")
    np.testing.assert_allclose(axis.mean(counts), np.arange(293, 0, -15))


def test_frequencies_may_be_shares_instead_of_counts():
    axis = charts.ClassAxis.of(ClassPrior.from_probs([0.2, 0.5, 0.3]), ["a", "b", "c"])
    assert axis.ticks()["ticktext"] == ["b: 50%", "c: 30%", "a: 20%"]


def test_every_figure_is_written_in_both_formats_with_equal_bytes(page, tmp_path):
    paths = page.write_figures(tmp_path / "one")
    assert len(paths) == 2 * len(pages.FIGURES)
    for first, second in zip(paths, page.write_figures(tmp_path / "two"), strict=True):
        assert first.read_bytes() == second.read_bytes()


def heights(lines):
    """Eighths of a line in each column of a chart."""
    width = max(map(len, lines))
    rows = [line.ljust(width) for line in lines]
    return [sum(" ▁▂▃▄▅▆▇█".index(row[i]) for row in rows) for i in range(width)]


def test_bars_are_as_high_as_their_values():
    values = [80, 40, 39, 1, 0, 10]
    expected = [32, 16, 16, 1, 0, 4]  # 1 of 80 is too little for an eighth, but seen
    assert heights(bars(values, width=6, height=4)) == expected
    assert heights(bars(values, width=13, height=4)) == np.repeat(expected, 2).tolist()
