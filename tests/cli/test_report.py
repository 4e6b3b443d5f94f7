"""`longtail report`: what it writes and prints, and each kind of bad input in one line."""

from pathlib import Path

import pytest

from page_factory import digits_root, digits_runs
from run_factory import make_run, make_spec

pytest.importorskip("plotly")


@pytest.fixture
def folders():
    """Two of the digits runs: softmax and logit-adjusted, seed 0."""
    wanted = {"softmax", "logit-adjusted"}
    return [
        run.folder
        for run in digits_runs()
        if run.spec.seed == 0 and run.spec.method.name in wanted and not run.spec.dataset.held_out
    ]


def test_a_folder_of_runs_becomes_a_page_and_a_table(ok):
    result = ok("report", digits_root())
    assert result.err == ""
    assert "post-hoc logit adj. (τ held-out)" in result.out
    assert "Trained on digits-lt with plain softmax" in result.out.replace("\n", " ")
    assert "Open report.html in a browser: it has a slider" in result.out
    page = Path("report.html").read_text()
    assert f"longtail report {digits_root()} --force" in page


def test_figures_and_a_title(ok, folders):
    result = ok("report", *folders, "--out", "p.html", "--figures", "figs", "--title", "My runs")
    assert "<title>My runs</title>" in Path("p.html").read_text()
    assert Path("figs/tau.svg").read_text().startswith("<?xml")
    assert len(list(Path("figs").iterdir())) == 12
    assert "Figures in figs: errors.svg" in result.out


def test_an_existing_page_asks_for_force(cli, refused, folders):
    Path("old.html").write_text("mine")
    message = refused("report", *folders, "--out", "old.html")
    assert message == "old.html exists; pass --force to replace it."
    assert Path("old.html").read_text() == "mine"
    assert cli("report", *folders, "--out", "old.html", "--force").code == 0
    assert "<html" in Path("old.html").read_text()


def test_runs_on_different_data(refused, folders):
    other = make_run(Path("runs"), make_spec(dataset="digits-lt", method="softmax"))
    message = refused("report", *folders, other.folder)
    assert "were trained on different data" in message
    assert message.endswith("compare runs of one data set.")
