"""`longtail reproduce`: what it prints and writes, and what it refuses before it works."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from longtail.cli import main
from longtail.cli.reproduce import EXPERIMENTS, module_of, whole_of
from longtail.experiments import separable, synthetic, theory
from longtail.report import synthetic as synthetic_report
from longtail.report import theory as theory_report


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """The study in small, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    settings = synthetic.Settings(trials=3, num_train=3000, num_test=1000)
    full = synthetic.run
    monkeypatch.setattr(
        synthetic, "run", lambda *, progress=None: full(settings=settings, progress=progress)
    )
    return tmp_path


@pytest.fixture
def never(monkeypatch, tmp_path):
    """Work that must not begin."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(synthetic, "run", lambda **_: pytest.fail("began to work"))
    return tmp_path


@pytest.fixture
def quick_theory(monkeypatch, tmp_path):
    """The theory with few trials and points, its figures left out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    settings, full = separable.Settings(trials=2, penalties=(1e-1, 1e-4)), theory.run
    monkeypatch.setattr(theory, "run", lambda *, progress=None: full(points=19, settings=settings))
    monkeypatch.setattr(theory_report, "write", lambda results, folder: [])
    return tmp_path


def test_json_has_the_promised_shape_and_nothing_is_written(quick, capsys):
    assert main(["reproduce", "synthetic", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["bayes_error"] == pytest.approx(7.86496, abs=1e-5)
    for name in (
        "softmax",
        "adaptive",
        "equalized",
        "logit-adjusted",
        "posthoc-logit-adjusted",
        "posthoc-weight-normalized",
    ):
        assert set(printed["methods"][name]) == {"mean", "std"}
        assert printed["methods"][name]["mean"] > printed["bayes_error"]
    assert printed["curves"]["tau"][-1] == 3.0
    assert list(quick.iterdir()) == []


@pytest.mark.slow
def test_the_real_command_within_its_time():
    done = subprocess.run(
        [Path(sys.executable).with_name("longtail"), "reproduce", "synthetic", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    methods = json.loads(done.stdout)["methods"]
    assert methods["softmax"]["mean"] == pytest.approx(18.1, abs=0.2)
    assert methods["logit-adjusted"]["mean"] == pytest.approx(7.865, abs=0.05)


def test_tables_are_printed_in_80_columns_and_files_written(quick, capsys):
    assert main(["reproduce", "synthetic"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "logit adjusted" in out
    assert "…" not in out
    assert "artefact" in out
    assert "Written to longtail-synthetic" in out
    found = sorted(path.name for path in (quick / "longtail-synthetic").iterdir())
    assert found == sorted(synthetic_report.FILES)


def test_theory_prints_verdicts_and_witnesses_in_80_columns(quick_theory, capsys):
    assert main(["reproduce", "theory"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    verdicts, _, witnesses = out.partition("Witnesses")
    row = next(line for line in verdicts.splitlines() if line.startswith("equalised"))
    assert row.split()[-3:] == ["✗", "✗", "✗"]
    row = next(line for line in verdicts.splitlines() if line.startswith("logit-adjusted loss"))
    assert row.split()[-3:] == ["✓", "✓", "✓"]
    assert "0, not 1" in next(w for w in witnesses.splitlines() if w.startswith("equalised"))


def test_theory_as_json(quick_theory, capsys):
    assert main(["reproduce", "theory", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["agrees_with_paper"] is True
    assert printed["largest_deviation"] < 1e-9


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_offers_what_the_command_needs(name):
    computes = importlib.import_module(f"longtail.experiments.{module_of(name)}")
    draws = importlib.import_module(f"longtail.report.{module_of(name)}")
    assert callable(computes.run)
    assert callable(draws.tables)
    assert callable(draws.write)
    assert all(file.startswith(whole_of(name)) for file in draws.FILES)


def test_an_existing_file_is_refused_before_the_work(never, capsys):
    (never / "synthetic.png").write_text("mine")
    assert main(["reproduce", "synthetic", "--out", "."]) == 1
    error = capsys.readouterr().err
    assert "synthetic.png exists; pass --force to replace it" in error
    assert len(error.splitlines()) == 1
    assert (never / "synthetic.png").read_text() == "mine"


def test_force_replaces_and_other_files_stay(quick, capsys):
    (quick / "synthetic.png").write_text("old")
    (quick / "notes.txt").write_text("mine")
    assert main(["reproduce", "synthetic", "--out", ".", "--force", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert json.loads((quick / "synthetic.json").read_text()) == printed
    assert (quick / "synthetic.png").read_bytes().startswith(b"\x89PNG")
    assert (quick / "notes.txt").read_text() == "mine"


def test_a_file_in_place_of_the_folder(never, capsys):
    (never / "taken").write_text("")
    assert main(["reproduce", "synthetic", "--out", "taken"]) == 1
    assert "--out must be a folder, but taken is a file" in capsys.readouterr().err


def test_without_matplotlib_the_install_command_is_named_before_the_work(
    never, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["reproduce", "synthetic"]) == 1
    assert "pip install 'longtail[report]'" in capsys.readouterr().err


def test_an_unknown_name_lists_the_known_ones(never, capsys):
    assert main(["reproduce", "sinthetic"]) == 2
    error = capsys.readouterr().err
    assert "there is no experiment 'sinthetic'" in error
    assert all(name in error for name in EXPERIMENTS)
    assert len(error.splitlines()) == 1


def test_no_name_lists_them(never, capsys):
    assert main(["reproduce"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()] == list(EXPERIMENTS)
    assert max(map(len, out.splitlines())) <= 80
    assert main(["reproduce", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed] == list(EXPERIMENTS)


def test_help_teaches_by_example(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["reproduce", "--help"]) == 0
    out = capsys.readouterr().out
    assert "longtail reproduce synthetic --json" in out
    assert "--force" in out
