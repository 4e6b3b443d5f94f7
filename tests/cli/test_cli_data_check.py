"""`longtail data check`: its output, its files and its exit code."""

import json
from pathlib import Path

import pytest
from PIL import Image

from data_factory import write_folder, write_large, write_photos

pytestmark = pytest.mark.usefixtures("no_data_folder")


def checked(cli, *options):
    """The output as one line, after it was held to the promises of a sound data set."""
    result = cli("data", "check", "set", *options)
    assert (result.code, result.err) == (0, "")
    assert "No problems" in result.out
    assert max(map(len, result.out.splitlines())) <= 80
    return " ".join(result.out.split())


def as_json(cli, *options):
    return json.loads(cli("data", "check", "set", *options, "--json").out)


def test_a_sound_data_set(cli):
    write_large(Path("set"))
    first, second = cli("data", "check", "set").out.splitlines()
    assert first == "set: 10 training, 3 validation, 3 test images, 3 classes"
    assert second.startswith("No problems (16 of 16 files there, every one decoded, 0.")
    assert "files there, headers only" in checked(cli, "--quick")


def broken_set():
    root = write_large(Path("set"))
    files = sorted((root / "train").rglob("*.JPEG"))
    for file in files[:5]:
        file.unlink()
    files[5].write_text("x")
    return [str(file) for file in files[:6]]


def test_problems_are_listed_and_the_exit_code_is_one(cli):
    files = broken_set()
    result = cli("data", "check", "set", "--workers", 1)
    assert (result.code, result.err) == (1, "")
    lines = result.out.splitlines()
    assert lines[2:4] == ["5 x missing: files that are not there", f"  {files[0]}: is not there"]
    assert lines[6:9] == ["  and 2 more", "", "1 x format: files that are not images"]
    assert lines[9].startswith(f"  {files[5]}: is not an image (PNG, ")
    assert lines[-2:] == [
        "6 problems (11 of 16 files there, every one decoded).",
        "All of them: --out FILE or --json",
    ]
    quick = cli("data", "check", "set", "--workers", 1, "--quick").out
    assert "6 problems (11 of 16 files there, headers only)." in quick
    document = as_json(cli)
    assert document["ok"] is False
    assert document["images"] == {"train": 10, "val": 3, "test": 3}
    assert document["counts"] == {"missing": 5, "format": 1}
    first = {"kind": "missing", "where": files[0], "detail": "is not there"}
    assert document["problems"][0] == first
    assert len(document["problems"]) == 6


def test_all_problems_go_to_a_file(cli):
    files = broken_set()
    result = cli("data", "check", "set", "--workers", 1, "--out", "problems.txt")
    assert result.code == 1
    assert result.out.endswith("Written: problems.txt\n")
    lines = [line.split("\t") for line in Path("problems.txt").read_text().splitlines()]
    assert [line[:2] for line in lines] == [
        *(["missing", file] for file in files[:5]),
        ["format", files[5]],
    ]
    again = cli("data", "check", "set", "--out", "problems.txt")
    assert (again.code, again.out) == (1, "")
    assert "problems.txt exists; pass --force" in again.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["imagenet-lt"], "where the lists of imagenet-lt are (ImageNet_LT_train.txt and"),
        (["."], "has neither lists (train.txt and test.txt"),
        (["digits-lt", "--quick"], "--quick does nothing here: the images of this data set are"),
    ],
)
def test_bad_input(refused, arguments, message):
    write_photos(Path("set"), ["train/a/1.jpg", "test/a/2.jpg"])
    code = 2 if "--quick" in arguments else 1
    assert message in refused("data", "check", *arguments, code=code)


# What is no problem, but good to know.


def test_what_only_recipes_that_crop_can_take_is_told(cli):
    for split in ("train", "test"):
        write_folder(Path("set", split), {"a": 20, "b": 20}, shape=(1, 6, 5))
    assert "sizes" not in checked(cli)
    Image.new("RGB", (5, 6)).save("set/train/b/7.png")
    assert "set/train/b/7.png is in colour, but all images of test are grey" in checked(cli)
    write_photos(Path("set"), ["test/b/7.png"], size=(9, 9))
    text = checked(cli)
    assert "The images have 2 sizes, 6 x 5 to 9 x 9 pixels (height x width): " in text
    assert "2 sizes" in as_json(cli)["remarks"][0]
    assert "must be 6 x 5" in cli("data", "describe", "set").err
    Image.new("RGBA", (5, 6)).save("set/test/b/1.png")
    assert "set/test/b/1.png has transparency" in checked(cli)


def test_absent_classes_and_turned_images_are_told_of(cli):
    names = {"train": "abc", "test": "ac"}
    write_photos(Path("set"), [f"{s}/{k}/1.jpg" for s, classes in names.items() for k in classes])
    exif = Image.Exif()
    for file, orientation in (("train/a/1", 1), ("test/c/1", 6), ("train/b/1", 3)):
        exif[0x0112] = orientation  # 1 is as it is stored; no decoder here turns the others
        Image.new("RGB", (8, 6)).save(f"set/{file}.jpg", exif=exif)
    text = checked(cli)
    said = "The test set has no examples of class(es) b: its mean error will be that of"
    assert said in text
    assert "EXIF data ask to turn or mirror 2 images, such as set/test/c/1.jpg: training" in text
    document = as_json(cli)
    assert document["remarks"][0].startswith(said)
    assert document["turned"] == ["set/test/c/1.jpg", "set/train/b/1.jpg"]
