"""Subsets, held-out parts, and the development set: what a subset leaves out."""

import hashlib

import numpy as np
import pytest

from longtail._checks import InputError
from longtail.data import freeze, load, read_frozen
from longtail.data.digits import load_digits_lt
from longtail.data.images import ImageSet, LongTailedData
from longtail.data.subsets import held_out_split, long_tailed_indices, make_long_tailed
from longtail.runs import DataSpec
from longtail.train.engine import train, validate
from longtail.train.recipe import make_spec
from run_factory import make_run

SIZES = {"exp": [12, 6, 3], "step": [12, 3, 3]}


def pool(classes=3, each=12, seed=0):
    """Images of which no two are alike, so that each can be recognised."""
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (classes * each, 3, 4, 4), dtype=np.uint8)
    labels = np.tile(np.arange(classes), each)
    return ImageSet(images, labels, tuple("abcdefghij"[:classes]))


def subset(profile="exp", ratio=4.0, **options):
    spec = DataSpec("toy", profile=profile, imbalance_ratio=ratio)
    return make_long_tailed(pool(), pool(seed=1), spec, **options)


def prints(images):
    return [hashlib.sha256(image.tobytes()).hexdigest() for image in images.images]


@pytest.mark.parametrize("profile", SIZES)
@pytest.mark.parametrize("each", [1, 4, 100])
def test_it_is_what_the_subset_leaves_out(profile, each):
    data = subset(profile, development=each)
    assert data.train.counts.tolist() == SIZES[profile]
    expected = [min(each, 12 - size) for size in SIZES[profile]]
    assert data.dev.counts.tolist() == expected
    assert expected[0] == 0  # the largest class is in the subset as a whole
    trained, tested, chosen = (set(prints(part)) for part in (data.train, data.test, data.dev))
    assert len(chosen) == len(data.dev)
    assert not chosen & trained
    assert not chosen & tested
    assert chosen <= set(prints(pool()))


def test_the_positions_are_the_last_of_the_literatures_shuffle():
    labels, counts = pool().labels, np.array([12, 6, 3])
    random, expected = np.random.RandomState(0), []
    for label, count in enumerate(counts):
        order = np.flatnonzero(labels == label)
        random.shuffle(order)
        expected += order[max(count, len(order) - 5) :].tolist()
    assert long_tailed_indices(labels, counts, development=5).tolist() == expected


def test_ratios_share_their_development_images():
    """So a setting that was chosen at one ratio can be judged at another on the same images."""
    high, low = subset(ratio=4.0, development=3), subset(ratio=2.0, development=3)
    assert low.train.counts.tolist() == [12, 8, 6]
    assert prints(high.dev) == prints(low.dev)


def test_the_subset_is_the_same_with_and_without():
    indices = long_tailed_indices(pool().labels, np.array([12, 6, 3]))
    for each in (0, 2, None):
        data = subset(development=each)
        assert data.train.fingerprint == pool().take(indices).fingerprint
    assert subset(development=0).dev is None
    assert len(subset().dev) == 6 + 9  # 5,000 images shared out are more than there are


def test_frozen_files_hold_it_if_asked(tmp_path):
    data = load("digits-lt", development=3)
    with_dev = read_frozen(freeze(data, tmp_path / "with.frozen", dev=True))
    assert with_dev.dev.fingerprint == data.dev.fingerprint
    assert with_dev.train.fingerprint == data.train.fingerprint
    without = tmp_path / "without.frozen"
    freeze(data, without)
    assert read_frozen(without).dev is None
    with pytest.raises(InputError, match="no development set to write"):
        freeze(read_frozen(without), tmp_path / "again.frozen", dev=True)
    with pytest.raises(InputError, match="a development set of 3 images a class; a frozen subset"):
        load(tmp_path / "with.frozen", development=2)


@pytest.mark.parametrize("part", ["test", "dev"])
def test_nothing_trains_on_what_it_is_judged_on(part, tmp_path):
    data = load("digits-lt")
    spec = make_spec(data.spec, method="softmax", recipe="digits", seed=0)
    images = getattr(data, part)
    with pytest.raises(InputError, match="set, to be judged on; nothing is trained on them"):
        train(spec, images, root=tmp_path)
    with pytest.raises(InputError, match="to be judged on"):  # nor on a part of it
        validate([spec], images.take(np.arange(20)))
    validate([spec], data.train)


def test_a_run_of_another_subset_is_not_judged_on_it(tmp_path):
    data = subset()
    run = make_run(tmp_path, data=subset(ratio=2.0).train.fingerprint)
    with pytest.raises(InputError, match="may hold images of this development set"):
        data.development(run)
    own = make_run(tmp_path / "own", data=data.train.fingerprint)
    assert data.development(own).fingerprint == data.dev.fingerprint
    bare = LongTailedData(data.train, data.test, data.spec)
    with pytest.raises(InputError, match="freeze it with --dev N"):
        bare.development(own)


# Subsets and held-out parts.


def test_subsets_of_different_ratios_are_nested():
    labels = np.repeat(np.arange(3), 50)
    small = set(long_tailed_indices(labels, np.array([50, 10, 2])).tolist())
    large = set(long_tailed_indices(labels, np.array([50, 30, 20])).tolist())
    assert small < large


def test_the_split_holds_out_a_share_of_every_class():
    labels = np.repeat(np.arange(4), [100, 20, 3, 2])
    kept, held = held_out_split(labels, fraction=0.2, seed=5)
    assert np.bincount(labels[held]).tolist() == [20, 4, 1, 1]
    assert sorted([*kept, *held]) == list(range(125))
    again, _ = held_out_split(labels, fraction=0.2, seed=5)
    np.testing.assert_array_equal(kept, again)
    other, _ = held_out_split(labels, fraction=0.2, seed=6)
    assert kept.tolist() != other.tolist()


def test_what_cannot_be_split_is_refused():
    with pytest.raises(InputError, match="class 1 has only 1 example"):
        held_out_split(np.array([0, 0, 1]), fraction=0.5, seed=0)
    with pytest.raises(InputError, match="class 1 has 1 examples but the profile asks for 2"):
        long_tailed_indices(np.array([0, 0, 1]), np.array([2, 2]))


def test_digits_train_and_test_share_no_image():
    data = load_digits_lt()
    assert data.train.counts.tolist() == [114, 73, 47, 30, 20, 12, 8, 5, 3, 2]
    assert data.test.counts.tolist() == [60] * 10
    train = {image.tobytes() for image in data.train.images}
    # The digits hold no exact duplicates, so a shared image would be a shared example.
    assert not any(image.tobytes() in train for image in data.test.images)
    assert data.train.images.max() <= data.train.pixel_range == 16
