import numpy as np
import pytest

from longtail import InputError
from longtail.data.digits import load_digits_lt
from longtail.data.subsets import held_out_split, long_tailed_indices


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
