"""Folders of images, one sub-folder per class."""

import random

import numpy as np
import pytest
from PIL import Image

from data_factory import encoded, pixels, write_clutter, write_folder
from longtail import InputError
from longtail.data.folder import counting_order, read_image_folder


def test_classes_and_images_come_in_the_order_people_count_in(tmp_path):
    made = write_folder(tmp_path, {"10": 12, "9": 1, "1": 2, "b10": 1, "b9": 1})
    found = read_image_folder(tmp_path)
    assert found.class_names == ("1", "9", "10", "b9", "b10")
    assert found.counts.tolist() == [2, 1, 12, 1, 1]
    expected = np.concatenate([made[name] for name in found.class_names])
    np.testing.assert_array_equal(found.images, expected)  # so 2.png comes before 10.png
    assert found.labels.tolist() == [0, 0, 1, *[2] * 12, 3, 4]


def test_the_order_is_one_order():
    names = ["a", "a1", "a01", "a1b", "A", "1", "01", "1a", "2", "10", "", "é", "a-2", "a-10"]
    expected = sorted(names, key=counting_order)
    for seed in range(20):
        shuffled = random.Random(seed).sample(names, len(names))
        assert sorted(shuffled, key=counting_order) == expected
    assert expected.index("2") < expected.index("10")
    assert expected.index("a-2") < expected.index("a-10")


def test_palettes_and_grey_images_lose_nothing(tmp_path):
    colour = pixels(1, shape=(3, 6, 5))[0]
    palette = Image.fromarray(colour.transpose(1, 2, 0)).quantize(64)
    (tmp_path / "a").mkdir()
    palette.save(tmp_path / "a" / "1.png")
    (tmp_path / "a" / "2.png").write_bytes(encoded(pixels(1, shape=(1, 6, 5))[0]))
    found = read_image_folder(tmp_path)
    assert found.image_shape == (3, 6, 5)
    shown = np.asarray(palette.convert("RGB")).transpose(2, 0, 1)
    np.testing.assert_array_equal(found.images[0], shown)


def test_clutter_is_passed_over(tmp_path):
    write_folder(tmp_path, {"a": 1, "b": 1})
    write_clutter(tmp_path)
    write_clutter(tmp_path / "a")
    (tmp_path / "README.txt").write_text("about these images")
    assert read_image_folder(tmp_path).class_names == ("a", "b")


def test_an_empty_class_folder_is_named(tmp_path):
    write_folder(tmp_path, {"a": 1, "b": 1})
    (tmp_path / "c").mkdir()
    with pytest.raises(InputError, match=r"c hold no images"):
        read_image_folder(tmp_path)


def test_of_known_classes_some_may_have_no_images(tmp_path):
    """By a folder that is empty or by none: the labels are those of the names given."""
    made = write_folder(tmp_path, {"c10": 2, "c2": 1})
    (tmp_path / "c3").mkdir()
    names = ("c1", "c2", "c3", "c10")
    found = read_image_folder(tmp_path, class_names=names)
    assert found.class_names == names
    assert found.labels.tolist() == [1, 3, 3]
    np.testing.assert_array_equal(found.images, np.concatenate([made["c2"], made["c10"]]))
    with pytest.raises(InputError, match=r"lacks: c10; rename or remove them\.$"):
        read_image_folder(tmp_path, class_names=("c2", "c3"))
    for name in ("c2", "c10"):
        for file in (tmp_path / name).iterdir():
            file.unlink()
    with pytest.raises(InputError, match="hold no images"):
        read_image_folder(tmp_path, class_names=names)


def test_an_image_of_another_size_is_named(tmp_path):
    write_folder(tmp_path, {"a": 2})
    (tmp_path / "a" / "7.png").write_bytes(encoded(pixels(1, shape=(3, 5, 6))[0]))
    with pytest.raises(InputError, match=r"a/7\.png is 5 x 6 pixels .* must be 6 x 5"):
        read_image_folder(tmp_path)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("a/notes.txt", "holds other things than images: notes.txt"),
        ("a/more/1.png", "holds other things than images: more"),
        ("stray.png", "images that are in no class folder: stray.png"),
        ("a/broken.jpg", r"a/broken\.jpg can't be read as an image"),
    ],
)
def test_what_would_be_passed_over_silently_is_refused(tmp_path, place, message):
    write_folder(tmp_path, {"a": 1})
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_bytes(b"x")
    with pytest.raises(InputError, match=message):
        read_image_folder(tmp_path)


def test_a_folder_without_classes_is_refused(tmp_path):
    with pytest.raises(InputError, match="must have a folder of images for each class"):
        read_image_folder(tmp_path)
