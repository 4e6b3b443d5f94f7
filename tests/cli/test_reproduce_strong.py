"""`longtail reproduce strong` from frozen data to tables, and what it refuses."""

import json

import pytest

from longtail.data.frozen import freeze
from longtail.experiments import records
from longtail.experiments.demo import one_thread
from longtail.train import engine
from strong_factory import OVERRIDES, small_data, trained_root

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
