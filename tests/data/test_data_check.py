"""A whole data set gone through: every kind of problem is found, and nothing else."""

import numpy as np
import pytest
from PIL import Image

from data_factory import write_large, write_list, write_photos
from longtail.data.check import check_data
from longtail.data.large import KINDS, LARGE

pytestmark = pytest.mark.usefixtures("no_data_folder")


@pytest.mark.parametrize("form", LARGE)
def test_a_sound_data_set_has_no_problems(tmp_path, form):
    write_large(tmp_path, form, counts=(40, 20, 10))
    steps = []
    result = check_data(tmp_path, workers=1, progress=lambda *step: steps.append(step))
    assert result.ok
    assert (result.problems, result.counts) == ([], {})
    assert (result.images["train"], result.classes) == (70, 3)
    total = sum(result.images.values())
    assert [done for done, _, _ in steps] == [*range(32, total, 32), total]
    assert {(total, "images")} == {step[1:] for step in steps}


@pytest.mark.parametrize("workers", [1, 2])
def test_every_bad_file_is_found_and_no_other(tmp_path, workers):
    root = write_large(tmp_path, counts=(60, 20, 10))
    files = sorted((root / "train").rglob("*.JPEG"))
    files[5].write_bytes(files[5].read_bytes()[:-60])
    files[33].write_text("no image")
    files[50].write_bytes(b"")
    files[70].unlink()
    files[80].unlink()
    files[80].mkdir()
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(files[81], "PNG")
    result = check_data(root, workers=workers)
    expected = {5: "truncated", 33: "format", 50: "truncated", 70: "missing", 80: "unreadable"}
    expected[81] = "unreadable"
    got = [(problem.kind, problem.where) for problem in result.problems]
    order = list(KINDS)
    assert got == sorted(
        ((kind, str(files[i])) for i, kind in expected.items()),
        key=lambda pair: (order.index(pair[0]), pair[1]),
    )
    assert result.counts == {"missing": 1, "truncated": 2, "unreadable": 2, "format": 1}
    quick = check_data(root, workers=1, quick=True)
    assert quick.quick
    assert quick.counts == {"missing": 1, "truncated": 1, "unreadable": 2, "format": 1}


def test_faults_of_the_lists_are_found_together(tmp_path):
    root = write_large(tmp_path, "places-lt", counts=(4, 2, 2, 1))
    path = root / "Places_LT_train.txt"
    lines = path.read_text().splitlines()
    del lines[6:8]  # class 2
    lines += [lines[0], lines[1].rsplit(" ")[0] + " 3", "alone", "a/b.jpg cat"]
    lines += ["/abs.jpg 0", "./../x.jpg 0"]
    held = (root / "Places_LT_val.txt").read_text().splitlines()[0]
    path.write_text("\n".join([*lines, held]))
    result = check_data(root, workers=1)
    assert result.counts == {"line": 1, "path": 2, "label": 2, "duplicate": 2, "overlap": 1}
    places = {str(problem.where) for problem in result.problems}
    assert {str(path), *(f"{path}:{line}" for line in (9, 10, 11, 12, 13))} <= places
    assert str(root / "Places_LT_val.txt") in places


def test_a_data_set_without_a_test_set_is_told_of_it(tmp_path):
    """Training refuses it, so it isn't sound; one list by itself has no other split."""
    write_photos(tmp_path, ["tree/train/a/1.jpg", "tree/train/b/1.jpg", "set/a.jpg", "set/b.jpg"])
    write_list(tmp_path / "set/train.txt", [("a.jpg", 0), ("b.jpg", 1)])
    for folder, wanted in (("tree", "test/<class>/<image>"), ("set", "test.txt")):
        (problem,) = check_data(tmp_path / folder, workers=1).problems
        assert (problem.kind, problem.where) == ("split", str(tmp_path / folder))
        assert problem.detail == f"has no test set ({wanted}), which training needs"
    assert check_data(tmp_path / "set/train.txt", workers=1).ok
