"""The error on the development set and the tau it chooses, against loops over classes."""

import numpy as np
import pytest

from longtail import InputError
from longtail.experiments import records
from longtail.experiments.development import (
    TAUS,
    choose_again,
    development_error,
    with_tau_again,
)
from longtail.priors import ClassPrior
from longtail.runs import RunWriter
from run_factory import make_spec
from strong_factory import shares_by_hand

COUNTS = np.array([500, 300, 60, 8])


def judged(root, *, seed=0, missing=(0,), shift=0.7):
    """A run whose logits lean to the frequent classes, with a dev set that lacks some of them."""
    random = np.random.default_rng(seed)
    prior = ClassPrior.from_counts(COUNTS)
    writer = RunWriter.create(root, make_spec(seed=seed), prior=prior, data="f" * 64)
    for split, lacking in (("dev", missing), ("test", ())):
        target = np.repeat([k for k in range(4) if k not in lacking], 60)
        logits = 2.0 * np.eye(4)[target] + random.normal(size=(len(target), 4))
        writer.write_logits(split, logits + shift * prior.log_probs, target, data=split * 8)
    return writer.finish(seconds=1.0)


def by_hand(run, tau, split="dev"):
    """Σ_y share_y · error_y at a tau."""
    logits, target, _ = run.logits(split)
    log_prior = np.log(COUNTS / COUNTS.sum())
    shares = shares_by_hand(COUNTS, np.bincount(target, minlength=4))
    total = 0.0
    for k in np.unique(target):
        rows = np.asarray(logits, float)[target == k]
        total += shares[k] * np.mean([(row - tau * log_prior).argmax() != k for row in rows])
    return total


@pytest.mark.parametrize("missing", [(), (0,), (0, 1)])
def test_tau_is_the_best_on_the_development_set(tmp_path, missing):
    run = judged(tmp_path, missing=missing)
    tau, error = choose_again(run)
    errors = [by_hand(run, t) for t in TAUS]
    assert error == pytest.approx(min(errors))
    assert tau == pytest.approx(TAUS[int(np.argmin(np.round(errors, 12)))])
    assert 0.2 < tau < 1.5  # 0.7 of the prior was left in


def test_without_its_stand_in_the_largest_class_would_be_given_up(tmp_path):
    """Left out, nobody speaks for the largest class, and tau comes out larger."""
    run = judged(tmp_path, missing=(0,))
    logits, target, _ = run.logits("dev")
    log_prior = np.log(COUNTS / COUNTS.sum())

    def left_out(tau):
        adjusted = np.asarray(logits, float) - tau * log_prior
        wrong = adjusted.argmax(axis=1) != target
        return np.mean([wrong[target == k].mean() for k in (1, 2, 3)])

    careless = TAUS[int(np.argmin([round(left_out(t), 12) for t in TAUS]))]
    assert choose_again(run)[0] <= careless


def test_a_record_keeps_both_sets_and_the_tau(tmp_path):
    run = judged(tmp_path)
    one = with_tau_again(records.record(run), run)
    assert one.examples("dev").tolist() == [0, 60, 60, 60]
    assert np.isnan(one.per_class("dev")[0])
    assert development_error(one) == pytest.approx(by_hand(run, 0.0))
    tau, _ = choose_again(run)
    assert one.again.tau == pytest.approx(tau)
    assert one.again.per_class.mean() == pytest.approx(by_hand(run, tau, "test"))
    path = records.write(one, tmp_path / "kept")
    again = records.read(path)
    assert again.document == one.document
    assert records.record(run).again is None


def test_records_of_different_development_sets_do_not_mix(tmp_path):
    one, other = (records.record(judged(tmp_path / str(seed), seed=seed)) for seed in (0, 1))
    records.one_data([one, other])
    other.document["splits"]["dev"]["data"] = "x" * 64
    with pytest.raises(InputError, match="judged on different data"):
        records.one_data([one, other])
