"""The look of figures: colours, isolation from the user's settings, bytes that don't change."""

import pytest

from longtail import margins
from longtail.report import figures
from longtail.train import methods

matplotlib = pytest.importorskip("matplotlib")


def simple():
    with figures.style():
        figure, axes = figures.panels(columns=2, width=4, height=2)
        axes[0, 0].plot([0, 1], [0, 1], color=figures.color("softmax"), label="a")
        axes[0, 0].scatter([0, 1], [1, 0])
        axes[0, 1].fill_between([0, 1], [0, 1], alpha=0.3)
        axes[0, 0].legend()
    return figure


def test_the_users_settings_neither_enter_nor_change(tmp_path):
    plain = figures.save(simple(), tmp_path / "plain")
    with matplotlib.rc_context({"font.size": 31, "lines.linewidth": 9, "svg.hashsalt": "mine"}):
        mine = figures.save(simple(), tmp_path / "mine")
        assert matplotlib.rcParams["font.size"] == 31
        assert matplotlib.rcParams["svg.hashsalt"] == "mine"
    for one, two in zip(plain, mine, strict=True):
        assert one.read_bytes() == two.read_bytes()


def test_every_loss_has_a_colour():
    assert {*margins.MARGINS, methods.THRESHOLD} <= set(figures.METHOD_COLORS)
