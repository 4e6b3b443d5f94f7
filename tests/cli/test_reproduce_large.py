"""`longtail reproduce` for what is of the large data sets' size."""

import json

import pytest

from longtail.experiments import large_simulation
from longtail.experiments.large_simulation import Settings

pytest.importorskip("torch")


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
