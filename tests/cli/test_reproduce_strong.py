"""`longtail reproduce strong` from frozen data to tables, and what it refuses."""

import json
import shutil
from pathlib import Path

import pytest

from longtail.cli.reproduce import PARTS
from longtail.data.hub_parquet import freeze
from longtail.experiments import records
from longtail.experiments.demo import one_thread
from longtail.experiments.strong_kinds import STRONG
from longtail.experiments.strong_runs import Setting
from longtail.train import engine
from strong_factory import OVERRIDES, made_up_setting, small_data, small_run, trained_root

SMALL = [
    word for key, value in OVERRIDES.items() for word in ("--set", f"{key}={json.dumps(value)}")
]
ONE = ["--dataset", "cifar10-lt", "--seeds", 1, "--device", "cpu", *SMALL]


@pytest.fixture
def data(tmp_path):
    """A folder of data with one frozen file, with its development set."""
    folder = tmp_path / "data"
    folder.mkdir()
    freeze(small_data(), folder / "small.frozen", dev=True)
    return folder


@pytest.fixture
def undrawn(monkeypatch):
    """No figure: another test looks at it."""
    monkeypatch.setattr("longtail.report.strong.draw", lambda study: None)


def test_from_data_to_table_and_on_after_a_stop(cli, data, undrawn, tmp_path):
    words = ["reproduce", "strong", "--stage", "strong", "--data-dir", data, *ONE]
    stopped = cli(*words, "--minutes", 1e-9)
    assert stopped.code == 0
    assert "Time is up: 0 runs finished" in stopped.err
    with one_thread():
        whole = cli(*words)
    assert whole.code == 0, whole.err
    assert max(map(len, whole.out.splitlines())) <= 80
    assert "…" not in whole.out
    assert "ProCo, published" in whole.out
    (one,) = records.read_all(tmp_path / "results" / "strong")
    name = one.name
    (same,) = [r for r in records.read_all(trained_root() / "kept") if r.name == name]
    assert one.document["splits"] == same.document["splits"]
    assert one.document["again"] == same.document["again"]


def test_from_records_alone(cli, undrawn, monkeypatch, tmp_path):
    monkeypatch.setattr(engine, "train_cohort", lambda *_, **__: pytest.fail("trained"))
    words = ["reproduce", "strong", "--records", trained_root() / "kept", "--no-train", *ONE]
    printed = json.loads(cli(*words, "--json").out)
    (part,) = printed["parts"]
    assert part["missing"] == []
    assert [line["name"] for line in part["lines"]][-1] == "strong-distilled"
    assert not (tmp_path / "longtail-strong").exists()
    shown = cli(*words, "--out", "here")
    assert shown.code == 0
    assert max(map(len, shown.out.splitlines())) <= 80
    assert (tmp_path / "here" / "strong.md").exists()


def test_the_distilled_one_by_its_own_name(cli, undrawn, monkeypatch, tmp_path):
    """Teachers and students of the same experiment, its records and its tables."""
    asked, study = {}, small_run(trained_root(), load=None)

    def run(**options):
        asked.update(options)
        return study

    monkeypatch.setattr("longtail.experiments.strong.run", run)
    words = ["reproduce", "strong-distilled", *ONE]
    done = cli(*words)
    assert done.code == 0, done.err
    assert list(asked["stages"]) == ["teachers", "students"]
    assert asked["folder"].as_posix() == "results/strong"
    assert asked["command"].startswith("longtail reproduce strong-distilled --dataset cifar10-lt")
    assert "strong-distilled" in done.out
    assert (tmp_path / "longtail-strong-distilled" / "strong.md").exists()
    assert cli(*words, "--stage", "more-teachers").code == 0
    assert asked["stages"] == ["more-teachers"]


def test_teachers_and_students_are_all_that_the_distilled_one_trains(tmp_path):
    for folder in ("runs", "kept"):
        shutil.copytree(trained_root() / folder, tmp_path / folder)
    first = {one.name for one in records.read_all(tmp_path / "kept")}
    (strong,) = Setting("cifar10-lt", seeds=1, overrides=OVERRIDES).strong.specs([STRONG])
    (tmp_path / "kept" / f"{strong.folder}.json").unlink()
    own = PARTS["strong-distilled"][1]
    small_run(tmp_path, stages=own)
    assert first - {one.name for one in records.read_all(tmp_path / "kept")} == {
        strong.folder.as_posix()
    }


def test_names_and_numbers_are_whole_on_a_narrow_terminal(cli, undrawn):
    """With two numbers before each point and their deviations, as on CIFAR-100-LT."""
    for one in made_up_setting(Setting("cifar100-lt"), level=0.45):
        records.write(one, Path("kept"))
    shown = cli("reproduce", "strong", "--no-train", "--records", "kept")
    assert shown.code == 0, shown.err
    assert max(map(len, shown.out.splitlines())) <= 80
    assert "…" not in shown.out
    title, rest = shown.out.split("\n", 1)
    assert title == "Balanced test error in percent, CIFAR-100-LT, imbalance ratio 100"
    rows = {line[:22].rstrip() for line in rest.split("error: last epoch")[0].splitlines()}
    assert {"strong-distilled", "ProCo, published", "ensemble of 7 teachers"} <= rows


def test_without_records_the_commands_are_named(cli):
    done = cli("reproduce", "strong", "--no-train", "--dataset", "cifar10-lt", "--rho", 50)
    assert done.code == 1
    assert "longtail reproduce strong --dataset cifar10-lt --rho 50" in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "options", "code", "message"),
    [
        ("strong", ["--stage", "pupils"], 1, "`--stage` must be one of"),
        ("strong", ["--rho", "20"], 1, "`--rho` must be one of"),
        ("strong", ["--dataset", "digits-lt"], 1, "`--dataset` must be one of"),
        (
            "strong",
            ["--recipe", "paper"],
            2,
            "--recipe has no part in strong; it belongs to table-exp",
        ),
        ("strong", ["--rows", "table"], 2, "--rows has no part in strong; it belongs to table-exp"),
        ("table-exp", ["--rho", "50"], 2, "--rho has no part in table-exp; it belongs to strong"),
        ("theory", ["--stage", "strong"], 2, "--stage has no part in theory"),
    ],
)
def test_bad_options(cli, monkeypatch, name, options, code, message):
    monkeypatch.setattr(engine, "train_cohort", lambda *_, **__: pytest.fail("trained"))
    done = cli("reproduce", name, *options)
    assert done.code == code
    assert message in done.err
    assert len(done.err.splitlines()) == 1
