"""Runs as data: training what has no record, and records against slow counts from the logits."""

import argparse
import json

import numpy as np
import pytest

from longtail import InputError
from longtail.data.digits import load_digits_lt
from longtail.runs import Run
from run_factory import class_errors
from studies import _records, exp
from studies._records import TAUS, Column, Row, Runs, Shelf, cifar, read

SMALL = {"epochs": 2}
DIGITS = cifar("digits-lt")
HELD = Runs("held out", DIGITS, recipe="digits", held_out=0.2, overrides=SMALL, seeds=(0, 1))
PLAIN = Runs("softmax", DIGITS, recipe="digits", overrides=SMALL, seeds=(0, 1), tau_from=HELD)
LOSS = Runs("loss", DIGITS, "logit-adjusted", "digits", SMALL, seeds=(0, 1))
ROWS = [PLAIN, LOSS, HELD]


def options_for(folder, *words):
    parser = argparse.ArgumentParser()
    _records.add_training_arguments(parser, records="results/none")
    given = ["--records", folder / "records", "--runs", folder / "runs", "--device", "cpu", *words]
    return parser.parse_args(list(map(str, given)))


def digits(spec):
    return load_digits_lt()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    shelf, finished = _records.train_missing(options_for(folder), ROWS, load=digits)
    assert finished
    assert not shelf.missing(ROWS)
    return folder, shelf


def adjusted(run, variant, tau, split="test"):
    """The post-hoc methods from their equations, in float64."""
    logits = np.asarray(run.logits(split).logits, dtype=np.float64)
    if variant == "posthoc-logit-adjusted":
        return logits - tau * np.log(run.prior.probs)
    if variant.endswith("drop"):
        logits = logits - np.asarray(run.head.bias, dtype=np.float64)
    return logits / np.asarray(run.head.norms, dtype=np.float64) ** tau


def kept(trained, runs, seed):
    folder, shelf = trained
    found = shelf.get(runs, seed)
    return found, Run.open(folder / "runs" / found.spec.folder)


def test_errors_are_counted_from_the_logits(trained):
    for runs in (PLAIN, LOSS):
        found, run = kept(trained, runs, 1)
        logits, target, _ = run.logits("test")
        np.testing.assert_allclose(found.per_class(), class_errors(logits, target))
        np.testing.assert_allclose(found.norms, run.head.norms, rtol=1e-5)
        assert found.prior.counts.tolist() == run.prior.counts.tolist()


@pytest.mark.parametrize("variant", exp.VARIANTS)
def test_post_hoc_points_and_curves_follow_the_equations(trained, variant):
    found, run = kept(trained, PLAIN, 0)
    target, curve = run.logits("test").target, found.curve(variant)
    for source in ("fixed", "held-out", "oracle"):
        tau, per_class = found.point(variant, source)
        np.testing.assert_allclose(per_class, class_errors(adjusted(run, variant, tau), target))
    assert found.point(variant, "fixed").tau == 1.0
    for place in (0, 7, 33, 80):
        error = class_errors(adjusted(run, variant, TAUS[place]), target).mean()
        assert curve[place] == pytest.approx(error, abs=1e-6)
    assert found.point(variant, "oracle").per_class.mean() <= curve.min() + 1e-6


def test_the_held_out_tau_is_the_partners_own_best(trained):
    (found, _), (partner, run) = kept(trained, PLAIN, 0), kept(trained, HELD, 0)
    for variant in exp.VARIANTS:
        tau = partner.document["posthoc"][variant]["held-out"]["tau"]
        target = run.logits("held-out").target
        assert found.point(variant, "held-out").tau == tau
        best = class_errors(adjusted(run, variant, tau, "held-out"), target).mean()
        for other in TAUS[::8]:
            scores = adjusted(run, variant, other, "held-out")
            assert best <= class_errors(scores, target).mean() + 1e-9
        assert partner.point(variant, "fixed") is None  # never judged on the test set


def test_nothing_is_trained_twice_and_seeds_can_be_added(trained):
    folder, _ = trained
    _, finished = _records.train_missing(options_for(folder), ROWS, load=None)
    assert finished
    more = Runs("softmax", DIGITS, recipe="digits", overrides=SMALL, seeds=(0, 1, 2))
    options = options_for(folder, "--no-train")
    shelf, _ = _records.train_missing(options, [more])
    assert shelf.missing([more]) == ["softmax, seed 2"]


def test_a_record_comes_back_byte_for_byte(trained, tmp_path):
    found, run = kept(trained, HELD, 0)
    path = _records.write(found, tmp_path)
    again = read(path)
    assert (again.spec, again.document) == (found.spec, found.document)
    assert _records.to_text(again.document) == path.read_text()
    assert _records.record_of(run).document == found.document


@pytest.mark.parametrize("folder", ["exp", "exp-float32", "strong"])
def test_all_records_in_results_are_read_as_they_are(folder):
    root = _records.ROOT / "results" / folder
    for path in root.glob("*/*.json"):
        assert _records.to_text(read(path).document) == path.read_text()
    assert len(Shelf(root).records) == len(list(root.glob("*/*.json")))


def test_different_data_never_mix(trained, tmp_path):
    (one, _), (two, _) = kept(trained, LOSS, 0), kept(trained, LOSS, 1)
    _records.write(one, tmp_path)
    other = json.loads(json.dumps(two.document))
    other["splits"]["test"]["data"] = "x" * 64
    _records.write(_records.Record(two.spec, other), tmp_path)
    with pytest.raises(InputError, match="are of different data") as caught:
        Shelf(tmp_path)
    assert one.name in str(caught.value)
    assert two.name in str(caught.value)


def test_cells_and_differences_are_paired_by_seed(trained):
    _, shelf = trained
    column = Column.of("digits-lt", "digits", ROWS, shelf)
    plain, loss = Row("softmax", "softmax"), Row("loss", "loss")
    errors = [np.mean([one.per_class().mean() for one in shelf.of(r)]) for r in (PLAIN, LOSS)]
    assert column.cell(plain).mean == pytest.approx(errors[0])
    assert column.difference(plain, loss).mean == pytest.approx(errors[0] - errors[1])
    fixed = column.cell(exp.row_of("posthoc-logit-adjusted"))
    assert fixed.taus.tolist() == [1.0, 1.0]
    assert column.cell(Row("x", "no such runs")) is None
    assert column.minutes > 0
