"""A whole data set gone through: every kind of problem is found, and nothing else."""

import json
import os
import re
import shutil
import signal
from multiprocessing import get_start_method
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data_factory import (
    LIST_NAMES,
    competition,
    listed_entries,
    photo,
    write_clutter,
    write_large,
    write_list,
    write_photos,
)
from longtail._checks import InputError
from longtail.data import check
from longtail.data.check import KINDS, check_data
from longtail.data.large import LARGE, load_listed
from longtail.data.photos import check_photo

pytestmark = pytest.mark.usefixtures("no_data_folder")


def found(result):
    return {(problem.kind, Path(problem.where).name) for problem in result.problems}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("form", LARGE)
def test_a_sound_data_set_has_no_problems(tmp_path, form, workers):
    write_large(tmp_path, form, counts=(40, 20, 10))
    steps = []
    result = check_data(tmp_path, workers=workers, progress=lambda *step: steps.append(step))
    assert result.ok
    assert result.problems == []
    assert result.counts == {}
    assert result.images["train"] == 70
    assert result.classes == 3
    total = sum(result.images.values())
    assert [done for done, _, _ in steps] == [*range(32, total, 32), total]
    assert {(total, "images")} == {step[1:] for step in steps}


def test_a_sound_competition_file_and_a_sound_tree(tmp_path):
    write_large(tmp_path, "inaturalist")
    for split, name in (("train", "train2018.json"), ("test", "val2018.json")):
        entries = listed_entries((6, 3, 1) if split == "train" else (1, 1, 1), form="inaturalist",
                                 split=split)  # fmt: skip
        (tmp_path / name).write_text(json.dumps(competition(entries, num_classes=3)))
        (tmp_path / LIST_NAMES["inaturalist"][split]).unlink()
    assert check_data(tmp_path, workers=1).ok
    assert check_data(tmp_path / "train2018.json", workers=1).images == {"train": 10}
    tree = tmp_path / "tree"
    write_photos(tree, ["train/a/1.jpg", "train/b/1.jpg", "test/a/1.jpg", "test/b/1.jpg"])
    assert check_data(tree, workers=1).ok


@pytest.mark.parametrize("workers", [1, 2])
def test_every_bad_file_is_found_and_no_other(tmp_path, workers):
    root = write_large(tmp_path, counts=(60, 20, 10))
    files = sorted((root / "train").rglob("*.JPEG"))
    assert len(files) > 3 * check._CHUNK - 10  # the faults lie in several chunks
    content = files[5].read_bytes()
    files[5].write_bytes(content[:-60])
    files[33].write_text("no image")
    files[50].write_bytes(b"")
    files[70].unlink()
    files[80].unlink()
    files[80].mkdir()
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(files[81], "PNG")
    result = check_data(root, workers=workers)
    expected = {5: "truncated", 33: "format", 50: "truncated", 70: "missing", 80: "unreadable",
                81: "unreadable"}  # fmt: skip
    got = [(problem.kind, problem.where) for problem in result.problems]
    order = list(KINDS)
    assert got == sorted(
        ((kind, str(files[i])) for i, kind in expected.items()),
        key=lambda pair: (order.index(pair[0]), pair[1]),
    )
    assert result.counts == {"missing": 1, "truncated": 2, "unreadable": 2, "format": 1}
    assert not result.ok
    quick = check_data(root, workers=1, quick=True)
    assert quick.quick
    assert quick.counts == {"missing": 1, "truncated": 1, "unreadable": 2, "format": 1}


def test_faults_of_the_lists_are_found_together(tmp_path):
    root = write_large(tmp_path, "places-lt", counts=(4, 2, 2, 1))
    path = root / "Places_LT_train.txt"
    lines = path.read_text().splitlines()
    del lines[6:8]  # class 2
    lines += [lines[0], lines[1].rsplit(" ")[0] + " 3", "alone", "a/b.jpg cat", "/abs.jpg 0"]
    held = (root / "Places_LT_val.txt").read_text().splitlines()[0]
    path.write_text("\n".join([*lines, held]))
    result = check_data(root, workers=1)
    assert result.counts == {"line": 1, "path": 1, "label": 2, "duplicate": 2, "overlap": 1}
    text = "\n".join(f"{p.where}: {p.detail}" for p in result.problems)
    for piece in (
        f"{path}:10: a line is `path label`; got 'alone' alone",
        f"{path}:11: the label must be a whole number, 0 or more; got 'cat'",
        f"{path}:12: a path must be relative to the image root",
        f"{path}: labels must be 0 .. 3 without holes, but no image has label 2",
        f"{path}:8: ",
        "(label 3, and 0 there)",
        f"{root / 'Places_LT_val.txt'}: 'train/scene_0/val_00000000.jpg' is in the train set",
    ):
        assert piece in text


def without_class_2(root):
    path = root / "ImageNet_LT_test.txt"
    path.write_text("\n".join(path.read_text().splitlines()[:2]))
    return path


def test_a_list_that_judges_may_lack_a_class_and_the_result_says_which(tmp_path):
    """Training takes it and judges by the others; only the training set must have them all."""
    root = write_large(tmp_path, counts=(3, 2, 2))
    assert check_data(root, workers=1).absent == {}
    without_class_2(root)
    result = check_data(root, workers=1)
    assert (result.ok, result.absent) == (True, {"test": ["2"]})
    assert load_listed(root).test.counts.tolist() == [1, 1, 0]


def test_a_published_list_lacks_no_class(tmp_path):
    path = without_class_2(write_large(tmp_path / "imagenet-lt", counts=(3, 2, 2)))
    found = [p for p in check_data("imagenet-lt", data_dir=tmp_path, workers=1).problems
             if (p.kind, p.where) == ("label", str(path))]  # fmt: skip
    assert "no image has label 2, 3, 4" in found[0].detail


def test_one_file_is_found_however_it_is_spelt(tmp_path):
    write_photos(tmp_path, ["a/1.jpg", "a/2.jpg", "a/3.jpg", "a/4.jpg"])
    write_list(tmp_path / "train.txt", [("a/1.jpg", 0), ("a/2.jpg", 1), ("a/./2.jpg", 1)])
    write_list(tmp_path / "test.txt", [("./a/1.jpg", 0), ("a//2.jpg", 1), ("a/3.jpg", 0)])
    result = check_data(tmp_path, workers=1)
    assert result.counts == {"duplicate": 1, "overlap": 2}
    assert result.files == 3
    assert [problem.detail for problem in result.problems] == [
        "'a/./2.jpg' is on line 2 already (label 1)",
        "'a/1.jpg' is in the train set as well",
        "'a/2.jpg' is in the train set as well",
    ]


def test_a_data_set_without_a_test_set_is_told_of_it(tmp_path):
    """Training refuses it, so it isn't sound; one list by itself has no other split."""
    write_photos(tmp_path, ["tree/train/a/1.jpg", "tree/train/b/1.jpg", "set/a.jpg", "set/b.jpg"])
    write_list(tmp_path / "set/train.txt", [("a.jpg", 0), ("b.jpg", 1)])
    for folder, wanted in (("tree", "test/<class>/<image>"), ("set", "test.txt")):
        (problem,) = check_data(tmp_path / folder, workers=1).problems
        assert (problem.kind, problem.where) == ("split", str(tmp_path / folder))
        assert problem.detail == f"has no test set ({wanted}), which training needs"
    assert check_data(tmp_path / "set/train.txt", workers=1).ok
    root = write_large(tmp_path / "inaturalist", "inaturalist")
    (root / "iNaturalist18_train.txt").unlink()
    found = check_data("inaturalist", data_dir=tmp_path, workers=1).problems[0]
    assert found.kind == "split"
    assert "has no train set (iNaturalist18_train.txt or train2018.json)" in found.detail


def test_options_that_would_do_nothing_are_refused(tmp_path):
    write_photos(tmp_path, ["train/a/1.jpg", "test/a/1.jpg"])
    with pytest.raises(InputError, match=r"a folder of images; root \(--root\) is what the paths"):
        check_data(tmp_path, root=tmp_path)
    with pytest.raises(InputError, match=r"is a path; data_dir \(--data-dir\) is where data sets"):
        check_data(tmp_path, data_dir=tmp_path)


def test_an_empty_list_and_a_mistyped_label(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("")
    (problem,) = check_data(path, workers=1).problems
    assert (problem.kind, problem.detail[:17]) == ("line", "the list is empty")
    write_photos(tmp_path, ["a.jpg", "b.jpg"])
    write_list(path, [("a.jpg", 0), ("b.jpg", 999_999_999)])
    (problem,) = check_data(path, workers=1).problems
    assert "but no image has label 1, 2, 3 and 999,999,995 more" in problem.detail


def test_a_tree_that_judges_has_no_other_classes(tmp_path):
    write_photos(tmp_path, ["train/a/1.jpg", "train/b/1.jpg", "test/a/1.jpg", "test/c/1.jpg"])
    (problem,) = check_data(tmp_path, workers=1).problems
    assert (problem.kind, problem.where) == ("label", str(tmp_path / "test"))
    assert problem.detail == (
        "has class folders that the training set lacks: c; rename or remove them (it has no "
        "folder of b)"
    )
    (tmp_path / "train/a/notes.txt").write_text("remember")
    assert ("format", "notes.txt") in found(check_data(tmp_path, workers=1))


@pytest.mark.parametrize("empty", [False, True])
def test_a_tree_that_judges_may_lack_classes(tmp_path, empty):
    names = [f"{split}/{k}/1.jpg" for split in ("train", "test", "val") for k in "abc"]
    write_photos(tmp_path, [n for n in names if n not in ("test/b/1.jpg", "val/a/1.jpg")])
    if empty:
        (tmp_path / "test/b").mkdir()
    result = check_data(tmp_path, workers=1)
    assert (result.ok, result.absent) == (True, {"test": ["b"], "val": ["a"]})
    assert load_listed(tmp_path).test.counts.tolist() == [1, 0, 1]


def test_an_empty_class_folder_of_the_training_set_is_named(tmp_path):
    write_photos(tmp_path, ["train/a/1.jpg", "train/b/1.jpg", "test/a/1.jpg", "test/b/1.jpg"])
    for folder in ("train/c", "train/d", "test/c"):
        (tmp_path / folder).mkdir()
    words = "the class folder(s) c, d hold no images; fill or remove them"
    (problem,) = check_data(tmp_path, workers=1).problems
    assert (problem.kind, problem.where) == ("label", str(tmp_path / "train"))
    assert problem.detail == words
    with pytest.raises(InputError, match=re.escape(words)):
        load_listed(tmp_path)


def test_clutter_is_no_image_and_no_class(tmp_path):
    write_photos(tmp_path, ["train/a/1.png", "train/b/1.png", "test/a/1.png", "test/b/1.png"])
    for folder in ("train", "train/a", "test/b"):
        write_clutter(tmp_path / folder)
    result = check_data(tmp_path, workers=1)
    assert (result.problems, result.files, result.classes) == ([], 4, 2)
    assert list(load_listed(tmp_path).train.paths) == ["a/1.png", "b/1.png"]


def test_images_beside_the_class_folders_are_found(tmp_path):
    """In memory they are refused; from disk they are left out, which data sets say."""
    write_photos(tmp_path, ["train/a/1.png", "train/b/1.png", "test/a/1.png", "test/b/1.png"])
    for file in ("train/notes.txt", "train/.hidden.png", "train/Thumbs.db"):
        (tmp_path / file).write_text("x")
    assert check_data(tmp_path, workers=1).ok
    assert load_listed(tmp_path).stray == ()
    write_photos(tmp_path, ["train/y.JPG", "train/x.png", "test/z.png"])
    result = check_data(tmp_path, workers=1)
    assert [(p.kind, p.where, p.detail) for p in result.problems] == [
        ("stray", str(tmp_path / file), "is in no class folder; move it into one, or remove it")
        for file in ("train/x.png", "train/y.JPG", "test/z.png")
    ]
    data = load_listed(tmp_path)
    assert data.stray == tuple(tmp_path / f for f in ("train/x.png", "train/y.JPG", "test/z.png"))
    assert len(data.train) == 2


def test_lists_may_leave_images_of_their_root_out(tmp_path):
    write_photos(tmp_path, ["1.png", "2.png", "3.png"])
    write_list(tmp_path / "train.txt", [("1.png", 0)])
    write_list(tmp_path / "test.txt", [("2.png", 0)])
    assert check_data(tmp_path, workers=1).ok
    assert load_listed(tmp_path).stray == ()


def test_by_name_the_published_numbers_hold(tmp_path):
    root = write_large(tmp_path / "imagenet-lt")
    result = check_data("imagenet-lt", data_dir=tmp_path, workers=1)
    assert result.counts == {"size": 3, "label": 3}
    first = result.problems[0]
    assert first.where == str(root / "ImageNet_LT_train.txt")
    assert first.detail == "has 10 images; the train set of ImageNet-LT has 115,846"
    assert "no image has label 3, 4, 5 and 994 more" in result.problems[3].detail


def test_what_can_not_be_checked_is_refused(tmp_path):
    write_large(tmp_path / "set")
    with pytest.raises(InputError, match=r"no folder .*gone, the image root of set; .*--root"):
        check_data(tmp_path / "set", root=tmp_path / "gone")
    with pytest.raises(InputError, match="`workers` must be a whole number, at least 1"):
        check_data(tmp_path / "set", workers=0)
    with pytest.raises(InputError, match="there is no data set, list or folder 'mnist'"):
        check_data("mnist")


def test_images_elsewhere_are_checked_there(tmp_path):
    root = write_large(tmp_path / "set")
    shutil.move(root / "train", tmp_path / "photos/train")
    shutil.move(root / "val", tmp_path / "photos/val")
    assert check_data(root, workers=1).counts == {"missing": 16}
    assert check_data(root, root=tmp_path / "photos", workers=1).ok


def _deadly(file, *, quick=False):
    if file.endswith("train_40.JPEG"):
        os.kill(os.getpid(), signal.SIGKILL)
    return check_photo(file, quick=quick)


@pytest.mark.skipif(get_start_method() != "fork", reason="the patch reaches forked processes")
def test_a_worker_that_dies_is_reported(tmp_path, monkeypatch):
    root = write_large(tmp_path, counts=(90, 1, 1))
    monkeypatch.setattr(check, "check_photo", _deadly)
    with pytest.raises(ChildProcessError, match=r"a worker process died .*near .*JPEG; .*--work"):
        check_data(root, workers=2)


def test_damage_that_the_decoder_stumbles_over_is_found(tmp_path):
    photo(200, 150).save(tmp_path / "a.png")
    content = bytearray((tmp_path / "a.png").read_bytes())
    middle = len(content) // 2
    content[middle : middle + 40] = bytes(byte ^ 255 for byte in content[middle : middle + 40])
    (tmp_path / "a.png").write_bytes(content)
    path = write_list(tmp_path / "train.txt", [("a.png", 0)])
    (problem,) = check_data(path, workers=1).problems
    assert problem.kind in ("unreadable", "truncated")
    assert check_data(path, workers=1, quick=True).ok
