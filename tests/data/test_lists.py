"""Lists of images on disk: ImageNet-LT, Places-LT, iNaturalist, folders; good and bad ones."""

import json
import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest

from data_factory import (
    LIST_NAMES,
    competition,
    listed_entries,
    write_large,
    write_list,
    write_photos,
)
from longtail import ClassPrior
from longtail._checks import InputError
from longtail.data.large import LARGE, find_sources, load_listed, scan
from longtail.data.lists import ListedImages, Paths, list_folder, listed
from longtail.runs import DataSpec

pytestmark = pytest.mark.usefixtures("no_data_folder")

REAL = Path(os.environ.get("LONGTAIL_DATA", "-"))


def touched(root, paths):
    """Empty files: a list is read without a look inside."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    return root


def toy_list(folder, text, *, files=("a/1.jpg", "a/2.jpg", "b c/3 d.jpg")):
    touched(folder, files)
    (folder / "list.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / "list.txt"


def read(path, **settings):
    """One list or competition file, as `load_listed` reads each of its splits."""
    usual = {"root": path.parent, "name": "images", "class_names": None, "caller": "read"}
    usual |= {"every_class": True, "check_files": True}
    return listed(scan(path), **(usual | settings))


def test_a_list_is_read_in_its_order(tmp_path):
    data = read(toy_list(tmp_path, "b c/3 d.jpg 1\na/1.jpg 0\n\na/2.jpg 0\n"))
    assert list(data.paths) == ["b c/3 d.jpg", "a/1.jpg", "a/2.jpg"]
    assert data.paths[-1] == "a/2.jpg"
    assert data.paths[1:] == ["a/1.jpg", "a/2.jpg"]
    assert data.labels.tolist() == [1, 0, 0]
    assert data.labels.dtype == np.int64
    assert data.counts.tolist() == [2, 1]
    assert data.class_names == ("0", "1")
    assert data.file(0) == str(tmp_path / "b c/3 d.jpg")
    assert len(data) == 3
    assert np.allclose(data.prior.probs, ClassPrior.from_counts([2, 1]).probs)
    with pytest.raises(IndexError):
        data.paths[3]


@pytest.mark.parametrize(
    "text",
    [
        b"a/1.jpg 0\r\na/2.jpg 1\r\n",
        b"\xef\xbb\xbfa/1.jpg 0\na/2.jpg 1",
        b"a/1.jpg\t0\n  a/2.jpg   1  \n\n",
    ],
    ids=["windows", "mark", "blanks"],
)
def test_line_ends_marks_and_blanks_mean_nothing(tmp_path, text):
    data = read(toy_list(tmp_path, text))
    assert list(data.paths) == ["a/1.jpg", "a/2.jpg"]
    assert data.labels.tolist() == [0, 1]


def test_the_fingerprint_tells_lists_apart_and_not_their_places(tmp_path):
    def made(paths, labels, root=tmp_path, name="images"):
        return ListedImages(Path(root), paths, np.array(labels), ("0", "1"), name)

    first = made(["a", "b"], [0, 1])
    others = [made(["a", "c"], [0, 1]), made(["a", "b"], [1, 0]), made(["b", "a"], [0, 1])]
    assert len({first.fingerprint, *(other.fingerprint for other in others)}) == 4
    assert made(["ab", ""], [0, 1]).fingerprint != made(["a", "b"], [0, 1]).fingerprint
    assert made(["a", "b"], [0, 1], root="/elsewhere").fingerprint == first.fingerprint
    assert first.spec == DataSpec("images", settings={"list": first.fingerprint[:16]})


def test_examples_can_be_taken_and_sent_to_another_process():
    data = ListedImages(Path("r"), ["a", "bb", "ccc"], np.array([0, 1, 1]), ("x", "y"), "n")
    part = data.take(np.array([2, 0]))
    assert list(part.paths) == ["ccc", "a"]
    assert part.labels.tolist() == [1, 0]
    assert (part.class_names, part.name, part.root) == (("x", "y"), "n", Path("r"))
    again = pickle.loads(pickle.dumps(data))
    assert list(again.paths) == list(data.paths)
    assert again.fingerprint == data.fingerprint


def test_images_without_labels_are_refused():
    with pytest.raises(InputError, match="2 paths but 1 labels"):
        ListedImages(Path("r"), ["a", "b"], np.array([0]), ("x",))
    with pytest.raises(InputError, match=r"`labels` must lie in 0 \.\. 0, but 1 occurs"):
        ListedImages(Path("r"), ["a", "b"], np.array([0, 1]), ("x",))


BAD = {
    "empty": ("", r"list\.txt: the list is empty; it needs lines `path label`\."),
    "blank": ("\n \n", r"the list is empty"),
    "no label": ("a/1.jpg 0\na/2.jpg\n", r"list\.txt:2: a line is `path label`; got 'a/2\.jpg' al"),
    "word": (
        "a/1.jpg 0\na/2.jpg cat\n",
        r":2: the label must be a whole number, 0 or more; got 'cat'\.",
    ),
    "negative": ("a/1.jpg -1\n", r":1: the label must be a whole number.* got '-1'"),
    "decimal": ("a/1.jpg 1.0\n", r"got '1\.0'"),
    "huge": ("a/1.jpg 99999999999999999999\n", r"must be a whole number"),
    "several": (
        "a/1.jpg x\na/2.jpg y\nb c/3 d.jpg z\n",
        r"'x' \(and 2 more; `longtail data check`",
    ),
    "hole": (
        "a/1.jpg 0\na/2.jpg 3\n",
        r"labels must be 0 \.\. 3 without holes, but no image has label 1, 2\.",
    ),
    "many holes": ("a/1.jpg 0\na/2.jpg 900000000\n", r"label 1, 2, 3 and 899,999,996 more"),
    "from one": ("a/1.jpg 1\na/2.jpg 2\n", r"without holes, but no image has label 0\."),
    "duplicate": (
        "a/1.jpg 0\na/2.jpg 1\na/1.jpg 0\n",
        r"list\.txt:3: 'a/1\.jpg' is on line 1 already \(label 0\)",
    ),
    "contradiction": (
        "a/1.jpg 0\na/1.jpg 1\n",
        r":2: 'a/1\.jpg' is on line 1 already \(label 1, and 0 there\)",
    ),
    "absolute": (
        "/data/a/1.jpg 0\n",
        r":1: a path must be relative to the image root; '/data/a/1\.jpg' is absolute",
    ),
    "drive": ("C:\\a\\1.jpg 0\n", r"relative to the image root; 'C:.* is absolute"),
    "escape": ("a/../../x.jpg 0\n", r"must stay below the image root; .* has '\.\.' in it"),
    "respelt": (
        "a/1.jpg 0\na/2.jpg 1\n./a//1.jpg 0\n",
        r"list\.txt:3: '\./a//1\.jpg' is on line 1 already \(label 0\)",
    ),
    "folder": ("a/ 0\n", r"a path must name a file; 'a/' is a folder"),
    "here": (". 0\n", r"a path must name a file; '\.' is a folder"),
    "respelt escape": ("./../x.jpg 0\n", r"must stay below the image root; .* has '\.\.' in it"),
    "bytes": (b"a/1.jpg 0\na/\xff.jpg 1\n", r"is not a text in UTF-8 \(line 2\)"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_lists_are_refused(tmp_path, case):
    text, message = BAD[case]
    with pytest.raises(InputError, match=message):
        read(toy_list(tmp_path, text))


def test_dots_in_names_are_no_way_out(tmp_path):
    data = read(toy_list(tmp_path, "a..b/..x.jpg 0\n", files=["a..b/..x.jpg"]))
    assert len(data) == 1


@pytest.mark.parametrize("spelt", ["./a/1.jpg", "a//1.jpg", "a/./1.jpg", ".//a/1.jpg"])
def test_a_path_is_one_however_it_is_spelt(tmp_path, spelt):
    plain = read(toy_list(tmp_path, "a/1.jpg 0\na/2.jpg 1\n"))
    other = read(toy_list(tmp_path, f"{spelt} 0\na/2.jpg 1\n"))
    assert list(other.paths) == ["a/1.jpg", "a/2.jpg"]
    assert other.fingerprint == plain.fingerprint
    as_before = ListedImages(tmp_path, ["a/1.jpg", "a/2.jpg"], np.array([0, 1]), ("0", "1"))
    assert plain.fingerprint == as_before.fingerprint


@pytest.mark.parametrize("spelt", ["a/1.jpg", "./a/1.jpg", "a//1.jpg"])
@pytest.mark.parametrize("pair", [("train", "test"), ("train", "val")])
def test_a_training_file_in_another_split_is_refused(tmp_path, spelt, pair):
    lists = {
        "train": ["a/1.jpg", "a/2.jpg"],
        "val": ["a/3.jpg", "a/4.jpg"],
        "test": ["a/5.jpg", "a/6.jpg"],
    }
    touched(tmp_path, [path for paths in lists.values() for path in paths])
    for split, paths in lists.items():
        write_list(tmp_path / f"{split}.txt", zip(paths, (0, 1), strict=True))
    assert len(load_listed(tmp_path).test) == 2
    one, other = pair
    lists[one][0], lists[other][0] = "a/1.jpg", spelt
    for split, paths in lists.items():
        write_list(tmp_path / f"{split}.txt", zip(paths, (0, 1), strict=True))
    with pytest.raises(InputError, match=r"\.txt: 'a/1\.jpg' is in the train set as well"):
        load_listed(tmp_path)


def test_the_validation_and_the_test_set_may_be_one(tmp_path):
    lists = {"train": ["a/1.jpg", "a/2.jpg"], "val": ["a/3.jpg", "a/4.jpg"]}
    lists["test"] = lists["val"]
    touched(tmp_path, [*lists["train"], *lists["val"]])
    for split, paths in lists.items():
        write_list(tmp_path / f"{split}.txt", zip(paths, (0, 1), strict=True))
    assert len(load_listed(tmp_path).val) == len(load_listed(tmp_path).test) == 2


def test_missing_files_are_counted_and_the_first_is_named(tmp_path):
    text = "a/1.jpg 0\na/gone.jpg 0\nnowhere/2.jpg 1\n"
    path = toy_list(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read(path)
    message = str(caught.value)
    assert f"2 of the 3 files that {path} names are not in {tmp_path}" in message
    assert "the first is 'a/gone.jpg'" in message
    assert "--root" in message
    data = read(path, check_files=False)
    assert data.missing_files().tolist() == [1, 2]


def test_a_missing_root_or_list_is_said(tmp_path):
    path = toy_list(tmp_path, "a/1.jpg 0\n")
    with pytest.raises(InputError, match=r"there is no folder .*photos, the image root of .*list"):
        read(path, root=tmp_path / "photos")
    with pytest.raises(InputError, match=r"there is no list .*other\.txt"):
        read(tmp_path / "other.txt")


def test_class_names_decide_how_many_classes_there_are(tmp_path):
    path = toy_list(tmp_path, "a/1.jpg 0\na/2.jpg 2\n")
    names = ("x", "y", "z")
    with pytest.raises(InputError, match="no image has label 1"):
        read(path, class_names=names)
    data = read(path, class_names=names, every_class=False)
    assert data.counts.tolist() == [1, 0, 1]
    with pytest.raises(InputError, match=r"must lie in 0 \.\. 1, but 'a/2\.jpg' has 2"):
        read(path, class_names=names[:2], every_class=False)


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
    with pytest.raises(InputError, match=f"has 10 images, but the train set of {known.title} has"):
        load_listed(form, data_dir=tmp_path)


def test_images_and_lists_may_be_apart(tmp_path, monkeypatch):
    write_large(tmp_path / "images", "imagenet-lt")
    for name in LIST_NAMES["imagenet-lt"].values():
        (tmp_path / "lists").mkdir(exist_ok=True)
        (tmp_path / "images" / name).rename(tmp_path / "lists" / name)
    monkeypatch.setenv("LONGTAIL_DATA", str(tmp_path / "lists"))
    with pytest.raises(InputError, match=r"10 of the 10 files .* are not in .*lists"):
        load_listed("imagenet-lt", verify=False)
    data = load_listed("imagenet-lt", root=tmp_path / "images", verify=False)
    assert len(data.train) == 10


def test_what_is_not_there_is_said_by_name(tmp_path):
    with pytest.raises(InputError, match=r"where the lists of places-lt are \(Places_LT_train"):
        find_sources("places-lt")
    with pytest.raises(InputError, match=r"no list of iNaturalist 2018 .* or train2018\.json and"):
        find_sources("inaturalist", data_dir=tmp_path)
    with pytest.raises(InputError, match="the data sets on disk are imagenet-lt, places-lt"):
        find_sources("imagenet")
    with pytest.raises(InputError, match="has neither lists"):
        find_sources(tmp_path)
    write_list(tmp_path / "train.txt", listed_entries([1]))
    with pytest.raises(InputError, match=r"needs a test set; found only .*train\.txt"):
        load_listed(tmp_path)


def test_the_competition_file_is_joined_by_ids(tmp_path):
    entries = listed_entries([3, 1, 2], form="inaturalist")
    touched(tmp_path, [path for path, _ in entries])
    (tmp_path / "train2018.json").write_text(json.dumps(competition(entries, num_classes=3)))
    data = read(tmp_path / "train2018.json")
    assert list(zip(data.paths, data.labels.tolist(), strict=True)) == entries
    assert data.class_names == ("species 0", "species 1", "species 2")
    listing = read(write_list(tmp_path / "train.txt", entries))
    assert listing.fingerprint == data.fingerprint
    judged = listed_entries([1, 1, 1], form="inaturalist", split="test")
    touched(tmp_path, [path for path, _ in judged])
    (tmp_path / "val2018.json").write_text(json.dumps(competition(judged, num_classes=3)))
    both = load_listed("inaturalist", data_dir=tmp_path, verify=False)
    assert both.test.class_names == data.class_names


def without(key):
    def change(document):
        del document[key]

    return change


def put(part, position, **values):
    def change(document):
        document[part][position].update(values)

    return change


BAD_JSON = {
    "test set": (without("annotations"), r"has no annotations, so no labels; .*val2018\.json"),
    "no images": (without("images"), "is no competition file, which is"),
    "no categories": (without("categories"), "lacks the list `categories`"),
    "field": (
        lambda document: document["images"][1].pop("file_name"),
        "every entry of `images` has id and file_name; entry 1 is",
    ),
    "ids": (put("categories", 0, id=7), r"category ids must be 0 \.\. L - 1, .* 2 is no id"),
    "category": (put("annotations", 0, category_id=9), r"must lie in 0 \.\. 2; that of .* is 9"),
    "no annotation": (
        lambda document: document["annotations"].pop(),
        "image 10, 'train_val2018/Plantae/0/.*, has no annotation",
    ),
    "no image": (lambda document: document["images"].pop(), "1 annotations are of no image"),
    "two labels": (
        lambda document: document["annotations"].append({"image_id": 10, "category_id": 2}),
        "image 10 has two labels, 0 and 2",
    ),
    "absolute": (put("images", 0, file_name="/x.jpg"), "'/x.jpg' is absolute"),
    "hole": (
        lambda document: document["categories"].append({"id": 3, "name": "rare"}),
        r"labels must be 0 \.\. 3 without holes, but no image has label 3",
    ),
}


@pytest.mark.parametrize("case", BAD_JSON)
def test_bad_competition_files_are_refused(tmp_path, case):
    change, message = BAD_JSON[case]
    document = competition(listed_entries([1, 1, 1], form="inaturalist"), num_classes=3)
    change(document)
    path = tmp_path / "train2018.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=message):
        read(path, check_files=False)


def test_a_file_named_twice_in_the_competition_file(tmp_path):
    entries = listed_entries([2], form="inaturalist")
    document = competition([entries[0], entries[0]], num_classes=1)
    (tmp_path / "a.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match="is in `images` twice"):
        read(tmp_path / "a.json")
    respelt = competition([entries[0], (f"./{entries[0][0]}", 0)], num_classes=1)
    (tmp_path / "a.json").write_text(json.dumps(respelt))
    with pytest.raises(InputError, match=r"'\./train_val2018/.*' is in `images` twice"):
        read(tmp_path / "a.json")
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(InputError, match="is not valid JSON"):
        read(tmp_path / "a.json")


def test_folders_are_listed_as_people_count(tmp_path):
    paths = ["train/c10/1.jpg", "train/c2/10.jpg", "train/c2/9.jpg", "test/c2/1.jpg"]
    write_photos(tmp_path, [*paths, "test/c10/1.jpg"])
    (tmp_path / "train/c2/.hidden").touch()
    data = load_listed(tmp_path)
    assert list(data.train.paths) == ["c2/9.jpg", "c2/10.jpg", "c10/1.jpg"]
    assert data.train.class_names == ("c2", "c10")
    assert data.test.labels.tolist() == [0, 1]
    (tmp_path / "test/c3").mkdir()
    with pytest.raises(InputError, match="class folders that the training set lacks: c3"):
        load_listed(tmp_path)
    (tmp_path / "test/c3").rmdir()
    (tmp_path / "train/c3").mkdir()
    with pytest.raises(InputError, match=r"class folder\(s\) c3 hold no images"):
        load_listed(tmp_path)
    with pytest.raises(InputError, match="there is no folder"):
        list_folder(tmp_path / "none")


def test_half_a_million_lines_take_about_a_second_and_little_memory(tmp_path):
    lines = (f"train_val2018/Plantae/{i % 8142}/{i:032x}.jpg {i % 8142}" for i in range(437_513))
    path = tmp_path / "train.txt"
    path.write_text("\n".join(lines))
    started = time.process_time()
    data = read(path, check_files=False)
    seconds = time.process_time() - started
    assert data.num_classes == 8142
    assert int(data.counts.sum()) == 437_513
    assert seconds < 5  # about one on a quiet machine
    assert len(pickle.dumps(data)) < 45e6
    assert isinstance(data.paths, Paths)


def test_the_real_list_of_imagenet_lt():
    path = REAL / "lists" / "ImageNet_LT_val.txt"
    if not path.is_file():
        pytest.skip("LONGTAIL_DATA has no lists/ImageNet_LT_val.txt")
    data = read(path, check_files=False)
    assert len(data) == 20_000
    assert data.counts.tolist() == [20] * 1000
    assert data.paths[0] == "train/n01440764/n01440764_762.JPEG"
