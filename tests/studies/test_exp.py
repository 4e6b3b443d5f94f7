"""The paper's CIFAR tables: what records say, verdicts by intervals, and the page."""

import argparse
from functools import cache

import numpy as np
import pytest

from longtail.report.compare import Interval
from studies import __main__, exp, holds
from studies._records import ROOT, Shelf


@cache
def columns():
    options = argparse.Namespace(
        recipe=None, dataset=None, set=[], seeds=None, records=ROOT / "results/exp"
    )
    return exp.columns_of(Shelf(options.records), options)


def column(dataset, recipe="tuned"):
    return next(one for one in columns() if (one.key, one.recipe) == (dataset, recipe))


def verdicts(dataset, recipe="tuned"):
    return {text: claim.verdict for text, claim in exp.claims(column(dataset, recipe)).items()}


def test_every_run_has_its_record_and_every_record_its_run():
    assert [one.missing() for one in columns()] == [[]] * 4
    names = {record.name for one in columns() for record in one.records}
    assert names == {record.name for record in Shelf(ROOT / "results/exp").records}


@pytest.mark.parametrize(
    ("low", "high", "bounds", "verdict"),
    [
        (0.1, 0.2, (0.0, np.inf), "held"),
        (-0.2, -0.1, (0.0, np.inf), "not held"),
        (-0.1, 0.2, (0.0, np.inf), "undecided"),
        (-0.9, -0.3, exp.BELOW, "held"),
        (-0.1, 0.2, exp.BELOW, "undecided"),  # once counted as held
        (-0.004, 0.004, (-0.005, 0.005), "held"),
        (0.01, 0.02, (-0.005, 0.005), "not held"),
        (np.nan, np.nan, (0.0, np.inf), "undecided"),  # one seed
    ],
)
def test_a_verdict_needs_an_interval_that_excludes_the_opposite(low, high, bounds, verdict):
    found = exp.Claim("x", Interval((low + high) / 2, low, high, 5), bounds)
    assert found.verdict == verdict


def test_what_the_prose_of_the_page_says():
    """The page's sentences are fixed; the verdicts that they rest on are these."""
    for dataset in exp.CIFARS:
        found = verdicts(dataset)
        for text in (
            "softmax errs more than post-hoc, τ = 1",
            "softmax errs more than the loss",
            "adaptive errs more than the loss",
            "equalized errs more than the loss",
            "under SGD, weight norms grow with frequency",
            "under Adam without weight decay, weight norms do not grow with frequency",
        ):
            assert found[text] == "held", text
        assert found["post-hoc, τ = 1, errs more than the loss"] == "undecided"
        assert found["under Adam, weight norms do not grow with frequency"] == "not held"
        assert found["under Adam, the error is that of SGD"] != "held"
        assert found["under Adam without weight decay, the error is that of SGD"] == "not held"
        for way in ("scaled", "dropped"):
            text = f"weight norm. (bias {way}) errs more than post-hoc"
            assert found[f"{text}, both at τ = 1"] == found[f"{text}, both at τ*"] == "held"
            gain = f"weight norm. (bias {way}), τ = 1, gains nothing"
            assert found[f"under Adam, {gain}"] == "not held"  # it helps
            assert found[f"under Adam without weight decay, {gain}"] == "held"  # it harms
    best = "weight norm. (bias scaled) errs more than post-hoc, at τ* against τ = 1"
    assert verdicts("cifar10-lt")[best] == "not held"
    assert verdicts("cifar100-lt")["the loss gains on classes with many examples"] == "not held"
    for dataset in exp.CIFARS:
        softmax, loss = exp.part_errors(column(dataset))["head"]
        assert loss > softmax


def test_the_page_is_made_from_the_records_byte_for_byte(tmp_path, capsys):
    (tmp_path / "docs").mkdir()
    words = ["exp", "--no-train", "--out", str(tmp_path)]
    assert __main__.main(words) == 0
    out = capsys.readouterr().out
    path = "docs/reproduction.md"
    assert (tmp_path / path).read_bytes() == (ROOT / path).read_bytes()
    drawn = {path.name: path.read_bytes() for path in tmp_path.glob("docs/reproduction/*.svg")}
    assert len(drawn) == 8
    assert "27.66 ± 0.32" in out
    assert __main__.main(words) == 0
    for path in tmp_path.glob("docs/reproduction/*.svg"):
        assert drawn[path.name] == path.read_bytes()


def test_the_page_of_what_holds_is_made_from_the_records(tmp_path, capsys):
    assert __main__.main(["holds", "--out", str(tmp_path)]) == 0
    path = "docs/what-holds.md"
    assert (tmp_path / path).read_bytes() == (ROOT / path).read_bytes()


def test_every_claim_is_one_that_is_judged():
    texts = {text for column in holds.columns() for text in exp.claims(column)}
    assert {text for _, text in holds.TRAINED} <= texts


def test_the_list_of_studies(capsys):
    assert __main__.main([]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in __main__.STUDIES)
    assert __main__.main(["nothing"]) == 2
    assert "there is no study 'nothing'; the studies are" in capsys.readouterr().err
    for name in __main__.STUDIES:
        assert __main__.main([name, "--help"]) == 0
    assert __main__.main(["theory", "--minutes", "9"]) == 2  # only its own options
