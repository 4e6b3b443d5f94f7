"""Ensembles: the mean of the logits, by a loop over numbers; and what can't be averaged."""

import numpy as np
import pytest

from longtail import InputError
from longtail.runs import Run, RunError, RunWriter, ensemble, mean_logits
from longtail.runs.ensemble import logit_scale
from longtail.runs.spec import DataSpec, Part
from run_factory import make_spec, make_writer

TARGET = np.array([0, 1, 2, 0, 1, 2], np.int64)


def member(root, seed, *, target=TARGET, trained_on="f" * 64, split="test", **options):
    random = np.random.default_rng(seed)
    spec = {name: options.pop(name) for name in ("method", "dataset") if name in options}
    writer = make_writer(root, make_spec(seed=seed, **spec), data=trained_on)
    logits = random.normal(0, 5, (len(target), 3)).astype(np.float32)
    writer.write_logits(split, logits, target, **{"data": "e" * 64, **options})
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


def test_members_count_as_the_classifiers_that_their_losses_trained(tmp_path):
    """LDAM's logits are cosines, of which its loss takes softmax(s·f)."""
    methods = [Part("softmax"), Part("ldam+drw"), Part("ldam", {"scale": 20.0})]
    members = [member(tmp_path, n, method=one) for n, one in enumerate(methods)]
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


WHOLE = DataSpec("digits-lt", imbalance_ratio=50.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "dev"}, "has no logits of the split 'test'"),
        ({"target": TARGET[::-1].copy()}, "different examples in the split 'test'"),
        ({"data": "a" * 64}, "different examples in the split 'test'"),
        ({"trained_on": "c" * 64}, "were trained on different data"),
        ({"dataset": WHOLE}, "different parts of their data"),
        ({"indices": np.arange(6)[::-1].copy()}, "in another order"),
    ],
)
def test_what_can_not_be_averaged(tmp_path, options, message):
    first = member(tmp_path, 0, indices=np.arange(6))
    other = member(tmp_path, 5, **{"indices": np.arange(6), **options})
    with pytest.raises(RunError, match=message):
        mean_logits([first, other], split="test")
