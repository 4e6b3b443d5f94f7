"""No two rows of a chart look alike, whatever the methods are composed of."""

from types import SimpleNamespace

import numpy as np
import pytest

from longtail import ClassPrior
from longtail.margins import MARGINS
from longtail.report import arrange, blocks, charts, figures, run_figures
from longtail.report.compare import Comparison, Row, Scored
from longtail.train.methods import EXTRAS, THRESHOLD

# All the ways in which extras go with one loss, in one setting each.
ON_TOP = ["drw", "label-smoothing", "drw+label-smoothing", *list(EXTRAS)[2:]]
METHODS = [*MARGINS, THRESHOLD, *(f"{loss}+{on}" for loss in ("softmax", "ldam") for on in ON_TOP)]


def compared(num_classes):
    random = np.random.default_rng(0)
    prior = ClassPrior.from_counts(np.arange(num_classes, 0, -1) * 10)
    spec = SimpleNamespace(dataset=SimpleNamespace(name="some-lt"))
    run = SimpleNamespace(spec=spec, prior=prior, class_names=None)
    rows = [
        Row(m, None, "", (Scored(0, None, random.random(num_classes), lambda: None),), ())
        for m in METHODS
    ]
    return Comparison(tuple(rows), np.arange(num_classes), (run,), {}, {}, "test")


@pytest.mark.parametrize("num_classes", [10, 100])  # few classes have marks on their lines
def test_on_the_page(num_classes):
    pytest.importorskip("plotly")
    comparison = compared(num_classes)
    lines = charts.class_errors(arrange.class_errors(comparison))
    looks = {(line["line"]["color"], line["line"]["dash"]) for line in lines.data}
    assert len(looks) == len(METHODS)
    assert len({(item.color, item.dashes) for item in lines.legend}) == len(METHODS)
    bars = charts.group_errors(arrange.group_errors(comparison))
    looks = {(bar["marker"]["color"], bar["marker"]["pattern"]["shape"]) for bar in bars.data}
    assert len(looks) == len(METHODS)
    assert len({(item.color, item.hatch) for item in bars.legend}) == len(METHODS)
    assert len({item.dark for item in lines.legend}) == len({item.color for item in lines.legend})


def test_the_legends_on_the_page_show_dashes_and_hatches():
    pytest.importorskip("plotly")
    comparison = compared(10)
    drawn = [
        charts.class_errors(arrange.class_errors(comparison)),
        charts.group_errors(arrange.group_errors(comparison)),
    ]
    section = blocks.Section("looks", "Looks", (), [blocks.Plot(chart) for chart in drawn])
    text = blocks.render(blocks.Page("Looks", (), (), (), [section]))
    plain = len({figures.color(method) for method in METHODS})
    assert text.count('class="swatch line"') == len(METHODS)
    assert text.count("stroke-dasharray=") == len(METHODS) - plain
    hatched = [text.count(f'class="swatch bar h{number}"') for number in range(8)]
    assert hatched == [0, 2, 2, 2, 2, 2, 2, 0]
    for number in range(1, len(figures.HATCHES)):
        assert f".swatch.h{number} {{" in text


def test_on_paper():
    pytest.importorskip("matplotlib")
    comparison = compared(100)
    axes = run_figures.draw_classes(arrange.class_errors(comparison)).axes[0]
    dashes = [repr(line._unscaled_dash_pattern) for line in axes.lines]
    colors = [line.get_color() for line in axes.lines]
    assert len(set(zip(colors, dashes, strict=True))) == len(METHODS)
    axes = run_figures.draw_groups(arrange.group_errors(comparison)).axes[0]
    bars = [container[0] for container in axes.containers]
    assert len({(bar.get_facecolor(), bar.get_hatch()) for bar in bars}) == len(METHODS)
    # Hatches are drawn in the edge's colour, which must not be the bar's own.
    assert all(bar.get_edgecolor()[:3] != bar.get_facecolor()[:3] for bar in bars)


def test_a_legend_of_many_methods_fits_beside_the_figure():
    pytest.importorskip("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    comparison = compared(10)
    for figure in (
        run_figures.draw_classes(arrange.class_errors(comparison)),
        run_figures.draw_groups(arrange.group_errors(comparison)),
    ):
        FigureCanvasAgg(figure).draw()
        box = figure.axes[0].get_legend().get_window_extent()
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1 + 1
