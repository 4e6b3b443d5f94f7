"""Each rule's promise for an epoch, and processes that share it without overlap or drift."""

import numpy as np
import pytest
from scipy import stats

from longtail import InputError
from longtail.data.samplers import RULES, ClassSampler
from longtail.data.torch_samplers import DistributedClassSampler

COUNTS = np.array([400, 0, 150, 60, 60, 7, 2, 1])
LABELS = np.random.default_rng(5).permutation(np.repeat(np.arange(len(COUNTS)), COUNTS))
PRESENT = COUNTS > 0


def make(rule="class-balanced", labels=LABELS, **settings):
    if rule == "progressive":
        settings.setdefault("epochs", 5)
    return ClassSampler(labels, rule=rule, **settings)


def promised(rule, epoch, counts=COUNTS, epochs=5):
    """p_y from the equations, one class at a time."""
    total, present = sum(counts), sum(n > 0 for n in counts)
    p = []
    for n in counts:
        instance, balanced = n / total, (n > 0) / present
        t = min(epoch / (epochs - 1), 1)
        p.append(
            {
                "instance": instance,
                "class-balanced": balanced,
                "under": balanced,
                "square-root": n**0.5 / sum(m**0.5 for m in counts),
                "progressive": (1 - t) * instance + t * balanced,
            }[rule]
        )
    return np.array(p)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("epoch", [0, 3])
def test_each_class_is_drawn_as_often_as_promised_to_the_nearest_example(rule, epoch):
    sampler = make(rule)
    drawn = np.bincount(LABELS[sampler.indices(epoch)], minlength=len(COUNTS))
    p = promised(rule, epoch)
    np.testing.assert_allclose(sampler.class_weights(epoch), p, atol=1e-15)
    assert drawn.sum() == len(sampler)
    assert np.all(np.abs(drawn - p * len(sampler)) < 1)


@pytest.mark.parametrize("rule", RULES)
def test_class_frequencies_over_epochs_pass_a_chi_square_test(rule):
    """The class at one place of the epoch: independent from epoch to epoch, with law p."""
    sampler = make(rule, epochs=2 if rule == "progressive" else None)
    place, epochs = 17 % len(sampler), range(1, 1501)
    found = [LABELS[sampler.indices(epoch)[place]] for epoch in epochs]
    seen = np.bincount(found, minlength=len(COUNTS))
    expected = promised(rule, 1, epochs=2) * len(epochs)
    assert not seen[~PRESENT].any()
    # Classes expected less than five times go together, as the test's theory wants.
    order = np.argsort(expected)
    groups = np.searchsorted(np.cumsum(expected[order]), [5.0])[0]
    merged = [np.r_[v[order][: groups + 1].sum(), v[order][groups + 1 :]] for v in (seen, expected)]
    assert stats.chisquare(merged[0], merged[1]).pvalue > 1e-3


@pytest.mark.parametrize("rule", RULES)
def test_no_example_comes_again_before_all_of_its_class_came(rule):
    sampler = make(rule, **({} if rule == "under" else {"num_samples": 1500}))
    indices = sampler.indices(2)
    for label in np.flatnonzero(PRESENT):
        mine = indices[LABELS[indices] == label]
        for start in range(0, len(mine), COUNTS[label]):
            one_pass = mine[start : start + COUNTS[label]]
            assert len(set(one_pass)) == len(one_pass)


@pytest.mark.parametrize("rule", RULES)
def test_an_epoch_depends_on_its_number_and_the_seed_alone(rule):
    sampler = make(rule, seed=3)
    third = sampler.indices(3)
    assert third.dtype == np.int64
    sampler.indices(0)
    np.testing.assert_array_equal(sampler.indices(3), third)
    np.testing.assert_array_equal(make(rule, seed=3).indices(3), third)
    assert np.any(sampler.indices(4) != third)
    assert np.any(make(rule, seed=4).indices(3) != third)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "balanced"}, "`rule` must be one of 'instance', 'class-balanced'"),
        ({"rule": "under", "num_samples": 5}, "leave it out, or take 'class-balanced'"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        make(**settings)


# torch's side


def interleaved(parts):
    return [index for turn in zip(*parts, strict=True) for index in turn]


@pytest.mark.parametrize("replicas", [1, 2, 3, 7])
@pytest.mark.parametrize("drop_last", [True, False])
def test_the_ranks_together_are_the_epoch(replicas, drop_last):
    sampler = make()
    parts = [
        DistributedClassSampler(sampler, num_replicas=replicas, rank=r, drop_last=drop_last)
        for r in range(replicas)
    ]
    for epoch in (0, 4):
        for part in parts:
            part.set_epoch(epoch)
        assert {len(part) for part in parts} == {len(list(part)) for part in parts}
        whole, drawn = sampler.indices(epoch).tolist(), interleaved(parts)
        if drop_last:
            assert drawn == whole[: len(whole) // replicas * replicas]
        else:
            assert drawn == whole + whole[: -len(whole) % replicas]


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_state_goes_on_mid_epoch_with_any_number_of_processes(replicas):
    sampler = make()
    before = [DistributedClassSampler(sampler, num_replicas=2, rank=r) for r in range(2)]
    seen = []
    for part in before:
        part.set_epoch(3)
        walk = iter(part)
        seen.append([next(walk) for _ in range(50)])
    states = [part.state_dict() for part in before]
    assert states[0] == states[1] == before[0].state_dict(taken=50)
    after = [
        DistributedClassSampler(sampler, num_replicas=replicas, rank=r) for r in range(replicas)
    ]
    for part in after:
        part.load_state_dict(states[0])
        part.set_epoch(3)  # as a training loop does; the place in the epoch stays
    whole = sampler.indices(3).tolist()
    rest = len(whole[100:]) // replicas * replicas
    assert interleaved(seen) + interleaved(after) == whole[: 100 + rest]
    assert interleaved(after) == whole[: len(whole) // replicas * replicas]  # once more, whole


def test_a_state_of_another_sampler_is_refused():
    state = DistributedClassSampler(make()).state_dict()
    with pytest.raises(InputError, match=r"drawn from ClassSampler\(rule='class-balanced'"):
        DistributedClassSampler(make("square-root")).load_state_dict(state)
