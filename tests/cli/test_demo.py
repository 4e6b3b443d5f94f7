"""`longtail demo`, as a newcomer meets it."""

import pytest

pytest.importorskip("plotly")


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The whole demo, once: what it printed as JSON, and its folder."""
    from longtail.cli import main

    folder = tmp_path_factory.mktemp("demo") / "out"
    with pytest.MonkeyPatch.context() as patch:
        printed = []
        patch.setattr("longtail.cli._console.print_json", printed.append)
        assert main(["demo", "--out", str(folder), "--json"]) == 0
    return printed[0], folder


@pytest.mark.slow
def test_the_logit_adjusted_loss_beats_softmax_beyond_the_seeds_noise(demo):
    rows = {(row["method"], row["tau_source"]): row for row in demo[0]["rows"]}
    adjusted = rows["logit-adjusted", None]
    assert len(adjusted["seeds"]) == 5
    assert adjusted["balanced_error"]["mean"] < rows["softmax", None]["balanced_error"]["mean"]
    assert adjusted["difference_to_softmax"]["high"] < 0


@pytest.mark.slow
def test_it_writes_a_page_and_runs_that_can_be_reported_on_again(demo, tmp_path, capsys):
    from longtail.cli import main

    _, folder = demo
    assert (folder / "report.html").stat().st_size > 10_000
    assert len(list((folder / "runs" / "digits-lt").iterdir())) == 30
    assert main(["report", str(folder / "runs"), "--out", str(tmp_path / "again.html")]) == 0
    assert main(["runs", "list", str(folder / "runs"), "--json"]) == 0


@pytest.mark.parametrize(("missing", "extras"), [("plotly", "report"), ("torch", "torch,report")])
def test_a_missing_extra_is_named_before_any_work(monkeypatch, tmp_path, capsys, missing, extras):
    import sys

    from longtail.cli import main

    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["demo", "--out", str(tmp_path / "x")]) == 1
    assert f"pip install 'longtail[{extras}]'" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
