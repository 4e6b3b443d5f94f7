"""Records of runs against slow counts from the runs' own logits; what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

from exp_factory import OVERRIDES, made_up, small_plan, trained_root
from longtail import InputError
from longtail.experiments import records
from longtail.experiments.exp_runs import PARTNER, PLAIN
from longtail.experiments.records import TAUS, VARIANTS
from longtail.runs import Run

PLAN = small_plan(overrides=OVERRIDES)


def kept(kind, seed):
    spec = PLAN.spec(kind, seed)
    run = Run.open(trained_root() / "runs" / spec.folder)
    return records.read(records.path_of(spec, trained_root() / "kept")), run


def share_wrong(scores, target):
    """Error of each class by a loop over examples; ties go to the lowest index."""
    wrong, count = np.zeros(10), np.zeros(10)
    for row, label in zip(scores, target, strict=True):
        count[label] += 1
        wrong[label] += int(np.argmax(row) != label)
    return wrong / count


def adjusted(run, variant, tau, split="test"):
    """The post-hoc methods from their equations, in float64."""
    logits = np.asarray(run.logits(split).logits, dtype=np.float64)
    if variant == "posthoc-logit-adjusted":
        return logits - tau * np.log(run.prior.probs)
    if variant.endswith("drop"):
        logits = logits - np.asarray(run.head.bias, dtype=np.float64)
    return logits / np.asarray(run.head.norms, dtype=np.float64) ** tau


@pytest.mark.parametrize("seed", [0, 1])
def test_errors_are_counted_from_the_logits(seed):
    found, run = kept(PLAIN, seed)
    logits, target, _ = run.logits("test")
    np.testing.assert_allclose(found.per_class(), share_wrong(logits, target))
    np.testing.assert_array_equal(found.examples(), [6] * 10)
    np.testing.assert_allclose(found.norms, run.head.norms, rtol=1e-5)
    assert found.data == run.data
    assert found.prior.counts.tolist() == run.prior.counts.tolist()
    assert found.document["device"] == "cpu"
    assert "torch" in found.document["versions"]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("source", ["fixed", "held-out", "oracle"])
def test_post_hoc_points_follow_the_equations(variant, source):
    found, run = kept(PLAIN, 0)
    point = found.point(variant, source)
    target = run.logits("test").target
    errors = share_wrong(adjusted(run, variant, point.tau), target)
    np.testing.assert_allclose(point.per_class, errors)
    if source == "fixed":
        assert point.tau == 1.0


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_curve_is_exact_and_nothing_beats_the_oracle(variant):
    found, run = kept(PLAIN, 1)
    target, curve = run.logits("test").target, found.curve(variant)
    for place in (0, 7, 20, 33, 80):
        error = share_wrong(adjusted(run, variant, TAUS[place]), target).mean()
        assert curve[place] == pytest.approx(error, abs=1e-6)
    assert found.point(variant, "oracle").per_class.mean() <= curve.min() + 1e-6


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_held_out_tau_is_the_partners_own_best(variant):
    found, _ = kept(PLAIN, 0)
    partner, run = kept(PARTNER, 0)
    tau = partner.chosen_tau(variant)
    assert found.point(variant, "held-out").tau == tau
    target = run.logits("held-out").target
    at_tau = share_wrong(adjusted(run, variant, tau, "held-out"), target).mean()
    for other in TAUS[::8]:
        error = share_wrong(adjusted(run, variant, other, "held-out"), target).mean()
        assert at_tau <= error + 1e-9
    assert partner.point(variant, "fixed") is None  # never judged on the test set


def test_a_record_is_small_text_and_comes_back(tmp_path):
    found, _ = kept(PLAIN, 0)
    path = records.write(found, tmp_path)
    assert path.stat().st_size < 8000
    again = records.read(path)
    assert again.document == found.document
    assert again.spec == found.spec
    assert records.to_text(again) == path.read_text()
    lines = [line for line in path.read_text().splitlines() if '"wrong"' in line]
    assert lines
    assert all(line.rstrip(",").endswith("]") for line in lines)  # a list is one line
    assert "/" not in found.document["run"].replace("cifar10-lt/", "")


def test_the_same_run_gives_the_same_bytes():
    found, run = kept(PARTNER, 1)
    assert records.to_text(records.record(run)) == records.to_text(found)


def test_what_is_not_there_is_none_or_named():
    found, _ = kept(PLAN_ADAPTIVE := replace(PLAIN, method="adaptive"), 0)
    assert PLAN_ADAPTIVE.method == found.spec.method.name
    assert found.point("posthoc-logit-adjusted", "fixed") is None
    assert found.curve("posthoc-logit-adjusted") is None
    with pytest.raises(InputError, match="has no errors on the split 'held-out'"):
        found.per_class("held-out")


def test_a_partner_of_another_seed_or_without_a_held_out_part_is_refused():
    whole, run = kept(PLAIN, 0)
    other, _ = kept(PARTNER, 1)
    for wrong in (other, whole):
        with pytest.raises(InputError, match="can't choose taus"):
            records.record(run, partner=wrong)


def test_different_data_never_mix(tmp_path):
    one, two = (made_up(PLAN.spec(PLAIN, seed), data=str(seed) * 64) for seed in (0, 1))
    records.write(one, tmp_path)
    records.write(two, tmp_path)
    with pytest.raises(InputError, match="trained on different data") as caught:
        records.read_all(tmp_path)
    assert one.name in str(caught.value)
    assert two.name in str(caught.value)


def test_different_test_sets_never_mix():
    one, two = (made_up(PLAN.spec(PLAIN, seed)) for seed in (0, 1))
    two.document["splits"]["test"]["data"] = "x" * 64
    with pytest.raises(InputError, match="judged on different data"):
        records.one_data([one, two])


def test_bad_files_are_named(tmp_path):
    found = made_up(PLAN.spec(PLAIN, 0))
    path = records.write(found, tmp_path)
    moved = path.rename(path.with_name("other.json"))
    with pytest.raises(InputError, match="renamed or edited"):
        records.read(moved)
    path.write_text(json.dumps({**found.document, "format": 99}))
    with pytest.raises(InputError, match="format 99, which is newer"):
        records.read(path)
    path.write_text("[]")
    with pytest.raises(InputError, match="is not the record of a run"):
        records.read(path)
    path.write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        records.read(path)


def test_no_folder_has_no_records(tmp_path):
    assert records.read_all(tmp_path / "none") == []
