"""Lists of images on disk: ImageNet-LT, Places-LT, iNaturalist, folders; good and bad ones."""

import json
from pathlib import Path

import numpy as np
import pytest

from data_factory import (
    competition,
    listed_entries,
    write_clutter,
    write_folder,
    write_large,
    write_list,
    write_photos,
)
from longtail._checks import InputError
from longtail.data import load
from longtail.data.large import LARGE, find_sources, load_listed
from longtail.data.lists import ListedImages
from longtail.runs import DataSpec

pytestmark = pytest.mark.usefixtures("no_data_folder")


def touched(root, paths):
    """Empty files: a list is read without a look inside."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


def write_splits(folder, **lists):
    """Lists of paths whose labels are 0, 1, ... and the files."""
    for split, paths in lists.items():
        touched(folder, paths)
        write_list(folder / f"{split}.txt", zip(paths, range(len(paths)), strict=True))


def read(path):
    """One list or competition file, and what is wrong with it."""
    sources = find_sources(path)
    found = sources.problems(splits=False)
    return sources.listings["train"], [problem.detail for problem in found]


@pytest.mark.parametrize(
    "text",
    [
        b"b c/3 d.jpg 1\na/1.jpg 0\n\na/2.jpg 0\n",
        b"\xef\xbb\xbfb c/3 d.jpg 1\r\na/1.jpg 0\r\na/2.jpg 0",
        b"b c/3 d.jpg\t1\n  a/1.jpg   0  \n./a//2.jpg 0\n",
    ],
    ids=["plain", "windows", "blanks and another spelling"],
)
def test_a_list_is_read_in_its_order(tmp_path, text):
    (tmp_path / "list.txt").write_bytes(text)
    listing, problems = read(tmp_path / "list.txt")
    assert problems == []
    assert listing.paths == ["b c/3 d.jpg", "a/1.jpg", "a/2.jpg"]
    assert listing.labels.tolist() == [1, 0, 0]


def test_the_fingerprint_tells_lists_apart_and_not_their_places(tmp_path):
    def made(paths, labels, root=tmp_path):
        return ListedImages(Path(root), paths, np.array(labels), ("0", "1"))

    first = made(["a", "b"], [0, 1])
    others = [made(["a", "c"], [0, 1]), made(["a", "b"], [1, 0]), made(["b", "a"], [0, 1])]
    assert len({first.fingerprint, *(other.fingerprint for other in others)}) == 4
    assert first.fingerprint[:16] == "86ec8e77a9dea4f5"  # which records of old runs have
    assert made(["ab", ""], [0, 1]).fingerprint != made(["a", "b"], [0, 1]).fingerprint
    assert made(["a", "b"], [0, 1], root="/elsewhere").fingerprint == first.fingerprint
    assert first.spec == DataSpec("images", settings={"list": first.fingerprint[:16]})


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_training_file_in_another_split_is_refused(tmp_path, split):
    lists = {"train": ["a/1.jpg", "a/2.jpg"], "val": ["a/3.jpg", "a/4.jpg"]}
    lists["test"] = lists["val"]  # which may be one
    write_splits(tmp_path, **lists)
    data = load_listed(tmp_path)
    assert len(data.val) == len(data.test) == 2
    write_splits(tmp_path, **{**lists, split: ["./a/1.jpg", "a/5.jpg"]})
    with pytest.raises(InputError, match=r"\.txt: 'a/1\.jpg' is in the train set as well"):
        load_listed(tmp_path)


def test_missing_files_are_counted_and_the_first_is_named(tmp_path):
    write_splits(tmp_path, train=["a/1.jpg", "a/2.jpg", "b/2.jpg"], test=["3.jpg"])
    (tmp_path / "a/2.jpg").unlink()
    (tmp_path / "b/2.jpg").unlink()
    (tmp_path / "b").rmdir()
    message = r"2 of the 3 files that .*train.txt names are not in .* first is 'a/2.jpg'.*`root=`"
    with pytest.raises(InputError, match=message):
        load_listed(tmp_path)
    data = load_listed(tmp_path, check_files=False)
    assert data.train.missing_files().tolist() == [1, 2]


@pytest.mark.parametrize("form", LARGE)
def test_every_data_set_is_found_by_name_and_by_folder(tmp_path, form):
    write_large(tmp_path / form, form)
    data = load_listed(form, data_dir=tmp_path, verify=False)
    assert data.train.counts.tolist() == [6, 3, 1]
    assert data.test.counts.tolist() == [1, 1, 1]
    assert (data.val is None) == (form == "inaturalist")
    assert data.spec == data.train.spec
    assert data.spec.name == form
    assert Path(data.train.file(0)).is_file()
    by_folder = load_listed(tmp_path / form)
    assert by_folder.train.fingerprint == data.train.fingerprint
    known = LARGE[form]
    with pytest.raises(InputError, match=f"has 10 images; the train set of {known.title} has"):
        load_listed(form, data_dir=tmp_path)


def test_the_competition_file_is_joined_by_ids(tmp_path):
    entries = listed_entries([3, 1, 2], form="inaturalist")
    judged = listed_entries([1, 1, 1], form="inaturalist", split="test")
    for name, some in (("train2018.json", entries), ("val2018.json", judged)):
        touched(tmp_path, [path for path, _ in some])
        (tmp_path / name).write_text(json.dumps(competition(some, num_classes=3)))
    data = load_listed("inaturalist", data_dir=tmp_path, verify=False)
    paths = [path.decode() for path in data.train.paths]
    assert list(zip(paths, data.train.labels.tolist(), strict=True)) == entries
    assert data.train.class_names == ("species 0", "species 1", "species 2")
    assert data.test.class_names == data.train.class_names
    (tmp_path / "train2018.json").unlink()
    write_list(tmp_path / "iNaturalist18_train.txt", entries)
    by_list = load_listed("inaturalist", data_dir=tmp_path, verify=False)
    assert by_list.train.fingerprint == data.train.fingerprint


def test_bad_competition_files(tmp_path):
    entries, path = listed_entries([1, 1, 1], form="inaturalist"), tmp_path / "train2018.json"

    def problems(change):
        made = competition(entries, num_classes=3)
        change(made)
        path.write_text(json.dumps(made))
        return "\n".join(read(path)[1])

    second = {"image_id": 10, "category_id": 2}
    assert "image 10 has two labels, 0 and 2" in problems(lambda m: m["annotations"].append(second))
    assert "image 10, 'train_val2018/" in problems(lambda m: m["annotations"].pop())
    with pytest.raises(InputError, match="is not a competition file with labels"):
        problems(lambda m: m.pop("annotations"))


def test_folders_are_listed_as_people_count(tmp_path):
    paths = ["train/c10/1.jpg", "train/c2/10.jpg", "train/c2/9.jpg", "test/c2/1.jpg"]
    write_photos(tmp_path, [*paths, "test/c10/1.jpg"])
    (tmp_path / "train/c2/.hidden").touch()
    data = load_listed(tmp_path)
    assert data.train.paths.tolist() == [b"c2/9.jpg", b"c2/10.jpg", b"c10/1.jpg"]
    assert data.train.class_names == ("c2", "c10")
    assert data.test.labels.tolist() == [0, 1]
    (tmp_path / "test/c3").mkdir()
    with pytest.raises(InputError, match="class folders that the training set lacks: c3"):
        load_listed(tmp_path)
    (tmp_path / "test/c3").rmdir()
    (tmp_path / "train/c3").mkdir()
    with pytest.raises(InputError, match=r"class folder\(s\) c3 hold no images"):
        load_listed(tmp_path)


# Folders read into memory.


def test_classes_and_images_come_in_the_order_people_count_in(tmp_path):
    root = tmp_path / "my flowers"
    made = write_folder(root / "train", {"10": 12, "9": 1, "1": 2, "b10": 1, "b9": 1})
    write_folder(root / "test", {"9": 1})
    data = load(root)
    assert data.train.class_names == data.test.class_names == ("1", "9", "10", "b9", "b10")
    expected = np.concatenate([made[name] for name in data.train.class_names])
    np.testing.assert_array_equal(data.train.images, expected)  # so 2.png comes before 10.png
    assert data.train.labels.tolist() == [0, 0, 1, *[2] * 12, 3, 4]
    assert data.test.labels.tolist() == [1]
    assert (data.spec.name, data.spec.profile) == ("my-flowers", None)
    assert load(str(root)).spec == data.spec


def test_clutter_is_passed_over(tmp_path):
    for split in ("train", "test"):
        write_folder(tmp_path / split, {"a": 1, "b": 1})
        write_clutter(tmp_path / split)
        write_clutter(tmp_path / split / "a")
        (tmp_path / split / "README.txt").write_text("about these images")
    assert load(tmp_path).train.class_names == ("a", "b")


def test_what_would_be_passed_over_silently_is_refused(tmp_path):
    for split in ("train", "test"):
        write_folder(tmp_path / split, {"a": 1})
    for place, message in (
        ("a/broken.jpg", r"a/broken\.jpg is not an image"),
        ("stray.png", "stray.png is in no class folder"),
    ):
        (tmp_path / "train" / place).write_bytes(b"x")
        with pytest.raises(InputError, match=message):
            load(tmp_path)
