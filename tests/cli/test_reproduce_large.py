"""`longtail reproduce` for what is of the large data sets' size."""

import json

import pytest

from large_factory import OVERRIDES, small_sizes, trees
from longtail._checks import InputError
from longtail.experiments import large_simulation, records, table_large
from longtail.experiments.demo import one_thread
from longtail.experiments.large_simulation import Settings
from longtail.train import engine
from longtail.train.streamed import Streaming


@pytest.fixture
def small(monkeypatch):
    """The simulation on twenty classes; gives what the command asked for."""
    full, asked = large_simulation.run, []

    def run(**options):
        asked.append(dict(options))
        chosen = options["settings"]
        options["settings"] = Settings(
            dimension=4, trials=chosen.trials, multiples=chosen.multiples, test_points=2000
        )
        counts = [200, 90, 40, 20, 15, 10, 8, 6, 5, 4] * 2
        return full(**options, class_counts=dict.fromkeys(large_simulation.DATASETS, counts))

    monkeypatch.setattr(large_simulation, "run", run)
    return asked


def test_the_simulation_from_command_to_files(cli, small, tmp_path):
    words = ["reproduce", "large-simulation", "--dataset", "imagenet-lt", "--seeds", 2]
    done = cli(*words, "--multiples", "5,1", "--device", "cpu")
    assert done.code == 0, done.err
    assert max(map(len, done.out.splitlines())) <= 80
    assert "…" not in done.out
    assert "ImageNet-LT × 5" in done.out
    names = sorted(path.name for path in (tmp_path / "longtail-large-simulation").iterdir())
    assert names == [f"large-simulation.{ending}" for ending in ("json", "md", "png", "svg")]
    assert small[0]["datasets"] == ["imagenet-lt"]
    assert small[0]["settings"].trials == 2
    assert small[0]["settings"].multiples["imagenet-lt"] == [1, 5]


def test_the_simulation_as_json(cli, small, tmp_path):
    done = cli("reproduce", "large-simulation", "--seeds", 1, "--multiples", 1, "--json")
    trials = json.loads(done.out)["trials"]
    assert [one["dataset"] for one in trials] == ["imagenet-lt", "inaturalist"]
    assert not (tmp_path / "longtail-large-simulation").exists()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--multiples", "1,x"], 2, "--multiples takes whole numbers above 0"),
        (["--multiples", "0"], 2, "--multiples takes whole numbers above 0"),
        (["--dataset", "places-lt"], 1, "`--dataset` must be one of"),
        (["--recipe", "paper"], 2, "--recipe has no part in large-simulation"),
        (["--device", "tpu"], 1, "--device must be"),
        (["--data-dir", "empty"], 1, "there is no file empty/class_counts/imagenet_lt.txt"),
    ],
)
def test_bad_options_of_the_simulation(cli, options, code, message):
    done = cli("reproduce", "large-simulation", *options)
    assert done.code == code
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_its_own_options_are_refused_elsewhere(cli):
    done = cli("reproduce", "theory", "--multiples", "1")
    assert done.code == 2
    assert "--multiples has no part in theory" in done.err
    assert "large-simulation" in done.err


SMALL = [
    word for key, value in OVERRIDES.items() for word in ("--set", f"{key}={json.dumps(value)}")
]
ONE = ["--dataset", "imagenet-lt", "--model", "resnet50", "--seeds", 1, "--device", "cpu", *SMALL]
READ = ["--data-dir", trees, "--workers", 0]


def words(*more):
    found = ["reproduce", "table-large", *ONE, *more]
    return [word() if callable(word) else word for word in found]


def test_the_large_table_from_lists_to_files(cli, monkeypatch, tmp_path):
    small_sizes(monkeypatch)
    monkeypatch.setattr("longtail.report.table_large.FIGURES", {})
    with one_thread():
        stopped = cli(*words(*READ, "--minutes", 1e-9))
        assert "Time is up: 0 runs finished" in stopped.err
        done = cli(*words(*READ))
    assert done.code == 0, done.err
    assert max(map(len, done.out.splitlines())) <= 80
    assert "…" not in done.out
    assert "ImageNet-LT, ResNet-50, 90 epochs" in done.out
    assert "Fewer runs than asked" not in done.out
    assert len(records.read_all(tmp_path / "results" / "table-large")) == 6
    assert (tmp_path / "longtail-table-large" / "table-large.md").exists()
    printed = json.loads(cli(*words("--no-train", "--json")).out)
    assert printed["complete"] is True
    assert printed["parts"][0]["model"] == "resnet50"


def test_the_hours_before(cli, monkeypatch, tmp_path):
    small_sizes(monkeypatch)
    full = table_large.estimate
    monkeypatch.setattr(table_large, "estimate", lambda **o: full(**{**o, "seconds": 0.2}))
    with one_thread():
        done = cli(*words(*READ, "--estimate"))
        assert done.code == 0, done.err
        assert max(map(len, done.out.splitlines())) <= 80
        assert "GPU hours for every cell of ImageNet-LT" in done.out
        printed = json.loads(cli(*words(*READ, "--estimate", "--json")).out)
    assert printed["columns"][0]["epochs"] == OVERRIDES["epochs"]
    assert not (tmp_path / "results").exists()
    assert not (tmp_path / "runs").exists()


def test_what_to_put_where_is_said_before_anything_begins(cli, monkeypatch, tmp_path):
    monkeypatch.delenv("LONGTAIL_DATA", raising=False)
    monkeypatch.setattr(engine, "train_cohort", lambda *_, **__: pytest.fail("began"))
    done = cli(*words())
    assert done.code == 1
    assert "say where the lists of imagenet-lt are (ImageNet_LT_train.txt" in done.err
    assert "--data-dir" in done.err
    assert "--root" in done.err
    (tmp_path / "empty").mkdir()
    done = cli(*words("--data-dir", "empty"))
    assert "there is no list of ImageNet-LT in empty" in done.err
    # The published number of images is asked for, and every file must be there.
    done = cli(*words("--data-dir", trees))
    assert "the train set of ImageNet-LT has 115,846" in done.err
    small_sizes(monkeypatch)
    done = cli(*words("--data-dir", trees, "--root", "empty"))
    assert done.code == 1
    assert "42 of the 42 files" in done.err
    assert "are not in empty" in done.err


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--model", "resnet32"], 1, "`model` must be one of"),
        (["--epochs", "100"], 1, "`epochs` must be one of 90, 200"),
        (["--dataset", "cifar10-lt"], 1, "`dataset` must be one of"),
        (["--recipe", "tuned"], 2, "--recipe has no part in table-large; it belongs to table-exp"),
        (["--minutes", "0"], 2, "--minutes must be above 0"),
        (["--micro-batch", "0"], 2, "invalid value for '--micro-batch'"),
        (["--estimate", "--minutes", "5"], 2, "--minutes can't stand beside --estimate"),
        (["--estimate", "--no-train"], 2, "--no-train can't stand beside --estimate"),
        (["--precision", "int8", "--device", "cpu"], 1, "`--precision` must be one of"),
    ],
)
def test_bad_options_of_the_large_table(cli, options, code, message):
    done = cli("reproduce", "table-large", *options)
    assert done.code == code
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_what_the_errors_of_training_advise_can_be_typed(cli, monkeypatch):
    """Too little memory asks for --micro-batch, a compiler that fails for --no-compile."""
    small_sizes(monkeypatch)
    asked = {}

    def train_cohort(*_, **options):
        asked.update(options)
        raise InputError("enough")

    monkeypatch.setattr(engine, "train_cohort", train_cohort)
    assert "enough" in cli(*words(*READ, "--micro-batch", 32, "--no-compile")).err
    assert asked["streaming"] == Streaming(workers=0, micro_batch=32, compile=False)


def test_its_options_are_refused_by_the_exp_table(cli):
    done = cli("reproduce", "table-exp", "--estimate")
    assert done.code == 2
    assert "--estimate has no part in table-exp; it belongs to table-large" in done.err
