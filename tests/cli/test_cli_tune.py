import json
from pathlib import Path

import numpy as np
import pytest

from longtail import ClassPrior
from longtail.runs import Part, RunWriter
from longtail.tuning import tune_normalization, tune_tau
from run_factory import make_run, make_spec

COUNTS = [900, 90, 10]


@pytest.fixture
def problem(cli):
    """Held-out logits whose best tau is near 1, and files of them in the current folder."""
    prior = ClassPrior.from_counts(COUNTS)
    target = np.repeat([0, 1, 2], 50)
    noise = np.random.default_rng(0).normal(size=(150, 3))
    logits = noise + 2.0 * np.eye(3)[target] + prior.log_probs
    np.savez("held-out.npz", logits=logits, target=target)
    np.save("logits.npy", logits)
    return logits, target, prior


@pytest.fixture
def plain(problem):
    """A finished run of plain softmax that has those logits of its test set."""
    logits, target, prior = problem
    spec = make_spec(method="softmax")
    return make_run(Path("runs"), spec, logits=logits, target=target, prior=prior)


def test_the_result_is_that_of_tune_tau(cli, problem, ok):
    result = ok("tune", "held-out.npz", "--counts", "900,90,10", err="")
    assert result.out == str(tune_tau(*problem)) + "\n"
    document = json.loads(cli("tune", "held-out.npz", "--counts", "900,90,10", "--json").out)
    assert document == json.loads(json.dumps(tune_tau(*problem).to_dict()))


def test_options_reach_the_library(cli, problem):
    logits, target, _ = problem
    norms, bias = np.array([1.0, 0.8, 0.5]), np.array([0.1, 0.0, -0.1])
    np.savez("all.npz", logits=logits, target=target, counts=COUNTS, norms=norms, bias=bias)
    words = ["--method", "weight-normalization", "--bias-mode", "drop", "--bounds", "0.5", "2"]
    result = cli("tune", "all.npz", *words, "--bootstrap", 20, "--seed", 3, "--curve", 5, "--json")
    options = {"bias_mode": "drop", "bounds": (0.5, 2.0), "n_bootstrap": 20, "random_state": 3}
    expected = tune_normalization(logits, target, norms=norms, bias=bias, **options)
    assert json.loads(result.out) == json.loads(json.dumps(expected.to_dict(curve_points=5)))


def test_a_run_folder_brings_everything(ok, problem, plain):
    RunWriter.reopen(plain.folder).write_logits("held-out", *problem[:2])
    result = ok("tune", plain.folder, "--json", err="")
    assert json.loads(result.out)["tau"] == tune_tau(*problem).tau
    words = ["--split", "test", "--method", "weight-normalization", "--json"]
    expected = tune_normalization(*problem[:2], norms=[1.0, 2.0, 3.0])
    assert json.loads(ok("tune", plain.folder, *words).out)["tau"] == expected.tau


def test_the_labels_of_a_run_are_positions_also_where_classes_are_called_numbers(cli, problem, ok):
    names = ["2", "0", "1"]
    logits, target, prior = problem
    spec = make_spec(method="softmax")
    run = make_run(Path("runs"), spec, logits=logits, target=target, prior=prior, class_names=names)
    result = ok("tune", run.folder, "--split", "test", "--json")
    assert json.loads(result.out)["tau"] == tune_tau(*problem).tau
    assert cli("adjust", run.folder, "--split", "test", "--tau", 0, "--out", "out.npz").code == 0
    with np.load("out.npz") as saved:
        np.testing.assert_array_equal(saved["target"], np.array(names)[target])
        np.testing.assert_array_equal(saved["predicted"], np.array(names)[logits.argmax(axis=1)])


def test_a_development_set_may_lack_the_largest_class(cli, refused, problem):
    logits, target, prior = problem
    run, there = make_run(Path("runs"), prior=prior), target > 0
    RunWriter.reopen(run.folder).write_logits("dev", logits[there], target[there])
    assert "--missing nearest" in refused("tune", run.folder, "--split", "dev")
    words = ["tune", run.folder, "--split", "dev", "--missing", "nearest"]
    expected = tune_tau(logits[there], target[there], prior, missing="nearest")
    assert json.loads(cli(*words, "--json").out)["tau"] == expected.tau
    assert "class(es) 0 have none: the nearest in size counts for them too" in cli(*words).out


@pytest.mark.parametrize("command", ["tune", "adjust"])
@pytest.mark.parametrize(
    ("split", "said"),
    [
        ("train", "warning: these logits are of the images that the run was trained on"),
        ("test", "chosen on the test set: it is an oracle's"),
        ("held-out", ""),
    ],
)
def test_logits_that_should_not_choose_tau_are_called_what_they_are(
    ok, problem, plain, command, split, said
):
    if split != "test":
        RunWriter.reopen(plain.folder).write_logits(split, *problem[:2])
    result = ok(command, plain.folder, "--split", split)
    assert said in result.err
    assert bool(said) == bool(result.err)


def test_bad_input_is_one_line(refused, problem):
    counts = ("--counts", "9,1,1")
    assert "has no labels; name them" in refused("tune", "logits.npy", "--logits", *counts)
    said = refused("tune", "held-out.npz", *counts, "--method", "weight-normalization")
    assert "which held-out.npz lacks" in said


TWICE = "already aims at the balanced error, so adjusting again favours the rare classes twice"


@pytest.mark.parametrize("command", ["tune", "adjust"])
@pytest.mark.parametrize(
    ("method", "twice"),
    [
        ("logit-adjusted", True),
        ("logit-adjusted:tau=0.5", False),
        ("softmax+over-sampling", True),
        ("ldam+drw", True),
        ("ldam", False),
        ("softmax", False),
    ],
)
def test_a_run_that_needs_no_adjustment_warns(ok, problem, command, method, twice):
    name, _, tau = method.partition(":tau=")
    part = Part(name, {"tau": float(tau)} if tau else {})
    logits, target, prior = problem
    folder = make_run(Path("runs"), make_spec(method=part), prior=prior).folder
    RunWriter.reopen(folder).write_logits("held-out", logits, target)
    result = ok(command, folder)
    assert (f"longtail: warning: {folder}: the loss {name!r} {TWICE}" in result.err) is twice
    assert result.err.count("\n") == twice
