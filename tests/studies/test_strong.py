"""How far it goes: the list of runs, what records say, the page, and a small study from nothing."""

import json
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from longtail.data.images import ImageSet
from longtail.data.subsets import make_long_tailed
from longtail.runs import DataSpec
from longtail.train.recipe import recipe_values
from studies import __main__, _records, strong
from studies._records import Shelf

ROOT = Path(__file__).parents[2]


@cache
def shelf():
    return Shelf(ROOT / "results/strong")


@cache
def setting(dataset, ratio=100.0):
    return strong.Setting(dataset, ratio, strong.runs_of(dataset, ratio), shelf())


def every():
    return [setting(dataset, ratio) for dataset in strong.DATASETS for ratio in strong.RATIOS]


def test_the_list_of_runs_is_that_of_the_records():
    """Nothing is missing, and no record is of a run that the list has not."""
    assert not [name for one in every() for name in one.missing()]
    assert {r.name for one in every() for r in one.records} == {r.name for r in shelf().records}


def file_of(one):
    return json.loads((ROOT / f"results/strong/{one.name}.json").read_text())


def test_a_line_says_what_its_records_say():
    line = setting("cifar100-lt").line("strong", "strong")
    documents = [file_of(one) for one in line.records]
    assert len(documents) == 5
    examples = np.array([one["splits"]["test"]["examples"] for one in documents])
    shares = np.array([one["splits"]["test"]["wrong"] for one in documents]) / examples
    tuned = np.array([one["again"]["wrong"] for one in documents]) / examples
    np.testing.assert_allclose(line.errors, shares.mean(axis=1))
    np.testing.assert_allclose(line.tuned, tuned.mean(axis=1))
    np.testing.assert_allclose(line.taus, [one["again"]["tau"] for one in documents])
    few = np.array(documents[0]["counts"]) < 20
    assert line.groups["few"] == pytest.approx(shares[:, few].mean())
    assert line.minutes == pytest.approx(np.mean([one["seconds"] for one in documents]) / 60)
    rows = strong.results_table(setting("cifar100-lt")).rows
    cells = next(row for row in rows if line.name in row)
    mean, deviation = 100 * shares.mean(), 100 * shares.mean(axis=1).std(ddof=1)
    assert cells[2] == f"{mean:.2f} ± {deviation:.2f}"


def test_the_page_is_made_from_the_records():
    assert (ROOT / "docs/how-far.md").read_text() == strong.text(every())
    block = strong.readme_table([setting(d) for d in strong.DATASETS]).markdown()
    assert (
        f"<!-- results: begin -->\n{block}\n<!-- results: end -->"
        in (ROOT / "README.md").read_text()
    )


def test_what_the_prose_of_the_page_says_of_students():
    """Their temperature matters; the other settings change less than a point."""
    for dataset in strong.DATASETS:
        lines = [o for o in setting(dataset).part("ablation") if o.name.startswith("student, ")]
        base = setting(dataset).line("ablation", "student")
        change = {o.name: strong.change(o, base, "errors") for o in lines}
        assert change.pop("student, temperature 1").excludes_zero
        assert all(abs(one.mean) < 0.01 for one in change.values())


def test_the_recipe_follows_what_the_development_set_chose():
    own = {"weight_decay", "cutout", "cutmix", "mix_partner"}
    own |= {"distill_weight", "distill_temperature", "distill_adjusted"}
    for dataset, found in strong.selections().items():
        path = ROOT / f"results/strong/selection-{dataset}.json"
        trials = {one["name"]: one for one in json.loads(path.read_text())["trials"]}
        best, recipe = trials[found["best"]], recipe_values("strong-student", dataset=dataset)
        assert best["method"] == strong.EQUALLY
        assert {k: recipe.get(k) for k in own} == {k: best["overrides"][k] for k in own}


# A study in small, from nothing.

SMALL = ("model=small-conv", "epochs=2", "batch_size=64", "lr=0.02", "warmup_epochs=0")


@cache
def small_cifar(ratio):
    """Noisy pictures, each class around one of its own; larger than the square of Cutout."""
    random = np.random.default_rng(0)
    centres = random.integers(60, 196, (10, 3, 18, 18))

    def pictures(each):
        labels = np.repeat(np.arange(10), each)
        noise = random.normal(0, 60, (len(labels), 3, 18, 18))
        images = np.clip(centres[labels] + noise, 0, 255).astype(np.uint8)
        return ImageSet(images, labels.astype(np.int64), tuple(f"c{k}" for k in range(10)))

    spec = DataSpec("cifar10-lt", profile="exp", imbalance_ratio=ratio)
    return make_long_tailed(pictures(100), pictures(6), spec)


@pytest.fixture
def study(tmp_path, monkeypatch, capsys, one_thread):
    """Call the study in small, in a folder of its own."""
    monkeypatch.setattr(_records, "_load", lambda spec, _: small_cifar(spec.imbalance_ratio))

    def call(*words):
        capsys.readouterr()
        sets = [word for value in SMALL for word in ("--set", value)]
        where = ["--runs", str(tmp_path / "runs"), "--records", str(tmp_path / "kept")]
        what = ["--dataset", "cifar10-lt", "--rho", "100", "--seeds", "1"]
        code = __main__.main(["strong", *what, *sets, *where, *words])
        return code, *capsys.readouterr()

    return call


def test_a_small_study_from_nothing(study, tmp_path, caplog):
    code, out, err = study("--part", "strong", "--part", "students")
    assert code == 0, err
    assert "strong-distilled" in out
    assert "the page is left as it is" in err.lower()
    kept = {path: path.read_bytes() for path in (tmp_path / "kept").rglob("*.json")}
    assert len(kept) == 8  # strong, five teachers, two kinds of students in so few epochs

    # Again: nothing is trained. Without weights a student's teachers are, and their records stay.
    study("--part", "strong", "--part", "students")
    assert {path: path.read_bytes() for path in (tmp_path / "kept").rglob("*.json")} == kept
    shutil.rmtree(tmp_path / "runs")
    student = next(path for path in kept if path.name.startswith("softmax+over-sampling"))
    student.unlink()
    code, out, err = study("--part", "students")
    assert code == 0, err
    assert "training 5 runs again" in caplog.text
    again = {path: path.read_bytes() for path in (tmp_path / "kept").rglob("*.json")}
    assert again.keys() == kept.keys()
    assert all(again[path] == text for path, text in kept.items() if path != student)
