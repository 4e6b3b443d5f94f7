"""Ensembles: the mean of the logits, by a loop over numbers; and what can't be averaged."""

import numpy as np
import pytest

from longtail import InputError, margins
from longtail.runs import Run, RunError, ensemble, mean_logits
from longtail.runs.ensemble import logit_scale
from longtail.runs.spec import DataSpec, Part
from run_factory import make_run, make_spec, make_writer

TARGET = np.array([0, 1, 2, 0, 1, 2], np.int64)


def member(root, seed, *, split="test", target=TARGET, data="e" * 64, indices=None, **options):
    random = np.random.default_rng(seed)
    writer = make_writer(root, make_spec(seed=seed, **options.pop("spec", {})), **options)
    logits = random.normal(0, 5, (len(target), 3)).astype(np.float32)
    writer.write_logits(split, logits, target, indices=indices, data=data)
    return writer.finish(seconds=10.0 * (seed + 1))


@pytest.fixture
def members(tmp_path):
    return [member(tmp_path, seed) for seed in range(3)]


def test_it_is_the_mean_of_the_logits(members, tmp_path):
    together = ensemble(members, root=tmp_path)
    logits, target, _ = together.logits("test")
    for i in range(6):
        for j in range(3):
            each = [float(run.logits("test").logits[i, j]) for run in members]
            assert logits[i, j] == pytest.approx(sum(each) / 3, rel=1e-6)
    assert target.tolist() == TARGET.tolist()
    assert together.record["seconds"] == 60.0
    assert not together.has_model
    assert together.data == members[0].data
    assert Run.open(together.folder).record["splits"]["test"]["data"] == "e" * 64


@pytest.mark.parametrize("name", margins.MARGINS)
def test_the_scale_of_a_method_is_that_of_its_margin(name):
    settings = {"consistent": {"delta": [1.0, 2.0]}, "two-parameter": {"tau1": 1.0, "tau2": 0.5}}
    settings = settings.get(name, {})
    margin = margins.by_name(name, margins.ClassPrior.from_counts([9, 1]), **settings)
    for extra in ("", "+drw+label-smoothing"):
        assert logit_scale(Part(name + extra, {**settings, "epsilon": 0.05})) == margin.scale


def test_members_count_as_the_classifiers_that_their_losses_trained(tmp_path):
    """LDAM's logits are cosines, of which its loss takes softmax(s·f)."""
    methods = [Part("softmax"), Part("ldam+drw"), Part("ldam", {"scale": 20.0})]
    members = [member(tmp_path, n, spec={"method": one}) for n, one in enumerate(methods)]
    together = ensemble(members, root=tmp_path)
    for i in range(6):
        for j in range(3):
            plain, drw, other = (float(run.logits("test").logits[i, j]) for run in members)
            expected = (plain + 30.0 * drw + 20.0 * other) / 3
            assert together.logits("test").logits[i, j] == pytest.approx(expected, rel=1e-5)
    assert logit_scale(together.spec.method) == 1  # they are scaled already


def test_one_folder_whatever_the_order_and_another_for_others(members, tmp_path):
    one = ensemble(members, root=tmp_path)
    assert ensemble(members[::-1], root=tmp_path).folder == one.folder
    assert ensemble(members[:2], root=tmp_path).folder != one.folder
    assert one.name.startswith("digits-lt/ensemble-s0-")
    assert one.spec.settings["runs"] == tuple(sorted(run.name for run in members))


def test_logits_that_changed_since_are_noticed(members, tmp_path):
    first = ensemble(members, root=tmp_path)
    stamp = (first.folder / "logits-test.safetensors").stat().st_mtime_ns
    again = ensemble(members, root=tmp_path)
    assert (again.folder / "logits-test.safetensors").stat().st_mtime_ns == stamp
    from longtail.runs import RunWriter

    writer = RunWriter.reopen(members[0].folder)
    writer.write_logits("test", np.zeros((6, 3)), TARGET, data="e" * 64, replace=True)
    changed = [Run.open(members[0].folder), *members[1:]]
    with pytest.raises(RunError, match="a member was trained or evaluated again since"):
        ensemble(changed, root=tmp_path)
    forced = ensemble(changed, root=tmp_path, replace=True)
    expected = sum(np.asarray(run.logits("test").logits, float) for run in members[1:]) / 3
    np.testing.assert_allclose(forced.logits("test").logits, expected, rtol=1e-6)


def test_fewer_than_two_are_refused(members, tmp_path):
    with pytest.raises(InputError, match="two or more different runs"):
        ensemble([members[0], members[0]], root=tmp_path)


def test_what_can_not_be_averaged(members, tmp_path):
    def refused(other, message):
        with pytest.raises(RunError, match=message):
            mean_logits([members[0], other], split="test")

    refused(member(tmp_path / "a", 5, split="dev"), "has no logits of the split 'test'")
    refused(member(tmp_path / "b", 5, target=TARGET[::-1].copy()), "different examples")
    refused(member(tmp_path / "c", 5, data="a" * 64), "different examples in the split 'test'")
    other = make_run(tmp_path / "e", make_spec(seed=5), data="c" * 64)
    refused(other, "were trained on different data")
    whole = {"dataset": DataSpec("digits-lt", imbalance_ratio=50.0)}
    refused(member(tmp_path / "f", 5, spec=whole), "different parts of their data")
    turned = member(tmp_path / "h", 5, indices=np.arange(6)[::-1].copy())
    straight = member(tmp_path / "i", 6, indices=np.arange(6))
    with pytest.raises(RunError, match="in another order"):
        mean_logits([turned, straight], split="test")
