"""Parquet files as the hub lays them out."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_factory import encoded, pixels, write_parquet
from longtail import InputError
from longtail.data.hub_parquet import read_hub_parquet

NAMES = ("ant", "bee", "cow")


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_images_labels_and_names_come_back(tmp_path, kind):
    images, labels = pixels(600), np.arange(600) % 3
    path = write_parquet(tmp_path / "train.parquet", images, labels, names=NAMES, kind=kind)
    steps = []
    found = read_hub_parquet(path, progress=lambda *step: steps.append(step))
    np.testing.assert_array_equal(found.images, images)
    np.testing.assert_array_equal(found.labels, labels)
    assert found.class_names == NAMES
    assert steps == [(256, 600, "images"), (512, 600, "images"), (600, 600, "images")]


def test_grey_images_have_one_channel_unless_some_have_colour(tmp_path):
    grey = pixels(3, shape=(1, 5, 4))
    path = write_parquet(tmp_path / "a.parquet", grey, [0, 1, 0], column="image")
    found = read_hub_parquet(path)
    np.testing.assert_array_equal(found.images, grey)
    assert found.class_names == ("0", "1")
    colour = pixels(1, shape=(3, 5, 4))
    path = write_parquet(tmp_path / "b.parquet", [grey[0], colour[0]], [0, 1])
    found = read_hub_parquet(path)
    np.testing.assert_array_equal(found.images[0], np.repeat(grey[0], 3, axis=0))
    np.testing.assert_array_equal(found.images[1], colour[0])


def test_cifar_100s_fine_labels_are_taken_not_the_coarse_ones(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", pixels(2), [7, 3], label="fine_label")
    table = pq.read_table(path)
    table = table.add_column(0, "coarse_label", pa.array([1, 0]))
    pq.write_table(table, path)
    assert read_hub_parquet(path).labels.tolist() == [7, 3]


def test_an_image_of_another_size_is_named(tmp_path):
    blobs = [encoded(image) for image in pixels(300)]
    blobs[290] = encoded(pixels(1, shape=(3, 32, 31))[0])
    one = write_parquet(tmp_path / "a.parquet", pixels(5), [0] * 5)
    two = write_parquet(tmp_path / "b.parquet", blobs, [0] * 300)
    with pytest.raises(InputError, match=r"image 295 of .* is 32 x 31 pixels .* 32 x 32"):
        read_hub_parquet([one, two])
    with pytest.raises(InputError, match=r"image 0 of .* is 32 x 32 pixels .* 8 x 8"):
        read_hub_parquet(one, size=(8, 8))


def test_a_truncated_file_is_refused(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", pixels(40), np.arange(40) % 3, names=NAMES)
    content = path.read_bytes()
    for share in (0.0, 0.3, 0.9):
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(InputError, match="is not a parquet file of images"):
            read_hub_parquet(path)
