"""`longtail train`: what it trains, what it refuses, and how it goes on."""

import re
from pathlib import Path

import numpy as np
import pytest

from longtail.cli import main
from longtail.data.digits import load_digits_lt
from longtail.runs import find_runs
from longtail.train import engine
from run_factory import class_errors

pytestmark = pytest.mark.usefixtures("no_data_folder")

DIGITS = ("train", "--dataset", "digits-lt", "--set", "epochs=2", "--device", "cpu")


def by_hand(run, split="test"):
    """The balanced error in percent, from the stored logits."""
    return 100 * class_errors(*run.logits(split)[:2]).mean()


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    """Two methods and two seeds, trained once by the command: its folder of runs and its JSON."""
    out = tmp_path_factory.mktemp("cohort") / "runs"
    methods = ("--method", "softmax", "--method", "logit-adjusted:tau=1.5")
    words = (*DIGITS, *methods, "--seeds", "2", "--out", str(out))
    with pytest.MonkeyPatch.context() as patch:
        printed = []
        patch.setattr("longtail.cli._console.print_json", printed.append)
        assert main([*words, "--json"]) == 0
    return words, out, printed[0]


def test_every_method_and_seed_is_trained_and_judged(cohort):
    _, out, document = cohort
    runs = find_runs(out)
    assert {(run.spec.method.name, run.spec.seed) for run in runs} == {
        (method, seed) for method in ("softmax", "logit-adjusted") for seed in (0, 1)
    }
    folders = {Path(entry["folder"]): entry for entry in document["runs"]}
    for run in runs:
        assert dict(run.spec.recipe.overrides) == {"epochs": 2}
        assert run.data == load_digits_lt().train.fingerprint
        entry = folders[run.folder]
        assert 100 * entry["balanced_error"]["test"] == pytest.approx(by_hand(run))
        assert entry["spec"] == run.spec.to_json()
    softmax, adjusted = document["methods"]
    assert (softmax["method"], softmax["seeds"]) == ("softmax", [0, 1])
    assert adjusted["method"] == "logit-adjusted (tau=1.5)"
    errors = [by_hand(run) for run in runs if run.spec.method.name == "softmax"]
    assert 100 * softmax["test"]["balanced_error"] == pytest.approx(np.mean(errors))
    assert 100 * softmax["test"]["deviation"] == pytest.approx(np.std(errors, ddof=1))


def test_the_same_command_finds_everything_done_and_prints_the_table(cohort, ok, monkeypatch):
    words, _, document = cohort
    monkeypatch.setattr(engine, "run_epoch", lambda *_, **__: pytest.fail("trained again"))
    result = ok(*words)
    assert result.err == "Nothing to train: 4 runs finished already (--force: again).\n"
    title, _, softmax, adjusted, *_ = result.out.splitlines()
    assert title == "digits-lt (exp, imbalance ratio 50), recipe digits"
    values = document["methods"][0]["test"]
    shown = f"{100 * values['balanced_error']:.2f} ± {100 * values['deviation']:.2f}"
    assert re.fullmatch(rf"softmax +2 +{shown} +\d+\.\d s", softmax)
    assert adjusted.startswith("logit-adjusted (tau=1.5) ")


def test_a_run_does_not_depend_on_its_cohort_and_force_trains_again(cohort, cli, monkeypatch):
    _, out, _ = cohort
    words = (*DIGITS, "--method", "softmax", "--seed", 1, "--no-evaluate")
    trained = cli(*words)
    assert trained.out.endswith("yet: longtail evaluate runs/digits-lt\n")
    (alone,) = find_runs("runs")
    assert alone.splits == ()  # the test set stays closed
    (within,) = (run for run in find_runs(out) if run.name == alone.name)
    for name, value in alone.model().items():
        np.testing.assert_array_equal(value, within.model()[name])
    epochs = []
    real = engine.EpochEnd
    monkeypatch.setattr(engine, "EpochEnd", lambda *a: epochs.append(a[2]) or real(*a))
    assert cli(*words, "--force").code == 0
    assert epochs == [1, 2]


def test_a_held_out_part_is_judged_beside_the_test_set(cli, ok):
    words = (*DIGITS, "--held-out", 0.2, "--method")
    assert "longtail tune" not in cli(*words, "balanced", "--out", "other").out
    result = ok(*words, "softmax")
    (run,) = find_runs("runs")
    assert run.spec.dataset.held_out == 0.2
    assert run.prior.counts.sum() < len(load_digits_lt().train)
    row = result.out.splitlines()[2].split()
    assert row[:4] == ["softmax", "1", f"{by_hand(run):.2f}", f"{by_hand(run, 'held-out'):.2f}"]
    assert f"longtail tune {run.folder}" in result.out
    assert cli("tune", run.folder).code == 0


def test_the_precision_is_part_of_the_spec_unless_it_is_float32(cli):
    words = ("train", "--dataset", "digits-lt", "--set", "epochs=1", "--method", "softmax")
    for precision in ("float32", "bfloat16", "auto"):
        assert cli(*words, "--device", "cpu", "--precision", precision).code == 0
    found = [dict(run.spec.settings) for run in find_runs("runs")]
    assert sorted(map(str, found)) == ["{'precision': 'bfloat16'}", "{}"]


def test_a_run_killed_before_its_first_checkpoint_begins_again(cli, monkeypatch, ok):
    words = (*DIGITS, "--method", "softmax", "--no-evaluate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "EpochEnd", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert "1 begun but not saved yet" in " ".join(cli(*words).err.split())
    again = ok(*words)
    assert "continued" not in again.err


@pytest.mark.parametrize(
    ("method", "twice"), [("logit-adjusted+drw", True), ("softmax+drw", False)]
)
def test_weights_on_top_of_a_loss_that_needs_none_are_told(ok, method, twice):
    words = ("--set", "warmup_epochs=1", "--no-evaluate", "--method", method)
    result = ok(*DIGITS, *words)
    assert (f"warning: {method} corrects for class frequencies twice" in result.err) is twice
    assert ("warning" in result.err) is twice
