"""`longtail data check`: its output, its files and its exit code."""

import json
from pathlib import Path

import pytest
from PIL import Image

from data_factory import write_folder, write_large, write_photos

pytestmark = pytest.mark.usefixtures("no_data_folder")


def as_json(cli, *options):
    return json.loads(cli("data", "check", "set", *options, "--json").out)


def test_a_sound_data_set(ok):
    write_large(Path("set"))
    first, second = ok("data", "check", "set", err="").out.splitlines()
    assert first == "set: 10 training, 3 validation, 3 test images, 3 classes"
    assert second.startswith("No problems (16 of 16 files there, every one decoded, 0.")
    assert "files there, headers only" in ok("data", "check", "set", "--quick").out


def test_problems_are_listed_written_and_the_exit_code_is_one(cli):
    root = write_large(Path("set"))
    paths = sorted((root / "train").rglob("*.JPEG"))[:6]
    for file in paths[:5]:
        file.unlink()
    paths[5].write_text("x")
    files = list(map(str, paths))
    result = cli("data", "check", "set", "--workers", 1)
    assert (result.code, result.err) == (1, "")
    lines = result.out.splitlines()
    assert lines[2:4] == ["5 x missing: files that are not there", f"  {files[0]}: is not there"]
    assert lines[6:9] == ["  and 2 more", "", "1 x format: files that are not images"]
    assert lines[9].startswith(f"  {files[5]}: is not an image (PNG, ")
    assert "6 problems (11 of 16 files there, every one decoded)." in lines
    document = as_json(cli)
    assert document["ok"] is False
    assert document["counts"] == {"missing": 5, "format": 1}
    first = {"kind": "missing", "where": files[0], "detail": "is not there"}
    assert document["problems"][0] == first
    assert len(document["problems"]) == 6

    result = cli("data", "check", "set", "--workers", 1, "--out", "problems.txt")
    assert result.code == 1
    written = [line.split("\t") for line in Path("problems.txt").read_text().splitlines()]
    expected = [*(["missing", file] for file in files[:5]), ["format", files[5]]]
    assert [line[:2] for line in written] == expected
    assert "pass --force" in cli("data", "check", "set", "--out", "problems.txt").err


def test_a_folder_of_anything_else_is_refused(refused):
    assert "has neither lists (train.txt and test.txt" in refused("data", "check", ".")


# What is no problem, but good to know.


def test_what_only_recipes_that_crop_can_take_is_told(cli, ok):
    for split in ("train", "test"):
        write_folder(Path("set", split), {"a": 20, "b": 20}, shape=(1, 6, 5))
    assert "sizes" not in ok("data", "check", "set").out
    Image.new("RGB", (5, 6)).save("set/train/b/7.png")
    write_photos(Path("set"), ["test/b/7.png"], size=(9, 9))
    assert "2 sizes, 6 x 5 to 9 x 9 pixels" in as_json(cli)["remarks"][0]
    Image.new("RGBA", (5, 6)).save("set/test/b/1.png")
    assert "set/test/b/1.png has transparency" in ok("data", "check", "set").out


def test_absent_classes_and_turned_images_are_told_of(cli):
    names = {"train": "abc", "test": "ac"}
    write_photos(Path("set"), [f"{s}/{k}/1.jpg" for s, classes in names.items() for k in classes])
    exif = Image.Exif()
    for file, orientation in (("train/a/1", 1), ("test/c/1", 6), ("train/b/1", 3)):
        exif[0x0112] = orientation  # 1 is as it is stored; no decoder here turns the others
        Image.new("RGB", (8, 6)).save(f"set/{file}.jpg", exif=exif)
    document = as_json(cli)
    assert document["remarks"][0].startswith("The test set has no examples of class(es) b:")
    assert document["turned"] == ["set/test/c/1.jpg", "set/train/b/1.jpg"]
