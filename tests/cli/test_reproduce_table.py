"""`longtail reproduce table-exp` from data to table, on a small CIFAR that is frozen here."""

import json

import pytest

from exp_factory import OVERRIDES, SEEDS, small_cifar, trained_root
from longtail.data.frozen import freeze
from longtail.experiments import records
from longtail.experiments.demo import one_thread
from longtail.train import engine

SMALL = [
    word for key, value in OVERRIDES.items() for word in ("--set", f"{key}={json.dumps(value)}")
]
ONE = ["--dataset", "cifar10-lt", "--seeds", SEEDS, "--device", "cpu", *SMALL]


@pytest.fixture
def data(tmp_path):
    """A folder of data with one frozen file."""
    folder = tmp_path / "data"
    folder.mkdir()
    freeze(small_cifar(), folder / "small.frozen")
    return folder


@pytest.fixture
def undrawn(monkeypatch):
    """No figures: other tests look at them."""
    monkeypatch.setattr("longtail.report.table_exp.FIGURES", {})


def test_from_data_to_table_and_on_after_a_stop(cli, data, undrawn, tmp_path):
    words = ["reproduce", "table-exp", "--rows", "table", "--data-dir", data, *ONE]
    stopped = cli(*words, "--minutes", 1e-9)
    assert stopped.code == 0
    assert "Time is up: 0 runs finished" in stopped.err
    assert "--minutes 1e-09" in stopped.err  # the command to go on with
    assert not (tmp_path / "longtail-table-exp").exists()
    with one_thread():
        whole = cli(*words)
    assert whole.code == 0, whole.err
    assert max(map(len, whole.out.splitlines())) <= 80
    assert "…" not in whole.out
    assert "softmax (ERM)" in whole.out
    assert "Fewer runs than asked" not in whole.out
    assert "Nothing was trained" not in whole.err
    again = cli(*words)
    assert again.code == 0
    assert "Nothing was trained: all runs are on record in results/exp" in again.err
    assert "--records" in again.err
    found = records.read_all(tmp_path / "results" / "table-exp")
    assert len(found) == 5 * SEEDS
    same = records.read_all(trained_root() / "kept")
    assert [one.document["splits"] for one in found] == [one.document["splits"] for one in same]
    command = next((tmp_path / "runs").glob("*/softmax-s0-*/run.json"))
    assert "longtail reproduce table-exp" in json.loads(command.read_text())["command"]


def test_from_records_alone(cli, undrawn, monkeypatch, tmp_path):
    monkeypatch.setattr(engine, "train_cohort", lambda *_, **__: pytest.fail("trained"))
    words = ["reproduce", "table-exp", "--records", trained_root() / "kept", "--no-train", *ONE]
    printed = json.loads(cli(*words, "--json").out)
    assert printed["complete"] is True
    assert printed["parts"][0]["rows"][0]["seeds"] == [0, 1]
    assert not (tmp_path / "longtail-table-exp").exists()
    for _ in range(2):  # its own tables are replaced
        assert cli(*words, "--out", "here").code == 0
    assert (tmp_path / "here" / "table-exp.md").exists()


def test_without_records_the_commands_are_named(cli):
    done = cli("reproduce", "table-exp", "--no-train", "--recipe", "paper")
    assert done.code == 1
    assert "longtail reproduce table-exp --recipe paper --dataset cifar10-lt" in done.err
    assert len(done.err.splitlines()) == 1


def test_missing_data_are_named_before_anything_is_trained(cli, tmp_path):
    (tmp_path / "empty").mkdir()
    done = cli("reproduce", "table-exp", "--data-dir", "empty", *ONE)
    assert done.code == 1
    assert "there is no CIFAR-10 in empty" in done.err


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--rows", "all"], 1, "`--rows` must be one of"),
        (["--dataset", "digits-lt"], 1, "`--dataset` must be one of"),
        (["--recipe", "papier"], 1, "papier"),
        (["--minutes", "0"], 2, "--minutes must be above 0"),
        (["--seeds", "0"], 2, "seeds"),
        (["--set", "epochs"], 1, "name=value"),
        (["--precision", "int8", "--device", "cpu"], 1, "`--precision` must be one of"),
        (["--device", "tpu"], 1, "--device must be"),
    ],
)
def test_bad_options(cli, monkeypatch, options, code, message):
    monkeypatch.setattr(engine, "train_cohort", lambda *_, **__: pytest.fail("trained"))
    done = cli("reproduce", "table-exp", *options)
    assert done.code == code
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_options_that_would_do_nothing_are_refused(cli):
    done = cli("reproduce", "theory", "--seeds", 3)
    assert done.code == 2
    assert "--seeds has no part in theory, which trains nothing" in done.err
    done = cli("reproduce", "theory", "--no-train")
    assert "--no-train has no part in theory" in done.err
