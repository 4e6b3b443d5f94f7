"""`longtail adjust`: what it prints, writes and refuses."""

import json
from pathlib import Path

import numpy as np
import pytest

from longtail import ClassPrior
from longtail.predictions import adjust_predictions, open_predictions

COUNTS = "900,90,10"
PRIOR = ClassPrior.from_counts([900, 90, 10])


@pytest.fixture
def files(cli):
    """Predictions in the current folder: labelled, unlabelled, as a table, as probabilities."""
    target = np.repeat([0, 1, 2], 60)
    noise = np.random.default_rng(0).normal(size=(180, 3))
    logits = noise + 2.0 * np.eye(3)[target] + PRIOR.log_probs
    odds = np.exp(logits)
    probs = odds / odds.sum(axis=1, keepdims=True)
    np.savez("p.npz", logits=logits, target=target)
    np.savez("unlabelled.npz", logits=logits)
    np.savez("probs.npz", probs=probs, target=target)
    np.save("logits.npy", logits)
    np.save("probs.npy", probs)
    np.save("y.npy", target)
    names = np.array(["cat", "dog", "emu"])[target]
    rows = [f"{a!r},{b!r},{c!r},{names[k]}" for k, (a, b, c) in enumerate(logits.tolist())]
    Path("p.csv").write_text("\n".join(["logit_cat,logit_dog,logit_emu,label", *rows]) + "\n")
    Path("counts.csv").write_text("class,count\nemu,10\ncat,900\ndog,90\n")
    Path("train.txt").write_text("cat\n" * 900 + "dog\n" * 90 + "emu\n" * 10)
    return logits, target


def expected(**settings):
    return adjust_predictions(open_predictions("p.npz"), PRIOR, **settings)


def test_the_common_case_is_one_short_line(files, ok):
    result = ok("adjust", "p.npz", "--counts", COUNTS, err="")
    lines = result.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "p.npz: logits of 180 labelled examples, 3 classes."
    change = expected().balanced
    text = " ".join(lines)
    assert f"tau = {expected().tau:.4g} (95% bootstrap interval" in text
    assert "judged by cross-fitting, each of 5 folds with the tau of the others" in text
    assert (
        f"The balanced error falls from {100 * change.before.value:.1f}% to "
        f"{100 * change.after.value:.1f}%"
    ) in text
    for row in ("balanced", "many (over 100)", "medium (20 to 100)", "few (under 20)"):
        assert any(line.strip().startswith(row) for line in lines)
    assert lines[-1] == "Nothing was written: --out FILE writes the adjusted predictions."


@pytest.mark.parametrize(
    "words",
    [
        ["p.npz", "--counts", COUNTS],
        ["p.csv", "--counts", "counts.csv"],
        ["p.csv", "--train-labels", "train.txt"],
        ["logits.npy", "--logits", "--labels", "y.npy", "--counts", COUNTS],
        ["probs.npy", "--probs", "--labels", "y.npy", "--counts", COUNTS],
        ["probs.npz", "--counts", COUNTS],
        ["p.npz", "--train-labels", "train.txt", "--classes", "cat,dog,emu"],
    ],
)
def test_every_way_to_say_the_same(cli, files, words):
    result = cli("adjust", *words, "--json")
    assert result.err == ""
    document = json.loads(result.out)
    wanted = expected().to_dict()
    assert document["tau"] == pytest.approx(wanted["tau"], rel=1e-9)
    assert document["per_class"] == wanted["per_class"]
    assert document["fold_taus"] == pytest.approx(wanted["fold_taus"])
    assert (document["written"], document["page"]) == (None, None)


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (["--tau", 0.7], {"tau": 0.7}),
        (["--tune-on", 0.4, "--seed", 2], {"tune_on": 0.4, "random_state": 2}),
        (["--cross-fit", 3], {"folds": 3}),
        (["--missing", "skip"], {"missing": "skip"}),
        (["--effective-prior", "--tune-on", 0.5], {"effective": True, "tune_on": 0.5}),
        (["--target", "aim.txt"], {"target_prior": ClassPrior.from_weights([2, 1, 1])}),
    ],
)
def test_options_reach_the_library(cli, files, words, settings):
    Path("aim.txt").write_text("2 1 1\n")
    result = cli("adjust", "p.npz", "--counts", COUNTS, *words, "--json")
    assert result.err == ""
    document = json.loads(result.out)
    wanted = json.loads(json.dumps(expected(**settings).to_dict()))
    assert {key: document[key] for key in wanted} == wanted


def test_what_is_written_is_what_was_judged(ok, files):
    logits, target = files
    result = ok("adjust", "p.npz", "--counts", COUNTS, "--tau", 1, "--out", "out.npz")
    with np.load("out.npz") as saved:
        np.testing.assert_allclose(saved["logits"], logits - PRIOR.log_probs)
        error = np.mean([np.mean(saved["predicted"][target == y] != y) for y in range(3)])
        changed = int(np.sum(saved["predicted"] != logits.argmax(axis=1)))
    assert f"to {100 * error:.1f}%" in result.out.replace("\n", " ")
    assert f"{changed} of 180 of them changed" in result.out.replace("\n", " ")


def test_without_labels_tau_is_one_and_that_is_said(files, ok):
    result = ok("adjust", "unlabelled.npz", "--counts", COUNTS, "-o", "out.npz", err="")
    text = " ".join(result.out.split())
    assert "tau = 1. Nothing could be measured: the examples have no labels." in text
    assert "Written to out.npz" in text


def test_a_page(ok, files):
    pytest.importorskip("plotly")
    ok("adjust", "p.npz", "--counts", COUNTS, "--report", "page.html")
    assert "Adjusted predictions of p.npz" in Path("page.html").read_text()


BAD = [
    (["probs.npy", "--logits", "--labels", "y.npy", "--counts", COUNTS], "say so with --probs"),
    (["logits.npy", "--labels", "y.npy", "--counts", COUNTS], "what the scores are, with --logits"),
    (["p.npz"], "training examples per class are needed: pass --counts 900,90,10"),
    (["p.npz", "--counts", COUNTS, "-o", "exists.npz"], "exists.npz exists; pass --force"),
    (["unlabelled.npz", "--counts", COUNTS], "has no labels, so nothing can be measured"),
]


@pytest.mark.parametrize(("words", "message"), BAD)
def test_bad_input_is_one_line(refused, files, words, message):
    Path("exists.npz").write_bytes(b"mine")
    before = sorted(Path().iterdir())
    assert message in refused("adjust", *words)
    assert sorted(Path().iterdir()) == before
    assert Path("exists.npz").read_bytes() == b"mine"
