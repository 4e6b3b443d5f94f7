"""Frozen data sets: nothing is lost, and nothing edited is read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_factory import pixels
from longtail import InputError
from longtail.data.hub_parquet import freeze, read_frozen
from longtail.data.images import ImageSet, LongTailedData
from longtail.runs import DataSpec


def make(counts=(20, 6, 2), *, shape=(3, 32, 32), test_per_class=3, pixel_range=255):
    names = tuple(f"class {i}" for i in range(len(counts)))
    labels = np.repeat(np.arange(len(counts)), counts)
    test = np.repeat(np.arange(len(counts)), test_per_class)
    spec = DataSpec("toy", profile="natural", imbalance_ratio=10, settings={"counts": counts})
    return LongTailedData(
        ImageSet(pixels(len(labels), shape=shape, seed=1), labels, names, pixel_range),
        ImageSet(pixels(len(test), shape=shape, seed=2), test, names, pixel_range),
        spec,
    )


def same(one, other):
    for a, b in ((one.train, other.train), (one.test, other.test)):
        np.testing.assert_array_equal(a.images, b.images)
        np.testing.assert_array_equal(a.labels, b.labels)
        assert (a.class_names, a.pixel_range) == (b.class_names, b.pixel_range)
        assert a.labels.dtype == b.labels.dtype
        assert a.fingerprint == b.fingerprint
    return one.spec == other.spec


@settings(max_examples=15, deadline=None)
@given(
    channels=st.sampled_from([1, 3]),
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_whatever_its_shape_it_comes_back(tmp_path_factory, channels, height, width, counts, seed):
    data = make(tuple(counts), shape=(channels, height, width))
    noise = np.random.default_rng(seed).integers(0, 256, data.test.images.shape, dtype=np.uint8)
    test = ImageSet(noise, data.test.labels, data.test.class_names)
    data = LongTailedData(data.train, test, data.spec)
    path = tmp_path_factory.mktemp("frozen") / "a.parquet"
    freeze(data, path)
    assert same(read_frozen(path), data)


def test_equal_data_give_equal_bytes(tmp_path):
    one, two = freeze(make(), tmp_path / "a"), freeze(make(), tmp_path / "b")
    assert one.read_bytes() == two.read_bytes()


def test_damaged_and_other_files_are_refused(tmp_path):
    path = freeze(make(), tmp_path / "a.parquet")
    whole = path.read_bytes()
    for content in (whole[:-1], whole[: len(whole) // 2], b"hello"):
        path.write_bytes(content)
        with pytest.raises(InputError, match="is not a frozen data set"):
            read_frozen(path)
    at = whole.index(b"VP8L")
    for place in range(at, at + 2000, 97):
        changed = bytearray(whole)
        changed[place] ^= 4
        path.write_bytes(changed)
        with pytest.raises(
            InputError, match=r"not those that were frozen|can't be|is not an image"
        ):
            read_frozen(path)


def test_a_file_is_replaced_only_on_demand(tmp_path):
    path = tmp_path / "a.parquet"
    freeze(make(), path)
    with pytest.raises(InputError, match="exists; pass `force=True`"):
        freeze(make((5, 5)), path)
    freeze(make((5, 5)), path, force=True)
    assert read_frozen(path).train.counts.tolist() == [5, 5]
